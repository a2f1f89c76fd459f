/* Memory that travels between processes on the emulated driver: a descriptor over SCM_RIGHTS, whose
 * memory both see; owners that die; receivers of another shape; and passports that are forged. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../emu/share.h"
#include "conformance.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define OWNER_DEVICE 1

/* ---- the wire -------------------------------------------------------------------------------- */

static int send_fd(int to, int fd)
{
    char byte = 'f';
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header;

    memset(&control, 0, sizeof control);
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static int receive_fd(int from)
{
    char byte;
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header;
    int fd = -1;

    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    header = CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static int tell(int to)
{
    return send(to, "g", 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static int wait_for(int from)
{
    char byte;

    return recv(from, &byte, 1, 0) == 1 ? 0 : -1;
}

/* ---- children -------------------------------------------------------------------------------- */

/* Owns memory on OWNER_DEVICE, sends its descriptor, then takes turns with the parent, unless it is
 * to leave at once. */
static int child_owner(int socket, int stay)
{
    struct sw_emu_live live;
    struct conf_block block;
    int fd;

    conf_start();
    conf_block_make(&block, OWNER_DEVICE, 2 * conf.granule, FD);
    conf_must(conf_poke(block.va, 101), "cuMemcpyHtoD");
    conf_must(conf_poke(block.va + block.bytes - 4, 102), "cuMemcpyHtoD");
    fd = conf_export_fd(block.handle);
    if (send_fd(socket, fd) != 0)
        return 1;
    close(fd);
    if (!stay)
        return 0;
    if (wait_for(socket) != 0)
        return 2;
    if (conf_word(block.va + 8) != 103)
        return 3;
    conf_must(conf_poke(block.va + 12, 104), "cuMemcpyHtoD");
    if (tell(socket) != 0 || wait_for(socket) != 0)
        return 4;
    conf_block_drop(&block);
    sw_emu_live_count(&live); /* the memory itself is held by the parent's import */
    if (live.handle_refs == 0 && live.mappings == 0 && live.reservations == 0)
        return 0;
    sw_emu_live_print(STDERR_FILENO);
    return 5;
}

/* Imports a descriptor that it inherited; what the driver says. */
static int child_importer(int fd)
{
    CUmemGenericAllocationHandle handle = 0;
    CUresult result;

    conf_start();
    result = conf_import_fd(&handle, fd);
    if (result == CUDA_SUCCESS)
        conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    return (int)result;
}

static int child(const char *mode, const char *arg)
{
    const int fd = (int)strtol(arg, NULL, 10);

    if (strcmp(mode, "importer") == 0)
        return child_importer(fd);
    return child_owner(fd, strcmp(mode, "owner") == 0);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Starts a child that owns memory; the parent's end of a socket to it. */
static int owner_start(struct conf_child *process, const char *mode)
{
    char number[16];
    int ends[2], theirs;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 ||
        (theirs = dup(ends[1])) < 0) /* without CLOEXEC */
        conf_bail("socketpair");
    snprintf(number, sizeof number, "%d", theirs);
    conf_child_start(process, mode, number, NULL);
    close(theirs);
    close(ends[1]);
    return ends[0];
}

static size_t free_on_owner_device(void)
{
    size_t available = 0, total = 0;
    CUcontext ctx;

    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, OWNER_DEVICE), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxPushCurrent(ctx), "cuCtxPushCurrent");
    conf_must(sw_drv.cuMemGetInfo(&available, &total), "cuMemGetInfo");
    conf_must(sw_drv.cuCtxPopCurrent(&ctx), "cuCtxPopCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(OWNER_DEVICE), "cuDevicePrimaryCtxRelease");
    return available;
}

static void both_ways(void)
{
    struct conf_child process;
    struct sw_emu_live live;
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle = 0;
    const size_t bytes = 2 * conf.granule;
    const int socket = owner_start(&process, "owner");
    const int fd = receive_fd(socket);
    unsigned long long id = 0;
    const size_t before = free_on_owner_device();
    CUdeviceptr va;

    tap_ok(fd >= 0, "a descriptor arrives");
    conf_must(conf_import_fd(&handle, fd), "cuMemImportFromShareableHandle");
    close(fd);
    TAP_EQ("another process's memory is not ours to pay for", free_on_owner_device(), before);
    sw_emu_live_count(&live);
    TAP_EQ("it counts as an allocation here", live.allocations, 1);
    conf_must(sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, handle), "properties");
    TAP_EQ("the device travels with it", prop.location.id, OWNER_DEVICE);
    TAP_EQ("so do the handle types", prop.requestedHandleTypes, FD);
    va = conf_reserve(2 * bytes);
    TAP_EQ("and the size: a map of more is refused",
           conf_try_map(va, bytes + conf.granule, 0, handle, 0), NS);
    conf_must(sw_drv.cuMemAddressFree(va, 2 * bytes), "cuMemAddressFree");
    va = conf_map(handle, bytes);
    TAP_EQ("what the owner wrote first", conf_word(va), 101);
    TAP_EQ("what the owner wrote last", conf_word(va + bytes - 4), 102);
    conf_must(sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, va), "buffer id");
    tap_ok(id != 0, "it has a buffer id here");
    conf_must(conf_poke(va + 8, 103), "cuMemcpyHtoD");
    tap_ok(tell(socket) == 0 && wait_for(socket) == 0, "the owner reads what we wrote");
    TAP_EQ("what the owner wrote then", conf_word(va + 12), 104);
    tell(socket);
    conf_child_wait(&process);
    TAP_EQ("the owner ends well", process.status, 0);
    if (process.status != 0)
        printf("# %s\n", process.text);
    close(socket);
    TAP_EQ("the memory outlives its owner", conf_word(va + 12), 104);
    conf_unmap(va, bytes);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    TAP_EQ("nor ours to give back", free_on_owner_device(), before);
}

static void owner_gone(void)
{
    struct conf_child process;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    const size_t bytes = 2 * conf.granule;
    const int socket = owner_start(&process, "leaver");
    const int fd = receive_fd(socket);
    CUdeviceptr va;

    conf_child_wait(&process);
    TAP_EQ("an owner that leaves at once", process.status, 0);
    close(socket);
    TAP_EQ("import of its memory", conf_import_fd(&handle, fd), OK);
    TAP_EQ("and again", conf_import_fd(&again, fd), OK);
    close(fd);
    va = conf_map(again, bytes);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    TAP_EQ("the contents are there", conf_word(va), 101);
    conf_unmap(va, bytes);
}

/* The receiver has two devices, the memory is on the third. */
static void other_shape(void)
{
    static const char *const two[] = {"SYMWIN_EMU_DEVICES=2", NULL};
    static const char *const three[] = {"SYMWIN_EMU_DEVICES=3", NULL};
    const CUmemGenericAllocationHandle handle = conf_create(2, conf.granule, FD);
    const int ours = conf_export_fd(handle), fd = dup(ours);
    struct conf_child process;
    char number[16];
    int result;

    snprintf(number, sizeof number, "%d", fd);
    TAP_EQ("import where the device is", conf_child_run(&process, "importer", number, three), OK);
    result = conf_child_run(&process, "importer", number, two);
    tap_ok(result == IV || result == ID, "import where the device is not (got %d)", result);
    close(fd);
    close(ours);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

/* A file like the one that export gives, but the caller's to spoil; with its seals or without. */
static int copy_of(int fd, int sealed, off_t *bytes)
{
    const int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat about;
    char buffer[4096];

    if (copy < 0 || fstat(fd, &about) != 0 || ftruncate(copy, about.st_size) != 0)
        conf_bail("memfd_create");
    *bytes = about.st_size;
    for (off_t at = 0; at < about.st_size; at += (off_t)sizeof buffer) {
        const ssize_t got = pread(fd, buffer, sizeof buffer, at);

        if (got > 0 && pwrite(copy, buffer, (size_t)got, at) != got)
            conf_bail("pwrite");
    }
    if (sealed && fcntl(copy, F_ADD_SEALS, seals) != 0)
        conf_bail("F_ADD_SEALS");
    return copy;
}

static CUresult try_import(int fd)
{
    return conf_try_import((void *)(intptr_t)fd, FD);
}

/* What export did not make, import does not take: the passport behind the memory tells. */
static void forged(void)
{
    const CUmemGenericAllocationHandle handle = conf_create(conf.device, conf.granule, FD);
    const int fd = conf_export_fd(handle);
    unsigned taken = 0;
    unsigned char byte, spoilt;
    off_t bytes, at;
    int copy, unsealed;

    unsealed = copy_of(fd, 0, &bytes);
    copy = copy_of(fd, 1, &bytes);
    TAP_EQ("a copy is refused while the original lives", try_import(copy), IV);
    close(fd);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    TAP_EQ("it is taken afterwards: nothing tells them apart", try_import(copy), OK);
    TAP_EQ("a file that may be cut short is refused", try_import(unsealed), UNKNOWN);
    close(unsealed);
    for (size_t bit = 0; bit < 8 * sizeof(struct emu_passport); bit++) {
        at = (off_t)(conf.granule + bit / 8);
        if (pread(copy, &byte, 1, at) != 1)
            conf_bail("pread");
        spoilt = (unsigned char)(byte ^ 1u << bit % 8);
        if (pwrite(copy, &spoilt, 1, at) != 1)
            conf_bail("pwrite");
        taken += try_import(copy) != UNKNOWN;
        if (pwrite(copy, &byte, 1, at) != 1)
            conf_bail("pwrite");
    }
    TAP_EQ("spoilt in any one bit it is refused", taken, 0);
    taken = 0;
    for (at = 0; at < bytes; at += (off_t)conf.page) {
        if (at > (off_t)(4 * conf.page) && at < bytes - (off_t)(4 * conf.page))
            continue;
        close(copy);
        copy = memfd_create("short", MFD_CLOEXEC);
        if (copy < 0 || ftruncate(copy, at) != 0)
            conf_bail("memfd_create");
        taken += try_import(copy) != UNKNOWN;
    }
    TAP_EQ("an empty file of any length is refused", taken, 0);
    close(copy);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return child(argv[1], argv[2]);
    conf_emulate("8");
    conf_group("both ways", both_ways);
    conf_group("owner gone", owner_gone);
    conf_group("receiver of another shape", other_shape);
    conf_group("forged passports", forged);
    return conf_done(NULL);
}
