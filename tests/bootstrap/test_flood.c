/* Ten thousand connections a second while a job of four starts: how much later does it start?
 *
 *     test_flood [HELD]    how many connections are held over TCP (500; make soak: 10,000) */
#include <sys/resource.h>

#include "hostile.h"

/* Under a sanitizer the creator accepts more slowly than the flood connects. A full queue of TCP
 * connections drops a rank's first packet, which is sent again after a second. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RUNS = 1, SLOWER = 10 };
#else
enum { RUNS = 9, SLOWER = 1 };
#endif
enum { RANKS = 4, FLOODERS = 2, PER_SECOND = 10000, KEPT = 100, HELD = 500 };

/* The goal is twice the time without a flood. Here the flood takes processors from the ranks, so
 * the test accepts more; it prints what it measured. */
enum { MOST_TIMES = 10, MOST_MS = 1000 };

enum kind { QUIET, COME_AND_GO, STAY, SAY_HELLO, QUIET_TCP, HELD_TCP, HELLO_TCP, KINDS };

static const char *const kind_names[] = {"in quiet",
                                         "connections that close at once",
                                         "connections that stay",
                                         "connections that say HELLO",
                                         "on two hosts, in quiet",
                                         "connections over TCP that are held",
                                         "connections over TCP that say HELLO"};

static long held_count = HELD; /* by all flooders, over TCP */

static int is_quiet(enum kind kind)
{
    return kind == QUIET || kind == QUIET_TCP;
}

/* 0: could not connect. */
static int begin_tcp(struct hostile *h, const symwin_unique_id *id)
{
    struct sockaddr_in to = {.sin_family = AF_INET};

    memcpy(&h->id, id, sizeof h->id);
    to.sin_port = h->id.port;
    memcpy(&to.sin_addr, h->id.address, sizeof to.sin_addr);
    memset(&h->hello, 0, sizeof h->hello.hello);
    sw_id_name(&h->id, h->hello.hello.name);
    sw_frame_seal(&h->hello, SW_FRAME_HELLO);
    h->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->socket < 0)
        return 0;
    if (connect(h->socket, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS)
        return 1;
    close(h->socket);
    return 0;
}

/* Keeps the newest connections. rank[].step: 1 once the flood has begun; rank[].number: connections
 * so far. */
static void flooder(struct processes *p, int rank)
{
    const enum kind kind = *(const enum kind *)p->arg;
    const long keeps = kind > QUIET_TCP ? held_count / FLOODERS : KEPT;
    const struct rlimit limit = {(rlim_t)keeps + 64, (rlim_t)keeps + 64};
    int *kept = malloc((size_t)keeps * sizeof *kept);
    struct hostile h;
    int64_t begin;
    long made = 0, i;
    int r;

    if (kept == NULL || (kind > QUIET_TCP && setrlimit(RLIMIT_NOFILE, &limit) != 0)) {
        perror("a flooder's descriptors");
        exit(1);
    }
    for (i = 0; i < keeps; i++)
        kept[i] = -1;
    hostile_wait_for_id(p);
    begin = processes_now_us();
    for (r = 0; r < RANKS;) {
        const long at = made % keeps;

        if (kept[at] >= 0)
            close(kept[at]);
        kept[at] = -1;
        made++; /* includes failures: once the ranks have met, nobody listens */
        if (kind > QUIET_TCP ? begin_tcp(&h, &p->id) : hostile_begin(&h, &p->id)) {
            if (kind == SAY_HELLO || kind == HELLO_TCP)
                (void)send(h.socket, &h.hello, h.hello.header.bytes, MSG_NOSIGNAL);
            if (kind == COME_AND_GO)
                close(h.socket);
            else
                kept[at] = h.socket;
        }
        if (made == keeps)
            p->rank[rank].step = 1;
        while (made * 1000000 / (PER_SECOND / FLOODERS) > processes_now_us() - begin)
            usleep(1000);
        while (r < RANKS && p->rank[r].status >= 0)
            r++;
    }
    p->rank[rank].number = made * 1000000 / (processes_now_us() - begin);
    for (i = 0; i < keeps; i++)
        if (kept[i] >= 0)
            close(kept[i]);
    free(kept);
}

static void job(struct processes *p, int rank)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    const enum kind kind = *(const enum kind *)p->arg;
    symwin_comm *comm = NULL;
    int f;

    if (kind >= QUIET_TCP)
        processes_on_host("aabb", rank);
    harness_device_count(); /* loads the driver first: it is not part of the measured time */
    processes_id(p, rank);
    for (f = RANKS; f < RANKS + FLOODERS && !is_quiet(kind); f++)
        while (p->rank[f].step == 0)
            usleep(200);
    processes_barrier(p);
    p->rank[rank].number = processes_now_us();
    host_must(processes_note(p, rank,
                             symwin_comm_create(&p->id, RANKS, rank, rank % harness_device_count(),
                                                &options, &comm)),
              "symwin_comm_create");
    symwin_comm_destroy(comm);
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Microseconds from the first rank's call to the last one's return; -1: the job did not start. */
static int64_t run(enum kind kind, int64_t *rate)
{
    struct processes *p = processes_new(RANKS, &kind);
    int64_t first = INT64_MAX, last = 0;
    int right = 1;
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, job);
    for (r = RANKS; r < RANKS + FLOODERS && !is_quiet(kind); r++)
        processes_fork(p, r, flooder);
    *rate = 0;
    for (r = 0; r < RANKS + (is_quiet(kind) ? 0 : FLOODERS); r++) {
        right &= processes_wait(p, r) == 0;
        if (r >= RANKS)
            *rate += p->rank[r].number;
        else if (p->rank[r].number < first)
            first = p->rank[r].number;
        if (r < RANKS && p->rank[r].at_us > last)
            last = p->rank[r].at_us;
        if (r < RANKS && p->rank[r].status != SYMWIN_OK)
            printf("# %s: rank %d: %s\n", kind_names[kind], r, p->rank[r].text);
    }
    processes_free(p);
    return right ? last - first : -1;
}

int main(int argc, char **argv)
{
    int64_t us[RUNS], rates[RUNS], quiet = 0;
    int64_t most_ms = MOST_MS * SLOWER;
    enum kind kind;
    int i;

    if (argc > 1)
        held_count = atol(argv[1]);
    if (held_count > HELD) /* they all need the processors, too */
        most_ms = MOST_MS * 10;
    for (kind = QUIET; kind < KINDS; kind++) {
        int failed = 0;

        for (i = 0; i < RUNS; i++) {
            us[i] = run(kind, &rates[i]);
            failed += us[i] < 0;
        }
        qsort(us, RUNS, sizeof us[0], by_size);
        qsort(rates, RUNS, sizeof rates[0], by_size);
        if (is_quiet(kind))
            quiet = us[RUNS / 2];
        printf("# %s: a job of %d starts in %.1f ms (median of %d, %.1f to %.1f), %.1f times the "
               "quiet one; %lld connections a second\n",
               kind_names[kind], RANKS, (double)us[RUNS / 2] / 1000, RUNS, (double)us[0] / 1000,
               (double)us[RUNS - 1] / 1000, (double)us[RUNS / 2] / (double)quiet,
               (long long)rates[RUNS / 2]);
        TAP_EQ(kind_names[kind], failed, 0);
        tap_ok(us[RUNS / 2] <= MOST_TIMES * quiet || us[RUNS / 2] < most_ms * 1000,
               "%s: soon enough", kind_names[kind]);
    }
    return tap_done();
}
