/* All-to-all of unequal parts that fails: wrong arguments are refused; counts that differ, parts
 * past a buffer, other calls, and ranks that do not come are named, and nothing is stored outside
 * the outputs. Also runs on GPUs (tests/gpu/both.txt). */
#include "kernels/table_layout.h"
#include "parts.h"
#include "user_memory.h"

/* ---- arguments ---- */

enum { ONE = 1 << 10 };

static symwin_status call(const struct rank *r, const void *in, const symwin_parts *in_parts,
                          void *out, const symwin_parts *out_parts)
{
    return symwin_alltoallv(r->comm, in, in_parts, out, out_parts, SYMWIN_U32, r->streams[0]);
}

/* Parts that overlap are refused in an output. */
static void apart(const struct rank *r, const symwin_parts *good, const uint64_t *counts)
{
    const uint64_t first[PARTS_RANKS] = {4, 0, 4}, inside[PARTS_RANKS] = {8, 10, 0};
    const symwin_parts empty = {first, inside, 0, 0};
    uint64_t places[PARTS_RANKS] = {0};
    const symwin_parts one = {counts, places, 0, 0};
    symwin_collective_info info;
    int p;

    if (r->nranks == 1)
        return;
    host_must(symwin_alltoallv_query(r->comm, r->in, &one, r->out, good, SYMWIN_U32, NULL, &info),
              "one part for all ranks");
    host_must(
        symwin_alltoallv_query(r->comm, r->in, &empty, r->out, &empty, SYMWIN_U32, NULL, &info),
        "a part without elements, in the middle of another");
    for (p = 0; p < r->nranks; p++)
        places[p] = 4 * (uint64_t)(r->nranks - 1 - p); /* they touch */
    host_must(symwin_alltoallv_query(r->comm, r->in, good, r->out, &one, SYMWIN_U32, NULL, &info),
              "parts in another order");
    places[0]--;
    refused(r, call(r, r->in, good, r->out, &one), SYMWIN_INVALID,
            "in out_parts, 4 elements from element | on for rank 1 overlap 4 from element ");
    refused(r, call(r, r->in, &one, r->in, &one), SYMWIN_INVALID, "in out_parts, 4 elements from");
    for (p = 0; p < r->nranks; p++)
        places[p] = 4 * (uint64_t)p - (p == r->nranks - 1); /* the last one overlaps */
    refused(r, call(r, r->in, good, r->out, &one), SYMWIN_INVALID, "in out_parts, 4 elements from");
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, &one, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "symwin_allgatherv: in parts, 4 elements from element ");
}

/* An array that was freed: alone, and in a group, of which nothing is launched then. */
static void freed_arrays(const struct rank *r, const uint64_t *device)
{
    symwin_parts freed = {NULL, device, 4 * (uint64_t)r->nranks, 1};
    void *array;

    host_must(symwin_mem_alloc(r->device, 4096, 0, &array), "symwin_mem_alloc");
    freed.counts = array;
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    host_must(symwin_allgatherv(r->comm, r->in, r->out, &freed, SYMWIN_U32, r->streams[0]),
              "symwin_allgatherv");
    host_must(symwin_mem_free(array), "symwin_mem_free");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            "parts->counts (0x|) was freed|; nothing of the group was launched");
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, &freed, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "parts->counts (0x|) was freed");
}

/* The driver may give one rank's freed address to another rank of the process. */
static pthread_mutex_t allocating = PTHREAD_MUTEX_INITIALIZER;

/* The same with memory of the driver, about which the thread has asked before: the array of counts,
 * or that of displacements, while the counts are there. */
static void freed_elsewhere(const struct rank *r, const uint64_t *device, int places)
{
    symwin_parts freed = {NULL, device, 4 * (uint64_t)r->nranks, 1};
    CUdeviceptr array, other;
    struct sw_scope scope;

    pthread_mutex_lock(&allocating);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuMemAlloc(&array, 4096), "cuMemAlloc");
    host_must_cuda(sw_drv.cuMemAlloc(&other, 4096), "cuMemAlloc");
    memcpy(&freed.counts, places ? &other : &array, sizeof array);
    if (places)
        memcpy(&freed.displacements, &array, sizeof array);
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    host_must(symwin_allgatherv(r->comm, r->in, r->out, &freed, SYMWIN_U32, r->streams[0]),
              "symwin_allgatherv");
    host_must_cuda(sw_drv.cuMemFree(array), "cuMemFree");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            places ? "parts->displacements (0x|)" : "parts->counts (0x|)");
    host_must_cuda(sw_drv.cuMemFree(other), "cuMemFree");
    sw_scope_leave(&scope);
    pthread_mutex_unlock(&allocating);
}

