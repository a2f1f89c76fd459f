/* Ways to share an id: the caller's all-gather, MPI's (a stand-in), a launcher's environment, and
 * communicators split from one. With threads and with processes. */
#include <sys/resource.h>

#include "processes.h"

/* ---- a stand-in for MPI: ranks are threads, one communicator ---- */

typedef struct harness_team *MPI_Comm;
typedef int MPI_Info;
enum { MPI_SUCCESS, MPI_BYTE, MPI_COMM_TYPE_SHARED, MPI_INFO_NULL };

static _Thread_local int mpi_rank;
static unsigned char mpi_area[8][1024];
static int mpi_fails, mpi_has_no_size;

static int MPI_Comm_size(MPI_Comm comm, int *size)
{
    *size = comm->nranks;
    return mpi_has_no_size ? 1 : MPI_SUCCESS;
}

static int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    *rank = mpi_rank;
    return MPI_SUCCESS;
}

static int MPI_Allgather(const void *mine, int bytes, int type, void *all, int each, int kind,
                         MPI_Comm comm)
{
    int r;

    if (mpi_fails || type != kind || bytes != each || bytes > (int)sizeof mpi_area[0])
        return 1;
    memcpy(mpi_area[mpi_rank], mine, (size_t)bytes);
    harness_barrier(comm);
    for (r = 0; r < comm->nranks; r++)
        memcpy((unsigned char *)all + (size_t)r * (size_t)bytes, mpi_area[r], (size_t)bytes);
    harness_barrier(comm);
    return MPI_SUCCESS;
}

static int MPI_Comm_split_type(MPI_Comm comm, int kind, int key, MPI_Info info, MPI_Comm *out)
{
    (void)kind;
    (void)key;
    (void)info;
    *out = comm;
    return MPI_SUCCESS;
}

static int MPI_Comm_free(MPI_Comm *comm)
{
    *comm = NULL;
    return MPI_SUCCESS;
}

#include "symwin/mpi.h" /* includes tests/helpers/mpi.h as MPI's header */

static void over_mpi(struct harness_team *team, int rank, void *arg)
{
    symwin_unique_id id;
    symwin_comm *comm = NULL;

    (void)arg;
    mpi_rank = rank;
    TAP_EQ("MPI's local rank", symwin_mpi_local_rank(team), rank);
    host_must(symwin_unique_id_mpi(team, &id), "symwin_unique_id_mpi");
    host_expect("a communicator over MPI",
                symwin_comm_create(&id, team->nranks, rank, rank, NULL, &comm), SYMWIN_OK, "");
    symwin_comm_destroy(comm);
    harness_barrier(team);
    if (rank == 0)
        mpi_fails = 1;
    harness_barrier(team);
    host_expect("an all-gather that fails", symwin_unique_id_mpi(team, &id), SYMWIN_INVALID,
                "allgather returned 1");
    harness_barrier(team);
    if (rank == 0) {
        mpi_fails = 0;
        host_expect("no rank -1", symwin_unique_id_share(2, -1, symwin_mpi_allgather, &team, &id),
                    SYMWIN_INVALID, "no rank -1 of 2");
        host_expect("no all-gather", symwin_unique_id_share(2, 0, NULL, NULL, &id), SYMWIN_INVALID,
                    "allgather is NULL");
        mpi_has_no_size = 1;
        host_expect("an MPI that fails", symwin_unique_id_mpi(team, &id), SYMWIN_INVALID,
                    "symwin_unique_id_share|nranks is 0|MPI");
        mpi_has_no_size = 0;
    }
    harness_barrier(team);
    host_expect("no id on one rank", symwin_unique_id_mpi(team, rank == 1 ? NULL : &id),
                SYMWIN_INVALID, rank == 1 ? "id is NULL" : "rank 1 cannot take part");
}

/* ---- a rank that cannot take part in an all-gather ---- */

struct gathering {
    int nranks;
    int says;          /* the last rank's status; -1: the caller is the last rank */
    int heard, rounds; /* the last rank's status as gathered; number of rounds */
};

