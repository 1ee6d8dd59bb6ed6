/*
 * Frozen parameters: the others' gradients are those of a model without frozen ones, to the bit; backward
 * ends early; frozen parameters cost no gradient memory. Also constants, which are always frozen.
 */
#include "nets.h"

static build_fn *const nets[] = {small_net, odd_net, early_norm_net, plain_net};
static const shape size = {3, 9, 11, 3};

/* Gradients of this name; NULL: it is frozen. */
static const float *gradient_of(const net *n, const float *g, const char *name)
{
    for (int i = 0; i < n->m->ntrained; g += n->m->param[i++].elements)
        if (!strcmp(n->m->param[i].name, name))
            return g;
    return NULL;
}

/* The spans that backward reports tile the gradients. */
static hvt_status next_span(void *ctx, size_t first, size_t end)
{
    size_t *mark = ctx;

    CHECK(first == *mark && end > first, "[%zu, %zu) after %zu", first, end, *mark);
    *mark = end;
    return HVT_OK;
}

/* a: nothing is frozen. */
static void compare(net *a, const float *x, how by, build_fn *build)
{
    net b;

    if (open_net(&b, by, build, size)) {
        size_t n, mark = 0, frozen = 0;
        float *y = pass(&b, &n);

        for (int i = 0; i < a->m->nparam_tensors; i++) {
            const hvt_param *p = &a->m->param[i];
            const float *want = gradient_of(a, x, p->name), *got = gradient_of(&b, y, p->name);

            CHECK(!got == hvt__freeze_fits(b.m, p->name), "%s: %s", by.freeze, p->name);
            CHECK(!got || !memcmp(got, want, p->elements * sizeof *got), "%s, --freeze %s: %s differs",
                  way_name(by), by.freeze, p->name);
            frozen += got ? 0 : p->elements;
        }
        CHECK(frozen && frozen == hvt_model_frozen(b.m), "%zu frozen, %zu said", frozen,
              hvt_model_frozen(b.m));
        CHECK(hvt_model_parameters(b.m) == hvt_model_parameters(a->m), "other parameters");
        CHECK(hvt_model_memory(b.m).gradients < hvt_model_memory(a->m).gradients, "gradients of all");
        CHECK(!memcmp(a->m->grads, b.m->grads, a->m->step_stats_count * sizeof *x), "other statistics");
        CHECK_OK(hvt_model_forward(b.m, &b.batch, true));
        CHECK_OK(hvt_model_backward(b.m, next_span, &mark));
        CHECK(mark == b.m->grad_count, "spans end at %zu of %zu", mark, b.m->grad_count);
        feed(&b, 0, 0);
        mark = 0;
        CHECK_OK(hvt_model_forward(b.m, &b.batch, true));
        CHECK_OK(hvt_model_backward(b.m, next_span, &mark));
        CHECK(mark == b.m->grad_count, "an empty batch's spans end at %zu", mark);
        free(y);
    }
    close_net(&b);
}

/* Each layer alone, all before it, and all behind it. */
TEST(the_others_gradients_keep_their_bits)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++)
        for (size_t k = 0; k < HVT_LEN(nets); k++) {
            char before[1000] = "", behind[1000];
            net a;

            by.freeze = NULL;
            if (open_net(&a, by, nets[k], size)) {
                size_t n;
                float *x = pass(&a, &n);

                for (int l = 0; l < a.m->logits; l++) {
                    if (a.m->layer[l].param[0] < 0)
                        continue;
                    by.freeze = a.m->layer[l].name;
                    compare(&a, x, by, nets[k]);
                    snprintf(before + strlen(before), sizeof before - strlen(before), "%s%s.",
                             *before ? "," : "", by.freeze);
                    by.freeze = before;
                    compare(&a, x, by, nets[k]);
                    *behind = 0;
                    for (int j = l + 1; j <= a.m->logits; j++)
                        if (a.m->layer[j].param[0] >= 0)
                            snprintf(behind + strlen(behind), sizeof behind - strlen(behind), "%s%s",
                                     *behind ? "," : "", a.m->layer[j].name);
                    by.freeze = behind;
                    compare(&a, x, by, nets[k]);
                }
                by.freeze = "linear";
                compare(&a, x, by, nets[k]);
                free(x);
            }
            close_net(&a);
        }
}

