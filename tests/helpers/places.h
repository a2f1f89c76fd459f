/* One story told in several places: ranks as threads of a process, as processes, as processes of two hosts. */
#ifndef SYMWIN_TESTS_PLACES_H
#define SYMWIN_TESTS_PLACES_H

#include "processes.h"

struct place {
    const char *name;
    int threads;
    const char *hosts; /* a letter a rank, for 4 ranks at most */
};

__attribute__((unused)) static const struct place places[] = {
    {"threads", 1, NULL}, {"processes", 0, NULL}, {"hosts", 0, "abab"}};

enum { PLACES_RANKS = 8 };

/* Hosts are joined by a fabric, which the emulated driver has, and one machine has not. */
HARNESS_UNUSED size_t places_count(void)
{
    const size_t all = sizeof places / sizeof places[0];
    const char *driver = getenv("SYMWIN_DRIVER");

    return driver != NULL && strcmp(driver, "cuda") == 0 ? all - 1 : all;
}

struct places_job {
    const struct place *place;
    void (*body)(struct processes *p, int rank);
    void *arg;
};

struct places_thread {
    struct processes *p;
    int rank;
};

HARNESS_UNUSED void *places_arg(const struct processes *p)
{
    return ((const struct places_job *)p->arg)->arg;
}

HARNESS_UNUSED void *places_thread_main(void *arg)
{
    const struct places_thread *t = arg;

    ((const struct places_job *)t->p->arg)->body(t->p, t->rank);
    return NULL;
}

/* All ranks, in one process; or one. */
HARNESS_UNUSED void places_process(struct processes *p, int rank)
{
    const struct places_job *job = p->arg;
    struct places_thread ranks[PLACES_RANKS];
    pthread_t threads[PLACES_RANKS];
    int r;

    if (!job->place->threads) {
        processes_on_host(job->place->hosts, rank);
        job->body(p, rank);
        return;
    }
    processes_child_threads();
    for (r = 0; r < p->count; r++) {
        ranks[r] = (struct places_thread){p, r};
        if (pthread_create(&threads[r], NULL, places_thread_main, &ranks[r]) != 0)
            abort();
    }
    for (r = 0; r < p->count; r++)
        pthread_join(threads[r], NULL);
}

/* Runs body(p, rank) as `nranks` ranks; whether all ended well. What they have told is in *out, to be freed. */
HARNESS_UNUSED int places_run(const struct place *place, int nranks,
                              void (*body)(struct processes *p, int rank), void *arg,
                              struct processes **out)
{
    struct places_job job = {place, body, arg};
    struct processes *p = processes_new(nranks, &job);
    const int count = place->threads ? 1 : nranks;
    int right = 1, r;

    for (r = 0; r < count; r++)
        processes_fork(p, r, places_process);
    for (r = 0; r < count; r++)
        right &= processes_wait(p, r) == 0;
    *out = p;
    return right;
}

#endif
