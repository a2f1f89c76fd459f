/* What the files of the emulated driver share.
 *
 *   core.c     start-up, the emulated machine, faults, live objects, the table of entry points
 *   context.c  devices, contexts, error texts
 *   memory.h   shared by the memory files: object.c (handles), share.c (export and import),
 *              physical.c (allocations), space.c (addresses), map.c (mappings and access), block.c
 *              (plain and pinned memory), pointer.c (attributes, copies)
 *   mcast.h    multicast objects
 *   stream.c   streams and their order; event.c: events; copy.c: copies, fills, host functions,
 *              stream memory operations; op.c: how each of them is executed
 *   capture.c  stream capture; graph.c: graphs, replay
 *   green.c    green contexts
 *   launch.c   libraries, kernels; grid.c: threads, the block scheduler; fiber.c, swap.c: the CUDA
 *              threads of a block; alias.c: their alias fences; handle.c: which pointers are
 *              handles
 *
 * All device addresses lie in one arena, reserved once. A table has one entry per 2 MiB of the
 * arena: the mapping at that address. Kernels and copies reach memory through emu_access(), which
 * checks the mapping and the device's access, and returns the one canonical host address of the
 * memory. So sanitizers see one address for each byte, however often it is mapped. The arena itself
 * is mapped too, with the union of all devices' access, so a plain dereference works.
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

/* First statement of every entry point: counts the call, injects a fault, and answers
 * NOT_INITIALIZED before cuInit and NOT_PERMITTED in a host function. The caller returns any result
 * but CUDA_SUCCESS at once. */
CUresult emu_enter(enum emu_entry entry);

/* The same, and INVALID_VALUE for invalid arguments: what can be told from them alone. */
CUresult emu_enter_unless(enum emu_entry entry, int invalid);

/* Whether this is a forked child. A child has no driver, and any lock may be held forever by a
 * thread that exists only in the parent. */
int emu_is_forked(void);

/* Undefined use that the real driver would not survive either (double release, unbind of what was
 * not bound): prints the reason on stderr and aborts. */
_Noreturn void emu_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

int emu_capability(CUdevice device);      /* 90 or 80 */
extern struct sw_emu_machine emu_machine; /* constant between cuInit and sw_emu_configure */

/* Launch limits, for device attributes and for the block scheduler. ThreadSanitizer treats every
 * CUDA thread as a thread: each takes a megabyte, all are searched whenever two of them
 * synchronize, and about 8,000 are possible. So a device has just enough multiprocessors there for
 * a grid of several blocks. */
#if defined(__SANITIZE_THREAD__)
#define EMU_MULTIPROCESSORS 2
#else
#define EMU_MULTIPROCESSORS 32
#endif
#define EMU_MULTIPROCESSOR_THREADS 2048
#define EMU_MULTIPROCESSOR_BLOCKS 32
#define EMU_BLOCK_THREADS 1024

/* One primary context per device. CUcontext points to this. */
struct CUctx_st {
    CUdevice device;
    _Atomic int refs;   /* cuDevicePrimaryCtxRetain minus Release */
    _Atomic int sticky; /* CUresult of the first kernel error; later calls return it */
};
extern struct CUctx_st emu_contexts[EMU_MAX_DEVICES];
int emu_is_context(const struct CUctx_st *ctx); /* whether it is a retained context */

/* The calling thread's current context, NULL if none. The caller then returns INVALID_CONTEXT. */
struct CUctx_st *emu_current(void);

/* For tests: clears the kernel errors of all devices. On hardware the process would have to end. */
void sw_emu_clear_sticky(void);

#define EMU_LIVE_KIND(kind, member, name) EMU_LIVE_##kind,
enum emu_kind { SW_EMU_LIVE_LIST(EMU_LIVE_KIND) EMU_LIVE_KINDS };
void emu_live_add(enum emu_kind kind, long delta);

/* ---- pointer.c ------------------------------------------------------------------------------- */

/* Copies between any two addresses, device or host, also across mappings, with the access of
 * `device`. INVALID_VALUE where a device address is not accessible. */
CUresult emu_copy(CUdevice device, CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult emu_fill(CUdevice device, CUdeviceptr dst, unsigned value, size_t width, size_t count);

/* ---- mcast.c --------------------------------------------------------------------------------- */

/* Resolves a multicast address. Fills `targets` with the canonical host address of the `bytes`
 * bytes in the memory of each member device, in the order in which the devices were added, and
 * returns their number. Returns 0 if addr is no multicast address that `device` may use, or if a
 * device has no memory bound there. */
int emu_multicast_access(CUdevice device, CUdeviceptr addr, size_t bytes, int write,
                         void *targets[EMU_MAX_DEVICES]);

/* ---- stream.c -------------------------------------------------------------------------------- */

/* Waits until all work enqueued on the device so far has finished (for cuCtxSynchronize, cuMemFree,
 * cuMemUnmap). Returns the context's sticky error, or CUDA_SUCCESS. */
CUresult emu_device_drain(CUdevice device);

/* ---- launch.c -------------------------------------------------------------------------------- */

/* Shared memory of an H200, in bytes: most per block, and per multiprocessor. Each block costs the
 * multiprocessor 1 KiB more. */
#define EMU_BLOCK_SHARED (227 << 10)
#define EMU_MULTIPROCESSOR_SHARED (228 << 10)

/* Runs one grid to its end, called by a stream's thread. params is the launch's copy. `partition` 0
 * is the whole device. */
CUresult emu_grid_run(CUdevice device, int partition, const struct sw_emu_kernel *kernel,
                      const unsigned grid[3], const unsigned block[3], unsigned shared,
                      const void *params);

#endif
