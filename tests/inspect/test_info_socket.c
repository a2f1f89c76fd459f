/* SYMWIN_INFO=1: a process reports its objects to every client of the same user, and to nobody
 * else. A client that does not read delays nobody. No thread, descriptor or socket is left by the
 * process, its forks, or killed processes. */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "child.h"
#include "harness.h"

enum {
    NOBODY = 65534,
    READERS = 8,
    MANY = 6000,
    TEXT_BYTES = 4 << 20,
    FAR = 1 << 30 /* no process here has this pid */
};

static const char *const listening[] = {"SYMWIN_INFO=1", NULL};

static char place[64]; /* TMPDIR of all processes, and the library's folder in it */
static char folder[128];

/* LeakSanitizer calls it by this name. In a forked child, memory that only the parent's threads
 * point to is no leak. */
static int is_child;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

static struct sockaddr_un address_of(long pid)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/info-%ld", folder, pid);
    return address;
}

static bool exists(long pid)
{
    const struct sockaddr_un address = address_of(pid);

    return access(address.sun_path, F_OK) == 0;
}

/* -1: no process listens. */
static int call_at(const struct sockaddr_un *address)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return fd;
    close(fd);
    return -1;
}

static int call_up(long pid)
{
    const struct sockaddr_un address = address_of(pid);

    return call_at(&address);
}

/* Reads until the end and terminates `text`. -1: the connection was reset. */
static ssize_t read_all(int fd, char *text)
{
    size_t bytes = 0;
    ssize_t got;

    while ((got = read(fd, text + bytes, TEXT_BYTES - 1 - bytes)) > 0)
        bytes += (size_t)got;
    text[bytes] = '\0';
    close(fd);
    return got < 0 ? -1 : (ssize_t)bytes;
}

static bool is_whole(const char *text)
{
    const char *end = strstr(text, "\nend lines=");
    const char *p;
    int lines = 0;

    for (p = text; *p != '\0'; p++)
        lines += *p == '\n';
    return end != NULL && atoi(end + 11) == lines - 1;
}

/* Connects, and returns whether the whole answer came. */
static bool answers(long pid, char *text)
{
    const int fd = call_up(pid);

    return fd >= 0 && read_all(fd, text) > 0 && is_whole(text);
}

