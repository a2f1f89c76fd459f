/* allreduce_sm: an all-reduce over symmetric-memory windows.
 *
 *     NTHREADS=4 allreduce_sm                   four ranks as threads, 1048576 floats, sum
 *     NTHREADS=4 allreduce_sm 64M bf16 max      another size, type and operation
 *     mpirun -np 4 allreduce_sm                 ranks as processes; also srun and torchrun
 *     allreduce_sm --nproc 4                    the same without a launcher
 *     SYMWIN_DRIVER=emu allreduce_sm            on the emulated driver, GPU or not
 *
 * What a rank does is in run_steps(): allocate, register, initialise, all-reduce, verify, deregister.
 * clean_up() is the way back from wherever it got to. host.c has the data and the host's own result
 * that every element is compared with, launch.c the processes, options.c the command line.
 */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#endif
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "launch.h"
#include "options.h"
#include "symwin.h"

enum { CHUNK = 1 << 18 }; /* elements that a rank has in host memory at a time */

/* What the ranks of a process share; constant while they run, but for the last member and `expected`.
 */
struct job {
    struct problem problem;
    struct launch launch;
    size_t bytes; /* of one buffer */
    symwin_driver_info driver;
    symwin_unique_id id;     /* by which the ranks find each other */
    unsigned char *expected; /* the host's result; each rank computes its share */
    struct rank *ranks;
    pthread_barrier_t barrier;
    int failed; /* some rank did; written by rank 0 between two barriers */
};

struct rank {
    struct job *job;
    int rank;
    int device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    void *send, *recv; /* device memory */
    symwin_window *send_window, *recv_window;
    unsigned char *staging; /* host memory, CHUNK elements */

    int failed;          /* in the step that has just ended */
    char line[1024];     /* what the rank says about it; "": nothing */
    char complaint[256]; /* a failure of the example's own, in place of symwin_last_error() */
};

/* ---- what the ranks say --------------------------------------------------------------------- */

/* Ends a step: prints the lines of this process's ranks in rank order and tells each whether all of
 * them have succeeded. So a failure on one rank ends the example on all, and nobody waits for a rank
 * that has left; ranks of other processes learn it from the communicator. Where the step went wrong,
 * the reason takes the line's place. */
static int step(struct rank *self, symwin_status status, const char *format, ...)
{
    struct job *job = self->job;
    va_list args;

    self->failed = status != SYMWIN_OK;
    va_start(args, format);
    vsnprintf(self->line, sizeof self->line, format, args);
    va_end(args);
    if (self->failed)
        snprintf(self->line, sizeof self->line, "failed: %s: %s", symwin_status_name(status),
                 self->complaint[0] != '\0' ? self->complaint : symwin_last_error());

    pthread_barrier_wait(&job->barrier);
    if (self->rank == job->launch.first) {
        for (int i = 0; i < job->launch.count; i++) {
            const struct rank *rank = &job->ranks[i];

            if (rank->line[0] != '\0')
                fprintf(rank->failed ? stderr : stdout, "  Rank %d %s\n", rank->rank, rank->line);
            job->failed |= rank->failed;
        }
    }
    pthread_barrier_wait(&job->barrier);
    if (job->failed && self->comm != NULL)
        symwin_comm_abort(self->comm); /* for those in other processes */
    return !job->failed;
}

/* What is said once for all ranks. Between two steps only rank 0 prints, so this cannot overtake. */
static void announce(const struct rank *self, const char *format, ...)
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

/* ---- the steps of one rank ------------------------------------------------------------------ */

static symwin_status allocate(struct rank *self)
{
    const struct job *job = self->job;
    symwin_status status;

    self->staging = malloc(CHUNK * symwin_type_bytes(job->problem.type));
    if (self->staging == NULL)
        return complain(self, SYMWIN_NO_MEMORY, "no host memory for the staging buffer");
    status = symwin_stream_create(self->device, &self->stream);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, job->bytes, 0, &self->send);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, job->bytes, 0, &self->recv);
    return status;
}

/* Collective: all ranks register their send buffers, then all their receive buffers. */
static symwin_status register_windows(struct rank *self)
{
    const size_t bytes = self->job->bytes;
    symwin_status status;

    status = symwin_window_register(self->comm, self->send, bytes, 0, &self->send_window);
    if (status == SYMWIN_OK)
        status = symwin_window_register(self->comm, self->recv, bytes, 0, &self->recv_window);
    return status;
}

/* The elements of the chunk that begins at element `first`. */
static size_t chunk(const struct problem *problem, uint64_t first)
{
    return problem->count - first < CHUNK ? (size_t)(problem->count - first) : CHUNK;
}

