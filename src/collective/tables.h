/* The library's own tables of measured choices: one per tuning/<name>.csv, embedded by
 * tools/embed.sh. There may be none.
 */
#ifndef SYMWIN_TABLES_H
#define SYMWIN_TABLES_H

#include <stddef.h>

struct sw_table {
    const char *name; /* "h200-x4" for tuning/h200-x4.csv */
    const void *data; /* text; docs/tuning.md describes the format */
    size_t bytes;
};

extern const struct sw_table sw_tables[]; /* sw_table_count of them, then one with NULLs */
extern const size_t sw_table_count;

#endif
