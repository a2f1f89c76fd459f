/* The head of the table and of the files: machine, time, versions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"
#include "perf_commit.h" /* made by the Makefile */

/* A rank's device and process, as the values of an agreement. */
union place {
    struct {
        char name[80];
        int32_t device, process;
    } is;
    uint64_t words[SW_BALLOT_VALUES];
};

static union place *places; /* rank 0 has those of all ranks */

int machine_meet(struct rank *r)
{
    symwin_device_info info;
    union place mine;
    int good = ok(symwin_device_query(r->device, &info));

    memset(&mine, 0, sizeof mine);
    if (good)
        snprintf(mine.is.name, sizeof mine.is.name, "%.79s", info.name);
    mine.is.device = r->device;
    mine.is.process = (int32_t)getpid();
    if (r->rank == 0) {
        places = calloc((size_t)r->job->nranks, sizeof *places);
        if (places == NULL && good)
            good = fail(SYMWIN_NO_MEMORY, "no memory for %d ranks", r->job->nranks);
    }
    good = meet(r, good, mine.words, SW_BALLOT_VALUES);
    for (int i = 0; i < r->job->nranks && r->rank == 0 && good; i++) {
        for (int w = 0; w < SW_BALLOT_VALUES; w++)
            places[i].words[w] = met(r, i, w);
        places[i].is.name[sizeof places[i].is.name - 1] = '\0';
    }
    return good;
}

/* The version of NVIDIA's kernel module; "": none. */
static const char *module_version(char *text, size_t bytes)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[256] = "";
    const char *at;

    text[0] = '\0';
    if (file == NULL)
        return text;
    if (fgets(line, sizeof line, file) != NULL && (at = strstr(line, "  ")) != NULL)
        snprintf(text, bytes, "%.*s", (int)strcspn(at + 2, " \n"), at + 2);
    fclose(file);
    return text;
}

static const char *date(char *text, size_t bytes)
{
    const time_t now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(text, bytes, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return text;
}

static const char *driver_words(const struct job *job, char *text, size_t bytes)
{
    char module[64];

    module_version(module, sizeof module);
    snprintf(text, bytes, "%s %d.%d%s%s", job->driver.name, job->driver.version / 1000,
             job->driver.version % 1000 / 10, job->emulated || module[0] == '\0' ? "" : ", module ",
             job->emulated ? "" : module);
    return text;
}

static const char *nccl_words(char *text, size_t bytes)
{
    const int version = rivals_version();

    if (version == 0)
        snprintf(text, bytes, "none");
    else
        snprintf(text, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

/* Says of which times the percentiles are. */
static const char *spread_words(const struct perf_options *o, char *text, size_t bytes)
{
    if (o->percentiles > 0)
        snprintf(text, bytes, "%d single calls, each between two events", o->percentiles);
    else
        snprintf(text, bytes, "the repetitions, each the mean of its calls");
    return text;
}

void machine_print(const struct job *job, FILE *to, const char *before_each)
{
    const struct perf_options *o = &job->options;
    char when[64], driver[128], nccl[32];

    fprintf(to, "%ssymwin-perf %s, commit %s, %s\n", before_each, symwin_version(), PERF_COMMIT,
            date(when, sizeof when));
    fprintf(to, "%sarguments: %s\n", before_each, o->arguments);
    fprintf(to, "%sdriver: %s; nccl: %s\n", before_each, driver_words(job, driver, sizeof driver),
            nccl_words(nccl, sizeof nccl));
    fprintf(to, "%sranks: %d in %d process%s; mode: %s, %d repetitions, the slowest rank's time\n",
            before_each, job->nranks, job->processes, job->processes == 1 ? "" : "es",
            o->replays > 0 ? "graph" : "stream", o->replays > 0 ? o->replays : o->rounds);
    if (o->tune == NULL)
        fprintf(to, "%sp50, p99, max: of %s\n", before_each, spread_words(o, when, sizeof when));
    for (int rank = 0; rank < job->nranks && rank < 16; rank++)
        fprintf(to, "%srank %d: device %d, %s, process %d\n", before_each, rank,
                places[rank].is.device, places[rank].is.name, places[rank].is.process);
}

/* ---- JSON ---- */

static void json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(to, "\\u%04x", (unsigned char)*text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

static void json_member(FILE *to, const char *name, const char *text)
{
    fprintf(to, "  \"%s\": ", name);
    json_text(to, text);
    fprintf(to, ",\n");
}

void machine_json(const struct job *job, FILE *to)
{
    char text[128];

    json_member(to, "tool", "symwin-perf");
    json_member(to, "version", symwin_version());
    json_member(to, "commit", PERF_COMMIT);
    json_member(to, "date", date(text, sizeof text));
    json_member(to, "arguments", job->options.arguments);
    json_member(to, "driver", driver_words(job, text, sizeof text));
    json_member(to, "nccl", nccl_words(text, sizeof text));
    json_member(to, "mode", job->options.replays > 0 ? "graph" : "stream");
    json_member(to, "percentiles_of", spread_words(&job->options, text, sizeof text));
    fprintf(to, "  \"ranks\": %d,\n  \"processes\": %d,\n  \"devices\": [", job->nranks,
            job->processes);
    for (int i = 0; i < job->nranks; i++) {
        fprintf(to, "%s\n    {\"rank\": %d, \"device\": %d, \"process\": %d, \"name\": ",
                i > 0 ? "," : "", i, places[i].is.device, places[i].is.process);
        json_text(to, places[i].is.name);
        fputc('}', to);
    }
    fprintf(to, "\n  ],\n");
}
