/* How a rank of the stand-in waits for others: it polls, at last with pauses, up to a deadline. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "inside.h"

uint64_t wait_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

uint64_t wait_most(void)
{
    const char *text = getenv("STAND_IN_TIMEOUT_MS");
    const long most = text != NULL ? strtol(text, NULL, 10) : 0;

    return (uint64_t)(most > 0 ? most : 20000);
}

struct wait wait_begin(void)
{
    return (struct wait){wait_clock() + wait_most(), 0};
}

int wait_more(struct wait *wait)
{
    enum { SPINS = 64 };
    const struct timespec pause = {0, 100000};

    if (++wait->idle <= SPINS) {
        sched_yield();
        return 1;
    }
    nanosleep(&pause, NULL);
    return wait_clock() < wait->deadline;
}
