/*
 * The MPI traffic of a training step, counted by its profiling interface: the messages of its buckets' sums
 * and no others; none if the ranks share memory.
 *
 * The prediction has two parts. The messages of a bucket's sum are measured separately and, for a power of
 * two of ranks, computed: a short vector is sent whole to one partner on each of log2(ranks) levels; of a
 * long one every rank sends, on the way up, all that it does not keep and, on the way down, its slice to
 * those that lack it: 2 (ranks - 1) vectors in all. A step then takes the sum over its buckets.
 *
 * Under mpirun only.
 */
#include "config.h"
#include "heap.h"
#include "optim/dist.h"
#include "rig.h"
#include "hvt/collective.h"
#include "hvt/train.h"

#if HVT_HAVE_MPI
#include "comm/comm_internal.h"
#include "count_mpi.h"

static int rank, size;

/* The same of all ranks together. */
static mpi_count on_all_ranks(mpi_count mine)
{
    int64_t n[5] = {mine.sent, mine.sent_bytes, mine.taken, mine.taken_bytes, mine.talk};

    CHECK_OK(hvt_world_allreduce_i64(job, HVT_SUM, n, 5));
    return (mpi_count){n[0], n[1], n[2], n[3], n[4]};
}

static mpi_count plus(mpi_count a, mpi_count b)
{
    return (mpi_count){a.sent + b.sent, a.sent_bytes + b.sent_bytes, a.taken + b.taken,
                       a.taken_bytes + b.taken_bytes, a.talk + b.talk};
}

static bool equal(mpi_count a, mpi_count b)
{
    return a.sent == b.sent && a.sent_bytes == b.sent_bytes && a.taken == b.taken &&
           a.taken_bytes == b.taken_bytes && a.talk == b.talk;
}

static int levels(void)
{
    int n = 0;

    while (1 << n < size)
        n++;
    return n;
}

