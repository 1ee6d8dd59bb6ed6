/* Schedules, buckets, and optimizers. */
#include "optim/dist.h"
#include "rig.h"

/* ---- schedules ------------------------------------------------------------------------------------ */

static hvt_schedule *schedule(const char *name, double lr, double epochs, double warmup)
{
    hvt_schedule *c = NULL;

    CHECK_OK(hvt_schedule_create(&(hvt_schedule_opts){name, lr, epochs, warmup, .by_epoch = true}, &c));
    return c;
}

/* The rates at the start of epochs 0 .. n-1, with `steps` updates each, are `want` to its printed digits. */
static void check_rates(const char *name, double lr, double epochs, double warmup, uint32_t steps, int n,
                        const double *want, double tolerance)
{
    hvt_schedule *c = schedule(name, lr, epochs, warmup);

    for (int e = 0; c && e < n; e++) {
        double got = hvt_schedule_lr(c, e, 0, steps);

        CHECK(fabs(got - want[e]) <= tolerance, "%s, epoch %d: %.9f, expected %.9f", name, e, got, want[e]);
    }
    hvt_schedule_free(&c);
}

TEST(constant_and_step_and_multistep_follow_pytorch)
{
    check_rates("constant", 0.3, 0, 0, 5, 3, (double[]){.3, .3, .3}, 0);
    check_rates("step:2", 0.4, 0, 0, 5, 6, (double[]){.4, .4, .04, .04, .004, .004}, 1e-15);
    check_rates("step:3,0.5", 1, 0, 0, 5, 7, (double[]){1, 1, 1, .5, .5, .5, .25}, 0);
    check_rates("multistep:1,3,4@0.5", 1, 0, 0, 5, 6, (double[]){1, .5, .5, .25, .125, .125}, 0);
    check_rates("multistep:2", .1, 0, 0, 5, 4, (double[]){.1, .1, .01, .01}, 1e-16);
}

TEST(cosine_follows_pytorch)
{
    check_rates(
        "cosine", .1, 10, 0, 7, 11,
        (double[]){.1, .097553, .090451, .079389, .065451, .05, .034549, .020611, .009549, .002447, 0}, 5e-7);
    /* eta_min: MIN + half of the way at the middle, and it stays at MIN past the end */
    check_rates("cosine:0.02", .1, 2, 0, 7, 4, (double[]){.1, .06, .02, .02}, 1e-15);
}

TEST(cosine_falls_with_every_update)
{
    /* CosineAnnealingLR(optimizer, 8), stepped after each update of two epochs of four, after one of warm-up
     */
    static const double want[] = {.1,         .096193977, .085355339, .069134172, .05,
                                  .030865828, .014644661, .003806023, 0};
    hvt_schedule *c = NULL;

    CHECK_OK(hvt_schedule_create(&(hvt_schedule_opts){"cosine", .1, 3, 1}, &c));
    for (int k = 0; c && k < 9; k++) {
        double got = hvt_schedule_lr(c, 1 + k / 4, (uint32_t)k % 4, 4);

        CHECK(fabs(got - want[k]) < 5e-10, "update %d: %.9f", 4 + k, got);
    }
    CHECK(hvt_schedule_lr(c, 0, 3, 4) == .1 && hvt_schedule_lr(c, 0, 0, 4) == .025, "the warm-up");
    hvt_schedule_free(&c);
}

/* The rates of n updates of a run of two epochs are `want` to its printed digits. */
static void check_updates(const char *name, int n, const double *want)
{
    hvt_schedule *c = NULL;
    const int steps = n / 2;

    CHECK_OK(hvt_schedule_create(&(hvt_schedule_opts){name, .1, 2}, &c));
    for (int k = 0; c && k < n; k++) {
        double got = hvt_schedule_lr(c, k / steps, (uint32_t)(k % steps), (uint32_t)steps);

        CHECK(fabs(got - want[k]) < 1e-9 * want[k] + 1e-18, "%s, update %d: %.12g, expected %.12g", name, k,
              got, want[k]);
    }
    hvt_schedule_free(&c);
}

