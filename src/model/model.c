/*
 * Creating and freeing a model, appending layers, the forward and the backward pass.
 *
 * Values are indices of layers. A builder given a bad value or bad sizes records the model's first mistake
 * and returns -1, which every later builder passes on; hvt_model_plan() reports it. The passes skip layers
 * that were fused into others.
 */
#include "base/trace.h"
#include "layers.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

hvt_status hvt_model_create(hvt_device *dev, hvt_model **ret_model)
{
    hvt_model *m;

    HVT_GIVEN(dev, "a device");
    HVT_GIVEN(ret_model, "an output pointer for the model");
    m = calloc(1, sizeof *m);
    HVT_CHECK(m, E_MEM, "no memory for %zu bytes of a model", sizeof *m);
    m->dev = dev;
    hvt__use(&dev->users, HVT__USER_MODEL, 1);
    m->input = -1;
    m->real = -1;
    m->version = 1;
    *ret_model = m;
    return HVT_OK;
}

void hvt_model_free(hvt_model **model)
{
    hvt_model *m = model ? *model : NULL;

    if (!m)
        return;
    if (hvt__in_use(&m->users, "a model"))
        return;
    hvt__model_unplan(m);
    hvt__use(&m->dev->users, HVT__USER_MODEL, -1);
    free(m->layer);
    free(m);
    *model = NULL;
}

hvt_status hvt_model_set_type(hvt_model *m, hvt_dtype t)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "activations become %s after hvt_model_plan()", hvt_dtype_name(t));
    HVT_CHECK(t == HVT_F32 || t == HVT_F16 || t == HVT_BF16, E_ARG,
              "activations in %s, expected f32, f16 or bf16", hvt_dtype_name(t));
    m->type = t;
    return HVT_OK;
}

/* ---- appending ---- */

hvt_value hvt__mistake(hvt_model *m, const hvt_layer *l, hvt_status code, const char *fmt, ...)
{
    size_t size = sizeof m->mistake_text;
    int used = 0;
    va_list args;

    if (m->mistake != HVT_OK)
        return -1;
    m->mistake = code;
    if (l)
        used = snprintf(m->mistake_text, size, "layer %s (%s): ", l->name, l->ops->name);
    va_start(args, fmt);
    vsnprintf(m->mistake_text + used, size - (size_t)used, fmt, args);
    va_end(args);
    return -1;
}

void hvt_name(hvt_model *m, const char *fmt, ...)
{
    va_list args;
    int length;

    if (!m || !fmt)
        return;
    va_start(args, fmt);
    length = vsnprintf(m->next_name, sizeof m->next_name, fmt, args);
    va_end(args);
    if (length < 1 || length > HVT_LAYER_NAME_MOST)
        hvt__mistake(m, NULL, HVT_E_SHAPE, "a layer's name has %d characters, not 1 to %d: '%.40s...'",
                     length, HVT_LAYER_NAME_MOST, m->next_name);
}

static bool reads(hvt_model *m, const hvt_layer *l, hvt_value v)
{
    if (v < 0 || v >= m->nlayer)
        hvt__mistake(m, l, HVT_E_SHAPE, "reads value %d, but the model has %d values so far", v, m->nlayer);
    return m->mistake == HVT_OK;
}

static bool name_it(hvt_model *m, hvt_layer *l)
{
    if (m->next_name[0])
        memcpy(l->name, m->next_name, sizeof l->name);
    else
        snprintf(l->name, sizeof l->name, "%s%d", l->ops->name, m->nlayer);
    m->next_name[0] = 0;
    for (int i = 0; i < m->nlayer; i++)
        if (!strcmp(l->name, m->layer[i].name))
            hvt__mistake(m, l, HVT_E_SHAPE, "layer %d has this name already", i);
    return m->mistake == HVT_OK;
}

hvt_layer *hvt__layer_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value a, hvt_value b)
{
    hvt_layer *l;

    if (!m || m->mistake != HVT_OK || m->batch)
        return NULL;
    if (m->nlayer == m->cap) {
        int cap = m->cap ? m->cap * 2 : 64;

        l = realloc(m->layer, (size_t)cap * sizeof *l);
        if (!l) {
            hvt__mistake(m, NULL, HVT_E_MEM, "no memory for %d layers", cap);
            return NULL;
        }
        m->layer = l;
        m->cap = cap;
    }
    l = &m->layer[m->nlayer];
    *l = (hvt_layer){.ops = ops, .in = {a, b}, .param = {-1, -1}, .stat = -1};
    if (!name_it(m, l))
        return NULL;
    if (ops != &hvt_layer_input && !reads(m, l, a))
        return NULL;
    if (ops == &hvt_layer_add && !reads(m, l, b))
        return NULL;
    return l;
}

