/* Too few descriptors, no folder for files, no addresses, constant signals: ranks get a status that
 * says what to do, no object is left half-made, and once there is enough again everything works. */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "processes.h"

/* Under ThreadSanitizer the kernels of many processes take long to wait for each other. */
#if defined(__SANITIZE_THREAD__)
enum { SHORT_MS = 12000, SIDE_BY_SIDE = 3, STRIDE = 9 };
#else
enum { SHORT_MS = 1500, SIDE_BY_SIDE = 20, STRIDE = 1 };
#endif

enum { RANKS = 3, WAIT_MS = 20000, COUNT = 1024 };

/* ---- a whole job ----------------------------------------------------------------------------- */

struct job {
    symwin_comm *comm;
    symwin_window *window;
    struct CUstream_st *stream;
    void *memory;
    int device;
};

static symwin_status job_run(struct job *j, const symwin_unique_id *id, int nranks, int rank,
                             int timeout_ms)
{
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = timeout_ms,
                                         .kernel_timeout_ms = timeout_ms,
                                         .slot_bytes = 8192};
    symwin_status status;

    j->device = rank % 4;
    status = symwin_comm_create(id, nranks, rank, j->device, &options, &j->comm);
    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(j->device, COUNT * 4, 0, &j->memory);
    if (status == SYMWIN_OK)
        status = symwin_stream_create(j->device, &j->stream);
    if (status == SYMWIN_OK)
        status = symwin_window_register(j->comm, j->memory, COUNT * 4, 0, &j->window);
    if (status == SYMWIN_OK)
        status = symwin_allreduce(j->comm, j->memory, j->memory, COUNT, SYMWIN_U32, SYMWIN_SUM,
                                  j->stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(j->device, j->stream);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(j->comm);
    return status;
}

