/* Good fit in lists by size, as in TLSF (M. Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems",
 * 2004): 32 classes for each power of two, so that the first block of a higher class always fits, and a bit for each list
 * says where there are any. Blocks of a request's own class may be a little too short; a few of them are looked at first, so
 * that what was freed serves the same size again. */
#include "src/memory/carve.h"

#include <stdlib.h>
#include <string.h>

enum { LOOK = 16, FINE_BITS = 5, FINE = 1 << FINE_BITS };

void sw_carve_init(struct sw_carve *carve, uint32_t chunk_units)
{
    int i;

    *carve = (struct sw_carve){.chunk_units = chunk_units, .unused = SW_CARVE_NONE};
    for (i = 0; i < SW_CARVE_CLASSES; i++)
        carve->lists[i] = SW_CARVE_NONE;
}

void sw_carve_clear(struct sw_carve *carve)
{
    uint32_t c;

    for (c = 0; c < carve->chunk_count; c++)
        free(carve->starts[c]);
    free(carve->starts);
    free(carve->blocks);
    sw_carve_init(carve, carve->chunk_units);
}

/* Sizes below FINE have a class each; above, the power of two and the FINE_BITS bits behind the first. */
static uint32_t class_of(uint32_t units)
{
    uint32_t power;

    if (units < FINE)
        return units;
    power = 31 - (uint32_t)__builtin_clz(units);
    return FINE + (power - FINE_BITS) * FINE + ((units >> (power - FINE_BITS)) & (FINE - 1));
}

_Static_assert(FINE + (17 - FINE_BITS + 1) * FINE == SW_CARVE_CLASSES, "a class for every size");

/* ---- blocks ---- */

/* Room for one block more. */
static int reserve(struct sw_carve *carve)
{
    const uint32_t room = carve->block_room == 0 ? 64 : carve->block_room * 2;
    struct sw_block *blocks;

    if (carve->unused != SW_CARVE_NONE || carve->block_count < carve->block_room)
        return 1;
    blocks = realloc(carve->blocks, room * sizeof *blocks);
    if (blocks == NULL)
        return 0;
    carve->blocks = blocks;
    carve->block_room = room;
    return 1;
}

static uint32_t block_new(struct sw_carve *carve, uint32_t chunk, uint32_t begin, uint32_t units)
{
    uint32_t b = carve->unused;

    if (b != SW_CARVE_NONE)
        carve->unused = carve->blocks[b].next;
    else
        b = carve->block_count++;
    carve->blocks[b] = (struct sw_block){.chunk = chunk,
                                         .begin = begin,
                                         .units = units,
                                         .before = SW_CARVE_NONE,
                                         .after = SW_CARVE_NONE};
    carve->starts[chunk][begin] = b + 1;
    return b;
}

static void block_drop(struct sw_carve *carve, uint32_t b)
{
    struct sw_block *block = &carve->blocks[b];

    carve->starts[block->chunk][block->begin] = 0;
    block->next = carve->unused;
    carve->unused = b;
}

static void list_add(struct sw_carve *carve, uint32_t b)
{
    const uint32_t class = class_of(carve->blocks[b].units);
    const uint32_t head = carve->lists[class];

    carve->blocks[b].prev = SW_CARVE_NONE;
    carve->blocks[b].next = head;
    if (head != SW_CARVE_NONE)
        carve->blocks[head].prev = b;
    carve->lists[class] = b;
    carve->filled[class / 64] |= (uint64_t)1 << class % 64;
}

static void list_remove(struct sw_carve *carve, uint32_t b)
{
    const struct sw_block *block = &carve->blocks[b];
    const uint32_t class = class_of(block->units);

    if (block->next != SW_CARVE_NONE)
        carve->blocks[block->next].prev = block->prev;
    if (block->prev != SW_CARVE_NONE)
        carve->blocks[block->prev].next = block->next;
    else
        carve->lists[class] = block->next;
    if (carve->lists[class] == SW_CARVE_NONE)
        carve->filled[class / 64] &= ~((uint64_t)1 << class % 64);
}

static int is_whole(const struct sw_carve *carve, const struct sw_block *block)
{
    return block->units == carve->chunk_units;
}

/* ---- chunks ---- */

uint32_t sw_carve_add(struct sw_carve *carve)
{
    uint32_t chunk = 0;

    while (chunk < carve->chunk_count && carve->starts[chunk] != NULL)
        chunk++;
    if (!reserve(carve))
        return SW_CARVE_NONE;
    if (chunk == carve->chunk_count) {
        uint32_t **starts = realloc(carve->starts, (chunk + 1) * sizeof *starts);

        if (starts == NULL)
            return SW_CARVE_NONE;
        carve->starts = starts;
        carve->starts[carve->chunk_count++] = NULL;
    }
    carve->starts[chunk] = calloc(carve->chunk_units, sizeof *carve->starts[chunk]);
    if (carve->starts[chunk] == NULL)
        return SW_CARVE_NONE;
    list_add(carve, block_new(carve, chunk, 0, carve->chunk_units));
    return chunk;
}

