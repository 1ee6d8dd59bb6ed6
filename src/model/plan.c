/*
 * The plan turns a tape as built into one that runs without deciding or allocating anything.
 *
 *   1. append the loss, refuse layers that do not lead to it, fuse (fold.c)
 *   2. in forward order: set the batch size; each layer plans its device op and declares its parameters and
 *      memory
 *   3. lay out parameters in the order in which backward finishes them; decide which layer writes a gradient
 *      first and which ones add to it
 *   4. assign activations and their gradients to offsets of one arena by their lifetimes, and allocate
 *
 * Time in step 4: of L layers, layer i runs forward at i and backward at 2L-1-i. A plan that fails leaves the
 * tape as it was built, so another batch size may be tried.
 */
#include "base_impl.h"
#include "device/half.h"
#include "layers.h"

/* Blocks of a layer in the activation arena: y, y recomputed for backward, saved data, gradient of y. */
enum { Y, RECOMPUTED, SAVED, DY, LIFETIMES };
typedef struct lifetimes {
    hvt_block of[LIFETIMES];
} lifetimes;

static size_t up16(size_t n)
{
    return (n + 15) / 16 * 16; /* 16 floats are 64 bytes */
}

/* Lets layer l use its owner's parameter in `slot`. The two layers are of one kind, but one may lack a bias,
 * and their counts differ if the device's layouts do. */
static hvt_status share(hvt_model *m, hvt_layer *l, int slot, const hvt_param *p)
{
    const hvt_layer *owner = &m->layer[l->shares];
    hvt_param *have = &m->param[owner->param[slot]];

    HVT_CHECK(owner->param[slot] >= 0, E_SHAPE, "layer %s (%s) shares the parameters of %s, which has fewer",
              l->name, l->ops->name, owner->name);
    HVT_CHECK(have->count == p->count && have->ndim == p->ndim && have->flat == p->flat &&
                  !memcmp(have->dim, p->dim, sizeof p->dim),
              E_SHAPE, "layer %s (%s) shares %s, which is [%d,%d,%d,%d], but needs [%d,%d,%d,%d]", l->name,
              l->ops->name, have->name, have->dim[0], have->dim[1], have->dim[2], have->dim[3], p->dim[0],
              p->dim[1], p->dim[2], p->dim[3]);
    if (!have->shared) {
        have->part = m->parts_count;
        m->parts_count += up16(have->count);
    }
    have->shared = true;
    have->first_writer = (int)(l - m->layer);
    l->param[slot] = owner->param[slot];
    return HVT_OK;
}

hvt_status hvt__param_add(hvt_model *m, hvt_layer *l, int slot, const hvt_param *p, const char *suffix)
{
    hvt_param *more = realloc(m->param, (size_t)(m->nparam_tensors + 1) * sizeof *more);

    HVT_CHECK(more, E_MEM, "no memory for %d parameters", m->nparam_tensors + 1);
    m->param = more;
    if (l->shares >= 0)
        return share(m, l, slot, p);
    more += m->nparam_tensors;
    *more = *p;
    more->first_writer = (int)(l - m->layer);
    snprintf(more->name, sizeof more->name, "%.*s%s%s", HVT_LAYER_NAME_MOST, l->name,
             suffix && l->name[strlen(l->name) - 1] != '_' ? "." : "", suffix ? suffix : "");
    more->frozen = p->constant || m->inference || hvt__freeze_fits(m, more->name);
    more->elements = 1;
    for (int i = 0; i < p->ndim; i++)
        more->elements *= (size_t)p->dim[i];
    l->param[slot] = m->nparam_tensors++;
    return HVT_OK;
}

hvt_status hvt__stats_add(hvt_model *m, hvt_layer *l, int count)
{
    static const char *const suffix[] = {"running_mean", "running_var"};
    hvt_stat *more = realloc(m->stat, (size_t)(m->nstat + 2) * sizeof *more);

    HVT_CHECK(more, E_MEM, "no memory for %d running statistics", m->nstat + 2);
    m->stat = more;
    l->stat = m->nstat;
    for (int i = 0; i < 2; i++) {
        hvt_stat *s = &m->stat[m->nstat++];

        *s = (hvt_stat){.offset = m->stats_count, .count = (size_t)count, .fill = (float)i};
        snprintf(s->name, sizeof s->name, "%.*s.%s", HVT_LAYER_NAME_MOST, l->name, suffix[i]);
        m->stats_count += up16(s->count);
    }
    return HVT_OK;
}

