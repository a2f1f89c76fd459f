/* Turns the result of a driver call into a status and a text. Any thread. */
#include <stdarg.h>
#include <stdio.h>

#include "src/base/base.h"
#include "src/driver/driver.h"

/* The status that tells the caller what can be done about the driver's error. */
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
    /* The driver reports a lack of descriptors by this code too. */
    if (result == CUDA_ERROR_OPERATING_SYSTEM)
        advice = "; if too many files are open, raise ulimit -n";
    return sw_fail(status_of(result), "%s: %s (%s)%s", text, name, meaning, advice);
}

void sw_drop(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS && sw_setting(SW_SETTING_DEBUG))
        fprintf(stderr, "symwin: %s failed with %d during teardown\n", call, (int)result);
}
