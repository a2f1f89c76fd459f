/* The device API's bulk copies: one thread starts copies of whole pieces between the block's shared
 * memory and global memory, also a peer's, while the block does something else.
 *
 * If SYMWIN_HAS_BULK is 0 (below sm_90), this header declares nothing. Addresses, also in shared
 * memory, and sizes are multiples of 16 bytes. The thread that starts copies also waits for them.
 * Any thread that wants to read a load's data waits for that load, and so does the thread that
 * started it.
 *
 * Call order: symwin_bulk_init(), a barrier of the block; then for each phase symwin_bulk_expect(),
 * symwin_bulk_load() and symwin_bulk_loaded() until true; and symwin_bulk_store(),
 * symwin_bulk_commit() and a wait. symwin_bulk_end() frees the barrier's memory.
 *
 * Memory order: bulk copies use the async proxy, which this thread's own accesses are not ordered
 * with. Fences order them:
 *
 *   symwin_bulk_fence()          between what this thread has acquired and bulk loads of it, and
 *                                between what bulk stores have written and this thread's release of
 *                                it
 *   symwin_bulk_fence_shared()   between this thread's stores to shared memory and a barrier of the
 *                                block, after which any thread may start a bulk store of it
 *
 * The data of a completed load is visible to any thread that has seen the completion. (PTX ISA,
 * "cp.async.bulk", "mbarrier", "Async proxy")
 *
 * The emulated driver makes each copy as late as allowed: a load when its completion is queried a
 * second time, a store when a thread waits for its reads.
 */
#ifndef SYMWIN_BULK_CUH
#define SYMWIN_BULK_CUH

#include "symwin/device.cuh"

#if SYMWIN_EMULATED
#define SYMWIN_HAS_BULK 1
#else
#define SYMWIN_HAS_BULK SYMWIN_HAS_LAUNCH_CONTROL /* sm_90 and later */
#endif

#if SYMWIN_HAS_BULK

#if SYMWIN_EMULATED

/* The pending copies of a block's copying thread. */
enum { SYMWIN_EMU_BULK_MOST = 512 };

struct symwin_emu_bulk {
    struct {
        void *to;
        const void *from;
        uint32_t bytes, group;
        uint64_t *barrier; /* of a load; NULL: a store */
    } copy[SYMWIN_EMU_BULK_MOST];
    uint32_t count, group, thread;
    const uint64_t *asked; /* the barrier whose completion was queried once */
};

static thread_local struct symwin_emu_bulk symwin_emu_bulk;

/* Makes the pending copies of a barrier; if that is NULL, of all store groups up to `group`. */
static inline void symwin_emu_bulk_make(uint64_t *barrier, uint32_t group)
{
    struct symwin_emu_bulk *b = &symwin_emu_bulk;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < b->count; i++) {
        if (b->copy[i].barrier != barrier || (barrier == NULL && b->copy[i].group > group)) {
            b->copy[kept++] = b->copy[i];
            continue;
        }
        __builtin_memcpy(b->copy[i].to, b->copy[i].from, b->copy[i].bytes);
        /* high half: missing bytes; low half: completed phases */
        if (barrier != NULL &&
            __atomic_sub_fetch(barrier, (uint64_t)b->copy[i].bytes << 32, __ATOMIC_RELEASE) >> 32 ==
                0)
            __atomic_add_fetch(barrier, 1, __ATOMIC_RELEASE);
    }
    b->count = kept;
}

static inline void symwin_emu_bulk_ask(void *to, const void *from, uint32_t bytes,
                                       uint64_t *barrier)
{
    struct symwin_emu_bulk *b = &symwin_emu_bulk;

    if ((((uintptr_t)to | (uintptr_t)from | bytes) & 15) != 0 || bytes == 0)
        emu_dev_fault(from, bytes, barrier == NULL);
    if (b->count == SYMWIN_EMU_BULK_MOST)
        symwin_emu_bulk_make(b->copy[0].barrier, b->copy[0].group);
    b->copy[b->count++] = {to, from, bytes, b->group, barrier};
}

#endif

