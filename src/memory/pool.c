/* Arenas and chunks: where memory is taken from and goes back to. Any thread.
 *
 *   chunk   one physical allocation (physical.c): suballocated, or a single allocation
 *   arena   the chunks of one thread, device and kind of memory. It has a mutex because other
 *           threads may free its memory.
 *
 * Empty chunks are kept, up to SYMWIN_MEM_KEEP bytes per device; the oldest are released first. The
 * driver is never called under a mutex, because its calls can take long.
 *
 * The structures of arenas and chunks are reused and never freed; a chunk structure stays in its
 * arena. So a stale address leads to a valid structure, whose arena's mutex can be locked, and
 * under that mutex it is clear that the address is not in use.
 */
#include "src/memory/pool.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEVICES = 256, /* any beyond share the last counters */
    SUBALLOC_CHUNK = 64 << 20,
    SUBALLOC_CHUNK_NCCL = 16 << 20
};

/* Counters per device, because SYMWIN_MEM_KEEP is a limit per device. */
struct total {
    _Atomic uint64_t reserved, peak_reserved, kept, chunks, creates, releases;
};

static struct sw_arena imports = {.mutex = PTHREAD_MUTEX_INITIALIZER, .device = -1};

static struct {
    pthread_mutex_t mutex;   /* locked before an arena's mutex */
    struct sw_arena *arenas; /* all that ever existed; the last is that of imported memory */
    pthread_once_t once;
    pthread_key_t key; /* its destructor notices the end of a thread */
    int has_key;
    struct total totals[MAX_DEVICES];
    atomic_int late; /* some device may keep more than its limit */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .arenas = &imports, .once = PTHREAD_ONCE_INIT};

struct sw_pool_settings sw_pool_settings;
static _Thread_local struct sw_arena *mine;

static struct total *total_of(int device)
{
    return &pool.totals[(size_t)device < MAX_DEVICES ? device : MAX_DEVICES - 1];
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Sets all members but `arena` and `every`: a thread with a stale address may be reading `arena`,
 * to lock it. */
static void chunk_set(struct sw_chunk *chunk, const struct sw_memory *memory)
{
    chunk->memory = *memory;
    chunk->number = SW_SUBALLOC_NONE;
    chunk->in_use = 0;
    chunk->offset = chunk->asked = 0;
    chunk->holds = chunk->late = chunk->kept = 0;
    chunk->older = chunk->newer = chunk->next = NULL;
}

/* A chunk structure for `memory`, unknown to other threads yet. NULL: no host memory. */
static struct sw_chunk *chunk_new(struct sw_arena *arena, const struct sw_memory *memory)
{
    struct sw_chunk *chunk;

