/* Communicators: their list, agreement, leaving, status, abort and checks of arguments.
 *
 * An agreement is one all-gather of every rank's status, call and values, so all ranks reach the
 * same result. Any thread may call; sw_comm_enter() lets one thread at a time into a collective
 * call. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/pair_layout.h"
#include "src/control/control.h"

/* ---- the communicators of this process ---- */

static struct {
    pthread_mutex_t mutex; /* taken before those of communicators and groups */
    symwin_comm *first;
} comms = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void sw_comm_list(symwin_comm *comm)
{
    atomic_store(&comm->failures, sw_failures());
    pthread_mutex_lock(&comms.mutex);
    comm->next = comms.first;
    if (comms.first != NULL)
        comms.first->prev = comm;
    comms.first = comm;
    pthread_mutex_unlock(&comms.mutex);
}

void sw_comm_forget(symwin_comm *comm)
{
    pthread_mutex_lock(&comms.mutex);
    if (comm->next != NULL)
        comm->next->prev = comm->prev;
    *(comm->prev != NULL ? &comm->prev->next : &comms.first) = comm->next;
    pthread_mutex_unlock(&comms.mutex);
}

void sw_comm_each(void (*see)(symwin_comm *comm, void *context), void *context)
{
    symwin_comm *comm;

    pthread_mutex_lock(&comms.mutex);
    for (comm = comms.first; comm != NULL; comm = comm->next)
        see(comm, context);
    pthread_mutex_unlock(&comms.mutex);
}

int sw_comm_is_any(void)
{
    int any;

    pthread_mutex_lock(&comms.mutex);
    any = comms.first != NULL;
    pthread_mutex_unlock(&comms.mutex);
    return any;
}

/* ---- agreement ---- */

int sw_comm_patience(const symwin_comm *comm)
{
    const int64_t left = comm->created_by - sw_now_ms();

    if (comm->created_by == 0)
        return comm->timeout_ms;
    return left > 0 ? (int)left : 0;
}

/* A rank that is past the deadline of the creation says so itself. The others may have more time,
 * and in the next step it would name them. */
static symwin_status check_creation(const symwin_comm *comm)
{
    if (comm->created_by == 0 || comm->nranks == 1 || sw_comm_patience(comm) > 0)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_TIMEOUT,
                   "its time was over before the communicator was built; create it again with a "
                   "new id and a larger bootstrap_timeout_ms (SYMWIN_BOOTSTRAP_TIMEOUT_MS)");
}

/* A segment that no process uses any more ends on all. Each names the lowest that it does not use.
 * If they differ, it goes on with the highest of these: there is none below it that all name. */
static void agree_unused(symwin_comm *comm)
{
    const struct sw_group *group = comm->group;
    uint64_t least = UINT64_MAX, most = 0;
    int r;

    for (r = 0; r < comm->nranks; r++) {
        const uint64_t id = comm->ballots[r].unused;

        least = id < least ? id : least;
        most = id > most ? id : most;
    }
    comm->unused_from = least == 0 || least == most ? 0 : most;
    comm->unused_scans += least == 0;
    if (least == most && most != 0 && group->unused_end != NULL) {
        comm->unused_scans = 0;
        group->unused_end(comm->group, most);
    }
}

