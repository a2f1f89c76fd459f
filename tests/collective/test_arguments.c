/* Every wrong argument of every public call: the documented status, an error text that names the
 * call and the value, no result written, nothing leaked, and a communicator that works
 * afterwards. */
#include <unistd.h>

#include "windows.h"

#define SENTINEL ((void *)(uintptr_t)0x5e5e5e5e)

/* A result that the call must not write. */
struct untouched {
    void *result;
    size_t bytes;
};

static struct untouched watch(void *result, size_t bytes)
{
    memset(result, 0x5e, bytes);
    return (struct untouched){result, bytes};
}

static void expect_untouched(const char *call, struct untouched watched)
{
    size_t i = 0;

    while (i < watched.bytes && ((unsigned char *)watched.result)[i] == 0x5e)
        i++;
    tap_ok(i == watched.bytes, "%s: the result is untouched", call);
}

/* ---- calls about the driver and devices ---- */

static void driver_calls(void)
{
    const struct harness_leaks before = harness_leaks_now();
    struct untouched watched;
    symwin_device_info device;
    symwin_driver_info driver;
    CUresult (*count_devices)(int *);
    void *function;
    int count = 0;

    host_expect("symwin_driver_query: NULL", symwin_driver_query(NULL), SYMWIN_INVALID,
                "symwin_driver_query|info is NULL");
    host_expect("symwin_driver_query", symwin_driver_query(&driver), SYMWIN_OK, "");
    tap_ok(strcmp(driver.name, "emu") == 0 && driver.version >= 12000 && driver.device_count == 8 &&
               driver.has_kernels == 1,
           "it says which driver answers");
    watched = watch(&function, sizeof function);
    host_expect("symwin_driver_find: no name", symwin_driver_find(NULL, &function), SYMWIN_INVALID,
                "symwin_driver_find|name is NULL");
    host_expect("symwin_driver_find: nowhere to put it", symwin_driver_find("cuInit", NULL),
                SYMWIN_INVALID, "function is NULL");
    host_expect("symwin_driver_find: a name that is none", symwin_driver_find("cuIni", &function),
                SYMWIN_INVALID, "does not use cuIni of the driver");
    expect_untouched("symwin_driver_find", watched);
    host_expect("symwin_driver_find", symwin_driver_find("cuDeviceGetCount", &function), SYMWIN_OK,
                "");
    memcpy(&count_devices, &function, sizeof count_devices);
    tap_ok(count_devices(&count) == 0 && count == 8, "what it finds is the driver's");
    watched = watch(&device, sizeof device);
    host_expect("symwin_device_query: NULL", symwin_device_query(0, NULL), SYMWIN_INVALID,
                "symwin_device_query|info is NULL");
    host_expect("symwin_device_query: device 8 of 8", symwin_device_query(8, &device),
                SYMWIN_INVALID, "symwin_device_query|no device 8|0 to 7");
    host_expect("symwin_device_query: device -7", symwin_device_query(-7, &device), SYMWIN_INVALID,
                "symwin_device_query|no device -7");
    host_expect("symwin_device_query: no current context",
                symwin_device_query(SYMWIN_DEVICE_CURRENT, &device), SYMWIN_INVALID,
                "symwin_device_query|current CUDA context");
    expect_untouched("symwin_device_query", watched);
    host_expect("symwin_device_query", symwin_device_query(7, &device), SYMWIN_OK, "");
    tap_ok(device.name[0] != '\0' && device.total_bytes > 0 && device.multiprocessors > 0 &&
               device.capability >= 70 && device.posix_fd == 1,
           "it says what the device is");
    host_expect("symwin_unique_id_create: NULL", symwin_unique_id_create(NULL), SYMWIN_INVALID,
                "symwin_unique_id_create|id is NULL");
    harness_no_leaks("calls about the driver", &before);
}

static void names(void)
{
    static const int wrong[] = {-1, 13, 99, 1 << 30};
    size_t i;

    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        TAP_EQ("no such type has no bytes", symwin_type_bytes((symwin_type)wrong[i]), 0);
        tap_ok(symwin_type_name((symwin_type)wrong[i]) == NULL &&
                   symwin_op_name((symwin_op)wrong[i]) == NULL &&
                   symwin_algo_name((symwin_algo)wrong[i]) == NULL &&
                   symwin_collective_name((symwin_collective)wrong[i]) == NULL,
               "nothing numbered %d has a name", wrong[i]);
        tap_ok(strstr(symwin_status_name((symwin_status)wrong[i]), "unknown") != NULL,
               "but for a status, whose name is never NULL");
    }
    tap_ok(strcmp(symwin_collective_name(SYMWIN_ALLGATHER), "allgather") == 0 &&
               strcmp(symwin_collective_name(SYMWIN_ALLREDUCE), "allreduce") == 0,
           "a collective's name");
    tap_ok(strcmp(symwin_status_name(SYMWIN_PEER_LOST), "SYMWIN_PEER_LOST") == 0, "a status' name");
    tap_ok(strcmp(symwin_version(), SYMWIN_VERSION) == 0, "the version");
}

