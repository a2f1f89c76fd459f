/* Faults of the fabric on demand: calls on multicast objects that fail, come late, or do not come
 * back, as on machines whose fabric is out of order. Each fault is for one device, or any, and for
 * a number of calls.
 *
 * A call that stalls holds no lock.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "mcast.h"
#include "src/base/base.h"

enum { MOST_FAULTS = 8 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* nothing else is locked under it */
static struct sw_emu_multicast_fault faults[MOST_FAULTS];
static int fault_count;

static atomic_int stalled;
static atomic_uint resumed; /* how often stalled calls were told to go on */

/* ---- what tests ask for ---------------------------------------------------------------------- */

CUresult sw_emu_multicast_fail(const struct sw_emu_multicast_fault *fault)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&mutex);
    if (fault == NULL)
        fault_count = 0;
    else if (fault_count < MOST_FAULTS)
        faults[fault_count++] = *fault;
    else
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&mutex);
    return result;
}

int sw_emu_multicast_stalled(void)
{
    return atomic_load(&stalled);
}

void sw_emu_multicast_resume(void)
{
    atomic_fetch_add(&resumed, 1);
}

/* settings.c has checked the text. */
void emu_fault_read(void)
{
    static const char *const calls[] = {"add", "bind", "import"};
    const char *text = sw_setting_text(SW_SETTING_EMU_MULTICAST_FAULT);
    struct sw_emu_multicast_fault fault = {.device = -1, .times = -1};
    char call[8];
    int answer;

    if (text == NULL || sscanf(text, "%7[a-z]:%d:%d:%d:%d", call, &answer, &fault.device,
                               &fault.times, &fault.stall_ms) < 2)
        return;
    while (strcmp(call, calls[fault.call]) != 0)
        fault.call++;
    fault.answer = (CUresult)answer;
    (void)sw_emu_multicast_fail(&fault);
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct emu_fault emu_fault_take(enum sw_emu_fault_call call, CUdevice device)
{
    struct emu_fault taken = {CUDA_SUCCESS, 0};

    pthread_mutex_lock(&mutex);
    for (int i = 0; i < fault_count; i++) {
        struct sw_emu_multicast_fault *f = &faults[i];

        if (f->call != call || (f->device >= 0 && f->device != device) || f->times == 0)
            continue;
        if (f->times > 0)
            f->times--;
        taken = (struct emu_fault){f->answer, f->stall_ms};
        break;
    }
    pthread_mutex_unlock(&mutex);
    return taken;
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void emu_fault_stall(int ms)
{
    const struct timespec nap = {0, 1000000};
    const unsigned before = atomic_load(&resumed);
    const uint64_t end = now_ms() + (uint64_t)(ms > 0 ? ms : 0);

    if (ms == 0)
        return;
    atomic_fetch_add(&stalled, 1);
    while (atomic_load(&resumed) == before && (ms < 0 || now_ms() < end))
        nanosleep(&nap, NULL);
    atomic_fetch_sub(&stalled, 1);
}
