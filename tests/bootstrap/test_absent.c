/* A rank fails after all ranks have joined, before or after the lowest rank of its process
 * publishes the communicator, which has a reference for the failed rank. Nothing is left behind,
 * the others learn of it at once, and the failure affects that id only.
 *
 * Two processes of two ranks. Rank 3 cannot receive the table of ranks; steps.h makes it fail. */
#include "processes.h"
#include "steps.h"

enum { RANKS = 4, PROCESSES = 2, FAILS = 3, TIMEOUT_MS = 20000, AT_ONCE_MS = 5000 };

/* The first frame that a rank sends is HELLO, the second JOIN. The lowest rank of a process sends
 * READY as the third. */
enum { AFTER_JOIN = 2, AFTER_READY = 3 };

struct order {
    const char *name;
    int held_after;       /* rank 1 receives nothing more until rank 3 has failed; 0: it goes on */
    int waits_for;        /* rank 3 fails once this rank's number is 1 */
    symwin_status status; /* of the others */
    const char *words;
};

static const struct order *order;
static struct processes *shared;
static atomic_int has_failed;
static _Thread_local int self, sent, held;

/* Sets rank 1's number when rank 1 is held, when it is about to send READY and to be held after it,
 * or when it has received GO and uses the driver. If held before READY, rank 1 stays held until the
 * creator reports the failure. */
static void rank_1(int receives, int uses_driver)
{
    if (sent == AFTER_READY && (order->held_after == AFTER_READY || uses_driver))
        shared->rank[1].number = 1;
    if (!receives || held || sent != order->held_after)
        return;
    held = 1;
    shared->rank[1].number = 1;
    while (sent == AFTER_JOIN ? shared->rank[0].status < 0 : !has_failed)
        usleep(1000);
}

/* In the other process. Rank 2 got GO, which is sent after all READYs, so GO was sent to rank 1
 * too. */
static void rank_2(int uses_driver)
{
    if (uses_driver && shared->rank[1].number)
        shared->rank[2].number = 1;
}

static void rank_3(int receives)
{
    if (!receives || held || sent != AFTER_JOIN)
        return;
    held = 1;
    while (!shared->rank[order->waits_for].number)
        usleep(1000);
    steps_i_am(FAILS); /* its next step fails */
}

static void hold(const char *name)
{
    const int receives = strcmp(name, "recvmsg") == 0, uses_driver = strcmp(name, "driver") == 0;

    sent += strcmp(name, "sendmsg") == 0;
    if (self == 1)
        rank_1(receives, uses_driver);
    if (self == 2)
        rank_2(uses_driver);
    if (self == FAILS)
        rank_3(receives);
}

static symwin_status create(struct processes *p, int rank, const symwin_unique_id *id,
                            symwin_comm **comm)
{
    sent = 0;
    return processes_note(p, rank, processes_comm_with(p, rank, id, TIMEOUT_MS, comm));
}

/* The next id; it overwrites the first. */
static const symwin_unique_id *next_id(struct processes *p, int rank)
{
    processes_barrier(p);
    if (rank == 0)
        host_must(symwin_unique_id_create(&p->id), "symwin_unique_id_create");
    processes_barrier(p);
    return &p->id;
}

static void live(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    int64_t start;

    self = rank;
    processes_barrier(p);
    start = host_now_ms();
    (void)create(p, rank, processes_id(p, rank), &comm);
    if (rank == FAILS)
        has_failed = 1;
    must_be(p->rank[rank].status == (int)(rank == FAILS ? SYMWIN_NO_MEMORY : order->status),
            "the status", rank);
    must_be(strstr(p->rank[rank].text, rank == FAILS ? "Cannot allocate memory" : order->words) !=
                NULL,
            "the sentence", rank);
    must_be(host_now_ms() - start < AT_ONCE_MS, "at once", rank);
    processes_barrier(p);
    steps_each(NULL);
    must_be(create(p, rank, next_id(p, rank), &comm) == SYMWIN_OK, "with a new id", rank);
    processes_barrier(p);
    symwin_comm_destroy(comm);
}

struct rank {
    struct processes *p;
    int rank;
};

static void *rank_main(void *arg)
{
    const struct rank *r = arg;

    live(r->p, r->rank);
    return NULL;
}

static void process(struct processes *p, int number)
{
    struct rank second = {p, number + PROCESSES};
    pthread_t thread;

    order = p->arg;
    shared = p;
    steps_each(hold);
    if (number == FAILS % PROCESSES) {
        steps_only(FAILS);
        steps_plan(1, STEPS_FAIL, 0, 0);
    }
    if (pthread_create(&thread, NULL, rank_main, &second) != 0)
        abort();
    live(p, number);
    pthread_join(thread, NULL);
}

static void absent(struct order o)
{
    struct processes *p = processes_new(RANKS, &o);
    int statuses[PROCESSES], i;

    for (i = 0; i < PROCESSES; i++)
        processes_fork(p, i, process);
    for (i = 0; i < PROCESSES; i++)
        statuses[i] = processes_wait(p, i);
    tap_ok(statuses[0] == 0 && statuses[1] == 0, "%s (wait statuses 0x%x, 0x%x)", o.name,
           (unsigned)statuses[0], (unsigned)statuses[1]);
    processes_free(p);
}

int main(void)
{
    static const char ran_out[] = "the process of rank 3 has no memory";

    absent((struct order){"a rank fails before its process is ready", AFTER_JOIN, 1,
                          SYMWIN_PEER_LOST, "rank 3"});
    absent((struct order){"when its process is told to go", AFTER_READY, 2, SYMWIN_NO_MEMORY,
                          ran_out});
    absent((struct order){"when its process has gone", 0, 1, SYMWIN_NO_MEMORY, ran_out});
    return tap_done();
}
