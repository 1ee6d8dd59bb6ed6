/*
 * User-defined nets: every layer that the zoo does not use, against PyTorch's losses and gradients, on every
 * device, in both row orders; invalid layers are refused.
 */
#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where golden/ is; Meson says so */
#endif

#include "nets.h"

enum { STEPS = 10, BATCH = 5, HEIGHT = 9, WIDTH = 11, CLASSES = 4 };

/* ---- the nets of golden/make_layers.py -------------------------------------------------------------- */

static hvt_value conv(hvt_model *m, const char *name, hvt_value x, int filters, int size, int stride)
{
    hvt_name(m, "%s", name);
    return hvt_conv2d(m, x, filters, size, stride, size / 2);
}

static hvt_value linear(hvt_model *m, const char *name, hvt_value x, int outputs)
{
    hvt_name(m, "%s", name);
    return hvt_linear(m, x, outputs);
}

static hvt_value head(hvt_model *m, hvt_value x)
{
    return linear(m, "fc", hvt_avgpool(m, x), CLASSES);
}

static hvt_value functions(hvt_model *m, hvt_value x)
{
    static const hvt_map all[] = {{HVT_RELU, 0, 0},      {HVT_HARDTANH, -1.5f, 2}, {HVT_LEAKY_RELU, 0.2f, 0},
                                  {HVT_ELU, 0.7f, 0},    {HVT_SIGMOID, 0, 0},      {HVT_HARDSIGMOID, 0, 0},
                                  {HVT_HARDSWISH, 0, 0}, {HVT_SILU, 0, 0},         {HVT_GELU, 0, 0},
                                  {HVT_GELU_TANH, 0, 0}, {HVT_TANH, 0, 0},         {HVT_SOFTPLUS, 1.5f, 4}};
    hvt_value y;

    x = hvt_apply(m, conv(m, "conv", x, 8, 3, 1), HVT_AFFINE, 4, 0.1f);
    y = hvt_apply(m, x, all[0].f, 0, 0);
    for (size_t i = 1; i < HVT_LEN(all); i++)
        y = hvt_add(m, y, hvt_apply(m, x, all[i].f, all[i].a, all[i].b));
    return head(m, y);
}

static hvt_value parameter(hvt_model *m, const char *name, hvt_binary op, hvt_value x, int c)
{
    hvt_name(m, "%s", name);
    return hvt_combine_parameter(m, op, x, c > 1 ? 3 : 1, (int[]){c, 1, 1}, 1);
}

static hvt_value binary(hvt_model *m, hvt_value x)
{
    hvt_value first = conv(m, "conv", x, 8, 3, 1), s, g;

    s = hvt_apply(m, linear(m, "se", hvt_avgpool(m, first), 8), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, s, first);
    g = hvt_apply(m, conv(m, "gate", x, 1, 3, 1), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_DIV, hvt_combine(m, HVT_SUB, x, g), hvt_apply(m, s, HVT_AFFINE, 1, 1.5f));
    x = hvt_apply(m, hvt_combine(m, HVT_MUL, x, x), HVT_AFFINE, 1, 1);
    x = hvt_combine(m, HVT_DIV, hvt_apply(m, g, HVT_AFFINE, 1, 2), x);
    x = hvt_combine(m, HVT_ADD, x, first);
    x = hvt_combine(m, HVT_SUB, x, hvt_apply(m, first, HVT_TANH, 0, 0));
    x = parameter(m, "shift", HVT_ADD, parameter(m, "scale", HVT_MUL, x, 8), 1);
    return head(m, parameter(m, "inverse", HVT_DIV, x, 8));
}

static hvt_value moves(hvt_model *m, hvt_value x)
{
    hvt_value a, b;

    x = conv(m, "conv", x, 12, 3, 1);
    a = hvt_slice(m, x, 0, 5);
    b = hvt_slice(m, x, 5, 7);
    x = hvt_pad(m, hvt_concat(m, (hvt_value[]){b, a, hvt_relu(m, a), a}, 4), 1, -2, -1, 2);
    x = conv(m, "conv2", hvt_shuffle(m, x, 2), 6, 3, 2);
    x = linear(m, "fc1", hvt_apply(m, hvt_flatten(m, x), HVT_SILU, 0, 0), 7);
    return linear(m, "fc", hvt_relu(m, x), CLASSES);
}

