/* memory_channel: two ranks copy to and from each other's memory at the same time, through a
 * channel.
 *
 *     memory_channel                            two threads, a GPU each
 *     memory_channel --nproc 2                  two processes; also under mpirun, srun and torchrun
 *     SYMWIN_DRIVER=emu memory_channel          on the emulated driver, GPU or not
 *
 * run_rank() has the steps of a rank: allocate, make a channel with the other rank, then for each
 * test and size fill, record a graph of launches, time its replays, and compare every byte.
 * kernels.cu has the kernels, gpu.c launches them, and launch.c of 01_allreduce starts the
 * processes.
 */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"
#include "gpu.h"
#include "launch.h"

const char program[] = "memory_channel";
const char purpose[] = "";

enum { RANKS = 2, MOST_SIZES = 16, REPLAYS = 7 };

static const char usage[] =
    "usage: memory_channel [--nproc 2] [--iterations N] [--blocks N] [--threads N] [--get HOW] "
    "[--pieces N]\n"
    "                      [--best] [BYTES...]\n"
    "\n"
    "Two ranks put to each other, get from each other and put packets to each other, BYTES at a "
    "time, and compare\n"
    "every byte. Ranks are threads, or processes: with --nproc 2, and under mpirun, srun and "
    "torchrun.\n"
    "\n"
    "  BYTES          multiples of 8, with a suffix K, M or G; 1K 1M 128M, on the emulated driver "
    "1K 64K 1M\n"
    "  --iterations   launches that are timed together: 100, or 10 of more than 16M\n"
    "  --blocks, --threads   the grid, which otherwise goes by the size\n"
    "  --get          threads, bulk (through shared memory; sm_90), or auto: bulk from 16M on\n"
    "  --pieces       of 16 KiB of shared memory that a block's bulk copies go through, 4\n"
    "  --best         tries many grids, and prints the best one of each\n";

static const char *const test_names[] = {"Bidir Put", "Bidir Get", "Bidir Put Packets"};
enum { TESTS = 3 };

/* ---- the command line ------------------------------------------------------------------------ */

static struct {
    struct options base; /* for nproc */
    uint64_t sizes[MOST_SIZES];
    int count; /* of sizes; 0: the default sizes */
    int iterations, blocks, threads, pieces, best;
    const char *get;
} asked = {.pieces = 4, .get = "auto"};

/* Takes argv[i] and, for most options, the next argument. Returns how many; 0: invalid, with a
 * message. */
static int take_option(char **argv, int i, int argc)
{
    const struct {
        const char *name;
        int *value;
        int most;
    } numbers[] = {{"--nproc", &asked.base.nproc, RANKS},
                   {"--iterations", &asked.iterations, 100000},
                   {"--blocks", &asked.blocks, MOST_BLOCKS},
                   {"--threads", &asked.threads, MOST_THREADS},
                   {"--pieces", &asked.pieces, 12}};

    int is_number = 0;

    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
        if (strcmp(argv[i], numbers[n].name) != 0)
            continue;
        is_number = 1;
        if (i + 1 == argc)
            break;
        *numbers[n].value = (int)common_number(program, argv[i], argv[i + 1], 1, numbers[n].most);
        return *numbers[n].value > 0 ? 2 : 0;
    }
    if (strcmp(argv[i], "--get") == 0 && i + 1 < argc) {
        asked.get = argv[i + 1];
        if (strcmp(asked.get, "auto") == 0 || strcmp(asked.get, "threads") == 0 ||
            strcmp(asked.get, "bulk") == 0)
            return 2;
        fprintf(stderr, "%s: --get is \"%s\": give threads, bulk or auto\n", program, asked.get);
        return 0;
    }
    if (strcmp(argv[i], "--best") == 0)
        return asked.best = 1;
    if (i + 1 == argc && (strcmp(argv[i], "--get") == 0 || is_number))
        common_no_value(program, argv[i]);
    else
        common_unknown(program, argv[i]);
    return 0;
}

