/* The emulated driver's memory under many threads. Some create and destroy mappings all the time;
 * others read memory that stays, look up changing addresses, and query them. Mainly for
 * ThreadSanitizer; counts and contents are checked everywhere. */
#include <stdatomic.h>
#include <unistd.h>

#include "conformance.h"
#include "emu/emu_internal.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define MAKERS 8
#define WATCHERS 3
#define ROUNDS 60

static struct conf_block stays;
static _Atomic CUdeviceptr latest[MAKERS]; /* each maker's mapping, which may have been unmapped */
static atomic_int makers_left;
static atomic_uint wrong; /* impossible answers */

static void expect(int holds)
{
    if (!holds)
        atomic_fetch_add(&wrong, 1);
}

static void make_current(void)
{
    CUcontext ctx = NULL;

    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&ctx, conf.device), "cuDevicePrimaryCtxRetain");
    conf_must(sw_drv.cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
}

static void leave_context(void)
{
    conf_must(sw_drv.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
}

/* The thread's own memory: a mapping shows what was written to the thread's allocation. */
static void make_and_unmake(int maker, int round)
{
    const unsigned tag = (unsigned)(maker << 16 | round);
    CUmemGenericAllocationHandle other = 0;
    struct conf_block block;
    CUdeviceptr twice;

    conf_block_make(&block, conf.device, conf.granule, FD);
    atomic_store(&latest[maker], block.va);
    expect(conf_poke(block.va, tag) == OK);
    expect(conf_poke(block.va + block.bytes - 4, ~tag) == OK);
    expect(conf_access(block.va, block.bytes, conf.devices - 1, RW) == OK);
    if (round % 4 == 0) {
        const int fd = conf_export_fd(block.handle);

        expect(conf_import_fd(&other, fd) == OK);
        close(fd);
    } else {
        expect(sw_drv.cuMemRetainAllocationHandle(&other, (void *)(uintptr_t)block.va) == OK);
    }
    twice = conf_map(other, block.bytes);
    expect(conf_word(twice) == tag);
    expect(conf_word(twice + block.bytes - 4) == ~tag);
    conf_unmap(twice, block.bytes);
    expect(conf_word(block.va) == tag);
    conf_must(sw_drv.cuMemRelease(other), "cuMemRelease");
    conf_block_drop(&block);
}

static void *make(void *arg)
{
    const int maker = (int)(intptr_t)arg;

    make_current();
    for (int round = 0; round < ROUNDS; round++)
        make_and_unmake(maker, round);
    leave_context();
    atomic_fetch_sub(&makers_left, 1);
    return NULL;
}

/* Queries addresses that may be unmapped at any moment: the answers need only be possible. Queries
 * are allowed for any address; only an access during unmapping is a program's mistake. */
static void look_at(CUdeviceptr at)
{
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long id = 0;
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult result;

    if (at == 0)
        return;
    result = sw_drv.cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at);
    expect(result == IV || (result == OK && base == at));
    result = sw_drv.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at);
    expect(result == IV || (result == OK && size == conf.granule));
    result = sw_drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    expect(result == IV || (result == OK && id != 0));
    expect(conf_rights(at, conf.device) <= RW);
    result = sw_drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at);
    expect(result == IV || (result == OK && handle != 0));
    if (result == OK)
        conf_must(sw_drv.cuMemRelease(handle), "cuMemRelease");
}

static void *watch(void *unused)
{
    struct sw_emu_live live;

    (void)unused;
    make_current();
    for (unsigned turn = 0; atomic_load(&makers_left) > 0; turn++) {
        const uint32_t *word = emu_access(conf.device, stays.va + 4 * (turn % 256), 4, 0);

        expect(word != NULL && *word == 7 * (turn % 256));
        expect(conf_word(stays.va + 4 * (turn % 256)) == 7 * (turn % 256));
        look_at(atomic_load(&latest[turn % MAKERS]));
        if (turn % 16 == 0) {
            sw_emu_live_count(&live);
            expect(live.mappings >= 1 && live.mappings <= 2 * MAKERS + 1);
        }
    }
    leave_context();
    return NULL;
}

static void threads(void)
{
    pthread_t makers[MAKERS], watchers[WATCHERS];
    uint32_t words[256];

    conf_block_make(&stays, conf.device, conf.granule, 0);
    for (uint32_t i = 0; i < 256; i++)
        words[i] = 7 * i;
    conf_must(sw_drv.cuMemcpyHtoD(stays.va, words, sizeof words), "cuMemcpyHtoD");
    atomic_store(&makers_left, MAKERS);
    for (int i = 0; i < WATCHERS; i++)
        if (pthread_create(&watchers[i], NULL, watch, NULL) != 0)
            conf_bail("pthread_create");
    for (int i = 0; i < MAKERS; i++)
        if (pthread_create(&makers[i], NULL, make, (void *)(intptr_t)i) != 0)
            conf_bail("pthread_create");
    for (int i = 0; i < MAKERS; i++)
        pthread_join(makers[i], NULL);
    for (int i = 0; i < WATCHERS; i++)
        pthread_join(watchers[i], NULL);
    TAP_EQ("every answer was a possible one", atomic_load(&wrong), 0);
    conf_block_drop(&stays);
}

int main(void)
{
    conf_emulate("8");
    conf_group("threads", threads);
    return conf_done(NULL);
}