TEST(poly_and_one_cycle_follow_pytorch)
{
    /* PolynomialLR(optimizer, 8, power=2) and (optimizer, 8); MIN shifts the end */
    check_updates("poly:2", 8, (double[]){.1, .0765625, .05625, .0390625, .025, .0140625, .00625, .0015625});
    check_updates("poly", 8, (double[]){.1, .0875, .075, .0625, .05, .0375, .025, .0125});
    check_updates("poly:1,0.02", 4, (double[]){.1, .08, .06, .04});
    /* OneCycleLR(optimizer, max_lr=0.1, total_steps=12) and (..., total_steps=8, pct_start=0.5) */
    check_updates("onecycle", 12,
                  (double[]){.004, .03497896542, .08792851591, .09944154355, .09330129698, .08117456539,
                             .06473789977, .04626371027, .02830609982, .01334775302, .003456698743, 4e-7});
    check_updates("onecycle:0.5", 8,
                  (double[]){.004, .028, .076, .1, .08535539764, .0500002, .01464500236, 4e-7});
    check_rates("onecycle:0.5", .1, 8, 0, 5, 8,
                (double[]){.004, .028, .076, .1, .08535539764, .0500002, .01464500236, 4e-7}, 1e-11);
}

TEST(cosine_begins_where_the_warm_up_ends)
{
    /* torchvision's recipe .5, 15 epochs, 5 of warm-up, from epoch 5 on */
    const double want[] = {.5, .487764, .452254, .396946};
    hvt_schedule *c = schedule("cosine", .5, 15, 5);

    for (int e = 0; c && e < 4; e++)
        CHECK(fabs(hvt_schedule_lr(c, 5 + e, 3, 9) - want[e]) < 5e-7, "epoch %d: %.9f", 5 + e,
              hvt_schedule_lr(c, 5 + e, 3, 9));
    hvt_schedule_free(&c);
}

TEST(warm_up_is_linear_per_update_and_ends_at_the_peak)
{
    hvt_schedule *c = schedule("multistep:3@0.5", .8, 0, 2);
    uint32_t steps = 5;

    for (int k = 0; c && k < 25; k++) {
        double got = hvt_schedule_lr(c, k / 5, (uint32_t)k % 5, steps);
        double want = k < 10 ? .8 * (k + 1) / 10 : k < 15 ? .8 : .4;

        CHECK(got == want, "update %d: %.17g, expected %.17g", k, got, want);
    }
    hvt_schedule_free(&c);
    /* half an epoch of 5 updates is 3 of them (2.5 rounded), and the first update already moves */
    c = schedule("constant", .9, 0, .5);
    CHECK(hvt_schedule_lr(c, 0, 0, 5) == .9 * 1 / 3, "first %g", hvt_schedule_lr(c, 0, 0, 5));
    CHECK(hvt_schedule_lr(c, 0, 2, 5) == .9 && hvt_schedule_lr(c, 0, 3, 5) == .9, "end of the warm-up");
    hvt_schedule_free(&c);
}

/* LearningRateWarmupCallback: lr / size * (epoch * (size - 1) / warmup + 1) at the end of each update. */
TEST(a_warm_up_from_one_rank_s_rate_is_that_of_horovod_s_keras_callback)
{
    static const int sizes[] = {1, 2, 3, 8, 512};
    enum { STEPS = 7, WARMUP = 5 };

    for (size_t i = 0; i < HVT_LEN(sizes); i++) {
        double n = sizes[i], lr = .0125 * n;
        hvt_schedule_opts opts = {"step:30", lr, 90, WARMUP, 1 / n};
        hvt_schedule *c = NULL;

        CHECK_OK(hvt_schedule_create(&opts, &c));
        for (uint32_t k = 0; c && k < (WARMUP + 2) * STEPS; k++) {
            double epoch = (k + 1.0) / STEPS, got = hvt_schedule_lr(c, (int)(k / STEPS), k % STEPS, STEPS);
            double want = k < WARMUP * STEPS ? lr / n * (epoch * (n - 1) / WARMUP + 1) : lr;

            CHECK(fabs(got - want) <= 1e-14 * want, "%g ranks, update %u: %.17g, expected %.17g", n, k, got,
                  want);
        }
        hvt_schedule_free(&c);
    }
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"constant", 1, 1, 1, 1.5}, &(hvt_schedule *){NULL}),
                E_ARG, "0 to 1");
}

