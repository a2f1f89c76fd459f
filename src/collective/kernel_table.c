/* The kernels of either driver: loads and finds them, and knows how many blocks fit.
 *
 * The real driver gets the fat binaries that nvcc made (fatbins.h), the emulated one an image of
 * the same sources compiled for the CPU. The first communicator loads them, the last one unloads
 * them. All kernels of a device are loaded at once: loading at the first launch may wait for the
 * device, where the kernel of another rank may be waiting for this one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "kernels/table_layout.h"
#include "src/collective/collective.h"

extern const struct sw_emu_image sw_kernels_emu_image; /* kernels/emu_image.cc */

/* The short names of the kernel list as indices. */
enum {
#define ALGO_INDEX(name, value, text) ALGO_##text = value,
#define TYPE_INDEX(name, value, text, bytes) TYPE_##text = value,
#define OP_INDEX(name, value, text) OP_##text = value,
    OP_other = SYMWIN_AVG, /* no kernel is for averages alone: a sum's divides, or `other` does */
    TYPE_bytes = 0,
    OP_move = 0, /* of what does not reduce */
    SYMWIN_ALGO_LIST(ALGO_INDEX) SYMWIN_TYPE_LIST(TYPE_INDEX) SYMWIN_OP_LIST(OP_INDEX)
};

enum {
#define FILE_INDEX(file) FILE_##file,
    SW_KERNEL_FILE_LIST(FILE_INDEX) FILES
};

static const char *const file_names[] = {
#define FILE_NAME(file) #file,
    SW_KERNEL_FILE_LIST(FILE_NAME)};

static const struct {
    const char *name;
    unsigned char file, family, algo, type, op, ranks, shape;
} kernel_list[] = {
#define KERNEL(file, family, algo, type, op, ranks, shape)                                         \
    {SW_KERNEL_TEXT(family, algo, type, op, ranks, shape),                                         \
     FILE_##file,                                                                                  \
     SW_FAMILY_##family,                                                                           \
     ALGO_##algo,                                                                                  \
     TYPE_##type,                                                                                  \
     OP_##op,                                                                                      \
     SW_RANKS_##ranks,                                                                             \
     SW_SHAPE_##shape},
    SW_KERNEL_LIST(KERNEL)};

#define KERNEL_COUNT (sizeof kernel_list / sizeof kernel_list[0])
#define NEW_CODE 90 /* sm_90: multimem instructions, bulk copies, programmatic dependent launch */
#define EARLY_DRIVER 12030 /* the first that takes that launch in stream captures too */
#define EMULATED_SHARED (12 << 10)

struct sw_kernels {
    struct sw_kernels *next;
    int device;
    int nranks;       /* whose kernels it has beside those for any number, or SW_SUM_ALONE */
    int multicast;    /* it has those of the algorithms through multicast */
    int block_shared; /* bytes of shared memory that a block can ask for */
    int refs;
    int multiprocessors;
    int early; /* kernels can begin before the one ahead has ended */
    /* Each kernel's number in `kernels`. 0 is none: the first kernel has no function. */
    uint16_t table[SW_FAMILIES][SW_ALGOS][SW_TYPES][SW_OPS][SW_SHAPES];
    struct sw_kernel kernels[1 + KERNEL_COUNT];
};

static struct {
    pthread_mutex_t mutex;
    int refs; /* of the libraries: devices */
    CUlibrary libraries[FILES];
    struct sw_kernels *devices;
} loaded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- libraries, under the mutex ---- */

static void libraries_release(void)
{
    int i;

    if (--loaded.refs > 0)
        return;
    for (i = 0; i < FILES; i++) {
        if (loaded.libraries[i] != NULL)
            sw_drop(sw_drv.cuLibraryUnload(loaded.libraries[i]), "cuLibraryUnload");
        loaded.libraries[i] = NULL;
    }
}

/* What to load for a file: on the emulated driver one image holds all. */
static const void *file_image(int file)
{
    size_t i;

    if (sw_driver_is_emulated())
        return &sw_kernels_emu_image;
    for (i = 0; i < sw_fatbin_count; i++)
        if (strcmp(sw_fatbins[i].name, file_names[file]) == 0)
            return sw_fatbins[i].data;
    return NULL;
}

/* The library that has a file's kernels, loaded when the first of them is needed. */
static symwin_status find_library(int file, CUlibrary *out)
{
    CUlibrary *library = &loaded.libraries[sw_driver_is_emulated() ? 0 : file];
    const void *image = file_image(file);
    symwin_status status = SYMWIN_OK;

    if (*library == NULL && image == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED, "this library has no %s kernels for the GPU",
                       file_names[file]);
    if (*library == NULL)
        status = sw_check(sw_drv.cuLibraryLoadData(library, image, NULL, NULL, 0, NULL, NULL, 0),
                          "cuLibraryLoadData of the %s kernels", file_names[file]);
    if (status != SYMWIN_OK)
        *library = NULL;
    *out = *library;
    return status;
}

/* ---- one device ---- */

static symwin_status device_number(int device, CUdevice_attribute which, const char *what, int *out)
{
    return sw_check(sw_drv.cuDeviceGetAttribute(out, which, device),
                    "cuDeviceGetAttribute: %s of device %d", what, device);
}

/* Bulk copies get all the shared memory that a block can have, since copies under way fill it. On
 * the emulated driver they get little, so that small messages have many pieces too. */
static symwin_status find_shared(const struct sw_kernels *kernels, CUfunction function,
                                 const char *name, unsigned *out)
{
    int own = 0;
    symwin_status status = sw_check(
        sw_drv.cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
        "cuFuncGetAttribute of %s", name);
    const int most = sw_driver_is_emulated() ? EMULATED_SHARED : kernels->block_shared - own;

    if (status != SYMWIN_OK)
        return status;
    *out = (unsigned)most;
    return sw_check(
        sw_drv.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most),
        "cuFuncSetAttribute of %s: %d bytes of shared memory", name, most);
}

