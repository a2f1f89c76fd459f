/* What a rank leaves on its host's control page before it ends the communicator: what kernels have
 * found, and the text of its own failure, which other ranks are told. */
#include "processes.h"
#include "src/control/control.h"
#include "src/control/control_page.h"

enum { WRITING = 1, FOUND = 2, SOON_MS = 50, BOUND_MS = 5000 };

/* Two ranks of two processes. */
struct two {
    struct sw_exchange *x[2];
};

static void two_open(struct two *t)
{
    int fd, i;

    host_must(sw_exchange_page(2, &fd), "sw_exchange_page");
    for (i = 0; i < 2; i++) {
        host_must(sw_exchange_open(fd, 2, &t->x[i]), "sw_exchange_open");
        sw_exchange_be_built(t->x[i]);
    }
    close(fd);
}

static void two_close(struct two *t)
{
    sw_exchange_destroy(t->x[0]);
    sw_exchange_destroy(t->x[1]);
}

/* ---- findings ---- */

static void *store_soon(void *arg)
{
    struct two *t = arg;

    host_pause_ms(SOON_MS);
    t->x[0]->page->found.rank = 1;
    atomic_store(&t->x[0]->page->noted, FOUND);
    return NULL;
}

/* Rank 0 is storing what it has found. Rank 1 has found something too. */
static void test_two_findings(void)
{
    const struct sw_finding mine = {.rank = 0};
    struct sw_finding found;
    pthread_t thread;
    struct two t;

    two_open(&t);
    atomic_store(&t.x[0]->page->noted, WRITING);
    if (pthread_create(&thread, NULL, store_soon, &t) != 0)
        abort();
    sw_exchange_note_found(t.x[1], &mine);
    sw_exchange_fail(t.x[1], SYMWIN_MISMATCH, 1);
    tap_ok(sw_exchange_found(t.x[1], &found) && found.rank == 1,
           "a second finding ends the exchange when the first is stored");
    pthread_join(thread, NULL);
    two_close(&t);
}

/* Its process was killed then, or the exchange has ended: nobody waits. */
static void test_no_finding(void)
{
    const struct sw_finding mine = {.rank = 0};
    struct two t;
    int ended;

    for (ended = 0; ended < 2; ended++) {
        const int64_t before = host_now_ms();

        two_open(&t);
        atomic_store(&t.x[0]->page->noted, WRITING);
        if (ended)
            sw_exchange_fail(t.x[0], SYMWIN_MISMATCH, 0);
        sw_exchange_note_found(t.x[1], &mine);
        tap_ok(host_now_ms() - before < (ended ? SOON_MS : BOUND_MS), "one that is never stored%s",
               ended ? ", and the exchange has ended" : "");
        two_close(&t);
    }
}

/* ---- texts ---- */

static const char *text_of(struct two *t, int which)
{
    (void)sw_exchange_status(t->x[which], "test");
    return symwin_last_error();
}

/* What another process has written on the page. */
static void test_page(void)
{
    static const struct {
        const char *name, *bytes;
        uint32_t state;
        int rank;
        const char *want; /* at the end of the text; NULL: nothing is added */
    } rows[] = {
        {"a text", "symwin_send: so", 2, 1, "; rank 1's last failure: symwin_send: so"},
        {"control characters", "a\033[2J\n\r\t\177b", 2, 1, "rank 1's last failure: a?[2J????b"},
        {"what is no ASCII", "\303\244\377", 2, 1, "rank 1's last failure: ???"},
        {"formats", "%s%n", 2, 1, "rank 1's last failure: %s%n"},
        {"an empty one", "", 2, 1, NULL},
        {"one that is being written", "half", 1, 1, NULL},
        {"one that nobody has written", "none", 0, 1, NULL},
        {"a state that there is not", "none", 77, 1, NULL},
        {"another rank's", "other", 2, 0, NULL},
        {"nobody's", "nobody", 2, SW_NOBODY, NULL},
        {"a rank's below all", "below", 2, -1, NULL},
    };
    struct two t;
    size_t i, length, end;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *text;
        int right;

        two_open(&t);
        memcpy(t.x[0]->page->why, rows[i].bytes, strlen(rows[i].bytes) + 1);
        t.x[0]->page->why_rank = rows[i].rank;
        atomic_store(&t.x[0]->page->why_state, rows[i].state);
        sw_exchange_fail(t.x[0], SYMWIN_ABORTED, 1);
        text = text_of(&t, 1);
        length = strlen(text);
        end = rows[i].want != NULL ? strlen(rows[i].want) : 0;
        right = rows[i].want == NULL
                    ? strcmp(text, "test: rank 1 aborted the communicator; destroy it") == 0
                    : length > end && strcmp(text + length - end, rows[i].want) == 0;
        tap_ok(right, "%s on the page: %s", rows[i].name, text);
        two_close(&t);
    }
}

