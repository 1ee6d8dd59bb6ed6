/*
 * A model over several devices: stages of consecutive layers.
 *
 * A *cut* before layer c is possible if exactly one value crosses it, and no layer after it shares the
 * parameters of a layer before it. The caller names the cuts, or the plan chooses them: a first plan that
 * only measures gives every layer's cost and memory; then the slowest stage is made as fast as possible
 * within the devices' memory.
 *
 * Each stage has an arena of activations per shard in flight, and a workspace; all other arenas are the
 * model's. Devices compute in the host's memory, so a value that crosses is not copied: the later stage reads
 * it, and writes its gradient, where the earlier stage has planned both.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

/* ---- options ---- */

static hvt_status check_devices(const hvt_model *m, const hvt_split_opts *o)
{
    HVT_CHECK(o->count >= 1 && o->devices, E_ARG, "a model on %d devices, expected 1 or more", o->count);
    for (int i = 0; i < o->count; i++) {
        const hvt_device *d = o->devices[i];

        HVT_CHECK(d, E_ARG, "device %d of a split model is NULL", i);
        for (int k = 0; k < i; k++)
            HVT_CHECK(d != o->devices[k], E_ARG, "devices %d and %d of a split model are the same", k, i);
        HVT_CHECK(o->count == 1 || d->ops->host, E_UNSUPPORTED,
                  "a model is split over devices of the host's memory, not %s", d->ops->name);
        HVT_CHECK(d->ops == m->dev->ops && (!d->isa || !strcmp(d->isa, m->dev->isa)), E_ARG,
                  "device %d of a split model is %s (%s), but the model's is %s (%s): expected the same kind",
                  i, d->ops->name, hvt_device_isa(d), m->dev->ops->name, hvt_device_isa(m->dev));
    }
    return HVT_OK;
}

static void release_split(struct hvt__split *s)
{
    free((void *)s->opts.at);
    free(s->devices);
    free(s);
}

hvt_status hvt_model_split(hvt_model *m, const hvt_split_opts *opts)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(opts, "options of a split model");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_split() before hvt_model_plan()");
    HVT_CHECK(opts->micro_batches >= 0, E_ARG, "%d micro-batches, expected 0 or more", opts->micro_batches);
    HVT_TRY(check_devices(m, opts));

    struct hvt__split *s = calloc(1, sizeof *s);

    if (s) {
        *s = (struct hvt__split){.opts = *opts, .stages = opts->count};
        s->opts.micro_batches += !opts->micro_batches;
        s->opts.at = strdup(opts->at ? opts->at : "");
        s->devices = malloc((size_t)s->stages * sizeof *s->devices);
    }
    if (!s || !s->opts.at || !s->devices) {
        if (s)
            release_split(s);
        return HVT_FAIL(E_MEM, "no memory to split a model");
    }
    memcpy(s->devices, opts->devices, (size_t)s->stages * sizeof *s->devices);
    for (int i = 0; i < s->stages; i++)
        hvt__use(&s->devices[i]->users, HVT__USER_MODEL, 1);
    hvt__split_free(m);
    m->split = s;
    return HVT_OK;
}

void hvt__split_free(hvt_model *m)
{
    struct hvt__split *s = m->split;

    if (!s)
        return;
    hvt__split_close(m);
    for (int i = 0; i < s->stages; i++)
        hvt__use(&s->devices[i]->users, HVT__USER_MODEL, -1);
    release_split(s);
    m->split = NULL;
}

bool hvt__model_is_split(const hvt_model *m)
{
    return m->split && m->split->stages > 1;
}

const char *hvt_model_stage(const hvt_model *m, int i, size_t *ret_bytes)
{
    const struct hvt__split *split = m ? m->split : NULL;
    const hvt__stage *s;
    int l;

    if (!split || !split->stage || i < 0 || i >= split->stages)
        return NULL;
    s = &split->stage[i];
    for (l = s->first; l == m->input || m->layer[l].folded; l++)
        ;
    if (ret_bytes)
        *ret_bytes = (size_t)s->slots * s->acts_bytes;
    return m->layer[l].name;
}

int hvt__stage_of(const hvt_model *m, int i)
{
    int k = 0;

    while (m->split && m->split->stage && k + 1 < m->split->stages && i >= m->split->stage[k].end)
        k++;
    return k;
}