/* ---- 1. the tape ---- */

static hvt_status append_loss(hvt_model *m, hvt_value logits)
{
    const hvt_tensor *y = &m->layer[logits].y;
    hvt_layer *l;

    HVT_CHECK(
        (y->dim[1] == 1 && y->dim[2] == 1) || m->dev->ops->host, E_UNSUPPORTED,
        "logits are %s, which is %dx%dx%d: device %s supports only 1x1xclasses, device cpu also outputs "
        "for each pixel",
        m->layer[logits].name, y->dim[1], y->dim[2], y->dim[3], m->dev->ops->name);
    m->logits = logits;
    m->next_name[0] = 0;
    l = hvt__layer_begin(m, &hvt_layer_loss, logits);
    if (!l || hvt__layer_end(m, l, 1, 1, 1) < 0)
        return hvt__fail(m->mistake, __FILE__, __LINE__, "%s", m->mistake_text);
    return HVT_OK;
}

static void count_uses(const hvt_model *m, int *uses)
{
    memset(uses, 0, (size_t)m->nlayer * sizeof *uses);
    for (int l = m->nlayer - 1; l >= 0; l--)
        for (int i = 0; i < m->layer[l].nin; i++)
            if (m->layer[l].in[i] >= 0 && (uses[l] || l == m->nlayer - 1))
                uses[m->layer[l].in[i]]++;
}

static float rounded(hvt_dtype t, float x)
{
    float stored;

    hvt__store(&stored, t, 0, x);
    return hvt__load(&stored, t, 0);
}

/* Rounds the bounds of clamps as y is rounded, because backward compares y with them. */
static void round_bounds(hvt_model *m)
{
    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        if (l->ops->may_fuse == HVT_FUSE_MAP && l->is.map.f == HVT_HARDTANH) {
            l->is.map.a = rounded(m->type, l->is.map.a);
            l->is.map.b = rounded(m->type, l->is.map.b);
        }
}

static hvt_status prepare_tape(hvt_model *m, hvt_value logits)
{
    hvt_status s = HVT_OK;
    int *uses = NULL;

    m->tape = hvt__tape_hash(m, logits);
    HVT_TRY(append_loss(m, logits));
    uses = malloc((size_t)m->nlayer * sizeof *uses);
    HVT_CHECK(uses, E_MEM, "no memory to plan %d layers", m->nlayer);
    count_uses(m, uses);
    for (int l = 0; l < m->nlayer - 1; l++) {
        const int *d = m->layer[l].y.dim;

        HVT_CHECK_OR(done, uses[l], E_SHAPE,
                     "layer %s (%s): its output, %dx%dx%d, does not lead to the logits", m->layer[l].name,
                     m->layer[l].ops->name, d[1], d[2], d[3]);
    }
    round_bounds(m);
    hvt__model_fold(m, uses);
    m->logits = m->layer[m->nlayer - 1].in[0];
done:
    free(uses);
    return s;
}

/* ---- 2. plan the layers ---- */

/* Channels per stored pixel. Only convolutions of one group can read padded pixels. */
static int stored_channels(const hvt_model *m)
{
    int c = m->layer[m->input].y.dim[3];

    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        for (int i = 0; i < l->nin; i++)
            if (!l->folded && l->in[i] == m->input && (!l->ops->is_conv || l->conv.groups > 1))
                return c;
    return m->dev->ops->channels ? m->dev->ops->channels(m->dev, m->type, c) : c;
}

static bool whole_images(const hvt_model *m)
{
    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        if (l->whole_image)
            return true;
    return false;
}

