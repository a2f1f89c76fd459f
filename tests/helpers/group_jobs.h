/* Random calls for tests of groups. */
#ifndef SYMWIN_TESTS_GROUP_JOBS_H
#define SYMWIN_TESTS_GROUP_JOBS_H

#include "collectives.h"

/* MOST calls at most in a group, GROUPS of them under way; PITCH bytes for each call. */
enum { MOST = 24, GROUPS = 3, PITCH = ROOM / MOST / GROUPS / 64 * 64 };

static const struct shape allreduce = {.name = "allreduce",
                                       .collective = SYMWIN_ALLREDUCE,
                                       .reduces = 1,
                                       .multicast = SYMWIN_ALGO_ONESHOT_MC};

/* Any call; one of three reduces. */
static struct job any(const struct rank *r, unsigned number, int k, int place)
{
    const int at = place * MOST + k;
    struct job j = job_any(r, number, k, (size_t)at * PITCH, PITCH);
    const uint32_t more = mix(number * 7919u + (uint32_t)k);

    if (more % 3 == 0)
        j.is = more / 3 % 2 == 0 ? &allreduce : &shapes[5 + more / 6 % 2];
    if (more % 3 == 0 && more / 12 % 4 == 0)
        j.op = SYMWIN_PREMUL_SUM;
    j.scalars = (unsigned)at;
    if (j.is == &allreduce) { /* in windows its buffers lie alike on all ranks */
        j.in_place = more / 48 % 3 == 0;
        j.in = j.out = (size_t)at * PITCH + GUARD + more / 144 % 9 * symwin_type_bytes(j.type);
    }
    return j;
}

/* Prepares a group at place `place` of the buffers. */
static int prepare(const struct rank *r, unsigned number, int place, struct job *jobs)
{
    const int n = 1 + (int)(mix(number) % MOST);
    int k;

    for (k = 0; k < n; k++) {
        jobs[k] = any(r, number, k, place);
        if ((number + (unsigned)k) % 8 == 0) /* calls that share no launch */
            jobs[k].options.algo = jobs[k].is->shares;
        job_prepare(r, &jobs[k]);
    }
    return n;
}

static void right(const struct rank *r, const struct job *jobs, int n, const char *what)
{
    int k;

    job_wait(r, 0);
    job_wait(r, 1);
    host_must(symwin_comm_check(r->comm), "symwin_comm_check");
    for (k = 0; k < n; k++)
        must_be(job_is_right(r, &jobs[k]), what, r->rank);
}

#endif
