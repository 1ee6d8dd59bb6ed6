/*
 * Gradients of ties, and at the bounds of functions, are PyTorch's: torch.max(dim) gives all to the first
 * maximum, torch.amax shares equally, a clamp gives 0. Compared with plain loops over small whole numbers, on
 * every device, order of rows and type.
 */
#include "heap.h"
#include "nets.h"

enum { MOST = 256 };

static uint64_t drawn;

static int between(int low, int high)
{
    return low + (int)hvt__below(hvt__draw(SEED, 21, 0, drawn++), (uint32_t)(high - low + 1));
}

/* What the net at hand does with its values, which are a parameter of [H*W,C]. */
static struct {
    bool over_h, over_w, first, clamps;
    int groups;
    hvt_map map;
    int h, w, c;
} is;

/* The logit of element (h, w, c): they are in the order C, H, W. */
static int logit_of(int h, int w, int c)
{
    const int high = is.over_h ? 1 : is.h, wide = is.over_w ? 1 : is.w;
    const int channel = is.clamps ? c : c % (is.c / is.groups);

    return (channel * high + (is.over_h ? 0 : h)) * wide + (is.over_w ? 0 : w);
}

static int logits_count(void)
{
    return (is.over_h ? 1 : is.h) * (is.over_w ? 1 : is.w) * (is.clamps ? is.c : is.c / is.groups);
}

static hvt_value net_of(hvt_model *m, hvt_value x)
{
    hvt_name(m, "values");
    x = hvt_add_embedding(m, x, 0, 2, (int[]){is.h * is.w, is.c}, 0);
    if (is.clamps)
        x = hvt_apply(m, x, is.map.f, is.map.a, is.map.b);
    else if (is.first)
        x = hvt_max_groups(m, x, is.groups);
    else
        x = hvt_amax(m, x, is.over_h, is.over_w, is.groups);
    CHECK_OK(hvt_model_set_loss(m, &(hvt_loss_opts){.kind = HVT_LOSS_MSE}));
    x = hvt_flatten(m, x);
    hvt_name(m, "fc");
    return hvt_linear(m, x, logits_count());
}

/* The gradient of each element of x [H,W,C], of the sum of logit i * (i + 1). */
static void plain_loops(const float *x, double *ret_g)
{
    for (int k = 0; k < is.h * is.w * is.c; k++) {
        const int logit = logit_of(k / is.c / is.w, k / is.c % is.w, k % is.c);
        int larger = 0, equal = 0, before = 0;

        for (int i = 0; i < is.h * is.w * is.c; i++) {
            if (logit_of(i / is.c / is.w, i / is.c % is.w, i % is.c) != logit)
                continue;
            larger += x[i] > x[k];
            equal += x[i] == x[k];
            before += x[i] == x[k] && i < k;
        }
        ret_g[k] = larger || (is.first && before) ? 0 : (logit + 1.0) / (is.first ? 1 : equal);
        if (is.clamps)
            ret_g[k] = x[k] > is.map.a && x[k] < is.map.b ? logit + 1 : 0;
    }
}

static void check_net(how by, const float *x)
{
    enum { BATCH = 3 };
    const int count = is.h * is.w * is.c, logits = logits_count();
    double want[MOST];
    float dlogits[BATCH * MOST], got[MOST];
    net n;

    plain_loops(x, want);
    for (int i = 0; i < BATCH * logits; i++)
        dlogits[i] = (float)(i % logits + 1);
    if (open_net(&n, by, net_of, (shape){BATCH, is.h, is.w, is.c})) {
        const double unit = by.type == HVT_F32 ? 0x1p-22 : by.type == HVT_F16 ? 0x1p-9 : 0x1p-6;
        float fc[MOST * MOST / 4] = {0};

        memset(n.batch.images.data, 0, hvt_tensor_count(&n.batch.images) * hvt_dtype_size(by.type));
        n.ops->memory.release(n.dev, n.batch.labels.data);
        n.batch.labels.data = NULL;
        n.batch.count = 2;
        for (int i = 0; i < logits; i++)
            fc[i * logits + i] = 1;
        CHECK_OK(hvt_model_set(n.m, "fc.weight", fc, (size_t)(logits * logits)));
        CHECK_OK(hvt_model_set(n.m, "values", x, (size_t)count));
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt_model_backward_from(n.m, dlogits, 0, NULL, NULL));
        CHECK_OK(hvt__model_export(n.m, &n.m->param[n.m->nparam_tensors - 1], n.m->grads, got));
        for (int k = 0; k < count; k++)
            CHECK(fabs(got[k] - 2 * want[k]) <= 4 * unit * want[k],
                  "%s in %s: %dx%dx%d over h %d, w %d, %d groups%s: element %d, %g, has %g, not %g",
                  way_name(by), hvt_dtype_name(by.type), is.h, is.w, is.c, is.over_h, is.over_w, is.groups,
                  is.first ? ", first" : "", k, (double)x[k], (double)got[k], 2 * want[k]);
    }
    close_net(&n);
}

