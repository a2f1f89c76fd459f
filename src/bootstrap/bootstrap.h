/* How ranks find each other: what bootstrap.c (the rank that joins), knock.c (its way to the process that made
 * the id), arrivals.c (what that gives its process), root.c and handout.c (that process), door.c (its sockets), id.c,
 * id_file.c and group.c share. Called under the service lock unless it says otherwise. */
#ifndef SYMWIN_BOOTSTRAP_H
#define SYMWIN_BOOTSTRAP_H

#include <sys/socket.h>

#include "src/control/frame.h"
#include "src/control/group.h"
#include "src/control/host_link.h"

/* What a symwin_unique_id holds. */
struct sw_id {
    unsigned char magic[8];
    unsigned char secret[SW_KEY_BYTES]; /* who has it is a member */
    unsigned char maker[SW_NAME_BYTES]; /* the process that made it */
    unsigned char host[SW_NAME_BYTES];  /* and its host */
    uint16_t family;                    /* AF_INET, AF_INET6; 0: it cannot be reached by TCP */
    uint16_t port;                      /* in network order, as the address */
    unsigned char address[16];
    char folder[128 - 8 - SW_KEY_BYTES - 2 * SW_NAME_BYTES - 20]; /* with its socket; "": none */
};
_Static_assert(sizeof(struct sw_id) == sizeof(symwin_unique_id), "fills it");

#define SW_SOCKET_NAME "/s" /* in the folder */

/* What is known when an id is made; all but `secret` and `address` for meetings of one host's ranks. */
struct sw_id_options {
    const unsigned char *secret; /* that all ranks make the same id of; NULL: a random one */
    int everywhere;              /* the address has to mean the same on all hosts */
    const char *address; /* to be reached at by TCP, host name or number; NULL: not at all */
    const struct sockaddr_storage *at; /* or this one */
    int port;                          /* 0: any */
    const char *file; /* where to write the id down; removed when it has served; NULL */
    const struct sw_frame_table
        *table; /* this is a meeting of the ranks of `host` of that table; NULL */
    int host;
    struct sw_connection
        *connection; /* and this process links the host: to the deciding host; NULL */
};

/* Makes an id. `options` NULL: the defaults. Without the lock. */
symwin_status sw_id_make(struct sw_id *id, const struct sw_id_options *options, const char *call);

/* The id of a maker on another host (or this one), from the secret and where it listens. */
symwin_status sw_id_far(struct sw_id *id, const struct sw_id_options *options, const char *call);

void sw_id_blank(struct sw_id *id); /* valid, and of nobody yet */
int sw_id_is_valid(const struct sw_id *id);
void sw_id_forked(void);

/* For sw_fork_register(), by whoever first has something to forget. */
void sw_bootstrap_forget(void);

/* The address and port of an id for the system, with its length; and the other way, but for the port. Where a link-local
 * address has zeros, bytes 4 to 7, an id has the number of the interface, which is this host's own. */
socklen_t sw_id_address(const struct sw_id *id, struct sockaddr_storage *out);
int sw_id_set_address(struct sw_id *id, const struct sockaddr_storage *address); /* 0: of no use */
uint32_t sw_id_interface(const struct sw_id *id);            /* 0: the address needs none */
void sw_id_set_interface(struct sw_id *id, uint32_t number); /* if it does */

/* Whether the maker of an id still waits for ranks with it. Without the lock. */
int sw_id_is_open(const struct sw_id *id, int64_t deadline);

/* Where ranks of this user on this host look for an id: the end of the file's name, the whole name for the maker, which may
 * make a folder, and writing it. Any thread. */
#define SW_FILE_NAME_BYTES 256
#define SW_TAIL_BYTES 34
void sw_id_tail(const struct sw_part *parts, int count, char tail[SW_TAIL_BYTES]);
symwin_status sw_id_file(const char *tail, const char *call, char name[SW_FILE_NAME_BYTES]);
symwin_status sw_id_write(const char *name, const struct sw_id *id, const char *call);

/* Whether there is the id of a maker that answers, as `is_open` (sw_id_is_open) finds out, wherever it was written. Does not
 * wait for the file; `turn` counts the looks, from 0. */
int sw_id_read(const char *tail, unsigned turn, struct sw_id *id,
               int (*is_open)(const struct sw_id *id, int64_t deadline), int64_t deadline);

