/* Collectives whose parts have unequal lengths: the public calls, and what their kernels get
 * (kernels/table.cuh). */
#include <stdio.h>
#include <string.h>

#include "src/collective/call.h"
#include "src/collective/grouped.h"

/* Bytes of a part that goes straight; the first for tests on the emulated driver. */
enum { EMULATED_LARGE = 512, LARGE_LEAST = 16 << 10, LARGE_MOST = 64 << 20 };

/* The buffer that has the parts, if the other one has this rank's part alone; otherwise -1. */
static int divided(const struct sw_request *r)
{
    return r->collective == SYMWIN_ALLGATHERV        ? OUT
           : r->collective == SYMWIN_REDUCE_SCATTERV ? IN
                                                     : -1;
}

const char *sw_parts_name(const struct sw_request *r, int b)
{
    return divided(r) >= 0 ? "parts" : b == IN ? "in_parts" : "out_parts";
}

/* ---- rows on the host: of all ranks' parts of a buffer ---- */

static struct sw_table_row *rows_of(const struct sw_request *r, int b)
{
    struct sw_table_row *const rows = r->comm->calls->rows;

    if (rows != NULL)
        return rows + (b == IN ? 0 : r->comm->nranks);
    return b == IN ? r->table->in.rows : r->table->out.rows;
}

/* Where rows are stored ahead of the call: the counts, which the places follow. */
static uint64_t rows_address(const symwin_comm *comm, int b)
{
    return sw_group_address(comm->group, comm->rank,
                            comm->state_offset + SW_STATE_ROWS(comm->nranks, comm->slot_bytes) +
                                (uint64_t)(b == IN ? 0 : comm->nranks) * 2 * sizeof(uint64_t));
}

symwin_status sw_parts_queue_rows(const struct sw_turn *turn, const struct sw_table_args *table)
{
    const symwin_comm *comm = turn->calls->comm;
    const struct sw_kernel *kernel = sw_kernels_rows(comm->kernels);
    const uint32_t nranks = (uint32_t)comm->nranks,
                   end = table->out.counts == rows_address(comm, OUT) ? 2 * nranks : nranks;
    uint32_t first = table->in.counts == rows_address(comm, IN) ? 0 : nranks;
    symwin_status status = SYMWIN_OK;
    struct sw_rows_args args;

    for (; first < end && status == SYMWIN_OK; first += args.count) {
        struct sw_grid grid = {.blocks = 1};

        args = (struct sw_rows_args){
            .to = rows_address(comm, IN), .nranks = nranks, .first = first, .count = end - first};
        if (args.count > SW_ROWS_MOST)
            args.count = SW_ROWS_MOST;
        memcpy(args.rows, turn->calls->rows + first, args.count * sizeof args.rows[0]);
        grid.threads = (args.count + 31) / 32 * 32;
        if (grid.threads > (unsigned)kernel->threads)
            grid.threads = (unsigned)kernel->threads;
        status = sw_kernel_queue(turn, kernel, &grid, &args, 0);
    }
    return status;
}

/* ---- what a call passes ---------------------------------------------------------------------- */

/* No more elements than memory has addresses for, whatever their type: it takes no division. */
#define ANY_ELEMENTS (SW_MOST_BYTES / 8)

/* All but the rows, most of which few ranks do not use. */
static void set_side(struct sw_table_side *side, uint64_t counts, uint64_t places, uint64_t step,
                     uint64_t room)
{
    side->counts = counts;
    side->places = places;
    side->step = step;
    side->room = room;
}

/* Whether another allocator's memory of this rank's device has all bytes, by few questions. */
static int is_in_one_piece(const struct sw_request *r, CUdeviceptr address, size_t bytes,
                           struct sw_there *there)
{
    CUdeviceptr begin, end;
    int device;

    if (!sw_physical_look(address, &device, &begin, &end) || device != r->comm->device ||
        address + bytes > end)
        return 0;
    there->begin = begin;
    there->end = end;
    sw_now_known(device, address, bytes, there);
    return 1;
}

