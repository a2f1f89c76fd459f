/* A program that is linked to no NCCL, and loads an NCCL and a library with one of its own: the
 * arguments. Both allocate and free; how many calls have reached each copy is printed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

typedef ncclResult_t (*alloc_fn)(void **ptr, size_t size);
typedef ncclResult_t (*free_fn)(void *ptr);

static void find(void *handle, const char *name, void *function)
{
    void *symbol = dlsym(handle, name);

    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(function, &symbol, sizeof symbol);
}

static void use(void *handle, const char *prefix)
{
    char name[32];
    void *memory = NULL;
    alloc_fn allocate;
    free_fn release;
    int turn;

    snprintf(name, sizeof name, "%s%s", prefix, prefix[0] == 'o' ? "alloc" : "Alloc");
    find(handle, name, &allocate);
    snprintf(name, sizeof name, "%s%s", prefix, prefix[0] == 'o' ? "free" : "Free");
    find(handle, name, &release);
    for (turn = 0; turn < 2; turn++)
        if (allocate(&memory, 4096) != ncclSuccess || release(memory) != ncclSuccess)
            printf("%s: failed\n", prefix);
}

static struct fake_nccl *reached(void *handle)
{
    struct fake_nccl *(*fake)(void);
    struct fake_nccl *calls;

    find(handle, "fake_nccl", &fake);
    calls = fake();
    calls->quiet = 1;
    return calls;
}

static void show(const char *name, const struct fake_nccl *calls)
{
    printf("%s: %d allocations, %d frees, %d live\n", name, calls->allocs, calls->frees,
           calls->live);
}

int main(int argc, char **argv)
{
    struct fake_nccl *calls[2];
    void *handles[2];
    int i;

    for (i = 0; i < 2; i++) {
        handles[i] = argc == 3 ? dlopen(argv[i + 1], RTLD_NOW | RTLD_LOCAL) : NULL;
        if (handles[i] == NULL)
            return 2;
        calls[i] = reached(handles[i]);
    }
    use(handles[0], "ncclMem");
    show("NCCL", calls[0]);
    show("its own", calls[1]);
    use(handles[1], "own_");
    show("NCCL", calls[0]);
    show("its own", calls[1]);
    return 0;
}
