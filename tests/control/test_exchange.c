/* The all-gather: data, deadlines, and one outcome on all ranks however a late rank races with a
 * timeout. */
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "harness.h"
#include "src/control/control_page.h"

enum { ROUNDS = 300, RACES = 150, TIMED = 1000 };

struct shared {
    struct sw_exchange *x;
    int nranks;
    _Atomic int wrong;
    int late;     /* this rank comes ... */
    long late_us; /* ... this much later */
    symwin_status status[72];
    double us[TIMED];
};

static void sleep_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};

    while (nanosleep(&t, &t) != 0)
        ;
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- data ---- */

static void rounds(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    uint64_t all[72 * 3];
    int k, r;

    for (k = 0; k < ROUNDS; k++) {
        const uint64_t mine[3] = {(uint64_t)k, (uint64_t)rank, (uint64_t)k * 1000 + (uint64_t)rank};

        if ((k * 7 + rank) % 50 == 0)
            sleep_us(200);
        if (sw_exchange_allgather(s->x, rank, mine, sizeof mine, all, 20000, "test") != SYMWIN_OK)
            s->wrong++;
        for (r = 0; r < team->nranks; r++)
            if (all[r * 3] != (uint64_t)k || all[r * 3 + 1] != (uint64_t)r ||
                all[r * 3 + 2] != (uint64_t)k * 1000 + (uint64_t)r)
                s->wrong++;
    }
}

static void test_rounds(int nranks)
{
    struct shared s = {.x = sw_exchange_create(nranks)};

    harness_run(nranks, rounds, &s);
    tap_ok(s.wrong == 0, "%d ranks exchange %d times", nranks, ROUNDS);
    sw_exchange_destroy(s.x);
}

/* ---- one outcome ---- */

static void once(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    const int timeout_ms = s->late_us > 0 ? 5 : 500;
    uint64_t mine = (uint64_t)rank;
    uint64_t all[72];

    (void)team;
    if (rank == s->late && s->late_us > 0)
        sleep_us(s->late_us);
    while (rank == s->late && s->late_us == 0 && !sw_exchange_ended(s->x))
        sleep_us(1000); /* it comes when the others have given it up */
    s->status[rank] = sw_exchange_allgather(s->x, rank, &mine, sizeof mine, all, timeout_ms,
                                            "test");
    if (s->status[rank] == SYMWIN_TIMEOUT) {
        char name[16];

        snprintf(name, sizeof name, "rank %d", s->late);
        /* On a busy machine the first rank to look may have found others late as well. */
        if (strstr(symwin_last_error(), "rank ") == NULL)
            s->wrong++;
    }
}

/* The late rank comes about when the others' timeout expires. */
static void test_race(void)
{
    int outcomes[2] = {0, 0};
    int differ = 0;
    int unnamed = 0;
    int k, r;

    for (k = 0; k < RACES; k++) {
        struct shared s = {
            .x = sw_exchange_create(3), .late = k % 3, .late_us = 4000 + k % 10 * 250};

        harness_run(3, once, &s);
        for (r = 1; r < 3; r++)
            differ += s.status[r] != s.status[0];
        outcomes[s.status[0] != SYMWIN_OK]++;
        unnamed += s.wrong;
        sw_exchange_destroy(s.x);
    }
    tap_ok(differ == 0, "all ranks see one outcome (%d in time, %d too late)", outcomes[0],
           outcomes[1]);
    TAP_EQ("a timeout names a rank", unnamed, 0);
}

static void test_late(void)
{
    struct shared s = {.x = sw_exchange_create(4), .late = 2};
    uint64_t mine = 0;
    uint64_t all[4];
    int r;

    harness_run(4, once, &s);
    for (r = 0; r < 4; r++)
        TAP_EQ("a late rank is a timeout for all, itself included", s.status[r], SYMWIN_TIMEOUT);
    TAP_EQ("and for every later call", sw_exchange_allgather(s.x, 0, &mine, 8, all, 1000, "test"),
           SYMWIN_TIMEOUT);
    tap_ok(strstr(symwin_last_error(), "rank 2") != NULL, "the text names it: %s",
           symwin_last_error());
    sw_exchange_destroy(s.x);
}

