/*
 * hvtrain check: whether this job, as it was launched, is ready for a run with these options. Rank 0 prints a
 * line for each item as soon as it is known, so that a check that hangs has shown the good items before.
 *
 * A rank that does not answer is the watchdog's concern: it names the rank, and the check ends.
 */
#define _GNU_SOURCE
#include "check.h"
#include "check_impl.h"
#include "train/run.h"
#include "base/line.h"
#include "base_impl.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#define FORMAT "%-4s  %-9s %s"

enum { ROUNDS = 8, START = 8, ANSWER = 5 /* seconds that MPI may take to start, and a rank to answer */ };

typedef struct checking {
    hvt_options opts;
    hvt_world *world; /* NULL: none */
    hvt_device *dev;
    hvt__ranks ranks;
    hvt_resolved set;
    hvt__needs needs;
    hvt__line options; /* whether they fit together */
    bool opens;        /* the data are still being opened */
    int faults, doubts;
} checking;

static _Atomic(const char *) stage = "start"; /* of the check, for the watchdog's thread */

static void print(checking *c, const char *name, const hvt__line *l)
{
    static const char *const word[] = {"ok", "warn", "FAIL"};

    c->faults += l->grade == HVT__WRONG;
    c->doubts += l->grade == HVT__DOUBTFUL;
    stage = name;
    if (hvt_world_rank(c->world) == 0 && !(c->opts.quiet && l->grade == HVT__GOOD))
        hvt__print_line(STDOUT_FILENO, FORMAT, word[l->grade], name, l->text);
}

/* Ends the check after the watchdog has named the late rank. */
static void give_up(void *ctx, const char *line)
{
    if (*line)
        hvt__print_line(STDOUT_FILENO, FORMAT, "FAIL", stage,
                        "a rank does not answer: see the error, and end or mend its process or host");
    _exit(HVT_EXIT_STALLED);
}

static hvt__line failed(void)
{
    hvt__line l;

    hvt__line_set(&l, HVT__WRONG, "%s", hvt_last_error());
    return l;
}

/* ---- before there are other ranks ---- */

static hvt__line mpi_line(void)
{
    const hvt__mpi_facts f = hvt__mpi_describe();
    const bool alone = *f.threads && !f.worker;
    hvt__line l = {HVT__GOOD, "built without MPI, for one process"};

    if (*f.library)
        hvt__line_set(&l, alone ? HVT__DOUBTFUL : HVT__GOOD, "%s, %s", f.library,
                      *f.threads ? f.threads : "not started for one process alone");
    if (alone)
        hvt__line_add(&l, ": --overlap worker needs MPI_THREAD_SERIALIZED");
    return l;
}

static hvt__line launcher_line(const checking *c)
{
    const char *tasks = getenv("SLURM_NTASKS");
    char variables[HVT__FACT_TEXT], hosts[200];
    hvt__line l = {HVT__GOOD, ""};

    hvt__launch_variables(variables);
    if (!c->world) {
        l = failed();
        hvt__line_add(&l, *variables ? " (%s)" : "%s", variables);
        return l;
    }
    hvt__hosts_text(&c->ranks, hosts);
    if (hvt_world_size(c->world) == 1 && hvt_world_launched_rank() < 0 && tasks && atoi(tasks) > 1)
        hvt__line_set(&l, HVT__DOUBTFUL,
                      "%s, in a SLURM job of %s tasks: srun --mpi=pmix or mpirun starts all of them", hosts,
                      tasks);
    else
        hvt__line_set(&l, HVT__GOOD, "%s%s", hosts,
                      hvt_world_launched_rank() < 0 ? ", without a launcher" : ", as launched");
    return l;
}

/* ---- facts of all ranks, on every rank ---- */

static double wall_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static hvt_status compare_clocks(checking *c, double *ahead, double *unsure, double *began)
{
    const size_t n = (size_t)c->ranks.n;
    double *ended = began + ROUNDS * n, now;

    for (size_t k = 0; k < ROUNDS && hvt_world_nodes(c->world) > 1; k++) {
        now = wall_clock();
        HVT_TRY(hvt_world_allgather(c->world, &now, sizeof now, began + k * n));
        now = wall_clock();
        HVT_TRY(hvt_world_allgather(c->world, &now, sizeof now, ended + k * n));
    }
    for (int r = 1; r < c->ranks.n && hvt_world_nodes(c->world) > 1; r++)
        hvt__clock_offset(began, ended, ROUNDS, c->ranks.n, r, &ahead[r], &unsure[r]);
    return HVT_OK;
}