/* A buffer of the driver's memory that is freed in the group: nothing is launched. */
static void freed_buffer(const struct rank *r, int which)
{
    const uint32_t launches = job_launches(r);
    uint64_t counts[PARTS_RANKS];
    const symwin_parts parts = {counts, NULL, 0, 0};
    struct sw_scope scope;
    CUdeviceptr at;
    void *memory;
    int p;

    for (p = 0; p < r->nranks; p++)
        counts[p] = 4;
    pthread_mutex_lock(&allocating);
    host_must(sw_scope_enter(r->device, &scope), "scope");
    host_must_cuda(sw_drv.cuMemAlloc(&at, 4096), "cuMemAlloc");
    memory = (void *)(uintptr_t)at;
    host_must(symwin_group_begin(), "symwin_group_begin");
    host_must(symwin_barrier(r->comm, r->streams[0]), "symwin_barrier");
    host_must(call(r, which == 0 ? memory : r->in, &parts, which == 1 ? memory : r->out, &parts),
              "symwin_alltoallv");
    host_must_cuda(sw_drv.cuMemFree(at), "cuMemFree");
    refused(r, symwin_group_end(), SYMWIN_INVALID,
            which == 0 ? "symwin_alltoallv: in (0x|) was freed"
                       : "symwin_alltoallv: out (0x|) was freed");
    sw_scope_leave(&scope);
    pthread_mutex_unlock(&allocating);
    must_equal(job_launches(r), launches, "launches", r->rank);
}

/* An array in memory of another device. */
static void elsewhere(const struct rank *r, const uint64_t *device)
{
    symwin_parts parts = {NULL, device, 4 * (uint64_t)r->nranks, 1};
    void *array;

    if (harness_device_count() == 1)
        return;
    host_must(symwin_mem_alloc((r->device + 1) % harness_device_count(), 4096, 0, &array),
              "symwin_mem_alloc");
    parts.counts = array;
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, &parts, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "parts->counts (0x|) is memory of device |; pass memory of device");
    host_must(symwin_mem_free(array), "symwin_mem_free");
}

/* Arrays in device memory that have fewer elements than there are ranks: of any allocator. The last
 * element of the memory is the array's first. */
static void short_arrays(const struct rank *r, const struct arrays *a)
{
    static const struct span_cuts cuts = {.cuts = {{2, 1}}};
    const uint64_t *ends[] = {(const uint64_t *)(const void *)(a->device + ARRAYS_BYTES), NULL,
                              NULL};
    const uint64_t *const whole = (const uint64_t *)(const void *)a->device;
    symwin_parts bad, good = {whole, whole, 100, 1};
    symwin_collective_info info;
    CUdeviceptr plain = 0;
    struct span s;
    size_t i;

    if (r->nranks == 1)
        return;
    pthread_mutex_lock(&allocating);
    span_make(&s, r->device, &cuts);
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 4096), "cuMemAlloc");
    pthread_mutex_unlock(&allocating);
    ends[1] = (const uint64_t *)(uintptr_t)(plain + 4096);
    ends[2] = (const uint64_t *)span_at(&s, s.bytes);
    for (i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        bad = (symwin_parts){ends[i] - 1, whole, 100, 1};
        refused(r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
                "symwin_alltoallv: in_parts->counts (0x|) has 8 bytes to the end of its "
                "allocation; pass an array of |elements, one for each rank");
        bad = (symwin_parts){whole, ends[i] - 1, 100, 1};
        refused(r, symwin_allgatherv(r->comm, r->in, r->out, &bad, SYMWIN_U32, NULL),
                SYMWIN_INVALID, "symwin_allgatherv: parts->displacements (0x|) has 8 bytes to ");
        bad = (symwin_parts){ends[i] - r->nranks, ends[i] - 1, 100, 1}; /* the first one is right */
        refused(r, symwin_allgatherv(r->comm, r->in, r->out, &bad, SYMWIN_U32, NULL),
                SYMWIN_INVALID, "symwin_allgatherv: parts->displacements (0x|) has 8 bytes to ");
        good = (symwin_parts){ends[i] - r->nranks, ends[i] - r->nranks, 100, 1};
        host_must(
            symwin_alltoallv_query(r->comm, r->in, &good, r->out, &good, SYMWIN_U32, NULL, &info),
            "arrays at the end of their allocation");
    }
    good.counts = (const uint64_t *)span_at(&s, GRANULE) - 1;
    host_must(symwin_alltoallv_query(r->comm, r->in, &good, r->out, &good, SYMWIN_U32, NULL, &info),
              "an array on two allocations");
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    span_free(&s);
}

/* Parts that pass the end of their buffer's allocation, behind which there is another one. With
 * arrays in device memory, the room may not pass it. */
