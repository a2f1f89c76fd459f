/* What an access to a multicast address of the emulated driver reaches: each member's memory, in
 * the order in which the members were added, if the device has access. */
#include <string.h>

#include "conformance.h"
#include "emu/emu_internal.h"

#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define READ CU_MEM_ACCESS_FLAGS_PROT_READ
#define NONE CU_MEM_ACCESS_FLAGS_PROT_NONE
#define MEMBERS 4

/* Two mapped units of multicast. Each member's memory is three units, of which the second is bound
 * at the object's first. Members are added from the last device to the first. */
struct fixture {
    size_t unit;
    CUmemGenericAllocationHandle mc;
    CUdeviceptr va;
    struct conf_block blocks[MEMBERS];
};

static void *targets[EMU_MAX_DEVICES];

static int reach(CUdevice device, CUdeviceptr addr, size_t bytes, int write)
{
    memset(targets, 0, sizeof targets);
    return emu_multicast_access(device, addr, bytes, write, targets);
}

static void bind(struct fixture *f, int member)
{
    conf_must(sw_drv.cuMulticastBindMem(f->mc, 0, f->blocks[member].handle, f->unit, f->unit, 0),
              "cuMulticastBindMem");
}

static void unbind(struct fixture *f, int member)
{
    conf_must(sw_drv.cuMulticastUnbind(f->mc, member, 0, f->unit), "cuMulticastUnbind");
}

