/* Ids: their contents, the file that an id is written to, and the names of processes and hosts.
 * Functions are called under the poll lock unless a comment says otherwise. */
#ifndef SYMWIN_ID_H
#define SYMWIN_ID_H

#include <sys/socket.h>

#include "src/bootstrap/bootstrap.h"

/* Contents of a symwin_unique_id. */
struct sw_id {
    unsigned char magic[8];
    unsigned char secret[SW_KEY_BYTES];   /* whoever knows it is a member */
    unsigned char creator[SW_NAME_BYTES]; /* the process that created the id */
    unsigned char host[SW_NAME_BYTES];    /* of the creator */
    uint16_t family;                      /* AF_INET or AF_INET6; 0: not reachable by TCP */
    uint16_t port;                        /* network byte order, like the address */
    unsigned char address[16];
    /* Has the creator's local socket; "": none. */
    char folder[128 - 8 - SW_KEY_BYTES - 2 * SW_NAME_BYTES - 20];
};
_Static_assert(sizeof(struct sw_id) == sizeof(symwin_unique_id), "fills it");

#define SW_SOCKET_NAME "/s" /* in the folder */

/* Options of a new id. */
struct sw_id_options {
    const unsigned char *secret;       /* known to all ranks beforehand; NULL: random */
    int everywhere;                    /* `address` must mean the same on all hosts */
    const char *address;               /* host name or number to listen on; NULL: no TCP */
    const struct sockaddr_storage *at; /* or this address */
    int port;                          /* 0: any */
    const char *file;                  /* write the id there until it is used; NULL: do not */
    int far; /* for the ranks of one host that is not the creator's: see rendezvous.h */
};

/* Creates an id and opens its rendezvous. `options` NULL: defaults. Without the lock. */
symwin_status sw_id_make(struct sw_id *id, const struct sw_id_options *options, const char *call);

/* Makes the same id in another process, from the secret and the creator's address. Without the
 * lock. */
symwin_status sw_id_derive(struct sw_id *id, const struct sw_id_options *options, const char *call);

void sw_id_blank(struct sw_id *id); /* valid, but without creator or secret */
int sw_id_is_valid(const struct sw_id *id);

/* Converts the address and port of an id to a socket address and returns its length;
 * sw_id_set_address() is the inverse, without the port. Bytes 4 to 7 of an IPv6 link-local address
 * are zero; an id keeps the interface index there, which is valid on this host only. */
socklen_t sw_id_address(const struct sw_id *id, struct sockaddr_storage *out);
int sw_id_set_address(struct sw_id *id, const struct sockaddr_storage *address); /* 0: not IP */
uint32_t sw_id_interface(const struct sw_id *id);            /* 0: not link-local */
void sw_id_set_interface(struct sw_id *id, uint32_t number); /* no effect if not link-local */

/* Sets the id's address and port from a host name or number, or from the name of an interface
 * unless `everywhere` is set. Without the lock: name resolution has no time limit, and while the
 * lock is held this process does not notice the death of another. */
symwin_status sw_id_resolve(const char *name, int port, int everywhere, struct sw_id *id,
                            const char *call);

/* Whether ranks of this process join at the creator's local socket. Any thread. */
int sw_id_is_near(const struct sw_id *id);

/* Whether the creator of an id answers and still waits for ranks with it. Without the lock. */
int sw_id_is_open(const struct sw_id *id, int64_t deadline);

/* The file through which ranks of one user on one host find an id. Any thread.
 * sw_id_tail(): the end of its name, "/<hash of the parts>". sw_id_file(): the full name, for the
 * creator; creates the folder if needed. sw_id_write(): writes the file. */
#define SW_FILE_NAME_BYTES 256
#define SW_TAIL_BYTES 34
void sw_id_tail(const struct sw_part *parts, int count, char tail[SW_TAIL_BYTES]);
symwin_status sw_id_file(const char *tail, const char *call, char name[SW_FILE_NAME_BYTES],
                         int64_t deadline);
symwin_status sw_id_write(const char *name, const struct sw_id *id, const char *call);

/* Looks once for the file of an id for which `is_open` (sw_id_is_open()) is true: the creator of a
 * leftover file does not answer. Does not wait for the file. `turn` counts the looks from 0, since
 * only some of them read whole folders. 0: not found; -1: the time was over before all was read. */
int sw_id_read(const char *tail, unsigned turn, struct sw_id *id,
               int (*is_open)(const struct sw_id *id, int64_t deadline), int64_t deadline);

/* Fails for a look that took all the time. */
symwin_status sw_id_full(const char *call);

/* ---- claim.c: claims of ranks of a job on one host; without the lock, except the last two ---- */

struct sw_claim;

/* Claims the rank for this process while it joins. `file` is the id's. SYMWIN_INVALID: another
 * process has claimed it. *out NULL: the file system has no locks. */
symwin_status sw_claim_take(const char *file, int rank, const char *job, const char *call,
                            struct sw_claim **out);
/* Claims the making of the id whose file that is. *out NULL: another process has claimed it. */
symwin_status sw_claim_making(const char *file, const char *call, struct sw_claim **out);
void sw_claim_free(struct sw_claim *claim);
/* Holds the claim until sw_claim_drop() with the same id. */
void sw_claim_hold(struct sw_claim *claim, const struct sw_id *id);
void sw_claim_drop(const struct sw_id *id);          /* no effect without a claim */
int sw_claim_disputed(const char *file, int nranks); /* a rank claimed twice; -1: none */
void sw_claims_forked(void);                         /* in a forked child: forgets all */

/* ---- names ---- */

/* Fills `out` with random bytes. Any thread. */
symwin_status sw_random_bytes(void *out, size_t bytes, const char *for_call);

/* The name of this process: random, and a new one after a fork. */
symwin_status sw_process_name(unsigned char name[SW_NAME_BYTES]);

/* The name of this host: a hash of SYMWIN_HOST_ID, or of the boot id and the mount namespace. Any
 * thread. */
void sw_host_name(unsigned char name[SW_NAME_BYTES]);
void sw_machine_name(unsigned char name[SW_NAME_BYTES]); /* same in all mount namespaces */

/* The public name of an id, which clients send instead of the secret: a hash of it. Any thread. */
void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES]);

/* Fills in a JOIN frame: rank, nranks, timeout_ms, and the names and pid of this process. */
symwin_status sw_join_fill(struct sw_frame_join *join, int nranks, int rank, int timeout_ms);

#endif
