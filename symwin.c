/* Communicators: creation in agreed steps, and one teardown for all of them.
 *
 *   join -> prepare (local) -> agree -> flat range (by each process's leader), own memory
 *        -> agree -> register the own memory
 *
 * Where ranks are on several hosts, they try which of them can map each other's memory after the
 * first agreement. If that makes several domains, the rest is src/rails/wide.c's.
 *
 * A rank that fails still joins every agreement, so all ranks succeed or all fail with one status.
 * Threads: one at a time for a communicator (symwin.h).
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "src/rails/rails.h"

static const char create_call[] = "symwin_comm_create";

enum { DEFAULT_KERNEL_TIMEOUT_MS = 600000 };

/* Publishes where this rank's kernels look for an abort; NULL: nowhere any more. */
static void publish_report(symwin_comm *comm, struct sw_kernel_report *report)
{
    pthread_mutex_lock(&comm->group->mutex);
    comm->group->reports[comm->rank] = report;
    pthread_mutex_unlock(&comm->group->mutex);
}

/* ---- destruction of complete and of partly created communicators ---- */

/* The last step, when the memory that the reaper was given before is unmapped: a driver without a
 * context would set the device up for each call. */
static void free_context(struct sw_remains *remains)
{
    symwin_comm *comm = (symwin_comm *)(void *)remains;

    sw_drop(sw_drv.cuDevicePrimaryCtxRelease(comm->device), "cuDevicePrimaryCtxRelease");
    free(comm);
}

/* Frees what comm_new() has allocated, but not the communicator itself. */
static void comm_empty(symwin_comm *comm)
{
    sw_tuning_close(comm->tuning);
    sw_channels_destroy(comm);
    sw_registrations_destroy(comm);
    sw_window_index_destroy(comm->index);
    pthread_mutex_destroy(&comm->mutex);
    sw_handle_table_release(&comm->windows);
    free(comm->memory);
    free(comm->ballots);
    sw_wipe(comm->key, sizeof comm->key);
}

static void comm_free(symwin_comm *comm)
{
    if (comm->stage >= SW_COMM_CONTEXT)
        sw_reaper_take(&comm->remains, free_context);
    else
        free(comm);
}

/* `scope`: entered with the communicator's context, if it has one; this function leaves it. */
static void comm_release(symwin_comm *comm, struct sw_scope *scope)
{
    sw_registrations_end(comm); /* before the block count that it copies is released */
    sw_calls_destroy(comm);
    switch (comm->stage) {
    case SW_COMM_REGISTERED:
        sw_channels_destroy(comm);
        sw_registrations_destroy(comm);
        sw_window_detach_all(comm);
        /* fallthrough */
    case SW_COMM_MEMORY:
        sw_memory_release(&comm->memory->memory);
        /* fallthrough */
    case SW_COMM_REPORT:
        publish_report(comm, NULL);
        sw_report_release(comm->report);
        /* fallthrough */
    case SW_COMM_KERNELS:
        sw_kernels_release(comm->kernels);
        /* fallthrough */
    case SW_COMM_CONTEXT:
        sw_scope_leave(scope); /* while the context still exists */
        /* fallthrough */
    case SW_COMM_JOINED:
        break;
    }
    comm_empty(comm);
    sw_group_leave(comm->group, comm->rank);
    comm_free(comm); /* the reaper has the group's segments now, and they go before the context */
}

void symwin_comm_destroy(symwin_comm *comm)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct sw_scope scope = {.device = -1};

    if (comm == NULL || sw_fork_check("symwin_comm_destroy") != SYMWIN_OK)
        return; /* in a forked child all of it belongs to the parent */
    /* A capture of global mode, also of another thread, would forbid driver calls of this one. */
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    sw_grouped_forget(comm);
    sw_comm_forget(comm);
    /* Not sw_scope_enter_context(): teardown sets no error, and continues if this fails. */
    scope.pushed = sw_drv.cuCtxPushCurrent(comm->context) == CUDA_SUCCESS;
    sw_wide_destroy(comm);
    sw_comm_take_leave(comm);
    comm_release(comm, &scope);
    sw_allocations_settle();
    if (!sw_comm_is_any()) { /* no kernel waits for this thread, unless it is the caller's own */
        (void)sw_reaper_wait(SW_REAPER_MS);
        (void)sw_check(sw_segment_unbind_refused(),
                       "symwin_comm_destroy: cuMulticastUnbind of a window's memory, of this or an "
                       "earlier communicator; its offset can have no multicast again");
    }
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
}

