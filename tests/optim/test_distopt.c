/*
 * The distributed optimizer.
 *
 * Runs alone and under mpirun.
 */
#include "comm_impl.h"
#include "optim/dist.h"
#include "rig.h"

/* ---- the distributed optimizer --------------------------------------------------------------------- */

static bool has_device(const char *name)
{
    hvt_device *dev = NULL;
    hvt_status s = hvt_device_open(name, NULL, &dev);

    hvt_device_close(&dev);
    return s == HVT_OK;
}

static const char *const devices[] = {"ref", "cpu"};
static const char *const comms[] = {"mpi", "shm", "self"};

/* n leaves are replaced by their sum: 2i and 2i+1 are added, an odd last one moves up. */
static float tree(float *x, int n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < (n + 1) / 2; i++)
            x[i] = 2 * i + 1 < n ? x[2 * i] + x[2 * i + 1] : x[2 * i];
    return x[0];
}

TEST(gradients_are_added_along_the_tree_over_shards)
{
    int ranks = hvt_world_size(job);

    for (int local = 1; local <= 9 && local * ranks <= SHARDS_MAX; local++) {
        setup u = usual(job, local * ranks);
        float *sum, x[SHARDS_MAX];
        size_t n, wrong = 0;
        rig r;

        u.dist.bucket_bytes = 3000;
        u.dist.update = HVT_UPDATE_REPLICATED; /* the sums are looked at */
        CHECK_OK(rig_open(&r, &u));
        CHECK_OK(step_by_hand(&r, leaf, 2, .1));
        n = r.m->arena_count;
        sum = malloc(n * sizeof *sum);
        CHECK_OK(hvt_device_download(r.dev, sum, r.m->grads, n * sizeof *sum));
        for (size_t i = 0; i < n; i++) {
            if (i >= r.m->step_stats_count - HVT__STEP_INPUTS && i < r.m->step_stats_count)
                continue; /* hashes of the ranks' arguments, votes */
            for (int s = 0; s < local * ranks; s++)
                x[s] = leaf(s, i);
            wrong += sum[i] != tree(x, local * ranks);
        }
        CHECK(wrong == 0, "%d shards on each of %d ranks: %zu of %zu sums differ", local, ranks, wrong, n);
        free(sum);
        rig_close(&r);
    }
}

TEST(the_number_of_ranks_does_not_change_the_bits)
{
    for (size_t i = 0; i < HVT_LEN(devices); i++) {
        setup alone = usual(lone, even_shards()), all = usual(job, even_shards());
        result a, b;

        if (!has_device(devices[i]))
            continue;
        alone.device = all.device = devices[i];
        a = train(&alone, 6);
        b = train(&all, 6);
        CHECK_SAME(a, b, "%s: %d shards on 1 rank give %016llx, on %d ranks %016llx", devices[i], all.shards,
                   (unsigned long long)a.weights, hvt_world_size(job), (unsigned long long)b.weights);
        check_replicas(devices[i], b);
    }
}

TEST(buckets_comms_and_threads_do_not_change_the_bits)
{
    static const size_t sizes[] = {0, 1000, 1 << 20, HVT_BUCKET_ALL};
    setup u = usual(lone, even_shards());
    size_t least = hvt__bucket_least;
    result want, got;

    if (has_device("cpu"))
        u.device = "cpu";
    want = train(&u, 5);
    hvt__bucket_least = 1000; /* some layers are cut */
    u.world = job;
    for (size_t c = 0; c < HVT_LEN(comms); c++) {
        if (!can_open(comms[c]))
            continue;
        u.comm = comms[c];
        for (size_t k = 0; k < 2 * HVT_LEN(sizes); k++) {
            u.dist.bucket_bytes = sizes[k / 2];
            u.dist.first_bytes = k / 2 == 2 ? 500 : 0;
            u.dist.update = k % 2 ? HVT_UPDATE_REPLICATED : HVT_UPDATE_AUTO;
            u.threads = k / 2 % 2 ? 2 : 1;
            got = train(&u, 5);
            CHECK_SAME(want, got,
                       "comm %s, buckets of %zu bytes, %d threads, update %d: %016llx, expected %016llx",
                       comms[c], u.dist.bucket_bytes, u.threads, (int)u.dist.update,
                       (unsigned long long)got.weights, (unsigned long long)want.weights);
        }
    }
    hvt__bucket_least = least;
}

