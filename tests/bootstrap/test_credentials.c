/* Who is at the other end: other users that connect to an id's creator, and false creators that a
 * rank connects to.
 *
 * A rank checks the folder, then the user who listens in it, then asks for proof of the secret. It
 * sends no proof of its own before it has that one, and gives up when its timeout expires. */
#include <fcntl.h>
#include <sys/syscall.h>

#include "hostile.h"
#include "processes.h"

enum { LINK_KEY = 0xa7 }; /* each byte of it; HMAC has no such padding */
enum { TIMEOUT_MS = 300, GRACE_MS = 1700, NOBODY = 65534, RANK = 0, CREATOR = 1, LINGER_S = 6 };

#define WRONG_PAGE "rank 0, whose process made the id, sent a wrong control page"

/* ---- false creators -------------------------------------------------------------------------- */

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

static void folder_make(struct sw_id *id)
{
    snprintf(id->folder, sizeof id->folder, "/tmp/symwin-fake-XXXXXX");
    if (mkdtemp(id->folder) == NULL) {
        perror("mkdtemp");
        exit(1);
    }
}

static int socket_open(const char *folder, int backlog)
{
    const struct sockaddr_un address = hostile_address(folder);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
        listen(fd, backlog) == 0)
        return fd;
    perror("socket_open");
    exit(1);
}

static int open_well(struct sw_id *id)
{
    folder_make(id);
    return socket_open(id->folder, 8);
}

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

static void folder_remove(const struct sw_id *id)
{
    char real[sizeof id->folder + 8];

    snprintf(real, sizeof real, "%s-real", id->folder);
    if (rename(real, id->folder) != 0 && unlink(id->folder) == 0)
        rename(real, id->folder);
    unlink(hostile_address(id->folder).sun_path);
    rmdir(id->folder);
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

static void answer_rubbish(int fd, union sw_frame *hello)
{
    memset(hello, 0x77, sizeof *hello);
    hostile_send(fd, hello, sizeof *hello, 0);
}

static void answer_reflected(int fd, union sw_frame *hello)
{
    hostile_send_frame(fd, hello);
}

static union sw_frame challenge(void)
{
    union sw_frame frame;

    memset(&frame, 0x42, sizeof frame);
    sw_frame_seal(&frame, SW_FRAME_CHALLENGE);
    return frame;
}

static void answer_without_proof(int fd, union sw_frame *hello)
{
    union sw_frame frame = challenge();

    hostile_send_frame(fd, &frame);
    /* the rank must not send its own proof now */
    if (hostile_answer(fd, hello) != EPIPE) {
        fprintf(stderr, "the rank goes on with a creator that has no secret\n");
        tap_failures++;
    }
}

static void answer_with_another_key(int fd, union sw_frame *hello)
{
    static const unsigned char key[SW_KEY_BYTES] = {1, 2, 3};
    union sw_frame frame = challenge();

    sw_frame_prove_creator(key, &hello->hello, &frame.challenge, frame.challenge.proof);
    hostile_send_frame(fd, &frame);
}

static int is_old; /* the system cannot refuse descriptors */

/* Replaces the C library's. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    if (is_old && level == SOL_SOCKET && name == 83) { /* SO_PASSRIGHTS */
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
}

/* Linux 6.16 and later refuse the descriptors: then the frame comes without them, and is not
 * accepted either. */
static void answer_with(int fd, int count)
{
    union sw_frame frame = challenge();

    if (!hostile_send(fd, &frame, frame.header.bytes, count) && errno == EPERM)
        hostile_send_frame(fd, &frame);
}

static void answer_with_descriptors(int fd, union sw_frame *hello)
{
    (void)hello;
    answer_with(fd, 3);
}

static void answer_with_many_descriptors(int fd, union sw_frame *hello)
{
    (void)hello;
    answer_with(fd, HOSTILE_MOST_FDS);
}

static void answer_table(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    hello->table.nranks = 2;
    hello->table.processes = 1;
    hello->table.hosts = 1;
    sw_frame_seal(hello, SW_FRAME_TABLE);
    hostile_send_frame(fd, hello);
}

static void answer_refusal_of_success(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hostile_send_frame(fd, hello);
}

static void answer_busy(int fd, union sw_frame *hello)
{
    memset(hello, 0, sizeof *hello);
    strcpy(hello->refusal.text, "too many");
    hello->refusal.status = SYMWIN_BUSY;
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hostile_send_frame(fd, hello);
}

/* An unterminated text, and a status out of range. */
static void answer_wild_refusal(int fd, union sw_frame *hello)
{
    memset(hello, 'A', sizeof *hello);
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    hello->refusal.status = 1 << 30;
    hostile_send_frame(fd, hello);
}

