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
    enum { SPINS = 64, SHORTEST_NS = 100000, LONGEST_NS = 2000000 };
    const uint64_t now = wait_clock(), waited = now + wait_most() - wait->deadline;
    struct timespec pause = {0, SHORTEST_NS};

    if (++wait->idle <= SPINS) {
        sched_yield();
        return 1;
    }
    /* Hundreds of ranks that wait must leave the cores to the one that they wait for. */
    for (; pause.tv_nsec < LONGEST_NS && (uint64_t)pause.tv_nsec * 32 < waited * 1000000u;)
        pause.tv_nsec *= 2;
    if (pause.tv_nsec > LONGEST_NS)
        pause.tv_nsec = LONGEST_NS;
    nanosleep(&pause, NULL);
    return now < wait->deadline;
}
