/* A first run of multicast objects (NVLS) on hardware, for the owner of an idle machine.
 *
 *     build/nvls-rehearsal                     says what it would do, and does nothing
 *     build/nvls-rehearsal --run [devices] [seconds]
 *
 * A faulty multicast program can put the GPUs of a host out of service. Never run it on a machine
 * that others share. It refuses to run if NCCL_NVLS_ENABLE=0, TORCH_SYMM_MEM_DISABLE_MULTICAST=1,
 * NVSHMEM_DISABLE_NVLS=1 or SYMWIN_NVLS=0 is set, if a variable with which no communicator can be
 * created is, and if a device does not support multicast.
 *
 * It takes one step at a time: first the driver's calls, one after the other, which it then undoes;
 * then windows and reductions of a communicator. Each step has `seconds` (30), prints what it did
 * and what the driver said, and the first surprise ends the run. Lines with "answer" are what only
 * hardware knows, and no surprise. Exit status: 0 no surprise, 1 one, 2 it did not begin.
 *
 * The steps run in a child process. If one does not come back the parent says which, and leaves
 * that process alone: it may be in the driver, where no signal ends it.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/driver/driver.h"
#include "src/window/multicast.h"
#include "symwin.h"

enum { MOST = 16, WORDS = 4096 };

static struct {
    int devices, pipe;
    size_t unit, bytes;
    CUmemGenericAllocationHandle object, memory[MOST];
    CUdeviceptr own[MOST], alias[MOST], common;
    int bound[MOST], is_mapped, surprises;
    pthread_barrier_t barrier;
    symwin_unique_id id;
} run;

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* A line of the step: to the terminal, and to the parent that a step begins or ends. */
static void tell(char what)
{
    while (write(run.pipe, &what, 1) < 0 && errno == EINTR)
        ;
}

static const char *name_of(CUresult result)
{
    const char *name = "an unknown CUresult";

    (void)sw_drv.cuGetErrorName(result, &name);
    return name;
}

/* Prints what a call said. Returns whether it is as expected. */
static int said(const char *call, int device, CUresult result, int64_t began)
{
    const int64_t us = now_us() - began;

    if (device >= 0)
        printf("  %s, device %d: %s, %lld us\n", call, device, name_of(result), (long long)us);
    else
        printf("  %s: %s, %lld us\n", call, name_of(result), (long long)us);
    if (result != CUDA_SUCCESS)
        run.surprises++;
    return result == CUDA_SUCCESS;
}

#define SAY(call, device, invocation) (began = now_us(), said(call, device, invocation, began))

/* ---- the driver's calls ---- */

static CUmulticastObjectProp prop_of(size_t bytes)
{
    return (CUmulticastObjectProp){.numDevices = (unsigned)run.devices, .size = bytes};
}

static CUmemAccessDesc access_of(int device)
{
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    return access;
}

static void ask_granularities(void)
{
    CUmulticastObjectProp prop = prop_of(1);
    size_t recommended = 0;
    int64_t began;

    if (!SAY(
            "cuMulticastGetGranularity, minimum", -1,
            sw_drv.cuMulticastGetGranularity(&run.unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM)) ||
        !SAY("cuMulticastGetGranularity, recommended", -1,
             sw_drv.cuMulticastGetGranularity(&recommended, &prop,
                                              CU_MULTICAST_GRANULARITY_RECOMMENDED)))
        return;
    printf("  answer: minimum %zu bytes, recommended %zu\n", run.unit, recommended);
    run.bytes = 4 * run.unit; /* an object larger than what is bound */
}

static void create(void)
{
    const CUmulticastObjectProp prop = prop_of(run.bytes);
    int64_t began;

    if (!SAY("cuMulticastCreate", -1, sw_drv.cuMulticastCreate(&run.object, &prop)))
        run.object = 0;
}

static void add_devices(void)
{
    int64_t began;
    int d;

    for (d = 0; d < run.devices; d++)
        if (!SAY("cuMulticastAddDevice", d, sw_drv.cuMulticastAddDevice(run.object, d)))
            return;
}

static void allocate(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    int64_t began;
    int d;

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (d = 0; d < run.devices; d++) {
        const CUmemAccessDesc access = access_of(d);

        prop.location.id = d;
        if (!SAY("cuMemCreate", d, sw_drv.cuMemCreate(&run.memory[d], run.unit, &prop, 0)) ||
            !SAY("cuMemAddressReserve", d,
                 sw_drv.cuMemAddressReserve(&run.own[d], run.unit, run.unit, 0, 0)) ||
            !SAY("cuMemMap", d, sw_drv.cuMemMap(run.own[d], run.unit, 0, run.memory[d], 0)) ||
            !SAY("cuMemSetAccess", d, sw_drv.cuMemSetAccess(run.own[d], run.unit, &access, 1)))
            return;
    }
}

