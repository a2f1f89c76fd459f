/* What the files of the stand-in share: communicators, calls in streams, tasks of groups. */
#ifndef STAND_IN_INSIDE_H
#define STAND_IN_INSIDE_H

#include <pthread.h>
#include <stdint.h>

#include "src/driver/cuda_abi.h"
#include "stand_in.h"

enum {
    MOST_RANKS = 64,
    NAME_BYTES = 32, /* of a segment's name */
    PATIENCE = 80    /* pauses after which a rank looks whether others live */
};

/* Defines an NCCL function: `EXPORTED(name, parameters, arguments) { body }`. The exported function
 * counts the call and has the fault that STAND_IN_FAIL asks for. pNAME is the same function. */
#define EXPORTED(name, params, args) EXPORTED_AS(name, params, args, group_fault)
/* The same, of a function that is in no group. */
#define EXPORTED_AS(name, params, args, fails)                                                     \
    static ncclResult_t own_##name params;                                                         \
    STAND_IN_API ncclResult_t name params                                                          \
    {                                                                                              \
        const int fault = reach_count(STAND_IN_##name);                                            \
                                                                                                   \
        return fault >= 0 ? fails((ncclResult_t)fault) : own_##name args;                          \
    }                                                                                              \
    STAND_IN_API ncclResult_t p##name params __attribute__((alias(#name)));                        \
    static ncclResult_t own_##name params

/* ---- reach.c ---- */

int reach_count(int function); /* the code to return at once, or -1 */
void reach_live(int change);
ncclResult_t reach_id(ncclUniqueId *id, const char *function);

/* Keeps a text for ncclGetLastError and returns the code. */
__attribute__((format(printf, 2, 3))) ncclResult_t refuse(ncclResult_t code, const char *format,
                                                          ...);

/* ---- wait.c ---- */

struct wait {
    uint64_t deadline;
    unsigned idle;
};

struct wait wait_begin(void);
int wait_more(struct wait *wait); /* yields or sleeps; 0: the deadline has passed */
uint64_t wait_most(void);         /* STAND_IN_TIMEOUT_MS */
uint64_t wait_clock(void);        /* in ms */

/* ---- driver.c ---- */

/* X(name, version, parameters), as cuGetProcAddress takes them. */
#define DRIVER_ENTRIES(X)                                                                          \
    X(cuInit, 2000, (unsigned))                                                                    \
    X(cuCtxGetCurrent, 4000, (CUcontext *))                                                        \
    X(cuCtxPushCurrent, 4000, (CUcontext))                                                         \
    X(cuCtxPopCurrent, 4000, (CUcontext *))                                                        \
    X(cuCtxGetDevice, 2000, (CUdevice *))                                                          \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                        \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                     \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                   \
    X(cuMemFree, 3020, (CUdeviceptr))                                                              \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                           \
    X(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *))                                       \
    X(cuStreamWaitValue32, 11070, (CUstream, CUdeviceptr, cuuint32_t, unsigned))                   \
    X(cuStreamWriteValue32, 11070, (CUstream, CUdeviceptr, cuuint32_t, unsigned))                  \
    X(cuStreamGetCaptureInfo, 11030,                                                               \
      (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,           \
       size_t *))                                                                                  \
    X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned))                                      \
    X(cuEventCreate, 2000, (CUevent *, unsigned))                                                  \
    X(cuEventRecord, 2000, (CUevent, CUstream))                                                    \
    X(cuEventDestroy, 4000, (CUevent))                                                             \
    X(cuUserObjectCreate, 11030, (CUuserObject *, void *, CUhostFn, unsigned, unsigned))           \
    X(cuUserObjectRelease, 11030, (CUuserObject, unsigned))                                        \
    X(cuGraphRetainUserObject, 11030, (CUgraph, CUuserObject, unsigned, unsigned))