/* What a kernel needs: that of the first collective whose algorithm it serves. */
static const struct sw_algorithm *algorithm_of(size_t which)
{
    const symwin_algo algo = (symwin_algo)kernel_list[which].algo;
    int c = 0;

    if (kernel_list[which].family == SW_FAMILY_pair || kernel_list[which].family == SW_FAMILY_few)
        return &sw_pairs;
    if (kernel_list[which].family == SW_FAMILY_sum)
        return sw_algorithm(SYMWIN_ALLREDUCE, algo);
    if (kernel_list[which].family == SW_FAMILY_group)
        return sw_algorithm(SYMWIN_ALLGATHER, algo);
    if (kernel_list[which].family == SW_FAMILY_rows)
        return sw_algorithm(SYMWIN_ALLTOALLV, algo);
    while (c + 1 < SW_COLLECTIVES &&
           (!sw_algo_is_there((symwin_collective)c, algo) ||
            sw_algorithm((symwin_collective)c, algo)->family != kernel_list[which].family))
        c++;
    return sw_algorithm((symwin_collective)c, algo);
}

/* A kernel can do what it was compiled for, which may be less than the device can. Then *out stays
 * as it is, or no kernel begins early. */
static symwin_status load_kernel(struct sw_kernels *kernels, size_t which, struct sw_kernel *out)
{
    CUlibrary library = NULL;
    const char *name = kernel_list[which].name;
    struct sw_kernel loading = {.type = (symwin_type)kernel_list[which].type,
                                .other = kernel_list[which].op == OP_other &&
                                         kernel_list[which].family != SW_FAMILY_table &&
                                         kernel_list[which].family != SW_FAMILY_group,
                                .shape = (enum sw_kernel_shape)kernel_list[which].shape};
    CUkernel kernel = NULL;
    symwin_status status;
    int code = 0;

    status = find_library(kernel_list[which].file, &library);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuLibraryGetKernel(&kernel, library, name),
                          "cuLibraryGetKernel of %s", name);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuKernelGetFunction(&loading.function, kernel),
                          "cuKernelGetFunction of %s", name);
    if (status == SYMWIN_OK)
        status = sw_check(
            sw_drv.cuFuncGetAttribute(&code, CU_FUNC_ATTRIBUTE_PTX_VERSION, loading.function),
            "cuFuncGetAttribute of %s", name);
    if (status == SYMWIN_OK && code < NEW_CODE) {
        kernels->early = 0;
        if ((algorithm_of(which)->needs & SW_NEEDS_KERNEL) != 0) /* it is empty then */
            return SYMWIN_OK;
    }
    if (status == SYMWIN_OK && sw_drv.cuFuncLoad != NULL)
        status = sw_check(sw_drv.cuFuncLoad(loading.function), "cuFuncLoad of %s", name);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuFuncGetAttribute(&loading.threads,
                                                    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                                    loading.function),
                          "cuFuncGetAttribute of %s", name);
    if (status == SYMWIN_OK && algorithm_of(which)->shared)
        status = find_shared(kernels, loading.function, name, &loading.shared);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                              &loading.resident, loading.function, loading.threads, loading.shared),
                          "cuOccupancyMaxActiveBlocksPerMultiprocessor of %s", name);
    if (status != SYMWIN_OK)
        return status;
    loading.resident *= kernels->multiprocessors;
    *out = loading;
    return SYMWIN_OK;
}

