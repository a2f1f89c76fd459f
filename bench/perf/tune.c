/* --tune: finds the best algorithm and grid for each size by measuring.
 *
 * For each type and size it tries all algorithms that support the call, with several numbers of
 * threads. For each of these it tries grids from one block per multiprocessor downwards, until
 * fewer blocks are slower. Each trial is one replay of a graph, or the median of three up to 64
 * MiB. The best few are then timed longer, by the median of several replays. Algorithms that work
 * in any memory are timed in plain memory, and serve both tables: that of plain memory and that of
 * windows. Algorithms that need windows are timed in windows, for the second table only.
 *
 * Where parts have unequal lengths, "put" is a one-shot whose parts all go straight into windows,
 * or are loaded from there. While one is timed, the communicator's table says so; otherwise it says
 * that none does.
 *
 * Of a communicator over several domains the ways between them are tried, and numbers of pieces in
 * place of grids.
 *
 * All ranks run the same steps: each knows the slowest rank's times.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "src/collective/select.h"

enum { MOST_PIECES = 32, MOST_CHOICES = 512, FINALISTS = 8, THREADS = 7, FINAL_REPETITIONS = 5 };

#define WORSE 1.25       /* ends a series of grids: slower than the series' best by this */
#define FAR 2.0          /* ends it too: slower than the best of all by this */
#define HOPELESS 3.0     /* ends an algorithm: its best is slower than the best of all by this */
#define ALIKE 1.01       /* times this close are equal */
#define ALIKE_LONG 1.003 /* the same for long calls, whose times vary less */
#define LONG_US 10
#define TABLE_COLUMNS "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"

struct choice {
    symwin_algo algo;
    int blocks, threads; /* as requested */
    int grid;            /* blocks launched */
    double us;           /* time of a call */
};

/* The choices tried in one kind of memory, for one size. */
struct tried {
    struct choice list[MOST_CHOICES];
    int count;
};

/* The best choice for a size. */
struct row {
    symwin_type type;
    int registered;
    size_t bytes;
    struct choice choice;
};

struct tuning {
    struct rank *r;
    char gpu[160];
    int domains;
    struct draft draft; /* of rank 0: the table (docs/tuning.md) until it is complete */
    struct row *rows;   /* owned; of one collective */
    int row_count, row_room;
    int written;           /* rows */
    struct tried tried[2]; /* 0: plain memory, 1: windows */
    symwin_collective collective;
    symwin_type type;
    size_t bytes;
    double expected_us;    /* of the best choice for the previous size */
    struct choice last[2]; /* the best for the previous size, by table; threads 0: none */
    /* Where parts have unequal lengths, tables that have none go straight, or all; owned. */
    struct sw_tuning *straight[2];
    int measured, measured_before;
    uint64_t wrong;
};

/* ---- one choice ---- */

static uint64_t count_of(const struct tuning *t)
{
    return result_of_size(t->r->job, t->collective, t->type, t->bytes).count;
}

static struct way way_of(struct tuning *t, const struct choice *choice)
{
    const int by_parts = collective_of(t->collective)->by_parts;

    if (by_parts)
        t->r->comm->tuning = t->straight[choice->algo == SYMWIN_ALGO_PUT];
    return (struct way){
        .library = "symwin",
        .name = symwin_algo_name(choice->algo),
        .kind = WAY_SYMWIN,
        .algo = by_parts ? SYMWIN_ALGO_ONESHOT : choice->algo,
        .memory = sw_algo_needs(t->collective, choice->algo, SW_NEEDS_WINDOWS) ? MEMORY_WINDOW
                                                                               : MEMORY_PLAIN,
        .optional = 1, /* a call that is not supported is not an error */
        .blocks = choice->blocks,
        .threads = choice->threads,
    };
}

static struct result result_of(const struct tuning *t, const struct way *way)
{
    struct result result = result_of_size(t->r->job, t->collective, t->type, t->bytes);

    result.way = way;
    result.op = SYMWIN_SUM;
    return result;
}

