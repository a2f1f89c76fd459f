/* The types, members and constants of cuda_abi.h that are compared with CUDA's cuda.h.
 *
 * Two translation units include this, and each sees one of the two headers: test_abi.c and
 * abi_cuda.c. test_abi.c compares what the compiler found in them. It also checks that no constant
 * of cuda_abi.h is missing here.
 *
 * X(type), X(type, member), X(constant). */
#ifndef SYMWIN_TESTS_ABI_LIST_H
#define SYMWIN_TESTS_ABI_LIST_H

#include <stddef.h>
#include <stdint.h>

/* ---- what a header says ---- */

struct abi_fact {
    const char *name; /* "sizeof(CUuuid)", "offsetof(CUmemLocation, id)", "CUDA_ERROR_UNKNOWN" */
    long long value;
};

#define ABI_ABSENT 0x7fffffff /* the value of a constant that this cuda.h does not have */

enum abi_signature { ABI_DIFFERS, ABI_AGREES, ABI_NOT_DECLARED };

struct abi_function {
    const char *name;
    enum abi_signature signature;
};

/* Both end with a NULL name. The second has the facts of cuda.h; it is empty without that header.
 */
extern const struct abi_fact abi_ours[], abi_cuda[];

/* Whether cuda.h declares what driver_list.h does; ends with a NULL name. */
extern const struct abi_function abi_functions[];

extern const int abi_cuda_version; /* 0: there was no cuda.h, or one before 12.4 */

