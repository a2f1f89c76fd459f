/* Reads the environment, and looks for the driver. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/setup.h"

/* Functions of the CUDA driver. */
typedef int (*init_fn)(unsigned flags);
typedef int (*number_fn)(int *value);

const char *const sw_kind_names[SW_KINDS] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                             "broadcast", "reduce",         "gather",    "scatter",
                                             "sendrecv",  "sendrecv"};

static struct sw_setup setup;

/* NCCL_CUMEM_ENABLE as NCCL reads it: -2, the default, is on where the GPU supports it; other
 * negative numbers are off. */
static int cumem_is_off(void)
{
    const char *text = getenv("NCCL_CUMEM_ENABLE");
    long long value;

    if (text == NULL || text[0] == '\0')
        return 0;
    errno = 0;
    value = strtoll(text, NULL, 0);
    return errno == 0 && (value == 0 || (value < 0 && value != -2));
}

/* Whether there is a GPU and a driver that symwin can use. Without this check, SYMWIN_DRIVER=auto
 * would make symwin use the emulated driver, with a message on stderr. */
static int gpu_is_there(void *cuda)
{
    void *init_symbol = dlsym(cuda, "cuInit");
    void *version_symbol = dlsym(cuda, "cuDriverGetVersion");
    void *count_symbol = dlsym(cuda, "cuDeviceGetCount");
    number_fn get_version, get_count;
    int version = 0, count = 0;
    init_fn init;

    if (init_symbol == NULL || version_symbol == NULL || count_symbol == NULL ||
        dlsym(cuda, "cuGetProcAddress_v2") == NULL)
        return 0;
    memcpy(&init, &init_symbol, sizeof init);
    memcpy(&get_version, &version_symbol, sizeof get_version);
    memcpy(&get_count, &count_symbol, sizeof get_count);
    return init(0) == 0 && get_version(&version) == 0 && version >= 12000 &&
           get_count(&count) == 0 && count > 0;
}

/* NCCL does not serve the calls instead: if only some ranks had the variable, memory at different
 * offsets would give wrong results. The text goes to stderr too, because an unchanged program does
 * not ask symwin for it. */
static void refuse(const char *why)
{
    setup.refused = 1;
    snprintf(setup.why, sizeof setup.why, "%s", why);
    fprintf(stderr, "libsymwin-nccl.so: ncclMemAlloc returns ncclInvalidArgument: %s\n", why);
}

/* Checks symwin's own variables, and which driver it selects if it may choose. */
static void ask_symwin(int chooses)
{
    symwin_driver_info info;
    const symwin_status status = symwin_driver_query(&info);

    if (status == SYMWIN_INVALID && !setup.refused)
        refuse(symwin_last_error());
    if (chooses && (status != SYMWIN_OK || strcmp(info.name, "cuda") != 0))
        setup.usable = 0;
}

static void check_own(const char *name, const char *value, int sensible, const char *allowed)
{
    char text[256];

    if (value == NULL || sensible || setup.refused)
        return;
    snprintf(text, sizeof text, "%s is \"%.64s\": set it to %s, or unset it", name, value, allowed);
    refuse(text);
}

static const char allowed_serve[] =
    "auto, all or none, or to a list such as auto,allreduce=all,sendrecv=none";

/* Sets one mode for a collective, or for all without a name. Whether there is such a one. */
static int set_serve(const char *name, size_t length, const char *mode, size_t mode_length)
{
    static const char *const modes[] = {"auto", "all", "none"};
    int kind, which = 0, found = 0;

    while (which < 3 &&
           (strlen(modes[which]) != mode_length || strncmp(modes[which], mode, mode_length) != 0))
        which++;
    for (kind = 0; kind < SW_KINDS && which < 3; kind++)
        if (name == NULL || (strlen(sw_kind_names[kind]) == length &&
                             strncmp(sw_kind_names[kind], name, length) == 0)) {
            setup.serve[kind] = (enum sw_serve)which;
            found = 1;
        }
    return found;
}

static void read_serve(const char *text)
{
    const char *item = text;
    int sensible = text != NULL;

    while (sensible && item != NULL) {
        const size_t length = strcspn(item, ",");
        const char *equals = memchr(item, '=', length);

        sensible = equals == NULL ? set_serve(NULL, 0, item, length)
                                  : set_serve(item, (size_t)(equals - item), equals + 1,
                                              length - (size_t)(equals + 1 - item));
        item = item[length] == ',' ? item + length + 1 : NULL;
    }
    check_own("SYMWIN_NCCL_SERVE", text, sensible, allowed_serve);
}

