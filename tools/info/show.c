/* Shows the lines of symwin_dump() as text, as tables, or each line as a JSON object. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "info.h"

enum { LINE_BYTES = 2048, MOST_PAIRS = 32 };

struct line { /* split into kind, name and key=value pairs */
    char text[LINE_BYTES];
    const char *what, *name; /* name "": none */
    struct {
        const char *key, *value;
    } pairs[MOST_PAIRS];
    int count;
};

/* Splits a line. 0: it is not a line of a dump. */
static int cut(struct line *l)
{
    char *rest = l->text, *word;

    l->text[strcspn(l->text, "\n")] = '\0';
    l->name = "";
    l->count = 0;
    l->what = strtok_r(rest, " ", &rest);
    if (l->what == NULL)
        return 0;
    while ((word = strtok_r(rest, " ", &rest)) != NULL) {
        char *equal = strchr(word, '=');

        if (equal == NULL) {
            l->name = word;
        } else if (l->count < MOST_PAIRS) {
            *equal = '\0';
            l->pairs[l->count].key = word;
            l->pairs[l->count++].value = equal + 1;
        }
    }
    return 1;
}

/* "?": none. */
static const char *value_of(const struct line *l, const char *key)
{
    for (int i = 0; i < l->count; i++)
        if (strcmp(l->pairs[i].key, key) == 0)
            return l->pairs[i].value;
    return "?";
}

static unsigned long long number_of(const struct line *l, const char *key)
{
    return strtoull(value_of(l, key), NULL, 0);
}

/* ---- in words -------------------------------------------------------------------------------- */

static void device_line(FILE *out, const struct line *l)
{
    const unsigned long long reserved = number_of(l, "reserved_bytes");
    const unsigned long long used = number_of(l, "used_bytes"), kept = number_of(l, "kept_bytes");
    char a[32], b[32], c[32], d[32];

    fprintf(out,
            "\nDevice %s: %s allocations of %s (%s rounded up) in %s chunks of %s\n"
            "  %s are kept, ",
            l->name, value_of(l, "allocations"), info_bytes(number_of(l, "asked_bytes"), a),
            info_bytes(used, b), value_of(l, "chunks"), info_bytes(reserved, c),
            info_bytes(kept, d));
    fprintf(out, "%s are free in chunks in use, at most %s of it in one piece\n",
            info_bytes(reserved - used - kept, a),
            info_bytes(number_of(l, "largest_free_bytes"), b));
    fprintf(out, "  at most %s were used and %s reserved; %s allocations and %s frees so far\n",
            info_bytes(number_of(l, "peak_used_bytes"), a),
            info_bytes(number_of(l, "peak_reserved_bytes"), b), value_of(l, "allocs"),
            value_of(l, "frees"));
}

/* Earlier versions wrote none. */
static const char *name_of(const struct line *l)
{
    const char *name = value_of(l, "name");

    return strcmp(name, "?") == 0 || strcmp(name, "-") == 0 ? "without a name" : name;
}

/* Over several domains only a domain's communicator has a range. */
static void comm_lines(FILE *out, const struct line *l)
{
    char a[32];

    fprintf(out,
            "\nCommunicator %s, %s: rank %s of %s on device %s, %s windows on %s allocations%s\n",
            l->name, name_of(l), value_of(l, "rank"), value_of(l, "nranks"), value_of(l, "device"),
            value_of(l, "windows"), value_of(l, "allocations"),
            number_of(l, "multicast") ? ", with multicast" : "");
    if (number_of(l, "stride") > 0)
        fprintf(out, "  flat range at %s, %s for each rank\n", value_of(l, "base"),
                info_bytes(number_of(l, "stride"), a));
}

