/* The base room, which every other room may use. */
#ifndef SYMWIN_BASE_H
#define SYMWIN_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/threads.h"
#include "symwin.h"

/* ---- error.c --------------------------------------------------------------------------------- */

#define SW_TEXT_BYTES 512
#define SYMWIN_STATUS_LAST SYMWIN_FORKED
#define SW_MAX_RANKS 131072  /* of a communicator */
#define SW_DOMAIN_RANKS 4096 /* of those in one domain: words of kernels have 12 bits */

/* Sets the thread's last error and returns `status`. Call it once, where a fault is first seen. */
symwin_status sw_fail(symwin_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Failures in this process; and the number of this thread's last one among them (0: none). */
uint64_t sw_failures(void), sw_failure(void);

/* Makes the last error "<call>: <who><text>"; a "<call>:" that the text begins with is dropped. */
symwin_status sw_fail_in(symwin_status status, const char *call, const char *who);

/* Restores the last error after a failure that is not reported has overwritten it. */
void sw_error_restore(const char *text);

/* Replaces control characters, which a terminal would obey. */
void sw_error_make_plain(char *text);

/* ---- sha256.c -------------------------------------------------------------------------------- */

#define SW_DIGEST_BYTES 32
#define SW_KEY_BYTES 32

struct sw_part {
    const void *data;
    size_t bytes;
};

/* Both hash the parts one after another. */
void sw_sha256(const struct sw_part *parts, int count, unsigned char digest[SW_DIGEST_BYTES]);
void sw_hmac(const unsigned char key[SW_KEY_BYTES], const struct sw_part *parts, int count,
             unsigned char mac[SW_DIGEST_BYTES]);
int sw_digest_equal(const unsigned char a[SW_DIGEST_BYTES], const unsigned char b[SW_DIGEST_BYTES]);

/* Zeroes a secret. The compiler cannot remove the call. */
void sw_wipe(void *data, size_t bytes);

/* ---- fork.c: what a forked child must not have ----------------------------------------------- */

/* The close-on-fork set: descriptors that a forked child closes, watched or not. Otherwise a peer
 * would not notice the parent's death, and the object behind a descriptor would live as long as the
 * child. Add a descriptor while still holding the lock under which it was created. Remove it before
 * closing it; any thread may. 0: the number is too high for the set, which only a system configured
 * for it gives out; the caller must do without the descriptor. */
enum { SW_FORK_SET_MOST = 1 << 20 };
int sw_fork_set_add(int fd);
void sw_fork_set_remove(int fd); /* no effect if it is not in the set */

/* Adds a new descriptor. -1: `fd` is -1, or it could not be added and was closed; see errno. */
int sw_fork_set_add_new(int fd);

/* Makes forked children call `forget`, under the poll lock, to drop the parent's state. Any thread,
 * with or without the lock. Registering it again has no effect. */
void sw_fork_register(void (*forget)(void));

void sw_fork_child(void); /* for poll_thread.c: closes the set's descriptors, calls the functions */

/* ---- poll_thread.c: the poll thread, and what a fork does ------------------------------------ */

int64_t sw_now_ms(void); /* monotonic clock */

/* One lock for the poll thread and for all that it serves. */
void sw_poll_lock(void);
void sw_poll_unlock(void); /* preserves errno */

/* Waits for a condition of the lock. 0: `deadline` (of sw_now_ms(); INT64_MAX: none) has passed. */
int sw_poll_wait(pthread_cond_t *changed, int64_t deadline);

struct sw_poll_watch {
    struct sw_poll_watch *next;
    uint64_t id;         /* 0: not watched */
    int fd;              /* not owned; -1: only the deadline counts */
    atomic_short events; /* may change without the lock; then sw_poll_changed() */
    int64_t deadline;    /* INT64_MAX: none */
    /* Called on the poll thread, under the lock, with the events of poll(), or with 0, once, when
     * the deadline has passed. May add and remove watches, including this one. */
    void (*ready)(struct sw_poll_watch *watch, short events);
};

symwin_status sw_poll_add(struct sw_poll_watch *watch); /* this and the next one: under the lock */
void sw_poll_remove(struct sw_poll_watch *watch);       /* no effect if it is not watched */
void sw_poll_changed(void); /* after a change of a deadline, under the lock, or of events */
void sw_poll_rest(void);    /* in ready(): other threads get the lock before it is called again */
void sw_poll_settle(void);  /* without the lock: stops the thread if nothing is watched */

/* Without the lock: takes it out of the close-on-fork set and closes it, with no fork between. */
void sw_fork_set_close(int fd);

/* ---- settings.c: the library's own variables in the environment (docs/environment.md) -------- */

/* The variables of launchers, and those by which ranks meet, are in bootstrap/environment.c. */
enum sw_setting {
    SW_SETTING_DRIVER, /* enum sw_driver_choice */
    SW_SETTING_INFO,
    SW_SETTING_DEBUG,
    SW_SETTING_NVLS,
    SW_SETTING_GRAPH_REGISTER,
    SW_SETTING_GRAPH_LAUNCH,
    SW_SETTING_TUNING, /* text */
    SW_SETTING_TIMEOUT_MS,
    SW_SETTING_BOOTSTRAP_TIMEOUT_MS,
    SW_SETTING_HOST_ID, /* text */
    SW_SETTING_MEM_POOL,
    SW_SETTING_MEM_KEEP,
    SW_SETTING_MEM_DEBUG,
    SW_SETTING_EMU_DEVICES,
    SW_SETTING_EMU_MEM,
    SW_SETTING_EMU_FABRIC,
    SW_SETTING_EMU_MULTICAST,
    SW_SETTING_EMU_OLD,
    SW_SETTING_EMU_STRANGERS,
    SW_SETTING_EMU_MULTICAST_UNIT,
    SW_SETTING_EMU_MULTICAST_RECOMMENDED,
    SW_SETTING_EMU_MULTICAST_SLOTS,
    SW_SETTING_EMU_MULTICAST_ALONE,
    SW_SETTING_EMU_MULTICAST_FAULT, /* text */
    SW_SETTING_EMU_ALIAS,
    SW_SETTING_EMU_MACHINE,
    SW_SETTINGS
};

enum sw_driver_choice { SW_CHOICE_AUTO, SW_CHOICE_CUDA, SW_CHOICE_EMU };

/* SYMWIN_MEM_KEEP is unset: 1/32 of the device's memory. */
#define SW_KEEP_DEFAULT UINT64_MAX

#define SW_EMU_DEVICES_MOST 128
#define SW_EMU_SLOTS_MOST 1024
#define SW_EMU_MACHINE_MOST ((1 << 22) - 1) /* any process id will do */
#define SW_EMU_MEM_MOST ((uint64_t)1 << 46) /* bytes of a device; exceeds the arena of emu/ */

/* Which call reads a variable, and fails if its value is invalid. */
enum sw_reader {
    SW_READER_DRIVER = 1,   /* the first call that needs the driver, once per process */
    SW_READER_COMM = 2,     /* the creation of a communicator */
    SW_READER_EMULATED = 4, /* the start of the emulated driver, once per process */
};

/* SYMWIN_INVALID: a variable of these readers is invalid; the text names it. `call`: NULL, or the
 * name of the call for that text. */
symwin_status sw_settings_check(const char *call, unsigned readers);

/* The value; the default if the variable is unset or invalid (see sw_settings_check()). */
uint64_t sw_setting(enum sw_setting which);
const char *sw_setting_text(enum sw_setting which); /* NULL: unset or invalid */

/* For the test of docs/environment.md. */
const char *sw_setting_name(enum sw_setting which);
void sw_setting_allowed(enum sw_setting which, char *text, size_t bytes);

/* ---- handle_table.c: from public handles to objects ------------------------------------------ */

/* A handle is no address: its low bits are a slot, the others a number that the process never uses
 * again. So removed handles, and those of other tables, are not found. One thread at a time. */
enum { SW_HANDLES_MOST = 1 << 20 };

/* An empty table is all zero. */
struct sw_handle_table {
    struct sw_handle_entry {
        void *thing;      /* NULL: free */
        uintptr_t handle; /* of a free entry: 1 + the next free slot; 0: none */
    } * entries;          /* owned */
    size_t room, count, first_free;
};

/* Makes room for one entry, which sw_handle_table_add() needs. 0: no host memory, or table full. */
int sw_handle_table_reserve(struct sw_handle_table *t);

/* Never fails in reserved room. The handle is never 0. */
uintptr_t sw_handle_table_add(struct sw_handle_table *t, void *thing);

/* NULL: no entry has this handle. */
void *sw_handle_table_find(const struct sw_handle_table *t, uintptr_t handle);

/* Removes the entry of the handle, if there is one. */
void sw_handle_table_remove(struct sw_handle_table *t, uintptr_t handle);

/* Iterates: set *at to 0 first; NULL after the last. Any entry may be removed meanwhile. */
void *sw_handle_table_next(const struct sw_handle_table *t, size_t *at);

void sw_handle_table_release(struct sw_handle_table *t); /* frees no things */

#endif
