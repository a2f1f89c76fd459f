/* The file through which ranks of one user on one host find an id, in a folder that only this user
 * can enter. A leftover file does no harm: the creator of its id does not answer, so readers ignore
 * it. Any thread, without the poll lock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/bootstrap/id.h"

enum { FULL_SCAN_EVERY = 16 }; /* one in so many looks reads whole folders */

/* Relative paths are refused: they would differ between processes. */
int sw_temp_path(int which, const char *tail, char *name, size_t room)
{
    const char *const folders[SW_TEMP_FOLDERS] = {getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"),
                                                  "/tmp"};

    if (folders[which] == NULL || folders[which][0] != '/' ||
        strlen(folders[which]) + strlen(tail) >= room)
        return 0;
    strcpy(name, folders[which]);
    strcat(name, tail);
    return 1;
}

/* ---- folders ---- */

/* In a folder that others can write to, another user can take the name that the processes of this
 * user try first. Then this user's folder gets a random name, which nobody can take beforehand. */
#define OTHER_NAME "-XXXXXX"

static int is_private(const char *folder)
{
    struct stat file;

    return lstat(folder, &file) == 0 && S_ISDIR(file.st_mode) && file.st_uid == geteuid() &&
           (file.st_mode & 077) == 0;
}

/* The folder with the first name. 0: there is none; -1: and there cannot be one. */
static int first_folder(int which, int make, char *name, size_t room)
{
    char tail[64];

    snprintf(tail, sizeof tail, "/symwin-%lu", (unsigned long)geteuid());
    if (!sw_temp_path(which, tail, name, room))
        return -1;
    if (make && mkdir(name, 0700) != 0 && errno != EEXIST)
        return -1;
    return is_private(name);
}

/* The next folder with a random name, among the entries of the folder around it. 0: none was found;
 * -1: the time is over among entries with such names, of which another user can add any number. */
static int next_folder(DIR *entries, int which, char *name, size_t room, int64_t deadline)
{
    struct dirent *entry;
    char first[64];
    size_t length;
    int seen = 0;

    snprintf(first, sizeof first, "symwin-%lu-", (unsigned long)geteuid());
    length = strlen(first);
    while ((entry = readdir(entries)) != NULL) {
        const int named = strncmp(entry->d_name, first, length) == 0;

        seen |= named;
        if (sw_now_ms() >= deadline)
            return -seen;
        if (named && (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) &&
            strlen(entry->d_name) == length + sizeof OTHER_NAME - 2 &&
            sw_temp_path(which, "/", name, room) && strlen(name) + strlen(entry->d_name) < room &&
            is_private(strcat(name, entry->d_name)))
            return 1;
    }
    return 0;
}

