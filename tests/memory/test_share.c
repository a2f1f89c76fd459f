/* Shared memory: export and import of both handle types, in this process and in another. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "child.h"
#include "harness.h"

#define SENTINEL ((void *)(uintptr_t)0x5e5e5e5e)

static symwin_mem_handle exported(const void *ptr, unsigned type)
{
    symwin_mem_handle handle = {.fd = -1};

    host_must(symwin_mem_export(ptr, type, &handle), "symwin_mem_export");
    return handle;
}

static symwin_mem_info described(const void *ptr)
{
    symwin_mem_info info = {0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info;
}

/* ---- export ---- */

static void exports(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, 2 * GRANULE + 1);
    const symwin_mem_handle a = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    const symwin_mem_handle b = exported(host_at(ptr, GRANULE + 3), SYMWIN_HANDLE_POSIX_FD);

    tap_ok(a.type == SYMWIN_HANDLE_POSIX_FD && a.fd >= 0 && a.bytes == 3 * GRANULE,
           "an export says what it is");
    tap_ok(b.fd >= 0 && b.fd != a.fd && b.bytes == 3 * GRANULE,
           "every export is a descriptor of its own, from inside too");
    tap_ok(fcntl(a.fd, F_GETFD) >= 0 && fcntl(b.fd, F_GETFD) >= 0, "both are open");
    TAP_EQ("one is closed", close(a.fd), 0);
    tap_ok(fcntl(b.fd, F_GETFD) >= 0, "the other is not");
    close(b.fd);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("exports", &before);
}

static void wrong_exports(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, 1);
    struct host_raw closed = host_raw_alloc(0, GRANULE, 0);
    struct host_raw open = host_raw_alloc(0, GRANULE, SYMWIN_HANDLE_POSIX_FD);
    int on_stack = 0;
    const struct {
        const char *name;
        const void *ptr;
        unsigned type;
        symwin_status want;
        const char *words;
    } cases[] = {
        {"type 0", ptr, 0, SYMWIN_INVALID, "symwin_mem_export|0 is not a handle type"},
        {"type 2", ptr, 2, SYMWIN_INVALID, "symwin_mem_export|2 is not a handle type"},
        {"both types", ptr, 9, SYMWIN_INVALID, "symwin_mem_export|9 is not a handle type"},
        {"NULL", NULL, 1, SYMWIN_INVALID, "symwin_mem_export|ptr is NULL"},
        {"host memory", &on_stack, 1, SYMWIN_INVALID, "symwin_mem_export|VMM"},
        {"memory made for no handle", (void *)(uintptr_t)closed.ptr, 1, SYMWIN_UNSUPPORTED,
         "symwin_mem_export|handle types 0x0|0x1"},
        {"fabric of memory made for descriptors", (void *)(uintptr_t)open.ptr, 8,
         SYMWIN_UNSUPPORTED, "symwin_mem_export|handle types 0x1|0x8"},
    };
    symwin_mem_handle handle, untouched;
    size_t i;

    memset(&handle, 0x5e, sizeof handle);
    untouched = handle;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        host_expect(cases[i].name, symwin_mem_export(cases[i].ptr, cases[i].type, &handle),
                    cases[i].want, cases[i].words);
        tap_ok(memcmp(&handle, &untouched, sizeof handle) == 0, "%s: the result is untouched",
               cases[i].name);
    }
    host_expect("no result", symwin_mem_export(ptr, 1, NULL), SYMWIN_INVALID, "handle is NULL");
    host_expect("another allocator's memory",
                symwin_mem_export((void *)(uintptr_t)open.ptr, 1, &handle), SYMWIN_OK, "");
    close(handle.fd);
    host_raw_free(&closed);
    host_raw_free(&open);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("wrong exports", &before);
}

/* ---- import in the same process ---- */