/* One of the two arrays of a buffer, in device memory: kernels read all of it. */
static symwin_status check_on_device(const struct sw_request *r, int b, const char *array,
                                     const uint64_t *is, struct sw_there *there)
{
    const CUdeviceptr address = (CUdeviceptr)(uintptr_t)is;
    const size_t bytes = (size_t)r->comm->nranks * sizeof *is;
    struct sw_allocation a = {0};
    int device = -1; /* unknown */
    enum sw_owned owned;
    symwin_status status;
    CUdeviceptr end;
    char which[40];

    owned = sw_allocation_find(address, &a);
    if (a.owned && owned == SW_OWNED_LIVE && a.physical.device == r->comm->device &&
        address % sizeof *is == 0 && address + bytes <= a.begin + a.asked)
        return SYMWIN_OK;
    if (owned == SW_OWNED_NOT && address % sizeof *is == 0 &&
        (sw_is_known(r->comm->device, address, bytes, there) ||
         is_in_one_piece(r, address, bytes, there)))
        return SYMWIN_OK;
    snprintf(which, sizeof which, "%s->%s", sw_parts_name(r, b), array);
    if (address == 0)
        return sw_fail(SYMWIN_INVALID, "%s: %s is NULL, and must be an array in device memory",
                       r->name, which);
    if (address % sizeof *is != 0)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: %s is 0x%llx, which is not aligned to 8 bytes; pass an address that is a "
            "multiple of them",
            r->name, which, (unsigned long long)address);
    if (owned == SW_OWNED_FREE)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %s (0x%llx) was freed; free an array when the calls that read it have "
                       "ended",
                       r->name, which, (unsigned long long)address);
    if (owned == SW_OWNED_LIVE)
        device = a.physical.device;
    status = sw_comm_check_device(r->comm, r->name, which, address, device);
    if (status != SYMWIN_OK)
        return status;
    end = a.owned ? a.begin + a.asked : sw_physical_end(address, address + bytes);
    if (address + bytes > end)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: %s (0x%llx) has %llu bytes to the end of its allocation; pass an array of "
            "%d elements, one for each rank",
            r->name, which, (unsigned long long)address,
            (unsigned long long)(end > address ? end - address : 0), r->comm->nranks);
    if (!a.owned)
        sw_now_known(r->comm->device, address, bytes, there);
    return SYMWIN_OK;
}

/* The arrays of one buffer in device memory. */
static symwin_status find_on_device(const struct sw_request *r, int b, struct sw_table_side *side,
                                    struct sw_parts_found *found)
{
    const symwin_parts *parts = r->parts[b];
    const CUdeviceptr counts = (CUdeviceptr)(uintptr_t)parts->counts;
    const CUdeviceptr places = (CUdeviceptr)(uintptr_t)parts->displacements;
    size_t *const reach = &found->reach[b];
    symwin_status status = check_on_device(r, b, "counts", parts->counts, &found->there);

    if (status == SYMWIN_OK)
        status = check_on_device(r, b, "displacements", parts->displacements, &found->there);
    if (status != SYMWIN_OK)
        return status;
    set_side(side, counts, places, 8, parts->room);
    if ((b == IN ? r->in : r->out) != NULL) /* otherwise all counts are 0, or the kernel tells */
        *reach = (size_t)parts->room * r->table->element;
    if (found->part < *reach / (size_t)r->comm->nranks)
        found->part = *reach / (size_t)r->comm->nranks;
    if (found->most < *reach)
        found->most = *reach;
    return SYMWIN_OK;
}

static symwin_status check_on_host(const struct sw_request *r, int b, const char *array,
                                   const uint64_t *is)
{
    if (is == NULL || !sw_is_on_device(is))
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: %s->%s (0x%llx) is device memory; set %s->on_device, or pass host memory",
                   r->name, sw_parts_name(r, b), array, (unsigned long long)(uintptr_t)is,
                   sw_parts_name(r, b));
}

symwin_status sw_parts_check_room(const struct sw_request *r, int b)
{
    const uint64_t room = r->parts[b]->room;

    if (room <= SW_MOST_BYTES / symwin_type_bytes(r->type))
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: %s->room is %llu, more than any memory holds; pass the elements of the "
                   "buffer",
                   r->name, sw_parts_name(r, b), (unsigned long long)room);
}

