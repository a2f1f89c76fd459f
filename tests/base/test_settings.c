/* The library's environment variables: which values are valid, which are refused and how, and that
 * docs/environment.md says the same. If one rank has an invalid value, creating the communicator
 * fails on all ranks at once. */
#include "processes.h"

#include "src/base/base.h"

enum { RANKS = 3, AT_ONCE_S = 10 };

/* ---- values ---------------------------------------------------------------------------------- */

struct value {
    enum sw_setting which;
    const char *text; /* NULL: unset */
    uint64_t want;
};

static const struct value good[] = {
    {SW_SETTING_DRIVER, NULL, SW_CHOICE_AUTO},
    {SW_SETTING_DRIVER, "auto", SW_CHOICE_AUTO},
    {SW_SETTING_DRIVER, "cuda", SW_CHOICE_CUDA},
    {SW_SETTING_DRIVER, "emu", SW_CHOICE_EMU},
    {SW_SETTING_INFO, NULL, 0},
    {SW_SETTING_INFO, "1", 1},
    {SW_SETTING_DEBUG, NULL, 0},
    {SW_SETTING_DEBUG, "1", 1},
    {SW_SETTING_NVLS, NULL, 0},
    {SW_SETTING_NVLS, "0", 0},
    {SW_SETTING_NVLS, "1", 1},
    {SW_SETTING_GRAPH_REGISTER, NULL, 1},
    {SW_SETTING_GRAPH_REGISTER, "0", 0},
    {SW_SETTING_GRAPH_LAUNCH, NULL, 0},
    {SW_SETTING_GRAPH_LAUNCH, "1", 1},
    {SW_SETTING_TUNING, NULL, 0},
    {SW_SETTING_TUNING, "0", 1},
    {SW_SETTING_TUNING, "/tmp/table", 10},
    {SW_SETTING_TIMEOUT_MS, NULL, 30000},
    {SW_SETTING_TIMEOUT_MS, "1", 1},
    {SW_SETTING_TIMEOUT_MS, "007", 7},
    {SW_SETTING_TIMEOUT_MS, "1000000000", 1000000000},
    {SW_SETTING_BOOTSTRAP_TIMEOUT_MS, NULL, 60000},
    {SW_SETTING_BOOTSTRAP_TIMEOUT_MS, "5000", 5000},
    {SW_SETTING_HOST_ID, "a", 1},
    {SW_SETTING_MEM_POOL, NULL, 1},
    {SW_SETTING_MEM_POOL, "0", 0},
    {SW_SETTING_MEM_KEEP, NULL, SW_KEEP_DEFAULT},
    {SW_SETTING_MEM_KEEP, "0", 0},
    {SW_SETTING_MEM_KEEP, "1234", 1234},
    {SW_SETTING_MEM_KEEP, "3K", 3 << 10},
    {SW_SETTING_MEM_KEEP, "3M", 3 << 20},
    {SW_SETTING_MEM_KEEP, "3G", (uint64_t)3 << 30},
    {SW_SETTING_MEM_KEEP, "3T", (uint64_t)3 << 40},
    {SW_SETTING_MEM_KEEP, "9223372036854775807", INT64_MAX},
    {SW_SETTING_MEM_DEBUG, NULL, 0},
    {SW_SETTING_MEM_DEBUG, "1", 1},
    {SW_SETTING_EMU_DEVICES, NULL, 8},
    {SW_SETTING_EMU_DEVICES, "128", 128},
    {SW_SETTING_EMU_MEM, NULL, (uint64_t)8 << 30},
    {SW_SETTING_EMU_MEM, "2M", 2 << 20},
    {SW_SETTING_EMU_MEM, "64T", (uint64_t)1 << 46},
    {SW_SETTING_EMU_FABRIC, NULL, 1},
    {SW_SETTING_EMU_FABRIC, "2", 2},
    {SW_SETTING_EMU_MULTICAST, NULL, 1},
    {SW_SETTING_EMU_MULTICAST, "0", 0},
    {SW_SETTING_EMU_OLD, NULL, 0},
    {SW_SETTING_EMU_OLD, "128", 128},
    {SW_SETTING_EMU_STRANGERS, NULL, 0},
    {SW_SETTING_EMU_STRANGERS, "1", 1},
    {SW_SETTING_EMU_MULTICAST_UNIT, NULL, 2 << 20},
    {SW_SETTING_EMU_MULTICAST_UNIT, "1G", 1 << 30},
    {SW_SETTING_EMU_MULTICAST_RECOMMENDED, NULL, 512 << 20},
    {SW_SETTING_EMU_MULTICAST_RECOMMENDED, "2M", 2 << 20},
    {SW_SETTING_EMU_MULTICAST_SLOTS, NULL, 128},
    {SW_SETTING_EMU_MULTICAST_SLOTS, "0", 0},
    {SW_SETTING_EMU_MULTICAST_SLOTS, "1024", 1024},
    {SW_SETTING_EMU_MULTICAST_ALONE, NULL, 0},
    {SW_SETTING_EMU_MULTICAST_ALONE, "1", 1},
    {SW_SETTING_EMU_MULTICAST_FAULT, "add:401", 7},
    {SW_SETTING_EMU_MULTICAST_FAULT, "import:101:0", 12},
    {SW_SETTING_EMU_MULTICAST_FAULT, "bind:0:-1:-1:-1", 15},
    {SW_SETTING_EMU_MULTICAST_FAULT, "bind:802:127:1:7000", 19},
    {SW_SETTING_EMU_ALIAS, NULL, 0},
    {SW_SETTING_EMU_ALIAS, "1", 1},
    {SW_SETTING_EMU_MACHINE, NULL, 0},
    {SW_SETTING_EMU_MACHINE, "4194303", 4194303},
};

