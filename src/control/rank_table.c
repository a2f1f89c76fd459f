/* The table of ranks (rank_table.h), and the frames that it is sent in. Any thread, each table on
 * one at a time. */
#include "src/control/rank_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int sw_rank_table_put(const struct sw_rank_table *table, int first, union sw_frame *frame)
{
    const int left = table->nranks - first;
    const int count = left < SW_TABLE_PART ? left : SW_TABLE_PART;

    memset(&frame->table, 0, sizeof frame->table);
    frame->table.nranks = table->nranks;
    frame->table.processes = table->processes;
    frame->table.hosts = table->hosts;
    frame->table.first = first;
    memcpy(frame->table.locations, table->locations + first,
           (size_t)count * sizeof *table->locations);
    return first + count;
}

int sw_rank_table_take(struct sw_rank_table *table, const struct sw_frame_table *part)
{
    const int left = part->nranks - part->first;
    const int count = left < SW_TABLE_PART ? left : SW_TABLE_PART;

    if (table->locations == NULL) {
        table->locations = calloc((size_t)part->nranks, sizeof *table->locations);
        if (table->locations == NULL)
            return ENOMEM;
        table->nranks = part->nranks;
        table->processes = part->processes;
        table->hosts = part->hosts;
    }
    if (part->nranks != table->nranks || part->processes != table->processes ||
        part->hosts != table->hosts || part->first != table->have)
        return EPROTO;
    memcpy(table->locations + table->have, part->locations,
           (size_t)count * sizeof *table->locations);
    table->have += count;
    return 0;
}

void sw_rank_table_free(struct sw_rank_table *table)
{
    free(table->locations);
    *table = (struct sw_rank_table){.nranks = 0};
}
