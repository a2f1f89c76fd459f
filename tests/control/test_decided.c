/* Ranks on several hosts, of which one decides how their communicator ends: what the others report
 * before the decision, and who receives it. */
#include "processes.h"

enum { STOPPED_MS = 300 };

static void *go_on(void *pid)
{
    usleep(STOPPED_MS * 1000);
    kill(*(const pid_t *)pid, SIGCONT);
    return NULL;
}

static int is_stopped(pid_t pid)
{
    char path[32], state = ' ';
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = ' ';
        fclose(file);
    }
    return state == 'T';
}

/* Rank 1 aborts while the deciding host is stopped. Before that host knows, rank 1 must not report
 * the end to others and must not leave: a rank on the deciding host would see that rank 1 left and
 * return another status. */
static void undecided(struct processes *p, int rank)
{
    const int asks = *(const int *)p->arg;
    symwin_comm *comm;
    pthread_t thread;
    int64_t start;

    processes_on_host("abb", rank);
    host_must(processes_comm(p, rank, 10000, &comm), "symwin_comm_create");
    p->rank[rank].number = getpid();
    processes_barrier(p);
    if (rank == 0) {
        kill(getpid(), SIGSTOP);
    } else if (rank == 1) {
        pid_t pid = (pid_t)p->rank[0].number;

        while (!is_stopped(pid))
            usleep(50);
        start = processes_now_us();
        if (pthread_create(&thread, NULL, go_on, &pid) != 0)
            exit(1);
        must_be(symwin_comm_abort(comm) == SYMWIN_OK, "symwin_comm_abort", rank);
        if (asks)
            must_be(symwin_comm_check(comm) == SYMWIN_ABORTED, "symwin_comm_check", rank);
        else
            symwin_comm_destroy(comm);
        must_be(processes_now_us() - start > (STOPPED_MS - 20) * 1000, "it said so too soon", rank);
        pthread_join(thread, NULL);
        if (!asks)
            return;
    } else {
        while (symwin_comm_check(comm) == SYMWIN_OK)
            usleep(50);
    }
    while (processes_note(p, rank, symwin_comm_check(comm)) == SYMWIN_OK)
        usleep(50);
    must_be(p->rank[rank].status == SYMWIN_ABORTED && strstr(p->rank[rank].text, "rank 1") != NULL,
            "rank 1 has aborted", rank);
    symwin_comm_destroy(comm);
}

/* Rank 2 proposes an end that lets kernels go on, and the deciding host decides another one. The
 * decision reaches rank 1's process. That process has already told rank 2's that it ends, and sends
 * it nothing more. So rank 2's process has to look at the control page itself. */
static void unheard(struct processes *p, int rank)
{
    const int64_t soon = 800000;
    struct sw_exchange *x;
    symwin_comm *comm;
    int64_t start;

    processes_on_host("abb", rank);
    host_must(processes_comm(p, rank, 10000, &comm), "symwin_comm_create");
    x = comm->group->exchange;
    if (rank == 0)
        sw_poll_lock(); /* its poll thread receives nothing */
    processes_barrier(p);
    if (rank == 2) {
        sw_exchange_take_leave(x, 1);
        sw_exchange_fail(x, SYMWIN_PEER_LOST, 1);
    }
    processes_barrier(p);
    if (rank == 0) {
        usleep(100000);
        sw_exchange_decide(x, SYMWIN_ABORTED, 0);
        sw_poll_unlock();
    }
    start = processes_now_us();
    while (__atomic_load_n(&comm->report->abort, __ATOMIC_ACQUIRE) == 0 &&
           processes_now_us() - start < soon)
        usleep(1000);
    must_be(processes_now_us() - start < soon, "its kernels are asked to leave", rank);
    processes_note(p, rank, symwin_comm_check(comm));
    must_be(p->rank[rank].status == SYMWIN_ABORTED && strstr(p->rank[rank].text, "rank 0") != NULL,
            "rank 0 has aborted", rank);
    symwin_comm_destroy(comm);
}

int main(void)
{
    processes_run("an end that is not decided: a rank asks", 3, undecided, &(int){1});
    processes_run("an end that is not decided: a rank leaves", 3, undecided, &(int){0});
    processes_run("an end that only one process hears of", 3, unheard, NULL);
    return tap_done();
}