/* All other ranks can take part. */
static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    struct gathering *g = context;
    unsigned char *last = (unsigned char *)all + g->nranks - 1;

    g->rounds++;
    if (bytes != 1)
        return 1;
    memset(all, SYMWIN_OK, (size_t)g->nranks);
    if (g->says >= 0)
        *last = (unsigned char)g->says;
    else
        memcpy(last, mine, bytes);
    g->heard = *last;
    return 0;
}

/* More than the stack has room for. */
static void of_many(struct processes *p, int rank)
{
    struct gathering others = {5000, SYMWIN_FORKED, 0, 0};
    symwin_unique_id id;

    (void)p;
    must_be(symwin_unique_id_share(5000, 0, gather, &others, &id) == SYMWIN_FORKED &&
                others.rounds == 1 && host_error_has("rank 4999 cannot take part: SYMWIN_FORKED"),
            "one of 5000 ranks is a fork", rank);
}

static void with_a_fork(struct processes *p, int rank)
{
    struct gathering others = {3, SYMWIN_FORKED, 0, 0}, own = {3, -1, 0, 0};
    symwin_driver_info driver;
    symwin_unique_id id;
    int status = -1;
    pid_t pid;

    (void)p;
    must_be(symwin_unique_id_share(3, 0, gather, &others, &id) == SYMWIN_FORKED &&
                others.rounds == 1 && host_error_has("rank 2 cannot take part: SYMWIN_FORKED"),
            "another rank is a fork", rank);
    host_must(symwin_driver_query(&driver), "symwin_driver_query");
    pid = fork();
    if (pid == 0)
        _exit(symwin_unique_id_share(3, 2, gather, &own, &id) != SYMWIN_FORKED || own.rounds != 1 ||
              own.heard != SYMWIN_FORKED || !host_error_has("fork"));
    must_be(waitpid(pid, &status, 0) == pid && status == 0, "a fork tells the others", rank);
}

/* The sanitizers end the process if memory runs out. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void without_memory(struct processes *p, int rank)
{
    struct gathering own = {4096, -1, 0, 0};
    struct rlimit limit, none;
    symwin_status status;
    symwin_unique_id id;

    (void)p;
    if (getrlimit(RLIMIT_AS, &limit) != 0)
        abort();
    none = limit;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_AS, &none);
    status = symwin_unique_id_share(4096, 4095, gather, &own, &id);
    setrlimit(RLIMIT_AS, &limit);
    must_be(status == SYMWIN_NO_MEMORY && own.rounds == 1 && own.heard == SYMWIN_NO_MEMORY &&
                host_error_has("no host memory for 4096 ranks"),
            "a rank without memory tells the others", rank);
}
#endif

/* ---- splitting ---- */

static void expect_part(symwin_comm *comm, int nranks, int rank, const char *name)
{
    symwin_comm_info info = {0};
    const symwin_status status = symwin_comm_query(comm, &info);

    tap_ok(status == SYMWIN_OK && info.nranks == nranks && info.rank == rank,
           "%s: rank %d of %d (is %d of %d)", name, rank, nranks, info.rank, info.nranks);
}

static void split(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options none = {.size = 3};
    symwin_comm *parent = NULL, *part = NULL;
    const int n = team->nranks;

    (void)arg;
    host_must(harness_comm(team, rank, &parent), "symwin_comm_create");
    host_must(symwin_comm_split(parent, rank % 2, 0, NULL, &part), "symwin_comm_split");
    expect_part(part, (n + 1 - rank % 2) / 2, rank / 2, "odd and even ranks");
    symwin_comm_destroy(part);
    host_must(symwin_comm_split(parent, 7, -rank, NULL, &part), "symwin_comm_split");
    expect_part(part, n, n - 1 - rank, "all, backwards");
    symwin_comm_destroy(part);
    part = parent;
    host_must(symwin_comm_split(parent, rank == 0 ? SYMWIN_SPLIT_NONE : 1, 0, NULL, &part),
              "symwin_comm_split");
    if (rank == 0)
        tap_ok(part == NULL, "a rank in no part gets none");
    else
        expect_part(part, n - 1, rank - 1, "without rank 0");
    symwin_comm_destroy(part);
    host_expect("a bad color on one rank",
                symwin_comm_split(parent, rank == 1 ? -2 : 0, 0, NULL, &part), SYMWIN_INVALID,
                "symwin_comm_split|rank 1|color is -2");
    host_expect("nowhere to put it on one rank",
                symwin_comm_split(parent, 0, 0, NULL, rank == 1 ? NULL : &part), SYMWIN_INVALID,
                "symwin_comm_split: rank 1: comm is NULL");
    host_expect("options that are none on one rank",
                symwin_comm_split(parent, 0, 0, rank == 1 ? &none : NULL, &part), SYMWIN_INVALID,
                "symwin_comm_split: |rank 1|options->size");
    host_expect("no parent", symwin_comm_split(NULL, 0, 0, NULL, &part), SYMWIN_INVALID,
                "symwin_comm_split: parent is NULL");
    host_expect("the parent is not harmed", symwin_comm_check(parent), SYMWIN_OK, "");
    symwin_comm_destroy(parent);
}

