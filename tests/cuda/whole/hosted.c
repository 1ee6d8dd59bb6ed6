/*
 * The cuda device for tests that keep all data in host memory and read it: alloc gives host memory, and every
 * op copies what its arguments point to onto the GPU, runs there, waits, and copies back what it may have
 * written. So the tests of ref and cpu also test the arithmetic of cuda, unchanged; its queue, its graphs and
 * its own memory have separate tests.
 *
 * A program becomes hosted by linking this file and -Wl,--wrap=hvt_device_cuda: the registry then finds the
 * table below under the name "cuda". It runs on a GPU and on its double.
 */
#include "hosted.h"

extern const hvt_device_ops __real_hvt_device_cuda; /* the linker's names for --wrap */
extern const hvt_device_ops __wrap_hvt_device_cuda;

/* ---- life and memory ---------------------------------------------------------------------------- */

static hvt_status open_hosted(hvt_device *d, const hvt_device_opts *opts)
{
    hosted *h = calloc(1, sizeof *h);
    hvt_device *i;

    HVT_CHECK(h, E_MEM, "no memory for a device");
    d->state = h;
    h->inner = i = calloc(1, sizeof *i);
    HVT_CHECK(i, E_MEM, "no memory for a device");
    *i = *d;
    i->state = NULL;
    i->ops = &__real_hvt_device_cuda;
    HVT_TRY(i->ops->open(i, opts));
    d->isa = i->isa;
    d->threads = i->threads;
    return HVT_OK;
}

static void close_hosted(hvt_device *d)
{
    hosted *h = d->state;

    if (!h)
        return;
    if (h->inner) {
        if (h->inner->state)
            h->inner->ops->memory.release(h->inner, h->dev);
        h->inner->ops->close(h->inner);
    }
    free(h->inner);
    free(h->host);
    free(h);
    d->state = NULL;
}

static int channels_hosted(const hvt_device *d, hvt_dtype t, int c)
{
    return inner_of(d)->ops->channels(inner_of(d), t, c);
}

static void describe_hosted(const hvt_device *d, hvt_device_info *ret_info)
{
    inner_of(d)->ops->describe(inner_of(d), ret_info);
}

static hvt_status alloc_hosted(hvt_device *d, size_t bytes, void **ret_ptr)
{
    size_t all = (bytes + ALIGN) / ALIGN * ALIGN;
    void *p = all > bytes ? aligned_alloc(ALIGN, all) : NULL;

    (void)d;
    HVT_CHECK(p, E_MEM, "no memory for %zu bytes", bytes);
    *ret_ptr = memset(p, 0, all);
    return HVT_OK;
}

static void release_hosted(hvt_device *d, void *ptr)
{
    (void)d;
    free(ptr);
}

static hvt_status move_hosted(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes)
        memmove(dst, src, bytes);
    return HVT_OK;
}

static hvt_status zero_hosted(hvt_device *d, void *dst, size_t bytes)
{
    (void)d;
    if (bytes)
        memset(dst, 0, bytes);
    return HVT_OK;
}

static hvt_status mark_hosted(hvt_device *d, hvt_mark *ret_mark)
{
    (void)d;
    *ret_mark = 0;
    return HVT_OK;
}

static hvt_status await_hosted(hvt_device *d, hvt_mark mark)
{
    (void)d;
    (void)mark;
    return HVT_OK;
}

static hvt_status sync_hosted(hvt_device *d)
{
    return inner_of(d)->ops->queue.sync(inner_of(d));
}

/* ---- convolutions ------------------------------------------------------------------------------- */

typedef struct conv {
    hvt_op op;
    hvt_op *inner;
    hvt_conv_desc d; /* as the test wants it */
    size_t weights;  /* elements */
    void *ws;        /* the GPU's */
} conv;

static int image_x(stage *s, const conv *o, const void *x, bool written)
{
    return images(s, x, o->d.order, o->d.type, o->d.n, o->d.h, o->d.w, o->d.cx, written);
}

