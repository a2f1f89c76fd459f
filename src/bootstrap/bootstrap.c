/* How ranks find each other: every rank goes to the process that made the id (root.c), as a thread
 * or through a socket (knock.c), and comes back with its process's struct sw_group.
 *
 * In a process that did not make the id, each rank goes by itself; the lowest brings the descriptors
 * home and makes the group, for which the others wait. Ranks of another host learn by TCP who they
 * all are, and then meet once more among themselves, with an id that their lowest makes.
 */
#include <stdio.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"

static const char call[] = "symwin_comm_create";

enum {
    HOSTS_MS = 4000, /* the same, where the maker waits for other hosts' word on that */
    LOOK_MS = 2,     /* between looks for the id of a host's ranks */
    ASK_MS = 20,     /* between looks at the other hosts */
    WORD_MS = 40,    /* for a word that should be there already */
    ANSWER_MS = 500  /* for an answer of a process that runs */
};

/* ---- what the lowest rank of a process brings home ---- */

/* Whether the rank is the lowest of its process, and how many others that has. */
static int leads(const struct sw_wire_table *table, int rank, int *mates)
{
    int lowest = table->nranks;
    int r;

    *mates = 0;
    for (r = table->nranks - 1; r >= 0; r--)
        if (table->seats[r].process == table->seats[rank].process) {
            lowest = r;
            *mates += r != rank;
        }
    return lowest == rank;
}

/* How many processes of the rank's host there are beside its own. */
static int neighbours(const struct sw_place *place, int rank)
{
    int count = 0;
    int r, q;

    for (r = 0; r < place->nranks; r++) {
        if (place->seats[r].host != place->seats[rank].host ||
            place->seats[r].process == place->seats[rank].process)
            continue;
        for (q = 0; q < r && place->seats[q].process != place->seats[r].process; q++)
            ;
        count += q == r;
    }
    return count;
}

static symwin_status wrong(const char *what, int fd)
{
    sw_service_discard(fd);
    return sw_fail(SYMWIN_DENIED, "%s: the process that made the id sent a wrong %s", call, what);
}

static symwin_status take_link(struct sw_place *place, const struct sw_wire_link *link, int fd)
{
    struct sw_channel *channel = &place->channels[link->host];

    if (sw_channel_open(channel, fd, 1) != 0) {
        sw_service_close(fd);
        *channel = (struct sw_channel){.fd = -1};
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory", call);
    }
    channel->keyed = 1;
    channel->maker = 1;
    channel->sent = link->sent;
    channel->received = link->received;
    memcpy(channel->key, link->key, sizeof channel->key);
    return SYMWIN_OK;
}

/* The descriptors, for the lowest rank of a process; links for the lowest of the host. */
static symwin_status collect(struct sw_channel *channel, struct sw_place *place, int rank,
                             union sw_wire_frame *frame, int *maker, int64_t deadline)
{
    symwin_status status;
    int fd = -1;
    int i, r;

    status = sw_expect(channel, frame, SW_WIRE_PAGE, &place->page, deadline);
    *maker = status == SYMWIN_OK ? frame->pass.process : -1;
    for (i = neighbours(place, rank); i > 0 && status == SYMWIN_OK; i--) {
        status = sw_expect(channel, frame, SW_WIRE_LINE, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_wire_is_socket(fd, 0) || frame->pass.process >= place->processes ||
            frame->pass.process == place->process || place->lines[frame->pass.process] >= 0)
            return wrong("line", fd);
        place->lines[frame->pass.process] = fd;
    }
    for (r = 0; r < rank && place->seats[r].host != place->host; r++)
        ;
    for (i = r == rank ? place->hosts - 1 : 0; i > 0 && status == SYMWIN_OK; i--) {
        status = sw_expect(channel, frame, SW_WIRE_LINK, &fd, deadline);
        if (status != SYMWIN_OK)
            break;
        if (!sw_wire_is_socket(fd, 1) || frame->link.host >= place->hosts ||
            place->channels[frame->link.host].fd >= 0)
            return wrong("link", fd);
        status = take_link(place, &frame->link, fd);
        sw_wipe(frame->link.key, sizeof frame->link.key);
    }
    return status;
}

