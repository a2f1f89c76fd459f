/* Registered buffers: private declarations. symwin_register.h has the public ones, and what they are. */
#ifndef SYMWIN_REGISTER_PRIVATE_H
#define SYMWIN_REGISTER_PRIVATE_H

#include "cache.h"
#include "internal.h"

/* ---- a communicator's registrations ------------------------------------------------------------- */

/* Under the mutex, where it says nothing else. */
struct sw_registrations {
    atomic_size_t count; /* of ranges; written under the mutex */
    pthread_mutex_t mutex;
    struct sw_cache cache;
    struct sw_tickets handles;              /* owned: of the cache's struct sw_range */
    struct sw_connected *connected;         /* owned: windows and refusals */
    _Atomic(struct sw_connected *) retired; /* owned: to be taken down; written under the mutex */
    /* Owned; where they are, for calls, without the mutex. An entry's window is its struct sw_connected. */
    struct sw_registry *windows, *refusals;
    struct sw_returns *returns; /* a reference. No mutex */
    struct ncclComm *nccl;      /* attached; NULL: none */
    int (*nccl_register)(struct ncclComm *comm, void *ptr, size_t bytes, void **handle);
    int (*nccl_deregister)(struct ncclComm *comm, void *handle);
};

struct sw_registrations *sw_registrations_create(void); /* NULL: no host memory */

/* Disconnects and takes back all. Graphs may still hold what was in it. */
void sw_registrations_destroy(symwin_comm *comm);

/* ---- register.c: references; under the mutex where it says nothing else -------------------------- */

/* One more reference, to a range that is new or known. */
symwin_status sw_range_take(const char *call, symwin_comm *comm, CUdeviceptr ptr, size_t bytes,
                            enum sw_reference kind, struct sw_range **out);

/* Gives up a reference that is there; with the last one the range goes. The first failure is returned. */
symwin_status sw_range_drop(const char *call, struct sw_registrations *r, struct sw_range *range,
                            enum sw_reference kind);

/* Whether the address is the span's buffer's still. If not, its ranges are stale from now on. */
int sw_span_is_current(struct sw_registrations *r, struct sw_span *span, CUdeviceptr address);

/* Retires what was connected and no range has any more: calls do not find it from here on. It is taken down by
 * sw_registrations_settle(), and never on the way to a launch: a driver that waits for kernels before it unmaps would wait
 * for a peer's, which waits for this launch. */
void sw_retire_untouched(struct sw_registrations *r);

/* Calls see() for each range, with what was refused or connected at its first byte, or NULL; under the mutex. */
void sw_registrations_each(symwin_comm *comm,
                           void (*see)(const struct sw_range *range,
                                       const struct sw_connected *connected, void *context),
                           void *context);

/* Gives back what graphs that are gone have held, and takes down what is retired. Without the mutex. */
void sw_registrations_settle(symwin_comm *comm);
void sw_registrations_settle_all(void); /* of all communicators of this process */

/* ---- register_nccl.c: an attached NCCL; under the mutex ------------------------------------------ */

symwin_status sw_nccl_put(const char *call, struct sw_registrations *r, struct sw_range *range);
symwin_status sw_nccl_take(const char *call, struct sw_registrations *r, struct sw_range *range);

/* ---- register_call.c: what calls do about registered buffers; without the mutex ----------------- */

/* Whether sw_registrations_prepare() could find or do anything, `served` as there. A load. */
int sw_registrations_any(const symwin_comm *comm, int served);

/* Where all of [begin, begin + bytes) is connected, as sw_registry_find() for windows; its transports are 0 where that
 * was refused. SW_FOUND_PART: it is registered and not connected. Any thread. */
enum sw_found sw_registered_find(symwin_comm *comm, uintptr_t begin, size_t bytes,
                                 struct sw_registry_entry *out);

/* Before a call on `in` and `out` is launched: finds out what has become another buffer's, lets a capture hold what it
 * uses, and connects what is registered and is not connected yet. *changed: what is found may differ now. Collective where
 * it connects. `served`: both are in windows, or connected. */
symwin_status sw_registrations_prepare(symwin_comm *comm, const char *call, CUdeviceptr in,
                                       CUdeviceptr out, size_t bytes, CUstream stream, int served,
                                       int *changed);

/* What graphs that are gone have held and nobody has given back yet: outlives the communicator. */
struct sw_returns *sw_returns_create(void); /* NULL: no host memory */
void sw_returns_unref(struct sw_returns *returns);

/* Gives it back, without taking anything down: before a call looks at its buffers, or it would use what is retired. */
void sw_returns_collect(symwin_comm *comm);

/* ---- connect.c: registered memory becomes windows -------------------------------------------- */

/* What was connected, or refused. */
struct sw_connected {
    struct sw_connected *next;
    struct sw_window window; /* refused: has no segment */
    char refused[256];       /* "": it is connected */
};

/* Where a buffer lies: its allocation, and what of that is registered around it. */
struct sw_surroundings {
    int registered; /* and not connected */
    int can;        /* be shared: it is VMM memory, and one allocation */
    CUdeviceptr address;
    uint64_t buffer_id;
    size_t before, after; /* registered bytes, within the allocation */
};

/* Collective: connects the buffers, of `bytes` each, that are not connected on some rank. `made` gets what is to be
 * published, owned by the caller, also where it fails; its windows hold their memory. `status` is what this rank's
 * preparations gave; an error there becomes every rank's. */
symwin_status sw_connect(symwin_comm *comm, const char *call, symwin_status status,
                         const struct sw_surroundings buffers[2], size_t bytes,
                         struct sw_connected **made);

#endif
