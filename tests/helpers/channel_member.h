/* What the tests of the device API share: two ranks or more as threads, each with memory in a window, and the kernels of
 * channel_kernels.cuh.
 *
 *   SYMWIN_TEST_FATBIN   on GPUs, where the kernels are; ../obj/tests/channel_kernels.fatbin beside the program where it is
 *                        not set, which is where make gpu-tests puts them */
#ifndef SYMWIN_TESTS_CHANNEL_MEMBER_H
#define SYMWIN_TESTS_CHANNEL_MEMBER_H

#include "channel_args.h"
#include "harness.h"

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    struct sw_scope scope;
    CUstream stream;
    CUlibrary library;
    size_t bytes;
    char *memory, *theirs; /* `bytes` of a window, zeros at first, and the next rank's */
    symwin_window *window;
};

/* First of all in main(): harness_start(), and the kernels. Ends the test where it cannot run. */
void channel_start(void);

void member_open(struct member *m, struct harness_team *team, int rank, size_t bytes);
void member_close(struct member *m); /* waits for the others */

/* `shared`: bytes of dynamic shared memory. The first waits for the kernel's end too. */
void member_launch(const struct member *m, const char *name, unsigned blocks, unsigned threads,
                   size_t shared, void *args);
void member_launch_only(const struct member *m, const char *name, unsigned blocks, unsigned threads,
                        size_t shared, void *args);

/* The address of a byte of `memory` or `theirs`, as kernels take it. */
static inline uint64_t member_at(const char *memory, size_t offset)
{
    return (uint64_t)(uintptr_t)(memory + offset);
}

/* A word of 32 bits of device memory at a kernel's address. */
static inline uint32_t member_word(const struct member *m, uint64_t addr)
{
    return host_get_u32(m->device, (const void *)(uintptr_t)addr);
}

#endif
