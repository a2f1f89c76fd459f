/* Ranks that do not come to the meeting in time, or come without what it takes: NCCL serves all
 * ranks then. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "scenes.h"

enum { FLAG_LATE, FLAG_FOUND };
enum { PLAIN, GROUPED, NOT_BLOCKING, ON_TWO, WAYS };

static ncclComm_t birth_of(const struct rank *rank, int id, int way)
{
    ncclConfig_t config = {.size = 80, .magic = NCCL_CONFIG_MAGIC, .maxCTAs = INT_MIN};
    ncclResult_t result;
    ncclComm_t comm;

    if (way != NOT_BLOCKING)
        return birth(rank, id);
    result = ncclCommInitRankConfig(&comm, rank->ranks, world->ids[id], rank->rank, &config);
    EXPECT(result, ncclInProgress);
    while (state(comm) == ncclInProgress)
        usleep(500);
    return comm;
}

/* Returns when the call has been made, in whatever thread. */
static ncclResult_t reduce(const struct rank *rank, const ncclComm_t *comms, int *data, int way)
{
    ncclResult_t result = ncclSuccess;
    int i;

    if (way == GROUPED || way == ON_TWO)
        EXPECT(ncclGroupStart(), ncclSuccess);
    for (i = 0; i < 1 + (way == ON_TWO) && result == ncclSuccess; i++)
        result = ncclAllReduce(data + 2 * i, data + 2 * i + 1, 1, ncclInt32, ncclSum, comms[i],
                               rank->stream);
    if (way == GROUPED || way == ON_TWO)
        result = ncclGroupEnd();
    while (result == ncclInProgress && (result = state(comms[0])) == ncclInProgress)
        usleep(500);
    return result;
}

static int deadline_us(void)
{
    return 1000 * atoi(getenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS"));
}

/* The last rank, or the first, which has an id for symwin's communicator, comes when the others
 * wait no longer. It hears that, and does not wait for them. */
static void comes_late(const struct rank *rank, int way, int id)
{
    const int is_late = rank->rank == (way % 2 ? 0 : rank->ranks - 1);
    ncclComm_t comms[2] = {birth_of(rank, id, way), NULL};
    int *data = room(4096), i;
    long long begun;

    if (way == ON_TWO)
        comms[1] = birth(rank, id + 1);
    for (i = 0; i < 2; i++)
        data[2 * i] = rank->rank + 1;
    meet(rank);
    if (is_late)
        flag_wait(FLAG_LATE, (id / 2 + 1) * (rank->ranks - 1));
    begun = now_us();
    EXPECT(reduce(rank, comms, data, way), ncclSuccess);
    EXPECT(now_us() - begun < deadline_us() * 7 / 10, is_late);
    if (!is_late)
        flag_set(FLAG_LATE);
    EXPECT(drains(rank->stream), 1);
    for (i = 0; i < 1 + (way == ON_TWO); i++) {
        EXPECT(data[2 * i + 1], rank->ranks * (rank->ranks + 1) / 2);
        data[2 * i + 1] = 0;
    }
    EXPECT(reduce(rank, comms, data, way), ncclSuccess);
    EXPECT(drains(rank->stream), 1);
    for (i = 0; i < 1 + (way == ON_TWO); i++)
        EXPECT(data[2 * i + 1], rank->ranks * (rank->ranks + 1) / 2);
    meet(rank);
    for (i = 0; i < 1 + (way == ON_TWO); i++)
        EXPECT(ncclCommDestroy(comms[i]), ncclSuccess);
    room_free(data);
}

void scene_late(struct rank *rank)
{
    const unsigned here = (unsigned)(rank->ranks / rank->processes);
    int way;

    for (way = 0; way < WAYS; way++)
        comes_late(rank, way, 2 * way);
    meet(rank);
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), (2 * WAYS + 2) * here);
}

