/* What a rank checks of a call over several domains before anything is launched: what only this
 * rank can see, as in a communicator of one domain. Ranks are not compared between domains. */
#include <stdlib.h>
#include <string.h>

#include "src/rails/wide_call.h"

/* `count`: the elements of it that the call uses. */
static symwin_status check_buffer(const struct sw_request *r, const char *name, const void *buffer,
                                  uint64_t count)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer;
    const size_t element = symwin_type_bytes(r->type);

    if (address % element != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %s (0x%llx) is not aligned to %zu bytes; pass an address that is a "
                       "multiple of them",
                       r->name, name, (unsigned long long)address, element);
    return sw_window_check_memory(r->comm, r->name, name, element, address, count * element);
}

static symwin_status check_scalar(const struct sw_request *r)
{
    if (r->op != SYMWIN_PREMUL_SUM || !sw_collectives[r->collective].reduces)
        return SYMWIN_OK;
    if (r->scalar_unread)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->scalar (0x%llx) is device memory; set "
                       "options->scalar_on_device, or pass host memory",
                       r->name, (unsigned long long)r->scalar);
    return r->options->scalar_on_device
               ? sw_window_check_memory(r->comm, r->name, "options->scalar",
                                        symwin_type_bytes(r->type), r->scalar,
                                        symwin_type_bytes(r->type))
               : SYMWIN_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Buffers may be equal, or one a rank's own part of the other; otherwise they may not touch. */
static symwin_status check_apart(const struct sw_request *r)
{
    const struct sw_collective *is = &sw_collectives[r->collective];
    const uint64_t bytes = r->count * symwin_type_bytes(r->type), n = (uint64_t)r->comm->nranks;
    const uint64_t own = (uint64_t)r->comm->rank * bytes;
    const uint64_t in = (uintptr_t)r->in, out = (uintptr_t)r->out;
    const uint64_t in_bytes = is->in_each ? n * bytes : bytes;
    const uint64_t out_bytes = is->out_each ? n * bytes : bytes;
    const int in_place = is->in_each == is->out_each ? in == out
                         : is->out_each              ? in == out + own
                                                     : out == in + own;

    if (in_place || in >= out + out_bytes || out >= in + in_bytes)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: in (0x%llx) and out (0x%llx) overlap in part; pass the same buffer, the "
                   "rank's own part of it, or two that do not touch",
                   r->name, (unsigned long long)in, (unsigned long long)out);
}

static symwin_status check_buffers(const struct sw_request *r)
{
    const struct sw_collective *is = &sw_collectives[r->collective];
    const int is_root = r->comm->rank == r->root;
    const int sends = !is->root_sends || is_root, receives = !is->root_receives || is_root;
    const uint64_t all = r->count * (uint64_t)r->comm->nranks;
    symwin_status status = SYMWIN_OK;

    if (sends)
        status = check_buffer(r, "in", r->in, is->in_each ? all : r->count);
    if (status == SYMWIN_OK && receives)
        status = check_buffer(r, "out", r->out, is->out_each ? all : r->count);
    return status == SYMWIN_OK && sends && receives ? check_apart(r) : status;
}

/* ---- unequal parts --------------------------------------------------------------------------- */

/* Where a part begins; `next`: the end of the one before. */
static uint64_t place_of(const symwin_parts *parts, int rank, uint64_t next)
{
    return parts->displacements != NULL ? parts->displacements[rank] : next;
}

static symwin_status check_parts(const struct sw_request *r, int b)
{
    const symwin_parts *parts = r->parts[b];
    symwin_status status;
    uint64_t next = 0;
    int p;

    if (parts == NULL || parts->counts == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL; pass an element for each rank", r->name,
                       sw_parts_name(r, b));
    if (parts->on_device || sw_is_on_device(parts->counts) ||
        (parts->displacements != NULL && sw_is_on_device(parts->displacements)))
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the communicator's ranks are in several domains; pass the arrays of %s "
                       "in host memory",
                       r->name, sw_parts_name(r, b));
    status = sw_parts_check_room(r, b);
    for (p = 0; p < r->comm->nranks && status == SYMWIN_OK; p++) {
        const uint64_t at = place_of(parts, p, next);

        status = sw_parts_check_part(r, b, p, parts->counts[p], at);
        next = at + parts->counts[p];
    }
    return status;
}

