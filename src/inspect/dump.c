/* The state of this process as text: pools with chunks and allocations, communicators with windows.
 *
 * The whole text is made in host memory first. A reader may be slow, and must not hold up a thread
 * that needs a lock. symwin/inspect.h documents the format. Any thread.
 */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/channel/channel.h"
#include "src/inspect/inspect.h"
#include "src/memory/pool.h"
#include "src/rails/rails.h"
#include "src/window/multicast.h"
#include "src/window/register.h"

enum { DEVICES = 256 };

struct text {
    char *bytes; /* owned */
    size_t used, room;
    unsigned lines;
    int failed;                     /* no host memory: the text is incomplete */
    unsigned arenas, comms;         /* listed so far */
    unsigned char devices[DEVICES]; /* 1: has an arena */
};

/* Appends a line. */
__attribute__((format(printf, 2, 3))) static void line(struct text *t, const char *format, ...)
{
    enum { LONGEST = 1024 };
    va_list args;

    if (t->room - t->used < LONGEST && !t->failed) {
        const size_t room = 2 * t->room + 4 * LONGEST;
        char *bytes = realloc(t->bytes, room);

        t->failed = bytes == NULL;
        if (bytes != NULL) {
            t->bytes = bytes;
            t->room = room;
        }
    }
    if (t->failed)
        return;
    va_start(args, format);
    t->used += (size_t)vsnprintf(t->bytes + t->used, LONGEST - 1, format, args);
    va_end(args);
    t->bytes[t->used++] = '\n';
    t->lines++;
}

/* ---- pools ----------------------------------------------------------------------------------- */

static void see_device(const struct sw_arena *arena, void *context)
{
    struct text *t = context;

    if (arena->device >= 0 && arena->device < DEVICES)
        t->devices[arena->device] = 1;
}

static void device_line(struct text *t, int device)
{
    symwin_mem_usage u;

    sw_pool_usage(device, &u);
    line(t,
         "device %d asked_bytes=%llu used_bytes=%llu reserved_bytes=%llu kept_bytes=%llu "
         "largest_free_bytes=%llu peak_used_bytes=%llu peak_reserved_bytes=%llu allocations=%llu "
         "chunks=%llu allocs=%llu frees=%llu creates=%llu releases=%llu",
         device, (unsigned long long)u.asked_bytes, (unsigned long long)u.used_bytes,
         (unsigned long long)u.reserved_bytes, (unsigned long long)u.kept_bytes,
         (unsigned long long)u.largest_free_bytes, (unsigned long long)u.peak_used_bytes,
         (unsigned long long)u.peak_reserved_bytes, (unsigned long long)u.allocations,
         (unsigned long long)u.chunks, (unsigned long long)u.allocs, (unsigned long long)u.frees,
         (unsigned long long)u.creates, (unsigned long long)u.releases);
}

static void alloc_line(struct text *t, const struct sw_chunk *chunk, size_t offset, size_t asked,
                       size_t bytes, int windows)
{
    line(t, "alloc 0x%llx chunk=0x%llx offset=%zu asked=%zu bytes=%zu windows=%d",
         chunk->memory.base + offset, chunk->memory.base, offset, asked, bytes, windows);
}

/* The blocks of a chunk that are in use, by offset. */
static void see_blocks(struct text *t, const struct sw_arena *arena, const struct sw_chunk *chunk)
{
    const struct sw_suballoc *suballoc = &arena->suballoc;
    uint32_t b = suballoc->chunks[chunk->number].starts[0] - 1;

    for (; b != SW_SUBALLOC_NONE; b = suballoc->blocks[b].after) {
        const struct sw_block *block = &suballoc->blocks[b];

        if (block->in_use)
            alloc_line(t, chunk, (size_t)block->begin << arena->unit_bits, block->asked,
                       (size_t)block->units << arena->unit_bits, block->holds);
    }
}

static const char *arena_flags(const struct sw_arena *arena)
{
    if (arena->device < 0)
        return "imported";
    switch (arena->flags & (SYMWIN_MEM_PEERS | SYMWIN_MEM_NCCL)) {
    case SYMWIN_MEM_PEERS | SYMWIN_MEM_NCCL:
        return "peers,nccl";
    case SYMWIN_MEM_PEERS:
        return "peers";
    case SYMWIN_MEM_NCCL:
        return "nccl";
    default:
        return "-";
    }
}

