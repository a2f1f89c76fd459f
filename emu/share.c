/* Export and import. share.h describes a descriptor's contents. A fabric handle has an object's id
 * and the place of its file, which every process of the same user can open, as hosts joined by
 * NVLink reach each other's memory. A fabric handle holds nothing: once that process has released
 * the object, or has died, the import fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "team.h"

static const char passport_magic[16] = "symwin-emu-mem2";
static const char fabric_magic[16] = "symwin-emu-fab2";

/* With these seals no process can shorten the file under a mapping. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* FNV-1a: against mistakes, not against malice. */
static uint64_t digest_of(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t digest = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ p[i]) * 0x100000001b3u;
    return digest;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Moves a descriptor that the program did not ask for to a high number: programs rely on low
 * ones. */
static int move_high(int fd)
{
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, 256);

    if (high < 0)
        return fd;
    close(fd);
    return high;
}

int emu_file_reopen(int fd, int high)
{
    char path[32];
    int opened;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    opened = open(path, O_RDWR | O_CLOEXEC);
    return opened >= 0 && high ? move_high(opened) : opened;
}

int emu_file_is_same(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int emu_file_lock(int fd, off_t byte, int type, int wait)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;

    do
        result = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    while (result != 0 && errno == EINTR);
    return result;
}

int emu_file_is_locked(int fd, off_t first, off_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = count};

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* ---- passports ------------------------------------------------------------------------------- */

/* Size of what precedes the passport. */
static size_t contents_of(const struct emu_passport *passport)
{
    return passport->kind == EMU_PHYSICAL ? passport->bytes
                                          : emu_team_bytes(passport->bytes, passport->devices);
}

