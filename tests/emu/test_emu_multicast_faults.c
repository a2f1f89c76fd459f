/* A fabric that is out of order, on demand: calls on multicast objects that fail, stall for a
 * while, or do not come back, and processes that end while others wait. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "emu_member.h"

#define ADDS SW_EMU_FAULT_ADD
#define BINDS SW_EMU_FAULT_BIND
#define IMPORTS SW_EMU_FAULT_IMPORT

enum { ANY = -1, ALWAYS = -1, FOREVER = -1 };

static CUresult fail(enum sw_emu_fault_call call, CUresult answer, int device, int times,
                     int stall_ms)
{
    const struct sw_emu_multicast_fault fault = {call, answer, device, times, stall_ms};

    return sw_emu_multicast_fail(&fault);
}

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The bind of a device's memory by each of the four calls, undone. */
static CUresult try_bind(const struct conf_team *team, int device, int call)
{
    const struct conf_block *b = &team->blocks[device];
    CUresult result = OK;

    if (call == 0)
        result = sw_drv.cuMulticastBindMem(team->mc, 0, b->handle, 0, unit, 0);
    else if (call == 1)
        result = sw_drv.cuMulticastBindMem_v2(team->mc, device, 0, b->handle, 0, unit, 0);
    else if (call == 2)
        result = sw_drv.cuMulticastBindAddr(team->mc, 0, b->va, unit, 0);
    else
        result = sw_drv.cuMulticastBindAddr_v2(team->mc, device, 0, b->va, unit, 0);
    if (result == OK)
        conf_must(sw_drv.cuMulticastUnbind(team->mc, device, 0, unit), "cuMulticastUnbind");
    return result;
}

static void answers(void)
{
    static const CUresult codes[] = {IS, SNR};
    CUmemGenericAllocationHandle mc;
    struct conf_team team;

    conf_team_make(&team, 0);
    for (int i = 0; i < 2; i++) {
        mc = object_make(2, 0);
        conf_must(fail(ADDS, codes[i], 1, 2, 0), "sw_emu_multicast_fail");
        TAP_EQ("add of another device", sw_drv.cuMulticastAddDevice(mc, 0), OK);
        TAP_EQ("add of the device", sw_drv.cuMulticastAddDevice(mc, 1), codes[i]);
        TAP_EQ("once more", sw_drv.cuMulticastAddDevice(mc, 1), codes[i]);
        TAP_EQ("add when the fabric works again", sw_drv.cuMulticastAddDevice(mc, 1), OK);
        conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
        for (int call = 0; call < 4; call++) {
            conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
            conf_must(fail(BINDS, codes[i], 2, 1, 0), "sw_emu_multicast_fail");
            TAP_EQ("bind of another device", try_bind(&team, 1, call), OK);
            TAP_EQ("bind of the device", try_bind(&team, 2, call), codes[i]);
            TAP_EQ("bind when the fabric works again", try_bind(&team, 2, call), OK);
        }
    }
    conf_must(fail(BINDS, IS, ANY, ALWAYS, 0), "sw_emu_multicast_fail");
    for (int device = 0; device < CONF_MEMBERS; device++)
        TAP_EQ("bind of any device", try_bind(&team, device, 0), IS);
    TAP_EQ("a bind that is wrong anyway",
           sw_drv.cuMulticastBindMem(team.mc, 1, team.blocks[0].handle, 0, unit, 0), IV);
    TAP_EQ("again", try_bind(&team, 0, 0), IS);
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    TAP_EQ("no faults any more", try_bind(&team, 0, 0), OK);
    for (int i = 0; i < 8; i++)
        conf_must(fail(ADDS, IS, i, 1, 0), "sw_emu_multicast_fail");
    TAP_EQ("a ninth fault", fail(ADDS, IS, 0, 1, 0), OOM);
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    conf_team_drop(&team);
}

/* ---- stalls ---------------------------------------------------------------------------------- */

static void bind_stalls(struct conf_team *team, struct conf_call *call)
{
    *call = (struct conf_call){
        .kind = CALL_BIND_MEM, .mc = team->mc, .mem = team->blocks[0].handle};
    conf_must(fail(BINDS, OK, 0, 1, FOREVER), "sw_emu_multicast_fail");
    conf_call_start(call);
    for (int i = 0; i < 2000 && sw_emu_multicast_stalled() == 0; i++)
        nanosleep(&(const struct timespec){0, 1000000}, NULL);
    TAP_EQ("a bind in a complete team stalls", sw_emu_multicast_stalled(), 1);
    TAP_EQ("and has not come back", atomic_load(&call->done), 0);
}

