/* Channels: the public calls, and this rank's side of an end. channel_meet.c has the messages
 * between the two ends.
 *
 * create and connect are for one thread of a rank at a time; destroy, query and limit may come from
 * any thread.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "src/channel/channel.h"

_Static_assert(SYMWIN_CHANNEL_LANES == SW_STATE_LANES &&
                   SYMWIN_CHANNEL_LANE_BYTES == SW_STATE_LANE_BYTES,
               "the communicator's memory has room for the promised lanes");

static _Atomic uintptr_t handles; /* the last one handed out, by any communicator */

struct sw_channels *sw_channels_create(int nranks)
{
    struct sw_channels *channels = calloc(1, sizeof *channels);

    if (channels == NULL)
        return NULL;
    channels->made = calloc((size_t)nranks, sizeof *channels->made);
    channels->early = calloc((size_t)nranks, sizeof *channels->early);
    if (channels->made != NULL && channels->early != NULL &&
        pthread_mutex_init(&channels->mutex, NULL) == 0)
        return channels;
    free(channels->early);
    free(channels->made);
    free(channels);
    return NULL;
}

/* ---- this rank's side of an end -------------------------------------------------------------- */

/* A memory handle that goes with an OFFER. */
struct offered {
    CUmemGenericAllocationHandle memory; /* owned, 0: none */
    int fd;                              /* owned, -1: none */
};

static void drop_offered(struct offered *o)
{
    if (o->memory != 0)
        sw_drop(sw_drv.cuMemRelease(o->memory), "cuMemRelease");
    if (o->fd >= 0)
        sw_fork_set_close(o->fd);
    *o = (struct offered){.fd = -1};
}

/* Exports the allocation in the form that can reach the peer. */
static symwin_status export_memory(const char *call, symwin_comm *comm, CUdeviceptr base,
                                   struct sw_frame_message *message, struct offered *o)
{
    const enum sw_message_way way = sw_mailbox_way(comm->group, message->to);
    CUmemFabricHandle fabric;
    CUresult answer;
    symwin_status status = sw_check(
        sw_drv.cuMemRetainAllocationHandle(&o->memory, (void *)(uintptr_t)base),
        "%s: cuMemRetainAllocationHandle of 0x%llx", call, base);

    if (status != SYMWIN_OK) {
        o->memory = 0;
        return status;
    }
    if (way == SW_WAY_PROCESS)
        return SYMWIN_OK;
    if (way == SW_WAY_HOST) {
        status = sw_handle_exchange_export(o->memory, "memory", comm->rank, &o->fd, &answer);
    } else {
        status = sw_handle_exchange_export_fabric(o->memory, "memory", &fabric, &answer);
        message->is_fabric = status == SYMWIN_OK;
        if (status == SYMWIN_OK)
            memcpy(message->fabric, &fabric, sizeof fabric);
    }
    sw_drop(sw_drv.cuMemRelease(o->memory), "cuMemRelease");
    o->memory = 0;
    return status;
}

/* Offers memory that is in no window. */
static symwin_status offer_other(const char *call, symwin_comm *comm, struct sw_end *end,
                                 struct sw_frame_message *message, struct offered *o)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)end->ptr;
    struct sw_allocation a;
    symwin_status status = sw_memory_hold(call, address, &a);
    size_t left;

    if (status != SYMWIN_OK)
        return status;
    end->held = a.owned ? address : 0;
    left = sw_allocation_room(&a, address);
    if (a.physical.device != comm->device)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %p is memory of device %d and this rank's communicator is on device %d",
                       call, end->ptr, a.physical.device, comm->device);
    if (end->bytes > left)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %zu bytes at %p pass the end of their allocation by %zu bytes", call,
                       end->bytes, end->ptr, end->bytes - left);
    message->memory = SW_MESSAGE_OTHER;
    message->place = address - a.physical.base;
    message->buffer_id = a.physical.buffer_id;
    message->allocation = a.physical.bytes;
    return export_memory(call, comm, a.physical.base, message, o);
}