TEST(malformed_schedules_are_refused_with_what_was_expected)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"linear", "expected constant, step:SIZE"},
        {"", "expected constant"},
        {"Step:3", "expected constant"},
        {"constant:1", "nothing more at '1'"},
        {"step", "step:SIZE[,GAMMA], in epochs"},
        {"step:", "step:SIZE[,GAMMA], in epochs"},
        {"step:0", "SIZE of epochs above 0 at '0'"},
        {"step:-3", "SIZE"},
        {"step:3.5", "',GAMMA' or nothing more at '.5'"},
        {"step: 3", "SIZE"},
        {"step:3,", "GAMMA above 0"},
        {"step:3,0", "GAMMA above 0 at '0'"},
        {"step:3,0x1", "GAMMA"},
        {"step:3,nan", "GAMMA"},
        {"step:3,.5,", "nothing more at ','"},
        {"step:99999999999", "SIZE"},
        {"multistep:3,3", "an epoch above 0 and the one before at '3'"},
        {"multistep:3,", "an epoch"},
        {"multistep:3@", "GAMMA"},
        {"multistep:3@.1 ", "nothing more at ' '"},
        {"multistep:3;4", "'@GAMMA' or nothing more at ';4'"},
        {"cosine:0.2", "MIN between 0 and the peak"},
        {"cosine:1e-3x", "nothing more at 'x'"},
        {"cosine:-1", "MIN"},
        {"poly:0", "a POWER above 0"},
        {"poly:2x", "',MIN' or nothing more at 'x'"},
        {"poly:2,", "MIN between 0 and the peak"},
        {"poly:2,1", "MIN between 0 and the peak"},
        {"onecycle:1", "between 0 and 1 at '1'"},
        {"onecycle:.3,", "nothing more at ','"},
    };
    hvt_schedule *c = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hvt_schedule_opts o = {bad[i].text, .1, 10, 0};

        CHECK_FAILS(hvt_schedule_create(&o, &c), E_ARG, bad[i].part);
        CHECK(strstr(hvt_last_error(), bad[i].text), "'%s' not in: %s", bad[i].text, hvt_last_error());
    }
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"constant", -1, 0, 0}, &c), E_ARG, "-1");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"constant", NAN, 0, 0}, &c), E_ARG, "nan");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"constant", 1, 0, -2}, &c), E_ARG, "-2");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"cosine", 1, 0, 0}, &c), E_ARG, "epochs");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"poly", 1, 0, 0}, &c), E_ARG, "epochs");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"onecycle", 1, 4, 1}, &c), E_ARG,
                "omit the warm-up");
    CHECK_FAILS(hvt_schedule_create(&(hvt_schedule_opts){"cosine", 1, 5, 6}, &c), E_ARG, "6 epochs");
    CHECK(!c, "a schedule came out of an error");
}

/* ---- buckets -------------------------------------------------------------------------------------- */

static void check_cut(int layers, const size_t *size, size_t first_bytes, size_t bytes, int n,
                      const int *want)
{
    size_t end[16], cut[16], at = 0;
    int got;

    for (int i = 0; i < layers; i++)
        end[i] = at += size[i];
    got = hvt__bucket_cut(0, end, layers, first_bytes, bytes, cut);
    CHECK(got == n, "%d buckets, expected %d", got, n);
    for (int i = 0; i < n && i < got; i++)
        CHECK(cut[i] == end[want[i]], "bucket %d ends at %zu, expected %zu", i, cut[i], end[want[i]]);
}

TEST(buckets_close_where_pytorch_closes_them)
{
    /* torch's ComputeBucketAssignmentTest; `want` is each bucket's last tensor */
    check_cut(4, (size_t[]){100, 200, 100, 50}, 0, 400, 4, (int[]){0, 1, 2, 3});
    check_cut(4, (size_t[]){10, 10, 10, 10}, 40, 80, 3, (int[]){0, 2, 3});
    /* none, one per layer, all; a limit beyond everything; the small first one only where there is a limit */
    check_cut(3, (size_t[]){5, 6, 7}, 0, 0, 3, (int[]){0, 1, 2});
    check_cut(3, (size_t[]){5, 6, 7}, 0, HVT_BUCKET_ALL, 1, (int[]){2});
    check_cut(3, (size_t[]){5, 6, 7}, 0, 1 << 20, 1, (int[]){2});
    check_cut(3, (size_t[]){5, 6, 7}, 4, HVT_BUCKET_ALL, 1, (int[]){2});
    check_cut(3, (size_t[]){5, 6, 7}, 1 << 20, 0, 3, (int[]){0, 1, 2});
    check_cut(3, (size_t[]){5, 6, 7}, 4, 1 << 20, 2, (int[]){0, 2});
    check_cut(1, (size_t[]){0}, 0, 0, 1, (int[]){0});
}

