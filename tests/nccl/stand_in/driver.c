/* The CUDA driver for the stand-in: libcuda.so.1, loaded at the first use. */
#include <dlfcn.h>
#include <string.h>

#include "inside.h"

static struct driver driver;
static int complete;

static void load(void)
{
    static const struct {
        const char *name;
        int version;
        size_t offset;
    } entries[] = {
#define DRIVER_ENTRY(name, version, params) {#name, version, offsetof(struct driver, name)},
        DRIVER_ENTRIES(DRIVER_ENTRY)
#undef DRIVER_ENTRY
    };
    CUresult (*get)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult found;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    size_t i;

    if (symbol == NULL)
        return;
    memcpy(&get, &symbol, sizeof get);
    for (i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *fn = NULL;

        if (get(entries[i].name, &fn, entries[i].version, 0, &found) != CUDA_SUCCESS || fn == NULL)
            return;
        memcpy((char *)&driver + entries[i].offset, &fn, sizeof fn);
    }
    complete = driver.cuInit(0) == CUDA_SUCCESS;
}

const struct driver *driver_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    return complete ? &driver : NULL;
}

ncclResult_t driver_check(CUresult result, const char *what)
{
    return result == CUDA_SUCCESS
               ? ncclSuccess
               : refuse(ncclUnhandledCudaError, "Cuda failure %d : %s", (int)result, what);
}
