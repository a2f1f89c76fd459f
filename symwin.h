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

/* ---- driver and devices ---------------------------------------------------------------------- */

/* Pass as `device`: the device of the calling thread's current context. */
#define SYMWIN_DEVICE_CURRENT (-1)

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

/* ---- memory: in a file of its own ------------------------------------------------------------- */

#include "symwin/memory.h"

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

/* What a launcher says of this process: mpirun (Open MPI, MPICH, Intel MPI), torchrun, srun, or
 * whoever sets SYMWIN_RANK and SYMWIN_NRANKS. */
typedef struct symwin_launch_info {
    const char *launcher; /* "symwin", "torchrun", "openmpi", "hydra" or "slurm"; NULL: none, and
                           * this process is rank 0 of 1 */
    int rank;
    int nranks;
    int local_rank;   /* on this host, -1: not said */
    int local_nranks; /* of the job on this host; 0: not said */
} symwin_launch_info;

/* SYMWIN_INVALID: half of a launcher's variables, or values that make no sense. */
SYMWIN_API symwin_status symwin_launch_query(symwin_launch_info *info);

/* Gives every process of a launched job the same new id; rank 0's process makes it. Collective over the
 * processes, one thread of each. They meet under the job's name (SYMWIN_JOB, or what the launcher calls
 * it; where it restarts a job, the processes of the old round must be gone by then).
 *
 * The n-th call of one process that finds all variables there meets the n-th of the others, also where it
 * fails then: after a failure all ranks call again, or none.
 *
 * On one host they meet in a folder of this user in TMPDIR, XDG_RUNTIME_DIR or /tmp. On several, all make
 * the id of SYMWIN_SECRET, and find rank 0's process at MASTER_ADDR and MASTER_PORT (or SYMWIN_ADDR and
 * SYMWIN_PORT); then only symwin_comm_create() finds out whether it is there.
 *
 *   SYMWIN_INVALID    see symwin_launch_query(); there is no launcher; the job is on several hosts, and
 *                     MASTER_ADDR or MASTER_PORT are missing or name no address; or another process comes as this
 *                     rank of a job of that name at the same time (or that is only seen in symwin_comm_create())
 *   SYMWIN_TIMEOUT    rank 0 did not come within SYMWIN_BOOTSTRAP_TIMEOUT_MS (60,000)
 *   SYMWIN_DENIED     there is no folder that belongs to this user alone; or the job is on several hosts,
 *                     and SYMWIN_SECRET is missing or too short, or rank 0 cannot listen at its address
 *   SYMWIN_NO_MEMORY  as symwin_unique_id_create(), on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_from_env(symwin_unique_id *id);

/* Gathers `bytes` from every rank into `all`, in rank order. 0: success. */
typedef int (*symwin_allgather_fn)(void *context, const void *mine, void *all, size_t bytes);

/* The same over a transport of the caller's: rank 0 makes the id, and `allgather` spreads it. symwin/mpi.h
 * does so over MPI. Every rank calls `allgather` once to say whether it can take part, and once more if
 * all can; so all fail if one does, but for a bad nranks or rank, or no allgather, which are found before.
 *
 *   SYMWIN_INVALID    a bad argument, or allgather did not return 0
 *   SYMWIN_NO_MEMORY  no host memory for all ranks' words on one of them
 *   SYMWIN_FORKED     one of the processes is a fork of one that used symwin
 *   and what symwin_unique_id_create() returns, on rank 0 */
SYMWIN_API symwin_status symwin_unique_id_share(int nranks, int rank, symwin_allgather_fn allgather,
                                                void *context, symwin_unique_id *id);

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
 * These are CUDA's rules (tests/gpu_waits.c, docs/hardware.md).
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

/* ---- collectives ----------------------------------------------------------------------------- */

