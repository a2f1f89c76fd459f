/* Hosts that are a tree, all in this process: each has two ranks, and links to the host above
 * it and the two below. Posts, ends, leaves and messages get from each host to all, and the
 * host that has gone or does not answer is named everywhere. Then they are a chain. */
#include "host_pair.h"

enum { TREE = 7, EACH = 2, ALL = TREE * EACH, ROUNDS = 5, WAIT_MS = 20000 };

/* In the order of the hosts:      0
 *                             1       2
 *                           3   4   5   6  */
static int fan = 2;
static struct sw_group tree[TREE];
static atomic_int queued[TREE][ALL];
static int where[ALL];
static int number_got[TREE]; /* of the last message; under the poll lock */

static int deliver(struct sw_group *group, const struct sw_frame_message *words)
{
    if (where[words->to] != group->host)
        return sw_mailbox_forward(group, words);
    number_got[group->host] = (int)words->number;
    return 1;
}

static void ended(void *group)
{
    sw_host_link_end(group);
}

static void tree_open(void)
{
    struct sw_connection ends[TREE][TREE];
    int h, k, r, fds[2];

    for (r = 0; r < ALL; r++)
        where[r] = r / EACH;
    for (h = 0; h < TREE; h++) {
        tree[h] = (struct sw_group){.nranks = ALL,
                                    .nlocal = EACH,
                                    .leader = EACH * h,
                                    .process = h,
                                    .processes = TREE,
                                    .host = h,
                                    .hosts = TREE,
                                    .fan = fan,
                                    .process_of = where,
                                    .host_of = where,
                                    .queued = queued[h],
                                    .exchange = sw_exchange_create(ALL)};
        for (k = 0; k < TREE; k++)
            ends[h][k] = (struct sw_connection){.fd = -1};
        number_got[h] = 0;
        if (tree[h].exchange == NULL || !sw_host_link_create(&tree[h]))
            abort();
        sw_exchange_be_built(tree[h].exchange);
        sw_exchange_on_end(tree[h].exchange, ended, &tree[h]);
    }
    for (h = 1; h < TREE; h++) {
        const int above = (h - 1) / fan;

        connect_pair(fds);
        if (sw_connection_open(&ends[h][above], fds[0], 1) != 0 ||
            sw_connection_open(&ends[above][h], fds[1], 1) != 0)
            abort();
    }
    sw_poll_lock();
    for (h = 0; h < TREE; h++)
        host_must(sw_host_link_start(&tree[h], ends[h], deliver), "sw_host_link_start");
    sw_poll_unlock();
}

static void tree_close(void)
{
    int h;

    sw_poll_lock();
    for (h = 0; h < TREE; h++)
        sw_host_link_stop(&tree[h]);
    sw_poll_unlock();
    sw_poll_settle();
    for (h = 0; h < TREE; h++)
        sw_exchange_destroy(tree[h].exchange);
}

/* ---- the way between hosts ---- */

static void test_way(void)
{
    static const struct {
        int from, to, next;
    } rows[] = {{0, 1, 1}, {0, 4, 1}, {0, 5, 2}, {1, 4, 4}, {1, 0, 0}, {1, 6, 0},
                {1, 2, 0}, {3, 4, 1}, {3, 0, 1}, {6, 3, 2}, {2, 3, 0}, {2, 5, 5}};
    const struct sw_group group = {.fan = fan}, star = {.fan = TREE};
    size_t i;
    int h, wrong = 0;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
        tap_ok(sw_host_link_next(&group, rows[i].from, rows[i].to) == rows[i].next,
               "from host %d to %d by host %d", rows[i].from, rows[i].to, rows[i].next);
    for (h = 1; h < TREE; h++)
        wrong += sw_host_link_next(&star, 0, h) != h || sw_host_link_next(&star, h, 0) != 0 ||
                 sw_host_link_next(&star, h, h % (TREE - 1) + 1) != 0;
    TAP_EQ("wrong ways in a star", wrong, 0);
}

/* ---- posts ---- */

struct rank {
    pthread_t thread;
    int number, absent, timeout_ms, wrong;
    symwin_status status;
    char text[SW_TEXT_BYTES];
};