bool hvt__crosses(const hvt_model *m, int v, int reader)
{
    return hvt__stage_of(m, v) != hvt__stage_of(m, reader);
}

/* ---- cuts ---- */

/* Counts the values that cross a cut before layer c; ret_value: the first two. */
static int crossing(const hvt_model *m, int c, int ret_value[2])
{
    int n = 0;

    for (int v = 0; v < c; v++) {
        bool is_read = false;

        for (int l = c; l < m->nlayer && !is_read; l++)
            for (int i = 0; i < m->layer[l].nin && !m->layer[l].folded; i++)
                is_read = is_read || m->layer[l].in[i] == v;
        if (is_read && n++ < 2)
            ret_value[n - 1] = v;
    }
    return n;
}

/* Returns a layer from c on that shares the parameters of a layer before c; NULL: none. */
static const hvt_layer *sharing(const hvt_model *m, int c)
{
    for (const hvt_layer *l = m->layer + c; l < m->layer + m->nlayer; l++)
        if (l->shares >= 0 && l->shares < c)
            return l;
    return NULL;
}

static bool is_possible(const hvt_model *m, int c)
{
    int value[2];

    return !m->layer[c].folded && c < m->nlayer - 1 && crossing(m, c, value) == 1 && value[0] != m->input &&
           !sharing(m, c);
}

/* Finds the first layer of the module, or the layer, of this name; -1: there is none. */
static int find_layer(const hvt_model *m, const char *name, size_t len)
{
    for (int i = 0; i < m->nlayer - 1; i++)
        if (!strncmp(m->layer[i].name, name, len) && (!m->layer[i].name[len] || m->layer[i].name[len] == '.'))
            return i;
    return -1;
}

/* Returns where the module of layer c begins. Layers without parameters right before it, such as a shortcut,
 * belong to it if the cut is possible only before them. */
static int begin_of(const hvt_model *m, int c)
{
    int at = c;

    while (at > 1 && !is_possible(m, at) && m->layer[at - 1].param[0] < 0)
        at--;
    return is_possible(m, at) ? at : c;
}

static hvt_status check_cut(const hvt_model *m, int c, const char *name, int len)
{
    const hvt_layer *tied = sharing(m, c);
    int value[2], n = crossing(m, c, value);

    HVT_CHECK(n < 2, E_ARG,
              "cut before %.*s: %d values cross it, such as %s and %s; expected a place that one value "
              "crosses, such as the start of a block",
              len, name, n, m->layer[value[0]].name, m->layer[value[1]].name);
    HVT_CHECK(!tied, E_ARG, "cut before %.*s: %s shares parameters across it with %s", len, name, tied->name,
              m->layer[tied->shares].name);
    return HVT_OK;
}

/* Finds the cuts by name: ret_cut[stages - 1], in the model's order. */
static hvt_status name_cuts(const hvt_model *m, int *ret_cut)
{
    const struct hvt__split *s = m->split;
    int names = 1, n = 0;

    for (const char *at = s->opts.at; (at = strchr(at, ',')); at++)
        names++;
    HVT_CHECK(names == s->stages - 1, E_ARG, "cut before %s: %d place%s for %d devices, expected %d",
              s->opts.at, names, names == 1 ? "" : "s", s->stages, s->stages - 1);
    for (const char *at = s->opts.at; n < names; n++) {
        const size_t len = strcspn(at, ",");
        const int found = find_layer(m, at, len), c = found < 0 ? -1 : begin_of(m, found);

        HVT_CHECK(len && c >= 0, E_ARG, "cut before '%.*s': the model has no layer or module of this name",
                  (int)len, at);
        HVT_TRY(check_cut(m, c, at, (int)len));
        HVT_CHECK(n == 0 || c >= ret_cut[n - 1], E_ARG,
                  "cut before %s: %.*s comes before the cut that precedes it; expected the model's order",
                  s->opts.at, (int)len, at);
        ret_cut[n] = c;
        at += len + (at[len] == ',');
    }
    return HVT_OK;
}

/* ---- costs ---- */

/* Estimates the nanoseconds of a training pass over an image on one core: products, memory traffic of
 * activations and, once for all images of a shard, of gradients. Only the proportions matter. */
