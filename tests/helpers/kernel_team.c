#include "kernel_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "reference.h"
#include "src/driver/fatbins.h"
#include "tap.h"

extern const struct sw_emu_image sw_kernels_emu_image;

#define MULTICAST_RANK (team->nranks)

static void must(CUresult result, const char *what, int rank)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s on rank %d: CUresult %d\n", what, rank, (int)result);
    exit(1);
}

static size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

static void make_current(const struct team *team, int rank)
{
    must(sw_drv.cuCtxSetCurrent(team->context[rank]), "set current", rank);
}

static CUdeviceptr address_of(const struct team *team, int rank, size_t offset)
{
    return team->base + (CUdeviceptr)rank * team->stride + offset;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static CUmemAllocationProp memory_of(int device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static void allow_all_devices(const struct team *team, int rank)
{
    CUmemAccessDesc access[TEAM_MAX_RANKS];
    int d;

    for (d = 0; d < team->devices; d++) {
        access[d].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[d].location.id = d;
        access[d].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    must(sw_drv.cuMemSetAccess(address_of(team, rank, 0), team->segment, access,
                               (size_t)team->devices),
         "set access", rank);
}

static void map_multicast(struct team *team)
{
    CUmulticastObjectProp prop;
    int r;

    memset(&prop, 0, sizeof prop);
    prop.numDevices = (unsigned)team->nranks;
    prop.size = team->segment;
    prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    must(sw_drv.cuMulticastCreate(&team->multicast_object, &prop), "multicast create", 0);
    for (r = 0; r < team->nranks; r++)
        must(sw_drv.cuMulticastAddDevice(team->multicast_object, r), "add device", r);
    for (r = 0; r < team->nranks; r++) {
        make_current(team, r);
        must(sw_drv.cuMulticastBindMem(team->multicast_object, 0, team->memory[r], 0, team->segment,
                                       0),
             "bind", r);
    }
    must(sw_drv.cuMemMap(address_of(team, MULTICAST_RANK, 0), team->segment, 0,
                         team->multicast_object, 0),
         "map multicast", 0);
    allow_all_devices(team, MULTICAST_RANK);
}

static void load_kernels(struct team *team)
{
    size_t i;

    if (sw_driver_is_emulated()) {
        must(sw_drv.cuLibraryLoadData(&team->library[team->libraries++], &sw_kernels_emu_image,
                                      NULL, NULL, 0, NULL, NULL, 0),
             "load", 0);
        return;
    }
    for (i = 0; i < sw_fatbin_count && i < TEAM_MAX_LIBRARIES; i++)
        must(sw_drv.cuLibraryLoadData(&team->library[team->libraries++], sw_fatbins[i].data, NULL,
                                      NULL, 0, NULL, NULL, 0),
             "load", 0);
}

void team_open(struct team *team, int nranks, int devices, int multicast, size_t slot_bytes,
               size_t area_bytes)
{
    const size_t granule = (size_t)2 << 20;
    int r;

    memset(team, 0, sizeof *team);
    team->nranks = nranks;
    team->devices = devices;
    team->multicast = multicast;
    team->slot_bytes = slot_bytes;
    team->area_bytes = area_bytes;
    team->input = round_up(SW_STATE_BYTES(nranks, slot_bytes), 4096);
    team->output = team->input + round_up(area_bytes, 4096);
    team->segment = round_up(team->output + area_bytes, granule);
    for (team->stride = granule; team->stride < team->segment;)
        team->stride *= 2;
    must(sw_drv.cuMemAddressReserve(&team->base, team->stride * ((size_t)nranks + 1), 0, 0, 0),
         "reserve", 0);
    for (r = 0; r < nranks; r++) {
        const CUmemAllocationProp prop = memory_of(r % devices);

        must(sw_drv.cuDevicePrimaryCtxRetain(&team->context[r], r % devices), "retain", r);
        make_current(team, r);
        must(sw_drv.cuMemCreate(&team->memory[r], team->segment, &prop, 0), "create", r);
        must(sw_drv.cuMemMap(address_of(team, r, 0), team->segment, 0, team->memory[r], 0), "map",
             r);
        allow_all_devices(team, r);
        must(sw_drv.cuMemsetD8(address_of(team, r, 0), 0, team->segment), "clear", r);
        must(sw_drv.cuStreamCreate(&team->stream[r], CU_STREAM_NON_BLOCKING), "stream", r);
        must(sw_drv.cuMemHostAlloc((void **)&team->report[r], sizeof *team->report[r],
                                   CU_MEMHOSTALLOC_PORTABLE),
             "host memory", r);
        memset(team->report[r], 0, sizeof *team->report[r]);
    }
    if (multicast)
        map_multicast(team);
    load_kernels(team);
}

void team_close(struct team *team)
{
    int r, i;

    for (r = 0; r < team->nranks; r++)
        team_wait(team, r);
    for (i = 0; i < team->libraries; i++)
        must(sw_drv.cuLibraryUnload(team->library[i]), "unload", 0);
    if (team->multicast) {
        must(sw_drv.cuMemUnmap(address_of(team, MULTICAST_RANK, 0), team->segment), "unmap", 0);
        for (r = 0; r < team->nranks; r++)
            must(sw_drv.cuMulticastUnbind(team->multicast_object, r, 0, team->segment), "unbind",
                 r);
        must(sw_drv.cuMemRelease(team->multicast_object), "release", 0);
    }
    for (r = 0; r < team->nranks; r++) {
        make_current(team, r);
        must(sw_drv.cuMemFreeHost(team->report[r]), "free host", r);
        must(sw_drv.cuStreamDestroy(team->stream[r]), "destroy", r);
        must(sw_drv.cuMemUnmap(address_of(team, r, 0), team->segment), "unmap", r);
        must(sw_drv.cuMemRelease(team->memory[r]), "release", r);
    }
    must(sw_drv.cuMemAddressFree(team->base, team->stride * ((size_t)team->nranks + 1)), "free", 0);
    must(sw_drv.cuCtxSetCurrent(NULL), "set current", 0);
    for (r = 0; r < team->nranks; r++)
        must(sw_drv.cuDevicePrimaryCtxRelease(r % team->devices), "release", r);
}

void team_read(const struct team *team, int rank, size_t offset, void *data, size_t bytes)
{
    make_current(team, rank);
    if (bytes > 0)
        must(sw_drv.cuMemcpyDtoH(data, address_of(team, rank, offset), bytes), "read", rank);
}

int team_slots_are_empty(const struct team *team, int rank)
{
    const size_t begin = SW_STATE_SLOTS(team->nranks);
    const size_t bytes = SW_STATE_CHANNELS(team->nranks, team->slot_bytes) - begin;
    unsigned char *slots = job_alloc(bytes);
    size_t i;

    team_read(team, rank, begin, slots, bytes);
    for (i = 0; i < bytes && slots[i] == 0; i++)
        ;
    free(slots);
    return i == bytes;
}

void team_write(const struct team *team, int rank, size_t offset, const void *data, size_t bytes)
{
    make_current(team, rank);
    if (bytes > 0)
        must(sw_drv.cuMemcpyHtoD(address_of(team, rank, offset), data, bytes), "write", rank);
}

struct sw_comm_state team_state(const struct team *team, int rank)
{
    struct sw_comm_state state;

    team_read(team, rank, 0, &state, sizeof state);
    return state;
}

void team_set_epochs(const struct team *team, uint32_t epoch, uint32_t rounds)
{
    int r;

    for (r = 0; r < team->nranks; r++) {
        struct sw_comm_state state = team_state(team, r);

        state.epoch = epoch;
        state.rounds = rounds;
        team_write(team, r, 0, &state, sizeof state);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Signed integers use the kernels of the unsigned type, which is the next one, but for those of
 * multicast. */
static int is_shared(symwin_algo algo, symwin_type type)
{
    return (type == SYMWIN_I8 || type == SYMWIN_I32 || type == SYMWIN_I64) &&
           !job_over_multicast(algo);
}

/* The sentinel's kernels serve wide floats by the one-shot with flags too. */
static symwin_algo serving(symwin_algo algo, symwin_type type)
{
    return algo == SYMWIN_ALGO_ONESHOT && type <= SYMWIN_BF16 ? SYMWIN_ALGO_ONESHOT_SENTINEL : algo;
}

static CUkernel find_kernel(const struct team *team, symwin_algo algo, symwin_type type,
                            symwin_op op, int ranks, const char *shape)
{
    static const char *const algos[] = {
#define NAME(name, value, text) [value] = #text,
        SYMWIN_ALGO_LIST(NAME)
#undef NAME
    };
    static const char *const types[] = {
#define NAME(name, value, text, bytes) [value] = #text,
        SYMWIN_TYPE_LIST(NAME)
#undef NAME
    };
    const int multicast = job_over_multicast(algo), shared = is_shared(algo, type);
    const char *const kind = op == SYMWIN_SUM || (op == SYMWIN_AVG && !shared) ? "sum"
                             : !multicast || op == SYMWIN_PREMUL_SUM           ? "other"
                             : op == SYMWIN_MIN                                ? "min"
                             : op == SYMWIN_MAX                                ? "max"
                                                                               : "prod";
    const char *const text = types[shared ? type + 1 : type];
    CUkernel kernel = NULL;
    char name[64], number[16] = "n";
    int i;

    if (ranks > 0)
        snprintf(number, sizeof number, "%d", ranks);
    snprintf(name, sizeof name, "sw_allreduce_%s_%s_%s_%s_%s", algos[serving(algo, type)], text,
             kind, number, shape);
    for (i = 0; i < team->libraries; i++)
        if (sw_drv.cuLibraryGetKernel(&kernel, team->library[i], name) == CUDA_SUCCESS)
            return kernel;
    return NULL;
}

int team_has_kernel(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op)
{
    return find_kernel(team, algo, type, op, 0, "any") != NULL;
}

/* As select.c selects it. */
static CUkernel kernel_of(const struct team *team, const struct team_call *call)
{
    const uint64_t bytes = call->count * reference_bytes(call->type);
    const symwin_algo algo = serving(call->algo, call->type);
    const uint64_t round = algo == SYMWIN_ALGO_ONESHOT_SENTINEL ? 2 * team->slot_bytes
                           : algo == SYMWIN_ALGO_TWOSHOT_PUSH
                               ? team->slot_bytes * (uint64_t)team->nranks
                               : bytes;
    CUkernel kernel = NULL;

    if ((call->in | call->out) % 16 == 0 && bytes <= round)
        kernel = find_kernel(team, call->algo, call->type, call->op, team->nranks,
                             bytes % 16 == 0 ? "whole" : "aligned");
    return kernel != NULL ? kernel : find_kernel(team, call->algo, call->type, call->op, 0, "any");
}

/* A digest of what ranks must agree on; the host's covers more. */
static uint32_t digest_of(const struct team_call *call)
{
    const uint64_t words[] = {(uint64_t)call->algo, (uint64_t)call->type, (uint64_t)call->op,
                              call->count};
    uint64_t digest = 14695981039346656037u;
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        digest = (digest ^ words[i]) * 1099511628211u;
    return (uint32_t)(digest >> 32);
}

static uint64_t scalar_of(const struct team_call *call, int rank)
{
    return reference_scalar(call->type, call->count, rank);
}

/* Odd ranks have their scalars in device memory, where job_prepare() writes them: in place of
 * channels, which there are none of here. */
static size_t scalar_place(const struct team *team, const struct team_call *call)
{
    return SW_STATE_CHANNELS(team->nranks, team->slot_bytes) +
           (call->count * JOB_TYPES + (size_t)call->type) % SW_STATE_LANES * 8;
}

struct sw_kernel_args team_args(const struct team *team, const struct team_call *call, int rank)
{
    struct sw_kernel_args args;

    memset(&args, 0, sizeof args);
    args.base = team->base;
    args.stride = team->stride;
    args.rank = rank;
    args.nranks = team->nranks;
    args.in_offset = team->input + call->in;
    args.out_offset = call->in_place ? args.in_offset : team->output + call->out;
    args.in = address_of(team, rank, args.in_offset);
    args.out = address_of(team, rank, args.out_offset);
    args.count = call->count;
    args.digest = digest_of(call);
    args.op = (uint32_t)call->op;
    if (is_shared(call->algo, call->type) &&
        (call->op == SYMWIN_MIN || call->op == SYMWIN_MAX || call->op == SYMWIN_AVG))
        args.op |= SW_KERNEL_SIGNED;
    args.done = call->done ? address_of(team, rank, offsetof(struct sw_comm_state, done)) : 0;
    args.slot_bytes = team->slot_bytes;
    args.timeout_ns = call->timeout_ns;
    if (call->op == SYMWIN_PREMUL_SUM)
        args.scalar = scalar_of(call, rank);
    if (call->op == SYMWIN_PREMUL_SUM && rank % 2 != 0) {
        args.scalar = address_of(team, rank, scalar_place(team, call));
        args.op |= SW_KERNEL_SCALAR_AT;
    }
    return args;
}

void team_launch_args(struct team *team, const struct team_call *call, int rank,
                      const struct sw_kernel_args *args)
{
    const CUkernel kernel = kernel_of(team, call);
    const unsigned shared = call->algo == SYMWIN_ALGO_TWOSHOT_BULK ? TEAM_SHARED : 0;
    struct sw_kernel_args copy = *args;
    void *params[1];
    CUfunction function;
    CUdeviceptr report;

    make_current(team, rank);
    must(sw_drv.cuMemHostGetDevicePointer(&report, team->report[rank], 0), "report", rank);
    copy.report = report;
    params[0] = &copy;
    must(sw_drv.cuKernelGetFunction(&function, kernel), "function", rank);
    must(sw_drv.cuLaunchKernel(function, call->grid, 1, 1, call->block, 1, 1, shared,
                               team->stream[rank], params, NULL),
         "launch", rank);
}

void team_launch(struct team *team, const struct team_call *call, int rank)
{
    const struct sw_kernel_args args = team_args(team, call, rank);

    team_launch_args(team, call, rank, &args);
}

void team_wait(struct team *team, int rank)
{
    make_current(team, rank);
    must(sw_drv.cuStreamSynchronize(team->stream[rank]), "synchronize", rank);
}

/* ---- checked launches ------------------------------------------------------------------------ */

#define TIMEOUT_NS 20000000000u

const char *const job_algo_names[JOB_ALGOS] = {
    "auto",         "oneshot",     "twoshot", "oneshot_mc",  "twoshot_mc", "oneshot_sentinel",
    "twoshot_push", "twoshot_put", "copies",  "twoshot_bulk"};
static const char *const op_names[JOB_OPS] = {"sum", "prod", "min", "max", "avg", "mulsum"};
const char *const job_type_names[JOB_TYPES] = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2",
                                               "i8",  "u8",  "i32", "u32",  "i64",  "u64"};

int job_over_multicast(int algo)
{
    return algo == SYMWIN_ALGO_ONESHOT_MC || algo == SYMWIN_ALGO_TWOSHOT_MC;
}

int job_exists(const struct team *team, symwin_algo algo, symwin_type type, symwin_op op)
{
    if ((job_over_multicast(algo) && !team->multicast) ||
        algo == SYMWIN_ALGO_COPIES) /* its kernels are parts of a call: allreduce_cases.h */
        return 0;
    return team_has_kernel(team, algo, type, op);
}

void *job_alloc(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);

    if (p == NULL) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return p;
}

void job_fill(const struct job *job, int rank, void *out)
{
    if (job->wild)
        reference_fill_wild(job->call.type, job->seed, rank, 0, job->call.count, out);
    else
        reference_fill(job->call.type, job->call.op, job->seed, rank, 0, job->call.count, out);
}

size_t job_output(const struct team *team, const struct team_call *call)
{
    return call->in_place ? team->input + call->in : team->output + call->out;
}

void job_prepare(const struct team *team, const struct job *job)
{
    const size_t bytes = job->call.count * reference_bytes(job->call.type);
    unsigned char *data = job_alloc(bytes + 2 * JOB_GUARD);
    int r;

    for (r = 0; r < team->nranks; r++) {
        const uint64_t scalar = scalar_of(&job->call, r);

        if (job->call.op == SYMWIN_PREMUL_SUM && r % 2 != 0)
            team_write(team, r, scalar_place(team, &job->call), &scalar, sizeof scalar);
        memset(data, JOB_PATTERN, bytes + 2 * JOB_GUARD);
        team_write(team, r, job_output(team, &job->call) - JOB_GUARD, data, bytes + 2 * JOB_GUARD);
        job_fill(job, r, data);
        team_write(team, r, team->input + job->call.in, data, bytes);
    }
    free(data);
}

unsigned job_grid(const struct job *job, int rank)
{
    return job->call.grid + (job->grids_vary ? (unsigned)rank % 3 : 0);
}

void job_launch(struct team *team, const struct job *job)
{
    struct team_call call = job->call;
    int r;

    for (r = 0; r < team->nranks; r++) {
        call.grid = job_grid(job, r);
        team_launch(team, &call, r);
    }
}

/* Element that differs on `rank`, -1 for none, -2 for a changed guard, -3 for a changed input. */
static int64_t job_check_rank(const struct team *team, const struct job *job, int rank,
                              const void *want)
{
    const struct team_call *call = &job->call;
    const size_t bytes = call->count * reference_bytes(call->type);
    const int rounds_twice = job_over_multicast(call->algo) && call->op == SYMWIN_AVG;
    unsigned char *got = job_alloc(bytes + 2 * JOB_GUARD), *input = job_alloc(bytes);
    int64_t wrong;
    size_t i;

    team_read(team, rank, job_output(team, call) - JOB_GUARD, got, bytes + 2 * JOB_GUARD);
    wrong = rounds_twice ? reference_compare_ulps(call->type, got + JOB_GUARD, want, call->count, 1)
                         : reference_compare(call->type, got + JOB_GUARD, want, call->count);
    if (wrong >= 0) {
        char a[64], b[64];

        printf("# rank %d of %d, element %lld of %zu: got %s, want %s\n", rank, team->nranks,
               (long long)wrong, call->count,
               reference_print(call->type, got + JOB_GUARD, (size_t)wrong, a, sizeof a),
               reference_print(call->type, want, (size_t)wrong, b, sizeof b));
    }
    for (i = 0; i < JOB_GUARD; i++)
        if (got[i] != JOB_PATTERN || got[JOB_GUARD + bytes + i] != JOB_PATTERN)
            wrong = -2;
    if (!call->in_place) {
        team_read(team, rank, team->input + call->in, got, bytes);
        job_fill(job, rank, input);
        if (memcmp(got, input, bytes) != 0)
            wrong = -3;
    }
    free(got);
    free(input);
    return wrong;
}

int job_check(const struct team *team, const struct job *job)
{
    const struct team_call *call = &job->call;
    const size_t bytes = call->count * reference_bytes(call->type);
    char *inputs = job_alloc(bytes * (size_t)team->nranks), *want = job_alloc(bytes);
    const void *of_rank[TEAM_MAX_RANKS];
    int r, ok = 1;

    for (r = 0; r < team->nranks; r++) {
        job_fill(job, r, inputs + bytes * (size_t)r);
        of_rank[r] = inputs + bytes * (size_t)r;
        if (call->op == SYMWIN_PREMUL_SUM)
            reference_premultiply(call->type, scalar_of(call, r), inputs + bytes * (size_t)r,
                                  call->count);
    }
    reference_allreduce(call->type, call->op, team->nranks, of_rank, want, call->count);
    for (r = 0; r < team->nranks && ok; r++) {
        const uint32_t code = __atomic_load_n(&team->report[r]->code, __ATOMIC_ACQUIRE);
        const int64_t wrong = job_check_rank(team, job, r, want);

        ok = wrong == -1 && code == SW_KERNEL_OK;
        if (!ok)
            printf(
                "# %s %s %s, %zu elements at %zu and %zu%s, grid %u, block %u: rank %d, code %u, "
                "%lld\n",
                job_algo_names[call->algo], job_type_names[call->type], op_names[call->op],
                call->count, call->in, call->out, call->in_place ? " in place" : "", call->grid,
                call->block, r, code, (long long)wrong);
    }
    free(inputs);
    free(want);
    return ok;
}

int job_run(struct team *team, const struct job *job)
{
    int r;

    job_prepare(team, job);
    job_launch(team, job);
    for (r = 0; r < team->nranks; r++)
        team_wait(team, r);
    return job_check(team, job);
}

struct job job_of(symwin_algo algo, symwin_type type, symwin_op op, size_t count)
{
    struct job job;

    memset(&job, 0, sizeof job);
    job.call.algo = algo;
    job.call.type = type;
    job.call.op = op;
    job.call.count = count;
    job.call.in = JOB_GUARD;
    job.call.out = JOB_GUARD;
    job.call.grid = 2;
    job.call.block = 32;
    job.call.timeout_ns = TIMEOUT_NS;
    job.seed = count * 31 + (uint64_t)op;
    return job;
}
