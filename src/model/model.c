/*
 * Creating and freeing models, appending layers, the forward and the backward pass.
 *
 * Values are indices of layers. A builder given a bad value or bad sizes records the model's first mistake
 * and returns -1, which later builders pass on; hvt_model_plan() reports it. The passes skip fused layers.
 */
#include "base/trace.h"
#include "layers.h"

#include <stdarg.h>

hvt_status hvt_model_create(hvt_device *dev, hvt_model **ret_model)
{
    HVT_GIVEN(dev, "a device");
    HVT_GIVEN(ret_model, "an output pointer for the model");
    hvt_model *m = calloc(1, sizeof *m);

    HVT_CHECK(m, E_MEM, "no memory for %zu bytes of a model", sizeof *m);
    m->dev = dev;
    hvt__use(&dev->users, HVT__USER_MODEL, 1);
    m->input = m->next_shares = -1;
    m->real = -1;
    *ret_model = m;
    return HVT_OK;
}

void hvt_model_free(hvt_model **model)
{
    hvt_model *m = model ? *model : NULL;

    if (!m || hvt__in_use(&m->users, "a model"))
        return;
    hvt__model_unplan(m);
    hvt__split_free(m);
    hvt__use(&m->dev->users, HVT__USER_MODEL, -1);
    hvt__inputs_free(m->layer, m->nlayer);
    free(m->layer);
    free(m->freeze);
    free(m->class_weights);
    free(m->alias);
    for (int i = 0; i < m->nattached; i++) {
        free(m->attached[i].whole);
        free(m->attached[i].real);
    }
    free(m->attached);
    for (hvt__constants *c = m->constants, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(m);
    *model = NULL;
}

hvt_status hvt_model_set_type(hvt_model *m, hvt_dtype t)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "set the activations' type, %s, before hvt_model_plan()", hvt_dtype_name(t));
    HVT_CHECK(t == HVT_F32 || t == HVT_F16 || t == HVT_BF16, E_ARG,
              "activations in %s, expected f32, f16 or bf16", hvt_dtype_name(t));
    m->type = t;
    return HVT_OK;
}

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
    if (l && l == m->layer + m->nlayer) /* the failed layer will not be appended */
        hvt__inputs_free(m->layer + m->nlayer, 1);
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