/* Number of descriptors of a listener's kinds: sockets and eventfds. */
static int count_own(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char link[300], what[64] = "";

        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        if (readlink(link, what, sizeof what - 1) > 0)
            count += strncmp(what, "socket:", 7) == 0 || strstr(what, "[eventfd]") != NULL;
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

/* Waits, since the thread may need a moment to close its descriptors. */
static bool owns(int want)
{
    int turns = 3000;

    while (count_own() != want && turns-- > 0)
        usleep(1000);
    return count_own() == want;
}

static int wait_for(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* ---- the test's processes -------------------------------------------------------------------- */

/* Listens until its input ends or it is killed. Has a window, for tests/inspect/test_info.t. */
static int hold(void)
{
    const symwin_comm_options options = {.size = sizeof options};
    symwin_window *window;
    symwin_unique_id id;
    symwin_comm *comm;
    void *ptr;
    char c;

    host_must(symwin_mem_alloc(0, 100 << 10, 0, &ptr), "symwin_mem_alloc");
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, &options, &comm), "symwin_comm_create");
    host_must(symwin_window_register(comm, ptr, 100 << 10, 0, &window), "symwin_window_register");
    printf("ready\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    return 0;
}

/* Starts another process, which listens or should not; `input` gets its input. */
static struct child hold_start(const char *const *settings, int *input)
{
    struct child c;
    char line[64] = "";
    int ends[2], saved;

    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(1);
    saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    dup2(ends[0], STDIN_FILENO);
    c = child_start("hold", settings, -1);
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(ends[0]);
    *input = ends[1];
    if (fgets(line, sizeof line, c.lines) == NULL || strcmp(line, "ready\n") != 0)
        exit(1);
    return c;
}

static int hold_finish(struct child *c, int input)
{
    close(input);
    fclose(c->lines);
    return wait_for(c->pid);
}

/* ---- what is reported ------------------------------------------------------------------------ */

static void begins(char *text)
{
    struct sockaddr_un own = address_of(getpid());
    struct stat file;
    char *dumped;
    int fd;

    tap_ok(!exists(getpid()) && harness_threads("symwin-info") == 0,
           "nobody listens before the first call");
    harness_start();
    tap_ok(lstat(own.sun_path, &file) == 0 && S_ISSOCK(file.st_mode),
           "after it, the socket is in the user's folder");
    tap_ok(lstat(folder, &file) == 0 && (file.st_mode & 0777) == 0700, "which is private");
    host_must(symwin_mem_free(host_alloc(0, 100)), "alloc");
    tap_ok(answers(getpid(), text), "who connects gets a whole dump");
    TAP_EQ("of one thread", harness_threads("symwin-info"), 1);
    dumped = calloc(1, TEXT_BYTES);
    fd = memfd_create("dump", MFD_CLOEXEC);
    host_must(symwin_dump(fd), "symwin_dump");
    if (dumped == NULL || pread(fd, dumped, TEXT_BYTES - 1, 0) <= 0)
        exit(1);
    close(fd);
    tap_ok(strcmp(text, dumped) == 0, "the one that symwin_dump() writes");
    free(dumped);
    tap_ok(owns(2), "the socket and one more descriptor are all it takes");
}

/* More clients than are allowed, which do not read an answer larger than a socket's buffer. */
static void stuck(char *text)
{
    const struct harness_leaks before = harness_leaks_now();
    int stuck[READERS + 3], i, late;
    void **ptrs = calloc(MANY, sizeof *ptrs);
    struct pollfd ready;
    char c;

    for (i = 0; ptrs != NULL && i < MANY; i++)
        ptrs[i] = host_alloc(0, 100);
    for (i = 0; i < READERS - 1; i++)
        stuck[i] = call_up(getpid());
    tap_ok(answers(getpid(), text) && strlen(text) > (size_t)50 * MANY,
           "while %d do not read, another gets all", READERS - 1);
    for (; i < READERS; i++)
        stuck[i] = call_up(getpid());
    usleep(200000);
    for (; i < READERS + 3; i++)
        stuck[i] = call_up(getpid());
    ready = (struct pollfd){.fd = stuck[READERS], .events = POLLIN};
    tap_ok(poll(&ready, 1, 500) == 0, "one more than there may be waits");
    for (i = 0; i < 100; i++)
        host_must(symwin_mem_free(host_alloc(1, 5000)), "alloc");
    tap_ok(1, "memory comes and goes meanwhile");
    for (late = 0; late < 100 && poll(&ready, 1, 100) == 0; late++)
        ;
    tap_ok(late < 100 && read(stuck[READERS], &c, 1) == 1,
           "who does not read is given up: the next one is served");
    for (i = 0; i < READERS + 3; i++)
        close(stuck[i]);
    tap_ok(answers(getpid(), text), "and who comes then");
    tap_ok(owns(2), "their descriptors are closed");
    for (i = 0; ptrs != NULL && i < MANY; i++)
        host_must(symwin_mem_free(ptrs[i]), "free");
    free(ptrs);
    harness_no_leaks("readers that are stuck", &before);
}

/* ---- who gets an answer ---------------------------------------------------------------------- */

/* 0 if another user gets no answer. The folders above may be closed to that user. */
static int is_refused(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[16];
    int fd, out;

    snprintf(address.sun_path, sizeof address.sun_path, "info-%ld", (long)getppid());
    if (chdir(folder) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        return 2;
    fd = call_at(&address);
    out = fd < 0 ? 3 : read(fd, text, sizeof text) == 0 ? 0 : 1;
    close(fd);
    return out;
}

static void strangers(char *text)
{
    const struct sockaddr_un own = address_of(getpid());
    pid_t pid;
    int status;

    if (geteuid() != 0) {
        tap_ok(1, "another user gets nothing # SKIP only root can be another user");
        return;
    }
    /* Removes the permissions that otherwise keep other users out. */
    if (chmod(folder, 0711) != 0 || chmod(own.sun_path, 0777) != 0)
        exit(1);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        is_child = 1;
        _exit(is_refused());
    }
    status = wait_for(pid);
    chmod(folder, 0700);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "another user gets nothing, though the folder be open (wait status 0x%x)",
           (unsigned)status);
    tap_ok(answers(getpid(), text), "and this one goes on being told");
}

/* ---- forks ----------------------------------------------------------------------------------- */

