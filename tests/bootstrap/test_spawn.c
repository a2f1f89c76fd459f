/* Programs that a rank's process starts at any time by posix_spawn() inherit no descriptor of the
 * library. */
#include <spawn.h>

#include "processes.h"

extern char **environ;

struct spawner {
    atomic_int is_over;
    int usual; /* descriptors of a child while the library has none */
    int most, count;
};

/* The number of descriptors in a child, which is this program and counts them. */
static int descriptors_of_child(void)
{
    char *const arguments[] = {"test_spawn", "count", NULL};
    int status = -1;
    pid_t pid;

    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) != 0)
        return -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void *spawn_all_the_time(void *arg)
{
    struct spawner *s = arg;

    while (!s->is_over) {
        const int found = descriptors_of_child();

        s->most = found > s->most ? found : s->most;
        s->count += found >= 0;
    }
    return NULL;
}

static void spawns(struct processes *p, int rank)
{
    struct spawner s = {.usual = descriptors_of_child()};
    pthread_t thread;

    processes_on_host(p->arg, rank);
    if (pthread_create(&thread, NULL, spawn_all_the_time, &s) != 0)
        abort();
    everything(p, rank);
    s.is_over = 1;
    pthread_join(thread, NULL);
    must_be(s.usual >= 0 && s.count > 0 && s.most == s.usual, "a child has what it always has",
            rank);
    if (s.most != s.usual)
        fprintf(stderr, "rank %d: %d children, one with %d descriptors, not %d\n", rank, s.count,
                s.most, s.usual);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "count") == 0)
        return harness_count_entries("/proc/self/fd") - 1; /* without that of the folder itself */
    processes_run("on one host", 2, spawns, NULL);
    processes_run("on two hosts", 4, spawns, "aabb");
    return tap_done();
}
