/* The side of the process that made the id: the rendezvous (rendezvous.c, hand_out.c) and its listener (listener.c). Under
 * the poll lock. */
#ifndef SYMWIN_RENDEZVOUS_H
#define SYMWIN_RENDEZVOUS_H

#include "src/bootstrap/id.h"

struct slot {
    int taken;
    int64_t deadline;             /* of its own */
    struct sw_accepted *accepted; /* NULL: a thread of this process */
    int awaited; /* all have come, and it has to say that it is ready: for its process, the lowest
                  * rank of another one here; or that it is with the ranks of its host */
    int ready;   /* and has said so */
    int linked; /* the lowest rank of another host: it has gone, and its connection links the hosts */
    int far;    /* it came through TCP */
    unsigned char process[SW_NAME_BYTES];
    unsigned char host[SW_NAME_BYTES]; /* of one that did; else zeros */
};

struct rendezvous {
    struct rendezvous *next;
    struct sw_id id;
    unsigned char name[SW_NAME_BYTES];
    struct sw_poll_watch timer;
    int timeout_ms; /* of the rank whose deadline comes first */
    int nranks;     /* 0: nobody has come yet */
    int posts;      /* ranks that the control page is for */
    struct slot *slots;
    int come;
    int unready; /* ranks that are awaited, and not ready */
    int foreign; /* ranks of other processes among them */
    int inside;  /* threads of this process that wait; the last frees a meeting that is over */
    int over;
    int extended;         /* its timer has been put off */
    symwin_status status; /* how it ended */
    int culprit;          /* whose fault that was, by its number among all ranks; -1: no rank's */
    char text[SW_TEXT_BYTES];
    struct sw_group *group; /* for the threads of this process */
    char *file;             /* owned: where the id is written down, NULL: nowhere */
    struct sw_frame_table
        *table; /* owned: of all ranks, where this is a meeting of one host's; or NULL */
    int host;
    struct sw_connection
        connection;            /* owned: to the deciding host, .fd -1: not this process's affair */
    struct sw_poll_watch link; /* it, until it is handed out */
};

/* What a sentence calls a rank: in a meeting of one host's ranks, by its number among all. */
int sw_rendezvous_number(const struct rendezvous *m, int rank);

/* The status is that rank's fault. */
symwin_status sw_rendezvous_culprit(struct rendezvous *m, int rank, symwin_status status);

/* What sw_fail() has just said is the trouble of this process, not of a rank that comes. */
symwin_status sw_rendezvous_own(struct rendezvous *m, symwin_status status);

/* Sends a frame to a rank, which is to blame where it is not here any more. */
symwin_status sw_rendezvous_tell(struct rendezvous *m, int rank, union sw_frame *frame,
                                 enum sw_frame_type type, int fd);

/* Gives every process what it needs, and makes this one's group. From then on the leaders of the others
 * have to get ready. */
symwin_status sw_rendezvous_hand_out(struct rendezvous *m);

/* ---- rendezvous.c ---- */

/* Opens an id, complete but for the folder and the port if any will do: from now on ranks can come. */
symwin_status sw_rendezvous_open(struct sw_id *id, const struct sw_id_options *options,
                                 const char *for_call);

/* Ends the meeting under an id that has not served. */
symwin_status sw_rendezvous_close(const struct sw_id *id);

/* A thread of this process takes its seat and waits until all ranks have come or the meeting has
 * failed; the same status for all. */
symwin_status sw_rendezvous_join(const struct sw_id *id, const struct sw_frame_join *join,
                                 struct sw_group **out);

/* In a forked child: forgets all. */
void sw_rendezvous_forked(void);

/* ---- listener.c ---- */

/* A connection of a rank that comes. */
struct sw_accepted {
    struct sw_poll_watch watch;
    struct sw_accepted *next; /* newest first */
    struct sw_connection connection;
    pid_t pid; /* as seen from here, 0: not at all */
    struct sw_frame_hello hello;
    struct sw_frame_challenge challenge;
    struct rendezvous *rendezvous; /* NULL: it has not said hello */
    int has_slot;
    int rank;
};

/* Opens the socket in a private folder, and one for TCP where the id has an address, unless they are open there;
 * says in the id where. No folder to be had is no failure: threads of this process can do without. */
symwin_status sw_listener_open(struct sw_id *id);

/* Closes the sockets, at once or when ranks of a failed meeting have had the time to hear of it. */
void sw_listener_rest(int linger);

/* The visitors of a meeting, one after another: pass NULL first. */
struct sw_accepted *sw_listener_next(const struct rendezvous *rendezvous,
                                     const struct sw_accepted *last);
void sw_listener_drop(struct sw_accepted *accepted);
void sw_listener_refuse(struct sw_accepted *accepted, symwin_status status, int culprit,
                        const char *text);
void sw_listener_clear(void); /* sends all away who have no seat: their descriptors are needed */
void sw_listener_forked(void);

/* A host name or number as an id has it, or an interface of this host unless the name is to mean the same `everywhere`.
 * Without the lock: asking for a name takes as long as it takes, and whoever holds the lock keeps this process from
 * seeing that another has died. */
symwin_status sw_listener_resolve(const char *name, int port, int everywhere, struct sw_id *id,
                                  const char *call);

/* What listener.c asks rendezvous.c. */
struct rendezvous *sw_rendezvous_named(const unsigned char name[SW_NAME_BYTES]);
symwin_status sw_rendezvous_why_not(const unsigned char name[SW_NAME_BYTES], int *culprit,
                                    const unsigned char **secret); /* there is no such meeting */
const unsigned char *sw_rendezvous_secret(const struct rendezvous *rendezvous);
void sw_rendezvous_take_slot(struct sw_accepted *accepted, const struct sw_frame_join *join);
void sw_rendezvous_ended(
    const struct sw_group *group); /* maybe one that not all of its ranks have got yet */
void sw_rendezvous_failed(struct rendezvous *rendezvous,
                          symwin_status status); /* by this process; see last error */
int sw_rendezvous_ready(struct sw_accepted *accepted,
                        const union sw_frame *frame);  /* 0: nobody asked */
void sw_rendezvous_lost(struct sw_accepted *accepted); /* it had a seat */
void sw_rendezvous_no_room(int error);                 /* no descriptor is left for a visitor */
int sw_rendezvous_expects(void);                       /* a meeting is open */

#endif