CUresult emu_passport_issue(struct emu_passport *passport, int *out)
{
    const off_t memory = (off_t)contents_of(passport);
    int fd = memfd_create("symwin-emu", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(passport->magic, passport_magic, sizeof passport->magic);
    passport->digest = digest_of(passport, offsetof(struct emu_passport, digest));
    if (ftruncate(fd, memory + EMU_PASSPORT_BYTES) != 0 ||
        pwrite(fd, passport, sizeof *passport, memory) != (ssize_t)sizeof *passport ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        const int error = errno;

        close(fd);
        return error == ENOSPC || error == ENOMEM || error == EFBIG ? CUDA_ERROR_OUT_OF_MEMORY
                                                                    : CUDA_ERROR_OPERATING_SYSTEM;
    }
    *out = move_high(fd);
    return CUDA_SUCCESS;
}

/* UNKNOWN for anything but a file of emu_passport_issue() for an object with that handle type, as
 * an H200's driver answers (docs/conformance.md). */
static CUresult passport_read(int fd, unsigned type, struct emu_passport *passport)
{
    struct stat file;
    off_t memory;

    if (fcntl(fd, F_GET_SEALS) != SEALS || fstat(fd, &file) != 0 ||
        file.st_size < EMU_PASSPORT_BYTES)
        return CUDA_ERROR_UNKNOWN;
    memory = file.st_size - EMU_PASSPORT_BYTES;
    if (pread(fd, passport, sizeof *passport, memory) != (ssize_t)sizeof *passport ||
        memcmp(passport->magic, passport_magic, sizeof passport->magic) != 0 ||
        passport->digest != digest_of(passport, offsetof(struct emu_passport, digest)) ||
        (passport->handle_types & type) == 0 || passport->bytes == 0 ||
        !emu_is_granular(passport->bytes))
        return CUDA_ERROR_UNKNOWN;
    if (passport->kind != EMU_PHYSICAL &&
        (passport->kind != EMU_MULTICAST || passport->devices > EMU_MAX_DEVICES))
        return CUDA_ERROR_UNKNOWN;
    return contents_of(passport) == (size_t)memory ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* The descriptor number may refer to anything by now: the open must not block and must not acquire
 * a controlling terminal. */
int emu_place_open(const struct emu_place *place, enum emu_object_kind kind, unsigned types,
                   struct emu_passport *passport)
{
    char path[48];
    int fd;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    if (passport_read(fd, types, passport) != CUDA_SUCCESS || passport->kind != (uint32_t)kind ||
        memcmp(&passport->id, &place->id, sizeof place->id) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Before an import of a multicast object. Without the lock. */
static CUresult import_fault(enum emu_object_kind kind)
{
    const struct CUctx_st *ctx = emu_current();
    struct emu_fault fault;

    if (kind != EMU_MULTICAST)
        return CUDA_SUCCESS;
    fault = emu_fault_take(SW_EMU_FAULT_IMPORT, ctx != NULL ? ctx->device : -1);
    emu_fault_stall(fault.stall_ms);
    return fault.answer;
}

static CUresult import_fd(int fd, CUmemGenericAllocationHandle *handle)
{
    struct emu_passport passport;
    struct emu_object *object;
    CUresult result = passport_read(fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &passport);

    if (result == CUDA_SUCCESS)
        result = import_fault((enum emu_object_kind)passport.kind);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    result = passport.kind == EMU_PHYSICAL ? emu_physical_import(&passport, fd, &object)
                                           : emu_multicast_import(&passport, fd, &object);
    if (result == CUDA_SUCCESS)
        *handle = object->handle;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* ---- fabric handles -------------------------------------------------------------------------- */

struct fabric {
    char magic[16];
    struct emu_place place;
    uint32_t kind, zero[3];
    uint64_t digest;
};
_Static_assert(sizeof(struct fabric) == sizeof(CUmemFabricHandle), "as large as the driver's");

static CUresult export_fabric(struct emu_object *object, CUmemFabricHandle *out)
{
    struct fabric f = {.kind = object->kind};

    if (object->kind == EMU_PHYSICAL) {
        emu_physical_place((struct emu_physical *)object, &f.place);
    } else {
        const CUresult result = emu_multicast_place((struct emu_multicast *)object, &f.place);

        if (result != CUDA_SUCCESS)
            return result;
    }
    memcpy(f.magic, fabric_magic, sizeof f.magic);
    f.digest = digest_of(&f, offsetof(struct fabric, digest));
    memcpy(out, &f, sizeof f);
    return CUDA_SUCCESS;
}

/* Under the lock. An object of this process is not searched elsewhere. */
static CUresult import_from(const struct emu_place *place, enum emu_object_kind kind,
                            struct emu_object **object)
{
    struct emu_object *known = emu_object_named(kind, &place->id);
    struct emu_place here = *place;
    struct emu_passport passport;
    CUresult result;
    int fd;

    if (known != NULL && kind == EMU_MULTICAST) {
        emu_object_ref(known);
        *object = known;
        return CUDA_SUCCESS;
    }
    if (known != NULL)
        emu_physical_place((struct emu_physical *)known, &here);
    else if (place->pid == getpid())
        return CUDA_ERROR_INVALID_VALUE;
    fd = emu_place_open(&here, kind, CU_MEM_HANDLE_TYPE_FABRIC, &passport);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = kind == EMU_PHYSICAL ? emu_physical_visit(&passport, fd, object)
                                  : emu_multicast_import(&passport, fd, object);
    close(fd);
    return result;
}

static CUresult import_fabric(const CUmemFabricHandle *in, CUmemGenericAllocationHandle *handle)
{
    struct emu_object *object;
    struct fabric f;
    CUresult result;

    memcpy(&f, in, sizeof f);
    if (memcmp(f.magic, fabric_magic, sizeof f.magic) != 0 ||
        f.digest != digest_of(&f, offsetof(struct fabric, digest)) ||
        (f.kind != EMU_PHYSICAL && f.kind != EMU_MULTICAST))
        return CUDA_ERROR_INVALID_VALUE;
    result = import_fault((enum emu_object_kind)f.kind);
    if (result != CUDA_SUCCESS)
        return result;
    /* A fabric handle holds nothing: end memory whose last holder, a descriptor, was closed. */
    emu_physical_sweep();
    pthread_mutex_lock(&emu_memory_mutex);
    result = import_from(&f.place, (enum emu_object_kind)f.kind, &object);
    if (result == CUDA_SUCCESS)
        *handle = object->handle;
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

/* ---- entry points ---------------------------------------------------------------------------- */

static CUresult fabric_ok(void)
{
    if (emu_machine.fabric == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    return emu_machine.fabric == 1 ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult emu_handle_types_ok(unsigned long long types)
{
    const unsigned long long windows = CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT;
    const unsigned long long here = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                    CU_MEM_HANDLE_TYPE_FABRIC;

    if ((types & ~(windows | here)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((types & windows) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    return (types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ? fabric_ok() : CUDA_SUCCESS;
}

/* A GPU's driver does not export imported memory (docs/hardware.md). */
static int is_import(const struct emu_object *object)
{
    return object->kind == EMU_PHYSICAL && ((const struct emu_physical *)object)->foreign;
}

CUresult sw_emu_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type,
                                             unsigned long long flags)
{
    CUresult result = emu_enter_unless(EMU_cuMemExportToShareableHandle,
                                       shareable == NULL || flags != 0 ||
                                           (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                                            type != CU_MEM_HANDLE_TYPE_FABRIC));
    struct emu_object *object;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&emu_memory_mutex);
    object = emu_object_find(handle);
    if (object == NULL || (object->handle_types & type) == 0 || is_import(object))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        result = export_fabric(object, shareable);
    else if (object->kind == EMU_PHYSICAL)
        result = emu_physical_export((struct emu_physical *)object, shareable);
    else
        result = emu_multicast_export((struct emu_multicast *)object, shareable);
    pthread_mutex_unlock(&emu_memory_mutex);
    return result;
}

CUresult sw_emu_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                               void *shareable, CUmemAllocationHandleType type)
{
    CUresult result = emu_enter_unless(EMU_cuMemImportFromShareableHandle,
                                       handle == NULL || shareable == NULL);

    if (result != CUDA_SUCCESS)
        return result;
    switch (type) {
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: /* the pointer is the descriptor */
        if ((intptr_t)shareable < 0 || (intptr_t)shareable > INT32_MAX)
            return CUDA_ERROR_UNKNOWN;
        return import_fd((int)(intptr_t)shareable, handle);
    case CU_MEM_HANDLE_TYPE_FABRIC:
        result = fabric_ok();
        return result == CUDA_SUCCESS ? import_fabric(shareable, handle) : result;
    case CU_MEM_HANDLE_TYPE_WIN32:
    case CU_MEM_HANDLE_TYPE_WIN32_KMT:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_MEM_HANDLE_TYPE_NONE:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
