/*
 * The library in a host program that uses MPI and threads itself, and makes mistakes: each of them ends in an
 * error that names the mistake, on every rank that it concerns, never in a crash or a hang.
 *
 * Under mpirun only. SIGALRM ends a test that hangs.
 */
#include "config.h"

#if HVT_HAVE_MPI
#include "check.h"
#include "logged.h"
#include "hvt/hvt.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { PATIENCE = 120 /* s, for a test */ };

static hvt_world *world;
static hvt_device *dev;
static int rank, size;
static const char *const comms[] = {"shm", "mpi"};

static bool was_logged(const char *part)
{
    log_release();
    return strstr(logged, part) != NULL;
}

/* ---- MPI that is not there ------------------------------------------------------------------------ */

TEST(a_communicator_is_not_wrapped_before_mpi_is_initialised)
{
    MPI_Comm all = MPI_COMM_WORLD;
    hvt_world *w = NULL;

    CHECK_FAILS(hvt_world_wrap(&all, &w), E_COMM, "before MPI_Init");
    CHECK(!w, "there is a world");
}

TEST(no_communicator_is_an_argument_error)
{
    MPI_Comm none = MPI_COMM_NULL, half, between;
    hvt_world *w = NULL;

    CHECK_FAILS(hvt_world_wrap(&none, &w), E_ARG, "MPI_COMM_NULL");
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, !(rank % 2), 0, &between);
    CHECK_FAILS(hvt_world_wrap(&between, &w), E_ARG, "intercommunicator");
    CHECK(!w, "there is a world");
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

/* ---- threads ---------------------------------------------------------------------------------------- */

enum { ROUNDS = 300, COUNT = 20000 };

typedef struct duty {
    pthread_t thread;
    MPI_Comm comm; /* of its own */
    const char *name;
    int number, wrong;
    hvt_status status;
    char error[512];
} duty;

/* Everything that waits for other ranks, in a loop. */
static hvt_status serve(duty *d, hvt_world **w, hvt_device **own, hvt_comm **c)
{
    static float block[2][COUNT];
    float *x = block[d->number];
    hvt_ticket t;
    hvt_status s = hvt_world_wrap(&d->comm, w);

    if (s == HVT_OK)
        s = hvt_device_open("ref", NULL, own);
    if (s == HVT_OK)
        s = hvt_comm_open(d->name, *w, *own, c);
    for (int round = 0; round < ROUNDS && s == HVT_OK; round++) {
        size_t n = round % 10 ? 100 : COUNT;
        double sum = rank + round;
        int32_t most = rank * (d->number + 1);

        for (size_t i = 0; i < n; i++)
            x[i] = (float)(rank + d->number + round % 7);
        s = hvt_comm_allreduce(*c, x, n, HVT_F32, &t);
        if (s == HVT_OK)
            s = hvt_comm_wait(*c, t);
        if (s == HVT_OK)
            s = hvt_world_allreduce(*w, HVT_SUM, &sum, 1);
        if (s == HVT_OK)
            s = hvt_allreduce(*c, NULL, &most, 1, HVT_I32, HVT_MAX, NULL, NULL);
        if (s == HVT_OK && round % 50 == 0)
            s = hvt_comm_broadcast(*c, x, sizeof *x, round / 50 % size);
        for (size_t i = 0; i < n; i++)
            d->wrong += x[i] != (float)(size * (size - 1) / 2 + size * (d->number + round % 7));
        d->wrong += sum != size * (size - 1) / 2 + size * round || most != (size - 1) * (d->number + 1);
    }
    return s;
}

static void *on_duty(void *arg)
{
    duty *d = arg;
    hvt_world *w = NULL;
    hvt_device *own = NULL;
    hvt_comm *c = NULL;

    d->status = serve(d, &w, &own, &c);
    snprintf(d->error, sizeof d->error, "%s", hvt_last_error());
    hvt_comm_close(&c);
    hvt_device_close(&own);
    hvt_world_close(&w);
    return NULL;
}

TEST(two_threads_with_a_world_and_a_comm_each_do_not_wait_for_each_other)
{
    for (int k = 0; k < 4; k++) { /* each on shm or mpi */
        duty d[2] = {{.name = comms[k % 2], .number = 0}, {.name = comms[k / 2], .number = 1}};

        for (int i = 0; i < 2; i++)
            MPI_Comm_dup(MPI_COMM_WORLD, &d[i].comm);
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&d[(i + rank) % 2].thread, NULL, on_duty, &d[(i + rank) % 2]), "no thread");
        for (int i = 0; i < 2; i++) {
            pthread_join(d[i].thread, NULL);
            CHECK(d[i].status == HVT_OK && !d[i].wrong, "thread %d on %s: %d wrong values; %s", i, d[i].name,
                  d[i].wrong, d[i].error);
            MPI_Comm_free(&d[i].comm);
        }
    }
}

