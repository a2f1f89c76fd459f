/* Processes that disagree: in sizes, flags, offsets, the order of calls, options, or memory that
 * one of them lacks or cannot export. All get one status and one text, keep nothing, and continue
 * with the communicator if it can continue.
 */
#include "processes.h"

enum { RANKS = 3, BYTES = 1 << 20 };

/* What the odd rank does differently. */
enum oddity {
    SIZE,
    FLAGS,
    OFFSET,
    BAD_POINTER,
    NO_RESULT,
    NOT_SHAREABLE,
    OUT_OF_MEMORY,
    OTHER_CALL,
    OPTIONS,
    TUNING,
    BAD_TUNING,
    DIGEST,
    ODDITIES
};

static const struct {
    const char *name;
    symwin_status want;
    const char *words; /* in the error text on every rank */
    int goes_on;       /* the communicator works afterwards */
} oddities[ODDITIES] = {
    [SIZE] = {"sizes", SYMWIN_MISMATCH, "bytes differs", 1},
    [FLAGS] = {"flags", SYMWIN_MISMATCH, "flags differs", 1},
    [OFFSET] = {"offsets", SYMWIN_MISMATCH, "the offset in the allocation differs", 1},
    [BAD_POINTER] = {"an address that is none", SYMWIN_INVALID, "rank 2|not in VMM memory", 1},
    [NO_RESULT] = {"where the window goes", SYMWIN_INVALID,
                   "symwin_window_register: rank 2: window is NULL", 1},
    [NOT_SHAREABLE] = {"memory that cannot be shown", SYMWIN_UNSUPPORTED,
                       "rank 2|cannot be shared with other processes", 1},
    [OUT_OF_MEMORY] = {"memory that one rank does not have", SYMWIN_NO_MEMORY, "rank 2", 0},
    [OTHER_CALL] = {"different calls", SYMWIN_MISMATCH,
                    "symwin_window_register|rank 2 in symwin_comm_split|destroy the communicator",
                    0},
    [OPTIONS] = {"options", SYMWIN_MISMATCH, "slot_bytes differs", 0},
    [TUNING] = {"tables of choices", SYMWIN_MISMATCH,
                "tables of choices differ: rank 0 has 0000000000000000, rank 2 has|SYMWIN_TUNING",
                0},
    [BAD_TUNING] = {"a table that is none", SYMWIN_INVALID,
                    "rank 2: SYMWIN_TUNING, line 1 does not", 0},
    [DIGEST] = {"counts of a reduction", SYMWIN_MISMATCH, "differ", 0},
};

static void fails(int rank, const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, symwin_last_error());
    tap_failures++;
}

/* The call in which the ranks disagree. */
static symwin_status odd_call(enum oddity oddity, int odd, int device, symwin_comm *comm,
                              unsigned char *memory, symwin_window **window)
{
    const size_t bytes = odd && oddity == SIZE ? 4096 : 8192;
    const unsigned flags = odd && oddity == FLAGS ? SYMWIN_WINDOW_NO_MULTICAST : 0;
    symwin_comm *part = NULL;
    symwin_status status;

    if (odd && oddity == OFFSET)
        memory += 512;
    if (odd && oddity == BAD_POINTER)
        memory = (unsigned char *)window;
    if (odd && oddity == OTHER_CALL)
        return symwin_comm_split(comm, 0, 0, NULL, &part);
    if (oddity == DIGEST) {
        status = symwin_allreduce(comm, memory, memory, odd ? 100 : 200, SYMWIN_U32, SYMWIN_SUM,
                                  NULL);
        if (status == SYMWIN_OK)
            status = symwin_stream_synchronize(device, NULL);
        return status == SYMWIN_OK ? symwin_comm_check(comm) : status;
    }
    return symwin_window_register(comm, memory, bytes, flags,
                                  odd && oddity == NO_RESULT ? NULL : window);
}

static void expect(enum oddity oddity, int rank, symwin_status got)
{
    if (got != oddities[oddity].want || !host_error_has(oddities[oddity].words))
        fails(rank, symwin_status_name(got));
    if (oddities[oddity].goes_on && host_error_has("destroy the communicator"))
        fails(rank, "destroys a communicator that works on");
}

static void goes_on(struct processes *p, int rank, symwin_comm *comm, void *memory)
{
    symwin_comm_info info = {0};
    symwin_window *window = NULL;

    if (symwin_comm_query(comm, &info) != SYMWIN_OK || info.windows != 0 || info.allocations != 0)
        fails(rank, "something was kept");
    if (symwin_window_register(comm, memory, BYTES, 0, &window) != SYMWIN_OK)
        fails(rank, "the communicator does not go on");
    processes_barrier(p);
}

/* Gives only this rank a tuning table. */
static void tune(const char *row)
{
    char name[] = "/tmp/symwin-test.XXXXXX";
    const int fd = mkstemp(name);

    if (fd < 0 || write(fd, row, strlen(row)) != (ssize_t)strlen(row) || close(fd) != 0)
        abort();
    setenv("SYMWIN_TUNING", name, 1);
}

static void disagree(struct processes *p, int rank)
{
    const enum oddity oddity = *(const enum oddity *)p->arg;
    const int odd = rank == RANKS - 1;
    symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000, .slot_bytes = 8192};
    struct host_raw raw = {.ptr = 0};
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    void *memory = NULL;
    symwin_status status;

    if (odd && oddity == OUT_OF_MEMORY)
        setenv("SYMWIN_EMU_MEM", "2M", 1);
    if (odd && oddity == OPTIONS)
        options.slot_bytes = 16384;
    if (oddity == OUT_OF_MEMORY)
        options.slot_bytes = 1 << 20;
    if (odd && oddity == TUNING)
        tune("gpu,nranks,width,kind,registered,bytes,algo,blocks,threads\n"
             "symwin emulated GPU,3,4,integer,0,64,oneshot,1,0\n");
    if (odd && oddity == BAD_TUNING)
        tune("gpu\n");
    status = symwin_comm_create(processes_id(p, rank), RANKS, rank, rank, &options, &comm);
    if (getenv("SYMWIN_TUNING") != NULL)
        unlink(getenv("SYMWIN_TUNING"));
    if (oddity == OPTIONS || oddity == OUT_OF_MEMORY || oddity == TUNING || oddity == BAD_TUNING) {
        expect(oddity, rank, status);
        return;
    }
    host_must(status, "symwin_comm_create");
    memory = host_alloc(rank, BYTES);
    if (odd && oddity == NOT_SHAREABLE)
        raw = host_raw_alloc(rank, GRANULE, 0);
    expect(oddity, rank,
           odd_call(oddity, odd, rank, comm,
                    raw.ptr != 0 ? (unsigned char *)(uintptr_t)raw.ptr : memory, &window));
    if (oddities[oddity].goes_on)
        goes_on(p, rank, comm, memory);
    symwin_comm_destroy(comm);
    if (raw.ptr != 0)
        host_raw_free(&raw);
    host_must(symwin_mem_free(memory), "symwin_mem_free");
}

int main(void)
{
    enum oddity oddity;

    for (oddity = 0; oddity < ODDITIES; oddity++) {
        enum oddity *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        *shared = oddity;
        processes_run(oddities[oddity].name, RANKS, disagree, shared);
    }
    return tap_done();
}
