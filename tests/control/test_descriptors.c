/* Descriptors in messages: at most a quarter of those that the process may have, whatever
 * communicator they are of, whether a rank has taken them or not, and until they are closed. The
 * test is the other process of each communicator. */
#include <fcntl.h>
#include <sys/resource.h>

#include "hostile.h"
#include "peer.h"

enum { RANKS = 2, HERE = 0, OTHER = 1, ALL = 200, QUARTER = ALL / 4, MORE = QUARTER + 10 };

struct comm {
    struct sw_group *group;
    int other; /* the other process's end of the peer socket */
};

static void comm_open(struct comm *c)
{
    c->group = peer_group(RANKS, OTHER, &c->other);
}

static void comm_close(struct comm *c)
{
    sw_group_leave(c->group, HERE);
    close(c->other);
}

/* Sends messages with a descriptor each. They are in the mailbox when this returns. Returns 0 or an
 * errno. */
static int send_some(struct comm *c, int count)
{
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    union sw_frame frame;
    int error = 0;

    memset(&frame, 0, sizeof frame.message);
    frame.message.from = OTHER;
    frame.message.to = HERE;
    sw_frame_seal(&frame, SW_FRAME_MESSAGE);
    while (count-- > 0 && error == 0)
        error = fd < 0 ? EMFILE : sw_frame_send(c->other, &frame, fd, sw_now_ms() + 5000);
    close(fd);
    sw_mailbox_collect(c->group, sw_now_ms() + 5000);
    return error;
}

static void fill(struct comm *c, int count)
{
    /* Those before are closed first: the process may have few. */
    if (!sw_closer_wait(5) || send_some(c, count) != 0)
        abort();
}

/* Takes all messages and adds them to the list. Returns how many have a descriptor. */
static int take(struct comm *c, struct sw_message **list)
{
    struct sw_message *message;
    int with = 0;

    while ((message = sw_mailbox_take(c->group, HERE)) != NULL) {
        with += message->fd >= 0;
        message->next = *list;
        *list = message;
    }
    return with;
}

/* Frees messages until `with` descriptors are closed; -1: all. */
static void free_some(struct sw_message **list, int with)
{
    while (*list != NULL && with != 0) {
        struct sw_message *message = *list;

        *list = message->next;
        with -= message->fd >= 0;
        sw_message_free(message);
    }
}

static int fill_and_take(struct comm *c, struct sw_message **list)
{
    fill(c, MORE);
    return take(c, list);
}

/* A forked child begins with none. */
static int child_holds(void)
{
    const pid_t child = fork();
    struct sw_message *list = NULL;
    struct comm c;
    int status = -1;

    if (child == 0) {
        processes_child_threads();
        alarm(PROCESSES_LIMIT_S);
        comm_open(&c);
        _exit(fill_and_take(&c, &list));
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_two(void)
{
    struct sw_message *list = NULL, *message;
    struct comm a, b;

    comm_open(&a);
    comm_open(&b);
    fill(&a, QUARTER - 10);
    fill(&b, QUARTER - 10);
    TAP_EQ("messages of two communicators", take(&a, &list) + take(&b, &list), QUARTER);
    TAP_EQ("those that a rank has taken count", fill_and_take(&b, &list), 0);
    TAP_EQ("a forked child has its own", child_holds(), QUARTER);
    free_some(&list, 20);
    TAP_EQ("what is freed may be used again", fill_and_take(&a, &list), 20);
    free_some(&list, 1);
    fill(&a, 1);
    sw_mailbox_drop(a.group, HERE);
    TAP_EQ("and what a rank has not taken that leaves", fill_and_take(&b, &list), 1);
    for (message = list; message->fd < 0; message = message->next)
        ;
    sw_message_close_fd(message);
    TAP_EQ("and what is closed before its message", fill_and_take(&b, &list), 1);
    free_some(&list, -1);
    fill(&a, MORE);
    comm_close(&a);
    TAP_EQ("and what a communicator held that ends", fill_and_take(&b, &list), QUARTER);
    free_some(&list, -1);
    comm_close(&b);
}

enum { THREADS = 3, TIMES = 300 };

static void *come_and_go(void *arg)
{
    struct sw_message *list = NULL;
    struct comm *c = arg;
    int i;

    for (i = 0; i < TIMES; i++) {
        fill(c, 3);
        (void)take(c, &list);
        free_some(&list, -1);
    }
    return NULL;
}

/* Several threads free messages, and others arrive: each is counted once. */
static void test_threads(void)
{
    struct sw_message *list = NULL;
    struct comm comms[THREADS];
    pthread_t threads[THREADS];
    int i;

    for (i = 0; i < THREADS; i++) {
        comm_open(&comms[i]);
        if (pthread_create(&threads[i], NULL, come_and_go, &comms[i]) != 0)
            abort();
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    TAP_EQ("after many have come and gone", fill_and_take(&comms[0], &list), QUARTER);
    free_some(&list, -1);
    for (i = 0; i < THREADS; i++)
        comm_close(&comms[i]);
}

/* The closer thread is held up. What it has got and not closed counts, and if messages still come
 * without end, the communicator ends. */
static void test_slow_close(void)
{
    enum { FEW = QUARTER - 5, ROUNDS = 10, SLOW_S = 60 };
    const int before = sw_closer_wait(5) ? harness_count_entries("/proc/self/fd") : -1;
    symwin_status status = SYMWIN_OK;
    struct sw_message *list = NULL;
    int where, with[ROUNDS], most = 0, culprit = -1, i;
    struct comm c;

    comm_open(&c);
    hostile_occupy_closer(SLOW_S, &where);
    for (i = 0; i < ROUNDS && !sw_exchange_outcome(c.group->exchange, &status, &culprit); i++) {
        int fds;

        (void)send_some(&c, FEW); /* an error: the communicator has ended */
        with[i] = take(&c, &list);
        free_some(&list, -1);
        fds = harness_count_entries("/proc/self/fd") - before;
        most = fds > most ? fds : most;
    }
    tap_ok(i > 1 && with[0] == FEW && with[1] == QUARTER - FEW - 1,
           "descriptors that are not closed yet count");
    tap_ok(status == SYMWIN_NO_MEMORY && culprit == HERE, "too many end the communicator: %s",
           symwin_status_name(status));
    tap_ok(most < 3 * QUARTER, "%d descriptors of %d were open", most, ALL);
    close(where);
    comm_close(&c);
}

int main(void)
{
    const struct rlimit limit = {ALL, ALL};
    struct harness_leaks before;

    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        abort();
    harness_start();
    before = harness_leaks_now();
    test_two();
    test_threads();
    test_slow_close();
    harness_no_leaks("messages", &before);
    return tap_done();
}
