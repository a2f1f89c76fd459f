/* Memory shared between processes on the emulated driver: by a descriptor over SCM_RIGHTS or by
 * a fabric handle. Owners that die, receivers with other devices, and forged passports and
 * handles. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "conformance.h"
#include "emu/share.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define OWNER_DEVICE 1

static const char *const with_fabric[] = {"SYMWIN_EMU_FABRIC=2", NULL};

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
    if (wire_send_fd(socket, fd) != 0)
        return 1;
    close(fd);
    if (!stay)
        return 0;
    if (wire_wait_for(socket) != 0)
        return 2;
    if (conf_word(block.va + 8) != 103)
        return 3;
    conf_must(conf_poke(block.va + 12, 104), "cuMemcpyHtoD");
    if (wire_tell(socket) != 0 || wire_wait_for(socket) != 0)
        return 4;
    conf_block_drop(&block);
    sw_emu_live_count(&live); /* the parent's import keeps the memory itself */
    if (live.handle_refs == 0 && live.mappings == 0 && live.reservations == 0)
        return 0;
    sw_emu_live_print(STDERR_FILENO);
    return 5;
}

/* Owns memory and sends a fabric handle of it. Then follows orders until the parent closes the
 * socket: 'c': check the parent's word and write one; 'd': drop the memory except for a descriptor;
 * 'x': close that too. Answers each order. */
static int child_fabric(int socket)
{
    struct conf_block block;
    CUmemFabricHandle handle;
    struct sw_emu_live live;
    int fd, wrong = 0;
    char order;

    conf_start();
    conf_block_make(&block, OWNER_DEVICE, conf.granule, (unsigned)FABRIC | (unsigned)FD);
    fd = conf_export_fd(block.handle);
    conf_must(conf_poke(block.va, 201), "cuMemcpyHtoD");
    conf_must(sw_drv.cuMemExportToShareableHandle(&handle, block.handle, FABRIC, 0), "export");
    if (wire_send(socket, &handle, sizeof handle) != 0)
        return 1;
    while (wire_receive(socket, &order, 1) == 0) {
        if (order == 'c') {
            wrong += conf_word(block.va + 8) != 202;
            conf_must(conf_poke(block.va + 12, 203), "cuMemcpyHtoD");
        } else if (order == 'd') {
            conf_block_drop(&block);
        } else if (order == 'x') {
            close(fd);
        } else { /* 'l': how many allocations live here */
            sw_emu_live_count(&live);
            order = (char)live.allocations;
        }
        if (wire_send(socket, &order, 1) != 0)
            return 2;
    }
    return wrong;
}

/* Imports an inherited descriptor; returns the driver's result. */
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
    if (strcmp(mode, "fabric") == 0)
        return child_fabric(fd);
    return child_owner(fd, strcmp(mode, "owner") == 0);
}

/* ---- cases ----------------------------------------------------------------------------------- */

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
    const int socket = wire_child(&process, "owner", NULL);
    const int fd = wire_receive_fd(socket);
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
    tap_ok(wire_tell(socket) == 0 && wire_wait_for(socket) == 0, "the owner reads what we wrote");
    TAP_EQ("what the owner wrote then", conf_word(va + 12), 104);
    wire_tell(socket);
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
    const int socket = wire_child(&process, "leaver", NULL);
    const int fd = wire_receive_fd(socket);
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

