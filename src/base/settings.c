/* The library's environment variables: the values that each may have, and their only reader.
 *
 * With an invalid value, the first call that reads the variable fails with SYMWIN_INVALID. A switch
 * set to "no", a time of 0 or an empty text was meant to do something, and must not be ignored. A
 * rank that finds one while it creates a communicator still joins the others, so that all ranks
 * fail together and get the reason.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/base.h"

enum kind { SWITCH, NUMBER, MILLISECONDS, BYTES, GRANULES, WORD, FILE_OR_0, TEXT, FAULT };

#define MS_MOST 1000000000
#define GRANULE ((uint64_t)2 << 20)

static const struct row {
    const char *name;
    enum kind kind;
    enum sw_reader reader;
    uint64_t least, most, otherwise; /* range of a number, or of a text's length; default */
} rows[SW_SETTINGS] = {
    [SW_SETTING_DRIVER] = {"SYMWIN_DRIVER", WORD, SW_READER_DRIVER, 0, 0, SW_CHOICE_AUTO},
    [SW_SETTING_INFO] = {"SYMWIN_INFO", SWITCH, SW_READER_DRIVER, 0, 1, 0},
    [SW_SETTING_DEBUG] = {"SYMWIN_DEBUG", SWITCH, SW_READER_DRIVER, 0, 1, 0},
    [SW_SETTING_NVLS] = {"SYMWIN_NVLS", SWITCH, SW_READER_COMM, 0, 1, 0},
    [SW_SETTING_GRAPH_REGISTER] = {"SYMWIN_GRAPH_REGISTER", SWITCH, SW_READER_COMM, 0, 1, 1},
    [SW_SETTING_GRAPH_LAUNCH] = {"SYMWIN_GRAPH_LAUNCH", SWITCH, SW_READER_COMM, 0, 1, 0},
    [SW_SETTING_TUNING] = {"SYMWIN_TUNING", FILE_OR_0, SW_READER_COMM, 1, 4095, 0},
    [SW_SETTING_TIMEOUT_MS] = {"SYMWIN_TIMEOUT_MS", MILLISECONDS, SW_READER_COMM, 1, MS_MOST,
                               30000},
    [SW_SETTING_BOOTSTRAP_TIMEOUT_MS] = {"SYMWIN_BOOTSTRAP_TIMEOUT_MS", MILLISECONDS,
                                         SW_READER_COMM, 1, MS_MOST, 60000},
    [SW_SETTING_HOST_ID] = {"SYMWIN_HOST_ID", TEXT, SW_READER_COMM, 1, 4095, 0},
    [SW_SETTING_MEM_POOL] = {"SYMWIN_MEM_POOL", SWITCH, SW_READER_DRIVER, 0, 1, 1},
    [SW_SETTING_MEM_KEEP] = {"SYMWIN_MEM_KEEP", BYTES, SW_READER_DRIVER, 0, INT64_MAX,
                             SW_KEEP_DEFAULT},
    [SW_SETTING_MEM_DEBUG] = {"SYMWIN_MEM_DEBUG", SWITCH, SW_READER_DRIVER, 0, 1, 0},
    [SW_SETTING_EMU_DEVICES] = {"SYMWIN_EMU_DEVICES", NUMBER, SW_READER_EMULATED, 1,
                                SW_EMU_DEVICES_MOST, 8},
    [SW_SETTING_EMU_MEM] = {"SYMWIN_EMU_MEM", BYTES, SW_READER_EMULATED, GRANULE, SW_EMU_MEM_MOST,
                            (uint64_t)8 << 30},
    [SW_SETTING_EMU_FABRIC] = {"SYMWIN_EMU_FABRIC", NUMBER, SW_READER_EMULATED, 0, 2, 1},
    [SW_SETTING_EMU_MULTICAST] = {"SYMWIN_EMU_MULTICAST", SWITCH, SW_READER_EMULATED, 0, 1, 1},
    [SW_SETTING_EMU_OLD] = {"SYMWIN_EMU_OLD", NUMBER, SW_READER_EMULATED, 0, SW_EMU_DEVICES_MOST,
                            0},
    [SW_SETTING_EMU_STRANGERS] = {"SYMWIN_EMU_STRANGERS", SWITCH, SW_READER_EMULATED, 0, 1, 0},
    [SW_SETTING_EMU_MULTICAST_UNIT] = {"SYMWIN_EMU_MULTICAST_UNIT", GRANULES, SW_READER_EMULATED,
                                       GRANULE, (uint64_t)1 << 30, GRANULE},
    [SW_SETTING_EMU_MULTICAST_RECOMMENDED] = {"SYMWIN_EMU_MULTICAST_RECOMMENDED", GRANULES,
                                              SW_READER_EMULATED, GRANULE, (uint64_t)1 << 30,
                                              (uint64_t)512 << 20},
    [SW_SETTING_EMU_MULTICAST_SLOTS] = {"SYMWIN_EMU_MULTICAST_SLOTS", NUMBER, SW_READER_EMULATED, 0,
                                        SW_EMU_SLOTS_MOST, 128},
    [SW_SETTING_EMU_MULTICAST_ALONE] = {"SYMWIN_EMU_MULTICAST_ALONE", SWITCH, SW_READER_EMULATED, 0,
                                        1, 0},
    [SW_SETTING_EMU_MULTICAST_FAULT] = {"SYMWIN_EMU_MULTICAST_FAULT", FAULT, SW_READER_EMULATED, 1,
                                        63, 0},
    [SW_SETTING_EMU_ALIAS] = {"SYMWIN_EMU_ALIAS", SWITCH, SW_READER_EMULATED, 0, 1, 0},
    [SW_SETTING_EMU_MACHINE] = {"SYMWIN_EMU_MACHINE", NUMBER, SW_READER_EMULATED, 0,
                                SW_EMU_MACHINE_MOST, 0},
};

