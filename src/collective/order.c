/* The order of calls on a device.
 *
 * Calls on one communicator share an epoch and receive slots, so they run one after another. When
 * the stream changes, the new stream first waits until all blocks of the calls so far have counted
 * themselves. So no event has to be recorded at every call, and the old stream may no longer exist.
 * Streams are distinguished by their ids: a handle may be reused for a new stream, or may be the
 * per-thread stream's. Inside a stream capture the order becomes edges of the graph instead.
 *
 * Calls of several communicators wait for peers while they occupy multiprocessors of one device.
 * They may run in parallel if all their blocks fit, one per multiprocessor. Otherwise the later
 * call comes after the earlier ones, on each device, so that no call waits for a peer that needs a
 * multiprocessor held by another call. Calls that fit together make a *generation*. A call that
 * does not fit begins the next generation, and comes after all calls of the previous one.
 * docs/design.md has the proof.
 *
 * The counts are in a page of device memory that stays until the last communicator of the device is
 * destroyed: a stream may still wait for the count of a destroyed one. A new owner continues a
 * count where the last owner left it, so the condition of such a wait stays true.
 */
#include <stdlib.h>
#include <string.h>

#include "src/collective/order.h"

enum { COUNT_BYTES = 128, COUNTS = 4096 }; /* each in its own cache line */

struct page {
    struct page *next;
    int device;
    struct sw_memory memory; /* owned */
    int used;
    struct {
        uint32_t value; /* value of the word in device memory while it is not in use */
        int taken;
    } counts[COUNTS];
};

/* The communicators whose calls are ordered: those of a device, or of one rank if ranks of this
 * process share the device. */
struct sw_order {
    struct sw_order *next;
    int device;
    uint64_t rank;   /* a thread's number; 0: the device has one rank of this process */
    uint64_t thread; /* that created all of the communicators so far; 0: there are several */
    pthread_mutex_t mutex;
    struct sw_calls *first; /* of the communicators with peers */
    unsigned in_use;        /* how many of them have made a call */
    unsigned widest;        /* ranks on the device, of the communicator that has the most there */
    _Atomic unsigned parts; /* of the device, one of which is for each rank */
    uint64_t generation;    /* of the last call outside captures */
    CUgreenCtx partition;   /* of the calls in this generation */
};

static struct {
    pthread_mutex_t mutex;
    struct page *pages;
    struct sw_order *orders;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint64_t thread_number; /* 0: none yet. Unique to the thread */

/* ---- counts ---- */

/* Under the mutex of all. */
static struct page **find_page(int device)
{
    struct page **at = &all.pages;

