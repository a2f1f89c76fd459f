/* The command line of symwin-perf: the letters of nccl-tests, and words for the rest. */
#include "options.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common.h"
#include "symwin.h"

static const char usage[] =
    "usage: symwin-perf [OPTION...]\n"
    "\n"
    "Times collectives and checks their results. In a repetition, a gate opens when all ranks\n"
    "have queued their work, an all-reduce aligns the GPUs, and a number of calls run between two\n"
    "events. Its time is that of the slowest rank. The median of the repetitions is printed, for\n"
    "one call.\n"
    "\n"
    "  -b SIZE        first size in bytes; suffixes K, M, G, T (powers of 1024)     1K\n"
    "  -e SIZE        last size                                  256M; emulated driver 64K\n"
    "  -f N           multiply the size by N each time                                4\n"
    "  -i SIZE        add SIZE each time, instead of -f\n"
    "  -t N, -g N     threads of a process, ranks of a thread, as in nccl-tests; here each of the\n"
    "                 -t times -g ranks has its own thread             one for each device\n"
    "  --nproc N      fork N processes, each with -t times -g ranks (1). Under mpirun, torchrun\n"
    "                 or srun, the launcher's processes are used instead\n"
    "  -n N           calls in a repetition      50 up to 16 MiB, 20 above; emulated driver 2\n"
    "                 (fewer for stream launches of `copies`: a stream holds 1,000 operations)\n"
    "  -w N           warm-up calls                                   5; emulated driver 1\n"
    "  -G N           repetitions, each a replay of a CUDA graph of the calls; 0: stream launches\n"
    "                                                                 9; emulated driver 2\n"
    "  --rounds N     repetitions of stream launches                  9; emulated driver 2\n"
    "  --percentiles N\n"
    "                 take p50, p99 and max from N calls, each alone between two events; 0: from\n"
    "                 the repetitions, each the mean of its calls                     0\n"
    "  --collective LIST\n"
    "                 collectives, or all: each has its own table; sizes are those of its larger\n"
    "                 buffer. sendrecv: each rank sends to the next one and receives from the one\n"
    "                 before, in a group. alltoallv, allgatherv, reduce_scatterv: unequal parts;\n"
    "                 with _device, of counts in device memory                allreduce\n"
    "  -r N           root of broadcast, gather, scatter and reduce                  0\n"
    "  -d LIST        types, or all                                                 f32\n"
    "  -o LIST        operations, or all                                            sum\n"
    "  --algo LIST    algorithms; all: every one that supports the call; none        auto\n"
    "                 Those of multicast (_mc) must be named, and are refused on GPUs\n"
    "  --blocks N     maximum number of blocks                        the library's choice\n"
    "  --threads N    threads in a block                              the library's choice\n"
    "  --sm-limit N   maximum number of blocks of any kernel, also of NCCL's (NCCL_MAX_CTAS)\n"
    "  --window 0|1   buffers in windows, or in plain device memory                   1\n"
    "  --in-place 0|1|both                                                            0\n"
    "  --rotate N     pairs of buffers that consecutive calls take in turn            1\n"
    "  --group N      calls between symwin_group_begin() and symwin_group_end(), of NCCL\n"
    "                 between ncclGroupStart() and ncclGroupEnd(); the time is still that of one\n"
    "                 call. N or a multiple for --rotate: calls that write to the same buffers\n"
    "                 wait for each other                                            1\n"
    "  -c 0|1         check the results                                               1\n"
    "  --host-data    make and compare data on the host, not by kernels (without nvcc: always).\n"
    "                 In place, each repetition except the last then starts with the results of\n"
    "                 the one before\n"
    "  --seed N       seed of the random data                                         1\n";

