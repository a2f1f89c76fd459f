/* Claims detect two jobs of one user on one host that have the same name and start at the same
 * time. Ranks of both jobs look for the id in the same file, so one job's rank could join the other
 * job's rendezvous.
 *
 * While a rank joins, it holds a lock on its claim file, "<id's file>.<rank>". A rank that finds
 * the file locked belongs to another job, or was given a wrong number: it writes to the file and
 * fails. Once all ranks have joined, the creator of the id looks at all claim files, and all ranks
 * fail if one was written to. The system releases the lock of a process that has ended.
 *
 * On another host than the creator's, a claim says who makes the id of the host's own rendezvous
 * (host_join.c). There a rank that finds the file locked looks for that id.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/bootstrap/id.h"

enum { MOST_TRIES = 100 };

struct sw_claim {
    struct sw_claim *next;
    unsigned char name[SW_NAME_BYTES]; /* of the id, once it is known */
    int fd;                            /* owned, in the close-on-fork set */
    char file[SW_FILE_NAME_BYTES + 16];
};

static struct sw_claim *claims; /* owned: those with a known id; under the poll lock */

static void file_name(const char *file, int rank, char name[SW_FILE_NAME_BYTES + 16])
{
    snprintf(name, SW_FILE_NAME_BYTES + 16, "%s.%d", file, rank);
}

/* Opens the file and adds it to the close-on-fork set. -1: see errno. */
static int open_claim_file(const char *name)
{
    int fd;

    sw_poll_lock();
    fd = sw_fork_set_add_new(open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    sw_poll_unlock();
    return fd;
}

/* Opens, locks and empties the file. -1: see errno; EWOULDBLOCK: another process has the lock, and
 * if `marks` the file now has a mark. */
static int lock_file(const char *name, int marks)
{
    struct stat file;
    int fd = -1, error = EWOULDBLOCK, tries;

    for (tries = 0; tries < MOST_TRIES; tries++) {
        fd = open_claim_file(name);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            error = errno;
            if (marks && error == EWOULDBLOCK && write(fd, "2", 1) != 1)
                error = errno;
            break;
        }
        /* The previous owner may have removed it before the lock was taken. */
        if (fstat(fd, &file) == 0 && file.st_nlink > 0 && ftruncate(fd, 0) == 0)
            return fd;
        sw_fork_set_close(fd);
    }
    if (tries < MOST_TRIES)
        sw_fork_set_close(fd);
    errno = error;
    return -1;
}

symwin_status sw_claim_take(const char *file, int rank, const char *job, const char *call,
                            struct sw_claim **out)
{
    struct sw_claim *claim = calloc(1, sizeof *claim);
    int error;

    *out = NULL;
    if (claim == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    file_name(file, rank, claim->file);
    claim->fd = lock_file(claim->file, 1);
    error = errno;
    if (claim->fd >= 0) {
        *out = claim;
        return SYMWIN_OK;
    }
    free(claim);
    if (error == EWOULDBLOCK)
        return sw_fail(SYMWIN_INVALID,
                       "%s: another process joins as rank %d of job \"%s\" at the same time: set "
                       "SYMWIN_JOB to a name unique to each job",
                       call, rank, job);
    if (error == EMFILE || error == ENFILE)
        return sw_fail(SYMWIN_NO_MEMORY,
                       "%s: no file descriptor is left for %s.%d; raise ulimit -n", call, file,
                       rank);
    return SYMWIN_OK; /* no claim, for example on a file system without locks */
}

symwin_status sw_claim_making(const char *file, const char *call, struct sw_claim **out)
{
    struct sw_claim *claim = calloc(1, sizeof *claim);

    *out = NULL;
    if (claim == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    snprintf(claim->file, sizeof claim->file, "%s.made", file);
    claim->fd = lock_file(claim->file, 0);
    if (claim->fd < 0 && errno == EWOULDBLOCK) {
        free(claim);
        return SYMWIN_OK;
    }
    if (claim->fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        sw_fail(SYMWIN_NO_MEMORY, "%s: no file descriptor is left for %s; raise ulimit -n", call,
                claim->file);
        free(claim);
        return SYMWIN_NO_MEMORY;
    }
    *out = claim; /* also on a file system without locks */
    return SYMWIN_OK;
}

void sw_claim_free(struct sw_claim *claim)
{
    if (claim == NULL)
        return;
    if (claim->fd >= 0) {
        unlink(claim->file); /* while locked: later the file may be another's claim */
        sw_fork_set_close(claim->fd);
    }
    free(claim);
}

void sw_claim_hold(struct sw_claim *claim, const struct sw_id *id)
{
    if (claim == NULL)
        return;
    sw_id_name(id, claim->name);
    sw_poll_lock();
    claim->next = claims;
    claims = claim;
    sw_poll_unlock();
}

void sw_claim_drop(const struct sw_id *id)
{
    struct sw_claim **at = &claims, *claim;
    unsigned char name[SW_NAME_BYTES];

    sw_id_name(id, name);
    sw_poll_lock();
    while (*at != NULL && memcmp((*at)->name, name, sizeof name) != 0)
        at = &(*at)->next;
    claim = *at;
    if (claim != NULL)
        *at = claim->next;
    sw_poll_unlock();
    sw_claim_free(claim);
}

int sw_claim_disputed(const char *file, int nranks)
{
    char name[SW_FILE_NAME_BYTES + 16];
    struct stat found;
    int r;

    for (r = 0; r < nranks; r++) {
        file_name(file, r, name);
        if (lstat(name, &found) == 0 && found.st_size > 0)
            return r;
    }
    return -1;
}

void sw_claims_forked(void)
{
    claims = NULL; /* the parent's */
}
