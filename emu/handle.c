/* Which pointers are handles, and of what kind: a search tree. So a destroyed or invalid handle is
 * recognized without dereferencing it. */
#include <search.h>
#include <stdlib.h>

#include "exec.h"

struct known {
    const void *handle;
    enum emu_handle kind;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *tree; /* of struct known */

static int by_handle(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct known *)a)->handle;
    const uintptr_t y = (uintptr_t)((const struct known *)b)->handle;

    return (x > y) - (x < y);
}

static void count(enum emu_handle kind, long delta)
{
    if ((int)kind < EMU_LIVE_KINDS)
        emu_live_add((enum emu_kind)kind, delta);
}

int emu_handle_add(enum emu_handle kind, const void *handle)
{
    struct known *known = malloc(sizeof *known);
    int added = 0;

    if (known == NULL)
        return -1;
    *known = (struct known){handle, kind};
    pthread_mutex_lock(&mutex);
    added = tsearch(known, &tree, by_handle) != NULL;
    pthread_mutex_unlock(&mutex);
    if (added)
        count(kind, 1);
    else
        free(known);
    return added ? 0 : -1;
}

void *emu_handle_new(enum emu_handle kind, size_t bytes)
{
    void *object = calloc(1, bytes);

    if (object == NULL || emu_handle_add(kind, object) == 0)
        return object;
    free(object);
    return NULL;
}

static int look(enum emu_handle kind, const void *handle, int drop)
{
    struct known *known, key = {.handle = handle}, **found;

    pthread_mutex_lock(&mutex);
    found = tfind(&key, &tree, by_handle);
    known = found != NULL && (*found)->kind == kind ? *found : NULL;
    if (known != NULL && drop)
        (void)tdelete(known, &tree, by_handle);
    pthread_mutex_unlock(&mutex);
    if (known == NULL || !drop)
        return known != NULL;
    free(known);
    count(kind, -1);
    return 1;
}

int emu_handle_drop(enum emu_handle kind, const void *handle)
{
    return look(kind, handle, 1);
}

int emu_handle_is(enum emu_handle kind, const void *handle)
{
    return look(kind, handle, 0);
}

CUresult emu_enter_drop(enum emu_entry entry, enum emu_handle kind, const void *handle,
                        CUresult invalid)
{
    const CUresult result = emu_enter(entry);

    return result == CUDA_SUCCESS && !emu_handle_drop(kind, handle) ? invalid : result;
}
