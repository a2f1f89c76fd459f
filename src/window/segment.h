/* Segments: physical allocations of every rank at one offset of the flat range. */
#ifndef SYMWIN_SEGMENT_H
#define SYMWIN_SEGMENT_H

#include "src/control/control.h"
#include "src/memory/memory.h"

/* A rank's part of a segment: physical allocations side by side, as they are at its own addresses. */
struct sw_stretch {
    size_t begin; /* from the segment's offset on */
    size_t bytes;
    int pieces; /* physical allocations */
};

struct sw_segment_piece {
    CUmemGenericAllocationHandle memory; /* owned, 0: none */
    size_t offset;                       /* in the flat range */
    size_t bytes;
    uint64_t buffer_id; /* 0: of a rank of another process */
    int mapped;
};

struct sw_segment_rank {
    struct sw_stretch stretch;
    struct sw_segment_piece *pieces; /* in the segment's own memory */
    int shown;                       /* pieces that were given to sw_segment_map() */
    size_t shown_bytes;
    int mapped; /* its part of the flat range shows all of its memory */
    int bound;  /* its memory is bound to the multicast object, for bound_device */
    int bound_device;
    int refs; /* windows of the rank on this segment, and registrations under way */
};

struct sw_segment {
    struct sw_segment *next; /* by offset */
    uint64_t id;             /* the registration's number: one for all ranks, never reused */
    size_t offset;           /* in every rank's part of the flat range */
    size_t bytes;            /* to the end of the last stretch, granular */
    int uneven; /* a rank that keeps it from multicast: of several pieces, or that begins later; -1: none */
    int holders; /* ranks of this process with refs > 0; the last to leave tears it down */
    CUmemGenericAllocationHandle multicast; /* owned, 0: none */
    size_t multicast_bytes;
    int multicast_mapped;
    struct sw_segment_rank rank[]; /* nranks */
};

/* The segment that shows these allocations for `rank`, one behind the other, with a reference for the rank; NULL. *offset:
 * of the first of them in the flat range. */
struct sw_segment *sw_segment_find(struct sw_group *group, int rank,
                                   const struct sw_physical *pieces, int count, size_t *offset);
int sw_segment_count(struct sw_group *group);

/* Whether `rank`, of this process, still has at [address, address + bytes) what the segment, of which the caller holds a
 * reference, shows from `offset` of the flat range on: another allocator may have mapped other memory there. */
int sw_segment_is_current(const struct sw_segment *segment, int rank, size_t offset,
                          CUdeviceptr address, size_t bytes);

/* The lowest offset from `from` on that is free in this process for `bytes`. */
symwin_status sw_segment_room(struct sw_group *group, size_t bytes, size_t from, size_t *offset);

/* From the segment's offset to the end of the last stretch; SIZE_MAX: no address space has as much. */
size_t sw_segment_bytes(const struct sw_stretch *stretches, int nranks);

/* Segment `id` at an offset that is free, of a stretch for each rank, made by the first rank of this process to come, with
 * a reference for `rank`. */
symwin_status sw_segment_join(struct sw_group *group, int rank, uint64_t id, size_t offset,
                              const struct sw_stretch *stretches, struct sw_segment **out);

/* Whether the next piece of `rank`'s stretch may have so many bytes. */
symwin_status sw_segment_expects(const struct sw_segment *segment, int rank, uint64_t bytes);

/* Shows the next piece of `rank`'s stretch, which is as long as that wants it, to all devices of this process. Takes over
 * the handle. `buffer_id` is 0 for a rank of another process. */
symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory, size_t bytes, uint64_t buffer_id);

/* The segment that shows `rank` at [offset, offset + bytes) of the flat range, with a reference for rank `holder`, of this
 * process; NULL: there is none. */
struct sw_segment *sw_segment_hold(struct sw_group *group, int rank, size_t offset, size_t bytes,
                                   int holder);

/* Gives up one reference of the rank; the last rank's last one tears the segment down. */
void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank);

/* ---- multicast.c ---- */

/* Whether this process may create multicast objects (DESIGN 8): never against the variables that
 * switch multicast off, on real hardware only when asked. */
int sw_multicast_allowed(unsigned comm_flags);

/* The steps of giving a segment a multicast object; the ranks agree between them. */
symwin_status sw_multicast_create(struct sw_group *group, struct sw_segment *segment);
symwin_status sw_multicast_add(struct sw_segment *segment, int device);
symwin_status sw_multicast_bind(struct sw_segment *segment, int rank, int device);
symwin_status sw_multicast_map(struct sw_group *group, struct sw_segment *segment);

/* Undoes as much of it as was done. */
void sw_multicast_release(struct sw_group *group, struct sw_segment *segment);

/* ---- handle_exchange.c: memory of one process shown in another ---- */

/* What a trade works in, made by the leader before the communicator exists: a process that ran out of memory in the middle of
 * one would leave the others waiting. The group frees it. */
symwin_status sw_handle_exchange_create(struct sw_group *group);

/* By the leader alone, when every rank of this process has mapped its memory in the segment: sends piece `piece` of each to
 * every other process, and maps what they send. All processes must be at it. SYMWIN_OK says that this process has all;
 * whether the others have is for the next agreement. */
symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call);

/* Memory of a rank as a descriptor, which a forked child does not get, the caller's to close by sw_fork_set_close(); or as
 * a fabric handle. */
symwin_status sw_handle_exchange_export(CUmemGenericAllocationHandle memory, int rank, int *fd);
symwin_status sw_handle_exchange_export_fabric(CUmemGenericAllocationHandle memory,
                                               CUmemFabricHandle *handle);

/* Between hosts: a piece of a rank's memory as a fabric handle, in words of a vote, and the next piece of another host's rank
 * from its words. */
#define SW_FABRIC_WORDS 9
symwin_status sw_handle_exchange_fabric(const struct sw_segment *segment, int rank, int piece,
                                        uint64_t words[SW_FABRIC_WORDS]);
symwin_status sw_handle_exchange_import(struct sw_group *group, struct sw_segment *segment,
                                        int rank, const uint64_t words[SW_FABRIC_WORDS]);

#endif