static void read_room(const char *text)
{
    static const char units[] = "KMG";
    unsigned long long value = 0;
    const char *unit;
    char *end = NULL;
    int sensible;

    setup.room = (size_t)64 << 20;
    if (text == NULL)
        return;
    errno = 0;
    value = strtoull(text, &end, 10);
    unit = *end != '\0' && end[1] == '\0' ? strchr(units, *end) : NULL;
    sensible = text[0] >= '0' && text[0] <= '9' && errno == 0 && (*end == '\0' || unit != NULL) &&
               value <= ((unsigned long long)1 << 40);
    if (sensible && unit != NULL)
        value <<= 10 * (unit - units + 1);
    sensible = sensible && value >= ((unsigned long long)1 << 20) &&
               value <= ((unsigned long long)1 << 40);
    if (sensible)
        setup.room = (size_t)value;
    check_own("SYMWIN_NCCL_MEMORY", text, sensible, "a number of bytes from 1M to 1024G");
}

static void set_up(void)
{
    const char *driver = getenv("SYMWIN_DRIVER");
    const char *peers = getenv("SYMWIN_NCCL_PEERS");
    const char *path = getenv("SYMWIN_NCCL");
    const char *report = getenv("SYMWIN_NCCL_REPORT");
    const char *most_ctas = getenv("NCCL_MAX_CTAS");
    const int chooses = driver == NULL || strcmp(driver, "auto") == 0;
    void *cuda;

    setup.memory = !cumem_is_off();
    setup.flags = SYMWIN_MEM_NCCL;
    if (peers == NULL || strcmp(peers, "0") != 0)
        setup.flags |= SYMWIN_MEM_PEERS;
    check_own("SYMWIN_NCCL_PEERS", peers,
              peers != NULL && (strcmp(peers, "0") == 0 || strcmp(peers, "1") == 0), "0 or 1");
    read_serve(getenv("SYMWIN_NCCL_SERVE"));
    read_room(getenv("SYMWIN_NCCL_MEMORY"));
    check_own("SYMWIN_NCCL_REPORT", report,
              report != NULL && (strcmp(report, "0") == 0 || strcmp(report, "1") == 0), "0 or 1");
    setup.report = report != NULL && strcmp(report, "1") == 0;
    setup.most_blocks = most_ctas != NULL ? atoi(most_ctas) : 0; /* NCCL says what is wrong */
    check_own("SYMWIN_NCCL", path, path != NULL && path[0] != '\0', "the path of libnccl.so.2");
    if (driver != NULL && strcmp(driver, "emu") == 0) {
        setup.emulated = 1;
        setup.usable = 1;
        ask_symwin(0);
        return;
    }
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed, as CUDA expects */
    if (cuda != NULL) {
        void *retain = dlsym(cuda, "cuMemRetainAllocationHandle");
        void *release = dlsym(cuda, "cuMemRelease");

        setup.cuda = cuda;
        if (retain != NULL && release != NULL) {
            memcpy(&setup.retain, &retain, sizeof setup.retain);
            memcpy(&setup.release, &release, sizeof setup.release);
        }
    }
    setup.usable = !chooses || (cuda != NULL && gpu_is_there(cuda));
    if (setup.usable)
        ask_symwin(chooses);
}

const struct sw_setup *sw_setup(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, set_up);
    return &setup;
}

/* ---- the driver's functions ------------------------------------------------------------------ */

static struct sw_cu cu;
static int cu_complete;

/* From libcuda if symwin cannot use it here: other ranks wait to hear that. */
static void *cu_function(const char *name, const char *symbol)
{
    void *function = NULL;

    if (sw_setup()->usable && symwin_driver_find(name, &function) == SYMWIN_OK)
        return function;
    return setup.cuda != NULL ? dlsym(setup.cuda, symbol) : NULL;
}

static void find_cu(void)
{
    static const struct {
        const char *name, *symbol;
        size_t offset;
    } entries[] = {
#define CU_ENTRY(name, symbol, params) {#name, #symbol, offsetof(struct sw_cu, name)},
        SW_CU_LIST(CU_ENTRY)
#undef CU_ENTRY
    };
    size_t i;

    for (i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *function = cu_function(entries[i].name, entries[i].symbol);

        if (function == NULL)
            return;
        memcpy((char *)&cu + entries[i].offset, &function, sizeof function);
    }
    cu_complete = 1;
}

const struct sw_cu *sw_cu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_cu);
    return cu_complete ? &cu : NULL;
}
