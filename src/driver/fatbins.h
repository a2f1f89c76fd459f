/* The GPU code in the library: one fat binary for each kernels/<name>.cu, compiled by nvcc and
 * embedded by tools/embed.sh. Empty in a library that was built without nvcc.
 */
#ifndef SYMWIN_FATBINS_H
#define SYMWIN_FATBINS_H

#include <stddef.h>

struct sw_fatbin {
    const char *name; /* "allreduce_oneshot" for kernels/allreduce_oneshot.cu */
    const void *data; /* what cuLibraryLoadData takes */
    size_t bytes;
};

extern const struct sw_fatbin sw_fatbins[]; /* sw_fatbin_count entries, then one of NULLs */
extern const size_t sw_fatbin_count;

#endif
