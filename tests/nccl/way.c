/* A program that looks NCCL's functions up, in a library that it loads, or among its own symbols:
 *
 *     way LIBRARY|- PREFIX [LIBRARY_WITH_ITS_OWN]
 *
 * PREFIX is nccl or pnccl. It makes an all-reduce, and prints its result and how many calls of it
 * have reached NCCL. Then it lets the other library do the same with an NCCL of its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "ways.h"

static void find(void *handle, const char *prefix, const char *name, void *function)
{
    char text[64];
    void *symbol;

    snprintf(text, sizeof text, "%s%s", prefix[0] == 'p' ? "p" : "", name);
    symbol = handle != NULL ? dlsym(handle, text) : dlsym(RTLD_DEFAULT, text);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(function, &symbol, sizeof symbol);
}

static void *load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return handle;
}

int main(int argc, char **argv)
{
    void *handle = argc > 2 && strcmp(argv[1], "-") != 0 ? load(argv[1]) : NULL;
    const struct stand_in *(*counts)(void);
    int (*run_own)(unsigned *calls);
    unsigned calls = 0;
    struct way way;
    int result;

    if (argc < 3)
        return 2;
#define FIND(name) find(handle, argv[2], #name, &way.name);
    WAY_CALLS(FIND)
#undef FIND
    result = way_run(&way);
    find(handle != NULL ? load("libnccl.so.2") : NULL, "", "stand_in", &counts);
    printf("%d, NCCL had %u\n", result,
           atomic_load(&counts()->functions[STAND_IN_ncclAllReduce].calls));
    if (argc > 3) {
        find(load(argv[3]), "", "own_way", &run_own);
        result = run_own(&calls);
        printf("%d, its own had %u\n", result, calls);
        printf("NCCL had %u\n", atomic_load(&counts()->functions[STAND_IN_ncclAllReduce].calls));
    }
    return 0;
}