static void bind_goes_on(struct conf_call *call)
{
    sw_emu_multicast_resume();
    pthread_join(call->thread, NULL);
    TAP_EQ("nothing stalls any more", sw_emu_multicast_stalled(), 0);
}

/* All that another thread may do with the driver meanwhile, and with the object too. */
static void others_go_on(struct conf_team *team)
{
    const CUdeviceptr va = conf_reserve(2 * unit);
    struct conf_block block;
    CUmemGenericAllocationHandle mc;

    conf_block_make(&block, 1, unit, 0);
    TAP_EQ("others use memory", conf_poke(block.va, 1), OK);
    mc = object_make(2, 0);
    TAP_EQ("add devices", sw_drv.cuMulticastAddDevice(mc, 0), OK);
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    TAP_EQ("bind their own memory", try_bind(team, 1, 0), OK);
    TAP_EQ("even of the same device", try_bind(team, 0, 0), OK);
    TAP_EQ("map the object", sw_drv.cuMemMap(va, 2 * unit, 0, team->mc, 0), OK);
    conf_unmap(va, 2 * unit);
    conf_block_drop(&block);
}

static void stalls(void)
{
    struct conf_team team;
    struct conf_call call;
    long began;

    conf_team_make(&team, 0);
    bind_stalls(&team, &call);
    others_go_on(&team);
    TAP_EQ("it stalls all the while", sw_emu_multicast_stalled() - atomic_load(&call.done), 1);
    bind_goes_on(&call);
    TAP_EQ("released, it succeeds", call.result, OK);
    conf_must(sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit), "cuMulticastUnbind");

    bind_stalls(&team, &call);
    conf_must(sw_drv.cuMulticastBindMem(team.mc, 0, team.blocks[0].handle, 0, unit, 0), "bind");
    bind_goes_on(&call);
    TAP_EQ("released when something else is bound there, it is refused", call.result, IV);
    conf_must(sw_drv.cuMulticastUnbind(team.mc, 0, 0, unit), "cuMulticastUnbind");

    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    conf_must(fail(BINDS, SNR, 1, 1, 120), "sw_emu_multicast_fail");
    conf_must(fail(ADDS, OK, 3, 1, 80), "sw_emu_multicast_fail");
    began = now_ms();
    TAP_EQ("a bind that stalls for a while", try_bind(&team, 1, 0), SNR);
    tap_ok(now_ms() - began >= 120, "takes that long: %ld ms", now_ms() - began);
    TAP_EQ("the next one", try_bind(&team, 1, 0), OK);
    began = now_ms();
    TAP_EQ("an add that stalls, of a device too many", sw_drv.cuMulticastAddDevice(team.mc, 3), IV);
    tap_ok(now_ms() - began >= 80, "takes that long: %ld ms", now_ms() - began);

    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    bind_stalls(&team, &call);
    conf_must(sw_drv.cuMemRelease(team.mc), "cuMemRelease");
    nanosleep(&(const struct timespec){0, 20000000}, NULL);
    TAP_EQ("the release of the object does not end it", sw_emu_multicast_stalled(), 1);
    bind_goes_on(&call);
    TAP_EQ("released later, it is refused", call.result, IV);
    for (int i = 0; i < CONF_MEMBERS; i++)
        conf_block_drop(&team.blocks[i]);
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
}

/* ---- other processes ------------------------------------------------------------------------- */

/* A process whose bind does not come back, by its environment. */
static void stalls_elsewhere(void)
{
    const CUmemGenericAllocationHandle mc = object_make(2, FD);
    struct remote there, heir;
    struct member here;

    setenv("SYMWIN_EMU_MULTICAST_FAULT", "bind:0:1:1:-1", 1);
    TAP_EQ("import of an object", remote_start(&there, 1, mc, FD), OK);
    unsetenv("SYMWIN_EMU_MULTICAST_FAULT");
    member_make(&here, 0, mc);
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    conf_must((CUresult)ask(&there, ADD), "cuMulticastAddDevice there");
    order_give(&there, BIND, 0, 0);
    tap_ok(is_silent(&there), "its bind does not come back");
    TAP_EQ("ours does", member_bind(&here), OK);
    TAP_EQ("a map too", member_map(&here), OK);
    TAP_EQ("nothing is reached", reach(&here), 0);
    remote_kill(&there);
    TAP_EQ("import by another process", remote_start(&heir, 1, mc, FD), OK);
    TAP_EQ("its bind", ask(&heir, BIND), OK);
    TAP_EQ("an access reaches both", reach(&here), 2);
    pair_drop(&here, &heir);
}

