/* The emulated driver inside a library that hides it: its live objects, and how to make its calls
 * fail. Exported by the fake libcuda.so.1 and by the libsymwin.so.0 of tests/nccl/emulated. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include "emu/emu.h"

struct fake_engine { /* as in emu.h */
    const struct sw_driver *driver;
    void (*fail_nth)(unsigned nth, CUresult code, int persistent, int including_teardown);
    int (*fired)(void);
    const char *(*fault_name)(void);
    void (*live_count)(struct sw_emu_live *live);
    void (*live_print)(int fd);
};

SYMWIN_API const struct fake_engine *fake_engine(void);

#endif
