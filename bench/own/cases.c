/* One call, and its outcome. */
#include <stdio.h>

#include "cases.h"

/* AROUND: margin on both sides of a message, of which LOOKED_AT bytes are checked. */
enum { AROUND = 1024, LOOKED_AT = 64, MARK = 0x5c };

/* How late a rank comes to a barrier. */
enum { LATE_NS = 100000, LATE_EMULATED_NS = 2000000 };

uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

struct perf_data case_data(const struct rank *r, const struct own_case *c, uint32_t seed)
{
    return (struct perf_data){
        .nranks = r->job->nranks, .type = (int32_t)c->type, .op = (int32_t)c->op, .seed = seed};
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Bytes of the arrays of a call: two for the input, two for the output. */
static size_t parts_bytes(const struct rank *r)
{
    return 4 * sizeof(uint64_t) * (size_t)r->job->nranks;
}

/* A kernel that does not ask for windows gets plain memory, so that it cannot depend on them. What
 * barriers are checked by is copied from peers. */
int room_open(struct rank *r, const struct subject *subject, size_t bytes, struct room *room)
{
    const struct sw_collective *is = collective_of(subject->about->collective);
    int good = 1;

    *room = (struct room){.bytes = bytes,
                          .kind = subject->about->windows || is->no_data ? MEMORY_WINDOW
                                                                         : MEMORY_PLAIN};
    if (is->by_parts && (subject->own != NULL || collective_on_device(subject->about->collective)))
        good = ok(sw_check(sw_drv.cuMemAlloc(&room->parts, ROOM_SLOTS * parts_bytes(r)),
                           "cuMemAlloc for counts and displacements"));
    return meet(r, good, NULL, 0) && pair_open(r, room->kind, bytes + 2 * AROUND, 1, &room->pair);
}

void room_close(struct rank *r, struct room *room)
{
    pair_close(r, room->kind, &room->pair);
    DROP(cuMemFree, room->parts);
    room->parts = 0;
}

static CUdeviceptr parts_at(const struct rank *r, const struct room *room, const struct own_case *c)
{
    return room->parts + (size_t)c->slot * parts_bytes(r);
}

/* ---- the call -------------------------------------------------------------------------------- */

struct spot case_spot(const struct rank *r, const struct room *room, const struct own_case *c)
{
    const size_t size = symwin_type_bytes(c->type);
    const struct layout is = layout_of(c->collective, r->job->nranks, r->rank, c->which, c->count);
    unsigned char *const out = (unsigned char *)room->pair.out + AROUND + c->out_shift;
    struct spot spot = {.is = is,
                        .in = (unsigned char *)room->pair.in + AROUND + c->in_shift,
                        .out = out,
                        .in_bytes = is.in * size,
                        .out_bytes = is.out * size,
                        .whole = out,
                        .whole_bytes = is.out * size};

