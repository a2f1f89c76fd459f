/* What sw_launch_read() reads from the environments of launchers, and from invalid ones. Each case
 * lists variables as "NAME=value"; variables of the test's own environment are unset before each
 * case. */
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"
#include "src/channel/channel.h"
#include "src/collective/collective.h"
#include "tap.h"

#define CALL "symwin_comm_create_env"

extern char **environ;

enum { VARIABLES = 12 };

static void clear_variables(void)
{
    static const char *const prefixes[] = {
        "SYMWIN_", "TORCHELASTIC_", "OMPI_",       "PMIX_", "PMI_",        "MPI_",
        "I_MPI_",  "SLURM_",        "LOCAL_RANK=", "RANK=", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=",
        "MASTER_",
    };
    size_t p;
    int i;

    for (i = 0; environ[i] != NULL;) {
        char name[256];
        const size_t length = strcspn(environ[i], "=");

        for (p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
            if (strncmp(environ[i], prefixes[p], strlen(prefixes[p])) == 0)
                break;
        if (p == sizeof prefixes / sizeof prefixes[0] || length >= sizeof name) {
            i++;
            continue;
        }
        memcpy(name, environ[i], length);
        name[length] = '\0';
        unsetenv(name); /* the next variable moves here */
    }
}

static void set(const char *variable)
{
    char name[64];
    const size_t length = strcspn(variable, "=");

    snprintf(name, sizeof name, "%.*s", (int)length, variable);
    setenv(name, variable + length + 1, 1);
}

static symwin_status read_launch(const char *const variables[VARIABLES], struct sw_launch *out)
{
    int i;

    clear_variables();
    for (i = 0; i < VARIABLES && variables[i] != NULL; i++)
        set(variables[i]);
    memset(out, 0x5a, sizeof *out);
    return sw_launch_read(CALL, out);
}

/* ---- valid environments ---------------------------------------------------------------------- */

struct good {
    const char *name;
    const char *variables[VARIABLES];
    struct sw_launch want;
};

/* In the forms that launchers use. Those of Open MPI 5 and MPICH are copied from runs. */
static const struct good goods[] = {
    {"symwin, nothing but ranks",
     {"SYMWIN_RANK=2", "SYMWIN_NRANKS=4"},
     {"symwin", 2, 4, -1, 0, "symwin", "", 0}},
    {"symwin, everything",
     {"SYMWIN_RANK=5", "SYMWIN_NRANKS=8", "SYMWIN_LOCAL_RANK=1", "SYMWIN_LOCAL_NRANKS=4",
      "SYMWIN_JOB=train", "SYMWIN_ADDR=node0", "SYMWIN_PORT=4000"},
     {"symwin", 5, 8, 1, 4, "train", "node0", 4000}},
    {"symwin, the most ranks",
     {"SYMWIN_RANK=131071", "SYMWIN_NRANKS=131072"},
     {"symwin", 131071, 131072, -1, 0, "symwin", "", 0}},
    {"symwin, job from the address and port",
     {"SYMWIN_RANK=0", "SYMWIN_NRANKS=1", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500"},
     {"symwin", 0, 1, -1, 0, "10.0.0.7:29500", "10.0.0.7", 29500}},
    {"symwin, job from the port alone",
     {"SYMWIN_RANK=0", "SYMWIN_NRANKS=1", "SYMWIN_PORT=65535"},
     {"symwin", 0, 1, -1, 0, ":65535", "", 65535}},
    {"symwin, job from the address alone",
     {"SYMWIN_RANK=0", "SYMWIN_NRANKS=1", "SYMWIN_ADDR=fe80::1"},
     {"symwin", 0, 1, -1, 0, "fe80::1:0", "fe80::1", 0}},
    {"symwin, a local rank without a local size",
     {"SYMWIN_RANK=3", "SYMWIN_NRANKS=4", "SYMWIN_LOCAL_RANK=3"},
     {"symwin", 3, 4, 3, 0, "symwin", "", 0}},
    {"symwin, a local size without a local rank",
     {"SYMWIN_RANK=3", "SYMWIN_NRANKS=4", "SYMWIN_LOCAL_NRANKS=4"},
     {"symwin", 3, 4, -1, 4, "symwin", "", 0}},
    {"torchrun with its agent's store",
     {"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node17",
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0",
      "TORCHELASTIC_USE_AGENT_STORE=True"},
     {"torchrun", 3, 8, 3, 4, "none,node17,29500", "node17", 29501}},
    {"torchrun without its agent's store",
     {"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node17",
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=b2c5", "TORCHELASTIC_RESTART_COUNT=2",
      "TORCHELASTIC_USE_AGENT_STORE=False"},
     {"torchrun", 3, 8, 3, 4, "b2c5,node17,29500", "node17", 29500}},
    {"torchrun on one host, restarted",
     {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=node17",
      "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=b2c5", "TORCHELASTIC_RESTART_COUNT=2"},
     {"torchrun", 3, 4, 3, 4, "b2c5,2,node17,29500", "node17", 29500}},
    {"torchrun's agent has the last port but one",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_PORT=65534", "TORCHELASTIC_USE_AGENT_STORE=True"},
     {"torchrun", 0, 1, -1, 0, ":65535", "", 65535}},
    {"torchrun's agent does not move SYMWIN_PORT",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_PORT=65535", "SYMWIN_PORT=7000",
      "TORCHELASTIC_USE_AGENT_STORE=True"},
     {"torchrun", 0, 1, -1, 0, ":7000", "", 7000}},
    {"torchrun's names from another launcher",
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=localhost", "MASTER_PORT=12355"},
     {"torchrun", 1, 2, 1, 0, "localhost:12355", "localhost", 12355}},
    {"torchrun's names, ranks alone",
     {"RANK=1", "WORLD_SIZE=2"},
     {"torchrun", 1, 2, -1, 0, "torchrun", "", 0}},
    {"Open MPI 5",
     {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_COMM_WORLD_NODE_RANK=1",
      "PMIX_NAMESPACE=prterun-node3-448@1", "PMIX_RANK=1", "OMPI_UNIVERSE_SIZE=2"},
     {"openmpi", 1, 2, 1, 2, "prterun-node3-448@1", "", 0}},
    {"Open MPI 4, both ids",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=1", "PMIX_NAMESPACE=3221946369", "OMPI_MCA_ess_base_jobid=12"},
     {"openmpi", 0, 2, 0, 1, "3221946369", "", 0}},
    {"Open MPI 4, the older id",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=3221946369",
      "MASTER_ADDR=node3", "MASTER_PORT=4001"},
     {"openmpi", 0, 2, -1, 0, "3221946369", "node3", 4001}},
    {"MPICH",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2", "PMI_FD=11",
      "PMI_HOSTNAME=node3", "HYDI_CONTROL_FD=7"},
     {"hydra", 1, 2, 1, 2, "hydra", "", 0}},
    {"MPICH with an address",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", "MASTER_ADDR=node3", "SYMWIN_PORT=4001"},
     {"hydra", 1, 2, -1, 2, "node3:4001", "node3", 4001}},
    {"Intel MPI",
     {"PMI_RANK=4", "PMI_SIZE=5", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2",
      "I_MPI_HYDRA_UUID=9d260000-7c26-e807-8fb4-050000430af0", "PMI_JOBID=7.0"},
     {"hydra", 4, 5, 1, 2, "9d260000-7c26-e807-8fb4-050000430af0", "", 0}},
    {"srun --mpi=pmi2",
     {"PMI_RANK=5", "PMI_SIZE=8", "PMI_FD=5", "PMI_JOBID=200505.3", "SLURM_PROCID=5",
      "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_NODEID=1",
      "SLURM_STEP_TASKS_PER_NODE=4(x2)", "SLURM_JOB_ID=200505", "SLURM_STEP_ID=3"},
     {"slurm", 5, 8, 1, 4, "200505,3", "", 0}},
    {"mpiexec of MPICH in that",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", "PMI_JOBID=200505.3",
      "SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=3", "SLURM_JOB_ID=200505"},
     {"hydra", 1, 2, 0, 1, "hydra", "", 0}},
    {"Slurm",
     {"SLURM_PROCID=9", "SLURM_NTASKS=11", "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=1",
      "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE=4(x2),3", "SLURM_JOB_ID=200505",
      "SLURM_STEP_ID=3", "SLURM_STEPID=3"},
     {"slurm", 9, 11, 1, 3, "200505,3", "", 0}},
    {"Slurm, a step smaller than its job",
     {"SLURM_PROCID=1", "SLURM_NTASKS=64", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=200505",
      "SLURM_STEP_ID=3"},
     {"slurm", 1, 2, -1, 0, "200505,3", "", 0}},
    {"Slurm, the older names",
     {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=200505", "SLURM_STEPID=4"},
     {"slurm", 1, 2, -1, 0, "200505,4", "", 0}},
    {"Slurm, a step without a job's id",
     {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEPID=4", "MASTER_ADDR=node3",
      "MASTER_PORT=4001"},
     {"slurm", 1, 2, -1, 0, "node3:4001", "node3", 4001}},
    {"Slurm, hosts' counts but not which host",
     {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=4", "SLURM_STEP_TASKS_PER_NODE=2",
      "SLURM_JOB_ID=5"},
     {"slurm", 1, 2, -1, 0, "5,4", "", 0}},

    /* precedence: all values come from one launcher's variables */
    {"symwin before torchrun",
     {"SYMWIN_RANK=0", "SYMWIN_NRANKS=2", "RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=3",
      "LOCAL_WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=a", "TORCHELASTIC_RESTART_COUNT=0",
      "MASTER_ADDR=n", "MASTER_PORT=5"},
     {"symwin", 0, 2, -1, 0, "n:5", "n", 5}},
    {"torchrun before Open MPI",
     {"RANK=3", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1",
      "OMPI_COMM_WORLD_LOCAL_RANK=0", "PMIX_NAMESPACE=x"},
     {"torchrun", 3, 4, -1, 0, "torchrun", "", 0}},
    {"Open MPI before Hydra",
     {"PMI_RANK=0", "PMI_SIZE=1", "PMI_JOBID=x", "OMPI_COMM_WORLD_RANK=1",
      "OMPI_COMM_WORLD_SIZE=2"},
     {"openmpi", 1, 2, -1, 0, "openmpi", "", 0}},
    {"Open MPI in a Slurm job",
     {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_LOCALID=0", "SLURM_JOB_ID=5", "SLURM_STEP_ID=0",
      "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=ns"},
     {"openmpi", 1, 2, -1, 0, "ns", "", 0}},
    {"half of symwin, all of Slurm",
     {"SYMWIN_RANK=9", "SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_JOB_ID=5", "SLURM_STEP_ID=0"},
     {"slurm", 0, 1, -1, 0, "5,0", "", 0}},
    {"a stray WORLD_SIZE, all of Hydra",
     {"WORLD_SIZE=x", "PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALNRANKS=1"},
     {"hydra", 0, 1, -1, 1, "hydra", "", 0}},
    {"an sbatch script's own variables, all of Hydra",
     {"SLURM_PROCID=0", "SLURM_NTASKS=4", "PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALNRANKS=4"},
     {"hydra", 1, 4, -1, 4, "hydra", "", 0}},

    /* overrides */
    {"SYMWIN_JOB over torchrun's",
     {"RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0",
      "MASTER_ADDR=n", "MASTER_PORT=5", "SYMWIN_JOB=mine"},
     {"torchrun", 0, 1, -1, 0, "mine", "n", 5}},
    {"SYMWIN_ADDR over MASTER_ADDR",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=n", "MASTER_PORT=5", "SYMWIN_ADDR=m"},
     {"torchrun", 0, 1, -1, 0, "m:5", "m", 5}},
    {"SYMWIN_PORT over a bad MASTER_PORT",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=n", "MASTER_PORT=x", "SYMWIN_PORT=6"},
     {"torchrun", 0, 1, -1, 0, "n:6", "n", 6}},
};