    while (*at != NULL && (*at)->device != device)
        at = &(*at)->next;
    return at;
}

/* NULL: none. */
static void free_page(struct page *page)
{
    if (page == NULL)
        return;
    sw_memory_release(&page->memory);
    free(page);
}

static symwin_status make_page(int device, struct page **out)
{
    static const char call[] = "symwin_comm_create";
    struct sw_memory_kind kind;
    struct page *page = calloc(1, sizeof *page);
    size_t bytes = (size_t)COUNTS * COUNT_BYTES;
    symwin_status status;

    if (page == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the counts of device %d", device);
    page->device = device;
    status = sw_memory_kind_find(call, device, &kind);
    if (status == SYMWIN_OK) {
        bytes = (bytes + kind.granularity - 1) / kind.granularity * kind.granularity;
        status = sw_memory_create(call, &kind, bytes, 0, &page->memory);
    }
    if (status == SYMWIN_OK)
        status = sw_memory_fill(page->memory.base, 0, bytes);
    if (status != SYMWIN_OK) {
        free_page(page);
        return status;
    }
    *out = page;
    return SYMWIN_OK;
}

/* Under the mutex of all, which it gives up while the driver makes a page: ranks of other devices,
 * which may be past their deadline, do not wait for this device's driver. */
static symwin_status take_count(symwin_comm *comm)
{
    struct page **at = find_page(comm->device), *page = NULL;
    symwin_status status = SYMWIN_OK;
    int i = 0;

    if (*at == NULL) {
        pthread_mutex_unlock(&all.mutex);
        status = make_page(comm->device, &page);
        pthread_mutex_lock(&all.mutex);
        at = find_page(comm->device);
    }
    if (status != SYMWIN_OK)
        return status;
    if (*at == NULL) {
        *at = page;
        page = NULL;
    }
    while (i < COUNTS && (*at)->counts[i].taken)
        i++;
    if (i < COUNTS) {
        (*at)->counts[i].taken = 1;
        (*at)->used++;
        comm->done = comm->registrations->counted = (*at)->counts[i].value;
        comm->done_address = (*at)->memory.base + (CUdeviceptr)i * COUNT_BYTES;
    } else {
        status = sw_fail(SYMWIN_NO_MEMORY,
                         "%d communicators of this process are on device %d; destroy some first",
                         COUNTS, comm->device);
    }
    if (page != NULL) { /* another thread has made one */
        pthread_mutex_unlock(&all.mutex);
        free_page(page);
        pthread_mutex_lock(&all.mutex);
    }
    return status;
}

/* Under the mutex of all. Returns the page if that was its last count: to be freed. */
static struct page *give_count(symwin_comm *comm)
{
    struct page **at = find_page(comm->device), *page = *at;
    const size_t i = (size_t)(comm->done_address - page->memory.base) / COUNT_BYTES;

    page->counts[i].value = comm->done;
    page->counts[i].taken = 0;
    comm->done_address = 0;
    if (--page->used > 0)
        return NULL;
    *at = page->next;
    return page;
}

/* ---- which communicators ---- */

/* Once ranks of this process share a device, each thread that creates communicators there counts as
 * a rank. */
static uint64_t rank_number(const symwin_comm *comm)
{
    static unsigned char shared[1024];
    static uint64_t threads;
    const size_t i = (size_t)comm->device % sizeof shared;

    shared[i] |= comm->local_on_device > 1;
    if (thread_number == 0)
        thread_number = ++threads;
    return shared[i] ? thread_number : 0;
}

/* Whether the order is that of the rank. What the rank's thread alone created before ranks shared
 * the device becomes the rank's. */
static int is_of(const struct sw_order *order, uint64_t rank)
{
    return order->rank == rank || (order->rank == 0 && order->thread == rank);
}

static symwin_status find_order(int device, uint64_t rank, struct sw_order **out)
{
    struct sw_order *order = all.orders;

    while (order != NULL && (order->device != device || !is_of(order, rank)))
        order = order->next;
    if (order == NULL) {
        order = calloc(1, sizeof *order);
        if (order == NULL || pthread_mutex_init(&order->mutex, NULL) != 0) {
            free(order);
            return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the order of calls on device %d",
                           device);
        }
        order->device = device;
        order->thread = thread_number;
        order->generation = 1;
        order->next = all.orders;
        all.orders = order;
    }
    order->rank = rank;
    if (order->thread != thread_number)
        order->thread = 0;
    *out = order;
    return SYMWIN_OK;
}

static void find_widest(struct sw_order *order)
{
    const struct sw_calls *c;

    order->widest = 1;
    for (c = order->first; c != NULL; c = c->next)
        if ((unsigned)c->comm->ranks_on_device > order->widest)
            order->widest = (unsigned)c->comm->ranks_on_device;
}

/* Calls in different orders do not wait for each other: there is a part for each order, and for
 * each rank of the communicator that has the most ranks there. The mutexes of the orders are not
 * taken: one of them may be held by a launch that waits for room in its stream. */
static void divide(int device)
{
    struct sw_order *order;
    unsigned orders = 0, parts = 1;

    for (order = all.orders; order != NULL; order = order->next)
        if (order->device == device) {
            orders++;
            parts = order->widest > parts ? order->widest : parts;
        }
    parts = orders > parts ? orders : parts;
    for (order = all.orders; order != NULL; order = order->next)
        if (order->device == device)
            atomic_store_explicit(&order->parts, parts, memory_order_relaxed);
}

static unsigned parts_of(const struct sw_order *order)
{
    return atomic_load_explicit(&order->parts, memory_order_relaxed);
}

symwin_status sw_order_join(struct sw_calls *calls)
{
    symwin_comm *comm = calls->comm;
    const int ordered = comm->nranks > 1 && (comm->flags & SYMWIN_COMM_NO_ORDER) == 0;
    struct sw_order *order = NULL;
    symwin_status status;

    pthread_mutex_lock(&all.mutex);
    status = take_count(comm);
    if (status == SYMWIN_OK && ordered)
        status = find_order(comm->device, rank_number(comm), &order);
    if (order != NULL) {
        pthread_mutex_lock(&order->mutex);
        calls->next = order->first;
        order->first = calls;
        find_widest(order);
        pthread_mutex_unlock(&order->mutex);
        calls->order = order;
        divide(order->device);
    }
    pthread_mutex_unlock(&all.mutex);
    return status;
}

/* Removes the communicator. One of its calls may have been aborted before it waited for the calls
 * that it had to follow, and later calls still have to follow them. So the next call of another
 * communicator waits for all. */
static void take_out(struct sw_order *order, struct sw_calls *calls)
{
    struct sw_calls **at = &order->first, *c;

    while (*at != calls)
        at = &(*at)->next;
    *at = calls->next;
    order->in_use -= (unsigned)calls->in_use;
    find_widest(order);
    for (c = order->first; c != NULL; c = c->next)
        if (c->has_last) {
            c->generation = order->generation;
            c->room = UINT32_MAX;
        }
}

void sw_order_leave(struct sw_calls *calls)
{
    struct sw_order *order = calls->order, **at = &all.orders;
    struct page *last = NULL;

    if (calls->edge != NULL)
        sw_drop(sw_drv.cuEventDestroy(calls->edge), "cuEventDestroy");
    pthread_mutex_lock(&all.mutex);
    if (order != NULL) {
        pthread_mutex_lock(&order->mutex);
        take_out(order, calls);
        pthread_mutex_unlock(&order->mutex);
    }
    if (order != NULL && order->first == NULL) {
        while (*at != order)
            at = &(*at)->next;
        *at = order->next;
        pthread_mutex_destroy(&order->mutex);
        free(order);
    }
    if (calls->order != NULL)
        divide(calls->comm->device);
    if (calls->comm->done_address != 0)
        last = give_count(calls->comm);
    pthread_mutex_unlock(&all.mutex);
    free_page(last);
}

/* ---- room, in blocks: a block takes one multiprocessor at most ---- */

static unsigned larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* For this rank's calls, in a partition of `multiprocessors`. */
static unsigned room_of(const struct sw_order *order, unsigned multiprocessors)
{
    return larger(multiprocessors / parts_of(order), 1);
}

/* The part of `room` that the captured calls of the other communicators in use leave, each counted
 * as at least `each`. */
static unsigned left_of(const struct sw_calls *calls, unsigned room, unsigned each)
{
    uint64_t taken = 0;
    const struct sw_calls *c;

    for (c = calls->order->first; c != NULL; c = c->next)
        if (c != calls && c->in_use)
            taken += larger(c->captured_room, each);
    return taken + 1 < room ? room - (unsigned)taken : 1;
}

static int others_have_captured(const struct sw_calls *calls)
{
    const struct sw_calls *c = calls->order->first;

    while (c != NULL && (c == calls || c->captured_room == 0))
        c = c->next;
    return c != NULL;
}

/* A captured call runs whenever its graph is launched. So it leaves room for all others: it gets an
 * equal share. */
static unsigned most_beside_others(const struct sw_turn *turn)
{
    const struct sw_order *order = turn->calls->order;
    unsigned others, room, left;

    others = order->in_use - (unsigned)turn->calls->in_use;
    if (others == 0)
        return 0;
    room = room_of(order, turn->multiprocessors);
    if (!turn->captured)
        return others_have_captured(turn->calls) ? left_of(turn->calls, room, 0) : 0;
    left = left_of(turn->calls, room, 1);
    return left < room / (others + 1) ? left : larger(room / (others + 1), 1);
}

/* Where the device has more ranks than this communicator has there, calls of those ranks may run
 * beside this one that do not wait for it: it keeps to its rank's share. */
static unsigned most_blocks(const struct sw_turn *turn)
{
    const struct sw_order *order = turn->calls->order;
    unsigned most, room;

    if (order == NULL)
        return 0;
    most = most_beside_others(turn);
    if (parts_of(order) <= (unsigned)turn->calls->comm->ranks_on_device)
        return most;
    room = room_of(order, turn->multiprocessors);
    return most == 0 || most > room ? room : most;
}

unsigned sw_order_most_blocks(symwin_comm *comm)
{
    const struct sw_turn turn = {
        .calls = comm->calls,
        .multiprocessors = (unsigned)sw_kernels_multiprocessors(comm->kernels)};
    struct sw_order *order = comm->calls->order;
    unsigned most;

    if (order == NULL)
        return 0;
    pthread_mutex_lock(&order->mutex);
    most = most_blocks(&turn);
    pthread_mutex_unlock(&order->mutex);
    return most;
}

/* Whether the call fits together with the calls of the generation and with graphs. */
static int fits(const struct sw_turn *turn, unsigned room)
{
    const struct sw_calls *calls = turn->calls, *c;
    const struct sw_order *order = calls->order;
    uint64_t taken = 0;
    int alone = 1;

    for (c = order->first; c != NULL; c = c->next) {
        const unsigned now = c->generation == order->generation ? c->room : 0;

        alone = alone && (c == calls || now == 0);
        taken += larger(larger(now, c->captured_room), c == calls ? turn->room : 0);
    }
    return (alone || order->partition == turn->partition) && taken <= room;
}

/* ---- waits ---- */

/* The count is in memory that this device alone reaches, so the driver refuses the address if the
 * stream is another device's. */
static symwin_status wait_for(const struct sw_turn *turn, const struct sw_calls *calls,
                              uint32_t done)
{
    const CUresult result = sw_drv.cuStreamWaitValue32(turn->stream, calls->comm->done_address,
                                                       done, CU_STREAM_WAIT_VALUE_GEQ);
    const symwin_status status = sw_check_stream(result, turn->call, "cuStreamWaitValue32");

    return result == CUDA_ERROR_INVALID_VALUE ? sw_blame_stream(status) : status;
}

/* The call waits for the calls of other communicators in the generation before its own. In the same
 * stream they are before it anyway. */
static symwin_status wait_for_others(struct sw_turn *turn)
{
    const struct sw_order *order = turn->calls->order;
    symwin_status status = SYMWIN_OK;
    const struct sw_calls *c;

    if (turn->fits && turn->calls->generation == order->generation)
        return SYMWIN_OK;
    for (c = order->first; c != NULL && status == SYMWIN_OK; c = c->next) {
        const int before = turn->fits ? c->before_generation == order->generation
                                      : c->generation == order->generation;
        const unsigned long long id = turn->fits ? c->before_id : c->last_id;
        const uint32_t done = turn->fits ? sw_done_since(c->comm, c->before_done) : c->comm->done;

        if (c == turn->calls || !before || (id != 0 && id == turn->stream_id))
            continue;
        turn->early = 0;
        status = wait_for(turn, c, done);
    }
    return status;
}

/* The call waits for the last call of this communicator. */
static symwin_status wait_for_last(struct sw_turn *turn)
{
    const struct sw_calls *calls = turn->calls;
    int same;

    if (turn->stream_id != 0 && calls->last_id != 0)
        same = turn->stream_id == calls->last_id;
    else
        same = turn->stream == calls->last_stream && turn->stream != CU_STREAM_PER_THREAD;
    return calls->has_last && !same ? wait_for(turn, calls, calls->comm->done) : SYMWIN_OK;
}

/* ---- inside captures ---- */

/* The record of a capture. The oldest record is replaced if there is no free one. */
static struct sw_captured *captured(struct sw_calls *calls, cuuint64_t id)
{
    struct sw_captured *c;
    int i;

