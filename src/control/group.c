/* A communicator as its processes share it: what the meeting gave each of them (a place), and what it makes
 * of that (a group): the exchange, the lines to the other processes, the links to other hosts. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/control/group.h"
#include "src/control/letters.h"

static const char call[] = "symwin_comm_create";

/* ---- places ---- */

symwin_status sw_place_make(struct sw_place *place, int nranks, int processes, int hosts)
{
    int i;

    *place = (struct sw_place){
        .nranks = nranks, .processes = processes, .hosts = hosts, .page = -1};
    place->seats = calloc((size_t)nranks, sizeof *place->seats);
    place->lines = malloc((size_t)processes * sizeof *place->lines);
    place->channels = malloc((size_t)hosts * sizeof *place->channels);
    for (i = 0; i < processes && place->lines != NULL; i++)
        place->lines[i] = -1;
    for (i = 0; i < hosts && place->channels != NULL; i++)
        place->channels[i] = (struct sw_channel){.fd = -1};
    if (place->seats != NULL && place->lines != NULL && place->channels != NULL)
        return SYMWIN_OK;
    sw_place_release(place);
    return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, nranks);
}

int sw_place_leader(const struct sw_place *place, int process)
{
    int r = 0;

    while (r < place->nranks - 1 && place->seats[r].process != process)
        r++;
    return r;
}

/* Closes what may be kept. */
void sw_let_go(int fd)
{
    sw_service_forget(fd);
    close(fd);
}

static void line_close(int fd)
{
    sw_wire_empty(fd);
    sw_let_go(fd);
}

void sw_place_release(struct sw_place *place)
{
    int i;

    for (i = 0; i < place->processes && place->lines != NULL; i++)
        if (place->lines[i] >= 0)
            line_close(place->lines[i]);
    for (i = 0; i < place->hosts && place->channels != NULL; i++)
        sw_channel_drop(&place->channels[i]);
    if (place->page >= 0)
        sw_let_go(place->page);
    free(place->seats);
    free(place->lines);
    free(place->channels);
    *place = (struct sw_place){.page = -1};
}

void sw_place_end(struct sw_place *place, symwin_status status, int culprit)
{
    int h;

    for (h = 0; h < place->hosts; h++)
        if (place->channels[h].fd >= 0)
            sw_links_say_end(&place->channels[h], status, culprit >= 0 ? culprit : 0);
}

symwin_status sw_place_widen(struct sw_place *place, const struct sw_wire_table *table, int host)
{
    struct sw_place wide;
    symwin_status status = sw_place_make(&wide, table->nranks, table->processes, table->hosts);
    int r, mine = 0;

    if (status != SYMWIN_OK)
        return status;
    memcpy(wide.seats, table->seats, (size_t)table->nranks * sizeof *wide.seats);
    wide.host = host;
    wide.page = place->page;
    place->page = -1;
    wide.process = -1;
    for (r = 0; r < table->nranks && mine < place->nranks; r++) {
        int from;

        if (table->seats[r].host != host)
            continue;
        from = place->seats[mine++].process;
        if (from == place->process)
            wide.process = table->seats[r].process;
        if (place->lines[from] < 0)
            continue;
        wide.lines[table->seats[r].process] = place->lines[from];
        place->lines[from] = -1;
    }
    sw_place_release(place);
    *place = wide;
    return SYMWIN_OK;
}

/* ---- groups ---- */

void sw_group_free(struct sw_group *group)
{
    int p;

    sw_links_stop(group);
    for (p = 0; p < group->processes && group->lines != NULL; p++)
        sw_service_remove(&group->lines[p].watch);
    for (p = 0; p < group->processes && group->lines != NULL; p++)
        if (group->lines[p].watch.fd >= 0)
            line_close(group->lines[p].watch.fd);
    if (group->base != 0)
        sw_drop(sw_drv.cuMemAddressFree(group->base, group->range_bytes), "cuMemAddressFree");
    pthread_mutex_destroy(&group->mutex);
    sw_letters_destroy(group);
    sw_exchange_destroy(group->exchange);
    if (group->trade != NULL)
        group->trade_free(group->trade);
    free(group->lines);
    free(group->process_of);
    free(group->host_of);
    free(group->devices);
    free(group->reports);
    free(group);
}

