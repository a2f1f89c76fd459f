/* fast_allreduce: a program that tests and times your own all-reduce, one-shot, two-shot and, where
 * windows have multicast, by that. The kernels are in fast_allreduce.cuh.
 *
 *     nvcc -O3 -std=c++17 -arch=sm_90 -I../.. -o fast_allreduce fast_allreduce.cu \
 *         ../../build/libsymwin.a
 *     NTHREADS=4 ./fast_allreduce               four ranks as threads
 *     ./fast_allreduce --nproc 4                four processes; also mpirun, srun, torchrun
 *
 * The host compiler builds the same program for the emulated driver: see the Makefile.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h" /* processes, threads, --version */
#include "fast_allreduce.cuh"
#include "symwin.h"

#ifdef __CUDACC__
enum { EMULATED = false };
typedef void kernel_fn(fast_args);
#define LAUNCH(kernel, blocks, threads, stream, args)                                              \
    (kernel<<<blocks, threads, 0, stream>>>(args), cudaGetLastError())
#else
#include "emulated.h"
enum { EMULATED = true };
typedef void kernel_fn(const void *);
#define LAUNCH(kernel, blocks, threads, stream, args)                                              \
    emulated_launch(kernel, THREADS, blocks, threads, stream, args)
#endif

enum { TYPES = 3, SHOTS = 3 };

static const struct {
    const char *name;
    uint64_t bytes;
    int32_t exact; /* integers up to this are exact */
    kernel_fn *kernels[SHOTS];
} types[TYPES] = {{"f32", 4, 1 << 24, {one_shot_f32, two_shot_f32, multicast_f32}},
                  {"f16", 2, 1 << 11, {one_shot_f16, two_shot_f16, multicast_f16}},
                  {"bf16", 2, 1 << 8, {one_shot_bf16, two_shot_bf16, multicast_bf16}}};
static const char *const shots[SHOTS] = {"one-shot", "two-shot", "multicast"};

enum { DIRECT = 5, REPLAYS = 10, IN_GRAPH = 4, TIMED = 20, TURNS = 10, GUARD = 64, MOST = 64 };

/* The options, and what all ranks share. */
static struct {
    int nproc, nthreads, blocks, threads, timeout_ms, absent;
    bool alone; /* without an id: see common.h */
    uint32_t without;
    uint64_t most_bytes;
    int nranks, first; /* number of ranks, and the first of this process */
    int local_first;   /* its number on this host */
    symwin_launch_info launch;
    symwin_driver_info driver;
    symwin_unique_id id;
} job;

struct rank {
    int rank, device;
    symwin_comm *comm;
    cudaStream_t stream;
    cudaEvent_t from, to;
    void *window, *memory;                /* visible to peers, and not */
    char *host;                           /* host copy of `memory` */
    uint64_t sums, output, scratch, room; /* offsets in `memory`, whose inputs are at 0; its size */
    struct fast_args args;
    uint32_t wrong_before;
    int ways; /* so many of the SHOTS work */
    bool failed, wrong;
};

/* Prints a failure, once per rank, and aborts all ranks. */
static bool must(struct rank *r, bool right, const char *format, ...)
{
    char text[256];
    va_list args;

    if (right || r->failed)
        return right && !r->failed;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fast_allreduce: rank %d: %s\n", r->rank, text);
    r->failed = true;
    if (r->comm != NULL)
        symwin_comm_abort(r->comm);
    return false;
}

static bool symwin_must(struct rank *r, symwin_status status)
{
    return must(r, status == SYMWIN_OK, "%s: %s", symwin_status_name(status), symwin_last_error());
}

static bool cuda_must(struct rank *r, cudaError_t error, const char *what)
{
    return must(r, error == cudaSuccess, "%s: %s", what, cudaGetErrorString(error));
}

/* Copies between host and device, and waits for the stream. */
static bool copy(struct rank *r, void *to, const void *from, uint64_t bytes)
{
    return symwin_must(r, symwin_memcpy(r->device, to, from, bytes, r->stream)) &&
           symwin_must(r, symwin_stream_synchronize(r->device, r->stream));
}

