/* How long processes take to meet and to agree, and what that costs each in memory. They only join
 * a communicator and agree, without a device: all run on this machine, each under the name of one
 * of several hosts.
 *
 *     bootstrap [PROCESSES [HOSTS [ROUNDS [BYTES [USED]]]]]    default: 16 4 10 64 BYTES
 *
 * Prints one line of comma-separated values after a line of their names. `meet_s` is from before
 * the first fork until the last process has joined; `agree_ms` is the mean of ROUNDS agreements
 * with BYTES bytes from each process, after one that is not counted; all after the first USED are
 * zeros, as in a ballot of the library: unless a rank fails, it uses at most 160 of 416 bytes.
 * Memory is what a process has more than before it joined, in KiB: `own_kib` private to it, the
 * mean and the most of all; `page_kib` the control page, which the processes of a host share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/bootstrap/bootstrap.h"

enum { TIME_MS = 120000 };

/* In memory that all processes share. */
struct shared {
    symwin_unique_id id;
    atomic_int has_id, joined, agreed, failed;
    int64_t joined_at, agreed_us, left_us;
    struct {
        long own_kib, page_kib;
    } of[];
};

static int count = 16, hosts = 4, rounds = 10, bytes = 64, used = -1;
static struct shared *shared;

/* A value of /proc/self/status in KiB. */
static long status_kib(const char *name)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long found = -1;

    while (file != NULL && found < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            found = strtol(line + strlen(name), NULL, 10);
    if (file != NULL)
        fclose(file);
    return found;
}

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int fail(const char *what, int rank)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, symwin_last_error());
    atomic_fetch_add(&shared->failed, 1);
    return 1;
}

static int agree(struct sw_group *group, int rank)
{
    unsigned char mine[SW_EXCHANGE_BYTES] = {0}, *all = malloc((size_t)count * (size_t)bytes);
    int64_t begin = 0;
    int i, r, right = all != NULL;

    for (i = 0; i <= rounds && right; i++) {
        if (i == 1)
            begin = now_us();
        memset(mine, 1 + (rank + i) % 255, (size_t)used);
        right = sw_exchange_allgather(group->exchange, rank, mine, (size_t)bytes, all, TIME_MS,
                                      "bench") == SYMWIN_OK;
        for (r = 0; r < count && right; r++)
            right = all[(size_t)r * (size_t)bytes] == 1 + (r + i) % 255;
    }
    if (rank == 0)
        shared->agreed_us = now_us() - begin;
    free(all);
    if (right) {
        shared->of[rank].own_kib = status_kib("RssAnon:");
        shared->of[rank].page_kib = status_kib("RssShmem:");
    }
    return right;
}

/* A process: joins, agrees, and leaves when all have agreed. */
static int take_part(int rank)
{
    const long own_kib = status_kib("RssAnon:"), page_kib = status_kib("RssShmem:");
    struct sw_group *group = NULL;
    char host[32];

    snprintf(host, sizeof host, "bench-%d", (int)((int64_t)rank * hosts / count));
    setenv("SYMWIN_HOST_ID", host, 1);
    setenv("SYMWIN_ADDR", "127.0.0.1", 1);
    if (rank == 0) {
        if (symwin_unique_id_create(&shared->id) != SYMWIN_OK)
            return fail("symwin_unique_id_create", rank);
        atomic_store(&shared->has_id, 1);
    }
    while (!atomic_load(&shared->has_id))
        usleep(1000);
    if (sw_bootstrap_join(&shared->id, count, rank, TIME_MS, &group) != SYMWIN_OK)
        return fail("sw_bootstrap_join", rank);
    if (atomic_fetch_add(&shared->joined, 1) + 1 == count)
        shared->joined_at = now_us();
    if (!agree(group, rank))
        return fail("sw_exchange_allgather", rank);
    shared->of[rank].own_kib -= own_kib;
    shared->of[rank].page_kib -= page_kib;
    atomic_fetch_add(&shared->agreed, 1);
    while (atomic_load(&shared->agreed) < count && !atomic_load(&shared->failed))
        usleep(20000);
    sw_group_leave(group, rank);
    return 0;
}

static void print(int64_t begin, int64_t end)
{
    long sum = 0, most = 0, page = 0;
    int r;

    for (r = 0; r < count; r++) {
        sum += shared->of[r].own_kib;
        if (shared->of[r].own_kib > most)
            most = shared->of[r].own_kib;
        if (shared->of[r].page_kib > page)
            page = shared->of[r].page_kib;
    }
    printf("processes,hosts,bytes,used,meet_s,agree_ms,all_s,own_kib_mean,own_kib_most,page_kib\n");
    printf("%d,%d,%d,%d,%.3f,%.2f,%.2f,%ld,%ld,%ld\n", count, hosts, bytes, used,
           (double)(shared->joined_at - begin) / 1e6,
           (double)shared->agreed_us / 1e3 / (rounds > 0 ? rounds : 1), (double)(end - begin) / 1e6,
           sum / count, most, page);
}

int main(int argc, char **argv)
{
    int *const values[] = {&count, &hosts, &rounds, &bytes, &used};
    struct rlimit limit;
    int64_t begin;
    int i, r, failed = 0;

    for (i = 1; i < argc && i <= 5; i++)
        *values[i - 1] = atoi(argv[i]);
    if (argc < 6)
        used = bytes;
    if (count < 1 || hosts < 1 || hosts > count || bytes < 1 || bytes > SW_EXCHANGE_BYTES ||
        used < 1 || used > bytes || rounds < 0) {
        fprintf(stderr, "usage: bootstrap [PROCESSES [HOSTS [ROUNDS [BYTES [USED]]]]]\n");
        return 1;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    shared = mmap(NULL, sizeof *shared + (size_t)count * sizeof shared->of[0],
                  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    begin = now_us();
    for (r = 0; r < count; r++) {
        const pid_t pid = fork();

        if (pid == 0)
            _exit(take_part(r));
        if (pid < 0) {
            perror("fork");
            atomic_fetch_add(&shared->failed, 1);
            break;
        }
    }
    while (r-- > 0) {
        int status = 0;

        failed |= wait(&status) < 0 || status != 0;
    }
    if (failed || atomic_load(&shared->failed) != 0)
        return 1;
    print(begin, now_us());
    return 0;
}
