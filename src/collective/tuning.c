/* Tables of measured choices: which file, what a line may contain, and the row that applies to a
 * message.
 *
 * A communicator keeps the rows for its own GPUs and number of ranks, sorted by key and size;
 * docs/tuning.md describes the format. Everything is checked: a wrong file fails the creation of
 * the communicator.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/collective/select.h"
#include "src/collective/tables.h"

#define VARIABLE "SYMWIN_TUNING"
#define COLUMNS "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads"
/* allreduce only */
#define COLUMNS_OF_OLD "gpu,nranks,width,kind,registered,bytes,algo,blocks,threads"

enum {
    FIELDS = 10,
    MOST_FILE_BYTES = 1 << 20,
    MOST_LINE_BYTES = 255,
    WIDTHS = 4,            /* 1, 2, 4 and 8 bytes */
    KEYS = WIDTHS * 2 * 2, /* per collective: kinds; registered or not */
    LISTS = SW_COLLECTIVES * KEYS
};

struct row {
    struct sw_tuning_row is;
    int list, line;
};

struct sw_tuning {
    struct row *rows; /* owned; those of a list are contiguous, the smallest first */
    int count, room;
    struct {
        int first, end; /* indices in `rows` */
    } lists[LISTS];
    uint64_t hash;
    int carried; /* one of the library's own */
};

/* ---- text ---- */

struct field {
    const char *at;
    size_t length;
};

struct reader {
    const char *call;
    const char *name; /* of the file */
    const char *gpu;
    int nranks;
    int line;
    int fields; /* per row; 0: no line has named the columns yet */
};

static int field_is(const struct field *field, const char *word)
{
    return strlen(word) == field->length && memcmp(word, field->at, field->length) == 0;
}

/* The name of the file comes last, because a long text may be cut on the way to other ranks. */
static symwin_status bad(const struct reader *r, const char *column, const struct field *field,
                         const char *want)
{
    return sw_fail(SYMWIN_INVALID,
                   "%s: " VARIABLE ", line %d: %s is \"%.*s\" and must be %s; correct it, or have "
                   "symwin-perf --tune write the file: %s",
                   r->call, r->line, column, (int)(field->length < 40 ? field->length : 40),
                   field->at, want, r->name);
}

static symwin_status bad_line(const struct reader *r, const char *what)
{
    return sw_fail(SYMWIN_INVALID,
                   "%s: " VARIABLE ", line %d %s; correct it, or have symwin-perf --tune write the "
                   "file: %s",
                   r->call, r->line, what, r->name);
}

/* Parses a number from `least` to `most`; returns 0 if the field is not one. */
static int number(const struct field *field, uint64_t least, uint64_t most, uint64_t *out)
{
    uint64_t value = 0;
    size_t i;

    if (field->length < 1 || field->length > 19)
        return 0;
    for (i = 0; i < field->length; i++) {
        if (field->at[i] < '0' || field->at[i] > '9')
            return 0;
        value = 10 * value + (uint64_t)(field->at[i] - '0');
    }
    *out = value;
    return value >= least && value <= most;
}

/* ---- lines ---- */

static int list_of(symwin_collective collective, int width_log2, int is_float, int registered)
{
    return (int)collective * KEYS + (width_log2 * 2 + is_float) * 2 + registered;
}

static int list_is_registered(int list)
{
    return list % 2;
}

static int collective_named(const struct field *field, symwin_collective *out)
{
    int i;

    for (i = 0; i < SW_COLLECTIVES; i++)
        if (field_is(field, symwin_collective_name((symwin_collective)i))) {
            *out = (symwin_collective)i;
            return 1;
        }
    return 0;
}

/* Whether rows of a GPU are for several domains: by the end of SW_TUNING_DOMAINS. */
static int gpu_in_domains(const struct field *gpu)
{
    static const char end[] = " domains";
    const size_t length = sizeof end - 1;

    return gpu->length > length && memcmp(gpu->at + gpu->length - length, end, length) == 0;
}