static void imports(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(1, 2 * GRANULE);
    symwin_mem_handle handle = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    symwin_mem_info original = described(ptr), copy;
    void *near = NULL;
    void *far = NULL;

    host_expect("import on the same device", symwin_mem_import(1, &handle, &near), SYMWIN_OK, "");
    host_expect("the handle is not consumed", symwin_mem_import(4, &handle, &far), SYMWIN_OK, "");
    close(handle.fd);
    copy = described(near);
    tap_ok(near != ptr && far != ptr && near != far, "every import has an address of its own");
    tap_ok(copy.owned == 2 && copy.device == 1 && copy.bytes == original.bytes && copy.base == near,
           "an import is described as one");
    tap_ok(copy.buffer_id != original.buffer_id && described(far).buffer_id != copy.buffer_id,
           "and a buffer id of its own");
    tap_ok(described(far).device == 1, "memory stays where it is, whoever imports it");
    host_put_u32(1, host_at(ptr, GRANULE), 11);
    TAP_EQ("what is written to the original is in an import",
           host_get_u32(1, host_at(near, GRANULE)), 11);
    TAP_EQ("on another device too", host_get_u32(4, host_at(far, GRANULE)), 11);
    host_put_u32(4, far, 12);
    TAP_EQ("and the other way round", host_get_u32(1, ptr), 12);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    TAP_EQ("the memory outlives its owner's free", host_get_u32(1, near), 12);
    host_must(symwin_mem_free(near), "symwin_mem_free of an import");
    host_expect("an import is freed once", symwin_mem_free(near), SYMWIN_INVALID,
                "symwin_mem_free");
    host_must(symwin_mem_free(far), "symwin_mem_free of an import");
    harness_no_leaks("imports", &before);
}

static void descriptor_keeps_memory(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, 1);
    symwin_mem_handle handle = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    symwin_mem_handle again;
    void *copy = NULL;

    host_put_u32(0, ptr, 99);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    host_expect("import after the owner's free", symwin_mem_import(0, &handle, &copy), SYMWIN_OK,
                "");
    TAP_EQ("a descriptor keeps the memory", host_get_u32(0, copy), 99);
    close(handle.fd);
    host_expect("an import is not exported in turn",
                symwin_mem_export(copy, SYMWIN_HANDLE_POSIX_FD, &again), SYMWIN_UNSUPPORTED,
                "symwin_mem_export|export it where it was allocated");
    host_must(symwin_mem_free(copy), "symwin_mem_free");
    harness_no_leaks("a descriptor keeps memory", &before);
}

static void imports_are_windows(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, GRANULE);
    symwin_mem_handle handle = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    symwin_window *on_original = NULL;
    symwin_window *on_copy = NULL;
    symwin_comm *comm = NULL;
    symwin_comm_info info;
    symwin_unique_id id;
    void *copy = NULL;

    host_must(symwin_mem_import(0, &handle, &copy), "symwin_mem_import");
    close(handle.fd);
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    host_expect("a window on an import", symwin_window_register(comm, copy, 64, 0, &on_copy),
                SYMWIN_OK, "");
    host_expect("a window on the original", symwin_window_register(comm, ptr, 64, 0, &on_original),
                SYMWIN_OK, "");
    host_must(symwin_comm_query(comm, &info), "symwin_comm_query");
    TAP_EQ("are two allocations: the driver does not tell that they are one", info.allocations, 2);
    TAP_EQ("the import is registered once", described(copy).registrations, 1);
    host_expect("free the import under its window", symwin_mem_free(copy), SYMWIN_BUSY,
                "by windows, registrations, channels or captured graphs");
    host_must(symwin_window_deregister(comm, on_copy), "symwin_window_deregister");
    host_expect("free the import", symwin_mem_free(copy), SYMWIN_OK, "");
    host_expect("the original is still busy", symwin_mem_free(ptr), SYMWIN_BUSY, "symwin_mem_free");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("imports are windows", &before);
}

/* ---- wrong imports ---- */

