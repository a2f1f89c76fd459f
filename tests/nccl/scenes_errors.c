/* Failures in the middle of a life: of functions of NCCL, and of the driver. Nobody hangs, nothing
 * is lost, whoever fails has a text for it, and the next life works. Ranks look at their streams
 * and at ncclCommGetAsyncError(), and abort when one of them has failed, as programs do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { MOST_COMMS = 8, IDS = 5, PATIENCE_US = 8000000 };
enum { FLAG_FAILED, FLAG_FIRED };

struct life {
    struct rank *rank;
    ncclComm_t comms[MOST_COMMS];
    ncclRedOp_t op;
    ncclWindow_t window;
    int *data;
    int turn;
    ncclResult_t failed; /* the first failure */
};

/* ---- steps ---- */

static int went(struct life *l, ncclResult_t result)
{
    if (result == ncclSuccess)
        return 1;
    EXPECT(result > ncclSuccess && result < ncclInProgress, 1);
    EXPECT(strlen(ncclGetLastError(NULL)) > 10, 1);
    if (l->failed == ncclSuccess)
        l->failed = result;
    flag_set(FLAG_FAILED);
    return 0;
}

/* The question about the stream may be the call of the driver that fails. */
static int asked(struct life *l, CUresult there)
{
    if (there == CUDA_SUCCESS || there == CUDA_ERROR_NOT_READY)
        return 1;
    if (l->failed == ncclSuccess)
        l->failed = ncclUnhandledCudaError;
    flag_set(FLAG_FAILED);
    return 0;
}

/* Until the call on it is over. 0: it is not, and this rank or another one has failed. */
static int over(struct life *l, ncclComm_t comm)
{
    const long long until = now_us() + PATIENCE_US;
    ncclResult_t error, result;
    CUresult there;

    do {
        error = ncclInProgress;
        there = cu.cuStreamQuery(l->rank->stream);
        result = ncclCommGetAsyncError(comm, &error);
        if (!went(l, result) || (error != ncclInProgress && !went(l, error)) || !asked(l, there))
            return 0;
        if (there == CUDA_SUCCESS && error == ncclSuccess)
            return 1;
        usleep(500);
    } while (atomic_load(&world->flags[FLAG_FAILED]) == 0 && now_us() < until);
    EXPECT(now_us() < until, 1);
    return 0;
}

static ncclResult_t call(struct life *l, ncclComm_t comm, ncclRedOp_t op)
{
    ncclResult_t result;

    l->data[0] = 3;
    result = ncclAllReduce(l->data, l->data + 1, 1, ncclInt32, op, comm, l->rank->stream);
    return result == ncclInProgress ? ncclSuccess : result; /* blocking=0: over() asks */
}

static int reduces(struct life *l, ncclComm_t comm, ncclRedOp_t op, int times)
{
    return went(l, call(l, comm, op)) && over(l, comm) &&
           EXPECT(l->data[1], 3 * times * l->rank->ranks);
}

/* Ends a group, which fails if a call in it has, and returns the first failure. */
static ncclResult_t group(ncclResult_t first, ncclResult_t second)
{
    const ncclResult_t ended = ncclGroupEnd();

    EXPECT((first == ncclSuccess && second == ncclSuccess) || ended != ncclSuccess, 1);

    if (ended != ncclSuccess && strstr(ncclGetLastError(NULL), "STAND_IN_FAIL") != NULL &&
        first == ncclSuccess && second == ncclSuccess)
        (void)ncclGroupEnd(); /* the one that failed has done nothing */
    return first != ncclSuccess ? first : second != ncclSuccess ? second : ended;
}

static ncclResult_t init(struct life *l, int which)
{
    return ncclCommInitRank(&l->comms[which], l->rank->ranks, world->ids[IDS * l->turn + which],
                            l->rank->rank);
}

static int bears_two(struct life *l)
{
    const ncclResult_t started = ncclGroupStart();
    ncclResult_t first, second;

    if (started != ncclSuccess)
        return went(l, started);
    first = init(l, 1);
    second = ncclCommSplit(l->comms[0], 0, 0, &l->comms[2], NULL);
    return went(l, group(first, second));
}

