/* The collective kernels on the emulated driver, launched directly. */
#include <stdio.h>
#include <stdlib.h>

#include "emu/emu.h"
#include "kernel_team.h"
#include "src/driver/driver.h"

/* Under ThreadSanitizer, 72 ranks test nothing more than 17 do, and take many times as long. */
#if defined(__SANITIZE_THREAD__)
enum { MOST_RANKS = 17 };
#else
enum { MOST_RANKS = 72 };
#endif

int main(void)
{
    const struct kernel_cases cases = {4, 1, MOST_RANKS, sw_emu_live_objects};

    setenv("SYMWIN_DRIVER", "emu", 1);
    setenv("SYMWIN_EMU_DEVICES", "4", 1);
    setenv("SYMWIN_EMU_ALIAS", "1", 1); /* kernels without alias fences are killed */
    if (sw_driver_load() != SYMWIN_OK) {
        printf("Bail out! no emulated driver\n");
        return 1;
    }
    return kernel_cases_run(&cases);
}
