/*
 * The tape: builders and their mistakes, folding, arenas, both walks, statistics, names, hashes. Gradients
 * are held against differences of the loss on ref; cpu, on every instruction set here, against ref.
 */
#include "net.h"

/* ---- small networks --------------------------------------------------------------------------------- */

/* Every kind of layer: conv, batch norm alone, with relu, with add and relu (identity, option A, option B),
 * max-pool, mean-pool, linear. */
static hvt_value small_net(hvt_model *m, hvt_value x)
{
    hvt_value y, skip;

    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 6, 3, 1, 1)));
    x = hvt_maxpool(m, x, 3, 2, 1);
    y = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 5, 1, 1, 0)));
    y = hvt_batchnorm(m, hvt_conv2d(m, y, 6, 3, 1, 1));
    x = hvt_relu(m, hvt_add(m, y, x)); /* identity */
    skip = hvt_subsample(m, x, 2, 10);
    y = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 10, 3, 2, 1)));
    y = hvt_batchnorm(m, hvt_conv2d(m, y, 10, 3, 1, 1));
    x = hvt_relu(m, hvt_add(m, y, skip));
    y = hvt_batchnorm(m, hvt_conv2d(m, x, 7, 3, 2, 1));
    x = hvt_relu(m, hvt_add(m, y, hvt_batchnorm(m, hvt_conv2d(m, x, 7, 1, 2, 0))));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* What does not fold: add of things that are no batch norm, relu after conv, values read twice, x + x. */
static hvt_value odd_net(hvt_model *m, hvt_value x)
{
    hvt_value a, b, n;

    a = hvt_relu(m, hvt_conv2d(m, x, 4, 3, 1, 1));
    b = hvt_relu(m, hvt_conv2d(m, x, 4, 5, 1, 2));
    x = hvt_add(m, a, hvt_add(m, b, b));
    n = hvt_batchnorm(m, x); /* read twice */
    x = hvt_add(m, hvt_relu(m, n), n);
    x = hvt_add(m, hvt_batchnorm(m, x), x);                            /* its residual is its own x */
    x = hvt_add(m, hvt_batchnorm(m, hvt_conv2d(m, x, 4, 3, 1, 1)), a); /* folds, without relu */
    n = hvt_batchnorm(m, hvt_conv2d(m, x, 4, 1, 1, 0));
    x = hvt_add(m, hvt_add(m, n, x), n); /* read twice, too */
    return hvt_linear(m, hvt_avgpool(m, hvt_subsample(m, x, 3, 8)), 3);
}

/* The images need no gradient: a batch norm reads them, and has a residual that needs one. */
static hvt_value early_norm_net(hvt_model *m, hvt_value x)
{
    hvt_value y = hvt_conv2d(m, x, 3, 3, 1, 1);

    x = hvt_relu(m, hvt_add(m, hvt_batchnorm(m, x), y));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* No batch norm: rows do not know of each other. */
static hvt_value plain_net(hvt_model *m, hvt_value x)
{
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 1, 1));
    x = hvt_maxpool(m, x, 2, 2, 0);
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 2, 1));
    return hvt_linear(m, hvt_avgpool(m, x), 5);
}

/* ---- gradients -------------------------------------------------------------------------------------- */

static void check_gradients(build_fn *build, shape s, how by)
{
    const double step = 1.0 / 1024;
    net n;

    if (open_net(&n, by, build, s)) {
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
        for (int i = 0; i < n.m->nparam_tensors; i++) {
            const hvt_param *p = &n.m->param[i];
            float *w = canonical(&n, i, n.m->params), *g = canonical(&n, i, n.m->grads);

            for (int k = 0; k < 4; k++) {
                size_t e = hvt__below(hvt__draw(SEED, 3, (uint64_t)i, (uint64_t)k), (uint32_t)p->elements);
                float was = w[e];
                double slope[2];

                for (int j = 0; j < 2; j++) { /* steps h and h/2; Richardson takes the h^2 term out */
                    double h = step / (1 + j), up, down;

                    w[e] = (float)(was + h);
                    CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                    up = train_loss(&n);
                    w[e] = (float)(was - h);
                    CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                    down = train_loss(&n);
                    slope[j] = (up - down) / ((double)(float)(was + h) - (double)(float)(was - h));
                }
                w[e] = was;
                CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                slope[0] = (4 * slope[1] - slope[0]) / 3;
                CHECK(fabs(slope[0] - g[e]) < 2e-3 * (fabs(slope[0]) + 1), "%s[%zu]: %.6g, expected %.6g",
                      p->name, e, (double)g[e], slope[0]);
            }
            free(w);
            free(g);
        }
    }
    close_net(&n);
}

TEST(gradients_equal_differences_of_the_loss)
{
    check_gradients(small_net, (shape){5, 9, 11, 3}, ref);
    check_gradients(odd_net, (shape){3, 5, 7, 2}, ref);
    check_gradients(early_norm_net, (shape){3, 5, 7, 3}, ref);
    check_gradients(plain_net, (shape){3, 9, 7, 3}, ref);
}

/* A forward and a backward pass; each parameter's gradient in canonical order, one after the other, and the
 * loss behind them. free() it. */
static float *pass(net *n, size_t *ret_count)
{
    size_t count = hvt_model_parameters(n->m), at = 0;
    float *g = malloc((count + 1) * sizeof *g);

    CHECK_OK(hvt_model_forward(n->m, &n->batch, true));
    CHECK_OK(hvt_model_backward(n->m, NULL, NULL));
    for (int i = 0; i < n->m->nparam_tensors; i++) {
        CHECK_OK(hvt__model_export(n->m, &n->m->param[i], n->m->grads, g + at));
        at += n->m->param[i].elements;
    }
    g[at] = (float)loss_of(n);
    *ret_count = count + 1;
    return g;
}

