/* The facts as text and tables. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "info.h"

const char *info_bytes(unsigned long long bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, value >= 100 || value == (double)(int)value ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}

static const char *yes_no(int value)
{
    return value == INFO_UNKNOWN ? "not known" : value ? "yes" : "no";
}

static void driver_words(FILE *out, const struct info_machine *m)
{
    const symwin_driver_info *d = &m->driver;

    fprintf(out, "Driver\n");
    if (m->problem[0] != '\0') {
        fprintf(out, "  none: %s\n  libsymwin %s\n", m->problem, symwin_version());
        return;
    }
    fprintf(out, "  %s, version %d.%d, %d device%s\n", d->name, d->version / 1000,
            d->version % 1000 / 10, d->device_count, d->device_count == 1 ? "" : "s");
    fprintf(out, "  libsymwin %s, which has %skernels for it\n", symwin_version(),
            d->has_kernels ? "" : "no ");
}

/* ---- devices --------------------------------------------------------------------------------- */

/* All but the number and the UUID. */
static void device_words(FILE *out, const struct info_device *d)
{
    char a[32], b[32];

    fprintf(out, "%s, %s, %d multiprocessors, compute capability %d.%d\n",
            d->name[0] != '\0' ? d->name : "?", info_bytes(d->total_bytes, a), d->multiprocessors,
            d->capability / 10, d->capability % 10);
    fprintf(out, "     virtual memory management: %s", yes_no(d->vmm));
    if (d->granularity != 0)
        fprintf(out, "; granularity %s, recommended %s", info_bytes(d->granularity, a),
                info_bytes(d->granularity_recommended, b));
    fprintf(out, "\n     POSIX descriptors: %s\n", d->posix_fd.words);
    fprintf(out, "     fabric handles: %s\n", d->fabric.words);
    fprintf(out, "     multicast: attribute %s", yes_no(d->multicast));
    if (d->multicast_granularity != 0)
        fprintf(out, "; granularity %s, recommended %s", info_bytes(d->multicast_granularity, a),
                info_bytes(d->multicast_recommended, b));
    fprintf(out, "\n     %s%s\n",
            d->problem[0] == '\0' ? "symwin can use it" : "NOT USABLE: ", d->problem);
}

/* Whether both have the same text; no if there is no memory. */
static int alike(const struct info_device *x, const struct info_device *y)
{
    const struct info_device *const devices[2] = {x, y};
    char *text[2] = {NULL, NULL};
    size_t bytes;
    int i, same;

    for (i = 0; i < 2; i++) {
        FILE *to = open_memstream(&text[i], &bytes);

        if (to == NULL)
            break;
        device_words(to, devices[i]);
        if (fclose(to) != 0)
            break;
    }
    same = i == 2 && strcmp(text[0], text[1]) == 0;
    free(text[0]);
    free(text[1]);
    return same;
}

