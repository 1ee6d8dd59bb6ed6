/*
 * Lowers the laid-out graph to a tape: a table gives the public builder of each operation. Nothing else
 * in the importer calls builders.
 */
#include "pt2_impl.h"

#include "graph.h"

typedef struct kept {
    const char *name;
    hvt_value made;
} kept;

typedef struct lowering {
    const pt2_graph *g;
    hvt_model *m;
    hvt_value images, *at; /* [names] the tape's value for each value of the graph */
    int classes;           /* number of classes that the heads get; 0: as in the file */
    kept *kept;            /* [nkept] names of layers, and the first value made with their parameters */
    int nkept;
    bool headed; /* sizes differ from the file from here on */
} lowering;

static hvt_value in(const lowering *l, const pt2_node *n, int i)
{
    return i < n->nin ? l->at[n->in[i]->number] : -1;
}

/* ---- names ---- */

static const kept *find(const lowering *l, const char *name)
{
    for (int i = 0; i < l->nkept; i++)
        if (!strcmp(l->kept[i].name, name))
            return &l->kept[i];
    return NULL;
}

/* Names the layer that is appended next, or makes it share the parameters of the layer that has the name. */
static void begin(lowering *l, const pt2_node *n)
{
    const kept *made = n->is.layer ? find(l, n->is.layer) : NULL;

    if (made)
        hvt_share(l->m, made->made);
    else if (n->is.layer)
        hvt_name(l->m, "%s", n->is.layer);
}

static void keep(lowering *l, const pt2_node *n, hvt_value v)
{
    if (n->is.layer && !find(l, n->is.layer))
        l->kept[l->nkept++] = (kept){n->is.layer, v};
}

/* ---- layers ---- */

/* The sizes of a parameter; those that are the number of classes follow --classes. */
static const int *sizes(const lowering *l, const pt2_node *n, int dim[4])
{
    for (int i = 0; i < n->is.parameter.ndim; i++) {
        const int size = n->is.parameter.dim[i];

        dim[i] = l->headed && n->is.parameter.of->resized && size == l->g->classes ? l->classes : size;
    }
    return dim;
}

static hvt_value drop_path(hvt_model *m, hvt_value x, pt2_share share, double p)
{
    return share == PT2_PER_ELEMENT   ? hvt_dropout(m, x, p)
           : share == PT2_PER_CHANNEL ? hvt_dropout_channels(m, x, p)
                                      : hvt_drop_path(m, x, p, share == PT2_PER_BATCH);
}

static hvt_value concat(const lowering *l, const pt2_node *n)
{
    hvt_value few[64] = {0}, *v = n->nin > (int)HVT_LEN(few) ? malloc((size_t)n->nin * sizeof *v) : few,
              made = -1;

    for (int i = 0; i < n->nin && v; i++)
        v[i] = in(l, n, i);
    if (v)
        made = n->op == PT2_CONCAT ? hvt_concat(l->m, v, n->nin)
                                   : hvt_weight_concat(l->m, v, n->nin, n->is.tensor.along);
    if (v != few)
        free(v);
    return made;
}

static hvt_value attention(const lowering *l, const pt2_node *n)
{
    hvt_attention_opts o = n->is.attend;
    const hvt_value table = in(l, n, 3);

    o.table = n->nin == 4 ? &table : NULL;
    return n->nin == 1 ? hvt_self_attention_with(l->m, in(l, n, 0), &o)
                       : hvt_attention_with(l->m, in(l, n, 0), in(l, n, 1), in(l, n, 2), &o);
}

/* A convolution or linear layer with its own weight, or with a computed one. */
static hvt_value weighted(const lowering *l, const pt2_node *n, const hvt_conv2d_opts *o)
{
    const hvt_value x = in(l, n, 0), w = in(l, n, 1), b = in(l, n, 2);
    const bool own = n->nin == 1;

    switch (n->op) {
    case PT2_CONV:
        return own ? hvt_conv2d_with(l->m, x, o) : hvt_conv2d_by(l->m, x, w, b, o);
    case PT2_CONV_TRANSPOSE:
        return own ? hvt_conv_transpose2d(l->m, x, o) : hvt_conv_transpose2d_by(l->m, x, w, b, o);
    default:
        return own ? hvt_linear_with(l->m, x, o->filters, o->bias) : hvt_linear_by(l->m, x, w, b);
    }
}

/*
 * The builder of each operation, with m the model, x and y its inputs, h x w x c its output and `is` its
 * attributes.
 */
