/* Where kernels report to: words of pinned host memory, one struct sw_kernel_report a communicator.
 *
 * They are carved out of pages that stay until no communicator of the process is left, because
 * cuMemFreeHost waits for every kernel on the device (tests/gpu_waits.c): a communicator that is
 * destroyed must not wait for the kernels of another. Any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { SLOT_BYTES = 64, PAGE_BYTES = 16384, SLOTS = PAGE_BYTES / SLOT_BYTES };

_Static_assert(sizeof(struct sw_kernel_report) <= SLOT_BYTES, "a report fits in its slot");

struct page {
    struct page *next;
    unsigned char *memory; /* owned, pinned, SLOTS slots */
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

/* A page with a free slot, made if there is none. Under the mutex. */
static symwin_status find_page(struct page **out)
{
    struct page *page = reports.pages;
    symwin_status status;
    void *memory = NULL;

    while (page != NULL && free_slot(page) == SLOTS)
        page = page->next;
    if (page == NULL) {
        status = sw_check(
            sw_drv.cuMemHostAlloc(&memory, PAGE_BYTES,
                                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            "cuMemHostAlloc of %d bytes", (int)PAGE_BYTES);
        if (status != SYMWIN_OK)
            return status;
        page = calloc(1, sizeof *page);
        if (page == NULL) {
            sw_drop(sw_drv.cuMemFreeHost(memory), "cuMemFreeHost");
            return sw_fail(SYMWIN_NO_MEMORY, "no host memory for kernel reports");
        }
        page->memory = memory;
        page->next = reports.pages;
        reports.pages = page;
    }
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
        free(page);
    }
}

symwin_status sw_report_acquire(struct sw_kernel_report **out)
{
    struct page *page = NULL;
    symwin_status status;
    size_t slot;

    pthread_mutex_lock(&reports.mutex);
    status = find_page(&page);
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
