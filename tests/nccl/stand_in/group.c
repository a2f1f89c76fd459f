/* Groups of the stand-in: what a thread has called since the outermost ncclGroupStart. At its end
 * births and registrations are made, each on a thread of its own, so that one thread can make
 * several ranks. Then the calls go to their streams: those of one stream as one job. */
#include <stdlib.h>
#include <unistd.h>

#include "inside.h"

static _Thread_local struct {
    int depth;
    ncclResult_t error; /* the first */
    struct call *calls, **last_call;
    struct task *tasks, **last_task;
} group;

/* ---- tasks ---- */

static void task_free(struct task *task)
{
    comm_unref(task->comm);
    comm_unref(task->parent);
    free(task);
}

/* Of a communicator that blocks. */
static void task_run(struct task *task)
{
    int in_progress = ncclInProgress;

    task->result = task->run(task);
    if (task->born == NULL)
        return;
    if (task->result == ncclSuccess) {
        (void)atomic_compare_exchange_strong(&task->comm->error, &in_progress, ncclSuccess);
        if (task->is_late)
            *task->born = task->comm;
    } else {
        *task->born = NULL;
        comm_close(task->comm, SEAT_FAILED);
    }
}

static void *task_main(void *data)
{
    task_run(data);
    return NULL;
}

static void *task_detached(void *data)
{
    struct task *task = data;
    const ncclResult_t result = task->run(task);
    int in_progress = ncclInProgress;

    comm_lock();
    (void)atomic_compare_exchange_strong(&task->comm->error, &in_progress, (int)result);
    task_free(task);
    comm_unlock();
    return NULL;
}

/* Starts a task's thread. `task` belongs to it if the communicator is not blocking. */
static ncclResult_t task_start(struct task *task)
{
    pthread_t thread;
    int success = ncclSuccess;

    if (task->comm->blocking)
        return pthread_create(&task->thread, NULL, task_main, task) == 0
                   ? ncclSuccess
                   : refuse(ncclSystemError, "pthread_create");
    (void)atomic_compare_exchange_strong(&task->comm->error, &success, ncclInProgress);
    if (pthread_create(&thread, NULL, task_detached, task) != 0)
        return refuse(ncclSystemError, "pthread_create");
    pthread_detach(thread);
    return ncclInProgress;
}

static ncclResult_t run_tasks(struct task *tasks)
{
    ncclResult_t result = ncclSuccess;
    struct task *started = NULL, *next;

    if (tasks != NULL && tasks->next == NULL && tasks->comm->blocking) {
        if (tasks->parent != NULL)
            tasks->ticket = tasks->parent->tickets++;
        task_run(tasks);
        result = tasks->result;
        task_free(tasks);
        return result;
    }
    for (struct task *task = tasks; task != NULL; task = next) {
        ncclResult_t start;

        next = task->next;
        if (task->parent != NULL)
            task->ticket = task->parent->tickets++;
        start = task_start(task);
        if (start == ncclSuccess) {
            task->next = started;
            started = task;
        } else if (result == ncclSuccess) {
            result = start;
        }
    }
    for (struct task *task = started; task != NULL; task = next) {
        next = task->next;
        pthread_join(task->thread, NULL);
        if (task->result != ncclSuccess && (result == ncclSuccess || result == ncclInProgress))
            result = task->result;
        task_free(task);
    }
    return result;
}

/* A birth that was never begun. */
static void drop_tasks(struct task *tasks)
{
    while (tasks != NULL) {
        struct task *next = tasks->next;

        if (tasks->born != NULL) {
            *tasks->born = NULL;
            comm_close(tasks->comm, SEAT_FAILED);
        }
        task_free(tasks);
        tasks = next;
    }
}

/* ---- jobs ---- */

static void run_once(void *data)
{
    struct job *job = data;

    job_run(job);
    comm_lock();
    for (int i = 0; i < job->comm_count; i++)
        comm_pends(job->comms[i], -1);
    job_free(job);
    comm_unlock();
}