/* The number of calls that take about `us` in total. */
static int calls_for(const struct tuning *t, double us, int least, int most)
{
    const double calls = t->expected_us > 0 ? us / t->expected_us : most;

    if (t->r->job->emulated)
        return 1;
    return calls < least ? least : calls > most ? most : (int)calls;
}

static int measure_choice(struct tuning *t, struct choice *choice, int calls, int repetitions)
{
    const struct way way = way_of(t, choice);
    struct result result = result_of(t, &way);
    int good;

    result.calls = calls;
    result.repetitions = repetitions;
    good = measure_quickly(t->r, &result);
    choice->us = result.us;
    t->measured++;
    return good;
}

/* Checks the result of one call. */
static int check_choice(struct tuning *t, const struct choice *choice)
{
    const struct way way = way_of(t, choice);
    struct result result = result_of(t, &way);
    const int good = measure_right(t->r, &result);

    t->wrong += result.wrong;
    t->draft.wrong = t->wrong > 0;
    if (good && !result.supported)
        return fail(SYMWIN_UNSUPPORTED, "--tune: %s is reported as supported, but the call is not",
                    way.name);
    return good;
}

/* ---- all grids of an algorithm ---- */

/* The grid that a choice launches; 0 blocks: it does not fit. */
static int find_grid(struct tuning *t, const struct choice *choice, symwin_collective_info *info)
{
    const struct way way = way_of(t, choice);
    const struct result result = result_of(t, &way);

    if (way_query(t->r, &result, info))
        return 1;
    info->blocks = 0;
    return failure() == SYMWIN_UNSUPPORTED;
}

static double least_of(const struct tried *tried, int first)
{
    double least = 0;

    for (int i = first; i < tried->count; i++)
        least = least == 0 || tried->list[i].us < least ? tried->list[i].us : least;
    return least;
}

static double least_of_all(const struct tuning *t)
{
    const double a = least_of(&t->tried[0], 0), b = least_of(&t->tried[1], 0);

    return a == 0 || (b > 0 && b < a) ? b : a;
}

/* The next number of blocks to try: powers of two below `blocks`. 0: there are no more. */
static int fewer(int blocks)
{
    int power = 1;

    while (2 * power < blocks)
        power *= 2;
    return blocks > 1 ? power : 0;
}

static int try_threads(struct tuning *t, struct tried *tried, symwin_algo algo, int threads)
{
    const struct perf_options *o = &t->r->job->options;
    const int calls = calls_for(t, 60, 2, 16), first = tried->count;
    const int repetitions = t->bytes <= 64 << 20 && !t->r->job->emulated ? 3 : 1;
    int most = sw_kernels_multiprocessors(t->r->comm->kernels), grid = 0;
    int good = 1;

    if (o->sm_limit > 0 && o->sm_limit < most)
        most = o->sm_limit;
    for (int blocks = most; blocks > 0 && good; blocks = fewer(blocks)) {
        struct choice choice = {algo, blocks, threads, 0, 0};
        symwin_collective_info info;

        if (tried->count == MOST_CHOICES)
            return fail(SYMWIN_NO_MEMORY, "--tune: more than %d choices", MOST_CHOICES);
        good = find_grid(t, &choice, &info);
        if (!good || info.blocks == 0 || info.blocks == grid)
            continue; /* the message is too small for this grid: same as before */
        grid = choice.grid = info.blocks;
        if (!measure_choice(t, &choice, calls, repetitions))
            return 0;
        tried->list[tried->count++] = choice;
        if (choice.us > WORSE * least_of(tried, first) || choice.us > FAR * least_of_all(t))
            return 1;
    }
    return good;
}

/* Algorithms with and without flags differ for floats only. For floats, those without flags move
 * half the bytes, so only they are tried. Tables cannot name what needs one offset. */