symwin_status sw_parts_check_part(const struct sw_request *r, int b, int rank, uint64_t count,
                                  uint64_t place)
{
    const uint64_t room = r->parts[b]->room, most = SW_MOST_BYTES / symwin_type_bytes(r->type);

    if (room > 0 && (place > room || count > room - place))
        return sw_fail(SYMWIN_INVALID,
                       "%s: the part for rank %d in %s has %llu elements from element %llu on, and "
                       "the buffer has room for %llu",
                       r->name, rank, sw_parts_name(r, b), (unsigned long long)count,
                       (unsigned long long)place, (unsigned long long)room);
    if (count > 0 && (place > most || count > most - place))
        return sw_fail(
            SYMWIN_INVALID,
            "%s: the part for rank %d in %s has %llu elements from element %llu on, more "
            "than any memory holds; pass parts that are in the buffer",
            r->name, rank, sw_parts_name(r, b), (unsigned long long)count,
            (unsigned long long)place);
    return SYMWIN_OK;
}

/* Refuses the first part that is wrong. Without a room, one without elements may begin anywhere. */
static symwin_status check_each_part(const struct sw_request *r, int b)
{
    const symwin_parts *parts = r->parts[b];
    symwin_status status = SYMWIN_OK;
    uint64_t end = 0;
    int p;

    for (p = 0; p < r->comm->nranks && status == SYMWIN_OK; p++) {
        const uint64_t place = parts->displacements != NULL ? parts->displacements[p] : end;

        status = sw_parts_check_part(r, b, p, parts->counts[p], place);
        end = place + parts->counts[p];
    }
    return status;
}

/* Both are in host memory if one is. */
static int are_on_one_page(const uint64_t *a, const uint64_t *b)
{
    return ((uintptr_t)a ^ (uintptr_t)b) < SW_PAGE;
}

/* The arrays of one buffer in host memory. One pass with no division for each part: the host's
 * time of a call counts. */
static symwin_status find_on_host(const struct sw_request *r, int b, struct sw_table_side *side,
                                  struct sw_parts_found *found)
{
    const symwin_parts *parts = r->parts[b];
    const uint64_t *const counts = parts->counts, *const places = parts->displacements;
    const uint64_t element = r->table->element, room = parts->room > 0 ? parts->room : ANY_ELEMENTS;
    /* Elements from a whole word of memory to the buffer. */
    const uint64_t before = (unsigned)((uintptr_t)(b == IN ? r->in : r->out) % 8) /
                            (unsigned)element;
    const int nranks = r->comm->nranks;
    struct sw_table_row *const rows = rows_of(r, b);
    symwin_status status = check_on_host(r, b, "counts", counts);
    uint64_t end = 0, reach = 0, most = 0; /* elements; */
    uint64_t bits = 0;                     /* of lengths, and of places in memory */
    int p, passes = 0, goes_back = 0;

    if (status == SYMWIN_OK && !are_on_one_page(counts, places))
        status = check_on_host(r, b, "displacements", places);
    if (status != SYMWIN_OK)
        return status;
    for (p = 0; p < nranks; p++) {
        const uint64_t count = counts[p], place = places != NULL ? places[p] : end;

        if (place > room || count > room - place)
            passes = 1;
        end = place + count;
        /* Where there are no elements, kernels would compare the place with a room. */
        rows[p] = (struct sw_table_row){count, count > 0 ? place : 0};
        if (count == 0)
            continue;
        if (place < reach)
            goes_back = 1;
        if (reach < end)
            reach = end;
        if (most < count)
            most = count;
        bits |= count | (before + place);
    }
    if (passes)
        status = check_each_part(r, b);
    if (status != SYMWIN_OK)
        return status;
    set_side(side, 0, 0, 8, SW_TABLE_ANY_ROOM);
    if (r->comm->calls->rows != NULL) {
        side->counts = rows_address(r->comm, b);
        side->places = side->counts + 8 * (uint64_t)nranks;
    }
    found->goes_back[b] = goes_back;
    found->reach[b] = (size_t)(reach * element);
    if (found->part < most * element)
        found->part = (size_t)(most * element);
    if (found->most < found->part)
        found->most = found->part;
    if (bits * element % 8 != 0 || most * element > r->comm->slot_bytes / 2)
        found->is_short = 0;
    return SYMWIN_OK;
}

/* Whether the parts of a buffer that is written overlap, with its arrays on the host. Those without
 * elements are at place 0, where nothing is before them. */