static void test_good(const struct good *good)
{
    const struct sw_launch *want = &good->want;
    struct sw_launch got;
    const symwin_status status = read_launch(good->variables, &got);

    if (status != SYMWIN_OK) {
        tap_ok(0, "%s: %s", good->name, symwin_last_error());
        return;
    }
    tap_ok(strcmp(got.launcher, want->launcher) == 0 && got.rank == want->rank &&
               got.nranks == want->nranks && got.local_rank == want->local_rank &&
               got.local_nranks == want->local_nranks && strcmp(got.job, want->job) == 0 &&
               strcmp(got.address, want->address) == 0 && got.port == want->port,
           "%s: %s %d of %d, %d of %d here, job %s at %s port %d", good->name, got.launcher,
           got.rank, got.nranks, got.local_rank, got.local_nranks, got.job, got.address, got.port);
}

/* ---- invalid environments -------------------------------------------------------------------- */

struct bad {
    const char *name;
    const char *variables[VARIABLES];
    const char *text; /* the error begins with it, after the name of the call */
};

#define START "start the program by mpirun, torchrun or srun, or set SYMWIN_RANK and SYMWIN_NRANKS"
#define RANKS "SYMWIN_RANK=1", "SYMWIN_NRANKS=4"
#define STEP "SLURM_PROCID=0", "SLURM_NTASKS=6", "SLURM_STEP_ID=0"

