/* The settings of the pool, and a full device: each in its own process. On GPUs all run except the
 * full device. */
#include "child.h"
#include "pool_memory.h"

static void limit(void)
{
    const symwin_mem_usage start = usage_of(0);
    void *ptrs[8];
    int i;

    for (i = 0; i < 8; i++)
        ptrs[i] = alloc_with(0, 4 * MIB, 0);
    free_all(ptrs, 8);
    TAP_EQ("SYMWIN_MEM_KEEP: no more than that is kept", usage_of(0).kept_bytes, 12 * (size_t)MIB);
    TAP_EQ("and what was freed last", alloc_with(0, 4 * MIB, 0) == ptrs[7], 1);
    host_must(symwin_mem_free(ptrs[7]), "symwin_mem_free");
    TAP_EQ("created", usage_of(0).creates - start.creates, 8);
    TAP_EQ("given back", usage_of(0).releases - start.releases, 5);
}

static void without_pool(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *a = alloc_with(0, 1, 0), *b = alloc_with(0, 1, 0);

    tap_ok(described(a).base == a && described(b).base == b && described(a).bytes == GRANULE,
           "SYMWIN_MEM_POOL=0: every allocation has memory of its own");
    free_all((void *[]){a, b}, 2);
    TAP_EQ("and nothing is kept", usage_of(0).reserved_bytes, 0);
    harness_no_leaks("without a pool", &before);
}

/* Nothing that takes memory takes its guard. */
static void guarded(void)
{
    char *ptr = alloc_with(0, 3000, 0);
    symwin_registration *range = NULL;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    symwin_unique_id id;

    TAP_EQ("the size is without the guard", described(ptr).size, 3000);
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    host_expect("no window has it", symwin_window_register(comm, ptr, 3001, 0, &window),
                SYMWIN_INVALID, "3001 bytes|by 1 bytes");
    host_expect("nor lies in it", symwin_window_register(comm, ptr + 3072, 16, 0, &window),
                SYMWIN_INVALID, "16 bytes|by 16 bytes");
    host_expect("no registered buffer has it", symwin_register(comm, ptr, 3001, &range),
                SYMWIN_INVALID, "3001 bytes|by 1");
    host_expect("nor lies in it", symwin_register(comm, ptr + 3072, 16, &range), SYMWIN_INVALID,
                "16 bytes|by 16");
    host_must(symwin_window_register(comm, ptr, 3000, 0, &window), "symwin_window_register");
    host_must(symwin_window_deregister(comm, window), "symwin_window_deregister");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
}

static void debug(void)
{
    static const size_t sizes[] = {1, 512, 4096, GRANULE - 512, GRANULE - 511, GRANULE, 5 * MIB};
    const struct harness_leaks before = harness_leaks_now();
    size_t i;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t bytes = sizes[i];
        unsigned char *ptr = alloc_with(0, bytes, 0), byte = 0;
        char words[96];

        host_must(host_copy(0, &byte, ptr + bytes - 1, 1), "copy");
        TAP_EQ("new memory is filled", byte, 0xcd);
        byte = 1;
        host_must(host_copy(0, ptr + bytes - 1, &byte, 1), "copy");
        host_expect("to the last byte", symwin_mem_free(ptr), SYMWIN_OK, "");
        ptr = alloc_with(0, bytes, 0);
        host_must(host_copy(0, ptr + bytes + 511, &byte, 1), "copy");
        snprintf(words, sizeof words, "symwin_mem_free|byte %zu of the allocation of %zu bytes",
                 bytes + 511, bytes);
        host_expect("and past it", symwin_mem_free(ptr), SYMWIN_INVALID, words);
        host_expect("which is free then", symwin_mem_free(ptr), SYMWIN_INVALID, "freed before");
    }
    {
        unsigned char *ptr = alloc_with(0, 3000, 0), byte = 0;
        void *other = alloc_with(0, 3000, 0);

        host_must(symwin_mem_free(ptr), "symwin_mem_free");
        host_must(host_copy(0, &byte, ptr + 100, 1), "copy");
        TAP_EQ("freed memory is filled", byte, 0xdd);
        host_must(symwin_mem_free(other), "symwin_mem_free");
    }
    guarded();
    harness_no_leaks("debug", &before);
}

/* 64 MiB per device: a chunk leaves no room for a second one. */
static void full_device(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *chunk = alloc_with(0, 1, 0);
    void *ptrs[31], *ptr = SENTINEL;
    symwin_comm *comm = NULL;
    symwin_unique_id id;
    int i;

    TAP_EQ("a chunk where there is room for it", described(chunk).bytes, CHUNK);
    host_expect("then there is none left", symwin_mem_alloc(0, GRANULE, 0, &ptr), SYMWIN_NO_MEMORY,
                "symwin_mem_alloc|2097152 bytes|device 0");
    host_must(symwin_mem_free(chunk), "symwin_mem_free");
    for (i = 0; i < 31; i++)
        ptrs[i] = alloc_with(0, GRANULE, 0);
    tap_ok(1, "what is kept is given back where the device has no more");
    host_expect("an error", symwin_mem_alloc(0, 0, 0, &ptr), SYMWIN_INVALID, "bytes is 0");
    ptr = alloc_with(0, 1, 0);
    tap_ok(strstr(symwin_last_error(), "bytes is 0") != NULL,
           "the last error is that of a call that failed: %s", symwin_last_error());
    tap_ok(described(ptr).base == ptr && described(ptr).bytes == GRANULE,
           "without room for a chunk, memory of its own");
    free_all(ptrs, 31);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    TAP_EQ("all of the device is kept", usage_of(0).kept_bytes, 64 * (size_t)MIB);
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_expect("a communicator", symwin_comm_create(&id, 1, 0, 0, NULL, &comm), SYMWIN_OK, "");
    symwin_comm_destroy(comm);
    harness_no_leaks("a full device", &before);
}

static void part(const char *name)
{
    if (strcmp(name, "without a pool") == 0)
        without_pool();
    else if (strcmp(name, "debug") == 0)
        debug();
    else if (strcmp(name, "12 MiB") == 0)
        limit();
    else
        full_device();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        const char *settings[3];
    } parts[] = {
        {"without a pool", {"SYMWIN_MEM_POOL=0", NULL}},
        {"debug", {"SYMWIN_MEM_DEBUG=1", NULL}},
        {"12 MiB", {"SYMWIN_MEM_KEEP=12M", NULL}},
        {"a full device", {"SYMWIN_EMU_MEM=64M", "SYMWIN_MEM_KEEP=64M", NULL}},
    };
    size_t i;

    harness_start();
    devices = harness_device_count();
    if (child_part(argc, argv) != NULL) {
        part(child_part(argc, argv));
        return tap_done();
    }
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (sw_driver_is_emulated() || strncmp(parts[i].settings[0], "SYMWIN_EMU", 10) != 0)
            child_run(parts[i].name, parts[i].settings);
    return tap_done();
}
