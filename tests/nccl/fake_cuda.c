/* A fake libcuda.so.1, as far as libsymwin uses it, on top of the emulated driver: programs that
 * load it see a machine with GPUs. It is linked to its own libsymwin, whose symbols are hidden.
 *
 * FAKE_CUDA=none has no device, =broken fails to start, =old is CUDA 11.8. */
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"

static int is(const char *what)
{
    const char *text = getenv("FAKE_CUDA");

    return text != NULL && strcmp(text, what) == 0;
}

SYMWIN_API CUresult cuInit(unsigned int flags)
{
    return is("broken") ? CUDA_ERROR_NOT_SUPPORTED : sw_emu_driver.cuInit(flags);
}

SYMWIN_API CUresult cuDriverGetVersion(int *version)
{
    const CUresult result = sw_emu_driver.cuDriverGetVersion(version);

    if (result == CUDA_SUCCESS && is("old"))
        *version = 11080;
    return result;
}

SYMWIN_API CUresult cuDeviceGetCount(int *count)
{
    const CUresult result = sw_emu_driver.cuDeviceGetCount(count);

    if (result == CUDA_SUCCESS && is("none"))
        *count = 0;
    return result;
}

SYMWIN_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    return sw_emu_driver.cuMemRetainAllocationHandle(handle, addr);
}

SYMWIN_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return sw_emu_driver.cuMemRelease(handle);
}

SYMWIN_API CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult *found)
{
    static const struct {
        const char *symbol;
        int version;
    } entries[] = {
#define FAKE_ENTRY(name, symbol, version, need, params) {symbol, version},
        SW_DRIVER_LIST(FAKE_ENTRY)
#undef FAKE_ENTRY
    };
    const unsigned char *table = (const unsigned char *)&sw_emu_driver;
    size_t i;

    (void)flags;
    *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (is("broken") || is("none"))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (is("old") && version >= 12000)
        return CUDA_ERROR_NOT_FOUND;
    for (i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].symbol, symbol) == 0 && entries[i].version == version) {
            memcpy(fn, table + i * sizeof *fn, sizeof *fn);
            *found = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    return CUDA_SUCCESS;
}
