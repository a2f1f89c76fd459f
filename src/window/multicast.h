/* The multicast object of a communicator, and the segments that are bound to it. */
#ifndef SYMWIN_MULTICAST_H
#define SYMWIN_MULTICAST_H

#include "src/window/segment.h"

/* Why a communicator has no multicast. */
enum sw_multicast_lack {
    SW_LACKS_NOTHING,
    SW_LACKS_SUPPORT,   /* of the rank's device */
    SW_LACKS_CALLS,     /* of its driver */
    SW_LACKS_WISH,      /* SYMWIN_COMM_NO_MULTICAST */
    SW_LACKS_REQUEST,   /* nobody asked for it, on real hardware */
    SW_LACKS_CONSENT,   /* an environment variable of another library switches it off */
    SW_LACKS_DEVICE,    /* a lower rank has the same one */
    SW_LACKS_RANKS,     /* there is one */
    SW_LACKS_ALIGNMENT, /* the driver's units do not fit the flat range */
};

/* Why this process may create no multicast objects. On real hardware only if the user asked for it
 * and no environment variable of NCCL, PyTorch or NVSHMEM switches multicast off. */
enum sw_multicast_lack sw_multicast_lacks(unsigned comm_flags);

static inline int sw_multicast_allowed(unsigned comm_flags)
{
    return sw_multicast_lacks(comm_flags) == SW_LACKS_NOTHING;
}

/* The variable that switches multicast off, on real hardware; NULL: none. A value counts if the
 * library whose variable it is may take it so. */
const char *sw_multicast_forbidden(void);

/* Why the communicator has none. At most SW_REASON_BYTES. */
void sw_multicast_lack(const struct sw_group *group, char *text, size_t room);

/* For an object as large as the stride: in which units memory is bound, 0: it cannot be; and what
 * the flat range should be aligned to. The ranks of the communicator are one on each device. */
void sw_multicast_units(const struct sw_group *group, size_t stride, size_t *unit, size_t *align);

/* Whether the communicator has multicast, and has not failed for good. The same on all ranks. */
int sw_multicast_is_possible(struct sw_group *group);

/* Whether this process would try to bind memory for a window. If any rank would, all do. */
int sw_multicast_may_try(struct sw_group *group);

/* Binds the segment's memory on all ranks; before, if need be, makes the object. Collective. The
 * same on all ranks: if one cannot, all go without. A failure leaves the communicator as it was,
 * unless *ended: the exchange has. */
symwin_status sw_multicast_bind(symwin_comm *comm, const char *call, struct sw_segment *segment,
                                int *ended);

/* Why a window that ends at this byte of the segment has no multicast, for its query. `refused`: it
 * was registered so. */
void sw_multicast_reason(const struct sw_segment *segment, size_t end, int refused, char *text,
                         size_t room);

#endif