static void *agree(void *arg)
{
    unsigned char mine[SW_EXCHANGE_BYTES];
    static unsigned char all[ALL][ALL][SW_EXCHANGE_BYTES];
    struct rank *rank = arg;
    struct sw_group *group = &tree[where[rank->number]];
    int round, r;

    for (round = 0; round < ROUNDS && !rank->absent && rank->status == SYMWIN_OK; round++) {
        memset(mine, rank->number * ROUNDS + round + 1, sizeof mine);
        rank->status = sw_exchange_allgather(group->exchange, rank->number, mine, sizeof mine,
                                             all[rank->number], rank->timeout_ms, "test");
        for (r = 0; r < ALL && rank->status == SYMWIN_OK; r++)
            rank->wrong += all[rank->number][r][0] != r * ROUNDS + round + 1 ||
                           all[rank->number][r][511] != r * ROUNDS + round + 1;
    }
    snprintf(rank->text, sizeof rank->text, "%s", symwin_last_error());
    return NULL;
}

/* `absent` -1: all ranks come. */
static void run(struct rank *ranks, int absent, int timeout_ms)
{
    int r;

    for (r = 0; r < ALL; r++) {
        ranks[r] = (struct rank){.number = r, .absent = r == absent, .timeout_ms = timeout_ms};
        if (pthread_create(&ranks[r].thread, NULL, agree, &ranks[r]) != 0)
            abort();
    }
    for (r = 0; r < ALL; r++)
        pthread_join(ranks[r].thread, NULL);
}

static void test_rounds(void)
{
    struct rank ranks[ALL];
    int r, failed = 0, wrong = 0;

    tree_open();
    run(ranks, -1, WAIT_MS);
    for (r = 0; r < ALL; r++) {
        failed += ranks[r].status != SYMWIN_OK;
        wrong += ranks[r].wrong;
        if (ranks[r].status != SYMWIN_OK)
            printf("# rank %d: %s\n", r, ranks[r].text);
    }
    tap_ok(failed == 0 && wrong == 0, "%d rounds: %d ranks fail, %d values are wrong", ROUNDS,
           failed, wrong);
    tree_close();
}

static void test_absent(int absent)
{
    struct rank ranks[ALL];
    char name[32];
    int r, right = 0;

    tree_open();
    run(ranks, absent, 200);
    snprintf(name, sizeof name, "rank %d did not", absent);
    for (r = 0; r < ALL; r++)
        right += r != absent && ranks[r].status == SYMWIN_TIMEOUT &&
                 (strstr(ranks[r].text, name) != NULL ||
                  strstr(ranks[r].text, "other ranks waited for") != NULL);
    tap_ok(right == ALL - 1, "rank %d is late: %d ranks are told: %s", absent, right,
           ranks[absent == 0].text);
    tree_close();
}

/* ---- ends ---- */

/* How many hosts have decided on that end; `but` is not asked. */
static int hosts_that_know(symwin_status status, int culprit, int but)
{
    const int64_t end = sw_now_ms() + SOON_MS;
    int h, know = 0;

    while (know < TREE - (but >= 0) && sw_now_ms() < end) {
        host_pause_ms(1);
        for (h = know = 0; h < TREE; h++) {
            symwin_status got = SYMWIN_OK;
            int named = -1;

            know += h != but && sw_exchange_is_decided(tree[h].exchange) &&
                    sw_exchange_outcome(tree[h].exchange, &got, &named) && got == status &&
                    named == culprit;
        }
    }
    return know;
}

static void test_end(int host)
{
    static const char words[] = "symwin_send: so";
    char text[SW_WHY_BYTES];
    int h, told = 0;

    tree_open();
    sw_exchange_say_why(tree[host].exchange, EACH * host + 1, words);
    sw_exchange_fail(tree[host].exchange, SYMWIN_ABORTED, EACH * host + 1);
    TAP_EQ("hosts that learn of an end", hosts_that_know(SYMWIN_ABORTED, EACH * host + 1, -1),
           TREE);
    for (h = 0; h < TREE; h++)
        told += sw_exchange_why(tree[h].exchange, EACH * host + 1, text) &&
                strcmp(text, words) == 0;
    TAP_EQ("hosts that learn why", told, TREE);
    tree_close();
}

