/* symwin over MPI: one id for all ranks of an MPI communicator. Header-only, so that the library
 * itself does not link MPI.
 *
 *     MPI_Init(&argc, &argv);
 *     symwin_unique_id_mpi(MPI_COMM_WORLD, &id);
 *     symwin_comm_create(&id, nranks, rank, device, NULL, &comm);
 */
#ifndef SYMWIN_MPI_H
#define SYMWIN_MPI_H

#include <limits.h>
#include <mpi.h>

#include "symwin.h"

static inline int symwin_mpi_allgather(void *context, const void *mine, void *all, size_t bytes)
{
    const MPI_Comm mpi = *(MPI_Comm *)context;

    if (bytes > INT_MAX)
        return 1;
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi) != MPI_SUCCESS;
}

/* Creates an id on rank 0 and gives it to all ranks. Collective over `mpi`. Returns the statuses of
 * symwin_unique_id_share(), and SYMWIN_INVALID if MPI fails. */
static inline symwin_status symwin_unique_id_mpi(MPI_Comm mpi, symwin_unique_id *id)
{
    int nranks = 0, rank = 0;

    if (MPI_Comm_size(mpi, &nranks) != MPI_SUCCESS || MPI_Comm_rank(mpi, &rank) != MPI_SUCCESS)
        nranks = 0; /* symwin_unique_id_share() refuses it */
    return symwin_unique_id_share(nranks, rank, symwin_mpi_allgather, &mpi, id);
}

/* This process's index among the processes of `mpi` on its host, to choose a device. Collective
 * over `mpi`. -1: MPI failed. */
static inline int symwin_mpi_local_rank(MPI_Comm mpi)
{
    MPI_Comm host;
    int rank = -1;

    if (MPI_Comm_split_type(mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) != MPI_SUCCESS)
        return -1;
    MPI_Comm_rank(host, &rank);
    MPI_Comm_free(&host);
    return rank;
}

#endif
