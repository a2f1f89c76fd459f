/* A program that uses NCCL's allocator while CUDA's driver fails: each driver call of each case,
 * one after the other, with every code, once and for good. A call always returns the NCCL result
 * that fits, or goes on to NCCL. Nothing is lost, the thread's context stays current, and the next
 * call without a fault works.
 *
 *     faults         the cases, in this process
 *     faults first   a process's first calls, each time in a new process
 *
 * Prints one line per case, and every error. */
#include "faults.h"
#include "tap.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNTOUCHED ((void *)(uintptr_t)0x5e5e5e5e)

static const CUresult codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE,
                                 CUDA_ERROR_NOT_SUPPORTED};
enum { CODES = sizeof codes / sizeof codes[0], MOST_FAULTS = 500 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

const struct fake_engine *engine;
struct setting setting;

/* A fault at the nth driver call. */
struct plan {
    const struct fault_case *c;
    unsigned nth;
    CUresult code;
    int persistent;
};

/* The outcome of a run with a plan. */
struct outcome {
    int fired, failed, passed;
    const char *wrong; /* NULL: nothing */
    char hit[64];      /* the driver call that failed */
};

void must(int result, const char *what)
{
    if (result == 0)
        return;
    printf("%s gives %d: %s\n", what, result, symwin_last_error());
    exit(1);
}

/* ---- live objects ---- */

struct world {
    struct sw_emu_live live;
    int fds, threads, own; /* own: memory of NCCL */
};

static struct world world_now(void)
{
    struct world w;

    memset(&w, 0, sizeof w);
    harness_wait_for_reaper();
    engine->live_count(&w.live);
    w.fds = harness_count_entries("/proc/self/fd");
    w.threads = harness_service_threads(); /* those of the emulated driver stay */
    w.own = fake_nccl()->live;
    return w;
}

/* What was lost since `before`, or NULL. */
static const char *lost(const struct world *before)
{
    const struct world now = world_now();

    if (memcmp(&now.live, &before->live, sizeof now.live) != 0) {
        fflush(stdout);
        engine->live_print(1);
        return "driver objects are lost";
    }
    if (now.fds != before->fds)
        return "descriptors are lost";
    if (now.threads != before->threads)
        return "threads are lost";
    return now.own == before->own ? NULL : "memory of NCCL is lost";
}

/* ---- calls ---- */

void *try_alloc(struct state *s, size_t size)
{
    struct attempt *a = &s->made[s->made_count++];
    const int before = fake_nccl()->allocs;

    *a = (struct attempt){.size = size, .ptr = UNTOUCHED, .homeless = s->context == NULL};
    a->result = s->by_profiler ? pncclMemAlloc(&a->ptr, size) : ncclMemAlloc(&a->ptr, size);
    a->passed = fake_nccl()->allocs != before;
    a->live = a->result == ncclSuccess && a->ptr != NULL;
    return a->live ? a->ptr : NULL;
}

void try_odd_free(struct state *s, void *ptr, struct release expected)
{
    struct release *f = &s->freed[s->freed_count++];
    const int before = fake_nccl()->frees;

    *f = expected;
    f->result = s->by_profiler ? pncclMemFree(ptr) : ncclMemFree(ptr);
    f->passed = fake_nccl()->frees != before;
}

void try_free(struct state *s, void *ptr)
{
    struct release expected = {.want = ncclSuccess};
    int i = 0;

    if (ptr == NULL)
        return;
    while (s->made[i].ptr != ptr || !s->made[i].live)
        i++;
    expected.wants_passed = s->made[i].passed;
    /* Looking at the memory and filling it may fail; it is freed all the same. */
    if (setting.debug || s->made[i].passed)
        expected.or_else = 1u << ncclSystemError;
    try_odd_free(s, ptr, expected);
    s->made[i].live = s->made[i].passed && !s->freed[s->freed_count - 1].passed;
}

/* ---- verdicts ---- */

/* What is wrong with allocated memory, or NULL. */
static const char *look_at(const struct attempt *a)
{
    const CUdeviceptr ptr = (CUdeviceptr)(uintptr_t)a->ptr;
    int devices = 0, device = -1, d;

    if (ptr % (a->size >= GRANULE ? GRANULE : 4096) != 0)
        return "memory is not aligned";
    if (DRIVER->cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) !=
            CUDA_SUCCESS ||
        device != (a->homeless ? 0 : DEVICE))
        return "memory is not the current device's";
    must(DRIVER->cuDeviceGetCount(&devices), "cuDeviceGetCount");
    for (d = 0; d < devices; d++) {
        const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d};
        unsigned long long rights = 0;

        must(DRIVER->cuMemGetAccess(&rights, &location, ptr + a->size - 1), "cuMemGetAccess");
        if ((rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) != (d == device || setting.peers))
            return "a device has another access than it should have";
    }
    return NULL;
}

