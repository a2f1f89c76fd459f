#include "engine.h"

const struct fake_engine *fake_engine(void)
{
    static const struct fake_engine engine = {
        .driver = &sw_emu_driver,
        .fail_nth = sw_emu_fail_nth,
        .fired = sw_emu_fault_fired,
        .fault_name = sw_emu_fault_name,
        .live_count = sw_emu_live_count,
        .live_print = sw_emu_live_print,
    };

    return &engine;
}