/* Allocates all arrays as one block: free(c->ranks.place). */
static hvt_status allocate(checking *c)
{
    size_t n = (size_t)hvt_world_size(c->world), row = sizeof(hvt_placement) + sizeof(hvt__facts) +
                                                       sizeof(char *) + (2 + 2 * ROUNDS) * sizeof(double) +
                                                       sizeof(bool);
    char *at = calloc(n, row);
    hvt__ranks *r = &c->ranks;

    HVT_CHECK(at, E_MEM, "no memory for the facts of %zu ranks", n);
    *r = (hvt__ranks){.n = (int)n, .place = (void *)at};
    r->fact = (void *)(at += n * sizeof *r->place);
    r->host = (void *)(at += n * sizeof *r->fact);
    r->ahead = (void *)(at += n * sizeof *r->host);
    r->unsure = r->ahead + n;
    r->in = (void *)(at + (2 + 2 * ROUNDS) * n * sizeof *r->ahead);
    for (size_t i = 0; i < n; i++)
        ((const char **)r->host)[i] = hvt_world_host(c->world, (int)i);
    return HVT_OK;
}

static hvt_status gather(checking *c)
{
    hvt_placement place = {.allowed = hvt__launchers_processors(), .gpus = hvt_device_count("cuda")};
    hvt__facts *mine = calloc(1, sizeof *mine);
    double *clocks;
    hvt_status s = mine ? allocate(c) : HVT_FAIL(E_MEM, "no memory for the facts of a rank");

    HVT_TRY_OR(done, hvt_world_agree(c->world, s));
    hvt__facts_find(&c->opts, mine);
    HVT_TRY_OR(done, hvt_world_cores(c->world, c->opts.threads, &place.cores));
    HVT_TRY_OR(done, hvt_world_allgather(c->world, &place, sizeof place, (void *)c->ranks.place));
    HVT_TRY_OR(done, hvt_world_allgather(c->world, mine, sizeof *mine, (void *)c->ranks.fact));
    clocks = (double *)c->ranks.ahead;
    s = compare_clocks(c, clocks, clocks + c->ranks.n, clocks + 2 * (size_t)c->ranks.n);
done:
    free(mine);
    return s;
}

/* ---- options, device, sums ---- */

static bool on_gpu(const checking *c)
{
    return !strncmp(c->opts.device, "cuda", 4);
}

/* Opens the device of a run, and distributes its properties to all ranks. */
static hvt_status open_device(checking *c)
{
    hvt_placement mine = c->ranks.place[hvt_world_rank(c->world)];
    run t = {.opts = &c->opts, .world = c->world, .size = c->ranks.n, .rank = hvt_world_rank(c->world)};
    hvt_status s;

    HVT_TRY(hvt_world_agree(c->world, hvt__resolve(&c->opts, t.size, &t.set)));
    t.placement = (hvt_placement *)c->ranks.place;
    s = hvt__open_device(&t);
    c->dev = t.dev;
    c->set = t.set;
    HVT_TRY(hvt_world_agree(c->world, s));
    if (!on_gpu(c))
        return HVT_OK;
    hvt_device_describe(c->dev, &mine.gpu);
    return hvt_world_allgather(c->world, &mine, sizeof mine, (void *)c->ranks.place);
}

/* True if the build has this device: it then refuses the number of threads, and opens nothing. */
static bool has_cuda(void)
{
    hvt_device *none = NULL;

    return hvt_device_open("cuda", &(hvt_device_opts){.threads = -1}, &none) != HVT_E_UNSUPPORTED;
}

static void check_device(checking *c)
{
    const bool built = has_cuda(), gpu = on_gpu(c);
    const char *isa = NULL, *name = "gpu";
    hvt__line l = hvt__judge_gpus(&c->ranks, gpu, built);

    stage = name;
    if (l.grade != HVT__WRONG && open_device(c)) {
        l = failed();
        name = "device";
    } else if (c->dev) {
        l = hvt__judge_gpus(&c->ranks, gpu, built);
        isa = gpu ? NULL : hvt_device_isa(c->dev);
    }
    print(c, name, &l);
    l = hvt__judge_build(&c->ranks, isa);
    print(c, "build", &l);
}

/* Finds the run's needs, for a GPU by a plan for the CPU, which is close: a GPU's plan times algorithms for
 * longer than a check may take. */
static hvt_status find_needs(checking *c)
{
    hvt_device *host = NULL;
    hvt_status s;

    if (!on_gpu(c))
        return hvt__find_needs(&c->opts, &c->set, c->dev, &c->needs);
    HVT_TRY(hvt_device_open("cpu", &(hvt_device_opts){.threads = 1}, &host));
    s = hvt__find_needs(&c->opts, &c->set, host, &c->needs);
    hvt_device_close(&host);
    return s;
}