/* ---- creation ---- */

static symwin_status check_options(const symwin_comm_options *o)
{
    const unsigned multicast = SYMWIN_COMM_MULTICAST | SYMWIN_COMM_NO_MULTICAST;
    const unsigned known = multicast | SYMWIN_COMM_NO_GRAPH_REGISTER | SYMWIN_COMM_GRAPH_LAUNCH |
                           SYMWIN_COMM_NO_ORDER;

    if (o->size != sizeof *o)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->size is %zu; set it to "
                       "sizeof(symwin_comm_options), %zu",
                       create_call, o->size, sizeof *o);
    if ((o->flags & ~known) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->flags has 0x%x, which is unknown; pass SYMWIN_COMM_* or 0",
                       create_call, o->flags & ~known);
    if ((o->flags & multicast) == multicast)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->flags has SYMWIN_COMM_MULTICAST and "
                       "SYMWIN_COMM_NO_MULTICAST; pass one of them, or none",
                       create_call);
    if (o->timeout_ms < 0 || o->bootstrap_timeout_ms < 0 || o->kernel_timeout_ms < -1 ||
        o->max_blocks < 0 || o->spare_multiprocessors < 0)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: timeout_ms %d, bootstrap_timeout_ms %d, kernel_timeout_ms %d, max_blocks %d, "
            "spare_multiprocessors %d: none may be negative, except kernel_timeout_ms -1",
            create_call, o->timeout_ms, o->bootstrap_timeout_ms, o->kernel_timeout_ms,
            o->max_blocks, o->spare_multiprocessors);
    if (o->slot_bytes % 16 != 0 || o->slot_bytes > (size_t)1 << 32)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: slot_bytes is %zu; pass a multiple of 16 up to 4 GiB, or 0 for the default",
            create_call, o->slot_bytes);
    return SYMWIN_OK;
}

/* The slots for all peers together take at most 128 MiB: then a two-shot of 64 MiB takes one round
 * (on 4 H200s 2 % faster than two rounds; larger messages gain more). Less on the emulated driver,
 * which uses host memory, and for a single rank, which needs no slots. */
static size_t default_slot_bytes(int nranks)
{
    const size_t all = (size_t)(sw_driver_is_emulated() ? 4 : 128) << 20;
    size_t bytes = (size_t)(nranks > 1 ? 32 : 1) << 20;

    while (4 * bytes * (size_t)(nranks - 1) > all)
        bytes /= 2;
    return bytes;
}

static symwin_comm *comm_new(int nranks, int rank, const symwin_comm_options *options,
                             struct sw_group *group)
{
    static const symwin_comm_options none;
    const symwin_comm_options *o = options == NULL ? &none : options;
    symwin_comm *comm = calloc(1, sizeof *comm);

