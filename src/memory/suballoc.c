/* Good fit with lists by size, as in TLSF (M. Masmano et al., "TLSF: a New Dynamic Memory Allocator
 * for Real-Time Systems", 2004).
 *
 * Each power of two has 32 classes, so the first block of any higher class fits. A bit per list
 * tells which lists have blocks. Blocks of the request's own class may be a little too short: a
 * few of them are tried first, so that a freed block serves the same size again. One thread at a
 * time.
 */
#include "src/memory/suballoc.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK = 16, FINE_BITS = 5, FINE = 1 << FINE_BITS };

void sw_suballoc_init(struct sw_suballoc *suballoc, uint32_t chunk_units)
{
    int i;

    *suballoc = (struct sw_suballoc){.chunk_units = chunk_units, .unused = SW_SUBALLOC_NONE};
    for (i = 0; i < SW_SUBALLOC_CLASSES; i++)
        suballoc->lists[i] = SW_SUBALLOC_NONE;
}

void sw_suballoc_clear(struct sw_suballoc *suballoc)
{
    uint32_t c;

    for (c = 0; c < suballoc->chunk_count; c++)
        free(suballoc->chunks[c].begins);
    free(suballoc->chunks);
    free(suballoc->blocks);
    sw_suballoc_init(suballoc, suballoc->chunk_units);
}

/* Sizes below FINE have a class each. Above, the class is the power of two and the FINE_BITS bits
 * after the leading one. */
static uint32_t class_of(uint32_t units)
{
    uint32_t power;

    if (units < FINE)
        return units;
    power = 31 - (uint32_t)__builtin_clz(units);
    return FINE + (power - FINE_BITS) * FINE + ((units >> (power - FINE_BITS)) & (FINE - 1));
}

_Static_assert(FINE + (17 - FINE_BITS + 1) * FINE == SW_SUBALLOC_CLASSES, "a class for every size");

/* ---- blocks ---- */

/* Makes room for one more block. */
static int reserve(struct sw_suballoc *suballoc)
{
    const uint32_t room = suballoc->block_room == 0 ? 64 : suballoc->block_room * 2;
    struct sw_block *blocks;

    if (suballoc->unused != SW_SUBALLOC_NONE || suballoc->block_count < suballoc->block_room)
        return 1;
    blocks = realloc(suballoc->blocks, room * sizeof *blocks);
    if (blocks == NULL)
        return 0;
    suballoc->blocks = blocks;
    suballoc->block_room = room;
    return 1;
}

static uint32_t block_new(struct sw_suballoc *suballoc, uint32_t chunk, uint32_t begin,
                          uint32_t units)
{
    uint32_t b = suballoc->unused;

    if (b != SW_SUBALLOC_NONE)
        suballoc->unused = suballoc->blocks[b].next;
    else
        b = suballoc->block_count++;
    suballoc->blocks[b] = (struct sw_block){.chunk = chunk,
                                            .begin = begin,
                                            .units = units,
                                            .before = SW_SUBALLOC_NONE,
                                            .after = SW_SUBALLOC_NONE};
    suballoc->chunks[chunk].starts[begin] = b + 1;
    suballoc->chunks[chunk].begins[begin / 64] |= (uint64_t)1 << begin % 64;
    return b;
}

static void block_drop(struct sw_suballoc *suballoc, uint32_t b)
{
    struct sw_block *block = &suballoc->blocks[b];

    suballoc->chunks[block->chunk].starts[block->begin] = 0;
    suballoc->chunks[block->chunk].begins[block->begin / 64] &= ~((uint64_t)1 << block->begin % 64);
    block->next = suballoc->unused;
    suballoc->unused = b;
}

static void list_add(struct sw_suballoc *suballoc, uint32_t b)
{
    const uint32_t class = class_of(suballoc->blocks[b].units);
    const uint32_t head = suballoc->lists[class];

    suballoc->blocks[b].prev = SW_SUBALLOC_NONE;
    suballoc->blocks[b].next = head;
    if (head != SW_SUBALLOC_NONE)
        suballoc->blocks[head].prev = b;
    suballoc->lists[class] = b;
    suballoc->filled[class / 64] |= (uint64_t)1 << class % 64;
}

static void list_remove(struct sw_suballoc *suballoc, uint32_t b)
{
    const struct sw_block *block = &suballoc->blocks[b];
    const uint32_t class = class_of(block->units);

    if (block->next != SW_SUBALLOC_NONE)
        suballoc->blocks[block->next].prev = block->prev;
    if (block->prev != SW_SUBALLOC_NONE)
        suballoc->blocks[block->prev].next = block->next;
    else
        suballoc->lists[class] = block->next;
    if (suballoc->lists[class] == SW_SUBALLOC_NONE)
        suballoc->filled[class / 64] &= ~((uint64_t)1 << class % 64);
}

static int is_whole(const struct sw_suballoc *suballoc, const struct sw_block *block)
{
    return block->units == suballoc->chunk_units;
}

/* ---- chunks ---- */

uint32_t sw_suballoc_add(struct sw_suballoc *suballoc, void *owner)
{
    const size_t units = suballoc->chunk_units, words = (units + 63) / 64;
    uint64_t *begins;
    uint32_t chunk = 0;

    while (chunk < suballoc->chunk_count && suballoc->chunks[chunk].starts != NULL)
        chunk++;
    if (!reserve(suballoc))
        return SW_SUBALLOC_NONE;
    if (chunk == suballoc->chunk_count) {
        struct sw_suballoc_chunk *chunks = realloc(suballoc->chunks, (chunk + 1) * sizeof *chunks);

        if (chunks == NULL)
            return SW_SUBALLOC_NONE;
        suballoc->chunks = chunks;
        suballoc->chunks[suballoc->chunk_count++] = (struct sw_suballoc_chunk){.starts = NULL};
    }
    begins = calloc(1, words * sizeof *begins + units * sizeof(uint32_t));
    if (begins == NULL)
        return SW_SUBALLOC_NONE;
    suballoc->chunks[chunk] = (struct sw_suballoc_chunk){
        .owner = owner, .begins = begins, .starts = (uint32_t *)(void *)(begins + words)};
    list_add(suballoc, block_new(suballoc, chunk, 0, suballoc->chunk_units));
    return chunk;
}

