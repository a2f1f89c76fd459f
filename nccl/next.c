/* Finds the functions of the NCCL that the process has. One copy serves: two would not know each
 * other's memory, groups and communicators. But code that has a copy of its own, as a library with
 * NCCL linked in statically, goes on to call that one. */
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/next.h"
#include "symwin.h"

_Thread_local int sw_next_passing;

static const char own_name[] = "libnccl.so.2";

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

const char *sw_next_path(void)
{
    const char *path = secure_getenv("SYMWIN_NCCL");

    return path != NULL && path[0] != '\0' ? path : own_name;
}

/* An NCCL loaded later, as by Python, is not in the order of the program's libraries, so it is
 * searched by its name, or in `file`, where a program has found it. Only then it is loaded;
 * SYMWIN_NCCL gives its path. */
static void *find_by_name(const char *name, const char *file)
{
    void *where = atomic_load_explicit(&library, memory_order_acquire);

    if (where == NULL)
        where = keep(dlopen(own_name, RTLD_NOW | RTLD_NOLOAD), name);
    if (where == NULL && file != NULL)
        where = keep(dlopen(file, RTLD_NOW | RTLD_NOLOAD), name);
    if (where == NULL && file == NULL)
        where = keep(dlopen(sw_next_path(), RTLD_NOW | RTLD_LOCAL), name);
    return where != NULL ? find_in(where, name) : NULL;
}

/* In the libraries that `caller` was loaded with, its own first: they are searched after those of
 * the program. Another definition of this library's is none. */
static void *find_of_caller(const char *name, void *caller)
{
    struct link_map *map = NULL;
    void *handle, *symbol;
    Dl_info info, own;

    if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL ||
        map->l_name == NULL || map->l_name[0] == '\0')
        return NULL;
    handle = dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    symbol = find_in(handle, name);
    if (symbol != NULL && dladdr(symbol, &info) != 0 && dladdr(&library, &own) != 0 &&
        info.dli_fbase != own.dli_fbase)
        return symbol; /* the handle stays open: its library is not unloaded */
    dlclose(handle);
    return NULL;
}

static void *search(const char *name, const char *file, void *caller)
{
    void *symbol = find_linked(name);

    if (symbol == NULL && caller != NULL)
        symbol = find_of_caller(name, caller);
    return symbol != NULL ? symbol : find_by_name(name, file);
}

/* The other name is searched only where the first one is nowhere: it may be a profiler's, which
 * calls the first one. */
static void *search_both(const struct sw_next *next, const char *file, void *caller)
{
    void *symbol = search(next->name, file, caller);

    return symbol == NULL && next->or_else != NULL ? search(next->or_else, file, caller) : symbol;
}

/* A result is kept; a failed search is repeated in the next call. */
static void *find(struct sw_next *next, const char *file)
{
    void *symbol = atomic_load_explicit(&next->found, memory_order_acquire);

    if (symbol != NULL)
        return symbol;
    symbol = search_both(next, file, NULL);
    if (symbol != NULL)
        atomic_store_explicit(&next->found, symbol, memory_order_release);
    return symbol;
}

/* What was found for a caller. There are few, the calls that the program has; none is removed. */
struct sw_next_of {
    struct sw_from from[2]; /* the second: while another call is passed on */
    struct sw_next_of *more;
};

static void *library_of(void *address)
{
    Dl_info info;

    return address != NULL && dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

#pragma weak symwin_version /* libsymwin-nccl-full.so is not linked to it */

static void *address_of_symwin(void)
{
    const char *(*const function)(void) = symwin_version;
    void *address;

    memcpy(&address, &function, sizeof address);
    return address;
}

/* Searches, and keeps what it has found; NULL: it is in `room` alone. Not inline: it is rare. */
__attribute__((noinline)) static const struct sw_next_of *
find_for(struct sw_next *next, void *caller, struct sw_next_of *first, struct sw_from *room)
{
    void *symbol = search_both(next, NULL, caller);
    const void *where = library_of(caller);
    struct sw_next_of *of = symbol != NULL ? malloc(sizeof *of) : NULL;

    *room = (struct sw_from){.next = next, .caller = caller, .library = library_of(symbol)};
    memcpy(&room->symbol, &symbol, sizeof room->symbol);
    /* A call that NCCL makes by a jump seems to come from this library, which makes none itself.
     * symwin's own go between hosts. */
    room->inside = room->library != NULL &&
                   (where == room->library || where == library_of(&library) ||
                    where == library_of(address_of_symwin()));
    if (of != NULL) {
        *of = (struct sw_next_of){.from = {*room, *room}, .more = first};
        of->from[1].inside = 1;
        while (!atomic_compare_exchange_weak(&next->callers, &of->more, of))
            ;
    }
    room->inside |= sw_next_passing > 0;
    return of;
}

const struct sw_from *sw_from_of(struct sw_next *next, void *caller, struct sw_from *room)
{
    struct sw_next_of *first = atomic_load_explicit(&next->callers, memory_order_acquire);
    const struct sw_next_of *of = first;

    while (of != NULL && of->from[0].caller != caller)
        of = of->more;
    if (of == NULL)
        of = find_for(next, caller, first, room);
    return of != NULL ? &of->from[sw_next_passing > 0] : room;
}

struct sw_from sw_from_find(struct sw_next *next, void *caller)
{
    struct sw_from room;

    return *sw_from_of(next, caller, &room);
}

void *sw_next_find(struct sw_next *next, void *caller)
{
    struct sw_from from;
    void *symbol;

    if (caller == NULL)
        return find(next, NULL);
    from = sw_from_find(next, caller);
    memcpy(&symbol, &from.symbol, sizeof symbol);
    return symbol;
}

int sw_next_is(struct sw_next *next, void *symbol, const char *file)
{
    return find(next, file) == symbol;
}

int sw_next_is_engine(const struct sw_from *from)
{
    void *const handle = dlopen(sw_next_path(), RTLD_NOW | RTLD_NOLOAD);
    void *const symbol = handle != NULL ? find_in(handle, from->next->name) : NULL;

    if (handle != NULL)
        dlclose(handle);
    return symbol != NULL && memcmp(&symbol, &from->symbol, sizeof symbol) == 0;
}
