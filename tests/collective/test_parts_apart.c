/* Whether parts overlap: against a plain comparison of all pairs, of any order, and in much less
 * time if they are many and do not. */
#include "src/collective/calls.h"

#include "harness.h"

enum { MOST = 4096 };

static struct sw_table_row rows[MOST], sorted[MOST], before[MOST];
static uint32_t state = 1;

static uint32_t next_random(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* As two nested loops find the first one. */
static int plain(int n, int pair[2])
{
    int p, q;

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

/* Parts that touch, in any order, some without elements; these are at place 0. */
static void lay_out(int n)
{
    uint64_t place = 0;
    int p, q;

    for (p = 0; p < n; p++) {
        rows[p].count = next_random(4) == 0 ? 0 : 1 + next_random(5);
        rows[p].place = rows[p].count > 0 ? place : 0;
        place += rows[p].count;
    }
    for (p = n - 1; p > 0; p--) {
        const struct sw_table_row row = rows[p];

        q = (int)next_random((uint32_t)p + 1);
        rows[p] = rows[q];
        rows[q] = row;
    }
}

/* The same answer and pair, and rows that are as they were. */
static int is_right(int n)
{
    int pair[2] = {-1, -1}, want[2] = {-1, -1}, found;

    memcpy(before, rows, sizeof before);
    found = sw_parts_meet(rows, n, sorted, pair);
    return found == plain(n, want) && pair[0] == want[0] && pair[1] == want[1] &&
           memcmp(before, rows, sizeof before) == 0 && sw_parts_meet(rows, n, NULL, pair) == found;
}

static void all_orders(void)
{
    static const int numbers[] = {1, 2, 3, 16, 17, 47, 48, 49, 100, 300};
    int apart = 1, meet = 1, empty, i, k, p;

    for (i = 0; i < (int)(sizeof numbers / sizeof numbers[0]); i++)
        for (k = 0; k < 100; k++) {
            const int n = numbers[i];

            lay_out(n);
            apart &= is_right(n);
            for (p = (int)next_random(3); p >= 0; p--) { /* one to three are longer, or elsewhere */
                struct sw_table_row *const row = &rows[next_random((uint32_t)n)];

                if (row->count == 0 || next_random(2))
                    row->count += 1 + next_random(9);
                else
                    row->place++;
            }
            meet &= is_right(n);
        }
    tap_ok(apart, "parts that touch");
    tap_ok(meet, "parts that may overlap: the first pair");
    memset(rows, 0, sizeof rows);
    empty = is_right(MOST);
    rows[7].count = 5; /* around the places of all others */
    tap_ok(empty && is_right(MOST), "parts without elements");
}

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(void)
{
    double start, all_pairs, own;
    int pair[2], found = 0, k;

    all_orders();
    lay_out(MOST);
    start = cpu_ms();
    found |= plain(MOST, pair);
    all_pairs = cpu_ms() - start;
    start = cpu_ms();
    for (k = 0; k < 3; k++)
        found |= sw_parts_meet(rows, MOST, sorted, pair);
    own = (cpu_ms() - start) / 3;
    tap_ok(!found && own < all_pairs / 4, "%d parts: %.2f ms, all pairs %.2f ms", MOST, own,
           all_pairs);
    return tap_done();
}