static double cost(const hvt_model *m, const hvt_layer *l)
{
    const int i = (int)(l - m->layer);
    hvt__layer_facts f = {0};

    if (l->folded || !hvt__model_describe(m, i, &f))
        return 0;
    return (l->in[0] == m->input ? 2 : 3) * 0.03 * (double)f.multiply_adds +
           1.0 * hvt__pixels(l) * l->y.dim[3] / (l->is_weight ? m->batch : 1) +
           2.0 * (double)f.parameters / m->batch;
}

/* Shards in flight at stage k: all of them with synchronized batch norms. */
static int slots_of(const hvt_model *m, int k, int local)
{
    const struct hvt__split *s = m->split;
    const int most = s->opts.pipeline == HVT_PIPELINE_1F1B && !hvt__synchronizes(m) ? s->stages - k : local;

    return most < local ? most : local;
}

/* Parameters and gradients of layers [first, end), with the 16-bit copy. */
static size_t parameter_bytes(const hvt_model *m, int first, int end)
{
    size_t bytes = 0;

    for (const hvt_layer *l = m->layer + first; l < m->layer + end; l++)
        for (int i = 0; i < HVT_LAYER_PARAMS && l->shares < 0; i++) {
            const hvt_param *p = l->param[i] >= 0 ? &m->param[l->param[i]] : NULL;

            if (p)
                bytes += p->count *
                         ((p->frozen ? 1 : 2) * sizeof(float) + (m->type == HVT_F32 ? 0 : sizeof *m->copy));
        }
    return bytes;
}

size_t hvt__split_workspace(const hvt_model *m, int first, int end)
{
    size_t most = 0;

    for (int i = first; i < end; i++)
        most = m->layer[i].ws_bytes > most ? m->layer[i].ws_bytes : most;
    return most;
}

typedef struct planner {
    const hvt_model *m;
    const hvt_block *block;
    hvt_block *scratch; /* as many blocks */
    int lifetimes;      /* blocks per layer */
    int *place, places; /* possible cuts, between the first layer and the end */
    double *sum;        /* [layers + 1] costs before each layer */
    double *best;       /* [stages][places] time of the slowest stage up to this place */
    int *from;          /* [stages][places] where the last of these stages begins */
} planner;

/* Memory of layers [first, end) as stage k. */
static size_t bytes_of(const planner *p, int k, int first, int end)
{
    const struct hvt__split *s = p->m->split;
    const int n = p->lifetimes;

    memcpy(p->scratch, p->block + first * n, (size_t)((end - first) * n) * sizeof *p->scratch);
    return parameter_bytes(p->m, first, end) + hvt__split_workspace(p->m, first, end) +
           (size_t)slots_of(p->m, k, s->opts.micro_batches) * hvt__arena_fit(p->scratch, (end - first) * n);
}

static bool fits(const planner *p, int k, int first, int end, bool limited)
{
    const size_t limit = p->m->split->opts.memory_limit;

    return !limited || !limit || bytes_of(p, k, first, end) <= limit;
}

/* Finds the cuts whose slowest stage is fastest; false if no cuts fit the devices' memory. */
static bool balance(const planner *p, bool limited, int *ret_cut)
{
    const int stages = p->m->split->stages, n = p->places;

    for (int k = 0; k < stages; k++)
        for (int j = k + 1; j < n; j++) {
            double *best = &p->best[k * n + j];

            *best = INFINITY;
            for (int i = k; i < (k ? j : 1); i++) {
                const double before = k ? p->best[(k - 1) * n + i] : 0;
                const double mine = fmax(before, p->sum[p->place[j]] - p->sum[p->place[i]]);

                if (mine < *best && fits(p, k, p->place[i], p->place[j], limited)) {
                    *best = mine;
                    p->from[k * n + j] = i;
                }
            }
        }
    if (!isfinite(p->best[stages * n - 1]))
        return false;
    for (int k = stages - 1, j = n - 1; k > 0; k--) {
        j = p->from[k * n + j];
        ret_cut[k - 1] = p->place[j];
    }
    return true;
}