/* Only host 0 decides: what an inner host proposes is no end for those below it. */
static void test_proposal(void)
{
    int told;

    tree_open();
    pthread_mutex_lock(&tree[1].links[0].mutex);
    sw_exchange_fail(tree[1].exchange, SYMWIN_ABORTED, 2);
    host_pause_ms(QUIET_MS);
    told = sw_exchange_ended(tree[3].exchange) || sw_exchange_ended(tree[4].exchange);
    pthread_mutex_unlock(&tree[1].links[0].mutex);
    TAP_EQ("hosts below one that has proposed an end are told before host 0 decides", told, 0);
    sw_exchange_fail(tree[0].exchange, SYMWIN_PEER_LOST, 13);
    TAP_EQ("hosts that learn what host 0 has decided", hosts_that_know(SYMWIN_PEER_LOST, 13, -1),
           TREE);
    tree_close();
}

/* Which host cuts host 3 off from host 0, when all its ranks leave. */
static void test_cut_off(void)
{
    static const int cuts[TREE] = {1, 1, 0, 1, 0, 0, 0};
    int h, r, wrong = 0;

    for (h = 0; h < TREE; h++) {
        tree_open();
        wrong += tree[3].exchange_hosts.is_cut_off(&tree[3]);
        for (r = EACH * h; r < EACH * (h + 1); r++)
            sw_exchange_leave(tree[3].exchange, r);
        wrong += tree[3].exchange_hosts.is_cut_off(&tree[3]) != cuts[h];
        tree_close();
    }
    TAP_EQ("hosts that wrongly cut off another, or do not", wrong, 0);
}

static void close_links(int host)
{
    int h;

    sw_poll_lock();
    for (h = 0; h < TREE; h++)
        if (tree[host].links[h].connection.fd >= 0) {
            sw_poll_remove(&tree[host].links[h].watch);
            shutdown(tree[host].links[h].connection.fd, SHUT_RDWR);
        }
    sw_poll_unlock();
}

static void test_lost(int host)
{
    tree_open();
    close_links(host);
    tap_ok(hosts_that_know(SYMWIN_PEER_LOST, EACH * host, host) == TREE - 1,
           "host %d has gone: all others name its lowest rank", host);
    tree_close();
}

/* A rank of host `from` waits for a rank of a host that reads nothing: that host is named, not the
 * rank, whichever way its host is. */
static void test_silent(int from, int silent, int most_turns)
{
    symwin_status status = SYMWIN_OK;
    int h, turns = 0, culprit = -1;

    tree_open();
    sw_poll_lock();
    for (h = 0; h < TREE; h++)
        sw_poll_remove(&tree[silent].links[h].watch);
    sw_poll_unlock();
    while (!sw_exchange_outcome(tree[from].exchange, &status, &culprit) && turns++ < most_turns) {
        sw_exchange_ask(tree[from].exchange);
        culprit = sw_exchange_culprit(tree[from].exchange, EACH * silent + 1);
        if (culprit == EACH * silent)
            break;
        host_pause_ms(50);
    }
    tap_ok(culprit == EACH * silent, "host %d asks for host %d: rank %d is named after %d ms", from,
           silent, culprit, 50 * turns);
    tree_close();
}

/* A host whose ranks have left, and whose links are closed, need not answer. */
static void test_left(int host)
{
    symwin_status status = SYMWIN_OK;
    int r, turns, culprit = -1;

    tree_open();
    for (r = EACH * host; r < EACH * (host + 1); r++) {
        sw_exchange_leave(tree[host].exchange, r);
        sw_host_link_leave(&tree[host], r, -1);
    }
    sw_host_link_settle(&tree[host]);
    close_links(host);
    for (turns = 0; turns < 25 && !sw_exchange_ended(tree[0].exchange); turns++) {
        sw_exchange_ask(tree[0].exchange);
        host_pause_ms(50);
    }
    (void)sw_exchange_outcome(tree[0].exchange, &status, &culprit);
    tap_ok(status == SYMWIN_OK, "host %d has left, and others ask: %s, rank %d", host,
           symwin_status_name(status), culprit);
    tree_close();
}

/* ---- who is believed ---- */

