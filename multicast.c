/* NVLS: one multicast object for a communicator, as large as a rank's part of the flat range.
 *
 * Its addresses are those of an imaginary rank number nranks. The memory of each segment is bound
 * at the segment's own offset, and unbound alone, so thousands of windows take one of the switch's
 * few slots. The object is made for the first window that would use it, in these steps, with an
 * agreement of all ranks after each:
 *
 *   create   rank 0; and exports it, if there are other processes
 *   import   the leaders of the other processes
 *   add      each rank: its device
 *   bind     each rank: its memory of this segment
 *   map      the leaders: the whole object, for all devices of their process
 *
 * Later segments take only the step `bind`. A bind blocks in the driver until every device has been
 * added, so no rank binds before all ranks have agreed that every device was. On a bad fabric it
 * may never come back: a thread of its own makes the call, and the rank gives up after a while.
 *
 * A step that fails on one rank fails on all. They undo what they have done of this segment, agree,
 * and go without multicast. What they learn from it is the same on all ranks:
 *
 *   802 on all that failed   once more, all together, at most once in a registration
 *   401, 802 again, a stall,
 *   and failures of the other steps   never again in this communicator
 *   out of memory            not until something was unbound, or an object released, in a process
 *                            of the communicator
 *   other failures of bind   this segment's
 *   no memory, thread or descriptor of the host   this segment's, in any step
 *
 * Teardown: memory is unbound when no process uses its segment any more (segment.c), or when all
 * ranks have left (group.c); the object is unmapped and released with the range, after the last
 * segment. What unbinding answers is told by the destroy that waits for it (symwin.c).
 *
 * A faulty multicast program can put the GPUs of a host out of service. So on real hardware this
 * runs only on request: see sw_multicast_allowed().
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/window/window.h"

/* A bind may take 7 s before it says 802. It gets three quarters of the time that the other ranks
 * wait, but no more than this. */
enum { MOST_BIND_MS = 15000 };

/* In place of a CUresult: a bind has not come back. */
enum { STALLED = 1 << 20 };

/* As NCCL reads a number: what is none counts as 0. */
static int is_zero(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' && strtoll(text, NULL, 0) == 0;
}

/* Also "true", "yes" and the like. */
static int is_on(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' && strchr("0nNfF", text[0]) == NULL;
}

const char *sw_multicast_forbidden(void)
{
    return is_zero("NCCL_NVLS_ENABLE")                 ? "NCCL_NVLS_ENABLE"
           : is_on("TORCH_SYMM_MEM_DISABLE_MULTICAST") ? "TORCH_SYMM_MEM_DISABLE_MULTICAST"
           : is_on("NVSHMEM_DISABLE_NVLS")             ? "NVSHMEM_DISABLE_NVLS"
                                                       : NULL;
}

enum sw_multicast_lack sw_multicast_lacks(unsigned comm_flags)
{
    if ((comm_flags & SYMWIN_COMM_NO_MULTICAST) != 0)
        return SW_LACKS_WISH;
    if (sw_drv.cuMulticastCreate == NULL || sw_drv.cuMulticastAddDevice == NULL ||
        sw_drv.cuMulticastBindMem == NULL || sw_drv.cuMulticastUnbind == NULL ||
        sw_drv.cuMulticastGetGranularity == NULL)
        return SW_LACKS_CALLS;
    if (sw_driver_is_emulated())
        return SW_LACKS_NOTHING;
    if (sw_multicast_forbidden() != NULL)
        return SW_LACKS_CONSENT;
    return (comm_flags & SYMWIN_COMM_MULTICAST) != 0 || sw_setting(SW_SETTING_NVLS)
               ? SW_LACKS_NOTHING
               : SW_LACKS_REQUEST;
}