/* Offers this end's memory. In a window its offset in the flat range says where it is. */
static symwin_status offer_memory(const char *call, symwin_comm *comm, struct sw_end *end,
                                  struct sw_frame_message *message, struct offered *o)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)end->ptr;
    struct sw_window_index_entry entry;
    struct sw_allocation a;

    if (end->ptr == NULL && end->bytes == 0)
        return SYMWIN_OK;
    if (end->ptr == NULL || end->bytes == 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: ptr is %p and bytes %zu; pass memory of one byte at least, or NULL and "
                       "0 for none",
                       call, end->ptr, end->bytes);
    message->bytes = end->bytes;
    if (sw_window_index_find(comm->index, (uintptr_t)end->ptr, end->bytes, &entry) != SW_FOUND_ALL)
        return offer_other(call, comm, end, message, o);
    end->window = 1;
    if (sw_allocation_hold(address, &a) == SW_OWNED_LIVE)
        end->held = address;
    message->memory = SW_MESSAGE_WINDOW;
    message->place = entry.offset + ((uintptr_t)end->ptr - entry.begin);
    return SYMWIN_OK;
}

/* Takes lanes, zeroed if another channel has used them. */
static symwin_status take_lanes(const char *call, symwin_comm *comm, struct sw_end *end, int lanes)
{
    struct sw_channels *channels = comm->channels;
    symwin_status status = SYMWIN_OK;
    int lane, dirty;

    if (lanes < 1 || lanes > SYMWIN_CHANNEL_LANES)
        return sw_fail(SYMWIN_INVALID, "%s: lanes is %d; pass 1 to %d, or 0 for 1", call, lanes,
                       SYMWIN_CHANNEL_LANES);
    pthread_mutex_lock(&channels->mutex);
    lane = sw_lanes_take(channels, lanes, &dirty);
    pthread_mutex_unlock(&channels->mutex);
    if (lane < 0)
        return sw_fail(SYMWIN_NO_MEMORY,
                       "%s: no %d adjacent lanes of %d are free; destroy channels on both ranks, "
                       "or make them with fewer lanes",
                       call, lanes, SYMWIN_CHANNEL_LANES);
    end->lane = (uint32_t)lane;
    end->lanes = (uint32_t)lanes;
    if (dirty)
        status = sw_memory_fill(
            sw_group_address(comm->group, comm->rank, sw_lanes_offset(comm, end->lane)), 0,
            (size_t)lanes * SW_STATE_LANE_BYTES);
    return status;
}

/* Releases this rank's own memory and lanes. */
static void release_own(symwin_comm *comm, struct sw_end *end)
{
    if (end->held != 0)
        sw_allocation_drop(end->held);
    end->held = 0;
    if (end->lanes == 0)
        return;
    pthread_mutex_lock(&comm->channels->mutex);
    sw_lanes_give(comm->channels, end->lane, end->lanes);
    pthread_mutex_unlock(&comm->channels->mutex);
    end->lanes = 0;
}

static symwin_status prepare(const char *call, symwin_comm *comm, struct sw_end *end,
                             const symwin_channel_options *options,
                             struct sw_frame_message *message, struct offered *o)
{
    symwin_status status;

    if (options != NULL && options->size != sizeof *options)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->size is %zu; set it to sizeof(symwin_channel_options), %zu",
                       call, options->size, sizeof *options);
    status = take_lanes(call, comm, end,
                        options != NULL && options->lanes != 0 ? options->lanes : 1);
    if (status == SYMWIN_OK)
        status = offer_memory(call, comm, end, message, o);
    message->words = sw_lanes_offset(comm, end->lane);
    message->lanes = end->lanes;
    return status;
}

/* ---- create and connect ---------------------------------------------------------------------- */

/* Sends the OFFER, with `status`: the peer hears of a failure too. Returns the first failure. */
static symwin_status send_offer(const char *call, symwin_comm *comm, symwin_status status,
                                struct sw_frame_message *message, struct offered *o,
                                int64_t deadline)
{
    char text[SW_TEXT_BYTES];
    symwin_status sent;

    memcpy(text, symwin_last_error(), sizeof text);
    message->status = (int32_t)status;
    if (status != SYMWIN_OK)
        sw_message_text(message->text, call);
    sent = sw_mailbox_send(comm->group, message, o->fd, o->memory, deadline, call);
    o->memory = 0; /* owned by the message, or released */
    if (status != SYMWIN_OK)
        sw_error_restore(text);
    return status != SYMWIN_OK ? status : sent;
}