/* Whom this process holds to be at fault when it cannot go. `maker` is a rank, -1: none. */
static int whose_fault(symwin_status status, const union sw_wire_frame *last, int maker, int own)
{
    int culprit = own;

    if (last->header.type == SW_WIRE_REFUSAL)
        culprit = last->refusal.rank;
    else if (status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT)
        culprit = maker;
    return culprit >= 0 ? culprit : own;
}

/* Makes the group of what comes. `wide`: this was a meeting of one host's ranks, and that is the table of
 * all. */
static symwin_status settle_in(struct sw_channel *channel, const struct sw_wire_table *table,
                               int rank, const struct sw_wire_table *wide, int host,
                               union sw_wire_frame *frame, int *maker, int64_t deadline,
                               struct sw_group **out)
{
    struct sw_place place;
    symwin_status status = sw_place_make(&place, table->nranks, table->processes, table->hosts);
    int p;

    if (status != SYMWIN_OK)
        return status;
    memcpy(place.seats, table->seats, (size_t)table->nranks * sizeof *place.seats);
    place.process = table->seats[rank].process;
    status = collect(channel, &place, rank, frame, maker, deadline);
    if (status == SYMWIN_OK && wide != NULL) {
        sw_service_lock();
        status = sw_place_widen(&place, wide, host);
        sw_service_unlock();
    }
    if (status != SYMWIN_OK)
        sw_place_end(&place, status, whose_fault(status, frame, *maker, rank));
    sw_service_lock();
    if (status != SYMWIN_OK) {
        sw_place_release(&place);
        sw_service_unlock();
        return status;
    }
    for (p = 0; p < place.processes; p++)
        sw_service_forget(place.lines[p]); /* they are watched from now on */
    sw_service_forget(place.page);
    status = sw_group_create(&place, out);
    sw_service_unlock();
    return status;
}

/* The number of a host's rank among all. */
static int rank_of_all(const struct sw_wire_table *wide, int host, int rank)
{
    int r = 0;

    while (wide->seats[r].host != host || rank-- > 0)
        r++;
    return r;
}

/* Tells the maker why this process cannot go, as last said; the others hear it from the maker. */
static void refuse(struct sw_channel *channel, symwin_status status, int culprit, int64_t deadline)
{
    union sw_wire_frame frame;

    memset(&frame, 0, sizeof frame.refusal);
    frame.refusal.status = (int32_t)status;
    frame.refusal.rank = culprit;
    snprintf(frame.refusal.text, sizeof frame.refusal.text, "%s", symwin_last_error());
    sw_wire_seal(&frame, SW_WIRE_REFUSAL);
    sw_channel_send(channel, &frame, -1, deadline); /* it may be what does not work */
}

/* Tells the maker that this process is ready, or why it is not. */
static symwin_status report(struct sw_channel *channel, int rank, symwin_status status,
                            int64_t deadline)
{
    union sw_wire_frame frame;
    char who[32];

    if (status == SYMWIN_OK) {
        memset(&frame, 0, sizeof frame.pass);
        sw_wire_seal(&frame, SW_WIRE_READY);
        return sw_speak(channel, &frame, deadline);
    }
    snprintf(who, sizeof who, "rank %d: ", rank);
    sw_fail_in(status, call, who);
    refuse(channel, status, rank, deadline);
    return status;
}

/* Waits until the maker says GO. A process that links hosts may hear meanwhile that it will not: it tells the
 * maker; *told. */
static symwin_status await_go(struct sw_channel *channel, const struct sw_group *group,
                              union sw_wire_frame *frame, int64_t deadline, int *told)
{
    char text[SW_TEXT_BYTES];
    symwin_status status;
    int culprit;

