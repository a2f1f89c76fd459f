/* ncclMemAlloc and ncclMemFree for unchanged programs: their memory comes from symwin's pool.
 *
 *   the program -> this library -> symwin_mem_alloc()
 *                               -> or the next ncclMemAlloc, normally NCCL's own
 *
 * A call is passed to the next ncclMemAlloc where NCCL itself would use cudaMalloc (no pointer, no
 * size, cuMem off) and where symwin cannot serve it (no driver, no virtual memory management, no
 * current context). So a program is never worse off than without this library. Nothing is printed,
 * except about an invalid variable. The emulated driver is used only with SYMWIN_DRIVER=emu.
 *
 * The library calls only public functions of libsymwin.so, so a process has one pool. README.md
 * lists what to watch for. Any thread may call.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/next.h"
#include "symwin.h"

typedef ncclResult_t (*alloc_fn)(void **ptr, size_t size);
typedef ncclResult_t (*free_fn)(void *ptr);

/* ---- the next ncclMemAlloc and ncclMemFree --------------------------------------------------- */

static struct sw_next next_alloc = {.name = "ncclMemAlloc"};
static struct sw_next next_free = {.name = "ncclMemFree"};
static struct sw_next next_palloc = {.name = "pncclMemAlloc", .or_else = "ncclMemAlloc"};
static struct sw_next next_pfree = {.name = "pncclMemFree", .or_else = "ncclMemFree"};

/* Where a call is passed on to. */
struct sw_passed {
    struct sw_next *next;
    void *caller;
};

static ncclResult_t pass_alloc(const struct sw_passed *to, void **ptr, size_t size)
{
    void *symbol = sw_next_find(to->next, to->caller);
    alloc_fn call;

    if (symbol == NULL)
        return ptr == NULL ? ncclInvalidArgument : ncclSystemError;
    memcpy(&call, &symbol, sizeof call);
    return call(ptr, size);
}

static ncclResult_t pass_free(const struct sw_passed *to, void *ptr)
{
    void *symbol = sw_next_find(to->next, to->caller);
    free_fn call;

    if (symbol == NULL)
        return ncclInvalidArgument;
    memcpy(&call, &symbol, sizeof call);
    return call(ptr);
}

/* ---- whether symwin serves the call ---------------------------------------------------------- */

/* Functions of the CUDA driver. */
typedef int (*init_fn)(unsigned flags);
typedef int (*number_fn)(int *value);
typedef int (*retain_fn)(unsigned long long *handle, void *address);
typedef int (*release_fn)(unsigned long long handle);

/* Results of cuMemRetainAllocationHandle for addresses without VMM memory: CUDA_ERROR_INVALID_VALUE
 * and CUDA_ERROR_NOT_SUPPORTED. */
enum { NOTHING_THERE = 1, NOTHING_OF_THAT_KIND = 801 };

static struct {
    pthread_once_t once;
    int usable;
    int refused; /* a variable is invalid: neither symwin nor NCCL allocates */
    int emulated;
    unsigned flags;   /* for symwin_mem_alloc() */
    retain_fn retain; /* NULL: no CUDA driver */
    release_fn release;
} setup = {.once = PTHREAD_ONCE_INIT};

static atomic_int served; /* whether symwin has handed out memory here */

/* NCCL_CUMEM_ENABLE as NCCL reads it: -2, the default, is on where the GPU supports it; other
 * negative numbers are off. */
static int cumem_is_off(void)
{
    const char *text = getenv("NCCL_CUMEM_ENABLE");
    long long value;

    if (text == NULL || text[0] == '\0')
        return 0;
    errno = 0;
    value = strtoll(text, NULL, 0);
    return errno == 0 && (value == 0 || (value < 0 && value != -2));
}

/* Whether there is a GPU and a driver that symwin can use. Without this check, SYMWIN_DRIVER=auto
 * would make symwin use the emulated driver, with a message on stderr. */
