/* Who is at the other end: other users that connect to an id's creator, and processes that a rank
 * takes for the creator, by the id's folder or at its port.
 *
 * A rank checks the folder, then the user who listens in it, then asks for proof of the secret:
 * what it is told then is in test_false_creator.c. It gives up when its timeout expires. */
#include "false_creator.h"

enum { NOBODY = 65534 };

/* ---- who listens in the folder --------------------------------------------------------------- */

static int open_to_group(struct sw_id *id)
{
    const int fd = open_well(id);

    chmod(id->folder, 0750);
    return fd;
}

static int open_to_all(struct sw_id *id)
{
    const int fd = open_well(id);

    chmod(id->folder, 0777);
    return fd;
}

static int open_in_anothers(struct sw_id *id)
{
    const int fd = open_well(id);

    if (chown(id->folder, NOBODY, NOBODY) != 0)
        perror("chown");
    return fd;
}

/* The folder is ours, but another user listens in it. */
static int open_by_another(struct sw_id *id)
{
    int fd;

    folder_make(id);
    chmod(id->folder, 0777);
    if (seteuid(NOBODY) != 0)
        perror("seteuid");
    fd = socket_open(id->folder, 8);
    if (seteuid(0) != 0)
        perror("seteuid");
    chmod(id->folder, 0700);
    return fd;
}

static int open_link(struct sw_id *id)
{
    char real[sizeof id->folder + 8];
    const int fd = open_well(id);

    snprintf(real, sizeof real, "%s-real", id->folder);
    if (rename(id->folder, real) != 0 || symlink(real, id->folder) != 0)
        perror("symlink");
    return fd;
}

static int open_nothing(struct sw_id *id)
{
    folder_make(id);
    rmdir(id->folder);
    return -1;
}

static int open_folder(struct sw_id *id)
{
    folder_make(id);
    return -1;
}

/* A socket that nobody serves, with a full listen queue. */
static int open_full(struct sw_id *id)
{
    int fd;

    folder_make(id);
    fd = socket_open(id->folder, 0);
    hostile_connect((const symwin_unique_id *)(const void *)id);
    return fd;
}

static void answer_nothing(int fd, union sw_frame *hello)
{
    (void)fd;
    (void)hello;
}

static void answer_by_leaving(int fd, union sw_frame *hello)
{
    (void)hello;
    shutdown(fd, SHUT_RDWR);
}

static const struct fake fakes[] = {
    {"no folder", open_nothing, NULL, SYMWIN_PEER_LOST, "has ended", 0, 0, 0},
    {"no socket in the folder", open_folder, NULL, SYMWIN_PEER_LOST, "does not answer", 0, 0, 0},
    {"a folder that the group can enter", open_to_group, answer_nothing, SYMWIN_DENIED,
     "private folder", 0, 0, 0},
    {"a folder that all can enter", open_to_all, answer_nothing, SYMWIN_DENIED, "private folder", 0,
     0, 0},
    {"a link to a folder", open_link, answer_nothing, SYMWIN_DENIED, "private folder", 0, 0, 0},
    {"a folder of another user", open_in_anothers, answer_nothing, SYMWIN_DENIED,
     "private folder|one user", 1, 0, 0},
    {"a socket of another user", open_by_another, answer_nothing, SYMWIN_DENIED,
     "belongs to another user", 1, 0, 0},
    {"a creator that is stopped, its queue full", open_full, NULL, SYMWIN_TIMEOUT,
     "did not answer in time", 0, 0, 0},
    {"a creator that is silent", open_well, answer_nothing, SYMWIN_TIMEOUT,
     "did not answer in time", 0, 0, 0},
    {"a creator that drops it again and again", open_well, answer_by_leaving, SYMWIN_TIMEOUT,
     "did not answer in time", 0, 5, 0},
};

/* ---- another program at the creator's port --------------------------------------------------- */

enum { IMPOSTOR = 2, IMPOSTOR_MS = 1800 };

/* Two hosts; rank 1 looks for rank 0 over TCP. */
static void launch(const char *port, int rank)
{
    setenv("SYMWIN_RANK", rank == 0 ? "0" : "1", 1);
    setenv("SYMWIN_NRANKS", "2", 1);
    setenv("SYMWIN_LOCAL_NRANKS", "1", 1);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    setenv("SYMWIN_PORT", port, 1);
    setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "20000", 1);
    processes_on_host("ab", rank);
}