/* Initializes a barrier for loads, in shared memory. By one thread; then a barrier of the block. */
SYMWIN_DEVICE void symwin_bulk_init(uint64_t *barrier)
{
#if SYMWIN_EMULATED
    symwin_emu_bulk.count = symwin_emu_bulk.group = 0;
    symwin_emu_bulk.asked = NULL;
    symwin_emu_bulk.thread = threadIdx.x;
    __atomic_store_n(barrier, 0, __ATOMIC_RELAXED);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                 "fence.mbarrier_init.release.cluster;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier))
                 : "memory");
#endif
}

/* Ends the barrier's life, so that its memory can be reused. No load may be pending. By one
 * thread. */
SYMWIN_DEVICE void symwin_bulk_end(uint64_t *barrier)
{
#if SYMWIN_EMULATED
    (void)barrier;
#else
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier))
                 : "memory");
#endif
}

/* Announces the bytes of the barrier's next phase. Call once per phase, before the loads. */
SYMWIN_DEVICE void symwin_bulk_expect(uint64_t *barrier, uint32_t bytes)
{
#if SYMWIN_EMULATED
    __atomic_add_fetch(barrier, (uint64_t)bytes << 32, __ATOMIC_RELAXED);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier)), "r"(bytes)
                 : "memory");
#endif
}

/* Starts a load of `bytes` bytes at `from` to shared memory, in the barrier's current phase. */
SYMWIN_DEVICE void symwin_bulk_load(void *shared, uint64_t from, uint32_t bytes, uint64_t *barrier)
{
#if SYMWIN_EMULATED
    symwin_emu_bulk_ask(shared, symwin_emu_source(from, bytes), bytes, barrier);
#else
    SW_ACCESS(from);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from), "r"(bytes),
          "r"((uint32_t)__cvta_generic_to_shared(barrier))
        : "memory");
#endif
}

/* Whether the barrier's phase `phase` (0, 1, ...) is complete. Query phases in order, without
 * gaps. */
SYMWIN_DEVICE bool symwin_bulk_loaded(uint64_t *barrier, uint32_t phase)
{
#if SYMWIN_EMULATED
    if (threadIdx.x == symwin_emu_bulk.thread) {
        if (symwin_emu_bulk.asked == barrier)
            symwin_emu_bulk_make(barrier, 0);
        symwin_emu_bulk.asked = symwin_emu_bulk.asked == barrier ? NULL : barrier;
    }
    return ((__atomic_load_n(barrier, __ATOMIC_ACQUIRE) ^ phase) & 1) != 0;
#else
    uint32_t over;
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t"
                 "}"
                 : "=r"(over)
                 : "r"((uint32_t)__cvta_generic_to_shared(barrier)), "r"(phase & 1)
                 : "memory");
    return over != 0;
#endif
}

/* Starts a store of `bytes` bytes from shared memory to `to`. */
SYMWIN_DEVICE void symwin_bulk_store(uint64_t to, const void *shared, uint32_t bytes)
{
#if SYMWIN_EMULATED
    symwin_emu_bulk_ask(symwin_emu_target(to, bytes), shared, bytes, NULL);
#else
    SW_ACCESS(to);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(to), "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(bytes)
                 : "memory");
#endif
}

/* Makes a group of the stores since the last commit. */
SYMWIN_DEVICE void symwin_bulk_commit(void)
{
#if SYMWIN_EMULATED
    symwin_emu_bulk.group++;
#else
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
#endif
}

/* Waits until the stores of all groups but the last have read shared memory. */
SYMWIN_DEVICE void symwin_bulk_wait_read(void)
{
#if SYMWIN_EMULATED
    if (symwin_emu_bulk.group > 1)
        symwin_emu_bulk_make(NULL, symwin_emu_bulk.group - 2);
#else
    asm volatile("cp.async.bulk.wait_group.read 1;" : : : "memory");
#endif
}

/* Waits until the stores of all groups are written. */
SYMWIN_DEVICE void symwin_bulk_wait_written(void)
{
#if SYMWIN_EMULATED
    symwin_emu_bulk_make(NULL, symwin_emu_bulk.group);
#else
    asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
#endif
}

/* Fences between this thread's accesses and bulk copies: see the top of this file. */
SYMWIN_DEVICE void symwin_bulk_fence(void)
{
#if !SYMWIN_EMULATED
    asm volatile("fence.proxy.async;" : : : "memory");
#endif
}

SYMWIN_DEVICE void symwin_bulk_fence_shared(void)
{
#if !SYMWIN_EMULATED
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

#endif /* SYMWIN_HAS_BULK */

#endif
