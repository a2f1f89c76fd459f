/* Domains and rails of a communicator. The ranks of a domain can map each other's memory. A rail
 * has one rank of each domain; NCCL moves data between those. */
#ifndef SYMWIN_DOMAINS_H
#define SYMWIN_DOMAINS_H

#include "src/control/control.h"

/* There are as many rails as the largest domain has ranks. In a smaller domain ranks serve several
 * rails each, which follow each other. */
struct sw_domains {
    int nranks, count, rails;
    int regular;    /* all are of one size, and each has consecutive ranks */
    int *domain_of; /* owned, with all that follow: of each rank */
    int *index_of;  /* of each rank, among its domain's */
    int *size_of;   /* of each domain */
    int *first_of;  /* of each domain: where its ranks begin in `members` */
    int *members;   /* ranks, domain by domain, in each in their order */
};

/* Ranks of one class, 0 to nranks - 1, are a domain; domains are numbered by their lowest ranks. 0:
 * no memory. */
int sw_domains_make(struct sw_domains *domains, int nranks, const int *class_of);
void sw_domains_free(struct sw_domains *domains);

/* Fails if the largest domain has too many ranks. */
symwin_status sw_domains_check(int largest, const char *call);

static inline int sw_domain_rank(const struct sw_domains *d, int domain, int index)
{
    return d->members[d->first_of[domain] + index];
}

/* The rails that a rank of a domain serves: from this one on, up to that of the next index. */
static inline int sw_rail_first(const struct sw_domains *d, int domain, int index)
{
    return index * d->rails / d->size_of[domain];
}

/* The index of the rank that serves a rail in a domain. */
static inline int sw_rail_server(const struct sw_domains *d, int domain, int rail)
{
    return ((rail + 1) * d->size_of[domain] - 1) / d->rails;
}

/* Collective, for ranks on several hosts, while a communicator is created: which of them can map
 * each other's memory, by fabric handles, is tried. All ranks get the same classes, in `class_of`
 * of nranks numbers; ranks of one host are in one. `status`: an earlier failure of this rank, which
 * all ranks then get. */
symwin_status sw_domains_try(symwin_comm *comm, const char *call, symwin_status status,
                             int *class_of);

#endif