symwin_status sw_comm_agree(symwin_comm *comm, const char *call, symwin_status mine,
                            const uint64_t *values, int value_count)
{
    struct sw_ballot ballot = {.sequence = comm->sequence, .status = (int32_t)mine};
    symwin_status status;
    int r;

    if (mine == SYMWIN_OK)
        ballot.status = (int32_t)(mine = check_creation(comm));
    strncpy(ballot.call, call, sizeof ballot.call - 1);
    if (comm->created_by == 0 && comm->group->unused_from != NULL)
        ballot.unused = comm->group->unused_from(comm->group, comm->unused_from);
    if (value_count > 0)
        memcpy(ballot.values, values, (size_t)value_count * sizeof *values);
    if (mine != SYMWIN_OK) {
        const char *text = symwin_last_error();
        const size_t name = strcspn(text, ": ");

        /* The call's name, or that of its form with options. */
        if (strncmp(text, call, strlen(call)) == 0 && strncmp(text + name, ": ", 2) == 0)
            text += name + 2;
        strncpy(ballot.text, text, sizeof ballot.text - 1);
    }
    status = sw_exchange_allgather(comm->group->exchange, comm->rank, &ballot, sizeof ballot,
                                   comm->ballots, sw_comm_patience(comm), call);
    if (status != SYMWIN_OK)
        return status;
    for (r = 0; r < comm->nranks; r++) {
        struct sw_ballot *v = &comm->ballots[r]; /* another process wrote it */

        v->call[sizeof v->call - 1] = '\0';
        v->text[sizeof v->text - 1] = '\0';
        if (v->status < 0 || v->status > SYMWIN_STATUS_LAST)
            v->status = SYMWIN_INVALID;
    }
    for (r = 1; r < comm->nranks; r++)
        if (strcmp(comm->ballots[r].call, comm->ballots[0].call) != 0 ||
            comm->ballots[r].sequence != comm->ballots[0].sequence) {
            sw_exchange_fail(comm->group->exchange, SYMWIN_MISMATCH, r);
            return sw_fail(SYMWIN_MISMATCH,
                           "%s: rank %d is in %s (its collective call %llu), rank %d in %s (%llu); "
                           "destroy the communicator, and make the same calls in the same order on "
                           "every rank",
                           call, sw_exchange_number(comm->group->exchange, 0),
                           comm->ballots[0].call, (unsigned long long)comm->ballots[0].sequence,
                           sw_exchange_number(comm->group->exchange, r), comm->ballots[r].call,
                           (unsigned long long)comm->ballots[r].sequence);
        }
    agree_unused(comm);
    for (r = 0; r < comm->nranks; r++)
        if (comm->ballots[r].status != SYMWIN_OK)
            return sw_fail((symwin_status)comm->ballots[r].status, "%s: rank %d: %s", call,
                           sw_exchange_number(comm->group->exchange, r), comm->ballots[r].text);
    return SYMWIN_OK;
}

/* ---- leaving ---- */

enum { LEAVE_MS = 2000, NAP_NS = 50000 };

/* Peers' kernels poll this word while they wait for this rank (kernels/call.cuh). */
static symwin_status announce_left(symwin_comm *comm, CUstream stream)
{
    const CUdeviceptr left = sw_group_address(
        comm->group, comm->rank, comm->state_offset + offsetof(struct sw_comm_state, left));
    symwin_status status = sw_check(sw_drv.cuStreamWriteValue32(stream, left, 1, 0),
                                    "cuStreamWriteValue32");

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return status;
}

/* Waits until the calls outside graphs have ended. If the communicator has ended, most kernels
 * leave by themselves. Those that wait for a peer which makes no more calls are asked to leave
 * after LEAVE_MS. After as long again this gives up: something else may keep the kernels from
 * starting. */
static void await_calls(symwin_comm *comm, CUstream stream)
{
    const CUdeviceptr seen = comm->report_address + offsetof(struct sw_kernel_report, last_done);
    const struct timespec nap = {.tv_nsec = NAP_NS};
    int64_t ended_at = INT64_MAX;

    for (;;) {
        if (sw_drv.cuMemcpyAsync(seen, comm->done_address, sizeof comm->done, stream) !=
                CUDA_SUCCESS ||
            sw_drv.cuStreamSynchronize(stream) != CUDA_SUCCESS ||
            __atomic_load_n(&comm->report->last_done, __ATOMIC_ACQUIRE) == comm->done)
            return;
        if (sw_exchange_ended(comm->group->exchange) && ended_at == INT64_MAX)
            ended_at = sw_now_ms();
        if (ended_at != INT64_MAX && sw_now_ms() - ended_at > LEAVE_MS) {
            if (__atomic_exchange_n(&comm->report->abort, 1, __ATOMIC_ACQ_REL) != 0)
                return;
            ended_at = sw_now_ms();
        }
        nanosleep(&nap, NULL);
    }
}

