/* What a false creator tells a rank: frames that are wrong, without proof, or with descriptors.
 *
 * A rank asks for proof of the secret, and sends no proof of its own before it has that one. It
 * gives up when its timeout expires. */
#include <fcntl.h>

#include "false_creator.h"
#include "old_system.h"

enum { LINK_KEY = 0xa7 }; /* each byte of it; HMAC has no such padding */
enum { LINGER_S = 6 };

#define WRONG_PAGE "rank 0, whose process made the id, sent a wrong control page"

/* ---- without the secret ---------------------------------------------------------------------- */

static void answer_rubbish(int fd, union sw_frame *hello)
{
    memset(hello, 0x77, sizeof *hello);
    hostile_send(fd, hello, sizeof *hello, 0);
}

static void answer_reflected(int fd, union sw_frame *hello)
{
    hostile_send_frame(fd, hello);
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

/* ---- with the secret ------------------------------------------------------------------------- */

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

/* The frames of a table of so many ranks that begin with these ranks. */
static void answer_tables(int fd, const union sw_frame *hello, int ranks, const int first[2])
{
    struct sw_rank_table table = {.nranks = ranks, .processes = ranks, .hosts = 1};
    union sw_frame frame;
    int i;

    table.locations = calloc((size_t)ranks, sizeof *table.locations);
    if (table.locations == NULL)
        abort();
    answer_well(fd, hello);
    for (i = 0; i < 2; i++) {
        sw_rank_table_put(&table, first[i], &frame);
        sw_frame_seal(&frame, SW_FRAME_TABLE);
        hostile_send_frame(fd, &frame);
    }
    sw_rank_table_free(&table);
}

static void answer_table_of_many(int fd, union sw_frame *hello)
{
    static const int first[] = {0, SW_TABLE_PART};

    answer_tables(fd, hello, 3000, first);
}

static void answer_table_twice(int fd, union sw_frame *hello)
{
    static const int first[] = {0, 0};

    answer_tables(fd, hello, 3000, first);
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
    frame.table.locations[0].host = (uint32_t)(hosts - 1); /* rank 1's is 0 */
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

/* ---- runs ------------------------------------------------------------------------------------ */

static const struct fake fakes[] = {
    {"rubbish", open_well, answer_rubbish, SYMWIN_DENIED, "not from the process that made the id",
     0, 0, 0},
    {"its own HELLO", open_well, answer_reflected, SYMWIN_DENIED,
     "sent a frame of type 1 instead of", 0, 0, 0},
    {"a TABLE", open_well, answer_table, SYMWIN_DENIED, "sent a frame of type 4 instead of", 0, 0,
     0},
    {"a TABLE of other ranks, in two frames", open_well, answer_table_of_many, SYMWIN_DENIED,
     "expects 3000 ranks, not 2", 0, 0, 0},
    {"the beginning of a TABLE twice", open_well, answer_table_twice, SYMWIN_DENIED,
     "sent a wrong table", 0, 0, 0},
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

static void told(struct processes *p, int rank)
{
    is_old = ((const struct fake *)p->arg)->old;
    rank_at_a_false_creator(p, rank);
    must_be(!stack_has_key(), "no key is left on the stack", rank);
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof fakes / sizeof fakes[0]; i++)
        run_fake(&fakes[i], told);
    return tap_done();
}
