/* 65,536 ranks in 8,192 hosts, and the most that there can be: the table of ranks in frames, an
 * exchange whose other members this program plays, the words in which ranks are named, domains. */
#include <errno.h>
#include <sys/mman.h>

#include "harness.h"
#include "src/control/control_page.h"
#include "src/rails/domains.c"

enum { RANKS = 65536, A_HOST = 8, SOON_MS = 50, WAIT_MS = 60000 };

static const char call[] = "symwin_window_register";

/* ---- the table ------------------------------------------------------------------------------- */

static void fill(struct sw_rank_table *table)
{
    int r;

    *table = (struct sw_rank_table){.nranks = RANKS, .processes = RANKS, .hosts = RANKS / A_HOST};
    table->locations = calloc(RANKS, sizeof *table->locations);
    if (table->locations == NULL)
        abort();
    for (r = 0; r < RANKS; r++)
        table->locations[r] = (struct sw_frame_location){(uint32_t)(RANKS - 1 - r),
                                                         (uint32_t)(r % (RANKS / A_HOST))};
}

/* Fills in the frame with the locations from `first` on. Returns the rank after the last. */
static int frame_of(const struct sw_rank_table *table, int first, union sw_frame *frame)
{
    const int next = sw_rank_table_put(table, first, frame);

    sw_frame_seal(frame, SW_FRAME_TABLE);
    return next;
}

static void test_table(void)
{
    struct sw_rank_table table, got = {.nranks = 0};
    union sw_frame frame;
    int first = 0, frames = 0, valid = 1, error = 0;

    fill(&table);
    while (first < RANKS && error == 0 && valid) {
        first = frame_of(&table, first, &frame);
        valid = sw_frame_valid(&frame, frame.header.bytes);
        error = sw_rank_table_take(&got, &frame.table);
        frames++;
    }
    tap_ok(valid && error == 0 && frames == (RANKS + SW_TABLE_PART - 1) / SW_TABLE_PART,
           "a table of %d ranks is %d frames", RANKS, frames);
    tap_ok(got.have == RANKS && got.nranks == RANKS && got.processes == RANKS &&
               got.hosts == RANKS / A_HOST &&
               memcmp(got.locations, table.locations, RANKS * sizeof *got.locations) == 0,
           "they bring the same table");
    tap_ok(sw_rank_table_take(&got, &frame.table) == EPROTO, "no frame comes after the last");
    sw_rank_table_free(&got);
    sw_rank_table_free(&table);
}

static void test_wrong_tables(void)
{
    static const struct {
        const char *what;
        int first, nranks, processes, hosts;
    } rows[] = {
        {"a frame that has come before", 0, 0, 0, 0},
        {"one that leaves out some", 2 * SW_TABLE_PART, 0, 0, 0},
        {"one of more ranks", SW_TABLE_PART, 1, 0, 0},
        {"of fewer processes", SW_TABLE_PART, 0, -1, 0},
        {"of more hosts", SW_TABLE_PART, 0, 0, 1},
    };
    struct sw_rank_table table, got;
    union sw_frame frame;
    size_t i;

    fill(&table);
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        got = (struct sw_rank_table){.nranks = 0};
        frame_of(&table, 0, &frame);
        host_must(sw_rank_table_take(&got, &frame.table) == 0 ? SYMWIN_OK : SYMWIN_INVALID, "take");
        frame_of(&table, rows[i].first, &frame);
        frame.table.nranks += rows[i].nranks;
        frame.table.processes += rows[i].processes;
        frame.table.hosts += rows[i].hosts;
        tap_ok(sw_rank_table_take(&got, &frame.table) == EPROTO && got.have == SW_TABLE_PART,
               "refused: %s", rows[i].what);
        sw_rank_table_free(&got);
    }
    sw_rank_table_free(&table);
}

/* ---- the exchange ---------------------------------------------------------------------------- */

static void post_others(struct sw_exchange *x, uint64_t round, int but)
{
    int r;

    for (r = 1; r < RANKS; r++) {
        const uint64_t mine = (uint64_t)r * 3 + round;

        if (r != but)
            sw_exchange_post(x, r, round, &mine, sizeof mine);
    }
}

