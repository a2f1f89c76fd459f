/* How a rank of the stand-in waits for others: it polls, at last with pauses, up to a deadline. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "inside.h"

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

struct wait wait_begin(void)
{
    const char *text = getenv("STAND_IN_TIMEOUT_MS");
    const long most = text != NULL ? strtol(text, NULL, 10) : 0;

    return (struct wait){now_ms() + (uint64_t)(most > 0 ? most : 20000), 0};
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
    return now_ms() < wait->deadline;
}
