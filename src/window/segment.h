/* Segments: physical allocations of every rank at one offset of the flat range. */
#ifndef SYMWIN_SEGMENT_H
#define SYMWIN_SEGMENT_H

#include "src/control/control.h"
#include "src/memory/memory.h"

/* A rank's part of a segment: physical allocations (pieces) in the order of its own addresses,
 * without gaps. */
struct sw_stretch {
    size_t begin; /* relative to the segment's offset */
    size_t bytes;
    int pieces; /* number of physical allocations */
};

struct sw_segment_piece {
    CUmemGenericAllocationHandle memory; /* owned, 0: none */
    size_t offset;                       /* in the flat range */
    size_t bytes;
    uint64_t buffer_id; /* of the rank's own mapping; 0: of a rank of another process */
    int mapped;
};

struct sw_segment_rank {
    struct sw_stretch stretch;
    struct sw_segment_piece *pieces; /* inside the segment's own memory block */
    int shown;                       /* pieces mapped so far, by sw_segment_map() */
    size_t shown_bytes;
    int mapped;   /* all pieces are mapped */
    size_t bound; /* bytes of its memory that this process has bound, for bound_device; 0: none */
    int bound_device;
    int refs; /* the rank's windows on this segment and registrations under way */
};

struct sw_segment {
    struct sw_remains remains; /* first; of a segment without holders */
    struct sw_group *group;
    struct sw_segment *next; /* by offset */
    uint64_t id;             /* the registration's number: the same on all ranks, never reused */
    size_t offset;           /* in every rank's part of the flat range */
    size_t bytes;            /* to the end of the stretch that ends last, in whole granules */
    /* A rank that rules out multicast, since its stretch has several pieces or begins later than
     * the segment; -1: none. */
    int uneven;
    int holders;   /* ranks of this process with refs > 0; 0: unused, or being destroyed */
    int is_unused; /* other processes may use it: see sw_segment_unused_end() */
    atomic_size_t bound_bytes; /* so much of all ranks' memory has multicast addresses; 0: none */
    int stalled;               /* binds that have not come back; under the group's mutex */
    int is_left;               /* it is to be destroyed when they have; under the group's mutex */
    char reason[SW_REASON_BYTES];  /* why it has no multicast; empty: not said */
    struct sw_segment_rank rank[]; /* nranks */
};

/* The segment in which these allocations of `rank`, at these mappings, follow one another, with a
 * new reference for the rank; NULL: none. *offset: of the first of them in the flat range. Memory
 * that a rank maps twice has two segments: sw_segment_is_current() compares mappings. */
struct sw_segment *sw_segment_find(struct sw_group *group, int rank,
                                   const struct sw_physical *pieces, int count, size_t *offset);
int sw_segment_count(struct sw_group *group); /* with holders */

/* The handle of the allocation of `rank`, of this process, that the segment shows at `offset` of
 * the flat range, which must lie in the rank's stretch. The segment owns the handle: while it is
 * held, the driver gives the value to no other memory. So two segments that are held give one value
 * where they show the same memory of a rank, by whatever mapping, and nowhere else. Imports have
 * handles of their own. */
CUmemGenericAllocationHandle sw_segment_memory(const struct sw_segment *segment, int rank,
                                               size_t offset);

/* Whether `rank`, of this process, still has at [address, address + bytes) the memory that the
 * segment shows from `offset` of the flat range on; another allocator may have replaced it. The
 * caller holds a reference. */
int sw_segment_is_current(const struct sw_segment *segment, int rank, size_t offset,
                          CUdeviceptr address, size_t bytes);

/* The lowest offset, from `from` on, where this process has `bytes` free. */
symwin_status sw_segment_room(struct sw_group *group, size_t bytes, size_t from, size_t *offset);

/* Bytes from the segment's offset to the end of the stretch that ends last; SIZE_MAX on
 * overflow. */
size_t sw_segment_bytes(const struct sw_stretch *stretches, int nranks);