/* ---- memory: what test_alloc.c and test_share.c do not cover ---- */

static void memory_calls(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_mem_handle handle = {.fd = -1}, copy;
    struct untouched watched;
    symwin_mem_info info;
    void *ptr = SENTINEL;
    int here = 0;

    host_expect("symwin_mem_alloc: NULL", symwin_mem_alloc(0, 1, 0, NULL), SYMWIN_INVALID,
                "symwin_mem_alloc|ptr is NULL");
    host_expect("symwin_mem_alloc: 0 bytes", symwin_mem_alloc(0, 0, 0, &ptr), SYMWIN_INVALID,
                "symwin_mem_alloc|bytes is 0");
    host_expect("symwin_mem_alloc: flags", symwin_mem_alloc(0, 1, ~0u, &ptr), SYMWIN_INVALID,
                "symwin_mem_alloc|0xfffffff8");
    host_expect("symwin_mem_alloc: device", symwin_mem_alloc(8, 1, 0, &ptr), SYMWIN_INVALID,
                "symwin_mem_alloc|no device 8");
    host_expect("symwin_mem_free: host", symwin_mem_free(&here), SYMWIN_INVALID, "symwin_mem_free");
    watched = watch(&info, sizeof info);
    host_expect("symwin_mem_query: NULL", symwin_mem_query(NULL, &info), SYMWIN_INVALID,
                "symwin_mem_query|ptr is NULL");
    host_expect("symwin_mem_query: host", symwin_mem_query(&here, &info), SYMWIN_INVALID,
                "symwin_mem_query");
    host_expect("symwin_mem_query: no result", symwin_mem_query(&here, NULL), SYMWIN_INVALID,
                "symwin_mem_query|info is NULL");
    expect_untouched("symwin_mem_query", watched);
    watched = watch(&copy, sizeof copy);
    host_expect("symwin_mem_export: NULL", symwin_mem_export(NULL, SYMWIN_HANDLE_POSIX_FD, &copy),
                SYMWIN_INVALID, "symwin_mem_export|ptr is NULL");
    host_expect("symwin_mem_export: no result",
                symwin_mem_export(&here, SYMWIN_HANDLE_POSIX_FD, NULL), SYMWIN_INVALID,
                "symwin_mem_export|handle is NULL");
    host_expect("symwin_mem_export: type", symwin_mem_export(&here, 4, &copy), SYMWIN_INVALID,
                "symwin_mem_export|4 is not a handle type");
    host_expect("symwin_mem_export: host", symwin_mem_export(&here, SYMWIN_HANDLE_POSIX_FD, &copy),
                SYMWIN_INVALID, "symwin_mem_export");
    expect_untouched("symwin_mem_export", watched);
    host_expect("symwin_mem_import: NULL", symwin_mem_import(0, NULL, &ptr), SYMWIN_INVALID,
                "symwin_mem_import|handle is NULL");
    host_expect("symwin_mem_import: no result", symwin_mem_import(0, &handle, NULL), SYMWIN_INVALID,
                "symwin_mem_import|ptr is NULL");
    host_expect("symwin_mem_import: an empty handle", symwin_mem_import(0, &handle, &ptr),
                SYMWIN_INVALID, "symwin_mem_import|0 is not a handle type");
    tap_ok(ptr == SENTINEL, "symwin_mem_alloc, symwin_mem_import: the result is untouched");
    harness_no_leaks("memory", &before);
}

/* ---- communicators ---- */