void sw_carve_remove(struct sw_carve *carve, uint32_t chunk)
{
    const uint32_t b = carve->starts[chunk][0] - 1;

    list_remove(carve, b);
    block_drop(carve, b);
    free(carve->starts[chunk]);
    carve->starts[chunk] = NULL;
}

/* ---- taking and giving ---- */

static uint32_t find_fit(const struct sw_carve *carve, uint32_t units)
{
    const uint32_t class = class_of(units);
    uint32_t b = carve->lists[class];
    uint32_t word = (class + 1) / 64;
    uint64_t bits;
    int look;

    for (look = 0; b != SW_CARVE_NONE && look < LOOK; look++) {
        if (carve->blocks[b].units >= units)
            return b;
        b = carve->blocks[b].next;
    }
    if (word == SW_CARVE_CLASSES / 64)
        return SW_CARVE_NONE;
    bits = carve->filled[word] & ~(uint64_t)0 << (class + 1) % 64;
    while (bits == 0) {
        if (++word == SW_CARVE_CLASSES / 64)
            return SW_CARVE_NONE;
        bits = carve->filled[word];
    }
    return carve->lists[word * 64 + (uint32_t)__builtin_ctzll(bits)];
}

enum sw_carve_result sw_carve_take(struct sw_carve *carve, uint32_t units, uint32_t *out)
{
    const uint32_t b = find_fit(carve, units);
    struct sw_block *block;

    if (b == SW_CARVE_NONE)
        return SW_CARVE_FULL;
    if (!reserve(carve))
        return SW_CARVE_NO_HOST;
    list_remove(carve, b);
    block = &carve->blocks[b];
    if (block->units > units) {
        const uint32_t rest = block_new(carve, block->chunk, block->begin + units,
                                        block->units - units);

        carve->blocks[rest].before = b;
        carve->blocks[rest].after = block->after;
        if (block->after != SW_CARVE_NONE)
            carve->blocks[block->after].before = rest;
        block->after = rest;
        block->units = units;
        list_add(carve, rest);
    }
    block->in_use = 1;
    *out = b;
    return SW_CARVE_DONE;
}

/* Joins block b, which is in no list, with the free one behind it, which is in one. */
static void absorb(struct sw_carve *carve, uint32_t b)
{
    struct sw_block *block = &carve->blocks[b];
    const uint32_t gone = block->after;

    block->units += carve->blocks[gone].units;
    block->after = carve->blocks[gone].after;
    if (block->after != SW_CARVE_NONE)
        carve->blocks[block->after].before = b;
    block_drop(carve, gone);
}

int sw_carve_give(struct sw_carve *carve, uint32_t b)
{
    const uint32_t before = carve->blocks[b].before;
    const uint32_t after = carve->blocks[b].after;

    carve->blocks[b].in_use = 0;
    if (after != SW_CARVE_NONE && !carve->blocks[after].in_use) {
        list_remove(carve, after);
        absorb(carve, b);
    }
    if (before != SW_CARVE_NONE && !carve->blocks[before].in_use) {
        list_remove(carve, before);
        absorb(carve, before);
        b = before;
    }
    list_add(carve, b);
    return is_whole(carve, &carve->blocks[b]);
}

/* ---- queries ---- */

uint32_t sw_carve_find(const struct sw_carve *carve, uint32_t chunk, uint32_t unit,
                       uint32_t longest)
{
    const uint32_t *starts = carve->starts[chunk];
    const struct sw_block *block;
    uint32_t at = unit;

    while (starts[at] == 0 && at > 0 && unit - at < longest)
        at--;
    if (starts[at] == 0)
        return SW_CARVE_NONE;
    block = &carve->blocks[starts[at] - 1];
    return block->in_use && unit - block->begin < block->units ? starts[at] - 1 : SW_CARVE_NONE;
}

uint32_t sw_carve_largest(const struct sw_carve *carve)
{
    uint32_t largest = 0;
    uint32_t b;
    int i;

    for (i = SW_CARVE_CLASSES - 1; i >= 0 && largest == 0; i--)
        for (b = carve->lists[i]; b != SW_CARVE_NONE; b = carve->blocks[b].next)
            if (!is_whole(carve, &carve->blocks[b]) && carve->blocks[b].units > largest)
                largest = carve->blocks[b].units;
    return largest;
}
