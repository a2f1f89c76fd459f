/* What the parts of the emulated driver share.
 *
 *   core.c     start-up, the machine, faults, live objects, the table
 *   context.c  devices, contexts, error texts
 *   memory.h   what the memory side shares: object.c (handles), share.c (export and import),
 *              physical.c (allocations), space.c (addresses), map.c (mappings and rights), block.c
 *              (plain and pinned memory), pointer.c (attributes, copies)
 *   mcast.h    multicast objects
 *   stream.c   streams and their order; event.c: events; copy.c: copies, fills, host functions,
 *              stream memory operations; op.c: what each of them does
 *   capture.c  stream capture; graph.c: graphs, replay
 *   green.c    green contexts
 *   launch.c   libraries, kernels; grid.c: threads, the block scheduler; fiber.c, swap.c: the CUDA
 *              threads of a block; handle.c: which pointers are handles
 *
 * Every device address lies in one arena, reserved once. A table with one entry per 2 MiB of it
 * gives the mapping at an address. Kernels and copies reach memory through emu_access(), which
 * checks the mapping and the device's rights and returns the allocation's one canonical host
 * address: however many addresses a byte is mapped at, the sanitizers see one. The arena itself is
 * mapped as well (with the union of all devices' rights), so a plain dereference works too.
 */
#ifndef SYMWIN_EMU_INTERNAL_H
#define SYMWIN_EMU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "emu.h"
#include "emu_access.h" /* struct emu_mapping, the arena, emu_access() */

/* ---- core.c ---------------------------------------------------------------------------------- */

#define SW_EMU_ID(name, symbol, version, need, params) EMU_##name,
enum emu_entry { SW_DRIVER_LIST(SW_EMU_ID) EMU_ENTRY_COUNT };
#undef SW_EMU_ID

/* First statement of every entry point: counts the call, fires an injected fault, and answers
 * NOT_INITIALIZED before cuInit. Anything but CUDA_SUCCESS is returned to the caller at once. */
CUresult emu_enter(enum emu_entry entry);

/* Whether this is a forked child, in which there is no driver, and any lock may be held for ever by a
 * thread that only the parent has. */
int emu_is_forked(void);

/* Undefined use that the driver would not survive either (double release, unbind of what was not
 * bound): says what, on stderr, and aborts. */
_Noreturn void emu_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

int emu_capability(CUdevice device);      /* of the machine's devices: 90 or 80 */
extern struct sw_emu_machine emu_machine; /* constant between cuInit and sw_emu_configure */

/* What every device's attributes say about launches, and what the block scheduler keeps to. To
 * ThreadSanitizer every CUDA thread is a thread: a megabyte each, all looked through whenever two of them
 * meet, and about 8,000 in all. So there a device has the multiprocessors that make a grid of several
 * blocks, and no more. */
#if defined(__SANITIZE_THREAD__)
#define EMU_MULTIPROCESSORS 2
#else
#define EMU_MULTIPROCESSORS 32
#endif
#define EMU_MULTIPROCESSOR_THREADS 2048
#define EMU_MULTIPROCESSOR_BLOCKS 32
#define EMU_BLOCK_THREADS 1024

/* One primary context a device. CUcontext is a pointer to this. */
struct CUctx_st {
    CUdevice device;
    _Atomic int refs;   /* cuDevicePrimaryCtxRetain less Release */
    _Atomic int sticky; /* a CUresult: the error that a kernel left; every later call returns it */
};
extern struct CUctx_st emu_contexts[EMU_MAX_DEVICES];
int emu_is_context(const struct CUctx_st *ctx); /* that somebody retains */

/* The calling thread's current context, NULL if none. INVALID_CONTEXT is the caller's to return. */
struct CUctx_st *emu_current(void);

/* Forgets kernel errors of all devices (a real process would have to end). For tests. */
void sw_emu_clear_sticky(void);

enum emu_kind {
    EMU_LIVE_HANDLE_REF,
    EMU_LIVE_ALLOCATION,
    EMU_LIVE_RESERVATION,
    EMU_LIVE_MAPPING,
    EMU_LIVE_MULTICAST,
    EMU_LIVE_BIND,
    EMU_LIVE_DEVICE_BLOCK,
    EMU_LIVE_HOST_BLOCK,
    EMU_LIVE_CONTEXT,
    EMU_LIVE_STREAM,
    EMU_LIVE_EVENT,
    EMU_LIVE_LIBRARY,
    EMU_LIVE_GRAPH,
    EMU_LIVE_GRAPH_EXEC,
    EMU_LIVE_USER_OBJECT,
    EMU_LIVE_GREEN,
    EMU_LIVE_KINDS
};
void emu_live_add(enum emu_kind kind, long delta);

/* ---- pointer.c ------------------------------------------------------------------------------- */

/* Copies between any two addresses, device or host, crossing mappings; checks rights for `device`.
 * INVALID_VALUE where a device address is not accessible. */
CUresult emu_copy(CUdevice device, CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult emu_fill(CUdevice device, CUdeviceptr dst, unsigned value, size_t width, size_t count);

/* ---- mcast.c --------------------------------------------------------------------------------- */

/* The members of the multicast mapping at `addr` if `device` may use it: fills `targets` with the
 * canonical host address of the `bytes` bytes in each bound device's memory and returns how many,
 * in the order in which the devices were added; 0 if addr is no usable multicast address or some
 * device has no memory bound there. */
int emu_multicast_access(CUdevice device, CUdeviceptr addr, size_t bytes, int write,
                         void *targets[EMU_MAX_DEVICES]);

/* ---- stream.c -------------------------------------------------------------------------------- */

/* Waits until all work enqueued on the device so far has finished (cuCtxSynchronize, cuMemFree,
 * cuMemUnmap). Returns the context's sticky error, or CUDA_SUCCESS. */
CUresult emu_device_drain(CUdevice device);

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Shared memory in bytes, as an H200's: of a block at most, and of a multiprocessor, where each block costs a kilobyte
 * more. */
#define EMU_BLOCK_SHARED (227 << 10)
#define EMU_MULTIPROCESSOR_SHARED (228 << 10)

/* Runs one grid to its end on the calling (stream) thread's behalf; params is the launch's copy. `partition` 0: the whole
 * device's. */
CUresult emu_grid_run(CUdevice device, int partition, const struct sw_emu_kernel *kernel,
                      const unsigned grid[3], const unsigned block[3], unsigned shared,
                      const void *params);

#endif