static void bind_memory(void)
{
    int64_t began;
    int d;

    for (d = 0; d < run.devices; d++) {
        run.bound[d] = SAY(
            "cuMulticastBindMem, at an offset", d,
            sw_drv.cuMulticastBindMem(run.object, run.unit, run.memory[d], 0, run.unit, 0));
        if (!run.bound[d])
            return;
    }
}

static void map_object(void)
{
    const size_t bytes = run.bytes;
    CUmemAccessDesc access[MOST];
    CUresult result;
    int64_t began;
    int d;

    for (d = 0; d < run.devices; d++)
        access[d] = access_of(d);
    if (!SAY("cuMemAddressReserve", -1,
             sw_drv.cuMemAddressReserve(&run.common, bytes, run.unit, 0, 0)))
        return;
    run.is_mapped = SAY("cuMemMap of the object", -1,
                        sw_drv.cuMemMap(run.common, bytes, 0, run.object, 0));
    if (!run.is_mapped || !SAY("cuMemSetAccess of one device", 0,
                               sw_drv.cuMemSetAccess(run.common, bytes, access, 1)))
        return;
    result = sw_drv.cuMemSetAccess(run.common, bytes, access, (size_t)run.devices);
    printf("  answer: access of all devices to one multicast address: %s\n", name_of(result));
}

/* In reverse; what unbinding answers is printed. */
static void undo(void)
{
    int64_t began;
    int d;

    if (run.is_mapped)
        (void)SAY("cuMemUnmap of the object", -1, sw_drv.cuMemUnmap(run.common, run.bytes));
    if (run.common != 0)
        (void)SAY("cuMemAddressFree", -1, sw_drv.cuMemAddressFree(run.common, run.bytes));
    for (d = 0; d < run.devices; d++)
        if (run.bound[d])
            (void)SAY("cuMulticastUnbind", d,
                      sw_drv.cuMulticastUnbind(run.object, d, run.unit, run.unit));
    if (run.object != 0)
        (void)SAY("cuMemRelease of the object", -1, sw_drv.cuMemRelease(run.object));
    for (d = 0; d < run.devices && run.own[d] != 0; d++) {
        (void)SAY("cuMemUnmap", d, sw_drv.cuMemUnmap(run.own[d], run.unit));
        (void)SAY("cuMemAddressFree", d, sw_drv.cuMemAddressFree(run.own[d], run.unit));
        (void)SAY("cuMemRelease", d, sw_drv.cuMemRelease(run.memory[d]));
    }
}

/* ---- a communicator ---- */

struct rank {
    int rank;
    symwin_comm *comm;
    float *memory; /* inputs, and the result behind them */
    symwin_window *window;
    float result[2][WORDS]; /* by one-shot and two-shot */
    char text[512];         /* of the first failure */
};

static struct rank ranks[MOST];

static int works(struct rank *r, symwin_status status)
{
    if (status != SYMWIN_OK && r->text[0] == '\0')
        snprintf(r->text, sizeof r->text, "rank %d: %s", r->rank, symwin_last_error());
    return r->text[0] == '\0';
}

/* What rank `rank` adds: whole numbers, halves of the last place, a NaN. */
static float input(int rank, int i)
{
    if (i == 0)
        return rank == 1 ? NAN : 1;
    if (i == 1) /* 2^24 + 1 lies in the middle of two floats */
        return rank == 0 ? 16777216.0f : rank == 1 ? 1.0f : 0.0f;
    if (i % 2 == 0)
        return (float)(i + rank);
    return (float)(((unsigned)(i * MOST + rank) * 2654435761u) >> 8) / 16777216.0f;
}

static void reduce(struct rank *r, symwin_algo algo, float *result)
{
    const symwin_allreduce_options options = {.size = sizeof options, .algo = algo};
    float *const out = r->memory + WORDS;

    works(r, symwin_allreduce_with(r->comm, r->memory, out, WORDS, SYMWIN_F32, SYMWIN_SUM, &options,
                                   NULL));
    works(r, symwin_stream_synchronize(r->rank, NULL));
    works(r, symwin_memcpy(r->rank, result, out, WORDS * sizeof *result, NULL));
}