/* One of two imports in a process is bound to a multicast object, then the other one ends. */
static void bound_import(int bound)
{
    CUmemGenericAllocationHandle imports[2] = {0};
    const size_t unit = conf_team_start();
    struct conf_child process;
    struct conf_team team;
    CUdeviceptr all, va;
    int socket, fd;

    socket = wire_child(&process, "leaver", NULL);
    fd = wire_receive_fd(socket);
    conf_child_wait(&process);
    close(socket);
    for (int i = 0; i < 2; i++)
        conf_must(conf_import_fd(&imports[i], fd), "cuMemImportFromShareableHandle");
    close(fd);
    conf_team_make(&team, FD);
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_must(
            sw_drv.cuMulticastBindMem(
                team.mc, 0, i == OWNER_DEVICE ? imports[bound] : team.blocks[i].handle, 0, unit, 0),
            "cuMulticastBindMem");
    va = conf_map(imports[bound], 2 * conf.granule);
    all = conf_map(team.mc, 2 * unit);
    conf_must(sw_drv.cuMemRelease(imports[!bound]), "cuMemRelease");
    conf_must(conf_poke(team.blocks[conf.device].va + 64, 106), "cuMemcpyHtoD");
    TAP_EQ("a write by way of the object",
           sw_drv.cuMemcpyDtoD(all, team.blocks[conf.device].va + 64, 4), OK);
    TAP_EQ("reaches what is still imported", conf_word(va), 106);
    conf_unmap(va, 2 * conf.granule);
    conf_must(sw_drv.cuMemRelease(imports[bound]), "cuMemRelease");
    conf_unmap(all, 2 * unit);
    conf_team_drop(&team);
}

