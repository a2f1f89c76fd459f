/* Your own kernels: --kernel and --race. The files, from the caller down:
 *
 *   stages.c    the stages, each in its own process, so that a kernel can crash
 *   compile.c   compiles a FILE.cu for either driver; carried.c holds the headers for that
 *   check.c     the check: a line for each property
 *   race.c      the hunt for missing synchronisation; tsan.c reads ThreadSanitizer's reports
 *   bursts.c    many calls in a row without a wait between them
 *   cases.c     one call and its outcome
 *   module.c    a loaded module: its description, its launches
 *   own.c       parses --kernel and SYMWIN_KERNEL_ABOUT
 */
#ifndef PERF_OWN_H
#define PERF_OWN_H

#include <time.h>

#include "../../emu/emu.h"
#include "../perf/options.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "symwin/kernel.h"

/* The operations that your own kernels may have: a pre-multiplied sum's scalar is not passed. */
#define OWN_OPS ((1u << SYMWIN_PREMUL_SUM) - 1)

struct rank;
struct own_kernel;

/* Functions here that can fail return whether they succeeded. ok() is that of the library's calls.
 * Of a thread's last failure, failure() is the status, and symwin_last_error() the text. */
int ok(symwin_status status);
symwin_status failure(void);

#define fail(...) ok(sw_fail(__VA_ARGS__)) /* 0 */
#define CUDA(name, args) ok(sw_check(sw_drv.name args, #name))

/* Frees a handle; NULL or 0: there is none. */
#define DROP(name, handle) sw_drop((handle) ? sw_drv.name(handle) : CUDA_SUCCESS, #name)

static inline void perf_nap(long ns)
{
    const struct timespec moment = {.tv_nsec = ns};

    nanosleep(&moment, NULL);
}

/* ---- own.c ----------------------------------------------------------------------------------- */

enum own_kind {
    OWN_SOURCE, /* .cu: for both drivers */
    OWN_OBJECT, /* .so: for the emulated driver */
    OWN_IMAGE   /* .cubin, .fatbin: for GPUs */
};

struct own_source {
    enum own_kind kind;
    char path[4096];
    char name[128]; /* the kernel's */
};

/* The parsed words of SYMWIN_KERNEL_ABOUT. */
struct own_about {
    symwin_collective collective;
    unsigned types, ops; /* bit i: value i of symwin.h's list */
    uint64_t bytes;      /* the longest message; 0: no limit */
    uint64_t multiple, align;
    int ranks; /* at most; 0: no limit */
    int windows, out_of_place, fixed, no_limit;
    int blocks, threads;
    size_t shared, scratch, slots;
};

/* Parses FILE[:NAME], and finds the name in the file if none is given. SYMWIN_INVALID: the argument
 * is wrong; otherwise the file cannot be read. */
int own_source_find(const char *argument, struct own_source *out);

/* Reads a whole file, with a zero behind it. The caller frees it, after a failure too. */
int own_read(const char *path, char **out);

/* Words that are missing leave the defaults. */
int own_about_parse(const char *name, const char *words, struct own_about *out);

/* Prints it for a reader: "f32 sum, in windows". */
void own_about_print(const struct own_about *about, char *text, size_t bytes);

/* What the kernel does not support in a call; NULL: it supports the call. Buffers are aligned to
 * `align` bytes. */
const char *own_refusal(const struct own_about *about, int nranks, symwin_type type, symwin_op op,
                        uint64_t count, int in_place, uint64_t align);

/* ---- stages.c -------------------------------------------------------------------------------- */

enum stage { STAGE_CHECK = 1, STAGE_RACE, STAGE_TIME };
enum stage_answer { ANSWER_NONE, ANSWER_PLAIN, ANSWER_TSAN };

/* Shared memory of a stage's process and its parent. The parent writes the task; the process writes
 * its progress, which the parent reports if the process dies. */
struct stage_page {
    uint64_t magic; /* identifies this layout and the carried headers of the build */
    enum stage stage;
    int kernel; /* index of --kernel; -1: the library's algorithms */
    int kernels;
    int ranks;
    int unrandomised; /* no address randomisation: ThreadSanitizer needs that */
    int gpus;         /* of the machine; 0: the emulated driver is used */
    int from;         /* the first line to run */
    char driver[32];  /* its name in the printed lines */
    int seconds;      /* duration of the hunt */
    uint64_t seed;    /* of the first burst */
    char folder[256]; /* holds the modules */
    struct own_source sources[PERF_MOST_KERNELS];
    struct own_about about[PERF_MOST_KERNELS]; /* read from the module; blocks 0: not yet */

    enum stage_answer answer; /* which symwin-perf the process is; none: it did not start as one */
    int bursts;               /* that the processes of the stage have begun */

