/* NCCL's public functions, which libsymwin-nccl-full.so passes on: its allocator to
 * libsymwin-nccl.so, the others to NCCL. A program that loads that library by name, in place of
 * NCCL, finds all that it needs.
 *
 * X(name, result): what it returns, a code or a text. Each has a second name, with a p in front,
 * for profilers. From nccl.h 2.28.9; the rest is from the symbols that PyTorch 2.15 and vLLM
 * use. */
#ifndef SYMWIN_NCCL_NAMES_H
#define SYMWIN_NCCL_NAMES_H

#define SW_NCCL_NAMES(X)                                                                           \
    X(ncclMemAlloc, code)                                                                          \
    X(ncclMemFree, code)                                                                           \
    X(ncclGetVersion, code)                                                                        \
    X(ncclGetUniqueId, code)                                                                       \
    X(ncclGetErrorString, text)                                                                    \
    X(ncclGetLastError, text)                                                                      \
    X(ncclResetDebugInit, code)                                                                    \
    X(ncclCommInitRank, code)                                                                      \
    X(ncclCommInitRankConfig, code)                                                                \
    X(ncclCommInitRankScalable, code)                                                              \
    X(ncclCommInitAll, code)                                                                       \
    X(ncclCommSplit, code)                                                                         \
    X(ncclCommShrink, code)                                                                        \
    X(ncclCommGrow, code)                                                                          \
    X(ncclCommGetUniqueId, code)                                                                   \
    X(ncclCommFinalize, code)                                                                      \
    X(ncclCommDestroy, code)                                                                       \
    X(ncclCommAbort, code)                                                                         \
    X(ncclCommRevoke, code)                                                                        \
    X(ncclCommSuspend, code)                                                                       \
    X(ncclCommResume, code)                                                                        \
    X(ncclCommGetAsyncError, code)                                                                 \
    X(ncclCommCount, code)                                                                         \
    X(ncclCommCuDevice, code)                                                                      \
    X(ncclCommUserRank, code)                                                                      \
    X(ncclCommMemStats, code)                                                                      \
    X(ncclCommQueryProperties, code)                                                               \
    X(ncclCommRegister, code)                                                                      \
    X(ncclCommDeregister, code)                                                                    \
    X(ncclCommWindowRegister, code)                                                                \
    X(ncclCommWindowDeregister, code)                                                              \
    X(ncclWinGetUserPtr, code)                                                                     \
    X(ncclDevCommCreate, code)                                                                     \
    X(ncclDevCommDestroy, code)                                                                    \
    X(ncclGetPeerDevicePointer, code)                                                              \
    X(ncclGetLsaMultimemDevicePointer, code)                                                       \
    X(ncclRedOpCreatePreMulSum, code)                                                              \
    X(ncclRedOpDestroy, code)                                                                      \
    X(ncclAllReduce, code)                                                                         \
    X(ncclAllGather, code)                                                                         \
    X(ncclReduceScatter, code)                                                                     \
    X(ncclBroadcast, code)                                                                         \
    X(ncclBcast, code)                                                                             \
    X(ncclReduce, code)                                                                            \
    X(ncclAlltoAll, code)                                                                          \
    X(ncclGather, code)                                                                            \
    X(ncclScatter, code)                                                                           \
    X(ncclSend, code)                                                                              \
    X(ncclRecv, code)                                                                              \
    X(ncclAllReduceConfig, code)                                                                   \
    X(ncclAllGatherConfig, code)                                                                   \
    X(ncclReduceScatterConfig, code)                                                               \
    X(ncclBroadcastConfig, code)                                                                   \
    X(ncclReduceConfig, code)                                                                      \
    X(ncclAlltoAllConfig, code)                                                                    \
    X(ncclGatherConfig, code)                                                                      \
    X(ncclScatterConfig, code)                                                                     \
    X(ncclPutSignal, code)                                                                         \
    X(ncclSignal, code)                                                                            \
    X(ncclWaitSignal, code)                                                                        \
    X(ncclGroupStart, code)                                                                        \
    X(ncclGroupEnd, code)                                                                          \
    X(ncclGroupSimulateEnd, code)

#endif
