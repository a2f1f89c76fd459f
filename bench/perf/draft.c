/* A file that has another name until it is complete, so that a run that fails destroys none of before. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "perf.h"

symwin_status draft_open(struct draft *d, const char *option, const char *name)
{
    struct stat there;

    *d = (struct draft){.option = option, .name = name};
    d->direct = stat(name, &there) == 0 &&
                !S_ISREG(there.st_mode); /* a device or a pipe stays one */
    if (d->direct)
        snprintf(d->path, sizeof d->path, "%s", name);
    else
        snprintf(d->path, sizeof d->path, "%s.%ld", name, (long)getpid());
    d->to = fopen(d->path, d->direct ? "w" : "wx");
    return d->to != NULL ? SYMWIN_OK
                         : sw_fail(SYMWIN_DENIED, "%s %s: %s", option, name, strerror(errno));
}

symwin_status draft_close(struct draft *d, enum draft_end end)
{
    int error = 0;

    if (d->to == NULL)
        return SYMWIN_OK;
    errno = 0;
    if (fflush(d->to) != 0 || ferror(d->to) || (!d->direct && fsync(fileno(d->to)) != 0))
        error = errno != 0 ? errno : EIO;
    if (fclose(d->to) != 0 && error == 0)
        error = errno;
    d->to = NULL;
    if (end == DRAFT_DROPPED && !d->direct)
        unlink(d->path);
    if (end == DRAFT_DROPPED)
        return SYMWIN_OK;
    if (end == DRAFT_DONE && error == 0 && !d->direct && rename(d->path, d->name) != 0)
        error = errno;
    if (error != 0)
        return sw_fail(SYMWIN_DENIED, "%s %s cannot be written: %s; what could be is in %s",
                       d->option, d->name, strerror(error), d->path);
    if (end == DRAFT_KEPT)
        draft_say(d);
    return SYMWIN_OK;
}

void draft_say(const struct draft *d)
{
    fprintf(stderr, "symwin-perf: %s: what was measured until then is in %s\n", d->option, d->path);
}
