/* From public handles to objects: an array of slots, with a list of the free ones. */
#include "src/base/base.h"

#include <stdatomic.h>
#include <stdlib.h>

#define SLOT_MASK ((uintptr_t)SW_HANDLES_MOST - 1)

/* The number in the latest handle, of all tables. */
static _Atomic uintptr_t last;

int sw_handle_table_reserve(struct sw_handle_table *t)
{
    const size_t room = t->room == 0 ? 16 : 2 * t->room;
    struct sw_handle_entry *entries;
    size_t slot;

    if (t->first_free != 0)
        return 1;
    if (room > SW_HANDLES_MOST)
        return 0;
    entries = realloc(t->entries, room * sizeof *entries);
    if (entries == NULL)
        return 0;
    for (slot = room; slot > t->room; slot--) { /* so the lowest slot is used first */
        entries[slot - 1] = (struct sw_handle_entry){NULL, t->first_free};
        t->first_free = slot;
    }
    t->entries = entries;
    t->room = room;
    return 1;
}

uintptr_t sw_handle_table_add(struct sw_handle_table *t, void *thing)
{
    const size_t slot = t->first_free - 1;
    struct sw_handle_entry *entry = &t->entries[slot];

    t->first_free = entry->handle;
    t->count++;
    /* Numbers start at 1, so no handle is 0. */
    *entry = (struct sw_handle_entry){thing,
                                      (atomic_fetch_add(&last, 1) + 1) * SW_HANDLES_MOST | slot};
    return entry->handle;
}

void *sw_handle_table_find(const struct sw_handle_table *t, uintptr_t handle)
{
    const size_t slot = handle & SLOT_MASK;

    return slot < t->room && t->entries[slot].handle == handle ? t->entries[slot].thing : NULL;
}

void sw_handle_table_remove(struct sw_handle_table *t, uintptr_t handle)
{
    const size_t slot = handle & SLOT_MASK;

    if (sw_handle_table_find(t, handle) == NULL)
        return;
    t->entries[slot] = (struct sw_handle_entry){NULL, t->first_free};
    t->first_free = slot + 1;
    t->count--;
}

void *sw_handle_table_next(const struct sw_handle_table *t, size_t *at)
{
    while (*at < t->room) {
        void *thing = t->entries[(*at)++].thing;

        if (thing != NULL)
            return thing;
    }
    return NULL;
}

void sw_handle_table_release(struct sw_handle_table *t)
{
    free(t->entries);
    *t = (struct sw_handle_table){0};
}