static int opens_two(struct life *l)
{
    const ncclResult_t started = ncclGroupStart();
    ncclResult_t first, second;

    if (started != ncclSuccess)
        return went(l, started);
    first = call(l, l->comms[1], ncclSum);
    second = ncclAllReduce(l->data + 2, l->data + 3, 1, ncclInt32, ncclMax, l->comms[2],
                           l->rank->stream);
    return went(l, group(first, second)) && over(l, l->comms[1]) && over(l, l->comms[2]);
}

/* One call is NCCL's, and so both. */
static int mixes(struct life *l)
{
    const ncclResult_t started = ncclGroupStart();
    ncclResult_t first, second;

    if (started != ncclSuccess)
        return went(l, started);
    first = call(l, l->comms[0], ncclSum);
    second = ncclBroadcast(l->data + 2, l->data + 2, 1, ncclInt32, 0, l->comms[0], l->rank->stream);
    return went(l, group(first, second)) && over(l, l->comms[0]);
}

static int multiplies(struct life *l)
{
    int two = 2;

    return went(l, ncclRedOpCreatePreMulSum(&l->op, &two, ncclInt32, ncclScalarHostImmediate,
                                            l->comms[0])) &&
           reduces(l, l->comms[0], l->op, 2) && went(l, ncclRedOpDestroy(l->op, l->comms[0]));
}

static int has_window(struct life *l)
{
    return went(l, ncclCommWindowRegister(l->comms[0], l->data, 4096, &l->window,
                                          NCCL_WIN_COLL_SYMMETRIC)) &&
           reduces(l, l->comms[0], ncclSum, 1) &&
           went(l, ncclCommWindowDeregister(l->comms[0], l->window));
}

static int sleeps(struct life *l)
{
    return went(l, ncclCommSuspend(l->comms[0], 0)) && went(l, ncclCommResume(l->comms[0])) &&
           reduces(l, l->comms[0], ncclSum, 1);
}

/* Its birth does not block. */
static int bears_later(struct life *l)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .blocking = 0};
    const ncclResult_t result = ncclCommInitRankConfig(
        &l->comms[3], l->rank->ranks, world->ids[IDS * l->turn + 2], l->rank->rank, &config);

    return (result == ncclInProgress || went(l, result)) && over(l, l->comms[3]) &&
           reduces(l, l->comms[3], ncclSum, 1);
}

/* What is not symwin's by SYMWIN_NCCL_SERVE may fail in NCCL. */
static int calls_all(struct life *l)
{
    const int me = l->rank->rank, ranks = l->rank->ranks;
    int *in = l->data, *out = l->data + 16;
    ncclResult_t sent, received;

#define WENT(name, ...)                                                                            \
    (went(l, name(in, out, 1, ncclInt32, __VA_ARGS__, l->comms[0], l->rank->stream)) &&            \
     over(l, l->comms[0]))
    if (!WENT(ncclReduceScatter, ncclSum) || !WENT(ncclReduce, ncclMax, 1) ||
        !WENT(ncclGather, 1) || !WENT(ncclScatter, 1) ||
        !went(l, ncclAlltoAll(in, out, 1, ncclInt32, l->comms[0], l->rank->stream)) ||
        !over(l, l->comms[0]) || !went(l, ncclGroupStart()))
        return 0;
#undef WENT
    sent = ncclSend(in, 1, ncclInt32, (me + 1) % ranks, l->comms[0], l->rank->stream);
    received = ncclRecv(out, 1, ncclInt32, (me + ranks - 1) % ranks, l->comms[0], l->rank->stream);
    return went(l, group(sent, received)) && over(l, l->comms[0]);
}

/* By the rarer functions: of rank 0 and 1, of one rank alone, of rank 1 and what is left of it. */
static int is_born_otherwise(struct life *l)
{
    ncclUniqueId *ids = &world->ids[IDS * l->turn + 3];
    const int me = l->rank->rank, zero = 0, device = l->rank->device;

    return went(l, ncclCommInitRankScalable(&l->comms[4], l->rank->ranks, me, 1, &ids[0], NULL)) &&
           reduces(l, l->comms[4], ncclSum, 1) &&
           went(l, ncclCommInitAll(&l->comms[5], 1, &device)) &&
           (me == 0 ||
            went(l, ncclCommShrink(l->comms[0], (int *)&zero, 1, &l->comms[6], NULL, 0))) &&
           went(l, ncclCommGrow(me == 0 ? l->comms[5] : NULL, 2, &ids[1], me == 0 ? -1 : me,
                                &l->comms[7], NULL)) &&
           reduces(l, l->comms[7], ncclSum, 1);
}

