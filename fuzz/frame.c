/* Fuzzer of the frame parser: for any bytes, sw_frame_valid() reads no others, and a frame that it
 * accepts is as frame.h promises.
 *
 * Input: a byte of options, then the frame. The first option makes the header valid, except its
 * type; the second one makes the length valid. Otherwise most random bytes would be rejected for
 * these.
 */
#include <stddef.h>

#include "fuzz.h"
#include "src/control/control.h"

enum { FIT_HEADER = 1, FIT_LENGTH = 2 };

/* The length that a frame with this start must have; 0: unknown. */
static size_t right_length(const uint8_t *data, size_t bytes)
{
    struct sw_frame_header header;
    int32_t nranks = 1, first = 0, posts = 0;

    if (bytes < sizeof header)
        return 0;
    memcpy(&header, data, sizeof header);
    if (bytes >= sizeof header + 16) {
        memcpy(&nranks, data + sizeof header, sizeof nranks);
        memcpy(&first, data + sizeof header + 12, sizeof first);
        memcpy(&posts, data + sizeof header + 8, sizeof posts);
    }
    switch (header.type) {
    case SW_FRAME_HELLO:
        return sizeof(struct sw_frame_hello);
    case SW_FRAME_CHALLENGE:
        return sizeof(struct sw_frame_challenge);
    case SW_FRAME_JOIN:
        return sizeof(struct sw_frame_join);
    case SW_FRAME_TABLE:
        return nranks >= 0 && nranks <= SW_MAX_RANKS + 1 && first >= 0 && first <= nranks
                   ? offsetof(struct sw_frame_table, locations) +
                         8 * (size_t)(nranks - first < 2000 ? nranks - first : 2000)
                   : 0;
    case SW_FRAME_PAGE:
    case SW_FRAME_SOCKET:
    case SW_FRAME_READY:
    case SW_FRAME_GO:
        return sizeof(struct sw_frame_pass);
    case SW_FRAME_REFUSAL:
        return sizeof(struct sw_frame_refusal);
    case SW_FRAME_HANDLE:
        return sizeof(struct sw_frame_handle);
    case SW_FRAME_HERE:
        return sizeof(struct sw_frame_here);
    case SW_FRAME_LINK:
        return sizeof(struct sw_frame_link);
    case SW_FRAME_POST:
        return posts > 0 && posts <= 4032 ? 32 + (size_t)posts : 32;
    case SW_FRAME_LEAVE:
        return offsetof(struct sw_frame_end, text);
    case SW_FRAME_END:
        return sizeof(struct sw_frame_end);
    case SW_FRAME_MESSAGE:
        return sizeof(struct sw_frame_message);
    case SW_FRAME_ASK:
    case SW_FRAME_WELL:
    case SW_FRAME_LINKED:
        return sizeof(struct sw_frame_header);
    case SW_FRAME_ABOVE:
        return sizeof(struct sw_frame_above);
    case SW_FRAME_BEHIND:
        return sizeof(struct sw_frame_behind);
    }
    return 0;
}

static void fit_header(union sw_frame *frame, size_t bytes)
{
    if (bytes < sizeof frame->header)
        return;
    frame->header.magic = SW_FRAME_MAGIC;
    frame->header.form = SW_FRAME_FORM;
    frame->header.bytes = (uint32_t)bytes;
    frame->header.zero = 0;
}

/* ---- validity, checked independently ---- */

static void check_table(const struct sw_frame_table *t, size_t bytes)
{
    int r, count;

    fuzz_must(t->nranks >= 1 && t->nranks <= SW_MAX_RANKS, "a table of %d ranks", t->nranks);
    fuzz_must(t->processes >= 1 && t->processes <= t->nranks, "%d processes of %d ranks",
              t->processes, t->nranks);
    fuzz_must(t->hosts >= 1 && t->hosts <= t->processes, "%d hosts of %d processes", t->hosts,
              t->processes);
    fuzz_must(t->first >= 0 && t->first < t->nranks, "locations from %d on, of %d ranks", t->first,
              t->nranks);
    count = t->nranks - t->first < 2000 ? t->nranks - t->first : 2000;
    fuzz_must(bytes == 32 + 8 * (size_t)count, "%zu bytes for %d locations", bytes, count);
    for (r = 0; r < count; r++)
        fuzz_must(t->locations[r].process < (unsigned)t->processes &&
                      t->locations[r].host < (unsigned)t->hosts,
                  "rank %d in process %u of %d, on host %u of %d", t->first + r,
                  t->locations[r].process, t->processes, t->locations[r].host, t->hosts);
}

