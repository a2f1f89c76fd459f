/* Shared by the fuzzers: the entry point, and a check that ends the process if it fails. */
#ifndef SYMWIN_FUZZ_H
#define SYMWIN_FUZZ_H

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__attribute__((format(printf, 3, 4), unused)) static void fuzz_must_at(int holds, int line,
                                                                       const char *format, ...)
{
    static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;
    va_list args;

    if (holds)
        return;
    pthread_mutex_lock(&first); /* not unlocked: a second abort would cut the first report */
    fprintf(stderr, "line %d: ", line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort(); /* libFuzzer and fuzz/main.c both keep the input */
}

/* A check, and the message if it fails. */
#define fuzz_must(holds, ...) fuzz_must_at((holds) != 0, __LINE__, __VA_ARGS__)

/* The rest of an input; when it is used up, zeros. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

__attribute__((unused)) static unsigned fuzz_byte(struct fuzz_input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

/* The number of open descriptors below `end`; cheaper than reading /proc. */
__attribute__((unused)) static int fuzz_open_descriptors(int end)
{
    int count = 0;
    int fd;

    for (fd = 0; fd < end; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

#endif
