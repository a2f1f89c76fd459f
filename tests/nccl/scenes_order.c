/* Calls of one communicator on two streams, some symwin's and some NCCL's: each uses the result of
 * the one before. The first one is held up by a gate, which opens when all calls are in their
 * streams. SYMWIN_NCCL_SERVE=all,broadcast=none. */
#include <stdio.h>
#include <string.h>

#include "scenes.h"

enum { COUNT = 3000, MOST_CALLS = 6 };

/* Which calls, on which streams: "A" and "a" are all-reduces, which are symwin's, on the first and
 * the second stream; "B" and "b" are broadcasts; "C" and "c" broadcasts in a group, with a
 * configuration, which NCCL gets at once; "G" and "g" the second one of two in a group; "D" and "d"
 * the second one of two all-reduces in a group. At "|" a broadcast comes into a capture of its own,
 * whose graph is never launched; at "!" an all-reduce after it. */
static const char *const chains[] = {"Ab",    "Ba",  "Aa",    "AbAbAb", "BaBaBa", "AbaBAa",
                                     "A|b",   "B|a", "AaB|a", "AabBAa", "Ca",     "AcBa",
                                     "AgAGa", "Bd",  "DbDb",  "B!a"};
/* The stand-in has no order between captured calls of its own on two streams. */
enum { CHAINS = sizeof chains / sizeof chains[0], CAPTURED_CHAINS = 9 };

struct chain {
    struct rank *rank;
    ncclComm_t comm;
    CUstream streams[2], captured;
    int *data[MOST_CALLS + 1], *unused;
    atomic_int *gate; /* in device memory */
};

static int is_second(char call)
{
    return call >= 'a' && call <= 'z';
}

static void broadcast_configured(const struct chain *c, const int *in, int *out, CUstream stream)
{
    const ncclCollConfig_t config = one_block();

    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclBroadcastConfig(in, out, COUNT, ncclInt32, 1, c->comm, stream, &config),
           ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
}

static void broadcasts_in_a_group(const struct chain *c, const int *in, int *out, CUstream stream)
{
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclBroadcast(c->unused, c->unused, COUNT, ncclInt32, 1, c->comm, stream), ncclSuccess);
    EXPECT(ncclBroadcast(in, out, COUNT, ncclInt32, 1, c->comm, stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
}

static void reductions_in_a_group(const struct chain *c, const int *in, int *out, CUstream stream)
{
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclAllReduce(c->unused, c->unused, COUNT, ncclInt32, ncclSum, c->comm, stream),
           ncclSuccess);
    EXPECT(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, c->comm, stream), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
}

