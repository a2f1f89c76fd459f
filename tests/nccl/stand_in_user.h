/* The ranks of tests/nccl/stand_in_user.c: threads of this process and of others, what they share,
 * and the CUDA driver that they use. */
#ifndef STAND_IN_USER_H
#define STAND_IN_USER_H

#include <stdatomic.h>
#include <stdint.h>

#include "stand_in/stand_in.h"
#include "used_driver.h"

enum { FLAGS = 8, MOST_IDS = 3 };

/* Of all processes. The first one makes the ids: over TCP ranks meet where it listens. */
struct world {
    ncclUniqueId ids[MOST_IDS];
    atomic_int ids_made;
    atomic_int checks, failures;
    atomic_uint passed; /* collectives and messages that NCCL got; all-gathers are not counted */
    atomic_int flags[FLAGS];
};

struct rank {
    int rank, ranks, processes;
    CUstream stream;
    ncclComm_t comm; /* NULL in a bare case */
};

struct test {
    const char *name;
    void (*run)(struct rank *rank);
    int bare; /* it makes and ends communicators itself */
};

extern struct world *world;

/* Counts a check; prints those that fail. */
#define EXPECT(got, want) expect((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
int expect(long long got, long long want, const char *what, const char *file, int line);

void flag_set(int flag);
void flag_wait(int flag, int value);      /* until it has been set that often */
ncclResult_t wait_ready(ncclComm_t comm); /* while it is in progress */
void sync_stream(const struct rank *rank);
int over_tcp(void);                      /* STAND_IN_WIRE=tcp */
int count_sockets(void);                 /* of this process */
int settles(int (*count)(void), int to); /* waits until it is that, and returns it */
void *room(size_t bytes);                /* device memory, zeroed */
void room_free(void *ptr);
long long ones(ncclComm_t comm, CUstream stream); /* the sum of 1 of each rank */

/* Each test is a function test_NAME. BARE ones make and end communicators themselves. */
#define STAND_IN_TESTS(X)                                                                          \
    X(types, 0) /* stand_in_data.c */                                                              \
    X(collectives, 0)                                                                              \
    X(groups, 0)                                                                                   \
    X(one_thread, 1)                                                                               \
    X(capture, 0)                                                                                  \
    X(context, 0) /* stand_in_served.c */                                                          \
    X(pairs, 0)                                                                                    \
    X(crossed, 0)                                                                                  \
    X(mixed, 0)                                                                                    \
    X(failed, 0)                                                                                   \
    X(premul, 0)                                                                                   \
    X(configured, 0)                                                                               \
    X(order, 0)                                                                                    \
    X(windows, 0) /* stand_in_lives.c */                                                           \
    X(freed, 0)                                                                                    \
    X(left_out, 0)                                                                                 \
    X(again, 0)                                                                                    \
    X(early, 1)                                                                                    \
    X(undestroyed, 1)                                                                              \
    X(sockets, 1) /* stand_in_wires.c */                                                           \
    X(ids, 1)                                                                                      \
    X(revoked, 1)                                                                                  \
    X(stopped, 1)                                                                                  \
    X(children, 0) /* stand_in_states.c */                                                         \
    X(growth, 1)                                                                                   \
    X(not_blocking, 1)                                                                             \
    X(registration, 0)                                                                             \
    X(arguments, 0)                                                                                \
    X(abort, 1)                                                                                    \
    X(revoke, 0)                                                                                   \
    X(killed, 1)                                                                                   \
    X(late, 1)                                                                                     \
    X(absent, 1)                                                                                   \
    X(invalid, 0)                                                                                  \
    X(mismatch, 1)                                                                                 \
    X(fault, 0)
#define DECLARE_TEST(name, bare) void test_##name(struct rank *rank);
STAND_IN_TESTS(DECLARE_TEST)
#undef DECLARE_TEST

#endif
