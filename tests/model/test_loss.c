/*
 * The losses: cross-entropy with label smoothing, mean squared error and one of the caller's own, against
 * PyTorch's losses and gradients, on every device; batches from the caller's arrays; refused arguments.
 */
#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where golden/ is; Meson says so */
#endif

#include "device/half.h"
#include "hvt/optim.h"
#include "nets.h"

enum {
    STEPS = 10,
    BATCH = 5,
    HEIGHT = 9,
    WIDTH = 11,
    COLORS = 3,
    CLASSES = 4,
    AREA = HEIGHT * WIDTH,
    IMAGE = AREA * COLORS,
    IGNORED = -1
};

/* ---- golden/make_criteria.py ------------------------------------------------------------------------ */

static hvt_value make_net(hvt_model *m, hvt_value x)
{
    hvt_name(m, "conv");
    x = hvt_apply(m, hvt_conv2d(m, x, 8, 3, 1, 1), HVT_TANH, 0, 0);
    x = hvt_avgpool(m, x);
    hvt_name(m, "fc");
    return hvt_linear(m, x, CLASSES);
}

/* Logits of every pixel. */
static hvt_value make_pixels(hvt_model *m, hvt_value x)
{
    hvt_name(m, "conv");
    x = hvt_apply(m, hvt_conv2d(m, x, 8, 3, 1, 1), HVT_TANH, 0, 0);
    hvt_name(m, "fc");
    return hvt_conv2d_with(m, x, &(hvt_conv2d_opts){.filters = CLASSES, .kernel_h = 1, .bias = true});
}

/* "ignore0", "ignore0.2" and "iw0.1", with labels of pixels, and "autoencoder", with images as targets */
static bool of_pixels(const char *criterion)
{
    return *criterion == 'i' || *criterion == 'a';
}

static uint64_t key(const char *name)
{
    uint64_t sum = 0;

    for (size_t i = 0; name[i]; i++)
        sum += (i + 1) * (uint64_t)name[i];
    return sum;
}

static float signed_unit(uint64_t kind, uint64_t of, size_t k)
{
    return 2 * hvt__unit(hvt__draw(SEED, kind, of, k)) - 1;
}

typedef struct own {
    hvt_device *dev;
    hvt_model *m;
    float images[BATCH * IMAGE], targets[BATCH * CLASSES];
    int32_t labels[BATCH];
    float pictures[BATCH * CLASSES * AREA];
    int32_t masks[BATCH * AREA];
} own;

static void fill(hvt_model *m)
{
    for (int i = 0; i < m->nparam_tensors; i++) {
        const hvt_param *p = &m->param[i];
        float *w = malloc(p->elements * sizeof *w), fan_in = (float)(p->elements / (size_t)p->dim[0]);

        for (size_t k = 0; k < p->elements; k++)
            w[k] = signed_unit(3, key(p->name), k) * (p->ndim == 1 ? 0.3f : 1 / sqrtf(fan_in));
        CHECK_OK(hvt_model_set(m, p->name, w, p->elements));
        free(w);
    }
}

static bool open_by(own *o, how by, hvt_dtype type, const hvt_loss_opts *loss, const float *weighted,
                    bool pixels)
{
    hvt_device_opts opts = {.threads = by.threads, .isa = by.isa};

    memset(o, 0, sizeof *o);
    CHECK_OK(hvt_device_open(by.device, &opts, &o->dev));
    CHECK_OK(hvt_model_create(o->dev, &o->m));
    o->m->poisons = by.poisons;
    CHECK_OK(hvt_model_set_type(o->m, type));
    if (loss)
        CHECK_OK(hvt_model_set_loss(o->m, loss));
    CHECK_OK(hvt_model_set_class_weights(o->m, weighted, CLASSES));

    hvt_value x = hvt_input(o->m, HEIGHT, WIDTH, COLORS);

    CHECK_OK(hvt_model_plan(o->m, BATCH, pixels ? make_pixels(o->m, x) : make_net(o->m, x)));
    if (!o->m->batch)
        return false;
    CHECK_OK(hvt_model_init(o->m, SEED));
    fill(o->m);
    return true;
}

