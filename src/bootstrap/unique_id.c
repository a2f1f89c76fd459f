/* Unique ids: creation and release, and how all ranks get the same one: from the launcher's
 * environment, by the caller's all-gather, or from an existing communicator. id.c has the contents
 * of an id.
 *
 * In a job on one host rank 0 creates the id and writes it to a file whose name is derived from the
 * job's. In a job on several hosts all ranks derive the same id from a shared secret,
 * SYMWIN_SECRET, and rank 0's process listens at MASTER_ADDR.
 *
 * Any thread, without the poll lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/bootstrap/rendezvous.h"

enum { LEAST_SECRET = 16 };

static const char env_call[] = "symwin_unique_id_from_env";
static const char split_call[] = "symwin_comm_split";

/* ---- creation and release ---- */

/* In a forked child: claims and rendezvous are the parent's. */
static void forget(void)
{
    sw_claims_forked();
    sw_rendezvous_forked();
}

symwin_status sw_id_make(struct sw_id *id, const struct sw_id_options *options,
                         const char *for_call)
{
    static const struct sw_id_options none;
    symwin_status status = SYMWIN_OK;

    if (options == NULL)
        options = &none;
    sw_fork_register(forget);
    sw_id_blank(id);
    sw_host_name(id->host);
    if (options->secret != NULL)
        memcpy(id->secret, options->secret, sizeof id->secret);
    else
        status = sw_random_bytes(id->secret, sizeof id->secret, for_call);
    if (status == SYMWIN_OK && options->address != NULL)
        status = sw_id_resolve(options->address, options->port, options->everywhere, id, for_call);
    if (options->at != NULL && !sw_id_set_address(id, options->at))
        id->family = 0;
    if (status != SYMWIN_OK)
        return status;
    sw_poll_lock();
    status = sw_rendezvous_open(id, options, for_call);
    sw_poll_unlock();
    sw_poll_settle(); /* ends the poll thread if this failed */
    return status;
}

symwin_status sw_id_derive(struct sw_id *id, const struct sw_id_options *options,
                           const char *for_call)
{
    sw_id_blank(id);
    memcpy(id->secret, options->secret, sizeof id->secret);
    return sw_id_resolve(options->address, options->port, 1, id, for_call);
}

/* Reads SYMWIN_PORT. 0: any port; the default. */
static symwin_status read_port(const char *for_call, int *out)
{
    const char *text = getenv("SYMWIN_PORT");

    *out = 0;
    if (text == NULL || text[0] == '\0')
        return SYMWIN_OK;
    return sw_launch_number(for_call, "SYMWIN_PORT", "a free port of this host, or 0 for any", 0,
                            65535, out);
}

symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    static const char own_call[] = "symwin_unique_id_create";
    struct sw_id_options options = {.secret = NULL};
    symwin_status status = sw_fork_check(own_call);
    struct sw_id fresh;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", own_call);
    options.address = getenv("SYMWIN_ADDR");
    if (options.address != NULL && options.address[0] == '\0')
        options.address = NULL;
    status = read_port(own_call, &options.port);
    if (status == SYMWIN_OK)
        status = sw_id_make(&fresh, &options, own_call);
    if (status == SYMWIN_OK)
        memcpy(id, &fresh, sizeof fresh);
    sw_wipe(&fresh, sizeof fresh);
    return status;
}

symwin_status symwin_unique_id_release(const symwin_unique_id *id)
{
    symwin_status status = sw_fork_check("symwin_unique_id_release");
    struct sw_id copy;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_release: id is NULL");
    memcpy(&copy, id, sizeof copy);
    sw_poll_lock();
    status = sw_rendezvous_close(&copy);
    sw_poll_unlock();
    sw_poll_settle();
    sw_claim_drop(&copy);
    sw_wipe(&copy, sizeof copy);
    return status;
}

/* ---- launch query ---- */

