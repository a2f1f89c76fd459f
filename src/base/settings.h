/* The library's own variables in the environment: one table (settings.c, docs/environment.md). Those
 * that a launcher sets, and those by which ranks are found, are environment.c's. */
#ifndef SYMWIN_SETTINGS_H
#define SYMWIN_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

#include "symwin.h"

enum sw_setting {
    SW_SETTING_DRIVER, /* enum sw_driver_choice */
    SW_SETTING_INFO,
    SW_SETTING_DEBUG,
    SW_SETTING_NVLS,
    SW_SETTING_GRAPH_REGISTER,
    SW_SETTING_GRAPH_LAUNCH,
    SW_SETTING_TUNING, /* a text */
    SW_SETTING_TIMEOUT_MS,
    SW_SETTING_BOOTSTRAP_TIMEOUT_MS,
    SW_SETTING_HOST_ID, /* a text */
    SW_SETTING_MEM_POOL,
    SW_SETTING_MEM_KEEP,
    SW_SETTING_MEM_DEBUG,
    SW_SETTING_EMU_DEVICES,
    SW_SETTING_EMU_MEM,
    SW_SETTING_EMU_FABRIC,
    SW_SETTING_EMU_MULTICAST,
    SW_SETTING_EMU_OLD,
    SW_SETTING_EMU_STRANGERS,
    SW_SETTING_EMU_MULTICAST_UNIT,
    SW_SETTINGS
};

enum sw_driver_choice { SW_CHOICE_AUTO, SW_CHOICE_CUDA, SW_CHOICE_EMU };

/* SYMWIN_MEM_KEEP where it is not set: a part of the device's memory. */
#define SW_KEEP_DEFAULT UINT64_MAX

#define SW_EMU_DEVICES_MOST 128
#define SW_EMU_MEM_MOST ((uint64_t)1 << 46) /* bytes of an emulated device: beyond any arena */

/* Who reads a variable, and refuses a value that makes no sense. */
enum sw_reader {
    SW_READER_DRIVER = 1,   /* the first call that needs the driver, once a process */
    SW_READER_COMM = 2,     /* the creation of a communicator */
    SW_READER_EMULATED = 4, /* the start of the emulated driver, once a process */
};

/* SYMWIN_OK, or SYMWIN_INVALID with a sentence that names the first variable of these readers that is
 * set to what makes no sense. `call`: NULL, or what the sentence begins with. */
symwin_status sw_settings_check(const char *call, unsigned readers);

/* The value; the default where the variable is not set, or was refused by sw_settings_check(). */
uint64_t sw_setting(enum sw_setting which);
const char *sw_setting_text(enum sw_setting which); /* of one that is a text; NULL: not set */

/* A row of the table, for the documentation's test. */
const char *sw_setting_name(enum sw_setting which);
void sw_setting_allowed(enum sw_setting which, char *text, size_t bytes);

#endif
