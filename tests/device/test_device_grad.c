/* device_grad: the gradients of ref, the reference of all other devices, equal central differences. */
#include "devices.h"

/* d(sum of dy*y)/d(along v) by central differences, to be held against sum of dx*v. forward: x -> y. */
typedef void forward_fn(void *ctx, const float *x, float *y);

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* v is a random direction of +-1 along a random fifth of the elements that `usable` allows; step is a power
 * of two, so that x + step*v is exact to f32. */
static void check_gradient(const char *what, forward_fn *forward, void *ctx, const float *x, size_t nx,
                           const float *dy, size_t ny, const float *dx, float step, double bound)
{
    float *moved = room(nx * 4), *v = room(nx * 4), *y = room(ny * 4);

    memset(y, 0, ny * 4); /* what a forward leaves alone */
    for (int t = 0; t < 20; t++) {
        double up, down, got, want, size = 0;

        for (size_t i = 0; i < nx; i++) {
            v[i] = between(0, 4) ? 0.0f : between(0, 1) ? 1.0f : -1.0f;
            moved[i] = x[i] + step * v[i];
        }
        forward(ctx, moved, y);
        up = dot(dy, y, ny);
        for (size_t i = 0; i < nx; i++)
            moved[i] = x[i] - step * v[i];
        forward(ctx, moved, y);
        down = dot(dy, y, ny);
        for (size_t i = 0; i < nx; i++)
            size += fabs((double)dx[i] * v[i]);
        got = dot(dx, v, nx);
        want = (up - down) / (2 * step);
        CHECK(fabs(got - want) <= bound * (size + 0.1), "%s: gradient %.7g, difference %.7g of %.3g", what,
              got, want, size);
    }
    free(moved);
    free(v);
    free(y);
}

typedef struct bn_ctx {
    hvt_bn_args a;
    const float *x, *gamma, *beta, *residual;
    float **vary; /* which of them is what forward varies */
    shape s;
    float *mask; /* y of the undisturbed forward: relu is linear where it does not switch */
} bn_ctx;

static void bn_forward(void *ctx, const float *in, float *y)
{
    bn_ctx *b = ctx;
    hvt_bn_args a = b->a;

    a.x = b->x;
    a.gamma = b->gamma;
    a.beta = b->beta;
    a.residual = b->residual;
    if (b->vary == (float **)&b->x)
        a.x = in;
    else if (b->vary == (float **)&b->gamma)
        a.gamma = in;
    else if (b->vary == (float **)&b->beta)
        a.beta = in;
    else
        a.residual = in;
    a.y = y;
    a.relu = false;
    CHECK_OK(ref->ops->matrix.bn_train(ref, &a));
    for (size_t i = 0; i < b->s.all; i++)
        y[i] = is_real(&b->s, i) && b->mask[i] > 0 ? y[i] : 0;
}

