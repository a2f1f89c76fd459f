/* The one table of CUDA driver entry points, filled from libcuda or from the emulated driver.
 *
 * Only driver.c and emu/ know which driver answers; everybody else calls sw_drv.cuMemMap(...) and
 * turns the CUresult into a symwin_status with sw_check() (check.c).
 */
#ifndef SYMWIN_DRIVER_H
#define SYMWIN_DRIVER_H

#include "src/driver/cuda_abi.h"
#include "src/driver/driver_list.h"
#include "src/driver/fatbins.h"
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

/* ---- check.c: the results of driver calls ------------------------------------------------------- */

/* SYMWIN_OK for CUDA_SUCCESS; else the status that fits, and "<text>: CUDA_ERROR_... (what it means)". */
symwin_status sw_check(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* For teardown: the result cannot be acted on. SYMWIN_DEBUG=1 shows it on stderr. */
void sw_drop(CUresult result, const char *call);

/* ---- driver.c: see driver.h; and contexts ---------------------------------------------------- */

/* A stretch of code with a device's primary context current. */
struct sw_scope {
    CUdevice device; /* retained for the stretch; -1: only pushed */
    int pushed;
};

/* Makes the context of `device` current, creating it if need be. */
symwin_status sw_scope_enter(int device, struct sw_scope *scope);

/* The same with a context that the caller holds; does nothing if it is current already. */
symwin_status sw_scope_enter_context(CUcontext context, struct sw_scope *scope);

/* Restores what was current. Leaving a scope twice, or one that was never entered, is fine. */
void sw_scope_leave(struct sw_scope *scope);

/* Turns SYMWIN_DEVICE_CURRENT into an ordinal and checks it, for the call named `call`. Loads the
 * driver. */
symwin_status sw_device_resolve(const char *call, int device, int *out);

/* SYMWIN_OK, or SYMWIN_FORKED in a child of a process that had loaded the driver. */
symwin_status sw_fork_check(const char *call);

#ifdef __cplusplus
}
#endif
#endif
