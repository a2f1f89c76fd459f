/* The same facts as JSON, and the writer for it. */
#include <limits.h>

#include "info.h"

/* ---- the writer ------------------------------------------------------------------------------ */

static void quote(FILE *out, const char *text)
{
    putc('"', out);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f) /* names may not be UTF-8: bytes as in Latin-1 */
            fprintf(out, "\\u%04x", (unsigned)c);
        else
            putc(c, out);
    }
    putc('"', out);
}

static void begin(struct info_writer *w, const char *name)
{
    if (w->depth > 0)
        fprintf(w->out, "%s\n%*s", w->first ? "" : ",", 2 * w->depth, "");
    w->first = 0;
    if (name != NULL) {
        quote(w->out, name);
        fputs(": ", w->out);
    }
}

void info_open(struct info_writer *w, const char *name, char bracket)
{
    begin(w, name);
    putc(bracket, w->out);
    w->depth++;
    w->first = 1;
}

void info_close(struct info_writer *w, char bracket)
{
    w->depth--;
    if (!w->first)
        fprintf(w->out, "\n%*s", 2 * w->depth, "");
    putc(bracket, w->out);
    w->first = 0;
    if (w->depth == 0)
        putc('\n', w->out);
}

void info_string(struct info_writer *w, const char *name, const char *value)
{
    begin(w, name);
    if (value != NULL)
        quote(w->out, value);
    else
        fputs("null", w->out);
}

void info_number(struct info_writer *w, const char *name, unsigned long long value)
{
    begin(w, name);
    fprintf(w->out, "%llu", value);
}

void info_bool(struct info_writer *w, const char *name, int value)
{
    begin(w, name);
    fputs(value == INFO_UNKNOWN ? "null" : value ? "true" : "false", w->out);
}

/* Writes null for the value `none`. */
static void number_or_null(struct info_writer *w, const char *name, unsigned long long value,
                           unsigned long long none)
{
    if (value == none)
        info_string(w, name, NULL);
    else
        info_number(w, name, value);
}

static void text_or_null(struct info_writer *w, const char *name, const char *text)
{
    info_string(w, name, text[0] != '\0' ? text : NULL);
}

/* ---- the machine ----------------------------------------------------------------------------- */

static void write_driver(struct info_writer *w, const struct info_machine *m)
{
    info_open(w, "driver", '{');
    text_or_null(w, "problem", m->problem);
    if (m->problem[0] == '\0') {
        info_string(w, "name", m->driver.name);
        info_number(w, "version", (unsigned)m->driver.version);
        info_number(w, "devices", (unsigned)m->driver.device_count);
        info_bool(w, "kernels", m->driver.has_kernels);
    }
    info_string(w, "libsymwin", symwin_version());
    info_close(w, '}');
}

static void write_handles(struct info_writer *w, const char *name, const struct info_handles *h)
{
    info_open(w, name, '{');
    info_bool(w, "attribute", h->claimed);
    info_bool(w, "tried", h->tried);
    info_bool(w, "works", h->works);
    info_string(w, "words", h->words);
    info_close(w, '}');
}

static void write_device(struct info_writer *w, int device, const struct info_device *d)
{
    info_open(w, NULL, '{');
    info_number(w, "ordinal", (unsigned)device);
    info_string(w, "name", d->name);
    text_or_null(w, "uuid", d->uuid);
    info_number(w, "total_bytes", d->total_bytes);
    info_number(w, "multiprocessors", (unsigned)d->multiprocessors);
    info_number(w, "capability", (unsigned)d->capability);
    info_bool(w, "vmm", d->vmm);
    number_or_null(w, "granularity", d->granularity, 0);
    number_or_null(w, "granularity_recommended", d->granularity_recommended, 0);
    write_handles(w, "posix_fd", &d->posix_fd);
    write_handles(w, "fabric", &d->fabric);
    info_bool(w, "multicast", d->multicast);
    number_or_null(w, "multicast_granularity", d->multicast_granularity, 0);
    number_or_null(w, "multicast_granularity_recommended", d->multicast_recommended, 0);
    info_bool(w, "kernels", d->kernels);
    info_bool(w, "usable", d->problem[0] == '\0');
    text_or_null(w, "problem", d->problem);
    info_close(w, '}');
}

