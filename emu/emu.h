/* The emulated driver as its neighbours see it: its table, its kernel images, and the handles by
 * which tests count what lives and make calls fail. emu/README.md describes how it works.
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

/* A kernel takes exactly one parameter, a struct passed by value: `run` gets a pointer to the
 * launch's own copy of it and is called once a CUDA thread. */
struct sw_emu_kernel {
    const char *name;
    void (*run)(const void *params);
    size_t params_bytes;
    unsigned
        most_threads; /* of a block, as __launch_bounds__ has it; 0: as many as the device takes */
};

struct sw_emu_image {
    uint64_t magic; /* SW_EMU_IMAGE_MAGIC */
    size_t kernel_count;
    const struct sw_emu_kernel *kernels;
};

/* ---- what lives ------------------------------------------------------------------------------ */

struct sw_emu_live {
    size_t handle_refs;  /* references by Create, Import, Retain and MulticastCreate */
    size_t allocations;  /* physical allocations not yet gone */
    size_t reservations; /* address ranges */
    size_t mappings;
    size_t multicasts;
    size_t binds;
    size_t device_blocks; /* cuMemAlloc */
    size_t host_blocks;   /* cuMemHostAlloc */
    size_t contexts;      /* primary-context references */
    size_t streams;
    size_t events;
    size_t libraries;
    size_t graphs;
    size_t graph_execs;
    size_t user_objects;
    size_t green_contexts;
};

void sw_emu_live_count(struct sw_emu_live *live);
size_t sw_emu_live_objects(void); /* the sum of the above: 0 means that nothing was left behind */

/* Writes every live object, one a line, to `fd`: what a failed leak check prints. */
void sw_emu_live_print(int fd);

/* ---- fault injection ------------------------------------------------------------------------- */

/* From now on, this thread's `nth` driver call (1 is the next) returns `code` without doing
 * anything; with `persistent` every later one too. nth 0 switches it off. Calls that only free
 * (Release, Unmap, AddressFree, Unbind, *Destroy, *Free, Unload, PopCurrent, SetCurrent,
 * PrimaryCtxRelease) and error-text calls are neither counted nor failed unless
 * `including_teardown`, since a persistent fault there would leak by definition. */
void sw_emu_fail_nth(unsigned nth, CUresult code, int persistent, int including_teardown);

/* How many countable calls this thread has made since sw_emu_fail_nth(), and whether it fired. */
unsigned sw_emu_calls(void);
int sw_emu_fault_fired(void);
const char *sw_emu_fault_name(void); /* the entry point that the fault hit, NULL if none */

/* ---- the machine it plays -------------------------------------------------------------------- */

/* Read from the environment by cuInit; tests may set it before, or again while nothing lives. */
struct sw_emu_machine {
    int devices;      /* SYMWIN_EMU_DEVICES, default 8, at most 128 */
    size_t mem_bytes; /* SYMWIN_EMU_MEM per device, default 8 GiB; suffixes K M G */
    int fabric;       /* SYMWIN_EMU_FABRIC: 0 not supported; 1 the attribute says yes but create
                       *   answers NOT_PERMITTED (default, as on a host without an IMEX channel);
                       *   2 works */
    int multicast;    /* SYMWIN_EMU_MULTICAST: 0 not supported; 1 works (default) */
    int old; /* SYMWIN_EMU_OLD: so many devices, the last ones, have compute capability 8.0 and
                       *   no multicast, the others 9.0; default 0 */
    int strangers;         /* SYMWIN_EMU_STRANGERS: 1: no device is another's peer; default 0 */
    size_t multicast_unit; /* SYMWIN_EMU_MULTICAST_UNIT: granularity of multicast objects, whole
                            *   granules of memory; 0, the default: one of these, 2 MiB */
};

CUresult
sw_emu_configure(const struct sw_emu_machine *machine); /* ILLEGAL_STATE if anything lives */
#ifndef __cplusplus /* where a function of a struct's name hides the struct */
void sw_emu_machine(struct sw_emu_machine *machine);
#endif

/* ---- delays ----------------------------------------------------------------------------------- */

/* Holds up threads of kernels that were compiled with SYMWIN_RACE, before some of their memory accesses. Set while no
 * such kernel runs. */
struct sw_emu_race {
    uint64_t seed;
    unsigned one_in;         /* accesses of those meant below; 0: none */
    unsigned most_ns;        /* of a delay, less than a second */
    int device, block, warp; /* of the threads that are meant, -1: any */
};
void sw_emu_race_set(const struct sw_emu_race *race);

/* A driver takes its time with the callbacks of user objects, and may unmap without waiting for kernels, as an H200's does
 * (docs/hardware.md). Callbacks of user objects that were made for a device are kept from now on, if `late`, until
 * sw_emu_callbacks_come() lets one in so many of them come, chosen by the seed: of a device, or of all if it is -1. */
void sw_emu_callbacks_late(int device, int late);
void sw_emu_callbacks_come(int device, uint64_t seed, unsigned one_in);

/* Whether cuMemUnmap waits for the devices that have access (1, as it begins). If not, a kernel that still uses what is
 * unmapped is killed, with ILLEGAL_ADDRESS. */
void sw_emu_unmap_waits(int waits);

/* Under ThreadSanitizer: the innermost functions emu_digit_N in the stack trace of an access by a kernel, from the
 * outermost on, tell in octal which thread it was. */
enum {
    EMU_TRAIL_DEVICE = 3,
    EMU_TRAIL_BLOCK = 3,
    EMU_TRAIL_THREAD = 4,
    EMU_TRAIL_DIGITS = EMU_TRAIL_DEVICE + EMU_TRAIL_BLOCK + EMU_TRAIL_THREAD
};

/* ---- kernel faults ---------------------------------------------------------------------------- */

/* What the process's last kernel fault was: device, kernel, address, read or write, block and thread.
 * Writes at most `bytes`, ended by a zero; returns the text's length, 0 if there was no fault. */
size_t sw_emu_last_fault(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
