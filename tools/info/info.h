/* symwin-info: what a machine can do for symwin. Facts are gathered first, then printed as text or
 * as JSON. */
#ifndef SYMWIN_INFO_H
#define SYMWIN_INFO_H

#include <stdio.h>

#include "src/bootstrap/id.h"
#include "src/collective/collective.h"
#include "src/collective/select.h"

enum { INFO_TEXT = 600, INFO_UNKNOWN = -1 };

/* ---- gather.c: facts from the driver --------------------------------------------------------- */

struct info_handles { /* of one type, tested with one granule of memory */
    int claimed;      /* by the device's attribute, or INFO_UNKNOWN */
    int tried, works;
    char words[INFO_TEXT]; /* "works", or the step that failed and why */
};

struct info_device {
    char name[128];
    char uuid[48];
    size_t total_bytes;
    int multiprocessors;
    int capability; /* 90 is 9.0 */
    int compute_mode;
    int vmm;
    size_t granularity, granularity_recommended; /* 0: unknown */
    struct info_handles posix_fd, fabric;
    int multicast;
    size_t multicast_granularity, multicast_recommended; /* 0: unknown */
    int kernels;                                         /* the library's kernels load */
    char problem[INFO_TEXT];                             /* why symwin cannot use it; "": it can */
};

struct info_link { /* INFO_UNKNOWN: the driver does not tell */
    int access;
    int rank, native_access, atomics; /* P2P attributes */
};

enum { INFO_VARIABLES = SW_SETTINGS + 2 }; /* one about the table of choices, one of launchers */
enum { INFO_NCCL = 16 };                   /* some may be no variables at all */

struct info_machine {
    char variables[INFO_VARIABLES][INFO_TEXT]; /* sentences about those that are wrong */
    int variable_count;
    char nccl[INFO_NCCL][INFO_TEXT]; /* the same about those of libsymwin-nccl.so */
    int nccl_count;
    char problem[INFO_TEXT]; /* why there is no driver; "": there is one */
    symwin_driver_info driver;
    int multicast_allowed; /* in this process, by its environment */
    char multicast_why[INFO_TEXT];
    struct info_device *devices; /* owned: driver.device_count of them */
    struct info_link *links;     /* owned: from device i to j at i * device_count + j */
};

/* 0: no host memory. Everything created for a test is released, on every path. */
int info_gather(struct info_machine *machine);
void info_release(struct info_machine *machine);
int info_all_usable(const struct info_machine *machine);       /* every device */
int info_can_communicate(const struct info_machine *machine);  /* and no variable is in the way */
int info_nothing_is_wrong(const struct info_machine *machine); /* nor for programs on NCCL */

/* ---- system.c: facts from the system --------------------------------------------------------- */

#define INFO_CHANNELS "/dev/nvidia-caps-imex-channels"
#define INFO_NODES "/etc/nvidia-imex/nodes_config.cfg"

enum { INFO_MOST_CHANNELS = 64, INFO_LIMITS = 5 };

struct info_channel {
    char name[64];
    int usable; /* this process can read and write it */
};

struct info_imex {
    int folder; /* exists and can be listed */
    struct info_channel channels[INFO_MOST_CHANNELS];
    int channel_count; /* may be larger than the list */
    int config;        /* exists */
    int nodes;         /* lines that name a node; INFO_UNKNOWN: cannot be read */
};

struct info_folder {
    const char *variable; /* NULL: none, the folder is /tmp */
    char name[4096];      /* "": not set */
    int usable;
    char words[INFO_TEXT];
};

struct info_limit {
    const char *name;
    int known;
    unsigned long long value; /* ULLONG_MAX: unlimited */
    unsigned long long used;  /* ULLONG_MAX: not counted */
    const char *of;           /* what it limits */
    char warning[INFO_TEXT];  /* "": none */
};

struct info_system {
    struct info_imex imex;
    struct info_folder folders[SW_TEMP_FOLDERS];
    int folder; /* the one in use; INFO_UNKNOWN: none */
    struct info_limit limits[INFO_LIMITS];
};

/* `root` is prepended to INFO_CHANNELS and INFO_NODES. */
void info_look(struct info_system *system, const char *root, const struct info_machine *machine);

/* ---- words.c, json.c ------------------------------------------------------------------------- */

void info_words(FILE *out, const struct info_machine *machine, const struct info_system *system);
void info_json(FILE *out, const struct info_machine *machine, const struct info_system *system);

/* A number of bytes for people, such as "64 MiB". */
const char *info_bytes(unsigned long long bytes, char text[32]);

/* A JSON writer. Names are NULL in arrays and at the top level. */
struct info_writer {
    FILE *out;
    int depth;
    int first; /* nothing written at this depth yet */
};
void info_open(struct info_writer *w, const char *name, char bracket);
void info_close(struct info_writer *w, char bracket);
void info_string(struct info_writer *w, const char *name, const char *value); /* NULL: null */
void info_number(struct info_writer *w, const char *name, unsigned long long value);
void info_bool(struct info_writer *w, const char *name, int value); /* INFO_UNKNOWN: null */

/* ---- show.c: pools and windows of a process, from the lines of symwin_dump() ----------------- */

enum info_form { INFO_WORDS, INFO_TABLES, INFO_JSON };

/* 1: shown completely. 0: not; the reason is on stderr. */
int info_show(FILE *out, FILE *dump, const char *name, enum info_form form);

/* The same for this process, with a few allocations and a window. */
int info_sample(FILE *out, enum info_form form);

/* ---- process.c ------------------------------------------------------------------------------- */

/* info_show() for a running process. */
int info_process(FILE *out, int pid, enum info_form form);

#endif
