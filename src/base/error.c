/* Status names, and each thread's last error.
 *
 * The text is written once, where a fault is first seen. Callers up the stack only pass on the
 * status.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "src/base/base.h"

static _Thread_local char last_error[SW_TEXT_BYTES];
static _Thread_local uint64_t last_failure;
static _Atomic uint64_t failures;

const char *symwin_last_error(void)
{
    return last_error;
}

uint64_t sw_failures(void)
{
    return atomic_load_explicit(&failures, memory_order_relaxed);
}

uint64_t sw_failure(void)
{
    return last_failure;
}

const char *symwin_version(void)
{
    return SYMWIN_VERSION;
}

const char *symwin_status_name(symwin_status status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return #name;
        SYMWIN_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown symwin_status";
}

/* Bytes of the UTF-8 character at `at`; 0: it is none. Ends before a NUL. */
static size_t character(const unsigned char *at)
{
    const size_t bytes = at[0] < 0x80   ? 1
                         : at[0] < 0xc2 ? 0
                         : at[0] < 0xe0 ? 2
                         : at[0] < 0xf0 ? 3
                         : at[0] < 0xf5 ? 4
                                        : 0;
    size_t i;

    for (i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/* A text may contain data of other processes or of environment variables; a terminal must not obey
 * it. Replaces the control characters of ASCII, those of ISO 8859 in UTF-8 (c2 80 to c2 9f), and as
 * single bytes (80 to 9f, in no UTF-8 character). */
void sw_error_make_plain(char *text)
{
    unsigned char *at = (unsigned char *)text;

    while (*at != '\0') {
        const size_t bytes = character(at);

        if (*at == '\n' || *at == '\t')
            *at = ' ';
        else if (*at < ' ' || *at == 0x7f || (bytes == 0 && *at >= 0x80 && *at < 0xa0))
            *at = '?';
        else if (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
            at[0] = at[1] = '?';
        at += bytes > 0 ? bytes : 1;
    }
}

/* Where the address space has a limit, that may be why memory ran out: neither malloc() nor the
 * driver tells. */
static void add_limit(char text[SW_TEXT_BYTES])
{
    const size_t length = strlen(text);
    struct rlimit limit;

    if (strstr(text, "ulimit") == NULL && getrlimit(RLIMIT_AS, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        snprintf(text + length, SW_TEXT_BYTES - length,
                 "; ulimit -v limits this process to %llu MiB of addresses: raise it if they ran "
                 "out",
                 (unsigned long long)limit.rlim_cur >> 20);
}

symwin_status sw_fail(symwin_status status, const char *format, ...)
{
    char text[SW_TEXT_BYTES]; /* the arguments may point into last_error */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (status == SYMWIN_NO_MEMORY)
        add_limit(text);
    sw_error_make_plain(text);
    memcpy(last_error, text, sizeof last_error);
    last_failure = atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed) + 1;
    return status;
}

void sw_error_restore(const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    sw_error_make_plain(last_error);
}

symwin_status sw_fail_in(symwin_status status, const char *call, const char *who)
{
    const char *text = last_error;
    const size_t prefix = strlen(call);

    if (strncmp(text, call, prefix) == 0 && text[prefix] == ':')
        text += prefix + 2;
    return sw_fail(status, "%s: %s%s", call, who, text);
}