static void set_up(struct fixture *f)
{
    CUmulticastObjectProp prop = {MEMBERS, conf.granule, 0, 0};

    conf_must(sw_drv.cuMulticastGetGranularity(&f->unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
              "cuMulticastGetGranularity");
    prop.size = 2 * f->unit;
    conf_must(sw_drv.cuMulticastCreate(&f->mc, &prop), "cuMulticastCreate");
    for (int i = MEMBERS - 1; i >= 0; i--) {
        conf_must(sw_drv.cuMulticastAddDevice(f->mc, i), "cuMulticastAddDevice");
        conf_block_make(&f->blocks[i], i, 3 * f->unit, 0);
    }
    f->va = conf_reserve(2 * f->unit);
    conf_must(sw_drv.cuMemMap(f->va, 2 * f->unit, 0, f->mc, 0), "cuMemMap");
    for (int i = 0; i < MEMBERS; i++) {
        conf_must(conf_access(f->va, 2 * f->unit, i, RW), "cuMemSetAccess");
        bind(f, i);
    }
}

static void tear_down(struct fixture *f)
{
    conf_unmap(f->va, 2 * f->unit);
    for (int i = 0; i < MEMBERS; i++)
        unbind(f, i);
    conf_must(sw_drv.cuMemRelease(f->mc), "cuMemRelease");
    for (int i = 0; i < MEMBERS; i++)
        conf_block_drop(&f->blocks[i]);
}

static void contents(void)
{
    const uint32_t value = 0xabcd1234;
    struct fixture f;
    long long sum = 0;
    int ok = 1, order = 1;

    set_up(&f);
    for (int i = 0; i < MEMBERS; i++)
        conf_must(conf_poke(f.blocks[i].va + f.unit + 64, 1u << 4 * i), "cuMemcpyHtoD");
    TAP_EQ("a load reaches every member", reach(2, f.va + 64, 4, 0), MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        uint32_t word = 0;

        if (targets[i] != NULL)
            memcpy(&word, targets[i], sizeof word);
        sum += word;
        order &= word == 1u << 4 * (MEMBERS - 1 - i);
    }
    TAP_EQ("it reads what each has there", sum, 0x1111);
    tap_ok(order, "in the order in which the members were added");
    TAP_EQ("a store reaches every member", reach(0, f.va + f.unit - 4, 4, 1), MEMBERS);
    for (int i = 0; i < MEMBERS; i++)
        if (targets[i] != NULL)
            memcpy(targets[i], &value, sizeof value);
    for (int i = 0; i < MEMBERS; i++) {
        ok &= conf_word(f.blocks[i].va + 2 * f.unit - 4) == value;
        ok &= conf_word(f.blocks[i].va + f.unit - 4) == 0; /* the unit before: not bound */
        ok &= conf_word(f.blocks[i].va + 2 * f.unit) == 0; /* nor the unit after */
    }
    tap_ok(ok, "it writes there and nowhere else");
    tear_down(&f);
}

static void two_addresses(void)
{
    struct fixture f;
    CUdeviceptr other;
    void *first[MEMBERS];

    set_up(&f);
    other = conf_reserve(2 * f.unit);
    conf_must(sw_drv.cuMemMap(other, 2 * f.unit, 0, f.mc, 0), "cuMemMap");
    conf_must(conf_access(other, 2 * f.unit, 1, RW), "cuMemSetAccess");
    reach(1, f.va + 128, 16, 1);
    memcpy(first, targets, sizeof first);
    TAP_EQ("a second mapping reaches every member", reach(1, other + 128, 16, 1), MEMBERS);
    tap_ok(memcmp(first, targets, sizeof first) == 0, "at the same places");
    conf_unmap(other, 2 * f.unit);
    TAP_EQ("unmapped it reaches none", reach(1, other + 128, 16, 1), 0);
    tear_down(&f);
}

static void refused(void)
{
    struct fixture f;
    CUdeviceptr va;

    set_up(&f);
    va = f.va;
    TAP_EQ("where nothing is bound", reach(0, va + f.unit, 4, 0), 0);
    TAP_EQ("past the mapping", reach(0, va + 2 * f.unit, 4, 0), 0);
    TAP_EQ("across its end", reach(0, va + 2 * f.unit - 8, 16, 0), 0);
    TAP_EQ("across the end of what is bound", reach(0, va + f.unit - 8, 16, 1), 0);
    TAP_EQ("at the address of memory", reach(0, f.blocks[0].va, 4, 0), 0);
    TAP_EQ("at an address of the host", reach(0, (CUdeviceptr)(uintptr_t)&f, 4, 0), 0);
    TAP_EQ("at address 0", reach(0, 0, 4, 0), 0);
    tap_ok(emu_access(0, va, 4, 0) == NULL, "a multicast address is no address of memory");

    conf_must(conf_access(va, 2 * f.unit, 3, READ), "cuMemSetAccess");
    TAP_EQ("a store with the right to read", reach(3, va, 4, 1), 0);
    TAP_EQ("a load with the right to read", reach(3, va, 4, 0), MEMBERS);
    conf_must(conf_access(va, 2 * f.unit, 3, NONE), "cuMemSetAccess");
    TAP_EQ("a load without rights", reach(3, va, 4, 0), 0);
    TAP_EQ("another member is not concerned", reach(2, va, 4, 1), MEMBERS);

    unbind(&f, 1);
    TAP_EQ("while one member has nothing bound", reach(0, va, 4, 1), 0);
    bind(&f, 1);
    TAP_EQ("when it has again", reach(0, va, 4, 1), MEMBERS);
    tear_down(&f);
}

/* Memory without an address is still its member's; released memory is not. */
static void memory_without_address(void)
{
    struct fixture f;

    set_up(&f);
    conf_unmap(f.blocks[0].va, f.blocks[0].bytes);
    TAP_EQ("memory that is bound and mapped nowhere", reach(1, f.va, 4, 1), MEMBERS);
    conf_must(sw_drv.cuMemRelease(f.blocks[0].handle), "cuMemRelease");
    TAP_EQ("memory that was bound and has gone", reach(1, f.va, 4, 1), 0);
    conf_block_make(&f.blocks[0], 0, 3 * f.unit, 0);
    TAP_EQ("nor does other memory take its place", reach(1, f.va, 4, 1), 0);
    TAP_EQ("unbind of what has gone", sw_drv.cuMulticastUnbind(f.mc, 0, 0, f.unit), IV);
    bind(&f, 0);
    TAP_EQ("until it is bound", reach(1, f.va, 4, 1), MEMBERS);
    tear_down(&f);
}

int main(void)
{
    conf_emulate("5");
    conf_group("contents", contents);
    conf_group("two addresses", two_addresses);
    conf_group("refused", refused);
    conf_group("memory without address", memory_without_address);
    return conf_done(NULL);
}