static bool open_own(own *o, how by, hvt_dtype type, const hvt_loss_opts *loss, const float *weighted)
{
    return open_by(o, by, type, loss, weighted, false);
}

static void close_own(own *o)
{
    hvt_model_free(&o->m);
    hvt_device_close(&o->dev);
}

static void draw(own *o, int first)
{
    for (int i = 0; i < BATCH; i++) {
        for (int e = 0; e < IMAGE; e++)
            o->images[i * IMAGE + e] = pixel(first + i, e);
        for (int k = 0; k < CLASSES; k++)
            o->targets[i * CLASSES + k] = 2 * signed_unit(5, (uint64_t)(first + i), (size_t)k);
        o->labels[i] = (int32_t)hvt__below(hvt__draw(SEED, 2, (uint64_t)(first + i), 0), CLASSES);
        for (int p = 0; p < AREA; p++) {
            int32_t label =
                (int32_t)hvt__below(hvt__draw(SEED, 6, (uint64_t)(first + i), (uint64_t)p), CLASSES + 1);

            o->masks[i * AREA + p] = label == CLASSES || p % WIDTH < (first + i) % BATCH ? IGNORED : label;
        }
        for (int k = 0; k < CLASSES * AREA; k++)
            o->pictures[i * CLASSES * AREA + k] = 2 * signed_unit(7, (uint64_t)(first + i), (size_t)k);
    }
}

static const float weights[CLASSES] = {0.5f, 2, 1, 3.25f};

static bool is_soft(const char *criterion)
{
    return strstr(criterion, "soft");
}

/* What the loss's sum is divided by: PyTorch divides by weights of labels, but not of soft targets. */
static double divisor(const own *o, const char *criterion)
{
    double sum = 0;

    for (int i = 0; i < BATCH * AREA && *criterion == 'i'; i++)
        sum += o->masks[i] == IGNORED ? 0 : !strncmp(criterion, "iw", 2) ? (double)weights[o->masks[i]] : 1;
    for (int i = 0; i < BATCH && *criterion != 'i'; i++)
        sum += *criterion == 'w' && !is_soft(criterion) ? (double)weights[o->labels[i]] : 1;
    return sum;
}

/* make_criteria.py's soft(). */
static void soften(own *o)
{
    memset(o->targets, 0, sizeof o->targets);
    for (int i = 0; i < BATCH; i++) {
        o->targets[i * CLASSES + o->labels[i]] = 0.75f;
        o->targets[i * CLASSES + (o->labels[i] + 1) % CLASSES] = 0.25f;
    }
}

/* torch.nn.SmoothL1Loss(beta=0.5): the sum over images of the mean over outputs, and its gradient. */
static double smooth_l1(const float *y, const float *t, int count, float *ret_grad)
{
    double sum = 0;

    for (int i = 0; i < count * CLASSES; i++) {
        double off = (double)y[i] - (double)t[i], far = fabs(off);

        sum += (far < 0.5 ? off * off : far - 0.25) / CLASSES;
        ret_grad[i] = (float)((far < 0.5 ? 2 * off : off > 0 ? 1 : -1) / CLASSES);
    }
    return sum;
}

/* One training pass, forward and backward; returns the loss sum. */
static double train_pass(own *o, const char *criterion)
{
    hvt_arrays a = {.count = BATCH, .images = o->images, .type = HVT_F32};
    float loss[BATCH * AREA], error[BATCH], logits[BATCH * CLASSES], grad[BATCH * CLASSES];
    int32_t rank[BATCH * AREA];
    double sum = 0;
    hvt_batch b;

    if (is_soft(criterion))
        soften(o);
    a.labels = *criterion == 'i' ? o->masks : strchr("psbw", *criterion) ? o->labels : NULL;
    a.targets = *criterion == 'a' ? o->pictures : *criterion == 'm' || is_soft(criterion) ? o->targets : NULL;
    CHECK_OK(hvt_batch_set(o->m, &a, &b));
    CHECK_OK(hvt_model_forward(o->m, &b, true));
    if (*criterion == 'o') {
        CHECK_OK(hvt_model_logits(o->m, logits));
        sum = smooth_l1(logits, o->targets, BATCH, grad);
        CHECK_OK(hvt_model_backward_from(o->m, grad, sum, NULL, NULL));
        return sum;
    }
    CHECK_OK(*criterion == 'm' || *criterion == 'a' ? hvt_model_errors(o->m, loss, error)
                                                    : hvt_model_rows(o->m, loss, rank));
    for (int i = 0; i < (*criterion == 'i' ? BATCH * AREA : BATCH); i++)
        sum += (double)loss[i];
    CHECK_OK(hvt_model_backward(o->m, NULL, NULL));
    return sum;
}