    /* when the current step began, by sw_now_ms(); 0: nothing with a limit */
    _Atomic int64_t since;
    char reported[1024];         /* ThreadSanitizer's first report of a line, as a sentence */
    _Atomic int64_t reported_at; /* by sw_now_ms(); 0: there is none */
    char burst[512];             /* the hunt's burst, and how to repeat it */
    int line;                    /* the one that runs; -1: none yet; beyond the last: done */
    char line_name[160];
    char doing[512];
    char died[1024]; /* why the process gives up */
    int failed;      /* lines that failed */
    int fewer;       /* the kernel's maximum of ranks, if there were more */
    int told;        /* bit k: the description of kernel k is printed */
};

/* The page, in a stage's process; NULL in any other process. */
struct stage_page *stage_page(void);

/* Runs all stages that the options ask for. Returns the exit status. */
int stages_run(char **argv, const struct perf_options *options);

/* Records what rank 0 is doing, so that the parent can report where the process died. */
void stage_says(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Records ThreadSanitizer's first report of a line; NULL: forgets it. A burst can have hundreds,
 * which take longer than its limit: the parent ends the process soon after the first. */
void stage_reported(const char *text);

/* Prints a kernel's description once. */
void stage_about(const struct rank *r, const struct own_kernel *k);

/* Records why this process gives up; its parent prints it. */
void stage_died(const char *text);

/* Adapts the options, and those of the communicator under test, to the stage. */
void stage_options(const struct stage_page *page, struct perf_options *options);
void stage_comm(const struct stage_page *page, symwin_comm_options *options);

/* Prints the result of a line; the text is printed if it failed. */
void stage_line(int failed, int cases, const char *text);

/* ---- compile.c, carried.c -------------------------------------------------------------------- */

enum own_module { OWN_FOR_EMU, OWN_FOR_EMU_RACE, OWN_FOR_GPU, OWN_FOR_GPU_RACE, OWN_MODULES };

/* The path of kernel k's module. */
void own_module_path(const char *folder, int k, enum own_module which, char *path, size_t bytes);

/* Creates a folder in TMPDIR with the headers, and removes it. */
int compile_begin(char folder[256]);
void compile_end(const char *folder);

/* Compiles the modules whose bits (1 << own_module) are in `wanted`, all at the same time.
 * capability: of the GPU, 90 for 9.0. sanitizer: for OWN_FOR_EMU_RACE, that of the program that
 * will load it; "": none. more: words for the compilers, or NULL. Progress goes to stdout. */
int compile_all(const char *folder, const struct own_source *sources, int count, unsigned wanted,
                int capability, const char *sanitizer, const char *more);

/* The sanitizer that this program was built with; "": none. */
extern const char own_sanitizer[];

/* The embedded headers: a digest of them, and a copy of them into a folder. */
uint64_t carried_digest(void);
int carried_write(const char *folder);

/* ---- module.c -------------------------------------------------------------------------------- */

/* A rank's state of a kernel. */
struct own_kernel {
    const char *name;
    struct own_about about;
    CUfunction function, race; /* race: configures the delays; NULL: none */
    int most_blocks;           /* that fit on the device, next to the other ranks' there */
    void *scratch;             /* owned: scratch and slots */
    size_t scratch_bytes, room;
    symwin_window *window;
    uint64_t offset; /* of scratch in the address map */
    uint32_t *gave_up;
    CUdeviceptr gave_up_address;
    uint64_t calls;
    uint64_t limit_ns; /* limit of its waits */
};

struct own_call {
    uint64_t in, out, in_offset, out_offset;
    uint64_t count;
    symwin_type type;
    symwin_op op;
    int root, to, from;
    uint64_t in_parts, out_parts; /* addresses of counts, with the displacements behind; 0: none */
    int blocks, threads;
};

/* Sets the parts of a collective that has unequal ones, and of no other; at both addresses are
 * counts, with the displacements behind. */
void own_set_parts(struct own_call *call, const struct sw_collective *is, uint64_t in,
                   uint64_t out);

/* Loads this stage's kernels for this rank. Collective. */
int own_open(struct rank *r);
void own_close(struct rank *r);
void own_unload(void); /* after the last rank has closed */

/* Zeroes scratch and slots. Collective: synchronises the ranks before and after. */
int own_reset(struct rank *r, struct own_kernel *k);

/* Fills the slots with 0xff, in stream order. Call it while no rank is in a call. */
int own_poison(struct rank *r, struct own_kernel *k);

/* Queues a call. */
int own_launch(struct rank *r, struct own_kernel *k, const struct own_call *call);

/* The default grid for a message: 16 bytes a thread, and at most the kernel's grid. */
void own_grid(const struct rank *r, const struct own_kernel *k, uint64_t bytes, int *blocks,
              int *threads);

/* Whether a wait reached its limit since the last call of this function. */
int own_gave_up(struct own_kernel *k);

/* ---- check.c, race.c ------------------------------------------------------------------------- */

int check_all(struct rank *r);
int race_all(struct rank *r);

/* ---- tsan.c: does nothing unless built with ThreadSanitizer ---------------------------------- */

int tsan_is_there(void);

/* Names memory of a rank, for the reports. */
void tsan_name(const struct rank *r, const void *address, size_t bytes, const char *what);

/* The number of reports since the last call of this function, and the first one as a sentence. */
int tsan_found(char *text, size_t bytes);

#endif
