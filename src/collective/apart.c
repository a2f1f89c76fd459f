/* Whether parts of a buffer overlap. */
#include <stdlib.h>

#include "src/collective/calls.h"

/* With fewer ranks, comparing all pairs takes the host less than sorting. */
enum { SORTED_FROM = 48 };

static int by_place(const void *left, const void *right)
{
    const struct sw_table_row *a = left, *b = right;

    return (a->place > b->place) - (a->place < b->place);
}

/* By sorting copies of those that have elements. */
static int are_apart(const struct sw_table_row *rows, int n, struct sw_table_row *sorted)
{
    int p, count = 0;

    for (p = 0; p < n; p++)
        if (rows[p].count > 0)
            sorted[count++] = rows[p];
    qsort(sorted, (size_t)count, sizeof *sorted, by_place);
    for (p = 1; p < count && sorted[p - 1].place + sorted[p - 1].count <= sorted[p].place; p++)
        ;
    return p >= count;
}

int sw_parts_meet(const struct sw_table_row *rows, int n, struct sw_table_row *sorted, int pair[2])
{
    int p, q;

    if (sorted != NULL && n >= SORTED_FROM && are_apart(rows, n, sorted))
        return 0;
    for (p = 1; p < n; p++)
        for (q = 0; q < p; q++)
            if (rows[p].place < rows[q].place + rows[q].count &&
                rows[q].place < rows[p].place + rows[p].count) {
                pair[0] = p;
                pair[1] = q;
                return 1;
            }
    return 0;
}
