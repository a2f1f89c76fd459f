/* symwin: symmetric-memory windows for NVIDIA GPUs.
 *
 * Every rank allocates physical memory through CUDA's virtual memory management (VMM). A window
 * maps the memory of all ranks at the same offset of one flat range, so that a kernel computes the
 * address of a peer's memory:
 *
 *     peer address = base + rank * stride + offset
 *
 * A minimal program; every rank runs:
 *
 *     symwin_mem_alloc(device, bytes, 0, &buffer);
 *     symwin_comm_create(&id, nranks, rank, device, NULL, &comm);
 *     symwin_window_register(comm, buffer, bytes, 0, &window);
 *     symwin_allreduce(comm, buffer, buffer, count, SYMWIN_F32, SYMWIN_SUM, stream);
 *     symwin_window_deregister(comm, window);
 *     symwin_comm_destroy(comm);
 *     symwin_mem_free(buffer);
 *
 * Errors: a call that can fail returns a symwin_status. symwin_last_error() then has one sentence
 * with the call, the value and what to do. Results go to the out-pointer, the last parameter, which
 * is set only on SYMWIN_OK. Any call may return SYMWIN_INVALID if a required pointer is NULL,
 * SYMWIN_DRIVER if a driver call failed for a reason not listed below, SYMWIN_UNSUPPORTED if no
 * driver can be loaded, and SYMWIN_FORKED in a forked child of a process that used symwin.
 *
 * Threads: calls without a communicator may be made by any thread at any time. A communicator
 * belongs to one rank. Any thread may use it, but only one at a time, except symwin_comm_abort(),
 * symwin_comm_check() and the window queries, which any thread may call at any time until
 * symwin_comm_destroy() (which says what may run beside it). A second thread inside a collective
 * call gets SYMWIN_BUSY.
 *
 * Collective calls (marked so) must be made by all ranks, in the same order, with arguments that
 * agree. They succeed on all ranks, or fail on all with one status and then change nothing.
 *
 * Contexts: symwin uses each device's primary context, as the CUDA runtime does, and leaves the
 * caller's current context unchanged.
 *
 * Environment: SYMWIN_DRIVER=auto|cuda|emu selects the driver (auto: CUDA if there is a device,
 * else the emulated driver). SYMWIN_NVLS=1 allows multicast objects on real hardware. SYMWIN_TUNING
 * names a tuning table. docs/environment.md lists all variables. If a variable has an invalid
 * value, the first call that reads it returns SYMWIN_INVALID.
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

struct CUstream_st; /* pass a cudaStream_t or CUstream without a cast */
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

/* The status's name, such as "SYMWIN_INVALID"; never NULL. */
SYMWIN_API const char *symwin_status_name(symwin_status status);

/* One sentence about the calling thread's last failure; "" if there was none. Valid until the
 * thread's next failing call; calls that succeed do not change it. */
SYMWIN_API const char *symwin_last_error(void);

/* The loaded library's SYMWIN_VERSION. */
SYMWIN_API const char *symwin_version(void);

/* Pass as `device`: the device of the calling thread's current context. */
#define SYMWIN_DEVICE_CURRENT (-1)

/* ---- communicators --------------------------------------------------------------------------- */

typedef struct symwin_unique_id {
    unsigned char bytes[128];
} symwin_unique_id;

typedef struct symwin_comm symwin_comm;

/* Creates an id with which the ranks of one communicator find each other. Pass its 128 bytes to all
 * ranks, by any transport, and keep them secret: whoever has them can join. The calling process
 * need not be a rank, but must live until all ranks have joined. An id creates one communicator
 * only.
 *
 * If SYMWIN_ADDR is set (a number, a name or an interface of this host), ranks on other hosts
 * connect to this process at that address, at port SYMWIN_PORT or, if that is not set, any free
 * port.
 *
 *   SYMWIN_INVALID    SYMWIN_ADDR is no address, or SYMWIN_PORT no port
 *   SYMWIN_DENIED     the process cannot listen there, or the system gives no random numbers
 *   SYMWIN_NO_MEMORY  no descriptor or thread is left to listen for the ranks */
SYMWIN_API symwin_status symwin_unique_id_create(symwin_unique_id *id);