static hvt_status plan_layers(hvt_model *m)
{
    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++) {
        if (l->folded)
            continue;
        l->y.dim[0] = l->dy.dim[0] = l->is_weight ? 1 : m->batch;
        l->y.dtype = l->dy.dtype = l->is_weight ? HVT_F32 : m->type;
        if (hvt__model_is_split(m))
            m->dev = m->split->devices[hvt__stage_of(m, (int)(l - m->layer))];
        HVT_CHECK(hvt__elements(l) <= INT_MAX, E_SHAPE,
                  "layer %s (%s): output [%d,%d,%d,%d] has more than %d elements", l->name, l->ops->name,
                  l->y.dim[0], l->y.dim[1], l->y.dim[2], l->y.dim[3], INT_MAX);
        if (l->ops->plan)
            HVT_TRY(l->ops->plan(m, l)); /* on a GPU this times algorithms */
        hvt__progressed();
        l->requires_grad = false;
        for (int i = 0; i < HVT_LAYER_PARAMS; i++)
            l->requires_grad = l->requires_grad || (l->param[i] >= 0 && !hvt__is_frozen(m, l, i));
        for (int i = 0; i < l->nin; i++)
            l->requires_grad = l->requires_grad || (l->in[i] >= 0 && m->layer[l->in[i]].requires_grad);
        if (l->ws_bytes > m->ws_bytes)
            m->ws_bytes = l->ws_bytes;
    }
    return HVT_OK;
}

/* Layers are planned for the devices of their stages. */
static hvt_status plan_on_devices(hvt_model *m)
{
    hvt_device *first = m->dev;
    hvt_status s = plan_layers(m);

    m->dev = first;
    return s;
}

/* ---- 3. parameters and gradients ---- */

/* Backward finishes parameters in reverse order, so they are laid out in reverse, after the step statistics;
 * frozen ones come last. */
static hvt_status lay_out_parameters(hvt_model *m)
{
    int n = m->nparam_tensors, *at = malloc((size_t)n * sizeof *at + 1), next = 0;
    hvt_param *laid = malloc((size_t)n * sizeof *laid + 1);

    if (!at || !laid) {
        free(at);
        free(laid);
        return HVT_FAIL(E_MEM, "no memory to lay out %d parameters", n);
    }
    m->step_stats_count = up16(m->step_stats_count + HVT__STEP_SUMS);
    m->arena_count = m->step_stats_count;
    for (int frozen = 0; frozen <= 1; frozen++) {
        for (int i = n - 1; i >= 0; i--) {
            if (m->param[i].frozen != frozen)
                continue;
            at[i] = next;
            laid[next] = m->param[i];
            laid[next++].offset = m->arena_count;
            m->arena_count += up16(m->param[i].count);
        }
        if (!frozen) {
            m->ntrained = next;
            m->grad_count = m->arena_count;
        }
    }
    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        for (int i = 0; i < HVT_LAYER_PARAMS; i++)
            if (l->param[i] >= 0)
                l->param[i] = at[l->param[i]];
    free(at);
    free(m->param);
    m->param = laid;
    HVT_TRY(hvt__alias_check(m));
    return hvt__freeze_check(m);
}

/* In backward the first writer of a gradient stores it; later ones add. A layer whose op works in place may
 * overwrite its own dy, so that both gradients share one block. storage[v]: the value whose block holds dy of
 * v; -1: v needs no gradient. */
static void share_gradients(hvt_model *m, lifetimes *block, int *storage)
{
    int n = m->nlayer;

    for (int v = 0; v < n; v++)
        storage[v] = -1;
    for (int l = n - 1; l >= 0; l--) {
        hvt_layer *me = &m->layer[l];
        bool dy_reused = storage[l] < 0; /* dy is used for another input; the loss has no dy */

        for (int i = 0; i < me->nin && !me->folded; i++) {
            int v = me->in[i];

            if (v < 0 || !m->layer[v].requires_grad)
                continue;
            me->add[i] = storage[v] >= 0;
            if (me->add[i])
                continue;
            if (me->in_place[i] && !dy_reused && !hvt__crosses(m, v, l)) {
                storage[v] = storage[l];
                dy_reused = true;
            } else {
                storage[v] = v;
                block[v].of[DY].bytes = hvt__bytes(&m->layer[v]);
                block[v].of[DY].from = l == n - 1 ? l : 2 * n - 1 - l; /* the loss writes it in forward */
                if (hvt__crosses(m, v, l)) /* the other stage writes it at any time */
                    block[v].of[DY].from = v;
            }
            block[storage[v]].of[DY].to = 2 * n - 1 - v;
        }
    }
}

