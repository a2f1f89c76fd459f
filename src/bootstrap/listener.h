/* The sockets of a rendezvous, and the connections that are accepted there: listener.c. */
#ifndef SYMWIN_LISTENER_H
#define SYMWIN_LISTENER_H

#include "src/bootstrap/id.h"

struct rendezvous;

/* An accepted connection of a process that wants to join. */
struct sw_accepted {
    struct sw_poll_watch watch;
    struct sw_accepted *next; /* newest first */
    struct sw_connection connection;
    pid_t pid; /* as seen from here; 0: not visible */
    struct sw_frame_hello hello;
    struct sw_frame_challenge challenge;
    struct rendezvous *rendezvous; /* NULL: no HELLO yet */
    const unsigned char *secret;   /* of the id that HELLO names */
    int has_slot;                  /* authenticated */
    int rank;                      /* -1: it contradicts others */
    int is_link, has_table;        /* from a host below, which has the table from here: tree.c */
};

/* What the listener tells those who open it. */
struct sw_listener_events {
    /* Finds the rendezvous of that name. A failure says why there is none. *secret: of the one that
     * has or had the name; NULL: unknown. */
    symwin_status (*find)(const unsigned char name[SW_NAME_BYTES], struct rendezvous **out,
                          int *culprit, const unsigned char **secret);
    /* A rank has proved that it knows the secret. */
    void (*joined)(struct sw_accepted *accepted, const struct sw_frame_join *join);
    /* One that cannot join has. */
    void (*refused)(struct rendezvous *rendezvous, const struct sw_frame_refusal *refusal);
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

/* While a rendezvous is open: also listens at the address, for hosts below. Writes the port. */
symwin_status sw_listener_port(struct sw_id *id);

/* Once for each successful sw_listener_open(); the last one closes the sockets. `linger`: a second
 * later, so that late ranks of a failed rendezvous learn why. */
void sw_listener_close(int linger);

/* Iterates over the accepted connections of a rendezvous; `last` NULL: the first. */
struct sw_accepted *sw_listener_next(const struct rendezvous *rendezvous,
                                     const struct sw_accepted *last);
void sw_listener_drop(struct sw_accepted *accepted);
void sw_listener_refuse(struct sw_accepted *accepted, symwin_status status, int culprit,
                        const char *text);
void sw_listener_redirect(struct sw_accepted *accepted, const char *folder);
void sw_listener_clear(void); /* refuses all without a slot: their descriptors are needed */
void sw_listener_forked(void);

#endif
