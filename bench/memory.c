/* What memory and registration cost, of symwin and NCCL, in one process with a thread per rank.
 *
 *     build/bench/memory [ranks]          default: the number of devices
 *     SYMWIN_NCCL=path/libnccl.so.2       NCCL's path, if the loader does not find it; without NCCL
 *                                         only symwin is timed. NVLS stays off: NCCL_NVLS_ENABLE
 *                                         must be 0 or unset
 *
 * Prints CSV: call, library, bytes, ranks, the first time, and the median of the later ones, in
 * microseconds. The time of a collective call is the slowest rank's, from a common start.
 * "register" is always the first window on its allocation, "register again" the second. symwin
 * returns freed memory to the device, except in rows "kept", where it may be reused. "in a chunk"
 * is a window on 64 KiB of a chunk that has another window. "start" is 200 allocations of 1 MiB and
 * a window on each, from a new communicator; "end" releases them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "with_nccl.h"

enum { ROUNDS = 9, MOST_RANKS = 64, WINDOWS = 200, MIB = 1 << 20 };

enum call { CREATE, ALLOC, REGISTER, AGAIN, DEREGISTER, FREE, EACH, START = EACH, END, CALLS };

static const char *const call_names[CALLS] = {
    "create communicator", "alloc", "register", "register again",
    "deregister",          "free",  "start",    "end"};

static struct {
    int ranks, devices;
    int with_nccl;
    symwin_unique_id id;
    nccl_unique_id nccl_id;
    pthread_barrier_t barrier;
    double us[MOST_RANKS]; /* of the last call */
} run;

/* ---- the same calls for both libraries ---- */

struct buffer {
    void *memory;
    void *windows[2];
};

struct rank {
    int rank, device;
    int keeps;  /* keep freed memory for reuse */
    void *comm; /* symwin's */
    void *nccl_comm;
    struct buffer one, many[WINDOWS];
};

enum { SYMWIN, NCCL, LIBRARIES };

static const char *const libraries[LIBRARIES] = {"symwin", "nccl"};

static void create(struct rank *r, int library)
{
    symwin_comm *comm = NULL;

    if (library == NCCL) {
        check_nccl(nccl.ncclCommInitRank(&r->nccl_comm, run.ranks, run.nccl_id, r->rank), "init");
        return;
    }
    bench_must(symwin_comm_create(&run.id, run.ranks, r->rank, r->device, NULL, &comm), "create");
    r->comm = comm;
}

static void alloc(struct rank *r, int library, size_t bytes, void **memory)
{
    if (library == NCCL)
        check_nccl(nccl.ncclMemAlloc(memory, bytes), "ncclMemAlloc");
    else
        bench_must(symwin_mem_alloc(r->device, bytes, 0, memory), "alloc");
}