static hvt_value norms(hvt_model *m, hvt_value x)
{
    x = conv(m, "conv", x, 12, 3, 1);
    hvt_name(m, "ln1");
    x = hvt_relu(m, hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true));
    hvt_name(m, "ln2");
    x = hvt_layernorm(m, x, HVT_OVER_IMAGE, 1e-5f, true);
    hvt_name(m, "gn");
    x = hvt_apply(m, hvt_groupnorm(m, x, 3, 1e-5f, true), HVT_AFFINE, 1, 0.5f);
    x = hvt_groupnorm(m, hvt_combine(m, HVT_MUL, x, x), 12, 1e-5f, false);
    hvt_name(m, "bn");
    return head(m, hvt_apply(m, hvt_batchnorm_with(m, x, 1e-3f, 0.01f), HVT_HARDSWISH, 0, 0));
}

static hvt_value pools(hvt_model *m, hvt_value x)
{
    const hvt_pool_opts max = {{3, 2}, {2, 1}, {1, 0}, .ceil_mode = true}, narrow = {{1, 2}, {2, 1}};
    hvt_pool_opts all = {{3, 2}, {1, 2}, {1, 1}, .ceil_mode = true}, real = all;

    real.exclude_pad = true;
    x = conv(m, "conv", x, 7, 3, 1);
    x = hvt_add(m, hvt_pool_with(m, x, HVT_POOL_MAX, &max), hvt_pool_with(m, x, HVT_POOL_MEAN, &narrow));
    x = hvt_add(m, hvt_pool_with(m, x, HVT_POOL_MEAN, &all), hvt_pool_with(m, x, HVT_POOL_MEAN, &real));
    x = hvt_add(m, hvt_adaptive_pool(m, x, HVT_POOL_MEAN, 3, 7), hvt_adaptive_pool(m, x, HVT_POOL_MAX, 3, 7));
    return linear(m, "fc", hvt_flatten(m, hvt_adaptive_pool(m, x, HVT_POOL_MEAN, 5, 2)), CLASSES);
}

static hvt_value channels(hvt_model *m, hvt_value x)
{
    hvt_value gate;

    x = conv(m, "conv", x, 15, 3, 1);
    gate = hvt_concat(m, (hvt_value[]){hvt_mean_channels(m, x), hvt_max_channels(m, x)}, 2);
    gate = hvt_apply(m, conv(m, "gate", gate, 1, 3, 1), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, x, hvt_add(m, hvt_mean_channels(m, gate), hvt_max_channels(m, gate)));
    x = hvt_combine(m, HVT_SUB, x, hvt_mean_channels(m, x));
    return head(m, hvt_combine(m, HVT_MUL, x, x));
}

static hvt_value mixed(hvt_model *m, hvt_value x)
{
    hvt_value left, right, s, y;

    x = conv(m, "stem", x, 8, 3, 1);
    hvt_name(m, "bn1");
    x = hvt_apply(m, hvt_batchnorm(m, x), HVT_HARDTANH, 0, 6);
    left = hvt_slice(m, x, 0, 4);
    right = conv(m, "right", hvt_slice(m, x, 4, 4), 8, 1, 1);
    hvt_name(m, "bn2");
    right = hvt_apply(m, hvt_batchnorm(m, right), HVT_SILU, 0, 0);
    x = hvt_shuffle(m, hvt_concat(m, (hvt_value[]){left, right}, 2), 2);
    s = hvt_relu(m, linear(m, "squeeze", hvt_avgpool(m, x), 4));
    s = hvt_apply(m, linear(m, "excite", s, 12), HVT_HARDSIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, x, s);
    hvt_name(m, "ln");
    y = hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true);
    y = hvt_apply(m, conv(m, "mix", y, 12, 1, 1), HVT_GELU, 0, 0);
    return head(m, hvt_add(m, x, parameter(m, "layer_scale", HVT_MUL, y, 12)));
}

static hvt_value tokens(hvt_model *m, hvt_value x)
{
    hvt_value y, q, k;

    q = hvt_zeros(m, x, 1, 2, 12);
    x = hvt_pad(m, hvt_reshape(m, conv(m, "conv", x, 12, 3, 2), 1, 30), 0, 0, 2, 0);
    hvt_name(m, "tokens");
    q = hvt_add_embedding(m, q, 0, 3, (int[]){1, 2, 12}, 0.02f);
    x = hvt_add(m, x, hvt_pad(m, q, 0, 0, 0, 30));
    hvt_name(m, "positions");
    x = hvt_add_embedding(m, x, 0, 3, (int[]){1, 32, 12}, 0.02f);
    hvt_name(m, "ln");
    y = hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true);
    hvt_name(m, "attention.in_proj_");
    y = hvt_self_attention(m, hvt_linear_with(m, y, 36, true), 3, 0);
    hvt_name(m, "attention.out_proj");
    x = hvt_add(m, x, hvt_linear_with(m, y, 12, true));
    q = hvt_pad(m, x, 0, 0, 0, -30);
    hvt_name(m, "query");
    q = hvt_linear_with(m, q, 12, true);
    hvt_name(m, "key");
    k = hvt_linear_with(m, x, 12, false);
    y = hvt_attention(m, q, k, x, 2, 0.75f);
    y = hvt_add(m, y, hvt_attention(m, y, y, y, 1, 0));
    return head(m, hvt_layernorm(m, y, HVT_OVER_CHANNELS, 1e-5f, false));
}

