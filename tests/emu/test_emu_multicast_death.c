/* Multicast objects of several processes on the emulated driver: a process that dies does not harm
 * the others, a wait that can never end can be given up, and the object lives as long as a process
 * has it. */
#include <time.h>

#include "emu_member.h"

static void killed(void)
{
    struct member here;
    struct remote there, heir;
    uint32_t sum;

    pair_make(&here, &there);
    TAP_EQ("a store", member_reach(&here, 40, 31, &sum), 2);
    remote_kill(&there);
    TAP_EQ("a store when the other process has been killed", member_reach(&here, 40, 32, &sum), 2);
    TAP_EQ("its memory is there to be read", sum, 64);
    TAP_EQ("import by another process", remote_start(&heir, 1, here.mc, FD), OK);
    TAP_EQ("its bind takes the place of the dead one's", ask(&heir, BIND), OK);
    TAP_EQ("a store reaches it", member_reach(&here, 40, 33, &sum), 2);
    TAP_EQ("as it finds", word_there(&heir, 40), 33);
    pair_drop(&here, &heir);
}

/* A process may be killed at any moment, also while it changes the object. */
static void killed_at_work(void)
{
    enum { TIMES = 20 };
    struct timespec nap = {0, 0};
    struct member here;
    struct remote there, heir;
    int bound = 0;

    pair_make(&here, &there);
    for (int i = 0; i < TIMES; i++) {
        remote_kill(&there);
        if (remote_start(&there, 1, here.mc, FD) != OK)
            break;
        if (ask(&there, BIND) != OK)
            break;
        order_give(&there, HAMMER, 0, 0);
        nap.tv_nsec = 1000000 + i * 100000;
        nanosleep(&nap, NULL);
        (void)reach(&here);
        conf_must(member_unbind(&here), "cuMulticastUnbind");
        bound += member_bind(&here) == CUDA_SUCCESS;
    }
    TAP_EQ("our binds and unbinds go on", bound, TIMES);
    remote_kill(&there);
    TAP_EQ("import by another process", remote_start(&heir, 1, here.mc, FD), OK);
    TAP_EQ("its bind", ask(&heir, BIND), OK);
    TAP_EQ("an access reaches both", reach(&here), 2);
    pair_drop(&here, &heir);
}

/* A wait for a process that will not come ends when the object's last handle here is released. */
static void given_up(void)
{
    struct conf_call call = {.kind = CALL_BIND_MEM, .mc = object_make(2, FD)};
    struct conf_block block;
    struct remote there;

    conf_block_make(&block, 0, unit, (unsigned)FD);
    call.mem = block.handle;
    conf_call_start(&call); /* it waits before the object is exported */
    TAP_EQ("import of an object", remote_start(&there, 1, call.mc, FD), OK);
    conf_must(sw_drv.cuMulticastAddDevice(call.mc, 0), "cuMulticastAddDevice");
    remote_kill(&there);
    TAP_EQ("a bind waits on for the device of a dead process", atomic_load(&call.done), 0);
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    pthread_join(call.thread, NULL);
    TAP_EQ("and ends with the object", call.result, IV);

    call = (struct conf_call){.kind = CALL_BIND_MEM, .mc = object_make(2, FD), .mem = block.handle};
    conf_call_start(&call);
    TAP_EQ("import of another object", remote_start(&there, 1, call.mc, FD), OK);
    conf_must(sw_drv.cuMulticastAddDevice(call.mc, 0), "cuMulticastAddDevice");
    TAP_EQ("a device is added there", ask(&there, ADD), OK);
    pthread_join(call.thread, NULL);
    TAP_EQ("a bind that waited before the export comes back", call.result, OK);
    conf_must(sw_drv.cuMulticastUnbind(call.mc, 0, 0, unit), "cuMulticastUnbind");
    conf_must(sw_drv.cuMemRelease(call.mc), "cuMemRelease");
    conf_block_drop(&block);
    remote_end(&there);
}

/* An object lives as long as some process has it. A descriptor does not keep it alive. */
static void life(void)
{
    struct member here;
    struct remote there;
    CUmemGenericAllocationHandle again = 0;
    int fd;

    pair_make(&here, &there);
    fd = conf_export_fd(here.mc);
    conf_must(member_unbind(&here), "cuMulticastUnbind");
    conf_must(member_release(&here), "cuMemRelease");
    TAP_EQ("import while another process has it", conf_import_fd(&again, fd), OK);
    TAP_EQ("it has its devices still", sw_drv.cuMulticastAddDevice(again, 2), IV);
    here.mc = again;
    TAP_EQ("a bind need not wait", member_bind(&here), OK);
    TAP_EQ("an access there reaches both", ask(&there, REACH), 2);
    conf_must(member_unbind(&here), "cuMulticastUnbind");
    conf_must(member_release(&here), "cuMemRelease");
    TAP_EQ("the last process releases it", ask(&there, RELEASE), OK);
    TAP_EQ("import when nobody has it", conf_import_fd(&again, fd), OK);
    close(fd);
    TAP_EQ("it is without devices", sw_drv.cuMulticastAddDevice(again, 2), OK);
    conf_must(sw_drv.cuMemRelease(again), "cuMemRelease");
    conf_block_drop(&here.block);
    remote_end(&there);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return member_child((int)strtol(argv[2], NULL, 10));
    conf_emulate("4");
    unit = conf_team_start();
    conf_group("a killed process", killed);
    conf_group("killed at work", killed_at_work);
    conf_group("a wait given up", given_up);
    conf_group("life", life);
    return conf_done(NULL);
}
