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
    uint64_t rank; /* a thread's number; 0: the device has one rank of this process */
    pthread_mutex_t mutex;
    symwin_comm *comms;   /* those with peers, linked by order_next */
    unsigned in_use;      /* how many of them have made a call */
    unsigned sharers;     /* ranks on the device, of the communicator that has the most there */
    uint64_t generation;  /* of the last call outside captures */
    CUgreenCtx partition; /* of the calls in this generation */
};

static struct {
    pthread_mutex_t mutex;
    struct page *pages;
    struct sw_order *orders;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint64_t thread_number; /* 0: none yet. Unique to the thread */

/* ---- counts, under the mutex of all ---- */

static struct page **find_page(int device)
{
    struct page **at = &all.pages;

    while (*at != NULL && (*at)->device != device)
        at = &(*at)->next;
    return at;
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
        sw_memory_release(&page->memory);
        free(page);
        return status;
    }
    *out = page;
    return SYMWIN_OK;
}

static symwin_status take_count(symwin_comm *comm)
{
    struct page **at = find_page(comm->device);
    symwin_status status = SYMWIN_OK;
    int i = 0;

    if (*at == NULL)
        status = make_page(comm->device, at);
    if (status != SYMWIN_OK)
        return status;
    while (i < COUNTS && (*at)->counts[i].taken)
        i++;
    if (i == COUNTS)
        return sw_fail(SYMWIN_NO_MEMORY,
                       "%d communicators of this process are on device %d; destroy some first",
                       COUNTS, comm->device);
    (*at)->counts[i].taken = 1;
    (*at)->used++;
    comm->done = comm->registrations->counted = (*at)->counts[i].value;
    comm->done_address = (*at)->memory.base + (CUdeviceptr)i * COUNT_BYTES;
    return SYMWIN_OK;
}

static void give_count(symwin_comm *comm)
{
    struct page **at = find_page(comm->device), *page = *at;
    const size_t i = (size_t)(comm->done_address - page->memory.base) / COUNT_BYTES;

    page->counts[i].value = comm->done;
    page->counts[i].taken = 0;
    comm->done_address = 0;
    if (--page->used > 0)
        return;
    *at = page->next;
    sw_memory_release(&page->memory);
    free(page);
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

static symwin_status find_order(int device, uint64_t rank, struct sw_order **out)
{
    struct sw_order *order = all.orders;

    while (order != NULL && (order->device != device || order->rank != rank))
        order = order->next;
    if (order == NULL) {
        order = calloc(1, sizeof *order);
        if (order == NULL || pthread_mutex_init(&order->mutex, NULL) != 0) {
            free(order);
            return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the order of calls on device %d",
                           device);
        }
        order->device = device;
        order->rank = rank;
        order->generation = 1;
        order->next = all.orders;
        all.orders = order;
    }
    *out = order;
    return SYMWIN_OK;
}

static void find_sharers(struct sw_order *order)
{
    const symwin_comm *c;

    order->sharers = 1;
    for (c = order->comms; c != NULL; c = c->order_next)
        if ((unsigned)c->ranks_on_device > order->sharers)
            order->sharers = (unsigned)c->ranks_on_device;
}

symwin_status sw_order_join(symwin_comm *comm)
{
    const int ordered = comm->nranks > 1 && (comm->flags & SYMWIN_COMM_NO_ORDER) == 0;
    struct sw_order *order = NULL;
    symwin_status status;

    pthread_mutex_lock(&all.mutex);
    status = take_count(comm);
    if (status == SYMWIN_OK && ordered)
        status = find_order(comm->device, rank_number(comm), &order);
    if (order != NULL) {
        pthread_mutex_lock(&order->mutex);
        comm->order_next = order->comms;
        order->comms = comm;
        find_sharers(order);
        pthread_mutex_unlock(&order->mutex);
        comm->order = order;
    }
    pthread_mutex_unlock(&all.mutex);
    return status;
}

/* Removes the communicator. One of its calls may have been aborted before it waited for the calls
 * that it had to follow, and later calls still have to follow them. So the next call of another
 * communicator waits for all. */
static void take_out(struct sw_order *order, symwin_comm *comm)
{
    symwin_comm **at = &order->comms, *c;

    while (*at != comm)
        at = &(*at)->order_next;
    *at = comm->order_next;
    order->in_use -= (unsigned)comm->in_use;
    find_sharers(order);
    for (c = order->comms; c != NULL; c = c->order_next)
        if (c->has_last) {
            c->generation = order->generation;
            c->room = UINT32_MAX;
        }
}

void sw_order_leave(symwin_comm *comm)
{
    struct sw_order *order = comm->order, **at = &all.orders;

    if (comm->edge != NULL)
        sw_drop(sw_drv.cuEventDestroy(comm->edge), "cuEventDestroy");
    comm->edge = NULL;
    pthread_mutex_lock(&all.mutex);
    if (order != NULL) {
        pthread_mutex_lock(&order->mutex);
        take_out(order, comm);
        pthread_mutex_unlock(&order->mutex);
    }
    if (order != NULL && order->comms == NULL) {
        while (*at != order)
            at = &(*at)->next;
        *at = order->next;
        pthread_mutex_destroy(&order->mutex);
        free(order);
    }
    if (comm->done_address != 0)
        give_count(comm);
    pthread_mutex_unlock(&all.mutex);
    comm->order = NULL;
}