/* clang-format off */
#define LAYERS(X)                                                                                            \
    X(CONV, weighted(l, n, &conv))                                                                           \
    X(CONV_TRANSPOSE, weighted(l, n, &conv))                                                                 \
    X(LINEAR, weighted(l, n, &conv))                                                                         \
    X(INTERPOLATE, hvt_interpolate(m, x, &is->interpolate))                                                  \
    X(PIXEL_SHUFFLE, hvt_pixel_shuffle(m, x, is->groups))                                                    \
    X(PIXEL_UNSHUFFLE, hvt_pixel_unshuffle(m, x, is->groups))                                                \
    X(BORDER, hvt_pad_with(m, x, border->how, border->by[0], border->by[1], border->by[2], border->by[3]))   \
    X(BATCH_NORM, is->norm.trains ? hvt_batchnorm_with(m, x, eps, (float)is->norm.momentum)                  \
                                  : hvt_batchnorm_fixed(m, x, eps))                                          \
    X(LAYER_NORM, hvt_layernorm(m, x, (hvt_over)is->norm.dims, eps, is->norm.affine))                        \
    X(GROUP_NORM, hvt_groupnorm(m, x, is->norm.groups, eps, is->norm.affine))                                \
    X(ATTENTION, attention(l, n))                                                                            \
    X(ROTARY, hvt_rotary(m, x, &is->rotate.opts))                                                            \
    X(POOL, hvt_pool_with(m, x, is->pool.kind, &is->pool.opts))                                              \
    X(ADAPTIVE_POOL, is->pool.kind == HVT_POOL_MEAN && h == 1 && w == 1 ? hvt_avgpool(m, x)                  \
                     : hvt_adaptive_pool(m, x, is->pool.kind, is->pool.opts.size[0], is->pool.opts.size[1])) \
    X(DROPOUT, hvt_dropout(m, x, is->dropout.p))                                                             \
    X(DROPOUT_CHANNELS, hvt_dropout_channels(m, x, is->dropout.p))                                           \
    X(DROP_PATH, drop_path(m, x, is->dropout.share, is->dropout.p))                                          \
    X(MAP, hvt_apply(m, x, (hvt_function)is->map.f, (float)is->map.a, (float)is->map.b))                     \
    X(BINARY, hvt_combine(m, (hvt_binary)is->binary.op, x, y))                                               \
    X(PARAMETER, (is->parameter.of->source == PT2_BUFFER ? hvt_combine_constant : hvt_combine_parameter)     \
                 (m, is->parameter.op, x, is->parameter.ndim, sizes(l, n, dim), is->parameter.init))         \
    X(EMBEDDING, is->parameter.of->source == PT2_BUFFER                                                      \
          ? hvt_add_constant_embedding(m, x, is->parameter.first, is->parameter.ndim, is->parameter.dim)     \
          : hvt_add_embedding(m, x, is->parameter.first, is->parameter.ndim, is->parameter.dim,              \
                              is->parameter.init))                                                           \
    X(ZEROS, hvt_zeros(m, l->images, h, w, c))                                                               \
    X(CONSTANT, hvt_constant(m, l->images, h, w, c, is->values))                                             \
    X(CONCAT, concat(l, n))                                                                                  \
    X(CHANNELS, hvt_slice(m, x, is->channels.first, is->channels.count))                                     \
    X(SHUFFLE, hvt_shuffle(m, x, is->groups))                                                                \
    X(TRANSPOSE, hvt_transpose(m, x, is->transpose.rows, is->transpose.columns, is->transpose.block, h, w))  \
    X(PIXELS, hvt_reshape(m, x, h, w))                                                                       \
    X(FLATTEN, hvt_flatten(m, x))                                                                            \
    X(SUBSAMPLE, hvt_subsample(m, x, 1, c))                                                                  \
    X(PAD, hvt_pad(m, x, is->by[0], is->by[1], is->by[2], is->by[3]))                                        \
    X(MEAN_CHANNELS, hvt_mean_channels(m, x))                                                                \
    X(MAX_CHANNELS, hvt_max_channels(m, x))                                                                  \
    X(MAX_GROUPS, hvt_max_groups(m, x, is->groups))                                                          \
    X(MAXIMA, hvt_amax(m, x, is->amax.h, is->amax.w, is->amax.groups))                                      \
    X(MATMUL, hvt_matmul(m, x, y, is->transposed))                                                           \
    X(GATHER, hvt_gather_pixels(m, x, h, w, is->gather.terms, is->gather.index))             \
    X(WEIGHT, t->is_buffer ? hvt_weight_buffer(m, t->ndim, t->dim, (float)t->init)                           \
              : hvt_weight_parameter(m, t->ndim, t->dim, (float)t->init, (float)t->deviation))               \
    X(WEIGHT_NUMBERS, hvt_weight_numbers(m, t->ndim, t->dim, t->values))                                     \
    X(WEIGHT_VIEW, hvt_weight_view(m, x, t->first, t->ndim, t->dim, t->dense ? NULL : t->stride))            \
    X(WEIGHT_SUM, hvt_weight_sum(m, x, t->over))                                                             \
    X(WEIGHT_MATMUL, hvt_weight_matmul(m, x, y))                                                             \
    X(WEIGHT_CONCAT, concat(l, n))                                                                           \
    X(WEIGHT_STANDARDISE, hvt_weight_standardise(m, x, (float)t->eps))
