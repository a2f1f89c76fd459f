/* Communicators over several domains, on the emulated driver without fabric handles. The engine
 * between domains is the stand-in for NCCL (tests/nccl/stand_in), which gets the driver from the
 * test program: it must export symwin_driver_find(). */
#ifndef SYMWIN_TESTS_RAILS_H
#define SYMWIN_TESTS_RAILS_H

#include "processes.h"

/* Before the process's first call of symwin. */
HARNESS_UNUSED void rails_set_engine(void)
{
    const char *build = getenv("SYMWIN_BUILD");
    char path[4096];

    snprintf(path, sizeof path, "%s/tests/nccl/stand_in/libnccl.so.2",
             build != NULL ? build : "build");
    setenv("SYMWIN_NCCL", path, 1);
    setenv("STAND_IN_DRIVER", "symwin", 1);
    setenv("SYMWIN_EMU_FABRIC", "1", 1); /* claimed, and refused: hosts are domains */
}

#endif
