/* An eavesdropper has everything that ranks of two hosts send over TCP, from the first HELLO until
 * the destruction of a part of a part. It contains no secret, and nothing in it gives access to a
 * rendezvous. */
#include <sys/syscall.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"

enum { RANKS = 4, MOST = 8 << 20, MOST_IDS = 64, ID_SHOWN = 8 };

static const char shared_secret[] = "a secret of many letters, of which none is to be heard";

/* In shared memory: what every process has sent over TCP. */
static struct record {
    atomic_size_t bytes;
    unsigned char data[MOST];
} * record;

struct job {
    const char *name;
    int launched; /* the id comes from SYMWIN_SECRET; else it is passed on */
    char port[16];
};

/* Replaces the C library's: the only call by which the library sends over TCP. */
ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    const ssize_t sent = (ssize_t)syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0);
    int family = AF_UNSPEC;
    socklen_t size = sizeof family;
    size_t at;

    if (sent <= 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0 ||
        family == AF_UNIX)
        return sent;
    at = atomic_fetch_add(&record->bytes, (size_t)sent);
    if (at + (size_t)sent <= MOST)
        memcpy(record->data + at, data, (size_t)sent);
    return sent;
}

/* ---- the job --------------------------------------------------------------------------------- */

static void on_host(const struct job *job, int rank)
{
    char number[16];

    processes_on_host("aabb", rank);
    if (!job->launched)
        return;
    snprintf(number, sizeof number, "%d", rank);
    setenv("SYMWIN_RANK", number, 1);
    setenv("SYMWIN_NRANKS", "4", 1);
    setenv("SYMWIN_LOCAL_NRANKS", "2", 1);
    setenv("SYMWIN_SECRET", shared_secret, 1);
    setenv("SYMWIN_PORT", job->port, 1);
}

static symwin_comm *part_of(symwin_comm *parent, int color, int key)
{
    symwin_comm *part = NULL;

    host_must(symwin_comm_split(parent, color, key, NULL, &part), "symwin_comm_split");
    return part;
}

