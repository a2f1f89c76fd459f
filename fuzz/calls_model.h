/* The model of fuzz/calls.c: what is live, and how each call must change it. */
#ifndef SYMWIN_FUZZ_CALLS_MODEL_H
#define SYMWIN_FUZZ_CALLS_MODEL_H

#include "calls_team.h"

enum {
    NOTHING = -1, /* no connection serves it */
    MEMORIES = 6, /* per rank */
    EXPORTS = 3,  /* per rank */
    COMMS = 2,
    WINDOWS = 8, /* per communicator */
    RANGES = 10, /* per rank and communicator */
    CONNECTED = 16,
    SERVED = 64, /* stretches of a rank's memory, per communicator */
    SEGMENTS = WINDOWS + CONNECTED,
    GRAPHS = 3,
    LATE = 64,
    HANDLES = 512, /* handed out during an input */
    PHYSICALS = 256,
    GRANULE = 2 << 20,
    NO_DEVICE = 99,
    MOST_COMMS = 6 /* per input: they take milliseconds */
};

/* How a step makes a collective: as its arguments say; with another argument on one rank, which
 * ends the communicator; by copies; with others in a group, also by copies, and with a rank that
 * differs in one of them. */
enum how {
    AS_SAID,
    WITH_ONE_APART,
    BY_COPIES,
    IN_A_GROUP, /* and all below */
    COPIES_IN_A_GROUP,
    APART_IN_A_GROUP
};

/* One step of the script, for all ranks. */
struct step {
    int collective; /* what the kind of step says */
    enum how how;
    unsigned a, b, c, twist;
    int odd; /* the rank that does something else; -1: none */
};

enum owner { NOBODY, ALLOCATED, IMPORTED };

struct memory {
    enum owner owner; /* as in symwin_mem_info */
    char *ptr;
    size_t bytes, asked; /* rounded up, and what was asked for: as much as calls may use */
    int device;
    uint64_t id;       /* buffer id: that of the mapping */
    uint64_t handle;   /* of the allocation, or of the import */
    uint64_t physical; /* id of the mapping for which the memory was created */
    char *stale;       /* the address freed last */
};

/* An allocation, whatever holds it. */
struct physical {
    uint64_t physical;
    int device;
    size_t bytes;
};

struct exported {
    int live;
    symwin_mem_handle handle;
    int device;
    uint64_t physical;
};

struct window {
    int live;
    symwin_window *handle; /* kept after the window is gone */
    char *begin;
    size_t bytes;
    size_t offset;
    int segment;
    struct memory *memory;
    unsigned transports;
    uint64_t id;
};

/* A range registered by symwin_register(). */
struct range {
    unsigned refs;               /* 0: not registered any more */
    symwin_registration *handle; /* kept after deregistration; NULL: not handed out */
    char *begin, *end;
    struct memory *memory;
    uint64_t id;
};

/* The result of an agreement on registered buffers; it has the same index on all ranks. */
struct connected {
    uint64_t number; /* unique in the communicator; 0: none */
    int refused;     /* then it has no window */
    char *begin;
    size_t bytes, offset;
    int segment;
    struct memory *memory;
    unsigned transports;
    uint64_t id;
    unsigned graphs, returned; /* graphs that hold it; those that ended, not noticed yet */
    unsigned capture;          /* last capture that holds it; 0: none */
    int over;                  /* unused for good: never offered again */
    uint32_t done;             /* blocks of the calls launched by then */
};

/* Bytes registered without interruption since the connection at `place` began to serve them. */
struct served {
    char *begin, *end; /* empty: none */
    uint64_t id;
    int place;
};

/* What a capture has made, on each rank. */
struct graph {
    int comm;             /* index; may be another communicator by now */
    unsigned comm_serial; /* 0: no graph */
    int lasts;            /* it holds all that it uses */
    struct {
        CUgraph graph;     /* NULL: destroyed */
        CUgraphExec exec;  /* NULL: destroyed */
        uint64_t holds[2]; /* numbers of connections; 0: none */
    } rank[RANKS];
};

/* What an ended graph held, whose end the driver has not reported yet. */
struct late {
    int comm, rank;
    unsigned comm_serial; /* 0: none */
    uint64_t holds[2];
};

