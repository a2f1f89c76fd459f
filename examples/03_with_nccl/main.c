/* with_nccl: NCCL's registered buffers and symmetric windows, on memory of the process's
 * ncclMemAlloc().
 *
 *     with_nccl register
 *         ncclCommRegister(), memory of NCCL's own allocator
 *     LD_PRELOAD=libsymwin-nccl.so with_nccl window
 *         ncclCommWindowRegister(), memory of symwin's pool
 *
 * The calls are those of any NCCL program; only the word that tells whose memory it is comes from
 * symwin. Ranks are threads, one per GPU. run_steps() has the steps of a rank, library.c loads NCCL
 * and CUDA.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../common.h"
#include "library.h"

enum { NO_GPU = 77 }; /* exit status without a GPU or NCCL */
enum { LARGE_COUNT = 1 << 20, SMALL_COUNT = 25000, WINDOW_COUNT = 1 << 18 }; /* floats */
enum { LARGE = 0, SMALL = 2, WINDOWS = 4 }; /* index of the first buffer of each size */

static const char usage[] =
    "usage: [NTHREADS=N] with_nccl [--windows N] [--order ORDER] [--free WHEN] MODE\n"
    "\n"
    "All-reduces registered buffers by NCCL and compares every element with the host's own sum: "
    "two of\n"
    "4 MB, two small ones, and some of those of --windows. LD_PRELOAD=libsymwin-nccl.so gives "
    "them memory\n"
    "of symwin's pool.\n"
    "\n"
    "  MODE         register: ncclCommRegister; window: ncclCommWindowRegister, symmetric\n"
    "  --windows N  as many further buffers of 1 MB, each allocated and registered by itself; 16\n"
    "  --order      in which buffers are deregistered and freed: forward, backward or mixed\n"
    "  --free       before or after ncclCommDestroy\n"
    "  NTHREADS     ranks, by default one for each GPU; more than that are refused\n"
    "  SYMWIN_NCCL  path of libnccl.so.2, where the loader does not find it\n";

struct buffer {
    void *ptr;
    size_t count; /* floats */
    void *handle; /* from ncclCommRegister(), or a window */
};

static struct job {
    int nranks, windows;
    int symmetric; /* symmetric windows instead of plain registrations */
    const char *order;
    int free_after; /* after ncclCommDestroy() */
    ncclUniqueId id;
    pthread_barrier_t barrier;
    struct rank *ranks;
} job = {.windows = 16, .order = "forward"};

struct rank {
    int rank;
    ncclComm_t comm;
    CUstream stream;
    struct buffer *buffers; /* WINDOWS + job.windows */
    float *staging;         /* LARGE_COUNT */
    char line[256];
};

/* ---- output of the ranks --------------------------------------------------------------------- */

/* Ends the process, because the other ranks wait for this one in NCCL. The first rank that fails
 * prints the reason. */
static void fail(const struct rank *self, const char *format, ...)
{
    static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER; /* never unlocked */
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&first);
    fflush(stdout);
    fprintf(stderr, "with_nccl: rank %d: %s\n", self->rank, text);
    _exit(EXIT_FAILURE);
}

static void check(const struct rank *self, int result, const char *call)
{
    if (result != 0)
        fail(self, "%s: %s", call, lib.ncclGetErrorString(result));
}

static void check_cuda(const struct rank *self, int result, const char *call)
{
    if (result != 0)
        fail(self, "%s: CUDA error %d", call, result);
}

#define NCCL(self, name, args) check(self, lib.name args, #name)
#define CUDA(self, name, args) check_cuda(self, lib.name args, #name)

/* Waits for all ranks and prints their lines in rank order. */
static void step(struct rank *self, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(self->line, sizeof self->line, format, args);
    va_end(args);
    pthread_barrier_wait(&job.barrier);
    for (int r = 0; self->rank == 0 && r < job.nranks; r++)
        printf("  Rank %d %s\n", r, job.ranks[r].line);
    pthread_barrier_wait(&job.barrier);
}

