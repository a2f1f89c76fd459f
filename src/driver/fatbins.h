/* The GPU code that the library carries: one fat binary for each kernels/<name>.cu that nvcc
 * compiled, embedded by tools/embed.sh. Empty in a library that was built without nvcc.
 */
#ifndef SYMWIN_FATBINS_H
#define SYMWIN_FATBINS_H

#include <stddef.h>

struct sw_fatbin {
    const char *name; /* "allreduce_oneshot" for kernels/allreduce_oneshot.cu */
    const void *data; /* what cuLibraryLoadData takes */
    size_t bytes;
};

extern const struct sw_fatbin sw_fatbins[]; /* sw_fatbin_count of them, then one of NULLs */
extern const size_t sw_fatbin_count;

#endif
