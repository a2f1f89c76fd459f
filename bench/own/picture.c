/* Draws the table with the embedded bench/plot.py, which draws bench/results too. */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../perf/perf.h"

void picture_csv(const struct stage_page *page, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/table.csv", page->folder);
}

/* By default, the file is named after the first kernel, in the current folder. */
static void find_name(const struct perf_options *o, const struct stage_page *page, char *path,
                      size_t bytes)
{
    if (o->picture != NULL)
        snprintf(path, bytes, "%s", o->picture);
    else
        snprintf(path, bytes, "%s.svg", page->sources[0].name);
}

int picture_draw(const struct perf_options *o, const struct stage_page *page)
{
    char path[4096], table[300], script[300];
    int status = 0;
    pid_t pid;

    find_name(o, page, path, sizeof path);
    picture_csv(page, table, sizeof table);
    snprintf(script, sizeof script, "%s/include/bench/plot.py", page->folder);
    if (!program_exists("python3"))
        return fail(SYMWIN_UNSUPPORTED, "no picture: python3 is not in PATH");
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        execlp("python3", "python3", script, "--output", path, o->csv != NULL ? o->csv : table,
               (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return fail(SYMWIN_UNSUPPORTED, "no picture: python3 %s failed", script);
    printf("# picture: %s\n", path);
    return 1;
}
