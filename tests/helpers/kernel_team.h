/* Ranks without a communicator: symmetric memory made by driver calls alone, and single launches of
 * collective kernels with any arguments, right or wrong. For tests of the kernels themselves.
 *
 * A rank's segment, mapped at base + rank * stride for every device (and, with multicast, all of
 * them together at base + nranks * stride):
 *
 *   | sw_comm_state, headers, slots | input area | output area |
 *   0                               input        output        segment
 *
 * Works on either driver. A driver call that fails ends the program. One thread drives all ranks.
 */
#ifndef SYMWIN_TESTS_KERNEL_TEAM_H
#define SYMWIN_TESTS_KERNEL_TEAM_H

#include "kernels/kernel_args.h"
#include "src/driver/driver.h"

#define TEAM_MAX_RANKS 80
#define TEAM_MAX_LIBRARIES 8
#define TEAM_SHARED (12 << 10) /* dynamic shared memory of a block that makes bulk copies */

struct team {
    int nranks, devices, multicast;
    size_t slot_bytes, area_bytes; /* of the input, and of the output area */
    size_t input, output, segment; /* offsets, and bytes in all */
    size_t stride;
    CUdeviceptr base;
    CUmemGenericAllocationHandle memory[TEAM_MAX_RANKS], multicast_object;
    CUstream stream[TEAM_MAX_RANKS];
    struct sw_kernel_report *report[TEAM_MAX_RANKS];
    CUcontext context[TEAM_MAX_RANKS]; /* a reference each */
    CUlibrary library[TEAM_MAX_LIBRARIES];
    int libraries;
};

struct team_call {
    symwin_algo algo;
    symwin_type type;
    symwin_op op;
    size_t count;
    size_t in, out; /* byte offsets in the input area and the output area */
    int in_place;   /* out is in */
    unsigned grid, block;
    uint32_t done;
    uint64_t timeout_ns;
};

/* Rank r is on device r % devices. With `multicast`, devices must be nranks. */
void team_open(struct team *team, int nranks, int devices, int multicast, size_t slot_bytes,
               size_t area_bytes);
void team_close(struct team *team);

/* What team_launch() passes for `rank`; to be altered and handed to team_launch_args(). */
struct sw_kernel_args team_args(const struct team *team, const struct team_call *call, int rank);

void team_launch(struct team *team, const struct team_call *call, int rank);
void team_launch_args(struct team *team, const struct team_call *call, int rank,
                      const struct sw_kernel_args *args);
void team_wait(struct team *team, int rank);

/* Whether the kernel exists. */
int team_has_kernel(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op);

/* The segment of `rank`, by copies. */
void team_read(const struct team *team, int rank, size_t offset, void *data, size_t bytes);
void team_write(const struct team *team, int rank, size_t offset, const void *data, size_t bytes);

struct sw_comm_state team_state(const struct team *team, int rank);
void team_set_epochs(const struct team *team, uint32_t epoch, uint32_t rounds);

#endif
