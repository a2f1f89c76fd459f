/* Once all communicators made with a secret are destroyed, no copy of it is left in the process's
 * memory. */
#include <fcntl.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"
#include "src/control/mailbox.h"

enum { RANKS = 3, MASK = 0x5a, MOST = 256 << 20 };

/* In shared memory, masked, so that the search does not find these copies. */
static struct shown {
    unsigned char id[sizeof(symwin_unique_id)];
    unsigned char gathered[RANKS][1024];
} * shown;

static void mask(unsigned char *out, const void *in, size_t bytes)
{
    const unsigned char *from = in;
    size_t i;

    for (i = 0; i < bytes; i++)
        out[i] = from[i] ^ MASK;
}

/* How often the masked bytes occur, unmasked, in [at, at + bytes). */
static int count_in(const unsigned char *at, size_t bytes, const unsigned char *masked,
                    size_t length)
{
    int found = 0;
    size_t i, k;

    for (i = 0; i + length <= bytes; i++) {
        for (k = 0; k < length && (at[i + k] ^ MASK) == masked[k]; k++)
            ;
        found += k == length;
    }
    return found;
}

/* Opened before there is a secret: its buffer could reuse the secret's memory. */
static FILE *maps;

/* In all writable memory of this process. Large mappings are skipped: the emulated devices'. */
static int count_everywhere(const unsigned char *masked, size_t length, int rank)
{
    static unsigned char part[1 << 20];
    const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    char line[512];
    int found = 0;

    rewind(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end, at;
        char rights[8] = "";

        if (sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3 || rights[1] != 'w' ||
            end - begin > MOST)
            continue;
        for (at = begin; at < end; at += sizeof part - length) {
            const size_t want = end - at < sizeof part ? end - at : sizeof part;
            const ssize_t got = pread(memory, part, want, (off_t)at);
            int here = 0;

            if (got > 0 && !((unsigned long)part >= begin && (unsigned long)part < end))
                here = count_in(part, (size_t)got, masked, length);
            if (here > 0)
                fprintf(stderr, "rank %d: a secret is in %s", rank, line);
            found += here;
        }
    }
    memset(part, 0, sizeof part);
    close(memory);
    return found;
}

struct gatherer {
    struct processes *p;
    int rank;
};

static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    const struct gatherer *g = context;
    int r;

    if (bytes > sizeof shown->gathered[0])
        return 1;
    mask(shown->gathered[g->rank], mine, bytes);
    processes_barrier(g->p);
    for (r = 0; r < RANKS; r++)
        mask((unsigned char *)all + (size_t)r * bytes, shown->gathered[r], bytes);
    processes_barrier(g->p);
    return 0;
}

/* Overwrites the stack below the caller: registers with a part of a secret may have been saved
 * there. */
__attribute__((noinline)) static void write_stack(void)
{
    volatile unsigned char stack[1 << 16];
    size_t i;

    for (i = 0; i < sizeof stack; i++)
        stack[i] = 0;
}

/* Leaves no copy of the id on this stack. */
__attribute__((noinline)) static void use(struct processes *p, int rank)
{
    static symwin_unique_id id;
    struct gatherer gatherer = {p, rank};
    symwin_comm *comm = NULL, *part = NULL;

    host_must(symwin_unique_id_share(RANKS, rank, gather, &gatherer, &id),
              "symwin_unique_id_share");
    if (rank == 0)
        mask(shown->id, &id, sizeof id);
    else
        memset(&id, 0, sizeof id);
    processes_barrier(p);
    write_stack();
    must_be(rank == 0 || count_everywhere(shown->id + offsetof(struct sw_id, secret), SW_KEY_BYTES,
                                          rank) == 0,
            "what was gathered is gone", rank);
    mask((unsigned char *)&id, shown->id, sizeof id);
    host_must(processes_comm_with(p, rank, &id, 20000, &comm), "symwin_comm_create");
    memset(&id, 0, sizeof id);
    host_must(symwin_comm_split(comm, 1, -rank, NULL, &part), "symwin_comm_split");
    symwin_comm_destroy(part);
    symwin_comm_destroy(comm);
    processes_barrier(p); /* the id's creator has finished with it */
}

/* A message may have a fabric handle, which gives anybody access to the memory. */
__attribute__((noinline)) static void free_message(const unsigned char *masked)
{
    struct sw_message *message = calloc(1, sizeof *message);

    if (message == NULL)
        abort();
    message->fd = -1;
    mask(message->words.fabric, masked, sizeof message->words.fabric);
    sw_message_free(message);
}

static void leaves_none(struct processes *p, int rank)
{
    static unsigned char secret[SW_KEY_BYTES], key[SW_KEY_BYTES], masked[SW_KEY_BYTES];
    static unsigned char handle[sizeof((struct sw_message *)NULL)->words.fabric];
    static symwin_unique_id id;
    size_t i;

    harness_device_count();
    maps = fopen("/proc/self/maps", "re");
    if (maps == NULL || fgetc(maps) == EOF)
        abort();
    use(p, rank);
    sw_poll_settle();
    memcpy(secret, shown->id + offsetof(struct sw_id, secret), sizeof secret);
    must_be(count_everywhere(secret, sizeof secret, rank) == 0, "the secret is gone", rank);
    mask((unsigned char *)&id, shown->id, sizeof id);
    sw_bootstrap_key(&id, key);
    mask(masked, key, sizeof masked);
    memset(&id, 0, sizeof id);
    memset(key, 0, sizeof key);
    must_be(count_everywhere(masked, sizeof masked, rank) == 0, "the key for parts is gone", rank);
    for (i = 0; i < sizeof handle; i++)
        handle[i] = (unsigned char)(shown->id[i % sizeof shown->id] + 1 + (unsigned)rank);
    free_message(handle);
    must_be(count_everywhere(handle, sizeof handle, rank) == 0, "the message is gone", rank);
    memcpy(&id, shown->id, sizeof id); /* and a copy that exists is found */
    mask((unsigned char *)&id, shown->id, sizeof id);
    must_be(count_everywhere(secret, sizeof secret, -1) > 0, "one that is there is found", rank);
    fclose(maps);
}

int main(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    tap_skip_all("a sanitizer has copies of its own, and maps more than can be looked through");
#endif
    shown = mmap(NULL, sizeof *shown, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shown == MAP_FAILED)
        return 1;
    processes_run("secrets", RANKS, leaves_none, NULL);
    return tap_done();
}