static const char usage_more[] =
    "  --against LIST rivals, timed too; the ratio of their time to ours is printed:\n"
    "                   nccl                  memory of ncclMemAlloc\n"
    "                   nccl-reg              the same, registered by ncclCommRegister\n"
    "                   nccl-window           the same, as symmetric windows\n"
    "                   nccl-reg-symwin, nccl-window-symwin     both on memory of symwin's pool\n"
    "                   nccl-plain            memory of cuMemAlloc\n"
    "                   torch                 PyTorch's symmetric memory, at the end, by torchrun\n"
    "                                         (bench/rivals/torch_symm.py): f32 and bf16 sums\n"
    "                                         of multiples of 16 bytes\n"
    "                 SYMWIN_NCCL is the path of libnccl.so.2, SYMWIN_TORCHRUN that of torchrun.\n"
    "                 Multicast stays off: NCCL_NVLS_ENABLE must be 0 or unset, and\n"
    "                 TORCH_SYMM_MEM_DISABLE_MULTICAST 1 or unset\n"
    "  --tune FILE    time every algorithm with many grids, and write the best as a table for\n"
    "                 SYMWIN_TUNING (docs/tuning.md). Default: 8 B to 1 GiB, or to what memory\n"
    "                 holds, by factor 2; bf16, f32 and i32. One type for each width and kind\n"
    "  --link         also measure the links at the last size: from each GPU to the next, by\n"
    "                 copy engine and by a kernel's stores; with several peers, also to all by\n"
    "                 stores\n"
    "  --kernel FILE[:NAME]\n"
    "                 your own kernel of any collective (docs/your-own-kernel.md). FILE.cu is\n"
    "                 compiled by nvcc and for the emulated driver; FILE.cubin, FILE.fatbin are\n"
    "                 for GPUs, FILE.so is for the emulated driver. It is checked on the\n"
    "                 emulated driver and then on GPUs, in its own processes, so it may crash.\n"
    "                 Then it is timed with all algorithms, and NCCL if that is found, and the\n"
    "                 table is drawn. May be given up to 8 times\n"
    "  --compile WORDS\n"
    "                 options for the kernel's compilers: -I, -D\n"
    "  --picture FILE the table as SVG                          NAME.svg of the first kernel\n"
    "  --race         look for missing synchronisation, instead of checking and timing: delay\n"
    "                 ranks, blocks and warps, change the order and size of calls, replay\n"
    "                 graphs. On the emulated driver under ThreadSanitizer, then on GPUs. Without\n"
    "                 --kernel, the library's algorithms are tested. --seed is that of the first\n"
    "                 burst\n"
    "  --seconds N    duration of --race on each driver                               30\n"
    "  --graph-launch with -G 0 or --race: launch each call as a graph of one kernel\n"
    "                 (SYMWIN_COMM_GRAPH_LAUNCH)\n"
    "  --launch       also time an empty kernel with as many arguments as the library's, the\n"
    "                 lower limit of a call; one that may begin early, as the library's may; and\n"
    "                 one with the arguments of unequal parts\n"
    "  --csv FILE, --json FILE   write all results, and the machine\n"
    "  --timeout N    seconds after which a step fails                                60\n"
    "  --progress     print on stderr what is being timed; the default on a terminal\n"
    "\n"
    "  SYMWIN_DRIVER=auto|cuda|emu     the driver; auto: CUDA if there is a GPU\n"
    "  SYMWIN_PERF_BREAK=1|hang|idle   for tests. 1: spoil rank 0's result before the "
    "check; hang:\n"
    "                                  never open its start gate; idle: make no call in the last\n"
    "                                  repetition\n"
    "\n"
    "Exit status: 0; 1 for wrong results and failures; 2 for an invalid command line.\n";

#define TYPE_NAME(name, value, text, bytes) #text,
#define NAME(name, value, text) #text,
const char *const options_types[] = {SYMWIN_TYPE_LIST(TYPE_NAME) NULL};
const char *const options_ops[] = {SYMWIN_OP_LIST(NAME) NULL};
static const char *const algos[] = {SYMWIN_ALGO_LIST(NAME) NULL};
static const char *const collectives[] = {SYMWIN_COLLECTIVE_LIST(NAME) "sendrecv",
                                          "alltoallv_device", "allgatherv_device",
                                          "reduce_scatterv_device", NULL};
static const char *const places[] = {"0", "1", "both", NULL};
static const char *const rivals[] = {"nccl",     "nccl-window",     "nccl-plain",         "torch",
                                     "nccl-reg", "nccl-reg-symwin", "nccl-window-symwin", NULL};

