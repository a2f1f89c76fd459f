/* What tests of the library share: ranks as threads, memory that they use, and checks.
 *
 * harness_start() comes first. It loads the driver that SYMWIN_DRIVER names, by default the
 * emulated one, so that a test never uses a GPU by accident. harness_run() runs a function on each
 * of N ranks. harness_no_leaks() checks that nothing was left behind. host_expect() checks a status
 * and the text of its error, host_must() ends the program where a step of the test fails.
 *
 *   SYMWIN_TEST_DEVICES     how many devices the ranks are spread over; default: all
 *   SYMWIN_TEST_PROCESSES   see harness_fork()
 *
 * Functions may be called by any thread unless they say otherwise. */
#ifndef SYMWIN_TESTS_HARNESS_H
#define SYMWIN_TESTS_HARNESS_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "emu/emu.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "symwin.h"
#include "tap.h"

#define HARNESS_UNUSED __attribute__((unused)) static

/* ---- start ---- */

/* Retains each device's primary context for as long as the process lives. In a process without a
 * context, a real driver initializes a device and shuts it down in each call that maps memory. */
HARNESS_UNUSED void harness_hold_contexts(void)
{
    CUcontext context;
    int count = 0, i;

    if (sw_driver_is_emulated())
        return;
    (void)sw_drv.cuDeviceGetCount(&count);
    for (i = 0; i < count; i++)
        (void)sw_drv.cuDevicePrimaryCtxRetain(&context, i);
}

HARNESS_UNUSED void harness_start(void)
{
    setenv("SYMWIN_DRIVER", "emu", 0);
    if (sw_driver_load() != SYMWIN_OK)
        tap_skip_all(symwin_last_error());
    harness_hold_contexts();
}

HARNESS_UNUSED int harness_device_count(void)
{
    symwin_driver_info info;

    return symwin_driver_query(&info) == SYMWIN_OK ? info.device_count : 0;
}

/* ---- nothing left behind ---- */

struct harness_leaks {
    size_t objects; /* of the emulated driver; 0 on the real one */
    int fds;
    int threads;
    size_t free_bytes; /* of device 0 on the real driver; 0 on the emulated one */
};

HARNESS_UNUSED struct harness_leaks harness_leaks_now(void)
{
    struct harness_leaks now = {0};

    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0); /* memory that the pools keep is no leak */
    (void)sw_reaper_wait(10000);
    if (sw_driver_is_emulated())
        now.objects = sw_emu_live_objects(); /* first: it closes what ended processes held */
    (void)sw_closer_wait(10);                /* its thread closes unwanted descriptors */
    now.fds = harness_count_entries("/proc/self/fd");
    now.threads = harness_service_threads();
    return now;
}

/* The poll thread may still have a connection to close whose peer is gone: waits at most 2 s until
 * all is as at `before`, and says on stderr which descriptors there are if it is not. */
HARNESS_UNUSED struct harness_leaks harness_leaks_settle(const struct harness_leaks *before)
{
    struct harness_leaks now = harness_leaks_now();
    char name[32], file[256];
    int tries, fd;
    ssize_t n;

    for (tries = 0; tries < 200 && (now.fds != before->fds || now.threads != before->threads);
         tries++) {
        usleep(10000);
        now = harness_leaks_now();
    }
    for (fd = 0; fd < 1024 && now.fds != before->fds; fd++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        n = readlink(name, file, sizeof file - 1);
        if (n > 0)
            fprintf(stderr, "# descriptor %d: %.*s\n", fd, (int)n, file);
    }
    return now;
}

/* One TAP line: there are as many objects, descriptors and threads as at `before`. */
HARNESS_UNUSED void harness_no_leaks(const char *name, const struct harness_leaks *before)
{
    const struct harness_leaks now = harness_leaks_settle(before);
    const int clean = now.objects == before->objects && now.fds == before->fds &&
                      now.threads == before->threads;

    tap_ok(clean,
           "%s: nothing left behind (objects %zu, was %zu; fds %d, was %d; threads %d, was %d)",
           name, now.objects, before->objects, now.fds, before->fds, now.threads, before->threads);
    if (!clean && sw_driver_is_emulated())
        sw_emu_live_print(2);
}