static int algo_named(symwin_collective collective, int in_domains, const struct field *field,
                      symwin_algo *out)
{
    int i;

    for (i = SYMWIN_ALGO_AUTO + 1; i < SW_ALGOS; i++)
        if ((in_domains ? sw_way_is_there(collective, (symwin_algo)i)
                        : sw_algo_is_inside(collective, (symwin_algo)i)) &&
            field_is(field, symwin_algo_name((symwin_algo)i))) {
            *out = (symwin_algo)i;
            return 1;
        }
    return 0;
}

/* The columns of a row. */
enum column { COLLECTIVE, GPU, NRANKS, WIDTH, KIND, REGISTERED, BYTES, ALGO, BLOCKS, ROW_THREADS };

static symwin_status parse_key(const struct reader *r, const struct field f[FIELDS],
                               symwin_collective collective, int *nranks, int *list)
{
    uint64_t ranks = 0, width = 0, registered = 0;
    int is_float, log2;

    if (f[GPU].length == 0)
        return bad(r, "gpu", &f[GPU], "a GPU's name");
    if (!number(&f[NRANKS], 1, SW_MAX_RANKS, &ranks))
        return bad(r, "nranks", &f[NRANKS], "1 to 131072");
    if (!number(&f[WIDTH], 1, 8, &width) || (width & (width - 1)) != 0)
        return bad(r, "width", &f[WIDTH], "1, 2, 4 or 8");
    is_float = field_is(&f[KIND], "float");
    if (!is_float && !field_is(&f[KIND], "integer"))
        return bad(r, "kind", &f[KIND], "float or integer");
    if (!number(&f[REGISTERED], 0, 1, &registered))
        return bad(r, "registered", &f[REGISTERED], "0 or 1");
    for (log2 = 0; width > 1; width /= 2)
        log2++;
    *nranks = (int)ranks;
    *list = list_of(collective, log2, is_float, (int)registered);
    return SYMWIN_OK;
}

static symwin_status parse_choice(const struct reader *r, const struct field f[FIELDS],
                                  symwin_collective collective, int registered,
                                  struct sw_tuning_row *row)
{
    const int in_domains = gpu_in_domains(&f[GPU]);
    uint64_t blocks = 0, threads = 0;

    if (!number(&f[BYTES], 1, INT64_MAX, &row->bytes))
        return bad(r, "bytes", &f[BYTES], "a number from 1 on");
    if (!algo_named(collective, in_domains, &f[ALGO], &row->algo))
        return bad(r, "algo", &f[ALGO],
                   in_domains ? "a way between domains that the collective has"
                              : "an algorithm of symwin.h for the collective in one domain");
    if (in_domains && registered)
        return bad(r, "registered", &f[REGISTERED], "0 for several domains");
    if (sw_algo_needs(collective, row->algo, SW_NEEDS_WINDOWS) && !registered)
        return bad(r, "registered", &f[REGISTERED], "1 for an algorithm over windows");
    if (!number(&f[BLOCKS], 0, 65536, &blocks))
        return bad(r, "blocks", &f[BLOCKS], "0 to 65536");
    if (!number(&f[ROW_THREADS], 0, 1024, &threads))
        return bad(r, "threads", &f[ROW_THREADS], "0 to 1024");
    row->blocks = (uint32_t)blocks;
    row->threads = (uint32_t)threads;
    return SYMWIN_OK;
}

static symwin_status keep(const struct reader *r, struct sw_tuning *t, const struct row *row)
{
    if (t->count == t->room) {
        const int room = t->room > 0 ? 2 * t->room : 32;
        struct row *more = realloc(t->rows, (size_t)room * sizeof *more);

        if (more == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d rows of " VARIABLE, r->call,
                           room);
        t->rows = more;
        t->room = room;
    }
    t->rows[t->count++] = *row;
    return SYMWIN_OK;
}