/* ---- impossible values on the control page ---- */

/* The words of the control page; exchange.c has their names. */
static _Atomic uint64_t *page_of(struct sw_exchange *x)
{
    struct {
        int numbers[2];
        size_t bytes;
        _Atomic uint64_t *page;
    } head;

    memcpy(&head, x, sizeof head);
    return head.page;
}

/* Rank 0 waits alone. The page has a rank that has posted but is not counted, an end proposed at a
 * future time or at the first one there is, or a status that does not exist. Every wait ends. */
enum {
    PROPOSAL = 2,
    PROPOSED_AT = 3,
    POSTS = offsetof(struct control_page, slots) / 8,
    POST = sizeof(struct page_slot) / 8
};

static void send_nothing(void *context, uint64_t round)
{
    (void)context;
    (void)round;
}

static atomic_int is_over;

static void *propose_anew(void *page)
{
    while (!is_over) {
        ((_Atomic uint64_t *)page)[PROPOSED_AT] = (uint64_t)sw_now_ms();
        sleep_us(50000);
    }
    return NULL;
}

static void test_nonsense(void)
{
    static const int through[2] = {-1, 1}; /* in some cases another host decides, and is silent */
    static const struct sw_exchange_hosts hosts = {
        .decider = 1, .links = 0, .through = through, .send = send_nothing};
    static const struct {
        const char *name;
        uint64_t at, status; /* of a proposed end; 0: none is proposed; 16, 17: see below */
        int anew;
    } rows[] = {{"a rank that is not counted", 0, 0, 0},
                {"an end asked for in the future", (uint64_t)1 << 60, SYMWIN_ABORTED, 0},
                {"an end asked for at the least time", (uint64_t)1 << 63, SYMWIN_ABORTED, 0},
                {"an end with a status of no name", 1, 15, 0},
                {"an end asked for anew all the time", 1, SYMWIN_ABORTED, 1},
                {"an end without a status", 1, 16, 0},
                {"an end that is none", 1, 17, 0}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sw_exchange *x = sw_exchange_create(2);
        const double start = now_us();
        symwin_status status;
        uint64_t mine = 0, all[2];
        pthread_t thread;
        int is_none;

        if (rows[i].status == 0) {
            page_of(x)[POSTS + POST] = 1;
        } else {
            sw_exchange_set_hosts(x, &hosts);
            page_of(x)[PROPOSED_AT] = rows[i].at;
            page_of(x)[PROPOSAL] = rows[i].status == 17 ? 5
                                   : rows[i].status == 16
                                       ? (uint64_t)1 << 48
                                       : rows[i].status << 60 | (uint64_t)1 << 48;
        }
        is_over = 0;
        if (rows[i].anew && pthread_create(&thread, NULL, propose_anew, page_of(x)) != 0)
            exit(1);
        alarm(20);
        status = sw_exchange_allgather(x, 0, &mine, sizeof mine, all, 200, "test");
        alarm(0);
        is_over = 1;
        if (rows[i].anew)
            pthread_join(thread, NULL);
        is_none = rows[i].status == 0 || rows[i].status == 17;
        tap_ok(status == (is_none ? SYMWIN_TIMEOUT : SYMWIN_ABORTED) && now_us() - start < 5e6 &&
                   (i > 0 || strstr(symwin_last_error(), "a process was stopped") != NULL),
               "%s: %s", rows[i].name, symwin_last_error());
        sw_exchange_destroy(x);
    }
}

/* Another process clears the end that this one has made, decided or proposed: for this one it
 * stays. */