/* 5x6 pixels in two windows of 5x3, which were rolled by 2 rows and 1 column. */
static hvt_value windows(hvt_model *m, hvt_value x)
{
    enum { H = 5, W = 6, WIDE = 3, WINDOWS = W / WIDE, T = H * WIDE, HEADS = 3, QUERIES = 2 };
    static int pixel[WINDOWS * T], bias[HEADS * T * T], table[2 * QUERIES * H * W];
    static float mask[WINDOWS * T * T];
    hvt_value y;

    for (int i = 0; i < WINDOWS * T; i++)
        pixel[i] = (i % T / WIDE + 2) % H * W + (i / T * WIDE + i % WIDE + 1) % W;
    for (int i = 0; i < T * T; i++) {
        const int a = i / T, b = i % T;

        for (int h = 0; h < HEADS; h++)
            bias[h * T * T + i] = ((a / WIDE - b / WIDE + 4) * 5 + a % WIDE - b % WIDE + 2) * HEADS + h;
        for (int w = 0; w < WINDOWS; w++) {
            const bool same = (a / WIDE >= 3) == (b / WIDE >= 3) &&
                              (w * WIDE + a % WIDE >= 5) == (w * WIDE + b % WIDE >= 5);

            mask[w * T * T + i] = same ? 0 : -100;
        }
    }
    for (int i = 0; i < 2 * QUERIES * H * W; i++)
        table[i] = i / (QUERIES * H * W) * 7 + (i / (H * W) % QUERIES * 3 + i % (H * W)) % 7;
    x = conv(m, "conv", x, 12, 3, 2);
    hvt_name(m, "qkv");
    y = hvt_linear_with(m, x, 36, true);
    hvt_name(m, "table");
    y = hvt_self_attention_with(m, y,
                                &(hvt_attention_opts){.heads = HEADS,
                                                      .windows = WINDOWS,
                                                      .pixel = pixel,
                                                      .ndim = 2,
                                                      .dim = {45, HEADS},
                                                      .bias = bias,
                                                      .mask = mask});
    hvt_name(m, "proj");
    x = hvt_reshape(m, hvt_add(m, x, hvt_linear_with(m, y, 12, true)), 1, H * W);
    y = hvt_pad(m, x, 0, 0, 0, QUERIES - H * W);
    hvt_name(m, "biases");
    y = hvt_attention_with(m, y, x, x,
                           &(hvt_attention_opts){.heads = 2, .ndim = 2, .dim = {2, 7}, .bias = table});
    return head(m, y);
}

static hvt_value turns(hvt_model *m, hvt_value x)
{
    const hvt_conv2d_opts line = {.filters = 12,
                                  .kernel_h = 1,
                                  .kernel_w = 3,
                                  .left = 1,
                                  .right = 1,
                                  .groups = 3,
                                  .bias = true,
                                  .line = true};
    static int bias[3 * 30 * 30];
    float more[59 * 3];
    hvt_value y, table;

    for (int i = 0; i < 3 * 30 * 30; i++)
        bias[i] = (i / 30 % 30 - i % 30 + 29) * 3 + i / 900;
    for (int i = 0; i < 59 * 3; i++)
        more[i] = (float)i / 100;

    x = conv(m, "conv", x, 12, 3, 2);
    y = hvt_transpose(m, x, 30, 12, 1, 1, 12);
    hvt_name(m, "mix1");
    y = hvt_apply(m, hvt_linear_with(m, y, 8, true), HVT_GELU, 0, 0);
    hvt_name(m, "mix2");
    y = hvt_linear_with(m, y, 30, true);
    x = hvt_reshape(m, hvt_add(m, x, hvt_transpose(m, y, 12, 30, 1, 5, 6)), 1, 30);
    hvt_name(m, "line");
    x = hvt_add(m, x, hvt_conv2d_with(m, x, &line));
    hvt_name(m, "qkv");
    y = hvt_transpose(m, hvt_linear_with(m, x, 36, true), 3, 3, 4, 1, 30);
    table = hvt_zeros(m, x, 1, 59, 3);
    hvt_name(m, "table");
    table = hvt_add_embedding(m, table, 0, 2, (int[]){59, 3}, 0.02f);
    table = hvt_combine(m, HVT_ADD, table, hvt_constant(m, x, 1, 59, 3, more));
    table = hvt_apply(m, hvt_apply(m, table, HVT_SIGMOID, 0, 0), HVT_AFFINE, 16, 0);
    y = hvt_attention_with(m, hvt_slice(m, y, 0, 12), hvt_slice(m, y, 12, 12), hvt_slice(m, y, 24, 12),
                           &(hvt_attention_opts){.heads = 3, .table = &table, .bias = bias});
    return head(m, hvt_add(m, x, y));
}