static void broadcast_in_a_capture(const struct chain *c, int and_reduce)
{
    CUgraph graph;

    EXPECT(cu.cuStreamBeginCapture(c->captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    EXPECT(ncclBroadcast(c->unused, c->unused, COUNT, ncclInt32, 1, c->comm, c->captured),
           ncclSuccess);
    if (and_reduce)
        EXPECT(ncclAllReduce(c->unused, c->unused, COUNT, ncclInt32, ncclSum, c->comm, c->captured),
               ncclSuccess);
    EXPECT(cu.cuStreamEndCapture(c->captured, &graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
}

static int is_call(char call)
{
    return call != '|' && call != '!';
}

static void make_calls(const struct chain *c, const char *calls)
{
    int i, k = 0;

    for (i = 0; calls[i] != '\0'; i++, k += is_call(calls[i - 1])) {
        const CUstream stream = c->streams[is_second(calls[i])];

        if (!is_call(calls[i]))
            broadcast_in_a_capture(c, calls[i] == '!');
        else if (calls[i] == 'A' || calls[i] == 'a')
            EXPECT(ncclAllReduce(c->data[k], c->data[k + 1], COUNT, ncclInt32, ncclSum, c->comm,
                                 stream),
                   ncclSuccess);
        else if (calls[i] == 'G' || calls[i] == 'g')
            broadcasts_in_a_group(c, c->data[k], c->data[k + 1], stream);
        else if (calls[i] == 'D' || calls[i] == 'd')
            reductions_in_a_group(c, c->data[k], c->data[k + 1], stream);
        else if (calls[i] == 'C' || calls[i] == 'c')
            broadcast_configured(c, c->data[k], c->data[k + 1], stream);
        else
            EXPECT(ncclBroadcast(c->data[k], c->data[k + 1], COUNT, ncclInt32, 1, c->comm, stream),
                   ncclSuccess);
    }
}

/* All ranks begin with their number and 1; and what they end with. */
static void fill(const struct chain *c, int turn)
{
    int i;

    for (i = 0; i < COUNT; i++)
        c->data[0][i] = c->rank->rank + 1 + i % 7 + turn;
    for (i = 1; i <= MOST_CALLS; i++)
        memset(c->data[i], 0, COUNT * sizeof *c->data[i]);
}

static int wrong(const struct chain *c, const char *calls, int turn)
{
    const int ranks = c->rank->ranks, all = (int)strlen(calls);
    const int length = calls[strcspn(calls, "|!")] != '\0' ? all - 1 : all;
    int bad = 0, i, k, r;

    for (i = 0; i < COUNT; i++) {
        int value = 2 + i % 7 + turn; /* of rank 1 */

        for (k = 0; k < all; k++)
            if (strchr("AaDd", calls[k]) != NULL) {
                int total = 0;

                for (r = 0; r < ranks; r++)
                    total += k == 0 ? r + 1 + i % 7 + turn : value;
                value = total;
            }
        bad += c->data[length][i] != value;
    }
    return bad;
}

static void begin(struct chain *c, struct rank *rank)
{
    int i;

    *c = (struct chain){.rank = rank, .comm = birth(rank, 0), .streams = {rank->stream}};
    EXPECT(cu.cuStreamCreate(&c->streams[1], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT(cu.cuStreamCreate(&c->captured, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    c->unused = room(COUNT * sizeof *c->unused);
    for (i = 0; i <= MOST_CALLS; i++)
        c->data[i] = room(COUNT * sizeof *c->data[i]);
    c->gate = room(sizeof *c->gate);
    make_calls(c, "AbBa"); /* nothing is opened behind the gate */
    EXPECT(drains(c->streams[0]) + drains(c->streams[1]), 2);
    meet(rank);
}

static void end(struct chain *c)
{
    int i;

    EXPECT(cu.cuStreamDestroy(c->streams[1]), CUDA_SUCCESS);
    EXPECT(cu.cuStreamDestroy(c->captured), CUDA_SUCCESS);
    room_free(c->unused);
    EXPECT(ncclCommDestroy(c->comm), ncclSuccess);
    for (i = 0; i <= MOST_CALLS; i++)
        room_free(c->data[i]);
    room_free(c->gate);
}

static void close_gate(const struct chain *c, CUstream stream)
{
    atomic_store(c->gate, 0);
    EXPECT(
        cu.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)c->gate, 1, CU_STREAM_WAIT_VALUE_EQ),
        CUDA_SUCCESS);
}

void scene_order(struct rank *rank)
{
    unsigned before;
    struct chain c;
    int turn;

    begin(&c, rank);
    before = calls(STAND_IN_ncclBroadcast);
    EXPECT(before > 0, 1);
    for (turn = 0; turn < CHAINS; turn++) {
        fill(&c, turn);
        close_gate(&c, c.streams[is_second(chains[turn][0])]);
        make_calls(&c, chains[turn]);
        usleep(10000);
        EXPECT(c.data[1][0] == 0 && c.data[2][0] == 0, 1);
        /* The emulated driver sees the gate at another address, so ThreadSanitizer needs this to
         * know that the calls come after it. */
        EXPECT(cu.cuStreamQuery(c.streams[is_second(chains[turn][0])]), CUDA_ERROR_NOT_READY);
        atomic_store(c.gate, 1);
        EXPECT(drains(c.streams[0]) + drains(c.streams[1]), 2);
        if (!EXPECT(wrong(&c, chains[turn], turn), 0))
            fprintf(stderr, "rank %d: %s\n", rank->rank, chains[turn]);
        meet(rank);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    EXPECT_PASSED(calls(STAND_IN_ncclBroadcast) > before, 1);
    end(&c);
}

/* ---- in a graph ---- */

static void sleep_a_little(void *data)
{
    (void)data;
    usleep(20000);
}

/* `second` waits for what is in `first`. */
static void join(CUstream first, CUstream second)
{
    CUevent event;

    EXPECT(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT(cu.cuEventRecord(event, first), CUDA_SUCCESS);
    EXPECT(cu.cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
    EXPECT(cu.cuEventDestroy(event), CUDA_SUCCESS);
}

/* The second stream comes to the capture before the first one is held up. */
static CUgraphExec capture(const struct chain *c, const char *calls)
{
    CUgraphExec exec = NULL;
    CUgraph graph;

    EXPECT(cu.cuStreamBeginCapture(c->streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
           CUDA_SUCCESS);
    join(c->streams[0], c->streams[1]);
    EXPECT(cu.cuLaunchHostFunc(c->streams[0], sleep_a_little, NULL), CUDA_SUCCESS);
    make_calls(c, calls);
    join(c->streams[1], c->streams[0]);
    EXPECT(cu.cuStreamEndCapture(c->streams[0], &graph), CUDA_SUCCESS);
    EXPECT(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT(cu.cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
}

void scene_captured_order(struct rank *rank)
{
    struct chain c;
    int turn, replay;

    begin(&c, rank);
    for (turn = 0; turn < CAPTURED_CHAINS; turn++) {
        const CUgraphExec exec = capture(&c, chains[turn]);

        for (replay = 0; replay < 2; replay++) {
            fill(&c, turn + replay);
            EXPECT(cu.cuGraphLaunch(exec, c.streams[0]), CUDA_SUCCESS);
            EXPECT(drains(c.streams[0]), 1);
            if (!EXPECT(wrong(&c, chains[turn], turn + replay), 0))
                fprintf(stderr, "rank %d: %s\n", rank->rank, chains[turn]);
            meet(rank);
        }
        EXPECT(cu.cuGraphExecDestroy(exec), CUDA_SUCCESS);
        /* A call outside of the graph comes next. */
        EXPECT(sum(rank, c.comm, 1), rank->ranks);
    }
    EXPECT_PASSED(calls(STAND_IN_ncclAllReduce), 0);
    end(&c);
}
