/* Ranks with windows that share their communicator's multicast object, wherever ranks may be (the
 * places of processes.h). */
#ifndef SYMWIN_TESTS_MULTICAST_RANKS_H
#define SYMWIN_TESTS_MULTICAST_RANKS_H

#include "processes.h"
#include "src/window/multicast.h"

enum { RANKS = 4, WAIT_MS = 20000 };

struct part {
    struct processes *p;
    int rank, device;
    symwin_comm *comm;
    void *memory;  /* two granules */
    void *scratch; /* what goes to the multicast addresses comes from here */
};

HARNESS_UNUSED void open_part(struct part *part, struct processes *p, int rank)
{
    *part = (struct part){.p = p, .rank = rank, .device = rank};
    host_must(processes_comm(p, rank, WAIT_MS, &part->comm), "symwin_comm_create");
    part->memory = host_alloc(rank, 2 * GRANULE);
    part->scratch = host_alloc(rank, GRANULE);
}

HARNESS_UNUSED void close_part(struct part *part)
{
    symwin_comm_destroy(part->comm);
    host_must(symwin_mem_free(part->memory), "symwin_mem_free");
    host_must(symwin_mem_free(part->scratch), "symwin_mem_free");
}

HARNESS_UNUSED symwin_window *window_on(const struct part *part, void *memory, size_t bytes)
{
    symwin_window *window = NULL;

    host_must(symwin_window_register(part->comm, memory, bytes, 0, &window),
              "symwin_window_register");
    return window;
}

HARNESS_UNUSED void drop(const struct part *part, symwin_window *window)
{
    host_must(symwin_window_deregister(part->comm, window), "symwin_window_deregister");
}

HARNESS_UNUSED symwin_window_info query(const struct part *part, const symwin_window *window)
{
    symwin_window_info info = {0};

    host_must(symwin_window_query(part->comm, window, &info), "symwin_window_query");
    return info;
}

HARNESS_UNUSED int has_multicast(const struct part *part, const symwin_window *window)
{
    const symwin_window_info info = query(part, window);
    const int has = (info.transports & SYMWIN_TRANSPORT_MULTICAST) != 0;

    must_equal(info.multicast_reason[0] == '\0', has, "no reason where there is multicast",
               part->rank);
    return has;
}

/* A word that `writer` stores to the multicast address of `offset` in its window is in the memory
 * of all, which begins at `own`. */
HARNESS_UNUSED void store_to(const struct part *part, const symwin_window *window, void *own,
                             size_t offset, int writer)
{
    const uint32_t value = 1000u * (uint32_t)writer + (uint32_t)offset;
    struct sw_scope scope;
    void *to = NULL;

    host_put_u32(part->device, host_at(own, offset), 0);
    processes_barrier(part->p);
    if (part->rank == writer) {
        host_must(symwin_window_multicast_pointer(part->comm, window, offset, &to),
                  "symwin_window_multicast_pointer");
        host_put_u32(part->device, part->scratch, value);
        host_must(sw_scope_enter(part->device, &scope), "scope");
        host_must_cuda(sw_drv.cuMemcpyDtoD((CUdeviceptr)(uintptr_t)to,
                                           (CUdeviceptr)(uintptr_t)part->scratch, sizeof value),
                       "cuMemcpyDtoD");
        sw_scope_leave(&scope);
    }
    processes_barrier(part->p);
    must_equal(host_get_u32(part->device, host_at(own, offset)), value, "a store through multicast",
               part->rank);
    processes_barrier(part->p);
}

HARNESS_UNUSED void store(const struct part *part, const symwin_window *window, size_t offset,
                          int writer)
{
    store_to(part, window, query(part, window).ptr, offset, writer);
}

HARNESS_UNUSED int binds(void)
{
    struct sw_emu_live live;

    sw_emu_live_count(&live);
    return (int)live.binds;
}

/* How many ranks of this process there are. */
HARNESS_UNUSED int here(const struct part *part)
{
    return part->comm->group->nlocal;
}

/* Runs body(p, rank) as the ranks of a place, and prints a TAP line. Returns what rank 0 told. */
HARNESS_UNUSED long long run(const struct place *place, const char *name,
                             void (*body)(struct processes *p, int rank), const void *arg)
{
    struct processes *p;
    long long told;

    tap_ok(places_run(place, RANKS, body, (void *)(uintptr_t)arg, &p), "%s: %s", place->name, name);
    told = p->rank[0].at_us;
    processes_free(p);
    return told;
}

#endif
