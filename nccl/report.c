/* What was served: SYMWIN_NCCL_REPORT=1 prints a table on stderr when the process ends, and
 * NCCL_DEBUG=INFO a line for each communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "nccl/calls.h"

/* Of a communicator that is gone. */
struct report {
    struct report *next;
    unsigned number;
    int rank, ranks, several_hosts;
    char why[sizeof((struct sw_comm *)NULL)->why];
    struct sw_counts *counts;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct report *first;
static atomic_int process; /* that has made calls: a forked child prints nothing of them */

void sw_report_birth(struct sw_comm *comm)
{
    const char *level = getenv("NCCL_DEBUG");
    char kinds[160] = "", limit[48] = "";
    int kind;

    if (level == NULL || (strcasecmp(level, "INFO") != 0 && strcasecmp(level, "TRACE") != 0))
        return;
    for (kind = 0; kind < SW_KINDS - 1; kind++)
        if (comm->sizes[kind] != 0)
            snprintf(kinds + strlen(kinds), sizeof kinds - strlen(kinds), " %s",
                     sw_kind_names[kind]);
    if (comm->most_blocks > 0)
        snprintf(limit, sizeof limit, ", with %d blocks at most", comm->most_blocks);
    if (atomic_load(&comm->state) == SW_ATTACHED)
        fprintf(stderr, "symwin: process %d, communicator %u %p, rank %d of %d: may serve%s%s\n",
                (int)getpid(), comm->number, (void *)atomic_load(&comm->handle), comm->rank,
                comm->ranks, kinds[0] != '\0' ? kinds : " nothing: no times were measured", limit);
    else
        fprintf(stderr, "symwin: process %d, communicator %u %p, rank %d of %d: NCCL's, as %s\n",
                (int)getpid(), comm->number, (void *)atomic_load(&comm->handle), comm->rank,
                comm->ranks, comm->why);
}

static enum sw_reason reason_of(const struct sw_call *call, int class)
{
    const struct sw_comm *comm = call->comm;

    if (call->server == SW_OURS)
        return SW_IS_OURS;
    if (atomic_load(&comm->state) == SW_REFUSED)
        return SW_IS_REFUSED;
    if (call->sort != SW_PLAIN_CALL)
        return call->sort == SW_CONFIGURED ? SW_BY_CONFIG : SW_BY_CALL;
    if (((comm->sizes[call->kind] >> class) & 1) == 0)
        return sw_setup()->serve[call->kind] == SW_SERVE_NONE ? SW_BY_VARIABLE : SW_BY_TABLE;
    if (comm->several_hosts && sw_call_averages_integers(call))
        return SW_BY_TYPE;
    return sw_is_pair(call) && atomic_load(&comm->symwin) == NULL ? SW_BEFORE_MEETING : SW_BY_GROUP;
}

void sw_report_count(const struct sw_call *call, struct sw_counts *counts)
{
    int class, size;

    atomic_store_explicit(&process, (int)getpid(), memory_order_relaxed);
    class = sw_serve_class(call->comm, call->kind, call->count, call->type);
    size = call->count > 0 ? 1 + class : 0;
    atomic_fetch_add_explicit(&counts->calls[call->kind][size][reason_of(call, class)], 1,
                              memory_order_relaxed);
}

void sw_report_death(struct sw_comm *comm)
{
    struct report *report = atomic_load(&comm->counts) != NULL ? calloc(1, sizeof *report) : NULL;

    if (report == NULL)
        return;
    *report = (struct report){.number = comm->number, .rank = comm->rank, .ranks = comm->ranks};
    report->several_hosts = comm->several_hosts;
    memcpy(report->why, comm->why, sizeof report->why);
    report->counts = atomic_exchange(&comm->counts, NULL);
    if (report->counts == NULL) {
        free(report);
        return;
    }
    pthread_mutex_lock(&mutex);
    report->next = first;
    first = report;
    pthread_mutex_unlock(&mutex);
}

/* ---- the table ---- */

/* `size`: 0, or 1 + a class. */
static void print_bytes(char *text, size_t room, int size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const int class = size - 1;

    if (size == 0)
        snprintf(text, room, "0 B");
    else
        snprintf(text, room, "%u %s", 1u << (class % 10), units[class / 10]);
}

static void print_head(void)
{
    static int printed;

    if (!printed)
        fprintf(stderr,
                "symwin: what was served in process %d, by the bytes from which classes are\n"
                "symwin:   comm  rank ranks collective          bytes     calls by\n",
                (int)getpid());
    printed = 1;
}

static const char *const reasons[SW_REASONS] = {
    [SW_BY_CALL] = "without elements, or wrong",
    [SW_BY_CONFIG] = "by its configuration",
    [SW_BY_VARIABLE] = "by SYMWIN_NCCL_SERVE",
    [SW_BY_TABLE] = "by the table",
    [SW_BY_TYPE] = "an average of integers",
    [SW_BEFORE_MEETING] = "before a collective of all ranks",
    [SW_BY_GROUP] = "by its group",
};

static void print_row(const struct report *r, enum sw_kind kind, int size, enum sw_reason reason)
{
    const unsigned calls = atomic_load(&r->counts->calls[kind][size][reason]);
    const int ours = reason == SW_IS_OURS; /* `size` is 1 + a class: symwin has no empty calls */
    const float mine = r->several_hosts || !ours ? 0
                                                 : sw_serve_time(r->ranks, kind, size - 1, SW_OURS);
    const float nccls = ours ? sw_serve_time(r->ranks, kind, size - 1, SW_NCCLS) : 0;
    const char *name = kind == SW_SEND ? "send" : kind == SW_RECV ? "receive" : sw_kind_names[kind];
    char bytes[24], saved[32] = "not measured";

    if (calls == 0)
        return;
    print_head();
    print_bytes(bytes, sizeof bytes, size);
    if (ours && mine > 0)
        snprintf(saved, sizeof saved, "%.3f ms", (double)(nccls - mine) * calls / 1000);
    if (ours)
        fprintf(stderr, "symwin: %6u %5d %5d %-14s %9s %9u symwin  saved %s\n", r->number, r->rank,
                r->ranks, name, bytes, calls, saved);
    else
        fprintf(stderr, "symwin: %6u %5d %5d %-14s %9s %9u NCCL    %s\n", r->number, r->rank,
                r->ranks, name, bytes, calls, reason == SW_IS_REFUSED ? r->why : reasons[reason]);
}

static void print(const struct report *r)
{
    int kind, size, reason;

    for (kind = 0; kind < SW_KINDS; kind++)
        for (size = 0; size <= SW_CLASSES; size++)
            for (reason = 0; reason < SW_REASONS; reason++)
                print_row(r, (enum sw_kind)kind, size, (enum sw_reason)reason);
}

static void print_live(struct sw_comm *comm, void *data)
{
    struct report report = {.number = comm->number,
                            .rank = comm->rank,
                            .ranks = comm->ranks,
                            .counts = atomic_load(&comm->counts)};

    (void)data;
    if (atomic_load(&comm->handle) == NULL || report.counts == NULL)
        return;
    report.several_hosts = comm->several_hosts;
    memcpy(report.why, comm->why, sizeof report.why);
    print(&report);
}

__attribute__((destructor)) static void print_all(void)
{
    struct report *report;

    if (atomic_load(&process) != (int)getpid())
        return;
    pthread_mutex_lock(&mutex);
    while ((report = first) != NULL) {
        print(report);
        first = report->next;
        free(report->counts);
        free(report);
    }
    pthread_mutex_unlock(&mutex);
    sw_comm_each(print_live, NULL);
}
