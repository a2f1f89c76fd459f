/* What ThreadSanitizer reports, in sentences: who reads what, who writes it, in which line of the kernel.
 *
 * Its runtime calls __tsan_on_report() for each report and answers questions about it; CUDA threads are fibers with
 * names (emu/fiber.c). The report itself goes where TSAN_OPTIONS says. In a program without it there is nothing to
 * tell.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

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

enum { FRAMES = 32, PLACES = 256, SENTENCE = 800 };

/* <sanitizer/tsan_interface.h> has none of these; the runtime is there for debuggers. */
int __tsan_get_report_data(void *report, const char **description, int *count, int *stacks,
                           int *mops, int *locs, int *mutexes, int *threads, int *unique_tids,
                           void **sleep_trace, unsigned long trace_size);
int __tsan_get_report_mop(void *report, unsigned long index, int *tid, void **address, int *size,
                          int *write, int *atomic, void **trace, unsigned long trace_size);
int __tsan_get_report_thread(void *report, unsigned long index, int *tid, unsigned long *os_id,
                             int *running, const char **name, int *parent_tid, void **trace,
                             unsigned long trace_size);
void __sanitizer_symbolize_pc(void *pc, const char *format, char *out, size_t bytes);
void __tsan_on_report(void *report) __attribute__((visibility("default")));

/* Memory that has a name: where all accesses to it are seen. The mutex is of those who give names. A report takes
 * none: it is made under locks of the runtime's, which others may wait for with a mutex of theirs; reports do not
 * overlap. */
static struct {
    pthread_mutex_t mutex;
    struct {
        uintptr_t begin, end;
        int rank;
        char what[16];
    } places[PLACES];
    int count;
    char first[SENTENCE];
    _Atomic int found; /* reports; `first` is written when it is 0, and read when it is not */
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
    if (found > 0)
        atomic_store(&seen.found, 0);
    return found;
}

/* ---- a report --------------------------------------------------------------------------------- */

struct access {
    char who[128], where[160], what[96];
    int write, size, by_kernel;
};

/* The line of the kernel from which the access was made: the first that is in no header of ours. "": none is. */
static void find_line(void **trace, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < FRAMES && trace[i] != NULL; i++) {
        char frame[512];
        const char *slash;

        __sanitizer_symbolize_pc(trace[i], "%s:%l", frame, sizeof frame);
        if (strstr(frame, "/include/") != NULL || strstr(frame, ".c") == NULL ||
            strstr(frame, "emu/") != NULL || strstr(frame, "../") != NULL ||
            strstr(frame, ".cuh:") != NULL)
            continue;
        slash = strrchr(frame, '/');
        snprintf(text, bytes, "%.140s", slash != NULL ? slash + 1 : frame);
        return;
    }
}

/* By the fiber's name. What is no kernel's is the caller's next use of the memory, in the stream. */
static void find_who(void *report, int threads, int tid, struct access *a)
{
    for (int i = 0; i < threads; i++) {
        void *trace[1] = {NULL};
        unsigned long os_id;
        const char *name = NULL;
        char kernel[32];
        unsigned block, thread;
        int id, running, parent, device;

        if (!__tsan_get_report_thread(report, (unsigned long)i, &id, &os_id, &running, &name,
                                      &parent, trace, 1) ||
            id != tid || name == NULL)
            continue;
        if (sscanf(name, "%31s device %d block %u thread %u", kernel, &device, &block, &thread) !=
            4)
            break;
        a->by_kernel = strncmp(kernel, "symwin_perf_", 12) != 0;
        if (a->by_kernel)
            snprintf(a->who, sizeof a->who, "rank %d (block %u, thread %u)", device, block, thread);
        else
            snprintf(a->who, sizeof a->who,
                     "what the caller does in rank %d's stream before or after the call", device);
        return;
    }
    snprintf(a->who, sizeof a->who, "what the caller does in the stream before or after the call");
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
    snprintf(text, bytes, "%s %s %s%s%s", a->who, a->write ? "writes" : "reads", what,
             a->where[0] != '\0' ? " at " : "", a->where);
}

void __tsan_on_report(void *report)
{
    const char *description = "";
    void *sleep_trace[1] = {NULL};
    int count, stacks, mops = 0, locs, mutexes, threads = 0, unique_tids;
    struct access of[2] = {{.who = ""}, {.who = ""}};
    char first[320], second[320];

    if (atomic_load(&seen.found) > 0)
        return;
    __tsan_get_report_data(report, &description, &count, &stacks, &mops, &locs, &mutexes, &threads,
                           &unique_tids, sleep_trace, 1);
    for (int i = 0; i < mops && i < 2; i++) {
        void *trace[FRAMES] = {NULL}, *address;
        int tid, atomic;

        __tsan_get_report_mop(report, (unsigned long)i, &tid, &address, &of[i].size, &of[i].write,
                              &atomic, trace, FRAMES);
        find_who(report, threads, tid, &of[i]);
        find_what((uintptr_t)address, &of[i]);
        if (of[i].by_kernel)
            find_line(trace, of[i].where, sizeof of[i].where);
    }
    print_access(&of[0], of[0].what, first, sizeof first);
    print_access(&of[1], "it", second, sizeof second);
    if (mops == 2)
        snprintf(seen.first, sizeof seen.first,
                 "%s, and %s: nothing says which comes first (ThreadSanitizer)", first, second);
    else
        snprintf(seen.first, sizeof seen.first, "ThreadSanitizer reports: %s", description);
    atomic_store(&seen.found, 1);
}

#endif