    pthread_mutex_lock(&arena->mutex);
    chunk = arena->unused;
    if (chunk != NULL)
        arena->unused = chunk->next;
    else if ((chunk = malloc(sizeof *chunk)) != NULL) {
        chunk->arena = arena;
        chunk->every = arena->every;
        arena->every = chunk;
    }
    if (chunk != NULL)
        chunk_set(chunk, memory);
    pthread_mutex_unlock(&arena->mutex);
    return chunk;
}

static void chunk_drop(struct sw_chunk *chunk)
{
    struct sw_arena *arena = chunk->arena;

    pthread_mutex_lock(&arena->mutex);
    chunk_set(chunk, &(struct sw_memory){.stage = SW_MEMORY_NONE});
    chunk->next = arena->unused;
    arena->unused = chunk;
    pthread_mutex_unlock(&arena->mutex);
}

/* As long as it is mapped, the address map leads to the chunk: it is not another allocator's. */
static void chunk_release(struct sw_remains *remains)
{
    struct sw_chunk *chunk = (struct sw_chunk *)(void *)remains;
    struct sw_memory memory = chunk->memory;
    struct total *total = total_of(memory.device);

    sw_memory_unmap(&memory);
    sw_address_map_remove(memory.base, memory.range_bytes);
    sw_memory_drop(&memory);
    if (!memory.imported) {
        atomic_fetch_sub(&total->reserved, memory.bytes);
        atomic_fetch_sub(&total->chunks, 1);
        atomic_fetch_add(&total->releases, 1);
    }
    chunk_drop(chunk);
}

/* Gives chunks back to the driver, soon. They must be in no arena list any more. */
static void chunks_release(struct sw_chunk *list)
{
    while (list != NULL) {
        struct sw_chunk *chunk = list;

        list = chunk->next;
        sw_reaper_take(&chunk->remains, chunk_release);
    }
}

static void count_chunk(const struct sw_memory *m)
{
    struct total *total = total_of(m->device);
    const uint64_t now = atomic_fetch_add(&total->reserved, m->bytes) + m->bytes;
    uint64_t peak = atomic_load(&total->peak_reserved);

    while (now > peak && !atomic_compare_exchange_weak(&total->peak_reserved, &peak, now))
        ;
    atomic_fetch_add(&total->chunks, 1);
    atomic_fetch_add(&total->creates, 1);
}

/* ---- kept chunks ---- */

static struct sw_chunk **bin_of(struct sw_arena *arena, size_t bytes)
{
    return &arena->bins[bytes / arena->granularity % SW_POOL_BINS];
}

static void keep(struct sw_arena *arena, struct sw_chunk *chunk)
{
    chunk->kept = 1;
    chunk->newer = NULL;
    chunk->older = arena->newest;
    *(arena->newest != NULL ? &arena->newest->newer : &arena->oldest) = chunk;
    arena->newest = chunk;
    if (chunk->number == SW_SUBALLOC_NONE) {
        struct sw_chunk **bin = bin_of(arena, chunk->memory.bytes);

        chunk->next = *bin;
        if (*bin != NULL)
            (*bin)->link = &chunk->next;
        chunk->link = bin;
        *bin = chunk;
    }
    atomic_fetch_add(&total_of(arena->device)->kept, chunk->memory.bytes);
}

static void unkeep(struct sw_arena *arena, struct sw_chunk *chunk)
{
    *(chunk->newer != NULL ? &chunk->newer->older : &arena->newest) = chunk->older;
    *(chunk->older != NULL ? &chunk->older->newer : &arena->oldest) = chunk->newer;
    chunk->kept = 0;
    if (chunk->number == SW_SUBALLOC_NONE) {
        if (chunk->next != NULL)
            chunk->next->link = chunk->link;
        *chunk->link = chunk->next;
    }
    atomic_fetch_sub(&total_of(arena->device)->kept, chunk->memory.bytes);
}

static struct sw_chunk *kept_find(struct sw_arena *arena, size_t bytes)
{
    struct sw_chunk *chunk = *bin_of(arena, bytes);

    while (chunk != NULL && chunk->memory.bytes != bytes)
        chunk = chunk->next;
    return chunk;
}

/* Moves kept chunks from an arena to the list until the device keeps at most `bytes`. */
static struct sw_chunk *detach(struct sw_arena *arena, size_t bytes, struct sw_chunk *list)
{
    const struct total *total = total_of(arena->device);

