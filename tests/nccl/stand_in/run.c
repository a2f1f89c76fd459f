/* Runs calls of the stand-in together: what each rank sends to each, and what it makes of that. All
 * transfers progress together, in any order but that of each pair of ranks in a plane. A call that
 * cannot go on, because a rank is lost, the communicator was aborted or the deadline has passed,
 * gives its communicator an error and ends. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* What stands before a message. Both ends must agree. */
struct head {
    uint64_t bytes, what; /* kind, type and operation of a collective */
};

struct transfer {
    struct call *call;
    int peer, sends, done;
    struct transfer *before; /* of the same pair; NULL: none */
    char *at;
    size_t moved;             /* bytes, those of the head included */
    struct head head, theirs; /* `theirs` is what came */
};

struct transfers {
    struct transfer *list;
    int count;
};

/* Who sends, who receives, and where a rank's part is. */
struct shape {
    int root_sends, root_receives; /* and nobody else */
    int in_parts, out_parts;       /* a part for each rank, or one for all */
    int reduces;
};

static const struct shape shapes[] = {
    [KIND_ALL_REDUCE] = {0, 0, 0, 0, 1}, [KIND_REDUCE_SCATTER] = {0, 0, 1, 0, 1},
    [KIND_REDUCE] = {0, 1, 0, 0, 1},     [KIND_ALL_GATHER] = {0, 0, 0, 1, 0},
    [KIND_ALL_TO_ALL] = {0, 0, 1, 1, 0}, [KIND_BROADCAST] = {1, 0, 0, 0, 0},
    [KIND_GATHER] = {0, 1, 0, 1, 0},     [KIND_SCATTER] = {1, 0, 1, 0, 0},
};

static int is_pair(const struct call *call)
{
    return call->kind == KIND_SEND || call->kind == KIND_RECV;
}

static enum plane plane_of(const struct call *call)
{
    return is_pair(call) ? PLANE_PAIR : PLANE_COLLECTIVE;
}

/* ---- the transfers of a call ---- */

static void add(struct transfers *transfers, struct call *call, int peer, int sends, char *at,
                size_t bytes)
{
    const uint64_t what = is_pair(call) ? KIND_SEND
                                        : (uint64_t)call->kind | (uint64_t)call->type << 8 |
                                              (uint64_t)(unsigned)call->op << 16;
    struct transfer *t = &transfers->list[transfers->count];

    *t = (struct transfer){
        .call = call, .peer = peer, .sends = sends, .at = at, .head = {bytes, what}};
    for (int i = transfers->count - 1; i >= 0 && t->before == NULL; i--) {
        struct transfer *other = &transfers->list[i];

        if (other->call->comm == call->comm && other->peer == peer && other->sends == sends &&
            plane_of(other->call) == plane_of(call))
            t->before = other;
    }
    transfers->count++;
}

void copy_input(void *to, const void *from, size_t bytes)
{
    uint32_t word;

    if (bytes != sizeof word || (uintptr_t)from % sizeof word != 0) {
        memmove(to, from, bytes);
        return;
    }
    word = __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED);
    memcpy(to, &word, sizeof word);
}

static ncclResult_t prepare_collective(struct transfers *transfers, struct call *call)
{
    const struct shape *shape = &shapes[call->kind];
    const int me = call->comm->rank, ranks = call->comm->ranks;
    const size_t bytes = call->count * type_width(call->type);
    const size_t in_count = call->count * (shape->in_parts ? (size_t)ranks : 1);
    const int i_send = !shape->root_sends || call->root == me;
    const int i_receive = !shape->root_receives || call->root == me;
    char *in = (char *)(uintptr_t)call->in; /* only read */

    if (shape->reduces && i_receive) {
        call->scratch = malloc(bytes * (size_t)ranks + 1);
        if (call->scratch == NULL)
            return refuse(ncclSystemError, "out of memory");
    }
    if (shape->reduces && call->op == ncclNumOps) {
        call->scaled = malloc(in_count * type_width(call->type) + 1);
        if (call->scaled == NULL)
            return refuse(ncclSystemError, "out of memory");
        scale(&call->premul, in_count, call->in, call->scaled);
        in = call->scaled;
    }
    for (int r = 0; r < ranks; r++) {
        const size_t part = (size_t)r * bytes;
        char *from = in + (shape->in_parts ? part : 0);
        char *to = shape->reduces ? call->scratch + part
                                  : call->out + (shape->out_parts ? part : 0);
        const int to_r = i_send && (!shape->root_receives || call->root == r);
        const int from_r = i_receive && (!shape->root_sends || call->root == r);

        if (r == me && to_r && from_r && bytes > 0)
            copy_input(to, from, bytes);
        if (r != me && to_r)
            add(transfers, call, r, 1, from, bytes);
        if (r != me && from_r)
            add(transfers, call, r, 0, to, bytes);
    }
    return ncclSuccess;
}

static ncclResult_t prepare(struct transfers *transfers, struct call *call)
{
    const size_t bytes = call->count * type_width(call->type);

    if (call->kind == KIND_SEND)
        add(transfers, call, call->root, 1, (char *)(uintptr_t)call->in, bytes);
    else if (call->kind == KIND_RECV)
        add(transfers, call, call->root, 0, call->out, bytes);
    else
        return prepare_collective(transfers, call);
    return ncclSuccess;
}

