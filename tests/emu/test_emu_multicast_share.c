/* One multicast object in several processes on the emulated driver. A device that any process adds
 * counts for all, and a store by any process reaches the memory that all have bound. Processes that
 * die: test_emu_multicast_death.c. */
#include "emu/emu_device.h"
#include "emu_member.h"

enum { MOST = 4 };

/* ---- cases ----------------------------------------------------------------------------------- */

static void devices(void)
{
    const CUmemGenericAllocationHandle mc = object_make(2, FD);
    struct member here;
    struct remote there;

    TAP_EQ("import of an object without devices", remote_start(&there, 1, mc, FD), OK);
    member_make(&here, 0, mc);
    TAP_EQ("the other process adds its device", ask(&there, ADD), OK);
    TAP_EQ("which is a member here too", sw_drv.cuMulticastAddDevice(mc, 1), IV);
    order_give(&there, BIND, 0, 0);
    tap_ok(is_silent(&there), "its bind blocks while our device is missing");
    TAP_EQ("we add ours", sw_drv.cuMulticastAddDevice(mc, 0), OK);
    TAP_EQ("its bind comes back", answer_of(&there), OK);
    TAP_EQ("another device is one too many", sw_drv.cuMulticastAddDevice(mc, 2), IV);
    TAP_EQ("there too", ask(&there, ADD), IV);
    TAP_EQ("our bind need not wait", member_bind(&here), OK);
    TAP_EQ("one object and one binding there", ask(&there, COUNT), 101);
    TAP_EQ("a map there", ask(&there, MAP), OK);
    TAP_EQ("it reaches both members", ask(&there, REACH), 2);
    TAP_EQ("unbind there", ask(&there, UNBIND), OK);
    TAP_EQ("no binding is left there", ask(&there, COUNT), 100);
    TAP_EQ("release there", ask(&there, RELEASE), OK);
    TAP_EQ("no object is left there", ask(&there, COUNT), 0);
    conf_must(member_unbind(&here), "cuMulticastUnbind");
    conf_must(member_release(&here), "cuMemRelease");
    conf_block_drop(&here.block);
    remote_end(&there);
}

static void stores(void)
{
    struct sw_emu_live live;
    struct member here;
    struct remote there;
    uint32_t sum;

    pair_make(&here, &there);
    TAP_EQ("a store here reaches both", member_reach(&here, 8, 11, &sum), 2);
    TAP_EQ("our memory has it", conf_word(here.block.va + 8), 11);
    TAP_EQ("and so has the other process's", word_there(&there, 8), 11);
    TAP_EQ("a store there reaches both", store_there(&there, 16, 12), 2);
    TAP_EQ("our memory has it too", conf_word(here.block.va + 16), 12);
    TAP_EQ("and theirs", word_there(&there, 16), 12);
    conf_must(conf_poke(here.block.va + 24, 5), "cuMemcpyHtoD");
    member_reach(&here, 16, 0, &sum);
    TAP_EQ("a load reads both", sum, 24);
    member_reach(&here, 24, 0, &sum);
    TAP_EQ("each its own", sum, 5);
    conf_must(conf_poke(here.block.va + 24, 13), "cuMemcpyHtoD");
    TAP_EQ("a copy to the object", sw_drv.cuMemcpyDtoD(here.va + unit - 4, here.block.va + 24, 4),
           OK);
    TAP_EQ("arrives there", word_there(&there, (uint32_t)unit - 4), 13);
    sw_emu_live_count(&live);
    TAP_EQ("their memory is none of our allocations", live.allocations, 1);
    TAP_EQ("their binding none of ours", live.binds, 1);
    pair_drop(&here, &there);
}

