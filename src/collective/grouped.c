/* Groups of calls: a thread collects its calls and launches them at the end. A send or receive
 * outside a group is a group of one call.
 *
 * Collectives are launched in the order of the calls, then the sends and receives of each
 * communicator together. So ranks may differ in where they make the sends among the collectives.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/collective/group_calls.h"
#include "src/collective/grouped.h"

static _Thread_local struct sw_group_calls group;

/* ---- a thread that ends with its group open ---- */

static struct {
    pthread_once_t once;
    pthread_key_t key; /* of a thread's calls */
    int has_key;
} ending = {.once = PTHREAD_ONCE_INIT};

/* The program's own destructors may still come, and destroy a communicator or make calls. */
static void thread_ends(void *calls)
{
    free(calls);
    free(group.words);
    group.calls = NULL;
    group.words = NULL;
    group.count = group.room = group.words_count = group.words_room = 0;
}

static void make_key(void)
{
    ending.has_key = pthread_key_create(&ending.key, thread_ends) == 0;
}

/* As in pool.c: threads may end after the library is unloaded, and must not call its code then. */
__attribute__((destructor)) static void library_ends(void)
{
    pthread_once(&ending.once, make_key); /* sees the key of whichever thread made it */
    if (ending.has_key)
        pthread_key_delete(ending.key);
}

static void own_calls(struct grouped_call *calls)
{
    group.calls = calls;
    pthread_once(&ending.once, make_key);
    if (ending.has_key)
        (void)pthread_setspecific(ending.key, calls);
}

/* ---- the calls of a group ---- */

int sw_grouped(void)
{
    return group.depth > 0;
}

static symwin_status note_as(symwin_status status, const char *text)
{
    if (status != SYMWIN_OK && group.depth > 0 && group.status == SYMWIN_OK) {
        group.status = status;
        strncpy(group.text, text, sizeof group.text - 1);
    }
    return status;
}

static symwin_status note(symwin_status status)
{
    return note_as(status, symwin_last_error());
}

static struct grouped_call *add(const char *call)
{
    const size_t room = group.room > 0 ? 2 * group.room : 16;
    struct grouped_call *calls = group.calls;

    if (group.count == group.room) {
        calls = realloc(group.calls, room * sizeof *calls);
        if (calls == NULL) {
            (void)sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for a call of the group", call);
            return NULL;
        }
        own_calls(calls);
        group.room = room;
    }
    calls += group.count++;
    memset(calls, 0, sizeof *calls);
    return calls;
}

static void forget_calls(void)
{
    free(group.calls);
    free(group.words);
    own_calls(NULL);
    group.words = NULL;
    group.count = group.room = group.words_count = group.words_room = 0;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Room for the arrays of a call, of `nranks` words each. */
static int find_words(size_t nranks)
{
    const size_t need = group.words_count + 4 * nranks;
    uint64_t *words;

    if (need <= group.words_room)
        return 1;
    words = realloc(group.words, 2 * need * sizeof *words);
    if (words == NULL)
        return 0;
    group.words = words;
    group.words_room = 2 * need;
    return 1;
}

/* With its arrays on the host, which have been checked. */
static void copy_parts(struct grouped_call *c, int b, const symwin_parts *parts, size_t nranks)
{
    uint64_t *const to = group.words + group.words_count;

    c->parts[b] = *parts;
    if (parts->on_device)
        return;
    c->arrays[b] = group.words_count;
    group.words_count += 2 * nranks;
    memcpy(to, parts->counts, nranks * sizeof *to);
    if (parts->displacements != NULL)
        memcpy(to + nranks, parts->displacements, nranks * sizeof *to);
}

symwin_status sw_grouped_add(const struct sw_request *r, symwin_status status)
{
    struct grouped_call *c;
    int is_checked = 0, b;

    if (status == SYMWIN_OK)
        status = sw_request_check_grouped(r, &is_checked);
    if (status != SYMWIN_OK)
        return note(status);
    if (sw_collectives[r->collective].by_parts && !find_words((size_t)r->comm->nranks))
        return note(sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for the parts of %d ranks",
                            r->name, r->comm->nranks));
    c = add(r->name);
    if (c == NULL)
        return note(SYMWIN_NO_MEMORY);
    c->request = *r;
    c->request.checked = is_checked ? SW_CHECKED_BEFORE : SW_CHECKED_NOT;
    if (r->options != NULL)
        c->options = *r->options;
    for (b = 0; b < 2; b++)
        if (r->parts[b] != NULL)
            copy_parts(c, b, r->parts[b], (size_t)r->comm->nranks);
    return SYMWIN_OK;
}

/* ---- sends and receives ---------------------------------------------------------------------- */

static symwin_status check(struct sw_pair_call *c, const symwin_collective_options *options)
{
    const struct sw_request r = {.name = c->name, .type = c->type, .options = options};
    symwin_status status = sw_request_check(&r);

    if (status != SYMWIN_OK)
        return status;
    if (options != NULL && options->algo != SYMWIN_ALGO_AUTO &&
        options->algo != SYMWIN_ALGO_ONESHOT)
        return sw_fail(SYMWIN_UNSUPPORTED, "%s: there is no algorithm %s for it; pass auto",
                       c->name, symwin_algo_name(options->algo));
    if (options != NULL)
        c->asked = (struct sw_grid){(unsigned)options->blocks, (unsigned)options->threads};
    return sw_wide_calls_of(c->comm) != NULL ? SYMWIN_OK : sw_pair_check(c, SW_CHECKED_NOT);
}