TEST(ref_batch_norm_gradients_equal_differences)
{
    for (int order = 0; order < 2; order++) {
        shape s = make_shape(order ? HVT_ORDER_HWN : HVT_ORDER_NHW, 6, 5, 4, 3);
        float *x = matrix(&s, 0.5f), *res = matrix(&s, 0), *gamma = floats(s.c), *beta = floats(s.c),
              *y = room(s.all * 4), *dy = matrix(&s, 0), *dx = room(s.all * 4), *dres = room(s.all * 4),
              mean[3], rstd[3], moments[6], dgamma[3], dbeta[3];
        bn_ctx b = {.s = s, .x = x, .gamma = gamma, .beta = beta, .residual = res, .mask = y};
        hvt_bn_grad_args g = {.rows = s.rows,
                              .c = s.c,
                              .x = x,
                              .y = y,
                              .dy = dy,
                              .gamma = gamma,
                              .mean = mean,
                              .rstd = rstd,
                              .dx = dx,
                              .dresidual = dres,
                              .dgamma = dgamma,
                              .dbeta = dbeta};
        hvt_bn_args a = {.rows = s.rows,
                         .c = s.c,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .residual = res,
                         .relu = true,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd,
                         .moments = moments};

        memset(dx, 0, s.all * 4);
        memset(dres, 0, s.all * 4);
        memset(y, 0, s.all * 4);
        CHECK_OK(ref->ops->matrix.bn_train(ref, &a));
        CHECK_OK(ref->ops->matrix.bn_backward(ref, &g));
        for (size_t i = 0; i < s.all; i++) /* what is not real takes no part below */
            if (!is_real(&s, i))
                dy[i] = x[i] = res[i] = dx[i] = dres[i] = 0;
        b.a = a;
        b.a.mean = room(12); /* scratch: the differences overwrite them */
        b.a.rstd = room(12);
        b.a.moments = room(24);
        b.vary = (float **)&b.x;
        check_gradient("x", bn_forward, &b, x, s.all, dy, s.all, dx, 0x1p-7f, 2e-3);
        b.vary = (float **)&b.residual;
        check_gradient("residual", bn_forward, &b, res, s.all, dy, s.all, dres, 0x1p-3f, 1e-5);
        b.vary = (float **)&b.gamma;
        check_gradient("gamma", bn_forward, &b, gamma, s.c, dy, s.all, dgamma, 0x1p-3f, 1e-5);
        b.vary = (float **)&b.beta;
        check_gradient("beta", bn_forward, &b, beta, s.c, dy, s.all, dbeta, 0x1p-3f, 1e-5);
        free(b.a.mean);
        free(b.a.rstd);
        free(b.a.moments);
        free(x);
        free(res);
        free(gamma);
        free(beta);
        free(y);
        free(dy);
        free(dx);
        free(dres);
    }
}

typedef struct conv_ctx {
    hvt_op *op;
    int real;
    const float *x, *w;
    void *ws;
    bool vary_w;
} conv_ctx;

static void conv_forward(void *ctx, const float *in, float *y)
{
    conv_ctx *c = ctx;

    CHECK_OK(ref->ops->conv.forward(c->op, c->real, c->vary_w ? c->x : in, c->vary_w ? in : c->w, y, c->ws));
}

TEST(ref_convolution_gradients_equal_differences)
{
    for (int t = 0; t < 40; t++) {
        const int groups = between(0, 1) ? 1 : between(2, 3);
        hvt_conv_desc d = {.order = t % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .n = between(1, 4),
                           .h = between(3, 7),
                           .w = between(3, 7),
                           .c = groups * between(1, groups > 1 ? 2 : 5),
                           .k = groups * between(1, groups > 1 ? 2 : 5),
                           .r = between(1, 3),
                           .s = between(1, 3),
                           .stride_h = between(1, 3),
                           .stride_w = between(1, 3),
                           .top = between(1, 2),
                           .left = between(0, 2),
                           .bottom = between(1, 2),
                           .right = between(2, 3),
                           .dilation_h = between(1, 2),
                           .dilation_w = between(1, 2),
                           .groups = groups};
        d.cx = d.c;
        int p = hvt__conv_height(&d), q = hvt__conv_width(&d);
        conv_ctx c = {.real = between(1, d.n)};
        shape in = make_shape(d.order, d.h * d.w, d.n, c.real, d.c),
              out = make_shape(d.order, p * q, d.n, c.real, d.k);
        float *x = matrix(&in, 0), *dy = matrix(&out, 0), *dx = floats(in.all), *dx2 = copied(dx, in.all), *w,
              *dw;
        size_t weights, bytes;

        CHECK_OK(ref->ops->conv.plan(ref, &d, &c.op, &weights, &bytes));
        CHECK(weights == (size_t)d.k * (d.c / groups) * d.r * d.s, "%zu weights", weights);
        c.ws = room(bytes);
        w = floats(weights);
        dw = room(weights * 4);
        CHECK_OK(ref->ops->conv.backward_x(c.op, c.real, w, dy, dx2, true, c.ws));
        for (size_t i = 0; i < in.all; i++)
            dx2[i] -= dx[i];
        CHECK_OK(ref->ops->conv.backward_x(c.op, c.real, w, dy, dx, false, c.ws));
        CHECK_OK(ref->ops->conv.backward_w(c.op, c.real, x, dy, dw, c.ws));
        check_near("dx added", 0, &in, in.all, dx2, dx, 1e-6);
        for (size_t i = 0; i < in.all; i++)
            if (!is_real(&in, i))
                x[i] = dx[i] = 0;
        for (size_t i = 0; i < out.all; i++)
            if (!is_real(&out, i))
                dy[i] = 0;
        c.x = x;
        c.w = w;
        check_gradient("conv x", conv_forward, &c, x, in.all, dy, out.all, dx, 0.25f, 1e-5);
        c.vary_w = true;
        check_gradient("conv w", conv_forward, &c, w, weights, dy, out.all, dw, 0.25f, 1e-5);
        hvt__op_free(c.op);
        free(c.ws);
        free(x);
        free(dy);
        free(dx);
        free(dx2);
        free(w);
        free(dw);
    }
}

