/*
 * Any tape: parameters shared by several layers; activations that live exactly as long as planned; the hash
 * of what it computes.
 */
#include "nets.h"

#include <inttypes.h>

/* ---- lifetimes -------------------------------------------------------------------------------------- */

static build_fn *const nets[] = {small_net,     odd_net,       early_norm_net, plain_net,
                                 functions_net, separable_net, recomputed_net, weights_net};

TEST(nothing_is_read_after_its_lifetime)
{
    static const shape shapes[] = {{1, 8, 8, 3}, {5, 9, 11, 3}};
    how by;

    for (size_t k = 0; k < HVT_LEN(nets); k++)
        for (size_t i = 0; i < HVT_LEN(shapes); i++)
            for (int w = 0; way(w, &by) && strcmp(by.device, "cuda"); w++)
                for (int unfused = 0; unfused < 2; unfused++) {
                    how poisoned = by;

                    by.unfused = poisoned.unfused = unfused;
                    poisoned.poisons = true;
                    check_same(nets[k], shapes[i], shapes[i].batch, by, poisoned, 0);
                }
}

/* After a pass every block has ended but the loss's. */
TEST(what_has_ended_is_poisoned)
{
    how by = ref;
    net n;

    by.poisons = true;
    if (open_net(&n, by, small_net, (shape){3, 9, 11, 3})) {
        const hvt_layer *loss = n.m->layer + n.m->nlayer - 1;
        const uint8_t *x = n.m->acts;
        size_t count, left = 0;

        free(pass(&n, &count));
        for (size_t i = 0; i < n.m->acts_bytes; i++)
            left += x[i] != 0xff;
        CHECK(left && left <= loss->saved_bytes + 64 * (size_t)n.m->nending,
              "%zu bytes are left, the loss has %zu", left, loss->saved_bytes);
    }
    close_net(&n);
}

/* ---- shared parameters ------------------------------------------------------------------------------ */

static bool apart_built; /* layers have parameters of their own */

/* One convolution three times and one linear layer twice. */
static hvt_value shared_net(hvt_model *m, hvt_value x)
{
    hvt_value conv, first, fc;

    x = hvt_relu(m, hvt_conv2d(m, x, 5, 3, 2, 1));
    conv = hvt_conv2d(m, x, 5, 3, 1, 1);
    x = hvt_relu(m, conv);
    for (int i = 0; i < 2; i++) {
        if (!apart_built)
            hvt_share(m, conv);
        x = hvt_relu(m, hvt_add(m, hvt_conv2d(m, x, 5, 3, 1, 1), x));
    }
    first = hvt_avgpool(m, x);
    fc = hvt_linear(m, first, 5);
    x = hvt_relu(m, fc);
    if (!apart_built)
        hvt_share(m, fc);
    return hvt_linear(m, x, 5);
}

/* The built layer that parameter i of the shared net belongs to, and those that read it as well. */
static int owner_of(const net *n, int i)
{
    for (int l = 0; l < n->m->nlayer; l++)
        for (int k = 0; k < HVT_LAYER_PARAMS; k++)
            if (n->m->layer[l].param[k] == i)
                return l;
    return -1;
}

TEST(gradients_of_shared_parameters_add)
{
    how by;

    for (int w = 0; way(w, &by); w++) {
        net one, own;
        bool runs;
        size_t count;

        apart_built = false;
        runs = open_net(&one, by, shared_net, (shape){3, 9, 8, 3});
        apart_built = true;
        runs = open_net(&own, by, shared_net, (shape){3, 9, 8, 3}) && runs;
        if (runs) {
            CHECK(hvt_model_parameters(one.m) == 3 * 5 * 9 + 5 * 5 * 9 + 5 * 5 + 5, "%zu parameters",
                  hvt_model_parameters(one.m));
            for (int l = 0; l < one.m->nlayer; l++) /* equal weights */
                for (int k = 0; k < HVT_LAYER_PARAMS; k++)
                    if (one.m->layer[l].param[k] >= 0) {
                        float *x = canonical(&one, one.m->layer[l].param[k], one.m->params);

                        CHECK_OK(hvt__model_import(own.m, &own.m->param[own.m->layer[l].param[k]],
                                                   own.m->params, x));
                        free(x);
                    }
            free(pass(&one, &count));
            free(pass(&own, &count));
            for (int i = 0; i < one.m->ntrained; i++) {
                const hvt_layer *from = &one.m->layer[owner_of(&one, i)];
                int slot = from->param[1] == i;
                float *got = canonical(&one, i, one.m->grads), *want = NULL;
                size_t elements = one.m->param[i].elements;

                for (int l = one.m->nlayer - 1; l >= 0; l--) { /* in the order of backward */
                    if (one.m->layer[l].param[slot] != i)
                        continue;
                    float *part = canonical(&own, own.m->layer[l].param[slot], own.m->grads);

                    for (size_t k = 0; want && k < elements; k++)
                        want[k] += part[k];
                    if (want)
                        free(part);
                    else
                        want = part;
                }
                CHECK(!memcmp(got, want, elements * sizeof *got), "%s: %s is %g, expected %g", way_name(by),
                      one.m->param[i].name, (double)got[0], (double)want[0]);
                free(got);
                free(want);
            }
        }
        close_net(&own);
        close_net(&one);
    }
}