TEST(buckets_are_planned_anew_on_all_ranks_alike)
{
    setup u = usual(job, even_shards());
    size_t least = hvt__bucket_least;
    const size_t *bytes;
    int64_t n, mask;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(rig_step(&r, 0));
    hvt__bucket_least = 256;
    CHECK_OK(hvt_distopt_replan(r.d, 1024, 0));
    mask = n = hvt_distopt_buckets(r.d, &bytes);
    CHECK_OK(hvt_world_allreduce_i64(job, HVT_AND, &mask, 1));
    CHECK(mask == n, "%d buckets, but not on every rank", (int)n);
    for (int b = 1; b < n; b++) {
        CHECK(r.d->bucket[b].first >= r.d->bucket[b - 1].end, "bucket %d overlaps", b);
        CHECK(bytes[b] <= 2048, "bucket %d has %zu bytes", b, bytes[b]);
    }
    CHECK(r.d->bucket[n - 1].end == r.m->arena_count, "the last bucket ends at %zu", r.d->bucket[n - 1].end);
    hvt__bucket_least = least;
    CHECK_OK(rig_step(&r, 1));
    CHECK_OK(hvt_distopt_begin(r.d, (const int[SHARDS_MAX]){1}, u.shards, .1));
    CHECK_FAILS(hvt_distopt_replan(r.d, 0, 0), E_ARG, "in the middle");
    rig_close(&r);
}

TEST(ranks_times_batch_equals_big_batch)
{
    setup many = usual(job, even_shards()), one = usual(lone, 1);
    float *start, *a, *b;
    double far;
    size_t n;

    many.norm = one.norm = false; /* batch norm's statistics are a shard's own */
    many.device = one.device = "ref";
    one.batch = many.shards * BATCH;
    /* only full batches, so that both see the same images in every step */
    for (int pass = 0; pass < 2; pass++) {
        const setup *u = pass ? &one : &many;
        int counts[SHARDS_MAX];
        rig r;

        CHECK_OK(rig_open(&r, u));
        start = pass ? start : parameters(&r, &n);
        for (int s = 0; s < u->shards; s++)
            counts[s] = u->batch;
        for (int t = 0; t < 8; t++)
            CHECK_OK(rig_step_counts(&r, t, .05, counts));
        *(pass ? &b : &a) = parameters(&r, &n);
        rig_close(&r);
    }
    far = distance(a, b, start, n);
    CHECK(far < 1e-5, "%d shards of %d and one of %d images part by %g", many.shards, BATCH, one.batch, far);
    free(start);
    free(a);
    free(b);
}

TEST(odd_blocks_of_shards_run_and_agree)
{
    int ranks = hvt_world_size(job);
    setup all = usual(job, 3 * ranks), alone = usual(lone, 3 * ranks);
    float *start, *a, *b;
    size_t n;

    check_replicas("3 shards a rank", train(&all, 5));
    b = walk(&alone, 5, &start, &n);
    a = walk(&all, 5, NULL, &n);
    CHECK(distance(a, b, start, n) < 1e-4, "%d shards on 1 and on %d ranks part by %g", all.shards, ranks,
          distance(a, b, start, n));
    free(start);
    free(a);
    free(b);
}