/* Fills the send buffer, and this rank's share of the host's own result. */
static symwin_status initialise(struct rank *self)
{
    const struct job *job = self->job;
    const struct problem *problem = &job->problem;
    const size_t bytes = symwin_type_bytes(problem->type);

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

/* The all-reduce itself only puts a kernel into the stream; then the host waits for it. */
static symwin_status allreduce(struct rank *self)
{
    const struct problem *problem = &self->job->problem;
    const symwin_allreduce_options options = {.size = sizeof options, .algo = problem->algo};
    symwin_status status;

    status = symwin_allreduce_with(self->comm, self->send, self->recv, problem->count,
                                   problem->type, problem->op, &options, self->stream);
    if (status != SYMWIN_OK) {
        symwin_comm_abort(self->comm); /* or the peers' kernels would wait for this rank's */
        return status;
    }
    status = symwin_stream_synchronize(self->device, self->stream);
    return status != SYMWIN_OK ? status : symwin_comm_check(self->comm);
}

/* Compares every byte of the receive buffer with the host's result. */
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

/* Local: the ranks need not wait for each other. */
static symwin_status deregister_windows(struct rank *self)
{
    const symwin_status send = symwin_window_deregister(self->comm, self->send_window);
    const symwin_status recv = symwin_window_deregister(self->comm, self->recv_window);

    return send != SYMWIN_OK ? send : recv;
}

/* Gives back what this rank has got, in reverse order. Windows that are still registered go with
 * their communicator. */
static symwin_status clean_up(struct rank *self)
{
    symwin_status stream = SYMWIN_OK, send, recv;

    symwin_comm_destroy(self->comm);
    self->comm = NULL;
    recv = symwin_mem_free(self->recv);
    send = symwin_mem_free(self->send);
    if (self->stream != NULL)
        stream = symwin_stream_destroy(self->device, self->stream);
    free(self->staging);
    return stream != SYMWIN_OK ? stream : send != SYMWIN_OK ? send : recv;
}

static void run_steps(struct rank *self)
{
    const struct job *job = self->job;
    const struct problem *problem = &job->problem;
    const double megabytes = (double)job->bytes / (1 << 20);
    symwin_device_info device;

    announce(self, "Starting AllReduce example with %d ranks\n", problem->nranks);
    memset(&device, 0, sizeof device);
    if (!step(self, symwin_device_query(self->device, &device), "driver %s, device %d: %s",
              job->driver.name, self->device, device.name))
        return;
    if (!step(self,
              symwin_comm_create(&job->id, problem->nranks, self->rank, self->device, NULL,
                                 &self->comm),
              "communicator initialized using device %d", self->device))
        return;

    announce(self, "Symmetric memory:\n");
    if (!step(self, allocate(self), "allocated %.2f MB per buffer", megabytes))
        return;
    if (!step(self, register_windows(self), "buffers registered as windows"))
        return;
    if (!step(self, initialise(self), "data initialized"))
        return;

    announce(self, "Starting AllReduce with %llu elements (%.4g MB)\n",
             (unsigned long long)problem->count, megabytes);
    if (!step(self, allreduce(self), "%s", ""))
        return;
    announce(self, "AllReduce completed successfully\n");

    if (!step(self, verify(self), "%s", ""))
        return;
    if (self->rank == job->launch.first) { /* a process speaks for its own ranks */
        if (job->launch.processes == 1)
            printf("Verification - %llu elements on each of %d ranks equal the host's own %s\n",
                   (unsigned long long)problem->count, problem->nranks,
                   symwin_op_name(problem->op));
        else
            printf("Verification - %llu elements on ranks %d to %d equal the host's own %s\n",
                   (unsigned long long)problem->count, job->launch.first,
                   job->launch.first + job->launch.count - 1, symwin_op_name(problem->op));
        printf("Results verified correctly\n");
    }

    step(self, deregister_windows(self), "buffers deregistered");
}

static void *run_rank(void *argument)
{
    struct rank *self = argument;

    run_steps(self);
    step(self, clean_up(self), "%s", "");
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------ */

/* Starts a thread for every rank and waits for them. Returns whether all went well. */
static int run(struct job *job, pthread_t *threads)
{
    const int nranks = job->launch.count;

    pthread_barrier_init(&job->barrier, NULL, (unsigned)nranks);
    for (int r = 0; r < nranks; r++) {
        job->ranks[r].job = job;
        job->ranks[r].rank = job->launch.first + r;
        job->ranks[r].device = (job->launch.local_first + r) % job->driver.device_count;
    }
    for (int r = 0; r < nranks; r++) {
        if (pthread_create(&threads[r], NULL, run_rank, &job->ranks[r]) != 0) {
            fprintf(stderr, "allreduce_sm: cannot start a thread for rank %d\n", r);
            exit(EXIT_FAILURE); /* the ranks before it wait for it */
        }
    }
    for (int r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&job->barrier);
    return !job->failed;
}

static int run_all(struct job *job)
{
    const size_t count = (size_t)job->launch.count;
    pthread_t *threads = calloc(count, sizeof *threads);
    int ok = 0;

    job->bytes = (size_t)job->problem.count * symwin_type_bytes(job->problem.type);
    job->ranks = calloc(count, sizeof *job->ranks);
    job->expected = malloc(job->bytes);
    if (threads == NULL || job->ranks == NULL || job->expected == NULL)
        fprintf(stderr, "allreduce_sm: no host memory for a result of %zu bytes\n", job->bytes);
    else
        ok = run(job, threads);
    free(job->expected);
    free(job->ranks);
    free(threads);
    return ok;
}

int main(int argc, char **argv)
{
    struct options options = {.nproc = 0};
    struct job job = {.failed = 0};
    int exit_status = options_parse(argc, argv, &options);
    int ok = 0;

    if (exit_status < 0)
        exit_status = launch_begin(&options, &job.launch);
    if (exit_status >= 0)
        return exit_status;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* or errors would overtake */
    if (symwin_driver_query(&job.driver) == SYMWIN_OK) {
        if (job.launch.count == 0)
            job.launch.nranks = job.launch.count = job.driver.device_count;
        ok = launch_id(&job.launch, &job.id) == SYMWIN_OK;
    }
    job.problem = options.problem;
    job.problem.nranks = job.launch.nranks;
    if (ok)
        ok = run_all(&job);
    else
        fprintf(stderr, "allreduce_sm: %s\n", symwin_last_error());
    if (ok && job.launch.first == 0)
        printf("All resources cleaned up successfully\n");
    launch_end(&job.launch);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
