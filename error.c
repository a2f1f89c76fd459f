/* Status names and each thread's last error.
 *
 * The text is written once, where a fault is first seen; callers up the stack pass the status on.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

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

/* What others sent, or a variable has, may be in it: a terminal shall not obey that. Control characters of ASCII, and of
 * ISO 8859 in UTF-8 (c2 80 to c2 9f). */
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

/* The status that tells the caller what can be done about a driver's code. */
static symwin_status status_of(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS:
        return SYMWIN_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return SYMWIN_NO_MEMORY;
    case CUDA_ERROR_NOT_PERMITTED:
        return SYMWIN_DENIED;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
        return SYMWIN_UNSUPPORTED;
    default:
        return SYMWIN_DRIVER;
    }
}

symwin_status sw_check(CUresult result, const char *format, ...)
{
    const char *name = NULL;
    const char *meaning = NULL;
    const char *advice = "";
    char text[SW_TEXT_BYTES];
    va_list args;

    if (result == CUDA_SUCCESS)
        return SYMWIN_OK;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (sw_drv.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "an unknown error";
    if (sw_drv.cuGetErrorString(result, &meaning) != CUDA_SUCCESS || meaning == NULL)
        meaning = "no description";
    if (result ==
        CUDA_ERROR_OPERATING_SYSTEM) /* the driver has no code for descriptors that ran out */
        advice = "; if too many files are open, raise ulimit -n";
    return sw_fail(status_of(result), "%s: %s (%s)%s", text, name, meaning, advice);
}

void sw_drop(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS && sw_setting(SW_SETTING_DEBUG))
        fprintf(stderr, "symwin: %s failed with %d during teardown\n", call, (int)result);
}
