/* Tables of measured choices: every way in which a file can be wrong, which row applies to a
 * message, and when two tables count as equal. */
#include <limits.h>
#include <sys/stat.h>

#include "harness.h"
#include "src/collective/select.h"
#include "src/collective/tables.h"

#define CALL "symwin_comm_create"
#define NAMES "gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
#define NAMED "collective," NAMES
#define ROW "A GPU,4,2,float,0,4096,oneshot_sentinel,8,96\n"

static symwin_status parse(const char *text, struct sw_tuning **out)
{
    return sw_tuning_parse(CALL, "a.csv", text, strlen(text), "A GPU", 4, out);
}

/* ---- what is refused ---- */

static const struct {
    const char *name, *text, *words;
} bads[] = {
    {"nothing", "", "line 1 does not name the columns collective,gpu,nranks,width,kind"},
    {"comments alone", "# one\n\n# two\n", "line 4 does not name the columns"},
    {"no names", ROW, "line 1 does not name the columns"},
    {"other names", "gpu,ranks\n", "line 1 does not name the columns"},
    {"names with more", "gpu,nranks,width,kind,registered,bytes,algo,blocks,threads,us\n",
     "line 1 does not name the columns"},
    {"other names again", NAMES "gpu,nranks,width,kind,registered,bytes,algo,blocks,thread\n",
     "line 2: nranks is \"nranks\" and must be 1 to 131072"},
    {"too few columns", "# a\n" NAMES "A GPU,4,2,float,0,4096,oneshot,8\n",
     "line 3 has fewer columns than are named"},
    {"too many columns", NAMES "A GPU,4,2,float,0,4096,oneshot,8,96,\n",
     "line 2 has more columns than are named"},
    {"no GPU", NAMES ",4,2,float,0,4096,oneshot,8,96\n", "line 2: gpu is \"\""},
    {"no ranks", NAMES "A GPU,0,2,float,0,4096,oneshot,8,96\n", "line 2: nranks is \"0\""},
    {"too many ranks", NAMES "A GPU,131073,2,float,0,4096,oneshot,8,96\n", "nranks is \"131073\""},
    {"a number with more", NAMES "A GPU,4 ,2,float,0,4096,oneshot,8,96\n", "nranks is \"4 \""},
    {"a width of 3", NAMES "A GPU,4,3,float,0,4096,oneshot,8,96\n",
     "line 2: width is \"3\" and must be 1, 2, 4 or 8"},
    {"a width of 16", NAMES "A GPU,4,16,float,0,4096,oneshot,8,96\n", "width is \"16\""},
    {"another kind", NAMES "A GPU,4,2,floats,0,4096,oneshot,8,96\n",
     "line 2: kind is \"floats\" and must be float or integer"},
    {"registered twice", NAMES "A GPU,4,2,float,2,4096,oneshot,8,96\n",
     "line 2: registered is \"2\" and must be 0 or 1"},
    {"no bytes", NAMES "A GPU,4,2,float,0,0,oneshot,8,96\n", "line 2: bytes is \"0\""},
    {"bytes below zero", NAMES "A GPU,4,2,float,0,-1,oneshot,8,96\n", "bytes is \"-1\""},
    {"more bytes than there are", NAMES "A GPU,4,2,float,0,9999999999999999999,oneshot,8,96\n",
     "bytes is \"9999999999999999999\""},
    {"another algorithm", NAMES "A GPU,4,2,float,0,4096,ring,8,96\n",
     "line 2: algo is \"ring\" and must be an algorithm of symwin.h for the collective in one "
     "domain; correct it|a.csv"},
    {"no choice at all", NAMES "A GPU,4,2,float,0,4096,auto,8,96\n", "algo is \"auto\""},
    {"windows without windows", NAMES "A GPU,4,2,float,0,4096,twoshot,8,96\n",
     "line 2: registered is \"0\" and must be 1 for an algorithm over windows"},
    {"an algorithm over windows without them, in two digits",
     NAMES "A GPU,4,2,float,00,4096,twoshot,8,96\n",
     "line 2: registered is \"00\" and must be 1 for an algorithm over windows"},
    {"too many blocks", NAMES "A GPU,4,2,float,0,4096,oneshot,65537,96\n", "blocks is \"65537\""},
    {"too many threads", NAMES "A GPU,4,2,float,0,4096,oneshot,8,1025\n", "threads is \"1025\""},
    {"a carriage return", NAMES "A GPU,4,2,float,0,4096,oneshot,8,96\r\n", "threads is \"96?\""},
    {"the same size twice", NAMES ROW ROW,
     "line 3 has no more bytes than the row of its kind before it"},
    {"sizes that fall", NAMES ROW "A GPU,4,2,float,0,2048,oneshot,8,96\n", "line 3 has no more"},
    {"sizes that fall, apart",
     NAMES ROW "A GPU,4,4,float,0,64,oneshot,8,96\nA GPU,4,2,float,0,9,oneshot,8,96\n",
     "line 4 has no more"},
    {"no such collective", NAMED "scan,A GPU,4,2,float,0,4096,oneshot,8,96\n",
     "line 2: collective is \"scan\" and must be a collective of symwin.h"},
    {"an algorithm that the collective does not have",
     NAMED "allgather,A GPU,4,2,float,1,4096,twoshot,8,96\n",
     "line 2: algo is \"twoshot\" and must be an algorithm of symwin.h for the collective"},
    {"parts that go straight without windows", NAMED "alltoallv,A GPU,4,2,float,0,64,put,8,96\n",
     "line 2: registered is \"0\" and must be 1 for an algorithm over windows"},
    {"a put of equal parts to be added", NAMED "reduce_scatter,A GPU,4,2,float,1,64,put,8,96\n",
     "line 2: algo is \"put\" and must be an algorithm of symwin.h for the collective"},
    {"a way between domains in one domain", NAMES "A GPU,4,2,float,0,4096,nccl,8,96\n",
     "line 2: algo is \"nccl\" and must be an algorithm of symwin.h for the collective in one "
     "domain"},
    {"an algorithm of one domain in several",
     NAMES "A GPU in 2 domains,4,2,float,0,4096,oneshot_sentinel,8,96\n",
     "line 2: algo is \"oneshot_sentinel\" and must be a way between domains that the collective "
     "has"},
    {"a way that the collective does not have",
     NAMED "allgather,A GPU in 2 domains,4,2,float,0,4096,oneshot,8,96\n",
     "line 2: algo is \"oneshot\" and must be a way between domains"},
    {"windows between domains", NAMES "A GPU in 2 domains,4,2,float,1,4096,rails,8,0\n",
     "line 2: registered is \"1\" and must be 0 for several domains"},
    {"no collective, where there is a column for it", NAMED ROW,
     "line 2 has fewer columns than are named"},
    {"a row for others that is wrong", NAMES ROW "B GPU,2,2,float,0,4096,ring,8,96\n",
     "line 3: algo is \"ring\""},
};

