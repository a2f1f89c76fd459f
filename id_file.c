/* Where an id is written down for ranks of this user on this host: a file in a folder that only this
 * user can enter. A file that somebody has left is known by nobody answering for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap.h"

int sw_place_name(int which, const char *tail, char *name, size_t room)
{
    const char *const places[SW_PLACES] = {getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"), "/tmp"};

    if (places[which] == NULL || strlen(places[which]) + strlen(tail) >= room)
        return 0;
    strcpy(name, places[which]);
    strcat(name, tail);
    return 1;
}

int sw_own_folder(int which, int make, char *name, size_t room)
{
    char tail[64];
    struct stat folder;

    snprintf(tail, sizeof tail, "/symwin-%lu", (unsigned long)geteuid());
    if (!sw_place_name(which, tail, name, room) ||
        (make && mkdir(name, 0700) != 0 && errno != EEXIST))
        return 0;
    return lstat(name, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
           (folder.st_mode & 077) == 0;
}

symwin_status sw_id_file(const struct sw_part *parts, int count, const char *call,
                         char name[SW_FILE_NAME_BYTES])
{
    unsigned char digest[SW_DIGEST_BYTES];
    size_t length;
    int which, i;

    sw_sha256(parts, count, digest);
    for (which = 0; which < SW_PLACES; which++)
        if (sw_own_folder(which, 1, name, SW_FILE_NAME_BYTES - 40))
            break;
    if (which == SW_PLACES)
        return sw_fail(
            SYMWIN_DENIED,
            "%s: there is no folder symwin-%lu that belongs to this user alone in TMPDIR, "
            "XDG_RUNTIME_DIR or /tmp; set TMPDIR to a private folder",
            call, (unsigned long)geteuid());
    length = strlen(name);
    name[length++] = '/';
    for (i = 0; i < 16; i++, length += 2)
        snprintf(name + length, 3, "%02x", digest[i]);
    return SYMWIN_OK;
}

/* open(), again after a signal. */
static int file_open(const char *name, int flags)
{
    int fd;

    do
        fd = open(name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* All of it at once: whoever finds the file finds a whole id. */
symwin_status sw_id_write(const char *name, const struct sw_id *id, const char *call)
{
    char draft[SW_FILE_NAME_BYTES + 32];
    ssize_t wrote = -1;
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
    sw_fail(SYMWIN_DENIED, "%s: %s cannot be written: %s", call, name, strerror(errno));
    unlink(draft);
    return SYMWIN_DENIED;
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

int sw_id_read(const char *name, struct sw_id *id, int64_t deadline)
{
    char text[SW_TEXT_BYTES];
    int found;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    found = file_read(name, id) && sw_id_is_open(id, deadline);
    sw_error_restore(text); /* of looking in vain */
    return found;
}
