/* Ranks of the tests of the device API, with the kernels of device_kernels.cuh: a member has memory
 * in a window, whose addresses its kernels get; an ends_member has channels that the host made.
 *
 *   SYMWIN_TEST_FATBIN   the kernels on GPUs; default: device_kernels.fatbin where make gpu-tests
 *                        writes it */
#ifndef SYMWIN_TESTS_DEVICE_MEMBER_H
#define SYMWIN_TESTS_DEVICE_MEMBER_H

#include "device_kernels.h"
#include "harness.h"

/* The kernels as the driver loads them. Skips the test where there are none. main() calls it
 * before it starts threads. */
HARNESS_UNUSED const void *device_code(void)
{
    static const void *code;

    if (code == NULL)
        code = sw_driver_is_emulated() ? &device_image
                                       : host_fatbin("SYMWIN_TEST_FATBIN", "device_kernels.fatbin");
    return code;
}

/* Launches a kernel of the library with `shared` bytes of dynamic shared memory. */
HARNESS_UNUSED void device_launch(CUlibrary library, CUstream stream, const char *name,
                                  unsigned blocks, unsigned threads, size_t shared, void *args)
{
    void *params[] = {args};
    CUfunction function;
    CUkernel kernel;

    host_must_cuda(sw_drv.cuLibraryGetKernel(&kernel, library, name), name);
    host_must_cuda(sw_drv.cuKernelGetFunction(&function, kernel), name);
    if (shared > 48 * 1024) /* more than a launch may have by default */
        host_must_cuda(sw_drv.cuFuncSetAttribute(
                           function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared),
                       name);
    host_must_cuda(sw_drv.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, (unsigned)shared,
                                         stream, params, NULL),
                   name);
}

/* ---- a rank with a window ---- */

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    struct sw_scope scope;
    CUstream stream;
    CUlibrary library;
    size_t bytes;
    char *memory, *theirs; /* `bytes` of a window, at first zeros; the next rank's */
    symwin_window *window;
};

/* First thing in main(): harness_start(), and the kernels. Skips the test where it cannot run. */
HARNESS_UNUSED void channel_start(void)
{
    harness_load_ahead();
    harness_start();
    (void)device_code();
}

HARNESS_UNUSED void member_open(struct member *m, struct harness_team *team, int rank, size_t bytes)
{
    *m = (struct member){
        .team = team, .rank = rank, .device = harness_device(rank), .bytes = bytes};
    host_must(harness_comm(team, rank, &m->comm), "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
    m->memory = host_alloc(m->device, bytes);
    host_must_cuda(sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)m->memory, 0, bytes, m->stream),
                   "memset");
    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    host_must(symwin_window_register(m->comm, m->memory, bytes, 0, &m->window), "register");
    host_must(symwin_window_peer_pointer(m->comm, m->window, (rank + 1) % team->nranks, 0,
                                         (void **)&m->theirs),
              "peer_pointer");
    host_must_cuda(
        sw_drv.cuLibraryLoadData(&m->library, device_code(), NULL, NULL, 0, NULL, NULL, 0),
        "cuLibraryLoadData");
    harness_barrier(team); /* no rank launches before all have loaded */
}

/* Waits for the other ranks. */
HARNESS_UNUSED void member_close(struct member *m)
{
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuLibraryUnload(m->library), "cuLibraryUnload");
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

HARNESS_UNUSED void member_launch_only(const struct member *m, const char *name, unsigned blocks,
                                       unsigned threads, size_t shared, void *args)
{
    device_launch(m->library, m->stream, name, blocks, threads, shared, args);
}

/* Launches and waits for the end. */
HARNESS_UNUSED void member_launch(const struct member *m, const char *name, unsigned blocks,
                                  unsigned threads, size_t shared, void *args)
{
    member_launch_only(m, name, blocks, threads, shared, args);
    host_must(symwin_stream_synchronize(m->device, m->stream), name);
}

/* The address of a byte of `memory` or `theirs`, as kernels take it. */
HARNESS_UNUSED uint64_t member_at(const char *memory, size_t offset)
{
    return (uint64_t)(uintptr_t)(memory + offset);
}

/* A word of 32 bits of device memory at a kernel's address. */
HARNESS_UNUSED uint32_t member_word(const struct member *m, uint64_t addr)
{
    return host_get_u32(m->device, (const void *)(uintptr_t)addr);
}

/* ---- a rank with channels that the host made ---- */

enum { ENDS_PIECE = 512, ENDS_TURNS = 40, ENDS_BLOCKS = 3 };
enum {
    ENDS_BYTES = 8192, /* of memory for ends_play() */
    ENDS_WRONG = ENDS_BYTES - 64
};

