/* Segments: physical allocations of every rank at one offset of the flat range.
 *
 *   group.base      + stride        + 2 * stride    ...   + nranks * stride
 *   | . seg A . B   | . seg A . B   | . seg A . B         | . A . B (multicast) |
 *
 * A rank's stretch is one physical allocation, or several that adjoin at the rank's own addresses,
 * each mapped at its own offset. Stretches of different ranks may have other pieces and other
 * beginnings; they are placed so that a window in them has one offset on all ranks
 * (window_register.c).
 *
 * All ranks of a process share its flat range, so an allocation is mapped once for all devices
 * of the process. Each rank maps its own stretch; the leader maps those of ranks in other
 * processes (handle_exchange.c). The last rank of the process to release a segment unmaps all
 * stretches, in the order that the driver demands: bindings first. (The multicast object stays
 * mapped until the range ends.) Offsets are the same in all processes, which agree on one that
 * is free in all of them (window_register.c).
 *
 * What is bound to the multicast object is memory that other processes reach through their own
 * mappings of the object, so it stays bound until no process uses the segment. Until they have
 * agreed on that, in some later call, the segment is unused, and can be found again.
 *
 * The group's mutex protects the list of segments, the references and `mapped`. The other fields of
 * a segment change only in the agreed steps of a registration, and when it is destroyed.
 */
#include <stdlib.h>

#include "src/window/window.h"

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* The first of `count` consecutive pieces of the rank that are these allocations, in this order, at
 * the same mappings; NULL: there is none. */
static const struct sw_segment_piece *find_run(const struct sw_segment_rank *rank,
                                               const struct sw_physical *pieces, int count)
{
    int first, i;

    for (first = 0; first + count <= rank->stretch.pieces; first++) {
        for (i = 0; i < count && rank->pieces[first + i].buffer_id == pieces[i].buffer_id; i++)
            ;
        if (i == count)
            return &rank->pieces[first];
    }
    return NULL;
}

struct sw_segment *sw_segment_find(struct sw_group *group, int rank,
                                   const struct sw_physical *pieces, int count, size_t *offset)
{
    const struct sw_segment_piece *found = NULL;
    struct sw_segment *s;

    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next) {
        if ((s->holders > 0 || s->is_unused) && s->rank[rank].mapped)
            found = find_run(&s->rank[rank], pieces, count);
        if (found != NULL)
            break;
    }
    if (s != NULL) {
        *offset = found->offset;
        group->segment_count += s->is_unused;
        s->is_unused = 0;
        if (s->rank[rank].refs++ == 0)
            s->holders++;
    }
    pthread_mutex_unlock(&group->mutex);
    return s;
}

CUmemGenericAllocationHandle sw_segment_memory(const struct sw_segment *segment, int rank,
                                               size_t offset)
{
    const struct sw_segment_piece *piece = segment->rank[rank].pieces;

    while (offset - piece->offset >= piece->bytes)
        piece++;
    return piece->memory;
}

/* Whether the rank's stretch covers [offset, offset + bytes) of the flat range. */
static int covers(const struct sw_segment *s, int rank, size_t offset, size_t bytes)
{
    const struct sw_stretch *stretch = &s->rank[rank].stretch;
    const size_t begin = s->offset + stretch->begin;

    return s->holders > 0 && s->rank[rank].mapped && offset >= begin &&
           offset - begin < stretch->bytes && bytes <= stretch->bytes - (offset - begin);
}

struct sw_segment *sw_segment_hold(struct sw_group *group, int rank, size_t offset, size_t bytes,
                                   int holder)
{
    struct sw_segment *s;

    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next)
        if (covers(s, rank, offset, bytes))
            break;
    if (s != NULL && s->rank[holder].refs++ == 0)
        s->holders++;
    pthread_mutex_unlock(&group->mutex);
    return s;
}