static void refuses(void)
{
    struct sw_tuning *const untouched = (struct sw_tuning *)(uintptr_t)8;
    char text[400];
    size_t i;

    for (i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct sw_tuning *t = untouched;
        const symwin_status status = parse(bads[i].text, &t);

        host_expect(bads[i].name, status, SYMWIN_INVALID, bads[i].words);
        tap_ok(host_error_has(CALL ": SYMWIN_TUNING, line |a.csv") && t == untouched,
               "%s: names call and file, gives nothing", bads[i].name);
    }
    memset(text, 'x', sizeof text);
    memcpy(text, NAMES, strlen(NAMES));
    text[sizeof text - 1] = '\0';
    {
        struct sw_tuning *t = NULL;

        host_expect("a long line", parse(text, &t), SYMWIN_INVALID,
                    "line 2 has more than 255 characters");
        host_expect(
            "a zero",
            sw_tuning_parse(CALL, "a.csv", NAMES "A\0B\n", sizeof NAMES + 3, "A GPU", 4, &t),
            SYMWIN_INVALID, "line 2 is no text");
    }
}

/* ---- which row ---- */

static void finds(const struct sw_tuning *t, symwin_type type, int registered, size_t bytes,
                  symwin_algo algo, unsigned blocks)
{
    const struct sw_tuning_row *row = sw_tuning_find(t, SYMWIN_ALLREDUCE, type, registered, bytes);
    char name[80];

    snprintf(name, sizeof name, "%s, %s, %zu bytes: %s", symwin_type_name(type),
             registered ? "windows" : "plain", bytes, symwin_algo_name(algo));
    if (algo == SYMWIN_ALGO_AUTO)
        tap_ok(row == NULL, "%s: no row", name);
    else
        tap_ok(row != NULL && row->algo == algo && row->blocks == blocks, "%s, %u blocks", name,
               blocks);
}