/* ---- 4. arenas ---- */

static void activation_lifetimes(const hvt_model *m, lifetimes *block)
{
    int n = m->nlayer;

    for (int v = 0; v < n; v++) {
        const hvt_layer *l = &m->layer[v];
        int back = l->requires_grad ? 2 * n - 1 - v : v;
        bool has_y = !l->folded && v != m->input && v != n - 1;

        block[v].of[Y] = (hvt_block){.bytes = has_y ? hvt__bytes(l) : 0, .from = v, .to = v};
        block[v].of[SAVED] =
            (hvt_block){.bytes = l->saved_bytes, .from = v, .to = v == n - 1 ? INT_MAX : back};
        for (int i = 0; i < l->nin && !l->folded; i++) {
            int until = (i ? l->saves_others : l->saves_input) ? back : v;

            if (l->in[i] >= 0 && hvt__crosses(m, l->in[i], v)) /* the other stage reads it until then */
                until = 2 * n - 1 - l->in[i];
            if (l->in[i] >= 0 && block[l->in[i]].of[Y].to < until)
                block[l->in[i]].of[Y].to = until;
        }
        if (l->saves_output)
            block[v].of[Y].to = back;
    }
}

static void keep_until(hvt_block *b, int time)
{
    b->to = b->to > time ? b->to : time;
}

/* If the only reader of a batch norm's y is a convolution that computes y as fast as it reads it, a training
 * pass does not store y. */
static void norms_in_readers(hvt_model *m, lifetimes *block)
{
    for (int v = 0; v < m->nlayer && m->dev->ops->recomputes && m->dev->ops->conv.set_norm; v++) {
        hvt_layer *norm = &m->layer[v];
        int readers = 0, reader = -1, until;

        norm->in_reader = false;
        if (!norm->ops->is_norm || norm->folded || norm->in[1] >= 0)
            continue;
        for (int l = v + 1; l < m->nlayer; l++)
            for (int i = 0; i < m->layer[l].nin && !m->layer[l].folded; i++)
                if (m->layer[l].in[i] == v) {
                    readers++;
                    reader = l;
                }
        if (readers != 1 || !m->layer[reader].ops->is_conv || !m->layer[reader].op->takes_norm ||
            hvt__crosses(m, v, reader))
            continue;
        norm->in_reader = true;
        block[v].of[Y].to = reader; /* evaluation stores y */
        until = m->layer[reader].requires_grad ? 2 * m->nlayer - 1 - reader : reader;
        keep_until(&block[v].of[SAVED], until);
        keep_until(&block[norm->in[0]].of[Y], until);
    }
}

/* A norm or a function keeps x, so y may be dropped after its last use in forward and recomputed before its
 * first use in backward (activation recomputation): one long lifetime becomes two short ones. Not recomputed
 * are layers whose x is itself recomputed, which happens later, and batch norms with a residual, which would
 * have to be kept. */
static void recompute_outputs(hvt_model *m, lifetimes *block)
{
    int n = m->nlayer;

    if (m->inference)
        return;
    norms_in_readers(m, block);

    for (int v = 0; v < n && m->dev->ops->recomputes; v++) {
        hvt_layer *me = &m->layer[v];
        int last = -1, saver = -1;
        bool kept = false;

        if (!me->ops->recompute || !me->saves_input || me->recomputes_input || me->folded || me->in[1] >= 0 ||
            !me->requires_grad)
            continue;
        for (int l = v + 1; l < n; l++)
            for (int i = 0; i < m->layer[l].nin && !m->layer[l].folded; i++)
                if (m->layer[l].in[i] == v) {
                    last = l;
                    saver = i == 0 && m->layer[l].saves_input ? l : saver;
                    kept = kept || (i && m->layer[l].saves_others) || m->layer[l].in_reader ||
                           hvt__crosses(m, v, l);
                }
        if (saver < 0 || kept || me->in_reader)
            continue;
        block[v].of[RECOMPUTED] =
            (hvt_block){.bytes = block[v].of[Y].bytes, .from = 2 * n - 1 - saver, .to = 2 * n - 1 - v};
        block[v].of[Y].to = last;
        m->layer[saver].recomputes_input = true;
    }
}