/* ---- close, and something else on other ranks ------------------------------------------------------- */

typedef struct case_of {
    const char *comm;
    bool checked, worker; /* the sum is hvt_allreduce(); ranks have a worker */
} case_of;

static const case_of cases[] = {{"shm", false, false}, {"shm", true, false},  {"shm", false, true},
                                {"shm", true, true},   {"mpi", false, false}, {"mpi", true, false},
                                {"mpi", false, true},  {"mpi", true, true}};

static hvt_status open_case(const case_of *k, hvt_comm **ret_comm)
{
    const hvt_overlap worker = {.yield = true};
    hvt_status s = hvt_comm_open(k->comm, world, dev, ret_comm);

    return s == HVT_OK && k->worker ? hvt_comm_overlap(*ret_comm, &worker) : s;
}

static hvt_status sum(hvt_comm *c, bool checked, float *x, size_t n)
{
    hvt_ticket t;
    hvt_status s;

    if (checked)
        return hvt_allreduce(c, NULL, x, n, HVT_F32, HVT_MAX, NULL, NULL);
    s = hvt_comm_allreduce(c, x, n, HVT_F32, &t);
    return s == HVT_OK ? hvt_comm_wait(c, t) : s;
}

TEST(closing_a_comm_that_others_sum_with_is_an_error_on_both_sides)
{
    static float x[30000];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const case_of *k = &cases[i];
        hvt_comm *c = NULL;
        char name[64];

        CHECK_OK(open_case(k, &c));
        CHECK_OK(sum(c, k->checked, x, 30000)); /* so far all is well */
        if (rank == 1) {
            log_keep(HVT_LOG_WARN);
            hvt_comm_close(&c);
            snprintf(name, sizeof name, "rank 1 (%s) closed it while rank 0 (", hvt_world_host(world, 1));
            CHECK(was_logged(name), "comm %s, checked %d, worker %d: not '%s' but '%s'", k->comm, k->checked,
                  k->worker, name, logged);
        } else {
            snprintf(name, sizeof name, "rank 1 (%s) has left the comm", hvt_world_host(world, 1));
            CHECK_FAILS(sum(c, k->checked, x, 30000), E_COMM, name);
            CHECK_FAILS(sum(c, k->checked, x, 3), E_COMM, "earlier");
            hvt_comm_close(&c);
        }
        CHECK(!c, "close leaves NULL");
        CHECK_OK(hvt_world_barrier(world)); /* and the world goes on */
    }
}

TEST(calls_that_a_failure_dropped_have_failed_too)
{
    float x[3][100] = {{0}};
    hvt_ticket t[3];
    hvt_comm *c = NULL;

    CHECK_OK(hvt_comm_open("mpi", world, dev, &c));
    if (rank != 1) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(hvt_allreduce(c, NULL, x[i], 100, HVT_F32, HVT_SUM, NULL, &t[i]));
        CHECK_OK(hvt_comm_allreduce(c, x[2], 100, HVT_F32, &t[2])); /* behind them */
        CHECK_FAILS(hvt_comm_wait(c, t[0]), E_COMM, "rank 1 (");
        for (int i = 2; i >= 0; i--)
            CHECK_FAILS(hvt_comm_wait(c, t[i]), E_COMM, "earlier operation");
        CHECK_FAILS(hvt_comm_allreduce(c, x[2], 100, HVT_F32, &t[2]), E_COMM, "earlier operation");
    }
    log_keep(HVT_LOG_WARN);
    hvt_comm_close(&c);
    log_release();
    CHECK_OK(hvt_world_barrier(world));
}

/* ---- in flight --------------------------------------------------------------------------------------- */

TEST(memory_is_given_back_when_the_operations_on_it_are_done)
{
    enum { LONG = 300007 };

    for (int k = 0; k < 2; k++) {
        hvt_comm *c = NULL;
        hvt_ticket t;
        float *x = NULL;
        int wrong = 0;

        CHECK_OK(hvt_comm_open(comms[k], world, dev, &c));
        CHECK_OK(hvt_comm_alloc(c, LONG * sizeof *x, (void **)&x));
        for (int i = 0; i < LONG; i++)
            x[i] = 1;
        CHECK_OK(hvt_comm_allreduce(c, x, LONG, HVT_F32, &t));
        if (rank == 0) /* nothing else has rank 0 do its part */
            hvt_comm_release(c, x);
        CHECK_OK(hvt_comm_wait(c, t));
        for (int i = 0; i < LONG && rank; i++)
            wrong += x[i] != (float)size;
        CHECK(!wrong, "comm %s: %d sums", comms[k], wrong);
        if (rank)
            hvt_comm_release(c, x);
        hvt_comm_close(&c);
    }
}

