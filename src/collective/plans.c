/* The last plans of a communicator: programs repeat their calls, and a selection takes the host as
 * long as much of the rest of a call. A plan depends on the query, on what the caller asks for, and
 * on what of a communicator stays as it is. */
#include <stdlib.h>
#include <string.h>

#include "src/collective/order.h"
#include "src/collective/select.h"

enum { KEPT = 8 };

/* All that a selection depends on. No padding. */
struct key {
    uint64_t bytes;
    uint32_t collective, type, op, flags, transports, multiprocessors, most_blocks;
    uint32_t algo, blocks, threads; /* that the caller asks for */
};

struct sw_plans {
    struct kept {
        struct key key;
        struct sw_plan plan;
    } kept[KEPT];
    unsigned count; /* that were kept so far */
};

struct sw_plans *sw_plans_create(void)
{
    return calloc(1, sizeof(struct sw_plans));
}

void sw_plans_destroy(struct sw_plans *plans)
{
    free(plans);
}

static struct key key_of(const struct sw_query *q, symwin_algo algo, const struct sw_grid *asked)
{
    const uint32_t flags = (q->in_place != 0) | (q->aligned != 0) << 1 |
                           (q->windows_aligned != 0) << 2 | (q->windows != 0) << 3 |
                           (q->large_parts != 0) << 4 | (q->short_parts != 0) << 5 |
                           (q->by_window != 0) << 6 | (q->reads_parts != 0) << 7;

    return (struct key){
        .bytes = q->bytes,
        .collective = (uint32_t)q->collective,
        .type = (uint32_t)q->type,
        .op = (uint32_t)q->op,
        .flags = flags,
        .transports = q->transports,
        .multiprocessors = q->multiprocessors,
        .most_blocks = q->most_blocks,
        .algo = (uint32_t)algo,
        .blocks = asked->blocks,
        .threads = asked->threads,
    };
}

/* NULL: none. The newest first. */
static const struct sw_plan *find(const struct sw_plans *plans, const struct key *key)
{
    const unsigned many = plans->count < KEPT ? plans->count : KEPT;
    unsigned i;

    for (i = 1; i <= many; i++) {
        const struct kept *kept = &plans->kept[(plans->count - i) % KEPT];

        if (memcmp(&kept->key, key, sizeof *key) == 0)
            return &kept->plan;
    }
    return NULL;
}

symwin_status sw_select_plan(const struct sw_query *q, symwin_algo algo,
                             const struct sw_grid *asked, struct sw_plan *out)
{
    struct sw_plans *plans = q->comm->calls != NULL ? q->comm->calls->plans : NULL;
    const struct sw_plan *known;
    struct key key;
    symwin_status status;

    if (plans == NULL)
        return sw_select_new_plan(q, algo, asked, out);
    key = key_of(q, algo, asked);
    known = find(plans, &key);
    if (known != NULL) {
        *out = *known;
        return SYMWIN_OK;
    }
    status = sw_select_new_plan(q, algo, asked, out);
    if (status == SYMWIN_OK)
        plans->kept[plans->count++ % KEPT] = (struct kept){key, *out};
    return status;
}
