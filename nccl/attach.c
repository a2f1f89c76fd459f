/* The ranks of a communicator agree on whether symwin serves it, at their first collective, and
 * make symwin's communicator then, if any collective is symwin's: the host waits for all ranks in
 * that call, as in a first one of NCCL's, and in no later one. All of them compute the verdict from
 * the same records. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl/calls.h"

enum ability { ABLE, UNWILLING, UNABLE, INVALID_SETTING, LOST_A_WINDOW, DEAF };

/* What a rank tells the others. */
struct record {
    char magic[8];
    char version[24];
    uint64_t host;         /* of what names it */
    uint64_t serve, table; /* fingerprints of SYMWIN_NCCL_SERVE, and of the times */
    uint64_t room;         /* SYMWIN_NCCL_MEMORY */
    int32_t ability;       /* an enum ability */
    int32_t capability;
    int32_t is_reachable; /* other hosts get to an id that it makes */
    int32_t has_engine;   /* NCCL is the one that symwin takes between hosts */
    int32_t most_blocks;  /* that its birth or its variable allows; 0: no limit */
    int32_t has_id;       /* of rank 0: symwin's communicator is to be made */
    symwin_unique_id id;
};

static const char magic[8] = "symwin3";
static const char late[] = "did not wait for all others any longer (SYMWIN_BOOTSTRAP_TIMEOUT_MS; "
                           "or the driver took no host function)";
static const char deaf[] = "has no stream or pinned memory left to agree with the others";

/* ---- this process's part ---- */

/* Ranks of one host find each other if boot and mount namespace are one, as symwin has it. */
static uint64_t host(void)
{
    const char *id = getenv("SYMWIN_HOST_ID");
    char text[256] = "";
    size_t length = 0;
    ssize_t linked;
    FILE *file;

    if (id != NULL)
        return sw_hash(1, id, strlen(id));
    file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        length = fread(text, 1, 64, file);
        fclose(file);
    }
    linked = readlink("/proc/self/ns/mnt", text + length, sizeof text - length);
    return sw_hash(2, text, length + (linked > 0 ? (size_t)linked : 0));
}

/* 0: symwin cannot use the device. */
static int capability_of(const struct sw_comm *comm)
{
    symwin_device_info info;

    return sw_setup()->usable && symwin_device_query(comm->device, &info) == SYMWIN_OK
               ? info.capability
               : 0;
}

static struct record record_of(const struct sw_comm *comm)
{
    const struct sw_from nccl = SW_NCCL_OF(comm, ncclAllReduce);
    const char *address = getenv("SYMWIN_ADDR");
    struct record record = {.host = host(),
                            .serve = sw_serve_fingerprint(),
                            .table = sw_table_fingerprint(),
                            .room = sw_setup()->room,
                            .capability = capability_of(comm),
                            .is_reachable = address != NULL && address[0] != '\0',
                            .has_engine = sw_next_is_engine(&nccl),
                            .most_blocks = comm->most_blocks};

    memcpy(record.magic, magic, sizeof magic);
    snprintf(record.version, sizeof record.version, "%s", symwin_version());
    if (sw_meet_is_deaf(comm))
        record.ability = DEAF;
    else if (sw_setup()->refused)
        record.ability = INVALID_SETTING;
    else if (!sw_serve_any())
        record.ability = UNWILLING;
    else if (record.capability == 0)
        record.ability = UNABLE;
    else if (comm->lost_windows)
        record.ability = LOST_A_WINDOW;
    return record;
}

/* ---- the verdict ---- */

static ncclResult_t refuse(struct sw_comm *comm, const char *text, int rank)
{
    int born = SW_BORN, attached = SW_ATTACHED;

    if (rank >= 0)
        snprintf(comm->why, sizeof comm->why, "rank %d %s", rank, text);
    else
        snprintf(comm->why, sizeof comm->why, "%s", text);
    /* Not of one that another thread has ended meanwhile. */
    (void)(atomic_compare_exchange_strong(&comm->state, &born, SW_REFUSED) ||
           atomic_compare_exchange_strong(&comm->state, &attached, SW_REFUSED));
    return ncclSuccess;
}

/* Rank 0 knows why. */
static ncclResult_t refuse_without_id(struct sw_comm *comm)
{
    char text[sizeof comm->why - sizeof "rank 2147483647"];

    snprintf(text, sizeof text, "cannot make an id for symwin's communicator%.100s", comm->why);
    return refuse(comm, text, 0);
}

