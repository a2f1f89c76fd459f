/* Handle exchange: memory of one process shown in another, by descriptors over the peer sockets.
 *
 * Each process sends the memory of its ranks to all others without being asked. So no process can
 * ask for memory outside the current registration, and only processes of the communicator have a
 * peer socket. If a rank's memory cannot be exported, its frame carries the error in place of a
 * descriptor, so nobody waits for it. The poll thread receives the frames (mailbox.c); the leader's
 * thread, which runs the exchange, imports their descriptors and closes them. After a failure all
 * expected frames are still taken: the next registration finds no old handles.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/window/window.h"

enum { SLICE_MS = 20 }; /* interval of checks whether the exchange has ended */

struct sw_handle_exchange {
    struct sw_group *group;
    uint64_t id;                /* the registration's number */
    struct sw_segment *segment; /* NULL: rank 0's multicast object is exchanged */
    int piece;                  /* of each rank; ranks with fewer pieces take no part */
    const char *call;
    int64_t deadline;
    symwin_status status; /* the first failure; its text is the thread's last error */
    CUresult answer;      /* of the driver to the last export or import */
    struct {
        int fd; /* owned: exported memory of this process; -1: none */
        symwin_status exported;
        int came; /* its frame was received */
    } rank[];
};

static int has_piece(const struct sw_handle_exchange *x, int rank)
{
    return x->segment == NULL ? rank == 0 : x->piece < x->segment->rank[rank].stretch.pieces;
}

static CUmemGenericAllocationHandle memory_of(const struct sw_handle_exchange *x, int rank)
{
    return x->segment == NULL ? x->group->object.object
                              : x->segment->rank[rank].pieces[x->piece].memory;
}

static size_t bytes_of(const struct sw_handle_exchange *x, int rank)
{
    return x->segment == NULL ? x->group->object.bytes
                              : x->segment->rank[rank].pieces[x->piece].bytes;
}

static int next_local(const struct sw_handle_exchange *x, int rank)
{
    while (rank < x->group->nranks && !(sw_group_is_local(x->group, rank) && has_piece(x, rank)))
        rank++;
    return rank;
}

/* What the exchange carries, for messages. */
static const char *content_of(const struct sw_handle_exchange *x)
{
    return x->segment != NULL ? "memory" : "multicast object";
}

/* A descriptor keeps the memory alive, so a forked child must never have one: it joins the
 * close-on-fork set under the lock that created it. */
symwin_status sw_handle_exchange_export(CUmemGenericAllocationHandle memory, const char *what,
                                        int rank, int *out, CUresult *answer)
{
    CUresult result;
    int fd = -1;
    int kept;

    sw_poll_lock();
    result = sw_drv.cuMemExportToShareableHandle(&fd, memory,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    kept = result == CUDA_SUCCESS && sw_fork_set_add(fd);
    sw_poll_unlock();
    *answer = result;
    if (kept) {
        *out = fd;
        return SYMWIN_OK;
    }
    if (result == CUDA_SUCCESS) {
        close(fd);
        return sw_fail(SYMWIN_NO_MEMORY,
                       "rank %d's %s cannot be shared with other processes: file descriptor %d is "
                       "above the library's limit; close some",
                       rank, what, fd);
    }
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "rank %d's %s cannot be shared with other processes: it was not created for "
                       "export as a file descriptor, or was itself imported",
                       rank, what);
    return sw_check(result, "cuMemExportToShareableHandle of rank %d's %s", rank, what);
}

static void export_all(struct sw_handle_exchange *x)
{
    char text[SW_TEXT_BYTES];
    int r;

    for (r = next_local(x, 0); r < x->group->nranks; r = next_local(x, r + 1)) {
        snprintf(text, sizeof text, "%s", symwin_last_error());
        x->rank[r].exported = sw_handle_exchange_export(memory_of(x, r), content_of(x), r,
                                                        &x->rank[r].fd, &x->answer);
        if (x->status == SYMWIN_OK)
            x->status = x->rank[r].exported;
        else
            sw_error_restore(text);
    }
}

/* The end of the current slice of a wait for `process`, which is told to the other ranks. */
static int64_t wait_slice(struct sw_handle_exchange *x, int process)
{
    const int64_t slice = sw_now_ms() + SLICE_MS;

    sw_exchange_waits_for(x->group->exchange, x->group->leader,
                          sw_group_leader_of(x->group, process));
    return slice < x->deadline ? slice : x->deadline;
}

/* A process sends nothing. It may wait itself, for room in the socket of a third one. */
static void fail_late(struct sw_handle_exchange *x, int process)
{
    struct sw_exchange *exchange = x->group->exchange;

    sw_exchange_fail(exchange, SYMWIN_TIMEOUT,
                     sw_exchange_culprit(exchange, sw_group_leader_of(x->group, process)));
}