static void looks_up(void)
{
    static const char text[] = "# made by hand\n" NAMES
                               "A GPU,4,2,float,0,64,oneshot_sentinel,1,96\n"
                               "A GPU,4,2,float,0,4096,oneshot_sentinel,8,96\n"
                               "\n# larger\n" NAMES "A GPU,4,8,float,0,4096,twoshot_push,80,0\n"
                               "A GPU,4,2,float,0,1048576,twoshot_push,0,0\n"
                               "A GPU,4,2,float,1,4096,twoshot,2,544\n"
                               "A GPU,2,2,float,0,4096,oneshot,99,96\n"
                               "B GPU,4,2,float,0,4096,oneshot,99,96\n"
                               "A GPU,4,4,integer,0,9223372036854775807,oneshot,40,0";
    struct sw_tuning *t = NULL;
    const struct sw_tuning_row *row;

    host_expect("a table", parse(text, &t), SYMWIN_OK, "");
    finds(t, SYMWIN_BF16, 0, 1, SYMWIN_ALGO_ONESHOT_SENTINEL, 1);
    finds(t, SYMWIN_BF16, 0, 64, SYMWIN_ALGO_ONESHOT_SENTINEL, 1);
    finds(t, SYMWIN_F16, 0, 65, SYMWIN_ALGO_ONESHOT_SENTINEL, 8);
    finds(t, SYMWIN_F16, 0, 4096, SYMWIN_ALGO_ONESHOT_SENTINEL, 8);
    finds(t, SYMWIN_F16, 0, 4097, SYMWIN_ALGO_TWOSHOT_PUSH, 0);
    finds(t, SYMWIN_F16, 0, 1048577, SYMWIN_ALGO_TWOSHOT_PUSH, 0);
    finds(t, SYMWIN_F16, 0, SIZE_MAX, SYMWIN_ALGO_TWOSHOT_PUSH, 0);
    finds(t, SYMWIN_BF16, 1, 5, SYMWIN_ALGO_TWOSHOT, 2);
    finds(t, SYMWIN_F8E4M3, 0, 64, SYMWIN_ALGO_ONESHOT_SENTINEL, 1); /* the next larger width */
    finds(t, SYMWIN_F32, 0, 64, SYMWIN_ALGO_TWOSHOT_PUSH, 80);
    finds(t, SYMWIN_F64, 0, 64, SYMWIN_ALGO_TWOSHOT_PUSH, 80);
    finds(t, SYMWIN_F64, 1, 64, SYMWIN_ALGO_TWOSHOT, 2); /* the next smaller */
    finds(t, SYMWIN_I32, 0, 64, SYMWIN_ALGO_ONESHOT, 40);
    finds(t, SYMWIN_U8, 0, 64, SYMWIN_ALGO_ONESHOT, 40);
    finds(t, SYMWIN_I64, 0, SIZE_MAX, SYMWIN_ALGO_ONESHOT, 40);
    finds(t, SYMWIN_I64, 1, 64, SYMWIN_ALGO_AUTO, 0);
    row = sw_tuning_find(t, SYMWIN_ALLREDUCE, SYMWIN_BF16, 1, 4096);
    tap_ok(row != NULL && row->threads == 544 && row->bytes == 4096, "a row has threads and bytes");
    sw_tuning_close(t);

    t = (struct sw_tuning *)(uintptr_t)8;
    host_expect("a table for others",
                sw_tuning_parse(CALL, "a.csv", text, strlen(text), "C GPU", 4, &t), SYMWIN_OK, "");
    tap_ok(t == NULL, "is none");
    finds(t, SYMWIN_BF16, 0, 64, SYMWIN_ALGO_AUTO, 0);
}

