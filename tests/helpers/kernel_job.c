#include "kernel_job.h"

#include <string.h>

#include "reference.h"
#include "tap.h"

#define TIMEOUT_NS 20000000000u

const char *const job_algo_names[JOB_ALGOS] = {
    "auto",         "oneshot",     "twoshot", "oneshot_mc",  "twoshot_mc", "oneshot_sentinel",
    "twoshot_push", "twoshot_put", "copies",  "twoshot_bulk"};
static const char *const op_names[JOB_OPS] = {"sum", "prod", "min", "max", "avg"};
const char *const job_type_names[JOB_TYPES] = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2",
                                               "i8",  "u8",  "i32", "u32",  "i64",  "u64"};

int job_over_multicast(int algo)
{
    return algo == SYMWIN_ALGO_ONESHOT_MC || algo == SYMWIN_ALGO_TWOSHOT_MC;
}

int job_exists(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op)
{
    if ((job_over_multicast(algo) && !team->multicast) ||
        algo == SYMWIN_ALGO_COPIES) /* whose kernels are parts: tests/helpers/copies_cases.h */
        return 0;
    return team_has_kernel(team, algo, type, op);
}

void *job_alloc(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);

    if (p == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return p;
}

void job_fill(const struct job *job, int rank, void *out)
{
    if (job->wild)
        reference_fill_wild(job->call.type, job->seed, rank, 0, job->call.count, out);
    else
        reference_fill(job->call.type, job->call.op, job->seed, rank, 0, job->call.count, out);
}

size_t job_output(const struct team *team, const struct team_call *call)
{
    return call->in_place ? team->input + call->in : team->output + call->out;
}

void job_prepare(const struct team *team, const struct job *job)
{
    const size_t bytes = job->call.count * reference_bytes(job->call.type);
    unsigned char *data = job_alloc(bytes + 2 * JOB_GUARD);
    int r;

    for (r = 0; r < team->nranks; r++) {
        memset(data, JOB_PATTERN, bytes + 2 * JOB_GUARD);
        team_write(team, r, job_output(team, &job->call) - JOB_GUARD, data, bytes + 2 * JOB_GUARD);
        job_fill(job, r, data);
        team_write(team, r, team->input + job->call.in, data, bytes);
    }
    free(data);
}

unsigned job_grid(const struct job *job, int rank)
{
    return job->call.grid + (job->grids_vary ? (unsigned)rank % 3 : 0);
}

void job_launch(struct team *team, const struct job *job)
{
    struct team_call call = job->call;
    int r;

    for (r = 0; r < team->nranks; r++) {
        call.grid = job_grid(job, r);
        team_launch(team, &call, r);
    }
}

/* Element that differs on `rank`, -1 for none, -2 for a changed guard, -3 for a changed input. */
static int64_t job_check_rank(const struct team *team, const struct job *job, int rank,
                              const void *want)
{
    const struct team_call *call = &job->call;
    const size_t bytes = call->count * reference_bytes(call->type);
    const int rounds_twice = job_over_multicast(call->algo) && call->op == SYMWIN_AVG;
    unsigned char *got = job_alloc(bytes + 2 * JOB_GUARD), *input = job_alloc(bytes);
    int64_t wrong;
    size_t i;

    team_read(team, rank, job_output(team, call) - JOB_GUARD, got, bytes + 2 * JOB_GUARD);
    wrong = rounds_twice ? reference_compare_ulps(call->type, got + JOB_GUARD, want, call->count, 1)
                         : reference_compare(call->type, got + JOB_GUARD, want, call->count);
    if (wrong >= 0) {
        char a[64], b[64];

        printf("# rank %d of %d, element %lld of %zu: got %s, want %s\n", rank, team->nranks,
               (long long)wrong, call->count,
               reference_print(call->type, got + JOB_GUARD, (size_t)wrong, a, sizeof a),
               reference_print(call->type, want, (size_t)wrong, b, sizeof b));
    }
    for (i = 0; i < JOB_GUARD; i++)
        if (got[i] != JOB_PATTERN || got[JOB_GUARD + bytes + i] != JOB_PATTERN)
            wrong = -2;
    if (!call->in_place) {
        team_read(team, rank, team->input + call->in, got, bytes);
        job_fill(job, rank, input);
        if (memcmp(got, input, bytes) != 0)
            wrong = -3;
    }
    free(got);
    free(input);
    return wrong;
}

int job_check(const struct team *team, const struct job *job)
{
    const struct team_call *call = &job->call;
    const size_t bytes = call->count * reference_bytes(call->type);
    char *inputs = job_alloc(bytes * (size_t)team->nranks), *want = job_alloc(bytes);
    const void *of_rank[TEAM_MAX_RANKS];
    int r, ok = 1;

    for (r = 0; r < team->nranks; r++) {
        job_fill(job, r, inputs + bytes * (size_t)r);
        of_rank[r] = inputs + bytes * (size_t)r;
    }
    reference_allreduce(call->type, call->op, team->nranks, of_rank, want, call->count);
    for (r = 0; r < team->nranks && ok; r++) {
        const uint32_t code = __atomic_load_n(&team->report[r]->code, __ATOMIC_ACQUIRE);
        const int64_t wrong = job_check_rank(team, job, r, want);

        ok = wrong == -1 && code == SW_KERNEL_OK;
        if (!ok)
            printf(
                "# %s %s %s, %zu elements at %zu and %zu%s, grid %u, block %u: rank %d, code %u, "
                "%lld\n",
                job_algo_names[call->algo], job_type_names[call->type], op_names[call->op],
                call->count, call->in, call->out, call->in_place ? " in place" : "", call->grid,
                call->block, r, code, (long long)wrong);
    }
    free(inputs);
    free(want);
    return ok;
}

int job_run(struct team *team, const struct job *job)
{
    int r;

    job_prepare(team, job);
    job_launch(team, job);
    for (r = 0; r < team->nranks; r++)
        team_wait(team, r);
    return job_check(team, job);
}

struct job job_of(symwin_algo algo, symwin_type type, symwin_op op, size_t count)
{
    struct job job;

    memset(&job, 0, sizeof job);
    job.call.algo = algo;
    job.call.type = type;
    job.call.op = op;
    job.call.count = count;
    job.call.in = JOB_GUARD;
    job.call.out = JOB_GUARD;
    job.call.grid = 2;
    job.call.block = 32;
    job.call.timeout_ns = TIMEOUT_NS;
    job.seed = count * 31 + (uint64_t)op;
    return job;
}
