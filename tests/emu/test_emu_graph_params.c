/* The emulated driver's graphs: setting a kernel's parameters in an instantiated graph. */
#include "emu_stream.h"

static CUresult set(CUgraphExec exec, CUgraphNode node, CUfunction f, unsigned blocks, uint32_t x)
{
    void *params[] = {&x};
    const CUDA_KERNEL_NODE_PARAMS p = {f, blocks, 1, 1, 1, 1, 1, 0, params, NULL, NULL, NULL};

    return sw_emu_cuGraphExecKernelNodeSetParams(exec, node, &p);
}

static void test_refused_params(CUgraphExec exec, const CUgraphNode nodes[2])
{
    const CUfunction f = append_function;
    void *p[] = {&host_words[COUNT]}, *none[] = {NULL};
    const struct {
        const char *name;
        CUDA_KERNEL_NODE_PARAMS params;
    } cases[] = {
        {"no block", {f, 0, 1, 1, 1, 1, 1, 0, p, NULL, NULL, NULL}},
        {"a large block", {f, 1, 1, 1, 1025, 1, 1, 0, p, NULL, NULL, NULL}},
        {"much shared memory", {f, 1, 1, 1, 1, 1, 1, 1u << 20, p, NULL, NULL, NULL}},
        {"no parameters", {f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL}},
        {"a parameter that is none", {f, 1, 1, 1, 1, 1, 1, 0, none, NULL, NULL, NULL}},
        {"extra", {f, 1, 1, 1, 1, 1, 1, 0, p, p, NULL, NULL}},
        {"a CUkernel", {f, 1, 1, 1, 1, 1, 1, 0, p, NULL, append_kernel, NULL}},
    };
    CUfunction other = NULL;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        TAP_EQ(cases[i].name,
               sw_emu_cuGraphExecKernelNodeSetParams(exec, nodes[0], &cases[i].params),
               CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("nothing to set", sw_emu_cuGraphExecKernelNodeSetParams(exec, nodes[0], NULL),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("set in no exec", set(NULL, nodes[0], f, 1, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("in no node", set(exec, NULL, f, 1, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("in what is none", set(exec, (CUgraphNode)(void *)p, f, 1, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("in a host function", set(exec, nodes[1], f, 1, 0), CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("no function", set(exec, nodes[0], NULL, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    use_device(1);
    (void)sw_emu_cuKernelGetFunction(&other, append_kernel);
    (void)sw_emu_cuDevicePrimaryCtxRelease(1);
    use_device(0);
    (void)sw_emu_cuDevicePrimaryCtxRelease(0);
    TAP_EQ("one of another device", set(exec, nodes[0], other, 1, 0), CUDA_ERROR_INVALID_HANDLE);
    sw_emu_fail_nth(1, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    TAP_EQ("a fault", set(exec, nodes[0], f, 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
    sw_emu_fail_nth(0, CUDA_SUCCESS, 0, 0);
}

/* An exec launched in two streams alternately, each time with other parameters. */
static void test_set_params(CUstream s)
{
    CUstream t = stream_new(CU_STREAM_NON_BLOCKING);
    CUuserObject object = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUgraphNode nodes[2];
    size_t count = 2;
    int gone = 0, called = 0;

    host_words[RIGHT] = host_words[GATE] = 0;
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    (void)launch_bump(s, &host_words[RIGHT]);
    (void)sw_emu_cuLaunchHostFunc(s, count_up, &called);
    TAP_EQ("end", sw_emu_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    (void)sw_emu_cuGraphGetNodes(graph, nodes, &count);
    (void)sw_emu_cuUserObjectCreate(&object, &gone, count_up, 1, 1);
    (void)sw_emu_cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    exec = instantiate(graph);
    (void)sw_emu_cuStreamWaitValue32(s, word(GATE), 1, CU_STREAM_WAIT_VALUE_EQ);
    /* the first launch has the captured parameters: 0 becomes 1 */
    for (uint32_t x = 2; x < 6; x++) {
        TAP_EQ("launch, held up", sw_emu_cuGraphLaunch(exec, x % 2 == 0 ? s : t), CUDA_SUCCESS);
        TAP_EQ("set", set(exec, nodes[0], append_function, x == 3 ? 2 : 1, x), CUDA_SUCCESS);
    }
    usleep(10000);
    TAP_EQ("the other stream waits", sw_emu_cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    __atomic_store_n(&host_words[GATE], 1, __ATOMIC_RELEASE);
    (void)sw_emu_cuStreamSynchronize(s);
    (void)sw_emu_cuStreamSynchronize(t);
    TAP_EQ("each launch had what was set before it, in order", host_words[RIGHT], 12334);
    (void)sw_emu_cuGraphLaunch(exec, t);
    (void)sw_emu_cuStreamSynchronize(t);
    TAP_EQ("what is set last is the next launch's", host_words[RIGHT], 123345);
    TAP_EQ("set while nothing runs", set(exec, nodes[0], append_function, 1, 6), CUDA_SUCCESS);
    test_refused_params(exec, nodes);
    host_words[GATE] = 0;
    (void)sw_emu_cuStreamWaitValue32(s, word(GATE), 1, CU_STREAM_WAIT_VALUE_EQ);
    (void)sw_emu_cuGraphLaunch(exec, s);
    TAP_EQ("set", set(exec, nodes[0], append_function, 1, 7), CUDA_SUCCESS);
    (void)sw_emu_cuGraphDestroy(graph);
    TAP_EQ("a node that is gone", set(exec, nodes[0], append_function, 1, 8),
           CUDA_ERROR_INVALID_VALUE);
    (void)sw_emu_cuGraphExecDestroy(exec);
    TAP_EQ("an exec that is gone", set(exec, nodes[0], append_function, 1, 8),
           CUDA_ERROR_INVALID_VALUE);
    TAP_EQ("a launch keeps what it runs", gone, 0);
    __atomic_store_n(&host_words[GATE], 1, __ATOMIC_RELEASE);
    (void)sw_emu_cuStreamSynchronize(s);
    TAP_EQ("refused parameters changed nothing", host_words[RIGHT], 1233456);
    TAP_EQ("the other node ran as ever", called, 6);
    TAP_EQ("nothing is kept then", gone, 1);
    (void)sw_emu_cuStreamDestroy(t);
}

int main(void)
{
    return graph_tests(test_set_params);
}