/* A word of what this rank has with a peer for messages. The peer may be writing others. */
static int read_word(const symwin_comm *comm, CUstream stream, int with, size_t at, uint64_t *word)
{
    const size_t pair = SW_STATE_PAIR(comm->nranks, comm->slot_bytes, with);

    return sw_drv.cuMemcpyAsync(
               (CUdeviceptr)(uintptr_t)word,
               sw_group_address(comm->group, comm->rank, comm->state_offset + pair + at),
               sizeof *word, stream) == CUDA_SUCCESS &&
           sw_drv.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

/* A small message from a rank that no receive took: its count and type. 0: there is none. The
 * sender of a large one waits, and sees that this rank has left. */
static int find_untaken(const symwin_comm *comm, CUstream stream, int from, uint64_t *says)
{
    const uint64_t most = SW_PAIR_EAGER_BYTES(comm->slot_bytes);
    uint64_t number, flag, header[2];
    size_t at, each;

    if (!read_word(comm, stream, from, offsetof(struct sw_pair, received), &number))
        return 0;
    flag = SW_PAIR_FLAG(++number);
    at = offsetof(struct sw_pair, header) + number % SW_PAIR_SLOTS * sizeof header;
    if (!read_word(comm, stream, from, at, &header[0]) || header[0] >> 32 != flag ||
        !read_word(comm, stream, from, at + sizeof header[0], &header[1]) ||
        header[1] >> 32 != flag)
        return 0;
    *says = (header[0] & 0xffffffffu) | header[1] << 32;
    each = symwin_type_bytes((symwin_type)SW_PAIR_TYPE(*says)); /* 0: a process wrote to it */
    return each > 0 && SW_PAIR_COUNT(*says) <= most / each;
}

/* A small send ends before its receive begins. If this rank leaves without that receive, nobody
 * else can know. The calls of this rank have ended. */
static void tell_untaken(symwin_comm *comm, CUstream stream)
{
    struct sw_exchange *x = comm->group->exchange;
    uint64_t says = 0;
    int from = 0;

    while (from < comm->nranks && !sw_exchange_ended(x) &&
           (from == comm->rank || !find_untaken(comm, stream, from, &says)))
        from++;
    if (from == comm->nranks || sw_exchange_ended(x))
        return;
    sw_exchange_fail_untaken(x, comm->rank, from, SW_PAIR_COUNT(says));
    (void)sw_fail(SYMWIN_MISMATCH,
                  "symwin_comm_destroy: rank %d sent rank %d %llu elements of %s, which no "
                  "receive has taken; make a receive for each send",
                  sw_exchange_number(x, from), sw_exchange_number(x, comm->rank),
                  (unsigned long long)SW_PAIR_COUNT(says),
                  symwin_type_name((symwin_type)SW_PAIR_TYPE(says)));
}

/* Whether the communicator has ended since a process that links hosts was lost. Each host learns
 * that from its own end of the connection, and some later than their kernels would see that this
 * rank has left: they would name this rank. */
static int hosts_are_apart(const symwin_comm *comm)
{
    const struct sw_group *group = comm->group;
    symwin_status status = SYMWIN_OK;
    int culprit = -1, h, found = 0;

    if (group->hosts < 2 || !sw_exchange_outcome(group->exchange, &status, &culprit) ||
        status != SYMWIN_PEER_LOST || culprit < 0 || culprit >= group->nranks)
        return 0;
    for (h = 0; h < group->hosts; h++)
        found |= group->process_of[group->links[h].rank] == group->process_of[culprit];
    return found;
}

static void take_leave(symwin_comm *comm)
{
    struct sw_exchange *x = comm->group->exchange;
    CUstream stream = NULL;
    symwin_status status;

    status = sw_check(sw_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (status == SYMWIN_OK) {
        sw_exchange_take_leave(x, comm->rank);
        await_calls(comm, stream);
        tell_untaken(comm, stream);
        sw_exchange_settle(x); /* peers must learn the reason before they see that it left */
        if (!hosts_are_apart(comm))
            status = announce_left(comm, stream);
    }
    if (status != SYMWIN_OK) { /* peers' kernels must not keep waiting for this rank */
        sw_exchange_is_lost(x, comm->rank);
        if (!sw_exchange_ended(x)) {
            sw_exchange_say_why(x, comm->rank, symwin_last_error());
            sw_exchange_fail(x, SYMWIN_PEER_LOST, comm->rank);
        } else {
            sw_group_abort_kernels(comm->group);
        }
        sw_exchange_settle(x);
    }
    if (stream != NULL)
        sw_drop(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
}

static void take_leave_without_kernels(symwin_comm *comm)
{
    sw_exchange_take_leave(comm->group->exchange, comm->rank);
    sw_exchange_settle(comm->group->exchange);
}

void sw_comm_take_leave(symwin_comm *comm)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};

    if (comm->stage < SW_COMM_MEMORY) /* it has no kernels of its own */
        take_leave_without_kernels(comm);
    else if (comm->nranks > 1 || comm->done > 0)
        take_leave(comm);
    while (atomic_load(&comm->watchers) > 0) /* one of them may have ended the wait for calls */
        nanosleep(&nap, NULL);
}

/* ---- state ---- */

/* Tells what kernels of this rank, or of another one on this host, have found, if the exchange has
 * ended so. SYMWIN_OK: it has not. */
static symwin_status tell_found(const symwin_comm *comm, symwin_status outcome, int named,
                                const char *call)
{
    const struct sw_exchange *x = comm->group->exchange;
    struct sw_kernel_report others = {.code = SW_KERNEL_OK};
    const struct sw_kernel_report *const reports[] = {comm->report, &others};
    int i, rank = 0;

    if (sw_exchange_found(x, &others.found))
        others.code = others.found.code;
    for (i = 0; i < 2; i++) {
        const symwin_status status = sw_report_status(reports[i], &rank);

        if (status != SYMWIN_OK && status == outcome && sw_exchange_number(x, rank) == named)
            return sw_report_tell(reports[i], call, x, comm->sharers > 1);
    }
    return SYMWIN_OK;
}

/* Why the exchange has ended: what kernels of this rank's domain have found, if that was it. */
static symwin_status settled_over_domains(const symwin_comm *comm, const char *call)
{
    struct sw_exchange *x = comm->group->exchange;
    symwin_status outcome = SYMWIN_OK, found;
    int culprit = 0;

    if (comm->inner == NULL || !sw_exchange_outcome(x, &outcome, &culprit))
        return sw_exchange_settled(x, call);
    found = tell_found(comm->inner, outcome, culprit, call);
    return found != SYMWIN_OK ? found : sw_exchange_settled(x, call);
}

/* A failure that kernels have found ends the exchange too, for all ranks, unless another came
 * first. */
symwin_status sw_comm_status(symwin_comm *comm, const char *call)
{
    struct sw_exchange *x = comm->group->exchange;
    const struct sw_kernel_report *report = comm->report;
    symwin_status status = sw_fork_check(call), settled, outcome = SYMWIN_OK;
    int culprit = 0, is_message;
    uint32_t code;

    if (status != SYMWIN_OK)
        return status;
    if (comm->wide != NULL) {
        sw_wide_calls_of(comm)->look(comm);
        return settled_over_domains(comm, call);
    }
    code = __atomic_load_n(&report->code, __ATOMIC_ACQUIRE);
    status = sw_report_status(report, &culprit);
    if (status == SYMWIN_MISMATCH)
        sw_exchange_note_found(x, &report->found);
    is_message = status == SYMWIN_TIMEOUT && report->found.argument == SW_ARGUMENT_PAIR;
    if (status == SYMWIN_TIMEOUT && !sw_exchange_ended(x))
        sw_exchange_fail_late(x, culprit, is_message ? SW_A_MESSAGE : call,
                              is_message ? 0 : report->found.epoch);
    else if (status != SYMWIN_OK && !sw_exchange_ended(x))
        sw_exchange_fail(x, status, culprit);
    settled = sw_exchange_settled(x, call); /* a lost peer or an abort */
    if (settled == SYMWIN_OK && code == SW_KERNEL_OK)
        return SYMWIN_OK;
    (void)sw_exchange_outcome(x, &outcome, &culprit);
    status = tell_found(comm, outcome, sw_exchange_number(x, culprit), call);
    if (status != SYMWIN_OK)
        return status;
    if (settled != SYMWIN_OK)
        return settled;
    return sw_fail(SYMWIN_ABORTED, "%s: the communicator was aborted; destroy it", call);
}

/* Asks the driver once for the device of an address; if `pinned`, *device stays as it is for pinned
 * host memory that devices access by that address. `name` is the argument's name in the error text.
 */
static symwin_status ask_device(const char *call, const char *name, CUdeviceptr ptr, int pinned,
                                int *device)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    CUmemorytype type = (CUmemorytype)0; /* it stays so for pageable memory */
    CUdeviceptr mapped = 0;
    int found = -1;
    void *answers[] = {&type, &found, &mapped};
    const CUresult result = sw_drv.cuPointerGetAttributes(3, attributes, answers, ptr);

    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE)
        return sw_check(result, "%s: cuPointerGetAttributes of %s (0x%llx)", call, name, ptr);
    if (result == CUDA_SUCCESS && pinned && type == CU_MEMORYTYPE_HOST && mapped == ptr)
        return SYMWIN_OK;
    if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %s (0x%llx) is not device memory; allocate it on the device", call,
                       name, ptr);
    *device = found;
    return SYMWIN_OK;
}

