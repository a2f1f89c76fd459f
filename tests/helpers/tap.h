/* The Test Anything Protocol in a page: numbered ok / not ok lines for prove. Thread-safe. */
#ifndef SYMWIN_TESTS_TAP_H
#define SYMWIN_TESTS_TAP_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* One set for all files of a test: weak, so that including this twice is no second definition. */
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

/* Compares two integers and says both where they differ. */
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

/* The last statement of main: `return tap_done();`. What has looked at nothing has failed. */
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

/* Before any tap_ok(): the whole file cannot run here. */
__attribute__((unused, noreturn)) static void tap_skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    exit(0);
}

#endif