/* Whether symwin can go between hosts, if ranks are on several. 0: it cannot, and says why. */
static int judge_hosts(struct sw_comm *comm)
{
    const struct record *first = sw_met(comm, 0), *record;
    int rank = 1;

    while (rank < comm->ranks && (record = sw_met(comm, rank))->host == first->host)
        rank++;
    if (rank == comm->ranks)
        return 1;
    if (!first->is_reachable) {
        (void)refuse(comm, "is on another host than rank 0, whose SYMWIN_ADDR is not set", rank);
        return 0;
    }
    for (rank = 0; rank < comm->ranks; rank++)
        if (!((const struct record *)sw_met(comm, rank))->has_engine) {
            (void)refuse(comm, "has another NCCL than that of SYMWIN_NCCL or libnccl.so.2", rank);
            return 0;
        }
    comm->several_hosts = 1;
    return 1;
}

static int serves_nothing(const struct sw_comm *comm)
{
    int kind = 0;

    while (kind < SW_KINDS && comm->sizes[kind] == 0)
        kind++;
    return kind == SW_KINDS;
}

/* Nothing has gone as it should if one has not, or in another way than this version's: the next
 * calls would not be the same ones. */
static ncclResult_t check_that_all_answered(const struct sw_comm *comm)
{
    int rank;

    for (rank = 0; rank < comm->ranks; rank++) {
        if (memcmp(sw_met(comm, rank), magic, sizeof magic) == 0)
            continue;
        return memcmp(sw_met(comm, rank), magic, strlen("symwin")) == 0
                   ? sw_error(ncclInvalidUsage,
                              "symwin: rank %d has a version of symwin whose ranks agree in "
                              "another way; install the same one for all ranks",
                              rank)
                   : sw_error(ncclInvalidUsage,
                              "symwin: rank %d has answered with a collective of its own: its "
                              "process lacks libsymwin-nccl.so; preload it on all ranks, or on "
                              "none",
                              rank);
    }
    return ncclSuccess;
}

static ncclResult_t judge(struct sw_comm *comm)
{
    const struct record *first = sw_met(comm, 0);
    int rank, capability = INT_MAX, most_blocks = 0;

    for (rank = 0; rank < comm->ranks; rank++)
        if (((const struct record *)sw_met(comm, rank))->ability == DEAF)
            return refuse(comm, deaf, rank);
    for (rank = 0; rank < comm->ranks; rank++) {
        const struct record *record = sw_met(comm, rank);

        if (memcmp(record->version, first->version, sizeof first->version) != 0)
            return refuse(comm, "has another version of symwin", rank);
        if (record->ability == INVALID_SETTING)
            return rank == comm->rank
                       ? sw_error(ncclInvalidArgument, "symwin: %s", sw_setup()->why)
                       : sw_error(ncclInvalidArgument,
                                  "symwin: a variable of rank %d is invalid; its process says "
                                  "which on stderr",
                                  rank);
    }
    for (rank = 0; rank < comm->ranks; rank++) {
        const struct record *record = sw_met(comm, rank);

        if (record->ability == UNWILLING)
            return refuse(comm, "has SYMWIN_NCCL_SERVE=none", rank);
        if (record->ability == UNABLE)
            return refuse(comm, "has no device that symwin can use", rank);
        if (record->ability == LOST_A_WINDOW)
            return refuse(comm, "has no host memory for a window", rank);
        if (record->serve != first->serve)
            return refuse(comm, "has another SYMWIN_NCCL_SERVE than rank 0", rank);
        if (record->room != first->room)
            return refuse(comm, "has another SYMWIN_NCCL_MEMORY than rank 0", rank);
        if (record->table != first->table)
            return refuse(comm, "has another table of measured times than rank 0", rank);
        if (record->capability < capability)
            capability = record->capability;
        if (record->most_blocks > 0 && (most_blocks == 0 || record->most_blocks < most_blocks))
            most_blocks = record->most_blocks;
    }
    if (!judge_hosts(comm))
        return ncclSuccess;
    comm->most_blocks = most_blocks;
    sw_serve_sizes(comm->ranks, capability, comm->several_hosts, most_blocks, comm->sizes);
    if (comm->several_hosts && serves_nothing(comm))
        return refuse(comm,
                      "its ranks are on several hosts, between which no times were measured; "
                      "SYMWIN_NCCL_SERVE may say all",
                      -1);
    atomic_store(&comm->state, SW_ATTACHED);
    return ncclSuccess;
}