static void bound_imports(void)
{
    bound_import(0);
    bound_import(1);
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

/* A copy of an exported file that the caller may change, with or without seals. */
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

/* Import refuses a file that export did not make, by the passport after the memory. */
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

/* ---- fabric handles -------------------------------------------------------------------------- */

struct fabric_owner {
    struct conf_child process;
    int socket;
    CUmemFabricHandle handle;
};

static void fabric_start(struct fabric_owner *owner)
{
    conf_machine(2, 1);
    owner->socket = wire_child(&owner->process, "fabric", with_fabric);
    if (wire_receive(owner->socket, &owner->handle, sizeof owner->handle) != 0)
        conf_bail("a fabric handle from the child");
}

/* The owner's answer; -1: none. */
static int fabric_ask(const struct fabric_owner *owner, char order)
{
    char answer;

    if (wire_send(owner->socket, &order, 1) != 0 || wire_receive(owner->socket, &answer, 1) != 0)
        return -1;
    return answer;
}

static void fabric_end(struct fabric_owner *owner)
{
    close(owner->socket);
    conf_child_wait(&owner->process);
    conf_machine(1, 1);
}

static CUresult fabric_import(const struct fabric_owner *owner,
                              CUmemGenericAllocationHandle *handle)
{
    CUmemFabricHandle copy = owner->handle;

    return sw_drv.cuMemImportFromShareableHandle(handle, &copy, FABRIC);
}

static CUresult fabric_try(CUmemFabricHandle handle)
{
    return conf_try_import(&handle, FABRIC);
}

static void fabric_both_ways(void)
{
    CUmemGenericAllocationHandle handle = 0, again = 0;
    const size_t before = free_on_owner_device();
    struct fabric_owner owner;
    struct sw_emu_live live;
    CUmemAllocationProp prop;
    CUdeviceptr va;

    fabric_start(&owner);
    conf_must(fabric_import(&owner, &handle), "cuMemImportFromShareableHandle");
    conf_must(fabric_import(&owner, &again), "cuMemImportFromShareableHandle");
    sw_emu_live_count(&live);
    tap_ok(handle != again && live.allocations == 2, "each import is an object of its own");
    TAP_EQ("with a reference each", live.handle_refs, 2);
    TAP_EQ("which is not ours to pay for", free_on_owner_device(), before);
    conf_must(sw_drv.cuMemGetAllocationPropertiesFromHandle(&prop, handle), "properties");
    TAP_EQ("the device travels with it", prop.location.id, OWNER_DEVICE);
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    va = conf_map(handle, conf.granule);
    TAP_EQ("what the owner wrote", conf_word(va), 201);
    conf_must(conf_poke(va + 8, 202), "cuMemcpyHtoD");
    TAP_EQ("the owner reads what we wrote", fabric_ask(&owner, 'c'), 'c');
    TAP_EQ("and we what it wrote then", conf_word(va + 12), 203);
    fabric_ask(&owner, 'd');
    fabric_ask(&owner, 'x');
    TAP_EQ("the owner's memory is held by our import", fabric_ask(&owner, 'l'), 1);
    conf_unmap(va, conf.granule);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    TAP_EQ("and ends with it", fabric_ask(&owner, 'l'), 0);
    fabric_end(&owner);
    TAP_EQ("the owner ends well", owner.process.status, 0);
}

static void fabric_stale(void)
{
    struct fabric_owner owner;

    fabric_start(&owner);
    TAP_EQ("while the owner has a handle", fabric_try(owner.handle), OK);
    fabric_ask(&owner, 'd');
    TAP_EQ("while a descriptor holds the memory", fabric_try(owner.handle), OK);
    fabric_ask(&owner, 'x');
    TAP_EQ("when nothing holds it, though the owner has not looked", fabric_try(owner.handle), IV);
    TAP_EQ("the owner looks", fabric_ask(&owner, 'l'), 0);
    TAP_EQ("when the memory has gone", fabric_try(owner.handle), IV);
    fabric_end(&owner);
}

static void fabric_dead(void)
{
    CUmemGenericAllocationHandle handle = 0;
    struct fabric_owner owner;
    CUdeviceptr va;

    fabric_start(&owner);
    conf_must(fabric_import(&owner, &handle), "cuMemImportFromShareableHandle");
    kill(owner.process.pid, SIGKILL);
    conf_child_wait(&owner.process);
    TAP_EQ("the handle lives on where it was imported", fabric_try(owner.handle), OK);
    va = conf_map(handle, conf.granule);
    conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
    TAP_EQ("so does the memory", conf_word(va), 201);
    conf_unmap(va, conf.granule);
    TAP_EQ("and not beyond that", fabric_try(owner.handle), IV);
    close(owner.socket);
    conf_machine(1, 1);
}

/* Seals a changed handle with its FNV-1a checksum, as emu/share.c does. */
static void fabric_seal(CUmemFabricHandle *handle)
{
    const size_t end = sizeof handle->data - 8;
    uint64_t digest = 0xcbf29ce484222325u;

    for (size_t i = 0; i < end; i++)
        digest = (digest ^ handle->data[i]) * 0x100000001b3u;
    memcpy(handle->data + end, &digest, sizeof digest);
}

static void fabric_forged(void)
{
    struct fabric_owner owner;
    CUmemFabricHandle forged;
    unsigned taken = 0, sealed = 0, others = 0;

    fabric_start(&owner);
    for (size_t bit = 0; bit < 8 * sizeof forged; bit++) {
        forged = owner.handle;
        forged.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        taken += fabric_try(forged) != IV;
        if (bit / 8 >= 44) /* unused after the location and the kind */
            continue;
        fabric_seal(&forged);
        sealed += fabric_try(forged) != IV;
    }
    TAP_EQ("spoilt in any one bit it is refused", taken, 0);
    TAP_EQ("naming another object, process or descriptor it is refused", sealed, 0);
    for (unsigned char kind = 0; kind < 8; kind++) {
        forged = owner.handle;
        forged.data[40] = kind;
        fabric_seal(&forged);
        others += kind != owner.handle.data[40] && fabric_try(forged) != IV;
    }
    TAP_EQ("of another kind than the object it is refused", others, 0);
    fabric_seal(&owner.handle);
    TAP_EQ("as it was it is taken", fabric_try(owner.handle), OK);
    fabric_end(&owner);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return child(argv[1], argv[2]);
    conf_emulate("8");
    conf_group("both ways", both_ways);
    conf_group("owner gone", owner_gone);
    conf_group("an import is bound", bound_imports);
    conf_group("receiver of another shape", other_shape);
    conf_group("forged passports", forged);
    conf_group("a fabric handle both ways", fabric_both_ways);
    conf_group("stale fabric handles", fabric_stale);
    conf_group("a fabric handle's owner dies", fabric_dead);
    conf_group("forged fabric handles", fabric_forged);
    return conf_done(NULL);
}