static void *rank_main(void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .flags = SYMWIN_COMM_MULTICAST};
    static _Thread_local float in[WORDS];
    struct rank *r = arg;
    void *memory = NULL;
    int i;

    works(r, symwin_comm_create(&run.id, run.devices, r->rank, r->rank, &options, &r->comm));
    if (r->comm == NULL)
        return NULL;
    works(r, symwin_mem_alloc(r->rank, 2 * WORDS * sizeof *in, 0, &memory));
    r->memory = memory;
    works(r, symwin_window_register(r->comm, memory, 2 * WORDS * sizeof *in,
                                    SYMWIN_WINDOW_MULTICAST, &r->window));
    for (i = 0; i < WORDS; i++)
        in[i] = input(r->rank, i);
    if (memory != NULL)
        works(r, symwin_memcpy(r->rank, memory, in, sizeof in, NULL));
    pthread_barrier_wait(&run.barrier);
    if (works(r, SYMWIN_OK)) {
        reduce(r, SYMWIN_ALGO_ONESHOT_MC, r->result[0]);
        reduce(r, SYMWIN_ALGO_TWOSHOT_MC, r->result[1]);
    }
    symwin_comm_destroy(r->comm);
    works(r, symwin_mem_free(memory));
    return NULL;
}

static void check_results(void)
{
    int equal = 1, wrong = 0, i, r;
    double exact;

    for (i = 2; i < WORDS; i += 2) {
        for (exact = 0, r = 0; r < run.devices; r++)
            exact += (double)input(r, i);
        for (r = 0; r < run.devices; r++)
            wrong += ranks[r].result[0][i] != (float)exact || ranks[r].result[1][i] != (float)exact;
    }
    printf("  %d of %d sums of whole numbers are wrong\n", wrong, run.devices * WORDS);
    run.surprises += wrong > 0;
    for (r = 1; r < run.devices; r++)
        equal &= memcmp(ranks[r].result[0], ranks[0].result[0], sizeof ranks[r].result[0]) == 0;
    printf("  answer: by one-shot all ranks have the same bits: %s\n", equal ? "yes" : "no");
    printf("  answer: one-shot and two-shot give the same bits: %s\n",
           memcmp(ranks[0].result[0], ranks[0].result[1], sizeof ranks[0].result[0]) == 0 ? "yes"
                                                                                          : "no");
    printf("  answer: a sum with a NaN is a NaN: %s\n",
           isnan(ranks[0].result[0][0]) ? "yes" : "no");
    printf("  answer: 2^24 + 1 is %.1f (to nearest even: 16777216.0)\n",
           (double)ranks[0].result[0][1]);
}

static void reduce_all(void)
{
    pthread_t threads[MOST];
    int r;

    if (symwin_unique_id_create(&run.id) != SYMWIN_OK) {
        printf("  %s\n", symwin_last_error());
        run.surprises++;
        return;
    }
    pthread_barrier_init(&run.barrier, NULL, (unsigned)run.devices);
    for (r = 0; r < run.devices; r++) {
        ranks[r].rank = r;
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
            abort();
    }
    for (r = 0; r < run.devices; r++)
        pthread_join(threads[r], NULL);
    for (r = 0; r < run.devices; r++)
        if (ranks[r].text[0] != '\0') {
            printf("  %s\n", ranks[r].text);
            run.surprises++;
        }
    if (run.surprises == 0)
        check_results();
}

/* ---- the steps, and who watches them ---- */

static const struct step {
    const char *name;
    void (*go)(void);
    int always; /* after a surprise too */
} steps[] = {
    {"ask for granularities", ask_granularities, 0},
    {"create a multicast object, not to be exported", create, 0},
    {"add each device", add_devices, 0},
    {"allocate a granule on each device", allocate, 0},
    {"bind each granule, at one offset of the object", bind_memory, 0},
    {"map the whole object, of which one part is bound", map_object, 0},
    {"undo all of this", undo, 1},
    {"create a communicator with multicast, and reduce", reduce_all, 0},
};

enum { STEPS = sizeof steps / sizeof steps[0] };

static int is_forbidden(void)
{
    const char *own = getenv("SYMWIN_NVLS"), *name = sw_multicast_forbidden();

    if (name == NULL && own != NULL && strcmp(own, "0") == 0)
        name = "SYMWIN_NVLS";
    if (name == NULL)
        return 0;
    fprintf(stderr,
            "nvls-rehearsal: %s=%s forbids multicast objects here; ask who set it, and run this "
            "only on a machine that nobody else uses\n",
            name, getenv(name));
    return 1;
}