TEST(what_is_far_too_large_is_cut_into_equal_pieces)
{
    static const struct {
        size_t end[3];
        int n;
        size_t bytes, least;
        int pieces;
    } cases[] = {
        {{1000, 1064, 5000}, 3, 4000, 4, 6},     /* 15744 bytes: four pieces */
        {{1000, 1064, 5000}, 3, 8000, 4, 3},     /* less than twice the limit: whole */
        {{1000, 1064, 5000}, 3, 4000, 16000, 3}, /* pieces would be too small */
        {{1000, 1064, 5000}, 3, 0, 4, 3},        /* no limit */
        {{1000, 1064, 5000}, 3, HVT_BUCKET_ALL, 4, 3},
        {{102764544, 0, 0}, 1, 25 << 20, 1 << 20, 16}, /* VGG's first linear layer */
    };

    for (size_t k = 0; k < HVT_LEN(cases); k++) {
        size_t got[32], start = 0, was = hvt__bucket_least;
        int n = 0;

        hvt__bucket_least = cases[k].least;
        for (int i = 0; i < cases[k].n; start = cases[k].end[i++])
            n += hvt__bucket_split(start, cases[k].end[i], cases[k].bytes, got + n);
        start = 0;
        CHECK(n == cases[k].pieces, "case %zu: %d pieces, expected %d", k, n, cases[k].pieces);
        for (int i = 0, whole = 0; i < n; start = got[i++]) {
            bool end = got[i] == cases[k].end[whole];

            whole += end;
            CHECK(got[i] >= start && (end || got[i] % 16 == 0), "case %zu: piece %d is [%zu, %zu)", k, i,
                  start, got[i]);
            CHECK(n == cases[k].n || (got[i] - start) * sizeof(float) <= cases[k].bytes + 64,
                  "case %zu: piece %d has %zu floats", k, i, got[i] - start);
        }
        CHECK(start == cases[k].end[cases[k].n - 1], "case %zu: the last piece ends at %zu", k, start);
        hvt__bucket_least = was;
    }
}