void sw_multicast_lack(const struct sw_group *group, char *text, size_t room)
{
    const int rank = group->lacking_rank;

    switch ((enum sw_multicast_lack)group->lacks) {
    case SW_LACKS_SUPPORT:
        snprintf(text, room, "the device of rank %d does not support it", rank);
        return;
    case SW_LACKS_CALLS:
        snprintf(text, room, "the driver of rank %d has no calls for it: CUDA 12.1 has", rank);
        return;
    case SW_LACKS_WISH:
        snprintf(text, room, "it was created with SYMWIN_COMM_NO_MULTICAST");
        return;
    case SW_LACKS_REQUEST:
        snprintf(text, room,
                 "on real hardware it needs SYMWIN_NVLS=1 or SYMWIN_COMM_MULTICAST, on rank %d "
                 "too; read docs/hardware.md first",
                 rank);
        return;
    case SW_LACKS_CONSENT:
        snprintf(text, room,
                 "NCCL_NVLS_ENABLE, TORCH_SYMM_MEM_DISABLE_MULTICAST or NVSHMEM_DISABLE_NVLS "
                 "switches it off on rank %d; ask who set it",
                 rank);
        return;
    case SW_LACKS_DEVICE:
        snprintf(text, room, "rank %d has the device of a lower rank; it needs one for each", rank);
        return;
    case SW_LACKS_RANKS:
        snprintf(text, room, "it has one rank, and multicast takes two");
        return;
    case SW_LACKS_ALIGNMENT:
    case SW_LACKS_NOTHING:
        break;
    }
    snprintf(text, room, "the driver's units of multicast do not fit the flat range");
}

/* ---- units ---- */

static unsigned handle_types(const struct sw_group *group)
{
    return group->processes == 1 ? CU_MEM_HANDLE_TYPE_NONE
           : group->hosts == 1   ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                 : CU_MEM_HANDLE_TYPE_FABRIC;
}

static CUmulticastObjectProp prop_of(const struct sw_group *group, size_t bytes)
{
    return (CUmulticastObjectProp){
        .numDevices = (unsigned)group->nranks, .size = bytes, .handleTypes = handle_types(group)};
}

void sw_multicast_units(const struct sw_group *group, size_t stride, size_t *unit, size_t *align)
{
    const CUmulticastObjectProp prop = prop_of(group, stride);

    *unit = *align = 0;
    if (sw_drv.cuMulticastGetGranularity(unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS ||
        sw_drv.cuMulticastGetGranularity(align, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED) !=
            CUDA_SUCCESS ||
        *unit == 0 || *align == 0 || stride % *unit != 0)
        *unit = *align = 0;
}

/* What all ranks can bind: the bytes of the smallest allocation, in whole units. */
static size_t common_bytes(const struct sw_group *group, const struct sw_segment *segment)
{
    size_t least = segment->rank[0].stretch.bytes;
    int r;

    for (r = 1; r < group->nranks; r++)
        if (segment->rank[r].stretch.bytes < least)
            least = segment->rank[r].stretch.bytes;
    return least / group->object.unit * group->object.unit;
}

/* ---- what failures teach ---- */

/* In the order of what outweighs what. */
enum verdict { FINE, AGAIN, REFUSED, FULL, OVER };

/* An attempt of all ranks. */
struct attempt {
    symwin_comm *comm;
    const char *call;
    struct sw_segment *segment;
    int is_first;         /* the object was not there before */
    int binds;            /* in the step `bind` */
    int code;             /* this rank's CUresult, or STALLED */
    enum verdict verdict; /* of a failure: the same on all ranks */
    int stalls;           /* a rank's bind does: the same on all ranks */
    struct bind *bound;   /* owned: this rank's bind, if it has succeeded */
};

/* What a user can do. */
static const char *advice(CUresult result)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return " (the switch has few slots: destroy other communicators, NCCL's with NVLS too)";
    if (result == CUDA_ERROR_SYSTEM_NOT_READY || result == CUDA_ERROR_ILLEGAL_STATE)
        return " (see the state of the Fabric Manager: nvidia-smi -q)";
    return "";
}

static symwin_status check(struct attempt *a, CUresult result, const char *what)
{
    a->code = (int)result;
    return sw_check(result, "%s%s", what, advice(result));
}

static enum verdict judge(const struct attempt *a, const struct sw_ballot *ballot)
{
    const uint64_t code = ballot->values[0];

    if (ballot->status == SYMWIN_OK)
        return FINE;
    if (code == CUDA_ERROR_SYSTEM_NOT_READY)
        return AGAIN;
    if (code == 0 && ballot->status == SYMWIN_NO_MEMORY) /* of the host, for now */
        return REFUSED;
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        return FULL;
    return !a->binds || code == CUDA_ERROR_ILLEGAL_STATE || code == STALLED ? OVER : REFUSED;
}

