/*
 * What every such library owes its users, at every number of ranks, as far as no other test covers it: alone
 * and on 1, 2, 3, 4, 5 and 8 ranks. tests/conformance.md has the whole list, with the test of each item.
 */
#include "config.h"
#include "comm/shm.h"
#include "optim/dist.h"
#include "heap.h"
#include "own_set.h"
#include "rig.h"
#include "train/run.h"
#include "hvt/collective.h"

#include <dirent.h>
#include <math.h>

static hvt_device *dev;
static int rank, size;

static const char *const comms[] = {"self", "shm", "mpi"};

static bool comm_is_here(const char *name)
{
    if (!strcmp(name, "self"))
        return size == 1;
    return size > 1 && (HVT_HAVE_MPI || strcmp(name, "mpi"));
}

/* ---- sums ----------------------------------------------------------------------------------------- */

/* Rank r's element i: a small whole number, so that every sum of them is exact in every type. */
static float brought(int r, size_t i)
{
    return (float)((i * 7 + i / 64 + (size_t)r * 3) % 13) - 6;
}

static float brought_by_all(size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += brought(r, i);
    return sum;
}

/* Elements of buf that are not the sum; one past the end must still hold its 99. */
static size_t wrong_sums(const void *buf, size_t count, hvt_dtype t, float *f)
{
    size_t wrong = 0;

    dev->ops->vector.cast(dev, count + 1, 1, buf, t, f, HVT_F32);
    for (size_t i = 0; i < count; i++)
        wrong += f[i] != brought_by_all(i);
    return wrong + (f[count] != 99);
}

static void bring(void *buf, size_t count, hvt_dtype t, float *f)
{
    for (size_t i = 0; i < count; i++)
        f[i] = brought(rank, i);
    f[count] = 99;
    dev->ops->vector.cast(dev, count + 1, 1, f, HVT_F32, buf, t);
}

/* One element fewer, as many, one more; by one rank and by all. */
static void sums_around(hvt_comm *c, bool placed, size_t threshold, const char *what)
{
    static const hvt_dtype types[] = {HVT_F32, HVT_F16, HVT_BF16};
    size_t most = threshold * (size_t)size + 2;
    float *f = malloc(most * sizeof *f);
    void *buf = NULL, *plain = malloc(most * sizeof(float));
    hvt_ticket t;

    if (placed)
        CHECK_OK(hvt_comm_alloc(c, most * sizeof(float), &buf));
    for (int k = 0; k < 18; k += heap_memcheck() ? 4 : 1) {
        hvt_dtype type = types[k % 3];
        size_t count = threshold * (size_t)(k < 9 ? 1 : size) - 1 + (size_t)(k / 3 % 3);
        void *at = placed ? buf : plain;

        bring(at, count, type, f);
        CHECK_OK(hvt_comm_allreduce(c, at, count, type, &t));
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK(!wrong_sums(at, count, type, f), "comm %s, %s of %zu: %zu %s, memory %s", hvt_comm_name(c),
              what, threshold, count, hvt_dtype_name(type), placed ? "of the comm" : "of its own");
    }
    hvt_comm_release(c, buf);
    free(plain);
    free(f);
}

TEST(sums_hold_one_element_around_every_cutoff)
{
    const hvt__cutoffs before = hvt__cutoffs_next;

    for (size_t i = 0; i < HVT_LEN(comms); i++) {
        bool shm = !strcmp(comms[i], "shm");
        hvt_comm *c = NULL;

        if (!comm_is_here(comms[i]))
            continue;
        for (int low = 0; low < 2; low++) { /* as built, then with limits that stand for those of int */
            if (low) {
                hvt__cutoffs_next.mpi_short = 64;
                hvt__cutoffs_next.mpi_window = 96;
                hvt__cutoffs_next.mpi_message = 50;
            }
            CHECK_OK(hvt_comm_open(comms[i], job, dev, &c));
            for (int placed = 0; placed < 2; placed++) {
                sums_around(c, placed, hvt__cutoffs_next.mpi_short / sizeof(float), "a short sum");
                sums_around(c, placed, hvt__cutoffs_next.mpi_short / sizeof(uint16_t), "a short sum");
                if (low) {
                    sums_around(c, placed, hvt__cutoffs_next.mpi_window, "a window");
                    sums_around(c, placed, hvt__cutoffs_next.mpi_message, "a message");
                } else if (shm) {
                    sums_around(c, placed, 1 << 13, "a chunk");
                }
            }
            if (shm && !low && size <= 4)
                sums_around(c, false, HVT__SHM_SLOT / sizeof(float), "a slot");
            hvt_comm_close(&c);
            hvt__cutoffs_next = before;
        }
    }
}

