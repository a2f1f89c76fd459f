/* The headers that a kernel includes, and the plotting program. symwin-perf embeds those that it
 * was built with. So it needs no source folder, and what it compiles fits its emulated driver.
 *
 * They are one text: before each file there is a line that begins with the character 1 and has the
 * file's path (Makefile: carried.txt).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../perf/perf.h"
#include "src/collective/tables.h"

extern const struct sw_table perf_tables[]; /* one entry; made by tools/embed.sh */

enum { BEFORE_PATH = 1 };

uint64_t carried_digest(void)
{
    const unsigned char *text = perf_tables[0].data;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < perf_tables[0].bytes; i++)
        hash = (hash ^ text[i]) * 0x100000001b3u;
    return hash;
}

static int failed(const char *path)
{
    return fail(SYMWIN_DENIED, "%s cannot be written: %s", path, strerror(errno));
}

/* Creates the folders of a path. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

static int write_file(char *path, const char *text, size_t bytes)
{
    FILE *file;
    int wrong;

    make_folders(path);
    file = fopen(path, "w");
    if (file == NULL)
        return failed(path);
    wrong = fwrite(text, 1, bytes, file) != bytes;
    wrong |= fclose(file) != 0;
    return !wrong || failed(path);
}

int carried_write(const char *folder)
{
    const char *at = perf_tables[0].data, *const end = at + perf_tables[0].bytes;
    int good = 1;

    while (at < end && good) {
        const char *line = memchr(at, '\n', (size_t)(end - at)), *next;
        char path[512];

        if (*at != BEFORE_PATH || line == NULL)
            return fail(SYMWIN_INVALID, "the headers embedded in symwin-perf are damaged");
        snprintf(path, sizeof path, "%s/%.*s", folder, (int)(line - at - 1), at + 1);
        next = memchr(line, BEFORE_PATH, (size_t)(end - line));
        next = next != NULL ? next : end;
        good = write_file(path, line + 1, (size_t)(next - line - 1));
        at = next;
    }
    return good;
}
