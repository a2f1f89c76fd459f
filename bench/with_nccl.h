/* NCCL beside symwin, for benchmarks that have it if it is there. */
#ifndef SYMWIN_BENCH_WITH_NCCL_H
#define SYMWIN_BENCH_WITH_NCCL_H

#include <stdio.h>

#include "common.h"
#include "rivals/multicast.h"
#include "rivals/nccl.h"

/* Fills in `nccl`. Whether it is there; ends the program if it could make multicast objects, or is
 * too old. */
static int with_nccl(const char *program)
{
    void *library = nccl_open();
    const char *missing;
    char text[256];

    if (library == NULL) {
        fprintf(stderr, "%s: without NCCL: %s\n", program, dlerror());
        return 0;
    }
    if (rivals_multicast_off(text, sizeof text) != 0)
        bench_fail("NCCL", text);
    missing = nccl_find(library);
    if (missing != NULL)
        bench_fail(missing, "NCCL 2.27 or later is needed");
    return 1;
}

static void check_nccl(int result, const char *what)
{
    char text[32];

    snprintf(text, sizeof text, "NCCL gave %d", result);
    if (result != 0)
        bench_fail(what, text);
}

#endif