    pthread_mutex_lock(&arena->mutex);
    while (arena->oldest != NULL && atomic_load(&total->kept) > bytes) {
        struct sw_chunk *chunk = arena->oldest;

        unkeep(arena, chunk);
        if (chunk->number != SW_SUBALLOC_NONE)
            sw_suballoc_remove(&arena->suballoc, chunk->number);
        chunk->number = SW_SUBALLOC_NONE; /* the address map still leads to it */
        chunk->next = list;
        list = chunk;
    }
    pthread_mutex_unlock(&arena->mutex);
    return list;
}

int sw_pool_shed(int device, size_t bytes, const struct sw_arena *own)
{
    struct sw_chunk *list = NULL;
    struct sw_arena *arena;
    int pass;

    pthread_mutex_lock(&pool.mutex);
    for (pass = 0; pass < 2; pass++)
        for (arena = pool.arenas; arena != NULL; arena = arena->next)
            if (arena->device == device &&
                (pass == 0 ? arena->orphan : own == NULL || arena == own))
                list = detach(arena, bytes, list);
    pthread_mutex_unlock(&pool.mutex);
    chunks_release(list);
    return list != NULL;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

static void thread_ends(void *first)
{
    struct sw_arena *arena;

    pthread_mutex_lock(&pool.mutex);
    for (arena = first; arena != NULL; arena = arena->sibling)
        arena->orphan = 1;
    pthread_mutex_unlock(&pool.mutex);
    /* If other destructors of this thread make new arenas, this one is called again for those. */
    mine = NULL;
}

static void make_key(void)
{
    pool.has_key = pthread_key_create(&pool.key, thread_ends) == 0;
}

/* Threads with arenas may end after the library is unloaded, and must not call its code then. */
__attribute__((destructor)) static void library_ends(void)
{
    pthread_once(&pool.once, make_key); /* sees the key of whichever thread made it */
    if (pool.has_key)
        pthread_key_delete(pool.key);
}

/* Finds an arena whose thread has ended and which has no allocation: it gives the same offsets as a
 * new arena. Under pool.mutex. */
static struct sw_arena *arena_adopt(int device, unsigned flags)
{
    struct sw_arena *arena;

    for (arena = pool.arenas; arena != NULL; arena = arena->next) {
        uint64_t live;

        if (!arena->orphan || arena->device != device || arena->flags != flags)
            continue;
        pthread_mutex_lock(&arena->mutex);
        live = arena->usage.allocations;
        pthread_mutex_unlock(&arena->mutex);
        if (live == 0) {
            arena->orphan = 0;
            return arena;
        }
    }
    return NULL;
}

static symwin_status arena_make(const char *call, int device, unsigned flags, struct sw_arena **out)
{
    const uint32_t chunk = (flags & SYMWIN_MEM_NCCL) != 0 ? SUBALLOC_CHUNK_NCCL : SUBALLOC_CHUNK;
    struct sw_arena *arena = calloc(1, sizeof *arena);
    struct sw_memory_kind kind;
    size_t total = 0;
    symwin_status status;

    if (arena == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a pool", call);
    arena->device = device;
    arena->flags = flags;
    arena->unit_bits = (flags & SYMWIN_MEM_NCCL) != 0 ? 12 : 9;
    status = sw_memory_kind_find(call, device, &kind);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDeviceTotalMem(&total, device),
                          "%s: cuDeviceTotalMem of device %d", call, device);
    if (status == SYMWIN_OK && pthread_mutex_init(&arena->mutex, NULL) != 0)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no mutex for a pool", call);
    if (status != SYMWIN_OK) {
        free(arena);
        return status;
    }
    arena->granularity = kind.granularity;
    /* 0 units: no suballocation. Also if a chunk is not a whole number of granules. */
    sw_suballoc_init(&arena->suballoc, sw_pool_settings.off || chunk % arena->granularity != 0
                                           ? 0
                                           : chunk >> arena->unit_bits);
    arena->keep = sw_pool_settings.keep != SW_KEEP_DEFAULT ? sw_pool_settings.keep : total / 32;
    pthread_mutex_lock(&pool.mutex);
    arena->next = pool.arenas;
    pool.arenas = arena;
    pthread_mutex_unlock(&pool.mutex);
    *out = arena;
    return SYMWIN_OK;
}

static struct sw_arena *arena_mine(int device, unsigned flags)
{
    struct sw_arena *arena = mine;

    while (arena != NULL && (arena->device != device || arena->flags != flags))
        arena = arena->sibling;
    return arena;
}

static symwin_status arena_begin(const char *call, int device, unsigned flags,
                                 struct sw_arena **out)
{
    symwin_status status = SYMWIN_OK;

    pthread_once(&pool.once, make_key);
    if (!pool.has_key)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no thread-specific key is left", call);
    pthread_mutex_lock(&pool.mutex);
    *out = arena_adopt(device, flags);
    pthread_mutex_unlock(&pool.mutex);
    if (*out == NULL)
        status = arena_make(call, device, flags, out);
    if (status != SYMWIN_OK)
        return status;
    (*out)->sibling = mine;
    mine = *out;
    pthread_setspecific(pool.key, mine); /* if it fails (no memory), nobody adopts the arena */
    return SYMWIN_OK;
}

symwin_status sw_arena_of(const char *call, int device, unsigned flags, struct sw_arena **out)
{
    symwin_status status = sw_fork_check(call);

    if (status != SYMWIN_OK)
        return status;
    *out = device >= 0 ? arena_mine(device, flags) : NULL; /* if found, the device is valid */
    if (*out != NULL)
        return SYMWIN_OK;
    status = sw_device_resolve(call, device, &device);
    if (status != SYMWIN_OK)
        return status;
    *out = arena_mine(device, flags);
    return *out != NULL ? SYMWIN_OK : arena_begin(call, device, flags, out);
}

/* ---- allocation ------------------------------------------------------------------------------ */

static symwin_status chunk_list(const char *call, struct sw_arena *arena,
                                const struct sw_memory *memory, struct sw_chunk **out)
{
    struct sw_chunk *chunk = chunk_new(arena, memory);
    symwin_status status;

    if (chunk == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the allocation", call);
    status = sw_address_map_insert(call, memory->base, memory->range_bytes, chunk);
    if (status != SYMWIN_OK)
        chunk_drop(chunk);
    else
        *out = chunk;
    return status;
}

/* Makes a chunk that is in no list of the arena yet. */
static symwin_status chunk_make(const char *call, struct sw_arena *arena, size_t bytes,
                                struct sw_chunk **out)
{
    const unsigned flags = arena->flags & SYMWIN_MEM_PEERS;
    struct sw_memory_kind kind;
    struct sw_memory memory;
    char text[SW_TEXT_BYTES];
    symwin_status status;

    status = sw_memory_kind_find(call, arena->device, &kind);
    if (status != SYMWIN_OK)
        return status;
    strcpy(text, symwin_last_error());
    status = sw_memory_create(call, &kind, bytes, flags, &memory);
    if (status == SYMWIN_NO_MEMORY && sw_pool_shed(arena->device, 0, NULL)) {
        sw_error_restore(text);
        status = sw_memory_create(call, &kind, bytes, flags, &memory);
    }
    if (status != SYMWIN_OK)
        return status;
    status = chunk_list(call, arena, &memory, out);
    if (status == SYMWIN_OK)
        count_chunk(&memory);
    else
        sw_memory_release(&memory);
    return status;
}

static void count_taken(struct sw_arena *arena, size_t asked, size_t used)
{
    symwin_mem_usage *u = &arena->usage;

    u->asked_bytes += asked;
    u->used_bytes += used;
    u->allocations++;
    u->allocs++;
    if (u->used_bytes > u->peak_used_bytes)
        u->peak_used_bytes = u->used_bytes;
}

static void count_given(struct sw_arena *arena, size_t asked, size_t used)
{
    symwin_mem_usage *u = &arena->usage;

    u->asked_bytes -= asked;
    u->used_bytes -= used;
    u->allocations--;
    u->frees++;
}

/* Takes a single allocation: a kept chunk or a new one. */
static symwin_status take_own(const char *call, struct sw_arena *arena, size_t asked, size_t bytes,
                              CUdeviceptr *ptr)
{
    const size_t granularity = arena->granularity;
    const size_t size = (bytes + granularity - 1) / granularity * granularity;
    struct sw_chunk *chunk;

    pthread_mutex_lock(&arena->mutex);
    chunk = kept_find(arena, size);
    if (chunk != NULL) {
        unkeep(arena, chunk);
    } else {
        symwin_status status;

        pthread_mutex_unlock(&arena->mutex);
        status = chunk_make(call, arena, size, &chunk);
        if (status != SYMWIN_OK)
            return status;
        pthread_mutex_lock(&arena->mutex);
    }
    chunk->in_use = 1;
    chunk->late = 0;
    chunk->asked = asked;
    count_taken(arena, asked, size);
    *ptr = chunk->memory.base;
    pthread_mutex_unlock(&arena->mutex);
    return SYMWIN_OK;
}

static symwin_status add_chunk(const char *call, struct sw_arena *arena)
{
    const size_t bytes = (size_t)arena->suballoc.chunk_units << arena->unit_bits;
    struct sw_chunk *chunk;
    symwin_status status = chunk_make(call, arena, bytes, &chunk);
    int added;

    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&arena->mutex);
    chunk->number = sw_suballoc_add(&arena->suballoc, chunk);
    added = chunk->number != SW_SUBALLOC_NONE;
    if (added)
        keep(arena, chunk);
    pthread_mutex_unlock(&arena->mutex);
    if (added)
        return SYMWIN_OK;
    chunk->next = NULL;
    chunks_release(chunk);
    return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a chunk's lists", call);
}

static symwin_status take_suballocated(const char *call, struct sw_arena *arena, size_t asked,
                                       size_t bytes, CUdeviceptr *ptr)
{
    const uint32_t units = (uint32_t)((bytes + ((size_t)1 << arena->unit_bits) - 1) >>
                                      arena->unit_bits);

    for (;;) {
        enum sw_suballoc_result result;
        symwin_status status;
        uint32_t b;

        pthread_mutex_lock(&arena->mutex);
        result = sw_suballoc_take(&arena->suballoc, units, &b);
        if (result == SW_SUBALLOC_DONE) {
            struct sw_block *block = &arena->suballoc.blocks[b];
            struct sw_chunk *chunk = arena->suballoc.chunks[block->chunk].owner;

            block->asked = asked;
            block->holds = block->late = 0;
            if (chunk->kept)
                unkeep(arena, chunk);
            chunk->in_use++;
            count_taken(arena, asked, (size_t)units << arena->unit_bits);
            *ptr = chunk->memory.base + ((CUdeviceptr)block->begin << arena->unit_bits);
        }
        pthread_mutex_unlock(&arena->mutex);
        if (result == SW_SUBALLOC_DONE)
            return SYMWIN_OK;
        if (result == SW_SUBALLOC_NO_HOST)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to list the allocation", call);
        status = add_chunk(call, arena);
        if (status != SYMWIN_OK)
            return status;
    }
}

symwin_status sw_arena_take(const char *call, struct sw_arena *arena, size_t asked, size_t bytes,
                            int own, CUdeviceptr *ptr)
{
    if (!own && arena->suballoc.chunk_units > 0 && bytes < arena->granularity) {
        const symwin_status status = take_suballocated(call, arena, asked, bytes, ptr);

        if (status != SYMWIN_NO_MEMORY) /* the device may lack memory for a chunk only */
            return status;
    }
    return take_own(call, arena, asked, bytes, ptr);
}

symwin_status sw_pool_import(const char *call, const struct sw_memory *m, size_t offset)
{
    struct sw_chunk *chunk;
    symwin_status status = chunk_list(call, &imports, m, &chunk);

    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&imports.mutex);
    chunk->offset = offset;
    chunk->asked = m->bytes - offset;
    chunk->in_use = 1;
    count_taken(&imports, chunk->asked, chunk->asked);
    pthread_mutex_unlock(&imports.mutex);
    return SYMWIN_OK;
}

/* ---- giving back ----------------------------------------------------------------------------- */

void sw_arena_give(const struct sw_locked *locked, const struct sw_allocation *a)
{
    struct sw_chunk *chunk = locked->chunk;
    struct sw_arena *arena = chunk->arena;

    count_given(arena, a->asked, a->bytes);
    chunk->in_use--;
    if (locked->block != NULL)
        sw_suballoc_give(&arena->suballoc, (uint32_t)(locked->block - arena->suballoc.blocks));
    if (chunk->in_use == 0 && arena != &imports)
        keep(arena, chunk);
}

void sw_pool_settle(struct sw_chunk *chunk)
{
    struct sw_arena *arena = chunk->arena;

    if (arena == &imports)
        chunks_release(chunk);
    else if (atomic_load_explicit(&total_of(arena->device)->kept, memory_order_relaxed) >
             arena->keep)
        sw_pool_shed(arena->device, arena->keep, arena);
}

void sw_pool_settle_later(void)
{
    atomic_store(&pool.late, 1);
}

void sw_allocations_settle(void)
{
    struct sw_chunk *list = NULL;
    struct sw_arena *arena;

    if (atomic_load_explicit(&pool.late, memory_order_relaxed) == 0 ||
        atomic_exchange(&pool.late, 0) == 0)
        return;
    pthread_mutex_lock(&pool.mutex);
    for (arena = pool.arenas; arena != NULL; arena = arena->next)
        list = detach(arena, arena->keep, list);
    pthread_mutex_unlock(&pool.mutex);
    chunks_release(list);
}

/* ---- statistics ------------------------------------------------------------------------------ */

void sw_pool_totals(int device, symwin_mem_usage *usage)
{
    const struct total *total = total_of(device);

    usage->reserved_bytes = atomic_load(&total->reserved);
    usage->peak_reserved_bytes = atomic_load(&total->peak_reserved);
    usage->kept_bytes = atomic_load(&total->kept);
    usage->chunks = atomic_load(&total->chunks);
    usage->creates = atomic_load(&total->creates);
    usage->releases = atomic_load(&total->releases);
}

void sw_pool_each(void (*see)(const struct sw_arena *arena, void *context), void *context)
{
    struct sw_arena *arena;

    pthread_mutex_lock(&pool.mutex);
    for (arena = pool.arenas; arena != NULL; arena = arena->next) {
        pthread_mutex_lock(&arena->mutex);
        see(arena, context);
        pthread_mutex_unlock(&arena->mutex);
    }
    pthread_mutex_unlock(&pool.mutex);
}
