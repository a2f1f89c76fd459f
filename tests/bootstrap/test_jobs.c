/* Launched jobs of one user on one host: two jobs that nothing distinguishes, and the folders in
 * which ranks find each other, which another user may have taken or which appear late. */
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { PAIRS = 3, TIME_MS = 4000 };
#else
enum { PAIRS = 10, TIME_MS = 1500 };
#endif
enum { NOBODY = 65534 };

extern char **environ;

static char folder[64]; /* for this test alone */
static const char *program;

static void launch(int rank, int nranks)
{
    char number[16];

    unsetenv("SYMWIN_JOB");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    snprintf(number, sizeof number, "%d", rank);
    setenv("SYMWIN_RANK", number, 1);
    snprintf(number, sizeof number, "%d", nranks);
    setenv("SYMWIN_NRANKS", number, 1);
    snprintf(number, sizeof number, "%d", TIME_MS);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", number, 1);
}

/* Creates a communicator from the launcher's variables and, if that succeeds, sums all ranks'
 * `mine`. */
static symwin_status sum_of(int rank, int nranks, uint32_t mine, uint32_t *sum)
{
    const symwin_comm_options options = {.size = sizeof options, .slot_bytes = 8192};
    struct CUstream_st *stream = NULL;
    symwin_comm *comm = NULL;
    symwin_unique_id id;
    symwin_status status = symwin_unique_id_from_env(&id);
    uint32_t *word;

    if (status == SYMWIN_OK)
        status = symwin_comm_create(&id, nranks, rank, rank, &options, &comm);
    if (status != SYMWIN_OK)
        return status;
    word = host_alloc(rank, sizeof *word);
    host_put_u32(rank, word, mine);
    host_must(symwin_stream_create(rank, &stream), "symwin_stream_create");
    host_must(symwin_allreduce(comm, word, word, 1, SYMWIN_U32, SYMWIN_SUM, stream), "all-reduce");
    host_must(symwin_stream_synchronize(rank, stream), "symwin_stream_synchronize");
    host_must(symwin_comm_check(comm), "symwin_comm_check");
    *sum = host_get_u32(rank, word);
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(rank, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(word), "symwin_mem_free");
    return SYMWIN_OK;
}

/* ---- two jobs -------------------------------------------------------------------------------- */

enum { OWN_DATA = 10, IS_TOLD, IS_ALONE, ANOTHERS_DATA };

/* The outcome of one rank of a job of two, which was started with its variables. */
static int be_rank(uint32_t job)
{
    const int rank = atoi(getenv("SYMWIN_RANK"));
    uint32_t sum = 0;
    const symwin_status status = sum_of(rank, 2, job, &sum);

    if (status == SYMWIN_OK)
        return sum == 2 * job ? OWN_DATA : ANOTHERS_DATA;
    if (status == SYMWIN_INVALID && host_error_has("SYMWIN_JOB"))
        return IS_TOLD;
    fprintf(stderr, "%s\n", symwin_last_error());
    return status == SYMWIN_TIMEOUT ? IS_ALONE : 1;
}

static pid_t start(int rank, const char *const *arguments)
{
    pid_t pid = -1;

    launch(rank, 2);
    if (posix_spawn(&pid, arguments[0], NULL, NULL, (char *const *)(uintptr_t)arguments, environ) !=
        0)
        perror("posix_spawn");
    return pid;
}

/* As a shell starts a rank: with its variables, and possibly with another shell in between. */
static pid_t start_rank(int rank, const char *job, int wrapped)
{
    const char *const plain[] = {"/proc/self/exe", "rank", job, NULL};
    const char *const shell[] = {"/bin/sh", "-c", "\"$0\" rank $1; exit $?", program, job, NULL};

    return start(rank, wrapped ? shell : plain);
}

/* A process that has a rank's variables and does nothing. */
static pid_t start_idle(int rank)
{
    const char *const idle[] = {"/proc/self/exe", "idle", NULL};

    return start(rank, idle);
}