/* Binds and unbinds while the object is mapped in another process. */
static void changes(void)
{
    struct conf_block other;
    struct member here;
    struct remote there;

    pair_make(&here, &there);
    conf_block_make(&other, 1, unit, (unsigned)FD);
    TAP_EQ("a bind over what the other process has bound",
           sw_drv.cuMulticastBindMem(here.mc, 0, other.handle, 0, unit, 0), IV);
    TAP_EQ("it unbinds", ask(&there, UNBIND), OK);
    TAP_EQ("an access here reaches nothing", reach(&here), 0);
    TAP_EQ("it binds again", ask(&there, BIND), OK);
    TAP_EQ("an access reaches both", reach(&here), 2);
    TAP_EQ("we unbind for it", sw_drv.cuMulticastUnbind(here.mc, 1, 0, unit), OK);
    TAP_EQ("an access there reaches nothing", ask(&there, REACH), 0);
    TAP_EQ("and it has no binding", ask(&there, COUNT), 100);
    TAP_EQ("we bind memory on its device",
           sw_drv.cuMulticastBindMem(here.mc, 0, other.handle, 0, unit, 0), OK);
    TAP_EQ("a store there", store_there(&there, 32, 21), 2);
    TAP_EQ("reaches that memory", conf_word(other.va + 32), 21);
    conf_block_drop(&other);
    TAP_EQ("when that memory has gone, an access there reaches nothing", ask(&there, REACH), 0);
    TAP_EQ("nor does one here", reach(&here), 0);
    TAP_EQ("unbind there of what has gone", ask(&there, UNBIND), IV);
    TAP_EQ("it binds once more", ask(&there, BIND), OK);
    TAP_EQ("an access reaches both again", reach(&here), 2);
    pair_drop(&here, &there);
}

/* Both processes change the object at the same time, repeatedly. */
static void at_once(void)
{
    enum { TIMES = 2000 };
    struct member here;
    struct remote there;

    pair_make(&here, &there);
    order_give(&there, HAMMER, 0, TIMES);
    TAP_EQ("unbinds and binds here", member_hammer(&here, TIMES), OK);
    TAP_EQ("and there", answer_of(&there), OK);
    TAP_EQ("an access here reaches both", reach(&here), 2);
    TAP_EQ("and one there", ask(&there, REACH), 2);
    pair_drop(&here, &there);
}

/* Memory that another process has bound, while we hold a handle of it. */
static void lent_memory(void)
{
    CUmemGenericAllocationHandle lent = 0;
    struct member here;
    struct remote there;
    uint32_t sum;
    int fd;

    pair_make(&here, &there);
    conf_must((CUresult)ask(&there, UNBIND), "cuMulticastUnbind there");
    tap_ok(ask(&there, LEND) >= 0, "the other process lends its memory");
    fd = wire_receive_fd(there.socket);
    conf_must(conf_import_fd(&lent, fd), "cuMemImportFromShareableHandle");
    close(fd);
    conf_must((CUresult)ask(&there, BIND), "cuMulticastBindMem there");
    TAP_EQ("a store while we have a handle of it", member_reach(&here, 48, 41, &sum), 2);
    TAP_EQ("arrives", word_there(&there, 48), 41);
    conf_must(sw_drv.cuMemRelease(lent), "cuMemRelease");
    TAP_EQ("a store when we have none", member_reach(&here, 48, 42, &sum), 2);
    TAP_EQ("arrives", word_there(&there, 48), 42);
    pair_drop(&here, &there);
}

/* ---- a kernel -------------------------------------------------------------------------------- */

enum { KERNEL_WORD = 256, KERNEL_ANSWER = 320, KERNEL_VALUE = 51 };

static atomic_int go;

static const uint32_t *word_of(CUdeviceptr va, size_t offset)
{
    return (const uint32_t *)(uintptr_t)(va + offset);
}

/* Once told to go on, waits for both members' words, and stores an answer to both. */
static void await(const void *params)
{
    const CUdeviceptr va = *(const CUdeviceptr *)params;
    void *targets[EMU_MAX_DEVICES];
    uint32_t sum = 0;

    while (!atomic_load(&go))
        emu_dev_pause();
    while (sum != 2 * KERNEL_VALUE) {
        const int count = emu_dev_multicast(word_of(va, KERNEL_WORD), 4, 0, targets);

        sum = 0;
        for (int i = 0; i < count; i++)
            sum += __atomic_load_n((uint32_t *)targets[i], __ATOMIC_ACQUIRE);
        emu_dev_pause();
    }
    for (int i = emu_dev_multicast(word_of(va, KERNEL_ANSWER), 4, 1, targets) - 1; i >= 0; i--)
        __atomic_store_n((uint32_t *)targets[i], sum, __ATOMIC_RELEASE);
}

static const struct sw_emu_kernel kernels[] = {{"await", await, sizeof(CUdeviceptr), 0}};
static const struct sw_emu_image image = {SW_EMU_IMAGE_MAGIC, 1, kernels};

