/* Ways to one id for all ranks: the launcher's environment, a transport of the caller's, and a
 * communicator that is there already.
 *
 * Processes of a launched job meet in a file: rank 0 makes the id and writes it down under the job's
 * name, in a folder that only this user can enter; it is removed when the id has served. A file that
 * an earlier job has left is known by nobody answering for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap.h"

enum { POLL_MS = 1, NAME_BYTES = 256 };

static const char env_call[] = "symwin_unique_id_from_env";
static const char split_call[] = "symwin_comm_split";

int sw_milliseconds(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    char *end = NULL;
    long value;

    if (text == NULL || text[0] == '\0')
        return otherwise;
    value = strtol(text, &end, 10);
    return *end == '\0' && value > 0 && value <= 1000000000 ? (int)value : otherwise;
}

symwin_status symwin_launch_query(symwin_launch_info *info)
{
    static const char call[] = "symwin_launch_query";
    struct sw_launch launch;
    symwin_status status;

    if (info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: info is NULL", call);
    status = sw_launch_read(call, &launch);
    if (status == SYMWIN_OK)
        *info = (symwin_launch_info){launch.launcher, launch.rank, launch.nranks, launch.local_rank,
                                     launch.local_nranks};
    return status;
}

/* ---- the environment ---- */

/* A folder of this user that no other can enter, made where it is not there. */
static int folder_ready(const char *name)
{
    struct stat folder;

    if (mkdir(name, 0700) != 0 && errno != EEXIST)
        return 0;
    return lstat(name, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
           (folder.st_mode & 077) == 0;
}

/* The file for the job's next id: all its processes make the same calls, so all count alike. */
static symwin_status file_name(const struct sw_launch *launch, char name[NAME_BYTES])
{
    static atomic_uint calls;
    const unsigned number = atomic_fetch_add(&calls, 1);
    const struct sw_part parts[] = {{launch->job, strlen(launch->job)}, {&number, sizeof number}};
    unsigned char digest[SW_DIGEST_BYTES];
    char folder[64];
    size_t length;
    int which, i;

    sw_sha256(parts, 2, digest);
    snprintf(folder, sizeof folder, "/symwin-%lu", (unsigned long)geteuid());
    for (which = 0; which < SW_PLACES; which++)
        if (sw_place_name(which, folder, name, NAME_BYTES - 40) && folder_ready(name))
            break;
    if (which == SW_PLACES)
        return sw_fail(
            SYMWIN_DENIED,
            "%s: there is no folder symwin-%lu that belongs to this user alone in TMPDIR, "
            "XDG_RUNTIME_DIR or /tmp; set TMPDIR to a private folder",
            env_call, (unsigned long)geteuid());
    length = strlen(name);
    name[length++] = '/';
    for (i = 0; i < 16; i++, length += 2)
        snprintf(name + length, 3, "%02x", digest[i]);
    return SYMWIN_OK;
}

/* All of it at once: whoever finds the file finds a whole id. */
static symwin_status file_write(const char *name, const struct sw_id *id)
{
    char draft[NAME_BYTES + 32];
    ssize_t wrote = -1;
    int fd;

    snprintf(draft, sizeof draft, "%s.%ld", name, (long)getpid());
    unlink(draft);
    fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        wrote = write(fd, id, sizeof *id);
        close(fd);
    }
    if (wrote == (ssize_t)sizeof *id && rename(draft, name) == 0)
        return SYMWIN_OK;
    sw_fail(SYMWIN_DENIED, "%s: %s cannot be written: %s", env_call, name, strerror(errno));
    unlink(draft);
    return SYMWIN_DENIED;
}