/* `status`: an earlier failure of this rank, which the peer hears of. */
static symwin_status create(const char *call, symwin_comm *comm, symwin_status status,
                            struct sw_end *end, const symwin_channel_options *options,
                            int64_t deadline)
{
    struct offered o = {.fd = -1};
    struct sw_frame_message message;
    struct sw_scope scope = {.device = -1};

    sw_message_fill(comm, end->peer, SW_MESSAGE_OFFER, end->number, SYMWIN_OK, "", &message);
    if (status == SYMWIN_OK)
        status = sw_scope_enter_context(comm->context, &scope);
    if (status == SYMWIN_OK)
        status = prepare(call, comm, end, options, &message, &o);
    sw_scope_leave(&scope);
    status = send_offer(call, comm, status, &message, &o, deadline);
    drop_offered(&o);
    if (status != SYMWIN_OK)
        release_own(comm, end);
    return status;
}

symwin_status symwin_channel_create(symwin_comm *comm, int peer, void *ptr, size_t bytes,
                                    const symwin_channel_options *options, symwin_channel_end **out)
{
    static const char call[] = "symwin_channel_create";
    struct sw_end *end;
    symwin_status status;
    int64_t deadline;

    if (comm != NULL && comm->wide != NULL)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the communicator's ranks are in several domains, which no channel "
                       "joins; make a communicator of one domain's ranks with symwin_comm_split()",
                       call);
    status = sw_comm_enter(comm, call);
    if (status != SYMWIN_OK)
        return status;
    if (peer < 0 || peer >= comm->nranks || peer == comm->rank) {
        sw_comm_leave(comm);
        return sw_fail(SYMWIN_INVALID,
                       "%s: peer is %d; pass another rank than this one, from 0 to %d", call, peer,
                       comm->nranks - 1);
    }
    deadline = sw_now_ms() + comm->timeout_ms;
    sw_mailbox_collect(comm->group, deadline); /* a GONE message frees lanes */
    status = sw_channels_meet(comm, call, deadline);
    end = status == SYMWIN_OK ? calloc(1, sizeof *end) : NULL;
    if (status == SYMWIN_OK && end == NULL) {
        /* No message can tell the peer: the communicator ends. */
        (void)sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a channel", call);
        sw_exchange_say_why(comm->group->exchange, comm->rank, symwin_last_error());
        sw_exchange_fail(comm->group->exchange, SYMWIN_NO_MEMORY, comm->rank);
        status = sw_exchange_settled(comm->group->exchange, call);
    }
    if (status == SYMWIN_OK) {
        *end = (struct sw_end){
            .peer = peer, .number = ++comm->channels->made[peer], .ptr = ptr, .bytes = bytes};
        sw_channels_recall(comm->channels, peer);
        if (out == NULL)
            status = sw_fail(SYMWIN_INVALID, "%s: end is NULL; pass where to put the handle", call);
        status = create(call, comm, status, end, options, deadline);
    }
    if (status == SYMWIN_OK) {
        pthread_mutex_lock(&comm->channels->mutex);
        end->handle = atomic_fetch_add(&handles, 1) + 1;
        end->next = comm->channels->ends;
        comm->channels->ends = end;
        *out = (symwin_channel_end *)end->handle;
        pthread_mutex_unlock(&comm->channels->mutex);
    } else {
        free(end);
    }
    sw_comm_leave(comm);
    return status;
}

/* The live end of a handle; NULL: there is none, and the last error says so. Under the mutex. */
static struct sw_end *lookup(const char *call, const symwin_comm *comm,
                             const symwin_channel_end *handle)
{
    struct sw_end *end = comm->channels->ends;

    while (end != NULL && (end->handle == 0 || end->handle != (uintptr_t)handle))
        end = end->next;
    if (end == NULL)
        sw_fail(SYMWIN_INVALID,
                "%s: %p is no live end of a channel of rank %d's communicator: it was destroyed "
                "before, or belongs to another communicator",
                call, (const void *)handle, comm->rank);
    return end;
}