/* As in another container. */
static void imports(void)
{
    static const CUmemAllocationHandleType types[] = {FD, FABRIC};
    CUmemGenericAllocationHandle mc, again = 0;
    CUmemFabricHandle fabric;
    struct remote there;
    struct conf_block block;
    int fd;

    mc = object_make(2, FD);
    conf_block_make(&block, 0, unit, (unsigned)FD);
    fd = conf_export_fd(mc);
    conf_must(fail(IMPORTS, ID, 0, 1, 0), "sw_emu_multicast_fail");
    TAP_EQ("import", conf_import_fd(&again, fd), ID);
    TAP_EQ("import again", conf_import_fd(&again, fd), OK);
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    conf_must(fail(IMPORTS, ID, 1, ALWAYS, 0), "sw_emu_multicast_fail");
    TAP_EQ("import in another device's context", conf_import_fd(&again, fd), OK);
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    close(fd);
    conf_must(fail(IMPORTS, ID, ANY, ALWAYS, 0), "sw_emu_multicast_fail");
    fd = conf_export_fd(block.handle);
    TAP_EQ("import of memory", conf_import_fd(&again, fd), OK);
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    close(fd);
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_block_drop(&block);

    conf_machine(2, 1);
    mc = object_make(2, (unsigned)FD | (unsigned)FABRIC);
    conf_must(sw_drv.cuMemExportToShareableHandle(&fabric, mc, FABRIC, 0), "export");
    conf_must(fail(IMPORTS, ID, ANY, 1, 0), "sw_emu_multicast_fail");
    TAP_EQ("import of a fabric handle", conf_try_import(&fabric, FABRIC), ID);
    TAP_EQ("and again", conf_try_import(&fabric, FABRIC), OK);
    setenv("SYMWIN_EMU_MULTICAST_FAULT", "import:101", 1);
    for (int i = 0; i < 2; i++) {
        TAP_EQ("import in another process", remote_start(&there, 1, mc, types[i]), ID);
        conf_child_wait(&there.process);
        close(there.socket);
    }
    unsetenv("SYMWIN_EMU_MULTICAST_FAULT");
    TAP_EQ("one where there is no fault", remote_start(&there, 1, mc, FABRIC), OK);
    remote_end(&there);
    conf_must(sw_emu_multicast_fail(NULL), "sw_emu_multicast_fail");
    conf_must(sw_drv.cuMemRelease(mc), "cuMemRelease");
    conf_machine(1, 1);
}

/* A process is killed in its bind, while a device is missing that nobody has added. */
static void killed_in_a_bind(void)
{
    struct conf_call call = {.kind = CALL_BIND_MEM, .mc = object_make(3, FD)};
    struct remote there, heir;
    struct conf_block block;

    conf_block_make(&block, 0, unit, (unsigned)FD);
    call.mem = block.handle;
    TAP_EQ("import of an object for three", remote_start(&there, 1, call.mc, FD), OK);
    conf_must(sw_drv.cuMulticastAddDevice(call.mc, 0), "cuMulticastAddDevice");
    conf_must((CUresult)ask(&there, ADD), "cuMulticastAddDevice there");
    order_give(&there, BIND, 0, 0);
    conf_call_start(&call);
    tap_ok(is_silent(&there) && atomic_load(&call.done) == 0, "both wait for the third device");
    remote_kill(&there);
    nanosleep(&(const struct timespec){0, PAUSE_MS * 1000000}, NULL);
    TAP_EQ("one is killed, and the other waits on", atomic_load(&call.done), 0);
    TAP_EQ("import by another process", remote_start(&heir, 2, call.mc, FD), OK);
    TAP_EQ("which adds the third device", ask(&heir, ADD), OK);
    pthread_join(call.thread, NULL);
    TAP_EQ("our bind comes back", call.result, OK);
    TAP_EQ("and its own", ask(&heir, BIND), OK);
    TAP_EQ("the dead one's device is still a member", sw_drv.cuMulticastAddDevice(call.mc, 1), IV);
    conf_must(sw_drv.cuMulticastUnbind(call.mc, 0, 0, unit), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    conf_block_drop(&block);
    remote_end(&heir);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return member_child((int)strtol(argv[2], NULL, 10));
    conf_emulate("4");
    unit = conf_team_start();
    conf_group("answers", answers);
    conf_group("stalls", stalls);
    conf_group("stalls elsewhere", stalls_elsewhere);
    conf_group("imports", imports);
    conf_group("killed in a bind", killed_in_a_bind);
    return conf_done(NULL);
}
