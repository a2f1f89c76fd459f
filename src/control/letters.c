/* What one rank tells another: letters, which are delivered whatever the other one is doing.
 *
 *   same process    into the mail of the process's group
 *   same host       over the line between the two processes; there the service thread reads it into the mail, or who waits
 *   another host    to the process that links this host with the others, over TCP (links.c), and on to the rank's process
 *
 * Lines carry the handles of registrations too (handles.c). While one is under way here, its thread reads the lines and
 * puts letters into the mail; handles that come before that wait in their line's list.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "src/control/letters.h"
#include "src/control/links.h"

enum {
    /* Of one rank that wait in a process. Each of its lanes is in one channel at a time, and of a channel there are three:
     * more is no use of channels. */
    MOST_LETTERS = 3 * SW_STATE_LANES,
    DESCRIPTORS = 4, /* of which one may be of letters that wait */
    SLICE_MS = 20,   /* between two looks at what is not told: whether a rank has left */
    PASS_MS =
        100 /* for a line that is read at its other end, by the service thread that passes a letter on */
};

struct sw_early {
    struct sw_early *next;
    struct sw_wire_handle handle;
    int fd;
    int error; /* EMFILE: the descriptor was lost */
};

void sw_letter_free(struct sw_letter *letter)
{
    if (letter == NULL)
        return;
    sw_service_discard(letter->fd);
    if (letter->memory != 0)
        sw_drop(sw_drv.cuMemRelease(letter->memory), "cuMemRelease");
    sw_wipe(&letter->words,
            sizeof letter->words); /* whoever has a fabric handle gets at the memory */
    free(letter);
}

/* ---- the mail, under the service lock ---- */

/* Whether the process can do with one more descriptor that waits. */
static int has_room(const struct sw_group *group)
{
    struct rlimit most;

    return getrlimit(RLIMIT_NOFILE, &most) != 0 ||
           (rlim_t)group->mail_fds < most.rlim_cur / DESCRIPTORS;
}

/* Takes over what comes along, where it succeeds. 0: no host memory. */
static int deliver(struct sw_group *group, const struct sw_wire_letter *words, int fd,
                   CUmemGenericAllocationHandle memory)
{
    struct sw_letter *letter = calloc(1, sizeof *letter);

    if (letter == NULL)
        return 0;
    if (fd >= 0 && !has_room(group)) { /* as if the system had had none */
        sw_service_discard(fd);
        fd = -1;
    }
    letter->words = *words;
    letter->fd = fd;
    letter->memory = memory;
    if (sw_exchange_has_left(group->exchange, words->to)) {
        sw_letter_free(letter);
        return 1;
    }
    *group->mail_end = letter;
    group->mail_end = &letter->next;
    group->waiting[words->from]++;
    group->mail_fds += fd >= 0;
    pthread_cond_broadcast(&group->mail_came);
    return 1;
}

static struct sw_letter **mail_of(struct sw_group *group, int rank)
{
    struct sw_letter **at = &group->mail;

    while (*at != NULL && (*at)->words.to != rank)
        at = &(*at)->next;
    return at;
}

static struct sw_letter *take(struct sw_group *group, int rank)
{
    struct sw_letter **at = mail_of(group, rank);
    struct sw_letter *letter = *at;

    if (letter == NULL)
        return NULL;
    *at = letter->next;
    if (*at == NULL)
        group->mail_end = at;
    group->waiting[letter->words.from]--;
    group->mail_fds -= letter->fd >= 0;
    return letter;
}

struct sw_letter *sw_letters_take(struct sw_group *group, int rank)
{
    struct sw_letter *letter;

    sw_service_lock();
    letter = take(group, rank);
    sw_service_unlock();
    return letter;
}

void sw_letters_drop(struct sw_group *group, int rank)
{
    struct sw_letter *letter;

    sw_service_lock();
    while ((letter = take(group, rank)) != NULL)
        sw_letter_free(letter);
    pthread_cond_broadcast(&group->mail_came); /* ranks of this process look who has left */
    sw_service_unlock();
}

void sw_letters_destroy(struct sw_group *group)
{
    int p;

    while (group->mail != NULL) {
        struct sw_letter *letter = group->mail;

        group->mail = letter->next;
        sw_letter_free(letter);
    }
    for (p = 0; p < group->processes && group->lines != NULL; p++)
        while (group->lines[p].early != NULL) {
            struct sw_early *early = group->lines[p].early;

            group->lines[p].early = early->next;
            sw_service_discard(early->fd);
            free(early);
        }
    free(group->waiting);
    pthread_cond_destroy(&group->mail_came);
}

/* ---- lines, under the service lock ---- */

/* Whether a letter that came from `process` of this host, or from another host (-1), can be its. */
static int can_be(const struct sw_group *group, const struct sw_wire_letter *words, int process)
{
    const int here = group->host;

    if (words->from >= group->nranks || words->to >= group->nranks)
        return 0;
    if (group->host_of[words->from] != here) /* by way of who links this host */
        return process < 0 || process == sw_links_here(group);
    return process >= 0 && group->process_of[words->from] == process;
}