/* Rows of one collective do not apply to another. */
static void collectives(void)
{
    static const char text[] = NAMED "allgather,A GPU,4,4,float,0,512,oneshot,3,96\n"
                                     "allreduce,A GPU,4,4,float,0,64,twoshot_push,5,128\n" NAMES
                                     "A GPU,4,4,float,0,128,oneshot,7,128\n" NAMED
                                     "allgather,A GPU,4,4,float,0,1024,oneshot,9,96\n";
    const struct sw_tuning_row *row;
    struct sw_tuning *t = NULL;

    host_must(parse(text, &t), "a table of two collectives");
    finds(t, SYMWIN_F32, 0, 64, SYMWIN_ALGO_TWOSHOT_PUSH, 5);
    finds(t, SYMWIN_BF16, 0, 65, SYMWIN_ALGO_ONESHOT, 7);
    finds(t, SYMWIN_F32, 0, 4096, SYMWIN_ALGO_ONESHOT, 7);
    finds(t, SYMWIN_F32, 1, 64, SYMWIN_ALGO_AUTO, 0);
    row = sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_F64, 0, 512);
    tap_ok(row != NULL && row->blocks == 3, "an all-gather's row");
    row = sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_F32, 0, 513);
    tap_ok(row != NULL && row->blocks == 9, "and the next one");
    tap_ok(sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_F32, 1, 512) == NULL, "or none");
    sw_tuning_close(t);
    t = NULL;
    host_must(parse(NAMED "allgather,A GPU,4,4,float,0,512,oneshot,3,96\n", &t), "a table");
    finds(t, SYMWIN_F32, 0, 64, SYMWIN_ALGO_AUTO, 0);
    sw_tuning_close(t);
    t = NULL;
    host_must(parse(NAMED "allreduce,A GPU,4,8,float,0,512,oneshot,3,96\n"
                          "allreduce,A GPU,4,8,integer,1,512,oneshot,3,96\n",
                    &t),
              "a table");
    tap_ok(sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_F8E4M3, 0, 1) == NULL &&
               sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_U8, 1, 1) == NULL &&
               sw_tuning_find(t, SYMWIN_ALLGATHER, SYMWIN_F64, 0, 1) == NULL,
           "gaps are filled within a collective");
    sw_tuning_close(t);
}

static void goes_straight(const struct sw_tuning *t, symwin_collective collective, symwin_type type,
                          int says, uint64_t from)
{
    uint64_t bytes = 7;
    const int said = sw_tuning_straight(t, collective, type, &bytes);

    tap_ok(said == says && bytes == (says ? from : 7),
           "%s, %s: parts of more than %llu go straight", symwin_collective_name(collective),
           symwin_type_name(type), (unsigned long long)bytes);
}