/* The last rank comes just when the others give up. They never part: all make the second call. */
void scene_just_in_time(struct rank *rank)
{
    enum { TRIES = 40 };
    const int is_last = rank->rank == rank->ranks - 1;
    int try;

    for (try = 0; try < TRIES; try++) {
        ncclComm_t comm = birth(rank, try);

        meet(rank);
        if (is_last)
            usleep((useconds_t)(deadline_us() - 4000 + 200 * try));
        EXPECT(sum(rank, comm, 1), rank->ranks);
        EXPECT(sum(rank, comm, 2), 2 * rank->ranks);
        meet(rank);
        EXPECT(ncclCommDestroy(comm), ncclSuccess);
    }
}

/* Before its first call the last rank makes the n-th call of the driver fail, for each n. If that
 * is for the meeting's stream or memory, or for its host function, the rank meets all the same, and
 * NCCL serves all. The stand-in has such a function and an event before that. */
void scene_deaf(struct rank *rank)
{
    static const char *const wanted[] = {"cuStreamCreate", "cuMemHostAlloc", "cuLaunchHostFunc"};
    const int is_last = rank->rank == rank->ranks - 1;
    const struct fake_engine *engine = engine_find();
    int *data = room(4096), found = 0, functions = 0, n;

    for (n = 1; found != 7 && n < 60; n++) {
        ncclComm_t comm = birth(rank, n);
        ncclResult_t result;
        const char *name;
        int i, is_soon, mine = 0;
        long long begun;

        data[0] = rank->rank;
        meet(rank);
        begun = now_us();
        if (is_last)
            engine->fail_nth((unsigned)n, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
        result = reduce(rank, &comm, data, PLAIN);
        is_soon = now_us() - begun < deadline_us() * 7 / 10;
        if (is_last) {
            name = engine->fired() ? engine->fault_name() : "";
            engine->fail_nth(0, CUDA_SUCCESS, 0, 0);
            for (i = 0; i < 3; i++)
                mine |= strcmp(name, wanted[i]) == 0 ? 1 << i : 0;
            if (mine == 4 && functions++ == 0)
                mine = 8;
            atomic_store(&world->flags[FLAG_FOUND], mine);
        }
        meet(rank);
        mine = atomic_load(&world->flags[FLAG_FOUND]);
        found |= mine & 7;
        n += mine == 8;
        if (mine != 0 && mine != 8) {
            const unsigned before = calls(STAND_IN_ncclAllReduce);

            EXPECT(result, ncclSuccess);
            EXPECT(is_soon, 1);
            EXPECT(drains(rank->stream), 1);
            EXPECT(data[1], rank->ranks * (rank->ranks - 1) / 2);
            meet(rank);
            EXPECT(sum(rank, comm, 1), rank->ranks);
            meet(rank);
            EXPECT(calls(STAND_IN_ncclAllReduce) > before, 1);
        }
        EXPECT(ncclCommAbort(comm), ncclSuccess);
        EXPECT(drains(rank->stream), 1);
        meet(rank);
    }
    EXPECT(found, 7);
    room_free(data);
}

/* The communicator does not block, and the call goes on in a thread of the library's. The program
 * aborts while that thread is in a function of NCCL's, which has the communicator until it is back:
 * STAND_IN_FAIL says in which. */
void scene_aborted_later(struct rank *rank)
{
    const int meets = strstr(getenv("STAND_IN_FAIL"), "AllGather") != NULL;
    const int function = meets ? STAND_IN_ncclAllGather : STAND_IN_ncclAllReduce;
    ncclComm_t comm = birth_of(rank, 0, NOT_BLOCKING);
    int *data = room(4096);

    meet(rank);
    EXPECT(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, rank->stream), ncclInProgress);
    while (calls(function) < 1 + (unsigned)meets)
        usleep(100);
    EXPECT(ncclCommAbort(comm), ncclSuccess);
    usleep(2 * STAND_IN_PAUSE_MS * 1000);
    EXPECT(strstr(ncclGetLastError(NULL), "corrupted") == NULL, 1);
    EXPECT(drains(rank->stream), 1);
    meet(rank);
    room_free(data);
}
