/* What the variables of libsymwin-nccl.so may be. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/setup.h"
#include "nccl/variables.h"

const char *const sw_kind_names[SW_KINDS] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                             "broadcast", "reduce",         "gather",    "scatter",
                                             "sendrecv",  "sendrecv"};

/* Sets one mode for a collective, or for all without a name. Whether there is such a one. */
static int set_serve(const char *name, size_t length, const char *mode, size_t mode_length,
                     enum sw_serve serve[SW_KINDS])
{
    static const char *const modes[] = {"auto", "all", "none"};
    int kind, which = 0, found = 0;

    while (which < 3 &&
           (strlen(modes[which]) != mode_length || strncmp(modes[which], mode, mode_length) != 0))
        which++;
    for (kind = 0; kind < SW_KINDS && which < 3; kind++)
        if (name == NULL || (strlen(sw_kind_names[kind]) == length &&
                             strncmp(sw_kind_names[kind], name, length) == 0)) {
            serve[kind] = (enum sw_serve)which;
            found = 1;
        }
    return found;
}

int sw_read_serve(const char *text, enum sw_serve serve[SW_KINDS])
{
    const char *item = text;
    int sensible = 1;

    while (sensible && item != NULL) {
        const size_t length = strcspn(item, ",");
        const char *equals = memchr(item, '=', length);

        sensible = equals == NULL ? set_serve(NULL, 0, item, length, serve)
                                  : set_serve(item, (size_t)(equals - item), equals + 1,
                                              length - (size_t)(equals + 1 - item), serve);
        item = item[length] == ',' ? item + length + 1 : NULL;
    }
    return sensible;
}

int sw_read_room(const char *text, size_t *room)
{
    static const char units[] = "KMG";
    const unsigned long long most = (unsigned long long)1 << 40;
    unsigned long long value = 0;
    const char *unit;
    char *end = NULL;
    int sensible, bits;

    *room = (size_t)64 << 20;
    if (text == NULL)
        return 1;
    errno = 0;
    value = strtoull(text, &end, 10);
    unit = *end != '\0' && end[1] == '\0' ? strchr(units, *end) : NULL;
    bits = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    sensible = text[0] >= '0' && text[0] <= '9' && errno == 0 && (*end == '\0' || unit != NULL) &&
               value <= most >> bits && value << bits >= ((unsigned long long)1 << 20);
    if (sensible)
        *room = (size_t)(value << bits);
    return sensible;
}

static int is_serve(const char *text)
{
    enum sw_serve serve[SW_KINDS];

    return sw_read_serve(text, serve);
}

static int is_room(const char *text)
{
    size_t room;

    return sw_read_room(text, &room);
}

static int is_switch(const char *text)
{
    return strcmp(text, "0") == 0 || strcmp(text, "1") == 0;
}

static int is_path(const char *text)
{
    return text[0] != '\0';
}

const struct sw_nccl_variable sw_nccl_variables[SW_NCCL_VARIABLES] = {
    {"SYMWIN_NCCL_PEERS", "0 or 1", is_switch},
    {"SYMWIN_NCCL_SERVE",
     "auto, all or none, or to a list such as auto,allreduce=all,sendrecv=none", is_serve},
    {"SYMWIN_NCCL_MEMORY", "a number of bytes from 1M to 1024G", is_room},
    {"SYMWIN_NCCL_REPORT", "0 or 1", is_switch},
    {"SYMWIN_NCCL", "the path of libnccl.so.2", is_path},
};

int sw_nccl_variable_is_wrong(const struct sw_nccl_variable *variable, char *text, size_t bytes)
{
    const char *value = getenv(variable->name);

    if (value == NULL || variable->makes_sense(value))
        return 0;
    snprintf(text, bytes, "%s is \"%.64s\": set it to %s, or unset it", variable->name, value,
             variable->allowed);
    return 1;
}