/* The arena of imported memory has a line only if memory was ever imported. */
static void see_arena(const struct sw_arena *arena, void *context)
{
    struct text *t = context;
    const unsigned number = t->arenas++;
    const struct sw_chunk *chunk;

    if (arena->device < 0 && arena->usage.allocs == 0)
        return;
    line(t, "arena %u device=%d flags=%s thread=%s keep=%zu unit=%zu allocations=%llu used=%llu",
         number, arena->device, arena_flags(arena), arena->orphan ? "ended" : "alive", arena->keep,
         (size_t)1 << arena->unit_bits, (unsigned long long)arena->usage.allocations,
         (unsigned long long)arena->usage.used_bytes);
    for (chunk = arena->every; chunk != NULL; chunk = chunk->every) {
        const struct sw_memory *m = &chunk->memory;

        /* Neither in use nor kept: it is being created or released. */
        if (m->stage != SW_MEMORY_MAPPED || (chunk->in_use == 0 && !chunk->kept))
            continue;
        line(t, "chunk 0x%llx arena=%u device=%d bytes=%zu use=%s allocations=%u kept=%d", m->base,
             number, m->device, m->bytes,
             m->imported                         ? "imported"
             : chunk->number != SW_SUBALLOC_NONE ? "suballocated"
                                                 : "own",
             chunk->in_use, chunk->kept);
        if (chunk->number != SW_SUBALLOC_NONE)
            see_blocks(t, arena, chunk);
        else if (chunk->in_use > 0)
            alloc_line(t, chunk, chunk->offset, chunk->asked, m->bytes - chunk->offset,
                       chunk->holds);
    }
}

/* ---- communicators --------------------------------------------------------------------------- */

static void see_range(const struct sw_range *range, const struct sw_connected *c, unsigned graphs,
                      void *context)
{
    struct text *t = context;
    const unsigned transports = c != NULL ? c->window.transports : 0;
    const char *how = "none";

    if (c != NULL && c->refused[0] != '\0')
        how = "refused";
    else if ((transports & SYMWIN_TRANSPORT_MULTICAST) != 0)
        how = "peer,multicast";
    else if (transports != 0)
        how = "peer";
    line(t, "range 0x%llx comm=%u bytes=%zu local=%u graph=%u nccl=%d transports=%s",
         (unsigned long long)range->begin, t->comms - 1, (size_t)(range->end - range->begin),
         range->refs, graphs, range->nccl != NULL, how);
}

static void see_channel(const struct sw_end *end, void *context)
{
    struct text *t = context;

    line(t, "channel 0x%llx comm=%u peer=%d bytes=%zu lanes=%u state=%s memory=%s",
         (unsigned long long)(uintptr_t)end->ptr, t->comms - 1, end->peer, end->bytes, end->lanes,
         end->state == SW_END_CONNECTED ? "connected"
         : end->state == SW_END_FAILED  ? "failed"
                                        : "offered",
         end->bytes == 0 ? "none"
         : end->window   ? "window"
                         : "other");
}

static void see_comm(symwin_comm *comm, void *context)
{
    struct text *t = context;
    const unsigned number = t->comms++;
    /* Without the communicator's own. One over several domains has none, and is followed by one of
     * its domain. */
    const int allocations = comm->wide != NULL ? 0 : sw_segment_count(comm->group) - 1;
    const struct sw_window *w;
    size_t at = 0;

    pthread_mutex_lock(&comm->mutex);
    line(t,
         "comm %u rank=%d nranks=%d device=%d base=0x%llx stride=%zu multicast=%d allocations=%d "
         "windows=%zu name=%s",
         number, comm->rank, comm->nranks, comm->device, comm->group->base, comm->group->stride,
         sw_multicast_is_possible(comm->group), allocations, comm->windows.count,
         comm->name[0] != '\0' ? comm->name : "-");
    if (comm->wide != NULL)
        line(t, "domain %d comm=%u domains=%d rank=%d ranks=%d rails=%d", comm->wide->domain,
             number, comm->wide->domains.count, comm->wide->index,
             comm->wide->domains.size_of[comm->wide->domain], comm->wide->domains.rails);
    while ((w = sw_handle_table_next(&comm->windows, &at)) != NULL)
        line(t, "window 0x%llx comm=%u bytes=%zu offset=%zu transports=%s allocations=%d",
             (unsigned long long)(uintptr_t)w->ptr, number, w->bytes, w->offset,
             (w->transports & SYMWIN_TRANSPORT_MULTICAST) != 0 ? "peer,multicast" : "peer",
             w->pieces);
    pthread_mutex_unlock(&comm->mutex);
    sw_registrations_each(comm, see_range, t);
    sw_channels_each(comm, see_channel, t);
}

