/* The calls of collectives: their order, and groups. */
#ifndef SYMWIN_NCCL_CALLS_H
#define SYMWIN_NCCL_CALLS_H

#include "nccl/comms.h"
#include "nccl/serve.h"

struct sw_call {
    void (*symbol)(void); /* NCCL's function */
    struct sw_comm *comm; /* NULL: not known here */
    const void *in;
    void *out;
    size_t count;
    ncclComm_t handle;
    cudaStream_t stream;
    const ncclCollConfig_t *config;
    union {             /* of a pre-multiplied sum */
        const void *at; /* in device memory */
        char value[8];
    } scalar;
    cuuint64_t capture; /* sw_order_before(): of its stream, if NCCL serves it; 0: none */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* of a send or receive: the peer */
    int part; /* of its group */
    enum sw_kind kind : 8;
    enum { SW_PLAIN_CALL, SW_WRONG, SW_EMPTY, SW_CONFIGURED } sort : 8; /* the first may be ours */
    enum sw_server server : 8;
    unsigned char class;
    unsigned char scalar_on_device;
    unsigned char in_one_buffer; /* ncclBcast() */
    unsigned char has_config;    /* the call has one, or NULL */
    unsigned char passed;        /* in a group: NCCL has it already */
};

/* A send or receive, which only two ranks make. */
static inline int sw_is_pair(const struct sw_call *call)
{
    return call->kind == SW_SEND || call->kind == SW_RECV;
}

/* Passes the call on. */
ncclResult_t sw_call_pass(const struct sw_call *call);

/* Which symwin would pass to NCCL over several hosts. */
int sw_call_averages_integers(const struct sw_call *call);

/* Sets the call's sort and class. */
void sw_call_sort(struct sw_call *call);

/* Whether symwin can serve the call, which is sorted, and the table says so. */
static inline int sw_call_is_ours(const struct sw_call *call)
{
    return call->sort == SW_PLAIN_CALL && ((call->comm->sizes[call->kind] >> call->class) & 1) &&
           !(call->comm->several_hosts && sw_call_averages_integers(call));
}

/* Whether all ranks make the call, so that they may meet for it. */
static inline int sw_call_may_meet(const struct sw_call *call)
{
    return call->sort == SW_PLAIN_CALL && !sw_is_pair(call);
}

/* The result while a call is in progress (blocking=0), as NCCL has it. */
ncclResult_t sw_call_refuse_later(void);

/* Launches it in that stream, symwin's communicator being open. */
ncclResult_t sw_call_serve(const struct sw_call *call, cudaStream_t stream);
/* A call of symwin's has failed here, perhaps on this rank alone: the others, which would wait for
 * it, and the later calls of all ranks fail with ncclRemoteError. */
void sw_call_is_lost(struct sw_comm *comm, ncclResult_t result);

/* ---- order.c: before and after each call of a communicator that symwin has a part in ---- */

void sw_order_await_nccls(struct sw_comm *comm, cudaStream_t stream);
void sw_order_before_nccls(struct sw_call *call);
void sw_order_after_nccls(const struct sw_call *call, ncclResult_t result);

/* `stream`: where it is launched. */
static inline void sw_order_before_ours(struct sw_comm *comm, cudaStream_t stream)
{
    if (comm->some_ahead)
        sw_order_await_nccls(comm, stream);
}

static inline void sw_order_before(struct sw_call *call, enum sw_server server)
{
    if (server == SW_NCCLS)
        sw_order_before_nccls(call);
    else
        sw_order_before_ours(call->comm, call->stream);
}

/* Before or after the launch: only calls of NCCL's ask for it. */
static inline void sw_order_after_ours(struct sw_comm *comm)
{
    comm->ours_ahead = 1;
}

/* `result`: of NCCL's call, or of the end of its group. */
static inline void sw_order_after(const struct sw_call *call, enum sw_server server,
                                  ncclResult_t result)
{
    if (server == SW_NCCLS)
        sw_order_after_nccls(call, result);
    else
        sw_order_after_ours(call->comm);
}
void sw_order_forget(struct sw_comm *comm); /* all calls so far are over */
void sw_order_end(struct sw_comm *comm);    /* symwin's communicator goes */
int sw_order_is_captured(cudaStream_t stream);
/* What comes in stream `to` waits for what is in stream `from`. */
CUresult sw_order_join(struct sw_comm *comm, cudaStream_t from, cudaStream_t to);
/* One of the communicator's, which comes after this thread's own default stream. */
CUresult sw_order_lend(struct sw_comm *comm, cudaStream_t *stream);
/* Says what either has failed with. */
ncclResult_t sw_order_failed(CUresult result);

