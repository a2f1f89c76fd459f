/* False creators of ids, and the rank that connects to one. */
#ifndef SYMWIN_TESTS_FALSE_CREATOR_H
#define SYMWIN_TESTS_FALSE_CREATOR_H

#include "hostile.h"
#include "processes.h"

enum { TIMEOUT_MS = 300, GRACE_MS = 1700, RANK = 0, CREATOR = 1 };

struct fake {
    const char *name;
    int (*open)(struct sw_id *id); /* makes folder and socket; returns the socket, -1: none */
    void (*answer)(int fd, union sw_frame *hello); /* NULL: never accepts */
    symwin_status status;
    const char *words;
    int as_root;
    int least; /* connections that the rank must make */
    int old;   /* the rank's system cannot refuse descriptors */
};

HARNESS_UNUSED void folder_make(struct sw_id *id)
{
    snprintf(id->folder, sizeof id->folder, "/tmp/symwin-fake-XXXXXX");
    if (mkdtemp(id->folder) == NULL) {
        perror("mkdtemp");
        exit(1);
    }
}

HARNESS_UNUSED int socket_open(const char *folder, int backlog)
{
    const struct sockaddr_un address = hostile_address(folder);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
        listen(fd, backlog) == 0)
        return fd;
    perror("socket_open");
    exit(1);
}

HARNESS_UNUSED int open_well(struct sw_id *id)
{
    folder_make(id);
    return socket_open(id->folder, 8);
}

HARNESS_UNUSED void folder_remove(const struct sw_id *id)
{
    char real[sizeof id->folder + 8];

    snprintf(real, sizeof real, "%s-real", id->folder);
    if (rename(real, id->folder) != 0 && unlink(id->folder) == 0)
        rename(real, id->folder);
    unlink(hostile_address(id->folder).sun_path);
    rmdir(id->folder);
}

HARNESS_UNUSED union sw_frame challenge(void)
{
    union sw_frame frame;

    memset(&frame, 0x42, sizeof frame);
    sw_frame_seal(&frame, SW_FRAME_CHALLENGE);
    return frame;
}

HARNESS_UNUSED void false_creator(struct processes *p, int rank)
{
    const struct fake *fake = p->arg;
    union sw_frame hello;
    struct sw_id id;
    int connections = 0;
    int listener, fd;

    (void)rank;
    memset(&id, 0, sizeof id);
    memcpy(id.magic, "symwin02", sizeof id.magic);
    memset(id.secret, 0x33, sizeof id.secret);
    listener = fake->open(&id);
    memcpy(&p->id, &id, sizeof id);
    p->id_made = 1;
    while (fake->answer != NULL && p->rank[RANK].status < 0 &&
           (fake->least == 0 || connections < 3 * fake->least)) {
        struct pollfd come = {.fd = listener, .events = POLLIN};

        if (poll(&come, 1, 1) <= 0)
            continue;
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (hostile_answer(fd, &hello) == 0)
            fake->answer(fd, &hello);
        connections++;
        while (p->rank[RANK].status < 0 && fake->least == 0)
            usleep(200);
        close(fd);
    }
    if (connections < fake->least) {
        fprintf(stderr, "the rank came only %d times\n", connections);
        tap_failures++;
    }
    while (p->rank[RANK].status < 0)
        usleep(200);
    folder_remove(&id);
    _exit(tap_failures > 0); /* this also closes the sockets of open_full() */
}

HARNESS_UNUSED void rank_at_a_false_creator(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = TIMEOUT_MS};
    symwin_comm *comm = NULL;

    hostile_wait_for_id(p);
    p->rank[rank].number = processes_now_us();
    processes_note(p, rank, symwin_comm_create(&p->id, 2, 1, 0, &options, &comm));
}

HARNESS_UNUSED int has_words(const char *text, const char *words)
{
    sw_error_restore(text);
    return host_error_has(words);
}

/* `connect` is rank_at_a_false_creator(), or calls it. */
HARNESS_UNUSED void run_fake(const struct fake *fake, void (*connect)(struct processes *, int))
{
    struct processes *p;
    int rank_ended, creator_ended;
    int64_t ms;

    if (fake->as_root && geteuid() != 0) {
        tap_ok(1, "%s # SKIP only root can be another user", fake->name);
        return;
    }
    p = processes_new(2, (void *)(uintptr_t)fake);
    processes_fork(p, RANK, connect);
    processes_fork(p, CREATOR, false_creator);
    rank_ended = processes_wait(p, RANK);
    if (p->rank[RANK].status < 0)
        p->rank[RANK].status = SYMWIN_OK; /* it hung: lets the creator end */
    creator_ended = processes_wait(p, CREATOR);
    ms = (p->rank[RANK].at_us - p->rank[RANK].number) / 1000;
    tap_ok(rank_ended == 0 && p->rank[RANK].status == (int)fake->status &&
               has_words(p->rank[RANK].text, fake->words),
           "%s: %s: %s (wait status 0x%x)", fake->name, symwin_status_name(p->rank[RANK].status),
           p->rank[RANK].text, (unsigned)rank_ended);
    tap_ok(creator_ended == 0 && ms < TIMEOUT_MS + GRACE_MS, "%s: in time (%lld ms)", fake->name,
           (long long)ms);
    processes_free(p);
}

#endif
