/* Waits for another thread or process: while (...) nap(&slept). */
#ifndef SYMWIN_TESTS_NAP_H
#define SYMWIN_TESTS_NAP_H

#include <unistd.h>

/* Sleeps 50 us at first, and then a sixteenth of what it has slept already, 2 ms at most. Thousands
 * of equal short naps cost more than what the others compute meanwhile. */
__attribute__((unused)) static void nap(unsigned *slept_us)
{
    const unsigned us = *slept_us < 31200 ? 50 + *slept_us / 16 : 2000;

    usleep(us);
    *slept_us += us;
}

#endif