static hvt_status allocate_arenas(hvt_model *m)
{
    const struct {
        void *arena;
        size_t bytes;
    } all[] = {{&m->params, m->arena_count * sizeof *m->params},
               {&m->grads, m->grad_count * sizeof *m->grads},
               {&m->copy, m->type == HVT_F32 ? 0 : m->arena_count * sizeof *m->copy},
               {&m->parts, m->parts_count * sizeof *m->parts},
               {&m->stats, m->stats_count * sizeof *m->stats},
               {&m->acts, m->acts_bytes},
               {&m->keys, m->dropouts ? 2 * (size_t)m->batch * sizeof *m->keys : 0},
               {&m->ws, m->ws_bytes}};

    for (size_t i = 0; i < HVT_LEN(all); i++)
        if (all[i].bytes)
            HVT_TRY(m->dev->ops->memory.alloc(m->dev, all[i].bytes, all[i].arena));
    if (hvt__model_is_split(m))
        HVT_TRY(hvt__split_allocate(m));
    m->copy_stale = true;
    return hvt__step_open(m);
}

/* Assigns offsets to all blocks, in the arena of the model or of their stage. */
static void fit_activations(hvt_model *m, lifetimes *block)
{
    if (!hvt__model_is_split(m) || m->measures) {
        m->acts_bytes = hvt__arena_fit((hvt_block *)block, LIFETIMES * m->nlayer);
        return;
    }
    m->ws_bytes = 0;
    for (hvt__stage *s = m->split->stage; s < m->split->stage + m->split->stages; s++) {
        s->acts_bytes = hvt__arena_fit((hvt_block *)(block + s->first), LIFETIMES * (s->end - s->first));
        s->ws_bytes = hvt__split_workspace(m, s->first, s->end);
    }
}

static hvt_status place_activations(hvt_model *m)
{
    int n = m->nlayer;
    lifetimes *block = calloc((size_t)n, sizeof *block);
    int *storage = malloc((size_t)n * sizeof *storage);
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, block && storage, E_MEM, "no memory to plan %d layers", n);
    activation_lifetimes(m, block);
    recompute_outputs(m, block);
    share_gradients(m, block, storage);
    fit_activations(m, block);
    if (m->measures && hvt__model_is_split(m))
        s = hvt__split_choose(m, (hvt_block *)block, LIFETIMES);
    if (m->measures)
        goto done;
    HVT_TRY_OR(done, hvt__split_check(m, m->split ? m->split->opts.micro_batches : 1));
    HVT_TRY_OR(done, allocate_arenas(m));
    for (int v = 0; v < n; v++) {
        hvt_layer *l = &m->layer[v];
        const hvt_block *of = block[v].of;
        char *acts = hvt__model_is_split(m) ? m->split->stage[hvt__stage_of(m, v)].acts[0] : m->acts;

        if (of[Y].bytes)
            l->y.data = acts + of[Y].offset;
        if (of[RECOMPUTED].bytes) {
            l->recompute_y[0] = l->y.data;
            l->recompute_y[1] = acts + of[RECOMPUTED].offset;
        }
        if (l->saved_bytes)
            l->saved = acts + of[SAVED].offset;
        if (storage[v] >= 0)
            l->dy.data = acts + block[storage[v]].of[DY].offset;
    }
    if (hvt__model_is_split(m))
        s = hvt__split_open(m, m->poisons ? (hvt_block *)block : NULL, LIFETIMES);