static void run_captured(void *data)
{
    struct job *job = data;

    for (int i = 0; i < job->comm_count; i++)
        comm_pends(job->comms[i], 1);
    job_run(job);
    for (int i = 0; i < job->comm_count; i++)
        comm_pends(job->comms[i], -1);
}

static void free_captured(void *data)
{
    job_free(data);
}

static int has_comm(const struct job *job, const struct ncclComm *comm)
{
    int i = 0;

    while (i < job->comm_count && job->comms[i] != comm)
        i++;
    return i < job->comm_count;
}

/* A communicator's calls go to the stream of its first one. Handles up to 2 name a stream of the
 * current context. */
static int takes(const struct job *job, const struct call *call)
{
    return job->stream == call->stream && job->comm_count < MOST_RANKS &&
           ((uintptr_t)call->stream > 2 || job->comms[0]->context == call->comm->context);
}

static struct job *job_for(struct job **jobs, const struct call *call)
{
    struct job *job = *jobs;
    int i;

    while (job != NULL && !has_comm(job, call->comm))
        job = job->next;
    if (job != NULL)
        return job;
    for (job = *jobs; job != NULL && !takes(job, call); job = job->next)
        ;
    if (job == NULL) {
        job = calloc(1, sizeof *job);
        if (job == NULL)
            return NULL;
        job->stream = call->stream;
        job->next = *jobs;
        *jobs = job;
    }
    for (i = job->comm_count++; i > 0 && (uintptr_t)job->comms[i - 1] > (uintptr_t)call->comm; i--)
        job->comms[i] = job->comms[i - 1];
    job->comms[i] = call->comm;
    return job;
}

/* `second` waits for what is in `first`. */
static CUresult follow(const struct driver *cu, CUstream first, CUstream second)
{
    CUevent event;
    CUresult result = cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    if (result != CUDA_SUCCESS)
        return result;
    result = cu->cuEventRecord(event, first);
    if (result == CUDA_SUCCESS)
        result = cu->cuStreamWaitEvent(second, event, 0);
    cu->cuEventDestroy(event);
    return result;
}

/* The other streams of a job's calls wait for it, or it for them. */
static CUresult follow_all(const struct driver *cu, const struct job *job, const CUstream *others,
                           int count, int before)
{
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = before ? follow(cu, others[i], job->stream) : follow(cu, job->stream, others[i]);
    return result;
}

static CUresult launch_captured(const struct driver *cu, struct job *job, CUgraph graph)
{
    CUuserObject object;
    const CUstream stream = job->stream;
    CUresult result = cu->cuUserObjectCreate(&object, job, free_captured, 1,
                                             CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);

    if (result != CUDA_SUCCESS) {
        job_free(job);
        return result;
    }
    result = cu->cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS)
        cu->cuUserObjectRelease(object, 1); /* which frees the job */
    return result == CUDA_SUCCESS ? cu->cuLaunchHostFunc(stream, run_captured, job) : result;
}

/* A job on a thread of its own. Its words are used again after many others. */
struct held {
    struct job *job;
    _Atomic uint32_t *words; /* the stream has come; the job is over */
};

static void *held_main(void *data)
{
    struct held held = *(struct held *)data;

    free(data);
    while (atomic_load(&held.words[0]) == 0)
        usleep(20);
    run_once(held.job);
    atomic_store(&held.words[1], 1);
    return NULL;
}

