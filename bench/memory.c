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
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"
#include "median.h"
#include "rivals/multicast.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

enum { ROUNDS = 9, MOST_RANKS = 64, LIBRARIES = 2, WINDOWS = 200, MIB = 1 << 20 };

/* The part of nccl.h that this program uses; names and values are NCCL's. */
typedef struct nccl_comm *nccl_comm_t;
typedef struct nccl_window *nccl_window_t;
typedef struct {
    char internal[128];
} nccl_unique_id;

static struct {
    int (*ncclGetUniqueId)(nccl_unique_id *id);
    int (*ncclCommInitRank)(nccl_comm_t *comm, int nranks, nccl_unique_id id, int rank);
    int (*ncclCommDestroy)(nccl_comm_t comm);
    int (*ncclMemAlloc)(void **ptr, size_t bytes);
    int (*ncclMemFree)(void *ptr);
    int (*ncclCommWindowRegister)(nccl_comm_t comm, void *ptr, size_t bytes, nccl_window_t *win,
                                  int flags);
    int (*ncclCommWindowDeregister)(nccl_comm_t comm, nccl_window_t win);
} nccl;

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

static _Noreturn void fail(const char *what, const char *why)
{
    fprintf(stderr, "memory: %s: %s\n", what, why);
    exit(1);
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void load_nccl(void)
{
    static const char *const names[] = {
        "ncclGetUniqueId", "ncclCommInitRank",       "ncclCommDestroy",         "ncclMemAlloc",
        "ncclMemFree",     "ncclCommWindowRegister", "ncclCommWindowDeregister"};
    const char *path = getenv("SYMWIN_NCCL");
    void *library = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    unsigned char *table = (unsigned char *)&nccl;
    char text[256];
    size_t i;

    if (library == NULL) {
        fprintf(stderr, "memory: without NCCL: %s\n", dlerror());
        return;
    }
    if (rivals_multicast_off(text, sizeof text) != 0)
        fail("NCCL", text);
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *symbol = dlsym(library, names[i]);

        if (symbol == NULL)
            fail(names[i], "NCCL 2.27 or later is needed");
        memcpy(table + i * sizeof symbol, &symbol, sizeof symbol);
    }
    run.with_nccl = 1;
}

/* ---- the same calls for both libraries ---- */

struct rank {
    int rank, device;
    int keeps; /* keep freed memory for reuse */
    symwin_comm *comm;
    symwin_window *windows[2];
    nccl_comm_t nccl_comm;
    nccl_window_t nccl_windows[2];
    void *memory;
    struct {
        void *memory;
        symwin_window *window;
        nccl_window_t nccl_window;
    } many[WINDOWS];
};

static void check(symwin_status status, const char *what)
{
    if (status != SYMWIN_OK)
        fail(what, symwin_last_error());
}

static void symwin_call(struct rank *r, enum call call, size_t bytes)
{
    int i;

    switch (call) {
    case CREATE:
        check(symwin_comm_create(&run.id, run.ranks, r->rank, r->device, NULL, &r->comm), "create");
        break;
    case ALLOC:
        check(symwin_mem_alloc(r->device, bytes, 0, &r->memory), "alloc");
        break;
    case REGISTER:
        check(symwin_window_register(r->comm, r->memory, bytes, 0, &r->windows[0]), "register");
        break;
    case AGAIN:
        check(symwin_window_register(r->comm, r->memory, bytes, 0, &r->windows[1]), "register");
        break;
    case DEREGISTER:
        check(symwin_window_deregister(r->comm, r->windows[1]), "deregister");
        check(symwin_window_deregister(r->comm, r->windows[0]), "deregister");
        break;
    case FREE:
        check(symwin_mem_free(r->memory), "free");
        if (!r->keeps)
            check(symwin_mem_trim(r->device, 0), "trim");
        break;
    case START:
        for (i = 0; i < WINDOWS; i++) {
            check(symwin_mem_alloc(r->device, bytes, 0, &r->many[i].memory), "alloc");
            check(symwin_window_register(r->comm, r->many[i].memory, bytes, 0, &r->many[i].window),
                  "register");
        }
        break;
    case END:
        for (i = 0; i < WINDOWS; i++) {
            check(symwin_window_deregister(r->comm, r->many[i].window), "deregister");
            check(symwin_mem_free(r->many[i].memory), "free");
        }
        break;
    case CALLS:
        break;
    }
}

