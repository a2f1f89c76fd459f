/* Which address belongs to which window. */
#ifndef SYMWIN_REGISTRY_H
#define SYMWIN_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

struct sw_registry_entry {
    uintptr_t begin, end; /* addresses of this rank */
    uintptr_t window;     /* the public handle's value */
    size_t offset;        /* of `begin` in the flat range */
    uint64_t memory; /* the physical allocation's buffer id; 0: not known, or there are several */
    size_t within;   /* of `begin` in that */
    unsigned transports;
};

struct sw_registry;

struct sw_registry *sw_registry_create(void); /* NULL: no memory */
void sw_registry_destroy(struct sw_registry *registry);

/* One writer at a time; readers are never blocked. */
symwin_status sw_registry_reserve(struct sw_registry *registry,
                                  size_t entries); /* room for so many more */
void sw_registry_insert(struct sw_registry *registry, const struct sw_registry_entry *entry);
void sw_registry_remove(struct sw_registry *registry, uintptr_t window);

enum sw_found { SW_FOUND_NONE, SW_FOUND_PART, SW_FOUND_ALL };

/* The smallest window that contains [begin, begin + bytes). SW_FOUND_PART: none does, but some
 * window contains `begin`; *out is then that one. Lock-free, any thread. */
enum sw_found sw_registry_find(struct sw_registry *registry, uintptr_t begin, size_t bytes,
                               struct sw_registry_entry *out);

#endif
