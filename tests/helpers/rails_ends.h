/* Communicators over several domains that one rank ends, and what the others see of it. */
#ifndef SYMWIN_TESTS_RAILS_ENDS_H
#define SYMWIN_TESTS_RAILS_ENDS_H

#include "rails.h"
#include "src/rails/rails.h"

enum {
    LIMIT_MS = 8000, /* after which no rank may still wait, on a busy machine */
    PIECES = 100000  /* elements of a call of several pieces */
};

struct life {
    symwin_comm *comm;
    struct CUstream_st *stream;
    uint32_t *in, *out;
    CUgraphExec exec; /* NULL: none */
    int device;
    int twoshot; /* calls of several pieces are by two exchanges, not by rails */
};

static const symwin_comm_options options = {.size = sizeof options,
                                            .timeout_ms = 20000,
                                            .bootstrap_timeout_ms = 20000,
                                            .kernel_timeout_ms = 20000,
                                            .slot_bytes = 8192};

HARNESS_UNUSED symwin_status begin(struct processes *p, int rank, struct life *life,
                                   const symwin_comm_options *with)
{
    life->device = rank % harness_device_count();
    return processes_note(
        p, rank,
        symwin_comm_create(processes_id(p, rank), p->count, rank, life->device, with, &life->comm));
}

HARNESS_UNUSED void get_memory(struct life *life)
{
    host_must(symwin_stream_create(life->device, &life->stream), "symwin_stream_create");
    life->in = host_alloc(life->device, 4 * PIECES);
    life->out = host_alloc(life->device, 4 * PIECES);
}

HARNESS_UNUSED void end(struct life *life)
{
    if (life->exec != NULL)
        host_must_cuda(sw_drv.cuGraphExecDestroy(life->exec), "cuGraphExecDestroy");
    symwin_comm_destroy(life->comm);
    host_must(symwin_stream_destroy(life->device, life->stream), "symwin_stream_destroy");
    host_must(symwin_mem_free(life->in), "symwin_mem_free");
    host_must(symwin_mem_free(life->out), "symwin_mem_free");
}

HARNESS_UNUSED symwin_status reduce(const struct life *life, uint64_t count)
{
    const symwin_collective_options pieces = {.size = sizeof pieces,
                                              .algo = life->twoshot ? SYMWIN_ALGO_TWOSHOT_PUSH
                                                                    : SYMWIN_ALGO_RAILS,
                                              .blocks = 7};

    return symwin_allreduce_with(life->comm, life->in, life->out, count, SYMWIN_U32, SYMWIN_SUM,
                                 count == PIECES ? &pieces : NULL, life->stream);
}

/* Another table of NCCL's functions. */
HARNESS_UNUSED void set_engine(const struct life *life, const struct sw_engine *engine)
{
    struct sw_wide *wide = life->comm->wide;

    pthread_mutex_lock(&wide->nccl); /* the watching thread has it too */
    wide->engine = engine;
    pthread_mutex_unlock(&wide->nccl);
}

/* Only the stand-in fails when it is told to, and only an emulated device has as little memory. */
HARNESS_UNUSED int skipped(const char *name, int fails)
{
    fails = fails && processes_use_gpus();
    if (fails)
        tap_ok(1, "%s # SKIP NCCL and devices do not fail when they are told to", name);
    return fails;
}

/* ---- the end ---- */

struct ending {
    const char *name;
    int what; /* the test's own number of what the rank does */
    int rank; /* that ends it */
    symwin_status status;
    const char *words; /* in the others' texts; "|" separates several */
    const char *hosts; /* NULL: "aabb" */
    int twoshot;       /* as of struct life */
};

/* Two calls in a new communicator, after which all ranks meet. */
HARNESS_UNUSED void live(struct processes *p, int rank, struct life *life,
                         const symwin_comm_options *with)
{
    host_must(begin(p, rank, life, with), "symwin_comm_create");
    p->rank[rank].status = -1;
    get_memory(life);
    host_must(reduce(life, 1), "the first call");
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    host_must(reduce(life, 1000), "the second call");
    host_must(symwin_stream_synchronize(life->device, life->stream), "synchronize");
    processes_barrier(p);
}

/* A rank that did not end it, since `before`. */
HARNESS_UNUSED void see_end(struct processes *p, int rank, struct life *life, int64_t before)
{
    while (symwin_comm_check(life->comm) == SYMWIN_OK && host_now_ms() - before < LIMIT_MS)
        host_pause_ms(1);
    processes_note(p, rank, symwin_comm_check(life->comm));
    must_be(host_now_ms() - before < LIMIT_MS, "soon", rank);
    must_be(reduce(life, 1) != SYMWIN_OK, "a call afterwards fails", rank);
    end(life);
    must_be(host_now_ms() - before < LIMIT_MS, "destroyed soon", rank);
    p->rank[rank].number = tap_failures == 0;
}

HARNESS_UNUSED int has_all(const char *text, const char *words)
{
    char word[128];

    while (*words != '\0') {
        const size_t length = strcspn(words, "|");

        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strstr(text, word) == NULL)
            return 0;
        words += length + (words[length] == '|');
    }
    return 1;
}

/* Runs the ending on all ranks; dies: the rank that ends it does not return. */
HARNESS_UNUSED void check_ending(const struct ending *e, int dies,
                                 void (*body)(struct processes *p, int rank))
{
    const struct place place = {e->name, 1, e->hosts != NULL ? e->hosts : "aabb"};
    struct processes *p;
    int right = places_run(&place, 4, body, (void *)(uintptr_t)e, &p) || dies, r;

    for (r = 0; r < 4; r++) {
        if (r == e->rank || (p->rank[r].status == (int)e->status &&
                             has_all(p->rank[r].text, e->words) && p->rank[r].number == 1))
            continue;
        right = 0;
        fprintf(stderr, "# rank %d: %d, %s\n", r, p->rank[r].status, p->rank[r].text);
    }
    tap_ok(right, "%s", e->name);
    processes_free(p);
}

#endif
