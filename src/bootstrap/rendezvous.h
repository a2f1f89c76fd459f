/* The creator's side: the rendezvous (rendezvous.c, hand_out.c, upward.c) and its listener
 * (listener.c). Under the poll lock.
 *
 * Each host but the creator's has a rendezvous of its own, where its ranks join. Its process passes
 * the joins on to the creator in one connection, and the creator answers with the table of all
 * ranks. Such a rendezvous is `far`. */
#ifndef SYMWIN_RENDEZVOUS_H
#define SYMWIN_RENDEZVOUS_H

#include <pthread.h>

#include "src/bootstrap/id.h"
#include "src/bootstrap/listener.h"

/* A rank of a rendezvous. */
struct slot {
    int taken;
    int64_t deadline;             /* of this rank */
    int timeout_ms;               /* it gave so much when it joined */
    struct sw_accepted *accepted; /* NULL: a thread of this process, or a rank that `remote` has */
    /* All ranks have joined, and this one must send READY: the lowest rank of another process here,
     * for its process. */
    int awaited;
    int ready;             /* has sent it */
    int remote;            /* on another host; `accepted`: it has joined for that host */
    int linked;            /* its connection links the hosts, go was sent */
    int silent;            /* it has not answered ASK */
    int waits;             /* it has not joined, and says that it waits for another of its host */
    int has_links;         /* it has said LINKED */
    struct sw_place place; /* where its host listens */
    unsigned char process[SW_NAME_BYTES];
    unsigned char host[SW_NAME_BYTES]; /* zeros unless `remote` */
};

struct rendezvous {
    struct rendezvous *next;
    struct sw_id id;
    unsigned char name[SW_NAME_BYTES];
    struct sw_poll_watch timer;
    int timeout_ms; /* of the rank with the earliest deadline: */
    int first_due;  /* -1: on another host */
    int nranks;     /* 0: no rank has joined */
    struct slot *slots;
    int joined;  /* ranks that have joined */
    int unready; /* ranks that are awaited and not ready */
    int foreign; /* a rank of another process has joined, or tried to */
    int waiting; /* threads of this process that wait; the last frees it once it is over */
    int over;
    int asked;            /* whether those run who have joined for other hosts */
    int64_t patience_ms;  /* how long ranks that read slowly may still be waited for in all */
    symwin_status status; /* outcome */
    int culprit;          /* number among all ranks; -1: no rank */
    char text[SW_TEXT_BYTES];
    struct sw_group *group; /* for the threads of this process */
    char *file;             /* owned: the id's file; NULL: none */
    int far;
    int moved;                  /* its ranks are on the creator's host, and go there: */
    const char *here;           /* the folder of its local socket, while it ends */
    int proposed;               /* it has failed, and waits for what the creator decides */
    struct sw_connection up;    /* owned: to the creator; .fd -1: not yet, or no longer */
    struct sw_poll_watch watch; /* of `up`, until it is handed out */
    struct sw_rank_table table; /* owned: from the creator, or from the host above */
    struct sw_id all;           /* the creator's id, and its name, in a far rendezvous */
    unsigned char all_name[SW_NAME_BYTES];
    int is_tree;                      /* hosts are linked as a tree, and not as a star: tree.c */
    int unlinked;                     /* at the creator: hosts that have not said LINKED */
    int needs_link, told_linked;      /* in a far rendezvous: to the host above; LINKED was sent */
    struct sw_connection above;       /* owned: the link to the host above; .fd -1: none */
    struct sw_poll_watch above_watch; /* of `above`, until the table has come */
    int creator, above_rank;          /* as in struct sw_frame_above; -1: not known yet */
    int linking;       /* the rank to whose process this one hands links; -1: not yet, or to none */
    int is_spoken_for; /* that process has the links, and has sent a word */
    struct sw_connection passed;  /* owned: the link to the host above, which that process has */
    struct sw_frame_join strange; /* of a rank that contradicts others; .header.bytes 0: none */
};

/* ---- upward.c: from a far rendezvous to the creator of the id ---- */

/* Pass a rank's join on. An errno: the creator cannot be reached. */
int sw_up_join(struct rendezvous *m, int rank);
int sw_up_strange(struct rendezvous *m);
/* Says why this rendezvous has failed. */
void sw_up_refuse(struct rendezvous *m, struct sw_connection *up);
/* Takes a part of the table. SYMWIN_DENIED: it is wrong. */
symwin_status sw_up_take_table(struct rendezvous *m, const struct sw_frame_table *part);
/* This host's number in the table, which must have the ranks that have joined here on it, in the
 * processes that they have named, and no others; -1: it has not. */