static _Atomic uint32_t *held_words(const struct driver *cu)
{
    enum { JOBS = 4096 };
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic uint32_t *words;
    static size_t used;
    _Atomic uint32_t *found = NULL;
    void *memory;

    pthread_mutex_lock(&mutex);
    if (words == NULL && cu->cuMemHostAlloc(&memory, 2 * JOBS * sizeof *words,
                                            CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS)
        words = memory;
    if (words != NULL)
        found = words + used++ % JOBS * 2;
    pthread_mutex_unlock(&mutex);
    return found;
}

static CUresult launch_held(const struct driver *cu, CUstream stream, struct job *job)
{
    struct held *held = malloc(sizeof *held);
    _Atomic uint32_t *words = held_words(cu);
    CUresult result;
    pthread_t thread;

    if (held == NULL || words == NULL) {
        free(held);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *held = (struct held){job, words};
    atomic_store(&words[0], 0);
    atomic_store(&words[1], 0);
    result = cu->cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)&words[0], 1, 0);
    if (result == CUDA_SUCCESS)
        result = cu->cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)&words[1], 1,
                                         CU_STREAM_WAIT_VALUE_EQ);
    if (result == CUDA_SUCCESS && pthread_create(&thread, NULL, held_main, held) == 0) {
        pthread_detach(thread);
        return CUDA_SUCCESS;
    }
    atomic_store(&words[1], 1); /* the stream goes on, and the job is the caller's */
    free(held);
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* Calls of one communicator run in the order of the program, whatever their streams. The job may be
 * freed before cuLaunchHostFunc returns, so its communicators are noted and held. */
static CUresult launch_once(const struct driver *cu, struct job *job)
{
    struct ncclComm *comms[MOST_RANKS];
    const CUstream stream = job->stream;
    const int count = job->comm_count;
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < count; i++) {
        comms[i] = comm_ref(job->comms[i]);
        if (result == CUDA_SUCCESS)
            result = cu->cuStreamWaitEvent(stream, comms[i]->last, 0);
        comm_pends(comms[i], 1);
    }
    if (result == CUDA_SUCCESS)
        result = getenv("STAND_IN_THREADS") != NULL ? launch_held(cu, stream, job)
                                                    : cu->cuLaunchHostFunc(stream, run_once, job);
    if (result != CUDA_SUCCESS) {
        for (int i = 0; i < count; i++)
            comm_pends(comms[i], -1);
        job_free(job);
    }
    for (int i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            result = cu->cuEventRecord(comms[i]->last, stream);
        comm_unref(comms[i]);
    }
    return result;
}

static CUresult launch(const struct driver *cu, struct job *job)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    struct job where = {.stream = job->stream};
    CUstream others[MOST_RANKS];
    CUcontext old;
    CUgraph graph = NULL;
    int count = 0, i;
    CUresult result = cu->cuCtxPushCurrent(job->comms[0]->context);

    if (result != CUDA_SUCCESS) {
        job_free(job);
        return result;
    }
    for (const struct call *call = job->calls; call != NULL; call = call->next) {
        for (i = 0; i < count && others[i] != call->stream; i++)
            ;
        if (call->stream != job->stream && i == count && count < MOST_RANKS)
            others[count++] = call->stream;
    }
    result = cu->cuStreamGetCaptureInfo(job->stream, &status, NULL, &graph, NULL, NULL);
    if (result == CUDA_SUCCESS)
        result = follow_all(cu, &where, others, count, 1);
    if (result != CUDA_SUCCESS)
        job_free(job);
    else if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = launch_captured(cu, job, graph);
    else
        result = launch_once(cu, job);
    if (result == CUDA_SUCCESS)
        result = follow_all(cu, &where, others, count, 0);
    cu->cuCtxPopCurrent(&old);
    return result;
}

static void drop_calls(struct call *calls)
{
    struct job *job = calloc(1, sizeof *job);

    if (job == NULL)
        return;
    job->calls = calls;
    job_free(job);
}

struct launches {
    struct job *jobs;
    CUresult result;
};

static void *launch_all(void *data)
{
    const struct driver *cu = driver_get();
    struct launches *l = data;

    for (struct job *job = l->jobs, *next; job != NULL; job = next) {
        const CUresult launched = launch(cu, (next = job->next, job));

        if (l->result == CUDA_SUCCESS)
            l->result = launched;
    }
    return NULL;
}

/* Of a communicator that does not block they are launched at once as well, but NCCL says that they
 * are in progress, and its user has to ask. A thread launches them, for which CU_STREAM_PER_THREAD
 * is another stream. */
