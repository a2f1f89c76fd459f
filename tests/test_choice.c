/* The model by which algorithms are chosen where nothing was measured. */
#include "../choice.h"
#include "tap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* What has the least of the model's time. */
static symwin_algo best(int nranks, size_t bytes, int is_float, int windows)
{
    static const symwin_algo algos[] = {SYMWIN_ALGO_ONESHOT_SENTINEL, SYMWIN_ALGO_TWOSHOT_PUSH,
                                        SYMWIN_ALGO_TWOSHOT};
    symwin_algo found = algos[0];
    int i;

    for (i = 1; i < 2 + windows; i++)
        if (sw_choice_model_us(algos[i], nranks, bytes, is_float) <
            sw_choice_model_us(found, nranks, bytes, is_float))
            found = algos[i];
    return found;
}

static void prefers(int nranks, size_t bytes, int is_float, int windows, symwin_algo want)
{
    const symwin_algo got = best(nranks, bytes, is_float, windows);

    tap_ok(got == want, "%d ranks, %zu bytes of %s%s: %s%s%s", nranks, bytes,
           is_float ? "floats" : "integers", windows ? " in windows" : "", symwin_algo_name(want),
           got == want ? "" : ", not ", got == want ? "" : symwin_algo_name(got));
}

/* What was measured on H200s, and the crossings between them. */
static void measured(void)
{
    prefers(2, 8, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, MIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, 2 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(2, 16 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(2, 64 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT);
    prefers(2, 64 * MIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 128 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(4, 256 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 64 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 128 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT);
    prefers(4, 1024 * MIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
}

static void others(void)
{
    prefers(1, 8, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(3, 256 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(3, 512 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(8, 32 * KIB, 1, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(8, 128 * KIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(8, 64 * MIB, 1, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4096, 8, 1, 0, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(4096, 64 * KIB, 1, 0, SYMWIN_ALGO_TWOSHOT_PUSH);
    /* Flags: pushes carry twice the bytes. */
    prefers(2, 512 * KIB, 0, 1, SYMWIN_ALGO_ONESHOT_SENTINEL);
    prefers(2, MIB, 0, 1, SYMWIN_ALGO_TWOSHOT_PUSH);
    prefers(4, 64 * MIB, 0, 1, SYMWIN_ALGO_TWOSHOT);
    tap_ok(sw_choice_model_us(SYMWIN_ALGO_ONESHOT, 4, 4096, 1) ==
               sw_choice_model_us(SYMWIN_ALGO_ONESHOT_SENTINEL, 4, 4096, 0),
           "flags cost as much whatever the type");
}

/* Once an algorithm is left for the next one it does not come back. */
static void crosses_once(int nranks)
{
    symwin_algo last = SYMWIN_ALGO_ONESHOT_SENTINEL;
    int crossings = 0;
    size_t bytes;

    for (bytes = 8; bytes < (size_t)1 << 50; bytes += bytes / 8) {
        const symwin_algo now = best(nranks, bytes, 1, 1);

        crossings += now != last;
        last = now;
    }
    tap_ok(crossings == 2 && last == SYMWIN_ALGO_TWOSHOT,
           "%d ranks: one shot, two by pushes, two over windows", nranks);
}

int main(void)
{
    int nranks;

    measured();
    others();
    for (nranks = 2; nranks <= 4096; nranks *= 2)
        crosses_once(nranks);
    return tap_done();
}