/* The multiprocessors that the current context, the primary one, may use: under MPS a part of the
 * device's. The smallest of the driver's answers counts: what the attribute says under MPS depends
 * on its setup. */
static symwin_status find_multiprocessors(int device, int *out)
{
    CUexecAffinityParam affinity = {.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT};
    CUdevResource resource = {.type = CU_DEV_RESOURCE_TYPE_INVALID};
    CUcontext context = NULL;
    symwin_status status = device_number(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                         "multiprocessors", out);

    if (status != SYMWIN_OK)
        return status;
    if (sw_drv.cuCtxGetExecAffinity != NULL &&
        sw_drv.cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS &&
        affinity.param.smCount.val > 0 && affinity.param.smCount.val < (unsigned)*out)
        *out = (int)affinity.param.smCount.val;
    if (sw_drv.cuCtxGetDevResource != NULL && sw_drv.cuCtxGetCurrent(&context) == CUDA_SUCCESS &&
        sw_drv.cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
        resource.sm.smCount > 0 && resource.sm.smCount < (unsigned)*out)
        *out = (int)resource.sm.smCount;
    return SYMWIN_OK;
}

static void enter(struct sw_kernels *kernels, size_t which)
{
    kernels->table[kernel_list[which].family][kernel_list[which].algo][kernel_list[which].type]
                  [kernel_list[which].op][kernel_list[which].shape] = (uint16_t)(1 + which);
}

static symwin_status load_device(struct sw_kernels *kernels)
{
    const int device = kernels->device;
    int version = 0;
    symwin_status status;
    size_t i;

    status = find_multiprocessors(device, &kernels->multiprocessors);
    if (status == SYMWIN_OK)
        status = device_number(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                               "shared memory of a block", &kernels->block_shared);
    if (status == SYMWIN_OK)
        status = sw_check(sw_drv.cuDriverGetVersion(&version), "cuDriverGetVersion");
    kernels->early = version >= EARLY_DRIVER;
    for (i = 0; i < KERNEL_COUNT && status == SYMWIN_OK; i++) {
        if ((kernel_list[i].family == SW_FAMILY_sum) != (kernels->nranks == SW_SUM_ALONE))
            continue;
        if (kernel_list[i].ranks != SW_RANKS_n && kernel_list[i].ranks != kernels->nranks)
            continue;
        if ((algorithm_of(i)->needs & SW_NEEDS_MULTICAST) != 0 && !kernels->multicast)
            continue;
        if (kernel_list[i].family == SW_FAMILY_rows && kernels->nranks <= SW_TABLE_RANKS)
            continue;
        enter(kernels, i);
        status = load_kernel(kernels, i, &kernels->kernels[1 + i]);
    }
    return status;
}