/* A frame in which a host says that a rank leaves. */
static void test_claims(void)
{
    static const struct {
        int from, to, rank, believed;
    } rows[] = {{3, 1, 6, 1},  {3, 1, 2, 0}, {3, 1, 8, 0}, {3, 1, 10, 0}, {1, 3, 2, 1},
                {1, 3, 10, 1}, {1, 3, 7, 0}, {1, 0, 9, 1}, {1, 0, 5, 0},  {1, 0, 1, 0}};
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const int from = rows[i].from, rank = rows[i].rank;
        symwin_status status = SYMWIN_OK;
        struct sw_exchange *x;
        int named = -1, turns = 0;
        union sw_frame frame;

        tree_open();
        x = tree[rows[i].to].exchange;
        memset(&frame, 0, sizeof frame.end);
        frame.end.rank = rank;
        sw_frame_seal(&frame, SW_FRAME_LEAVE);
        if (sw_connection_send(&tree[from].links[rows[i].to].connection, &frame, -1,
                               sw_now_ms() + SOON_MS) != 0)
            abort();
        while (!sw_exchange_has_left(x, rank) && !sw_exchange_outcome(x, &status, &named) &&
               turns++ < SOON_MS)
            host_pause_ms(1);
        tap_ok(sw_exchange_has_left(x, rank) == rows[i].believed &&
                   (rows[i].believed || (status == SYMWIN_PEER_LOST && named == EACH * from)),
               "host %d says of rank %d to host %d: %s", from, rank, rows[i].to,
               rows[i].believed ? "believed" : "refused, and named");
        tree_close();
    }
}

/* ---- leaves and messages ---- */

static void test_leaves(void)
{
    const int64_t end = sw_now_ms() + SOON_MS;
    int know = 0, h;

    tree_open();
    sw_exchange_leave(tree[4].exchange, 9);
    sw_host_link_leave(&tree[4], 9, -1);
    while (know < TREE && sw_now_ms() < end) {
        host_pause_ms(1);
        for (h = know = 0; h < TREE; h++)
            know += sw_exchange_has_left(tree[h].exchange, 9);
    }
    TAP_EQ("hosts that learn that a rank has left", know, TREE);
    tree_close();
}

static void test_messages(void)
{
    int from, to, arrived = 0, turns;

    tree_open();
    for (from = 0; from < TREE; from++)
        for (to = 0; to < TREE; to++) {
            const struct sw_frame_message words = {.header = {.magic = SW_FRAME_MAGIC,
                                                              .form = SW_FRAME_FORM,
                                                              .type = SW_FRAME_MESSAGE,
                                                              .bytes = sizeof words},
                                                   .from = EACH * from,
                                                   .to = EACH * to + 1,
                                                   .kind = SW_MESSAGE_GONE,
                                                   .number = (uint64_t)(from * TREE + to + 1)};
            int got = 0;

            if (from == to)
                continue;
            (void)sw_host_link_message(&tree[from], sw_host_link_next(&tree[from], from, to),
                                       &words);
            for (turns = 0; turns < SOON_MS && got != (int)words.number; turns++) {
                host_pause_ms(1);
                sw_poll_lock();
                got = number_got[to];
                sw_poll_unlock();
            }
            arrived += got == (int)words.number;
        }
    TAP_EQ("messages between each two hosts", arrived, TREE * (TREE - 1));
    tree_close();
}

int main(void)
{
    static const int asked[][2] = {{0, 2}, {0, 5}, {3, 2}, {3, 5}, {3, 4}, {1, 2}};
    static const int far_off[][2] = {{0, 1}, {0, 3}, {0, 6}, {2, 6}};
    struct harness_leaks before;
    size_t i;
    int h;

    harness_start();
    before = harness_leaks_now();
    test_way();
    test_rounds();
    test_absent(0);
    test_absent(3);
    test_absent(13);
    for (h = 0; h < TREE; h++) {
        test_end(h);
        test_lost(h);
    }
    for (h = 1; h < TREE; h++)
        test_silent(0, h, 20);
    test_proposal();
    test_cut_off();
    for (i = 0; i < sizeof asked / sizeof asked[0]; i++)
        test_silent(asked[i][0], asked[i][1], 30);
    test_left(3);
    test_left(6);
    test_claims();
    test_leaves();
    test_messages();
    fan = 1;
    test_rounds();
    test_absent(1);
    test_absent(13);
    test_end(TREE - 1);
    test_lost(3);
    test_left(TREE - 1);
    test_leaves();
    test_messages();
    for (i = 0; i < sizeof far_off / sizeof far_off[0]; i++)
        test_silent(far_off[i][0], far_off[i][1], 30);
    harness_no_leaks("links", &before);
    return tap_done();
}
