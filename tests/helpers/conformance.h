/* The driver's rules as test cases that run on either driver.
 *
 * A rule has a number, and a case in which the driver accepts a call and one in which it refuses.
 * Every case is one TAP line ("rule 27 refused: map over a mapping") and, where
 * SYMWIN_CONFORMANCE_CSV names a file, one line there: rule, case, expected, got. Where a rule has
 * only one side, conf_none() says why. conf_done() checks that every rule had both.
 *
 * The cases call sw_drv only and query every size, so that they mean the same on the real driver.
 * Where a call that should be refused succeeds, the case undoes it: one wrong expectation must not
 * affect later cases. Rules on multicast never run on real hardware.
 *
 * conformance.c has the helpers; the rules are in conformance_create.c, conformance_map.c and
 * conformance_share.c, those on multicast in tests/emu/test_emu_multicast.c. One thread, unless
 * stated.
 */
#ifndef SYMWIN_TESTS_CONFORMANCE_H
#define SYMWIN_TESTS_CONFORMANCE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "src/driver/driver.h"
#include "tap.h"

#define CONF_RULES 86

#define OK CUDA_SUCCESS
#define IV CUDA_ERROR_INVALID_VALUE
#define OOM CUDA_ERROR_OUT_OF_MEMORY
#define NI CUDA_ERROR_NOT_INITIALIZED
#define ID CUDA_ERROR_INVALID_DEVICE
#define IS CUDA_ERROR_ILLEGAL_STATE
#define NP CUDA_ERROR_NOT_PERMITTED
#define NS CUDA_ERROR_NOT_SUPPORTED
#define SNR CUDA_ERROR_SYSTEM_NOT_READY
#define UNKNOWN CUDA_ERROR_UNKNOWN

/* The answers that a rule allows. */
#define CONF_END ((CUresult)-1)
#define WANT(...) ((const CUresult[]){__VA_ARGS__, CONF_END})

enum conf_side { ACCEPTED, REFUSED };

/* The machine under test; constant after conf_start(). */
struct conf_world {
    int emulated;
    int devices;
    CUdevice device; /* its primary context is current */
    CUdevice peer;   /* another one, that can reach `device` and is reached by it; -1: none */
    size_t page;     /* the host's */
    size_t granule;  /* minimum granularity of memory on `device` that can be exported as an fd */
};
extern struct conf_world conf;

/* ---- cases ----------------------------------------------------------------------------------- */

/* Loads the driver, makes the first device's context current. */
void conf_start(void);

/* For programs about rules: begins the CSV, if one was asked for. */
void conf_open_csv(void);

/* The last statement of main. Every rule that is `mine` must have had both sides; NULL: the program
 * is about no rules. */
int conf_done(int (*mine)(int rule));

/* Runs cases that belong together; the emulated driver must hold the same objects, and the process
 * the same descriptors, before and after. */
void conf_group(const char *name, void (*run)(void));

void conf_check(int rule, enum conf_side side, const char *text, CUresult got,
                const CUresult *want);
void conf_accepted(int rule, const char *text, CUresult got);
void conf_refused(int rule, const char *text, CUresult got, const CUresult *want);

/* The emulated driver refuses the call with INVALID_VALUE on purpose, to find the mistake. The real
 * driver was seen to accept it. */
void conf_stricter(int rule, const char *text, CUresult got);

/* A case that a value decides, not a status. */
void conf_value(int rule, enum conf_side side, const char *text, long long got, long long want);

/* The side does not exist, or not on this machine. */
void conf_none(int rule, enum conf_side side, const char *why);
void conf_skip(int rule, enum conf_side side, const char *why);

/* For steps that a case needs: end the program where they fail. conf_bail() is for system calls and
 * prints errno. */
void conf_must(CUresult result, const char *what);
_Noreturn void conf_bail(const char *what);

/* ---- memory ---------------------------------------------------------------------------------- */

CUmemAllocationProp conf_prop(CUmemLocationType type, int id, unsigned handle_types);
size_t conf_granularity(const CUmemAllocationProp *prop);

/* An allocation on a device, with its only handle, mapped for that device to read and write. */
struct conf_block {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr va;
    size_t bytes;
};
void conf_block_make(struct conf_block *block, CUdevice device, size_t bytes, unsigned types);
void conf_block_drop(struct conf_block *block);

/* Reserves addresses and maps the handle there for conf.device; conf_unmap() undoes both. */
CUdeviceptr conf_map(CUmemGenericAllocationHandle handle, size_t bytes);
void conf_unmap(CUdeviceptr va, size_t bytes);

CUmemGenericAllocationHandle conf_create(CUdevice device, size_t bytes, unsigned types);
CUdeviceptr conf_reserve(size_t bytes);
CUresult conf_access(CUdeviceptr va, size_t bytes, CUdevice device, CUmemAccess_flags flags);
long long conf_rights(CUdeviceptr va, CUdevice device); /* what cuMemGetAccess says; -1: an error */

