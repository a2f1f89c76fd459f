/* Copies, fills, host functions and stream memory operations: the calls that enqueue work, with
 * their checks. */
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "memory.h"

/* ---- what may be copied and filled ----------------------------------------------------------- */

enum { HOST = 1, DEVICE = 2, MULTICAST = 4 };

/* What lies in the range. */
static unsigned kinds_in(CUdeviceptr addr, size_t bytes)
{
    unsigned kinds = 0;

    if (!emu_is_device_address(addr))
        return HOST;
    for (size_t done = 0; done < bytes;) {
        const struct emu_view *view = emu_view_at(addr + done);

        if (view == NULL)
            break;
        if (view->seen.multicast != NULL)
            kinds |= MULTICAST;
        else
            kinds |= view->device < 0 ? HOST : DEVICE;
        done += view->seen.bytes - (size_t)(addr + done - view->seen.va);
    }
    return kinds;
}

/* Only devices reach multicast addresses: the host's side of a copy must not be one. */
static int copy_is_ok(CUdevice device, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    const unsigned kinds = kinds_in(dst, bytes) | kinds_in(src, bytes);

    return (kinds & (HOST | MULTICAST)) != (HOST | MULTICAST) &&
           emu_range_ok(device, dst, bytes, 1) && emu_range_ok(device, src, bytes, 0);
}

static int fill_is_ok(CUdevice device, CUdeviceptr dst, size_t bytes)
{
    return emu_is_device_address(dst) && (kinds_in(dst, bytes) & MULTICAST) == 0 &&
           emu_range_ok(device, dst, bytes, 1);
}

/* ---- copies and fills ------------------------------------------------------------------------ */

/* Synchronous calls are ordered in the legacy stream. If there is nothing to wait for, the calling
 * thread does the work. */
static CUresult run_now(struct CUctx_st *ctx, struct emu_op *op)
{
    struct CUstream_st *legacy = emu_stream_legacy(ctx->device);
    CUresult result = emu_capture_forbids_legacy(ctx->device);

    if (result == CUDA_SUCCESS)
        result = emu_capture_forbids();
    if (result != CUDA_SUCCESS)
        return result;
    if (emu_legacy_is_free(ctx->device))
        return emu_op_run(op);
    result = emu_submit(legacy, op, NULL, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    emu_stream_wait(legacy);
    return (CUresult)atomic_load(&ctx->sticky);
}

static CUresult copy_now(enum emu_entry entry, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                         int dst_is_device, int src_is_device)
{
    struct emu_op op = {.kind = EMU_OP_COPY, .copy = {dst, src, bytes}};
    struct CUctx_st *ctx;
    CUresult result = emu_begin(entry, &ctx, 0);

    if (result != CUDA_SUCCESS || bytes == 0)
        return result;
    op.device = ctx->device;
    if ((dst_is_device && !emu_is_device_address(dst)) ||
        (src_is_device && !emu_is_device_address(src)) || !copy_is_ok(ctx->device, dst, src, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return run_now(ctx, &op);
}

CUresult sw_emu_cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    return copy_now(EMU_cuMemcpyHtoD, dst, (CUdeviceptr)(uintptr_t)src, bytes, 1, 0);
}

CUresult sw_emu_cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    return copy_now(EMU_cuMemcpyDtoH, (CUdeviceptr)(uintptr_t)dst, src, bytes, 0, 1);
}

CUresult sw_emu_cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return copy_now(EMU_cuMemcpyDtoD, dst, src, bytes, 1, 1);
}

/* Pageable memory as on hardware: a source is read and a destination is written before the call
 * returns. A capture keeps the address. */
CUresult sw_emu_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct emu_op op = {.kind = EMU_OP_COPY, .copy = {dst, src, bytes}};
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuMemcpyAsync, stream, &s, 0);
    int captured;

    if (result != CUDA_SUCCESS || bytes == 0)
        return result;
    op.device = s->device;
    if (!copy_is_ok(s->device, dst, src, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    captured = atomic_load(&s->capture) != NULL;
    if (!captured && !emu_is_device_address(src)) {
        op.owned = malloc(bytes);
        if (op.owned == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(op.owned, (const void *)(uintptr_t)src, bytes);
    }
    result = emu_submit(s, &op, NULL, NULL);
    if (result != CUDA_SUCCESS || captured || emu_is_device_address(dst))
        return result;
    emu_stream_wait(s);
    return (CUresult)atomic_load(&s->ctx->sticky);
}

CUresult sw_emu_cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t count)
{
    struct emu_op op = {.kind = EMU_OP_FILL, .fill = {dst, value, 1, count}};
    struct CUctx_st *ctx;
    CUresult result = emu_begin(EMU_cuMemsetD8, &ctx, 0);

    if (result != CUDA_SUCCESS || count == 0)
        return result;
    op.device = ctx->device;
    if (!fill_is_ok(ctx->device, dst, count))
        return CUDA_ERROR_INVALID_VALUE;
    return run_now(ctx, &op);
}

static CUresult fill_async(enum emu_entry entry, CUdeviceptr dst, unsigned value, size_t width,
                           size_t count, CUstream stream)
{
    struct emu_op op = {.kind = EMU_OP_FILL, .fill = {dst, value, width, count}};
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(entry, stream, &s, 0);

    if (result != CUDA_SUCCESS || count == 0)
        return result;
    op.device = s->device;
    if (dst % width != 0 || count > SIZE_MAX / width || !fill_is_ok(s->device, dst, count * width))
        return CUDA_ERROR_INVALID_VALUE;
    return emu_submit(s, &op, NULL, NULL);
}

CUresult sw_emu_cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    return fill_async(EMU_cuMemsetD8Async, dst, value, 1, count, stream);
}