static const struct bad bads[] = {
    {"nothing", {NULL}, "no launcher's variables are set; " START},
    {"an address and a job, no ranks",
     {"MASTER_ADDR=n", "MASTER_PORT=5", "SYMWIN_JOB=x"},
     "no launcher's variables are set; " START},
    {"a local rank alone",
     {"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"},
     "no launcher's variables are set; " START},
    {"a rank without a size",
     {"SYMWIN_RANK=0"},
     "SYMWIN_RANK is set, but SYMWIN_NRANKS is not; set it, or " START},
    {"a size without a rank", {"WORLD_SIZE=2"}, "WORLD_SIZE is set, but RANK is not; "},
    {"the rank of one, the size of another",
     {"RANK=0", "PMI_SIZE=2"},
     "RANK is set, but WORLD_SIZE is not; "},
    {"Open MPI's size alone",
     {"OMPI_COMM_WORLD_SIZE=2"},
     "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not; "},
    {"PMI's ranks without the local ones",
     {"PMI_RANK=0", "PMI_SIZE=2", "PMI_JOBID=7.0"},
     "PMI_RANK is set, but MPI_LOCALNRANKS is not; "},
    {"Slurm's rank alone",
     {"SLURM_PROCID=0"},
     "SLURM_PROCID is set, but SLURM_STEP_NUM_TASKS is not; "},
    {"Slurm's older size alone",
     {"SLURM_NTASKS=2"},
     "SLURM_NTASKS is set, but SLURM_PROCID is not; "},
    {"the script of an sbatch",
     {"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0", "SLURM_NODEID=0",
      "SLURM_JOB_ID=200505"},
     "SLURM_PROCID is set, but SLURM_STEP_ID is not; "},

    {"a rank that is no number",
     {"RANK=x", "WORLD_SIZE=4"},
     "RANK is \"x\"; set it to this process's rank, a number from 0 to 3"},
    {"a rank with something behind", {"RANK=1x", "WORLD_SIZE=4"}, "RANK is \"1x\"; "},
    {"a rank with a space before", {"RANK= 1", "WORLD_SIZE=4"}, "RANK is \" 1\"; "},
    {"a rank with a sign", {"RANK=+1", "WORLD_SIZE=4"}, "RANK is \"+1\"; "},
    {"a negative rank", {"RANK=-1", "WORLD_SIZE=4"}, "RANK is \"-1\"; "},
    {"an empty rank", {"RANK=", "WORLD_SIZE=4"}, "RANK is \"\"; "},
    {"a rank as high as the size",
     {"PMI_RANK=4", "PMI_SIZE=4", "MPI_LOCALNRANKS=4"},
     "PMI_RANK is \"4\"; set it to this process's rank, a number from 0 to 3"},
    {"a rank beyond an int",
     {"RANK=18446744073709551616", "WORLD_SIZE=4"},
     "RANK is \"18446744073709551616\"; "},
    {"an empty size",
     {"RANK=0", "WORLD_SIZE="},
     "WORLD_SIZE is \"\"; set it to the number of processes, a number from 1 to 131072"},
    {"a size of zero", {"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE is \"0\"; "},
    {"a negative size", {"RANK=0", "WORLD_SIZE=-2"}, "WORLD_SIZE is \"-2\"; "},
    {"a size that is no whole number", {"RANK=0", "WORLD_SIZE=2.0"}, "WORLD_SIZE is \"2.0\"; "},
    {"too many ranks",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=131073"},
     "OMPI_COMM_WORLD_SIZE is \"131073\"; "},
    {"a bad step size, although the job's is good",
     {"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=?", "SLURM_STEP_ID=0"},
     "SLURM_STEP_NUM_TASKS is \"?\"; "},
    {"a bad value in the set that counts, another set good",
     {"RANK=x", "WORLD_SIZE=4", "PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALNRANKS=1"},
     "RANK is \"x\"; "},
    {"a local rank that is no number",
     {RANKS, "SYMWIN_LOCAL_RANK=a"},
     "SYMWIN_LOCAL_RANK is \"a\"; "},
    {"an empty local rank", {RANKS, "SYMWIN_LOCAL_RANK="}, "SYMWIN_LOCAL_RANK is \"\"; "},
    {"a local rank as high as the local size",
     {RANKS, "SYMWIN_LOCAL_RANK=2", "SYMWIN_LOCAL_NRANKS=2"},
     "SYMWIN_LOCAL_RANK is \"2\"; set it to this process's rank on its host, a number from 0 to 1"},
    {"a local rank as high as the size",
     {RANKS, "SYMWIN_LOCAL_RANK=4"},
     "SYMWIN_LOCAL_RANK is \"4\"; "},
    {"a negative local rank", {RANKS, "SYMWIN_LOCAL_RANK=-1"}, "SYMWIN_LOCAL_RANK is \"-1\"; "},
    {"a local size of zero", {RANKS, "SYMWIN_LOCAL_NRANKS=0"}, "SYMWIN_LOCAL_NRANKS is \"0\"; "},
    {"more ranks here than there are",
     {RANKS, "SYMWIN_LOCAL_NRANKS=5"},
     "SYMWIN_LOCAL_NRANKS is \"5\"; set it to the number of processes on this host, a number from "
     "1 to 4"},
    {"port 0",
     {RANKS, "MASTER_PORT=0"},
     "MASTER_PORT is \"0\"; set it to a free port of rank 0's host, a number from 1 to 65535"},
    {"port 65536", {RANKS, "SYMWIN_PORT=65536"}, "SYMWIN_PORT is \"65536\"; "},
    {"an empty port", {RANKS, "MASTER_PORT="}, "MASTER_PORT is \"\"; "},
    {"an empty SYMWIN_PORT, although MASTER_PORT is good",
     {RANKS, "SYMWIN_PORT=", "MASTER_PORT=5"},
     "SYMWIN_PORT is \"\"; "},
    {"a port by name", {RANKS, "MASTER_PORT=http"}, "MASTER_PORT is \"http\"; "},
    {"no port after the agent's",
     {RANKS, "MASTER_PORT=65535", "TORCHELASTIC_USE_AGENT_STORE=True"},
     "MASTER_PORT is \"65535\"; set it to one less than a free port of rank 0's host, or "
     "set SYMWIN_PORT, a number from 1 to 65534"},
    {"an empty address",
     {RANKS, "MASTER_ADDR="},
     "MASTER_ADDR is \"\"; set it to the name or address of rank 0's host, 1 to 255 bytes"},
    {"an empty SYMWIN_ADDR, although MASTER_ADDR is good",
     {RANKS, "SYMWIN_ADDR=", "MASTER_ADDR=n"},
     "SYMWIN_ADDR is \"\"; "},
    {"an empty job",
     {RANKS, "SYMWIN_JOB="},
     "SYMWIN_JOB is \"\"; set it to a value unique to this job"},
    {"an empty id from the launcher",
     {"PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALNRANKS=1", "I_MPI_HYDRA_UUID="},
     "I_MPI_HYDRA_UUID is \"\"; "},
    {"an empty id of a step",
     {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_STEP_ID=", "SLURM_JOB_ID=5"},
     "SLURM_STEP_ID is \"\"; "},

    {"a host's number that is no number",
     {STEP, "SLURM_NODEID=a", "SLURM_STEP_TASKS_PER_NODE=6"},
     "SLURM_NODEID is \"a\"; set it to this host's number in the job, a number from 0 to 131071"},
    {"a local rank beyond this host's count",
     {STEP, "SLURM_NODEID=1", "SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=4,2"},
     "SLURM_LOCALID is \"2\"; set it to this process's rank on its host, a number from 0 to 1"},
    {"a list that ends before the host",
     {STEP, "SLURM_NODEID=3", "SLURM_STEP_TASKS_PER_NODE=2(x3)"},
     "SLURM_STEP_TASKS_PER_NODE is \"2(x3)\"; set it to the number of processes on each host, "
     "from 1 to 6, for hosts 0 to SLURM_NODEID=3 at least, like \"4(x2),3\""},
};

static void test_bad(const struct bad *bad)
{
    struct sw_launch got, before;
    const symwin_status status = read_launch(bad->variables, &got);
    const char *text = symwin_last_error();

    memset(&before, 0x5a, sizeof before);
    tap_ok(status == SYMWIN_INVALID && strncmp(text, CALL ": ", strlen(CALL) + 2) == 0 &&
               strncmp(text + strlen(CALL) + 2, bad->text, strlen(bad->text)) == 0 &&
               memcmp(&got, &before, sizeof got) == 0,
           "%s: %s", bad->name, status == SYMWIN_OK ? "accepted" : text);
}

/* ---- Slurm's lists --------------------------------------------------------------------------- */

/* The number of processes on host `node`; -1: refused, with a text that quotes the list. */
static int tasks(const char *list, int node)
{
    char list_variable[256], node_variable[64];
    const char *const variables[VARIABLES] = {STEP, node_variable, list_variable};
    struct sw_launch got;
    symwin_status status;

    snprintf(list_variable, sizeof list_variable, "SLURM_STEP_TASKS_PER_NODE=%s", list);
    snprintf(node_variable, sizeof node_variable, "SLURM_NODEID=%d", node);
    status = read_launch(variables, &got);
    if (status == SYMWIN_OK)
        return got.local_nranks;
    snprintf(list_variable, sizeof list_variable, "SLURM_STEP_TASKS_PER_NODE is \"%s\"; ", list);
    return status == SYMWIN_INVALID && strstr(symwin_last_error(), list_variable) != NULL ? -1 : -2;
}

static void test_lists(void)
{
    static const struct {
        const char *list;
        int node, want;
    } cases[] = {
        {"6", 0, 6},          {"6", 1, -1},
        {"1,2,3", 0, 1},      {"1,2,3", 1, 2},
        {"1,2,3", 2, 3},      {"1,2,3", 3, -1},
        {"4(x2),3", 0, 4},    {"4(x2),3", 1, 4},
        {"4(x2),3", 2, 3},    {"4(x2),3", 3, -1},
        {"1,2(x3),1", 3, 2},  {"1,2(x3),1", 4, 1},
        {"2(x1)", 0, 2},      {"1(x131072)", 131071, 1},

        {"", 0, -1},          {",", 0, -1},
        {"4,", 0, -1},        {",4", 0, -1},
        {"4,,3", 0, -1},      {"0", 0, -1},
        {"-1", 0, -1},        {"7", 0, -1},
        {"x", 0, -1},         {"4x", 0, -1},
        {"4 ", 0, -1},        {"4 ,3", 0, -1},
        {"4(", 0, -1},        {"4(x", 0, -1},
        {"4(x2", 0, -1},      {"4(x)", 0, -1},
        {"4(x0)", 0, -1},     {"4(x-1)", 0, -1},
        {"4(2)", 0, -1},      {"4()", 0, -1},
        {"4(x2)3", 0, -1},    {"4(x2),", 0, -1},
        {"4(x2),3y", 0, -1},  {"4(x2)(x2)", 0, -1},
        {"(x2)", 0, -1},      {"4(x131073)", 0, -1},
        {"4(x2),3(x", 2, -1}, {"99999999999", 0, -1},
    };
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[128];

        snprintf(name, sizeof name, "host %d of \"%s\"%s", cases[i].node, cases[i].list,
                 cases[i].want < 0 ? " is refused" : "");
        TAP_EQ(name, tasks(cases[i].list, cases[i].node), cases[i].want);
    }
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* The job's name if SYMWIN_JOB has `length` letters, of which `last` is the last. */
static void job_of(size_t length, char last, char job[sizeof((struct sw_launch *)0)->job])
{
    char variable[1024] = "SYMWIN_JOB=";
    const char *const variables[VARIABLES] = {RANKS, variable};
    const size_t begin = strlen(variable);
    struct sw_launch got;

    memset(variable + begin, 'j', length - 1);
    variable[begin + length - 1] = last;
    variable[begin + length] = '\0';
    if (read_launch(variables, &got) != SYMWIN_OK)
        snprintf(got.job, sizeof got.job, "%s", "refused");
    memcpy(job, got.job, sizeof got.job);
}

static void test_long_jobs(void)
{
    struct sw_launch first = {0}, second = {0};
    const char *const long_id =
        "TORCHELASTIC_RUN_ID=0123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789";
    const char *const one[VARIABLES] = {"RANK=0",        "WORLD_SIZE=1",
                                        long_id,         "TORCHELASTIC_RESTART_COUNT=0",
                                        "MASTER_ADDR=n", "MASTER_PORT=5"};
    const char *const two[VARIABLES] = {"RANK=0",        "WORLD_SIZE=1",
                                        long_id,         "TORCHELASTIC_RESTART_COUNT=1",
                                        "MASTER_ADDR=n", "MASTER_PORT=5"};
    char a[sizeof first.job], b[sizeof first.job];

    job_of(126, 'a', a);
    TAP_EQ("126 bytes stay as they are", strlen(a) == 126 && a[125] == 'a', 1);
    job_of(127, 'a', a);
    TAP_EQ("127 bytes stay as they are", strlen(a) == 127 && a[126] == 'a', 1);
    job_of(128, 'a', a);
    TAP_EQ("128 bytes become 127 with a hash",
           strlen(a) == 127 && a[110] == '~' && strspn(a + 111, "0123456789abcdef") == 16, 1);
    TAP_EQ("which keep the beginning", strspn(a, "j"), 110);
    job_of(128, 'b', b);
    tap_ok(strcmp(a, b) != 0, "names that differ in byte 128 differ: %s, %s", a + 110, b + 110);
    job_of(1000, 'a', a);
    job_of(1000, 'b', b);
    tap_ok(strcmp(a, b) != 0, "names that differ in byte 1000 differ: %s, %s", a + 110, b + 110);
    job_of(999, 'a', b);
    tap_ok(strcmp(a, b) != 0, "names that differ in length differ: %s, %s", a + 110, b + 110);
    job_of(1000, 'a', b);
    tap_ok(strcmp(a, b) == 0, "one name gives one name");
    TAP_EQ("two long run ids", read_launch(one, &first) | read_launch(two, &second), SYMWIN_OK);
    tap_ok(strcmp(first.job, second.job) != 0, "restarts of a long run id differ: %s, %s",
           first.job + 110, second.job + 110);

    /* Computed independently: 128 times 'j'. */
    job_of(128, 'j', a);
    tap_ok(strcmp(a + 110, "~ecc670330cbebf25") == 0, "the hash is FNV-1a: %s", a + 110);
}

/* Sets MASTER_ADDR to `length` letters. Returns the length of the address read; 0: refused. */
static size_t address_length(size_t length)
{
    char variable[512] = "MASTER_ADDR=";
    const char *const variables[VARIABLES] = {RANKS, variable};
    const size_t begin = strlen(variable);
    struct sw_launch got;

    memset(variable + begin, 'h', length);
    variable[begin + length] = '\0';
    return read_launch(variables, &got) == SYMWIN_OK ? strlen(got.address) : 0;
}

static void test_long_addresses(void)
{
    TAP_EQ("an address of 255 bytes", address_length(255), 255);
    TAP_EQ("an address of 256 bytes is refused", address_length(256), 0);
    tap_ok(strstr(symwin_last_error(), "MASTER_ADDR is \"hhh") != NULL &&
               strstr(symwin_last_error(), "host, 1 to 255 bytes") != NULL,
           "and the text says how long it may be: %s", symwin_last_error());
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof goods / sizeof goods[0]; i++)
        test_good(&goods[i]);
    for (i = 0; i < sizeof bads / sizeof bads[0]; i++)
        test_bad(&bads[i]);
    test_lists();
    test_long_jobs();
    test_long_addresses();
    return tap_done();
}
