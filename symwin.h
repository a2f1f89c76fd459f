/* symwin: symmetric-memory windows for NVIDIA GPUs.
 *
 * Every rank allocates physical memory through CUDA's virtual memory management; a window maps the
 * memory of all ranks at the same offset of one flat range, so that a kernel reaches a peer by
 * arithmetic alone:
 *
 *     peer address = base + rank * stride + offset
 *
 * The short form of a program, on every rank:
 *
 *     symwin_mem_alloc(device, bytes, 0, &buffer);
 *     symwin_comm_create(&id, nranks, rank, device, NULL, &comm);
 *     symwin_window_register(comm, buffer, bytes, 0, &window);
 *     symwin_allreduce(comm, buffer, buffer, count, SYMWIN_F32, SYMWIN_SUM, stream);
 *     symwin_window_deregister(comm, window);
 *     symwin_comm_destroy(comm);
 *     symwin_mem_free(buffer);
 *
 * Errors: every call that can fail returns a symwin_status; symwin_last_error() then has a sentence
 * that names the call, the value and what to do. Results go to the out-pointer, the last parameter,
 * which is set only on SYMWIN_OK. Any call may return SYMWIN_INVALID for NULL where a pointer is
 * needed, SYMWIN_DRIVER for a driver call that failed without a code of its own below, and
 * SYMWIN_UNSUPPORTED where no driver can be loaded.
 *
 * Threads: calls without a communicator may be made by any thread at any time. A communicator is
 * one rank's: any thread may use it, but only one at a time, except symwin_comm_abort(),
 * symwin_comm_check() and the window queries, which are free. A second thread inside a collective
 * call gets SYMWIN_BUSY.
 *
 * Collective calls (marked so) must be made by all ranks, in the same order, with arguments that
 * agree. They succeed on all ranks or fail on all with one status; after a failure nothing is kept.
 *
 * Contexts: symwin works in each device's primary context, the one of the CUDA runtime, and leaves
 * the caller's current context as it was.
 *
 * The environment: SYMWIN_DRIVER=auto|cuda|emu chooses the driver (auto: CUDA where there is a
 * device, else the emulated driver); SYMWIN_NVLS=1 allows multicast objects on real hardware;
 * SYMWIN_TUNING names a table by which algorithms are chosen. docs/environment.md has all variables. One that is set to
 * what makes no sense is SYMWIN_INVALID of the first call that reads it.
 */
#ifndef SYMWIN_H
#define SYMWIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SYMWIN_VERSION_MAJOR 0
#define SYMWIN_VERSION_MINOR 1
#define SYMWIN_VERSION_PATCH 0
#define SYMWIN_VERSION "0.1.0"

#if defined(__GNUC__)
#define SYMWIN_API __attribute__((visibility("default")))
#else
#define SYMWIN_API
#endif

struct CUstream_st; /* a cudaStream_t or CUstream passes as it is */

/* ---- status ---------------------------------------------------------------------------------- */

/* X(name, value, what the caller can do) */
#define SYMWIN_STATUS_LIST(X)                                                                      \
    X(SYMWIN_OK, 0, "success")                                                                     \
    X(SYMWIN_INVALID, 1, "an argument is wrong: correct the call")                                 \
    X(SYMWIN_MISMATCH, 2, "the ranks' calls differ: make them agree")                              \
    X(SYMWIN_UNSUPPORTED, 3, "not possible on this machine: fall back")                            \
    X(SYMWIN_NO_MEMORY, 4, "memory, addresses or another resource ran out")                        \
    X(SYMWIN_DENIED, 5, "the system does not permit it: check permissions")                        \
    X(SYMWIN_BUSY, 6, "in use: finish or release the other use first")                             \
    X(SYMWIN_PEER_LOST, 7, "a rank is gone: destroy the communicator")                             \
    X(SYMWIN_TIMEOUT, 8, "a rank is late: destroy the communicator")                               \
    X(SYMWIN_DRIVER, 9, "a CUDA driver call failed")                                               \
    X(SYMWIN_ABORTED, 10, "the communicator was aborted: destroy it")                              \
    X(SYMWIN_FORKED, 11, "this is a fork of the process that used symwin: exec first")

