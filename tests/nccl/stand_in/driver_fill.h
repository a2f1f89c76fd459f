/* Fills a table of functions of the CUDA driver, for the stand-in and for programs that test it: of
 * libcuda.so.1 or, if STAND_IN_DRIVER=symwin, of the symwin that the program exports. */
#ifndef STAND_IN_DRIVER_FILL_H
#define STAND_IN_DRIVER_FILL_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "src/driver/cuda_abi.h"
#include "src/driver/driver_list.h"

struct driver_entry {
    const char *name;
    int version;
    size_t offset; /* in the table */
};

typedef CUresult driver_get_fn(const char *, void **, int, uint64_t,
                               CUdriverProcAddressQueryResult *);

/* symwin has one version of each function, and a name of its own for some. */
static inline CUresult driver_of_symwin(const char *symbol, void **fn, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult *found)
{
    static const struct {
        const char *name, *symbol;
        int version;
    } entries[] = {
#define DRIVER_OF_SYMWIN(name, symbol, version, need, params) {#name, symbol, version},
        SW_DRIVER_LIST(DRIVER_OF_SYMWIN)
#undef DRIVER_OF_SYMWIN
    };
    int (*find)(const char *, void **);
    void *exported = dlsym(RTLD_DEFAULT, "symwin_driver_find");

    (void)flags;
    (void)found;
    memcpy(&find, &exported, sizeof find);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].symbol, symbol) == 0 && entries[i].version == version &&
            find(entries[i].name, fn) == 0)
            return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}

/* NULL: there is no driver. */
static inline driver_get_fn *driver_source(void)
{
    const char *source = getenv("STAND_IN_DRIVER");
    driver_get_fn *get;
    void *library, *symbol;

    if (source != NULL && strcmp(source, "symwin") == 0 &&
        dlsym(RTLD_DEFAULT, "symwin_driver_find") != NULL)
        return driver_of_symwin;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    memcpy(&get, &symbol, sizeof get);
    return get;
}

/* The name of the first function that is not there; NULL: all are. */
static inline const char *driver_fill(const struct driver_entry *entries, size_t count, void *table)
{
    CUdriverProcAddressQueryResult found;
    driver_get_fn *get = driver_source();
    size_t i;

    for (i = 0; i < count; i++) {
        void *fn = NULL;

        if (get == NULL ||
            get(entries[i].name, &fn, entries[i].version, 0, &found) != CUDA_SUCCESS || fn == NULL)
            return entries[i].name;
        memcpy((char *)table + entries[i].offset, &fn, sizeof fn);
    }
    return NULL;
}

#endif