static void check_refusal(const struct sw_frame_refusal *r)
{
    fuzz_must(r->status > SYMWIN_OK && r->status <= SYMWIN_STATUS_LAST, "refused with %d",
              r->status);
    fuzz_must(r->rank >= SW_FRAME_UNKNOWN && (r->rank < SW_MAX_RANKS || r->rank == SW_NOBODY),
              "the fault of rank %d", r->rank);
    fuzz_must(memchr(r->text, 0, sizeof r->text) != NULL, "a text without an end");
}

static void check_rank(int rank, int status)
{
    fuzz_must(rank >= 0 && rank < SW_MAX_RANKS, "there is no rank %d", rank);
    fuzz_must(status >= SYMWIN_OK && status <= SYMWIN_STATUS_LAST, "there is no status %d", status);
}

static size_t check_letter(const struct sw_frame_message *l)
{
    check_rank(l->from, l->status);
    check_rank(l->to, SYMWIN_OK);
    fuzz_must(l->kind >= SW_MESSAGE_OFFER && l->kind <= SW_MESSAGE_GONE, "a letter of kind %d",
              l->kind);
    fuzz_must(l->memory >= SW_MESSAGE_NONE && l->memory <= SW_MESSAGE_OTHER, "memory of kind %d",
              l->memory);
    fuzz_must(l->is_fabric == 0 || l->is_fabric == 1, "a fabric handle or not: %d", l->is_fabric);
    fuzz_must(memchr(l->text, 0, sizeof l->text) != NULL, "a text without an end");
    return sizeof *l;
}

/* Each post is whole, and the last one ends with the frame. */
static size_t check_posts(const struct sw_frame_post *p)
{
    int32_t at = 0, head[2];

    fuzz_must(p->bytes > 0 && p->bytes <= 4032, "posts of %d bytes", p->bytes);
    while (at < p->bytes) {
        fuzz_must(p->bytes - at >= 8, "%d bytes of a post", p->bytes - at);
        memcpy(head, p->posts + at, sizeof head);
        check_rank(head[0], SYMWIN_OK);
        fuzz_must(head[1] >= 0 && head[1] <= SW_EXCHANGE_BYTES, "a post of %d bytes", head[1]);
        at += 8 + head[1];
    }
    fuzz_must(at == p->bytes, "a post ends %d bytes after the frame", at - p->bytes);
    return 32 + (size_t)p->bytes;
}

/* Frames between hosts. Returns the length that the frame must have; 0: none of these. */
static size_t check_far(const union sw_frame *frame)
{
    switch (frame->header.type) {
    case SW_FRAME_HERE:
        fuzz_must(frame->here.folder[0] != 0 &&
                      memchr(frame->here.folder, 0, sizeof frame->here.folder) != NULL,
                  "a folder without a name or an end");
        return sizeof frame->here;
    case SW_FRAME_LINK:
        fuzz_must(frame->link.host >= 0 && frame->link.host < SW_MAX_RANKS, "a link to host %d",
                  frame->link.host);
        fuzz_must(frame->link.creator == 0 || frame->link.creator == 1, "an end %d of a link",
                  frame->link.creator);
        return sizeof frame->link;
    case SW_FRAME_POST:
        return check_posts(&frame->post);
    case SW_FRAME_LEAVE:
        check_rank(frame->end.rank, SYMWIN_OK);
        return offsetof(struct sw_frame_end, text);
    case SW_FRAME_END:
        check_rank(frame->end.rank == SW_NOBODY ? 0 : frame->end.rank, frame->end.status);
        fuzz_must(frame->end.status != SYMWIN_OK, "ended well");
        fuzz_must(memchr(frame->end.text, 0, sizeof frame->end.text) != NULL, "a text without end");
        return sizeof frame->end;
    case SW_FRAME_MESSAGE:
        return check_letter(&frame->message);
    case SW_FRAME_ASK:
    case SW_FRAME_WELL:
    case SW_FRAME_LINKED:
        return sizeof frame->header;
    case SW_FRAME_ABOVE:
        return sizeof frame->above;
    case SW_FRAME_BEHIND:
        check_rank(frame->behind.rank == SW_NOBODY ? 0 : frame->behind.rank, SYMWIN_OK);
        return sizeof frame->behind;
    }
    return 0;
}

