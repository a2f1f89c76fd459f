/* Ranks as processes on real GPUs: what happens to kernels that spin for a killed rank, and to
 * kernels that are aborted. SYMWIN_TEST_RANKS: number of ranks, default 4.
 *
 * The survivors' streams must finish, symwin_comm_check() must name the rank, the context must stay
 * usable, and a new communicator of the survivors must reduce correctly.
 */
#include "processes.h"

enum { WORDS = 4096, SPIN_MS = 300, ROUNDS = 5 };

struct scene {
    int killed;               /* 0: rank 0 aborts */
    struct processes *second; /* for the survivors' communicator; in shared memory */
};

static int device_of(int rank)
{
    return rank % harness_device_count();
}

static void fail_rank(int rank, const char *what)
{
    printf("# rank %d: %s: %s\n", rank, what, symwin_last_error());
    tap_failures++;
}

/* Reduces and compares. Returns 1 if the result is right. */
static int reduces(symwin_comm *comm, int nranks, int rank, int device, uint32_t *buffer,
                   struct CUstream_st *stream)
{
    uint32_t words[WORDS];
    int i, wrong = 0;

    for (i = 0; i < WORDS; i++)
        words[i] = (uint32_t)(rank + 1);
    if (host_copy(device, buffer, words, sizeof words) != SYMWIN_OK ||
        symwin_allreduce(comm, buffer, buffer + WORDS, WORDS, SYMWIN_U32, SYMWIN_SUM, stream) !=
            SYMWIN_OK ||
        symwin_stream_synchronize(device, stream) != SYMWIN_OK ||
        symwin_comm_check(comm) != SYMWIN_OK ||
        host_copy(device, words, buffer + WORDS, sizeof words) != SYMWIN_OK)
        return 0;
    for (i = 0; i < WORDS; i++)
        wrong += words[i] != (uint32_t)(nranks * (nranks + 1) / 2);
    return wrong == 0;
}

/* The last rank does not join the reduction: it is killed, or it is alive and rank 0 aborts. */
static void spin(struct processes *p, int rank, symwin_comm *comm, int device, uint32_t *buffer,
                 struct CUstream_st *stream)
{
    const struct scene *scene = p->arg;
    const int missing = p->count - 1;
    const symwin_status want = scene->killed ? SYMWIN_PEER_LOST : SYMWIN_ABORTED;
    char name[32];

    snprintf(name, sizeof name, "rank %d", scene->killed ? missing : 0);
    if (rank != missing)
        host_must(
            symwin_allreduce(comm, buffer, buffer + WORDS, WORDS, SYMWIN_U32, SYMWIN_SUM, stream),
            "symwin_allreduce");
    processes_barrier(p);
    host_pause_ms(SPIN_MS); /* until the other ranks' kernels spin */
    if (rank == (scene->killed ? missing : 0)) {
        p->rank[rank].at_us = processes_now_us();
        if (scene->killed)
            kill(getpid(), SIGKILL);
        host_must(symwin_comm_abort(comm), "symwin_comm_abort");
    }
    host_must(symwin_stream_synchronize(device, stream), "symwin_stream_synchronize");
    if (rank != missing)
        p->rank[rank].number = processes_now_us();
    if (scene->killed || rank != missing) {
        if (symwin_comm_check(comm) != want || strstr(symwin_last_error(), name) == NULL)
            fail_rank(rank, "another status");
    }
}

static void body(struct processes *p, int rank)
{
    const struct scene *scene = p->arg;
    const int device = device_of(rank);
    const int survivors = scene->killed ? p->count - 1 : p->count;
    struct CUstream_st *stream = NULL;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    uint32_t *buffer;

    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    buffer = host_alloc(device, 2 * WORDS * sizeof *buffer);
    host_must(symwin_window_register(comm, buffer, 2 * WORDS * sizeof *buffer, 0, &window),
              "symwin_window_register");
    if (!reduces(comm, p->count, rank, device, buffer, stream))
        fail_rank(rank, "the sum before");
    spin(p, rank, comm, device, buffer, stream);
    symwin_comm_destroy(comm);
    /* The context is still good: the survivors create a new communicator. */
    comm = NULL;
    host_must(processes_comm(scene->second, rank, 20000, &comm), "symwin_comm_create anew");
    if (!reduces(comm, survivors, rank, device, buffer, stream))
        fail_rank(rank, "the sum after");
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

static void play(const char *name, int ranks, int killed)
{
    struct scene scene = {.killed = killed, .second = processes_new(ranks - killed, NULL)};
    struct processes *p = processes_new(ranks, &scene);
    const int actor = killed ? ranks - 1 : 0;
    int64_t slowest = 0;
    int r, good = 1;

    for (r = 0; r < ranks; r++)
        processes_fork(p, r, body);
    for (r = 0; r < ranks; r++) {
        const int status = processes_wait(p, r);
        const int64_t delay = p->rank[r].number - p->rank[actor].at_us;

        if (killed && r == actor)
            good = good && WIFSIGNALED(status);
        else
            good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (r != ranks - 1 && delay > slowest)
            slowest = delay;
    }
    tap_ok(good, "%s: every rank that lives returns, says why, and works on", name);
    tap_ok(slowest > 0 && slowest < 1000000, "%s: the last stream ended %.2f ms later", name,
           (double)slowest / 1000);
    processes_free(p);
    processes_free(scene.second);
}

int main(void)
{
    const char *text = getenv("SYMWIN_TEST_RANKS");
    const int ranks = text != NULL && atoi(text) > 1 ? atoi(text) : 4;
    int i;

    setenv("SYMWIN_DRIVER", "cuda", 0);
    for (i = 0; i < ROUNDS; i++) {
        play("a rank is killed while the others' kernels spin", ranks, 1);
        play("a rank aborts while kernels spin", ranks, 0);
    }
    return tap_done();
}