TEST(replicas_stay_equal_after_broadcast_from_different_starts)
{
    setup u = usual(job, hvt_world_size(job) * 2);
    int root = hvt_world_size(job) - 1;
    result before, after;
    float *state;
    rig r;

    u.seed = 100 + (uint64_t)hvt_world_rank(job);
    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(hvt__optim_state(r.o, true, &state));
    fill(&r, state, (float)hvt_world_rank(job));
    CHECK_OK(hvt__optim_set_updates(r.o, hvt_world_rank(job) == root));
    r.m->tracked = hvt_world_rank(job);
    CHECK_OK(hvt_distopt_broadcast(r.d, root));
    CHECK(!is_fresh(&r), "the root's momentum holds something, the copy says it does not");
    CHECK(r.m->tracked == root, "tracked %lld, the root's is %d", (long long)r.m->tracked, root);
    CHECK_OK(rig_result(&r, &before));
    check_replicas("after broadcast", before);
    for (int t = 0; t < 20; t++)
        CHECK_OK(rig_step(&r, t));
    CHECK_OK(rig_result(&r, &after));
    CHECK(after.weights != before.weights, "20 steps moved nothing");
    check_replicas("after 20 steps", after);
    rig_close(&r);
}

/* Padding has no gradient. */
static const hvt_model *padded;
static float padded_leaf(int shard, size_t i)
{
    const hvt_param *p = &padded->param[hvt__model_owner(padded, i)];

    return i >= p->offset && i < p->offset + p->elements ? leaf(shard, i) : 0;
}

/* A step of SGD at a rate of 1 is as long as the norm of the mean gradient, or the clip. */
TEST(gradients_are_clipped_to_a_norm)
{
    for (int k = 0; k < 3; k++) {
        setup u = usual(job, even_shards());
        double clip = k == 0 ? 0 : k == 1 ? .01 : 1e6, far = 0, free_norm = 0, norm;
        float *a, *b;
        size_t n;
        rig r;

        u.sgd = (hvt_optim_opts){0};
        u.dist.clip_norm = clip;
        CHECK_OK(rig_open(&r, &u));
        a = parameters(&r, &n);
        padded = r.m;
        CHECK_OK(step_by_hand(&r, padded_leaf, 2, 1));
        b = parameters(&r, &n);
        for (size_t i = 0; i < n; i++)
            far += pow((double)b[i] - a[i], 2);
        for (int p = 0; p < r.m->nparam_tensors; p++)
            for (size_t i = r.m->param[p].offset; i < r.m->param[p].offset + r.m->param[p].elements; i++) {
                double g = 0;

                for (int s = 0; s < u.shards; s++)
                    g += (double)leaf(s, i);
                free_norm += pow(g / (2 * u.shards), 2);
            }
        norm = k == 1 ? clip : sqrt(free_norm);
        CHECK(fabs(sqrt(far) / norm - 1) < 1e-3, "clip %g: a step of %.9g, expected %.9g", clip, sqrt(far),
              norm);
        free(a);
        free(b);
        rig_close(&r);
    }
}

/* Sums are those of integers, whoever adds them: by the comm in any order, here one rank after the other. */
TEST(the_norm_s_digits_add_up_exactly_on_any_number_of_ranks)
{
    static const int ranks[] = {1, 2, 3, 255, 256, 257, 1000, 5000};
    enum { MOST = HVT__SQUARES_BINS * 64 };

    for (size_t i = 0; i < HVT_LEN(ranks); i++) {
        hvt_step_state s;
        hvt_model m = {.step = &s};
        hvt_optim o = {.m = &m};
        hvt_distopt d = {.optim = &o, .ranks = ranks[i]};
        int64_t want[HVT__SQUARES_BINS] = {0};
        float digit[MOST], sum[MOST] = {0};
        size_t n;

        CHECK(hvt__clip_digits(&d) == 0, "digits travel though nothing is clipped");
        d.opts.clip_norm = 1;
        n = hvt__clip_digits(&d);
        CHECK(n > 0 && n <= MOST, "%zu digits", n);
        for (int r = 0; r < d.ranks; r++) {
            for (int k = 0; k < HVT__SQUARES_BINS; k++) { /* as large as they may be, or drawn */
                s.squares[k] = k % 3 ? INT64_MAX / d.ranks : (int64_t)(hvt__draw(i, (uint64_t)r, k, 0) >> 20);
                want[k] += s.squares[k];
            }
            hvt__bins_write(&d, s.squares, digit);
            for (size_t at = 0; at < n; at++)
                sum[at] += digit[at];
        }
        hvt__bins_read(&d, sum, s.squares);
        CHECK(!memcmp(s.squares, want, sizeof want), "%d ranks: not the sum of their integers", d.ranks);
    }
}

