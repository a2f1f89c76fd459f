/* The CUDA driver for the stand-in, loaded at the first use. */
#include "driver_fill.h"
#include "inside.h"

static struct driver driver;
static int complete;

static void load(void)
{
    static const struct driver_entry entries[] = {
#define DRIVER_ENTRY(name, version, params) {#name, version, offsetof(struct driver, name)},
        DRIVER_ENTRIES(DRIVER_ENTRY)
#undef DRIVER_ENTRY
    };

    complete = driver_fill(entries, sizeof entries / sizeof entries[0], &driver) == NULL &&
               driver.cuInit(0) == CUDA_SUCCESS;
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
