/* More unauthenticated connections than descriptors while a job of three starts: the creator goes
 * on taking its ranks, and its program finds descriptors free. */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "attacked.h"

enum { OWN = 8 }; /* descriptors that the job needs to start */

struct limit {
    const char *name;
    int says_hello;
    long number; /* of descriptors that the creator's process may have */
};

static atomic_int is_over;
static pthread_t crowd;
static struct {
    struct sockaddr_in to;
    union sw_frame hello;
    int says_hello;
} crowd_of;

/* Holds MOST connections over TCP, and replaces each that is dropped. */
static void *keep_up(void *arg)
{
    const struct timespec moment = {.tv_nsec = 500000};
    int fds[MOST], i;
    char word;

    (void)arg;
    for (i = 0; i < MOST; i++)
        fds[i] = -1;
    while (!is_over) {
        for (i = 0; i < MOST; i++) {
            const ssize_t got = fds[i] < 0 ? 0 : recv(fds[i], &word, 1, MSG_DONTWAIT);

            if (got < 0 && (errno == EAGAIN || errno == ENOTCONN))
                continue;
            if (fds[i] >= 0)
                close(fds[i]);
            fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            (void)connect(fds[i], (struct sockaddr *)&crowd_of.to, sizeof crowd_of.to);
            if (crowd_of.says_hello)
                (void)send(fds[i], &crowd_of.hello, crowd_of.hello.header.bytes, MSG_NOSIGNAL);
        }
        nanosleep(&moment, NULL);
    }
    for (i = 0; i < MOST; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return NULL;
}

static int begin_crowd(const symwin_unique_id *id, int says_hello)
{
    struct sw_id made;

    memcpy(&made, id, sizeof made);
    crowd_of.to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = made.port};
    memcpy(&crowd_of.to.sin_addr, made.address, sizeof crowd_of.to.sin_addr);
    crowd_of.hello = hostile_hello(id);
    crowd_of.says_hello = says_hello;
    if (pthread_create(&crowd, NULL, keep_up, NULL) != 0)
        return 0;
    usleep(200000);
    return 1;
}

/* rank[ATTACKER].step: 1 once the crowd is there. */
static void attacker(struct processes *p, int rank)
{
    int i;

    hostile_wait_for_id(p);
    tap_failures += !begin_crowd(&p->id, ((const struct limit *)p->arg)->says_hello);
    p->rank[rank].step = 1;
    for (i = 0; i < RANKS; i++)
        while (p->rank[i].status < 0)
            usleep(200);
    is_over = 1;
    pthread_join(crowd, NULL);
}

/* Limits the process to `count` more descriptors. */
static void leave(long count)
{
    const rlim_t most = (rlim_t)harness_count_entries("/proc/self/fd") - 1 + (rlim_t)count;
    const struct rlimit limit = {most, most};

    must_be(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit", 0);
}

/* The creator's program opens files of its own during the attack: a quarter of the descriptors that
 * the library leaves. */
static void *open_files(void *arg)
{
    struct processes *p = arg;
    const struct limit *limit = p->arg;
    const long wanted = (limit->number - OWN) / 4;
    int fds[MOST];
    long i, open_now = 0;

    while (p->rank[ATTACKER].step == 0)
        usleep(200);
    for (i = 0; i < wanted; i++) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        open_now += fds[i] >= 0;
    }
    for (i = 0; i < wanted; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    must_be(open_now == wanted, "strangers leave descriptors free", 0);
    p->rank[0].step = 1;
    return NULL;
}

static void job(struct processes *p, int rank)
{
    const struct limit *limit = p->arg;
    pthread_t program;

    processes_on_host("aab", rank); /* the last rank has to get through the crowd */
    harness_device_count(); /* loads the driver first: it is not part of the measured time */
    if (rank == 0) {
        leave(limit->number);
        processes_child_threads();
        if (pthread_create(&program, NULL, open_files, p) != 0)
            abort();
    }
    while (rank == LATE && p->rank[0].step == 0)
        usleep(200);
    p->rank[rank].number = processes_now_us();
    host_must(hostile_job(p, rank), "the job");
    if (rank == 0)
        pthread_join(program, NULL);
}

int main(void)
{
    static const struct limit limits[] = {
        {"200 connections, and 8 descriptors", 0, OWN},
        {"200 connections, and 24 descriptors", 0, 24},
        {"200 connections, and 40 descriptors", 0, 40},
        {"200 connections, and 130 descriptors", 0, 130},
        {"200 HELLOs, and 24 descriptors", 1, 24},
        {"200 HELLOs, and 130 descriptors", 1, 130},
    };
    size_t i;

    hostile_close_inherited();
    for (i = 0; i < sizeof limits / sizeof limits[0]; i++)
        hostile_run(limits[i].name, &limits[i], job, attacker);
    return tap_done();
}