static const struct {
    enum sw_setting which;
    const char *texts[11]; /* besides the empty string */
    const char *allowed;
} bad[SW_SETTINGS] = {
    [SW_SETTING_DRIVER] = {SW_SETTING_DRIVER, {"0", "CUDA", "emulated"}, "auto, cuda or emu"},
    [SW_SETTING_INFO] = {SW_SETTING_INFO, {"yes", "2"}, "0 or 1"},
    [SW_SETTING_DEBUG] = {SW_SETTING_DEBUG, {"yes", "-1"}, "0 or 1"},
    [SW_SETTING_NVLS] = {SW_SETTING_NVLS, {"yes", "on", "2", "1 ", "01x"}, "0 or 1"},
    [SW_SETTING_GRAPH_REGISTER] = {SW_SETTING_GRAPH_REGISTER, {"no", "off", "00x"}, "0 or 1"},
    [SW_SETTING_GRAPH_LAUNCH] = {SW_SETTING_GRAPH_LAUNCH, {"yes", "true"}, "0 or 1"},
    [SW_SETTING_TUNING] = {SW_SETTING_TUNING, {NULL}, "the path of a file, or 0"},
    [SW_SETTING_TIMEOUT_MS] = {SW_SETTING_TIMEOUT_MS,
                               {"abc", "-5", "0", "1000000001", "18446744073709551617", "1s", " 1",
                                "+1", "1.5", "5K"},
                               "a number of milliseconds from 1 to 1000000000"},
    [SW_SETTING_BOOTSTRAP_TIMEOUT_MS] = {SW_SETTING_BOOTSTRAP_TIMEOUT_MS,
                                         {"abc", "-5", "0", "99999999999"},
                                         "a number of milliseconds from 1 to 1000000000"},
    [SW_SETTING_HOST_ID] = {SW_SETTING_HOST_ID, {NULL}, "a text of 1 to 4095 bytes"},
    [SW_SETTING_MEM_POOL] = {SW_SETTING_MEM_POOL, {"no"}, "0 or 1"},
    [SW_SETTING_MEM_KEEP] = {SW_SETTING_MEM_KEEP,
                             {"much", "-1", "12 M", "12MB", "K", "9223372036854775808", "8388608T",
                              "16777217T", "99999999999G", "12k", "1P"},
                             "a number of bytes, 0 or more, K, M, G or T may follow it"},
    [SW_SETTING_MEM_DEBUG] = {SW_SETTING_MEM_DEBUG, {"2"}, "0 or 1"},
    [SW_SETTING_EMU_DEVICES] = {SW_SETTING_EMU_DEVICES,
                                {"0", "129", "many"},
                                "a number from 1 to 128"},
    [SW_SETTING_EMU_MEM] = {SW_SETTING_EMU_MEM,
                            {"1K", "65T"},
                            "a number of bytes from 2M to 64T, K, M, G or T may follow it"},
    [SW_SETTING_EMU_FABRIC] = {SW_SETTING_EMU_FABRIC, {"3"}, "a number from 0 to 2"},
    [SW_SETTING_EMU_MULTICAST] = {SW_SETTING_EMU_MULTICAST, {"2"}, "0 or 1"},
    [SW_SETTING_EMU_OLD] = {SW_SETTING_EMU_OLD, {"129"}, "a number from 0 to 128"},
    [SW_SETTING_EMU_STRANGERS] = {SW_SETTING_EMU_STRANGERS, {"2"}, "0 or 1"},
    [SW_SETTING_EMU_MULTICAST_UNIT] =
        {SW_SETTING_EMU_MULTICAST_UNIT,
         {"1M", "2G", "3M", "2097153"},
         "a multiple of 2M from 2M to 1G, K, M, G or T may follow it"},
    [SW_SETTING_EMU_MULTICAST_RECOMMENDED] =
        {SW_SETTING_EMU_MULTICAST_RECOMMENDED,
         {"1M", "2G", "5M"},
         "a multiple of 2M from 2M to 1G, K, M, G or T may follow it"},
    [SW_SETTING_EMU_MULTICAST_SLOTS] = {SW_SETTING_EMU_MULTICAST_SLOTS,
                                        {"-1", "1025"},
                                        "a number from 0 to 1024"},
    [SW_SETTING_EMU_MULTICAST_ALONE] = {SW_SETTING_EMU_MULTICAST_ALONE, {"2"}, "0 or 1"},
    [SW_SETTING_EMU_MULTICAST_FAULT] =
        {SW_SETTING_EMU_MULTICAST_FAULT,
         {"bind", "bind:", "map:401", "bind:1000", "bind:401:128", "bind:401:1:0", "bind:0:1:1",
          "bind:401:1:1:-2", "bind:401:1:1:5:6", "bind:401x"},
         "CALL:ANSWER[:DEVICE[:TIMES[:MS]]], a CALL of add, bind or import"},
    [SW_SETTING_EMU_ALIAS] = {SW_SETTING_EMU_ALIAS, {"2"}, "0 or 1"},
    [SW_SETTING_EMU_MACHINE] = {SW_SETTING_EMU_MACHINE,
                                {"4194304", "mine"},
                                "a number from 0 to 4194303"},
};