static int image_y(stage *s, const conv *o, const void *y, bool written)
{
    return images(s, y, o->d.order, o->d.type, o->d.n, hvt__conv_height(&o->d), hvt__conv_width(&o->d),
                  o->d.k, written);
}

static int filters(stage *s, const conv *o, const void *w)
{
    return in(s, w, o->weights * hvt_dtype_size(o->d.type));
}

static void free_conv(hvt_op *op)
{
    conv *o = (conv *)op;

    hvt__op_free(o->inner);
    inner_of(op->dev)->ops->memory.release(inner_of(op->dev), o->ws);
    free(o);
}

static hvt_status conv_plan_hosted(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op,
                                   size_t *ret_weights, size_t *ret_ws)
{
    hvt_device *i = inner_of(d);
    hvt_conv_desc images_first = *c;
    size_t bytes = 0;
    conv *o = calloc(1, sizeof *o);
    hvt_status s;

    HVT_CHECK(o, E_MEM, "no memory for a convolution");
    o->op = (hvt_op){d, free_conv};
    o->d = *c;
    images_first.order = HVT_ORDER_NHW;
    HVT_TRY_OR(fail, i->ops->conv.plan(i, &images_first, &o->inner, &o->weights, &bytes));
    HVT_TRY_OR(fail, i->ops->memory.alloc(i, bytes, &o->ws));
    *ret_op = &o->op;
    *ret_weights = o->weights;
    *ret_ws = 0;
    return HVT_OK;
fail:
    free_conv(&o->op);
    return s;
}

static void conv_permute_hosted(const hvt_op *op, bool to_file, float *mine, float *kcrs)
{
    inner_of(op->dev)->ops->conv.permute(((const conv *)op)->inner, to_file, mine, kcrs);
}

static hvt_status conv_forward_hosted(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    conv *o = (conv *)op;
    stage s = begin(op->dev);
    int ax = image_x(&s, o, x, false), aw = filters(&s, o, w), ay = image_y(&s, o, y, true);

    (void)ws;
    return RUN(s,
               s.h->inner->ops->conv.forward(o->inner, real, dev(&s, ax), dev(&s, aw), dev(&s, ay), o->ws));
}

static hvt_status conv_backward_x_hosted(hvt_op *op, int real, const void *w, const void *dy, void *dx,
                                         bool add, void *ws)
{
    conv *o = (conv *)op;
    stage s = begin(op->dev);
    int aw = filters(&s, o, w), ay = image_y(&s, o, dy, false), ax = image_x(&s, o, dx, true);

    (void)ws;
    return RUN(s, s.h->inner->ops->conv.backward_x(o->inner, real, dev(&s, aw), dev(&s, ay), dev(&s, ax), add,
                                                   o->ws));
}

static hvt_status conv_backward_w_hosted(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                         void *ws)
{
    conv *o = (conv *)op;
    stage s = begin(op->dev);
    int ax = image_x(&s, o, x, false), ay = image_y(&s, o, dy, false),
        aw = out(&s, dw, o->weights * sizeof *dw);

    (void)ws;
    s.sloppy = true; /* images past `real` are cleared */
    return RUN(
        s, s.h->inner->ops->conv.backward_w(o->inner, real, dev(&s, ax), dev(&s, ay), dev(&s, aw), o->ws));
}

/* ---- pooling ------------------------------------------------------------------------------------ */

typedef struct pool {
    hvt_op op;
    hvt_op *inner;
    hvt_pooling_desc d; /* as the test wants it */
    size_t saved;       /* bytes */
} pool;

static int pooled(stage *s, const pool *o, const void *y, bool written)
{
    const hvt_pooling_desc *d = &o->d;
    const hvt_pooling *inner = (const hvt_pooling *)o->inner;

    return images(s, y, d->order, d->type, d->n, inner->p, inner->q, d->c, written);
}

/* The place of each maximum, a byte each. */
static int places(stage *s, const pool *o, const void *saved, bool written)
{
    const hvt_pooling_desc *d = &o->d;
    int pixels = (int)(o->saved / ((size_t)d->n * (size_t)d->c));

    return matrix(s, saved, hvt__rows(d->order, pixels, d->n, d->n), (size_t)d->c, written);
}