static int is_candidate(const struct tuning *t, symwin_algo algo)
{
    const symwin_collective collective = t->collective;
    const int is_float = sw_type_is_float(t->type);

    if (t->domains > 1)
        return sw_way_is_there(collective, algo);
    for (int i = 0; i < SW_ALGOS && is_float; i++)
        if (sw_algorithm(collective, (symwin_algo)i)->integers == algo)
            return 0;
    if (sw_algorithm(collective, algo)->shares && t->r->job->nranks <= 2)
        return 0; /* the one-shot would serve it */
    return sw_algo_is_inside(collective, algo) && !sw_algorithm(collective, algo)->one_offset &&
           (is_float || sw_algorithm(collective, algo)->integers == SYMWIN_ALGO_AUTO);
}

/* A way between domains: by rails with 32 pieces and fewer, of collectives that go in pieces. */
static int try_way(struct tuning *t, symwin_algo algo)
{
    struct tried *tried = &t->tried[0];
    const int first = tried->count, rails = (algo == SYMWIN_ALGO_RAILS &&
                                             sw_way_is_there(t->collective, SYMWIN_ALGO_ONESHOT)) ||
                                            algo == SYMWIN_ALGO_TWOSHOT_PUSH;
    symwin_collective_info info;
    int good = 1;

    for (int pieces = rails ? MOST_PIECES : 1; pieces > 0 && good; pieces /= 2) {
        struct choice choice = {algo, rails ? pieces : 0, 0, pieces, 0};

        good = find_grid(t, &choice, &info);
        if (!good || info.blocks == 0)
            continue;
        if (tried->count == first)
            good = check_choice(t, &choice);
        good = good && measure_choice(t, &choice, calls_for(t, 60, 2, 16), 1);
        tried->list[tried->count++] = choice;
    }
    return good;
}

static int try_algo(struct tuning *t, symwin_algo algo)
{
    static const int workers[THREADS] = {992, 736, 608, 512, 256, 128, 64};
    struct tried *tried = &t->tried[sw_algo_needs(t->collective, algo, SW_NEEDS_WINDOWS)];
    const int first = tried->count;
    const struct choice own = {.algo = algo};
    symwin_collective_info info;
    int good = find_grid(t, &own, &info);

    if (!good || info.blocks == 0)
        return good;
    if (!check_choice(t, &own))
        return 0;
    for (int i = 0; i < THREADS && good; i++) {
        good = try_threads(t, tried, algo, workers[i] + 32);
        if (tried->count > first && least_of(tried, first) > HOPELESS * least_of_all(t))
            break;
    }
    if (good &&
        tried->count == first) /* blocks have fewer threads here, as on the emulated driver */
        good = try_threads(t, tried, algo, info.threads);
    return good;
}

/* ---- the best of them ---- */

static int by_time(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    if (x->us != y->us)
        return x->us < y->us ? -1 : 1;
    return x->grid != y->grid ? x->grid - y->grid : x->threads - y->threads;
}

static int is_same(const struct choice *a, const struct choice *b)
{
    return a->algo == b->algo && a->blocks == b->blocks && a->threads == b->threads;
}

/* Times the finalists again: the fastest; the fastest of each algorithm that is close, since a few
 * calls can make it seem slower than it is; and the best for the previous size, whose row continues
 * if it is still the best. */
static int play_final(struct tuning *t, struct tried *tried)
{
    const int calls = calls_for(t, 300, 10, 50);
    const double near = WORSE * least_of(tried, 0);
    int good = 1;
    unsigned seen = 0;
    int finalists = 0;

    qsort(tried->list, (size_t)tried->count, sizeof tried->list[0], by_time);
    for (int i = 0; i < tried->count && good; i++) {
        struct choice choice = tried->list[i];
        const int first = (seen & 1u << choice.algo) == 0 && choice.us <= near;

        seen |= 1u << choice.algo;
        if (finalists >= FINALISTS && !first && !is_same(&choice, &t->last[0]) &&
            !is_same(&choice, &t->last[1]))
            continue;
        good = measure_choice(t, &choice, calls, t->r->job->emulated ? 1 : FINAL_REPETITIONS);
        tried->list[finalists++] = choice;
    }
    tried->count = finalists;
    return good;
}

