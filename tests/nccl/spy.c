/* Preloaded before libsymwin-nccl.so: counts what it calls of symwin, and changes it.
 *
 *   SPY_VERSION=TEXT     the version
 *   SPY_CAPABILITY=N     the devices' compute capability; 0: no device can be used
 *   SPY_FAIL=ids         no unique id can be made
 *   SPY_FAIL=comms       no communicator can be made
 *   SPY_PAUSE=MS         how long the end of a window takes
 *
 * When the process ends it prints a line with the counts. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "symwin.h"
#include "symwin/driver.h"

static atomic_int ids, released, comms, destroyed, windows, ended;
static atomic_size_t slot;
static atomic_int kernel_timeout, spared, flags;

static int fails(const char *what)
{
    const char *text = getenv("SPY_FAIL");

    return text != NULL && strcmp(text, what) == 0;
}

/* The function that is defined next. */
#define NEXT(name)                                                                                 \
    __typeof__(&name) next;                                                                        \
    void *symbol = dlsym(RTLD_NEXT, #name);                                                        \
                                                                                                   \
    memcpy(&next, &symbol, sizeof next)

SYMWIN_API const char *symwin_version(void)
{
    const char *text = getenv("SPY_VERSION");
    NEXT(symwin_version);

    return text != NULL ? text : next();
}

SYMWIN_API symwin_status symwin_device_query(int device, symwin_device_info *info)
{
    const char *text = getenv("SPY_CAPABILITY");
    symwin_status status;
    NEXT(symwin_device_query);

    status = next(device, info);
    if (text != NULL && status == SYMWIN_OK)
        info->capability = atoi(text);
    return text != NULL && atoi(text) == 0 ? SYMWIN_UNSUPPORTED : status;
}

SYMWIN_API symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    NEXT(symwin_unique_id_create);

    atomic_fetch_add(&ids, 1);
    return fails("ids") ? SYMWIN_UNSUPPORTED : next(id);
}

SYMWIN_API symwin_status symwin_unique_id_release(const symwin_unique_id *id)
{
    NEXT(symwin_unique_id_release);

    atomic_fetch_add(&released, 1);
    return next(id);
}

SYMWIN_API symwin_status symwin_comm_create(const symwin_unique_id *id, int nranks, int rank,
                                            int device, const symwin_comm_options *options,
                                            symwin_comm **comm)
{
    symwin_status status = SYMWIN_UNSUPPORTED;
    NEXT(symwin_comm_create);

    if (!fails("comms"))
        status = next(id, nranks, rank, device, options, comm);
    atomic_fetch_add(&comms, status == SYMWIN_OK);
    atomic_store(&slot, options->slot_bytes);
    atomic_store(&kernel_timeout, options->kernel_timeout_ms);
    atomic_store(&spared, options->spare_multiprocessors);
    atomic_store(&flags, (int)options->flags);
    return status;
}

SYMWIN_API void symwin_comm_destroy(symwin_comm *comm)
{
    NEXT(symwin_comm_destroy);

    next(comm);
    atomic_fetch_add(&destroyed, 1);
}

SYMWIN_API symwin_status symwin_window_register(symwin_comm *comm, void *ptr, size_t bytes,
                                                unsigned how, symwin_window **window)
{
    symwin_status status;
    NEXT(symwin_window_register);

    status = next(comm, ptr, bytes, how, window);
    atomic_fetch_add(&windows, status == SYMWIN_OK);
    return status;
}

SYMWIN_API symwin_status symwin_window_deregister(symwin_comm *comm, symwin_window *window)
{
    const char *ms = getenv("SPY_PAUSE");
    NEXT(symwin_window_deregister);

    if (ms != NULL)
        usleep(1000 * (unsigned)atoi(ms));
    atomic_fetch_add(&ended, 1);
    return next(comm, window);
}

__attribute__((destructor)) static void print(void)
{
    fprintf(stderr,
            "spy: ids %d, released %d, communicators %d, destroyed %d, windows %d, ended %d, slot "
            "%zu, timeout %d, spared %d, flags %d\n",
            atomic_load(&ids), atomic_load(&released), atomic_load(&comms), atomic_load(&destroyed),
            atomic_load(&windows), atomic_load(&ended), atomic_load(&slot),
            atomic_load(&kernel_timeout), atomic_load(&spared), atomic_load(&flags));
}