static int gpu_is_there(void *cuda)
{
    void *init_symbol = dlsym(cuda, "cuInit");
    void *version_symbol = dlsym(cuda, "cuDriverGetVersion");
    void *count_symbol = dlsym(cuda, "cuDeviceGetCount");
    number_fn get_version, get_count;
    int version = 0, count = 0;
    init_fn init;

    if (init_symbol == NULL || version_symbol == NULL || count_symbol == NULL ||
        dlsym(cuda, "cuGetProcAddress_v2") == NULL)
        return 0;
    memcpy(&init, &init_symbol, sizeof init);
    memcpy(&get_version, &version_symbol, sizeof get_version);
    memcpy(&get_count, &count_symbol, sizeof get_count);
    return init(0) == 0 && get_version(&version) == 0 && version >= 12000 &&
           get_count(&count) == 0 && count > 0;
}

/* NCCL does not serve the call instead: if only some ranks had the variable, memory at different
 * offsets would give wrong results. The text goes to stderr because an ncclResult_t has none, and
 * an unchanged program does not ask symwin for it. */
static void refuse(const char *why)
{
    setup.refused = 1;
    fprintf(stderr, "libsymwin-nccl.so: ncclMemAlloc returns ncclInvalidArgument: %s\n", why);
}

/* Checks symwin's own variables, and which driver it selects if it may choose. */
static void ask_symwin(int chooses)
{
    symwin_driver_info info;
    const symwin_status status = symwin_driver_query(&info);

    if (status == SYMWIN_INVALID && !setup.refused)
        refuse(symwin_last_error());
    if (chooses && (status != SYMWIN_OK || strcmp(info.name, "cuda") != 0))
        setup.usable = 0;
}

static void check_own(const char *name, const char *value, int sensible, const char *allowed)
{
    char text[256];

    if (value == NULL || sensible || setup.refused)
        return;
    snprintf(text, sizeof text, "%s is \"%.64s\": set it to %s, or unset it", name, value, allowed);
    refuse(text);
}

