/* Multicast objects of several processes: a member is a process with a device and memory on it.
 * `struct remote` is a member in a child process, which obeys orders that come by its socket. */
#ifndef SYMWIN_TESTS_EMU_MEMBER_H
#define SYMWIN_TESTS_EMU_MEMBER_H

#include <poll.h>
#include <signal.h>

#include "conformance.h"
#include "emu/emu_internal.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

enum { PAUSE_MS = 50, LIMIT_MS = 20000 };

static size_t unit; /* of multicast */

/* ---- a member ------------------------------------------------------------------------------- */

struct member {
    int device;
    CUmemGenericAllocationHandle mc;
    struct conf_block block; /* a unit of the device's memory */
    CUdeviceptr va;          /* where the object is mapped */
    size_t mapped;           /* how much of it, from its start; 0: a unit */
    size_t at;               /* where in the object the memory is bound */
};

static inline size_t member_span(const struct member *m)
{
    return m->mapped > 0 ? m->mapped : unit;
}

static inline void member_make(struct member *m, int device, CUmemGenericAllocationHandle mc)
{
    *m = (struct member){.device = device, .mc = mc};
    conf_block_make(&m->block, device, unit, (unsigned)FD);
}

static inline CUresult member_bind(const struct member *m)
{
    return sw_drv.cuMulticastBindMem(m->mc, m->at, m->block.handle, 0, unit, 0);
}

static inline CUresult member_unbind(const struct member *m)
{
    return sw_drv.cuMulticastUnbind(m->mc, m->device, m->at, unit);
}

/* Unbinds and binds `times` times; 0: until it is killed. */
static inline CUresult member_hammer(const struct member *m, uint32_t times)
{
    CUresult result = CUDA_SUCCESS;

    for (uint32_t i = 0; result == CUDA_SUCCESS && (times == 0 || i < times); i++) {
        result = member_unbind(m);
        if (result == CUDA_SUCCESS)
            result = member_bind(m);
    }
    return result;
}

static inline CUresult member_map(struct member *m)
{
    CUresult result;

    m->va = conf_reserve(member_span(m));
    result = sw_drv.cuMemMap(m->va, member_span(m), 0, m->mc, 0);
    return result == CUDA_SUCCESS ? conf_access(m->va, member_span(m), m->device, RW) : result;
}

static inline CUresult member_release(struct member *m)
{
    if (m->va != 0)
        conf_unmap(m->va, member_span(m));
    m->va = 0;
    return sw_drv.cuMemRelease(m->mc);
}

/* On how many devices a word at the offset from `at` has memory; stores `value` there unless it is
 * 0. */
static inline int member_reach(const struct member *m, size_t offset, uint32_t value, uint32_t *sum)
{
    void *targets[EMU_MAX_DEVICES];
    const int count = emu_multicast_access(m->device, m->va + m->at + offset, sizeof value,
                                           value != 0, targets);

    *sum = 0;
    for (int i = 0; i < count; i++) {
        if (value != 0)
            __atomic_store_n((uint32_t *)targets[i], value, __ATOMIC_RELEASE);
        *sum += __atomic_load_n((uint32_t *)targets[i], __ATOMIC_ACQUIRE);
    }
    return count;
}

/* ---- members in other processes -------------------------------------------------------------- */

enum verb { ADD, BIND, UNBIND, MAP, STORE, WORD, REACH, COUNT, LEND, RELEASE, HAMMER, SPAN, AT };

struct order {
    enum verb what;
    uint32_t offset, value;
};

/* The first record to the child; the object follows. */
struct hello {
    int device, by_fabric;
};

static inline int obey(struct member *m, const struct order *order)
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
    case HAMMER:
        return (int)member_hammer(m, order->value);
    case SPAN: /* before MAP; in units, as AT */
        m->mapped = order->value * unit;
        return 0;
    case AT:
        m->at = order->value * unit;
        return 0;
    }
    return -1;
}

/* The whole of a child process. */
static inline int member_child(int socket)
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

static inline int answer_of(const struct remote *r)
{
    struct pollfd ready = {.fd = r->socket, .events = POLLIN};
    int answer;

    if (poll(&ready, 1, LIMIT_MS) != 1 || wire_receive(r->socket, &answer, sizeof answer) != 0)
        return -1000; /* it hangs, or has ended */
    return answer;
}

static inline void order_give(const struct remote *r, enum verb what, uint32_t offset,
                              uint32_t value)
{
    const struct order order = {what, offset, value};

    if (wire_send(r->socket, &order, sizeof order) != 0)
        conf_bail("an order to a child");
}

static inline int ask(const struct remote *r, enum verb what)
{
    order_give(r, what, 0, 0);
    return answer_of(r);
}

/* The word at the offset of its memory. */
static inline int word_there(const struct remote *r, uint32_t offset)
{
    order_give(r, WORD, offset, 0);
    return answer_of(r);
}

static inline int store_there(const struct remote *r, uint32_t offset, uint32_t value)
{
    order_give(r, STORE, offset, value);
    return answer_of(r);
}

static inline int is_silent(const struct remote *r)
{
    struct pollfd ready = {.fd = r->socket, .events = POLLIN};

    return poll(&ready, 1, PAUSE_MS) == 0;
}

/* Starts the child; the status of its import. */
static inline int remote_start(struct remote *r, int device, CUmemGenericAllocationHandle mc,
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

static inline void remote_end(struct remote *r)
{
    close(r->socket);
    conf_child_wait(&r->process);
    TAP_EQ("a member's process ends well", r->process.status, 0);
    if (r->process.status != 0)
        printf("# %s\n", r->process.text);
}

static inline void remote_kill(struct remote *r)
{
    kill(r->process.pid, SIGKILL);
    conf_child_wait(&r->process);
    close(r->socket);
}

static inline CUmemGenericAllocationHandle object_make(unsigned devices, unsigned types)
{
    const CUmulticastObjectProp prop = conf_mc_prop(devices, unit, types);
    CUmemGenericAllocationHandle mc = 0;

    conf_must(sw_drv.cuMulticastCreate(&mc, &prop), "cuMulticastCreate");
    return mc;
}

/* Two members, the second in another process. Both have added their devices, bound and mapped. */
static inline void pair_make(struct member *here, struct remote *there)
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

static inline void pair_drop(struct member *here, struct remote *there)
{
    conf_must(member_unbind(here), "cuMulticastUnbind");
    conf_must(member_release(here), "cuMemRelease");
    conf_block_drop(&here->block);
    remote_end(there);
}

static inline int reach(const struct member *m)
{
    uint32_t sum;

    return member_reach(m, 0, 0, &sum);
}

#endif
