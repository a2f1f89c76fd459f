/* Calls of the storm: where their buffers lie, what is in them before, the calls themselves, and
 * the check of every byte of the buffers afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storm.h"

enum {
    GUARD = 64,  /* bytes before and behind a buffer that nobody may write */
    JITTER = 16, /* elements that a buffer is moved by, less one */
    POISON = 0xa7
};

/* ---- memory ---- */

void memory_make(struct rank *rank, struct memory *memory, size_t size)
{
    void *base = NULL;

    NCCL(rank, NULL, ncclMemAlloc, &base, size);
    *memory = (struct memory){.base = base, .shadow = malloc(size), .size = size};
    if (memory->shadow == NULL)
        fail(rank, "out of memory");
}

void memory_free(struct rank *rank, struct memory *memory)
{
    NCCL(rank, NULL, ncclMemFree, memory->base);
    free(memory->shadow);
    *memory = (struct memory){0};
}

static char *shadow_of(const struct memory *memory, const char *at)
{
    return memory->shadow + (at - memory->base);
}

static size_t room_for(size_t bytes, size_t width)
{
    return (bytes + JITTER * width + 2 * GUARD + 63) & ~(size_t)63;
}

static struct region take(struct memory *memory, size_t size)
{
    struct region region = {memory->base + memory->used, size};

    memory->used += size;
    return region;
}

/* ---- buffers ---- */

static size_t draw_jitter(struct dice *dice)
{
    const int by = draw(dice, 2 * JITTER);

    return by < JITTER ? (size_t)by : 0;
}

/* Rooms are the same on all ranks, those of other communicators included, so that all ranks run
 * out of room at the same step. */
int call_place(struct rank *rank, struct call *call, struct memory *memory)
{
    const size_t width = widths[call->type];
    const size_t in = in_elements(call) * width, out = out_elements(call) * width;
    const size_t in_room = call->before != NULL ? 0 : room_for(in, width);
    const size_t out_room = call->over != NULL ? 0 : room_for(in > out ? in : out, width);
    struct dice mine = {call->draws ^ (memory->symmetric ? 0 : mix((unsigned)rank->rank + 1000u))};
    const size_t in_at = GUARD + draw_jitter(&mine) * width;
    const size_t out_at = GUARD + draw_jitter(&mine) * width;
    const int in_place = draw(&mine, 3) == 0, null = draw(&mine, 2);

    if (call->apart || call->before != NULL)
        call->in_stream = 0;
    if (memory->used + in_room + 2 * out_room + 64 > memory->size)
        return 0;
    call->memory = memory;
    call->stream = draw(&mine, STREAMS);
    call->scalar = take(memory, 64).at;
    call->in_region = take(memory, in_room);
    call->out_region = take(memory, out_room);
    call->copy_region = take(memory, call->in_stream ? out_room : 0);
    if (call->me < 0)
        return 1;
    call->in_place = call->kind == BCAST ||
                     (in_place && !call->apart && call->kind != ALL_TO_ALL && takes_in(call) &&
                      gives_out(call) && call->kind != MESSAGE &&
                      !(memory->symmetric && call->root >= 0)); /* the root's place would differ */
    call->in = call->before != NULL ? call->before->out : call->in_region.at + in_at;
    call->out = call->over != NULL ? call->over->in : call->out_region.at + out_at;
    if (call->over != NULL)
        call->out_region = call->over->in_region; /* whose own check is off */
    if (call->in_place) {
        const size_t part = (size_t)call->me * call->count * width;

        call->in = call->out;
        if (call->kind == ALL_GATHER || call->kind == GATHER)
            call->in += part;
        if (call->kind == REDUCE_SCATTER || call->kind == SCATTER)
            call->out += part;
        call->in_region.size = 0;
    } else if (null && !memory->symmetric) { /* what a rank does not use may be NULL */
        if (!takes_in(call))
            call->in = NULL;
        if (!gives_out(call))
            call->out = NULL;
    }
    return 1;
}

static void poison(const struct call *call, const struct region *region)
{
    memset(shadow_of(call->memory, region->at), POISON, region->size);
}