/* `words`: a fabric handle, or NULL. */
static symwin_status agree(struct attempt *a, symwin_status status, const uint64_t *words)
{
    const uint64_t code = (uint64_t)a->code;
    int r;

    if (status != SYMWIN_OK)
        words = NULL;
    status = sw_comm_agree(a->comm, a->call, status, words != NULL ? words : &code,
                           words != NULL ? SW_FABRIC_WORDS : 1);
    for (r = 0; r < a->comm->nranks && status != SYMWIN_OK; r++) {
        const enum verdict v = judge(a, &a->comm->ballots[r]);

        a->stalls |= v != FINE && a->comm->ballots[r].values[0] == STALLED;
        a->verdict = v > a->verdict ? v : a->verdict;
    }
    return status;
}

/* All ranks write the same. `text` begins with the call's name. */
static void remember(const struct attempt *a, const char *text)
{
    struct sw_group *group = a->comm->group;
    const char *sentence = strstr(text, ": ");

    pthread_mutex_lock(&group->mutex);
    snprintf(a->segment->reason, sizeof a->segment->reason, "%s",
             sentence != NULL ? sentence + 2 : text);
    if (a->verdict > REFUSED)
        memcpy(group->object.reason, a->segment->reason, sizeof group->object.reason);
    if (a->verdict == FULL)
        group->object.full_at = sw_group_freed() + 1;
    if (a->verdict == OVER)
        group->object.is_over = 1;
    pthread_mutex_unlock(&group->mutex);
}

int sw_multicast_is_possible(struct sw_group *group)
{
    int is_over;

    pthread_mutex_lock(&group->mutex);
    is_over = group->object.is_over;
    pthread_mutex_unlock(&group->mutex);
    return group->multicast && !is_over;
}

int sw_multicast_may_try(struct sw_group *group)
{
    int may;

    pthread_mutex_lock(&group->mutex);
    may = !group->object.is_over && group->object.full_at != sw_group_freed() + 1;
    pthread_mutex_unlock(&group->mutex);
    return may;
}

void sw_multicast_reason(const struct sw_segment *segment, size_t end, int refused, char *text,
                         size_t room)
{
    struct sw_group *group = segment->group;
    char lack[SW_REASON_BYTES];

    if (!group->multicast) {
        sw_multicast_lack(group, lack, sizeof lack);
        snprintf(text, room, "this communicator has no multicast: %s", lack);
        return;
    }
    pthread_mutex_lock(&group->mutex);
    if (refused)
        snprintf(text, room, "it was registered with SYMWIN_WINDOW_NO_MULTICAST");
    else if (segment->uneven >= 0)
        snprintf(text, room,
                 "a rank's window is on several physical allocations, or at another offset in its "
                 "allocation than on other ranks; take one allocation of symwin_mem_alloc()");
    else if (segment->bound_bytes > 0 && end > segment->bound_bytes)
        snprintf(
            text, room,
            "it ends at byte %zu of its allocation, and all ranks have only %zu bytes in whole "
            "units of multicast there; allocate whole units",
            end, (size_t)segment->bound_bytes);
    else if (segment->bound_bytes > 0)
        snprintf(text, room,
                 "it was registered before its allocation had multicast; register it again");
    else if (segment->reason[0] != '\0')
        snprintf(text, room, "%s", segment->reason);
    else if (group->object.reason[0] != '\0')
        snprintf(text, room, "%s", group->object.reason);
    else
        snprintf(text, room,
                 "its allocation was first used without, by SYMWIN_WINDOW_NO_MULTICAST or a "
                 "captured call; insist by SYMWIN_WINDOW_MULTICAST");
    pthread_mutex_unlock(&group->mutex);
}

/* ---- the object: created by rank 0, shown to all processes ---- */

static symwin_status create(struct attempt *a, uint64_t words[SW_FABRIC_WORDS])
{
    struct sw_group *group = a->comm->group;
    const CUmulticastObjectProp prop = prop_of(group, group->limit);
    CUmemFabricHandle handle;
    symwin_status status;
    CUresult answer;

    status = check(a, sw_drv.cuMulticastCreate(&group->object.object, &prop),
                   "cuMulticastCreate of a multicast object as large as the flat range's stride");
    if (status != SYMWIN_OK)
        group->object.object = 0;
    if (status != SYMWIN_OK || group->hosts == 1)
        return status;
    status = sw_handle_exchange_export_fabric(group->object.object, "multicast object", &handle,
                                              &answer);
    a->code = (int)answer;
    if (status == SYMWIN_OK)
        memcpy(words, &handle, sizeof handle);
    return status;
}

