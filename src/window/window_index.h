/* Which address belongs to which window. */
#ifndef SYMWIN_REGISTRY_H
#define SYMWIN_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

struct sw_window_index_entry {
    uintptr_t begin, end; /* addresses of this rank */
    uintptr_t window;     /* the public handle's value */
    size_t offset;        /* of `begin` in the flat range */
    uint64_t memory; /* the physical allocation's buffer id; 0: not known, or there are several */
    size_t within;   /* of `begin` in that */
    unsigned transports;
};

struct sw_window_index;

struct sw_window_index *sw_window_index_create(void); /* NULL: no memory */
void sw_window_index_destroy(struct sw_window_index *index);

/* One writer at a time; readers are never blocked. */
symwin_status sw_window_index_reserve(struct sw_window_index *index,
                                      size_t entries); /* room for so many more */
void sw_window_index_insert(struct sw_window_index *index,
                            const struct sw_window_index_entry *entry);
void sw_window_index_remove(struct sw_window_index *index, uintptr_t window);

enum sw_found { SW_FOUND_NONE, SW_FOUND_PART, SW_FOUND_ALL };

/* The smallest window that contains [begin, begin + bytes). SW_FOUND_PART: none does, but some
 * window contains `begin`; *out is then that one. Lock-free, any thread. */
enum sw_found sw_window_index_find(struct sw_window_index *index, uintptr_t begin, size_t bytes,
                                   struct sw_window_index_entry *out);

#endif