static void check_valid(const union sw_frame *frame, size_t bytes)
{
    size_t want = 0;

    fuzz_must(bytes >= sizeof frame->header, "a frame of %zu bytes", bytes);
    fuzz_must(frame->header.magic == SW_FRAME_MAGIC && frame->header.form == SW_FRAME_FORM &&
                  frame->header.bytes == bytes && frame->header.zero == 0,
              "the header is not this frame's");
    switch (frame->header.type) {
    case SW_FRAME_HELLO:
        want = sizeof frame->hello;
        break;
    case SW_FRAME_CHALLENGE:
        want = sizeof frame->challenge;
        break;
    case SW_FRAME_JOIN:
        want = sizeof frame->join;
        fuzz_must(frame->join.timeout_ms > 0, "a timeout of %d ms", frame->join.timeout_ms);
        break;
    case SW_FRAME_TABLE:
        want = bytes;
        check_table(&frame->table, bytes);
        break;
    case SW_FRAME_SOCKET:
        fuzz_must(frame->pass.process >= 0 && frame->pass.process < SW_MAX_RANKS,
                  "a line to process %d", frame->pass.process);
        /* fallthrough */
    case SW_FRAME_PAGE:
    case SW_FRAME_READY:
    case SW_FRAME_GO:
        want = sizeof frame->pass;
        break;
    case SW_FRAME_REFUSAL:
        want = sizeof frame->refusal;
        check_refusal(&frame->refusal);
        break;
    case SW_FRAME_HANDLE:
        want = sizeof frame->handle;
        check_rank(frame->handle.rank, frame->handle.status);
        break;
    default:
        want = check_far(frame);
    }
    fuzz_must(bytes == want, "type %d of %zu bytes, not %zu", frame->header.type, bytes, want);
}

/* ---- forbidden effects ---- */

/* Validation changes nothing but a text's terminating zero. */
static void check_unchanged(const unsigned char *before, const union sw_frame *frame, size_t bytes)
{
    const unsigned char *after = (const unsigned char *)frame;
    size_t end = 0;
    size_t i;

    if (bytes == sizeof frame->refusal)
        end = offsetof(struct sw_frame_refusal, text) + SW_TEXT_BYTES - 1;
    if (bytes == sizeof frame->here)
        end = sizeof frame->here - 1;
    if (bytes == sizeof frame->message)
        end = sizeof frame->message - 1;
    if (bytes == sizeof frame->end)
        end = sizeof frame->end - 1;
    for (i = 0; i < bytes; i++)
        fuzz_must(before[i] == after[i] || (i == end && after[i] == 0),
                  "byte %zu of %zu was changed", i, bytes);
}

static void check_sealed(union sw_frame *frame)
{
    const struct sw_frame_header header = frame->header;

    sw_frame_seal(frame, (enum sw_frame_type)header.type);
    fuzz_must(memcmp(&header, &frame->header, sizeof header) == 0,
              "type %d sealed again has another header", header.type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const unsigned options = size > 0 ? data[0] : 0;
    const size_t given = size > 0 ? size - 1 : 0;
    const size_t right = (options & FIT_LENGTH) != 0 ? right_length(data + 1, given) : 0;
    const size_t bytes = right > 0 ? right : given;
    /* Only as long as the frame, so a read past it is a read past the block. */
    unsigned char *before = malloc(bytes > 0 ? bytes : 1);
    union sw_frame *frame = calloc(1, bytes > 0 ? bytes : 1);
    int valid;

    if (before == NULL || frame == NULL)
        abort();
    if (given > 0)
        memcpy(frame, data + 1, given < bytes ? given : bytes);
    if ((options & FIT_HEADER) != 0)
        fit_header(frame, bytes);
    memcpy(before, frame, bytes);
    valid = sw_frame_valid(frame, bytes);
    check_unchanged(before, frame, bytes);
    memcpy(before, frame, bytes);
    fuzz_must(sw_frame_valid(frame, bytes) == valid, "valid once and not twice");
    check_unchanged(before, frame, bytes);
    if (valid) {
        check_valid(frame, bytes);
        check_sealed(frame);
    }
    free(before);
    free(frame);
    return 0;
}
