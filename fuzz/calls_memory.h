/* Steps of fuzz/calls.c on memory: what each rank calls, and the effect on the model. */
#ifndef SYMWIN_FUZZ_CALLS_MEMORY_H
#define SYMWIN_FUZZ_CALLS_MEMORY_H

#include <unistd.h>

#include "calls_agreements.h"

/* ---- steps: memory ---- */

static void step_alloc(const struct step *s, int rank, struct call *c)
{
    static const size_t sizes[] = {1,           GRANULE - 1, GRANULE,      GRANULE + 1,
                                   3 * GRANULE, GRANULE,     2 * GRANULE,  1,
                                   0,           SIZE_MAX,    SIZE_MAX / 4, (size_t)2 << 30};
    static const size_t large[] = {(size_t)300 << 20, (size_t)600 << 20, (size_t)256 << 20,
                                   (size_t)1 << 30,   5 * GRANULE,       7 * GRANULE};
    static const unsigned flags[] = {
        0, SYMWIN_MEM_NCCL, SYMWIN_MEM_OWN, SYMWIN_MEM_PEERS, 0, 8, 0x80000001u, 0};
    static const int devices[] = {0, 0, 0, 0, 0, 0, NO_DEVICE, SYMWIN_DEVICE_CURRENT};
    const size_t shift = rank == s->odd ? s->twist : 0;

    if (model.memory[rank][s->a % MEMORIES].owner != NOBODY)
        return;
    c->kind = CALL_ALLOC;
    c->bytes = sizes[(s->b + shift) % (sizeof sizes / sizeof sizes[0])];
    if (s->b >= 160)
        c->bytes = large[(s->b + shift) % (sizeof large / sizeof large[0])];
    c->flags = flags[s->c % 8];
    c->device = devices[s->c / 8 % 8];
    if (c->device == 0)
        c->device = model.device[rank];
    c->no_result = s->a / MEMORIES == 1;
    /* Another rank on the device may be faster: see check_exhausted(). */
    c->want = OK_ONLY | (ranks_on(c->device) > 1 ? ONLY(SYMWIN_NO_MEMORY) : 0);
    if (c->bytes > memory_left(c->device))
        c->want = ONLY(SYMWIN_NO_MEMORY);
    if (c->bytes == 0 || c->bytes == SIZE_MAX || c->flags > 7 || c->no_result ||
        c->device != model.device[rank])
        c->want = INVALID_ONLY;
}

/* The handle of what is mapped there, which stays the same as long as anything holds it. */
static uint64_t handle_at(const void *ptr)
{
    CUmemGenericAllocationHandle handle = 0;

    fuzz_must(sw_drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) == CUDA_SUCCESS &&
                  sw_drv.cuMemRelease(handle) == CUDA_SUCCESS,
              "no memory is mapped at %p", ptr);
    return handle;
}

/* Notes the identity of new memory, as the library and the driver report it. */
static void memory_note(struct memory *m)
{
    symwin_mem_info info;
    int r, i;

    fuzz_must(symwin_mem_query(m->ptr, &info) == SYMWIN_OK, "%s", symwin_last_error());
    fuzz_must(info.base == m->ptr && info.bytes >= m->bytes && info.bytes % GRANULE == 0 &&
                  info.bytes - m->bytes < GRANULE && info.device == m->device &&
                  info.owned == (int)m->owner && info.registrations == 0,
              "new memory of %zu bytes on device %d has %zu at %p on %d", m->bytes, m->device,
              info.bytes, info.base, info.device);
    m->bytes = info.bytes;
    m->id = info.buffer_id;
    m->handle = handle_at(m->ptr);
    for (r = 0; r < model.nranks; r++)
        for (i = 0; i < MEMORIES; i++)
            fuzz_must(
                model.memory[r][i].owner == NOBODY || &model.memory[r][i] == m ||
                    (model.memory[r][i].id != m->id && model.memory[r][i].handle != m->handle),
                "new memory has the buffer id or the handle of another");
}

static void done_alloc(const struct step *s, int rank, const struct call *c)
{
    struct memory *m = &model.memory[rank][s->a % MEMORIES];

    if (c->got != SYMWIN_OK)
        return;
    m->owner = ALLOCATED;
    m->ptr = c->result.pointer;
    m->bytes = m->asked = c->bytes;
    m->device = c->device;
    memory_note(m);
    m->physical = m->id;
    physical_note(m);
}

/* A rank that got no memory must have asked for more than is left when all ranks have got
 * theirs. */