    if (c->in_place) {
        spot.in = out + is.in_at * size;
        spot.out = out + is.out_at * size;
        spot.whole_bytes = is.larger * size;
    }
    return spot;
}

size_t case_bytes(const struct rank *r, const struct own_case *c)
{
    return layout_of(c->collective, r->job->nranks, 0, 0, c->count).larger *
           symwin_type_bytes(c->type);
}

/* The offset in the address map of a place in the room. */
static uint64_t offset_of(const struct room *room, const unsigned char *at, int in_out)
{
    return in_out ? room->pair.out_offset + (uint64_t)(at - (unsigned char *)room->pair.out)
                  : room->pair.in_offset + (uint64_t)(at - (unsigned char *)room->pair.in);
}

/* Counts and displacements that case_fill() wrote. */
static symwin_parts parts_on_device(const struct rank *r, CUdeviceptr at, uint64_t room)
{
    const uint64_t *const counts = (const uint64_t *)(uintptr_t)at;

    return (symwin_parts){
        .counts = counts, .displacements = counts + r->job->nranks, .room = room, .on_device = 1};
}

static int library_call(struct rank *r, const struct subject *subject, const struct room *room,
                        const struct own_case *c, const struct spot *spot)
{
    const CUdeviceptr parts = parts_at(r, room, c);
    struct perf_call call = {.comm = r->comm,
                             .in = spot->in,
                             .out = spot->out,
                             .count = c->count,
                             .type = c->type,
                             .op = c->op,
                             .root = c->which,
                             .to = spot->is.send_to,
                             .from = spot->is.recv_from,
                             .options = {.size = sizeof(symwin_collective_options),
                                         .algo = subject->algo,
                                         .blocks = c->blocks,
                                         .threads = c->threads}};

    if (room->parts != 0) {
        call.in_parts = parts_on_device(r, parts, spot->is.in);
        call.out_parts = parts_on_device(r, parts + parts_bytes(r) / 2, spot->is.out);
    }
    return collective_call(r, c->collective, &call);
}

static int own_case_call(struct rank *r, struct own_kernel *k, const struct room *room,
                         const struct own_case *c, const struct spot *spot)
{
    const struct sw_collective *is = collective_of(c->collective);
    const CUdeviceptr parts = parts_at(r, room, c);
    struct own_call call = {.type = c->type,
                            .op = c->op,
                            .root = c->which,
                            .to = spot->is.send_to,
                            .from = spot->is.recv_from,
                            .in_offset = SYMWIN_NO_OFFSET,
                            .out_offset = SYMWIN_NO_OFFSET,
                            .blocks = c->blocks,
                            .threads = c->threads};

    if (!is->no_data) {
        call.in = (uint64_t)(uintptr_t)spot->in;
        call.out = (uint64_t)(uintptr_t)spot->out;
        call.in_offset = offset_of(room, spot->in, c->in_place);
        call.out_offset = offset_of(room, spot->out, 1);
        call.count = c->count;
    }
    own_set_parts(&call, is, parts, parts + parts_bytes(r) / 2);
    return own_launch(r, k, &call);
}

static int one_call(struct rank *r, const struct subject *subject, const struct room *room,
                    const struct own_case *c)
{
    const struct spot spot = case_spot(r, room, c);

    return subject->own != NULL ? own_case_call(r, subject->own, room, c, &spot)
                                : library_call(r, subject, room, c, &spot);
}

static int queue_copy(struct rank *r, const void *to, const void *from, size_t bytes)
{
    return ok(sw_check(sw_drv.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
                                            (CUdeviceptr)(uintptr_t)from, bytes, r->stream),
                       "cuMemcpyAsync around a barrier"));
}

static int barrier_call(struct rank *r, const struct subject *subject, const struct room *room,
                        const struct own_case *c)
{
    const struct spot spot = case_spot(r, room, c);
    const size_t bytes = spot.in_bytes, at = (size_t)(spot.out - (unsigned char *)room->pair.out);
    int good = queue_copy(r, spot.out + bytes * (size_t)r->rank, spot.in, bytes) &&
               one_call(r, subject, room, c);

    for (int p = 0; p < r->job->nranks && good; p++) {
        const size_t part = bytes * (size_t)p;
        void *from = NULL;

        if (p != r->rank)
            good = ok(symwin_window_peer_pointer(r->comm, room->pair.out_window, p, at + part,
                                                 &from)) &&
                   queue_copy(r, spot.out + part, from, bytes);
    }
    return good && one_call(r, subject, room, c);
}

int case_call(struct rank *r, const struct subject *subject, const struct room *room,
              const struct own_case *c)
{
    return collective_of(c->collective)->no_data ? barrier_call(r, subject, room, c)
                                                 : one_call(r, subject, room, c);
}

/* The data of a rank's input: also of what it must not change. */
static int fill_own(struct rank *r, const struct perf_data *data, uint64_t count, void *to)
{
    return fill(r, data, r->rank, 0, count, to);
}

int case_fill(struct rank *r, const struct room *room, const struct own_case *c,
              const struct perf_data *data)
{
    const struct spot spot = case_spot(r, room, c);
    const struct perf_data wanted = layout_data(&spot.is, *data);
    int good = room->parts == 0 || fill_parts(r, &spot.is, parts_at(r, room, c));

    if (good && spot.is.receives)
        good = fill(r, &wanted, spot.is.who, 1, spot.is.out, spot.out);
    else if (good && !c->in_place)
        good = fill_own(r, data, spot.is.out, spot.out);
    return good && ((c->in_place && !spot.is.sends) || fill_own(r, data, spot.is.in, spot.in));
}

/* ---- outcome --------------------------------------------------------------------------------- */

/* Marks the memory on both sides of the output; in place, of the one buffer. */
static int mark(struct rank *r, const struct room *room, const struct own_case *c)
{
    const struct spot spot = case_spot(r, room, c);
    const CUdeviceptr whole = (CUdeviceptr)(uintptr_t)spot.whole;

    return CUDA(cuMemsetD8Async, (whole - LOOKED_AT, MARK, LOOKED_AT, r->stream)) &&
           CUDA(cuMemsetD8Async, (whole + spot.whole_bytes, MARK, LOOKED_AT, r->stream));
}

