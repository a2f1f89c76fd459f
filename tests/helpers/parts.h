/* Calls of collectives whose parts have unequal lengths, and what they must leave. */
#ifndef SYMWIN_TESTS_PARTS_H
#define SYMWIN_TESTS_PARTS_H

#include "collectives.h"
#include "kernels/kernel_args.h"
#include "src/control/group.h"

enum { PARTS_RANKS = PROCESSES_MOST, ARRAYS_BYTES = 4 * PARTS_RANKS * 8 };

/* Arrays of counts and displacements: of in, then of out. */
struct arrays {
    uint64_t host[4][PARTS_RANKS];
    unsigned char *device, *spare; /* as many bytes in device memory */
};

/* A call that failed as it must, with words as in host_error_has(). */
HARNESS_UNUSED void refused(const struct rank *r, symwin_status status, symwin_status want,
                            const char *words)
{
    if (status != want || !host_error_has(words))
        fprintf(stderr, "%s \"%s\", not %s \"%s\"\n", symwin_status_name(status),
                symwin_last_error(), symwin_status_name(want), words);
    must_be(status == want && host_error_has(words), words, r->rank);
}

/* One call, as this rank makes it. */
struct parts_job {
    symwin_collective_options options;
    symwin_type type;
    size_t base, room; /* what it has of both buffers, in bytes */
    int on_device[2];  /* in, out */
    int packed[2];     /* without displacements, on the host */
    int in_place;
    int apart;   /* others are in place, and this rank has two buffers */
    int gathers; /* an all-gather: a rank sends all the same part */
    int words;   /* whole words of one round, by one warp, with most arrays on the host */
    unsigned seed;
};

/* Call number `number`. Type and counts are equal on all ranks. */
HARNESS_UNUSED struct parts_job parts_job_of(const struct rank *r, unsigned number, size_t base,
                                             size_t room)
{
    const uint32_t all = mix(number * 2654435761u + 99), own = mix(all + (uint32_t)r->rank * 31u);
    const int words = all / 512 % 4 == 0;
    struct parts_job j = {.options = {.size = sizeof(symwin_collective_options),
                                      .blocks = own % 3 == 0 ? 1 + (int)(own / 3 % 3) : 0,
                                      .threads = own / 16 % 3 == 0 ? 1 + (int)(own / 64 % 40) : 0},
                          .type = (symwin_type)(all / 8 % 12),
                          .base = base,
                          .room = room,
                          .on_device = {(int)(own / 1024 % 2), (int)(own / 2048 % 2)},
                          .packed = {(int)(own / 4096 % 2), (int)(own / 8192 % 2)},
                          .gathers = all / 128 % 3 == 0,
                          .words = words,
                          .seed = number};

    if (words) {
        j.options.blocks = 1;
        j.options.threads = 32;
        j.type = SYMWIN_U64;
        j.on_device[0] = own / 1024 % 4 == 0;
        j.on_device[1] = own / 4096 % 4 == 0;
    }
    return j;
}

/* Elements that rank `from` sends to rank `to`: none, a few, about a round, or many rounds. */
HARNESS_UNUSED uint64_t parts_count(const struct rank *r, const struct parts_job *j, int from,
                                    int to)
{
    static const uint64_t counts[] = {0, 0, 1, 2, 7, 8, 31, 32, 33, 64, 65, 96, 97};
    const int swaps = j->in_place && !j->gathers && from > to;
    const uint32_t random = mix(j->seed * 977u + (uint32_t)(swaps ? to : from) * 131u +
                                (uint32_t)(j->gathers ? 0
                                           : swaps    ? from
                                                      : to));
    const uint64_t most = (j->room - 2 * GUARD) / (uint64_t)r->nranks / symwin_type_bytes(j->type) -
                          4; /* and a gap of up to 3 */
    const uint64_t count = j->words          ? random / 8 % (SLOT / 16 + 1)
                           : random % 5 == 0 ? mix(random) % 1500
                                             : counts[random / 8 % 13];

    return count < most ? count : most;
}

HARNESS_UNUSED unsigned char parts_byte(const struct parts_job *j, int from, int to, size_t i)
{
    return (unsigned char)mix(j->seed * 7u + (uint32_t)from * 1009u +
                              (uint32_t)(j->gathers ? 0 : to) * 9176u + (uint32_t)i * 13u);
}