/* Two ends that are not yet the last one. */
static int ends(struct life *l)
{
    return went(l, ncclCommFinalize(l->comms[0])) && went(l, ncclCommRevoke(l->comms[4], 0));
}

/* ---- a life ---- */

/* A rank that has not failed waits for the others; then all have the same reason to abort. */
static void finish(struct life *l)
{
    int i, ended;

    for (i = 0; i < MOST_COMMS; i++) {
        if (l->comms[i] == NULL)
            continue;
        ended = l->failed != ncclSuccess || atomic_load(&world->flags[FLAG_FAILED]) > 0 ||
                        is_set("SCENES_ABORT")
                    ? went(l, ncclCommAbort(l->comms[i]))
                    : went(l, ncclCommDestroy(l->comms[i]));
        if (!ended) /* the fault was here: NCCL has it still */
            EXPECT(ncclCommAbort(l->comms[i]), ncclSuccess);
        EXPECT(drains(l->rank->stream), 1);
    }
    EXPECT(drains(l->rank->stream), 1);
    room_free(l->data);
}

static ncclResult_t live(struct rank *rank, int turn)
{
    struct life l = {.rank = rank, .turn = turn, .data = room(4096)};

    meet(rank);
    (void)(went(&l, init(&l, 0)) && bears_two(&l) && reduces(&l, l.comms[0], ncclSum, 1) &&
           opens_two(&l) && multiplies(&l) && has_window(&l) && mixes(&l) && bears_later(&l) &&
           sleeps(&l) && calls_all(&l) && is_born_otherwise(&l) && ends(&l));
    finish(&l);
    meet(rank);
    return l.failed;
}

static void forget_failures(struct rank *rank)
{
    meet(rank);
    atomic_store(&world->flags[FLAG_FAILED], 0);
    meet(rank);
}

/* ---- a function of NCCL fails ---- */

static int find_function(const char *name)
{
    int i = 0;

    while (i < STAND_IN_FUNCTIONS && strcmp(stand_in()->functions[i].name, name) != 0)
        i++;
    if (!EXPECT(i < STAND_IN_FUNCTIONS, 1))
        exit(1);
    return i;
}

/* SCENES_FAIL=NAME:CODE:LIVES: in rank 1, the first call of the function fails, then the second one
 * of another life, and so on. Ranks are processes. SCENES_ABORT=1: lives end by an abort. */
void scene_errors(struct rank *rank)
{
    const char *fail = getenv("SCENES_FAIL");
    char name[64] = "", text[100];
    int function, turn, code = 0, lives = 0;
    struct left before;

    if (!EXPECT(fail != NULL && sscanf(fail, "%63[^:]:%d:%d", name, &code, &lives) == 3, 1))
        exit(1);
    function = find_function(name);
    EXPECT(live(rank, 0), ncclSuccess);
    before = left_before();
    for (turn = 1; turn <= lives; turn++) {
        const unsigned at = calls(function) + (unsigned)turn;
        ncclResult_t failed;

        snprintf(text, sizeof text, "%s:%u:%d", name, at, code);
        if (rank->rank == 1)
            setenv("STAND_IN_FAIL", text, 1);
        forget_failures(rank);
        failed = live(rank, turn);
        unsetenv("STAND_IN_FAIL");
        if (rank->rank == 1 && !(EXPECT(calls(function) >= at, 1) && EXPECT(failed, code)))
            fprintf(stderr, "%s in life %d\n", text, turn);
        left_is(&before, text);
    }
    forget_failures(rank);
    EXPECT(live(rank, lives + 1), ncclSuccess);
}

/* ---- a call of the driver fails ---- */

/* A birth, the first and the second call, those of a group, with a pre-multiplied sum, in a window,
 * and after a suspension. */
