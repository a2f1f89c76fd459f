/* What the launcher says about this process, in environment variables.
 *
 * Each row of the table is a launcher. The first row with both a rank and a number of ranks counts,
 * and nothing is taken from other rows: launchers run inside each other (mpirun in a Slurm job sees
 * Slurm's variables too), and a rank from one with the size from another makes no sense.
 * Only rank 0's address and port and the name of the job may come from other variables.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"

#define HOW_TO_START                                                                               \
    "start the program by mpirun, torchrun or srun, or set SYMWIN_RANK and SYMWIN_NRANKS"

enum column {
    LAUNCHER,
    RANK,
    NRANKS,
    LOCAL_RANK,
    LOCAL_NRANKS,
    NRANKS_ELSE, /* if NRANKS is not set */
    NODE,        /* LOCAL_NRANKS is a list for all hosts; this is the index of this host */
    ALSO,        /* this or the next must be set too */
    ALSO_ELSE,
    COLUMNS
};

static const char *const rows[][COLUMNS] = {
    {"symwin", "SYMWIN_RANK", "SYMWIN_NRANKS", "SYMWIN_LOCAL_RANK", "SYMWIN_LOCAL_NRANKS"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    /* srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too, but tells only in Slurm's own variables which
     * host a process is on. The Hydra of MPICH and of Intel MPI sets MPI_LOCALNRANKS. */
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL,
     "MPI_LOCALNRANKS"},
    /* srun(1), "Output environment variables". An sbatch script has SLURM_PROCID=0 and
     * SLURM_NTASKS=n but is one process. Only what srun starts has a step id. */
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_NTASKS", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEPID"},
};

/* How often this host's torchrun agent has restarted its processes. Each agent counts for itself,
 * so hosts differ after a failure on one (torch/distributed/elastic/agent/server/api.py). */
static const char restarts[] = "TORCHELASTIC_RESTART_COUNT";

/* The variables that name a job: launcher (NULL: any), then the variables. The first row with all
 * of them set counts. */
static const char *const jobs[][1 + 4 + 1] = {
    {NULL, "SYMWIN_JOB"},
    /* The run id is "none" unless the user sets one (--rdzv-id), and restarts keep it. See
     * "Environment Variables" in torchrun's documentation. */
    {"torchrun", "TORCHELASTIC_RUN_ID", restarts, "MASTER_ADDR", "MASTER_PORT"},
    /* "prterun-<host>-<pid>@1" in Open MPI 5.0.11, which sets no other job id (seen under its
     * mpirun). The next row is for releases up to 4 (orte/mca/schizo/ompi). */
    {"openmpi", "PMIX_NAMESPACE"},
    {"openmpi", "OMPI_MCA_ess_base_jobid"},
    /* Intel MPI's UUID of an mpiexec; oneCCL passes it to PSM as the job's. MPICH's Hydra sets no
     * variable that differs between two mpiexec (seen under 5.0.2): the process of mpiexec tells
     * them apart (launcher.c). PMI_JOBID will not do: it belongs to the srun --mpi=pmi2 that an
     * mpiexec may run in. */
    {"hydra", "I_MPI_HYDRA_UUID"},
    {"slurm", "SLURM_JOB_ID", "SLURM_STEP_ID"},
    {"slurm", "SLURM_JOB_ID", "SLURM_STEPID"},
};

static int is_set(const char *name)
{
    return name != NULL && getenv(name) != NULL;
}

/* The first of two names that is set; NULL: neither. */
static const char *either(const char *first, const char *second)
{
    return is_set(first) ? first : is_set(second) ? second : NULL;
}

/* A variable that the row lacks; NULL: the row is complete. */
static const char *missing(const char *const *row)
{
    if (!is_set(row[RANK]))
        return row[RANK];
    if (either(row[NRANKS], row[NRANKS_ELSE]) == NULL)
        return row[NRANKS];
    if (row[ALSO] == NULL || either(row[ALSO], row[ALSO_ELSE]) != NULL)
        return NULL;
    return row[ALSO];
}

static symwin_status find_row(const char *call, const char *const **out)
{
    /* A variable that is set in the first incomplete row, and one that this row lacks. */
    const char *half = NULL;
    const char *lacks = NULL;
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *out = rows[i];
        if (missing(rows[i]) == NULL)
            return SYMWIN_OK;
        if (half == NULL) {
            half = either(rows[i][RANK], either(rows[i][NRANKS], rows[i][NRANKS_ELSE]));
            lacks = missing(rows[i]);
        }
    }
    if (half == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: no launcher's variables are set; " HOW_TO_START, call);
    return sw_fail(SYMWIN_INVALID, "%s: %s is set, but %s is not; set it, or " HOW_TO_START, call,
                   half, lacks);
}

