/* A loaded module with your own kernel: its description, its memory, its launches.
 *
 * A process loads a module once; each rank has its own memory for it. On the emulated driver the
 * module is a shared object that calls the driver's functions in this program (module.list), and
 * the image is made here.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../perf/perf.h"

enum { ABOUT_BYTES = 1024, SCRATCH_ALIGN = 256, EMULATED_THREADS = 64 };

/* One for each process. */
struct module {
    void *object; /* of dlopen() */
    char *bytes;  /* owned: the file */
    char name[128];
    struct sw_emu_kernel kernel;
    struct sw_emu_image image;
    CUlibrary library;
    struct own_about about;
};

static struct {
    pthread_mutex_t mutex;
    struct module modules[PERF_MOST_KERNELS];
} loaded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- loading: under the mutex ---------------------------------------------------------------- */

static int load_object(struct module *m, const char *path)
{
    char symbol[160];
    void *run;

    m->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (m->object == NULL)
        return fail(SYMWIN_INVALID, "--kernel: %s", dlerror());
    snprintf(symbol, sizeof symbol, "%s_emulated", m->name);
    run = dlsym(m->object, symbol);
    if (run == NULL)
        return fail(SYMWIN_INVALID,
                    "--kernel: the file has no %s: put SYMWIN_KERNEL_EMULATED(%s) after the kernel",
                    symbol, m->name);
    m->kernel = (struct sw_emu_kernel){m->name, NULL, sizeof(struct symwin_kernel_args), 0};
    memcpy(&m->kernel.run, &run, sizeof run);
    m->image = (struct sw_emu_image){SW_EMU_IMAGE_MAGIC, 1, &m->kernel};
    return 1;
}

/* On a GPU, a kernel writes the description to memory. */
static int read_about(struct rank *r, struct module *m, char text[ABOUT_BYTES])
{
    CUdeviceptr memory = 0;
    CUfunction function;
    char symbol[160];
    int good;

    snprintf(symbol, sizeof symbol, "%s_about", m->name);
    text[0] = '\0';
    if (m->object != NULL) {
        const char *words = dlsym(m->object, symbol);

        snprintf(text, ABOUT_BYTES, "%s", words != NULL ? words : "");
        return 1;
    }
    good = kernel_find(m->library, symbol, 1, &function);
    if (!good || function == NULL)
        return good;
    good = ok(sw_check(sw_drv.cuMemAlloc(&memory, ABOUT_BYTES), "cuMemAlloc for %s", symbol)) &&
           kernel_launch(r, function, symbol, 1, 1, 0, &memory) &&
           ok(symwin_memcpy(r->device, text, (const void *)(uintptr_t)memory, ABOUT_BYTES,
                            r->stream)) &&
           rank_synchronize(r, "reading a kernel's description");
    DROP(cuMemFree, memory);
    text[ABOUT_BYTES - 1] = '\0';
    return good;
}

static enum own_module kind_of(const struct rank *r)
{
    const int race = r->job->page->stage == STAGE_RACE;

    if (!r->job->emulated)
        return race ? OWN_FOR_GPU_RACE : OWN_FOR_GPU;
    return race ? OWN_FOR_EMU_RACE : OWN_FOR_EMU;
}

static int load(struct rank *r, int k, struct module *m)
{
    const struct stage_page *page = r->job->page;
    char path[300], about[ABOUT_BYTES];

    own_module_path(page->folder, k, kind_of(r), path, sizeof path);
    snprintf(m->name, sizeof m->name, "%s", page->sources[k].name);
    return (r->job->emulated ? load_object(m, path) : own_read(path, &m->bytes)) &&
           ok(sw_check(sw_drv.cuLibraryLoadData(&m->library,
                                                m->object != NULL ? (void *)&m->image : m->bytes,
                                                NULL, NULL, 0, NULL, NULL, 0),
                       "cuLibraryLoadData of %s", page->sources[k].path)) &&
           read_about(r, m, about) && own_about_parse(m->name, about, &m->about);
}