hvt_value hvt__layer_end(hvt_model *m, hvt_layer *l, int64_t h, int64_t w, int64_t c)
{
    HVT_EXPECT(m, l, h * w <= INT_MAX && h * w * c <= INT_MAX,
               "an image's output of %lldx%lldx%lld has more than %d elements", (long long)h, (long long)w,
               (long long)c, INT_MAX);
    l->y = (hvt_tensor){.dtype = m->type, .ndim = 4, .dim = {0, (int)h, (int)w, (int)c}};
    l->dy = l->y;
    return m->nlayer++;
}

/* ---- forward and backward ---- */

static hvt_status check_batch(const hvt_model *m, const hvt_batch *b)
{
    const hvt_tensor *in = &m->layer[m->input].y, *x, *labels;
    bool hwn = m->order == HVT_ORDER_HWN;
    int want[4] = {m->batch, in->dim[1], in->dim[2], m->input_channels};

    HVT_CHECK(b, E_ARG, "a forward pass needs a batch");
    x = &b->images;
    labels = &b->labels;
    if (hwn)
        memcpy(want, (int[]){in->dim[1], in->dim[2], m->batch, m->input_channels}, sizeof want);
    HVT_CHECK(b->count >= 0 && b->count <= m->batch, E_SHAPE,
              "a batch holds %d images; the model is planned for 0 to %d", b->count, m->batch);
    HVT_CHECK(x->dtype == m->type && x->ndim == 4 && !memcmp(x->dim, want, sizeof want), E_SHAPE,
              "images are %s [%d,%d,%d,%d]; the plan expects %s [%d,%d,%d,%d] (%s)", hvt_dtype_name(x->dtype),
              x->dim[0], x->dim[1], x->dim[2], x->dim[3], hvt_dtype_name(m->type), want[0], want[1], want[2],
              want[3], hwn ? "H,W,N,C" : "N,H,W,C");
    HVT_CHECK(labels->dtype == HVT_I32 && labels->ndim == 1 && labels->dim[0] == m->batch, E_SHAPE,
              "labels are %s [%d] of %d dimensions; the plan expects i32 [%d]", hvt_dtype_name(labels->dtype),
              labels->dim[0], labels->ndim, m->batch);
    HVT_CHECK(!b->count || (x->data && labels->data), E_ARG, "a batch of %d images has no %s", b->count,
              x->data ? "labels" : "images");
    if (!b->shards) /* not part of a step */
        return HVT_OK;
    HVT_CHECK(b->shard >= 0 && b->shard < b->shards, E_ARG, "a batch of shard %d, expected 0 to %d", b->shard,
              b->shards - 1);
    HVT_CHECK(!b->shard_counts || b->shard_counts[b->shard] == b->count, E_ARG,
              "a batch of shard %d holds %d images, but its shard_counts[%d] is %d", b->shard, b->count,
              b->shard, b->shard_counts[b->shard]);
    return HVT_OK;
}

/* Refuse labels that would make the loss read outside its logits. Only for host memory: on other devices such
 * a label makes the loss NaN. */
static hvt_status check_labels(const hvt_model *m, const hvt_batch *b)
{
    const int32_t *label = b->labels.data;
    int classes = hvt_model_classes(m), i = 0;
    char which[48] = "";

    while (m->dev->ops->host && i < b->count && label[i] >= 0 && label[i] < classes)
        i++;
    if (!m->dev->ops->host || i == b->count)
        return HVT_OK;
    if (b->ids)
        snprintf(which, sizeof which, " (number %u of its data set)", b->ids[i]);
    return HVT_FAIL(E_ARG, "the label of image %d%s of shard %d is %d, expected 0 to %d", i, which, b->shard,
                    (int)label[i], classes - 1);
}

hvt_status hvt__model_refresh(hvt_model *m)
{
    if (m->copy && m->copy_stale)
        HVT_TRY(m->dev->ops->cast(m->dev, m->arena_count, 1, m->params, HVT_F32, m->copy, m->type));
    m->copy_stale = false;
    return HVT_OK;
}