static void test_cleared(int decides)
{
    static const int through[2] = {-1, 1};
    const struct sw_exchange_hosts hosts = {
        .decides = decides, .decider = 1, .through = through, .send = send_nothing};
    struct sw_exchange *x = sw_exchange_create(2);
    const int64_t begin = sw_now_ms();
    symwin_status settled, later;
    uint64_t mine = 0, all[2];

    sw_exchange_set_hosts(x, &hosts);
    sw_exchange_fail(x, SYMWIN_ABORTED, 1);
    page_of(x)[decides ? 0 : PROPOSAL] = 0;
    settled = sw_exchange_settled(x, "test");
    page_of(x)[0] = 0;
    later = sw_exchange_allgather(x, 0, &mine, sizeof mine, all, 20000, "test");
    tap_ok(sw_exchange_ended(x) && settled == SYMWIN_ABORTED && later == SYMWIN_ABORTED &&
               sw_exchange_rounds(x, 0) == 0 && sw_now_ms() - begin < 5000,
           "an end that is %s, and cleared: %s", decides ? "decided" : "proposed",
           symwin_last_error());
    sw_exchange_destroy(x);
}

/* ---- the rank to blame ---- */

/* If a rank says that it waits for another one, that one is to blame, until the word is too old. */
static void test_waiting(void)
{
    struct sw_exchange *x = sw_exchange_create(3);

    sw_exchange_waits_for(x, 1, 2);
    TAP_EQ("a rank that waits for another", sw_exchange_culprit(x, 1), 2);
    sleep_us(150000);
    TAP_EQ("and has not said so for a while", sw_exchange_culprit(x, 1), 1);
    sw_exchange_waits_for(x, 1, 2);
    sw_exchange_waits_for(x, 1, -1);
    TAP_EQ("one that waits no more", sw_exchange_culprit(x, 1), 1);
    sw_exchange_destroy(x);
}

/* ---- leaving and ending ---- */

static void leaver(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    uint64_t mine = 0;
    uint64_t all[3];
    const double start = now_us();

    (void)team;
    if (rank == 1) {
        sleep_us(20000);
        if (s->late)
            sw_exchange_fail(s->x, SYMWIN_ABORTED, 1);
        else
            sw_exchange_leave(s->x, 1);
        return;
    }
    s->status[rank] = sw_exchange_allgather(s->x, rank, &mine, 8, all, 20000, "test");
    if (now_us() - start > 5e6)
        s->wrong++;
}

static void test_leaving(void)
{
    struct shared s = {.x = sw_exchange_create(3)};

    harness_run(3, leaver, &s);
    TAP_EQ("a rank that leaves is lost", s.status[0], SYMWIN_PEER_LOST);
    TAP_EQ("for all", s.status[2], SYMWIN_PEER_LOST);
    TAP_EQ("at once, not at the deadline", s.wrong, 0);
    sw_exchange_destroy(s.x);
    s = (struct shared){.x = sw_exchange_create(3), .late = 1};
    harness_run(3, leaver, &s);
    TAP_EQ("an abort ends the wait", s.status[0], SYMWIN_ABORTED);
    TAP_EQ("of all", s.status[2], SYMWIN_ABORTED);
    TAP_EQ("at once, too", s.wrong, 0);
    TAP_EQ("and is the status", sw_exchange_status(s.x, "test"), SYMWIN_ABORTED);
    sw_exchange_destroy(s.x);
}

/* ---- signals ---- */

static void nothing(int number)
{
    (void)number;
}

static void test_signals(void)
{
    struct sigaction action;
    const struct itimerval kilohertz = {{0, 1000}, {0, 1000}};
    const struct itimerval off = {{0, 0}, {0, 0}};

    memset(&action, 0, sizeof action);
    action.sa_handler = nothing; /* without SA_RESTART */
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &kilohertz, NULL);
    test_rounds(4);
    setitimer(ITIMER_REAL, &off, NULL);
}

/* ---- latency ---- */

