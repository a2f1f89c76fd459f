/* The cases of faults.c. */
#include "faults.h"
#include "tap.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static void *memory(const struct state *s, int i)
{
    return s->made[i].live ? s->made[i].ptr : NULL;
}

static void trim(struct state *s)
{
    s->trims_failed += symwin_mem_trim(SYMWIN_DEVICE_ALL, 0) != SYMWIN_OK;
}

/* ---- allocations ---- */

static void small(struct state *s)
{
    try_alloc(s, 100000);
}

static void under_a_granule(struct state *s)
{
    try_alloc(s, GRANULE - 1);
}

static void granule(struct state *s)
{
    try_alloc(s, GRANULE);
}

static void large(struct state *s)
{
    try_alloc(s, 5 * MIB);
}

static void large_that_was_freed(struct state *s)
{
    large(s);
    try_free(s, memory(s, 0));
    s->freed_count = 0;
}

static void nothing(struct state *s)
{
    try_alloc(s, 0);
}

static void too_much(struct state *s)
{
    try_alloc(s, (size_t)1 << 41);
}

static void many(struct state *s)
{
    try_alloc(s, 100000);
    try_alloc(s, GRANULE);
    try_alloc(s, 1);
    try_alloc(s, 3 * MIB);
    try_alloc(s, 4096);
}

static void in_any_order(struct state *s)
{
    static const int order[] = {2, 0, 3, 4, 1};
    int i;

    for (i = 0; i < 5; i++)
        try_free(s, memory(s, order[i]));
}

static void again_and_again(struct state *s)
{
    void *a = try_alloc(s, 5000), *b = try_alloc(s, 3 * MIB), *c;

    try_free(s, a);
    c = try_alloc(s, 3 * MIB);
    try_free(s, b);
    a = try_alloc(s, 5000);
    b = try_alloc(s, 3 * MIB);
    try_free(s, c);
    try_free(s, a);
    try_free(s, b);
}

static void without_context(struct state *s)
{
    s->context = NULL;
    must(DRIVER->cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
}

static void small_and_back(struct state *s)
{
    try_free(s, try_alloc(s, 100000));
}

/* ---- frees of memory that the pool has not handed out ---- */

static void memory_of_nccl(struct state *s)
{
    small(s);
    must((int)fake_nccl()->alloc(&s->own, 4096), "NCCL's ncclMemAlloc");
}

static void free_memory_of_nccl(struct state *s)
{
    try_odd_free(
        s, s->own,
        (struct release){.want = ncclSuccess, .wants_passed = 1, .or_else = 1u << ncclSystemError});
    if (s->freed[s->freed_count - 1].passed)
        s->own = NULL;
}

/* Frees what was not freed before. */
static const char *free_memory_of_nccl_now(struct state *s)
{
    if (s->own != NULL && ncclMemFree(s->own) != ncclSuccess)
        return "memory of NCCL cannot be freed later";
    s->own = NULL;
    return NULL;
}

/* A driver allocation that neither library here has made. */
static void foreign(struct state *s)
{
    struct nccl_window *w = &s->foreign;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, DEVICE}};

    small(s);
    w->bytes = GRANULE;
    must(DRIVER->cuMemCreate(&w->handle, GRANULE, &prop, 0), "cuMemCreate");
    must(DRIVER->cuMemAddressReserve(&w->address, GRANULE, 0, 0, 0), "cuMemAddressReserve");
    must(DRIVER->cuMemMap(w->address, GRANULE, 0, w->handle, 0), "cuMemMap");
    w->stage = 3;
    must(DRIVER->cuMemAlloc(&s->plain, 4096), "cuMemAlloc");
}

/* NCCL says that the memory is not its own. symwin may say so too if the driver fails. */
static void free_foreign(struct state *s)
{
    const struct release expected = {
        .want = ncclRemoteError,
        .wants_passed = 1,
        .or_else = 1u << ncclSystemError | 1u << ncclInvalidArgument,
    };

    try_odd_free(s, (void *)(uintptr_t)s->foreign.address, expected);
    try_odd_free(s, (void *)(uintptr_t)s->plain, expected);
}

