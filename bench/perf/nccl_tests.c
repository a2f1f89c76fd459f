/* The options of nccl-tests that symwin-perf does not have under the same letter. They are accepted
 * under another name, or refused with a message that says what to use instead. docs/nccl-tests.md
 * has the table.
 */
#include <stdio.h>
#include <string.h>

#include "options.h"

static const struct {
    const char *letter, *word, *own;
} same[] = {
    {NULL, "--nthreads", "-t"},  {NULL, "--ngpus", "-g"},
    {NULL, "--minbytes", "-b"},  {NULL, "--maxbytes", "-e"},
    {NULL, "--stepbytes", "-i"}, {NULL, "--stepfactor", "-f"},
    {NULL, "--iters", "-n"},     {NULL, "--warmup_iters", "-w"},
    {NULL, "--op", "-o"},        {NULL, "--datatype", "-d"},
    {NULL, "--check", "-c"},     {NULL, "--cudagraph", "-G"},
    {NULL, "--root", "-r"},      {"-T", NULL, "--timeout"},
    {"-F", NULL, "--csv"},       {"-J", "--output_file", "--json"},
};

static const struct {
    const char *letter, *word, *instead;
} refused[] = {
    {"-m", "--agg_iters", "calls of a repetition follow each other without a wait: give -n"},
    {"-N", "--run_cycles", "each size is timed several times: give -G, or --rounds with -G 0"},
    {"-p", "--parallel_init", "ranks always start side by side: leave it out"},
    {"-z", "--blocking", "--percentiles N times calls that are each waited for"},
    {"-y", "--stream_null", "each rank has a stream of its own: leave it out"},
    {"-C", "--report_cputime", "the column \"launch\" always has the host's time: leave it out"},
    {"-a", "--average", "times are those of the slowest rank, as with -a 3: leave it out"},
    {"-R", "--local_register",
     "--window 0 or 1 says where symwin's buffers are, --against nccl-reg or nccl-window where "
     "NCCL's are"},
    {"-S", "--report_timestamps",
     "the head of the table and of --csv and --json has the time: leave it out"},
    {"-D", "--device_implementation", "--algo chooses the kernel"},
    {"-V", "--device_cta_count", "--blocks or --sm-limit limits the grid"},
    {"-x", "--cta_policy",
     "--blocks or --sm-limit limits the grid, --algo copies leaves it to the copy engines"},
    {"-M", "--memory_report",
     "symwin-info --pid shows what a process holds, if it runs with SYMWIN_INFO=1"},
    {"-u", "--unalign",
     "--kernel checks buffers of every alignment; the table's are aligned: leave it out"},
    {"-A", "--per_coll_perf",
     "p50, p99 and max are always printed, with --percentiles N of single calls"},
};

/* Whether it is the letter, --word or --word=value. */
static int is_word(const char *given, const char *letter, const char *word)
{
    const size_t length = word != NULL ? strlen(word) : 0;

    return (letter != NULL && strcmp(given, letter) == 0) ||
           (word != NULL && strncmp(given, word, length) == 0 &&
            (given[length] == '\0' || given[length] == '='));
}

const char *options_own_name(const char *given)
{
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (is_word(given, same[i].letter, same[i].word))
            return same[i].own;
    return given;
}

int options_foreign(const char *given)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (is_word(given, refused[i].letter, refused[i].word)) {
            fprintf(stderr, "symwin-perf: %s is an option of nccl-tests; %s\n", given,
                    refused[i].instead);
            return 1;
        }
    return 0;
}
