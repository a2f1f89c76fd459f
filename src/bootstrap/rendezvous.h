/* The creator's side: the rendezvous (rendezvous.c, hand_out.c) and its listener (listener.c).
 * Under the poll lock.
 *
 * A rendezvous of ranks on several hosts is followed by a host-local one on each host but the
 * creator's. There `table` is set, and ranks count from 0; texts and culprits have the number among
 * all ranks. */
#ifndef SYMWIN_RENDEZVOUS_H
#define SYMWIN_RENDEZVOUS_H

#include "src/bootstrap/id.h"

/* A rank of a rendezvous. */
struct slot {
    int taken;
    int64_t deadline;             /* of this rank */
    struct sw_accepted *accepted; /* NULL: a thread of this process */
    /* All ranks have joined, and this one must send READY: the lowest rank of another process here,
     * for its process; or a rank of another host, once it has joined the ranks of its host. */
    int awaited;
    int ready;  /* has sent it */
    int linked; /* lowest rank of another host: its connection links the hosts, go was sent */
    int remote; /* joined by TCP */
    unsigned char process[SW_NAME_BYTES];
    unsigned char host[SW_NAME_BYTES]; /* zeros unless `remote` */
};

struct rendezvous {
    struct rendezvous *next;
    struct sw_id id;
    unsigned char name[SW_NAME_BYTES];
    struct sw_poll_watch timer;
    int timeout_ms; /* of the rank with the earliest deadline: */
    int first_due;
    int nranks; /* 0: no rank has joined */
    int posts;  /* ranks on the control page */
    struct slot *slots;
    int joined;  /* ranks that have joined */
    int unready; /* ranks that are awaited and not ready */
    int foreign; /* a rank of another process has joined, or tried to */
    int waiting; /* threads of this process that wait; the last frees it once it is over */
    int over;
    int extended;         /* the timer was put off */
    int64_t patience_ms;  /* how long ranks that read slowly may still be waited for in all */
    symwin_status status; /* outcome */
    int culprit;          /* number among all ranks; -1: no rank */
    char text[SW_TEXT_BYTES];
    struct sw_group *group;          /* for the threads of this process */
    char *file;                      /* owned: the id's file; NULL: none */
    struct sw_rank_table *table;     /* owned: of all ranks; NULL: not host-local */
    int host;                        /* this host's number in the table */
    struct sw_connection connection; /* owned: to the deciding host; .fd -1: none */
    struct sw_poll_watch link;       /* of `connection`, until it is handed out */
};

/* ---- hand_out.c ---- */

/* The number of a rank among all ranks, for texts. */
int sw_rendezvous_number(const struct rendezvous *m, int rank);

/* Makes that rank the culprit; returns `status`. */
symwin_status sw_rendezvous_culprit(struct rendezvous *m, int rank, symwin_status status);

/* The last error is a failure of this process, not of a rank that joins: makes the lowest rank of
 * this process the culprit and says so in the text. Returns `status`. */
symwin_status sw_rendezvous_own(struct rendezvous *m, symwin_status status);

/* Sends a frame to a rank. If the rank is unreachable, or there is no room for the frame until the
 * ranks have been waited for for SW_TELL_MS in all, it is the culprit. */
enum { SW_TELL_MS = 1000 };
symwin_status sw_rendezvous_tell(struct rendezvous *m, int rank, union sw_frame *frame,
                                 enum sw_frame_type type, int fd);

/* Sends every process what it needs and creates the group of this one. From then on the
 * ranks with `awaited` must send READY. */
symwin_status sw_rendezvous_hand_out(struct rendezvous *m);

/* ---- rendezvous.c ---- */

/* Opens a rendezvous: ranks can join from now on. Fills in what the id lacks: creator, folder, and
 * the port if any will do. */
symwin_status sw_rendezvous_open(struct sw_id *id, const struct sw_id_options *options,
                                 const char *for_call);

/* Ends the rendezvous of an id that was not used. */
symwin_status sw_rendezvous_close(const struct sw_id *id);

/* A thread of this process joins and waits until all ranks have joined or the rendezvous has
 * failed. Same status for all ranks. */
symwin_status sw_rendezvous_join(const struct sw_id *id, const struct sw_frame_join *join,
                                 struct sw_group **out);

/* In a forked child: forgets all. */
void sw_rendezvous_forked(void);

/* ---- listener.c ---- */

/* An accepted connection of a process that wants to join. */
struct sw_accepted {
    struct sw_poll_watch watch;
    struct sw_accepted *next; /* newest first */
    struct sw_connection connection;
    pid_t pid; /* as seen from here; 0: not visible */
    struct sw_frame_hello hello;
    struct sw_frame_challenge challenge;
    struct rendezvous *rendezvous; /* NULL: no HELLO yet */
    int has_slot;                  /* authenticated */
    int rank;
};

/* What the listener tells those who open it. */
struct sw_listener_events {
    /* Finds the rendezvous of that name. A failure says why there is none. *secret: of the one that
     * had the name; NULL: unknown. */
    symwin_status (*find)(const unsigned char name[SW_NAME_BYTES], struct rendezvous **out,
                          int *culprit, const unsigned char **secret);
    /* A rank has proved that it knows the secret. */
    void (*joined)(struct sw_accepted *accepted, const struct sw_frame_join *join);
    /* A frame of a rank that has joined; NULL: its connection has ended. */
    void (*received)(struct sw_accepted *accepted, const union sw_frame *frame);
    /* This process has failed; the last error says how. */
    void (*failed)(struct rendezvous *rendezvous, symwin_status status);
    void (*no_room)(int error); /* accept() found no descriptor; `error` is its errno */
};

/* Opens what is not open yet: the local socket in a private folder, and a TCP socket if the id has
 * an address. Writes folder and port to the id. Having no folder is no failure: threads of this
 * process can join without it. */
symwin_status sw_listener_open(struct sw_id *id, const struct sw_listener_events *events);

/* Once for each successful sw_listener_open(); the last one closes the sockets. `linger`: a second
 * later, so that late ranks of a failed rendezvous learn why. */
void sw_listener_close(int linger);

/* Iterates over the accepted connections of a rendezvous; `last` NULL: the first. */
struct sw_accepted *sw_listener_next(const struct rendezvous *rendezvous,
                                     const struct sw_accepted *last);
void sw_listener_drop(struct sw_accepted *accepted);
void sw_listener_refuse(struct sw_accepted *accepted, symwin_status status, int culprit,
                        const char *text);
void sw_listener_clear(void); /* refuses all without a slot: their descriptors are needed */
void sw_listener_forked(void);

#endif
