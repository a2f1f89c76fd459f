/* Every CUDA driver entry point that symwin calls, each listed once.
 *
 * X(name, symbol, version, need, params)
 *   name     the member of struct sw_driver, and the emulated driver's function as sw_emu_<name>
 *   symbol   the name to pass to cuGetProcAddress
 *   version  the CUDA version to pass to it: it selects the symbol's ABI (12010 is 12.1)
 *   need     REQUIRED: a driver without it is refused. OPTIONAL: the member may be NULL
 *   params   the parameter list; every entry point returns CUresult
 *
 * The table of the real driver, its loader, the table of the emulated driver and
 * tests/driver/test_abi.c are generated from this list. It includes no header; the includer
 * declares the types.
 */
#ifndef SYMWIN_DRIVER_LIST_H
#define SYMWIN_DRIVER_LIST_H

#define SW_DRIVER_LIST(X)                                                                          \
    /* start-up and devices */                                                                     \
    X(cuInit, "cuInit", 2000, REQUIRED, (unsigned int flags))                                      \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, REQUIRED, (int *version))                    \
    X(cuGetErrorName, "cuGetErrorName", 6000, REQUIRED, (CUresult error, const char **name))       \
    X(cuGetErrorString, "cuGetErrorString", 6000, REQUIRED, (CUresult error, const char **text))   \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, REQUIRED, (int *count))                          \
    X(cuDeviceGet, "cuDeviceGet", 2000, REQUIRED, (CUdevice * device, int ordinal))                \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, REQUIRED, (char *name, int len, CUdevice dev))     \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 11040, REQUIRED, (CUuuid * uuid, CUdevice dev))          \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 3020, REQUIRED, (size_t * bytes, CUdevice dev))        \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, REQUIRED,                                \
      (int *value, CUdevice_attribute attribute, CUdevice dev))                                    \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, REQUIRED,                              \
      (int *can, CUdevice dev, CUdevice peer))                                                     \
    X(cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", 8000, OPTIONAL,                          \
      (int *value, CUdevice_P2PAttribute attribute, CUdevice dev, CUdevice peer))                  \
    /* contexts */                                                                                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, REQUIRED,                        \
      (CUcontext * ctx, CUdevice dev))                                                             \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000, REQUIRED, (CUdevice dev))     \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, REQUIRED, (CUcontext * ctx))                       \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, REQUIRED, (CUcontext ctx))                         \
    X(cuCtxPushCurrent, "cuCtxPushCurrent", 4000, REQUIRED, (CUcontext ctx))                       \
    X(cuCtxPopCurrent, "cuCtxPopCurrent", 4000, REQUIRED, (CUcontext * ctx))                       \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, REQUIRED, (CUdevice * dev))                          \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, REQUIRED, (void))                                \
    X(cuCtxGetExecAffinity, "cuCtxGetExecAffinity", 11040, OPTIONAL,                               \
      (CUexecAffinityParam * affinity, CUexecAffinityType type))                                   \
    /* parts of a device: green contexts */                                                        \
    X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040, OPTIONAL,                           \
      (CUdevice dev, CUdevResource * resource, CUdevResourceType type))                            \
    X(cuCtxGetDevResource, "cuCtxGetDevResource", 12040, OPTIONAL,                                 \
      (CUcontext ctx, CUdevResource * resource, CUdevResourceType type))                           \
    X(cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount", 12040, OPTIONAL,                 \
      (CUdevResource * result, unsigned int *count, const CUdevResource *input,                    \
       CUdevResource *rest, unsigned int flags, unsigned int least))                               \
    X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040, OPTIONAL,                     \
      (CUdevResourceDesc * desc, CUdevResource * resources, unsigned int count))                   \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, OPTIONAL,                                       \
      (CUgreenCtx * green, CUdevResourceDesc desc, CUdevice dev, unsigned int flags))              \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, OPTIONAL, (CUgreenCtx green))                 \
    X(cuGreenCtxGetDevResource, "cuGreenCtxGetDevResource", 12040, OPTIONAL,                       \
      (CUgreenCtx green, CUdevResource * resource, CUdevResourceType type))                        \
    X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050, OPTIONAL,                           \
      (CUstream * stream, CUgreenCtx green, unsigned int flags, int priority))                     \
    X(cuStreamGetGreenCtx, "cuStreamGetGreenCtx", 12040, OPTIONAL,                                 \
      (CUstream stream, CUgreenCtx * green))                                                       \
    /* virtual memory management */                                                                \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020, REQUIRED,                                 \
      (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr,                         \
       unsigned long long flags))                                                                  \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, REQUIRED, (CUdeviceptr ptr, size_t size))       \
    X(cuMemCreate, "cuMemCreate", 10020, REQUIRED,                                                 \
      (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,        \
       unsigned long long flags))                                                                  \
    X(cuMemRelease, "cuMemRelease", 10020, REQUIRED, (CUmemGenericAllocationHandle handle))        \
    X(cuMemMap, "cuMemMap", 10020, REQUIRED,                                                       \
      (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,           \
       unsigned long long flags))                                                                  \
    X(cuMemUnmap, "cuMemUnmap", 10020, REQUIRED, (CUdeviceptr ptr, size_t size))                   \
    X(cuMemSetAccess, "cuMemSetAccess", 10020, REQUIRED,                                           \
      (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count))                   \
    X(cuMemGetAccess, "cuMemGetAccess", 10020, REQUIRED,                                           \
      (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr))                 \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, REQUIRED,               \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,       \
       unsigned long long flags))                                                                  \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, REQUIRED,           \
      (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type))    \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020, REQUIRED,             \
      (size_t * granularity, const CUmemAllocationProp *prop,                                      \
       CUmemAllocationGranularity_flags option))                                                   \
    X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020,     \
      REQUIRED, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                 \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, REQUIRED,                 \
      (CUmemGenericAllocationHandle * handle, void *addr))                                         \
    /* multicast; *_v2 name the device and came with CUDA 13.1 */                                  \
    X(cuMulticastCreate, "cuMulticastCreate", 12010, OPTIONAL,                                     \
      (CUmemGenericAllocationHandle * mc, const CUmulticastObjectProp *prop))                      \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 12010, OPTIONAL,                               \
      (CUmemGenericAllocationHandle mc, CUdevice dev))                                             \
    X(cuMulticastBindMem, "cuMulticastBindMem", 12010, OPTIONAL,                                   \
      (CUmemGenericAllocationHandle mc, size_t mc_offset, CUmemGenericAllocationHandle mem,        \
       size_t mem_offset, size_t size, unsigned long long flags))                                  \
    X(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010, OPTIONAL,                                \
      (CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset,                            \
       CUmemGenericAllocationHandle mem, size_t mem_offset, size_t size,                           \
       unsigned long long flags))                                                                  \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010, OPTIONAL,                                 \
      (CUmemGenericAllocationHandle mc, size_t mc_offset, CUdeviceptr ptr, size_t size,            \
       unsigned long long flags))                                                                  \
    X(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010, OPTIONAL,                              \
      (CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset, CUdeviceptr ptr,           \
       size_t size, unsigned long long flags))                                                     \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010, OPTIONAL,                                     \
      (CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset, size_t size))              \
    X(cuMulticastGetGranularity, "cuMulticastGetGranularity", 12010, OPTIONAL,                     \
      (size_t * granularity, const CUmulticastObjectProp *prop,                                    \
       CUmulticastGranularity_flags option))                                                       \
    /* plain memory, copies, attributes */                                                         \
    X(cuMemAlloc, "cuMemAlloc", 3020, REQUIRED, (CUdeviceptr * ptr, size_t size))                  \
    X(cuMemFree, "cuMemFree", 3020, REQUIRED, (CUdeviceptr ptr))                                   \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, REQUIRED,                                            \
      (void **ptr, size_t size, unsigned int flags))                                               \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, REQUIRED, (void *ptr))                                 \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020, REQUIRED,                      \
      (CUdeviceptr * dptr, void *ptr, unsigned int flags))                                         \
    X(cuMemGetInfo, "cuMemGetInfo", 3020, REQUIRED, (size_t * free_bytes, size_t * total_bytes))   \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, REQUIRED,                              \
      (void *data, CUpointer_attribute attribute, CUdeviceptr ptr))                                \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, REQUIRED,                            \
      (unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr))         \
    X(cuMemcpyHtoD, "cuMemcpyHtoD", 3020, REQUIRED,                                                \
      (CUdeviceptr dst, const void *src, size_t bytes))                                            \
    X(cuMemcpyDtoH, "cuMemcpyDtoH", 3020, REQUIRED, (void *dst, CUdeviceptr src, size_t bytes))    \
    X(cuMemcpyDtoD, "cuMemcpyDtoD", 3020, REQUIRED,                                                \
      (CUdeviceptr dst, CUdeviceptr src, size_t bytes))                                            \
    X(cuMemcpyAsync, "cuMemcpyAsync", 4000, REQUIRED,                                              \
      (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))                           \
    X(cuMemsetD8, "cuMemsetD8", 3020, REQUIRED,                                                    \
      (CUdeviceptr dst, unsigned char value, size_t count))                                        \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, REQUIRED,                                          \
      (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))                       \
    X(cuMemsetD32Async, "cuMemsetD32Async", 3020, REQUIRED,                                        \
      (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream))                        \
    /* streams, stream memory operations, events */                                                \
    X(cuStreamCreate, "cuStreamCreate", 2000, REQUIRED, (CUstream * stream, unsigned int flags))   \
    X(cuStreamDestroy, "cuStreamDestroy", 4000, REQUIRED, (CUstream stream))                       \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, REQUIRED, (CUstream stream))               \
    X(cuStreamQuery, "cuStreamQuery", 2000, REQUIRED, (CUstream stream))                           \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, REQUIRED,                                      \
      (CUstream stream, CUevent event, unsigned int flags))                                        \
    X(cuStreamGetCtx, "cuStreamGetCtx", 9020, REQUIRED, (CUstream stream, CUcontext * ctx))        \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, REQUIRED,                                       \
      (CUstream stream, CUhostFn fn, void *user_data))                                             \
    X(cuStreamWaitValue32, "cuStreamWaitValue32", 11070, REQUIRED,                                 \
      (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags))                   \
    X(cuStreamWriteValue32, "cuStreamWriteValue32", 11070, REQUIRED,                               \
      (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags))                   \
    X(cuStreamWaitValue64, "cuStreamWaitValue64", 11070, REQUIRED,                                 \
      (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags))                   \
    X(cuStreamWriteValue64, "cuStreamWriteValue64", 11070, REQUIRED,                               \
      (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags))                   \
    X(cuStreamBatchMemOp, "cuStreamBatchMemOp", 11070, REQUIRED,                                   \
      (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags))    \
    X(cuEventCreate, "cuEventCreate", 2000, REQUIRED, (CUevent * event, unsigned int flags))       \
    X(cuEventDestroy, "cuEventDestroy", 4000, REQUIRED, (CUevent event))                           \
    X(cuEventRecord, "cuEventRecord", 2000, REQUIRED, (CUevent event, CUstream stream))            \
    X(cuEventQuery, "cuEventQuery", 2000, REQUIRED, (CUevent event))                               \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, REQUIRED, (CUevent event))                   \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, REQUIRED,                                    \
      (float *ms, CUevent start, CUevent end))                                                     \
    /* kernels */                                                                                  \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, REQUIRED,                                     \
      (CUlibrary * library, const void *code, CUjit_option *jit_options, void **jit_values,        \
       unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count))       \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, REQUIRED, (CUlibrary library))                    \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, REQUIRED,                                   \
      (CUkernel * kernel, CUlibrary library, const char *name))                                    \
    X(cuKernelGetFunction, "cuKernelGetFunction", 12000, REQUIRED,                                 \
      (CUfunction * function, CUkernel kernel))                                                    \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", 2020, REQUIRED,                                    \
      (int *value, CUfunction_attribute attribute, CUfunction function))                           \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", 9000, REQUIRED,                                    \
      (CUfunction function, CUfunction_attribute attribute, int value))                            \
    X(cuFuncLoad, "cuFuncLoad", 12040, OPTIONAL, (CUfunction function))                            \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",  \
      6050, REQUIRED, (int *blocks, CUfunction function, int block_threads, size_t dynamic_bytes)) \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, REQUIRED,                                            \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,      \
       CUstream stream, void **params, void **extra))                                              \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, REQUIRED,                                       \
      (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))            \
    /* graphs */                                                                                   \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10010, REQUIRED,                               \
      (CUstream stream, CUstreamCaptureMode mode))                                                 \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, REQUIRED,                                   \
      (CUstream stream, CUgraph * graph))                                                          \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, REQUIRED,                                 \
      (CUstream stream, CUstreamCaptureStatus * status))                                           \
    X(cuStreamGetId, "cuStreamGetId", 12000, OPTIONAL, (CUstream stream, unsigned long long *id))  \
    X(cuStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo", 11030, REQUIRED,                        \
      (CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,          \
       const CUgraphNode **dependencies, size_t *count))                                           \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, REQUIRED,     \
      (CUstreamCaptureMode * mode))                                                                \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, REQUIRED,                 \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                               \
    X(cuGraphUpload, "cuGraphUpload", 11010, REQUIRED, (CUgraphExec exec, CUstream stream))        \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, REQUIRED, (CUgraphExec exec, CUstream stream))        \
    X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams", 12000, REQUIRED,           \
      (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params))                 \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, REQUIRED, (CUgraphExec exec))               \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, REQUIRED, (CUgraph graph))                          \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, REQUIRED,                                         \
      (CUgraph graph, CUgraphNode * nodes, size_t * count))                                        \
    X(cuUserObjectCreate, "cuUserObjectCreate", 11030, REQUIRED,                                   \
      (CUuserObject * object, void *ptr, CUhostFn destroy, unsigned int count,                     \
       unsigned int flags))                                                                        \
    X(cuUserObjectRelease, "cuUserObjectRelease", 11030, REQUIRED,                                 \
      (CUuserObject object, unsigned int count))                                                   \
    X(cuGraphRetainUserObject, "cuGraphRetainUserObject", 11030, REQUIRED,                         \
      (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags))

#endif
