/* Windows on several physical allocations, with ranks as processes on one host and on several; with
 * few descriptors; and with one allocation in the middle that cannot be exported. */
#include <sys/resource.h>

#include "processes.h"
#include "user_memory.h"

struct arrangement {
    const struct span_row *row;
    const char *hosts; /* NULL: one host */
};

static void span_meet(void *processes)
{
    processes_barrier(processes);
}

static struct span_rank join(struct processes *p, int rank)
{
    struct span_rank r = {rank, p->count, 0, NULL, span_meet, p};

    host_must(processes_comm(p, rank, 20000, &r.comm), "symwin_comm_create");
    r.device = rank % harness_device_count();
    return r;
}

static void span_leave(struct processes *p, struct span_rank *r)
{
    processes_barrier(p);
    symwin_comm_destroy(r->comm);
}

static void run_row(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    struct span_rank r;
    const char *fault;
    struct span s;

    processes_on_host(a->hosts, rank);
    r = join(p, rank);
    span_make(&s, r.device, span_cuts_of(a->row, rank));
    fault = span_fault(&r, a->row, &s);
    if (fault != NULL)
        fprintf(stderr, "rank %d: %s\n", rank, fault);
    must_be(fault == NULL, a->row->name, rank);
    span_leave(p, &r);
    span_free(&s);
}

/* ---- memory that cannot be exported ---- */

/* The third allocation of rank 1 was created without a handle type. All ranks get the error, after
 * two allocations are mapped already. */
static void hidden(struct processes *p, int rank)
{
    static const struct span_cuts cuts = {{{4, 1}}, 0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemGenericAllocationHandle handle = 0;
    symwin_window *window = NULL;
    struct span_rank r;
    struct span s;

    processes_on_host(p->arg, rank);
    r = join(p, rank);
    span_make(&s, r.device, &cuts);
    if (rank == 1) {
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = r.device;
        span_unmap(&s, 2);
        host_must_cuda(sw_drv.cuMemCreate(&handle, GRANULE, &prop, 0), "cuMemCreate");
        span_map(&s, 2, handle);
    }
    must_be(symwin_window_register(r.comm, span_at(&s, 0), s.bytes, 0, &window) ==
                    SYMWIN_UNSUPPORTED &&
                window == NULL && host_error_has("rank 1|cannot be shared with other"),
            "all are told why", rank);
    if (rank == 1)
        span_replace(&s, 2);
    host_must(symwin_window_register(r.comm, span_at(&s, 0), s.bytes, 0, &window), "register");
    must_be(span_wrong_words(&r, window, span_at(&s, 0), 0, s.bytes, 0) == 0, "the next one works",
            rank);
    host_must(symwin_window_deregister(r.comm, window), "deregister");
    span_leave(p, &r);
    span_free(&s);
}

/* ---- a process that dies in the middle ---- */

static CUresult (*import_of_driver)(CUmemGenericAllocationHandle *, void *,
                                    CUmemAllocationHandleType);
static int imports_left;

static CUresult import_and_die(CUmemGenericAllocationHandle *handle, void *shareable,
                               CUmemAllocationHandleType type)
{
    if (imports_left-- == 0)
        _exit(0);
    return import_of_driver(handle, shareable, type);
}

static void killed(struct processes *p, int rank)
{
    static const struct span_cuts cuts = {{{5, 1}}, 0};
    symwin_window *window = NULL;
    struct span_rank r;
    struct span s;

    r = join(p, rank);
    span_make(&s, r.device, &cuts);
    if (rank == 2) {
        import_of_driver = sw_drv.cuMemImportFromShareableHandle;
        imports_left = 5;
        sw_drv.cuMemImportFromShareableHandle = import_and_die;
    }
    must_be(symwin_window_register(r.comm, span_at(&s, 0), s.bytes, 0, &window) ==
                    SYMWIN_PEER_LOST &&
                window == NULL && host_error_has("rank 2"),
            "a rank is lost", rank);
    symwin_comm_destroy(r.comm);
    span_free(&s);
}

/* ---- few descriptors ---- */

/* A rank's allocations are transferred one at a time, so 60 allocations from three ranks do not
 * need descriptors for all at once. The limit allows for those that the emulated driver keeps
 * itself, two for each piece, so only the library's own count. */
static void few_descriptors(struct processes *p, int rank)
{
    static const struct span_cuts cuts = {{{20, 1}}, 0};
    symwin_window *window = NULL;
    struct rlimit limit;
    struct span_rank r;
    struct span s;
    int held;

    r = join(p, rank);
    span_make(&s, r.device, &cuts);
    held = harness_count_entries("/proc/self/fd");
    /* The emulated driver keeps a descriptor for each allocation that it imports from the two other
     * ranks. */
    limit.rlim_cur = limit.rlim_max = (rlim_t)(held + 2 * s.count + 8);
    must_be(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit", rank);
    host_must(symwin_window_register(r.comm, span_at(&s, 0), s.bytes, 0, &window), "register");
    must_be(span_wrong_words(&r, window, span_at(&s, 0), 0, s.bytes, 0) == 0, "words", rank);
    host_must(symwin_window_deregister(r.comm, window), "deregister");
    span_leave(p, &r);
    span_free(&s);
}

int main(void)
{
    static const char *const hosts[] = {NULL, NULL, "ab", "aab", "aabb"};
    struct arrangement a;
    struct processes *p;
    int i, r;

    for (i = 0; i < SPAN_ROW_COUNT; i++) {
        a = (struct arrangement){&span_rows[i], NULL};
        processes_run(a.row->name, a.row->nranks, run_row, &a);
    }
    for (i = 0; i < SPAN_ROW_COUNT; i++) {
        a = (struct arrangement){&span_rows[i], hosts[span_rows[i].nranks]};
        if (span_rows[i].bytes <= (size_t)20 * GRANULE)
            processes_run("on hosts", a.row->nranks, run_row, &a);
    }
    processes_run("memory that cannot be shown", 3, hidden, NULL);
    processes_run("memory that cannot be shown to hosts", 3, hidden, (void *)(uintptr_t) "aab");
    processes_run("few descriptors", 3, few_descriptors, NULL);
    p = processes_new(4, NULL);
    for (r = 0; r < 4; r++)
        processes_fork(p, r, killed);
    for (r = 0; r < 4; r++)
        TAP_EQ("a rank dies while its allocations are exchanged", processes_wait(p, r), 0);
    processes_free(p);
    return tap_done();
}