HARNESS_UNUSED uint64_t parts_room(const struct parts_job *j)
{
    return (j->room - 2 * GUARD) / symwin_type_bytes(j->type);
}

/* Whether a call with arrays on the host says how much room its buffers have. */
HARNESS_UNUSED int parts_tells_room(const struct parts_job *j)
{
    return j->seed % 2 == 0;
}

/* The place of rank p's part in buffer b, in elements. */
HARNESS_UNUSED uint64_t parts_place(const struct rank *r, const struct parts_job *j, int b, int p)
{
    const int gaps = !j->packed[b] || j->on_device[b] || j->in_place;
    uint64_t place = 0;
    int q;

    for (q = 0; q < p && (b == 1 || !j->gathers); q++)
        place += parts_count(r, j, b == 0 ? r->rank : q, b == 0 ? q : r->rank) +
                 (gaps ? (j->seed + (unsigned)q) % 4 : 0);
    return place;
}

/* Where the buffer begins: GUARD bytes stay before it, and as many behind its room. */
HARNESS_UNUSED unsigned char *parts_buffer(const struct rank *r, const struct parts_job *j, int b)
{
    const int here = j->in_place && !j->apart;
    unsigned char *const at = (b == 1 || here ? r->out : r->in) + j->base + GUARD;

    return j->gathers && here && b == 0
               ? at + parts_place(r, j, 1, r->rank) * symwin_type_bytes(j->type)
               : at;
}

HARNESS_UNUSED void arrays_open(const struct rank *r, struct arrays *a)
{
    memset(a->host, 0, sizeof a->host);
    a->device = host_alloc(r->device, ARRAYS_BYTES);
    a->spare = host_alloc(r->device, ARRAYS_BYTES);
}

HARNESS_UNUSED void arrays_close(const struct arrays *a)
{
    host_must(symwin_mem_free(a->device), "symwin_mem_free");
    host_must(symwin_mem_free(a->spare), "symwin_mem_free");
}

HARNESS_UNUSED void parts_fill_arrays(const struct rank *r, const struct parts_job *j,
                                      struct arrays *a)
{
    int p, b;

    for (p = 0; p < r->nranks; p++) {
        a->host[0][p] = parts_count(r, j, r->rank, p);
        a->host[1][p] = parts_place(r, j, 0, p);
        a->host[2][p] = parts_count(r, j, p, r->rank);
        a->host[3][p] = parts_place(r, j, 1, p);
        for (b = 0; b < 2; b++)
            if (a->host[2 * b][p] == 0 && !j->on_device[b] && !parts_tells_room(j))
                a->host[2 * b + 1][p] = UINT64_MAX; /* no memory has it, and nobody asks */
    }
}

/* Fills both buffers and the arrays in device memory. */
HARNESS_UNUSED void parts_prepare(const struct rank *r, const struct parts_job *j,
                                  const struct arrays *to)
{
    const size_t element = symwin_type_bytes(j->type);
    struct arrays a = *to;
    int p;
    size_t i;

    parts_fill_arrays(r, j, &a);
    host_must(host_copy(r->device, a.device, a.host, ARRAYS_BYTES), "fill");
    memset(r->host, FILLED, j->room);
    host_must(host_copy(r->device, r->out + j->base, r->host, j->room), "fill");
    for (p = 0; p < r->nranks; p++)
        for (i = 0; i < a.host[0][p] * element; i++)
            r->host[GUARD + a.host[1][p] * element + i] = parts_byte(j, r->rank, p, i);
    if (!j->gathers)
        host_must(host_copy(r->device, parts_buffer(r, j, 0) - GUARD, r->host, j->room), "fill");
    else if (a.host[0][0] > 0)
        host_must(host_copy(r->device, parts_buffer(r, j, 0), r->host + GUARD,
                            (size_t)a.host[0][0] * element),
                  "fill");
}

/* The arrays of buffer b, as the call gets them. */
HARNESS_UNUSED symwin_parts parts_of(const struct parts_job *j, const struct arrays *a, int b)
{
    const uint64_t *device = (const uint64_t *)(const void *)a->device;

    if (j->on_device[b])
        return (symwin_parts){device + 2 * b * PARTS_RANKS, device + (2 * b + 1) * PARTS_RANKS,
                              parts_room(j), 1};
    return (symwin_parts){a->host[2 * b], j->packed[b] && !j->in_place ? NULL : a->host[2 * b + 1],
                          parts_tells_room(j) ? parts_room(j) : 0, 0};
}

