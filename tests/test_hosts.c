/* Ranks on several hosts, which SYMWIN_HOST_ID tells apart here; they meet over TCP on a loopback address,
 * and the emulated driver plays the fabric that joins them. */
#include "process_cases.h"

/* Which host each rank is on. */
struct arrangement {
    const char *name;
    int count;
    const char *hosts; /* a letter a rank */
    const char *port;
};

static void on_host(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    const char host[] = {a->hosts[rank], '\0'};

    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_ADDR", "127.0.0.1", 1);
    setenv("SYMWIN_EMU_FABRIC", "2", 1);
    everything(p, rank);
}

/* The same through a launcher's environment, with a secret that all share. */
static void launched(struct processes *p, int rank)
{
    const struct arrangement *a = p->arg;
    const char host[] = {a->hosts[rank], '\0'};
    char number[16];

    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%d", p->count);
    setenv("WORLD_SIZE", number, 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1); /* not all are here */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", a->port, 1);
    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_EMU_FABRIC", "2", 1);
    if (rank == p->count - 1) { /* without the secret, and then with it */
        symwin_unique_id id;

        must_be(symwin_unique_id_from_env(&id) == SYMWIN_DENIED &&
                    strstr(symwin_last_error(), "SYMWIN_SECRET") != NULL,
                "no secret", rank);
    }
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    if (rank != p->count - 1)
        usleep(1000);
    host_must(symwin_unique_id_from_env(&p->rank[rank].id), "symwin_unique_id_from_env");
    everything_with(p, rank, &p->rank[rank].id);
}

int main(void)
{
    static const struct arrangement arrangements[] = {
        {"two hosts", 2, "ab", NULL},       {"two of two", 4, "aabb", NULL},
        {"dealt in turn", 4, "abab", NULL}, {"one and three", 4, "abbb", NULL},
        {"three and one", 4, "aaab", NULL}, {"four hosts", 4, "abcd", NULL},
        {"three hosts", 6, "abccab", NULL},
    };
    static const struct arrangement jobs[] = {
        {"launched on two hosts", 4, "aabb", "29871"},
        {"launched on two hosts, in turn", 4, "abab", "29872"},
    };
    size_t i;

    for (i = 0; i < sizeof arrangements / sizeof arrangements[0]; i++)
        processes_run(arrangements[i].name, arrangements[i].count, on_host,
                      (void *)(uintptr_t)&arrangements[i]);
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        processes_run(jobs[i].name, jobs[i].count, launched, (void *)(uintptr_t)&jobs[i]);
    return tap_done();
}