TEST(one_of_a_layers_two_parameters_may_be_frozen)
{
    static const char *const half[] = {"batchnorm2.weight", "batchnorm2.bias", "batchnorm6.b",
                                       "conv2d1",           "linear",          "batchnorm,conv2d"};
    net a;
    how by = {.device = "cpu", .threads = 1};

    if (open_net(&a, by, small_net, size)) {
        size_t n;
        float *x = pass(&a, &n);
        char name[HVT_NAME_MAX + 8];

        for (size_t i = 0; i < HVT_LEN(half); i++) {
            by.freeze = half[i];
            compare(&a, x, by, small_net);
        }
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s.%s", a.m->layer[a.m->logits].name, k ? "bias" : "weight");
            by.freeze = name;
            compare(&a, x, by, small_net);
        }
        free(x);
    }
    close_net(&a);
}

static int backwards;
static hvt_status (*of_device)(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws);
static hvt_status (*x_of_device)(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                 void *ws);

static hvt_status count_w(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    backwards++;
    return of_device(op, real, x, dy, dw, ws);
}

static hvt_status count_x(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add, void *ws)
{
    backwards++;
    return x_of_device(op, real, w, dy, dx, add, ws);
}

TEST(backward_ends_where_nothing_is_left_to_train)
{
    how by = {.device = "cpu", .threads = 1, .freeze = "conv2d,batchnorm"};
    size_t bytes[2] = {0};

    for (int k = 0; k < 2; k++) {
        net n;

        by.freeze = k ? NULL : "conv2d,batchnorm";
        if (open_net(&n, by, small_net, (shape){16, 9, 11, 3})) {
            of_device = n.ops->conv.backward_w;
            x_of_device = n.ops->conv.backward_x;
            n.spy.conv.backward_w = count_w;
            n.spy.conv.backward_x = count_x;
            backwards = 0;
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
            CHECK(k ? backwards > 10 : backwards == 1, "%d convolutions in backward", backwards);
            bytes[k] = hvt_model_memory(n.m).activations;
        }
        close_net(&n);
    }
    CHECK(bytes[0] < bytes[1] / 2, "%zu bytes of activations, %zu if all are trained", bytes[0], bytes[1]);
}

static bool constant; /* of the next net the divisor is */

static hvt_value divided_net(hvt_model *m, hvt_value x)
{
    const int dim[] = {6, 1, 1};

    x = hvt_relu(m, hvt_conv2d(m, x, 6, 3, 2, 1));
    hvt_name(m, "divisor");
    x = constant ? hvt_combine_constant(m, HVT_DIV, x, 3, dim, 2)
                 : hvt_combine_parameter(m, HVT_DIV, x, 3, dim, 2);
    return hvt_linear(m, hvt_avgpool(m, hvt_conv2d(m, x, 8, 3, 1, 1)), 5);
}

TEST(a_constant_is_not_trained_and_no_parameter)
{
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        float *x, *y;
        size_t n;
        net a, b;
        bool runs;

        constant = false;
        runs = open_net(&a, by, divided_net, size);
        constant = true;
        if (open_net(&b, by, divided_net, size) && runs) {
            x = pass(&a, &n);
            y = pass(&b, &n);
            for (int k = 0; k < a.m->nparam_tensors; k++) {
                const hvt_param *p = &a.m->param[k];
                const float *want = gradient_of(&a, x, p->name), *got = gradient_of(&b, y, p->name);

                CHECK(!got == !strcmp(p->name, "divisor"), "%s", p->name);
                CHECK(!got || !memcmp(got, want, p->elements * sizeof *got), "%s differs", p->name);
            }
            CHECK(b.m->nparam_tensors == a.m->nparam_tensors, "%d tensors", b.m->nparam_tensors);
            CHECK(hvt_model_parameters(b.m) == hvt_model_parameters(a.m) - 6, "%zu parameters",
                  hvt_model_parameters(b.m));
            CHECK(!hvt_model_frozen(b.m), "%zu frozen", hvt_model_frozen(b.m));
            free(x);
            free(y);
        }
        close_net(&a);
        close_net(&b);
    }
}

TEST(a_whole_name_is_no_prefix)
{
    how by = ref;
    net n;

    by.freeze = "conv2d1.weight$,batchnorm2.bias$";
    if (open_net(&n, by, small_net, size))
        CHECK(hvt__freeze_fits(n.m, "conv2d1.weight") && !hvt__freeze_fits(n.m, "conv2d1.weight2") &&
                  !hvt__freeze_fits(n.m, "conv2d1") && n.m->ntrained == n.m->nparam_tensors - 2,
              "%d of %d are trained", n.m->ntrained, n.m->nparam_tensors);
    close_net(&n);
}