/* The answer of a member, so that the rank joins and accepts descriptors. */
static void answer_well(int fd, const union sw_frame *hello)
{
    unsigned char secret[SW_KEY_BYTES];
    union sw_frame frame = challenge();

    memset(secret, 0x33, sizeof secret);
    sw_frame_prove_creator(secret, &hello->hello, &frame.challenge, frame.challenge.proof);
    hostile_send_frame(fd, &frame);
    hostile_answer(fd, &frame);
}

/* After the refusal comes a descriptor whose close takes long. The rank is stopped meanwhile, or it
 * could close the socket before that. */
static void answer_refusal_and_more(int fd, union sw_frame *hello)
{
    static int reader;
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    const int more = hostile_lingering(LINGER_S, &reader);

    answer_well(fd, hello);
    memset(hello, 0, sizeof *hello);
    strcpy(hello->refusal.text, "no more");
    hello->refusal.status = SYMWIN_ABORTED;
    sw_frame_seal(hello, SW_FRAME_REFUSAL);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        abort();
    kill(peer.pid, SIGSTOP);
    hostile_send_frame(fd, hello);
    hostile_send_with(fd, hello, hello->header.bytes, more);
    close(more);
    kill(peer.pid, SIGCONT);
}

static void hand_out_one(int fd, enum sw_frame_type type, int descriptor)
{
    union sw_frame frame;

    memset(&frame, 0, sizeof frame.pass);
    sw_frame_seal(&frame, type);
    hostile_send_fds(fd, &frame, frame.header.bytes, &descriptor, descriptor >= 0);
    close(descriptor);
}

/* Two ranks, and what passes for their control page, which this process then closes. -1: none is
 * sent. */
static void hand_out(int fd, const union sw_frame *hello, int hosts, int page)
{
    union sw_frame frame;

    answer_well(fd, hello);
    memset(&frame, 0, sizeof frame);
    frame.table.nranks = frame.table.processes = 2;
    frame.table.hosts = hosts;
    frame.table.locations[1].process = 1;
    frame.table.locations[0].host = (uint16_t)(hosts - 1); /* rank 1's is 0 */
    sw_frame_seal(&frame, SW_FRAME_TABLE);
    hostile_send_frame(fd, &frame);
    hand_out_one(fd, SW_FRAME_PAGE, page);
}

static void hand_out_page(int fd, const union sw_frame *hello, int page)
{
    hand_out(fd, hello, 1, page);
}

static void answer_without_page(int fd, union sw_frame *hello)
{
    hand_out_page(fd, hello, -1);
}

static void answer_lingering_page(int fd, union sw_frame *hello)
{
    static int reader;

    hand_out_page(fd, hello, hostile_lingering(LINGER_S, &reader));
}

static void answer_slow_page(int fd, union sw_frame *hello)
{
    static int reader;

    hand_out_page(fd, hello, hostile_slow(LINGER_S, &reader));
}

/* As large as needed, but the sender could shorten it, or nobody may write to it. */
static void answer_page_sealed(int fd, const union sw_frame *hello, int seals)
{
    const int page = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (page < 0 || ftruncate(page, 1 << 16) != 0 || fcntl(page, F_ADD_SEALS, seals) != 0)
        abort();
    hand_out_page(fd, hello, page);
}

static void answer_page_unsealed(int fd, union sw_frame *hello)
{
    answer_page_sealed(fd, hello, F_SEAL_GROW | F_SEAL_SEAL);
}