/* A page whose text has no end; and an end that names nobody. */
static void test_no_end(void)
{
    char text[SW_WHY_BYTES];
    struct two t;

    two_open(&t);
    memset(t.x[0]->page->why, 'x', SW_WHY_BYTES);
    t.x[0]->page->why_rank = 1;
    atomic_store(&t.x[0]->page->why_state, 2);
    tap_ok(sw_exchange_why(t.x[1], 1, text) && strlen(text) == SW_WHY_BYTES - 1,
           "a text without an end");
    t.x[0]->page->why_rank = SW_NOBODY;
    sw_exchange_fail(t.x[0], SYMWIN_TIMEOUT, SW_NOBODY);
    tap_ok(strstr(text_of(&t, 1), "last failure") == NULL, "an end that names nobody: %s",
           symwin_last_error());
    two_close(&t);
}

static void test_say(void)
{
    static const char cut[] = "xxx...";
    char longer[2 * SW_WHY_BYTES], text[SW_WHY_BYTES];
    struct two t;

    two_open(&t);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    sw_exchange_say_why(t.x[0], 0, "");
    sw_exchange_say_why(t.x[0], 0, longer);
    sw_exchange_say_why(t.x[1], 1, "second");
    tap_ok(!sw_exchange_why(t.x[1], 1, text) && sw_exchange_why(t.x[1], 0, text) &&
               strlen(text) == SW_WHY_BYTES - 1 &&
               strcmp(text + strlen(text) - strlen(cut), cut) == 0,
           "the first text is kept, and a long one is cut");
    two_close(&t);
    two_open(&t);
    memset(longer, 'y', SW_WHY_BYTES - 1);
    longer[SW_WHY_BYTES - 1] = '\0';
    sw_exchange_say_why(t.x[0], 1, longer);
    tap_ok(sw_exchange_why(t.x[1], 1, text) && strcmp(text, longer) == 0, "one that just fits");
    two_close(&t);
}

/* ---- ranks ---- */

enum { WAIT_MS = 20000, RANKS = 4 };

/* What rank 1 does before it aborts, and what the others are told. */
static const struct why {
    const char *name;
    enum { WRONG_CALL, NO_MEMORY, EARLIER } what;
    const char *words; /* NULL: no failure */
} whys[] = {
    {"a call was wrong", WRONG_CALL, "rank 1's last failure: symwin_allreduce: in"},
    {"a failure of another kind", NO_MEMORY, "rank 1's last failure: symwin_mem_alloc: "},
    {"a failure before the last call", EARLIER, NULL},
};

static symwin_status reduce(symwin_comm *comm, uint32_t *in, struct CUstream_st *stream)
{
    return symwin_allreduce(comm, in, in, 1, SYMWIN_U32, SYMWIN_SUM, stream);
}

static void abort_it(const struct why *w, symwin_comm *comm, uint32_t *in,
                     struct CUstream_st *stream)
{
    static uint32_t pageable;
    void *none;

    if (w->what != WRONG_CALL)
        must_be(symwin_mem_alloc(0, (size_t)1 << 50, 0, &none) != SYMWIN_OK, "no memory", 1);
    if (w->what == WRONG_CALL)
        must_be(reduce(comm, &pageable, stream) == SYMWIN_INVALID, "a wrong call", 1);
    if (w->what == EARLIER)
        host_must(reduce(comm, in, stream), "a call");
    host_must(symwin_comm_abort(comm), "symwin_comm_abort");
}

static void live(const struct why *w, symwin_comm *comm, int device, int rank)
{
    struct CUstream_st *stream;
    uint32_t *in = host_alloc(device, 64);
    const int64_t before = host_now_ms();

    host_must(symwin_stream_create(device, &stream), "symwin_stream_create");
    host_must(reduce(comm, in, stream), "a call");
    host_must(symwin_stream_synchronize(device, stream), "synchronize");
    if (rank == 1)
        abort_it(w, comm, in, stream);
    else
        (void)reduce(comm, in, stream);
    while (symwin_comm_check(comm) == SYMWIN_OK && host_now_ms() - before < WAIT_MS)
        host_pause_ms(1);
    must_be(symwin_comm_check(comm) == SYMWIN_ABORTED && host_error_has("rank 1 aborted") &&
                (w->words != NULL ? host_error_has(w->words) : !host_error_has("last failure")),
            w->name, rank);
    symwin_comm_destroy(comm);
    host_must(symwin_stream_destroy(device, stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(in), "symwin_mem_free");
}

static void body(struct processes *p, int rank)
{
    symwin_comm *comm;

    host_must(processes_comm(p, rank, WAIT_MS, &comm), "symwin_comm_create");
    live(places_arg(p), comm, rank % harness_device_count(), rank);
}

static void test_ranks(void)
{
    struct processes *p;
    size_t k, w;

    for (k = 0; k < places_count(); k++)
        for (w = 0; w < sizeof whys / sizeof whys[0]; w++) {
            tap_ok(places_run(&places_all[k], RANKS, body, (void *)(uintptr_t)&whys[w], &p),
                   "%s: %s", places_all[k].name, whys[w].name);
            processes_free(p);
        }
}

int main(void)
{
    test_ranks();
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    test_two_findings();
    test_no_finding();
    test_page();
    test_no_end();
    test_say();
    return tap_done();
}
