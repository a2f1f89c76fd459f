/* A rank checks what its peer offers for a channel's other end: the position of its counters, and
 * its memory. Rank 1 is played by the test, which sends messages and creates no end.
 */
#include "harness.h"
#include "src/channel/channel.h"

enum { LANES = 4, TIMEOUT_MS = 5000 };

struct offered {
    uint64_t place, bytes;
};

static void tell(symwin_comm *comm, enum sw_message_kind kind, uint64_t number, uint64_t words,
                 struct offered memory)
{
    struct sw_frame_message message;

    sw_message_fill(comm, 0, kind, number, SYMWIN_OK, "", &message);
    message.lanes = LANES;
    message.words = words;
    message.memory = memory.bytes > 0 ? SW_MESSAGE_WINDOW : SW_MESSAGE_NONE;
    message.place = memory.place;
    message.bytes = memory.bytes;
    host_must(sw_mailbox_send(comm->group, &message, -1, 0, sw_now_ms() + TIMEOUT_MS, "test"),
              "sw_mailbox_send");
}

static const struct offer {
    const char *name;
    uint32_t lane;
    int64_t beside; /* error of the counters' offset, in bytes */
    symwin_status status;
    struct offered memory; /* `place`: offset in the window */
} offers[] = {
    {"the first lanes", 0, 0, SYMWIN_OK, {0, 0}},
    {"the last lanes", SW_STATE_LANES - LANES, 0, SYMWIN_OK, {0, 0}},
    {"lanes that pass the end", SW_STATE_LANES - LANES + 1, 0, SYMWIN_MISMATCH, {0, 0}},
    {"lanes behind the end", SW_STATE_LANES, 0, SYMWIN_MISMATCH, {0, 0}},
    {"lanes before the first", 0, -SW_STATE_LANE_BYTES, SYMWIN_MISMATCH, {0, 0}},
    {"half a lane on", 8, SW_STATE_LANE_BYTES / 2, SYMWIN_MISMATCH, {0, 0}},
    {"all of a window", 0, 0, SYMWIN_OK, {0, GRANULE}},
    {"its last byte", 0, 0, SYMWIN_OK, {GRANULE - 1, 1}},
    {"a byte behind it", 0, 0, SYMWIN_MISMATCH, {GRANULE, 1}},
    {"what passes its end", 0, 0, SYMWIN_MISMATCH, {GRANULE - 64, 65}},
    {"what wraps around", 0, 0, SYMWIN_MISMATCH, {64, UINT64_MAX - 8}},
};

enum { OFFERS = sizeof offers / sizeof offers[0] };

static void run(struct harness_team *team, int rank, void *arg)
{
    const symwin_channel_options options = {.size = sizeof options, .lanes = LANES};
    symwin_channel_end *ends[OFFERS];
    symwin_window_info info;
    symwin_window *window = NULL;
    symwin_channel channel;
    symwin_comm *comm;
    void *memory = NULL;
    int i;

    (void)arg;
    host_must(harness_comm(team, rank, &comm), "symwin_comm_create");
    host_must(symwin_mem_alloc(harness_device(rank), GRANULE, SYMWIN_MEM_OWN, &memory), "alloc");
    host_must(symwin_window_register(comm, memory, GRANULE, 0, &window), "register");
    host_must(symwin_window_query(comm, window, &info), "query");
    for (i = 0; i < OFFERS; i++) {
        const struct offer *o = &offers[i];
        const uint64_t number = (uint64_t)i + 1;

        if (rank == 1) {
            tell(comm, SW_MESSAGE_OFFER, number,
                 sw_lanes_offset(comm, o->lane) + (uint64_t)o->beside,
                 (struct offered){info.offset + o->memory.place, o->memory.bytes});
            tell(comm, SW_MESSAGE_VERDICT, number, 0, (struct offered){0, 0});
            continue;
        }
        host_must(symwin_channel_create(comm, 1, NULL, 0, &options, &ends[i]),
                  "symwin_channel_create");
        host_expect(o->name, symwin_channel_connect(comm, ends[i], &channel), o->status,
                    o->status == SYMWIN_OK ? ""
                    : o->memory.bytes == 0 ? "rank 1 offers counters at byte"
                                           : "the memory of rank 1 is in a window");
    }
    harness_barrier(team);
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "free");
}

int main(void)
{
    struct harness_leaks before;

    harness_start();
    before = harness_leaks_now();
    harness_run(2, run, NULL);
    harness_no_leaks("offers", &before);
    return tap_done();
}
