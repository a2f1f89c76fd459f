/* Memory of the pool for tests: allocations, what the library says of them, and a device's sums. */
#ifndef SYMWIN_TESTS_POOL_MEMORY_H
#define SYMWIN_TESTS_POOL_MEMORY_H

#include "harness.h"

#define SENTINEL ((void *)(uintptr_t)0x5e5e5e5e)

enum { CHUNK = 64 * MIB };

/* Cases name devices 0 to 3; a machine may have fewer. */
static int devices;

static int on(int device)
{
    return device % devices;
}

static void *alloc_with(int device, size_t bytes, unsigned flags)
{
    void *ptr = NULL;

    host_must(symwin_mem_alloc(on(device), bytes, flags, &ptr), "symwin_mem_alloc");
    return ptr;
}

static symwin_mem_info described(const void *ptr)
{
    symwin_mem_info info = {0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info;
}

static symwin_mem_usage usage_of(int device)
{
    symwin_mem_usage usage = {0};

    (void)sw_reaper_wait(10000); /* what was given back is not reserved any more */
    host_must(symwin_mem_stats(on(device), &usage), "symwin_mem_stats");
    return usage;
}

static void free_all(void **ptrs, int count)
{
    int i;

    for (i = 0; i < count; i++)
        host_must(symwin_mem_free(ptrs[i]), "symwin_mem_free");
}

#endif
