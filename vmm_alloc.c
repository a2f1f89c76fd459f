/* Memory for callers, from the pools (pool.c), and the checks of SYMWIN_MEM_DEBUG. Any thread. */
#include "src/memory/pool.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 512, FILL_NEW = 0xcd, FILL_FREE = 0xdd, FILL_GUARD = 0xfd };

/* ---- settings -------------------------------------------------------------------------------- */

static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static void read_settings(void)
{
    sw_pool_settings.off = !sw_setting(SW_SETTING_MEM_POOL);
    sw_pool_settings.debug = (int)sw_setting(SW_SETTING_MEM_DEBUG);
    sw_pool_settings.keep = sw_pool_settings.off ? 0 : sw_setting(SW_SETTING_MEM_KEEP);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* Tells what is at the address, and locks the arena of its chunk, if any. unlock() must follow. */
static struct sw_locked lock(CUdeviceptr ptr)
{
    struct sw_chunk *chunk = sw_address_map_find(ptr);
    struct sw_locked locked = {SW_OWNED_NOT, chunk, NULL};
    uint32_t b;

    if (chunk == NULL)
        return locked;
    pthread_mutex_lock(&chunk->arena->mutex);
    if (chunk->memory.stage != SW_MEMORY_MAPPED || ptr < chunk->memory.base ||
        ptr - chunk->memory.base >= chunk->memory.bytes)
        return locked; /* released meanwhile, or past the memory: ranges are rounded up */
    locked.owned = SW_OWNED_FREE;
    if (chunk->number == SW_SUBALLOC_NONE) {
        if (chunk->in_use)
            locked.owned = SW_OWNED_LIVE;
        return locked;
    }
    b = sw_suballoc_find(&chunk->arena->suballoc, chunk->number,
                         (uint32_t)((ptr - chunk->memory.base) >> chunk->arena->unit_bits),
                         (uint32_t)(chunk->arena->granularity >> chunk->arena->unit_bits));
    if (b != SW_SUBALLOC_NONE) {
        locked.owned = SW_OWNED_LIVE;
        locked.block = &chunk->arena->suballoc.blocks[b];
    }
    return locked;
}

static void unlock(const struct sw_locked *locked)
{
    if (locked->chunk != NULL)
        pthread_mutex_unlock(&locked->chunk->arena->mutex);
}

static struct sw_allocation describe(const struct sw_locked *locked)
{
    const struct sw_chunk *chunk = locked->chunk;
    const struct sw_memory *m = &chunk->memory;
    struct sw_allocation a = {
        .begin = m->base + chunk->offset,
        .bytes = m->bytes - chunk->offset,
        .asked = chunk->asked,
        .physical = {m->base, m->bytes, m->device, m->buffer_id},
        .owned = 1,
        .imported = m->imported,
        .holds = chunk->holds,
    };

    if (locked->block != NULL) {
        a.begin = m->base + ((CUdeviceptr)locked->block->begin << chunk->arena->unit_bits);
        a.bytes = (size_t)locked->block->units << chunk->arena->unit_bits;
        a.asked = locked->block->asked;
        a.holds = locked->block->holds;
    }
    a.room = sw_pool_settings.debug && !a.imported ? a.asked : a.bytes;
    return a;
}

/* Allocations that were freed while held, and are still held. */
static atomic_int late_count;

static int *holds_of(const struct sw_locked *locked)
{
    return locked->block != NULL ? &locked->block->holds : &locked->chunk->holds;
}

static int *late_of(const struct sw_locked *locked)
{
    return locked->block != NULL ? &locked->block->late : &locked->chunk->late;
}

static enum sw_owned find(CUdeviceptr ptr, struct sw_allocation *out, int hold)
{
    struct sw_locked locked = lock(ptr);

    if (locked.owned == SW_OWNED_LIVE && *late_of(&locked)) /* only its holders may use it */
        locked.owned = SW_OWNED_FREE;
    if (locked.owned == SW_OWNED_LIVE)
        *holds_of(&locked) += hold;
    if (locked.owned != SW_OWNED_NOT)
        *out = describe(&locked);
    unlock(&locked);
    return locked.owned;
}

enum sw_owned sw_allocation_find(CUdeviceptr ptr, struct sw_allocation *out)
{
    return find(ptr, out, 0);
}

enum sw_owned sw_allocation_hold(CUdeviceptr ptr, struct sw_allocation *out)
{
    return find(ptr, out, 1);
}

static void (*_Atomic holders)(void); /* of sw_memory_on_held(); NULL: none */

void sw_memory_on_held(void (*settle)(void))
{
    atomic_store(&holders, settle);
}

static void settle_holders(void)
{
    void (*settle)(void) = atomic_load(&holders);

    if (settle != NULL)
        settle();
}

/* Returns memory that was freed while a graph held it, if the graph is gone by now. */
static void settle_late(void)
{
    if (atomic_load_explicit(&late_count, memory_order_relaxed) > 0)
        settle_holders();
    sw_allocations_settle();
}

void sw_allocation_drop(CUdeviceptr ptr)
{
    struct sw_locked locked = lock(ptr);

    if (locked.owned == SW_OWNED_LIVE && --*holds_of(&locked) == 0 && *late_of(&locked)) {
        const struct sw_allocation a = describe(&locked);

        sw_arena_give(&locked, &a);
        sw_pool_settle_later();
        atomic_fetch_sub(&late_count, 1);
    }
    unlock(&locked);
}

/* ---- SYMWIN_MEM_DEBUG ------------------------------------------------------------------------ */

static symwin_status fill(int device, CUdeviceptr ptr, int byte, size_t bytes)
{
    struct sw_scope scope;
    symwin_status status = sw_scope_enter(device, &scope);

    if (status != SYMWIN_OK)
        return status;
    status = sw_memory_fill(ptr, byte, bytes);
    sw_scope_leave(&scope);
    return status;
}

/* Fills new memory, and the guard after it. */
static symwin_status debug_fill(const char *call, int device, CUdeviceptr ptr, size_t bytes)
{
    symwin_status status = fill(device, ptr, FILL_NEW, bytes);

    if (status == SYMWIN_OK)
        status = fill(device, ptr + bytes, FILL_GUARD, GUARD);
    if (status != SYMWIN_OK) {
        char text[SW_TEXT_BYTES];

        sw_fail_in(status, call, "SYMWIN_MEM_DEBUG: ");
        strcpy(text, symwin_last_error());
        symwin_mem_free((void *)(uintptr_t)ptr); /* it may find the guard missing */
        sw_error_restore(text);
    }
    return status;
}

/* Checks that the guard after an allocation is intact. */
static symwin_status check_guard(const char *call, const struct sw_allocation *a)
{
    unsigned char guard[GUARD];
    symwin_status status = symwin_memcpy(a->physical.device, guard,
                                         (const void *)(uintptr_t)(a->begin + a->asked),
                                         sizeof guard, NULL);
    size_t i = 0;

    if (status != SYMWIN_OK)
        return sw_fail_in(status, call, "SYMWIN_MEM_DEBUG: ");
    while (i < sizeof guard && guard[i] == FILL_GUARD)
        i++;
    if (i == sizeof guard)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: byte %zu of the allocation of %zu bytes at 0x%llx was written, which is "
                   "past the end; it has been freed",
                   call, a->asked + i, a->asked, a->begin);
}

