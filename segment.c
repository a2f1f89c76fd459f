/* Segments: one physical allocation of every rank, shown at one offset of the flat range.
 *
 *   group.base      + stride        + 2 * stride    ...   + nranks * stride
 *   | . seg A . B   | . seg A . B   | . seg A . B         | . A . B (multicast) |
 *
 * All ranks of the process share the range, so an allocation is mapped once, for all devices. Each
 * rank maps its own part; the last rank to leave unmaps all parts, in the order that the driver
 * wants: multicast addresses, bindings, the multicast object, then the memory.
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

int sw_segment_count(struct sw_group *group)
{
    int count;

    pthread_mutex_lock(&group->mutex);
    count = group->segment_count;
    pthread_mutex_unlock(&group->mutex);
    return count;
}

/* Links the segment in at the lowest offset with room for it. Under the mutex. */
static int place(struct sw_group *group, struct sw_segment *segment)
{
    struct sw_segment **at = &group->segments;
    size_t offset = 0;

    while (*at != NULL && (*at)->offset - offset < segment->bytes) {
        offset = (*at)->offset + (*at)->bytes;
        at = &(*at)->next;
    }
    if (*at == NULL && group->stride - offset < segment->bytes)
        return 0;
    segment->offset = offset;
    segment->next = *at;
    *at = segment;
    return 1;
}

symwin_status sw_segment_create(struct sw_group *group, size_t bytes, struct sw_segment **out)
{
    const size_t ranks = (size_t)group->nranks * sizeof(struct sw_segment_rank);
    struct sw_segment *segment = calloc(1, sizeof *segment + ranks);
    int placed;
    int r;

    if (segment == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for a segment of %d ranks", group->nranks);
    segment->bytes = round_up(bytes, group->granularity);
    segment->holders = group->nranks;
    for (r = 0; r < group->nranks; r++)
        segment->rank[r].refs = 1;
    pthread_mutex_lock(&group->mutex);
    placed = place(group, segment);
    if (placed) {
        segment->id = ++group->next_segment_id;
        group->segment_count++;
    }
    pthread_mutex_unlock(&group->mutex);
    if (!placed) {
        free(segment);
        return sw_fail(
            SYMWIN_NO_MEMORY,
            "the flat range has no room for %zu bytes more in a stride of %zu; deregister "
            "windows that are no longer used",
            bytes, group->stride);
    }
    *out = segment;
    return SYMWIN_OK;
}

symwin_status sw_segment_map(struct sw_group *group, struct sw_segment *segment, int rank,
                             CUmemGenericAllocationHandle memory,
                             const struct sw_physical *physical)
{
    struct sw_segment_rank *own = &segment->rank[rank];
    const CUdeviceptr at = sw_group_address(group, rank, segment->offset);
    symwin_status status;

    own->memory = memory;
    own->bytes = physical->bytes;
    status = sw_check(sw_drv.cuMemMap(at, own->bytes, 0, memory, 0),
                      "cuMemMap of %zu bytes into the flat range", own->bytes);
    if (status != SYMWIN_OK)
        return status;
    pthread_mutex_lock(&group->mutex); /* sw_segment_find() looks */
    own->buffer_id = physical->buffer_id;
    own->mapped = 1;
    pthread_mutex_unlock(&group->mutex);
    return sw_memory_access(at, own->bytes, group->devices, group->device_count);
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
