/* Large numbers: 72 ranks, 10,000 registrations, 200 communicators, several communicators at once.
 * Memory, mappings and objects must not grow. */
#include "allreduce_cases.h"
#include "harness.h"

#if defined(__SANITIZE_THREAD__)
enum { CYCLES = 300, COMMS = 10, SANITIZED = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { CYCLES = 300, COMMS = 30, SANITIZED = 1 };
#else
enum { CYCLES = 10000, COMMS = 200, SANITIZED = 0 };
#endif

/* A leak is at least one mapping a cycle. */
enum { SPARE_MAPS = 8 };

enum { BYTES = 4 << 20, RANKS = 4 };

/* The process's mappings. Under a sanitizer only those of files, as the memory of emulated GPUs is:
 * its allocator adds others. */
static int count_maps(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int maps = 0;

    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long inode = 0;

        if (!SANITIZED || (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode != 0))
            maps++;
    }
    fclose(file);
    return maps;
}

static long resident_pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long size = 0;
    long resident = 0;

    if (file == NULL)
        return -1;
    if (fscanf(file, "%ld %ld", &size, &resident) != 2)
        resident = -1;
    fclose(file);
    return resident;
}

/* ---- registrations ---- */

struct growth {
    int failed;
    int maps_before, maps_after;
    long pages_before, pages_after;
    size_t objects_before, objects_after;
};

static symwin_status cycle(symwin_comm *comm, void *memory, int i)
{
    unsigned char *const base = memory;
    symwin_window *first = NULL;
    symwin_window *second = NULL;
    symwin_status status;

    /* A new segment every time, and a second window on it; deregistered in either order. */
    status = symwin_window_register(comm, base, BYTES, 0, &first);
    if (status == SYMWIN_OK)
        status = symwin_window_register(comm, base + i % 1000, 1 + (size_t)i, 0, &second);
    if (status == SYMWIN_OK)
        status = symwin_window_deregister(comm, i % 2 ? first : second);
    if (status == SYMWIN_OK)
        status = symwin_window_deregister(comm, i % 2 ? second : first);
    return status;
}

static void note(struct growth *g, int after)
{
    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
    *(after ? &g->maps_after : &g->maps_before) = count_maps();
    *(after ? &g->pages_after : &g->pages_before) = resident_pages();
    *(after ? &g->objects_after : &g->objects_before) = sw_emu_live_objects();
}

static void registrations(struct harness_team *team, int rank, void *arg)
{
    struct growth *g = arg;
    symwin_comm *comm = NULL;
    void *memory = NULL;
    int i;

    if (harness_comm(team, rank, &comm) != SYMWIN_OK ||
        symwin_mem_alloc(harness_device(rank), BYTES, 0, &memory) != SYMWIN_OK)
        g->failed = 1;
    for (i = 0; i < CYCLES + 100 && !g->failed; i++) {
        if (i == 100) { /* all one-time allocations are made by now */
            harness_barrier(team);
            if (rank == 0)
                note(g, 0);
            harness_barrier(team);
        }
        if (cycle(comm, memory, i) != SYMWIN_OK) {
            printf("# rank %d, cycle %d: %s\n", rank, i, symwin_last_error());
            g->failed = 1;
        }
    }
    harness_barrier(team);
    if (rank == 0)
        note(g, 1);
    harness_barrier(team);
    symwin_comm_destroy(comm);
    symwin_mem_free(memory);
}

static void test_registrations(void)
{
    const struct harness_leaks before = harness_leaks_now();
    struct growth g = {0};

    harness_run(RANKS, registrations, &g);
    tap_ok(!g.failed, "%d ranks register and deregister %d times", RANKS, 2 * CYCLES);
    TAP_EQ("no driver object more", g.objects_after, g.objects_before);
    tap_ok(g.maps_after <= g.maps_before + SPARE_MAPS,
           "no mapping of the process more (%d, were %d)", g.maps_after, g.maps_before);
    if (!SANITIZED)
        tap_ok(g.pages_after <= g.pages_before + 512, "no memory more (%ld pages, were %ld)",
               g.pages_after, g.pages_before);
    harness_no_leaks("registrations", &before);
}

/* ---- communicators ---- */

static void make_and_destroy(struct harness_team *team, int rank, void *arg)
{
    int *failed = arg;
    symwin_comm *comm = NULL;

    if (harness_comm(team, rank, &comm) != SYMWIN_OK)
        *failed = 1;
    symwin_comm_destroy(comm);
}

