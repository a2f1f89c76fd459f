/* The cases that collective kernels must pass on either driver; tests/collective/test_kernels.c runs them on
 * the emulated one, tests/gpu/gpu_kernels.c on GPUs. */
#ifndef SYMWIN_TESTS_KERNEL_CASES_H
#define SYMWIN_TESTS_KERNEL_CASES_H

#include <stddef.h>

struct kernel_cases {
    int devices;   /* that ranks are spread over, in turn */
    int multicast; /* the multicast kernels too; needs four devices */
    int max_ranks;
    size_t (*left_behind)(void); /* objects still alive at the end; NULL: nobody knows */
};

/* The whole test program; returns its exit status. */
int kernel_cases_run(const struct kernel_cases *cases);

#endif
