/* The rules on multicast (29, 30, 35, 36, 47, 54, 62, 66 to 84), on the emulated driver only: a
 * faulty multicast program can put the GPUs of a host out of service. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static size_t unit; /* multicast's minimum granularity */

static CUresult try_create(const CUmulticastObjectProp *prop)
{
    CUmemGenericAllocationHandle mc = 0;
    const CUresult result = sw_drv.cuMulticastCreate(&mc, prop);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMemRelease(mc);
    return result;
}

/* Unbinds what should be refused but succeeds. */
static CUresult try_bind(CUmemGenericAllocationHandle mc, CUdevice device, size_t mc_offset,
                         CUmemGenericAllocationHandle mem, size_t mem_offset, size_t size)
{
    const CUresult result = sw_drv.cuMulticastBindMem(mc, mc_offset, mem, mem_offset, size, 0);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMulticastUnbind(mc, device, mc_offset, size);
    return result;
}

static CUresult try_bind_addr(CUmemGenericAllocationHandle mc, CUdevice device, size_t mc_offset,
                              CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    const CUresult result = sw_drv.cuMulticastBindAddr(mc, mc_offset, ptr, size, flags);

    if (result == CUDA_SUCCESS)
        sw_drv.cuMulticastUnbind(mc, device, mc_offset, size);
    return result;
}

/* ---- calls that block ------------------------------------------------------------------------ */