static void finish(struct call *call)
{
    struct ncclComm *comm = call->comm;

    if (call->scratch != NULL && !comm_is_over(comm))
        reduce(call->type, call->op, comm->ranks, call->count, call->scratch, call->out);
    free(call->scratch);
    free(call->scaled);
    call->scratch = call->scaled = NULL;
}

/* ---- progress ---- */

/* Moves up to `bytes`, which begin at `data`. */
static size_t move(struct transfer *t, void *data, size_t bytes)
{
    const struct ncclComm *comm = t->call->comm;

    if (t->sends)
        return wire_put(comm->wire, plane_of(t->call), comm->rank, t->peer, data, bytes);
    return wire_get(comm->wire, plane_of(t->call), t->peer, comm->rank, data, bytes);
}

/* Returns the bytes that it has moved. */
static size_t advance(struct transfer *t)
{
    const size_t head = sizeof t->head, whole = head + t->head.bytes, before = t->moved;

    if (t->moved < head) {
        char *at = (char *)(t->sends ? &t->head : &t->theirs);

        t->moved += move(t, at + t->moved, head - t->moved);
        if (t->moved < head)
            return t->moved - before;
        if (!t->sends && memcmp(&t->theirs, &t->head, head) != 0) {
            comm_fail(t->call->comm,
                      refuse(ncclInvalidUsage,
                             "rank %d has sent %llu bytes of 0x%llx, rank %d wants %llu of 0x%llx",
                             t->peer, (unsigned long long)t->theirs.bytes,
                             (unsigned long long)t->theirs.what, t->call->comm->rank,
                             (unsigned long long)t->head.bytes, (unsigned long long)t->head.what));
            return 0;
        }
    }
    while (t->moved < whole) {
        const size_t some = move(t, t->at + (t->moved - head), whole - t->moved);

        if (some == 0)
            break;
        t->moved += some;
    }
    t->done = t->moved == whole;
    return t->moved - before;
}

/* One round. Returns what was moved; *left counts the transfers that go on. */
static size_t advance_all(struct transfers *transfers, int *left)
{
    size_t moved = 0;

    *left = 0;
    for (int i = 0; i < transfers->count; i++) {
        struct transfer *t = &transfers->list[i];
        struct ncclComm *comm = t->call->comm;

        if (t->done)
            continue;
        if (comm_is_over(comm)) {
            t->done = 1;
            continue;
        }
        if (t->before == NULL || t->before->done)
            moved += advance(t);
        *left += !t->done;
    }
    return moved;
}

/* After a pause without progress: looks for ranks that are lost. What they sent before still comes,
 * so each transfer is tried once more. */
static void look_for_lost(struct transfers *transfers)
{
    for (int i = 0; i < transfers->count; i++) {
        struct transfer *t = &transfers->list[i];

        if (t->done || (t->before != NULL && !t->before->done) ||
            !wire_is_lost(t->call->comm->wire, t->peer, plane_of(t->call)) || advance(t) > 0)
            continue;
        comm_fail(t->call->comm, refuse(ncclRemoteError, "rank %d is gone", t->peer));
    }
}

static void progress(struct transfers *transfers)
{
    struct wait wait = wait_begin();
    int left;

    for (;;) {
        if (advance_all(transfers, &left) > 0) {
            wait = wait_begin();
            continue;
        }
        if (left == 0)
            return;
        if (wait.idle >= PATIENCE && wait.idle % 16 == 0)
            look_for_lost(transfers);
        if (wait_more(&wait))
            continue;
        for (int i = 0; i < transfers->count; i++)
            if (!transfers->list[i].done)
                comm_fail(transfers->list[i].call->comm,
                          refuse(ncclSystemError, "rank %d has not come in time",
                                 transfers->list[i].peer));
    }
}

/* ---- jobs ---- */

void job_run(struct job *job)
{
    struct transfers transfers = {NULL, 0};
    size_t most = 0;

    for (const struct call *call = job->calls; call != NULL; call = call->next)
        most += is_pair(call) ? 1 : 2 * (size_t)call->comm->ranks;
    transfers.list = malloc(most * sizeof *transfers.list);
    for (int i = 0; i < job->comm_count; i++)
        pthread_mutex_lock(&job->comms[i]->running);
    for (struct call *call = job->calls; call != NULL; call = call->next) {
        ncclResult_t result = ncclSystemError;

        if (comm_is_over(call->comm))
            continue;
        if (transfers.list != NULL)
            result = prepare(&transfers, call);
        if (result != ncclSuccess)
            comm_fail(call->comm, result);
    }
    progress(&transfers);
    for (struct call *call = job->calls; call != NULL; call = call->next)
        finish(call);
    for (int i = job->comm_count - 1; i >= 0; i--)
        pthread_mutex_unlock(&job->comms[i]->running);
    free(transfers.list);
}

void job_free(struct job *job)
{
    while (job->calls != NULL) {
        struct call *next = job->calls->next;

        comm_unref(job->calls->comm);
        free(job->calls);
        job->calls = next;
    }
    free(job);
}