int sw_launch_is_none(void)
{
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const *row = rows[i];

        if (strcmp(row[LAUNCHER], "slurm") == 0 && either(row[ALSO], row[ALSO_ELSE]) == NULL)
            continue; /* salloc, or an sbatch script */
        if (is_set(row[RANK]) || either(row[NRANKS], row[NRANKS_ELSE]) != NULL)
            return 0;
    }
    return 1;
}

/* Reads a number and moves *text past it; -1: no digits, or more than `most`. */
static int take_number(const char **text, int most)
{
    int value = -1;

    for (; **text >= '0' && **text <= '9'; ++*text) {
        value = 10 * (value < 0 ? 0 : value) + (**text - '0');
        if (value > most)
            return -1;
    }
    return value;
}

symwin_status sw_launch_number(const char *call, const char *name, const char *what, int least,
                               int most, int *out)
{
    const char *text = getenv(name);
    const char *end = text;
    const int value = take_number(&end, most);

    if (value < least || *end != '\0')
        return sw_fail(SYMWIN_INVALID, "%s: %s is \"%.64s\"; set it to %s, a number from %d to %d",
                       call, name, text, what, least, most);
    *out = value;
    return SYMWIN_OK;
}

/* The number for `node` in a list like "4(x2),3"; -1: the list is too short or malformed. */
static int tasks_of_node(const char *text, int node, int most)
{
    int found = -1;

    for (;;) {
        const int tasks = take_number(&text, most);
        int times = 1;

        if (tasks < 1)
            return -1;
        if (strncmp(text, "(x", 2) == 0) {
            text += 2;
            times = take_number(&text, SW_MAX_RANKS);
            if (times < 1 || *text++ != ')')
                return -1;
        }
        if (found < 0 && (node -= times) < 0)
            found = tasks;
        if (*text == '\0')
            return found;
        if (*text++ != ',')
            return -1;
    }
}

static symwin_status read_tasks(const char *call, const char *const *row, struct sw_launch *out)
{
    const char *list = getenv(row[LOCAL_NRANKS]);
    int node = 0;
    const symwin_status status = sw_launch_number(call, row[NODE], "this host's number in the job",
                                                  0, SW_MAX_RANKS - 1, &node);

    if (status != SYMWIN_OK)
        return status;
    out->local_nranks = tasks_of_node(list, node, out->nranks);
    if (out->local_nranks > 0)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_INVALID,
                   "%s: %s is \"%.64s\"; set it to the number of processes on each host, from 1 "
                   "to %d, for hosts 0 to %s=%d at least, like \"4(x2),3\"",
                   call, row[LOCAL_NRANKS], list, out->nranks, row[NODE], node);
}

static symwin_status read_ranks(const char *call, const char *const *row, struct sw_launch *out)
{
    const char *nranks = either(row[NRANKS], row[NRANKS_ELSE]);
    symwin_status status = sw_launch_number(call, nranks, "the number of processes", 1,
                                            SW_MAX_RANKS, &out->nranks);

    if (status == SYMWIN_OK)
        status = sw_launch_number(call, row[RANK], "this process's rank", 0, out->nranks - 1,
                                  &out->rank);
    if (status == SYMWIN_OK && is_set(row[LOCAL_NRANKS]) && row[NODE] == NULL)
        status = sw_launch_number(call, row[LOCAL_NRANKS], "the number of processes on this host",
                                  1, out->nranks, &out->local_nranks);
    if (status == SYMWIN_OK && is_set(row[LOCAL_NRANKS]) && is_set(row[NODE]))
        status = read_tasks(call, row, out);
    if (status == SYMWIN_OK && is_set(row[LOCAL_RANK]))
        status = sw_launch_number(call, row[LOCAL_RANK], "this process's rank on its host", 0,
                                  (out->local_nranks > 0 ? out->local_nranks : out->nranks) - 1,
                                  &out->local_rank);
    return status;
}

static symwin_status read_address(const char *call, struct sw_launch *out)
{
    const char *name = is_set("SYMWIN_ADDR") ? "SYMWIN_ADDR" : "MASTER_ADDR";
    const char *text = getenv(name);

    if (text == NULL)
        return SYMWIN_OK;
    if (text[0] == '\0' || strlen(text) >= sizeof out->address)
        return sw_fail(SYMWIN_INVALID,
                       "%s: %s is \"%.64s\"; set it to the name or address of rank 0's host, 1 to "
                       "%zu bytes",
                       call, name, text, sizeof out->address - 1);
    strcpy(out->address, text);
    return SYMWIN_OK;
}

/* If torchrun's agent listens on MASTER_PORT, ranks connect there and do not listen
 * (torch/distributed/rendezvous.py). Then rank 0 uses the next port. */