static int result_of(pid_t pid)
{
    int status = -1;

    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    (void)result_of(pid);
}

/* A process started long before a rank, or after it, is not one of its rivals. */
static void no_rivals(void)
{
    const char *const later[] = {"/proc/self/exe", "later", "5", NULL};
    pid_t ranks[2], idle[2];

    idle[0] = start_idle(0);
    usleep((TIME_MS + 200) * 1000);
    ranks[0] = start(0, later);
    usleep(50000); /* some ticks of the clock by which start times are compared */
    idle[1] = start_idle(0);
    ranks[1] = start(1, later);
    TAP_EQ("rank 0, with idlers", result_of(ranks[0]), OWN_DATA);
    TAP_EQ("rank 1", result_of(ranks[1]), OWN_DATA);
    end(idle[0]);
    end(idle[1]);
}

static void *start_in_thread(void *arg)
{
    struct processes *p = arg;

    p->rank[0].number = start_idle(0);
    p->rank[0].step = 1;
    while (p->rank[1].step == 0)
        usleep(1000);
    return NULL;
}

/* A launcher may start each rank from a different thread. */
static void rival_of_a_thread(void)
{
    struct processes *p = processes_new(2, NULL);
    pthread_t thread;

    if (pthread_create(&thread, NULL, start_in_thread, p) != 0)
        abort();
    while (p->rank[0].step == 0)
        usleep(1000);
    usleep(50000);
    TAP_EQ("a rank whose rival another thread has started", result_of(start_rank(0, "6", 0)),
           IS_TOLD);
    p->rank[1].step = 1;
    pthread_join(thread, NULL);
    end((pid_t)p->rank[0].number);
    processes_free(p);
}

/* ---- locked files ---- */

static const char *removed; /* unlinked before it is locked */

/* Replaces the C library's. */
int flock(int fd, int operation)
{
    if (removed != NULL)
        unlink(removed);
    removed = NULL;
    return (int)syscall(SYS_flock, fd, operation);
}

static void files(void)
{
    struct sw_claim *claim = NULL, *other = NULL;
    char file[96], name[112];
    FILE *left;

    snprintf(file, sizeof file, "%s/claimed", folder);
    snprintf(name, sizeof name, "%s.0", file);
    left = fopen(name, "we"); /* as a killed process leaves it */
    if (left == NULL || fputs("2", left) < 0 || fclose(left) != 0)
        abort();
    TAP_EQ("a file that is there", sw_claim_take(file, 0, "job", "test", &claim), SYMWIN_OK);
    TAP_EQ("what was in it is no dispute", sw_claim_disputed(file, 2), -1);
    host_expect("another rank 0", sw_claim_take(file, 0, "job", "test", &other), SYMWIN_INVALID,
                "SYMWIN_JOB");
    TAP_EQ("is one", sw_claim_disputed(file, 2), 0);
    sw_claim_free(claim);
    TAP_EQ("and gone with its owner", sw_claim_disputed(file, 2), -1);
    removed = name;
    TAP_EQ("a file that another removes", sw_claim_take(file, 0, "job", "test", &claim), SYMWIN_OK);
    TAP_EQ("is made anew", access(name, F_OK), 0);
    sw_claim_free(claim);
}