static const char *judge_alloc(const struct attempt *a, CUresult code, int fired)
{
    const int for_nccl = a->size == 0 || (a->homeless && !setting.emulated);
    const int too_much = a->size > (size_t)1 << 40;
    /* NCCL may be able to do without it. */
    const int unsupported = code == CUDA_ERROR_NOT_SUPPORTED;
    const ncclResult_t fits = code == CUDA_ERROR_OUT_OF_MEMORY ? ncclUnhandledCudaError
                                                               : ncclSystemError;

    if (a->passed)
        return for_nccl || (fired && (unsupported || setting.first)) ? NULL
                                                                     : "an allocation goes to NCCL";
    if (a->result == ncclSuccess && (for_nccl || too_much))
        return "an allocation does not go to NCCL";
    if (a->result == ncclSuccess)
        return a->live ? look_at(a) : NULL;
    if (a->ptr != UNTOUCHED)
        return "an allocation fails and sets its pointer";
    if (too_much && a->result == ncclUnhandledCudaError)
        return NULL;
    if (!fired)
        return "an allocation fails without a fault";
    return a->result == fits && !unsupported ? NULL
                                             : "an allocation fails by a result that does not fit";
}

static const char *judge_free(const struct release *f, CUresult code, int fired)
{
    const int denied = code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_SUPPORTED;

    if (f->result == f->want && f->passed == f->wants_passed)
        return NULL;
    if (!fired)
        return "a free has another result without a fault";
    if (f->passed)
        return f->wants_passed || (f->may_pass && denied) ? NULL : "a free goes to NCCL";
    return (f->or_else >> f->result & 1) != 0 ? NULL : "a free has a result that does not fit";
}

static void judge(const struct state *s, const struct plan *plan, struct outcome *o)
{
    int i;

    o->failed += s->trims_failed;
    for (i = s->judged_made; i < s->made_count; i++) {
        o->failed += s->made[i].result != ncclSuccess && !s->made[i].passed;
        o->passed += s->made[i].passed;
        if (o->wrong == NULL)
            o->wrong = judge_alloc(&s->made[i], plan->code, o->fired);
    }
    for (i = 0; i < s->freed_count; i++) {
        o->failed += s->freed[i].result != s->freed[i].want && !s->freed[i].passed;
        o->passed += s->freed[i].passed;
        if (o->wrong == NULL)
            o->wrong = judge_free(&s->freed[i], plan->code, o->fired);
    }
    if (o->wrong == NULL && s->trims_failed && !o->fired)
        o->wrong = "symwin_mem_trim() fails without a fault";
}

/* ---- one run ---- */

/* Replaces the last error by one that no call of a case makes. */
static void forget_sentence(void)
{
    symwin_mem_trim(9999, 0);
}

static int has_sentence(void)
{
    const char *text = symwin_last_error();

    return strncmp(text, "symwin_mem_", 11) == 0 && strstr(text, "device 9999") == NULL &&
           strstr(text, "past the end") == NULL;
}

static const char *check_context(const struct state *s)
{
    CUcontext now = NULL;

    must(DRIVER->cuCtxGetCurrent(&now), "cuCtxGetCurrent");
    return now == s->context ? NULL : "another context is current";
}