int sw_comm_absent(const symwin_comm *comm)
{
    symwin_status status;
    int culprit;

    return sw_exchange_outcome(comm->group->exchange, &status, &culprit) &&
                   status == SYMWIN_TIMEOUT && culprit < comm->nranks
               ? culprit
               : -1;
}

static symwin_status compare_device(const symwin_comm *comm, const char *call, const char *name,
                                    CUdeviceptr ptr, int device)
{
    symwin_status status = SYMWIN_OK;

    if (device != comm->device)
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %s (0x%llx) is memory of device %d and rank %d's communicator is on "
                         "device %d; pass memory of device %d",
                         call, name, ptr, device, comm->rank, comm->device, comm->device);
    return status;
}

symwin_status sw_comm_check_device(const symwin_comm *comm, const char *call, const char *name,
                                   CUdeviceptr ptr, int device)
{
    symwin_status status = SYMWIN_OK;

    if (device < 0)
        status = ask_device(call, name, ptr, 0, &device);
    return status == SYMWIN_OK ? compare_device(comm, call, name, ptr, device) : status;
}

symwin_status sw_comm_check_buffer(const symwin_comm *comm, const char *call, const char *name,
                                   CUdeviceptr ptr)
{
    int device = comm->device;
    const symwin_status status = ask_device(call, name, ptr, 1, &device);

    return status == SYMWIN_OK ? compare_device(comm, call, name, ptr, device) : status;
}