static char *memory_at(const struct rank *r, uint64_t offset)
{
    return (char *)r->memory + offset;
}

/* The sum or the maximum over all ranks, by the library's own all-reduce, which accepts any
 * memory. */
static bool agree(struct rank *r, double *value, symwin_op op)
{
    double *const word = (double *)memory_at(r, r->scratch);

    return copy(r, word, value, sizeof *value) &&
           symwin_must(r, symwin_allreduce(r->comm, word, word, 1, SYMWIN_F64, op, r->stream)) &&
           copy(r, value, word, sizeof *value) && symwin_must(r, symwin_comm_check(r->comm));
}

/* Waits for all ranks, so that no kernel waits for something that a host has yet to do. */
static bool meet(struct rank *r)
{
    double nothing = 0;

    return agree(r, &nothing, SYMWIN_SUM);
}

/* Reads the kernels' `words` after they have ended. */
static bool read_words(struct rank *r, uint32_t words[WORDS / 4])
{
    if (!copy(r, words, (void *)(uintptr_t)r->args.words, WORDS))
        return false;
    if (words[GAVE_UP / 4] == 0)
        return true;
    if (symwin_comm_check(r->comm) != SYMWIN_OK) /* aborted, or a rank is gone */
        return must(r, false, "gave up: %s", symwin_last_error());
    return must(r, false, "gave up: a rank has not signalled for %d ms", job.timeout_ms);
}

static bool launch(struct rank *r, kernel_fn *kernel, const char *name, int blocks)
{
    return cuda_must(r, LAUNCH(kernel, blocks, job.threads, r->stream, r->args), name);
}

/* ---- data of the ranks ----------------------------------------------------------------------- */

/* An integer in -top .. top, a function of rank and index only. */
static int32_t number_of(int rank, uint64_t index, int32_t top)
{
    uint64_t x = index * UINT64_C(0x9e3779b97f4a7c15) +
                 (uint64_t)(rank + 1) * UINT64_C(0xd1b54a32d192ed03);

    x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (int32_t)((x >> 33) % (uint64_t)(2 * top + 1)) - top;
}

/* The number in a type that represents it exactly. */
static void put_number(char *at, int type, int32_t number)
{
    const float value = (float)number;
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &value, sizeof bits);
    if (types[type].bytes == 4) {
        memcpy(at, &bits, sizeof bits);
        return;
    }
    if (strcmp(types[type].name, "bf16") == 0 || number == 0)
        half = (uint16_t)(bits >> 16);
    else /* another bias, and fewer bits */
        half = (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - (112u << 23)) >> 13));
    memcpy(at, &half, sizeof half);
}

/* This rank's elements, and all ranks' sums, for calls of all lengths. Sums are exact in any
 * order. */
static bool fill(struct rank *r, int type)
{
    const uint64_t bytes = types[type].bytes, some = r->sums;
    const int32_t top = types[type].exact / job.nranks;

    for (uint64_t i = 0; i < some / bytes; i++) {
        int32_t sum = 0;

        for (int rank = 0; rank < job.nranks; rank++)
            sum += number_of(rank, i, top);
        put_number(r->host + i * bytes, type, number_of(r->rank, i, top));
        put_number(r->host + r->sums + i * bytes, type, sum);
    }
    return copy(r, r->memory, r->host, 2 * some);
}

/* ---- launches and graphs --------------------------------------------------------------------- */

/* Blocks for a message: each thread has at least one vector of 16 bytes. */
static int blocks_for(uint64_t bytes)
{
    const uint64_t blocks = (bytes + 16 * (uint64_t)job.threads - 1) / (16 * (uint64_t)job.threads);

    return blocks < (uint64_t)job.blocks ? (int)blocks : job.blocks;
}

/* A graph of `count` calls of `queue`. */
typedef bool (*queue_fn)(struct rank *r, int type, int shot);