int sw_up_host(const struct rendezvous *m);
void sw_up_drop(struct rendezvous *m);
/* Nothing more is read from the host above here. */
void sw_up_leave_above(struct rendezvous *m);

/* ---- hand_out.c ---- */

/* Makes it the culprit, unless a failure is proposed already; returns `status`. */
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

/* The lowest rank of this process; -1: none has joined. */
int sw_rendezvous_lowest(const struct rendezvous *m);

/* Numbers processes and hosts of the ranks that have joined: fills in the table. */
symwin_status sw_rendezvous_number(struct rendezvous *m);

/* ---- tree.c ---- */

/* At the creator, when all ranks have joined: if hosts are to be a tree, tells each where the one
 * above it listens. m->unlinked then counts down to 0 (sw_tree_is_linked()). */
symwin_status sw_tree_begin(struct rendezvous *m);
/* LINKED has come. Returns 0 if that was not to be said. */
int sw_tree_linked(struct rendezvous *m, struct slot *s);

/* In a far rendezvous: ABOVE has come; a host below has joined; the thread that joins for the host,
 * which does not hold the lock then, makes the link to the one above. */
symwin_status sw_tree_above(struct rendezvous *m, const struct sw_frame_above *frame);
void sw_tree_join(struct rendezvous *m, struct sw_accepted *accepted,
                  const struct sw_frame_join *join);
void sw_tree_connect(struct rendezvous *m, const struct sw_frame_join *join);

/* ---- join_check.c ---- */

/* Fails if the rank that joins contradicts those before it. `accepted` NULL: a thread. */
symwin_status sw_join_check(struct rendezvous *m, const struct sw_frame_join *join,
                            const struct sw_accepted *accepted);

/* ---- rendezvous_end.c ---- */

struct all_rendezvous {
    pthread_cond_t changed; /* one is over */
    struct rendezvous *list;
};
extern struct all_rendezvous sw_rendezvous;

symwin_status sw_rendezvous_find(const unsigned char name[SW_NAME_BYTES], struct rendezvous **out,
                                 int *culprit, const unsigned char **secret);

/* End the rendezvous, and may free it: with its status and text; with the last error's; the same,
 * but the creator decides for a far one, if it can be asked; because a rank is late. */
void sw_rendezvous_end(struct rendezvous *m);
void sw_rendezvous_decide(struct rendezvous *m, symwin_status status);
void sw_rendezvous_fail(struct rendezvous *m, symwin_status status);
void sw_rendezvous_fail_late(struct rendezvous *m);
void sw_rendezvous_late(struct sw_poll_watch *timer, short events);
/* The lowest rank that joined for another host, whose process does not answer; -1: all do. */
int sw_rendezvous_silent(const struct rendezvous *m);
void sw_rendezvous_free(struct rendezvous *m);
int sw_rendezvous_is_over(const struct sw_id *id);
void sw_rendezvous_forget(void); /* in a forked child: what is remembered */

/* ---- rendezvous.c ---- */

/* Ranks can join from now on. Fills in what the id lacks: creator, folder, and any port. */
symwin_status sw_rendezvous_open(struct sw_id *id, const struct sw_id_options *options,
                                 const char *for_call);
/* Ends the rendezvous of an id that was not used. */
symwin_status sw_rendezvous_close(const struct sw_id *id);

/* A thread of this process joins and waits until all ranks have joined or the rendezvous has
 * failed. Same status for all ranks. SYMWIN_BUSY: the rendezvous was moved. `up` NULL, or the
 * connection to the creator of the id `all`, where the rank has joined; moved into the rendezvous,
 * which is far. */
symwin_status sw_rendezvous_join(const struct sw_id *id, const struct sw_frame_join *join,
                                 struct sw_connection *up, const struct sw_id *all,
                                 struct sw_group **out);

/* For the rank that opened a far rendezvous and cannot join at the creator. With a folder: its
 * ranks are on the creator's host, whose local socket is there. NULL: the last error tells them
 * why; returns what ended the rendezvous. */
void sw_rendezvous_move(const struct sw_id *id, const char *folder);
symwin_status sw_rendezvous_give_up(const struct sw_id *id, symwin_status status);

/* In a forked child: forgets all. */
void sw_rendezvous_forked(void);

#endif