/* ---- ranks ---- */

/* For tests whose kernels wait for each other; call it before harness_start(). By default a kernel
 * is loaded at its first launch, and loading waits for the kernels that run on the device. Where
 * ranks share a device, such a kernel may wait for the one that is being loaded. */
HARNESS_UNUSED void harness_load_ahead(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

/* With SYMWIN_TEST_PROCESSES=N, harness_fork() forks the test into N processes. Each is one rank of
 * every team of N and runs the body once. Then the processes share only the id, the barrier and
 * harness_count(); each rank computes everything else itself. */
struct harness_job {
    pthread_barrier_t barrier;
    symwin_unique_id id;
    atomic_int count;
    pid_t pids[64];
};

/* In shared memory; NULL: ranks are threads. */
__attribute__((weak)) struct harness_job *harness_job;
__attribute__((weak)) int harness_process, harness_processes;

/* First thing in main(), before the driver is loaded. */
HARNESS_UNUSED void harness_fork(void)
{
    const char *text = getenv("SYMWIN_TEST_PROCESSES");
    pthread_barrierattr_t shared;
    int p;

    harness_processes = text != NULL ? atoi(text) : 0;
    if (harness_processes < 1 || harness_processes > 64)
        return;
    harness_job = mmap(NULL, sizeof *harness_job, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (harness_job == MAP_FAILED || pthread_barrierattr_init(&shared) != 0 ||
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&harness_job->barrier, &shared, (unsigned)harness_processes) != 0) {
        perror("harness_fork");
        exit(1);
    }
    for (p = 1; p < harness_processes; p++) {
        const pid_t pid = fork();

        if (pid < 0) {
            perror("fork");
            exit(1);
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the first process */
            harness_process = p;
            tap_silent = 1;
            return;
        }
        harness_job->pids[p] = pid;
    }
}

/* Call it in place of tap_done(): one more line for each other process. */
HARNESS_UNUSED int harness_done(void)
{
    int p;

    for (p = 1; harness_process == 0 && p < harness_processes; p++) {
        int status = -1;

        while (waitpid(harness_job->pids[p], &status, 0) < 0 && errno == EINTR)
            ;
        tap_ok(status == 0, "process %d ends well (wait status 0x%x)", p, (unsigned)status);
    }
    return tap_done();
}

struct harness_team {
    int nranks;
    symwin_unique_id id; /* fresh for every team */
    pthread_barrier_t barrier;
    atomic_int count; /* see harness_count() */
    void (*body)(struct harness_team *team, int rank, void *arg);
    void *arg;
};

struct harness_rank {
    struct harness_team *team;
    int rank;
};

HARNESS_UNUSED void *harness_rank_main(void *arg)
{
    struct harness_rank *self = arg;

    self->team->body(self->team, self->rank, self->team->arg);
    return NULL;
}

/* Runs the body for this process's rank. */
HARNESS_UNUSED void harness_run_process(struct harness_team *team)
{
    if (team->nranks != harness_processes) {
        fprintf(stderr, "harness_run: %d ranks in %d processes\n", team->nranks, harness_processes);
        exit(1);
    }
    if (harness_process == 0) {
        if (symwin_unique_id_create(&harness_job->id) != SYMWIN_OK)
            exit(1);
        harness_job->count = 0;
    }
    pthread_barrier_wait(&harness_job->barrier);
    team->id = harness_job->id;
    team->body(team, harness_process, team->arg);
    if (harness_process == 0)
        symwin_unique_id_release(&team->id);
    pthread_barrier_wait(&harness_job->barrier); /* no rank maps another's memory now */
}

/* Calls body(team, rank, arg) on nranks threads and waits for all. */
HARNESS_UNUSED void
harness_run(int nranks, void (*body)(struct harness_team *team, int rank, void *arg), void *arg)
{
    struct harness_team team = {.nranks = nranks, .body = body, .arg = arg};
    struct harness_rank *ranks = calloc((size_t)nranks, sizeof *ranks);
    pthread_t *threads = calloc((size_t)nranks, sizeof *threads);
    int r;

    if (harness_job != NULL) {
        harness_run_process(&team);
        free(threads);
        free(ranks);
        return;
    }
    if (ranks == NULL || threads == NULL || symwin_unique_id_create(&team.id) != SYMWIN_OK ||
        pthread_barrier_init(&team.barrier, NULL, (unsigned)nranks) != 0) {
        fprintf(stderr, "harness_run: cannot start %d ranks\n", nranks);
        exit(1);
    }
    for (r = 0; r < nranks; r++) {
        ranks[r] = (struct harness_rank){&team, r};
        if (pthread_create(&threads[r], NULL, harness_rank_main, &ranks[r]) != 0) {
            fprintf(stderr, "harness_run: cannot start the thread of rank %d\n", r);
            exit(1);
        }
    }
    for (r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    symwin_unique_id_release(&team.id); /* if no rank used it */
    pthread_barrier_destroy(&team.barrier);
    free(threads);
    free(ranks);
}

HARNESS_UNUSED void harness_barrier(struct harness_team *team)
{
    pthread_barrier_wait(harness_job != NULL ? &harness_job->barrier : &team->barrier);
}

/* A number that all ranks of a team share; it begins as 0. */
HARNESS_UNUSED atomic_int *harness_count(struct harness_team *team)
{
    return harness_job != NULL ? &harness_job->count : &team->count;
}

/* The device of a rank: ranks take the devices in turn. */
HARNESS_UNUSED int harness_device(int rank)
{
    const char *text = getenv("SYMWIN_TEST_DEVICES");
    const int count = harness_device_count();
    int use = text != NULL ? atoi(text) : count;

    if (use < 1 || use > count)
        use = count;
    return rank % use;
}

/* A communicator with timeouts that suit a test; *comm stays NULL on failure. */
HARNESS_UNUSED symwin_status harness_comm(struct harness_team *team, int rank, symwin_comm **comm)
{
    const symwin_comm_options options = {
        .size = sizeof options,
        .timeout_ms = 20000,
        .kernel_timeout_ms = 20000,
    };

    return symwin_comm_create(&team->id, team->nranks, rank, harness_device(rank), &options, comm);
}

/* ---- checks of a status ---- */

enum { MIB = 1 << 20, GRANULE = 2 * MIB }; /* of the emulated driver, and of today's GPUs */

/* Whether the thread's last error contains each of `words`, which "|" separates: "rank 1|4096". */
HARNESS_UNUSED int host_error_has(const char *words)
{
    const char *error = symwin_last_error();
    char word[128];

    while (*words != '\0') {
        const size_t length = strcspn(words, "|");

        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strstr(error, word) == NULL)
            return 0;
        words += length;
        words += *words == '|';
    }
    return 1;
}

/* One TAP line: the call returned `want` and, if that is an error, a text with all `words`. */
HARNESS_UNUSED int host_expect(const char *name, symwin_status got, symwin_status want,
                               const char *words)
{
    const int right = got == want && (want == SYMWIN_OK || host_error_has(words));

    if (right)
        tap_ok(1, "%s: %s", name, symwin_status_name(want));
    else
        tap_ok(0, "%s: want %s with \"%s\", got %s: %s", name, symwin_status_name(want), words,
               symwin_status_name(got), got == SYMWIN_OK ? "" : symwin_last_error());
    return right;
}

/* For steps that are not checks themselves. */
HARNESS_UNUSED void host_must(symwin_status status, const char *what)
{
    if (status == SYMWIN_OK)
        return;
    printf("Bail out! %s: %s: %s\n", what, symwin_status_name(status), symwin_last_error());
    fflush(stdout);
    exit(1);
}

HARNESS_UNUSED void host_must_cuda(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s: CUresult %d\n", what, (int)result);
    fflush(stdout);
    exit(1);
}

/* ---- device memory ---- */

HARNESS_UNUSED void *host_alloc(int device, size_t bytes)
{
    void *ptr = NULL;

    host_must(symwin_mem_alloc(device, bytes, 0, &ptr), "symwin_mem_alloc");
    return ptr;
}

/* Copies either way and waits. */
HARNESS_UNUSED symwin_status host_copy(int device, void *dst, const void *src, size_t bytes)
{
    const symwin_status status = symwin_memcpy(device, dst, src, bytes, NULL);

    return status == SYMWIN_OK ? symwin_stream_synchronize(device, NULL) : status;
}

HARNESS_UNUSED void host_put_u32(int device, void *dst, uint32_t value)
{
    host_must(host_copy(device, dst, &value, sizeof value), "copy to the device");
}

HARNESS_UNUSED uint32_t host_get_u32(int device, const void *src)
{
    uint32_t value = 0;

    host_must(host_copy(device, &value, src, sizeof value), "copy from the device");
    return value;
}

/* Makes the communicator count `blocks` more blocks, as if calls outside captures had ended. */
HARNESS_UNUSED void host_count_on(symwin_comm *comm, uint32_t blocks)
{
    comm->done += blocks;
    host_put_u32(comm->device, (void *)(uintptr_t)comm->done_address, comm->done);
}

HARNESS_UNUSED void *host_at(void *base, size_t offset)
{
    return (unsigned char *)base + offset;
}

/* Memory of another allocator: created, mapped and freed by driver calls alone. */
struct host_raw {
    CUdeviceptr ptr;
    size_t bytes;
    CUmemGenericAllocationHandle handle; /* 0: released */
};

HARNESS_UNUSED struct host_raw host_raw_alloc(int device, size_t bytes, unsigned handle_types)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct host_raw raw = {.bytes = bytes};

    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = device;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)handle_types;
    host_must_cuda(sw_drv.cuMemCreate(&raw.handle, bytes, &prop, 0), "cuMemCreate");
    host_must_cuda(sw_drv.cuMemAddressReserve(&raw.ptr, bytes, 0, 0, 0), "cuMemAddressReserve");
    host_must_cuda(sw_drv.cuMemMap(raw.ptr, bytes, 0, raw.handle, 0), "cuMemMap");
    host_must_cuda(sw_drv.cuMemSetAccess(raw.ptr, bytes, &access, 1), "cuMemSetAccess");
    return raw;
}