/* -1: continue; else the program's exit status. */
static int parse(int argc, char **argv)
{
    for (int i = 1; i < argc;) {
        int taken = 1;

        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("%s", usage);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0)
            return common_version(program);
        if (argv[i][0] == '-' || asked.count == MOST_SIZES) {
            taken = take_option(argv, i, argc);
        } else {
            const int64_t bytes = common_number(program, "BYTES", argv[i], 1, INT64_C(1) << 32);

            asked.sizes[asked.count++] = (uint64_t)bytes;
            taken = bytes % 8 == 0;
            if (!taken && bytes > 0)
                fprintf(stderr, "%s: BYTES is \"%s\": give a multiple of 8\n", program, argv[i]);
        }
        if (taken == 0)
            return 2;
        i += taken;
    }
    if (asked.base.nproc == 1) {
        fprintf(stderr, "%s: --nproc is \"1\": it takes two\n", program);
        return 2;
    }
    return -1;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct job {
    struct launch launch;
    symwin_driver_info driver;
    symwin_unique_id id;
};

struct rank {
    const struct job *job;
    int rank, device;
    struct gpu gpu;
    symwin_comm *comm;
    symwin_channel_end *end;
    void *memory, *word;  /* device memory; the word is for meet() */
    unsigned char *bytes; /* host memory, for a copy of the data */
    uint64_t most;        /* the largest size */
    struct copy_args args;
    int failed;
};

/* Prints the reason, and aborts the other rank too. */
static int fail(struct rank *self, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s: GPU %d: %s\n", program, self->device, text);
    if (self->comm != NULL)
        symwin_comm_abort(self->comm);
    self->failed = 1;
    return 0;
}

static int ok(struct rank *self, symwin_status status)
{
    return status == SYMWIN_OK ||
           fail(self, "%s: %s", symwin_status_name(status), symwin_last_error());
}

static int right(struct rank *self, const char *wrong)
{
    return wrong == NULL || fail(self, "%s", wrong);
}

/* Gives both ranks the greater of their values. Both ranks' streams pass this point at about the
 * same time; the host waits only if `value` is not NULL. */
static int meet(struct rank *self, double *value)
{
    struct CUstream_st *stream = self->gpu.stream;

    if (value != NULL &&
        !ok(self, symwin_memcpy(self->device, self->word, value, sizeof *value, stream)))
        return 0;
    if (!ok(self, symwin_allreduce(self->comm, self->word, self->word, 1, SYMWIN_F64, SYMWIN_MAX,
                                   stream)))
        return 0;
    if (value == NULL)
        return 1;
    return ok(self, symwin_memcpy(self->device, value, self->word, sizeof *value, stream)) &&
           ok(self, symwin_stream_synchronize(self->device, stream)) &&
           ok(self, symwin_comm_check(self->comm));
}

/* Byte `i` of a rank's input. It differs between the single launch and the timed ones (`again`), so
 * data left from an earlier launch cannot pass for a result. */
static unsigned char given(int rank, int again, uint64_t bytes, uint64_t i)
{
    return (unsigned char)(i * 131 + (i >> 8) * 17 + (i >> 16) * 29 + (uint64_t)rank * 97 +
                           (uint64_t)again * 151 + bytes / 8);
}

/* Also fills the destination with wrong values. */
static int fill(struct rank *self, int again, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        self->bytes[i] = given(self->rank, again, bytes, i);
    return ok(self,
              symwin_memcpy(self->device, self->memory, self->bytes, bytes, self->gpu.stream)) &&
           right(self, gpu_clear(&self->gpu, (char *)self->memory + self->args.to, 0xee, bytes)) &&
           ok(self, symwin_stream_synchronize(self->device, self->gpu.stream));
}