/* Which parts of unequal lengths go straight into windows. */
static void straight(void)
{
    static const char text[] = NAMED "alltoallv,A GPU,4,4,float,0,512,oneshot,3,96\n"
                                     "alltoallv,A GPU,4,4,float,1,64,put,3,96\n"
                                     "alltoallv,A GPU,4,4,float,1,512,oneshot,3,96\n"
                                     "alltoallv,A GPU,4,4,float,1,1024,put,4,96\n"
                                     "alltoallv,A GPU,4,4,float,1,2048,put,5,96\n"
                                     "alltoallv,A GPU,4,1,integer,1,64,put,5,96\n"
                                     "allgatherv,A GPU,4,4,float,1,64,put,5,96\n"
                                     "allgatherv,A GPU,4,4,float,1,128,oneshot,5,96\n"
                                     "allgatherv,A GPU,4,4,integer,0,128,oneshot,5,96\n"
                                     "reduce_scatterv,A GPU,4,4,integer,1,256,oneshot,5,96\n"
                                     "reduce_scatterv,A GPU,4,4,integer,1,512,put,5,96\n";
    const struct sw_tuning_row *row;
    struct sw_tuning *t = NULL;

    host_must(parse(text, &t), "a table of parts");
    goes_straight(t, SYMWIN_ALLTOALLV, SYMWIN_F32, 1, 512);
    goes_straight(t, SYMWIN_ALLTOALLV, SYMWIN_BF16, 1, 512);
    goes_straight(t, SYMWIN_ALLTOALLV, SYMWIN_U8, 1, 0);
    goes_straight(t, SYMWIN_ALLGATHERV, SYMWIN_F32, 1, UINT64_MAX);
    goes_straight(t, SYMWIN_ALLGATHERV, SYMWIN_I32, 0, 0);
    goes_straight(t, SYMWIN_REDUCE_SCATTERV, SYMWIN_F32, 0, 0);
    goes_straight(t, SYMWIN_REDUCE_SCATTERV, SYMWIN_I32, 1, 256);
    goes_straight(NULL, SYMWIN_ALLTOALLV, SYMWIN_F32, 0, 0);
    row = sw_tuning_find(t, SYMWIN_ALLTOALLV, SYMWIN_F32, 1, 1025);
    tap_ok(row != NULL && row->blocks == 5 && row->algo == SYMWIN_ALGO_PUT, "and their grid");
    sw_tuning_close(t);
}

/* ---- which are the same ---- */

static uint64_t hash(const char *text)
{
    struct sw_tuning *t = NULL;
    uint64_t value;

    host_must(parse(text, &t), "a table");
    value = sw_tuning_hash(t);
    sw_tuning_close(t);
    return value;
}

static void compares(void)
{
    static const char *const others[] = {
        NAMES "A GPU,4,4,float,0,4096,oneshot_sentinel,8,96\n",
        NAMES "A GPU,4,2,integer,0,4096,oneshot_sentinel,8,96\n",
        NAMES "A GPU,4,2,float,1,4096,oneshot_sentinel,8,96\n",
        NAMES "A GPU,4,2,float,0,4097,oneshot_sentinel,8,96\n",
        NAMES "A GPU,4,2,float,0,4096,oneshot,8,96\n",
        NAMES "A GPU,4,2,float,0,4096,oneshot_sentinel,9,96\n",
        NAMES "A GPU,4,2,float,0,4096,oneshot_sentinel,8,97\n",
        NAMES ROW "A GPU,4,2,float,0,4097,oneshot_sentinel,8,96\n",
    };
    const uint64_t first = hash(NAMES ROW);
    size_t i;

    tap_ok(first != 0 && sw_tuning_hash(NULL) == 0, "no table has the hash 0");
    tap_ok(hash("# a comment\n" NAMES ROW "B GPU,4,2,float,0,9,oneshot,1,1\n") == first,
           "comments and rows for others do not count");
    tap_ok(hash(NAMED "allreduce," ROW) == first && hash(NAMED NAMES ROW) == first &&
               hash(NAMES NAMED "allreduce," ROW) == first,
           "rows without a collective are about all-reduces, in one file with others too");
    tap_ok(hash(NAMED "allgather,A GPU,4,2,float,0,4096,oneshot,8,96\n") !=
               hash(NAMED "allreduce,A GPU,4,2,float,0,4096,oneshot,8,96\n"),
           "the collective counts");
    for (i = 0; i < sizeof others / sizeof others[0]; i++)
        tap_ok(hash(others[i]) != first, "another row counts: %zu", i);
    tap_ok(hash(NAMES "A GPU,4,4,float,0,9,oneshot,1,1\n" ROW) ==
               hash(NAMES ROW "A GPU,4,4,float,0,9,oneshot,1,1\n"),
           "the order of the keys does not");
}

/* ---- among ranks ---- */

/* Runs sw_tuning_agree() on the ballots of three ranks. */
static symwin_status agree(const uint64_t gpus[3], const uint64_t rows[3], int *kept)
{
    struct sw_ballot ballots[3] = {{0}};
    symwin_comm comm = {.nranks = 3, .ballots = ballots};
    symwin_status status;
    int r;

    for (r = 0; r < 3; r++) {
        ballots[r].values[4] = gpus[r];
        ballots[r].values[5] = rows[r];
    }
    host_must(parse(NAMES ROW, &comm.tuning), "a table");
    status = sw_tuning_agree(&comm, CALL, 4);
    *kept = comm.tuning != NULL;
    sw_tuning_close(comm.tuning);
    return status;
}