/* In both orders that a launcher might choose. */
static void pairs(void)
{
    static const int orders[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};
    int count[ANOTHERS_DATA + 1] = {0}, wrong = 0;
    uint64_t state = 7;
    int i, k;

    for (i = 0; i < PAIRS; i++) {
        pid_t pids[4];

        for (k = 0; k < 4; k++) {
            const int process = orders[i % 2][k];

            pids[k] = start_rank(process % 2, process < 2 ? "1" : "2", i % 3 == 2);
            usleep((useconds_t)(host_random(&state) % 4000));
        }
        for (k = 0; k < 4; k++) {
            int status = -1;

            waitpid(pids[k], &status, 0);
            if (WIFEXITED(status) && WEXITSTATUS(status) >= OWN_DATA &&
                WEXITSTATUS(status) <= ANOTHERS_DATA)
                count[WEXITSTATUS(status)]++;
            else
                wrong++;
        }
    }
    printf("# two jobs of one name, %d times: %d ranks have met their own, %d were told to set "
           "SYMWIN_JOB, %d waited in vain\n",
           PAIRS, count[OWN_DATA], count[IS_TOLD], count[IS_ALONE]);
    TAP_EQ("ranks with another job's data", count[ANOTHERS_DATA], 0);
    TAP_EQ("ranks that failed otherwise", wrong, 0);
    tap_ok(count[IS_TOLD] > 0, "somebody is told");
}

/* No launcher is visible. Processes 0 and 2 are one job; process 1 comes in between, as its rank
 * 0. */
static void disputed(struct processes *p, int process)
{
    const symwin_comm_options options = {.size = sizeof options};
    symwin_comm *comm = NULL;
    symwin_unique_id id;
    symwin_status status;

    launch(process == 2, 2);
    while ((process > 0 && p->rank[0].step == 0) || (process > 1 && p->rank[1].status < 0))
        usleep(200);
    status = symwin_unique_id_from_env(&id);
    must_be((status == SYMWIN_OK) == (process != 1), "an id", process);
    p->rank[process].step = 1;
    if (status == SYMWIN_OK)
        status = symwin_comm_create(&id, 2, process == 2, 0, &options, &comm);
    must_be(processes_note(p, process, status) == SYMWIN_INVALID && host_error_has("SYMWIN_JOB"),
            "is told what to set", process);
    while (process == 0 && p->rank[2].status < 0)
        usleep(1000);
}

/* The job's name by the variables that this process was started with. */
static int say_job(void)
{
    struct sw_launch launch;

    if (sw_launch_read("test_jobs", &launch) != SYMWIN_OK)
        return 1;
    printf("%s\n", launch.job);
    return 0;
}

/* A shell in place of MPICH's mpiexec, which gives jobs no name. Rank 1 has another shell around
 * it. */
static void mpiexec(char names[2][128])
{
    char command[1024];
    FILE *said;
    int r;

    snprintf(command, sizeof command,
             "unset SYMWIN_RANK SYMWIN_NRANKS; export PMI_SIZE=2 MPI_LOCALNRANKS=2; "
             "PMI_RANK=0 '%s' job; PMI_RANK=1 sh -c \"'%s' job; :\"; :",
             program, program);
    said = popen(command, "r");
    for (r = 0; r < 2; r++)
        if (said == NULL || fgets(names[r], 128, said) == NULL)
            names[r][0] = '\0';
    if (said != NULL)
        pclose(said);
}

static void launchers(void)
{
    char first[2][128], second[2][128];

    mpiexec(first);
    mpiexec(second);
    tap_ok(strncmp(first[0], "hydra,", 6) == 0 && strcmp(first[0], first[1]) == 0 &&
               strcmp(second[0], second[1]) == 0 && strcmp(first[0], second[0]) != 0,
           "one mpiexec of MPICH is told from another: %.40s", first[0]);
}

/* The variables that a script sets for its rank are also in the script's other processes. That does
 * not make them ranks. */
static void helped(void)
{
    char command[1024];

    snprintf(command, sizeof command,
             "r() { (export SYMWIN_RANK=$1 SYMWIN_NRANKS=2 SYMWIN_BOOTSTRAP_TIMEOUT_MS=20000; "
             "sleep 20 & sleep 0.1; '%s' rank 1; s=$?; kill $!; exit $s); }; "
             "unset SYMWIN_RANK SYMWIN_NRANKS SYMWIN_JOB; r 1 & r 0; s=$?; wait $!; "
             "exit $((s | $?))",
             program);
    TAP_EQ("ranks beside helpers that have their variables", WEXITSTATUS(system(command)),
           OWN_DATA);
}