/* Largest difference of what pass() gave, as a part of the tensor's largest value (the loss: of itself). */
static double apart(const net *n, const float *a, const float *b)
{
    double worst = 0;

    for (int i = 0; i <= n->m->nparam_tensors; i++) {
        size_t count = i < n->m->nparam_tensors ? n->m->param[i].elements : 1;
        double most = 1e-6, off = 0;

        for (size_t k = 0; k < count; k++) {
            most = fmax(most, fabs((double)a[k]));
            off = fabs((double)a[k] - b[k]) >= off ? fabs((double)a[k] - b[k]) : off;
        }
        worst = off / most >= worst ? off / most : worst;
        a += count;
        b += count;
    }
    return worst;
}

/* Run the same net in two ways: gradients and loss agree to `tolerance`; 0: to the bit. */
static void check_same(build_fn *build, shape s, int count, how one, how other, double tolerance)
{
    net a, b;
    bool a_runs = open_net(&a, one, build, s), b_runs = open_net(&b, other, build, s);

    if (a_runs && b_runs) {
        size_t n;
        float *x, *y;

        feed(&a, 0, count);
        feed(&b, 0, count);
        x = pass(&a, &n);
        y = pass(&b, &n);
        CHECK(isfinite(x[n - 1]) && x[n - 1] != 0, "loss %g", (double)x[n - 1]);
        CHECK(apart(&a, x, y) <= tolerance, "%s: %d of %d images %dx%dx%d: %.2g apart", way_name(other),
              count, s.batch, s.h, s.w, s.c, apart(&a, x, y));
        free(x);
        free(y);
    }
    close_net(&b); /* the later one first: each restores how its thread treated subnormals */
    close_net(&a);
}

TEST(every_device_set_and_order_gives_the_gradients_of_ref)
{
    static build_fn *const nets[] = {small_net, odd_net, plain_net};
    static const shape shapes[] = {{1, 8, 8, 3}, {5, 9, 11, 3}, {17, 7, 5, 4}, {33, 12, 4, 1}};
    how by;

    for (int i = 0; way(i, &by); i++)
        for (size_t k = 0; k < HVT_LEN(nets); k++)
            for (size_t j = 0; j < HVT_LEN(shapes); j++) {
                check_same(nets[k], shapes[j], shapes[j].batch, ref, by, 3e-5);
                check_same(nets[k], shapes[j], (shapes[j].batch + 1) / 2, ref, by, 3e-5);
            }
}

TEST(folding_changes_no_bit)
{
    how apart_ref = ref, by;

    apart_ref.unfused = true;
    check_same(small_net, (shape){5, 9, 11, 3}, 5, ref, apart_ref, 0);
    check_same(odd_net, (shape){5, 9, 11, 3}, 4, ref, apart_ref, 0);
    for (int i = 0; way(i, &by); i++) {
        how unfused = by;

        unfused.unfused = true;
        check_same(small_net, (shape){6, 9, 7, 3}, 5, by, unfused, 0);
        check_same(odd_net, (shape){6, 9, 7, 3}, 6, by, unfused, 0);
    }
}

TEST(threads_change_no_bit)
{
    how one = {.device = "cpu", .threads = 1}, two = {.device = "cpu", .threads = 2};

    check_same(small_net, (shape){19, 16, 15, 3}, 19, one, two, 0);
    check_same(odd_net, (shape){19, 16, 15, 3}, 11, one, two, 0);
}

/* ---- short batches ---------------------------------------------------------------------------------- */

/* What a batch of `count` gives in a plan for more equals what it gives in a plan of its own. */
static void check_short(build_fn *build, how by, int count, int room)
{
    net big, own;
    bool big_runs = open_net(&big, by, build, (shape){room, 9, 11, 3}),
         own_runs = open_net(&own, by, build, (shape){count, 9, 11, 3});

    if (big_runs && own_runs) {
        float loss[2][64], *g[2];
        int32_t place[2][64];
        size_t n;

        feed(&big, 0, room); /* whatever a full pass left in the arenas must not matter */
        free(pass(&big, &n));
        feed(&big, 0, count);
        feed(&own, 0, count);
        g[0] = pass(&big, &n);
        g[1] = pass(&own, &n);
        CHECK(apart(&own, g[1], g[0]) <= 1e-5, "%s: %d of %d: %.2g apart", way_name(by), count, room,
              apart(&own, g[1], g[0]));
        free(g[0]);
        free(g[1]);
        CHECK_OK(hvt_model_forward(big.m, &big.batch, false));
        CHECK_OK(hvt_model_forward(own.m, &own.batch, false));
        CHECK_OK(hvt_model_rows(big.m, loss[0], place[0]));
        CHECK_OK(hvt_model_rows(own.m, loss[1], place[1]));
        CHECK(!memcmp(loss[0], loss[1], (size_t)count * sizeof **loss), "%s: losses of %d of %d differ",
              way_name(by), count, room);
        CHECK(!memcmp(place[0], place[1], (size_t)count * sizeof **place), "%s: places of %d of %d differ",
              way_name(by), count, room);
    }
    close_net(&own);
    close_net(&big);
}

