/* Which calls libsymwin-nccl.so leaves to symwin (nccl/serve.c), by a table of this test's. */
#define SW_MEASURED "tests/nccl/rows.h"
#include "nccl/serve.c"

#include "tap.h"

static struct sw_setup setup;

const struct sw_setup *sw_setup(void)
{
    return &setup;
}

/* Bits of classes: of those that were measured, and of the smaller ones. */
enum { C8 = 1 << 3, C16 = 1 << 4, C32 = 1 << 5, SMALLER = C8 - 1 };

static int several_hosts, most_blocks;

static void sizes(const char *name, int ranks, int capability, enum sw_kind kind, uint64_t want)
{
    uint64_t got[SW_KINDS];

    sw_serve_sizes(ranks, capability, several_hosts, most_blocks, got);
    tap_ok(got[kind] == want, "%s: classes 0x%llx", name, (unsigned long long)got[kind]);
}

static void check_table(void)
{
    const uint64_t all = ~(uint64_t)0;

    sizes("quicker at both ends", 2, 90, SW_ALL_REDUCE, C8 | SMALLER);
    sizes("ranks that were measured", 4, 90, SW_ALL_REDUCE, C8 | C16 | C32 | SMALLER);
    sizes("more ranks: much quicker", 5, 90, SW_ALL_REDUCE, C32 | SMALLER);
    sizes("slower at the smallest size", 2, 90, SW_ALL_GATHER, C16 | C32);
    sizes("another GPU", 2, 100, SW_ALL_REDUCE, 0);
    sizes("fewer ranks than were measured", 4, 90, SW_BROADCAST, 0);
    sizes("what was not measured", 2, 90, SW_REDUCE, 0);
    sizes("sends that are always quicker", 2, 90, SW_SEND, all);
    sizes("their receives", 2, 90, SW_RECV, all);
    sizes("sends that are not", 4, 90, SW_SEND, 0);
    sizes("their receives", 4, 90, SW_RECV, 0);
    most_blocks = 1;
    sizes("one block", 4, 90, SW_ALL_REDUCE, C8 | C16 | C32 | SMALLER);
    sizes("one block: up to 4 KiB", 2, 90, SW_REDUCE_SCATTER, 0xfff);
    sizes("one block: its larger sizes", 2, 90, SW_SEND, 0);
    most_blocks = 0;
    several_hosts = 1;
    sizes("over several hosts nothing was measured", 2, 90, SW_ALL_REDUCE, 0);
    setup.serve[SW_ALL_REDUCE] = SW_SERVE_NONE;
    setup.serve[SW_REDUCE] = SW_SERVE_ALL;
    sizes("none", 2, 90, SW_ALL_REDUCE, 0);
    sizes("all, over several hosts", 1, 0, SW_REDUCE, all);
    most_blocks = 1;
    sizes("all, of one block", 1, 0, SW_REDUCE, all);
    most_blocks = 0;
    several_hosts = 0;
    sizes("all", 1, 0, SW_REDUCE, all);
    setup = (struct sw_setup){0};
}

static void check_classes(void)
{
    static const struct {
        enum sw_kind kind;
        size_t count;
        int want;
    } cases[] = {
        {SW_ALL_REDUCE, 0, 0},     {SW_ALL_REDUCE, 1, 2},
        {SW_ALL_REDUCE, 2, 3},     {SW_ALL_REDUCE, 3, 3},
        {SW_ALL_TO_ALL, 2, 5},     {SW_ALL_GATHER, 2, 5},
        {SW_GATHER, 2, 5},         {SW_SCATTER, 2, 5},
        {SW_REDUCE_SCATTER, 2, 5}, {SW_REDUCE, 2, 3},
        {SW_SEND, 2, 3},           {SW_RECV, 2, 3},
        {SW_BROADCAST, 2, 3},      {SW_BROADCAST, SIZE_MAX / 4, SW_CLASSES - 1},
    };
    const struct sw_comm comm = {.ranks = 4};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        TAP_EQ("the class of a call",
               sw_serve_class(&comm, cases[i].kind, cases[i].count, ncclInt32), cases[i].want);
}