static hvt_loss_opts opts_of(const char *criterion)
{
    const size_t number = strcspn(criterion, "0123456789");

    if (!strcmp(criterion, "mae") || !strcmp(criterion, "absolute"))
        return (hvt_loss_opts){HVT_LOSS_MAE};
    return (hvt_loss_opts){*criterion == 'm' || *criterion == 'a' ? HVT_LOSS_MSE
                           : *criterion == 'b'                    ? HVT_LOSS_BCE
                                                                  : HVT_LOSS_CE,
                           strtof(criterion + number, NULL)};
}

/* Lines "grad NAME DOT LENGTH". */
static void check_gradients(const own *o, FILE *f, const char *criterion)
{
    char line[256], name[64];
    double dot, length;
    int count = 0;
    long at = ftell(f);

    for (; fgets(line, sizeof line, f) && sscanf(line, "grad %63s %lf %lf", name, &dot, &length) == 3;
         count++)
        for (int i = 0; i < o->m->nparam_tensors; i++) {
            const hvt_param *p = &o->m->param[i];
            double got = 0, square = 0;
            float *g;

            if (strcmp(p->name, name) != 0)
                continue;
            g = malloc(p->elements * sizeof *g);
            CHECK_OK(hvt__model_export(o->m, p, o->m->grads, g));
            for (size_t k = 0; k < p->elements; k++) {
                got += (double)g[k] * (double)signed_unit(4, key(name), k);
                square += (double)g[k] * (double)g[k];
            }
            free(g);
            CHECK(fabs(got - dot) <= 1e-4 * length && fabs(sqrt(square) - length) <= 1e-4 * length,
                  "%s, gradient of %s: %.8g of length %.8g, PyTorch %.8g of %.8g", criterion, name, got,
                  sqrt(square), dot, length);
        }
    CHECK(count == o->m->nparam_tensors, "%s: %d gradients", criterion, count);
    fseek(f, at, SEEK_SET);
}

static void check_steps(how by, const char *criterion, const double *want, FILE *f)
{
    hvt_loss_opts opts = opts_of(criterion);
    own o;

    if (open_by(&o, by, HVT_F32, *criterion == 'p' || *criterion == 'o' ? NULL : &opts,
                *criterion == 'w' || !strncmp(criterion, "iw", 2) ? weights : NULL, of_pixels(criterion))) {
        const hvt_device_ops *ops = o.dev->ops;
        size_t first = o.m->step_stats_count, count = o.m->arena_count - first;
        float *v = NULL, sums[HVT__SUMS];

        CHECK_OK(ops->memory.alloc(o.dev, count * sizeof *v, (void **)&v));
        for (int step = 0; step < STEPS; step++) {
            hvt_step_state state = {.lr = 0.02f, .apply = 1, .fresh = !step};
            hvt_sgd_args sgd = {.momentum = .9f, .step = &state};

            draw(&o, step * BATCH);
            const double sum = train_pass(&o, criterion), all = divisor(&o, criterion), loss = sum / all;

            state.grad_scale = (float)((*criterion == 'i' ? AREA : 1) / all);

            CHECK(fabs(loss / want[step] - 1) <= (step ? 1e-4 : 1e-6),
                  "%s, %s, step %d: loss %.8f, PyTorch %.8f", criterion, way_name(by), step + 1, loss,
                  want[step]);
            CHECK_OK(hvt_device_download(o.dev, sums, o.m->grads + o.m->step_stats_count - HVT__STEP_SUMS,
                                         sizeof sums));
            CHECK(fabs((double)sums[0] / all / want[step] - 1) <= 1e-4, "%s: the sum is %g", criterion,
                  (double)sums[0]);
            CHECK((*criterion != 'w' && *criterion != 'i') ||
                      fabs((double)sums[HVT__SUM_WEIGHT] / all - 1) < 1e-6,
                  "%s: the weight is %g", criterion, (double)sums[HVT__SUM_WEIGHT]);
            if (!step)
                check_gradients(&o, f, criterion);
            CHECK_OK(ops->vector.sgd(o.dev, count, &sgd, (const float *[]){o.m->grads + first}, 1,
                                     o.m->params + first, v));
            hvt__model_changed(o.m);
        }
        ops->memory.release(o.dev, v);
    }
    close_own(&o);
}