static void free_inside(struct state *s)
{
    const struct release expected = {
        .want = ncclInvalidArgument, .or_else = 1u << ncclSystemError, .may_pass = 1};

    try_odd_free(s, (char *)memory(s, 0) + 4096, expected);
    try_odd_free(s, (char *)memory(s, 1) + GRANULE / 2, expected);
}

static void some_of_many(struct state *s)
{
    many(s);
    try_free(s, s->made[0].ptr);
    try_free(s, s->made[3].ptr);
    s->freed_count = 0;
    harness_wait_for_reaper();
}

/* The pool knows its addresses but not whether one is in use: an emulated driver is not asked. */
static void free_again(struct state *s)
{
    const struct release gone = {
        .want = ncclRemoteError, .wants_passed = 1, .or_else = 1u << ncclSystemError};
    const struct release kept = {
        .want = ncclInvalidArgument, .or_else = 1u << ncclSystemError, .may_pass = 1};

    try_odd_free(s, s->made[0].ptr, setting.pool && !setting.emulated ? kept : gone);
    try_odd_free(s, s->made[3].ptr, setting.keeps && !setting.emulated ? kept : gone);
}

/* ---- memory that others have mapped ---- */

static void unmap(struct nccl_window *w)
{
    if (w->stage > 2)
        must(DRIVER->cuMemUnmap(w->address, w->bytes), "cuMemUnmap");
    if (w->stage > 1)
        must(DRIVER->cuMemAddressFree(w->address, w->bytes), "cuMemAddressFree");
    if (w->stage > 0)
        must(DRIVER->cuMemRelease(w->handle), "cuMemRelease");
    *w = (struct nccl_window){0};
}

static CUresult show(struct nccl_window *w)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, DEVICE + 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = DRIVER->cuMemAddressReserve(&w->address, w->bytes, GRANULE, 0, 0);

    if (result != CUDA_SUCCESS)
        return result;
    w->stage = 2;
    result = DRIVER->cuMemMap(w->address, w->bytes, 0, w->handle, 0);
    if (result != CUDA_SUCCESS)
        return result;
    w->stage = 3;
    return DRIVER->cuMemSetAccess(w->address, w->bytes, &access, 1);
}

/* As NCCL maps a window, by a descriptor: the whole physical allocation. Keeps nothing if it
 * fails. */