static void answer_page_read_only(int fd, union sw_frame *hello)
{
    answer_page_sealed(fd, hello, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

/* A socket that listens in place of a peer socket. In its queue is a connection with a descriptor
 * whose close takes long. */
static void answer_listening_socket(int fd, union sw_frame *hello)
{
    static int reader;
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const int more = hostile_slow(LINGER_S, &reader);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof at.sun_family; /* the system chooses the name */
    int page;

    if (bind(listener, (struct sockaddr *)&at, bytes) != 0 || listen(listener, 1) != 0)
        abort();
    bytes = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &bytes);
    if (connect(client, (struct sockaddr *)&at, bytes) != 0 ||
        !hostile_send_with(client, "more", 4, more))
        abort();
    close(more);
    close(client);
    host_must(sw_exchange_page(2, &page), "sw_exchange_page");
    hand_out_page(fd, hello, page);
    hand_out_one(fd, SW_FRAME_SOCKET, listener);
}

/* A link between hosts that is no TCP connection. Its key must not stay in the rank's memory. */
static void answer_wrong_link(int fd, union sw_frame *hello)
{
    const int wrong = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int page;

    host_must(sw_exchange_page(2, &page), "sw_exchange_page");
    hand_out(fd, hello, 2, page);
    memset(hello, 0, sizeof hello->link);
    hello->link.host = 1;
    memset(hello->link.key, LINK_KEY, sizeof hello->link.key);
    sw_frame_seal(hello, SW_FRAME_LINK);
    hostile_send_fds(fd, hello, hello->header.bytes, &wrong, 1);
    close(wrong);
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
    {"rubbish", open_well, answer_rubbish, SYMWIN_DENIED, "not from the process that made the id",
     0, 0, 0},
    {"its own HELLO", open_well, answer_reflected, SYMWIN_DENIED,
     "sent a frame of type 1 instead of", 0, 0, 0},
    {"a TABLE", open_well, answer_table, SYMWIN_DENIED, "sent a frame of type 4 instead of", 0, 0,
     0},
    {"a CHALLENGE without a proof", open_well, answer_without_proof, SYMWIN_DENIED,
     "does not know the id's secret", 0, 0, 0},
    {"a proof by another key", open_well, answer_with_another_key, SYMWIN_DENIED,
     "does not know the id's secret", 0, 0, 0},
    {"3 descriptors", open_well, answer_with_descriptors, SYMWIN_DENIED, "", 0, 0, 0},
    {"200 descriptors", open_well, answer_with_many_descriptors, SYMWIN_DENIED, "", 0, 0, 0},
    {"3 descriptors, on an older system", open_well, answer_with_descriptors, SYMWIN_DENIED,
     "not from the process", 0, 0, 1},
    {"200 descriptors, on an older system", open_well, answer_with_many_descriptors, SYMWIN_DENIED,
     "not from the process", 0, 0, 1},
    {"a REFUSAL of success", open_well, answer_refusal_of_success, SYMWIN_DENIED,
     "not from the process", 0, 0, 0},
    {"a REFUSAL without end", open_well, answer_wild_refusal, SYMWIN_DENIED, "not from the process",
     0, 0, 0},
    {"a refusal, and a descriptor behind it", open_well, answer_refusal_and_more, SYMWIN_ABORTED,
     "no more", 0, 0, 0},
    {"no control page", open_well, answer_without_page, SYMWIN_DENIED, WRONG_PAGE, 0, 0, 0},
    {"a lingering socket for a control page", open_well, answer_lingering_page, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page whose close takes long", open_well, answer_slow_page, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page that can be shortened", open_well, answer_page_unsealed, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a control page that cannot be written", open_well, answer_page_read_only, SYMWIN_DENIED,
     WRONG_PAGE, 0, 0, 0},
    {"a socket that listens for a peer socket", open_well, answer_listening_socket, SYMWIN_DENIED,
     "rank 0, whose process made the id, sent a wrong socket", 0, 0, 0},
    {"a link that is no TCP connection", open_well, answer_wrong_link, SYMWIN_DENIED,
     "rank 0, whose process made the id, sent a wrong link", 0, 0, 0},
    {"a creator that is busy", open_well, answer_busy, SYMWIN_TIMEOUT, "", 0, 10, 0},
};

static void false_creator(struct processes *p, int rank)
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

/* Whether the key of a link is on this thread's stack, used or not. A sanitizer does not see
 * pread(). */
static int stack_has_key(void)
{
    static unsigned char page[4096];
    const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    uintptr_t at = (uintptr_t)__builtin_frame_address(0) & ~(sizeof page - 1);
    int has = 0, run = 0;
    size_t i;

    for (; pread(memory, page, sizeof page, (off_t)at) == sizeof page; at -= sizeof page)
        for (i = 0; i < sizeof page; i++) {
            run = page[i] == LINK_KEY ? run + 1 : 0;
            has |= run == SW_KEY_BYTES;
        }
    close(memory);
    return has;
}

static void rank_at_a_false_creator(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = TIMEOUT_MS};
    symwin_comm *comm = NULL;

    is_old = ((const struct fake *)p->arg)->old;
    hostile_wait_for_id(p);
    p->rank[rank].number = processes_now_us();
    processes_note(p, rank, symwin_comm_create(&p->id, 2, 1, 0, &options, &comm));
    must_be(!stack_has_key(), "no key is left on the stack", rank);
}

static int has_words(const char *text, const char *words)
{
    sw_error_restore(text);
    return host_error_has(words);
}

static void run_fake(const struct fake *fake)
{
    struct processes *p;
    int rank_ended, creator_ended;
    int64_t ms;

    if (fake->as_root && geteuid() != 0) {
        tap_ok(1, "%s # SKIP only root can be another user", fake->name);
        return;
    }
    p = processes_new(2, (void *)(uintptr_t)fake);
    processes_fork(p, RANK, rank_at_a_false_creator);
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
        run_fake(&fakes[i]);
    for (i = 0; i < sizeof impostors / sizeof impostors[0]; i++)
        run_impostor(&impostors[i]);
    plain_text();
    run_user("another user", another_user, SYMWIN_DENIED);
    run_user("another user, the folder open to all", another_user_let_in, SYMWIN_OK);
    return tap_done();
}
