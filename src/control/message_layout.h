/* Layout of a message from one rank to another, and of the header of all frames. */
#ifndef SYMWIN_MESSAGE_LAYOUT_H
#define SYMWIN_MESSAGE_LAYOUT_H

#include <stdint.h>

struct sw_frame_header {
    uint32_t magic;
    uint16_t form;
    uint16_t type;
    uint32_t bytes; /* of the whole frame */
    uint32_t zero;
};

enum sw_message_kind {
    SW_MESSAGE_OFFER,   /* the sender's end of a channel was created, or that failed */
    SW_MESSAGE_VERDICT, /* it has mapped the peer's memory, or that failed */
    SW_MESSAGE_GONE     /* it is destroyed */
};

/* Memory in an offer. */
enum sw_message_memory {
    SW_MESSAGE_NONE,
    SW_MESSAGE_WINDOW, /* place: offset in the flat range */
    SW_MESSAGE_OTHER   /* place: offset in the allocation, whose handle is sent too */
};

#define SW_MESSAGE_TEXT 256

/* From one rank to another. */
struct sw_frame_message {
    struct sw_frame_header header;
    int32_t from, to;
    int32_t kind;
    int32_t status;  /* of the sender */
    uint64_t number; /* of the channel, among those of the two ranks */
    uint64_t words;  /* offset of the sender's counters in the flat range */
    uint32_t lanes;
    int32_t memory;
    uint64_t place, bytes;
    uint64_t buffer_id, allocation; /* the mapping's id and size */
    int32_t is_fabric;              /* its handle is a fabric handle, not a descriptor */
    int32_t zero;
    unsigned char fabric[64];
    char text[SW_MESSAGE_TEXT]; /* the error, unless status is SYMWIN_OK */
};

#endif
