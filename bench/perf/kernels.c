/* Makes and compares test data, by the kernels of kernels.cu or, without them, by the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../emu/emu.h"
#include "perf.h"
#include "src/driver/fatbins.h"

extern const struct sw_emu_image perf_emu_image; /* emu_kernels.cc */
extern const struct sw_fatbin perf_fatbins[];    /* made by tools/embed.sh */
extern const size_t perf_fatbin_count;

enum { CHUNK = 1 << 20 }; /* bytes that the host fills or compares at a time */

static struct {
    pthread_mutex_t mutex;
    CUlibrary library; /* NULL: not loaded, or there are no kernels */
} loaded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- loading ---- */

static int load_library(const void *image)
{
    int good = 1;

    pthread_mutex_lock(&loaded.mutex);
    if (loaded.library == NULL)
        good = ok(
            sw_check(sw_drv.cuLibraryLoadData(&loaded.library, image, NULL, NULL, 0, NULL, NULL, 0),
                     "cuLibraryLoadData of symwin-perf's kernels"));
    pthread_mutex_unlock(&loaded.mutex);
    return good;
}

void kernels_unload(void)
{
    DROP(cuLibraryUnload, loaded.library);
    loaded.library = NULL;
}

int kernel_find(CUlibrary library, const char *name, int optional, CUfunction *out)
{
    CUkernel kernel = NULL;
    const CUresult found = sw_drv.cuLibraryGetKernel(&kernel, library, name);

    *out = NULL;
    if (optional && found != CUDA_SUCCESS)
        return 1;
    return ok(sw_check(found, "cuLibraryGetKernel of %s", name)) &&
           ok(sw_check(sw_drv.cuKernelGetFunction(out, kernel), "cuKernelGetFunction of %s",
                       name)) &&
           (sw_drv.cuFuncLoad == NULL ||
            ok(sw_check(sw_drv.cuFuncLoad(*out), "cuFuncLoad of %s", name)));
}

int kernel_threads(CUfunction function, const char *name, int *most)
{
    return ok(
        sw_check(sw_drv.cuFuncGetAttribute(most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
                 "cuFuncGetAttribute of %s", name));
}

int kernel_launch(struct rank *r, CUfunction function, const char *name, int blocks, int threads,
                  size_t shared, void *args)
{
    void *params[] = {args};

    return ok(sw_check(sw_drv.cuLaunchKernel(function, (unsigned)blocks, 1, 1, (unsigned)threads, 1,
                                             1, (unsigned)shared, r->stream, params, NULL),
                       "cuLaunchKernel of %s: %d blocks of %d threads", name, blocks, threads));
}

int device_multiprocessors(const struct rank *r, int *count)
{
    return ok(sw_check(
        sw_drv.cuDeviceGetAttribute(count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, r->device),
        "cuDeviceGetAttribute: multiprocessors of device %d", r->device));
}

int kernels_are_there(void)
{
    return perf_fatbin_count > 0;
}

int kernels_load(struct rank *r)
{
    const struct {
        const char *name;
        CUfunction *function;
    } kernels[] = {
        {"symwin_perf_fill", &r->fill},       {"symwin_perf_compare", &r->compare},
        {"symwin_perf_copy", &r->copy},       {"symwin_perf_spread", &r->spread},
        {"symwin_perf_nothing", &r->nothing}, {"symwin_perf_delay", &r->delay},
        {"symwin_perf_parts", &r->parts},     {"symwin_perf_nothing_parts", &r->nothing_parts},
    };
    int good;

    if (r->job->options.host_data || (!r->job->emulated && perf_fatbin_count == 0)) {
        r->staging = malloc(CHUNK);
        return r->staging != NULL || fail(SYMWIN_NO_MEMORY, "no host memory to fill buffers from");
    }
    r->threads = PERF_THREADS;
    good = load_library(r->job->emulated ? (const void *)&perf_emu_image : perf_fatbins[0].data);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0] && good; i++) {
        int most = r->threads;

        good = kernel_find(loaded.library, kernels[i].name, 0, kernels[i].function) &&
               kernel_threads(*kernels[i].function, kernels[i].name, &most);
        r->threads = most < r->threads ? most : r->threads;
    }
    return good && device_multiprocessors(r, &r->blocks);
}

