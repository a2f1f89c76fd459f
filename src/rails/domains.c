/* Which ranks are a domain, and who serves which rail. Whether hosts can map each other's memory is
 * tried: the lowest rank of each host exports a fabric handle, and imports those of all others. */
#include <stdlib.h>
#include <string.h>

#include "src/rails/domains.h"

int sw_domains_make(struct sw_domains *domains, int nranks, const int *class_of)
{
    const size_t n = (size_t)nranks;
    int *const room = calloc(5 * n, sizeof *room);
    int r, d;

    if (room == NULL)
        return 0;
    *domains = (struct sw_domains){.nranks = nranks,
                                   .regular = 1,
                                   .domain_of = room,
                                   .index_of = room + n,
                                   .size_of = room + 2 * n,
                                   .first_of = room + 3 * n,
                                   .members = room + 4 * n};
    for (r = 0; r < nranks; r++) {
        int *const known = &domains->members[class_of[r]]; /* 1 + the domain of this class */

        if (*known == 0)
            *known = ++domains->count;
        d = *known - 1;
        domains->domain_of[r] = d;
        domains->index_of[r] = domains->size_of[d]++;
    }
    for (d = 0; d < domains->count; d++) {
        if (d > 0)
            domains->first_of[d] = domains->first_of[d - 1] + domains->size_of[d - 1];
        if (domains->size_of[d] > domains->rails)
            domains->rails = domains->size_of[d];
    }
    for (r = 0; r < nranks; r++) {
        d = domains->domain_of[r];
        domains->members[domains->first_of[d] + domains->index_of[r]] = r;
        domains->regular &= domains->size_of[d] == domains->size_of[0] &&
                            domains->first_of[d] + domains->index_of[r] == r;
    }
    return 1;
}

symwin_status sw_domains_check(int largest, const char *call)
{
    return largest <= SW_DOMAIN_RANKS
               ? SYMWIN_OK
               : sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: %d ranks can map each other's memory, and kernels number at most %d; "
                         "make communicators of fewer ranks, or disable fabric handles",
                         call, largest, SW_DOMAIN_RANKS);
}

void sw_domains_free(struct sw_domains *domains)
{
    free(domains->domain_of);
    *domains = (struct sw_domains){.nranks = 0};
}

/* ---- what hosts can map ---------------------------------------------------------------------- */

enum { MOST_HOSTS = SW_EXCHANGE_BYTES * 8 };

/* What the lowest rank of a host tells the others. */
struct offer {
    int32_t there; /* it has a handle */
    CUmemFabricHandle handle;
};

static CUmemAllocationProp memory_of(const symwin_comm *comm)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC};

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = comm->device;
    return prop;
}

/* *memory: 0: the system gives no fabric handles. */
static void make_offer(const symwin_comm *comm, struct offer *offer,
                       CUmemGenericAllocationHandle *memory)
{
    const CUmemAllocationProp prop = memory_of(comm);
    size_t bytes = 0;

    *memory = 0;
    if (sw_drv.cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS ||
        sw_drv.cuMemCreate(memory, bytes, &prop, 0) != CUDA_SUCCESS) {
        *memory = 0;
        return;
    }
    offer->there = sw_drv.cuMemExportToShareableHandle(
                       &offer->handle, *memory, CU_MEM_HANDLE_TYPE_FABRIC, 0) == CUDA_SUCCESS;
}

static int can_import(const struct offer *offer)
{
    CUmemFabricHandle handle = offer->handle;
    CUmemGenericAllocationHandle memory;

    if (!offer->there || sw_drv.cuMemImportFromShareableHandle(
                             &memory, &handle, CU_MEM_HANDLE_TYPE_FABRIC) != CUDA_SUCCESS)
        return 0;
    sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    return 1;
}

/* Whether each of two hosts has imported from the other. `seen`: a row of bits of each rank;
 * `lowest`: the rank of each host that has tried it. */
static int are_joined(const int *lowest, const unsigned char *seen, int a, int b)
{
    const unsigned char *row_a = seen + (size_t)lowest[a] * SW_EXCHANGE_BYTES;
    const unsigned char *row_b = seen + (size_t)lowest[b] * SW_EXCHANGE_BYTES;

    return (row_a[b / 8] >> b % 8 & 1) && (row_b[a / 8] >> a % 8 & 1);
}

/* Hosts that are joined are one class. Where that does not divide all of them, or rows have not so
 * many bits, each host is one. */
static void classify(const struct sw_group *group, const int *lowest, const unsigned char *seen,
                     int *host_class)
{
    int a, b, sound = group->hosts <= MOST_HOSTS;

    for (a = 0; a < group->hosts && sound; a++) {
        for (b = 0; b < a && !are_joined(lowest, seen, a, b); b++)
            ;
        host_class[a] = b < a ? host_class[b] : a;
    }
    for (a = 0; a < group->hosts && sound; a++)
        for (b = 0; b < a; b++)
            sound &= (host_class[a] == host_class[b]) == are_joined(lowest, seen, a, b);
    for (a = 0; a < group->hosts && !sound; a++)
        host_class[a] = a;
}

/* With the arrays for all ranks. */
static symwin_status try_with(symwin_comm *comm, const char *call, struct offer *offers,
                              unsigned char *seen, int *lowest, int *class_of)
{
    const struct sw_group *group = comm->group;
    struct sw_exchange *x = group->exchange;
    unsigned char row[SW_EXCHANGE_BYTES] = {0};
    struct offer own = {.there = 0};
    CUmemGenericAllocationHandle memory = 0;
    symwin_status status;
    int h, r;

    for (r = 0; r < group->nranks; r++) /* downwards, the last one to write is the lowest */
        lowest[group->host_of[group->nranks - 1 - r]] = group->nranks - 1 - r;
    if (lowest[group->host] == comm->rank && group->hosts <= MOST_HOSTS)
        make_offer(comm, &own, &memory);
    status = sw_exchange_allgather(x, comm->rank, &own, sizeof own, offers, sw_comm_patience(comm),
                                   call);
    for (h = 0; h < group->hosts && status == SYMWIN_OK && own.there; h++)
        if (h != group->host && can_import(&offers[lowest[h]]))
            row[h / 8] |= (unsigned char)(1 << h % 8);
    if (status == SYMWIN_OK)
        status = sw_exchange_allgather(x, comm->rank, row, sizeof row, seen, sw_comm_patience(comm),
                                       call);
    if (memory != 0) /* all have tried it */
        sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    if (status != SYMWIN_OK)
        return status;
    classify(group, lowest, seen, class_of);
    for (r = group->nranks - 1; r >= 0; r--)
        offers[r].there = class_of[group->host_of[r]];
    for (r = 0; r < group->nranks; r++)
        class_of[r] = offers[r].there;
    return SYMWIN_OK;
}

symwin_status sw_domains_try(symwin_comm *comm, const char *call, symwin_status status,
                             int *class_of)
{
    const size_t n = (size_t)comm->nranks;
    struct offer *offers = calloc(n, sizeof *offers);
    unsigned char *seen = calloc(n, SW_EXCHANGE_BYTES);
    int *lowest = calloc(n, sizeof *lowest);

    if (status == SYMWIN_OK && (offers == NULL || seen == NULL || lowest == NULL))
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory to compare %zu ranks", n);
    status = sw_comm_agree(comm, call, status, NULL, 0);
    if (status == SYMWIN_OK)
        status = try_with(comm, call, offers, seen, lowest, class_of);
    free(offers);
    free(seen);
    free(lowest);
    return status;
}