struct ends_member {
    struct harness_team *team;
    int rank, nranks, device;
    symwin_comm *comm;
    struct sw_scope scope;
    CUstream stream;
    CUlibrary library;
};

HARNESS_UNUSED void ends_open_with(struct ends_member *m, const symwin_unique_id *id, int nranks,
                                   int rank, int timeout_ms)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = timeout_ms,
                                         .kernel_timeout_ms = 20000,
                                         .slot_bytes = 8192};

    *m = (struct ends_member){.rank = rank, .nranks = nranks, .device = harness_device(rank)};
    host_must(symwin_comm_create(id, nranks, rank, m->device, &options, &m->comm),
              "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
    host_must_cuda(
        sw_drv.cuLibraryLoadData(&m->library, device_code(), NULL, NULL, 0, NULL, NULL, 0),
        "cuLibraryLoadData");
}

HARNESS_UNUSED void ends_open(struct ends_member *m, struct harness_team *team, int rank)
{
    ends_open_with(m, &team->id, team->nranks, rank, 20000);
    m->team = team;
    harness_barrier(team); /* no rank launches before all have loaded */
}

HARNESS_UNUSED void ends_close(struct ends_member *m)
{
    host_must_cuda(sw_drv.cuLibraryUnload(m->library), "cuLibraryUnload");
    symwin_comm_destroy(m->comm);
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

/* Device memory of zeros. */
HARNESS_UNUSED void *ends_alloc(const struct ends_member *m, size_t bytes)
{
    void *ptr = host_alloc(m->device, bytes);

    host_must_cuda(sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)ptr, 0, bytes, m->stream),
                   "memset");
    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    return ptr;
}

HARNESS_UNUSED symwin_channel_end *ends_offer(const struct ends_member *m, int peer, void *ptr,
                                              size_t bytes, int lanes)
{
    const symwin_channel_options options = {.size = sizeof options, .lanes = lanes};
    symwin_channel_end *end = NULL;

    host_must(symwin_channel_create(m->comm, peer, ptr, bytes, &options, &end),
              "symwin_channel_create");
    return end;
}

HARNESS_UNUSED symwin_channel ends_connect(const struct ends_member *m, symwin_channel_end *end)
{
    symwin_channel channel = {0};

    host_must(symwin_channel_connect(m->comm, end, &channel), "symwin_channel_connect");
    return channel;
}

HARNESS_UNUSED void ends_destroy(const struct ends_member *m, symwin_channel_end *end)
{
    host_must(symwin_channel_destroy(m->comm, end), "symwin_channel_destroy");
}

HARNESS_UNUSED struct ends_args ends_args_of(const struct ends_member *m, int peer,
                                             const symwin_channel *channel)
{
    struct ends_args args = {
        .channel = *channel,
        .bytes = ENDS_PIECE,
        .turns = ENDS_TURNS,
        .first = 100000u * (unsigned)(m->rank + 1),
        .their_first = 100000u * (unsigned)(peer + 1),
        .first_flag = 1,
        .wrong = channel->own + ENDS_WRONG,
    };

    host_must(symwin_channel_limit(m->comm, &args.limit), "symwin_channel_limit");
    return args;
}

HARNESS_UNUSED void ends_launch(const struct ends_member *m, const char *name, unsigned blocks,
                                struct ends_args *args)
{
    device_launch(m->library, m->stream, name, blocks, ENDS_THREADS, 0, args);
}

/* Waits for the kernel; whether all words were right and no wait was given up. */
HARNESS_UNUSED int ends_right(const struct ends_member *m, const struct ends_args *args)
{
    uint32_t words[2] = {1, 1};

    host_must(symwin_stream_synchronize(m->device, m->stream), "a kernel");
    host_must(host_copy(m->device, words, (const void *)(uintptr_t)args->wrong, sizeof words),
              "read");
    if (words[0] != 0 || words[1] != 0)
        printf("# rank %d: %u words are wrong, %u waits were given up\n", m->rank, words[0],
               words[1]);
    return words[0] == 0 && words[1] == 0;
}

/* Runs a kernel at both ends of a channel, whose memory has ENDS_BYTES. */
HARNESS_UNUSED int ends_play(const struct ends_member *m, int peer, const symwin_channel *channel,
                             const char *name, unsigned blocks)
{
    struct ends_args args = ends_args_of(m, peer, channel);

    ends_launch(m, name, blocks, &args);
    return ends_right(m, &args);
}

#endif