static void check_fingerprint(void)
{
    const uint64_t plain = sw_serve_fingerprint();

    TAP_EQ("the same variables", sw_serve_fingerprint() == plain, 1);
    setup = (struct sw_setup){.serve[SW_RECV] = SW_SERVE_NONE};
    TAP_EQ("another SYMWIN_NCCL_SERVE", sw_serve_fingerprint() != plain, 1);
    setup = (struct sw_setup){.report = 1};
    TAP_EQ("SYMWIN_NCCL_REPORT decides nothing", sw_serve_fingerprint() == plain, 1);
}

static void check_any(void)
{
    for (int kind = 0; kind < SW_KINDS; kind++)
        setup.serve[kind] = SW_SERVE_NONE;
    TAP_EQ("nothing is symwin's", sw_serve_any(), 0);
    setup.serve[SW_RECV] = SW_SERVE_ALL;
    TAP_EQ("one kind may be", sw_serve_any(), 1);
    setup = (struct sw_setup){0};
}

static void check_times(void)
{
    TAP_EQ("symwin's time", sw_serve_time(4, SW_ALL_REDUCE, 4, SW_OURS) * 2, 3);
    TAP_EQ("NCCL's time", sw_serve_time(4, SW_ALL_REDUCE, 4, SW_NCCLS), 2);
    TAP_EQ("a receive's", sw_serve_time(4, SW_RECV, 5, SW_OURS), 3);
    TAP_EQ("of a size that was not measured", sw_serve_time(4, SW_ALL_REDUCE, 7, SW_OURS), 0);
    TAP_EQ("below the first size", sw_serve_time(4, SW_ALL_REDUCE, 2, SW_OURS), 0);
    TAP_EQ("of ranks that were not measured", sw_serve_time(5, SW_ALL_REDUCE, 4, SW_OURS), 0);
}

/* Groups of all-reduces and all-gathers of 8-byte integers, by the rows of two ranks: symwin takes
 * 1 us for 8, 16 and 64 bytes and 3 for 32, an all-gather of 16 to 64 takes it 1, and NCCL takes 2
 * for all. */
static void check_together(void)
{
    static const struct {
        const char *name;
        int reduces, gathers;     /* calls */
        size_t count;             /* of each */
        int ranks, settled, want; /* by a variable: 1: all-reduces, 2: all-gathers */
    } cases[] = {
        {"one call", 1, 0, 4, 2, 0, 1},
        {"in one launch, quicker together", 2, 0, 1, 2, 0, 1},
        {"in one launch, slower together", 4, 0, 1, 2, 0, 0},
        {"a variable says so", 4, 0, 1, 2, 1, 1},
        {"a variable says so of the last one", 4, 1, 1, 2, 2, 1},
        {"in one launch, more of them, quicker", 8, 0, 1, 2, 0, 1},
        {"more than a launch has, one by one", 17, 0, 1, 2, 0, 0},
        {"sixteen of a size that was not measured", 16, 0, 1, 2, 0, 1},
        {"two collectives, of which one is slower", 4, 2, 1, 2, 0, 0},
        {"too large for a launch, not measured", 2, 0, 16384, 2, 0, 0},
        {"ranks that were not measured, in one launch", 4, 0, 1, 3, 0, 1},
        {"ranks that were not measured, in several", 17, 0, 1, 3, 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct sw_comm comm = {.ranks = cases[i].ranks};
        struct sw_together t = {.count = 0};
        int k;

        setup.serve[SW_ALL_REDUCE] = cases[i].settled == 1 ? SW_SERVE_ALL : SW_SERVE_AUTO;
        setup.serve[SW_ALL_GATHER] = cases[i].settled == 2 ? SW_SERVE_ALL : SW_SERVE_AUTO;
        for (k = 0; k < cases[i].reduces; k++)
            sw_together_add(&t, &comm, SW_ALL_REDUCE, cases[i].count, ncclInt64);
        for (k = 0; k < cases[i].gathers; k++)
            sw_together_add(&t, &comm, SW_ALL_GATHER, cases[i].count, ncclInt64);
        TAP_EQ(cases[i].name, sw_together_is_ours(&t, &comm), cases[i].want);
    }
    setup = (struct sw_setup){0};
}

int main(void)
{
    check_table();
    check_classes();
    check_fingerprint();
    check_any();
    check_times();
    check_together();
    for (int type = 0; type < ncclNumTypes; type++)
        TAP_EQ("a type's bytes", sw_type_bytes(type) > 0, 1);
    TAP_EQ("no type", sw_type_bytes(-1) + sw_type_bytes(ncclNumTypes), 0);
    return tap_done();
}
