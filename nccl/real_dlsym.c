/* The real dlsym(), that of libc or of a library that stands in front of it.
 *
 * Sanitizers and profilers call dlsym() before instrumented code can run. */
#include <dlfcn.h>
#include <stddef.h>

#include "nccl/next.h"

#ifdef __aarch64__
#define FIRST_VERSION "GLIBC_2.17" /* of dlsym(); every later libc has it as well */
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

__attribute__((visibility("hidden"))) sw_dlsym_fn sw_dlsym_real;

static void *none(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* By its version libc's is found past this library's, wherever it stands; by that the next one. */
SW_PLAIN sw_dlsym_fn sw_next_dlsym(void)
{
    sw_dlsym_fn found = __atomic_load_n(&sw_dlsym_real, __ATOMIC_ACQUIRE);
    void *symbol;
    int i;

    if (found != NULL)
        return found;
    found = none;
    symbol = dlvsym(RTLD_DEFAULT, "dlsym", FIRST_VERSION);
    for (i = 0; i < 2 && symbol != NULL; i++) {
        __builtin_memcpy(&found, &symbol, sizeof found);
        symbol = found(RTLD_NEXT, "dlsym");
    }
    __atomic_store_n(&sw_dlsym_real, found, __ATOMIC_RELEASE);
    return found;
}
