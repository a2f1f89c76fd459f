/* A fuzzer as a plain program, for compilers without libFuzzer. Runs every given input, then random
 * mutations of them for -seconds N, without coverage feedback. Fails if there is no input.
 *
 *   <fuzzer> [-seconds N] [-seed N] file or folder ...
 *
 * An input that takes longer than half a minute fails. The failing input is written to crash-plain
 * in the current folder.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum { MOST_BYTES = 16384, MOST_INPUTS = 4096, MOST_SECONDS = 30 };

struct kept {
    uint8_t *data; /* owned */
    size_t size;
};

static struct kept inputs[MOST_INPUTS];
static size_t input_count;

/* ---- the failing input ---- */

static struct kept current; /* not owned: the input that runs */

static void keep_current(void)
{
    static const char name[] = "crash-plain";
    const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd < 0 || write(fd, current.data, current.size) != (ssize_t)current.size)
        return;
    fprintf(stderr, "the input is in %s\n", name);
    close(fd);
}

static void on_abort(int number)
{
    keep_current();
    alarm(0);
    signal(number, SIG_DFL);
    raise(number);
}

/* In the sanitizers' runtime, if there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void on_alarm(int number)
{
    static const char text[] = "an input takes too long\n";

    (void)number;
    (void)!write(2, text, sizeof text - 1);
    abort();
}

static void watch_failures(void)
{
    signal(SIGALRM, on_alarm);
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(keep_current);
}

/* Runs the input from memory of exactly its size, so a read past it is detected. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (copy == NULL)
        abort();
    if (size > 0)
        memcpy(copy, data, size);
    current = (struct kept){copy, size};
    alarm(MOST_SECONDS);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* ---- inputs ---- */

static void take_file(const char *name)
{
    struct kept kept = {malloc(MOST_BYTES), 0};
    FILE *file = fopen(name, "rb");

    if (file == NULL || kept.data == NULL) {
        perror(name);
        exit(2);
    }
    kept.size = fread(kept.data, 1, MOST_BYTES, file);
    fclose(file);
    if (input_count == MOST_INPUTS)
        free(kept.data);
    else
        inputs[input_count++] = kept;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* In order of names, so that a run is the same everywhere. */
static void take(const char *name)
{
    struct dirent **entries = NULL;
    struct stat what;
    int count, i;

    if (stat(name, &what) != 0 || !S_ISDIR(what.st_mode)) {
        take_file(name);
        return;
    }
    count = scandir(name, &entries, NULL, by_name);
    for (i = 0; i < count; i++) {
        char path[4096];

        snprintf(path, sizeof path, "%s/%s", name, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            take_file(path);
        free(entries[i]);
    }
    free(entries);
}

/* ---- random mutations ---- */

static uint64_t state = 1;

/* 0 .. below - 1, by xorshift. */
static size_t dice(size_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state >> 11) % below;
}

/* Makes room for `count` bytes at `at`, or for fewer at the size limit. Returns how many. */
static size_t widen(uint8_t *data, size_t *size, size_t at, size_t count)
{
    if (count > MOST_BYTES - *size)
        count = MOST_BYTES - *size;
    memmove(data + at + count, data + at, *size - at);
    *size += count;
    return count;
}

static void change(uint8_t *data, size_t *size)
{
    static const uint8_t notable[] = {0, 1, 2, 3, 4, 7, 8, 16, 127, 128, 254, 255};
    const struct kept *other = &inputs[dice(input_count)];
    const size_t at = dice(*size + 1);
    size_t count = 1 + dice(16);
    size_t from;

    switch (*size == 0 ? 3 : dice(6)) {
    case 0:
        data[at % *size] ^= (uint8_t)(1u << dice(8));
        break;
    case 1:
        data[at % *size] = notable[dice(sizeof notable)];
        break;
    case 2:
        data[at % *size] = (uint8_t)dice(256);
        break;
    case 3:
        for (count = widen(data, size, at, count); count > 0; count--)
            data[at + count - 1] = (uint8_t)dice(256);
        break;
    case 4:
        if (count > *size - at)
            count = *size - at;
        memmove(data + at, data + at + count, *size - at - count);
        *size -= count;
        break;
    case 5: /* a piece of another input */
        from = dice(other->size + 1);
        if (count > other->size - from)
            count = other->size - from;
        count = widen(data, size, at, count);
        if (count > 0)
            memcpy(data + at, other->data + from, count);
        break;
    }
}

/* Defined by a fuzzer with structured inputs. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed)
    __attribute__((weak));

static void change_often(uint8_t *data, size_t *size)
{
    size_t changes;

    if (LLVMFuzzerCustomMutator != NULL && dice(4) > 0)
        *size = LLVMFuzzerCustomMutator(data, *size, MOST_BYTES, (unsigned)dice(1u << 31));
    else
        for (changes = 1 + dice(8); changes > 0; changes--)
            change(data, size);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static unsigned long run_changed(double seconds)
{
    static uint8_t data[MOST_BYTES];
    const double end = now() + seconds;
    unsigned long runs = 0;

    for (; now() < end; runs++) {
        const struct kept *kept = &inputs[dice(input_count)];
        size_t size = kept->size;

        memcpy(data, kept->data, size);
        change_often(data, &size);
        run(data, size);
    }
    return runs;
}

int main(int argc, char **argv)
{
    double seconds = 0, began;
    unsigned long runs;
    size_t n;
    int i;

    watch_failures();
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "-seed") == 0 && i + 1 < argc)
            state = strtoull(argv[++i], NULL, 0) | 1;
        else
            take(argv[i]);
    }
    began = now();
    for (n = 0; n < input_count; n++)
        run(inputs[n].data, inputs[n].size);
    if (input_count == 0) {
        fprintf(stderr, "%s: there is no input\n", argv[0]);
        return 2;
    }
    runs = run_changed(seconds);
    printf("%s: %zu inputs and %lu changed ones in %.1f s\n", argv[0], input_count, runs,
           now() - began);
    for (n = 0; n < input_count; n++)
        free(inputs[n].data);
    return 0;
}