TEST(a_short_batch_is_a_smaller_batch)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        check_short(small_net, by, 4, 7);
        check_short(odd_net, by, 3, 20);
        check_short(plain_net, by, 1, 33);
    }
}

/* ---- the two walks ---------------------------------------------------------------------------------- */

typedef struct spans {
    const net *n;
    size_t mark;
    float *seen; /* the gradient arena, each span as it was when it was said to be final */
    int count;
} spans;

static hvt_status note_span(void *ctx, size_t first, size_t end)
{
    spans *s = ctx;

    CHECK(first == s->mark && end > first && end <= s->n->m->arena_count, "[%zu, %zu) after %zu of %zu",
          first, end, s->mark, s->n->m->arena_count);
    CHECK(s->count || end == s->n->m->rider_count, "the first span ends at %zu, the rider at %zu", end,
          s->n->m->rider_count);
    CHECK_OK(hvt_device_download(s->n->dev, s->seen + first, s->n->m->grads + first,
                                 (end - first) * sizeof *s->seen));
    s->mark = end;
    s->count++;
    return HVT_OK;
}

TEST(final_spans_tile_the_arena_and_are_final)
{
    net n;

    if (open_net(&n, ref, small_net, (shape){3, 9, 11, 3})) {
        const hvt_model *m = n.m;
        spans s = {.n = &n, .seen = calloc(m->arena_count, sizeof(float))};
        int layers = 0;

        for (int i = 0; i < m->nlayer; i++)
            layers += m->layer[i].param[0] >= 0;
        for (int count = 3; count >= 0; count -= 3) {
            feed(&n, 0, count);
            s.mark = 0;
            s.count = 0;
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            CHECK_OK(hvt_model_backward(n.m, note_span, &s));
            CHECK(s.mark == m->arena_count, "spans end at %zu of %zu", s.mark, m->arena_count);
            CHECK(s.count == layers + 1, "%d spans, %d layers with parameters and the rider", s.count,
                  layers);
            CHECK(!memcmp(s.seen, m->grads, m->arena_count * sizeof *s.seen),
                  "a final gradient was written again");
        }
        free(s.seen);
        for (int i = 0; i < m->nparam_tensors; i++)
            CHECK(m->param[i].offset % 16 == 0, "%s lies at %zu", m->param[i].name, m->param[i].offset);
    }
    close_net(&n);
}

static hvt_status refuse_third(void *ctx, size_t first, size_t end)
{
    (void)first;
    (void)end;
    return ++*(int *)ctx == 3 ? HVT_FAIL(E_COMM, "no third span") : HVT_OK;
}

TEST(an_error_of_the_hook_ends_backward)
{
    int calls = 0;
    net n;

    if (open_net(&n, ref, small_net, (shape){3, 9, 11, 3})) {
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_FAILS(hvt_model_backward(n.m, refuse_third, &calls), E_COMM, "no third span");
        CHECK(calls == 3, "%d calls", calls);
    }
    close_net(&n);
}

TEST(an_empty_batch_gives_zero_gradients_and_sums)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        net n;

        if (open_net(&n, by, small_net, (shape){4, 9, 11, 3})) {
            size_t count, nonzero = 0;

            free(pass(&n, &count));
            feed(&n, 0, 0);
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
            for (size_t k = 0; k < n.m->arena_count; k++)
                nonzero += n.m->grads[k] != 0;
            CHECK(!nonzero, "%s: %zu of %zu values are not 0", way_name(by), nonzero, n.m->arena_count);
            CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
            CHECK_OK(hvt_model_rows(n.m, NULL, NULL));
        }
        close_net(&n);
    }
}

TEST(passes_out_of_turn_are_refused)
{
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    uint64_t h;
    net n;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_FAILS(hvt_model_forward(m, &(hvt_batch){0}, true), E_ARG, "before hvt_model_plan");
    CHECK_FAILS(hvt_model_backward(m, NULL, NULL), E_ARG, "training forward");
    CHECK_FAILS(hvt_model_rows(m, NULL, NULL), E_ARG, "before a forward");
    CHECK_FAILS(hvt_model_init(m, 1), E_ARG, "before hvt_model_plan");
    CHECK_FAILS(hvt_model_hash(m, &h), E_ARG, "before hvt_model_plan");
    CHECK_FAILS(hvt__model_place(m, NULL), E_ARG, "before hvt_model_plan");
    hvt_model_free(&m);
    hvt_device_close(&dev);

    if (open_net(&n, ref, plain_net, (shape){3, 8, 8, 3})) {
        CHECK_FAILS(hvt_model_plan(n.m, 3, n.m->logits), E_ARG, "planned already, for a batch of 3");
        CHECK_FAILS(hvt_model_backward(n.m, NULL, NULL), E_ARG, "training forward");
        CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
        CHECK_FAILS(hvt_model_backward(n.m, NULL, NULL), E_ARG, "training forward");
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
        CHECK_FAILS(hvt_model_backward(n.m, NULL, NULL), E_ARG, "training forward");
        n.batch.count = 4;
        CHECK_FAILS(hvt_model_forward(n.m, &n.batch, true), E_SHAPE,
                    "4 images; the model is planned for 0 to 3");
        n.batch.count = 3;
        n.batch.images.dim[1] = 9;
        CHECK_FAILS(hvt_model_forward(n.m, &n.batch, true), E_SHAPE,
                    "[3,9,8,3]; the plan expects f32 [3,8,8,3]");
        n.batch.images.dim[1] = 8;
        n.batch.labels.dtype = HVT_F32;
        CHECK_FAILS(hvt_model_forward(n.m, &n.batch, true), E_SHAPE, "labels are f32");
    }
    close_net(&n);
}

