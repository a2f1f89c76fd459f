/* One launch of a collective kernel on all ranks of a team, checked: inputs that are made anew where they
 * are compared, the plain reference, guards around the output. */
#ifndef SYMWIN_TESTS_KERNEL_JOB_H
#define SYMWIN_TESTS_KERNEL_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "kernel_team.h"

#define JOB_PATTERN 0xa5 /* fills output areas, and must stay around the output */
#define JOB_GUARD 32     /* bytes of it on each side */

struct job {
    struct team_call call;
    uint64_t seed;
    int wild;       /* inputs of any bits */
    int grids_vary; /* rank r runs grid + r blocks */
};

enum { JOB_ALGOS = 10, JOB_TYPES = 12, JOB_OPS = 5 };
extern const char *const job_algo_names[JOB_ALGOS], *const job_type_names[JOB_TYPES];

int job_over_multicast(int algo);

/* Whether the team can run such a call. */
int job_exists(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op);

/* Out of place, two blocks of 32 threads, at the start of both areas; to be altered. */
struct job job_of(symwin_algo algo, symwin_type type, symwin_op op, size_t count);

/* Prepare, launch, wait, check. */
int job_run(struct team *team, const struct job *job);

/* Writes the input, and the pattern over and around the output. */
void job_prepare(const struct team *team, const struct job *job);
void job_launch(struct team *team, const struct job *job);

/* Whether all ranks have what they should; says what is wrong in a comment line. */
int job_check(const struct team *team, const struct job *job);

/* The same input for the launch and for the check: nothing is kept in between. */
void job_fill(const struct job *job, int rank, void *out);

size_t job_output(const struct team *team, const struct team_call *call); /* in the segment */
unsigned job_grid(const struct job *job, int rank);

void *job_alloc(size_t bytes); /* ends the program where there is no memory */

#endif
