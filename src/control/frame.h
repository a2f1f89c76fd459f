/* What processes send each other: frames of fixed layout, little-endian, at most 64 KiB.
 *
 * Joining a communicator, over a socket of the process that made the id:
 *
 *   rank    -> HELLO      which id, a nonce
 *   maker   -> CHALLENGE  its nonce, and proof that it knows the id's secret
 *   rank    -> JOIN       who it is, and its proof
 *           -> HERE       instead of a seat, to a rank of the maker's host that came over the network:
 *                         the folder with the maker's socket
 *   maker   -> TABLE      once all ranks have come: which rank is in which process
 *           -> PAGE, LINE with a descriptor each, to the lowest rank of a process: the control
 *                         page, and a socket to each other process
 *   rank    -> READY      its process has made its group of them; or REFUSAL: why it has not
 *   maker   -> GO         all ranks are ready; to the lowest rank of a process
 *           or REFUSAL    at any time: why not
 *
 * Of another host's ranks the lowest gets GO with its TABLE: its host's ranks shall join once more, an id of
 * its own. The others say READY to the first maker when they have sent JOIN there.
 *
 * A proof is an HMAC-SHA256 keyed with the secret, over both nonces, a word for the direction, and
 * what the sender says of itself: it cannot be replayed, reflected or moved to another rank.
 *
 * Over TCP both ends key their channel (stream.c) with both nonces once there is a CHALLENGE: JOIN and all after it are
 * followed by an HMAC, and so is a REFUSAL that meets a JOIN on its way.
 *
 * Between processes, over their line: HANDLE, with the descriptor of a rank's memory; LETTER, from one rank to another,
 * with the descriptor of memory where it offers any.
 *
 * Between hosts, over TCP (links.c): POST, LEAVE, END, LETTER; ASK, to which the answer is WELL.
 */
#ifndef SYMWIN_WIRE_H
#define SYMWIN_WIRE_H

#include "src/internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are little-endian: convert them here first"
#endif

enum sw_frame_type {
    SW_FRAME_HELLO = 1,
    SW_FRAME_CHALLENGE,
    SW_FRAME_JOIN,
    SW_FRAME_TABLE,
    SW_FRAME_PAGE,
    SW_FRAME_SOCKET,
    SW_FRAME_GO,
    SW_FRAME_REFUSAL,
    SW_FRAME_HANDLE,
    SW_FRAME_HERE,
    SW_FRAME_LINK,
    SW_FRAME_POST,
    SW_FRAME_LEAVE,
    SW_FRAME_END,
    SW_FRAME_READY,
    SW_FRAME_MESSAGE,
    SW_FRAME_ASK,
    SW_FRAME_WELL
};

#define SW_FRAME_MAGIC 0x4e494d53u /* "SMIN" */
#define SW_FRAME_FORM 1            /* of header, HELLO, CHALLENGE and REFUSAL: stays */
#define SW_FRAME_PROTOCOL 4        /* of all that comes after a proof */
#define SW_NAME_BYTES 16

struct sw_frame_header {
    uint32_t magic;
    uint16_t form;
    uint16_t type;
    uint32_t bytes; /* of the whole frame */
    uint32_t zero;
};

struct sw_frame_hello {
    struct sw_frame_header header;
    unsigned char name[SW_NAME_BYTES]; /* of the id: says nothing of its secret */
    unsigned char nonce[SW_KEY_BYTES];
};

struct sw_frame_challenge {
    struct sw_frame_header header;
    unsigned char nonce[SW_KEY_BYTES];
    unsigned char proof[SW_DIGEST_BYTES];
};

struct sw_frame_join {
    struct sw_frame_header header;
    uint32_t protocol;
    int32_t rank;
    int32_t nranks;
    int32_t timeout_ms;
    int32_t pid;
    int32_t posts;      /* ranks that the control page is for, here and elsewhere */
    uint64_t pid_space; /* in which the pid means something */
    unsigned char process[SW_NAME_BYTES]; /* equal for ranks of one process */
    unsigned char host[SW_NAME_BYTES];    /* equal for ranks of one host */
    unsigned char proof[SW_DIGEST_BYTES]; /* over all of the above */
};