/* Maps the memory at `ptr` once more. Returns where that byte is. */
HARNESS_UNUSED void *host_map_again(int device, const void *ptr, struct host_raw *again)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)ptr;
    CUdeviceptr base = 0;

    *again = (struct host_raw){.ptr = 0};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    host_must_cuda(sw_drv.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
                   "base");
    host_must_cuda(
        sw_drv.cuPointerGetAttribute(&again->bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at), "size");
    host_must_cuda(sw_drv.cuMemRetainAllocationHandle(&again->handle, (void *)(uintptr_t)at),
                   "cuMemRetainAllocationHandle");
    host_must_cuda(sw_drv.cuMemAddressReserve(&again->ptr, again->bytes, 0, 0, 0), "reserve");
    host_must_cuda(sw_drv.cuMemMap(again->ptr, again->bytes, 0, again->handle, 0), "cuMemMap");
    host_must_cuda(sw_drv.cuMemSetAccess(again->ptr, again->bytes, &access, 1), "cuMemSetAccess");
    return (void *)(uintptr_t)(again->ptr + (at - base));
}

HARNESS_UNUSED void host_raw_release_handle(struct host_raw *raw)
{
    host_must_cuda(sw_drv.cuMemRelease(raw->handle), "cuMemRelease");
    raw->handle = 0;
}

