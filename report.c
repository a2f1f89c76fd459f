/* Where kernels report to: words of pinned host memory, one struct sw_kernel_report a communicator.
 *
 * They are carved out of pages that stay until no communicator of the process is left, because
 * cuMemFreeHost waits for every kernel on the device (tests/gpu_waits.c): a communicator that is
 * destroyed must not wait for the kernels of another. A page belongs to the context in which it was made,
 * ends with it, and so keeps it: the communicator that had the page made may be the first to go. Any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { SLOT_BYTES = 64, PAGE_BYTES = 16384, SLOTS = PAGE_BYTES / SLOT_BYTES };

_Static_assert(sizeof(struct sw_kernel_report) <= SLOT_BYTES, "a report fits in its slot");

struct page {
    struct page *next;
    unsigned char *memory; /* owned, pinned, SLOTS slots */
    CUdevice device;       /* whose primary context is retained for it */
    unsigned char used[SLOTS];
};

static struct {
    pthread_mutex_t mutex;
    struct page *pages;
    int used; /* slots of all pages */
} reports = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A free slot of the page, SLOTS if there is none. */
static size_t free_slot(const struct page *page)
{
    size_t slot = 0;

    while (slot < SLOTS && page->used[slot])
        slot++;
    return slot;
}

/* A new page, in the context that is current, which is the device's. Under the mutex. */
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
    page->next = reports.pages;
    reports.pages = page;
    *out = page;
    return SYMWIN_OK;
}

/* A page with a free slot, made if there is none. Under the mutex. */
static symwin_status find_page(CUdevice device, struct page **out)
{
    struct page *page = reports.pages;

    while (page != NULL && free_slot(page) == SLOTS)
        page = page->next;
    if (page == NULL)
        return make_page(device, out);
    *out = page;
    return SYMWIN_OK;
}

/* Under the mutex. */
static void free_pages(void)
{
    while (reports.pages != NULL) {
        struct page *page = reports.pages;

        reports.pages = page->next;
        sw_drop(sw_drv.cuMemFreeHost(page->memory), "cuMemFreeHost");
        sw_drop(sw_drv.cuDevicePrimaryCtxRelease(page->device), "cuDevicePrimaryCtxRelease");
        free(page);
    }
}

symwin_status sw_report_acquire(CUdevice device, struct sw_kernel_report **out)
{
    struct page *page = NULL;
    symwin_status status;
    size_t slot;

    pthread_mutex_lock(&reports.mutex);
    status = find_page(device, &page);
    if (status == SYMWIN_OK) {
        slot = free_slot(page);
        page->used[slot] = 1;
        reports.used++;
        *out = (struct sw_kernel_report *)(void *)(page->memory + slot * SLOT_BYTES);
        memset(*out, 0, SLOT_BYTES);
    }
    pthread_mutex_unlock(&reports.mutex);
    return status;
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
