/* A profiler with a dlsym() of its own, which says once that it was called. It runs before
 * sanitizers can take instrumented code, or calls of strcmp(). */
#include <dlfcn.h>
#include <stdio.h>

#include "nccl.h"

#ifdef __clang__
#define PLAIN __attribute__((disable_sanitizer_instrumentation))
#else
#define PLAIN __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

FAKE_API void *dlsym(void *handle, const char *name);

PLAIN void *dlsym(void *handle, const char *name)
{
    static void *(*next)(void *, const char *);
    static const char wanted[] = "ncclReduce";
    static int said;
    int i = 0;

    if (next == NULL) {
        void *symbol = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");

        if (symbol == NULL)
            symbol = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        __builtin_memcpy(&next, &symbol, sizeof next);
    }
    while (wanted[i] != '\0' && name[i] == wanted[i])
        i++;
    if (!said && wanted[i] == '\0' && name[i] == '\0') {
        said = 1;
        printf("tool dlsym\n");
    }
    return next(handle, name);
}