static float infinite_leaf(int shard, size_t i)
{
    return i == padded->param[1].offset && !shard ? INFINITY : padded_leaf(shard, i);
}

TEST(with_clipping_a_gradient_that_is_not_finite_skips_the_update)
{
    setup u = usual(job, even_shards());
    result before, after;
    rig r;

    u.norm = false; /* moving statistics are kept when an update is skipped */
    u.dist.clip_norm = -1;
    CHECK_FAILS(rig_open(&r, &u), E_ARG, "clip norm is -1");
    rig_close(&r);
    u.dist.clip_norm = 1;
    CHECK_OK(rig_open(&r, &u));
    padded = r.m;
    CHECK_OK(rig_result(&r, &before));
    CHECK_OK(step_by_hand(&r, infinite_leaf, 2, 1));
    CHECK_OK(rig_result(&r, &after));
    CHECK(after.skipped == 1 && after.weights == before.weights, "%lld skipped", (long long)after.skipped);
    CHECK_OK(step_by_hand(&r, padded_leaf, 2, 1));
    CHECK_OK(rig_result(&r, &after));
    CHECK(after.skipped == 1 && after.weights != before.weights, "the next one, too");
    rig_close(&r);
}

TEST(loss_and_hits_are_of_all_ranks)
{
    setup u = usual(job, even_shards()), v = usual(lone, even_shards());
    result a = train(&u, 3), b = train(&v, 3);
    int64_t want = u.shards / 4 * (4 * BATCH + 2 * (BATCH + BATCH - 1 + 1));

    CHECK(a.loss.count == want, "%lld images counted, expected %lld", (long long)a.loss.count,
          (long long)want);
    CHECK(a.loss.sum == b.loss.sum && a.loss.top1 == b.loss.top1 && a.loss.top5 == b.loss.top5,
          "%.9g, alone %.9g", a.loss.sum, b.loss.sum);
}

/* Of shards that are full, short, of one image and empty. */
TEST(absolute_errors_are_of_all_ranks)
{
    setup u = usual(job, even_shards()), v = usual(lone, even_shards());
    result a, b;

    u.loss.kind = v.loss.kind = HVT_LOSS_MSE;
    a = train(&u, 3);
    b = train(&v, 3);
    CHECK(a.weights == b.weights && a.loss.count == b.loss.count && a.loss.sum == b.loss.sum,
          "%.9g, alone %.9g", a.loss.sum, b.loss.sum);
    CHECK(a.loss.error == b.loss.error && a.loss.error > 0 && !a.loss.top1 && !a.loss.top5,
          "%.9g, alone %.9g; %lld hits", a.loss.error, b.loss.error, (long long)a.loss.top1);
}

TEST(buckets_cover_the_arena_and_step_statistics_travel_as_f32)
{
    for (int wire = HVT_F32; wire <= HVT_BF16; wire++) {
        setup u = usual(job, hvt_world_size(job));
        const size_t *bytes;
        size_t sum = 0;
        int alone = wire != HVT_F32, n;
        rig r;

        u.dist.wire = (hvt_dtype)wire;
        u.dist.update = HVT_UPDATE_REPLICATED;
        CHECK_OK(rig_open(&r, &u));
        n = hvt_distopt_buckets(r.d, &bytes);
        CHECK(n == 13 + alone, "%d buckets for 13 layers", n); /* 6 convolutions, 6 norms, the head */
        for (int i = 0; i < n; i++)
            sum += bytes[i];
        CHECK(!alone || bytes[0] == r.m->step_stats_count * sizeof(float),
              "the bucket of step statistics has %zu bytes", bytes[0]);
        CHECK(alone || sum == r.m->arena_count * sizeof(float), "%zu bytes of %zu", sum,
              r.m->arena_count * sizeof(float));
        CHECK(sum >= hvt_model_parameters(r.m) * sizeof(float), "%zu bytes in buckets", sum);
        rig_close(&r);

        u.dist.bucket_bytes = HVT_BUCKET_ALL;
        CHECK_OK(rig_open(&r, &u));
        CHECK(hvt_distopt_buckets(r.d, &bytes) == 1 + alone, "%d buckets for all",
              hvt_distopt_buckets(r.d, &bytes));
        rig_close(&r);
    }
}