struct segment {
    int holders; /* references of all ranks; 0: no segment */
    size_t offset, bytes;
    struct memory memory[RANKS]; /* as it was then */
    size_t begin[RANKS];         /* start of each rank's allocation, relative to `offset` */
    int uneven;                  /* starts differ: no multicast */
    int multicast;
};

/* A rank's memory to be shown in a segment: all ranks have this byte at one offset. */
struct shown {
    struct memory *memory;
    size_t offset;
};

struct comm {
    symwin_comm *ptr[RANKS]; /* NULL: destroyed, or never created */
    int members;             /* ranks that have it */
    int left;                /* ranks that destroyed it before others */
    symwin_status ended;     /* what every later collective call returns */
    symwin_comm_info info;
    int graph_register; /* captures register by themselves */
    unsigned serial;    /* number of the communicator */
    struct segment segments[SEGMENTS];
    struct window windows[RANKS][WINDOWS];
    struct range ranges[RANKS][RANGES];
    struct connected connected[RANKS][CONNECTED];
    struct served served[RANKS][SERVED];
    uint64_t connections_made;
};

static struct model {
    int nranks;
    int device[RANKS];
    int fabric, multicast;             /* supported by the machine */
    size_t total;                      /* bytes of each device's memory */
    struct CUstream_st *stream[RANKS]; /* NULL: not created yet */
    struct memory memory[RANKS][MEMORIES];
    struct exported exported[RANKS][EXPORTS];
    struct comm comm[COMMS];
    struct graph graph[GRAPHS];
    struct late late[LATE];
    int is_late[RANKS]; /* callbacks of the rank's device are late */
    struct physical physicals[PHYSICALS];
    int physical_count;
    const void *handles[HANDLES];
    int handle_count;
    int comms_made;
    unsigned captures_made;
} model;

static struct call calls[RANKS]; /* of the current step */
static struct call tried;        /* while one rank's call is made twice */
static int twice;                /* by this rank; -1: none */
static char host_memory[64];     /* not an address of any device */

static int on_memory(const struct memory *m, const char *ptr)
{
    return m->owner != NOBODY && ptr >= m->ptr && ptr < m->ptr + m->bytes;
}

/* The live memory of any rank that contains `ptr`. */
static struct memory *memory_of(const char *ptr)
{
    int r, i;

    for (r = 0; r < model.nranks; r++)
        for (i = 0; i < MEMORIES; i++)
            if (on_memory(&model.memory[r][i], ptr))
                return &model.memory[r][i];
    return NULL;
}

/* ---- segments ---- */

/* The segment that a rank finds for an allocation, as in the library: the lowest. -1: none. */
static int segment_of(const struct comm *comm, int rank, uint64_t id)
{
    int best = -1;
    int s;

    for (s = 0; s < SEGMENTS; s++)
        if (comm->segments[s].holders > 0 && comm->segments[s].memory[rank].id == id &&
            (best < 0 || comm->segments[s].offset < comm->segments[best].offset))
            best = s;
    return best;
}

/* The segment that all ranks find, with their bytes at one offset; -1: a new one is needed. */
static int common_segment(const struct comm *comm, const struct shown on[RANKS])
{
    const int first = segment_of(comm, 0, on[0].memory->id);
    int r;

    for (r = 1; r < model.nranks && first >= 0; r++)
        if (segment_of(comm, r, on[r].memory->id) != first ||
            comm->segments[first].begin[r] + on[r].offset !=
                comm->segments[first].begin[0] + on[0].offset)
            return -1;
    return first;
}

/* A segment of these, except for its offset. */
static struct segment segment_of_all(const struct shown on[RANKS])
{
    struct segment segment = {0};
    size_t lead = 0;
    int r;

    for (r = 0; r < model.nranks; r++)
        lead = on[r].offset > lead ? on[r].offset : lead;
    for (r = 0; r < model.nranks; r++) {
        segment.memory[r] = *on[r].memory;
        segment.begin[r] = lead - on[r].offset;
        segment.uneven |= segment.begin[r] != 0;
        if (segment.begin[r] + on[r].memory->bytes > segment.bytes)
            segment.bytes = segment.begin[r] + on[r].memory->bytes;
    }
    return segment;
}