/* clang-format on */

static hvt_value build(const lowering *l, const pt2_node *n)
{
    const pt2_attributes *is = &n->is;
    const pt2_tensor *t = &is->tensor;
    const int64_t *size = n->out[0]->size;
    const int h = (int)size[0], w = (int)size[1], c = (int)size[2];
    const hvt_value x = in(l, n, 0), y = in(l, n, 1);
    const float eps = (float)is->norm.eps;
    const pt2_border *border = &is->border;
    hvt_model *m = l->m;
    hvt_conv2d_opts conv = is->convolution;
    int dim[4];

    conv.filters = l->classes && n->head ? l->classes : conv.filters;
    switch (n->op) {
#define LAYER(op, ...)                                                                                       \
    case PT2_##op:                                                                                           \
        return __VA_ARGS__;
        LAYERS(LAYER)
#undef LAYER
    default:
        return -1;
    }
}

/* Reports the mistake of a builder at node n; the plan has its message. */
static hvt_status mistake(const lowering *l, const pt2_node *n)
{
    const hvt_status s = hvt_model_plan(l->m, l->g->batch, -1);
    char why[600];

    if (s == HVT_E_MEM)
        return hvt__pass(s, __FILE__, __LINE__, "import");
    if (l->headed)
        snprintf(why, sizeof why, "%s, with %d classes in place of %d", hvt_last_error(), l->classes,
                 l->g->classes);
    else
        snprintf(why, sizeof why, "%s", hvt_last_error());
    return hvt__pt2_fail_at(l->g, n, why);
}

/* Compares the sizes of the tape with those in the file. After a head with other classes they may differ. */
static hvt_status check_shape(const lowering *l, const pt2_node *n, hvt_value v)
{
    const int64_t *want = n->out[0]->size;
    char why[200];
    int is[3];

    if (l->headed)
        return HVT_OK;
    hvt_value_shape(l->m, v, is);
    if (is[0] == want[0] && is[1] == want[1] && is[2] == want[2])
        return HVT_OK;
    snprintf(why, sizeof why, "its output is %dx%dx%d here, but %lldx%lldx%lld in the file", is[0], is[1],
             is[2], (long long)want[0], (long long)want[1], (long long)want[2]);
    return hvt__pt2_fail_at(l->g, n, why);
}

static hvt_status lower(lowering *l)
{
    for (const pt2_node *n = l->g->first; n; n = n->after) {
        hvt_value v;

        begin(l, n);
        if (l->classes && n->head && n->nin > 1)
            return hvt__pt2_fail_at(l->g, n, "its weight is computed, so that --classes cannot change it");
        v = build(l, n);
        l->headed = l->headed || (l->classes && n->head);
        if (v < 0)
            return mistake(l, n);
        HVT_TRY(check_shape(l, n, v));
        keep(l, n, v);
        l->at[n->out[0]->number] = v;
    }
    return HVT_OK;
}

hvt_status hvt__pt2_lower(const pt2_graph *g, hvt_model *m, hvt_value images, int classes,
                          hvt_value *ret_logits)
{
    lowering l = {.g = g, .m = m, .images = images, .classes = classes};
    hvt_status s;
    int nodes = 1;

    HVT_CHECK(!classes || g->rows, E_UNSUPPORTED,
              "%s: the model's output is [N]; with --classes it must be [N, classes] or [N, classes, H, W]",
              g->path);
    for (const pt2_node *n = g->first; n; n = n->after)
        nodes++;
    l.at = calloc((size_t)g->names, sizeof *l.at);
    l.kept = calloc((size_t)nodes, sizeof *l.kept);
    HVT_CHECK_OR(done, l.at && l.kept, E_MEM, "%s: no memory for %d layers", g->path, nodes);
    l.at[g->images->number] = images;
    s = lower(&l);
    if (s == HVT_OK)
        *ret_logits = l.at[g->logits->number];
done:
    free(l.at);
    free(l.kept);
    return s;
}