/* Segment `id`, at a free offset, with one stretch per rank. The first rank of this process to call
 * creates it. Each call adds a reference for `rank`. */
symwin_status sw_segment_join(struct sw_group *group, int rank, uint64_t id, size_t offset,
                              const struct sw_stretch *stretches, struct sw_segment **out);

/* Checks that the next piece of `rank`'s stretch can be `bytes` long. */
symwin_status sw_segment_expects(const struct sw_segment *segment, int rank, uint64_t bytes);

/* Maps the next piece of `rank`'s stretch for all devices of this process. `bytes` must be as
 * sw_segment_expects() demands. Takes over the handle. `buffer_id` is 0 for ranks of other
 * processes. */
symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory, size_t bytes, uint64_t buffer_id);

/* The segment that shows memory of `rank` at [offset, offset + bytes) of the flat range, with a new
 * reference for rank `holder`, of this process; NULL: none. */
struct sw_segment *sw_segment_hold(struct sw_group *group, int rank, size_t offset, size_t bytes,
                                   int holder);

/* Releases one reference of the rank. After the last one in this process the reaper destroys the
 * segment; only then is its offset free. */
void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank);

void sw_segment_destroy(struct sw_segment *segment); /* on the reaper */

/* Unbinds what this process has bound of the rank's memory to the multicast object. */
void sw_segment_unbind(struct sw_segment *segment, int rank);
void sw_segment_unbind_from(CUmemGenericAllocationHandle object, const struct sw_segment *segment,
                            int device, size_t bytes); /* one binding */

/* What the first unbind of this process that failed since the last call has answered. */
CUresult sw_segment_unbind_refused(void);

/* The lowest number, from `id` on, of a segment that this process does not use any more, but others
 * may; 0: none. */
uint64_t sw_segment_unused_from(struct sw_group *group, uint64_t id);

/* No process uses it any more, or this one leaves (0: all of them): destroys it. */
void sw_segment_unused_end(struct sw_group *group, uint64_t id);

/* ---- handle_exchange.c: memory of one process shown in another ---- */

/* Allocates what handle exchanges need. The leader calls it before the communicator exists, because
 * a process that ran out of memory during an exchange would keep the others waiting. The group
 * frees it. */
symwin_status sw_handle_exchange_create(struct sw_group *group);

/* Sends piece `piece` of each rank of this process to all other processes of the host, and maps
 * what they send. Only the leader calls it, after all ranks of this process have mapped their
 * memory in the segment; all processes must call it. SYMWIN_OK means that this process has
 * everything; whether the others have too is for the next agreement. */
symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call);

/* The same for the communicator's multicast object, which rank 0's process sends to all others.
 * `id` is the registration's number. *answer: the driver's to the export or import. */
symwin_status sw_handle_exchange_object(struct sw_group *group, uint64_t id, int timeout_ms,
                                        const char *call, CUresult *answer);

/* A rank's memory as a descriptor, or as a fabric handle. The descriptor is closed in forked
 * children; the caller closes it by sw_fork_set_close(). `what` it is, for messages: "memory".
 * *answer: the driver's. */
symwin_status sw_handle_exchange_export(CUmemGenericAllocationHandle memory, const char *what,
                                        int rank, int *fd, CUresult *answer);
symwin_status sw_handle_exchange_export_fabric(CUmemGenericAllocationHandle memory,
                                               const char *what, CUmemFabricHandle *handle,
                                               CUresult *answer);

/* Between hosts, handles travel as values of a ballot. The first call writes a piece of a rank's
 * memory as a fabric handle; the second maps the next piece of a rank on another host. */
#define SW_FABRIC_WORDS 9
symwin_status sw_handle_exchange_fabric(const struct sw_segment *segment, int rank, int piece,
                                        uint64_t words[SW_FABRIC_WORDS]);
symwin_status sw_handle_exchange_import(struct sw_group *group, struct sw_segment *segment,
                                        int rank, const uint64_t words[SW_FABRIC_WORDS]);

#endif
