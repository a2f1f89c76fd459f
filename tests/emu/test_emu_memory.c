/* The rules on memory (1 to 65, 85 and 86, without those on multicast), on the driver that
 * SYMWIN_DRIVER names; SYMWIN_CONFORMANCE_CSV=path writes a table of them. The cases are in
 * conformance_*.c. Cases that need their own process are here: the process is this program with an
 * argument. */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"

/* ---- children -------------------------------------------------------------------------------- */

/* The result of cuDeviceGetCount in a process that has not called cuInit; `driver` is cuda or
 * emu. */
static int child_before_init(const char *driver)
{
    CUresult (*get_count)(int *) = sw_emu_driver.cuDeviceGetCount;
    int count = 0;

    if (strcmp(driver, "cuda") == 0) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        void *symbol = library != NULL ? dlsym(library, "cuDeviceGetCount") : NULL;

        if (symbol == NULL)
            return 255;
        memcpy(&get_count, &symbol, sizeof get_count); /* ISO C has no cast for it */
    }
    return (int)get_count(&count);
}

/* All calls that cannot work before cuInit say so: every entry of the emulated driver's table that
 * takes no existing object. */
static int child_all_before_init(void)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, 0, 0);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr va = 0;
    CUcontext ctx = NULL;
    void *host = NULL;
    size_t bytes = 0;
    CUdevice device = 0;
    const CUresult got[] = {
        sw_emu_driver.cuDeviceGet(&device, 0),
        sw_emu_driver.cuDeviceTotalMem(&bytes, 0),
        sw_emu_driver.cuDevicePrimaryCtxRetain(&ctx, 0),
        sw_emu_driver.cuMemAddressReserve(&va, (size_t)2 << 20, 0, 0, 0),
        sw_emu_driver.cuMemAddressFree(0, 0),
        sw_emu_driver.cuMemCreate(&handle, (size_t)2 << 20, &prop, 0),
        sw_emu_driver.cuMemRelease(1),
        sw_emu_driver.cuMemUnmap(0, 0),
        sw_emu_driver.cuMemAlloc(&va, 1),
        sw_emu_driver.cuMemHostAlloc(&host, 1, 0),
        sw_emu_driver.cuMemGetInfo(&bytes, &bytes),
        sw_emu_driver.cuPointerGetAttribute(&va, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 4096),
        sw_emu_driver.cuMulticastUnbind(1, 0, 0, 0),
    };
    int wrong = 0;

    for (size_t i = 0; i < sizeof got / sizeof got[0]; i++)
        wrong += got[i] != CUDA_ERROR_NOT_INITIALIZED;
    return wrong;
}

static void call_at_end(void)
{
    int count = 0;

    _exit((int)sw_drv.cuDeviceGetCount(&count));
}

/* Exit handlers run in reverse order: cuInit's own runs before this one. */
static int child_at_end(void)
{
    if (atexit(call_at_end) != 0)
        return 255;
    conf_start();
    return 0;
}

/* Undefined by the documentation; the emulated driver prints the mistake and aborts. */
static int child_misuse(const char *what)
{
    struct conf_block block;

    conf_child_no_core();
    conf_start();
    conf_block_make(&block, conf.device, conf.granule, 0);
    conf_block_drop(&block);
    if (strcmp(what, "late") == 0)
        conf_create(conf.device, conf.granule, 0);
    sw_drv.cuMemRelease(strcmp(what, "stranger") == 0 ? 0x123456789abcull : block.handle);
    return 0;
}

static int child(const char *mode, const char *arg)
{
    if (strcmp(mode, "before-init") == 0)
        return child_before_init(arg);
    if (strcmp(mode, "all-before-init") == 0)
        return child_all_before_init();
    if (strcmp(mode, "at-end") == 0)
        return child_at_end();
    return child_misuse(arg);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void rule_initialized(void)
{
    struct conf_child process;
    int count = 0;

    conf_accepted(1, "a call after cuInit", sw_drv.cuDeviceGetCount(&count));
    conf_refused(
        1, "a call before cuInit",
        (CUresult)conf_child_run(&process, "before-init", conf.emulated ? "emu" : "cuda", NULL),
        WANT(NI));
    if (!conf.emulated) /* we cannot run after libcuda's own exit handlers */
        return;
    conf_value(1, REFUSED, "calls of every kind before cuInit",
               conf_child_run(&process, "all-before-init", NULL, NULL), 0);
    conf_refused(1, "a call when the process is ending",
                 (CUresult)conf_child_run(&process, "at-end", NULL, NULL),
                 WANT(CUDA_ERROR_DEINITIALIZED));
}

static void abort_case(const char *text, const char *what)
{
    struct conf_child process;
    char said[160];

    conf_value(24, REFUSED, text, conf_child_run(&process, "misuse", what, NULL), -SIGABRT);
    snprintf(said, sizeof said, "%s is explained on stderr", text);
    conf_value(24, REFUSED, said, process.text[0] != '\0', 1);
}

static void rule_misuse(void)
{
    abort_case("a handle released twice aborts", "twice");
    abort_case("a handle released twice, with another one made between, aborts", "late");
    abort_case("release of what never was a handle aborts", "stranger");
}

/* A child of fork that did not exec has no driver. */
static void rule_forked(void)
{
    const CUmemAllocationProp prop = conf_prop(CU_MEM_LOCATION_TYPE_DEVICE, conf.device, 0);
    struct conf_block block;
    CUmemGenericAllocationHandle handle = 0;
    int status = 0;
    pid_t pid;

    conf_block_make(&block, conf.device, conf.granule, 0);
    conf_must(conf_poke(block.va, 41), "cuMemcpyHtoD");
    pid = fork();
    if (pid == 0) {
        int wrong = sw_drv.cuMemCreate(&handle, conf.granule, &prop, 0) != NI;

        wrong += sw_drv.cuMemUnmap(block.va, block.bytes) != NI;
        wrong += sw_drv.cuMemRelease(block.handle) != NI;
        wrong += sw_drv.cuInit(0) != NI;
        _exit(wrong);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        conf_bail("fork");
    conf_value(1, REFUSED, "every call in a forked child", status, 0);
    conf_value(1, ACCEPTED, "the parent loses nothing by it", conf_word(block.va), 41);
    conf_block_drop(&block);
}

static int is_mine(int rule)
{
    switch (rule) {
    case 29: /* in test_emu_multicast.c */
    case 35:
    case 36:
    case 47:
    case 54:
    case 62:
        return 0;
    default:
        return rule <= 65 || rule >= 85;
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child(argv[1], argc > 2 ? argv[2] : "");
    conf_start();
    conf_open_csv();
    conf_group("initialization", rule_initialized);
    conf_rules_create();
    conf_rules_map();
    conf_rules_share();
    if (conf.emulated) {
        conf_group("misuse", rule_misuse);
        conf_group("fork", rule_forked);
    }
    return conf_done(is_mine);
}