/* ---- who this rank is ---- */

ncclResult_t sw_attach_learn(struct sw_comm *comm)
{
    const struct {
        struct sw_from from;
        int *number;
    } asked[] = {{SW_NCCL_OF(comm, ncclCommUserRank), &comm->rank},
                 {SW_NCCL_OF(comm, ncclCommCount), &comm->ranks},
                 {SW_NCCL_OF(comm, ncclCommCuDevice), &comm->device}};
    size_t i;

    for (i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const sw_comm_number_fn ask = (sw_comm_number_fn)asked[i].from.symbol;
        ncclResult_t result;
        ncclComm_t handle;

        if (ask == NULL) /* on any rank */
            return refuse(comm, "NCCL has no function that says who a rank is", -1);
        handle = sw_meet_ask(comm);
        result = handle != NULL ? ask(handle, asked[i].number) : ncclSuccess;
        sw_meet_has_asked(comm);
        if (handle == NULL)
            return sw_meet_was_aborted();
        if (result != ncclSuccess)
            return sw_error_is_nccls(result);
    }
    if (sw_setup()->report)
        atomic_store(&comm->counts, calloc(1, sizeof(struct sw_counts)));
    if (comm->ranks == 1)
        return refuse(comm, "it has one rank", -1);
    if (sw_cu() == NULL)
        return refuse(comm, "there is no libcuda here", -1); /* nor for NCCL */
    comm->most_blocks = sw_birth_limit(atomic_load(&comm->handle));
    sw_serve_sizes(comm->ranks, capability_of(comm), 0, comm->most_blocks, comm->sizes);
    return ncclSuccess;
}

/* ---- symwin's communicator ------------------------------------------------------------------- */

static size_t slot_bytes(const struct sw_comm *comm)
{
    size_t slot = (size_t)32 << 20;

    while (slot > 4096 && 4 * (size_t)comm->ranks * slot > sw_setup()->room)
        slot /= 2;
    return slot;
}

void sw_window_open(struct sw_comm *comm, struct sw_nccl_window *window)
{
    symwin_comm *symwin = atomic_load(&comm->symwin);
    symwin_window *made = NULL;

    /* If it is refused, it is on all ranks, and calls go through symwin's own memory. */
    if (window->window != NULL || symwin == NULL ||
        symwin_window_register(symwin, window->ptr, window->size, 0, &made) != SYMWIN_OK)
        return;
    pthread_mutex_lock(&sw_comm_windows);
    window->window = made;
    pthread_mutex_unlock(&sw_comm_windows);
}

/* In the order in which they were registered, which is equal on all ranks. */
static void register_windows(struct sw_comm *comm)
{
    struct sw_nccl_window *window;

    for (window = comm->windows; window != NULL; window = window->next)
        sw_window_open(comm, window);
}

/* Ranks make it right after they have met, so one that does not come has failed or ended. */
static int patience(void)
{
    const char *text = getenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS");
    const long value = text != NULL ? strtol(text, NULL, 10) : 0;

    return value > 0 && value <= 1000000000 ? (int)value : 60000;
}

/* A rank that has given up, whose record is there all the same; the number of ranks: there is none.
 */
static int first_that_gave_up(const struct sw_comm *comm)
{
    int rank = 0;

    while (rank < comm->ranks && !sw_met_gave_up(comm, rank))
        rank++;
    return rank;
}

/* Rank 0's, while symwin's communicator is made: the words of the meeting may still be under way.
 * If a rank has given up, it does not come, and the others are not to wait for it. Nor are they if
 * the program aborts meanwhile. */
struct watch {
    struct sw_comm *comm;
    const symwin_unique_id *id;
    atomic_int is_over;
    pthread_t thread;
};

static void *watch_main(void *data)
{
    const struct timespec moment = {.tv_nsec = 100000};
    struct watch *watch = data;
    struct sw_comm *comm = watch->comm;
    ncclResult_t words = ncclInProgress;
    struct sw_comm_scope scope;
    int ends = 0;

    if (!sw_comm_scope_enter(comm, &scope))
        return NULL;
    while (!atomic_load(&watch->is_over) && !ends) {
        if (words == ncclInProgress)
            words = sw_meet_query(comm);
        ends = atomic_load(&comm->stop) ||
               (words == ncclSuccess && first_that_gave_up(comm) < comm->ranks);
        if (ends)
            (void)symwin_unique_id_release(watch->id);
        nanosleep(&moment, NULL);
    }
    sw_comm_scope_leave(&scope);
    return NULL;
}