static void short_life(struct rank *rank, int turn, const struct fake_engine *engine, unsigned nth,
                       CUresult code, int persistent)
{
    struct life l = {.rank = rank, .turn = turn % (MOST_IDS / IDS), .data = room(4096)};
    const int late = is_set("SCENES_LATE");
    const char *name;
    int opened;

    meet(rank);
    if (rank->rank == 1 && !late)
        engine->fail_nth(nth, code, persistent, 0);
    opened = went(&l, init(&l, 0)) && reduces(&l, l.comms[0], ncclSum, 1);
    if (rank->rank == 1 && late)
        engine->fail_nth(nth, code, persistent, 0);
    (void)(opened && reduces(&l, l.comms[0], ncclSum, 1) && bears_two(&l) && opens_two(&l) &&
           multiplies(&l) && has_window(&l) && sleeps(&l));
    if (rank->rank == 1) {
        name = engine->fault_name();
        if (engine->fired() && is_set("SCENES_SHOW"))
            fprintf(stderr, "%u: %s: %s\n", nth, name != NULL ? name : "?",
                    l.failed != ncclSuccess ? ncclGetLastError(NULL) : "served");
        atomic_store(&world->flags[FLAG_FIRED], engine->fired());
        engine->fail_nth(0, CUDA_SUCCESS, 0, 0);
    }
    finish(&l);
    meet(rank);
}

static struct sw_emu_live live_now(const struct fake_engine *engine)
{
    struct sw_emu_live live;

    memset(&live, 0, sizeof live);
    (void)left_now(); /* trims */
    engine->live_count(&live);
    return live;
}

/* Whether there is more of a kind. All members are numbers of one type. */
static int more(const struct sw_emu_live *now, const struct sw_emu_live *before)
{
    size_t a[sizeof *now / sizeof(size_t)], b[sizeof *now / sizeof(size_t)], i;
    int found = 0;

    memcpy(a, now, sizeof a);
    memcpy(b, before, sizeof b);
    for (i = 0; i < sizeof a / sizeof a[0]; i++)
        found |= a[i] > b[i];
    return found;
}

/* Threads give back what a communicator leaves, so `before` may have had some of that still. */
static void nothing_lost(const struct fake_engine *engine, struct sw_emu_live *before, unsigned nth)
{
    const long long begun = now_us(), until = begun + 10000000;
    struct sw_emu_live now = live_now(engine);

    while (more(&now, before) && now_us() < until) {
        usleep(1000);
        now = live_now(engine);
    }
    if (EXPECT(more(&now, before), 0)) {
        *before = now;
        return;
    }
    fprintf(stderr, "call %u: lost objects\n", nth);
    engine->live_print(2);
}

/* SCENES_STEP=A:B:P: in rank 1, the A-th call of its thread fails, then the one B later, and so on;
 * with P all that follow as well. SCENES_LATE=1 counts from the second call of NCCL on. */
void scene_driver(struct rank *rank)
{
    static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                     CUDA_ERROR_NOT_SUPPORTED};
    const struct fake_engine *engine = engine_find();
    const char *step = getenv("SCENES_STEP");
    struct sw_emu_live before;
    unsigned nth = 1, by = 1;
    int persistent = 0, turn = 1, fired = 1, again = 0;

    if (engine == NULL) {
        fprintf(stderr, "no fake_engine\n");
        exit(1);
    }

    if (step != NULL)
        (void)sscanf(step, "%u:%u:%d", &nth, &by, &persistent);
    short_life(rank, 0, engine, 0, CUDA_SUCCESS, 0);
    if (rank->thread == 0)
        before = live_now(engine);
    for (; fired; nth += by, turn++) {
        forget_failures(rank);
        short_life(rank, turn, engine, nth, codes[nth % 3], persistent);
        fired = atomic_load(&world->flags[FLAG_FIRED]);
        if (!fired && atomic_load(&world->flags[FLAG_FAILED]) > 0 && again++ < 5) {
            fired = 1; /* a rank had to wait for too long: not the end of the calls */
            nth -= by;
        }
        if (rank->thread == 0)
            nothing_lost(engine, &before, nth);
        meet(rank);
    }
    EXPECT(nth > by, 1);
    EXPECT(again <= 5, 1);
    forget_failures(rank);
    short_life(rank, turn, engine, 0, CUDA_SUCCESS, 0);
    EXPECT(atomic_load(&world->flags[FLAG_FAILED]), 0);
}

/* ---- the driver fails in a group whose calls are on two streams ---- */

