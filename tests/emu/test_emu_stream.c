/* The emulated driver's streams: order, the legacy stream, copies, memory operations, events. */
#include <string.h>
#include <time.h>

#include "emu_stream.h"

void sw_emu_clear_sticky(void);

/* ---- helpers --------------------------------------------------------------------------------- */

static void nap_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000};

    nanosleep(&t, NULL);
}

static void set(int i, uint32_t value)
{
    __atomic_store_n(&host_words[i], value, __ATOMIC_RELEASE);
}

static uint32_t get(int i)
{
    return __atomic_load_n(&host_words[i], __ATOMIC_ACQUIRE);
}

/* The gate: work behind it in a stream runs when the test opens it. */
enum { SEEN = 1, OTHER = 2, WIDE = 4 };

static void gate_close(CUstream s)
{
    set(GATE, 0);
    (void)sw_emu_cuStreamWaitValue32(s, word(GATE), 1, CU_STREAM_WAIT_VALUE_EQ);
}

static void gate_open(void)
{
    set(GATE, 1);
}

struct recorder {
    pthread_mutex_t mutex;
    int count;
    int order[64];
};
static struct recorder recorder = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void record(void *tag)
{
    pthread_mutex_lock(&recorder.mutex);
    recorder.order[recorder.count++] = (int)(intptr_t)tag;
    pthread_mutex_unlock(&recorder.mutex);
}

static void tag(CUstream s, int value)
{
    (void)sw_emu_cuLaunchHostFunc(s, record, (void *)(intptr_t)value);
}

