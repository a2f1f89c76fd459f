/* A thread for each rank of this process, with output and data. */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#endif
#include "ranks.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"
#include "host.h"

enum { CHUNK = 1 << 18 }; /* elements in a rank's host memory at a time */
enum { MOST_ON_A_DEVICE = 16 };

/* ---- output of the ranks --------------------------------------------------------------------- */

/* Of the ranks that failed, one whose failure is not a consequence of another's prints the
 * reason. */
static void print_lines(struct job *job)
{
    const struct rank *one = NULL;
    int failed = 0;

    for (int i = 0; i < job->launch.count; i++) {
        const struct rank *rank = &job->ranks[i];

        if (rank->status != SYMWIN_OK) {
            failed++;
            if (one == NULL || one->status == SYMWIN_ABORTED)
                one = rank;
        } else if (rank->line[0] != '\0') {
            printf("  Rank %d %s\n", rank->rank, rank->line);
        }
    }
    if (one != NULL)
        fprintf(stderr, "  Rank %d %s\n", one->rank, one->line);
    if (failed > 1)
        fprintf(stderr, "  and so did %d other%s\n", failed - 1, failed > 2 ? "s" : "");
    job->failed |= failed > 0;
}

int step(struct rank *self, symwin_status status, const char *format, ...)
{
    struct job *job = self->job;
    va_list args;

    self->status = status;
    va_start(args, format);
    vsnprintf(self->line, sizeof self->line, format, args);
    va_end(args);
    if (status != SYMWIN_OK)
        snprintf(self->line, sizeof self->line, "failed: %s: %s", symwin_status_name(status),
                 self->complaint[0] != '\0' ? self->complaint : symwin_last_error());

    pthread_barrier_wait(&job->barrier);
    if (self->rank == job->launch.first)
        print_lines(job);
    pthread_barrier_wait(&job->barrier);
    if (job->failed && self->comm != NULL)
        symwin_comm_abort(self->comm); /* ends it for ranks of other processes */
    return !job->failed;
}

void announce(const struct rank *self, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (self->rank == 0)
        vprintf(format, args);
    va_end(args);
}

static symwin_status complain(struct rank *self, symwin_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(self->complaint, sizeof self->complaint, format, args);
    va_end(args);
    return status;
}

/* ---- data of the ranks ----------------------------------------------------------------------- */

/* The number of elements in the chunk that begins at `first`. */
static size_t chunk(const struct problem *problem, uint64_t first)
{
    return problem->count - first < CHUNK ? (size_t)(problem->count - first) : CHUNK;
}

symwin_status initialise(struct rank *self)
{
    const struct job *job = self->job;
    const struct problem *problem = &job->problem;
    const size_t bytes = symwin_type_bytes(problem->type);

    self->staging = malloc(CHUNK * bytes);
    if (self->staging == NULL)
        return complain(self, SYMWIN_NO_MEMORY, "no host memory for the staging buffer");
    for (uint64_t i = 0; i < problem->count; i += CHUNK) {
        const size_t n = chunk(problem, i);
        symwin_status status;

        host_fill(problem, self->rank, i, n, self->staging);
        status = symwin_memcpy(self->device, (char *)self->send + i * bytes, self->staging,
                               n * bytes, self->stream);
        if (status != SYMWIN_OK)
            return status;
        if (i / CHUNK % (unsigned)job->launch.count == (unsigned)(self->rank - job->launch.first))
            host_fill(problem, HOST_RESULT, i, n, job->expected + i * bytes);
    }
    return symwin_stream_synchronize(self->device, self->stream);
}

/* Compares every byte of the receive buffer with the expected result. */
static symwin_status verify(struct rank *self)
{
    const struct job *job = self->job;
    const struct problem *problem = &job->problem;
    const size_t bytes = symwin_type_bytes(problem->type);

    for (uint64_t i = 0; i < problem->count; i += CHUNK) {
        const size_t n = chunk(problem, i);
        const unsigned char *want = job->expected + i * bytes;
        symwin_status status;
        size_t at = 0;

        status = symwin_memcpy(self->device, self->staging, (char *)self->recv + i * bytes,
                               n * bytes, self->stream);
        if (status == SYMWIN_OK)
            status = symwin_stream_synchronize(self->device, self->stream);
        if (status != SYMWIN_OK)
            return status;
        if (memcmp(self->staging, want, n * bytes) == 0)
            continue;
        while (self->staging[at] == want[at])
            at++;
        return complain(
            self, SYMWIN_DRIVER, "wrong result: byte %zu of element %llu is 0x%02x, must be 0x%02x",
            at % bytes, (unsigned long long)(i + at / bytes), self->staging[at], want[at]);
    }
    return SYMWIN_OK;
}

int verdict(struct rank *self)
{
    const struct problem *problem = &self->job->problem;
    symwin_comm *none = NULL;

    if (!step(self, verify(self), "%s", "") ||
        !step(self, symwin_comm_split(self->comm, SYMWIN_SPLIT_NONE, 0, NULL, &none), "%s", ""))
        return 0;
    announce(self,
             "Verification - %llu elements on each of %d ranks equal the host's own %s\n"
             "Results verified correctly\n",
             (unsigned long long)problem->count, problem->nranks, symwin_op_name(problem->op));
    return 1;
}