/* The facts of the header that is included before. */
#define ABI_SIZE(type)                                                                             \
    {"sizeof(" #type ")", (long long)sizeof(type)},                                                \
        {"_Alignof(" #type ")", (long long)_Alignof(type)},
#define ABI_MEMBER(type, member)                                                                   \
    {"offsetof(" #type ", " #member ")", (long long)offsetof(type, member)},                       \
        {"sizeof(" #type "." #member ")", (long long)sizeof(((type *)0)->member)},
#define ABI_CONSTANT(name) {#name, (long long)(uintptr_t)(name)},
#define ABI_FACTS                                                                                  \
    ABI_TYPES(ABI_SIZE) ABI_MEMBERS(ABI_MEMBER) ABI_CONSTANTS(ABI_CONSTANT)                        \
    {                                                                                              \
        NULL, 0                                                                                    \
    }

/* ---- the list ---- */

#define ABI_TYPES(X)                                                                               \
    X(CUdevice)                                                                                    \
    X(CUdeviceptr)                                                                                 \
    X(CUmemGenericAllocationHandle)                                                                \
    X(CUcontext)                                                                                   \
    X(CUgreenCtx)                                                                                  \
    X(CUdevResourceDesc)                                                                           \
    X(CUstream)                                                                                    \
    X(CUevent)                                                                                     \
    X(CUfunction)                                                                                  \
    X(CUlibrary)                                                                                   \
    X(CUkernel)                                                                                    \
    X(CUgraph)                                                                                     \
    X(CUgraphNode)                                                                                 \
    X(CUgraphExec)                                                                                 \
    X(CUuserObject)                                                                                \
    X(cuuint32_t)                                                                                  \
    X(cuuint64_t)                                                                                  \
    X(CUhostFn)                                                                                    \
    X(CUresult)                                                                                    \
    X(CUdevice_attribute)                                                                          \
    X(CUdevice_P2PAttribute)                                                                       \
    X(CUpointer_attribute)                                                                         \
    X(CUmemorytype)                                                                                \
    X(CUmemLocationType)                                                                           \
    X(CUmemAllocationType)                                                                         \
    X(CUmemAllocationHandleType)                                                                   \
    X(CUmemAccess_flags)                                                                           \
    X(CUmemAllocationGranularity_flags)                                                            \
    X(CUmulticastGranularity_flags)                                                                \
    X(CUmemLocation)                                                                               \
    X(CUmemAllocationProp)                                                                         \
    X(CUmemAccessDesc)                                                                             \
    X(CUmemFabricHandle)                                                                           \
    X(CUmulticastObjectProp)                                                                       \
    X(CUuuid)                                                                                      \
    X(CUstream_flags)                                                                              \
    X(CUgreenCtxCreate_flags)                                                                      \
    X(CUdevResourceType)                                                                           \
    X(CUdevSmResource)                                                                             \
    X(CUdevResource)                                                                               \
    X(CUexecAffinityType)                                                                          \
    X(CUexecAffinityParam)                                                                         \
    X(CUevent_flags)                                                                               \
    X(CUstreamCaptureMode)                                                                         \
    X(CUstreamCaptureStatus)                                                                       \
    X(CUstreamWaitValue_flags)                                                                     \
    X(CUstreamWriteValue_flags)                                                                    \
    X(CUstreamBatchMemOpType)                                                                      \
    X(CUstreamBatchMemOpParams)                                                                    \
    X(CUfunction_attribute)                                                                        \
    X(CUlaunchAttributeID)                                                                         \
    X(CUlaunchAttributeValue)                                                                      \
    X(CUlaunchAttribute)                                                                           \
    X(CUlaunchConfig)                                                                              \
    X(CUDA_KERNEL_NODE_PARAMS)                                                                     \
    X(CUdriverProcAddressQueryResult)

#define ABI_MEMBERS(X)                                                                             \
    X(CUmemLocation, type)                                                                         \
    X(CUmemLocation, id)                                                                           \
    X(CUmemAllocationProp, type)                                                                   \
    X(CUmemAllocationProp, requestedHandleTypes)                                                   \
    X(CUmemAllocationProp, location)                                                               \
    X(CUmemAllocationProp, win32HandleMetaData)                                                    \
    X(CUmemAllocationProp, allocFlags)                                                             \
    X(CUmemAllocationProp, allocFlags.compressionType)                                             \
    X(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)                                        \
    X(CUmemAllocationProp, allocFlags.usage)                                                       \
    X(CUmemAllocationProp, allocFlags.reserved)                                                    \
    X(CUmemAccessDesc, location)                                                                   \
    X(CUmemAccessDesc, flags)                                                                      \
    X(CUmemFabricHandle, data)                                                                     \
    X(CUmulticastObjectProp, numDevices)                                                           \
    X(CUmulticastObjectProp, size)                                                                 \
    X(CUmulticastObjectProp, handleTypes)                                                          \
    X(CUmulticastObjectProp, flags)                                                                \
    X(CUuuid, bytes)                                                                               \
    X(CUdevSmResource, smCount)                                                                    \
    X(CUdevSmResource, minSmPartitionSize)                                                         \
    X(CUdevSmResource, smCoscheduledAlignment)                                                     \
    X(CUdevResource, type)                                                                         \
    X(CUdevResource, _internal_padding)                                                            \
    X(CUdevResource, sm)                                                                           \
    X(CUdevResource, _oversize)                                                                    \
    X(CUexecAffinityParam, type)                                                                   \
    X(CUexecAffinityParam, param)                                                                  \
    X(CUexecAffinityParam, param.smCount)                                                          \
    X(CUexecAffinityParam, param.smCount.val)                                                      \
    X(CUstreamBatchMemOpParams, operation)                                                         \
    X(CUstreamBatchMemOpParams, waitValue)                                                         \
    X(CUstreamBatchMemOpParams, waitValue.operation)                                               \
    X(CUstreamBatchMemOpParams, waitValue.address)                                                 \
    X(CUstreamBatchMemOpParams, waitValue.value)                                                   \
    X(CUstreamBatchMemOpParams, waitValue.value64)                                                 \
    X(CUstreamBatchMemOpParams, waitValue.flags)                                                   \
    X(CUstreamBatchMemOpParams, waitValue.alias)                                                   \
    X(CUstreamBatchMemOpParams, writeValue)                                                        \
    X(CUstreamBatchMemOpParams, writeValue.operation)                                              \
    X(CUstreamBatchMemOpParams, writeValue.address)                                                \
    X(CUstreamBatchMemOpParams, writeValue.value)                                                  \
    X(CUstreamBatchMemOpParams, writeValue.value64)                                                \
    X(CUstreamBatchMemOpParams, writeValue.flags)                                                  \
    X(CUstreamBatchMemOpParams, writeValue.alias)                                                  \
    X(CUstreamBatchMemOpParams, pad)                                                               \
    X(CUlaunchAttributeValue, programmaticStreamSerializationAllowed)                              \
    X(CUlaunchAttributeValue, pad)                                                                 \
    X(CUlaunchAttribute, id)                                                                       \
    X(CUlaunchAttribute, pad)                                                                      \
    X(CUlaunchAttribute, value)                                                                    \
    X(CUlaunchConfig, gridDimX)                                                                    \
    X(CUlaunchConfig, gridDimY)                                                                    \
    X(CUlaunchConfig, gridDimZ)                                                                    \
    X(CUlaunchConfig, blockDimX)                                                                   \
    X(CUlaunchConfig, blockDimY)                                                                   \
    X(CUlaunchConfig, blockDimZ)                                                                   \
    X(CUlaunchConfig, sharedMemBytes)                                                              \
    X(CUlaunchConfig, hStream)                                                                     \
    X(CUlaunchConfig, attrs)                                                                       \
    X(CUlaunchConfig, numAttrs)                                                                    \
    X(CUDA_KERNEL_NODE_PARAMS, func)                                                               \
    X(CUDA_KERNEL_NODE_PARAMS, gridDimX)                                                           \
    X(CUDA_KERNEL_NODE_PARAMS, gridDimY)                                                           \
    X(CUDA_KERNEL_NODE_PARAMS, gridDimZ)                                                           \
    X(CUDA_KERNEL_NODE_PARAMS, blockDimX)                                                          \
    X(CUDA_KERNEL_NODE_PARAMS, blockDimY)                                                          \
    X(CUDA_KERNEL_NODE_PARAMS, blockDimZ)                                                          \
    X(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes)                                                     \
    X(CUDA_KERNEL_NODE_PARAMS, kernelParams)                                                       \
    X(CUDA_KERNEL_NODE_PARAMS, extra)                                                              \
    X(CUDA_KERNEL_NODE_PARAMS, kern)                                                               \
    X(CUDA_KERNEL_NODE_PARAMS, ctx)

#define ABI_CONSTANTS(X)                                                                           \
    X(CU_STREAM_LEGACY)                                                                            \
    X(CU_STREAM_PER_THREAD)                                                                        \
    X(CU_IPC_HANDLE_SIZE)                                                                          \
    X(CUDA_SUCCESS)                                                                                \
    X(CUDA_ERROR_INVALID_VALUE)                                                                    \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                    \
    X(CUDA_ERROR_NOT_INITIALIZED)                                                                  \
    X(CUDA_ERROR_DEINITIALIZED)                                                                    \
    X(CUDA_ERROR_STUB_LIBRARY)                                                                     \
    X(CUDA_ERROR_NO_DEVICE)                                                                        \
    X(CUDA_ERROR_INVALID_DEVICE)                                                                   \
    X(CUDA_ERROR_INVALID_IMAGE)                                                                    \
    X(CUDA_ERROR_INVALID_CONTEXT)                                                                  \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU)                                                                \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                                                          \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)                                                        \
    X(CUDA_ERROR_OPERATING_SYSTEM)                                                                 \
    X(CUDA_ERROR_INVALID_HANDLE)                                                                   \
    X(CUDA_ERROR_ILLEGAL_STATE)                                                                    \
    X(CUDA_ERROR_NOT_FOUND)                                                                        \
    X(CUDA_ERROR_NOT_READY)                                                                        \
    X(CUDA_ERROR_ILLEGAL_ADDRESS)                                                                  \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                                          \
    X(CUDA_ERROR_LAUNCH_TIMEOUT)                                                                   \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                             \
    X(CUDA_ERROR_MISALIGNED_ADDRESS)                                                               \
    X(CUDA_ERROR_LAUNCH_FAILED)                                                                    \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)                                                     \
    X(CUDA_ERROR_NOT_PERMITTED)                                                                    \
    X(CUDA_ERROR_NOT_SUPPORTED)                                                                    \
    X(CUDA_ERROR_SYSTEM_NOT_READY)                                                                 \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                                                           \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                                       \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                                                       \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE)                                                             \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)                                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                                          \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)                                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)                                                          \
    X(CUDA_ERROR_CAPTURED_EVENT)                                                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                                                      \
    X(CUDA_ERROR_TIMEOUT)                                                                          \
    X(CUDA_ERROR_UNKNOWN)                                                                          \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)                                                   \
    X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)                                       \
    X(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)                                                          \
    X(CU_DEVICE_ATTRIBUTE_WARP_SIZE)                                                               \
    X(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)                                                              \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                                                    \
    X(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)                                                     \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)                                                            \
    X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)                                                              \
    X(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)                                                           \
    X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)                                          \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                                                      \
    X(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)                                                           \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)                                                      \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                                     \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)                             \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)                                 \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)                                           \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR)                                           \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)                                            \
    X(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)                                                     \
    X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)                                                            \
    X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                           \
    X(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)                                                    \
    X(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)                                                    \
    X(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)                                             \
    X(CU_POINTER_ATTRIBUTE_CONTEXT)                                                                \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                                            \
    X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER)                                                         \
    X(CU_POINTER_ATTRIBUTE_HOST_POINTER)                                                           \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID)                                                              \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED)                                                             \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                                         \
    X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                                                       \
    X(CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                                             \
    X(CU_POINTER_ATTRIBUTE_MAPPED)                                                                 \
    X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)                                                   \
    X(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)                                                           \
    X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE)                                                           \
    X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)                                                      \
    X(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)                                                        \
    X(CU_MEMORYTYPE_HOST)                                                                          \
    X(CU_MEMORYTYPE_DEVICE)                                                                        \
    X(CU_MEM_LOCATION_TYPE_INVALID)                                                                \
    X(CU_MEM_LOCATION_TYPE_DEVICE)                                                                 \
    X(CU_MEM_LOCATION_TYPE_HOST)                                                                   \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA)                                                              \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)                                                      \
    X(CU_MEM_ALLOCATION_TYPE_INVALID)                                                              \
    X(CU_MEM_ALLOCATION_TYPE_PINNED)                                                               \
    X(CU_MEM_HANDLE_TYPE_NONE)                                                                     \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                                                    \
    X(CU_MEM_HANDLE_TYPE_WIN32)                                                                    \
    X(CU_MEM_HANDLE_TYPE_WIN32_KMT)                                                                \
    X(CU_MEM_HANDLE_TYPE_FABRIC)                                                                   \
    X(CU_MEM_ACCESS_FLAGS_PROT_NONE)                                                               \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ)                                                               \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                                          \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                                            \
    X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)                                                        \
    X(CU_MULTICAST_GRANULARITY_MINIMUM)                                                            \
    X(CU_MULTICAST_GRANULARITY_RECOMMENDED)                                                        \
    X(CU_STREAM_DEFAULT)                                                                           \
    X(CU_STREAM_NON_BLOCKING)                                                                      \
    X(CU_GREEN_CTX_DEFAULT_STREAM)                                                                 \
    X(CU_DEV_RESOURCE_TYPE_INVALID)                                                                \
    X(CU_DEV_RESOURCE_TYPE_SM)                                                                     \
    X(CU_EXEC_AFFINITY_TYPE_SM_COUNT)                                                              \
    X(CU_EVENT_DEFAULT)                                                                            \
    X(CU_EVENT_BLOCKING_SYNC)                                                                      \
    X(CU_EVENT_DISABLE_TIMING)                                                                     \
    X(CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)                                                           \
    X(CU_GRAPH_USER_OBJECT_MOVE)                                                                   \
    X(CU_STREAM_CAPTURE_MODE_GLOBAL)                                                               \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)                                                         \
    X(CU_STREAM_CAPTURE_MODE_RELAXED)                                                              \
    X(CU_STREAM_CAPTURE_STATUS_NONE)                                                               \
    X(CU_STREAM_CAPTURE_STATUS_ACTIVE)                                                             \
    X(CU_STREAM_CAPTURE_STATUS_INVALIDATED)                                                        \
    X(CU_STREAM_WAIT_VALUE_GEQ)                                                                    \
    X(CU_STREAM_WAIT_VALUE_EQ)                                                                     \
    X(CU_STREAM_WAIT_VALUE_AND)                                                                    \
    X(CU_STREAM_WAIT_VALUE_NOR)                                                                    \
    X(CU_STREAM_WAIT_VALUE_FLUSH)                                                                  \
    X(CU_STREAM_WRITE_VALUE_DEFAULT)                                                               \
    X(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)                                                     \
    X(CU_STREAM_MEM_OP_WAIT_VALUE_32)                                                              \
    X(CU_STREAM_MEM_OP_WRITE_VALUE_32)                                                             \
    X(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES)                                                        \
    X(CU_STREAM_MEM_OP_WAIT_VALUE_64)                                                              \
    X(CU_STREAM_MEM_OP_WRITE_VALUE_64)                                                             \
    X(CU_STREAM_MEM_OP_BARRIER)                                                                    \
    X(CU_MEMHOSTALLOC_PORTABLE)                                                                    \
    X(CU_MEMHOSTALLOC_DEVICEMAP)                                                                   \
    X(CU_MEMHOSTALLOC_WRITECOMBINED)                                                               \
    X(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)                                                     \
    X(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)                                                         \
    X(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)                                                          \
    X(CU_FUNC_ATTRIBUTE_NUM_REGS)                                                                  \
    X(CU_FUNC_ATTRIBUTE_PTX_VERSION)                                                               \
    X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)                                             \
    X(CU_LAUNCH_ATTRIBUTE_IGNORE)                                                                  \
    X(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)                                       \
    X(CU_GET_PROC_ADDRESS_SUCCESS)                                                                 \
    X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)                                                        \
    X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)

#endif
