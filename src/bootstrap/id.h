/* Ids: what they hold, where they are written down, and what identifies processes and hosts. Called under the poll lock
 * unless it says otherwise. */
#ifndef SYMWIN_ID_H
#define SYMWIN_ID_H

#include <sys/socket.h>

#include "src/bootstrap/bootstrap.h"

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

/* ---- names ---- */

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

#endif