/* The call alone: what it made is released at once. */
CUresult conf_try_reserve(size_t size, size_t alignment, CUdeviceptr addr,
                          unsigned long long flags);
CUresult conf_try_create(size_t size, const CUmemAllocationProp *prop, unsigned long long flags);
CUresult conf_try_map(CUdeviceptr ptr, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult conf_try_import(void *shareable, CUmemAllocationHandleType type);

CUresult conf_poke(CUdeviceptr to, uint32_t value);    /* cuMemcpyHtoD of one word */
CUresult conf_peek(CUdeviceptr from, uint32_t *value); /* cuMemcpyDtoH of one word */
long long conf_word(CUdeviceptr from);                 /* the word there; -1: an error */

/* A descriptor of the allocation, the caller's to close. */
int conf_export_fd(CUmemGenericAllocationHandle handle);
CUresult conf_import_fd(CUmemGenericAllocationHandle *handle, int fd);

/* ---- the emulated machine -------------------------------------------------------------------- */

/* First thing in a program about the emulated driver: selects this driver with `devices` devices
 * and all other settings at their defaults, whatever the environment says. Children inherit that.
 * Then calls conf_start(). */
void conf_emulate(const char *devices);

/* Makes the emulated driver a machine with or without a fabric and multicast. It releases the
 * primary context and retains it again, so no other object may live. */
void conf_machine(int fabric, int multicast);

/* The same for any machine. */
struct sw_emu_machine;
void conf_configure(const struct sw_emu_machine *machine);

/* ---- child processes ------------------------------------------------------------------------- */

/* This program again as `argv0 mode arg`, with `env` ("NAME=value", ended by NULL; may be NULL)
 * over this environment. Its stdout and stderr go to `output`, not to the test's own. */
struct conf_child {
    pid_t pid;
    int output; /* a memfd, owned */
    int status; /* waitpid's, after conf_child_wait() */
    char text[1024];
};
void conf_child_start(struct conf_child *child, const char *mode, const char *arg,
                      const char *const *env);
void conf_child_wait(struct conf_child *child);

/* Start and wait; the exit status, or minus the signal that ended it. */
int conf_child_run(struct conf_child *child, const char *mode, const char *arg,
                   const char *const *env);

/* First thing in a child that will abort: no core file of an arena of terabytes. */
void conf_child_no_core(void);

/* ---- multicast ------------------------------------------------------------------------------- */

#define CONF_MEMBERS 3

/* After conf_start(). Returns multicast's minimum granularity, of which memory's is a divisor. */
size_t conf_team_start(void);

/* A multicast object of CONF_MEMBERS devices and two units, and a unit of memory on each device. */
struct conf_team {
    CUmemGenericAllocationHandle mc;
    struct conf_block blocks[CONF_MEMBERS];
};

CUmulticastObjectProp conf_mc_prop(unsigned devices, size_t size, unsigned long long types);
CUmemGenericAllocationHandle conf_mc_create(unsigned long long types); /* without devices yet */

/* All devices are added, the last one first; nothing is bound. */
void conf_team_make(struct conf_team *team, unsigned types);
void conf_team_bind(struct conf_team *team);
void conf_team_unbind(struct conf_team *team);
void conf_team_drop(struct conf_team *team);

/* Calls that block. */
enum conf_call_kind { CALL_MAP, CALL_BIND_MEM, CALL_BIND_ADDR };

/* A call on its own thread: map of `mc` at `va`, bind of `mem` or of the memory at `va`. */
struct conf_call {
    enum conf_call_kind kind;
    CUmemGenericAllocationHandle mc, mem;
    CUdeviceptr va;
    pthread_t thread; /* the caller's to join */
    CUresult result;
    atomic_int done;
};

/* Starts the call and gives it time to return. */
void conf_call_start(struct conf_call *call);

/* The case of a call while a device is missing: it does not return until the last device is added,
 * and then succeeds. A driver that does not block fails the case; a slow driver does not. */
void conf_must_block(int rule, const char *what, struct conf_call *call);

/* ---- sockets to child processes -------------------------------------------------------------- */

/* All but the first return 0, or -1 if the other end closed. wire_receive_fd() returns -1 if no
 * descriptor came. */
int wire_receive_fd(int from);
int wire_send_fd(int to, int fd);
int wire_send(int to, const void *data, size_t bytes);
int wire_receive(int from, void *data, size_t bytes);

/* Sends and receives a byte: one process waits for another. */
int wire_tell(int to);
int wire_wait_for(int from);

/* Starts a child as `mode`, with the number of its end of a socket as the argument. Returns the
 * other end. */
int wire_child(struct conf_child *process, const char *mode, const char *const *env);

/* ---- the rules ------------------------------------------------------------------------------- */

void conf_rules_create(void); /* 1 to 25: addresses, allocations, references */
void conf_rules_map(void);    /* 26 to 50: mappings and access rights */
void conf_rules_share(void);  /* 51 to 65, 85, 86: export, import, queries */

#endif
