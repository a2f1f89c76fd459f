/* Windows: collective registration, local deregistration. */
#ifndef SYMWIN_WINDOW_REGISTER_H
#define SYMWIN_WINDOW_REGISTER_H

#include "src/window/segment.h"
#include "src/window/window_index.h"

struct sw_window {
    uintptr_t handle; /* value of the public handle; 0: the communicator's own memory */
    void *ptr;
    size_t bytes;
    size_t offset;              /* in the flat range */
    uint64_t buffer_id;         /* of the mapping of the first physical allocation */
    uint64_t memory;            /* handle of the physical allocation, which the segment owns;
                                 * 0: none, or several */
    size_t within;              /* offset of the window in that allocation */
    int pieces;                 /* number of physical allocations */
    struct sw_segment *segment; /* one reference */
    CUdeviceptr held;           /* owned memory that the window keeps from being freed; 0: none */
    unsigned transports;
    int refused; /* multicast was, by the caller */
};

/* The communicator's own memory, struct sw_comm_state and the receive slots, and the window on
 * it. */
struct sw_comm_memory {
    struct sw_memory memory; /* owned */
    struct sw_window window;
};

/* The collective part of a registration: fills `window`, which then holds its memory. `status` is
 * the result of this rank's preparations; an error there becomes every rank's. */
symwin_status sw_window_register(symwin_comm *comm, const char *call, symwin_status status,
                                 void *ptr, size_t bytes, unsigned flags, struct sw_window *window);
void sw_window_detach(symwin_comm *comm, struct sw_window *window);

/* The window as an entry of the window index. */
struct sw_window_index_entry sw_window_entry(const struct sw_window *window, uintptr_t handle);

/* ---- window.c ---- */

/* Deregisters all windows of the communicator, and the one on its own memory. */
void sw_window_detach_all(symwin_comm *comm);

/* Fills comm->memory with zeroed memory. */
symwin_status sw_own_memory_create(symwin_comm *comm, const char *call);

/* Collective: registers it as a window. */
symwin_status sw_own_memory_register(symwin_comm *comm, const char *call);

/* register_call.c: a buffer of a call, which need not be in a window: memory of this rank, and as
 * much as its allocation has, as far as that is known. */
symwin_status sw_window_check_memory(const symwin_comm *comm, const char *call, const char *which,
                                     size_t element, CUdeviceptr address, uint64_t bytes);

#endif
