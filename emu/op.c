/* Executes one stream operation or graph node, and checks its addresses. */
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "fiber.h"

__thread int emu_in_host_function;

int emu_is_device_address(CUdeviceptr addr)
{
    return (size_t)(addr - (CUdeviceptr)(uintptr_t)emu_arena) < emu_arena_bytes;
}

int emu_range_ok(CUdevice device, CUdeviceptr addr, size_t bytes, int write)
{
    if (!emu_is_device_address(addr))
        return addr != 0 || bytes == 0;
    while (bytes > 0) {
        const struct emu_mapping *m = emu_mapping_at(addr);
        size_t part;

        if (m == NULL || addr < m->va || addr - m->va >= m->bytes ||
            !emu_may_access(m, device, write))
            return 0;
        part = m->bytes - (size_t)(addr - m->va);
        if (part >= bytes)
            return 1;
        addr += part;
        bytes -= part;
    }
    return 1;
}

/* ---- stream memory operations ---------------------------------------------------------------- */

static int wait_is_met(uint64_t seen, uint64_t value, unsigned flags, int bits)
{
    const uint64_t mask = bits == 32 ? UINT32_MAX : UINT64_MAX;

    switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic: the difference as a signed number of that width */
        return ((seen - value) >> (bits - 1) & 1) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & value) != 0;
    default:
        return (~(seen | value) & mask) != 0;
    }
}

static CUresult wait_value(CUdevice device, const CUstreamBatchMemOpParams *p, int bits)
{
    unsigned turns = 0;

    for (;;) {
        void *word = emu_access(device, p->waitValue.address, (size_t)bits / 8, 0);
        uint64_t seen;

        if (word == NULL)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        seen = bits == 32 ? __atomic_load_n((uint32_t *)word, __ATOMIC_ACQUIRE)
                          : __atomic_load_n((uint64_t *)word, __ATOMIC_ACQUIRE);
        if (wait_is_met(seen, bits == 32 ? p->waitValue.value : p->waitValue.value64,
                        p->waitValue.flags, bits))
            return CUDA_SUCCESS;
        if (emu_exiting() || atomic_load(&emu_contexts[device].sticky) != CUDA_SUCCESS)
            return CUDA_SUCCESS;
        emu_rest(&turns);
    }
}

/* A write without a memory barrier is not weaker here. */
static CUresult write_value(CUdevice device, const CUstreamBatchMemOpParams *p, int bits)
{
    void *word = emu_access(device, p->writeValue.address, (size_t)bits / 8, 1);

    if (word == NULL)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (bits == 32)
        __atomic_store_n((uint32_t *)word, p->writeValue.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)word, p->writeValue.value64, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult memory_run(const struct emu_op *op)
{
    const CUstreamBatchMemOpParams *p = op->owned;
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; i < op->memory_count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpType type = p[i].operation;

        if (type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            result = wait_value(op->device, &p[i],
                                type == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 32 : 64);
        else if (type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            result = write_value(op->device, &p[i],
                                 type == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 32 : 64);
        /* Nothing to do for flushes and barriers: all accesses are ordered here. */
    }
    return result;
}

/* ---- any operation --------------------------------------------------------------------------- */

CUresult emu_op_run(const struct emu_op *op)
{
    CUresult result = CUDA_SUCCESS;

    switch (op->kind) {
    case EMU_OP_NOTHING:
        break;
    case EMU_OP_COPY:
        result = emu_copy(op->device, op->copy.dst,
                          op->owned != NULL ? (CUdeviceptr)(uintptr_t)op->owned : op->copy.src,
                          op->copy.bytes);
        break;
    case EMU_OP_FILL:
        result = emu_fill(op->device, op->fill.dst, op->fill.value, op->fill.width, op->fill.count);
        break;
    case EMU_OP_KERNEL:
        result = emu_grid_run(op->device, op->kernel.partition, op->kernel.kernel, op->kernel.grid,
                              op->kernel.block, op->kernel.shared, op->owned);
        break;
    case EMU_OP_HOST:
        emu_in_host_function = 1;
        op->host.fn(op->host.data);
        emu_in_host_function = 0;
        break;
    case EMU_OP_MEMORY:
        result = memory_run(op);
        break;
    case EMU_OP_GRAPH:
        result = emu_graph_run(op->exec);
        break;
    }
    /* INVALID_VALUE here means that the range, valid at the call, has been unmapped since. */
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_ILLEGAL_ADDRESS : result;
}

static size_t owned_bytes(const struct emu_op *op)
{
    switch (op->kind) {
    case EMU_OP_COPY:
        return op->copy.bytes;
    case EMU_OP_KERNEL:
        return op->kernel.kernel->params_bytes;
    case EMU_OP_MEMORY:
        return op->memory_count * sizeof(CUstreamBatchMemOpParams);
    default:
        return 0;
    }
}

int emu_op_copy(struct emu_op *to, const struct emu_op *from)
{
    *to = *from;
    if (from->owned == NULL)
        return 0;
    to->owned = malloc(owned_bytes(from));
    if (to->owned == NULL)
        return -1;
    memcpy(to->owned, from->owned, owned_bytes(from));
    return 0;
}

void emu_op_free(struct emu_op *op)
{
    free(op->owned);
    op->owned = NULL;
    if (op->kind == EMU_OP_GRAPH)
        emu_graph_exec_unref(op->exec);
    op->kind = EMU_OP_NOTHING;
}
