/* Fault sweeps: every driver call that a public call makes fails once, one after another.
 *
 * In each case the N-th driver call of one rank fails, N = 1, 2, ... until the public call makes
 * fewer calls than N. Each N runs twice: only that call fails, or it and all later ones. The
 * checks: all ranks of a collective call return one status, out-pointers are set on success only, a
 * failure has a text, nothing is left behind, and without a fault the call succeeds.
 *
 * The test defines `struct state` before it includes this: what a rank holds from setup over the
 * call under test to cleanup. All of it begins as zeros, except `on`, the rank's device. `comm` is
 * the rank's communicator. */
#ifndef SYMWIN_TESTS_FAULT_SWEEP_H
#define SYMWIN_TESTS_FAULT_SWEEP_H

#include <string.h>
#include <unistd.h>

#include "harness.h"

#if defined(__SANITIZE_THREAD__)
enum { STEP = 2503, ALL_UP_TO = 2 }; /* steps of N: a run takes more than ten times as long */
#elif defined(__SANITIZE_ADDRESS__)
enum { STEP = 53, ALL_UP_TO = 5 };
#else
enum { STEP = 1, ALL_UP_TO = 1 };
#endif

/* The step of N where kernels are loaded, hundreds of them by the same few calls each. It is no
 * multiple of the number of these calls. */
enum { KERNEL_STEP = 11 };

enum { MOST_RANKS = 4, MOST_CALLS = 5000 };

static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE};

struct fault_case {
    const char *name;
    int nranks;
    /* Sets up without faults; NULL: nothing to do. */
    symwin_status (*before)(struct harness_team *team, int rank, struct state *s);
    symwin_status (*call)(struct harness_team *team, int rank, struct state *s);
    /* Whether the call set its out-pointer; NULL: it has none. */
    int (*made)(const struct state *s);
    int alike; /* all ranks must return one status */
};

/* One run of a case. */
struct trial {
    const struct fault_case *c;
    int victim, persistent;
    unsigned nth;
    CUresult code;
    int fired;
    symwin_status status[MOST_RANKS];
    int made[MOST_RANKS];
    int silent; /* a failure without a text */
    int loads;  /* whether the victim's failed call loads a kernel */
};

static void clear(struct state *s); /* frees all that it holds */

/* ---- one run ---- */

static void trial_body(struct harness_team *team, int rank, void *arg)
{
    struct trial *t = arg;
    struct state s = {.on = harness_device(rank)};
    symwin_status status = SYMWIN_OK;

    if (t->c->before != NULL)
        status = t->c->before(team, rank, &s);
    if (status != SYMWIN_OK) {
        fprintf(stderr, "%s: rank %d cannot set up: %s\n", t->c->name, rank, symwin_last_error());
        exit(1);
    }
    harness_barrier(team);
    if (rank == t->victim)
        sw_emu_fail_nth(t->nth, t->code, t->persistent, 0);
    status = t->c->call(team, rank, &s);
    if (rank == t->victim) {
        t->fired = sw_emu_fault_fired();
        sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    }
    t->status[rank] = status;
    t->made[rank] = t->c->made != NULL && t->c->made(&s);
    if (status != SYMWIN_OK && symwin_last_error()[0] == '\0')
        t->silent = 1;
    if (rank == t->victim)
        t->loads = status != SYMWIN_OK && strstr(symwin_last_error(), " of sw_") != NULL;
    /* The kernels of the other ranks wait for a rank that failed alone. */
    if (status != SYMWIN_OK && s.comm != NULL && !t->c->alike)
        (void)symwin_comm_abort(s.comm);
    harness_barrier(team);
    clear(&s);
}

static const char *verdict(const struct trial *t, const struct harness_leaks *before)
{
    const struct harness_leaks now = harness_leaks_settle(before);
    int r;

    for (r = 0; r < t->c->nranks; r++) {
        if (t->c->alike && t->status[r] != t->status[0])
            return "the ranks' statuses differ";
        if (t->c->made != NULL && t->made[r] != (t->status[r] == SYMWIN_OK))
            return "an out-pointer and its status disagree";
        if (!t->fired && t->status[r] != SYMWIN_OK)
            return "fails without a fault";
    }
    if (t->silent)
        return "a failure has no text";
    if (now.objects != before->objects)
        return "driver objects are left behind";
    if (now.fds != before->fds)
        return "descriptors are left behind";
    return NULL;
}

/* ---- the sweep ---- */

static int total;

static void sweep(const struct fault_case *c, int victim, int persistent)
{
    const struct harness_leaks before = harness_leaks_now();
    int failures = 0; /* runs in which the call failed */
    int runs = 0;
    unsigned nth, step = 1;

    for (nth = 1; nth < MOST_CALLS; nth += step) {
        struct trial t = {.c = c, .victim = victim, .persistent = persistent, .nth = nth};
        const char *wrong;

        t.code = codes[nth % (sizeof codes / sizeof codes[0])];
        harness_run(c->nranks, trial_body, &t);
        runs++;
        failures += t.status[victim] != SYMWIN_OK;
        wrong = verdict(&t, &before);
        if (wrong != NULL) {
            tap_ok(0, "%s, %d ranks: call %u of rank %d gives %d%s: %s", c->name, c->nranks, nth,
                   victim, (int)t.code, persistent ? " for good" : "", wrong);
            sw_emu_live_print(2);
            return;
        }
        if (!t.fired)
            break;
        step = nth < ALL_UP_TO ? 1 : STEP;
        if (t.loads && step < KERNEL_STEP)
            step = KERNEL_STEP;
    }
    total += runs;
    tap_ok(nth < MOST_CALLS && failures > 0, "%s, %d ranks: %d faults on rank %d%s, %d failed it",
           c->name, c->nranks, runs - 1, victim, persistent ? ", each for good" : "", failures);
}

/* Each case with faults on the first and the last rank; on every rank where statuses may differ. */
static int sweep_all(const struct fault_case *cases, size_t count)
{
    size_t i;
    int victim, persistent;

    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    for (i = 0; i < count; i++)
        for (victim = 0; victim < cases[i].nranks; victim++)
            for (persistent = 0; persistent < 2; persistent++)
                if (victim == 0 || victim == cases[i].nranks - 1 || !cases[i].alike)
                    sweep(&cases[i], victim, persistent);
    printf("# %d runs with a fault\n", total);
    return tap_done();
}

#endif