/* ---- what a step costs ------------------------------------------------------------------------------ */

static int packs, allocations;
static hvt_status (*pack_of_device)(hvt_op *op, const void *w);
static hvt_status (*alloc_of_device)(hvt_device *d, size_t bytes, void **ret_ptr);

static hvt_status count_pack(hvt_op *op, const void *w)
{
    packs++;
    return pack_of_device(op, w);
}

static hvt_status count_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    allocations++;
    return alloc_of_device(d, bytes, ret_ptr);
}

TEST(weights_are_packed_once_per_update_and_nothing_is_allocated)
{
    net n;

    if (open_net(&n, (how){.device = "cpu", .threads = 1}, small_net, (shape){3, 9, 11, 3})) {
        int convs = 0;

        for (int i = 0; i < n.m->nlayer; i++)
            convs += n.m->layer[i].op && strstr(n.m->layer[i].ops->name, "pool") == NULL;
        pack_of_device = n.ops->conv_pack;
        alloc_of_device = n.ops->alloc;
        n.spy.conv_pack = count_pack;
        n.spy.alloc = count_alloc;
        packs = allocations = 0;
        for (int update = 1; update <= 3; update++) {
            for (int shard = 0; shard < 3; shard++) {
                CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
                CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
                CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
            }
            CHECK(packs == update * (convs - 1),
                  "%d packings after %d updates, of %d convolutions but the first", packs, update, convs);
            hvt__model_changed(n.m);
        }
        CHECK(!allocations, "%d allocations", allocations);
    }
    close_net(&n);
}

TEST(gradients_may_lie_elsewhere)
{
    net a, b;
    bool a_runs = open_net(&a, ref, small_net, (shape){3, 9, 11, 3}),
         b_runs = open_net(&b, ref, small_net, (shape){3, 9, 11, 3});

    if (a_runs && b_runs) {
        float *elsewhere = calloc(b.m->arena_count, sizeof *elsewhere), *x, *y;
        size_t n;

        CHECK_OK(hvt__model_place(b.m, elsewhere));
        x = pass(&a, &n);
        y = pass(&b, &n);
        CHECK(!memcmp(x, y, n * sizeof *x), "gradients differ");
        CHECK(!memcmp(a.m->grads, elsewhere, a.m->arena_count * sizeof *x), "arenas differ");
        free(y);
        CHECK_OK(hvt__model_place(b.m, NULL));
        y = pass(&b, &n);
        CHECK(!memcmp(x, y, n * sizeof *x), "gradients differ after their return");
        free(x);
        free(y);
        free(elsewhere);
    }
    close_net(&b);
    close_net(&a);
}

/* ---- the end of a step ------------------------------------------------------------------------------ */

static hvt_value norm_net(hvt_model *m, hvt_value x)
{
    hvt_name(m, "wide");
    x = hvt_relu(m, hvt_batchnorm(m, x));
    x = hvt_avgpool(m, hvt_conv2d(m, x, 6, 3, 1, 1));
    hvt_name(m, "point"); /* one value per image and channel */
    return hvt_linear(m, hvt_batchnorm(m, x), 4);
}

/* Mean and unbiased variance of channel c over images first .. first+count-1. */
static void moments_of(const net *n, int first, int count, int c, double *ret_mean, double *ret_var)
{
    int pixels = n->h * n->w;
    double sum = 0, square = 0, values = (double)count * pixels;

    for (int i = 0; i < count; i++)
        for (int p = 0; p < pixels; p++) {
            double x = pixel(first + i, p * n->c + c);

            sum += x;
            square += x * x;
        }
    *ret_mean = sum / values;
    *ret_var = (square - sum * sum / values) / (values - 1);
}