/* A value that comes late in a stream. */
struct late {
    int *to, value;
    unsigned us;
};

static void write_late(void *data)
{
    const struct late *late = data;

    usleep(late->us);
    *late->to = late->value;
}

/* One stream is the thread's own default stream. On the last rank the nth call of the driver fails;
 * 0: none. Then the group fails, and no rank's streams wait for ever, or both streams have waited
 * for what they have to: what a call overwrites comes late there, or what the other rank sends.
 * Whether there was an nth call. */
static int group_on_two_streams(const struct rank *rank, const ncclComm_t *comms, int *data,
                                unsigned nth, int late_send)
{
    const int is_last = rank->rank == rank->ranks - 1, next = (rank->rank + 1) % rank->ranks;
    const CUstream own = CU_STREAM_PER_THREAD;
    const unsigned us = is_last == late_send ? 0 : 20000;
    struct late late[] = {
        {data, 3, late_send ? us : 0}, {data + 1, -1, late_send ? 0 : us}, {data + 2, 3, 0}};
    ncclResult_t result;
    int i, fired = 0, failed;

    for (i = 0; i < 3; i++) {
        data[i] = 0;
        EXPECT(cu.cuLaunchHostFunc(i == 0 ? rank->stream : own, write_late, &late[i]),
               CUDA_SUCCESS);
    }
    meet(rank);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclSend(data, 1, ncclInt32, next, comms[0], rank->stream), ncclSuccess);
    EXPECT(ncclRecv(data + 1, 1, ncclInt32, next, comms[0], own), ncclSuccess);
    EXPECT(ncclAllReduce(data + 2, data + 2, 1, ncclInt32, ncclSum, comms[1], own), ncclSuccess);
    if (is_last)
        engine_find()->fail_nth(nth, CUDA_ERROR_UNKNOWN, 0, 0);
    result = ncclGroupEnd();
    if (is_last) {
        fired = engine_find()->fired();
        if (is_set("SCENES_SHOW"))
            fprintf(stderr, "%u: %s: %d\n", nth, fired ? engine_find()->fault_name() : "", result);
        engine_find()->fail_nth(0, CUDA_SUCCESS, 0, 0);
        atomic_store(&world->flags[FLAG_FIRED], fired);
        atomic_store(&world->flags[FLAG_FAILED], result != ncclSuccess);
        EXPECT(result == ncclSuccess || fired, 1);
    }
    EXPECT(drains(own), 1);
    if (result == ncclSuccess && is_last)
        EXPECT(data[1] == 3 && data[2] == 3 * rank->ranks, 1);
    meet(rank);
    fired = atomic_load(&world->flags[FLAG_FIRED]);
    failed = atomic_load(&world->flags[FLAG_FAILED]);
    EXPECT(result == ncclSuccess || failed, 1);
    EXPECT(drains(rank->stream), 1);
    EXPECT(drains(own), 1);
    meet(rank);
    return fired;
}

/* At each call of the driver, one after the other, twice. Before that, communicators that were
 * suspended. */
void scene_two_streams(struct rank *rank)
{
    int *data = room(4096), fired = 0, i;
    struct sw_emu_live before;
    unsigned turn;

    for (turn = 0; turn < 3 || fired; turn++) {
        const ncclComm_t comms[2] = {birth(rank, 0), birth(rank, 1)};

        for (i = 0; i < 2; i++)
            EXPECT(sum(rank, comms[i], 1), rank->ranks);
        fired = group_on_two_streams(rank, comms, data, (turn + 1) / 2, turn % 2);
        for (i = 0; i < 2 && turn == 0; i++) {
            EXPECT(ncclCommSuspend(comms[i], 0), ncclSuccess);
            EXPECT(ncclCommResume(comms[i]), ncclSuccess);
            EXPECT(sum(rank, comms[i], 1), rank->ranks);
        }
        if (turn == 0)
            (void)group_on_two_streams(rank, comms, data, 0, 1);
        for (i = 0; i < 2; i++)
            EXPECT(ncclCommAbort(comms[i]), ncclSuccess);
        meet(rank);
        if (turn == 0)
            before = live_now(engine_find());
        else if (rank->thread == 0)
            nothing_lost(engine_find(), &before, turn);
        meet(rank);
    }
    EXPECT(turn > 12, 1);
    room_free(data);
}