static int look(struct rank *r, const unsigned char *at, int64_t from, struct outcome *outcome)
{
    unsigned char bytes[LOOKED_AT];
    int good = ok(symwin_memcpy(r->device, bytes, at, sizeof bytes, r->stream)) &&
               rank_synchronize(r, "checking the margins of the output");

    for (int i = 0; i < LOOKED_AT && good; i++)
        if (bytes[i] != MARK && outcome->wrong == RIGHT) {
            outcome->wrong = WROTE_BESIDE;
            outcome->index = (uint64_t)(from + i);
        }
    return good;
}

/* Compares a buffer, if nothing was wrong before. */
static int expect(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                  const void *at, enum wrong wrong, struct outcome *outcome)
{
    struct perf_report report;

    if (outcome->wrong != RIGHT)
        return 1;
    if (!compare_report(r, data, who, count, at, &report))
        return 0;
    if (report.wrong > 0)
        *outcome = (struct outcome){wrong,        outcome->gave_up, 0,
                                    report.index, report.got,       report.want};
    return 1;
}

static int judge(struct rank *r, const struct subject *subject, const struct room *room,
                 const struct own_case *c, const struct perf_data *data, struct outcome *outcome)
{
    const struct spot spot = case_spot(r, room, c);
    const struct layout *is = &spot.is;
    const struct perf_data wanted = layout_data(is, *data);
    int good = 1;

    outcome->gave_up = subject->own != NULL && own_gave_up(subject->own);
    if (is->receives)
        good = expect(r, &wanted, is->who, is->out, spot.out, WRONG_RESULT, outcome);
    else if (!c->in_place)
        good = expect(r, data, r->rank, is->out, spot.out, CHANGED_OUTPUT, outcome);
    if (good && outcome->wrong == RIGHT)
        good = look(r, spot.whole - LOOKED_AT, -LOOKED_AT, outcome);
    if (good && outcome->wrong == RIGHT)
        good = look(r, spot.whole + spot.whole_bytes, (int64_t)spot.whole_bytes, outcome);
    return good && ((c->in_place && is->receives) ||
                    expect(r, data, r->rank, is->in, spot.in, CHANGED_INPUT, outcome));
}

int outcome_meet(struct rank *r, struct outcome *outcome)
{
    const uint64_t mine[] = {(uint64_t)outcome->wrong, (uint64_t)(outcome->gave_up != 0),
                             outcome->index, outcome->got, outcome->want};
    const int good = meet(r, 1, mine, 5);

    *outcome = (struct outcome){0};
    for (int i = r->job->nranks - 1; i >= 0 && good; i--) {
        if (met(r, i, 1) != 0)
            outcome->gave_up = i + 1;
        if (met(r, i, 0) == RIGHT)
            continue;
        outcome->wrong = (enum wrong)met(r, i, 0);
        outcome->rank = i;
        outcome->index = met(r, i, 2);
        outcome->got = met(r, i, 3);
        outcome->want = met(r, i, 4);
    }
    return good;
}

/* Of a barrier, one rank is late. */
static int queue_late(struct rank *r, const struct own_case *c)
{
    return !collective_of(c->collective)->no_data || r->rank != c->which ||
           launch_delay(r, r->job->emulated ? LATE_EMULATED_NS : LATE_NS);
}