TEST(resnet50_is_cut_where_pytorch_cuts_it)
{
    /* DDP's buckets after its rebuild, in bytes; ours also hold padding, the first one the step statistics */
    const size_t want[] = {8196000, 31502336, 26255360, 26550272, 9724160};
    hvt_distopt_opts opts = {.bucket_bytes = HVT_BUCKET_DEFAULT, .first_bytes = 1 << 20, .local_shards = 1};
    hvt_zoo_opts zoo = {.imagenet_stem = true};
    hvt_bucket *bucket = NULL;
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    int n = 0;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_OK(hvt_model_plan(m, 1, hvt_zoo(m, "resnet50", hvt_input(m, 32, 32, 3), 1000, &zoo)));
    CHECK_OK(hvt__bucket_plan(m, &opts, &hvt__codec_f32, false, &bucket, &n));
    CHECK(n == 5, "%d buckets", n);
    for (int b = 0, p = 0; b < n && b < 5; b++) {
        size_t bytes = 0;

        CHECK(!strcmp(bucket[b].tensor, m->param[p].name), "bucket %d begins with %s, not %s", b,
              bucket[b].tensor, m->param[p].name);
        for (; p < m->nparam_tensors && m->param[p].offset < bucket[b].end; p++)
            bytes += m->param[p].elements * sizeof(float);
        CHECK(bytes == want[b], "bucket %d has %zu bytes of parameters, expected %zu", b, bytes, want[b]);
    }
    free(bucket);
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

/* ---- sgd ------------------------------------------------------------------------------------------ */

/* A model with every role of parameter. */
static void open_with(rig *r, hvt_optim_opts sgd)
{
    setup u = usual(lone, 1);

    u.sgd = sgd;
    CHECK_OK(rig_prepare(r, &u));
}

/* Every element of a parameter is `want`. */
static void check_param(rig *r, const hvt_param *p, double want, const char *what)
{
    float *w = malloc(p->elements * sizeof *w);

    CHECK_OK(hvt__model_export(r->m, p, r->m->params, w));
    for (size_t k = 0; k < p->elements; k++)
        if (fabs(w[k] - want) > 2e-7) {
            CHECK(0, "%s: %s[%zu] is %.9f, expected %.9f", what, p->name, k, w[k], want);
            break;
        }
    free(w);
}

/* A step over so many images, at a rate of .1, that may update. */
static void decide(rig *r, int images)
{
    CHECK_OK(hvt__model_begin_step(r->m, images, .1, NULL));
    CHECK_OK(hvt__model_end_step(r->m, &images, 1));
}

/* Steps from w = 1 with gradient .5 and lr .1, each in two spans, have these weights. */
static hvt_status update(rig *r, size_t first, size_t end)
{
    const float *g = r->m->grads + first;

    return hvt__optim_span(r->o, &g, 1, first, end);
}

static void check_sgd(hvt_optim_opts sgd, const double *want)
{
    size_t middle;
    char what[16];
    rig r;

    open_with(&r, sgd);
    middle = r.m->param[2].offset;
    fill(&r, r.m->params, 1);
    for (int t = 0; t < 4; t++) {
        fill(&r, r.m->grads, 2); /* a sum over four images */
        decide(&r, 4);
        CHECK_OK(update(&r, 0, middle));
        CHECK_OK(update(&r, middle, r.m->arena_count));
        snprintf(what, sizeof what, "step %d", t);
        for (int i = 0; i < r.m->nparam_tensors; i++)
            check_param(&r, &r.m->param[i], want[t], what);
    }
    rig_close(&r);
}

TEST(sgd_follows_pytorch)
{
    check_sgd((hvt_optim_opts){.momentum = .9f}, (double[]){.95, .855, .7195, .54755});
    check_sgd((hvt_optim_opts){.momentum = .9f, .nesterov = true}, (double[]){.905, .7695, .59755, .392795});
    check_sgd((hvt_optim_opts){.momentum = .9f, .dampening = .5f}, (double[]){.95, .88, .792, .6878});
    check_sgd((hvt_optim_opts){.momentum = .9f, .weight_decay = .01f},
              (double[]){.949, .852151, .71413475, .53920599});
    check_sgd((hvt_optim_opts){0}, (double[]){.95, .9, .85, .8});
    check_sgd((hvt_optim_opts){.dampening = .5f},
              (double[]){.95, .9, .85, .8}); /* only momentum is dampened */
}

/* ---- adam ----------------------------------------------------------------------------------------- */

enum { GOLDEN = 5 };

static void read_numbers(FILE *f, float ret[GOLDEN])
{
    for (int i = 0; i < GOLDEN; i++)
        CHECK(fscanf(f, "%f", &ret[i]) == 1, "a number is missing");
}

/* The golden steps on the first elements of the first parameter, in two spans. */
static void check_golden(FILE *f, const hvt_optim_opts *opts, float lr, int steps)
{
    float want[GOLDEN], *w;
    size_t at;
    rig r;

    open_with(&r, *opts);
    at = r.m->param[0].offset;
    w = r.m->params + at;
    read_numbers(f, w);
    for (int t = 0; t < steps; t++) {
        hvt_step_state *s = r.m->step;

        fill(&r, r.m->grads, 0);
        if (t == 3) { /* what is skipped does not count */
            fill(&r, r.m->grads, INFINITY);
            s->bad = at;
            CHECK_OK(hvt__model_begin_step(r.m, 4, lr, NULL));
            memset(r.m->grads, 0, r.m->step_stats_count * sizeof(float));
            CHECK_OK(hvt__model_end_step(r.m, (int[]){4}, 1));
            CHECK_OK(update(&r, r.m->step_stats_count, r.m->grad_count));
            CHECK(!s->apply && s->updates == t, "%lld updates", (long long)s->updates);
            fill(&r, r.m->grads, 0);
        }
        read_numbers(f, r.m->grads + at);
        for (int i = 0; i < GOLDEN; i++)
            r.m->grads[at + (size_t)i] *= 4; /* a sum over four images */
        CHECK_OK(hvt__model_begin_step(r.m, 4, lr, NULL));
        CHECK_OK(hvt__model_end_step(r.m, (int[]){4}, 1));
        if (r.o->trust) { /* in two parts, too: of whole blocks of squares */
            CHECK_OK(hvt__trust_add(r.o, r.m->grads, r.m->step_stats_count, at + 16));
            CHECK_OK(hvt__trust_add(r.o, r.m->grads, at + 16, r.m->grad_count));
            hvt__trust_end(r.o);
        }
        CHECK_OK(update(&r, r.m->step_stats_count, at + 3));
        CHECK_OK(update(&r, at + 3, r.m->grad_count));
        read_numbers(f, want);
        for (int i = 0; i < GOLDEN; i++)
            CHECK(fabsf(w[i] - want[i]) <= 1e-6f * fmaxf(1, fabsf(want[i])),
                  "step %d: [%d] is %.9g, not %.9g", t, i, w[i], want[i]);
    }
    rig_close(&r);
}

/* Source: golden/optim.txt by torch.optim and timm. */
TEST(adam_adamw_rmsprop_lars_and_lamb_follow_pytorch_and_timm)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "rmsprop", "lars", "lamb"};
    FILE *f = fopen(check_file("golden/optim.txt"), "r");
    hvt_optim_opts o = {0};
    char name[16];
    int blocks = 0, n, steps, kind;
    float lr;

    CHECK(f, "golden/optim.txt cannot be read");
    while (f && fscanf(f, " %15s %f %lf %lf %lf %f %f %d %d", name, &lr, &o.betas[0], &o.betas[1], &o.eps,
                       &o.momentum, &o.weight_decay, &n, &steps) == 9) {
        for (kind = 0; kind < (int)HVT_LEN(names) - 1 && strcmp(name, names[kind]); kind++)
            ;
        o.kind = (hvt_optim_kind)kind;
        CHECK(n == GOLDEN, "%d elements", n);
        check_golden(f, &o, lr, steps);
        blocks++;
    }
    CHECK(blocks == 11, "%d blocks", blocks);
    if (f)
        fclose(f);
}