static void past_memory(const struct rank *r, const struct arrays *a)
{
    const uint64_t *const device = (const uint64_t *)(const void *)a->device;
    const uint64_t bytes = 1024, elements = bytes / 4, pattern = 0x5a5a5a5a5a5a5a5a;
    uint64_t counts[PARTS_RANKS] = {0}, first[PARTS_RANKS] = {0}, now = 0;
    const symwin_parts parts = {counts, NULL, 0, 0}, places = {counts, first, 0, 0};
    symwin_parts behind = {device, device, elements, 1};
    symwin_collective_info info;
    void *memory[2];
    char *small, *next;
    int p;

    for (p = 0; p < 2; p++)
        host_must(symwin_mem_alloc(r->device, bytes, 0, &memory[p]), "symwin_mem_alloc");
    small = memory[0] < memory[1] ? memory[0] : memory[1];
    next = memory[0] < memory[1] ? memory[1] : memory[0];
    for (p = 0; p < (int)(bytes / sizeof pattern); p++)
        host_must(host_copy(r->device, next + 8 * p, &pattern, sizeof pattern), "copy");
    counts[r->nranks - 1] = elements;
    host_must(
        symwin_alltoallv_query(r->comm, r->in, &parts, small, &parts, SYMWIN_U32, NULL, &info),
        "parts of all of it");
    counts[r->nranks - 1] = elements + 1;
    refused(r, call(r, r->in, &parts, small, &parts), SYMWIN_INVALID,
            "symwin_alltoallv: rank |'s 257 elements (1028 bytes) at out (0x|) pass the end of its "
            "allocation, which has 1024 bytes from there; pass fewer, or a larger buffer");
    refused(r, call(r, small, &parts, r->out, &parts), SYMWIN_INVALID,
            "257 elements (1028 bytes) at in (0x|which has 1024 bytes");
    refused(r, call(r, r->in, &parts, small + 1000, &parts), SYMWIN_INVALID,
            "257 elements (1028 bytes) at out (0x|which has 24 bytes");
    refused(r, symwin_allgatherv(r->comm, r->in, small, &parts, SYMWIN_U32, r->streams[0]),
            SYMWIN_INVALID, "symwin_allgatherv: rank |257 elements (1028 bytes) at out (0x|");
    refused(r,
            symwin_reduce_scatterv(r->comm, small, &parts, r->out, SYMWIN_U32, SYMWIN_SUM,
                                   r->streams[0]),
            SYMWIN_INVALID, "symwin_reduce_scatterv: rank |257 elements (1028 bytes) at in (0x|");
    counts[r->nranks - 1] = 0;
    counts[r->rank] = elements / 2 + 1; /* the part is in it, and ends behind it */
    first[r->rank] = elements / 2;
    refused(r, call(r, r->in, &places, small, &places), SYMWIN_INVALID,
            "257 elements (1028 bytes) at out (0x|which has 1024 bytes");
    counts[r->rank] = elements + 1;
    refused(r, symwin_allgatherv(r->comm, small, r->out, &parts, SYMWIN_U32, r->streams[0]),
            SYMWIN_INVALID, "257 elements (1028 bytes) at in (0x|which has 1024 bytes");
    refused(r,
            symwin_reduce_scatterv(r->comm, r->in, &parts, small, SYMWIN_U32, SYMWIN_SUM,
                                   r->streams[0]),
            SYMWIN_INVALID, "257 elements (1028 bytes) at out (0x|which has 1024 bytes");
    host_must(
        symwin_alltoallv_query(r->comm, r->in, &behind, small, &behind, SYMWIN_U32, NULL, &info),
        "a room of all of it");
    behind.room++;
    refused(r, call(r, r->in, &behind, small, &behind), SYMWIN_INVALID,
            "257 elements (1028 bytes) at out (0x|which has 1024 bytes");
    for (p = 0; p < (int)(bytes / sizeof now); p++) {
        host_must(host_copy(r->device, &now, next + 8 * p, sizeof now), "copy");
        must_be(now == pattern, "the buffer behind it is as it was", r->rank);
    }
    for (p = 0; p < 2; p++)
        host_must(symwin_mem_free(memory[p]), "symwin_mem_free");
}