static void copy(struct rank *rank, const struct call *call, char *to, const char *from,
                 size_t bytes)
{
    if (bytes > 0)
        DRIVER(rank, cuMemcpyAsync, (CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes,
               rank->streams[call->stream]);
}

static void load(struct rank *rank, const struct call *call, const struct region *region)
{
    const char *from = shadow_of(call->memory, region->at);

    if (call->in_stream)
        copy(rank, call, region->at, from, region->size);
    else
        memcpy(region->at, from, region->size);
}

void call_fill(struct rank *rank, struct call *call)
{
    if (call->me < 0)
        return;
    if (call->op == PREMUL)
        write_scalar(call, call->scalar);
    poison(call, &call->in_region);
    if (call->over == NULL)
        poison(call, &call->out_region);
    if (call->before == NULL && takes_in(call))
        write_input(call, shadow_of(call->memory, call->in));
    load(rank, call, &call->in_region);
    if (call->over == NULL)
        load(rank, call, &call->out_region);
}

void call_copy(struct rank *rank, struct call *call)
{
    if (call->me >= 0 && call->in_stream)
        copy(rank, call, call->copy_region.at, call->out_region.at, call->copy_region.size);
}

/* ---- calls ---- */

static ncclRedOp_t make_op(struct rank *rank, struct call *call, ncclComm_t comm)
{
    ncclRedOp_t op = call->op;
    char scalar[8];

    if (call->op != PREMUL)
        return op;
    write_scalar(call, scalar);
    NCCL(rank, call->on, ncclRedOpCreatePreMulSum, &op,
         call->scalar_on_host ? (void *)scalar : (void *)call->scalar, call->type,
         call->scalar_on_host ? ncclScalarHostImmediate : ncclScalarDevice, comm);
    return op;
}

static void make_collective(struct rank *rank, struct call *call, ncclComm_t comm, CUstream stream)
{
    const size_t count = call->count;
    const ncclDataType_t type = call->type;
    const ncclRedOp_t op = make_op(rank, call, comm);

#define COLLECTIVE(name, ...) NCCL(rank, call->on, name, __VA_ARGS__, comm, stream)
    switch (call->kind) {
    case ALL_REDUCE:
        COLLECTIVE(ncclAllReduce, call->in, call->out, count, type, op);
        break;
    case REDUCE_SCATTER:
        COLLECTIVE(ncclReduceScatter, call->in, call->out, count, type, op);
        break;
    case REDUCE:
        COLLECTIVE(ncclReduce, call->in, call->out, count, type, op, call->root);
        break;
    case ALL_GATHER:
        COLLECTIVE(ncclAllGather, call->in, call->out, count, type);
        break;
    case ALL_TO_ALL:
        COLLECTIVE(ncclAlltoAll, call->in, call->out, count, type);
        break;
    case BROADCAST:
        COLLECTIVE(ncclBroadcast, call->in, call->out, count, type, call->root);
        break;
    case BCAST:
        COLLECTIVE(ncclBcast, call->out, count, type, call->root);
        break;
    case GATHER:
        COLLECTIVE(ncclGather, call->in, call->out, count, type, call->root);
        break;
    default:
        COLLECTIVE(ncclScatter, call->in, call->out, count, type, call->root);
    }
#undef COLLECTIVE
    if (call->op == PREMUL)
        NCCL(rank, call->on, ncclRedOpDestroy, op, comm);
}

void call_make(struct rank *rank, struct call *call, enum halves halves)
{
    const CUstream stream = rank->streams[call->stream];
    ncclComm_t comm;

    if (call->me < 0)
        return;
    comm = call->on->handle;
    if (call->kind != MESSAGE) {
        if (halves & SENDS)
            make_collective(rank, call, comm, stream);
    } else {
        if ((halves & SENDS) && call->me == call->root)
            NCCL(rank, call->on, ncclSend, call->in, call->count, call->type, call->peer, comm,
                 stream);
        if ((halves & RECEIVES) && call->me == call->peer)
            NCCL(rank, call->on, ncclRecv, call->out, call->count, call->type, call->root, comm,
                 stream);
    }
    if (rank->depth == 0)
        call_copy(rank, call);
}

/* ---- groups ---- */

void group_start(struct rank *rank)
{
    rank->depth++;
    begin(rank, NULL, "ncclGroupStart");
    rank->calls_made++;
    nccl_done(rank, NULL, ncclGroupStart());
}

/* Waits for those of the calls' communicators that are not blocking. */
void group_end(struct rank *rank, struct call **calls, int count)
{
    ncclResult_t result;

    begin(rank, NULL, "ncclGroupEnd");
    rank->calls_made++;
    result = ncclGroupEnd();
    nccl_done(rank, NULL, result == ncclInProgress ? ncclSuccess : result);
    rank->depth--;
    for (int i = 0; i < count && rank->depth == 0; i++)
        if (i == 0 || calls[i]->on != calls[i - 1]->on)
            nccl_done(rank, calls[i]->on, calls[i]->on->blocking ? ncclSuccess : ncclInProgress);
}

/* ---- checks ---- */

static void describe(const struct rank *rank, const struct call *call, char *text, size_t size)
{
    static const char *const kinds[] = {"AllReduce", "ReduceScatter", "Reduce", "AllGather",
                                        "AlltoAll",  "Broadcast",     "Bcast",  "Gather",
                                        "Scatter",   "a message"};
    static const char *const type_names[] = {"int8",  "uint8",  "int32",  "uint32",
                                             "int64", "uint64", "f16",    "f32",
                                             "f64",   "bf16",   "f8e4m3", "f8e5m2"};
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "pre-multiplied sum"};
    const int reduces = call->kind <= REDUCE;

    snprintf(text, size,
             "%s of step %d, communicator %d: rank %d of %d, root %d, peer %d, %zu x %s%s%s, "
             "stream %d%s%s%s%s%s (in %p, out %p)",
             kinds[call->kind], call->step, call->comm, call->me, call->ranks, call->root,
             call->peer, call->count, type_names[call->type], reduces ? ", " : "",
             reduces ? ops[call->op] : "", call->stream, call->in_place ? ", in place" : "",
             call->before != NULL ? ", of another's output" : "",
             call->over != NULL ? ", over another's input" : "",
             call->memory == &rank->arena ? "" : ", in a window's or a graph's memory",
             call->op == PREMUL && call->scalar_on_host ? ", scalar on the host" : "",
             (void *)call->in, (void *)call->out);
}