TEST(norm_and_bias_can_be_spared_from_decay)
{
    for (int which = 0; which < 4; which++) {
        bool norm = which & 1, bias = which & 2;
        rig r;

        open_with(&r, (hvt_optim_opts){.weight_decay = .5f, .no_decay_norm = norm, .no_decay_bias = bias});
        fill(&r, r.m->params, 1);
        decide(&r, 1);
        CHECK_OK(update(&r, 0, r.m->arena_count));
        for (int i = 0; i < r.m->nparam_tensors; i++) {
            hvt_role role = r.m->param[i].role;
            bool spared = (role == HVT_ROLE_NORM && norm) || (role == HVT_ROLE_BIAS && bias);

            check_param(&r, &r.m->param[i], spared ? 1 : .95, spared ? "spared" : "decayed");
        }
        rig_close(&r);
    }
}

/* From w = 1 with gradient .5 at a rate of .1. */
TEST(a_group_has_a_rate_and_a_decay_of_its_own)
{
    for (int adamw = 0; adamw < 2; adamw++) {
        hvt_optim_opts opts = {.weight_decay = .5f, .no_decay_bias = true};
        char names[400];
        rig r;

        if (adamw)
            opts = (hvt_optim_opts){HVT_ADAM_DEFAULTS, .kind = HVT_OPTIM_ADAMW, .weight_decay = .5f};
        open_with(&r, opts);
        snprintf(names, sizeof names, "%s,%s", r.m->param[3].name, r.m->param[7].name);
        CHECK_OK(hvt_optim_group(r.o, names, .5, .25));
        CHECK_OK(hvt_optim_group(r.o, r.m->param[0].name, 0, 2));
        fill(&r, r.m->params, 1);
        fill(&r, r.m->grads, 2);
        decide(&r, 4);
        CHECK_OK(update(&r, 0, r.m->arena_count));
        for (int i = 0; i < r.m->nparam_tensors; i++) {
            const hvt_param *p = &r.m->param[i];
            bool own = i == 3 || i == 7;
            double rate = i == 0 ? 0 : own ? .05 : .1, decay = own ? .25 : .5;

            if (!adamw && p->role == HVT_ROLE_BIAS)
                decay = 0;
            check_param(&r, p, adamw ? 1 - rate * decay - rate : 1 - rate * (.5 + decay), p->name);
        }
        rig_close(&r);
    }
}

TEST(impossible_groups_are_refused)
{
    setup u = usual(lone, 1);
    rig r;

    CHECK_OK(rig_prepare(&r, &u));
    CHECK_FAILS(hvt_optim_group(r.o, "nowhere", 1, 0), E_ARG, "begins with 'nowhere'");
    CHECK_FAILS(hvt_optim_group(r.o, "", 1, 0), E_ARG, "comma");
    CHECK_FAILS(hvt_optim_group(r.o, r.m->param[0].name, -1, 0), E_ARG, "learning rate factor is -1");
    CHECK_FAILS(hvt_optim_group(r.o, r.m->param[0].name, 1, NAN), E_ARG, "decay is nan");
    CHECK_OK(hvt_optim_group(r.o, r.m->param[0].name, 1, 0));
    CHECK_FAILS(hvt_optim_group(r.o, r.m->param[0].name, 1, 0), E_ARG, "in two parameter groups");
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
    CHECK_FAILS(hvt_optim_group(r.o, r.m->param[1].name, 1, 0), E_ARG, "before");
    rig_close(&r);
}

