/* Delays at the memory accesses of kernels compiled with SYMWIN_RACE: symwin-perf --race.
 *
 * Whether an access is delayed depends on the seed, the thread, the address and the number of
 * accesses that the thread has made. So one seed delays the same threads at the same places.
 */
#include <time.h>

#include "emu_device.h"
#include "emu_internal.h"

#if defined(EMU_TSAN)
#define UNSEEN __attribute__((no_sanitize("thread")))
#else
#define UNSEEN
#endif

static struct sw_emu_race now;

void sw_emu_race_set(const struct sw_emu_race *race)
{
    now = *race;
}

UNSEEN static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

UNSEEN static int is_meant(const struct emu_dev_thread *me)
{
    return now.one_in > 0 && (now.device < 0 || now.device == me->device) &&
           (now.block < 0 || (unsigned)now.block == me->block.x) &&
           (now.warp < 0 || (unsigned)now.warp == me->thread.x / 32);
}

/* Delays either the thread alone, as a warp may be delayed, or its whole block. */
UNSEEN void emu_dev_race(const void *p)
{
    struct emu_dev_thread *me = emu_dev_me();
    uint64_t hash, ns;

    if (!is_meant(me))
        return;
    hash = mix(now.seed, (uint64_t)(uintptr_t)p - (uint64_t)(uintptr_t)emu_arena);
    hash = mix(hash, (uint64_t)me->device << 40 | (uint64_t)me->block.x << 20 | me->thread.x);
    hash = mix(hash, me->accesses++);
    if (hash >> 32 > UINT32_MAX / now.one_in)
        return;
    ns = (hash & 0xffff) * now.most_ns >> 16;
    if ((hash & 0x30000) == 0) {
        const struct timespec nap = {.tv_nsec = (long)ns};

        nanosleep(&nap, NULL);
        return;
    }
    for (uint64_t begun = emu_dev_globaltimer(); emu_dev_globaltimer() - begun < ns;)
        emu_dev_pause();
}
