/* The one table of CUDA driver entry points, filled from libcuda or from the emulated driver.
 *
 * Only driver.c and emu/ know which driver answers; everybody else calls sw_drv.cuMemMap(...) and
 * turns the CUresult into a symwin_status with sw_check() (check.c).
 */
#ifndef SYMWIN_DRIVER_H
#define SYMWIN_DRIVER_H

#include "src/driver/cuda_abi.h"
#include "src/driver/driver_list.h"
#include "symwin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SW_DRIVER_MEMBER(name, symbol, version, need, params) CUresult(*name) params;
struct sw_driver {
    SW_DRIVER_LIST(SW_DRIVER_MEMBER)
};
#undef SW_DRIVER_MEMBER

/* Constant once sw_driver_load() has returned SYMWIN_OK. */
extern struct sw_driver sw_drv;

/* Loads the driver that SYMWIN_DRIVER names (auto, cuda or emu) and initialises it, once a process;
 * later calls return at once with the first call's status. Any thread. */
symwin_status sw_driver_load(void);

/* What begins in a process when it has a driver, which listen.c defines: the one call up, since nothing above is called
 * before. `no_gpu`: why the emulated driver was taken; NULL: it was asked for, or was not. */
void sw_hook_driver_loaded(const char *no_gpu);

/* Whether sw_drv is the emulated driver. Valid after sw_driver_load(). */
int sw_driver_is_emulated(void);

/* Whether the library has kernels for it. Valid after sw_driver_load(). */
int sw_driver_has_kernels(void);

/* What a launch is as a kernel node of a graph: all but its stream and attributes. */
static inline CUDA_KERNEL_NODE_PARAMS
sw_kernel_node(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    CUDA_KERNEL_NODE_PARAMS node;

    node.func = function;
    node.gridDimX = config->gridDimX;
    node.gridDimY = config->gridDimY;
    node.gridDimZ = config->gridDimZ;
    node.blockDimX = config->blockDimX;
    node.blockDimY = config->blockDimY;
    node.blockDimZ = config->blockDimZ;
    node.sharedMemBytes = config->sharedMemBytes;
    node.kernelParams = params;
    node.extra = extra;
    node.kern = NULL;
    node.ctx = NULL;
    return node;
}

#ifdef __cplusplus
}
#endif
#endif