static void free_pool(hvt_op *op)
{
    hvt__op_free(((pool *)op)->inner);
    free(op);
}

static hvt_status pool_plan_hosted(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op,
                                   size_t *ret_saved)
{
    hvt_device *i = inner_of(d);
    hvt_pooling_desc images_first = *p;
    pool *o = calloc(1, sizeof *o);
    hvt_status s;

    HVT_CHECK(o, E_MEM, "no memory for a pooling");
    o->op = (hvt_op){d, free_pool};
    o->d = *p;
    images_first.order = HVT_ORDER_NHW;
    HVT_TRY_OR(fail, i->ops->pooling.plan(i, &images_first, &o->inner, &o->saved));
    *ret_op = &o->op;
    *ret_saved = o->saved;
    return HVT_OK;
fail:
    free_pool(&o->op);
    return s;
}

static hvt_status pool_forward_hosted(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    pool *o = (pool *)op;
    stage s = begin(op->dev);
    int ax = images(&s, x, o->d.order, o->d.type, o->d.n, o->d.h, o->d.w, o->d.c, false),
        ay = pooled(&s, o, y, true), as = places(&s, o, saved, true);

    return RUN(s, s.h->inner->ops->pooling.forward(o->inner, real, dev(&s, ax), dev(&s, ay), dev(&s, as)));
}

static hvt_status pool_backward_hosted(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                       bool add)
{
    pool *o = (pool *)op;
    stage s = begin(op->dev);
    int as = places(&s, o, saved, false), ay = pooled(&s, o, dy, false),
        ax = images(&s, dx, o->d.order, o->d.type, o->d.n, o->d.h, o->d.w, o->d.c, true);

    return RUN(s,
               s.h->inner->ops->pooling.backward(o->inner, real, dev(&s, as), dev(&s, ay), dev(&s, ax), add));
}

/* ---- matrices ----------------------------------------------------------------------------------- */

static hvt_status bn_forward(hvt_device *d, const hvt_bn_args *a, HVT__OP_TYPE(matrix.bn_train) * op)
{
    const bool train = op != __real_hvt_device_cuda.matrix.bn_infer;
    stage s = begin(d);
    size_t row = (size_t)a->c * hvt_dtype_size(a->type), one = (size_t)a->c * sizeof(float);
    int x = matrix(&s, a->x, a->rows, row, false), gamma = in(&s, a->gamma, one), beta = in(&s, a->beta, one),
        mean = note(&s, a->mean, one, train, (turn){0}), rstd = note(&s, a->rstd, one, train, (turn){0}),
        residual = matrix(&s, a->residual, a->rows, row, false), y = matrix(&s, a->y, a->rows, row, true),
        moments = train ? out(&s, a->moments, 2 * one) : -1;
    bool ready = go(&s);
    hvt_bn_args b = *a;

    b.rows = one_block(a->rows);
    b.x = dev(&s, x);
    b.gamma = dev(&s, gamma);
    b.beta = dev(&s, beta);
    b.mean = dev(&s, mean);
    b.rstd = dev(&s, rstd);
    b.residual = dev(&s, residual);
    b.y = dev(&s, y);
    b.moments = dev(&s, moments);
    return end(&s, ready ? op(s.h->inner, &b) : HVT_OK);
}

static hvt_status bn_train_hosted(hvt_device *d, const hvt_bn_args *a)
{
    return bn_forward(d, a, __real_hvt_device_cuda.matrix.bn_train);
}

static hvt_status bn_infer_hosted(hvt_device *d, const hvt_bn_args *a)
{
    return bn_forward(d, a, __real_hvt_device_cuda.matrix.bn_infer);
}

static hvt_status bn_moments_hosted(hvt_device *d, const hvt_bn_args *a)
{
    return bn_forward(d, a, __real_hvt_device_cuda.matrix.bn_moments);
}