/* This rank's part of one sum, by itself. */
static mpi_count of_a_sum(hvt_comm *c, size_t count, hvt_dtype type)
{
    void *buf = calloc(count + 1, sizeof(float));
    mpi_count before = mpi_counted((mpi_count){0});
    hvt_ticket t;

    CHECK_OK(hvt_comm_allreduce(c, buf, count, type, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    free(buf);
    return mpi_counted(before);
}

TEST(a_sum_takes_the_messages_worked_out_on_paper)
{
    enum { PIECE = 3968 / sizeof(float) }; /* of a short sum between processes of one host */
    size_t most = hvt__cutoffs_next.mpi_short / sizeof(float);
    const size_t counts[] = {0, 1, 17, PIECE, PIECE + 1, most - 1, most, most + 1, 3 * most + 5, 100003};
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_comm_open("mpi", job, dev, &c));
    for (size_t i = 0; i < HVT_LEN(counts); i++) {
        mpi_count mine = of_a_sum(c, counts[i], HVT_F32), all = on_all_ranks(mine);
        int64_t bytes = (int64_t)(counts[i] * sizeof(float));
        bool whole = counts[i] <= most, even = (size & (size - 1)) == 0;
        int pieces = (int)((counts[i] + PIECE - 1) / PIECE);

        CHECK(!all.talk, "%zu elements: %s was called", counts[i], mpi_use.last_talk);
        CHECK(all.taken == all.sent && all.taken_bytes == all.sent_bytes,
              "%zu elements: %lld messages of %lld bytes are sent, %lld of %lld taken", counts[i],
              (long long)all.sent, (long long)all.sent_bytes, (long long)all.taken,
              (long long)all.taken_bytes);
        if (whole && even)
            CHECK(mine.sent == levels() * pieces && mine.sent_bytes == levels() * bytes,
                  "%zu elements: %lld messages of %lld bytes, not %d vectors in %d pieces", counts[i],
                  (long long)mine.sent, (long long)mine.sent_bytes, levels(), pieces);
        else if (even)
            CHECK(mine.sent == 2 * levels() && all.sent_bytes == 2 * (size - 1) * bytes,
                  "%zu elements: %lld messages of a rank, %lld bytes of all", counts[i], (long long)mine.sent,
                  (long long)all.sent_bytes);
        else if (!whole) /* a block of three halves less evenly; a level costs at most all vectors twice */
            CHECK(all.sent_bytes >= 2 * (size - 1) * bytes && all.sent_bytes <= 4 * (size - 1) * bytes,
                  "%zu elements: %lld bytes of all", counts[i], (long long)all.sent_bytes);
    }
    hvt_comm_close(&c);
    hvt_device_close(&dev);
}

/* Slices of the sum to their owners, and parameters from them. */
static mpi_count of_slices(hvt_comm *c, size_t count, hvt_dtype type)
{
    void *buf = calloc(count + 1, sizeof(float));
    mpi_count before = mpi_counted((mpi_count){0});
    hvt_ticket t;

    CHECK_OK(hvt_comm_reduce_scatter(c, buf, count, type, &t));
    CHECK_OK(hvt_comm_allgather(c, buf, count, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    free(buf);
    return mpi_counted(before);
}

/* What this rank's part of a step's sums is. */
static mpi_count of_buckets(const rig *r)
{
    bool sharded = hvt_distopt_update(r->d) == HVT_UPDATE_SHARDED;
    hvt_dtype wire = r->u.dist.wire;
    mpi_count sum = {0};
    hvt_comm *c = NULL;
    const size_t *bytes;
    int n = hvt_distopt_buckets(r->d, &bytes);

    CHECK_OK(hvt_comm_open("mpi", job, r->dev, &c));
    for (int b = 0; b < n; b++) {
        size_t count = bytes[b] / sizeof(float);
        /* the first one of a 16-bit wire or of slices is that of the step statistics, which stays f32; where
         * slices are looked at before any is updated, a word of each rank rides with it, and the norm's
         * digits */
        bool looks = !b && sharded && (wire != HVT_F32 || r->u.dist.clip_norm > 0);
        size_t words = looks ? (size_t)size + hvt__clip_digits(r->d) : 0;

        sum = plus(sum,
                   b && sharded ? of_slices(c, count, wire) : of_a_sum(c, count + words, b ? wire : HVT_F32));
    }
    hvt_comm_close(&c);
    return sum;
}

TEST(a_step_over_mpi_sends_its_buckets_and_nothing_else)
{
    static const size_t sizes[] = {0, 2000, HVT_BUCKET_ALL};
    static const hvt_dtype wires[] = {HVT_F32, HVT_BF16};

    for (size_t i = 0; i < 4 * HVT_LEN(sizes) * HVT_LEN(wires); i++) {
        setup u = usual(job, 2 * size);
        mpi_count want;
        rig r;

        u.comm = "mpi";
        u.dist.bucket_bytes = sizes[i / 8];
        u.dist.clip_norm = i / 4 % 2 ? .05 : 0;
        u.dist.wire = wires[i / 2 % 2];
        u.dist.update = i % 2 ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
        CHECK_OK(rig_open(&r, &u));
        want = of_buckets(&r);
        CHECK(want.sent > 0, "no messages are predicted");
        for (int t = 0; t < (heap_memcheck() ? 1 : 4); t++) {
            mpi_count before = mpi_counted((mpi_count){0}), got;

            CHECK_OK(rig_step(&r, t));
            got = mpi_counted(before);
            CHECK(equal(got, want),
                  "buckets of %zu bytes, wire %s, clip %g, step %d: %lld messages of %lld bytes and %lld "
                  "other calls "
                  "(%s), "
                  "predicted %lld of %lld",
                  u.dist.bucket_bytes, hvt_dtype_name(u.dist.wire), u.dist.clip_norm, t, (long long)got.sent,
                  (long long)got.sent_bytes, (long long)got.talk, got.talk ? mpi_use.last_talk : "none",
                  (long long)want.sent, (long long)want.sent_bytes);
        }
        rig_close(&r);
    }
}

/* Two rounds of sums, one of each bucket. */
TEST(a_step_of_factors_sends_two_rounds_and_nothing_else)
{
    static const size_t sizes[] = {0, 2000, HVT_BUCKET_ALL};

    for (size_t i = 0; i < HVT_LEN(sizes); i++) {
        setup u = usual(job, 2 * size);
        mpi_count want = {0};
        hvt_comm *c = NULL;
        rig r;

        u.comm = "mpi";
        u.dist.bucket_bytes = sizes[i];
        u.dist.powersgd = 1;
        CHECK_OK(rig_open(&r, &u));
        CHECK_OK(hvt_comm_open("mpi", job, r.dev, &c));
        want = of_a_sum(c, r.m->step_stats_count, HVT_F32);
        for (int b = 1; b < r.d->nbucket; b++)
            for (int second = 0; second < 2; second++) {
                hvt_bucket bucket = r.d->bucket[b];
                size_t count;

                bucket.second = second;
                bucket.codec->span(r.d, &bucket, &count);
                if (count)
                    want = plus(want, of_a_sum(c, count, HVT_F32));
            }
        hvt_comm_close(&c);
        for (int t = 0; t < 4; t++) {
            mpi_count before = mpi_counted((mpi_count){0}), got;

            CHECK_OK(rig_step(&r, t));
            got = mpi_counted(before);
            CHECK(equal(got, want),
                  "buckets of %zu bytes, step %d: %lld messages of %lld bytes and %lld other calls (%s), "
                  "predicted %lld of %lld",
                  u.dist.bucket_bytes, t, (long long)got.sent, (long long)got.sent_bytes, (long long)got.talk,
                  got.talk ? mpi_use.last_talk : "none", (long long)want.sent, (long long)want.sent_bytes);
        }
        rig_close(&r);
    }
}

TEST(a_step_over_shared_memory_calls_nothing_of_mpi)
{
    static const hvt_update updates[] = {HVT_UPDATE_AUTO, HVT_UPDATE_REPLICATED};

    for (size_t i = 0; i < HVT_LEN(updates); i++) {
        setup u = usual(job, 2 * size);
        mpi_count before, got;
        rig r;

        u.comm = "shm";
        u.dist.update = updates[i];
        CHECK_OK(rig_open(&r, &u));
        before = mpi_counted((mpi_count){0});
        for (int t = 0; t < 4; t++)
            CHECK_OK(rig_step(&r, t));
        got = mpi_counted(before);
        CHECK(equal(got, (mpi_count){0}), "4 steps: %lld messages, %lld receives, %lld other calls (%s)",
              (long long)got.sent, (long long)got.taken, (long long)got.talk,
              got.talk ? mpi_use.last_talk : "none");
        rig_close(&r);
    }
}

TEST(fused_tensors_of_ones_own_send_their_buckets_and_nothing_else)
{
    static float a[100], b[5000], d[17];
    const hvt_piece pieces[] = {
        {"a", a, HVT_LEN(a), HVT_F32}, {"b", b, HVT_LEN(b), HVT_F32}, {"d", d, 17, HVT_F32}};
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    hvt_fuse *f = NULL;
    mpi_count want, before;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_comm_open("mpi", job, dev, &c));
    CHECK_OK(hvt_fuse_create(c, pieces, 3, 0, HVT_AVERAGE, &f));
    want = plus(
        of_a_sum(c, HVT_LEN(a), HVT_F32),
        plus(of_a_sum(c, HVT_LEN(b), HVT_F32), of_a_sum(c, 17 + 1, HVT_F32))); /* and one element for joins */
    for (int t = 0; t < 3; t++) {
        before = mpi_counted((mpi_count){0});
        CHECK_OK(hvt_fuse_ready(f, 2 - t));
        CHECK_OK(hvt_fuse_exchange(f));
        CHECK(equal(mpi_counted(before), want), "step %d: %lld messages, predicted %lld", t,
              (long long)mpi_counted(before).sent, (long long)want.sent);
    }
    hvt_fuse_free(&f);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
}

/* What the whole program says on all ranks in so many steps, from reading its data to the end of the run. */
static mpi_count of_a_run(const char *comm, const char *steps)
{
    const char *const set[][2] = {{"size", "8"},       {"samples", heap_memcheck() ? "12" : "64"},
                                  {"batch", "1"},      {"threads", "1"},
                                  {"print-freq", "1"}, {"quiet", "on"},
                                  {"comm", comm},      {"steps", steps}};
    mpi_count before = mpi_counted((mpi_count){0});
    hvt_options opts;
    hvt_report report;

    hvt_options_default(&opts);
    for (size_t i = 0; i < HVT_LEN(set); i++)
        CHECK_OK(hvt_options_set(&opts, set[i][0], set[i][1]));
    CHECK_OK(hvt_train(&opts, job, &report));
    CHECK(report.steps == atoi(steps), "%lld steps, not %s", (long long)report.steps, steps);
    return on_all_ranks(mpi_counted(before));
}

TEST(more_steps_of_the_program_send_more_data_and_nothing_else)
{
    static const char *const comms[] = {"mpi", "shm"};

    for (size_t i = 0; i < HVT_LEN(comms); i++) {
        mpi_count two = of_a_run(comms[i], "2"), six = of_a_run(comms[i], "6");
        int64_t sent = six.sent - two.sent, bytes = six.sent_bytes - two.sent_bytes;

        CHECK(two.talk > 0 && six.talk == two.talk, "comm %s: %lld calls in 2 steps, %lld in 6", comms[i],
              (long long)two.talk, (long long)six.talk);
        CHECK((sent > 0) == !strcmp(comms[i], "mpi") && sent % 4 == 0 && bytes % 4 == 0,
              "comm %s: 4 more steps send %lld messages of %lld bytes", comms[i], (long long)sent,
              (long long)bytes);
    }
}

/* So that a count of nothing means something. */
TEST(the_counter_counts)
{
    mpi_count before = mpi_counted((mpi_count){0}), got;
    int x = rank, y = -1;

    PMPI_Barrier(MPI_COMM_WORLD);
    CHECK(equal(mpi_counted(before), (mpi_count){0}), "it counts what it is told to pass over");
    CHECK_OK(hvt_world_barrier(job));
    MPI_Sendrecv(&x, 1, MPI_INT, (rank + 1) % size, 0, &y, 1, MPI_INT, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    got = mpi_counted(before);
    CHECK(got.talk == 1 && !strcmp(mpi_use.last_talk, "MPI_Barrier"), "%lld calls", (long long)got.talk);
    CHECK(got.sent == 1 && got.taken == 1 && got.sent_bytes == (int64_t)sizeof x, "%lld messages",
          (long long)got.sent);
    CHECK(y == (rank + size - 1) % size, "%d came", y);
}

int main(void)
{
    double failed;

    CHECK_OK(hvt_world_open(NULL, &job));
    if (!job || strcmp(hvt_world_name(job), "mpi"))
        return 77;
    rank = hvt_world_rank(job);
    size = hvt_world_size(job);
    RUN(the_counter_counts);
    RUN(a_sum_takes_the_messages_worked_out_on_paper);
    RUN(a_step_over_mpi_sends_its_buckets_and_nothing_else);
    RUN(a_step_of_factors_sends_two_rounds_and_nothing_else);
    RUN(a_step_over_shared_memory_calls_nothing_of_mpi);
    RUN(fused_tensors_of_ones_own_send_their_buckets_and_nothing_else);
    RUN(more_steps_of_the_program_send_more_data_and_nothing_else);
    failed = check_failed;
    CHECK_OK(hvt_world_allreduce(job, HVT_SUM, &failed, 1));
    hvt_world_close(&job);
    check_done();
    return failed != 0;
}
#else
int main(void)
{
    return 77;
}
#endif