typedef enum symwin_status {
#define SYMWIN_STATUS_ENUM(name, value, text) name = value,
    SYMWIN_STATUS_LIST(SYMWIN_STATUS_ENUM)
#undef SYMWIN_STATUS_ENUM
} symwin_status;

/* "SYMWIN_INVALID" and so on; never NULL. */
SYMWIN_API const char *symwin_status_name(symwin_status status);

/* The calling thread's last failure in one sentence; "" before the first. Valid until the thread's
 * next failing call; success leaves it alone. */
SYMWIN_API const char *symwin_last_error(void);

/* SYMWIN_VERSION of the library that is loaded. */
SYMWIN_API const char *symwin_version(void);

/* Pass as `device`: the device of the calling thread's current context. */
#define SYMWIN_DEVICE_CURRENT (-1)

/* ---- communicators --------------------------------------------------------------------------- */

typedef struct symwin_unique_id {
    unsigned char bytes[128];
} symwin_unique_id;

typedef struct symwin_comm symwin_comm;

/* Makes an id by which the ranks of one communicator find each other: give its bytes to all of them,
 * by whatever carries 128 bytes, and keep them from others: who has them is a member. This process
 * (which need not be a rank) must live until all ranks have come. An id serves once.
 *
 * Where SYMWIN_ADDR is set, ranks of other hosts reach this process at that address of its host (a number,
 * a name or an interface), and at SYMWIN_PORT or any free port.
 *
 *   SYMWIN_INVALID    SYMWIN_ADDR is no address, or SYMWIN_PORT no port
 *   SYMWIN_DENIED     they cannot be listened on, or the system gives no random numbers
 *   SYMWIN_NO_MEMORY  no descriptor or thread is left for the ranks to come to */
SYMWIN_API symwin_status symwin_unique_id_create(symwin_unique_id *id);

/* Gives up an id of this process that has not served: ranks that wait with it get SYMWIN_ABORTED. So do
 * those of this process that come later, and those of others as long as this process still listens for
 * ranks with that or another id; then they get SYMWIN_PEER_LOST, or SYMWIN_TIMEOUT where the id is
 * symwin_unique_id_from_env()'s for several hosts, whose maker may still be on its way. Any thread. Ids that
 * are neither used nor released keep a socket and a thread until the process ends.
 *
 *   SYMWIN_INVALID  another process made it, or it has served */
SYMWIN_API symwin_status symwin_unique_id_release(const symwin_unique_id *id);

enum {
    SYMWIN_COMM_MULTICAST = 1,    /* allow multicast objects on real hardware, as SYMWIN_NVLS=1 */
    SYMWIN_COMM_NO_MULTICAST = 2, /* never create one, on any driver */
    SYMWIN_COMM_NO_GRAPH_REGISTER =
        4, /* captured calls register nothing, as SYMWIN_GRAPH_REGISTER=0 */
    SYMWIN_COMM_GRAPH_LAUNCH =
        8, /* calls outside captures are launched as a graph of one kernel, as SYMWIN_GRAPH_LAUNCH=1: less of
            * the host's time, but no kernel begins before the one ahead has ended (docs/performance.md) */
    SYMWIN_COMM_NO_ORDER =
        16 /* calls neither wait for other communicators' nor leave room for them: the caller sees to it */
};

typedef struct symwin_comm_options {
    size_t size;    /* sizeof(symwin_comm_options); 0 in any other member: the default */
    unsigned flags; /* SYMWIN_COMM_* */
    /* Longest waits. For a peer in a kernel: 600,000; -1: for ever. For a rank in a host call: SYMWIN_TIMEOUT_MS, or
     * 30,000; between hosts up to 3 s more, until they agree on who is late. For all ranks to come, and to begin:
     * timeout_ms if that is set, else SYMWIN_BOOTSTRAP_TIMEOUT_MS, or 60,000; between hosts up to 4 s more. */
    int timeout_ms;
    int bootstrap_timeout_ms;
    int kernel_timeout_ms;
    /* What a rank can push to another in one round and one stage, a multiple of 16; larger messages go in rounds.
     * 4 * nranks * slot_bytes of device memory are allocated: by default up to 256 MiB, on the emulated driver 8; and 256 KiB
     * for the counters of channels. */
    size_t slot_bytes;
    int max_blocks; /* most blocks in use at once: no kernel begins before the one ahead has ended */
} symwin_comm_options;

