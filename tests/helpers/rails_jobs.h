/* What communicators over several domains are tested with: any collective, by any way that there is
 * between domains. Sums of floats are in no fixed order there: whole numbers, whose sums are exact.
 */
#ifndef SYMWIN_TESTS_RAILS_JOBS_H
#define SYMWIN_TESTS_RAILS_JOBS_H

#include "collectives.h"
#include "rails.h"
#include "src/collective/select.h"

/* Of so many calls, of 4 ranks. More ranks are more processes, for which there are two cores.
 * Processes that share a GPU take turns, 4 ms each. */
HARNESS_UNUSED unsigned some(const struct rank *r, unsigned calls)
{
    const unsigned most = r->nranks > 4 ? calls * 4 / (unsigned)r->nranks : calls;

    return sw_driver_is_emulated() ? most : (most + 3) / 4;
}

HARNESS_UNUSED int domains_of(const char *hosts)
{
    int i, found = 0;

    for (i = 0; hosts[i] != '\0'; i++)
        found += strchr(hosts, hosts[i]) == &hosts[i];
    return found;
}

HARNESS_UNUSED int largest_of(const char *hosts)
{
    int i, k, most = 0, found;

    for (i = 0; hosts[i] != '\0'; i++) {
        for (found = 0, k = 0; hosts[k] != '\0'; k++)
            found += hosts[k] == hosts[i];
        most = found > most ? found : most;
    }
    return most;
}

HARNESS_UNUSED atomic_int equal_domains; /* whether those of this process's communicator are */

HARNESS_UNUSED int domains_are_equal(const char *hosts)
{
    int i, equal = 1;

    for (i = 1; hosts[i] != '\0'; i++)
        equal = equal && hosts[i] >= hosts[i - 1]; /* ranks of a domain follow each other */
    return equal && (int)strlen(hosts) == domains_of(hosts) * largest_of(hosts);
}

/* A way that the call can go over any domains, or the library's choice. */
HARNESS_UNUSED void choose_way(struct job *j, uint32_t dice)
{
    static const symwin_algo ways[] = {SYMWIN_ALGO_AUTO, SYMWIN_ALGO_ONESHOT, SYMWIN_ALGO_RAILS,
                                       SYMWIN_ALGO_TWOSHOT_PUSH, SYMWIN_ALGO_NCCL};
    const symwin_algo way = ways[dice % 5];
    const symwin_collective is = j->is->collective;

    if (!sw_way_is_there(is, way) ||
        (way == SYMWIN_ALGO_NCCL && j->is->reduces && j->op == SYMWIN_PREMUL_SUM) ||
        (way != SYMWIN_ALGO_NCCL && j->op == SYMWIN_AVG && j->type > SYMWIN_F8E5M2) ||
        (way == SYMWIN_ALGO_RAILS &&
         (is == SYMWIN_REDUCE || (is == SYMWIN_ALLTOALL && !equal_domains))))
        return;
    j->options.algo = way;
    j->options.blocks = sw_way_has_pieces(way) ? (int)(dice / 5 % 9) : 0;
}

/* Any collective. */
HARNESS_UNUSED struct job any(const struct rank *r, unsigned number)
{
    static const uint64_t counts[] = {0, 1, 3, 8, 33, 100, 1000, 4099, 20000, 33000, 70000};
    const uint32_t all = mix(number * 2654435761u + 17u), own = mix(all + (unsigned)r->rank + 1);
    struct job j = {.is = &shapes[all % SHAPES],
                    .options = {.size = sizeof j.options},
                    .type = (symwin_type)(mix(all + 1) % 12),
                    .op = (symwin_op)(mix(all + 2) % 4),
                    .root = (int)(mix(all + 3) % (uint32_t)r->nranks),
                    .in_place = mix(own + 4) % 3 == 0,
                    .seed = number * 2,
                    .whole = 1,
                    .scalars = number % SCALARS};
    const size_t element = symwin_type_bytes(j.type);
    const uint64_t most = (ROOM - 2 * GUARD - 72) / element /
                          (j.is->in_each || j.is->out_each ? (uint64_t)r->nranks : 1);

    if (j.is->reduces && (j.type == SYMWIN_F8E4M3 || j.type == SYMWIN_F8E5M2))
        j.type = SYMWIN_I8;
    if (j.is->reduces && j.type > SYMWIN_F8E5M2 && mix(all + 5) % 5 == 0)
        j.op = SYMWIN_PREMUL_SUM;
    if (j.is->reduces && j.type <= SYMWIN_BF16 && j.op == SYMWIN_PROD)
        j.op = SYMWIN_SUM;
    if (j.is->reduces && j.type <= SYMWIN_BF16 && (r->nranks & (r->nranks - 1)) == 0 &&
        mix(all + 9) % 4 == 0)
        j.op = SYMWIN_AVG; /* a product with a power of two, which is exact */
    if (j.is->reduces && j.type > SYMWIN_F8E5M2 && mix(all + 11) % 6 == 0)
        j.op = SYMWIN_AVG;
    j.count = counts[mix(all + 6) % (sizeof counts / sizeof counts[0])];
    if (j.count > most)
        j.count = most;
    j.in = GUARD + mix(own + 7) % 3 * element;
    j.out = GUARD + mix(own + 8) % 3 * element;
    choose_way(&j, mix(all + 10));
    return j;
}

#endif
