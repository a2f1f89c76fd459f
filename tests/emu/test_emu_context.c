/* Devices, primary contexts and the names of errors, on the driver that SYMWIN_DRIVER names. */
#include <string.h>

#include "conformance.h"
#include "emu/emu.h"

/* ---- devices --------------------------------------------------------------------------------- */

static void devices(void)
{
    CUdevice device = -1;
    CUuuid first, other;
    char name[128] = "", small[4] = "xyz";
    size_t bytes = 0;
    int version = 0, can = 1;

    TAP_EQ("the version", sw_drv.cuDriverGetVersion(&version), OK);
    tap_ok(version >= 12000, "it is new enough for what is used (%d)", version);
    TAP_EQ("the last device", sw_drv.cuDeviceGet(&device, conf.devices - 1), OK);
    TAP_EQ("it is the number itself", device, conf.devices - 1);
    TAP_EQ("a device past the last", sw_drv.cuDeviceGet(&device, conf.devices), ID);
    TAP_EQ("device -1", sw_drv.cuDeviceGet(&device, -1), ID);
    TAP_EQ("the out-pointer is untouched", device, conf.devices - 1);
    TAP_EQ("a name", sw_drv.cuDeviceGetName(name, (int)sizeof name, 0), OK);
    tap_ok(name[0] != '\0', "it says something: %s", name);
    TAP_EQ("a name in little room", sw_drv.cuDeviceGetName(small, (int)sizeof small, 0), OK);
    tap_ok(memcmp(small, name, 3) == 0 && small[3] == '\0', "it is cut short and ended");
    TAP_EQ("total memory", sw_drv.cuDeviceTotalMem(&bytes, 0), OK);
    tap_ok(bytes > 0, "there is some");
    TAP_EQ("total memory of a device past the last", sw_drv.cuDeviceTotalMem(&bytes, conf.devices),
           ID);
    TAP_EQ("a uuid", sw_drv.cuDeviceGetUuid(&first, 0), OK);
    TAP_EQ("the last device's uuid", sw_drv.cuDeviceGetUuid(&other, conf.devices - 1), OK);
    TAP_EQ("they are equal where the devices are", memcmp(&first, &other, sizeof first) == 0,
           conf.devices == 1);
    if (conf.emulated && conf.devices > 1)
        TAP_EQ("emulated devices are peers", conf.peer, 1);
    if (conf.peer >= 0) {
        TAP_EQ("a peer", sw_drv.cuDeviceCanAccessPeer(&can, 0, conf.peer), OK);
        TAP_EQ("it can be reached", can, 1);
        TAP_EQ("the link to it",
               sw_drv.cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0,
                                              conf.peer),
               OK);
        TAP_EQ("it says the same", can, 1);
        TAP_EQ("no such attribute of a link",
               sw_drv.cuDeviceGetP2PAttribute(&can, (CUdevice_P2PAttribute)0, 0, conf.peer), IV);
    }
    TAP_EQ("a link to itself",
           sw_drv.cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0),
           ID);
    TAP_EQ("a device and itself", sw_drv.cuDeviceCanAccessPeer(&can, 0, 0), OK);
    TAP_EQ("it is no peer", can, 0);
    TAP_EQ("a peer past the last", sw_drv.cuDeviceCanAccessPeer(&can, 0, conf.devices), ID);
}

static void attributes(void)
{
    static const struct {
        CUdevice_attribute attribute;
        const char *name;
        int least, most;
    } cases[] = {
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors", 1, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "threads a block", 32, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, "threads a multiprocessor", 64, 4096},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, "warp size", 32, 32},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability", 7, 20},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing", 1, 1},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "memory management", 1, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "descriptors", 1, 1},
        {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "multicast", 0, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "fabric handles", 0, 1},
    };
    int value;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        value = -1;
        conf_must(sw_drv.cuDeviceGetAttribute(&value, cases[i].attribute, 0), cases[i].name);
        tap_ok(value >= cases[i].least && value <= cases[i].most, "attribute: %s (%d)",
               cases[i].name, value);
    }
    TAP_EQ("an unknown attribute",
           sw_drv.cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, 0), IV);
    TAP_EQ("an attribute to NULL",
           sw_drv.cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), IV);
    TAP_EQ("an attribute of a device past the last",
           sw_drv.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, conf.devices), ID);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static CUcontext current(void)
{
    CUcontext ctx = NULL;

    conf_must(sw_drv.cuCtxGetCurrent(&ctx), "cuCtxGetCurrent");
    return ctx;
}