static hvt_value rotary(hvt_model *m, hvt_value x)
{
    enum { TOKENS = 30, WIDE = 4 };
    float own[2][TOKENS * WIDE], other[2][TOKENS * WIDE];
    hvt_value y;

    for (int i = 0; i < TOKENS * WIDE; i++)
        for (int near = 0; near < 2; near++) {
            const int c = i % WIDE, pair = near ? c / 2 : c % 2;
            const bool second = near ? c % 2 : c / 2;
            const double angle = i / WIDE * (pair ? 0.125 : 0.25);

            own[near][i] = (float)cos(angle);
            other[near][i] = (float)(second ? sin(angle) : -sin(angle));
        }
    x = conv(m, "conv", x, 12, 3, 2);
    hvt_name(m, "qkv");
    y = hvt_linear_with(m, x, 36, true);
    y = hvt_rotary(m, y, &(hvt_rotary_opts){0, 6, WIDE, 2, own[0], other[0]});
    x = hvt_add(m, x, hvt_self_attention(m, y, 3, 0));
    y = hvt_rotary(m, x, &(hvt_rotary_opts){2, 2, WIDE, 1, own[1], other[1]});
    return head(m, hvt_combine(m, HVT_MUL, y, x));
}

static const struct {
    const char *name;
    build_fn *build;
} nets[] = {{"Functions", functions}, {"Binary", binary},     {"Moves", moves},  {"Norms", norms},
            {"Pools", pools},         {"Channels", channels}, {"Mixed", mixed},  {"Tokens", tokens},
            {"Windows", windows},     {"Turns", turns},       {"Rotary", rotary}};

/* ---- against PyTorch -------------------------------------------------------------------------------- */

static uint64_t key(const char *name)
{
    uint64_t sum = 0;

    for (size_t i = 0; name[i]; i++)
        sum += (i + 1) * (unsigned char)name[i];
    return sum;
}

static float unit(int what, const char *name, size_t i)
{
    return 2 * hvt__unit(hvt__draw(SEED, (uint64_t)what, key(name), i)) - 1;
}

/* As fill() in golden/make_layers.py. */
static void fill(net *n)
{
    for (int i = 0; i < n->m->nparam_tensors; i++) {
        const hvt_param *p = &n->m->param[i];
        const size_t len = strlen(p->name);
        const bool bias = len >= 4 && !strcmp(p->name + len - 4, "bias");
        float *w = malloc(p->elements * sizeof *w);

        for (size_t k = 0; k < p->elements; k++)
            w[k] = p->ndim == 2 || p->ndim == 4
                       ? unit(3, p->name, k) * (float)(1 / sqrt((double)(p->elements / (size_t)p->dim[0])))
                       : 0.3f * unit(3, p->name, k) + (float)!bias;
        CHECK_OK(hvt__model_import(n->m, p, n->m->params, w));
        free(w);
    }
}

/* Lines "grad NAME DOT LENGTH" up to the next net. */
static int check_gradients(net *n, FILE *f, const char *net_name)
{
    char line[256], name[64];
    double dot, length;
    int count = 0;
    long at = ftell(f);

    for (; fgets(line, sizeof line, f) && sscanf(line, "grad %63s %lf %lf", name, &dot, &length) == 3;
         count++) {
        int i = 0;
        double got = 0, square = 0;
        float *g;

        while (i < n->m->nparam_tensors && strcmp(n->m->param[i].name, name))
            i++;
        CHECK(i < n->m->nparam_tensors, "%s has no %s", net_name, name);
        if (i == n->m->nparam_tensors)
            continue;
        g = canonical(n, i, n->m->grads);
        for (size_t k = 0; k < n->m->param[i].elements; k++) {
            got += (double)g[k] * unit(4, name, k);
            square += (double)g[k] * g[k];
        }
        free(g);
        CHECK(fabs(got - dot) <= 1e-4 * length && fabs(sqrt(square) - length) <= 1e-4 * length,
              "%s, gradient of %s: %.8g of length %.8g, PyTorch %.8g of %.8g", net_name, name, got,
              sqrt(square), dot, length);
    }
    fseek(f, at, SEEK_SET);
    return count;
}

