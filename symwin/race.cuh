/* Delays before memory accesses, for `symwin-perf --race`: part of symwin/device.cuh where SYMWIN_RACE is defined, as
 * symwin-perf does when it compiles a kernel for that. Nobody else includes it.
 *
 * Where a warp is held up depends on the seed, on who it is and on the address: so the same seed holds up the same
 * warps in the same places. On the emulated driver emu/race.c does it.
 */
#ifndef SYMWIN_RACE_CUH
#define SYMWIN_RACE_CUH

struct sw_race_plan {
    uint64_t seed;
    uint32_t one_in;     /* accesses of those meant below; 0: none */
    uint32_t most_ns;    /* of a delay */
    int32_t block, warp; /* that are meant, -1: any */
};

#if !SYMWIN_EMULATED

__device__ struct sw_race_plan sw_race_now;

/* One thread, before the kernels that it is for. */
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