static void show_line(FILE *out, const struct line *l)
{
    char a[32];

    if (strcmp(l->what, "symwin-dump") == 0)
        fprintf(out, "Process %s, libsymwin %s\n", value_of(l, "pid"), value_of(l, "version"));
    else if (strcmp(l->what, "device") == 0)
        device_line(out, l);
    else if (strcmp(l->what, "arena") == 0)
        fprintf(out, "\nArena %s: device %s, flags %s, its thread %s; %s allocations\n", l->name,
                value_of(l, "device"), value_of(l, "flags"),
                strcmp(value_of(l, "thread"), "alive") == 0 ? "is alive" : "has ended",
                value_of(l, "allocations"));
    else if (strcmp(l->what, "chunk") == 0)
        fprintf(out, "  chunk %s on device %s, %s, %s%s, %s allocations\n", l->name,
                value_of(l, "device"), info_bytes(number_of(l, "bytes"), a), value_of(l, "use"),
                number_of(l, "kept") ? ", kept" : "", value_of(l, "allocations"));
    else if (strcmp(l->what, "alloc") == 0)
        fprintf(out, "    %-18s at %10s: %12s bytes in %12s, %s windows\n", l->name,
                value_of(l, "offset"), value_of(l, "asked"), value_of(l, "bytes"),
                value_of(l, "windows"));
    else if (strcmp(l->what, "comm") == 0)
        comm_lines(out, l);
    else if (strcmp(l->what, "domain") == 0)
        fprintf(out, "  in domain %s of %s, rank %s of %s there, with %s rails between domains\n",
                l->name, value_of(l, "domains"), value_of(l, "rank"), value_of(l, "ranks"),
                value_of(l, "rails"));
    else if (strcmp(l->what, "window") == 0)
        fprintf(out, "    %-18s: %12s bytes at %12s of each rank's part, %s\n", l->name,
                value_of(l, "bytes"), value_of(l, "offset"), value_of(l, "transports"));
    else if (strcmp(l->what, "range") == 0)
        fprintf(out, "    %-18s: %12s bytes registered, %s references and %s of graphs, %s%s\n",
                l->name, value_of(l, "bytes"), value_of(l, "local"), value_of(l, "graph"),
                value_of(l, "transports"), number_of(l, "nccl") ? ", with NCCL" : "");
    else if (strcmp(l->what, "channel") == 0)
        fprintf(out, "    %-18s: %12s bytes in a channel with rank %s, %s lanes, memory: %s, %s\n",
                l->name, value_of(l, "bytes"), value_of(l, "peer"), value_of(l, "lanes"),
                value_of(l, "memory"), value_of(l, "state"));
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static int is_number(const char *text)
{
    const char *p = text;

    while (isdigit((unsigned char)*p))
        p++;
    return p != text && *p == '\0' && (text[0] != '0' || text[1] == '\0');
}

static void write_value(struct info_writer *w, const char *name, const char *value)
{
    if (is_number(value))
        info_number(w, name, strtoull(value, NULL, 10));
    else
        info_string(w, name, value);
}

static void write_line(struct info_writer *w, const struct line *l)
{
    info_open(w, NULL, '{');
    info_string(w, "what", l->what);
    if (l->name[0] != '\0')
        write_value(w, "name", l->name);
    for (int i = 0; i < l->count; i++)
        write_value(w, l->pairs[i].key, l->pairs[i].value);
    info_close(w, '}');
}

/* ---- as tables: one for each kind of line, with a column for each key ------------------------ */

enum { NARROW = 2 }; /* between columns */

struct row {
    struct row *next;
    struct line line;
};

struct table {
    struct row *first, *last; /* owned */
};

/* 0: no host memory. */
static int table_add(struct table *table, const struct line *line)
{
    struct row *row = malloc(sizeof *row);

    if (row == NULL)
        return 0;
    row->next = NULL;
    row->line = *line;
    row->line.what = row->line.text + (line->what - line->text);
    if (line->name[0] != '\0')
        row->line.name = row->line.text + (line->name - line->text);
    for (int i = 0; i < line->count; i++) {
        row->line.pairs[i].key = row->line.text + (line->pairs[i].key - line->text);
        row->line.pairs[i].value = row->line.text + (line->pairs[i].value - line->text);
    }
    if (table->last == NULL)
        table->first = row;
    else
        table->last->next = row;
    table->last = row;
    return 1;
}

static void table_release(struct table *table)
{
    while (table->first != NULL) {
        struct row *row = table->first;

        table->first = row->next;
        free(row);
    }
    table->last = NULL;
}

static int is_like(const struct row *a, const struct row *b)
{
    return strcmp(a->line.what, b->line.what) == 0;
}

/* The cell of a row in column `c` of the table that begins with `head`. Column 0 has names, the
 * others the keys of `head`. */
static const char *cell(const struct row *head, const struct row *row, int c)
{
    return c == 0 ? row->line.name : value_of(&row->line, head->line.pairs[c - 1].key);
}

static void print_one(FILE *out, const struct row *head)
{
    int widths[1 + MOST_PAIRS];
    const struct row *row;

    for (int c = 0; c <= head->line.count; c++) {
        widths[c] = (int)strlen(c == 0 ? head->line.what : head->line.pairs[c - 1].key);
        for (row = head; row != NULL; row = row->next)
            if (is_like(row, head) && (int)strlen(cell(head, row, c)) > widths[c])
                widths[c] = (int)strlen(cell(head, row, c));
    }
    for (int c = 0; c <= head->line.count; c++)
        fprintf(out, "%*s", c == 0 ? -widths[c] : NARROW + widths[c],
                c == 0 ? head->line.what : head->line.pairs[c - 1].key);
    putc('\n', out);
    for (row = head; row != NULL; row = row->next) {
        if (!is_like(row, head))
            continue;
        for (int c = 0; c <= head->line.count; c++)
            fprintf(out, "%*s", c == 0 ? -widths[c] : NARROW + widths[c], cell(head, row, c));
        putc('\n', out);
    }
}

static void table_print(FILE *out, const struct table *table)
{
    const struct row *row, *before;

    for (row = table->first; row != NULL; row = row->next) {
        for (before = table->first; before != row && !is_like(before, row); before = before->next)
            ;
        if (before != row)
            continue;
        if (row != table->first)
            putc('\n', out);
        print_one(out, row);
    }
}

/* ---- all forms ------------------------------------------------------------------------------- */

int info_show(FILE *out, FILE *dump, const char *name, enum info_form form)
{
    struct info_writer w = {.out = out};
    unsigned long long lines = 0, promised = 0;
    struct table table = {NULL, NULL};
    static struct line l;
    int whole = 0, right = 1, room = 1, ends = 1, empty = 1, error = 0;

    if (form == INFO_JSON)
        info_open(&w, NULL, '[');
    while (right && room && ends && !whole && fgets(l.text, sizeof l.text, dump) != NULL) {
        empty = 0;
        ends = strchr(l.text, '\n') != NULL;
        if (form != INFO_JSON) /* JSON is escaped by the writer */
            sw_error_make_plain(l.text);
        right = cut(&l) &&
                (lines > 0 || (strcmp(l.what, "symwin-dump") == 0 && strcmp(l.name, "1") == 0));
        whole = right && strcmp(l.what, "end") == 0;
        if (whole)
            promised = number_of(&l, "lines");
        else if (!ends)
            continue; /* a cut line shows wrong values */
        else if (right && form == INFO_JSON)
            write_line(&w, &l);
        else if (right && form == INFO_TABLES)
            room = table_add(&table, &l);
        else if (right)
            show_line(out, &l);
        lines += right && !whole;
    }
    if (ferror(dump))
        error = errno;
    if (form == INFO_JSON)
        info_close(&w, ']');
    table_print(out, &table);
    table_release(&table);
    if (!room) {
        fprintf(stderr, "symwin-info: no host memory for all lines of %s\n", name);
        return 0;
    }
    if (right && whole && lines == promised)
        return 1;
    if (error != 0)
        fprintf(stderr, "symwin-info: %s cannot be read: %s\n", name, strerror(error));
    else
        fprintf(stderr, "symwin-info: %s is %s\n", name,
                empty                           ? "empty: give what symwin_dump() wrote"
                : right && (lines > 0 || !ends) ? "a part of what symwin_dump() wrote; the rest is "
                                                  "missing"
                                                : "not what symwin_dump() of version 1 writes");
    return 0;
}

/* ---- this process as an example -------------------------------------------------------------- */

/* Dumps the current state and shows it. */
static int show_now(FILE *out, enum info_form form)
{
    const int fd = memfd_create("symwin-dump", MFD_CLOEXEC);
    FILE *dump = fd >= 0 ? fdopen(fd, "r") : NULL;
    int right = 0;

    if (dump == NULL)
        perror("symwin-info: no file for the dump");
    else if (symwin_dump(fd) != SYMWIN_OK)
        fprintf(stderr, "symwin-info: %s\n", symwin_last_error());
    else if (lseek(fd, 0, SEEK_SET) == 0)
        right = info_show(out, dump, "the dump", form);
    if (dump != NULL)
        fclose(dump);
    else if (fd >= 0)
        close(fd);
    return right;
}

int info_sample(FILE *out, enum info_form form)
{
    static const size_t sizes[] = {1000, 100 << 10, 3 << 20};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    void *ptrs[COUNT] = {NULL};
    symwin_status status = SYMWIN_OK;
    symwin_comm *comm = NULL;
    symwin_registration *registration;
    symwin_window *window;
    symwin_unique_id id;
    int right = 0;

    for (int i = 0; i < COUNT && status == SYMWIN_OK; i++)
        status = symwin_mem_alloc(0, sizes[i], 0, &ptrs[i]);
    if (status == SYMWIN_OK)
        status = symwin_unique_id_create(&id);
    if (status == SYMWIN_OK) {
        const symwin_comm_options options = {.size = sizeof options,
                                             .flags = SYMWIN_COMM_NO_MULTICAST};

        status = symwin_comm_create(&id, 1, 0, 0, &options, &comm);
        if (status != SYMWIN_OK)
            symwin_unique_id_release(&id);
    }
    if (status == SYMWIN_OK)
        status = symwin_window_register(comm, ptrs[1], sizes[1], 0, &window);
    if (status == SYMWIN_OK)
        status = symwin_register(comm, ptrs[2], sizes[2], &registration);
    if (status == SYMWIN_OK)
        right = show_now(out, form);
    else
        fprintf(stderr, "symwin-info: %s\n", symwin_last_error());
    symwin_comm_destroy(comm);
    for (int i = 0; i < COUNT; i++)
        symwin_mem_free(ptrs[i]);
    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
    return right;
}