/* Releases an unused id that this process created. Any thread. Ranks that wait with it get
 * SYMWIN_ABORTED, and so do this process's ranks that join later. Ranks of other processes that
 * join later get SYMWIN_ABORTED while this process still listens for ranks with this or another id.
 * After that they get SYMWIN_PEER_LOST, or SYMWIN_TIMEOUT if the id is
 * symwin_unique_id_from_env()'s for several hosts, because its creator may not have started yet. An
 * id that is neither used nor released keeps a socket and a thread until the process ends.
 *
 *   SYMWIN_INVALID  another process created the id, or it was used */
SYMWIN_API symwin_status symwin_unique_id_release(const symwin_unique_id *id);

enum {
    SYMWIN_COMM_MULTICAST = 1,    /* allow multicast objects on real hardware, as SYMWIN_NVLS=1 */
    SYMWIN_COMM_NO_MULTICAST = 2, /* never create one, on any driver */
    /* Captured calls register nothing, as with SYMWIN_GRAPH_REGISTER=0. */
    SYMWIN_COMM_NO_GRAPH_REGISTER = 4,
    /* Calls outside captures are launched as a graph of one kernel, as with SYMWIN_GRAPH_LAUNCH=1:
     * less host time, but no kernel begins before the one ahead has ended (docs/performance.md). */
    SYMWIN_COMM_GRAPH_LAUNCH = 8,
    /* The caller orders calls of different communicators; symwin adds no waits, leaves no room. */
    SYMWIN_COMM_NO_ORDER = 16
};

typedef struct symwin_comm_options {
    size_t size;    /* sizeof(symwin_comm_options); 0 in any other member selects the default */
    unsigned flags; /* SYMWIN_COMM_* */
    /* Host calls: longest wait for a rank, in milliseconds. Default: SYMWIN_TIMEOUT_MS, or 30,000.
     * Between hosts up to 3 s more, in which they agree on the late rank. */
    int timeout_ms;
    /* Longest wait until all ranks have joined and the communicator is built, in milliseconds from
     * the call on; timeout_ms limits later calls only. Default: timeout_ms if set, else
     * SYMWIN_BOOTSTRAP_TIMEOUT_MS, or 60,000. Between hosts up to 4 s more. */
    int bootstrap_timeout_ms;
    /* Kernels: longest wait for a peer, in milliseconds. Default: 600,000; -1: no limit. */
    int kernel_timeout_ms;
    /* Bytes that one rank can push to another per round and stage: a multiple of 16, at most 4 GiB.
     * Larger messages take several rounds. A communicator allocates 4 * nranks * slot_bytes of
     * device memory, by default up to 256 MiB (emulated driver: 8 MiB), up to 4 MiB a rank for
     * sends and receives, and 256 KiB for channel counters. Default: 32 MiB for 2 ranks, 8 MiB for
     * 4, 4 MiB for 8: the largest power of two for which 4 * (nranks - 1) * slot_bytes is at most
     * 128 MiB (emulated driver: 4 MiB); 1 MiB for a single rank. */
    size_t slot_bytes;
    /* Most blocks in use at once, and of NCCL's. If set, a kernel waits for the one ahead. */
    int max_blocks;
    /* Multiprocessors left to other libraries' kernels that wait for ranks, at most half. */
    int spare_multiprocessors;
} symwin_comm_options;

