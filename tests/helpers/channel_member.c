/* Ranks with memory in a window, and the kernels of channel_kernels.cuh on either driver. */
#include "channel_member.h"

#include "channel_kernels.h"

static const void *image = &channel_image; /* the emulated driver's, or a fat binary */

void channel_start(void)
{
    harness_load_ahead();
    harness_start();
    if (!sw_driver_is_emulated())
        image = host_fatbin("SYMWIN_TEST_FATBIN", "channel_kernels.fatbin");
}

void member_open(struct member *m, struct harness_team *team, int rank, size_t bytes)
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
    host_must_cuda(sw_drv.cuLibraryLoadData(&m->library, image, NULL, NULL, 0, NULL, NULL, 0),
                   "cuLibraryLoadData");
    harness_barrier(team); /* nobody launches before all have loaded */
}

void member_close(struct member *m)
{
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuLibraryUnload(m->library), "cuLibraryUnload");
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

void member_launch_only(const struct member *m, const char *name, unsigned blocks, unsigned threads,
                        size_t shared, void *args)
{
    void *params[] = {args};
    CUfunction function;
    CUkernel kernel;

    host_must_cuda(sw_drv.cuLibraryGetKernel(&kernel, m->library, name), name);
    host_must_cuda(sw_drv.cuKernelGetFunction(&function, kernel), name);
    if (shared > 48 * 1024) /* what a launch may have without being asked for */
        host_must_cuda(sw_drv.cuFuncSetAttribute(
                           function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared),
                       name);
    host_must_cuda(sw_drv.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, (unsigned)shared,
                                         m->stream, params, NULL),
                   name);
}

void member_launch(const struct member *m, const char *name, unsigned blocks, unsigned threads,
                   size_t shared, void *args)
{
    member_launch_only(m, name, blocks, threads, shared, args);
    host_must(symwin_stream_synchronize(m->device, m->stream), name);
}