static void comm_calls(void)
{
    static const size_t right = sizeof(symwin_comm_options);
    static const struct {
        const char *name;
        int nranks, rank, device;
        symwin_comm_options options; /* all zero: no options */
        const char *words;
    } rows[] = {
        {"no ranks", 0, 0, 0, {0}, "nranks is 0"},
        {"less than no ranks", -1, 0, 0, {0}, "nranks is -1"},
        {"more ranks than there can be", 131073, 0, 0, {0}, "nranks is 131073|131072"},
        {"rank -1", 1, -1, 0, {0}, "rank is -1"},
        {"rank 1 of 1", 1, 1, 0, {0}, "rank is 1|0 to 0"},
        {"rank 2 of 2", 2, 2, 0, {0}, "rank is 2|0 to 1"},
        {"no such device", 1, 0, 8, {0}, "no device 8"},
        {"no current context", 1, 0, SYMWIN_DEVICE_CURRENT, {0}, "current CUDA context"},
        {"options without a size", 1, 0, 0, {.flags = 2}, "options->size is 0"},
        {"options of another size", 1, 0, 0, {.size = 8}, "options->size is 8"},
        {"an unknown flag", 1, 0, 0, {.size = right, .flags = 32}, "flags has 0x20, which"},
        {"flags that exclude each other",
         1,
         0,
         0,
         {.size = right, .flags = 3},
         "flags has SYMWIN_COMM_MULTICAST and"},
        {"a negative timeout", 1, 0, 0, {.size = right, .timeout_ms = -1}, "timeout_ms -1"},
        {"a negative kernel timeout",
         1,
         0,
         0,
         {.size = right, .kernel_timeout_ms = -2},
         "kernel_timeout_ms -2"},
        {"slots that are no words", 1, 0, 0, {.size = right, .slot_bytes = 12}, "slot_bytes is 12"},
        {"slots beyond reason",
         1,
         0,
         0,
         {.size = right, .slot_bytes = ((size_t)1 << 32) + 8},
         "slot_bytes is 4294967304"},
        {"blocks below zero", 1, 0, 0, {.size = right, .max_blocks = -3}, "max_blocks -3"},
    };
    const struct harness_leaks before = harness_leaks_now();
    symwin_comm *comm = SENTINEL;
    symwin_comm_info info;
    struct untouched watched = watch(&info, sizeof info);
    symwin_unique_id id;
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static const symwin_comm_options none;
        const int given = memcmp(&rows[i].options, &none, sizeof none) != 0;

        host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
        host_expect(rows[i].name,
                    symwin_comm_create(&id, rows[i].nranks, rows[i].rank, rows[i].device,
                                       given ? &rows[i].options : NULL, &comm),
                    SYMWIN_INVALID, rows[i].words);
        tap_ok(host_error_has("symwin_comm_create:"), "%s: the text names the call", rows[i].name);
        symwin_unique_id_release(&id); /* if the call did not use it */
    }
    host_expect("symwin_comm_create: NULL id", symwin_comm_create(NULL, 1, 0, 0, NULL, &comm),
                SYMWIN_INVALID, "symwin_comm_create|id is NULL");
    host_expect("symwin_comm_create: no result", symwin_comm_create(&id, 1, 0, 0, NULL, NULL),
                SYMWIN_INVALID, "symwin_comm_create|comm is NULL");
    tap_ok(comm == SENTINEL, "symwin_comm_create: the result is untouched");
    host_expect("symwin_comm_query: NULL", symwin_comm_query(NULL, &info), SYMWIN_INVALID,
                "symwin_comm_query|comm is NULL");
    expect_untouched("symwin_comm_query", watched);
    host_expect("symwin_comm_check: NULL", symwin_comm_check(NULL), SYMWIN_INVALID,
                "symwin_comm_check|comm is NULL");
    host_expect("symwin_comm_check_calls: NULL", symwin_comm_check_calls(NULL), SYMWIN_INVALID,
                "symwin_comm_check_calls|comm is NULL");
    host_expect("symwin_comm_follow: NULL", symwin_comm_follow(NULL, NULL), SYMWIN_INVALID,
                "symwin_comm_follow|comm is NULL");
    host_expect("symwin_comm_abort: NULL", symwin_comm_abort(NULL), SYMWIN_INVALID,
                "symwin_comm_abort|comm is NULL");
    harness_no_leaks("communicators", &before);
}

static void ask_for_too_much(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .slot_bytes = (size_t)1 << 32};
    symwin_comm *comm = SENTINEL;

    (void)arg;
    host_expect("slots larger than the device",
                symwin_comm_create(&team->id, team->nranks, rank, rank, &options, &comm),
                SYMWIN_NO_MEMORY,
                "symwin_comm_create|rank 0|CUDA_ERROR_OUT_OF_MEMORY|smaller slot_bytes");
    tap_ok(comm == SENTINEL, "symwin_comm_create: the result is untouched");
}

