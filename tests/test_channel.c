/* symwin_channel.cuh: copies by all groups at all alignments, signals that are never reset, packets, limits of waits. Two
 * ranks as threads, on windows.
 *
 *   SYMWIN_TEST_FATBIN   on GPUs, where the kernels are; ../obj/tests/channel_kernels.fatbin beside the program where it is
 *                        not set, which is where make gpu-tests puts them */
#include "channel_kernels.h"
#include "host_cases.h"

enum { BYTES = 1 << 16, MARGIN = 32, COPIES = 400, TURNS = 200, DRAWS = 50 };

static const void *image = &channel_image; /* the emulated driver's, or a fat binary */

/* Reads the fat binary, which stays for as long as the process lives. */
static void load_fatbin(void)
{
    const char *named = getenv("SYMWIN_TEST_FATBIN");
    char path[4096], *end, *bytes = NULL;
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    FILE *file;
    long size;

    path[length > 0 ? length : 0] = '\0';
    end = strrchr(path, '/');
    strcpy(end != NULL ? end + 1 : path, "../obj/tests/channel_kernels.fatbin");
    file = fopen(named != NULL ? named : path, "rb");
    if (file == NULL)
        tap_skip_all("there is no channel_kernels.fatbin: make gpu-tests, or SYMWIN_TEST_FATBIN");
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0 &&
        fseek(file, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t)size);
        if (bytes != NULL && fread(bytes, 1, (size_t)size, file) == (size_t)size)
            image = bytes;
    }
    fclose(file);
}

struct member {
    struct harness_team *team;
    int rank, device;
    symwin_comm *comm;
    struct sw_scope scope;
    CUstream stream;
    CUlibrary library;
    char *memory, *theirs; /* BYTES of a window, and the peer's */
    symwin_window *window;
};

static void open_member(struct member *m, struct harness_team *team, int rank)
{
    *m = (struct member){.team = team, .rank = rank, .device = harness_device(rank)};
    host_must(harness_comm(team, rank, &m->comm), "symwin_comm_create");
    host_must(sw_scope_enter(m->device, &m->scope), "sw_scope_enter");
    host_must(symwin_stream_create(m->device, &m->stream), "symwin_stream_create");
    m->memory = host_alloc(m->device, BYTES);
    host_must_cuda(sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)m->memory, 0, BYTES, m->stream),
                   "memset");
    host_must(symwin_stream_synchronize(m->device, m->stream), "synchronize");
    host_must(symwin_window_register(m->comm, m->memory, BYTES, 0, &m->window), "register");
    host_must(symwin_window_peer_pointer(m->comm, m->window, (rank + 1) % team->nranks, 0,
                                         (void **)&m->theirs),
              "peer_pointer");
    host_must_cuda(sw_drv.cuLibraryLoadData(&m->library, image, NULL, NULL, 0, NULL, NULL, 0),
                   "cuLibraryLoadData");
}

static void close_member(struct member *m)
{
    harness_barrier(m->team);
    host_must_cuda(sw_drv.cuLibraryUnload(m->library), "cuLibraryUnload");
    symwin_comm_destroy(m->comm);
    host_must(symwin_mem_free(m->memory), "symwin_mem_free");
    host_must(symwin_stream_destroy(m->device, m->stream), "symwin_stream_destroy");
    sw_scope_leave(&m->scope);
}

/* Waits for it too. */
static void launch(const struct member *m, const char *name, unsigned blocks, unsigned threads,
                   void *args)
{
    void *params[] = {args};
    CUfunction function;
    CUkernel kernel;

    host_must_cuda(sw_drv.cuLibraryGetKernel(&kernel, m->library, name), name);
    host_must_cuda(sw_drv.cuKernelGetFunction(&function, kernel), name);
    host_must_cuda(
        sw_drv.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, m->stream, params, NULL),
        name);
    host_must(symwin_stream_synchronize(m->device, m->stream), name);
}

/* ---- copies ---- */

