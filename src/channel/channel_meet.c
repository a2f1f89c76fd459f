/* The messages between the two ends of a channel.
 *
 *   call      sends      that says
 *   create    OFFER      this rank's memory and counters, or why it has no end
 *   connect   VERDICT    the peer's memory is mapped here, or why not; follows the peer's OFFER
 *   destroy   GONE       this rank's kernels no longer use the peer's counters; also why the
 *                        communicator has ended, if it has
 *
 * An end is connected when both verdicts are SYMWIN_OK. So both ends connect or neither does; if
 * both ranks fail, the failure of the lower one is reported on both. A call that creates or
 * connects an end processes the messages to all ends of the rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/channel/channel.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

static int bit(const unsigned char *bits, uint32_t i)
{
    return bits[i / 8] >> i % 8 & 1;
}

int sw_lanes_take(struct sw_channels *channels, int lanes, int *dirty)
{
    uint32_t first = 0, i;

    *dirty = 0;
    for (i = 0; i < SW_STATE_LANES && i - first < (uint32_t)lanes; i++)
        if (bit(channels->used, i))
            first = i + 1;
    if (i - first < (uint32_t)lanes)
        return -1;
    for (i = first; i < first + (uint32_t)lanes; i++) {
        *dirty |= bit(channels->dirty, i);
        channels->used[i / 8] |= (unsigned char)(1u << i % 8);
    }
    return (int)first;
}

void sw_lanes_give(struct sw_channels *channels, uint32_t lane, uint32_t lanes)
{
    uint32_t i;

    for (i = lane; i < lane + lanes; i++) {
        channels->used[i / 8] &= (unsigned char)~(1u << i % 8);
        channels->dirty[i / 8] |= (unsigned char)(1u << i % 8);
    }
}

size_t sw_lanes_offset(const symwin_comm *comm, uint32_t lane)
{
    return comm->state_offset + SW_STATE_CHANNELS(comm->nranks, comm->slot_bytes) +
           (size_t)lane * SW_STATE_LANE_BYTES;
}

/* Whether the lanes in a peer's OFFER lie in its communicator memory. */
static int are_lanes_valid(const symwin_comm *comm, uint64_t words, uint32_t lanes)
{
    const uint64_t first = sw_lanes_offset(comm, 0), end = sw_lanes_offset(comm, SW_STATE_LANES);

    return lanes <= SW_STATE_LANES && words >= first && words < end && (words - first) % 16 == 0 &&
           (end - words) / SW_STATE_LANE_BYTES >= lanes;
}

/* ---- the peer's memory ----------------------------------------------------------------------- */

/* The import of the offered allocation, if there is one. Under the mutex. */
static struct sw_import *find_import(struct sw_channels *channels, const struct sw_frame_message *w)
{
    struct sw_import *i = channels->imports;

    while (i != NULL &&
           (i->peer != w->from || i->buffer_id != w->buffer_id || i->memory.bytes != w->allocation))
        i = i->next;
    return i;
}

