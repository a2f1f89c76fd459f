/* The table of a communicator's ranks: on which process and host each one is. Its creator sends it
 * in frames, as many as it takes. rank_table.c */
#ifndef SYMWIN_RANK_TABLE_H
#define SYMWIN_RANK_TABLE_H

#include "src/control/frame_layout.h"

struct sw_rank_table {
    int nranks, processes, hosts;
    int have;                            /* ranks whose locations have come */
    struct sw_frame_location *locations; /* owned: of each rank; NULL: no table yet */
};

/* Fills in a TABLE frame, all but its header, with the locations from rank `first` on. Returns the
 * rank after the last of them. */
int sw_rank_table_put(const struct sw_rank_table *table, int first, union sw_frame *frame);

/* Takes the next frame. 0, ENOMEM, or EPROTO: it does not follow the frames before it. */
int sw_rank_table_take(struct sw_rank_table *table, const struct sw_frame_table *part);

void sw_rank_table_free(struct sw_rank_table *table);

#endif
