/* User objects: what graphs hold for their creator. The callback runs without any lock on the
 * thread that drops the last reference, or later if a test asks for that. It must not call the
 * driver. */
#include <limits.h>
#include <stdlib.h>

#include "graph.h"

struct CUuserObject_st {
    atomic_uint refs;
    CUhostFn fn;
    void *data;
    CUdevice device;                /* current at creation; -1: none */
    struct CUuserObject_st *behind; /* list of delayed callbacks */
};

static struct {
    pthread_mutex_t mutex;
    struct CUuserObject_st *first;
    unsigned char late[EMU_MAX_DEVICES];
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void call_back(struct CUuserObject_st *object)
{
    const int nested = emu_in_host_function;

    emu_in_host_function = 1;
    object->fn(object->data);
    emu_in_host_function = nested;
    emu_live_add(EMU_LIVE_USER_OBJECT, -1);
    free(object);
}

/* Whether the callback is delayed. */
static int keep(struct CUuserObject_st *object)
{
    int late;

    pthread_mutex_lock(&kept.mutex);
    late = object->device >= 0 && kept.late[object->device];
    if (late) {
        object->behind = kept.first;
        kept.first = object;
    }
    pthread_mutex_unlock(&kept.mutex);
    return late;
}

void sw_emu_callbacks_late(int device, int late)
{
    pthread_mutex_lock(&kept.mutex);
    kept.late[device] = (unsigned char)late;
    pthread_mutex_unlock(&kept.mutex);
}

void sw_emu_callbacks_come(int device, uint64_t seed, unsigned one_in)
{
    struct CUuserObject_st **at = &kept.first, *come = NULL;

    pthread_mutex_lock(&kept.mutex);
    while (*at != NULL) {
        struct CUuserObject_st *object = *at;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if ((device >= 0 && object->device != device) || (seed >> 33) % one_in != 0) {
            at = &object->behind;
            continue;
        }
        *at = object->behind;
        object->behind = come;
        come = object;
    }
    pthread_mutex_unlock(&kept.mutex);
    while (come != NULL) {
        struct CUuserObject_st *next = come->behind;

        call_back(come);
        come = next;
    }
}

void emu_user_object_unref(struct CUuserObject_st *object, unsigned count)
{
    if (atomic_fetch_sub(&object->refs, count) != count)
        return;
    emu_handle_drop(EMU_HANDLE_USER_OBJECT, object);
    if (!keep(object))
        call_back(object);
}

void emu_user_object_ref(struct CUuserObject_st *object, unsigned count)
{
    atomic_fetch_add(&object->refs, count);
}

CUresult sw_emu_cuUserObjectCreate(CUuserObject *out, void *ptr, CUhostFn destroy,
                                   unsigned int count, unsigned int flags)
{
    struct CUuserObject_st *object;
    CUresult result = emu_enter_unless(
        EMU_cuUserObjectCreate, out == NULL || destroy == NULL || count == 0 || count > INT_MAX ||
                                    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);

    if (result != CUDA_SUCCESS)
        return result;
    object = emu_handle_new(EMU_HANDLE_USER_OBJECT, sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&object->refs, count);
    object->fn = destroy;
    object->data = ptr;
    object->device = emu_current() != NULL ? emu_current()->device : -1;
    emu_live_add(EMU_LIVE_USER_OBJECT, 1);
    *out = object;
    return CUDA_SUCCESS;
}

CUresult sw_emu_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CUresult result = emu_enter(EMU_cuUserObjectRelease);

    if (result != CUDA_SUCCESS)
        return result;
    if (count == 0 || !emu_handle_is(EMU_HANDLE_USER_OBJECT, object) ||
        count > atomic_load(&object->refs))
        return CUDA_ERROR_INVALID_VALUE;
    emu_user_object_unref(object, count);
    return CUDA_SUCCESS;
}
