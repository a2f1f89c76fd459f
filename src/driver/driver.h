/* The table of CUDA driver entry points, filled from libcuda or from the emulated driver.
 *
 * Only driver.c and emu/ know which driver is in use. All other code calls sw_drv.cuMemMap(...) and
 * turns the CUresult into a symwin_status with sw_check().
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

/* Loads and initialises the driver that SYMWIN_DRIVER selects (auto, cuda or emu), once per
 * process. Later calls return the status of the first one immediately. Any thread. */
symwin_status sw_driver_load(void);

/* Starts what a process has from its first driver on; defined in inspect/info_socket.c. This is the
 * only call to a higher room: none of them need have been called yet, so none could register it.
 * `no_gpu`: why "auto" fell back to the emulated driver; NULL: it did not. */
void sw_hook_driver_loaded(const char *no_gpu);

/* Whether sw_drv is the emulated driver. Valid after sw_driver_load(). */
int sw_driver_is_emulated(void);

/* Whether the library has kernels for sw_drv. Valid after sw_driver_load(). */
int sw_driver_has_kernels(void);

/* Describes a launch as a kernel node of a graph, without its stream and attributes. */
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

/* ---- the results of driver calls ------------------------------------------------------------- */

/* SYMWIN_OK for CUDA_SUCCESS; else the matching status, and "<text>: CUDA_ERROR_... (meaning)". */
symwin_status sw_check(CUresult result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for "<call>: <what>" on the caller's stream of the current context's device, with advice
 * if the stream is to blame. */
symwin_status sw_check_stream(CUresult result, const char *call, const char *what);

/* Adds that advice to the text of a failure. Returns `status`, which is that failure. */
symwin_status sw_blame_stream(symwin_status status);

/* INVALID, with what to do, if that is a stream's state: in a capture that has been invalidated the
 * driver takes no call. */
symwin_status sw_check_capture(CUstreamCaptureStatus capturing, const char *call);

/* For teardown, where nothing can be done about a failure. SYMWIN_DEBUG=1 prints it to stderr. */
void sw_drop(CUresult result, const char *call);

/* For a thread that makes calls for another one: what the emulated driver counts of a thread (fault
 * injection), to be taken over, and to be given back. */
struct sw_driver_thread {
    uint64_t words[4];
};
void sw_driver_thread_get(struct sw_driver_thread *out);
void sw_driver_thread_set(const struct sw_driver_thread *in);

/* ---- contexts and devices -------------------------------------------------------------------- */

/* A section of code in which a device's primary context is current. */
struct sw_scope {
    CUdevice device; /* whose primary context is retained; -1: none */
    int pushed;      /* the scope pushed the context */
};

/* Makes the context of `device` current, creating it if need be. */
symwin_status sw_scope_enter(int device, struct sw_scope *scope);

/* The same with a context that the caller has retained. Does nothing if it is current already. */
symwin_status sw_scope_enter_context(CUcontext context, struct sw_scope *scope);

/* Restores the previous context. No effect a second time, or after an enter that failed. */
void sw_scope_leave(struct sw_scope *scope);

/* Loads the driver, turns SYMWIN_DEVICE_CURRENT into an ordinal, and checks the ordinal. */
symwin_status sw_device_resolve(const char *call, int device, int *out);

/* Whether an address is device memory that the host cannot read: managed memory is not. The answer
 * is that of a page. */
int sw_is_on_device(const void *ptr);
#define SW_PAGE 4096 /* bytes */

/* The driver's number of the memory at an address, which no other memory gets; 0: there is none. */
unsigned long long sw_buffer_at(CUdeviceptr address);

/* Whether the driver was asked if the buffers of a call are memory. BEFORE: when the call was added
 * to a group, and they may have been freed since. */
enum sw_checked { SW_CHECKED_NOT, SW_CHECKED_BEFORE, SW_CHECKED };

/* Memory that the driver was asked about in this call. */
struct sw_there {
    unsigned long long number; /* sw_buffer_at(); 0: nothing was asked */
    CUdeviceptr begin, end; /* of the device's memory around the address, if that was asked too */
};

/* A question about an address takes the driver up to 3 us. So a thread remembers the last arrays
 * that were right for a device, and asks for the number of the memory alone. An array that was in
 * the memory that is there, or lies in it, needs no question. */
int sw_is_known(int device, CUdeviceptr address, size_t bytes, struct sw_there *there);
void sw_now_known(int device, CUdeviceptr address, size_t bytes, const struct sw_there *there);

/* SYMWIN_FORKED in a forked child of a process that had loaded the driver. */
symwin_status sw_fork_check(const char *call);

#ifdef __cplusplus
}
#endif
#endif