/* ---- group.c ---- */

/* This thread's group of that library; NULL: none is open. */
struct group;
struct group *sw_group_of(void *library);
static inline int sw_group_is_open(void *library)
{
    return sw_group_of(library) != NULL;
}
/* The communicator of the group's last call, if that is of this handle: the group has a reference
 * to it. */
struct sw_comm *sw_group_comm(const struct group *g, ncclComm_t handle);
/* Where its next call is written, which sw_group_add() makes one of the group; NULL: no memory. */
struct sw_call *sw_group_next(struct group *g);
ncclResult_t sw_group_add(struct group *g, struct sw_call *call);
/* A call was passed on at once, since symwin cannot serve it; returns the result. */
ncclResult_t sw_group_has_passed(struct group *g, struct sw_call *call, ncclResult_t result);
/* What failed before it came to NCCL fails the group that is open, if any. Returns the result. */
ncclResult_t sw_group_fail(void *library, ncclResult_t result);
/* The registration of a window, which is there when NCCL's group has ended. Whether it was added.
 * */
int sw_group_add_window(struct sw_comm *comm, void *ptr, size_t size, ncclWindow_t *handle);
/* A birth whose handle is there when NCCL's group has ended. Without memory it is not kept. */
void sw_group_add_birth(const ncclComm_t *child, int most);
/* Whether this thread's group has calls or windows of the communicator, and so references to it. */
int sw_group_has(const struct sw_comm *comm);
/* A communicator ends: this thread's group has no calls on it any more. */
void sw_group_forget(struct sw_comm *comm, ncclComm_t handle);
/* The end of an operation that calls of the group may have. 0: none has, or there is no memory. */
int sw_group_add_op_end(const struct sw_from *from, ncclRedOp_t op, ncclComm_t comm);

/* ---- births.c: how many multiprocessors a communicator may take; 0: no limit ---- */

/* What a birth asks for; without a configuration, as its parent. */
int sw_birth_asks(const ncclConfig_t *config, ncclComm_t parent);
/* Notes that for the child, and returns the result. */
ncclResult_t sw_birth_is_over(const struct sw_from *from, ncclResult_t result,
                              const ncclComm_t *child, int most);
/* What NCCL_MAX_CTAS says, or else the birth. On this rank: others may have another one. */
int sw_birth_limit(ncclComm_t handle);
/* 0: no limit. Without host memory it is not kept on this rank; the ranks take the least of all. */
void sw_birth_note(ncclComm_t handle, int most);
void sw_birth_forget(ncclComm_t handle);

/* ---- states.c ---- */

void sw_window_add(struct sw_comm *comm, void *ptr, size_t size, ncclWindow_t handle);
/* There is no memory to add it, on this rank alone: the others do not wait for it to. */
void sw_window_is_lost(struct sw_comm *comm);

/* ---- report.c ---- */

/* Why a call is not symwin's. */
enum sw_reason {
    SW_IS_OURS,
    SW_IS_REFUSED, /* the communicator: `why` */
    SW_BY_CALL,
    SW_BY_CONFIG,
    SW_BY_VARIABLE,
    SW_BY_TABLE,
    SW_BY_TYPE,
    SW_BEFORE_MEETING,
    SW_BY_GROUP,
    SW_REASONS
};

/* Calls by size, for the report: first those without elements, then by class. */
struct sw_counts {
    atomic_uint calls[SW_KINDS][1 + SW_CLASSES][SW_REASONS];
};

void sw_report_birth(struct sw_comm *comm);
void sw_report_count(const struct sw_call *call, struct sw_counts *counts);
/* Its server has it. */
static inline void sw_report_call(const struct sw_call *call)
{
    struct sw_counts *counts = atomic_load_explicit(&call->comm->counts, memory_order_acquire);

    if (counts != NULL)
        sw_report_count(call, counts);
}
void sw_report_death(struct sw_comm *comm);

#endif