void hvt_share(hvt_model *m, hvt_value v)
{
    if (!m || m->mistake != HVT_OK || m->batch)
        return;
    if (v < 0 || v >= m->nlayer) {
        hvt__mistake(m, NULL, HVT_E_SHAPE,
                     "parameters of value %d are shared, but the model has %d values so far", v, m->nlayer);
        return;
    }
    m->next_shares = m->layer[v].shares >= 0 ? m->layer[v].shares : v;
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

/* Allocates in[], add[] and in_place[] as one block. */
static bool inputs_room(hvt_layer *l, const hvt_value *in)
{
    int n = l->nin > 2 ? l->nin : 2;
    char *room = calloc((size_t)n, sizeof *l->in + sizeof *l->add + sizeof *l->in_place);

    l->in = (hvt_value *)room;
    if (!room)
        return false;
    l->add = (bool *)(l->in + n);
    l->in_place = l->add + n;
    for (int i = 0; i < n; i++)
        l->in[i] = i < l->nin ? in[i] : -1;
    l->nin = n;
    return true;
}

hvt__constants *hvt__constants_begin(hvt_model *m, hvt_layer *l, const hvt__constants *is)
{
    hvt__constants *c = malloc(sizeof *c + is->all * sizeof *c->data);

    if (!c) {
        hvt__mistake(m, l, HVT_E_MEM, "no memory for %zu constants", is->all);
        return NULL;
    }
    *c = *is;
    c->next = m->constants;
    l->constants = m->constants = c;
    return c;
}

hvt_status hvt__constants_put(hvt_model *m, hvt_layer *l)
{
    const size_t bytes = l->constants->all * sizeof *l->constants->data;

    HVT_TRY(m->dev->ops->memory.alloc(m->dev, bytes, &l->constants_there));
    return m->dev->ops->memory.upload(m->dev, l->constants_there, l->constants->data, bytes);
}

void hvt__inputs_free(hvt_layer *layer, int n)
{
    for (int i = 0; i < n; i++) {
        free(layer[i].in);
        layer[i].in = NULL;
    }
}

hvt_status hvt__inputs_copy(hvt_model *m)
{
    int i = 0;

    while (i < m->nlayer) {
        hvt_layer *l = &m->layer[i], from = *l;

        if (!inputs_room(l, from.in)) {
            hvt__inputs_free(m->layer, i);
            return HVT_FAIL(E_MEM, "no memory for the inputs of %d layers", m->nlayer);
        }
        memcpy(l->in_place, from.in_place, (size_t)l->nin * sizeof *l->in_place);
        i++;
    }
    return HVT_OK;
}

/* True if l may read all of its inputs, which are values of images or tensors of weights. */
static bool reads_kinds(hvt_model *m, const hvt_layer *l, int count)
{
    const hvt_takes takes = l->ops->takes;
    const bool first = count && m->layer[l->in[0]].is_weight;

    for (int i = 0; i < count; i++) {
        const hvt_layer *in = &m->layer[l->in[i]];
        const bool wanted = takes == HVT_TAKES_EITHER    ? first
                            : takes == HVT_TAKES_FILTERS ? i > 0
                                                         : takes == HVT_TAKES_WEIGHTS;

        if (in->is_weight != wanted) {
            hvt__mistake(m, l, HVT_E_SHAPE, "reads %s, which is %s; expected %s", in->name,
                         in->is_weight ? "a tensor of weights" : "computed from images",
                         wanted ? "a tensor of weights" : "a value of images");
            return false;
        }
    }
    return true;
}

hvt_layer *hvt__layer_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value x)
{
    return hvt__layer_begin_many(m, ops, &x, 1);
}