typedef struct pool_ctx {
    hvt_op *op;
    int n;
    uint8_t *saved;
} pool_ctx;

static void pooling_forward(void *ctx, const float *x, float *y)
{
    pool_ctx *p = ctx;

    CHECK_OK(ref->ops->pooling.forward(p->op, p->n, x, y, p->saved));
}

TEST(ref_pooling_gradients_equal_differences)
{
    for (int t = 0; t < 40; t++) {
        hvt_pooling_desc d = random_pool();
        int p = d.mean ? 1 : hvt__conv_out(d.h, d.size, d.stride, d.pad),
            q = d.mean ? 1 : hvt__conv_out(d.w, d.size, d.stride, d.pad);
        size_t nx, ny, bytes;
        pool_ctx c = {.n = d.n};
        float *x, *dy, *dx;

        d.type = HVT_F32;
        d.c = between(1, 4);
        nx = (size_t)d.n * d.h * d.w * d.c;
        ny = (size_t)d.n * p * q * d.c;
        x = floats(nx);
        dy = floats(ny);
        dx = room(nx * 4);
        for (size_t i = 0; i < nx; i++) /* all different, far apart against the step */
            x[i] = (float)i;
        for (size_t i = nx - 1; i > 0; i--) {
            size_t j = draw() % (i + 1);
            float swap = x[i];

            x[i] = x[j];
            x[j] = swap;
        }
        CHECK_OK(ref->ops->pooling.plan(ref, &d, &c.op, &bytes));
        c.saved = room(bytes);
        pooling_forward(&c, x, dy);
        free(dy);
        dy = floats(ny);
        CHECK_OK(ref->ops->pooling.backward(c.op, d.n, c.saved, dy, dx, false));
        check_gradient("pool", pooling_forward, &c, x, nx, dy, ny, dx, 0.25f, d.mean ? 5e-3 : 1e-6);
        hvt__op_free(c.op);
        free(c.saved);
        free(x);
        free(dy);
        free(dx);
    }
}

typedef struct small_ctx {
    hvt_rows rows;
    int c;
    hvt_order order;
    const float *y0;
    const int32_t *labels;
    float *dlogits;
} small_ctx;

static void bias_forward(void *ctx, const float *b, float *y)
{
    small_ctx *c = ctx;

    memcpy(y, c->y0, (size_t)c->rows.blocks * c->rows.block * c->c * 4);
    CHECK_OK(ref->ops->matrix.bias_forward(ref, c->rows, c->c, HVT_F32, b, y));
}

static void xent_forward(void *ctx, const float *x, float *loss)
{
    small_ctx *c = ctx;
    int32_t place[5];
    float sums[HVT__SUMS];
    hvt_xent_args a = {.rows = c->rows,
                       .classes = c->c,
                       .logits = x,
                       .labels = c->labels,
                       .dlogits = c->dlogits,
                       .loss = loss,
                       .label_rank = place,
                       .sums = sums};

    CHECK_OK(ref->ops->matrix.xent(ref, &a));
}

static void subsample_forward(void *ctx, const float *x, float *y)
{
    small_ctx *c = ctx;

    CHECK_OK(ref->ops->matrix.subsample_forward(
        ref, &(hvt_subsample_desc){c->order, HVT_F32, 3, 5, 4, 2, 2, 7}, x, y));
}