static bool capture(struct rank *r, queue_fn queue, int type, int shot, int count,
                    cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    bool right = cuda_must(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal),
                           "cudaStreamBeginCapture");

    if (!right)
        return false;
    for (int i = 0; i < count && right; i++)
        right = queue(r, type, shot);
    right &= cuda_must(r, cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
    right = right && cuda_must(r, cudaGraphInstantiate(exec, graph, 0), "cudaGraphInstantiate") &&
            cuda_must(r, cudaGraphUpload(*exec, r->stream), "cudaGraphUpload");
    if (graph != NULL)
        cudaGraphDestroy(graph);
    return right;
}

static bool replay(struct rank *r, cudaGraphExec_t exec)
{
    return cuda_must(r, cudaGraphLaunch(exec, r->stream), "cudaGraphLaunch");
}

static bool queue_turns(struct rank *r, int, int)
{
    return launch(r, barrier_turns, "barrier_turns", job.blocks);
}

static bool queue_allreduce(struct rank *r, int type, int shot)
{
    return launch(r, types[type].kernels[shot], shots[shot], blocks_for(r->args.bytes));
}

static bool queue_checked(struct rank *r, int type, int shot)
{
    return launch(r, next_input, "next_input", blocks_for(r->args.bytes)) &&
           queue_allreduce(r, type, shot) &&
           launch(r, check_output, "check_output", blocks_for(r->args.bytes));
}

/* Waits until the others have given up, which they do once only. */
static void be_absent(struct rank *r)
{
    for (int ms = 0; ms < 100 * job.timeout_ms; ms++) {
        usleep(1000);
        if (symwin_comm_check(r->comm) != SYMWIN_OK)
            break;
    }
}

/* First launches directly, then from a graph, which has the same arguments in each replay. */
static bool run_both(struct rank *r, queue_fn queue, int type, int shot)
{
    cudaGraphExec_t exec = NULL;
    bool right = capture(r, queue, type, shot, IN_GRAPH, &exec) && meet(r);

    if (queue == queue_checked && r->rank == job.absent)
        be_absent(r);
    for (int i = 0; i < DIRECT && right; i++)
        right = queue(r, type, shot);
    for (int i = 0; i < REPLAYS && right; i++)
        right = replay(r, exec);
    right = right && symwin_must(r, symwin_stream_synchronize(r->device, r->stream));
    if (exec != NULL)
        cudaGraphExecDestroy(exec);
    return right;
}

/* ---- tests */

/* Adds up errors of all ranks; the program fails at its end if there are any. */
static bool add_up(struct rank *r, double *wrong)
{
    const bool right = agree(r, wrong, SYMWIN_SUM);

    r->wrong |= *wrong != 0;
    return right;
}

static bool test_barrier(struct rank *r)
{
    uint32_t words[WORDS / 4];
    double behind, ahead;

    if (!run_both(r, queue_turns, 0, 0) || !read_words(r, words))
        return false;
    behind = words[BEHIND / 4];
    ahead = words[AHEAD / 4];
    if (!add_up(r, &behind) || !add_up(r, &ahead))
        return false;
    if (r->rank == 0)
        printf("barrier: %d turns, %d of them from graphs: too early %.0f times after the start "
               "signal, "
               "%.0f after the end signal\n",
               TURNS * (DIRECT + IN_GRAPH * REPLAYS), TURNS * IN_GRAPH * REPLAYS, behind, ahead);
    return true;
}

/* Many calls of one length. Each result is compared on the device with the host's sums; the last
 * one also on the host, with the bytes behind it. */
static bool test_count(struct rank *r, int type, int shot, uint64_t count, double *wrong)
{
    char *const out = r->host + r->output;
    uint32_t words[WORDS / 4];
    const uint64_t bytes = count * types[type].bytes;

    r->args.count = count;
    r->args.bytes = bytes;
    memset(out, 0xa5, bytes + GUARD);
    if (!copy(r, memory_at(r, r->output), out, bytes + GUARD) ||
        !run_both(r, queue_checked, type, shot) || !read_words(r, words) ||
        !copy(r, out, memory_at(r, r->output), bytes + GUARD))
        return false;
    *wrong += words[WRONG / 4] - r->wrong_before;
    r->wrong_before = words[WRONG / 4];
    *wrong += memcmp(out, r->host + r->sums + words[CALLS / 4] % SHIFTS * SHIFT_BYTES, bytes) != 0;
    for (int i = 0; i < GUARD; i++)
        *wrong += (unsigned char)out[bytes + i] != 0xa5;
    return true;
}