/* A block for each multiprocessor, or fewer for few `items`. */
static int launch(struct rank *r, CUfunction function, uint64_t items, void *args)
{
    const uint64_t wanted = (items + (uint64_t)r->threads - 1) / (uint64_t)r->threads;
    const uint64_t most = r->job->emulated ? 1 : (uint64_t)r->blocks;
    const int blocks = (int)(wanted < 1 ? 1 : wanted > most ? most : wanted);

    return kernel_launch(r, function, "symwin-perf's kernels", blocks, r->threads, 0, args);
}

/* Whether a kernel is there to do something. */
static int is_loaded(CUfunction function, const char *what)
{
    return function != NULL ||
           fail(SYMWIN_UNSUPPORTED, "to %s, build with nvcc and leave out --host-data", what);
}

/* ---- on the host, a chunk at a time ---- */

static void store(void *chunk, size_t i, size_t bytes, uint64_t bits)
{
    memcpy((char *)chunk + i * bytes, &bits, bytes); /* little-endian like the GPU */
}

static int host_fill(struct rank *r, const struct perf_data *data, int who, int poison,
                     uint64_t count, void *to)
{
    const size_t bytes = symwin_type_bytes((symwin_type)data->type), most = CHUNK / bytes;
    int good = 1;

    for (uint64_t first = 0; first < count && good; first += most) {
        const size_t n = count - first < most ? (size_t)(count - first) : most;

        for (size_t i = 0; i < n; i++)
            store(r->staging, i, bytes, perf_element(data, who, first + i) ^ (unsigned)poison);
        good = ok(
            symwin_memcpy(r->device, (char *)to + first * bytes, r->staging, n * bytes, r->stream));
        if (good) /* before the chunk is reused */
            good = rank_synchronize(r, "filling buffers");
    }
    return good;
}

static int host_compare(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                        const void *with, struct perf_report *report)
{
    const size_t bytes = symwin_type_bytes((symwin_type)data->type), most = CHUNK / bytes;

    for (uint64_t first = 0; first < count; first += most) {
        const size_t n = count - first < most ? (size_t)(count - first) : most;

        if (!ok(symwin_memcpy(r->device, r->staging, (const char *)with + first * bytes, n * bytes,
                              r->stream)) ||
            !rank_synchronize(r, "comparing results"))
            return 0;
        for (size_t i = 0; i < n; i++) {
            const uint64_t want = perf_element(data, who, first + i);
            uint64_t got = 0;

            memcpy(&got, (const char *)r->staging + i * bytes, bytes);
            if (got != want && report->wrong++ == 0) {
                report->index = first + i;
                report->got = got;
                report->want = want;
            }
        }
    }
    return 1;
}

/* ---- on the device or on the host ---- */

static struct perf_fill_args arguments(const struct perf_data *data, int who, uint64_t count,
                                       const void *address)
{
    return (struct perf_fill_args){
        .address = (uint64_t)(uintptr_t)address,
        .count = count,
        .data = *data,
        .rank = who,
        .element_bytes = (uint32_t)symwin_type_bytes((symwin_type)data->type),
    };
}

int fill(struct rank *r, const struct perf_data *data, int who, int poison, uint64_t count,
         void *to)
{
    struct perf_fill_args args = arguments(data, who, count, to);

    args.poison = (unsigned)poison;
    if (r->fill == NULL)
        return host_fill(r, data, who, poison, count, to);
    return launch(r, r->fill, count * args.element_bytes / 8, &args);
}