done:
    if (s == HVT_OK && m->poisons) {
        m->ending = (hvt_block *)block;
        m->nending = LIFETIMES * n;
        block = NULL;
    }
    free(block);
    free(storage);
    return s;
}

void hvt__model_unplan(hvt_model *m)
{
    void *const owned[] = {m->params_placed ? NULL : m->params,
                           m->grads_placed ? NULL : m->grads,
                           m->copy,
                           m->parts,
                           m->stats,
                           m->acts,
                           m->keys,
                           m->ws,
                           m->step,
                           m->images,
                           m->wide,
                           m->own_labels,
                           m->own_targets};

    for (int l = 0; l < m->nlayer; l++) {
        hvt__op_free(m->layer[l].op);
        m->dev->ops->memory.release(m->dev, m->layer[l].constants_there);
    }
    free(m->param);
    free(m->stat);
    free(m->ending);
    m->dev->ops->memory.release_host(m->dev, m->arranged);
    m->dev->ops->memory.release_host(m->dev, m->rows);
    m->dev->ops->memory.release_host(m->dev, m->answers);
    m->dev->ops->memory.release_host(m->dev, m->dlogits);
    for (size_t i = 0; i < HVT_LEN(owned); i++)
        m->dev->ops->memory.release(m->dev, owned[i]);
}

static hvt_status plan(hvt_model *m, int batch, hvt_value logits)
{
    HVT_TRY(prepare_tape(m, logits));
    const int *d = m->layer[m->input].y.dim;

    m->batch = batch;
    m->order = whole_images(m) ? HVT_ORDER_NHW : hvt_device_order(m->dev, batch, d[1], d[2]);
    m->input_channels = stored_channels(m);
    HVT_DEBUG("%s: a model of %d images of %dx%d, in order %s", m->dev->ops->name, batch, d[1], d[2],
              m->order == HVT_ORDER_HWN ? "HWN" : "NHW");
    HVT_TRY(plan_on_devices(m));
    HVT_TRY(lay_out_parameters(m));
    return place_activations(m);
}

/* Plans m; after a failure m is as it was built. measures: also after success. */
static hvt_status attempt(hvt_model *m, int batch, hvt_value logits, bool measures)
{
    hvt_model built = *m;
    hvt_status s;

    built.cap = m->nlayer;
    built.layer = malloc((size_t)m->nlayer * sizeof *m->layer);
    HVT_CHECK(built.layer, E_MEM, "no memory to plan %d layers", m->nlayer);
    memcpy(built.layer, m->layer, (size_t)m->nlayer * sizeof *m->layer);
    s = hvt__inputs_copy(m);
    if (s != HVT_OK) {
        free(m->layer);
        *m = built;
        return s;
    }
    m->measures = m->measures || measures;
    s = plan(m, batch, logits);
    if (s == HVT_OK && !measures) {
        hvt__inputs_free(built.layer, built.nlayer);
        free(built.layer);
        return HVT_OK;
    }
    hvt__model_unplan(m);
    hvt__inputs_free(m->layer, m->nlayer);
    free(m->layer);
    *m = built;
    return s;
}

hvt_status hvt_model_plan(hvt_model *m, int batch, hvt_value logits)
{
    HVT_GIVEN(m, "a model");

    HVT_CHECK(!m->batch, E_ARG, "the model is planned already, for a batch of %d", m->batch);
    if (m->mistake != HVT_OK)
        return hvt__fail(m->mistake, __FILE__, __LINE__, "%s", m->mistake_text);
    HVT_CHECK(batch > 0, E_ARG, "a batch of %d images; it must be at least 1", batch);
    HVT_CHECK(logits >= 0 && logits < m->nlayer, E_ARG, "logits are value %d, but the model has %d values",
              logits, m->nlayer);

    /* the first plan of a model on several devices only measures, to choose the stages */
    hvt_status s = hvt__model_is_split(m) ? attempt(m, batch, logits, true) : HVT_OK;

    s = s ? s : attempt(m, batch, logits, false);
    if (s == HVT_OK)
        return HVT_OK;
    hvt__split_close(m);
    return hvt__pass(s, __FILE__, __LINE__, "plan");
}
