/* Ends, stops or fails the library at its N-th step: a call of the system, of malloc or of the
 * (emulated) driver. Tests that are linked with it (Makefile: STEP_TESTS) have every such call of the
 * library go through here; calls of the driver's own and of the tests do not count. */
#ifndef SYMWIN_TESTS_STEPS_H
#define SYMWIN_TESTS_STEPS_H

#include <stdatomic.h>

enum steps_action {
    STEPS_COUNT, /* only counts */
    STEPS_KILL,  /* SIGKILL */
    STEPS_STOP,  /* SIGSTOP */
    STEPS_EXIT,  /* _exit(9) */
    STEPS_FAIL, /* the call fails in one of the ways that it can; driver calls: steps_driver_code */
    STEPS_INTERRUPT /* the call is interrupted (EINTR) where it can be; otherwise nothing */
};

/* From now on, in this process: `action` at step `nth` (1 is the next); `persistent`: and at every later
 * one. `variant` chooses among the ways to fail. With STEPS_FAIL and STEPS_INTERRUPT only calls that can
 * fail like that are steps. */
void steps_plan(long nth, enum steps_action action, int variant, int persistent);
void steps_off(void);

long steps_taken(void);      /* since steps_plan() */
const char *steps_hit(void); /* the call that was hit first, NULL: none yet */
int steps_hit_who(void);     /* what that thread had said of itself, -1: nothing */
void steps_i_am(int rank);
void steps_only(
    int rank); /* threads that have said so of themselves take steps, and no others; -1: all do */
void steps_before(void (*f)(void)); /* called just before the process is ended or stopped */

/* Called at every step, whether there is a plan or not, by the thread that takes it; NULL: no more. */
void steps_each(void (*f)(const char *name));
int steps_locks(void); /* mutexes of the library's that this thread holds */

#endif
