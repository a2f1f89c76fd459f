/* Which kernels a communicator loads: no more than it can launch, since each takes a third of a
 * millisecond when a communicator is created (kernels/kernel_list.h). */
#include "emu/emu.h"
#include "harness.h"
#include "kernels/kernel_list.h"
#include "kernels/table_layout.h"
#include "src/collective/table.h"

enum { MOST = 512, FOUR_RANKS_MOST = 199 };

static CUresult (*load)(CUfunction);
static CUfunction loaded[MOST];
static int count;

static CUresult counting_load(CUfunction function)
{
    if (count < MOST)
        loaded[count] = function;
    count++;
    return load(function);
}

/* Forgets a kernel that some call can have. */
static void found(const struct sw_kernel *kernel)
{
    int i;

    for (i = 0; kernel != NULL && i < count && i < MOST; i++)
        if (loaded[i] == kernel->function)
            loaded[i] = NULL;
}

static void find_all(const struct sw_kernels *kernels, symwin_collective collective,
                     symwin_algo algo)
{
    int type, op, shape;

    for (type = 0; type < SW_TYPES; type++)
        for (op = 0; op < SW_OPS; op++)
            for (shape = 0; shape < SW_SHAPES; shape++)
                found(sw_kernels_get(kernels, collective, algo, (symwin_type)type, (symwin_op)op,
                                     (enum sw_kernel_shape)shape));
}

static int left_over(const struct sw_kernels *kernels)
{
    int c, a, i, left = 0;

    for (c = 0; c < SW_COLLECTIVES; c++)
        for (a = SYMWIN_ALGO_AUTO + 1; a < SW_ALGOS; a++)
            if (sw_algo_is_there((symwin_collective)c, (symwin_algo)a))
                find_all(kernels, (symwin_collective)c, (symwin_algo)a);
    found(sw_kernels_pairs(kernels, 0));
    found(sw_kernels_pairs(kernels, 1));
    found(sw_kernels_rows(kernels));
    for (i = 0; i < SW_SHAPES; i++)
        found(sw_kernels_group(kernels, (enum sw_kernel_shape)i));
    for (i = 0; i < count && i < MOST; i++)
        left += loaded[i] != NULL;
    return left;
}

static int load_for(int nranks, int multicast)
{
    struct sw_kernels *kernels = NULL;
    symwin_status status;
    int number;

    count = 0;
    status = sw_kernels_acquire(0, nranks, multicast, &kernels);
    TAP_EQ("kernels are loaded", status, SYMWIN_OK);
    if (status != SYMWIN_OK)
        return 0;
    number = count;
    tap_ok(number > 0 && number <= MOST && left_over(kernels) == 0,
           "%d ranks%s load %d kernels, and a call can have each", nranks,
           multicast ? " with multicast" : "", number);
    tap_ok((sw_kernels_rows(kernels)->function != NULL) == (nranks > SW_TABLE_RANKS),
           "%d ranks: rows are stored ahead if the arguments have no room", nranks);
    sw_kernels_release(kernels);
    return number;
}

/* Both are pushes of the same entries: floats of 16 bits and more have no kernels with flags. */
static void one_shots(void)
{
    struct sw_kernels *kernels = NULL;
    int type, op, shape;

    TAP_EQ("kernels are loaded", sw_kernels_acquire(0, 4, 0, &kernels), SYMWIN_OK);
    for (type = 0; type < SW_TYPES && kernels != NULL; type++) {
        int same = 1;

        for (op = 0; op < SW_OPS; op++)
            for (shape = 0; shape < SW_SHAPES; shape++)
                same &= sw_kernels_get(kernels, SYMWIN_ALLREDUCE, SYMWIN_ALGO_ONESHOT,
                                       (symwin_type)type, (symwin_op)op,
                                       (enum sw_kernel_shape)shape) ==
                        sw_kernels_get(kernels, SYMWIN_ALLREDUCE, SYMWIN_ALGO_ONESHOT_SENTINEL,
                                       (symwin_type)type, (symwin_op)op,
                                       (enum sw_kernel_shape)shape);
        tap_ok(same == (type != SYMWIN_F8E4M3 && type != SYMWIN_F8E5M2),
               "%s: the one-shots have %s kernels", symwin_type_name((symwin_type)type),
               same ? "the same" : "different");
    }
    if (kernels != NULL)
        sw_kernels_release(kernels);
}

int main(void)
{
    static const int ranks[] = {1, 2, 3, 4, 8, 16, 17};
    CUcontext context = NULL;
    size_t i;

    setenv("SYMWIN_DRIVER", "emu", 1);
    if (sw_driver_load() != SYMWIN_OK || sw_drv.cuDevicePrimaryCtxRetain(&context, 0) != 0 ||
        sw_drv.cuCtxSetCurrent(context) != 0) {
        printf("Bail out! no emulated driver\n");
        return 1;
    }
    load = sw_drv.cuFuncLoad;
    sw_drv.cuFuncLoad = counting_load;
    for (i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        const int without = load_for(ranks[i], 0);

        tap_ok(load_for(ranks[i], 1) > without, "%d ranks: multicast has kernels of its own",
               ranks[i]);
        if (ranks[i] == 4)
            tap_ok(without <= FOUR_RANKS_MOST, "four ranks load %d kernels, fewer than %d", without,
                   FOUR_RANKS_MOST + 1);
    }
    one_shots();
    sw_drv.cuFuncLoad = load;
    sw_drop(sw_drv.cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
    TAP_EQ("nothing left behind", sw_emu_live_objects(), 0);
    return tap_done();
}