/* ---- order and life ------------------------------------------------------------------------------- */

enum { OPS = 120, MOST = 700 };

typedef struct operation {
    enum { SUM, LEAST, BROADCAST, GATHER } kind;
    int root;
    size_t count;
    float *buf; /* what must come out of it is known from kind, root and count */
} operation;

static float result_of(const operation *o, size_t i)
{
    float least = brought(0, i);

    if (o->kind == GATHER) /* a part of `count` elements from every rank */
        return brought((int)(i / o->count), i);
    if (o->kind == BROADCAST)
        return brought(o->root, i);
    if (o->kind == SUM)
        return brought_by_all(i);
    for (int r = 1; r < size; r++)
        least = fminf(least, brought(r, i));
    return least;
}

static hvt_status start(hvt_comm *c, const operation *o, hvt_ticket *t)
{
    switch (o->kind) {
    case SUM:
        return hvt_comm_allreduce(c, o->buf, o->count, HVT_F32, t);
    case LEAST:
        return hvt_allreduce(c, NULL, o->buf, o->count, HVT_F32, HVT_MIN, NULL, t);
    case BROADCAST:
        return hvt_broadcast(c, o->buf, o->count, HVT_F32, o->root, t);
    default:
        return hvt_allgather(c, NULL, o->count, o->buf, NULL, HVT_F32, t);
    }
}

/* Sums, minima, broadcasts and gathers of any length, over two comms at once, awaited now and then. */
TEST(operations_of_every_kind_mix_over_two_comms)
{
    const char *names[] = {size > 1 ? "shm" : "self", HVT_HAVE_MPI && size > 1 ? "mpi" : "self"};
    hvt_comm *c[2] = {0};
    hvt_ticket t[2] = {0};
    operation *ops = calloc(OPS, sizeof *ops);
    int wrong = 0;

    for (int k = 0; k < 2; k++)
        CHECK_OK(hvt_comm_open(names[k], job, dev, &c[k]));
    for (uint64_t n = 0; n < OPS; n++) {
        operation *o = &ops[n];
        int way = (int)hvt__below(hvt__draw(1, n, 0, 0), 2);
        size_t room;

        o->kind = hvt__below(hvt__draw(1, n, 1, 0), 4);
        o->root = (int)hvt__below(hvt__draw(1, n, 2, 0), (uint32_t)size);
        o->count = hvt__draw(1, n, 3, 0) % 5 ? hvt__below(hvt__draw(1, n, 4, 0), MOST) : 0;
        room = o->count * (size_t)(o->kind == GATHER ? size : 1);
        o->buf = malloc((room + 1) * sizeof *o->buf);
        for (size_t i = 0; i < room; i++)
            o->buf[i] = brought(rank, i);
        CHECK_OK(start(c[way], o, &t[way]));
        if (hvt__draw(1, n, 5, 0) % 7 == 0)
            CHECK_OK(hvt_comm_wait(c[way], t[way]));
    }
    for (int k = 2; k-- > 0;)
        CHECK_OK(hvt_comm_wait(c[k], t[k]));
    for (int n = 0; n < OPS; n++) {
        size_t room = ops[n].count * (size_t)(ops[n].kind == GATHER ? size : 1);

        for (size_t i = 0; i < room; i++)
            wrong += ops[n].buf[i] != result_of(&ops[n], i);
        free(ops[n].buf);
    }
    CHECK(!wrong, "%d wrong elements", wrong);
    for (int k = 0; k < 2; k++)
        hvt_comm_close(&c[k]);
    free(ops);
}