static void arguments(const struct rank *r, const struct arrays *a)
{
    uint64_t *device = (uint64_t *)(void *)a->device;
    uint64_t counts[PARTS_RANKS] = {0}, more[PARTS_RANKS] = {0}, far[PARTS_RANKS] = {0};
    symwin_parts good = {counts, NULL, 0, 0}, bad = good;
    const symwin_collective_options put = {.size = sizeof put, .algo = SYMWIN_ALGO_PUT};
    symwin_collective_info info;
    int p;

    for (p = 0; p < r->nranks; p++)
        counts[p] = more[p] = 4;
    more[r->rank] = 5;
    far[0] = UINT64_MAX;
    refused(r, symwin_alltoallv(NULL, r->in, &good, r->out, &good, SYMWIN_U32, NULL),
            SYMWIN_INVALID, "symwin_alltoallv: comm is NULL");
    refused(r, call(r, r->in, NULL, r->out, &good), SYMWIN_INVALID,
            "in_parts is NULL; pass a symwin_parts");
    refused(r, call(r, r->in, &good, r->out, NULL), SYMWIN_INVALID, "out_parts is NULL");
    bad.counts = NULL;
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "out_parts->counts is NULL; pass an array of an element for each rank");
    refused(r, call(r, NULL, &good, r->out, &good), SYMWIN_INVALID, "in is NULL");
    refused(r, call(r, r->in, &good, NULL, &good), SYMWIN_INVALID, "out is NULL");
    refused(r, call(r, r->in, &good, r->out + 2, &good), SYMWIN_INVALID, "not aligned to u32");
    refused(r, call(r, r->in, &good, r->in + 4, &good), SYMWIN_INVALID, "overlap in part");
    bad.counts = more;
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "sends 4 elements to itself and receives 5; pass equal counts");
    bad = (symwin_parts){counts, NULL, 4 * (uint64_t)r->nranks - 1, 0};
    refused(r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
            "in in_parts has 4 elements from element |and the buffer has room for ");
    bad = (symwin_parts){counts, far, 0, 0};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "part for rank 0 in out_parts has 4 elements from element 18446744073709551615");
    for (p = 0; p < r->nranks; p++)
        far[p] = 4 * (uint64_t)p;
    far[0] = 4096;
    refused(r, call(r, r->in, &good, r->in, &bad), SYMWIN_INVALID,
            "in place, in_parts and out_parts must be equal, and differ for rank 0");
    /* The part for rank 0 is the last one in memory. */
    refused(r, call(r, r->out + 4096 * 4, &good, r->out, &bad), SYMWIN_INVALID, "overlap in part");
    apart(r, &good, counts);
    bad = (symwin_parts){device, device, 4096 + 1, 1};
    refused(r, call(r, r->out + 4096 * 4, &good, r->out, &bad), SYMWIN_INVALID, "overlap in part");
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, NULL, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "symwin_allgatherv: parts is NULL");
    refused(r, symwin_allgatherv(r->comm, NULL, r->out, &good, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "in is NULL");
    refused(r, symwin_allgatherv(r->comm, r->out + 4, r->out, &good, SYMWIN_U32, NULL),
            SYMWIN_INVALID, "overlap in part; in place, in is this rank's part of out");
    bad = (symwin_parts){device, device, 100, 1};
    refused(r, symwin_allgatherv(r->comm, counts, r->out, &bad, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "in (0x|is not device memory");
    refused(r,
            symwin_alltoallv_with(r->comm, r->in, &good, r->out, &good, SYMWIN_U32, &put,
                                  r->streams[0]),
            SYMWIN_UNSUPPORTED,
            "symwin_alltoallv_with: there is no algorithm put for it; pass auto");
    refused(r, symwin_alltoallv_query(r->comm, r->in, &good, r->out, &good, SYMWIN_U32, NULL, NULL),
            SYMWIN_INVALID,
            "symwin_alltoallv_query: info is NULL; pass the address of a symwin_collective_info");
    refused(r, symwin_allgatherv_query(r->comm, r->in, r->out, NULL, SYMWIN_U32, NULL, &info),
            SYMWIN_INVALID, "symwin_allgatherv_query: parts is NULL");
    refused(
        r,
        symwin_alltoallv_query(r->comm, r->in, &good, r->out, &good, (symwin_type)12, NULL, &info),
        SYMWIN_INVALID, "symwin_alltoallv_query: there is no type 12");
    refused(r,
            symwin_alltoallv(r->comm, r->in, &good, r->out, &good, (symwin_type)12, r->streams[0]),
            SYMWIN_INVALID, "there is no type 12");
    bad = (symwin_parts){counts, counts, 100, 1};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "out_parts->counts (0x|is not device memory");
    bad = (symwin_parts){device, NULL, 100, 1};
    refused(r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
            "in_parts->displacements is NULL, and must be an array in device memory");
    bad.displacements = counts;
    refused(r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
            "in_parts->displacements (0x|is not device memory");
    bad.displacements = (const uint64_t *)(const void *)(a->device + 4);
    refused(
        r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
        "in_parts->displacements is 0x|, which is not aligned to 8 bytes; pass an address that is");
    bad = (symwin_parts){device, counts, 100, 0};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "symwin_alltoallv: out_parts->counts (0x|) is device memory; set "
            "out_parts->on_device, or pass host memory");
    bad = (symwin_parts){counts, device, 100, 0};
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, &bad, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "symwin_allgatherv: parts->displacements (0x|) is device memory; set parts->on_device");
    short_arrays(r, a);
    freed_arrays(r, device);
    freed_elsewhere(r, device, 0);
    freed_elsewhere(r, device, 1);
    elsewhere(r, device);
    far[0] = UINT64_MAX - 1;
    bad = (symwin_parts){more, far, 0, 0};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "elements from element 18446744073709551614 on, more than any memory holds");
    far[0] = (uint64_t)1 << 46; /* 2^48 bytes behind their element 1 */
    bad = (symwin_parts){more, far, 0, 0};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "symwin_alltoallv: the part for rank 0 in out_parts has |elements from element "
            "70368744177664 on, more than any memory holds; pass parts that are in the buffer");
    bad = (symwin_parts){device, device, ((uint64_t)1 << 46) + 1, 1};
    refused(r, call(r, r->in, &good, r->out, &bad), SYMWIN_INVALID,
            "out_parts->room is 70368744177665, more than any memory holds; pass the elements of");
    far[0] = (uint64_t)1 << 62;
    bad = (symwin_parts){far, NULL, UINT64_MAX / 2, 0}; /* 2^62 elements of 4 bytes wrap */
    refused(r, symwin_allgatherv(r->comm, r->in, r->out, &bad, SYMWIN_U32, NULL), SYMWIN_INVALID,
            "parts->room is 9223372036854775807, more than any memory holds");
    bad = (symwin_parts){device, device, UINT64_MAX, 1};
    refused(r, call(r, r->in, &bad, r->out, &good), SYMWIN_INVALID,
            "in_parts->room is 18446744073709551615, more than any memory holds");
}