/* One element as hexadecimal digits. */
static uint64_t bits_at(const char *at, size_t width)
{
    uint64_t bits = 0;

    memcpy(&bits, at, width);
    return bits;
}

/* `got` is the region or a copy of it. */
static void check_region(const struct rank *rank, const struct call *call,
                         const struct region *region, const char *got, const char *data,
                         size_t bytes, const char *name)
{
    const size_t width = widths[call->type];
    const char *want = region->size > 0 ? shadow_of(call->memory, region->at) : NULL;
    size_t at = 0, element, wrong = 0;
    char text[512];

    if (region->size == 0 || memcmp(got, want, region->size) == 0)
        return;
    while (got[at] == want[at])
        at++;
    for (size_t i = at; i < region->size; i++)
        wrong += got[i] != want[i];
    describe(rank, call, text, sizeof text);
    if (data == NULL || region->at + at < data || region->at + at >= data + bytes)
        fail(rank,
             "%s: %s, %ld bytes from its begin (it has %zu): a byte outside is %#x, not %#x; "
             "%zu bytes differ",
             text, name, data == NULL ? 0L : (long)(region->at + at - data), bytes,
             (unsigned char)got[at], (unsigned char)want[at], wrong);
    element = (size_t)(region->at + at - data) / width;
    data += element * width;
    fail(rank, "%s: %s, element %zu: got %#llx, wanted %#llx; %zu bytes differ", text, name,
         element, (unsigned long long)bits_at(got + (data - region->at), width),
         (unsigned long long)bits_at(shadow_of(call->memory, data), width), wrong);
}

static void check_call(struct rank *rank, const struct call *call)
{
    const size_t width = widths[call->type];

    if (call->me < 0)
        return;
    if (gives_out(call))
        write_expected(call, shadow_of(call->memory, call->out));
    check_region(rank, call, &call->out_region, call->out_region.at,
                 gives_out(call) ? call->out : NULL, out_elements(call) * width, "output");
    check_region(rank, call, &call->in_region, call->in_region.at, takes_in(call) ? call->in : NULL,
                 in_elements(call) * width, "input");
    if (call->in_stream)
        check_region(rank, call, &call->out_region, call->copy_region.at,
                     gives_out(call) ? call->out : NULL, out_elements(call) * width,
                     "copy of the output, made behind the call in its stream");
    rank->checked++;
}

void flush(struct rank *rank)
{
    ncclResult_t error;

    for (int i = 0; i < STREAMS; i++)
        DRIVER(rank, cuStreamSynchronize, rank->streams[i]);
    for (int i = 0; i < MOST_COMMS; i++) {
        struct comm *comm = &rank->comms[i];

        if (comm->handle != NULL && !comm->revoked) {
            begin(rank, comm, "ncclCommGetAsyncError");
            nccl_done(rank, comm, ncclCommGetAsyncError(comm->handle, &error));
            if (error != ncclSuccess)
                fail(rank, "communicator %d has the error %d: %s", comm->id, (int)error,
                     ncclGetLastError(comm->handle));
        }
        comm->memory.used = 0;
    }
    for (int i = 0; i < rank->pending; i++)
        check_call(rank, &rank->calls[i]);
    for (int g = 0; g < MOST_GRAPHS; g++) {
        struct graph *graph = &rank->graphs[g];

        for (int i = 0; graph->launched && i < graph->count; i++)
            check_call(rank, &graph->calls[i]);
        graph->launched = 0;
    }
    rank->pending = 0;
    rank->arena.used = 0;
    rank->most_pending = draw(&rank->plan, 4);
    rank->most_pending = 1 + draw(&rank->plan, 1 + 12 * rank->most_pending);
}