TEST(moving_statistics_take_the_shards_moments_by_their_images)
{
    static const int counts[] = {5, 1, 0, 3};
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        net n;

        if (open_net(&n, by, norm_net, (shape){5, 4, 3, 2})) {
            hvt_model *m = n.m;
            float *sum = calloc(m->rider_count, sizeof *sum);
            double loss = 0, want_mean[2] = {0}, want_var[2] = {0};
            int first = 0, hits[2] = {0};
            hvt_loss got;
            float rows[5];
            int32_t place[5];

            for (int shard = 0; shard < 4; shard++) {
                feed(&n, first, counts[shard]);
                CHECK_OK(hvt_model_forward(m, &n.batch, true));
                CHECK_OK(hvt_model_rows(m, rows, place));
                for (size_t k = 0; k < m->rider_count; k++)
                    sum[k] += m->grads[k];
                for (int c = 0; c < 2 && counts[shard]; c++) {
                    double mean, var;

                    moments_of(&n, first, counts[shard], c, &mean, &var);
                    want_mean[c] += mean * counts[shard] / 9;
                    want_var[c] += var * counts[shard] / 9;
                }
                for (int k = 0; k < counts[shard]; k++) {
                    loss += rows[k];
                    hits[0] += place[k] < 1;
                    hits[1] += place[k] < 5;
                }
                first += counts[shard];
            }
            memcpy(m->grads, sum, m->rider_count * sizeof *sum);
            CHECK_OK(hvt__model_begin_step(m, 9, .1));
            CHECK_OK(hvt__model_end_step(m, counts, 4));
            CHECK(m->tracked == 1, "%lld steps tracked", (long long)m->tracked);
            for (int c = 0; c < 2; c++) {
                double mean = m->stats[m->stat[0].offset + c], var = m->stats[m->stat[1].offset + c];

                CHECK(fabs(mean - .1 * want_mean[c]) < 1e-6, "%s: mean %g, expected %g", way_name(by), mean,
                      .1 * want_mean[c]);
                CHECK(fabs(var - (.9 + .1 * want_var[c])) < 1e-6, "%s: variance %g, expected %g",
                      way_name(by), var, .9 + .1 * want_var[c]);
            }
            /* The shard of one image has one value per channel behind the pool, so 5 + 3 images weigh: a
             * constant moment times its weight comes back as itself. */
            for (size_t k = 0; k < m->rider_count - HVT_RIDER_SUMS; k++)
                m->grads[k] = 8;
            memcpy(m->stats + m->stat[2].offset, (float[6]){0}, 6 * sizeof(float));
            CHECK_OK(hvt__model_end_step(m, counts, 4));
            CHECK(fabs(m->stats[m->stat[2].offset] - .1) < 1e-7, "moving mean %g, expected .1 * 8/8",
                  (double)m->stats[m->stat[2].offset]);
            CHECK_OK(hvt_model_take_loss(m, &got));
            CHECK(fabs(got.sum - 2 * loss) < 1e-4 && got.top1 == 2 * hits[0] && got.top5 == 2 * hits[1] &&
                      got.count == 18,
                  "loss %g (expected %g), hits %lld %lld (%d %d), %lld images", got.sum, 2 * loss,
                  (long long)got.top1, (long long)got.top5, 2 * hits[0], 2 * hits[1], (long long)got.count);
            CHECK_OK(hvt_model_take_loss(m, &got));
            CHECK(got.sum == 0 && got.count == 0, "the loss was not taken");
            free(sum);
        }
        close_net(&n);
    }
}

TEST(shards_without_a_variance_move_no_statistics)
{
    static const int counts[] = {1, 0, 1};
    net n;

    if (open_net(&n, ref, norm_net, (shape){5, 4, 3, 2})) {
        const hvt_stat *point = &n.m->stat[2];

        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt__model_end_step(n.m, counts, 3));
        CHECK(n.m->stats[point->offset] == 0 && n.m->stats[point[1].offset] == 1,
              "statistics moved to %g, %g", (double)n.m->stats[point->offset],
              (double)n.m->stats[point[1].offset]);
        CHECK(n.m->tracked == 1, "%lld steps tracked", (long long)n.m->tracked);
    }
    close_net(&n);
}

TEST(a_loss_that_is_not_finite_changes_nothing)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const text[] = {"nan", "inf", "-inf"};
    net n;

    if (open_net(&n, ref, small_net, (shape){5, 9, 11, 3})) {
        uint64_t before, after;
        hvt_step_state before_step;

        CHECK_OK(hvt_model_hash(n.m, &before));
        CHECK_OK(hvt__model_state(n.m, &before_step));
        for (int i = 0; i < 3; i++) {
            hvt_loss loss;

            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            n.m->grads[n.m->rider_count - HVT_RIDER_SUMS] = bad[i];
            CHECK_OK(hvt__model_set_state(n.m, &before_step));
            CHECK_OK(hvt__model_begin_step(n.m, 5, .1));
            CHECK_OK(hvt__model_end_step(n.m, (int[]){5}, 1));
            CHECK_FAILS(hvt__model_stopped(n.m, n.m->step), E_DIVERGED, text[i]);
            CHECK(!n.m->step->apply, "the step may update");
            CHECK_OK(hvt_model_hash(n.m, &after));
            CHECK(before == after && n.m->tracked == 0, "the step left something");
            CHECK_OK(hvt_model_take_loss(n.m, &loss));
            CHECK(loss.count == 0, "%lld images were counted", (long long)loss.count);
        }
    }
    close_net(&n);
}

TEST(inference_reads_moving_statistics_and_touches_nothing)
{
    net n;

    if (open_net(&n, ref, norm_net, (shape){5, 4, 3, 2})) {
        hvt_model *m = n.m;
        float *rider = malloc(m->arena_count * sizeof *rider), loss[3][5];
        int32_t place[5];
        uint64_t before, after;

        CHECK_OK(hvt_model_forward(m, &n.batch, true));
        CHECK_OK(hvt_model_backward(m, NULL, NULL));
        CHECK_OK(hvt_model_rows(m, loss[0], place));
        memcpy(rider, m->grads, m->arena_count * sizeof *rider);
        CHECK_OK(hvt_model_hash(m, &before));
        CHECK_OK(hvt_model_forward(m, &n.batch, false));
        CHECK_OK(hvt_model_rows(m, loss[1], place));
        CHECK_OK(hvt_model_hash(m, &after));
        CHECK(before == after, "weights or statistics moved");
        CHECK(!memcmp(rider, m->grads, m->arena_count * sizeof *rider), "gradients moved");
        /* With the batch's own statistics as the moving ones it gives the training pass's losses. */
        for (int k = 0; k < 2; k++) {
            const hvt_stat *s = &m->stat[2 * k];
            size_t at = k ? 2 * m->stat[0].count : 0, c = s->count;
            int values = k ? 5 : 60;

            for (size_t i = 0; i < c; i++) {
                m->stats[s[0].offset + i] = rider[at + i] / 5;
                m->stats[s[1].offset + i] = rider[at + c + i] / 5 * (float)(values - 1) / (float)values;
            }
        }
        CHECK_OK(hvt_model_forward(m, &n.batch, false));
        CHECK_OK(hvt_model_rows(m, loss[2], place));
        for (int i = 0; i < 5; i++) {
            CHECK(fabsf(loss[2][i] - loss[0][i]) < 1e-4f * loss[0][i], "loss %g, expected %g",
                  (double)loss[2][i], (double)loss[0][i]);
            CHECK(loss[1][i] != loss[0][i], "image %d: moving statistics made no difference", i);
        }
        free(rider);
    }
    close_net(&n);
}