void own_unload(void)
{
    for (int k = 0; k < PERF_MOST_KERNELS; k++) {
        struct module *m = &loaded.modules[k];

        DROP(cuLibraryUnload, m->library);
        free(m->bytes);
        *m = (struct module){0}; /* the object stays loaded: a thread may use */
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int find_functions(struct rank *r, struct own_kernel *k, struct module *m)
{
    int blocks = 0, processors = 0, most = 0;

    if (!kernel_find(m->library, m->name, 1, &k->function))
        return 0;
    if (k->function == NULL)
        return fail(SYMWIN_INVALID, "--kernel: the file has no kernel %s", m->name);
    if (!kernel_find(m->library, "sw_race_set", 1, &k->race) ||
        !kernel_threads(k->function, m->name, &most))
        return 0;
    if (most < k->about.threads && k->about.fixed)
        return fail(SYMWIN_UNSUPPORTED,
                    "--kernel: a block of %s can have at most %d threads, but it needs %d", m->name,
                    most, k->about.threads);
    if (most < k->about.threads)
        k->about.threads = most;
    if (r->job->emulated && !k->about.fixed && k->about.threads > EMULATED_THREADS)
        k->about.threads = EMULATED_THREADS; /* a CUDA thread costs a stack on the CPU */
    if (k->about.shared > 0 &&
        !ok(sw_check(sw_drv.cuFuncSetAttribute(k->function,
                                               CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                               (int)k->about.shared),
                     "cuFuncSetAttribute of %s", m->name)))
        return 0;
    if (!ok(sw_check(sw_drv.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                         &blocks, k->function, k->about.threads, k->about.shared),
                     "cuOccupancyMaxActiveBlocksPerMultiprocessor of %s", m->name)) ||
        !device_multiprocessors(r, &processors))
        return 0;
    k->most_blocks = blocks * processors /
                     (r->comm->ranks_on_device > 0 ? r->comm->ranks_on_device : 1);
    if (k->most_blocks == 0 || (k->about.fixed && k->most_blocks < k->about.blocks))
        return fail(
            SYMWIN_UNSUPPORTED,
            "--kernel: only %d blocks of %s fit on the device at the same time, but it needs %d",
            k->most_blocks, m->name, k->about.blocks);
    if (k->most_blocks > k->about.blocks)
        k->most_blocks = k->about.blocks;
    return 1;
}

static size_t aligned(size_t bytes)
{
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static int find_memory(struct rank *r, struct own_kernel *k)
{
    int good;

    k->limit_ns = (uint64_t)r->comm->kernel_timeout_ms * 1000000u;
    k->scratch_bytes = aligned(k->about.scratch);
    k->room = k->scratch_bytes + aligned(k->about.slots);
    good = ok(symwin_mem_alloc(r->device, k->room, 0, &k->scratch)) &&
           memory_pinned("", &k->gave_up, &k->gave_up_address);
    return meet(r, good, NULL, 0) &&
           memory_window(r, k->scratch, k->room, &k->window, &k->offset) && own_reset(r, k);
}

int own_open(struct rank *r)
{
    const struct stage_page *page = r->job->page;
    int good = 1;

    for (int i = 0; i < page->kernels && good; i++) {
        struct module *m = &loaded.modules[i];
        struct own_kernel *k = &r->own[i];

        if (page->stage != STAGE_TIME && i != page->kernel)
            continue;
        pthread_mutex_lock(&loaded.mutex);
        if (m->library == NULL)
            good = load(r, i, m);
        pthread_mutex_unlock(&loaded.mutex);
        k->name = page->sources[i].name;
        k->about = m->about;
        if (r->rank == 0)
            r->job->page->about[i] = m->about;
        if (good)
            good = find_functions(r, k, m);
        good = meet(r, good, NULL, 0) && find_memory(r, k);
    }
    return good;
}

void own_close(struct rank *r)
{
    for (int i = 0; i < PERF_MOST_KERNELS; i++) {
        struct own_kernel *k = &r->own[i];

        if (k->window != NULL)
            symwin_window_deregister(r->comm, k->window);
        if (k->scratch != NULL)
            symwin_mem_free(k->scratch);
        DROP(cuMemFreeHost, k->gave_up);
        *k = (struct own_kernel){0};
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

int own_reset(struct rank *r, struct own_kernel *k)
{
    int good = meet(r, 1, NULL, 0) &&
               ok(sw_check(sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)k->scratch, 0, k->room,
                                                  r->stream),
                           "cuMemsetD8Async of scratch")) &&
               rank_synchronize(r, "zeroing scratch");

    return meet(r, good, NULL, 0);
}

int own_poison(struct rank *r, struct own_kernel *k)
{
    if (k->room == k->scratch_bytes)
        return 1;
    return ok(sw_check(sw_drv.cuMemsetD8Async((CUdeviceptr)(uintptr_t)k->scratch + k->scratch_bytes,
                                              0xff, k->room - k->scratch_bytes, r->stream),
                       "cuMemsetD8Async of slots"));
}

int own_gave_up(struct own_kernel *k)
{
    return __atomic_exchange_n(k->gave_up, 0, __ATOMIC_RELAXED) != 0;
}

void own_grid(const struct rank *r, const struct own_kernel *k, uint64_t bytes, int *blocks,
              int *threads)
{
    const struct perf_options *o = &r->job->options;
    uint64_t wanted;

    *threads = o->block_threads > 0 && o->block_threads < k->about.threads && !k->about.fixed
                   ? o->block_threads
                   : k->about.threads;
    *blocks = o->blocks > 0 && o->blocks < k->most_blocks ? o->blocks : k->most_blocks;
    wanted = (bytes + 16 * (uint64_t)*threads - 1) / (16 * (uint64_t)*threads);
    if (k->about.fixed)
        *blocks = k->about.blocks;
    else if (wanted < (uint64_t)*blocks)
        *blocks = wanted > 0 ? (int)wanted : 1;
}

/* The word that ends waits early. When kernels are timed, it is the one that ends the library's
 * waits. Otherwise it is the word that reports a wait at its limit: calls after that one would only
 * wait as long. */
static uint64_t abort_word(const struct rank *r, const struct own_kernel *k)
{
    if (r->job->page->stage != STAGE_TIME)
        return k->gave_up_address;
    return r->comm->report_address + offsetof(struct sw_kernel_report, ended);
}

void own_set_parts(struct own_call *call, const struct sw_collective *is, uint64_t in, uint64_t out)
{
    if (is->by_parts && is != &sw_collectives[SYMWIN_ALLGATHERV])
        call->in_parts = in;
    if (is->by_parts && !is->reduces)
        call->out_parts = out;
}

int own_launch(struct rank *r, struct own_kernel *k, const struct own_call *call)
{
    const uint64_t words = sizeof(uint64_t) * (uint64_t)r->job->nranks;
    struct symwin_kernel_args args = {
        .peers = {r->comm->group->base, r->comm->group->stride, r->rank, r->job->nranks},
        .in = call->in,
        .out = call->out,
        .in_offset = k->about.windows ? call->in_offset : SYMWIN_NO_OFFSET,
        .out_offset = k->about.windows ? call->out_offset : SYMWIN_NO_OFFSET,
        .count = call->count,
        .type = (int32_t)call->type,
        .op = (int32_t)call->op,
        .scratch = k->offset,
        .scratch_bytes = k->scratch_bytes,
        .slots = k->offset + k->scratch_bytes,
        .slots_bytes = k->room - k->scratch_bytes,
        .limit = {k->limit_ns, abort_word(r, k)},
        .gave_up = k->gave_up_address,
        .call = k->calls,
        .root = call->root,
        .to = call->to,
        .from = call->from,
        .in_counts = call->in_parts,
        .in_displacements = call->in_parts > 0 ? call->in_parts + words : 0,
        .out_counts = call->out_parts,
        .out_displacements = call->out_parts > 0 ? call->out_parts + words : 0,
    };

    k->calls++;
    return kernel_launch(r, k->function, k->name, call->blocks, call->threads, k->about.shared,
                         &args);
}