/* ---- room, in blocks: a block takes one multiprocessor at most ---- */

static unsigned larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* For this rank's calls, in a partition of `multiprocessors`. */
static unsigned room_of(const struct sw_order *order, unsigned multiprocessors)
{
    return larger(multiprocessors / order->sharers, 1);
}

/* The part of `room` that the captured calls of the other communicators in use leave, each counted
 * as at least `each`. */
static unsigned left_of(const symwin_comm *comm, unsigned room, unsigned each)
{
    uint64_t taken = 0;
    const symwin_comm *c;

    for (c = comm->order->comms; c != NULL; c = c->order_next)
        if (c != comm && c->in_use)
            taken += larger(c->captured_room, each);
    return taken + 1 < room ? room - (unsigned)taken : 1;
}

static int others_have_captured(const symwin_comm *comm)
{
    const symwin_comm *c = comm->order->comms;

    while (c != NULL && (c == comm || c->captured_room == 0))
        c = c->order_next;
    return c != NULL;
}

/* A captured call runs whenever its graph is launched. So it leaves room for all others: it gets an
 * equal share. */
static unsigned most_blocks(const struct sw_turn *turn)
{
    const struct sw_order *order = turn->comm->order;
    unsigned others, room, left;

    if (order == NULL)
        return 0;
    others = order->in_use - (unsigned)turn->comm->in_use;
    if (others == 0)
        return 0;
    room = room_of(order, turn->multiprocessors);
    if (!turn->captured)
        return others_have_captured(turn->comm) ? left_of(turn->comm, room, 0) : 0;
    left = left_of(turn->comm, room, 1);
    return left < room / (others + 1) ? left : larger(room / (others + 1), 1);
}

unsigned sw_order_most_blocks(symwin_comm *comm)
{
    const struct sw_turn turn = {
        .comm = comm, .multiprocessors = (unsigned)sw_kernels_multiprocessors(comm->kernels)};
    unsigned most;

    if (comm->order == NULL)
        return 0;
    pthread_mutex_lock(&comm->order->mutex);
    most = most_blocks(&turn);
    pthread_mutex_unlock(&comm->order->mutex);
    return most;
}

/* Whether the call fits together with the calls of the generation and with graphs. */
static int fits(const struct sw_turn *turn, unsigned room)
{
    const symwin_comm *comm = turn->comm, *c;
    const struct sw_order *order = comm->order;
    uint64_t taken = 0;
    int alone = 1;

    for (c = order->comms; c != NULL; c = c->order_next) {
        const unsigned now = c->generation == order->generation ? c->room : 0;

        alone = alone && (c == comm || now == 0);
        taken += larger(larger(now, c->captured_room), c == comm ? turn->room : 0);
    }
    return (alone || order->partition == turn->partition) && taken <= room;
}

/* ---- waits ---- */

static symwin_status wait_for(const struct sw_turn *turn, const symwin_comm *comm, uint32_t done)
{
    return sw_check(sw_drv.cuStreamWaitValue32(turn->stream, comm->done_address, done,
                                               CU_STREAM_WAIT_VALUE_GEQ),
                    "%s: cuStreamWaitValue32", turn->call);
}

/* The call waits for the calls of other communicators in the generation before its own. In the same
 * stream they are before it anyway. */
static symwin_status wait_for_others(struct sw_turn *turn)
{
    const struct sw_order *order = turn->comm->order;
    symwin_status status = SYMWIN_OK;
    const symwin_comm *c;

    if (turn->fits && turn->comm->generation == order->generation)
        return SYMWIN_OK;
    for (c = order->comms; c != NULL && status == SYMWIN_OK; c = c->order_next) {
        const int before = turn->fits ? c->before_generation == order->generation
                                      : c->generation == order->generation;
        const unsigned long long id = turn->fits ? c->before_id : c->last_id;

        if (c == turn->comm || !before || (id != 0 && id == turn->stream_id))
            continue;
        turn->early = 0;
        status = wait_for(turn, c, turn->fits ? sw_done_since(c, c->before_done) : c->done);
    }
    return status;
}

/* The call waits for the last call of this communicator. */
static symwin_status wait_for_last(struct sw_turn *turn)
{
    const symwin_comm *comm = turn->comm;
    int same;

    if (turn->stream_id != 0 && comm->last_id != 0)
        same = turn->stream_id == comm->last_id;
    else
        same = turn->stream == comm->last_stream && turn->stream != CU_STREAM_PER_THREAD;
    return comm->has_last && !same ? wait_for(turn, comm, comm->done) : SYMWIN_OK;
}

/* ---- inside captures ---- */

