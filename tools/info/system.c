/* What the system allows this process: IMEX channels, folders for the bootstrap, limits. The only
 * change is a folder that is created, as the library would, and removed. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "info.h"

/* ---- IMEX ------------------------------------------------------------------------------------ */

static int is_channel(const struct dirent *entry)
{
    return strncmp(entry->d_name, "channel", 7) == 0;
}

static void look_for_channels(struct info_imex *imex, const char *root)
{
    struct dirent **entries = NULL;
    char name[PATH_MAX];
    int count;

    snprintf(name, sizeof name, "%s%s", root, INFO_CHANNELS);
    count = scandir(name, &entries, is_channel, versionsort); /* channel 2 before channel 10 */
    imex->folder = count >= 0;
    imex->channel_count = count > 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        if (i < INFO_MOST_CHANNELS) {
            struct info_channel *channel = &imex->channels[i];

            snprintf(channel->name, sizeof channel->name, "%.63s", entries[i]->d_name);
            snprintf(name, sizeof name, "%s%s/%s", root, INFO_CHANNELS, entries[i]->d_name);
            channel->usable = access(name, R_OK | W_OK) == 0;
        }
        free(entries[i]);
    }
    free(entries);
}

static void look_for_nodes(struct info_imex *imex, const char *root)
{
    char name[PATH_MAX], line[512];
    FILE *file;

    snprintf(name, sizeof name, "%s%s", root, INFO_NODES);
    imex->config = access(name, F_OK) == 0;
    imex->nodes = INFO_UNKNOWN;
    file = imex->config ? fopen(name, "re") : NULL;
    if (file == NULL)
        return;
    imex->nodes = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *p = line;

        while (isspace((unsigned char)*p))
            p++;
        imex->nodes += *p != '\0' && *p != '#';
    }
    fclose(file);
}

/* ---- folders --------------------------------------------------------------------------------- */

/* The library creates a new folder for each id's socket. Id files have one folder, which must
 * belong to this user alone. */