static void timed(struct harness_team *team, int rank, void *arg)
{
    struct shared *s = arg;
    uint64_t all[4];
    uint64_t mine = 0;
    int k;

    (void)team;
    for (k = 0; k < TIMED; k++) {
        const double start = now_us();

        if (sw_exchange_allgather(s->x, rank, &mine, 8, all, 20000, "test") != SYMWIN_OK)
            s->wrong++;
        if (rank == 0)
            s->us[k] = now_us() - start;
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void test_latency(void)
{
    struct shared s = {.x = sw_exchange_create(4)};

    harness_run(4, timed, &s);
    qsort(s.us, TIMED, sizeof s.us[0], compare);
    tap_ok(s.wrong == 0, "%d exchanges of 4 ranks in a row", TIMED);
    printf("# agreement of 4 ranks: median %.1f us, 99%% %.1f us\n", s.us[TIMED / 2],
           s.us[TIMED * 99 / 100]);
    sw_exchange_destroy(s.x);
}

/* ---- several hosts ---- */

/* For `ms`, a rank of this host waits beyond its time for one of another host, and this host's
 * links are served. */
static void ask_for_ms(struct sw_exchange *x, int ms)
{
    const int64_t end = sw_now_ms() + ms;

    while (sw_now_ms() < end) {
        sw_exchange_ask(x);
        sw_exchange_beat(x);
        sleep_us(20000);
    }
}

/* Ranks 0 and 1 are on this host, 2 and 3 on another; rank 2's process has the host link. */
static void test_who_links(void)
{
    static const int through[4] = {-1, -1, 2, 2};
    static const struct sw_exchange_hosts hosts = {.decides = 1, .through = through};
    struct sw_exchange *x = sw_exchange_create(4);

    if (x == NULL)
        abort();
    sw_exchange_set_hosts(x, &hosts);
    sw_exchange_beat(x);
    tap_ok(!sw_exchange_is_asked(x) && sw_exchange_culprit(x, 3) == 3,
           "nobody asked: rank 3 is late");
    ask_for_ms(x, 200);
    tap_ok(sw_exchange_is_asked(x) && sw_exchange_culprit(x, 3) == 3 &&
               sw_exchange_culprit(x, 1) == 1,
           "asked for a moment");
    ask_for_ms(x, 300);
    tap_ok(sw_exchange_culprit(x, 3) == 2 && sw_exchange_culprit(x, 1) == 1,
           "no answer: it is who links rank 3's host");
    sw_exchange_heard(x, 2);
    tap_ok(sw_exchange_culprit(x, 3) == 3, "an answer: it is rank 3");
    sleep_us(600000);
    tap_ok(!sw_exchange_is_asked(x) && sw_exchange_culprit(x, 3) == 0,
           "who links this host says nothing: it is that one");
    sw_exchange_destroy(x);
}

/* The deciding host says which ranks of other hosts are gone. Here the word that a rank left may
 * have overtaken its posts. */
static void test_gone_elsewhere(void)
{
    static const int through[3] = {-1, 1, 1};
    struct sw_exchange_hosts hosts = {
        .decider = 1, .links = 0, .through = through, .send = send_nothing};
    symwin_status status[2];
    uint64_t mine = 0, all[3];
    int decides;

    for (decides = 0; decides < 2; decides++) {
        struct sw_exchange *x = sw_exchange_create(3);

        hosts.decides = decides;
        sw_exchange_set_hosts(x, &hosts);
        sw_exchange_leave(x, 2);
        status[decides] = sw_exchange_allgather(x, 0, &mine, sizeof mine, all, 100, "test");
        sw_exchange_destroy(x);
    }
    TAP_EQ("a rank elsewhere has left: where its host decides it is lost", status[1],
           SYMWIN_PEER_LOST);
    TAP_EQ("and where another does it is awaited", status[0], SYMWIN_TIMEOUT);
}

/* The host that decides waits for the word of the one whose rank is late, the others wait longer,
 * for the decision. */
static void test_allowance(void)
{
    static const int through[2] = {-1, 1};
    struct sw_exchange_hosts hosts = {
        .decider = 1, .links = 0, .through = through, .send = send_nothing};
    struct sw_exchange *x = sw_exchange_create(2);
    int there, here;

    sw_exchange_set_hosts(x, &hosts);
    there = sw_exchange_allowance(x, 1);
    hosts.decides = 1;
    here = sw_exchange_allowance(x, 1);
    tap_ok(
        sw_exchange_allowance(x, 0) == 0 && here > 0 && there >= here + 1000,
        "a late rank elsewhere is waited for %d ms where its end is decided, and %d ms elsewhere",
        here, there);
    sw_exchange_destroy(x);
}

/* What travels between hosts has no zeros at its end: those that were there before are put back. */
static void test_rest_of_a_post(void)
{
    static const unsigned char zeros[SW_EXCHANGE_BYTES];
    unsigned char full[SW_EXCHANGE_BYTES];
    struct sw_exchange *x = sw_exchange_create(1);

    memset(full, 7, sizeof full);
    sw_exchange_post(x, 0, 0, full, sizeof full);
    sw_exchange_post(x, 0, 1, full, 16);
    sw_exchange_post(x, 0, 2, full, 8);
    tap_ok(memcmp(sw_exchange_data(x, 0, 2), full, 8) == 0 &&
               memcmp(sw_exchange_data(x, 0, 2) + 8, zeros, sizeof zeros - 8) == 0,
           "a short post is followed by zeros, and not by an older one's bytes");
    sw_exchange_destroy(x);
}

static int is_cut_off(void *cut_off)
{
    return *(const int *)cut_off;
}

static void *decide_soon(void *x)
{
    sleep_us(100000);
    sw_exchange_decide(x, SYMWIN_PEER_LOST, 2);
    return NULL;
}

/* No rank reports an end that this host proposes before the deciding host answers or can no longer
 * answer. */
static void test_settled(void)
{
    static const int through[3] = {-1, -1, 2};
    static const struct {
        const char *what;
        int answers, cut_off;
        symwin_status status;
        int least_ms, most_ms;
    } rows[] = {{"the deciding host's word", 1, 0, SYMWIN_PEER_LOST, 90, 900},
                {"nobody's for a second", 0, 0, SYMWIN_ABORTED, 990, 10000},
                {"nobody's, since who decides has left", 0, 1, SYMWIN_ABORTED, 0, 900}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int cut_off = rows[i].cut_off;
        const struct sw_exchange_hosts hosts = {.decider = 2,
                                                .links = 0,
                                                .through = through,
                                                .send = send_nothing,
                                                .is_cut_off = is_cut_off,
                                                .context = &cut_off};
        struct sw_exchange *x = sw_exchange_create(3);
        symwin_status settled;
        pthread_t decider;
        int64_t start, took;

        sw_exchange_set_hosts(x, &hosts);
        TAP_EQ("no end: nothing to wait for", sw_exchange_settled(x, "test"), SYMWIN_OK);
        sw_exchange_fail(x, SYMWIN_ABORTED, 1);
        if (rows[i].answers && pthread_create(&decider, NULL, decide_soon, x) != 0)
            exit(1);
        start = sw_now_ms();
        settled = sw_exchange_settled(x, "test");
        took = sw_now_ms() - start;
        if (rows[i].answers)
            pthread_join(decider, NULL);
        tap_ok(settled == rows[i].status && sw_exchange_status(x, "test") == settled &&
                   took >= rows[i].least_ms && took <= rows[i].most_ms,
               "%s: %s after %d ms", rows[i].what, symwin_status_name(settled), (int)took);
        sw_exchange_destroy(x);
    }
}

int main(void)
{
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    test_rounds(1);
    test_rounds(2);
    test_rounds(5);
    test_rounds(72);
    test_late();
    test_nonsense();
    test_cleared(0);
    test_cleared(1);
    test_waiting();
    test_race();
    test_leaving();
    test_signals();
    test_latency();
    test_who_links();
    test_gone_elsewhere();
    test_allowance();
    test_rest_of_a_post();
    test_settled();
    return tap_done();
}