/* A REFUSAL of the impostor, with terminal control codes in its text. */
static size_t say_refusal(union sw_frame *frame)
{
    memset(frame, 0, sizeof frame->refusal);
    frame->refusal.status = SYMWIN_NO_MEMORY;
    frame->refusal.rank = 1;
    strcpy(frame->refusal.text, "\033]0;owned\007 by rank 7");
    sw_frame_seal(frame, SW_FRAME_REFUSAL);
    return frame->header.bytes;
}

static size_t say_nothing(union sw_frame *frame)
{
    (void)frame;
    return 0;
}

static size_t say_what_is_no_frame(union sw_frame *frame)
{
    return (size_t)sprintf((char *)frame, "HTTP/1.0 400 owned\r\n\r\n");
}

static size_t say_challenge(union sw_frame *frame)
{
    *frame = challenge();
    return frame->header.bytes;
}

static size_t say_table(union sw_frame *frame)
{
    memset(frame, 0, sizeof frame->table);
    frame->table.nranks = frame->table.processes = frame->table.hosts = 1;
    sw_frame_seal(frame, SW_FRAME_TABLE);
    return frame->header.bytes;
}

struct impostor {
    const char *name;
    size_t (*say)(union sw_frame *frame);
    int stays; /* keeps its first accepted connection open */
    char port[16];
};

/* Answers every connection and closes it. Leaves when it is time for rank 0 to start. */
static void impostor(struct processes *p, int rank)
{
    const struct impostor *own = p->arg;
    const char *port = own->port;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    union sw_frame frame;
    int stay = -1;

    here.sin_port = htons((uint16_t)atoi(port));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 8) != 0) {
        perror("impostor");
        exit(1);
    }
    p->rank[rank].step = 1;
    while (p->rank[1].status < 0 && p->rank[0].step == 0) {
        struct pollfd come = {.fd = listener, .events = POLLIN};
        char hello[sizeof(struct sw_frame_hello)];
        int fd;

        if (poll(&come, 1, 1) <= 0)
            continue;
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (recv(fd, hello, sizeof hello, MSG_WAITALL) > 0)
            (void)send(fd, &frame, own->say(&frame), MSG_NOSIGNAL);
        if (own->stays && stay < 0)
            stay = fd;
        else
            close(fd);
    }
    close(listener);
    p->rank[rank].step = 2;
    while (stay >= 0 && p->rank[1].status < 0)
        usleep(1000);
    if (stay >= 0)
        close(stay);
}

static void rank_at_an_impostor(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = IMPOSTOR_MS};
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    while (p->rank[IMPOSTOR].step == 0)
        usleep(1000);
    launch(((const struct impostor *)p->arg)->port, rank);
    host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
    processes_note(p, rank, symwin_comm_create(&id, 2, rank, 0, &options, &comm));
}

/* The impostor leaves after a while, and rank 0 starts. */
static void after_an_impostor(struct processes *p, int rank)
{
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    while (p->rank[IMPOSTOR].step == 0)
        usleep(1000);
    if (rank == 0) {
        usleep(300000);
        p->rank[0].step = 1;
        while (p->rank[IMPOSTOR].step != 2)
            usleep(1000);
    }
    launch(((const struct impostor *)p->arg)->port, rank);
    host_must(symwin_unique_id_from_env(&id), "symwin_unique_id_from_env");
    processes_note(p, rank, symwin_comm_create(&id, 2, rank, 0, NULL, &comm));
    symwin_comm_destroy(comm);
}

static void run_impostor(struct impostor *own)
{
    struct processes *p;
    int ended;

    ports_name(own->port);
    p = processes_new(2, own);
    processes_fork(p, IMPOSTOR, impostor);
    processes_fork(p, 1, rank_at_an_impostor);
    ended = processes_wait(p, 1);
    ended |= processes_wait(p, IMPOSTOR);
    tap_ok(ended == 0 && p->rank[1].status == SYMWIN_TIMEOUT &&
               has_words(p->rank[1].text, "has not proved") &&
               strstr(p->rank[1].text, "owned") == NULL,
           "%s without a proof: %s", own->name, p->rank[1].text);
    processes_free(p);

    ports_name(own->port);
    p = processes_new(2, own);
    processes_fork(p, IMPOSTOR, impostor);
    processes_fork(p, 1, after_an_impostor);
    processes_fork(p, 0, after_an_impostor);
    ended = processes_wait(p, 1) | processes_wait(p, 0) | processes_wait(p, IMPOSTOR);
    tap_ok(ended == 0 && p->rank[0].status == SYMWIN_OK && p->rank[1].status == SYMWIN_OK,
           "%s: when it has gone, the job starts: %s%s", own->name, p->rank[0].text,
           p->rank[1].text);
    processes_free(p);
}

