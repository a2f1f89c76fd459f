/* What ranks as processes do in one life: creation, all-reduces, windows, peers' memory, teardown. */
#ifndef SYMWIN_TESTS_PROCESS_CASES_H
#define SYMWIN_TESTS_PROCESS_CASES_H

#include "processes.h"

/* Elements, for many rounds of small slots; fewer rounds under ThreadSanitizer, where every poll of a kernel
 * that waits is a call. */
#if defined(__SANITIZE_THREAD__)
enum { COUNT = 6000 };
#else
enum { COUNT = 30000 };
#endif

/* Reduces once and compares every element. */
HARNESS_UNUSED void reduce(struct processes *p, int rank, symwin_comm *comm, uint32_t *in,
                           uint32_t *out, symwin_algo algo, struct CUstream_st *stream)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};
    const int device = rank % harness_device_count();
    uint32_t words[COUNT];
    uint32_t ranks = (uint32_t)p->count;
    int wrong = 0;
    uint32_t i;

    for (i = 0; i < COUNT; i++)
        words[i] = i * (uint32_t)(rank + 1);
    host_must(host_copy(device, in, words, sizeof words), "copy");
    host_must(symwin_allreduce_with(comm, in, out, COUNT, SYMWIN_U32, SYMWIN_SUM, &options, stream),
              "symwin_allreduce");
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    must_be(symwin_comm_check(comm) == SYMWIN_OK, "symwin_comm_check", rank);
    host_must(host_copy(device, words, out, sizeof words), "copy");
    for (i = 0; i < COUNT; i++)
        wrong += words[i] != i * (ranks * (ranks + 1) / 2);
    must_be(wrong == 0, "the sum", rank);
}

HARNESS_UNUSED void everything_with(struct processes *p, int rank, const symwin_unique_id *id)
{
    const int device = rank % harness_device_count();
    struct CUstream_st *stream = NULL;
    symwin_window *window = NULL, *second = NULL;
    symwin_comm *comm = NULL;
    symwin_comm_info info;
    uint32_t *buffer;
    void *peer;
    int i;

    host_must(processes_comm_with(p, rank, id, 20000, &comm), "symwin_comm_create");
    buffer = host_alloc(device, 2 * COUNT * sizeof *buffer);
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    reduce(p, rank, comm, buffer, buffer + COUNT, SYMWIN_ALGO_AUTO, stream); /* no window */
    host_must(symwin_window_register(comm, buffer, 2 * COUNT * sizeof *buffer, 0, &window),
              "symwin_window_register");
    for (i = 0; i < 3; i++) {
        reduce(p, rank, comm, buffer, buffer + COUNT, SYMWIN_ALGO_ONESHOT, stream);
        reduce(p, rank, comm, buffer, buffer + COUNT, SYMWIN_ALGO_TWOSHOT, stream);
    }
    host_must(symwin_window_register(comm, buffer, 64, 0, &second), "symwin_window_register");
    must_be(symwin_comm_query(comm, &info) == SYMWIN_OK && info.allocations == 1 &&
                info.windows == 2 && !info.multicast,
            "one allocation, two windows", rank);
    /* What a peer wrote is seen through the flat range. */
    host_put_u32(device, buffer, 7000u + (uint32_t)rank);
    processes_barrier(p);
    for (i = 0; i < p->count; i++) {
        host_must(symwin_window_peer_pointer(comm, window, i, 0, &peer), "peer pointer");
        must_be(host_get_u32(device, peer) == 7000u + (uint32_t)i, "a peer's word", rank);
    }
    processes_barrier(p);
    host_must(symwin_window_deregister(comm, window), "symwin_window_deregister");
    host_must(symwin_window_deregister(comm, second), "symwin_window_deregister");
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

HARNESS_UNUSED void everything(struct processes *p, int rank)
{
    everything_with(p, rank, processes_id(p, rank));
}

#endif
