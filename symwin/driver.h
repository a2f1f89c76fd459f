/* The driver and its devices, and what programs without the CUDA runtime need of it: a part of symwin.h, which includes this.
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
    int has_kernels; /* whether this library holds kernels for that driver */
} symwin_driver_info;

/* Which driver answers; loads it if that has not happened yet. */
SYMWIN_API symwin_status symwin_driver_query(symwin_driver_info *info);

typedef struct symwin_device_info {
    char name[128];
    size_t total_bytes;
    int multiprocessors;
    int capability; /* 90 is 9.0 */
    int posix_fd;   /* whether memory can be exported as a file descriptor */
    int fabric;     /* whether the device claims fabric handles; only trying tells */
    int multicast;  /* whether the device claims multicast objects */
} symwin_device_info;

/* SYMWIN_INVALID: no such device. */
SYMWIN_API symwin_status symwin_device_query(int device, symwin_device_info *info);

/* ---- for programs without the CUDA runtime --------------------------------------------------- */

/* An entry point of the driver that answers, libcuda's or the emulated one's, by CUDA's name for it, as "cuLaunchKernel": for
 * what there is no call here, as kernels, graphs and events. Those that symwin itself uses can be had, as cuda.h of CUDA 12
 * declares them. They work in the current context: make one current first, as with cuCtxSetCurrent().
 *
 *   function  what is to be called, as cuda.h declares it: copy its bytes to a pointer of that type
 *
 *   SYMWIN_INVALID      symwin uses none of that name
 *   SYMWIN_UNSUPPORTED  this driver has none of that name */
SYMWIN_API symwin_status symwin_driver_find(const char *name, void **function);

/* A stream of `device` that does not wait for the legacy default stream. */
SYMWIN_API symwin_status symwin_stream_create(int device, struct CUstream_st **stream);
SYMWIN_API symwin_status symwin_stream_destroy(int device, struct CUstream_st *stream);
SYMWIN_API symwin_status symwin_stream_synchronize(int device, struct CUstream_st *stream);

/* Copies between host and device addresses, either way, in stream order on `device`. Where the host memory is pageable
 * (malloc), it first waits for the stream, and the copy is done, or the source at least read, when it returns; so it
 * cannot be captured. Between pinned and device memory it is asynchronous. */
SYMWIN_API symwin_status symwin_memcpy(int device, void *dst, const void *src, size_t bytes,
                                       struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