static void wrong_imports(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(0, GRANULE);
    const symwin_mem_handle good = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int closed = dup(good.fd);
    const struct {
        const char *name;
        int device;
        unsigned type;
        int fd;
        size_t bytes;
        symwin_status want;
        const char *words;
    } cases[] = {
        {"type 0", 0, 0, good.fd, GRANULE, SYMWIN_INVALID, "symwin_mem_import|not a handle type"},
        {"type 2", 0, 2, good.fd, GRANULE, SYMWIN_INVALID, "symwin_mem_import|not a handle type"},
        {"0 bytes", 0, 1, good.fd, 0, SYMWIN_INVALID, "symwin_mem_import|0 bytes"},
        {"no descriptor", 0, 1, -1, GRANULE, SYMWIN_INVALID, "symwin_mem_import|fd -1"},
        {"a closed descriptor", 0, 1, closed, GRANULE, SYMWIN_INVALID,
         "symwin_mem_import|names no"},
        {"a regular file", 0, 1, file, GRANULE, SYMWIN_INVALID, "symwin_mem_import|names no"},
        {"more bytes than the memory has", 0, 1, good.fd, 2 * GRANULE, SYMWIN_INVALID,
         "symwin_mem_import|4194304"},
        {"bytes that are no granules", 0, 1, good.fd, GRANULE - 1, SYMWIN_INVALID,
         "symwin_mem_import|2097151"},
        {"all bytes there are", 0, 1, good.fd, SIZE_MAX, SYMWIN_INVALID, "symwin_mem_import"},
        {"no such device", 77, 1, good.fd, GRANULE, SYMWIN_INVALID,
         "symwin_mem_import|no device 77"},
        {"no current context", SYMWIN_DEVICE_CURRENT, 1, good.fd, GRANULE, SYMWIN_INVALID,
         "symwin_mem_import|current CUDA context"},
    };
    void *out = SENTINEL;
    size_t i;

    close(closed);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const symwin_mem_handle handle = {cases[i].type, cases[i].fd, cases[i].bytes, {0}, 0};

        host_expect(cases[i].name, symwin_mem_import(cases[i].device, &handle, &out), cases[i].want,
                    cases[i].words);
        tap_ok(out == SENTINEL, "%s: the out-pointer is untouched", cases[i].name);
    }
    host_expect("no handle", symwin_mem_import(0, NULL, &out), SYMWIN_INVALID, "handle is NULL");
    host_expect("nowhere to put the address", symwin_mem_import(0, &good, NULL), SYMWIN_INVALID,
                "ptr is NULL");
    host_expect("the good one still works", symwin_mem_import(0, &good, &out), SYMWIN_OK, "");
    host_must(symwin_mem_free(out), "symwin_mem_free");
    close(good.fd);
    close(file);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("wrong imports", &before);
}

/* ---- fabric handles: each in its own process, since a refusal is remembered ---- */

static unsigned alloc_calls;

static void *count_alloc(void *ptr)
{
    sw_emu_fail_nth(1000000, CUDA_ERROR_UNKNOWN, 0, 0); /* counts calls, fails none */
    *(void **)ptr = host_alloc(0, GRANULE);
    alloc_calls = sw_emu_calls();
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    return NULL;
}

/* In a new thread, which has a new pool. */
static unsigned calls_of_alloc(void **ptr)
{
    pthread_t id;

    if (pthread_create(&id, NULL, count_alloc, ptr) != 0 || pthread_join(id, NULL) != 0)
        abort();
    return alloc_calls;
}

static void fabric_refused(int claims, symwin_status import_gives)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_mem_handle handle = {SYMWIN_HANDLE_FABRIC, -1, GRANULE, {0}, 0};
    symwin_device_info device;
    void *first, *second;
    unsigned calls = calls_of_alloc(&first);
    void *out = SENTINEL;

    host_must(symwin_device_query(0, &device), "symwin_device_query");
    TAP_EQ("what the device claims", device.fabric, claims);
    TAP_EQ("an allocation does without", described(first).handle_types, SYMWIN_HANDLE_POSIX_FD);
    TAP_EQ("a refusal is asked for once", calls - calls_of_alloc(&second), claims);
    host_expect("a fabric export", symwin_mem_export(first, SYMWIN_HANDLE_FABRIC, &handle),
                SYMWIN_UNSUPPORTED, "symwin_mem_export|0x8");
    host_expect("a fabric import", symwin_mem_import(0, &handle, &out), import_gives,
                "symwin_mem_import");
    tap_ok(out == SENTINEL, "the out-pointer is untouched");
    host_must(symwin_mem_free(first), "symwin_mem_free");
    host_must(symwin_mem_free(second), "symwin_mem_free");
    harness_no_leaks("fabric handles refused", &before);
}