TEST(wires_of_16_bits_agree_on_all_ranks_and_stay_close)
{
    static const double close[] = {[HVT_F16] = 2e-3, [HVT_BF16] = 2e-2};

    for (int wire = HVT_F16; wire <= HVT_BF16; wire++)
        for (size_t c = 0; c < HVT_LEN(comms); c++) {
            setup u = usual(job, 2 * hvt_world_size(job)), exact = u;
            float *start, *a, *b;
            result first;
            double far;
            size_t n;

            if (!can_open(comms[c]))
                continue;
            u.dist.wire = (hvt_dtype)wire;
            u.comm = exact.comm = comms[c];
            first = train(&u, 6);
            check_replicas(comms[c], first);
            CHECK_SAME(first, train(&u, 6), "%s over %s differs from run to run", hvt_dtype_name(u.dist.wire),
                       comms[c]);
            u.dist.bucket_bytes = 1 << 20;
            CHECK_SAME(first, train(&u, 6), "%s over %s depends on buckets", hvt_dtype_name(u.dist.wire),
                       comms[c]);
            b = walk(&exact, 6, &start, &n);
            a = walk(&u, 6, NULL, &n);
            far = distance(a, b, start, n);
            CHECK(far > 0 && far < close[wire], "%s over %s parts from f32 by %g",
                  hvt_dtype_name(u.dist.wire), comms[c], far);
            free(start);
            free(a);
            free(b);
        }
}

/* The last shard's gradient is too large for f16 in one element past the step statistics. */
static __thread size_t large_at;
static float one_large(int shard, size_t i)
{
    return i == large_at && shard == hvt_world_size(job) - 1 ? 3e6f : leaf(shard, i);
}

/* Every shard's mean part fits into f16, their sum does not (from two ranks on). */
static float each_large(int shard, size_t i)
{
    return i == large_at ? 4e4f * 2 * (float)hvt_world_size(job) : leaf(shard, i);
}

static __thread int lines;
static void count_line(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx;
    lines += level == HVT_LOG_WARN && strstr(line, "update skipped") != NULL;
}

TEST(an_overflow_is_skipped_on_all_ranks_and_counted)
{
    setup u = usual(job, hvt_world_size(job));
    int64_t want = 0;
    result before, after;
    rig r;

    u.dist.wire = HVT_F16;
    u.classes = 12000; /* more floats than are looked at in one go */
    hvt_log_to(count_line, NULL, HVT_LOG_INFO);
    CHECK_OK(rig_open(&r, &u));
    for (int p = 0; p < r.m->nparam_tensors; p++) {
        float (*const kinds[])(int, size_t) = {one_large, each_large};

        large_at =
            r.m->param[p].offset + (p % 2 ? r.m->param[p].count - 1 : 0); /* a tensor's first or last */
        for (int k = 0; k < 2; k++) {
            bool fresh = is_fresh(&r);

            CHECK_OK(rig_result(&r, &before));
            CHECK_OK(step_by_hand(&r, kinds[k], 2, .1));
            CHECK_OK(rig_result(&r, &after));
            if (k == 0 || hvt_world_size(job) > 1) {
                want++;
                CHECK(before.momentum == after.momentum && fresh == is_fresh(&r),
                      "a skipped update left traces");
            }
            CHECK(after.skipped == want, "%lld skipped, expected %lld", (long long)after.skipped,
                  (long long)want);
        }
        CHECK_OK(step_by_hand(&r, leaf, 2, .1));
        CHECK(!is_fresh(&r), "no step was taken");
        CHECK_OK(rig_result(&r, &after));
        CHECK(after.skipped == want && after.momentum != before.momentum, "a clean step was skipped");
    }
    check_replicas("after overflows", after);
    rig_close(&r);
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    CHECK(lines == (hvt_world_rank(job) == 0 ? want : 0), "%d lines for %lld skips", lines, (long long)want);
}

