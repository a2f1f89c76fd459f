/* The ranks of tests/nccl/scenes.c: threads of this process and of others, what they share, and the
 * CUDA driver that they use. */
#ifndef SCENES_H
#define SCENES_H

#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "engine.h"
#include "stand_in/stand_in.h"
#include "used_driver.h"

enum { FLAGS = 8, MOST_IDS = 64, DEVICES = 4 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

/* Of all processes. */
struct world {
    ncclUniqueId ids[MOST_IDS];
    atomic_int checks, failures;
    atomic_int flags[FLAGS];
    atomic_int arrived; /* at meet() */
};

struct rank {
    int rank, ranks, processes;
    int thread; /* of its process: the first one is 0 */
    CUdevice device;
    CUstream stream;
};

extern struct world *world;

/* Counts a check; prints those that fail. */
#define EXPECT(got, want) expect((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
int expect(long long got, long long want, const char *what, const char *file, int line);

/* How many calls NCCL got. Over several hosts it has those of symwin too, and nobody can tell. */
#define EXPECT_PASSED(got, want)                                                                   \
    do {                                                                                           \
        if (!is_set("STAND_IN_HOSTS"))                                                             \
            EXPECT(got, want);                                                                     \
    } while (0)

long long now_us(void);
int is_set(const char *variable);

/* ---- between ranks ---- */

void flag_set(int flag);
void flag_wait(int flag, int value); /* until it has been set that often */
void meet(const struct rank *rank);  /* all ranks come here */

/* ---- calls ---- */

ncclComm_t birth(const struct rank *rank, int id); /* of all ranks */
ncclResult_t state(ncclComm_t comm);
unsigned calls(int function); /* how many have reached NCCL in this process */
/* The sum of what all ranks of `comm` give; -1 if there is none. */
long long sum(const struct rank *rank, ncclComm_t comm, long long mine);
ncclCollConfig_t one_block(void); /* that NCCL's kernel has at most one */
int drains(CUstream stream);      /* within some seconds */
void *room(size_t bytes);         /* device memory, zeroed */
void room_free(void *ptr);

/* ---- what a process has ---- */

struct left {
    int fds, threads, maps;
    size_t used[DEVICES];        /* device memory, without what pools keep */
    size_t streams, host_blocks; /* 0 without the engine */
};
struct left left_now(void);
struct left left_before(void); /* the least in some milliseconds */
/* That there is as much as before; for a while it may be more. */
void left_is(const struct left *before, const char *scene);
size_t used_on(const struct rank *rank); /* device memory */
/* Of the libsymwin.so of tests/nccl/emulated; NULL: it is another one. */
const struct fake_engine *engine_find(void);
/* Lines of symwin_dump() that begin with the word, and have the pair if it is no NULL. */
int dumped(const char *word, const char *pair);

/* Each scene is a function scene_NAME. */
#define SCENES(X)                                                                                  \
    X(many) /* scenes_life.c */                                                                    \
    X(memory)                                                                                      \
    X(warm)                                                                                        \
    X(final)                                                                                       \
    X(blocking)                                                                                    \
    X(coming_window)                                                                               \
    X(limits)                                                                                      \
    X(report)                                                                                      \
    X(cost)                                                                                        \
    X(abort) /* scenes_abort.c */                                                                  \
    X(opening)                                                                                     \
    X(freed)                                                                                       \
    X(idle)                                                                                        \
    X(order) /* scenes_order.c */                                                                  \
    X(captured_order)                                                                              \
    X(all_at_once) /* scenes_groups.c */                                                           \
    X(one_by_one)                                                                                  \
    X(births)                                                                                      \
    X(groups)                                                                                      \
    X(together)                                                                                    \
    X(configured_first)                                                                            \
    X(windows)                                                                                     \
    X(send_ahead)                                                                                  \
    X(own_streams)                                                                                 \
    X(errors) /* scenes_errors.c */                                                                \
    X(driver)                                                                                      \
    X(two_streams)                                                                                 \
    X(alone) /* scenes_alone.c */                                                                  \
    X(lost_window)                                                                                 \
    X(lost_call)                                                                                   \
    X(late) /* scenes_meet.c */                                                                    \
    X(just_in_time)                                                                                \
    X(deaf)                                                                                        \
    X(aborted_later)                                                                               \
    X(captured_end) /* scenes_odd.c */                                                             \
    X(suspended_group)                                                                             \
    X(ended_group)                                                                                 \
    X(askers)                                                                                      \
    X(unopened)                                                                                    \
    X(without) /* scenes_without.c */
#define DECLARE_SCENE(name) void scene_##name(struct rank *rank);
SCENES(DECLARE_SCENE)
#undef DECLARE_SCENE

/* The program as the rank without the library; its exit status. */
int without_main(const char *id, size_t bytes);

#endif