/* Creates this rank's part of a communicator. Collective over nranks threads, in one process or in
 * several of this user, that pass the same id; an id serves once. Between hosts the id must be made where
 * SYMWIN_ADDR is set, or be symwin_unique_id_from_env()'s, and memory must have fabric handles.
 *
 *   nranks   1 to 4096; ranks may share a device (see below)
 *   rank     0 .. nranks - 1, each once
 *   device   ordinal, or SYMWIN_DEVICE_CURRENT; may differ or be equal among ranks
 *   options  NULL for the defaults; must agree on all ranks but for timeouts
 *   comm     destroy with symwin_comm_destroy()
 *
 *   SYMWIN_INVALID      a bad argument, a rank that is taken, a SYMWIN_TUNING that is no table of choices, or another variable
 *                       that makes no sense
 *   SYMWIN_MISMATCH     nranks, options or tables of choices differ among ranks
 *   SYMWIN_UNSUPPORTED  devices that are no peers, no kernels for the driver, or more ranks on a device than it can run
 *   SYMWIN_NO_MEMORY    device memory or address space ran out
 *   SYMWIN_TIMEOUT      a rank did not come in time; the error names it
 *   SYMWIN_PEER_LOST    a rank's process ended, or the process that made the id did
 *   SYMWIN_DENIED       another user's process, or the id was not passed on as it was made
 *
 * Ranks that share a device share its context. A call that waits for the device (cuMemFree, cuMemFreeHost, cudaMemcpy
 * from or to pageable memory, the legacy default stream) then also waits for the other ranks' kernels, and holds up
 * their launches: make it when no collective of theirs waits for this rank. And streams in use beyond
 * CUDA_DEVICE_MAX_CONNECTIONS (8, at most 32) wait for each other. Ranks on one device need a stream each: on a common
 * one, the first rank's kernel would wait for the second's behind it. And a graph's first launch uploads it: of two that
 * do so at the same time one may wait until the other has run, so upload it before (cuGraphUpload), and synchronize.
 * These are CUDA's rules (tests/gpu/gpu_waits.c, docs/hardware.md).
 *
 * Several communicators on one set of devices: kernels wait for peers on multiprocessors that they hold, so one
 * communicator can keep out what another waits for. Calls complete where all devices come to them in the same order,
 * whatever streams they are on, or where they fit beside each other. In detail:
 *
 *   - Calls outside captures: make them in the same order on all devices; the order is that in which they enter, also
 *     from several threads. Calls whose grids together have no more blocks than the device has multiprocessors may also
 *     be made in any order, as those of communicators with a max_blocks that fits, and run beside each other. Others run one
 *     after another.
 *   - Captured calls leave room for the other communicators that have made a call on the device before: each gets an equal
 *     share of the multiprocessors. So graphs with calls of different communicators can be launched in any order, on any
 *     streams, and beside calls outside graphs, if each communicator has made a call (a warm-up, say) before the
 *     first capture. Else order by streams or events: a graph, and the calls of a communicator that made its first one
 *     after that graph's capture; and always a graph's launch, and calls that were made before its capture.
 *   - Where ranks of one process share a device, create all communicators of a rank in one thread.
 *   - SYMWIN_COMM_NO_ORDER leaves all this to the caller, for communicators whose calls never meet others'.
 *
 * Kernels of other libraries, and your own that wait for peers, are not taken into account. A communicator that has no
 * other beside it is not held up. */
SYMWIN_API symwin_status symwin_comm_create(const symwin_unique_id *id, int nranks, int rank,
                                            int device, const symwin_comm_options *options,
                                            symwin_comm **comm);

/* Destroys this rank's part: deregisters its windows, frees its resources. Local; NULL is fine.
 *
 * Ranks may destroy at different times. What a peer waits for that needs this rank's next call ends with SYMWIN_PEER_LOST,
 * which names this rank: host calls at once, the library's kernels within milliseconds, also those that are launched later
 * and graphs that are replayed. Calls that this rank has made complete, on the peers too: it waits for those outside graphs,
 * which takes as long as the peers do (symwin_comm_abort() ends that). Graphs that hold calls must have completed. Kernels
 * of your own that wait for this rank (symwin_channel_limit()) wait until their limit.
 *
 * Memory that peers can reach stays mapped until the process's last rank has done so. To unmap it the driver may wait for all
 * kernels on the device: one of another communicator that waits for a call which this thread makes later holds up the destroy. */