TEST(a_loss_that_is_not_finite_ends_the_step_before_any_update)
{
    for (int wire = HVT_F32; wire <= HVT_BF16; wire++) {
        setup u = usual(job, hvt_world_size(job) * 2);
        int counts[SHARDS_MAX], last = hvt_world_rank(job) == hvt_world_size(job) - 1;
        float nan_ = NAN, keep;
        result before, after;
        rig r;

        u.dist.wire = (hvt_dtype)wire;
        u.dist.update = HVT_UPDATE_REPLICATED; /* so that one rank's weights can be spoilt */
        CHECK_OK(rig_open(&r, &u));
        for (int s = 0; s < u.shards; s++)
            counts[s] = BATCH;
        CHECK_OK(rig_step(&r, 0));
        CHECK_OK(rig_result(&r, &before));
        /* one weight of the head, on the last rank only */
        CHECK_OK(hvt_device_download(r.dev, &keep, r.m->params + r.m->param[0].offset, sizeof keep));
        if (last) {
            CHECK_OK(hvt_device_upload(r.dev, r.m->params + r.m->param[0].offset, &nan_, sizeof nan_));
            hvt__model_changed(r.m);
        }
        CHECK_FAILS(rig_step_counts(&r, 1, .05, counts), E_DIVERGED, "loss");
        CHECK(hvt_last_error_is_agreed(), "every rank has this error, and each would print it");
        if (last) {
            CHECK_OK(hvt_device_upload(r.dev, r.m->params + r.m->param[0].offset, &keep, sizeof keep));
            hvt__model_changed(r.m);
        }
        CHECK_OK(rig_result(&r, &after));
        CHECK(before.weights == after.weights && before.momentum == after.momentum,
              "weights, statistics or momentum moved");
        CHECK(after.loss.count == 0, "%lld images of a refused step were counted",
              (long long)after.loss.count);
        CHECK(hvt_distopt_stopped(r.d) == 2, "step %lld ended the run", (long long)hvt_distopt_stopped(r.d));
        CHECK_FAILS(rig_step(&r, 2), E_DIVERGED, "loss"); /* nothing comes after it */
        CHECK_OK(rig_result(&r, &after));
        CHECK(before.weights == after.weights && before.momentum == after.momentum && !after.loss.count,
              "a step after the run's end changed something");
        CHECK(hvt_distopt_stopped(r.d) == 2, "step %lld ended the run", (long long)hvt_distopt_stopped(r.d));
        rig_close(&r);
    }
}

static void check_mismatch(const char *part, void (*change)(setup *u, hvt_item *item))
{
    setup u = usual(job, hvt_world_size(job)), good = u;
    hvt_item item = {"--batch", "128"};
    bool odd_one = hvt_world_rank(job) == hvt_world_size(job) - 1;
    rig r;

    if (odd_one)
        change(&u, &item);
    CHECK_OK(rig_prepare(&r, &u));
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, &item, 1, &r.d), E_MISMATCH, part);
    CHECK(hvt_last_error_is_agreed(), "'%s': each rank would print it", part);
    CHECK(!r.d && !r.m->grads_placed, "something was left behind");
    rig_close(&r);
    CHECK_OK(rig_open(&r, &good));
    CHECK_OK(rig_step(&r, 0));
    rig_close(&r);
}

static void change_item(setup *u, hvt_item *item)
{
    (void)u;
    item->value = "64";
}