int compare_queue(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                  const void *with, CUdeviceptr report)
{
    struct perf_fill_args args = arguments(data, who, count, with);

    args.report = report;
    return is_loaded(r->compare, "compare by a kernel") &&
           ok(sw_check(sw_drv.cuMemsetD8Async(report, 0, sizeof(struct perf_report), r->stream),
                       "cuMemsetD8Async of the report")) &&
           launch(r, r->compare, count * args.element_bytes / 8, &args);
}

static int device_compare(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                          const void *with, struct perf_report *report)
{
    return compare_queue(r, data, who, count, with, r->report) &&
           rank_synchronize(r, "comparing results") &&
           ok(symwin_memcpy(r->device, report, (const void *)(uintptr_t)r->report, sizeof *report,
                            r->stream)) &&
           rank_synchronize(r, "reading the report");
}

int compare_report(struct rank *r, const struct perf_data *data, int who, uint64_t count,
                   const void *with, struct perf_report *report)
{
    memset(report, 0, sizeof *report);
    return r->compare == NULL ? host_compare(r, data, who, count, with, report)
                              : device_compare(r, data, who, count, with, report);
}

int compare(struct rank *r, const struct perf_data *data, int who, uint64_t count, const void *with,
            uint64_t *wrong, char *text, size_t text_bytes)
{
    const int digits = 2 * (int)symwin_type_bytes((symwin_type)data->type);
    struct perf_report report;

    if (!compare_report(r, data, who, count, with, &report))
        return 0;
    *wrong = report.wrong;
    if (report.wrong > 0)
        snprintf(text, text_bytes, "element %llu is 0x%0*llx and must be 0x%0*llx",
                 (unsigned long long)report.index, digits, (unsigned long long)report.got, digits,
                 (unsigned long long)report.want);
    return 1;
}

int copy(struct rank *r, void *to, const void *from, size_t bytes)
{
    struct perf_copy_args args = {(uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)to, bytes};

    return is_loaded(r->copy, "copy by a kernel") && launch(r, r->copy, bytes / 16, &args);
}

int store_to_all(struct rank *r, void *to, const void *from, size_t bytes)
{
    struct perf_spread_args args = {
        .from = (uint64_t)(uintptr_t)from,
        .to = (uint64_t)(uintptr_t)to,
        .stride = r->comm->group->stride,
        .bytes = bytes,
        .rank = r->rank,
        .nranks = r->job->nranks,
    };

    return is_loaded(r->spread, "store by a kernel") && launch(r, r->spread, bytes / 16, &args);
}

int fill_parts(struct rank *r, const struct layout *layout, CUdeviceptr to)
{
    struct perf_parts_args args = {
        .address = to,
        .data = layout_data(layout, (struct perf_data){.nranks = r->job->nranks}),
        .from = layout->parts_from,
        .to = layout->to};

    return is_loaded(r->parts, "write parts by a kernel") &&
           launch(r, r->parts, (uint64_t)r->job->nranks, &args);
}

int launch_delay(struct rank *r, uint64_t ns)
{
    struct perf_delay_args args = {ns};

    return is_loaded(r->delay, "delay by a kernel") &&
           kernel_launch(r, r->delay, "a delay", 1, 1, 0, &args);
}

int launch_nothing(struct rank *r, int by_parts, int early)
{
    struct perf_nothing_parts_args args = {{0}}; /* the larger one */
    CUfunction function = by_parts ? r->nothing_parts : r->nothing;
    void *params[] = {&args};
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, r->stream, &attribute, early};

    if (!is_loaded(function, "launch a kernel"))
        return 0;
    if (early && (r->comm->ranks_on_device > 1 || !sw_kernels_begin_early(r->comm->kernels)))
        return fail(SYMWIN_UNSUPPORTED, "kernels cannot begin early here");
    return ok(sw_check(sw_drv.cuLaunchKernelEx(&config, function, params, NULL),
                       "cuLaunchKernelEx of an empty kernel"));
}