static void expect_order(const char *name, const int *want, int count)
{
    int same;

    pthread_mutex_lock(&recorder.mutex);
    same = recorder.count == count;
    for (int i = 0; same && i < count; i++)
        same = recorder.order[i] == want[i];
    recorder.count = 0;
    pthread_mutex_unlock(&recorder.mutex);
    tap_ok(same, "%s", name);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_create_and_destroy(void)
{
    CUstream s = NULL;
    CUcontext ctx = NULL, own = use_device(0);

    TAP_EQ("unknown stream flag", sw_emu_cuStreamCreate(&s, 2), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("NULL out-pointer", sw_emu_cuStreamCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("create", sw_emu_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    TAP_EQ("query an idle stream", sw_emu_cuStreamQuery(s), CUDA_SUCCESS);
    TAP_EQ("synchronize an idle stream", sw_emu_cuStreamSynchronize(s), CUDA_SUCCESS);
    TAP_EQ("its context", sw_emu_cuStreamGetCtx(s, &ctx), CUDA_SUCCESS);
    tap_ok(ctx == own, "is the current one");
    TAP_EQ("destroy", sw_emu_cuStreamDestroy(s), CUDA_SUCCESS);
    TAP_EQ("destroy twice", sw_emu_cuStreamDestroy(s), CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("query after destroy", sw_emu_cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("destroy NULL", sw_emu_cuStreamDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
}

static unsigned long long id_of(CUstream s)
{
    unsigned long long id = 0;

    TAP_EQ("the id of a stream", sw_emu_cuStreamGetId(s, &id), CUDA_SUCCESS);
    return id;
}

/* Another thread's default stream: returns its id, after the stream waited for the gate. */
static void *other_thread(void *id)
{
    use_device(0);
    *(unsigned long long *)id = id_of(CU_STREAM_PER_THREAD);
    tag(CU_STREAM_PER_THREAD, 7);
    TAP_EQ("another thread's default stream", sw_emu_cuStreamSynchronize(CU_STREAM_PER_THREAD),
           CUDA_SUCCESS);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    return NULL;
}

/* Each thread has its own default stream under one handle; only the ids differ. */
static void test_ids(void)
{
    static const int want[] = {7, 3};
    unsigned long long other = 0, mine, legacy, first, second;
    pthread_t thread;
    CUstream s;

    use_device(0);
    s = stream_new(CU_STREAM_NON_BLOCKING);
    first = id_of(s);
    TAP_EQ("destroy", sw_emu_cuStreamDestroy(s), CUDA_SUCCESS);
    s = stream_new(CU_STREAM_NON_BLOCKING);
    second = id_of(s);
    TAP_EQ("destroy", sw_emu_cuStreamDestroy(s), CUDA_SUCCESS);
    mine = id_of(CU_STREAM_PER_THREAD);
    legacy = id_of(NULL);
    tap_ok(first != second, "a new stream has a new id");
    tap_ok(id_of(CU_STREAM_PER_THREAD) == mine, "the thread's own has always the same");
    tap_ok(id_of(CU_STREAM_LEGACY) == legacy && legacy != mine, "and is not the legacy one");
    gate_close(CU_STREAM_PER_THREAD);
    tag(CU_STREAM_PER_THREAD, 3);
    if (pthread_create(&thread, NULL, other_thread, &other) != 0)
        abort();
    pthread_join(thread, NULL);
    gate_open();
    TAP_EQ("the thread's own", sw_emu_cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    tap_ok(other != mine && other != 0, "another thread's is another one");
    expect_order("which waits for none of the first", want, 2);
    TAP_EQ("no place for an id", sw_emu_cuStreamGetId(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("no stream", sw_emu_cuStreamGetId((CUstream)(void *)&mine, &mine),
           CUDA_ERROR_INVALID_HANDLE);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
}

static void test_order(void)
{
    CUstream s = stream_new(CU_STREAM_NON_BLOCKING);
    static const int want[] = {0, 1, 2, 3, 4, 5, 6, 7};

    gate_close(s);
    for (int i = 0; i < 8; i++)
        tag(s, i);
    TAP_EQ("a busy stream is not ready", sw_emu_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    gate_open();
    TAP_EQ("synchronize", sw_emu_cuStreamSynchronize(s), CUDA_SUCCESS);
    expect_order("work runs in order", want, 8);

    gate_close(s);
    tag(s, 0);
    TAP_EQ("destroy with work in it", sw_emu_cuStreamDestroy(s), CUDA_SUCCESS);
    expect_order("which does not wait for it", NULL, 0);
    gate_open();
    TAP_EQ("the context waits", sw_emu_cuCtxSynchronize(), CUDA_SUCCESS);
    expect_order("until it has run", want, 1);
    TAP_EQ("a NULL host function", sw_emu_cuLaunchHostFunc(NULL, NULL, NULL),
           CUDA_ERROR_INVALID_VALUE);
}

static void call_driver(void *result)
{
    *(int *)result = sw_emu_cuStreamSynchronize(NULL);
}

static void test_legacy(void)
{
    CUstream a = stream_new(CU_STREAM_DEFAULT), b = stream_new(CU_STREAM_DEFAULT);
    CUstream free_one = stream_new(CU_STREAM_NON_BLOCKING);
    static const int want[] = {9, 1, 2, 3};
    int result = 0;

    gate_close(a);
    tag(a, 1);
    tag(NULL, 2); /* after a */
    tag(b, 3);    /* after the legacy stream */
    tag(free_one, 9);
    TAP_EQ("a non-blocking stream waits for nobody", sw_emu_cuStreamSynchronize(free_one),
           CUDA_SUCCESS);
    nap_ms(5);
    gate_open();
    TAP_EQ("synchronize", sw_emu_cuStreamSynchronize(b), CUDA_SUCCESS);
    expect_order("the legacy stream comes after and before blocking ones", want, 4);
    gate_close(free_one);
    TAP_EQ("it does not wait for a non-blocking one", sw_emu_cuStreamSynchronize(CU_STREAM_LEGACY),
           CUDA_SUCCESS);
    gate_open();
    (void)sw_emu_cuLaunchHostFunc(a, call_driver, &result);
    (void)sw_emu_cuStreamSynchronize(a);
    TAP_EQ("driver calls from a host function", result, CUDA_ERROR_NOT_PERMITTED);
    (void)sw_emu_cuStreamDestroy(a);
    (void)sw_emu_cuStreamDestroy(b);
    (void)sw_emu_cuStreamDestroy(free_one);
}

static void *open_later(void *arg)
{
    (void)arg;
    nap_ms(5);
    gate_open();
    return NULL;
}

static void test_copies(void)
{
    static const uint32_t data[4] = {11, 22, 33, 44};
    uint32_t back[4] = {0}, local = 77;
    CUstream s = stream_new(CU_STREAM_DEFAULT);
    CUdeviceptr p = 0, q = 0;
    pthread_t opener;

    (void)sw_emu_cuMemAlloc(&p, 16);
    (void)sw_emu_cuMemAlloc(&q, 16);
    TAP_EQ("HtoD", sw_emu_cuMemcpyHtoD(p, data, 16), CUDA_SUCCESS);
    TAP_EQ("DtoD", sw_emu_cuMemcpyDtoD(q, p, 16), CUDA_SUCCESS);
    TAP_EQ("DtoH", sw_emu_cuMemcpyDtoH(back, q, 16), CUDA_SUCCESS);
    tap_ok(memcmp(back, data, 16) == 0, "what went in came out");
    TAP_EQ("nothing", sw_emu_cuMemcpyHtoD(p, data, 0), CUDA_SUCCESS);
    TAP_EQ("past the end", sw_emu_cuMemcpyHtoD(p, data, (size_t)1 << 40), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("to NULL", sw_emu_cuMemcpyHtoD(0, data, 4), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("from NULL", sw_emu_cuMemcpyHtoD(p, NULL, 4), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("HtoD to the host", sw_emu_cuMemcpyHtoD((CUdeviceptr)(uintptr_t)back, data, 4),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("async past the end", sw_emu_cuMemcpyAsync(p, q, (size_t)1 << 40, s),
           CUDA_ERROR_INVALID_VALUE);

    gate_close(s);
    TAP_EQ("async from pageable memory",
           sw_emu_cuMemcpyAsync(p, (CUdeviceptr)(uintptr_t)&local, 4, s), CUDA_SUCCESS);
    local = 78; /* has been read already */
    (void)sw_emu_cuMemsetD32Async(p + 4, 0x01020304, 1, s);
    (void)sw_emu_cuMemsetD8Async(p + 8, 0xab, 4, s);
    pthread_create(&opener, NULL, open_later, NULL);
    TAP_EQ("a synchronous copy waits for blocking streams", sw_emu_cuMemcpyDtoH(back, p, 16),
           CUDA_SUCCESS);
    pthread_join(opener, NULL);
    tap_ok(back[0] == 77 && back[1] == 0x01020304 && back[2] == 0xabababab && back[3] == 44,
           "and sees what they wrote");
    TAP_EQ("D32 at an odd address", sw_emu_cuMemsetD32Async(p + 2, 0, 1, s),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("D32 with a count that overflows", sw_emu_cuMemsetD32Async(p, 0, SIZE_MAX / 2, s),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("D8 past the end", sw_emu_cuMemsetD8(p, 0, (size_t)1 << 40), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("D8 of host memory", sw_emu_cuMemsetD8((CUdeviceptr)(uintptr_t)back, 0, 4),
           CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuStreamDestroy(s);
    (void)sw_emu_cuMemFree(p);
    (void)sw_emu_cuMemFree(q);
}

/* Whether a wait for `value` ends with `yes` and not with `no`. */
static void test_wait_values(void)
{
    static const struct {
        const char *name;
        unsigned flags;
        uint64_t value, no, yes;
        int bits;
    } cases[] = {
        {"GEQ", CU_STREAM_WAIT_VALUE_GEQ, 10, 9, 10, 32},
        {"GEQ, above", CU_STREAM_WAIT_VALUE_GEQ, 10, 0, 11, 32},
        {"GEQ, cyclic", CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0u, 0xffffffefu, 5, 32},
        {"EQ", CU_STREAM_WAIT_VALUE_EQ, 7, 8, 7, 32},
        {"AND", CU_STREAM_WAIT_VALUE_AND, 6, 8, 4, 32},
        {"NOR", CU_STREAM_WAIT_VALUE_NOR, 0xfffffff0u, 0x0000000fu, 0x0000000eu, 32},
        {"flush is accepted", CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH, 1, 0, 1, 32},
        {"GEQ, 64 bits", CU_STREAM_WAIT_VALUE_GEQ, 1ull << 40, 1ull << 39, 1ull << 40, 64},
        {"GEQ, 64 bits, cyclic", CU_STREAM_WAIT_VALUE_GEQ, ~0ull, ~0ull - 1, 3, 64},
        {"EQ, 64 bits", CU_STREAM_WAIT_VALUE_EQ, 1ull << 33, 0, 1ull << 33, 64},
        {"AND, 64 bits", CU_STREAM_WAIT_VALUE_AND, 1ull << 50, 1, 3ull << 50, 64},
        {"NOR, 64 bits", CU_STREAM_WAIT_VALUE_NOR, ~1ull, 1, 0, 64},
    };
    CUstream s = stream_new(CU_STREAM_NON_BLOCKING);
    uint64_t *wide = (uint64_t *)(void *)&host_words[WIDE];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CUresult result;
        int early;

        if (cases[i].bits == 32) {
            set(OTHER, (uint32_t)cases[i].no);
            result = sw_emu_cuStreamWaitValue32(s, word(OTHER), (cuuint32_t)cases[i].value,
                                                cases[i].flags);
        } else {
            __atomic_store_n(wide, cases[i].no, __ATOMIC_RELEASE);
            result = sw_emu_cuStreamWaitValue64(s, word(WIDE), cases[i].value, cases[i].flags);
        }
        nap_ms(2);
        early = sw_emu_cuStreamQuery(s) != CUDA_ERROR_NOT_READY;
        if (cases[i].bits == 32)
            set(OTHER, (uint32_t)cases[i].yes);
        else
            __atomic_store_n(wide, cases[i].yes, __ATOMIC_RELEASE);
        tap_ok(result == CUDA_SUCCESS && !early && sw_emu_cuStreamSynchronize(s) == CUDA_SUCCESS,
               "%s", cases[i].name);
    }
    (void)sw_emu_cuStreamDestroy(s);
}

static void test_memory_ops(void)
{
    CUstream s = stream_new(CU_STREAM_NON_BLOCKING), t = stream_new(CU_STREAM_NON_BLOCKING);
    CUstreamBatchMemOpParams ops[3];
    uint32_t pageable = 0;

    set(OTHER, 0);
    set(SEEN, 0);
    (void)sw_emu_cuStreamWaitValue32(s, word(OTHER), 5, CU_STREAM_WAIT_VALUE_EQ);
    TAP_EQ("write", sw_emu_cuStreamWriteValue32(s, word(SEEN), 6, 0), CUDA_SUCCESS);
    (void)sw_emu_cuStreamWriteValue32(t, word(OTHER), 5, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
    (void)sw_emu_cuStreamSynchronize(s);
    TAP_EQ("one stream waits for another's write", get(SEEN), 6);
    (void)sw_emu_cuStreamWriteValue64(s, word(WIDE), 1ull << 60, 0);
    (void)sw_emu_cuStreamSynchronize(s);
    tap_ok(__atomic_load_n((uint64_t *)(void *)&host_words[WIDE], __ATOMIC_ACQUIRE) == 1ull << 60,
           "write, 64 bits");

    memset(ops, 0, sizeof ops);
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[0].waitValue.address = word(OTHER);
    ops[0].waitValue.value = 6;
    ops[1].operation = CU_STREAM_MEM_OP_BARRIER;
    ops[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[2].writeValue.address = word(WIDE);
    ops[2].writeValue.value64 = 99;
    TAP_EQ("batch", sw_emu_cuStreamBatchMemOp(s, 3, ops, 0), CUDA_SUCCESS);
    memset(ops, 0, sizeof ops); /* the call has a copy */
    nap_ms(2);
    TAP_EQ("its wait holds", sw_emu_cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    set(OTHER, 6);
    (void)sw_emu_cuStreamSynchronize(s);
    TAP_EQ("and its write follows",
           __atomic_load_n((uint64_t *)(void *)&host_words[WIDE], __ATOMIC_ACQUIRE), 99);

    TAP_EQ("an empty batch", sw_emu_cuStreamBatchMemOp(s, 0, ops, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("a NULL batch", sw_emu_cuStreamBatchMemOp(s, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("an unknown operation", sw_emu_cuStreamBatchMemOp(s, 1, ops, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("wait, unaligned", sw_emu_cuStreamWaitValue32(s, word(0) + 2, 0, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("wait, 64 bits, unaligned", sw_emu_cuStreamWaitValue64(s, word(1), 0, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("wait, unknown flag", sw_emu_cuStreamWaitValue32(s, word(0), 0, 8),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("write, unknown flag", sw_emu_cuStreamWriteValue32(s, word(0), 0, 2),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("write to pageable memory",
           sw_emu_cuStreamWriteValue32(s, (CUdeviceptr)(uintptr_t)&pageable, 0, 0),
           CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuStreamDestroy(s);
    (void)sw_emu_cuStreamDestroy(t);
}

static void test_events(void)
{
    CUstream s = stream_new(CU_STREAM_NON_BLOCKING), t = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent e = event_new(), f = event_new(), plain = NULL;
    static const int want[] = {1, 2, 3};
    float ms = -1;

    TAP_EQ("unknown event flag", sw_emu_cuEventCreate(&plain, 8), CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING);
    TAP_EQ("never recorded is complete", sw_emu_cuEventQuery(e), CUDA_SUCCESS);
    TAP_EQ("and waits for nothing", sw_emu_cuEventSynchronize(e), CUDA_SUCCESS);
    TAP_EQ("nor in a stream", sw_emu_cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
    TAP_EQ("but has no time", sw_emu_cuEventElapsedTime(&ms, e, f), CUDA_ERROR_INVALID_HANDLE);

    (void)sw_emu_cuEventRecord(e, s);
    /* otherwise the stream may reach it after the time has begun */
    (void)sw_emu_cuEventSynchronize(e);
    gate_close(s);
    tag(s, 1);
    (void)sw_emu_cuEventRecord(f, s);
    TAP_EQ("recorded and not passed", sw_emu_cuEventQuery(f), CUDA_ERROR_NOT_READY);
    TAP_EQ("no time yet", sw_emu_cuEventElapsedTime(&ms, e, f), CUDA_ERROR_NOT_READY);
    (void)sw_emu_cuStreamWaitEvent(t, f, 0);
    tag(t, 2);
    TAP_EQ("destroy an event that a stream waits for", sw_emu_cuEventDestroy(plain), CUDA_SUCCESS);
    nap_ms(5);
    gate_open();
    TAP_EQ("synchronize", sw_emu_cuEventSynchronize(f), CUDA_SUCCESS);
    (void)sw_emu_cuStreamSynchronize(t);
    tag(t, 3);
    (void)sw_emu_cuStreamSynchronize(t);
    expect_order("a stream waits for an event of another", want, 3);
    TAP_EQ("elapsed time", sw_emu_cuEventElapsedTime(&ms, e, f), CUDA_SUCCESS);
    tap_ok(ms >= 4.9f && ms < 5000.0f, "is what passed: %g ms", (double)ms);
    (void)sw_emu_cuEventElapsedTime(&ms, f, e);
    tap_ok(ms < 0, "and negative the other way round");
    TAP_EQ("an event that was destroyed", sw_emu_cuEventRecord(plain, s),
           CUDA_ERROR_INVALID_HANDLE);
    (void)sw_emu_cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING);
    (void)sw_emu_cuEventRecord(plain, s);
    (void)sw_emu_cuEventSynchronize(plain);
    TAP_EQ("an event without timing", sw_emu_cuEventElapsedTime(&ms, e, plain),
           CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("wait flags", sw_emu_cuStreamWaitEvent(s, e, 4), CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuEventDestroy(e);
    (void)sw_emu_cuEventDestroy(f);
    (void)sw_emu_cuEventDestroy(plain);
    (void)sw_emu_cuStreamDestroy(s);
    (void)sw_emu_cuStreamDestroy(t);
}

static void test_devices(void)
{
    CUstream here = stream_new(CU_STREAM_DEFAULT), there;
    CUevent e = event_new();
    static const int want[] = {1, 2};

    use_device(1);
    there = stream_new(CU_STREAM_DEFAULT);
    TAP_EQ("an event in a stream of another context", sw_emu_cuEventRecord(e, there),
           CUDA_ERROR_INVALID_HANDLE);
    gate_close(here);
    tag(here, 1);
    (void)sw_emu_cuEventRecord(e, here);
    (void)sw_emu_cuStreamWaitEvent(there, e, 0);
    tag(there, 2);
    TAP_EQ("the other device is busy", sw_emu_cuStreamQuery(there), CUDA_ERROR_NOT_READY);
    gate_open();
    (void)sw_emu_cuCtxSynchronize();
    expect_order("a stream waits for another device's event", want, 2);
    (void)sw_emu_cuStreamDestroy(there);
    (void)sw_emu_cuDevicePrimaryCtxRelease(1);
    use_device(0);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    (void)sw_emu_cuEventDestroy(e);
    (void)sw_emu_cuStreamDestroy(here);
}

/* Many threads, each with its own streams: nothing is lost, nothing is left. */
static void *churn(void *sum)
{
    use_device(0);
    for (int i = 0; i < 50; i++) {
        CUstream a = stream_new(i % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        CUstream b = stream_new(CU_STREAM_NON_BLOCKING);
        CUevent e = event_new();

        (void)sw_emu_cuStreamWriteValue32(a, word(OTHER), 1, 0);
        (void)sw_emu_cuEventRecord(e, a);
        (void)sw_emu_cuStreamWaitEvent(b, e, 0);
        (void)sw_emu_cuEventDestroy(e);
        (void)sw_emu_cuStreamDestroy(a);
        __atomic_fetch_add((int *)sum, sw_emu_cuStreamSynchronize(b) == CUDA_SUCCESS,
                           __ATOMIC_RELAXED);
        (void)sw_emu_cuStreamDestroy(b);
    }
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[4];
    int sum = 0;

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, churn, &sum);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    TAP_EQ("4 threads, 400 streams", sum, 200);
}

int main(void)
{
    words_begin();
    memset(host_words, 0, WORDS * 4);
    test_create_and_destroy();
    test_ids();
    test_order();
    test_legacy();
    test_copies();
    test_wait_values();
    test_memory_ops();
    test_events();
    test_devices();
    test_threads();
    return words_end();
}