/* Asks the waiting kernels of this process's ranks to leave: the caller's own, and with `all` the library's too. */
static void end_kernels(struct sw_group *group, int all)
{
    int r;

    pthread_mutex_lock(&group->mutex);
    for (r = 0; r < group->nranks; r++) {
        if (group->reports[r] == NULL)
            continue;
        __atomic_store_n(&group->reports[r]->ended, 1, __ATOMIC_RELEASE);
        if (all)
            __atomic_store_n(&group->reports[r]->abort, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&group->mutex);
}

/* The exchange has ended: this process's kernels must not wait any longer, and the other processes must
 * hear of it. Any thread. */
static void group_ended(void *context)
{
    struct sw_group *group = context;
    symwin_status status;
    int culprit;

    /* Of a rank that has left the library's kernels find out by themselves: those that do not need it complete. */
    end_kernels(group, !sw_exchange_outcome(group->exchange, &status, &culprit) ||
                           status != SYMWIN_PEER_LOST || culprit >= group->nranks ||
                           !sw_exchange_leaves(group->exchange, culprit));
    sw_group_break_lines(group);
    sw_links_end(group);
    pthread_cond_broadcast(&group->mail_came);
}

/* A process is lost with all its ranks that have not left. */
static void process_lost(struct sw_group *group, int process)
{
    /* Without the process that links this host with the others, no other decides for it, be an end proposed or
     * not. */
    const int linked = group->hosts > 1 && process == sw_links_here(group);
    int r;

    for (r = 0; r < group->nranks; r++) {
        if (group->process_of[r] != process)
            continue;
        if (sw_exchange_has_left(group->exchange, r)) {
            sw_links_leave(group, r, -1);
            continue;
        }
        sw_exchange_is_lost(group->exchange, r);
        if (linked)
            sw_exchange_decide(group->exchange, SYMWIN_PEER_LOST, r);
        else if (!sw_exchange_ended(group->exchange))
            sw_exchange_fail(group->exchange, SYMWIN_PEER_LOST, r);
    }
}

/* The line to a process has broken: it has left, or died, or heard of an end; or this process could not read it, which has
 * ended the exchange: the other end is not lost for that (`can_read` 0). On the service thread. */
static void line_broken(struct sw_line *line, int can_read)
{
    struct sw_group *group = line->group;

    sw_service_remove(&line->watch);
    sw_service_keep(line->watch.fd); /* or a forked child would hold it open */
    if (can_read &&
        !sw_exchange_is_quiet(group->exchange, sw_group_leader_of(group, line->process)))
        process_lost(group, line->process);
    if (sw_exchange_ended(group->exchange))
        group_ended(group);
}

/* Something came over a line, perhaps its end. On the service thread. */
static void line_ready(struct sw_watch *watch, short events)
{
    struct sw_line *line = (struct sw_line *)(void *)watch;
    const int error = sw_letters_read(line);

    if (error != 0 || (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
        line_broken(line, error == 0 || error == EPIPE);
}

void sw_group_abort_kernels(struct sw_group *group)
{
    end_kernels(group, 1);
}

void sw_group_break_lines(struct sw_group *group)
{
    int p;

    sw_exchange_be_quiet(group->exchange, group->leader);
    for (p = 0; p < group->processes && group->lines != NULL; p++)
        if (group->lines[p].watch.fd >= 0)
            shutdown(group->lines[p].watch.fd, SHUT_WR);
}

/* Takes the place's descriptors into the group. */
static symwin_status group_connect(struct sw_group *group, struct sw_place *place)
{
    symwin_status status = SYMWIN_OK;
    int p;

    if (place->page < 0) {
        group->exchange = sw_exchange_create(place->nranks);
        if (group->exchange == NULL)
            return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call,
                           place->nranks);
        sw_exchange_on_end(group->exchange, group_ended, group);
        return SYMWIN_OK;
    }
    status = sw_exchange_open(place->page, place->nranks, &group->exchange);
    if (status == SYMWIN_OK)
        sw_exchange_on_end(group->exchange, group_ended, group);
    if (status == SYMWIN_OK && group->hosts > 1)
        status = sw_links_start(group, place->channels);
    for (p = 0; p < place->processes && status == SYMWIN_OK; p++) {
        struct sw_line *line = &group->lines[p];

        if (place->lines[p] < 0)
            continue;
        line->group = group;
        line->process = p;
        line->watch = (struct sw_watch){.fd = place->lines[p],
                                        .events = POLLIN | POLLRDHUP,
                                        .deadline = INT64_MAX,
                                        .ready = line_ready};
        place->lines[p] = -1;
        status = sw_service_add(&line->watch);
    }
    return status;
}

/* Room for what the place says. */
static symwin_status group_fill(struct sw_group *group, const struct sw_place *place)
{
    int p, r;

    group->nranks = place->nranks;
    group->process = place->process;
    group->processes = place->processes;
    group->host = place->host;
    group->hosts = place->hosts;
    group->reports = calloc((size_t)place->nranks, sizeof *group->reports);
    group->process_of = calloc((size_t)place->nranks, sizeof *group->process_of);
    group->host_of = calloc((size_t)place->nranks, sizeof *group->host_of);
    group->lines = calloc((size_t)place->processes, sizeof *group->lines);
    group->waiting = calloc((size_t)place->nranks, sizeof *group->waiting);
    group->mail_end = &group->mail;
    for (p = 0; p < place->processes && group->lines != NULL; p++)
        group->lines[p].watch.fd = -1;
    if (group->reports == NULL || group->process_of == NULL || group->host_of == NULL ||
        group->lines == NULL || group->waiting == NULL ||
        (group->hosts > 1 && !sw_links_create(group)))
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place->nranks);
    group->leader = sw_place_leader(place, place->process);
    for (r = 0; r < place->nranks; r++) {
        group->process_of[r] = place->seats[r].process;
        group->host_of[r] = place->seats[r].host;
        if (group->process_of[r] != place->process)
            continue;
        group->nlocal++;
    }
    atomic_init(&group->refs, group->nlocal);
    return SYMWIN_OK;
}

/* There is no group: the other processes and hosts must not wait for its ranks. */
static void group_give_up(struct sw_group *group, struct sw_place *place, symwin_status status)
{
    const int leader = sw_place_leader(place, place->process);

    if (group != NULL && group->exchange != NULL)
        sw_exchange_fail(group->exchange, status, leader);
    sw_place_end(place, status, leader);
    if (group != NULL)
        sw_group_free(group);
}

symwin_status sw_group_create(struct sw_place *place, struct sw_group **out)
{
    struct sw_group *group = calloc(1, sizeof *group);
    symwin_status status;

    if (group != NULL)
        pthread_cond_init(&group->mail_came, NULL);
    if (group != NULL && pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        group = NULL;
    }
    if (group == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", call, place->nranks);
    else
        status = group_fill(group, place);
    if (status == SYMWIN_OK)
        status = group_connect(group, place);
    if (status == SYMWIN_OK)
        *out = group;
    else
        group_give_up(group, place, status);
    sw_place_release(place);
    return status;
}

void sw_bootstrap_leave(struct sw_group *group, int rank)
{
    sw_exchange_leave(group->exchange, rank);
    sw_links_leave(group, rank, -1);
    sw_letters_drop(group, rank);
    if (atomic_fetch_sub(&group->refs, 1) != 1)
        return;
    sw_service_lock();
    sw_group_free(group);
    sw_service_unlock();
    sw_service_settle();
}
