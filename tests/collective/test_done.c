/* A block counts itself as done after its writes. Who sees the count must see the writes: another
 * stream of the device relies on that alone. Here this thread does, without a driver call in
 * between, so ThreadSanitizer sees whether the count orders the two.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emu/emu.h"
#include "emu/emu_access.h"
#include "harness.h"
#include "kernel_team.h"
#include "reference.h"
#include "src/driver/driver.h"

enum { RANKS = 3, COUNT = 301, BLOCKS = 2, SOON_MS = 20000 };

/* The host address of byte `offset` of a rank's memory. */
static void *host_of(const struct team *team, int rank, size_t offset, size_t bytes)
{
    return emu_access(rank, team->base + (CUdeviceptr)rank * team->stride + offset, bytes, 0);
}

/* Whether the output is right once the count says so. */
static int right_when_done(const struct team *team, const struct job *job, int rank, uint32_t done)
{
    const int64_t end = host_now_ms() + SOON_MS;
    const size_t bytes = COUNT * reference_bytes(job->call.type);
    const uint32_t *count = host_of(team, rank, offsetof(struct sw_comm_state, done), 4);
    const void *out = host_of(team, rank, job_output(team, &job->call), bytes);
    unsigned char *inputs = job_alloc(bytes * RANKS), *want = job_alloc(bytes);
    const void *of_rank[RANKS];
    int64_t wrong;
    int r;

    for (r = 0; r < RANKS; r++) {
        job_fill(job, r, inputs + bytes * (size_t)r);
        of_rank[r] = inputs + bytes * (size_t)r;
    }
    reference_allreduce(job->call.type, job->call.op, RANKS, of_rank, want, COUNT);
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) != done && host_now_ms() < end)
        host_pause_ms(1);
    wrong = reference_compare(job->call.type, out, want, COUNT);
    free(inputs);
    free(want);
    return wrong < 0;
}

int main(void)
{
    struct team team;
    uint32_t done = 0;
    int algo, r, kernels = 0;

    setenv("SYMWIN_EMU_DEVICES", "3", 1);
    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    team_open(&team, RANKS, RANKS, 0, 4096, 1 << 16);
    for (algo = SYMWIN_ALGO_ONESHOT; algo < JOB_ALGOS; algo++) {
        struct job job = job_of((symwin_algo)algo, SYMWIN_F32, SYMWIN_SUM, COUNT);
        int ok = 1;

        if (!job_exists(&team, (symwin_algo)algo, SYMWIN_F32, SYMWIN_SUM))
            continue;
        kernels++;
        job.call.grid = BLOCKS;
        job.call.done = 1;
        job_prepare(&team, &job);
        job_launch(&team, &job);
        done += BLOCKS;
        for (r = 0; r < RANKS; r++)
            ok = right_when_done(&team, &job, r, done) && ok;
        tap_ok(ok, "%s: what is done is there", job_algo_names[algo]);
        for (r = 0; r < RANKS; r++)
            team_wait(&team, r);
    }
    tap_ok(kernels >= 6, "%d kernels", kernels);
    team_close(&team);
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