static void check_steps(how by, build_fn *build, const char *name, const double *want, FILE *f)
{
    net n;

    if (open_net(&n, by, build, (shape){BATCH, HEIGHT, WIDTH, 3})) {
        hvt_model *m = n.m;
        size_t first = m->step_stats_count, count = m->arena_count - first;
        float *v = NULL;

        CHECK_OK(n.ops->memory.alloc(n.dev, count * sizeof *v, (void **)&v));
        fill(&n);
        for (int step = 0; step < STEPS; step++) {
            hvt_step_state state = {.lr = 0.02f, .grad_scale = 1.0f / BATCH, .apply = 1, .fresh = !step};
            hvt_sgd_args sgd = {.momentum = .9f, .step = &state};
            double loss;

            feed(&n, step * BATCH, BATCH);
            loss = train_loss(&n) / BATCH;
            CHECK(fabs(loss / want[step] - 1) <= (step ? 1e-3 : 1e-5),
                  "%s, %s, step %d: loss %.7f, PyTorch %.7f", name, way_name(by), step + 1, loss, want[step]);
            CHECK_OK(hvt_model_backward(m, NULL, NULL));
            if (!step)
                CHECK(check_gradients(&n, f, name) == m->nparam_tensors, "%s: not all gradients are compared",
                      name);
            CHECK_OK(n.ops->vector.sgd(n.dev, count, &sgd, (const float *[]){m->grads + first}, 1,
                                       m->params + first, v));
            hvt__model_changed(m);
        }
        n.ops->memory.release(n.dev, v);
    }
    close_net(&n);
}

/* Source: golden/layers.txt by PyTorch, in f64. */
TEST(losses_and_gradients_are_pytorchs)
{
    char path[512], line[512], name[32];
    FILE *f;
    int seen = 0;

    snprintf(path, sizeof path, "%s/golden/layers.txt", HVT_TESTS);
    f = fopen(path, "r");
    CHECK(f, "%s cannot be read", path);
    while (f && fgets(line, sizeof line, f)) {
        double want[STEPS];
        int at = 0, used = 0, k = 0;
        how by = ref;

        if (sscanf(line, "net %31s%n", name, &at) != 1)
            continue;
        for (int i = 0; i < STEPS && sscanf(line + at, "%lf%n", &want[i], &used) == 1; i++)
            at += used;
        while (k < (int)HVT_LEN(nets) && strcmp(nets[k].name, name))
            k++;
        CHECK(k < (int)HVT_LEN(nets), "no net %s here", name);
        for (int i = 0; k < (int)HVT_LEN(nets) && (i == 0 || way(i - 1, &by)); i++)
            check_steps(by, nets[k].build, name, want, f);
        seen++;
    }
    CHECK(seen == (int)HVT_LEN(nets), "%d nets", seen);
    if (f)
        fclose(f);
}

/* ---- the same on every device, and whatever is folded or kept ---------------------------------------- */

TEST(every_way_gives_the_same_gradients)
{
    static const shape shapes[] = {{1, 9, 11, 3}, {5, 9, 11, 3}, {18, 9, 11, 3}};
    how by;

    for (size_t k = 0; k < HVT_LEN(nets); k++)
        for (size_t i = 0; i < HVT_LEN(shapes); i++)
            for (int w = 0; way(w, &by); w++)
                check_same(nets[k].build, shapes[i], (shapes[i].batch + 1) / 2, ref, by, 2e-3);
}

TEST(nothing_of_theirs_is_read_after_its_lifetime)
{
    how by;

    for (size_t k = 0; k < HVT_LEN(nets); k++)
        for (int w = 0; way(w, &by); w++) {
            how poisoned = by;

            poisoned.poisons = true;
            check_same(nets[k].build, (shape){5, 9, 11, 3}, 4, by, poisoned, 0);
        }
}

static hvt_value scaled_logits(hvt_model *m, hvt_value x)
{
    x = conv(m, "second", conv(m, "first", x, 16, 3, 8), 16, 1, 1);
    return hvt_apply(m, head(m, x), HVT_AFFINE, 0.1f, 0);
}

