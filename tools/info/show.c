/* Shows the lines of symwin_dump() as text, as tables, or each line as a JSON object. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "info.h"

/* Splits a line. 0: it is not a line of a dump. */
static int cut(struct info_line *l)
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
        } else if (l->count < INFO_MOST_PAIRS) {
            *equal = '\0';
            l->pairs[l->count].key = word;
            l->pairs[l->count++].value = equal + 1;
        }
    }
    return 1;
}

const char *info_value(const struct info_line *l, const char *key)
{
    for (int i = 0; i < l->count; i++)
        if (strcmp(l->pairs[i].key, key) == 0)
            return l->pairs[i].value;
    return "?";
}

static unsigned long long number_of(const struct info_line *l, const char *key)
{
    return strtoull(info_value(l, key), NULL, 0);
}

/* ---- in words -------------------------------------------------------------------------------- */

static void device_line(FILE *out, const struct info_line *l)
{
    const unsigned long long reserved = number_of(l, "reserved_bytes");
    const unsigned long long used = number_of(l, "used_bytes"), kept = number_of(l, "kept_bytes");
    char a[32], b[32], c[32], d[32];

    fprintf(out,
            "\nDevice %s: %s allocations of %s (%s rounded up) in %s chunks of %s\n"
            "  %s are kept, ",
            l->name, info_value(l, "allocations"), info_bytes(number_of(l, "asked_bytes"), a),
            info_bytes(used, b), info_value(l, "chunks"), info_bytes(reserved, c),
            info_bytes(kept, d));
    fprintf(out, "%s are free in chunks in use, at most %s of it in one piece\n",
            info_bytes(reserved - used - kept, a),
            info_bytes(number_of(l, "largest_free_bytes"), b));
    fprintf(out, "  at most %s were used and %s reserved; %s allocations and %s frees so far\n",
            info_bytes(number_of(l, "peak_used_bytes"), a),
            info_bytes(number_of(l, "peak_reserved_bytes"), b), info_value(l, "allocs"),
            info_value(l, "frees"));
}

static void show_line(FILE *out, const struct info_line *l)
{
    char a[32];

    if (strcmp(l->what, "symwin-dump") == 0)
        fprintf(out, "Process %s, libsymwin %s\n", info_value(l, "pid"), info_value(l, "version"));
    else if (strcmp(l->what, "device") == 0)
        device_line(out, l);
    else if (strcmp(l->what, "arena") == 0)
        fprintf(out, "\nArena %s: device %s, flags %s, its thread %s; %s allocations\n", l->name,
                info_value(l, "device"), info_value(l, "flags"),
                strcmp(info_value(l, "thread"), "alive") == 0 ? "is alive" : "has ended",
                info_value(l, "allocations"));
    else if (strcmp(l->what, "chunk") == 0)
        fprintf(out, "  chunk %s on device %s, %s, %s%s, %s allocations\n", l->name,
                info_value(l, "device"), info_bytes(number_of(l, "bytes"), a), info_value(l, "use"),
                number_of(l, "kept") ? ", kept" : "", info_value(l, "allocations"));
    else if (strcmp(l->what, "alloc") == 0)
        fprintf(out, "    %-18s at %10s: %12s bytes in %12s, %s windows\n", l->name,
                info_value(l, "offset"), info_value(l, "asked"), info_value(l, "bytes"),
                info_value(l, "windows"));
    else if (strcmp(l->what, "comm") == 0)
        fprintf(out,
                "\nCommunicator %s: rank %s of %s on device %s, %s windows on %s allocations%s\n"
                "  flat range at %s, %s for each rank\n",
                l->name, info_value(l, "rank"), info_value(l, "nranks"), info_value(l, "device"),
                info_value(l, "windows"), info_value(l, "allocations"),
                number_of(l, "multicast") ? ", with multicast" : "", info_value(l, "base"),
                info_bytes(number_of(l, "stride"), a));
    else if (strcmp(l->what, "window") == 0)
        fprintf(out, "    %-18s: %12s bytes at %12s of each rank's part, %s\n", l->name,
                info_value(l, "bytes"), info_value(l, "offset"), info_value(l, "transports"));
    else if (strcmp(l->what, "range") == 0)
        fprintf(out, "    %-18s: %12s bytes registered, %s references and %s of graphs, %s%s\n",
                l->name, info_value(l, "bytes"), info_value(l, "local"), info_value(l, "graph"),
                info_value(l, "transports"), number_of(l, "nccl") ? ", with NCCL" : "");
    else if (strcmp(l->what, "channel") == 0)
        fprintf(out, "    %-18s: %12s bytes in a channel with rank %s, %s lanes, memory: %s, %s\n",
                l->name, info_value(l, "bytes"), info_value(l, "peer"), info_value(l, "lanes"),
                info_value(l, "memory"), info_value(l, "state"));
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

static void write_line(struct info_writer *w, const struct info_line *l)
{
    info_open(w, NULL, '{');
    info_string(w, "what", l->what);
    if (l->name[0] != '\0')
        write_value(w, "name", l->name);
    for (int i = 0; i < l->count; i++)
        write_value(w, l->pairs[i].key, l->pairs[i].value);
    info_close(w, '}');
}

/* ---- all forms ------------------------------------------------------------------------------- */

int info_show(FILE *out, FILE *dump, const char *name, enum info_form form)
{
    struct info_writer w = {.out = out};
    unsigned long long lines = 0, promised = 0;
    struct info_table table = {NULL, NULL};
    static struct info_line l;
    int whole = 0, right = 1, room = 1;

    if (form == INFO_JSON)
        info_open(&w, NULL, '[');
    while (right && room && !whole && fgets(l.text, sizeof l.text, dump) != NULL) {
        if (form != INFO_JSON) /* JSON is escaped by the writer */
            sw_error_make_plain(l.text);
        right = cut(&l) &&
                (lines > 0 || (strcmp(l.what, "symwin-dump") == 0 && strcmp(l.name, "1") == 0));
        whole = right && strcmp(l.what, "end") == 0;
        if (whole)
            promised = number_of(&l, "lines");
        else if (right && form == INFO_JSON)
            write_line(&w, &l);
        else if (right && form == INFO_TABLES)
            room = info_table_add(&table, &l);
        else if (right)
            show_line(out, &l);
        lines += right && !whole;
    }
    if (form == INFO_JSON)
        info_close(&w, ']');
    info_table_print(out, &table);
    info_table_release(&table);
    if (!room) {
        fprintf(stderr, "symwin-info: no host memory for all lines of %s\n", name);
        return 0;
    }
    if (right && whole && lines == promised)
        return 1;
    fprintf(stderr, "symwin-info: %s is %s\n", name,
            right && lines > 0 ? "a part of what symwin_dump() wrote; the rest is missing"
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