/* As many ranks as a kernel's arguments have room for, and one more; and one more than those whose
 * rows are stored ahead by one launch. */
#if defined(__SANITIZE_THREAD__)
static const int many_ranks[] = {SW_TABLE_RANKS, SW_TABLE_RANKS + 1};
#else
static const int many_ranks[] = {SW_TABLE_RANKS, SW_TABLE_RANKS + 1, SW_ROWS_MOST / 2 + 1};
#endif

static void many(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct parts_job j;
    struct arrays a;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    j = parts_job_of(&r, 5, 0, ROOM);
    j.on_device[0] = j.on_device[1] = 0;
    parts_prepare(&r, &j, &a);
    host_must(parts_call(&r, &j, &a, 0), "symwin_alltoallv");
    job_wait(&r, 0);
    host_must(symwin_comm_check(r.comm), "symwin_comm_check");
    must_be(parts_right(&r, &j), "a call of many ranks", rank);
    arrays_close(&a);
    close_rank(p, &r);
}

/* ---- calls that differ, and ranks that are late ---------------------------------------------- */

enum oddity {
    SAME,
    MORE,
    LESS,
    MUCH,
    OWN,
    PAST_IN,
    PAST_OUT,
    NULL_IN,
    NULL_OUT,
    COLLECTIVE,
    TYPE,
    LATE
};

enum { MANY = SW_TABLE_RANKS + 1 };

struct row {
    enum oddity oddity;
    int ranks, on_device, windows;
    int odd;
};

/* Elements that each rank has for each; of as many as with windows, parts go straight into them. */
static int each_of(const struct row *row)
{
    return row->ranks == MANY ? 40 : row->windows ? 200 : 100;
}

/* On GPUs, parts that go straight are longer. */
static int goes_straight(const struct row *row)
{
    return row->windows && sw_driver_is_emulated();
}

static const struct oddity_text {
    const char *name;
    symwin_status status;
} texts[] = {
    [MORE] = {"a rank that sends more", SYMWIN_MISMATCH},
    [LESS] = {"a rank that sends nothing", SYMWIN_MISMATCH},
    [MUCH] = {"a rank that sends many rounds", SYMWIN_MISMATCH},
    [OWN] = {"a rank that sends itself more", SYMWIN_MISMATCH},
    [PAST_IN] = {"a part past the end of in", SYMWIN_MISMATCH},
    [PAST_OUT] = {"a part past the end of out", SYMWIN_MISMATCH},
    [NULL_IN] = {"elements of an in that is NULL", SYMWIN_MISMATCH},
    [NULL_OUT] = {"elements of an out that is NULL", SYMWIN_MISMATCH},
    [COLLECTIVE] = {"a rank that calls all-reduce", SYMWIN_MISMATCH},
    [TYPE] = {"another type", SYMWIN_MISMATCH},
    [LATE] = {"a late rank", SYMWIN_TIMEOUT},
};

/* What the ranks say of an odd call: between rank `odd`, which made it, and rank `other`. */
static void words_of(const struct row *row, int odd, int other, char words[200])
{
    const int each = each_of(row);

    words[0] = '\0';
    switch (row->oddity) {
    case SAME:
        break;
    case MORE:
    case LESS:
    case MUCH:
    case OWN:
        snprintf(words, 200,
                 "a count differs: rank %d sends %d elements to rank %d, which receives %d from it",
                 odd,
                 row->oddity == MORE   ? each + 1
                 : row->oddity == LESS ? 0
                                       : 900,
                 other, each);
        break;
    case PAST_IN:
        snprintf(words, 200,
                 "the part for rank %d in in of rank %d ends at element %d, and the buffer has "
                 "room for 1024",
                 other, odd, ONE + 1 + each);
        break;
    case PAST_OUT:
        snprintf(words, 200,
                 "the part from rank %d in out of rank %d ends beyond any memory, and "
                 "the buffer has room for 1024",
                 other, odd);
        break;
    case NULL_IN:
    case NULL_OUT:
        snprintf(words, 200, "%s of rank %d is NULL, and its part for rank ",
                 row->oddity == NULL_IN ? "in" : "out", odd);
        break;
    case COLLECTIVE:
        snprintf(words, 200,
                 "the call differs: rank %d called symwin_allreduce(), rank %d called "
                 "symwin_alltoallv()",
                 odd, other);
        break;
    case TYPE:
        snprintf(words, 200, "type differs: rank %d passed f32, rank %d passed u32", odd, other);
        break;
    case LATE:
        snprintf(words, 200, "waited 100 ms for rank %d", odd);
        break;
    }
}