/* The loss writes the gradient in forward, while it reads the logits; many a layout of memory hides that. */
TEST(logits_and_their_gradient_do_not_overlap)
{
    build_fn *const built[] = {scaled_logits, mixed, tokens, windows, turns};

    for (int t = 0; t < 16 * (int)HVT_LEN(built); t++) {
        net n;

        if (open_net(&n, ref, built[t / 16], (shape){1 + t % 16, HEIGHT, WIDTH, 3})) {
            const hvt_layer *l = &n.m->layer[n.m->logits];
            const char *y = l->y.data, *dy = l->dy.data;
            const size_t bytes = hvt_tensor_count(&l->y) * sizeof(float);

            CHECK(y + bytes <= dy || dy + bytes <= y, "case %d: %zu bytes at %p and %p", t, bytes,
                  (const void *)y, (const void *)dy);
        }
        close_net(&n);
    }
}

TEST(one_and_two_threads_give_the_same_bits)
{
    for (size_t k = 0; k < HVT_LEN(nets); k++)
        check_same(nets[k].build, (shape){7, 9, 11, 3}, 6, (how){.device = "cpu", .threads = 1},
                   (how){.device = "cpu", .threads = 2}, 0);
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static hvt_value flat_norm(hvt_model *m, hvt_value x)
{
    return hvt_batchnorm(m, hvt_relu(m, hvt_flatten(m, x)));
}

static hvt_value flat_sum(hvt_model *m, hvt_value x)
{
    hvt_value c = conv(m, "c", x, 192, 3, 1);

    return hvt_combine(m, HVT_MUL, hvt_avgpool(m, c), hvt_flatten(m, x));
}

static hvt_value flat_logits(hvt_model *m, hvt_value x)
{
    return hvt_flatten(m, x);
}

static hvt_value unlike(hvt_model *m, hvt_value x)
{
    return hvt_combine(m, HVT_SUB, x, hvt_slice(m, x, 0, 2));
}

static hvt_value long_parameter(hvt_model *m, hvt_value x)
{
    return hvt_combine_parameter(m, HVT_MUL, x, 1, (int[]){4}, 1);
}

static hvt_value wide_slice(hvt_model *m, hvt_value x)
{
    return hvt_slice(m, x, 1, 3);
}

static hvt_value odd_transpose(hvt_model *m, hvt_value x)
{
    return hvt_transpose(m, x, 5, 3, 1, 1, 1);
}

static hvt_value two_tables(hvt_model *m, hvt_value x)
{
    static const int bias[64 * 64] = {0};
    const hvt_attention_opts o = {.heads = 1, .ndim = 1, .dim = {1}, .table = &x, .bias = bias};

    return hvt_attention_with(m, x, x, x, &o);
}

static hvt_value no_constant(hvt_model *m, hvt_value x)
{
    return hvt_constant(m, x, 1, 0, 1, (float[]){0});
}

static hvt_value odd_line(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_with(m, x, &(hvt_conv2d_opts){.filters = 2, .kernel_h = 3, .line = true});
}

static hvt_value odd_shuffle(hvt_model *m, hvt_value x)
{
    return hvt_shuffle(m, x, 2);
}

static hvt_value cut_away(hvt_model *m, hvt_value x)
{
    return hvt_pad(m, x, -4, -4, 0, 0);
}

static hvt_value unlike_concat(hvt_model *m, hvt_value x)
{
    return hvt_concat(m, (hvt_value[]){x, hvt_avgpool(m, x)}, 2);
}

static hvt_value concat_of_nothing(hvt_model *m, hvt_value x)
{
    (void)x;
    return hvt_concat(m, NULL, 0);
}

static hvt_value bad_groups(hvt_model *m, hvt_value x)
{
    return hvt_groupnorm(m, x, 2, 1e-5f, true);
}

static hvt_value bad_eps(hvt_model *m, hvt_value x)
{
    return hvt_layernorm(m, x, HVT_OVER_CHANNELS, 0, true);
}

static hvt_value bad_momentum(hvt_model *m, hvt_value x)
{
    return hvt_batchnorm_with(m, x, 1e-5f, 1.5f);
}

static hvt_value bad_range(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_HARDTANH, 6, 0);
}

static hvt_value bad_slope(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_LEAKY_RELU, -1, 0);
}

static hvt_value bad_window(hvt_model *m, hvt_value x)
{
    return hvt_pool_with(m, x, HVT_POOL_MEAN, &(hvt_pool_opts){{3, 3}, {1, 1}, {2, 0}});
}

