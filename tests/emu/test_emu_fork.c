/* A process forks while its emulated devices are busy. The children have no driver and none of the
 * parent's threads; they must end by exit() as if there had never been a driver. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"
#include "emu/emu_device.h"

/* Much longer than needed. A child that waits for threads that it does not have takes 200 ms, or
 * for ever. */
enum { FORKS = 50, LIMIT_MS = 5000, STREAMS = 3 };

static atomic_int enough;

/* ---- work ------------------------------------------------------------------------------------ */

/* Polls until the host says that it is enough. */
static void spin(const void *params)
{
    (void)params;
    while (!atomic_load(&enough))
        emu_dev_pause();
}

static void nothing(const void *params)
{
    (void)params;
}

static const struct sw_emu_kernel kernels[] = {{"spin", spin, sizeof(int), 0},
                                               {"nothing", nothing, sizeof(int), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 2, kernels};

static CUkernel kernel_of(CUlibrary library, const char *name)
{
    CUkernel kernel = NULL;

    conf_must(sw_drv.cuLibraryGetKernel(&kernel, library, name), "cuLibraryGetKernel");
    return kernel;
}

static void launch(CUkernel kernel, CUstream stream)
{
    int unused = 0;
    void *params[] = {&unused};

    conf_must(sw_drv.cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL),
              "cuLaunchKernel");
}

/* Keeps the pool's threads starting and ending, on one stream after the other. */
static void *launch_on(void *arg)
{
    const CUlibrary library = arg;
    const CUkernel kernel = kernel_of(library, "nothing");
    CUstream streams[STREAMS];
    CUcontext ctx;

    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, conf.device), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
    for (int i = 0; i < STREAMS; i++)
        conf_must(sw_drv.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    while (!atomic_load(&enough)) {
        for (int i = 0; i < STREAMS; i++)
            launch(kernel, streams[i]);
        for (int i = 0; i < STREAMS; i++)
            conf_must(sw_drv.cuStreamSynchronize(streams[i]), "cuStreamSynchronize");
    }
    for (int i = 0; i < STREAMS; i++)
        conf_must(sw_drv.cuStreamDestroy(streams[i]), "cuStreamDestroy");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
    return NULL;
}

/* ---- forks ----------------------------------------------------------------------------------- */

static int is_child;

/* LeakSanitizer and ThreadSanitizer call these names. In a child, memory that only the parent's
 * threads point to is no leak; without the option, ThreadSanitizer sleeps a second in every
 * exit. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

int __lsan_is_turned_off(void)
{
    return is_child;
}

const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

static int ms_left(const struct timespec *start)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return LIMIT_MS -
           (int)((now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000);
}

/* The child's wait status; -1: it was killed when the time was over. */
static int fork_and_exit(const struct timespec *start)
{
    const struct timespec nap = {0, 1000000};
    int status = 0;
    pid_t pid, got;

    fflush(stdout);
    pid = fork();
    if (pid < 0)
        conf_bail("fork");
    if (pid == 0) {
        is_child = 1;
        exit(0);
    }
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && ms_left(start) > 0)
        nanosleep(&nap, NULL);
    if (got == pid)
        return status;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static void busy(void)
{
    struct timespec start;
    CUlibrary library = NULL;
    CUstream stream = NULL;
    pthread_t launcher;
    int failed = 0, late = 0;

    conf_must(sw_drv.cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0),
              "cuLibraryLoadData");
    conf_must(sw_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    launch(kernel_of(library, "spin"), stream);
    if (pthread_create(&launcher, NULL, launch_on, library) != 0)
        conf_bail("pthread_create");
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < FORKS; i++) {
        const int status = fork_and_exit(&start);

        late += status < 0;
        failed += status > 0;
    }
    TAP_EQ("no child hangs in exit()", late, 0);
    TAP_EQ("and all end well", failed, 0);
    atomic_store(&enough, 1);
    pthread_join(launcher, NULL);
    TAP_EQ("the parent's work goes on", sw_drv.cuStreamSynchronize(stream), OK);
    conf_must(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
    conf_must(sw_drv.cuLibraryUnload(library), "cuLibraryUnload");
}

int main(void)
{
    conf_emulate("2");
    conf_group("forks of a busy process", busy);
    return conf_done(NULL);
}
