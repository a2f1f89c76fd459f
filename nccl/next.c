/* Finds the functions of the NCCL that the process has. One copy serves: two would not know each
 * other's memory, groups and communicators. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

#include "nccl/next.h"

static _Atomic(void *) library; /* NCCL, if it is not in the program's order of libraries */

static void *find_in(void *where, const char *name)
{
    return sw_next_dlsym()(where, name);
}

/* What the program is linked to, or has loaded for all. It is not unloaded while it serves. */
static void *find_linked(const char *name)
{
    void *symbol = find_in(RTLD_NEXT, name);
    Dl_info info;

    if (symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return symbol;
}

/* The library, if it has the function and is none of symwin's, to which a link with NCCL's name may
 * lead. The one that is set first is kept, and never closed: its memory is in use. */
static void *keep(void *handle, const char *name)
{
    void *before = NULL;

    if (handle == NULL)
        return NULL;
    if (find_in(handle, name) == NULL || sw_next_dlsym()(handle, "symwin_nccl") != NULL) {
        dlclose(handle);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&library, &before, handle))
        return handle;
    dlclose(handle); /* of another thread's search */
    return before;
}

/* Searches first what the program is linked to. An NCCL loaded later, as by Python, is not in that
 * order, so it is searched by its name, or in `file`, where a program has found it. Only then it is
 * loaded; SYMWIN_NCCL gives its path. */
static void *search(const char *name, const char *file)
{
    const char *path = secure_getenv("SYMWIN_NCCL");
    void *symbol = find_linked(name);
    void *where;

    if (symbol != NULL)
        return symbol;
    where = atomic_load_explicit(&library, memory_order_acquire);
    if (where == NULL)
        where = keep(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), name);
    if (where == NULL && file != NULL)
        where = keep(dlopen(file, RTLD_NOW | RTLD_NOLOAD), name);
    if (where == NULL && file == NULL)
        where = keep(
            dlopen(path != NULL && path[0] != '\0' ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL),
            name);
    return where != NULL ? find_in(where, name) : NULL;
}

/* A result is kept; a failed search is repeated in the next call. The other name is searched only
 * where the first one is nowhere: it may be a profiler's, which calls the first one. */
static void *find(struct sw_next *next, const char *file)
{
    void *symbol = atomic_load_explicit(&next->found, memory_order_acquire);

    if (symbol != NULL)
        return symbol;
    symbol = search(next->name, file);
    if (symbol == NULL && next->or_else != NULL)
        symbol = search(next->or_else, file);
    if (symbol != NULL)
        atomic_store_explicit(&next->found, symbol, memory_order_release);
    return symbol;
}

void *sw_next_find(struct sw_next *next)
{
    return find(next, NULL);
}

int sw_next_is(struct sw_next *next, void *symbol, const char *file)
{
    return find(next, file) == symbol;
}
