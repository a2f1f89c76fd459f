/* The model: the time of a call by each algorithm, for selection among them if nothing was
 * measured (docs/tuning.md).
 *
 * Fitted to H200s with 2 and 4 ranks, and barriers and collectives other than all-reduce to two
 * H100s and four (bench/results/2026-11-25-2-x-nvidia-h100-collectives-graph.csv,
 * 2026-11-26-4-x-nvidia-h100-collectives-graph.csv, and tuning/), ranks that share a device to one
 * H100 with 2, 4 and 8 (2026-11-25-1-x-nvidia-h100-shared-algos.csv).
 * Rates are in bytes per microsecond; 1 GB/s is 1000 of them. */
#include "src/collective/table.h"

#define HOP_US 1.3     /* from a rank's memory to a peer's, until the peer sees it */
#define PUT_US 2.5     /* barriers of the two-shot put */
#define MOVE_US 4.9    /* the same of stores and loads that only move bytes */
#define OFFER_US 1.9   /* ranks tell others where their buffers are */
#define LOADS_US 5.2   /* two-shot over windows: barriers, and loads that meet; */
#define PEER_US 8.0    /* ... per peer after the first; */
#define PEERS_US 3.9   /* the same for all peers, by kernels for this number of ranks */
#define COPIES_US 9.2  /* copies: events and flags */
#define COPY_US 7.0    /* per copy */
#define PARTS_US 15.0  /* copies of parts: events and flags */
#define ROOT_US 5.9    /* loads and stores of a share for one rank: barriers; */
#define PASS_US 0.5    /* shares by push: a rank passes its own on, */
#define SUM_US 1.4     /* ... or adds it up */
#define BOTH_WAYS 1.18 /* ... times the message: what is loaded over a link goes back over it */
#define COPY_BYTES_US 392e3
#define COLLECT_BYTES (64 << 20)
#define COLLECT_BYTES_US 260e3      /* pushed to one rank, if it is more */
#define COPY_PARTS_BYTES_US 366e3   /* copies of parts, if both of two ranks send, */
#define COPY_MANY_BYTES_US 305e3    /* if all of several do, */
#define COPY_ROOT_BYTES_US 385e3    /* and if one does */
#define LINK_BYTES_US 340e3         /* what a rank sends, or receives */
#define SPREAD_BYTES_US 365e3       /* the same of parts that are stored or loaded */
#define PUSH_PARTS_BYTES_US 300e3   /* and of parts pushed to be reduced there */
#define BULK_BYTES_US 300e3         /* the same by bulk copies */
#define LOCAL_BYTES_US 1300e3       /* what a rank handles after the transfer */
#define BESIDE_BYTES_US 3000e3      /* what a rank handles during the transfer, if both overlap */
#define PUSH_BLOCK_US 16e3          /* of one block, if a limit leaves few: algorithms that push, */
#define PUSH_FEW_US 280e3           /* and all such blocks together; */
#define LOAD_BLOCK_US 66e3          /* two-shot over windows, reads and writes; */
#define OWN_LOAD_BLOCK_US 92e3      /* the same by kernels for this number of ranks; */
#define BULK_BLOCK_US 74e3          /* the same by bulk copies; */
#define SUM_BLOCK_US 63e3           /* and the sum between copies */
#define SHARED_US 4.0               /* ranks of one device: barriers, */
#define SHARED_RANK_US 0.5          /* ... and for each rank, and as much again for offers; */
#define SHARED_ALONE_BYTES_US 450e3 /* what one of them pushes if the others do not; */
#define SHARED_PUSH_BYTES_US 900e3  /* what all of them push together; */
#define SHARED_MOVE_BYTES_US 2000e3 /* what they load and store over windows together, */
#define SHARED_MOST_BYTES_US 680e3  /* and each of them at most */
#define GROUP_DATA 3584             /* of bundles (bundles.cuh) */
#define BESIDE_BYTES (4 << 20)      /* stages of pushes overlap from this message size on */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- what the algorithms have in common ---- */

static double blocks_of(const struct sw_model *m)
{
    return m->most_blocks > 0 ? m->most_blocks : 1e6;
}

/* What a rank pushes if the others do not. */
static double alone_rate(const struct sw_model *m)
{
    const double rate = m->one_device ? SHARED_ALONE_BYTES_US : LINK_BYTES_US;

    return m->most_blocks > 0 ? least(PUSH_FEW_US, m->most_blocks * PUSH_BLOCK_US) : rate;
}

static double push_rate(const struct sw_model *m)
{
    return m->one_device ? least(alone_rate(m), SHARED_PUSH_BYTES_US / m->nranks) : alone_rate(m);
}

/* What a rank loads from others' windows, or stores there, where `ranks` do so: over its link, or
 * they share a device. */