/* If the columns of a file do not include a collective, the file is for all-reduces. */
static symwin_status parse_row(const struct reader *r, const char *text, size_t length,
                               struct sw_tuning *t)
{
    const int first = FIELDS - r->fields;
    struct field f[FIELDS] = {{"allreduce", 9}};
    symwin_collective collective = SYMWIN_ALLREDUCE;
    struct row row = {.line = r->line};
    symwin_status status;
    int nranks = 0, count = first + 1;
    size_t i;

    f[first] = (struct field){text, 0};
    for (i = 0; i < length; i++) {
        if (text[i] != ',') {
            f[count - 1].length++;
            continue;
        }
        if (count == FIELDS)
            return bad_line(r, "has more columns than are named");
        f[count++].at = text + i + 1;
    }
    if (count < FIELDS)
        return bad_line(r, "has fewer columns than are named");
    if (!collective_named(&f[COLLECTIVE], &collective))
        return bad(r, "collective", &f[COLLECTIVE], "a collective of symwin.h");
    status = parse_key(r, f, collective, &nranks, &row.list);
    if (status == SYMWIN_OK)
        status = parse_choice(r, f, collective, list_is_registered(row.list), &row.is);
    if (status != SYMWIN_OK || nranks != r->nranks || !field_is(&f[GPU], r->gpu))
        return status;
    return keep(r, t, &row);
}

static int line_is(const char *line, size_t length, const char *text)
{
    return length == strlen(text) && memcmp(line, text, length) == 0;
}

static symwin_status read_lines(struct reader *r, const char *text, size_t bytes,
                                struct sw_tuning *t)
{
    symwin_status status = SYMWIN_OK;
    size_t at = 0;

    while (at < bytes && status == SYMWIN_OK) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', bytes - at);
        const size_t length = end != NULL ? (size_t)(end - line) : bytes - at;

        at += length + 1;
        r->line++;
        if (length > MOST_LINE_BYTES)
            return bad_line(r, "has more than 255 characters");
        if (memchr(line, '\0', length) != NULL)
            return bad_line(r, "is no text");
        if (length == 0 || line[0] == '#')
            continue;
        if (line_is(line, length, COLUMNS)) /* repeated if files were concatenated */
            r->fields = FIELDS;
        else if (line_is(line, length, COLUMNS_OF_OLD))
            r->fields = FIELDS - 1;
        else if (r->fields > 0)
            status = parse_row(r, line, length, t);
        else
            return bad_line(r, "does not name the columns " COLUMNS);
    }
    r->line++;
    return status != SYMWIN_OK || r->fields > 0 ? status
                                                : bad_line(r, "does not name the columns " COLUMNS);
}

/* ---- order ---- */

static int by_place(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    return x->list != y->list ? x->list - y->list : x->line - y->line;
}

static void hash_word(uint64_t *hash, uint64_t word)
{
    *hash = (*hash ^ word) * 0x100000001b3u;
    *hash ^= *hash >> 29;
}

/* A width that was not measured uses the rows of the next larger width of its kind, otherwise of
 * the next smaller one. */
static void fill_gaps(struct sw_tuning *t)
{
    int first, key, step;

    for (first = 0; first < LISTS; first += KEYS)
        for (step = -1; step <= 1; step += 2)
            for (key = step < 0 ? KEYS - 5 : 4; key >= 0 && key < KEYS; key += step)
                if (t->lists[first + key].first == t->lists[first + key].end)
                    t->lists[first + key] = t->lists[first + key - 4 * step];
}