static void change_decay(setup *u, hvt_item *item)
{
    (void)item;
    u->sgd.weight_decay = .25f;
}

static void change_bucket(setup *u, hvt_item *item)
{
    (void)item;
    u->dist.bucket_bytes = 12345;
}

static void change_wire(setup *u, hvt_item *item)
{
    (void)item;
    u->dist.wire = HVT_BF16;
}

static void change_head(setup *u, hvt_item *item)
{
    (void)item;
    u->classes = CLASSES + 1;
}

static void change_norm(setup *u, hvt_item *item)
{
    (void)item;
    u->norm = false;
}

static void change_group(setup *u, hvt_item *item)
{
    (void)item;
    u->grouped = true;
}

static void change_loss(setup *u, hvt_item *item)
{
    (void)item;
    u->loss.label_smoothing = .1f;
}

TEST(ranks_that_differ_are_named_on_every_rank)
{
    check_mismatch("--batch", change_item);
    check_mismatch("weight decay", change_decay);
    check_mismatch("bucket bytes", change_bucket);
    check_mismatch("wire", change_wire);
    check_mismatch("group of ", change_group);
    check_mismatch("loss", change_loss);
    check_mismatch("tensor ", change_head);
    check_mismatch("", change_norm);
}

TEST(one_ranks_failure_to_create_is_everyones)
{
    setup u = usual(job, hvt_world_size(job));
    rig r;

    CHECK_OK(rig_prepare(&r, &u));
    if (hvt_world_rank(job) == hvt_world_size(job) - 1)
        r.u.dist.local_shards = 0;
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d), E_ARG, "0 shards per rank");
    r.u.dist.local_shards = 1;
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
    CHECK_OK(rig_step(&r, 0));
    rig_close(&r);
}

TEST(memory_that_one_rank_lacks_fails_all_ranks_alike)
{
    setup u = usual(job, hvt_world_size(job) * 4);
    int tries;
    rig r;

    u.dist.wire = HVT_BF16;
    CHECK_OK(rig_prepare(&r, &u));
    tries = rig_create_scarcely(&r);
    CHECK(tries > 2, "%d allocations, expected two partials at least", tries);
    CHECK_OK(rig_step(&r, 0));
    rig_close(&r);
}

TEST(a_step_out_of_order_is_refused)
{
    setup u = usual(job, hvt_world_size(job) * 2);
    int counts[SHARDS_MAX] = {BATCH, BATCH};
    hvt_distopt *second = NULL;
    size_t n;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    n = r.m->arena_count;
    CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &second), E_ARG, "already");
    CHECK_FAILS(hvt_distopt_on_grad(r.d, 0, n), E_ARG, "hvt_distopt_begin()");
    CHECK_FAILS(hvt_distopt_step(r.d), E_ARG, "0 of 2");
    CHECK_FAILS(hvt_distopt_begin(r.d, counts, u.shards + 1, .1), E_ARG, "expected");
    counts[1] = -1;
    CHECK_FAILS(hvt_distopt_begin(r.d, counts, u.shards, .1), E_ARG, "shard 1 has -1");
    CHECK_FAILS(hvt_distopt_begin(r.d, (int[SHARDS_MAX]){0}, u.shards, .1), E_ARG, "empty");
    counts[1] = BATCH;
    CHECK_FAILS(hvt_distopt_begin(r.d, counts, u.shards, NAN), E_ARG, "rate");
    CHECK_OK(hvt_distopt_begin(r.d, counts, u.shards, .1));
    CHECK_FAILS(hvt_distopt_begin(r.d, counts, u.shards, .1), E_ARG, "0 of 2");
    CHECK_FAILS(hvt_distopt_on_grad(r.d, 1, n), E_ARG, "continue at 0");
    CHECK_FAILS(hvt_distopt_on_grad(r.d, 0, n + 1), E_ARG, "expected");
    CHECK_OK(hvt_distopt_on_grad(r.d, 0, n));
    CHECK_FAILS(hvt_distopt_step(r.d), E_ARG, "1 of 2");
    CHECK_OK(hvt_distopt_on_grad(r.d, 0, n));
    CHECK_FAILS(hvt_distopt_on_grad(r.d, 0, n), E_ARG, "more than 2");
    CHECK_OK(hvt_distopt_step(r.d));
    rig_close(&r);
}