struct sw_frame_table {
    struct sw_frame_header header;
    int32_t nranks;
    int32_t processes;
    int32_t hosts;
    int32_t zero;
    struct sw_frame_location {
        uint16_t process, host;
    } locations[SW_MAX_RANKS]; /* the first nranks are sent */
};

struct sw_frame_pass { /* PAGE, LINE, READY, GO */
    struct sw_frame_header header;
    int32_t process; /* PAGE: the maker's, -1: none of these; LINE: to which */
    int32_t zero;
};

struct sw_frame_here {
    struct sw_frame_header header;
    char folder[64];
};

struct sw_frame_link { /* with the socket to another host, to the process that links the hosts */
    struct sw_frame_header header;
    int32_t host;
    int32_t zero;
    uint64_t sent, received;
    unsigned char key[SW_KEY_BYTES];
};

struct sw_frame_post { /* what a rank posted in a round of the exchange */
    struct sw_frame_header header;
    uint64_t round;
    int32_t rank;
    int32_t bytes;
    unsigned char data[SW_EXCHANGE_BYTES];
};

struct
    sw_frame_end { /* LEAVE: the rank; SYMWIN_BUSY: its last calls are under way. END: to the linking host, a proposal */
    struct sw_frame_header header;
    int32_t status;
    int32_t rank;
};

#define SW_FRAME_UNKNOWN (-2) /* there is no such id here: not yet, or not any more */

struct sw_frame_refusal {
    struct sw_frame_header header;
    int32_t status;
    int32_t rank; /* whose fault, -1: no rank's; or SW_FRAME_UNKNOWN */
    char text[SW_TEXT_BYTES];
};

struct sw_frame_handle {
    struct sw_frame_header header;
    uint64_t sequence; /* of the registration */
    uint64_t bytes;    /* of the allocation */
    int32_t rank;      /* whose memory it is */
    int32_t status;    /* SYMWIN_OK: a descriptor comes along; else there is none to be had */
};

enum sw_message_kind {
    SW_MESSAGE_OFFER,   /* an end of a channel was made, or could not be */
    SW_MESSAGE_VERDICT, /* and has the other's memory, or cannot have it */
    SW_MESSAGE_GONE     /* and is destroyed */
};

enum sw_message_memory { /* what an offer offers */
                         SW_MESSAGE_NONE,
                         SW_MESSAGE_WINDOW, /* place: in the flat range */
                         SW_MESSAGE_OTHER   /* place: in the allocation, which comes along */
};

#define SW_MESSAGE_TEXT 256

struct sw_frame_message { /* of one rank to another */
    struct sw_frame_header header;
    int32_t from, to;
    int32_t kind;
    int32_t status;  /* the sender's */
    uint64_t number; /* of the channel, among those of the two ranks */
    uint64_t words;  /* where the sender's counters are in the flat range */
    uint32_t lanes;
    int32_t memory;
    uint64_t place, bytes;
    uint64_t buffer_id, allocation; /* of the allocation: its id and size */
    int32_t is_fabric;              /* it comes as such a handle, and not as a descriptor */
    int32_t zero;
    unsigned char fabric[64];
    char text[SW_MESSAGE_TEXT]; /* if status is an error */
};

union sw_frame {
    struct sw_frame_header header;
    struct sw_frame_hello hello;
    struct sw_frame_challenge challenge;
    struct sw_frame_join join;
    struct sw_frame_table table;
    struct sw_frame_pass pass;
    struct sw_frame_refusal refusal;
    struct sw_frame_handle handle;
    struct sw_frame_here here;
    struct sw_frame_link link;
    struct sw_frame_post post;
    struct sw_frame_end end;
    struct sw_frame_message message;
};

_Static_assert(sizeof(struct sw_frame_header) == 16, "no padding");
_Static_assert(sizeof(struct sw_frame_join) == 16 + 6 * 4 + 8 + 2 * SW_NAME_BYTES + SW_DIGEST_BYTES,
               "no padding");
_Static_assert(sizeof(struct sw_frame_handle) == 16 + 24, "no padding");
_Static_assert(sizeof(struct sw_frame_message) == 16 + 8 * 4 + 6 * 8 + 64 + 256, "no padding");

/* Whether an errno says something of the other end; else it is about this process. */
int sw_frame_is_theirs(int error);

/* Fills in the header of a frame of that type; a TABLE's nranks must be set. */
void sw_frame_seal(union sw_frame *frame, enum sw_frame_type type);