static hvt_value too_many_maxima(hvt_model *m, hvt_value x)
{
    return hvt_adaptive_pool(m, hvt_pad(m, x, 0, 0, 247, 246), HVT_POOL_MAX, 1, 2);
}

static hvt_value bad_heads(hvt_model *m, hvt_value x)
{
    return hvt_self_attention(m, conv(m, "c", x, 12, 1, 1), 3, 0);
}

static hvt_value unlike_keys(hvt_model *m, hvt_value x)
{
    return hvt_attention(m, x, conv(m, "c", x, 4, 1, 1), x, 1, 0);
}

static hvt_value windows_of(hvt_model *m, hvt_value x, const hvt_attention_opts *o)
{
    return hvt_attention_with(m, x, x, x, o);
}

static hvt_value odd_windows(hvt_model *m, hvt_value x)
{
    return windows_of(m, x, &(hvt_attention_opts){.heads = 1, .windows = 3});
}

static hvt_value pixel_twice(hvt_model *m, hvt_value x)
{
    int pixel[64] = {3, 1, 3};

    return windows_of(m, x, &(hvt_attention_opts){.heads = 1, .pixel = pixel});
}

static hvt_value bias_of_none(hvt_model *m, hvt_value x)
{
    int bias[64 * 64] = {[70] = 5};

    return windows_of(m, x, &(hvt_attention_opts){.heads = 1, .ndim = 1, .dim = {5}, .bias = bias});
}

static hvt_value infinite_mask(hvt_model *m, hvt_value x)
{
    float mask[64 * 64] = {[65] = -INFINITY};

    return windows_of(m, x, &(hvt_attention_opts){.heads = 1, .mask = mask});
}

static hvt_value no_options(hvt_model *m, hvt_value x)
{
    return windows_of(m, x, NULL);
}

static hvt_value no_factors(hvt_model *m, hvt_value x)
{
    return hvt_rotary(m, x, &(hvt_rotary_opts){.vectors = 1, .width = 2, .apart = 1});
}

static hvt_value wide_vectors(hvt_model *m, hvt_value x)
{
    const float factors[64 * 2] = {0};

    return hvt_rotary(m, x, &(hvt_rotary_opts){1, 2, 2, 1, factors, factors});
}

static hvt_value odd_pairs(hvt_model *m, hvt_value x)
{
    const float factors[64 * 3] = {0};

    return hvt_rotary(m, x, &(hvt_rotary_opts){0, 1, 3, 1, factors, factors});
}

static hvt_value infinite_factor(hvt_model *m, hvt_value x)
{
    const float factors[64 * 2] = {[9] = INFINITY};

    return hvt_rotary(m, x, &(hvt_rotary_opts){0, 1, 2, 1, factors, factors});
}

static hvt_value long_embedding(hvt_model *m, hvt_value x)
{
    return hvt_add_embedding(m, x, 60, 3, (int[]){1, 5, 3}, 0);
}

static hvt_value bad_lines(hvt_model *m, hvt_value x)
{
    return hvt_reshape(m, x, 3, 21);
}

static hvt_value no_zeros(hvt_model *m, hvt_value x)
{
    return hvt_zeros(m, x, 1, 0, 3);
}

static hvt_value bad_function(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_FUNCTIONS, 0, 0);
}