static hvt_status bn_gradient(hvt_device *d, const hvt_bn_grad_args *a, HVT__OP_TYPE(matrix.bn_backward) * op)
{
    stage s = begin(d);
    size_t row = (size_t)a->c * hvt_dtype_size(a->type), one = (size_t)a->c * sizeof(float);
    int x = matrix(&s, a->x, a->rows, row, false), y = matrix(&s, a->y, a->rows, row, false),
        dy = matrix(&s, a->dy, a->rows, row, false), gamma = in(&s, a->gamma, one),
        mean = in(&s, a->mean, one), rstd = in(&s, a->rstd, one), beta = in(&s, a->beta, one),
        dx = matrix(&s, a->dx, a->rows, row, true), dresidual = matrix(&s, a->dresidual, a->rows, row, true),
        dgamma = out(&s, a->dgamma, one), dbeta = out(&s, a->dbeta, one),
        dz = a->map ? matrix(&s, a->dz, a->rows, row, true) : -1, share = in(&s, a->share, one),
        slope = in(&s, a->slope, one);
    bool ready = go(&s);
    hvt_bn_grad_args b = *a;

    b.rows = one_block(a->rows);
    b.x = dev(&s, x);
    b.y = dev(&s, y);
    b.dy = dev(&s, dy);
    b.gamma = dev(&s, gamma);
    b.mean = dev(&s, mean);
    b.rstd = dev(&s, rstd);
    b.beta = dev(&s, beta);
    b.dx = dev(&s, dx);
    b.dresidual = dev(&s, dresidual);
    b.dgamma = dev(&s, dgamma);
    b.dbeta = dev(&s, dbeta);
    b.dz = dev(&s, dz);
    b.share = dev(&s, share);
    b.slope = dev(&s, slope);
    return end(&s, ready ? op(s.h->inner, &b) : HVT_OK);
}

static hvt_status bn_backward_hosted(hvt_device *d, const hvt_bn_grad_args *a)
{
    return bn_gradient(d, a, __real_hvt_device_cuda.matrix.bn_backward);
}

static hvt_status bn_sums_hosted(hvt_device *d, const hvt_bn_grad_args *a)
{
    return bn_gradient(d, a, __real_hvt_device_cuda.matrix.bn_sums);
}

static hvt_status bn_dx_hosted(hvt_device *d, const hvt_bn_grad_args *a)
{
    return bn_gradient(d, a, __real_hvt_device_cuda.matrix.bn_dx);
}

static hvt_status bn_update_hosted(hvt_device *d, const hvt_bn_update_args *a)
{
    stage s = begin(d);
    size_t one = (size_t)a->c * sizeof(float);
    int st = in(&s, a->step, sizeof *a->step), m = in(&s, a->moments, 2 * one), mean = out(&s, a->mean, one),
        var = out(&s, a->var, one);
    hvt_bn_update_args b = *a;
    bool ready = go(&s);

    b.step = dev(&s, st);
    b.moments = dev(&s, m);
    b.mean = dev(&s, mean);
    b.var = dev(&s, var);
    return end(&s, ready ? s.h->inner->ops->matrix.bn_update(s.h->inner, &b) : HVT_OK);
}

/* As many parts travel as reach to the last one that is read. */
static hvt_status bn_join(hvt_device *d, const hvt_bn_join_args *a, HVT__OP_TYPE(matrix.bn_join_sums) * op,
                          bool moments)
{
    stage s = begin(d);
    size_t two = 2 * (size_t)a->c * sizeof(float), last = 0;
    hvt_bn_join_args b = *a;
    int shard, part, joined, m;
    bool ready;

    for (int i = 0; i < a->shards; i++)
        last = (size_t)a->shard[i].place > last ? (size_t)a->shard[i].place : last;
    shard = in(&s, a->shard, (size_t)a->shards * sizeof *a->shard);
    part = in(&s, a->part, last * a->stride * sizeof(float) + two);
    joined = out(&s, a->joined, two);
    m = moments ? out(&s, a->moments, two) : -1;
    ready = go(&s);
    b.shard = dev(&s, shard);
    b.part = dev(&s, part);
    b.joined = dev(&s, joined);
    b.moments = dev(&s, m);
    return end(&s, ready ? op(s.h->inner, &b) : HVT_OK);
}