/* Whether `bytes` received bytes are one whole frame of known type with values that can be relied on:
 * ranks and processes in range, texts ended. Reads nothing past `bytes`; may end a text. */
int sw_frame_valid(union sw_frame *frame, size_t bytes);

/* Waits until poll() says something of the socket. 0, or an errno: ETIMEDOUT past `deadline`
 * (sw_now_ms()). */
int sw_socket_wait(int socket, short events, int64_t deadline);

/* Sends one frame, with a descriptor unless `fd` is -1. 0, or an errno: ETIMEDOUT past `deadline`.
 */
int sw_frame_send(int socket, const union sw_frame *frame, int fd, int64_t deadline);

/* The same without waiting: EAGAIN. */
int sw_frame_send_now(int socket, const union sw_frame *frame, int fd);

/* Receives one frame, and its descriptor into *fd (-1: it had none), close-on-exec, the caller's to
 * close. 0, or an errno: EAGAIN none is there, EPIPE the other end is gone, EPROTO no valid frame,
 * EMFILE the descriptor had no room here, but the frame is valid. With fd NULL a descriptor is EPROTO. On failure none is
 * kept.
 * sw_connection_receive() waits for one. */
int sw_frame_receive_now(int socket, union sw_frame *frame, int *fd);

/* For a local socket that is about to be closed: takes off what was not read, with its descriptors, which a thread of its own
 * closes. That may take as long as the other end likes. */
void sw_socket_empty(int socket);

/* The maker's and the rank's proof; `join` is complete but for its proof. */
void sw_frame_prove_maker(const unsigned char secret[SW_KEY_BYTES],
                          const struct sw_frame_hello *hello,
                          const struct sw_frame_challenge *challenge,
                          unsigned char proof[SW_DIGEST_BYTES]);
void sw_frame_prove_rank(const unsigned char secret[SW_KEY_BYTES],
                         const struct sw_frame_hello *hello,
                         const struct sw_frame_challenge *challenge,
                         const struct sw_frame_join *join, unsigned char proof[SW_DIGEST_BYTES]);

/* A connection of either kind: a local socket, which passes descriptors, or TCP (stream.c). */
#define SW_CONNECTION_BYTES (sizeof(union sw_frame) + SW_DIGEST_BYTES)

struct sw_connection {
    int fd; /* owned */
    int stream;
    int keyed; /* frames carry a proof */
    int maker; /* which of the two ends this is */
    unsigned char key[SW_KEY_BYTES];
    uint64_t sent, received; /* keyed frames */
    unsigned char *in;       /* owned, of a stream: the frame under way */
    size_t have;             /* bytes of it */
};

int sw_connection_open(struct sw_connection *connection, int fd, int stream); /* 0, or ENOMEM */
void sw_connection_close(struct sw_connection *connection); /* without the service lock */
void sw_connection_drop(struct sw_connection *connection);  /* under it */

/* From now on a stream's frames carry a proof. */
void sw_connection_key(struct sw_connection *connection, int maker,
                       const unsigned char secret[SW_KEY_BYTES], const struct sw_frame_hello *hello,
                       const struct sw_frame_challenge *challenge);

/* As the functions above; a stream takes no descriptor (EOPNOTSUPP) and gives none. A frame that does
 * not fit its proof is EPROTO. */
int sw_connection_send(struct sw_connection *connection, const union sw_frame *frame, int fd,
                       int64_t deadline);
int sw_connection_receive_now(struct sw_connection *connection, union sw_frame *frame, int *fd);
int sw_connection_receive(struct sw_connection *connection, union sw_frame *frame, int *fd,
                          int64_t deadline);

/* Whether others can send descriptors to the local socket, and to those that are accepted from it; they can by default. 0: the
 * system cannot keep them out (before Linux 6.16): they come, and whoever closes the socket closes those that are on it. */
int sw_socket_take_descriptors(int socket, int yes);

/* Whether a descriptor that came is a socket of that kind, of TCP or as a line: closing it does not wait. */
int sw_socket_is(int fd, int stream);

/* Whether the process at the other end is of this user; *pid is its id as seen from here, 0 if it
 * cannot be seen. */
int sw_socket_same_user(int socket, pid_t *pid);

#endif