symwin_status symwin_launch_query(symwin_launch_info *info)
{
    static const char call[] = "symwin_launch_query";
    struct sw_launch launch;
    symwin_status status;

    if (info == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: info is NULL", call);
    if (sw_launch_is_none()) {
        *info = (symwin_launch_info){NULL, 0, 1, 0, 1};
        return SYMWIN_OK;
    }
    status = sw_launch_read(call, &launch);
    if (status == SYMWIN_OK)
        *info = (symwin_launch_info){launch.launcher, launch.rank, launch.nranks, launch.local_rank,
                                     launch.local_nranks};
    return status;
}

/* ---- ids from the environment ---- */

/* Numbers the calls, so that the n-th call of each rank gets the same id. Calls that fail count
 * too: if all ranks fail and call again, they still match, although some failed earlier than
 * others. Not counted are calls that fail because a variable is missing or wrong: no other rank
 * depends on them. */
static unsigned next_number(void)
{
    static atomic_uint calls;

    return atomic_fetch_add(&calls, 1);
}

/* Fails if another job is running whose ranks have the same variables: ranks of both would join
 * each other. */
static symwin_status look_for_rivals(const struct sw_launch *launch, int timeout_ms)
{
    const long rival = sw_launch_rival(launch, timeout_ms);

    if (rival == 0)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: process %ld was started as rank %d of %d too, and its job cannot be told "
                   "from this one: set SYMWIN_JOB to a name unique to each job",
                   env_call, rival, launch->rank, launch->nranks);
}

/* A job on one host. */
static symwin_status id_of_host(const struct sw_launch *launch, struct sw_id *id)
{
    const unsigned number = next_number();
    unsigned char host[SW_NAME_BYTES]; /* others may see the same folder over the network */
    const struct sw_part job[] = {
        {launch->job, strlen(launch->job)}, {&number, sizeof number}, {host, sizeof host}};
    /* symwin_comm_create() refuses an invalid value. */
    const int timeout_ms = (int)sw_setting(SW_SETTING_BOOTSTRAP_TIMEOUT_MS);
    const struct timespec moment = {.tv_nsec = 1000000};
    char tail[SW_TAIL_BYTES], name[SW_FILE_NAME_BYTES];
    const struct sw_id_options options = {.file = name};
    const int64_t deadline = sw_now_ms() + timeout_ms;
    symwin_status status;
    struct sw_claim *claim = NULL;
    unsigned turn = 0;
    int found;

    sw_fork_register(forget);
    sw_machine_name(host);
    sw_id_tail(job, 3, tail);
    status = sw_id_file(tail, env_call, name, deadline);
    if (status == SYMWIN_OK && launch->nranks > 1)
        status = look_for_rivals(launch, timeout_ms);
    if (status == SYMWIN_OK && launch->nranks > 1)
        status = sw_claim_take(name, launch->rank, launch->job, env_call, &claim);
    if (status == SYMWIN_OK && launch->rank == 0)
        status = sw_id_make(id, &options, env_call);
    while (status == SYMWIN_OK && launch->rank != 0 &&
           (found = sw_id_read(tail, turn++, id, sw_id_is_open, deadline)) <= 0) {
        if (found < 0)
            status = sw_id_full(env_call);
        else if (sw_now_ms() >= deadline)
            status = sw_fail(
                SYMWIN_TIMEOUT,
                "%s: rank 0 of job \"%s\" did not join within %d ms; start every rank, with the "
                "same TMPDIR%s",
                env_call, launch->job, timeout_ms,
                launch->local_nranks == 0 && strcmp(launch->launcher, "symwin") == 0
                    ? "; if the job has processes on several hosts, set SYMWIN_LOCAL_NRANKS to "
                      "the number of them on this host"
                    : "");
        else
            nanosleep(&moment, NULL);
    }
    if (status == SYMWIN_OK)
        sw_claim_hold(claim, id);
    else
        sw_claim_free(claim);
    return status;
}