hvt_layer *hvt__layer_begin_many(hvt_model *m, const hvt_layer_ops *ops, const hvt_value *in, int count)
{
    if (!m || m->mistake != HVT_OK || m->batch)
        return NULL;
    if (m->nlayer == m->cap) {
        int cap = m->cap ? m->cap * 2 : 64;
        hvt_layer *more = realloc(m->layer, (size_t)cap * sizeof *more);

        if (!more) {
            hvt__mistake(m, NULL, HVT_E_MEM, "no memory for %d layers", cap);
            return NULL;
        }
        m->layer = more;
        m->cap = cap;
    }
    hvt_layer *l = &m->layer[m->nlayer];

    *l = (hvt_layer){
        .ops = ops, .nin = count, .shares = m->next_shares, .flat = 1, .param = {-1, -1}, .stat = -1};
    m->next_shares = -1;
    if (!inputs_room(l, in)) {
        hvt__mistake(m, NULL, HVT_E_MEM, "no memory for %d inputs", count);
        return NULL;
    }
    if (!name_it(m, l))
        return NULL;
    if (!ops->hash) {
        hvt__mistake(m, l, HVT_E_UNSUPPORTED, "its arguments have no hash, which tells apart tapes");
        return NULL;
    }
    l->is_weight = ops->takes == HVT_TAKES_WEIGHTS;
    if (!count)
        return l;
    for (int i = 0; i < count; i++)
        if (!reads(m, l, in[i]))
            return NULL;
    if (!reads_kinds(m, l, count))
        return NULL;
    if (l->shares >= 0 && m->layer[l->shares].ops->plan != ops->plan) {
        hvt__mistake(m, l, HVT_E_SHAPE, "shares the parameters of %s, which is a %s",
                     m->layer[l->shares].name, m->layer[l->shares].ops->name);
        return NULL;
    }
    l->flat = m->layer[in[0]].flat;
    l->y = m->layer[in[0]].y;
    if (ops->takes == HVT_TAKES_EITHER && m->layer[in[0]].is_weight) {
        l->is_weight = true;
        l->ndim = m->layer[in[0]].ndim;
        memcpy(l->dim, m->layer[in[0]].dim, sizeof l->dim);
    }
    for (int i = 0; i < count && !m->layer[in[i]].is_weight; i++)
        if (m->layer[in[i]].flat != l->flat || (l->flat > 1 && !ops->takes_flattened)) {
            hvt__mistake(
                m, l, HVT_E_SHAPE,
                "reads %s, a flattened value, which only a linear layer can, also after functions and sums",
                m->layer[in[l->flat > 1 ? 0 : i]].name);
            return NULL;
        }
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

void hvt_value_shape(const hvt_model *m, hvt_value v, int ret_hwc[3])
{
    for (int i = 0; ret_hwc && i < 3; i++)
        ret_hwc[i] = m && v >= 0 && v < m->nlayer ? m->layer[v].y.dim[1 + i] : 0;
}

hvt_tensor hvt__answers_tensor(const hvt_model *m, bool labels, void *data)
{
    const int *d = m->layer[m->logits].y.dim, n = m->batch, c = labels ? 1 : d[3];
    const bool hwn = m->order == HVT_ORDER_HWN;
    const hvt_dtype type = labels ? HVT_I32 : HVT_F32;

    if (!hvt__logit_pixels(m))
        return (hvt_tensor){data, type, labels ? 1 : 2, {n, c, 1, 1}};
    return (hvt_tensor){data, type, labels ? 3 : 4, {hwn ? d[1] : n, hwn ? d[2] : d[1], hwn ? n : d[2], c}};
}

/* "f32 [128,10]" */
static void shape_text(const hvt_tensor *t, char ret_text[80])
{
    int used = snprintf(ret_text, 80, "%s [", hvt_dtype_name(t->dtype));

    for (int i = 0; i < t->ndim && i < 4; i++)
        used += snprintf(ret_text + used, 80 - (size_t)used, "%s%d", i ? "," : "", t->dim[i]);
    snprintf(ret_text + used, 80 - (size_t)used, "]");
}

static hvt_status check_answers(const hvt_model *m, bool labels, const hvt_tensor *is)
{
    const hvt_tensor want = hvt__answers_tensor(m, labels, is->data);
    char got[80], expected[80];

    if (!is->data || (is->dtype == want.dtype && is->ndim == want.ndim &&
                      !memcmp(is->dim, want.dim, (size_t)want.ndim * sizeof *want.dim)))
        return HVT_OK;
    shape_text(is, got);
    shape_text(&want, expected);
    return HVT_FAIL(E_SHAPE, "%s are %s; the plan expects %s", labels ? "labels" : "targets", got, expected);
}

static hvt_status check_batch(const hvt_model *m, const hvt_batch *b)
{
    HVT_CHECK(b, E_ARG, "a forward pass needs a batch");

    const hvt_tensor *in = &m->layer[m->input].y, *x = &b->images;
    bool hwn = m->order == HVT_ORDER_HWN;
    int n = m->batch, h = in->dim[1], w = in->dim[2];
    const int want[4] = {hwn ? h : n, hwn ? w : h, hwn ? n : w, m->input_channels};

    HVT_CHECK(b->count >= 0 && b->count <= m->batch, E_SHAPE,
              "a batch holds %d images; the model is planned for 0 to %d", b->count, m->batch);
    HVT_CHECK(x->dtype == m->type && x->ndim == 4 && !memcmp(x->dim, want, sizeof want), E_SHAPE,
              "images are %s [%d,%d,%d,%d]; the plan expects %s [%d,%d,%d,%d] (%s)", hvt_dtype_name(x->dtype),
              x->dim[0], x->dim[1], x->dim[2], x->dim[3], hvt_dtype_name(m->type), want[0], want[1], want[2],
              want[3], hwn ? "H,W,N,C" : "N,H,W,C");
    HVT_TRY(check_answers(m, true, &b->labels));
    HVT_TRY(check_answers(m, false, &b->targets));
    HVT_CHECK(!b->count || x->data, E_ARG, "a batch of %d images has no images", b->count);
    if (!b->shards) /* not part of a step */
        return HVT_OK;
    HVT_CHECK(b->shard >= 0 && b->shard < b->shards, E_ARG, "a batch of shard %d, expected 0 to %d", b->shard,
              b->shards - 1);
    HVT_CHECK(!b->shard_counts || b->shard_counts[b->shard] == b->count, E_ARG,
              "a batch of shard %d holds %d images, but its shard_counts[%d] is %d", b->shard, b->count,
              b->shard, b->shard_counts[b->shard]);
    return HVT_OK;
}

/* Rejects labels that would make the loss read outside its logits. Only for host memory: on other devices
 * such a label makes the loss NaN. Pixels whose label is below 0 are ignored. */
static hvt_status check_labels(const hvt_model *m, const hvt_batch *b)
{
    const int32_t *label = b->labels.data;
    const bool read = m->dev->ops->host && label && !hvt_loss_has_targets(m->loss.kind);
    const size_t pixels = (size_t)hvt__pixels(&m->layer[m->logits]), count = read ? (size_t)b->count : 0;
    const int classes = hvt_model_classes(m), least = hvt__logit_pixels(m) ? INT_MIN : 0,
              width = m->layer[m->logits].y.dim[2];
    char which[48] = "", where[48] = "";

    for (size_t n = 0; n < count; n++)
        for (size_t p = 0; p < pixels; p++) {
            const int32_t x = label[hvt__logit_row(m, n, p)];

            if (x >= least && x < classes)
                continue;
            if (b->ids)
                snprintf(which, sizeof which, " (number %u of its data set)", b->ids[n]);
            if (pixels > 1)
                snprintf(where, sizeof where, " at row %d, column %d", (int)p / width, (int)p % width);
            return HVT_FAIL(E_ARG, "the label of image %zu%s of shard %d%s is %d, expected 0 to %d", n, which,
                            b->shard, where, (int)x, classes - 1);
        }
    return HVT_OK;
}

int hvt_model_least(const hvt_model *m)
{
    for (const hvt_layer *l = m ? m->layer : NULL; l && l < m->layer + m->nlayer; l++)
        if (hvt__has_statistics(l) && hvt__pixels(l) == 1)
            return 2;
    return 1;
}

hvt_status hvt__model_refresh(hvt_model *m)
{
    if (m->copy && m->copy_stale)
        HVT_TRY(m->dev->ops->vector.cast(m->dev, m->arena_count, 1, m->params, HVT_F32, m->copy, m->type));
    m->copy_stale = false;
    return HVT_OK;
}

/* Fills blocks whose lifetime ends with layer l's pass with NaN, in every type. */
static void poison(hvt_model *m, const hvt_layer *l, bool back)
{
    int i = (int)(l - m->layer), now = back ? 2 * m->nlayer - 1 - i : i;

    for (const hvt_block *b = m->ending; b < m->ending + m->nending; b++)
        if (b->to == now && b->bytes)
            memset((char *)m->acts + m->acts_shift + b->offset, 0xff, b->bytes);
}

hvt_status hvt__layer_forward(hvt_model *m, hvt_layer *l)
{
    if (l->recompute_y[0])
        l->y.data = l->recompute_y[0];
    if (!l->folded && l->ops->forward)
        HVT_TRY(l->ops->forward(m, l));
    /* the last layer is the loss, whose gradient may share memory with the logits */
    if ((m->training || m->inference) && l < m->layer + m->nlayer - 1)
        poison(m, l, false);
    return HVT_OK;
}

static hvt_status forward(hvt_model *m, const hvt_batch *batch, bool train)
{
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before hvt_model_forward()");
    HVT_TRY(check_batch(m, batch));
    HVT_TRY(check_labels(m, batch));
    HVT_CHECK(!train || !m->inference, E_ARG,
              "a training pass, but the model was planned for inference only");
    HVT_CHECK(m->grads || !train, E_ARG, "a training pass, but the model has no gradient arena");
    m->real = batch->count;
    m->shard = batch->shards ? batch->shard : -1;
    m->labels = batch->labels.data;
    m->targets = batch->targets.data;
    m->layer[m->input].y.data = batch->images.data;
    m->training = train;
    m->backward_pending = false;
    m->pass_stats = NULL;
    HVT_TRY(hvt__model_refresh(m));
    if (train && m->sync)
        return hvt__sync_forward(m, batch);
    if (train && m->keys)
        HVT_TRY(hvt__dropout_keys(m, batch));
    if (m->real && hvt__model_is_split(m)) {
        HVT_TRY(hvt__split_forward(m));
    } else if (m->real) {
        for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
            HVT_TRY(hvt__layer_forward(m, l));
    } else if (train) { /* an empty shard adds nothing to the sums */
        HVT_TRY(m->dev->ops->memory.zero(m->dev, m->grads, m->step_stats_count * sizeof *m->grads));
    }
    m->backward_pending = train;
    return HVT_OK;
}

hvt_status hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train)
{
    HVT_GIVEN(m, "a model");

    hvt_batch targets;

    if (batch && hvt_loss_has_targets(m->loss.kind)) { /* labels, if there are any, are not read */
        targets = *batch;
        targets.labels.data = NULL;
        batch = &targets;
    }
    hvt__trace_begin(HVT__FORWARD, -1);
    return hvt__traced(forward(m, batch, train));
}