/* Jobs of one rank need no other process, so they never disturb each other. */
static void alone(struct processes *p, int rank)
{
    uint32_t sum = 0;

    launch(0, 1);
    processes_barrier(p);
    must_be(sum_of(0, 1, 5, &sum) == SYMWIN_OK && sum == 5, "a job of one", rank);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void launched(struct processes *p, int rank)
{
    uint32_t sum = 0;

    launch(rank, p->count);
    must_be(sum_of(rank, p->count, 1, &sum) == SYMWIN_OK && sum == (uint32_t)p->count, "the job",
            rank);
}

/* Rank 0 finds only the second folder. When the others start, the first exists. */
static void comes_late(struct processes *p, int rank)
{
    char first[96], second[96];
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    snprintf(first, sizeof first, "%s/first", folder);
    snprintf(second, sizeof second, "%s/second", folder);
    setenv("TMPDIR", first, 1);
    setenv("XDG_RUNTIME_DIR", second, 1);
    launch(rank, p->count);
    while (rank != 0 && p->rank[0].step == 0)
        usleep(200);
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_OK, "an id in the second folder", rank);
    if (rank == 0) {
        must_be(mkdir(first, 0700) == 0, "a folder", rank);
        p->rank[0].step = 1;
    }
    must_be(symwin_comm_create(&id, p->count, rank, 0, NULL, &comm) == SYMWIN_OK, "they meet",
            rank);
    symwin_comm_destroy(comm);
}

/* In its own file system at /tmp, where another user has taken the name that all ranks look for. */
static int squatted(void)
{
    char name[64], found[SW_FILE_NAME_BYTES];
    struct processes *p;
    struct stat file;
    int right = 1;
    int r;

    snprintf(name, sizeof name, "/tmp/symwin-%lu", (unsigned long)geteuid());
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/tmp", "tmpfs", 0, "size=1m,mode=1777") != 0)
        return 2;
    if (mkdir(name, 0700) != 0 || chown(name, NOBODY, NOBODY) != 0)
        return 1;
    unsetenv("XDG_RUNTIME_DIR");
    setenv("TMPDIR", "/tmp", 1);
    p = processes_new(3, NULL);
    for (r = 0; r < 3; r++)
        processes_fork(p, r, launched);
    for (r = 0; r < 3; r++)
        right &= processes_wait(p, r) == 0;
    return !(right && lstat(name, &file) == 0 && file.st_uid == NOBODY &&
             sw_own_folder(0, 0, found, sizeof found, INT64_MAX) > 0 &&
             strncmp(found, name, strlen(name)) == 0 && lstat(found, &file) == 0 &&
             (file.st_mode & 0777) == 0700);
}

static useconds_t slow_look_us; /* how long the system takes to tell what an entry is */

/* Replaces the C library's. */
int lstat(const char *name, struct stat *file)
{
    if (strstr(name, "/symwin-") != NULL)
        usleep(slow_look_us);
    return (int)syscall(SYS_newfstatat, AT_FDCWD, name, file, AT_SYMLINK_NOFOLLOW);
}

/* In a folder of its own with DECOYS entries. If they have the names of this user's folders, files
 * are not looked at; folders are, until the time is over. Nobody is to blame for other names, also
 * if the time is over. */
