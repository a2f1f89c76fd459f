/* What tests/channel/test_channel_host.c passes to the kernels of tests/helpers/ends_kernels.cuh. */
#ifndef SYMWIN_TESTS_ENDS_KERNELS_H
#define SYMWIN_TESTS_ENDS_KERNELS_H

#include "symwin/channel.h"

enum { ENDS_THREADS = 64 };

struct ends_args {
    symwin_channel channel;
    symwin_limit limit;
    uint64_t bytes, turns; /* bytes: of a piece */
    uint64_t first, their_first;
    uint64_t first_flag;
    uint64_t
        wrong; /* two words of 32 bits: words that are wrong, and whether a wait was given up */
};

#endif