static void forks(char *text)
{
    const int reader = call_up(getpid());
    char c;
    pid_t pid;
    int status;

    if (read(reader, &c, 1) != 1)
        exit(1);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        is_child = 1;
        close(reader);
        if (count_own() != 0)
            _exit(1);
        exit(0); /* with all exit handlers */
    }
    status = wait_for(pid);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "a forked child has no socket of its parent, and ends well (wait status 0x%x)",
           (unsigned)status);
    tap_ok(exists(getpid()) && answers(getpid(), text),
           "whose own is there when the child has ended");
    close(reader);
}

/* The child of a process that has not used symwin yet gets its own socket. */
static int fork_first(void)
{
    static char text[TEXT_BYTES];
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid != 0)
        return wait_for(pid);
    harness_start();
    tap_ok(answers(getpid(), text), "a child that was forked first listens itself");
    exit(tap_done());
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void ends(char *text)
{
    int input, status;
    struct child c = hold_start(listening, &input);
    const int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_un far = address_of(FAR);
    const pid_t first = c.pid;

    tap_ok(answers(first, text) && strstr(text, "\nwindow ") != NULL,
           "another process tells of its window");
    status = hold_finish(&c, input);
    tap_ok(status == 0 && !exists(first), "its socket is gone when it ends (wait status 0x%x)",
           (unsigned)status);
    c = hold_start(listening, &input);
    kill(c.pid, SIGKILL);
    hold_finish(&c, input);
    tap_ok(exists(c.pid) && call_up(c.pid) < 0,
           "one that was killed leaves its own, and nobody answers");
    status = c.pid;
    if (other < 0 || bind(other, (const struct sockaddr *)&far, sizeof far) != 0 ||
        listen(other, 1) != 0)
        exit(1);
    c = hold_start(listening, &input);
    answers(c.pid, text); /* it removes old sockets before it answers */
    tap_ok(!exists(status), "which the next process removes");
    tap_ok(exists(getpid()) && exists(c.pid), "and no other,");
    tap_ok(exists(FAR), "not even one of a process that is not seen here, where it answers");
    hold_finish(&c, input);
    close(other);
    unlink(far.sun_path);
}

/* A listening process has the pid of one that was killed. */
static int inherits(void)
{
    static char text[TEXT_BYTES];
    const struct sockaddr_un own = address_of(getpid());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    tap_ok(fd >= 0 && bind(fd, (const struct sockaddr *)&own, sizeof own) == 0 && close(fd) == 0 &&
               exists(getpid()) && call_up(getpid()) < 0,
           "a socket of this process's number is there, and nobody answers");
    harness_start();
    tap_ok(answers(getpid(), text), "it becomes this process's");
    return tap_done();
}

static bool is_silent(void)
{
    return !exists(getpid()) && harness_threads("symwin-info") == 0 && count_own() == 0;
}

/* SYMWIN_INFO is unset, or not 1. */
static int silent(void)
{
    harness_start();
    host_must(symwin_mem_free(host_alloc(0, 100)), "alloc");
    tap_ok(is_silent(), "nobody listens");
    return tap_done();
}

/* Loads the driver with `left` free descriptors. Exit status 0: it listens; 1: it does not listen,
 * and leaves nothing behind; 2: the driver does not load; 3: anything else. */
static int load_with(int left)
{
    static char text[TEXT_BYTES];
    const struct rlimit limit = {.rlim_cur = 40, .rlim_max = 40};
    int fds[40], count = 0, loads;

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 3;
    while (count < 40 && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        count++;
    while (left-- > 0)
        close(fds[--count]);
    loads = sw_driver_load() == SYMWIN_OK;
    while (count > 0)
        close(fds[--count]);
    if (!loads)
        return 2;
    if (symwin_last_error()[0] != '\0')
        return 3;
    return answers(getpid(), text) && owns(2) ? 0 : is_silent() ? 1 : 3;
}

static int short_of_descriptors(void)
{
    int seen[4] = {0};
    int left;

    for (left = 0; left < 8; left++) {
        pid_t pid;
        int status;

        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            is_child = 1;
            exit(load_with(left));
        }
        status = wait_for(pid);
        seen[WIFEXITED(status) && WEXITSTATUS(status) < 3 ? WEXITSTATUS(status) : 3]++;
    }
    tap_ok(seen[3] == 0, "with few descriptors it listens, or leaves nothing of trying");
    tap_ok(seen[0] > 0 && seen[1] > 0, "both were seen (%d and %d times)", seen[0], seen[1]);
    return tap_done();
}

