/* NVLS: one multicast object per segment, bound to the memory of every rank.
 *
 * Its addresses are those of an imaginary rank number nranks in the flat range. The steps, with an
 * agreement of all ranks after each:
 *
 *   rank 0: create -> every rank: add its device -> every rank: bind its memory -> rank 0: map
 *
 * A bind blocks in the driver until every device has been added. So no rank binds before all ranks
 * have agreed that every device was. Teardown: unmap, unbind, release the object; only then may
 * the memory go.
 *
 * A faulty multicast program can put the GPUs of a host out of service. So on real hardware this
 * runs only on request: see sw_multicast_allowed().
 */
#include <stdlib.h>
#include <string.h>

#include "src/window/window.h"

static int is_set(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text != NULL && strcmp(text, value) == 0;
}

int sw_multicast_allowed(unsigned comm_flags)
{
    if ((comm_flags & SYMWIN_COMM_NO_MULTICAST) != 0)
        return 0;
    if (sw_drv.cuMulticastCreate == NULL || sw_drv.cuMulticastAddDevice == NULL ||
        sw_drv.cuMulticastBindMem == NULL || sw_drv.cuMulticastUnbind == NULL ||
        sw_drv.cuMulticastGetGranularity == NULL)
        return 0;
    if (sw_driver_is_emulated())
        return 1;
    if (is_set("NCCL_NVLS_ENABLE", "0") || is_set("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1") ||
        is_set("NVSHMEM_DISABLE_NVLS", "1"))
        return 0;
    return (comm_flags & SYMWIN_COMM_MULTICAST) != 0 || sw_setting(SW_SETTING_NVLS);
}

/* What all ranks can bind: the bytes of the smallest allocation. */
static size_t common_bytes(const struct sw_group *group, const struct sw_segment *segment)
{
    size_t least = segment->rank[0].stretch.bytes;
    int r;

    for (r = 1; r < group->nranks; r++)
        if (segment->rank[r].stretch.bytes < least)
            least = segment->rank[r].stretch.bytes;
    return least;
}

symwin_status sw_multicast_create(struct sw_group *group, struct sw_segment *segment)
{
    CUmulticastObjectProp prop = {.numDevices = (unsigned)group->nranks};
    size_t unit = 0;
    symwin_status status;

    prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.size = common_bytes(group, segment);
    status = sw_check(
        sw_drv.cuMulticastGetGranularity(&unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
        "cuMulticastGetGranularity for %d devices", group->nranks);
    if (status != SYMWIN_OK)
        return status;
    prop.size = prop.size / unit * unit;
    if (prop.size == 0 || segment->offset % unit != 0)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "allocations of %zu bytes at offset %zu are not multicast granules of %zu",
                       common_bytes(group, segment), segment->offset, unit);
    status = sw_check(sw_drv.cuMulticastCreate(&segment->multicast, &prop),
                      "cuMulticastCreate of %zu bytes for %d devices", prop.size, group->nranks);
    if (status == SYMWIN_OK)
        segment->multicast_bytes = prop.size;
    else
        segment->multicast = 0;
    return status;
}

symwin_status sw_multicast_add(struct sw_segment *segment, int device)
{
    return sw_check(sw_drv.cuMulticastAddDevice(segment->multicast, device),
                    "cuMulticastAddDevice of device %d", device);
}

symwin_status sw_multicast_bind(struct sw_segment *segment, int rank, int device)
{
    struct sw_segment_rank *own = &segment->rank[rank];
    symwin_status status;

    status = sw_check(sw_drv.cuMulticastBindMem(segment->multicast, 0, own->pieces[0].memory, 0,
                                                segment->multicast_bytes, 0),
                      "cuMulticastBindMem of %zu bytes on device %d", segment->multicast_bytes,
                      device);
    if (status == SYMWIN_OK) {
        own->bound = 1;
        own->bound_device = device;
    }
    return status;
}

symwin_status sw_multicast_map(struct sw_group *group, struct sw_segment *segment)
{
    const CUdeviceptr at = sw_group_address(group, group->nranks, segment->offset);
    symwin_status status;

    status = sw_check(sw_drv.cuMemMap(at, segment->multicast_bytes, 0, segment->multicast, 0),
                      "cuMemMap of a multicast object of %zu bytes", segment->multicast_bytes);
    if (status != SYMWIN_OK)
        return status;
    segment->multicast_mapped = 1;
    return sw_memory_access(at, segment->multicast_bytes, group->devices, group->device_count);
}

void sw_multicast_release(struct sw_group *group, struct sw_segment *segment)
{
    int r;

    if (segment->multicast == 0)
        return;
    if (segment->multicast_mapped)
        sw_drop(sw_drv.cuMemUnmap(sw_group_address(group, group->nranks, segment->offset),
                                  segment->multicast_bytes),
                "cuMemUnmap");
    for (r = 0; r < group->nranks; r++) {
        struct sw_segment_rank *rank = &segment->rank[r];

        if (rank->bound)
            sw_drop(sw_drv.cuMulticastUnbind(segment->multicast, rank->bound_device, 0,
                                             segment->multicast_bytes),
                    "cuMulticastUnbind");
        rank->bound = 0;
    }
    sw_drop(sw_drv.cuMemRelease(segment->multicast), "cuMemRelease");
    segment->multicast = 0;
    segment->multicast_mapped = 0;
}
