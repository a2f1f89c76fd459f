/* Ends or stops the process, or makes the library fail, at its N-th step: a call of the system, of
 * malloc or of the emulated driver. In tests that are linked with this (Makefile: STEP_TESTS) every
 * such call of the library goes through steps.c. Calls that the driver or the test makes do not
 * count. */
#ifndef SYMWIN_TESTS_STEPS_H
#define SYMWIN_TESTS_STEPS_H

#include <stdatomic.h>

enum steps_action {
    STEPS_COUNT,    /* only counts */
    STEPS_KILL,     /* SIGKILL */
    STEPS_STOP,     /* SIGSTOP */
    STEPS_EXIT,     /* _exit(9) */
    STEPS_FAIL,     /* the call fails in one of its ways */
    STEPS_INTERRUPT /* the call is interrupted (EINTR) where it can be; otherwise nothing */
};

/* From now on, in this process: `action` at step `nth` (1 is the next one); with `persistent` also
 * at every later one. `variant` selects one of the ways to fail. With STEPS_FAIL and
 * STEPS_INTERRUPT only calls that can fail in this way are steps. */
void steps_plan(long nth, enum steps_action action, int variant, int persistent);
void steps_off(void);

long steps_taken(void);      /* since steps_plan() */
const char *steps_hit(void); /* the first call that failed; NULL: none yet */
int steps_hit_who(void);     /* that thread's rank, by steps_i_am(); -1: none */
void steps_i_am(int rank);
void steps_only(int rank);          /* only threads of this rank take steps; -1: all threads */
void steps_before(void (*f)(void)); /* called just before the process is ended or stopped */

/* `f` is called at every step, with or without a plan, by the step's thread; NULL: no longer. */
void steps_each(void (*f)(const char *name));
int steps_locks(void); /* how many of the library's mutexes this thread holds */

#endif