/* Reads the state of an end. Fills *channel if it is connected; returns the failure if it failed;
 * *peer is the rank to wait for otherwise. */
static symwin_status read_state(const char *call, symwin_comm *comm,
                                const symwin_channel_end *handle, enum sw_end_state *state,
                                int *peer, symwin_channel *channel)
{
    struct sw_channels *channels = comm->channels;
    symwin_status status = SYMWIN_OK;
    const struct sw_end *end;

    pthread_mutex_lock(&channels->mutex);
    end = lookup(call, comm, handle);
    if (end == NULL) {
        status = SYMWIN_INVALID;
    } else {
        const CUdeviceptr words = sw_group_address(comm->group, comm->rank,
                                                   sw_lanes_offset(comm, end->lane));
        const int their_fault = end->theirs != SYMWIN_OK &&
                                (end->mine == SYMWIN_OK || end->peer < comm->rank);

        *state = end->state;
        *peer = end->peer;
        if (end->state == SW_END_CONNECTED)
            *channel = (symwin_channel){
                .own = (uintptr_t)end->ptr,
                .theirs = end->their_memory,
                .signals = words,
                .their_signals = sw_group_address(comm->group, end->peer, end->their_words),
                .waited = words + SW_STATE_LANE_BYTES / 2,
            };
        else if (end->state == SW_END_FAILED && their_fault)
            status = sw_fail(end->theirs, "%s: rank %d: %s", call, end->peer, end->their_text);
        else if (end->state == SW_END_FAILED)
            status = sw_fail(end->mine, "%s: rank %d: %s", call, comm->rank, end->my_text);
    }
    pthread_mutex_unlock(&channels->mutex);
    return status;
}