/* ---- the first steps and the last ------------------------------------------------------------ */

int begin(struct rank *self)
{
    const struct job *job = self->job;
    const int nranks = job->problem.nranks;
    symwin_device_info device;

    announce(self, "Starting AllReduce example with %d ranks\n", nranks);
    memset(&device, 0, sizeof device);
    return step(self, symwin_device_query(self->device, &device), "driver %s, device %d: %s",
                job->driver.name, self->device, device.name) &&
           step(self,
                symwin_comm_create(&job->id, nranks, self->rank, self->device, NULL, &self->comm),
                "communicator initialized using device %d", self->device);
}

symwin_status allocate(struct rank *self)
{
    const size_t bytes = self->job->bytes;
    symwin_status status = symwin_stream_create(self->device, &self->stream);

    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, bytes, 0, &self->send);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, bytes, 0, &self->recv);
    return status;
}

/* Releases what this rank has got, in reverse order. The communicator releases windows and
 * registrations that are still there. */
static symwin_status clean_up(struct rank *self)
{
    symwin_status stream = SYMWIN_OK, send, recv;

    symwin_comm_destroy(self->comm);
    self->comm = NULL;
    recv = symwin_mem_free(self->recv);
    send = symwin_mem_free(self->send);
    if (self->stream != NULL)
        stream = symwin_stream_destroy(self->device, self->stream);
    return stream != SYMWIN_OK ? stream : send != SYMWIN_OK ? send : recv;
}

/* ---- all ranks ------------------------------------------------------------------------------ */

static void *run_rank(void *argument)
{
    struct rank *self = argument;

    run_steps(self);
    step(self, clean_up(self), "%s", "");
    free(self->staging);
    return NULL;
}

/* Runs a thread per rank. Returns whether all succeeded. */
static int run(struct job *job)
{
    const int nranks = job->launch.count;

    pthread_barrier_init(&job->barrier, NULL, (unsigned)nranks);
    for (int r = 0; r < nranks; r++) {
        job->ranks[r].job = job;
        job->ranks[r].rank = job->launch.first + r;
        job->ranks[r].device = (job->launch.local_first + r) % job->driver.device_count;
    }
    common_threads(program, job->ranks, nranks, sizeof job->ranks[0], run_rank);
    pthread_barrier_destroy(&job->barrier);
    return !job->failed;
}

static int run_all(struct job *job)
{
    const size_t count = (size_t)job->launch.count;
    int ok = 0;

    job->bytes = (size_t)job->problem.count * symwin_type_bytes(job->problem.type);
    job->ranks = calloc(count, sizeof *job->ranks);
    job->expected = malloc(job->bytes);
    if (job->ranks == NULL || job->expected == NULL) {
        fprintf(stderr, "%s: no host memory for a result of %zu bytes\n", program, job->bytes);
        job->launch.alone = job->launch.forked;
    } else {
        ok = run(job);
    }
    free(job->expected);
    free(job->ranks);
    return ok;
}

/* Determines the driver, the number of ranks, and their id. Returns whether the ranks can start. */
static int start(const struct options *options, struct job *job)
{
    struct launch *launch = &job->launch;
    int most;

    if (symwin_driver_query(&job->driver) != SYMWIN_OK) {
        fprintf(stderr, "%s: %s\n", program, symwin_last_error());
        return 0;
    }
    if (launch->count == 0)
        launch->nranks = launch->count = job->driver.device_count;
    most = MOST_ON_A_DEVICE * job->driver.device_count;
    if (launch->processes == 1)
        launch->local_count = launch->count;
    if (launch->local_count > most) {
        if (launch->local_first == 0)
            fprintf(stderr, "%s: %d ranks are too many for %d device%s: start at most %d\n",
                    program, launch->local_count, job->driver.device_count,
                    job->driver.device_count > 1 ? "s" : "", most);
        return 0;
    }
    job->problem = options->problem;
    job->problem.nranks = launch->nranks;
    if (launch_id(launch, &job->id) == SYMWIN_OK)
        return 1;
    fprintf(stderr, "%s: %s\n", program, symwin_last_error());
    return 0;
}

static int run_program(const struct options *options, struct job *job)
{
    const int exit_status = launch_begin(options, &job->launch);
    int ok;

    if (exit_status == EXIT_SUCCESS) /* of the forked processes */
        printf("All resources cleaned up successfully\n");
    if (exit_status >= 0)
        return exit_status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* keeps the order of stdout and stderr */
    ok = start(options, job) && run_all(job);
    if (ok && job->launch.first == 0 && options->nproc == 0)
        printf("All resources cleaned up successfully\n");
    return launch_end(&job->launch, ok);
}

int main(int argc, char **argv)
{
    struct options options = {.nproc = 0};
    struct job job = {.failed = 0};
    int exit_status;

    common_begin();
    exit_status = options_parse(argc, argv, &options);
    if (exit_status < 0)
        exit_status = run_program(&options, &job);
    return common_end(program, exit_status);
}