TEST(ref_bias_loss_and_subsampling_gradients_equal_differences)
{
    int32_t labels[5] = {0, 6, 3, 3, 1};
    float *x = floats(35), *dx, ones[5] = {1, 1, 1, 1, 1};
    small_ctx c = {.rows = {1, 5, 5}, .c = 7, .labels = labels, .y0 = x};
    float *dy = floats(35), db[7], dlogits[35], loss[5];

    c.dlogits = dlogits;
    xent_forward(&c, x, loss);
    c.dlogits = NULL;
    check_gradient("loss", xent_forward, &c, x, 35, ones, 5, dlogits, 0x1p-5f, 2e-3);
    CHECK_OK(ref->ops->matrix.bias_backward(ref, c.rows, 7, HVT_F32, dy, db));
    check_gradient("bias", bias_forward, &c, x, 7, dy, 35, db, 0.25f, 1e-5);
    free(x);
    free(dy);

    for (int order = 0; order < 2; order++) {
        c.order = order ? HVT_ORDER_HWN : HVT_ORDER_NHW;
        x = floats(3 * 5 * 4 * 2);
        dy = floats(3 * 3 * 2 * 7);
        dx = floats(3 * 5 * 4 * 2);
        CHECK_OK(ref->ops->matrix.subsample_backward(
            ref, &(hvt_subsample_desc){c.order, HVT_F32, 3, 5, 4, 2, 2, 7}, dy, dx, false));
        check_gradient("subsample", subsample_forward, &c, x, 120, dy, 126, dx, 0.25f, 1e-5);
        free(x);
        free(dy);
        free(dx);
    }
}

/* ---- layers of one's own ---- */

typedef struct general_ctx {
    hvt_map map;
    size_t n;
    hvt_binary_args binary;
    hvt_norm_args norm;
    hvt_attention_args attention;
    int vary;
} general_ctx;

static void map_forward(void *ctx, const float *x, float *y)
{
    general_ctx *c = ctx;

    CHECK_OK(ref->ops->general.map_forward(ref, c->n, HVT_F32, &c->map, x, y));
}

TEST(ref_function_gradients_equal_differences)
{
    enum { N = 90 };

    for (int f = 0; f < HVT_FUNCTIONS; f++) {
        const bool above = f == HVT_LOG || f == HVT_POW;
        general_ctx c = {.map = {(hvt_function)f, f == HVT_HARDTANH ? -1.5f : 0.75f, 2}, .n = N};
        float x[N], y[N], dx[N], *dy = floats(N);

        for (int i = 0; i < N; i++) /* no kink is nearer than the step */
            x[i] = (float)(above ? i + 8 : i - N / 2) / 8 + 0.0625f;
        map_forward(&c, x, y);
        CHECK_OK(ref->ops->general.map_backward(ref, N, HVT_F32, &c.map,
                                                hvt__slope_from_x((hvt_function)f) ? x : y, dy, dx, false));
        check_gradient("function", map_forward, &c, x, N, dy, N, dx, 0x1p-7f, 2e-4);
        free(dy);
    }
}

static void binary_forward(void *ctx, const float *in, float *y)
{
    general_ctx *c = ctx;
    hvt_binary_args a = c->binary;

    *(c->vary ? &a.b : &a.a) = in;
    a.y = y;
    CHECK_OK(ref->ops->general.binary_forward(ref, &a));
}

TEST(ref_binary_gradients_equal_differences)
{
    enum { IMAGES = 3, PIXELS = 6, C = 4, N = IMAGES * PIXELS * C };
    enum { FIRST = 1, COUNT = 3 };
    static const int elements[] = {N, IMAGES * C, IMAGES * PIXELS, C, 1, COUNT * C};

    for (int t = 0; t < HVT_BINARIES * 2 * 5 * 2 + 4; t++) { /* the last ones: HVT_ADD, HVT_PER_ELEMENT */
        general_ctx c = {.binary = {.order = t % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                    .n = IMAGES,
                                    .real = IMAGES,
                                    .pixels = PIXELS,
                                    .c = C,
                                    .op = (hvt_binary)(t / 4 % HVT_BINARIES),
                                    .at = {FIRST, COUNT},
                                    .swapped = t / 2 % 2,
                                    .across = (hvt_across)(t / 4 / HVT_BINARIES)}};
        int nb = elements[c.binary.across];
        float *a = floats(N), *b = floats(nb), *dy = floats(N), da[N], db[N];
        hvt_binary_args k;

        for (int i = 0; i < N; i++) /* no two numbers are nearer than the step */
            a[i] = 2 + rintf(8 * a[i]) / 8;
        for (int i = 0; i < nb; i++)
            b[i] = 2.0625f + rintf(8 * b[i]) / 8;
        c.binary.a = a;
        c.binary.b = b;
        k = c.binary;
        k.dy = dy;
        k.da = da;
        k.db = db;
        CHECK_OK(ref->ops->general.binary_backward(ref, &k));
        check_gradient("first operand", binary_forward, &c, a, N, dy, N, da, 0x1p-6f, 1e-3);
        c.vary = 1;
        check_gradient("second operand", binary_forward, &c, b, nb, dy, N, db, 0x1p-6f, 1e-3);
        free(a);
        free(b);
        free(dy);
    }
}