int sw_segment_is_current(const struct sw_segment *segment, int rank, size_t offset,
                          CUdeviceptr address, size_t bytes)
{
    const struct sw_segment_rank *own = &segment->rank[rank];
    int p;

    for (p = 0; p < own->stretch.pieces; p++) {
        const struct sw_segment_piece *piece = &own->pieces[p];
        const size_t from = piece->offset > offset ? piece->offset : offset;

        if (piece->offset >= offset + bytes || piece->offset + piece->bytes <= offset)
            continue;
        if (sw_buffer_at(address + (from - offset)) != piece->buffer_id)
            return 0;
    }
    return 1;
}

int sw_segment_count(struct sw_group *group)
{
    int count;

    pthread_mutex_lock(&group->mutex);
    count = group->segment_count;
    pthread_mutex_unlock(&group->mutex);
    return count;
}

/* The lowest offset from `at` on with nothing behind it for `bytes`, which may pass the limit. If
 * there is multicast, memory can be bound there. *ending: a segment that is being destroyed is in
 * the way of a lower one. */
static size_t find_room(struct sw_group *group, size_t bytes, size_t at, int *ending)
{
    const size_t unit = group->multicast && group->object.unit > group->granularity
                            ? group->object.unit
                            : group->granularity;
    const struct sw_segment *s;

    *ending = 0;
    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next) {
        if (s->offset + s->bytes <= at)
            continue;
        if (s->offset >= at && s->offset - at >= bytes)
            break;
        *ending |= s->holders == 0 && !s->is_unused;
        at = round_up(s->offset + s->bytes, unit);
    }
    pthread_mutex_unlock(&group->mutex);
    return at;
}

symwin_status sw_segment_room(struct sw_group *group, size_t bytes, size_t from, size_t *offset)
{
    size_t at;
    int ending;

    bytes = bytes > group->limit ? bytes : round_up(bytes, group->granularity);
    at = find_room(group, bytes, from, &ending);
    if (ending) { /* the same calls give the same offsets, unless kernels run for long */
        (void)sw_reaper_wait(SW_REAPER_MS);
        at = find_room(group, bytes, from, &ending);
    }
    if (at > group->limit || group->limit - at < bytes)
        return sw_fail(
            SYMWIN_NO_MEMORY,
            "the flat range has no room for %zu bytes more in a stride of %zu; deregister "
            "windows that are no longer used",
            bytes, group->limit);
    *offset = at;
    return SYMWIN_OK;
}

size_t sw_segment_bytes(const struct sw_stretch *stretches, int nranks)
{
    size_t end, most = 0;
    int r;

    for (r = 0; r < nranks; r++) {
        if (__builtin_add_overflow(stretches[r].begin, stretches[r].bytes, &end))
            return SIZE_MAX;
        most = end > most ? end : most;
    }
    return most;
}

/* The live segment of a registration, or NULL. One without holders does not count: the registration
 * failed on the other ranks of this process before this rank came, and the segment is being
 * destroyed. Under the mutex. */
static struct sw_segment *find_live(struct sw_group *group, uint64_t id)
{
    struct sw_segment *s = group->segments;

    while (s != NULL && (s->id != id || s->holders == 0))
        s = s->next;
    return s;
}

/* A segment with room for the pieces of all ranks. NULL: no host memory. */
static struct sw_segment *allocate(const struct sw_stretch *stretches, int nranks)
{
    const size_t ranks = (size_t)nranks * sizeof(struct sw_segment_rank);
    struct sw_segment_piece *pieces;
    struct sw_segment *segment;
    size_t count = 0;
    int r;

    for (r = 0; r < nranks; r++)
        count += (size_t)stretches[r].pieces;
    segment = calloc(1, sizeof *segment + ranks + count * sizeof *pieces);
    if (segment == NULL)
        return NULL;
    pieces = (struct sw_segment_piece *)(void *)&segment->rank[nranks];
    segment->uneven = -1;
    for (r = nranks - 1; r >= 0; r--) {
        segment->rank[r].stretch = stretches[r];
        segment->rank[r].pieces = pieces;
        pieces += stretches[r].pieces;
        if (stretches[r].pieces != 1 || stretches[r].begin != 0)
            segment->uneven = r;
    }
    return segment;
}

