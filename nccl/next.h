/* The next definition of a function of NCCL, normally NCCL's own. */
#ifndef SYMWIN_NCCL_NEXT_H
#define SYMWIN_NCCL_NEXT_H

#include <stdatomic.h>

/* Each name is passed to the next definition of the same name: a profiler's ncclMemAlloc calls
 * pncclMemAlloc, and passing that on to ncclMemAlloc would recurse forever. */
struct sw_next {
    _Atomic(void *) found; /* without a caller. First: forward.c reads it */
    const char *name;
    const char *or_else;   /* NULL, or the name for an NCCL without the profiling names */
    void (*missing)(void); /* what forward.c calls if there is none */
    _Atomic(struct sw_next_of *) callers; /* what was found for each */
};

/* The definition that the code at `caller`, a return address, would have called without this
 * library; that of the process's NCCL if it has none, and with NULL. NULL: there is none. Any
 * thread may call, here and below. */
void *sw_next_find(struct sw_next *next, void *caller);

/* A call that has come here. */
struct sw_from {
    struct sw_next *next;
    void *caller;
    void (*symbol)(void); /* where it would have gone; NULL: there is none */
    void *library;        /* the address of the one that has it */
    int inside; /* that library makes the call itself, or what a call of it goes through */
};
struct sw_from sw_from_find(struct sw_next *next, void *caller);
/* The same, without a copy if it is kept; otherwise in `room`. */
const struct sw_from *sw_from_of(struct sw_next *next, void *caller, struct sw_from *room);

/* Passes a call on: SW_PASS(from, ncclCommDestroy, (comm)). What comes here from it, as from a
 * profiler between this library and NCCL, is NCCL's. */
#define SW_PASS(from, name, arguments)                                                             \
    __extension__({                                                                                \
        ncclResult_t passed_on = ncclSystemError;                                                  \
                                                                                                   \
        if ((from)->symbol != NULL) {                                                              \
            sw_next_passing++;                                                                     \
            passed_on = ((__typeof__(&name))(from)->symbol)arguments;                              \
            sw_next_passing--;                                                                     \
        }                                                                                          \
        passed_on;                                                                                 \
    })
extern _Thread_local int sw_next_passing;

/* Whether that of the process is `symbol`, which was found in the library `file`. If the process
 * has no other NCCL, it becomes the one that serves. */
int sw_next_is(struct sw_next *next, void *symbol, const char *file);

const char *sw_next_path(void); /* of the NCCL to load if there is none: SYMWIN_NCCL, or its name */

/* Whether it is that of the NCCL which symwin takes between hosts. */
int sw_next_is_engine(const struct sw_from *from);

/* A function that this library defines and NCCL has as well. */
struct sw_served {
    struct sw_next *next;
    void (*function)(void);
};
extern const struct sw_served sw_served[]; /* ends with a NULL */

/* libc's dlsym(), or another library's that stands in front of it, but not this library's. */
typedef void *(*sw_dlsym_fn)(void *handle, const char *name);
sw_dlsym_fn sw_next_dlsym(void);
extern sw_dlsym_fn sw_dlsym_real; /* the same; NULL before the first call */

/* For functions that run before sanitizers can take instrumented code. */
#ifdef __clang__
#define SW_PLAIN __attribute__((disable_sanitizer_instrumentation))
#else
#define SW_PLAIN __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

#endif