static void test_communicators(void)
{
    const struct harness_leaks before = harness_leaks_now();
    int maps_before = 0;
    int maps_after;
    int failed = 0;
    int i;

    for (i = 0; i < COMMS + 10; i++) {
        if (i == 10)
            maps_before = count_maps();
        harness_run(RANKS, make_and_destroy, &failed);
    }
    tap_ok(!failed, "%d communicators of %d ranks come and go", COMMS, RANKS);
    maps_after = count_maps();
    tap_ok(maps_after <= maps_before + SPARE_MAPS + COMMS / 10, "no mapping more (%d, were %d)",
           maps_after, maps_before);
    harness_no_leaks("communicators", &before);
}

/* Three communicators of the same ranks on the same memory, each with calls in flight on a stream
 * of its own. */
static void several(struct harness_team *team, int rank, void *arg)
{
    enum { COUNT = 3, CALLS = 20, ITEMS = 1000 };
    static symwin_unique_id ids[COUNT];
    int *failed = arg;
    struct CUstream_st *streams[COUNT] = {NULL};
    symwin_comm *comms[COUNT] = {NULL};
    symwin_window *windows[COUNT];
    void *memory = NULL;
    int32_t host[COUNT * ITEMS];
    const int device = harness_device(rank);
    int bad = 0;
    int c, i;

    if (rank == 0)
        for (c = 0; c < COUNT; c++)
            bad += symwin_unique_id_create(&ids[c]) != SYMWIN_OK;
    harness_barrier(team);
    for (i = 0; i < COUNT * ITEMS; i++)
        host[i] = rank + i % 7;
    bad += symwin_mem_alloc(device, sizeof host, 0, &memory) != SYMWIN_OK;
    for (c = 0; c < COUNT; c++) {
        bad += symwin_comm_create(&ids[c], team->nranks, rank, device, NULL, &comms[c]) !=
               SYMWIN_OK;
        bad += symwin_stream_create(device, &streams[c]) != SYMWIN_OK;
        bad += symwin_window_register(comms[c], memory, sizeof host, 0, &windows[c]) != SYMWIN_OK;
    }
    bad += symwin_memcpy(device, memory, host, sizeof host, streams[0]) != SYMWIN_OK;
    bad += symwin_stream_synchronize(device, streams[0]) != SYMWIN_OK;
    for (i = 0; i < CALLS; i++)
        for (c = 0; c < COUNT; c++) {
            int32_t *const at = (int32_t *)memory + c * ITEMS;
            const symwin_allreduce_options options = {.size = sizeof options,
                                                      .algo = i % 2 ? SYMWIN_ALGO_TWOSHOT
                                                                    : SYMWIN_ALGO_ONESHOT,
                                                      .blocks = 1};

            bad += symwin_allreduce_with(comms[c], at, at, ITEMS, SYMWIN_I32, SYMWIN_MAX, &options,
                                         streams[c]) != SYMWIN_OK;
        }
    for (c = 0; c < COUNT; c++)
        bad += symwin_stream_synchronize(device, streams[c]) != SYMWIN_OK;
    bad += symwin_memcpy(device, host, memory, sizeof host, streams[0]) != SYMWIN_OK;
    bad += symwin_stream_synchronize(device, streams[0]) != SYMWIN_OK;
    for (i = 0; i < COUNT * ITEMS; i++)
        bad += host[i] != team->nranks - 1 + i % 7;
    harness_barrier(team);
    for (c = 0; c < COUNT; c++) {
        symwin_comm_destroy(comms[c]);
        symwin_stream_destroy(device, streams[c]);
    }
    symwin_mem_free(memory);
    harness_barrier(team);
    if (bad > 0)
        *failed = 1;
}

static void test_several(void)
{
    const struct harness_leaks before = harness_leaks_now();
    int failed = 0;

    harness_run(RANKS, several, &failed);
    tap_ok(!failed, "three communicators on the same memory, all with calls in flight");
    harness_no_leaks("several communicators", &before);
}

int main(void)
{
    static const size_t few[] = {1, 999, 0};

    setenv("SYMWIN_DRIVER", "emu", 1);
    harness_start();
    test_registrations();
    test_communicators();
    test_several();
#if defined(__SANITIZE_THREAD__) /* it cannot count the CUDA threads of 72 ranks */
    allreduce_matrix(16, few, 211);
#else
    allreduce_matrix(72, few, SANITIZED ? 631 : 41); /* nine ranks per device */
    {
        const struct sw_emu_machine machine = {
            .devices = 72, .mem_bytes = (size_t)1 << 30, .fabric = 1, .multicast = 1};

        TAP_EQ("a machine of 72 devices", sw_emu_configure(&machine), CUDA_SUCCESS);
        allreduce_matrix(72, few, SANITIZED ? 631 : 61); /* multicast included */
    }
#endif
    return tap_done();
}
