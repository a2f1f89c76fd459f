/* The life of a communicator's ranks with a fault in it, which test_system_faults sweeps: every
 * process of the team runs fault_life(), the parent plans a fault on the board for each round. */
#ifndef SYMWIN_TESTS_FAULT_LIFE_H
#define SYMWIN_TESTS_FAULT_LIFE_H

#include "each_call.h"
#include "processes.h"
#include "steps.h"

#if defined(__SANITIZE_THREAD__)
enum { SLOWER = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 8 };
#else
enum { SLOWER = 1 };
#endif

enum { RANKS = 4 };

enum stage {
    ID,
    CREATE,
    ALLOC,
    REGISTER,
    REDUCE,
    EACH_OTHER,
    CHANNEL,
    CONNECT,
    AGAIN,
    DEREGISTER,
    ENDED,
    STAGES
};

enum kind { NOTHING, SYSTEM, INTERRUPTION, DRIVER, KINDS };

struct plan {
    enum kind kind;
    int victim;  /* a process; for faults of the driver a rank */
    int variant; /* of a fault of the system; of the driver an index of codes[] */
    int persistent;
    CUresult code; /* of a fault of the driver */
    long nth;
};

/* In shared memory, beside struct processes. */
struct board {
    int processes;
    const char *hosts;
    struct plan plan;
    atomic_int round, done, quit;
    symwin_unique_id id;
    atomic_int id_made; /* -1: creation failed */
    char hit[32];       /* the call that failed first, "": none */
    int hit_rank;       /* whose thread made it; -1: the poll thread */
    struct {
        int objects, fds, threads; /* left behind */
    } left[RANKS];
};

static inline struct board *board_of(const struct processes *p)
{
    return p->arg;
}

/* ---- one rank ---- */

enum {
    BYTES = 4096,
    BOOTSTRAP_MS = 600 * SLOWER,
    WAIT_MS = 4000 * SLOWER,
    HEAR_MS = 500 * SLOWER,
    SETTLE_MS = 3000 * SLOWER
};

static symwin_status wait_for_id(struct processes *p, int rank)
{
    struct board *b = board_of(p);
    symwin_status status = SYMWIN_OK;
    unsigned slept = 0;

    if (rank == 0) {
        status = symwin_unique_id_create(&b->id);
        b->id_made = status == SYMWIN_OK ? 1 : -1;
    }
    while (!b->id_made)
        nap(&slept);
    return status;
}

/* What a rank owns. */
struct life {
    int rank, device;
    symwin_comm *comm;
    struct CUstream_st *stream;
    uint32_t *memory, *buffer;
    symwin_window *window, *again;
    symwin_registration *registration;
};

/* Beside what reduce() uses. */
static struct each each_of(const struct life *l)
{
    return (struct each){l->comm, l->rank, RANKS, l->device, l->memory + EACH_WORDS, l->stream, 0};
}

static symwin_status allocate(struct life *l)
{
    struct each e;
    symwin_status status = symwin_mem_alloc(l->device, 2 * BYTES, 0, (void **)&l->memory);

    if (status == SYMWIN_OK)
        status = symwin_mem_alloc(l->device, BYTES, 0, (void **)&l->buffer);
    if (status == SYMWIN_OK)
        status = symwin_stream_create(l->device, &l->stream);
    e = each_of(l);
    return status == SYMWIN_OK ? each_fill(&e) : status;
}

static void abort_for_all(const struct life *l)
{
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    symwin_comm_abort(l->comm);
    sw_error_restore(text);
}

static symwin_status reduce(struct life *l, uint32_t *in, uint32_t *out)
{
    const uint32_t mine = 1u << l->rank;
    uint32_t sum = 0;
    symwin_status status;

    status = symwin_memcpy(l->device, in, &mine, sizeof mine, l->stream);
    if (status == SYMWIN_OK)
        status = symwin_allreduce(l->comm, in, out, 1, SYMWIN_U32, SYMWIN_SUM, l->stream);
    if (status == SYMWIN_OK)
        status = symwin_memcpy(l->device, &sum, out, sizeof sum, l->stream);
    if (status == SYMWIN_OK)
        status = symwin_stream_synchronize(l->device, l->stream);
    if (status == SYMWIN_OK)
        status = symwin_comm_check(l->comm);
    if (status == SYMWIN_OK && sum != (1u << RANKS) - 1) {
        fprintf(stderr, "rank %d: the sum is %u\n", l->rank, sum);
        abort();
    }
    /* The kernels of the other ranks wait for a rank that failed alone. */
    if (status != SYMWIN_OK)
        abort_for_all(l);
    return status;
}