static hvt_status bn_join_moments_hosted(hvt_device *d, const hvt_bn_join_args *a)
{
    return bn_join(d, a, __real_hvt_device_cuda.matrix.bn_join_moments, true);
}

static hvt_status bn_join_sums_hosted(hvt_device *d, const hvt_bn_join_args *a)
{
    return bn_join(d, a, __real_hvt_device_cuda.matrix.bn_join_sums, false);
}

static hvt_status bias_forward_hosted(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b,
                                      void *y)
{
    stage s = begin(d);
    int ab = in(&s, b, (size_t)c * sizeof *b), ay = matrix(&s, y, rows, (size_t)c * hvt_dtype_size(t), true);

    return RUN(
        s, s.h->inner->ops->matrix.bias_forward(s.h->inner, one_block(rows), c, t, dev(&s, ab), dev(&s, ay)));
}

static hvt_status bias_backward_hosted(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                       float *db)
{
    stage s = begin(d);
    int ay = matrix(&s, dy, rows, (size_t)c * hvt_dtype_size(t), false),
        ab = out(&s, db, (size_t)c * sizeof *db);

    return RUN(s, s.h->inner->ops->matrix.bias_backward(s.h->inner, one_block(rows), c, t, dev(&s, ay),
                                                        dev(&s, ab)));
}

/* the spans of its x and y, and the same in the GPU's order */
static hvt_subsample_desc subsample_spans(stage *s, const hvt_subsample_desc *d, const void *x, const void *y,
                                          bool forward, int *ret_x, int *ret_y)
{
    int p = (d->h + d->stride - 1) / d->stride, q = (d->w + d->stride - 1) / d->stride;
    hvt_subsample_desc b = *d;

    *ret_x = images(s, (void *)x, d->order, d->type, d->n, d->h, d->w, d->c, !forward);
    *ret_y = images(s, (void *)y, d->order, d->type, d->n, p, q, d->k, forward);
    b.order = HVT_ORDER_NHW;
    return b;
}

static hvt_status subsample_forward_hosted(hvt_device *d, const hvt_subsample_desc *a, const void *x, void *y)
{
    stage s = begin(d);
    int ax, ay;
    hvt_subsample_desc b = subsample_spans(&s, a, x, y, true, &ax, &ay);

    return RUN(s, s.h->inner->ops->matrix.subsample_forward(s.h->inner, &b, dev(&s, ax), dev(&s, ay)));
}

static hvt_status subsample_backward_hosted(hvt_device *d, const hvt_subsample_desc *a, const void *dy,
                                            void *dx, bool add)
{
    stage s = begin(d);
    int ax, ay;
    hvt_subsample_desc b = subsample_spans(&s, a, dx, dy, false, &ax, &ay);

    return RUN(s, s.h->inner->ops->matrix.subsample_backward(s.h->inner, &b, dev(&s, ay), dev(&s, ax), add));
}

static hvt_status xent_hosted(hvt_device *d, const hvt_xent_args *a)
{
    stage s = begin(d);
    size_t rows = (size_t)a->rows.blocks * (size_t)a->rows.block,
           all = rows * (size_t)a->classes * hvt_dtype_size(a->type);
    int logits = in(&s, a->logits, all), labels = in(&s, a->labels, rows * sizeof *a->labels),
        dlogits = out(&s, a->dlogits, all), loss = out(&s, a->loss, rows * sizeof *a->loss),
        place = out(&s, a->label_rank, rows * sizeof *a->label_rank),
        sums = out(&s, a->sums, HVT__SUMS * sizeof *a->sums), scale = in(&s, a->scale, sizeof *a->scale);
    bool ready = go(&s);
    hvt_xent_args b = *a;

    b.logits = dev(&s, logits);
    b.labels = dev(&s, labels);
    b.dlogits = dev(&s, dlogits);
    b.loss = dev(&s, loss);
    b.label_rank = dev(&s, place);
    b.sums = dev(&s, sums);
    b.scale = dev(&s, scale);
    return end(&s, ready ? s.h->inner->ops->matrix.xent(s.h->inner, &b) : HVT_OK);
}