static void create(struct sw_comm *comm, const symwin_unique_id *id)
{
    /* Captured calls register nothing: a rank that captures would wait for others that do not, and
     * the graph would keep the buffer from being freed. NCCL waits without a limit, and so does
     * symwin where ranks may be late. Kernels of NCCL's other communicators, of up to 32 blocks,
     * may be ahead of symwin's on another rank. */
    const symwin_comm_options options = {.size = sizeof options,
                                         .flags = SYMWIN_COMM_NO_GRAPH_REGISTER,
                                         .timeout_ms = 1000000000,
                                         .bootstrap_timeout_ms = patience(),
                                         .kernel_timeout_ms = -1,
                                         .slot_bytes = slot_bytes(comm),
                                         .max_blocks = comm->most_blocks,
                                         .spare_multiprocessors = 32};
    struct watch watch = {.comm = comm, .id = id};
    const int watches = comm->rank == 0 && sw_comm_begin_thread(&watch.thread, watch_main, &watch);
    symwin_comm *made = NULL;
    symwin_status status;
    char name[32];

    status = symwin_comm_create(id, comm->ranks, comm->rank, comm->device, &options, &made);
    atomic_store(&watch.is_over, 1);
    if (watches)
        pthread_join(watch.thread, NULL);
    if (status != SYMWIN_OK) {
        (void)refuse(comm, symwin_last_error(), -1);
        if (comm->rank == 0)
            (void)symwin_unique_id_release(id); /* which may fail with a sentence of its own */
        return;
    }
    (void)snprintf(name, sizeof name, "nccl:%p", (void *)atomic_load(&comm->handle));
    (void)symwin_comm_set_name(made, name); /* as NCCL's own lines call it */
    atomic_store(&comm->symwin, made);
    if (atomic_load(&comm->stop)) /* which has not seen it */
        (void)symwin_comm_abort(made);
    register_windows(comm);
}

static ncclResult_t begin(struct sw_comm *comm)
{
    ncclResult_t result = sw_meet_prepare(comm, sizeof(struct record));
    struct record record;

    if (result != ncclSuccess)
        return result;
    record = record_of(comm);
    if (!serves_nothing(comm) && record.ability == ABLE && comm->rank == 0) {
        record.has_id = symwin_unique_id_create(&record.id) == SYMWIN_OK;
        if (!record.has_id)
            snprintf(comm->why, sizeof comm->why, ": %s", symwin_last_error());
    }
    result = sw_meet_begin(comm, &record);
    if (record.has_id && result != ncclSuccess && result != ncclInProgress)
        (void)symwin_unique_id_release(&record.id);
    return result;
}

/* Waits for all ranks, and computes the verdict. !*came: this rank has given up. */
static ncclResult_t agree(struct sw_comm *comm, int *came)
{
    ncclResult_t result = sw_meet_await(comm, patience(), came);

    if (result != ncclSuccess)
        return result;
    if (!*came)
        return refuse(comm, sw_meet_is_deaf(comm) ? deaf : late, comm->rank);
    result = check_that_all_answered(comm);
    return result == ncclSuccess ? judge(comm) : result;
}

/* Waits for the words. If a rank has given up, all refuse. */
static ncclResult_t hear(struct sw_comm *comm)
{
    const ncclResult_t result = sw_meet_wait(comm);
    const int rank = result == ncclSuccess ? first_that_gave_up(comm) : comm->ranks;

    return rank < comm->ranks ? refuse(comm, late, rank) : result;
}

/* Agrees, and makes symwin's communicator if rank 0 has an id for it: without a rank that has given
 * up there is none, so the words come meanwhile. What rank 0 knew of before the agreement, as its
 * own GPU, may serve calls, and what they have agreed on none. */