HARNESS_UNUSED symwin_status parts_call_with(const struct rank *r, const struct parts_job *j,
                                             const symwin_parts *in, const symwin_parts *out,
                                             int stream)
{
    if (j->gathers)
        return symwin_allgatherv_with(r->comm, parts_buffer(r, j, 0), parts_buffer(r, j, 1), out,
                                      j->type, &j->options, r->streams[stream]);
    return symwin_alltoallv_with(r->comm, parts_buffer(r, j, 0), in, parts_buffer(r, j, 1), out,
                                 j->type, &j->options, r->streams[stream]);
}

HARNESS_UNUSED symwin_status parts_call(const struct rank *r, const struct parts_job *j,
                                        const struct arrays *with, int stream)
{
    struct arrays a = *with;
    symwin_parts in, out;

    parts_fill_arrays(r, j, &a);
    in = parts_of(j, &a, 0);
    out = parts_of(j, &a, 1);
    return parts_call_with(r, j, &in, &out, stream);
}

/* Whether the output is right: all parts, and what is between and around them. */
HARNESS_UNUSED int parts_right(const struct rank *r, const struct parts_job *j)
{
    const size_t element = symwin_type_bytes(j->type);
    size_t i, at, bytes, wrong = 0;
    int p;

    memset(r->want, FILLED, j->room);
    for (p = 0; p < r->nranks; p++) {
        at = GUARD + (size_t)parts_place(r, j, 1, p) * element;
        bytes = (size_t)parts_count(r, j, p, r->rank) * element;
        for (i = 0; i < bytes; i++)
            r->want[at + i] = parts_byte(j, p, r->rank, i);
    }
    host_must(host_copy(r->device, r->host, r->out + j->base, j->room), "read");
    for (i = 0; i < j->room; i++)
        wrong += r->host[i] != r->want[i];
    if (wrong > 0)
        fprintf(stderr, "rank %d of %d, seed %u, %s: %zu bytes of the output are wrong\n", r->rank,
                r->nranks, j->seed, symwin_type_name(j->type), wrong);
    return wrong == 0;
}

/* What has been counted of rank p's large parts on this rank. */
HARNESS_UNUSED unsigned parts_landed(const struct rank *r, int p)
{
    const struct sw_group *group = r->comm->group;
    const uint64_t state = group->base + (uint64_t)r->rank * group->stride + r->comm->state_offset;
    struct {
        uint32_t landed, taken;
    } words;

    host_must(host_copy(r->device, &words,
                        (const void *)(uintptr_t)(state + SW_STATE_LANDING(r->nranks, SLOT, p) +
                                                  offsetof(struct sw_landing, landed)),
                        sizeof words),
              "read");
    must_be(words.landed == words.taken, "all that has landed is taken", r->rank);
    return words.landed / SW_LANDED;
}

/* With so many ranks in turn, which are threads. */
HARNESS_UNUSED void with_many_ranks(const int *ranks, size_t n,
                                    void (*body)(struct processes *, int))
{
    struct processes *p;
    size_t i;

    for (i = 0; i < n; i++) {
        if (processes_use_gpus() && ranks[i] > 17)
            break; /* those of one GPU have a hardware queue each (open_streams()) */
        tap_ok(places_run(&places_all[0], ranks[i], body, NULL, &p), "%d ranks", ranks[i]);
        processes_free(p);
    }
}

/* With 2 to `most` ranks, by a table of choices that has these rows; the body may write others. */
HARNESS_UNUSED void parts_by_table(const char *rows, int most,
                                   void (*body)(struct processes *, int))
{
    char name[] = "/tmp/symwin-test.XXXXXX";
    const int fd = mkstemp(name);
    struct processes *p;
    int n;

    if (fd < 0 || write(fd, rows, strlen(rows)) != (ssize_t)strlen(rows) || close(fd) != 0)
        abort();
    setenv("SYMWIN_TUNING", name, 1);
    for (n = 2; n <= most; n++) {
        tap_ok(places_run(&places_all[0], n, body, NULL, &p), "%d ranks, by a table", n);
        processes_free(p);
    }
    unlink(name);
    unsetenv("SYMWIN_TUNING");
}

#endif