/* On to another process of this host, or another host. An errno of this process, or of one that has ended. */
static int pass_on(struct sw_group *group, const struct sw_wire_letter *words)
{
    const int host = group->host_of[words->to];
    union sw_wire_frame frame;

    if (sw_links_here(group) != group->process ||
        (host != group->host && group->host != 0 && group->host_of[words->from] != group->host))
        return EPROTO; /* it has come to where it is not for */
    if (host != group->host)
        return sw_links_letter(group, group->host == 0 ? host : 0, words) ? 0 : ENOMEM;
    frame.letter = *words;
    return sw_wire_send(group->lines[group->process_of[words->to]].watch.fd, &frame, -1,
                        sw_now_ms() + PASS_MS);
}

/* A letter from `process`, or from another host. 0, or an errno; takes `fd` only where it succeeds. */
static int accept_letter(struct sw_group *group, const struct sw_wire_letter *words, int fd,
                         int process)
{
    int error;

    if (!can_be(group, words, process))
        return EPROTO;
    if (sw_group_is_local(group, words->to)) {
        if (group->waiting[words->from] >= MOST_LETTERS)
            return EPROTO;
        return deliver(group, words, fd, 0) ? 0 : ENOMEM;
    }
    if (fd >= 0)
        return EPROTO;
    error = pass_on(group, words);
    if (error == ETIMEDOUT)
        sw_exchange_fail(group->exchange, SYMWIN_TIMEOUT, words->to);
    /* That a process has ended its line tells. */
    return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT ? 0 : error;
}

int sw_letters_forward(struct sw_group *group, const struct sw_wire_letter *words)
{
    const int error = accept_letter(group, words, -1, -1);

    if (error != 0 && error != EPROTO)
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, group->leader);
    return error != EPROTO;
}

/* Whether a handle can be of the registration that is about to begin here: of a rank of that process, each once. */
static int is_next(const struct sw_line *line, const struct sw_wire_handle *handle)
{
    const struct sw_early *e;

    for (e = line->early; e != NULL; e = e->next)
        if (e->handle.rank == handle->rank || e->handle.sequence != handle->sequence)
            return 0;
    return handle->rank < line->group->nranks &&
           line->group->process_of[handle->rank] == line->process;
}

static int keep_early(struct sw_line *line, const struct sw_wire_handle *handle, int fd, int error)
{
    struct sw_early *early = malloc(sizeof *early);
    struct sw_early **at = &line->early;

    if (early == NULL)
        return ENOMEM;
    *early = (struct sw_early){.handle = *handle, .fd = fd, .error = error};
    while (*at != NULL)
        at = &(*at)->next;
    *at = early;
    return 0;
}

/* The next frame that is no letter, with its descriptor, which is kept; letters go into the mail. */
static int next_frame(struct sw_line *line, union sw_wire_frame *frame, int *fd)
{
    for (;;) {
        int error;

        *fd = -1;
        error = sw_wire_receive_now(line->watch.fd, frame, fd);
        if (error == 0 && !sw_service_keep(*fd)) {
            sw_service_discard(*fd);
            *fd = -1;
            error = EMFILE;
        }
        if ((error != 0 && error != EMFILE) || frame->header.type != SW_WIRE_LETTER)
            return error;
        /* Without its descriptor too: whoever opens it finds that there is none. */
        error = accept_letter(line->group, &frame->letter, *fd, line->process);
        if (error != 0) {
            sw_service_discard(*fd);
            *fd = -1;
            return error;
        }
    }
}

/* 0, or the errno that ends the line. */
static int read_all(struct sw_line *line)
{
    union sw_wire_frame frame;
    int error, fd;

    for (;;) {
        error = next_frame(line, &frame, &fd);
        if (error == EAGAIN)
            return 0;
        if (error != 0 && error != EMFILE)
            return error;
        if (frame.header.type != SW_WIRE_HANDLE || !is_next(line, &frame.handle))
            error = EPROTO;
        else
            error = keep_early(line, &frame.handle, fd, error);
        if (error != 0) {
            sw_service_discard(fd);
            return error;
        }
    }
}

int sw_letters_read(struct sw_line *line)
{
    struct sw_group *group = line->group;
    const int error = group->trading ? 0 : read_all(line);

    if (error == EPROTO)
        sw_exchange_fail(group->exchange, SYMWIN_MISMATCH,
                         sw_group_leader_of(group, line->process));
    else if (error != 0 && error != EPIPE) /* this process cannot take what came */
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, group->leader);
    return error;
}

void sw_letters_trade(struct sw_group *group, int begins)
{
    int p;

    sw_service_lock();
    group->trading = begins;
    for (p = 0; p < group->processes; p++)
        group->lines[p].watch.events = begins ? POLLRDHUP : POLLIN | POLLRDHUP;
    if (!begins)
        sw_service_changed();
    sw_service_unlock();
}