static void test_exchange(void)
{
    struct sw_exchange *x = sw_exchange_create(RANKS);
    uint64_t *all = calloc(RANKS, sizeof *all), mine, round;
    symwin_status status = SYMWIN_OK;
    int r, wrong = 0, culprit;

    if (x == NULL || all == NULL)
        abort();
    sw_exchange_be_built(x);
    for (round = 0; round < 2; round++) {
        post_others(x, round, 0);
        mine = round;
        status = sw_exchange_allgather(x, 0, &mine, sizeof mine, all, WAIT_MS, call);
        for (r = 0; r < RANKS; r++)
            wrong += status != SYMWIN_OK || all[r] != (uint64_t)r * 3 + round;
    }
    TAP_EQ("wrong values of two rounds", wrong, 0);
    post_others(x, 2, RANKS - 2);
    status = sw_exchange_allgather(x, 0, &mine, sizeof mine, all, SOON_MS, call);
    tap_ok(status == SYMWIN_TIMEOUT &&
               strstr(symwin_last_error(), "rank 65534 did not come") != NULL,
           "the rank that is late is named: %s", symwin_last_error());
    tap_ok(sw_exchange_outcome(x, &status, &culprit) && culprit == RANKS - 2 &&
               sw_exchange_complete(x) == 2,
           "in the word, beside %d rounds", 2);
    sw_exchange_destroy(x);

    x = sw_exchange_create(RANKS);
    if (x == NULL)
        abort();
    sw_exchange_waits_for(x, 5, RANKS - 1);
    TAP_EQ("who is to blame when rank 5 waits for the last", sw_exchange_culprit(x, 5), RANKS - 1);
    sw_exchange_destroy(x);
    free(all);
}

static void test_words(void)
{
    static const int culprits[] = {0, 1, 4095, 4096, RANKS, SW_MAX_RANKS - 1, SW_NOBODY};
    size_t i;
    int wrong = 0;

    for (i = 0; i < sizeof culprits / sizeof culprits[0]; i++) {
        const uint64_t word = sw_end_of(SYMWIN_STATUS_LAST, culprits[i]) | SW_END_COUNT_MASK;

        wrong += sw_end_status(word) != SYMWIN_STATUS_LAST || sw_end_culprit(word) != culprits[i];
    }
    TAP_EQ("culprits that a word does not keep", wrong, 0);
    tap_ok(SW_MAX_RANKS == 131072 && SW_NOBODY >= SW_MAX_RANKS, "nobody is no rank");
}

/* ---- domains --------------------------------------------------------------------------------- */

static void test_domains(void)
{
    int *class_of = calloc(RANKS, sizeof *class_of), r, wrong = 0;
    struct sw_domains d;

    if (class_of == NULL)
        abort();
    for (r = 0; r < RANKS; r++) /* hosts in turn, the last one has rank 0 */
        class_of[r] = RANKS / A_HOST - 1 - r % (RANKS / A_HOST);
    if (!sw_domains_make(&d, RANKS, class_of))
        abort();
    tap_ok(d.count == RANKS / A_HOST && d.rails == A_HOST && !d.regular, "%d domains of %d",
           d.count, d.rails);
    for (r = 0; r < RANKS; r++)
        wrong += d.domain_of[r] != r % (RANKS / A_HOST) || d.index_of[r] != r / (RANKS / A_HOST) ||
                 sw_domain_rank(&d, d.domain_of[r], d.index_of[r]) != r;
    TAP_EQ("ranks in a wrong place", wrong, 0);
    sw_domains_free(&d);
    free(class_of);
    tap_ok(sw_domains_check(4096, "f") == SYMWIN_OK &&
               sw_domains_check(4097, "f") == SYMWIN_UNSUPPORTED &&
               strncmp(symwin_last_error(), "f: 4097 ranks can map", 21) == 0,
           "a domain has at most 4096 ranks: %s", symwin_last_error());
}

/* A rank on each host, more than the row of a rank has bits for. Behind the rows is no memory. */
static void test_many_hosts(void)
{
    enum { HOSTS = 2 * MOST_HOSTS };
    const size_t bytes = (size_t)HOSTS * SW_EXCHANGE_BYTES, page = (size_t)getpagesize();
    unsigned char *seen = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static int lowest[HOSTS], host_class[HOSTS];
    const struct sw_group group = {.nranks = HOSTS, .hosts = HOSTS};
    int h, wrong = 0;

    if (seen == MAP_FAILED || mprotect(seen + bytes, page, PROT_NONE) != 0)
        abort();
    for (h = 0; h < HOSTS; h++)
        lowest[h] = h;
    classify(&group, lowest, seen, host_class);
    for (h = 0; h < HOSTS; h++)
        wrong += host_class[h] != h;
    TAP_EQ("hosts that are no domain of their own", wrong, 0);
    munmap(seen, bytes + page);
}

int main(void)
{
    test_table();
    test_wrong_tables();
    test_exchange();
    test_words();
    test_domains();
    test_many_hosts();
    return tap_done();
}
