/* allreduce_ub: an all-reduce over registered user buffers.
 *
 *     NTHREADS=4 allreduce_ub                   four ranks as threads, 1048576 floats, sum
 *     allreduce_ub --nproc 4                    four processes; also mpirun, srun, torchrun
 *     SYMWIN_DRIVER=emu allreduce_ub            on the emulated driver, GPU or not
 *
 * Each rank registers its two buffers locally; the first all-reduce connects them with the other
 * ranks'. ranks.c, host.c, launch.c and options.c are those of 01_allreduce.
 */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#endif
#include <stdio.h>

#include "ranks.h"
#include "symwin.h"

const char program[] = "allreduce_ub";
const char purpose[] = "All-reduces COUNT elements over registered user buffers";

/* ---- the steps of one rank ------------------------------------------------------------------ */

/* Local: no rank waits for another, and nothing is mapped yet. */
static symwin_status register_buffers(struct rank *self, symwin_registration *buffers[2])
{
    const size_t bytes = self->job->bytes;
    symwin_status status;

    status = symwin_register(self->comm, self->send, bytes, &buffers[0]);
    if (status == SYMWIN_OK)
        status = symwin_register(self->comm, self->recv, bytes, &buffers[1]);
    return status;
}

/* In the first call on these buffers the host waits until all ranks have mapped each other's. Later
 * calls only enqueue a kernel. */
static symwin_status allreduce(struct rank *self)
{
    const struct problem *problem = &self->job->problem;
    const symwin_allreduce_options options = {.size = sizeof options, .algo = problem->algo};
    symwin_status status;

    status = symwin_allreduce_with(self->comm, self->send, self->recv, problem->count,
                                   problem->type, problem->op, &options, self->stream);
    if (status != SYMWIN_OK) {
        symwin_comm_abort(self->comm); /* else the peers' kernels would wait for this rank's */
        return status;
    }
    status = symwin_stream_synchronize(self->device, self->stream);
    return status != SYMWIN_OK ? status : symwin_comm_check(self->comm);
}

/* Writes whether the all-reduce connected the buffers; "" if that is not known. */
static symwin_status ask(struct rank *self, symwin_registration *const buffers[2], char *words,
                         size_t bytes)
{
    symwin_status status = SYMWIN_OK;

    for (int i = 0; i < 2 && status == SYMWIN_OK; i++) {
        symwin_registration_info info;

        status = symwin_registration_query(self->comm, buffers[i], &info);
        if (status != SYMWIN_OK || info.transports == 0) {
            if (status == SYMWIN_OK)
                snprintf(words, bytes, "buffers not connected: %s", info.refused);
            break;
        }
        snprintf(words, bytes, "buffers connected");
    }
    return status;
}

/* Local, too. */
static symwin_status deregister_buffers(struct rank *self, symwin_registration *const buffers[2])
{
    const symwin_status send = symwin_deregister(self->comm, buffers[0]);
    const symwin_status recv = symwin_deregister(self->comm, buffers[1]);

    return send != SYMWIN_OK ? send : recv;
}

void run_steps(struct rank *self)
{
    const struct job *job = self->job;
    const double megabytes = (double)job->bytes / (1 << 20);
    symwin_registration *buffers[2]; /* send and receive */
    char words[320] = "";
    symwin_status status;

    if (!begin(self))
        return;
    announce(self, "User buffers:\n");
    if (!step(self, allocate(self), "allocated %.2f MB per buffer", megabytes))
        return;
    if (!step(self, register_buffers(self, buffers), "buffers registered"))
        return;
    if (!step(self, initialise(self), "data initialized"))
        return;

    announce(self, "Starting AllReduce with %llu elements (%.4g MB)\n",
             (unsigned long long)job->problem.count, megabytes);
    if (!step(self, allreduce(self), "%s", ""))
        return;
    announce(self, "AllReduce completed successfully\n");
    status = ask(self, buffers, words, sizeof words);
    if (!step(self, status, "%s", words))
        return;

    if (!verdict(self))
        return;
    step(self, deregister_buffers(self, buffers), "buffers deregistered");
}