    for (i = 0; i < SW_CAPTURES; i++)
        if (calls->captured[i].id == id)
            return &calls->captured[i];
    c = &calls->captured[calls->oldest];
    calls->oldest = (calls->oldest + 1) % SW_CAPTURES;
    *c = (struct sw_captured){0};
    return c;
}

symwin_status sw_turn_follow(const struct sw_turn *turn, CUstream from, CUstream to)
{
    struct sw_calls *calls = turn->calls;
    symwin_status status = SYMWIN_OK;

    if (calls->edge == NULL)
        status = sw_check(sw_drv.cuEventCreate(&calls->edge, CU_EVENT_DISABLE_TIMING),
                          "%s: cuEventCreate", turn->call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuEventRecord(calls->edge, from), "%s: cuEventRecord", turn->call);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuStreamWaitEvent(to, calls->edge, 0), "%s: cuStreamWaitEvent",
                          turn->call);
    return status;
}

static symwin_status order_in_capture(const struct sw_turn *turn)
{
    struct sw_calls *calls = turn->calls;
    struct sw_captured *last = captured(calls, turn->capture);
    symwin_status status = SYMWIN_OK;

    if (last->id == turn->capture && last->stream != turn->stream)
        status = sw_turn_follow(turn, last->stream, turn->stream);
    if (status == SYMWIN_OK) {
        *last = (struct sw_captured){turn->capture, turn->stream};
        calls->capture_id = turn->capture;
    }
    return status;
}

