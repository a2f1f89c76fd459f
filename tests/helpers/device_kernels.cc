/* The kernels of device_kernels.cuh for the emulated driver. */
#include "device_kernels.cuh"

#include "emu/emu.h"

static const struct sw_emu_kernel kernels[] = {
    {"channel_copy", channel_copy, sizeof(channel_copy_args), 0},
    {"channel_bulk", channel_bulk, sizeof(channel_bulk_args), 0},
    {"channel_bulk_play", channel_bulk_play, sizeof(channel_bulk_play_args), 0},
    {"channel_rate", channel_rate, sizeof(channel_rate_args), 0},
    {"packet_swap", packet_swap, sizeof(packet_args), 0},
    {"packet_get", packet_get, sizeof(packet_args), 0},
#define REDUCE_ENTRY(type) {"reduce_" #type, reduce_##type, sizeof(reduce_args), 0},
    REDUCE_TYPES(REDUCE_ENTRY)
#define MULTICAST_ENTRY(type) {"multicast_" #type, multicast_##type, sizeof(reduce_args), 0},
        MULTICAST_SUMS(MULTICAST_ENTRY) MULTICAST_TYPES(MULTICAST_ENTRY){
            "multicast_put", multicast_put, sizeof(reduce_args), 0},
    {"team_bytes", team_bytes, sizeof(team_args), 0},
    {"team_check", team_check, sizeof(team_args), 0},
    {"channel_play", channel_play, sizeof(channel_play_args), 0},
    {"channel_packets", channel_packets, sizeof(channel_play_args), 0},
    {"channel_draw", channel_draw, sizeof(channel_play_args), 0},
    {"team_blocks", team_blocks, sizeof(team_args), 0},
    {"team_grids", team_grids, sizeof(team_args), 0},
    {"ends_lanes", ends_lanes, sizeof(ends_args), 0},
    {"ends_many", ends_many, sizeof(ends_args), 0},
    {"ends_packed", ends_packed, sizeof(ends_args), 0},
};

const struct sw_emu_image device_image = {SW_EMU_IMAGE_MAGIC, sizeof kernels / sizeof kernels[0],
                                          kernels};