/* X(name, value, short name, bytes) */
#define SYMWIN_TYPE_LIST(X)                                                                        \
    X(SYMWIN_F64, 0, f64, 8)                                                                       \
    X(SYMWIN_F32, 1, f32, 4)                                                                       \
    X(SYMWIN_F16, 2, f16, 2)                                                                       \
    X(SYMWIN_BF16, 3, bf16, 2)                                                                     \
    X(SYMWIN_F8E4M3, 4, e4m3, 1)                                                                   \
    X(SYMWIN_F8E5M2, 5, e5m2, 1)                                                                   \
    X(SYMWIN_I8, 6, i8, 1)                                                                         \
    X(SYMWIN_U8, 7, u8, 1)                                                                         \
    X(SYMWIN_I32, 8, i32, 4)                                                                       \
    X(SYMWIN_U32, 9, u32, 4)                                                                       \
    X(SYMWIN_I64, 10, i64, 8)                                                                      \
    X(SYMWIN_U64, 11, u64, 8)

typedef enum symwin_type {
#define SYMWIN_TYPE_ENUM(name, value, text, bytes) name = value,
    SYMWIN_TYPE_LIST(SYMWIN_TYPE_ENUM)
#undef SYMWIN_TYPE_ENUM
} symwin_type;

/* X(name, value, short name) */
#define SYMWIN_OP_LIST(X)                                                                          \
    X(SYMWIN_SUM, 0, sum)                                                                          \
    X(SYMWIN_PROD, 1, prod)                                                                        \
    X(SYMWIN_MIN, 2, min)                                                                          \
    X(SYMWIN_MAX, 3, max)                                                                          \
    X(SYMWIN_AVG, 4, avg)

typedef enum symwin_op {
#define SYMWIN_OP_ENUM(name, value, text) name = value,
    SYMWIN_OP_LIST(SYMWIN_OP_ENUM)
#undef SYMWIN_OP_ENUM
} symwin_op;

/* X(name, value, short name) */
#define SYMWIN_ALGO_LIST(X)                                                                        \
    X(SYMWIN_ALGO_AUTO, 0, auto)                                                                   \
    X(SYMWIN_ALGO_ONESHOT, 1, oneshot)       /* push with flags: any memory, all types */          \
    X(SYMWIN_ALGO_TWOSHOT, 2, twoshot)       /* over windows: loads, then stores */                \
    X(SYMWIN_ALGO_ONESHOT_MC, 3, oneshot_mc) /* over windows: multicast load-reduce */             \
    X(SYMWIN_ALGO_TWOSHOT_MC, 4, twoshot_mc) /* over windows: multicast load-reduce and store */   \
    X(SYMWIN_ALGO_ONESHOT_SENTINEL, 5, oneshot_sentinel) /* half the bytes; integers: oneshot */   \
    X(SYMWIN_ALGO_TWOSHOT_PUSH, 6, twoshot_push) /* push of shares, then of results: any memory */ \
    X(SYMWIN_ALGO_TWOSHOT_PUT, 7, twoshot_put)   /* push of shares, results into windows */        \
    X(SYMWIN_ALGO_COPIES, 8, copies) /* over windows: copy engines; see symwin_allreduce_with() */ \
    X(SYMWIN_ALGO_TWOSHOT_BULK, 9, twoshot_bulk) /* over windows: few multiprocessors; sm_90 */

typedef enum symwin_algo {
#define SYMWIN_ALGO_ENUM(name, value, text) name = value,
    SYMWIN_ALGO_LIST(SYMWIN_ALGO_ENUM)
#undef SYMWIN_ALGO_ENUM
} symwin_algo;

/* Bytes of one element, 0 for no such type; and "bf16", "sum", "twoshot" or NULL. */
SYMWIN_API size_t symwin_type_bytes(symwin_type type);
SYMWIN_API const char *symwin_type_name(symwin_type type);
SYMWIN_API const char *symwin_op_name(symwin_op op);
SYMWIN_API const char *symwin_algo_name(symwin_algo algo);

