/* What every room may use. */
#ifndef SYMWIN_BASE_H
#define SYMWIN_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

/* ---- error.c --------------------------------------------------------------------------------- */

#define SW_TEXT_BYTES 512
#define SYMWIN_STATUS_LAST SYMWIN_FORKED
#define SW_MAX_RANKS 4096

/* Sets the thread's last error and returns `status`. Called once, where a fault is first seen. */
symwin_status sw_fail(symwin_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes the last error "<call>: <who><text>", where the text may begin with the call already. */
symwin_status sw_fail_in(symwin_status status, const char *call, const char *who);

/* Puts back a text that a failure which is not reported has overwritten. */
void sw_error_restore(const char *text);

/* Without control characters, which a terminal would obey. */
void sw_error_make_plain(char *text);

/* ---- sha256.c -------------------------------------------------------------------------------- */

#define SW_DIGEST_BYTES 32
#define SW_KEY_BYTES 32

struct sw_part {
    const void *data;
    size_t bytes;
};

/* Of the parts one after another. */
void sw_sha256(const struct sw_part *parts, int count, unsigned char digest[SW_DIGEST_BYTES]);
void sw_hmac(const unsigned char key[SW_KEY_BYTES], const struct sw_part *parts, int count,
             unsigned char mac[SW_DIGEST_BYTES]);
int sw_digest_equal(const unsigned char a[SW_DIGEST_BYTES], const unsigned char b[SW_DIGEST_BYTES]);

/* Zeros what nobody may read any more. No compiler leaves it out. */
void sw_wipe(void *data, size_t bytes);

/* ---- service.c: the service thread ----------------------------------------------------------- */

int64_t sw_now_ms(void); /* of the monotonic clock */

/* One lock for the thread and for all that it serves (bootstrap.c, root.c). */
void sw_poll_lock(void);
void sw_poll_unlock(void); /* leaves errno alone */

/* Waits for a condition that goes with the lock. 0: `deadline` has passed; INT64_MAX: none. */
int sw_poll_wait(pthread_cond_t *changed, int64_t deadline);

struct sw_poll_watch {
    struct sw_poll_watch *next;
    uint64_t id; /* 0: not watched */
    int fd;      /* not owned; -1: only the deadline counts */
    short events;
    int64_t deadline; /* INT64_MAX: none */
    /* Called on the service thread, under the lock: what poll() said, or 0 once at the deadline. May
     * add and remove watches, this one too. */
    void (*ready)(struct sw_poll_watch *watch, short events);
};

/* Under the lock. */
symwin_status sw_poll_add(struct sw_poll_watch *watch);
void sw_poll_changed(void);                       /* a deadline has */
void sw_poll_remove(struct sw_poll_watch *watch); /* also if it is not watched */

/* Without the lock: ends the thread if nothing is watched. */
void sw_poll_settle(void);

/* A descriptor that a forked child must not hold, watched or not: what is at its other end would not see
 * the parent's death, and what it is of would live as long as the child. It is kept under the lock that it
 * was made under, and forgotten by any thread before it is closed. 0: a number that cannot be kept, beyond
 * a million, which takes a system set up for it: whoever made the descriptor does without. */
int sw_fork_set_add(int fd);
void sw_fork_set_remove(int fd); /* also if it is not kept */

/* Keeps what was just made, if it was. -1: it was not, or is closed again; errno says why. */
int sw_fork_set_add_new(int fd);

/* Without the lock: forgets and closes it, with no fork in between. */
void sw_fork_set_close(int fd);

/* In a forked child `forget` is called from now on, under the lock: what it forgets is the parent's. Any thread, with or
 * without the lock; again is fine. */
void sw_fork_register(void (*forget)(void));

/* ---- closer.c: descriptors of others ----------------------------------------------------------- */

/* Has a descriptor closed that another process sent and that is not what it should be. No fork gets it. Whoever sent it may
 * have its last close take long, so the caller does not wait for it. With or without the service lock. */
void sw_closer_close(int fd);

/* Whether all of them are closed, within so many seconds. */
int sw_closer_wait(int seconds);

/* Around a fork, under the service lock. */
void sw_closer_prepare(void);
void sw_closer_parent(void);
void sw_closer_child(void);

/* ---- settings.c: the library's own variables in the environment (docs/environment.md) ---------- */

/* Those that a launcher sets, and those by which ranks are found, are environment.c's. */
enum sw_setting {
    SW_SETTING_DRIVER, /* enum sw_driver_choice */
    SW_SETTING_INFO,
    SW_SETTING_DEBUG,
    SW_SETTING_NVLS,
    SW_SETTING_GRAPH_REGISTER,
    SW_SETTING_GRAPH_LAUNCH,
    SW_SETTING_TUNING, /* a text */
    SW_SETTING_TIMEOUT_MS,
    SW_SETTING_BOOTSTRAP_TIMEOUT_MS,
    SW_SETTING_HOST_ID, /* a text */
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
    SW_SETTINGS
};

enum sw_driver_choice { SW_CHOICE_AUTO, SW_CHOICE_CUDA, SW_CHOICE_EMU };

/* SYMWIN_MEM_KEEP where it is not set: a part of the device's memory. */
#define SW_KEEP_DEFAULT UINT64_MAX

#define SW_EMU_DEVICES_MOST 128
#define SW_EMU_MEM_MOST ((uint64_t)1 << 46) /* bytes of an emulated device: beyond any arena */

/* Who reads a variable, and refuses a value that makes no sense. */
enum sw_reader {
    SW_READER_DRIVER = 1,   /* the first call that needs the driver, once a process */
    SW_READER_COMM = 2,     /* the creation of a communicator */
    SW_READER_EMULATED = 4, /* the start of the emulated driver, once a process */
};

/* SYMWIN_OK, or SYMWIN_INVALID with a sentence that names the first variable of these readers that is
 * set to what makes no sense. `call`: NULL, or what the sentence begins with. */
symwin_status sw_settings_check(const char *call, unsigned readers);

/* The value; the default where the variable is not set, or was refused by sw_settings_check(). */
uint64_t sw_setting(enum sw_setting which);
const char *sw_setting_text(enum sw_setting which); /* of one that is a text; NULL: not set */

/* A row of the table, for the documentation's test. */
const char *sw_setting_name(enum sw_setting which);
void sw_setting_allowed(enum sw_setting which, char *text, size_t bytes);

/* ---- tickets.c: what public handles stand for -------------------------------------------------- */

/* A handle is no address: a slot in its low bits, and above a number that no handle of this process
 * has had before. So one that was given back, or is another table's, is known as such. One thread at
 * a time. */
enum { SW_HANDLES_MOST = 1 << 20 };

/* All zero: empty. */
struct sw_handle_table {
    struct sw_handle_entry {
        void *thing;      /* NULL: free */
        uintptr_t handle; /* of a free one the next free slot, counted from 1; 0: none */
    } * tickets;          /* owned */
    size_t room, count, first_free;
};

/* Room for one thing more, so that sw_handle_table_add() cannot fail. 0: no host memory. */
int sw_handle_table_reserve(struct sw_handle_table *t);

/* In room that was reserved; the handle is not 0. */
uintptr_t sw_handle_table_add(struct sw_handle_table *t, void *thing);

void *sw_handle_table_find(const struct sw_handle_table *t,
                           uintptr_t handle); /* NULL: nothing has it */

/* Takes out the thing that has it, if any. */
void sw_handle_table_remove(struct sw_handle_table *t, uintptr_t handle);

/* The things one by one: *at is 0 before the first; NULL after the last. Any may be removed meanwhile. */
void *sw_handle_table_next(const struct sw_handle_table *t, size_t *at);

void sw_handle_table_release(struct sw_handle_table *t); /* and not the things */

#endif