/* An update at once: the weights of the span become NaN. */
typedef struct spoiler {
    net *n;
    float *grads; /* as they were when their span was final */
    size_t mark;
} spoiler;

static hvt_status spoil(void *ctx, size_t first, size_t end)
{
    spoiler *s = ctx;

    CHECK(first == s->mark, "span from %zu, expected %zu", first, s->mark);
    s->mark = end;
    memcpy(s->grads + first, s->n->m->grads + first, (end - first) * sizeof(float));
    memset(s->n->m->params + first, 0xff, (end - first) * sizeof(float));
    return HVT_OK;
}

TEST(a_shared_weight_is_final_only_after_its_last_reader)
{
    how by;

    apart_built = false;
    for (int w = 0; way(w, &by) && strcmp(by.device, "cuda"); w++) {
        net n;

        if (open_net(&n, by, shared_net, (shape){3, 9, 8, 3})) {
            size_t count, bytes = n.m->grad_count * sizeof(float);
            float *want = malloc(bytes);
            spoiler s = {&n, calloc(1, bytes), 0};

            free(pass(&n, &count));
            memcpy(want, n.m->grads, bytes);
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            CHECK_OK(hvt_model_backward(n.m, spoil, &s));
            CHECK(s.mark == n.m->grad_count, "%zu of %zu gradients", s.mark, n.m->grad_count);
            CHECK(!memcmp(s.grads, want, bytes), "%s: gradients differ", way_name(by));
            free(s.grads);
            free(want);
        }
        close_net(&n);
    }
}

static hvt_value shares_nothing(hvt_model *m, hvt_value x)
{
    hvt_share(m, 7);
    return hvt_relu(m, x);
}

static hvt_value shares_another_kind(hvt_model *m, hvt_value x)
{
    x = hvt_conv2d(m, x, 3, 3, 1, 1);
    hvt_share(m, x);
    return hvt_batchnorm(m, x);
}

static hvt_value shares_another_shape(hvt_model *m, hvt_value x)
{
    x = hvt_conv2d(m, x, 4, 3, 1, 1);
    hvt_share(m, x);
    return hvt_conv2d(m, x, 4, 3, 1, 1);
}

static hvt_value shares_statistics(hvt_model *m, hvt_value x)
{
    x = hvt_batchnorm(m, x);
    hvt_share(m, x);
    return hvt_batchnorm(m, x);
}

TEST(what_cannot_be_shared_is_refused)
{
    static const struct {
        build_fn *build;
        const char *part;
    } bad[] = {
        {shares_nothing, "parameters of value 7 are shared, but the model has 1 values so far"},
        {shares_another_kind,
         "layer batchnorm2 (batchnorm): shares the parameters of conv2d1, which is a conv2d"},
        {shares_another_shape,
         "layer conv2d2 (conv2d) shares conv2d1.weight, which is [4,3,3,3], but needs [4,4,3,3]"},
        {shares_statistics, "layer batchnorm2 (batchnorm): it cannot share the parameters of batchnorm1"},
    };
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        hvt_model *m = NULL;
        hvt_value x;

        CHECK_OK(hvt_model_create(dev, &m));
        x = bad[i].build(m, hvt_input(m, 8, 8, 3));
        CHECK_FAILS(hvt_model_plan(m, 2, hvt_linear(m, hvt_avgpool(m, x), 4)), E_SHAPE, bad[i].part);
        hvt_model_free(&m);
    }
    hvt_device_close(&dev);
}

/* ---- shapes ----------------------------------------------------------------------------------------- */