SYMWIN_API void symwin_comm_destroy(symwin_comm *comm);

typedef struct symwin_comm_info {
    int nranks;
    int rank;
    int device;
    int multicast; /* whether windows can have multicast addresses */
    size_t stride; /* bytes between two ranks' parts of the flat range, a power of two */
    void *base;    /* first address of the flat range in this process */
    int windows;   /* live windows of this rank */
    int allocations; /* sets of physical allocations, of each rank one or several, that windows and registered
                      * buffers of this process's ranks hold mapped: those in the same allocations share one set */
} symwin_comm_info;

/* What the communicator is and how much it holds. */
SYMWIN_API symwin_status symwin_comm_query(symwin_comm *comm, symwin_comm_info *info);

/* Whether the communicator still works: SYMWIN_OK, or what a kernel or an abort left behind
 * (MISMATCH, TIMEOUT, PEER_LOST, NO_MEMORY, ABORTED; the text names the rank). Any thread; costs a few loads. Errors of
 * kernels show here once the stream has passed the call.
 *
 * All ranks whose kernels were in a failed call, or come to it later, get one status and one sentence, the rank to blame
 * included. Who finds a failure here ends the communicator on all ranks: those that were in no kernel get the status and
 * the rank from then on. What a rank gets where it
 *
 *   comes to a call after others have timed out in it   TIMEOUT, which names itself, as they do; its output is undefined.
 *                                   Only where its kernel has begun before their word came, and needs nothing more of
 *                                   them, is that call complete and OK here: then its next call fails, and this one once
 *                                   another rank has called it
 *   was not in the call             SYMWIN_OK until one of the others calls this, or its own next call fails
 *
 * Between hosts one decides which end it is: a rank of another may wait for its word, for a second at the most, here and in
 * symwin_comm_destroy().
 *
 * A MISMATCH names who differs from more than half of the ranks that come within a second; where no half agrees, it says so
 * and names the lowest rank of either side. */
SYMWIN_API symwin_status symwin_comm_check(symwin_comm *comm);

/* Makes this rank's waiting host calls and kernels, and its peers', leave soon with SYMWIN_ABORTED. Any
 * thread. Afterwards the communicator can only be destroyed; contexts and streams stay usable. */
SYMWIN_API symwin_status symwin_comm_abort(symwin_comm *comm);

enum { SYMWIN_SPLIT_NONE = -1 }; /* as color: this rank is in no part */

/* Makes communicators of parts of one: of the ranks that pass the same color, ordered by key and then
 * by rank. Collective over `parent`, which stays as it is; each part then succeeds or fails by itself.
 *
 * SYMWIN_ADDR and SYMWIN_PORT play no role: ranks of one host meet without the network, and those of
 * several at the address by which one of their hosts is linked with the others in `parent`, at any free
 * port. Where the host on which the parent's id was made has no rank in the part, the others' hosts must
 * reach each other as they reach that one.
 *
 *   color    >= 0, or SYMWIN_SPLIT_NONE
 *   options  as for symwin_comm_create(); the device is the parent's
 *   comm     NULL for a rank in no part
 *
 *   SYMWIN_INVALID  color below -1; and what symwin_unique_id_create() and symwin_comm_create() return */
SYMWIN_API symwin_status symwin_comm_split(symwin_comm *parent, int color, int key,
                                           const symwin_comm_options *options, symwin_comm **comm);

/* ---- windows --------------------------------------------------------------------------------- */

/* A window's handle; dead for ever once deregistered (no later window gets the same value). */
typedef struct symwin_window symwin_window;

enum {
    SYMWIN_WINDOW_MULTICAST = 1,   /* fail rather than do without a multicast address */
    SYMWIN_WINDOW_NO_MULTICAST = 2 /* do without */
};