    if (comm == NULL || pthread_mutex_init(&comm->mutex, NULL) != 0) {
        free(comm);
        return NULL;
    }
    comm->stage = SW_COMM_JOINED;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->group = group;
    comm->flags = o->flags;
    if (!sw_setting(SW_SETTING_GRAPH_REGISTER))
        comm->flags |= SYMWIN_COMM_NO_GRAPH_REGISTER;
    if (sw_setting(SW_SETTING_GRAPH_LAUNCH))
        comm->flags |= SYMWIN_COMM_GRAPH_LAUNCH;
    comm->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : (int)sw_setting(SW_SETTING_TIMEOUT_MS);
    comm->kernel_timeout_ms = o->kernel_timeout_ms != 0 ? o->kernel_timeout_ms
                                                        : DEFAULT_KERNEL_TIMEOUT_MS;
    comm->max_blocks = o->max_blocks;
    comm->spare = (unsigned)o->spare_multiprocessors;
    comm->slot_bytes = o->slot_bytes; /* 0: set later, when the driver is known */
    atomic_flag_clear(&comm->busy);
    comm->ballots = calloc((size_t)nranks, sizeof *comm->ballots);
    comm->memory = calloc(1, sizeof *comm->memory);
    comm->index = sw_window_index_create();
    comm->registrations = sw_registrations_create();
    comm->channels = sw_channels_create(nranks);
    if (comm->ballots == NULL || comm->memory == NULL || comm->index == NULL ||
        comm->registrations == NULL || comm->channels == NULL) {
        comm_empty(comm);
        free(comm);
        return NULL;
    }
    return comm;
}

/* Acquires what is local to this rank: context, kernels, pinned memory. Leaves `scope` entered. */
static symwin_status prepare(symwin_comm *comm, struct sw_scope *scope)
{
    symwin_status status;

    if (!sw_driver_has_kernels())
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: this library was built without nvcc and has no GPU kernels; rebuild it "
                       "with nvcc, or set SYMWIN_DRIVER=emu",
                       create_call);
    status = sw_check(sw_drv.cuDevicePrimaryCtxRetain(&comm->context, comm->device),
                      "cuDevicePrimaryCtxRetain of device %d", comm->device);
    if (status != SYMWIN_OK)
        return status;
    comm->stage = SW_COMM_CONTEXT;
    status = sw_scope_enter_context(comm->context, scope);
    if (status == SYMWIN_OK)
        status = sw_kernels_acquire(comm->device, comm->nranks, sw_multicast_allowed(comm->flags),
                                    &comm->kernels);
    if (status != SYMWIN_OK)
        return status;
    comm->stage = SW_COMM_KERNELS;
    status = sw_report_acquire(comm->device, &comm->report);
    if (status != SYMWIN_OK)
        return status;
    publish_report(comm, comm->report);
    comm->stage = SW_COMM_REPORT;
    return sw_check(sw_drv.cuMemHostGetDevicePointer(&comm->report_address, comm->report, 0),
                    "cuMemHostGetDevicePointer");
}

/* Indices of the values in the first ballot. */
enum {
    V_DEVICE,
    V_UUID,
    V_UUID_2,
    V_TOTAL,
    V_MULTICAST,
    V_SLOT,
    V_FLAGS,
    V_MAX_BLOCKS,
    V_GRANULARITY,
    V_TUNING,
    V_COUNT = V_TUNING + SW_TUNING_VALUES
};

/* All ranks must have passed the same value number `i`. */
static symwin_status agreed(symwin_comm *comm, int i, const char *what)
{
    int r;

    for (r = 1; r < comm->nranks; r++)
        if (comm->ballots[r].values[i] != comm->ballots[0].values[i])
            return sw_fail(
                SYMWIN_MISMATCH,
                "%s: %s differs: rank 0 passed %llu, rank %d passed %llu; pass the same on "
                "every rank",
                create_call, what, (unsigned long long)comm->ballots[0].values[i], r,
                (unsigned long long)comm->ballots[r].values[i]);
    return SYMWIN_OK;
}

