/* A user's program, with ranks as threads. Each puts its data into the next rank's window by bulk
 * copies, signals and waits; then all add up what they have received. Several turns, and nothing is
 * reset. Prints TAP.
 *
 *   nvcc -std=c++17 -arch=sm_90 -I. -o ring ring.cu sum.cu libsymwin.a */
#include <pthread.h>
#include <string.h>

#include "user.h"

static symwin_unique_id id;
static int failures;

SYMWIN_KERNEL(put_to_next, user_args, args, THREADS)
{
    const symwin_team team = symwin_team_all(args.span.peers);
    const int32_t next = symwin_team_after(team, team.count > 1 ? 1 : 0);
    symwin_bulk_ring ring = symwin_bulk_ring_make(symwin_shared(), PIECES, PIECE);

    symwin_copy_bulk(&ring, symwin_group_grid(), symwin_span_peer(args.span, next, RECEIVED),
                     symwin_span_own(args.span, SOURCE), COUNT * sizeof(float));
    if (threadIdx.x == 0) {
        symwin_signal(symwin_span_peer(args.span, next, SIGNALS), 1);
        if (blockIdx.x == 0 && !symwin_wait(symwin_span_own(args.span, SIGNALS),
                                            args.turn * gridDim.x, {args.timeout_ns, 0}))
            symwin_store_relaxed_u32(symwin_span_own(args.span, GAVE_UP), 1);
    }
}

static void must(bool right, const char *what)
{
    if (right)
        return;
    printf("Bail out! %s: %s\n", what, symwin_last_error());
    exit(1);
}

/* Comes before everything else: the number of devices. Skips the test if there is no GPU. */
static int devices(void)
{
#ifdef __CUDACC__
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("1..0 # SKIP no GPU\n");
        exit(0);
    }
    return count;
#else
    symwin_driver_info info;

    must(symwin_driver_query(&info) == SYMWIN_OK, "symwin_driver_query");
    return info.device_count;
#endif
}

static void use_device(int device)
{
#ifdef __CUDACC__
    must(cudaSetDevice(device) == cudaSuccess && cudaFree(0) == cudaSuccess, "cudaSetDevice");
#else
    CUcontext context;

    must(sw_drv.cuDevicePrimaryCtxRetain(&context, device) == 0 &&
             sw_drv.cuCtxSetCurrent(context) == 0,
         "context");
#endif
}

static float source(int rank, uint64_t turn, int i)
{
    return (float)((rank + 1) * 1000 + (int)turn * 10 + i % 7);
}

static int turn_goes_wrong(struct user_rank *r, char *memory)
{
    static float words[RANKS][COUNT];
    float *const mine = words[r->rank];
    int wrong = 0;

    for (int i = 0; i < COUNT; i++)
        mine[i] = source(r->rank, r->args.turn, i);
    must(symwin_memcpy(r->device, memory + SOURCE, mine, COUNT * sizeof(float), r->stream) ==
             SYMWIN_OK,
         "symwin_memcpy");
    must(USER_LAUNCH(put_to_next, r, SYMWIN_BULK_RING_BYTES(PIECES, PIECE)), "put_to_next");
    must(user_sum(r), "sum_received");
    must(symwin_memcpy(r->device, mine, memory + RESULT, COUNT * sizeof(float), r->stream) ==
                 SYMWIN_OK &&
             symwin_stream_synchronize(r->device, r->stream) == SYMWIN_OK,
         "symwin_memcpy");
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;

        for (int q = 0; q < RANKS; q++)
            sum += source(q, r->args.turn, i);
        wrong += mine[i] != sum;
    }
    return wrong;
}

static void *rank_main(void *arg)
{
    struct user_rank r = {};
    symwin_window *window = NULL;
    symwin_comm *comm = NULL;
    symwin_window_info info;
    void *memory = NULL;
    uint32_t gave_up = 0;
    int wrong = 0;

    r.rank = *(int *)arg;
    r.device = r.rank % devices();
    use_device(r.device);
    must(symwin_stream_create(r.device, &r.stream) == SYMWIN_OK &&
             symwin_mem_alloc(r.device, WINDOW, 0, &memory) == SYMWIN_OK,
         "memory");
    {
        static const char zeros[WINDOW] = {};

        must(symwin_memcpy(r.device, memory, zeros, WINDOW, r.stream) == SYMWIN_OK &&
                 symwin_stream_synchronize(r.device, r.stream) == SYMWIN_OK,
             "zeros");
    }
    must(symwin_comm_create(&id, RANKS, r.rank, r.device, NULL, &comm) == SYMWIN_OK &&
             symwin_window_register(comm, memory, WINDOW, 0, &window) == SYMWIN_OK &&
             symwin_window_query(comm, window, &info) == SYMWIN_OK,
         "window");
    r.args.span = symwin_span_of(info);
    r.args.timeout_ns = 20000000000u;
    for (r.args.turn = 1; r.args.turn <= TURNS; r.args.turn++)
        wrong += turn_goes_wrong(&r, (char *)memory);
    must(symwin_memcpy(r.device, &gave_up, (char *)memory + GAVE_UP, sizeof gave_up, r.stream) ==
                 SYMWIN_OK &&
             symwin_stream_synchronize(r.device, r.stream) == SYMWIN_OK,
         "symwin_memcpy");
    if (wrong != 0 || gave_up != 0) {
        printf("# rank %d: %d sums are wrong, %s\n", r.rank, wrong,
               gave_up ? "a wait was given up" : "all waits ended");
        __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    }
    symwin_comm_destroy(comm);
    must(symwin_mem_free(memory) == SYMWIN_OK &&
             symwin_stream_destroy(r.device, r.stream) == SYMWIN_OK,
         "memory");
    return NULL;
}

int main(void)
{
    int ranks[RANKS] = {0, 1};
    pthread_t threads[RANKS];

    devices();
    must(symwin_unique_id_create(&id) == SYMWIN_OK, "symwin_unique_id_create");
    for (int r = 0; r < RANKS; r++)
        must(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0, "pthread_create");
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    printf("%s 1 - puts by bulk copies, signals, barriers and sums of %d ranks\n1..1\n",
           failures == 0 ? "ok" : "not ok", RANKS);
    return failures != 0;
}