static hvt_status forward(hvt_model *m, const hvt_batch *batch, bool train)
{
    HVT_CHECK(m->batch, E_ARG, "forward before hvt_model_plan()");
    HVT_TRY(check_batch(m, batch));
    HVT_TRY(check_labels(m, batch));
    HVT_CHECK(m->grads || !train, E_ARG, "a training pass, but the model has no gradient arena");
    m->real = batch->count;
    m->shard = batch->shards ? batch->shard : -1;
    m->labels = batch->labels.data;
    m->layer[m->input].y.data = batch->images.data;
    m->backward_pending = false;
    HVT_TRY(hvt__model_refresh(m));
    if (m->real) {
        for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
            if (!l->folded)
                HVT_TRY(l->ops->forward(m, l, train));
    } else if (train) { /* an empty shard adds nothing to the sums */
        HVT_TRY(m->dev->ops->zero(m->dev, m->grads, m->step_stats_count * sizeof *m->grads));
    }
    m->backward_pending = train;
    return HVT_OK;
}

hvt_status hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train)
{
    HVT_GIVEN(m, "a model");

    hvt__trace_begin(HVT__FORWARD, -1);
    return hvt__traced(forward(m, batch, train));
}

/* The end of layer l's span of the arena, padding included; `mark` if it has no parameters. */
static size_t span_end(const hvt_model *m, const hvt_layer *l, size_t mark)
{
    int last = -1;

    for (int i = 0; i < HVT_LAYER_PARAMS; i++)
        last = l->param[i] > last ? l->param[i] : last;
    if (last < 0)
        return mark;
    return last + 1 < m->nparam_tensors ? m->param[last + 1].offset : m->arena_count;
}

static hvt_status backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    size_t mark = m->step_stats_count;

    HVT_CHECK(m->backward_pending, E_ARG, "backward needs a training forward pass of its own before it");
    m->backward_pending = false;
    if (!m->real)
        HVT_TRY(m->dev->ops->zero(m->dev, m->grads + mark, (m->arena_count - mark) * sizeof *m->grads));
    if (on_grad)
        HVT_TRY(on_grad(ctx, 0, mark));
    for (hvt_layer *l = m->layer + m->nlayer - 1; l >= m->layer; l--) {
        size_t end = span_end(m, l, mark);

        if (m->real && l->recomputes_input)
            HVT_TRY(hvt__norm_recompute(m, hvt__in(m, l, 0)));
        if (m->real && l->requires_grad && !l->folded)
            HVT_TRY(l->ops->backward(m, l));
        if (on_grad && end > mark)
            HVT_TRY(on_grad(ctx, mark, end));
        mark = end;
    }
    return HVT_OK;
}

hvt_status hvt_model_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    hvt_status s;

    HVT_GIVEN(m, "a model");
    hvt__trace_begin(HVT__BACKWARD, -1);
    m->in_backward = true;
    s = hvt__traced(backward(m, on_grad, ctx));
    m->in_backward = false;
    return s;
}

void hvt__model_changed(hvt_model *m)
{
    m->version++;
    m->copy_stale = true;
}

void hvt__model_updated(hvt_model *m)
{
    m->version++;
}

/* ---- queries ---- */

hvt_order hvt_model_order(const hvt_model *m)
{
    if (!m)
        return HVT_ORDER_NHW;
    return m->order;
}

hvt_dtype hvt_model_input_type(const hvt_model *m)
{
    if (!m)
        return HVT_F32;
    return m->type;
}

int hvt_model_input_channels(const hvt_model *m)
{
    if (!m)
        return 0;
    return m->input_channels;
}

int hvt_model_classes(const hvt_model *m)
{
    if (!m)
        return 0;
    return m->batch ? m->layer[m->logits].y.dim[3] : 0;
}

size_t hvt_model_parameters(const hvt_model *m)
{
    if (!m)
        return 0;

    size_t n = 0;

    for (int i = 0; i < m->nparam_tensors; i++)
        n += m->param[i].elements;
    return n;
}

hvt_memory hvt_model_memory(const hvt_model *m)
{
    if (!m)
        return (hvt_memory){0};

    size_t copy = m->copy ? m->arena_count * sizeof *m->copy : 0;

    return (hvt_memory){.parameters = (m->arena_count + m->stats_count) * sizeof(float) + copy,
                        .gradients = m->arena_count * sizeof(float),
                        .activations = m->acts_bytes,
                        .workspace = m->ws_bytes};
}

size_t hvt_model_bytes(const hvt_model *m)
{
    const hvt_memory b = hvt_model_memory(m);

    return b.parameters + b.gradients + b.activations + b.workspace;
}