symwin_status sw_comm_enter(symwin_comm *comm, const char *call)
{
    symwin_status status;

    status = sw_fork_check(call);
    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    if (atomic_flag_test_and_set_explicit(&comm->busy, memory_order_acquire))
        return sw_fail(SYMWIN_BUSY,
                       "%s: another thread is in a collective call of rank %d's communicator; each "
                       "rank needs its own communicator",
                       call, comm->rank);
    atomic_store_explicit(&comm->failures, sw_failures(), memory_order_relaxed);
    status = sw_comm_status(comm, call);
    if (status != SYMWIN_OK)
        sw_comm_leave(comm);
    return status;
}

void sw_comm_leave(symwin_comm *comm)
{
    atomic_flag_clear_explicit(&comm->busy, memory_order_release);
}

/* `calls`: only what kernels of this rank have found is of interest. */
static symwin_status check(symwin_comm *comm, const char *call, int calls)
{
    symwin_status status;

    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", call);
    status = sw_fork_check(call);
    if (status != SYMWIN_OK)
        return status;
    atomic_fetch_add(&comm->watchers, 1);
    if (!calls || comm->wide != NULL ||
        __atomic_load_n(&comm->report->code, __ATOMIC_ACQUIRE) != SW_KERNEL_OK)
        status = sw_comm_status(comm, call);
    atomic_fetch_sub(&comm->watchers, 1);
    return status;
}

symwin_status symwin_comm_check(symwin_comm *comm)
{
    return check(comm, "symwin_comm_check", 0);
}

symwin_status symwin_comm_check_calls(symwin_comm *comm)
{
    return check(comm, "symwin_comm_check_calls", 1);
}

symwin_status sw_comm_reason(symwin_comm *comm, const char *call, symwin_status status)
{
    symwin_status outcome;
    int culprit;

    if (status == SYMWIN_OK || comm == NULL || comm->inner == NULL ||
        !sw_exchange_outcome(comm->group->exchange, &outcome, &culprit) ||
        (outcome == status && culprit == comm->rank)) /* it has failed itself, and knows more */
        return status;
    return settled_over_domains(comm, call);
}

/* If this thread has failed since the last call of the communicator began, that is why. */
symwin_status symwin_comm_abort(symwin_comm *comm)
{
    symwin_status status = sw_fork_check("symwin_comm_abort");

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_comm_abort: comm is NULL");
    atomic_fetch_add(&comm->watchers, 1);
    if (sw_failure() > atomic_load(&comm->failures) && !sw_exchange_ended(comm->group->exchange))
        sw_exchange_say_why(comm->group->exchange, comm->rank, symwin_last_error());
    sw_exchange_fail(comm->group->exchange, SYMWIN_ABORTED, comm->rank);
    sw_group_abort_kernels(comm->group);
    sw_group_shut_sockets(comm->group);
    atomic_fetch_sub(&comm->watchers, 1);
    return SYMWIN_OK;
}
