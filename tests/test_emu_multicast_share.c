/* Multicast objects of several processes on the emulated driver: it is one object. Devices that any
 * of them adds complete it for all, a store by any of them reaches the memory that all have bound,
 * and who dies takes nobody along. */
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "../emu/emu_device.h"
#include "../emu/emu_internal.h"
#include "conformance_team.h"
#include "test_emu_wire.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

enum { MOST = 4, PAUSE_MS = 50, LIMIT_MS = 20000 };

static size_t unit;

/* ---- a member: a process with a device and memory on it -------------------------------------- */

struct member {
    int device;
    CUmemGenericAllocationHandle mc;
    struct conf_block block; /* a unit of the device's memory */
    CUdeviceptr va;          /* where the object is mapped */
};

static void member_make(struct member *m, int device, CUmemGenericAllocationHandle mc)
{
    *m = (struct member){.device = device, .mc = mc};
    conf_block_make(&m->block, device, unit, (unsigned)FD);
}

static CUresult member_bind(const struct member *m)
{
    return sw_drv.cuMulticastBindMem(m->mc, 0, m->block.handle, 0, unit, 0);
}

static CUresult member_unbind(const struct member *m)
{
    return sw_drv.cuMulticastUnbind(m->mc, m->device, 0, unit);
}

static CUresult member_map(struct member *m)
{
    CUresult result;

    m->va = conf_reserve(unit);
    result = sw_drv.cuMemMap(m->va, unit, 0, m->mc, 0);
    return result == CUDA_SUCCESS ? conf_access(m->va, unit, m->device, RW) : result;
}

static CUresult member_release(struct member *m)
{
    if (m->va != 0)
        conf_unmap(m->va, unit);
    m->va = 0;
    return sw_drv.cuMemRelease(m->mc);
}

/* How many devices' memory a word at the offset has; they are stored to unless `value` is 0. */
static int member_reach(const struct member *m, size_t offset, uint32_t value, uint32_t *sum)
{
    void *targets[EMU_MAX_DEVICES];
    const int count = emu_multicast_access(m->device, m->va + offset, sizeof value, value != 0,
                                           targets);

    *sum = 0;
    for (int i = 0; i < count; i++) {
        if (value != 0)
            __atomic_store_n((uint32_t *)targets[i], value, __ATOMIC_RELEASE);
        *sum += __atomic_load_n((uint32_t *)targets[i], __ATOMIC_ACQUIRE);
    }
    return count;
}

/* ---- members in other processes -------------------------------------------------------------- */

enum verb { ADD, BIND, UNBIND, MAP, STORE, WORD, REACH, COUNT, LEND, RELEASE, HAMMER };

struct order {
    enum verb what;
    uint32_t offset, value;
};

/* What it is told about itself; then it gets the object. */
struct hello {
    int device, by_fabric;
};

static int obey(struct member *m, const struct order *order)
{
    struct sw_emu_live live;
    uint32_t sum;

    switch (order->what) {
    case ADD:
        return (int)sw_drv.cuMulticastAddDevice(m->mc, m->device);
    case BIND:
        return (int)member_bind(m);
    case UNBIND:
        return (int)member_unbind(m);
    case MAP:
        return (int)member_map(m);
    case STORE:
    case REACH:
        return member_reach(m, order->offset, order->value, &sum);
    case WORD:
        return (int)conf_word(m->block.va + order->offset);
    case COUNT:
        sw_emu_live_count(&live);
        return (int)(live.multicasts * 100 + live.binds);
    case LEND:
        return conf_export_fd(m->block.handle);
    case RELEASE:
        return (int)member_release(m);
    case HAMMER: /* until it is killed */
        while (member_bind(m) == CUDA_SUCCESS && member_unbind(m) == CUDA_SUCCESS)
            continue;
        break;
    }
    return -1;
}

static int child(int socket)
{
    CUmemGenericAllocationHandle mc = 0;
    CUmemFabricHandle fabric;
    struct member m;
    struct hello hello;
    struct order order;
    int answer;

    conf_start();
    unit = conf_team_start();
    if (wire_receive(socket, &hello, sizeof hello) != 0)
        return 1;
    if (hello.by_fabric) {
        if (wire_receive(socket, &fabric, sizeof fabric) != 0)
            return 2;
        answer = (int)sw_drv.cuMemImportFromShareableHandle(&mc, &fabric, FABRIC);
    } else {
        const int fd = wire_receive_fd(socket);

        answer = (int)conf_import_fd(&mc, fd);
        close(fd);
    }
    if (wire_send(socket, &answer, sizeof answer) != 0 || answer != CUDA_SUCCESS)
        return 3;
    member_make(&m, hello.device, mc);
    while (wire_receive(socket, &order, sizeof order) == 0) {
        answer = obey(&m, &order);
        if (wire_send(socket, &answer, sizeof answer) != 0 ||
            (order.what == LEND && (wire_send_fd(socket, answer) != 0 || close(answer) != 0)))
            return 4;
    }
    return 0;
}

struct remote {
    struct conf_child process;
    int socket, device;
};

static int answer_of(const struct remote *r)
{
    struct pollfd ready = {.fd = r->socket, .events = POLLIN};
    int answer;

    if (poll(&ready, 1, LIMIT_MS) != 1 || wire_receive(r->socket, &answer, sizeof answer) != 0)
        return -1000; /* it hangs, or has gone */
    return answer;
}