/* Returns the end of layer l's gradients in the arena, including padding; `mark` if l finishes none. Only the
 * owner of shared parameters, whose backward runs last, finishes their gradients. */
static size_t span_end(const hvt_model *m, const hvt_layer *l, size_t mark)
{
    int last = -1;

    for (int i = 0; i < HVT_LAYER_PARAMS && l->shares < 0; i++)
        last = l->param[i] > last && l->param[i] < m->ntrained ? l->param[i] : last;
    if (last < 0)
        return mark;
    return last + 1 < m->ntrained ? m->param[last + 1].offset : m->grad_count;
}

/* Adds layer l's parts of shared gradients to the arena. */
static hvt_status add_parts(hvt_model *m, const hvt_layer *l)
{
    for (int i = 0; i < HVT_LAYER_PARAMS; i++) {
        const hvt_param *p = l->param[i] >= 0 ? &m->param[l->param[i]] : NULL;

        if (p && !p->frozen && hvt__writes_part(m, l, i))
            HVT_TRY(m->dev->ops->vector.add(m->dev, p->count, HVT_F32, m->grads + p->offset,
                                            m->parts + p->part, m->grads + p->offset));
    }
    return HVT_OK;
}

hvt_status hvt__recompute_input(hvt_model *m, const hvt_layer *l)
{
    hvt_layer *in = l->recomputes_input ? hvt__in(m, l, 0) : NULL;

    if (!in)
        return HVT_OK;
    in->y.data = in->recompute_y[1];
    return in->ops->recompute(m, in);
}

