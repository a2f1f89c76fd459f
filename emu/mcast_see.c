/* This process's copy of a multicast object's state: its devices and bindings as last read, and the
 * addresses of the bound memory in this process. Kernels compare versions at each access; if
 * another process has changed the state since, they update the copy first.
 *
 * Memory bound by another process is mapped here, unless this process has a handle of it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mcast.h"

/* ---- bindings -------------------------------------------------------------------------------- */

static void targets_set(struct emu_multicast *mc, const struct seen_bind *b, unsigned char *memory)
{
    for (size_t at = 0; at < b->bytes; at += EMU_GRANULE)
        atomic_store_explicit(
            &mc->targets[((b->offset + at) >> EMU_GRANULE_SHIFT) * mc->size + b->member],
            memory != NULL ? memory + at : NULL, memory_order_release);
}

/* NULL if the process that bound it no longer has it. */
static const struct guest *guest_of(struct emu_multicast *mc, const struct emu_place *place)
{
    struct emu_passport passport;
    struct guest *g;
    void *memory;
    int fd;

    for (g = mc->guests; g != NULL; g = g->next)
        if (memcmp(&g->id, &place->id, sizeof g->id) == 0)
            return g;
    fd = emu_place_open(place, EMU_PHYSICAL, ~0u, &passport);
    if (fd < 0)
        return NULL;
    memory = mmap(NULL, passport.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    g = memory != MAP_FAILED ? malloc(sizeof *g) : NULL;
    if (g != NULL) {
        *g = (struct guest){mc->guests, place->id, memory, passport.bytes};
        mc->guests = g;
    } else if (memory != MAP_FAILED) {
        munmap(memory, passport.bytes);
    }
    return g;
}

static void bind_find_memory(struct emu_multicast *mc, const struct emu_team_bind *record,
                             struct seen_bind *b)
{
    const struct guest *guest = NULL;

    b->p = (const struct emu_physical *)emu_object_named(EMU_PHYSICAL, &record->memory.id);
    if (b->p != NULL)
        b->memory = b->p->memory + record->memory_offset;
    else if (!b->is_own && (guest = guest_of(mc, &record->memory)) != NULL &&
             record->memory_offset + b->bytes <= guest->bytes)
        b->memory = guest->memory + record->memory_offset;
}

static void bind_see(struct emu_multicast *mc, const struct emu_team_bind *record,
                     struct seen_bind *b)
{
    *b = (struct seen_bind){.serial = atomic_load(&record->serial)};
    if (b->serial == 0)
        return;
    b->member = record->member;
    b->offset = record->offset;
    b->bytes = record->bytes;
    b->is_own = record->seat == mc->team.seat;
    if (!record->gone)
        bind_find_memory(mc, record, b);
    if (b->memory != NULL)
        targets_set(mc, b, b->memory);
    if (b->is_own)
        emu_live_add(EMU_LIVE_BIND, 1);
}

static void bind_forget(struct emu_multicast *mc, struct seen_bind *b)
{
    if (b->memory != NULL)
        targets_set(mc, b, NULL);
    if (b->serial != 0 && b->is_own)
        emu_live_add(EMU_LIVE_BIND, -1);
    *b = (struct seen_bind){0};
}

int emu_multicast_reserve(struct emu_multicast *mc, uint64_t count)
{
    struct seen_bind *grown;

    if (count <= mc->bind_count)
        return 0;
    grown = realloc(mc->binds, count * sizeof *grown);
    if (grown == NULL)
        return -1;
    memset(grown + mc->bind_count, 0, (count - mc->bind_count) * sizeof *grown);
    mc->binds = grown;
    mc->bind_count = count;
    return 0;
}

/* ---- the whole state ------------------------------------------------------------------------- */

CUresult emu_multicast_see(struct emu_multicast *mc)
{
    const struct emu_team_state *state = mc->team.state;

    if (emu_multicast_reserve(mc, state->bind_count) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (; mc->added < atomic_load(&state->added); mc->added++) {
        mc->devices[mc->added] = state->devices[mc->added];
        mc->is_member[state->devices[mc->added]] = 1;
    }
    /* First all bindings that are gone, then new ones, which may be at the same place. */
    for (uint64_t i = 0; i < mc->bind_count; i++)
        if (i >= state->bind_count || mc->binds[i].serial != atomic_load(&state->binds[i].serial))
            bind_forget(mc, &mc->binds[i]);
    for (uint64_t i = 0; i < state->bind_count; i++)
        if (mc->binds[i].serial != atomic_load(&state->binds[i].serial))
            bind_see(mc, &state->binds[i], &mc->binds[i]);
    atomic_store(&mc->version, atomic_load(&state->version));
    return CUDA_SUCCESS;
}

static int is_seen(struct emu_multicast *mc)
{
    const struct emu_team_state *shared = atomic_load_explicit(&mc->shared, memory_order_acquire);

    return shared == NULL || atomic_load_explicit(&shared->version, memory_order_acquire) ==
                                 atomic_load_explicit(&mc->version, memory_order_acquire);
}

void emu_multicast_catch_up(struct emu_multicast *mc)
{
    if (is_seen(mc))
        return;
    emu_team_lock(&mc->team);
    (void)emu_multicast_see(mc);
    emu_team_unlock(&mc->team);
}

void emu_multicast_see_nothing(struct emu_multicast *mc)
{
    struct guest *guest;

    for (uint64_t i = 0; i < mc->bind_count; i++)
        bind_forget(mc, &mc->binds[i]);
    free(mc->binds);
    while ((guest = mc->guests) != NULL) {
        mc->guests = guest->next;
        munmap(guest->memory, guest->bytes);
        free(guest);
    }
}

/* The table of objects no longer has this one of the memory. If it has no other, own bindings of it
 * end for all processes; memory that other processes have bound must be opened through them
 * again. */
static void memory_gone(struct emu_multicast *mc, const struct emu_physical *p)
{
    emu_team_lock(&mc->team);
    for (uint64_t i = 0; i < mc->bind_count; i++) {
        struct seen_bind *b = &mc->binds[i];
        struct emu_team_bind *record = &mc->team.state->binds[i];

        if (b->p != p)
            continue;
        if (b->serial != atomic_load(&record->serial)) {
            bind_forget(mc, b);
            continue;
        }
        b->memory = NULL;
        bind_find_memory(mc, record, b);
        targets_set(mc, b, b->memory);
        if (b->memory == NULL && b->is_own) {
            bind_forget(mc, b);
            record->gone = 1;
            emu_team_announce(&mc->team, record);
        }
    }
    (void)emu_multicast_see(mc);
    emu_team_unlock(&mc->team);
}

void emu_multicast_memory_gone(const struct emu_physical *p)
{
    struct emu_multicast *mc;
    size_t at = 0;

    while ((mc = (struct emu_multicast *)emu_object_next(EMU_MULTICAST, &at)) != NULL) {
        uint64_t i = 0;

        while (i < mc->bind_count && mc->binds[i].p != p)
            i++;
        if (i < mc->bind_count)
            memory_gone(mc, p);
    }
}

/* ---- access ---------------------------------------------------------------------------------- */

/* The member's memory at the offset, if the whole range is bound to contiguous memory. */
static unsigned char *target_at(const struct emu_multicast *mc, unsigned member, size_t offset,
                                size_t bytes)
{
    const size_t first = offset >> EMU_GRANULE_SHIFT;
    const size_t last = bytes > 0 ? (offset + bytes - 1) >> EMU_GRANULE_SHIFT : first;
    unsigned char *base = atomic_load_explicit(&mc->targets[first * mc->size + member],
                                               memory_order_acquire);

    for (size_t i = first + 1; base != NULL && i <= last; i++)
        if (atomic_load_explicit(&mc->targets[i * mc->size + member], memory_order_acquire) !=
            base + (i - first) * EMU_GRANULE)
            return NULL;
    return base != NULL ? base + offset % EMU_GRANULE : NULL;
}

int emu_multicast_access(CUdevice device, CUdeviceptr addr, size_t bytes, int write,
                         void *targets[EMU_MAX_DEVICES])
{
    const struct emu_mapping *m = emu_mapping_at(addr);
    struct emu_multicast *mc;

    if (m == NULL || m->multicast == NULL || bytes > m->bytes || addr - m->va > m->bytes - bytes ||
        !emu_may_access(m, device, write))
        return 0;
    mc = m->multicast;
    if (!is_seen(mc)) {
        pthread_mutex_lock(&emu_memory_mutex);
        emu_multicast_catch_up(mc);
        pthread_mutex_unlock(&emu_memory_mutex);
    }
    if (!mc->is_member[device])
        return 0;
    for (unsigned i = 0; i < mc->size; i++) {
        targets[i] = target_at(mc, i, (size_t)(addr - m->va), bytes);
        if (targets[i] == NULL)
            return 0;
    }
    return (int)mc->size;
}