static symwin_status each(struct life *l)
{
    const struct each e = each_of(l);
    const symwin_status status = each_run(&e);

    if (status != SYMWIN_OK)
        abort_for_all(l);
    return status;
}

/* Two channels with a neighbour, on a window and on other memory; the communicator's destruction
 * closes one of them. The rank that fails first aborts for all;
 * its neighbour gets the same status. */
static symwin_status make_channels(struct life *l)
{
    symwin_channel_end *ends[2] = {NULL, NULL};
    const int peer = l->rank ^ 1;
    symwin_channel channel;
    symwin_status status;
    char name[16];

    status = symwin_channel_create(l->comm, peer, l->memory, BYTES, NULL, &ends[0]);
    if (status == SYMWIN_OK)
        status = symwin_channel_create(l->comm, peer, l->buffer, BYTES, NULL, &ends[1]);
    if (status == SYMWIN_OK)
        status = symwin_channel_connect(l->comm, ends[0], &channel);
    if (status == SYMWIN_OK)
        status = symwin_channel_connect(l->comm, ends[1], &channel);
    if (status == SYMWIN_OK)
        return symwin_channel_destroy(l->comm, ends[0]);
    snprintf(name, sizeof name, "rank %d:", peer);
    if (strstr(symwin_last_error(), name) == NULL)
        abort_for_all(l);
    return status;
}

static symwin_status live(struct processes *p, struct life *l, enum stage stage)
{
    /* With a fault a rank may never join, so the bootstrap timeout is short. */
    const enum kind kind = board_of(p)->plan.kind;
    const int patient = kind == NOTHING || kind == INTERRUPTION;
    const symwin_comm_options options = {.size = sizeof options,
                                         .timeout_ms = WAIT_MS,
                                         .bootstrap_timeout_ms = patient ? WAIT_MS : BOOTSTRAP_MS,
                                         .kernel_timeout_ms = WAIT_MS,
                                         .slot_bytes = 8192};
    symwin_status status;

    switch (stage) {
    case ID:
        return wait_for_id(p, l->rank);
    case CREATE:
        return symwin_comm_create(&board_of(p)->id, RANKS, l->rank, l->device, &options, &l->comm);
    case ALLOC:
        return allocate(l);
    case REGISTER:
        return symwin_window_register(l->comm, l->memory, 2 * BYTES, 0, &l->window);
    case REDUCE:
        return reduce(l, l->memory, l->memory + BYTES / sizeof *l->memory);
    case EACH_OTHER:
        return each(l);
    case CHANNEL:
        return make_channels(l);
    case CONNECT:
        status = symwin_register(l->comm, l->buffer, BYTES, &l->registration);
        return status == SYMWIN_OK ? reduce(l, l->buffer, l->buffer) : status;
    case AGAIN:
        return symwin_window_register(l->comm, l->memory, 64, 0, &l->again);
    case DEREGISTER:
        status = symwin_deregister(l->comm, l->registration);
        if (status == SYMWIN_OK)
            status = symwin_window_deregister(l->comm, l->window);
        return status == SYMWIN_OK ? symwin_window_deregister(l->comm, l->again) : status;
    case ENDED:
    case STAGES:
        break;
    }
    return SYMWIN_OK;
}

static void end(struct life *l)
{
    if (l->stream != NULL)
        (void)symwin_stream_synchronize(l->device, l->stream);
    symwin_comm_destroy(l->comm);
    if (l->stream != NULL)
        (void)symwin_stream_destroy(l->device, l->stream);
    (void)symwin_mem_free(l->memory);
    (void)symwin_mem_free(l->buffer);
}

struct rank {
    struct processes *p;
    int rank;
};

static void plan_fault(const struct plan *plan, int rank)
{
    steps_i_am(rank);
    if (plan->kind == DRIVER && plan->victim == rank)
        sw_emu_fail_nth((unsigned)plan->nth, plan->code, plan->persistent, 0);
}

