/* The decisions of a plan: mistakes of building, plans that run out of memory, recomputed outputs, arenas. */
#include "heap.h"
#include "nets.h"

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

static hvt_value wrong_groups(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_with(m, x, &(hvt_conv2d_opts){.filters = 4, .kernel_h = 3, .groups = 3});
}

static hvt_value wrong_dilation(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_with(m, x,
                           &(hvt_conv2d_opts){.filters = 4, .kernel_h = 3, .kernel_w = 5, .dilation_w = 3});
}

static hvt_value no_kernel(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_with(m, x, &(hvt_conv2d_opts){.filters = 4});
}

static hvt_value no_opts(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_with(m, x, NULL);
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

/* ---- computed weights ---- */

static hvt_value tensor(hvt_model *m, int ndim, int a, int b)
{
    return hvt_weight_parameter(m, ndim, (int[]){a, b, 1, 1}, 0, 1);
}

static hvt_value wrong_filter_sizes(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_by(m, x, tensor(m, 4, 4, 2), -1, &(hvt_conv2d_opts){.filters = 4, .kernel_h = 1});
}

static hvt_value two_biases(hvt_model *m, hvt_value x)
{
    return hvt_conv2d_by(m, x, tensor(m, 4, 4, 3), tensor(m, 1, 4, 0),
                         &(hvt_conv2d_opts){.filters = 4, .kernel_h = 1, .bias = true});
}

static hvt_value filters_of_images(hvt_model *m, hvt_value x)
{
    return hvt_linear_by(m, x, x, -1);
}

static hvt_value images_of_filters(hvt_model *m, hvt_value x)
{
    return hvt_add(m, x, tensor(m, 2, 4, 3));
}

static hvt_value mixed_operands(hvt_model *m, hvt_value x)
{
    return hvt_combine(m, HVT_MUL, tensor(m, 2, 4, 3), x);
}

static hvt_value wrong_broadcast(hvt_model *m, hvt_value x)
{
    return hvt_linear_by(m, x, hvt_combine(m, HVT_MUL, tensor(m, 2, 4, 3), tensor(m, 2, 2, 3)), -1);
}

static hvt_value wrong_view(hvt_model *m, hvt_value x)
{
    return hvt_linear_by(m, x, hvt_weight_view(m, tensor(m, 2, 4, 3), 1, 2, (int[]){4, 3}, NULL), -1);
}

static hvt_value overlapping_view(hvt_model *m, hvt_value x)
{
    return hvt_linear_by(m, x, hvt_weight_view(m, tensor(m, 2, 4, 3), 0, 2, (int[]){4, 3}, (int[]){1, 1}),
                         -1);
}

static hvt_value wrong_product(hvt_model *m, hvt_value x)
{
    return hvt_linear_by(m, x, hvt_weight_matmul(m, tensor(m, 2, 4, 2), tensor(m, 2, 3, 3)), -1);
}

static hvt_value shared_filters(hvt_model *m, hvt_value x)
{
    const hvt_value w = tensor(m, 2, 3, 3), y = hvt_linear_by(m, x, w, -1);

    hvt_share(m, y);
    return hvt_linear_by(m, y, w, -1);
}

TEST(the_first_mistake_is_reported_with_layer_and_shapes)
{
    static const struct {
        build_fn *build;
        const char *part;
    } bad[] = {
        {wrong_add, "layer sum (add): adds conv2d1, which is 4x4x4, and conv2d2, which is 4x4x5"},
        {wrong_window, "layer stem (conv2d): input 8x8x3 with padding 1 above, 1 left, 1 below, 1 right is "
                       "smaller than the 11x11 window of 11x11 taps"},
        {wrong_pool, "layer maxpool1 (maxpool): window 3x3, stride 2, padding 2"},
        {wrong_pool_window,
         "layer maxpool1 (maxpool): input 8x8x3 is smaller than the 15x15 window with padding "
         "1; it must be at least 13x13"},
        {wrong_filters, "layer conv2d1 (conv2d): 0 filters"},
        {wrong_stride, "layer conv2d1 (conv2d): 4 filters of 3x3, stride -1"},
        {wrong_groups,
         "layer conv2d1 (conv2d): 3 channels and 4 filters in 3 groups: both must be multiples"},
        {wrong_dilation,
         "layer conv2d1 (conv2d): input 8x8x3 with padding 0 above, 0 left, 0 below, 0 right is "
         "smaller than the 3x13 window of 3x5 taps"},
        {no_kernel, "layer conv2d1 (conv2d): 4 filters of 0x0"},
        {no_opts, "layer conv2d1 (conv2d): the hvt_conv2d_opts are NULL"},
        {wrong_linear, "layer fc (linear): input is 8x8x3; it must be 1x1xC"},
        {wrong_outputs, "layer linear2 (linear): 0 outputs"},
        {wrong_padding, "layer subsample1 (subsample): input 8x8x3 cannot be padded evenly to 6 channels"},
        {wrong_value, "layer relu1 (relu): reads value 9, but the model has 1 values so far"},
        {negative_value, "layer add1 (add): reads value -7"},
        {two_inputs, "layer input1 (input): a model has one input; layer input0"},
        {same_names, "layer twin (relu): layer 1 has this name already"},
        {long_name, "a layer's name has 200 characters"},
        {dead_end, "layer conv2d1 (conv2d): its output, 8x8x4, does not lead to the logits"},
        {wrong_filter_sizes,
         "layer conv2d2 (conv2d): its weight weight1 has 4 dimensions, [4,2,1,1]; expected 4, "
         "[4,3,1,1]"},
        {two_biases, "layer conv2d3 (conv2d): a bias of its own and computed weights"},
        {filters_of_images,
         "layer linear1 (linear): reads input0, which is computed from images; expected a tensor"},
        {images_of_filters,
         "layer add2 (add): reads weight1, which is a tensor of weights; expected a value of"},
        {mixed_operands,
         "layer weight_combine2 (weight_combine): reads input0, which is computed from images"},
        {wrong_broadcast, "layer weight_combine3 (weight_combine): dimension 2 from the end is "},
        {wrong_view,
         "layer weight_view2 (weight_view): elements 1 to 12 of a tensor of 12; expected 0 to 11"},
        {overlapping_view, "layer weight_view2 (weight_view): its strides let elements overlap"},
        {wrong_product, "; expected MxK and KxN"},
        {shared_filters, "layer linear3 (linear): it shares parameters, but its weights are computed"},
        {no_such_model, "unknown model 'resnet19'; the models are: resnet18, resnet34"},
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
        CHECK_FAILS(hvt_model_plan(m, 2, x), E_SHAPE, bad[i].part);
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

/* ---- memory ------------------------------------------------------------------------------------------ */

static int allocations_left;
static hvt_status (*alloc_of_device)(hvt_device *d, size_t bytes, void **ret_ptr);

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

        alloc_of_device = whole.ops->memory.alloc;
        scarce.memory.alloc = scarce_alloc;
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
    static build_fn *const nets[] = {small_net,     odd_net,       early_norm_net, plain_net,
                                     functions_net, separable_net, recomputed_net};
    static const shape shapes[] = {{5, 9, 11, 3}, {1, 8, 8, 3}, {33, 12, 4, 3}};
    const size_t n = heap_memcheck() ? 1 : HVT_LEN(shapes);

    for (size_t k = 0; k < HVT_LEN(nets); k++)
        for (size_t i = 0; i < n; i++)
            for (int dev = 0; dev < 4; dev++) {
                how again = {.device = dev ? "cpu" : "ref",
                             .threads = 1,
                             .type = (hvt_dtype)(dev ? dev - 1 : 0)},
                    keep = again;

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

static hvt_value deep_net_of_functions(hvt_model *m, hvt_value x)
{
    for (int i = 0; i < 6; i++)
        x = hvt_apply(m, hvt_conv2d(m, x, 8, 3, 1, 1), HVT_GELU, 0, 0);
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

TEST(a_net_of_norms_or_functions_keeps_little_more_than_their_inputs)
{
    static build_fn *const nets[] = {deep_net, deep_net_of_functions};
    const shape s = {8, 16, 16, 3};
    const size_t y = (size_t)8 * 16 * 16 * 8 * sizeof(float); /* of any of its layers */

    for (size_t i = 0; i < HVT_LEN(nets); i++) {
        net again, keeping;

        if (open_net(&again, ref, nets[i], s) &&
            open_net(&keeping, (how){.device = "ref", .threads = 1, .keeps = true}, nets[i], s)) {
            /* kept: 6 inputs. In backward one of them is spent, and y, dy and dx come to it */
            CHECK(again.m->acts_bytes >= 6 * y && again.m->acts_bytes < 9 * y, "%zu bytes, an output has %zu",
                  again.m->acts_bytes, y);
            CHECK(keeping.m->acts_bytes >= 12 * y && keeping.m->acts_bytes < 14 * y,
                  "%zu bytes, an output has %zu", keeping.m->acts_bytes, y);
            close_net(&keeping);
        }
        close_net(&again);
    }
}

TEST(blocks_that_live_together_lie_apart)
{
    enum { MOST = 60, TIMES = 40 };

    for (int round = 0; round < (heap_memcheck() ? 20 : 200); round++) {
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

int main(void)
{
    RUN(the_first_mistake_is_reported_with_layer_and_shapes);
    RUN(inputs_and_batches_out_of_range_are_refused);
    RUN(a_plan_that_fails_leaves_the_tape_as_it_was);
    RUN(outputs_made_again_take_less_memory_and_leave_the_bits);
    RUN(a_net_of_norms_or_functions_keeps_little_more_than_their_inputs);
    RUN(blocks_that_live_together_lie_apart);
    return check_done();
}
