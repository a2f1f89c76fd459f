/* The wire between ranks of one host: a segment of POSIX shared memory with a seat for each rank
 * and, in each plane, a ring of bytes from each rank to each. A segment of zeroes is one that
 * nobody has entered, so whoever comes first makes it. The last to come removes its name.
 *
 * The ranks of one process share one mapping and one descriptor. A rank locks its byte of the file;
 * the system unlocks it when the process dies, and the others see that. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inside.h"

enum { RING_BYTES = 32768 };

struct ring {
    _Atomic uint64_t written, read; /* bytes so far */
    char data[RING_BYTES];
};

struct shared {
    atomic_int ranks, arrived, complete;
    struct {
        atomic_int seat, process;
    } seats[MOST_RANKS];
    struct ring rings[]; /* by plane, from, to */
};

struct segment {
    struct wire wire; /* comes first */
    struct segment *next;
    struct shared *shared;
    char name[80];
    size_t bytes;
    int file, users, ranks;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct segment *segments; /* of this process */

static struct segment *segment_of(struct wire *wire)
{
    return (struct segment *)(void *)wire;
}

static ncclResult_t segment_open(void)
{
    return ncclSuccess;
}

static void segment_close(void)
{
}

static struct flock byte_of(int rank)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static ncclResult_t map(struct segment *segment)
{
    struct stat status;

    segment->file = shm_open(segment->name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (segment->file < 0 || fstat(segment->file, &status) != 0 ||
        ((size_t)status.st_size < segment->bytes &&
         ftruncate(segment->file, (off_t)segment->bytes) != 0))
        return refuse(ncclSystemError, "shm_open(%s): %s", segment->name, strerror(errno));
    segment->shared = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->file,
                           0);
    if (segment->shared != MAP_FAILED)
        return ncclSuccess;
    segment->shared = NULL;
    return refuse(ncclSystemError, "mmap(%s): %s", segment->name, strerror(errno));
}

static void unmap(struct segment *segment)
{
    if (segment->shared != NULL)
        munmap(segment->shared, segment->bytes);
    if (segment->file >= 0)
        close(segment->file);
    free(segment);
}

/* The process's segment of that name, with one more user. The mutex is held. */
static ncclResult_t enter(const char *name, int ranks, struct segment **entered)
{
    struct segment *segment = segments;
    const char *first = getenv("STAND_IN_NAME");
    char path[sizeof segment->name];
    ncclResult_t result;

    snprintf(path, sizeof path, "/stand-in-%.10s%.60s", first != NULL ? first : "", name);
    while (segment != NULL && (strcmp(segment->name, path) != 0 || segment->ranks != ranks ||
                               atomic_load(&segment->shared->complete)))
        segment = segment->next;
    if (segment == NULL) {
        segment = calloc(1, sizeof *segment);
        if (segment == NULL)
            return refuse(ncclSystemError, "out of memory");
        memcpy(segment->name, path, sizeof path);
        segment->wire.kind = &segment_kind;
        segment->ranks = ranks;
        segment->bytes = sizeof(struct shared) +
                         sizeof(struct ring) * PLANES * (size_t)ranks * (size_t)ranks;
        result = map(segment);
        if (result != ncclSuccess) {
            unmap(segment);
            return result;
        }
        segment->next = segments;
        segments = segment;
    }
    segment->users++;
    *entered = segment;
    return ncclSuccess;
}

static void segment_release(struct wire *wire)
{
    struct segment *segment = segment_of(wire), **at = &segments;

    pthread_mutex_lock(&mutex);
    if (--segment->users == 0) {
        while (*at != segment)
            at = &(*at)->next;
        *at = segment->next;
        unmap(segment);
    }
    pthread_mutex_unlock(&mutex);
}

static ncclResult_t sit_down(struct segment *segment, int rank)
{
    struct shared *shared = segment->shared;
    struct flock lock = byte_of(rank);
    int ranks = 0, seat = SEAT_EMPTY;

    if (!atomic_compare_exchange_strong(&shared->ranks, &ranks, segment->ranks) &&
        ranks != segment->ranks)
        return refuse(ncclInvalidUsage, "%d ranks here, %d elsewhere", segment->ranks, ranks);
    if (fcntl(segment->file, F_OFD_SETLK, &lock) != 0 ||
        !atomic_compare_exchange_strong(&shared->seats[rank].seat, &seat, SEAT_TAKEN))
        return refuse(ncclInvalidUsage, "rank %d has come twice", rank);
    atomic_store(&shared->seats[rank].process, getpid());
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == segment->ranks) {
        shm_unlink(segment->name);
        atomic_store(&shared->complete, 1);
    }
    return ncclSuccess;
}