static int segment_count(const struct comm *comm)
{
    int count = 0;
    int s;

    for (s = 0; s < SEGMENTS; s++)
        count += comm->segments[s].holders > 0;
    return count;
}

/* Adds a new segment at the library's offset, which must be free. */
static int segment_make(struct comm *comm, size_t offset, const struct shown on[RANKS])
{
    struct segment fresh = segment_of_all(on);
    int place = -1;
    int s;

    fresh.offset = offset;
    fuzz_must(offset >= GRANULE && offset % GRANULE == 0 &&
                  offset + fresh.bytes <= comm->info.stride,
              "a segment of %zu bytes lies at %zu", fresh.bytes, offset);
    for (s = 0; s < SEGMENTS; s++) {
        const struct segment *other = &comm->segments[s];

        if (other->holders == 0)
            place = s;
        else
            fuzz_must(offset + fresh.bytes <= other->offset ||
                          other->offset + other->bytes <= offset,
                      "a segment at %zu overlaps one at %zu", offset, other->offset);
    }
    fuzz_must(place >= 0, "more segments than windows");
    comm->segments[place] = fresh;
    return place;
}

/* Whether anything holds an allocation. A fabric handle holds nothing. */
static int is_held(uint64_t physical)
{
    int r, i, s;

    for (r = 0; r < model.nranks; r++) {
        for (i = 0; i < MEMORIES; i++)
            if (model.memory[r][i].owner != NOBODY && model.memory[r][i].physical == physical)
                return 1;
        for (i = 0; i < EXPORTS; i++)
            if (model.exported[r][i].live && model.exported[r][i].handle.fd >= 0 &&
                model.exported[r][i].physical == physical)
                return 1;
        for (i = 0; i < COMMS; i++)
            for (s = 0; s < SEGMENTS; s++)
                if (model.comm[i].segments[s].holders > 0 &&
                    model.comm[i].segments[s].memory[r].physical == physical)
                    return 1;
    }
    return 0;
}

/* The offset for a new segment: the first free one behind the communicator's own memory; 0:
 * none. */
static size_t segment_room(const struct comm *comm, size_t bytes)
{
    size_t at = GRANULE;
    int s;

    for (s = 0; s < SEGMENTS; s++) {
        const struct segment *other = &comm->segments[s];

        if (other->holders > 0 && at < other->offset + other->bytes && other->offset < at + bytes) {
            at = other->offset + other->bytes;
            s = -1; /* search again from there */
        }
    }
    return at + bytes <= comm->info.stride ? at : 0;
}

/* ---- remaining memory ---- */

static void physical_note(const struct memory *m)
{
    int i;

    for (i = 0; i < model.physical_count; i++)
        if (!is_held(model.physicals[i].physical))
            break;
    fuzz_must(i < PHYSICALS, "more allocations than steps");
    model.physicals[i] = (struct physical){m->physical, m->device, m->bytes};
    model.physical_count += i == model.physical_count;
}

/* Whether a rank on the device has a communicator, so that the device has its page of counts. */
static int has_counts(int device)
{
    int i, r;

    for (i = 0; i < COMMS; i++)
        for (r = 0; r < model.nranks; r++)
            if (model.device[r] == device && model.comm[i].ptr[r] != NULL)
                return 1;
    return 0;
}

/* Total memory less all live memory. Communicators have a granule per rank, until the last rank
 * leaves, and the page of counts. */
static size_t memory_left(int device)
{
    size_t left = model.total - (has_counts(device) ? GRANULE : 0);
    int i, r;

    for (i = 0; i < model.physical_count; i++)
        if (model.physicals[i].device == device && is_held(model.physicals[i].physical))
            left -= model.physicals[i].bytes;
    for (i = 0; i < COMMS; i++)
        for (r = 0; r < model.nranks && model.comm[i].members > 0; r++)
            left -= model.device[r] == device ? GRANULE : 0;
    return left;
}

static int ranks_on(int device)
{
    int count = 0;
    int r;

    for (r = 0; r < model.nranks; r++)
        count += model.device[r] == device;
    return count;
}

/* ---- windows ---- */