static double window_rate(const struct sw_model *m, double link, int ranks)
{
    return m->one_device ? least(SHARED_MOST_BYTES_US, SHARED_MOVE_BYTES_US / ranks) : link;
}

/* Bytes pushed for a message: integers have flags with them. */
static double pushed(const struct sw_model *m)
{
    return m->is_float ? (double)m->bytes : 2 * (double)m->bytes;
}

static double local_rate(const struct sw_model *m)
{
    return m->is_float && m->bytes >= BESIDE_BYTES ? BESIDE_BYTES_US : LOCAL_BYTES_US;
}

/* Bytes that cross a rank's links in each direction, if each byte crosses as rarely as possible. */
static double both_ways(const struct sw_model *m)
{
    return 2 * (m->nranks - 1.0) / m->nranks * (double)m->bytes;
}

/* ---- one algorithm each ---- */

static double oneshot_us(const struct sw_model *m, double sent)
{
    const double n = m->nranks;

    return HOP_US + (n - 1) * sent / push_rate(m) + n * sent / local_rate(m);
}

double sw_model_flags(const struct sw_model *m)
{
    return oneshot_us(m, 2 * (double)m->bytes);
}

/* To each peer. What is received is handled during the transfer. */
static double sent_us(const struct sw_model *m, double sent, double rate)
{
    return HOP_US + (m->nranks - 1.0) * sent / rate;
}

/* Bytes pushed for a part that is moved: half of them are flags, or 1/8 in bundles. */
static double moved_bytes(const struct sw_model *m)
{
    return (m->bundles ? 8.0 / 7 : 2) * (double)m->bytes;
}

/* From one rank, or to one. */
double sw_model_send(const struct sw_model *m)
{
    return sent_us(m, moved_bytes(m), alone_rate(m));
}

/* The largest push slower to one rank, which sums: 64 MiB took 189 us on two H200s, 128 MiB 473. */
double sw_model_collect(const struct sw_model *m)
{
    const double rate = alone_rate(m);
    const int slower = m->bytes > COLLECT_BYTES && !m->one_device;

    return sent_us(m, pushed(m), slower ? least(rate, COLLECT_BYTES_US) : rate);
}

/* A message of the root, or for it, in shares of the other ranks, by push: each sends and receives
 * as many bytes as the root, and handles them in between. */
static double shares_us(const struct sw_model *m, double sent, double between_us)
{
    const double beside = m->one_device ? 0 : between_us + 2 * sent / BESIDE_BYTES_US;

    return 2 * HOP_US + sent / push_rate(m) + beside;
}

/* With less than a group of bundles for each rank, few threads would pass much on. */
double sw_model_pass_on(const struct sw_model *m)
{
    if (m->nranks <= 2 || (double)m->bytes < GROUP_DATA * (m->nranks - 1.0))
        return sw_model_send(m);
    return shares_us(m, 8.0 / 7 * (double)m->bytes, PASS_US);
}

double sw_model_collect_shares(const struct sw_model *m)
{
    return m->nranks > 2 ? shares_us(m, pushed(m), SUM_US) : sw_model_collect(m);
}

/* Parts of several ranks. On one device nothing is handled beside a transfer. */
static double parts_us(const struct sw_model *m, double rate)
{
    const double sent = moved_bytes(m);

    return sent_us(m, sent, rate) + (m->one_device ? 0 : m->nranks * sent / BESIDE_BYTES_US);
}

double sw_model_exchange(const struct sw_model *m)
{
    return parts_us(m, push_rate(m));
}

double sw_model_scatter(const struct sw_model *m)
{
    return parts_us(m, alone_rate(m));
}

double sw_model_sentinel(const struct sw_model *m)
{
    return oneshot_us(m, pushed(m));
}

/* Parts that are reduced where they arrive, by kernels for any number of ranks. */
double sw_model_parts_pushed(const struct sw_model *m)
{
    const double sent = pushed(m), rate = least(PUSH_PARTS_BYTES_US, push_rate(m));

    if (m->one_device)
        return sw_model_sentinel(m);
    return sent_us(m, sent, rate) + m->nranks * sent / BESIDE_BYTES_US;
}

double sw_model_push(const struct sw_model *m)
{
    const double share = (m->nranks - 1.0) / m->nranks * pushed(m);

    return 2 * HOP_US + 2 * share / push_rate(m) + share / local_rate(m);
}

double sw_model_put(const struct sw_model *m)
{
    const double others = (m->nranks - 1.0) / m->nranks, sent = pushed(m);

    return 2 * HOP_US + PUT_US + others * (sent + (double)m->bytes) / push_rate(m) +
           others * sent / 2 / BESIDE_BYTES_US;
}

/* Barriers of ranks of one device. */
static double shared_us(const struct sw_model *m)
{
    return SHARED_US + SHARED_RANK_US * m->nranks;
}

