/* Prints the table: the columns of nccl-tests, and more. */
#include <stdio.h>

#include "perf.h"

double result_algbw(const struct result *result)
{
    return result->us > 0 ? (double)result->bytes / result->us / 1e3 : 0;
}

/* The bandwidth of the links in each direction, if each byte crosses them as rarely as possible. */
double result_busbw(const struct result *result, int nranks)
{
    const double crossings = collective_of(result->collective)->crossings;

    return result_algbw(result) *
           (way_is_limit(result->way) || crossings == 0 ? 1 : crossings * (nranks - 1) / nranks);
}

const char *result_launched(const struct result *result)
{
    return result->way->kind == WAY_OWN ? result->way->name
                                        : symwin_algo_name(result->launched.algo);
}

static int has_rivals(const struct job *job)
{
    return job->options.rivals != 0 || job->options.kernel_count > 0;
}

void table_begin(const struct job *job)
{
    machine_print(job, stdout, "# ");
    if (has_rivals(job))
        printf("# ratio: a rival's time divided by that of symwin's %s at the same size; above 1: "
               "symwin is faster\n#\n",
               (job->options.algos & 1u << SYMWIN_ALGO_AUTO) != 0 ? "own choice (auto)"
                                                                  : "fastest row");
}

void table_head(const struct job *job, symwin_collective collective)
{
    const int rivals = has_rivals(job);

    printf("#\n# collective: %s\n#\n", collective_name(collective));
    printf("#%11s %11s %6s %5s %4s %-16s %34s  %34s  %8s %8s %8s %7s %-24s %s\n", "", "", "", "",
           "", "", "out of place              ", "in place                ", "p50", "p99", "max",
           "host", "launched:", rivals ? "ratio" : "");
    printf("#%11s %11s %6s %5s %4s %-16s %9s %8s %8s %6s  %9s %8s %8s %6s  %8s %8s %8s %7s %-24s "
           "%s\n",
           "size", "count", "type", "op", "root", "algo", "time", "algbw", "busbw", "#wrong",
           "time", "algbw", "busbw", "#wrong", "", "", "", "launch", "algorithm:blocksxthreads",
           rivals ? "out/in" : "");
    printf("#%11s %11s %6s %5s %4s %-16s %9s %8s %8s %6s  %9s %8s %8s %6s  %8s %8s %8s %7s\n",
           "(B)", "(elements)", "", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)",
           "(GB/s)", "", "(us)", "(us)", "(us)", "(us)");
    fflush(stdout);
}

static void print_figures(const struct job *job, const struct result *result)
{
    char wrong[24] = "N/A";

    if (result == NULL) {
        printf(" %9s %8s %8s %6s ", "-", "-", "-", "-");
        return;
    }
    if (result->checked)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)result->wrong);
    printf(" %9.2f %8.2f %8.2f %6s ", result->us, result_algbw(result),
           result_busbw(result, job->nranks), wrong);
}

static void print_launched(const struct result *result)
{
    char text[64] = "-";

    if (result->launched.blocks > 0)
        snprintf(text, sizeof text, "%s:%dx%d", result_launched(result), result->launched.blocks,
                 result->launched.threads);
    printf(" %-24s", text);
}

void table_row(const struct job *job, const struct result *out, const struct result *in)
{
    const struct result *any = out != NULL ? out : in;
    const int limit = way_is_limit(any->way);
    char host[24] = "-";

    printf(" %11zu %11llu %6s %5s %4d %-16s", any->bytes, (unsigned long long)any->count,
           limit ? "-" : result_type(any), limit ? "-" : result_op(any),
           !limit && collective_has_root(any->collective) ? job->options.root : -1, any->way->name);
    print_figures(job, out);
    print_figures(job, in);
    if (any->host_us > 0)
        snprintf(host, sizeof host, "%.2f", any->host_us);
    printf(" %8.2f %8.2f %8.2f %7s", any->p50_us, any->p99_us, any->max_us, host);
    print_launched(any);
    if (out != NULL && out->ratio > 0)
        printf(" %.2f", out->ratio);
    if (in != NULL && in->ratio > 0)
        printf("%s%.2f", out != NULL ? "/" : " ", in->ratio);
    printf("\n");
    fflush(stdout);
}

/* Summarises a rival over its rows of a collective, of which `first` is the first. `of`: ends the
 * line's subject. */
static void print_rival(const struct job *job, size_t first, const char *of)
{
    const struct result *model = &job->results[first];
    int rows = 0, ahead = 0;
    double least = 0;

    for (size_t i = 0; i < first; i++)
        if (job->results[i].way == model->way && job->results[i].collective == model->collective)
            return; /* already printed */
    for (size_t i = first; i < job->result_count; i++) {
        const struct result *result = &job->results[i];

        if (result->way != model->way || result->collective != model->collective ||
            result->ratio == 0)
            continue;
        ahead += result->ratio >= 1;
        least = rows == 0 || result->ratio < least ? result->ratio : least;
        rows++;
    }
    if (rows > 0)
        printf("# against %s%s: at least as fast in %d of %d rows; least ratio %.2f\n",
               model->way->name, of, ahead, rows, least);
}

/* Names the kernels of --kernel that have no row. */
static void print_absent(const struct job *job)
{
    for (int w = 0; w < job->ways.count; w++) {
        const struct way *way = &job->ways.list[w];
        int rows = way->kind != WAY_OWN;

        for (size_t i = 0; i < job->result_count; i++)
            rows += job->results[i].way == way;
        if (rows == 0)
            printf("# %s has no row: it supports none of these calls (SYMWIN_KERNEL_ABOUT)\n",
                   way->name);
    }
}

/* The mean over the library's rows of a collective. */
static void print_average(const struct job *job, symwin_collective collective, const char *of)
{
    double sum = 0;
    int rows = 0;

    for (size_t i = 0; i < job->result_count; i++) {
        const struct result *result = &job->results[i];

        if (result->way->kind != WAY_SYMWIN || result->collective != collective)
            continue;
        sum += result_busbw(result, job->nranks);
        rows++;
    }
    if (rows > 0 && !collective_of(collective)->no_data)
        printf("# Avg bus bandwidth%s: %.4g\n", of, sum / rows);
}

/* " of NAME" if there are several collectives. */
static const char *of_which(const struct job *job, symwin_collective collective, char *text,
                            size_t bytes)
{
    const unsigned all = job->options.collectives;

    text[0] = '\0';
    if ((all & (all - 1)) != 0)
        snprintf(text, bytes, " of %s", collective_name(collective));
    return text;
}

void table_end(const struct job *job, int complete)
{
    const struct perf_options *o = &job->options;
    const char *verdict = job->wrong > 0 ? "FAILED" : complete ? "OK" : "so far";
    char text[64];
    int unchecked = 0, c;

    for (size_t i = 0; i < job->result_count; i++)
        unchecked += !job->results[i].checked;
    for (size_t i = 0; i < job->result_count; i++)
        print_rival(job, i, of_which(job, job->results[i].collective, text, sizeof text));
    if (complete)
        print_absent(job);
    if (unchecked > 0)
        printf("# Not checked: %d of %zu results\n", unchecked, (size_t)job->result_count);
    printf("# Wrong elements: %llu %s\n", (unsigned long long)job->wrong, verdict);
    for (int i = 0; (c = options_nth(o->collective_order, o->collectives, i)) >= 0; i++)
        print_average(job, (symwin_collective)c,
                      of_which(job, (symwin_collective)c, text, sizeof text));
    fflush(stdout);
}