/* Whether a communicator of one rank can be created: it has no multicast object, and reads the same
 * variables. */
static int can_create(void)
{
    const symwin_comm_options options = {.size = sizeof options, .flags = SYMWIN_COMM_NO_MULTICAST};
    symwin_comm *comm = NULL;

    if (symwin_unique_id_create(&run.id) == SYMWIN_OK &&
        symwin_comm_create(&run.id, 1, 0, 0, &options, &comm) == SYMWIN_OK) {
        symwin_comm_destroy(comm);
        return 1;
    }
    printf("%s\n", symwin_last_error());
    return 0;
}

static int all_support(void)
{
    symwin_device_info device;
    int d;

    for (d = 0; d < run.devices; d++) {
        if (symwin_device_query(d, &device) != SYMWIN_OK) {
            printf("%s\n", symwin_last_error());
            return 0;
        }
        if (!device.multicast) {
            printf("device %d does not support multicast objects; name fewer devices\n", d);
            return 0;
        }
    }
    return 1;
}

static int begin(int devices)
{
    symwin_driver_info driver;

    if (symwin_driver_query(&driver) != SYMWIN_OK) {
        printf("%s\n", symwin_last_error());
        return 0;
    }
    run.devices = devices > 0 ? devices : driver.device_count < MOST ? driver.device_count : MOST;
    printf("driver %s, %d of %d devices\n", driver.name, run.devices, driver.device_count);
    if (run.devices < 2 || run.devices > driver.device_count || sw_drv.cuMulticastCreate == NULL) {
        printf("it needs two devices or more, all of them there, and CUDA 12.1\n");
        return 0;
    }
    return all_support() && can_create();
}

static int child(int devices)
{
    int i;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!begin(devices))
        return 2;
    for (i = 0; i < STEPS; i++) {
        if (run.surprises > 0 && !steps[i].always)
            continue;
        printf("%d. %s\n", i + 1, steps[i].name);
        tell((char)('a' + i));
        steps[i].go();
    }
    printf(run.surprises > 0 ? "a surprise: stopped, and undone\n" : "no surprise\n");
    return run.surprises > 0;
}

/* Each step has so many seconds. */
static int watch(pid_t pid, int pipe, int seconds)
{
    struct pollfd p = {.fd = pipe, .events = POLLIN};
    int step = -1, status = 0, ready;
    char what;

    for (;;) {
        ready = poll(&p, 1, seconds * 1000);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0) {
            printf("step %d, \"%s\", has not come back in %d s. Process %d is left as it is. "
                   "Look at the kernel's log, nvidia-smi -q and the Fabric Manager before anything "
                   "else runs here.\n",
                   step + 1, step < 0 ? "begin" : steps[step].name, seconds, (int)pid);
            return 1;
        }
        if (read(pipe, &what, 1) != 1)
            break;
        step = what - 'a';
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
        printf("the process of step %d has died\n", step + 1);
        return 1;
    }
    return WEXITSTATUS(status);
}

static int describe(void)
{
    int i;

    printf("nvls-rehearsal --run [devices] [seconds a step] would\n");
    for (i = 0; i < STEPS; i++)
        printf("%d. %s\n", i + 1, steps[i].name);
    printf("Multicast objects have never run on hardware here. Never on a machine that others "
           "share.\n");
    return 2;
}

static int number(const char *text, int least, int most)
{
    char *end;
    const long value = strtol(text, &end, 10);

    if (*text != '\0' && *end == '\0' && value >= least && value <= most)
        return (int)value;
    fprintf(stderr, "nvls-rehearsal: \"%s\" is no number of %d to %d\n", text, least, most);
    exit(2);
}

int main(int argc, char **argv)
{
    int ends[2], devices, seconds;
    pid_t pid;

    if (argc < 2 || argc > 4 || strcmp(argv[1], "--run") != 0)
        return describe();
    devices = argc > 2 ? number(argv[2], 2, MOST) : 0;
    seconds = argc > 3 ? number(argv[3], 1, 3600) : 30;
    if (is_forbidden())
        return 2;
    if (pipe(ends) != 0 || (pid = fork()) < 0) {
        fprintf(stderr, "nvls-rehearsal: no process: %s\n", strerror(errno));
        return 2;
    }
    if (pid == 0) {
        close(ends[0]);
        run.pipe = ends[1];
        devices = child(devices);
        fflush(stdout);
        _exit(devices);
    }
    close(ends[1]);
    return watch(pid, ends[0], seconds);
}