/* Fills the first ballot: what the other ranks must know about this rank and its device. */
static symwin_status introduce(symwin_comm *comm, uint64_t values[V_COUNT])
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    size_t granularity = 0;
    size_t total = 0;
    int multicast = 0;
    CUuuid uuid;
    symwin_status status;

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = comm->device;
    status = sw_check(sw_drv.cuDeviceTotalMem(&total, comm->device),
                      "cuDeviceTotalMem of device %d", comm->device);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceGetAttribute(
                              &multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, comm->device),
                          "cuDeviceGetAttribute: multicast of device %d", comm->device);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuMemGetAllocationGranularity(
                              &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                          "cuMemGetAllocationGranularity of device %d", comm->device);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceGetUuid(&uuid, comm->device),
                          "cuDeviceGetUuid of device %d", comm->device);
    if (status != SYMWIN_OK)
        return status;
    memcpy(&values[V_UUID], &uuid, sizeof uuid);
    values[V_DEVICE] = (uint64_t)comm->device;
    values[V_TOTAL] = total;
    values[V_MULTICAST] = (uint64_t)sw_multicast_lacks(comm->flags);
    if (values[V_MULTICAST] == SW_LACKS_NOTHING && !multicast)
        values[V_MULTICAST] = SW_LACKS_SUPPORT;
    if (comm->slot_bytes == 0)
        comm->slot_bytes = default_slot_bytes(comm->nranks);
    values[V_SLOT] = comm->slot_bytes;
    values[V_FLAGS] = comm->flags;
    values[V_MAX_BLOCKS] = (uint64_t)comm->max_blocks;
    values[V_GRANULARITY] = granularity;
    return sw_tuning_introduce(comm, create_call, 1, &values[V_TUNING]);
}

/* The ordinal of a rank's device in this process; it may be another one in the rank's process. -1:
 * the device is not visible here. */
