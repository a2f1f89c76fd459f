/* What a rank leaves on its host's control page before it ends the communicator: what kernels have
 * found. */
#include "harness.h"
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

int main(void)
{
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    test_two_findings();
    test_no_finding();
    return tap_done();
}
