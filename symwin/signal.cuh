/* Signals between ranks: counters of 64 bits that only grow, waiting for one, and fetch-and-add.
 *
 * A counter is a word in any rank's memory, aligned to 8 bytes and zeroed once, before the first kernel; its address is that of
 * a window, symwin_peer_address() or symwin_window_peer_pointer(). Nobody resets it: a kernel that is replayed waits for the
 * next count. Like all of the device API this is compiled by nvcc and for the emulated driver. symwin/device.cuh says what
 * memory order means.
 */
#ifndef SYMWIN_SIGNAL_CUH
#define SYMWIN_SIGNAL_CUH

#include "symwin/device.cuh"
#include "symwin/kernel.h"

/* ---- limits of waits ------------------------------------------------------------------------- */

/* A wait under way; begins as {0, 0}. */
struct symwin_waiting {
    uint64_t since;
    uint32_t turns;
};

/* Each turn of a poll loop: false when it is time to give up. Looks at clock and abort word now and then. */
SYMWIN_DEVICE bool symwin_keep_waiting(symwin_waiting *waiting, symwin_limit limit)
{
    uint64_t now;

    symwin_pause();
    if (++waiting->turns % 64 != 0)
        return true;
    if (limit.abort != 0 && symwin_load_relaxed_u32(limit.abort) != 0)
        return false;
    if (limit.timeout_ns == 0)
        return true;
    now = symwin_clock_ns();
    if (waiting->since == 0)
        waiting->since = now;
    return now - waiting->since <= limit.timeout_ns;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Adds `value` to a counter of 64 bits, this rank's or a peer's, and does not wait for it. Release, system scope: all
 * that is ordered before it in this thread, and by a barrier in the threads of its block, is visible to whoever waits for
 * the count. By one thread. (PTX ISA, "red") */
SYMWIN_DEVICE void symwin_signal(uint64_t counter, uint64_t value)
{
#if SYMWIN_EMULATED
    emu_dev_add64(symwin_emu_target(counter, 8), value, __ATOMIC_RELEASE);
#else
    SW_ACCESS(counter);
    asm volatile("red.release.sys.global.add.u64 [%0], %1;"
                 :
                 : "l"(counter), "l"(value)
                 : "memory");
#endif
}

/* The same, and returns what there was before; acquires too. (PTX ISA, "atom") */
SYMWIN_DEVICE uint64_t symwin_fetch_add(uint64_t counter, uint64_t value)
{
#if SYMWIN_EMULATED
    return emu_dev_add64(symwin_emu_target(counter, 8), value, __ATOMIC_ACQ_REL);
#else
    uint64_t old;
    SW_ACCESS(counter);
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(counter), "l"(value)
                 : "memory");
    return old;
#endif
}

/* Waits until a counter has reached `count`; false where the limit came first. Acquire: all that the adders released up
 * to there is visible to this thread, and behind a barrier to its block. By one thread, or by several that all may go on.
 * Counters only grow: no reset, and none that wraps in a lifetime. */
SYMWIN_DEVICE bool symwin_wait(uint64_t counter, uint64_t count, symwin_limit limit)
{
    symwin_waiting waiting = {0, 0};

    while (symwin_load_acquire_u64(counter) < count)
        if (!symwin_keep_waiting(&waiting, limit))
            return false;
    return true;
}

#endif