/* Creates and lists a segment. Under the mutex. NULL: no host memory. */
static struct sw_segment *create(struct sw_group *group, uint64_t id, size_t offset,
                                 const struct sw_stretch *stretches)
{
    struct sw_segment **at = &group->segments;
    struct sw_segment *segment = allocate(stretches, group->nranks);

    if (segment == NULL)
        return NULL;
    segment->group = group;
    segment->id = id;
    segment->offset = offset;
    segment->bytes = round_up(sw_segment_bytes(stretches, group->nranks), group->granularity);
    while (*at != NULL && (*at)->offset < offset)
        at = &(*at)->next;
    segment->next = *at;
    *at = segment;
    group->segment_count++;
    return segment;
}

symwin_status sw_segment_join(struct sw_group *group, int rank, uint64_t id, size_t offset,
                              const struct sw_stretch *stretches, struct sw_segment **out)
{
    struct sw_segment *segment;

    pthread_mutex_lock(&group->mutex);
    segment = find_live(group, id);
    if (segment == NULL)
        segment = create(group, id, offset, stretches);
    if (segment != NULL) {
        segment->rank[rank].refs = 1;
        segment->holders++;
    }
    pthread_mutex_unlock(&group->mutex);
    if (segment == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for a segment of %d ranks", group->nranks);
    *out = segment;
    return SYMWIN_OK;
}

symwin_status sw_segment_expects(const struct sw_segment *segment, int rank, uint64_t bytes)
{
    const struct sw_segment_rank *own = &segment->rank[rank];
    const struct sw_stretch *stretch = &own->stretch;
    const size_t left = stretch->bytes - own->shown_bytes;

    /* The last piece, and no other, must reach the end of the stretch. */
    if (own->shown < stretch->pieces && bytes > 0 && bytes <= left &&
        (own->shown + 1 == stretch->pieces) == (bytes == left))
        return SYMWIN_OK;
    return sw_fail(SYMWIN_MISMATCH,
                   "rank %d sent %llu bytes as allocation %d of %d; together they must have %zu "
                   "bytes, and those before have %zu",
                   rank, (unsigned long long)bytes, own->shown + 1, stretch->pieces, stretch->bytes,
                   own->shown_bytes);
}

symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory, size_t bytes, uint64_t buffer_id)
{
    struct sw_segment_rank *own = &segment->rank[rank];
    const struct sw_stretch *stretch = &own->stretch;
    struct sw_segment_piece *piece = &own->pieces[own->shown];
    CUdeviceptr at;
    symwin_status status;
    int last;

    *piece = (struct sw_segment_piece){
        .memory = memory,
        .offset = segment->offset + stretch->begin + own->shown_bytes,
        .bytes = bytes,
        .buffer_id = buffer_id,
    };
    at = sw_group_address(group, rank, piece->offset);
    status = sw_check(sw_drv.cuMemMap(at, bytes, 0, memory, 0),
                      "cuMemMap of %zu bytes into the flat range", bytes);
    if (status != SYMWIN_OK)
        return status;
    piece->mapped = 1;
    own->shown++;
    own->shown_bytes += bytes;
    last = own->shown == stretch->pieces;
    pthread_mutex_lock(&group->mutex); /* sw_segment_find() reads it */
    own->mapped = last;
    pthread_mutex_unlock(&group->mutex);
    return sw_memory_access(at, bytes, group->devices, group->device_count, NULL);
}

static atomic_int refused; /* what the first unbind that failed has answered; 0: none did */

CUresult sw_segment_unbind_refused(void)
{
    return (CUresult)atomic_exchange(&refused, 0);
}

