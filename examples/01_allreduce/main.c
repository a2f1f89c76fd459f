/* allreduce_sm: an all-reduce over symmetric-memory windows.
 *
 *     NTHREADS=4 allreduce_sm                   four ranks as threads, 1048576 floats, sum
 *     NTHREADS=4 allreduce_sm 64M bf16 max      another size, type and operation
 *     mpirun -np 4 allreduce_sm                 ranks as processes; also srun and torchrun
 *     allreduce_sm --nproc 4                    the same without a launcher
 *     SYMWIN_DRIVER=emu allreduce_sm            on the emulated driver, GPU or not
 *
 * run_steps() has the steps of a rank: allocate, register, initialise, all-reduce, verify,
 * deregister. ranks.c starts the ranks, prints their lines, allocates, and releases whatever a rank
 * has got; host.c has the data and the expected result, launch.c the processes, options.c the
 * command line.
 */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#endif
#include "ranks.h"
#include "symwin.h"

const char program[] = "allreduce_sm";
const char purpose[] = "All-reduces COUNT elements over symmetric-memory windows";

/* ---- the steps of one rank ------------------------------------------------------------------ */

/* Collective: all ranks register their send buffers, then their receive buffers. */
static symwin_status register_windows(struct rank *self, symwin_window *windows[2])
{
    const size_t bytes = self->job->bytes;
    symwin_status status;

    status = symwin_window_register(self->comm, self->send, bytes, 0, &windows[0]);
    if (status == SYMWIN_OK)
        status = symwin_window_register(self->comm, self->recv, bytes, 0, &windows[1]);
    return status;
}

/* The all-reduce only enqueues a kernel; the host then waits for it. */
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

/* Local: ranks do not wait for each other. */
static symwin_status deregister_windows(struct rank *self, symwin_window *const windows[2])
{
    const symwin_status send = symwin_window_deregister(self->comm, windows[0]);
    const symwin_status recv = symwin_window_deregister(self->comm, windows[1]);

    return send != SYMWIN_OK ? send : recv;
}

void run_steps(struct rank *self)
{
    const struct job *job = self->job;
    const double megabytes = (double)job->bytes / (1 << 20);
    symwin_window *windows[2]; /* of the send and the receive buffer */

    if (!begin(self))
        return;
    announce(self, "Symmetric memory:\n");
    if (!step(self, allocate(self), "allocated %.2f MB per buffer", megabytes))
        return;
    if (!step(self, register_windows(self, windows), "buffers registered as windows"))
        return;
    if (!step(self, initialise(self), "data initialized"))
        return;

    announce(self, "Starting AllReduce with %llu elements (%.4g MB)\n",
             (unsigned long long)job->problem.count, megabytes);
    if (!step(self, allreduce(self), "%s", ""))
        return;
    announce(self, "AllReduce completed successfully\n");

    if (!verdict(self))
        return;
    step(self, deregister_windows(self, windows), "buffers deregistered");
}
