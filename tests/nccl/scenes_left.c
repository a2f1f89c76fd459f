/* What a process of tests/nccl/scenes.c has: descriptors, threads, mappings, device memory. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "scenes.h"
#include "symwin.h"

/* A function of the libsymwin.so that the process has; fails without one. */
static void of_symwin(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);

    if (symbol == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    memcpy(function, &symbol, sizeof symbol);
}

/* Entries of a directory of /proc; of threads, those that are not the emulated driver's. */
static int entries(const char *path, int are_threads)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int count = 0;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char name[300], text[32] = "";
        FILE *file = NULL;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "/proc/%s/comm", entry->d_name); /* see tap.h */
        if (are_threads)
            file = fopen(name, "r");
        if (file != NULL) {
            (void)!fgets(text, sizeof text, file);
            fclose(file);
        }
        count += strcmp(text, "emu-worker\n") != 0;
    }
    if (directory != NULL)
        closedir(directory);
    return count;
}

static int mapped(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "/dev/shm/") != NULL || strstr(line, "/memfd:") != NULL;
    if (file != NULL)
        fclose(file);
    return count;
}

static size_t used(void)
{
    size_t available = 0, total = 0;

    EXPECT(cu.cuMemGetInfo(&available, &total), CUDA_SUCCESS);
    return total - available;
}

size_t used_on(const struct rank *rank)
{
    (void)rank; /* its context is current */
    return used();
}

const struct fake_engine *engine_find(void)
{
    const struct fake_engine *(*get)(void);
    void *symbol = dlsym(RTLD_DEFAULT, "fake_engine");

    memcpy(&get, &symbol, sizeof get);
    return symbol != NULL ? get() : NULL;
}

struct left left_now(void)
{
    const struct fake_engine *engine = engine_find();
    struct sw_emu_live live;
    __typeof__(&symwin_mem_trim) trim;
    struct left left = {0};
    CUcontext current, context;
    int i;

    of_symwin("symwin_mem_trim", &trim);
    EXPECT(trim(SYMWIN_DEVICE_ALL, 0), SYMWIN_OK);
    EXPECT(cu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
    for (i = 0; i < DEVICES; i++) {
        EXPECT(cu.cuDevicePrimaryCtxRetain(&context, i), CUDA_SUCCESS);
        EXPECT(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
        left.used[i] = used();
        EXPECT(cu.cuDevicePrimaryCtxRelease(i), CUDA_SUCCESS);
    }
    EXPECT(cu.cuCtxSetCurrent(current), CUDA_SUCCESS);
    left.fds = entries("/proc/self/fd", 0);
    left.threads = entries("/proc/self/task", 1);
    left.maps = mapped();
    if (engine != NULL) {
        engine->live_count(&live);
        left.streams = live.streams;
        left.host_blocks = live.host_blocks;
    }
    return left;
}

/* What ends in the background has ended. */
struct left left_before(void)
{
    struct left least = left_now();
    int i, d;

    for (i = 0; i < 20; i++) {
        const struct left now = left_now();

        least.fds = now.fds < least.fds ? now.fds : least.fds;
        least.threads = now.threads < least.threads ? now.threads : least.threads;
        least.maps = now.maps < least.maps ? now.maps : least.maps;
        least.streams = now.streams < least.streams ? now.streams : least.streams;
        least.host_blocks = now.host_blocks < least.host_blocks ? now.host_blocks
                                                                : least.host_blocks;
        for (d = 0; d < DEVICES; d++)
            least.used[d] = now.used[d] < least.used[d] ? now.used[d] : least.used[d];
        usleep(2000);
    }
    return least;
}

static int uses_more(const struct left *now, const struct left *before)
{
    int i, more = 0;

    for (i = 0; i < DEVICES; i++)
        more |= now->used[i] > before->used[i];
    return more;
}

void left_is(const struct left *before, const char *scene)
{
    const long long until = now_us() + 5000000;
    struct left now = left_now();
    int i;

    while ((now.fds > before->fds || now.threads > before->threads || now.maps > before->maps ||
            now.streams > before->streams || now.host_blocks > before->host_blocks ||
            uses_more(&now, before)) &&
           now_us() < until) {
        usleep(2000);
        now = left_now();
    }
    if (!EXPECT(now.fds <= before->fds, 1) + !EXPECT(now.threads <= before->threads, 1) +
        !EXPECT(now.maps <= before->maps, 1))
        fprintf(stderr, "%s: descriptors %d, were %d; threads %d, were %d; mappings %d, were %d\n",
                scene, now.fds, before->fds, now.threads, before->threads, now.maps, before->maps);
    EXPECT(now.streams <= before->streams, 1);
    EXPECT(now.host_blocks <= before->host_blocks, 1);
    for (i = 0; i < DEVICES; i++)
        EXPECT(now.used[i] <= before->used[i], 1);
}

int dumped(const char *word, const char *pair)
{
    __typeof__(&symwin_dump) dump;
    const int fd = memfd_create("dump", MFD_CLOEXEC);
    FILE *file = fdopen(fd, "r+");
    char line[1024];
    int count = 0;

    of_symwin("symwin_dump", &dump);
    EXPECT(dump(fd), SYMWIN_OK);
    lseek(fd, 0, SEEK_SET);
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        count += strncmp(line, word, strlen(word)) == 0 && line[strlen(word)] == ' ' &&
                 (pair == NULL || strstr(line, pair) != NULL);
    if (file != NULL)
        fclose(file);
    return count;
}