static DIR *open_folder(int which)
{
    char folder[SW_FILE_NAME_BYTES];
    DIR *entries = NULL;
    int fd;

    if (!sw_temp_path(which, "/", folder, sizeof folder))
        return NULL;
    sw_poll_lock();
    fd = sw_fork_set_add_new(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    sw_poll_unlock();
    if (fd >= 0)
        entries = fdopendir(fd);
    if (fd >= 0 && entries == NULL)
        sw_fork_set_close(fd);
    return entries;
}

static void close_folder(DIR *entries)
{
    if (entries == NULL)
        return;
    sw_poll_lock();
    sw_fork_set_remove(dirfd(entries));
    closedir(entries);
    sw_poll_unlock();
}

int sw_own_folder(int which, int make, char *name, size_t room, int64_t deadline)
{
    char tail[64];
    int found = first_folder(which, make, name, room);
    DIR *entries;

    if (found != 0)
        return found > 0;
    entries = open_folder(which);
    found = entries == NULL ? 0 : next_folder(entries, which, name, room, deadline);
    close_folder(entries);
    if (found != 0 || !make)
        return found;
    snprintf(tail, sizeof tail, "/symwin-%lu" OTHER_NAME, (unsigned long)geteuid());
    return sw_temp_path(which, tail, name, room) && mkdtemp(name) != NULL && is_private(name);
}

/* ---- ids ---- */

void sw_id_tail(const struct sw_part *parts, int count, char tail[SW_TAIL_BYTES])
{
    unsigned char digest[SW_DIGEST_BYTES];
    int i;

    sw_sha256(parts, count, digest);
    tail[0] = '/';
    for (i = 0; i < SW_TAIL_BYTES / 2 - 1; i++)
        snprintf(tail + 1 + 2 * i, 3, "%02x", digest[i]);
}

symwin_status sw_id_full(const char *call)
{
    return sw_fail(
        SYMWIN_TIMEOUT,
        "%s: other users have so many entries symwin-%lu-XXXXXX in TMPDIR, "
        "XDG_RUNTIME_DIR or /tmp that looking through them took all the time; set TMPDIR "
        "to a private folder, the same for all ranks",
        call, (unsigned long)geteuid());
}

symwin_status sw_id_file(const char *tail, const char *call, char name[SW_FILE_NAME_BYTES],
                         int64_t deadline)
{
    int which;

    for (which = 0; which < SW_TEMP_FOLDERS; which++) {
        const int found = sw_own_folder(which, 1, name, SW_FILE_NAME_BYTES - SW_TAIL_BYTES,
                                        deadline);

        if (found < 0)
            return sw_id_full(call);
        if (found > 0) {
            strcat(name, tail);
            return SYMWIN_OK;
        }
    }
    return sw_fail(SYMWIN_DENIED,
                   "%s: there is no folder symwin-%lu that belongs to this user alone in TMPDIR, "
                   "XDG_RUNTIME_DIR or /tmp, and none can be made; set TMPDIR to a private folder",
                   call, (unsigned long)geteuid());
}

/* open(), repeated on EINTR. */
static int file_open(const char *name, int flags)
{
    int fd;

    do
        fd = open(name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Writes to a temporary name and renames: a reader never sees part of an id. */
symwin_status sw_id_write(const char *name, const struct sw_id *id, const char *call)
{
    char draft[SW_FILE_NAME_BYTES + 32];
    ssize_t wrote = -1;
    symwin_status status;
    int fd;

    snprintf(draft, sizeof draft, "%s.%ld", name, (long)getpid());
    unlink(draft);
    fd = file_open(draft, O_WRONLY | O_CREAT | O_EXCL);
    if (fd >= 0) {
        do
            wrote = write(fd, id, sizeof *id);
        while (wrote < 0 && errno == EINTR);
        close(fd);
    }
    if (wrote == (ssize_t)sizeof *id && rename(draft, name) == 0)
        return SYMWIN_OK;
    status = errno == EMFILE || errno == ENFILE ? SYMWIN_NO_MEMORY : SYMWIN_DENIED;
    sw_fail(status, "%s: %s cannot be written: %s%s", call, name, strerror(errno),
            status == SYMWIN_NO_MEMORY ? "; raise ulimit -n" : "");
    unlink(draft);
    return status;
}

static int file_read(const char *name, struct sw_id *id)
{
    const int fd = file_open(name, O_RDONLY);
    struct stat file;
    int right;

    if (fd < 0)
        return 0;
    right = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
            (file.st_mode & 077) == 0 && read(fd, id, sizeof *id) == (ssize_t)sizeof *id;
    close(fd);
    return right;
}

/* Tries the folder with the first name and, if `everywhere` is set, all with random names: when the
 * creator chose, other folders may have existed than now. -1: the time is over. */
static int read_from(int which, int everywhere, const char *tail, struct sw_id *id,
                     int (*is_open)(const struct sw_id *id, int64_t deadline), int64_t deadline)
{
    char name[SW_FILE_NAME_BYTES];
    const size_t room = sizeof name - SW_TAIL_BYTES;
    DIR *entries;
    int found, next = 0;

    found = first_folder(which, 0, name, room) > 0 && file_read(strcat(name, tail), id) &&
            is_open(id, deadline);
    if (found || !everywhere)
        return found;
    entries = open_folder(which);
    while (!found && entries != NULL &&
           (next = next_folder(entries, which, name, room, deadline)) > 0)
        found = file_read(strcat(name, tail), id) && is_open(id, deadline);
    close_folder(entries);
    return found ? 1 : next;
}

int sw_id_read(const char *tail, unsigned turn, struct sw_id *id,
               int (*is_open)(const struct sw_id *id, int64_t deadline), int64_t deadline)
{
    char text[SW_TEXT_BYTES];
    int found = 0, which;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    for (which = 0; which < SW_TEMP_FOLDERS && found == 0; which++)
        found = read_from(which, turn % FULL_SCAN_EVERY == 0, tail, id, is_open, deadline);
    sw_error_restore(text); /* looks that fail are no error */
    return found;
}