/* The connection to a process has failed, which ends the communicator. */
static void fail_connection(struct sw_handle_exchange *x, int process, symwin_status why)
{
    sw_exchange_fail(x->group->exchange, why, sw_group_leader_of(x->group, process));
}

/* Waits for room in the socket, which the other process always reads. Gives up a slice before the
 * others do, so that its reason is the one that counts. */
static void send_one(struct sw_handle_exchange *x, int process, int rank)
{
    union sw_frame frame;
    int error;

    memset(&frame, 0, sizeof frame.handle); /* not the whole union: other frames are larger */
    frame.handle.sequence = x->id;
    frame.handle.bytes = bytes_of(x, rank);
    frame.handle.rank = rank;
    frame.handle.status = (int32_t)x->rank[rank].exported;
    sw_frame_seal(&frame, SW_FRAME_HANDLE);
    do
        error = sw_frame_send(x->group->sockets[process]->watch.fd, &frame, x->rank[rank].fd,
                              wait_slice(x, process));
    while ((error == ETIMEDOUT || error == ETOOMANYREFS) && sw_now_ms() < x->deadline - SLICE_MS &&
           !sw_exchange_ended(x->group->exchange));
    if (error == EPIPE || error == ECONNRESET)
        fail_connection(x, process, SYMWIN_PEER_LOST);
    else if (error == ETIMEDOUT)
        fail_connection(x, process, SYMWIN_TIMEOUT);
    else if (error != 0) /* this process has no resources to send */
        sw_exchange_fail(x->group->exchange, SYMWIN_NO_MEMORY, x->group->leader);
}

static void send_all(struct sw_handle_exchange *x)
{
    int p, r;

    for (r = next_local(x, 0); r < x->group->nranks; r = next_local(x, r + 1))
        for (p = 0; p < x->group->processes; p++)
            if (x->group->sockets[p] != NULL && !sw_exchange_ended(x->group->exchange))
                send_one(x, p, r);
}

/* Takes over the handle. */
static symwin_status map_sent(struct sw_group *group, struct sw_segment *segment, int rank,
                              CUmemGenericAllocationHandle memory, uint64_t bytes)
{
    const symwin_status status = sw_memory_check_sent(memory, rank);

    if (status == SYMWIN_OK)
        return sw_segment_map(group, segment, rank, memory, (size_t)bytes, 0);
    sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    return status;
}

static symwin_status import_one(struct sw_handle_exchange *x, const struct sw_frame_handle *handle,
                                int fd)
{
    CUmemGenericAllocationHandle memory = 0;
    symwin_status status = SYMWIN_OK;

    if (x->segment != NULL)
        status = sw_segment_expects(x->segment, handle->rank, handle->bytes);
    else if (handle->bytes != x->group->object.bytes)
        status = sw_fail(SYMWIN_MISMATCH, "rank %d sent a multicast object of %llu bytes, not %zu",
                         handle->rank, (unsigned long long)handle->bytes, x->group->object.bytes);
    if (status != SYMWIN_OK)
        return status;
    x->answer = sw_drv.cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    status = sw_check(x->answer, "cuMemImportFromShareableHandle of rank %d's %s", handle->rank,
                      content_of(x));
    if (status == SYMWIN_OK && x->segment == NULL)
        x->group->object.object = memory;
    if (status != SYMWIN_OK || x->segment == NULL)
        return status;
    return map_sent(x->group, x->segment, handle->rank, memory, handle->bytes);
}

/* Whether the handle belongs to this exchange. The mailbox has checked who sent it. */
static int is_expected(const struct sw_handle_exchange *x, const struct sw_received_handle *h)
{
    const int rank = h->frame.rank;

    return h->frame.sequence == x->id && has_piece(x, rank) && !x->rank[rank].came &&
           (h->fd >= 0 || h->error != 0) == (h->frame.status == SYMWIN_OK);
}

static void take_one(struct sw_handle_exchange *x, const struct sw_received_handle *h)
{
    if (!is_expected(x, h)) {
        sw_closer_close(h->fd);
        sw_exchange_fail_frame(x->group->exchange,
                               sw_group_leader_of(x->group, x->group->process_of[h->frame.rank]));
        return;
    }
    x->rank[h->frame.rank].came = 1;
    if (x->status == SYMWIN_OK && h->error != 0)
        x->status = sw_fail(SYMWIN_NO_MEMORY,
                            "no file descriptor is left for rank %d's %s; raise ulimit -n",
                            h->frame.rank, content_of(x));
    else if (x->status == SYMWIN_OK && h->fd >= 0)
        x->status = import_one(x, &h->frame, h->fd);
    /* A descriptor that the driver accepted is memory, and closing it does not block. */
    if (h->fd >= 0 && x->status == SYMWIN_OK)
        sw_fork_set_close(h->fd);
    else
        sw_closer_close(h->fd);
}