hvt_status hvt__layer_backward(hvt_model *m, hvt_layer *l, hvt_grad_fn *on_grad, void *ctx, size_t *mark)
{
    size_t first = *mark, end = span_end(m, l, first);

    if (m->real)
        HVT_TRY(hvt__recompute_input(m, l));
    if (m->real && l->requires_grad && !l->folded && l->ops->backward)
        HVT_TRY(l->ops->backward(m, l));
    if (m->real)
        HVT_TRY(add_parts(m, l));
    else if (end > first)
        HVT_TRY(m->dev->ops->memory.zero(m->dev, m->grads + first, (end - first) * sizeof *m->grads));
    poison(m, l, true);
    *mark = end;
    return on_grad && end > first ? on_grad(ctx, first, end) : HVT_OK;
}

static hvt_status backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    size_t mark = m->step_stats_count;

    m->backward_pending = false;
    if (m->sync)
        return hvt__sync_backward(m, on_grad, ctx);
    if (on_grad)
        HVT_TRY(on_grad(ctx, 0, mark));
    if (hvt__model_is_split(m))
        return hvt__split_backward(m, on_grad, ctx, &mark);
    for (hvt_layer *l = m->layer + m->nlayer - 1; l >= m->layer; l--)
        HVT_TRY(hvt__layer_backward(m, l, on_grad, ctx, &mark));
    return HVT_OK;
}