/* ---- mistakes --------------------------------------------------------------------------------------- */

static hvt_value wrong_add(hvt_model *m, hvt_value x)
{
    hvt_value four = hvt_conv2d(m, x, 4, 3, 2, 1), five = hvt_conv2d(m, x, 5, 3, 2, 1);

    hvt_name(m, "sum");
    return hvt_add(m, four, five);
}

static hvt_value wrong_window(hvt_model *m, hvt_value x)
{
    hvt_name(m, "stem");
    x = hvt_conv2d(m, x, 4, 11, 1, 1);
    return wrong_add(m, x);
}

static hvt_value wrong_pool(hvt_model *m, hvt_value x)
{
    return hvt_maxpool(m, x, 3, 2, 2);
}

static hvt_value wrong_pool_window(hvt_model *m, hvt_value x)
{
    return hvt_maxpool(m, x, 15, 2, 1);
}

static hvt_value wrong_filters(hvt_model *m, hvt_value x)
{
    return hvt_conv2d(m, x, 0, 3, 1, 1);
}

static hvt_value wrong_stride(hvt_model *m, hvt_value x)
{
    return hvt_conv2d(m, x, 4, 3, -1, 1);
}

static hvt_value wrong_linear(hvt_model *m, hvt_value x)
{
    hvt_name(m, "fc");
    return hvt_linear(m, x, 10);
}

static hvt_value wrong_outputs(hvt_model *m, hvt_value x)
{
    return hvt_linear(m, hvt_avgpool(m, x), 0);
}

static hvt_value wrong_padding(hvt_model *m, hvt_value x)
{
    return hvt_subsample(m, x, 2, 6);
}

static hvt_value wrong_value(hvt_model *m, hvt_value x)
{
    return hvt_relu(m, x + 9);
}

static hvt_value negative_value(hvt_model *m, hvt_value x)
{
    (void)x;
    return hvt_add(m, 0, -7);
}

static hvt_value two_inputs(hvt_model *m, hvt_value x)
{
    (void)x;
    return hvt_input(m, 4, 4, 3);
}

static hvt_value same_names(hvt_model *m, hvt_value x)
{
    hvt_name(m, "twin");
    x = hvt_relu(m, x);
    hvt_name(m, "twin");
    return hvt_relu(m, x);
}

static hvt_value long_name(hvt_model *m, hvt_value x)
{
    hvt_name(m, "%0200d", 1);
    return hvt_relu(m, x);
}

static hvt_value dead_end(hvt_model *m, hvt_value x)
{
    hvt_value lost = hvt_conv2d(m, x, 4, 3, 1, 1);

    hvt_name(m, "lost");
    hvt_relu(m, lost);
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

static hvt_value image_logits(hvt_model *m, hvt_value x)
{
    hvt_name(m, "last");
    return hvt_conv2d(m, x, 4, 3, 1, 1);
}

static hvt_value no_such_model(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "resnet19", x, 10, NULL);
}

static hvt_value no_classes(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "resnet20", x, 0, NULL);
}

static hvt_value huge(hvt_model *m, hvt_value x)
{
    return hvt_conv2d(m, hvt_conv2d(m, x, 1 << 20, 1, 1, 0), 1 << 20, 1, 1, 0);
}

TEST(the_first_mistake_is_reported_with_layer_and_shapes)
{
    static const struct {
        build_fn *build;
        const char *part;
    } bad[] = {
        {wrong_add, "layer sum (add): adds conv2d1, which is 4x4x4, and conv2d2, which is 4x4x5"},
        {wrong_window, "layer stem (conv2d): input 8x8x3 is smaller than the 11x11 window with padding 1; it "
                       "must be at least 9x9"},
        {wrong_pool, "layer maxpool1 (maxpool): window 3x3, stride 2, padding 2"},
        {wrong_pool_window,
         "layer maxpool1 (maxpool): input 8x8x3 is smaller than the 15x15 window with padding "
         "1; it must be at least 13x13"},
        {wrong_filters, "layer conv2d1 (conv2d): 0 filters"},
        {wrong_stride, "layer conv2d1 (conv2d): 4 filters of 3x3, stride -1"},
        {wrong_linear, "layer fc (linear): input is 8x8x3; it must be 1x1xC"},
        {wrong_outputs, "layer linear2 (linear): 0 outputs"},
        {wrong_padding, "layer subsample1 (subsample): input 8x8x3 cannot be padded evenly to 6 channels"},
        {wrong_value, "layer relu1 (relu): reads value 9, but the model has 1 values so far"},
        {negative_value, "layer add1 (add): reads value -7"},
        {two_inputs, "layer input1 (input): a model has one input; layer input0"},
        {same_names, "layer twin (relu): layer 1 has this name already"},
        {long_name, "a layer's name has 200 characters"},
        {dead_end, "layer conv2d1 (conv2d): its output, 8x8x4, does not lead to the logits"},
        {image_logits, "logits are last, which is 8x8x4, not 1x1xclasses"},
        {no_such_model, "no model is called 'resnet19'; known are: resnet18, resnet34"},
        {no_classes, "layer fc (linear): 0 outputs"},
        {huge, "conv2d2"},
    };
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        hvt_model *m = NULL;
        hvt_value x;

        CHECK_OK(hvt_model_create(dev, &m));
        x = bad[i].build(m, hvt_input(m, 8, 8, 3));
        /* whoever goes on building notices nothing */
        x = hvt_linear(m, hvt_avgpool(m, hvt_relu(m, hvt_batchnorm(m, x))), 10);
        CHECK_FAILS(hvt_model_plan(m, 2, bad[i].build == image_logits ? 1 : x), E_SHAPE, bad[i].part);
        hvt_model_free(&m);
    }
    hvt_device_close(&dev);
    CHECK(hvt_relu(NULL, 0) < 0 && hvt_input(NULL, 1, 1, 1) < 0 && hvt_zoo(NULL, "resnet20", 0, 10, NULL) < 0,
          "builders take a model that is not there");
}

