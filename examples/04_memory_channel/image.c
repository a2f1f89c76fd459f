/* The kernels for GPUs: KERNELS_FATBIN is the file that nvcc made from kernels.cu. If it is not
 * defined there are none. */
#include <stddef.h>

#include "kernels.h"

#ifdef KERNELS_FATBIN
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".globl kernels_fatbin\n"
        ".hidden kernels_fatbin\n"
        "kernels_fatbin:\n"
        ".incbin \"" KERNELS_FATBIN "\"\n"
        ".popsection\n");
extern const unsigned char kernels_fatbin[];
const void *const kernels_for_gpus = kernels_fatbin;
#else
const void *const kernels_for_gpus = NULL;
#endif

#ifdef NO_EMULATED_KERNELS
const void *const kernels_emulated = NULL;
#endif
