/*
 * alloc: every failed allocation is reported, and leaves nothing behind.
 *
 * The program is linked with --wrap, so that every allocation of libhvt comes through here. A whole run
 * (data, model, exchange, updates, evaluation, checkpoint), and one that continues from its checkpoint, are
 * repeated with their first, second, third ... allocation failing, until a run needs no more than were
 * granted. On several ranks only the last one lacks memory, in what all of them open together.
 */
#define _GNU_SOURCE
#include "hvt/hvt.h"
#include "check.h"
#include "config.h"

#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#if HVT_HAVE_MPI
#include <mpi.h>
#endif

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t from);
int __real_munmap(void *at, size_t bytes);
void __real_free(void *p);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t from);
int __wrap_munmap(void *at, size_t bytes);
void __wrap_free(void *p);

static struct {
    pthread_mutex_t lock;
    long asked, refuse; /* allocations so far; which one is refused, 0: none */
    long live;
    void *held[1 << 16]; /* open addressing; NULL: never used, &gone: free again */
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

static char gone;

static size_t home(const void *p)
{
    return ((uintptr_t)p * 0x9e3779b97f4a7c15u) >> 48;
}

static bool granted(void)
{
    bool ok;

    pthread_mutex_lock(&heap.lock);
    ok = ++heap.asked != heap.refuse;
    pthread_mutex_unlock(&heap.lock);
    if (!ok)
        errno = ENOMEM;
    return ok;
}

static void *hold(void *p)
{
    size_t i = home(p), n = sizeof heap.held / sizeof *heap.held;

    if (!p)
        return NULL;
    pthread_mutex_lock(&heap.lock);
    while (heap.held[i % n] && heap.held[i % n] != &gone)
        i++;
    heap.held[i % n] = p;
    heap.live++;
    pthread_mutex_unlock(&heap.lock);
    return p;
}

static void let_go(void *p)
{
    size_t i = home(p), n = sizeof heap.held / sizeof *heap.held;

    if (!p)
        return;
    pthread_mutex_lock(&heap.lock);
    while (heap.held[i % n] && heap.held[i % n] != p)
        i++;
    if (heap.held[i % n]) { /* else the C library's: getline, open_memstream, strdup */
        heap.held[i % n] = &gone;
        heap.live--;
    }
    pthread_mutex_unlock(&heap.lock);
}

void *__wrap_malloc(size_t bytes)
{
    return granted() ? hold(__real_malloc(bytes)) : NULL;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return granted() ? hold(__real_calloc(n, bytes)) : NULL;
}

void *__wrap_realloc(void *old, size_t bytes)
{
    if (!granted())
        return NULL;
    let_go(old);
    return hold(__real_realloc(old, bytes));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return granted() ? hold(__real_aligned_alloc(align, bytes)) : NULL;
}

void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t from)
{
    return granted() ? hold(__real_mmap(at, bytes, prot, flags, fd, from)) : MAP_FAILED;
}

int __wrap_munmap(void *at, size_t bytes)
{
    let_go(at);
    return __real_munmap(at, bytes);
}

void __wrap_free(void *p)
{
    let_go(p);
    __real_free(p);
}

/* ---- the run that is repeated --------------------------------------------------------------------- */

