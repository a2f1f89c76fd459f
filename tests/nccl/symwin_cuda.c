/* A libcuda.so.1 that is the emulated driver of the process's libsymwin.so, with SYMWIN_DRIVER=emu:
 * so symwin, a program and its NCCL share memory, streams and graphs. */
#include <string.h>

#include "src/driver/driver.h"
#include "symwin.h"

SYMWIN_API CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult *found)
{
    static const struct {
        const char *name, *symbol;
        int version;
    } entries[] = {
#define ENTRY(name, symbol, version, need, params) {#name, symbol, version},
        SW_DRIVER_LIST(ENTRY)
#undef ENTRY
    };
    size_t i;

    (void)flags;
    *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].symbol, symbol) == 0 && entries[i].version == version &&
            symwin_driver_find(entries[i].name, fn) == SYMWIN_OK) {
            *found = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}
