/* The emulated driver as the library and the tests see it: its entry points, its kernel images, and
 * functions by which tests count live objects and make calls fail. emu/README.md describes how it
 * works.
 *
 * Threads: all functions may be called from any thread; fault injection is per thread.
 */
#ifndef SYMWIN_EMU_H
#define SYMWIN_EMU_H

#include "src/driver/cuda_abi.h"
#include "src/driver/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The entry points themselves; sw_emu_<name> has the driver's signature of <name>. */
#define SW_EMU_DECLARE(name, symbol, version, need, params) CUresult sw_emu_##name params;
SW_DRIVER_LIST(SW_EMU_DECLARE)
#undef SW_EMU_DECLARE

/* The whole table, ready to be copied into sw_drv. */
extern const struct sw_driver sw_emu_driver;

/* ---- kernel images: what cuLibraryLoadData takes on this driver ------------------------------ */

#define SW_EMU_IMAGE_MAGIC 0x756d6577796d7773ull /* "swymwemu" */

/* A kernel takes exactly one parameter, a struct passed by value. `run` is called once per CUDA
 * thread, with a pointer to the launch's own copy of the struct. */
struct sw_emu_kernel {
    const char *name;
    void (*run)(const void *params);
    size_t params_bytes;
    unsigned most_threads; /* of a block, as in __launch_bounds__; 0: the device's limit */
};

struct sw_emu_image {
    uint64_t magic; /* SW_EMU_IMAGE_MAGIC */
    size_t kernel_count;
    const struct sw_emu_kernel *kernels;
};

/* ---- live objects ---------------------------------------------------------------------------- */

/* X(kind, member of the counts, name) */
#define SW_EMU_LIVE_LIST(X)                                                                        \
    X(HANDLE_REF, handle_refs, "handle reference") /* from Create, Import, Retain */               \
    X(ALLOCATION, allocations, "allocation")       /* physical */                                  \
    X(RESERVATION, reservations, "reservation")    /* of addresses */                              \
    X(MAPPING, mappings, "mapping")                                                                \
    X(MULTICAST, multicasts, "multicast object")                                                   \
    X(BIND, binds, "multicast binding")                                                            \
    X(DEVICE_BLOCK, device_blocks, "device block") /* cuMemAlloc */                                \
    X(HOST_BLOCK, host_blocks, "host block")       /* cuMemHostAlloc */                            \
    X(CONTEXT, contexts, "context reference")      /* to primary contexts */                       \
    X(STREAM, streams, "stream")                                                                   \
    X(EVENT, events, "event")                                                                      \
    X(LIBRARY, libraries, "library")                                                               \
    X(GRAPH, graphs, "graph")                                                                      \
    X(GRAPH_EXEC, graph_execs, "executable graph")                                                 \
    X(USER_OBJECT, user_objects, "user object")                                                    \
    X(GREEN, green_contexts, "green context")

struct sw_emu_live {
#define SW_EMU_LIVE_MEMBER(kind, member, name) size_t member;
    SW_EMU_LIVE_LIST(SW_EMU_LIVE_MEMBER)
};

void sw_emu_live_count(struct sw_emu_live *live);
/* The sum of all the counts above; 0: nothing leaked. */
size_t sw_emu_live_objects(void);

/* Writes one line per live object to `fd`. A failed leak check prints this. */
void sw_emu_live_print(int fd);

/* ---- fault injection ------------------------------------------------------------------------- */

/* From now on, this thread's `nth` driver call (1 is the next) returns `code` without doing
 * anything; with `persistent`, so does every later call. nth 0 switches injection off. Calls that
 * only free (Release, Unmap, AddressFree, Unbind, *Destroy, *Free, Unload, PopCurrent, SetCurrent,
 * PrimaryCtxRelease) and error-text calls are neither counted nor failed unless
 * `including_teardown`: a persistent fault there would always leak. */
void sw_emu_fail_nth(unsigned nth, CUresult code, int persistent, int including_teardown);

/* For a thread that makes calls for another one: what is counted of a thread, and the fault that is
 * to come. `bytes` is 32 or more. */
void sw_emu_thread_get(void *out, size_t bytes);
void sw_emu_thread_set(const void *in, size_t bytes);

/* The number of counted calls of this thread since sw_emu_fail_nth(), and whether the fault
 * occurred. */
unsigned sw_emu_calls(void);
int sw_emu_fault_fired(void);
const char *sw_emu_fault_name(void); /* the entry point that failed; NULL: none */

/* Faults of the fabric: from now on calls of that kind for the device stall for that time, and then
 * give the answer; with CUDA_SUCCESS they go on as usual. Of several faults that fit a call, the
 * first counts. OUT_OF_MEMORY: more than 8. NULL: no faults any more, SYMWIN_EMU_MULTICAST_FAULT's
 * included, which has the same members (emu/README.md). For all threads. */