/* Creates this rank's communicator. Collective over nranks threads, in one or several processes of
 * one user, that pass the same id. Between hosts, create the id where SYMWIN_ADDR is set or with
 * symwin_unique_id_from_env(); without fabric handles NCCL joins them (docs/using.md, "Domains").
 *
 *   nranks   1 to 131072, at most 4096 in a domain; ranks may share a device (see below)
 *   rank     0 to nranks - 1, each once
 *   device   ordinal, or SYMWIN_DEVICE_CURRENT; ranks may pass equal or different devices
 *   options  NULL for the defaults; equal on all ranks, except timeouts
 *   comm     destroy with symwin_comm_destroy()
 *
 *   SYMWIN_INVALID      a bad argument, a rank that is taken, or an environment variable with an
 *                       invalid value, such as a SYMWIN_TUNING that is no tuning table
 *   SYMWIN_MISMATCH     nranks, options or tuning tables differ between ranks
 *   SYMWIN_UNSUPPORTED  the devices are no peers, the library has no kernels for the driver, a
 *                       device or a domain has too many ranks, or there is no NCCL to join domains
 *   SYMWIN_NO_MEMORY    device memory or address space ran out
 *   SYMWIN_TIMEOUT      a rank did not join, or was not ready, in time; the error names it
 *   SYMWIN_PEER_LOST    a rank's process ended, or the process that created the id
 *   SYMWIN_DENIED       another user's process, or one that did not make the id
 *
 * All ranks must pass the id as it was created. Where its bytes were changed, the call may return
 * SYMWIN_INVALID, SYMWIN_PEER_LOST or SYMWIN_TIMEOUT; some changes have no effect.
 * If a rank passes NULL as id or comm, or an nranks or rank out of range, its call fails at once.
 * The other ranks cannot be told, and wait for it until their time is over.
 *
 * Ranks that share a device share its context (CUDA's rules: docs/hardware.md):
 *
 *   - A call that waits for the device (cuMemFree, cuMemFreeHost, cudaMemcpy with pageable memory,
 *     the legacy default stream) also waits for the other ranks' kernels and delays their launches.
 *     Make it only while no collective of theirs waits for this rank.
 *   - Streams in use beyond CUDA_DEVICE_MAX_CONNECTIONS (default 8, at most 32) wait for each
 *     other.
 *   - Each rank needs its own stream. On a common stream the first rank's kernel would wait for the
 *     second's, which is queued behind it.
 *   - A graph's first launch uploads it. If two graphs upload at the same time, one may wait until
 *     the other has run. So upload graphs before (cuGraphUpload), and synchronize.
 *
 * Several communicators on the same devices: kernels wait for peers on multiprocessors that they
 * hold, so one communicator can block another. Calls complete if all devices reach them in the same
 * order, on any streams, or if their grids fit on the device together. docs/using.md, "Several
 * communicators", says what that means for calls, for graphs, and for ranks that share a device.
 * Kernels of other libraries, and your own kernels that wait for peers, are not counted. */
SYMWIN_API symwin_status symwin_comm_create(const symwin_unique_id *id, int nranks, int rank,
                                            int device, const symwin_comm_options *options,
                                            symwin_comm **comm);

/* Destroys this rank's communicator, its windows included. NULL does nothing. Afterwards any use of
 * the communicator, destroying it again included, is undefined.
 *
 * Ranks may destroy at different times. This rank's earlier calls outside graphs complete first, on
 * the peers too: the destroy waits for them (symwin_comm_abort() ends that wait), and for threads
 * in symwin_comm_abort() or symwin_comm_check() that began before that wait ended. All other calls
 * must have returned before, and launches of graphs that hold its calls must have completed. Peers
 * that need a further call of this rank get SYMWIN_PEER_LOST, which names it: host calls at once,
 * kernels of the library within milliseconds, later launches and graph replays included. Your own
 * kernels that wait for this rank (symwin_channel_limit()) wait until their limit. If a message has
 * come that no receive took, symwin_last_error() says which; ranks still there get SYMWIN_MISMATCH.
 *
 * Memory that peers can reach stays mapped until the last rank of the process has destroyed. If
 * memory has multicast, that rank waits for other processes' ranks to destroy, a second at most.
 * Then it goes back to the device, also if the driver first waits for kernels of others. The
 * destroy of the process's last communicator waits for that, a second at most, and
 * symwin_last_error() says if multicast could not be unbound. */
SYMWIN_API void symwin_comm_destroy(symwin_comm *comm);

typedef struct symwin_comm_info {
    int nranks;
    int rank;
    int device;
    int multicast; /* 1: windows can have multicast addresses; 0 also once it fails for good */
    size_t stride; /* bytes between two ranks' parts of the flat range, a power of two */
    void *base;    /* first address of the flat range in this process */
    int windows;   /* live windows of this rank */
    /* Sets of allocations, some of each rank, that windows and registered buffers of this process's
     * ranks keep mapped. Windows on the same ones share a set. */
    int allocations;
    /* Of ranks that can map each other's memory: how many, this rank's, its ranks; and rails. */
    int domains, domain, domain_ranks, domain_rank, rails; /* docs/using.md, "Domains" */
} symwin_comm_info;

