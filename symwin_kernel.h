/* What kernels get from the host: plain C99, and C++ for device code.
 *
 *   symwin_limit   how long to wait
 */
#ifndef SYMWIN_KERNEL_H
#define SYMWIN_KERNEL_H

#include <stdint.h>

/* How long to wait: whichever comes first. */
struct symwin_limit {
    uint64_t timeout_ns; /* 0: for ever */
    uint64_t
        abort; /* address of a word of 32 bits that is not 0 when waiting is to end; 0: there is none */
};

#endif