static struct impostor impostors[] = {
    {"a refusal", say_refusal, 0, ""},
    {"an end", say_nothing, 0, ""},
    {"no frame", say_what_is_no_frame, 0, ""},
    {"a CHALLENGE", say_challenge, 0, ""},
    {"a TABLE", say_table, 0, ""},
    {"silence", say_nothing, 1, ""},
};

static void plain_text(void)
{
    sw_fail(SYMWIN_DENIED, "%s",
            "a\033[31m\r\nb\x7f\xc2\x9b"
            "c\xc3\xa4\tend");
    tap_ok(strcmp(symwin_last_error(), "a?[31m? b???c\xc3\xa4 end") == 0,
           "a sentence has no control characters: %s", symwin_last_error());
    sw_error_restore("x\033y");
    tap_ok(strcmp(symwin_last_error(), "x?y") == 0, "nor where it is put back");
}

/* ---- another user connects to the creator ---------------------------------------------------- */

static int user_changed(void)
{
    return setgid(NOBODY) == 0 && setuid(NOBODY) == 0 && geteuid() == NOBODY;
}

/* Neither the file permissions nor the library let the other user in. */
static void another_user(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = TIMEOUT_MS};
    symwin_comm *comm = NULL;
    struct hostile h;

    hostile_wait_for_id(p);
    if (!user_changed() || hostile_begin(&h, &p->id)) {
        fprintf(stderr, "another user can enter the folder\n");
        tap_failures++;
    }
    processes_note(p, rank, symwin_comm_create(&p->id, 2, 1, 0, &options, &comm));
}

/* Somebody has opened the folder and the socket to all: the creator still checks the user. */
static void another_user_let_in(struct processes *p, int rank)
{
    struct hostile h;
    struct sw_id id;

    hostile_wait_for_id(p);
    memcpy(&id, &p->id, sizeof id);
    if (chmod(id.folder, 0777) != 0 || chmod(hostile_address(id.folder).sun_path, 0777) != 0 ||
        !user_changed() || !hostile_begin(&h, &p->id)) {
        fprintf(stderr, "the folder or its socket cannot be opened to all\n");
        tap_failures++;
        return;
    }
    hostile_send_frame(h.socket, &h.hello);
    if (!hostile_dropped(h.socket)) {
        fprintf(stderr, "another user gets an answer\n");
        tap_failures++;
    }
    close(h.socket);
    processes_note(p, rank, SYMWIN_OK);
}

/* Creates an id, and releases it when the other user has tried it. */
static void creator(struct processes *p, int rank)
{
    setenv("TMPDIR", "/tmp", 1); /* a folder that the other user can enter */
    processes_id(p, rank);
    while (p->rank[1].status < 0 && p->rank[1].step == 0)
        usleep(200);
    host_must(symwin_unique_id_release(&p->id), "symwin_unique_id_release");
}

static void run_user(const char *name, void (*body)(struct processes *p, int rank),
                     symwin_status status)
{
    struct processes *p;
    int ended;

    if (geteuid() != 0) {
        tap_ok(1, "%s # SKIP only root can be another user", name);
        return;
    }
    p = processes_new(2, NULL);
    processes_fork(p, 0, creator);
    processes_fork(p, 1, body);
    ended = processes_wait(p, 1);
    p->rank[1].step = 1;
    tap_ok(ended == 0 && p->rank[1].status == (int)status, "%s: %s %s (wait status 0x%x)", name,
           symwin_status_name(p->rank[1].status), p->rank[1].text, (unsigned)ended);
    tap_ok(processes_wait(p, 0) == 0, "%s: the creator is well", name);
    processes_free(p);
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof fakes / sizeof fakes[0]; i++)
        run_fake(&fakes[i], rank_at_a_false_creator);
    for (i = 0; i < sizeof impostors / sizeof impostors[0]; i++)
        run_impostor(&impostors[i]);
    plain_text();
    run_user("another user", another_user, SYMWIN_DENIED);
    run_user("another user, the folder open to all", another_user_let_in, SYMWIN_OK);
    return tap_done();
}
