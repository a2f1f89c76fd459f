/* Whether kernels of three streams run beside each other, where each stream has two launches and
 * all first ones wait for each other. A plain CUDA program: nothing of symwin is in it.
 *
 *     nvcc -arch=sm_90 -o /tmp/queues bench/queues.cu -lcuda && timeout 60 /tmp/queues
 *
 * Prints a line for each case. A round is late if a kernel waits longer than 20 ms for the others:
 * its stream shares a hardware queue with another, and that one's second launch is ahead in it.
 */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STREAMS = 3, EACH = 2, ROUNDS = 500, LIMIT_NS = 20000000, CASE_S = 5 };

struct words {
    unsigned arrived[2], late;
};

static struct words *words; /* in pinned memory */
static pthread_barrier_t barrier;
static int launches, anew, rounds, late, ends;
static double until;

static void must(cudaError_t status, const char *what)
{
    if (status != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(status));
        exit(1);
    }
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

__device__ unsigned long long now_ns(void)
{
    unsigned long long ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__global__ void meet(struct words *w, int launch)
{
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        const unsigned long long begin = now_ns();

        atomicAdd_system(&w->arrived[launch], 1);
        while (*(volatile unsigned *)&w->arrived[launch] < STREAMS && w->late == 0)
            if (now_ns() - begin > LIMIT_NS)
                w->late = 1;
    }
    __syncthreads();
}

static void *run(void *first)
{
    cudaStream_t streams[EACH];
    int round, i;

    for (round = 0; !ends; round++) {
        for (i = 0; i < EACH && (anew || round == 0); i++)
            must(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "a stream");
        if (first != NULL)
            *words = {};
        pthread_barrier_wait(&barrier);
        for (i = 0; i < launches; i++)
            meet<<<16, 608, 0, streams[0]>>>(words, i);
        must(cudaStreamSynchronize(streams[0]), "a kernel");
        pthread_barrier_wait(&barrier);
        if (first != NULL) {
            rounds++;
            late += words->late != 0;
            ends = rounds == ROUNDS || seconds() > until;
        }
        for (i = 0; i < EACH && anew; i++)
            must(cudaStreamDestroy(streams[i]), "the end of a stream");
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[STREAMS];
    int i;

    must(cudaMallocHost(&words, sizeof *words), "pinned memory");
    pthread_barrier_init(&barrier, NULL, STREAMS);
    for (anew = 0; anew < 2; anew++)
        for (launches = 1; launches <= 2; launches++) {
            rounds = late = ends = 0;
            until = seconds() + CASE_S;
            for (i = 0; i < STREAMS; i++)
                pthread_create(&threads[i], NULL, run, i == 0 ? words : NULL);
            for (i = 0; i < STREAMS; i++)
                pthread_join(threads[i], NULL);
            printf("%d launches, streams %s: %d of %d rounds late\n", launches,
                   anew ? "made anew each round" : "kept", late, rounds);
        }
    return 0;
}
