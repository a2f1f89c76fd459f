/* From an address to its chunk: a two-level table over 48-bit addresses, read without a lock.
 *
 * Entries begin and end at multiples of SW_MEMORY_SLOT. A leaf covers 16 GiB of addresses and is
 * never freed. Any thread; each range has one owner, which inserts and removes it.
 */
#include <stdlib.h>

#include "src/memory/memory.h"

enum { LEAF_BITS = 13, ROOT_BITS = 48 - SW_MEMORY_SLOT_BITS - LEAF_BITS };

struct leaf {
    _Atomic(void *) things[1 << LEAF_BITS];
};

static _Atomic(struct leaf *) leaves[1 << ROOT_BITS];

void *sw_address_map_find(CUdeviceptr address)
{
    const CUdeviceptr slot = address >> SW_MEMORY_SLOT_BITS;
    struct leaf *leaf;

    if (slot >> LEAF_BITS >= (CUdeviceptr)1 << ROOT_BITS)
        return NULL;
    leaf = atomic_load_explicit(&leaves[slot >> LEAF_BITS], memory_order_acquire);
    if (leaf == NULL)
        return NULL;
    return atomic_load_explicit(&leaf->things[slot & ((1 << LEAF_BITS) - 1)], memory_order_acquire);
}

static int reserve(CUdeviceptr slot)
{
    _Atomic(struct leaf *) *root = &leaves[slot >> LEAF_BITS];
    struct leaf *none = NULL;
    struct leaf *leaf;

    if (atomic_load(root) != NULL)
        return 1;
    leaf = calloc(1, sizeof *leaf);
    if (leaf != NULL && !atomic_compare_exchange_strong(root, &none, leaf))
        free(leaf);
    return leaf != NULL || atomic_load(root) != NULL;
}

static void set(CUdeviceptr slot, CUdeviceptr end, void *thing)
{
    for (; slot < end; slot++) {
        struct leaf *leaf = atomic_load_explicit(&leaves[slot >> LEAF_BITS], memory_order_acquire);

        atomic_store_explicit(&leaf->things[slot & ((1 << LEAF_BITS) - 1)], thing,
                              memory_order_release);
    }
}

symwin_status sw_address_map_insert(const char *call, CUdeviceptr base, size_t bytes, void *thing)
{
    const CUdeviceptr first = base >> SW_MEMORY_SLOT_BITS;
    const CUdeviceptr end = (base + bytes) >> SW_MEMORY_SLOT_BITS;
    CUdeviceptr slot;

    if (end > (CUdeviceptr)1 << (48 - SW_MEMORY_SLOT_BITS))
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: the driver gave an address of more than 48 bits",
                       call);
    for (slot = first; slot < end; slot = (slot | ((1 << LEAF_BITS) - 1)) + 1)
        if (!reserve(slot))
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the allocation", call);
    set(first, end, thing);
    return SYMWIN_OK;
}

void sw_address_map_remove(CUdeviceptr base, size_t bytes)
{
    set(base >> SW_MEMORY_SLOT_BITS, (base + bytes) >> SW_MEMORY_SLOT_BITS, NULL);
}