static void order_give(const struct remote *r, enum verb what, uint32_t offset, uint32_t value)
{
    const struct order order = {what, offset, value};

    if (wire_send(r->socket, &order, sizeof order) != 0)
        conf_bail("an order to a child");
}

static int ask(const struct remote *r, enum verb what)
{
    order_give(r, what, 0, 0);
    return answer_of(r);
}

/* The word at the offset of its memory. */
static int word_there(const struct remote *r, uint32_t offset)
{
    order_give(r, WORD, offset, 0);
    return answer_of(r);
}

static int store_there(const struct remote *r, uint32_t offset, uint32_t value)
{
    order_give(r, STORE, offset, value);
    return answer_of(r);
}

static int is_silent(const struct remote *r)
{
    struct pollfd ready = {.fd = r->socket, .events = POLLIN};

    return poll(&ready, 1, PAUSE_MS) == 0;
}

/* What its import answers. */
static int remote_start(struct remote *r, int device, CUmemGenericAllocationHandle mc,
                        CUmemAllocationHandleType type)
{
    static const char *const env[] = {"SYMWIN_EMU_FABRIC=2", NULL};
    const struct hello hello = {device, type == FABRIC};
    CUmemFabricHandle fabric;

    r->device = device;
    r->socket = wire_child(&r->process, "member", env);
    wire_send(r->socket, &hello, sizeof hello);
    if (type == FABRIC) {
        conf_must(sw_drv.cuMemExportToShareableHandle(&fabric, mc, FABRIC, 0), "export");
        wire_send(r->socket, &fabric, sizeof fabric);
    } else {
        const int fd = conf_export_fd(mc);

        wire_send_fd(r->socket, fd);
        close(fd);
    }
    return answer_of(r);
}

static void remote_end(struct remote *r)
{
    close(r->socket);
    conf_child_wait(&r->process);
    TAP_EQ("a member's process ends well", r->process.status, 0);
    if (r->process.status != 0)
        printf("# %s\n", r->process.text);
}

static void remote_kill(struct remote *r)
{
    kill(r->process.pid, SIGKILL);
    conf_child_wait(&r->process);
    close(r->socket);
}

static CUmemGenericAllocationHandle object_make(unsigned devices, unsigned types)
{
    const CUmulticastObjectProp prop = conf_mc_prop(devices, unit, types);
    CUmemGenericAllocationHandle mc = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    return mc;
}

/* Two members, the second one in another process; both have added their devices, have bound and
 * mapped. */
static void pair_make(struct member *here, struct remote *there)
{
    const CUmemGenericAllocationHandle mc = object_make(2, FD);

    TAP_EQ("import of an object", remote_start(there, 1, mc, FD), OK);
    member_make(here, 0, mc);
    conf_must(sw_drv.cuMulticastAddDevice(mc, 0), "cuMulticastAddDevice");
    conf_must((CUresult)ask(there, ADD), "cuMulticastAddDevice there");
    conf_must(member_bind(here), "cuMulticastBindMem");
    conf_must((CUresult)ask(there, BIND), "cuMulticastBindMem there");
    conf_must(member_map(here), "cuMemMap");
    conf_must((CUresult)ask(there, MAP), "cuMemMap there");
}

static void pair_drop(struct member *here, struct remote *there)
{
    conf_must(member_unbind(here), "cuMulticastUnbind");
    conf_must(member_release(here), "cuMemRelease");
    conf_block_drop(&here->block);
    remote_end(there);
}

static int reach(const struct member *m)
{
    uint32_t sum;

    return member_reach(m, 0, 0, &sum);
}

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
    TAP_EQ("a copy to the object", conf_poke(here.va + unit - 4, 13), OK);
    TAP_EQ("arrives there", word_there(&there, (uint32_t)unit - 4), 13);
    sw_emu_live_count(&live);
    TAP_EQ("their memory is none of our allocations", live.allocations, 1);
    TAP_EQ("their binding none of ours", live.binds, 1);
    pair_drop(&here, &there);
}

/* What is bound and unbound while the object is mapped elsewhere. */
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

/* Memory that another process has bound, and of which we have a handle, for a while. */
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

/* When told to go on, waits for both members' words, and stores an answer to both. */
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

/* The other process binds while our kernel runs, which must find that out by itself. */
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

/* ---- death ----------------------------------------------------------------------------------- */

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

/* A wait for a process that will not come: the object's last handle here is the way out. */
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

/* An object lives as long as some process has it; a descriptor does not keep it. */
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

static void four(void)
{
    CUmemFabricHandle handle;
    struct member here;
    struct remote there[MOST - 1];
    uint32_t sum;
    int wrong = 0;

    conf_machine(2, 1);
    member_make(&here, 0, object_make(MOST, (unsigned)FD | (unsigned)FABRIC));
    for (int i = 0; i < MOST - 1; i++) /* fabric handles and descriptors lead to the same object */
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
        return child((int)strtol(argv[2], NULL, 10));
    conf_emulate("4");
    unit = conf_team_start();
    conf_group("devices", devices);
    conf_group("stores", stores);
    conf_group("changes", changes);
    conf_group("lent memory", lent_memory);
    conf_group("a kernel", kernel);
    conf_group("a killed process", killed);
    conf_group("killed at work", killed_at_work);
    conf_group("a wait given up", given_up);
    conf_group("life", life);
    conf_group("four processes", four);
    return conf_done(NULL);
}
