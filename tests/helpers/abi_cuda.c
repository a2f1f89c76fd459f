/* The same facts of CUDA's cuda.h, and whether its functions are those of driver_list.h.
 *
 * cudaTypedefs.h has one type for every version of every entry point: PFN_cuMemAlloc_v3020. That
 * is the type of what cuGetProcAddress returns for this name and version, so driver_list.h is
 * compared with these types. The functions of cuda.h are not used: their names are macros that
 * change with its version. The Makefile defines HAVE_CUDA_H where both headers are there. */
#include <stddef.h>
#include <stdint.h>

#include "abi_list.h"

#ifdef HAVE_CUDA_H
#include <cuda.h>
#endif

/* Fabric handles, the newest type that symwin needs, came with 12.4. */
#if defined(CUDA_VERSION) && CUDA_VERSION >= 12040
#include <cudaTypedefs.h>

#include "src/driver/driver_list.h"

/* Entry points with other names in driver_list.h. */
#define PFN_cuStreamGetCaptureInfo_v2_v11030 PFN_cuStreamGetCaptureInfo_v11030
#define PFN_cuMulticastBindMem_v2_v13010 PFN_cuMulticastBindMem_v13010
#define PFN_cuMulticastBindAddr_v2_v13010 PFN_cuMulticastBindAddr_v13010

/* Entry points that are newer than this cuda.h: a type that ABI_FUNCTION recognizes. */
struct not_declared;
#if CUDA_VERSION < 13010
typedef struct not_declared *PFN_cuMulticastBindMem_v13010;
typedef struct not_declared *PFN_cuMulticastBindAddr_v13010;
#endif
#if CUDA_VERSION < 12090
#define CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ABI_ABSENT
#endif

#define ABI_FUNCTION(name, symbol, version, need, params)                                          \
    {#name, __builtin_types_compatible_p(PFN_##name##_v##version, struct not_declared *)           \
                ? ABI_NOT_DECLARED                                                                 \
            : __builtin_types_compatible_p(PFN_##name##_v##version, CUresult(*) params)            \
                ? ABI_AGREES                                                                       \
                : ABI_DIFFERS},

const int abi_cuda_version = CUDA_VERSION;
const struct abi_fact abi_cuda[] = {ABI_FACTS};
const struct abi_function abi_functions[] = {SW_DRIVER_LIST(ABI_FUNCTION){NULL, ABI_DIFFERS}};

#else
const int abi_cuda_version = 0;
const struct abi_fact abi_cuda[] = {{NULL, 0}};
const struct abi_function abi_functions[] = {{NULL, ABI_DIFFERS}};
#endif