/* Rules 35 and 72. */
static void blocking(void)
{
    struct conf_call call = {.kind = CALL_MAP};
    struct conf_block block;

    call.mc = conf_mc_create(0);
    call.va = conf_reserve(2 * unit);
    conf_must_block(35, "map of a multicast object", &call);
    if (call.result == CUDA_SUCCESS)
        conf_must(sw_drv.cuMemUnmap(call.va, 2 * unit), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(call.va, 2 * unit), "cuMemAddressFree");
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");

    conf_block_make(&block, conf.device, unit, 0);
    call = (struct conf_call){.kind = CALL_BIND_MEM, .mc = conf_mc_create(0), .mem = block.handle};
    conf_must_block(72, "bind of a handle", &call);
    conf_must(sw_drv.cuMulticastUnbind(call.mc, conf.device, 0, unit), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    call = (struct conf_call){.kind = CALL_BIND_ADDR, .mc = conf_mc_create(0), .va = block.va};
    conf_must_block(72, "bind of an address", &call);
    conf_must(sw_drv.cuMulticastUnbind(call.mc, conf.device, 0, unit), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    conf_block_drop(&block);
}

/* The only way out of a bind whose devices are never added: the object's last handle is
 * released. */
static void bind_given_up(void)
{
    struct conf_call call = {.kind = CALL_BIND_MEM, .mc = conf_mc_create(0)};
    struct conf_block block;

    conf_block_make(&block, conf.device, unit, 0);
    call.mem = block.handle;
    conf_call_start(&call);
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    pthread_join(call.thread, NULL);
    conf_refused(72, "bind to an object that is released meanwhile", call.result, WANT(IV));
    conf_block_drop(&block);
}

/* ---- objects and devices --------------------------------------------------------------------- */

/* Rules 66 to 68, 83. */
static void create(void)
{
    CUmulticastObjectProp prop = conf_mc_prop(CONF_MEMBERS, 2 * unit, 0);
    CUmemGenericAllocationHandle mc = 0;
    size_t size = 0, recommended = 0;
    int attribute = 1;

    conf_accepted(66, "create", try_create(&prop));
    prop.size = unit + conf.page;
    conf_refused(66, "create of a unit and a page", try_create(&prop), WANT(IV));
    prop.size = 0;
    conf_refused(66, "create of no bytes", try_create(&prop), WANT(IV));
    prop = conf_mc_prop(CONF_MEMBERS, 2 * unit, 0);
    prop.flags = 1;
    conf_refused(66, "create with a flag", try_create(&prop), WANT(IV));
    conf_refused(66, "create without properties", try_create(NULL), WANT(IV));
    prop.flags = 0;
    conf_refused(66, "create without out-pointer", sw_drv.cuMulticastCreate(NULL, &prop), WANT(IV));
    prop = conf_mc_prop(2, unit, 0);
    conf_accepted(67, "create for two devices", try_create(&prop));
    prop = conf_mc_prop(1, unit, 0);
    conf_refused(67, "create for one device", try_create(&prop), WANT(IV, NS));
    prop = conf_mc_prop(0, unit, 0);
    conf_refused(67, "create for no device", try_create(&prop), WANT(IV, NS));
    conf_none(68, ACCEPTED, "the emulated driver gives the size asked for and no more");
    conf_none(68, REFUSED, "a capacity above the request is the driver's choice");

    prop = conf_mc_prop(CONF_MEMBERS, 3 * unit, 0);
    conf_accepted(83, "the minimum granularity",
                  sw_drv.cuMulticastGetGranularity(&size, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    conf_accepted(83, "the recommended granularity",
                  sw_drv.cuMulticastGetGranularity(&recommended, &prop,
                                                   CU_MULTICAST_GRANULARITY_RECOMMENDED));
    conf_value(83, ACCEPTED, "the recommended one is so many minimums",
               size > 0 && recommended >= size && recommended % size == 0, 1);
    conf_refused(83, "granularity to NULL",
                 sw_drv.cuMulticastGetGranularity(NULL, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
                 WANT(IV));
    conf_refused(83, "granularity of NULL",
                 sw_drv.cuMulticastGetGranularity(&size, NULL, CU_MULTICAST_GRANULARITY_MINIMUM),
                 WANT(IV));
    conf_refused(83, "an unknown granularity",
                 sw_drv.cuMulticastGetGranularity(&size, &prop, (CUmulticastGranularity_flags)7),
                 WANT(IV));

    conf_machine(1, 0);
    prop = conf_mc_prop(CONF_MEMBERS, 2 * unit, 0);
    conf_refused(67, "create without multicast devices", sw_drv.cuMulticastCreate(&mc, &prop),
                 WANT(NS));
    conf_must(sw_drv.cuDeviceGetAttribute(&attribute, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
                                          conf.device),
              "cuDeviceGetAttribute");
    conf_value(67, REFUSED, "the attribute says so", attribute, 0);
    conf_machine(1, 1);
}

/* Rules 69 and 70. */
static void add_device(void)
{
    const CUmemGenericAllocationHandle mc = conf_mc_create(0);

    conf_accepted(69, "add of a device", sw_drv.cuMulticastAddDevice(mc, 1));
    conf_none(69, REFUSED, "no call takes a device away");
    conf_refused(70, "add of the same device", sw_drv.cuMulticastAddDevice(mc, 1), WANT(IV));
    conf_refused(70, "add of device -1", sw_drv.cuMulticastAddDevice(mc, -1), WANT(ID, IV));
    conf_refused(70, "add of a device past the last", sw_drv.cuMulticastAddDevice(mc, conf.devices),
                 WANT(ID, IV));
    conf_accepted(70, "add of another device", sw_drv.cuMulticastAddDevice(mc, 3));
    conf_accepted(70, "add of the last that was asked for", sw_drv.cuMulticastAddDevice(mc, 0));
    conf_refused(70, "add of one too many", sw_drv.cuMulticastAddDevice(mc, 2), WANT(IV));
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
}

/* Slots run out at an object's first bind. */
static void slots(CUmemGenericAllocationHandle mem)
{
    const CUmulticastObjectProp prop = conf_mc_prop(2, unit, 0);
    CUmemGenericAllocationHandle many[1024];
    CUresult result = CUDA_SUCCESS;
    size_t count = 0;

    while (count < sizeof many / sizeof many[0] && result == CUDA_SUCCESS) {
        conf_must(sw_drv.cuMulticastCreate(&many[count], &prop), "cuMulticastCreate");
        for (int i = 0; i < 2; i++)
            conf_must(sw_drv.cuMulticastAddDevice(many[count], i), "cuMulticastAddDevice");
        result = sw_drv.cuMulticastBindMem(many[count++], 0, mem, 0, unit, 0);
    }
    conf_refused(77, "bind of one multicast object too many", result, WANT(OOM));
    conf_value(77, ACCEPTED, "as many as a few teams need", count > 16, 1);
    conf_accepted(77, "create of more", try_create(&prop));
    conf_must(sw_drv.cuMemRelease(many[0]), "cuMemRelease");
    conf_accepted(77, "bind when another object is gone",
                  try_bind(many[count - 1], 0, 0, mem, 0, unit));
    while (count > 1)
        conf_must(sw_drv.cuMemRelease(many[--count]), "cuMemRelease");
}

/* Rules 36, 71, 77. A broken fabric is an injected fault. */
static void broken_fabric(void)
{
    CUmulticastObjectProp prop = conf_mc_prop(CONF_MEMBERS, 2 * unit, 0);
    CUmemGenericAllocationHandle mc;
    struct conf_team team;
    CUdeviceptr va;

    conf_team_make(&team, 0);
    va = conf_reserve(2 * unit);
    sw_emu_fail_nth(1, IS, 0, 0);
    conf_refused(36, "map on a broken fabric (injected)",
                 sw_drv.cuMemMap(va, 2 * unit, 0, team.mc, 0), WANT(IS));
    sw_emu_fail_nth(0, OK, 0, 0);
    conf_accepted(36, "map on a fabric that works", conf_try_map(va, 2 * unit, 0, team.mc, 0));
    sw_emu_fail_nth(1, IS, 0, 0);
    conf_refused(71, "create with a broken fabric manager (injected)",
                 sw_drv.cuMulticastCreate(&mc, &prop), WANT(IS, IV));
    sw_emu_fail_nth(0, OK, 0, 0);
    conf_accepted(71, "create with a fabric manager that works", try_create(&prop));
    sw_emu_fail_nth(1, SNR, 0, 0);
    conf_refused(77, "bind without the daemon (injected)",
                 sw_drv.cuMulticastBindMem(team.mc, 0, team.blocks[0].handle, 0, unit, 0),
                 WANT(SNR));
    sw_emu_fail_nth(0, OK, 0, 0);
    conf_accepted(77, "bind with the daemon",
                  try_bind(team.mc, 0, 0, team.blocks[0].handle, 0, unit));

    slots(team.blocks[0].handle);
    conf_must(sw_drv.cuMemAddressFree(va, 2 * unit), "cuMemAddressFree");
    conf_team_drop(&team);
}

/* ---- binding --------------------------------------------------------------------------------- */

/* Rules 73 to 75. */
static void bind_ranges(void)
{
    const CUmulticastObjectProp prop = conf_mc_prop(2, 4 * unit, 0);
    const size_t page = conf.page;
    CUmemGenericAllocationHandle mc = 0;
    struct conf_block b, foreign;
    CUdeviceptr plain = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    conf_must(sw_drv.cuMulticastAddDevice(mc, 1), "cuMulticastAddDevice");
    conf_block_make(&b, 0, 2 * unit, 0);
    conf_block_make(&foreign, 2, unit, 0);

    conf_accepted(73, "bind of units", try_bind(mc, 0, unit, b.handle, unit, unit));
    conf_refused(73, "bind at a page of the object", try_bind(mc, 0, page, b.handle, 0, unit),
                 WANT(IV));
    conf_refused(73, "bind of memory from a page on", try_bind(mc, 0, 0, b.handle, page, unit),
                 WANT(IV));
    conf_refused(73, "bind of a page", try_bind(mc, 0, 0, b.handle, 0, page), WANT(IV));
    conf_refused(73, "bind of no bytes", try_bind(mc, 0, 0, b.handle, 0, 0), WANT(IV));
    conf_refused(73, "bind of an address inside a unit",
                 try_bind_addr(mc, 0, 0, b.va + page, unit, 0), WANT(IV));
    conf_refused(73, "bind with a flag", sw_drv.cuMulticastBindMem(mc, 0, b.handle, 0, unit, 1),
                 WANT(IV));
    conf_accepted(74, "bind to the end of both", try_bind(mc, 0, 2 * unit, b.handle, 0, 2 * unit));
    conf_refused(74, "bind past the memory's end", try_bind(mc, 0, 0, b.handle, unit, 2 * unit),
                 WANT(IV));
    conf_refused(74, "bind past the object's end", try_bind(mc, 0, 3 * unit, b.handle, 0, 2 * unit),
                 WANT(IV));
    conf_refused(74, "bind at an offset near the largest number",
                 try_bind(mc, 0, ~(size_t)0 / unit * unit, b.handle, 0, unit), WANT(IV));
    conf_refused(74, "bind of an address and past the mapping's end",
                 try_bind_addr(mc, 0, 0, b.va + unit, 2 * unit, 0), WANT(IV));
    conf_accepted(75, "bind of a member's memory", try_bind(mc, 0, 0, b.handle, 0, unit));
    conf_refused(75, "bind of a stranger's memory", try_bind(mc, 2, 0, foreign.handle, 0, unit),
                 WANT(ID));
    conf_accepted(79, "bind of a mapping's address", try_bind_addr(mc, 0, 0, b.va, unit, 0));
    conf_accepted(79, "bind of an address inside", try_bind_addr(mc, 0, 0, b.va + unit, unit, 0));
    conf_must(sw_drv.cuMemAlloc(&plain, 2 * unit), "cuMemAlloc");
    conf_refused(79, "bind of plain memory",
                 try_bind_addr(mc, 0, 0, (plain + unit - 1) / unit * unit, unit, 0), WANT(IV));
    conf_refused(79, "bind of address 0", try_bind_addr(mc, 0, 0, 0, unit, 0), WANT(IV));
    conf_refused(79, "bind of an address with a flag", try_bind_addr(mc, 0, 0, b.va, unit, 1),
                 WANT(IV));
    conf_must(sw_drv.cuMemFree(plain), "cuMemFree");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_block_drop(&foreign);
    conf_block_drop(&b);
}

/* Rules 76, 78. */
static void bind_what(void)
{
    const CUmemGenericAllocationHandle unshared = conf_create(1, unit, 0);
    CUmemGenericAllocationHandle imported = 0;
    struct conf_team team;
    int fd = -1;

    conf_team_make(&team, FD);
    fd = conf_export_fd(team.mc);
    conf_must(conf_import_fd(&imported, fd), "cuMemImportFromShareableHandle");
    close(fd);
    conf_accepted(76, "bind of shareable memory to a shareable object",
                  try_bind(team.mc, 1, 0, team.blocks[1].handle, 0, unit));
    conf_accepted(76, "bind of shareable memory to an imported object",
                  try_bind(imported, 1, 0, team.blocks[1].handle, 0, unit));
    conf_refused(76, "bind of other memory to a shareable object",
                 try_bind(team.mc, 1, 0, unshared, 0, unit), WANT(IV));
    conf_refused(76, "bind of other memory to an imported object",
                 try_bind(imported, 1, 0, unshared, 0, unit), WANT(IV));
    conf_must(sw_drv.cuMemRelease(imported), "cuMemRelease");
    conf_team_drop(&team);

    conf_team_make(&team, 0);
    conf_accepted(76, "bind of other memory to an object that is not shareable",
                  try_bind(team.mc, 1, 0, unshared, 0, unit));
    conf_team_bind(&team);
    conf_accepted(78, "bind behind what is bound", try_bind(team.mc, 1, unit, unshared, 0, unit));
    conf_refused(78, "bind over what is bound",
                 sw_drv.cuMulticastBindMem(team.mc, 0, unshared, 0, unit, 0), WANT(IV));
    conf_refused(78, "bind of the same memory there again",
                 sw_drv.cuMulticastBindMem(team.mc, 0, team.blocks[1].handle, 0, unit, 0),
                 WANT(IV));
    conf_team_unbind(&team);
    conf_accepted(78, "bind where something was bound", try_bind(team.mc, 1, 0, unshared, 0, unit));
    conf_team_drop(&team);
    conf_must(sw_drv.cuMemRelease(unshared), "cuMemRelease");
}

/* Rule 84. */
static void bind_v2(void)
{
    struct conf_team team;
    CUmemGenericAllocationHandle mem;
    CUresult result;

    conf_team_make(&team, 0);
    mem = team.blocks[1].handle;
    conf_value(84, ACCEPTED, "both versions are there",
               sw_drv.cuMulticastBindMem != NULL && sw_drv.cuMulticastBindMem_v2 != NULL &&
                   sw_drv.cuMulticastBindAddr != NULL && sw_drv.cuMulticastBindAddr_v2 != NULL,
               1);
    result = sw_drv.cuMulticastBindMem_v2(team.mc, 1, 0, mem, 0, unit, 0);
    conf_accepted(84, "bind of a handle by its device", result);
    if (result == CUDA_SUCCESS)
        conf_must(sw_drv.cuMulticastUnbind(team.mc, 1, 0, unit), "cuMulticastUnbind");
    result = sw_drv.cuMulticastBindAddr_v2(team.mc, 1, 0, team.blocks[1].va, unit, 0);
    conf_accepted(84, "bind of an address by its device", result);
    if (result == CUDA_SUCCESS)
        conf_must(sw_drv.cuMulticastUnbind(team.mc, 1, 0, unit), "cuMulticastUnbind");
    conf_refused(84, "bind of a handle by a device outside the team",
                 sw_drv.cuMulticastBindMem_v2(team.mc, 3, 0, mem, 0, unit, 0), WANT(ID, IV));
    conf_refused(84, "bind of a handle by device -1",
                 sw_drv.cuMulticastBindMem_v2(team.mc, -1, 0, mem, 0, unit, 0), WANT(ID, IV));
    conf_refused(84, "bind of an address by a device outside the team",
                 sw_drv.cuMulticastBindAddr_v2(team.mc, 3, 0, team.blocks[1].va, unit, 0),
                 WANT(ID, IV));
    conf_team_drop(&team);
}

/* ---- mapping --------------------------------------------------------------------------------- */

/* Rules 29, 30, 47. */
static void map(void)
{
    const CUdeviceptr va = conf_reserve(4 * unit);
    const size_t page = conf.page;
    struct conf_team team;

    conf_team_make(&team, 0);
    conf_accepted(29, "map of units", conf_try_map(va + unit, 2 * unit, 0, team.mc, 0));
    conf_refused(29, "map at a page", conf_try_map(va + page, 2 * unit, 0, team.mc, 0), WANT(IV));
    conf_refused(29, "map of a page", conf_try_map(va, page, 0, team.mc, 0), WANT(IV));
    conf_refused(29, "map of more than the object", conf_try_map(va, 3 * unit, 0, team.mc, 0),
                 WANT(IV));
    conf_accepted(30, "map of an object from offset 0", conf_try_map(va, 2 * unit, 0, team.mc, 0));
    conf_refused(30, "map of an object from the second unit on",
                 conf_try_map(va, unit, unit, team.mc, 0), WANT(IV));

    conf_must(sw_drv.cuMemMap(va, 2 * unit, 0, team.mc, 0), "cuMemMap");
    conf_accepted(47, "rights to the mapping of an object", conf_access(va, 2 * unit, 0, RW));
    conf_value(47, ACCEPTED, "they are the device's", conf_rights(va + unit, 0), RW);
    conf_value(47, ACCEPTED, "and no other's", conf_rights(va, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    conf_refused(47, "rights from a page on", conf_access(va + page, unit, 1, RW), WANT(IV));
    conf_refused(47, "rights to a page", conf_access(va, page, 1, RW), WANT(IV));
    conf_value(47, REFUSED, "refused calls gave none", conf_rights(va, 1),
               CU_MEM_ACCESS_FLAGS_PROT_NONE);
    conf_must(sw_drv.cuMemUnmap(va, 2 * unit), "cuMemUnmap");
    conf_must(sw_drv.cuMemAddressFree(va, 4 * unit), "cuMemAddressFree");
    conf_team_drop(&team);
}

/* Rules 54 and 62. */
static void share(void)
{
    CUmemGenericAllocationHandle unshared = conf_mc_create(0);
    struct conf_call bind = {.kind = CALL_BIND_MEM};
    struct conf_block block;
    CUmemFabricHandle fabric;
    int fd = -1;
    CUresult result;

    bind.mc = conf_mc_create(FD);
    result = sw_drv.cuMemExportToShareableHandle(&fd, bind.mc, FD, 0);
    conf_accepted(54, "export of the type that the object was made with", result);
    conf_refused(
        54, "export of another type",
        sw_drv.cuMemExportToShareableHandle(&fabric, bind.mc, CU_MEM_HANDLE_TYPE_FABRIC, 0),
        WANT(IV));
    conf_refused(54, "export of an object made without types",
                 sw_drv.cuMemExportToShareableHandle(&fabric, unshared, FD, 0), WANT(IV));
    conf_must(sw_drv.cuMemRelease(unshared), "cuMemRelease");

    conf_block_make(&block, conf.device, unit, FD);
    bind.mem = block.handle;
    for (int i = 0; i < CONF_MEMBERS - 1; i++)
        conf_must(sw_drv.cuMulticastAddDevice(bind.mc, i), "cuMulticastAddDevice");
    conf_must(sw_drv.cuMemRelease(bind.mc), "cuMemRelease");
    result = conf_import_fd(&bind.mc, fd);
    conf_accepted(62, "import after the creator has released the object", result);
    close(fd);
    if (result == CUDA_SUCCESS) {
        conf_must_block(62, "the object is without devices: a bind", &bind);
        conf_must(sw_drv.cuMulticastUnbind(bind.mc, conf.device, 0, unit), "cuMulticastUnbind");
        conf_must(sw_drv.cuMemRelease(bind.mc), "cuMemRelease");
    }
    conf_block_drop(&block);
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Rule 80's strict abort, rule 81. Each in its own process. */
static int child(const char *what)
{
    struct conf_team team;

    conf_child_no_core();
    conf_start();
    unit = conf_team_start();
    conf_team_make(&team, 0);
    if (strcmp(what, "nothing") == 0) {
        sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit);
    } else if (strcmp(what, "half") == 0) {
        struct conf_block two;

        conf_block_make(&two, 0, 2 * unit, 0);
        conf_must(sw_drv.cuMulticastBindMem(team.mc, 0, two.handle, 0, 2 * unit, 0), "bind");
        sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit);
    } else if (strcmp(what, "twice") == 0) {
        conf_team_bind(&team);
        conf_team_unbind(&team);
        sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit);
    }
    return 0;
}

static void abort_case(const char *text, const char *what)
{
    struct conf_child process;
    char said[128];

    conf_value(80, REFUSED, text, conf_child_run(&process, "misuse", what, NULL), -SIGABRT);
    snprintf(said, sizeof said, "%s is explained on stderr", text);
    conf_value(80, REFUSED, said, process.text[0] != '\0', 1);
}

/* Rules 80 to 82. */
static void teardown(void)
{
    const CUmemAccessDesc rw = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, RW};
    struct conf_team team;
    struct conf_block block;
    CUdeviceptr va;
    int fd;

    conf_team_make(&team, FD);
    conf_team_bind(&team);
    conf_accepted(80, "unbind of what was bound", sw_drv.cuMulticastUnbind(team.mc, 1, 0, unit));
    conf_refused(80, "unbind of a page", sw_drv.cuMulticastUnbind(team.mc, 0, 0, conf.page),
                 WANT(IV));
    conf_refused(80, "unbind past the object's end",
                 sw_drv.cuMulticastUnbind(team.mc, 0, unit, 2 * unit), WANT(IV));
    conf_must(sw_drv.cuMulticastBindMem(team.mc, 0, team.blocks[1].handle, 0, unit, 0),
              "cuMulticastBindMem");
    abort_case("unbind where nothing is bound aborts", "nothing");
    abort_case("unbind of half of what was bound aborts", "half");
    abort_case("unbind twice aborts", "twice");

    fd = conf_export_fd(team.mc);
    va = conf_reserve(2 * unit);
    conf_must(sw_drv.cuMemMap(va, 2 * unit, 0, team.mc, 0), "cuMemMap");
    conf_must(sw_drv.cuMemSetAccess(va, 2 * unit, &rw, 1), "cuMemSetAccess");
    conf_accepted(82, "unmap of the multicast address", sw_drv.cuMemUnmap(va, 2 * unit));
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_accepted(82, "then unbind", sw_drv.cuMulticastUnbind(team.mc, i, 0, unit));
    conf_value(82, ACCEPTED, "then close of the descriptor", close(fd), 0);
    conf_accepted(82, "then release of the object", sw_drv.cuMemRelease(team.mc));
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_block_drop(&team.blocks[i]);
    conf_none(82, REFUSED, "it is an order that is safe");
    conf_must(sw_drv.cuMemAddressFree(va, 2 * unit), "cuMemAddressFree");

    conf_team_make(&team, 0);
    conf_block_make(&block, 0, unit, 0);
    conf_must(sw_drv.cuMulticastBindMem(team.mc, 0, block.handle, 0, unit, 0),
              "cuMulticastBindMem");
    conf_accepted(81, "unbind while the memory lives",
                  sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit));
    conf_must(sw_drv.cuMulticastBindMem(team.mc, 0, block.handle, 0, unit, 0),
              "cuMulticastBindMem");
    conf_block_drop(&block);
    conf_refused(81, "unbind after the memory has gone",
                 sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit), WANT(IV));
    conf_team_drop(&team);
}

static int is_mine(int rule)
{
    return (rule >= 66 && rule <= 84) || rule == 29 || rule == 30 || rule == 35 || rule == 36 ||
           rule == 47 || rule == 54 || rule == 62;
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return child(argv[2]);
    conf_emulate("4");
    conf_open_csv();
    unit = conf_team_start();
    conf_group("create", create);
    conf_group("add devices", add_device);
    conf_group("broken fabric", broken_fabric);
    conf_group("calls that block", blocking);
    conf_group("a bind given up", bind_given_up);
    conf_group("ranges of a bind", bind_ranges);
    conf_group("what is bound", bind_what);
    conf_group("bind by device", bind_v2);
    conf_group("map", map);
    conf_group("share", share);
    conf_group("teardown", teardown);
    return conf_done(is_mine);
}