/* The leader's part: one process of a host sends the object to the others; between hosts all import
 * the fabric handle of rank 0. */
static symwin_status show_object(struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    CUmemFabricHandle handle;
    symwin_status status;
    CUresult answer;

    if (group->hosts == 1) {
        status = sw_handle_exchange_object(group, a->comm->sequence, sw_comm_patience(a->comm),
                                           a->call, &answer);
        a->code = (int)answer;
        return status;
    }
    if (sw_group_is_local(group, 0))
        return SYMWIN_OK;
    memcpy(&handle, a->comm->ballots[0].values, sizeof handle);
    status = check(a,
                   sw_drv.cuMemImportFromShareableHandle(&group->object.object, &handle,
                                                         CU_MEM_HANDLE_TYPE_FABRIC),
                   "cuMemImportFromShareableHandle of a multicast object of another host");
    if (status != SYMWIN_OK)
        group->object.object = 0;
    return status;
}

static symwin_status make_object(struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    uint64_t words[SW_FABRIC_WORDS] = {0};
    symwin_status status = SYMWIN_OK;
    char what[64];

    if (a->comm->rank == group->leader)
        group->object.bytes = group->limit;
    if (a->comm->rank == 0)
        status = create(a, words);
    status = agree(a, status, group->hosts > 1 ? words : NULL);
    if (status == SYMWIN_OK && group->processes > 1) {
        if (a->comm->rank == group->leader)
            status = show_object(a);
        status = agree(a, status, NULL);
    }
    if (status != SYMWIN_OK)
        return status;
    snprintf(what, sizeof what, "cuMulticastAddDevice of device %d", a->comm->device);
    status = check(a, sw_drv.cuMulticastAddDevice(group->object.object, a->comm->device), what);
    return agree(a, status, NULL);
}

/* The leader's part. */
static symwin_status map_here(struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    const CUdeviceptr at = sw_group_address(group, group->nranks, 0);
    CUresult answer = CUDA_SUCCESS;
    symwin_status status;
    char text[SW_TEXT_BYTES];

    if (at % group->object.unit != 0)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "0x%llx is not aligned to %zu bytes, as multicast needs; create the "
                       "communicator with SYMWIN_COMM_NO_MULTICAST",
                       (unsigned long long)at, group->object.unit);
    status = check(a, sw_drv.cuMemMap(at, group->object.bytes, 0, group->object.object, 0),
                   "cuMemMap of a multicast object");
    if (status != SYMWIN_OK)
        return status;
    group->object.mapped = 1;
    status = sw_memory_access(at, group->object.bytes, group->devices, group->device_count,
                              &answer);
    a->code = (int)answer;
    if (answer == CUDA_SUCCESS)
        return status; /* or no host memory */
    memcpy(text, symwin_last_error(), sizeof text);
    return sw_fail(status, "multicast addresses: %s%s", text,
                   group->device_count > 1 ? "; it may work with a process for each rank" : "");
}

static symwin_status map_object(struct attempt *a)
{
    const int leads = a->comm->rank == a->comm->group->leader;

    a->binds = 0;
    return agree(a, leads ? map_here(a) : SYMWIN_OK, NULL);
}

/* ---- bind ---- */

/* A bind on a thread of its own. Whoever comes last, the caller or the thread, frees it. */
struct bind {
    struct sw_remains remains; /* first */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct sw_segment *segment;
    CUmemGenericAllocationHandle object;
    struct sw_driver_thread caller;
    int rank, device;
    size_t bytes;
    CUresult result;
    int done, is_left;
};