static void fabric_works(void)
{
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(2, GRANULE);
    symwin_mem_handle handle = exported(ptr, SYMWIN_HANDLE_FABRIC);
    symwin_mem_handle forged = handle;
    void *copy = SENTINEL;

    TAP_EQ("an allocation takes both", described(ptr).handle_types,
           SYMWIN_HANDLE_POSIX_FD | SYMWIN_HANDLE_FABRIC);
    tap_ok(handle.type == SYMWIN_HANDLE_FABRIC && handle.fd == -1 && handle.bytes == GRANULE,
           "a fabric export says what it is");
    forged.fabric[17] ^= 1;
    host_expect("a forged handle", symwin_mem_import(3, &forged, &copy), SYMWIN_INVALID,
                "symwin_mem_import|names no");
    memset(forged.fabric, 0, sizeof forged.fabric);
    host_expect("a handle of zeros", symwin_mem_import(3, &forged, &copy), SYMWIN_INVALID,
                "symwin_mem_import|names no");
    tap_ok(copy == SENTINEL, "the out-pointer is untouched");
    host_expect("the true one", symwin_mem_import(3, &handle, &copy), SYMWIN_OK, "");
    tap_ok(described(copy).buffer_id != described(ptr).buffer_id, "a buffer id of its own");
    host_put_u32(2, ptr, 1234);
    TAP_EQ("one memory", host_get_u32(3, copy), 1234);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    host_must(symwin_mem_free(copy), "symwin_mem_free");
    copy = SENTINEL;
    host_must(symwin_mem_trim(2, 0), "symwin_mem_trim");
    host_expect("a handle keeps no memory", symwin_mem_import(3, &handle, &copy), SYMWIN_INVALID,
                "symwin_mem_import|names no");
    tap_ok(copy == SENTINEL, "the out-pointer is untouched");
    harness_no_leaks("fabric handles", &before);
}

/* Host memory that another allocator has exported belongs to no device. */
static void imports_of_the_host(void)
{
    const struct harness_leaks before = harness_leaks_now();
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
    symwin_mem_handle handle = {.type = SYMWIN_HANDLE_POSIX_FD, .fd = -1, .bytes = GRANULE};
    CUmemGenericAllocationHandle memory;
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    symwin_unique_id id;
    void *copy = NULL;

    host_must_cuda(sw_drv.cuMemCreate(&memory, GRANULE, &prop, 0), "cuMemCreate");
    host_must_cuda(sw_drv.cuMemExportToShareableHandle(&handle.fd, memory,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "cuMemExportToShareableHandle");
    host_must(symwin_mem_import(0, &handle, &copy), "symwin_mem_import");
    close(handle.fd);
    TAP_EQ("memory of the host is no device's", described(copy).device, -1);
    host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
    host_must(symwin_comm_create(&id, 1, 0, 0, NULL, &comm), "symwin_comm_create");
    host_expect("nor a window", symwin_window_register(comm, copy, GRANULE, 0, &window),
                SYMWIN_INVALID, "symwin_window_register|memory of device -1");
    symwin_comm_destroy(comm);
    host_must(symwin_mem_free(copy), "symwin_mem_free");
    host_must_cuda(sw_drv.cuMemRelease(memory), "cuMemRelease");
    harness_no_leaks("memory of the host", &before);
}

/* ---- another process ---- */

/* One message: the handle, with its descriptor if it has one. */
union control {
    struct cmsghdr head; /* for alignment */
    char bytes[CMSG_SPACE(sizeof(int))];
};

static int send_handle(int to, const symwin_mem_handle *handle)
{
    union control control = {.bytes = {0}};
    struct iovec data = {(void *)(uintptr_t)handle, sizeof *handle};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    struct cmsghdr *head;

    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof handle->fd);
    memcpy(CMSG_DATA(head), &handle->fd, sizeof handle->fd);
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *handle;
}