static hvt_status mse_hosted(hvt_device *d, const hvt_mse_args *a)
{
    stage s = begin(d);
    size_t rows = (size_t)a->rows.blocks * (size_t)a->rows.block, count = rows * (size_t)a->outputs,
           all = count * hvt_dtype_size(a->type);
    int y = in(&s, a->y, all), targets = in(&s, a->targets, count * sizeof *a->targets),
        dy = out(&s, a->dy, all), loss = out(&s, a->loss, rows * sizeof *a->loss),
        error = out(&s, a->error, rows * sizeof *a->error),
        sums = out(&s, a->sums, HVT__SUMS * sizeof *a->sums), scale = in(&s, a->scale, sizeof *a->scale);
    bool ready = go(&s);
    hvt_mse_args b = *a;

    b.y = dev(&s, y);
    b.targets = dev(&s, targets);
    b.dy = dev(&s, dy);
    b.loss = dev(&s, loss);
    b.error = dev(&s, error);
    b.sums = dev(&s, sums);
    b.scale = dev(&s, scale);
    return end(&s, ready ? s.h->inner->ops->matrix.mse(s.h->inner, &b) : HVT_OK);
}

/* ---- elements ----------------------------------------------------------------------------------- */

static hvt_status relu_forward_hosted(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    stage s = begin(d);
    size_t all = n * hvt_dtype_size(t);
    int ax = in(&s, x, all), ay = out(&s, y, all);

    return RUN(s, s.h->inner->ops->vector.relu_forward(s.h->inner, n, t, dev(&s, ax), dev(&s, ay)));
}

static hvt_status relu_backward_hosted(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                       void *dx, bool add)
{
    stage s = begin(d);
    size_t all = n * hvt_dtype_size(t);
    int ay = in(&s, y, all), ag = in(&s, dy, all), ax = out(&s, dx, all);

    return RUN(s, s.h->inner->ops->vector.relu_backward(s.h->inner, n, t, dev(&s, ay), dev(&s, ag),
                                                        dev(&s, ax), add));
}

static hvt_status add_hosted(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    stage s = begin(d);
    size_t all = n * hvt_dtype_size(t);
    int aa = in(&s, a, all), ab = in(&s, b, all), ay = out(&s, y, all);

    return RUN(s, s.h->inner->ops->vector.add(s.h->inner, n, t, dev(&s, aa), dev(&s, ab), dev(&s, ay)));
}

static hvt_status cast_hosted(hvt_device *d, size_t n, float by, const void *src, hvt_dtype st, void *dst,
                              hvt_dtype dt)
{
    stage s = begin(d);
    int from = in(&s, src, n * hvt_dtype_size(st)), to = out(&s, dst, n * hvt_dtype_size(dt));

    return RUN(s, s.h->inner->ops->vector.cast(s.h->inner, n, by, dev(&s, from), st, dev(&s, to), dt));
}

static hvt_status reduce_hosted(hvt_device *d, size_t n, hvt_dtype t, const void *const inputs[], int count,
                                void *ret)
{
    stage s = begin(d);
    const void *on_gpu[SPANS];
    int at[SPANS], to = out(&s, ret, n * hvt_dtype_size(t));
    bool ready;

    HVT_CHECK(count < SPANS, E_ARG, "%d inputs, at most %d", count, SPANS - 1);
    for (int i = 0; i < count; i++)
        at[i] = in(&s, inputs[i], n * hvt_dtype_size(t));
    ready = go(&s);
    for (int i = 0; i < count; i++)
        on_gpu[i] = dev(&s, at[i]);
    return end(&s,
               ready ? s.h->inner->ops->vector.reduce(s.h->inner, n, t, on_gpu, count, dev(&s, to)) : HVT_OK);
}