TEST(inputs_and_batches_out_of_range_are_refused)
{
    static const int sizes[][3] = {{0, 8, 3}, {8, -1, 3}, {8, 8, 0}, {8, 8, 1 << 21}};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(sizes); i++) {
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_FAILS(hvt_model_plan(m, 2, hvt_input(m, sizes[i][0], sizes[i][1], sizes[i][2])), E_SHAPE,
                    "layer input0");
        hvt_model_free(&m);
    }
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_FAILS(hvt_model_plan(m, 2, 0), E_ARG, "the model has 0 values");
    hvt_input(m, 1 << 10, 1 << 10, 1 << 10);
    CHECK_FAILS(hvt_model_plan(m, 0, hvt_avgpool(m, 0)), E_ARG, "batch of 0");
    CHECK_FAILS(hvt_model_plan(m, 2, 9), E_ARG, "value 9");
    CHECK_FAILS(hvt_model_plan(m, 2, 1), E_SHAPE, "output [2,1024,1024,1024] has more than");
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

/* ---- plans that fail -------------------------------------------------------------------------------- */

static int allocations_left;

static hvt_status scarce_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    return allocations_left-- > 0 ? alloc_of_device(d, bytes, ret_ptr)
                                  : HVT_FAIL(E_MEM, "no memory for %zu bytes", bytes);
}

TEST(a_plan_that_fails_leaves_the_tape_as_it_was)
{
    net whole;

    if (open_net(&whole, ref, small_net, (shape){3, 9, 11, 3})) {
        hvt_device_ops scarce = *whole.ops;
        hvt_model *m = NULL;
        hvt_value x;
        hvt_status s = HVT_E_MEM;
        uint64_t want, got = 0;
        int tries = 0;

        alloc_of_device = whole.ops->alloc;
        scarce.alloc = scarce_alloc;
        whole.dev->ops = &scarce;
        CHECK_OK(hvt_model_create(whole.dev, &m));
        x = small_net(m, hvt_input(m, 9, 11, 3));
        for (; s != HVT_OK && tries < 20; tries++) {
            allocations_left = tries;
            s = hvt_model_plan(m, 3, x);
            CHECK(s == HVT_OK || s == HVT_E_MEM, "%s", hvt_status_name(s));
        }
        CHECK(s == HVT_OK && tries > 4, "%d tries", tries);
        CHECK_OK(hvt_model_init(m, SEED));
        CHECK_OK(hvt_model_hash(m, &got));
        CHECK_OK(hvt_model_hash(whole.m, &want));
        CHECK(got == want && m->acts_bytes == whole.m->acts_bytes && m->arena_count == whole.m->arena_count,
              "the plan differs from one made at once");
        hvt_model_free(&m);
    }
    close_net(&whole);
}

TEST(outputs_made_again_take_less_memory_and_leave_the_bits)
{
    static build_fn *const nets[] = {small_net, odd_net, early_norm_net, plain_net};
    static const shape shapes[] = {{1, 8, 8, 3}, {5, 9, 11, 3}, {33, 12, 4, 3}};

    for (size_t k = 0; k < HVT_LEN(nets); k++)
        for (size_t i = 0; i < HVT_LEN(shapes); i++)
            for (int dev = 0; dev < 2; dev++) {
                how again = {.device = dev ? "cpu" : "ref", .threads = 1}, keep = again;

                keep.keeps = true;
                check_same(nets[k], shapes[i], shapes[i].batch, again, keep, 0);
                again.unfused = keep.unfused = true;
                check_same(nets[k], shapes[i], shapes[i].batch / 2 + 1, again, keep, 0);
            }
}

static hvt_value deep_net(hvt_model *m, hvt_value x)
{
    for (int i = 0; i < 6; i++)
        x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 8, 3, 1, 1)));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

TEST(a_net_of_norms_keeps_little_more_than_their_inputs)
{
    const shape s = {8, 16, 16, 3};
    const size_t y = (size_t)8 * 16 * 16 * 8 * sizeof(float); /* of any of its layers */
    net again, keeping;

    if (open_net(&again, ref, deep_net, s) &&
        open_net(&keeping, (how){.device = "ref", .threads = 1, .keeps = true}, deep_net, s)) {
        /* kept: 6 inputs of norms. In backward one of them is spent, and y, dy and dx come to it */
        CHECK(again.m->acts_bytes >= 6 * y && again.m->acts_bytes < 9 * y, "%zu bytes, an output has %zu",
              again.m->acts_bytes, y);
        CHECK(keeping.m->acts_bytes >= 12 * y && keeping.m->acts_bytes < 14 * y,
              "%zu bytes, an output has %zu", keeping.m->acts_bytes, y);
        close_net(&keeping);
    }
    close_net(&again);
}