static void print_names(FILE *to, const char *what, const char *const *names)
{
    fprintf(to, "  %-14s ", what);
    for (int i = 0; names[i] != NULL; i++)
        fprintf(to, "%s%s", names[i], names[i + 1] == NULL ? "\n" : ", ");
}

static void print_usage(FILE *to)
{
    fputs(usage, to);
    fputs(usage_more, to);
    fputs("\n", to);
    print_names(to, "types", options_types);
    print_names(to, "operations", options_ops);
    print_names(to, "algorithms", algos);
    print_names(to, "collectives", collectives);
}

/* ---- values ---- */

/* Parses a number of least .. most with an optional suffix K, M, G or T. -1: it is not valid, and a
 * message has been printed. */
static int64_t number(const char *option, const char *text, int64_t least, int64_t most)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    char *end = NULL;
    int64_t value = -1;
    int shift = 0;

    errno = 0;
    if (text[0] >= '0' && text[0] <= '9') {
        value = strtoll(text, &end, 10);
        if (*end != '\0' && (suffix = strchr(suffixes, *end)) != NULL) {
            shift = 10 * (int)(suffix - suffixes + 1);
            end++;
        }
        if (*end != '\0' || errno != 0 || value > most >> shift || value << shift < least)
            value = -1;
    }
    if (value < 0) {
        fprintf(
            stderr,
            "symwin-perf: %s is \"%s\": give a number from %lld to %lld; suffixes are K, M, G, T\n",
            option, text, (long long)least, (long long)most);
        return -1;
    }
    return value << shift;
}

int options_find(const char *const *names, const char *name, size_t length)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return i;
    return -1;
}

/* Parses names separated by commas to bits; "all" sets every bit. 0: a name is unknown, and a
 * message has been printed. */
static unsigned list(const char *option, const char *const *names, const char *text,
                     unsigned char order[PERF_MOST_NAMES])
{
    unsigned bits = 0;
    int count = 0;

    if (order != NULL)
        order[0] = 0;
    if (strcmp(text, "all") == 0) {
        for (int i = 0; names[i] != NULL; i++)
            bits |= 1u << i;
        return bits;
    }
    for (;;) {
        const size_t length = strcspn(text, ",");
        const int i = options_find(names, text, length);

        if (i < 0) {
            char list[512] = ""; /* in one write: other processes of a launcher say it too */

            for (int k = 0; names[k] != NULL; k++)
                snprintf(list + strlen(list), sizeof list - strlen(list), " %s", names[k]);
            fprintf(stderr, "symwin-perf: %s: unknown name \"%.*s\"; names are%s, or all\n", option,
                    (int)length, text, list);
            return 0;
        }
        if (order != NULL && (bits & 1u << i) == 0) {
            order[count++] = (unsigned char)(i + 1);
            order[count] = 0;
        }
        bits |= 1u << i;
        if (text[length] == '\0')
            return bits;
        text += length + 1;
    }
}

/* ---- the table of options ---- */

enum kind { SIZE, COUNT, TYPES, OPS, ALGOS, COLLECTIVES, RIVALS, PLACE, KERNEL, TEXT, NAMED, FLAG };