    *told = 0;
    if (group->hosts == 1 || sw_links_here(group) != group->process)
        return sw_expect(channel, frame, SW_WIRE_GO, NULL, deadline);
    snprintf(text, sizeof text, "%s", symwin_last_error());
    for (;;) {
        const int64_t slice = sw_now_ms() + ASK_MS;

        status = sw_expect(channel, frame, SW_WIRE_GO, NULL, slice < deadline ? slice : deadline);
        if (status != SYMWIN_TIMEOUT || frame->header.type == SW_WIRE_REFUSAL)
            break;
        if (sw_exchange_ended(group->exchange)) {
            sw_exchange_settled(group->exchange, call);
            sw_exchange_outcome(group->exchange, &status, &culprit);
            refuse(channel, status, culprit, deadline);
            *told = 1;
            return status;
        }
        if (sw_now_ms() >= deadline)
            return SYMWIN_TIMEOUT;
    }
    if (status == SYMWIN_OK)
        sw_error_restore(text); /* of waiting in slices */
    return status;
}

/* The lowest rank of the process that made the id; -1: it has none. */
static int lowest_of_maker(const struct sw_wire_table *table, const struct sw_wire_table *wide,
                           int host, int maker)
{
    int r = 0;

    while (r < table->nranks && table->seats[r].process != maker)
        r++;
    if (r == table->nranks)
        return -1;
    return wide == NULL ? r : rank_of_all(wide, host, r);
}

/* This process shall not go. Unless the maker has said so, it does not know whether others do: they learn of
 * it from the page, and the other hosts from that. `maker` is a rank, -1: none. */
static symwin_status give_up(struct sw_group *group, symwin_status status,
                             const union sw_wire_frame *last, int maker)
{
    const int makers = status == SYMWIN_PEER_LOST || status == SYMWIN_TIMEOUT;

    sw_exchange_fail(group->exchange, status, whose_fault(status, last, maker, group->leader));
    if (last->header.type == SW_WIRE_REFUSAL)
        return status;
    if (!makers)
        return sw_exchange_settled(group->exchange, call);
    /* The page may have the end of a process that left for the same reason. */
    if (maker >= 0)
        sw_fail(status, "%s: rank %d, whose process made the id, %s", call, maker,
                status == SYMWIN_TIMEOUT ? "did not answer in time"
                                         : "ended before all ranks could go");
    return status;
}

/* The lowest rank of a process makes the group. */
static symwin_status bring_home(struct sw_channel *channel, const struct sw_wire_table *table,
                                int rank, const struct sw_wire_table *wide, int host,
                                int64_t deadline, struct sw_group **out)
{
    union sw_wire_frame frame = {.header = {.type = 0}};
    const int own = wide == NULL ? rank : rank_of_all(wide, host, rank);
    struct sw_group *group = NULL;
    symwin_status status;
    int maker = -1, told = 0;

    status = settle_in(channel, table, rank, wide, host, &frame, &maker, deadline, &group);
    if (frame.header.type != SW_WIRE_REFUSAL && status != SYMWIN_PEER_LOST)
        status = report(channel, own, status, deadline);
    if (status == SYMWIN_OK)
        status = await_go(channel, group, &frame, deadline, &told);
    if (status == SYMWIN_OK) {
        *out = group;
    } else if (group != NULL) {
        if (!told)
            status = give_up(group, status, &frame, lowest_of_maker(table, wide, host, maker));
        sw_service_lock();
        sw_group_free(group);
        sw_service_unlock();
    }
    return status;
}

/* ---- the ranks of a host that is not the maker's ---- */

static symwin_status join_wide(const struct sw_id *id, struct sw_wire_join *join,
                               struct sw_channel *first, const struct sw_wire_table *wide, int host,
                               struct sw_group **out);

/* Waits where nothing but a refusal may come: no frame is of type 0. Never SYMWIN_OK. */
static symwin_status await_refusal(struct sw_channel *channel, union sw_wire_frame *frame,
                                   int64_t deadline)
{
    return sw_expect(channel, frame, (enum sw_wire_type)0, NULL, deadline);
}

/* Waits until the lowest rank of the host has written down its id, or the maker says that nothing will come of
 * it. */
static symwin_status await_id(const char *tail, struct sw_id *local, struct sw_channel *channel,
                              union sw_wire_frame *frame, int lowest, int64_t deadline)
{
    char text[SW_TEXT_BYTES];
    unsigned turn = 0;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    while (!sw_id_read(tail, turn++, local, sw_id_is_open, deadline)) {
        const symwin_status status = await_refusal(channel, frame, sw_now_ms() + LOOK_MS);

        if (status != SYMWIN_TIMEOUT)
            return status;
        if (sw_now_ms() >= deadline)
            return sw_fail(
                SYMWIN_TIMEOUT,
                "%s: rank %d, the lowest on this host, did not come in time to where the host's "
                "ranks meet; they need the same TMPDIR",
                call, lowest);
    }
    sw_error_restore(text); /* of looking in vain */
    return SYMWIN_OK;
}