int sw_letters_next_handle(struct sw_line *line, union sw_wire_frame *frame, int *fd)
{
    struct sw_early *early = line->early;
    int error;

    if (early != NULL) {
        frame->handle = early->handle;
        *fd = early->fd;
        error = early->error;
        line->early = early->next;
        free(early);
        return error;
    }
    sw_service_lock();
    error = next_frame(line, frame, fd);
    sw_service_unlock();
    return error;
}

/* ---- sending ---- */

enum sw_letter_way sw_letters_way(const struct sw_group *group, int to)
{
    if (sw_group_is_local(group, to))
        return SW_WAY_PROCESS;
    return group->host_of[to] == group->host ? SW_WAY_HOST : SW_WAY_FABRIC;
}

/* An errno. */
static int dispatch(struct sw_group *group, const union sw_wire_frame *frame, int fd,
                    CUmemGenericAllocationHandle memory, int64_t deadline)
{
    const struct sw_wire_letter *words = &frame->letter;
    const int to = words->to;
    int process = group->process_of[to], delivered;

    if (process == group->process) {
        sw_service_lock();
        delivered = deliver(group, words, -1, memory);
        sw_service_unlock();
        return delivered ? 0 : ENOMEM;
    }
    if (group->host_of[to] != group->host) {
        process = sw_links_here(group);
        if (process == group->process)
            return sw_links_letter(group, group->host == 0 ? group->host_of[to] : 0, words)
                       ? 0
                       : ENOMEM;
    }
    return sw_wire_send(group->lines[process].watch.fd, frame, fd, deadline);
}

int sw_letters_try(struct sw_group *group, const struct sw_wire_letter *words, int fd,
                   CUmemGenericAllocationHandle memory, int64_t deadline)
{
    union sw_wire_frame frame;
    int error;

    frame.letter = *words;
    sw_wire_seal(&frame, SW_WIRE_LETTER);
    error = dispatch(group, &frame, fd, memory, deadline);
    if (error != 0 && memory != 0)
        sw_drop(sw_drv.cuMemRelease(memory), "cuMemRelease");
    return error;
}

symwin_status sw_letters_send(struct sw_group *group, const struct sw_wire_letter *words, int fd,
                              CUmemGenericAllocationHandle memory, int64_t deadline,
                              const char *call)
{
    const int error = sw_letters_try(group, words, fd, memory, deadline);

    if (error == 0 || error == EPIPE || error == ECONNRESET)
        return SYMWIN_OK; /* that a process has ended, or left, its line tells */
    if (error == ETIMEDOUT)
        sw_exchange_fail(group->exchange, SYMWIN_TIMEOUT, words->to);
    else
        sw_exchange_fail(group->exchange, SYMWIN_NO_MEMORY, words->from);
    return sw_exchange_settled(group->exchange, call);
}

/* ---- waiting ---- */

/* Under the service lock. */
static void collect(struct sw_group *group)
{
    int p;

    for (p = 0; p < group->processes; p++)
        if (group->lines[p].watch.fd >= 0)
            (void)sw_letters_read(&group->lines[p]); /* its end the service thread sees too */
}

void sw_letters_collect(struct sw_group *group)
{
    sw_service_lock();
    collect(group);
    sw_service_unlock();
}

/* The rank that has left, so that no letter of `peer` can come any more: itself, or one whose process passes them on. -1:
 * nobody. */
static int who_left(const struct sw_group *group, int peer)
{
    const int hosts[] = {group->host, 0, group->host_of[peer]}; /* through which it comes */
    int h;

    if (sw_exchange_has_left(group->exchange, peer))
        return peer;
    for (h = 0; h < 3 && group->host_of[peer] != group->host; h++)
        if (sw_links_staying(group, hosts[h]) < 0)
            return group->links[hosts[h]].rank;
    return -1;
}

symwin_status sw_letters_wait(struct sw_group *group, int rank, int peer, int64_t deadline,
                              const char *call)
{
    struct sw_exchange *x = group->exchange;
    const int64_t own = deadline; /* what comes after is the allowance */
    int over = 0;

    deadline += sw_exchange_allowance(x, peer);
    sw_service_lock();
    while (*mail_of(group, rank) == NULL) {
        const int64_t now = sw_now_ms();
        const int left = who_left(group, peer);

        over = sw_exchange_ended(x);
        if (over)
            break;
        /* What came through is on this process's lines before the word that somebody leaves, and the service thread may be
         * late to read it, or unable: nobody is blamed for a letter that is there. */
        collect(group);
        if (*mail_of(group, rank) != NULL)
            break;
        if (left >= 0)
            sw_exchange_fail(x, SYMWIN_PEER_LOST, left);
        else if (now >= deadline)
            sw_exchange_fail(x, SYMWIN_TIMEOUT, sw_exchange_blame(x, peer));
        else {
            if (now >= own)
                sw_exchange_ask(x);
            sw_exchange_waits_for(x, rank, peer);
            sw_service_wait(&group->mail_came,
                            now + SLICE_MS < deadline ? now + SLICE_MS : deadline);
        }
    }
    sw_service_unlock();
    sw_exchange_waits_for(x, rank, -1);
    return over ? sw_exchange_settled(x, call) : SYMWIN_OK;
}
