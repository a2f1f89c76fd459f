/* Failure reports of kernels: their memory, and the error text for them.
 *
 * Each communicator has one struct sw_kernel_report in pinned host memory. Reports are suballocated
 * from pages that stay until the process has no communicator left: cuMemFreeHost() waits for every
 * kernel on the device (tests/gpu/gpu_waits.c), and the destruction of a communicator must not wait
 * for another's kernels. A page lives only as long as the context in which it was allocated, so it
 * retains that context: the communicator that allocated the page may be destroyed first.
 *
 * Any thread may call; a mutex protects the pages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pair_layout.h"
#include "src/control/control.h"

enum { SLOT_BYTES = 128, PAGE_BYTES = 16384, SLOTS = PAGE_BYTES / SLOT_BYTES };

_Static_assert(sizeof(struct sw_kernel_report) <= SLOT_BYTES, "a report fits in its slot");

struct page {
    struct sw_remains remains; /* first */
    struct page *next;
    unsigned char *memory; /* owned, pinned, SLOTS slots */
    CUdevice device;       /* its primary context is retained */
    CUcontext context;
    unsigned char used[SLOTS];
};

static struct {
    pthread_mutex_t mutex;
    struct page *pages;
    int used; /* slots in all pages */
} reports = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A free slot of the page; SLOTS: none. */
static size_t free_slot(const struct page *page)
{
    size_t slot = 0;

    while (slot < SLOTS && page->used[slot])
        slot++;
    return slot;
}

/* Allocates a page in the current context, which is the device's primary one. Not under the mutex:
 * ranks of other devices do not wait for this device's driver. */