static void end_fault(struct board *b, int rank)
{
    if (b->plan.kind != DRIVER || b->plan.victim != rank)
        return;
    if (sw_emu_fault_fired()) {
        snprintf(b->hit, sizeof b->hit, "%s", sw_emu_fault_name());
        b->hit_rank = rank;
    }
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
}

/* Waits until the others have failed too, but no longer than the failure needs to reach them. A
 * rank that first hears that this one destroyed its communicator or channel would name it as the
 * culprit. */
static void wait_for_others(const struct processes *p)
{
    int r, i;

    for (i = 0; i < HEAR_MS * 10; i++) {
        for (r = 0; r < RANKS && p->rank[r].status >= 0; r++)
            ;
        if (r == RANKS)
            return;
        usleep(100);
    }
}

static void *rank_main(void *arg)
{
    const struct rank *self = arg;
    struct processes *p = self->p;
    struct board *b = board_of(p);
    const int rank = self->rank;
    struct life l = {.rank = rank, .device = rank % harness_device_count()};
    symwin_status status = SYMWIN_OK;
    int stage;

    plan_fault(&b->plan, rank);
    processes_barrier(p);
    for (stage = ID; stage < ENDED && status == SYMWIN_OK && b->id_made >= 0; stage++) {
        p->rank[rank].step = stage;
        status = live(p, &l, (enum stage)stage);
    }
    if (status == SYMWIN_OK)
        p->rank[rank].step = ENDED;
    processes_note(p, rank, status);
    if (status != SYMWIN_OK && p->rank[rank].step == CHANNEL)
        wait_for_others(p);
    end_fault(b, rank); /* a driver that fails for good frees nothing */
    end(&l);
    processes_barrier(p);
    return NULL;
}

static void plan_steps(const struct plan *plan, int process)
{
    if (process != plan->victim)
        return;
    if (plan->kind == SYSTEM)
        steps_plan(plan->nth, STEPS_FAIL, plan->variant, plan->persistent);
    if (plan->kind == INTERRUPTION)
        steps_plan(plan->nth, STEPS_INTERRUPT, 0, 0);
}

static void end_steps(struct board *b, int process)
{
    if (process != b->plan.victim || (b->plan.kind != SYSTEM && b->plan.kind != INTERRUPTION))
        return;
    steps_off();
    if (steps_hit() == NULL)
        return;
    snprintf(b->hit, sizeof b->hit, "%s", steps_hit());
    b->hit_rank = steps_hit_who();
}

/* Memory that peers have mapped lives until they unmap it. A listener lingers for clients that may
 * be connecting. */
static void wait_until_clean(struct board *b, int process, int fds)
{
    int i;

    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
    for (i = 0; i < SETTLE_MS; i++) {
        sw_poll_settle();
        b->left[process].objects = (int)sw_emu_live_objects();
        b->left[process].fds = harness_count_entries("/proc/self/fd") - fds;
        b->left[process].threads = harness_service_threads();
        if (b->left[process].objects == 0 && b->left[process].fds == 0 &&
            b->left[process].threads == 0)
            return;
        usleep(1000);
    }
    sw_emu_live_print(2);
}

static void one_round(struct processes *p, int process, int fds)
{
    struct board *b = board_of(p);
    pthread_t threads[RANKS];
    struct rank ranks[RANKS];
    int r;

    plan_steps(&b->plan, process);
    for (r = process; r < RANKS; r += b->processes) {
        ranks[r] = (struct rank){p, r};
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
            abort();
    }
    for (r = process; r < RANKS; r += b->processes)
        pthread_join(threads[r], NULL);
    end_steps(b, process);
    if (process == 0)
        symwin_unique_id_release(&b->id); /* if no rank used it */
    wait_until_clean(b, process, fds);
}

/* The process of the ranks process, process + board.processes, ...: one life in each round, until
 * board.quit. */
static void fault_life(struct processes *p, int process)
{
    const int fds = harness_count_entries("/proc/self/fd");
    struct board *b = board_of(p);
    int round = 0;

    alarm(0); /* the parent limits the time of each round */
    processes_on_host(b->hosts, process);
    host_must(sw_driver_load(), "sw_driver_load");
    for (;;) {
        unsigned slept = 0;

        while (b->round == round && !b->quit)
            nap(&slept);
        if (b->quit)
            return;
        round++;
        one_round(p, process, fds);
        b->done++;
    }
}

#endif
