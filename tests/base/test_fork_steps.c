/* Forks at chosen steps of the library: what the child must not hold, and what it must not wait
 * for.
 *
 * A child that does not exec keeps its descriptors as long as it lives. A descriptor of memory pins
 * that memory, on whatever rank. */
#include <fcntl.h>
#include <sys/resource.h>

#include "processes.h"
#include "steps.h"

enum {
    RANKS = 3,
    FORKER = 1, /* exports one allocation, and imports two */
    BYTES = 4096,
    LOW = 256, /* the emulated driver's own descriptors have higher numbers */
    HIGH = 70000,
    BEYOND = 1 << 20,
    CHILD_LIMIT_S = 10
};

/* LeakSanitizer calls it by this name. In a child, memory that only the parent's threads point to
 * is no leak. */
static int is_child;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

static pid_t fork_now(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        is_child = 1;
        alarm(CHILD_LIMIT_S);
        processes_child_threads();
    }
    return pid;
}

static int exit_code(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- at every step of a registration --------------------------------------------------------- */

static struct {
    pthread_t thread; /* the rank's; only it uses the other fields */
    int busy;         /* in a fork, whose own steps are not counted */
    int forks;
    int most;  /* descriptors in this process at a fork */
    int child; /* most in a child */
} forker;

static int low_descriptors(void)
{
    int count = 0;
    int fd;

    for (fd = 0; fd < LOW; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int descriptors_of_a_child(void)
{
    const pid_t pid = fork_now();

    if (pid == 0)
        _exit(low_descriptors());
    return exit_code(pid);
}

/* No fork while the thread holds a lock: the child would wait for it for ever. */
static void fork_here(const char *name)
{
    const int here = low_descriptors();
    int there;

    (void)name;
    if (!pthread_equal(forker.thread, pthread_self()) || forker.busy || steps_locks() > 0)
        return;
    forker.busy = 1;
    there = descriptors_of_a_child();
    forker.busy = 0;
    forker.forks++;
    if (here > forker.most)
        forker.most = here;
    if (there > forker.child)
        forker.child = there;
}

static void in_a_registration(struct processes *p, int rank)
{
    const int device = rank % harness_device_count();
    symwin_window *window;
    symwin_comm *comm;
    void *memory;
    int here, there;

    host_must(processes_comm(p, rank, 20000, &comm), "symwin_comm_create");
    memory = host_alloc(device, BYTES);
    here = low_descriptors();
    there = descriptors_of_a_child();
    if (rank == FORKER) {
        forker.thread = pthread_self();
        steps_each(fork_here);
    }
    host_must(symwin_window_register(comm, memory, BYTES, 0, &window), "register");
    if (rank == FORKER) {
        steps_each(NULL);
        fprintf(stderr, "# %d forks; descriptors here %d to %d, in children %d to %d\n",
                forker.forks, here, forker.most, there, forker.child);
        must_be(forker.forks > RANKS, "forks in a registration", rank);
        must_be(forker.most > here, "descriptors in a registration", rank);
        must_be(forker.child == there, "a child has a descriptor of a registration", rank);
    }
    processes_barrier(p); /* a peer socket that the other end has closed is no longer watched */
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- while a thread waits for the poll thread to end ----------------------------------------- */

static struct {
    atomic_int held;      /* the poll thread is to stop in poll() ... */
    atomic_int is_there;  /* ... and has stopped there */
    atomic_int settling;  /* writes of thread A, which tells the poll thread to end */
    atomic_int beginning; /* thread B has the lock, and waits for that end */
} service;

static void hold_service(const char *name)
{
    if (strcmp(name, "write") == 0 && service.is_there)
        service.settling++;
    if (strcmp(name, "poll") != 0 || !service.held)
        return;
    service.is_there = 1;
    while (service.held)
        usleep(200);
}

static void never(struct sw_poll_watch *watch, short events)
{
    (void)watch;
    (void)events;
}

static const struct sw_poll_watch nothing = {.fd = -1, .deadline = INT64_MAX, .ready = never};

static void *settle(void *arg)
{
    (void)arg;
    sw_poll_settle();
    return NULL;
}

static void *begin(void *arg)
{
    sw_poll_lock();
    service.beginning = 1;
    host_must(sw_poll_add(arg), "sw_poll_add");
    sw_poll_unlock();
    return NULL;
}

/* Calls f() while the poll thread is told to end and a thread that needs a new one waits for that
 * end. */
static void in_between(void (*f)(void))
{
    struct sw_poll_watch first = nothing, second = nothing;
    pthread_t a, b;

    service.is_there = service.settling = service.beginning = 0;
    service.held = 1;
    steps_each(hold_service);
    sw_poll_lock();
    host_must(sw_poll_add(&first), "sw_poll_add");
    sw_poll_unlock();
    while (!service.is_there)
        usleep(200);
    sw_poll_lock();
    sw_poll_remove(&first); /* writes once */
    sw_poll_unlock();
    pthread_create(&a, NULL, settle, NULL);
    while (service.settling < 2)
        usleep(200);
    pthread_create(&b, NULL, begin, &second);
    while (!service.beginning)
        usleep(200);
    sw_poll_lock(); /* thread B waits now */
    sw_poll_unlock();
    if (f != NULL)
        f();
    service.held = 0;
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    steps_each(NULL);
    sw_poll_lock();
    sw_poll_remove(&second);
    sw_poll_unlock();
    sw_poll_settle();
}

/* The child has none of the threads, and may get into the same state several times. */
static void fork_between(void)
{
    pid_t pid;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    host_pause_ms(200); /* see test_fork.c */
#endif
    pid = fork_now();
    if (pid == 0) {
        in_between(NULL);
        in_between(NULL);
        in_between(NULL);
        _exit(0);
    }
    must_be(exit_code(pid) == 0, "a child waits for its parent's threads", 0);
}

static void at_the_end_of_the_service(struct processes *p, int rank)
{
    (void)p;
    (void)rank;
    in_between(fork_between);
}

/* ---- descriptors with high numbers ----------------------------------------------------------- */

static void high_number(struct processes *p, int rank)
{
    struct rlimit limit;
    int fd = -1;
    pid_t pid;

    (void)p;
    (void)rank;
    sw_poll_lock();
    must_be(!sw_fork_set_add(BEYOND), "a descriptor that cannot be kept", rank);
    must_be(sw_fork_set_add(BEYOND - 1), "the last number that can be kept", rank);
    must_be(sw_fork_set_add(-1), "no descriptor", rank);
    sw_fork_set_remove(BEYOND - 1);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > HIGH) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        fd = fcntl(0, F_DUPFD_CLOEXEC, HIGH);
    }
    must_be(sw_fork_set_add(fd), "a descriptor of a high number", rank);
    sw_poll_unlock();
    if (fd < 0) {
        fprintf(stderr, "# no descriptor %d here: ulimit -Hn\n", HIGH);
        return;
    }
    pid = fork_now();
    if (pid == 0)
        _exit(fcntl(fd, F_GETFD) >= 0);
    must_be(exit_code(pid) == 0, "a child has a descriptor of a high number", rank);
    sw_fork_set_close(fd);
}

int main(void)
{
    processes_run("forks at every step of a registration", RANKS, in_a_registration, NULL);
    processes_run("a fork while the service thread ends", 1, at_the_end_of_the_service, NULL);
    processes_run("a fork with a descriptor of a high number", 1, high_number, NULL);
    return tap_done();
}