static void norm_forward(void *ctx, const float *in, float *y)
{
    general_ctx *c = ctx;
    hvt_norm_args a = c->norm;

    if (c->vary == 0)
        a.x = in;
    else
        *(c->vary == 1 ? &a.gamma : &a.beta) = in;
    a.y = y;
    CHECK_OK(ref->ops->general.norm_forward(ref, &a));
}

TEST(ref_norm_gradients_equal_differences)
{
    enum { IMAGES = 3, PIXELS = 5, C = 6, N = IMAGES * PIXELS * C };

    for (int t = 0; t < 8; t++) {
        const int kind = t % 4; /* layer norm of pixels, of images; group norm of 2 and of 6 groups */
        const size_t params = kind == 1 ? PIXELS * C : C;
        float *x = floats(N), *gamma = floats(params), *beta = floats(params), *dy = floats(N), dx[N],
              dgamma[N], dbeta[N], mean[N], rstd[N], scratch[2][N];
        general_ctx c = {.norm = {.order = t / 4 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                  .n = IMAGES,
                                  .real = IMAGES,
                                  .pixels = PIXELS,
                                  .c = C,
                                  .groups = kind < 2    ? 1
                                            : kind == 2 ? 2
                                                        : 6,
                                  .per_pixel = kind == 0,
                                  .per_element = kind == 1,
                                  .eps = 0.1f,
                                  .x = x,
                                  .gamma = gamma,
                                  .beta = beta,
                                  .mean = mean,
                                  .rstd = rstd}};
        float y[N];
        hvt_norm_args k = c.norm;

        k.y = y;
        CHECK_OK(ref->ops->general.norm_forward(ref, &k));
        k.dy = dy;
        k.dx = dx;
        k.dgamma = dgamma;
        k.dbeta = dbeta;
        CHECK_OK(ref->ops->general.norm_backward(ref, &k));
        c.norm.mean = scratch[0]; /* the differences overwrite them */
        c.norm.rstd = scratch[1];
        check_gradient("norm x", norm_forward, &c, x, N, dy, N, dx, 0x1p-7f, 2e-3);
        c.vary = 1;
        check_gradient("norm weight", norm_forward, &c, gamma, params, dy, N, dgamma, 0x1p-3f, 1e-5);
        c.vary = 2;
        check_gradient("norm bias", norm_forward, &c, beta, params, dy, N, dbeta, 0x1p-3f, 1e-5);
        free(x);
        free(gamma);
        free(beta);
        free(dy);
    }
}

static void attention_forward(void *ctx, const float *in, float *y)
{
    general_ctx *c = ctx;
    hvt_attention_args a = c->attention;

    if (c->vary == 3)
        a.table = in;
    else
        *(c->vary == 0 ? &a.q.x : c->vary == 1 ? &a.k.x : &a.v.x) = in;
    a.y = y;
    CHECK_OK(ref->ops->general.attention_forward(ref, &a));
}

