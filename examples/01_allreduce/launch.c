/* Ranks as threads of one process, as processes of a launcher, or as processes that this one
 * forks. */
#if !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L /* fork, setenv */
#endif
#include "launch.h"

#include "../common.h"

#ifdef USE_MPI
#include "symwin/mpi.h"
#endif

#ifdef USE_MPI
/* The ranks of a process are threads, but only the first one calls MPI. */
static int ask_mpi(symwin_launch_info *info)
{
    int level = -1;

    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return 0;
    if (level < MPI_THREAD_FUNNELED) {
        fprintf(stderr, "%s: this MPI takes no program with threads\n", program);
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &info->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &info->nranks);
    info->local_rank = symwin_mpi_local_rank(MPI_COMM_WORLD);
    return 1;
}
#endif

static int ask_environment(symwin_launch_info *info)
{
    if (symwin_launch_query(info) == SYMWIN_OK)
        return 1;
    fprintf(stderr, "%s: %s\n", program, symwin_last_error());
    return 0;
}

int launch_begin(const struct options *options, struct launch *launch)
{
    const int threads = options->nthreads > 0 ? options->nthreads : 1;
    symwin_launch_info info = {.launcher = NULL, .nranks = 1};

    launch->forked = options->nproc > 0;
    if (launch->forked) {
        const int status = common_fork(program, options->nproc);

        if (status >= 0)
            return status;
    }
#ifdef USE_MPI
    launch->mpi = !launch->forked; /* forked processes do not use MPI */
    if (!(launch->mpi ? ask_mpi(&info) : ask_environment(&info)))
        return EXIT_FAILURE;
#else
    if (!ask_environment(&info))
        return EXIT_FAILURE;
#endif
    launch->processes = info.nranks;
    launch->count = info.nranks > 1 ? threads : options->nthreads; /* 0: one per device */
    launch->nranks = info.nranks * launch->count;
    launch->first = info.rank * launch->count;
    launch->local_count = (info.local_nranks > 0 ? info.local_nranks : info.nranks) * launch->count;
    launch->local_first = (info.local_rank >= 0 ? info.local_rank : info.rank) * launch->count;
    return -1;
}

symwin_status launch_id(struct launch *launch, symwin_unique_id *id)
{
    symwin_status status;

    if (launch->processes == 1)
        return symwin_unique_id_create(id);
#ifdef USE_MPI
    if (launch->mpi)
        return symwin_unique_id_mpi(MPI_COMM_WORLD, id);
#endif
    status = symwin_unique_id_from_env(id);
    launch->alone = launch->forked && status != SYMWIN_OK;
    return status;
}

int launch_end(const struct launch *launch, int ok)
{
#ifdef USE_MPI
    if (launch->mpi)
        MPI_Finalize();
#endif
    return ok ? EXIT_SUCCESS : launch->alone ? COMMON_ALONE : EXIT_FAILURE;
}
