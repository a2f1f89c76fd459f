/* Attributes of addresses, and copies and fills by address. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu_device.h" /* EMU_TSAN */
#include "exec.h"
#include "memory.h"

/* ---- attributes ------------------------------------------------------------------------------ */

/* A value and its size in the caller's memory; 0: the attribute has no value here. */
struct answer {
    union {
        CUcontext context;
        unsigned word;
        int number;
        unsigned long long wide;
        size_t bytes;
        CUdeviceptr address;
        void *pointer;
    };
    size_t size;
};

#define ANSWER(of, value)                                                                          \
    ((struct answer){.of = (value), .size = sizeof(((struct answer *)NULL)->of)})
#define NO_ANSWER ((struct answer){.size = 0})

/* Location and permitted uses of the memory. */
static struct answer ask_memory(const struct emu_view *view, CUpointer_attribute attribute,
                                CUdeviceptr ptr)
{
    const int is_host = view->seen.multicast == NULL && view->device < 0;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return ANSWER(context, view->ctx); /* NULL for mapped memory */
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return ANSWER(word, is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return ANSWER(address, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return view->kind == EMU_HOST_BLOCK ? ANSWER(pointer, (void *)(uintptr_t)ptr) : NO_ANSWER;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return ANSWER(word, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return ANSWER(number,
                      view->device < 0 && view->ctx != NULL ? view->ctx->device : view->device);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return ANSWER(word, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return ANSWER(wide, view->object != NULL ? view->object->handle_types : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return ANSWER(word, atomic_load_explicit(&view->seen.access[emu_current()->device],
                                                 memory_order_relaxed));
    default:
        return NO_ANSWER;
    }
}

static struct answer ask(const struct emu_view *view, CUpointer_attribute attribute,
                         CUdeviceptr ptr)
{
    CUdeviceptr va;
    size_t bytes;

    /* The range is the reservation, which may have several mappings. An H200's driver answers this
     * for an expandable segment of PyTorch. */
    emu_range_find(view->seen.va, &va, &bytes);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return view->seen.multicast == NULL ? ANSWER(wide, view->buffer_id) : NO_ANSWER;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return ANSWER(address, va);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return ANSWER(bytes, bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return view->object != NULL ? ANSWER(address, view->seen.va) : NO_ANSWER;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return view->object != NULL ? ANSWER(bytes, view->seen.bytes) : NO_ANSWER;
    default:
        return ask_memory(view, attribute, ptr);
    }
}

CUresult sw_emu_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result = emu_enter_unless(EMU_cuPointerGetAttribute, data == NULL);
    struct answer answer = NO_ANSWER;
    const struct emu_view *view;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at(ptr);
    if (view == NULL && attribute == CU_POINTER_ATTRIBUTE_MAPPED && emu_is_reserved(ptr))
        answer = ANSWER(word, 0);
    else if (view == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS && emu_current() == NULL)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else
        answer = ask(view, attribute, ptr);
    pthread_mutex_unlock(&emu_memory_mutex);
    if (result == CUDA_SUCCESS && answer.size == 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memcpy(data, &answer, answer.size);
    return result;
}

static size_t bytes_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    default:
        return 8;
    }
}

/* What has no value is zero, also of an address that the driver does not know. */
CUresult sw_emu_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                       void **data, CUdeviceptr ptr)
{
    CUresult result = emu_enter_unless(EMU_cuPointerGetAttributes,
                                       count == 0 || attributes == NULL || data == NULL);
    const struct emu_view *view;
    unsigned i;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at(ptr);
    for (i = 0; i < count; i++) {
        const struct answer answer = view != NULL ? ask(view, attributes[i], ptr) : NO_ANSWER;

        if (answer.size > 0)
            memcpy(data[i], &answer, answer.size);
        else
            memset(data[i], 0, bytes_of(attributes[i]));
        if (view == NULL && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2; /* as an H200's driver says */
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return CUDA_SUCCESS;
}

/* ---- copies and fills ------------------------------------------------------------------------ */

/* The contiguous memory at an address. */
struct piece {
    void *at[EMU_MAX_DEVICES]; /* several for a multicast address, which can only be written */
    int count;
    size_t bytes;
};

static int piece_find(CUdevice device, CUdeviceptr addr, size_t bytes, int write, struct piece *p)
{
    const struct emu_mapping *m = emu_mapping_at(addr);
    const size_t left = EMU_GRANULE - addr % EMU_GRANULE; /* in its granule */

    p->count = 1;
    p->bytes = bytes;
    if (!emu_is_device_address(addr)) {
        p->at[0] = (void *)(uintptr_t)addr;
        return 0;
    }
    if (m == NULL || addr - m->va >= m->bytes)
        return -1;
    if (bytes > m->bytes - (addr - m->va))
        p->bytes = m->bytes - (addr - m->va);
    if (m->multicast == NULL) {
        p->at[0] = emu_access(device, addr, p->bytes, write);
        return p->at[0] != NULL ? 0 : -1;
    }
    if (p->bytes > left)
        p->bytes = left;
    p->count = write ? emu_multicast_access(device, addr, p->bytes, 1, p->at) : 0;
    return p->count > 0 ? 0 : -1;
}

/* Copies an aligned word in one access, so a concurrent writer cannot tear it. */
static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes == sizeof(uint32_t) && ((uintptr_t)to | (uintptr_t)from) % sizeof(uint32_t) == 0)
        __atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    else if (bytes == sizeof(uint64_t) && ((uintptr_t)to | (uintptr_t)from) % sizeof(uint64_t) == 0)
        __atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    else
        memmove(to, from, bytes);
}

CUresult emu_copy(CUdevice device, CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    struct piece to, from;

    while (bytes > 0) {
        if (piece_find(device, src, bytes, 0, &from) != 0 ||
            piece_find(device, dst, from.bytes, 1, &to) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        for (int i = 0; i < to.count; i++)
            copy_bytes(to.at[i], from.at[0], to.bytes);
        dst += to.bytes;
        src += to.bytes;
        bytes -= to.bytes;
    }
    return CUDA_SUCCESS;
}

#if defined(EMU_TSAN)
void __tsan_write_range(void *at, unsigned long bytes);
#endif

/* ThreadSanitizer is told of a write to the first bytes of each 64 KiB that were dropped, and
 * reports concurrent accesses to those only: its memory for all bytes would be twice as large as
 * they are. */
static void say_written(unsigned char *at, size_t bytes)
{
#if defined(EMU_TSAN)
    for (size_t i = 0; i < bytes; i += (size_t)64 << 10)
        __tsan_write_range(at + i, 8);
#else
    (void)at;
    (void)bytes;
#endif
}

/* Zeroes whole pages. Pages without memory are not allocated but dropped, because mincore() is only
 * a hint: a page may be swapped out, or may have been allocated since. After the drop it reads as
 * zero in any case. Pages with memory are written: dropping and allocating them again takes much
 * longer. */
static void zero_run(unsigned char *at, size_t bytes, int has_memory)
{
    /* Blocks lie in the arena and are private to the process; other memory may be shared. */
    const int drop = emu_is_device_address((CUdeviceptr)(uintptr_t)at) ? MADV_DONTNEED
                                                                       : MADV_REMOVE;

    if (has_memory || madvise(at, bytes, drop) != 0)
        memset(at, 0, bytes);
    else
        say_written(at, bytes);
}

/* How many bytes without memory follow in the allocation's file. mincore() looks each page up that
 * the process has not touched, which takes 40 us a granule: a third of the time of programs that
 * create many communicators. */
static size_t hole_at(CUdeviceptr addr)
{
    const struct emu_view *view;
    off_t at, data = -1;

    pthread_mutex_lock(&emu_memory_mutex);
    view = emu_view_at(addr);
    if (view != NULL && view->object != NULL && view->object->kind == EMU_PHYSICAL) {
        const struct emu_physical *p = (const struct emu_physical *)view->object;

        at = view->seen.canonical - p->memory + (off_t)(addr - view->seen.va);
        data = lseek(p->fd, at, SEEK_DATA) - at;
    }
    pthread_mutex_unlock(&emu_memory_mutex);
    return data > 0 ? (size_t)data : 0;
}

static void zero_pages(CUdeviceptr addr, unsigned char *at, size_t bytes, size_t page)
{
    unsigned char there[EMU_GRANULE / 4096];
    int has_memory = 0;
    size_t begin = 0, hole = 0; /* where the known hole ends */

    for (size_t i = 0; i < bytes; i += page) {
        const size_t ahead = bytes - i < EMU_GRANULE ? bytes - i : EMU_GRANULE;

        if (i % EMU_GRANULE == 0) {
            if (hole < i + ahead)
                hole = i + hole_at(addr + i);
            if (hole >= i + ahead)
                memset(there, 0, sizeof there);
            else if (mincore(at + i, ahead, there) != 0)
                memset(there, 1, sizeof there);
        }
        if ((there[i % EMU_GRANULE / page] & 1) != has_memory) {
            zero_run(at + begin, i - begin, has_memory);
            begin = i;
            has_memory = !has_memory;
        }
    }
    zero_run(at + begin, bytes - begin, has_memory);
}

/* Communicators clear much memory of which they use little, on all ranks of a machine at once. */
static void zero_piece(CUdeviceptr addr, unsigned char *at, size_t bytes)
{
    const size_t least = (size_t)64 << 10; /* below, writing is faster than asking */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t head = (size_t)(-(uintptr_t)at % page);
    size_t pages;

    if (bytes < least || bytes < head) {
        memset(at, 0, bytes);
        return;
    }
    pages = (bytes - head) / page * page;
    memset(at, 0, head);
    zero_pages(addr + head, at + head, pages, page);
    memset(at + head + pages, 0, bytes - head - pages);
}

static void fill_piece(CUdeviceptr addr, void *at, unsigned value, size_t width, size_t bytes)
{
    if (value == 0) {
        zero_piece(addr, at, bytes);
    } else if (width == 1) {
        memset(at, (int)(value & 0xff), bytes);
    } else if (width == 2) {
        for (size_t i = 0; i < bytes / 2; i++)
            ((uint16_t *)at)[i] = (uint16_t)value;
    } else {
        for (size_t i = 0; i < bytes / 4; i++)
            ((uint32_t *)at)[i] = (uint32_t)value;
    }
}

/* No fill reaches multicast (copy.c). dst is aligned to width, and mappings begin at granules: no
 * element spans two pieces. */
CUresult emu_fill(CUdevice device, CUdeviceptr dst, unsigned value, size_t width, size_t count)
{
    size_t bytes = width * count;
    struct piece to;

    while (bytes > 0) {
        if (piece_find(device, dst, bytes, 1, &to) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        fill_piece(dst, to.at[0], value, width, to.bytes);
        dst += to.bytes;
        bytes -= to.bytes;
    }
    return CUDA_SUCCESS;
}