enum { ALL_READERS = 7 };

static void set(const char *name, const char *text)
{
    if (text != NULL)
        setenv(name, text, 1);
    else
        unsetenv(name);
}

static void refuses(enum sw_setting which, const char *text)
{
    const char *name = sw_setting_name(which);
    const uint64_t otherwise = sw_setting(which);
    char want[256];

    set(name, text);
    snprintf(want, sizeof want, "a_call: %s is \"%s\": set it to %s, or unset it", name, text,
             bad[which].allowed);
    TAP_EQ(want, sw_settings_check("a_call", ALL_READERS), SYMWIN_INVALID);
    tap_ok(strcmp(symwin_last_error(), want) == 0, "says: %s", symwin_last_error());
    TAP_EQ("it counts as not set", sw_setting(which), otherwise);
    set(name, NULL);
}

static void values(void)
{
    size_t i, j;

    for (i = 0; i < SW_SETTINGS; i++)
        set(sw_setting_name((enum sw_setting)i), NULL);
    TAP_EQ("nothing is set", sw_settings_check(NULL, ALL_READERS), SYMWIN_OK);
    for (i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *name = sw_setting_name(good[i].which);

        set(name, good[i].text);
        tap_ok(sw_settings_check(NULL, ALL_READERS) == SYMWIN_OK &&
                   sw_setting(good[i].which) == good[i].want,
               "%s=%s is %llu (%llu)", name, good[i].text != NULL ? good[i].text : "(not set)",
               (unsigned long long)sw_setting(good[i].which), (unsigned long long)good[i].want);
        set(name, NULL);
    }
    setenv("SYMWIN_EMU_DEVICES", "many", 1);
    TAP_EQ("what others read", sw_settings_check(NULL, ALL_READERS & ~SW_READER_EMULATED),
           SYMWIN_OK);
    for (i = 0; i < SW_SETTINGS; i++) {
        refuses((enum sw_setting)i, "");
        for (j = 0; j < sizeof bad[i].texts / sizeof bad[i].texts[0] && bad[i].texts[j] != NULL;
             j++)
            refuses((enum sw_setting)i, bad[i].texts[j]);
    }
}

