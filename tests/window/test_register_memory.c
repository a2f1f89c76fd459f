/* One rank runs out of host memory at each step of a captured call. All ranks get one status. A
 * buffer that nobody registered fails no call. No graph reference stays behind: the buffers can be
 * freed. */
#include "steps.h"
#include "user_memory.h"

enum { RANKS = 2, VICTIM = 1, MOST = 64 };

static struct trial {
    long steps[MOST]; /* steps at which the victim allocates */
    int count;
    int counting;
    long nth; /* the step that fails; 0: none */
    /* Steps that failed. Where ranks take turns, the other rank may have allocated instead. */
    int hits;
    int registered;
    symwin_status status[RANKS];
} trial;

static _Thread_local int is_victim;

static void see(const char *name)
{
    if (is_victim && trial.counting && strstr(name, "alloc") != NULL && trial.count < MOST)
        trial.steps[trial.count++] = steps_taken() + 1;
}

static void captured(struct harness_team *team, int rank, void *arg)
{
    symwin_registration *registration = NULL;
    CUgraph graph = NULL;
    struct member m;
    void *buffer;

    (void)arg;
    is_victim = rank == VICTIM;
    steps_i_am(rank);
    open_member(&m, team, rank, 0, SHORT_MS);
    buffer = host_alloc(m.device, BYTES);
    if (trial.registered)
        registration = enter(&m, buffer, BYTES);
    harness_barrier(team);
    if (rank == VICTIM) {
        steps_plan(trial.nth == 0 ? 1 << 30 : trial.nth, STEPS_FAIL, 0, 0);
        trial.counting = trial.nth == 0;
    }
    harness_barrier(team);
    host_must_cuda(sw_drv.cuStreamBeginCapture(m.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
    trial.status[rank] = reduce(&m, buffer, buffer);
    harness_barrier(team);
    if (rank == VICTIM) {
        trial.counting = 0;
        if (trial.nth != 0)
            trial.hits += steps_hit() != NULL && strstr(steps_hit(), "alloc") != NULL;
        steps_off();
    }
    harness_barrier(team);
    host_must_cuda(sw_drv.cuStreamEndCapture(m.stream, &graph), "cuStreamEndCapture");
    if (graph != NULL)
        host_must_cuda(sw_drv.cuGraphDestroy(graph), "cuGraphDestroy");
    if (trial.registered)
        leave(&m, registration);
    if (trial.nth != 0)
        host_expect("nothing holds the buffer", symwin_mem_free(buffer), SYMWIN_OK, "");
    else
        host_must(symwin_mem_free(buffer), "free");
    harness_barrier(team);
    close_member(&m);
}

int main(void)
{
    int i;

    harness_start();
    if (!sw_driver_is_emulated())
        tap_skip_all("the emulated driver's calls are steps");
    steps_only(VICTIM);
    steps_each(see);
    for (trial.registered = 0; trial.registered < 2; trial.registered++) {
        trial.count = 0;
        trial.nth = 0;
        trial.hits = 0;
        run("no fault", RANKS, captured, NULL);
        printf("# %d steps ask for memory\n", trial.count);
        tap_ok(trial.count > 0 && trial.status[0] == SYMWIN_OK, "steps that ask for memory");
        for (i = 0; i < trial.count; i++) {
            trial.nth = trial.steps[i];
            run("a fault", RANKS, captured, NULL);
            tap_ok(trial.status[0] == trial.status[1], "step %ld: one status, %s and %s", trial.nth,
                   symwin_status_name(trial.status[0]), symwin_status_name(trial.status[1]));
            if (!trial.registered)
                tap_ok(trial.status[0] == SYMWIN_OK, "step %ld: no call fails", trial.nth);
        }
        tap_ok(2 * trial.hits > trial.count, "%d of %d steps failed", trial.hits, trial.count);
    }
    steps_each(NULL);
    return harness_done();
}