static symwin_status check_apart(const struct sw_request *r, int b)
{
    const struct sw_table_row *const rows = rows_of(r, b), *p, *q;
    struct sw_table_row *const all = r->comm->calls->rows;
    int pair[2];

    if (!sw_parts_meet(rows, r->comm->nranks, all != NULL ? all + 2 * r->comm->nranks : NULL, pair))
        return SYMWIN_OK;
    p = &rows[pair[0]];
    q = &rows[pair[1]];
    return sw_fail(SYMWIN_INVALID,
                   "%s: in %s, %llu elements from element %llu on for rank %d overlap %llu from "
                   "element %llu on for rank %d; pass parts that do not",
                   r->name, sw_parts_name(r, b), (unsigned long long)p->count,
                   (unsigned long long)p->place, pair[0], (unsigned long long)q->count,
                   (unsigned long long)q->place, pair[1]);
}

static symwin_status find_side(const struct sw_request *r, int b, struct sw_table_side *side,
                               struct sw_parts_found *found)
{
    const symwin_parts *parts = r->parts[b];
    symwin_status status;

    if (parts == NULL || parts->counts == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: %s%s is NULL; pass %s", r->name, sw_parts_name(r, b),
                       parts == NULL ? "" : "->counts",
                       parts == NULL ? "a symwin_parts" : "an array of an element for each rank");
    status = parts->room > ANY_ELEMENTS ? sw_parts_check_room(r, b) : SYMWIN_OK;
    if (status != SYMWIN_OK)
        return status;
    return (parts->on_device ? find_on_device : find_on_host)(r, b, side, found);
}

/* The one part that this rank sends to every rank, or receives from every rank: what the divided
 * buffer, number `whole`, has of it. */
static void own_part(const struct sw_request *r, int whole, const struct sw_table_side *all,
                     struct sw_table_side *one, struct sw_parts_found *found)
{
    const int on_device = r->parts[whole]->on_device;
    const void *const buffer = whole == OUT ? r->in : r->out;
    const struct sw_table_row own = {.count = on_device ? 0
                                                        : rows_of(r, whole)[r->comm->rank].count};
    struct sw_table_row *const rows = rows_of(r, !whole);
    size_t *const reach = &found->reach[!whole];
    int p;

    set_side(one, 0, 0, 0, all->room);
    *reach = (size_t)(own.count * r->table->element);
    if (on_device)
        *reach = buffer != NULL ? r->table->element : 0; /* that much is looked up */
    if ((uintptr_t)buffer % 8 != 0)
        found->is_short = 0;
    if (all->counts != 0)
        one->counts = all->counts + 8 * (uint64_t)r->comm->rank;
    for (p = 0; p < r->comm->nranks; p++)
        rows[p] = own;
}

/* What the host can say of both sides together. */
static symwin_status compare(const struct sw_request *r)
{
    const struct sw_table_row *in = rows_of(r, IN), *out = rows_of(r, OUT);
    const int own = r->comm->rank;
    int p;

    if (r->parts[IN]->on_device || r->parts[OUT]->on_device)
        return SYMWIN_OK;
    if (in[own].count != out[own].count)
        return sw_fail(SYMWIN_INVALID,
                       "%s: rank %d sends %llu elements to itself and receives %llu; pass equal "
                       "counts",
                       r->name, own, (unsigned long long)in[own].count,
                       (unsigned long long)out[own].count);
    for (p = 0; p < r->comm->nranks && r->in == r->out && r->in != NULL; p++)
        if (in[p].count != out[p].count || in[p].place != out[p].place)
            return sw_fail(
                SYMWIN_INVALID,
                "%s: in place, in_parts and out_parts must be equal, and differ for rank "
                "%d; pass two buffers",
                r->name, p);
    return SYMWIN_OK;
}

/* Ranks of one device: what the words before and after the stores, or loads, take more than
 * barriers. Four ranks on one H200 took 15 us to store parts of 256 KiB, and 8 by entries. */
#define PLACES_US 5.0

/* Where a table says so, or otherwise the model of the collective with equal parts of as many
 * bytes. Both know only what all ranks know. */