TEST(impossible_optimizers_are_refused)
{
    static const struct {
        hvt_optim_opts opts;
        const char *part;
    } bad[] = {
        {{.momentum = -1}, "momentum is -1"},
        {{.dampening = INFINITY}, "dampening is inf"},
        {{.weight_decay = NAN}, "weight decay is nan"},
        {{.nesterov = true}, "momentum above 0"},
        {{.momentum = .9f, .dampening = .1f, .nesterov = true}, "dampening 0"},
        {{.betas = {.9, .999}}, "Adam's"},
        {{.eps = 1e-8}, "Adam's"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {1, .9}}, "betas[0] is 1"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, -1}}, "betas[1] is -1"},
        {{.kind = HVT_OPTIM_ADAMW, HVT_ADAM_DEFAULTS, .momentum = .9f}, "adamw has betas"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, .9}, .eps = NAN}, "eps is nan"},
        {{.kind = HVT_OPTIM_ADAM}, "adam needs betas and an eps, which are all 0: expected 0.9, 0.999"},
        {{.kind = HVT_OPTIM_ADAMW, .weight_decay = .01f}, "adamw needs betas and an eps"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, .999}}, "eps is 0, expected a number above 0"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, .999}, .eps = 1e-60}, "eps is 1e-60"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, .999}, .eps = 1e60}, "eps is 1e+60"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, .999}, .eps = -1e-8}, "eps is -1e-08"},
        {{.kind = HVT_OPTIM_ADAMW, .eps = 1e-8}, "both betas are 0"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {NAN, .9}, .eps = 1e-8}, "betas[0] is"},
        {{.kind = HVT_OPTIM_ADAM, .betas = {.9, INFINITY}, .eps = 1e-8}, "betas[1] is inf"},
        {{.momentum = NAN}, "momentum is nan"},
        {{.momentum = INFINITY}, "momentum is inf"},
        {{.dampening = NAN}, "dampening is nan"},
        {{.weight_decay = -1}, "weight decay is -1"},
        {{.weight_decay = INFINITY}, "weight decay is inf"},
        {{.ema = {NAN, 1}}, "average is nan"},
        {{.ema = {1, 1}}, "average is 1"},
        {{.ema = {.9, -1}}, "every -1 updates"},
        {{.kind = (hvt_optim_kind)-1}, "optimizer -1, expected 0 to 5"},
        {{.kind = (hvt_optim_kind)6}, "optimizer 6, expected 0 to 5"},
        {{.kind = HVT_OPTIM_RMSPROP, .betas = {.9, .99}, .eps = 1e-8},
         "rmsprop has only the second, its alpha"},
        {{.kind = HVT_OPTIM_RMSPROP, .betas = {0, 1}, .eps = 1e-8}, "from 0 to below 1"},
        {{.kind = HVT_OPTIM_RMSPROP, .betas = {0, .99}}, "eps is 0"},
        {{.kind = HVT_OPTIM_RMSPROP, .betas = {0, .99}, .eps = 1e-8, .nesterov = true}, "nesterov are SGD's"},
        {{.kind = HVT_OPTIM_LARS, .momentum = -1}, "momentum is -1"},
        {{.kind = HVT_OPTIM_LARS, HVT_ADAM_DEFAULTS}, "lars has none"},
        {{.kind = HVT_OPTIM_LAMB}, "lamb needs betas and an eps"},
    };
    hvt_model *bare = NULL;
    hvt_optim *o = NULL;
    rig r;

    open_with(&r, (hvt_optim_opts){0});
    CHECK(!r.o->v, "state without momentum");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(hvt_optim_create(r.m, &bad[i].opts, &o), E_ARG, bad[i].part);
    CHECK_OK(hvt_model_create(r.dev, &bare));
    CHECK_FAILS(hvt_optim_create(bare, &bad[0].opts, &o), E_ARG, "planned");
    CHECK(!o, "an optimizer came out of an error");
    hvt_model_free(&bare);
    rig_close(&r);
}