/* Fills of SYMWIN_MEM_DEBUG may still be running if the wait for them failed. */
static void wait_for(CUdevice device)
{
    CUcontext context = NULL;

    must(DRIVER->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(DRIVER->cuCtxPushCurrent(context), "cuCtxPushCurrent");
    must(DRIVER->cuCtxSynchronize(), "cuCtxSynchronize");
    must(DRIVER->cuCtxPopCurrent(&context), "cuCtxPopCurrent");
    must(DRIVER->cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
}

/* Calls after a fault work, also if a first call has left the process to NCCL. */
static const char *go_on(const struct plan *plan)
{
    struct state s = {.by_profiler = plan->nth % 2};
    struct outcome o = {.fired = setting.first};
    int i;

    must(DRIVER->cuCtxGetCurrent(&s.context), "cuCtxGetCurrent");
    if (try_alloc(&s, 3000) == NULL || try_alloc(&s, GRANULE + 1) == NULL)
        return "the next allocation fails";
    judge(&s, plan, &o);
    for (i = 0; i < 2; i++)
        try_free(&s, s.made[i].ptr);
    judge(&s, plan, &o);
    return o.wrong;
}

static struct outcome run(const struct plan *plan)
{
    const struct fault_case *c = plan->c;
    const struct world before = world_now();
    struct state s = {.by_profiler = plan->nth % 2 == 0};
    struct outcome o = {0};
    const char *wrong;
    int i;

    must(DRIVER->cuCtxGetCurrent(&s.context), "cuCtxGetCurrent");
    if (c->before != NULL)
        c->before(&s);
    s.judged_made = s.made_count;
    if (!setting.first)
        forget_sentence();
    engine->fail_nth(plan->nth, plan->code, plan->persistent, 0);
    c->call(&s);
    o.fired = engine->fired();
    if (o.fired)
        snprintf(o.hit, sizeof o.hit, "%s", engine->fault_name());
    engine->fail_nth(0, CUDA_SUCCESS, 0, 0);
    o.wrong = check_context(&s);
    judge(&s, plan, &o);
    if (o.wrong == NULL && o.failed > 0 && !has_sentence())
        o.wrong = "a failure has no sentence of its own";
    wrong = c->after != NULL ? c->after(&s) : NULL;
    o.wrong = o.wrong != NULL ? o.wrong : wrong;
    clear_case(&s);
    wait_for(DEVICE);
    wait_for(0);
    wrong = go_on(plan);
    o.wrong = o.wrong != NULL ? o.wrong : wrong;
    for (i = 0; i < s.made_count; i++)
        if (s.made[i].live)
            must(ncclMemFree(s.made[i].ptr), "ncclMemFree");
    if (symwin_mem_trim(SYMWIN_DEVICE_ALL, 0) != SYMWIN_OK && !setting.first)
        must(1, "symwin_mem_trim");
    if (o.wrong == NULL)
        o.wrong = lost(&before);
    return o;
}

/* ---- the sweep ---- */

static struct outcome run_apart(const struct plan *plan);

static void sweep(const struct fault_case *c)
{
    const int turns = SLOW || setting.debug; /* if runs take long, codes take turns */
    int runs = 0, failed = 0, passed = 0, which;

    for (which = 0; which < 2 * CODES; which += turns ? CODES : 1) {
        struct plan plan = {.c = c, .code = codes[which % CODES], .persistent = which / CODES};
        struct outcome o = {.fired = 1};

        while (o.fired && plan.nth < MOST_FAULTS) {
            plan.nth++;
            if (turns)
                plan.code = codes[plan.nth % CODES];
            o = setting.first ? run_apart(&plan) : run(&plan);
            runs += o.fired;
            failed += o.failed > 0;
            passed += o.passed > 0;
            if (o.wrong == NULL)
                continue;
            printf("%s: call %u, %s, gives %d%s: %s: %s\n", c->name, plan.nth, o.hit,
                   (int)plan.code, plan.persistent ? " for good" : "", o.wrong,
                   symwin_last_error());
            exit(1);
        }
        if (o.fired)
            must(1, "an endless case");
    }
    printf("%s: %d faults, %d failed, %d passed on\n", c->name, runs, failed, passed);
    if (c->fails && failed == 0)
        must(1, "no fault is heard of");
}

static void begin(void)
{
    CUcontext context = NULL;

    must(DRIVER->cuInit(0), "cuInit");
    must(DRIVER->cuDevicePrimaryCtxRetain(&context, DEVICE), "cuDevicePrimaryCtxRetain");
    must(DRIVER->cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* Makes the process's first calls. */
static void begin_for_good(void)
{
    void *ptr = NULL;

    begin();
    must((int)ncclMemAlloc(&ptr, 1), "ncclMemAlloc");
    must((int)ncclMemFree(ptr), "ncclMemFree");
    must((int)symwin_mem_trim(SYMWIN_DEVICE_ALL, 0), "symwin_mem_trim");
}

/* In a process that has made no call yet. It prints its errors itself. */
static struct outcome run_apart(const struct plan *plan)
{
    struct outcome o = {.wrong = "the process died"};
    int ends[2], status = 0;
    const char *wrong;
    pid_t pid;

    fflush(stdout);
    must(pipe(ends), "pipe");
    pid = fork();
    if (pid == 0) {
        begin();
        o = run(plan);
        wrong = o.wrong;
        if (wrong != NULL)
            printf("%s: %s\n", wrong, symwin_last_error());
        fflush(stdout);
        _exit(write(ends[1], &o, sizeof o) != sizeof o);
    }
    close(ends[1]);
    if (read(ends[0], &o, sizeof o) == sizeof o && o.wrong != NULL)
        o.wrong = "see above";
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        o.wrong = "the process died";
    return o;
}

static const struct fake_engine *find_engine(void)
{
    const struct fake_engine *(*get)(void);
    void *library = setting.emulated ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = dlsym(library != NULL ? library : RTLD_DEFAULT, "fake_engine");

    if (symbol == NULL)
        must(1, "fake_engine");
    memcpy(&get, &symbol, sizeof get);
    return get();
}

static int is(const char *variable, const char *value)
{
    const char *text = getenv(variable);

    return text != NULL && strcmp(text, value) == 0;
}

int main(int argc, char **argv)
{
    const struct fault_case *c;

    setting.first = argc > 1 && strcmp(argv[1], "first") == 0;
    setting.emulated = is("SYMWIN_DRIVER", "emu");
    setting.pool = !is("SYMWIN_MEM_POOL", "0");
    setting.keeps = setting.pool && !is("SYMWIN_MEM_KEEP", "0");
    setting.debug = is("SYMWIN_MEM_DEBUG", "1");
    setting.peers = !is("SYMWIN_NCCL_PEERS", "0");
    engine = find_engine();
    fake_nccl()->quiet = 1;
    if (!setting.first)
        begin_for_good();
    for (c = setting.first ? first_cases : fault_cases; c->name != NULL; c++)
        if (setting.emulated || !c->emulated_only)
            sweep(c);
    return 0;
}
