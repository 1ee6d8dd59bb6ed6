/*
 * User-defined nets: every layer that the zoo does not use, against PyTorch's losses and gradients, on every
 * device, in both row orders; invalid layers are refused.
 */
#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where golden/ is; Meson says so */
#endif

#include "own_nets.h"

enum { STEPS = 10 };

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
        for (int i = 0; k < NETS && (i == 0 || way(i - 1, &by)); i++)
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

    for (int k = 0; k < NETS; k++)
        for (size_t i = 0; i < HVT_LEN(shapes); i++)
            for (int w = 0; way(w, &by); w++)
                check_same(nets[k].build, shapes[i], (shapes[i].batch + 1) / 2, ref, by, 2e-3);
}

TEST(nothing_of_theirs_is_read_after_its_lifetime)
{
    how by;

    for (int k = 0; k < NETS; k++)
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
    for (int k = 0; k < NETS; k++)
        check_same(nets[k].build, (shape){7, 9, 11, 3}, 6, (how){.device = "cpu", .threads = 1},
                   (how){.device = "cpu", .threads = 2}, 0);
}

/* The last net has transposed convolutions, whose forward pass is the backward pass of a convolution. */
TEST(an_image_s_logits_depend_neither_on_its_place_nor_on_others)
{
    enum { IMAGES = 5, SIZE = HEIGHT * WIDTH * 3 };
    static float images[IMAGES * SIZE], want[IMAGES * CLASSES], got[IMAGES * CLASSES];
    how by;

    for (int i = 0; i < IMAGES * SIZE; i++)
        images[i] = unit(5, "images", (size_t)i);
    for (int w = 0; way(w, &by); w++) {
        net n;

        if (open_net(&n, by, nets[NETS - 1].build, (shape){3, HEIGHT, WIDTH, 3})) {
            fill(&n);
            hvt__model_changed(n.m);
            CHECK_OK(hvt_model_predict(n.m, images, IMAGES, want));
            for (int i = 0; i < IMAGES; i++)
                CHECK_OK(hvt_model_predict(n.m, images + i * SIZE, 1, got + i * CLASSES));
            CHECK(!memcmp(got, want, sizeof want), "%s: %g, alone %g", way_name(by), want[0], got[0]);
        }
        close_net(&n);
    }
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

static hvt_value bad_shrink(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_HARDSHRINK, -1, 0);
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

static hvt_value no_pixel(hvt_model *m, hvt_value x)
{
    return hvt_gather_pixels(m, x, 1, 3, 1, (int[]){63, -1, 64});
}

static hvt_value no_indices(hvt_model *m, hvt_value x)
{
    return hvt_gather_pixels(m, x, 1, 3, 1, NULL);
}

static hvt_value many_indices(hvt_model *m, hvt_value x)
{
    return hvt_gather_pixels(m, x, 1024, 1024, 2, (int[]){0});
}

static hvt_value unlike_matrices(hvt_model *m, hvt_value x)
{
    return hvt_matmul(m, x, x, false);
}

static hvt_value bad_lines(hvt_model *m, hvt_value x)
{
    return hvt_reshape(m, x, 3, 21);
}

static hvt_value no_zeros(hvt_model *m, hvt_value x)
{
    return hvt_zeros(m, x, 1, 0, 3);
}

static hvt_value no_image(hvt_model *m, hvt_value x)
{
    return hvt_conv_transpose2d(m, x, &(hvt_conv2d_opts){.filters = 2, .kernel_h = 1, .top = 4, .bottom = 4});
}

static hvt_value wide_output_padding(hvt_model *m, hvt_value x)
{
    return hvt_conv_transpose2d(
        m, x, &(hvt_conv2d_opts){.filters = 2, .kernel_h = 2, .stride_h = 2, .bottom = -2, .dilation_h = 3});
}

static hvt_value interpolated(hvt_model *m, hvt_value x, hvt_interpolate_opts o)
{
    return hvt_interpolate(m, x, &o);
}

static hvt_value aligned_nearest(hvt_model *m, hvt_value x)
{
    return interpolated(m, x, (hvt_interpolate_opts){HVT_NEAREST, 4, 4, .align_corners = true});
}

static hvt_value aligned_average(hvt_model *m, hvt_value x)
{
    return interpolated(m, x,
                        (hvt_interpolate_opts){HVT_BICUBIC, 4, 4, .align_corners = true, .antialias = true});
}

static hvt_value bad_interpolation(hvt_model *m, hvt_value x)
{
    return interpolated(m, x, (hvt_interpolate_opts){(hvt_interpolation)4, 4, 4});
}

static hvt_value tiny_scale(hvt_model *m, hvt_value x)
{
    return interpolated(m, x, (hvt_interpolate_opts){HVT_BILINEAR, .scale_h = 0.1, .scale_w = 1});
}

static hvt_value bad_scale(hvt_model *m, hvt_value x)
{
    return interpolated(m, x, (hvt_interpolate_opts){HVT_BILINEAR, 4, 4, .scale_w = -1});
}

static hvt_value wide_reflection(hvt_model *m, hvt_value x)
{
    return hvt_pad_with(m, x, HVT_PAD_REFLECT, 7, 8, 0, 0);
}

static hvt_value circular_crop(hvt_model *m, hvt_value x)
{
    return hvt_pad_with(m, x, HVT_PAD_CIRCULAR, 8, 0, -1, 0);
}

static hvt_value bad_padding(hvt_model *m, hvt_value x)
{
    return hvt_pad_with(m, x, (hvt_padding)3, 1, 0, 0, 0);
}

static hvt_value odd_pixel_shuffle(hvt_model *m, hvt_value x)
{
    return hvt_pixel_shuffle(m, x, 2);
}

static hvt_value odd_pixel_unshuffle(hvt_model *m, hvt_value x)
{
    return hvt_pixel_unshuffle(m, x, 3);
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
        {bad_shrink, "layer hardshrink1 (hardshrink): a is -1; expected 0 or more"},
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
        {no_pixel, "layer gather1 (gather): index 2 is 64; expected -1 to 63"},
        {no_indices, "layer gather1 (gather): the indices are NULL"},
        {many_indices, "layer gather1 (gather): 2 terms of 1024x1024 pixels; expected 1 to 1048576 indices"},
        {unlike_matrices,
         "layer matmul1 (matmul): input0 is 8x8x3, input0 is 8x8x3: expected as many matrices"},
        {bad_lines, "layer reshape1 (reshape): cannot reshape to 3x21 pixels from 8x8"},
        {no_zeros, "layer zeros1 (zeros): 1x0x3 zeros; expected 1 to 1048576 in each dimension"},
        {no_image, "layer conv_transpose2d1 (conv_transpose2d): an output of 0x8; expected 1 to"},
        {wide_output_padding,
         "0 above, 0 left, -2 below, 0 right: padding must be 0 to 1048576 (below and right at least"},
        {aligned_nearest, "layer interpolate1 (interpolate): align_corners and antialias are for bilinear"},
        {aligned_average, "layer interpolate1 (interpolate): align_corners with antialias; expected one"},
        {bad_interpolation, "layer interpolate1 (interpolate): an interpolation of kind 4; expected 0 to 3"},
        {tiny_scale, "layer interpolate1 (interpolate): an output of 0x8; expected 1 to"},
        {bad_scale, "layer interpolate1 (interpolate): a scale of -1; expected 0, or"},
        {wide_reflection, "layer border1 (border): padding of 7 and 8 rows, 0 and 0 columns around 8x8x3; "
                          "expected 0 to 7 rows"},
        {circular_crop, "8 and 0 rows, -1 and 0 columns around 8x8x3; expected 0 to 8 columns"},
        {bad_padding, "layer border1 (border): a padding of kind 3; expected 0 to 2"},
        {odd_pixel_shuffle, "layer shuffle1 (shuffle): a pixel shuffle by 2 of 3 channels; expected"},
        {odd_pixel_unshuffle, "layer transpose1 (transpose): a pixel unshuffle by 3 of 8x8x3; expected"},
        {bad_function, "is unknown; there are 0 to "},
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
    static const struct {
        build_fn *build;
        const char *part;
    } nets_of[] = {{functions, "layer affine2 (affine): device ref does not compute it"},
                   {binary, "layer sigmoid4 (sigmoid): device ref"},
                   {moves, "layer slice2 (slice): device ref"},
                   {norms, "layer ln1 (layernorm): device ref"},
                   {upward, "layer interpolate6 (interpolate): device ref"}};
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t k = 0; dev && k < HVT_LEN(nets_of); k++) {
        const hvt_device_ops *own = dev->ops;
        hvt_device_ops poor = *own;
        hvt_model *m = NULL;

        memset(&poor.general, 0, sizeof poor.general);
        memset(&poor.resample, 0, sizeof poor.resample);
        dev->ops = &poor;
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_FAILS(hvt_model_plan(m, 2, nets_of[k].build(m, hvt_input(m, HEIGHT, WIDTH, 3))), E_UNSUPPORTED,
                    nets_of[k].part);
        hvt_model_free(&m);
        dev->ops = own;
    }
    hvt_device_close(&dev);
}

TEST(products_of_two_values_count_as_multiply_adds)
{
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt__layer_facts facts;
    hvt_value x;

    CHECK_OK(hvt_device_open("cpu", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    x = hvt_input(m, 5, 8, 3); /* five matrices of 8x3 */
    CHECK_OK(hvt_model_plan(m, 2, hvt_linear(m, hvt_avgpool(m, hvt_matmul(m, x, x, true)), 4)));
    CHECK(hvt__model_describe(m, 1, &facts) && facts.multiply_adds == 5 * 8 * 8 * 3, "%s: %lld multiply-adds",
          facts.name, (long long)facts.multiply_adds);
    hvt_model_free(&m);
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
    RUN(an_image_s_logits_depend_neither_on_its_place_nor_on_others);
    RUN(what_cannot_be_built_is_refused);
    RUN(a_device_that_does_not_compute_a_layer_says_so);
    RUN(products_of_two_values_count_as_multiply_adds);
    return check_done();
}