symwin_status symwin_channel_connect(symwin_comm *comm, symwin_channel_end *handle,
                                     symwin_channel *out)
{
    static const char call[] = "symwin_channel_connect";
    enum sw_end_state state = SW_END_OFFERED;
    symwin_channel channel = {0};
    symwin_status status;
    int64_t deadline;
    int peer = 0;

    if (out == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: channel is NULL", call);
    status = sw_comm_enter(comm, call);
    if (status != SYMWIN_OK)
        return status;
    deadline = sw_now_ms() + comm->timeout_ms;
    while (status == SYMWIN_OK) {
        const int64_t now = sw_now_ms();

        status = sw_channels_meet(comm, call, deadline);
        if (status == SYMWIN_OK)
            status = read_state(call, comm, handle, &state, &peer, &channel);
        if (status != SYMWIN_OK || state == SW_END_CONNECTED)
            break;
        status = sw_mailbox_wait(comm->group, comm->rank, peer, now, deadline, call);
        if (status == SYMWIN_TIMEOUT && sw_comm_absent(comm) == peer)
            sw_fail(status,
                    "%s: rank %d did not call symwin_channel_create, or not "
                    "symwin_channel_connect, for its end in time; destroy the communicator on "
                    "every rank",
                    call, peer);
    }
    sw_comm_leave(comm);
    if (status == SYMWIN_OK)
        *out = channel;
    return status;
}

/* ---- destroy --------------------------------------------------------------------------------- */

/* Marks a live end as destroyed. Under the mutex; what must be released without it goes to
 * *rest. */
static void close_end(struct sw_channels *channels, struct sw_end *end, struct sw_end *rest)
{
    *rest = *end;
    end->handle = 0;
    end->held = 0;
    end->import = NULL;
    end->segment = NULL;
    end->state = SW_END_DESTROYED;
    if (end->peer_gone || !end->answered || end->mine != SYMWIN_OK)
        sw_end_unlink(channels, end); /* the peer cannot signal */
}

/* Sends GONE, which waits for nobody, and releases what the end had. If the communicator has ended,
 * GONE says why: a peer on another host may not know it yet, and would take this rank for the
 * culprit. */
static void send_gone(symwin_comm *comm, const struct sw_end *rest)
{
    static const char call[] = "symwin_channel_destroy";
    char text[SW_TEXT_BYTES], why[SW_MESSAGE_TEXT] = "";
    struct sw_frame_message message;
    symwin_status status;

    memcpy(text, symwin_last_error(), sizeof text);
    status = sw_exchange_settled(comm->group->exchange, call);
    if (status != SYMWIN_OK)
        sw_message_text(why, call);
    sw_error_restore(text);
    sw_message_fill(comm, rest->peer, SW_MESSAGE_GONE, rest->number, status, why, &message);
    (void)sw_mailbox_try(comm->group, &message, -1, 0, 0);
    sw_end_disconnect(comm, rest->import, rest->segment);
    if (rest->held != 0)
        sw_allocation_drop(rest->held);
}

symwin_status symwin_channel_destroy(symwin_comm *comm, symwin_channel_end *handle)
{
    static const char call[] = "symwin_channel_destroy";
    symwin_status status = sw_fork_check(call);
    struct sw_end *end, rest;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    pthread_mutex_lock(&comm->channels->mutex);
    end = lookup(call, comm, handle);
    if (end != NULL)
        close_end(comm->channels, end, &rest);
    pthread_mutex_unlock(&comm->channels->mutex);
    if (end == NULL)
        return SYMWIN_INVALID;
    send_gone(comm, &rest);
    sw_allocations_settle();
    return SYMWIN_OK;
}

void sw_channels_destroy(symwin_comm *comm)
{
    struct sw_channels *channels = comm->channels;
    struct sw_end rest;
    int r;

    if (channels == NULL)
        return;
    while (channels->ends != NULL) {
        struct sw_end *end = channels->ends;
        const int live = end->handle != 0;

        end->peer_gone = 1; /* true or not: no counter is used any more */
        if (live)
            close_end(channels, end, &rest);
        else
            sw_end_unlink(channels, end);
        if (live)
            send_gone(comm, &rest);
    }
    for (r = 0; r < comm->nranks; r++)
        sw_messages_free(&channels->early[r]);
    sw_messages_free(&channels->due);
    pthread_mutex_destroy(&channels->mutex);
    free(channels->early);
    free(channels->made);
    free(channels);
    comm->channels = NULL;
}

/* ---- queries --------------------------------------------------------------------------------- */

void sw_channels_each(symwin_comm *comm, void (*see)(const struct sw_end *end, void *context),
                      void *context)
{
    const struct sw_end *end;

    pthread_mutex_lock(&comm->channels->mutex);
    for (end = comm->channels->ends; end != NULL; end = end->next)
        if (end->handle != 0)
            see(end, context);
    pthread_mutex_unlock(&comm->channels->mutex);
}

symwin_status symwin_channel_query(symwin_comm *comm, const symwin_channel_end *handle,
                                   symwin_channel_info *info)
{
    static const char call[] = "symwin_channel_query";
    symwin_status status = sw_fork_check(call);
    const struct sw_end *end;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, comm == NULL ? "comm" : "info");
    pthread_mutex_lock(&comm->channels->mutex);
    end = lookup(call, comm, handle);
    if (end != NULL)
        *info = (symwin_channel_info){
            .peer = end->peer,
            .lanes = (int)end->lanes,
            .connected = end->state == SW_END_CONNECTED,
            .window = end->window,
            .ptr = end->ptr,
            .bytes = end->bytes,
            .their_bytes = end->state == SW_END_CONNECTED ? end->their_bytes : 0,
        };
    pthread_mutex_unlock(&comm->channels->mutex);
    return end != NULL ? SYMWIN_OK : SYMWIN_INVALID;
}

symwin_status symwin_channel_limit(symwin_comm *comm, symwin_limit *limit)
{
    static const char call[] = "symwin_channel_limit";
    const symwin_status status = sw_fork_check(call);

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || limit == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, comm == NULL ? "comm" : "limit");
    *limit = (symwin_limit){
        .timeout_ns = comm->kernel_timeout_ms > 0 ? (uint64_t)comm->kernel_timeout_ms * 1000000 : 0,
        .abort = comm->report_address + offsetof(struct sw_kernel_report, ended),
    };
    return SYMWIN_OK;
}