/* A job on several hosts. */
static symwin_status id_of_hosts(const struct sw_launch *launch, struct sw_id *id)
{
    const char *shared = getenv("SYMWIN_SECRET");
    unsigned char secret[SW_KEY_BYTES];
    symwin_status status;
    unsigned number;
    struct sw_part parts[] = {{"symwin job", 10},
                              {shared, 0},
                              {launch->job, strlen(launch->job)},
                              {&number, sizeof number}};
    struct sw_id_options options = {
        .secret = secret, .everywhere = 1, .address = launch->address, .port = launch->port};

    if (shared == NULL || strlen(shared) < LEAST_SECRET)
        return sw_fail(SYMWIN_DENIED,
                       "%s: the job has processes on several hosts: set SYMWIN_SECRET to the same "
                       "secret of at least %d characters on all of them, or pass an id to all "
                       "ranks",
                       env_call, (int)LEAST_SECRET);
    if (launch->address[0] == '\0' || launch->port == 0)
        return sw_fail(
            SYMWIN_INVALID,
            "%s: the job has processes on several hosts: set MASTER_ADDR to rank 0's and "
            "MASTER_PORT to a free port there (or SYMWIN_ADDR and SYMWIN_PORT)",
            env_call);
    parts[1].bytes = strlen(shared);
    number = next_number();
    sw_sha256(parts, 4, secret);
    if (launch->rank == 0)
        status = sw_id_make(id, &options, env_call);
    else
        status = sw_id_derive(id, &options, env_call);
    sw_wipe(secret, sizeof secret);
    return status;
}

symwin_status symwin_unique_id_from_env(symwin_unique_id *id)
{
    struct sw_launch launch;
    symwin_status status = sw_fork_check(env_call);
    struct sw_id made;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", env_call);
    status = sw_launch_read(env_call, &launch);
    if (status != SYMWIN_OK)
        return status;
    if (sw_launch_is_wide(&launch))
        status = id_of_hosts(&launch, &made);
    else
        status = id_of_host(&launch, &made);
    if (status == SYMWIN_OK)
        memcpy(id, &made, sizeof *id);
    sw_wipe(&made, sizeof made);
    return status;
}

/* ---- ids by the caller's all-gather ---- */

/* What rank 0 sends to all. */
struct shared {
    int32_t status;
    int32_t zero;
    symwin_unique_id id;
    char text[256];
};

static const char share_call[] = "symwin_unique_id_share";

static symwin_status gather(symwin_allgather_fn allgather, void *context, const void *mine,
                            void *all, size_t bytes)
{
    const int error = allgather(context, mine, all, bytes);

    return error == 0 ? SYMWIN_OK
                      : sw_fail(SYMWIN_INVALID, "%s: allgather returned %d", share_call, error);
}

/* Fails if any rank has failed. The caller's all-gather may have no deadline, so a rank that failed
 * must call it too, even one without memory: up to 4096 ranks this needs only the stack. */
