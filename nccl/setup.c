/* Reads the environment, and looks for the driver. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/setup.h"
#include "nccl/variables.h"

/* Functions of the CUDA driver. */
typedef int (*init_fn)(unsigned flags);
typedef int (*number_fn)(int *value);

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

static void check_variables(void)
{
    char text[256];
    size_t i;

    for (i = 0; i < SW_NCCL_VARIABLES && !setup.refused; i++)
        if (sw_nccl_variable_is_wrong(&sw_nccl_variables[i], text, sizeof text))
            refuse(text);
}

static void set_up(void)
{
    const char *driver = getenv("SYMWIN_DRIVER");
    const char *peers = getenv("SYMWIN_NCCL_PEERS");
    const char *report = getenv("SYMWIN_NCCL_REPORT");
    const char *most_ctas = getenv("NCCL_MAX_CTAS");
    const int chooses = driver == NULL || strcmp(driver, "auto") == 0;
    void *cuda;

    setup.memory = !cumem_is_off();
    setup.flags = SYMWIN_MEM_NCCL;
    if (peers == NULL || strcmp(peers, "0") != 0)
        setup.flags |= SYMWIN_MEM_PEERS;
    (void)sw_read_serve(getenv("SYMWIN_NCCL_SERVE"), setup.serve);
    (void)sw_read_room(getenv("SYMWIN_NCCL_MEMORY"), &setup.room);
    setup.report = report != NULL && strcmp(report, "1") == 0;
    setup.most_blocks = most_ctas != NULL ? atoi(most_ctas) : 0; /* NCCL says what is wrong */
    check_variables();
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
