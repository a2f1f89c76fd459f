/* Signals between ranks: 64-bit counters that only grow, waits for a count, and fetch-and-add.
 *
 * A counter is a word in any rank's memory, aligned to 8 bytes and zeroed once, before the first
 * kernel. Its address is a window's: symwin_peer_address() or symwin_window_peer_pointer(). It is
 * never reset: a kernel that is replayed waits for the next count. Compiled by nvcc and for the
 * emulated driver, as all of the device API. symwin/device.cuh explains memory order.
 */
#ifndef SYMWIN_SIGNAL_CUH
#define SYMWIN_SIGNAL_CUH

#include "symwin/device.cuh"
#include "symwin/kernel.h"

/* ---- limits of waits ------------------------------------------------------------------------- */

/* The state of a wait; initialize with {0, 0}. */
struct symwin_waiting {
    uint64_t since;
    uint32_t turns;
};

/* Call in each iteration of a poll loop. Returns false when the wait must end: the time is over or
 * the abort word is set. Reads clock and abort word in every 64th call. By one thread. */
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

/* Adds `value` to a counter of this rank or a peer, without waiting. Release, system scope:
 * everything ordered before it in this thread, and by a barrier in its block, is visible to whoever
 * waits for the count. By one thread. (PTX ISA, "red") */
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

/* Adds `value` and returns the old value. Acquire and release, system scope. By one thread. (PTX
 * ISA, "atom") */
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

/* Waits until a counter is at least `count`. Returns false if the limit came first; the counter is
 * unchanged. Acquire, system scope: everything that the adders released up to that count is visible
 * to this thread, and after a barrier to its block. By one thread, or by several that all may
 * continue. Counters are never reset and must not wrap. */
SYMWIN_DEVICE bool symwin_wait(uint64_t counter, uint64_t count, symwin_limit limit)
{
    symwin_waiting waiting = {0, 0};

    while (symwin_load_acquire_u64(counter) < count)
        if (!symwin_keep_waiting(&waiting, limit))
            return false;
    return true;
}

#endif