/* A step that was given up halfway leaves nothing in flight. */
TEST(a_step_given_up_can_be_freed)
{
    setup u = usual(job, hvt_world_size(job));
    int counts[SHARDS_MAX];
    rig r;

    for (int s = 0; s < u.shards; s++)
        counts[s] = 1;
    CHECK_OK(rig_open(&r, &u));
    CHECK_OK(hvt_distopt_begin(r.d, counts, u.shards, .1));
    CHECK_OK(hvt_distopt_on_grad(r.d, 0, r.m->param[r.m->nparam_tensors / 2].offset));
    rig_close(&r);
}

static __thread const hvt_world_ops *real;
static __thread int messages;

static hvt_status counted_gather(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    messages++;
    return real->allgather(w, mine, bytes, all);
}

static hvt_status counted_broadcast(hvt_world *w, void *channel, void *data, size_t bytes, int root)
{
    messages++;
    return real->broadcast(w, channel, data, bytes, root);
}

static hvt_status counted_barrier(hvt_world *w)
{
    messages++;
    return real->barrier(w);
}

TEST(a_step_sends_no_control_message)
{
    setup u = usual(job, hvt_world_size(job));
    hvt_world_ops counting;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    real = job->ops;
    counting = *real;
    counting.allgather = counted_gather;
    counting.broadcast = counted_broadcast;
    counting.barrier = counted_barrier;
    job->ops = &counting;
    messages = 0;
    CHECK_OK(hvt_distopt_broadcast(r.d, 0));
    CHECK(messages > 0, "the counter counts nothing");
    messages = 0;
    for (int t = 0; t < 3; t++)
        CHECK_OK(rig_step(&r, t));
    job->ops = real;
    CHECK(messages == 0, "%d control messages in 3 steps", messages);
    CHECK(hvt_distopt_take_exposed(r.d) >= 0 && hvt_distopt_take_exposed(r.d) == 0, "time was not taken");
    rig_close(&r);
}

int main(void)
{
    if (!rig_begin())
        return 1;
    if (hvt_world_size(job) > 1)
        RUN(ranks_that_differ_are_named_on_every_rank);
    RUN(gradients_are_added_along_the_tree_over_shards);
    RUN(the_number_of_ranks_does_not_change_the_bits);
    RUN(buckets_comms_and_threads_do_not_change_the_bits);
    RUN(buckets_are_planned_anew_on_all_ranks_alike);
    RUN(ranks_times_batch_equals_big_batch);
    RUN(odd_blocks_of_shards_run_and_agree);
    RUN(replicas_stay_equal_after_broadcast_from_different_starts);
    RUN(gradients_are_clipped_to_a_norm);
    RUN(the_norm_s_digits_add_up_exactly_on_any_number_of_ranks);
    RUN(with_clipping_a_gradient_that_is_not_finite_skips_the_update);
    RUN(loss_and_hits_are_of_all_ranks);
    RUN(absolute_errors_are_of_all_ranks);
    RUN(buckets_cover_the_arena_and_step_statistics_travel_as_f32);
    RUN(wires_of_16_bits_agree_on_all_ranks_and_stay_close);
    RUN(an_overflow_is_skipped_on_all_ranks_and_counted);
    RUN(a_loss_that_is_not_finite_ends_the_step_before_any_update);
    RUN(one_ranks_failure_to_create_is_everyones);
    RUN(memory_that_one_rank_lacks_fails_all_ranks_alike);
    RUN(a_step_out_of_order_is_refused);
    RUN(a_step_given_up_can_be_freed);
    RUN(a_step_sends_no_control_message);
    return rig_end();
}