void sw_segment_unbind_from(CUmemGenericAllocationHandle object, const struct sw_segment *segment,
                            int device, size_t bytes)
{
    const CUresult result = sw_drv.cuMulticastUnbind(object, device, segment->offset, bytes);
    int none = 0;

    sw_drop(result, "cuMulticastUnbind");
    if (result != CUDA_SUCCESS)
        atomic_compare_exchange_strong(&refused, &none, (int)result);
    atomic_store(&segment->group->object.was_bound, 1);
    sw_group_count_freed();
}

void sw_segment_unbind(struct sw_segment *segment, int rank)
{
    struct sw_segment_rank *own = &segment->rank[rank];

    if (own->bound == 0)
        return;
    sw_segment_unbind_from(segment->group->object.object, segment, own->bound_device, own->bound);
    own->bound = 0;
}

/* On the reaper, which frees the group later. */
static void destroy(struct sw_remains *remains)
{
    struct sw_segment *segment = (struct sw_segment *)(void *)remains, **at;
    struct sw_group *group = segment->group;
    int was_left, ends_group = 0, r, p;

    pthread_mutex_lock(&group->mutex);
    was_left = segment->is_left;
    segment->is_left = 1;
    p = segment->stalled;
    pthread_mutex_unlock(&group->mutex);
    if (p > 0)
        return; /* the last that comes back goes on here, and leaves its count in group->stalled */
    for (r = 0; r < group->nranks; r++)
        sw_segment_unbind(segment, r);
    for (r = 0; r < group->nranks; r++)
        for (p = 0; p < segment->rank[r].stretch.pieces; p++) {
            struct sw_segment_piece *piece = &segment->rank[r].pieces[p];

            if (piece->mapped)
                sw_drop(sw_drv.cuMemUnmap(sw_group_address(group, r, piece->offset), piece->bytes),
                        "cuMemUnmap");
            if (piece->memory != 0)
                sw_drop(sw_drv.cuMemRelease(piece->memory), "cuMemRelease");
        }
    /* Unlinked last: only now may another segment take the offset. */
    pthread_mutex_lock(&group->mutex);
    for (at = &group->segments; *at != segment; at = &(*at)->next)
        ;
    *at = segment->next;
    if (was_left)
        ends_group = --group->stalled == 0 && group->is_left;
    pthread_mutex_unlock(&group->mutex);
    free(segment);
    if (ends_group)
        sw_group_free_range(group);
}

void sw_segment_destroy(struct sw_segment *segment)
{
    sw_reaper_take(&segment->remains, destroy);
}

void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank)
{
    int last = 0;

    pthread_mutex_lock(&group->mutex);
    if (--segment->rank[rank].refs == 0)
        last = --segment->holders == 0;
    group->segment_count -= last;
    segment->is_unused = last && segment->bound_bytes > 0 && group->processes > 1;
    last = last && !segment->is_unused;
    pthread_mutex_unlock(&group->mutex);
    if (last)
        sw_segment_destroy(segment);
}

uint64_t sw_segment_unused_from(struct sw_group *group, uint64_t id)
{
    uint64_t lowest = 0;
    const struct sw_segment *s;

    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next)
        if (s->is_unused && s->id >= id && (lowest == 0 || s->id < lowest))
            lowest = s->id;
    pthread_mutex_unlock(&group->mutex);
    return lowest;
}

void sw_segment_unused_end(struct sw_group *group, uint64_t id)
{
    struct sw_segment *s;

    do {
        pthread_mutex_lock(&group->mutex);
        for (s = group->segments; s != NULL; s = s->next)
            if (s->is_unused && (s->id == id || id == 0))
                break;
        if (s != NULL)
            s->is_unused = 0;
        pthread_mutex_unlock(&group->mutex);
        if (s != NULL)
            sw_segment_destroy(s);
    } while (s != NULL);
}