static void slots_too_large(void)
{
    const struct harness_leaks before = harness_leaks_now();

    harness_run(2, ask_for_too_much, NULL);
    harness_no_leaks("slots larger than the device", &before);
}

/* ---- windows ---- */

static void window_calls(struct caller *c)
{
    symwin_comm *const comm = c->member.comm;
    symwin_window *window = SENTINEL;
    symwin_window *const bad = (symwin_window *)&window;
    symwin_window_info info;
    struct untouched watched = watch(&info, sizeof info);
    void *ptr = SENTINEL;

    host_expect("symwin_window_register: NULL comm",
                symwin_window_register(NULL, c->in, 4, 0, &window), SYMWIN_INVALID,
                "symwin_window_register|comm is NULL");
    host_expect("symwin_window_deregister: NULL comm", symwin_window_deregister(NULL, c->window),
                SYMWIN_INVALID, "symwin_window_deregister|comm is NULL");
    host_expect("symwin_window_deregister: NULL", symwin_window_deregister(comm, NULL),
                SYMWIN_INVALID, "symwin_window_deregister|no live window");
    host_expect("symwin_window_deregister: an address", symwin_window_deregister(comm, bad),
                SYMWIN_INVALID, "symwin_window_deregister|no live window");
    host_expect("symwin_window_query: NULL comm", symwin_window_query(NULL, c->window, &info),
                SYMWIN_INVALID, "symwin_window_query|comm is NULL");
    host_expect("symwin_window_query: NULL", symwin_window_query(comm, NULL, &info), SYMWIN_INVALID,
                "symwin_window_query|no live window");
    host_expect("symwin_window_query: no result", symwin_window_query(comm, c->window, NULL),
                SYMWIN_INVALID, "symwin_window_query|info is NULL");
    expect_untouched("symwin_window_query", watched);
    host_expect("symwin_window_peer_pointer: NULL comm",
                symwin_window_peer_pointer(NULL, c->window, 0, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_peer_pointer|comm is NULL");
    host_expect("symwin_window_peer_pointer: NULL",
                symwin_window_peer_pointer(comm, NULL, 0, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_peer_pointer|no live window");
    host_expect("symwin_window_peer_pointer: no result",
                symwin_window_peer_pointer(comm, c->window, 0, 0, NULL), SYMWIN_INVALID,
                "symwin_window_peer_pointer|ptr is NULL");
    host_expect("symwin_window_peer_pointer: rank",
                symwin_window_peer_pointer(comm, c->window, 2, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_peer_pointer|no rank 2");
    host_expect("symwin_window_peer_pointer: offset",
                symwin_window_peer_pointer(comm, c->window, 0, c->member.bytes, &ptr),
                SYMWIN_INVALID, "symwin_window_peer_pointer|past the window");
    host_expect("symwin_window_multicast_pointer: NULL comm",
                symwin_window_multicast_pointer(NULL, c->window, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_multicast_pointer|comm is NULL");
    host_expect("symwin_window_multicast_pointer: NULL",
                symwin_window_multicast_pointer(comm, NULL, 0, &ptr), SYMWIN_INVALID,
                "symwin_window_multicast_pointer|no live window");
    host_expect("symwin_window_multicast_pointer: no result",
                symwin_window_multicast_pointer(comm, c->window, 0, NULL), SYMWIN_INVALID,
                "symwin_window_multicast_pointer|ptr is NULL");
    host_expect("symwin_window_multicast_pointer: offset",
                symwin_window_multicast_pointer(comm, c->window, c->member.bytes, &ptr),
                SYMWIN_INVALID, "symwin_window_multicast_pointer|past the window");
    host_expect("symwin_window_find: NULL comm", symwin_window_find(NULL, c->in, 4, &window),
                SYMWIN_INVALID, "symwin_window_find|comm is NULL");
    host_expect("symwin_window_find: no result", symwin_window_find(comm, c->in, 4, NULL),
                SYMWIN_INVALID, "symwin_window_find|window is NULL");
    host_expect("symwin_window_find: NULL", symwin_window_find(comm, NULL, 4, &window),
                SYMWIN_INVALID, "symwin_window_find|no window of rank");
    tap_ok(window == SENTINEL && ptr == SENTINEL, "windows: the results are untouched");
    host_expect("symwin_comm_set_name: NULL", symwin_comm_set_name(NULL, "x"), SYMWIN_INVALID,
                "symwin_comm_set_name|comm is NULL");
    host_expect("symwin_comm_set_name: no name", symwin_comm_set_name(comm, NULL), SYMWIN_INVALID,
                "symwin_comm_set_name|name is NULL");
    host_expect("symwin_comm_query: no result", symwin_comm_query(comm, NULL), SYMWIN_INVALID,
                "symwin_comm_query|info is NULL");
}

/* ---- collectives ---- */

/* Addresses that make a call wrong. */
enum place {
    P_NULL,
    P_IN, /* in the window */
    P_OUT,
    P_OUT_BEFORE, /* a word before it */
    P_IN_BYTE,    /* P_IN and one byte */
    P_IN_WORD,    /* P_IN and one word */
    P_IN_LAST,    /* the window's last word */
    P_HOST,       /* pageable host memory */
    P_PLAIN,      /* from cuMemAlloc, 4 KiB */
    P_ELSEWHERE,  /* from cuMemAlloc on another device */
    P_PEER,       /* another rank's allocation */
    P_NOTHING,    /* an unmapped address */
    PLACES
};

static const struct reduction {
    const char *name;
    enum place in, out;
    uint64_t count;
    int type, op, algo, blocks;
    symwin_status want;
    const char *words;
} reductions[] = {
    {"type 12", P_IN, P_OUT, 4, 12, 0, 0, 0, SYMWIN_INVALID, "no type 12"},
    {"type -1", P_IN, P_OUT, 4, -1, 0, 0, 0, SYMWIN_INVALID, "no type -1"},
    {"type 12 of nothing", P_IN, P_OUT, 0, 12, 0, 0, 0, SYMWIN_INVALID, "no type 12"},
    {"operation 6", P_IN, P_OUT, 4, SYMWIN_F32, 6, 0, 0, SYMWIN_INVALID, "no operation 6"},
    {"operation -9", P_IN, P_OUT, 4, SYMWIN_F32, -9, 0, 0, SYMWIN_INVALID, "no operation -9"},
    {"algorithm 99", P_IN, P_OUT, 4, SYMWIN_F32, 0, 99, 0, SYMWIN_INVALID, "no algorithm 99"},
    {"algorithm -1", P_IN, P_OUT, 4, SYMWIN_F32, 0, -1, 0, SYMWIN_INVALID, "no algorithm -1"},
    {"blocks -1", P_IN, P_OUT, 4, SYMWIN_F32, 0, 0, -1, SYMWIN_INVALID, "blocks is -1"},
    {"more blocks than fit", P_IN, P_OUT, 4, SYMWIN_F32, 0, 0, 1 << 20, SYMWIN_UNSUPPORTED,
     "1048576 blocks"},
    {"in NULL", P_NULL, P_OUT, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID, "in is NULL"},
    {"out NULL", P_IN, P_NULL, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID, "out is NULL"},
    {"in misaligned", P_IN_BYTE, P_OUT, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "in is|not aligned to f32's 4 bytes"},
    {"out misaligned", P_OUT, P_IN_BYTE, 4, SYMWIN_BF16, 0, 0, 0, SYMWIN_INVALID,
     "out is|not aligned to bf16's 2 bytes"},
    {"misaligned to 8", P_IN_WORD, P_OUT, 4, SYMWIN_F64, 0, 0, 0, SYMWIN_INVALID,
     "not aligned to f64's 8 bytes"},
    {"in before out", P_IN, P_IN_WORD, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID, "overlap in part"},
    {"out before in", P_IN_WORD, P_IN, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID, "overlap in part"},
    {"past the end of out, into nothing", P_IN, P_OUT, WORDS + 1, SYMWIN_F32, 0, 0, 0,
     SYMWIN_INVALID, "1025 elements (4100 bytes) at out|pass the end|4096 bytes from there"},
    {"in past the window", P_IN, P_IN, 2 * WORDS + 1, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "2049 elements (8196 bytes) at in|8192 bytes"},
    {"the same of 8 bytes", P_IN, P_OUT, WORDS / 2 + 1, SYMWIN_F64, 0, 0, 0, SYMWIN_INVALID,
     "513 elements (4104 bytes) at out|pass the end"},
    {"overlap by one", P_IN, P_OUT_BEFORE, WORDS, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "overlap in part"},
    {"past the last word", P_IN, P_IN_LAST, 2, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "2 elements (8 bytes) at out|4 bytes from there"},
    {"in on the host", P_HOST, P_OUT, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "in (0x|not device memory"},
    {"out on the host", P_IN, P_HOST, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "out (0x|not device memory"},
    {"in nowhere", P_NOTHING, P_OUT, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID, "not device memory"},
    {"in on another device", P_ELSEWHERE, P_OUT, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "in (0x|memory of device 5|on device 0"},
    {"out of another rank", P_IN, P_PEER, 4, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "out (0x|memory of device 1|on device 0"},
    {"more elements than memory holds", P_IN, P_IN, UINT64_MAX, SYMWIN_F32, 0, 0, 0, SYMWIN_INVALID,
     "count is 18446744073709551615"},
    {"a count whose bytes wrap", P_IN, P_IN, ((uint64_t)1 << 61) + 1, SYMWIN_F64, 0, 0, 0,
     SYMWIN_INVALID, "count is 2305843009213693953"},
    {"two-shot outside windows", P_PLAIN, P_OUT, 4, SYMWIN_F32, 0, SYMWIN_ALGO_TWOSHOT, 0,
     SYMWIN_UNSUPPORTED, "twoshot needs both buffers in windows"},
    {"multicast outside windows", P_IN, P_PLAIN, 4, SYMWIN_F32, 0, SYMWIN_ALGO_TWOSHOT_MC, 0,
     SYMWIN_UNSUPPORTED, "twoshot_mc needs both buffers in windows"},
    {"multicast in place", P_IN, P_IN, 4, SYMWIN_F32, 0, SYMWIN_ALGO_ONESHOT_MC, 0,
     SYMWIN_UNSUPPORTED, "oneshot_mc|in place"},
    {"copies outside windows", P_IN, P_PLAIN, 4, SYMWIN_F32, 0, SYMWIN_ALGO_COPIES, 0,
     SYMWIN_UNSUPPORTED, "copies needs both buffers in windows"},
    {"a product by multicast", P_IN, P_OUT, 4, SYMWIN_F32, SYMWIN_PROD, SYMWIN_ALGO_TWOSHOT_MC, 0,
     SYMWIN_UNSUPPORTED, "multicast cannot reduce f32 by prod"},
};

/* Only one rank calls: a wrong call fails before its rank joins the others. */
static void reduce_calls(struct caller *c, void *const places[PLACES])
{
    symwin_allreduce_options options = {.size = sizeof options - 1};
    symwin_comm *const comm = c->member.comm;
    symwin_collective_info info;
    char name[80];
    size_t i;

    for (i = 0; i < sizeof reductions / sizeof reductions[0]; i++) {
        const struct reduction *r = &reductions[i];

        options = (symwin_allreduce_options){
            .size = sizeof options, .algo = (symwin_algo)r->algo, .blocks = r->blocks};
        snprintf(name, sizeof name, "symwin_allreduce_with: %s", r->name);
        host_expect(name,
                    symwin_allreduce_with(comm, places[r->in], places[r->out], r->count,
                                          (symwin_type)r->type, (symwin_op)r->op, &options,
                                          c->stream),
                    r->want, r->words);
        tap_ok(host_error_has("symwin_allreduce_with: "), "%s: the text names the call", name);
        if (r->algo != 0 || r->blocks != 0)
            continue;
        snprintf(name, sizeof name, "symwin_allreduce: %s", r->name);
        host_expect(name,
                    symwin_allreduce(comm, places[r->in], places[r->out], r->count,
                                     (symwin_type)r->type, (symwin_op)r->op, c->stream),
                    r->want, r->words);
    }
    options = (symwin_allreduce_options){.size = sizeof options, .threads = -1};
    host_expect(
        "symwin_allreduce_with: threads -1",
        symwin_allreduce_with(comm, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, &options, c->stream),
        SYMWIN_INVALID, "symwin_allreduce|threads is -1");
    options.threads = 100000;
    host_expect(
        "symwin_allreduce_with: more threads than a block takes",
        symwin_allreduce_with(comm, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, &options, c->stream),
        SYMWIN_UNSUPPORTED, "symwin_allreduce|100000 threads were asked for|; pass no more, or 0");
    options = (symwin_allreduce_options){.size = sizeof options - 1};
    host_expect(
        "symwin_allreduce_with: options of another size",
        symwin_allreduce_with(comm, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, &options, c->stream),
        SYMWIN_INVALID, "symwin_allreduce|options->size");
    host_expect(
        "symwin_allreduce_query: a type that is none",
        symwin_allreduce_query(comm, c->in, c->out, 4, (symwin_type)99, SYMWIN_SUM, NULL, &info),
        SYMWIN_INVALID, "symwin_allreduce_query: there is no type 99");
    host_expect("symwin_allreduce_query: in NULL",
                symwin_allreduce_query(comm, NULL, c->out, 4, SYMWIN_F32, SYMWIN_SUM, NULL, &info),
                SYMWIN_INVALID, "symwin_allreduce_query: in is NULL");
    host_expect("symwin_allreduce: NULL comm",
                symwin_allreduce(NULL, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, c->stream),
                SYMWIN_INVALID, "symwin_allreduce|comm is NULL");
    host_expect("symwin_allreduce: nothing",
                symwin_allreduce(comm, NULL, NULL, 0, SYMWIN_F32, SYMWIN_SUM, c->stream), SYMWIN_OK,
                "");
}

static void reduce_with_places(struct caller *c, void *peer)
{
    static uint32_t on_host[4];
    void *places[PLACES] = {
        [P_IN] = c->in,
        [P_OUT] = c->out,
        [P_OUT_BEFORE] = (char *)c->out - 4,
        [P_IN_BYTE] = host_at(c->in, 1),
        [P_IN_WORD] = c->in + 1,
        [P_IN_LAST] = c->in + 2 * WORDS - 1,
        [P_HOST] = on_host,
        [P_PEER] = peer,
        [P_NOTHING] = (void *)(uintptr_t)0x40000,
    };
    CUdeviceptr plain = 0, elsewhere = 0;
    struct sw_scope here, there;

    host_must(sw_scope_enter(5, &there), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&elsewhere, 4096), "cuMemAlloc");
    host_must(sw_scope_enter(c->member.device, &here), "sw_scope_enter");
    host_must_cuda(sw_drv.cuMemAlloc(&plain, 4096), "cuMemAlloc");
    places[P_PLAIN] = (void *)(uintptr_t)plain;
    places[P_ELSEWHERE] = (void *)(uintptr_t)elsewhere;
    reduce_calls(c, places);
    host_must_cuda(sw_drv.cuMemFree(plain), "cuMemFree");
    sw_scope_leave(&here);
    host_must_cuda(sw_drv.cuMemFree(elsewhere), "cuMemFree");
    sw_scope_leave(&there);
}

/* ---- streams and copies ---- */

static void stream_calls(struct caller *c)
{
    struct CUstream_st *stream = SENTINEL;
    uint32_t word = 0x5e5e5e5e;

    host_expect("symwin_stream_create: NULL", symwin_stream_create(0, NULL), SYMWIN_INVALID,
                "symwin_stream_create|stream is NULL");
    host_expect("symwin_stream_create: device", symwin_stream_create(8, &stream), SYMWIN_INVALID,
                "symwin_stream_create|no device 8");
    host_expect("symwin_stream_create: no current context",
                symwin_stream_create(SYMWIN_DEVICE_CURRENT, &stream), SYMWIN_INVALID,
                "symwin_stream_create|current CUDA context");
    tap_ok(stream == SENTINEL, "symwin_stream_create: the result is untouched");
    host_expect("symwin_stream_destroy: NULL", symwin_stream_destroy(0, NULL), SYMWIN_INVALID,
                "symwin_stream_destroy|stream is NULL");
    host_expect("symwin_stream_destroy: device", symwin_stream_destroy(-5, c->stream),
                SYMWIN_INVALID, "symwin_stream_destroy|no device -5");
    host_expect("symwin_stream_synchronize: device", symwin_stream_synchronize(99, c->stream),
                SYMWIN_INVALID, "symwin_stream_synchronize|no device 99");
    host_must(symwin_stream_create(c->member.device, &stream), "symwin_stream_create");
    host_must(symwin_stream_destroy(c->member.device, stream), "symwin_stream_destroy");
    host_expect(
        "symwin_stream_destroy: a destroyed stream",
        symwin_stream_destroy(c->member.device, stream), SYMWIN_DRIVER,
        "symwin_stream_destroy: cuStreamDestroy|pass a stream of device|not been destroyed");
    host_expect("symwin_allreduce: a destroyed stream",
                symwin_allreduce(c->member.comm, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, stream),
                SYMWIN_DRIVER, "symwin_allreduce: cuStreamGetCaptureInfo|has not been destroyed");
    host_must(symwin_stream_create(c->member.device + 1, &stream), "symwin_stream_create");
    host_expect("symwin_allreduce: another device's stream",
                symwin_allreduce(c->member.comm, c->in, c->out, 4, SYMWIN_F32, SYMWIN_SUM, stream),
                SYMWIN_DRIVER, "symwin_allreduce: |pass a stream of device 0 that has not been");
    host_must(symwin_stream_destroy(c->member.device + 1, stream), "symwin_stream_destroy");
    host_expect("symwin_memcpy: dst NULL", symwin_memcpy(0, NULL, c->in, 4, c->stream),
                SYMWIN_INVALID, "symwin_memcpy|dst is NULL");
    host_expect("symwin_memcpy: src NULL", symwin_memcpy(0, &word, NULL, 4, c->stream),
                SYMWIN_INVALID, "symwin_memcpy|src is NULL");
    host_expect("symwin_memcpy: device", symwin_memcpy(8, &word, c->in, 4, c->stream),
                SYMWIN_INVALID, "symwin_memcpy|no device 8");
    host_expect("symwin_memcpy: nothing", symwin_memcpy(0, NULL, NULL, 0, c->stream), SYMWIN_OK,
                "");
    TAP_EQ("symwin_memcpy: the result is untouched", word, 0x5e5e5e5e);
}

/* A stream of another device, once there is a call to wait for. */
static void after_a_call(struct caller *c)
{
    const struct member *m = &c->member;
    struct CUstream_st *stream;
    char words[80];

    snprintf(words, sizeof words, "cuStreamWaitValue32|pass a stream of device %d that has not",
             m->device);
    host_must(symwin_stream_create(m->device + 1, &stream), "symwin_stream_create");
    host_expect("symwin_comm_follow: another device's stream", symwin_comm_follow(m->comm, stream),
                SYMWIN_DRIVER, words);
    host_must(symwin_stream_destroy(m->device + 1, stream), "symwin_stream_destroy");
}

/* ---- two ranks, one of which makes every wrong call ---- */

static void run_wrong(struct harness_team *team, int rank, void *arg)
{
    static void *peer; /* rank 1's memory */
    symwin_window *window = SENTINEL;
    struct caller c;

    (void)arg;
    caller_open(&c, team, rank, 20000, 20000);
    if (rank == 1)
        peer = c.in;
    harness_barrier(team);
    host_expect("symwin_window_register: no result on one rank",
                symwin_window_register(c.member.comm, c.in, 4, 0, rank == 1 ? NULL : &window),
                SYMWIN_INVALID, "symwin_window_register: rank 1: window is NULL");
    tap_ok(window == SENTINEL, "symwin_window_register: the result is untouched");
    if (rank == 0) {
        window_calls(&c);
        reduce_with_places(&c, peer);
        stream_calls(&c);
    }
    harness_barrier(team);
    TAP_EQ("the window of before is the only one", member_query(&c.member, c.window).bytes,
           c.member.bytes);
    caller_expect_sum(&c, "after all that");
    after_a_call(&c);
    caller_close(&c);
}

/* Multicast and algorithms in a communicator whose ranks share a device. */
static void run_shared_device(struct harness_team *team, int rank, void *arg)
{
    const symwin_comm_options options = {.size = sizeof options, .timeout_ms = 20000};
    struct caller c = {.member = {.team = team, .rank = rank, .bytes = 2 * WORDS * 4}};

    (void)arg;
    host_must(symwin_comm_create(&team->id, 2, rank, 0, &options, &c.member.comm),
              "symwin_comm_create");
    host_must(symwin_stream_create(0, &c.stream), "symwin_stream_create");
    c.member.memory = host_alloc(0, c.member.bytes);
    c.in = c.member.memory;
    c.out = c.in + WORDS;
    c.window = member_window(&c.member, 0, c.member.bytes);
    host_expect("multicast where ranks share a device", caller_reduce(&c, SYMWIN_ALGO_TWOSHOT_MC),
                SYMWIN_UNSUPPORTED, "symwin_allreduce|twoshot_mc needs windows with multicast");
    caller_expect_sum(&c, "after that");
    harness_barrier(team);
    caller_close(&c);
}

int main(void)
{
    struct harness_leaks before;

    harness_start();
    tap_ok(symwin_last_error()[0] == '\0', "no error before the first");
    before = harness_leaks_now();
    driver_calls();
    names();
    memory_calls();
    comm_calls();
    slots_too_large();
    harness_run(2, run_wrong, NULL);
    harness_no_leaks("two ranks", &before);
    harness_run(2, run_shared_device, NULL);
    harness_no_leaks("a shared device", &before);
    return tap_done();
}