static void everywhere(const float *x)
{
    how by;

    for (int t = 0; t < 3; t++) {
        how of_type = ref;

        of_type.type = (hvt_dtype[]){HVT_F32, HVT_F16, HVT_BF16}[t];
        check_net(of_type, x);
        for (int i = 0; way(i, &by); i++) {
            by.type = of_type.type;
            check_net(by, x);
        }
    }
}

static int divisor(int n)
{
    int d = between(1, n);

    while (n % d)
        d--;
    return d;
}

/* Of few whole numbers many are equal. */
static void draw_values(float *x, int count)
{
    const int most = between(0, 2);

    for (int i = 0; i < count; i++)
        x[i] = (float)between(-most, most);
}

static void draw_shape(void)
{
    is.h = between(1, 4), is.w = between(1, 5), is.c = between(1, 8);
    is.groups = divisor(is.c);
}

TEST(amax_shares_among_equals)
{
    float x[MOST];

    for (int i = 0; i < (heap_memcheck() ? 4 : 40); i++) {
        memset(&is, 0, sizeof is);
        draw_shape();
        is.over_h = between(0, 1), is.over_w = between(0, 1);
        if (is.groups == 1 && !(is.over_h && is.h > 1) && !(is.over_w && is.w > 1))
            continue;
        draw_values(x, is.h * is.w * is.c);
        everywhere(x);
    }
}

TEST(three_equal_ones_have_thirds)
{
    const float x[] = {1, 1, 1, 0};

    memset(&is, 0, sizeof is);
    is.h = is.w = 1, is.c = is.groups = 4;
    everywhere(x);
    is.groups = is.c = 1, is.w = 4, is.over_w = true;
    everywhere(x);
}

TEST(max_gives_all_to_the_first)
{
    float x[MOST];

    for (int i = 0; i < (heap_memcheck() ? 3 : 20); i++) {
        memset(&is, 0, sizeof is);
        draw_shape();
        is.first = true;
        draw_values(x, is.h * is.w * is.c);
        everywhere(x);
    }
}

/* More channels than a pooling notes the place of. */
TEST(many_channels_have_one_first_maximum)
{
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    enum { C = 1000 };
    float x[C] = {0}, got[C] = {0}, one = 1;
    hvt_batch batch = {0};
    hvt_value v;

    x[333] = x[334] = x[777] = 2;
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_OK(hvt_model_set_loss(m, &(hvt_loss_opts){.kind = HVT_LOSS_MSE}));
    v = hvt_add_embedding(m, hvt_input(m, 1, 1, C), 0, 1, (int[]){C}, 0);
    CHECK_OK(hvt_model_plan(m, 1, hvt_max_channels(m, v)));
    CHECK_OK(hvt_model_init(m, SEED));
    CHECK_OK(hvt_batch_set(m, &(hvt_arrays){.count = 1, .images = x, .type = HVT_F32}, &batch));
    CHECK_OK(hvt_model_forward(m, &batch, true));
    CHECK_OK(hvt_model_backward_from(m, &one, 0, NULL, NULL));
    CHECK_OK(hvt__model_export(m, &m->param[0], m->grads, got));
    for (int i = 0; i < C; i++)
        CHECK(got[i] == (i == 333), "channel %d has %g", i, (double)got[i]);
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

/* Bounds that 16 bits do not hold exactly, too: what is cut off has no gradient, whichever way they round. */
TEST(a_clamp_has_no_gradient_at_and_past_its_bounds)
{
    static const hvt_map maps[] = {{HVT_HARDTANH, -1, 1},        {HVT_HARDTANH, 0.1f, 0.7f},
                                   {HVT_HARDTANH, -0.3f, 0.3f},  {HVT_HARDTANH, 0.5f, 0.5f},
                                   {HVT_HARDTANH, -INFINITY, 1}, {HVT_HARDTANH, 0.2f, INFINITY}};

    for (size_t i = 0; i < HVT_LEN(maps); i++) {
        float x[] = {-4, -1, -0.5f, 0, 0.25f, 0.5f, 0.625f, 1, 2, 7};

        memset(&is, 0, sizeof is);
        is.h = is.w = is.groups = 1;
        is.c = HVT_LEN(x);
        is.clamps = true;
        is.map = maps[i];
        everywhere(x);
    }
}

int main(void)
{
    RUN(amax_shares_among_equals);
    RUN(three_equal_ones_have_thirds);
    RUN(max_gives_all_to_the_first);
    RUN(many_channels_have_one_first_maximum);
    RUN(a_clamp_has_no_gradient_at_and_past_its_bounds);
    return check_done();
}