static symwin_status sort(struct reader *r, struct sw_tuning *t)
{
    int i;

    if (t->count > 0)
        qsort(t->rows, (size_t)t->count, sizeof *t->rows, by_place);
    t->hash = 0xcbf29ce484222325u;
    for (i = 0; i < t->count; i++) {
        const struct row *row = &t->rows[i];

        r->line = row->line;
        if (i == 0 || row->list != row[-1].list)
            t->lists[row->list].first = i;
        else if (row->is.bytes <= row[-1].is.bytes)
            return bad_line(r, "has no more bytes than the row of its kind before it");
        t->lists[row->list].end = i + 1;
        hash_word(&t->hash, (uint64_t)row->list);
        hash_word(&t->hash, row->is.bytes);
        hash_word(&t->hash, (uint64_t)row->is.algo);
        hash_word(&t->hash, (uint64_t)row->is.blocks << 32 | row->is.threads);
    }
    fill_gaps(t);
    return SYMWIN_OK;
}

symwin_status sw_tuning_parse(const char *call, const char *name, const char *text, size_t bytes,
                              const char *gpu, int nranks, struct sw_tuning **out)
{
    struct reader r = {.call = call, .name = name, .gpu = gpu, .nranks = nranks};
    struct sw_tuning *t = calloc(1, sizeof *t);
    symwin_status status;

    if (t == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a table of choices", call);
    status = read_lines(&r, text, bytes, t);
    if (status == SYMWIN_OK)
        status = sort(&r, t);
    if (status != SYMWIN_OK || t->count == 0) {
        sw_tuning_close(t);
        t = NULL;
    }
    if (status == SYMWIN_OK)
        *out = t;
    return status;
}

void sw_tuning_close(struct sw_tuning *t)
{
    if (t == NULL)
        return;
    free(t->rows);
    free(t);
}

/* ---- which file ---- */

static symwin_status unreadable(const char *call, const char *path, const char *why)
{
    return sw_fail(SYMWIN_INVALID,
                   "%s: " VARIABLE
                   " cannot be read: %s; name a file of symwin-perf --tune, 0 for no "
                   "table, or unset it: %s",
                   call, why, path);
}

/* Reads all of an open file. The caller owns *out, also if this fails. */
static symwin_status slurp(const char *call, const char *path, int fd, char **out, size_t *bytes)
{
    struct stat file;
    size_t used = 0;

    if (fstat(fd, &file) != 0)
        return unreadable(call, path, strerror(errno));
    if (!S_ISREG(file.st_mode))
        return unreadable(call, path, "it is no regular file");
    *out = malloc(MOST_FILE_BYTES + 1);
    if (*out == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for the file of " VARIABLE, call);
    while (used <= MOST_FILE_BYTES) {
        const ssize_t got = read(fd, *out + used, MOST_FILE_BYTES + 1 - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return unreadable(call, path, strerror(errno));
        if (got == 0) {
            *bytes = used;
            return SYMWIN_OK;
        }
        used += (size_t)got;
    }
    return unreadable(call, path, "it has more than 1 MiB");
}

static symwin_status open_file(const char *call, const char *path, const char *gpu, int nranks,
                               struct sw_tuning **out)
{
    char *text = NULL;
    size_t bytes = 0;
    symwin_status status;
    int fd;

    do /* O_NONBLOCK: opening a FIFO must not wait for a writer */
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return unreadable(call, path, strerror(errno));
    status = slurp(call, path, fd, &text, &bytes);
    close(fd);
    if (status == SYMWIN_OK)
        status = sw_tuning_parse(call, path, text, bytes, gpu, nranks, out);
    free(text);
    return status;
}

symwin_status sw_tuning_open(const char *call, const char *gpu, int nranks, struct sw_tuning **out)
{
    const char *path = sw_setting_text(SW_SETTING_TUNING);
    symwin_status status = SYMWIN_OK;
    size_t i;

    *out = NULL;
    if (path != NULL && strcmp(path, "0") == 0)
        return SYMWIN_OK;
    if (path != NULL)
        return open_file(call, path, gpu, nranks, out);
    for (i = 0; i < sw_table_count && *out == NULL && status == SYMWIN_OK; i++)
        status = sw_tuning_parse(call, sw_tables[i].name, sw_tables[i].data, sw_tables[i].bytes,
                                 gpu, nranks, out);
    if (*out != NULL)
        (*out)->carried = 1;
    return status;
}

/* ---- agreement ---- */

symwin_status sw_tuning_introduce(symwin_comm *comm, const char *call, int domains,
                                  uint64_t values[SW_TUNING_VALUES])
{
    char gpu[160] = "";
    struct sw_part part = {gpu, 0};
    unsigned char digest[SW_DIGEST_BYTES];
    symwin_status status;

    sw_tuning_close(comm->tuning);
    comm->tuning = NULL;
    status = sw_check(sw_drv.cuDeviceGetName(gpu, 128, comm->device),
                      "cuDeviceGetName of device %d", comm->device);
    if (domains > 1)
        snprintf(gpu + strlen(gpu), 32, SW_TUNING_DOMAINS, domains);
    if (status == SYMWIN_OK)
        status = sw_tuning_open(call, gpu, comm->nranks, &comm->tuning);
    if (status != SYMWIN_OK)
        return status;
    part.bytes = strlen(gpu);
    sw_sha256(&part, 1, digest);
    memcpy(&values[0], digest, sizeof values[0]);
    values[1] = sw_tuning_hash(comm->tuning);
    return SYMWIN_OK;
}

/* Ranks with different rows would select differently. There are no measurements for GPUs of several
 * kinds. */
symwin_status sw_tuning_agree(symwin_comm *comm, const char *call, int at)
{
    const uint64_t *first = &comm->ballots[0].values[at];
    int r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->ballots[r].values[at] != first[0]) {
            sw_tuning_close(comm->tuning);
            comm->tuning = NULL;
            return SYMWIN_OK;
        }
    for (r = 1; r < comm->nranks; r++)
        if (comm->ballots[r].values[at + 1] != first[1])
            return sw_fail(SYMWIN_MISMATCH,
                           "%s: the tables of choices differ: rank 0 has %016llx, rank %d has "
                           "%016llx (0: none); let SYMWIN_TUNING name the same file on every rank",
                           call, (unsigned long long)first[1], r,
                           (unsigned long long)comm->ballots[r].values[at + 1]);
    return SYMWIN_OK;
}

/* ---- which row ---- */

void sw_tuning_for_sharers(symwin_comm *comm)
{
    if (comm->sharers < 2 || comm->tuning == NULL || !comm->tuning->carried)
        return;
    sw_tuning_close(comm->tuning);
    comm->tuning = NULL;
}

uint64_t sw_tuning_hash(const struct sw_tuning *t)
{
    return t == NULL ? 0 : (t->hash & ~(uint64_t)3) | (t->carried ? 3 : 1);
}

const struct sw_tuning_row *sw_tuning_find(const struct sw_tuning *t, symwin_collective collective,
                                           symwin_type type, int registered, size_t bytes)
{
    int list, low, high;

    if (t == NULL)
        return NULL;
    list = list_of(collective, __builtin_ctzl(symwin_type_bytes(type)), sw_type_is_float(type),
                   registered);
    low = t->lists[list].first;
    high = t->lists[list].end - 1; /* the last row also serves larger calls */
    if (low > high)
        return NULL;
    while (low < high) {
        const int middle = low + (high - low) / 2;

        if (t->rows[middle].is.bytes >= bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return &t->rows[low].is;
}

int sw_tuning_straight(const struct sw_tuning *t, symwin_collective collective, symwin_type type,
                       uint64_t *bytes)
{
    const int list = list_of(collective, __builtin_ctzl(symwin_type_bytes(type)),
                             sw_type_is_float(type), 1);
    int first, end, last;

    if (t == NULL || t->lists[list].first == t->lists[list].end)
        return 0;
    first = t->lists[list].first;
    end = last = t->lists[list].end;
    while (last > first && t->rows[last - 1].is.algo == SYMWIN_ALGO_PUT)
        last--;
    *bytes = last == end ? UINT64_MAX : last == first ? 0 : t->rows[last - 1].is.bytes;
    return 1;
}