/* Adjacent devices that differ only in the UUID are described once. */
static void devices_words(FILE *out, const struct info_machine *m)
{
    int end;

    fprintf(out, "\nDevices\n");
    for (int first = 0; first < m->driver.device_count; first = end) {
        end = first + 1;
        while (end < m->driver.device_count && alike(&m->devices[first], &m->devices[end]))
            end++;
        if (end - first > 1)
            fprintf(out, "  %d-%d: each ", first, end - 1);
        else
            fprintf(out, "  %d: ", first);
        device_words(out, &m->devices[first]);
        for (int i = first; i < end; i++)
            fprintf(out, "     UUID of %d: %s\n", i,
                    m->devices[i].uuid[0] != '\0' ? m->devices[i].uuid : "not known");
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

static const struct info_link *link_of(const struct info_machine *m, int from, int to)
{
    return &m->links[(size_t)from * (size_t)m->driver.device_count + (size_t)to];
}

static void access_table(FILE *out, const struct info_machine *m)
{
    const int count = m->driver.device_count;

    fprintf(out, "  from\\to");
    for (int j = 0; j < count; j++)
        fprintf(out, "%4d", j);
    fprintf(out, "\n");
    for (int i = 0; i < count; i++) {
        fprintf(out, "  %7d", i);
        for (int j = 0; j < count; j++) {
            const int access = i == j ? 0 : link_of(m, i, j)->access;

            fprintf(out, "%4s",
                    i == j                   ? "-"
                    : access == INFO_UNKNOWN ? "?"
                    : access                 ? "yes"
                                             : "no");
        }
        fprintf(out, "\n");
    }
}

/* One sentence if all links are alike, as in most machines; otherwise one per link. */
static void p2p_words(FILE *out, const struct info_machine *m)
{
    const int count = m->driver.device_count;
    const struct info_link *first = link_of(m, 0, 1);
    int alike = 1;

    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            alike = alike && (i == j || (link_of(m, i, j)->rank == first->rank &&
                                         link_of(m, i, j)->atomics == first->atomics &&
                                         link_of(m, i, j)->native_access == first->native_access));
    if (first->native_access == INFO_UNKNOWN && alike) {
        fprintf(out, "  The driver does not tell attributes of links.\n");
        return;
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const struct info_link *l = link_of(m, i, j);

            if (i == j || (alike && (i != 0 || j != 1)))
                continue;
            if (alike)
                fprintf(out, "  All links: ");
            else
                fprintf(out, "  %d to %d: ", i, j);
            fprintf(out, "access %s, native atomics %s, ", yes_no(l->native_access),
                    yes_no(l->atomics));
            if (l->rank == INFO_UNKNOWN)
                fprintf(out, "performance rank not known\n");
            else
                fprintf(out, "performance rank %d\n", l->rank);
        }
}

static void links_words(FILE *out, const struct info_machine *m)
{
    const int count = m->driver.device_count;
    int apart = 0;

    fprintf(out, "\nAccess to each other's memory\n");
    if (count < 2) {
        fprintf(out, "  There is one device: its ranks share it.\n");
        return;
    }
    access_table(out, m);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            apart += i != j && link_of(m, i, j)->access <= 0;
    if (apart == 0)
        fprintf(out, "  All are peers: a communicator can have them all.\n");
    else
        fprintf(out,
                "  %d of %d pairs are no peers: no communicator can have both devices of such "
                "a pair.\n",
                apart, count * (count - 1));
    p2p_words(out, m);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void multicast_words(FILE *out, const struct info_machine *m)
{
    int claimed = 0;

    for (int i = 0; i < m->driver.device_count; i++)
        claimed += m->devices[i].multicast > 0;
    fprintf(out, "\nMulticast (only asked about; nothing was made)\n");
    fprintf(out, "  %d of %d devices claim it\n", claimed, m->driver.device_count);
    fprintf(out, "  the library %s use it here: %s\n", m->multicast_allowed ? "would" : "would not",
            m->multicast_why);
}

static void variables_words(FILE *out, const char *who, const char (*wrong)[INFO_TEXT], int count)
{
    fprintf(out, "\nVariables that %s reads\n", who);
    for (int i = 0; i < count; i++)
        fprintf(out, "  WRONG: %s\n", wrong[i]);
    if (count == 0)
        fprintf(out, "  every value is valid\n");
}

static void imex_words(FILE *out, const struct info_imex *imex)
{
    fprintf(out, "\nIMEX (fabric handles between hosts, and on some systems at all)\n");
    if (!imex->folder)
        fprintf(out, "  %s is not there: no channels\n", INFO_CHANNELS);
    else
        fprintf(out, "  %s has %d channel%s\n", INFO_CHANNELS, imex->channel_count,
                imex->channel_count == 1 ? "" : "s");
    for (int i = 0; i < imex->channel_count && i < INFO_MOST_CHANNELS; i++)
        fprintf(out, "    %s: %s\n", imex->channels[i].name,
                imex->channels[i].usable ? "can be read and written"
                                         : "NOT for this process: permissions");
    if (imex->channel_count > INFO_MOST_CHANNELS)
        fprintf(out, "    and %d more\n", imex->channel_count - INFO_MOST_CHANNELS);
    if (!imex->config)
        fprintf(out, "  %s is not there: the nvidia-imex service is not set up\n", INFO_NODES);
    else if (imex->nodes == INFO_UNKNOWN)
        fprintf(out, "  %s is there, but cannot be read\n", INFO_NODES);
    else
        fprintf(out, "  %s names %d node%s\n", INFO_NODES, imex->nodes,
                imex->nodes == 1 ? "" : "s");
}

static void folders_words(FILE *out, const struct info_system *s)
{
    fprintf(out, "\nWhere processes of this host meet\n");
    for (int i = 0; i < SW_TEMP_FOLDERS; i++) {
        const struct info_folder *f = &s->folders[i];
        const char *variable = f->variable != NULL ? f->variable : "otherwise";

        if (f->name[0] == '\0')
            fprintf(out, "  %s: not set\n", variable);
        else
            fprintf(out, "  %s: %s: %s%s\n", variable, f->name, f->words,
                    i == s->folder ? ", and used" : "");
    }
    if (s->folder == INFO_UNKNOWN)
        fprintf(out, "  NONE: ranks must be threads of one process; set TMPDIR to a folder of this "
                     "user\n");
}

static void limits_words(FILE *out, const struct info_system *s)
{
    fprintf(out, "\nLimits of this process\n");
    for (int i = 0; i < INFO_LIMITS; i++) {
        const struct info_limit *l = &s->limits[i];

        fprintf(out, "  %s ", l->name);
        if (!l->known)
            fprintf(out, "not known");
        else if (l->value == ULLONG_MAX)
            fprintf(out, "none");
        else
            fprintf(out, "%llu", l->value);
        if (l->used != ULLONG_MAX)
            fprintf(out, " (now %llu)", l->used);
        fprintf(out, ": %s\n", l->of);
        if (l->warning[0] != '\0')
            fprintf(out, "    LOW: %s\n", l->warning);
    }
}

void info_words(FILE *out, const struct info_machine *m, const struct info_system *s)
{
    driver_words(out, m);
    if (m->problem[0] == '\0') {
        devices_words(out, m);
        links_words(out, m);
        multicast_words(out, m);
    }
    variables_words(out, "the creation of a communicator", m->variables, m->variable_count);
    variables_words(out, "libsymwin-nccl.so", m->nccl, m->nccl_count);
    imex_words(out, &s->imex);
    folders_words(out, s);
    limits_words(out, s);
    fprintf(out, "\n%s\n",
            !info_all_usable(m)        ? "symwin cannot use every device: see above."
            : !info_can_communicate(m) ? "No communicator can be created with these variables: "
                                         "see above."
            : m->nccl_count > 0        ? "symwin can use every device, but variables for programs "
                                         "on NCCL are wrong: see above."
                                       : "symwin can use every device.");
}