static ncclResult_t run_calls(struct call *calls)
{
    struct job *jobs = NULL;
    struct launches launches = {.result = CUDA_SUCCESS};
    pthread_t thread;
    ncclResult_t launched_all = ncclSuccess;

    for (struct call *call = calls, *behind; call != NULL; call = behind) {
        struct job *job = job_for(&jobs, call);
        struct call **at = &job->calls;

        behind = call->next;
        call->next = NULL;
        launched_all = call->comm->blocking ? launched_all : ncclInProgress;
        while (*at != NULL)
            at = &(*at)->next;
        *at = call;
    }
    launches.jobs = jobs;
    if (launched_all == ncclInProgress && pthread_create(&thread, NULL, launch_all, &launches) == 0)
        pthread_join(thread, NULL);
    else
        (void)launch_all(&launches);
    return launches.result == CUDA_SUCCESS ? launched_all
                                           : driver_check(launches.result, "cuLaunchHostFunc");
}

/* ---- groups ---- */

void group_start(void)
{
    if (group.depth++ > 0)
        return;
    group.error = ncclSuccess;
    group.calls = NULL;
    group.tasks = NULL;
    group.last_call = &group.calls;
    group.last_task = &group.tasks;
}

ncclResult_t group_end(void)
{
    ncclResult_t result;

    if (group.depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group.depth > 0)
        return ncclSuccess;
    if (group.error != ncclSuccess) {
        drop_tasks(group.tasks);
        drop_calls(group.calls);
        return group.error;
    }
    result = run_tasks(group.tasks);
    if (result == ncclSuccess || result == ncclInProgress) {
        const ncclResult_t calls = run_calls(group.calls);

        return calls == ncclSuccess ? result : calls;
    }
    drop_calls(group.calls);
    return result;
}

ncclResult_t group_fault(ncclResult_t code)
{
    if (group.depth > 0 && group.error == ncclSuccess)
        group.error = code; /* as with NCCL, the group launches nothing */
    return code;
}

/* STAND_IN_WAITS: the first collective of each kind is in progress until all ranks have made it. */
static ncclResult_t connect_all(struct task *task)
{
    char mine = 0, all[MOST_RANKS];

    return comm_exchange(task->parent, task->ticket, &mine, all, sizeof mine);
}

static int must_connect(struct ncclComm *comm, enum kind kind)
{
    const unsigned bit = 1u << kind;

    return !comm->blocking && kind != KIND_SEND && kind != KIND_RECV &&
           getenv("STAND_IN_WAITS") != NULL && (atomic_fetch_or(&comm->connected, bit) & bit) == 0;
}

ncclResult_t group_call(const struct call *model)
{
    struct call *call = malloc(sizeof *call);

    if (call == NULL)
        return group_fault(refuse(ncclSystemError, "out of memory"));
    group_start();
    if (must_connect(model->comm, model->kind))
        (void)group_task(
            &(struct task){.run = connect_all, .comm = model->comm, .parent = model->comm});
    *call = *model;
    comm_ref(call->comm);
    *group.last_call = call;
    group.last_call = &call->next;
    return group_end();
}

ncclResult_t group_task(const struct task *model)
{
    struct task *task = malloc(sizeof *task);

    if (task == NULL)
        return group_fault(refuse(ncclSystemError, "out of memory"));
    group_start();
    *task = *model;
    comm_ref(task->comm);
    comm_ref(task->parent);
    *group.last_task = task;
    group.last_task = &task->next;
    return group_end();
}

EXPORTED(ncclGroupStart, (void), ())
{
    group_start();
    return ncclSuccess;
}

/* A fault loses the group's calls, but ends the group. */
STAND_IN_API ncclResult_t ncclGroupEnd(void)
{
    const int fault = reach_count(STAND_IN_ncclGroupEnd);

    if (fault > 0)
        (void)group_fault((ncclResult_t)fault);
    return fault == 0 ? ncclSuccess : group_end();
}

STAND_IN_API ncclResult_t pncclGroupEnd(void) __attribute__((alias("ncclGroupEnd")));