static void set_up(void)
{
    const char *driver = getenv("SYMWIN_DRIVER");
    const char *peers = getenv("SYMWIN_NCCL_PEERS");
    const char *path = getenv("SYMWIN_NCCL");
    const int chooses = driver == NULL || strcmp(driver, "auto") == 0;
    void *cuda;

    if (cumem_is_off())
        return;
    setup.flags = SYMWIN_MEM_NCCL;
    if (peers == NULL || strcmp(peers, "0") != 0)
        setup.flags |= SYMWIN_MEM_PEERS;
    check_own("SYMWIN_NCCL_PEERS", peers,
              peers != NULL && (strcmp(peers, "0") == 0 || strcmp(peers, "1") == 0), "0 or 1");
    check_own("SYMWIN_NCCL", path, path != NULL && path[0] != '\0', "the path of libnccl.so.2");
    if (driver != NULL && strcmp(driver, "emu") == 0) {
        setup.emulated = 1;
        setup.usable = 1;
        ask_symwin(0);
        return;
    }
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed, as CUDA expects */
    if (cuda != NULL) {
        void *retain = dlsym(cuda, "cuMemRetainAllocationHandle");
        void *release = dlsym(cuda, "cuMemRelease");

        if (retain != NULL && release != NULL) {
            memcpy(&setup.retain, &retain, sizeof setup.retain);
            memcpy(&setup.release, &release, sizeof setup.release);
        }
    }
    setup.usable = !chooses || (cuda != NULL && gpu_is_there(cuda));
    if (setup.usable)
        ask_symwin(chooses);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int has_current_device(void)
{
    symwin_device_info info;

    return symwin_device_query(SYMWIN_DEVICE_CURRENT, &info) == SYMWIN_OK;
}

static ncclResult_t allocate(const struct sw_passed *to, void **ptr, size_t size)
{
    void *memory = NULL;
    symwin_status status;

    pthread_once(&setup.once, set_up);
    if (setup.refused && ptr != NULL && size != 0)
        return ncclInvalidArgument;
    if (ptr == NULL || size == 0 || !setup.usable)
        return pass_alloc(to, ptr, size);
    status = symwin_mem_alloc(SYMWIN_DEVICE_CURRENT, size, setup.flags, &memory);
    if (status == SYMWIN_INVALID && !has_current_device()) {
        /* NCCL asks the CUDA runtime, which has device 0 also for a thread without a context, so
         * the call is passed on. With emulated memory there is no runtime, and no NCCL that could
         * use the memory. */
        if (!setup.emulated)
            return pass_alloc(to, ptr, size);
        status = symwin_mem_alloc(0, size, setup.flags, &memory);
    }
    switch (status) {
    case SYMWIN_OK:
        atomic_store_explicit(&served, 1, memory_order_relaxed);
        *ptr = memory;
        return ncclSuccess;
    case SYMWIN_UNSUPPORTED:
        return pass_alloc(to, ptr, size);
    case SYMWIN_NO_MEMORY: /* NCCL's result if cuMemCreate fails, for any reason */
        return ncclUnhandledCudaError;
    case SYMWIN_INVALID:
        return ncclInvalidArgument;
    default:
        return ncclSystemError;
    }
}

/* For an address that symwin does not free: ncclSuccess if the call may be passed on, or the
 * result. The address may still be in symwin's memory: inside an allocation, or in a free part of
 * the pool. NCCL would take it for its own and unmap the whole mapping, with other buffers. So if
 * the driver does not say what is there, the memory is not freed. The emulated driver is not asked,
 * since no NCCL can unmap its memory. */
static ncclResult_t objection(void *ptr)
{
    unsigned long long handle = 0;
    symwin_mem_info info;
    symwin_status status;
    int result;

    if (!atomic_load_explicit(&served, memory_order_relaxed))
        return ncclSuccess;
    status = symwin_mem_query(ptr, &info);
    if (status == SYMWIN_OK)
        return info.owned != 0 ? ncclInvalidArgument : ncclSuccess;
    if (status != SYMWIN_INVALID)
        return ncclSystemError;
    /* No allocation is there. If the driver has memory at the address, it is the pool's. */
    if (setup.retain == NULL)
        return ncclSuccess;
    result = setup.retain(&handle, ptr);
    if (result == 0) {
        setup.release(handle);
        return ncclInvalidArgument;
    }
    return result == NOTHING_THERE || result == NOTHING_OF_THAT_KIND ? ncclSuccess
                                                                     : ncclSystemError;
}

static ncclResult_t give_back(const struct sw_passed *to, void *ptr)
{
    ncclResult_t refused;

    if (ptr == NULL)
        return ncclSuccess; /* as cudaFree(), which NCCL calls in that case */
    switch (symwin_mem_free(ptr)) {
    case SYMWIN_OK:
        return ncclSuccess;
    case SYMWIN_INVALID:
        refused = objection(ptr);
        return refused != ncclSuccess ? refused : pass_free(to, ptr);
    case SYMWIN_BUSY: /* a symwin window is on it */
        return ncclInvalidUsage;
    default:
        return ncclSystemError;
    }
}

/* ---- exported functions ---------------------------------------------------------------------- */

SYMWIN_API ncclResult_t ncclMemAlloc(void **ptr, size_t size);
SYMWIN_API ncclResult_t ncclMemFree(void *ptr);
SYMWIN_API ncclResult_t pncclMemAlloc(void **ptr, size_t size);
SYMWIN_API ncclResult_t pncclMemFree(void *ptr);

/* The caller decides which NCCL's function is the next one. */
#define TO(next) (&(struct sw_passed){&(next), __builtin_return_address(0)})

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    return allocate(TO(next_alloc), ptr, size);
}

ncclResult_t ncclMemFree(void *ptr)
{
    return give_back(TO(next_free), ptr);
}

ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
    return allocate(TO(next_palloc), ptr, size);
}

ncclResult_t pncclMemFree(void *ptr)
{
    return give_back(TO(next_pfree), ptr);
}

SYMWIN_API extern const char symwin_nccl[];
const char symwin_nccl[] = "by this name next.c knows this library, and what depends on it";

const struct sw_served sw_served[] = {{&next_alloc, (void (*)(void))ncclMemAlloc},
                                      {&next_free, (void (*)(void))ncclMemFree},
                                      {&next_palloc, (void (*)(void))pncclMemAlloc},
                                      {&next_pfree, (void (*)(void))pncclMemFree},
                                      {NULL, NULL}};