static void check_exhausted(void)
{
    int r;

    for (r = 0; r < model.nranks; r++)
        if (calls[r].kind == CALL_ALLOC && calls[r].got == SYMWIN_NO_MEMORY)
            fuzz_must(calls[r].bytes > memory_left(calls[r].device),
                      "no memory for %zu bytes, and %zu are left", calls[r].bytes,
                      memory_left(calls[r].device));
}

/* A free of held memory first releases what ended graphs held. */
static int frees_settle;

static void step_free(const struct step *s, int rank, struct call *c)
{
    const struct memory *m = &model.memory[rank][s->a % MEMORIES];

    c->kind = CALL_FREE;
    c->ptr = m->owner != NOBODY ? m->ptr : NULL;
    c->want = m->owner != NOBODY && holds_settled(m) > 0 ? ONLY(SYMWIN_BUSY) : OK_ONLY;
    if (rank == 0)
        frees_settle = 0;
    switch (s->b % 16) {
    case 1:
        if (m->owner == NOBODY)
            break;
        c->ptr = m->ptr + 1 + s->c;
        c->want = INVALID_ONLY;
        break;
    case 2:
    case 3:
        if (m->stale == NULL || memory_of(m->stale) != NULL)
            break;
        c->ptr = m->stale; /* a communicator's own memory may be there by now */
        c->want = INVALID_ONLY | ONLY(SYMWIN_BUSY);
        break;
    case 4:
        c->ptr = host_memory;
        c->want = INVALID_ONLY;
        break;
    case 5:
        if (model.comm[s->c % COMMS].members == 0)
            break;
        c->ptr = (char *)model.comm[s->c % COMMS].info.base + GRANULE;
        c->want = INVALID_ONLY;
        break;
    case 6:
        c->ptr = NULL;
        c->want = OK_ONLY;
        break;
    }
    if (rank == s->odd && c->ptr == m->ptr)
        c->kind = CALL_NONE;
    m = c->kind != CALL_NONE && c->ptr != NULL ? memory_of(c->ptr) : NULL;
    frees_settle |= m != NULL && holds_of(m) > 0;
}

static void done_free(const struct step *s, int rank, const struct call *c)
{
    struct memory *m = &model.memory[rank][s->a % MEMORIES];

    if (frees_settle)
        settle_all();
    frees_settle = 0;
    if (c->got != SYMWIN_OK || c->ptr == NULL)
        return;
    m->stale = m->ptr;
    m->owner = NOBODY;
}

static void step_mem_query(const struct step *s, int rank, struct call *c)
{
    const struct memory *m = &model.memory[rank][s->a % MEMORIES];
    const size_t offsets[] = {0, 1, GRANULE - 1, m->bytes - 1, s->c, m->bytes / 2};

    c->kind = CALL_MEM_QUERY;
    c->no_result = s->a / MEMORIES == 1;
    c->want = c->no_result ? INVALID_ONLY : OK_ONLY;
    if (m->owner != NOBODY) {
        c->ptr = m->ptr + offsets[s->b % 6];
    } else if (s->b % 3 == 1 && m->stale != NULL) {
        c->ptr = m->stale; /* whatever is there now */
        c->want |= INVALID_ONLY;
    } else {
        c->ptr = s->b % 3 == 2 ? host_memory : NULL;
        c->want = INVALID_ONLY;
    }
}

static unsigned handle_types(void)
{
    return SYMWIN_HANDLE_POSIX_FD | (model.fabric ? SYMWIN_HANDLE_FABRIC : 0);
}

static void done_mem_query(const struct step *s, int rank, const struct call *c)
{
    const struct memory *m = &model.memory[rank][s->a % MEMORIES];
    const symwin_mem_info *info = &c->result.memory;

    if (c->got != SYMWIN_OK || m->owner == NOBODY)
        return;
    fuzz_must(info->base == m->ptr && info->bytes == m->bytes && info->device == m->device &&
                  info->buffer_id == m->id && info->owned == (int)m->owner &&
                  info->registrations == holds_of(m) && info->handle_types == handle_types(),
              "memory of %zu bytes that is held %d times has %zu and %d", m->bytes, holds_of(m),
              info->bytes, info->registrations);
}

/* ---- steps: export and import ---- */