/* Puts "<place><tail>" into `name`: a place for files that come and go, number `which`. 0: there is none
 * of that number, or it is too long. */
#define SW_FILE_PLACES 3
int sw_file_place_name(int which, const char *tail, char *name, size_t room);

/* The same with a folder of this user, which no other can enter; made where it is not there, if `make` is set. 0: no
 * such folder. Any thread, without the lock. */
int sw_own_folder(int which, int make, char *name, size_t room);

/* ---- claim.c: a rank's number in a launched job on one host; without the lock, but for the last two ---- */

struct sw_claim;

/* Claims the number for this process as long as it is on its way; `file` is the id's. SYMWIN_INVALID: another process has it.
 * *out NULL: the file system cannot tell. */
symwin_status sw_claim_take(const char *file, int rank, const char *job, const char *call,
                            struct sw_claim **out);
void sw_claim_free(struct sw_claim *claim);
void sw_claim_keep(struct sw_claim *claim, const struct sw_id *id); /* until it is dropped */
void sw_claim_drop(const struct sw_id *id);                         /* if there is one */
int sw_claim_disputed(const char *file, int nranks); /* a rank that two processes claim; -1 */
void sw_claims_forked(void);

/* Random bytes, for the call of that name. */
symwin_status sw_random_bytes(void *out, size_t bytes, const char *for_call);

/* This process, to others: random, and another one after a fork. */
symwin_status sw_process_name(unsigned char name[SW_NAME_BYTES]);

/* This host: SYMWIN_HOST_ID, or what the system says. Any thread. */
void sw_host_name(unsigned char name[SW_NAME_BYTES]);
void sw_machine_name(unsigned char name[SW_NAME_BYTES]); /* the same for all its mount namespaces */

/* What the maker is asked for instead of the secret. Any thread. */
void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES]);

/* Fills in rank, nranks, timeout_ms and what identifies this process. */
symwin_status sw_join_fill(struct sw_frame_join *join, int nranks, int rank, int timeout_ms);

/* ---- knock.c: without the lock ---- */

#define SW_GRACE_MS 1000 /* for the maker's word on who is late, past one's own deadline */

/* Goes to the maker, and comes again where that promises something. `deadline` has SW_GRACE_MS in it; what the maker
 * hears in JOIN is what is left without. `frame`: the answer to JOIN, TABLE or HERE;
 * on failure the maker's last word, type 0: there was none. `first`: the channel to the maker of a meeting of
 * several hosts, where this is one of one host's ranks; told READY, and closed, on the way. NULL: it is not. */
symwin_status sw_client_join(const struct sw_id *id, struct sw_frame_join *join,
                             struct sw_connection *first, int64_t deadline,
                             struct sw_connection *connection, union sw_frame *frame);

/* Tells the maker that this rank is with the ranks of its host. */
void sw_client_ready(struct sw_connection *first);

/* The next frame from the maker, which must be of that type. A descriptor that comes along is kept. */
symwin_status sw_client_recv_frame(struct sw_connection *connection, union sw_frame *frame,
                                   enum sw_frame_type type, int *fd, int64_t deadline);

/* Sends a frame to the maker. Where it is gone there will be no answer, or its last word is still to be
 * read. */
symwin_status sw_client_send_frame(struct sw_connection *connection, const union sw_frame *frame,
                                   int64_t deadline);

/* ---- arrivals.c: without the lock ---- */

/* For rank `rank` of all, which is about to go: what it will need whatever becomes of it. One of the next four calls
 * takes it back. NULL: no memory. */
struct sw_process_join *sw_process_join_new(const struct sw_id *id, int rank);
void sw_process_join_free(struct sw_process_join *own);

/* The lowest rank of a process has made the group, or failed as last said, for `mates` others of the process. */
void sw_process_join_publish(struct sw_process_join *own, int mates, symwin_status status,
                             struct sw_group *group);

/* The others wait for that. */
symwin_status sw_process_join_await(struct sw_process_join *own, int64_t deadline,
                                    struct sw_group **out);

/* Or they have failed on their way, and will not come for it; the ranks that did come hear of it. */
void sw_process_join_abandon(struct sw_process_join *own, symwin_status status, int64_t deadline);

void sw_process_join_forked(void); /* under the lock: in a forked child, forgets all */

/* ---- root.c ---- */

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

/* ---- door.c ---- */

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

/* What door.c asks root.c. */
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