static symwin_status gather_status(int nranks, symwin_allgather_fn allgather, void *context,
                                   symwin_status own)
{
    const unsigned char mine = (unsigned char)own;
    unsigned char few[4096];
    unsigned char *const all = nranks <= (int)sizeof few ? few : malloc((size_t)nranks);
    char text[SW_TEXT_BYTES];
    symwin_status status;
    int r;

    if (all == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", share_call, nranks);
    snprintf(text, sizeof text, "%s", symwin_last_error());
    status = gather(allgather, context, &mine, all, sizeof mine);
    for (r = 0; r < nranks && status == SYMWIN_OK && own == SYMWIN_OK; r++)
        if (all[r] != SYMWIN_OK)
            status = sw_fail(all[r] <= SYMWIN_STATUS_LAST ? (symwin_status)all[r] : SYMWIN_INVALID,
                             "%s: rank %d cannot take part: %s", share_call, r,
                             symwin_status_name((symwin_status)all[r]));
    if (all != few)
        free(all);
    if (own != SYMWIN_OK)
        sw_error_restore(text);
    return own != SYMWIN_OK ? own : status;
}

/* Rank 0 creates the id; all ranks get it. */
static symwin_status share_id(int rank, symwin_allgather_fn allgather, void *context,
                              struct shared *all, symwin_unique_id *id)
{
    struct shared mine = {.status = SYMWIN_OK};
    symwin_status status;

    if (rank == 0) {
        mine.status = (int32_t)symwin_unique_id_create(&mine.id);
        if (mine.status != SYMWIN_OK)
            snprintf(mine.text, sizeof mine.text, "%s", symwin_last_error());
    }
    status = gather(allgather, context, &mine, all, sizeof mine);
    if (status == SYMWIN_OK && all[0].status != SYMWIN_OK) {
        all[0].text[sizeof all[0].text - 1] = '\0';
        status = sw_fail(all[0].status > 0 && all[0].status <= SYMWIN_STATUS_LAST
                             ? (symwin_status)all[0].status
                             : SYMWIN_INVALID,
                         "%s: rank 0: %s", share_call, all[0].text);
    }
    if (status == SYMWIN_OK) {
        *id = all[0].id;
    } else if (rank == 0 && mine.status == SYMWIN_OK) {
        char text[SW_TEXT_BYTES];

        snprintf(text, sizeof text, "%s", symwin_last_error());
        symwin_unique_id_release(&mine.id);
        sw_error_restore(text);
    }
    sw_wipe(&mine.id, sizeof mine.id);
    return status;
}

symwin_status symwin_unique_id_share(int nranks, int rank, symwin_allgather_fn allgather,
                                     void *context, symwin_unique_id *id)
{
    struct shared *all = NULL;
    symwin_status status;

    if (nranks < 1 || nranks > SW_MAX_RANKS)
        return sw_fail(SYMWIN_INVALID, "%s: nranks is %d; pass 1 to %d (0: MPI gave none)",
                       share_call, nranks, SW_MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return sw_fail(SYMWIN_INVALID, "%s: there is no rank %d of %d", share_call, rank, nranks);
    if (allgather == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: allgather is NULL", share_call);
    status = sw_fork_check(share_call);
    if (status == SYMWIN_OK && id == NULL)
        status = sw_fail(SYMWIN_INVALID, "%s: id is NULL", share_call);
    if (status == SYMWIN_OK) {
        all = calloc((size_t)nranks, sizeof *all);
        if (all == NULL)
            status = sw_fail(SYMWIN_NO_MEMORY, "%s: no host memory for %d ranks", share_call,
                             nranks);
    }
    status = gather_status(nranks, allgather, context, status);
    if (status == SYMWIN_OK)
        status = share_id(rank, allgather, context, all, id);
    if (all != NULL)
        sw_wipe(all, (size_t)nranks * sizeof *all);
    free(all);
    return status;
}

/* ---- ids for parts of a communicator ---- */

/* The values of a rank's ballot: color and key; and if its process links the hosts, the address at
 * which other hosts reach this one, and the interface index, which is valid on this host only. */
enum { COLOR, KEY, FAMILY, ADDRESS, INTERFACE = ADDRESS + 2, BALLOTED };

/* If this process links the hosts: adds the local address of one of its connections to them. */
static void ballot_address(const struct sw_group *group, uint64_t values[BALLOTED])
{
    int h;

    for (h = 0; h < group->hosts && group->links != NULL && values[FAMILY] == 0; h++) {
        struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
        socklen_t bytes = sizeof own;
        struct sw_id id = {.family = 0};

        if (group->links[h].connection.fd < 0 ||
            getsockname(group->links[h].connection.fd, (struct sockaddr *)&own, &bytes) != 0 ||
            !sw_id_set_address(&id, &own))
            continue;
        values[FAMILY] = id.family;
        values[INTERFACE] = sw_id_interface(&id);
        memcpy(&values[ADDRESS], id.address, sizeof id.address);
    }
}

/* The ballot of a host's lowest rank, whose process links the host. Do not trust it: any process of
 * this host can write to the control page. */
static const uint64_t *ballot_of_host(const symwin_comm *parent, int host)
{
    int r = 0;

    while (r < parent->nranks - 1 && parent->group->host_of[r] != host)
        r++;
    return parent->ballots[r].values;
}

/* The address at which other hosts reach a host. 0: unknown. */
static int address_of_host(const symwin_comm *parent, int host, struct sockaddr_storage *out)
{
    const uint64_t *values = ballot_of_host(parent, host);
    struct sw_id id = {.family = (uint16_t)values[FAMILY]};

    memcpy(id.address, &values[ADDRESS], sizeof id.address);
    if (values[FAMILY] != AF_INET && values[FAMILY] != AF_INET6)
        return 0;
    sw_id_address(&id, out);
    return 1;
}

/* The part that this rank belongs to. */
struct part {
    int nranks;
    int rank;
    int creator;    /* creator of its id, a rank of the parent */
    int cross_host; /* its ranks are on several hosts */
};

/* The creator is on host 0 if that has a rank of the part: all hosts have connected to it
 * before. */
static void find_part(const symwin_comm *parent, int color, struct part *part)
{
    const uint64_t *own = parent->ballots[parent->rank].values;
    const int *host_of = parent->group->host_of;
    int r;

    *part = (struct part){.creator = -1};
    for (r = 0; r < parent->nranks; r++) {
        const int32_t key = (int32_t)parent->ballots[r].values[KEY];

        if ((int32_t)parent->ballots[r].values[COLOR] != color)
            continue;
        part->nranks++;
        part->rank += key < (int32_t)own[KEY] || (key == (int32_t)own[KEY] && r < parent->rank);
        part->cross_host |= host_of[r] != host_of[parent->rank];
        if (part->creator < 0 || (host_of[part->creator] != 0 && host_of[r] == 0))
            part->creator = r;
    }
}

/* Derives the secret of a part's id from the parent's key and a nonce. Only the nonce is sent. */
static void part_secret(const symwin_comm *parent, int color,
                        const unsigned char nonce[SW_KEY_BYTES], unsigned char secret[SW_KEY_BYTES])
{
    const struct sw_part parts[] = {
        {"symwin part", 11}, {nonce, SW_KEY_BYTES}, {&color, sizeof color}};

    sw_hmac(parent->key, parts, 3, secret);
}

/* Creates the id of a part. Over several hosts the creator listens at its host's known address;
 * within one host it needs no network. */
static symwin_status make_id(const symwin_comm *parent, const struct part *part, int color,
                             unsigned char nonce[SW_KEY_BYTES], struct sw_id *id)
{
    const int host = parent->group->host_of[parent->rank];
    unsigned char secret[SW_KEY_BYTES];
    struct sw_id_options options = {.secret = secret};
    struct sockaddr_storage address;
    symwin_status status;

    if (part->cross_host && !address_of_host(parent, host, &address))
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "the system does not report an address at which other hosts reach this "
                       "one; make the part's id where SYMWIN_ADDR is set, and pass it to the "
                       "part's ranks");
    if (part->cross_host)
        options.at = &address;
    status = sw_random_bytes(nonce, SW_KEY_BYTES, split_call);
    if (status != SYMWIN_OK)
        return status;
    part_secret(parent, color, nonce, secret);
    status = sw_id_make(id, &options, split_call);
    sw_wipe(secret, sizeof secret);
    return status;
}

/* Makes the id of this rank's part from what its creator sent. */
static void take_id(const symwin_comm *parent, const struct part *part, int color,
                    const struct sw_id *sent, symwin_unique_id *out)
{
    struct sw_id id = *sent;
    const int host = parent->group->host_of[parent->rank];

    part_secret(parent, color, sent->secret, id.secret);
    if (parent->group->host_of[part->creator] != host)
        sw_id_set_interface(&id, (uint32_t)ballot_of_host(parent, host)[INTERFACE]);
    memcpy(out, &id, sizeof *out);
    sw_wipe(&id, sizeof id);
}

/* The collective steps: sets *part and gathers the ids of all creators in `ids`. If this rank is a
 * creator, *own is its id and *made is set. */
static symwin_status agree_on_parts(symwin_comm *parent, symwin_status status, int color, int key,
                                    struct part *part, struct sw_id *ids, struct sw_id *own,
                                    int *made)
{
    uint64_t values[BALLOTED] = {(uint32_t)color, (uint32_t)key};
    struct sw_id public_id; /* *own with the nonce in place of the secret */

    if (status == SYMWIN_OK && ids == NULL)
        status = sw_fail(SYMWIN_NO_MEMORY, "no host memory for %d ids", parent->nranks);
    else if (status == SYMWIN_OK && color < SYMWIN_SPLIT_NONE)
        status = sw_fail(SYMWIN_INVALID, "color is %d; pass SYMWIN_SPLIT_NONE, or 0 or more",
                         color);
    ballot_address(parent->group, values);
    status = sw_comm_agree(parent, split_call, status, values, BALLOTED);
    if (status != SYMWIN_OK)
        return status;
    memset(&public_id, 0, sizeof public_id);
    find_part(parent, color, part);
    if (color != SYMWIN_SPLIT_NONE && part->creator < 0)
        status = sw_fail(SYMWIN_MISMATCH,
                         "rank %d's ballot differs from what it wrote: a process has written to "
                         "the control page",
                         parent->rank);
    else if (color != SYMWIN_SPLIT_NONE && part->creator == parent->rank) {
        unsigned char nonce[SW_KEY_BYTES];

        status = make_id(parent, part, color, nonce, own);
        *made = status == SYMWIN_OK;
        if (*made) {
            public_id = *own;
            memcpy(public_id.secret, nonce, sizeof nonce);
        }
    }
    status = sw_comm_agree(parent, split_call, status, NULL, 0);
    if (status == SYMWIN_OK)
        status = sw_exchange_allgather(parent->group->exchange, parent->rank, &public_id,
                                       sizeof public_id, ids, parent->timeout_ms, split_call);
    return status;
}

symwin_status sw_split(symwin_comm *parent, symwin_status failed, int color, int key,
                       struct sw_split *out)
{
    struct sw_id own = {.family = 0};
    struct sw_id *ids = NULL;
    struct part part = {.nranks = 0};
    symwin_status status;
    char text[SW_TEXT_BYTES];
    int made = 0;

    *out = (struct sw_split){.nranks = 0};
    snprintf(text, sizeof text, "%s", symwin_last_error());
    if (parent == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: parent is NULL", split_call);
    status = sw_comm_enter(parent, split_call);
    if (status != SYMWIN_OK)
        return status;
    parent->sequence++;
    ids = calloc((size_t)parent->nranks, sizeof *ids);
    if (failed != SYMWIN_OK)
        sw_error_restore(text);
    status = agree_on_parts(parent, failed, color, key, &part, ids, &own, &made);
    sw_comm_leave(parent);
    if (status == SYMWIN_OK && color != SYMWIN_SPLIT_NONE) {
        take_id(parent, &part, color, &ids[part.creator], &out->id);
        out->nranks = part.nranks;
        out->rank = part.rank;
    } else if (status != SYMWIN_OK && made) {
        symwin_unique_id id;

        snprintf(text, sizeof text, "%s", symwin_last_error());
        memcpy(&id, &own, sizeof id);
        symwin_unique_id_release(&id);
        sw_wipe(&id, sizeof id);
        sw_error_restore(text);
    }
    sw_wipe(&own, sizeof own);
    free(ids);
    return status;
}
