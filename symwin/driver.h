/* The driver and its devices, and calls for programs without the CUDA runtime: a part of symwin.h,
 * which includes this. Any thread, at any time.
 */
#ifndef SYMWIN_API_DRIVER_H
#define SYMWIN_API_DRIVER_H

#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct symwin_driver_info {
    const char *name; /* "cuda" or "emu" */
    int version;      /* as cuDriverGetVersion: 13000 is 13.0 */
    int device_count;
    int has_kernels; /* 1: this library has kernels for that driver */
} symwin_driver_info;

/* Says which driver is in use; loads it first if needed. */
SYMWIN_API symwin_status symwin_driver_query(symwin_driver_info *info);

typedef struct symwin_device_info {
    char name[128];
    size_t total_bytes;
    int multiprocessors;
    int capability; /* compute capability: 90 is 9.0 */
    int posix_fd;   /* 1: memory can be exported as a file descriptor */
    int fabric; /* 1: the device reports fabric handles; only an export shows whether they work */
    int multicast; /* 1: the device reports multicast objects */
} symwin_device_info;

/* Describes a device. SYMWIN_INVALID: no such device. */
SYMWIN_API symwin_status symwin_device_query(int device, symwin_device_info *info);

/* ---- for programs without the CUDA runtime --------------------------------------------------- */

/* An entry point of the driver in use (libcuda's or the emulated driver's) by its CUDA name, such
 * as "cuLaunchKernel": for kernels, graphs, events and others that have no call here. Available are
 * the entry points that symwin itself uses, as cuda.h of CUDA 12 declares them. They work in the
 * current context, so set one first, for example with cuCtxSetCurrent().
 *
 *   function  the entry point; copy its bytes to a function pointer of the type in cuda.h
 *
 *   SYMWIN_INVALID      symwin uses no entry point of that name
 *   SYMWIN_UNSUPPORTED  this driver has no entry point of that name */
SYMWIN_API symwin_status symwin_driver_find(const char *name, void **function);

/* Streams of `device`, which do not wait for the legacy default stream. A stream keeps the device's
 * primary context alive until it is destroyed. To synchronize, NULL is the legacy default stream.
 *
 *   SYMWIN_INVALID  no such device; NULL, where a stream is created or destroyed
 *   SYMWIN_DRIVER   the stream was destroyed before, if the driver notices that: CUDA leaves it
 *                   undefined */
SYMWIN_API symwin_status symwin_stream_create(int device, struct CUstream_st **stream);
SYMWIN_API symwin_status symwin_stream_destroy(int device, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_stream_synchronize(int device, struct CUstream_st *stream);

/* Copies `bytes` bytes between host and device addresses, in either direction, in stream order on
 * `device`. 0 bytes: does nothing and looks at no other argument. Between pinned and device memory
 * the copy is asynchronous. With pageable host memory (malloc) the call first waits for the stream;
 * when it returns, the copy is done, or at least the source is read. So it cannot be captured.
 *
 *   SYMWIN_INVALID  an address is NULL, or no such device */
SYMWIN_API symwin_status symwin_memcpy(int device, void *dst, const void *src, size_t bytes,
                                       struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
