/* What the rules on multicast stand on: an object with its devices and their memory, and calls that
 * block. */
#ifndef SYMWIN_TESTS_CONFORMANCE_TEAM_H
#define SYMWIN_TESTS_CONFORMANCE_TEAM_H

#include <stdatomic.h>

#include "conformance.h"

#define MEMBERS 3

/* After conf_start(). Returns multicast's minimum granularity, of which memory's is a divisor. */
size_t conf_team_start(void);

/* A multicast object of MEMBERS devices and two units, and a unit's memory on each. */
struct conf_team {
    CUmemGenericAllocationHandle mc;
    struct conf_block blocks[MEMBERS];
};

CUmulticastObjectProp conf_mc_prop(unsigned devices, size_t size, unsigned long long types);
CUmemGenericAllocationHandle conf_mc_create(unsigned long long types); /* a team's, no device yet */

/* All devices are added, the last one first; nothing is bound. */
void conf_team_make(struct conf_team *team, unsigned types);
void conf_team_bind(struct conf_team *team);
void conf_team_unbind(struct conf_team *team);
void conf_team_drop(struct conf_team *team);

/* ---- calls that block ------------------------------------------------------------------------ */

enum conf_call_kind { CALL_MAP, CALL_BIND_MEM, CALL_BIND_ADDR };

/* A call on a thread of its own: map of `mc` at `va`, bind of `mem` or of the memory at `va`. */
struct conf_call {
    enum conf_call_kind kind;
    CUmemGenericAllocationHandle mc, mem;
    CUdeviceptr va;
    pthread_t thread; /* the caller's to join */
    CUresult result;
    atomic_int done;
};

/* Starts it and gives it time to come back. */
void conf_call_start(struct conf_call *call);

/* The case of a call while a device is missing: it does not come back; with the last device added
 * it succeeds. A driver that does not block is found; one that is slow is not blamed. */
void conf_must_block(int rule, const char *what, struct conf_call *call);

#endif
