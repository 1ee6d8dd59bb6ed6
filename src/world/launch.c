/*
 * The launcher's environment variables, read before MPI is initialised.
 *
 * If MPI cannot reach the launcher (srun with the wrong --mpi, the mpirun of another MPI), each of
 * N processes becomes a world of one, and N independent trainings overwrite each other's files. So the
 * launcher's size is compared with MPI's. SLURM_NTASKS is never read, because a program started alone inside
 * an allocation has it, too.
 */
#include "base_impl.h"
#include "node.h"
#include "world_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The variables of launchers for rank and size. */
static const struct {
    const char *rank, *size;
} launchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                 {"PMIX_RANK", ""},
                 {"PMI_RANK", "PMI_SIZE"},
                 {"SLURM_PROCID", ""}};

static int number(const char *text)
{
    char *end;
    long v = text ? strtol(text, &end, 10) : 0;

    return v <= 0 || v > 1 << 30 || *end ? 0 : (int)v;
}

bool hvt__was_spawned;

bool hvt__launch_without_mpi(char *(*get)(const char *name))
{
    return get("RANK") && get("WORLD_SIZE");
}

bool hvt__launch_shows_output(void)
{
    return getenv("LOCAL_RANK") || hvt__launch(getenv).started;
}

int hvt_world_launched_rank(void)
{
    if (hvt__was_spawned)
        return number(getenv("RANK"));
    for (size_t i = 0; i < HVT_LEN(launchers); i++)
        if (getenv(launchers[i].rank))
            return number(getenv(launchers[i].rank));
    return hvt__launch_without_mpi(getenv) ? number(getenv("RANK")) : -1;
}

hvt_launch hvt__launch(char *(*get)(const char *name))
{
    static const struct {
        const char *name, *mark, *size;
    } others[] = {
        {"horovodrun", "HOROVOD_CONTROLLER", "HOROVOD_SIZE"}}; /* over gloo; over MPI it is mpirun */
    int tasks = number(get("SLURM_STEP_NUM_TASKS"));
    bool pmix = get("PMIX_RANK"), pmi = get("PMI_RANK");
    hvt_launch l = {.started = pmix || pmi};

    for (size_t i = 0; i < HVT_LEN(launchers) && !l.size; i++) {
        l.size = number(get(launchers[i].size));
        if (l.size)
            l.var = launchers[i].size;
    }
    if (l.size) {
        l.started = true;
        l.one_node = l.size == number(get("OMPI_COMM_WORLD_LOCAL_SIZE"));
        /* srun's PMI-2 sets PMI_SIZE itself; the remedy is srun's */
        l.by_srun = !get("OMPI_COMM_WORLD_SIZE") && tasks == l.size;
        return l;
    }
    if (tasks > 1 || (tasks == 1 && pmix)) {
        l.started = l.by_srun = true;
        l.size = tasks;
        l.var = "SLURM_STEP_NUM_TASKS";
        l.unwired = !pmix && !pmi;
        l.one_node = number(get("SLURM_STEP_NUM_NODES")) == 1;
    }
    for (size_t i = 0; i < HVT_LEN(others) && !l.started; i++) {
        int size = get(others[i].mark) ? number(get(others[i].size)) : 0;
        if (size > 1)
            l = (hvt_launch){
                .started = true, .size = size, .var = others[i].size, .by = others[i].name, .unwired = true};
    }
    return l;
}

hvt_status hvt__launch_check(const hvt_launch *l, int mpi_size)
{
    hvt_status s;

    if (!l->size || l->size == mpi_size)
        return HVT_OK;
    if (l->by_srun)
        s = HVT_FAIL(E_COMM,
                     "srun started %d tasks (%s), but MPI sees %d: start it as `srun --mpi=pmix ...` "
                     "(`srun --mpi=list` shows what this SLURM has), or with mpirun",
                     l->size, l->var, mpi_size);
    else if (l->by)
        s = HVT_FAIL(
            E_COMM,
            "%s started %d processes (%s), but MPI sees %d: start them with mpirun or srun instead, as "
            "in `mpirun -np %d ./hvtrain`",
            l->by, l->size, l->var, mpi_size, l->size);
    else
        s = HVT_FAIL(E_COMM,
                     "the launcher started %d processes (%s), but MPI sees %d: use the mpirun of the MPI "
                     "that hvtrain was built with",
                     l->size, l->var, mpi_size);
    hvt__error_agreed(true); /* all ranks fail alike */
    return s;
}

/* The mark is in PMIx's folder, which PMIx removes when the job ends. */
hvt_status hvt__launch_mark(char *(*get)(const char *name))
{
    const char *dir = get("PMIX_SERVER_TMPDIR"), *job = get("PMIX_NAMESPACE"), *rank = get("PMIX_RANK");
    char path[PATH_MAX];
    int fd;

    if (!dir || !job || !rank)
        return HVT_OK;
    snprintf(path, sizeof path, "%s/hvt-%s-%s", dir, job, rank);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    HVT_CHECK(fd >= 0 || errno != EEXIST, E_COMM,
              "a second MPI program started as the launcher's rank %s: mpirun and srun start one per rank; "
              "start the "
              "second with its own mpirun or srun (or alone, without the launcher's variables: env -i)",
              rank);
    return HVT_OK;
}