static void *current_of_thread(void *unused)
{
    (void)unused;
    return current();
}

static void contexts(void)
{
    const CUdevice last = conf.devices - 1;
    CUcontext ours = current(), again = NULL, other = NULL, popped = NULL;
    CUdevice device = -1;
    pthread_t thread;
    void *theirs = ours;

    TAP_EQ("retain a second time", sw_drv.cuDevicePrimaryCtxRetain(&again, conf.device), OK);
    tap_ok(again == ours, "it is the same context");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(conf.device), "cuDevicePrimaryCtxRelease");
    conf_must(sw_drv.cuDevicePrimaryCtxRetain(&other, last), "cuDevicePrimaryCtxRetain");
    TAP_EQ("push", sw_drv.cuCtxPushCurrent(other), OK);
    tap_ok(current() == other, "it is current");
    TAP_EQ("its device", sw_drv.cuCtxGetDevice(&device), OK);
    TAP_EQ("that is the last", device, last);
    TAP_EQ("push the first on top", sw_drv.cuCtxPushCurrent(ours), OK);
    TAP_EQ("set takes the top's place", sw_drv.cuCtxSetCurrent(other), OK);
    TAP_EQ("pop", sw_drv.cuCtxPopCurrent(&popped), OK);
    tap_ok(popped == other && current() == other, "under it is what was pushed before");
    TAP_EQ("pop again", sw_drv.cuCtxPopCurrent(&popped), OK);
    tap_ok(popped == other && current() == ours, "and under that what was current at first");
    TAP_EQ("pop the last", sw_drv.cuCtxPopCurrent(&popped), OK);
    tap_ok(popped == ours && current() == NULL, "nothing is current then");
    TAP_EQ("pop of nothing", sw_drv.cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("the device of nothing", sw_drv.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("synchronize nothing", sw_drv.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    TAP_EQ("set", sw_drv.cuCtxSetCurrent(ours), OK);
    tap_ok(current() == ours, "it is current");
    TAP_EQ("one pop takes it away", sw_drv.cuCtxPopCurrent(&popped), OK);
    tap_ok(current() == NULL, "and all of it");
    conf_must(sw_drv.cuCtxSetCurrent(ours), "cuCtxSetCurrent");
    TAP_EQ("synchronize", sw_drv.cuCtxSynchronize(), OK);
    if (pthread_create(&thread, NULL, current_of_thread, NULL) != 0)
        conf_bail("pthread_create");
    pthread_join(thread, &theirs);
    tap_ok(theirs == NULL, "another thread has no context");
    conf_must(sw_drv.cuDevicePrimaryCtxRelease(last), "cuDevicePrimaryCtxRelease");
    TAP_EQ("retain on a device past the last",
           sw_drv.cuDevicePrimaryCtxRetain(&other, conf.devices), ID);
    TAP_EQ("release on a device past the last", sw_drv.cuDevicePrimaryCtxRelease(conf.devices), ID);
    if (conf.emulated && conf.devices > 1)
        TAP_EQ("release of what is not retained", sw_drv.cuDevicePrimaryCtxRelease(last),
               CUDA_ERROR_INVALID_CONTEXT);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void errors(void)
{
    static const struct {
        CUresult code;
        const char *name;
    } cases[] = {
        {OK, "CUDA_SUCCESS"},
        {IV, "CUDA_ERROR_INVALID_VALUE"},
        {OOM, "CUDA_ERROR_OUT_OF_MEMORY"},
        {ID, "CUDA_ERROR_INVALID_DEVICE"},
        {NS, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    const char *text = "untouched";

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        conf_must(sw_drv.cuGetErrorName(cases[i].code, &text), "cuGetErrorName");
        tap_ok(text != NULL && strcmp(text, cases[i].name) == 0, "the name of %d",
               (int)cases[i].code);
        conf_must(sw_drv.cuGetErrorString(cases[i].code, &text), "cuGetErrorString");
        tap_ok(text != NULL && text[0] != '\0', "the text of %d", (int)cases[i].code);
    }
    TAP_EQ("the name of an unknown error", sw_drv.cuGetErrorName((CUresult)12345, &text), IV);
    tap_ok(text == NULL, "is none");
    TAP_EQ("the text of an unknown error", sw_drv.cuGetErrorString((CUresult)12345, &text), IV);
    tap_ok(text == NULL, "is none");
}

int main(void)
{
    conf_start();
    conf_group("devices", devices);
    conf_group("attributes", attributes);
    conf_group("contexts", contexts);
    conf_group("errors", errors);
    return conf_done(NULL);
}