static ncclResult_t end(struct sw_comm *comm)
{
    const int agreed = atomic_load(&comm->state) == SW_ATTACHED;
    const struct record *first, *mine = sw_meet_mine(comm);
    int came, creates = 0;
    ncclResult_t result = agree(comm, &came);

    if (result == ncclSuccess && atomic_load(&comm->state) == SW_ATTACHED) {
        first = sw_met(comm, 0);
        sw_order_forget(comm); /* NCCL's calls so far are over: the meeting came after them */
        creates = first->has_id && !serves_nothing(comm);
        if (creates) {
            comm->opened = 1;
            comm->place = sw_hash(3, first->id.bytes, sizeof first->id.bytes);
            create(comm, &first->id);
        }
    }
    if (result == ncclSuccess && came) {
        result = hear(comm);
        if (result != ncclSuccess)
            sw_call_is_lost(comm, result);
    }
    if (result == ncclSuccess && !agreed)
        sw_report_birth(comm);
    if (result == ncclSuccess && agreed && !creates && atomic_load(&comm->state) == SW_ATTACHED) {
        comm->opened = 1;
        result = refuse_without_id(comm);
        sw_report_birth(comm);
    }
    if (!creates && !sw_meet_is_deaf(comm) && mine->has_id)
        (void)symwin_unique_id_release(&mine->id);
    return result;
}

/* The thread may be capturing a stream. */
static ncclResult_t inside(struct sw_comm *comm, ncclResult_t (*step)(struct sw_comm *comm))
{
    struct sw_comm_scope scope;
    ncclResult_t result;

    if (!sw_comm_scope_enter(comm, &scope))
        return sw_error(ncclUnhandledCudaError, "symwin: device %d has no context", comm->device);
    result = step(comm);
    sw_comm_scope_leave(&scope);
    return result;
}

ncclResult_t sw_attach_begin(struct sw_comm *comm)
{
    return inside(comm, begin);
}

ncclResult_t sw_attach_end(struct sw_comm *comm)
{
    return inside(comm, end);
}

/* ---- for several communicators, each in a thread of its own ---- */

struct job {
    struct sw_comm *comm;
    ncclResult_t result;
    pthread_t thread;
    int threaded;
};

static void *job_main(void *data)
{
    struct job *job = data;

    job->result = sw_attach_begin(job->comm);
    if (job->result == ncclSuccess || job->result == ncclInProgress)
        job->result = sw_attach_end(job->comm);
    return NULL;
}

/* In a group this thread's calls of NCCL would wait for its end. */
ncclResult_t sw_attach_all(struct sw_comm *const *comms, int count)
{
    struct job *jobs = calloc((size_t)count, sizeof *jobs);
    ncclResult_t result = ncclSuccess;
    int i;

    if (jobs == NULL)
        return sw_error(ncclSystemError, "symwin: no host memory");
    for (i = 0; i < count; i++) {
        jobs[i].comm = comms[i];
        jobs[i].threaded = sw_comm_begin_thread(&jobs[i].thread, job_main, &jobs[i]);
    }
    for (i = 0; i < count; i++) {
        if (jobs[i].threaded)
            pthread_join(jobs[i].thread, NULL);
        else
            jobs[i].result = sw_error(ncclSystemError, "symwin: no thread is left");
        if (result == ncclSuccess)
            result = jobs[i].result;
    }
    free(jobs);
    return result;
}

/* Sends and receives are symwin's where it has a communicator, which only a collective makes: the
 * ranks that a message is not for do not come. */
int sw_attach_is_due(const struct sw_comm *comm)
{
    const int state = atomic_load(&comm->state);

    return state == SW_BORN || (state == SW_ATTACHED && !comm->opened && !serves_nothing(comm));
}

/* symwin's communicator, which ends, and its windows with it: nobody finds them any more. */
static symwin_comm *take_out(struct sw_comm *comm)
{
    struct sw_nccl_window *window;
    symwin_comm *symwin;

    pthread_mutex_lock(&sw_comm_windows);
    symwin = atomic_exchange(&comm->symwin, NULL);
    for (window = comm->windows; window != NULL; window = window->next)
        window->window = NULL;
    pthread_mutex_unlock(&sw_comm_windows);
    return symwin;
}

void sw_close(struct sw_comm *comm, int users)
{
    const struct timespec moment = {.tv_nsec = 20000};
    symwin_comm *symwin = take_out(comm);

    comm->opened = 0;
    atomic_store(&comm->failed, ncclSuccess);
    while (symwin != NULL && atomic_load(&comm->users) > users)
        nanosleep(&moment, NULL);
    sw_order_end(comm);
    if (symwin != NULL)
        symwin_comm_destroy(symwin);
}
