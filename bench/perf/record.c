/* Keeps all results, and writes them to a CSV file and a JSON file as they come. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

static const char *memory_name(const struct result *result)
{
    static const char *const names[] = {[MEMORY_WINDOW] = "window",
                                        [MEMORY_PLAIN] = "plain",
                                        [MEMORY_NCCL] = "ncclMemAlloc",
                                        [MEMORY_NCCL_WINDOW] = "ncclWindow",
                                        [MEMORY_NCCL_REG] = "ncclRegister",
                                        [MEMORY_POOL_REG] = "ncclRegister-pool",
                                        [MEMORY_POOL_WINDOW] = "ncclWindow-pool",
                                        [MEMORY_TORCH] = "symmetric"};

    return names[result->way->memory];
}

static const char columns[] = "library,algo,type,op,bytes,count,placement,memory,mode,ranks,calls,"
                              "repetitions,time_us,algbw_gbs,busbw_gbs,wrong,p50_us,p99_us,max_us,"
                              "host_us,ratio,launched,blocks,threads,measured,collective";

static int open_csv(struct job *job)
{
    if (!draft_open(&job->csv, "--csv", job->options.csv))
        return 0;
    machine_print(job, job->csv.to, "# ");
    fprintf(job->csv.to, "%s\n", columns);
    return 1;
}

static int open_json(struct job *job)
{
    if (!draft_open(&job->json, "--json", job->options.json))
        return 0;
    fprintf(job->json.to, "{\n");
    machine_json(job, job->json.to);
    fprintf(job->json.to, "  \"results\": [");
    return 1;
}

int record_open(struct job *job)
{
    return (job->options.csv == NULL || open_csv(job)) &&
           (job->options.json == NULL || open_json(job));
}

/* The columns; a value that was not measured is empty. */
static void print_row(const struct job *job, const struct result *r, char *row, size_t bytes)
{
    char wrong[24] = "", host[24] = "", ratio[24] = "", launched[192] = ",,,";

    if (r->checked)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)r->wrong);
    if (r->host_us > 0)
        snprintf(host, sizeof host, "%.3f", r->host_us);
    if (r->ratio > 0)
        snprintf(ratio, sizeof ratio, "%.3f", r->ratio);
    if (r->launched.blocks > 0)
        snprintf(launched, sizeof launched, "%s,%d,%d,%d", result_launched(r), r->launched.blocks,
                 r->launched.threads, r->launched.measured);
    snprintf(row, bytes,
             "%s,%s,%s,%s,%zu,%llu,%s,%s,%s,%d,%d,%d,%.3f,%.6g,%.6g,%s,%.3f,%.3f,%.3f,%s,%s,%s,%s",
             r->way->library, r->way->name, result_type(r), result_op(r), r->bytes,
             (unsigned long long)r->count, r->in_place ? "in" : "out", memory_name(r),
             job->options.replays > 0 ? "graph" : "stream", job->nranks, r->calls, r->repetitions,
             r->us, result_algbw(r), result_busbw(r, job->nranks), wrong, r->p50_us, r->p99_us,
             r->max_us, host, ratio, launched, collective_name(r->collective));
}

/* The row as an object. */
static void write_json(struct job *job, char *row)
{
    char names[sizeof columns], *name = names, *value;
    const char *before = job->result_count > 1 ? ",\n    {" : "\n    {";

    memcpy(names, columns, sizeof columns);
    while ((value = strsep(&row, ",")) != NULL) {
        const char *quote = value[strspn(value, "0123456789.e+-")] != '\0' ? "\"" : "";

        fprintf(job->json.to, "%s\"%s\": %s%s%s", before, strsep(&name, ","), quote,
                value[0] != '\0' ? value : "null", quote);
        before = ", ";
    }
    fprintf(job->json.to, "}");
}

int record(struct job *job, const struct result *result)
{
    char row[1024];

    if (job->result_count == job->result_room) {
        const size_t room = job->result_room == 0 ? 64 : 2 * job->result_room;
        struct result *more = realloc(job->results, room * sizeof *more);

        if (more == NULL)
            return fail(SYMWIN_NO_MEMORY, "no memory for %zu results", room);
        job->results = more;
        job->result_room = room;
    }
    job->results[job->result_count] = *result;
    job->result_count++;
    job->wrong += result->wrong;
    print_row(job, result, row, sizeof row);
    if (job->csv.to != NULL) {
        fprintf(job->csv.to, "%s\n", row);
        draft_flush(&job->csv);
    }
    if (job->json.to != NULL) {
        write_json(job, row);
        draft_flush(&job->json);
    }
    return 1;
}

int record_close(struct job *job, int complete, int exit_status)
{
    const enum draft_end end = complete                ? DRAFT_DONE
                               : job->result_count > 0 ? DRAFT_KEPT
                                                       : DRAFT_DROPPED;
    int csv, json;

    if (job->json.to != NULL)
        fprintf(job->json.to, "%s],\n  \"exit_status\": %d\n}\n",
                job->result_count > 0 ? "\n  " : "", exit_status);
    csv = draft_close(&job->csv, end);
    json = draft_close(&job->json, end);
    free(job->results);
    job->results = NULL;
    return csv && json;
}

void record_leave(struct job *job)
{
    const struct draft *drafts[] = {&job->csv, &job->json};

    for (int i = 0; i < 2; i++)
        if (drafts[i]->to != NULL && job->result_count == 0 && !drafts[i]->direct)
            unlink(drafts[i]->path);
        else if (drafts[i]->to != NULL)
            draft_say(drafts[i]);
}