/* ---- the environment ---- */

static void launch(struct processes *p, int rank, const char *job)
{
    char number[16], name[96];

    snprintf(number, sizeof number, "%d", rank);
    setenv("SYMWIN_RANK", number, 1);
    setenv("SYMWIN_LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", p->count);
    setenv("SYMWIN_NRANKS", number, 1);
    setenv("SYMWIN_LOCAL_NRANKS", number, 1);
    /* unique beside other runs of this test */
    snprintf(name, sizeof name, "%s-%ld", job, (long)getppid());
    setenv("SYMWIN_JOB", name, 1);
}

static void launched(struct processes *p, int rank)
{
    symwin_launch_info info = {0};
    int i;

    launch(p, rank, "test_join");
    must_be(symwin_launch_query(&info) == SYMWIN_OK && info.rank == rank &&
                info.nranks == p->count && info.local_rank == rank &&
                strcmp(info.launcher, "symwin") == 0,
            "symwin_launch_query", rank);
    for (i = 0; i < 2; i++) { /* the second id is a different one */
        host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
        everything_with(p, rank, &p->rank[rank].id);
    }
}

/* Rank 0 of an earlier job of that name was killed before any rank joined. */
static void left_over(struct processes *p, int rank)
{
    symwin_unique_id id;

    launch(p, 0, "test_join-left-over");
    host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
    p->rank[rank].number = 1;
    kill(getpid(), SIGKILL);
}

static void after_it(struct processes *p, int rank)
{
    launch(p, rank, "test_join-left-over");
    if (rank == 0)
        usleep(100000); /* the other rank finds the old file first */
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    everything_with(p, rank, &p->rank[rank].id);
}

/* Two hosts that share TMPDIR, each with a job of that name. Ranks 0 start before ranks 1. */
static void neighbours(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    launch(p, rank / 2, "test_join-neighbours");
    setenv("SYMWIN_NRANKS", "2", 1);
    setenv("SYMWIN_LOCAL_NRANKS", "2", 1);
    setenv("SYMWIN_HOST_ID", rank % 2 == 0 ? "a" : "b", 1);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "5000", 1);
    if (rank < 2)
        host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
    processes_barrier(p);
    if (rank >= 2)
        host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
    p->rank[rank].id = id;
    processes_barrier(p);
    must_be(memcmp(&p->rank[rank ^ 2].id, &id, sizeof id) == 0, "the id of its own host", rank);
    host_must(symwin_comm_create(&id, 2, rank / 2, rank, NULL, &comm), "symwin_comm_create");
    symwin_comm_destroy(comm);
}

/* Rank 2 looks for rank 0 too early. The others find each other, and wait for rank 2 in vain. Then
 * all try again. */
static void all_again(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    launch(p, rank, "test_join-all-again");
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", rank == 2 ? "200" : "1000", 1);
    if (rank == 2) {
        must_be(symwin_unique_id_from_env(&id) == SYMWIN_TIMEOUT, "rank 0 is late", rank);
        processes_barrier(p);
    } else {
        processes_barrier(p);
        host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
        must_be(symwin_comm_create(&id, p->count, rank, 0, NULL, &comm) == SYMWIN_TIMEOUT,
                "rank 2 does not come", rank);
    }
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "5000", 1);
    processes_barrier(p);
    host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env, again");
    everything_with(p, rank, &id);
}