static uint64_t find_large_bytes(const struct sw_request *r)
{
    struct sw_model m = {.nranks = r->comm->nranks,
                         .bytes = LARGE_LEAST,
                         .own_loads = 1, /* a thread loads from several ranks at once */
                         .one_device = r->comm->sharers == r->comm->nranks};
    const int adds = sw_collectives[r->collective].reduces;
    double (*const straight)(const struct sw_model *) = adds ? sw_model_parts : sw_model_move;
    double (*const pushed)(const struct sw_model *) = adds ? sw_model_parts_pushed
                                                           : sw_model_exchange;
    uint64_t bytes;

    if (sw_tuning_straight(r->comm->tuning, r->collective, r->type, &bytes))
        return bytes;
    if (sw_driver_is_emulated())
        return EMULATED_LARGE;
    while (m.bytes < LARGE_MOST && straight(&m) + (m.one_device ? PLACES_US : 0) > pushed(&m))
        m.bytes *= 2;
    return m.bytes;
}

/* A part of more bytes goes straight into its receiver's window, or from its sender's. */
static uint64_t large_bytes(const struct sw_request *r)
{
    struct sw_calls *calls = r->comm->calls;
    uint64_t *const bytes = &calls->large[r->collective][r->type];
    const uint16_t bit = (uint16_t)(1u << r->type);

    if ((calls->large_known[r->collective] & bit) == 0)
        *bytes = find_large_bytes(r);
    calls->large_known[r->collective] |= bit;
    return *bytes;
}

symwin_status sw_parts_find(const struct sw_request *r, struct sw_parts_found *found)
{
    struct sw_table_args *table = r->table;
    struct sw_table_side *const sides[2] = {&table->in, &table->out};
    const int whole = divided(r), first = whole >= 0 ? whole : OUT;
    symwin_status status;

    table->element = symwin_type_bytes(r->type);
    table->large = large_bytes(r);
    table->place = SW_NO_OFFSET;
    found->is_short = 1;
    status = find_side(r, first, sides[first], found);
    if (status != SYMWIN_OK)
        return status;
    if (whole >= 0) {
        own_part(r, whole, sides[whole], sides[!whole], found);
    } else {
        status = find_side(r, IN, &table->in, found);
        if (status == SYMWIN_OK)
            status = compare(r);
    }
    if (status == SYMWIN_OK && found->goes_back[first] &&
        (first == OUT || (rows_of(r, OUT)[r->comm->rank].count > 0 && sw_parts_in_place(r))))
        status = check_apart(r, first);
    return status;
}

int sw_parts_by_one_window(const struct sw_request *r, const struct sw_buffer buffers[2],
                           struct sw_request *by_one)
{
    const int whole = divided(r) == IN ? IN : OUT; /* the other one may be a part of it */
    const struct sw_buffer *of = &buffers[whole], *other = &buffers[!whole];
    const CUdeviceptr address = of->address + (other->within - of->within);

    if (address == other->address || !sw_buffers_overlap_in_memory(of, other))
        return 0;
    *by_one = *r;
    if (whole == IN)
        by_one->out = (void *)(uintptr_t)address;
    else
        by_one->in = (const void *)(uintptr_t)address;
    return 1;
}

void sw_parts_limit(const struct sw_request *r, const struct sw_buffer buffers[2])
{
    const int whole = divided(r);
    struct sw_table_side *const one = whole == IN ? &r->table->out : &r->table->in;
    uint64_t room;

    if (whole < 0 || !r->parts[whole]->on_device || buffers[!whole].room == 0)
        return;
    room = buffers[!whole].room / r->table->element;
    if (one->room > room)
        one->room = room;
}

void sw_parts_place(const struct sw_request *r, const struct sw_buffer buffers[2], int in_place)
{
    const struct sw_buffer *in = &buffers[IN], *out = &buffers[OUT];

    if (divided(r) == IN) {
        if (in->is_public)
            r->table->place = in->offset;
        return;
    }
    if (out->is_public && (in->address != out->address || (divided(r) == OUT && in_place)))
        r->table->place = out->offset;
}

int sw_parts_in_place(const struct sw_request *r)
{
    const CUdeviceptr in = (CUdeviceptr)(uintptr_t)r->in, out = (CUdeviceptr)(uintptr_t)r->out;
    const int whole = divided(r), own = r->comm->rank;
    const uint64_t element = r->table->element;

    if (whole < 0)
        return in == out;
    if (r->parts[whole]->on_device) /* only the kernel knows */
        return 1;
    return whole == OUT ? in == out + rows_of(r, OUT)[own].place * element
                        : out == in + rows_of(r, IN)[own].place * element;
}

/* ---- the public calls ------------------------------------------------------------------------ */