TEST(blocks_that_live_together_lie_apart)
{
    enum { MOST = 60, TIMES = 40 };

    for (int round = 0; round < 200; round++) {
        hvt_block b[MOST];
        int n = 1 + (int)hvt__below(hvt__draw(SEED, 5, (uint64_t)round, 0), MOST);
        size_t total, alive[TIMES] = {0}, most = 0;

        for (int i = 0; i < n; i++) {
            uint64_t d = hvt__draw(SEED, 6, (uint64_t)round, (uint64_t)i);
            int from = (int)(d % TIMES), to = from + (int)(d / TIMES % (TIMES - from));

            b[i] = (hvt_block){.bytes = d >> 32 & 3 ? d >> 40 & 0xfff : 0, .from = from, .to = to};
            for (int t = from; t <= to; t++)
                alive[t] += b[i].bytes;
        }
        total = hvt__arena_fit(b, n);
        for (int i = 0; i < n; i++) {
            CHECK(!b[i].bytes || (b[i].offset % 64 == 0 && b[i].offset + b[i].bytes <= total),
                  "%zu bytes at %zu of %zu", b[i].bytes, b[i].offset, total);
            for (int j = 0; j < i; j++)
                CHECK(!b[i].bytes || !b[j].bytes || b[i].from > b[j].to || b[j].from > b[i].to ||
                          b[i].offset >= b[j].offset + b[j].bytes || b[j].offset >= b[i].offset + b[i].bytes,
                      "blocks %d and %d of round %d overlap", i, j, round);
        }
        for (int t = 0; t < TIMES; t++)
            most = alive[t] > most ? alive[t] : most;
        CHECK(total <= most + most / 2 + 64 * MOST, "%zu bytes for at most %zu alive", total, most);
    }
}

/* ---- the hash ------------------------------------------------------------------------------------------ */

TEST(the_hash_sees_canonical_values_and_single_bits)
{
    uint64_t first = 0, other = 0, seeded = 0;
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        net n;

        if (open_net(&n, by, small_net, (shape){i + 2, 9, 11, 3})) {
            CHECK_OK(hvt_model_hash(n.m, &other));
            first = i ? first : other;
            CHECK(first == other, "%s: %016llx, ref has %016llx", way_name(by), (unsigned long long)other,
                  (unsigned long long)first);
            for (int k = 0; k < n.m->nparam_tensors; k++) {
                float *x = canonical(&n, k, n.m->params), was = x[0];
                uint32_t bits;

                memcpy(&bits, x, sizeof bits);
                bits ^= 1;
                memcpy(x, &bits, sizeof bits);
                CHECK_OK(hvt__model_import(n.m, &n.m->param[k], n.m->params, x));
                CHECK_OK(hvt_model_hash(n.m, &other));
                CHECK(other != first, "%s: a bit of %s goes unseen", way_name(by), n.m->param[k].name);
                x[0] = was;
                CHECK_OK(hvt__model_import(n.m, &n.m->param[k], n.m->params, x));
                free(x);
            }
            n.m->stats[n.m->stat[n.m->nstat - 1].offset] += 1;
            CHECK_OK(hvt_model_hash(n.m, &other));
            CHECK(other != first, "%s: a moving variance goes unseen", way_name(by));
            n.m->stats[n.m->stat[n.m->nstat - 1].offset] -= 1;
            CHECK_OK(hvt_model_hash(n.m, &other));
            CHECK(other == first, "%s: import does not restore what export gave", way_name(by));
            CHECK_OK(hvt_model_init(n.m, SEED + 1));
            CHECK_OK(hvt_model_hash(n.m, &seeded));
            CHECK(seeded != first, "%s: another seed, the same values", way_name(by));
        }
        close_net(&n);
    }
}

int main(void)
{
#ifdef HVT_HOSTED
    if (!hvt_device_count("cuda")) {
        check_skip("cuda", "no GPU");
        return check_done();
    }
#endif
    RUN(gradients_equal_differences_of_the_loss);
    RUN(every_device_set_and_order_gives_the_gradients_of_ref);
    RUN(folding_changes_no_bit);
    RUN(threads_change_no_bit);
    RUN(a_short_batch_is_a_smaller_batch);
    RUN(final_spans_tile_the_arena_and_are_final);
    RUN(an_error_of_the_hook_ends_backward);
    RUN(an_empty_batch_gives_zero_gradients_and_sums);
    RUN(passes_out_of_turn_are_refused);
    RUN(weights_are_packed_once_per_update_and_nothing_is_allocated);
    RUN(gradients_may_lie_elsewhere);
    RUN(moving_statistics_take_the_shards_moments_by_their_images);
    RUN(shards_without_a_variance_move_no_statistics);
    RUN(a_loss_that_is_not_finite_changes_nothing);
    RUN(inference_reads_moving_statistics_and_touches_nothing);
    RUN(the_first_mistake_is_reported_with_layer_and_shapes);
    RUN(inputs_and_batches_out_of_range_are_refused);
    RUN(a_plan_that_fails_leaves_the_tape_as_it_was);
    RUN(outputs_made_again_take_less_memory_and_leave_the_bits);
    RUN(a_net_of_norms_keeps_little_more_than_their_inputs);
    RUN(blocks_that_live_together_lie_apart);
    RUN(the_hash_sees_canonical_values_and_single_bits);
    return check_done();
}