static void agrees(void)
{
    int kept = 0;

    host_expect("the same", agree((uint64_t[]){7, 7, 7}, (uint64_t[]){1, 1, 1}, &kept), SYMWIN_OK,
                "");
    tap_ok(kept, "the table stays");
    host_expect("other rows", agree((uint64_t[]){7, 7, 7}, (uint64_t[]){1, 1, 2}, &kept),
                SYMWIN_MISMATCH,
                CALL ": the tables of choices differ: rank 0 has 0000000000000001, rank 2 has "
                     "0000000000000002");
    host_expect("another GPU", agree((uint64_t[]){7, 7, 8}, (uint64_t[]){1, 1, 2}, &kept),
                SYMWIN_OK, "");
    tap_ok(!kept, "no table is used");
    host_expect("another GPU with the same rows",
                agree((uint64_t[]){7, 8, 7}, (uint64_t[]){1, 1, 1}, &kept), SYMWIN_OK, "");
    tap_ok(!kept, "nor there");
}

/* ---- which file ---- */

static char folder[64];

static const char *file(const char *name, const char *text, size_t bytes)
{
    static char path[128];
    FILE *to;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    to = fopen(path, "w");
    if (to == NULL || fwrite(text, 1, bytes, to) != bytes || fclose(to) != 0)
        abort();
    return path;
}

static symwin_status open_named(const char *path, struct sw_tuning **out)
{
    setenv("SYMWIN_TUNING", path, 1);
    return sw_tuning_open(CALL, "A GPU", 4, out);
}

static void opens(void)
{
    char *large = malloc(2 << 20);
    struct sw_tuning *t = NULL;
    char pipe[128];
    size_t i;

    host_expect("a file", open_named(file("a", NAMES ROW, strlen(NAMES ROW)), &t), SYMWIN_OK, "");
    finds(t, SYMWIN_BF16, 0, 64, SYMWIN_ALGO_ONESHOT_SENTINEL, 8);
    sw_tuning_close(t);
    host_expect("0", open_named("0", &t), SYMWIN_OK, "");
    tap_ok(t == NULL, "is no table");
    host_expect("nothing", open_named("", &t), SYMWIN_OK, "");
    tap_ok(t == NULL, "is none of the library's own, which are for other GPUs");
    host_expect("no file", open_named("/nowhere/a.csv", &t), SYMWIN_INVALID,
                CALL ": SYMWIN_TUNING cannot be read: No such file|unset it: /nowhere/a.csv");
    host_expect("a folder", open_named(folder, &t), SYMWIN_INVALID, "it is no regular file");
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    if (mkfifo(pipe, 0600) != 0)
        abort();
    host_expect("a pipe", open_named(pipe, &t), SYMWIN_INVALID, "it is no regular file");
    host_expect("a wrong line", open_named(file("b", NAMES "x\n", strlen(NAMES) + 2), &t),
                SYMWIN_INVALID, "line 2 has fewer columns than are named|/b");
    memset(large, '\n', 2 << 20);
    memcpy(large, NAMES ROW, strlen(NAMES ROW));
    host_expect("1 MiB", open_named(file("c", large, 1 << 20), &t), SYMWIN_OK, "");
    sw_tuning_close(t);
    host_expect("a byte more", open_named(file("d", large, (1 << 20) + 1), &t), SYMWIN_INVALID,
                "it has more than 1 MiB");
    free(large);
    for (i = 0; i < sw_table_count; i++) {
        t = NULL;
        host_expect(sw_tables[i].name,
                    sw_tuning_parse(CALL, sw_tables[i].name, sw_tables[i].data, sw_tables[i].bytes,
                                    "A GPU", 4, &t),
                    SYMWIN_OK, "");
        sw_tuning_close(t);
    }
    unsetenv("SYMWIN_TUNING");
}

/* ---- communicators ---- */