static symwin_status device_acquire(int device, int nranks, int multicast, struct sw_kernels **out)
{
    struct sw_kernels *kernels;
    symwin_status status;

    for (kernels = loaded.devices; kernels != NULL; kernels = kernels->next)
        if (kernels->device == device && kernels->nranks == nranks &&
            kernels->multicast == multicast) {
            kernels->refs++;
            *out = kernels;
            return SYMWIN_OK;
        }
    kernels = calloc(1, sizeof *kernels);
    if (kernels == NULL)
        return sw_fail(SYMWIN_NO_MEMORY, "no host memory for the kernels of device %d", device);
    kernels->device = device;
    kernels->nranks = nranks;
    kernels->multicast = multicast;
    kernels->refs = 1;
    loaded.refs++;
    status = load_device(kernels);
    if (status != SYMWIN_OK) {
        libraries_release();
        free(kernels);
        return status;
    }
    kernels->next = loaded.devices;
    loaded.devices = kernels;
    *out = kernels;
    return SYMWIN_OK;
}

symwin_status sw_kernels_acquire(int device, int nranks, int multicast, struct sw_kernels **out)
{
    symwin_status status;

    pthread_mutex_lock(&loaded.mutex);
    status = device_acquire(device, nranks, multicast, out);
    pthread_mutex_unlock(&loaded.mutex);
    return status;
}

void sw_kernels_release(struct sw_kernels *kernels)
{
    struct sw_kernels **at;

    pthread_mutex_lock(&loaded.mutex);
    if (--kernels->refs == 0) {
        for (at = &loaded.devices; *at != kernels; at = &(*at)->next)
            ;
        *at = kernels->next;
        libraries_release();
        free(kernels);
    }
    pthread_mutex_unlock(&loaded.mutex);
}

static int is_signed(symwin_type type)
{
    return type == SYMWIN_I8 || type == SYMWIN_I32 || type == SYMWIN_I64;
}

static symwin_type unsigned_of(symwin_type type)
{
    return type == SYMWIN_I8 ? SYMWIN_U8 : type == SYMWIN_I32 ? SYMWIN_U32 : SYMWIN_U64;
}

/* The kernel for that shape, or else for any. */
static const struct sw_kernel *shaped(const struct sw_kernels *kernels,
                                      const uint16_t of[SW_SHAPES], enum sw_kernel_shape shape)
{
    const struct sw_kernel *kernel = &kernels->kernels[of[shape]];

    return kernel->function != NULL ? kernel : &kernels->kernels[of[SW_SHAPE_any]];
}

static int has_kernel(const struct sw_kernels *kernels, const uint16_t of[SW_SHAPES])
{
    return kernels->kernels[of[SW_SHAPE_any]].function != NULL;
}

symwin_algo sw_kernels_algo(symwin_collective collective, symwin_algo algo, symwin_type type)
{
    const symwin_algo other = sw_algorithm(collective, algo)->wide_floats;

    return other != SYMWIN_ALGO_AUTO && type <= SYMWIN_BF16 ? other : algo;
}