static bool test_type(struct rank *r, int type)
{
    const uint64_t most = job.most_bytes / types[type].bytes;
    const uint64_t counts[] = {1, 7, 1021, 4096, 16411, most > 3 ? most - 3 : most, most};
    double wrong[SHOTS] = {};
    int tested = 0;

    for (uint64_t count : counts) {
        if (count > most)
            continue;
        tested++;
        for (int shot = 0; shot < r->ways; shot++)
            if (!test_count(r, type, shot, count, &wrong[shot]))
                return false;
    }
    for (int shot = 0; shot < r->ways; shot++)
        if (!add_up(r, &wrong[shot]))
            return false;
    if (r->rank == 0) {
        printf("%s: %d lengths, %d calls of each: one-shot wrong in %.0f places, two-shot in %.0f",
               types[type].name, tested, DIRECT + IN_GRAPH * REPLAYS, wrong[0], wrong[1]);
        if (r->ways > 2)
            printf(", multicast in %.0f", wrong[2]);
        printf("\n");
    }
    return true;
}

/* ---- times */

/* Microseconds per call, of the slowest rank: the best of several replays of a graph of many calls.
 * The last result is checked. */
static bool time_calls(struct rank *r, int type, int shot, double *us)
{
    cudaGraphExec_t exec = NULL;
    uint32_t words[WORDS / 4];
    float ms = 0;
    bool right;

    *us = 1e30;
    right = launch(r, next_input, "next_input", blocks_for(r->args.bytes)) &&
            capture(r, queue_allreduce, type, shot, TIMED, &exec) && meet(r) && replay(r, exec);
    for (int i = 0; i < 5 && right; i++) {
        double mine;

        right = meet(r) && cuda_must(r, cudaEventRecord(r->from, r->stream), "cudaEventRecord") &&
                replay(r, exec) &&
                cuda_must(r, cudaEventRecord(r->to, r->stream), "cudaEventRecord") &&
                symwin_must(r, symwin_stream_synchronize(r->device, r->stream)) &&
                cuda_must(r, cudaEventElapsedTime(&ms, r->from, r->to), "cudaEventElapsedTime");
        mine = (double)ms * 1000 / TIMED;
        right = right && agree(r, &mine, SYMWIN_MAX);
        *us = mine < *us ? mine : *us;
    }
    right = right && launch(r, check_output, "check_output", blocks_for(r->args.bytes)) &&
            read_words(r, words);
    if (right && words[WRONG / 4] != r->wrong_before)
        right = must(r, false, "%s, timed: the result is wrong", shots[shot]);
    if (exec != NULL)
        cudaGraphExecDestroy(exec);
    return right;
}

