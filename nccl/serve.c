/* Which calls are symwin's: what the variables say, and the table of measured times. */
#include <string.h>

#include "nccl/serve.h"

#ifndef SW_MEASURED /* the test has its own */
#define SW_MEASURED "nccl/measured.h"
#endif

/* Times of symwin and NCCL in microseconds, of `classes` classes from 2^`first` bytes on. */
struct measured {
    enum sw_kind kind;
    int ranks, capability, first, classes;
    float ours[SW_CLASSES], nccls[SW_CLASSES];
};

static const struct measured table[] = {
#include SW_MEASURED
    {.classes = 0},
};

enum { ROWS = sizeof table / sizeof table[0] - 1 };

/* Calls of a group, and bytes of their parts, that symwin makes in one launch. */
enum { SW_LAUNCH_CALLS = 16, SW_LAUNCH_BYTES = 128 << 10 };

/* For numbers of ranks that nobody has measured: the next smaller one that was. */
static const struct measured *row_of(int ranks, int capability, enum sw_kind kind)
{
    const struct measured *best = NULL;
    int i;

    if (kind == SW_RECV)
        kind = SW_SEND;
    for (i = 0; i < ROWS; i++)
        if (table[i].kind == kind && table[i].capability == capability && table[i].ranks <= ranks &&
            (best == NULL || table[i].ranks > best->ranks))
            best = &table[i];
    return best;
}

/* A class is symwin's if it is quicker at both ends of it. Below the first one, and of ranks that
 * nobody has measured, it has to be much quicker. */
static uint64_t quicker(const struct measured *row, int ranks)
{
    const float margin = row->ranks == ranks ? 1.0f : 0.7f;
    uint64_t sizes = 0;
    int i;

    for (i = 0; i + 1 < row->classes; i++)
        if (row->ours[i] <= margin * row->nccls[i] &&
            row->ours[i + 1] <= margin * row->nccls[i + 1])
            sizes |= (uint64_t)1 << (row->first + i);
    if (row->ours[0] <= margin * row->nccls[0])
        sizes |= ((uint64_t)1 << row->first) - 1;
    return sizes;
}

/* Which server has a send is decided for all of them: in a group, one that waits for its receive
 * must not keep another one back. */
static uint64_t whole(const struct measured *row, uint64_t sizes)
{
    const uint64_t all = ((uint64_t)1 << (row->first + row->classes - 1)) - 1;

    return (sizes & all) == all ? ~(uint64_t)0 : 0;
}

/* The classes of up to BLOCK_BYTES for each block, for which a call without a limit takes no more:
 * the times hold for them. */
static uint64_t limited(int most_blocks)
{
    enum { BLOCK_BYTES = 4 << 10 };
    uint64_t sizes = 0;
    int class;

    for (class = 0;
         class < SW_CLASSES - 1 && (uint64_t)2 << class <= (uint64_t)most_blocks * BLOCK_BYTES;
         class ++)
        sizes |= (uint64_t)1 << class;
    return most_blocks > 0 ? sizes : ~(uint64_t)0;
}

void sw_serve_sizes(int ranks, int capability, int several_hosts, int most_blocks,
                    uint64_t sizes[SW_KINDS])
{
    int kind;

    for (kind = 0; kind < SW_KINDS; kind++) {
        const enum sw_serve serve = sw_setup()->serve[kind];
        const struct measured *row = row_of(ranks, capability, (enum sw_kind)kind);

        sizes[kind] = serve == SW_SERVE_ALL ? ~(uint64_t)0 : 0;
        if (serve != SW_SERVE_AUTO || row == NULL || several_hosts)
            continue;
        sizes[kind] = quicker(row, ranks);
        if (kind != SW_SEND && kind != SW_RECV)
            sizes[kind] &= limited(most_blocks);
        else
            sizes[kind] = most_blocks == 0 ? whole(row, sizes[kind]) : 0;
    }
}

int sw_serve_any(void)
{
    int kind = 0;

    while (kind < SW_KINDS && sw_setup()->serve[kind] == SW_SERVE_NONE)
        kind++;
    return kind < SW_KINDS;
}

uint64_t sw_hash(uint64_t seed, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    size_t i;

    for (i = 0; i < count; i++)
        seed = (seed ^ byte[i]) * 0x100000001b3u;
    return seed;
}

