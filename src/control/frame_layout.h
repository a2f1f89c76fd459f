/* Layout of the frames. frame.h says when each is sent. Fields named `zero` are padding. */
#ifndef SYMWIN_FRAME_LAYOUT_H
#define SYMWIN_FRAME_LAYOUT_H

#include "src/base/base.h"
#include "src/control/exchange.h"
#include "src/control/message_layout.h"
#include "symwin.h"

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
    SW_FRAME_WELL,
    SW_FRAME_ABOVE,
    SW_FRAME_LINKED,
    SW_FRAME_BEHIND
};

#define SW_FRAME_MAGIC 0x4e494d53u /* "SMIN" */
#define SW_FRAME_FORM 1            /* version of header, HELLO, CHALLENGE, REFUSAL: never changes */
#define SW_FRAME_PROTOCOL 13       /* version of all that follows a proof, and of device memory */
#define SW_NAME_BYTES 16
#define SW_TABLE_PART 2000  /* locations in a frame */
#define SW_POSTS_BYTES 4032 /* so that a frame with posts and its HMAC are 4 KiB */

struct sw_frame_hello {
    struct sw_frame_header header;
    unsigned char name[SW_NAME_BYTES]; /* of the id: does not reveal its secret */
    unsigned char nonce[SW_KEY_BYTES];
};

struct sw_frame_challenge {
    struct sw_frame_header header;
    unsigned char nonce[SW_KEY_BYTES];
    unsigned char proof[SW_DIGEST_BYTES];
};

/* Where a host listens for those below it. Family 0: nowhere. */
struct sw_place {
    uint16_t family, port; /* as in struct sw_id, as is: */
    unsigned char address[16];
    int32_t zero;
};

struct sw_frame_join {
    struct sw_frame_header header;
    uint32_t protocol;
    int32_t rank;
    int32_t nranks;
    int32_t timeout_ms;
    int32_t pid;
    int32_t zero;
    uint64_t pid_space;                   /* pid namespace of `pid` */
    unsigned char process[SW_NAME_BYTES]; /* equal for ranks of one process */
    unsigned char host[SW_NAME_BYTES];    /* equal for ranks of one host */
    struct sw_place place;                /* of a rank that joins for its host */
    unsigned char proof[SW_DIGEST_BYTES]; /* over all of the above */
};

struct sw_frame_table {
    struct sw_frame_header header;
    int32_t nranks;
    int32_t processes;
    int32_t hosts;
    int32_t first; /* rank of the first location here; those after it come in the next frames */
    struct sw_frame_location {
        uint32_t process, host;
    } locations[SW_TABLE_PART]; /* up to that of the last rank are sent */
};

/* PAGE, SOCKET, READY, GO. */
struct sw_frame_pass {
    struct sw_frame_header header;
    /* PAGE, and GO to another host: the creator, -1: it has no rank. SOCKET: at the other end */
    int32_t process;
    int32_t left_ms; /* of the same two: until the time of the first rank is over */
};

struct sw_frame_above {
    struct sw_frame_header header;
    struct sw_place place; /* of the host above; family 0: that is the creator's */
    int32_t rank;          /* that joins for the host above; -1: the creator does */
    int32_t creator;       /* the lowest rank of the creator; -1: it has none */
};

struct sw_frame_here {
    struct sw_frame_header header;
    char folder[64];
};

/* With the TCP socket to another host, for the linking process. */
struct sw_frame_link {
    struct sw_frame_header header;
    int32_t host;
    int32_t creator;         /* of this end of the connection, as are the next two: */
    uint64_t sent, received; /* struct sw_connection */
    int32_t holder;          /* of the other end, as in struct sw_connection */
    int32_t zero;
    unsigned char key[SW_KEY_BYTES];
};

/* What ranks have posted in a round of the exchange: for each rank a struct sw_post and so many
 * bytes, one after the other. The rest of its data is zeros. */
struct sw_frame_post {
    struct sw_frame_header header;
    uint64_t round;
    int32_t bytes, zero;
    unsigned char posts[SW_POSTS_BYTES]; /* as many as `bytes` */
};

struct sw_post {
    int32_t rank, bytes;
};

/* LEAVE: `rank` leaves. Status SYMWIN_BUSY: it posts no more, but its last calls may be running.
 * END: the exchange ends. Sent to the deciding host it is a proposal. */
struct sw_frame_end {
    struct sw_frame_header header;
    int32_t status;
    int32_t rank;
    char text[SW_WHY_BYTES]; /* END alone: why that rank has ended it; "": unknown */
};

#define SW_MOST_CALLS ((uint64_t)1 << 40)

/* Of the ranks that the sender speaks for, this one has made fewest calls; SW_NOBODY: several. */
struct sw_frame_behind {
    struct sw_frame_header header;
    int32_t rank;
    int32_t zero;
    uint64_t calls;
};

#define SW_FRAME_UNKNOWN (-2) /* this process does not know the id: not yet, or no longer */

struct sw_frame_refusal {
    struct sw_frame_header header;
    int32_t status;
    int32_t rank; /* at fault; -1: none; or SW_FRAME_UNKNOWN */
    char text[SW_TEXT_BYTES];
};

struct sw_frame_handle {
    struct sw_frame_header header;
    uint64_t sequence; /* number of the registration */
    uint64_t bytes;    /* of the allocation */
    int32_t rank;      /* owner of the memory */
    int32_t status;    /* SYMWIN_OK: with a descriptor; else the memory could not be exported */
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
    struct sw_frame_above above;
    struct sw_frame_link link;
    struct sw_frame_post post;
    struct sw_frame_end end;
    struct sw_frame_behind behind;
    struct sw_frame_message message;
};

_Static_assert(sizeof(struct sw_frame_header) == 16, "no padding");
_Static_assert(sizeof(struct sw_frame_join) ==
                   16 + 6 * 4 + 8 + 2 * SW_NAME_BYTES + 24 + SW_DIGEST_BYTES,
               "no padding");
_Static_assert(sizeof(struct sw_frame_handle) == 16 + 24, "no padding");
_Static_assert(sizeof(struct sw_frame_message) == 16 + 8 * 4 + 6 * 8 + 64 + 256, "no padding");

#endif
