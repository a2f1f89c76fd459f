/* Status names, and each thread's last error.
 *
 * The text is written once, where a fault is first seen. Callers up the stack only pass on the
 * status.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/base/base.h"

static _Thread_local char last_error[SW_TEXT_BYTES];

const char *symwin_last_error(void)
{
    return last_error;
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

/* A text may contain data of other processes or of environment variables; a terminal must not obey
 * it. Replaces the control characters of ASCII, and those of ISO 8859 in UTF-8 (c2 80 to c2 9f). */
void sw_error_make_plain(char *text)
{
    unsigned char *at = (unsigned char *)text;

    for (; *at != '\0'; at++)
        if (*at == '\n' || *at == '\t')
            *at = ' ';
        else if (*at < ' ' || *at == 0x7f)
            *at = '?';
        else if (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
            at[0] = at[1] = '?';
}

symwin_status sw_fail(symwin_status status, const char *format, ...)
{
    char text[SW_TEXT_BYTES]; /* the arguments may point into last_error */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sw_error_make_plain(text);
    memcpy(last_error, text, sizeof last_error);
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