static int verify(struct rank *self, const char *test, int again, uint64_t bytes)
{
    const int peer = 1 - self->rank;
    uint32_t gave_up = 0;

    if (!ok(self, symwin_memcpy(self->device, self->bytes, (char *)self->memory + self->args.to,
                                bytes, self->gpu.stream)) ||
        !ok(self, symwin_memcpy(self->device, &gave_up, (char *)self->memory + self->args.gave_up,
                                sizeof gave_up, self->gpu.stream)) ||
        !ok(self, symwin_stream_synchronize(self->device, self->gpu.stream)) ||
        !ok(self, symwin_comm_check(self->comm)))
        return 0;
    if (gave_up)
        return fail(self, "[%s] a kernel waited for the other rank's in vain", test);
    for (uint64_t i = 0; i < bytes; i++)
        if (self->bytes[i] != given(peer, again, bytes, i))
            return fail(self, "[%s] bytes %llu: byte %llu is 0x%02x, must be 0x%02x", test,
                        (unsigned long long)bytes, (unsigned long long)i, self->bytes[i],
                        given(peer, again, bytes, i));
    return 1;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static enum kernel kernel_of(const struct rank *self, int test, uint64_t bytes)
{
    const int bulk = asked.get[0] == 'b' || (asked.get[0] == 'a' && bytes >= 16 << 20);

    if (test == 0)
        return PUT;
    if (test == 2)
        return PUT_PACKETS;
    return bulk && self->gpu.bulk ? GET_BULK : GET;
}

static int at_most(uint64_t value, int most)
{
    return value < (uint64_t)most ? (int)value : most;
}

/* Enough threads that each has a few vectors of 16 bytes, or packets, and at most one block per
 * multiprocessor. GET has smaller blocks on more multiprocessors, because reads have to wait (1 MiB
 * on two H200s: 6.4 us with 64 blocks of 128 threads, 7.2 us with 256). */
static struct grid grid_of(const struct rank *self, enum kernel kernel, uint64_t bytes)
{
    const int emulated = strcmp(self->job->driver.name, "emu") == 0;
    const uint64_t units = kernel == PUT_PACKETS ? bytes / 8 : (bytes + 15) / 16;
    const uint64_t each = kernel == PUT_PACKETS ? 4 : 8; /* loads and stores in flight per thread */
    const int usual = kernel == GET ? 128 : 256;
    const int most = emulated ? 2 : at_most((uint64_t)self->gpu.multiprocessors, MOST_BLOCKS);
    struct grid grid = {1, 64};

    while (!emulated && grid.threads < (units > 1 << 18 ? MOST_THREADS : usual) &&
           (uint64_t)grid.threads < units)
        grid.threads *= 2;
    if (kernel == GET_BULK)
        grid.threads = 64; /* one thread does all the work */
    grid.blocks = at_most(
        (units + each * (uint64_t)grid.threads - 1) / (each * (uint64_t)grid.threads), most);
    if (asked.blocks > 0)
        grid.blocks = asked.blocks;
    if (asked.threads > 0)
        grid.threads = asked.threads;
    return grid;
}

static int iterations_of(const struct rank *self, uint64_t bytes)
{
    if (asked.iterations > 0)
        return asked.iterations;
    if (strcmp(self->job->driver.name, "emu") == 0)
        return 3;
    return bytes > 16 << 20 ? 10 : 100;
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of several replays, in milliseconds per launch, of the slower rank. Timing starts when
 * both ranks are ready. */
static int measure(struct rank *self, enum kernel kernel, struct grid grid, uint64_t bytes,
                   double *ms)
{
    const int iterations = iterations_of(self, bytes);
    double times[REPLAYS], ready = 0;

    if (!right(self, gpu_record(&self->gpu, kernel, grid, &self->args, iterations)) ||
        !meet(self, &ready)) /* both have recorded, so neither kernel waits in vain */
        return 0;
    for (int i = -1; i < REPLAYS; i++) {
        double elapsed = 0;

        if (!meet(self, NULL) || !right(self, gpu_replay(&self->gpu)) ||
            !right(self, gpu_elapsed(&self->gpu, &elapsed)))
            return 0;
        elapsed /= iterations;
        if (!meet(self, &elapsed))
            return 0;
        if (i >= 0) /* the first replay is a warm-up */
            times[i] = elapsed;
    }
    qsort(times, REPLAYS, sizeof times[0], compare_times);
    *ms = times[REPLAYS / 2];
    return 1;
}

/* Searches for the fastest of many grids. */
static int search(struct rank *self, enum kernel kernel, uint64_t bytes, struct grid *best,
                  double *ms)
{
    static const int blocks[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 132};
    static const int threads[] = {64, 128, 256, 512, 1024};
    const uint64_t units = kernel == PUT_PACKETS ? bytes / 8 : bytes / 16;

    *ms = 0;
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            const struct grid grid = {blocks[b], threads[t]};
            double one = 0;

            if (blocks[b] > self->gpu.multiprocessors || (kernel == GET_BULK && t > 0) ||
                (uint64_t)blocks[b] * (uint64_t)threads[t] > 2 * units + 128)
                continue;
            if (!measure(self, kernel, grid, bytes, &one))
                return 0;
            if (*ms == 0 || one < *ms) {
                *ms = one;
                *best = grid;
            }
        }
    return 1;
}

/* Both ranks must have finished with the old data before filling, and have filled before they
 * begin. */
static int begin(struct rank *self, int again, uint64_t bytes)
{
    double nothing = 0;

    return meet(self, &nothing) && fill(self, again, bytes) && meet(self, &nothing);
}

/* First a single launch: if it waits in vain, the timed ones would, too. */
static int run_test(struct rank *self, int test, uint64_t bytes)
{
    const enum kernel kernel = kernel_of(self, test, bytes);
    struct grid grid = grid_of(self, kernel, bytes);
    double ms = 0;

    self->args.bytes = bytes;
    if (!right(self, gpu_record(&self->gpu, kernel, grid, &self->args, 1)) ||
        !begin(self, 0, bytes) || !right(self, gpu_replay(&self->gpu)) ||
        !verify(self, test_names[test], 0, bytes) || !begin(self, 1, bytes))
        return 0;
    if (asked.best ? !search(self, kernel, bytes, &grid, &ms)
                   : !measure(self, kernel, grid, bytes, &ms))
        return 0;
    if (!verify(self, test_names[test], 1, bytes))
        return 0;
    if (self->rank != 0)
        return 1;
    printf("GPU %d: [%s] bytes %llu, elapsed %g ms/iter, BW %g GB/s", self->device,
           test_names[test], (unsigned long long)bytes, ms, (double)bytes / ms * 1e-6);
    if (asked.best)
        printf(", best of all grids: %d blocks of %d threads", grid.blocks, grid.threads);
    printf("\n");
    return 1;
}

/* ---- start to end ---------------------------------------------------------------------------- */

/* This rank's memory: input, output, space for packets, and the kernels' words. Only the rank at
 * the other end of the channel needs to know it. */
static int allocate(struct rank *self)
{
    const uint64_t most = self->most, words = 8 * MOST_BLOCKS + 8;
    const uint64_t total = 2 * most + 4 * most + words;

    self->args.from = 0;
    self->args.to = most;
    self->args.packets = 2 * most;
    self->args.calls = 6 * most;
    self->args.gave_up = 6 * most + 8 * MOST_BLOCKS;
    self->bytes = malloc(most);
    if (self->bytes == NULL)
        return fail(self, "no host memory for %llu bytes", (unsigned long long)most);
    return ok(self, symwin_mem_alloc(self->device, total, 0, &self->memory)) &&
           ok(self, symwin_mem_alloc(self->device, sizeof(double), 0, &self->word)) &&
           right(self, gpu_clear(&self->gpu, self->memory, 0, total)) &&
           ok(self, symwin_stream_synchronize(self->device, self->gpu.stream));
}

/* The other rank creates its end likewise. Afterwards args has what the kernels need, passed by
 * value. */
static int make_channel(struct rank *self)
{
    const symwin_channel_options options = {.size = sizeof options, .lanes = MOST_BLOCKS};
    const uint64_t total = 6 * self->most + 8 * MOST_BLOCKS + 8;

    return ok(self, symwin_channel_create(self->comm, 1 - self->rank, self->memory, total, &options,
                                          &self->end)) &&
           ok(self, symwin_channel_connect(self->comm, self->end, &self->args.channel)) &&
           ok(self, symwin_channel_limit(self->comm, &self->args.limit));
}

static int run_tests(struct rank *self)
{
    for (int test = 0; test < TESTS; test++)
        for (int i = 0; i < asked.count; i++)
            if (!run_test(self, test, asked.sizes[i]))
                return 0;
    return 1;
}

static void clean_up(struct rank *self)
{
    if (self->gpu.stream != NULL)
        symwin_stream_synchronize(self->device, self->gpu.stream);
    if (self->end != NULL)
        symwin_channel_destroy(self->comm, self->end);
    symwin_comm_destroy(self->comm);
    gpu_close(&self->gpu);
    symwin_mem_free(self->memory);
    symwin_mem_free(self->word);
    free(self->bytes);
}

static void *run_rank(void *argument)
{
    struct rank *self = argument;
    const symwin_comm_options options = {.size = sizeof options, .kernel_timeout_ms = 60000};
    double nothing = 0;

    if (!right(self, gpu_open(&self->gpu, self->device))) {
        gpu_close(&self->gpu);
        return NULL;
    }
    /* A kernel that waits for the other rank's occupies multiprocessors: on a shared GPU there must
     * be enough for both. */
    if (self->job->driver.device_count < self->job->launch.count)
        self->gpu.multiprocessors /= RANKS;
    self->args.pieces = asked.pieces > 1 ? (uint32_t)asked.pieces : 2;
    self->args.piece_bytes = 16384;
    while (self->args.pieces * (self->args.piece_bytes + 8) > self->gpu.shared_bytes)
        self->args.piece_bytes /= 2;
    printf("GPU %d: Preparing for bidirectional copy tests ...\n", self->device);
    if (ok(self, symwin_comm_create(&self->job->id, RANKS, self->rank, self->device, &options,
                                    &self->comm)) &&
        allocate(self) && make_channel(self) && run_tests(self) && meet(self, &nothing) &&
        self->rank == 0)
        printf("Succeed!\n"); /* both ranks did */
    clean_up(self);
    return NULL;
}

/* Starts this process's ranks and waits for them. Returns whether all succeeded. */
static int run(const struct job *job)
{
    struct rank ranks[RANKS];
    int failed = 0;

    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < job->launch.count; i++) {
        ranks[i].job = job;
        ranks[i].rank = job->launch.first + i;
        ranks[i].device = (job->launch.local_first + i) % job->driver.device_count;
        for (int s = 0; s < asked.count; s++)
            if (asked.sizes[s] > ranks[i].most)
                ranks[i].most = (asked.sizes[s] + 127) / 128 * 128;
    }
    common_threads(program, ranks, job->launch.count, sizeof ranks[0], run_rank);
    for (int i = 0; i < job->launch.count; i++)
        failed |= ranks[i].failed;
    return !failed;
}

