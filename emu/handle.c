/* Which pointers are handles, and of what kind: a hash set with open addressing. So a destroyed or
 * invalid handle is recognized without dereferencing it. */
#include <stdlib.h>

#include "exec.h"

struct slot {
    const void *handle; /* NULL: free; GONE: removed, a search goes on */
    enum emu_handle kind;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct slot *slots;
static size_t slot_count, used; /* slot_count is a power of two; used includes GONE ones */
static const char gone;
#define GONE ((const void *)&gone)

static size_t hash(const void *handle)
{
    return (size_t)(((uint64_t)(uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15ull >> 20);
}

static struct slot *find(const void *handle)
{
    if (slot_count == 0 || handle == NULL)
        return NULL;
    for (size_t i = hash(handle);; i++) {
        struct slot *s = &slots[i & (slot_count - 1)];

        if (s->handle == handle)
            return s;
        if (s->handle == NULL)
            return NULL;
    }
}

static void put(const void *handle, enum emu_handle kind)
{
    size_t i = hash(handle);

    while (slots[i & (slot_count - 1)].handle != NULL)
        i++;
    slots[i & (slot_count - 1)] = (struct slot){handle, kind};
    used++;
}

/* Makes room for one more at a load of at most one half; drops GONE slots. */
static int make_room(void)
{
    struct slot *old = slots;
    const size_t old_count = slot_count;
    size_t live = 0, count = 64;

    if (2 * (used + 1) <= slot_count)
        return 0;
    for (size_t i = 0; i < old_count; i++)
        live += old[i].handle != NULL && old[i].handle != GONE;
    while (count < 4 * (live + 1))
        count *= 2;
    slots = calloc(count, sizeof *slots);
    if (slots == NULL) {
        slots = old;
        return -1;
    }
    slot_count = count;
    used = 0;
    for (size_t i = 0; i < old_count; i++)
        if (old[i].handle != NULL && old[i].handle != GONE)
            put(old[i].handle, old[i].kind);
    free(old);
    return 0;
}

int emu_handle_add(enum emu_handle kind, const void *handle)
{
    int status;

    pthread_mutex_lock(&mutex);
    status = make_room();
    if (status == 0)
        put(handle, kind);
    pthread_mutex_unlock(&mutex);
    return status;
}

static int look(enum emu_handle kind, const void *handle, int drop)
{
    struct slot *s;
    int found;

    pthread_mutex_lock(&mutex);
    s = find(handle);
    found = s != NULL && s->kind == kind;
    if (found && drop)
        s->handle = GONE;
    pthread_mutex_unlock(&mutex);
    return found;
}

int emu_handle_drop(enum emu_handle kind, const void *handle)
{
    return look(kind, handle, 1);
}

int emu_handle_is(enum emu_handle kind, const void *handle)
{
    return look(kind, handle, 0);
}