/* Before a free: checks the guard, fills the memory, and reports the first failure. */
static symwin_status debug_free(const char *call, const struct sw_allocation *a)
{
    const symwin_status guarded = check_guard(call, a);
    symwin_status status;
    char text[SW_TEXT_BYTES];

    strcpy(text, symwin_last_error());
    status = fill(a->physical.device, a->begin, FILL_FREE, a->asked);
    if (guarded != SYMWIN_OK) {
        sw_error_restore(text);
        return guarded;
    }
    return status == SYMWIN_OK ? SYMWIN_OK : sw_fail_in(status, call, "SYMWIN_MEM_DEBUG: ");
}

/* ---- calls ----------------------------------------------------------------------------------- */

symwin_status symwin_mem_alloc(int device, size_t bytes, unsigned flags, void **out)
{
    static const char call[] = "symwin_mem_alloc";
    const unsigned known = SYMWIN_MEM_PEERS | SYMWIN_MEM_OWN | SYMWIN_MEM_NCCL;
    char text[SW_TEXT_BYTES];
    struct sw_arena *arena;
    CUdeviceptr ptr = 0;
    symwin_status status;
    size_t need;

    if (out == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: ptr is NULL; pass where to put the address", call);
    if (bytes == 0)
        return sw_fail(SYMWIN_INVALID, "%s: bytes is 0; ask for at least one byte", call);
    if ((flags & ~known) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: flags has 0x%x, which is unknown; pass SYMWIN_MEM_* or 0", call,
                       flags & ~known);
    pthread_once(&settings_once, read_settings);
    status = sw_arena_of(call, device, flags & (SYMWIN_MEM_PEERS | SYMWIN_MEM_NCCL), &arena);
    if (status != SYMWIN_OK)
        return status;
    if (bytes > SIZE_MAX / 4)
        return sw_fail(SYMWIN_INVALID, "%s: %zu bytes are more than any address space holds", call,
                       bytes);
    need = bytes + (sw_pool_settings.debug ? GUARD : 0);
    strcpy(text, symwin_last_error());
    status = sw_arena_take(call, arena, bytes, need, (flags & SYMWIN_MEM_OWN) != 0, &ptr);
    if (status == SYMWIN_NO_MEMORY && atomic_load(&late_count) > 0) {
        settle_late();
        status = sw_arena_take(call, arena, bytes, need, (flags & SYMWIN_MEM_OWN) != 0, &ptr);
    }
    if (status == SYMWIN_OK && strcmp(text, symwin_last_error()) != 0)
        sw_error_restore(text); /* a failure to make a chunk, which had no consequence */
    if (status == SYMWIN_OK && sw_pool_settings.debug)
        status = debug_fill(call, arena->device, ptr, bytes);
    if (status == SYMWIN_OK)
        *out = (void *)(uintptr_t)ptr;
    return status;
}

/* Frees an allocation. `late`: one that is held goes back to its pool with the last hold. */
static symwin_status take_back(const char *call, void *ptr, int late)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)ptr;
    symwin_status status = sw_fork_check(call), guarded = SYMWIN_OK;
    struct sw_allocation a;
    struct sw_locked locked;
    int given = 0;

    if (ptr == NULL || status != SYMWIN_OK)
        return status;
    if (sw_pool_settings.debug && sw_allocation_find(address, &a) == SW_OWNED_LIVE &&
        a.begin == address && a.holds == 0 && !a.imported)
        guarded = debug_free(call, &a);
    locked = lock(address);
    /* The holders may be graphs that are gone. */
    if (locked.owned == SW_OWNED_LIVE && *holds_of(&locked) > 0) {
        unlock(&locked);
        settle_holders();
        locked = lock(address);
    }
    if (locked.owned == SW_OWNED_LIVE)
        a = describe(&locked);
    if (locked.owned != SW_OWNED_LIVE || a.begin != address || *late_of(&locked))
        status = sw_fail(SYMWIN_INVALID,
                         "%s: %p is not an address that symwin_mem_alloc or symwin_mem_import "
                         "returned, or it was freed before",
                         call, ptr);
    else if (a.holds > 0 && late && !a.imported) {
        *late_of(&locked) = 1;
        atomic_fetch_add(&late_count, 1);
    } else if (a.holds > 0)
        status = sw_fail(
            SYMWIN_BUSY,
            "%s: %p is in use (by windows, registrations, channels or captured graphs; by %d in "
            "all); deregister it, or destroy the channel or the graph, first",
            call, ptr, a.holds);
    else
        given = 1;
    if (given)
        sw_arena_give(&locked, &a);
    unlock(&locked);
    if (given)
        sw_pool_settle(locked.chunk);
    settle_late();
    return status != SYMWIN_OK ? status : guarded;
}