const struct sw_kernel *sw_kernels_get(const struct sw_kernels *kernels,
                                       symwin_collective collective, symwin_algo asked,
                                       symwin_type type, symwin_op op, enum sw_kernel_shape shape)
{
    const symwin_algo algo = sw_kernels_algo(collective, asked, type);
    const struct sw_algorithm *a = sw_algorithm(collective, algo);
    const int by_parts = sw_collectives[collective].by_parts; /* one kernel for all types */
    const int reduces = sw_collectives[collective].reduces && !by_parts;
    const uint16_t(*ops)[SW_SHAPES] = kernels->table[a->family][algo][reduces ? type : 0];
    const uint16_t *of = ops[!reduces || op == SYMWIN_AVG ? 0 : op];
    const struct sw_kernel *kernel;

    if (a->shares != SYMWIN_ALGO_AUTO)
        return sw_kernels_get(kernels, collective, a->shares, type, op, shape);
    if (by_parts && sw_collectives[collective].reduces)
        of = ops[OP_other];
    if (!has_kernel(kernels, of) && op != SYMWIN_SUM)
        of = ops[OP_other];
    if (!has_kernel(kernels, of) && reduces && is_signed(type)) {
        ops = kernels->table[a->family][algo][unsigned_of(type)];
        of = ops[op == SYMWIN_SUM ? SYMWIN_SUM : OP_other];
    }
    if (!has_kernel(kernels, of))
        of = ops[OP_other];
    if (!has_kernel(kernels, of) && a->integers != SYMWIN_ALGO_AUTO)
        return sw_kernels_get(kernels, collective, a->integers, type, op, shape);
    kernel = shaped(kernels, of, shape);
    return kernel->function != NULL ? kernel : NULL;
}

const struct sw_kernel *sw_kernels_pairs(const struct sw_kernels *kernels, int few)
{
    return few ? shaped(kernels, kernels->table[SW_FAMILY_few][SYMWIN_ALGO_ONESHOT][0][0],
                        SW_SHAPE_short)
               : shaped(kernels, kernels->table[SW_FAMILY_pair][SYMWIN_ALGO_ONESHOT][0][0],
                        SW_SHAPE_any);
}

const struct sw_kernel *sw_kernels_group(const struct sw_kernels *kernels,
                                         enum sw_kernel_shape shape)
{
    const int op = shape == SW_SHAPE_any ? (int)OP_other : (int)OP_move;
    const uint16_t *of = kernels->table[SW_FAMILY_group][SYMWIN_ALGO_ONESHOT][TYPE_bytes][op];
    const struct sw_kernel *kernel = &kernels->kernels[of[shape]];

    return kernel->function != NULL ? kernel : NULL;
}

const struct sw_kernel *sw_kernels_sum(const struct sw_kernels *kernels)
{
    return shaped(kernels, kernels->table[SW_FAMILY_sum][SYMWIN_ALGO_ONESHOT][TYPE_bytes][OP_other],
                  SW_SHAPE_any);
}

const struct sw_kernel *sw_kernels_rows(const struct sw_kernels *kernels)
{
    return shaped(kernels, kernels->table[SW_FAMILY_rows][SYMWIN_ALGO_ONESHOT][TYPE_bytes][OP_move],
                  SW_SHAPE_any);
}

uint32_t sw_kernel_op(const struct sw_kernel *kernel, symwin_type type, symwin_op op)
{
    const int shared = is_signed(type) && kernel->type == unsigned_of(type);
    const int has_sign = op == SYMWIN_MIN || op == SYMWIN_MAX || op == SYMWIN_AVG;

    if (op == SYMWIN_SUM && kernel->other)
        return SW_KERNEL_PLAIN_SUM;
    return (uint32_t)op | (shared && has_sign ? (uint32_t)SW_KERNEL_SIGNED : 0);
}

static int has_algo(const struct sw_kernels *kernels, symwin_algo algo)
{
    int c, found = 0;

    for (c = 0; c < SW_COLLECTIVES; c++) {
        if (!sw_algo_is_there((symwin_collective)c, algo))
            continue;
        if (sw_kernels_get(kernels, (symwin_collective)c, algo, SYMWIN_F32, SYMWIN_SUM,
                           SW_SHAPE_any) == NULL)
            return 0;
        found = 1;
    }
    return found;
}

unsigned sw_kernels_algos(const struct sw_kernels *kernels)
{
    unsigned algos = 0;
    int i;

    for (i = SYMWIN_ALGO_AUTO + 1; i < SW_ALGOS; i++)
        if (has_algo(kernels, (symwin_algo)i))
            algos |= 1u << i;
    return algos;
}

int sw_kernels_begin_early(const struct sw_kernels *kernels)
{
    return kernels->early;
}

int sw_kernels_multiprocessors(const struct sw_kernels *kernels)
{
    return kernels->multiprocessors;
}