/* This rank cannot be with those of its host. That may be because the first maker has ended it: then that one's word
 * counts. If not, the first maker is told who is at fault: this rank, or the lowest of them, which was late. Where
 * the first maker does not answer that, the lowest may have waited for it in vain. */
static symwin_status last_word(struct sw_channel *first, int rank, int lowest, symwin_status status)
{
    char text[SW_TEXT_BYTES];
    union sw_wire_frame frame;

    snprintf(text, sizeof text, "%s", symwin_last_error());
    frame.header.type = 0;
    await_refusal(first, &frame, sw_now_ms() + WORD_MS);
    if (frame.header.type == SW_WIRE_REFUSAL)
        return (symwin_status)frame.refusal.status;
    sw_error_restore(text);
    if (status != SYMWIN_TIMEOUT)
        return report(first, rank, status, sw_now_ms());
    refuse(first, status, lowest, sw_now_ms());
    return await_refusal(first, &frame, sw_now_ms() + ANSWER_MS);
}

/* This host's ranks meet among themselves: the lowest makes an id and writes it down for the others. */
static symwin_status meet_here(const struct sw_id *id, const struct sw_wire_join *join,
                               const struct sw_wire_table *table, struct sw_channel *channel,
                               int64_t deadline, struct sw_group **out)
{
    const int host = table->seats[join->rank].host;
    const struct sw_part parts[] = {{id->secret, sizeof id->secret}, {&host, sizeof host}};
    char tail[SW_TAIL_BYTES], name[SW_FILE_NAME_BYTES];
    struct sw_id_options options = {.file = name, .table = table, .host = host, .channel = channel};
    union sw_wire_frame frame = {.header = {.type = 0}};
    const int lowest = rank_of_all(table, host, 0);
    symwin_status status = SYMWIN_OK;
    struct sw_wire_join mine;
    struct sw_id local;
    int rank = 0, nranks = 0, r;

    for (r = 0; r < table->nranks; r++) {
        rank += table->seats[r].host == host && r < join->rank;
        nranks += table->seats[r].host == host;
    }
    if (lowest == join->rank)
        status = sw_expect(channel, &frame, SW_WIRE_GO, NULL, deadline);
    sw_id_tail(parts, 2, tail);
    if (status == SYMWIN_OK && lowest == join->rank)
        status = sw_id_file(tail, call, name);
    if (status == SYMWIN_OK)
        status = lowest == join->rank
                     ? sw_id_make(&local, &options, call)
                     : await_id(tail, &local, channel, &frame, lowest, deadline - SW_GRACE_MS);
    if (status != SYMWIN_OK) {
        sw_wipe(&local, sizeof local);
        if (lowest != join->rank && frame.header.type != SW_WIRE_REFUSAL)
            return last_word(channel, join->rank, lowest, status);
        if (frame.header.type == SW_WIRE_GO)
            sw_links_say_end(channel, status, lowest);
        return status;
    }
    mine = *join;
    mine.rank = rank;
    mine.nranks = nranks;
    mine.posts = table->nranks;
    mine.timeout_ms = sw_now_ms() + SW_GRACE_MS < deadline
                          ? (int)(deadline - SW_GRACE_MS - sw_now_ms())
                          : 1;
    status = join_wide(&local, &mine, lowest == join->rank ? NULL : channel, table, host, out);
    sw_wipe(&local, sizeof local);
    if (status == SYMWIN_OK || lowest == join->rank || channel->fd < 0)
        return status;
    return last_word(channel, join->rank, lowest, status);
}