/* Puts to the peer and gets from it: what is copied is equal, and nothing beside it has changed. */
static void copies(struct harness_team *team, int rank, void *unused)
{
    enum { PLACE = 3 * BYTES / 4, LONGEST = 9000 };
    static const unsigned threads[] = {1, 31, 32, 33, 64};
    unsigned char bytes[LONGEST + 2 * MARGIN], before[LONGEST + 2 * MARGIN];
    uint64_t state = 7;
    int wrong = 0, i;
    struct member m;

    (void)unused;
    open_member(&m, team, rank);
    for (i = 0; i < COPIES && rank == 0; i++) {
        const size_t to = MARGIN + host_random(&state) % 16, from = host_random(&state) % 16;
        const size_t length = host_random(&state) % (i % 8 == 0 ? LONGEST - 32 : 80);
        const int put = (int)(host_random(&state) % 2);
        char *const target = (put ? m.theirs : m.memory) + PLACE / 2;
        char *const source = put ? m.memory : m.theirs;
        struct channel_copy_args args = {.to = (uint64_t)(uintptr_t)target + to,
                                         .from = (uint64_t)(uintptr_t)source + from,
                                         .bytes = length,
                                         .group = (uint32_t)(i % CHANNEL_GROUPS)};
        size_t k;

        for (k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)host_random(&state);
        host_must(host_copy(m.device, source, bytes, LONGEST), "fill");
        for (k = 0; k < sizeof before; k++)
            before[k] = (unsigned char)(bytes[k] + 1 + k % 200);
        host_must(host_copy(m.device, target, before, sizeof before), "fill");
        launch(&m, "channel_copy", args.group == CHANNEL_GRID ? 3 : 1,
               threads[host_random(&state) % 5], &args);
        memcpy(before + to, bytes + from, length);
        host_must(host_copy(m.device, bytes, target, sizeof bytes), "read");
        wrong += memcmp(bytes, before, sizeof before) != 0;
    }
    if (rank == 0)
        TAP_EQ("copies of random lengths and alignments, by all groups, that went wrong", wrong, 0);
    close_member(&m);
}

/* ---- signals and packets ---- */

static struct channel_play_args play_args(const struct member *m, uint64_t bytes, uint64_t turns)
{
    const uint64_t own = (uint64_t)(uintptr_t)m->memory, theirs = (uint64_t)(uintptr_t)m->theirs;

    return (struct channel_play_args){
        .own = own,
        .theirs = theirs,
        .signals = own + BYTES - 8,
        .their_signals = theirs + BYTES - 8,
        .waited = own + BYTES - 16,
        .wrong = own + BYTES - 24,
        .bytes = bytes,
        .turns = turns,
        .first = 1000u * (unsigned)(m->rank + 1),
        .their_first = 1000u * (unsigned)(2 - m->rank),
        .first_flag = 1,
        .timeout_ns = 20000000000u,
    };
}

static uint32_t word(const struct member *m, uint64_t address)
{
    return host_get_u32(m->device, (const void *)(uintptr_t)address);
}