TEST(a_comm_can_be_closed_in_the_middle_of_its_operations)
{
    enum { LONG = 1000003, DEEP = 4 };

    for (int k = 0; k < 2; k++) {
        float *x = malloc(DEEP * LONG * sizeof *x);
        hvt_comm *c = NULL;
        hvt_ticket t;

        for (int i = 0; i < DEEP * LONG; i++)
            x[i] = 1;
        CHECK_OK(hvt_comm_open(comms[k % 2], world, dev, &c));
        for (int i = 0; i < DEEP; i++)
            CHECK_OK(hvt_comm_allreduce(c, x + i * LONG, LONG, HVT_F32, &t));
        hvt_comm_close(&c);
        CHECK(!c, "close leaves NULL");
        for (int i = 0; i < DEEP * LONG; i++)
            x[i] = (float)rank; /* nobody reads or writes it any more */
        CHECK_OK(hvt_comm_open(comms[k % 2], world, dev, &c));
        CHECK_OK(sum(c, false, x, LONG));
        CHECK(x[0] == (float)(size * (size - 1) / 2) && x[LONG - 1] == x[0] && x[LONG] == (float)rank,
              "comm %s: %g, %g, %g", comms[k % 2], (double)x[0], (double)x[LONG - 1], (double)x[LONG]);
        hvt_comm_close(&c);
        free(x);
    }
}

TEST(fused_tensors_can_be_given_up_in_the_middle_of_a_step)
{
    static float a[100000], b[50000];
    const hvt_piece pieces[] = {{"a", a, 100000, HVT_F32}, {"b", b, 50000, HVT_F32}};

    for (int k = 0; k < 2; k++) {
        hvt_comm *c = NULL;
        hvt_fuse *f = NULL;

        CHECK_OK(hvt_comm_open(comms[k], world, dev, &c));
        for (int again = 0; again < 3; again++) {
            CHECK_OK(hvt_fuse_create(c, pieces, 2, 0, HVT_SUM, &f));
            a[99999] = b[49999] = 1;
            CHECK_OK(hvt_fuse_ready(f, 0));
            if (again == 2)
                CHECK_OK(hvt_fuse_exchange(f));
            hvt_fuse_free(&f);
        }
        CHECK(a[99999] == (float)size && b[49999] == (float)size, "comm %s: %g and %g", comms[k],
              (double)a[99999], (double)b[49999]);
        hvt_comm_close(&c);
    }
}

/* ---- cutoffs and names ------------------------------------------------------------------------------ */

TEST(a_comm_keeps_the_cutoffs_that_it_was_opened_with)
{
    enum { LONG = 2000003 };
    float *x = malloc(LONG * sizeof *x);
    hvt_comm *c = NULL;
    int wrong = 0;

    CHECK_OK(hvt_comm_set_cutoffs("mpi-short=1024,mpi-packet=1024", false));
    CHECK_OK(hvt_comm_open("mpi", world, dev, &c));
    CHECK_OK(hvt_comm_set_cutoffs("mpi-short=16777216,mpi-packet=268435456", false));
    for (int i = 0; i < LONG; i++)
        x[i] = (float)(i % 100);
    CHECK_OK(sum(c, false, x, LONG));
    for (int i = 0; i < LONG; i++)
        wrong += x[i] != (float)(size * (i % 100));
    CHECK(!wrong, "%d sums", wrong);
    hvt_comm_close(&c);
    free(x);
    CHECK_OK(hvt_comm_set_cutoffs(rank == 1 ? "mpi-short=4096" : "mpi-short=16384", false));
    CHECK_FAILS(hvt_comm_open("mpi", world, dev, &c), E_MISMATCH, "mpi-short differs");
    CHECK_OK(hvt_comm_set_cutoffs("mpi-short=16384,mpi-packet=49152", false));
    CHECK_FAILS(hvt_comm_open(rank == 1 ? "mpi" : "shm", world, dev, &c), E_MISMATCH, "comm differs");
    CHECK_FAILS(hvt_comm_open(rank == 1 ? "udp" : "shm", world, dev, &c), E_ARG, "'udp'");
    CHECK(!c, "something was opened");
}

/* ---- what is still in use --------------------------------------------------------------------------------
 */

