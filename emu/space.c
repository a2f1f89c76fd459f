/* Device addresses: one arena, reserved once, from which ranges are allocated; and the table of
 * mappings.
 *
 * The arena is reserved without memory and left out of core dumps. Under a sanitizer, or with a
 * limit on address space, it is as large as possible. Ranges are allocated first fit, as by the
 * driver, so a freed address is soon reused, which exposes accesses after a free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "memory.h"

unsigned char *emu_arena;
size_t emu_arena_bytes;
struct emu_mapping *_Atomic *emu_table;

struct range {
    CUdeviceptr va;
    size_t bytes; /* requested size */
    size_t span;  /* size in whole granules */
    enum emu_range_kind kind;
    unsigned mappings;
};

static struct range *ranges; /* sorted by address */
static size_t range_count, range_room;
static struct emu_view *free_views;
static uint64_t last_buffer_id;

static const enum emu_kind range_live[] = {
    [EMU_RESERVATION] = EMU_LIVE_RESERVATION,
    [EMU_DEVICE_BLOCK] = EMU_LIVE_DEVICE_BLOCK,
    [EMU_HOST_BLOCK] = EMU_LIVE_HOST_BLOCK,
};

/* ---- the arena ------------------------------------------------------------------------------- */

static unsigned char *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, bytes, MADV_DONTDUMP);
    return p;
}

/* The first size to try: 32 TiB, or half of the limit on address space, since all memory is mapped
 * a second time outside the arena. */
static size_t most_bytes(void)
{
    const size_t most = (size_t)32 << 40;
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur / 2 > most)
        return most;
    return (size_t)limit.rlim_cur / 2;
}

/* Reserves as much as possible. */
static unsigned char *reserve_most(size_t *bytes)
{
    const size_t least = (size_t)16 << 20;
    unsigned char *arena = NULL;

    for (*bytes = most_bytes(); *bytes >= least; *bytes = *bytes / 4 * 3) {
        arena = reserve(*bytes);
        if (arena != NULL)
            break;
    }
    return arena;
}

