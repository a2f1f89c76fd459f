/* Loads NCCL and the CUDA driver at run time. */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symwin.h" /* for symwin_mem_query(), if symwin is in the process */

struct library lib;

typedef int (*get_fn)(const char *symbol, void **fn, int version, uint64_t flags, int *found);

static int load_cuda(char *why, size_t bytes)
{
    static const struct {
        const char *name;
        int version;
        size_t offset;
    } entries[] = {
#define CUDA_ENTRY(name, version, params) {#name, version, offsetof(struct library, name)},
        CUDA_LIST(CUDA_ENTRY)
#undef CUDA_ENTRY
    };
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    void *symbol = cuda != NULL ? dlsym(cuda, "cuGetProcAddress_v2") : NULL;
    get_fn get;

    if (symbol == NULL) {
        snprintf(why, bytes, "there is no driver of CUDA 12 (libcuda.so.1): run it on a GPU");
        return 0;
    }
    memcpy(&get, &symbol, sizeof get);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *fn = NULL;
        int found = 0;

        if (get(entries[i].name, &fn, entries[i].version, 0, &found) != 0 || fn == NULL) {
            snprintf(why, bytes, "the CUDA driver has no %s: a driver of CUDA 12 is needed",
                     entries[i].name);
            return 0;
        }
        memcpy((char *)&lib + entries[i].offset, &fn, sizeof fn);
    }
    if (lib.cuInit(0) != 0 || lib.cuDeviceGetCount(&lib.devices) != 0 || lib.devices == 0) {
        snprintf(why, bytes, "the CUDA driver finds no GPU: run it where nvidia-smi lists one");
        return 0;
    }
    return 1;
}

/* Looks up every name as the dynamic linker would for a program linked to NCCL: the ncclMemAlloc()
 * of a preloaded library comes before NCCL's. */
static int load_nccl(char *why, size_t bytes)
{
    static const struct {
        const char *name;
        size_t offset;
    } entries[] = {
#define NCCL_ENTRY(name, params) {#name, offsetof(struct library, name)},
        NCCL_LIST(NCCL_ENTRY)
#undef NCCL_ENTRY
            {"ncclGetErrorString", offsetof(struct library, ncclGetErrorString)},
    };
    const char *path = getenv("SYMWIN_NCCL");

    if (dlopen(path != NULL && path[0] != '\0' ? path : "libnccl.so.2", RTLD_NOW | RTLD_GLOBAL) ==
        NULL) {
        snprintf(why, bytes, "NCCL cannot be loaded (%s): set SYMWIN_NCCL to its path", dlerror());
        return 0;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *fn = dlsym(RTLD_DEFAULT, entries[i].name);

        if (fn == NULL) {
            snprintf(why, bytes, "this NCCL has no %s: 2.27 or later is needed", entries[i].name);
            return 0;
        }
        memcpy((char *)&lib + entries[i].offset, &fn, sizeof fn);
    }
    if (lib.ncclGetVersion(&lib.version) != ncclSuccess) {
        snprintf(why, bytes, "NCCL does not tell its version");
        return 0;
    }
    return 1;
}

/* A faulty multicast program can put a host's GPUs out of service, so NVLS is off by default. */
int library_load(char *why, size_t bytes)
{
    if (setenv("NCCL_NVLS_ENABLE", "0", 0) != 0) {
        snprintf(why, bytes, "NCCL_NVLS_ENABLE cannot be set");
        return 0;
    }
    return load_cuda(why, bytes) && load_nccl(why, bytes);
}

const char *library_owner(const void *ptr)
{
    void *symbol = dlsym(RTLD_DEFAULT, "symwin_mem_query");
    symwin_status (*query)(const void *, symwin_mem_info *);
    symwin_mem_info info;

    memcpy(&query, &symbol, sizeof query);
    return symbol != NULL && query(ptr, &info) == SYMWIN_OK && info.owned == 1 ? "symwin" : "NCCL";
}