static symwin_status device_here(const symwin_comm *comm, int rank, int *device)
{
    const uint64_t *values = comm->ballots[rank].values;
    symwin_status status;
    CUuuid uuid;
    int count = 0;
    int d;

    *device = (int)values[V_DEVICE];
    if (sw_group_is_local(comm->group, rank))
        return SYMWIN_OK;
    *device = -1;
    if (comm->group->host_of[rank] != comm->group->host)
        return SYMWIN_OK;
    status = sw_check(sw_drv.cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (d = 0; d < count && status == SYMWIN_OK; d++) {
        status = sw_check(sw_drv.cuDeviceGetUuid(&uuid, d), "cuDeviceGetUuid of device %d", d);
        if (status == SYMWIN_OK && memcmp(&uuid, &values[V_UUID], sizeof uuid) == 0) {
            *device = d;
            return SYMWIN_OK;
        }
    }
    return status;
}

/* Checks that this device can access the memory of all other ranks' devices, and that the ranks on
 * this device can run at the same time. */
static symwin_status check_neighbours(symwin_comm *comm)
{
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int connections = text != NULL && atoi(text) > 0 ? atoi(text) : 8;
    symwin_status status = SYMWIN_OK;
    int r;

    comm->ranks_on_device = comm->local_on_device = 0;
    for (r = 0; r < comm->nranks && status == SYMWIN_OK; r++) {
        int device = -1;
        int can = 0;

        status = device_here(comm, r, &device);
        if (status != SYMWIN_OK || device < 0)
            continue;
        if (device == comm->device) {
            comm->ranks_on_device++;
            comm->local_on_device += sw_group_is_local(comm->group, r);
            continue;
        }
        status = sw_check(sw_drv.cuDeviceCanAccessPeer(&can, comm->device, device),
                          "cuDeviceCanAccessPeer: device %d to %d", comm->device, device);
        if (status == SYMWIN_OK && !can)
            status = sw_fail(SYMWIN_UNSUPPORTED,
                             "%s: device %d cannot access the memory of device %d (rank %d); use "
                             "devices that are peers",
                             create_call, comm->device, device, r);
    }
    if (status != SYMWIN_OK)
        return status;
    comm->streams_per_rank = sw_driver_is_emulated()      ? connections
                             : comm->ranks_on_device == 1 ? INT_MAX
                                                          : connections / comm->local_on_device;
    if (!sw_driver_is_emulated() && comm->local_on_device > connections)
        return sw_fail(
            SYMWIN_UNSUPPORTED,
            "%s: %d ranks share device %d, which runs the streams of %d ranks at the same time; "
            "set CUDA_DEVICE_MAX_CONNECTIONS to at least the number of ranks (32 at most) before "
            "CUDA starts, or use fewer ranks per device",
            create_call, comm->local_on_device, comm->device, connections);
    return SYMWIN_OK;
}

/* Whether no lower rank has the rank's device: a device joins a multicast object only once. */
static int has_own_device(const symwin_comm *comm, int rank)
{
    const struct sw_ballot *ballots = comm->ballots;
    int r = 0;

    while (r < rank &&
           memcmp(&ballots[r].values[V_UUID], &ballots[rank].values[V_UUID], sizeof(CUuuid)) != 0)
        r++;
    return r == rank;
}

/* Lists the devices of this process's ranks, and decides whether the communicator has multicast. */
static symwin_status list_devices(symwin_comm *comm)
{
    struct sw_group *group = comm->group;
    int r, i;

    group->devices = calloc((size_t)comm->nranks, sizeof *group->devices);
    if (group->devices == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for a list of %d devices", comm->nranks);
    group->lacks = comm->nranks > 1 ? SW_LACKS_NOTHING : SW_LACKS_RANKS;
    for (r = 0; r < comm->nranks; r++) {
        const uint64_t *values = comm->ballots[r].values;

        if (group->lacks == SW_LACKS_NOTHING) {
            group->lacking_rank = r;
            group->lacks = values[V_MULTICAST] == SW_LACKS_NOTHING && !has_own_device(comm, r)
                               ? SW_LACKS_DEVICE
                               : (int)values[V_MULTICAST];
        }
        if (values[V_GRANULARITY] > group->granularity)
            group->granularity = values[V_GRANULARITY];
        if (!sw_group_is_local(group, r))
            continue;
        for (i = 0; i < group->device_count && group->devices[i] != (int)values[V_DEVICE]; i++)
            ;
        if (i == group->device_count)
            group->devices[group->device_count++] = (int)values[V_DEVICE];
    }
    group->multicast = group->lacks == SW_LACKS_NOTHING;
    return SYMWIN_OK;
}

/* If there is no room, ranges that are to be freed come back first. */
static CUresult reserve(CUdeviceptr *base, size_t bytes, size_t granularity)
{
    const int waits = sw_reaper_count() > 0;
    CUresult result = sw_drv.cuMemAddressReserve(base, bytes, granularity, 0, 0);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && waits && sw_reaper_wait(SW_REAPER_MS))
        result = sw_drv.cuMemAddressReserve(base, bytes, granularity, 0, 0);
    return result;
}

/* Called by the leader of each process: reserves one address range for all ranks. */
static symwin_status make_range(symwin_comm *comm)
{
    struct sw_group *group = comm->group;
    size_t stride = (size_t)1 << 30;
    symwin_status status = list_devices(comm);
    const int parts = comm->nranks + group->multicast;
    size_t largest = 0;
    int r;

    if (status != SYMWIN_OK)
        return status;
    for (r = 0; r < comm->nranks; r++)
        if (comm->ballots[r].values[V_TOTAL] > largest)
            largest = comm->ballots[r].values[V_TOTAL];
    while (stride < largest && stride < (size_t)1 << 46)
        stride *= 2;
    /* A smaller stride works too, as long as the windows fit in it. */
    for (; stride >= (size_t)1 << 28; stride /= 2) {
        size_t align = 0;
        CUresult result;

        if (group->multicast)
            sw_multicast_units(group, stride, &group->object.unit, &align);
        result = reserve(&group->base, stride * (size_t)parts,
                         align > group->granularity ? align : group->granularity);

        if (result == CUDA_SUCCESS) {
            group->stride = stride;
            group->range_bytes = stride * (size_t)parts;
            return SYMWIN_OK;
        }
        group->base = 0;
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return sw_check(result, "cuMemAddressReserve of %d strides of %zu bytes", parts,
                            stride);
    }
    return sw_fail(SYMWIN_NO_MEMORY,
                   "no address range for %d strides of 256 MiB: destroy "
                   "communicators that are no longer used",
                   parts);
}

/* Indices of the values in the second ballot. V_STRIDE and V_UNIT: of a leader, else 0. */
enum { V_STRIDE, V_UNIT, V_RANKS_ON_DEVICE, V_STREAMS, V_ALGOS, V_SECOND_COUNT };

/* The smallest stride of all processes limits the offsets in every process. The values that select
 * an algorithm must be equal on all ranks, even where their devices differ. */
static void agree_limits(symwin_comm *comm)
{
    struct sw_group *group = comm->group;
    size_t limit = SIZE_MAX, unit = 0;
    int r, can = 1;

    comm->algos = ~0u;
    for (r = 0; r < comm->nranks; r++) {
        const uint64_t *values = comm->ballots[r].values;

        if (values[V_STRIDE] != 0 && values[V_STRIDE] < limit)
            limit = (size_t)values[V_STRIDE];
        if (values[V_STRIDE] != 0)
            can = can && values[V_UNIT] != 0;
        if (values[V_UNIT] > unit)
            unit = (size_t)values[V_UNIT];
        if (values[V_RANKS_ON_DEVICE] > (uint64_t)comm->sharers)
            comm->sharers = (int)values[V_RANKS_ON_DEVICE];
        if (values[V_STREAMS] < (uint64_t)comm->streams_per_rank)
            comm->streams_per_rank = (int)values[V_STREAMS];
        comm->algos &= (unsigned)values[V_ALGOS];
    }
    sw_tuning_for_sharers(comm);
    if (comm->rank != group->leader)
        return;
    group->limit = limit;
    if (group->multicast && (!can || limit % unit != 0))
        group->lacks = SW_LACKS_ALIGNMENT;
    group->multicast = group->lacks == SW_LACKS_NOTHING;
    group->object.unit = unit;
}

static symwin_status create(const symwin_unique_id *id, int nranks, int rank, const int *numbers,
                            int device, const symwin_comm_options *options, symwin_comm **out);

static symwin_status create_by_id(const struct sw_split *part, int device,
                                  const symwin_comm_options *options, symwin_comm **comm)
{
    return create(&part->id, part->nranks, part->rank, part->numbers, device, options, comm);
}

static const struct sw_part_maker maker = {create_by_id, symwin_comm_destroy};

/* *is_done: the ranks are in several domains, and the communicator is complete. Otherwise the
 * ballots are those of the agreement before. */
static symwin_status build_wide(symwin_comm *comm, const symwin_comm_options *options, int *is_done)
{
    const size_t n = (size_t)comm->nranks;
    int *class_of = calloc(n, sizeof *class_of);
    struct sw_ballot *kept = calloc(n, sizeof *kept);
    struct sw_domains domains = {.nranks = 0};
    symwin_status status = SYMWIN_OK;

    if (class_of == NULL || kept == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu ranks", create_call, n);
    else
        memcpy(kept, comm->ballots, n * sizeof *kept);
    status = sw_domains_try(comm, create_call, status, class_of);
    if (status == SYMWIN_OK && !sw_domains_make(&domains, comm->nranks, class_of))
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %zu ranks", create_call, n);
    status = sw_comm_agree(comm, create_call, status, NULL, 0);
    if (status == SYMWIN_OK)
        status = sw_domains_check(domains.rails, create_call); /* the same on all ranks */
    if (status == SYMWIN_OK && domains.count > 1) {
        *is_done = 1;
        status = sw_wide_create(comm, create_call, &domains, options, &maker);
    } else {
        sw_domains_free(&domains);
    }
    if (status == SYMWIN_OK)
        memcpy(comm->ballots, kept, n * sizeof *kept);
    free(class_of);
    free(kept);
    return status;
}

/* The agreed steps, with this rank's context current. `status`: the result of the local steps. */
static symwin_status build(symwin_comm *comm, const symwin_comm_options *options,
                           symwin_status status)
{
    uint64_t values[V_COUNT] = {0};
    uint64_t second[V_SECOND_COUNT] = {0};
    int is_done = 0;

    if (status == SYMWIN_OK)
        status = introduce(comm, values);
    status = sw_comm_agree(comm, create_call, status, values, V_COUNT);
    if (status != SYMWIN_OK)
        return status;
    status = agreed(comm, V_SLOT, "slot_bytes");
    if (status == SYMWIN_OK)
        status = agreed(comm, V_FLAGS, "flags");
    if (status == SYMWIN_OK)
        status = agreed(comm, V_MAX_BLOCKS, "max_blocks");
    if (status == SYMWIN_OK)
        status = sw_tuning_agree(comm, create_call, V_TUNING);
    if (status != SYMWIN_OK)
        return status; /* the same on all ranks: they have the same ballots */
    status = comm->group->hosts > 1 ? build_wide(comm, options, &is_done)
                                    : sw_domains_check(comm->nranks, create_call);
    if (status != SYMWIN_OK || is_done)
        return status;
    status = check_neighbours(comm);
    if (status == SYMWIN_OK && comm->rank == comm->group->leader && comm->group->processes > 1)
        status = sw_handle_exchange_create(comm->group);
    if (status == SYMWIN_OK && comm->rank == comm->group->leader) {
        status = make_range(comm);
        comm->group->unused_from = sw_segment_unused_from;
        comm->group->unused_end = sw_segment_unused_end;
        second[V_STRIDE] = comm->group->stride;
        second[V_UNIT] = comm->group->object.unit;
    }
    if (status == SYMWIN_OK)
        status = sw_own_memory_create(comm, create_call);
    if (status == SYMWIN_OK)
        status = sw_calls_create(comm);
    second[V_RANKS_ON_DEVICE] = (uint64_t)comm->ranks_on_device;
    second[V_STREAMS] = (uint64_t)comm->streams_per_rank;
    second[V_ALGOS] = comm->kernels != NULL ? sw_kernels_algos(comm->kernels) : 0;
    status = sw_comm_agree(comm, create_call, status, second, V_SECOND_COUNT);
    if (status != SYMWIN_OK)
        return status;
    agree_limits(comm);
    return sw_own_memory_register(comm, create_call);
}

/* `numbers`: what texts call the ranks; NULL: 0 to nranks - 1. */
static symwin_status create(const symwin_unique_id *id, int nranks, int rank, const int *numbers,
                            int device, const symwin_comm_options *options, symwin_comm **out)
{
    int timeout_ms = (int)sw_setting(SW_SETTING_BOOTSTRAP_TIMEOUT_MS);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* as in symwin_comm_destroy() */
    const int64_t begin = sw_now_ms();
    struct sw_scope scope = {.device = -1};
    struct sw_group *group;
    char text[SW_TEXT_BYTES];
    symwin_status status;
    symwin_status valid;
    symwin_comm *comm;
    int relaxed = 0;

    if (id == NULL || out == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL", create_call, id == NULL ? "id" : "comm");
    if (nranks < 1 || nranks > SW_MAX_RANKS)
        return sw_fail(SYMWIN_INVALID, "%s: nranks is %d; pass 1 to %d", create_call, nranks,
                       SW_MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return sw_fail(SYMWIN_INVALID, "%s: rank is %d; pass 0 to %d", create_call, rank,
                       nranks - 1);
    valid = options == NULL ? SYMWIN_OK : check_options(options);
    if (valid != SYMWIN_OK)
        options = NULL;
    else
        valid = sw_settings_check(create_call, SW_READER_COMM);
    if (options != NULL && options->bootstrap_timeout_ms > 0)
        timeout_ms = options->bootstrap_timeout_ms;
    else if (options != NULL && options->timeout_ms > 0)
        timeout_ms = options->timeout_ms;
    /* A rank that already knows that it will fail still joins, to tell the others. */
    snprintf(text, sizeof text, "%s", symwin_last_error());
    status = sw_fork_check(create_call);
    if (status == SYMWIN_OK)
        status = sw_bootstrap_join(id, nranks, rank, timeout_ms, &group);
    if (status != SYMWIN_OK)
        return status;
    comm = comm_new(nranks, rank, options, group);
    if (comm == NULL) {
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, rank);
        status = sw_exchange_settled(group->exchange, create_call);
        sw_group_leave(group, rank);
        return status;
    }
    comm->created_by = begin + timeout_ms;
    sw_bootstrap_key(id, comm->key);
    if (valid != SYMWIN_OK)
        status = sw_fail(valid, "%s", text);
    if (status == SYMWIN_OK && numbers != NULL &&
        !sw_exchange_set_numbers(group->exchange, numbers))
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory for the numbers of %d ranks", nranks);
    if (status == SYMWIN_OK)
        status = sw_device_resolve(create_call, device, &comm->device);
    if (status == SYMWIN_OK) {
        relaxed = sw_drv.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
        status = prepare(comm, &scope);
    }
    status = build(comm, options, status);
    if (status == SYMWIN_OK) {
        comm->created_by = 0;
        sw_exchange_be_built(group->exchange);
        sw_scope_leave(&scope);
        sw_comm_list(comm);
        *out = comm;
    } else {
        comm_release(comm, &scope);
    }
    if (relaxed)
        sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode),
                "cuThreadExchangeStreamCaptureMode");
    return status;
}

symwin_status symwin_comm_create(const symwin_unique_id *id, int nranks, int rank, int device,
                                 const symwin_comm_options *options, symwin_comm **out)
{
    return create(id, nranks, rank, NULL, device, options, out);
}

/* A failure names symwin_comm_split(), which the caller has made. Some texts come from the process
 * that made the id, which does not know the call: so the name is replaced, once, here. */
static symwin_status create_part(const struct sw_split *part, int device,
                                 const symwin_comm_options *options, symwin_comm **comm)
{
    const symwin_status status = create_by_id(part, device, options, comm);
    const size_t prefix = sizeof create_call - 1;
    const char *text = symwin_last_error();

    if (status == SYMWIN_OK || strncmp(text, create_call, prefix) != 0 || text[prefix] != ':')
        return status;
    return sw_fail(status, "symwin_comm_split%s", text + prefix);
}

symwin_status symwin_comm_split(symwin_comm *parent, int color, int key,
                                const symwin_comm_options *options, symwin_comm **comm)
{
    struct sw_split part;
    symwin_status status = SYMWIN_OK;

    if (comm == NULL)
        status = sw_fail(SYMWIN_INVALID, "symwin_comm_split: comm is NULL; pass where to put the "
                                         "communicator");
    status = sw_split(parent, status, color, key, &part);
    if (status == SYMWIN_OK && part.nranks == 0)
        *comm = NULL;
    else if (status == SYMWIN_OK)
        status = create_part(&part, parent->device, options, comm);
    sw_wipe(&part, sizeof part);
    return status;
}

symwin_status symwin_comm_query(symwin_comm *comm, symwin_comm_info *info)
{
    symwin_comm *inside = sw_comm_inside(comm);
    const symwin_status status = sw_fork_check("symwin_comm_query");
    symwin_comm_info out;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || info == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_comm_query: %s is NULL",
                       comm == NULL ? "comm" : "info");
    out = (symwin_comm_info){
        .nranks = comm->nranks,
        .rank = comm->rank,
        .device = comm->device,
        .multicast = sw_multicast_is_possible(inside->group),
        .stride = inside->group->stride,
        .base = (void *)(uintptr_t)inside->group->base,
        .allocations = sw_segment_count(inside->group) - 1, /* without the communicator's own */
        .domains = comm->wide != NULL ? comm->wide->domains.count : 1,
        .domain = comm->wide != NULL ? comm->wide->domain : 0,
        .domain_ranks = inside->nranks,
        .domain_rank = inside->rank,
        .rails = comm->wide != NULL ? comm->wide->domains.rails : 0,
    };
    pthread_mutex_lock(&inside->mutex);
    out.windows = (int)inside->windows.count - (comm->wide != NULL); /* without its scratch */
    pthread_mutex_unlock(&inside->mutex);
    *info = out;
    return SYMWIN_OK;
}