/* Splits off parts of all ranks, of ranks of both hosts and of one host, and parts of those. */
static void talk(struct processes *p, int rank)
{
    const struct job *job = p->arg;
    const symwin_unique_id *id = &p->rank[rank].id;
    symwin_comm *comm = NULL, *part, *again;
    symwin_window *window = NULL;
    void *memory;
    int i;

    on_host(job, rank);
    if (job->launched)
        host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    else
        id = processes_id(p, rank);
    if (rank == 0)
        p->id = *id;
    host_must(processes_comm_with(p, rank, id, 20000, &comm), "symwin_comm_create");
    memory = host_alloc(rank, GRANULE);
    host_must(symwin_window_register(comm, memory, GRANULE, 0, &window), "symwin_window_register");
    for (i = 0; i < 3; i++) {
        const int colors[] = {7, rank % 2, rank / 2};

        part = part_of(comm, colors[i], -rank);
        again = part_of(part, 1, rank);
        symwin_comm_destroy(again);
        symwin_comm_destroy(part);
    }
    host_must(symwin_window_deregister(comm, window), "symwin_window_deregister");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

/* ---- the eavesdropper ------------------------------------------------------------------------ */

static size_t find(const void *what, size_t bytes, size_t from)
{
    const unsigned char *at = memmem(record->data + from, record->bytes - from, what, bytes);

    return at != NULL ? (size_t)(at - record->data) : SIZE_MAX;
}

static int is_heard(const void *what, size_t bytes)
{
    return find(what, bytes, 0) != SIZE_MAX;
}

/* Whether ranks have sent HELLO for an id with that secret. */
static int is_asked_for(const unsigned char secret[SW_KEY_BYTES])
{
    unsigned char name[SW_NAME_BYTES];
    struct sw_id id = {.family = 0};

    memcpy(id.secret, secret, sizeof id.secret);
    sw_id_name(&id, name);
    return is_heard(name, sizeof name);
}

struct heard {
    int ids;    /* different ids sent: of parts */
    int opened; /* that the eavesdropper can use as sent */
    int met;    /* whose secret needs the parent's key, which only its ranks have */
    int told;   /* secrets and keys that occur in what was sent */
};

/* Looks for a secret and for the key that parts of its communicator derive from. */
static void look_for(struct heard *h, const unsigned char secret[SW_KEY_BYTES],
                     unsigned char key[SW_KEY_BYTES])
{
    symwin_unique_id unique;
    struct sw_id id = {.family = 0};

    memcpy(id.secret, secret, sizeof id.secret);
    memcpy(&unique, &id, sizeof unique);
    sw_bootstrap_key(&unique, key);
    h->told += is_heard(secret, SW_KEY_BYTES) + is_heard(key, SW_KEY_BYTES);
}

/* As unique_id.c derives it. */
static void part_secret(const unsigned char key[SW_KEY_BYTES], int color,
                        const unsigned char nonce[SW_KEY_BYTES], unsigned char secret[SW_KEY_BYTES])
{
    const struct sw_part parts[] = {
        {"symwin part", 11}, {nonce, SW_KEY_BYTES}, {&color, sizeof color}};

    sw_hmac(key, parts, 3, secret);
}

/* Counts the ids that were sent, with the keys of all communicators that they can be parts of. */
static void listen_to(struct heard *h, const unsigned char secret[SW_KEY_BYTES])
{
    static unsigned char keys[MOST_IDS + 1][SW_KEY_BYTES], seen[MOST_IDS][SW_KEY_BYTES];
    size_t at = 0;
    int count = 1, k, i, color;

    *h = (struct heard){0};
    look_for(h, secret, keys[0]);
    for (; (at = find("symwin02", 8, at)) != SIZE_MAX; at += 8) {
        const unsigned char *nonce = record->data + at + ID_SHOWN;
        unsigned char made[SW_KEY_BYTES];

        for (i = 0; i < h->ids && memcmp(seen[i], nonce, SW_KEY_BYTES) != 0; i++)
            ;
        if (i < h->ids || h->ids == MOST_IDS)
            continue;
        memcpy(seen[h->ids++], nonce, SW_KEY_BYTES);
        h->opened += is_asked_for(nonce);
        for (k = 0; k < count && count <= MOST_IDS; k++)
            for (color = 0; color <= 7; color++) {
                part_secret(keys[k], color, nonce, made);
                if (!is_asked_for(made))
                    continue;
                h->met++;
                look_for(h, made, keys[count++]);
                k = count;
                break;
            }
    }
}

static void run(const struct job *job)
{
    struct processes *p = processes_new(RANKS, (void *)(uintptr_t)job);
    struct heard heard;
    struct sw_id id;
    int ended = 1, r;

    record->bytes = 0;
    for (r = 0; r < RANKS; r++)
        processes_fork(p, r, talk);
    for (r = 0; r < RANKS; r++)
        ended &= processes_wait(p, r) == 0;
    tap_ok(ended, "%s: all ranks end well", job->name);
    memcpy(&id, &p->id, sizeof id);
    tap_ok(record->bytes > 0 && record->bytes <= MOST && is_asked_for(id.secret),
           "%s: %zu bytes went over TCP, the HELLOs with the id's name among them", job->name,
           (size_t)record->bytes);
    listen_to(&heard, id.secret);
    tap_ok(heard.ids > 0 && heard.met > 0,
           "%s: %d ids of parts went by, and ranks came with what the parent's ranks make of %d",
           job->name, heard.ids, heard.met);
    TAP_EQ("ids by which whoever hears them can come", heard.opened, 0);
    TAP_EQ("secrets and keys that can be heard", heard.told, 0);
    TAP_EQ("SYMWIN_SECRET", is_heard(shared_secret, strlen(shared_secret)), 0);
    processes_free(p);
}

int main(void)
{
    struct job jobs[] = {{"an id that is passed on", 0, ""}, {"a launched job", 1, ""}};
    size_t i;

    record = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (record == MAP_FAILED)
        return 1;
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        ports_name(jobs[i].port);
        run(&jobs[i]);
    }
    return tap_done();
}
