/* Kernels of one's own: --kernel and --race. The files, from the top:
 *
 *   stages.c    what is done to them, each stage in a process of its own, which may die
 *   compile.c   a FILE.cu becomes a module for either driver; carried.c the headers that takes
 *   check.c     the check: line by line, each a property
 *   race.c      the hunt for missing synchronisation; tsan.c what ThreadSanitizer reports
 *   bursts.c    many calls in a row, with nobody waiting in between
 *   cases.c     one call, and what came of it
 *   module.c    a module loaded: what it says of itself, launches
 *   own.c       the words of --kernel and of SYMWIN_KERNEL_ABOUT
 */
#ifndef PERF_OWN_H
#define PERF_OWN_H

#include "../../emu/emu.h"
#include "../perf/options.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "symwin/kernel.h"

struct rank;
struct own_kernel;

/* ---- own.c ------------------------------------------------------------------------------------ */

enum own_kind {
    OWN_SOURCE, /* .cu: for both drivers */
    OWN_OBJECT, /* .so: for the emulated driver */
    OWN_IMAGE   /* .cubin, .fatbin: for GPUs */
};

struct own_source {
    enum own_kind kind;
    char path[4096];
    char name[128]; /* of the kernel */
};

/* What SYMWIN_KERNEL_ABOUT says. */
struct own_about {
    unsigned types, ops; /* bits, by symwin.h's lists */
    uint64_t bytes;      /* of the longest message; 0: any */
    uint64_t multiple, align;
    int ranks; /* 0: any */
    int windows, out_of_place, fixed, no_limit;
    int blocks, threads;
    size_t shared, scratch, slots;
};

/* What FILE[:NAME] means. */
symwin_status own_source_find(const char *argument, struct own_source *out);

/* Of what `words` do not name the default. */
symwin_status own_about_parse(const char *name, const char *words, struct own_about *out);

/* The same in words again: "f32 sum, in windows". */
void own_about_print(const struct own_about *about, char *text, size_t bytes);

/* Why a kernel does not serve a call, NULL: it does. Buffers are aligned to `align` bytes. */
const char *own_refusal(const struct own_about *about, int nranks, symwin_type type, symwin_op op,
                        uint64_t count, int in_place, uint64_t align);

/* ---- stages.c --------------------------------------------------------------------------------- */

enum stage { STAGE_CHECK = 1, STAGE_RACE, STAGE_TIME };

/* What the process that a stage runs in is told, and what is known of it when it has died: in memory of both. */
struct stage_page {
    uint64_t magic; /* of this layout, and of what both were built from */
    enum stage stage;
    int kernel; /* of --kernel's, -1: the library's algorithms */
    int kernels;
    int ranks;
    int unrandomised; /* addresses, as ThreadSanitizer needs it */
    int gpus;         /* of the machine; 0: the emulated driver is meant */
    int from;         /* the line to begin with */
    char driver[32];  /* as lines name it */
    int seconds;      /* of the hunt */
    uint64_t seed;    /* its first burst's */
    char folder[256]; /* of the modules */
    struct own_source sources[PERF_MOST_KERNELS];
    struct own_about about[PERF_MOST_KERNELS]; /* as the check has found them; blocks 0: not yet */

    _Atomic int64_t
        since; /* when what it is doing began, by sw_now_ms(), 0: nothing that has a limit */
    int line;  /* under way, -1: none yet; beyond the last: done */
    char line_name[160];
    char doing[512];
    char died[1024]; /* why it gives up */
    int failed;      /* lines */
    int fewer;       /* ranks that the kernel can have, where there were too many */
    int told;        /* bit k: what kernel k says of itself has been printed */
};

/* In the process of a stage: the page; NULL in any other. */
struct stage_page *stage_page(void);

/* All stages that the options ask for; the exit status. */
int stages_run(char **argv, const struct perf_options *options);