/* Describes the communicator and counts what it holds. */
SYMWIN_API symwin_status symwin_comm_query(symwin_comm *comm, symwin_comm_info *info);

/* Returns SYMWIN_OK, or why the communicator has ended: SYMWIN_MISMATCH, SYMWIN_TIMEOUT,
 * SYMWIN_PEER_LOST, SYMWIN_NO_MEMORY or SYMWIN_ABORTED; the text names the rank. Any thread; costs
 * a few loads and two atomic additions. A kernel's error is visible here once the stream has passed
 * the call.
 *
 * All ranks whose kernels were in a failed call, or come to it later, get the same status and
 * sentence, the culprit included. Of a send and its receive, and of parts of unequal lengths, a
 * rank that has exchanged its own data by then may have completed the call. A rank that finds a
 * failure here ends the communicator on all ranks. Ranks that were in no kernel get the status from
 * then on; until then, or until their next call fails, they get SYMWIN_OK. If calls differ, their
 * text has both values too once a rank of their host has found the failure here.
 *
 * A rank that comes to a call after others have timed out in it gets SYMWIN_TIMEOUT, which names
 * that rank; the call's output is undefined. Exception: if its kernel began before the others'
 * report came, and needs nothing more of them, that call completes. Then its next call fails, and
 * so does this one once another rank has called it. If another rank has called this one before the
 * late rank comes, the late rank's call launches nothing and fails with a text that names the rank
 * and the collective (on another host than that of the rank that called: the rank).
 *
 * "collective 3" in a text is the third launch of the communicator that ran on the device: a call,
 * a piece of a long reduction, or calls of a group. Replays of graphs count; calls with count 0,
 * and those that failed at once, do not. Collective host calls are counted by themselves.
 *
 * Between hosts one host decides the status: this call and symwin_comm_destroy() may wait up to 1 s
 * for it. SYMWIN_MISMATCH names the rank that differs from more than half of the ranks that come
 * within 1 s; without such a majority, the text says so and names each side's lowest rank. */
SYMWIN_API symwin_status symwin_comm_check(symwin_comm *comm);

/* Makes waiting host calls and kernels of all ranks end soon with SYMWIN_ABORTED. Texts add what
 * has failed here since the last call. Any thread. Then only destroy it; streams stay usable. */
SYMWIN_API symwin_status symwin_comm_abort(symwin_comm *comm);

enum { SYMWIN_SPLIT_NONE = -1 }; /* as color: this rank joins no part */

/* Splits a communicator: ranks that pass the same color form a part, ordered by key, then by rank.
 * Collective over `parent`, which stays unchanged; each part then succeeds or fails by itself.
 *
 * Complete all ranks' calls on the parts (synchronize, then a barrier) before any rank destroys
 * `parent`: the destroy can wait for all kernels on the device, also for those of a part that wait
 * for a rank which is in the destroy.
 *
 * SYMWIN_ADDR and SYMWIN_PORT play no role. Ranks on one host meet without the network; ranks on
 * several hosts use the address that links their hosts in `parent`, at any free port. If no rank of
 * a part is on the host where the parent's id was created, the part's hosts must be able to reach
 * each other as they reach that host.
 *
 *   color    >= 0, or SYMWIN_SPLIT_NONE
 *   options  as for symwin_comm_create(); the device is the parent's
 *   comm     NULL for a rank in no part
 *
 *   SYMWIN_INVALID  color below -1; and what symwin_unique_id_create() and symwin_comm_create()
 *                   return */
SYMWIN_API symwin_status symwin_comm_split(symwin_comm *parent, int color, int key,
                                           const symwin_comm_options *options, symwin_comm **comm);

/* ---- windows --------------------------------------------------------------------------------- */

/* A window's handle. Invalid once deregistered; the value is never reused. */
typedef struct symwin_window symwin_window;

enum {
    SYMWIN_WINDOW_MULTICAST = 1,   /* fail if the window cannot have a multicast address */
    SYMWIN_WINDOW_NO_MULTICAST = 2 /* no multicast address */
};