/* The handle of the allocation that came with a message. The caller releases it. */
static symwin_status open_memory(struct sw_message *message, CUmemGenericAllocationHandle *out)
{
    struct sw_frame_message *w = &message->words;
    CUmemFabricHandle fabric;
    symwin_status status;

    if (message->memory != 0) {
        *out = message->memory;
        message->memory = 0;
        return SYMWIN_OK;
    }
    if (w->is_fabric) {
        memcpy(&fabric, w->fabric, sizeof fabric);
        return sw_check(
            sw_drv.cuMemImportFromShareableHandle(out, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
            "cuMemImportFromShareableHandle of rank %d's memory, on another host", w->from);
    }
    if (message->fd < 0)
        return sw_fail(SYMWIN_NO_MEMORY,
                       "no file descriptor is left for rank %d's memory; raise ulimit -n", w->from);
    status = sw_check(
        sw_drv.cuMemImportFromShareableHandle(out, (void *)(uintptr_t)message->fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle of rank %d's memory", w->from);
    if (status == SYMWIN_OK) /* it is memory: closing it does not block */
        sw_message_close_fd(message);
    return status;
}

static symwin_status import_memory(symwin_comm *comm, const char *call, struct sw_message *message,
                                   struct sw_import **out)
{
    struct sw_import *import = calloc(1, sizeof *import);
    struct sw_scope scope;
    symwin_status status;

    if (import == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for rank %d's memory",
                       message->words.from);
    status = sw_scope_enter_context(comm->context, &scope);
    import->peer = message->words.from;
    import->buffer_id = message->words.buffer_id;
    import->memory = (struct sw_memory){.imported = 1, .bytes = message->words.allocation};
    if (status == SYMWIN_OK)
        status = open_memory(message, &import->memory.handle);
    if (status == SYMWIN_OK) {
        import->memory.stage = SW_MEMORY_CREATED;
        status = sw_memory_check_sent(import->memory.handle, import->peer);
    }
    if (status == SYMWIN_OK)
        status = sw_memory_show(call, &import->memory, comm->group->granularity, comm->device, 0);
    sw_scope_leave(&scope);
    if (status != SYMWIN_OK) {
        sw_memory_release(&import->memory);
        free(import);
        return status;
    }
    import->next = comm->channels->imports;
    comm->channels->imports = import;
    *out = import;
    return SYMWIN_OK;
}

/* Maps offered memory that is in no window. Under the mutex, as the next two functions. */
static symwin_status connect_other(symwin_comm *comm, const char *call, struct sw_end *end,
                                   struct sw_message *message)
{
    const struct sw_frame_message *w = &message->words;
    struct sw_import *import = find_import(comm->channels, w);
    symwin_status status = SYMWIN_OK;

    if (w->place >= w->allocation || w->bytes > w->allocation - w->place)
        return sw_fail(SYMWIN_MISMATCH,
                       "rank %d offers %llu bytes at byte %llu of an allocation of %llu", w->from,
                       (unsigned long long)w->bytes, (unsigned long long)w->place,
                       (unsigned long long)w->allocation);
    if (import == NULL)
        status = import_memory(comm, call, message, &import);
    if (status != SYMWIN_OK)
        return status;
    import->refs++;
    end->import = import;
    end->their_memory = import->memory.base + w->place;
    return SYMWIN_OK;
}

/* Finds offered memory that is in a window. */
static symwin_status connect_window(symwin_comm *comm, struct sw_end *end,
                                    const struct sw_frame_message *w)
{
    end->segment = sw_segment_hold(comm->group, end->peer, w->place, w->bytes, comm->rank);
    if (end->segment == NULL)
        return sw_fail(SYMWIN_MISMATCH,
                       "the memory of rank %d is in a window that rank %d has deregistered; keep "
                       "it on both ranks until the ends are connected",
                       w->from, w->to);
    end->their_memory = sw_group_address(comm->group, end->peer, w->place);
    return SYMWIN_OK;
}

/* Connects this end to the offered memory and counters. Returns the verdict. */
static symwin_status take_memory(symwin_comm *comm, const char *call, struct sw_end *end,
                                 struct sw_message *message)
{
    const struct sw_frame_message *w = &message->words;
    symwin_status status = SYMWIN_OK;

    if (w->lanes != end->lanes)
        return sw_fail(SYMWIN_MISMATCH,
                       "rank %d has %u lanes and rank %d %u; pass the same number on both", w->from,
                       w->lanes, w->to, end->lanes);
    if (!are_lanes_valid(comm, w->words, w->lanes))
        return sw_fail(SYMWIN_MISMATCH, "rank %d offers counters at byte %llu, where it has none",
                       w->from, (unsigned long long)w->words);
    end->their_words = (size_t)w->words;
    if (w->memory == SW_MESSAGE_WINDOW)
        status = connect_window(comm, end, w);
    else if (w->memory == SW_MESSAGE_OTHER)
        status = connect_other(comm, call, end, message);
    if (status == SYMWIN_OK && w->memory != SW_MESSAGE_NONE)
        end->their_bytes = (size_t)w->bytes;
    return status;
}

void sw_end_disconnect(symwin_comm *comm, struct sw_import *import, struct sw_segment *segment)
{
    struct sw_channels *channels = comm->channels;
    struct sw_import **at;
    int last = 0;

    if (segment != NULL)
        sw_segment_release(comm->group, segment, comm->rank);
    if (import == NULL)
        return;
    pthread_mutex_lock(&channels->mutex);
    if (--import->refs == 0) {
        last = 1;
        for (at = &channels->imports; *at != import; at = &(*at)->next)
            ;
        *at = import->next;
    }
    pthread_mutex_unlock(&channels->mutex);
    if (last) {
        sw_memory_release(&import->memory);
        free(import);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

enum todo { DROP, KEEP, REPLY };

static struct sw_end *find_end(const struct sw_channels *channels, int peer, uint64_t number)
{
    struct sw_end *end = channels->ends;

    while (end != NULL && (end->peer != peer || end->number != number))
        end = end->next;
    return end;
}

void sw_message_text(char to[SW_MESSAGE_TEXT], const char *call)
{
    const char *text = symwin_last_error();
    const size_t prefix = strlen(call);

    if (strncmp(text, call, prefix) == 0 && text[prefix] == ':')
        text += prefix + 2;
    snprintf(to, SW_MESSAGE_TEXT, "%.*s", SW_MESSAGE_TEXT - 1, text);
}

static void record_verdict(struct sw_end *end, symwin_status status, const char *text)
{
    if (end->state != SW_END_OFFERED)
        return;
    end->heard = 1;
    end->theirs = status;
    snprintf(end->their_text, sizeof end->their_text, "%s", text);
}

static void update_state(struct sw_end *end)
{
    if (end->state != SW_END_OFFERED)
        return;
    if (end->heard && end->peer_gone)
        end->state = SW_END_FAILED;
    else if (end->heard && end->answered)
        end->state = end->mine == SYMWIN_OK && end->theirs == SYMWIN_OK ? SW_END_CONNECTED
                                                                        : SW_END_FAILED;
}

static enum todo take_offer(symwin_comm *comm, const char *call, struct sw_end *end,
                            struct sw_message *message, struct sw_frame_message *reply)
{
    const struct sw_frame_message *w = &message->words;
    char text[SW_TEXT_BYTES];

    if (end->state != SW_END_OFFERED || end->answered)
        return DROP;
    if (w->status != SYMWIN_OK) {
        record_verdict(end, (symwin_status)w->status, w->text);
        end->peer_gone = 1;
        return DROP;
    }
    memcpy(text, symwin_last_error(), sizeof text); /* the call may be about another end */
    end->mine = take_memory(comm, call, end, message);
    end->answered = 1;
    if (end->mine != SYMWIN_OK)
        sw_message_text(end->my_text, call);
    sw_error_restore(text);
    sw_message_fill(comm, end->peer, SW_MESSAGE_VERDICT, end->number, end->mine, end->my_text,
                    reply);
    return REPLY;
}

void sw_end_unlink(struct sw_channels *channels, struct sw_end *end)
{
    struct sw_end **at = &channels->ends;

    while (*at != end)
        at = &(*at)->next;
    *at = end->next;
    sw_lanes_give(channels, end->lane, end->lanes);
    free(end);
}

static enum todo process_message(symwin_comm *comm, const char *call, struct sw_message *message,
                                 struct sw_frame_message *reply)
{
    const struct sw_frame_message *w = &message->words;
    struct sw_end *end = find_end(comm->channels, w->from, w->number);
    enum todo todo = DROP;

    if (w->number > comm->channels->made[w->from])
        return KEEP; /* this rank has not created the end yet */
    if (end == NULL)
        return DROP;
    if (w->kind == SW_MESSAGE_OFFER)
        todo = take_offer(comm, call, end, message, reply);
    if (w->kind == SW_MESSAGE_VERDICT)
        record_verdict(end, (symwin_status)w->status, w->text);
    if (w->kind == SW_MESSAGE_GONE) {
        if (w->status != SYMWIN_OK) /* the communicator has ended */
            record_verdict(end, (symwin_status)w->status, w->text);
        else
            record_verdict(end, SYMWIN_MISMATCH, "destroyed its end before it was connected");
        end->peer_gone = 1;
    }
    if (end->state == SW_END_DESTROYED && end->peer_gone)
        sw_end_unlink(comm->channels, end);
    else
        update_state(end);
    return todo;
}

void sw_message_fill(const symwin_comm *comm, int peer, enum sw_message_kind kind, uint64_t number,
                     symwin_status status, const char *text, struct sw_frame_message *message)
{
    *message = (struct sw_frame_message){
        .from = comm->rank, .to = peer, .kind = kind, .status = status, .number = number};
    if (status != SYMWIN_OK)
        snprintf(message->text, sizeof message->text, "%s", text);
}

static void append(struct sw_messages *messages, struct sw_message *message)
{
    message->next = NULL;
    if (messages->first == NULL)
        messages->first = message;
    else
        messages->last->next = message;
    messages->last = message;
}

static struct sw_message *take_first(struct sw_messages *messages)
{
    struct sw_message *message = messages->first;

    if (message != NULL)
        messages->first = message->next;
    return message;
}

void sw_messages_free(struct sw_messages *messages)
{
    struct sw_message *message;

    while ((message = take_first(messages)) != NULL)
        sw_message_free(message);
}

void sw_channels_recall(struct sw_channels *channels, int peer)
{
    struct sw_messages *early = &channels->early[peer], all = *early;
    struct sw_message *message;

    early->first = NULL;
    while ((message = take_first(&all)) != NULL)
        append(message->words.number > channels->made[peer] ? early : &channels->due, message);
}

symwin_status sw_channels_meet(symwin_comm *comm, const char *call, int64_t deadline)
{
    const int64_t least = sw_now_ms() + SW_UNREAD_MS, end = least > deadline ? least : deadline;
    struct sw_channels *channels = comm->channels;
    symwin_status status = SYMWIN_OK;

    while (status == SYMWIN_OK && sw_now_ms() < end) {
        struct sw_message *message;
        struct sw_frame_message reply;
        enum todo todo;

        if (sw_exchange_ended(comm->group->exchange))
            return sw_exchange_settled(comm->group->exchange, call);
        message = take_first(&channels->due);
        if (message == NULL)
            message = sw_mailbox_take(comm->group, comm->rank);
        if (message == NULL)
            break;
        pthread_mutex_lock(&channels->mutex);
        todo = process_message(comm, call, message, &reply);
        pthread_mutex_unlock(&channels->mutex);
        if (todo == KEEP) {
            append(&channels->early[message->words.from], message);
            continue;
        }
        sw_message_free(message);
        if (todo == REPLY)
            status = sw_mailbox_send(comm->group, &reply, -1, 0, deadline, call);
    }
    return status;
}