/* Through the maker's socket. */
static symwin_status join_by_socket(const struct sw_id *id, struct sw_wire_join *join,
                                    struct sw_channel *first, const struct sw_wire_table *wide,
                                    int host, int64_t deadline, struct sw_group **out)
{
    int64_t patience = deadline; /* once all have come */
    /* Here, because the lowest rank could not tell the others that there is no memory to tell them. */
    struct sw_arrival *arrival = sw_arrival_new(
        id, wide == NULL ? join->rank : rank_of_all(wide, host, join->rank));
    union sw_wire_frame frame = {.header = {.type = 0}};
    struct sw_channel channel = {.fd = -1};
    struct sw_wire_table table;
    symwin_status status;
    int mates = 0;

    if (arrival == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory to join", call);
    status = sw_knock(id, join, first, deadline, &channel, &frame);
    if (status == SYMWIN_OK && frame.header.type == SW_WIRE_HERE) {
        struct sw_id local = *id;

        sw_channel_close(&channel);
        sw_arrival_free(arrival);
        memcpy(local.folder, frame.here.folder, sizeof local.folder);
        local.folder[sizeof local.folder - 1] = '\0';
        local.family = 0; /* not over the network again */
        status = join_by_socket(&local, join, first, wide, host, deadline, out);
        sw_wipe(&local, sizeof local);
        return status;
    }
    if (status != SYMWIN_OK) {
        sw_channel_close(&channel);
        if (frame.header.type == SW_WIRE_REFUSAL) /* as all are */
            sw_arrival_free(arrival);
        else /* the others may go without it */
            sw_arrival_decline(arrival, status, deadline);
        return status;
    }
    if (frame.table.nranks != join->nranks)
        status = sw_fail(SYMWIN_DENIED, "%s: the process that made the id counts %d ranks, not %d",
                         call, frame.table.nranks, join->nranks);
    table = frame.table;
    if (status == SYMWIN_OK && table.hosts > 1)
        patience = deadline - SW_GRACE_MS + HOSTS_MS;
    if (status == SYMWIN_OK && channel.stream) {
        status = meet_here(id, join, &table, &channel, deadline, out);
    } else if (status == SYMWIN_OK && leads(&table, join->rank, &mates)) {
        status = bring_home(&channel, &table, join->rank, wide, host, patience, out);
        sw_arrival_announce(arrival, mates, status, status == SYMWIN_OK ? *out : NULL);
        arrival = NULL;
    } else if (status == SYMWIN_OK) {
        status = sw_arrival_await(arrival, patience + SW_GRACE_MS, out);
        arrival = NULL;
    }
    sw_channel_close(&channel);
    sw_arrival_free(arrival);
    return status;
}

static symwin_status join_wide(const struct sw_id *id, struct sw_wire_join *join,
                               struct sw_channel *first, const struct sw_wire_table *wide, int host,
                               struct sw_group **out)
{
    const int64_t deadline = sw_now_ms() + join->timeout_ms + SW_GRACE_MS;
    symwin_status status;

    if (memcmp(join->process, id->maker, sizeof id->maker) != 0)
        return join_by_socket(id, join, first, wide, host, deadline, out);
    if (first != NULL)
        sw_knock_ready(first);
    sw_service_lock();
    status = sw_root_join(id, join, out);
    sw_service_unlock();
    return status;
}

symwin_status sw_bootstrap_join(const symwin_unique_id *unique, int nranks, int rank,
                                int timeout_ms, struct sw_group **out)
{
    struct sw_wire_join join;
    symwin_status status;
    struct sw_id id;

    memcpy(&id, unique, sizeof id);
    if (!sw_id_is_valid(&id))
        return sw_fail(SYMWIN_INVALID, "%s: id was not made by symwin_unique_id_create", call);
    sw_service_lock();
    status = sw_join_fill(&join, nranks, rank, timeout_ms);
    sw_service_unlock();
    if (status == SYMWIN_OK)
        status = join_wide(&id, &join, NULL, NULL, 0, out);
    sw_claim_drop(&id);
    sw_wipe(&id, sizeof id);
    if (status != SYMWIN_OK)
        sw_fail_in(status, call, ""); /* what failed may not know in which call it was */
    sw_service_settle();
    return status;
}

void sw_bootstrap_forget(void)
{
    sw_arrivals_forked();
    sw_claims_forked();
    sw_id_forked();
    sw_root_forked();
}