static void create(struct harness_team *team, int rank, void *arg)
{
    const struct {
        symwin_status want;
        const char *words;
    } *expect = arg;
    symwin_comm *comm = NULL;
    char name[40];

    snprintf(name, sizeof name, "rank %d", rank);
    host_expect(name, harness_comm(team, rank, &comm), expect->want, expect->words);
    symwin_comm_destroy(comm);
}

static void creates(void)
{
    struct {
        symwin_status want;
        const char *words;
    } expect = {SYMWIN_OK, ""};
    struct harness_leaks before;
    static const char good[] = NAMES "symwin emulated GPU,3,4,float,0,4096,oneshot,1,32\n";

    harness_start();
    before = harness_leaks_now();
    setenv("SYMWIN_TUNING", file("good", good, strlen(good)), 1);
    harness_run(3, create, &expect);
    setenv("SYMWIN_TUNING", file("bad", "?\n", 2), 1);
    expect.want = SYMWIN_INVALID;
    expect.words = CALL ": rank 0: SYMWIN_TUNING, line 1 does not name|/bad";
    harness_run(3, create, &expect);
    setenv("SYMWIN_TUNING", "/nowhere", 1);
    expect.words = CALL ": rank 0: SYMWIN_TUNING cannot be read|/nowhere";
    harness_run(3, create, &expect);
    unsetenv("SYMWIN_TUNING");
    harness_no_leaks("communicators", &before);
}

/* ---- the library's own tables ---- */

enum { OWN_RANKS = 4, OWN_COUNT = 1 << 20 };

static CUresult name_h200(char *name, int bytes, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)bytes, "NVIDIA H200");
    return CUDA_SUCCESS;
}

struct sharing {
    const char *tuning; /* SYMWIN_TUNING; NULL: the library's own tables */
    int one_device, measured;
};

static void chooses(struct harness_team *team, int rank, void *arg)
{
    const struct sharing *is = arg;
    const int device = is->one_device ? 0 : rank % harness_device_count();
    symwin_allreduce_info info = {.blocks = -1};
    symwin_comm *comm = NULL;
    void *buffer = host_alloc(device, OWN_COUNT * 4);

    host_must(symwin_comm_create(&team->id, OWN_RANKS, rank, device, NULL, &comm), "create");
    host_must(symwin_allreduce_query(comm, buffer, buffer, OWN_COUNT, SYMWIN_F32, SYMWIN_SUM, NULL,
                                     &info),
              "symwin_allreduce_query");
    tap_ok(info.measured == is->measured, "rank %d: %s, %s: %s", rank,
           is->tuning != NULL ? "a file" : "the library's own table",
           is->one_device ? "one device" : "a device each",
           info.measured ? "measured" : "by the model");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(buffer), "symwin_mem_free");
}

/* They are of ranks with a device each. A file may be of ranks that share one. */
static void own_tables(void)
{
    static const char rows[] = NAMES "NVIDIA H200,4,4,float,0,4096,oneshot,1,32\n";
    struct sharing rows_of[] = {{NULL, 0, 1}, {NULL, 1, 0}, {"", 0, 1}, {"", 1, 1}};
    CUresult (*const name)(char *, int, CUdevice) = sw_drv.cuDeviceGetName;
    size_t i;

    if (harness_device_count() < OWN_RANKS) {
        tap_ok(1, "the library's own tables # SKIP fewer than 4 devices");
        return;
    }
    sw_drv.cuDeviceGetName = name_h200;
    for (i = 0; i < sizeof rows_of / sizeof rows_of[0]; i++) {
        if (rows_of[i].tuning != NULL)
            setenv("SYMWIN_TUNING", file("h200", rows, strlen(rows)), 1);
        harness_run(OWN_RANKS, chooses, &rows_of[i]);
    }
    unsetenv("SYMWIN_TUNING");
    sw_drv.cuDeviceGetName = name;
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    char command[100];

    snprintf(folder, sizeof folder, "%.40s/tuning.XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(folder) == NULL)
        abort();
    refuses();
    looks_up();
    collectives();
    straight();
    compares();
    agrees();
    opens();
    creates();
    own_tables();
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) != 0 || tap_done();
}
