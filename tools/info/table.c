/* The lines of symwin_dump() as tables: one per kind of line, with a column per key. */
#include <stdlib.h>
#include <string.h>

#include "info.h"

enum { NARROW = 2 }; /* between columns */

struct info_row {
    struct info_row *next;
    struct info_line line;
};

int info_table_add(struct info_table *table, const struct info_line *line)
{
    struct info_row *row = malloc(sizeof *row);

    if (row == NULL)
        return 0;
    row->next = NULL;
    row->line = *line;
    row->line.what = row->line.text + (line->what - line->text);
    if (line->name[0] != '\0')
        row->line.name = row->line.text + (line->name - line->text);
    for (int i = 0; i < line->count; i++) {
        row->line.pairs[i].key = row->line.text + (line->pairs[i].key - line->text);
        row->line.pairs[i].value = row->line.text + (line->pairs[i].value - line->text);
    }
    if (table->last == NULL)
        table->first = row;
    else
        table->last->next = row;
    table->last = row;
    return 1;
}

void info_table_release(struct info_table *table)
{
    while (table->first != NULL) {
        struct info_row *row = table->first;

        table->first = row->next;
        free(row);
    }
    table->last = NULL;
}

static int is_like(const struct info_row *a, const struct info_row *b)
{
    return strcmp(a->line.what, b->line.what) == 0;
}

/* The cell of a row in column `c` of the table that begins with `head`. Column 0 has names, the
 * others the keys of `head`. */
static const char *cell(const struct info_row *head, const struct info_row *row, int c)
{
    return c == 0 ? row->line.name : info_value(&row->line, head->line.pairs[c - 1].key);
}

static void print_one(FILE *out, const struct info_row *head)
{
    int widths[1 + INFO_MOST_PAIRS];
    const struct info_row *row;

    for (int c = 0; c <= head->line.count; c++) {
        widths[c] = (int)strlen(c == 0 ? head->line.what : head->line.pairs[c - 1].key);
        for (row = head; row != NULL; row = row->next)
            if (is_like(row, head) && (int)strlen(cell(head, row, c)) > widths[c])
                widths[c] = (int)strlen(cell(head, row, c));
    }
    for (int c = 0; c <= head->line.count; c++)
        fprintf(out, "%*s", c == 0 ? -widths[c] : NARROW + widths[c],
                c == 0 ? head->line.what : head->line.pairs[c - 1].key);
    putc('\n', out);
    for (row = head; row != NULL; row = row->next) {
        if (!is_like(row, head))
            continue;
        for (int c = 0; c <= head->line.count; c++)
            fprintf(out, "%*s", c == 0 ? -widths[c] : NARROW + widths[c], cell(head, row, c));
        putc('\n', out);
    }
}

void info_table_print(FILE *out, const struct info_table *table)
{
    const struct info_row *row, *before;

    for (row = table->first; row != NULL; row = row->next) {
        for (before = table->first; before != row && !is_like(before, row); before = before->next)
            ;
        if (before != row)
            continue;
        if (row != table->first)
            putc('\n', out);
        print_one(out, row);
    }
}
