/* The thread that closes unwanted descriptors: nobody waits for it, however many there are. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "hostile.h"

enum { SLOW_S = 10, SOON_MS = 1000 };

/* Whether the thread that closes descriptors blocks the program's signals. -1: there is no such
 * thread. */
static int closer_is_deaf(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int deaf = -1;

    while (tasks != NULL && (task = readdir(tasks)) != NULL) {
        unsigned long long blocked = 0;
        char path[320], line[128];
        int is_closer = 0;
        FILE *status;

        snprintf(path, sizeof path, "/proc/%s/status", task->d_name); /* see tap.h */
        status = fopen(path, "re");
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            is_closer |= strstr(line, "symwin-closer") != NULL;
            (void)sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (status != NULL)
            fclose(status);
        if (is_closer)
            deaf = (blocked >> (SIGTERM - 1) & 1) != 0 && (blocked >> (SIGUSR1 - 1) & 1) != 0;
    }
    if (tasks != NULL)
        closedir(tasks);
    return deaf;
}

static void test_thread(void)
{
    int where, status = -1;
    const int fd = hostile_occupy_closer(SLOW_S, &where);
    pid_t child;

    TAP_EQ("signals are not for the thread that closes", closer_is_deaf(), 1);
    close(where);
    tap_ok(sw_closer_wait(SLOW_S), "it ends");
    if (dup2(STDERR_FILENO, fd) != fd)
        abort();
    child = fork();
    if (child == 0)
        _exit(fcntl(fd, F_GETFD) < 0);
    waitpid(child, &status, 0);
    TAP_EQ("a number that is the program's again is there in a forked child", status, 0);
    close(fd);
}

/* A forked child has no file of those that wait. A socket it has, because a close might take long
 * in fork(). It closes its own, and not what has got a number of the parent's in the meantime. */
static int child_closes(const int *fds, int count, int socket)
{
    const pid_t child = fork();
    int status = -1, where, i, left = 0, fd;

    if (child == 0) {
        processes_child_threads();
        alarm(PROCESSES_LIMIT_S);
        for (i = 0; i < count; i++)
            left += fcntl(fds[i], F_GETFD) >= 0;
        if (left > 0 || !sw_closer_wait(0) || dup2(STDERR_FILENO, fds[count / 2]) < 0)
            _exit(1);
        if (fcntl(socket, F_GETFD) != FD_CLOEXEC)
            _exit(4);
        fd = hostile_lingering(SLOW_S, &where);
        sw_closer_close(fd);
        if (!sw_closer_wait(SLOW_S / 2) || fcntl(fd, F_GETFD) >= 0)
            _exit(2);
        _exit(fcntl(fds[count / 2], F_GETFD) < 0 || fcntl(socket, F_GETFD) < 0 ? 3 : 0);
    }
    waitpid(child, &status, 0);
    return status;
}

/* The thread is busy, and there are more than it could ever keep in a list. */
static void test_many(void)
{
    enum { MANY = 1500 };
    const int before = harness_count_entries("/proc/self/fd");
    static int fds[MANY + 1];
    struct rlimit room;
    int64_t begin;
    int where, last, i;

    if (getrlimit(RLIMIT_NOFILE, &room) != 0)
        abort();
    room.rlim_cur = room.rlim_max;
    if (room.rlim_max < 2 * MANY || setrlimit(RLIMIT_NOFILE, &room) != 0) {
        printf("# skipped: this process may not have %d descriptors\n", 2 * MANY);
        return;
    }
    hostile_occupy_closer(SLOW_S, &where);
    for (i = 0; i < MANY; i++)
        if ((fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
            abort();
    fds[MANY] = hostile_slow(SLOW_S, &last);
    begin = sw_now_ms();
    for (i = 0; i <= MANY; i++)
        sw_closer_close(fds[i]);
    tap_ok(sw_now_ms() - begin < SOON_MS, "%d descriptors are handed over in %lld ms", i,
           (long long)(sw_now_ms() - begin));
    TAP_EQ("a forked child has no files of them, leaves sockets, and closes others",
           child_closes(fds, MANY, fds[MANY]), 0);
    close(where);
    close(last);
    tap_ok(sw_closer_wait(SLOW_S), "all are closed");
    TAP_EQ("none is left", harness_count_entries("/proc/self/fd"), before);
}

/* A socket that is to wait for its data. */
static void test_lingering(void)
{
    int where;

    sw_closer_close(hostile_lingering(SLOW_S, &where));
    tap_ok(sw_closer_wait(1), "a lingering socket is closed within a second");
    close(where);
}

/* A local socket in which a descriptor lies, behind empty messages. The other end was closed with a
 * message unread. */
static int inside(int type, int fd)
{
    int ends[2], sent, i;
    const int yes = 1;

    sent = socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0;
    setsockopt(ends[1], SOL_SOCKET, 76, &yes, sizeof yes); /* SO_PASSPIDFD: one of each sender */
    for (i = 0; i < 4 && sent; i++)
        sent = send(ends[0], "", 0, 0) == 0;
    if (!sent || !hostile_send(ends[1], "unread", 6, 0) ||
        !hostile_send_with(ends[0], "slow", 4, fd))
        abort();
    close(fd);
    close(ends[0]);
    return ends[1];
}

/* A socket that listens. A descriptor lies in the connection that waits there. */
static int in_queue(int fd)
{
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof at.sun_family; /* the system chooses the name */

    if (bind(listener, (struct sockaddr *)&at, bytes) != 0 || listen(listener, 1) != 0)
        abort();
    bytes = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &bytes);
    if (connect(client, (struct sockaddr *)&at, bytes) != 0 ||
        !hostile_send_with(client, "slow", 4, fd))
        abort();
    close(fd);
    close(client);
    return listener;
}

/* A socket that is to wait for its data lies in another one. */
static void test_inside(void)
{
    const int before = harness_count_entries("/proc/self/fd");
    int where, fd;
    int64_t begin;

    fd = hostile_lingering(SLOW_S, &where);
    fd = in_queue(inside(SOCK_STREAM, inside(SOCK_DGRAM, inside(SOCK_SEQPACKET, fd))));
    sw_closer_close(fd);
    tap_ok(sw_closer_wait(1), "one that lies in another is closed within a second");
    close(where);
    fd = inside(SOCK_SEQPACKET, hostile_lingering(SLOW_S, &where));
    begin = sw_now_ms();
    sw_socket_empty(fd);
    close(fd);
    tap_ok(sw_now_ms() - begin < SOON_MS, "one that lies in a socket of this process, in %lld ms",
           (long long)(sw_now_ms() - begin));
    tap_ok(sw_closer_wait(1), "is closed as well");
    close(where);
    TAP_EQ("nothing of them is left", harness_count_entries("/proc/self/fd"), before);
}

int main(void)
{
    test_thread();
    test_many();
    test_lingering();
    test_inside();
    return tap_done();
}
