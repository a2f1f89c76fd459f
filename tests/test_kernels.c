/* The collective kernels on the emulated driver, launched directly. */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"
#include "emu/emu.h"
#include "kernel_cases.h"

int main(void)
{
    const struct kernel_cases cases = {4, 1, 72, sw_emu_live_objects};

    setenv("SYMWIN_DRIVER", "emu", 1);
    setenv("SYMWIN_EMU_DEVICES", "4", 1);
    if (sw_driver_load() != SYMWIN_OK) {
        printf("Bail out! no emulated driver\n");
        return 1;
    }
    return kernel_cases_run(&cases);
}
