/* Communicators over several domains: hosts without fabric handles. The engine between domains is
 * the stand-in for NCCL (tests/nccl/stand_in), which gets the emulated driver from the test
 * program: it must export symwin_driver_find(). On GPUs it is NCCL, to which each process is a
 * host. */
#ifndef SYMWIN_TESTS_RAILS_H
#define SYMWIN_TESTS_RAILS_H

#include <dlfcn.h>

#include "processes.h"

/* Before the process's first call of symwin. */
HARNESS_UNUSED void rails_set_engine(int rank)
{
    const char *build = getenv("SYMWIN_BUILD");
    char path[4096];

    if (processes_use_gpus()) {
        snprintf(path, sizeof path, "symwin-test-%d", rank);
        setenv("NCCL_HOSTID", path, 1);
        return;
    }
    snprintf(path, sizeof path, "%s/tests/nccl/stand_in/libnccl.so.2",
             build != NULL ? build : "build");
    setenv("SYMWIN_NCCL", path, 1);
    setenv("STAND_IN_DRIVER", "symwin", 1);
    setenv("STAND_IN_WAITS", "1", 1);
    setenv("SYMWIN_EMU_FABRIC", "1", 1); /* claimed, and refused: hosts are domains */
}

/* A function of the stand-in that this process has loaded (stand_in.h). NULL: it has none. */
HARNESS_UNUSED void *rails_find(const char *name)
{
    const char *path = getenv("SYMWIN_NCCL");
    void *const library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;

    return library != NULL ? dlsym(library, name) : NULL;
}

#endif