CUresult sw_emu_cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    return fill_async(EMU_cuMemsetD32Async, dst, value, 4, count, stream);
}

/* ---- host functions -------------------------------------------------------------------------- */

CUresult sw_emu_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *user_data)
{
    struct emu_op op = {.kind = EMU_OP_HOST, .host = {fn, user_data}};
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(EMU_cuLaunchHostFunc, stream, &s, fn == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    op.device = s->device;
    return emu_submit(s, &op, NULL, NULL);
}

/* ---- stream memory operations ---------------------------------------------------------------- */

/* waitValue and writeValue have the same members in the same places. */
static int memory_op_ok(CUdevice device, const CUstreamBatchMemOpParams *p)
{
    const CUstreamBatchMemOpType type = p->operation;
    const int writes = type == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                       type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    const int waits = type == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                      type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    const size_t size = type == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                                type == CU_STREAM_MEM_OP_WAIT_VALUE_32
                            ? 4
                            : 8;

    if (!writes && !waits)
        return type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES || type == CU_STREAM_MEM_OP_BARRIER;
    return (writes ? p->writeValue.flags <= CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
                   : (p->waitValue.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) == 0) &&
           p->waitValue.address % size == 0 &&
           emu_access(device, p->waitValue.address, size, writes) != NULL;
}

static CUresult memory_ops(enum emu_entry entry, CUstream stream, unsigned count,
                           const CUstreamBatchMemOpParams *p, unsigned flags)
{
    enum { MOST = 256 };
    struct emu_op op = {.kind = EMU_OP_MEMORY, .memory_count = count};
    struct CUstream_st *s;
    CUresult result = emu_enter_stream(entry, stream, &s,
                                       count == 0 || count > MOST || p == NULL || flags != 0);

    if (result != CUDA_SUCCESS)
        return result;
    for (unsigned i = 0; i < count; i++)
        if (!memory_op_ok(s->device, &p[i]))
            return CUDA_ERROR_INVALID_VALUE;
    op.device = s->device;
    op.owned = malloc(count * sizeof *p);
    if (op.owned == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(op.owned, p, count * sizeof *p);
    return emu_submit(s, &op, NULL, NULL);
}

static CUresult memory_op(enum emu_entry entry, CUstreamBatchMemOpType type, CUstream stream,
                          CUdeviceptr addr, uint64_t value, unsigned flags)
{
    CUstreamBatchMemOpParams p;

    memset(&p, 0, sizeof p);
    p.operation = type;
    p.waitValue.address = addr;
    p.waitValue.value64 = value;
    p.waitValue.flags = flags;
    /* `value` overlays the low half of value64 on little-endian machines only. */
    if (type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_32)
        p.waitValue.value = (cuuint32_t)value;
    return memory_ops(entry, stream, 1, &p, 0);
}

#define VALUE_ENTRY(name, type, bits)                                                              \
    CUresult sw_emu_cuStream##name##bits(CUstream stream, CUdeviceptr addr,                        \
                                         cuuint##bits##_t value, unsigned int flags)               \
    {                                                                                              \
        return memory_op(EMU_cuStream##name##bits, CU_STREAM_MEM_OP_##type##_##bits, stream, addr, \
                         value, flags);                                                            \
    }
VALUE_ENTRY(WaitValue, WAIT_VALUE, 32)
VALUE_ENTRY(WriteValue, WRITE_VALUE, 32)
VALUE_ENTRY(WaitValue, WAIT_VALUE, 64)
VALUE_ENTRY(WriteValue, WRITE_VALUE, 64)

CUresult sw_emu_cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                   CUstreamBatchMemOpParams *ops, unsigned int flags)
{
    return memory_ops(EMU_cuStreamBatchMemOp, stream, count, ops, flags);
}
