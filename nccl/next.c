/* Finds the functions of the NCCL that the process has. One copy serves: two would not know each
 * other's memory, groups and communicators. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

#include "nccl/next.h"

static _Atomic(void *) library; /* NCCL, if it is not in the program's order of libraries */

/* SYMWIN_NCCL could name this library. */
static int is_own(void *symbol)
{
    static const char here;
    Dl_info theirs, own;

    return dladdr(symbol, &theirs) != 0 && dladdr(&here, &own) != 0 &&
           theirs.dli_fbase == own.dli_fbase;
}

static void *find_in(void *where, const struct sw_next *next)
{
    const sw_dlsym_fn look_up = sw_next_dlsym();
    void *symbol = look_up(where, next->name);

    if (symbol == NULL && next->or_else != NULL)
        symbol = look_up(where, next->or_else);
    return symbol != NULL && !is_own(symbol) ? symbol : NULL;
}

/* The handle that is set first is kept, and never closed: its memory is in use. */
static void *keep(void *handle)
{
    void *before = NULL;

    if (handle == NULL || atomic_compare_exchange_strong(&library, &before, handle))
        return handle;
    dlclose(handle); /* of another thread's search */
    return before;
}

/* Searches first what the program is linked to. An NCCL loaded later, as by Python, is not in that
 * order, so it is searched by its name, or in `file`, where a program has found it. Only then it is
 * loaded; SYMWIN_NCCL gives its path. */
static void *search(const struct sw_next *next, const char *file)
{
    const char *path = getenv("SYMWIN_NCCL");
    void *symbol = find_in(RTLD_NEXT, next);
    void *where;

    if (symbol != NULL)
        return symbol;
    where = atomic_load_explicit(&library, memory_order_acquire);
    if (where == NULL)
        where = keep(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD));
    if (where == NULL && file != NULL)
        where = keep(dlopen(file, RTLD_NOW | RTLD_NOLOAD));
    if (where == NULL && file == NULL)
        where = keep(
            dlopen(path != NULL && path[0] != '\0' ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL));
    return where != NULL ? find_in(where, next) : NULL;
}

/* A result is kept; a failed search is repeated in the next call. */
static void *find(struct sw_next *next, const char *file)
{
    void *symbol = atomic_load_explicit(&next->found, memory_order_acquire);

    if (symbol != NULL)
        return symbol;
    symbol = search(next, file);
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
