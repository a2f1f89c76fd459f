/* Segments: one physical allocation of every rank, shown at one offset of the flat range.
 *
 *   group.base      + stride        + 2 * stride    ...   + nranks * stride
 *   | . seg A . B   | . seg A . B   | . seg A . B         | . A . B (multicast) |
 *
 * All ranks of a process share its range, so an allocation is mapped once, for all its devices. Each
 * rank maps its own part, the lowest one those of the ranks in other processes (handles.c); the last
 * rank of the process to leave unmaps all parts, in the order that the driver wants: multicast
 * addresses, bindings, the multicast object, then the memory. Offsets are the same in all processes,
 * which agree on one that is free everywhere (attach.c).
 */
#include <stdlib.h>

#include "internal.h"

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

struct sw_segment *sw_segment_find(struct sw_group *group, int rank, uint64_t buffer_id)
{
    struct sw_segment *s;

    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next)
        if (s->holders > 0 && s->rank[rank].mapped && s->rank[rank].buffer_id == buffer_id)
            break;
    if (s != NULL && s->rank[rank].refs++ == 0)
        s->holders++;
    pthread_mutex_unlock(&group->mutex);
    return s;
}

struct sw_segment *sw_segment_hold(struct sw_group *group, int rank, size_t offset, size_t bytes,
                                   int holder)
{
    struct sw_segment *s;

    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next)
        if (s->holders > 0 && s->rank[rank].mapped && offset >= s->offset &&
            offset - s->offset < s->rank[rank].bytes &&
            bytes <= s->rank[rank].bytes - (offset - s->offset))
            break;
    if (s != NULL && s->rank[holder].refs++ == 0)
        s->holders++;
    pthread_mutex_unlock(&group->mutex);
    return s;
}

int sw_segment_count(struct sw_group *group)
{
    int count;

    pthread_mutex_lock(&group->mutex);
    count = group->segment_count;
    pthread_mutex_unlock(&group->mutex);
    return count;
}

symwin_status sw_segment_room(struct sw_group *group, size_t bytes, size_t from, size_t *offset)
{
    const struct sw_segment *s;
    size_t at = from;

    bytes = round_up(bytes, group->granularity);
    pthread_mutex_lock(&group->mutex);
    for (s = group->segments; s != NULL; s = s->next) {
        if (s->offset + s->bytes <= at)
            continue;
        if (s->offset >= at && s->offset - at >= bytes)
            break;
        at = s->offset + s->bytes;
    }
    pthread_mutex_unlock(&group->mutex);
    if (at > group->limit || group->limit - at < bytes)
        return sw_fail(
            SYMWIN_NO_MEMORY,
            "the flat range has no room for %zu bytes more in a stride of %zu; deregister "
            "windows that are no longer used",
            bytes, group->limit);
    *offset = at;
    return SYMWIN_OK;
}

/* Under the mutex. One that nobody holds is being destroyed: where the registration failed on other ranks while this
 * one had yet to come, a new one takes its place. */
static struct sw_segment *segment_made(struct sw_group *group, uint64_t id)
{
    struct sw_segment *s = group->segments;

    while (s != NULL && (s->id != id || s->holders == 0))
        s = s->next;
    return s;
}

/* Under the mutex. NULL: no memory. */
static struct sw_segment *segment_make(struct sw_group *group, uint64_t id, size_t offset,
                                       size_t bytes)
{
    const size_t ranks = (size_t)group->nranks * sizeof(struct sw_segment_rank);
    struct sw_segment **at = &group->segments;
    struct sw_segment *segment = calloc(1, sizeof *segment + ranks);

    if (segment == NULL)
        return NULL;
    segment->id = id;
    segment->offset = offset;
    segment->bytes = round_up(bytes, group->granularity);
    while (*at != NULL && (*at)->offset < offset)
        at = &(*at)->next;
    segment->next = *at;
    *at = segment;
    group->segment_count++;
    return segment;
}

symwin_status sw_segment_join(struct sw_group *group, int rank, uint64_t id, size_t offset,
                              size_t bytes, struct sw_segment **out)
{
    struct sw_segment *segment;

    pthread_mutex_lock(&group->mutex);
    segment = segment_made(group, id);
    if (segment == NULL)
        segment = segment_make(group, id, offset, bytes);
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

symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory, size_t bytes, uint64_t buffer_id)
{
    struct sw_segment_rank *own = &segment->rank[rank];
    const CUdeviceptr at = sw_group_address(group, rank, segment->offset);
    symwin_status status;

    own->memory = memory;
    own->bytes = bytes;
    status = sw_check(sw_drv.cuMemMap(at, bytes, 0, memory, 0),
                      "cuMemMap of %zu bytes into the flat range", bytes);
    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&group->mutex); /* sw_segment_find() looks */
    own->buffer_id = buffer_id;
    own->mapped = 1;
    pthread_mutex_unlock(&group->mutex);
    return sw_memory_access(at, bytes, group->devices, group->device_count);
}

static void destroy(struct sw_group *group, struct sw_segment *segment)
{
    struct sw_segment **at;
    int r;

    sw_multicast_release(group, segment);
    for (r = 0; r < group->nranks; r++) {
        struct sw_segment_rank *rank = &segment->rank[r];

        if (rank->mapped)
            sw_drop(sw_drv.cuMemUnmap(sw_group_address(group, r, segment->offset), rank->bytes),
                    "cuMemUnmap");
        if (rank->memory != 0)
            sw_drop(sw_drv.cuMemRelease(rank->memory), "cuMemRelease");
    }
    /* Only now may another segment take the offset. */
    pthread_mutex_lock(&group->mutex);
    for (at = &group->segments; *at != segment; at = &(*at)->next)
        ;
    *at = segment->next;
    group->segment_count--;
    pthread_mutex_unlock(&group->mutex);
    free(segment);
}

void sw_segment_release(struct sw_group *group, struct sw_segment *segment, int rank)
{
    int last = 0;

    pthread_mutex_lock(&group->mutex);
    if (--segment->rank[rank].refs == 0)
        last = --segment->holders == 0;
    pthread_mutex_unlock(&group->mutex);
    if (last)
        destroy(group, segment);
}
