/* What the tests of the host API share beyond harness.h: expectations about a status and its text,
 * bytes in device memory, a clock. */
#ifndef SYMWIN_TESTS_HOST_CASES_H
#define SYMWIN_TESTS_HOST_CASES_H

#include <stdint.h>
#include <time.h>

#include "harness.h"

enum { MIB = 1 << 20, GRANULE = 2 * MIB }; /* of the emulated driver, and of today's GPUs */

/* Whether the thread's last error contains every word of a list like "rank 1|4096". */
HARNESS_UNUSED int host_error_has(const char *words)
{
    const char *error = symwin_last_error();
    char word[128];

    while (*words != '\0') {
        const size_t length = strcspn(words, "|");

        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (strstr(error, word) == NULL)
            return 0;
        words += length;
        words += *words == '|';
    }
    return 1;
}

/* One TAP line: the call gave `want` and, if that is an error, a sentence with all of `words`. */
HARNESS_UNUSED int host_expect(const char *name, symwin_status got, symwin_status want,
                               const char *words)
{
    const int right = got == want && (want == SYMWIN_OK || host_error_has(words));

    if (right)
        tap_ok(1, "%s: %s", name, symwin_status_name(want));
    else
        tap_ok(0, "%s: want %s with \"%s\", got %s: %s", name, symwin_status_name(want), words,
               symwin_status_name(got), got == SYMWIN_OK ? "" : symwin_last_error());
    return right;
}

/* For steps that are no test themselves. */
HARNESS_UNUSED void host_must(symwin_status status, const char *what)
{
    if (status == SYMWIN_OK)
        return;
    printf("Bail out! %s: %s: %s\n", what, symwin_status_name(status), symwin_last_error());
    fflush(stdout);
    exit(1);
}

HARNESS_UNUSED void host_must_cuda(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("Bail out! %s: CUresult %d\n", what, (int)result);
    fflush(stdout);
    exit(1);
}

HARNESS_UNUSED void *host_alloc(int device, size_t bytes)
{
    void *ptr = NULL;

    host_must(symwin_mem_alloc(device, bytes, 0, &ptr), "symwin_mem_alloc");
    return ptr;
}

/* Copies either way and waits. */
HARNESS_UNUSED symwin_status host_copy(int device, void *dst, const void *src, size_t bytes)
{
    const symwin_status status = symwin_memcpy(device, dst, src, bytes, NULL);

    return status == SYMWIN_OK ? symwin_stream_synchronize(device, NULL) : status;
}

HARNESS_UNUSED void host_put_u32(int device, void *dst, uint32_t value)
{
    host_must(host_copy(device, dst, &value, sizeof value), "copy to the device");
}

HARNESS_UNUSED uint32_t host_get_u32(int device, const void *src)
{
    uint32_t value = 0;

    host_must(host_copy(device, &value, src, sizeof value), "copy from the device");
    return value;
}

/* As if calls of so many blocks more had been made, outside captures, and had ended. */
HARNESS_UNUSED void host_count_on(symwin_comm *comm, uint32_t blocks)
{
    comm->done += blocks;
    host_put_u32(comm->device, (void *)(uintptr_t)comm->done_address, comm->done);
}

HARNESS_UNUSED void *host_at(void *base, size_t offset)
{
    return (unsigned char *)base + offset;
}

/* Physical memory of "another allocator": created, mapped and freed by the driver's calls alone. */
struct host_raw {
    CUdeviceptr ptr;
    size_t bytes;
    CUmemGenericAllocationHandle handle; /* 0: released */
};

HARNESS_UNUSED struct host_raw host_raw_alloc(int device, size_t bytes, unsigned handle_types)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct host_raw raw = {.bytes = bytes};

    prop.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = access.location.id = device;
    prop.requestedHandleTypes = (CUmemAllocationHandleType)handle_types;
    host_must_cuda(sw_drv.cuMemCreate(&raw.handle, bytes, &prop, 0), "cuMemCreate");
    host_must_cuda(sw_drv.cuMemAddressReserve(&raw.ptr, bytes, 0, 0, 0), "cuMemAddressReserve");
    host_must_cuda(sw_drv.cuMemMap(raw.ptr, bytes, 0, raw.handle, 0), "cuMemMap");
    host_must_cuda(sw_drv.cuMemSetAccess(raw.ptr, bytes, &access, 1), "cuMemSetAccess");
    return raw;
}

HARNESS_UNUSED void host_raw_release_handle(struct host_raw *raw)
{
    host_must_cuda(sw_drv.cuMemRelease(raw->handle), "cuMemRelease");
    raw->handle = 0;
}

HARNESS_UNUSED void host_raw_free(struct host_raw *raw)
{
    host_must_cuda(sw_drv.cuMemUnmap(raw->ptr, raw->bytes), "cuMemUnmap");
    host_must_cuda(sw_drv.cuMemAddressFree(raw->ptr, raw->bytes), "cuMemAddressFree");
    if (raw->handle != 0)
        host_raw_release_handle(raw);
    raw->ptr = 0;
}

HARNESS_UNUSED int64_t host_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

HARNESS_UNUSED void host_pause_ms(int ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* Splitmix64: the same numbers everywhere. */
HARNESS_UNUSED uint64_t host_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A fat binary of kernels for GPUs: that which the environment's `variable` names, or `file` where make gpu-tests puts it,
 * ../obj/tests beside the program. It stays for as long as the process lives. Without it the test is skipped. */
HARNESS_UNUSED const void *host_fatbin(const char *variable, const char *file)
{
    const char *named = getenv(variable);
    char path[4096] = "", why[128], *end, *bytes = NULL;
    FILE *stream;
    long size;

    snprintf(why, sizeof why, "there is no %s: make gpu-tests, or %s", file, variable);
    if (readlink("/proc/self/exe", path, sizeof path - 128) < 0)
        path[0] = '\0';
    end = strrchr(path, '/');
    end = end != NULL ? end + 1 : path;
    snprintf(end, sizeof path - (size_t)(end - path), "../obj/tests/%s", file);
    stream = fopen(named != NULL ? named : path, "rb");
    if (stream == NULL)
        tap_skip_all(why);
    if (fseek(stream, 0, SEEK_END) == 0 && (size = ftell(stream)) > 0 &&
        fseek(stream, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t)size);
        if (bytes != NULL && fread(bytes, 1, (size_t)size, stream) != (size_t)size) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(stream);
    if (bytes == NULL) {
        fprintf(stderr, "%s: cannot be read\n", file);
        exit(1);
    }
    return bytes;
}

#endif
