/* The life of a communicator's ranks, with a fault in it: what test_system_faults sweeps. */
#ifndef SYMWIN_TESTS_FAULT_LIFE_H
#define SYMWIN_TESTS_FAULT_LIFE_H

#include "processes.h"
#include "steps.h"

#if defined(__SANITIZE_THREAD__)
enum { SLOWER = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 8 };
#else
enum { SLOWER = 1 };
#endif

enum { RANKS = 4 };

enum stage {
    ID,
    CREATE,
    ALLOC,
    REGISTER,
    REDUCE,
    CHANNEL,
    CONNECT,
    AGAIN,
    DEREGISTER,
    ENDED,
    STAGES
};

enum kind { NOTHING, SYSTEM, INTERRUPTION, DRIVER, KINDS };

struct plan {
    enum kind kind;
    int victim;  /* a process; of the driver's faults a rank */
    int variant; /* of the system's faults; of the driver's an index of codes[] */
    int persistent;
    CUresult code; /* of the driver's faults */
    long nth;
};

/* In shared memory, beside struct processes. */
struct board {
    int processes;
    const char *hosts;
    struct plan plan;
    atomic_int round, done, quit;
    symwin_unique_id id;
    atomic_int id_made; /* -1: it could not be made */
    char hit[32];       /* the call that failed first, "": none */
    int hit_rank;       /* whose thread made it, -1: the service thread */
    struct {
        int objects, fds, threads; /* left behind */
    } left[RANKS];
};

static inline struct board *board_of(const struct processes *p)
{
    return p->arg;
}

/* A process of the ranks process, process + board.processes, ...: one life a round, until board.quit. */
void fault_life(struct processes *p, int process);

#endif
