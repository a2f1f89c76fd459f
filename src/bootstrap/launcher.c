/* The launcher of this rank and its other children, found in /proc. Any thread. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/bootstrap/bootstrap.h"

enum { MOST_HOPS = 32, MOST_BYTES = 1 << 20 };

/* Reads a process's parent and its start time in clock ticks. 0: unknown. */
static int read_process(long pid, long *parent, unsigned long long *started)
{
    char path[64], text[1024];
    const char *end;
    size_t bytes;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    end = strrchr(text, ')'); /* the last: the name may have some */
    return end != NULL && sscanf(end,
                                 ") %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
                                 "%*d %*d %*d %*d %llu",
                                 parent, started) == 2;
}

/* The environment that a process was started with: "NAME=value" strings one after another, and an
 * empty one at the end. The caller frees it. NULL: not readable. */
static char *read_variables(long pid)
{
    char *text = calloc(1, MOST_BYTES + 2);
    char path[64];
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    file = fopen(path, "re");
    if (file == NULL || text == NULL || fread(text, 1, MOST_BYTES, file) == 0) {
        free(text);
        text = NULL;
    }
    if (file != NULL)
        fclose(file);
    return text;
}

static const char *value_of(const char *variables, const char *name)
{
    const size_t length = strlen(name);

    for (; *variables != '\0'; variables += strlen(variables) + 1)
        if (strncmp(variables, name, length) == 0 && variables[length] == '=')
            return variables + length + 1;
    return NULL;
}

static int is_same(const char *a, const char *b, const char *name)
{
    const char *of_a = value_of(a, name), *of_b = value_of(b, name);

    return of_a == NULL || of_b == NULL ? of_a == of_b : strcmp(of_a, of_b) == 0;
}

/* Finds the launcher: the nearest ancestor that was started with another value of `variable`, which
 * holds the rank, or whose environment is not readable. Processes in between, for example a shell,
 * have this rank's value. Fills `chain` with this process, those in between and the launcher;
 * returns their number. 0: unknown. */
static int find_launcher(const char *variable, const char *own, long chain[MOST_HOPS])
{
    unsigned long long started;
    int hops = 0;

    if (value_of(own, variable) == NULL)
        return 0; /* this process has set it itself */
    chain[hops++] = (long)getpid();
    while (hops < MOST_HOPS && read_process(chain[hops - 1], &chain[hops], &started) &&
           chain[hops] > 1) {
        char *theirs = read_variables(chain[hops]);
        const int is_rank = theirs != NULL && is_same(own, theirs, variable);

        free(theirs);
        hops++;
        if (!is_rank)
            return hops;
    }
    return 0;
}

void sw_launcher_name(const char *variable, char *name, size_t room)
{
    char *own = read_variables((long)getpid());
    unsigned long long started;
    long chain[MOST_HOPS], above;
    int hops = own != NULL ? find_launcher(variable, own, chain) : 0;

    name[0] = '\0';
    if (hops > 0 && read_process(chain[hops - 1], &above, &started))
        snprintf(name, room, "%ld.%llu", chain[hops - 1], started);
    free(own);
}

/* ---- other children of the launcher ---- */

/* The path of the program that a process runs; "": not readable. */
static void read_program(long pid, char *program, size_t room)
{
    char path[64];
    ssize_t length;

    snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    length = readlink(path, program, room - 1);
    program[length > 0 ? length : 0] = '\0';
}

struct search {
    const char *const *names;
    const char *own;
    char program[4096]; /* of `self`: a helper has the same variables, but another program */
    long self;          /* the launcher's child that is this rank, or started it */
    unsigned long long since, not_after; /* start times of rivals; not_after is that of `self` */
};

/* Only processes that started earlier count: of two rivals the first goes on, the second fails. */
static int is_rival(const struct search *s, long pid)
{
    char program[sizeof s->program];
    unsigned long long started;
    char *theirs;
    long parent;
    int same, i;

    if (pid == s->self || !read_process(pid, &parent, &started) || started < s->since ||
        started > s->not_after || (started == s->not_after && pid > s->self))
        return 0;
    read_program(pid, program, sizeof program);
    if (strcmp(program, s->program) != 0)
        return 0;
    theirs = read_variables(pid);
    same = theirs != NULL;
    for (i = 0; same && s->names[i] != NULL; i++)
        same = is_same(s->own, theirs, s->names[i]);
    free(theirs);
    return same;
}

/* Searches the children of one thread of the launcher: /proc lists them per thread. */
static long rival_of(const struct search *s, long launcher, const char *thread)
{
    long found = 0, pid;
    char path[320];
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/task/%s/children", launcher, thread);
    file = fopen(path, "re");
    while (file != NULL && found == 0 && fscanf(file, "%ld", &pid) == 1)
        found = is_rival(s, pid) ? pid : 0;
    if (file != NULL)
        fclose(file);
    return found;
}

static long search_children(const struct search *s, long launcher)
{
    struct dirent *entry;
    char path[64];
    long found = 0;
    DIR *threads;

    snprintf(path, sizeof path, "/proc/%ld/task", launcher);
    threads = opendir(path);
    while (threads != NULL && found == 0 && (entry = readdir(threads)) != NULL)
        if (entry->d_name[0] != '.')
            found = rival_of(s, launcher, entry->d_name);
    if (threads != NULL)
        closedir(threads);
    return found;
}

long sw_launcher_rival(const char *const *names, int within_ms)
{
    const unsigned long long ticks = (unsigned long long)sysconf(_SC_CLK_TCK);
    const unsigned long long within = (unsigned long long)within_ms * ticks / 1000;
    char *own = read_variables((long)getpid());
    struct search s = {.names = names, .own = own};
    long chain[MOST_HOPS], found = 0, above;
    const int hops = own != NULL ? find_launcher(names[0], own, chain) : 0;

    if (hops > 1 && read_process(chain[hops - 2], &above, &s.not_after)) {
        s.self = chain[hops - 2];
        read_program(s.self, s.program, sizeof s.program);
        s.since = s.not_after > within ? s.not_after - within : 0;
        found = search_children(&s, chain[hops - 1]);
    }
    free(own);
    return found;
}