/* ---- one call ---- */

/* The multiprocessors of a stream: a green context has a part of the device's. Asks the driver only
 * if the stream is not the previous call's. */
static symwin_status find_partition(struct sw_turn *turn)
{
    struct sw_seen *seen = &turn->calls->seen;
    const unsigned whole = (unsigned)sw_kernels_multiprocessors(turn->calls->comm->kernels);
    CUdevResource resource = {.type = CU_DEV_RESOURCE_TYPE_INVALID};
    CUgreenCtx green = NULL;
    symwin_status status;

    turn->multiprocessors = whole;
    turn->partition = NULL;
    if (sw_drv.cuStreamGetGreenCtx == NULL || sw_drv.cuGreenCtxGetDevResource == NULL ||
        turn->stream == NULL || turn->stream == CU_STREAM_LEGACY ||
        turn->stream == CU_STREAM_PER_THREAD)
        return SYMWIN_OK; /* these belong to the primary context, which is current */
    if (seen->id == 0 || seen->id != turn->stream_id) {
        *seen = (struct sw_seen){0};
        status = sw_check(sw_drv.cuStreamGetGreenCtx(turn->stream, &green),
                          "%s: cuStreamGetGreenCtx", turn->call);
        if (status == SYMWIN_OK && green != NULL)
            status = sw_check(
                sw_drv.cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM),
                "%s: cuGreenCtxGetDevResource", turn->call);
        if (status != SYMWIN_OK)
            return status;
        *seen = (struct sw_seen){turn->stream_id, green, resource.sm.smCount};
    }
    if (seen->partition != NULL) {
        turn->partition = seen->partition;
        turn->multiprocessors = seen->multiprocessors < whole ? seen->multiprocessors : whole;
    }
    return SYMWIN_OK;
}

