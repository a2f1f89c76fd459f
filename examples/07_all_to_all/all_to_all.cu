/* all_to_all: expert parallelism. A router on the GPU decides for each token which rank's expert it
 * goes to; an all-to-all of unequal parts takes the tokens there, the expert changes them, another
 * one takes them back. No host waits in between, and one graph serves every routing.
 *
 *     nvcc -O3 -std=c++17 -arch=sm_90 -I../.. -o all_to_all all_to_all.cu ../../build/libsymwin.a
 *     NTHREADS=4 ./all_to_all                   four ranks as threads
 *     ./all_to_all --nproc 4                    four processes; also mpirun, srun, torchrun
 *
 * The host compiler builds the same program for the emulated driver: see the Makefile.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h" /* processes, threads, --version */
#include "symwin.h"
#include "symwin/float.h"
#include "symwin/packet.cuh"

enum { THREADS = 512, MOST = 64 }; /* threads of a block; ranks */

struct layer;

#ifdef __CUDACC__
#define BOTH static __host__ __device__ inline
enum { EMULATED = false };
typedef void kernel_fn(layer);
#define LAUNCH(kernel, blocks, threads, stream, args)                                              \
    (kernel<<<blocks, threads, 0, stream>>>(args), cudaGetLastError())
#else
#include "../06_fast_allreduce/emulated.h"
#define BOTH static inline
enum { EMULATED = true };
typedef void kernel_fn(const void *);
#define LAUNCH(kernel, blocks, threads, stream, args)                                              \
    emulated_launch(kernel, THREADS, blocks, threads, stream, args)
#endif

/* ---- the data: what host and device agree on ------------------------------------------------- */

BOTH uint32_t random_of(uint64_t step, uint64_t rank, uint64_t token, uint64_t i)
{
    uint64_t x = step * UINT64_C(0x9e3779b97f4a7c15) + rank * UINT64_C(0xd1b54a32d192ed03) +
                 token * UINT64_C(0x8cb92ba72f3d8dd7) + i * UINT64_C(0xbf58476d1ce4e5b9);

    x = (x ^ x >> 31) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 33);
}

/* Number i of a token: an integer, so that what follows is exact. */
BOTH float number_of(uint64_t step, uint64_t rank, uint64_t token, uint64_t i)
{
    return (float)(random_of(step, rank, token, i + 1) % 1000);
}

/* The router's choice. Each step has a favourite, which gets half of the tokens; in each fourth
 * step all of them, so the other experts have none. */
BOTH uint64_t expert_of(uint64_t step, uint64_t rank, uint64_t token, uint64_t nranks)
{
    const uint32_t random = random_of(step, rank, token, 0);

    return step % 4 == 3 || random % 2 == 0 ? step % nranks : random / 2 % nranks;
}