static const struct {
    const char *name;
    enum kind kind;
    size_t member; /* offset in struct perf_options */
    int64_t least, most;
} table[] = {
#define MEMBER(name) offsetof(struct perf_options, name)
    {"-b", SIZE, MEMBER(begin), 1, INT64_C(1) << 40},
    {"-e", SIZE, MEMBER(end), 1, INT64_C(1) << 40},
    {"-i", SIZE, MEMBER(step), 1, INT64_C(1) << 40},
    {"-f", COUNT, MEMBER(factor), 2, 1024},
    {"-t", COUNT, MEMBER(threads), 1, PERF_MOST_RANKS},
    {"-g", COUNT, MEMBER(per_thread), 1, PERF_MOST_RANKS},
    {"--nproc", COUNT, MEMBER(nproc), 1, PERF_MOST_RANKS},
    {"-n", COUNT, MEMBER(calls), 1, PERF_MOST_CALLS},
    {"-w", COUNT, MEMBER(warmup), 0, PERF_MOST_CALLS},
    {"-G", COUNT, MEMBER(replays), 0, PERF_MOST_REPETITIONS},
    {"--rounds", COUNT, MEMBER(rounds), 1, PERF_MOST_REPETITIONS},
    {"--percentiles", COUNT, MEMBER(percentiles), 0, PERF_MOST_REPETITIONS},
    {"-c", COUNT, MEMBER(check), 0, 1},
    {"--collective", COLLECTIVES, MEMBER(collectives), 0, 0},
    {"-r", COUNT, MEMBER(root), 0, PERF_MOST_RANKS - 1},
    {"-d", TYPES, MEMBER(types), 0, 0},
    {"-o", OPS, MEMBER(ops), 0, 0},
    {"--algo", ALGOS, MEMBER(algos), 0, 0},
    {"--blocks", COUNT, MEMBER(blocks), 1, 65536},
    {"--threads", COUNT, MEMBER(block_threads), 1, 1024},
    {"--sm-limit", COUNT, MEMBER(sm_limit), 1, 65536},
    {"--window", COUNT, MEMBER(window), 0, 1},
    {"--in-place", PLACE, MEMBER(placements), 0, 0},
    {"--rotate", COUNT, MEMBER(rotate), 1, PERF_MOST_ROTATE},
    {"--group", COUNT, MEMBER(group), 1, PERF_MOST_ROTATE},
    {"--host-data", FLAG, MEMBER(host_data), 0, 0},
    {"--seed", COUNT, MEMBER(seed), 0, INT32_MAX},
    {"--against", RIVALS, MEMBER(rivals), 0, 0},
    {"--kernel", KERNEL, 0, 0, 0},
    {"--compile", TEXT, MEMBER(compile), 0, 0},
    {"--picture", NAMED, MEMBER(picture), 0, 0},
    {"--race", FLAG, MEMBER(race), 0, 0},
    {"--seconds", COUNT, MEMBER(seconds), 1, 86400},
    {"--link", FLAG, MEMBER(link), 0, 0},
    {"--graph-launch", FLAG, MEMBER(graph_launch), 0, 0},
    {"--launch", FLAG, MEMBER(launch), 0, 0},
    {"--tune", NAMED, MEMBER(tune), 0, 0},
    {"--csv", NAMED, MEMBER(csv), 0, 0},
    {"--json", NAMED, MEMBER(json), 0, 0},
    {"--timeout", COUNT, MEMBER(timeout_s), 1, 86400},
    {"--progress", FLAG, MEMBER(progress), 0, 0},
#undef MEMBER
};

enum { OPTIONS = sizeof table / sizeof table[0] };

static int option_index(const char *word)
{
    for (int i = 0; i < OPTIONS; i++) {
        const size_t length = strlen(table[i].name);

        if (strncmp(word, table[i].name, length) == 0 &&
            (word[length] == '\0' || (word[1] == '-' && word[length] == '=')))
            return i;
    }
    return -1;
}

static int set_algos(struct perf_options *options, const char *value)
{
    options->all_algos = strcmp(value, "all") == 0;
    options->algos_given = 1;
    options->algos = 0;
    if (strcmp(value, "none") == 0)
        return 1;
    options->algos = list("--algo", algos, value, NULL);
    return options->algos != 0;
}

static int set_collectives(struct perf_options *options, const char *value)
{
    options->collectives = list("--collective", collectives, value, options->collective_order);
    options->collectives_given = 1;
    return options->collectives != 0;
}

/* The index of the value in the list; -1: not there, and a message has been printed. */
static int one_of(const char *option, const char *const *names, const char *value)
{
    const int i = options_find(names, value, strlen(value));

    if (i < 0) {
        fprintf(stderr, "symwin-perf: %s is \"%s\": give one of", option, value);
        for (int k = 0; names[k] != NULL; k++)
            fprintf(stderr, " %s", names[k]);
        fprintf(stderr, "\n");
    }
    return i;
}

static int add_kernel(struct perf_options *options, const char *value)
{
    if (options->kernel_count == PERF_MOST_KERNELS) {
        fprintf(stderr, "symwin-perf: --kernel: at most %d kernels\n", PERF_MOST_KERNELS);
        return 0;
    }
    options->kernels[options->kernel_count++] = value;
    return 1;
}