HARNESS_UNUSED void host_raw_free(struct host_raw *raw)
{
    host_must_cuda(sw_drv.cuMemUnmap(raw->ptr, raw->bytes), "cuMemUnmap");
    host_must_cuda(sw_drv.cuMemAddressFree(raw->ptr, raw->bytes), "cuMemAddressFree");
    if (raw->handle != 0)
        host_raw_release_handle(raw);
    raw->ptr = 0;
}

/* ---- streams and graphs ---- */

/* Makes `to` wait for `from`, and join its capture. */
HARNESS_UNUSED void host_follow(CUstream from, CUstream to)
{
    CUevent event = NULL;

    host_must_cuda(sw_drv.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    host_must_cuda(sw_drv.cuEventRecord(event, from), "cuEventRecord");
    host_must_cuda(sw_drv.cuStreamWaitEvent(to, event, 0), "cuStreamWaitEvent");
    host_must_cuda(sw_drv.cuEventDestroy(event), "cuEventDestroy");
}

/* A green context of at least `least` multiprocessors, and how many it has. In a scope. */
HARNESS_UNUSED CUgreenCtx host_make_part(int device, unsigned least, unsigned *multiprocessors)
{
    CUdevResource all, part;
    CUdevResourceDesc desc = NULL;
    unsigned count = 1;
    CUgreenCtx green;

    host_must_cuda(sw_drv.cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM),
                   "cuDeviceGetDevResource");
    host_must_cuda(sw_drv.cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, least),
                   "cuDevSmResourceSplitByCount");
    host_must_cuda(sw_drv.cuDevResourceGenerateDesc(&desc, &part, 1), "cuDevResourceGenerateDesc");
    host_must_cuda(sw_drv.cuGreenCtxCreate(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM),
                   "cuGreenCtxCreate");
    *multiprocessors = part.sm.smCount;
    return green;
}

