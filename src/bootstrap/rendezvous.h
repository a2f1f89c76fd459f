/* A meeting, as root.c holds it and handout.c ends it. Under the service lock. */
#ifndef SYMWIN_MEETING_H
#define SYMWIN_MEETING_H

#include "src/bootstrap/bootstrap.h"

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

#endif
