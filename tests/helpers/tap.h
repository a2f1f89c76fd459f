/* The Test Anything Protocol: numbered "ok" and "not ok" lines for prove; and how many descriptors
 * and threads a process has. C and C++; any thread. */
#ifndef SYMWIN_TESTS_TAP_H
#define SYMWIN_TESTS_TAP_H

#include <dirent.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Weak: all files of a test that include this share one set. */
__attribute__((weak)) pthread_mutex_t tap_mutex = PTHREAD_MUTEX_INITIALIZER;
__attribute__((weak)) int tap_count, tap_failures;
__attribute__((weak)) int tap_silent; /* counts failures and prints them as comments only */

__attribute__((format(printf, 2, 3), unused)) static void tap_ok(int ok, const char *format, ...)
{
    va_list args;

    pthread_mutex_lock(&tap_mutex);
    tap_count++;
    tap_failures += !ok;
    if (!tap_silent || !ok) {
        printf(tap_silent ? "# not ok here - " : ok ? "ok %d - " : "not ok %d - ", tap_count);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
    }
    fflush(stdout);
    pthread_mutex_unlock(&tap_mutex);
}

/* Compares two integers and prints both where they differ. */
#define TAP_EQ(name, got, want)                                                                    \
    tap_eq(name, (long long)(got), (long long)(want), __FILE__, __LINE__)

__attribute__((unused)) static int tap_eq(const char *name, long long got, long long want,
                                          const char *file, int line)
{
    if (got == want)
        tap_ok(1, "%s", name);
    else
        tap_ok(0, "%s (got %lld, want %lld, %s:%d)", name, got, want, file, line);
    return got == want;
}

/* The last statement of main: `return tap_done();`. A test without a check fails. */
__attribute__((unused)) static int tap_done(void)
{
    if (tap_count == 0 && !tap_silent)
        tap_ok(0, "there is a check");
    if (!tap_silent)
        printf("1..%d\n", tap_count);
    if (tap_failures > 0)
        printf("# %d of %d failed\n", tap_failures, tap_count);
    fflush(stdout);
    return tap_failures > 0;
}

/* Call it before any tap_ok() where the whole test cannot run. */
__attribute__((unused, noreturn)) static void tap_skip_all(const char *why)
{
    if (!tap_silent)
        printf("1..0 # SKIP %s\n", why);
    exit(0);
}

/* ---- descriptors and threads ---- */

/* Entries of a folder, such as /proc/self/fd; -1: it cannot be read. */
__attribute__((unused)) static int harness_count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;

    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* How many threads of this process have the name. Their names are read in /proc itself and not in
 * /proc/self/task: Linux 6.18 takes ten milliseconds of processor time at the end of a process that
 * has looked there at a thread that has ended since. */
__attribute__((unused)) static int harness_threads(const char *name)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300], found[32] = "";
        FILE *file;

        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        file = fopen(path, "re");
        if (file != NULL && fgets(found, sizeof found, file) != NULL) {
            found[strcspn(found, "\n")] = '\0';
            count += strcmp(found, name) == 0;
        }
        if (file != NULL)
            fclose(file);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

/* Waits until the library has unmapped what was freed: only then its thread ends. */
__attribute__((unused)) static void harness_wait_for_reaper(void)
{
    int turns = 10000;

    while (harness_threads("symwin-reaper") > 0 && turns-- > 0)
        usleep(1000);
}

/* The library's own threads. A thread that has just been joined may be listed a moment longer: the
 * system wakes the joining thread before it removes the other from the list. */
__attribute__((unused)) static int harness_service_threads(void)
{
    int turns = 50, count;

    while ((count = harness_threads("symwin-poll") + harness_threads("symwin-reaper")) > 0 &&
           turns-- > 0)
        usleep(1000);
    return count;
}

#endif
