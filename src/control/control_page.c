/* Creates the memory of an exchange: in this process, or a sealed memfd that several processes
 * map. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/control/control.h"
#include "src/control/control_page.h"

static size_t page_bytes(int nranks)
{
    const size_t bytes = sizeof(struct control_page) + (size_t)nranks * sizeof(struct page_slot);

    return (bytes + 4095) & ~(size_t)4095;
}

struct sw_exchange *sw_exchange_create(int nranks)
{
    struct sw_exchange *x = calloc(1, sizeof *x);

    if (x == NULL)
        return NULL;
    x->nranks = nranks;
    x->bytes = page_bytes(nranks);
    x->page = aligned_alloc(64, x->bytes);
    if (x->page == NULL) {
        free(x);
        return NULL;
    }
    memset(x->page, 0, x->bytes);
    return x;
}

/* Sealed, so that no process can truncate it under another's mapping, which would mean SIGBUS. */
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static int resize(int fd, size_t bytes)
{
    int error;

    do
        error = ftruncate(fd, (off_t)bytes);
    while (error != 0 && errno == EINTR);
    return error == 0;
}

symwin_status sw_exchange_page(int nranks, int *out)
{
    const int fd = memfd_create("symwin-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && resize(fd, page_bytes(nranks)) && fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        *out = fd;
        return SYMWIN_OK;
    }
    sw_fail(SYMWIN_NO_MEMORY, "cannot create the control page for %d ranks: %s%s", nranks,
            strerror(errno), errno == EMFILE ? "; raise ulimit -n" : "");
    if (fd >= 0)
        close(fd);
    return SYMWIN_NO_MEMORY;
}

int sw_exchange_is_page(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);

    /* Systems may seal it against execution as well. */
    return seals >= 0 && (seals & (SEALS | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == SEALS;
}

symwin_status sw_exchange_open(int fd, int nranks, struct sw_exchange **out)
{
    struct sw_exchange *x;
    struct stat file;
    void *page;

    if (!sw_exchange_is_page(fd) || fstat(fd, &file) != 0 ||
        file.st_size != (off_t)page_bytes(nranks))
        return sw_fail(SYMWIN_DENIED, "the control page does not have the size for %d ranks",
                       nranks);
    x = calloc(1, sizeof *x);
    if (x == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the exchange");
    x->nranks = nranks;
    x->shared = 1;
    x->bytes = page_bytes(nranks);
    page = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        free(x);
        return sw_fail(SYMWIN_NO_MEMORY, "mmap of the control page: %s", strerror(errno));
    }
    x->page = page;
    *out = x;
    return SYMWIN_OK;
}

void sw_exchange_destroy(struct sw_exchange *x)
{
    if (x == NULL)
        return;
    if (x->shared)
        munmap(x->page, x->bytes);
    else
        free(x->page);
    free(atomic_load(&x->numbers));
    free(x);
}
