/* Turns ThreadSanitizer's reports into sentences: who reads what, who writes it, in which line of
 * the kernel.
 *
 * The runtime calls __tsan_on_report() for each report, and has functions to query it. The stack
 * trace of an access tells which CUDA thread made it (emu/trail.c). The report itself goes to the
 * file that TSAN_OPTIONS names. In a program without ThreadSanitizer nothing is reported.
 */
#include <stdio.h>
#include <string.h>

#include "../perf/perf.h"

#if defined(__SANITIZE_THREAD__)
#define HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAVE_TSAN 1
#endif
#endif

#ifndef HAVE_TSAN

int tsan_is_there(void)
{
    return 0;
}

void tsan_name(const struct rank *r, const void *address, size_t bytes, const char *what)
{
    (void)r;
    (void)address;
    (void)bytes;
    (void)what;
}

int tsan_found(char *text, size_t bytes)
{
    (void)bytes;
    text[0] = '\0';
    return 0;
}

#else

#include "../../emu/emu_access.h"

enum { FRAMES = 64, PLACES = 256, SENTENCE = 900 };

/* Not in <sanitizer/tsan_interface.h>; the runtime exports them for debuggers. */
int __tsan_get_report_data(void *report, const char **description, int *count, int *stacks,
                           int *mops, int *locs, int *mutexes, int *threads, int *unique_tids,
                           void **sleep_trace, unsigned long trace_size);
int __tsan_get_report_mop(void *report, unsigned long index, int *tid, void **address, int *size,
                          int *write, int *atomic, void **trace, unsigned long trace_size);
void __sanitizer_symbolize_pc(void *pc, const char *format, char *out, size_t bytes);
extern const char __executable_start[], etext[]; /* the linker's: this program's code */
void __tsan_on_report(void *report) __attribute__((visibility("default")));

/* Named memory, at the address where all accesses to it are seen. The mutex serialises those who
 * add names. __tsan_on_report() must not take it: it runs under locks of the runtime, and another
 * thread may hold the mutex while it waits for these locks. Reports do not overlap. */
static struct {
    pthread_mutex_t mutex;
    struct {
        uintptr_t begin, end;
        int rank;
        char what[16];
    } places[PLACES];
    int count;
    char first[SENTENCE];
    _Atomic int found; /* reports; 0: `first` may be written, else read */
} seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};

int tsan_is_there(void)
{
    return 1;
}

void tsan_name(const struct rank *r, const void *address, size_t bytes, const char *what)
{
    const uintptr_t begin = (uintptr_t)emu_access(r->device, (CUdeviceptr)(uintptr_t)address, 1, 0);
    int i = 0;

    pthread_mutex_lock(&seen.mutex);
    while (i < seen.count &&
           (seen.places[i].rank != r->rank || strcmp(seen.places[i].what, what) != 0))
        i++;
    if (i < PLACES) {
        seen.places[i].begin = begin;
        seen.places[i].end = begin + bytes;
        seen.places[i].rank = r->rank;
        snprintf(seen.places[i].what, sizeof seen.places[i].what, "%s", what);
        seen.count += i == seen.count;
    }
    pthread_mutex_unlock(&seen.mutex);
}

int tsan_found(char *text, size_t bytes)
{
    const int found = atomic_load(&seen.found);

    snprintf(text, bytes, "%s", found > 0 ? seen.first : "");
    if (found > 0) {
        stage_reported(NULL);
        atomic_store(&seen.found, 0);
    }
    return found;
}

/* ---- a report -------------------------------------------------------------------------------- */

struct access {
    char who[128], where[160], what[96];
    int write, size, by_kernel;
};

/* The function of a frame, and its file and line. */
static void symbolize(void *pc, char name[128], char line[256])
{
    char text[512], *bar;

    __sanitizer_symbolize_pc(pc, "%f|%s:%l", text, sizeof text);
    bar = strchr(text, '|');
    snprintf(line, 256, "%.255s", bar != NULL ? bar + 1 : "");
    if (bar != NULL)
        *bar = '\0';
    snprintf(name, 128, "%.127s", text);
}

static unsigned number_of(const unsigned char *digits, int count)
{
    unsigned number = 0;

    for (int i = 0; i < count; i++)
        number = 8 * number + digits[i];
    return number;
}

/* Whether the file of FILE:LINE has this ending. */
static int ends_in(const char *line, const char *ending)
{
    const char *colon = strrchr(line, ':');
    const size_t length = strlen(ending);

    return colon != NULL && (size_t)(colon - line) > length &&
           memcmp(colon - length, ending, length) == 0;
}

/* A frame of the emulated driver: its files are linked into this program, and their folder is
 * emu. A kernel in a folder named emu is in a module, or its file lies deeper in that folder. */