/* Source: golden/criteria.txt by PyTorch, in f64. */
TEST(losses_and_gradients_are_pytorchs)
{
    char path[512], line[512], name[32];
    FILE *f;
    int seen = 0;

    snprintf(path, sizeof path, "%s/golden/criteria.txt", HVT_TESTS);
    f = fopen(path, "r");
    CHECK(f, "%s cannot be read", path);
    while (f && fgets(line, sizeof line, f)) {
        double want[STEPS];
        int at = 0, used = 0;
        how by = ref;

        if (sscanf(line, "criterion %31s%n", name, &at) != 1)
            continue;
        for (int i = 0; i < STEPS && sscanf(line + at, "%lf%n", &want[i], &used) == 1; i++)
            at += used;
        for (int i = 0; i == 0 || way(i - 1, &by); i++) {
            how poisoned = by;

            poisoned.poisons = true;
            check_steps(by, name, want, f);
            check_steps(poisoned, name, want, f);
        }
        seen++;
    }
    CHECK(seen == 17, "%d criteria", seen);
    if (f)
        fclose(f);
}

/* Gradients of one pass in a type, with a loss scale. */
static void gradients(how by, const char *criterion, hvt_dtype type, float scale, float *ret, size_t room)
{
    hvt_loss_opts opts = opts_of(criterion);
    hvt_step_state state;
    own o;

    if (open_own(&o, by, type, &opts, NULL)) {
        CHECK_OK(hvt__model_state(o.m, &state));
        state.loss_scale = scale;
        CHECK_OK(hvt__model_set_state(o.m, &state));
        draw(&o, 0);
        train_pass(&o, criterion);
        size_t first = o.m->step_stats_count, count = o.m->grad_count - first;

        CHECK(count <= room, "%zu gradients", count);
        CHECK_OK(hvt_device_download(o.dev, ret, o.m->grads + first, count * sizeof *ret));
    }
    close_own(&o);
}

TEST(the_loss_scale_multiplies_gradients_and_16_bits_are_near)
{
    enum { ROOM = 2048 };
    static const char *const criteria[] = {"smooth0.1", "mse", "mae", "own"};
    float one[ROOM], other[ROOM];
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++)
        for (size_t c = 0; c < HVT_LEN(criteria); c++) {
            memset(one, 0, sizeof one);
            memset(other, 0, sizeof other);
            gradients(by, criteria[c], HVT_F32, 1, one, ROOM);
            gradients(by, criteria[c], HVT_F32, 1024, other, ROOM);
            for (int k = 0; k < ROOM; k++)
                CHECK(other[k] == 1024 * one[k], "%s, %s: gradient %d is %g, scaled %g", criteria[c],
                      way_name(by), k, (double)one[k], (double)other[k]);
            gradients(by, criteria[c], HVT_BF16, 1024, other, ROOM);
            for (int k = 0; k < ROOM; k++)
                CHECK(fabs((double)other[k] / 1024 - (double)one[k]) < 0.03 * (1 + fabs((double)one[k])),
                      "%s, %s: gradient %d is %g, in bf16 %g", criteria[c], way_name(by), k, (double)one[k],
                      (double)other[k] / 1024);
        }
}

