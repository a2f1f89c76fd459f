/* A program that uses NCCL's allocator and knows nothing of symwin. It follows its arguments and
 * prints the results. It uses CUDA's driver if there is one.
 *
 *     alloc N, palloc N   allocates N bytes by ncclMemAlloc or pncclMemAlloc. Allocations are
 *                         numbered from 0
 *     free I, pfree I     frees allocation I; thread I: on another thread
 *     inside I            frees an address inside allocation I
 *     wait 0              until what was freed is unmapped
 *     null                ncclMemAlloc(NULL, 1) and ncclMemFree(NULL)
 *     said                prints what ncclGetLastError() says
 *     load FILE           loads a library with local symbols
 *     device D            makes the primary context of D current, as cudaSetDevice() does
 *     current             prints the device of the current context
 *     where I             prints what CUDA says of allocation I: device, offset, size of the
 *                         mapping, devices with access */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"
#include "src/driver/cuda_abi.h"
#include "tap.h"

enum { MOST = 64 };

static void *memory[MOST];
static int count;

/* ---- CUDA's driver ---- */

static void *entry(const char *symbol, int version)
{
    static CUresult (*get)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult found;
    void *fn = NULL;

    if (get == NULL) {
        void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        void *found_get = cuda != NULL ? dlsym(cuda, "cuGetProcAddress_v2") : NULL;

        memcpy(&get, &found_get, sizeof get);
    }
    if (get == NULL || get(symbol, &fn, version, 0, &found) != CUDA_SUCCESS || fn == NULL) {
        printf("no %s\n", symbol);
        exit(1);
    }
    return fn;
}

#define CALL(symbol, version, params, args)                                                        \
    do {                                                                                           \
        CUresult(*fn) params;                                                                      \
        void *symbol_address = entry(symbol, version);                                             \
        memcpy(&fn, &symbol_address, sizeof fn);                                                   \
        if (fn args != CUDA_SUCCESS)                                                               \
            printf("%s failed\n", symbol);                                                         \
    } while (0)

static void set_device(int device)
{
    CUcontext context = NULL;

    CALL("cuInit", 2000, (unsigned), (0));
    CALL("cuDevicePrimaryCtxRetain", 7000, (CUcontext *, CUdevice), (&context, device));
    CALL("cuCtxSetCurrent", 4000, (CUcontext), (context));
}

static void print_current(void)
{
    CUdevice device = -1;

    CALL("cuCtxGetDevice", 2000, (CUdevice *), (&device));
    printf("current %d\n", device);
}

static void print_where(int i)
{
    const CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)memory[i];
    int device = -1, devices = 0, with_access = 0;
    CUdeviceptr base = 0;
    size_t bytes = 0;

    CALL("cuPointerGetAttribute", 4000, (void *, CUpointer_attribute, CUdeviceptr),
         (&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
    CALL("cuPointerGetAttribute", 4000, (void *, CUpointer_attribute, CUdeviceptr),
         (&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ptr));
    CALL("cuPointerGetAttribute", 4000, (void *, CUpointer_attribute, CUdeviceptr),
         (&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr));
    CALL("cuDeviceGetCount", 2000, (int *), (&devices));
    while (devices-- > 0) {
        const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = devices};
        unsigned long long rights = 0;

        CALL("cuMemGetAccess", 10020, (unsigned long long *, const CUmemLocation *, CUdeviceptr),
             (&rights, &location, ptr));
        with_access += rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    printf("where %d: device %d, byte %llu of %zu, access for %d\n", i, device, ptr - base, bytes,
           with_access);
}

/* ---- NCCL's allocator ---- */

/* Prints the memory's address relative to the first allocation, and its alignment, at most 2
 * MiB. */
static void allocate(const char *how, size_t size)
{
    const uintptr_t most = 2 << 20;
    void *ptr = (void *)1; /* no failure may change it */
    const ncclResult_t result = how[0] == 'p' ? pncclMemAlloc(&ptr, size)
                                              : ncclMemAlloc(&ptr, size);
    const uintptr_t at = (uintptr_t)ptr;

    if (count == MOST)
        exit(1);
    printf("%s %zu: %d", how, size, result);
    if (result == ncclSuccess && ptr != NULL) {
        memory[count++] = ptr;
        printf(" at %lld aligned %llu", (long long)(at - (uintptr_t)memory[0]),
               (unsigned long long)((at | most) & -(at | most)));
    } else if (result != ncclSuccess && ptr != (void *)1) {
        printf(" and a pointer");
    }
    printf("\n");
}

static void *free_on_thread(void *ptr)
{
    printf("thread: %d\n", ncclMemFree(ptr));
    return NULL;
}

static void print_said(void)
{
    const char *(*said)(void *);
    void *symbol = dlsym(RTLD_DEFAULT, "ncclGetLastError");

    memcpy(&said, &symbol, sizeof said);
    printf("said: %s\n", symbol != NULL ? said(NULL) : "nothing");
}

static void act(const char *what, const char *text)
{
    const int i = atoi(text);
    pthread_t thread;

    if (strcmp(what, "alloc") == 0 || strcmp(what, "palloc") == 0)
        allocate(what, strtoull(text, NULL, 0));
    else if (strcmp(what, "free") == 0)
        printf("free %d: %d\n", i, ncclMemFree(memory[i]));
    else if (strcmp(what, "wait") == 0)
        harness_wait_for_reaper();
    else if (strcmp(what, "pfree") == 0)
        printf("pfree %d: %d\n", i, pncclMemFree(memory[i]));
    else if (strcmp(what, "inside") == 0)
        printf("inside %d: %d\n", i, ncclMemFree((char *)memory[i] + 4096));
    else if (strcmp(what, "thread") == 0 &&
             pthread_create(&thread, NULL, free_on_thread, memory[i]) == 0)
        pthread_join(thread, NULL);
    else if (strcmp(what, "load") == 0 && dlopen(text, RTLD_NOW | RTLD_LOCAL) == NULL)
        printf("%s\n", dlerror());
    else if (strcmp(what, "load") == 0)
        return;
    else if (strcmp(what, "device") == 0)
        set_device(i);
    else if (strcmp(what, "where") == 0)
        print_where(i);
    else
        exit(2);
}

int main(int argc, char **argv)
{
    int i = 1;

    while (i < argc)
        if (strcmp(argv[i], "null") == 0) {
            printf("null alloc: %d\n", ncclMemAlloc(NULL, 1));
            printf("null free: %d\n", ncclMemFree(NULL));
            i++;
        } else if (strcmp(argv[i], "said") == 0) {
            print_said();
            i++;
        } else if (strcmp(argv[i], "current") == 0) {
            print_current();
            i++;
        } else if (i + 1 < argc) {
            act(argv[i], argv[i + 1]);
            i += 2;
        } else {
            return 2;
        }
    return 0;
}