static double barriers_us(const struct sw_model *m, int own_loads)
{
    if (m->one_device)
        return shared_us(m);
    return 2 * HOP_US + (own_loads ? PEERS_US : LOADS_US + PEER_US * most(m->nranks - 2.0, 0));
}

double sw_model_loads(const struct sw_model *m)
{
    const double load_block = m->own_loads ? OWN_LOAD_BLOCK_US : LOAD_BLOCK_US;

    return barriers_us(m, m->own_loads) +
           most(both_ways(m) / window_rate(m, LINK_BYTES_US, m->nranks),
                2 * (double)m->bytes / (blocks_of(m) * load_block)) +
           both_ways(m) / 2 / BESIDE_BYTES_US;
}

double sw_model_bulk(const struct sw_model *m)
{
    return barriers_us(m, 0) +
           most(both_ways(m) / least(BULK_BYTES_US, window_rate(m, LINK_BYTES_US, m->nranks)),
                2 * (double)m->bytes / (blocks_of(m) * BULK_BLOCK_US));
}

/* Two chunks; the sum of each overlaps a copy of one chunk to one peer. */
double sw_model_copies(const struct sw_model *m)
{
    const double n = m->nranks;
    const double chunk = (double)m->bytes / n / 2;
    const double copy = chunk / COPY_BYTES_US;
    const double sum = (n + 1) * chunk / (blocks_of(m) * SUM_BLOCK_US);

    return COPIES_US + COPY_US * 2 * n + 4 * (n - 1) * copy + 2 * most(sum - copy, 0);
}

/* Bytes over a link, and through a kernel's loads and stores. */
static double moved_us(const struct sw_model *m, double sent, double rate)
{
    return (m->one_device ? shared_us(m) : 2 * HOP_US + MOVE_US) +
           most(sent / rate, 2 * sent / (blocks_of(m) * LOAD_BLOCK_US));
}

/* What a rank sends to its peers at most; its own part moves beside that. */
static double to_peers(const struct sw_model *m)
{
    return (m->nranks - 1.0) * (double)m->bytes;
}

double sw_model_move(const struct sw_model *m)
{
    return moved_us(m, to_peers(m), window_rate(m, SPREAD_BYTES_US, m->nranks));
}

double sw_model_store(const struct sw_model *m)
{
    return moved_us(m, to_peers(m), window_rate(m, SPREAD_BYTES_US, 1));
}

/* Copies to every second peer begin while others are under way. */
static double copied_us(const struct sw_model *m, double rate)
{
    return PARTS_US + COPY_US * m->nranks / 2 + to_peers(m) / rate;
}

double sw_model_parts_copied(const struct sw_model *m)
{
    return copied_us(m, m->nranks > 2 ? COPY_MANY_BYTES_US : COPY_PARTS_BYTES_US);
}

double sw_model_root_copied(const struct sw_model *m)
{
    return copied_us(m, COPY_ROOT_BYTES_US);
}

static double offer_us(const struct sw_model *m)
{
    return m->one_device ? SHARED_RANK_US * m->nranks : OFFER_US;
}

double sw_model_offered(const struct sw_model *m)
{
    return moved_us(m, to_peers(m), window_rate(m, SPREAD_BYTES_US, 1)) + offer_us(m);
}

/* No link carries more than the message: each rank but the root loads its share and stores it to
 * the others. */
double sw_model_pass(const struct sw_model *m)
{
    const double us = moved_us(m, (double)m->bytes, window_rate(m, SPREAD_BYTES_US, m->nranks));

    /* The root's offer comes with its header: 10.4 us for 1 MiB on four H100s. Two ranks would load
     * what the root can store as well. */
    return m->one_device || m->nranks == 2 ? us + offer_us(m) : us;
}

/* `bytes` from each rank; nothing is sent back. */
double sw_model_parts(const struct sw_model *m)
{
    const double loaded = (m->nranks - 1.0) * (double)m->bytes;
    const double load_block = m->own_loads ? OWN_LOAD_BLOCK_US : LOAD_BLOCK_US;

    return barriers_us(m, m->own_loads) + most(loaded / window_rate(m, LINK_BYTES_US, m->nranks),
                                               loaded / (blocks_of(m) * load_block));
}

/* As sw_model_pass(), the other way: each rank but the root loads a share from all others, and
 * stores the result to the root. */
double sw_model_root(const struct sw_model *m)
{
    return (m->one_device ? shared_us(m) : 2 * HOP_US + ROOT_US) +
           most(BOTH_WAYS * (double)m->bytes / window_rate(m, LINK_BYTES_US, m->nranks),
                2 * (double)m->bytes / (blocks_of(m) * LOAD_BLOCK_US));
}
