/* Collective kernels without a communicator: ranks on symmetric memory made by driver calls alone,
 * and single launches with any arguments, right or wrong. For tests of the kernels themselves, on
 * either driver. One thread drives all ranks. A driver call that fails ends the program.
 *
 * kernel_team.c has teams and checked launches, kernel_cases.c the cases that kernels must pass.
 *
 * A rank's segment is mapped at base + rank * stride for every device. With multicast, all segments
 * together are mapped at base + nranks * stride.
 *
 *   | sw_comm_state, headers, slots | input area | output area |
 *   0                               input        output        segment */
#ifndef SYMWIN_TESTS_KERNEL_TEAM_H
#define SYMWIN_TESTS_KERNEL_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel_args.h"
#include "src/driver/driver.h"

/* ---- teams ---- */

#define TEAM_MAX_RANKS 80
#define TEAM_MAX_LIBRARIES 16
#define TEAM_SHARED (12 << 10) /* dynamic shared memory of a block that makes bulk copies */

struct team {
    int nranks, devices, multicast;
    size_t slot_bytes, area_bytes; /* bytes of the input area, and of the output area */
    size_t input, output, segment; /* offsets; `segment`: all bytes */
    size_t stride;
    CUdeviceptr base;
    CUmemGenericAllocationHandle memory[TEAM_MAX_RANKS], multicast_object;
    CUstream stream[TEAM_MAX_RANKS];
    struct sw_kernel_report *report[TEAM_MAX_RANKS];
    CUcontext context[TEAM_MAX_RANKS]; /* a reference each */
    CUlibrary library[TEAM_MAX_LIBRARIES];
    int libraries;
};

struct team_call {
    symwin_algo algo;
    symwin_type type;
    symwin_op op;
    size_t count;
    size_t in, out; /* byte offsets in the input area and the output area */
    int in_place;   /* out is in */
    unsigned grid, block;
    uint32_t done;
    uint64_t timeout_ns;
};

/* Rank r is on device r % devices. With `multicast` there must be a device for each rank. */
void team_open(struct team *team, int nranks, int devices, int multicast, size_t slot_bytes,
               size_t area_bytes);
void team_close(struct team *team);

/* What team_launch() passes for `rank`. A test may change it and pass it to team_launch_args(). */
struct sw_kernel_args team_args(const struct team *team, const struct team_call *call, int rank);

void team_launch(struct team *team, const struct team_call *call, int rank);
void team_launch_args(struct team *team, const struct team_call *call, int rank,
                      const struct sw_kernel_args *args);
void team_wait(struct team *team, int rank);

/* Whether the kernel exists. */
int team_has_kernel(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op);

/* Copies from and to the segment of `rank`. */
void team_read(const struct team *team, int rank, size_t offset, void *data, size_t bytes);
/* Whether all receive slots of a rank are empty, as they are between calls. */
int team_slots_are_empty(const struct team *team, int rank);
void team_write(const struct team *team, int rank, size_t offset, const void *data, size_t bytes);

struct sw_comm_state team_state(const struct team *team, int rank);
void team_set_epochs(const struct team *team, uint32_t epoch, uint32_t rounds);

/* ---- checked launches ---- */

#define JOB_PATTERN 0xa5 /* fills output areas; a kernel may not change it around its output */
#define JOB_GUARD 32     /* bytes of the pattern on each side */

struct job {
    struct team_call call;
    uint64_t seed;
    int wild;       /* inputs have any bits */
    int grids_vary; /* rank r runs grid + r blocks */
};

enum { JOB_ALGOS = 10, JOB_TYPES = 12, JOB_OPS = 6 };
extern const char *const job_algo_names[JOB_ALGOS], *const job_type_names[JOB_TYPES];

int job_over_multicast(int algo);

/* Whether the team can run such a call. */
int job_exists(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op);

/* Out of place, two blocks of 32 threads, at the start of both areas. A test may change it. */
struct job job_of(symwin_algo algo, symwin_type type, symwin_op op, size_t count);

/* Prepare, launch, wait, check. */
int job_run(struct team *team, const struct job *job);

/* Writes the input, and the pattern over and around the output. */
void job_prepare(const struct team *team, const struct job *job);
void job_launch(struct team *team, const struct job *job);

/* Whether all ranks have the right output; prints what is wrong in a comment line. */
int job_check(const struct team *team, const struct job *job);

/* The input of a rank: computed again for the check, so that nothing is kept in between. */
void job_fill(const struct job *job, int rank, void *out);

size_t job_output(const struct team *team, const struct team_call *call); /* in the segment */
unsigned job_grid(const struct job *job, int rank);

void *job_alloc(size_t bytes); /* ends the program if there is no memory */

/* ---- the cases ---- */

/* tests/collective/test_kernels.c runs them on the emulated driver, tests/gpu/gpu_kernels.c on
 * GPUs. */
struct kernel_cases {
    int devices;   /* the ranks take them in turn */
    int multicast; /* the multicast kernels too; needs four devices */
    int max_ranks;
    size_t (*left_behind)(void); /* objects alive at the end; NULL: cannot be counted */
};

/* The whole test program; returns its exit status. */
int kernel_cases_run(const struct kernel_cases *cases);

#endif
