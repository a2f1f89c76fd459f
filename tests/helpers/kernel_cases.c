#include "kernel_team.h"

#include <string.h>
#include <time.h>

#include "reference.h"
#include "tap.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* A sanitizer checks addresses and the order of threads, and takes ten times as long. It runs every
 * THIN-th of the cases that differ only in type, operation, count or alignment. THIN is prime to
 * the numbers of these, so that each type, operation, count and alignment is run. THREADS is the
 * limit of a block in the emulated driver (kernels/emu_image.cc). */
#if defined(__SANITIZE_THREAD__)
enum { THIN = 7, THREADS = 40 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THIN = 7, THREADS = 64 };
#else
enum { THIN = 1, THREADS = 64 };
#endif

static int over_windows(int algo)
{
    return algo == SYMWIN_ALGO_TWOSHOT || algo == SYMWIN_ALGO_TWOSHOT_PUT ||
           algo == SYMWIN_ALGO_TWOSHOT_BULK || job_over_multicast(algo);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void test_every_type_and_op(struct team *team)
{
    int algo, type, op, turn = 0;

    for (algo = SYMWIN_ALGO_ONESHOT; algo < JOB_ALGOS; algo++) {
        int kernels = 0;

        for (type = 0; type < JOB_TYPES; type++) {
            int ok = 1, ran = 0;

            for (op = 0; op < JOB_OPS; op++) {
                struct job job = job_of((symwin_algo)algo, (symwin_type)type, (symwin_op)op, 1003);

                if (!job_exists(team, job.call.algo, job.call.type, job.call.op))
                    continue;
                kernels++;
                if (turn++ % THIN != 0)
                    continue;
                ran++;
                ok = job_run(team, &job) && ok;
                job.wild = !job_over_multicast(algo);
                job.call.in_place = algo != SYMWIN_ALGO_ONESHOT_MC;
                ok = job_run(team, &job) && ok;
            }
            if (ran > 0)
                tap_ok(ok, "%s of %s, %d operations", job_algo_names[algo], job_type_names[type],
                       ran);
        }
        tap_ok(kernels > 0 || algo == SYMWIN_ALGO_COPIES ||
                   (job_over_multicast(algo) && !team->multicast),
               "%s: %d kernels", job_algo_names[algo], kernels);
    }
}

/* Around every boundary in the kernels: element, word, vector, thread, unrolled turn. */
static void test_counts_and_alignments(struct team *team)
{
    static const size_t counts[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 255, 1021};
    static const symwin_type types[] = {SYMWIN_U8, SYMWIN_BF16, SYMWIN_F32, SYMWIN_U64};
    uint32_t random = 7;
    size_t c, t;
    int algo, shift, turn = 0;

    for (algo = SYMWIN_ALGO_ONESHOT; algo < JOB_ALGOS; algo++) {
        for (t = 0; t < COUNT_OF(types); t++) {
            const size_t element = reference_bytes(types[t]);
            int ok = 1;

            if (!job_exists(team, (symwin_algo)algo, types[t], SYMWIN_SUM))
                continue;
            for (c = 0; c < COUNT_OF(counts); c++) {
                for (shift = 0; shift < 6; shift++) {
                    struct job job = job_of((symwin_algo)algo, types[t], SYMWIN_SUM, counts[c]);

                    if (turn++ % THIN != 0)
                        continue;
                    /* Three with the same offset of input and output, three with different ones. */
                    job.call.in += next_random(&random) % 16 * element;
                    job.call.out = shift % 2 == 0 ? job.call.in
                                                  : JOB_GUARD + next_random(&random) % 16 * element;
                    job.call.in_place = shift == 4 && algo != SYMWIN_ALGO_ONESHOT_MC;
                    job.call.grid = 1 + next_random(&random) % 3;
                    job.call.block = 1 + next_random(&random) % 40;
                    job.seed = random;
                    ok = job_run(team, &job) && ok;
                }
            }
            tap_ok(ok, "%s of %s, counts and alignments", job_algo_names[algo],
                   job_type_names[types[t]]);
        }
    }
}

static uint32_t blocks_of(const struct job *jobs, int count, int rank)
{
    uint32_t blocks = 0;

    while (count-- > 0)
        blocks += job_grid(&jobs[count], rank);
    return blocks;
}

/* Calls of all kinds, one after another in each rank's stream, each on its own area. */
static int run_in_flight(struct team *team, uint32_t seed, size_t max_count)
{
    enum { JOBS = 24 };
    const size_t each = team->area_bytes / JOBS / 64 * 64;
    uint32_t random = seed, done[TEAM_MAX_RANKS];
    struct job jobs[JOBS];
    int i, r, ok = 1;

    for (r = 0; r < team->nranks; r++)
        done[r] = team_state(team, r).done;
    for (i = 0; i < JOBS; i++) {
        struct job *job = &jobs[i];
        symwin_algo algo = (symwin_algo)(SYMWIN_ALGO_ONESHOT +
                                         next_random(&random) % (unsigned)(JOB_ALGOS - 1));
        const symwin_type type = (symwin_type)(next_random(&random) % (unsigned)JOB_TYPES);
        const symwin_op op = (symwin_op)(next_random(&random) % (unsigned)JOB_OPS);

        if (!job_exists(team, algo, type, op))
            algo = SYMWIN_ALGO_ONESHOT;
        *job = job_of(algo, type, op, 1 + next_random(&random) % max_count);
        job->seed = random;
        job->call.in += (size_t)i * each + next_random(&random) % 8 * reference_bytes(type);
        job->call.out += (size_t)i * each + next_random(&random) % 8 * reference_bytes(type);
        job->call.in_place = next_random(&random) % 2 != 0 && algo != SYMWIN_ALGO_ONESHOT_MC;
        job->call.grid = 1 + next_random(&random) % 2;
        job->call.block = 1 + next_random(&random) % THREADS;
        job->call.done = 1;
        job->grids_vary = 1;
        job_prepare(team, job);
    }
    for (i = 0; i < JOBS; i++)
        job_launch(team, &jobs[i]);
    for (r = 0; r < team->nranks; r++)
        team_wait(team, r);
    for (i = 0; i < JOBS; i++)
        ok = job_check(team, &jobs[i]) && ok;
    for (r = 0; r < team->nranks; r++)
        ok = team_state(team, r).done - done[r] == blocks_of(jobs, JOBS, r) &&
             team_state(team, r).arrived == 0 && ok;
    return ok;
}

/* Three calls in flight, each on the output of the previous one, while rank 0 is much slower than
 * the others: a call that starts or ends too early reads words that are not written yet. */
static void test_chain(struct team *team, symwin_algo window_algo)
{
    enum { COUNT = 6000 };
    struct job first = job_of(SYMWIN_ALGO_ONESHOT, SYMWIN_U32, SYMWIN_SUM, COUNT), job = first;
    uint32_t *input = job_alloc(sizeof(uint32_t) * COUNT), *want = job_alloc(sizeof *want * COUNT);
    uint32_t *got = job_alloc(sizeof *got * COUNT);
    const size_t half = team->area_bytes / 2;
    int r, i, ok = 1;

    job_prepare(team, &first);
    memset(want, 0, sizeof *want * COUNT);
    for (r = 0; r < team->nranks; r++) {
        job_fill(&first, r, input);
        for (i = 0; i < COUNT; i++)
            want[i] += input[i];
    }
    for (i = 0; i < COUNT; i++)
        want[i] *= (uint32_t)(team->nranks * team->nranks);
    for (r = 0; r < team->nranks; r++) {
        struct sw_kernel_args args;

        job.call.grid = r == 0 ? 1 : 4;
        job.call.block = r == 0 ? 1 : THREADS;
        job.call.algo = SYMWIN_ALGO_ONESHOT; /* input -> output */
        args = team_args(team, &job.call, r);
        team_launch_args(team, &job.call, r, &args);

        job.call.algo = window_algo; /* output -> second half of the input area */
        args.in_offset = args.out_offset;
        args.in = args.out;
        args.out_offset = team->input + half;
        args.out = args.in - args.in_offset + args.out_offset;
        args.digest++;
        team_launch_args(team, &job.call, r, &args);

        job.call.algo = SYMWIN_ALGO_ONESHOT; /* in place */
        args.in_offset = args.out_offset;
        args.in = args.out;
        args.digest++;
        team_launch_args(team, &job.call, r, &args);
    }
    for (r = 0; r < team->nranks; r++) {
        team_wait(team, r);
        team_read(team, r, team->input + half, got, sizeof *got * COUNT);
        ok = memcmp(got, want, sizeof *got * COUNT) == 0 && ok;
    }
    tap_ok(ok, "one-shot, %s and one-shot on each other's results", job_algo_names[window_algo]);
    free(input);
    free(want);
    free(got);
}

/* Finish words end calls over windows; none of them may grow 2^32 calls old. */
static int finish_words_are_fresh(const struct team *team, int rank)
{
    const uint32_t now = team_state(team, rank).epoch;
    uint64_t word;
    int p;

    for (p = 0; p < team->nranks; p++) {
        team_read(team, rank, SW_STATE_FINISH(team->nranks, p), &word, sizeof word);
        if (p != rank && now - (uint32_t)word > (uint32_t)team->nranks)
            return 0;
    }
    return 1;
}

/* Calls of one entry. */
static int run_tiny(struct team *team, int calls)
{
    struct job job = job_of(SYMWIN_ALGO_ONESHOT, SYMWIN_I8, SYMWIN_SUM, 3);
    int ok = 1;

    while (calls-- > 0)
        ok = job_run(team, &job) && ok;
    return ok;
}

/* Slots of eight entries, so that a message takes many rounds, and calls mix round counts. */
static void test_rounds_and_wrap(const struct kernel_cases *cases)
{
    const uint32_t epoch = 0u - 150, rounds = 0u - 301;
    struct team team;
    int pass, r, ok = 1;

    team_open(&team, 3, cases->devices < 3 ? cases->devices : 3, 0, 64, 1 << 18);
    for (pass = 0; pass < 4; pass++)
        ok = run_in_flight(&team, (uint32_t)pass * 77 + 1, 90) && ok;
    tap_ok(ok, "many rounds of small slots, calls in flight");

    ok = run_tiny(&team, 40);
    for (r = 0; r < team.nranks; r++)
        ok = team_slots_are_empty(&team, r) && finish_words_are_fresh(&team, r) && ok;
    tap_ok(ok, "slots are empty afterwards, and no finish word grows old");

    /* When the counters wrap, the numbers of the calls above are used again. Finish words that were
     * not refreshed still hold them. */
    team_set_epochs(&team, epoch, rounds);
    for (pass = 0, ok = 1; pass < 10; pass++)
        ok = run_in_flight(&team, (uint32_t)pass * 91 + 5, 60) && ok;
    tap_ok(ok, "counters wrap");
    for (r = 0; r < team.nranks; r++)
        ok = team_state(&team, r).rounds < 1u << 31 && team_slots_are_empty(&team, r) && ok;
    TAP_EQ("the epoch wrapped", team_state(&team, 0).epoch, epoch + 240);
    tap_ok(ok, "the rounds wrapped, and slots are empty");
    team_close(&team);
}

static void test_rank_counts(const struct kernel_cases *cases)
{
    static const int counts[] = {1, 2, 3, 7, 8, 9, 16, 17, 72};
    size_t i;
    int algo;

    for (i = 0; i < COUNT_OF(counts) && counts[i] <= cases->max_ranks; i++) {
        struct team team;

        team_open(&team, counts[i], cases->devices < counts[i] ? cases->devices : counts[i], 0,
                  4096, 1 << 16);
        for (algo = SYMWIN_ALGO_ONESHOT; algo < JOB_ALGOS; algo++) {
            const int many = counts[i] > 16; /* fewer threads each: the time depends on their sum */
            struct job job = job_of((symwin_algo)algo, SYMWIN_F16, SYMWIN_AVG, many ? 217 : 1017);
            int ok;

            if (job_over_multicast(algo) || algo == SYMWIN_ALGO_COPIES)
                continue;
            if (algo == SYMWIN_ALGO_ONESHOT_SENTINEL)
                job.call.type = SYMWIN_F64;
            job.call.grid = 1;
            job.call.block = many ? 8 : 32;
            ok = job_run(&team, &job);
            job.call.type = algo == SYMWIN_ALGO_ONESHOT_SENTINEL ? SYMWIN_BF16 : SYMWIN_I32;
            job.call.op = SYMWIN_MAX;
            job.call.in_place = 1;
            ok = job_run(&team, &job) && ok;
            tap_ok(ok, "%s on %d ranks", job_algo_names[algo], counts[i]);
        }
        team_close(&team);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A kernel after a failure returns at once, counts its blocks and advances no epoch. */
static void check_later_kernel(struct team *team, const struct job *job, int rank)
{
    const struct sw_comm_state before = team_state(team, rank);
    const uint32_t epoch = before.epoch;
    struct team_call call = job->call;

    call.done = 1;
    team_launch(team, &call, rank);
    team_wait(team, rank);
    TAP_EQ("a later kernel counts its blocks", team_state(team, rank).done - before.done,
           call.grid);
    TAP_EQ("and moves no epoch", team_state(team, rank).epoch, epoch);
    TAP_EQ("and leaves no block behind", team_state(team, rank).arrived, 0);
}

static int output_is_untouched(const struct team *team, const struct job *job, int rank)
{
    const size_t bytes = job->call.count * reference_bytes(job->call.type);
    unsigned char *got = job_alloc(bytes);
    size_t i;
    int ok = 1;

    team_read(team, rank, job_output(team, &job->call), got, bytes);
    for (i = 0; i < bytes; i++)
        ok = got[i] == JOB_PATTERN && ok;
    free(got);
    return ok;
}

static void test_mismatch(const struct kernel_cases *cases, symwin_algo algo)
{
    struct job job = job_of(algo, SYMWIN_F32, SYMWIN_SUM, 500);
    struct sw_kernel_args odd;
    struct team team;
    int r;

    team_open(&team, 3, cases->devices < 3 ? cases->devices : 3, 0, 1024, 1 << 16);
    job.call.done = 1;
    tap_ok(job_run(&team, &job), "%s before the mismatch", job_algo_names[algo]);
    job_prepare(&team, &job);
    odd = team_args(&team, &job.call, 1);
    odd.digest ^= 0x80;
    odd.count = 300;
    for (r = 0; r < team.nranks; r++) {
        if (r == 1)
            team_launch_args(&team, &job.call, r, &odd);
        else
            team_launch(&team, &job.call, r);
    }
    for (r = 0; r < team.nranks; r++) /* all, before a state is read: peers use it too */
        team_wait(&team, r);
    for (r = 0; r < team.nranks; r++) {
        const struct sw_kernel_report *report = team.report[r];

        TAP_EQ("mismatch", __atomic_load_n(&report->code, __ATOMIC_ACQUIRE), SW_KERNEL_MISMATCH);
        TAP_EQ("every rank names the one that differs", report->found.rank, 1);
        TAP_EQ("and one of those that agree", report->found.other, 0);
        TAP_EQ("there is no tie", report->found.tie, 0);
        TAP_EQ("who differs", report->found.differ, 2);
        TAP_EQ("who agrees", report->found.agree, 5);
        TAP_EQ("which argument", report->found.argument, SW_ARGUMENT_COUNT);
        TAP_EQ("its value there", report->found.theirs, 300);
        TAP_EQ("and elsewhere", report->found.others, 500);
        TAP_EQ("the call", report->found.epoch, 2);
        if (over_windows(algo))
            TAP_EQ("no epoch moves", team_state(&team, r).epoch, 1);
        TAP_EQ("the blocks are counted", team_state(&team, r).done, 2 * job.call.grid);
        if (algo == SYMWIN_ALGO_TWOSHOT)
            tap_ok(output_is_untouched(&team, &job, r), "rank %d wrote nothing", r);
    }
    check_later_kernel(&team, &job, 0);
    team_close(&team);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void test_missing_rank(const struct kernel_cases *cases, symwin_algo algo)
{
    int64_t began;
    struct job job = job_of(algo, SYMWIN_U8, SYMWIN_MAX, 3000);
    struct team team;
    int r;

    team_open(&team, 3, cases->devices < 3 ? cases->devices : 3, 0, 1024, 1 << 16);
    job.call.timeout_ns = 30000000;
    job_prepare(&team, &job);
    began = now_ns();
    for (r = 0; r < 2; r++)
        team_launch(&team, &job.call, r);
    for (r = 0; r < 2; r++)
        team_wait(&team, r);
    for (r = 0; r < 2; r++) {
        TAP_EQ("timeout", __atomic_load_n(&team.report[r]->code, __ATOMIC_ACQUIRE),
               SW_KERNEL_TIMEOUT);
        tap_ok(now_ns() - began >= 30000000, "not before its time");
        TAP_EQ("names the missing rank", team.report[r]->found.rank, 2);
        if (over_windows(algo))
            TAP_EQ("no epoch moves", team_state(&team, r).epoch, 0);
    }
    check_later_kernel(&team, &job, 1);
    team_close(&team);
}

static void test_abort(const struct kernel_cases *cases, symwin_algo algo)
{
    const struct timespec moment = {0, 20000000};
    struct job job = job_of(algo, SYMWIN_F64, SYMWIN_PROD, 700);
    struct team team;

    team_open(&team, 2, cases->devices < 2 ? cases->devices : 2, 0, 1024, 1 << 16);
    job.call.timeout_ns = 0;
    job_prepare(&team, &job);
    team_launch(&team, &job.call, 1);
    nanosleep(&moment, NULL);
    __atomic_store_n(&team.report[1]->abort, 1, __ATOMIC_RELEASE);
    team_wait(&team, 1);
    TAP_EQ("aborted", __atomic_load_n(&team.report[1]->code, __ATOMIC_ACQUIRE), SW_KERNEL_ABORTED);
    TAP_EQ("while it waited for rank 0", team.report[1]->found.rank, 0);
    check_later_kernel(&team, &job, 1);
    team_close(&team);
}

int kernel_cases_run(const struct kernel_cases *cases)
{
    struct team team;
    int algo;

    team_open(&team, 4, cases->devices < 4 ? cases->devices : 4, cases->multicast, 4096, 1 << 20);
    test_every_type_and_op(&team);
    test_counts_and_alignments(&team);
    tap_ok(run_in_flight(&team, 3, 1500), "calls of all kinds in flight");
    for (algo = SYMWIN_ALGO_TWOSHOT; algo < JOB_ALGOS; algo++)
        if (job_exists(&team, (symwin_algo)algo, SYMWIN_U32, SYMWIN_SUM))
            test_chain(&team, (symwin_algo)algo);
    team_close(&team);

    test_rounds_and_wrap(cases);
    test_rank_counts(cases);
    for (algo = SYMWIN_ALGO_ONESHOT; algo < JOB_ALGOS; algo++) {
        if (job_over_multicast(algo) || algo == SYMWIN_ALGO_COPIES ||
            algo ==
                SYMWIN_ALGO_ONESHOT_SENTINEL) /* differs from the one-shot only in its entries */
            continue;
        test_mismatch(cases, (symwin_algo)algo);
        test_missing_rank(cases, (symwin_algo)algo);
        test_abort(cases, (symwin_algo)algo);
    }
    if (cases->left_behind != NULL)
        TAP_EQ("nothing left behind", cases->left_behind(), 0);
    return tap_done();
}