/* The other process binds while our kernel runs. The kernel must notice without a further call. */
static void kernel(void)
{
    struct member here;
    struct remote there;
    void *params[] = {&here.va};
    CUlibrary library = NULL;
    CUkernel function = NULL;

    pair_make(&here, &there);
    conf_must((CUresult)ask(&there, UNBIND), "cuMulticastUnbind there");
    TAP_EQ("nothing is reached", reach(&here), 0);
    conf_must(sw_drv.cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0), "library");
    conf_must(sw_drv.cuLibraryGetKernel(&function, library, "await"), "cuLibraryGetKernel");
    conf_must(sw_drv.cuLaunchKernel((CUfunction)function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
              "cuLaunchKernel");
    conf_must((CUresult)ask(&there, BIND), "cuMulticastBindMem there");
    atomic_store(&go, 1);
    TAP_EQ("a store there", store_there(&there, KERNEL_WORD, KERNEL_VALUE), 2);
    TAP_EQ("lets our kernel end", sw_drv.cuStreamSynchronize(NULL), OK);
    TAP_EQ("its answer is here", conf_word(here.block.va + KERNEL_ANSWER), 2 * KERNEL_VALUE);
    TAP_EQ("and there", word_there(&there, KERNEL_ANSWER), 2 * KERNEL_VALUE);
    conf_must(sw_drv.cuLibraryUnload(library), "cuLibraryUnload");
    pair_drop(&here, &there);
}

static void four(void)
{
    CUmemFabricHandle handle;
    struct member here;
    struct remote there[MOST - 1];
    uint32_t sum;
    int wrong = 0;

    conf_machine(2, 1);
    member_make(&here, 0, object_make(MOST, (unsigned)FD | (unsigned)FABRIC));
    for (int i = 0; i < MOST - 1; i++) /* fabric handles and descriptors name the same object */
        wrong += remote_start(&there[i], i + 1, here.mc, i == 1 ? FD : FABRIC) != OK;
    TAP_EQ("three processes import", wrong, 0);
    for (int i = 0; i < MOST - 1; i++)
        order_give(&there[i], ADD, 0, 0);
    conf_must(sw_drv.cuMulticastAddDevice(here.mc, 0), "cuMulticastAddDevice");
    for (int i = 0; i < MOST - 1; i++)
        wrong += answer_of(&there[i]) != OK;
    for (int i = 0; i < MOST - 1; i++)
        order_give(&there[i], BIND, 0, 0);
    conf_must(member_bind(&here), "cuMulticastBindMem");
    for (int i = 0; i < MOST - 1; i++)
        wrong += answer_of(&there[i]) != OK || ask(&there[i], MAP) != OK;
    TAP_EQ("all add, bind and map at the same time", wrong, 0);
    conf_must(member_map(&here), "cuMemMap");
    for (int i = 0; i < MOST - 1; i++)
        order_give(&there[i], STORE, 64 * (uint32_t)i, 100 + (uint32_t)i);
    for (int i = 0; i < MOST - 1; i++)
        wrong += answer_of(&there[i]) != MOST;
    TAP_EQ("a store by each", member_reach(&here, 1024, 99, &sum), MOST);
    for (int i = 0; i < MOST - 1; i++) {
        for (int k = 0; k < MOST - 1; k++)
            wrong += word_there(&there[i], 64 * (uint32_t)k) != 100 + k;
        wrong += word_there(&there[i], 1024) != 99;
        wrong += conf_word(here.block.va + 64 * (size_t)i) != 100 + i;
    }
    TAP_EQ("reaches everybody", wrong, 0);
    conf_must(sw_drv.cuMemExportToShareableHandle(&handle, here.mc, FABRIC, 0), "export");
    pair_drop(&here, &there[0]);
    TAP_EQ("a fabric handle when its process has released the object",
           conf_try_import(&handle, FABRIC), IV);
    remote_end(&there[1]);
    remote_end(&there[2]);
    conf_machine(1, 1);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return member_child((int)strtol(argv[2], NULL, 10));
    conf_emulate("4");
    unit = conf_team_start();
    conf_group("devices", devices);
    conf_group("stores", stores);
    conf_group("changes", changes);
    conf_group("changes at once", at_once);
    conf_group("lent memory", lent_memory);
    conf_group("a kernel", kernel);
    conf_group("four processes", four);
    return conf_done(NULL);
}