static bool time_type(struct rank *r, int type)
{
    for (uint64_t bytes = 1024; bytes <= job.most_bytes; bytes *= 4) {
        const double moved = 2.0 * (job.nranks - 1) / job.nranks * (double)bytes;
        double us[SHOTS];

        r->args.bytes = bytes;
        r->args.count = bytes / types[type].bytes;
        if (r->rank == 0)
            printf("%5s %10llu", types[type].name, (unsigned long long)bytes);
        for (int shot = 0; shot < r->ways; shot++) {
            if (!time_calls(r, type, shot, &us[shot]))
                return false;
            if (r->rank == 0)
                printf(" %12.2f %10.2f", us[shot], moved / us[shot] / 1000);
        }
        if (r->rank == 0)
            printf("\n");
    }
    return true;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The window has input, results and barrier; other memory is the rank's alone. All words are zero
 * before any rank's first kernel, because registering a window waits for all ranks. */
static bool set_up(struct rank *r)
{
    const uint64_t largest = round_up(job.most_bytes), stamps = round_up(4 * BLOCKS * THREADS);
    const uint64_t part = largest > stamps ? largest : stamps;
    const uint64_t words = round_up(8 * (uint64_t)job.nranks * (BLOCKS + 2));
    symwin_comm_options options = {};
    symwin_window *window = NULL;
    symwin_window_info info = {};
    const uint64_t bytes = 2 * part + words;
    char *zeros = (char *)calloc(1, bytes);

    r->sums = largest + SHIFTS * SHIFT_BYTES;
    r->output = 2 * r->sums;
    r->scratch = r->output + largest + round_up(GUARD);
    r->room = r->scratch + 256 + WORDS;
    r->host = (char *)calloc(1, r->room);
    options.size = sizeof options;
    options.kernel_timeout_ms = job.timeout_ms;
    if (must(r, zeros != NULL && r->host != NULL, "no host memory") &&
        cuda_must(r, cudaSetDevice(r->device), "cudaSetDevice") &&
        symwin_must(r, symwin_stream_create(r->device, &r->stream)) &&
        cuda_must(r, cudaEventCreate(&r->from), "cudaEventCreate") &&
        cuda_must(r, cudaEventCreate(&r->to), "cudaEventCreate") &&
        symwin_must(r, symwin_mem_alloc(r->device, bytes, 0, &r->window)) &&
        symwin_must(r, symwin_mem_alloc(r->device, r->room, 0, &r->memory)) &&
        copy(r, r->window, zeros, bytes) && copy(r, r->memory, r->host, r->room) &&
        symwin_must(
            r, symwin_comm_create(&job.id, job.nranks, r->rank, r->device, &options, &r->comm)) &&
        symwin_must(r, symwin_window_register(r->comm, r->window, bytes, 0, &window)) &&
        symwin_must(r, symwin_window_query(r->comm, window, &info)) &&
        symwin_must(r, symwin_channel_limit(r->comm, &r->args.limit)))
        r->args.span = symwin_span_of(info);
    r->ways = r->args.span.multicast ? SHOTS : SHOTS - 1;
    free(zeros);
    r->args.results = part;
    r->args.barrier = 2 * part;
    r->args.inputs = (uint64_t)(uintptr_t)r->memory;
    r->args.sums = r->args.inputs + r->sums;
    r->args.output = r->args.inputs + r->output;
    r->args.words = r->args.inputs + r->scratch + 256;
    r->args.turns = TURNS;
    r->args.without = job.without;
    return !r->failed;
}

/* Call before any kernel waits: the runtime loads a kernel at its first use, which may have to wait
 * for running kernels. */
static bool load_kernels(struct rank *r)
{
#ifdef __CUDACC__
    cudaFuncAttributes attributes;
    kernel_fn *const kernels[] = {one_shot_f32,   two_shot_f32,  multicast_f32, one_shot_f16,
                                  two_shot_f16,   multicast_f16, one_shot_bf16, two_shot_bf16,
                                  multicast_bf16, barrier_turns, next_input,    check_output};

    for (kernel_fn *kernel : kernels)
        if (!cuda_must(r, cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"))
            return false;
#endif
    return !r->failed;
}

static bool run_steps(struct rank *r)
{
    if (!set_up(r) || !load_kernels(r) || !meet(r))
        return false;
    if (r->rank == 0)
        printf("fast_allreduce: %d ranks, driver %s, at most %d blocks of %d threads\n", job.nranks,
               job.driver.name, job.blocks, job.threads);
    r->args.late_ns = EMULATED ? 300000 : 20000;
    if (!test_barrier(r))
        return false;
    for (int type = 0; type < TYPES; type++)
        if (!fill(r, type) || !test_type(r, type))
            return false;
    r->args.late_ns = 0;
    if (r->wrong)
        return meet(r);
    if (r->rank == 0)
        printf(" type      bytes  one-shot us       GB/s  two-shot us       GB/s%s\n",
               r->ways > 2 ? " multicast us       GB/s" : "");
    for (int type = 0; type < TYPES; type++)
        if (!fill(r, type) || !time_type(r, type))
            return false;
    return meet(r); /* nobody reads any more what is freed now */
}

static void *run_rank(void *argument)
{
    struct rank *r = (struct rank *)argument;

    run_steps(r);
    symwin_comm_destroy(r->comm); /* and the window */
    symwin_must(r, symwin_mem_free(r->window));
    symwin_must(r, symwin_mem_free(r->memory));
    if (r->from != NULL)
        cudaEventDestroy(r->from);
    if (r->to != NULL)
        cudaEventDestroy(r->to);
    if (r->stream != NULL)
        symwin_must(r, symwin_stream_destroy(r->device, r->stream));
    free(r->host);
    return NULL;
}

/* ---- all ranks */

/* Runs a thread for each rank of this process. */
static bool run_ranks(void)
{
    static struct rank ranks[MOST];
    bool right = true;

    for (int i = 0; i < job.nthreads; i++) {
        ranks[i].rank = job.first + i;
        ranks[i].device = (job.local_first + i) % job.driver.device_count;
    }
    common_threads("fast_allreduce", ranks, job.nthreads, sizeof ranks[0], run_rank);
    for (int i = 0; i < job.nthreads; i++)
        right &= !ranks[i].failed && !ranks[i].wrong;
    return right;
}

/* An error that all processes find: printed by the first one. */
static bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool refuse(const char *format, ...)
{
    va_list args;

    if (job.launch.rank > 0)
        return false;
    fprintf(stderr, "fast_allreduce: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    return false;
}

/* The CUDA runtime launches the kernels of one build, the emulated driver those of the other. */
static bool find_driver(void)
{
    setenv("SYMWIN_DRIVER", EMULATED ? "emu" : "cuda", 0);
    if (symwin_driver_query(&job.driver) != SYMWIN_OK)
        return refuse(EMULATED ? "%s" : "no GPU: %s; fast_allreduce-emu runs without one",
                      symwin_last_error());
    if ((strcmp(job.driver.name, "emu") == 0) == EMULATED)
        return true;
    return EMULATED ? refuse("this build has no kernels for GPUs: set SYMWIN_DRIVER=emu, or build "
                             "fast_allreduce with nvcc")
                    : refuse("no GPU: SYMWIN_DRIVER is \"emu\"; that takes fast_allreduce-emu");
}

/* Determines the ranks, and how many blocks of all ranks fit on a device at a time. */
static bool find_ranks(void)
{
    const symwin_launch_info info = job.launch;
    symwin_device_info device;
    int sharing, fit;

    if (symwin_device_query(0, &device) != SYMWIN_OK)
        return refuse("%s", symwin_last_error());
    if (job.nthreads == 0)
        job.nthreads = info.nranks > 1 ? 1 : job.driver.device_count;
    job.nranks = info.nranks * job.nthreads;
    job.first = info.rank * job.nthreads;
    if (job.nranks > MOST)
        return refuse("%d ranks are more than %d", job.nranks, MOST);
    if (job.absent >= job.nranks)
        return refuse("--absent is %d: of %d ranks the last one is %d", job.absent, job.nranks,
                      job.nranks - 1);
    job.local_first = (info.local_rank >= 0 ? info.local_rank : info.rank) * job.nthreads;
    sharing = (job.nranks + job.driver.device_count - 1) / job.driver.device_count;
    fit = device.multiprocessors / sharing;
    job.threads = EMULATED ? 64 : THREADS;
    job.blocks = EMULATED ? 3 : BLOCKS;
    job.blocks = job.blocks < fit ? job.blocks : fit > 0 ? fit : 1;
    if (job.most_bytes == 0)
        job.most_bytes = EMULATED ? 64 << 10 : 8 << 20;
    if ((info.nranks == 1 ? symwin_unique_id_create(&job.id)
                          : symwin_unique_id_from_env(&job.id)) == SYMWIN_OK)
        return true;
    fprintf(stderr, "fast_allreduce: %s\n", symwin_last_error());
    job.alone = job.nproc > 0;
    return false;
}

/* ---- the command line */

static const char usage[] =
    "usage: [NTHREADS=N] fast_allreduce [OPTION]... [BYTES]\n"
    "\n"
    "Proves and times all-reduces by kernels of its own, of messages up to BYTES (8M, on the "
    "emulated\n"
    "driver 64K; 1K at least). Ranks are NTHREADS threads (one for each device), or processes, or "
    "both.\n"
    "\n"
    "  --nproc N            forks N processes; mpirun, srun and torchrun serve as well\n"
    "  --timeout MS         the longest wait in a kernel, 20000\n"
    "  --without start|end  leaves one of the two signals out: what the tests say then\n"
    "  --without fences     leaves the alias fences out: SYMWIN_EMU_ALIAS=1 finds that\n"
    "  --absent RANK        this rank does not come until the others have given up waiting\n";

/* 0: not such a number. */
static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end = NULL;
    uint64_t value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;

    if (end == NULL || value > most)
        return 0;
    if (*end == 'K' || *end == 'M')
        value <<= *end++ == 'K' ? 10 : 20;
    return *end == '\0' && value >= least && value <= most ? value : 0;
}

/* Whether the option is valid. */
static bool option(const char *name, const char *value)
{
    if (strcmp(name, "--nproc") == 0)
        return (job.nproc = (int)number(value, 1, MOST)) != 0;
    if (strcmp(name, "--timeout") == 0)
        return (job.timeout_ms = (int)number(value, 1, 600000)) != 0;
    if (strcmp(name, "--without") == 0) {
        job.without = strcmp(value, "start") == 0    ? START
                      : strcmp(value, "end") == 0    ? END
                      : strcmp(value, "fences") == 0 ? FENCES
                                                     : NEITHER;
        return job.without != NEITHER;
    }
    if (strcmp(name, "--absent") == 0) {
        job.absent = strcmp(value, "0") == 0 ? 0 : (int)number(value, 1, MOST);
        return job.absent != 0 || value[0] == '0';
    }
    return false;
}

static int parse(int argc, char **argv)
{
    const char *nthreads = getenv("NTHREADS"), *wrong = NULL;

    job.timeout_ms = 20000;
    job.absent = -1;
    if (nthreads != NULL && (job.nthreads = (int)number(nthreads, 1, MOST)) == 0)
        wrong = "NTHREADS";
    for (int i = 1; i < argc && wrong == NULL; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            printf("%s", usage);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0)
            return common_version("fast_allreduce");
        if (argv[i][0] != '-')
            wrong = (job.most_bytes = number(argv[i], 1024, UINT64_C(1) << 32)) == 0 ? argv[i]
                                                                                     : NULL;
        else if (i + 1 == argc || !option(argv[i], argv[i + 1]))
            wrong = argv[i];
        else
            i++;
    }
    if (wrong != NULL)
        fprintf(stderr, "fast_allreduce: %s: it, or its value, makes no sense\n%s", wrong, usage);
    return wrong != NULL ? 2 : -1;
}

static int run_program(void)
{
    const int status = job.nproc > 0 ? common_fork("fast_allreduce", job.nproc) : -1;

    if (status == 0) /* of all processes */
        printf("All results verified\n");
    if (status >= 0)
        return status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* keeps the order of stdout and stderr */
    if (symwin_launch_query(&job.launch) != SYMWIN_OK) {
        fprintf(stderr, "fast_allreduce: %s\n", symwin_last_error());
        return 1;
    }
    if (!find_driver() || !find_ranks() || !run_ranks())
        return job.alone ? COMMON_ALONE : 1;
    if (job.first == 0 && job.nproc == 0)
        printf("All results verified\n"); /* by all ranks, which met after the last test */
    return 0;
}

int main(int argc, char **argv)
{
    int status;

    common_begin();
    status = parse(argc, argv);
    if (status < 0)
        status = run_program();
    return common_end("fast_allreduce", status);
}
