/* Switches multicast off for the rivals: a faulty multicast program can put a host's GPUs out of
 * service for everyone (docs/hardware.md), and symwin is timed without it, too. For every program
 * here that loads NCCL or starts PyTorch.
 */
#ifndef RIVALS_MULTICAST_H
#define RIVALS_MULTICAST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Switches multicast off in the environment; call before any thread exists. Returns 0, or -1 with a
 * sentence in `text` if the environment asks for multicast. */
static inline int rivals_multicast_off(char *text, size_t bytes)
{
    static const struct {
        const char *name, *off;
    } switches[] = {{"NCCL_NVLS_ENABLE", "0"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"}};

    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        const char *value = getenv(switches[i].name);

        if (value != NULL && strcmp(value, switches[i].off) != 0) {
            snprintf(text, bytes,
                     "%s is \"%s\": rivals are timed without multicast; set it to %s or leave it "
                     "unset",
                     switches[i].name, value, switches[i].off);
            return -1;
        }
        if (setenv(switches[i].name, switches[i].off, 1) != 0) {
            snprintf(text, bytes, "%s cannot be set", switches[i].name);
            return -1;
        }
    }
    return 0;
}

#endif