static void check_model(checking *c)
{
    hvt__line l;

    stage = "model";
    if (!c->dev)
        return;
    l = hvt_world_agree(c->world, find_needs(c))
            ? failed()
            : hvt__judge_needs(&c->ranks, &c->needs, &c->opts, on_gpu(c));
    print(c, "model", &l);
}

static void check_save(checking *c)
{
    hvt__line l = {HVT__GOOD, ""};

    stage = "save";
    if (hvt_world_rank(c->world) == 0)
        l = hvt__check_save(&c->opts, c->needs.checkpoint);
    print(c, "save", &l);
}

static void check_sums(checking *c)
{
    hvt__sums sums;
    hvt__line l = {HVT__GOOD, "one process has nothing to exchange"};

    stage = "sums";
    if (!c->dev)
        return;
    if (hvt_world_size(c->world) > 1)
        l = hvt__check_sums(&c->opts, c->world, c->dev, &sums)
                ? failed()
                : hvt__judge_sums(&c->ranks, &sums, c->opts.comm);
    print(c, "sums", &l);
}

/* Checks the job itself. */
static void check_job(checking *c)
{
    static hvt__line (*const judge[])(const hvt__ranks *r) = {
        hvt__judge_cores, hvt__judge_network, hvt__judge_clocks, hvt__judge_memory, hvt__judge_limits};
    static const char *const name[] = {"cores", "network", "clocks", "memory", "limits"};
    hvt__line l = mpi_line();

    print(c, "mpi", &l);
    l = launcher_line(c);
    print(c, "launcher", &l);
    if (!c->world)
        return;
    for (size_t i = 0; i < HVT_LEN(judge); i++) {
        l = judge[i](&c->ranks);
        print(c, name[i], &l);
    }
}

/* Checks what the run reads; if its options are wrong, only the files that they name. */
static void check_data(checking *c, bool known)
{
    const double patience = hvt__check_patience(&c->opts, false).abort;
    hvt__line l = hvt__judge_files(&c->ranks, &c->opts);

    stage = "data";
    if (l.grade != HVT__WRONG && !known)
        return;
    if (l.grade != HVT__WRONG && hvt_world_rank(c->world) == 0)
        l = hvt__check_data(&c->opts, &c->ranks, 0.6 * patience, &c->opens); /* the others wait meanwhile */
    print(c, "data", &l);
}

/* Checks the run's needs. If its options are wrong, the files and folders that they name are still checked,
 * and device and sums as for a run without options. */
static void check_run(checking *c)
{
    const hvt_options given = c->opts;
    const bool known = c->options.grade != HVT__WRONG;

    print(c, "options", &c->options);
    check_data(c, known);
    if (!known) {
        hvt_options_default(&c->opts);
        c->opts.quiet = given.quiet;
        c->opts.save = given.save;
        c->opts.resume = given.resume;
        c->opts.overwrite = given.overwrite;
    }
    check_device(c);
    if (known)
        check_model(c);
    if (known || *c->opts.save)
        check_save(c);
    check_sums(c);
}

static void print_end(const checking *c)
{
    if (hvt_world_rank(c->world) != 0)
        return;
    if (c->faults)
        hvt__print_line(STDOUT_FILENO, "not ready: %d FAIL, %d warn", c->faults, c->doubts);
    else if (!c->opts.quiet)
        hvt__print_line(STDOUT_FILENO, c->doubts ? "ready: %d warn" : "ready", c->doubts);
}

hvt_stall hvt__check_patience(const hvt_options *opts, bool starts)
{
    const bool given = opts->from[HVT__AT_stall_abort] != HVT_FROM_DEFAULT;

    return (hvt_stall){0, given ? opts->stall_abort : starts ? START : ANSWER};
}

hvt_status hvt__check(const hvt_options *opts, hvt_world *world, int *ret_faults)
{
    checking c = {.opts = *opts, .world = world};
    const hvt_stall patience = hvt__check_patience(opts, false);
    hvt_status s = HVT_OK;

    if (!world) {
        check_job(&c);
        print_end(&c);
        *ret_faults = c.faults;
        return HVT_OK;
    }
    stage = "options";
    hvt_world_on_stall(give_up, NULL);
    HVT_TRY(hvt_world_watch(world, &patience));
    c.options = hvt_options_prepare(&c.opts, c.world) ? failed() : (hvt__line){HVT__GOOD, "fit together"};
    c.opts = hvt__options_settled(&c.opts);
    stage = "facts";
    HVT_TRY_OR(done, gather(&c));
    check_job(&c);
    check_run(&c);
    print_end(&c);
    s = hvt_world_broadcast(world, &c.faults, sizeof c.faults, 0);
    *ret_faults = c.faults;
done:
    hvt_device_close(&c.dev);
    free((void *)c.ranks.place);
    if (!c.opens)
        hvt_options_release(&c.opts);
    return s;
}
