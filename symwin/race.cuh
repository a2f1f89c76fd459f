/* Delays before memory accesses, for `symwin-perf --race`: a part of symwin/device.cuh if
 * SYMWIN_RACE is defined. Only symwin-perf defines it, when it compiles a kernel for that.
 *
 * The seed, the warp and the address decide whether an access is delayed. So the same seed delays
 * the same warps at the same places. On the emulated driver emu/race.c does this.
 */
#include "symwin/device.cuh" /* before the guard: if SYMWIN_RACE is defined, it includes this */

#ifndef SYMWIN_RACE_CUH
#define SYMWIN_RACE_CUH

struct sw_race_plan {
    uint64_t seed;
    uint32_t one_in;     /* delays one in so many of the selected accesses; 0: none */
    uint32_t most_ns;    /* longest delay */
    int32_t block, warp; /* selected block and warp; -1: any */
};

#if !SYMWIN_EMULATED

__device__ struct sw_race_plan sw_race_now;

/* By one thread, before the kernels to be delayed. */
extern "C" __global__ void sw_race_set(struct sw_race_plan plan)
{
    sw_race_now = plan;
}

SYMWIN_DEVICE uint64_t sw_race_clock(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory");
    return ns;
}

static __device__ __noinline__ void sw_race_point(uint64_t addr)
{
    const sw_race_plan plan = sw_race_now;
    const uint32_t warp = threadIdx.x / 32;
    uint64_t hash = plan.seed ^ addr / 128;
    uint64_t begun;

    if (plan.one_in == 0 || (plan.block >= 0 && (uint32_t)plan.block != blockIdx.x) ||
        (plan.warp >= 0 && (uint32_t)plan.warp != warp))
        return;
    hash = (hash ^ (uint64_t)blockIdx.x << 32 ^ warp) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
    if (hash >> 32 > 0xffffffffu / plan.one_in)
        return;
    for (begun = sw_race_clock(); sw_race_clock() - begun < ((hash & 0xffff) * plan.most_ns >> 16);)
        ;
}

#endif
#endif