static hvt_status run_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    hvt__trace_begin(HVT__BACKWARD, -1);
    m->in_backward = true;
    hvt_status s = hvt__traced(backward(m, on_grad, ctx));
    m->in_backward = false;
    return s;
}

hvt_status hvt_model_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->backward_pending, E_ARG, "backward needs a training forward pass of its own before it");
    HVT_CHECK(
        !m->real || hvt__has_loss(m), E_ARG,
        "the batch of %d images had no %s; pass the gradient of your own loss to hvt_model_backward_from()",
        m->real, hvt_loss_has_targets(m->loss.kind) ? "targets" : "labels");
    return run_backward(m, on_grad, ctx);
}

hvt_status hvt_model_backward_from(hvt_model *m, const float *dlogits, double loss, hvt_grad_fn *on_grad,
                                   void *ctx)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->backward_pending, E_ARG, "backward needs a training forward pass of its own before it");
    HVT_CHECK(
        !m->real || !hvt__has_loss(m), E_ARG,
        "the batch has %s, so the model has computed its loss; leave them out to pass your own gradient",
        hvt_loss_has_targets(m->loss.kind) ? "targets" : "labels");
    HVT_CHECK(!m->sync, E_UNSUPPORTED,
              "a split model, or synchronized batch norm, excludes your own loss, because all forward passes "
              "may run with the last one");
    HVT_TRY(hvt__loss_bring(m, dlogits, loss));
    return run_backward(m, on_grad, ctx);
}

void hvt__model_changed(hvt_model *m)
{
    m->copy_stale = true;
}

hvt_order hvt_model_order(const hvt_model *m)
{
    return m ? m->order : HVT_ORDER_NHW;
}

hvt_dtype hvt_model_input_type(const hvt_model *m)
{
    return m ? m->type : HVT_F32;
}

int hvt_model_input_channels(const hvt_model *m)
{
    return m ? m->input_channels : 0;
}

int hvt_model_classes(const hvt_model *m)
{
    return m && m->batch ? m->layer[m->logits].y.dim[3] : 0;
}

void hvt_model_output(const hvt_model *m, int ret_hwc[3])
{
    for (int i = 0; ret_hwc && i < 3; i++)
        ret_hwc[i] = m && m->batch ? m->layer[m->logits].y.dim[1 + i] : 0;
}

size_t hvt_model_parameters(const hvt_model *m)
{
    size_t n = 0;

    for (int i = 0; m && i < m->nparam_tensors; i++)
        n += m->param[i].constant ? 0 : m->param[i].elements;
    return n;
}

size_t hvt_model_frozen(const hvt_model *m)
{
    size_t n = 0;

    for (int i = m ? m->ntrained : 0; m && i < m->nparam_tensors; i++)
        n += m->param[i].constant ? 0 : m->param[i].elements;
    return n;
}

hvt_memory hvt_model_memory(const hvt_model *m)
{
    if (!m)
        return (hvt_memory){0};

    size_t copy = m->type == HVT_F32 ? 0 : m->arena_count * sizeof *m->copy;
    size_t ws, stages = hvt__split_bytes(m, &ws);

    return (hvt_memory){.parameters = (m->arena_count + m->stats_count) * sizeof(float) + copy,
                        .gradients = (m->grad_count + m->parts_count) * sizeof(float),
                        .activations = m->acts_bytes + stages + (m->sync ? m->sync->bytes : 0),
                        .workspace = m->ws_bytes + ws};
}

size_t hvt_model_bytes(const hvt_model *m)
{
    const hvt_memory b = hvt_model_memory(m);

    return b.parameters + b.gradients + b.activations + b.workspace;
}