static int open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Worlds inside worlds, comms with memory, used and closed, over and over: nothing is left open. */
TEST(comms_and_groups_can_be_opened_again_and_again)
{
    const int rounds = heap_memcheck() ? 7 : 25;
    int before = 0;

    for (int round = 0; round < rounds; round++) {
        hvt_world *half = NULL;
        hvt_comm *c = NULL;
        hvt_ticket t;
        float *x = NULL;

        CHECK_OK(hvt_world_split(job, rank % 2, rank, &half));
        CHECK_OK(hvt_comm_open(round % 2 ? "auto" : size > 1 && HVT_HAVE_MPI ? "mpi" : "auto", job, dev, &c));
        CHECK_OK(hvt_comm_alloc(c, 100 * sizeof *x, (void **)&x));
        x[99] = (float)(rank + round);
        CHECK_OK(hvt_comm_allreduce(c, x, 100, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(c, t));
        CHECK(x[99] == (float)(size * (size - 1) / 2 + size * round), "round %d: %g", round, (double)x[99]);
        hvt_comm_release(c, x);
        hvt_comm_close(&c);
        hvt_world_close(&half);
        if (round == 4) /* what MPI opens once is open now */
            before = open_files();
    }
    CHECK(open_files() <= before, "%d files are open, %d were", open_files(), before);
}

/* ---- training ------------------------------------------------------------------------------------- */

static float gradient(int shard, size_t i)
{
    return (float)(shard + 1) * (float)(1 + i % 5);
}

/* A step of shards that are full, short and empty takes lr times the gradients' sum over all images. */
TEST(uneven_batches_are_weighted_by_their_true_counts)
{
    setup u = usual(job, 2 * size);
    int counts[SHARDS_MAX], images = 0;
    size_t wrong = 0;
    float *before;
    rig r;

    u.sgd = (hvt_optim_opts){0};
    CHECK_OK(rig_open(&r, &u));
    before = malloc(r.m->arena_count * sizeof *before);
    memcpy(before, r.m->params, r.m->arena_count * sizeof *before);
    CHECK_OK(hvt_world_barrier(job)); /* they may be one copy for all ranks */
    for (int s = 0; s < u.shards; s++)
        images += counts[s] = s % 3 == 2 ? 0 : s % 3 ? 1 : BATCH;
    CHECK_OK(hvt_distopt_begin(r.d, counts, u.shards, 0.25));
    for (int s = 2 * rank; s < 2 * rank + 2; s++) {
        for (size_t i = r.m->step_stats_count; i < r.m->arena_count; i++)
            r.m->grads[i] = counts[s] ? gradient(s, i) : 0;
        CHECK_OK(hvt_distopt_on_grad(r.d, 0, r.m->arena_count));
    }
    CHECK_OK(hvt_distopt_step(r.d));
    for (int p = 0; p < r.m->nparam_tensors; p++)
        for (size_t i = r.m->param[p].offset; i < r.m->param[p].offset + r.m->param[p].count; i++) {
            double sum = 0, want;

            for (int s = 0; s < u.shards; s++)
                sum += counts[s] ? (double)gradient(s, i) : 0;
            want = before[i] - .25 * sum / images;
            wrong += fabs(r.m->params[i] - want) > 1e-5 * fabs(want) + 1e-6;
        }
    CHECK(!wrong, "%zu parameters after a step of %d images in %d shards", wrong, images, u.shards);
    CHECK_OK(hvt_world_barrier(job));
    free(before);
    rig_close(&r);
}

TEST(weights_after_many_steps_are_equal_on_all_ranks_and_in_every_run)
{
    const int steps = heap_memcheck() ? 3 : 12;
    setup u = usual(job, size), alone = usual(lone, size);
    result first, again;

    u.dist.bucket_bytes = 1000;
    first = train(&u, steps);
    check_replicas("after some steps", first);
    u.dist.bucket_bytes = HVT_BUCKET_ALL;
    again = train(&u, steps);
    CHECK_SAME(first, again, "another run and another plan end with %016llx, not %016llx",
               (unsigned long long)again.weights, (unsigned long long)first.weights);
    again = train(&alone, steps);
    CHECK_SAME(first, again, "one rank alone ends with %016llx, not %016llx",
               (unsigned long long)again.weights, (unsigned long long)first.weights);
}

static hvt_loss evaluate(rig *r, hvt_world *world, const hvt_dataset *set, hvt_last_batch tail)
{
    hvt_loader_opts opts = {.batch = BATCH,
                            .shards = hvt_world_size(world),
                            .first_shard = hvt_world_rank(world),
                            .shard_count = 1,
                            .last_batch = tail,
                            .mean = {.5f, .5f, .5f},
                            .std = {.5f, .5f, .5f},
                            .order = hvt_model_order(r->m)};
    hvt_loader *l = NULL;
    hvt_loss loss = {0};

    CHECK_OK(hvt_loader_open(set, r->dev, &opts, &l));
    CHECK_OK(hvt_evaluate(r->m, l, world, &loss));
    hvt_loader_close(&l);
    return loss;
}

/* Any number of images, fewer than ranks too. */
TEST(an_evaluation_is_that_of_one_rank_to_the_last_image)
{
    static const uint32_t images[] = {1, 3, 7, 32, 53};
    own o = {SIDE, SIDE, 3, .closed = 0};
    setup u = usual(job, size);
    rig r;

    u.classes = 7;
    CHECK_OK(rig_prepare(&r, &u));
    for (size_t i = 0; i < HVT_LEN(images); i++) {
        hvt_dataset *set = own_set(&o, images[i]);
        hvt_loss all = evaluate(&r, job, set, HVT_LAST_BATCH_KEEP),
                 want = evaluate(&r, lone, set, HVT_LAST_BATCH_KEEP);

        CHECK(all.count == images[i] && all.top1 == want.top1 && all.top5 == want.top5 && all.sum == want.sum,
              "%u images: %lld counted, loss %.17g, alone %.17g; top-1 %lld and %lld", images[i],
              (long long)all.count, all.sum, want.sum, (long long)all.top1, (long long)want.top1);
        hvt_dataset_close(&set);
    }
    rig_close(&r);
}

static bool all_but_the_last_rank(run *t, int images)
{
    (void)t, (void)images;
    return hvt_world_rank(job) != size - 1;
}

/* As a signal to one of several hosts makes it. */
TEST(an_evaluation_that_one_rank_leaves_counts_for_none)
{
    own o = {SIDE, SIDE, 3, .closed = 0};
    setup u = usual(job, size);
    hvt_dataset *set = own_set(&o, 53);
    hvt_loader_opts opts = {.batch = BATCH,
                            .shards = size,
                            .first_shard = hvt_world_rank(job),
                            .shard_count = 1,
                            .mean = {.5f, .5f, .5f},
                            .std = {.5f, .5f, .5f}};
    hvt_loader *l = NULL;
    hvt__odd_losses odd;
    hvt_loss loss;
    bool whole = true;
    rig r;

    u.classes = 7;
    CHECK_OK(rig_prepare(&r, &u));
    opts.order = hvt_model_order(r.m);
    CHECK_OK(hvt_loader_open(set, r.dev, &opts, &l));
    CHECK_OK(hvt__evaluate(r.m, l, job, all_but_the_last_rank, NULL, &loss, &odd, &whole));
    CHECK(!whole, "%lld images count", (long long)loss.count);
    CHECK_OK(hvt__evaluate(r.m, l, job, NULL, NULL, &loss, &odd, &whole));
    CHECK(whole && loss.count == 53, "then %lld", (long long)loss.count);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
    rig_close(&r);
}

/* The head's weights become 0: its outputs are its biases, and the loss of an image is that of its label. */
static void set_outputs(rig *r, const float *bias)
{
    hvt_model *m = r->m;

    for (int p = 0; p < m->nparam_tensors; p++) {
        size_t count = m->param[p].count, name = strlen(m->param[p].name);
        float *zero = calloc(count, sizeof *zero);

        if (count == 7 && name > 5 && !strcmp(m->param[p].name + name - 5, ".bias") && bias)
            memcpy(zero, bias, 7 * sizeof *bias);
        CHECK_OK(hvt_device_upload(m->dev, m->params + m->param[p].offset, zero, count * sizeof *zero));
        free(zero);
    }
}

/* Labels are 0 to 6 in turn. All terms are multiples of M/4, so that the sum is exact in a long double. */
TEST(losses_of_any_size_are_summed_exactly_and_what_is_not_finite_is_counted)
{
    static const float most[] = {0x1p20f, 0x1p29f, 0x1.fffffp30f, 0x1.234566p60f, 0x1.8p119f, 0x1.8p127f};
    enum { IMAGES = 5 * 7 };
    own o = {SIDE, SIDE, 3, .closed = 0};
    setup u = usual(job, size);
    hvt_dataset *set = own_set(&o, IMAGES);
    hvt_loss loss, alone;
    rig r;

    u.classes = 7;
    u.norm = false;
    CHECK_OK(rig_prepare(&r, &u));
    for (size_t i = 0; i < HVT_LEN(most); i++) {
        float m = most[i], bias[7] = {m, m / 2, 0, -m / 4, m * .75f, m / 4, m / 2};
        long double want = 0;

        for (int k = 0; k < 7; k++)
            want += (long double)(IMAGES / 7) * (m - bias[k]);
        set_outputs(&r, bias);
        loss = evaluate(&r, job, set, HVT_LAST_BATCH_KEEP);
        CHECK(loss.sum == (double)want && loss.count == IMAGES && loss.top1 == IMAGES / 7,
              "of losses up to %a the sum is %.17g, not %.17Lg; %lld first", (double)m, loss.sum, want,
              (long long)loss.top1);
    }
    for (int bad = 1; bad <= 3; bad++) {
        float far = 3e38f, bias[7] = {far, bad & 1 ? -far : 0, 0, bad & 2 ? NAN : 0};

        set_outputs(&r, bias);
        loss = evaluate(&r, job, set, HVT_LAST_BATCH_KEEP);
        alone = evaluate(&r, lone, set, HVT_LAST_BATCH_KEEP);
        CHECK(bad & 2 ? isnan(loss.sum) : loss.sum == INFINITY, "kind %d: %g", bad, loss.sum);
        CHECK(loss.count == IMAGES && loss.top1 == (bad & 2 ? 0 : IMAGES / 7) && loss.top1 == alone.top1 &&
                  loss.top5 == alone.top5 && (loss.sum == alone.sum || isnan(alone.sum)),
              "kind %d: %lld of %lld", bad, (long long)loss.top1, (long long)loss.count);
    }
    hvt_dataset_close(&set);
    rig_close(&r);
}

/* ---- mistakes ----------------------------------------------------------------------------------------- */

TEST(what_is_missing_is_an_argument_error)
{
    int64_t i64 = 0;
    double f64 = 0;
    float f32 = 0;
    size_t first = 7, end = 7, one[64] = {0};
    void *at = NULL;
    hvt_ticket t;
    hvt_world *w = NULL;
    hvt_comm *c = NULL;
    hvt_fuse *f = NULL;
    hvt_cores cores;
    hvt_cutoff threshold;
    const hvt_item no_name = {NULL, "x"}, no_value = {"x", NULL};
    const hvt_piece piece = {"x", &f32, 1, HVT_F32};
    const hvt_overlap worker = {.yield = true};

    CHECK(hvt_world_rank(NULL) == 0 && hvt_world_size(NULL) == 1 && hvt_world_local_rank(NULL) == 0 &&
              hvt_world_local_size(NULL) == 1 && hvt_world_nodes(NULL) == 1,
          "a process without a world is alone");
    CHECK(!*hvt_world_name(NULL) && !*hvt_world_host(NULL, 0) && !*hvt_comm_name(NULL), "nothing has a name");
    CHECK(!hvt_comm_world(NULL) && !hvt_comm_can(NULL) && !hvt_fuse_buckets(NULL),
          "nothing can do something");
    hvt_world_close(NULL);
    hvt_world_close(&w);
    hvt_comm_close(NULL);
    hvt_comm_close(&c);
    hvt_comm_release(NULL, &f32);
    hvt_fuse_free(NULL);
    hvt_fuse_free(&f);
    hvt_comm_slice(NULL, 100, 0, &first, &end);
    CHECK(!first && !end, "a slice of %zu to %zu", first, end);

    CHECK_FAILS(hvt_world_open(NULL, NULL), E_ARG, "no output pointer");
    CHECK_FAILS(hvt_world_wrap(NULL, &w), E_ARG, "no communicator");
    CHECK_FAILS(hvt_world_split(NULL, 0, 0, &w), E_ARG, "no world");
    CHECK_FAILS(hvt_world_split(job, 0, 0, NULL), E_ARG, "no output pointer");
    CHECK_FAILS(hvt_world_allreduce(NULL, HVT_SUM, &f64, 1), E_ARG, "no world");
    CHECK_FAILS(hvt_world_allreduce(job, HVT_SUM, NULL, 1), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_allreduce_i64(NULL, HVT_SUM, &i64, 1), E_ARG, "no world");
    CHECK_FAILS(hvt_world_allreduce_i64(job, HVT_SUM, NULL, 1), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_broadcast(NULL, &f32, 4, 0), E_ARG, "no world");
    CHECK_FAILS(hvt_world_broadcast(job, NULL, 4, 0), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_allgather(NULL, &f32, 4, one), E_ARG, "no world");
    CHECK_FAILS(hvt_world_allgather(job, NULL, 4, one), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_allgather(job, &f32, 4, NULL), E_ARG, "no buffer");
    CHECK_FAILS(hvt_world_barrier(NULL), E_ARG, "no world");
    CHECK_FAILS(hvt_world_agree(NULL, HVT_OK), E_ARG, "no world");
    CHECK(hvt_world_agree(NULL, HVT_E_IO) == HVT_E_IO, "a failure is lost");
    CHECK_FAILS(hvt_world_compare(NULL, NULL, 0), E_ARG, "no world");
    CHECK_FAILS(hvt_world_compare(job, rank == size - 1 ? NULL : &(hvt_item){"x", "y"}, 1), E_ARG, "no list");
    CHECK_FAILS(hvt_world_compare(job, &no_name, 1), E_ARG, "no name");
    CHECK_FAILS(hvt_world_compare(job, &no_value, 1), E_ARG, "no value");
    CHECK_FAILS(hvt_world_watch(NULL, NULL), E_ARG, "needs times");
    CHECK_FAILS(hvt_world_watch(job, NULL), E_ARG, "needs times");
    CHECK_FAILS(hvt_world_cores(NULL, 0, &cores), E_ARG, "no world");
    CHECK_FAILS(hvt_world_cores(job, 0, NULL), E_ARG, "no output pointer");

    CHECK_FAILS(hvt_comm_open(NULL, job, dev, &c), E_ARG, "a comm needs");
    CHECK_FAILS(hvt_comm_open("auto", NULL, dev, &c), E_ARG, "a comm needs");
    CHECK_FAILS(hvt_comm_open("auto", job, NULL, &c), E_ARG, "a comm needs");
    CHECK_FAILS(hvt_comm_open("auto", job, dev, NULL), E_ARG, "a comm needs");
    CHECK_FAILS(hvt_comm_alloc(NULL, 4, &at), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_share(NULL, 4, &at), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_broadcast(NULL, &f32, 4, 0), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_allreduce(NULL, &f32, 1, HVT_F32, &t), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_reduce_scatter(NULL, &f32, 1, HVT_F32, &t), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_allgather(NULL, &f32, 1, HVT_F32, &t), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_reduce_apply(NULL, &f32, 1, HVT_F32, NULL, NULL, &t), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_wait(NULL, 0), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_overlap(NULL, &worker), E_ARG, "no comm");
    CHECK_FAILS(hvt_comm_set_cutoffs(NULL, false), E_ARG, "no list");
    CHECK(!hvt_comm_cutoff(0, NULL) && hvt_comm_cutoff(0, &threshold), "a place for a threshold");

    CHECK_FAILS(hvt_allreduce(NULL, NULL, &f32, 1, HVT_F32, HVT_SUM, NULL, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_reduce_scatter(NULL, &f32, &f32, 1, NULL, HVT_F32, HVT_SUM, NULL, NULL), E_ARG,
                "no comm");
    CHECK_FAILS(hvt_broadcast(NULL, &f32, 1, HVT_F32, 0, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_allgather(NULL, NULL, 1, &f32, NULL, HVT_F32, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_gather(NULL, &f32, 1, &f32, NULL, HVT_F32, 0, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_scatter(NULL, &f32, NULL, &f32, 1, HVT_F32, 0, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_alltoall(NULL, &f32, one, &f32, one, HVT_F32, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_send(NULL, &f32, 1, HVT_F32, 0, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_recv(NULL, &f32, 1, HVT_F32, 0, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_barrier(NULL, NULL), E_ARG, "no comm");
    CHECK_FAILS(hvt_fuse_create(NULL, &piece, 1, 0, HVT_SUM, &f), E_ARG, "no comm");
    CHECK_FAILS(hvt_fuse_ready(NULL, 0), E_ARG, "no fused tensors");
    CHECK_FAILS(hvt_fuse_exchange(NULL), E_ARG, "no fused tensors");

    CHECK_OK(hvt_comm_open("auto", job, dev, &c));
    CHECK_FAILS(hvt_comm_alloc(c, 4, NULL), E_ARG, "no output pointer");
    CHECK_FAILS(hvt_comm_broadcast(c, NULL, 4, 0), E_ARG, "no buffer");
    CHECK_FAILS(hvt_comm_allreduce(c, NULL, 1, HVT_F32, &t), E_ARG, "no buffer");
    CHECK_FAILS(hvt_comm_allreduce(c, &f32, 1, HVT_F32, NULL), E_ARG, "no ticket");
    CHECK_FAILS(hvt_fuse_create(c, NULL, 1, 0, HVT_SUM, &f), E_ARG, "1 tensors");
    CHECK_FAILS(hvt_fuse_create(c, &piece, 1, 0, HVT_SUM, NULL), E_ARG, "no output pointer");
    hvt_comm_release(c, NULL);
    hvt_comm_close(&c);
}

/* The second one's plan is what the first one never had. */
TEST(buckets_that_ranks_disagree_about_stay_as_they_were)
{
    setup u = usual(job, 2 * size);
    result never, refused = {0};
    rig r;

    u.dist.bucket_bytes = 2000;
    never = train(&u, 4);
    CHECK_OK(rig_open(&r, &u));
    for (int step = 0; step < 4; step++) {
        int before = r.d->nbucket;

        if (size > 1)
            CHECK_FAILS(hvt_distopt_replan(r.d, rank == size - 1 ? 0 : HVT_BUCKET_ALL, 0), E_MISMATCH,
                        "bucket bytes differs");
        CHECK(r.d->nbucket == before, "%d buckets, not %d", r.d->nbucket, before);
        CHECK(r.d->opts.bucket_bytes == 2000, "buckets of %zu bytes", r.d->opts.bucket_bytes);
        CHECK_OK(rig_step(&r, step));
    }
    CHECK_OK(rig_result(&r, &refused));
    CHECK(same(never, refused), "another result");
    CHECK_OK(hvt_distopt_replan(r.d, HVT_BUCKET_ALL, 0));
    CHECK(r.d->nbucket <= 2, "%d buckets", r.d->nbucket);
    rig_close(&r);
}

int main(void)
{
    double failed;

    CHECK_OK(hvt_world_open(NULL, &job));
    CHECK_OK(hvt_world_open("singleton", &lone));
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    if (!job || !lone || !dev)
        return 1;
    rank = hvt_world_rank(job);
    size = hvt_world_size(job);
    RUN(sums_hold_one_element_around_every_cutoff);
    RUN(operations_of_every_kind_mix_over_two_comms);
    RUN(comms_and_groups_can_be_opened_again_and_again);
    RUN(uneven_batches_are_weighted_by_their_true_counts);
    RUN(weights_after_many_steps_are_equal_on_all_ranks_and_in_every_run);
    RUN(an_evaluation_is_that_of_one_rank_to_the_last_image);
    RUN(an_evaluation_that_one_rank_leaves_counts_for_none);
    RUN(losses_of_any_size_are_summed_exactly_and_what_is_not_finite_is_counted);
    RUN(what_is_missing_is_an_argument_error);
    RUN(buckets_that_ranks_disagree_about_stay_as_they_were);
    failed = check_failed;
    CHECK_OK(hvt_world_allreduce(job, HVT_SUM, &failed, 1));
    hvt_device_close(&dev);
    hvt_world_close(&lone);
    hvt_world_close(&job);
    check_done();
    return failed != 0;
}