/* Makes a symmetric window of each rank's [ptr, ptr + bytes). Collective.
 *
 *   ptr    in VMM memory of this rank's device: symwin_mem_alloc(), ncclMemAlloc(), a framework's.
 *          Its offset in the underlying physical allocation must agree on all ranks, but for multiples of
 *          the granularity (2 MiB); the allocations may differ in size and address. Any alignment.
 *   bytes  > 0, equal on all ranks, within the allocation; or, where that is not symwin_mem_alloc()'s,
 *          within several that lie side by side in one reservation of addresses, as those of PyTorch's
 *          expandable segments: up to 1024, and on each rank as many as there are. Where a rank has several,
 *          or another offset than the others, the window has no multicast address.
 *   flags  SYMWIN_WINDOW_*, equal on all ranks
 *
 * The first window on an allocation maps it on every rank; later ones on the same allocations cost
 * microseconds. A window holds a reference to the physical memory.
 *
 *   base            +stride         +2*stride          +nranks*stride
 *   | .. rank 0 ..  | .. rank 1 ..  | ..               | multicast, where there is one |
 *
 *   SYMWIN_INVALID      bytes 0, unknown flag, no VMM memory, another device's memory, or a window
 *                       past its allocation
 *   SYMWIN_MISMATCH     bytes, flags or offsets differ; the text has both values
 *   SYMWIN_UNSUPPORTED  SYMWIN_WINDOW_MULTICAST where there is no multicast, or not for these allocations
 *   SYMWIN_NO_MEMORY    the flat range is full
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator is no longer usable */
SYMWIN_API symwin_status symwin_window_register(symwin_comm *comm, void *ptr, size_t bytes,
                                                unsigned flags, symwin_window **window);

/* Gives up this rank's window. Local, in any order; call it when this rank's work on the window is
 * done. The mapping goes when the last rank has given up its last window on the allocation.
 *
 *   SYMWIN_INVALID  no live window of this communicator: deregistered before, or another's */
SYMWIN_API symwin_status symwin_window_deregister(symwin_comm *comm, symwin_window *window);

enum {
    SYMWIN_TRANSPORT_PEER = 1,     /* peers' memory is mapped (IPC in NCCL's terms) */
    SYMWIN_TRANSPORT_MULTICAST = 2 /* a multicast object is bound (NVLS in NCCL's terms) */
};

typedef struct symwin_window_info {
    void *ptr; /* as registered by this rank */
    size_t bytes;
    void *base; /* of the flat range */
    size_t stride;
    size_t offset; /* of the window in each rank's part: peer p's byte i is at
                         * base + p * stride + offset + i */
    int rank;
    int nranks;
    unsigned transports; /* SYMWIN_TRANSPORT_* */
    uint64_t buffer_id;  /* of this rank's physical allocation, or of the first of them */
    int allocations;     /* physical allocations of this rank that it lies on */
} symwin_window_info;

/* SYMWIN_INVALID: no live window of this communicator. So for the next three. */
SYMWIN_API symwin_status symwin_window_query(symwin_comm *comm, const symwin_window *window,
                                             symwin_window_info *info);

/* Address, on every device of the communicator, of byte `offset` of rank `peer`'s window.
 * SYMWIN_INVALID: no such rank, or offset >= bytes. */
SYMWIN_API symwin_status symwin_window_peer_pointer(symwin_comm *comm, const symwin_window *window,
                                                    int peer, size_t offset, void **ptr);

/* Multicast address of byte `offset`: a store reaches all ranks, a load-reduce reads all.
 * SYMWIN_UNSUPPORTED: this window has none. */
SYMWIN_API symwin_status symwin_window_multicast_pointer(symwin_comm *comm,
                                                         const symwin_window *window, size_t offset,
                                                         void **ptr);

/* The window of this rank that contains all of [ptr, ptr + bytes), the smallest if several do.
 * Never blocks. SYMWIN_INVALID: none does. */
SYMWIN_API symwin_status symwin_window_find(symwin_comm *comm, const void *ptr, size_t bytes,
                                            symwin_window **window);

/* ---- the other parts, each in a file of its own ----------------------------------------------- */

#include "symwin/channel.h"
#include "symwin/collective.h"
#include "symwin/driver.h"
#include "symwin/inspect.h"
#include "symwin/launch.h"
#include "symwin/memory.h"
#include "symwin/register.h"

#ifdef __cplusplus
}
#endif
#endif