/* Returns whether the value is valid. */
static int set(struct perf_options *options, int i, const char *value)
{
    void *member = (char *)options + table[i].member;
    int64_t parsed = 0;

    switch (table[i].kind) {
    case SIZE:
    case COUNT:
        parsed = number(table[i].name, value, table[i].least, table[i].most);
        if (parsed >= 0 && table[i].kind == SIZE)
            *(size_t *)member = (size_t)parsed;
        else if (parsed >= 0)
            *(int *)member = (int)parsed;
        return parsed >= 0;
    case TYPES:
        return (*(unsigned *)member = list("-d", options_types, value, options->type_order)) != 0;
    case OPS:
        return (*(unsigned *)member = list("-o", options_ops, value, options->op_order)) != 0;
    case RIVALS:
        options->rivals_given = 1;
        return (*(unsigned *)member = list("--against", rivals, value, NULL)) != 0;
    case ALGOS:
        return set_algos(options, value);
    case COLLECTIVES:
        return set_collectives(options, value);
    case PLACE: /* the words are in the order of the bits */
        options->placements = (unsigned)one_of(table[i].name, places, value) + 1;
        return options->placements > 0;
    case KERNEL:
        return add_kernel(options, value);
    case NAMED:
        if (value[0] == '\0') {
            fprintf(stderr, "symwin-perf: %s is \"\": give a file name\n", table[i].name);
            return 0;
        }
        /* fall through */
    case TEXT:
        *(const char **)member = value;
        return 1;
    case FLAG:
        *(int *)member = 1;
        return 1;
    }
    return 0;
}

static void remember(struct perf_options *options, int argc, char **argv)
{
    size_t used = 0;

    for (int i = 1; i < argc; i++) {
        const int n = snprintf(options->arguments + used, sizeof options->arguments - used, "%s%s",
                               i > 1 ? " " : "", argv[i]);

        if (n < 0 || used + (size_t)n >= sizeof options->arguments)
            return;
        used += (size_t)n;
    }
}

int options_parse(int argc, char **argv, struct perf_options *options)
{
    *options = (struct perf_options){
        .warmup = -1,
        .replays = -1,
        .check = 1,
        .ops = 1u << SYMWIN_SUM,
        .algos = 1u << SYMWIN_ALGO_AUTO,
        .collectives = 1u << SYMWIN_ALLREDUCE,
        .window = 1,
        .placements = PERF_OUT_OF_PLACE,
        .root = -1,
        .rotate = 1,
        .group = 1,
        .timeout_s = 60,
        .seed = 1,
    };
    remember(options, argc, argv);
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        int which;

        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_usage(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("symwin-perf (symwin) %s\n", SYMWIN_VERSION);
            return 0;
        }
        if (options_foreign(argv[i]))
            return 2;
        which = option_index(options_own_name(argv[i]));
        if (which < 0) {
            return common_unknown("symwin-perf", argv[i]);
        }
        if (argv[i][1] == '-' && strchr(argv[i], '=') != NULL)
            value = strchr(argv[i], '=') + 1;
        else if (table[which].kind != FLAG && i + 1 < argc)
            value = argv[++i];
        if ((table[which].kind == FLAG) != (value == NULL)) {
            if (value == NULL)
                return common_no_value("symwin-perf", table[which].name);
            fprintf(stderr, "symwin-perf: %s takes no value\n", table[which].name);
            return 2;
        }
        if (!set(options, which, value))
            return 2;
    }
    options->progress |= isatty(STDERR_FILENO);
    return -1;
}

/* ---- after parsing ---- */

/* Refuses the options that --tune decides by itself. */
static const char *check_tune(const struct perf_options *o)
{
    if (o->rivals != 0 || o->link || o->launch || o->csv != NULL || o->json != NULL ||
        o->algos != 1u << SYMWIN_ALGO_AUTO || o->blocks + o->block_threads > 0 ||
        o->placements != PERF_OUT_OF_PLACE || !o->window || o->ops != 1u << SYMWIN_SUM ||
        o->calls > 0 || o->warmup >= 0 || o->replays >= 0 || o->rounds > 0 || o->percentiles > 0 ||
        !o->check)
        return "--tune chooses algorithms and grids itself: run it without --algo --blocks "
               "--threads --window --in-place -o -n -w -G --rounds --percentiles -c 0 --against "
               "--link --launch --csv --json";
    return NULL;
}

