/* The window index: one rank's windows, sorted by address.
 *
 * Readers never wait and never see a half-made change. There are two copies of the table, and
 * readers use the live one. A writer changes the idle copy, makes it live, waits until all readers
 * have left the old one, and then changes that too (the left-right scheme, P. Ramalhete and
 * A. Correia, 2015). Readers are counted on two sides, so that a stream of new readers cannot hold
 * up a writer.
 *
 * Windows may overlap and nest. An entry's `reach` is the largest end of it and all entries before
 * it: a search stops where no entry further left can contain the address.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "src/window/window.h"

struct record {
    struct sw_window_index_entry entry;
    uintptr_t reach;
};

struct table {
    struct record *records; /* sorted by begin */
    size_t count, room;
};

struct sw_window_index {
    atomic_int live;       /* the table that readers search */
    atomic_int side;       /* the counter that readers enter by */
    atomic_int readers[2]; /* inside, per side */
    struct table tables[2];
    pthread_mutex_t writer;
};

struct sw_window_index *sw_window_index_create(void)
{
    struct sw_window_index *index = calloc(1, sizeof *index);

    if (index != NULL && pthread_mutex_init(&index->writer, NULL) != 0) {
        free(index);
        return NULL;
    }
    return index;
}

void sw_window_index_destroy(struct sw_window_index *index)
{
    if (index == NULL)
        return;
    pthread_mutex_destroy(&index->writer);
    free(index->tables[0].records);
    free(index->tables[1].records);
    free(index);
}

static int reserve(struct table *t, size_t entries)
{
    const size_t room = 2 * t->room + 16; /* enough: callers reserve one or two */
    struct record *records;

    if (entries <= t->room - t->count)
        return 1;
    records = realloc(t->records, room * sizeof *records);
    if (records == NULL)
        return 0;
    t->records = records;
    t->room = room;
    return 1;
}

static void refresh_reach(struct table *t, size_t from)
{
    uintptr_t reach = from == 0 ? 0 : t->records[from - 1].reach;
    size_t i;

    for (i = from; i < t->count; i++) {
        if (t->records[i].entry.end > reach)
            reach = t->records[i].entry.end;
        t->records[i].reach = reach;
    }
}

/* How many records begin at or before `address`. */
static size_t records_up_to(const struct table *t, uintptr_t address)
{
    size_t low = 0;
    size_t high = t->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (t->records[middle].entry.begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct table *t, const struct sw_window_index_entry *entry)
{
    const size_t at = records_up_to(t, entry->begin);

    memmove(&t->records[at + 1], &t->records[at], (t->count - at) * sizeof *t->records);
    t->records[at].entry = *entry;
    t->count++;
    refresh_reach(t, at);
}

static void erase(struct table *t, uintptr_t window)
{
    size_t at = 0;

    while (at < t->count && t->records[at].entry.window != window)
        at++;
    if (at == t->count)
        return;
    t->count--;
    memmove(&t->records[at], &t->records[at + 1], (t->count - at) * sizeof *t->records);
    refresh_reach(t, at);
}

static void wait_for_readers(struct sw_window_index *index, int side)
{
    while (atomic_load(&index->readers[side]) > 0)
        sched_yield();
}

/* Makes the idle table live and returns the other, which no reader uses any more. Under the
 * writers' mutex. */
static struct table *swap(struct sw_window_index *index)
{
    const int old = atomic_load(&index->live);
    const int side = atomic_load(&index->side);

    atomic_store(&index->live, !old);
    /* Readers of both sides may still use the old table. Wait until the idle side is empty, send
     * new readers there, then wait until the other side is empty. */
    wait_for_readers(index, !side);
    atomic_store(&index->side, !side);
    wait_for_readers(index, side);
    return &index->tables[old];
}

symwin_status sw_window_index_reserve(struct sw_window_index *index, size_t entries)
{
    struct table *idle, *live;
    int room;

    pthread_mutex_lock(&index->writer);
    idle = &index->tables[!atomic_load(&index->live)];
    live = &index->tables[!(idle - index->tables)];
    room = reserve(idle, entries);
    if (room && live->room - live->count < entries)
        room = reserve(swap(index), entries); /* no reader uses the other one now */
    pthread_mutex_unlock(&index->writer);
    if (!room)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory to list another window");
    return SYMWIN_OK;
}

void sw_window_index_insert(struct sw_window_index *index,
                            const struct sw_window_index_entry *entry)
{
    pthread_mutex_lock(&index->writer);
    insert(&index->tables[!atomic_load(&index->live)], entry);
    insert(swap(index), entry);
    pthread_mutex_unlock(&index->writer);
}

void sw_window_index_remove(struct sw_window_index *index, uintptr_t window)
{
    pthread_mutex_lock(&index->writer);
    erase(&index->tables[!atomic_load(&index->live)], window);
    erase(swap(index), window);
    pthread_mutex_unlock(&index->writer);
}

/* The smallest entry that contains the range, or else the smallest that contains its first
 * byte. */
static enum sw_found search(const struct table *t, uintptr_t begin, size_t bytes,
                            struct sw_window_index_entry *out)
{
    enum sw_found found = SW_FOUND_NONE;
    size_t i = records_up_to(t, begin);

    while (i > 0 && t->records[i - 1].reach > begin) {
        const struct sw_window_index_entry *e = &t->records[--i].entry;
        const size_t size = e->end - e->begin;
        enum sw_found here;

        if (e->end <= begin)
            continue;
        here = bytes <= e->end - begin ? SW_FOUND_ALL : SW_FOUND_PART;
        if (here > found || (here == found && size < out->end - out->begin)) {
            found = here;
            *out = *e;
        }
    }
    return found;
}

enum sw_found sw_window_index_find(struct sw_window_index *index, uintptr_t begin, size_t bytes,
                                   struct sw_window_index_entry *out)
{
    const int side = atomic_load(&index->side);
    enum sw_found found;

    atomic_fetch_add(&index->readers[side], 1);
    found = search(&index->tables[atomic_load(&index->live)], begin, bytes, out);
    atomic_fetch_sub(&index->readers[side], 1);
    return found;
}