static void try_folder(struct info_folder *f, int which)
{
    struct sw_id id;
    char draft[sizeof id.folder], own[PATH_MAX];
    struct stat found;

    if (!sw_temp_path(which, "", f->name, sizeof f->name))
        return;
    if (f->name[0] == '\0') /* empty: the library appends a path with a slash */
        strcpy(f->name, "/");
    if (!sw_temp_path(which, "/symwin-XXXXXX", draft, sizeof draft)) {
        snprintf(f->words, sizeof f->words,
                 "its name is too long: %zu characters, and a socket's has room for %zu",
                 strlen(f->name), sizeof draft - sizeof "/symwin-XXXXXX");
        return;
    }
    if (mkdtemp(draft) == NULL) {
        snprintf(f->words, sizeof f->words, "no folder can be made there: %s", strerror(errno));
        return;
    }
    rmdir(draft);
    snprintf(own, sizeof own, "%.4000s/symwin-%lu", f->name, (unsigned long)geteuid());
    if (lstat(own, &found) == 0 &&
        (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0)) {
        snprintf(f->words, sizeof f->words,
                 "%.500s is not a folder of this user alone, so ids cannot be written there", own);
        return;
    }
    f->usable = 1;
    snprintf(f->words, sizeof f->words, "usable");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static unsigned long long resource_limit(int which)
{
    struct rlimit limit;

    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return ULLONG_MAX;
    return limit.rlim_cur;
}

static unsigned long long count_open(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned long long count = 0;
    struct dirent *entry;

    if (folder == NULL)
        return ULLONG_MAX;
    while ((entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1; /* the folder's own descriptor */
}

static unsigned long long count_lines(const char *name)
{
    FILE *file = fopen(name, "re");
    unsigned long long lines = 0;
    int c;

    if (file == NULL)
        return ULLONG_MAX;
    while ((c = getc(file)) != EOF)
        lines += c == '\n';
    fclose(file);
    return lines;
}

/* 0: cannot be read. */
static int read_number(const char *name, unsigned long long *value)
{
    FILE *file = fopen(name, "re");
    int got = 0;

    if (file == NULL)
        return 0;
    got = fscanf(file, "%llu", value) == 1;
    fclose(file);
    return got;
}

static unsigned long long address_space_used(void)
{
    unsigned long long pages = 0;

    if (!read_number("/proc/self/statm", &pages))
        return ULLONG_MAX;
    return pages * (unsigned long long)sysconf(_SC_PAGESIZE);
}

/* The address space that a communicator with a rank on each device reserves: a stride per rank, and
 * one for multicast. */
static unsigned long long flat_range(const struct info_machine *m)
{
    unsigned long long stride = 1ull << 30;
    size_t largest = 0;

    for (int i = 0; i < m->driver.device_count; i++)
        if (m->devices[i].total_bytes > largest)
            largest = m->devices[i].total_bytes;
    while (stride < largest)
        stride *= 2;
    return stride * (unsigned long long)(m->driver.device_count + 1);
}

static void look_at_limits(struct info_limit *limits, const struct info_machine *m)
{
    const int ranks = m->driver.device_count;
    const unsigned long long range = flat_range(m);
    struct info_limit *l = limits;
    char a[32], b[32];

    *l = (struct info_limit){
        .name = "RLIMIT_NOFILE",
        .known = 1,
        .value = resource_limit(RLIMIT_NOFILE),
        .used = count_open(),
        .of = "descriptors: a line to each process of a communicator, exported "
              "memory on its way"};
    if (l->value != ULLONG_MAX && l->used != ULLONG_MAX &&
        l->value < l->used + 64 + 4ull * (unsigned)ranks)
        snprintf(l->warning, sizeof l->warning, "%llu are left: raise it (ulimit -n)",
                 l->value > l->used ? l->value - l->used : 0);
    l++;
    *l = (struct info_limit){.name = "RLIMIT_AS",
                             .known = 1,
                             .value = resource_limit(RLIMIT_AS),
                             .used = address_space_used(),
                             .of = "bytes of addresses: the flat range of a communicator, and what "
                                   "CUDA reserves"};
    if (l->value < range)
        snprintf(l->warning, sizeof l->warning,
                 "%s: the flat range of a communicator on all devices takes %s (ulimit -v)",
                 info_bytes(l->value, a), info_bytes(range, b));
    l++;
    *l = (struct info_limit){.name = "vm.max_map_count",
                             .used = count_lines("/proc/self/maps"),
                             .of = "mappings of a process: each chunk of memory that a rank shows "
                                   "may be one or more"};
    l->known = read_number("/proc/sys/vm/max_map_count", &l->value);
    if (l->known && l->used != ULLONG_MAX && l->value < l->used + 1024)
        snprintf(l->warning, sizeof l->warning, "few are left: raise it (sysctl)");
    l++;
    *l = (struct info_limit){.name = "vm.overcommit_memory",
                             .used = ULLONG_MAX,
                             .of = "2: address ranges count as memory"};
    l->known = read_number("/proc/sys/vm/overcommit_memory", &l->value);
    if (l->known && l->value == 2)
        snprintf(l->warning, sizeof l->warning,
                 "reservations of CUDA and of flat ranges can fail: set it to 0 or 1");
    l++;
    *l = (struct info_limit){.name = "RLIMIT_MEMLOCK",
                             .known = 1,
                             .value = resource_limit(RLIMIT_MEMLOCK),
                             .used = ULLONG_MAX,
                             .of = "locked bytes: not CUDA's pinned memory, but that of RDMA "
                                   "libraries beside it"};
}

void info_look(struct info_system *s, const char *root, const struct info_machine *m)
{
    static const char *const variables[SW_TEMP_FOLDERS] = {"TMPDIR", "XDG_RUNTIME_DIR", NULL};

    memset(s, 0, sizeof *s);
    look_for_channels(&s->imex, root);
    look_for_nodes(&s->imex, root);
    s->folder = INFO_UNKNOWN;
    for (int i = 0; i < SW_TEMP_FOLDERS; i++) {
        s->folders[i].variable = variables[i];
        try_folder(&s->folders[i], i);
        if (s->folder == INFO_UNKNOWN && s->folders[i].usable)
            s->folder = i;
    }
    look_at_limits(s->limits, m);
}