static void announce(const struct rank *self, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (self->rank == 0)
        vprintf(format, args);
    va_end(args);
}

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* ---- calls of NCCL --------------------------------------------------------------------------- */

static void allocate(struct rank *self, int first, int end, size_t count)
{
    for (int i = first; i < end; i++) {
        self->buffers[i].count = count;
        NCCL(self, ncclMemAlloc, (&self->buffers[i].ptr, count * sizeof(float)));
    }
}

/* Symmetric windows are collective: all ranks register theirs in the same order. */
static void register_buffers(struct rank *self, int first, int end)
{
    for (int i = first; i < end; i++) {
        struct buffer *b = &self->buffers[i];
        const size_t bytes = b->count * sizeof(float);
        ncclWindow_t window = NULL;

        if (job.symmetric) {
            NCCL(self, ncclCommWindowRegister,
                 (self->comm, b->ptr, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
            b->handle = window;
        } else {
            NCCL(self, ncclCommRegister, (self->comm, b->ptr, bytes, &b->handle));
        }
        if (b->handle == NULL)
            fail(self, "NCCL registered nothing: it has no %s here",
                 job.symmetric ? "symmetric memory" : "registration");
    }
}

static void deregister_buffer(struct rank *self, struct buffer *b)
{
    if (job.symmetric)
        NCCL(self, ncclCommWindowDeregister, (self->comm, b->handle));
    else
        NCCL(self, ncclCommDeregister, (self->comm, b->handle));
}

static void free_buffer(struct rank *self, struct buffer *b)
{
    NCCL(self, ncclMemFree, (b->ptr));
}

/* Visits all buffers in the given order. "mixed" is the odd ones, then the even ones from last to
 * first. */
static void for_all(struct rank *self, void (*act)(struct rank *, struct buffer *))
{
    const int n = WINDOWS + job.windows;

    for (int i = 0; i < n; i++) {
        int at = i;

        if (strcmp(job.order, "backward") == 0)
            at = n - 1 - i;
        else if (strcmp(job.order, "mixed") == 0)
            at = i < n / 2 ? 2 * i + 1 : 2 * (n - 1 - i);
        act(self, &self->buffers[at]);
    }
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Exact as a float, also when all ranks' values are added. */
static float value(int factor, size_t i, int which)
{
    return (float)(factor * (int)((i + (size_t)which) % 1021));
}

static void copy(struct rank *self, const void *to, const void *from, size_t count)
{
    CUDA(self, cuMemcpyAsync,
         ((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, count * sizeof(float), self->stream));
    CUDA(self, cuStreamSynchronize, (self->stream));
}

/* Fills the output too, so that an element that is not written cannot pass for a result. */
static void initialise(struct rank *self, int in, int out)
{
    const size_t count = self->buffers[in].count;

    for (size_t i = 0; i < count; i++)
        self->staging[i] = -1;
    copy(self, self->buffers[out].ptr, self->staging, count);
    for (size_t i = 0; i < count; i++)
        self->staging[i] = value(self->rank + 1, i, in);
    copy(self, self->buffers[in].ptr, self->staging, count);
}

static void allreduce(struct rank *self, int in, int out)
{
    NCCL(self, ncclAllReduce,
         (self->buffers[in].ptr, self->buffers[out].ptr, self->buffers[in].count, ncclFloat,
          ncclSum, self->comm, self->stream));
    CUDA(self, cuStreamSynchronize, (self->stream));
}

static void verify(struct rank *self, int in, int out)
{
    const int all = job.nranks * (job.nranks + 1) / 2;
    const size_t count = self->buffers[out].count;

    copy(self, self->staging, self->buffers[out].ptr, count);
    for (size_t i = 0; i < count; i++)
        if (self->staging[i] != value(all, i, in))
            fail(self, "wrong result: element %zu of buffer %d is %g, must be %g", i, out,
                 (double)self->staging[i], (double)value(all, i, in));
}

static void reduce_and_verify(struct rank *self, int in, int out)
{
    initialise(self, in, out);
    allreduce(self, in, out);
    verify(self, in, out);
}

/* ---- the steps of one rank ------------------------------------------------------------------ */

static void begin(struct rank *self)
{
    CUcontext context = NULL;

    CUDA(self, cuDevicePrimaryCtxRetain, (&context, self->rank));
    CUDA(self, cuCtxSetCurrent, (context));
    CUDA(self, cuStreamCreate, (&self->stream, CU_STREAM_NON_BLOCKING));
    self->buffers = calloc((size_t)(WINDOWS + job.windows), sizeof *self->buffers);
    self->staging = malloc(LARGE_COUNT * sizeof(float));
    if (self->buffers == NULL || self->staging == NULL)
        fail(self, "no host memory");
    NCCL(self, ncclCommInitRank, (&self->comm, job.nranks, job.id, self->rank));
}

static void run_large(struct rank *self)
{
    announce(self, job.symmetric ? "Symmetric memory:\n" : "User buffers:\n");
    allocate(self, LARGE, SMALL, LARGE_COUNT);
    step(self, "allocated 4.00 MB per buffer, memory of %s",
         library_owner(self->buffers[LARGE].ptr));
    register_buffers(self, LARGE, SMALL);
    step(self, "buffers registered");
    initialise(self, LARGE, LARGE + 1);
    step(self, "data initialized");
    announce(self, "Starting AllReduce with %d elements (4 MB)\n", LARGE_COUNT);
    allreduce(self, LARGE, LARGE + 1);
    pthread_barrier_wait(&job.barrier);
    announce(self, "AllReduce completed successfully\n");
    verify(self, LARGE, LARGE + 1);
    pthread_barrier_wait(&job.barrier);
    announce(self,
             "Verification - %d elements on each of %d ranks equal the host's own sum\n"
             "Results verified correctly\n",
             LARGE_COUNT, job.nranks);
}

/* In a pool both lie in one chunk: one physical allocation, registered twice at different
 * offsets. */
static void run_small(struct rank *self)
{
    const struct buffer *b = &self->buffers[SMALL];

    announce(self, "Two small buffers:\n");
    allocate(self, SMALL, WINDOWS, SMALL_COUNT);
    step(self, "allocated %zu bytes per buffer, %lld apart, memory of %s",
         SMALL_COUNT * sizeof(float), (long long)((char *)b[1].ptr - (char *)b[0].ptr),
         library_owner(b[0].ptr));
    register_buffers(self, SMALL, WINDOWS);
    reduce_and_verify(self, SMALL, SMALL + 1);
    reduce_and_verify(self, SMALL + 1, SMALL);
    reduce_and_verify(self, SMALL + 1, SMALL + 1);
    step(self, "AllReduce from each to the other and in place verified");
}

static void run_windows(struct rank *self)
{
    const int end = WINDOWS + job.windows, middle = WINDOWS + job.windows / 2;
    double begin_at;

    announce(self, "%d buffers of 1 MB:\n", job.windows);
    begin_at = milliseconds();
    allocate(self, WINDOWS, end, WINDOW_COUNT);
    step(self, "allocated %d in %.1f ms, memory of %s", job.windows, milliseconds() - begin_at,
         library_owner(self->buffers[WINDOWS].ptr));
    begin_at = milliseconds();
    register_buffers(self, WINDOWS, end);
    step(self, "registered %d in %.1f ms", job.windows, milliseconds() - begin_at);
    reduce_and_verify(self, WINDOWS, WINDOWS);
    reduce_and_verify(self, middle, middle);
    reduce_and_verify(self, end - 1, end - 1);
    step(self, "AllReduce on the first, the middle and the last verified");
}

static void run_steps(struct rank *self)
{
    announce(self, "Starting AllReduce example with %d ranks on NCCL %d.%d.%d, %s\n", job.nranks,
             lib.version / 10000, lib.version / 100 % 100, lib.version % 100,
             job.symmetric ? "ncclCommWindowRegister" : "ncclCommRegister");
    begin(self);
    step(self, "communicator initialized using device %d", self->rank);
    run_large(self);
    run_small(self);
    if (job.windows > 0)
        run_windows(self);
    for_all(self, deregister_buffer);
    step(self, "buffers deregistered, %s", job.order);
    if (!job.free_after)
        for_all(self, free_buffer);
    NCCL(self, ncclCommDestroy, (self->comm));
    if (job.free_after)
        for_all(self, free_buffer);
    step(self, "buffers freed %s ncclCommDestroy", job.free_after ? "after" : "before");
    CUDA(self, cuStreamDestroy, (self->stream));
    free(self->staging);
    free(self->buffers);
}

static void *run_rank(void *argument)
{
    run_steps(argument);
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------ */

static int run(void)
{
    job.ranks = calloc((size_t)job.nranks, sizeof *job.ranks);
    if (job.ranks == NULL || lib.ncclGetUniqueId(&job.id) != ncclSuccess ||
        pthread_barrier_init(&job.barrier, NULL, (unsigned)job.nranks) != 0) {
        fprintf(stderr, "with_nccl: the ranks cannot be started\n");
        return EXIT_FAILURE;
    }
    for (int r = 0; r < job.nranks; r++)
        job.ranks[r].rank = r;
    common_threads("with_nccl", job.ranks, job.nranks, sizeof job.ranks[0], run_rank);
    pthread_barrier_destroy(&job.barrier);
    free(job.ranks);
    printf("All resources cleaned up successfully\n");
    return EXIT_SUCCESS;
}

/* Whether the text is one of two or three words; prints a message if not. */
static int is_one_of(const char *what, const char *text, const char *a, const char *b,
                     const char *c)
{
    if (strcmp(text, a) == 0 || strcmp(text, b) == 0 || (c != NULL && strcmp(text, c) == 0))
        return 1;
    fprintf(stderr, "with_nccl: %s is \"%s\": give %s%s%s or %s\n", what, text, a,
            c != NULL ? ", " : "", c != NULL ? b : "", c != NULL ? c : b);
    return 0;
}

/* Returns -1 to continue, else the exit status. */
static int parse(int argc, char **argv)
{
    const char *nthreads = getenv("NTHREADS"), *mode = NULL, *free_when = "before";

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        }
        if (strcmp(argv[i], "--version") == 0)
            return common_version("with_nccl");
        if (strcmp(argv[i], "--windows") == 0 && i + 1 < argc) {
            job.windows = (int)common_number("with_nccl", "--windows", argv[++i], 0, 100000);
        } else if (strcmp(argv[i], "--order") == 0 && i + 1 < argc) {
            job.order = argv[++i];
        } else if (strcmp(argv[i], "--free") == 0 && i + 1 < argc) {
            free_when = argv[++i];
        } else if (argv[i][0] != '-' && mode == NULL) {
            mode = argv[i];
        } else {
            return common_unknown("with_nccl", argv[i]);
        }
    }
    if (nthreads != NULL)
        job.nranks = (int)common_number("with_nccl", "NTHREADS", nthreads, 1, 1024);
    if (job.windows < 0 || job.nranks < 0 ||
        !is_one_of("MODE", mode == NULL ? "" : mode, "register", "window", NULL) ||
        !is_one_of("--order", job.order, "forward", "backward", "mixed") ||
        !is_one_of("--free", free_when, "before", "after", NULL))
        return 2;
    job.symmetric = strcmp(mode, "window") == 0;
    job.free_after = strcmp(free_when, "after") == 0;
    return -1;
}

static int run_program(void)
{
    char why[512];

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* keeps the order of stdout and stderr */
    if (!library_load(why, sizeof why)) {
        fprintf(stderr, "with_nccl: %s\n", why);
        return NO_GPU;
    }
    if (job.nranks == 0)
        job.nranks = lib.devices;
    if (job.nranks > lib.devices) {
        fprintf(stderr,
                "with_nccl: NTHREADS is %d: give %d at most, since NCCL has one rank a GPU\n",
                job.nranks, lib.devices);
        return 2;
    }
    return run();
}

int main(int argc, char **argv)
{
    int exit_status;

    common_begin();
    exit_status = parse(argc, argv);
    if (exit_status < 0)
        exit_status = run_program();
    return common_end("with_nccl", exit_status);
}
