/*
 * A tape at work: forward and backward, short batches, places of gradients, hashes. Gradients on ref are
 * compared with differences of the loss; cpu, on every instruction set here, with ref.
 */
#include "heap.h"
#include "nets.h"

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

            for (int k = 0; k < (heap_memcheck() ? 1 : 4); k++) {
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
    check_gradients(general_net, (shape){3, 6, 7, 3}, ref);
    check_gradients(weights_net, (shape){3, 6, 7, 3}, ref);
}

TEST(every_device_set_and_order_gives_the_gradients_of_ref)
{
    static build_fn *const nets[] = {small_net, odd_net, plain_net, general_net, functions_net, weights_net};
    static const shape shapes[] = {{17, 7, 5, 4}, {1, 8, 8, 3}, {5, 9, 11, 3}, {33, 12, 4, 1}};
    const size_t n = heap_memcheck() ? 1 : HVT_LEN(shapes);
    how by;

    for (int i = 0; way(i, &by); i++)
        for (size_t k = 0; k < HVT_LEN(nets); k++)
            for (size_t j = 0; j < n; j++) {
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
    check_same(functions_net, (shape){5, 9, 11, 3}, 4, ref, apart_ref, 0);
    for (int i = 0; way(i, &by); i++) {
        how unfused = by;

        unfused.unfused = true;
        check_same(small_net, (shape){6, 9, 7, 3}, 5, by, unfused, 0);
        check_same(odd_net, (shape){6, 9, 7, 3}, 6, by, unfused, 0);
        check_same(functions_net, (shape){6, 9, 7, 3}, 5, by, unfused, 0);
    }
}

TEST(threads_change_no_bit)
{
    how one = {.device = "cpu", .threads = 1}, two = {.device = "cpu", .threads = 2},
        many = {.device = "cpu", .threads = 9};
    const shape small = {19, 8, 7, 3}, large = heap_memcheck() ? small : (shape){19, 16, 15, 3};

    check_same(small_net, large, 19, one, two, 0);
    check_same(odd_net, large, 11, one, two, 0);
    check_same(general_net, large, 11, one, two, 0);
    check_same(weights_net, large, 11, one, two, 0);
    check_same(functions_net, large, 11, one, two, 0);
    check_same(separable_net, large, 11, one, two, 0);
    check_same(separable_net, small, 19, one, many, 0);
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
    CHECK(s->count || end == s->n->m->step_stats_count,
          "the first span ends at %zu, the step statistics at %zu", end, s->n->m->step_stats_count);
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
            CHECK(s.count == layers + 1, "%d spans, %d layers with parameters and the step statistics",
                  s.count, layers);
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
    CHECK_FAILS(hvt_model_forward(m, &(hvt_batch){0}, true), E_ARG, "call hvt_model_plan() before");
    CHECK_FAILS(hvt_model_backward(m, NULL, NULL), E_ARG, "training forward");
    CHECK_FAILS(hvt_model_rows(m, NULL, NULL), E_ARG, "before a forward");
    CHECK_FAILS(hvt_model_init(m, 1), E_ARG, "call hvt_model_plan() before");
    CHECK_FAILS(hvt_model_hash(m, &h), E_ARG, "call hvt_model_plan() before");
    CHECK_FAILS(hvt__model_place(m, NULL), E_ARG, "call hvt_model_plan() before");
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

static int allocations;
static hvt_status (*alloc_of_device)(hvt_device *d, size_t bytes, void **ret_ptr);

static hvt_status count_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    allocations++;
    return alloc_of_device(d, bytes, ret_ptr);
}

TEST(a_step_allocates_nothing)
{
    net n;

    if (open_net(&n, (how){.device = "cpu", .threads = 1}, small_net, (shape){3, 9, 11, 3})) {
        alloc_of_device = n.ops->memory.alloc;
        n.spy.memory.alloc = count_alloc;
        allocations = 0;
        for (int update = 1; update <= 3; update++) {
            for (int shard = 0; shard < 3; shard++) {
                CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
                CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
                CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
            }
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

static hvt_value named_twice(hvt_device *dev, const char *name, const char *of, hvt_model **ret_m)
{
    hvt_value x;

    CHECK_OK(hvt_model_create(dev, ret_m));
    x = small_net(*ret_m, hvt_input(*ret_m, 9, 11, 3));
    CHECK_OK(hvt_model_alias(*ret_m, name, of));
    return x;
}

TEST(what_is_attached_is_no_tensor_of_the_model)
{
    static const double values[] = {3, 1, 2, 0, 5, 4};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt_named t;
    hvt_value x;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    x = small_net(m, hvt_input(m, 9, 11, 3));
    CHECK_OK(hvt_model_attach(m, "index", 2, (int[]){2, 3}, true, values));
    CHECK_OK(hvt_model_attach(m, "scale", 0, NULL, false, values));
    CHECK_FAILS(hvt_model_attach(m, "index", 1, (int[]){6}, true, values), E_ARG, "index is attached twice");
    CHECK_FAILS(hvt_model_attach(m, "", 1, (int[]){6}, true, values), E_ARG, "a name of 1 to 191 bytes");
    CHECK_FAILS(hvt_model_attach(m, "flat", 1, (int[]){0}, true, values), E_ARG, "dimension 0 of flat is 0");
    CHECK_FAILS(hvt_model_attach(m, "deep", 5, (int[]){1, 1, 1, 1, 1}, true, values), E_ARG,
                "deep has 5 dimensions");
    CHECK_FAILS(hvt_model_attach(m, "wide", 2, (int[]){1 << 20, 1 << 20}, true, values), E_ARG, "of wide is");
    CHECK(m->nattached == 2 && m->attached[0].whole[4] == 5 && m->attached[1].real[0] == 3, "values");
    CHECK_OK(hvt_model_plan(m, 2, x));
    CHECK_FAILS(hvt_model_attach(m, "late", 0, NULL, true, values), E_ARG, "before hvt_model_plan()");
    for (int i = 0; hvt_model_named(m, i, &t); i++)
        CHECK(strcmp(t.name, "index") && strcmp(t.name, "scale"), "it is counted");
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

TEST(a_parameter_may_have_a_second_name)
{
    static const char weight[] = "conv2d1.weight", twin[] = "twin.weight", mean[] = "batchnorm2.running_mean";
    static const struct {
        const char *name, *of, *why;
    } bad[] = {{twin, "conv2d7.weight", "which is not a parameter"},
               {twin, mean, "which is not a parameter"},
               {weight, weight, "a tensor's own name"},
               {mean, weight, "a tensor's own name"}};
    char longest[193] = "";
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt_named t, first = {0};
    hvt_value x;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        x = named_twice(dev, bad[i].name, bad[i].of, &m);
        CHECK_FAILS(hvt_model_plan(m, 2, x), E_ARG, bad[i].why);
        hvt_model_free(&m);
    }
    x = named_twice(dev, twin, weight, &m);
    CHECK_OK(hvt_model_alias(m, twin, "batchnorm2.weight"));
    CHECK_FAILS(hvt_model_plan(m, 2, x), E_ARG, "twin.weight is an alias of both");
    hvt_model_free(&m);

    x = named_twice(dev, twin, weight, &m);
    memset(longest, 'a', 192);
    CHECK_FAILS(hvt_model_alias(m, longest, weight), E_ARG, "names of 1 to 191 bytes");
    CHECK_FAILS(hvt_model_alias(m, "", weight), E_ARG, "names of 1 to 191 bytes");
    CHECK_OK(hvt_model_plan(m, 2, x));
    CHECK_FAILS(hvt_model_alias(m, "b", weight), E_ARG, "before hvt_model_plan()");
    for (int i = 0; hvt_model_named(m, i, &t); i++) {
        CHECK(strcmp(t.name, twin), "it is counted twice");
        if (!strcmp(t.name, weight))
            first = t;
    }
    float *set = calloc(first.count, sizeof *set), *got = calloc(first.count, sizeof *got);

    for (size_t i = 0; i < first.count; i++)
        set[i] = (float)i;
    CHECK_OK(hvt_model_set(m, twin, set, first.count));
    CHECK_OK(hvt_model_get(m, weight, got, first.count));
    CHECK(first.count && !memcmp(set, got, first.count * sizeof *set), "set by the second name");
    memset(got, 0, first.count * sizeof *got);
    CHECK_OK(hvt_model_get(m, twin, got, first.count));
    CHECK(!memcmp(set, got, first.count * sizeof *set), "got by the second name");
    CHECK_FAILS(hvt_model_get(m, "twin.bias", got, first.count), E_ARG, "named 'twin.bias'");
    free(set);
    free(got);
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
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
    RUN(a_step_allocates_nothing);
    RUN(gradients_may_lie_elsewhere);
    RUN(the_hash_sees_canonical_values_and_single_bits);
    RUN(what_is_attached_is_no_tensor_of_the_model);
    RUN(a_parameter_may_have_a_second_name);
    return check_done();
}
