/* Fuzzer of the parser of tuning tables: for any file, sw_tuning_parse() reads no other bytes and
 * leaves nothing behind, a refusal names its line, and what is found is a valid selection.
 *
 * Input: the file's text.
 */
#include "fuzz.h"
#include "src/collective/select.h"

static void check_row(const struct sw_tuning_row *row, symwin_collective collective, int registered,
                      int in_domains)
{
    fuzz_must(row->bytes >= 1 && row->bytes <= INT64_MAX, "a row for %llu bytes",
              (unsigned long long)row->bytes);
    fuzz_must(row->algo > SYMWIN_ALGO_AUTO && row->algo < SW_ALGOS, "algorithm %d", row->algo);
    fuzz_must(in_domains ? sw_way_is_there(collective, row->algo)
                         : sw_algo_is_inside(collective, row->algo),
              "an algorithm that it does not have");
    fuzz_must(!in_domains || !registered, "windows between domains");
    fuzz_must(registered || !sw_algo_needs(collective, row->algo, SW_NEEDS_WINDOWS),
              "windows without windows");
    fuzz_must(row->blocks <= 65536 && row->threads <= 1024, "%u blocks of %u threads", row->blocks,
              row->threads);
}

/* Whether it has a row. */
static int check_list(const struct sw_tuning *t, symwin_collective collective, symwin_type type,
                      int registered, int in_domains)
{
    uint64_t before = 0;
    int found = 0;

    for (int shift = 0; shift < 64; shift++) {
        const struct sw_tuning_row *row = sw_tuning_find(t, collective, type, registered,
                                                         (size_t)1 << shift);

        if (row == NULL)
            break;
        found = 1;
        check_row(row, collective, registered, in_domains);
        fuzz_must(row->bytes >= before, "a larger call has a smaller row");
        before = row->bytes;
    }
    return found;
}

static void check_table(const struct sw_tuning *t, int in_domains)
{
    int found = 0;

    fuzz_must(sw_tuning_hash(t) != 0, "rows without a hash");
    for (int c = 0; c < SW_COLLECTIVES; c++)
        for (int type = 0; type < SW_TYPES; type++)
            for (int registered = 0; registered < 2; registered++)
                found |= check_list(t, (symwin_collective)c, (symwin_type)type, registered,
                                    in_domains);
    fuzz_must(found, "rows that are for nothing");
}

static void read_for(const char *text, size_t size, const char *gpu, int in_domains)
{
    struct sw_tuning *t = NULL;
    const symwin_status status = sw_tuning_parse("fuzz", "a.csv", text, size, gpu, 4, &t);

    fuzz_must(status == SYMWIN_OK || status == SYMWIN_INVALID, "status %d", (int)status);
    fuzz_must(status == SYMWIN_OK || (t == NULL && strstr(symwin_last_error(), ", line ") != NULL),
              "refused without a line: %s", symwin_last_error());
    if (t != NULL)
        check_table(t, in_domains);
    sw_tuning_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Only as long as the text, so a read past it is a read past the block. */
    char *text = malloc(size > 0 ? size : 1);

    if (text == NULL)
        abort();
    if (size > 0)
        memcpy(text, data, size);
    read_for(text, size, "A GPU", 0);
    read_for(text, size, "A GPU in 2 domains", 1);
    free(text);
    return 0;
}