uint64_t sw_serve_fingerprint(void)
{
    const struct sw_setup *setup = sw_setup();

    return sw_hash(0xcbf29ce484222325u, setup->serve, sizeof setup->serve);
}

uint64_t sw_table_fingerprint(void)
{
    _Static_assert(sizeof table[0] == (5 + 2 * SW_CLASSES) * 4, "no byte of a row is padding");
    return sw_hash(0xcbf29ce484222325u, table, sizeof table);
}

/* ---- sizes ---- */

const struct sw_type sw_types[ncclNumTypes] = {
    [ncclInt8] = {SYMWIN_I8, 1},           [ncclUint8] = {SYMWIN_U8, 1},
    [ncclInt32] = {SYMWIN_I32, 4},         [ncclUint32] = {SYMWIN_U32, 4},
    [ncclInt64] = {SYMWIN_I64, 8},         [ncclUint64] = {SYMWIN_U64, 8},
    [ncclFloat16] = {SYMWIN_F16, 2},       [ncclFloat32] = {SYMWIN_F32, 4},
    [ncclFloat64] = {SYMWIN_F64, 8},       [ncclBfloat16] = {SYMWIN_BF16, 2},
    [ncclFloat8e4m3] = {SYMWIN_F8E4M3, 1}, [ncclFloat8e5m2] = {SYMWIN_F8E5M2, 1},
};

/* Bytes of the larger buffer. */
static size_t size_of(const struct sw_comm *comm, enum sw_kind kind, size_t count,
                      ncclDataType_t type)
{
    const int parts = kind == SW_REDUCE_SCATTER || kind == SW_ALL_GATHER || kind == SW_ALL_TO_ALL ||
                      kind == SW_GATHER || kind == SW_SCATTER;

    return count * sw_type_bytes(type) * (size_t)(parts ? comm->ranks : 1);
}

static int class_of(size_t bytes)
{
    const int class = bytes > 1 ? 63 - __builtin_clzll(bytes) : 0;

    return class < SW_CLASSES ? class : SW_CLASSES - 1;
}

int sw_serve_class(const struct sw_comm *comm, enum sw_kind kind, size_t count, ncclDataType_t type)
{
    return class_of(size_of(comm, kind, count, type));
}

float sw_serve_time(int ranks, enum sw_kind kind, int class, enum sw_server server)
{
    int i;

    for (i = 0; i < ROWS; i++) {
        const struct measured *row = &table[i];

        if (row->ranks == ranks && row->kind == (kind == SW_RECV ? SW_SEND : kind) &&
            class >= row->first && class < row->first + row->classes)
            return (server == SW_OURS ? row->ours : row->nccls)[class - row->first];
    }
    return 0;
}

/* ---- groups ---- */

void sw_together_add(struct sw_together *t, const struct sw_comm *comm, enum sw_kind kind,
                     size_t count, ncclDataType_t type)
{
    size_t bytes;
    float us;

    t->is_settled |= sw_setup()->serve[kind] == SW_SERVE_ALL;
    if (t->is_settled)
        return;
    bytes = size_of(comm, kind, count, type);
    us = sw_serve_time(comm->ranks, kind, class_of(bytes), SW_OURS);
    t->one_by_one = us > 0 && (t->count == 0 || t->one_by_one > 0) ? t->one_by_one + us : 0;
    t->bytes[kind] += bytes;
    t->parts += count * sw_type_bytes(type);
    t->count++;
}

/* All of them as one call of each collective, at the same time. */
static float at_once(const struct sw_together *t, const struct sw_comm *comm, enum sw_server server)
{
    float longest = 0;
    int kind;

    for (kind = 0; kind < SW_KINDS; kind++) {
        const float us = t->bytes[kind] > 0 ? sw_serve_time(comm->ranks, (enum sw_kind)kind,
                                                            class_of(t->bytes[kind]), server)
                                            : 0;

        longest = us > longest ? us : longest;
    }
    return longest;
}

int sw_together_is_ours(const struct sw_together *t, const struct sw_comm *comm)
{
    const int share = t->count <= SW_LAUNCH_CALLS && t->parts <= SW_LAUNCH_BYTES;
    const float ours = share ? at_once(t, comm, SW_OURS) : t->one_by_one;

    if (t->is_settled || t->count < 2)
        return 1;
    return (share || ours > 0) && ours <= at_once(t, comm, SW_NCCLS);
}