/* Determines the driver, default sizes, ranks and id. NULL, or an error text. */
static const char *start(struct job *job)
{
    static const uint64_t real[] = {1 << 10, 1 << 20, 128 << 20};
    static const uint64_t emulated[] = {1 << 10, 64 << 10, 1 << 20};

    if (symwin_driver_query(&job->driver) != SYMWIN_OK)
        return symwin_last_error();
    if (asked.count == 0) {
        asked.count = 3;
        memcpy(asked.sizes, strcmp(job->driver.name, "emu") == 0 ? emulated : real, sizeof real);
    }
    if (job->launch.count == 0)
        job->launch.nranks = job->launch.count = RANKS;
    if (job->launch.nranks != RANKS)
        return "it takes two ranks: two processes, or one of two threads";
    if (launch_id(&job->launch, &job->id) != SYMWIN_OK)
        return symwin_last_error();
    return gpu_start();
}

static int run_program(void)
{
    struct job job = {.launch = {.nranks = 0}};
    const int exit_status = launch_begin(&asked.base, &job.launch);
    const char *wrong;
    int good;

    if (exit_status >= 0)
        return exit_status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* keeps the order of stdout and stderr */
    wrong = start(&job);
    if (wrong != NULL)
        fprintf(stderr, "%s: %s\n", program, wrong);
    good = wrong == NULL && run(&job);
    return launch_end(&job.launch, good);
}

int main(int argc, char **argv)
{
    int exit_status;

    common_begin();
    exit_status = parse(argc, argv);
    if (exit_status < 0)
        exit_status = run_program();
    return common_end(program, exit_status);
}