/* What an expert makes of a number. */
BOTH float answer_of(uint64_t expert, float number)
{
    return 3 * number + (float)expert + 1;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Addresses are of this rank's memory; no peer reaches it. */
struct layer {
    uint64_t nranks, rank, tokens, width; /* `tokens` of `width` floats in each step */
    uint64_t words;
    uint64_t data;    /* the tokens, then the layer's result */
    uint64_t numbers; /* of each token among those for its expert, 32 bits */
    /* A 64-bit word for each rank: the counts and displacements of symwin_parts, in floats. */
    uint64_t out_counts, out_places, in_counts, in_places;
    uint64_t packed;   /* tokens in the order of their experts */
    uint64_t arrived;  /* tokens for this rank's expert, then its answers */
    uint64_t answered; /* answers, in the order of `packed` */
    uint64_t forgets;  /* tests: the expert leaves its first token as it is */
};

/* Contents of `words`, as byte offsets: the step, which the device counts, since each replay of a
 * graph has the same arguments. */
enum { STEPS = 0, WRONG = 16, FEWEST = 24, MOST_TOKENS = 32, WORDS = 40 };

SYMWIN_DEVICE uint64_t word_of(uint64_t words, uint64_t i)
{
    return symwin_load_u64(words + 8 * i);
}

SYMWIN_DEVICE float float_at(uint64_t floats, uint64_t i)
{
    return sw_f32_of_bits(symwin_load_u32(floats + 4 * i));
}

SYMWIN_DEVICE void set_float(uint64_t floats, uint64_t i, float value)
{
    symwin_store_u32(floats + 4 * i, sw_f32_bits(value));
}

/* Stands for the model's layer before. */
SYMWIN_KERNEL(make_tokens, layer, l, THREADS)
{
    const uint64_t step = symwin_epoch_begin(l.words + STEPS);

    for (uint64_t i = symwin_thread_index(); i < l.tokens * l.width; i += symwin_thread_count())
        set_float(l.data, i, number_of(step, l.rank, i / l.width, i % l.width));
}

/* Where the parts begin if each follows the one before. By one thread. */
SYMWIN_DEVICE uint64_t place_parts(uint64_t nranks, uint64_t counts, uint64_t places)
{
    uint64_t at = 0;

    for (uint64_t r = 0; r < nranks; r++) {
        symwin_store_u64(places + 8 * r, at);
        at += word_of(counts, r);
    }
    return at;
}

/* The router: numbers the tokens of each expert, and counts them. One block. */
SYMWIN_KERNEL(route, layer, l, THREADS)
{
    const uint64_t step = symwin_epoch_begin(l.words + STEPS);

    for (uint64_t r = threadIdx.x; r < l.nranks; r += blockDim.x)
        symwin_store_u64(l.out_counts + 8 * r, 0);
    __syncthreads();
    /* The lower half of a count is enough for a sum. */
    for (uint64_t t = threadIdx.x; t < l.tokens; t += blockDim.x) {
        const uint64_t expert = expert_of(step, l.rank, t, l.nranks);
        const uint32_t floats = symwin_atomic_add_u32(l.out_counts + 8 * expert, (uint32_t)l.width);

        symwin_store_u32(l.numbers + 4 * t, floats / (uint32_t)l.width);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        place_parts(l.nranks, l.out_counts, l.out_places);
}

/* The place of float i of the tokens in `packed`, and in `answered`. */
SYMWIN_DEVICE uint64_t packed_place(const layer &l, uint64_t step, uint64_t i)
{
    const uint64_t token = i / l.width, expert = expert_of(step, l.rank, token, l.nranks);

    return word_of(l.out_places, expert) + symwin_load_u32(l.numbers + 4 * token) * l.width +
           i % l.width;
}

SYMWIN_KERNEL(pack, layer, l, THREADS)
{
    const uint64_t step = symwin_epoch_begin(l.words + STEPS);

    for (uint64_t i = symwin_thread_index(); i < l.tokens * l.width; i += symwin_thread_count())
        set_float(l.packed, packed_place(l, step, i), float_at(l.data, i));
}

/* Where the tokens for this rank's expert go, once their counts have arrived. One thread. */
SYMWIN_KERNEL(place, layer, l, THREADS)
{
    const uint64_t tokens = place_parts(l.nranks, l.in_counts, l.in_places) / l.width;

    if (tokens < symwin_load_u64(l.words + FEWEST))
        symwin_store_u64(l.words + FEWEST, tokens);
    if (tokens > symwin_load_u64(l.words + MOST_TOKENS))
        symwin_store_u64(l.words + MOST_TOKENS, tokens);
}

/* This rank's expert, in place. */
SYMWIN_KERNEL(expert, layer, l, THREADS)
{
    const uint64_t count = word_of(l.in_places, l.nranks - 1) + word_of(l.in_counts, l.nranks - 1);
    const uint64_t first = l.forgets ? l.width : 0;

    for (uint64_t i = first + symwin_thread_index(); i < count; i += symwin_thread_count())
        set_float(l.arrived, i, answer_of(l.rank, float_at(l.arrived, i)));
}

/* Adds the answers to the tokens. */
SYMWIN_KERNEL(combine, layer, l, THREADS)
{
    const uint64_t step = symwin_epoch_begin(l.words + STEPS);

    for (uint64_t i = symwin_thread_index(); i < l.tokens * l.width; i += symwin_thread_count())
        set_float(l.data, i, float_at(l.data, i) + float_at(l.answered, packed_place(l, step, i)));
}

BOTH float result_of(const layer &l, uint64_t step, uint64_t i)
{
    const uint64_t token = i / l.width, expert = expert_of(step, l.rank, token, l.nranks);
    const float number = number_of(step, l.rank, token, i % l.width);

    return number + answer_of(expert, number);
}

/* Compares every number of every token, and ends the step. */
SYMWIN_KERNEL(check, layer, l, THREADS)
{
    const uint64_t step = symwin_epoch_begin(l.words + STEPS);
    uint32_t wrong = 0;

    for (uint64_t i = symwin_thread_index(); i < l.tokens * l.width; i += symwin_thread_count())
        wrong += float_at(l.data, i) != result_of(l, step, i);
    if (wrong != 0)
        symwin_add_relaxed_u32(l.words + WRONG, wrong);
    symwin_epoch_end(l.words + STEPS);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

enum { DIRECT = 3, REPLAYS = 20 };

/* The options, and what all ranks share. */
static struct {
    int nproc, nthreads, blocks, threads;
    bool forgets, alone; /* alone: without an id, see common.h */
    uint64_t tokens, width;
    int nranks, first, local_first; /* ranks; the first of this process, and on this host */
    symwin_launch_info launch;
    symwin_driver_info driver;
    symwin_unique_id id;
} job;

struct rank {
    int rank, device;
    symwin_comm *comm;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    char *memory; /* of the device */
    struct layer layer;
    double wrong, fewest, most;
    bool failed;
};

/* Prints a failure, once per rank, and aborts all ranks. */
static bool must(struct rank *r, bool right, const char *format, ...)
{
    char text[512];
    va_list args;

    if (right || r->failed)
        return right && !r->failed;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "all_to_all: rank %d: %s\n", r->rank, text);
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

static bool launch(struct rank *r, kernel_fn *kernel, const char *name, int blocks, int threads)
{
    return cuda_must(r, LAUNCH(kernel, blocks, threads, r->stream, r->layer), name);
}

#define GRID(kernel) launch(r, kernel, #kernel, job.blocks, job.threads)

/* The two tables of an all-to-all, in device memory: the call reads them when it runs. */
static symwin_parts parts_of(uint64_t counts, uint64_t places, uint64_t room)
{
    symwin_parts parts = {};

    parts.counts = (const uint64_t *)(uintptr_t)counts;
    parts.displacements = (const uint64_t *)(uintptr_t)places;
    parts.room = room;
    parts.on_device = 1;
    return parts;
}

/* Queues one step of the layer. */
static bool queue_step(struct rank *r)
{
    const struct layer *l = &r->layer;
    const uint64_t room = l->tokens * l->width;
    const symwin_parts out = parts_of(l->out_counts, l->out_places, room);
    const symwin_parts in = parts_of(l->in_counts, l->in_places, l->nranks * room);
    void *const packed = (void *)(uintptr_t)l->packed, *const arrived = (void *)(uintptr_t)
                                                                            l->arrived;
    void *const answered = (void *)(uintptr_t)l->answered;

    return GRID(make_tokens) && launch(r, route, "route", 1, job.threads) && GRID(pack) &&
           symwin_must(r, symwin_alltoall(r->comm, out.counts, (void *)(uintptr_t)l->in_counts, 1,
                                          SYMWIN_U64, r->stream)) &&
           launch(r, place, "place", 1, 1) &&
           symwin_must(
               r, symwin_alltoallv(r->comm, packed, &out, arrived, &in, SYMWIN_F32, r->stream)) &&
           GRID(expert) &&
           symwin_must(
               r, symwin_alltoallv(r->comm, arrived, &in, answered, &out, SYMWIN_F32, r->stream)) &&
           GRID(combine) && GRID(check);
}

static bool capture(struct rank *r)
{
    cudaGraph_t graph = NULL;
    bool right;

    if (!cuda_must(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture"))
        return false;
    right = queue_step(r);
    right &= cuda_must(r, cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
    right = right &&
            cuda_must(r, cudaGraphInstantiate(&r->graph, graph, 0), "cudaGraphInstantiate");
    right = right && cuda_must(r, cudaGraphUpload(r->graph, r->stream), "cudaGraphUpload");
    if (graph != NULL)
        cudaGraphDestroy(graph);
    return right;
}

/* Copies between host and device, and waits for the stream. */
static bool copy(struct rank *r, void *to, const void *from, uint64_t bytes)
{
    return symwin_must(r, symwin_memcpy(r->device, to, from, bytes, r->stream)) &&
           symwin_must(r, symwin_stream_synchronize(r->device, r->stream)) &&
           (r->comm == NULL || symwin_must(r, symwin_comm_check(r->comm)));
}

/* The sum or the maximum over all ranks, which also waits for them. */
static bool agree(struct rank *r, double *value, symwin_op op)
{
    void *const word = (void *)(uintptr_t)r->layer.packed;

    return copy(r, word, value, sizeof *value) &&
           symwin_must(r, symwin_allreduce(r->comm, word, word, 1, SYMWIN_F64, op, r->stream)) &&
           copy(r, value, word, sizeof *value);
}

/* Takes the next part of the memory, which has no memory yet the first time. */
static uint64_t take(struct rank *r, uint64_t *at, uint64_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)r->memory + *at;

    *at += (bytes + 255) / 256 * 256;
    return address;
}

static uint64_t lay_out(struct rank *r)
{
    struct layer *l = &r->layer;
    const uint64_t floats = 4 * job.tokens * job.width, words = 8 * (uint64_t)job.nranks;
    uint64_t at = 0;

    l->nranks = (uint64_t)job.nranks;
    l->rank = (uint64_t)r->rank;
    l->tokens = job.tokens;
    l->width = job.width;
    l->forgets = job.forgets && r->rank == 0;
    l->words = take(r, &at, WORDS);
    l->numbers = take(r, &at, 4 * job.tokens);
    l->out_counts = take(r, &at, words);
    l->out_places = take(r, &at, words);
    l->in_counts = take(r, &at, words);
    l->in_places = take(r, &at, words);
    l->data = take(r, &at, floats);
    l->packed = take(r, &at, floats);
    l->answered = take(r, &at, floats);
    l->arrived = take(r, &at, l->nranks * floats); /* all tokens may want one expert */
    return at;
}

/* Call before any kernel waits: the runtime loads a kernel at its first use, which may have to wait
 * for running kernels. */
static bool load_kernels(struct rank *r)
{
#ifdef __CUDACC__
    cudaFuncAttributes attributes;
    kernel_fn *const kernels[] = {make_tokens, route, pack, place, expert, combine, check};

    for (kernel_fn *kernel : kernels)
        if (!cuda_must(r, cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"))
            return false;
#endif
    return !r->failed;
}

static bool set_up(struct rank *r)
{
    const uint64_t bytes = lay_out(r), zero[WORDS / 8] = {0, 0, 0, UINT64_MAX, 0};
    symwin_comm_options options = {};
    void *memory = NULL;
    bool right;

    options.size = sizeof options;
    options.kernel_timeout_ms = 20000;
    right = cuda_must(r, cudaSetDevice(r->device), "cudaSetDevice") &&
            symwin_must(r, symwin_stream_create(r->device, &r->stream)) &&
            symwin_must(r, symwin_mem_alloc(r->device, bytes, 0, &memory));
    r->memory = (char *)memory;
    lay_out(r);
    return right && copy(r, (void *)(uintptr_t)r->layer.words, zero, sizeof zero) &&
           load_kernels(r) &&
           symwin_must(
               r, symwin_comm_create(&job.id, job.nranks, r->rank, r->device, &options, &r->comm));
}

/* Compares the last step's result on the host too, and adds up what all ranks have counted. */
static bool verify(struct rank *r)
{
    const uint64_t floats = job.tokens * job.width;
    float *const data = (float *)malloc(floats * sizeof *data);
    uint64_t words[WORDS / 8];
    bool right = must(r, data != NULL, "no host memory") &&
                 copy(r, words, (void *)(uintptr_t)r->layer.words, sizeof words) &&
                 copy(r, data, (void *)(uintptr_t)r->layer.data, floats * sizeof *data) &&
                 must(r, words[STEPS / 8] == DIRECT + REPLAYS, "%llu steps have run",
                      (unsigned long long)words[STEPS / 8]);

    if (right) {
        r->wrong = (double)words[WRONG / 8];
        r->fewest = -(double)words[FEWEST / 8]; /* for the maximum of all ranks */
        r->most = (double)words[MOST_TOKENS / 8];
        for (uint64_t i = 0; i < floats; i++)
            r->wrong += data[i] != result_of(r->layer, DIRECT + REPLAYS, i);
    }
    free(data);
    return right && agree(r, &r->wrong, SYMWIN_SUM) && agree(r, &r->fewest, SYMWIN_MAX) &&
           agree(r, &r->most, SYMWIN_MAX);
}

/* All steps are queued before the host waits for the first time. */
static bool run_steps(struct rank *r)
{
    double ready = 0;
    bool right = set_up(r) && capture(r) && agree(r, &ready, SYMWIN_SUM);

    for (int i = 0; i < DIRECT && right; i++)
        right = queue_step(r);
    for (int i = 0; i < REPLAYS && right; i++)
        right = cuda_must(r, cudaGraphLaunch(r->graph, r->stream), "cudaGraphLaunch");
    if (!right || !verify(r))
        return false;
    if (r->rank == 0)
        printf("all_to_all: %d rank%s, driver %s, %llu tokens of %llu numbers each\n"
               "%d steps, %d of them replays of one graph: an expert had %.0f to %.0f tokens\n"
               "wrong numbers: %.0f\n",
               job.nranks, job.nranks > 1 ? "s" : "", job.driver.name,
               (unsigned long long)job.tokens, (unsigned long long)job.width, DIRECT + REPLAYS,
               REPLAYS, -r->fewest, r->most, r->wrong);
    return r->wrong == 0;
}

static void *run_rank(void *argument)
{
    struct rank *r = (struct rank *)argument;

    r->failed = !run_steps(r);
    if (r->graph != NULL)
        cudaGraphExecDestroy(r->graph);
    symwin_comm_destroy(r->comm);
    if (r->memory != NULL)
        symwin_mem_free(r->memory);
    if (r->stream != NULL)
        symwin_stream_destroy(r->device, r->stream);
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Runs a thread for each rank of this process. */
static bool run_ranks(void)
{
    static struct rank ranks[MOST];
    bool right = true;

    for (int i = 0; i < job.nthreads; i++) {
        ranks[i].rank = job.first + i;
        ranks[i].device = (job.local_first + i) % job.driver.device_count;
    }
    common_threads("all_to_all", ranks, (unsigned)job.nthreads, sizeof ranks[0], run_rank);
    for (int i = 0; i < job.nthreads; i++)
        right &= !ranks[i].failed;
    return right;
}

/* An error that all processes find: printed by the first one. */
static bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool refuse(const char *format, ...)
{
    va_list args;

    if (job.launch.rank > 0)
        return false;
    fprintf(stderr, "all_to_all: ");
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
        return refuse(EMULATED ? "%s" : "no GPU: %s; all_to_all-emu runs without one",
                      symwin_last_error());
    if ((strcmp(job.driver.name, "emu") == 0) == EMULATED)
        return true;
    return EMULATED ? refuse("this build has no kernels for GPUs: set SYMWIN_DRIVER=emu, or build "
                             "all_to_all with nvcc")
                    : refuse("no GPU: SYMWIN_DRIVER is \"emu\"; that takes all_to_all-emu");
}

static bool find_ranks(void)
{
    const symwin_launch_info info = job.launch;

    if (job.nthreads == 0)
        job.nthreads = info.nranks > 1 ? 1 : job.driver.device_count;
    job.nranks = info.nranks * job.nthreads;
    job.first = info.rank * job.nthreads;
    job.local_first = (info.local_rank >= 0 ? info.local_rank : info.rank) * job.nthreads;
    if (job.nranks > MOST)
        return refuse("%d ranks are more than %d", job.nranks, MOST);
    job.blocks = EMULATED ? 2 : 32;
    job.threads = EMULATED ? 64 : THREADS;
    job.tokens = job.tokens > 0 ? job.tokens : EMULATED ? 200 : 4096;
    job.width = job.width > 0 ? job.width : EMULATED ? 40 : 4096;
    if ((info.nranks == 1 ? symwin_unique_id_create(&job.id)
                          : symwin_unique_id_from_env(&job.id)) == SYMWIN_OK)
        return true;
    fprintf(stderr, "all_to_all: %s\n", symwin_last_error());
    job.alone = job.nproc > 0;
    return false;
}

/* ---- the command line ------------------------------------------------------------------------ */

static const char usage[] =
    "usage: [NTHREADS=N] all_to_all [OPTION]... [TOKENS]\n"
    "\n"
    "Routes TOKENS tokens of each rank (4096, on the emulated driver 200) to experts, one on each\n"
    "rank, and back, and verifies every one. Ranks are NTHREADS threads (one for each device), or\n"
    "processes, or both.\n"
    "\n"
    "  --nproc N   forks N processes; mpirun, srun and torchrun serve as well\n"
    "  --width N   numbers of a token, 4096, on the emulated driver 40\n"
    "  --forget    the expert of rank 0 forgets a token in each step: what is said then\n";

static int parse(int argc, char **argv)
{
    const char *nthreads = getenv("NTHREADS");

    if (nthreads != NULL &&
        (job.nthreads = (int)common_number("all_to_all", "NTHREADS", nthreads, 1, MOST)) < 0)
        return 2;
    for (int i = 1; i < argc; i++) {
        const bool nproc = strcmp(argv[i], "--nproc") == 0, width = strcmp(argv[i], "--width") == 0;
        int64_t value;

        if (strcmp(argv[i], "--help") == 0) {
            printf("%s", usage);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0)
            return common_version("all_to_all");
        if (strcmp(argv[i], "--forget") == 0) {
            job.forgets = true;
            continue;
        }
        if (argv[i][0] == '-' && !nproc && !width)
            return common_unknown("all_to_all", argv[i]);
        if ((nproc || width) && i + 1 == argc)
            return common_no_value("all_to_all", argv[i]);
        value = common_number("all_to_all", nproc || width ? argv[i] : "TOKENS",
                              argv[i + (nproc || width)], 1, nproc ? MOST : 1 << 15);
        if (value < 0)
            return 2;
        if (nproc)
            job.nproc = (int)value;
        else
            (width ? job.width : job.tokens) = (uint64_t)value;
        i += nproc || width;
    }
    return -1;
}

static int run_program(void)
{
    const int status = job.nproc > 0 ? common_fork("all_to_all", job.nproc) : -1;

    if (status == 0) /* of all processes */
        printf("All tokens verified\n");
    if (status >= 0)
        return status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* keeps the order of stdout and stderr */
    if (symwin_launch_query(&job.launch) != SYMWIN_OK) {
        fprintf(stderr, "all_to_all: %s\n", symwin_last_error());
        return 1;
    }
    if (!find_driver() || !find_ranks() || !run_ranks())
        return job.alone ? COMMON_ALONE : 1;
    if (job.first == 0 && job.nproc == 0)
        printf("All tokens verified\n"); /* by all ranks, which agreed on it */
    return 0;
}

int main(int argc, char **argv)
{
    int status;

    common_begin();
    status = parse(argc, argv);
    if (status < 0)
        status = run_program();
    return common_end("all_to_all", status);
}