/* The values of SYMWIN_DRIVER, the only variable of kind WORD, by enum sw_driver_choice. */
static const char *const words[] = {"auto", "cuda", "emu"};

static const char units[] = "KMGT";

/* Digits; in a number of bytes, a unit may follow. 0: not a number, or out of range. */
static int parse_number(const struct row *row, const char *text, uint64_t *value)
{
    const char *unit;

    *value = 0;
    if (*text < '0' || *text > '9')
        return 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        if (*value > row->most / 10)
            return 0;
        *value = 10 * *value + (uint64_t)(*text - '0');
    }
    unit = (row->kind == BYTES || row->kind == GRANULES) && *text != '\0' ? strchr(units, *text)
                                                                          : NULL;
    if (unit != NULL) {
        const int shift = 10 * (int)(unit - units + 1);

        if (*value > row->most >> shift)
            return 0;
        *value <<= shift;
        text++;
    }
    return *text == '\0' && *value >= row->least && *value <= row->most &&
           (row->kind != GRANULES || *value % GRANULE == 0);
}

/* A call's name and one to four numbers: its answer, the device, how often, and the time. Something
 * has to go wrong. */
static int parse_fault(const char *text)
{
    static const char *const calls[] = {"add:", "bind:", "import:"};
    static const long least[] = {0, -1, -1, -1};
    static const long most[] = {999, SW_EMU_DEVICES_MOST - 1, MS_MOST, MS_MOST};
    long numbers[] = {0, -1, -1, 0};
    size_t i, count = 0;
    char *end;

    for (i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (strncmp(text, calls[i], strlen(calls[i])) == 0)
            break;
    if (i == sizeof calls / sizeof calls[0])
        return 0;
    for (text += strlen(calls[i]) - 1; count < 4 && *text == ':'; text = end) {
        text++;
        if ((*text < '0' || *text > '9') && *text != '-')
            return 0;
        numbers[count] = strtol(text, &end, 10);
        if (end == text || numbers[count] < least[count] || numbers[count] > most[count])
            return 0;
        count++;
    }
    return *text == '\0' && numbers[2] != 0 && (numbers[0] != 0 || numbers[3] != 0);
}

static int parse(const struct row *row, const char *text, uint64_t *value)
{
    size_t i;

    switch (row->kind) {
    case WORD:
        for (i = 0; i < sizeof words / sizeof words[0]; i++)
            if (strcmp(text, words[i]) == 0) {
                *value = i;
                return 1;
            }
        return 0;
    case FILE_OR_0:
    case TEXT:
        *value = strlen(text);
        return *value >= row->least && *value <= row->most;
    case FAULT:
        *value = strlen(text);
        return *value <= row->most && parse_fault(text);
    default:
        return parse_number(row, text, value);
    }
}

const char *sw_setting_name(enum sw_setting which)
{
    return rows[which].name;
}

/* Prints a number of bytes in the largest unit that divides it. */
static void print_bytes(uint64_t bytes, char text[24])
{
    static const char *const names[] = {"", "K", "M", "G", "T"};
    int unit = 0;

    for (; unit < 4 && bytes > 0 && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    snprintf(text, 24, "%llu%s", (unsigned long long)bytes, names[unit]);
}

void sw_setting_allowed(enum sw_setting which, char *text, size_t bytes)
{
    const struct row *row = &rows[which];
    char least[24], most[24];

    switch (row->kind) {
    case SWITCH:
        snprintf(text, bytes, "0 or 1");
        return;
    case NUMBER:
    case MILLISECONDS:
        snprintf(text, bytes, "a number%s from %llu to %llu",
                 row->kind == MILLISECONDS ? " of milliseconds" : "",
                 (unsigned long long)row->least, (unsigned long long)row->most);
        return;
    case BYTES:
        print_bytes(row->least, least);
        print_bytes(row->most, most);
        if (row->most == INT64_MAX)
            snprintf(text, bytes, "a number of bytes, %s or more, K, M, G or T may follow it",
                     least);
        else
            snprintf(text, bytes, "a number of bytes from %s to %s, K, M, G or T may follow it",
                     least, most);
        return;
    case GRANULES:
        print_bytes(row->least, least);
        print_bytes(row->most, most);
        snprintf(text, bytes, "a multiple of %s from %s to %s, K, M, G or T may follow it", least,
                 least, most);
        return;
    case WORD:
        snprintf(text, bytes, "%s, %s or %s", words[0], words[1], words[2]);
        return;
    case FILE_OR_0:
        snprintf(text, bytes, "the path of a file, or 0");
        return;
    case TEXT:
        snprintf(text, bytes, "a text of %llu to %llu bytes", (unsigned long long)row->least,
                 (unsigned long long)row->most);
        return;
    case FAULT:
        snprintf(text, bytes, "CALL:ANSWER[:DEVICE[:TIMES[:MS]]], a CALL of add, bind or import");
        return;
    }
}

symwin_status sw_settings_check(const char *call, unsigned readers)
{
    int i;

    for (i = 0; i < SW_SETTINGS; i++) {
        const char *text = getenv(rows[i].name);
        char allowed[128];
        uint64_t value;

        if ((rows[i].reader & readers) == 0 || text == NULL || parse(&rows[i], text, &value))
            continue;
        sw_setting_allowed((enum sw_setting)i, allowed, sizeof allowed);
        return sw_fail(SYMWIN_INVALID, "%s%s%s is \"%.64s\": set it to %s, or unset it",
                       call != NULL ? call : "", call != NULL ? ": " : "", rows[i].name, text,
                       allowed);
    }
    return SYMWIN_OK;
}

uint64_t sw_setting(enum sw_setting which)
{
    const char *text = getenv(rows[which].name);
    uint64_t value;

    return text != NULL && parse(&rows[which], text, &value) ? value : rows[which].otherwise;
}

const char *sw_setting_text(enum sw_setting which)
{
    const char *text = getenv(rows[which].name);
    uint64_t length;

    return text != NULL && parse(&rows[which], text, &length) ? text : NULL;
}