int case_try(struct rank *r, const struct subject *subject, const struct room *room,
             const struct own_case *c, uint32_t seed, struct outcome *outcome)
{
    const struct perf_data data = case_data(r, c, seed);
    char text[CASE_TEXT];
    int good;

    *outcome = (struct outcome){0};
    case_print(c, text);
    if (r->rank == 0)
        stage_says("%s", text);
    good = mark(r, room, c) && case_fill(r, room, c, &data) &&
           rank_synchronize(r, "filling buffers");
    return meet(r, good, NULL, 0) &&
           meet(r,
                queue_late(r, c) && case_call(r, subject, room, c) &&
                    rank_synchronize(r, "the call"),
                NULL, 0) &&
           meet(r, judge(r, subject, room, c, &data, outcome), NULL, 0) && outcome_meet(r, outcome);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Prints which call of its collective it is: ", root 1". */
static void which_print(const struct own_case *c, char text[48])
{
    text[0] = '\0';
    if (collective_has_root(c->collective))
        snprintf(text, 48, ", root %d", c->which);
    else if (c->collective > (symwin_collective)PERF_SENDRECV)
        snprintf(text, 48, ", parts %d", c->which);
    else if (c->collective == (symwin_collective)PERF_SENDRECV)
        snprintf(text, 48, ", %s to rank %+d",
                 c->which == PERF_EVEN_SEND  ? "even ranks"
                 : c->which == PERF_ODD_SEND ? "odd ranks"
                                             : "each rank",
                 c->which == PERF_ODD_SEND  ? -1
                 : c->which < PERF_ODD_SEND ? 1
                                            : c->which - 1);
}

void case_print(const struct own_case *c, char text[CASE_TEXT])
{
    const struct sw_collective *is = collective_of(c->collective);
    char where[96] = "", grid[64] = "", which[48];

    which_print(c, which);
    if (c->in_place)
        snprintf(where, sizeof where, " in place");
    if (c->in_place && c->in_shift > 0)
        snprintf(where, sizeof where, " in place, %u bytes off", c->in_shift);
    else if (c->in_shift + c->out_shift > 0)
        snprintf(where, sizeof where, ", input %u and output %u bytes off", c->in_shift,
                 c->out_shift);
    if (c->blocks > 0)
        snprintf(grid, sizeof grid, ", %d block%s of %d threads", c->blocks,
                 c->blocks > 1 ? "s" : "", c->threads);
    if (is->no_data)
        snprintf(text, CASE_TEXT, "a barrier%s", grid);
    else
        snprintf(text, CASE_TEXT, "%s%s%s%s, %llu element%s%s%s", symwin_type_name(c->type),
                 is->reduces ? " " : "", is->reduces ? symwin_op_name(c->op) : "", which,
                 (unsigned long long)c->count, c->count > 1 ? "s" : "", where, grid);
}

static double value_of(symwin_type type, uint64_t bits)
{
    switch (type) {
    case SYMWIN_F64:
        return sw_f64_of_bits(bits);
    case SYMWIN_F32:
        return (double)sw_f32_of_bits((uint32_t)bits);
    case SYMWIN_F16:
        return (double)sw_f32_from_f16((uint16_t)bits);
    case SYMWIN_BF16:
        return (double)sw_f32_from_bf16((uint16_t)bits);
    case SYMWIN_F8E4M3:
        return (double)sw_f32_from_e4m3((uint8_t)bits);
    case SYMWIN_F8E5M2:
        return (double)sw_f32_from_e5m2((uint8_t)bits);
    case SYMWIN_I8:
        return (int8_t)bits;
    case SYMWIN_I32:
        return (int32_t)bits;
    case SYMWIN_I64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static void value_print(symwin_type type, uint64_t bits, char text[64])
{
    snprintf(text, 64, "%.9g (0x%0*llx)", value_of(type, bits), 2 * (int)symwin_type_bytes(type),
             (unsigned long long)bits);
}

void outcome_print(const struct outcome *outcome, const struct own_case *c, char text[CASE_TEXT])
{
    char got[64], want[64], limit[64] = "";

    value_print(c->type, outcome->got, got);
    value_print(c->type, outcome->want, want);
    if (outcome->got == (outcome->want ^ 1)) /* the value of case_fill() */
        snprintf(got, sizeof got, "nothing (not written)");
    if (outcome->gave_up > 0)
        snprintf(limit, sizeof limit, "; a wait of rank %d reached its limit",
                 outcome->gave_up - 1);
    switch (outcome->wrong) {
    case WRONG_RESULT:
        if (collective_of(c->collective)->no_data) {
            snprintf(text, CASE_TEXT, "rank %d or rank %d left before the other one had come%s",
                     outcome->rank, (int)(outcome->index / c->count), limit);
            break;
        }
        snprintf(text, CASE_TEXT, "rank %d, element %llu: got %s, expected %s%s", outcome->rank,
                 (unsigned long long)outcome->index, got, want, limit);
        break;
    case WROTE_BESIDE:
        snprintf(text, CASE_TEXT, "rank %d: wrote outside of the output, at byte offset %lld%s",
                 outcome->rank, (long long)outcome->index, limit);
        break;
    case CHANGED_INPUT:
        snprintf(text, CASE_TEXT, "rank %d: changed the input: element %llu is %s and was %s%s",
                 outcome->rank, (unsigned long long)outcome->index, got, want, limit);
        break;
    case CHANGED_OUTPUT:
        snprintf(text, CASE_TEXT,
                 "rank %d: wrote where it has no output: element %llu is %s and was %s%s",
                 outcome->rank, (unsigned long long)outcome->index, got, want, limit);
        break;
    case RIGHT:
        snprintf(text, CASE_TEXT, "%s", outcome->gave_up > 0 ? limit + 2 : "right");
        break;
    }
}