/* Logits, and behind them the loss, of an evaluation. free() them. */
static float *evaluated(net *n)
{
    const size_t count = (size_t)n->batch.count * (size_t)n->classes;
    float *y = malloc((count + 1) * sizeof *y);

    CHECK_OK(hvt_model_forward(n->m, &n->batch, false));
    CHECK_OK(hvt_model_logits(n->m, y));
    y[count] = (float)loss_of(n);
    return y;
}

TEST(inference_keeps_the_bits_of_an_evaluation_and_less_memory)
{
    static build_fn *const all[] = {small_net,     odd_net,       early_norm_net, plain_net,  general_net,
                                    functions_net, separable_net, recomputed_net, weights_net};
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++)
        for (size_t k = 0; k < HVT_LEN(all); k++) {
            how inference = by;
            net a, b;

            inference.inference = inference.poisons = true;
            inference.freeze = k % 2 ? "conv2d" : NULL; /* says nothing more */
            if (open_net(&a, by, all[k], size) && open_net(&b, inference, all[k], size)) {
                const hvt_memory much = hvt_model_memory(a.m), less = hvt_model_memory(b.m);
                float *x = evaluated(&a), *y = evaluated(&b);

                CHECK(!memcmp(x, y, ((size_t)a.batch.count * (size_t)a.classes + 1) * sizeof *x),
                      "%s, net %zu: other logits", way_name(by), k);
                CHECK(less.activations < much.activations && less.gradients < much.gradients &&
                          less.parameters == much.parameters,
                      "%s, net %zu: %zu bytes of activations, %zu in training", way_name(by), k,
                      less.activations, much.activations);
                CHECK(hvt_model_frozen(b.m) == hvt_model_parameters(b.m), "%zu frozen",
                      hvt_model_frozen(b.m));
                CHECK_FAILS(hvt_model_forward(b.m, &b.batch, true), E_ARG, "inference");
                CHECK_FAILS(hvt_model_set_inference(b.m), E_ARG, "before hvt_model_plan()");
                free(x);
                free(y);
            }
            close_net(&b);
            close_net(&a);
        }
}

TEST(prefixes_that_cannot_be_are_refused)
{
    static const struct {
        const char *freeze, *why;
    } bad[] = {
        {"conv2d1,layer9", "no parameter's name begins with 'layer9'; they begin with conv2d1, batchnorm2, "},
        {"conv2d1$", "begins with 'conv2d1$'"},
        {"conv2d,batchnorm,linear", "nothing is left to train"}};
    static const char *const malformed[] = {",", "a,", ",a", "a,,b"};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    hvt_value x;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    x = small_net(m, hvt_input(m, 9, 11, 3));
    for (size_t i = 0; i < HVT_LEN(malformed); i++)
        CHECK_FAILS(hvt_model_freeze(m, malformed[i]), E_ARG, "separated by single commas");
    CHECK_FAILS(hvt_model_freeze(NULL, "a"), E_ARG, "a model");
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_OK(hvt_model_freeze(m, bad[i].freeze));
        CHECK_FAILS(hvt_model_plan(m, 2, x), E_ARG, bad[i].why);
    }
    CHECK_OK(hvt_model_freeze(m, "conv2d1"));
    CHECK_OK(hvt_model_freeze(m, "")); /* the last one holds */
    CHECK_OK(hvt_model_plan(m, 2, x));
    CHECK(!hvt_model_frozen(m), "%zu frozen", hvt_model_frozen(m));
    CHECK_FAILS(hvt_model_freeze(m, "conv2d1"), E_ARG, "before hvt_model_plan()");
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    RUN(the_others_gradients_keep_their_bits);
    RUN(one_of_a_layers_two_parameters_may_be_frozen);
    RUN(backward_ends_where_nothing_is_left_to_train);
    RUN(a_constant_is_not_trained_and_no_parameter);
    RUN(a_whole_name_is_no_prefix);
    RUN(inference_keeps_the_bits_of_an_evaluation_and_less_memory);
    RUN(prefixes_that_cannot_be_are_refused);
    return check_done();
}