static void map(struct nccl_window *w, const void *ptr)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    CUresult result;
    int fd = -1;

    *w = (struct nccl_window){.memory = (CUdeviceptr)(uintptr_t)ptr};
    result = DRIVER->cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                           w->memory);
    if (result == CUDA_SUCCESS)
        result = DRIVER->cuPointerGetAttribute(&w->bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                               w->memory);
    if (result == CUDA_SUCCESS)
        result = DRIVER->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr);
    if (result != CUDA_SUCCESS)
        return;
    result = DRIVER->cuMemExportToShareableHandle(&fd, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
        result = DRIVER->cuMemImportFromShareableHandle(&w->handle, (void *)(uintptr_t)fd,
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (fd >= 0)
        close(fd);
    must(DRIVER->cuMemRelease(handle), "cuMemRelease");
    if (result == CUDA_SUCCESS) {
        w->stage = 1;
        result = show(w);
    }
    if (result != CUDA_SUCCESS)
        unmap(w);
    w->memory -= base; /* from here on the offset in the mapping */
}

static volatile unsigned char *byte_of(const struct nccl_window *w)
{
    return (volatile unsigned char *)(uintptr_t)(w->address + w->memory);
}

static void mapped(struct state *s)
{
    int i;

    small(s);
    large(s);
    for (i = 0; i < 2; i++) {
        map(&s->windows[i], memory(s, i));
        must(s->windows[i].stage != 3, "a window of NCCL");
        *byte_of(&s->windows[i]) = (unsigned char)(17 + i);
    }
}

static void leave_mapped(struct state *s)
{
    try_free(s, memory(s, 0));
    try_free(s, memory(s, 1));
    trim(s);
    try_alloc(s, 5 * MIB);
}

/* Freed memory stays for NCCL until NCCL unmaps it. Only SYMWIN_MEM_DEBUG writes to it. */
static const char *is_still_mapped(struct state *s)
{
    int i;

    for (i = 0; i < 2; i++)
        if (*byte_of(&s->windows[i]) != 17 + i && !setting.debug)
            return "a window of NCCL has lost its memory";
    return NULL;
}

static void map_and_leave(struct state *s)
{
    map(&s->windows[0], memory(s, 0));
    map(&s->windows[1], memory(s, 1));
    leave_mapped(s);
}

static void small_and_large(struct state *s)
{
    small(s);
    large(s);
}

static void both_are_freed(struct state *s)
{
    small_and_large(s);
    try_free(s, memory(s, 0));
    try_free(s, memory(s, 1));
    s->freed_count = 0;
}

/* A communicator of symwin with a window, destroyed while the window exists. */
static void window_of_symwin(struct state *s)
{
    symwin_window *window = NULL;
    symwin_unique_id id;

    small(s);
    must((int)symwin_unique_id_create(&id), "symwin_unique_id_create");
    must((int)symwin_comm_create(&id, 1, 0, DEVICE, NULL, &s->comm), "symwin_comm_create");
    must((int)symwin_window_register(s->comm, memory(s, 0), 100000, 0, &window),
         "symwin_window_register");
}

static void free_under_window(struct state *s)
{
    try_odd_free(s, memory(s, 0),
                 (struct release){.want = ncclInvalidUsage, .or_else = 1u << ncclSystemError});
    trim(s);
}

void clear_case(struct state *s)
{
    CUcontext context = NULL;

    unmap(&s->windows[0]);
    unmap(&s->windows[1]);
    unmap(&s->foreign);
    if (s->plain != 0)
        must(DRIVER->cuMemFree(s->plain), "cuMemFree");
    if (s->comm != NULL)
        symwin_comm_destroy(s->comm);
    if (s->context != NULL)
        return;
    must(DRIVER->cuDevicePrimaryCtxRetain(&context, DEVICE), "cuDevicePrimaryCtxRetain");
    must(DRIVER->cuDevicePrimaryCtxRelease(DEVICE), "cuDevicePrimaryCtxRelease");
    must(DRIVER->cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

const struct fault_case fault_cases[] = {
    {"small", 0, 1, NULL, small, NULL},
    {"small, warm", 0, 1, small, small, NULL},
    {"under a granule", 0, 1, NULL, under_a_granule, NULL},
    {"a granule", 0, 1, NULL, granule, NULL},
    {"large", 0, 1, NULL, large, NULL},
    {"large, warm", 0, 1, large_that_was_freed, large, NULL},
    {"no size", 0, 0, NULL, nothing, NULL},
    {"too much", 0, 1, NULL, too_much, NULL},
    {"too much, with memory that is kept", 0, 1, both_are_freed, too_much, NULL},
    {"again and again", 0, 1, small, again_and_again, NULL},
    {"no context", 0, 1, without_context, small_and_back, NULL},
    {"frees in any order", 0, 0, many, in_any_order, NULL},
    {"free of memory of NCCL", 0, 1, memory_of_nccl, free_memory_of_nccl, free_memory_of_nccl_now},
    {"free of another allocator's", 0, 1, foreign, free_foreign, NULL},
    {"free inside an allocation", 0, 1, small_and_large, free_inside, NULL},
    {"free of what was freed", 0, 0, some_of_many, free_again, NULL},
    {"trim", 0, 1, both_are_freed, trim, NULL},
    {"frees and trim while NCCL has it mapped", 0, 1, mapped, leave_mapped, is_still_mapped},
    {"NCCL maps it", 0, 1, small_and_large, map_and_leave, NULL},
    {"free under a window of symwin", 1, 1, window_of_symwin, free_under_window, NULL},
    {NULL, 0, 0, NULL, NULL, NULL},
};

const struct fault_case first_cases[] = {
    {"first: small", 0, 1, NULL, small, NULL},
    {"first: large", 0, 1, NULL, large, NULL},
    {"first: no size", 0, 0, NULL, nothing, NULL},
    {"first: no context", 0, 0, without_context, small_and_back, NULL},
    {NULL, 0, 0, NULL, NULL, NULL},
};
