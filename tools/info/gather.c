/* Facts about driver and devices. Claims of attributes are tested where that is safe: handles with
 * one granule of memory, kernels by loading them. No multicast object is created. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "info.h"
#include "nccl/variables.h"

static const char *error_name(CUresult result)
{
    const char *name = NULL;

    return sw_drv.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL
               ? name
               : "an unknown error";
}

static int attribute(int device, CUdevice_attribute which)
{
    int value = 0;

    return sw_drv.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value
                                                                              : INFO_UNKNOWN;
}

/* ---- handles --------------------------------------------------------------------------------- */

/* A hint at the likely cause. */
static const char *hint(int fabric, CUresult result)
{
    switch (result) {
    case CUDA_ERROR_NOT_PERMITTED:
        return fabric ? " (no IMEX channel?)" : "";
    case CUDA_ERROR_NOT_SUPPORTED:
        return fabric ? " (no fabric manager, or a container without it?)" : "";
    case CUDA_ERROR_OUT_OF_MEMORY:
        return " (is the device's memory in use?)";
    case CUDA_ERROR_OPERATING_SYSTEM:
    case CUDA_ERROR_UNKNOWN:
        return fabric ? "" : " (no descriptor left?)";
    default:
        return "";
    }
}

/* Allocates a granule that can be exported as this type, exports it and imports it again. */
static CUresult try_type(CUmemAllocationProp *prop, size_t bytes, const char **step)
{
    const int fabric = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC;
    CUmemGenericAllocationHandle memory = 0, imported = 0;
    CUmemFabricHandle name;
    int fd = -1;
    CUresult result;

    memset(&name, 0, sizeof name);
    *step = "cuMemCreate";
    result = sw_drv.cuMemCreate(&memory, bytes, prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    *step = "cuMemExportToShareableHandle";
    result = sw_drv.cuMemExportToShareableHandle(fabric ? (void *)&name : (void *)&fd, memory,
                                                 prop->requestedHandleTypes, 0);
    if (result == CUDA_SUCCESS) {
        *step = "cuMemImportFromShareableHandle";
        result = sw_drv.cuMemImportFromShareableHandle(
            &imported, fabric ? (void *)&name : (void *)(uintptr_t)fd, prop->requestedHandleTypes);
    }
    if (result == CUDA_SUCCESS)
        sw_drv.cuMemRelease(imported);
    if (fd >= 0)
        close(fd);
    sw_drv.cuMemRelease(memory);
    return result;
}

static void try_handles(const struct info_device *d, int device, CUmemAllocationHandleType type,
                        CUdevice_attribute claim, struct info_handles *out)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    const char *step = "";
    CUresult result;

    out->claimed = attribute(device, claim);
    if (out->claimed <= 0 || !d->vmm || d->granularity == 0) {
        snprintf(out->words, sizeof out->words, "%s",
                 out->claimed > 0 ? "attribute yes, not tried: no virtual memory management"
                                  : "attribute no, not tried");
        return;
    }
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = type;
    result = try_type(&prop, d->granularity, &step);
    out->tried = 1;
    out->works = result == CUDA_SUCCESS;
    if (out->works)
        snprintf(out->words, sizeof out->words, "attribute yes, tried: works");
    else
        snprintf(out->words, sizeof out->words, "attribute yes, tried: %s gave %s%s", step,
                 error_name(result), hint(type == CU_MEM_HANDLE_TYPE_FABRIC, result));
}

/* ---- devices --------------------------------------------------------------------------------- */