/* Reduces `count` elements over all ranks, the result on every rank. Asynchronous on `stream`, and
 * capturable in a CUDA graph. Collective, but the host does not wait for other ranks (captures and registered buffers: see
 * below).
 *
 *   in, out  device memory of `count` elements, aligned to the element; equal, or not overlapping.
 *            Any device memory works; where both lie in windows large messages are reduced without a
 *            copy: on all ranks, at equal offsets, or on none, else large calls end in SYMWIN_MISMATCH.
 *            Registered buffers become windows in the first call on them, and others in the first capture, for which
 *            the host waits for the other ranks: see symwin/register.h.
 *   count    elements; 0 does nothing
 *   op       floats of 16 and 8 bits are accumulated in f32; 8-bit floats saturate; integers wrap;
 *            AVG divides the sum (integers toward zero); MIN and MAX pass over NaN
 *   stream   of this rank's device; NULL is the legacy default stream. In a green context the grid has the
 *            multiprocessors of that
 *
 * The ranks are added in the order 0, 1, ...: results are bit-identical on all ranks and in every run, but for the
 * multicast algorithms, where the hardware chooses the order and averages of 16-bit floats are rounded twice.
 *
 * Calls on one communicator run in the order in which they were made, also from several streams, and inside a capture
 * (of 8 that go on at a time). A captured graph must be ordered against them, and other graphs, by the caller; a
 * kernel between them that begins early (programmatic launch) must wait for what is ahead.
 *
 * After a failure the contents of `out` are undefined, on all ranks until all their streams have drained: what copy
 * engines have been told to do they do (see COPIES below).
 *
 *   SYMWIN_INVALID      no such type or operation, an address that is no device memory of this rank,
 *                       misaligned or partly overlapping buffers, or `count` past the window that
 *                       `in` or `out` begins in
 *   SYMWIN_UNSUPPORTED  the grid does not fit on the device beside those of the ranks that share it
 *   SYMWIN_MISMATCH, SYMWIN_TIMEOUT, SYMWIN_ABORTED  an earlier call failed: see symwin_comm_check() */
SYMWIN_API symwin_status symwin_allreduce(symwin_comm *comm, const void *in, void *out,
                                          uint64_t count, symwin_type type, symwin_op op,
                                          struct CUstream_st *stream);

typedef struct symwin_allreduce_options {
    size_t size;      /* sizeof(symwin_allreduce_options); 0 elsewhere: the default */
    symwin_algo algo; /* all ranks alike */
    int blocks;  /* most blocks of the grid, at most what fits, and no more than the communicator's
                       * max_blocks; fewer where the message is small */
    int threads; /* of a block, rounded up to whole warps. Of those of algorithms that push, 32 more
                       * than move the message: beyond 32, the last warp only talks to the peers */
} symwin_allreduce_options;

/* The same with a choice of algorithm and grid. Ranks may choose grids of their own.
 *
 * COPIES is for the largest messages; in place kernels bring a quarter of it. It queues copies, which no failure stops: where
 * the ranks' calls differ, or one of them does not come, the peers' outputs of this call are overwritten all the same,
 * then with undefined contents, until this rank's stream has passed the call. So after a failure let all ranks' streams
 * drain before an output is used for anything else. Without failures an output is written, like everywhere, between the
 * beginning and the end of its rank's call.
 *
 *   SYMWIN_INVALID      as symwin_allreduce(); or options->size, algo, blocks or threads make no sense
 *   SYMWIN_UNSUPPORTED  the algorithm cannot serve this call: buffers outside windows, no multicast, a type that
 *                       multicast cannot reduce, ONESHOT_MC in place, TWOSHOT_BULK before sm_90, COPIES with too many
 *                       ranks on any device; or more blocks or threads than fit
 *   SYMWIN_BUSY         COPIES in a capture while the communicator has one in another capture
 *   SYMWIN_DRIVER       COPIES, and the driver refused a part of it: outside a capture the communicator was aborted */