/* Ends a capture; its graph, ready to be launched. graph: where to put it too; NULL: destroys it.
 */
HARNESS_UNUSED CUgraphExec host_end_capture(CUstream stream, CUgraph *graph)
{
    CUgraphExec exec = NULL;
    CUgraph made = NULL;

    host_must_cuda(sw_drv.cuStreamEndCapture(stream, &made), "cuStreamEndCapture");
    host_must_cuda(sw_drv.cuGraphInstantiateWithFlags(&exec, made, 0), "cuGraphInstantiate");
    host_must(sw_graph_upload(exec, stream), "sw_graph_upload");
    if (graph != NULL)
        *graph = made;
    else
        host_must_cuda(sw_drv.cuGraphDestroy(made), "cuGraphDestroy");
    return exec;
}

/* ---- time, random numbers, files ---- */

HARNESS_UNUSED int64_t host_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

HARNESS_UNUSED void host_pause_ms(int ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* The longest of `times` waits for the poll lock, in milliseconds. */
HARNESS_UNUSED int64_t host_longest_lock_ms(int times)
{
    int64_t worst = 0;
    int i;

    for (i = 0; i < times; i++) {
        const int64_t begin = sw_now_ms();
        int64_t waited;

        sw_poll_lock();
        sw_poll_unlock();
        waited = sw_now_ms() - begin;
        if (waited > worst)
            worst = waited;
    }
    return worst;
}

/* splitmix64 (Steele, Lea, Flood 2014): the same numbers on every machine. */
HARNESS_UNUSED uint64_t host_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A fat binary of kernels for GPUs: the file that the environment's `variable` names. By default it
 * is `file` where make gpu-tests writes it, in ../obj/tests/helpers beside the program. It is never
 * freed. A test without its fat binary is skipped. */
HARNESS_UNUSED const void *host_fatbin(const char *variable, const char *file)
{
    const char *named = getenv(variable);
    char path[4096] = "", why[128], *end, *bytes = NULL;
    FILE *stream;
    long size;

    snprintf(why, sizeof why, "there is no %s: make gpu-tests, or %s", file, variable);
    if (readlink("/proc/self/exe", path, sizeof path - 128) < 0)
        path[0] = '\0';
    end = strrchr(path, '/');
    end = end != NULL ? end + 1 : path;
    snprintf(end, sizeof path - (size_t)(end - path), "../obj/tests/helpers/%s", file);
    stream = fopen(named != NULL ? named : path, "rb");
    if (stream == NULL)
        tap_skip_all(why);
    if (fseek(stream, 0, SEEK_END) == 0 && (size = ftell(stream)) > 0 &&
        fseek(stream, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t)size);
        if (bytes != NULL && fread(bytes, 1, (size_t)size, stream) != (size_t)size) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(stream);
    if (bytes == NULL) {
        fprintf(stderr, "%s: cannot be read\n", file);
        exit(1);
    }
    return bytes;
}

#endif
