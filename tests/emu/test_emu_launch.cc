/* The emulated driver's kernels: images, launches, CUDA threads, barriers, polling, faults. */
#include "emu_kernels.h"

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_images()
{
    const struct sw_emu_image bad = {1, 0, NULL};
    CUlibrary other = NULL;
    CUkernel kernel;
    CUfunction function;
    int value = 0;

    TAP_EQ("a NULL image", sw_emu_cuLibraryLoadData(&other, NULL, 0, 0, 0, 0, 0, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("an image without the magic", sw_emu_cuLibraryLoadData(&other, &bad, 0, 0, 0, 0, 0, 0),
           CUDA_ERROR_INVALID_IMAGE);
    TAP_EQ("an image", sw_emu_cuLibraryLoadData(&other, &image, 0, 0, 0, 0, 0, 0), CUDA_SUCCESS);
    TAP_EQ("a kernel that it lacks", sw_emu_cuLibraryGetKernel(&kernel, other, "nothing"),
           CUDA_ERROR_NOT_FOUND);
    TAP_EQ("a kernel that it has", sw_emu_cuLibraryGetKernel(&kernel, other, "tree"), CUDA_SUCCESS);
    TAP_EQ("its function", sw_emu_cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    TAP_EQ("cuFuncLoad", sw_emu_cuFuncLoad(function), CUDA_SUCCESS);
    TAP_EQ("most threads",
           sw_emu_cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
           CUDA_SUCCESS);
    TAP_EQ("are 1024", value, 1024);
    TAP_EQ("an unknown attribute",
           sw_emu_cuFuncGetAttribute(&value, (CUfunction_attribute)99, function),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("unload", sw_emu_cuLibraryUnload(other), CUDA_SUCCESS);
    TAP_EQ("unload twice", sw_emu_cuLibraryUnload(other), CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("a kernel of it", sw_emu_cuKernelGetFunction(&function, kernel),
           CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("a function of it", sw_emu_cuFuncLoad(function), CUDA_ERROR_INVALID_HANDLE);
}

static void test_occupancy()
{
    static const struct {
        int threads, want;
    } cases[] = {{1, 32}, {32, 32}, {64, 32}, {96, 21}, {1024, 2}, {1025, 0}};
    int blocks;

    for (const auto &c : cases) {
        (void)sw_emu_cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, (CUfunction)kernel_of("tree"), c.threads, 0);
        TAP_EQ("occupancy", blocks, c.want);
    }
    TAP_EQ("occupancy of no threads",
           sw_emu_cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks,
                                                              (CUfunction)kernel_of("tree"), 0, 0),
           CUDA_ERROR_INVALID_VALUE);
}

enum { NO, A_NULL, RIGHT };

static const struct {
    const char *name;
    unsigned blocks, x, y; /* threads of a block */
    int params;            /* NO, or a NULL in them, or RIGHT */
    int has_extra, has_function;
    CUresult want;
} refusals[] = {
    {"grid of 0", 0, 32, 1, RIGHT, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"block of 0", 1, 32, 0, RIGHT, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"1025 threads", 1, 1025, 1, RIGHT, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"32 * 33 threads", 1, 32, 33, RIGHT, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"no params", 1, 32, 1, NO, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"a NULL param", 1, 32, 1, A_NULL, 0, 1, CUDA_ERROR_INVALID_VALUE},
    {"extra", 1, 32, 1, RIGHT, 1, 1, CUDA_ERROR_INVALID_VALUE},
    {"no function", 1, 32, 1, RIGHT, 0, 0, CUDA_ERROR_INVALID_HANDLE},
};

static void test_launch_arguments()
{
    words args = {};
    void *params[] = {&args}, *no_params[] = {NULL};
    void **const given[] = {NULL, no_params, params};
    CUfunction f = NULL;
    CUstream other = NULL;

    (void)sw_emu_cuKernelGetFunction(&f, kernel_of("tree"));
    for (const auto &r : refusals)
        TAP_EQ(r.name,
               sw_emu_cuLaunchKernel(r.has_function ? f : NULL, r.blocks, 1, 1, r.x, r.y, 1, 0,
                                     NULL, given[r.params], r.has_extra ? no_params : NULL),
               r.want);
    use_device(1);
    (void)sw_emu_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
    TAP_EQ("a function of another context",
           sw_emu_cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, other, params, NULL),
           CUDA_ERROR_INVALID_HANDLE);
    (void)sw_emu_cuStreamDestroy(other);
    (void)sw_emu_cuDevicePrimaryCtxRelease(1);
    use_device(0);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
}

/* Launches `name` by cuLaunchKernelEx with these attributes. */
static CUresult launch_ex(const char *name, unsigned threads, CUlaunchAttribute *attrs,
                          unsigned count, words args)
{
    CUlaunchConfig config = {};
    void *params[] = {&args};

    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = threads;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = attrs;
    config.numAttrs = count;
    return sw_emu_cuLaunchKernelEx(&config, (CUfunction)kernel_of(name), params, NULL);
}

static CUlaunchAttribute serialization(int programmatic)
{
    CUlaunchAttribute attribute = {};

    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = programmatic;
    return attribute;
}

static void test_launch_attributes()
{
    CUlaunchAttribute on = serialization(1), off = serialization(0), both[2] = {}, unknown = {};
    const CUdeviceptr p = zeroed(8);
    const words args = {p, 0, 7};
    int wrong = 0;

    both[1] = on; /* follows an attribute that is ignored, whatever its value */
    both[0].value.pad[0] = ~0ull;
    unknown.id = (CUlaunchAttributeID)99;
    TAP_EQ("no attributes", launch_ex("late", 8, NULL, 0, args), CUDA_SUCCESS);
    TAP_EQ("programmatic serialization", launch_ex("shape", 8, &on, 1, args), CUDA_SUCCESS);
    TAP_EQ("ordinary serialization", launch_ex("shape", 8, &off, 1, args), CUDA_SUCCESS);
    TAP_EQ("an ignored attribute ahead", launch_ex("shape", 8, both, 2, args), CUDA_SUCCESS);
    for (unsigned i = 0; i < 8; i++)
        wrong += read_word(p, i) != 107 + 3 * (i + 1);
    TAP_EQ("they ran one after the other", wrong, 0);
    TAP_EQ("an unknown attribute", launch_ex("shape", 8, &unknown, 1, args),
           CUDA_ERROR_INVALID_VALUE);
    both[0] = unknown;
    TAP_EQ("a known one behind it", launch_ex("shape", 8, both, 2, args), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("attributes at NULL", launch_ex("shape", 8, NULL, 1, args), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("none of those at an address", launch_ex("shape", 8, &unknown, 0, args), CUDA_SUCCESS);
    TAP_EQ("a block of 0", launch_ex("shape", 0, &on, 1, args), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("no configuration", sw_emu_cuLaunchKernelEx(NULL, (CUfunction)kernel_of("shape"), 0, 0),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("a kernel that is none", launch_ex("nothing", 8, &on, 1, args),
           CUDA_ERROR_INVALID_HANDLE);
    TAP_EQ("what was refused did not run", read_word(p, 0), 107 + 4);
    sw_emu_fail_nth(2, CUDA_ERROR_LAUNCH_FAILED, 0, 0); /* 2: after cuLibraryGetKernel */
    TAP_EQ("an injected fault", launch_ex("timer", 1, &on, 1, args), CUDA_ERROR_LAUNCH_FAILED);
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
    (void)sw_emu_cuMemFree(p);
}

static void test_shapes()
{
    const unsigned threads = 3 * 2 * 5, blocks = 2 * 3 * 4;
    const CUdeviceptr p = zeroed(threads * blocks);
    words args = {p, 0, 0};
    void *params[] = {&args};
    int wrong = 0;

    TAP_EQ("3-dimensional launch",
           sw_emu_cuLaunchKernel((CUfunction)kernel_of("shape"), 2, 3, 4, 3, 2, 5, 0, NULL, params,
                                 NULL),
           CUDA_SUCCESS);
    args.p = 0; /* the launch has a copy */
    for (unsigned i = 0; i < threads * blocks; i++)
        wrong += read_word(p, i) != i + 1;
    TAP_EQ("each thread runs once, with its own indices", wrong, 0);
    (void)sw_emu_cuMemFree(p);
}

static void test_barrier()
{
    static const unsigned sizes[] = {1, 2, 64, 256};
    const unsigned blocks = 6;

    for (unsigned threads : sizes) {
        const CUdeviceptr p = zeroed(threads * blocks), q = zeroed(blocks);
        int wrong = 0;

        (void)launch("shape", blocks, threads, NULL, words{p, 0, 0});
        (void)launch("tree", blocks, threads, NULL, words{p, q, 0});
        for (unsigned b = 0; b < blocks; b++) {
            const uint32_t first = b * threads + 1, last = (b + 1) * threads;

            wrong += read_word(q, b) != (first + last) * threads / 2;
        }
        tap_ok(wrong == 0, "tree sum, %u threads", threads);
        (void)sw_emu_cuMemFree(p);
        (void)sw_emu_cuMemFree(q);
    }
    static const unsigned lasts[] = {0, 7, 63};
    const CUdeviceptr p = zeroed(64);
    int wrong = 0;

    (void)launch("leavers", 1, 64, NULL, words{p, 0, 0});
    for (unsigned i = 0; i < 64; i++)
        wrong += read_word(p, i) != (i % 2 == 1 ? 0 : 63 - i);
    TAP_EQ("threads that ended count as arrived", wrong, 0);
    for (const unsigned last : lasts) {
        wrong = 0;
        (void)launch("late", 1, 64, NULL, words{p, 0, last});
        for (unsigned i = 0; i < 64; i++)
            wrong += read_word(p, i) != last + 100;
        tap_ok(wrong == 0, "all wait for thread %u", last);
    }
    (void)sw_emu_cuMemFree(p);
}

static void test_polling()
{
    static const struct {
        unsigned blocks, threads;
    } cases[] = {{1, 1}, {2, 64}, {MANY_BLOCKS, 8}};

    for (const auto &c : cases) {
        const CUdeviceptr p = zeroed(c.blocks * c.threads + 1), q = zeroed(1);
        int wrong = 0;

        (void)launch("chain", c.blocks, c.threads, NULL, words{p, q, c.blocks});
        TAP_EQ("spinning grid ends", sw_emu_cuStreamSynchronize(NULL), CUDA_SUCCESS);
        for (unsigned i = 0; i < c.blocks * c.threads; i++)
            wrong += read_word(p, i) != 1;
        tap_ok(wrong == 0, "%u blocks of %u threads wait for each other", c.blocks, c.threads);
        (void)sw_emu_cuMemFree(p);
        (void)sw_emu_cuMemFree(q);
    }
    const CUdeviceptr p = zeroed(2);

    (void)launch("locked_add", 16, 16, NULL, words{p, 0, 0});
    TAP_EQ("a lock polled by exchange", read_word(p, 1), 256);
    (void)sw_emu_cuMemsetD8(p, 0, 8);
    (void)launch("fenced", 2, 1, NULL, words{p, 0, 0});
    TAP_EQ("fences order", read_word(p, 1), 42);
    (void)sw_emu_cuMemFree(p);
    TAP_EQ("a kernel without parameters",
           sw_emu_cuLaunchKernel((CUfunction)kernel_of("timer"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL,
                                 NULL),
           CUDA_SUCCESS);
    TAP_EQ("ends", sw_emu_cuCtxSynchronize(), CUDA_SUCCESS);
}

/* Ranks as streams on several devices, several blocks each, all waiting for all. */
static void test_many_ranks(int ranks, unsigned blocks, unsigned threads)
{
    CUstream *streams = (CUstream *)calloc((size_t)ranks, sizeof *streams);
    CUdeviceptr *own = (CUdeviceptr *)calloc((size_t)ranks, sizeof *own);
    void *host = NULL;
    CUdeviceptr shared = 0;
    int wrong = 0;

    (void)sw_emu_cuMemHostAlloc(&host, 4, CU_MEMHOSTALLOC_PORTABLE);
    (void)sw_emu_cuMemHostGetDevicePointer(&shared, host, 0);
    *(uint32_t *)host = 0;
    for (int r = 0; r < ranks; r++) {
        use_device(r % 4);
        own[r] = zeroed(blocks * threads + 1);
        (void)sw_emu_cuStreamCreate(&streams[r], CU_STREAM_NON_BLOCKING);
        (void)launch("chain", blocks, threads, streams[r],
                     words{own[r], shared, blocks * (unsigned)ranks});
    }
    for (int r = 0; r < ranks; r++) {
        use_device(r % 4);
        wrong += sw_emu_cuStreamSynchronize(streams[r]) != CUDA_SUCCESS;
        wrong += read_word(own[r], 0) != 1;
        (void)sw_emu_cuStreamDestroy(streams[r]);
        (void)sw_emu_cuMemFree(own[r]);
        (void)sw_emu_cuDevicePrimaryCtxRelease(r % 4);
        (void)sw_emu_cuDevicePrimaryCtxRelease(r % 4);
    }
    tap_ok(wrong == 0, "%d ranks of %u blocks of %u threads", ranks, blocks, threads);
    use_device(0);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    (void)sw_emu_cuMemFreeHost(host);
    free(own);
    free(streams);
}

/* One block more than fits in a green context waits, though the device has room. Blocks outside the
 * green context still run. */
static void test_green()
{
    const CUdeviceptr q = zeroed(1), others = zeroed(3);
    CUdevResource all, part;
    CUdevResourceDesc desc = NULL;
    CUgreenCtx green = NULL;
    CUstream stream = NULL, plain = NULL;
    unsigned count = 1, room;
    int per_multiprocessor = 0;

    (void)sw_emu_cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);
    (void)sw_emu_cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 1);
    (void)sw_emu_cuDevResourceGenerateDesc(&desc, &part, 1);
    TAP_EQ("a green context", sw_emu_cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM),
           CUDA_SUCCESS);
    TAP_EQ("its stream", sw_emu_cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0),
           CUDA_SUCCESS);
    (void)sw_emu_cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING);
    (void)sw_emu_cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor,
                                                             (CUfunction)kernel_of("chain"), 1, 0);
    room = part.sm.smCount * (unsigned)per_multiprocessor;
    tap_ok(part.sm.smCount < all.sm.smCount, "it has %u multiprocessors", part.sm.smCount);

    const CUdeviceptr p = zeroed(room + 2), left = zeroed(3), gate = zeroed(1);
    const uint32_t open = room + 1;

    (void)launch("chain", room + 1, 1, stream, words{p, q, room + 1});
    for (int i = 0; i < 5000 && read_word(q, 0) < room; i++)
        usleep(1000);
    usleep(20000);
    TAP_EQ("so many blocks run", read_word(q, 0), room);
    (void)launch("chain", 1, 1, plain, words{others, others + 8, 1});
    TAP_EQ("what is elsewhere runs too", sw_emu_cuStreamSynchronize(plain), CUDA_SUCCESS);
    (void)sw_emu_cuMemcpyHtoD(q, &open, sizeof open);
    TAP_EQ("then the last one", sw_emu_cuStreamSynchronize(stream), CUDA_SUCCESS);
    TAP_EQ("has its turn", read_word(q, 0), room + 2);
    (void)sw_emu_cuStreamWaitValue32(stream, gate, open, CU_STREAM_WAIT_VALUE_GEQ);
    (void)launch("chain", 1, 1, stream, words{left, left + 8, 1});
    (void)sw_emu_cuStreamDestroy(stream);
    (void)sw_emu_cuStreamDestroy(plain);
    TAP_EQ("destroyed", sw_emu_cuGreenCtxDestroy(green), CUDA_SUCCESS);
    TAP_EQ("once", sw_emu_cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
    (void)sw_emu_cuMemcpyHtoD(gate, &open, sizeof open);
    TAP_EQ("what was still in its stream runs", sw_emu_cuCtxSynchronize(), CUDA_SUCCESS);
    TAP_EQ("to its end", read_word(left, 0), 1);
    (void)sw_emu_cuMemFree(p);
    (void)sw_emu_cuMemFree(q);
    (void)sw_emu_cuMemFree(others);
    (void)sw_emu_cuMemFree(left);
    (void)sw_emu_cuMemFree(gate);
}

static void test_faults()
{
    const CUdeviceptr p = zeroed(8), q = zeroed(1);
    char text[256] = "", tiny[8];
    words args = {p, q, 1u << 28};

    TAP_EQ("a launch that will fault", launch("bad_access", 4, 8, NULL, args), CUDA_SUCCESS);
    TAP_EQ("ends in ILLEGAL_ADDRESS", sw_emu_cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    TAP_EQ("and so does every later call", launch("shape", 1, 1, NULL, args),
           CUDA_ERROR_ILLEGAL_ADDRESS);
    (void)sw_emu_last_fault(text, sizeof text);
    tap_ok(strstr(text, "device 0, kernel bad_access: illegal write of 4 bytes at ") == text,
           "the text says what: %s", text);
    tap_ok(strstr(text, "block (1,0,0) thread (3,0,0)") != NULL, "and who");
    tap_ok(sw_emu_last_fault(tiny, sizeof tiny) == strlen(text) && strlen(tiny) == 7,
           "it is cut to the room there is");
    sw_emu_clear_sticky();
    TAP_EQ("forgotten for tests", launch("shape", 1, 1, NULL, words{p, 0, 0}), CUDA_SUCCESS);
    TAP_EQ("the device works again", read_word(p, 0), 1);

    (void)launch("bad_read", 1, 1, NULL, words{p + 2, 0, 0});
    TAP_EQ("a misaligned read", sw_emu_cuCtxSynchronize(), CUDA_ERROR_MISALIGNED_ADDRESS);
    sw_emu_clear_sticky();
    (void)launch("bad_read", 1, 1, NULL, words{(CUdeviceptr)(uintptr_t)&library, 0, 0});
    TAP_EQ("a read of pageable memory", sw_emu_cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    sw_emu_clear_sticky();
    (void)launch("bad_multicast", 1, 1, NULL, words{p, 0, 0});
    TAP_EQ("memory used as a multicast address", sw_emu_cuCtxSynchronize(),
           CUDA_ERROR_ILLEGAL_ADDRESS);
    sw_emu_clear_sticky();

    (void)sw_emu_cuMemsetD8(p, 0, 32);
    (void)launch("deep", 1, 8, NULL, words{p, 0, 0});
    TAP_EQ("24 KiB of locals", read_word(p, 7), 7);
    (void)sw_emu_cuMemFree(p);
    (void)sw_emu_cuMemFree(q);
}

/* A kernel may read, but not write, memory that is mapped read-only for its device. */
static void test_read_only()
{
    CUmemAllocationProp prop = {};
    CUmemAccessDesc access = {};
    CUmemGenericAllocationHandle memory = 0;
    const size_t bytes = 2 << 20;
    CUdeviceptr p = 0;

    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    (void)sw_emu_cuMemCreate(&memory, bytes, &prop, 0);
    (void)sw_emu_cuMemAddressReserve(&p, bytes, 0, 0, 0);
    (void)sw_emu_cuMemMap(p, bytes, 0, memory, 0);
    TAP_EQ("shown for reading", sw_emu_cuMemSetAccess(p, bytes, &access, 1), CUDA_SUCCESS);
    (void)launch("bad_read", 1, 1, NULL, words{p, 0, 0});
    TAP_EQ("a kernel reads it", sw_emu_cuCtxSynchronize(), CUDA_SUCCESS);
    (void)launch("shape", 1, 1, NULL, words{p, 0, 0});
    TAP_EQ("and may not write it", sw_emu_cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    sw_emu_clear_sticky();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TAP_EQ("shown for writing", sw_emu_cuMemSetAccess(p, bytes, &access, 1), CUDA_SUCCESS);
    TAP_EQ("nothing was written", read_word(p, 0), 0);
    (void)launch("shape", 1, 1, NULL, words{p, 0, 0});
    TAP_EQ("now it is", read_word(p, 0), 1);
    (void)sw_emu_cuMemUnmap(p, bytes);
    (void)sw_emu_cuMemAddressFree(p, bytes);
    (void)sw_emu_cuMemRelease(memory);
}

/* A grid larger than the device: blocks that wait for no other block all get their turn. */
static void test_large_grid()
{
    const unsigned blocks = 3000;
    const CUdeviceptr p = zeroed(blocks * 4);
    int wrong = 0;

    (void)launch("shape", blocks, 4, NULL, words{p, 0, 0});
    for (unsigned i = 0; i < blocks * 4; i += 97)
        wrong += read_word(p, i) != i + 1;
    TAP_EQ("3000 blocks", wrong, 0);
    (void)sw_emu_cuMemFree(p);
}

int main(void)
{
    alarm(120); /* a failed test may wait for ever */
    (void)sw_emu_cuInit(0);
    use_device(0);
    TAP_EQ("load", sw_emu_cuLibraryLoadData(&library, &image, 0, 0, 0, 0, 0, 0), CUDA_SUCCESS);
    test_images();
    test_occupancy();
    test_launch_arguments();
    test_launch_attributes();
    test_shapes();
    test_barrier();
    test_polling();
    test_many_ranks(4, 2, 64);
    test_many_ranks(MANY_RANKS, 3, 2);
    test_green();
    test_faults();
    test_read_only();
    test_large_grid();
    TAP_EQ("unload", sw_emu_cuLibraryUnload(library), CUDA_SUCCESS);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