SYMWIN_API symwin_status symwin_allreduce_with(symwin_comm *comm, const void *in, void *out,
                                               uint64_t count, symwin_type type, symwin_op op,
                                               const symwin_allreduce_options *options,
                                               struct CUstream_st *stream);

typedef struct symwin_allreduce_info {
    symwin_algo algo; /* not AUTO */
    int blocks;       /* of the grid */
    int threads;      /* of a block */
    int measured; /* 1: by a row of a table (docs/tuning.md); 0: by the model, or as was asked for */
} symwin_allreduce_info;

/* What symwin_allreduce_with() would launch on this rank for the same arguments, outside captures and on a stream of the
 * whole device; launches nothing. Local, and as quick as the call less its launch; not while another thread is in a call on `comm`.
 *
 *   SYMWIN_INVALID  as symwin_allreduce_with(); info is NULL, or count 0
 *   and what else symwin_allreduce_with() returns at once */
SYMWIN_API symwin_status symwin_allreduce_query(symwin_comm *comm, const void *in, const void *out,
                                                uint64_t count, symwin_type type, symwin_op op,
                                                const symwin_allreduce_options *options,
                                                symwin_allreduce_info *info);

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

/* ---- for searching faults -------------------------------------------------------------------- */

/* Writes what this process has of symwin to a descriptor: its pools of memory, and its communicators with their
 * windows. Lines of text; each begins with a word that says what it is of, most go on with a name for it, and then have
 * key=value pairs in this order. Addresses are in hexadecimal, all other numbers are decimal; flags are words with commas
 * between them, or "-". Later versions may add lines and, at the end of lines, pairs.
 *
 *   symwin-dump 1 pid= version=        the first line; 1 is the version of the format
 *   device D ...                       one for each device whose pools ever had anything: the members of
 *                                      symwin_mem_usage, by their names
 *   arena N device= flags= thread= keep= unit= allocations= used=
 *                                      a thread's pool for a device and kind of memory. flags: peers, nccl; thread:
 *                                      alive or ended. Imported memory has an arena with device=-1 and flags=imported
 *   chunk ADDRESS arena= device= bytes= use= allocations= kept=
 *                                      physical memory. use: carved, own or imported; kept=1: all of it is free
 *   alloc ADDRESS chunk= offset= asked= bytes= windows=
 *                                      what symwin_mem_alloc() or _import() returned, in its chunk; windows= counts
 *                                      those on it, and registered ranges
 *   comm N rank= nranks= device= base= stride= multicast= allocations= windows=
 *   window ADDRESS comm= bytes= offset= transports= allocations=
 *                                      offset in the flat range; transports: peer, multicast; allocations: physical
 *                                      ones of this rank that it lies on
 *   range ADDRESS comm= bytes= local= graph= nccl= transports=
 *                                      what symwin_register() knows, with its references; nccl=1: an attached NCCL
 *                                      has it; transports: as a window's, none before the first call, or refused
 *   channel ADDRESS comm= peer= bytes= lanes= state= memory=
 *                                      this rank's end of one. state: offered, connected, failed; memory: window, other, none
 *   end lines=                         so many lines before it: what has no such line is not whole
 *
 * Chunks follow their arena, and their allocations follow them; windows, ranges and channels their communicator. Any thread, at any time;
 * calls no driver. Lines of one arena, or of one communicator, are of one moment; the whole is not, where other threads
 * go on. Waits for whoever reads the descriptor, but holds up no other call then. A pipe or socket that nobody reads
 * gives a status and no SIGPIPE.
 *
 *   SYMWIN_INVALID    fd is no descriptor that can be written to
 *   SYMWIN_NO_MEMORY  no host memory for the text, or no room where it goes: a part may have been written
 *   SYMWIN_DENIED     it cannot be written for another reason, which the text names: the same
 *   SYMWIN_FORKED     in a forked child of a process that used symwin */
SYMWIN_API symwin_status symwin_dump(int fd);

#include "symwin/register.h"

#include "symwin/channel.h"

#ifdef __cplusplus
}
#endif
#endif