static int crowded(const char *names, int folders, int longest_ms)
{
    enum { DECOYS = 400, SLACK_MS = 300, LOOK_US = 5000 };
    const struct sw_part part = {"crowded", 7};
    char place[] = "/tmp/symwin-test-XXXXXX", name[SW_FILE_NAME_BYTES], tail[SW_TAIL_BYTES];
    symwin_status status;
    int64_t begin;
    int right, i;

    if (mkdtemp(place) == NULL || setenv("TMPDIR", place, 1) != 0)
        return 1;
    unsetenv("XDG_RUNTIME_DIR");
    for (i = -1; i < DECOYS; i++) {
        if (i < 0)
            snprintf(name, sizeof name, "%s/symwin-%lu", place, (unsigned long)geteuid());
        else
            snprintf(name, sizeof name, names, place, (unsigned long)geteuid(), i);
        if (folders && i >= 0)
            mkdir(name, 0755);
        else
            close(open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    sw_id_tail(&part, 1, tail);
    slow_look_us = LOOK_US;
    begin = sw_now_ms();
    status = sw_id_file(tail, "call", name, begin + longest_ms);
    right = sw_now_ms() - begin < longest_ms + SLACK_MS &&
            (folders ? status == SYMWIN_TIMEOUT &&
                           host_error_has("call: other users|set TMPDIR to a private folder")
                     : status == SYMWIN_OK && strncmp(name, place, strlen(place)) == 0);
    slow_look_us = 0;
    snprintf(name, sizeof name, "rm -rf %s", place);
    return system(name) != 0 || !right;
}

static int crowded_by_files(void)
{
    return crowded("%s/symwin-%lu-%06d", 0, 500);
}

static int crowded_by_folders(void)
{
    return crowded("%s/symwin-%lu-%06d", 1, 500);
}

static int among_others(void)
{
    return crowded("%s/others-%lu-%06d", 0, 0);
}

static void in_a_process(const char *name, int (*body)(void))
{
    const pid_t pid = fork();
    int status = -1;

    if (pid == 0)
        _exit(body());
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        tap_ok(1, "%s # SKIP not permitted", name);
    else
        tap_ok(status == 0, "%s (wait status 0x%x)", name, (unsigned)status);
}

static int no_folders(void)
{
    static const char *const none[] = {"", "tmp", "./tmp"};
    char name[64];
    size_t i;

    for (i = 0; i < sizeof none / sizeof none[0]; i++) {
        setenv("TMPDIR", none[i], 1);
        setenv("XDG_RUNTIME_DIR", none[i], 1);
        if (sw_temp_path(0, "/x", name, sizeof name) || sw_temp_path(1, "/x", name, sizeof name))
            return 1;
    }
    return !(sw_temp_path(2, "/x", name, sizeof name) && strcmp(name, "/tmp/x") == 0);
}

/* Removes the folders of all names, with their contents. */
static void remove_all(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        perror(folder);
}

int main(int argc, char **argv)
{
    char second[96];

    if (argc == 3 && strcmp(argv[1], "rank") == 0)
        return be_rank((uint32_t)atoi(argv[2]));
    if (argc == 2 && strcmp(argv[1], "job") == 0)
        return say_job();
    if (argc == 2 && strcmp(argv[1], "idle") == 0)
        return pause();
    if (argc == 3 && strcmp(argv[1], "later") == 0) {
        usleep(200000);
        return be_rank((uint32_t)atoi(argv[2]));
    }
    program = argv[0];
    launchers();

    snprintf(folder, sizeof folder, "/tmp/symwin-jobs-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    setenv("TMPDIR", folder, 1);
    setenv("SYMWIN_DRIVER", "emu", 0);
    pairs();
    helped();
    no_rivals();
    rival_of_a_thread();
    files();
    processes_run("two processes of one rank", 3, disputed, NULL);
    processes_run("jobs of one rank", 4, alone, NULL);
    snprintf(second, sizeof second, "%s/second", folder);
    tap_ok(mkdir(second, 0700) == 0, "a second folder");
    processes_run("a folder that comes late", 3, comes_late, NULL);
    in_a_process("a folder's name that another user has taken", squatted);
    in_a_process("files that are named as a user's folders are not looked at", crowded_by_files);
    in_a_process("folders with such names are, until the time is over", crowded_by_folders);
    in_a_process("entries with other names are to blame for nothing", among_others);
    in_a_process("what is no folder: nothing, and what does not begin with a slash", no_folders);
    remove_all();
    return tap_done();
}