static void check_nccl(int result, const char *what)
{
    char text[32];

    snprintf(text, sizeof text, "NCCL gave %d", result);
    if (result != 0)
        fail(what, text);
}

static void nccl_call(struct rank *r, enum call call, size_t bytes)
{
    enum { NCCL_WIN_COLL_SYMMETRIC = 1 };
    int i;

    switch (call) {
    case CREATE:
        check_nccl(nccl.ncclCommInitRank(&r->nccl_comm, run.ranks, run.nccl_id, r->rank), "init");
        break;
    case ALLOC:
        check_nccl(nccl.ncclMemAlloc(&r->memory, bytes), "ncclMemAlloc");
        break;
    case REGISTER:
        check_nccl(nccl.ncclCommWindowRegister(r->nccl_comm, r->memory, bytes, &r->nccl_windows[0],
                                               NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister");
        break;
    case AGAIN:
        check_nccl(nccl.ncclCommWindowRegister(r->nccl_comm, r->memory, bytes, &r->nccl_windows[1],
                                               NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister");
        break;
    case DEREGISTER:
        check_nccl(nccl.ncclCommWindowDeregister(r->nccl_comm, r->nccl_windows[1]), "deregister");
        check_nccl(nccl.ncclCommWindowDeregister(r->nccl_comm, r->nccl_windows[0]), "deregister");
        break;
    case FREE:
        check_nccl(nccl.ncclMemFree(r->memory), "ncclMemFree");
        break;
    case START:
        for (i = 0; i < WINDOWS; i++) {
            check_nccl(nccl.ncclMemAlloc(&r->many[i].memory, bytes), "ncclMemAlloc");
            check_nccl(nccl.ncclCommWindowRegister(r->nccl_comm, r->many[i].memory, bytes,
                                                   &r->many[i].nccl_window,
                                                   NCCL_WIN_COLL_SYMMETRIC),
                       "ncclCommWindowRegister");
        }
        break;
    case END:
        for (i = 0; i < WINDOWS; i++) {
            check_nccl(nccl.ncclCommWindowDeregister(r->nccl_comm, r->many[i].nccl_window),
                       "deregister");
            check_nccl(nccl.ncclMemFree(r->many[i].memory), "ncclMemFree");
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
    int i;

    pthread_barrier_wait(&run.barrier);
    start = now_us();
    if (library == 0)
        symwin_call(r, call, bytes);
    else
        nccl_call(r, call, bytes);
    run.us[r->rank] = now_us() - start;
    pthread_barrier_wait(&run.barrier);
    for (i = 0; i < run.ranks; i++)
        slowest = run.us[i] > slowest ? run.us[i] : slowest;
    return slowest;
}

static void print(const char *name, int library, size_t bytes, double *us, int rounds)
{
    const double first = us[0];
    const double later = rounds > 1 ? median(us + 1, rounds - 1) : first;

    printf("%s,%s,%zu,%d,%.1f,%.1f\n", name, library == 0 ? "symwin" : "nccl", bytes, run.ranks,
           first, later);
    fflush(stdout);
}

static void measure(struct rank *r, int library, size_t bytes, int kept)
{
    double us[CALLS][ROUNDS];
    char name[64];
    int call, round;

    r->keeps = kept;
    for (round = 0; round < ROUNDS; round++)
        for (call = ALLOC; call < EACH; call++)
            us[call][round] = timed(r, library, (enum call)call, bytes);
    for (call = ALLOC; call < EACH && r->rank == 0; call++) {
        snprintf(name, sizeof name, "%s%s", call_names[call], kept ? " kept" : "");
        print(name, library, bytes, us[call], ROUNDS);
    }
}

/* A window on a part of a chunk that peers have mapped already. */
static void measure_in_chunk(struct rank *r)
{
    enum { BYTES = 64 << 10 };
    symwin_window *first;
    void *memory[2];
    double us[ROUNDS];
    int round;

    check(symwin_mem_alloc(r->device, BYTES, 0, &memory[0]), "alloc");
    check(symwin_mem_alloc(r->device, BYTES, 0, &memory[1]), "alloc");
    check(symwin_window_register(r->comm, memory[0], BYTES, 0, &first), "register");
    r->memory = memory[1];
    for (round = 0; round < ROUNDS; round++) {
        us[round] = timed(r, 0, REGISTER, BYTES);
        check(symwin_window_deregister(r->comm, r->windows[0]), "deregister");
    }
    check(symwin_window_deregister(r->comm, first), "deregister");
    check(symwin_mem_free(memory[0]), "free");
    check(symwin_mem_free(memory[1]), "free");
    if (r->rank == 0)
        print("register in a chunk", 0, BYTES, us, ROUNDS);
}

static void measure_start(struct rank *r, int library)
{
    enum { MANY = 3 };
    const int rounds = library == 0 ? MANY : 1; /* NCCL takes seconds */
    double us[2][MANY];
    int round, call;

    for (round = 0; round < rounds; round++) {
        check(symwin_mem_trim(r->device, 0), "trim");
        for (call = START; call <= END; call++)
            us[call - START][round] = timed(r, library, (enum call)call, MIB);
    }
    for (call = START; call <= END && r->rank == 0; call++)
        print(call_names[call], library, MIB, us[call - START], rounds);
}

static void *rank_main(void *arg)
{
    static const size_t sizes[] = {(size_t)2 << 20, (size_t)128 << 20, (size_t)1 << 30};
    struct rank *r = arg;
    struct sw_scope scope;
    double us;
    size_t i;
    int library;

    check(sw_scope_enter(r->device, &scope), "context");
    for (library = 0; library <= run.with_nccl; library++) {
        us = timed(r, library, CREATE, 0);
        if (r->rank == 0)
            print(call_names[CREATE], library, 0, &us, 1);
    }
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (library = 0; library <= run.with_nccl; library++)
            measure(r, library, sizes[i], 0);
        measure(r, 0, sizes[i], 1);
    }
    measure_in_chunk(r);
    for (library = 0; library <= run.with_nccl; library++)
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
    pthread_t threads[MOST_RANKS];
    symwin_driver_info driver;
    int r;

    bench_begin("memory", argc, argv, 1);
    run.ranks = bench_number("memory", argc, argv, 1, 1, MOST_RANKS, 0);
    check(symwin_driver_query(&driver), "driver");
    run.devices = driver.device_count;
    if (run.ranks == 0)
        run.ranks = run.devices < MOST_RANKS ? run.devices : MOST_RANKS;
    if (strcmp(driver.name, "cuda") == 0)
        load_nccl();
    check(symwin_unique_id_create(&run.id), "id");
    if (run.with_nccl)
        check_nccl(nccl.ncclGetUniqueId(&run.nccl_id), "ncclGetUniqueId");
    pthread_barrier_init(&run.barrier, NULL, (unsigned)run.ranks);
    printf("call,library,bytes,ranks,first_us,median_us\n");
    for (r = 0; r < run.ranks; r++) {
        ranks[r].rank = r;
        ranks[r].device = r % run.devices;
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
            fail("threads", "cannot start");
    }
    for (r = 0; r < run.ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&run.barrier);
    return bench_end("memory");
}
