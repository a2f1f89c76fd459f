/* What is kept: all results, in a CSV file as they come and in a JSON file at the end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

static const char *memory_name(const struct result *result)
{
    static const char *const names[] = {[MEMORY_WINDOW] = "window",
                                        [MEMORY_PLAIN] = "plain",
                                        [MEMORY_NCCL] = "ncclMemAlloc",
                                        [MEMORY_NCCL_WINDOW] = "ncclWindow",
                                        [MEMORY_TORCH] = "symmetric"};

    return names[result->way->memory];
}

static const char *mode(const struct job *job)
{
    return job->options.replays > 0 ? "graph" : "stream";
}

symwin_status record_open(struct job *job)
{
    if (job->options.csv == NULL)
        return SYMWIN_OK;
    job->csv = fopen(job->options.csv, "w");
    if (job->csv == NULL)
        return sw_fail(SYMWIN_DENIED, "--csv %s: %s", job->options.csv, strerror(errno));
    machine_print(job, job->csv, "# ");
    fprintf(job->csv, "library,algo,type,op,bytes,count,placement,memory,mode,ranks,calls,"
                      "repetitions,time_us,algbw_gbs,busbw_gbs,wrong,p50_us,p99_us,max_us,host_us,"
                      "ratio,launched,blocks,threads,measured\n");
    return SYMWIN_OK;
}

static void write_csv(const struct job *job, const struct result *r)
{
    fprintf(job->csv, "%s,%s,%s,%s,%zu,%llu,%s,%s,%s,%d,%d,%d,%.3f,%.6g,%.6g,", r->way->library,
            r->way->name, symwin_type_name(r->type), symwin_op_name(r->op), r->bytes,
            (unsigned long long)r->count, r->in_place ? "in" : "out", memory_name(r), mode(job),
            job->nranks, r->calls, r->repetitions, r->us, result_algbw(r),
            result_busbw(r, job->nranks));
    if (r->checked)
        fprintf(job->csv, "%llu", (unsigned long long)r->wrong);
    fprintf(job->csv, ",%.3f,%.3f,%.3f,", r->p50_us, r->p99_us, r->max_us);
    if (r->host_us > 0)
        fprintf(job->csv, "%.3f", r->host_us);
    fprintf(job->csv, ",");
    if (r->ratio > 0)
        fprintf(job->csv, "%.3f", r->ratio);
    if (r->launched.blocks > 0)
        fprintf(job->csv, ",%s,%d,%d,%d\n", symwin_algo_name(r->launched.algo), r->launched.blocks,
                r->launched.threads, r->launched.measured);
    else
        fprintf(job->csv, ",,,,\n");
    fflush(job->csv);
}

symwin_status record(struct job *job, const struct result *result)
{
    if (job->result_count == job->result_room) {
        const size_t room = job->result_room == 0 ? 64 : 2 * job->result_room;
        struct result *more = realloc(job->results, room * sizeof *more);

        if (more == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "no memory for %zu results", room);
        job->results = more;
        job->result_room = room;
    }
    job->results[job->result_count++] = *result;
    job->wrong += result->wrong;
    if (job->csv != NULL)
        write_csv(job, result);
    return SYMWIN_OK;
}

static void write_result(FILE *to, const struct job *job, const struct result *r)
{
    fprintf(to,
            "    {\"library\": \"%s\", \"algo\": \"%s\", \"type\": \"%s\", \"op\": \"%s\", "
            "\"bytes\": %zu, \"count\": %llu, \"placement\": \"%s\", \"memory\": \"%s\", "
            "\"mode\": \"%s\", \"calls\": %d, \"repetitions\": %d,\n",
            r->way->library, r->way->name, symwin_type_name(r->type), symwin_op_name(r->op),
            r->bytes, (unsigned long long)r->count, r->in_place ? "in" : "out", memory_name(r),
            mode(job), r->calls, r->repetitions);
    fprintf(to, "     \"time_us\": %.3f, \"algbw_gbs\": %.6g, \"busbw_gbs\": %.6g, ", r->us,
            result_algbw(r), result_busbw(r, job->nranks));
    if (r->checked)
        fprintf(to, "\"wrong\": %llu, ", (unsigned long long)r->wrong);
    else
        fprintf(to, "\"wrong\": null, ");
    fprintf(to, "\"p50_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f, ", r->p50_us, r->p99_us,
            r->max_us);
    if (r->host_us > 0)
        fprintf(to, "\"host_us\": %.3f, ", r->host_us);
    else
        fprintf(to, "\"host_us\": null, ");
    if (r->ratio > 0)
        fprintf(to, "\"ratio\": %.3f, ", r->ratio);
    else
        fprintf(to, "\"ratio\": null, ");
    if (r->launched.blocks > 0)
        fprintf(to, "\"launched\": \"%s\", \"blocks\": %d, \"threads\": %d, \"measured\": %d}",
                symwin_algo_name(r->launched.algo), r->launched.blocks, r->launched.threads,
                r->launched.measured);
    else
        fprintf(to, "\"launched\": null}");
}

static symwin_status write_json(const struct job *job, int exit_status)
{
    FILE *to = fopen(job->options.json, "w");
    int bad;

    if (to == NULL)
        return sw_fail(SYMWIN_DENIED, "--json %s: %s", job->options.json, strerror(errno));
    fprintf(to, "{\n");
    machine_json(job, to);
    fprintf(to, "  \"exit_status\": %d,\n  \"results\": [\n", exit_status);
    for (size_t i = 0; i < job->result_count; i++) {
        write_result(to, job, &job->results[i]);
        fprintf(to, i + 1 < job->result_count ? ",\n" : "\n");
    }
    fprintf(to, "  ]\n}\n");
    bad = ferror(to);
    if (fclose(to) != 0 || bad)
        return sw_fail(SYMWIN_DENIED, "--json %s cannot be written", job->options.json);
    return SYMWIN_OK;
}

symwin_status record_close(struct job *job, int exit_status)
{
    symwin_status status = SYMWIN_OK;

    if (job->csv != NULL) {
        const int bad = ferror(job->csv);

        if (fclose(job->csv) != 0 || bad)
            status = sw_fail(SYMWIN_DENIED, "--csv %s cannot be written", job->options.csv);
        job->csv = NULL;
    }
    if (job->options.json != NULL && status == SYMWIN_OK)
        status = write_json(job, exit_status);
    free(job->results);
    job->results = NULL;
    return status;
}