enum sw_emu_fault_call {
    SW_EMU_FAULT_ADD,   /* cuMulticastAddDevice */
    SW_EMU_FAULT_BIND,  /* all cuMulticastBind*, where they would succeed */
    SW_EMU_FAULT_IMPORT /* of a multicast object; the device is the current context's */
};
struct sw_emu_multicast_fault {
    enum sw_emu_fault_call call;
    CUresult answer;
    int device;   /* -1: any */
    int times;    /* -1: always */
    int stall_ms; /* -1: until sw_emu_multicast_resume() */
};
CUresult sw_emu_multicast_fail(const struct sw_emu_multicast_fault *fault);

/* How many calls of this process stall now; and they all go on. */
int sw_emu_multicast_stalled(void);
void sw_emu_multicast_resume(void);

/* ---- the emulated machine -------------------------------------------------------------------- */

/* cuInit reads these from the environment. Tests may set them before cuInit, or later while no
 * object is live. */
struct sw_emu_machine {
    int devices;      /* SYMWIN_EMU_DEVICES, default 8, at most 128 */
    size_t mem_bytes; /* SYMWIN_EMU_MEM per device, default 8 GiB; suffixes K M G */
    /* SYMWIN_EMU_FABRIC: 0: not supported. 1 (default): the attribute says yes, but create answers
     * NOT_PERMITTED, as on a host without an IMEX channel. 2: supported. */
    int fabric;
    int multicast; /* SYMWIN_EMU_MULTICAST: 0: not supported; 1 (default): supported */
    /* SYMWIN_EMU_OLD: the number of devices, counted from the last one, with compute capability 8.0
     * and no multicast; the others have 9.0. Default 0. */
    int old;
    int strangers; /* SYMWIN_EMU_STRANGERS: 1: no peer access; default 0 */
    /* SYMWIN_EMU_MULTICAST_UNIT: granularity of multicast objects, a multiple of 2 MiB; 0
     * means 2 MiB. */
    size_t multicast_unit;
    /* SYMWIN_EMU_MULTICAST_RECOMMENDED: the recommended granularity, a multiple of 2 MiB, which
     * nothing enforces; 0 means 512 MiB. */
    size_t multicast_recommended;
    /* SYMWIN_EMU_MULTICAST_SLOTS: how many multicast objects with bindings there can be; 0 means
     * 128, -1 none. */
    int multicast_slots;
    /* SYMWIN_EMU_MULTICAST_ALONE: 1: a mapping of a multicast object gives access to one device
     * only; default 0. */
    int multicast_alone;
    /* SYMWIN_EMU_MACHINE: processes of one user with the same number share these slots; 0
     * (default): each has its own. */
    int machine;
};

/* ILLEGAL_STATE if any object is live. */
CUresult sw_emu_configure(const struct sw_emu_machine *machine);
#ifndef __cplusplus /* C++: the function would hide the struct */
void sw_emu_machine(struct sw_emu_machine *machine);
#endif

/* ---- delays ---------------------------------------------------------------------------------- */

/* Delays threads of kernels compiled with SYMWIN_RACE before some of their memory accesses. Set it
 * only while no such kernel runs. */
struct sw_emu_race {
    uint64_t seed;
    unsigned one_in;         /* one in so many accesses is delayed; 0: none */
    unsigned most_ns;        /* longest delay, less than a second */
    int device, block, warp; /* only threads of these; -1: any */
};
void sw_emu_race_set(const struct sw_emu_race *race);

/* From now on, 1: a kernel that uses 16 bytes both by their own address and by a multicast address
 * is killed with LAUNCH_FAILED, if it, or another kernel that had not ended when it began, has
 * stored to them by the one, and neither has made an alias fence before it uses the other
 * (alias.c). SYMWIN_EMU_ALIAS sets it too. Call it only while no kernel runs. -1: no memory. */
int sw_emu_alias_watch(int on);

/* A driver may call the callbacks of user objects late (docs/hardware.md). While `late` is set for
 * a device, callbacks of user objects created for it are held back. sw_emu_callbacks_come() then
 * runs one in `one_in` of them, chosen by the seed, of one device or of all (-1). */
void sw_emu_callbacks_late(int device, int late);
void sw_emu_callbacks_come(int device, uint64_t seed, unsigned one_in);

/* Whether cuMemUnmap waits for the devices that have access (1, the default). An H200's driver does
 * not wait (docs/hardware.md). With 0, a kernel that still uses the unmapped memory is killed with
 * ILLEGAL_ADDRESS. */
void sw_emu_unmap_waits(int waits);

/* Under ThreadSanitizer, the stack trace of a kernel's access contains functions emu_digit_N. Read
 * from the outermost to the innermost, they give the CUDA thread in octal (trail.c). */
enum {
    EMU_TRAIL_DEVICE = 3,
    EMU_TRAIL_BLOCK = 3,
    EMU_TRAIL_THREAD = 4,
    EMU_TRAIL_DIGITS = EMU_TRAIL_DEVICE + EMU_TRAIL_BLOCK + EMU_TRAIL_THREAD
};

/* ---- kernel faults --------------------------------------------------------------------------- */

/* Describes the process's last kernel fault: device, kernel, address, read or write, block and
 * thread. Writes at most `bytes`, with a terminating zero; returns the text's length, 0 if there
 * was no fault. */
size_t sw_emu_last_fault(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