static void write_links(struct info_writer *w, const struct info_machine *m)
{
    const int count = m->driver.device_count;

    info_open(w, "links", '[');
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const struct info_link *l = &m->links[(size_t)i * (size_t)count + (size_t)j];

            if (i == j)
                continue;
            info_open(w, NULL, '{');
            info_number(w, "from", (unsigned)i);
            info_number(w, "to", (unsigned)j);
            info_bool(w, "access", l->access);
            info_bool(w, "p2p_access", l->native_access);
            info_bool(w, "p2p_atomics", l->atomics);
            number_or_null(w, "p2p_rank", (unsigned long long)l->rank,
                           (unsigned long long)INFO_UNKNOWN);
            info_close(w, '}');
        }
    info_close(w, ']');
}

static void write_machine(struct info_writer *w, const struct info_machine *m)
{
    write_driver(w, m);
    info_open(w, "devices", '[');
    for (int i = 0; m->problem[0] == '\0' && i < m->driver.device_count; i++)
        write_device(w, i, &m->devices[i]);
    info_close(w, ']');
    if (m->problem[0] != '\0')
        return;
    write_links(w, m);
    info_open(w, "multicast", '{');
    info_bool(w, "would_be_used", m->multicast_allowed);
    info_string(w, "why", m->multicast_why);
    info_close(w, '}');
}

/* ---- the system ------------------------------------------------------------------------------ */

static void write_system(struct info_writer *w, const struct info_system *s)
{
    const struct info_imex *imex = &s->imex;

    info_open(w, "imex", '{');
    info_bool(w, "channels_folder", imex->folder);
    info_open(w, "channels", '[');
    for (int i = 0; i < imex->channel_count && i < INFO_MOST_CHANNELS; i++) {
        info_open(w, NULL, '{');
        info_string(w, "name", imex->channels[i].name);
        info_bool(w, "usable", imex->channels[i].usable);
        info_close(w, '}');
    }
    info_close(w, ']');
    info_number(w, "channel_count", (unsigned)imex->channel_count);
    info_bool(w, "nodes_config", imex->config);
    number_or_null(w, "nodes", (unsigned long long)imex->nodes, (unsigned long long)INFO_UNKNOWN);
    info_close(w, '}');
    info_open(w, "folders", '[');
    for (int i = 0; i < SW_TEMP_FOLDERS; i++) {
        const struct info_folder *f = &s->folders[i];

        info_open(w, NULL, '{');
        info_string(w, "variable", f->variable);
        text_or_null(w, "folder", f->name);
        info_bool(w, "usable", f->usable);
        info_bool(w, "used", i == s->folder);
        text_or_null(w, "words", f->words);
        info_close(w, '}');
    }
    info_close(w, ']');
    info_open(w, "limits", '[');
    for (int i = 0; i < INFO_LIMITS; i++) {
        const struct info_limit *l = &s->limits[i];

        info_open(w, NULL, '{');
        info_string(w, "name", l->name);
        info_bool(w, "known", l->known);
        number_or_null(w, "value", l->known ? l->value : ULLONG_MAX, ULLONG_MAX);
        number_or_null(w, "used", l->used, ULLONG_MAX);
        info_string(w, "of", l->of);
        text_or_null(w, "warning", l->warning);
        info_close(w, '}');
    }
    info_close(w, ']');
}

void info_json(FILE *out, const struct info_machine *m, const struct info_system *s)
{
    struct info_writer w = {.out = out};

    info_open(&w, NULL, '{');
    write_machine(&w, m);
    info_open(&w, "wrong_variables", '[');
    for (int i = 0; i < m->variable_count; i++)
        info_string(&w, NULL, m->variables[i]);
    for (int i = 0; i < m->nccl_count; i++)
        info_string(&w, NULL, m->nccl[i]);
    info_close(&w, ']');
    write_system(&w, s);
    info_bool(&w, "usable", info_nothing_is_wrong(m));
    info_close(&w, '}');
}