/* ---- the documentation ----------------------------------------------------------------------- */

static void documented(void)
{
    static char page[1 << 16];
    FILE *file = fopen("docs/environment.md", "re");
    const size_t bytes = file != NULL ? fread(page, 1, sizeof page - 1, file) : 0;
    int i;

    tap_ok(bytes > 0, "docs/environment.md can be read");
    if (file != NULL)
        fclose(file);
    for (i = 0; i < SW_SETTINGS; i++) {
        char allowed[128], row[256];

        sw_setting_allowed((enum sw_setting)i, allowed, sizeof allowed);
        snprintf(row, sizeof row, "\n| `%s` | %s | ", sw_setting_name((enum sw_setting)i), allowed);
        tap_ok(strstr(page, row) != NULL, "docs/environment.md has: %s", row + 1);
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Settings of the last rank only. The others name that rank, and nobody waits for its timeout. */
static const char *const of_one_rank[][2] = {
    {"SYMWIN_TIMEOUT_MS", "abc"},
    {"SYMWIN_TIMEOUT_MS", "-5"},
    {"SYMWIN_TIMEOUT_MS", ""},
    {"SYMWIN_TIMEOUT_MS", "99999999999999999999"},
    {"SYMWIN_BOOTSTRAP_TIMEOUT_MS", "0"},
    {"SYMWIN_GRAPH_REGISTER", "no"},
    {"SYMWIN_GRAPH_LAUNCH", "yes"},
    {"SYMWIN_NVLS", "yes"},
    {"SYMWIN_TUNING", ""},
    {"SYMWIN_DRIVER", "opencl"},
    {"SYMWIN_INFO", "yes"},
    {"SYMWIN_DEBUG", "yes"},
    {"SYMWIN_EMU_DEVICES", "many"},
    {"SYMWIN_HOST_ID", ""},
    {"SYMWIN_MEM_POOL", "no"},
    {"SYMWIN_MEM_KEEP", "12 M"},
    {"SYMWIN_MEM_DEBUG", "2"},
};

static void member(struct processes *p, int rank)
{
    const char *const *variable = p->arg;
    const int64_t begin = processes_now_us();
    char words[256];
    symwin_comm *comm = NULL;
    symwin_status status;

    if (rank == RANKS - 1)
        setenv(variable[0], variable[1], 1);
    status = symwin_comm_create(processes_id(p, rank), RANKS, rank, rank, NULL, &comm);
    snprintf(words, sizeof words, "symwin_comm_create: |%s%s is \"%s\": set it to ",
             rank < RANKS - 1 ? "rank 2: |" : "", variable[0], variable[1]);
    if (status != SYMWIN_INVALID || !host_error_has(words) || comm != NULL ||
        processes_now_us() - begin > AT_ONCE_S * INT64_C(1000000)) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, symwin_status_name(status), symwin_last_error());
        tap_failures++;
    }
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof of_one_rank / sizeof of_one_rank[0]; i++) {
        char name[128];

        snprintf(name, sizeof name, "%s=%s on one rank of %d", of_one_rank[i][0], of_one_rank[i][1],
                 RANKS);
        setenv("SYMWIN_DRIVER", "emu", 1);
        processes_run(name, RANKS, member, (void *)(uintptr_t)of_one_rank[i]);
    }
    values();
    documented();
    return tap_done();
}