static int receive_handle(int from, symwin_mem_handle *handle)
{
    union control control = {.bytes = {0}};
    struct iovec data = {handle, sizeof *handle};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    struct cmsghdr *head;

    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *handle)
        return 0;
    head = CMSG_FIRSTHDR(&message);
    if (head == NULL || head->cmsg_type != SCM_RIGHTS ||
        (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        return 0;
    memcpy(&handle->fd, CMSG_DATA(head), sizeof handle->fd);
    return 1;
}

enum { WORDS = 3 * GRANULE / 4 };

static uint32_t word_at(uint32_t seed, uint32_t i)
{
    return (i + seed) * 2654435761u;
}

static void fill(int device, void *ptr, uint32_t seed)
{
    uint32_t *words = malloc(WORDS * sizeof *words);
    uint32_t i;

    for (i = 0; i < WORDS; i++)
        words[i] = word_at(seed, i);
    host_must(host_copy(device, ptr, words, WORDS * sizeof *words), "copy to the device");
    free(words);
}

static uint32_t differences(int device, const void *ptr, uint32_t seed)
{
    uint32_t *words = malloc(WORDS * sizeof *words);
    uint32_t wrong = 0;
    uint32_t i;

    host_must(host_copy(device, words, ptr, WORDS * sizeof *words), "copy from the device");
    for (i = 0; i < WORDS; i++)
        wrong += words[i] != word_at(seed, i);
    free(words);
    return wrong;
}

static void other_process(void)
{
    const struct harness_leaks before = harness_leaks_now();
    symwin_mem_handle handle = {.fd = -1};
    symwin_mem_handle wrong;
    void *ptr = SENTINEL;

    tap_ok(receive_handle(CHILD_FD, &handle), "a handle comes by SCM_RIGHTS");
    wrong = handle;
    wrong.fd = CHILD_FD;
    host_expect("the socket itself is no handle", symwin_mem_import(6, &wrong, &ptr),
                SYMWIN_INVALID, "names no");
    tap_ok(ptr == SENTINEL, "the out-pointer is untouched");
    host_expect("import in another process", symwin_mem_import(6, &handle, &ptr), SYMWIN_OK, "");
    close(handle.fd);
    tap_ok(described(ptr).owned == 2 && described(ptr).bytes == 3 * GRANULE &&
               described(ptr).device == 5,
           "it is described as an import");
    TAP_EQ("every word is there", differences(6, ptr, 1), 0);
    fill(6, ptr, 2);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("the other process", &before);
}

static void across_processes(void)
{
    static const char *const no_settings[] = {NULL};
    const struct harness_leaks before = harness_leaks_now();
    void *ptr = host_alloc(5, 3 * GRANULE);
    symwin_mem_handle handle;
    struct child child;
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        tap_ok(0, "socketpair: %s", strerror(errno));
        return;
    }
    fill(5, ptr, 1);
    child = child_start("another process", no_settings, ends[1]);
    close(ends[1]);
    handle = exported(ptr, SYMWIN_HANDLE_POSIX_FD);
    tap_ok(send_handle(ends[0], &handle), "a handle goes by SCM_RIGHTS");
    close(handle.fd);
    close(ends[0]);
    child_finish(&child, "another process");
    TAP_EQ("what it wrote is here", differences(5, ptr, 2), 0);
    host_must(symwin_mem_free(ptr), "symwin_mem_free");
    harness_no_leaks("across processes", &before);
}

static void run_part(const char *part)
{
    if (strcmp(part, "another process") == 0)
        other_process();
    else if (strcmp(part, "no fabric") == 0)
        fabric_refused(0, SYMWIN_UNSUPPORTED);
    else if (strcmp(part, "fabric not permitted") == 0)
        fabric_refused(1, SYMWIN_DENIED);
    else
        fabric_works();
}

int main(int argc, char **argv)
{
    static const char *const fabric[3][2] = {
        {"SYMWIN_EMU_FABRIC=0"}, {"SYMWIN_EMU_FABRIC=1"}, {"SYMWIN_EMU_FABRIC=2"}};

    harness_start();
    if (child_part(argc, argv) != NULL) {
        run_part(child_part(argc, argv));
        return tap_done();
    }
    exports();
    wrong_exports();
    imports();
    descriptor_keeps_memory();
    imports_are_windows();
    wrong_imports();
    imports_of_the_host();
    across_processes();
    child_run("no fabric", fabric[0]);
    child_run("fabric not permitted", fabric[1]);
    child_run("fabric", fabric[2]);
    return tap_done();
}