/* Among equal times, the previous size's choice wins, or else the fewest blocks. */
static struct choice best_of(const struct tuning *t, int registered)
{
    const struct choice *last = &t->last[registered];
    struct choice best = {.us = 0};
    double least = 0, alike;

    for (int kind = 0; kind <= registered; kind++) {
        const double us = least_of(&t->tried[kind], 0);

        least = least == 0 || (us > 0 && us < least) ? us : least;
    }
    alike = least < LONG_US ? ALIKE : ALIKE_LONG;
    for (int kind = 0; kind <= registered; kind++)
        for (int i = 0; i < t->tried[kind].count; i++) {
            const struct choice *c = &t->tried[kind].list[i];
            const int better = best.us == 0 || c->grid < best.grid ||
                               (c->grid == best.grid && c->us < best.us);

            if (c->us <= alike * least && (better || is_same(c, last)) &&
                (best.us == 0 || !is_same(&best, last)))
                best = *c;
        }
    return best;
}

/* ---- the table ---- */

static int table_open(struct tuning *t)
{
    if (!draft_open(&t->draft, "--tune", t->r->job->options.tune))
        return 0;
    machine_print(t->r->job, t->draft.to, "# ");
    fprintf(t->draft.to, TABLE_COLUMNS);
    return 1;
}