/* A thread with memory and a stream of the library, which ends after dlclose(). */
static symwin_status (*alloc)(int, size_t, unsigned, void **), (*release)(void *);
static symwin_status (*await)(int, struct CUstream_st *);
static pthread_barrier_t turns;

static void *outlives(void *unused)
{
    void *ptr = NULL;

    if (alloc(0, 100, 0, &ptr) != SYMWIN_OK || release(ptr) != SYMWIN_OK ||
        await(0, CU_STREAM_PER_THREAD) != SYMWIN_OK)
        exit(1);
    pthread_barrier_wait(&turns);
    pthread_barrier_wait(&turns);
    return unused;
}

/* The shared library stays loaded: after dlclose() its threads may still run its code. */
static int stays(void)
{
    static char text[TEXT_BYTES];
    char library[4096] = "";
    const ssize_t length = readlink("/proc/self/exe", library, sizeof library - 64);
    void *handle, *ptr = NULL, *a, *f, *w;
    pthread_t thread;

    if (length <= 0)
        return 1;
    strcpy(strstr(library, "/tests/test_info_socket"), "/libsymwin.so");
    handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        tap_ok(0, "%s", dlerror());
        return tap_done();
    }
    a = dlsym(handle, "symwin_mem_alloc");
    f = dlsym(handle, "symwin_mem_free");
    memcpy(&alloc, &a, sizeof alloc);
    w = dlsym(handle, "symwin_stream_synchronize");
    memcpy(&release, &f, sizeof release);
    memcpy(&await, &w, sizeof await);
    tap_ok(alloc(0, 100, 0, &ptr) == SYMWIN_OK && release(ptr) == SYMWIN_OK &&
               answers(getpid(), text),
           "a library that was loaded by dlopen() listens");
    pthread_barrier_init(&turns, NULL, 2);
    if (pthread_create(&thread, NULL, outlives, NULL) != 0)
        return 1;
    pthread_barrier_wait(&turns);
    dlclose(handle);
    pthread_barrier_wait(&turns);
    pthread_join(thread, NULL);
    tap_ok(1, "a thread that had memory of it ends after dlclose()");
    tap_ok(dlopen(library, RTLD_NOW | RTLD_NOLOAD) == handle && answers(getpid(), text),
           "dlclose() leaves it loaded");
    return tap_done();
}

int main(int argc, char **argv)
{
    static const char *const none[] = {"SYMWIN_INFO=0", NULL};
    static const char *const parts[] = {"silent", "fork_first", "inherits", "short_of_descriptors",
                                        "stays"};
    static int (*const runs[])(void) = {silent, fork_first, inherits, short_of_descriptors, stays};
    const char *part = child_part(argc, argv);
    const char *base = getenv("TMPDIR");
    static char text[TEXT_BYTES];
    pid_t tester;
    size_t i;

    setenv("SYMWIN_DRIVER", "emu", 0);
    if (part != NULL && strcmp(part, "hold") == 0)
        return hold();
    snprintf(folder, sizeof folder, "%.60s/symwin-%lu", base != NULL ? base : "/tmp",
             (unsigned long)geteuid());
    for (i = 0; part != NULL && i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(part, parts[i]) == 0)
            return runs[i]();
    snprintf(place, sizeof place, "%.40s/l.XXXXXX", base != NULL ? base : "/tmp");
    if (part != NULL || mkdtemp(place) == NULL)
        return 1;
    snprintf(folder, sizeof folder, "%s/symwin-%lu", place, (unsigned long)geteuid());
    setenv("TMPDIR", place, 1);
    setenv("SYMWIN_INFO", "1", 1);
    /* The tests run in a child process, whose end must leave the folder empty. */
    tester = fork();
    if (tester != 0) {
        is_child = 1;
        i = (size_t)wait_for(tester);
        if (rmdir(folder) != 0 || rmdir(place) != 0)
            perror(folder);
        return i != 0 || access(place, F_OK) == 0;
    }
    begins(text);
    stuck(text);
    strangers(text);
    forks(text);
    ends(text);
    child_run("silent", none);
    for (i = 1; i < sizeof parts / sizeof parts[0]; i++)
        child_run(parts[i], listening);
    call_up(getpid()); /* a client that does not read while the process ends */
    return tap_done();
}