static void segment_mark(struct wire *wire, int rank, enum seat seat)
{
    atomic_int *at = &segment_of(wire)->shared->seats[rank].seat;
    int now = atomic_load(at);

    while (now < (int)seat && !atomic_compare_exchange_weak(at, &now, (int)seat))
        ;
}

static int segment_is_lost(struct wire *wire, int rank, enum plane plane)
{
    struct segment *segment = segment_of(wire);
    const int seat = atomic_load(&segment->shared->seats[rank].seat);
    const int process = atomic_load(&segment->shared->seats[rank].process);
    struct flock lock = byte_of(rank);

    if (seat == SEAT_LEFT || seat == SEAT_FAILED)
        return 1;
    if (seat == SEAT_REVOKED && plane != PLANE_CONTROL)
        return 1;
    return process != 0 && process != getpid() && fcntl(segment->file, F_OFD_GETLK, &lock) == 0 &&
           lock.l_type == F_UNLCK;
}

static ncclResult_t wait_for_all(struct segment *segment, atomic_int *stop)
{
    struct wait wait = wait_begin();

    while (!atomic_load(&segment->shared->complete)) {
        if (atomic_load(stop))
            return refuse(ncclInternalError, "aborted while ranks meet");
        for (int r = 0; r < segment->ranks; r++)
            if (segment_is_lost(&segment->wire, r, PLANE_COLLECTIVE) &&
                !atomic_load(&segment->shared->complete)) /* it may have come, and left again */
                return refuse(ncclRemoteError, "rank %d is gone while ranks meet", r);
        if (!wait_more(&wait))
            return refuse(ncclSystemError, "only %d of %d ranks have come",
                          atomic_load(&segment->shared->arrived), segment->ranks);
    }
    return ncclSuccess;
}

static ncclResult_t segment_join(struct ncclComm *comm, struct wire **wire)
{
    struct segment *entered = NULL;
    ncclResult_t result;

    pthread_mutex_lock(&mutex);
    result = enter(comm->name, comm->ranks, &entered);
    pthread_mutex_unlock(&mutex);
    if (result != ncclSuccess)
        return result;
    result = sit_down(entered, comm->rank);
    if (result == ncclSuccess) {
        result = wait_for_all(entered, &comm->stop);
        if (result == ncclSuccess) {
            *wire = &entered->wire;
            return ncclSuccess;
        }
        segment_mark(&entered->wire, comm->rank, SEAT_FAILED);
        shm_unlink(entered->name);
    }
    segment_release(&entered->wire);
    return result;
}

/* ---- rings: one writer and one reader each ---- */

static struct ring *ring_of(struct segment *segment, enum plane plane, int from, int to)
{
    const int ranks = segment->ranks;

    return &segment->shared->rings[((int)plane * ranks + from) * ranks + to];
}

/* How many of `bytes` at most lie in one piece from position `at` on. */
static size_t piece(uint64_t at, uint64_t there, size_t bytes)
{
    const size_t to_end = RING_BYTES - (size_t)(at % RING_BYTES);
    const size_t most = there < to_end ? (size_t)there : to_end;

    return bytes < most ? bytes : most;
}

static size_t segment_put(struct wire *wire, enum plane plane, int from, int to, const void *data,
                          size_t bytes)
{
    struct ring *ring = ring_of(segment_of(wire), plane, from, to);
    const uint64_t at = atomic_load_explicit(&ring->written, memory_order_relaxed);
    const size_t some = piece(at, RING_BYTES - (at - atomic_load(&ring->read)), bytes);

    if (some > 0)
        copy_input(ring->data + at % RING_BYTES, data, some);
    atomic_store(&ring->written, at + some);
    return some;
}

static size_t segment_get(struct wire *wire, enum plane plane, int from, int to, void *data,
                          size_t bytes)
{
    struct ring *ring = ring_of(segment_of(wire), plane, from, to);
    const uint64_t at = atomic_load_explicit(&ring->read, memory_order_relaxed);
    const size_t some = piece(at, atomic_load(&ring->written) - at, bytes);

    if (some > 0)
        memcpy(data, ring->data + at % RING_BYTES, some);
    atomic_store(&ring->read, at + some);
    return some;
}

const struct wire_kind segment_kind = {
    .open = segment_open,
    .close = segment_close,
    .join = segment_join,
    .release = segment_release,
    .mark = segment_mark,
    .is_lost = segment_is_lost,
    .put = segment_put,
    .get = segment_get,
};