/* ---- parts that may not touch ---- */

struct range {
    uint64_t begin, end; /* elements */
    int rank;
};

static int by_begin(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Whether parts of a buffer overlap, which they may not where it is written. */
static symwin_status check_disjoint(const struct sw_request *r, int b)
{
    const symwin_parts *parts = r->parts[b];
    struct range *ranges = calloc((size_t)r->comm->nranks, sizeof *ranges);
    symwin_status status = SYMWIN_OK;
    uint64_t next = 0;
    int p, n = 0;

    if (ranges == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for the parts of %d ranks", r->name,
                       r->comm->nranks);
    for (p = 0; p < r->comm->nranks; p++) {
        const uint64_t at = place_of(parts, p, next);

        next = at + parts->counts[p];
        if (parts->counts[p] > 0)
            ranges[n++] = (struct range){at, next, p};
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
    for (p = 1; p < n && status == SYMWIN_OK; p++)
        if (ranges[p].begin < ranges[p - 1].end)
            status = sw_fail(SYMWIN_INVALID,
                             "%s: in %s, elements from %llu on for rank %d overlap those from %llu "
                             "on for rank %d; pass parts that do not",
                             r->name, sw_parts_name(r, b), (unsigned long long)ranges[p].begin,
                             ranges[p].rank, (unsigned long long)ranges[p - 1].begin,
                             ranges[p - 1].rank);
    free(ranges);
    return status;
}

/* What a call uses of a buffer, in elements. */
struct reach {
    uint64_t first, last; /* of any part; last <= first: of none */
    uint64_t own;         /* where this rank's part begins */
};

static struct reach reach_of(const symwin_parts *parts, const symwin_comm *comm)
{
    struct reach reach = {.first = UINT64_MAX};
    uint64_t next = 0;
    int p;

    for (p = 0; p < comm->nranks; p++) {
        const uint64_t at = place_of(parts, p, next), count = parts->counts[p];

        next = at + count;
        if (p == comm->rank)
            reach.own = at;
        if (count > 0 && at < reach.first)
            reach.first = at;
        if (count > 0 && next > reach.last)
            reach.last = next;
    }
    return reach;
}

/* What is read may not be written, but for the rank's own part of an all-gather or of a
 * reduce-scatter in its place, and an all-to-all with equal parts in one buffer. */
static symwin_status check_unequal_apart(const struct sw_request *r, const struct reach *in,
                                         const struct reach *out)
{
    const uint64_t from = (uintptr_t)r->in, to = (uintptr_t)r->out,
                   element = symwin_type_bytes(r->type);
    const int sums = r->collective == SYMWIN_REDUCE_SCATTERV;
    const int in_place = r->collective == SYMWIN_ALLTOALLV
                             ? from == to
                             : from + in->own * element == to + out->own * element;
    const symwin_status status = sums ? SYMWIN_OK : check_disjoint(r, 1);

    if (status != SYMWIN_OK || in->last <= in->first || out->last <= out->first)
        return status;
    if (in_place)
        return sums ? check_disjoint(r, 0) : SYMWIN_OK;
    if (from + in->first * element >= to + out->last * element ||
        to + out->first * element >= from + in->last * element)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: parts of in (0x%llx) and out (0x%llx) overlap; pass two buffers that do "
                   "not touch, or call it in place",
                   r->name, (unsigned long long)from, (unsigned long long)to);
}

/* Where a part has no elements, its place is none. */
static int are_equal(const struct sw_request *r)
{
    const symwin_parts *in = r->parts[0], *out = r->parts[1];
    uint64_t next[2] = {0, 0};
    int p;

    for (p = 0; p < r->comm->nranks; p++) {
        const uint64_t count = in->counts[p], from = place_of(in, p, next[0]),
                       to = place_of(out, p, next[1]);

        if (count != out->counts[p] || (count > 0 && from != to))
            return 0;
        next[0] = from + count;
        next[1] = to + count;
    }
    return 1;
}

static symwin_status check_unequal(const struct sw_request *r)
{
    const int me = r->comm->rank;
    const int has_in = r->collective != SYMWIN_ALLGATHERV;
    const int has_out = r->collective != SYMWIN_REDUCE_SCATTERV;
    symwin_status status = has_in ? check_parts(r, 0) : SYMWIN_OK;
    struct reach in, out;

    if (status == SYMWIN_OK && has_out)
        status = check_parts(r, 1);
    if (status != SYMWIN_OK)
        return status;
    in = has_in ? reach_of(r->parts[0], r->comm) : (struct reach){.last = r->parts[1]->counts[me]};
    out = has_out ? reach_of(r->parts[1], r->comm)
                  : (struct reach){.last = r->parts[0]->counts[me]};
    if (in.last > 0)
        status = check_buffer(r, "in", r->in, in.last);
    if (status == SYMWIN_OK && out.last > 0)
        status = check_buffer(r, "out", r->out, out.last);
    if (status == SYMWIN_OK && has_in && has_out && r->in == r->out && !are_equal(r))
        status = sw_fail(
            SYMWIN_INVALID,
            "%s: in place, in_parts and out_parts must be equal; pass equal arrays, or "
            "two buffers",
            r->name);
    if (status == SYMWIN_OK && has_in && has_out &&
        r->parts[0]->counts[me] != r->parts[1]->counts[me])
        status = sw_fail(SYMWIN_INVALID,
                         "%s: rank %d sends %llu elements to itself and receives %llu; pass equal "
                         "counts",
                         r->name, me, (unsigned long long)r->parts[0]->counts[me],
                         (unsigned long long)r->parts[1]->counts[me]);
    return status == SYMWIN_OK ? check_unequal_apart(r, &in, &out) : status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

symwin_status sw_wide_check(const struct sw_request *r)
{
    const struct sw_collective *is = &sw_collectives[r->collective];
    const int is_fp8 = r->type == SYMWIN_F8E4M3 || r->type == SYMWIN_F8E5M2;
    symwin_status status;

    if (sw_has_root(r->collective) && (r->root < 0 || r->root >= r->comm->nranks))
        return sw_fail(SYMWIN_INVALID, "%s: root is %d and must be a rank, 0 to %d", r->name,
                       r->root, r->comm->nranks - 1);
    if (r->count > SW_MOST_BYTES / symwin_type_bytes(r->type) / (uint64_t)r->comm->nranks)
        return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", r->name,
                       (unsigned long long)r->count);
    if (r->collective == SYMWIN_REDUCE_SCATTERV && r->op == SYMWIN_AVG &&
        !sw_type_is_float(r->type))
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: over several domains there are no averages of integers in unequal "
                       "parts; pass SYMWIN_SUM and divide",
                       r->name);
    if (is->reduces && is_fp8 && r->comm->wide->version < SW_ENGINE_FP8)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: NCCL %d.%d of a rank does not reduce 8-bit floats; use 2.24 or newer",
                       r->name, r->comm->wide->version / 10000, r->comm->wide->version / 100 % 100);
    status = check_scalar(r);
    if (status != SYMWIN_OK || is->no_data)
        return status;
    if (is->by_parts)
        return check_unequal(r);
    return r->count > 0 ? check_buffers(r) : SYMWIN_OK;
}

symwin_status sw_wide_check_pairs(const struct sw_pair_call *const *calls, size_t n,
                                  const char *call)
{
    symwin_status status = SYMWIN_OK;
    size_t i;

    for (i = 0; i < n && status == SYMWIN_OK; i++) {
        const struct sw_pair_call *p = calls[i];

        if (p->peer < 0 || p->peer >= p->comm->nranks)
            return sw_fail(SYMWIN_INVALID, "%s: peer is %d and must be a rank, 0 to %d", p->name,
                           p->peer, p->comm->nranks - 1);
        if (p->count > SW_MOST_BYTES / symwin_type_bytes(p->type))
            return sw_fail(SYMWIN_INVALID, "%s: count is %llu, more than any memory holds", p->name,
                           (unsigned long long)p->count);
        if (p->stream != calls[0]->stream)
            return sw_fail(SYMWIN_INVALID,
                           "%s: sends and receives of one communicator in a group are on one "
                           "stream; pass the same one",
                           call);
        if (p->count > 0)
            status = check_buffer(
                &(struct sw_request){.name = p->name, .comm = p->comm, .type = p->type},
                p->receives ? "out" : "in", p->buffer, p->count);
    }
    return status;
}