symwin_status symwin_mem_free(void *ptr)
{
    return take_back("symwin_mem_free", ptr, 0);
}

symwin_status sw_allocation_free_late(const char *call, void *ptr)
{
    return take_back(call, ptr, 1);
}

int sw_pool_make_room(int device)
{
    return sw_pool_shed(device, 0, NULL);
}

symwin_status sw_pool_create_apart(const char *call, int device, size_t bytes, struct sw_memory *m)
{
    struct sw_memory_kind kind;
    symwin_status status = sw_memory_kind_find(call, device, &kind);

    if (status != SYMWIN_OK)
        return status;
    bytes = (bytes + kind.granularity - 1) / kind.granularity * kind.granularity;
    status = sw_memory_create(call, &kind, bytes, 0, m);
    if (status == SYMWIN_NO_MEMORY && sw_pool_make_room(device))
        status = sw_memory_create(call, &kind, bytes, 0, m);
    return status;
}

/* ---- trim and stats -------------------------------------------------------------------------- */

symwin_status symwin_mem_trim(int device, size_t keep_bytes)
{
    static const char call[] = "symwin_mem_trim";
    int first = device, last = device;
    symwin_status status = sw_driver_load();

    if (status == SYMWIN_OK && device == SYMWIN_DEVICE_ALL) {
        first = 0;
        status = sw_check(sw_drv.cuDeviceGetCount(&last), "%s: cuDeviceGetCount", call);
        last--;
    } else if (status == SYMWIN_OK) {
        status = sw_device_resolve(call, device, &first);
        last = first;
    }
    if (status == SYMWIN_OK)
        settle_late();
    for (; status == SYMWIN_OK && first <= last; first++)
        sw_pool_shed(first, keep_bytes, NULL);
    if (status == SYMWIN_OK)
        (void)sw_reaper_wait(SW_REAPER_MS); /* others may want the memory */
    return status;
}

struct sum {
    int device;
    symwin_mem_usage usage;
};

static void add_arena(const struct sw_arena *arena, void *context)
{
    const symwin_mem_usage *one = &arena->usage;
    struct sum *sum = context;
    symwin_mem_usage *all = &sum->usage;
    uint64_t largest;

    if (arena->device != sum->device)
        return;
    largest = (uint64_t)sw_suballoc_largest(&arena->suballoc) << arena->unit_bits;
    all->asked_bytes += one->asked_bytes;
    all->used_bytes += one->used_bytes;
    all->peak_used_bytes += one->peak_used_bytes;
    all->allocations += one->allocations;
    all->allocs += one->allocs;
    all->frees += one->frees;
    if (largest > all->largest_free_bytes)
        all->largest_free_bytes = largest;
}

void sw_pool_usage(int device, symwin_mem_usage *usage)
{
    struct sum sum = {.device = device};

    sw_pool_each(add_arena, &sum);
    sw_pool_totals(device, &sum.usage);
    *usage = sum.usage;
}

symwin_status symwin_mem_stats(int device, symwin_mem_usage *usage)
{
    static const char call[] = "symwin_mem_stats";
    symwin_status status;

    if (usage == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: usage is NULL", call);
    status = sw_device_resolve(call, device, &device);
    if (status == SYMWIN_OK)
        sw_pool_usage(device, usage);
    return status;
}
