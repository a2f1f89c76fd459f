/* A million random allocations, frees, registrations and deregistrations by eight threads, against
 * a model. Live allocations never overlap, the pools' counts equal the model's, and a registered
 * range has as many references as were taken and keeps its memory from being freed. Threads free
 * each other's memory, end, and start anew. All threads share the communicators: one per device, of
 * one rank.
 *
 *     SYMWIN_TEST_TURNS   turns of all threads together; default 1,000,000, under
 *                         ThreadSanitizer a quarter */
#include "src/window/register.h"

#include "harness.h"

#if defined(__SANITIZE_THREAD__)
enum { TURNS = 250000 };
#else
enum { TURNS = 1000000 };
#endif
enum { THREADS = 8, HELD = 48, HANDS = 32, LIVES = 10, MOST = THREADS * (HELD + 1) + HANDS };

struct live {
    char *begin;
    size_t bytes;
    int device;
    unsigned flags;
};

/* All live allocations, sorted by address. */
static struct {
    pthread_mutex_t mutex;
    struct live list[MOST];
    int count;
    int overlaps, missing;
} model = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Atomic(void *) hands[HANDS]; /* passed from one thread to any other */

static int position(const char *begin)
{
    int low = 0, high = model.count;

    while (low < high) {
        const int middle = (low + high) / 2;

        if (model.list[middle].begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void model_add(const struct live *live)
{
    int i;

    pthread_mutex_lock(&model.mutex);
    i = position(live->begin);
    if (i > 0 && model.list[i - 1].begin + model.list[i - 1].bytes > live->begin)
        model.overlaps++;
    if (i < model.count && live->begin + live->bytes > model.list[i].begin)
        model.overlaps++;
    memmove(&model.list[i + 1], &model.list[i], (size_t)(model.count - i) * sizeof *live);
    model.list[i] = *live;
    model.count++;
    pthread_mutex_unlock(&model.mutex);
}

/* Called before the free: afterwards another thread may get the address at once. */
static struct live model_remove(const void *begin)
{
    struct live live = {NULL, 0, 0, 0};
    int i;

    pthread_mutex_lock(&model.mutex);
    i = position(begin);
    if (i == model.count || model.list[i].begin != begin) {
        model.missing++;
    } else {
        live = model.list[i];
        model.count--;
        memmove(&model.list[i], &model.list[i + 1], (size_t)(model.count - i) * sizeof live);
    }
    pthread_mutex_unlock(&model.mutex);
    return live;
}

enum { DEVICES = 3, REGISTERED = 24 };

static symwin_comm *comms[DEVICES];

struct registered {
    char *begin; /* of its allocation, which this thread owns */
    symwin_registration *handle;
    int device;
};

struct worker {
    int number, turns;
    uint64_t state;
    int wrong;
    struct registered registered[REGISTERED];
    int registered_count;
};

static size_t random_size(uint64_t *state)
{
    const uint64_t kind = host_random(state) % 16;

    if (kind == 0)
        return (size_t)GRANULE * (1 + host_random(state) % 6);
    if (kind < 4)
        return 1 + host_random(state) % (2 * GRANULE);
    return 1 + host_random(state) % (kind < 10 ? 5000 : 200000);
}

static void *take(struct worker *w)
{
    static const unsigned kinds[] = {0, 0, 0, 0, 0, SYMWIN_MEM_NCCL, SYMWIN_MEM_OWN, 0};
    struct live live = {NULL, random_size(&w->state), (int)(host_random(&w->state) % 3),
                        kinds[host_random(&w->state) % 8]};
    void *ptr = NULL;

    if (symwin_mem_alloc(live.device, live.bytes, live.flags, &ptr) != SYMWIN_OK) {
        w->wrong++;
        return NULL;
    }
    live.begin = ptr;
    model_add(&live);
    return ptr;
}

static void give(struct worker *w, void *ptr)
{
    if (ptr == NULL)
        return;
    model_remove(ptr);
    w->wrong += symwin_mem_free(ptr) != SYMWIN_OK;
}

/* This thread's references to the same range of the same communicator. */
static unsigned references(const struct worker *w, const symwin_registration *handle)
{
    unsigned count = 0;
    int i;

    for (i = 0; i < w->registered_count; i++)
        count += w->registered[i].handle == handle;
    return count;
}

/* Ranges registered in one of this thread's allocations. */
static int ranges(const struct worker *w, const void *ptr)
{
    int count = 0, i, k;

    for (i = 0; i < w->registered_count; i++) {
        for (k = 0; k < i && w->registered[k].handle != w->registered[i].handle; k++)
            ;
        count += w->registered[i].begin == ptr && k == i;
    }
    return count;
}

static void look(struct worker *w, void *ptr)
{
    symwin_mem_info info = {0};

    if (ptr == NULL)
        return;
    w->wrong += symwin_mem_query((char *)ptr, &info) != SYMWIN_OK || info.ptr != ptr ||
                info.owned != 1 || info.registrations != ranges(w, ptr);
}

/* Registers some bytes of an allocation. No other thread registers any of them, so all references
 * are this thread's. */
static void enter(struct worker *w, void *ptr)
{
    struct registered *r = &w->registered[w->registered_count];
    symwin_registration_info info;
    const struct live *live;
    size_t offset, bytes;

    if (ptr == NULL || w->registered_count == REGISTERED)
        return;
    pthread_mutex_lock(&model.mutex);
    live = &model.list[position(ptr)];
    *r = (struct registered){ptr, NULL, live->device};
    offset = host_random(&w->state) % live->bytes;
    bytes = 1 + host_random(&w->state) % (live->bytes - offset);
    pthread_mutex_unlock(&model.mutex);
    if (symwin_register(comms[r->device], r->begin + offset, bytes, &r->handle) != SYMWIN_OK) {
        w->wrong++;
        return;
    }
    w->registered_count++;
    w->wrong += symwin_registration_query(comms[r->device], r->handle, &info) != SYMWIN_OK ||
                info.local_references != references(w, r->handle) || info.graph_references != 0 ||
                (char *)info.ptr > r->begin + offset || (char *)info.ptr < r->begin ||
                (char *)info.ptr + info.bytes < r->begin + offset + bytes;
    w->wrong += symwin_mem_free(ptr) != SYMWIN_BUSY;
}

static void leave(struct worker *w, int i)
{
    const struct registered r = w->registered[i];
    symwin_registration_info info;
    int last;

    w->registered[i] = w->registered[--w->registered_count];
    last = references(w, r.handle) == 0;
    w->wrong += symwin_deregister(comms[r.device], r.handle) != SYMWIN_OK;
    w->wrong += symwin_registration_query(comms[r.device], r.handle, &info) !=
                (last ? SYMWIN_INVALID : SYMWIN_OK);
}

/* Before the allocation is freed or passed to another thread. */
static void leave_all(struct worker *w, const void *ptr)
{
    int i = 0;

    while (ptr != NULL && i < w->registered_count)
        if (w->registered[i].begin == ptr)
            leave(w, i);
        else
            i++;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    void *held[HELD] = {NULL};
    int i;

    for (i = 0; i < w->turns; i++) {
        const uint64_t random = host_random(&w->state);
        void **slot = &held[random / 256 % HELD];

        if (random % 256 == 0) {
            w->wrong += symwin_mem_trim((int)(random / 65536 % 3), random / 1048576 % 2 << 26) !=
                        SYMWIN_OK;
        } else if (random % 256 < 8) {
            look(w, *slot);
        } else if (random % 256 < 40) {
            /* Swaps an allocation for one that another thread has left. */
            leave_all(w, *slot);
            *slot = atomic_exchange(&hands[random / 65536 % HANDS], *slot);
        } else if (random % 256 < 90) {
            enter(w, *slot);
        } else if (random % 256 < 130) {
            if (w->registered_count > 0)
                leave(w, (int)(random / 65536 % (unsigned)w->registered_count));
        } else if (*slot == NULL) {
            *slot = take(w);
        } else {
            leave_all(w, *slot);
            give(w, *slot);
            *slot = NULL;
        }
    }
    for (i = 0; i < HELD; i++) {
        leave_all(w, held[i]);
        give(w, held[i]);
    }
    return NULL;
}

static void make_comms(void)
{
    const symwin_comm_options options = {.size = sizeof options};
    symwin_unique_id id;
    int d;

    for (d = 0; d < DEVICES; d++) {
        host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
        host_must(symwin_comm_create(&id, 1, 0, d, &options, &comms[d]), "symwin_comm_create");
    }
}

/* The pools' counts while no thread works. */
static int accounts_agree(void)
{
    uint64_t asked[3] = {0}, count[3] = {0};
    int right = 1, d, i;

    for (i = 0; i < model.count; i++) {
        asked[model.list[i].device] += model.list[i].bytes;
        count[model.list[i].device]++;
    }
    for (d = 0; d < 3; d++) {
        symwin_mem_usage usage;

        host_must(symwin_mem_stats(d, &usage), "symwin_mem_stats");
        right = right && usage.asked_bytes == asked[d] && usage.allocations == count[d] &&
                usage.allocs - usage.frees == count[d] &&
                usage.creates - usage.releases == usage.chunks &&
                usage.used_bytes >= usage.asked_bytes &&
                usage.reserved_bytes >= usage.used_bytes + usage.kept_bytes;
    }
    return right;
}

int main(void)
{
    const char *text = getenv("SYMWIN_TEST_TURNS");
    const int turns = text != NULL && atoi(text) > 0 ? atoi(text) : TURNS;
    struct harness_leaks before;
    struct worker workers[THREADS] = {{0}};
    pthread_t ids[THREADS];
    int life, i, wrong = 0, agree = 1;

    setenv("SYMWIN_MEM_KEEP", "150M", 0);
    harness_start();
    before = harness_leaks_now();
    make_comms();
    for (life = 0; life < LIVES; life++) {
        for (i = 0; i < THREADS; i++) {
            workers[i].number = i;
            workers[i].turns = turns / LIVES / THREADS;
            workers[i].state = (uint64_t)(life * THREADS + i);
            if (pthread_create(&ids[i], NULL, work, &workers[i]) != 0)
                abort();
        }
        for (i = 0; i < THREADS; i++)
            pthread_join(ids[i], NULL);
        agree = agree && accounts_agree();
    }
    for (i = 0; i < HANDS; i++)
        give(&workers[0], hands[i]);
    for (i = 0; i < DEVICES; i++) {
        wrong += comms[i]->registrations->cache.range_count != 0 ||
                 comms[i]->registrations->cache.piece_count != 0;
        symwin_comm_destroy(comms[i]);
    }
    for (i = 0; i < THREADS; i++)
        wrong += workers[i].wrong;
    TAP_EQ("calls that went wrong", wrong, 0);
    TAP_EQ("allocations that overlap", model.overlaps, 0);
    TAP_EQ("allocations that nobody had", model.missing + model.count, 0);
    tap_ok(agree && accounts_agree(),
           "the accounts are the model's, after each life of the threads");
    harness_no_leaks("a soak of the pools", &before);
    return tap_done();
}
