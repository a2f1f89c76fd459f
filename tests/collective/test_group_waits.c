/* What decides which calls of a group are one launch, and which of them wait: memory with several
 * addresses, and captures. test_group.c has the rest. */
#define TEST_SLOT_BYTES 8192
#include "collectives.h"

/* The second call of a group reads what the first one has written, by another address. */
static void by_addresses(const struct rank *r, void *to, void *from, const char *what)
{
    uint32_t *const word = (uint32_t *)(void *)r->in, *const out = word + 1024;
    int turn, p;

    for (turn = 1; turn < 4; turn++) {
        const uint32_t before = r->comm->done;

        host_put_u32(r->device, (unsigned char *)word, (uint32_t)(r->rank + 100 * turn));
        host_must(symwin_group_begin(), "symwin_group_begin");
        host_must(symwin_broadcast(r->comm, word, to, 1, SYMWIN_U32, 0, r->streams[0]),
                  "the first");
        host_must(symwin_allgather(r->comm, from, out, 1, SYMWIN_U32, r->streams[0]), "the second");
        host_must(symwin_group_end(), "symwin_group_end");
        must_be(r->comm->done - before == 1, "one block", r->rank);
        job_wait(r, 0);
        host_must(symwin_comm_check(r->comm), "symwin_comm_check");
        for (p = 0; p < r->nranks; p++)
            must_be(host_get_u32(r->device, (unsigned char *)(out + p)) == (uint32_t)(100 * turn),
                    what, r->rank);
    }
}

/* The memory that a call writes has other addresses too: in the flat range, and by an import. */
static void by_other_addresses(struct processes *p, const struct rank *r, symwin_window *window)
{
    symwin_mem_handle handle;
    symwin_window *second;
    void *other = NULL;

    host_must(symwin_window_peer_pointer(r->comm, window, r->rank, 4096, &other), "pointer");
    by_addresses(r, r->out + 4096, other, "an address of the flat range, read");
    by_addresses(r, other, r->out + 4096, "an address of the flat range, written");
    host_must(symwin_mem_export(r->out, SYMWIN_HANDLE_POSIX_FD, &handle), "export");
    host_must(symwin_mem_import(r->device, &handle, &other), "import");
    close(handle.fd);
    host_must(symwin_window_register(r->comm, other, ROOM, 0, &second), "register");
    by_addresses(r, r->out + 4096, (unsigned char *)other + 4096, "two windows on one memory");
    processes_barrier(p);
    host_must(symwin_window_deregister(r->comm, second), "deregister");
    host_must(symwin_mem_free(other), "symwin_mem_free");
}

/* How many calls this rank has made, as its device counts them. */
static uint32_t launches(const struct rank *r)
{
    const symwin_comm *c = r->comm;

    return host_get_u32(r->device,
                        (unsigned char *)(uintptr_t)(c->group->base +
                                                     (uint64_t)c->rank * c->group->stride +
                                                     c->state_offset));
}

/* All-gathers in a capture and outside it, in one group. */
static void in_and_outside_a_capture(const struct rank *r)
{
    uint32_t *const in = (uint32_t *)(void *)r->in, *const out = in + 1024;
    const uint32_t before = launches(r);
    struct sw_scope scope;
    CUgraphExec exec;
    int k, p;

    for (k = 0; k < 4; k++)
        host_put_u32(r->device, (unsigned char *)(in + k), (uint32_t)(r->rank + 100 * k));
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuStreamBeginCapture(r->streams[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    host_must(symwin_group_begin(), "symwin_group_begin");
    for (k = 0; k < 4; k++)
        host_must(symwin_allgather(r->comm, in + k, out + k * r->nranks, 1, SYMWIN_U32,
                                   r->streams[k / 2]),
                  "symwin_allgather");
    host_must(symwin_group_end(), "symwin_group_end");
    exec = host_end_capture(r->streams[1], NULL);
    job_wait(r, 0);
    must_be(launches(r) - before == 1, "one launch outside the capture", r->rank);
    host_must_cuda(sw_drv.cuGraphLaunch(exec, r->streams[1]), "cuGraphLaunch");
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    must_be(launches(r) - before == 2, "and one in it", r->rank);
    for (k = 0; k < 4; k++)
        for (p = 0; p < r->nranks; p++)
            must_be(host_get_u32(r->device, (unsigned char *)(out + k * r->nranks + p)) ==
                        (uint32_t)(p + 100 * k),
                    "in a capture, or outside it", r->rank);
    host_must_cuda(sw_drv.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    sw_scope_leave(&scope);
}

static void body(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_window *window;

    open_rank(p, &r, WAIT_MS);
    in_and_outside_a_capture(&r);
    host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &window), "register");
    by_other_addresses(p, &r, window);
    processes_barrier(p);
    host_must(symwin_window_deregister(r.comm, window), "deregister");
    close_rank(p, &r);
}

int main(void)
{
    everywhere(body, 5);
    return tap_done();
}