void sw_suballoc_remove(struct sw_suballoc *suballoc, uint32_t chunk)
{
    const uint32_t b = suballoc->chunks[chunk].starts[0] - 1;

    list_remove(suballoc, b);
    block_drop(suballoc, b);
    free(suballoc->chunks[chunk].begins);
    suballoc->chunks[chunk] = (struct sw_suballoc_chunk){.starts = NULL};
}

/* ---- taking and giving ---- */

static uint32_t find_fit(const struct sw_suballoc *suballoc, uint32_t units)
{
    const uint32_t class = class_of(units);
    uint32_t b = suballoc->lists[class];
    uint32_t word = (class + 1) / 64;
    uint64_t bits;
    int look;

    for (look = 0; b != SW_SUBALLOC_NONE && look < LOOK; look++) {
        if (suballoc->blocks[b].units >= units)
            return b;
        b = suballoc->blocks[b].next;
    }
    if (word == SW_SUBALLOC_CLASSES / 64)
        return SW_SUBALLOC_NONE;
    bits = suballoc->filled[word] & ~(uint64_t)0 << (class + 1) % 64;
    while (bits == 0) {
        if (++word == SW_SUBALLOC_CLASSES / 64)
            return SW_SUBALLOC_NONE;
        bits = suballoc->filled[word];
    }
    return suballoc->lists[word * 64 + (uint32_t)__builtin_ctzll(bits)];
}

enum sw_suballoc_result sw_suballoc_take(struct sw_suballoc *suballoc, uint32_t units,
                                         uint32_t *out)
{
    const uint32_t b = find_fit(suballoc, units);
    struct sw_block *block;

    if (b == SW_SUBALLOC_NONE)
        return SW_SUBALLOC_FULL;
    if (!reserve(suballoc))
        return SW_SUBALLOC_NO_HOST;
    list_remove(suballoc, b);
    block = &suballoc->blocks[b];
    if (block->units > units) {
        const uint32_t rest = block_new(suballoc, block->chunk, block->begin + units,
                                        block->units - units);

        suballoc->blocks[rest].before = b;
        suballoc->blocks[rest].after = block->after;
        if (block->after != SW_SUBALLOC_NONE)
            suballoc->blocks[block->after].before = rest;
        block->after = rest;
        block->units = units;
        list_add(suballoc, rest);
    }
    block->in_use = 1;
    *out = b;
    return SW_SUBALLOC_DONE;
}

/* Merges the free block after b into b. Neither is in a list. */
static void absorb(struct sw_suballoc *suballoc, uint32_t b)
{
    struct sw_block *block = &suballoc->blocks[b];
    const uint32_t gone = block->after;

    block->units += suballoc->blocks[gone].units;
    block->after = suballoc->blocks[gone].after;
    if (block->after != SW_SUBALLOC_NONE)
        suballoc->blocks[block->after].before = b;
    block_drop(suballoc, gone);
}

int sw_suballoc_give(struct sw_suballoc *suballoc, uint32_t b)
{
    const uint32_t before = suballoc->blocks[b].before;
    const uint32_t after = suballoc->blocks[b].after;

    suballoc->blocks[b].in_use = 0;
    if (after != SW_SUBALLOC_NONE && !suballoc->blocks[after].in_use) {
        list_remove(suballoc, after);
        absorb(suballoc, b);
    }
    if (before != SW_SUBALLOC_NONE && !suballoc->blocks[before].in_use) {
        list_remove(suballoc, before);
        absorb(suballoc, before);
        b = before;
    }
    list_add(suballoc, b);
    return is_whole(suballoc, &suballoc->blocks[b]);
}

/* ---- queries ---- */

uint32_t sw_suballoc_find(const struct sw_suballoc *suballoc, uint32_t chunk, uint32_t unit,
                          uint32_t longest)
{
    const struct sw_suballoc_chunk *in = &suballoc->chunks[chunk];
    uint32_t word = unit / 64, b;
    uint64_t bits = in->begins[word] & ~(uint64_t)0 >> (63 - unit % 64);
    const struct sw_block *block;

    while (bits == 0 && word > 0 && unit - 64 * word < longest)
        bits = in->begins[--word];
    if (bits == 0)
        return SW_SUBALLOC_NONE;
    b = in->starts[64 * word + 63 - (uint32_t)__builtin_clzll(bits)] - 1;
    block = &suballoc->blocks[b];
    return block->in_use && unit - block->begin < block->units ? b : SW_SUBALLOC_NONE;
}

uint32_t sw_suballoc_largest(const struct sw_suballoc *suballoc)
{
    uint32_t largest = 0;
    uint32_t b;
    int i;

    for (i = SW_SUBALLOC_CLASSES - 1; i >= 0 && largest == 0; i--)
        for (b = suballoc->lists[i]; b != SW_SUBALLOC_NONE; b = suballoc->blocks[b].next)
            if (!is_whole(suballoc, &suballoc->blocks[b]) && suballoc->blocks[b].units > largest)
                largest = suballoc->blocks[b].units;
    return largest;
}