TEST(without_smoothing_no_bit_changes_and_evaluation_is_plain)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        float loss[2][BATCH];
        int32_t rank[BATCH];

        for (int smooth = 0; smooth < 2; smooth++) {
            own o;

            if (open_own(&o, by, HVT_F32, &(hvt_loss_opts){HVT_LOSS_CE, smooth ? 0.3f : 0}, NULL)) {
                hvt_batch b;

                draw(&o, 0);
                CHECK_OK(hvt_batch_set(
                    o.m,
                    &(hvt_arrays){.count = BATCH, .images = o.images, .type = HVT_F32, .labels = o.labels},
                    &b));
                CHECK_OK(hvt_model_forward(o.m, &b, false));
                CHECK_OK(hvt_model_rows(o.m, loss[smooth], rank));
            }
            close_own(&o);
        }
        CHECK(!memcmp(loss[0], loss[1], sizeof loss[0]), "%s: an evaluation's losses are smoothed",
              way_name(by));
    }
}

static void count_spans(size_t *ret, size_t first, size_t end)
{
    CHECK(first == *ret && end > first, "a span from %zu to %zu after %zu", first, end, *ret);
    *ret = end;
}

static hvt_status on_grad(void *ctx, size_t first, size_t end)
{
    count_spans(ctx, first, end);
    return HVT_OK;
}

TEST(a_loss_of_ones_own_has_its_spans_and_its_empty_batch)
{
    own o;

    if (open_own(&o, ref, HVT_F32, NULL, NULL)) {
        float grad[BATCH * CLASSES], logits[BATCH * CLASSES];
        hvt_batch b;

        draw(&o, 0);
        for (int count = BATCH; count >= 0; count -= BATCH) {
            size_t end = 0;

            CHECK_OK(
                hvt_batch_set(o.m, &(hvt_arrays){.count = count, .images = o.images, .type = HVT_F32}, &b));
            CHECK_OK(hvt_model_forward(o.m, &b, true));
            CHECK_OK(hvt_model_logits(o.m, logits));
            double loss = smooth_l1(logits, o.targets, count, grad);

            CHECK_OK(hvt_model_backward_from(o.m, count ? grad : NULL, loss, on_grad, &end));
            CHECK(end == o.m->grad_count, "spans end at %zu", end);
            CHECK_FAILS(hvt_model_logits(o.m, logits), E_ARG, "expected an inference pass");
            CHECK_FAILS(hvt_model_backward_from(o.m, grad, 0, NULL, NULL), E_ARG, "training forward");
        }
        for (size_t k = o.m->step_stats_count; k < o.m->grad_count; k++)
            CHECK(o.m->grads[k] == 0, "an empty batch has gradient %g", (double)o.m->grads[k]);
    }
    close_own(&o);
}

/* Steps of the mean squared error through a distributed optimizer, computed by the model or by the caller; so
 * are the absolute errors. */
static uint64_t fit(how by, hvt_dtype type, bool own_loss, hvt_loss *ret_loss)
{
    const hvt_loss_opts mse = {HVT_LOSS_MSE};
    const hvt_distopt_opts opts = {
        .local_shards = 1, .scaling = {.scale = type == HVT_F16 ? 256 : 0, .interval = 2, .floor = 1}};
    const int counts[] = {BATCH};
    hvt_world *world = NULL;
    hvt_comm *comm = NULL;
    hvt_optim *sgd = NULL;
    hvt_distopt *dist = NULL;
    uint64_t hash = 0;
    double error = 0;
    own o;

    if (open_own(&o, by, type, own_loss ? NULL : &mse, NULL)) {
        CHECK_OK(hvt_world_open(NULL, &world));
        CHECK_OK(hvt_comm_open("self", world, o.dev, &comm));
        CHECK_OK(hvt_optim_create(o.m, &(hvt_optim_opts){.momentum = 0.9f}, &sgd));
        CHECK_OK(hvt_distopt_create(sgd, comm, &opts, NULL, 0, &dist));
        for (int step = 0; dist && step < STEPS; step++) {
            hvt_arrays a = {.count = BATCH, .images = o.images, .type = HVT_F32};
            float y[BATCH * CLASSES], grad[BATCH * CLASSES];
            double loss = 0;
            hvt_batch b;

            draw(&o, step * BATCH);
            a.targets = own_loss ? NULL : o.targets;
            CHECK_OK(hvt_batch_set(o.m, &a, &b));
            CHECK_OK(hvt_distopt_begin(dist, counts, 1, 0.05));
            CHECK_OK(hvt_model_forward(o.m, &b, true));
            if (own_loss) {
                CHECK_OK(hvt_model_logits(o.m, y));
                for (int i = 0; i < BATCH * CLASSES; i++) {
                    float off = y[i] - o.targets[i];

                    grad[i] = 2 * off / CLASSES;
                    loss += (double)off * (double)off / CLASSES;
                    error += fabs((double)off) / CLASSES;
                }
                CHECK_OK(hvt_model_backward_from(o.m, grad, loss, hvt_distopt_on_grad, dist));
            } else {
                CHECK_OK(hvt_model_backward(o.m, hvt_distopt_on_grad, dist));
            }
            CHECK_OK(hvt_distopt_step(dist));
        }
        CHECK_OK(hvt_model_take_loss(o.m, ret_loss));
        CHECK(!own_loss == (ret_loss->error > 0), "an error of %g", ret_loss->error);
        ret_loss->error += error;
        CHECK_OK(hvt_model_hash(o.m, &hash));
    }
    hvt_distopt_free(&dist);
    hvt_optim_free(&sgd);
    hvt_comm_close(&comm);
    close_own(&o);
    hvt_world_close(&world);
    return hash;
}