static int file_read(const char *name, struct sw_id *id)
{
    const int fd = open(name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat file;
    int right;

    if (fd < 0)
        return 0;
    right = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
            (file.st_mode & 077) == 0 && read(fd, id, sizeof *id) == (ssize_t)sizeof *id;
    close(fd);
    return right;
}

static symwin_status make_and_write(const char *name, struct sw_id *id)
{
    char *copy = strdup(name);
    symwin_status status;

    if (copy == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", env_call);
    status = sw_id_make(id, copy, env_call);
    if (status != SYMWIN_OK) {
        free(copy);
        return status;
    }
    status = file_write(name, id);
    if (status != SYMWIN_OK) {
        char text[SW_TEXT_BYTES];

        snprintf(text, sizeof text, "%s", symwin_last_error());
        symwin_unique_id_release((const symwin_unique_id *)(const void *)id);
        sw_error_restore(text);
    }
    return status;
}

static symwin_status wait_and_read(const char *name, const struct sw_launch *launch,
                                   struct sw_id *id)
{
    const int timeout_ms = sw_milliseconds(SW_BOOTSTRAP_TIMEOUT, SW_BOOTSTRAP_TIMEOUT_MS);
    const int64_t deadline = sw_now_ms() + timeout_ms;
    const struct timespec moment = {.tv_nsec = POLL_MS * 1000000};
    char text[SW_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", symwin_last_error());
    while (!file_read(name, id) || !sw_id_is_open(id, deadline)) {
        if (sw_now_ms() >= deadline)
            return sw_fail(SYMWIN_TIMEOUT,
                           "%s: rank 0 of job \"%s\" did not come within %d ms; start every rank, "
                           "with the same TMPDIR",
                           env_call, launch->job, timeout_ms);
        nanosleep(&moment, NULL);
    }
    sw_error_restore(text); /* of looking in vain */
    return SYMWIN_OK;
}

symwin_status symwin_unique_id_from_env(symwin_unique_id *id)
{
    struct sw_launch launch;
    char name[NAME_BYTES];
    symwin_status status;
    struct sw_id made;

    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", env_call);
    status = sw_launch_read(env_call, &launch);
    if (status != SYMWIN_OK)
        return status;
    if (launch.local_nranks != 0 && launch.local_nranks != launch.nranks)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the job has %d of its %d processes on this host; all must be on one",
                       env_call, launch.local_nranks, launch.nranks);
    status = file_name(&launch, name);
    if (status == SYMWIN_OK)
        status = launch.rank == 0 ? make_and_write(name, &made)
                                  : wait_and_read(name, &launch, &made);
    if (status == SYMWIN_OK)
        memcpy(id, &made, sizeof *id);
    return status;
}

/* ---- a transport of the caller's ---- */

/* What rank 0 spreads. */
struct shared {
    int32_t status;
    int32_t zero;
    symwin_unique_id id;
    char text[256];
};

symwin_status symwin_unique_id_share(int nranks, int rank, symwin_allgather_fn allgather,
                                     void *context, symwin_unique_id *id)
{
    static const char call[] = "symwin_unique_id_share";
    struct shared mine = {.status = SYMWIN_OK};
    symwin_status status = SYMWIN_OK;
    struct shared *all;
    int error;

    if (nranks < 1 || nranks > SW_MAX_RANKS || rank < 0 || rank >= nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", call, rank, nranks);
    if (allgather == NULL || id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", call, id == NULL ? "id" : "allgather");
    all = calloc((size_t)nranks, sizeof *all);
    if (all == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
    if (rank == 0) {
        mine.status = (int32_t)symwin_unique_id_create(&mine.id);
        if (mine.status != SYMWIN_OK)
            snprintf(mine.text, sizeof mine.text, "%s", symwin_last_error());
    }
    error = allgather(context, &mine, all, sizeof mine);
    if (error != 0) {
        status = sw_fail(SYMWIN_INVALID, "%s: allgather returned %d", call, error);
    } else if (all[0].status != SYMWIN_OK) {
        all[0].text[sizeof all[0].text - 1] = '\0';
        status = sw_fail(all[0].status > 0 && all[0].status <= SYMWIN_STATUS_LAST
                             ? (symwin_status)all[0].status
                             : SYMWIN_INVALID,
                         "%s: rank 0: %s", call, all[0].text);
    } else {
        *id = all[0].id;
    }
    if (status != SYMWIN_OK && rank == 0 && mine.status == SYMWIN_OK) {
        char text[SW_TEXT_BYTES];

        snprintf(text, sizeof text, "%s", symwin_last_error());
        symwin_unique_id_release(&mine.id);
        sw_error_restore(text);
    }
    free(all);
    return status;
}

/* ---- a communicator ---- */

/* This rank's part, from all ranks' votes {color, key}. */
static void find_part(const symwin_comm *parent, int color, int *nranks, int *rank, int *first)
{
    const uint64_t *own = parent->votes[parent->rank].values;
    int64_t lowest = INT64_MAX;
    int r;

    *nranks = *rank = *first = 0;
    for (r = 0; r < parent->nranks; r++) {
        const int32_t key = (int32_t)parent->votes[r].values[1];

        if ((int32_t)parent->votes[r].values[0] != color)
            continue;
        ++*nranks;
        *rank += key < (int32_t)own[1] || (key == (int32_t)own[1] && r < parent->rank);
        if (key < lowest) {
            lowest = key;
            *first = r;
        }
    }
}

symwin_status symwin_comm_split(symwin_comm *parent, int color, int key,
                                const symwin_comm_options *options, symwin_comm **comm)
{
    const uint64_t values[] = {(uint32_t)color, (uint32_t)key};
    symwin_unique_id *ids = NULL;
    symwin_unique_id own = {{0}};
    int nranks, rank, first;
    symwin_status status;

    if (comm == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: comm is NULL", split_call);
    status = sw_comm_enter(parent, split_call);
    if (status != SYMWIN_OK)
        return status;
    parent->sequence++;
    ids = calloc((size_t)parent->nranks, sizeof *ids);
    if (ids == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ids", parent->nranks);
    else if (color < SYMWIN_SPLIT_NONE)
        status = sw_fail(SYMWIN_INVALID, "color is %d; pass SYMWIN_SPLIT_NONE, or 0 or more",
                         color);
    status = sw_agree(parent, split_call, status, values, 2);
    if (status == SYMWIN_OK) {
        find_part(parent, color, &nranks, &rank, &first);
        if (color != SYMWIN_SPLIT_NONE && rank == 0)
            status = symwin_unique_id_create(&own);
        status = sw_agree(parent, split_call, status, NULL, 0);
    }
    if (status == SYMWIN_OK)
        status = sw_exchange_allgather(parent->group->exchange, parent->rank, &own, sizeof own, ids,
                                       parent->timeout_ms, split_call);
    sw_comm_leave(parent);
    if (status == SYMWIN_OK && color == SYMWIN_SPLIT_NONE)
        *comm = NULL;
    else if (status == SYMWIN_OK)
        status = symwin_comm_create(&ids[first], nranks, rank, parent->device, options, comm);
    else if (memcmp(own.bytes, (symwin_unique_id){{0}}.bytes, sizeof own) != 0) {
        char text[SW_TEXT_BYTES];

        snprintf(text, sizeof text, "%s", symwin_last_error());
        symwin_unique_id_release(&own);
        sw_error_restore(text);
    }
    free(ids);
    return status;
}
