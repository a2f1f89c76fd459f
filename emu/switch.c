/* The switch that all devices are joined by: its slots for multicast objects.
 *
 * An object takes a slot at its first bind and keeps it until it ends. Processes that share a
 * machine share the slots. A slot is then a byte of /dev/null that every process with a binding in
 * the object has locked: nothing has to be created or removed, and the system takes the lock from a
 * process that ends.
 */
#include <fcntl.h>
#include <unistd.h>

#include "mcast.h"
#include "src/base/base.h"

/* Of this process alone. Under emu_memory_mutex. */
static int slots_taken;

/* The first of the machine's bytes; behind those of the slots is one that whoever takes a slot has
 * locked. Any user may lock bytes of /dev/null, hence the user's id. */
static off_t machine_bytes(void)
{
    const off_t user = (off_t)(getuid() & 0x3fffffff);

    _Static_assert(SW_EMU_MACHINE_MOST < 1 << 22 && SW_EMU_SLOTS_MOST < 1 << 11, "63 bits");
    return user << 33 | (off_t)emu_machine.machine << 11;
}

/* The number of a free slot, from 1 on; 0: none. */
static uint32_t slot_find(int fd)
{
    for (int i = 0; i < emu_machine.multicast_slots; i++)
        if (!emu_file_is_locked(fd, machine_bytes() + i, 1))
            return (uint32_t)i + 1;
    return 0;
}

/* Takes the slot that another process has found for the object, or else a free one. */
static CUresult slot_lock(struct emu_multicast *mc, int fd)
{
    const off_t gate = machine_bytes() + SW_EMU_SLOTS_MOST;
    uint32_t slot = emu_team_slot(&mc->team);

    if (emu_file_lock(fd, gate, F_WRLCK, 1) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (slot == 0)
        slot = slot_find(fd);
    if (slot > 0 && emu_file_lock(fd, machine_bytes() + slot - 1, F_RDLCK, 0) != 0)
        slot = 0;
    (void)emu_file_lock(fd, gate, F_UNLCK, 0);
    if (slot == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return emu_team_slot_set(&mc->team, slot) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult shared_take(struct emu_multicast *mc)
{
    const int low = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fd = low >= 0 ? fcntl(low, F_DUPFD_CLOEXEC, 256) : -1; /* programs rely on low numbers */
    CUresult result;

    if (low < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (fd >= 0)
        close(low);
    else
        fd = low;
    result = slot_lock(mc, fd);
    if (result == CUDA_SUCCESS)
        mc->slot_fd = fd;
    else
        close(fd);
    return result;
}

CUresult emu_slot_take(struct emu_multicast *mc)
{
    CUresult result = CUDA_SUCCESS;

    if (mc->has_slot)
        return CUDA_SUCCESS;
    if (emu_machine.machine != 0)
        result = shared_take(mc);
    else if (slots_taken >= emu_machine.multicast_slots)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        slots_taken++;
    mc->has_slot = result == CUDA_SUCCESS;
    return result;
}

void emu_slot_give(struct emu_multicast *mc)
{
    if (mc->slot_fd >= 0)
        close(mc->slot_fd);
    else if (mc->has_slot)
        slots_taken--;
    mc->slot_fd = -1;
    mc->has_slot = 0;
}