TEST(a_squared_error_of_ones_own_gives_the_bits_of_the_models)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++)
        for (int half = 0; half < 2; half++) {
            hvt_loss model = {0}, caller = {0};
            uint64_t a = fit(by, half ? HVT_F16 : HVT_F32, false, &model),
                     b = fit(by, half ? HVT_F16 : HVT_F32, true, &caller);

            CHECK(a == b, "%s, %s: other weights", way_name(by), half ? "f16" : "f32");
            CHECK(caller.count == model.count && model.count == STEPS * BATCH &&
                      fabs(caller.sum / model.sum - 1) < 1e-5 &&
                      fabs(caller.error / model.error - 1) < 1e-5 && caller.top1 == 0 && model.top1 == 0 &&
                      model.top5 == 0,
                  "%s: loss %g, errors %g over %lld images, of the caller's own %g, %g over %lld",
                  way_name(by), model.sum, model.error, (long long)model.count, caller.sum, caller.error,
                  (long long)caller.count);
        }
}

/* ---- batches ---------------------------------------------------------------------------------------- */

/* The same images in any type and order make the same batch as x = (value - mean) / std does by hand. */
TEST(arrays_of_any_type_become_the_same_batch)
{
    static const hvt_dtype types[] = {HVT_U8, HVT_F16, HVT_F32, HVT_F64};
    static const float mean[] = {0.25f, 0.5f, 0.75f}, std[] = {0.5f, 0.25f, 2};
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        own o;

        if (open_own(&o, by, HVT_F32, NULL, NULL)) {
            float want[BATCH * CLASSES], got[BATCH * CLASSES], x[BATCH * IMAGE];
            uint8_t byte[BATCH * IMAGE];

            for (int e = 0; e < BATCH * IMAGE; e++) {
                byte[e] = (uint8_t)hvt__below(hvt__draw(SEED, 9, 0, (uint64_t)e), 256);
                x[e] = ((float)byte[e] / 255 - mean[e % COLORS]) / std[e % COLORS];
            }
            CHECK_OK(hvt_model_predict(o.m, x, BATCH, want));
            for (int k = 0; k < 2 * (int)HVT_LEN(types); k++) {
                hvt_dtype t = types[k / 2];
                bool nchw = k % 2;
                double room[BATCH * IMAGE];
                float scaled = 255, one = 1;
                hvt_batch b;

                for (int n = 0; n < BATCH; n++)
                    for (int p = 0; p < HEIGHT * WIDTH; p++)
                        for (int c = 0; c < COLORS; c++) {
                            int from = (n * HEIGHT * WIDTH + p) * COLORS + c;
                            size_t to = (size_t)(nchw ? (n * COLORS + c) * HEIGHT * WIDTH + p : from);
                            double v = (double)byte[from] / (double)scaled * (double)one;

                            if (t == HVT_U8)
                                ((uint8_t *)room)[to] = byte[from];
                            else if (t == HVT_F64)
                                room[to] = v;
                            else
                                hvt__store(room, t, to, (float)v);
                        }
                CHECK_OK(hvt_batch_set(
                    o.m,
                    &(hvt_arrays){
                        .count = BATCH, .images = room, .type = t, .nchw = nchw, .mean = mean, .std = std},
                    &b));
                CHECK(b.count == BATCH && b.shards == 0 && !b.labels.data && !b.targets.data, "a batch of %d",
                      b.count);
                CHECK_OK(hvt_model_forward(o.m, &b, false));
                CHECK_OK(hvt_model_logits(o.m, got));
                for (int j = 0; j < BATCH * CLASSES; j++)
                    CHECK(fabs((double)got[j] - (double)want[j]) < (t == HVT_F16 ? 2e-3 : 1e-5),
                          "%s, %s%s: logit %g, expected %g", way_name(by), hvt_dtype_name(t),
                          nchw ? " NCHW" : "", (double)got[j], (double)want[j]);
            }
        }
        close_own(&o);
    }
}