/* As many elements for each rank, but for what is odd: between this rank and `other`. */
static symwin_status odd_call(const struct rank *r, const struct row *row, const struct arrays *to,
                              int odd, int other)
{
    const uint64_t *device = (const uint64_t *)(const void *)to->device;
    struct arrays a = *to;
    symwin_parts in = {a.host[0], a.host[1], ONE, 0}, out = {a.host[2], a.host[3], ONE, 0};
    const uint64_t each = (uint64_t)each_of(row);
    int p;

    for (p = 0; p < r->nranks; p++) {
        a.host[0][p] = a.host[2][p] = each;
        a.host[1][p] = a.host[3][p] = (uint64_t)p * each;
    }
    if (odd && row->oddity == MORE)
        a.host[0][other] = each + 1;
    if (odd && row->oddity == LESS)
        a.host[0][other] = 0;
    if (odd && (row->oddity == MUCH || row->oddity == OWN)) {
        a.host[0][other] = 900;
        a.host[1][other] = 0;
    }
    if (odd && row->oddity == PAST_IN)
        a.host[1][other] = ONE + 1;
    if (odd && row->oddity == PAST_OUT)
        a.host[3][other] = UINT64_MAX - 50;
    if (odd && row->oddity == COLLECTIVE)
        return symwin_allreduce(r->comm, r->in, r->out + GUARD, 100, SYMWIN_U32, SYMWIN_SUM,
                                r->streams[0]);
    if (row->on_device) {
        host_must(host_copy(r->device, a.device, a.host, ARRAYS_BYTES), "arrays");
        in = (symwin_parts){device, device + PARTS_RANKS, ONE, 1};
        out = (symwin_parts){device + 2 * PARTS_RANKS, device + 3 * PARTS_RANKS, ONE, 1};
    }
    return symwin_alltoallv(r->comm, odd && row->oddity == NULL_IN ? NULL : r->in, &in,
                            odd && row->oddity == NULL_OUT ? NULL : r->out + GUARD, &out,
                            odd && row->oddity == TYPE ? SYMWIN_F32 : SYMWIN_U32, r->streams[0]);
}

static void differs(struct processes *p, struct rank *r, const struct row *row,
                    const struct arrays *a)
{
    const struct oddity_text *is = &texts[row->oddity];
    const int odd = r->rank == row->odd;
    const int other = row->oddity == OWN ? row->odd : row->odd == 0 ? 1 : 0;
    const int each = each_of(row);
    symwin_window *window = NULL;
    size_t i, wrong = 0;
    symwin_status status;
    char words[200];
    int q;

    words_of(row, row->odd, other, words);
    memset(r->host, FILLED, ROOM);
    host_must(host_copy(r->device, r->out, r->host, ROOM), "fill");
    if (row->windows)
        host_must(symwin_window_register(r->comm, r->out, ROOM, 0, &window),
                  "symwin_window_register");
    processes_barrier(p);
    if (row->oddity == LATE && !odd) {
        host_must(odd_call(r, row, a, 0, other), "a call");
        job_wait(r, 0);
    }
    if (row->oddity == LATE)
        processes_barrier(p);
    if (odd || row->oddity != LATE)
        host_must(odd_call(r, row, a, odd, other), "a call");
    processes_barrier(p);
    job_wait(r, 0);
    (void)symwin_comm_check(r->comm);
    processes_barrier(p);
    status = processes_note(p, r->rank, symwin_comm_check(r->comm));
    /* The kernel of a rank that is not one of the two may have succeeded, as may any that has got
     * what it needs. Then its host knows from the others that their calls differ. */
    if (row->oddity <= NULL_OUT && !odd &&
        (r->rank != other || row->oddity == PAST_OUT || row->oddity == NULL_OUT))
        words[0] = '\0';
#if defined(__SANITIZE_THREAD__)
    if (host_error_has("the arguments differ"))
        words[0] = '\0';
#endif
    refused(r, status, is->status, words);
    host_must(host_copy(r->device, r->host, r->out, ROOM), "read");
    for (i = 0; i < ROOM; i++)
        if (i < GUARD || i >= GUARD + (size_t)(r->nranks * each) * 4)
            wrong += r->host[i] != FILLED;
    /* Only the digest beside a place says that the call there has another type. */
    for (q = 0; q < r->nranks && row->oddity == TYPE && goes_straight(row); q++)
        for (i = 0; i < (size_t)each * 4 && q != r->rank && (odd || q == row->odd); i++)
            wrong += r->host[GUARD + (size_t)(q * each) * 4 + i] != FILLED;
    must_be(wrong == 0, "nothing is written past what is received", r->rank);
    processes_barrier(p);
}

static void body(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct arrays a;

    open_rank(p, &r, row->oddity == LATE ? 100 : WAIT_MS);
    arrays_open(&r, &a);
    if (row->oddity != SAME) {
        differs(p, &r, row, &a);
    } else {
        const struct parts_job j = parts_job_of(&r, 3, 0, ROOM / 2);

        arguments(&r, &a);
        past_memory(&r, &a);
        processes_barrier(p); /* nobody else allocates */
        freed_buffer(&r, 0);
        freed_buffer(&r, 1);
        processes_barrier(p);
        parts_prepare(&r, &j, &a); /* the communicator still works */
        host_must(parts_call(&r, &j, &a, 0), "symwin_alltoallv");
        job_wait(&r, 0);
        host_must(symwin_comm_check(r.comm), "symwin_comm_check");
        must_be(parts_right(&r, &j), "a call", r.rank);
    }
    arrays_close(&a);
    close_rank(p, &r);
}