/* A communicator that has never made a call takes no room from the others. */
static void enter(struct sw_order *order, struct sw_calls *calls)
{
    pthread_mutex_lock(&order->mutex);
    if (!calls->in_use) {
        calls->in_use = 1;
        order->in_use++;
    }
}

/* Fills in what the stream decides. */
static symwin_status look(symwin_comm *comm, const char *call, CUstream stream,
                          struct sw_turn *turn)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    symwin_status status;

    *turn = (struct sw_turn){.calls = comm->calls, .call = call, .stream = stream};
    status = sw_check_stream(
        sw_drv.cuStreamGetCaptureInfo_v2(stream, &capturing, &turn->capture, NULL, NULL, NULL),
        call, "cuStreamGetCaptureInfo");
    if (status == SYMWIN_OK)
        status = sw_check_capture(capturing, call);
    turn->captured = capturing != CU_STREAM_CAPTURE_STATUS_NONE;
    if (status == SYMWIN_OK && !turn->captured &&
        sw_drv.cuStreamGetId != NULL) /* the query would end a capture */
        status = sw_check_stream(sw_drv.cuStreamGetId(stream, &turn->stream_id), call,
                                 "cuStreamGetId");
    return status == SYMWIN_OK ? find_partition(turn) : status;
}

symwin_status sw_turn_begin(symwin_comm *comm, const char *call, CUstream stream,
                            struct sw_turn *turn)
{
    const symwin_status status = look(comm, call, stream, turn);

