/* A job of three that is attacked while it starts, and a frame that attackers begin with. */
#ifndef SYMWIN_TESTS_ATTACKED_H
#define SYMWIN_TESTS_ATTACKED_H

#include "hostile.h"

/* SOON_MS: less than strangers may take for a handshake (5 s), and more than a rank waits before it
 * connects again (2 s). */
enum { RANKS = 3, LATE = RANKS - 1, ATTACKER = RANKS, MOST = 200, SOON_MS = 4000 };

/* A valid HELLO in a buffer large enough for more. */
HARNESS_UNUSED union sw_frame hostile_hello(const symwin_unique_id *id)
{
    union sw_frame frame;
    struct sw_id made;

    memset(&frame, 0, sizeof frame);
    memcpy(&made, id, sizeof made);
    sw_id_name(&made, frame.hello.name);
    sw_frame_seal(&frame, SW_FRAME_HELLO);
    return frame;
}

/* Closes what the parent process may have left open. */
HARNESS_UNUSED void hostile_close_inherited(void)
{
    int fd;

    for (fd = STDERR_FILENO + 1; fd < 256; fd++)
        close(fd);
}

/* Runs `job` on each rank, and `attacker` beside them; both find `arg` in p->arg. The job must
 * start soon after its last rank came, and the attacker must end well. */
HARNESS_UNUSED void hostile_run(const char *name, const void *arg,
                                void (*job)(struct processes *, int),
                                void (*attacker)(struct processes *, int))
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)arg);
    int status[RANKS + 1];
    int right = 1;
    int64_t ms;
    int r;

    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, job);
    processes_fork(p, ATTACKER, attacker);
    for (r = 0; r <= RANKS; r++) {
        status[r] = processes_wait(p, r);
        if (r < RANKS)
            right &= status[r] == 0;
    }
    ms = (p->rank[LATE].at_us - p->rank[LATE].number) / 1000;
    tap_ok(right && ms < SOON_MS, "%s: the job starts, %lld ms after its last rank came", name,
           (long long)ms);
    tap_ok(status[ATTACKER] == 0, "%s: has no answer but the right one (wait status 0x%x)", name,
           (unsigned)status[ATTACKER]);
    processes_free(p);
}

#endif