struct driver {
#define DRIVER_MEMBER(name, version, params) CUresult(*name) params;
    DRIVER_ENTRIES(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

const struct driver *driver_get(void); /* NULL: there is none */
ncclResult_t driver_check(CUresult result, const char *what);

/* ---- wire.c: how the ranks of a communicator reach each other ---- */

enum plane { PLANE_COLLECTIVE, PLANE_PAIR, PLANE_CONTROL, PLANES };
enum seat { SEAT_EMPTY, SEAT_TAKEN, SEAT_REVOKED, SEAT_LEFT, SEAT_FAILED };

struct wire {
    const struct wire_kind *kind;
};

/* What a transport is. None of its functions but `join` waits for anything. */
struct wire_kind {
    /* Around the life of a communicator. Its birth waits in `join`, until all ranks have come or
     * it is stopped. */
    ncclResult_t (*open)(void);
    void (*close)(void);
    ncclResult_t (*join)(struct ncclComm *comm, struct wire **wire);
    void (*release)(struct wire *wire);
    /* Tells the others that `rank`, which is the caller's, has got to that state. */
    void (*mark)(struct wire *wire, int rank, enum seat seat);
    int (*is_lost)(struct wire *wire, int rank, enum plane plane);
    /* Move up to `bytes` from one rank to another, and return how many. The caller is the rank that
     * sends or that receives. */
    size_t (*put)(struct wire *wire, enum plane plane, int from, int to, const void *data,
                  size_t bytes);
    size_t (*get)(struct wire *wire, enum plane plane, int from, int to, void *data, size_t bytes);
};

extern const struct wire_kind segment_kind; /* segment.c */
extern const struct wire_kind socket_kind;  /* socket.c */

ncclResult_t wire_id(ncclUniqueId *id); /* of the kind that STAND_IN_WIRE names */
const struct wire_kind *wire_kind_of(const ncclUniqueId *id);
void wire_release(struct wire *wire);
void wire_mark(struct wire *wire, int rank, enum seat seat);
int wire_is_lost(struct wire *wire, int rank, enum plane plane);
size_t wire_put(struct wire *wire, enum plane plane, int from, int to, const void *data,
                size_t bytes);
size_t wire_get(struct wire *wire, enum plane plane, int from, int to, void *data, size_t bytes);

/* ---- tcp.c: sockets that never block ---- */

/* Where a process takes connections, in the network's byte order. */
struct place {
    uint32_t address;
    uint16_t port, unused;
};

/* A socket, or -1. */
int tcp_listen(uint32_t address, struct place *place); /* at a port of the system's choice */
int tcp_accept(int listener);
int tcp_connect(const struct place *place);
/* Go on from *done up to `bytes`: 1 if they are there, 0 if not yet, -1 if they will not come. */
int tcp_send(int socket, const void *data, size_t bytes, size_t *done);
int tcp_receive(int socket, void *data, size_t bytes, size_t *done);
int tcp_is_over(int socket);                     /* the other end sends no more, or its host died */
ncclResult_t tcp_own_address(uint32_t *address); /* STAND_IN_ADDRESS */

/* ---- meet.c: where the ranks of a unique id meet over TCP ---- */

ncclResult_t meet_id(ncclUniqueId *id); /* starts a thread that lives until all have come */
int meet_is_id(const ncclUniqueId *id);
ncclResult_t meet_others(struct ncclComm *comm, const struct place *mine, struct place *all);

/* ---- comm.c ---- */

struct premul {
    int used;
    ncclDataType_t type; /* of the scalar, and of all that it multiplies */
    const void *where;   /* in device memory; NULL: in `value` */
    char value[8];
};

enum stop { STOP_NOT, STOP_REVOKED, STOP_ABORTED };

struct range; /* a window or a registered buffer: register.c */

/* How often the communicator has been shrunk by these ranks. Others do not know. */
struct shrinking {
    struct shrinking *next;
    uint64_t excluded; /* a bit for each rank */
    unsigned count;
};

struct ncclComm {
    atomic_int refs; /* the handle, tasks and calls */
    int rank, ranks, blocking, device, retained, max_ctas;
    CUcontext context;
    CUevent last;                    /* recorded behind the last call that was not captured */
    const struct wire_kind *kind;    /* NULL: not open yet */
    char name[NAME_BYTES];           /* which its ranks alone know */
    ncclUniqueId id;                 /* empty if it is born of another communicator */
    struct place places[MOST_RANKS]; /* of its ranks, if they are reached by TCP */
    atomic_int stop;                 /* an enum stop: calls end at once */
    atomic_int suspended, finalized;
    atomic_uint connected;   /* or about to be: a bit for each kind of collectives */
    atomic_int error;        /* an ncclResult_t */
    atomic_int pending;      /* jobs in streams, or that run in a graph */
    struct wire *wire;       /* NULL: not born yet */
    pthread_mutex_t running; /* held by the calls that run */
    struct shrinking *shrinkings;
    unsigned tickets;      /* of tasks that use the control plane */
    atomic_uint turn;      /* the ticket whose turn it is */
    pthread_mutex_t mutex; /* of what follows */
    struct premul *premuls;
    int premul_count;
    struct range *ranges;
    struct ncclComm *next; /* of all that are live */
};

struct ncclComm *comm_create(int ranks, int rank, int blocking);
void comm_pends(struct ncclComm *comm, int more);           /* jobs */
ncclResult_t comm_place(struct ncclComm *comm, int device); /* -1: the current context */
ncclResult_t comm_open(struct ncclComm *comm, const struct wire_kind *kind);
ncclResult_t comm_join(struct ncclComm *comm); /* meets the other ranks */
ncclResult_t comm_check(struct ncclComm *comm, const char *function);
ncclResult_t comm_alive(struct ncclComm *comm, const char *function); /* has no error */
ncclResult_t comm_ready(struct ncclComm *comm, const char *function); /* and takes calls */
struct ncclComm *comm_ref(struct ncclComm *comm);
void comm_fail(struct ncclComm *comm, ncclResult_t code);
int comm_is_over(struct ncclComm *comm); /* stopped, or it has failed: its calls end */
void comm_close(struct ncclComm *comm, enum seat seat);
void comm_unref(struct ncclComm *comm);
/* Around what a thread does at the end of a call or task: it tells that it is over, and gives up
 * its references. comm_close() waits for both. */
void comm_lock(void);
void comm_unlock(void);
void comm_stop(struct ncclComm *comm, enum stop stop); /* no call runs when it returns */

/* All ranks give `bytes` of `mine`; `all` gets those of each. */
ncclResult_t comm_exchange(struct ncclComm *comm, unsigned ticket, const void *mine, void *all,
                           size_t bytes);

/* ---- group.c ---- */

enum kind {
    KIND_ALL_REDUCE,
    KIND_REDUCE_SCATTER,
    KIND_REDUCE,
    KIND_ALL_GATHER,
    KIND_ALL_TO_ALL,
    KIND_BROADCAST,
    KIND_GATHER,
    KIND_SCATTER,
    KIND_SEND,
    KIND_RECV
};

struct call {
    struct call *next;
    struct ncclComm *comm;
    CUstream stream;
    enum kind kind;
    const char *in;
    char *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op; /* ncclNumOps: a pre-multiplied sum */
    int root;       /* the peer of a send or receive */
    struct premul premul;
    char *scratch, *scaled; /* while it runs */
};

/* A birth or a registration, on a thread of its own if the group has several. */
struct task {
    struct task *next;
    ncclResult_t (*run)(struct task *task);
    struct ncclComm *comm;   /* whose state it changes: a new one in a birth */
    struct ncclComm *parent; /* in a split or a growth */
    ncclComm_t *born;        /* NULL unless it is a birth: set to NULL if it fails */
    int is_late;             /* it is set when the birth is over */
    unsigned ticket;
    int color, key;
    ncclUniqueId id; /* of a growth; empty on a rank without it */
    void *ptr;       /* of a window */
    size_t size;
    ncclWindow_t *window;
    ncclResult_t result;
    pthread_t thread;
};

void group_start(void);
ncclResult_t group_end(void);
ncclResult_t group_call(const struct call *call);
ncclResult_t group_task(const struct task *task); /* takes a reference to comm and parent */
ncclResult_t group_fault(ncclResult_t code);      /* what a group returns, if one is open */

/* ---- run.c ---- */

/* Calls that run together, in one host function. */
struct job {
    struct call *calls;
    struct ncclComm *comms[MOST_RANKS]; /* each once, in the order of their addresses */
    int comm_count;
    CUstream stream;
    struct job *next;
};

void job_run(struct job *job);
void job_free(struct job *job);

/* A word at once, as NCCL reads it: a kernel may be writing it. `to` may be `from`. */
void copy_input(void *to, const void *from, size_t bytes);

/* ---- reduce.c ---- */

size_t type_width(ncclDataType_t type);
/* Reduces `count` elements of each of the `ranks` inputs, which lie one behind the other. */
void reduce(ncclDataType_t type, ncclRedOp_t op, int ranks, size_t count, const char *in,
            char *out);
void scale(const struct premul *premul, size_t count, const char *in, char *out);

/* ---- register.c ---- */

void ranges_free(struct ncclComm *comm);

#endif
