/* Launches through a graph of one kernel (SYMWIN_COMM_GRAPH_LAUNCH). The host needs less time for a
 * launch (1.6 to 3.0 us instead of 2.6 to 4.0), but the GPU begins later, because nothing in a
 * graph begins before the work ahead has ended.
 *
 * There is one graph per communicator. It is instantiated and uploaded when the communicator is
 * created: later this might wait for the device, where kernels wait for this rank's kernel. Each
 * call sets another kernel, grid and arguments in the graph's node. This affects only later
 * launches ("modifications only affect future launches of hGraphExec", CUDA's documentation of
 * cuGraphExecKernelNodeSetParams), so calls in the queue keep theirs.
 *
 * The node is captured, because this needs only driver calls that captures of copies need too.
 */
#include "kernels/kernel_args.h"
#include "src/collective/collective.h"

/* The kernel exists for every device. What is captured never runs. */
static symwin_status capture_kernel(const symwin_comm *comm, CUstream stream, CUgraph *graph)
{
    const struct sw_kernel *kernel = sw_kernels_get(
        comm->kernels, SYMWIN_ALLREDUCE, SYMWIN_ALGO_ONESHOT, SYMWIN_U32, SYMWIN_SUM, SW_SHAPE_any);
    struct sw_kernel_args args = {0};
    void *params[] = {&args};
    symwin_status status;

    status = sw_check(sw_drv.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                      "cuStreamBeginCapture");
    if (status != SYMWIN_OK)
        return status;
    status = sw_check(
        sw_drv.cuLaunchKernel(kernel->function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL),
        "cuLaunchKernel in a capture");
    if (status != SYMWIN_OK)
        sw_drop(sw_drv.cuStreamEndCapture(stream, graph), "cuStreamEndCapture");
    else
        status = sw_check(sw_drv.cuStreamEndCapture(stream, graph), "cuStreamEndCapture");
    return status;
}

symwin_status sw_graph_upload(CUgraphExec exec, CUstream stream)
{
    symwin_status status = sw_check(sw_drv.cuGraphUpload(exec, stream), "cuGraphUpload");

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return status;
}

static symwin_status make_graph(symwin_comm *comm, CUstream stream)
{
    struct sw_graph_launch *g = &comm->calls->graph_launch;
    symwin_status status = capture_kernel(comm, stream, &g->graph);
    size_t count = 1;

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphGetNodes(g->graph, &g->node, &count), "cuGraphGetNodes");
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphInstantiateWithFlags(&g->exec, g->graph, 0),
                          "cuGraphInstantiate");
    if (status == SYMWIN_OK)
        status = sw_graph_upload(g->exec, stream);
    return status;
}

symwin_status sw_graph_launch_create(symwin_comm *comm)
{
    CUstream stream = NULL;
    symwin_status status;

    if ((comm->flags & SYMWIN_COMM_GRAPH_LAUNCH) == 0)
        return SYMWIN_OK;
    status = sw_check(sw_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (status == SYMWIN_OK) {
        status = make_graph(comm, stream);
        sw_drop(sw_drv.cuStreamDestroy(stream), "cuStreamDestroy");
    }
    return status;
}

/* Launches in progress keep what they need. */
void sw_graph_launch_release(struct sw_graph_launch *g)
{
    if (g->exec != NULL)
        sw_drop(sw_drv.cuGraphExecDestroy(g->exec), "cuGraphExecDestroy");
    if (g->graph != NULL)
        sw_drop(sw_drv.cuGraphDestroy(g->graph), "cuGraphDestroy");
}

symwin_status sw_graph_launch(const struct sw_graph_launch *g, const CUlaunchConfig *config,
                              CUfunction function, void **params, const char *call)
{
    const CUDA_KERNEL_NODE_PARAMS node = sw_kernel_node(config, function, params, NULL);
    symwin_status status = sw_check(sw_drv.cuGraphExecKernelNodeSetParams(g->exec, g->node, &node),
                                    "%s: cuGraphExecKernelNodeSetParams of %u blocks", call,
                                    config->gridDimX);

    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuGraphLaunch(g->exec, config->hStream), "%s: cuGraphLaunch",
                          call);
    return status;
}