CUresult emu_space_start(void)
{
    size_t bytes;
    unsigned char *arena = reserve_most(&bytes);
    void *table;

    if (arena == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    table = mmap(NULL, bytes / EMU_GRANULE * sizeof *emu_table, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
        munmap(arena, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Granules are aligned; what lies before the first and behind the last stays unused. */
    emu_table = table;
    emu_arena = arena + (0 - (uintptr_t)arena) % EMU_GRANULE;
    emu_arena_bytes = (size_t)(arena + bytes - emu_arena) / EMU_GRANULE * EMU_GRANULE;
    return CUDA_SUCCESS;
}

int emu_arena_hide(CUdeviceptr va, size_t bytes)
{
    void *at = (void *)(uintptr_t)va;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

    if (mmap(at, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        return -1;
    (void)madvise(at, bytes, MADV_DONTDUMP);
    return 0;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Index of the first range behind `addr`. */
static size_t range_after(CUdeviceptr addr)
{
    size_t low = 0, high = range_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (ranges[middle].va <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct range *range_at(CUdeviceptr addr)
{
    const size_t i = range_after(addr);

    return i > 0 && addr - ranges[i - 1].va < ranges[i - 1].bytes ? &ranges[i - 1] : NULL;
}

/* The first aligned address in [from, to) with room for `span` bytes; 0: none. */
static CUdeviceptr fit(CUdeviceptr from, CUdeviceptr to, size_t span, size_t alignment)
{
    const CUdeviceptr at = (from + (alignment - 1)) & ~(CUdeviceptr)(alignment - 1);

    return at >= from && at <= to && to - at >= span ? at : 0;
}

/* Address for a new range, and its index in the list. */
static CUdeviceptr range_place(size_t span, size_t alignment, CUdeviceptr hint, size_t *index)
{
    const CUdeviceptr first = (CUdeviceptr)(uintptr_t)emu_arena, end = first + emu_arena_bytes;
    CUdeviceptr from = first, at;

    if (hint >= first && hint < end && hint % alignment == 0) {
        const size_t i = range_after(hint);
        const CUdeviceptr to = i < range_count ? ranges[i].va : end;

        if ((i == 0 || ranges[i - 1].va + ranges[i - 1].span <= hint) &&
            fit(hint, to, span, alignment) == hint) {
            *index = i;
            return hint;
        }
    }
    for (size_t i = 0; i <= range_count; i++) {
        at = fit(from, i < range_count ? ranges[i].va : end, span, alignment);
        if (at != 0) {
            *index = i;
            return at;
        }
        if (i < range_count)
            from = ranges[i].va + ranges[i].span;
    }
    return 0;
}

CUdeviceptr emu_range_take(size_t bytes, size_t alignment, CUdeviceptr hint,
                           enum emu_range_kind kind)
{
    struct range made = {.bytes = bytes, .kind = kind};
    size_t index;

    if (bytes > emu_arena_bytes)
        return 0;
    made.span = (bytes + EMU_GRANULE - 1) / EMU_GRANULE * EMU_GRANULE;
    if (alignment < EMU_GRANULE)
        alignment = EMU_GRANULE;
    if (range_count == range_room) {
        const size_t room = range_room > 0 ? 2 * range_room : 64;
        struct range *grown = realloc(ranges, room * sizeof *grown);

        if (grown == NULL)
            return 0;
        ranges = grown;
        range_room = room;
    }
    made.va = range_place(made.span, alignment, hint, &index);
    if (made.va == 0)
        return 0;
    memmove(&ranges[index + 1], &ranges[index], (range_count - index) * sizeof *ranges);
    ranges[index] = made;
    range_count++;
    emu_live_add(range_live[kind], 1);
    return made.va;
}

void emu_range_give(CUdeviceptr va)
{
    struct range *r = range_at(va);
    const size_t index = (size_t)(r - ranges);

    emu_live_add(range_live[r->kind], -1);
    range_count--;
    memmove(r, r + 1, (range_count - index) * sizeof *r);
}

int emu_is_reserved(CUdeviceptr addr)
{
    const struct range *r = range_at(addr);

    return r != NULL && r->kind == EMU_RESERVATION;
}

void emu_range_find(CUdeviceptr addr, CUdeviceptr *va, size_t *bytes)
{
    const struct range *r = range_at(addr);

    *va = r->va;
    *bytes = r->bytes;
}

int emu_range_covers(CUdeviceptr va, size_t bytes)
{
    const struct range *r = range_at(va);

    return r != NULL && r->kind == EMU_RESERVATION && bytes <= r->bytes - (size_t)(va - r->va);
}

CUresult sw_emu_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                    CUdeviceptr addr, unsigned long long flags)
{
    /* cuda.h says "host page"; a CUDA 13.0 driver requires multiples of 2 MiB
     * (docs/hardware.md). */
    CUresult result = emu_enter_unless(EMU_cuMemAddressReserve,
                                       ptr == NULL || size == 0 || size % EMU_GRANULE != 0 ||
                                           addr % EMU_GRANULE != 0 || flags != 0 ||
                                           (alignment & (alignment - 1)) != 0);
    CUdeviceptr va;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    va = emu_range_take(size, alignment, addr, EMU_RESERVATION);
    pthread_mutex_unlock(&emu_memory_mutex);
    if (va == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = va;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = emu_enter_unless(EMU_cuMemAddressFree, ptr == 0 || size == 0);
    const struct range *r;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    r = range_at(ptr);
    if (r == NULL || r->kind != EMU_RESERVATION || r->va != ptr || r->bytes != size ||
        r->mappings > 0)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        emu_range_give(ptr);
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* ---- the table ------------------------------------------------------------------------------- */

static size_t granule_of(CUdeviceptr addr)
{
    return (size_t)(addr - (CUdeviceptr)(uintptr_t)emu_arena) >> EMU_GRANULE_SHIFT;
}

static void table_set(CUdeviceptr va, size_t bytes, struct emu_mapping *m)
{
    const size_t first = granule_of(va), last = granule_of(va + (bytes - 1));

    for (size_t i = first; i <= last; i++)
        atomic_store_explicit(&emu_table[i], m, memory_order_release);
}

static struct emu_view *view_take(void)
{
    enum { CHUNK = 64 };
    struct emu_view *view = free_views;

    if (view == NULL) {
        view = calloc(CHUNK, sizeof *view);
        if (view == NULL)
            return NULL;
        for (int i = 0; i + 1 < CHUNK; i++)
            view[i].next_free = &view[i + 1];
    }
    free_views = view->next_free;
    return view;
}

struct emu_view *emu_view_add(CUdeviceptr va, size_t bytes, struct emu_object *object)
{
    struct emu_view *view = view_take();
    struct range *r = range_at(va);

    if (view == NULL)
        return NULL;
    view->seen.va = va;
    view->seen.bytes = bytes;
    view->seen.canonical = NULL;
    view->seen.multicast = NULL;
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        atomic_store_explicit(&view->seen.access[i], CU_MEM_ACCESS_FLAGS_PROT_NONE,
                              memory_order_relaxed);
    view->object = object;
    view->kind = r->kind;
    view->device = -1;
    view->ctx = NULL;
    view->buffer_id = ++last_buffer_id;
    view->host_access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    view->shown = 0;
    if (object != NULL && object->kind == EMU_MULTICAST) {
        view->seen.multicast = (struct emu_multicast *)object;
    } else if (object != NULL) {
        const struct emu_physical *p = (struct emu_physical *)object;

        view->seen.canonical = p->memory;
        if (p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            view->device = p->prop.location.id;
    } else {
        view->seen.canonical = (unsigned char *)(uintptr_t)va;
    }
    r->mappings++;
    table_set(va, bytes, &view->seen);
    return view;
}

void emu_view_remove(struct emu_view *view)
{
    table_set(view->seen.va, view->seen.bytes, NULL);
    range_at(view->seen.va)->mappings--;
    view->next_free = free_views;
    free_views = view;
}

struct emu_view *emu_view_at(CUdeviceptr addr)
{
    const struct emu_mapping *m = emu_mapping_at(addr);

    return m != NULL && addr - m->va < m->bytes ? (struct emu_view *)m : NULL;
}

void emu_blocks_lose(const struct CUctx_st *ctx)
{
    for (size_t i = 0; i < range_count; i++) {
        const struct range *r = &ranges[i];
        const struct emu_view *view = r->kind == EMU_RESERVATION ? NULL : emu_view_at(r->va);

        if (view != NULL && view->ctx == ctx)
            (void)mprotect((void *)(uintptr_t)r->va, r->bytes, PROT_NONE);
    }
}

void emu_view_devices(const struct emu_view *view, struct emu_device_set *set)
{
    for (int i = 0; i < EMU_MAX_DEVICES; i++)
        set->has[i] = atomic_load_explicit(&view->seen.access[i], memory_order_relaxed) != 0;
}

void emu_drain_devices(const struct emu_device_set *set)
{
    for (int i = 0; i < emu_machine.devices; i++)
        if (set->has[i])
            (void)emu_device_drain(i);
}

static void range_print(int fd, const struct range *r)
{
    static const char *const names[] = {"reservation", "device block", "host block"};

    dprintf(fd, "live: %s 0x%llx, %zu bytes\n", names[r->kind], r->va, r->bytes);
    for (CUdeviceptr at = r->va; r->kind == EMU_RESERVATION && at < r->va + r->bytes;) {
        const struct emu_view *view = emu_view_at(at);

        if (view != NULL)
            dprintf(fd, "live: mapping 0x%llx, %zu bytes, of 0x%llx\n", view->seen.va,
                    view->seen.bytes, view->object->handle);
        at += view != NULL ? view->seen.bytes : EMU_GRANULE;
    }
}

void emu_space_print(int fd)
{
    pthread_mutex_lock(&emu_memory_mutex);
    for (size_t i = 0; i < range_count; i++)
        range_print(fd, &ranges[i]);
    pthread_mutex_unlock(&emu_memory_mutex);
}