/* A host's op, that no GPU has. */
static hvt_status reduce_all_hosted(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count)
{
    HVT_TRY(reduce_hosted(d, n, t, (const void *const *)io, count, io[0]));
    for (int k = 1; k < count; k++)
        memcpy(io[k], io[0], n * hvt_dtype_size(t));
    return HVT_OK;
}

static hvt_status sgd_hosted(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                             float *w, float *v)
{
    stage s = begin(d);
    const float *on_gpu[SPANS];
    int at[SPANS], step = in(&s, a->step, sizeof *a->step), aw = out(&s, w, n * sizeof *w),
                   av = out(&s, v, n * sizeof *v), copy = out(&s, a->copy, n * hvt_dtype_size(a->copy_type));
    hvt_sgd_args b = *a;
    bool ready;

    HVT_CHECK(ng < SPANS - 4, E_ARG, "%d gradients, at most %d", ng, SPANS - 5);
    for (int i = 0; i < ng; i++)
        at[i] = in(&s, g[i], n * sizeof(float));
    ready = go(&s);
    for (int i = 0; i < ng; i++)
        on_gpu[i] = dev(&s, at[i]);
    b.step = dev(&s, step);
    b.copy = dev(&s, copy);
    return end(&s, ready
                       ? s.h->inner->ops->vector.sgd(s.h->inner, n, &b, on_gpu, ng, dev(&s, aw), dev(&s, av))
                       : HVT_OK);
}

static hvt_status adam_hosted(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
                              float *w, float *m, float *v)
{
    stage s = begin(d);
    const float *on_gpu[SPANS];
    int at[SPANS], step = in(&s, a->step, sizeof *a->step), aw = out(&s, w, n * sizeof *w),
                   am = out(&s, m, n * sizeof *m), av = out(&s, v, n * sizeof *v),
                   copy = out(&s, a->copy, n * hvt_dtype_size(a->copy_type));
    hvt_adam_args b = *a;
    bool ready;

    HVT_CHECK(ng < SPANS - 5, E_ARG, "%d gradients, at most %d", ng, SPANS - 6);
    for (int i = 0; i < ng; i++)
        at[i] = in(&s, g[i], n * sizeof(float));
    ready = go(&s);
    for (int i = 0; i < ng; i++)
        on_gpu[i] = dev(&s, at[i]);
    b.step = dev(&s, step);
    b.copy = dev(&s, copy);
    return end(&s, ready ? s.h->inner->ops->vector.adam(s.h->inner, n, &b, on_gpu, ng, dev(&s, aw),
                                                        dev(&s, am), dev(&s, av))
                         : HVT_OK);
}

static hvt_status ema_hosted(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema)
{
    stage s = begin(d);
    int st = in(&s, step, sizeof *step), aw = in(&s, w, n * sizeof *w), ae = out(&s, ema, n * sizeof *ema);

    return RUN(s, s.h->inner->ops->vector.ema(s.h->inner, n, dev(&s, st), dev(&s, aw), dev(&s, ae)));
}

static hvt_status check_hosted(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    stage s = begin(d);
    int ag = in(&s, g, n * sizeof *g), st = out(&s, step, sizeof *step);

    return RUN(s, s.h->inner->ops->step.check(s.h->inner, n, dev(&s, ag), base, dev(&s, st)));
}

static hvt_status squares_hosted(hvt_device *d, size_t n, const float *g, hvt_step_state *step)
{
    stage s = begin(d);
    int ag = in(&s, g, n * sizeof *g), st = out(&s, step, sizeof *step);

    return RUN(s, s.h->inner->ops->step.squares(s.h->inner, n, dev(&s, ag), dev(&s, st)));
}

