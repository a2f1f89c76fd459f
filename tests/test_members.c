/* Members who contradict the others: they know the secret, so what they say counts, and every rank is
 * told the same: who it is, and what is wrong; in joining, and in a registration. */
#include "hostile.h"

enum { RANKS = 3, LATE = RANKS - 1, ATTACKER = RANKS, AT_ONCE_MS = 1000 };

/* What a member says; 0: as it should. */
struct claim {
    const char *name;
    int nranks, rank;
    uint32_t protocol;
    symwin_status status;
    const char *words;
};

static const struct claim claims[] = {
    {"a rank that is taken", RANKS, 1, 0, SYMWIN_INVALID, "rank 1 came twice"},
    {"the maker's own rank", RANKS, 0, 0, SYMWIN_INVALID, "rank 0 came twice"},
    {"more ranks than the others", RANKS + 1, 3, 0, SYMWIN_MISMATCH, "rank 3 passed 4|3"},
    {"fewer ranks", RANKS - 1, 0, 0, SYMWIN_MISMATCH, "rank 0 passed 2|3"},
    {"most ranks", INT32_MAX, INT32_MAX - 1, 0, SYMWIN_MISMATCH,
     "rank 2147483646 passed 2147483647|3"},
    {"no ranks", 0, 0, 0, SYMWIN_MISMATCH, "rank 0 passed 0|3"},
    {"rank -1", RANKS, -1, 0, SYMWIN_INVALID, "no rank -1 of 3"},
    {"rank 3 of 3", RANKS, RANKS, 0, SYMWIN_INVALID, "no rank 3 of 3"},
    {"the least rank", RANKS, INT32_MIN, 0, SYMWIN_INVALID, "no rank -2147483648 of 3"},
    {"another protocol", RANKS, LATE, 99, SYMWIN_MISMATCH, "rank 2's|protocol 99|id 4"},
};

/* Comes when ranks 0 and 1 have, says it, and is told. */
static void attacker(struct processes *p, int rank)
{
    const struct claim *claim = p->arg;
    union sw_wire_frame join, answer;
    struct hostile h;
    int error;

    hostile_wait_for_id(p);
    while (p->rank[0].step == 0 || p->rank[1].step == 0)
        usleep(50);
    host_pause_ms(300); /* they are in the call: now they are at the maker's, too */
    if (!hostile_begin(&h, &p->id) || !hostile_greet(&h)) {
        fprintf(stderr, "no challenge\n");
        tap_failures++;
        return;
    }
    join = hostile_join(&h, claim->nranks, claim->rank);
    if (claim->protocol != 0)
        join.join.protocol = claim->protocol;
    hostile_prove(&h, &join);
    p->rank[rank].number = processes_now_us();
    error = hostile_send_frame(h.socket, &join) ? hostile_answer(h.socket, &answer) : EPIPE;
    if (error != 0 || answer.header.type != SW_WIRE_REFUSAL) {
        fprintf(stderr, "not told why: %d\n", error);
        tap_failures++;
    } else {
        snprintf(p->rank[rank].text, SW_TEXT_BYTES, "%s", answer.refusal.text);
        p->rank[rank].status = answer.refusal.status;
    }
    p->rank[rank].step = 1;
    close(h.socket);
}

static void job(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    symwin_comm *comm = NULL;

    harness_device_count();
    processes_id(p, rank);
    while (rank == LATE && p->rank[ATTACKER].step == 0)
        usleep(200);
    p->rank[rank].step = 1;
    if (processes_note(p, rank,
                       symwin_comm_create(&p->id, RANKS, rank, rank % harness_device_count(),
                                          &options, &comm)) == SYMWIN_OK)
        symwin_comm_destroy(comm);
    while (rank == 0 && p->rank[LATE].status < 0)
        usleep(200); /* the process that made the id lives until all have come */
}

static int has_words(const char *text, const char *words)
{
    sw_error_restore(text);
    return host_error_has(words);
}

