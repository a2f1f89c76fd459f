/* What each frame holds; frame.h says which is sent when. */
#ifndef SYMWIN_FRAME_LAYOUT_H
#define SYMWIN_FRAME_LAYOUT_H

#include "src/base/base.h"
#include "src/control/exchange.h"
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

#endif