static int window_count(const struct comm *comm, int rank)
{
    int count = 0;
    int w;

    for (w = 0; w < WINDOWS; w++)
        count += comm->windows[rank][w].live;
    return count;
}

/* An index that is free on all ranks; WINDOWS: none. */
static int window_place(const struct comm *comm)
{
    int w, r, live;

    for (w = 0; w < WINDOWS; w++) {
        for (live = 0, r = 0; r < model.nranks; r++)
            live += comm->windows[r][w].live;
        if (live == 0)
            break;
    }
    return w;
}

static void window_close(struct comm *comm, struct window *w)
{
    w->live = 0;
    comm->segments[w->segment].holders--;
}

static void connected_close(struct comm *comm, struct connected *c)
{
    if (c->number != 0 && !c->refused)
        comm->segments[c->segment].holders--;
    c->number = 0;
}

/* How many windows, ranges and graphs hold the memory. */
static int holds_in(const struct comm *comm, const struct memory *m)
{
    int count = 0;
    int r, i;

    for (r = 0; r < model.nranks; r++) {
        for (i = 0; i < WINDOWS; i++)
            count += comm->windows[r][i].live && comm->windows[r][i].memory == m;
        for (i = 0; i < RANGES; i++)
            count += comm->ranges[r][i].refs > 0 && comm->ranges[r][i].memory == m;
        for (i = 0; i < CONNECTED; i++)
            count += comm->connected[r][i].number != 0 && comm->connected[r][i].graphs > 0 &&
                     comm->connected[r][i].memory == m;
    }
    return count;
}

static int holds_of(const struct memory *m)
{
    int count = 0;
    int i;

    for (i = 0; i < COMMS; i++)
        count += holds_in(&model.comm[i], m);
    return count;
}

enum found {
    FOUND_NONE,
    FOUND_PART, /* a window contains the first byte */
    FOUND_ONE,
    FOUND_SEVERAL /* of equal size but different: any may be found */
};

/* The window of an address, as symwin.h defines it: the smallest that contains all bytes. */
static enum found window_of(const struct comm *comm, int rank, const char *ptr, size_t bytes,
                            const struct window **out)
{
    const struct window *best = NULL;
    enum found found = FOUND_NONE;
    int i;

    for (i = 0; i < WINDOWS; i++) {
        const struct window *w = &comm->windows[rank][i];

        if (!w->live || ptr < w->begin || ptr >= w->begin + w->bytes)
            continue;
        if (found == FOUND_NONE)
            found = FOUND_PART;
        if (bytes > (size_t)(w->begin + w->bytes - ptr))
            continue;
        if (best == NULL || w->bytes < best->bytes) {
            best = w;
            found = FOUND_ONE;
        } else if (w->bytes == best->bytes &&
                   (w->transports != best->transports || w->segment != best->segment)) {
            found = FOUND_SEVERAL;
        }
    }
    *out = best;
    return found;
}

/* Notes a handle, which must be new. */
static void handle_note(const void *handle)
{
    int i;

    for (i = 0; i < model.handle_count; i++)
        fuzz_must(model.handles[i] != handle, "handle %p is given out again", handle);
    if (model.handle_count < HANDLES)
        model.handles[model.handle_count++] = handle;
}

/* ---- communicators ---- */

/* One rank leaves; after the last one the communicator is gone. */
static void comm_leave(struct comm *comm, int rank)
{
    int w;

    for (w = 0; w < WINDOWS; w++)
        if (comm->windows[rank][w].live)
            window_close(comm, &comm->windows[rank][w]);
    for (w = 0; w < CONNECTED; w++)
        connected_close(comm, &comm->connected[rank][w]);
    for (w = 0; w < RANGES; w++)
        comm->ranges[rank][w].refs = 0;
    comm->ptr[rank] = NULL;
    comm->left++;
    if (--comm->members == 0)
        *comm = (struct comm){.members = 0};
}

/* The result of a collective call whose arguments would give `status`. */
static symwin_status collective(struct comm *comm, symwin_status status)
{
    if (comm->ended == SYMWIN_OK && comm->left > 0)
        comm->ended = SYMWIN_PEER_LOST;
    return comm->ended != SYMWIN_OK ? comm->ended : status;
}

#endif