static symwin_status pair(struct sw_pair_call c, const symwin_collective_options *options)
{
    symwin_status status = check(&c, options);
    struct grouped_call *in_group;
    symwin_message_info info;

    if (status == SYMWIN_OK && (options != NULL || group.depth > 0) &&
        sw_wide_calls_of(c.comm) == NULL)
        status = sw_pair_answer(&c, 1, &info);
    if (group.depth == 0)
        return status == SYMWIN_OK ? sw_pair_launch(&c) : status;
    if (status != SYMWIN_OK)
        return note(status);
    in_group = add(c.name);
    if (in_group == NULL)
        return note(SYMWIN_NO_MEMORY);
    in_group->is_pair = 1;
    in_group->pair = c;
    return SYMWIN_OK;
}

symwin_status symwin_send_with(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                               int peer, const symwin_collective_options *options,
                               struct CUstream_st *stream)
{
    return pair((struct sw_pair_call){.name = options != NULL ? "symwin_send_with" : "symwin_send",
                                      .comm = comm,
                                      .stream = stream,
                                      .peer = peer,
                                      .buffer = in,
                                      .count = count,
                                      .type = type},
                options);
}

symwin_status symwin_send(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                          int peer, struct CUstream_st *stream)
{
    return symwin_send_with(comm, in, count, type, peer, NULL, stream);
}

symwin_status symwin_recv_with(symwin_comm *comm, void *out, uint64_t count, symwin_type type,
                               int peer, const symwin_collective_options *options,
                               struct CUstream_st *stream)
{
    return pair((struct sw_pair_call){.name = options != NULL ? "symwin_recv_with" : "symwin_recv",
                                      .comm = comm,
                                      .stream = stream,
                                      .receives = 1,
                                      .peer = peer,
                                      .buffer = out,
                                      .count = count,
                                      .type = type},
                options);
}

symwin_status symwin_recv(symwin_comm *comm, void *out, uint64_t count, symwin_type type, int peer,
                          struct CUstream_st *stream)
{
    return symwin_recv_with(comm, out, count, type, peer, NULL, stream);
}

/* Not collected in a group. */
static symwin_status query(struct sw_pair_call c, const symwin_collective_options *options,
                           symwin_message_info *info)
{
    symwin_status status = check(&c, options);

    if (status == SYMWIN_OK && info == NULL)
        status = sw_fail(SYMWIN_INVALID, "%s: info is NULL", c.name);
    if (status == SYMWIN_OK && sw_wide_calls_of(c.comm) != NULL)
        status = sw_fail(SYMWIN_UNSUPPORTED,
                         "%s: the communicator's ranks are in several domains, between which no "
                         "kernel moves messages; query a communicator of one domain",
                         c.name);
    return status == SYMWIN_OK ? sw_pair_answer(&c, 0, info) : status;
}

symwin_status symwin_send_query(symwin_comm *comm, const void *in, uint64_t count, symwin_type type,
                                int peer, const symwin_collective_options *options,
                                symwin_message_info *info)
{
    return query((struct sw_pair_call){.name = "symwin_send_query",
                                       .comm = comm,
                                       .peer = peer,
                                       .buffer = in,
                                       .count = count,
                                       .type = type},
                 options, info);
}

symwin_status symwin_recv_query(symwin_comm *comm, const void *out, uint64_t count,
                                symwin_type type, int peer,
                                const symwin_collective_options *options, symwin_message_info *info)
{
    return query((struct sw_pair_call){.name = "symwin_recv_query",
                                       .comm = comm,
                                       .receives = 1,
                                       .peer = peer,
                                       .buffer = out,
                                       .count = count,
                                       .type = type},
                 options, info);
}

/* ---- groups ---------------------------------------------------------------------------------- */

symwin_status symwin_group_begin(void)
{
    const symwin_status status = sw_fork_check("symwin_group_begin");

    if (status == SYMWIN_OK)
        group.depth++;
    return status;
}

symwin_status symwin_group_end(void)
{
    static const char call[] = "symwin_group_end";
    symwin_status status = sw_fork_check(call);

    if (status != SYMWIN_OK)
        return status;
    if (group.depth == 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: this thread has no group open; call "
                       "symwin_group_begin() first",
                       call);
    if (--group.depth > 0)
        return SYMWIN_OK;
    status = sw_group_launch(&group);
    forget_calls();
    group.status = SYMWIN_OK;
    return status;
}

void sw_grouped_forget(const symwin_comm *comm)
{
    size_t i, kept = 0;

    for (i = 0; i < group.count; i++) {
        if (sw_group_comm(&group, i) != comm)
            group.calls[kept++] = group.calls[i];
    }
    if (kept < group.count)
        (void)note_as(SYMWIN_INVALID, "a communicator was destroyed in the group that uses it");
    group.count = kept;
    if (kept == 0) /* the thread may never end its group */
        forget_calls();
}