static void enroll(struct rank *r, int library, void *memory, size_t bytes, void **window)
{
    symwin_window *made = NULL;

    if (library == NCCL) {
        check_nccl(nccl.ncclCommWindowRegister(r->nccl_comm, memory, bytes, window,
                                               NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister");
        return;
    }
    bench_must(symwin_window_register(r->comm, memory, bytes, 0, &made), "register");
    *window = made;
}

static void withdraw(struct rank *r, int library, void *window)
{
    if (library == NCCL)
        check_nccl(nccl.ncclCommWindowDeregister(r->nccl_comm, window), "deregister");
    else
        bench_must(symwin_window_deregister(r->comm, window), "deregister");
}

static void release(int library, void *memory)
{
    if (library == NCCL)
        check_nccl(nccl.ncclMemFree(memory), "ncclMemFree");
    else
        bench_must(symwin_mem_free(memory), "free");
}

static void make_call(struct rank *r, int library, enum call call, size_t bytes)
{
    struct buffer *one = &r->one;

    switch (call) {
    case CREATE:
        create(r, library);
        break;
    case ALLOC:
        alloc(r, library, bytes, &one->memory);
        break;
    case REGISTER:
    case AGAIN:
        enroll(r, library, one->memory, bytes, &one->windows[call == AGAIN]);
        break;
    case DEREGISTER:
        withdraw(r, library, one->windows[1]);
        withdraw(r, library, one->windows[0]);
        break;
    case FREE:
        release(library, one->memory);
        if (library == SYMWIN && !r->keeps)
            bench_must(symwin_mem_trim(r->device, 0), "trim");
        break;
    case START:
        for (int i = 0; i < WINDOWS; i++) {
            alloc(r, library, bytes, &r->many[i].memory);
            enroll(r, library, r->many[i].memory, bytes, &r->many[i].windows[0]);
        }
        break;
    case END:
        for (int i = 0; i < WINDOWS; i++) {
            withdraw(r, library, r->many[i].windows[0]);
            release(library, r->many[i].memory);
        }
        break;
    case CALLS:
        break;
    }
}

/* ---- timing ---- */

/* Makes the call on all ranks from a common start. Returns the slowest rank's time, on every
 * rank. */
static double timed(struct rank *r, int library, enum call call, size_t bytes)
{
    double start, slowest = 0;

    pthread_barrier_wait(&run.barrier);
    start = bench_now_us();
    make_call(r, library, call, bytes);
    run.us[r->rank] = bench_now_us() - start;
    pthread_barrier_wait(&run.barrier);
    for (int i = 0; i < run.ranks; i++)
        slowest = run.us[i] > slowest ? run.us[i] : slowest;
    return slowest;
}

static void print(const char *name, int library, size_t bytes, double *us, int rounds)
{
    const double first = us[0];
    const double later = rounds > 1 ? median(us + 1, rounds - 1) : first;

    printf("%s,%s,%zu,%d,%.1f,%.1f\n", name, libraries[library], bytes, run.ranks, first, later);
    fflush(stdout);
}

static void measure(struct rank *r, int library, size_t bytes, int kept)
{
    double us[CALLS][ROUNDS];
    char name[64];

    r->keeps = kept;
    for (int round = 0; round < ROUNDS; round++)
        for (int call = ALLOC; call < EACH; call++)
            us[call][round] = timed(r, library, (enum call)call, bytes);
    for (int call = ALLOC; call < EACH && r->rank == 0; call++) {
        snprintf(name, sizeof name, "%s%s", call_names[call], kept ? " kept" : "");
        print(name, library, bytes, us[call], ROUNDS);
    }
}

/* A window on a part of a chunk that peers have mapped already. */
static void measure_in_chunk(struct rank *r)
{
    enum { BYTES = 64 << 10 };
    void *memory, *window;
    double us[ROUNDS];

    alloc(r, SYMWIN, BYTES, &memory);
    alloc(r, SYMWIN, BYTES, &r->one.memory);
    enroll(r, SYMWIN, memory, BYTES, &window);
    for (int round = 0; round < ROUNDS; round++) {
        us[round] = timed(r, SYMWIN, REGISTER, BYTES);
        withdraw(r, SYMWIN, r->one.windows[0]);
    }
    withdraw(r, SYMWIN, window);
    release(SYMWIN, memory);
    release(SYMWIN, r->one.memory);
    if (r->rank == 0)
        print("register in a chunk", SYMWIN, BYTES, us, ROUNDS);
}

static void measure_start(struct rank *r, int library)
{
    enum { MANY = 3 };
    const int rounds = library == SYMWIN ? MANY : 1; /* NCCL takes seconds */
    double us[2][MANY];

    for (int round = 0; round < rounds; round++) {
        bench_must(symwin_mem_trim(r->device, 0), "trim");
        for (int call = START; call <= END; call++)
            us[call - START][round] = timed(r, library, (enum call)call, MIB);
    }
    for (int call = START; call <= END && r->rank == 0; call++)
        print(call_names[call], library, MIB, us[call - START], rounds);
}

static void *rank_main(void *arg)
{
    static const size_t sizes[] = {(size_t)2 << 20, (size_t)128 << 20, (size_t)1 << 30};
    struct rank *r = arg;
    struct sw_scope scope;
    double us;

    bench_must(sw_scope_enter(r->device, &scope), "context");
    for (int library = 0; library <= run.with_nccl; library++) {
        us = timed(r, library, CREATE, 0);
        if (r->rank == 0)
            print(call_names[CREATE], library, 0, &us, 1);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int library = 0; library <= run.with_nccl; library++)
            measure(r, library, sizes[i], 0);
        measure(r, SYMWIN, sizes[i], 1);
    }
    measure_in_chunk(r);
    for (int library = 0; library <= run.with_nccl; library++)
        measure_start(r, library);
    pthread_barrier_wait(&run.barrier);
    symwin_comm_destroy(r->comm);
    if (run.with_nccl)
        check_nccl(nccl.ncclCommDestroy(r->nccl_comm), "ncclCommDestroy");
    sw_scope_leave(&scope);
    return NULL;
}

int main(int argc, char **argv)
{
    struct rank ranks[MOST_RANKS] = {{0}};
    symwin_driver_info driver;

    bench_begin("memory", argc, argv, 1);
    run.ranks = bench_number(argc, argv, 1, 1, MOST_RANKS, 0);
    bench_must(symwin_driver_query(&driver), "driver");
    run.devices = driver.device_count;
    if (run.ranks == 0)
        run.ranks = run.devices < MOST_RANKS ? run.devices : MOST_RANKS;
    if (strcmp(driver.name, "cuda") == 0)
        run.with_nccl = with_nccl("memory");
    bench_must(symwin_unique_id_create(&run.id), "id");
    if (run.with_nccl)
        check_nccl(nccl.ncclGetUniqueId(&run.nccl_id), "ncclGetUniqueId");
    pthread_barrier_init(&run.barrier, NULL, (unsigned)run.ranks);
    printf("call,library,bytes,ranks,first_us,median_us\n");
    for (int r = 0; r < run.ranks; r++) {
        ranks[r].rank = r;
        ranks[r].device = r % run.devices;
    }
    common_threads("memory", ranks, run.ranks, sizeof ranks[0], rank_main);
    pthread_barrier_destroy(&run.barrier);
    return bench_end();
}