/* A router's counts pass the room, and nothing of `in`, which ends there, is read for them. Rank 1,
 * whose part it is, comes last, and so says what is wrong. */
static void passes_room(struct processes *p, int rank)
{
    static const struct span_cuts cuts = {.cuts = {{1, 1}}}; /* nothing is mapped behind it */
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_parts parts = {.room = 64, .on_device = 1}; /* no large part: it is sent unchecked */
    struct arrays a;
    struct span s;
    uint64_t q;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    span_make(&s, r.device, &cuts);
    for (q = 0; q < (uint64_t)r.nranks; q++) {
        a.host[0][q] = q == 1 ? 2000 : 4;
        a.host[1][q] = q * 4;
    }
    host_must(host_copy(r.device, a.device, a.host, ARRAYS_BYTES), "arrays");
    parts.counts = (const uint64_t *)(const void *)a.device;
    parts.displacements = parts.counts + PARTS_RANKS;
    processes_barrier(p);
    if (rank == 1)
        host_pause_ms(20);
    host_must(symwin_allgatherv(r.comm, span_at(&s, s.bytes - 16), r.out, &parts, SYMWIN_U8,
                                r.streams[0]),
              "symwin_allgatherv");
    job_wait(&r, 0);
    processes_barrier(p);
    must_be(symwin_comm_check(r.comm) == SYMWIN_MISMATCH && host_error_has("in out of|room for 64"),
            "counts that pass the room", rank);
    processes_barrier(p);
    span_free(&s);
    arrays_close(&a);
    close_rank(p, &r);
}

/* Rank 1's part is longer than what is left of its `in`, in an allocation or a window; the others'
 * fit. A part that is as long goes. */
static void passes_input(struct processes *p, int rank)
{
    const struct row *row = places_arg(p);
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    const uint64_t left = 4;
    symwin_parts parts = {.room = 4096, .on_device = 1};
    symwin_window *windows[2] = {NULL, NULL};
    void *small;
    char *in;
    struct arrays a;
    uint64_t q;
    int turn;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    host_must(symwin_mem_alloc(r.device, 1024, 0, &small), "symwin_mem_alloc");
    in = (char *)small + 1024 - left * 4;
    if (row->windows) {
        host_must(symwin_window_register(r.comm, r.in, 4096, 0, &windows[0]), "register");
        host_must(symwin_window_register(r.comm, r.out, ROOM, 0, &windows[1]), "register");
        in = (char *)r.in + 4096 - left * 4;
    }
    parts.counts = (const uint64_t *)(const void *)a.device;
    parts.displacements = parts.counts + PARTS_RANKS;
    for (turn = 0; turn < 2; turn++) {
        for (q = 0; q < (uint64_t)r.nranks; q++) {
            a.host[0][q] = q == 1 && turn == 1 ? (uint64_t)row->odd : left;
            a.host[1][q] = q == 2 ? 0 : q == 1 ? 1024 : 512;
        }
        host_must(host_copy(r.device, a.device, a.host, ARRAYS_BYTES), "arrays");
        processes_barrier(p);
        host_must(symwin_allgatherv(r.comm, in, r.out, &parts, SYMWIN_U32, r.streams[0]),
                  "symwin_allgatherv");
        job_wait(&r, 0);
        processes_barrier(p);
        if (turn == 0)
            host_must(symwin_comm_check(r.comm), "a part to the end of its buffer");
    }
    refused(&r, symwin_comm_check(r.comm), SYMWIN_MISMATCH,
            "the part for rank |in in of rank 1 ends at element |, and the buffer has room for 4;");
    processes_barrier(p);
    arrays_close(&a);
    close_rank(p, &r);
    host_must(symwin_mem_free(small), "symwin_mem_free");
}

/* A part of rank 0 passes its room, and rank 2, which makes no call, is told by the others. */
static void told_by_others(struct processes *p, int rank)
{
    static const struct row row = {.oddity = PAST_OUT, .ranks = 3, .on_device = 1};
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    struct arrays a;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    processes_barrier(p);
    if (rank < 2)
        host_must(odd_call(&r, &row, &a, rank == 0, 1), "a call");
    processes_barrier(p); /* rank 0's kernel may fail before rank 1 has called */
    job_wait(&r, 0);
    (void)symwin_comm_check(r.comm);
    processes_barrier(p);
    refused(&r, symwin_comm_check(r.comm), SYMWIN_MISMATCH,
            "the part from rank |in out of rank 0 ends beyond any memory");
    processes_barrier(p);
    arrays_close(&a);
    close_rank(p, &r);
}

/* Rank 1 sends nothing, rank 2 receives nothing, and nobody else knows: buffers are NULL. Then rank
 * 1 has elements to gather, and still no buffer. */