TEST(a_value_has_its_shape_at_once)
{
    static const int want[][3] = {{8, 9, 3}, {4, 5, 6}, {1, 1, 120}, {1, 1, 7}, {0, 0, 0}, {0, 0, 0}};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt_value x[6] = {0, 0, 0, 0, -1, 1000};

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    x[0] = hvt_input(m, 8, 9, 3);
    x[1] = hvt_conv2d(m, x[0], 6, 3, 2, 1);
    x[2] = hvt_flatten(m, x[1]);
    x[3] = hvt_linear(m, x[2], 7);
    for (size_t i = 0; i < HVT_LEN(want); i++) {
        int is[3];

        hvt_value_shape(m, x[i], is);
        CHECK(!memcmp(is, want[i], sizeof is), "value %d is %dx%dx%d", x[i], is[0], is[1], is[2]);
    }
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

/* ---- what a tape computes --------------------------------------------------------------------------- */

static int changed, asked; /* the argument that is another one; those that were given so far */

static int pick(int usual, int other)
{
    return asked++ == changed ? other : usual;
}

/* A layer of every kind, 24 arguments of which may be others where tensors keep their names and shapes. */
static hvt_value arguments_net(hvt_model *m, hvt_value x)
{
    hvt_conv2d_opts conv = {.filters = 8, .kernel_h = 3, .bottom = 1, .left = 1, .right = 1};
    hvt_pool_opts pool = {.size = {2, 2}, .stride = {1, 1}, .pad = {1, 1}};
    hvt_value y;
    hvt_over over;
    int size[3];

    asked = 0;
    conv.top = pick(1, 2);
    conv.stride_h = pick(1, 2);
    conv.dilation_w = pick(1, 2);
    hvt_name(m, pick(0, 1) ? "b" : "a");
    x = hvt_conv2d_with(m, x, &conv);
    hvt_name(m, "c");
    x = hvt_batchnorm_with(m, x, pick(0, 1) ? 1e-3f : 1e-5f, 0.1f);
    x = hvt_apply(m, x, pick(HVT_LEAKY_RELU, HVT_ELU), pick(0, 1) ? 0.5f : 0.1f, 0);
    pool.exclude_pad = pick(0, 1);
    pool.size[1] = pick(2, 3);
    x = hvt_pool_with(m, x, pick(HVT_POOL_MAX, HVT_POOL_MEAN), &pool);
    x = hvt_pad(m, x, pick(0, 1), 0, 1, pick(0, 1));
    y = hvt_slice(m, x, pick(0, 2), 6);
    x = hvt_shuffle(m, y, pick(2, 3));
    hvt_value_shape(m, x, size);
    x = hvt_transpose(m, x, pick(1, 2), pick(1, 3), pick(1, 2), size[0], size[1]);
    x = pick(0, 1) ? hvt_combine(m, HVT_SUB, x, y) : hvt_combine(m, HVT_SUB, y, x);
    over = pick(HVT_OVER_CHANNELS, HVT_OVER_IMAGE);
    x = hvt_layernorm(m, x, over, pick(0, 1) ? 1e-3f : 1e-5f, false);
    hvt_name(m, "d");
    x = hvt_groupnorm(m, x, pick(2, 3), 1e-5f, true);
    x = hvt_subsample(m, x, pick(1, 2), 6);
    x = hvt_adaptive_pool(m, x, HVT_POOL_MEAN, pick(2, 3), 2);
    x = hvt_avgpool(m, pick(0, 1) ? x : hvt_relu(m, x));
    hvt_name(m, "e");
    return hvt_linear(m, x, 5);
}

/* The layers that make larger images, with 16 arguments. */
static hvt_value upward_net(hvt_model *m, hvt_value x)
{
    hvt_conv2d_opts conv = {.filters = 4, .kernel_h = 3, .left = 1};
    hvt_interpolate_opts by = {.scale_w = 1.5};

    asked = 0;
    conv.stride_h = pick(2, 3);
    conv.top = pick(0, 1);
    conv.bottom = pick(1, 0);
    conv.right = pick(0, -1);
    conv.dilation_w = pick(1, 2);
    hvt_name(m, pick(0, 1) ? "b" : "a");
    x = hvt_conv_transpose2d(m, x, &conv);
    by.kind = (hvt_interpolation)pick(HVT_BILINEAR, HVT_BICUBIC);
    by.align_corners = pick(0, 1);
    by.height = pick(0, 30);
    by.scale_h = pick(0, 1) ? 1.25 : 1.5;
    x = hvt_interpolate(m, x, &by);
    x = hvt_interpolate(m, x, &(hvt_interpolate_opts){HVT_BILINEAR, 20, 21, .antialias = pick(0, 1)});
    x = hvt_pad_with(m, x, (hvt_padding)pick(HVT_PAD_REFLECT, HVT_PAD_CIRCULAR), pick(1, 2), pick(2, 1),
                     pick(3, 1), pick(1, 2));
    hvt_name(m, "e");
    return hvt_linear(m, hvt_avgpool(m, x), 5);
}

/* Pixels by number, and products of matrices, with 3 arguments. */
static hvt_value products_net(hvt_model *m, hvt_value x)
{
    hvt_value y;

    asked = 0;
    y = hvt_gather_pixels(m, x, 2, 3, 1, (int[]){pick(0, 1), 5, -1, 2, 2, pick(7, -1)});
    hvt_name(m, "a");
    y = hvt_linear_with(m, y, 3, false);
    return hvt_linear(m, hvt_avgpool(m, hvt_matmul(m, y, hvt_apply(m, y, HVT_EXP, 0, 0), pick(0, 1))), 5);
}

/* Tensors of weights, with 7 arguments. */
static hvt_value tensors_net(hvt_model *m, hvt_value x)
{
    static const hvt_binary ops[] = {HVT_ADD, HVT_MUL};
    const int square[] = {4, 4};
    hvt_value a, b, w;
    float number;

    asked = 0;
    hvt_name(m, "a");
    a = hvt_weight_parameter(m, 2, square, 0, 1);
    hvt_name(m, "b");
    b = hvt_weight_parameter(m, 2, square, 0, 1);
    number = (float)pick(2, 3);
    w = hvt_weight_numbers(m, 1, (int[]){1}, &number);
    w = hvt_combine(m, ops[pick(0, 1)], pick(0, 1) ? a : b, w);
    w = hvt_weight_standardise(m, w, pick(0, 1) ? 1e-3f : 1e-5f);
    w = hvt_weight_view(m, w, 0, 2, square, pick(0, 1) ? (int[]){1, 4} : (int[]){4, 1});
    w = hvt_weight_matmul(m, w, pick(0, 1) ? a : b);
    w = hvt_combine(m, HVT_ADD, w, hvt_weight_sum(m, a, (bool[]){pick(0, 1), true}));
    w = hvt_combine(m, HVT_SUB, w, b);
    return hvt_linear_by(m, hvt_avgpool(m, x), w, -1);
}

static hvt_value dropped_net(hvt_model *m, hvt_value x)
{
    return hvt_dropout(m, arguments_net(m, hvt_dropout_channels(m, x, 0.5)), 0.1);
}

static uint64_t tape_of(how by, build_fn *build, shape s)
{
    uint64_t tape = 0;
    net n;

    if (open_net(&n, by, build, s))
        tape = n.m->tape;
    close_net(&n);
    return tape;
}

TEST(each_argument_is_part_of_what_a_tape_computes)
{
    static const struct {
        build_fn *build;
        int arguments;
    } of[] = {{arguments_net, 24}, {upward_net, 16}, {products_net, 3}, {tensors_net, 7}};
    uint64_t tape[40];

    for (size_t k = 0; k < HVT_LEN(of); k++) {
        int n = 1;

        for (changed = -1; changed < n - 1; changed++) {
            tape[1 + changed] = tape_of(ref, of[k].build, (shape){2, 12, 11, 4});
            n = 1 + asked;
            for (int i = 0; i <= changed; i++)
                CHECK(tape[i] != tape[1 + changed], "argument %d is like %d", changed, i - 1);
        }
        CHECK(n == 1 + of[k].arguments, "%d arguments", n - 1);
    }
}

TEST(neither_dropout_nor_sizes_nor_devices_are)
{
    how cpu = {.device = "cpu", .threads = 1}, unfused = ref;
    const shape s = {2, 12, 11, 4};
    uint64_t tape;

    changed = -1;
    unfused.unfused = true;
    tape = tape_of(ref, arguments_net, s);
    CHECK(tape && tape == tape_of(ref, dropped_net, s), "dropout");
    CHECK(tape == tape_of(ref, arguments_net, (shape){1, 20, 30, 4}), "other sizes");
    CHECK(tape == tape_of(cpu, arguments_net, s), "cpu");
    CHECK(tape == tape_of(unfused, arguments_net, s), "unfused");
}

/* The layers that arguments_net() lacks. */
static hvt_value tokens_net(hvt_model *m, hvt_value x)
{
    static const float quarters[] = {0.25f, 0.5f, 0.75f, 1, 1.25f, 1.5f, 1.75f, 2, -1, -2, -3, 4, 5, 6, 7, 8};
    float own[48], other[48], mask[2 * 6 * 6];
    int bias[2 * 6 * 6];
    hvt_attention_opts o = {.heads = 2, .windows = 2, .ndim = 1, .dim = {7}, .bias = bias, .mask = mask};
    hvt_rotary_opts turn = {.first = 4, .vectors = 1, .width = 4, .apart = 2, .own = own, .other = other};
    hvt_value parts[3];

    for (int i = 0; i < 48; i++) {
        own[i] = quarters[i % 16];
        other[i] = quarters[i % 7];
    }
    for (int i = 0; i < 72; i++) {
        bias[i] = i % 7;
        mask[i] = quarters[i % 5];
    }
    hvt_name(m, "tokens");
    x = hvt_reshape(m, hvt_conv2d(m, x, 24, 1, 1, 0), 1, 12);
    x = hvt_rotary(m, x, &turn);
    hvt_name(m, "table");
    x = hvt_self_attention_with(m, x, &o);
    parts[0] = hvt_combine(m, HVT_MUL, x, hvt_mean_channels(m, x));
    parts[1] = hvt_add(m, x, hvt_constant(m, x, 1, 12, 8, (float[96]){1, 2, 3}));
    hvt_name(m, "start");
    parts[2] = hvt_add_embedding(m, hvt_zeros(m, x, 1, 12, 8), 0, 2, (int[]){12, 8}, 0.02f);
    x = hvt_concat(m, parts, 3);
    x = hvt_combine(m, HVT_MAXIMUM, hvt_amax(m, x, true, false, 3), hvt_max_groups(m, x, 3));
    hvt_name(m, "gate");
    x = hvt_combine_parameter(m, HVT_MUL, x, 0, NULL, 1);
    x = hvt_adaptive_pool(m, x, HVT_POOL_MAX, 1, 5);
    hvt_name(m, "head");
    return hvt_linear(m, hvt_flatten(m, x), 5);
}

static const char *zoo_name;

static hvt_value of_the_zoo(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, zoo_name, x, 10, NULL);
}