static void bind_free(struct bind *b)
{
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

/* Keeps the segment and its range until come_late(). */
static void keep(struct sw_segment *segment)
{
    pthread_mutex_lock(&segment->group->mutex);
    segment->stalled++;
    segment->group->stalled++;
    pthread_mutex_unlock(&segment->group->mutex);
}

/* Nobody waits for the bind any more. The segment and the range may be waiting for it. A segment
 * that is to be destroyed keeps its count in group->stalled, for its destroy to take off: the range
 * goes after it. */
static void come_late(struct bind *b)
{
    struct sw_segment *segment = b->segment;
    struct sw_group *group = segment->group;
    int ends_segment, ends_group = 0;

    if (b->result == CUDA_SUCCESS)
        sw_segment_unbind_from(b->object, segment, b->device, b->bytes);
    pthread_mutex_lock(&group->mutex);
    ends_segment = --segment->stalled == 0 && segment->is_left;
    if (!ends_segment)
        ends_group = --group->stalled == 0 && group->is_left;
    pthread_mutex_unlock(&group->mutex);
    if (ends_segment)
        sw_segment_destroy(segment);
    if (ends_group)
        sw_group_free_range(group);
}

static void *bind_main(void *data)
{
    struct bind *b = data;
    struct sw_segment *segment = b->segment;
    struct sw_scope scope = {.device = -1};
    const symwin_status entered = sw_scope_enter(b->device, &scope);
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;
    struct sw_driver_thread own;
    int is_left;

    sw_driver_thread_get(&own);
    sw_driver_thread_set(&b->caller);
    if (entered == SYMWIN_OK)
        result = sw_drv.cuMulticastBindMem(b->object, segment->offset,
                                           segment->rank[b->rank].pieces[0].memory, 0, b->bytes, 0);
    pthread_mutex_lock(&b->mutex);
    sw_driver_thread_get(&b->caller);
    sw_driver_thread_set(&own);
    b->result = result;
    b->done = 1;
    is_left = b->is_left;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    if (is_left) {
        come_late(b);
        bind_free(b);
    }
    sw_scope_leave(&scope);
    return NULL;
}

/* Waits for the bind, but not for ever. Whether it has come back. */
static int await(struct bind *b, int ms)
{
    struct timespec until;
    int done;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&b->mutex);
    while (!b->done &&
           pthread_cond_clockwait(&b->changed, &b->mutex, CLOCK_MONOTONIC, &until) != ETIMEDOUT)
        ;
    done = b->done;
    if (!done) {
        keep(b->segment);
        b->is_left = 1;
    }
    pthread_mutex_unlock(&b->mutex);
    return done;
}

static symwin_status bind(struct attempt *a)
{
    struct sw_segment_rank *own = &a->segment->rank[a->comm->rank];
    const int patience = sw_comm_patience(a->comm), ms = patience / 4 * 3;
    const int most = ms < MOST_BIND_MS ? ms : MOST_BIND_MS;
    struct bind *b = calloc(1, sizeof *b);
    pthread_t thread;
    CUresult result;

    if (b == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for cuMulticastBindMem");
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->segment = a->segment;
    b->object = a->comm->group->object.object;
    sw_driver_thread_get(&b->caller);
    b->rank = a->comm->rank;
    b->device = a->comm->device;
    b->bytes = common_bytes(a->comm->group, a->segment);
    if (!sw_thread_begin(&thread, bind_main, b)) {
        bind_free(b);
        return sw_fail(SYMWIN_NO_MEMORY,
                       "no thread for cuMulticastBindMem; raise ulimit -u or ulimit -v");
    }
    if (!await(b, most)) {
        pthread_detach(thread);
        a->code = STALLED;
        return sw_fail(SYMWIN_DRIVER,
                       "cuMulticastBindMem on device %d has not come back in %d ms: see the state "
                       "of the Fabric Manager and of the NVLink fabric (nvidia-smi -q)",
                       a->comm->device, most);
    }
    pthread_join(thread, NULL);
    sw_driver_thread_set(&b->caller);
    result = b->result;
    if (result == CUDA_SUCCESS) {
        own->bound = b->bytes;
        own->bound_device = b->device;
        a->bound = b;
    } else {
        bind_free(b);
    }
    a->code = (int)result;
    return sw_check(result, "cuMulticastBindMem of %zu bytes on device %d%s",
                    common_bytes(a->comm->group, a->segment), a->comm->device, advice(result));
}

/* On the reaper. */
static void unbind_late(struct sw_remains *remains)
{
    struct bind *b = (struct bind *)(void *)remains;

    come_late(b);
    bind_free(b);
}

/* Where a bind stalls an unbind may too, so the rank does not make that call itself. */
static void unbind(struct attempt *a)
{
    if (!a->stalls || a->bound == NULL) {
        sw_segment_unbind(a->segment, a->comm->rank);
        return;
    }
    a->segment->rank[a->comm->rank].bound = 0;
    keep(a->segment);
    sw_reaper_take(&a->bound->remains, unbind_late);
    a->bound = NULL;
}

/* ---- the steps ---- */

static symwin_status check_units(const struct attempt *a)
{
    const struct sw_group *group = a->comm->group;
    const size_t unit = group->object.unit;

    if (common_bytes(group, a->segment) > 0 && a->segment->offset % unit == 0)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_UNSUPPORTED,
                   "%s: multicast binds memory in units of %zu bytes, and the smallest allocation "
                   "has less, or is at offset %zu of the flat range; register allocations of at "
                   "least that many bytes",
                   a->call, unit, a->segment->offset);
}