static void null_buffers(struct processes *p, int rank)
{
    struct rank r = {.nranks = p->count, .rank = rank, .device = rank % harness_device_count()};
    symwin_parts parts[2] = {{.room = ONE, .on_device = 1}, {.room = ONE, .on_device = 1}};
    const void *in;
    struct arrays a;
    int b, q, call;

    open_rank(p, &r, WAIT_MS);
    arrays_open(&r, &a);
    in = rank == 1 ? NULL : r.in;
    for (q = 0; q < r.nranks; q++) {
        a.host[0][q] = rank == 1 || q == 2 ? 0 : 4;
        a.host[2][q] = q == 1 || rank == 2 ? 0 : 4;
        a.host[1][q] = a.host[3][q] = (uint64_t)q * 4;
    }
    for (b = 0; b < 2; b++) {
        parts[b].counts = (const uint64_t *)(const void *)a.device + 2 * b * PARTS_RANKS;
        parts[b].displacements = parts[b].counts + PARTS_RANKS;
    }
    for (call = 0; call < 3; call++) {
        for (q = 0; q < r.nranks && call > 0; q++)
            a.host[2][q] = q == 1 && call == 1 ? 0 : 4;
        memset(r.host, FILLED + 1 + rank, 64);
        host_must(host_copy(r.device, r.in, r.host, 64), "fill");
        memset(r.host, FILLED, 64);
        host_must(host_copy(r.device, r.out, r.host, 64), "fill");
        host_must(host_copy(r.device, a.device, a.host, ARRAYS_BYTES), "arrays");
        processes_barrier(p);
        if (call == 0)
            host_must(symwin_alltoallv(r.comm, in, &parts[0], rank == 2 ? NULL : r.out, &parts[1],
                                       SYMWIN_U32, r.streams[0]),
                      "symwin_alltoallv");
        else
            host_must(symwin_allgatherv(r.comm, in, r.out, &parts[1], SYMWIN_U32, r.streams[0]),
                      "symwin_allgatherv");
        job_wait(&r, 0);
        processes_barrier(p);
        if (call == 2)
            break;
        host_must(symwin_comm_check(r.comm), "symwin_comm_check");
        host_must(host_copy(r.device, r.host, r.out, 64), "read");
        for (q = 0; q < 64; q++)
            must_be(r.host[q] == (q / 16 > 2 || q / 16 == 1 || (call == 0 && rank == 2)
                                      ? FILLED
                                      : FILLED + 1 + q / 16),
                    "parts without buffers", rank);
    }
    must_be(symwin_comm_check(r.comm) == SYMWIN_MISMATCH &&
                host_error_has("symwin_comm_check: |in of rank 1 is NULL, and its part for rank "),
            "an all-gather from NULL", rank);
    processes_barrier(p);
    arrays_close(&a);
    close_rank(p, &r);
}

int main(void)
{
    static const struct row kinds[] = {
        {.ranks = 3},
        {.ranks = 3, .on_device = 1},
        {.ranks = 3, .windows = 1},
        {.ranks = 3, .on_device = 1, .windows = 1},
        {.ranks = 4, .on_device = 1}, /* with kernels of its own for short parts */
        {.ranks = MANY},
    };
    struct row row;
    struct processes *p;
    int r, right, number = 0;
    size_t kind;

    places_stay();
    for (r = 3; r <= MANY; r += MANY - 3) {
        row = (struct row){.oddity = SAME, .ranks = r};
        tap_ok(places_run(&places_all[0], r, body, &row, &p), "arguments that are wrong, %d ranks",
               r);
        processes_free(p);
    }
    with_many_ranks(many_ranks, sizeof many_ranks / sizeof many_ranks[0], many);
    for (kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++)
        for (row = kinds[kind], row.oddity = MORE; row.oddity <= LATE; row.oddity++) {
            if (!row.on_device && row.oddity >= OWN && row.oddity <= NULL_OUT)
                continue; /* the host refuses it */
            if (row.ranks == MANY && row.oddity == LATE)
                continue; /* on a busy machine another one of so many is later */
            /* Behind the last rank's own part nothing else comes. */
            row.odd = row.oddity == OWN ? row.ranks - 1 : number++ % 3;
            right = places_run(&places_all[0], row.ranks, body, &row, &p);
            for (r = 1; r < row.ranks && row.oddity > NULL_OUT; r++)
                right &= strcmp(p->rank[r].text, p->rank[0].text) == 0;
            tap_ok(right, "%d ranks: %s, arrays on the %s%s: %s", row.ranks, texts[row.oddity].name,
                   row.on_device ? "device" : "host", row.windows ? ", outputs in windows" : "",
                   p->rank[0].text);
            processes_free(p);
        }
    tap_ok(places_run(&places_all[0], 3, told_by_others, NULL, &p), "a rank that makes no call");
    processes_free(p);
    tap_ok(places_run(&places_all[0], 3, null_buffers, NULL, &p), "buffers that are NULL");
    processes_free(p);
    tap_ok(places_run(&places_all[0], 3, passes_room, NULL, &p), "counts that pass the room");
    processes_free(p);
    for (r = 0; r < 6; r++) { /* the most is a large part */
        row = (struct row){.windows = r / 3, .odd = r % 3 == 0 ? 5 : r % 3 == 1 ? 100 : 2000};
        tap_ok(places_run(&places_all[0], 3, passes_input, &row, &p),
               "a part of %d elements of an input of 4%s", row.odd,
               row.windows ? ", in a window" : "");
        processes_free(p);
    }
    return tap_done();
}