/* Checkpoints of earlier builds have these hashes. */
TEST(hashes_stay)
{
    static const struct {
        const char *name;
        uint64_t tape;
    } want[] = {{"resnet18", 0xfbe1316c835d9370},     {"resnet50", 0x4f6f6ef0a8977d71},
                {"resnet20", 0x407d649ef8acf1db},     {"resnext50_32x4d", 0xa149307544335d83},
                {"mobilenet_v2", 0x4cd3be99a825c1c3}, {"mlp", 0x51d6ed72047884f3}};
    uint64_t tape;

    changed = -1;
    tape = tape_of(ref, arguments_net, (shape){2, 12, 11, 4});
    CHECK(tape == 0x25d800a7f8a32ce3, "layers with arguments: %016" PRIx64, tape);
    tape = tape_of(ref, tokens_net, (shape){2, 3, 4, 3});
    CHECK(tape == 0x9a83ebb90e44764c, "layers of tokens: %016" PRIx64, tape);
    for (size_t i = 0; i < HVT_LEN(want); i++) {
        zoo_name = want[i].name;
        tape = tape_of(ref, of_the_zoo, (shape){1, 32, 32, 3});
        CHECK(tape == want[i].tape, "%s: %016" PRIx64, zoo_name, tape);
    }
}

TEST(a_layer_without_a_hash_is_refused)
{
    const hvt_layer_ops forgotten = {.name = "forgotten"};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK(!hvt__layer_begin(m, &forgotten, hvt_input(m, 2, 2, 1)) && m->mistake == HVT_E_UNSUPPORTED,
          "status %d", m->mistake);
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

int main(void)
{
    RUN(a_value_has_its_shape_at_once);
    RUN(nothing_is_read_after_its_lifetime);
    RUN(what_has_ended_is_poisoned);
    RUN(gradients_of_shared_parameters_add);
    RUN(a_shared_weight_is_final_only_after_its_last_reader);
    RUN(what_cannot_be_shared_is_refused);
    RUN(each_argument_is_part_of_what_a_tape_computes);
    RUN(neither_dropout_nor_sizes_nor_devices_are);
    RUN(hashes_stay);
    RUN(a_layer_without_a_hash_is_refused);
    return check_done();
}