static hvt_status plan_cuts(const hvt_model *m, const hvt_block *block, int lifetimes, int *ret_cut)
{
    const int n = m->nlayer, stages = m->split->stages;
    planner p = {.m = m, .block = block, .lifetimes = lifetimes};
    hvt_status s = HVT_OK;

    p.place = malloc(((size_t)n + 1) * sizeof *p.place);
    p.sum = calloc((size_t)n + 1, sizeof *p.sum);
    p.best = malloc((size_t)stages * ((size_t)n + 1) * sizeof *p.best);
    p.from = malloc((size_t)stages * ((size_t)n + 1) * sizeof *p.from);
    p.scratch = malloc((size_t)(n * lifetimes) * sizeof *p.scratch);
    HVT_CHECK_OR(done, p.place && p.sum && p.best && p.from && p.scratch, E_MEM,
                 "no memory to split a model of %d layers", n);
    for (int i = 0; i < n; i++) {
        p.sum[i + 1] = p.sum[i] + cost(m, &m->layer[i]);
        if (i == 0 || is_possible(m, i))
            p.place[p.places++] = i;
    }
    p.place[p.places++] = n;
    HVT_CHECK_OR(done, p.places > stages, E_ARG,
                 "cut into %d stages: the model has only %d places that one value crosses", stages,
                 p.places - 2);
    if (!balance(&p, true, ret_cut))
        balance(&p, false, ret_cut); /* hvt__split_check() says what does not fit */
done:
    free(p.place);
    free(p.sum);
    free(p.best);
    free(p.from);
    free(p.scratch);
    return s;
}

/* Checks that a stage computes something: it has a layer besides the images and the loss. */
static hvt_status check_stage(const hvt_model *m, int k)
{
    const hvt__stage *stage = &m->split->stage[k];

    for (int i = stage->first; i < stage->end; i++)
        if (i != m->input && i < m->nlayer - 1 && !m->layer[i].folded)
            return HVT_OK;
    return HVT_FAIL(E_ARG, "cut before %s: no layer is left for device %d of %d", m->split->opts.at, k,
                    m->split->stages);
}

hvt_status hvt__split_choose(hvt_model *m, const hvt_block *block, int lifetimes)
{
    struct hvt__split *s = m->split;
    int *cut = malloc((size_t)s->stages * sizeof *cut);
    hvt_status status;

    HVT_CHECK(cut, E_MEM, "no memory for %d stages", s->stages);
    status = *s->opts.at ? name_cuts(m, cut) : plan_cuts(m, block, lifetimes, cut);
    if (status == HVT_OK && !(s->stage = calloc((size_t)s->stages, sizeof *s->stage)))
        status = HVT_FAIL(E_MEM, "no memory for %d stages", s->stages);
    for (int k = 0; status == HVT_OK && k < s->stages; k++) {
        s->stage[k].dev = s->devices[k];
        s->stage[k].first = k ? cut[k - 1] : 0;
        s->stage[k].end = k + 1 < s->stages ? cut[k] : m->nlayer;
    }
    for (int k = 0; status == HVT_OK && k < s->stages; k++)
        status = check_stage(m, k);
    free(cut);
    return status;
}

/* ---- memory ---- */

static hvt_status check_limit(const hvt_model *m, int k, size_t acts, size_t others)
{
    const size_t limit = m->split->opts.memory_limit;
    const double mib = 1 << 20;

    HVT_CHECK(!limit || acts + others <= limit, E_MEM,
              "device %s:%d needs %.1f MiB, of which %.1f MiB are activations, but its limit is %.1f MiB",
              m->dev->ops->name, k, (double)(acts + others) / mib, (double)acts / mib, (double)limit / mib);
    return HVT_OK;
}

hvt_status hvt__split_check(const hvt_model *m, int local)
{
    const struct hvt__split *s = m->split;

    if (!s)
        return HVT_OK;
    if (!hvt__model_is_split(m))
        return check_limit(m, 0, (m->sync ? (size_t)local : 1) * m->acts_bytes,
                           parameter_bytes(m, 0, m->nlayer) + m->ws_bytes);
    for (int k = 0; k < s->stages; k++) {
        const hvt__stage *stage = &s->stage[k];

        HVT_TRY(check_limit(m, k, (size_t)slots_of(m, k, local) * stage->acts_bytes,
                            parameter_bytes(m, stage->first, stage->end) + stage->ws_bytes));
    }
    return HVT_OK;
}

static hvt_status reserve(hvt__stage *stage, int slots)
{
    void **acts = realloc(stage->acts, (size_t)slots * sizeof *acts);

    HVT_CHECK(acts, E_MEM, "no memory for the activations of %d shards", slots);
    for (stage->acts = acts; stage->slots < slots; stage->slots++)
        HVT_TRY(stage->dev->ops->memory.alloc(stage->dev, stage->acts_bytes + 1, &acts[stage->slots]));
    return HVT_OK;
}