TEST(what_cannot_be_is_refused)
{
    static float x[BATCH * IMAGE], y[BATCH * CLASSES], zero[COLORS], bad[] = {1, NAN, 1};
    static int32_t labels[BATCH], rank[BATCH];
    const hvt_arrays all = {.count = BATCH, .images = x, .type = HVT_F32};
    const hvt_loss_opts mse = {HVT_LOSS_MSE};
    hvt_arrays a = all;
    hvt_batch b;
    own o;

    CHECK_FAILS(hvt_model_set_loss(NULL, &mse), E_ARG, "a model");
    CHECK_FAILS(hvt_model_backward_from(NULL, y, 0, NULL, NULL), E_ARG, "a model");
    CHECK_FAILS(hvt_model_errors(NULL, y, y), E_ARG, "a model");
    CHECK_FAILS(hvt_batch_set(NULL, &a, &b), E_ARG, "a model");
    CHECK_OK(hvt_device_open("ref", NULL, &o.dev));
    CHECK_OK(hvt_model_create(o.dev, &o.m));
    CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_ARG, "call hvt_model_plan() before");
    CHECK_FAILS(hvt_model_errors(o.m, y, y), E_ARG, "before a forward");
    CHECK_FAILS(hvt_model_backward_from(o.m, y, 0, NULL, NULL), E_ARG, "training forward");
    CHECK_FAILS(hvt_model_set_loss(o.m, NULL), E_ARG, "options");
    CHECK_FAILS(hvt_model_set_loss(o.m, &(hvt_loss_opts){(hvt_loss_kind)7}), E_ARG, "kind 7");
    CHECK_FAILS(hvt_model_set_loss(o.m, &(hvt_loss_opts){HVT_LOSS_CE, -0.1f}), E_ARG, "expected 0 to 1");
    CHECK_FAILS(hvt_model_set_loss(o.m, &(hvt_loss_opts){HVT_LOSS_CE, NAN}), E_ARG, "expected 0 to 1");
    CHECK_FAILS(hvt_model_set_loss(o.m, &(hvt_loss_opts){HVT_LOSS_CE, 1.5f}), E_ARG, "expected 0 to 1");
    CHECK_FAILS(hvt_model_set_loss(o.m, &(hvt_loss_opts){HVT_LOSS_MSE, 0.1f}), E_ARG, "has no labels");
    close_own(&o);

    if (open_own(&o, ref, HVT_F32, &mse, NULL)) {
        CHECK_FAILS(hvt_model_set_loss(o.m, &mse), E_ARG, "before hvt_model_plan()");
        CHECK_FAILS(hvt_batch_set(o.m, NULL, &b), E_ARG, "arrays");
        CHECK_FAILS(hvt_batch_set(o.m, &a, NULL), E_ARG, "output pointer");
        a.count = BATCH + 1;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_SHAPE, "planned for 0 to 5");
        a.count = -1;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_SHAPE, "planned for 0 to 5");
        a = all;
        a.images = NULL;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_ARG, "images is NULL");
        a = all;
        a.type = HVT_I64;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_ARG, "images are i64");
        a = all;
        a.std = zero;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_ARG, "std of channel 0 is 0");
        a.std = NULL;
        a.mean = bad;
        CHECK_FAILS(hvt_batch_set(o.m, &a, &b), E_ARG, "mean of channel 1");
        a = all;
        a.targets = y;
        CHECK_OK(hvt_batch_set(o.m, &a, &b));
        b.targets.dim[1] = CLASSES + 1;
        CHECK_FAILS(hvt_model_forward(o.m, &b, true), E_SHAPE, "targets are f32 [5,5]");
        b.targets.dim[1] = CLASSES;
        CHECK_OK(hvt_model_forward(o.m, &b, true));
        CHECK_FAILS(hvt_model_logits(o.m, y), E_ARG, "expected an inference pass");
        CHECK_FAILS(hvt_model_rows(o.m, y, rank), E_ARG, "hvt_model_errors");
        CHECK_FAILS(hvt_model_errors(o.m, NULL, y), E_ARG, "NULL");
        CHECK_FAILS(hvt_model_backward_from(o.m, y, 0, NULL, NULL), E_ARG, "leave them out");
        CHECK_OK(hvt_model_backward(o.m, NULL, NULL)); /* a refusal costs nothing */
        b.targets.data = NULL;
        CHECK_OK(hvt_model_forward(o.m, &b, true));
        CHECK_FAILS(hvt_model_backward(o.m, NULL, NULL), E_ARG, "had no targets");
        CHECK_FAILS(hvt_model_errors(o.m, y, y), E_ARG, "no targets");
        CHECK_FAILS(hvt_model_backward_from(o.m, NULL, 0, NULL, NULL), E_ARG, "without its gradient");
        CHECK_OK(hvt_model_backward_from(o.m, y, 0, NULL, NULL));
    }
    close_own(&o);
    if (open_own(&o, ref, HVT_F32, NULL, NULL)) {
        a = all;
        a.labels = labels;
        CHECK_OK(hvt_batch_set(o.m, &a, &b));
        CHECK_OK(hvt_model_forward(o.m, &b, false));
        CHECK_FAILS(hvt_model_errors(o.m, y, y), E_ARG, "hvt_model_rows");
        b.labels.data = NULL;
        CHECK_OK(hvt_model_forward(o.m, &b, true));
        CHECK_FAILS(hvt_model_backward(o.m, NULL, NULL), E_ARG, "hvt_model_backward_from");
    }
    close_own(&o);
}