static symwin_status make_page(CUdevice device, struct page **out)
{
    struct page *page = calloc(1, sizeof *page);
    CUcontext context = NULL;
    void *memory = NULL;
    symwin_status status;

    if (page == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for kernel reports");
    status = sw_check(sw_drv.cuDevicePrimaryCtxRetain(&context, device),
                      "cuDevicePrimaryCtxRetain of device %d", device);
    if (status != SYMWIN_OK) {
        free(page);
        return status;
    }
    status = sw_check(sw_drv.cuMemHostAlloc(&memory, PAGE_BYTES,
                                            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                      "cuMemHostAlloc of %d bytes", (int)PAGE_BYTES);
    if (status != SYMWIN_OK) {
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
        free(page);
        return status;
    }
    page->memory = memory;
    page->device = device;
    page->context = context;
    *out = page;
    return SYMWIN_OK;
}

/* A page with a free slot; NULL: none. Under the mutex. */
static struct page *find_page(void)
{
    struct page *page = reports.pages;

    while (page != NULL && free_slot(page) == SLOTS)
        page = page->next;
    return page;
}

static void free_page(struct sw_remains *remains)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct page *page = (struct page *)remains;
    const int pushed = sw_drv.cuCtxPushCurrent(page->context) == CUDA_SUCCESS;
    CUcontext context;

    /* Another thread may be capturing in global mode, which this would end. */
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    sw_drop(sw_drv.cuMemFreeHost(page->memory), "cuMemFreeHost");
    sw_drop(sw_drv.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    if (pushed)
        sw_drop(sw_drv.cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    sw_drop(sw_drv.cuDevicePrimaryCtxRelease(page->device), "cuDevicePrimaryCtxRelease");
    free(page);
}

/* Under the mutex. On the reaper: work of other libraries on the device may wait for this thread.
 * */
static void free_pages(void)
{
    while (reports.pages != NULL) {
        struct page *page = reports.pages;

        reports.pages = page->next;
        sw_reaper_take(&page->remains, free_page);
    }
}

symwin_status sw_report_acquire(CUdevice device, struct sw_kernel_report **out)
{
    struct page *page;
    size_t slot;

    pthread_mutex_lock(&reports.mutex);
    page = find_page();
    if (page == NULL) {
        symwin_status status;

        pthread_mutex_unlock(&reports.mutex);
        status = make_page(device, &page);
        if (status != SYMWIN_OK)
            return status;
        pthread_mutex_lock(&reports.mutex);
        page->next = reports.pages; /* another thread may have made one too: both stay */
        reports.pages = page;
    }
    slot = free_slot(page);
    page->used[slot] = 1;
    reports.used++;
    *out = (struct sw_kernel_report *)(void *)(page->memory + slot * SLOT_BYTES);
    memset(*out, 0, SLOT_BYTES);
    pthread_mutex_unlock(&reports.mutex);
    return SYMWIN_OK;
}

void sw_report_release(struct sw_kernel_report *report)
{
    const unsigned char *at = (const unsigned char *)report;
    struct page *page;

    pthread_mutex_lock(&reports.mutex);
    for (page = reports.pages; page != NULL; page = page->next)
        if (at >= page->memory && at < page->memory + PAGE_BYTES) {
            page->used[(at - page->memory) / SLOT_BYTES] = 0;
            if (--reports.used == 0)
                free_pages();
            break;
        }
    pthread_mutex_unlock(&reports.mutex);
}

/* ---- status and text ---- */

symwin_status sw_report_status(const struct sw_kernel_report *report, int *culprit)
{
    const struct sw_finding *found = &report->found;

    *culprit = 0;
    switch ((enum sw_kernel_code)__atomic_load_n(&report->code, __ATOMIC_ACQUIRE)) {
    case SW_KERNEL_MISMATCH:
        *culprit = found->tie ? SW_NOBODY : found->rank;
        return SYMWIN_MISMATCH;
    case SW_KERNEL_COUNTS:
    case SW_KERNEL_TYPES:
        *culprit = SW_NOBODY;
        return SYMWIN_MISMATCH;
    case SW_KERNEL_ROOM:
    case SW_KERNEL_NULL:
        *culprit = found->rank;
        return SYMWIN_MISMATCH;
    case SW_KERNEL_TIMEOUT:
        *culprit = found->rank;
        return SYMWIN_TIMEOUT;
    case SW_KERNEL_LEFT:
        *culprit = found->rank;
        return SYMWIN_PEER_LOST;
    case SW_KERNEL_OK:
    case SW_KERNEL_ABORTED:
        break;
    }
    return SYMWIN_OK;
}

/* "rank 2", or "ranks 2, 3 and 5": the ranks in `mask`, or `first` if it has no more than one, or
 * is above what the mask can hold. */
static const char *name_ranks(char *text, size_t bytes, int first, uint64_t mask,
                              const struct sw_exchange *x)
{
    size_t at = 0;
    int r;

    if (first >= 64 || (mask & (mask - 1)) == 0) {
        snprintf(text, bytes, "rank %d", sw_exchange_number(x, first));
        return text;
    }
    for (r = 0; r < 64 && at + 16 < bytes; r++) {
        if ((mask >> r & 1) == 0)
            continue;
        at += (size_t)snprintf(text + at, bytes - at, "%s%d",
                               at == 0          ? "ranks "
                               : mask >> r == 1 ? " and "
                                                : ", ",
                               sw_exchange_number(x, r));
    }
    return text;
}

static const char *name_value(char *text, size_t bytes, uint32_t argument, uint64_t value)
{
    const char *name = NULL;

    switch ((enum sw_kernel_argument)argument) {
    case SW_ARGUMENT_COLLECTIVE:
        name = symwin_collective_name((symwin_collective)value);
        snprintf(text, bytes, "symwin_%s()", name != NULL ? name : "?");
        return text;
    case SW_ARGUMENT_TYPE:
        name = symwin_type_name((symwin_type)value);
        break;
    case SW_ARGUMENT_OP:
        name = symwin_op_name((symwin_op)value);
        break;
    case SW_ARGUMENT_ALGO:
        name = symwin_algo_name((symwin_algo)(value & 0xff));
        break;
    case SW_ARGUMENT_UNKNOWN:
    case SW_ARGUMENT_COUNT:
    case SW_ARGUMENT_ROOT:
    case SW_ARGUMENT_IN:
    case SW_ARGUMENT_OUT:
    case SW_ARGUMENT_PAIR:
    case SW_ARGUMENT_CALLS:
        break;
    }
    if (name == NULL)
        snprintf(text, bytes, "%llu", (unsigned long long)value);
    else
        snprintf(text, bytes, "%s%s", name,
                 argument != SW_ARGUMENT_ALGO ? ""
                 : value >> 8 != 0            ? " (buffers in windows)"
                                              : " (buffers outside windows)");
    return text;
}

static symwin_status mismatch(const char *call, const struct sw_finding *found,
                              const struct sw_exchange *x)
{
    static const struct {
        const char *name, *verb, *advice;
    } arguments[] = {[SW_ARGUMENT_UNKNOWN] = {"an argument", "passed", "pass the same"},
                     [SW_ARGUMENT_COLLECTIVE] = {"the call", "called", "call the same"},
                     [SW_ARGUMENT_COUNT] = {"count", "passed", "pass the same"},
                     [SW_ARGUMENT_TYPE] = {"type", "passed", "pass the same"},
                     [SW_ARGUMENT_OP] = {"operation", "passed", "pass the same"},
                     [SW_ARGUMENT_ROOT] = {"root", "passed", "pass the same"},
                     [SW_ARGUMENT_ALGO] = {"algorithm", "passed", "pass the same"},
                     [SW_ARGUMENT_IN] = {"the offset of in", "passed", "pass the same"},
                     [SW_ARGUMENT_OUT] = {"the offset of out", "passed", "pass the same"},
                     [SW_ARGUMENT_PAIR] = {"an argument", "passed", "pass the same"},
                     [SW_ARGUMENT_CALLS] = {"the number of calls made at once in a group", "made",
                                            "group calls alike"}};
    const uint32_t argument = found->argument < sizeof arguments / sizeof arguments[0]
                                  ? found->argument
                                  : 0;
    const char *verb = arguments[argument].verb, *advice = arguments[argument].advice;
    char wrong[128], right[128], theirs[64], others[64], who[320], of[48] = "";

    if (argument == SW_ARGUMENT_ALGO) /* which the library may have chosen */
        advice = (found->theirs & 0xff) == (found->others & 0xff)
                     ? "pass buffers in windows, or others,"
                     : "pass the same, in place or not, and buffers in windows or others, alike";
    name_ranks(wrong, sizeof wrong, found->rank, found->differ, x);
    name_ranks(right, sizeof right, found->other, found->agree, x);
    snprintf(who, sizeof who, "%s differ%s from %s%s", wrong,
             strncmp(wrong, "ranks", 5) == 0 ? "" : "s", right,
             found->tie ? ", and no majority agrees" : "");
    if (found->number > 0 && argument == SW_ARGUMENT_COLLECTIVE)
        snprintf(of, sizeof of, " with number %u in a group", found->number);
    else if (found->number > 0)
        snprintf(of, sizeof of, " of call %u of a group", found->number);
    if (argument == SW_ARGUMENT_UNKNOWN)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: in collective %u the arguments differ: %s; collective, count, type, "
            "operation, root, algorithm and window offsets must agree; destroy the communicator",
            call, found->epoch, who);
    return sw_fail(
        SYMWIN_MISMATCH,
        "%s: in collective %u, %s%s differs: rank %d %s %s, rank %d %s %s (%s); %s on every rank; "
        "destroy the communicator",
        call, found->epoch, arguments[argument].name, of, sw_exchange_number(x, found->rank), verb,
        name_value(theirs, sizeof theirs, argument, found->theirs),
        sw_exchange_number(x, found->other), verb,
        name_value(others, sizeof others, argument, found->others), who, advice);
}

/* Where it happened. */
static const char *name_call(char *text, size_t bytes, const struct sw_finding *found)
{
    const int sends = found->number == 1 + SW_PAIR_SEND;
    char type[16], among[48] = "";

    if (found->among != 0)
        snprintf(among, sizeof among, ", number %u of %u launched together", found->among & 0xffff,
                 found->among >> 16);
    if (found->argument == SW_ARGUMENT_PAIR && found->code == SW_KERNEL_TIMEOUT &&
        found->number != 0)
        snprintf(text, bytes, "a %s of %llu elements of %s %s rank %u%s",
                 sends ? "send" : "receive", (unsigned long long)SW_PAIR_COUNT(found->others),
                 name_value(type, sizeof type, SW_ARGUMENT_TYPE, SW_PAIR_TYPE(found->others)),
                 sends ? "to" : "from", found->tie, among);
    else if (found->argument == SW_ARGUMENT_PAIR)
        snprintf(text, bytes, "a send or receive");
    else
        snprintf(text, bytes, "collective %u", found->epoch);
    return text;
}

/* Parts of unequal lengths, and messages. */
static symwin_status counts(const char *call, const struct sw_finding *found, uint32_t code)
{
    char where[32], sent[64], received[64];

    const unsigned long long theirs = found->theirs, others = found->others;
    const int writes = found->argument == SW_ARGUMENT_OUT;
    const char *buffer = writes ? "out" : "in";

    if (code == SW_KERNEL_NULL)
        return sw_fail(SYMWIN_MISMATCH,
                       "%s: in collective %u, %s of rank %d is NULL, and its part for rank %d has "
                       "elements; pass memory, or counts of 0; destroy the communicator",
                       call, found->epoch, buffer, found->rank, found->other);
    if (code == SW_KERNEL_ROOM) {
        if (theirs == UINT64_MAX) /* its count and displacement have no sum */
            snprintf(where, sizeof where, "beyond any memory");
        else
            snprintf(where, sizeof where, "at element %llu", theirs);
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: in collective %u, the part %s rank %d in %s of rank %d ends %s, and the "
            "buffer has room for %llu; nothing was %s there; destroy the communicator, "
            "and pass parts that end in their room",
            call, found->epoch, writes ? "from" : "for", found->other, buffer, found->rank, where,
            others, writes ? "written" : "read");
    }
    name_call(where, sizeof where, found);
    if (code == SW_KERNEL_TYPES)
        return sw_fail(
            SYMWIN_MISMATCH,
            "%s: in %s, the type differs: rank %d sends %s to rank %d, which receives %s "
            "from it; pass equal types on both; destroy the communicator",
            call, where, found->rank, name_value(sent, sizeof sent, SW_ARGUMENT_TYPE, theirs),
            found->other, name_value(received, sizeof received, SW_ARGUMENT_TYPE, others));
    return sw_fail(SYMWIN_MISMATCH,
                   "%s: in %s, a count differs: rank %d sends %llu elements to rank %d, "
                   "which receives %llu from it; pass equal counts on both; destroy the "
                   "communicator",
                   call, where, found->rank, theirs, found->other, others);
}

symwin_status sw_report_tell(const struct sw_kernel_report *report, const char *call,
                             const struct sw_exchange *x, int shared)
{
    const uint32_t code = __atomic_load_n(&report->code, __ATOMIC_ACQUIRE);
    struct sw_finding named = report->found;
    const struct sw_finding *found = &named;
    char where[160];

    if (code == SW_KERNEL_MISMATCH)
        return mismatch(call, found, x);
    named.rank = sw_exchange_number(x, named.rank);
    named.other = sw_exchange_number(x, named.other);
    if (code == SW_KERNEL_TIMEOUT && named.argument == SW_ARGUMENT_PAIR)
        named.tie = (uint32_t)sw_exchange_number(x, (int)named.tie);
    if (code >= SW_KERNEL_COUNTS)
        return counts(call, found, code);
    name_call(where, sizeof where, found);
    if (code == SW_KERNEL_TIMEOUT)
        return sw_fail(SYMWIN_TIMEOUT,
                       "%s: in %s, rank %d waited %llu ms for rank %d; %sdestroy the communicator",
                       call, where, found->other, (unsigned long long)found->theirs / 1000000,
                       found->rank,
                       found->argument == SW_ARGUMENT_PAIR
                           ? "every send needs its receive, and those that wait for each other "
                             "are made in one group (symwin_group_begin()); "
                       : shared ? "ranks that share a device need a stream each; "
                                : "");
    return sw_fail(
        SYMWIN_PEER_LOST,
        "%s: rank %d has destroyed its communicator, and rank %d waited for it in %s; every rank "
        "must make the same collective calls before it does, and all its sends and receives",
        call, found->rank, found->other, where);
}