static int by_key(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (x->type != y->type)
        return (int)x->type - (int)y->type;
    if (x->registered != y->registered)
        return x->registered - y->registered;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Where parts have unequal lengths, those of the longest one. */
static size_t row_bytes(const struct tuning *t)
{
    const int n = t->r->job->nranks;
    int32_t most = 0;

    if (!collective_of(t->collective)->by_parts)
        return t->bytes;
    for (int32_t p = 0; p < n; p++)
        most = perf_shares(n, 0, p) > most ? perf_shares(n, 0, p) : most;
    return count_of(t) * (size_t)most * symwin_type_bytes(t->type);
}

static int table_add(struct tuning *t, int registered, const struct choice *best)
{
    if (t->row_count == t->row_room) {
        const int room = t->row_room > 0 ? 2 * t->row_room : 64;
        struct row *more = realloc(t->rows, (size_t)room * sizeof *more);

        if (more == NULL)
            return fail(SYMWIN_NO_MEMORY, "no memory for %d rows of --tune's table", room);
        t->rows = more;
        t->row_room = room;
    }
    t->rows[t->row_count++] = (struct row){t->type, registered, row_bytes(t), *best};
    return 1;
}

/* The rows of a collective, if no result was wrong. Consecutive sizes with the same choice become
 * one. */
static void table_write(struct tuning *t)
{
    if (t->row_count == 0 || t->wrong > 0)
        return;
    qsort(t->rows, (size_t)t->row_count, sizeof t->rows[0], by_key);
    for (int i = 0; i < t->row_count; i++) {
        const struct row *row = &t->rows[i];

        if (i + 1 < t->row_count && row[1].type == row->type &&
            row[1].registered == row->registered && is_same(&row[1].choice, &row->choice))
            continue;
        fprintf(t->draft.to, "%s,%s,%d,%zu,%s,%d,%zu,%s,%d,%d\n",
                symwin_collective_name(t->collective), t->gpu, t->r->job->nranks,
                symwin_type_bytes(row->type), sw_type_is_float(row->type) ? "float" : "integer",
                row->registered, row->bytes, symwin_algo_name(row->choice.algo), row->choice.blocks,
                row->choice.threads);
        t->written++;
    }
    draft_flush(&t->draft);
    t->row_count = 0;
}

/* ---- sizes, types ---- */

static void say(struct tuning *t, int registered, const struct choice *best)
{
    if (t->r->rank != 0)
        return;
    printf(" %11zu %6s %-10s %-17s %6d %7d %9.2f %7d\n", t->bytes, symwin_type_name(t->type),
           registered ? "window" : "plain", symwin_algo_name(best->algo), best->grid, best->threads,
           best->us, t->measured - t->measured_before);
    fflush(stdout);
}

static int tune_size(struct tuning *t)
{
    int good = 1;

    t->measured_before = t->measured;
    t->tried[0].count = t->tried[1].count = 0;
    for (int i = 0; symwin_algo_name((symwin_algo)i) != NULL && good; i++)
        if (is_candidate(t, (symwin_algo)i))
            good = t->domains > 1 ? try_way(t, (symwin_algo)i) : try_algo(t, (symwin_algo)i);
    for (int kind = 0; kind < 2 && good; kind++)
        good = play_final(t, &t->tried[kind]);
    /* Windows make no difference to what goes between domains. */
    for (int registered = 0; registered < (t->domains > 1 ? 1 : 2) && good; registered++) {
        const struct choice best = best_of(t, registered);

        if (!registered || !is_same(&best, &t->last[0])) /* already checked */
            good = check_choice(t, &best);
        say(t, registered, &best);
        if (good && t->r->rank == 0)
            good = table_add(t, registered, &best);
        t->last[registered] = best;
        t->expected_us = best.us;
    }
    return good;
}

static int tune_sizes(struct tuning *t)
{
    const struct perf_options *o = &t->r->job->options;
    const int by_parts = collective_of(t->collective)->by_parts;
    uint64_t before = 0;
    int good = 1;

    memset(t->last, 0, sizeof t->last);
    t->expected_us = 0;
    for (t->bytes = o->begin; t->bytes > 0 && good; t->bytes = options_next_size(o, t->bytes)) {
        const uint64_t count = count_of(t);

        if (count > 0 && !(by_parts && count == before)) /* another row of the same parts */
            good = tune_size(t);
        before = count;
    }
    return good;
}

/* A table of one row, by which all parts of a collective go straight or none does. */
static int make_straight(struct tuning *t, int goes)
{
    char text[400];

    snprintf(text, sizeof text, TABLE_COLUMNS "%s,%s,%d,%zu,%s,1,1,%s,0,0\n",
             symwin_collective_name(t->collective), t->gpu, t->r->job->nranks,
             symwin_type_bytes(t->type), sw_type_is_float(t->type) ? "float" : "integer",
             symwin_algo_name(goes ? SYMWIN_ALGO_PUT : SYMWIN_ALGO_ONESHOT));
    return ok(sw_tuning_parse("symwin-perf", "--tune", text, strlen(text), t->gpu,
                              t->r->job->nranks, &t->straight[goes]));
}

static int tune_type(struct tuning *t)
{
    const struct sw_collective *is = collective_of(t->collective);
    struct sw_tuning *const before = t->r->comm->tuning;
    int good = 1;

    for (int goes = 0; goes <= 1 && is->by_parts && good; goes++)
        good = make_straight(t, goes);
    good = meet(t->r, good, NULL, 0) && tune_sizes(t);
    t->r->comm->tuning = before;
    for (int goes = 0; goes < 2; goes++) {
        sw_tuning_close(t->straight[goes]);
        t->straight[goes] = NULL;
    }
    return good;
}

/* Whether no earlier type has the same key: a table's key is the width and the kind of a type. */
static int is_another_key(const struct perf_options *o, int type)
{
    for (int i = 0; i < type; i++)
        if ((o->types & 1u << i) != 0 &&
            symwin_type_bytes((symwin_type)i) == symwin_type_bytes((symwin_type)type) &&
            sw_type_is_float((symwin_type)i) == sw_type_is_float((symwin_type)type))
            return 0;
    return (o->types & 1u << type) != 0;
}

static int tune_collective(struct tuning *t)
{
    int good = 1;

    if (t->r->rank == 0)
        printf("# collective: %s\n#%11s %6s %-10s %-17s %6s %7s %9s %7s\n",
               symwin_collective_name(t->collective), "size (B)", "type", "memory", "algorithm",
               "blocks", "threads", "time (us)", "timed");
    for (int type = 0; symwin_type_name((symwin_type)type) != NULL && good; type++)
        if (is_another_key(&t->r->job->options, type)) {
            t->type = (symwin_type)type;
            good = tune_type(t);
        }
    if (t->r->rank == 0 && good)
        table_write(t);
    return good;
}

/* Between domains some collectives have one way. */
static int has_choice(const struct tuning *t)
{
    const unsigned ways = collective_of(t->collective)->ways;

    return t->domains == 1 || (ways & (ways - 1)) != 0;
}

static int tune_all(struct tuning *t)
{
    const struct perf_options *o = &t->r->job->options;
    int good = 1, c;

    for (int i = 0; (c = options_nth(o->collective_order, o->collectives, i)) >= 0 && good; i++) {
        t->collective = (symwin_collective)c;
        good = !options_can_tune(c) || !has_choice(t) || tune_collective(t);
    }
    if (good && t->measured == 0)
        return fail(SYMWIN_INVALID, "--tune: every size is smaller than an element, or there is no "
                                    "choice over several domains");
    return good;
}

/* ---- the machine ---- */

/* A table is for one kind of GPU. */
static int check_gpus(struct rank *r, struct tuning *t)
{
    symwin_device_info info;
    symwin_comm_info comm = {.domains = 1};
    int good = ok(symwin_device_query(r->device, &info)) && ok(symwin_comm_query(r->comm, &comm));
    uint64_t words[8] = {0};

    t->domains = comm.domains;

    if (good) {
        snprintf(t->gpu, sizeof t->gpu - 32, "%s", info.name);
        memcpy(words, info.name, sizeof words);
        if (strpbrk(t->gpu, ",#\n") != NULL)
            good = fail(SYMWIN_UNSUPPORTED, "--tune: a table cannot contain the GPU name \"%s\"",
                        t->gpu);
        if (t->domains > 1)
            snprintf(t->gpu + strlen(t->gpu), 32, SW_TUNING_DOMAINS, t->domains);
    }
    good = meet(r, good, words, 8);
    for (int i = 1; i < r->job->nranks && good; i++)
        for (int w = 0; w < 8; w++)
            if (met(r, i, w) != met(r, 0, w))
                return fail(
                    SYMWIN_UNSUPPORTED,
                    "--tune: rank %d has a different GPU than rank 0; a table is for one kind of "
                    "GPU",
                    i);
    return good;
}

static int finish(struct tuning *t, int good, int64_t begun)
{
    struct job *job = t->r->job;
    const int right = good && t->wrong == 0;

    if (t->draft.to == NULL)
        return good;
    good &= draft_close(&t->draft, right            ? DRAFT_DONE
                                   : t->written > 0 ? DRAFT_KEPT
                                                    : DRAFT_DROPPED);
    free(t->rows);
    job->wrong += t->wrong;
    if (!good)
        return 0;
    printf("# %d choices timed in %lld s\n", t->measured, (long long)(sw_now_ms() - begun) / 1000);
    printf("# Wrong elements: %llu %s\n", (unsigned long long)t->wrong, right ? "OK" : "FAILED");
    if (right)
        printf("# %s: %d rows\n", job->options.tune, t->written);
    else
        printf("# %s was not written\n", job->options.tune);
    fflush(stdout);
    return 1;
}

int tune(struct rank *r)
{
    const int64_t begun = sw_now_ms();
    struct tuning *t = calloc(1, sizeof *t);
    int good = t != NULL ? check_gpus(r, t)
                         : meet(r, fail(SYMWIN_NO_MEMORY, "--tune: no host memory"), NULL, 0);

    if (t == NULL)
        return good;
    t->r = r;
    if (good) {
        if (r->rank == 0) {
            machine_print(r->job, stdout, "# ");
            good = table_open(t);
        }
        good = meet(r, good, NULL, 0);
    }
    good = good && tune_all(t);
    if (r->rank == 0)
        good = finish(t, good, begun);
    free(t);
    return good;
}