static void read_granularity(struct info_device *d, int device)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (sw_drv.cuMemGetAllocationGranularity(&d->granularity, &prop,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        d->granularity = 0;
    if (sw_drv.cuMemGetAllocationGranularity(&d->granularity_recommended, &prop,
                                             CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        d->granularity_recommended = 0;
}

/* Queries the granularity, for a team of all devices as the driver requires. Creates no object. */
static void ask_multicast(struct info_device *d, int devices)
{
    CUmulticastObjectProp prop = {.numDevices = (unsigned)devices};

    if (d->multicast <= 0 || sw_drv.cuMulticastGetGranularity == NULL)
        return;
    prop.size = d->granularity_recommended;
    prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (sw_drv.cuMulticastGetGranularity(&d->multicast_granularity, &prop,
                                         CU_MULTICAST_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        d->multicast_granularity = 0;
    if (sw_drv.cuMulticastGetGranularity(&d->multicast_recommended, &prop,
                                         CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        d->multicast_recommended = 0;
}

/* Loads the kernels as a communicator of one rank does, and releases them. */
static void try_kernels(struct info_device *d, int device)
{
    struct sw_kernels *kernels = NULL;
    struct sw_scope scope;
    symwin_status status = sw_scope_enter(device, &scope);

    if (status != SYMWIN_OK)
        return;
    d->kernels = sw_kernels_acquire(device, 1, sw_multicast_allowed(0), &kernels) == SYMWIN_OK;
    if (d->kernels)
        sw_kernels_release(kernels);
    sw_scope_leave(&scope);
}

/* Finds the first reason why symwin cannot use the device, in the order a program would meet
 * them. */
static void judge(const struct info_machine *m, struct info_device *d)
{
    enum { PROHIBITED = 2 };
    char *const out = d->problem;

    if (d->compute_mode == PROHIBITED)
        snprintf(out, INFO_TEXT, "its compute mode is \"prohibited\": nvidia-smi -c DEFAULT");
    else if (d->vmm <= 0)
        snprintf(out, INFO_TEXT, "it has no virtual memory management");
    else if (d->granularity == 0)
        snprintf(out, INFO_TEXT, "the driver does not say in which units memory is allocated");
    else if (!d->posix_fd.works)
        snprintf(out, INFO_TEXT, "memory that can be exported as a descriptor: %.500s",
                 d->posix_fd.words);
    else if (!m->driver.has_kernels)
        snprintf(out, INFO_TEXT, "this library was built without nvcc and has no GPU kernels");
    else if (!d->kernels)
        snprintf(out, INFO_TEXT, "the library's kernels do not load on it: %.500s",
                 symwin_last_error());
}

static void gather_device(const struct info_machine *m, int device, struct info_device *d)
{
    symwin_device_info info = {0};
    CUuuid uuid;
    size_t at = 0;

    if (symwin_device_query(device, &info) != SYMWIN_OK) {
        snprintf(d->problem, sizeof d->problem, "%s", symwin_last_error());
        return;
    }
    memcpy(d->name, info.name, sizeof d->name);
    d->total_bytes = info.total_bytes;
    d->multiprocessors = info.multiprocessors;
    d->capability = info.capability;
    d->multicast = info.multicast;
    if (sw_drv.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
        at = (size_t)snprintf(d->uuid, sizeof d->uuid, "GPU-");
        for (size_t i = 0; i < sizeof uuid.bytes; i++)
            at += (size_t)snprintf(d->uuid + at, sizeof d->uuid - at, "%s%02x",
                                   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                   (unsigned)(unsigned char)uuid.bytes[i]);
    }
    d->compute_mode = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    d->vmm = attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    if (d->vmm > 0)
        read_granularity(d, device);
    ask_multicast(d, m->driver.device_count);
    try_handles(d, device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &d->posix_fd);
    try_handles(d, device, CU_MEM_HANDLE_TYPE_FABRIC,
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, &d->fabric);
    if (m->driver.has_kernels)
        try_kernels(d, device);
    judge(m, d);
}

/* ---- links ----------------------------------------------------------------------------------- */

static int link_attribute(int from, int to, CUdevice_P2PAttribute which)
{
    int value = 0;

    if (sw_drv.cuDeviceGetP2PAttribute == NULL ||
        sw_drv.cuDeviceGetP2PAttribute(&value, which, from, to) != CUDA_SUCCESS)
        return INFO_UNKNOWN;
    return value;
}

static void gather_link(int from, int to, struct info_link *link)
{
    if (sw_drv.cuDeviceCanAccessPeer(&link->access, from, to) != CUDA_SUCCESS)
        link->access = INFO_UNKNOWN;
    link->rank = link_attribute(from, to, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK);
    link->native_access = link_attribute(from, to, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
    link->atomics = link_attribute(from, to, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
}

/* ---- multicast ------------------------------------------------------------------------------- */

static void explain_multicast(struct info_machine *m)
{
    const enum sw_multicast_lack lack = sw_multicast_lacks(0);
    const char *const forbidden = sw_multicast_forbidden();
    char *const why = m->multicast_why;
    int claimed = 0;

    for (int i = 0; i < m->driver.device_count; i++)
        claimed += m->devices[i].multicast > 0;
    m->multicast_allowed = lack == SW_LACKS_NOTHING && claimed > 1;
    if (lack == SW_LACKS_CONSENT && forbidden != NULL)
        snprintf(why, INFO_TEXT, "%s is %s", forbidden, getenv(forbidden));
    else
        snprintf(why, INFO_TEXT, "%s",
                 lack == SW_LACKS_CALLS     ? "the driver has not all calls for it"
                 : lack != SW_LACKS_NOTHING ? "SYMWIN_NVLS is not 1"
                 : claimed < 2              ? "it takes two devices that claim it"
                 : sw_driver_is_emulated()  ? "the emulated driver always may"
                                            : "SYMWIN_NVLS is 1, and no variable switches it off");
}

/* ---- variables ------------------------------------------------------------------------------- */

static void add_variable(struct info_machine *m)
{
    if (m->variable_count < INFO_VARIABLES)
        snprintf(m->variables[m->variable_count++], INFO_TEXT, "%s", symwin_last_error());
}

/* Removes the variable that begins the sentence; 0: none does. */
static int remove_named(const char *sentence)
{
    for (int i = 0; i < SW_SETTINGS; i++) {
        const char *name = sw_setting_name((enum sw_setting)i);
        const size_t length = strlen(name);

        if (strncmp(sentence, name, length) == 0 && sentence[length] == ' ')
            return unsetenv(name) == 0;
    }
    return 0;
}

/* Makes an id, which listens at SYMWIN_ADDR and SYMWIN_PORT, and releases it. */
static void try_id(struct info_machine *m)
{
    symwin_unique_id id;

    if (symwin_unique_id_create(&id) != SYMWIN_OK)
        add_variable(m);
    else
        (void)symwin_unique_id_release(&id);
}

/* Checks what the creation of a communicator reads. The first call that needs the driver has
 * checked the rest. Last of all, because each wrong variable is removed to find the next. */
static void check_variables(struct info_machine *m)
{
    struct sw_tuning *tuning = NULL;
    symwin_launch_info launch;

    while (sw_settings_check(NULL, SW_READER_COMM) != SYMWIN_OK) {
        add_variable(m);
        if (!remove_named(m->variables[m->variable_count - 1]))
            break;
    }
    if (sw_tuning_open("symwin_comm_create", m->devices != NULL ? m->devices[0].name : "",
                       m->driver.device_count > 0 ? m->driver.device_count : 1,
                       &tuning) != SYMWIN_OK)
        add_variable(m);
    sw_tuning_close(tuning);
    if (symwin_launch_query(&launch) != SYMWIN_OK)
        add_variable(m);
    else if (sw_launch_is_none() &&
             (getenv("SYMWIN_ADDR") != NULL || getenv("SYMWIN_PORT") != NULL))
        try_id(m);
}

/* ---- variables of libsymwin-nccl.so ---- */

extern char **environ;

static char *next_nccl(struct info_machine *m)
{
    return m->nccl_count < INFO_NCCL ? m->nccl[m->nccl_count++] : NULL;
}

static int is_nccl_variable(const char *name, size_t length)
{
    int i = 0;

    while (i < SW_NCCL_VARIABLES && (strlen(sw_nccl_variables[i].name) != length ||
                                     strncmp(sw_nccl_variables[i].name, name, length) != 0))
        i++;
    return i < SW_NCCL_VARIABLES;
}

/* Wrong values, and names that nothing reads. */
static void check_nccl_variables(struct info_machine *m)
{
    static const char prefix[] = "SYMWIN_NCCL";
    char names[160] = "", text[INFO_TEXT], *to;

    for (int i = 0; i < SW_NCCL_VARIABLES; i++) {
        const size_t at = strlen(names);

        snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "",
                 sw_nccl_variables[i].name);
        if (sw_nccl_variable_is_wrong(&sw_nccl_variables[i], text, sizeof text) &&
            (to = next_nccl(m)) != NULL)
            snprintf(to, INFO_TEXT, "%s", text);
    }
    for (char **at = environ; *at != NULL; at++) {
        const size_t length = strcspn(*at, "=");

        if (strncmp(*at, prefix, strlen(prefix)) == 0 && !is_nccl_variable(*at, length) &&
            (to = next_nccl(m)) != NULL)
            snprintf(to, INFO_TEXT, "%.*s is none of symwin's: those are %s",
                     length < 64 ? (int)length : 64, *at, names);
    }
}

/* ---- all facts ------------------------------------------------------------------------------- */

static int gather(struct info_machine *m)
{
    size_t count;

    if (symwin_driver_query(&m->driver) != SYMWIN_OK) {
        snprintf(m->problem, sizeof m->problem, "%s", symwin_last_error());
        return 1;
    }
    count = (size_t)m->driver.device_count;
    m->devices = calloc(count + 1, sizeof *m->devices);
    m->links = calloc(count * count + 1, sizeof *m->links);
    if (m->devices == NULL || m->links == NULL)
        return 0;
    for (int i = 0; i < m->driver.device_count; i++) {
        gather_device(m, i, &m->devices[i]);
        for (int j = 0; j < m->driver.device_count; j++)
            if (i != j)
                gather_link(i, j, &m->links[(size_t)i * count + (size_t)j]);
    }
    explain_multicast(m);
    return 1;
}

int info_gather(struct info_machine *m)
{
    int good;

    memset(m, 0, sizeof *m);
    good = gather(m);
    if (good)
        check_variables(m);
    check_nccl_variables(m);
    return good;
}

void info_release(struct info_machine *m)
{
    free(m->devices);
    free(m->links);
}

int info_all_usable(const struct info_machine *m)
{
    if (m->problem[0] != '\0' || m->driver.device_count == 0)
        return 0;
    for (int i = 0; i < m->driver.device_count; i++)
        if (m->devices[i].problem[0] != '\0')
            return 0;
    return 1;
}

int info_can_communicate(const struct info_machine *m)
{
    return info_all_usable(m) && m->variable_count == 0;
}

int info_nothing_is_wrong(const struct info_machine *m)
{
    return info_can_communicate(m) && m->nccl_count == 0;
}