TEST(what_cannot_be_built_is_refused)
{
    static const struct {
        build_fn *build;
        const char *part;
    } bad[] = {
        {flat_norm, "layer batchnorm3 (batchnorm): reads relu2, a flattened value"},
        {flat_sum, "layer mul4 (mul): reads flatten2, a flattened value"},
        {flat_logits, "reads flatten1, a flattened value"},
        {unlike, "layer sub2 (sub): input0 is 8x8x3, slice1 is 8x8x2: neither broadcasts"},
        {long_parameter,
         "layer mul1 (mul): a parameter of 4 elements and an input of 8x8x3; expected 1 element, or 3"},
        {wide_slice, "layer slice1 (slice): cannot take 3 channels from channel 1 of 3"},
        {odd_shuffle, "layer shuffle1 (shuffle): 3 channels cannot be divided into 2 groups"},
        {odd_transpose, "layer transpose1 (transpose): 5 x 3 x 1 elements do not divide 8x8x3"},
        {two_tables, "layer attention1 (attention): a computed bias table; expected separate queries"},
        {no_constant, "layer constant1 (constant): a constant of 1x0x1; expected 1 to"},
        {odd_line, "layer conv2d1 (conv2d): a kernel of 3 rows; a 1-D convolution expects 1"},
        {cut_away,
         "layer pad1 (pad): padding of -4 and -4 rows, 0 and 0 columns around 8x8x3 leaves nothing"},
        {unlike_concat, "layer concat2 (concat): input0 is 8x8x3, avgpool1 is 1x1x3"},
        {concat_of_nothing, "0 values are concatenated"},
        {bad_groups, "layer groupnorm1 (groupnorm): 3 channels cannot be divided into 2 groups"},
        {bad_eps, "layer layernorm1 (layernorm): eps is 0"},
        {bad_momentum, "layer batchnorm1 (batchnorm): eps 1e-05 and momentum 1.5"},
        {bad_range, "layer hardtanh1 (hardtanh): bounds 6 and 0"},
        {bad_slope, "layer leaky_relu1 (leaky_relu): a is -1"},
        {bad_window, "layer avgpool1 (avgpool): windows of 3x3, stride 1x1, padding 2x0 over 8x8x3"},
        {too_many_maxima, "layer maxpool2 (maxpool): 8x2 maxima over 8x501x3: only windows"},
        {bad_heads, "layer attention2 (attention): 4 channels cannot be divided into 3 heads"},
        {unlike_keys, "layer attention2 (attention): queries are 8x8x3, keys 8x8x4, values 8x8x3"},
        {odd_windows,
         "layer attention1 (attention): 3 windows of 64 queries and 64 keys; expected equal numbers"},
        {pixel_twice, "layer attention1 (attention): token 2 has pixel 3; expected each of 0 to 63 once"},
        {bias_of_none, "layer attention1 (attention): bias index 70 is 5; the table has 5 elements"},
        {infinite_mask,
         "layer attention1 (attention): element 65 of the mask is -inf; expected a finite number"},
        {no_options, "layer attention1 (attention): the options are NULL"},
        {no_factors, "layer rotary1 (rotary): the factors are NULL"},
        {wide_vectors, "layer rotary1 (rotary): cannot take 2 vectors of 2 channels from channel 1 of 3"},
        {odd_pairs, "layer rotary1 (rotary): pairs of channels 1 apart in vectors of 3; twice the distance "
                    "must divide the vector"},
        {infinite_factor, "layer rotary1 (rotary): factors 9 are inf and inf; expected finite numbers"},
        {long_embedding,
         "layer add1 (add): an embedding of 5 rows of 3 elements does not fit at pixel 60 of 8x8x3"},
        {bad_lines, "layer reshape1 (reshape): cannot reshape to 3x21 pixels from 8x8"},
        {no_zeros, "layer zeros1 (zeros): 1x0x3 zeros; expected 1 to 1048576 in each dimension"},
        {bad_function, "function 17 is unknown; there are 0 to 16"},
    };
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        hvt_model *m = NULL;
        hvt_value x;

        CHECK_OK(hvt_model_create(dev, &m));
        x = bad[i].build(m, hvt_input(m, 8, 8, 3));
        if (bad[i].build != flat_logits)
            x = hvt_linear(m, hvt_avgpool(m, x), 4);
        CHECK_FAILS(hvt_model_plan(m, 2, x), E_SHAPE, bad[i].part);
        hvt_model_free(&m);
    }
    hvt_device_close(&dev);
}

TEST(a_device_that_does_not_compute_a_layer_says_so)
{
    static const char *const part[] = {
        "layer affine2 (affine): device ref does not compute it", "layer sigmoid4 (sigmoid): device ref",
        "layer slice2 (slice): device ref", "layer ln1 (layernorm): device ref"};
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t k = 0; dev && k < HVT_LEN(part); k++) {
        const hvt_device_ops *own = dev->ops;
        hvt_device_ops poor = *own;
        hvt_model *m = NULL;

        memset(&poor.general, 0, sizeof poor.general);
        dev->ops = &poor;
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_FAILS(hvt_model_plan(m, 2, nets[k].build(m, hvt_input(m, HEIGHT, WIDTH, 3))), E_UNSUPPORTED,
                    part[k]);
        hvt_model_free(&m);
        dev->ops = own;
    }
    hvt_device_close(&dev);
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    RUN(losses_and_gradients_are_pytorchs);
    RUN(every_way_gives_the_same_gradients);
    RUN(nothing_of_theirs_is_read_after_its_lifetime);
    RUN(logits_and_their_gradient_do_not_overlap);
    RUN(one_and_two_threads_give_the_same_bits);
    RUN(what_cannot_be_built_is_refused);
    RUN(a_device_that_does_not_compute_a_layer_says_so);
    return check_done();
}
