/* allreduce_sm: an all-reduce over symmetric-memory windows.
 *
 *     NTHREADS=4 allreduce_sm                   four ranks as threads, 1048576 floats, sum
 *     NTHREADS=4 allreduce_sm 64M bf16 max      another size, type and operation
 *     mpirun -np 4 allreduce_sm                 ranks as processes; also srun and torchrun
 *     allreduce_sm --nproc 4                    the same without a launcher
 *     SYMWIN_DRIVER=emu allreduce_sm            on the emulated driver, GPU or not
 *
 * run_steps() has the steps of a rank: allocate, register, initialise, all-reduce, verify,
 * deregister. clean_up() releases whatever a rank has got. ranks.c starts the ranks and prints
 * their lines, host.c has the data and the expected result, launch.c the processes, options.c the
 * command line.
 */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#endif
#include <string.h>

#include "ranks.h"
#include "symwin.h"

const char program[] = "allreduce_sm";
const char purpose[] = "All-reduces COUNT elements over symmetric-memory windows";

/* ---- the steps of one rank ------------------------------------------------------------------ */

static symwin_status allocate(struct rank *self)
{
    const struct job *job = self->job;
    symwin_status status;

    status = symwin_stream_create(self->device, &self->stream);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, job->bytes, 0, &self->send);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(self->device, job->bytes, 0, &self->recv);
    return status;
}

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

/* Releases what this rank has got, in reverse order. The communicator releases windows that are
 * still registered. */
symwin_status clean_up(struct rank *self)
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

void run_steps(struct rank *self)
{
    const struct job *job = self->job;
    const struct problem *problem = &job->problem;
    const double megabytes = (double)job->bytes / (1 << 20);
    symwin_window *windows[2]; /* of the send and the receive buffer */
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
    if (!step(self, register_windows(self, windows), "buffers registered as windows"))
        return;
    if (!step(self, initialise(self), "data initialized"))
        return;

    announce(self, "Starting AllReduce with %llu elements (%.4g MB)\n",
             (unsigned long long)problem->count, megabytes);
    if (!step(self, allreduce(self), "%s", ""))
        return;
    announce(self, "AllReduce completed successfully\n");

    if (!verdict(self))
        return;
    step(self, deregister_windows(self, windows), "buffers deregistered");
}
