/* The window index: which address of this rank belongs to which window. */
#ifndef SYMWIN_WINDOW_INDEX_H
#define SYMWIN_WINDOW_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

struct sw_window_index_entry {
    uintptr_t begin, end; /* this rank's addresses */
    uintptr_t window;     /* value of the public handle; of a connection: its address */
    size_t offset;        /* of `begin` in the flat range */
    uint64_t memory;      /* handle of the physical allocation; 0: unknown, or several */
    size_t within;        /* of `begin` in that allocation */
    unsigned transports;
};

struct sw_window_index;

struct sw_window_index *sw_window_index_create(void); /* NULL: no memory */
void sw_window_index_destroy(struct sw_window_index *index);

/* Writers wait for one another and for readers to leave; readers never wait. */
symwin_status sw_window_index_reserve(struct sw_window_index *index,
                                      size_t entries); /* room for that many more */
void sw_window_index_insert(struct sw_window_index *index,
                            const struct sw_window_index_entry *entry);
void sw_window_index_remove(struct sw_window_index *index, uintptr_t window);

enum sw_found { SW_FOUND_NONE, SW_FOUND_PART, SW_FOUND_ALL };

/* Finds the smallest window that contains [begin, begin + bytes). SW_FOUND_PART: none does, but
 * *out is a window that contains `begin`. Takes no lock; any thread. */
enum sw_found sw_window_index_find(struct sw_window_index *index, uintptr_t begin, size_t bytes,
                                   struct sw_window_index_entry *out);

#endif
