/* The command line. */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* setenv */
#endif
#include "options.h"

#include "../common.h"

static const char usage[] =
    "usage: [NTHREADS=N] %s [--nproc N] [--algo ALGO] [COUNT [TYPE [OP]]]\n"
    "\n"
    "%s and compares every element on every rank\n"
    "with the host's own result. Ranks are threads of this process, or processes: under mpirun, "
    "srun\n"
    "and torchrun, and with --nproc; or NTHREADS threads in each of these.\n"
    "\n"
    "  --nproc N      forks N processes\n"
    "  NTHREADS       ranks of a process; without it one, or one for each device where there is "
    "only\n"
    "                 one process. Rank r of a host uses device r %% devices\n"
    "  SYMWIN_DRIVER  auto, cuda or emu: which driver; auto takes CUDA where there is a GPU\n"
    "  COUNT          elements, 1048576 by default; the suffixes K, M and G are powers of 1024\n";

#define TYPE_NAME(name, value, text, bytes) #text,
#define NAME(name, value, text) #text,
static const char *const types[] = {SYMWIN_TYPE_LIST(TYPE_NAME) NULL};
/* Those that need no scalar come first. */
#define PLAIN(name, value, text) name < SYMWIN_PREMUL_SUM ? #text : NULL,
static const char *const ops[] = {SYMWIN_OP_LIST(PLAIN) NULL};
static const char *const algos[] = {SYMWIN_ALGO_LIST(NAME) NULL};

static void print_names(FILE *to, const char *what, const char *const *names)
{
    fprintf(to, "  %-13s ", what);
    for (int i = 0; names[i] != NULL; i++)
        fprintf(to, "%s%s", names[i], names[i + 1] == NULL ? "\n" : ", ");
}

static void print_usage(FILE *to)
{
    fprintf(to, usage, program, purpose);
    print_names(to, "TYPE", types);
    print_names(to, "OP", ops);
    print_names(to, "ALGO", algos);
}

/* Index of `name` in a list, which is its value in the enumeration; -1: not found, with a
 * message. */
static int find(const char *what, const char *const *names, const char *name)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "%s: no %s \"%s\"; --help names them\n", program, what, name);
    return -1;
}

int options_parse(int argc, char **argv, struct options *options)
{
    struct problem *problem = &options->problem;
    const char *words[3] = {"1M", "f32", "sum"};
    const char *algo = "auto", *nthreads = getenv("NTHREADS");
    int count = 0, type, op, algorithm;
    int64_t elements;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_usage(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0)
            return common_version(program);
        if ((strcmp(argv[i], "--algo") == 0 || strcmp(argv[i], "--nproc") == 0) && i + 1 == argc) {
            return common_no_value(program, argv[i]);
        }
        if (strncmp(argv[i], "--algo=", 7) == 0) {
            algo = argv[i] + 7;
        } else if (strcmp(argv[i], "--algo") == 0) {
            algo = argv[++i];
        } else if (strcmp(argv[i], "--nproc") == 0 || strncmp(argv[i], "--nproc=", 8) == 0) {
            options->nproc = (int)common_number(
                program, "--nproc", argv[i][7] == '=' ? argv[i] + 8 : argv[++i], 1, 1024);
            if (options->nproc < 0)
                return 2;
        } else if (argv[i][0] != '-' && count < 3) {
            words[count++] = argv[i];
        } else {
            return common_unknown(program, argv[i]);
        }
    }
    if (nthreads != NULL)
        options->nthreads = (int)common_number(program, "NTHREADS", nthreads, 1, 1024);
    elements = common_number(program, "COUNT", words[0], 1, INT64_C(1) << 40);
    type = find("TYPE", types, words[1]);
    op = find("OP", ops, words[2]);
    algorithm = find("ALGO", algos, algo);
    if (options->nthreads < 0 || elements < 0 || type < 0 || op < 0 || algorithm < 0)
        return 2;
    problem->count = (uint64_t)elements;
    problem->type = (symwin_type)type;
    problem->op = (symwin_op)op;
    problem->algo = (symwin_algo)algorithm;
    return -1;
}