static hvt_status decide_hosted(hvt_device *d, hvt_step_state *step, const float *sums)
{
    stage s = begin(d);
    int st = out(&s, step, sizeof *step), at = in(&s, sums, HVT__STEP_SUMS * sizeof *sums);

    return RUN(s, s.h->inner->ops->step.decide(s.h->inner, dev(&s, st), dev(&s, at)));
}

/* ---- images ------------------------------------------------------------------------------------- */

static hvt_status augment_hosted(hvt_device *d, const hvt_augment_args *a)
{
    stage s = begin(d);
    int dst = images(&s, a->dst, a->order, a->type, a->n, a->h, a->w, a->cx, true),
        labels = out(&s, a->dst_labels, (size_t)a->n * sizeof *a->dst_labels),
        targets = out(&s, a->dst_targets, (size_t)a->n * (size_t)a->outputs * sizeof *a->dst_targets);
    hvt_augment_args b = *a;
    bool ready = go(&s);

    b.order = HVT_ORDER_NHW;
    b.dst = dev(&s, dst);
    b.dst_labels = dev(&s, labels);
    b.dst_targets = dev(&s, targets);
    return end(&s, ready ? s.h->inner->ops->augment(s.h->inner, &b) : HVT_OK);
}

#define ENTRY(entry, op) .entry = hvt__##op##_hosted,

const hvt_device_ops __wrap_hvt_device_cuda = {.name = "cuda",
                                               .open = open_hosted,
                                               .close = close_hosted,
                                               .channels = channels_hosted,
                                               .describe = describe_hosted,
                                               .host = true,
                                               .memory.alloc = alloc_hosted,
                                               .memory.release = release_hosted,
                                               .memory.alloc_host = alloc_hosted,
                                               .memory.release_host = release_hosted,
                                               .memory.upload = move_hosted,
                                               .memory.download = move_hosted,
                                               .memory.put = move_hosted,
                                               .queue.mark = mark_hosted,
                                               .queue.await = await_hosted,
                                               .queue.sync = sync_hosted,
                                               .conv.plan = conv_plan_hosted,
                                               .conv.permute = conv_permute_hosted,
                                               .conv.forward = conv_forward_hosted,
                                               .conv.backward_x = conv_backward_x_hosted,
                                               .conv.backward_w = conv_backward_w_hosted,
                                               .pooling.plan = pool_plan_hosted,
                                               .pooling.forward = pool_forward_hosted,
                                               .pooling.backward = pool_backward_hosted,
                                               .matrix.bn_train = bn_train_hosted,
                                               .matrix.bn_infer = bn_infer_hosted,
                                               .matrix.bn_backward = bn_backward_hosted,
                                               .matrix.bn_update = bn_update_hosted,
                                               .matrix.bn_moments = bn_moments_hosted,
                                               .matrix.bn_sums = bn_sums_hosted,
                                               .matrix.bn_dx = bn_dx_hosted,
                                               .matrix.bn_join_moments = bn_join_moments_hosted,
                                               .matrix.bn_join_sums = bn_join_sums_hosted,
                                               .matrix.bias_forward = bias_forward_hosted,
                                               .matrix.bias_backward = bias_backward_hosted,
                                               .matrix.subsample_forward = subsample_forward_hosted,
                                               .matrix.subsample_backward = subsample_backward_hosted,
                                               .matrix.xent = xent_hosted,
                                               .matrix.mse = mse_hosted,
                                               .vector.relu_forward = relu_forward_hosted,
                                               .vector.relu_backward = relu_backward_hosted,
                                               .vector.add = add_hosted,
                                               .memory.copy = move_hosted,
                                               .memory.zero = zero_hosted,
                                               .vector.cast = cast_hosted,
                                               .vector.reduce = reduce_hosted,
                                               .host_only.reduce_all = reduce_all_hosted,
                                               .vector.sgd = sgd_hosted,
                                               .vector.adam = adam_hosted,
                                               .vector.ema = ema_hosted,
                                               .step.check = check_hosted,
                                               .step.squares = squares_hosted,
                                               .step.decide = decide_hosted,
                                               .augment = augment_hosted,
                                               HVT__GENERAL_OPS(ENTRY)};