/* Checks the options of --kernel and --race, and sets their defaults. */
static const char *check_own(struct perf_options *o)
{
    if (o->kernel_count == 0 && !o->race)
        return o->picture != NULL || o->seconds > 0 || o->compile != NULL
                   ? "--compile, --picture and --seconds need --kernel or --race"
                   : NULL;
    if (o->tune != NULL)
        return "--tune cannot be combined with --kernel or --race";
    if (o->race && (o->picture != NULL || o->csv != NULL || o->json != NULL || o->link ||
                    o->launch || o->rivals != 0 || o->nproc > 0))
        return "--race times nothing: run it without --picture --csv --json --link --launch "
               "--against --nproc";
    if (!o->race && o->seconds > 0)
        return "--seconds needs --race";
    if (!o->algos_given) {
        o->algos = (1u << (sizeof algos / sizeof algos[0] - 1)) - 1;
        o->all_algos = 1;
    }
    return NULL;
}

/* Whether both names are of one regular file, which may not be there yet. */
static int is_one_file(const char *a, const char *b)
{
    const char *names[2] = {a, b}, *last[2];
    struct stat there[2], folders[2];
    int found = 0, known = 1;

    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(names[i], '/');
        char folder[4096] = ".";

        if (slash != NULL)
            snprintf(folder, sizeof folder, "%.*s/", (int)(slash - names[i]), names[i]);
        last[i] = slash != NULL ? slash + 1 : names[i];
        found += stat(names[i], &there[i]) == 0;
        known &= stat(folder, &folders[i]) == 0;
    }
    if (found == 2)
        return S_ISREG(there[0].st_mode) && there[0].st_dev == there[1].st_dev &&
               there[0].st_ino == there[1].st_ino;
    return known && strcmp(last[0], last[1]) == 0 && folders[0].st_dev == folders[1].st_dev &&
           folders[0].st_ino == folders[1].st_ino;
}

int options_can_tune(int collective)
{
    return collective < SW_COLLECTIVES && !sw_collectives[collective].no_data;
}

/* Refuses what none of the collectives can do. */
static const char *check_collectives(const struct perf_options *o)
{
    int reduce = 0, have_root = 0, lack_choice = 0;

    for (int i = 0; i < PERF_COLLECTIVES; i++) {
        const struct sw_collective *is = collective_of((symwin_collective)i);

        if ((o->collectives & 1u << i) == 0)
            continue;
        lack_choice |= !options_can_tune(i);
        if (i == PERF_SENDRECV)
            continue;
        reduce |= is->reduces;
        have_root |= is->root_sends || is->root_receives;
    }
    if (o->collectives_given && o->kernel_count > 0)
        return "--kernel: the kernel says which collective it is (SYMWIN_KERNEL_ABOUT): leave out "
               "--collective";
    if (o->root >= 0 && o->kernel_count > 0)
        return "--kernel: the check has every root, and the table root 0: leave out -r";
    if ((o->collectives & PERF_TORCH_COLLECTIVES) == 0 && (o->rivals & PERF_TORCH) != 0)
        return "--against torch has allreduce, allgather and reduce_scatter only";
    if (!reduce && o->ops != 1u << SYMWIN_SUM)
        return "a --collective that moves data reduces nothing: leave out -o";
    if (!have_root && o->root >= 0)
        return "-r is about collectives with a root: name one by --collective";
    if (lack_choice && o->collective_order[0] != 0 && o->tune != NULL)
        return "--tune: barrier and sendrecv have no choice to measure, and what ends in _device "
               "has the rows of the same call without it: name only others by --collective, or all";
    if (o->placements == PERF_IN_PLACE &&
        (o->collectives & ~(1u << PERF_SENDRECV | 1u << SYMWIN_BARRIER)) == 0)
        return "--in-place: a barrier has no buffers, and a rank of sendrecv needs two: leave it "
               "out";
    return NULL;
}