static hvt_value one_output(hvt_model *m, hvt_value x)
{
    return hvt_linear(m, hvt_avgpool(m, x), 1);
}

TEST(one_output_is_for_squared_errors_alone)
{
    for (int mse = 0; mse < 2; mse++) {
        hvt_device *dev = NULL;
        hvt_model *m = NULL;

        CHECK_OK(hvt_device_open("ref", NULL, &dev));
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_OK(hvt_model_set_loss(m, &(hvt_loss_opts){mse ? HVT_LOSS_MSE : HVT_LOSS_CE}));
        if (mse)
            CHECK_OK(hvt_model_plan(m, 1, one_output(m, hvt_input(m, 2, 2, 1))));
        else
            CHECK_FAILS(hvt_model_plan(m, 1, one_output(m, hvt_input(m, 2, 2, 1))), E_SHAPE, "2 or more");
        hvt_model_free(&m);
        hvt_device_close(&dev);
    }
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    RUN(losses_and_gradients_are_pytorchs);
    RUN(the_loss_scale_multiplies_gradients_and_16_bits_are_near);
    RUN(without_smoothing_no_bit_changes_and_evaluation_is_plain);
    RUN(a_loss_of_ones_own_has_its_spans_and_its_empty_batch);
    RUN(a_squared_error_of_ones_own_gives_the_bits_of_the_models);
    RUN(arrays_of_any_type_become_the_same_batch);
    RUN(what_cannot_be_is_refused);
    RUN(one_output_is_for_squared_errors_alone);
    return check_done();
}
