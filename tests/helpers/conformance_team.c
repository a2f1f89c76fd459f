#include "conformance_team.h"

#include <errno.h>
#include <time.h>

#define RETURN_WITHIN_MS 50

static size_t unit;

size_t conf_team_start(void)
{
    const CUmulticastObjectProp prop = conf_mc_prop(MEMBERS, (size_t)64 << 20, 0);

    conf_must(sw_drv.cuMulticastGetGranularity(&unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
              "cuMulticastGetGranularity");
    return unit;
}

CUmulticastObjectProp conf_mc_prop(unsigned devices, size_t size, unsigned long long types)
{
    return (CUmulticastObjectProp){.numDevices = devices, .size = size, .handleTypes = types};
}

CUmemGenericAllocationHandle conf_mc_create(unsigned long long types)
{
    const CUmulticastObjectProp prop = conf_mc_prop(MEMBERS, 2 * unit, types);
    CUmemGenericAllocationHandle mc = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    return mc;
}

void conf_team_make(struct conf_team *team, unsigned types)
{
    team->mc = conf_mc_create(types);
    for (int i = MEMBERS - 1; i >= 0; i--)
        conf_must(sw_drv.cuMulticastAddDevice(team->mc, i), "cuMulticastAddDevice");
    for (int i = 0; i < MEMBERS; i++)
        conf_block_make(&team->blocks[i], i, unit, types);
}

void conf_team_bind(struct conf_team *team)
{
    for (int i = 0; i < MEMBERS; i++)
        conf_must(sw_drv.cuMulticastBindMem(team->mc, 0, team->blocks[i].handle, 0, unit, 0),
                  "cuMulticastBindMem");
}

void conf_team_unbind(struct conf_team *team)
{
    for (int i = 0; i < MEMBERS; i++)
        conf_must(sw_drv.cuMulticastUnbind(team->mc, i, 0, unit), "cuMulticastUnbind");
}

void conf_team_drop(struct conf_team *team)
{
    conf_must(sw_drv.cuMemRelease(team->mc), "cuMemRelease");
    for (int i = 0; i < MEMBERS; i++)
        conf_block_drop(&team->blocks[i]);
}

/* ---- calls that block ------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct conf_call *call = arg;

    switch (call->kind) {
    case CALL_MAP:
        call->result = sw_drv.cuMemMap(call->va, 2 * unit, 0, call->mc, 0);
        break;
    case CALL_BIND_MEM:
        call->result = sw_drv.cuMulticastBindMem(call->mc, 0, call->mem, 0, unit, 0);
        break;
    case CALL_BIND_ADDR:
        call->result = sw_drv.cuMulticastBindAddr(call->mc, 0, call->va, unit, 0);
        break;
    }
    atomic_store(&call->done, 1);
    return NULL;
}

void conf_call_start(struct conf_call *call)
{
    struct timespec left = {0, RETURN_WITHIN_MS * 1000000L};

    atomic_init(&call->done, 0);
    if (pthread_create(&call->thread, NULL, run, call) != 0)
        conf_bail("pthread_create");
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

void conf_must_block(int rule, const char *what, struct conf_call *call)
{
    char text[96];

    for (int i = 0; i < MEMBERS - 1; i++)
        conf_must(sw_drv.cuMulticastAddDevice(call->mc, i), "cuMulticastAddDevice");
    conf_call_start(call);
    snprintf(text, sizeof text, "%s blocks while a device is missing", what);
    conf_value(rule, REFUSED, text, atomic_load(&call->done), 0);
    conf_must(sw_drv.cuMulticastAddDevice(call->mc, MEMBERS - 1), "cuMulticastAddDevice");
    pthread_join(call->thread, NULL);
    snprintf(text, sizeof text, "%s returns when the last device is added", what);
    conf_accepted(rule, text, call->result);
}