#define NO_OP SYMWIN_SUM

static struct sw_request request(symwin_collective collective, symwin_comm *comm, const void *in,
                                 const symwin_parts *in_parts, const void *out,
                                 const symwin_parts *out_parts, symwin_type type, symwin_op op,
                                 const symwin_collective_options *options)
{
    return (struct sw_request){.collective = collective,
                               .name = sw_request_name(collective, options),
                               .comm = comm,
                               .in = in,
                               .out = out,
                               .type = type,
                               .op = op,
                               .options = options,
                               .parts = {in_parts, out_parts}};
}

static symwin_status call(struct sw_request r, CUstream stream)
{
    struct sw_table_args table;
    symwin_status status = sw_request_check(&r);

    r.stream = stream;
    r.table = &table;
    if (status == SYMWIN_OK)
        sw_request_read_scalar(&r);
    if (sw_grouped())
        return sw_grouped_add(&r, status);
    return status == SYMWIN_OK ? sw_request_run(&r, NULL) : status;
}

static symwin_status query(struct sw_request r, symwin_collective_info *info)
{
    struct sw_table_args table;

    r.table = &table;
    return sw_request_query(&r, info);
}

symwin_status symwin_alltoallv_with(symwin_comm *comm, const void *in, const symwin_parts *in_parts,
                                    void *out, const symwin_parts *out_parts, symwin_type type,
                                    const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    return call(request(SYMWIN_ALLTOALLV, comm, in, in_parts, out, out_parts, type, NO_OP, options),
                stream);
}

symwin_status symwin_alltoallv(symwin_comm *comm, const void *in, const symwin_parts *in_parts,
                               void *out, const symwin_parts *out_parts, symwin_type type,
                               struct CUstream_st *stream)
{
    return symwin_alltoallv_with(comm, in, in_parts, out, out_parts, type, NULL, stream);
}

symwin_status symwin_alltoallv_query(symwin_comm *comm, const void *in,
                                     const symwin_parts *in_parts, const void *out,
                                     const symwin_parts *out_parts, symwin_type type,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    return query(
        request(SYMWIN_ALLTOALLV, comm, in, in_parts, out, out_parts, type, NO_OP, options), info);
}

symwin_status symwin_allgatherv_with(symwin_comm *comm, const void *in, void *out,
                                     const symwin_parts *parts, symwin_type type,
                                     const symwin_collective_options *options,
                                     struct CUstream_st *stream)
{
    return call(request(SYMWIN_ALLGATHERV, comm, in, NULL, out, parts, type, NO_OP, options),
                stream);
}

symwin_status symwin_allgatherv(symwin_comm *comm, const void *in, void *out,
                                const symwin_parts *parts, symwin_type type,
                                struct CUstream_st *stream)
{
    return symwin_allgatherv_with(comm, in, out, parts, type, NULL, stream);
}

symwin_status symwin_allgatherv_query(symwin_comm *comm, const void *in, const void *out,
                                      const symwin_parts *parts, symwin_type type,
                                      const symwin_collective_options *options,
                                      symwin_collective_info *info)
{
    return query(request(SYMWIN_ALLGATHERV, comm, in, NULL, out, parts, type, NO_OP, options),
                 info);
}

symwin_status symwin_reduce_scatterv_with(symwin_comm *comm, const void *in,
                                          const symwin_parts *parts, void *out, symwin_type type,
                                          symwin_op op, const symwin_collective_options *options,
                                          struct CUstream_st *stream)
{
    return call(request(SYMWIN_REDUCE_SCATTERV, comm, in, parts, out, NULL, type, op, options),
                stream);
}

symwin_status symwin_reduce_scatterv(symwin_comm *comm, const void *in, const symwin_parts *parts,
                                     void *out, symwin_type type, symwin_op op,
                                     struct CUstream_st *stream)
{
    return symwin_reduce_scatterv_with(comm, in, parts, out, type, op, NULL, stream);
}

symwin_status symwin_reduce_scatterv_query(symwin_comm *comm, const void *in,
                                           const symwin_parts *parts, const void *out,
                                           symwin_type type, symwin_op op,
                                           const symwin_collective_options *options,
                                           symwin_collective_info *info)
{
    return query(request(SYMWIN_REDUCE_SCATTERV, comm, in, parts, out, NULL, type, op, options),
                 info);
}