/* Says what is being done, so that the stages' parent knows where it ended. By rank 0. */
void stage_says(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints what a kernel says of itself, if nobody has yet. */
void stage_about(const struct rank *r, const struct own_kernel *k);

/* Why this process cannot go on, for its parent to say. */
void stage_died(const char *text);

/* What a stage makes of the command line, and of the communicator under test. */
void stage_options(const struct stage_page *page, struct perf_options *options);
void stage_comm(const struct stage_page *page, symwin_comm_options *options);

/* Prints a line of the verdict. */
void stage_line(int failed, int cases, const char *text);

/* ---- compile.c, carried.c --------------------------------------------------------------------- */

enum own_module { OWN_FOR_EMU, OWN_FOR_EMU_RACE, OWN_FOR_GPU, OWN_FOR_GPU_RACE, OWN_MODULES };

/* Where the module of kernel `k` is. */
void own_module_path(const char *folder, int k, enum own_module which, char *path, size_t bytes);

/* A folder in TMPDIR with the headers; and away with it. */
symwin_status compile_begin(char folder[256]);
void compile_end(const char *folder);

/* Makes the modules, bit by bit of `wanted` (1 << own_module), of all kernels at the same time. `capability` of the
 * GPU: 90 is 9.0; `sanitizer` of OWN_FOR_EMU_RACE: of the program that will load it, "": none; `more` words
 * for the compilers, NULL: none. What it says on the way
 * goes to stdout. */
symwin_status compile_all(const char *folder, const struct own_source *sources, int count,
                          unsigned wanted, int capability, const char *sanitizer, const char *more);

/* The sanitizer of this program, "": none. */
extern const char own_sanitizer[];

/* What is carried: a digest, which changes with it; and into a folder. */
uint64_t carried_digest(void);
symwin_status carried_write(const char *folder);

/* ---- module.c --------------------------------------------------------------------------------- */

/* A kernel as a rank has it. */
struct own_kernel {
    const char *name;
    struct own_about about;
    CUfunction function, race; /* race: sets what the hooks do; NULL: it has none */
    int most_blocks;           /* that fit beside those of the ranks that share the device */
    void *scratch;             /* owned: scratch and slots */
    size_t scratch_bytes, slots_at, room;
    symwin_window *window;
    uint64_t offset; /* of scratch in the flat range */
    uint32_t *gave_up;
    CUdeviceptr gave_up_address;
    uint64_t calls;
    uint64_t limit_ns; /* of its waits */
};

struct own_call {
    uint64_t in, out, in_offset, out_offset;
    uint64_t count;
    symwin_type type;
    symwin_op op;
    int blocks, threads;
};

/* The kernels of this stage, for this rank. Collective. */
symwin_status own_open(struct rank *r);
void own_close(struct rank *r);
void own_unload(void); /* when no rank is left */

/* Zeroes scratch and slots. The ranks meet before and after. */
symwin_status own_reset(struct rank *r, struct own_kernel *k);

/* Overwrites the slots with ones, in stream order. No rank is in a call. */
symwin_status own_poison(struct rank *r, struct own_kernel *k);

/* Queues a call. */
symwin_status own_launch(struct rank *r, struct own_kernel *k, const struct own_call *call);

/* The grid for a message where nothing else is asked for: 16 bytes a thread, no more than the kernel's. */
void own_grid(const struct rank *r, const struct own_kernel *k, uint64_t bytes, int *blocks,
              int *threads);

/* Whether a wait has come to its limit since the last time this was asked. */
int own_gave_up(struct own_kernel *k);

/* ---- check.c, race.c -------------------------------------------------------------------------- */

symwin_status check_all(struct rank *r);
symwin_status race_all(struct rank *r);

/* ---- picture.c -------------------------------------------------------------------------------- */

/* Where the table goes if the command line names no file for it. */
void picture_csv(const struct stage_page *page, char *path, size_t bytes);

symwin_status picture_draw(const struct perf_options *options, const struct stage_page *page);

/* ---- tsan.c: where this program was built with ThreadSanitizer --------------------------------- */

int tsan_is_there(void);

/* Names memory of a rank, for the sentences below. */
void tsan_name(const struct rank *r, const void *address, size_t bytes, const char *what);

/* What was reported since the last time this was asked, in a sentence; 0: nothing. */
int tsan_found(char *text, size_t bytes);

#endif