static char folder[40] = "/tmp/hvt-alloc-XXXXXX", log_file[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

static bool factors; /* how gradients travel */

static hvt_status train(hvt_world *world, const char *resume, int steps, uint64_t *ret_weights)
{
    hvt_options o;
    hvt_report report;
    hvt_status s;

    hvt_options_default(&o);
    o.size = 8;
    o.limit = 12;
    o.batch = 3;
    o.shards = 2;
    o.threads = 2;
    o.steps = steps;
    o.augment = "crop:1,flip";
    o.lr = 0.01;
    o.bucket = 1 << 16;
    o.compression = factors ? "powersgd:1" : "bf16";
    o.save = folder;
    o.overwrite = !*resume;
    o.resume = resume;
    o.log = log_file;
    o.quiet = true;
    s = hvt_train(&o, world, &report);
    if (s == HVT_OK)
        *ret_weights = report.weights;
    return s;
}

static hvt_status in_a_world(const char *resume, int steps, uint64_t *ret_weights)
{
    hvt_world *world = NULL;
    hvt_status s = hvt_world_open("singleton", &world);

    if (s == HVT_OK)
        s = train(world, resume, steps, ret_weights);
    hvt_world_close(&world);
    return s;
}

static hvt_status training_run(uint64_t *ret_weights)
{
    return in_a_world("", 2, ret_weights);
}

/* Between the folder, "", and where its files are laid aside, KEPT. */
#define KEPT ".kept"

static void copy_folder(const char *from, const char *to)
{
    char command[160];

    snprintf(command, sizeof command, "rm -rf %s%s && cp -r %s%s %s%s", folder, to, folder, from, folder, to);
    CHECK(system(command) == 0, "%s", command);
}

static hvt_status resumed_run(uint64_t *ret_weights)
{
    copy_folder(KEPT, "");
    return in_a_world(folder, 3, ret_weights);
}

static void quiet(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

/* Every collective that takes memory, in flight together, and fused tensors, on the comm of one rank; the
 * result stands for what would be weights. */
static hvt_status collectives(uint64_t *ret_weights, bool worker)
{
    enum { COUNT = 5000, FLIGHT = 40 };
    static int64_t x[COUNT], all[COUNT];
    static float g[COUNT];
    hvt_piece piece = {"g", g, COUNT, HVT_F32};
    hvt_world *lone = NULL, *world = NULL;
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    hvt_fuse *f = NULL;
    hvt_ticket t = 0;
    hvt_status s = hvt_world_open("singleton", &lone);

    for (int i = 0; i < COUNT; i++)
        x[i] = (int64_t)(g[i] = (float)i);
    if (s == HVT_OK)
        s = hvt_world_split(lone, 0, 0, &world);
    if (s == HVT_OK)
        s = hvt_device_open("ref", NULL, &dev);
    if (s == HVT_OK)
        s = hvt_comm_open("auto", world, dev, &c);
    if (s == HVT_OK && worker)
        s = hvt_comm_overlap(c, &(hvt_overlap){.yield = true});
    for (int i = 0; s == HVT_OK && i < FLIGHT; i++)
        s = hvt_allreduce(c, NULL, x, COUNT, HVT_I64, HVT_MAX, NULL, &t);
    if (s == HVT_OK)
        s = hvt_comm_wait(c, t);
    if (s == HVT_OK)
        s = hvt_allreduce(c, NULL, g, COUNT, HVT_F32, HVT_ADASUM, NULL, NULL); /* takes the most memory */
    if (s == HVT_OK)
        s = hvt_allgather(c, x, COUNT, all, NULL, HVT_I64, NULL);
    if (s == HVT_OK)
        s = hvt_fuse_create(c, &piece, 1, 0, HVT_AVERAGE, &f);
    if (s == HVT_OK)
        s = hvt_fuse_exchange(f);
    if (s == HVT_OK)
        *ret_weights = (uint64_t)(all[COUNT - 1] + (int64_t)g[COUNT - 1]);
    hvt_fuse_free(&f);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    hvt_world_close(&lone);
    return s;
}

static hvt_status collectives_run(uint64_t *ret_weights)
{
    return collectives(ret_weights, false);
}

static hvt_status worker_run(uint64_t *ret_weights)
{
    return collectives(ret_weights, true);
}

/* Every stride-th allocation of a run, refused once; with sanitizers, which make it ten times as slow, a
 * quarter of those. */
static void refuse_each(hvt_status (*whole_run)(uint64_t *ret_weights), long least, long stride)
{
    uint64_t weights = 0, again = 0;
    long needed, before, tried = 0, refused = 0;

    if (CHECK_SANITIZED)
        stride *= 4;
    CHECK_OK(whole_run(&weights)); /* what is made once and kept is there now */
    before = heap.live;
    heap.asked = 0;
    CHECK_OK(whole_run(&weights));
    CHECK(heap.live == before, "%ld allocations more are held after a run that went well",
          heap.live - before);
    needed = heap.asked;
    CHECK(needed >= least, "only %ld allocations came through here", needed);

    for (long k = 1; k <= needed; k += stride, tried++) {
        hvt_status s;

        heap.asked = 0;
        heap.refuse = k;
        s = whole_run(&again);
        heap.refuse = 0;
        refused += s != HVT_OK;
        if (s == HVT_OK) /* it can do without: a larger page, a name for a message */
            CHECK(again == weights, "allocation %ld of %ld: a run went well with other weights", k, needed);
        else
            CHECK(s == HVT_E_MEM || s == HVT_E_IO, "allocation %ld of %ld: %s: %s", k, needed,
                  hvt_status_name(s), hvt_last_error());
        CHECK(s == HVT_OK || *hvt_last_error(), "allocation %ld of %ld: no word of it", k, needed);
        CHECK(heap.live == before, "allocation %ld of %ld: %ld are held after: %s\n%s", k, needed,
              heap.live - before, hvt_last_error(), hvt_last_trace());
        if (check_now > 10)
            break;
    }
    CHECK(refused * 10 > tried * 9, "only %ld of %ld refusals were noticed", refused, tried);
    heap.asked = 0;
    CHECK_OK(whole_run(&again));
    CHECK(again == weights, "after all that, a run ends with other weights");
    printf("%ld of %ld allocations, each refused once; %ld runs failed cleanly\n", tried, needed, refused);
}

static void refuse_each_of_a_training(long stride)
{
    uint64_t weights = 0;

    refuse_each(training_run, 200, stride);
    CHECK_OK(training_run(&weights));
    copy_folder("", KEPT);
    refuse_each(resumed_run, 200, stride);
}

TEST(any_allocation_of_a_training_may_fail)
{
    refuse_each_of_a_training(1);
}

/* Most of its allocations are those of the truth before. */
TEST(any_allocation_of_a_training_with_factors_may_fail)
{
    factors = true;
    refuse_each_of_a_training(3);
}

/* A page of the log of a training, and of two predictions, one of them a mistake with its image. */
static hvt_status report_run(uint64_t *ret_weights)
{
    char table[80], page[80];
    const char *const runs[] = {log_file, table};
    hvt_options o;
    FILE *f;

    snprintf(table, sizeof table, "%s/table.csv", folder);
    snprintf(page, sizeof page, "%s/page.html", folder);
    f = fopen(table, "w");
    fputs("index,file,label,class1,probability1\n0,a,0,0,0.9\n1,b,1,2,0.8\n", f);
    fclose(f);
    hvt_options_default(&o);
    o.ask = HVT_ASK_REPORT;
    o.files = runs;
    o.nfiles = 2;
    o.output = page;
    o.quiet = true;
    *ret_weights = 1;
    return hvt_report_write(&o);
}

TEST(any_allocation_of_a_report_may_fail)
{
    uint64_t weights;

    CHECK_OK(training_run(&weights));
    refuse_each(report_run, 30, 1);
}

TEST(any_allocation_of_a_collective_may_fail)
{
    refuse_each(collectives_run, 15, 1);
}

TEST(any_allocation_of_a_collective_with_a_worker_may_fail)
{
    refuse_each(worker_run, 15, 1);
}

#if HVT_HAVE_MPI
/* ---- one rank of several ------------------------------------------------------------------------------ */

static int rank, size;

/* All that ranks open by agreement, on MPI that is up: nobody is left waiting for the one that fails. */
static hvt_status open_all(const char *comm)
{
    MPI_Comm all = MPI_COMM_WORLD;
    hvt_world *world = NULL, *part = NULL;
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    void *block = NULL;
    double many[100] = {0};
    hvt_status s = hvt_world_wrap(&all, &world);

    if (s == HVT_OK)
        s = hvt_world_split(world, 0, size - rank, &part);
    if (s == HVT_OK)
        s = hvt_world_allreduce(part, HVT_SUM, many, 100);
    if (s == HVT_OK)
        s = hvt_world_agree(part, hvt_device_open("ref", NULL, &dev));
    if (s == HVT_OK)
        s = hvt_comm_open(comm, part, dev, &c);
    if (s == HVT_OK)
        s = hvt_comm_alloc(c, 1000, &block);
    if (c)
        hvt_comm_release(c, block);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    hvt_world_close(&part);
    hvt_world_close(&world);
    return s;
}

static void refuse_on_the_last(const char *comm)
{
    long needed, before, failed = 0;

    CHECK_OK(open_all(comm));
    before = heap.live;
    heap.asked = 0;
    CHECK_OK(open_all(comm));
    needed = heap.asked;
    MPI_Bcast(&needed, 1, MPI_LONG, size - 1, MPI_COMM_WORLD);
    CHECK(needed >= 10, "only %ld allocations came through here", needed);
    for (long k = 1; k <= needed; k++) {
        hvt_status mine;
        int lack;

        heap.asked = 0;
        heap.refuse = rank == size - 1 ? k : 0;
        mine = open_all(comm);
        heap.refuse = 0;
        lack = mine != HVT_OK;
        MPI_Allreduce(MPI_IN_PLACE, &lack, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(lack == 0 || lack == size, "allocation %ld of %ld on comm %s: %d of %d ranks failed", k, needed,
              comm, lack, size);
        CHECK(mine == HVT_OK || mine == HVT_E_MEM, "allocation %ld of %ld on comm %s: %s: %s", k, needed,
              comm, hvt_status_name(mine), hvt_last_error());
        CHECK(heap.live == before, "allocation %ld of %ld on comm %s: %ld are held after", k, needed, comm,
              heap.live - before);
        failed += mine != HVT_OK;
    }
    CHECK(failed * 2 > needed, "only %ld of %ld refusals were noticed", failed, needed);
    if (rank == 0)
        printf("%s: %ld allocations, each refused once; %ld times all ranks failed\n", comm, needed, failed);
}

TEST(what_one_rank_cannot_open_none_has)
{
    refuse_on_the_last("mpi");
    refuse_on_the_last("shm");
    refuse_on_the_last("auto");
}

static int run_on_ranks(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    RUN(what_one_rank_cannot_open_none_has);
    MPI_Allreduce(MPI_IN_PLACE, &check_failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return check_done();
}
#endif

int main(int argc, char **argv)
{
    hvt_log_to(quiet, NULL, HVT_LOG_ERROR);
#if HVT_HAVE_MPI
    if (argc > 1 && !strcmp(argv[1], "ranks"))
        return run_on_ranks();
#endif
    (void)argc, (void)argv;
    if (!mkdtemp(folder))
        return 1;
    snprintf(log_file, sizeof log_file, "%s/log", folder);
    RUN(any_allocation_of_a_collective_may_fail);
    RUN(any_allocation_of_a_collective_with_a_worker_may_fail);
    RUN(any_allocation_of_a_training_may_fail);
    RUN(any_allocation_of_a_report_may_fail);
    RUN(any_allocation_of_a_training_with_factors_may_fail);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    strcat(folder, KEPT);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return check_done();
}
