/* The multicast object of a communicator, and the segments that are bound to it. */
#ifndef SYMWIN_MULTICAST_H
#define SYMWIN_MULTICAST_H

#include "src/window/segment.h"

/* Whether this process may create multicast objects. On real hardware only if the user asked for it
 * and no environment variable of NCCL, PyTorch or NVSHMEM switches multicast off. */
int sw_multicast_allowed(unsigned comm_flags);

/* For an object as large as the stride: in which units memory is bound, 0: it cannot be; and what
 * the flat range should be aligned to. The ranks of the communicator are one on each device. */
void sw_multicast_units(const struct sw_group *group, size_t stride, size_t *unit, size_t *align);

/* Whether this process would try to bind memory for a window. If any rank would, all do. */
int sw_multicast_may_try(struct sw_group *group);

/* Binds the segment's memory on all ranks; before, if need be, makes the object. Collective. The
 * same on all ranks: if one cannot, all go without. A failure leaves the communicator as it was,
 * unless *ended: the exchange has. */
symwin_status sw_multicast_bind(symwin_comm *comm, const char *call, struct sw_segment *segment,
                                int *ended);

/* Why a window on the segment has no multicast, for its query. */
void sw_multicast_reason(const struct sw_segment *segment, char *text, size_t room);

#endif
