/* A program that looks NCCL's functions up in every way, and knows nothing of symwin. It follows
 * its arguments. "in LIBRARY" is the file in which a function lies.
 *
 *     open FILE       loads a library with local symbols; "handle" is its handle from then on
 *     handle NAME     looks NAME up in it
 *     next NAME, default NAME, version NAME
 *                     by RTLD_NEXT, by RTLD_DEFAULT, by dlvsym()
 *     behind NAME     libtool.so looks NAME up by RTLD_NEXT
 *     linked          calls the functions that the program is linked to
 *     called          calls those of the handle */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passed.h"

/* The program may be linked to no NCCL. */
#pragma weak ncclReduce
#pragma weak ncclCommInitRank
#pragma weak ncclGetErrorString
#pragma weak ncclMemAlloc

static void *handle;

static void print_place(const char *how, const char *name, void *symbol)
{
    const char *error = dlerror(), *slash;
    Dl_info info;

    if (symbol == NULL) {
        printf("%s %s: none, %s\n", how, name,
               error != NULL && strstr(error, name) != NULL ? "and why" : "and no error");
        return;
    }
    if (dladdr(symbol, &info) == 0 || info.dli_fname == NULL)
        exit(1);
    slash = strrchr(info.dli_fname, '/');
    printf("%s %s: in %s\n", how, name, slash != NULL ? slash + 1 : info.dli_fname);
}

static void call_all(ncclResult_t (*reduce)(const void *, void *, size_t, int, int, int, void *,
                                            void *),
                     ncclResult_t (*init)(void **, int, ncclUniqueId, int),
                     const char *(*text)(ncclResult_t), ncclResult_t (*alloc)(void **, size_t))
{
    ncclUniqueId id;
    void *comm = NULL, *memory = NULL;
    size_t i;

    for (i = 0; i < sizeof id.internal; i++)
        id.internal[i] = (char)i;
    printf("ncclReduce: %d\n", reduce((void *)1, (void *)2, 3, 4, 5, 6, (void *)7, (void *)8));
    printf("ncclCommInitRank: %d\n", init(&comm, 9, id, 10));
    printf("ncclGetErrorString: %s\n", text(ncclRemoteError));
    printf("ncclMemAlloc: %d\n", alloc(&memory, 4096));
}

#define FIND(function)                                                                             \
    do {                                                                                           \
        void *symbol = dlsym(handle, #function);                                                   \
                                                                                                   \
        if (symbol == NULL)                                                                        \
            printf("no %s\n", #function);                                                          \
        memcpy(&function##_found, &symbol, sizeof symbol);                                         \
    } while (0)

static void call_found(void)
{
    ncclResult_t (*ncclReduce_found)(const void *, void *, size_t, int, int, int, void *, void *);
    ncclResult_t (*ncclCommInitRank_found)(void **, int, ncclUniqueId, int);
    const char *(*ncclGetErrorString_found)(ncclResult_t);
    ncclResult_t (*ncclMemAlloc_found)(void **, size_t);

    FIND(ncclReduce);
    FIND(ncclCommInitRank);
    FIND(ncclGetErrorString);
    FIND(ncclMemAlloc);
    call_all(ncclReduce_found, ncclCommInitRank_found, ncclGetErrorString_found,
             ncclMemAlloc_found);
}

static void act(const char *what, const char *name)
{
    if (strcmp(what, "open") == 0) {
        handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL)
            printf("%s\n", dlerror());
    } else if (strcmp(what, "handle") == 0) {
        print_place(what, name, dlsym(handle, name));
    } else if (strcmp(what, "next") == 0) {
        print_place(what, name, dlsym(RTLD_NEXT, name));
    } else if (strcmp(what, "default") == 0) {
        print_place(what, name, dlsym(RTLD_DEFAULT, name));
    } else if (strcmp(what, "behind") == 0) {
        void *(*next)(const char *);
        void *symbol = dlsym(RTLD_DEFAULT, "tool_next");

        if (symbol == NULL)
            exit(1);
        memcpy(&next, &symbol, sizeof next);
        print_place(what, name, next(name));
    } else if (strcmp(what, "version") == 0) {
        print_place(what, name, dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5"));
    } else {
        exit(2);
    }
}

int main(int argc, char **argv)
{
    int i = 1;

    while (i < argc)
        if (strcmp(argv[i], "linked") == 0) {
            call_all(ncclReduce, ncclCommInitRank, ncclGetErrorString, ncclMemAlloc);
            i++;
        } else if (strcmp(argv[i], "called") == 0) {
            call_found();
            i++;
        } else if (i + 1 < argc) {
            act(argv[i], argv[i + 1]);
            i += 2;
        } else {
            return 2;
        }
    return 0;
}