static symwin_status read_port(const char *call, struct sw_launch *out)
{
    const char *name = is_set("SYMWIN_PORT") ? "SYMWIN_PORT" : "MASTER_PORT";
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const int next = name[0] == 'M' && agent != NULL && strcmp(agent, "True") == 0;
    symwin_status status;

    if (!is_set(name))
        return SYMWIN_OK;
    status = sw_launch_number(call, name,
                              next
                                  ? "one less than a free port of rank 0's host, or set SYMWIN_PORT"
                                  : "a free port of rank 0's host",
                              1, 65535 - next, &out->port);
    out->port += next;
    return status;
}

int sw_launch_is_wide(const struct sw_launch *launch)
{
    return launch->local_nranks != 0 && launch->local_nranks != launch->nranks;
}

/* Appends to the job's name. *length and *hash (FNV-1a) are of the whole name, also beyond the
 * field. */
static void job_add(struct sw_launch *out, size_t *length, uint64_t *hash, const char *piece)
{
    for (; *piece != '\0'; piece++, ++*length) {
        *hash = (*hash ^ (unsigned char)*piece) * UINT64_C(0x100000001b3);
        if (*length < sizeof out->job - 1)
            out->job[*length] = *piece;
    }
}

/* The variables that name the job, NULL after the last. NULL: no row is complete. */
static const char *const *job_parts(const char *launcher)
{
    size_t i;

    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        int part = 1;

        while (is_set(jobs[i][part]))
            part++;
        if (jobs[i][part] == NULL && (jobs[i][0] == NULL || strcmp(jobs[i][0], launcher) == 0))
            return jobs[i] + 1;
    }
    return NULL;
}

/* Commas separate the parts; no number or host name has one. A name that is too long ends in a hash
 * of the whole, so that names that differ only beyond the field still differ.
 *
 * A job on several hosts leaves out the restart count, which may differ between hosts. The process
 * at MASTER_ADDR distinguishes a restart from the run before: that run's process is gone. */
static symwin_status read_job(const char *call, const char *const *row, struct sw_launch *out)
{
    enum { TAIL = 1 + 16 };
    const char *launcher = row[LAUNCHER];
    const char *const *part = job_parts(launcher);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t length = 0;
    char address[sizeof out->address + 16], process[64] = "";

    snprintf(address, sizeof address, "%s:%d", out->address, out->port);
    if (part == NULL && strcmp(address, ":0") == 0) {
        /* Hydra sets nothing that differs between two mpiexec, but each mpiexec has a process of
         * its own on every host. Ranks started without a launcher can have any parent. */
        if (strcmp(launcher, "hydra") == 0)
            sw_launcher_name(row[RANK], process, sizeof process);
        job_add(out, &length, &hash, launcher);
        job_add(out, &length, &hash, process[0] != '\0' ? "," : "");
        job_add(out, &length, &hash, process);
    } else if (part == NULL) {
        job_add(out, &length, &hash, address);
    }
    for (; part != NULL && *part != NULL; part++) {
        if (getenv(*part)[0] == '\0')
            return sw_fail(SYMWIN_INVALID, "%s: %s is \"\"; set it to a value unique to this job",
                           call, *part);
        if (*part == restarts && sw_launch_is_wide(out))
            continue;
        job_add(out, &length, &hash, length > 0 ? "," : "");
        job_add(out, &length, &hash, getenv(*part));
    }
    if (length >= sizeof out->job)
        snprintf(out->job + sizeof out->job - 1 - TAIL, TAIL + 1, "~%016" PRIx64, hash);
    return SYMWIN_OK;
}

symwin_status sw_launch_read(const char *call, struct sw_launch *out)
{
    struct sw_launch found = {.local_rank = -1};
    const char *const *row = NULL;
    symwin_status status = find_row(call, &row);

    if (status == SYMWIN_OK)
        status = read_ranks(call, row, &found);
    if (status == SYMWIN_OK)
        status = read_address(call, &found);
    if (status == SYMWIN_OK)
        status = read_port(call, &found);
    if (status == SYMWIN_OK)
        status = read_job(call, row, &found);
    found.launcher = row[LAUNCHER];
    if (status == SYMWIN_OK)
        *out = found;
    return status;
}

long sw_launch_rival(const struct sw_launch *launch, int within_ms)
{
    enum { MOST = 32 };
    const char *names[MOST] = {NULL};
    int count = 0;
    size_t i, k;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i][LAUNCHER], launch->launcher) == 0) {
            names[count++] = rows[i][RANK];
            names[count++] = either(rows[i][NRANKS], rows[i][NRANKS_ELSE]);
        }
    for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++)
        for (k = 1; jobs[i][k] != NULL && count < MOST - 5; k++)
            names[count++] = jobs[i][k];
    names[count++] = "MASTER_ADDR";
    names[count++] = "MASTER_PORT";
    names[count++] = "SYMWIN_ADDR";
    names[count++] = "SYMWIN_PORT";
    return sw_launcher_rival(names, within_ms);
}