static int is_missing(const struct sw_handle_exchange *x, int rank)
{
    const struct sw_group *group = x->group;

    return group->host_of[rank] == group->host && !sw_group_is_local(group, rank) &&
           has_piece(x, rank) && !x->rank[rank].came;
}

static symwin_status receive_all(struct sw_handle_exchange *x)
{
    struct sw_exchange *exchange = x->group->exchange;
    struct sw_received_handle handle;
    int r = 0;

    while (r < x->group->nranks) {
        const int process = x->group->process_of[r];

        if (!is_missing(x, r))
            r++;
        else if (sw_exchange_ended(exchange))
            return sw_exchange_settled(exchange, x->call);
        else if (sw_mailbox_wait_handle(x->group, wait_slice(x, process), &handle))
            take_one(x, &handle);
        else if (sw_now_ms() >= x->deadline)
            fail_late(x, process);
    }
    return x->status;
}

symwin_status sw_handle_exchange_create(struct sw_group *group)
{
    struct sw_handle_exchange *x = calloc(1, sizeof *x + (size_t)group->nranks * sizeof x->rank[0]);

    if (x == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ranks", group->nranks);
    x->group = group;
    group->handle_exchange = x;
    return SYMWIN_OK;
}

/* With the id, the segment and the piece set. */
static symwin_status run(struct sw_handle_exchange *x, int timeout_ms, const char *call)
{
    struct sw_group *group = x->group;
    symwin_status status;
    int r;

    x->call = call;
    x->deadline = sw_now_ms() + timeout_ms;
    x->status = SYMWIN_OK;
    x->answer = CUDA_SUCCESS;
    for (r = 0; r < group->nranks; r++) {
        x->rank[r].fd = -1;
        x->rank[r].came = 0;
    }
    export_all(x);
    send_all(x);
    status = receive_all(x);
    sw_exchange_waits_for(group->exchange, group->leader, -1);
    for (r = 0; r < group->nranks; r++)
        if (x->rank[r].fd >= 0)
            sw_fork_set_close(x->rank[r].fd);
    return status;
}

symwin_status sw_handle_exchange_run(struct sw_group *group, struct sw_segment *segment, int piece,
                                     int timeout_ms, const char *call)
{
    struct sw_handle_exchange *x = group->handle_exchange;

    x->id = segment->id;
    x->segment = segment;
    x->piece = piece;
    return run(x, timeout_ms, call);
}

symwin_status sw_handle_exchange_object(struct sw_group *group, uint64_t id, int timeout_ms,
                                        const char *call, CUresult *answer)
{
    struct sw_handle_exchange *x = group->handle_exchange;
    symwin_status status;

    x->id = id;
    x->segment = NULL;
    status = run(x, timeout_ms, call);
    *answer = x->answer;
    return status;
}

/* ---- between hosts ---- */

symwin_status sw_handle_exchange_export_fabric(CUmemGenericAllocationHandle memory,
                                               const char *what, CUmemFabricHandle *handle,
                                               CUresult *answer)
{
    const CUresult result = sw_drv.cuMemExportToShareableHandle(handle, memory,
                                                                CU_MEM_HANDLE_TYPE_FABRIC, 0);

    *answer = result;
    if (result == CUDA_ERROR_INVALID_VALUE)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "the %s cannot be shared with other hosts: it was itself imported, or not created for "
            "fabric handles, which need NVLink between the hosts and a common IMEX channel",
            what);
    return sw_check(result, "cuMemExportToShareableHandle of the %s as a fabric handle", what);
}

symwin_status sw_handle_exchange_fabric(const struct sw_segment *segment, int rank, int piece,
                                        uint64_t words[SW_FABRIC_WORDS])
{
    const struct sw_segment_piece *own = &segment->rank[rank].pieces[piece];
    CUmemFabricHandle handle;
    CUresult answer;
    const symwin_status status = sw_handle_exchange_export_fabric(own->memory, "memory", &handle,
                                                                  &answer);

    if (status != SYMWIN_OK)
        return status;
    memcpy(words, &handle, sizeof handle);
    words[SW_FABRIC_WORDS - 1] = own->bytes;
    return SYMWIN_OK;
}

symwin_status sw_handle_exchange_import(struct sw_group *group, struct sw_segment *segment,
                                        int rank, const uint64_t words[SW_FABRIC_WORDS])
{
    const uint64_t bytes = words[SW_FABRIC_WORDS - 1];
    CUmemGenericAllocationHandle memory = 0;
    CUmemFabricHandle handle;
    symwin_status status = sw_segment_expects(segment, rank, bytes);

    if (status != SYMWIN_OK)
        return status;
    memcpy(&handle, words, sizeof handle);
    status = sw_check(
        sw_drv.cuMemImportFromShareableHandle(&memory, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
        "cuMemImportFromShareableHandle of rank %d's memory, on another host", rank);
    if (status != SYMWIN_OK)
        return status;
    return map_sent(group, segment, rank, memory, bytes);
}
