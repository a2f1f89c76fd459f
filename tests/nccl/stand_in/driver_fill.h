/* Fills a table of functions of libcuda.so.1, for the stand-in and for the program that tests it.
 */
#ifndef STAND_IN_DRIVER_FILL_H
#define STAND_IN_DRIVER_FILL_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "src/driver/cuda_abi.h"

struct driver_entry {
    const char *name;
    int version;
    size_t offset; /* in the table */
};

/* The name of the first function that is not there; NULL: all are. */
static inline const char *driver_fill(const struct driver_entry *entries, size_t count, void *table)
{
    CUresult (*get)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult found;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    size_t i;

    memcpy(&get, &symbol, sizeof get);
    for (i = 0; i < count; i++) {
        void *fn = NULL;

        if (symbol == NULL ||
            get(entries[i].name, &fn, entries[i].version, 0, &found) != CUDA_SUCCESS || fn == NULL)
            return entries[i].name;
        memcpy((char *)table + entries[i].offset, &fn, sizeof fn);
    }
    return NULL;
}

#endif