hvt_status hvt__split_allocate(hvt_model *m)
{
    for (hvt__stage *s = m->split->stage; s < m->split->stage + m->split->stages; s++) {
        HVT_TRY(reserve(s, 1));
        if (s->ws_bytes)
            HVT_TRY(s->dev->ops->memory.alloc(s->dev, s->ws_bytes, &s->ws));
    }
    return HVT_OK;
}

hvt_status hvt__split_reserve(hvt_model *m, int local)
{
    struct hvt__split *s = m->split;

    for (int k = 0; k < s->stages; k++)
        HVT_TRY(reserve(&s->stage[k], slots_of(m, k, local)));
    return HVT_OK;
}

size_t hvt__split_bytes(const hvt_model *m, size_t *ret_ws)
{
    size_t bytes = 0;

    *ret_ws = 0;
    for (int k = 0; hvt__model_is_split(m) && m->split->stage && k < m->split->stages; k++) {
        const hvt__stage *s = &m->split->stage[k];

        bytes += (size_t)s->slots * s->acts_bytes;
        *ret_ws += s->ws_bytes;
    }
    return bytes;
}

/* ---- views ---- */

hvt_model *hvt__view(hvt_model *m, int i)
{
    return hvt__model_is_split(m) ? &m->split->stage[hvt__stage_of(m, i)].view : m;
}

void hvt__views_refresh(hvt_model *m)
{
    for (int k = 0; hvt__model_is_split(m) && k < m->split->stages; k++) {
        hvt__stage *s = &m->split->stage[k];
        hvt_model *v = &s->view, was = *v;

        *v = *m;
        v->dev = s->dev;
        v->stage = s;
        v->layer = was.layer;
        v->acts = s->acts[0];
        v->acts_bytes = s->acts_bytes;
        v->acts_shift = was.acts_shift;
        v->ending = was.ending;
        v->nending = was.nending;
        v->ws = s->ws;
        v->turn = was.turn;
    }
}

hvt_status hvt__split_open(hvt_model *m, hvt_block *block, int lifetimes)
{
    const size_t bytes = (size_t)m->nlayer * sizeof *m->layer;

    for (hvt__stage *s = m->split->stage; s < m->split->stage + m->split->stages; s++) {
        s->from = s->first - 1;
        while (s->from > 0 && m->layer[s->from].folded)
            s->from--;
        if (s->first) {
            s->from_y = m->layer[s->from].y.data;
            s->from_dy = m->layer[s->from].dy.data;
        }
        s->view.layer = malloc(bytes);
        HVT_CHECK(s->view.layer, E_MEM, "no memory for the %d layers of a stage", m->nlayer);
        memcpy(s->view.layer, m->layer, bytes);
        if (block) {
            s->view.ending = block + s->first * lifetimes;
            s->view.nending = (s->end - s->first) * lifetimes;
        }
    }
    hvt__views_refresh(m);
    return HVT_OK;
}

void hvt__split_close(hvt_model *m)
{
    struct hvt__split *s = m->split;

    for (int k = 0; s && s->stage && k < s->stages; k++) {
        hvt__stage *stage = &s->stage[k];

        for (int i = 0; i < stage->slots; i++)
            stage->dev->ops->memory.release(stage->dev, stage->acts[i]);
        stage->dev->ops->memory.release(stage->dev, stage->ws);
        free(stage->acts);
        free(stage->view.layer);
    }
    if (s) {
        free(s->stage);
        s->stage = NULL;
    }
}

/* ---- a pass without a step ---- */

hvt_status hvt__split_forward(hvt_model *m)
{
    hvt__views_refresh(m);
    m->split->stage->view.layer[m->input].y.data = m->layer[m->input].y.data;
    for (hvt__stage *s = m->split->stage; s < m->split->stage + m->split->stages; s++) {
        hvt__turn_to(&s->view, -1);
        for (int i = s->first; i < s->end; i++)
            HVT_TRY(hvt__layer_forward(&s->view, &s->view.layer[i]));
    }
    return HVT_OK;
}

hvt_status hvt__split_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx, size_t *mark)
{
    for (int k = m->split->stages - 1; k >= 0; k--) {
        hvt__stage *s = &m->split->stage[k];

        for (int i = s->end - 1; i >= s->first; i--)
            HVT_TRY(hvt__layer_backward(&s->view, &s->view.layer[i], on_grad, ctx, mark));
    }
    return HVT_OK;
}