/* Queries have nq numbers in all, keys and values nk. */
static void check_attention(hvt_attention_args a, size_t nq, size_t nk)
{
    float *q = floats(nq), *k = floats(nk), *v = floats(nk), *dy = floats(nq),
          *table = floats((size_t)a.elements + 1), *dq = floats(nq), *dk = floats(nk), *dv = floats(nk),
          *dtable = floats((size_t)a.elements + 1);
    general_ctx c;

    a.q.pitch = a.k.pitch = a.v.pitch = a.heads * a.width;
    a.q.x = q;
    a.k.x = k;
    a.v.x = v;
    a.table = a.elements ? table : NULL;
    a.ws = room(ref->ops->general.attention_room(ref, &a));
    c = (general_ctx){.attention = a};
    a.dy = dy;
    a.q.dx = dq;
    a.k.dx = dk;
    a.v.dx = dv;
    a.dtable = a.elements ? dtable : NULL;
    CHECK_OK(ref->ops->general.attention_backward(ref, &a));
    check_gradient("queries", attention_forward, &c, q, nq, dy, nq, dq, 0x1p-6f, 1e-3);
    c.vary = 1;
    check_gradient("keys", attention_forward, &c, k, nk, dy, nq, dk, 0x1p-6f, 1e-3);
    c.vary = 2;
    check_gradient("values", attention_forward, &c, v, nk, dy, nq, dv, 0x1p-3f, 1e-5);
    c.vary = 3;
    if (a.elements)
        check_gradient("table", attention_forward, &c, table, (size_t)a.elements, dy, nq, dtable, 0x1p-6f,
                       1e-3);
    free(q);
    free(k);
    free(v);
    free(dy);
    free(table);
    free(dq);
    free(dk);
    free(dv);
    free(dtable);
    free(a.ws);
}

TEST(ref_attention_gradients_equal_differences)
{
    enum { IMAGES = 2, HEADS = 2, WIDTH = 3, C = HEADS * WIDTH, QUERIES = 4, KEYS = 5 };

    for (int order = 0; order < 2; order++)
        check_attention((hvt_attention_args){.order = order ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                             .n = IMAGES,
                                             .real = IMAGES,
                                             .heads = HEADS,
                                             .width = WIDTH,
                                             .windows = 1,
                                             .queries = QUERIES,
                                             .keys = KEYS,
                                             .scale = 0.75f},
                        IMAGES * QUERIES * C, IMAGES * KEYS * C);
}

TEST(ref_gradients_of_attention_in_windows_equal_differences)
{
    enum { IMAGES = 2, HEADS = 2, WIDTH = 3, C = HEADS * WIDTH, WINDOWS = 2, TOKENS = 3, ELEMENTS = 4 };
    enum { N = IMAGES * WINDOWS * TOKENS * C, BIASES = HEADS * TOKENS * TOKENS };
    static const int32_t pixel[WINDOWS * TOKENS] = {4, 0, 3, 1, 5, 2};
    static const int32_t bias[BIASES] = {0, 1, 2, 1, 0, 1, 2, 1, 0, 3, 3, 1, 0, 3, 3, 2, 0, 3};
    static const int32_t first[ELEMENTS + 1] = {0, 5, 10, 13, 18};
    static const int32_t where[BIASES] = {0, 4, 8, 12, 16, 1, 3, 5, 7, 11, 2, 6, 15, 9, 10, 13, 14, 17};
    static const float mask[WINDOWS * TOKENS * TOKENS] = {[1] = -100, [6] = -100, [11] = -1, [17] = 0.5f};

    for (int order = 0; order < 2; order++)
        check_attention((hvt_attention_args){.order = order ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                             .n = IMAGES,
                                             .real = IMAGES,
                                             .heads = HEADS,
                                             .width = WIDTH,
                                             .windows = WINDOWS,
                                             .queries = TOKENS,
                                             .keys = TOKENS,
                                             .scale = 0.75f,
                                             .pixel = pixel,
                                             .bias = bias,
                                             .mask = mask,
                                             .elements = ELEMENTS,
                                             .first = first,
                                             .where = where},
                        N, N);
}

int main(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    RUN(ref_batch_norm_gradients_equal_differences);
    RUN(ref_convolution_gradients_equal_differences);
    RUN(ref_pooling_gradients_equal_differences);
    RUN(ref_function_gradients_equal_differences);
    RUN(ref_binary_gradients_equal_differences);
    RUN(ref_norm_gradients_equal_differences);
    RUN(ref_attention_gradients_equal_differences);
    RUN(ref_gradients_of_attention_in_windows_equal_differences);
    RUN(ref_bias_loss_and_subsampling_gradients_equal_differences);
    hvt_device_close(&ref);
    return check_done();
}
