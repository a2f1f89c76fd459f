/* The state of a multicast object that all its processes share. See team.h. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "team.h"

/* Locked bytes of the file. Seats lie beyond the end of any file, and are not limited in number. */
#define STATE_LOCK 0
#define HAS_SLOT 1
#define SEATS ((off_t)1 << 48)

static uint64_t most_binds(size_t object_bytes, unsigned devices)
{
    /* Bindings that do not overlap, as many whose memory was freed, and some more. */
    return (uint64_t)2 * (object_bytes / EMU_GRANULE) * devices + 64;
}

size_t emu_team_bytes(size_t object_bytes, unsigned devices)
{
    const size_t bytes = sizeof(struct emu_team_state) +
                         most_binds(object_bytes, devices) * sizeof(struct emu_team_bind);

    return (bytes + (EMU_PASSPORT_BYTES - 1)) / EMU_PASSPORT_BYTES * EMU_PASSPORT_BYTES;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct emu_team_state *state_map(size_t bytes, int fd)
{
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *state = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);

    return state != MAP_FAILED ? state : NULL;
}

CUresult emu_team_begin(struct emu_team *team, size_t object_bytes, unsigned devices)
{
    team->bytes = emu_team_bytes(object_bytes, devices);
    team->most_binds = most_binds(object_bytes, devices);
    team->fd = -1;
    team->seat = 0;
    team->state = state_map(team->bytes, -1);
    return team->state != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void emu_team_end(struct emu_team *team)
{
    munmap(team->state, team->bytes);
    if (team->fd >= 0)
        close(team->fd); /* releases all its locks */
}

/* ---- seats ----------------------------------------------------------------------------------- */

/* With the state locked. */
static CUresult seat_take(struct emu_team *team)
{
    const uint64_t seat = team->state->last_seat + 1;

    if (emu_file_lock(team->fd, SEATS + (off_t)seat, F_WRLCK, 0) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    team->state->last_seat = seat;
    team->seat = seat;
    return CUDA_SUCCESS;
}

int emu_team_is_seated(const struct emu_team *team, uint64_t seat)
{
    return seat == team->seat ||
           (team->fd >= 0 && emu_file_is_locked(team->fd, SEATS + (off_t)seat, 1));
}

uint32_t emu_team_slot(const struct emu_team *team)
{
    return team->fd < 0 || emu_file_is_locked(team->fd, HAS_SLOT, 1) ? team->state->slot : 0;
}

int emu_team_slot_set(struct emu_team *team, uint32_t slot)
{
    if (team->fd >= 0 && slot != 0 && emu_file_lock(team->fd, HAS_SLOT, F_RDLCK, 0) != 0)
        return -1;
    team->state->slot = slot;
    return 0;
}

void emu_team_lock(const struct emu_team *team)
{
    if (team->fd >= 0)
        (void)emu_file_lock(team->fd, STATE_LOCK, F_WRLCK, 1);
}

void emu_team_unlock(const struct emu_team *team)
{
    if (team->fd >= 0)
        (void)emu_file_lock(team->fd, STATE_LOCK, F_UNLCK, 0);
}

/* ---- other processes ------------------------------------------------------------------------- */

CUresult emu_team_share(struct emu_team *team, struct emu_passport *passport)
{
    struct emu_team shared = *team;
    CUresult result = emu_passport_issue(passport, &shared.fd);

    if (result != CUDA_SUCCESS)
        return result;
    shared.state = state_map(shared.bytes, shared.fd);
    if (shared.state == NULL) {
        close(shared.fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(shared.state, team->state,
           sizeof *team->state + team->state->bind_count * sizeof *team->state->binds);
    result = seat_take(&shared);
    if (result == CUDA_SUCCESS && emu_team_slot_set(&shared, shared.state->slot) != 0)
        result = CUDA_ERROR_OPERATING_SYSTEM;
    if (result != CUDA_SUCCESS) {
        emu_team_end(&shared);
        return result;
    }
    for (uint64_t i = 0; i < shared.state->bind_count; i++)
        shared.state->binds[i].seat = shared.seat;
    emu_team_end(team);
    *team = shared;
    return CUDA_SUCCESS;
}

CUresult emu_team_join(struct emu_team *team, const struct emu_passport *passport, int fd)
{
    CUresult result;

    team->bytes = emu_team_bytes(passport->bytes, passport->devices);
    team->most_binds = most_binds(passport->bytes, passport->devices);
    team->fd = emu_file_reopen(fd, 1);
    if (team->fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    team->state = state_map(team->bytes, team->fd);
    if (team->state == NULL) {
        close(team->fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    emu_team_lock(team);
    if (!emu_file_is_locked(team->fd, SEATS, 0)) {
        atomic_store(&team->state->added, 0);
        team->state->bind_count = 0;
    }
    result = seat_take(team);
    emu_team_unlock(team);
    if (result != CUDA_SUCCESS)
        emu_team_end(team);
    return result;
}

/* ---- changes --------------------------------------------------------------------------------- */

struct emu_team_bind *emu_team_bind_new(struct emu_team *team)
{
    struct emu_team_state *state = team->state;

    for (uint64_t i = 0; i < state->bind_count; i++)
        if (atomic_load(&state->binds[i].serial) == 0)
            return &state->binds[i];
    if (state->bind_count == team->most_binds)
        return NULL;
    atomic_store(&state->binds[state->bind_count].serial, 0);
    return &state->binds[state->bind_count++];
}

void emu_team_announce(struct emu_team *team, struct emu_team_bind *bind)
{
    if (bind != NULL)
        atomic_store(&bind->serial, ++team->state->last_serial);
    atomic_fetch_add(&team->state->version, 1);
}

void emu_team_bind_free(struct emu_team *team, struct emu_team_bind *bind)
{
    atomic_store(&bind->serial, 0);
    emu_team_announce(team, NULL);
}