static void play(struct harness_team *team, int rank, void *unused)
{
    struct channel_play_args args;
    struct member m;
    int launches;

    (void)unused;
    open_member(&m, team, rank);
    harness_barrier(team);
    args = play_args(&m, 4096, TURNS);
    for (launches = 0; launches < 3; launches++) /* the counters go on where they were */
        launch(&m, "channel_play", 1, CHANNEL_THREADS, &args);
    TAP_EQ("words that were not what the peer had put", word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", word(&m, args.wrong + 4), 0);
    TAP_EQ("signals that came", word(&m, args.signals), 3 * TURNS);
    TAP_EQ("and were waited for", word(&m, args.waited), 3 * TURNS);
    harness_barrier(team);
    for (launches = 0; launches < 3; launches++) {
        launch(&m, "channel_packets", 1, CHANNEL_THREADS, &args);
        args.first_flag += TURNS;
    }
    TAP_EQ("words that were not what the peer had sent in packets", word(&m, args.wrong), 0);
    TAP_EQ("waits that were given up", word(&m, args.wrong + 4), 0);
    close_member(&m);
}

/* ---- limits ---- */

static void limits(struct harness_team *team, int rank, void *unused)
{
    struct channel_play_args args;
    uint32_t *abort_word;
    struct member m;
    int64_t start;
    int i;

    (void)unused;
    open_member(&m, team, rank);
    harness_barrier(team);
    args = play_args(&m, 64, 1);
    if (rank == 0) { /* the peer never comes */
        args.timeout_ns = 50000000;
        start = host_now_ms();
        launch(&m, "channel_play", 1, 32, &args);
        tap_ok(word(&m, args.wrong + 4) == 1 && host_now_ms() - start >= 50,
               "a wait ends when its time is over");
        TAP_EQ("and the signal is still to be waited for", word(&m, args.waited), 0);
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        launch(&m, "channel_packets", 1, 32, &args);
        TAP_EQ("packets too", word(&m, args.wrong + 4), 1);
        for (i = 0; i < 3;
             i++) { /* one of the last packet's flags is missing, the other one, none */
            uint32_t packets[32];
            int k;

            for (k = 0; k < 32; k++)
                packets[k] = k % 2 == 1 && k != 29 + 2 * i ? 1 : 0;
            host_must(host_copy(m.device, m.memory + 4 * args.bytes, packets, sizeof packets),
                      "packets");
            host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
            launch(&m, "channel_packets", 1, 32, &args);
            TAP_EQ("a packet has arrived when both its halves have", word(&m, args.wrong + 4),
                   i < 2);
        }
        host_put_u32(m.device, (void *)(uintptr_t)(args.wrong + 4), 0);
        abort_word = (uint32_t *)(void *)(m.memory + BYTES - 32);
        host_put_u32(m.device, abort_word, 1);
        args.abort = (uint64_t)(uintptr_t)abort_word;
        args.timeout_ns = 0;
        launch(&m, "channel_play", 1, 32, &args);
        TAP_EQ("a wait for ever ends by the abort word", word(&m, args.wrong + 4), 1);
    }
    close_member(&m);
}

/* ---- fetch and add ---- */

static void draw(struct harness_team *team, int rank, void *unused)
{
    const int drawn = 2 * 2 * CHANNEL_THREADS * DRAWS; /* by two ranks of two blocks */
    struct channel_play_args args;
    struct member m;
    int i, wrong = 0;

    (void)unused;
    open_member(&m, team, rank);
    harness_barrier(team);
    args = play_args(&m, 0, DRAWS);
    if (rank == 1) { /* both draw from rank 0's counter and mark in its memory */
        args.signals = args.their_signals;
        args.own = args.theirs;
    }
    launch(&m, "channel_draw", 2, CHANNEL_THREADS, &args);
    harness_barrier(team);
    if (rank == 0) {
        static uint32_t marks[BYTES / 4];

        host_must(host_copy(m.device, marks, m.memory, 4 * (size_t)drawn), "read");
        for (i = 0; i < drawn; i++)
            wrong += marks[i] != 1;
        TAP_EQ("numbers that were not drawn once", wrong, 0);
        TAP_EQ("numbers drawn", word(&m, args.signals), drawn);
    }
    close_member(&m);
}

/* ---- barriers ---- */

static struct channel_meet_args meet_args(const struct member *m, int step)
{
    symwin_window_info info;

    host_must(symwin_window_query(m->comm, m->window, &info), "symwin_window_query");
    return (struct channel_meet_args){
        .base = (uint64_t)(uintptr_t)info.base,
        .stride = info.stride,
        .rank = info.rank,
        .nranks = info.nranks,
        .first = m->rank % step,
        .step = step,
        .count = info.nranks / step,
        .words = info.offset,
        .barrier = info.offset + BYTES / 2,
        .wrong = info.offset + BYTES - 24,
        .turns = 20,
        .timeout_ns = 20000000000u,
    };
}

/* `arg`: 1, all ranks; 2, the even ones and the odd ones. */
static void meet(struct harness_team *team, int rank, void *arg)
{
    const int step = *(const int *)arg;
    struct channel_meet_args args;
    struct member m;
    int launches;

    open_member(&m, team, rank);
    harness_barrier(team);
    args = meet_args(&m, step);
    for (launches = 0; launches < 3; launches++) { /* the words go on where they were */
        launch(&m, "channel_blocks", 3, 33, &args);
        args.launched += args.turns;
    }
    harness_barrier(team);
    args.barrier += BYTES / 4;
    for (launches = 0; launches < 3; launches++) {
        launch(&m, "channel_grids", 3, 33, &args);
        args.launched += args.turns;
    }
    TAP_EQ("words that were not those of the turn", host_get_u32(m.device, m.memory + BYTES - 24),
           0);
    TAP_EQ("barriers that were given up", host_get_u32(m.device, m.memory + BYTES - 20), 0);
    harness_barrier(team);
    if (rank == 0) { /* the others never come */
        args.timeout_ns = 30000000;
        launch(&m, "channel_grids", 3, 32, &args);
        TAP_EQ("a grid's barrier ends for all threads when its time is over",
               host_get_u32(m.device, m.memory + BYTES - 20), team->nranks > step ? 3 * 32 : 0);
        host_put_u32(m.device, m.memory + BYTES - 20, 0);
        args.barrier -= BYTES / 4;
        launch(&m, "channel_blocks", 3, 32, &args);
        TAP_EQ("and a block's", host_get_u32(m.device, m.memory + BYTES - 20),
               team->nranks > step ? 3 * 32 : 0);
    }
    close_member(&m);
}

int main(void)
{
    static int all = 1, halves = 2;
    struct harness_leaks before;

    harness_start();
    if (!sw_driver_is_emulated())
        load_fatbin();
    before = harness_leaks_now();
    harness_run(2, copies, NULL);
    harness_run(2, play, NULL);
    harness_run(2, limits, NULL);
    harness_run(2, draw, NULL);
    harness_run(1, meet, &all);
    harness_run(2, meet, &all);
    harness_run(4, meet, &all);
    harness_run(4, meet, &halves);
    harness_no_leaks("channels", &before);
    return tap_done();
}