static void alone(struct processes *p, int rank)
{
    const int64_t begin = host_now_ms();
    symwin_launch_info info;
    symwin_unique_id id;

    launch(p, 1, "test_join-alone");
    setenv("SYMWIN_NRANKS", "2", 1);
    setenv("SYMWIN_LOCAL_NRANKS", "2", 1);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "200", 1);
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_TIMEOUT &&
                host_error_has("rank 0 of job \"test_join-alone-|did not join within 200 ms") &&
                !host_error_has("SYMWIN_LOCAL_NRANKS") && host_now_ms() - begin < 5000,
            "rank 0 does not come", rank);
    unsetenv("SYMWIN_LOCAL_NRANKS");
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_TIMEOUT &&
                host_error_has("on several hosts, set SYMWIN_LOCAL_NRANKS"),
            "rank 0 may be on another host", rank);
    setenv("SYMWIN_RANK", "2", 1);
    must_be(symwin_launch_query(&info) == SYMWIN_INVALID && host_error_has("SYMWIN_RANK is \"2\""),
            "no such rank", rank);
    unsetenv("SYMWIN_RANK");
    must_be(symwin_launch_query(&info) == SYMWIN_INVALID && host_error_has("SYMWIN_RANK is not"),
            "half of the variables, asked for", rank);
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_INVALID && host_error_has("SYMWIN_RANK"),
            "half of the variables", rank);
    must_be(symwin_unique_id_from_env(NULL) == SYMWIN_INVALID, "no id", rank);
    must_be(symwin_launch_query(NULL) == SYMWIN_INVALID, "no info", rank);
    unsetenv("SYMWIN_NRANKS");
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_PROCID", "0", 1);
    must_be(symwin_launch_query(&info) == SYMWIN_OK && info.launcher == NULL && info.rank == 0 &&
                info.nranks == 1 && info.local_rank == 0 && info.local_nranks == 1,
            "no launcher, in the script of an sbatch", rank);
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_INVALID && host_error_has("SLURM_STEP_ID"),
            "no launcher, and an id", rank);
}

/* ---- two processes of two threads ---- */

struct thread {
    struct processes *p;
    int rank;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;

    everything_with(t->p, t->rank, &t->p->id);
    return NULL;
}

static void two_threads(struct processes *p, int rank)
{
    struct thread threads[2] = {{p, 2 * rank}, {p, 2 * rank + 1}};
    pthread_t other;

    processes_id(p, rank);
    p->count = 4; /* the number of ranks from here on; both processes set it */
    if (pthread_create(&other, NULL, thread_main, &threads[1]) != 0)
        abort();
    thread_main(&threads[0]);
    pthread_join(other, NULL);
}

int main(void)
{
    struct processes *dead = processes_new(1, NULL);
    struct harness_leaks before;

    /* Processes first: once this process has loaded the driver, its forked children cannot use
     * it. */
    processes_run("launched", 4, launched, NULL);
    processes_fork(dead, 0, left_over);
    processes_wait(dead, 0);
    tap_ok(dead->rank[0].number == 1, "a job leaves its file behind");
    processes_free(dead);
    processes_run("after it", 2, after_it, NULL);
    processes_run("neighbours", 4, neighbours, NULL);
    processes_run("all again", 3, all_again, NULL);
    processes_run("alone", 1, alone, NULL);
    processes_run("one of many", 1, of_many, NULL);
    processes_run("with a fork", 1, with_a_fork, NULL);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    processes_run("without memory", 1, without_memory, NULL);
#endif
    processes_run("two threads each", 2, two_threads, NULL);
    harness_start();
    before = harness_leaks_now();
    harness_run(3, over_mpi, NULL);
    harness_no_leaks("over MPI", &before);
    harness_run(5, split, NULL);
    harness_no_leaks("splitting", &before);
    return tap_done();
}