TEST(what_is_still_in_use_is_not_closed)
{
    hvt_world *half = NULL, *quarter = NULL;
    hvt_comm *c = NULL;
    hvt_fuse *f = NULL;
    float x[10] = {1};
    const hvt_piece piece = {"x", x, 10, HVT_F32};

    CHECK_OK(hvt_world_split(world, rank % 2, 0, &half));
    CHECK_OK(hvt_world_split(half, 0, 0, &quarter));
    CHECK_OK(hvt_comm_open("auto", half, dev, &c));
    log_keep(HVT_LOG_WARN);
    hvt_device_close(&dev);
    CHECK(was_logged("it is used by 1 comm; close") && dev, "%s", logged);
    log_keep(HVT_LOG_WARN);
    hvt_world_close(&half);
    CHECK(was_logged("1 comms and 1 groups of it are still open") && half, "%s", logged);
    CHECK_OK(hvt_fuse_create(c, &piece, 1, 0, HVT_SUM, &f));
    log_keep(HVT_LOG_WARN);
    hvt_comm_close(&c);
    CHECK(was_logged("1 of its blocks of memory are still held") && c, "%s", logged);
    CHECK_OK(hvt_fuse_exchange(f)); /* all of it still works */
    CHECK(x[0] == (float)hvt_world_size(half), "%g", (double)x[0]);
    hvt_fuse_free(&f);
    hvt_comm_close(&c);
    hvt_world_close(&quarter);
    log_keep(HVT_LOG_WARN);
    hvt_world_close(&half);
    CHECK(!c && !quarter && !half && !was_logged("not closed"), "%s", logged);
}

/* ---- MPI that is gone
 * -------------------------------------------------------------------------------------- */

TEST(worlds_and_comms_may_be_closed_after_mpi_was_finalised)
{
    MPI_Comm all = MPI_COMM_WORLD;
    hvt_world *w = NULL;
    hvt_comm *c[3] = {NULL};
    hvt_ticket t;
    float x = 1;

    for (int i = 0; i < 2; i++)
        CHECK_OK(hvt_comm_open(comms[i], world, dev, &c[i]));
    CHECK_OK(hvt_comm_open("mpi", world, dev, &c[2]));
    CHECK_OK(hvt_comm_allreduce(c[2], &x, 1, HVT_F32, &t)); /* in flight */
    if (rank < size - 1) {                                  /* the last rank has finalised MPI */
        char text[96];

        snprintf(text, sizeof text, "rank %d (%s) has left the comm", size - 1,
                 hvt_world_host(world, size - 1));
        for (int i = 0; i < 2; i++)
            CHECK_FAILS(hvt_barrier(c[i], NULL), E_COMM, text);
    } else {
        log_keep(HVT_LOG_WARN);
    }
    MPI_Finalize();
    CHECK(rank < size - 1 || was_logged("finalises MPI without having closed"), "%s", logged);
    CHECK_FAILS(hvt_world_wrap(&all, &w), E_COMM, "after MPI_Finalize");
    CHECK_FAILS(hvt_world_barrier(world), E_COMM, "finalised");
    for (int i = 0; i < 3; i++)
        hvt_comm_close(&c[i]);
    log_keep(HVT_LOG_WARN);
    hvt_world_close(&world);
    CHECK(!world && was_logged("after MPI_Finalize"), "%s", logged);
}

static void run(const char *name, void (*truth)(void))
{
    alarm(PATIENCE);
    check_run(name, truth);
    alarm(0);
}

#undef RUN
#define RUN(name) run(#name, name)

int main(int argc, char **argv)
{
    MPI_Comm all = MPI_COMM_WORLD;
    int provided, any, failed;

    RUN(a_communicator_is_not_wrapped_before_mpi_is_initialised);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (provided < MPI_THREAD_MULTIPLE) {
        MPI_Finalize();
        return 77;
    }
    CHECK_OK(hvt_world_wrap(&all, &world));
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    size = hvt_world_size(world);
    RUN(no_communicator_is_an_argument_error);
    RUN(two_threads_with_a_world_and_a_comm_each_do_not_wait_for_each_other);
    RUN(closing_a_comm_that_others_sum_with_is_an_error_on_both_sides);
    RUN(calls_that_a_failure_dropped_have_failed_too);
    RUN(memory_is_given_back_when_the_operations_on_it_are_done);
    RUN(a_comm_can_be_closed_in_the_middle_of_its_operations);
    RUN(fused_tensors_can_be_given_up_in_the_middle_of_a_step);
    RUN(a_comm_keeps_the_cutoffs_that_it_was_opened_with);
    RUN(what_is_still_in_use_is_not_closed);
    failed = check_failed;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    RUN(worlds_and_comms_may_be_closed_after_mpi_was_finalised);
    hvt_device_close(&dev);
    check_done();
    return any || check_failed;
}
#else
int main(void)
{
    return 77; /* no MPI to misuse */
}
#endif
