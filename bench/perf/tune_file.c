/* Writes the table of --tune (docs/tuning.md). Consecutive sizes with the same choice become one
 * row.
 */
#include <stdio.h>
#include <stdlib.h>

#include "perf.h"
#include "src/collective/select.h"

struct row {
    symwin_type type;
    int registered;
    size_t bytes;
    struct choice choice;
};

struct tune_file {
    struct draft draft;
    symwin_collective collective;
    char gpu[128];
    int nranks;
    struct row *rows; /* owned */
    int count, room;
};

int tune_file_open(const struct job *job, const char *gpu, struct tune_file **out)
{
    struct tune_file *file = calloc(1, sizeof *file);

    if (file == NULL)
        return fail(SYMWIN_NO_MEMORY, "no memory for --tune's table");
    file->collective = (symwin_collective)job->options.collective;
    file->nranks = job->nranks;
    snprintf(file->gpu, sizeof file->gpu, "%s", gpu);
    if (!draft_open(&file->draft, "--tune", job->options.tune)) {
        free(file);
        return 0;
    }
    machine_print(job, file->draft.to, "# ");
    fprintf(file->draft.to,
            "collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n");
    *out = file;
    return 1;
}

static int is_same(const struct row *a, const struct row *b)
{
    return a->type == b->type && a->registered == b->registered &&
           a->choice.algo == b->choice.algo && a->choice.blocks == b->choice.blocks &&
           a->choice.threads == b->choice.threads;
}

static int by_key(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (x->type != y->type)
        return (int)x->type - (int)y->type;
    if (x->registered != y->registered)
        return x->registered - y->registered;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

int tune_file_add(struct tune_file *file, symwin_type type, int registered, size_t bytes,
                  const struct choice *best)
{
    if (file->count == file->room) {
        const int room = file->room > 0 ? 2 * file->room : 64;
        struct row *more = realloc(file->rows, (size_t)room * sizeof *more);

        if (more == NULL)
            return fail(SYMWIN_NO_MEMORY, "no memory for %d rows of --tune's table", room);
        file->rows = more;
        file->room = room;
    }
    file->rows[file->count++] = (struct row){type, registered, bytes, *best};
    return 1;
}

static int write_rows(const struct tune_file *file)
{
    int rows = 0;

    if (file->count > 0)
        qsort(file->rows, (size_t)file->count, sizeof file->rows[0], by_key);
    for (int i = 0; i < file->count; i++) {
        const struct row *row = &file->rows[i];

        if (i + 1 < file->count && is_same(row, row + 1))
            continue;
        fprintf(file->draft.to, "%s,%s,%d,%zu,%s,%d,%zu,%s,%d,%d\n",
                symwin_collective_name(file->collective), file->gpu, file->nranks,
                symwin_type_bytes(row->type), sw_type_is_float(row->type) ? "float" : "integer",
                row->registered, row->bytes, symwin_algo_name(row->choice.algo), row->choice.blocks,
                row->choice.threads);
        rows++;
    }
    return rows;
}

int tune_file_close(struct tune_file *file, int good, int *rows)
{
    int closed;

    *rows = write_rows(file);
    closed = draft_close(&file->draft, good ? DRAFT_DONE : DRAFT_DROPPED);
    free(file->rows);
    free(file);
    return closed;
}
