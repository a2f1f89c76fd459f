/* Finds NCCL and its functions. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "src/rails/engine.h"

static struct {
    pthread_mutex_t mutex;
    struct sw_engine functions;
    int is_loaded;
} engine = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* A libnccl.so.2 that the program has loaded by another path is found by its name. */
static const char *file_name(void)
{
    const char *path = secure_getenv("SYMWIN_NCCL");

    return path != NULL ? path : "libnccl.so.2";
}

/* Not by the dlsym() of libsymwin-nccl.so, where a program has that: it gives programs functions of
 * its own, which would take these calls for the program's. */
static void *find(void *library, const char *name)
{
    void *(*look)(void *, const char *) = dlsym;
    void *const plain = dlsym(RTLD_DEFAULT, "symwin_nccl_dlsym");

    if (plain != NULL)
        memcpy(&look, &plain, sizeof look);
    return look(library, name);
}

/* The name of the first function that is missing; NULL: all are there. */
static const char *find_functions(void *library, struct sw_engine *f)
{
    void *symbol;

#define FIND(member, name, params)                                                                 \
    symbol = find(library, name);                                                                  \
    if (symbol == NULL)                                                                            \
        return name;                                                                               \
    memcpy(&f->member, &symbol, sizeof f->member);
    SW_ENGINE_LIST(FIND)
    FIND(text_of, "ncclGetErrorString", )
    FIND(last_text, "ncclGetLastError", )
#undef FIND
    return NULL;
}

static symwin_status load(const char *call)
{
    const char *file = file_name(), *missing;
    struct sw_engine found = {.version = 0};
    void *library;
    int result;

    if (file[0] == '\0')
        return sw_fail(SYMWIN_INVALID,
                       "%s: SYMWIN_NCCL is \"\": set it to the path of libnccl.so.2, or unset it",
                       call);
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: the ranks are on several hosts whose memory cannot be mapped, and "
                       "there is no NCCL to join them (%s); install it, or set SYMWIN_NCCL to its "
                       "libnccl.so.2",
                       call, dlerror());
    missing = find_functions(library, &found);
    result = missing == NULL ? found.get_version(&found.version) : SW_ENGINE_OK;
    if (result != SW_ENGINE_OK) {
        (void)sw_fail(SYMWIN_DRIVER, "%s: ncclGetVersion of %s failed: %s", call, file,
                      found.text_of(result));
        dlclose(library);
        return SYMWIN_DRIVER;
    }
    if (missing != NULL || found.version < SW_ENGINE_LEAST) {
        dlclose(library);
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: %s cannot join hosts: it has no %s; use NCCL 2.18 or newer", call, file,
                       missing != NULL ? missing : "version as new as that");
    }
    engine.functions = found;
    engine.is_loaded = 1;
    return SYMWIN_OK;
}

symwin_status sw_engine_load(const char *call, const struct sw_engine **out)
{
    symwin_status status = SYMWIN_OK;

    pthread_mutex_lock(&engine.mutex);
    if (!engine.is_loaded)
        status = load(call);
    pthread_mutex_unlock(&engine.mutex);
    if (status == SYMWIN_OK)
        *out = &engine.functions;
    return status;
}

int sw_engine_type(symwin_type type)
{
    static const int types[] = {
        [SYMWIN_F64] = 8,     [SYMWIN_F32] = 7,     [SYMWIN_F16] = 6, [SYMWIN_BF16] = 9,
        [SYMWIN_F8E4M3] = 10, [SYMWIN_F8E5M2] = 11, [SYMWIN_I8] = 0,  [SYMWIN_U8] = 1,
        [SYMWIN_I32] = 2,     [SYMWIN_U32] = 3,     [SYMWIN_I64] = 4, [SYMWIN_U64] = 5,
    };

    return types[type];
}

int sw_engine_op(symwin_op op)
{
    switch (op) {
    case SYMWIN_SUM:
        return 0;
    case SYMWIN_PROD:
        return 1;
    case SYMWIN_MAX:
        return 2;
    case SYMWIN_MIN:
        return 3;
    case SYMWIN_AVG: /* of all ranks of NCCL's communicator; integers toward zero */
        return 4;
    default:
        return -1;
    }
}