static void job_free(struct job *j)
{
    if (j->stream != NULL)
        symwin_stream_synchronize(j->device, j->stream);
    symwin_comm_destroy(j->comm);
    if (j->stream != NULL)
        host_must(symwin_stream_destroy(j->device, j->stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(j->memory), "symwin_mem_free");
}

static void job_must(struct processes *p, int rank)
{
    struct job j = {0};

    host_must(processes_note(p, rank, job_run(&j, processes_id(p, rank), p->count, rank, WAIT_MS)),
              "the job");
    job_free(&j);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void limit_set(int which, rlim_t value)
{
    struct rlimit limit;

    if (getrlimit(which, &limit) != 0)
        perror("getrlimit");
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    if (setrlimit(which, &limit) != 0)
        perror("setrlimit");
}

/* In shared memory, one per case. */
struct limited {
    struct processes *p;
    int which; /* RLIMIT_ */
    rlim_t value;
    int rank;                /* the limited rank; -1: all */
    int loaded;              /* the driver is loaded before the limit is set */
    atomic_int broken;       /* a kernel ended for want of addresses, and with it the context */
    symwin_unique_id second; /* without the limit, afterwards */
    atomic_int second_made;
};

static size_t address_space(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    size_t pages = 0;

    if (file == NULL || fscanf(file, "%zu", &pages) != 1)
        perror("statm");
    if (file != NULL)
        fclose(file);
    return pages * 4096;
}

static int context_works(int device)
{
    CUstream stream = NULL;
    const symwin_status status = symwin_stream_create(device, &stream);

    if (status == SYMWIN_OK)
        host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    return status == SYMWIN_OK;
}

/* Runs a job under the limit and another one without it. Waits until the id was created or its
 * creation failed. */
static void limited(struct processes *p, int rank)
{
    struct limited *l = p->arg;
    struct rlimit before;
    struct job j = {0};
    symwin_status status = SYMWIN_OK;

    if (l->loaded)
        harness_device_count();
    getrlimit((__rlimit_resource_t)l->which, &before);
    if (l->rank < 0 || l->rank == rank)
        limit_set(l->which, l->value + (l->which == RLIMIT_AS ? address_space() : 0));
    if (rank == 0) {
        status = symwin_unique_id_create(&p->id);
        p->id_made = status == SYMWIN_OK ? 1 : 2;
    }
    while (!p->id_made)
        usleep(200);
    if (status == SYMWIN_OK && p->id_made == 1)
        status = job_run(&j, &p->id, RANKS, rank, SHORT_MS);
    processes_note(p, rank, status);
    job_free(&j);
    setrlimit((__rlimit_resource_t)l->which, &before);
    if (l->which == RLIMIT_AS && !context_works(j.device))
        l->broken = 1;
    if (rank == 0)
        symwin_unique_id_release(&p->id); /* in case no rank joined */
    if (rank == 0) {
        host_must(symwin_unique_id_create(&l->second), "an id afterwards");
        l->second_made = 1;
    }
    while (!l->second_made)
        usleep(200);
    j = (struct job){0};
    status = job_run(&j, &l->second, RANKS, rank, WAIT_MS);
    must_be(status == SYMWIN_OK || l->broken, "a job afterwards", rank);
    job_free(&j);
}

static struct limited *limited_begin(int which, rlim_t value, int rank, int loaded)
{
    struct limited *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                             -1, 0);
    int r;

    if (l == MAP_FAILED)
        exit(1);
    l->which = which;
    l->value = value;
    l->rank = rank;
    l->loaded = loaded;
    l->p = processes_new(RANKS, l);
    for (r = 0; r < RANKS; r++)
        processes_fork(l->p, r, limited);
    return l;
}

/* Whether the text says what to do or names the rank to blame, whose own text says what to do. */
static int is_clean(symwin_status status, const char *text, const char *advice)
{
    switch (status) {
    case SYMWIN_OK:
        return 1;
    case SYMWIN_NO_MEMORY:
    case SYMWIN_DRIVER: /* has no status of its own for this */
        return strstr(text, advice) != NULL;
    case SYMWIN_PEER_LOST:
    case SYMWIN_TIMEOUT:
        return strstr(text, "rank ") != NULL ||
               strstr(text, "the process that made the id") != NULL;
    default:
        return 0;
    }
}

/* Returns whether all ranks succeeded under the limit. */
static int limited_finish(struct limited *l, const char *name, const char *advice)
{
    int ended = 1, clean = 1, succeeded = 0, advised = 0;
    int r;

    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(l->p, r) == 0;
    for (r = 0; r < RANKS; r++) {
        const symwin_status status = (symwin_status)l->p->rank[r].status;

        clean &= is_clean(status, l->p->rank[r].text, advice);
        succeeded += status == SYMWIN_OK;
        advised += status == SYMWIN_NO_MEMORY || status == SYMWIN_DRIVER;
    }
    /* some rank must say it; if the id could not be created, only its creator knows */
    clean &= succeeded == RANKS || advised > 0;
    tap_ok(ended, "%s %llu: afterwards all is well", name, (unsigned long long)l->value);
    tap_ok(clean, "%s %llu: %d ranks succeed, %d say what to raise", name,
           (unsigned long long)l->value, succeeded, advised);
    for (r = 0; r < RANKS && (!clean || getenv("VERBOSE") != NULL); r++)
        printf("# rank %d: %s: %s\n", r, symwin_status_name(l->p->rank[r].status),
               l->p->rank[r].text);
    processes_free(l->p);
    munmap(l, sizeof *l);
    return succeeded == RANKS;
}

/* At the same time, since failing ranks wait for each other. */
static void descriptors(const char *name, int rank, int last)
{
    struct limited *begun[SIDE_BY_SIDE];
    int next = 3;
    int count, i;

    while (next <= last) {
        for (count = 0; count < SIDE_BY_SIDE && next <= last; count++, next += STRIDE)
            begun[count] = limited_begin(RLIMIT_NOFILE, (rlim_t)next, rank, next % 2);
        for (i = 0; i < count; i++)
            limited_finish(begun[i], name, "ulimit -n");
    }
}

/* From none to more than enough, on all ranks and on one. */
static void addresses(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_ok(1, "RLIMIT_AS # SKIP a sanitizer takes all addresses");
#else
    static const struct {
        rlim_t room;
        int rank;
    } cases[] = {{0, -1},       {1 << 16, -1}, {1 << 20, -1}, {1 << 22, -1},
                 {1 << 24, -1}, {1 << 26, -1}, {1 << 28, -1}, {(rlim_t)1 << 40, -1},
                 {0, 1},        {1 << 20, 1},  {1 << 24, 1},  {1 << 28, 1}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    struct limited *begun[CASES];
    int succeeded[CASES];
    int i;

    for (i = 0; i < CASES; i++)
        begun[i] = limited_begin(RLIMIT_AS, cases[i].room, cases[i].rank, 1);
    for (i = 0; i < CASES; i++)
        succeeded[i] = limited_finish(begun[i], "RLIMIT_AS, beyond what is used,", "");
    TAP_EQ("without addresses it fails", succeeded[0] || succeeded[8], 0);
    TAP_EQ("with enough it does not", succeeded[7], 1);
#endif
}

/* ---- folders for the socket ------------------------------------------------------------------ */

static const char *const long_name =
    "/tmp/a-name-that-is-longer-than-any-socket-address-has-room-for-because-it-goes-on-and-on";

static void no_tmpdir(struct processes *p, int rank)
{
    unsetenv("TMPDIR");
    unsetenv("XDG_RUNTIME_DIR");
    job_must(p, rank);
}

static void long_tmpdir(struct processes *p, int rank)
{
    mkdir(long_name, 0700);
    setenv("TMPDIR", long_name, 1);
    job_must(p, rank);
    rmdir(long_name);
}

static void false_tmpdir(struct processes *p, int rank)
{
    setenv("TMPDIR", "/proc", 1);
    setenv("XDG_RUNTIME_DIR", "/dev/null", 1);
    job_must(p, rank);
}

static void empty_tmpdir(struct processes *p, int rank)
{
    setenv("TMPDIR", "", 1);
    setenv("XDG_RUNTIME_DIR", "", 1);
    job_must(p, rank);
}

/* Each process in its own mount namespace, where nothing is writable. */
static int own_mounts(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static int read_only(const char *folder)
{
    return mount(folder, folder, NULL, MS_BIND, NULL) == 0 &&
           mount(NULL, folder, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0;
}

/* Threads of the creator's process can still join. Other processes are told what is missing. */
static void no_folder(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    symwin_unique_id own;

    unsetenv("XDG_RUNTIME_DIR");
    setenv("TMPDIR", "/tmp", 1);
    if (!own_mounts() || !read_only("/tmp")) {
        perror("mount");
        tap_failures++;
        return;
    }
    processes_id(p, rank);
    if (rank == 1) {
        must_be(symwin_comm_create(&p->id, 2, 1, 0, NULL, &comm) == SYMWIN_UNSUPPORTED &&
                    host_error_has("writable TMPDIR"),
                "a rank whose creator has no socket", rank);
        p->rank[1].step = 1;
        return;
    }
    while (p->rank[1].step == 0)
        usleep(200);
    host_must(symwin_unique_id_release(&p->id), "symwin_unique_id_release");
    host_must(symwin_unique_id_create(&own), "symwin_unique_id_create");
    host_must(symwin_comm_create(&own, 1, 0, 0, NULL, &comm), "a communicator of one");
    symwin_comm_destroy(comm);
}

static void no_shm(struct processes *p, int rank)
{
    if (!own_mounts() || mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4k") != 0) {
        perror("mount");
        tap_failures++;
        return;
    }
    umount2("/dev/shm", MNT_DETACH);
    umount2("/dev/shm", MNT_DETACH);
    job_must(p, rank);
}

/* Whether this system allows a private mount namespace. */
static int can_mount(void)
{
    const pid_t pid = fork();
    int status = -1;

    if (pid == 0)
        _exit(!own_mounts() || !read_only("/tmp"));
    waitpid(pid, &status, 0);
    return status == 0;
}

/* ---- signals --------------------------------------------------------------------------------- */

enum { SIGNALLED_JOBS = 12 }; /* together more than 20 ms on any machine */

static atomic_int ticks; /* counted on all threads */

static void tick(int signal)
{
    (void)signal;
    if (atomic_fetch_add(&ticks, 1) > PROCESSES_LIMIT_S * 1000)
        _exit(9); /* ITIMER_REAL replaces the alarm() that limits the test */
}

/* A signal every millisecond interrupts all interruptible calls. */
static void signals(struct processes *p, int rank)
{
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    const struct itimerval never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = tick};
    int i;

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (i = 0; i < SIGNALLED_JOBS; i++) {
        p->id_made = 0;
        processes_barrier(p);
        job_must(p, rank);
        processes_barrier(p);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    alarm(PROCESSES_LIMIT_S);
    must_be(ticks > 20, "the signals came", rank);
}

static void enough_descriptors(struct processes *p, int rank)
{
    limit_set(RLIMIT_NOFILE, 64);
    job_must(p, rank);
}

int main(void)
{
    processes_run("RLIMIT_NOFILE 64", 4, enough_descriptors, NULL);
    descriptors("RLIMIT_NOFILE", -1, 40);
    descriptors("RLIMIT_NOFILE of rank 1", 1, 16);
    addresses();
    processes_run("no TMPDIR", 2, no_tmpdir, NULL);
    processes_run("TMPDIR too long", 2, long_tmpdir, NULL);
    processes_run("TMPDIR not writable", 2, false_tmpdir, NULL);
    processes_run("TMPDIR empty", 2, empty_tmpdir, NULL);
    if (can_mount()) {
        processes_run("no folder for a socket", 2, no_folder, NULL);
        processes_run("no /dev/shm", RANKS, no_shm, NULL);
    } else {
        tap_ok(1, "mounts of one's own # SKIP not permitted");
    }
    processes_run("1000 signals a second", 4, signals, NULL);
    return tap_done();
}