/* Refuses options that would have no effect. Before defaults are filled in. */
static const char *check_unused(const struct perf_options *o)
{
    if (o->factor > 0 && o->step > 0)
        return "-f and -i are two ways to the next size: give one of them";
    if (o->rounds > 0 && o->replays != 0)
        return "--rounds is about stream launches: give -G 0 too, or the repetitions by -G";
    if (o->graph_launch && o->replays != 0 && !o->race)
        return "--graph-launch is about stream launches: give -G 0 too";
    if (o->csv != NULL && o->json != NULL && is_one_file(o->csv, o->json))
        return "--csv and --json name one file: give two";
    return NULL;
}

int options_multicast(const struct perf_options *options)
{
    const unsigned mc = 1u << SYMWIN_ALGO_ONESHOT_MC | 1u << SYMWIN_ALGO_TWOSHOT_MC;

    return !options->all_algos && (options->algos & mc) != 0;
}

const char *options_complete(struct perf_options *options, int emulated)
{
    if (check_collectives(options) != NULL)
        return check_collectives(options);
    if (check_own(options) != NULL)
        return check_own(options);
    if (options->tune != NULL && check_tune(options) != NULL) /* before defaults are filled in */
        return check_tune(options);
    if (check_unused(options) != NULL)
        return check_unused(options);
    if (options->root < 0)
        options->root = 0;
    if (options->begin == 0)
        options->begin = options->tune != NULL ? 8 : 1024;
    if (options->factor == 0)
        options->factor = options->tune != NULL ? 2 : 4;
    if (options->types == 0)
        options->types = options->tune != NULL
                             ? 1u << SYMWIN_BF16 | 1u << SYMWIN_F32 | 1u << SYMWIN_I32
                             : 1u << SYMWIN_F32;
    if (options->end == 0) {
        options->end = emulated ? 64u << 10 : 256u << 20;
        if (options->end < options->begin)
            options->end = options->begin;
    }
    if (options->end < options->begin)
        return "-e is less than -b: give the first size by -b and the last by -e";
    if (options->warmup < 0)
        options->warmup = emulated ? 1 : 5;
    if (options->replays < 0)
        options->replays = emulated ? 2 : 9;
    if (options->rounds == 0)
        options->rounds = emulated ? 2 : 9;
    if (options->replays == 0 && options->calls > PERF_MOST_STREAM_CALLS)
        return "-n: at most 400 calls without a graph, since they wait in the stream until the "
               "gate opens";
    if (options->algos == 0 && options->rivals == 0 && !options->link && !options->launch &&
        options->kernel_count == 0)
        return "--algo none needs --against, --link, --launch or --kernel";
    if (!emulated && !options->race && options_multicast(options)) /* none is raced on GPUs */
        return "--algo: oneshot_mc and twoshot_mc need multicast, which symwin-perf never uses on "
               "GPUs: leave them out";
    if (options->link && options->end < 16)
        return "--link needs -e of at least 16 bytes: its kernel copies 16 bytes at a time";
    if ((options->rivals & PERF_TORCH) != 0 &&
        ((options->types & PERF_TORCH_TYPES) == 0 || (options->ops & 1u << SYMWIN_SUM) == 0))
        return "--against: torch sums f32 and bf16 only";
    if ((options->rivals & PERF_TORCH) != 0 &&
        (options->percentiles > 0 || options->rotate > 1 || options->sm_limit > 0))
        return "--against: torch cannot be combined with --percentiles --rotate --sm-limit, which "
               "do not apply to it";
    if (options->group > 1 && ((options->rivals & PERF_TORCH) != 0 || options->kernel_count > 0 ||
                               options->link || options->launch))
        return "--group groups calls of symwin and NCCL only: leave out --against torch, --kernel, "
               "--link and --launch";
    return NULL;
}

int options_calls(const struct perf_options *options, size_t bytes, int emulated)
{
    if (options->calls > 0)
        return options->calls;
    if (emulated)
        return 2;
    return bytes <= 16u << 20 ? 50 : 20;
}