symwin_status symwin_comm_set_name(symwin_comm *comm, const char *name)
{
    static const char others[] = "_-.:/#";
    const symwin_status status = sw_fork_check("symwin_comm_set_name");
    size_t i;

    if (status != SYMWIN_OK)
        return status;
    if (comm == NULL || name == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_comm_set_name: %s is NULL",
                       comm == NULL ? "comm" : "name");
    pthread_mutex_lock(&comm->mutex);
    for (i = 0; i < sizeof comm->name - 1 && name[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)name[i];

        comm->name[i] = (char)(c < 128 && (isalnum(c) || strchr(others, c) != NULL) ? c : '_');
    }
    comm->name[i] = '\0';
    pthread_mutex_unlock(&comm->mutex);
    return SYMWIN_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Returns 0 or an errno. */
static int write_all(int fd, const char *bytes, size_t left)
{
    while (left > 0) {
        const ssize_t wrote = write(fd, bytes, left);

        if (wrote >= 0) {
            bytes += wrote;
            left -= (size_t)wrote;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            struct pollfd ready = {.fd = fd, .events = POLLOUT};

            if (poll(&ready, 1, -1) < 0 && errno != EINTR)
                return errno;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* The same without a visible SIGPIPE, however the process handles it. The signal goes to this
 * thread only; it is blocked, and consumed before it is unblocked. A SIGPIPE that was pending
 * before stays. */
static int write_quietly(int fd, const char *bytes, size_t left)
{
    const struct timespec now = {0};
    sigset_t broken, before, pending;
    int error;

    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    error = write_all(fd, bytes, left);
    if (error == EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&broken, NULL, &now) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static symwin_status write_status(int error)
{
    switch (error) {
    case EBADF:
    case EINVAL:
        return SYMWIN_INVALID;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return SYMWIN_NO_MEMORY;
    default:
        return SYMWIN_DENIED;
    }
}

symwin_status sw_dump_text(const char *call, char **bytes, size_t *count)
{
    symwin_status status = sw_fork_check(call);
    struct text t = {0};
    int device;

    if (status != SYMWIN_OK)
        return status; /* a forked child: the owners of its locks may not exist */
    line(&t, "symwin-dump 1 pid=%ld version=%s", (long)getpid(), symwin_version());
    sw_pool_each(see_device, &t);
    for (device = 0; device < DEVICES; device++)
        if (t.devices[device])
            device_line(&t, device);
    sw_pool_each(see_arena, &t);
    sw_comm_each(see_comm, &t);
    line(&t, "end lines=%u", t.lines);
    if (t.failed) {
        free(t.bytes);
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for the text", call);
    }
    *bytes = t.bytes;
    *count = t.used;
    return SYMWIN_OK;
}

symwin_status symwin_dump(int fd)
{
    static const char call[] = "symwin_dump";
    size_t count = 0;
    char *bytes = NULL;
    symwin_status status = sw_dump_text(call, &bytes, &count);
    int error;

    if (status != SYMWIN_OK)
        return status;
    error = write_quietly(fd, bytes, count);
    free(bytes);
    if (error != 0)
        return sw_fail(write_status(error), "%s: descriptor %d cannot be written to: %s", call, fd,
                       strerror(error));
    return SYMWIN_OK;
}
