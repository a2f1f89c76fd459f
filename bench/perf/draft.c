/* A draft: a file has a temporary name until it is complete, so that a run that fails does not
 * overwrite the file of an earlier run.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "perf.h"

/* The open ones, for the signal handler, which can only write and unlink. */
enum { MOST_DRAFTS = 4 };
static struct draft *volatile open_drafts[MOST_DRAFTS];

static void end_by(int number)
{
    for (int i = 0; i < MOST_DRAFTS; i++) {
        const struct draft *d = open_drafts[i];

        if (d != NULL && !d->worth)
            unlink(d->path);
        else if (d != NULL &&
                 write(STDERR_FILENO, d->where[d->wrong], strlen(d->where[d->wrong])) < 0)
            continue;
    }
    raise(number); /* runs the default action after the handler has returned */
}

static void remember(struct draft *d)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = end_by, .sa_flags = (int)SA_RESETHAND};
    int i = 0;

    while (i < MOST_DRAFTS && open_drafts[i] != NULL)
        i++;
    if (i == MOST_DRAFTS)
        return;
    open_drafts[i] = d;
    for (size_t s = 0; s < sizeof signals / sizeof signals[0]; s++) {
        struct sigaction before;

        if (sigaction(signals[s], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[s], &action, NULL);
    }
}

static void forget(const struct draft *d)
{
    for (int i = 0; i < MOST_DRAFTS; i++)
        if (open_drafts[i] == d)
            open_drafts[i] = NULL;
}

void draft_flush(struct draft *d)
{
    errno = 0;
    if (fflush(d->to) != 0 && d->error == 0)
        d->error = errno != 0 ? errno : EIO;
    d->worth = 1;
}

int draft_open(struct draft *d, const char *option, const char *name)
{
    struct stat there;

    *d = (struct draft){.option = option, .name = name};
    d->direct = stat(name, &there) == 0 &&
                !S_ISREG(there.st_mode); /* a device or a pipe is never replaced */
    if (d->direct)
        snprintf(d->path, sizeof d->path, "%s", name);
    else
        snprintf(d->path, sizeof d->path, "%s.%ld", name, (long)getpid());
    snprintf(d->where[0], sizeof d->where[0], "symwin-perf: %s: partial results are in %s\n",
             option, d->path);
    snprintf(d->where[1], sizeof d->where[1],
             "symwin-perf: %s: a result was wrong: only rows of collectives before it are in %s\n",
             option, d->path);
    d->to = fopen(d->path, d->direct ? "w" : "wx");
    if (d->to != NULL && !d->direct)
        remember(d);
    return d->to != NULL || fail(SYMWIN_DENIED, "%s %s: %s", option, name, strerror(errno));
}

int draft_close(struct draft *d, enum draft_end end)
{
    int error = d->error;

    if (d->to == NULL)
        return 1;
    forget(d);
    errno = 0;
    if (fflush(d->to) != 0 || ferror(d->to) || (!d->direct && fsync(fileno(d->to)) != 0))
        error = error != 0 ? error : errno != 0 ? errno : EIO;
    if (fclose(d->to) != 0 && error == 0)
        error = errno;
    d->to = NULL;
    if (end == DRAFT_DROPPED && !d->direct)
        unlink(d->path);
    if (end == DRAFT_DROPPED)
        return 1;
    if (end == DRAFT_DONE && error == 0 && !d->direct && rename(d->path, d->name) != 0)
        error = errno;
    if (error != 0)
        return fail(SYMWIN_DENIED, "%s %s cannot be written: %s%s%s", d->option, d->name,
                    strerror(error), d->direct ? "" : "; partial results are in ",
                    d->direct ? "" : d->path);
    if (end == DRAFT_KEPT)
        draft_say(d);
    return 1;
}

void draft_say(const struct draft *d)
{
    fputs(d->where[d->wrong], stderr);
}
