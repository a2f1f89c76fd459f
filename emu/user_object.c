/* User objects: what graphs keep for whoever made them. The callback comes, without any lock, on the thread that gives up
 * the last reference, and may call no driver. */
#include <limits.h>
#include <stdlib.h>

#include "graph.h"

struct CUuserObject_st {
    atomic_uint refs;
    CUhostFn fn;
    void *data;
};

void emu_user_object_unref(struct CUuserObject_st *object, unsigned count)
{
    const int nested = emu_in_host_function;

    if (atomic_fetch_sub(&object->refs, count) != count)
        return;
    emu_handle_drop(EMU_HANDLE_USER_OBJECT, object);
    emu_in_host_function = 1;
    object->fn(object->data);
    emu_in_host_function = nested;
    emu_live_add(EMU_LIVE_USER_OBJECT, -1);
    free(object);
}

void emu_user_object_ref(struct CUuserObject_st *object, unsigned count)
{
    atomic_fetch_add(&object->refs, count);
}

CUresult sw_emu_cuUserObjectCreate(CUuserObject *out, void *ptr, CUhostFn destroy,
                                   unsigned int count, unsigned int flags)
{
    struct CUuserObject_st *object;
    CUresult result = emu_enter(EMU_cuUserObjectCreate);

    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || destroy == NULL || count == 0 || count > INT_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    object = calloc(1, sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&object->refs, count);
    object->fn = destroy;
    object->data = ptr;
    if (emu_handle_add(EMU_HANDLE_USER_OBJECT, object) != 0) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
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