static int is_driver(const char *pc, const char *line)
{
    const char *slash = strrchr(line, '/');

    return pc >= __executable_start && pc < etext && slash != NULL && (size_t)(slash - line) >= 3 &&
           memcmp(slash - 3, "emu", 3) == 0 && (slash - line == 3 || slash[-4] == '/');
}

/* Whether the frame gives the line of the kernel from which the access was made. Headers are
 * skipped, so that the line is the one that calls them, and so is ThreadSanitizer's runtime, whose
 * paths have "../". */
static int is_line(const char *pc, const char *line)
{
    return (ends_in(line, ".cu") || ends_in(line, ".c") || ends_in(line, ".cc") ||
            ends_in(line, ".cpp")) &&
           strstr(line, "../") == NULL && !is_driver(pc, line);
}

/* Finds the CUDA thread and the line from the trace. A frame outside of kernels belongs to the
 * caller, which also uses the memory in the stream. */
static void find_who(void **trace, struct access *a)
{
    unsigned char digits[EMU_TRAIL_DIGITS];
    int found = 0, ours = 0, i;

    for (i = 0; i < FRAMES && trace[i] != NULL; i++) {
        char name[128], line[256];
        const char *slash;

        symbolize(trace[i], name, line);
        ours |= strncmp(name, "symwin_perf_", 12) == 0;
        if (strncmp(name, "emu_digit_", 10) == 0 && found < EMU_TRAIL_DIGITS)
            digits[EMU_TRAIL_DIGITS - ++found] = (unsigned char)(name[10] - '0');
        if (a->where[0] != '\0' || found > 0 || !is_line(trace[i], line))
            continue;
        slash = strrchr(line, '/');
        snprintf(a->where, sizeof a->where, " at %.140s", slash != NULL ? slash + 1 : line);
    }
    a->by_kernel = found == EMU_TRAIL_DIGITS && !ours;
    if (i == 0)
        snprintf(a->who, sizeof a->who, "an unknown thread (its stack trace is lost)");
    else if (a->by_kernel)
        snprintf(a->who, sizeof a->who, "rank %u (block %u, thread %u)",
                 number_of(digits, EMU_TRAIL_DEVICE),
                 number_of(digits + EMU_TRAIL_DEVICE, EMU_TRAIL_BLOCK),
                 number_of(digits + EMU_TRAIL_DEVICE + EMU_TRAIL_BLOCK, EMU_TRAIL_THREAD));
    else if (found == EMU_TRAIL_DIGITS)
        snprintf(a->who, sizeof a->who,
                 "the caller's work in rank %u's stream before or after the call",
                 number_of(digits, EMU_TRAIL_DEVICE));
    else
        snprintf(a->who, sizeof a->who, "the caller's work in the stream before or after the call");
    if (!a->by_kernel)
        a->where[0] = '\0';
}

static void find_what(uintptr_t address, struct access *a)
{
    snprintf(a->what, sizeof a->what, "memory");
    for (int i = 0; i < seen.count; i++)
        if (address >= seen.places[i].begin && address < seen.places[i].end) {
            snprintf(a->what, sizeof a->what, "rank %d's %s", seen.places[i].rank,
                     seen.places[i].what);
            return;
        }
}

static void print_access(const struct access *a, const char *what, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s %s %s%s", a->who, a->write ? "writes" : "reads", what, a->where);
}

void __tsan_on_report(void *report)
{
    const char *description = "";
    void *sleep_trace[1] = {NULL};
    int count, stacks, mops = 0, locs, mutexes, threads, unique_tids;
    struct access of[2] = {{.who = ""}, {.who = ""}};
    char first[400], second[400];

    if (atomic_load(&seen.found) > 0)
        return;
    __tsan_get_report_data(report, &description, &count, &stacks, &mops, &locs, &mutexes, &threads,
                           &unique_tids, sleep_trace, 1);
    for (int i = 0; i < mops && i < 2; i++) {
        void *trace[FRAMES] = {NULL}, *address;
        int tid, atomic;

        __tsan_get_report_mop(report, (unsigned long)i, &tid, &address, &of[i].size, &of[i].write,
                              &atomic, trace, FRAMES);
        find_who(trace, &of[i]);
        find_what((uintptr_t)address, &of[i]);
    }
    print_access(&of[0], of[0].what, first, sizeof first);
    print_access(&of[1], "it", second, sizeof second);
    if (mops == 2)
        snprintf(seen.first, sizeof seen.first, "%s, and %s: a data race (ThreadSanitizer)", first,
                 second);
    else
        snprintf(seen.first, sizeof seen.first, "ThreadSanitizer reports: %s", description);
    stage_reported(seen.first);
    atomic_store(&seen.found, 1);
}

#endif