/* Makes a symmetric window of each rank's [ptr, ptr + bytes). Collective.
 *
 *   ptr    VMM memory of this rank's device: symwin_mem_alloc(), ncclMemAlloc() or a framework's,
 *          at any alignment. Its offset in the physical allocation must be equal on all ranks,
 *          modulo the granularity (2 MiB). The allocations may differ in size and address.
 *   bytes  > 0, equal on all ranks, within the allocation. Memory not of symwin_mem_alloc() may lie
 *          on several allocations side by side in one address reservation (PyTorch's expandable
 *          segments), up to 1024; their number may differ between ranks. If a rank has several, or
 *          offsets differ, the window has no multicast address.
 *   flags  SYMWIN_WINDOW_*, equal on all ranks; 0: multicast where there is one
 *
 * The first window on an allocation maps it on every rank; later ones cost microseconds, and have
 * multicast if it has, or if they insist. A window holds a reference to the physical memory.
 *
 *   base            +stride         +2*stride          +nranks*stride
 *   | .. rank 0 ..  | .. rank 1 ..  | ..               | multicast, if there is one |
 *
 *   SYMWIN_INVALID      bytes 0, unknown flag, no VMM memory, another device's memory, or a window
 *                       past its allocation
 *   SYMWIN_MISMATCH     bytes, flags or offsets differ; the text has both values
 *   SYMWIN_UNSUPPORTED  SYMWIN_WINDOW_MULTICAST, but no multicast, or none for these allocations
 *   SYMWIN_NO_MEMORY    the flat range is full
 *   SYMWIN_TIMEOUT, SYMWIN_PEER_LOST, SYMWIN_ABORTED  the communicator has ended */
SYMWIN_API symwin_status symwin_window_register(symwin_comm *comm, void *ptr, size_t bytes,
                                                unsigned flags, symwin_window **window);

/* Deregisters this rank's window. Local, in any order; call it when this rank's work on the window
 * is done. The mapping goes when all ranks have deregistered all their windows on the allocation
 * (with multicast in several processes: after later host calls of all ranks).
 *
 *   SYMWIN_INVALID  no live window of this communicator: already deregistered, or another's */
SYMWIN_API symwin_status symwin_window_deregister(symwin_comm *comm, symwin_window *window);

enum {
    SYMWIN_TRANSPORT_PEER = 1,     /* peers' memory is mapped (IPC in NCCL's terms) */
    SYMWIN_TRANSPORT_MULTICAST = 2 /* a multicast object is bound (NVLS in NCCL's terms) */
};

typedef struct symwin_window_info {
    void *ptr; /* as registered by this rank */
    size_t bytes;
    void *base;            /* of the flat range */
    size_t stride, offset; /* peer p's byte i is at base + p * stride + offset + i */
    int rank, nranks;
    unsigned transports;        /* SYMWIN_TRANSPORT_* */
    uint64_t buffer_id;         /* as symwin_mem_query() of ptr */
    int allocations;            /* number of this rank's physical allocations under the window */
    char multicast_reason[192]; /* why it has no multicast address; empty: it has one */
} symwin_window_info;

/* Describes a window. SYMWIN_INVALID: no live window of this communicator; also in the next two. */
SYMWIN_API symwin_status symwin_window_query(symwin_comm *comm, const symwin_window *window,
                                             symwin_window_info *info);

/* Address of byte `offset` of rank `peer`'s window, valid on every device of the communicator.
 * SYMWIN_INVALID: no such rank, or offset >= bytes. */
SYMWIN_API symwin_status symwin_window_peer_pointer(symwin_comm *comm, const symwin_window *window,
                                                    int peer, size_t offset, void **ptr);

/* Multicast address of byte `offset`: a store writes all ranks, a load-reduce reads all ranks.
 * SYMWIN_UNSUPPORTED: the window has none. SYMWIN_INVALID: offset >= bytes. */
SYMWIN_API symwin_status symwin_window_multicast_pointer(symwin_comm *comm,
                                                         const symwin_window *window, size_t offset,
                                                         void **ptr);

/* The smallest window of this rank that contains all of [ptr, ptr + bytes). Never blocks.
 * SYMWIN_INVALID: there is none. */
SYMWIN_API symwin_status symwin_window_find(symwin_comm *comm, const void *ptr, size_t bytes,
                                            symwin_window **window);

/* ---- the other parts, each in its own file --------------------------------------------------- */

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