static symwin_status check_over(const struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    symwin_status status = SYMWIN_OK;

    pthread_mutex_lock(&group->mutex);
    if (group->object.is_over)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: multicast has failed before in this communicator, which does not "
                         "try again: %s",
                         a->call, group->object.reason);
    pthread_mutex_unlock(&group->mutex);
    return status;
}

/* The leader sets what all ranks have bound before they agree that they have. */
static symwin_status steps(struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    symwin_status status = a->is_first ? make_object(a) : SYMWIN_OK;

    if (status != SYMWIN_OK)
        return status;
    a->binds = 1;
    status = bind(a);
    if (a->comm->rank == group->leader)
        a->segment->bound_bytes = common_bytes(group, a->segment);
    status = agree(a, status, NULL);
    return status == SYMWIN_OK && a->is_first ? map_object(a) : status;
}

/* The leader's part, when no rank of the process has anything bound any more. A bind that has not
 * come back keeps the object, which is not mapped then. */
static void drop_object(struct sw_group *group)
{
    int stalled;

    pthread_mutex_lock(&group->mutex);
    stalled = group->stalled;
    pthread_mutex_unlock(&group->mutex);
    if (stalled == 0)
        sw_group_drop_object(group);
}

/* All ranks undo what they have done of the segment, and of an object that is not used yet. The
 * agreements also overwrite a fabric handle in the exchange. Returns a failure if the exchange has
 * ended. */
static symwin_status undo(struct attempt *a)
{
    struct sw_group *group = a->comm->group;
    const int leads = a->comm->rank == group->leader;
    symwin_status status;

    if (leads)
        a->segment->bound_bytes = 0;
    unbind(a);
    status = sw_comm_agree(a->comm, a->call, SYMWIN_OK, NULL, 0);
    if (status != SYMWIN_OK)
        return status;
    if (leads && a->is_first)
        drop_object(group);
    return sw_comm_agree(a->comm, a->call, SYMWIN_OK, NULL, 0);
}

/* One attempt of all ranks. Whether the exchange has ended is asked once: a rank that has seen its
 * end comes to no agreement, so no other completes one. */
static symwin_status try_once(struct attempt *a, int is_last, int *ended)
{
    symwin_status status = steps(a), after;
    char text[SW_TEXT_BYTES];

    if (status == SYMWIN_OK)
        return status;
    *ended = 1;
    after = sw_exchange_settled(a->comm->group->exchange, a->call);
    if (after != SYMWIN_OK)
        return after;
    snprintf(text, sizeof text, "%s", symwin_last_error());
    if (a->verdict == AGAIN && is_last)
        a->verdict = OVER;
    after = undo(a);
    if (after != SYMWIN_OK)
        return after;
    if (a->verdict != AGAIN)
        remember(a, text); /* what was unbound just now made no room */
    sw_error_restore(text);
    *ended = 0;
    return status;
}

symwin_status sw_multicast_bind(symwin_comm *comm, const char *call, struct sw_segment *segment,
                                int *ended)
{
    struct attempt a = {.comm = comm, .call = call, .segment = segment, .verdict = REFUSED};
    symwin_status status; /* the same on all ranks */
    int tries;

    *ended = 0;
    status = check_over(&a);
    if (status != SYMWIN_OK)
        return status;
    status = check_units(&a);
    if (status != SYMWIN_OK) {
        remember(&a, symwin_last_error());
        return status;
    }
    for (tries = 0; tries < 2; tries++) {
        a = (struct attempt){.comm = comm,
                             .call = call,
                             .segment = segment,
                             .is_first = !comm->group->object.mapped};
        status = try_once(&a, tries == 1, ended);
        if (a.bound != NULL)
            bind_free(a.bound);
        if (status == SYMWIN_OK || *ended || a.verdict != AGAIN)
            break;
    }
    return status;
}