    if (status != SYMWIN_OK)
        return status;
    if (turn->calls->order != NULL)
        enter(turn->calls->order, turn->calls);
    turn->most_blocks = most_blocks(turn);
    return SYMWIN_OK;
}

symwin_status sw_order_multiprocessors(symwin_comm *comm, const char *call, CUstream stream,
                                       unsigned *out)
{
    struct sw_turn turn;
    const symwin_status status = look(comm, call, stream, &turn);

    if (status == SYMWIN_OK)
        *out = turn.multiprocessors;
    return status;
}

symwin_status sw_order_follow(symwin_comm *comm, const char *call, CUstream stream)
{
    struct sw_turn turn;
    symwin_status status = look(comm, call, stream, &turn);
    int i;

    if (status != SYMWIN_OK)
        return status;
    if (!turn.captured)
        return wait_for_last(&turn);
    for (i = 0; i < SW_CAPTURES && status == SYMWIN_OK; i++) {
        const struct sw_captured *last = &comm->calls->captured[i];

        if (last->id == turn.capture && last->stream != stream)
            status = sw_turn_follow(&turn, last->stream, stream);
    }
    return status;
}

/* Not if ranks share a device: waiting blocks would keep others from reaching their own. Not if
 * max_blocks limits what a communicator may use: two of its kernels would use twice that. */
static int may_begin_early(const symwin_comm *comm)
{
    return comm->ranks_on_device == 1 && comm->max_blocks == 0 &&
           sw_kernels_begin_early(comm->kernels);
}

/* With an early kernel, two kernels of the communicator are on the device at once, and there must
 * be room for both. */
static void find_room(struct sw_turn *turn, unsigned blocks)
{
    const struct sw_order *order = turn->calls->order;
    unsigned room, most;

    turn->early = may_begin_early(turn->calls->comm);
    turn->fits = 1;
    if (order == NULL)
        return;
    room = room_of(order, turn->multiprocessors);
    most = turn->most_blocks > 0 ? turn->most_blocks : room;
    if (turn->most_blocks > 0 && 2 * blocks > most)
        turn->early = 0;
    turn->room = turn->early ? 2 * blocks : blocks;
    if (turn->room > most)
        turn->room = most;
    if (!turn->captured)
        turn->fits = fits(turn, room);
}

symwin_status sw_turn_order(struct sw_turn *turn, unsigned blocks)
{
    symwin_status status = SYMWIN_OK;

    find_room(turn, blocks);
    if (turn->captured)
        return order_in_capture(turn);
    if (turn->calls->order != NULL)
        status = wait_for_others(turn);
    return status == SYMWIN_OK ? wait_for_last(turn) : status;
}

/* The next generation comes after the calls of the generation that ends now. */
static void next_generation(struct sw_order *order)
{
    struct sw_calls *c;

    for (c = order->first; c != NULL; c = c->next)
        if (c->generation == order->generation) {
            c->before_generation = order->generation + 1;
            c->before_done = c->comm->done;
            c->before_id = c->last_id;
        }
    order->generation++;
}

static void remember(const struct sw_turn *turn)
{
    struct sw_calls *calls = turn->calls;
    struct sw_order *order = calls->order;

    if (turn->captured) {
        if (order->in_use > 1)
            calls->captured_room = larger(calls->captured_room, turn->room);
        return;
    }
    if (!turn->fits)
        next_generation(order);
    order->partition = turn->partition;
    calls->room = larger(calls->generation == order->generation ? calls->room : 0, turn->room);
    calls->generation = order->generation;
}

void sw_turn_end(struct sw_turn *turn, int launched, unsigned counted)
{
    struct sw_calls *calls = turn->calls;

    if (launched && calls->order != NULL)
        remember(turn);
    if (launched && !turn->captured) {
        calls->comm->done += counted;
        calls->has_last = 1;
        calls->last_stream = turn->stream;
        calls->last_id = turn->stream_id;
    }
    if (calls->order != NULL)
        pthread_mutex_unlock(&calls->order->mutex);
}