TEST(impossible_steps_and_schedules_are_refused)
{
    static const struct {
        hvt_distopt_opts opts;
        const char *part;
    } bad[] = {
        {{.local_shards = 0}, "0 shards per rank"},
        {{.local_shards = -1}, "-1 shards per rank"},
        {{.local_shards = 1, .wire = HVT_I32}, "i32"},
        {{.local_shards = 1, .wire = (hvt_dtype)99}, ""},
        {{.local_shards = 1, .update = (hvt_update)99}, "update 99, expected 0 to 2"},
        {{.local_shards = 1, .scaling = {NAN, 2000, 1}}, "loss scale nan"},
        {{.local_shards = 1, .scaling = {INFINITY, 2000, 1}}, "loss scale inf"},
        {{.local_shards = 1, .scaling = {-1, 2000, 1}}, "loss scale -1"},
        {{.local_shards = 1, .scaling = {8, -1, 1}}, "after -1 updates"},
        {{.local_shards = 1, .scaling = {8, 1, NAN}}, "minimum nan"},
        {{.local_shards = 1, .scaling = {8, 1, 9}}, "minimum 9"},
        {{.local_shards = 1, .check_replicas = -1}, "every -1 updates"},
        {{.local_shards = 1, .powersgd = -1}, ""},
        {{.local_shards = 1, .clip_norm = NAN}, "norm is nan"},
        {{.local_shards = 1, .clip_norm = -1}, "norm is -1"},
        {{.local_shards = 1, .clip_norm = INFINITY}, "norm is inf"},
    };
    static const hvt_schedule_opts rates[] = {{"constant", NAN, 1, 0, 0},
                                              {"constant", -1, 1, 0, 0},
                                              {"constant", INFINITY, 1, 0, 0},
                                              {"cosine", .1, NAN, 0, 0},
                                              {"cosine", .1, 0, 0, 0},
                                              {"cosine", .1, -1, 0, 0},
                                              {"cosine", .1, 2, 3, 0},
                                              {"constant", .1, 1, NAN, 0},
                                              {"constant", .1, 1, -1, 0},
                                              {"constant", .1, 1, INFINITY, 0},
                                              {"constant", .1, 1, 1, NAN},
                                              {"constant", .1, 1, 1, 2},
                                              {"", .1, 1, 0, 0},
                                              {"cosine:nan", .1, 1, 0, 0},
                                              {"step:nan", .1, 1, 0, 0}};
    static const double steps[] = {NAN, INFINITY, -INFINITY, -1, 1e60};
    hvt_schedule *rate = NULL;
    hvt_distopt *d = NULL;
    rig r;

    open_with(&r, (hvt_optim_opts){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(hvt_distopt_create(r.o, r.comm, &bad[i].opts, NULL, 0, &d), E_ARG, bad[i].part);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        CHECK_FAILS(hvt_schedule_create(&rates[i], &rate), E_ARG, "");
    CHECK(!d && !rate, "something came out of an error");
    CHECK_OK(hvt_distopt_create(r.o, r.comm, &(hvt_distopt_opts){.local_shards = 1}, NULL, 0, &d));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        CHECK_FAILS(hvt_distopt_begin(d, (const int[]){1}, 1, steps[i]), E_ARG, "learning rate is");
    hvt_distopt_free(&d);
    rig_close(&r);
}

int main(void)
{
    if (!rig_begin())
        return 1;
    RUN(constant_and_step_and_multistep_follow_pytorch);
    RUN(cosine_follows_pytorch);
    RUN(cosine_falls_with_every_update);
    RUN(poly_and_one_cycle_follow_pytorch);
    RUN(cosine_begins_where_the_warm_up_ends);
    RUN(warm_up_is_linear_per_update_and_ends_at_the_peak);
    RUN(a_warm_up_from_one_rank_s_rate_is_that_of_horovod_s_keras_callback);
    RUN(malformed_schedules_are_refused_with_what_was_expected);
    RUN(buckets_close_where_pytorch_closes_them);
    RUN(what_is_far_too_large_is_cut_into_equal_pieces);
    RUN(resnet50_is_cut_where_pytorch_cuts_it);
    RUN(sgd_follows_pytorch);
    RUN(adam_adamw_rmsprop_lars_and_lamb_follow_pytorch_and_timm);
    RUN(norm_and_bias_can_be_spared_from_decay);
    RUN(a_group_has_a_rate_and_a_decay_of_its_own);
    RUN(impossible_groups_are_refused);
    RUN(impossible_optimizers_are_refused);
    RUN(impossible_steps_and_schedules_are_refused);
    return rig_end();
}
