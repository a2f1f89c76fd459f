/* A rank of the tests of channels' host side: a communicator, memory, and the kernels of ends_kernels.cuh.
 *
 *   SYMWIN_TEST_ENDS_FATBIN   on GPUs, where the kernels are; ../obj/tests/ends_kernels.fatbin beside the program where it
 *                             is not set, which is where make gpu-tests puts them */
#ifndef SYMWIN_TESTS_ENDS_MEMBER_H
#define SYMWIN_TESTS_ENDS_MEMBER_H

#include "ends_kernels.h"
#include "harness.h"

extern const struct sw_emu_image ends_image;

enum { ENDS_PIECE = 512, ENDS_TURNS = 40, ENDS_BLOCKS = 3 };
enum {
    ENDS_BYTES = 8192, /* of memory that ends_play() needs */
    ENDS_WRONG = ENDS_BYTES - 64
};

/* The kernels as the driver takes them. */
HARNESS_UNUSED const void *ends_code(void)
{
    static const void *code;

    if (code == NULL)
        code = sw_driver_is_emulated()
                   ? &ends_image
                   : host_fatbin("SYMWIN_TEST_ENDS_FATBIN", "ends_kernels.fatbin");
    return code;
}

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
    host_must_cuda(sw_drv.cuLibraryLoadData(&m->library, ends_code(), NULL, NULL, 0, NULL, NULL, 0),
                   "cuLibraryLoadData");
}

HARNESS_UNUSED void ends_open(struct ends_member *m, struct harness_team *team, int rank)
{
    ends_open_with(m, &team->id, team->nranks, rank, 20000);
    m->team = team;
    harness_barrier(team); /* nobody launches before all have loaded */
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
    void *params[] = {args};
    CUfunction function;
    CUkernel kernel;

    host_must_cuda(sw_drv.cuLibraryGetKernel(&kernel, m->library, name), name);
    host_must_cuda(sw_drv.cuKernelGetFunction(&function, kernel), name);
    host_must_cuda(sw_drv.cuLaunchKernel(function, blocks, 1, 1, ENDS_THREADS, 1, 1, 0, m->stream,
                                         params, NULL),
                   name);
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
