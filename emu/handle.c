/* Which pointers are handles, and of what kind: a hash set. So a destroyed or invalid handle is
 * recognized without dereferencing it. */
#include <stdlib.h>

#include "exec.h"

#define BUCKET_BITS 12

struct known {
    struct known *next; /* in its bucket */
    const void *handle;
    enum emu_handle kind;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct known *buckets[1 << BUCKET_BITS];

/* The link to the handle; if it is unknown, to NULL at the end of its bucket. Under the lock. */
static struct known **find(const void *handle)
{
    const uint64_t hash = (uint64_t)((uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15u;
    struct known **link = &buckets[hash >> (64 - BUCKET_BITS)];

    while (*link != NULL && (*link)->handle != handle)
        link = &(*link)->next;
    return link;
}

static void count(enum emu_handle kind, long delta)
{
    if ((int)kind < EMU_LIVE_KINDS)
        emu_live_add((enum emu_kind)kind, delta);
}

int emu_handle_add(enum emu_handle kind, const void *handle)
{
    struct known *known = malloc(sizeof *known);

    if (known == NULL)
        return -1;
    *known = (struct known){NULL, handle, kind};
    pthread_mutex_lock(&mutex);
    *find(handle) = known;
    pthread_mutex_unlock(&mutex);
    count(kind, 1);
    return 0;
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
    struct known **link, *known;
    int found;

    pthread_mutex_lock(&mutex);
    link = find(handle);
    known = *link;
    found = known != NULL && known->kind == kind;
    if (found && drop)
        *link = known->next;
    pthread_mutex_unlock(&mutex);
    if (!found || !drop)
        return found;
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
