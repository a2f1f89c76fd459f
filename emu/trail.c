/* Stack traces that identify a CUDA thread, for ThreadSanitizer.
 *
 * For an earlier access ThreadSanitizer has only the stack trace, and the fiber may run another
 * thread by now. So each CUDA thread is called through functions that stand for digits, and its
 * stack traces contain device, block and thread index in octal:
 *
 *     emu_digit_0 emu_digit_0 emu_digit_2     device 2
 *     emu_digit_0 emu_digit_0 emu_digit_1     block 1
 *     emu_digit_0 ... emu_digit_7             thread 7
 *     the kernel
 *
 * bench/own/tsan.c reads them.
 */
#include <pthread.h>

#include "emu_device.h"
#include "fiber.h"

#if defined(EMU_TSAN)

struct trail {
    unsigned char digits[EMU_TRAIL_DIGITS];
    int at;
    void (*run)(const void *params);
    const void *params;
};

static void next(struct trail *trail);

/* The code after the call prevents a tail call, which would leave no frame. */
#define DIGIT(n)                                                                                   \
    __attribute__((noinline)) static void emu_digit_##n(struct trail *trail)                       \
    {                                                                                              \
        next(trail);                                                                               \
        __asm__ volatile("" : : "r"(trail) : "memory");                                            \
    }
DIGIT(0)
DIGIT(1)
DIGIT(2)
DIGIT(3)
DIGIT(4)
DIGIT(5)
DIGIT(6)
DIGIT(7)

__attribute__((noinline)) static void next(struct trail *trail)
{
    static void (*const digits[])(struct trail *) = {
        emu_digit_0, emu_digit_1, emu_digit_2, emu_digit_3,
        emu_digit_4, emu_digit_5, emu_digit_6, emu_digit_7,
    };

    if (trail->at < EMU_TRAIL_DIGITS)
        digits[trail->digits[trail->at++]](trail);
    else
        trail->run(trail->params);
    __asm__ volatile("" : : "r"(trail) : "memory");
}

static void put(struct trail *trail, int digits, unsigned number)
{
    for (int i = digits - 1; i >= 0; i--)
        trail->digits[trail->at++] = (unsigned char)(number >> 3 * i & 7);
}

void emu_trail_run(const struct emu_dev_thread *me, void (*run)(const void *params),
                   const void *params)
{
    struct trail trail = {.run = run, .params = params};

    put(&trail, EMU_TRAIL_DEVICE, (unsigned)me->device);
    put(&trail, EMU_TRAIL_BLOCK, me->block.x);
    put(&trail, EMU_TRAIL_THREAD, me->thread.x);
    trail.at = 0;
    next(&trail);
}

#endif