static void step_export(const struct step *s, int rank, struct call *c)
{
    static const unsigned types[] = {1, 1, 1, 1, SYMWIN_HANDLE_FABRIC, SYMWIN_HANDLE_FABRIC, 0, 3};
    const struct memory *m = &model.memory[rank][s->a % MEMORIES];

    if (model.exported[rank][s->b % EXPORTS].live)
        return;
    c->kind = CALL_EXPORT;
    c->ptr = m->owner != NOBODY ? m->ptr + s->c / 8 * (m->bytes / 64) : NULL;
    c->type = types[s->c % 8];
    c->no_result = s->a / MEMORIES == 1;
    c->want = OK_ONLY;
    if (m->owner == IMPORTED || (c->type == SYMWIN_HANDLE_FABRIC && !model.fabric))
        c->want = ONLY(SYMWIN_UNSUPPORTED);
    if (c->ptr == NULL || c->no_result || c->type == 0 || c->type == 3)
        c->want = INVALID_ONLY;
}

static void done_export(const struct step *s, int rank, const struct call *c)
{
    const struct memory *m = &model.memory[rank][s->a % MEMORIES];
    struct exported *e = &model.exported[rank][s->b % EXPORTS];

    if (c->got != SYMWIN_OK)
        return;
    *e = (struct exported){1, c->result.handle, m->device, m->physical};
    fuzz_must(e->handle.type == c->type && e->handle.bytes == m->bytes &&
                  e->handle.offset == (size_t)((char *)c->ptr - m->ptr) &&
                  (c->type == SYMWIN_HANDLE_POSIX_FD
                       ? (fcntl(e->handle.fd, F_GETFD) & FD_CLOEXEC) != 0
                       : e->handle.fd == -1),
              "the export is of type %u and %zu bytes, descriptor %d", e->handle.type,
              e->handle.bytes, e->handle.fd);
}

static void close_export(struct exported *e)
{
    if (e->live && e->handle.fd >= 0)
        fuzz_must(close(e->handle.fd) == 0, "an exported descriptor was closed");
    e->live = 0;
}

static void step_close(const struct step *s, int rank, struct call *c)
{
    (void)c;
    close_export(&model.exported[rank][s->b % EXPORTS]);
}

static const struct exported *exported_for(const struct step *s, int rank)
{
    return &model.exported[(rank + (int)(s->twist >> 2)) % model.nranks][s->b % EXPORTS];
}

static void step_import(const struct step *s, int rank, struct call *c)
{
    static symwin_mem_handle handles[RANKS];
    const struct exported *e = exported_for(s, rank);
    symwin_mem_handle *h = &handles[rank];

    if (!e->live || model.memory[rank][s->a % MEMORIES].owner != NOBODY)
        return;
    c->kind = CALL_IMPORT;
    c->device = model.device[rank];
    *h = e->handle;
    h->offset = 0; /* the model identifies memory by its first byte */
    c->handle = h;
    c->no_result = s->a / MEMORIES == 1;
    c->want = c->no_result || !is_held(e->physical) ? INVALID_ONLY : OK_ONLY;
    if (!is_held(e->physical)) /* what was freed may be there until it is unmapped */
        (void)sw_reaper_wait(10000);
    switch (s->c % 16) {
    case 1:
        h->bytes += GRANULE;
        break;
    case 2:
        h->bytes = 0;
        break;
    case 3:
        h->bytes--;
        break;
    case 4:
        h->bytes = SIZE_MAX - s->c;
        break;
    case 5:
        h->type = 0;
        break;
    case 6:
        c->device = NO_DEVICE;
        break;
    case 7:
        c->handle = NULL;
        break;
    case 8: /* the other type */
        h->type ^= SYMWIN_HANDLE_POSIX_FD ^ SYMWIN_HANDLE_FABRIC;
        break;
    case 9:
        h->fd = h->fd >= 0 ? -1 : 0;
        h->fabric[s->twist / 4] ^= 1;
        break;
    case 10:
        h->fd = h->fd >= 0 ? 0 : -1; /* an open descriptor, but no memory */
        h->fabric[s->twist / 4] ^= 0x80;
        break;
    default:
        return;
    }
    c->want = INVALID_ONLY;
    if (c->handle != NULL && !c->no_result && h->type == SYMWIN_HANDLE_FABRIC && !model.fabric)
        c->want = ONLY(SYMWIN_UNSUPPORTED);
}

static void done_import(const struct step *s, int rank, const struct call *c)
{
    struct memory *m = &model.memory[rank][s->a % MEMORIES];
    const struct exported *e = exported_for(s, rank);

    if (c->got != SYMWIN_OK)
        return;
    m->owner = IMPORTED;
    m->ptr = c->result.pointer;
    m->bytes = m->asked = c->handle->bytes;
    m->device = e->device;
    m->physical = e->physical;
    memory_note(m);
}

#endif