/* The record of a capture. The oldest record is replaced if there is no free one. */
static struct sw_captured *captured(symwin_comm *comm, cuuint64_t id)
{
    struct sw_captured *c;
    int i;

    for (i = 0; i < SW_CAPTURES; i++)
        if (comm->captured[i].id == id)
            return &comm->captured[i];
    c = &comm->captured[comm->oldest];
    comm->oldest = (comm->oldest + 1) % SW_CAPTURES;
    *c = (struct sw_captured){0};
    return c;
}

static symwin_status order_in_capture(const struct sw_turn *turn)
{
    symwin_comm *comm = turn->comm;
    struct sw_captured *last = captured(comm, turn->capture);
    symwin_status status = SYMWIN_OK;

    if (last->id == turn->capture && last->stream != turn->stream) {
        if (comm->edge == NULL)
            status = sw_check(sw_drv.cuEventCreate(&comm->edge, CU_EVENT_DISABLE_TIMING),
                              "%s: cuEventCreate", turn->call);
        if (status == SYMWIN_OK)
            status = sw_check(sw_drv.cuEventRecord(comm->edge, last->stream), "%s: cuEventRecord",
                              turn->call);
        if (status == SYMWIN_OK)
            status = sw_check(sw_drv.cuStreamWaitEvent(turn->stream, comm->edge, 0),
                              "%s: cuStreamWaitEvent", turn->call);
    }
    if (status == SYMWIN_OK) {
        *last = (struct sw_captured){turn->capture, turn->stream};
        comm->capture_id = turn->capture;
    }
    return status;
}

/* ---- one call ---- */

/* The multiprocessors of a stream: a green context has a part of the device's. Asks the driver only
 * if the stream is not the previous call's. */
static symwin_status find_partition(struct sw_turn *turn)
{
    struct sw_seen *seen = &turn->comm->seen;
    const unsigned whole = (unsigned)sw_kernels_multiprocessors(turn->comm->kernels);
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
static void enter(struct sw_order *order, symwin_comm *comm)
{
    pthread_mutex_lock(&order->mutex);
    if (!comm->in_use) {
        comm->in_use = 1;
        order->in_use++;
    }
}

symwin_status sw_turn_begin(symwin_comm *comm, const char *call, CUstream stream,
                            struct sw_turn *turn)
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    symwin_status status;

    *turn = (struct sw_turn){.comm = comm, .call = call, .stream = stream};
    status = sw_check(
        sw_drv.cuStreamGetCaptureInfo_v2(stream, &capturing, &turn->capture, NULL, NULL, NULL),
        "%s: cuStreamGetCaptureInfo", call);
    turn->captured = capturing != CU_STREAM_CAPTURE_STATUS_NONE;
    if (status == SYMWIN_OK && !turn->captured &&
        sw_drv.cuStreamGetId != NULL) /* the query would end a capture */
        status = sw_check(sw_drv.cuStreamGetId(stream, &turn->stream_id), "%s: cuStreamGetId",
                          call);
    if (status == SYMWIN_OK)
        status = find_partition(turn);
    if (status != SYMWIN_OK)
        return status;
    if (comm->order != NULL)
        enter(comm->order, comm);
    turn->most_blocks = most_blocks(turn);
    return SYMWIN_OK;
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
    const symwin_comm *comm = turn->comm;
    unsigned room, most;

    turn->early = may_begin_early(comm);
    turn->fits = 1;
    if (comm->order == NULL)
        return;
    room = room_of(comm->order, turn->multiprocessors);
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
    if (turn->comm->order != NULL)
        status = wait_for_others(turn);
    return status == SYMWIN_OK ? wait_for_last(turn) : status;
}

/* The next generation comes after the calls of the generation that ends now. */
static void next_generation(struct sw_order *order)
{
    symwin_comm *c;

    for (c = order->comms; c != NULL; c = c->order_next)
        if (c->generation == order->generation) {
            c->before_generation = order->generation + 1;
            c->before_done = c->done;
            c->before_id = c->last_id;
        }
    order->generation++;
}

static void remember(const struct sw_turn *turn)
{
    symwin_comm *comm = turn->comm;
    struct sw_order *order = comm->order;

    if (turn->captured) {
        if (order->in_use > 1)
            comm->captured_room = larger(comm->captured_room, turn->room);
        return;
    }
    if (!turn->fits)
        next_generation(order);
    order->partition = turn->partition;
    comm->room = larger(comm->generation == order->generation ? comm->room : 0, turn->room);
    comm->generation = order->generation;
}

void sw_turn_end(struct sw_turn *turn, int launched, unsigned counted)
{
    symwin_comm *comm = turn->comm;

    if (launched && comm->order != NULL)
        remember(turn);
    if (launched && !turn->captured) {
        comm->done += counted;
        comm->has_last = 1;
        comm->last_stream = turn->stream;
        comm->last_id = turn->stream_id;
    }
    if (comm->order != NULL)
        pthread_mutex_unlock(&comm->order->mutex);
}