static struct processes *begin(const struct claim *claim)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)claim);
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, job);
    processes_fork(p, ATTACKER, attacker);
    return p;
}

static void finish(const struct claim *claim, struct processes *p)
{
    int ended = 1, told = 1, soon = 1;
    int r;

    for (r = 0; r <= RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    for (r = 0; r <= RANKS; r++) {
        if (p->rank[r].status != (int)claim->status ||
            strcmp(p->rank[r].text, p->rank[0].text) != 0) {
            printf("# rank %d: %s: %s\n", r, symwin_status_name(p->rank[r].status),
                   p->rank[r].text);
            told = 0;
        }
        if (r < LATE && p->rank[r].at_us - p->rank[ATTACKER].number > AT_ONCE_MS * 1000)
            soon = 0;
    }
    tap_ok(ended, "%s: all end well", claim->name);
    tap_ok(told, "%s: every rank is told %s, in one sentence", claim->name,
           symwin_status_name(claim->status));
    tap_ok(has_words(p->rank[0].text, claim->words), "%s: %s", claim->name, p->rank[0].text);
    tap_ok(soon, "%s: at once", claim->name);
    processes_free(p);
}

/* ---- a member that agrees on no offset -------------------------------------------------------- */

struct votes {
    const char *name;
    int higher; /* always one more than the highest; 0: always 0, which is taken */
    int timeout_ms;
    symwin_status want;
    const char *words;
};

static const struct votes votes[] = {
    {"votes for less than it may", 0, 20000, SYMWIN_MISMATCH, "rank 2 wants offset 0"},
    {"always votes for more", 1, 1500, SYMWIN_TIMEOUT, "no offset|rank 2"},
};

/* Its part of a registration, by hand, until the others have had enough. */
static void vote_otherwise(symwin_comm *comm, int higher)
{
    enum { BYTES, FLAGS, OFFSET, SEGMENT, ALLOCATION, COUNT }; /* as in attach.c */
    static const char call[] = "symwin_window_register";
    const uint64_t usual[COUNT] = {[BYTES] = 1, [ALLOCATION] = GRANULE};
    const int64_t end = host_now_ms() + 4 * votes[1].timeout_ms;
    symwin_status status;
    uint64_t offset = 0;
    int r;

    comm->sequence++;
    status = sw_agree(comm, call, SYMWIN_OK, usual, COUNT);
    while (status == SYMWIN_OK && host_now_ms() < end) {
        status = sw_agree(comm, call, SYMWIN_OK, &offset, 1);
        for (r = 0; higher && r < RANKS; r++)
            if (comm->votes[r].values[0] >= offset)
                offset = comm->votes[r].values[0] + 1;
    }
}

static void finds_no_offset(struct processes *p, int rank)
{
    const struct votes *v = p->arg;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory;

    host_must(processes_comm(p, rank, v->timeout_ms, &comm), "symwin_comm_create");
    memory = host_alloc(rank, 1);
    if (rank == LATE)
        vote_otherwise(comm, v->higher);
    else
        processes_note(p, rank, symwin_window_register(comm, memory, 1, 0, &window));
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

static void disagree(const struct votes *v)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)v);
    int ended = 1;
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, finds_no_offset);
    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all end well", v->name);
    for (r = 0; r < LATE; r++)
        tap_ok(p->rank[r].status == (int)v->want && has_words(p->rank[r].text, v->words),
               "%s: rank %d: %s", v->name, r, p->rank[r].text);
    processes_free(p);
}

/* Side by side: every maker stays for a second, to tell those who come late. */
int main(void)
{
    enum { CLAIMS = sizeof claims / sizeof claims[0] };
    struct processes *begun[CLAIMS];
    size_t i;

    for (i = 0; i < CLAIMS; i++)
        begun[i] = begin(&claims[i]);
    for (i = 0; i < CLAIMS; i++)
        finish(&claims[i], begun[i]);
    for (i = 0; i < sizeof votes / sizeof votes[0]; i++)
        disagree(&votes[i]);
    return tap_done();
}
