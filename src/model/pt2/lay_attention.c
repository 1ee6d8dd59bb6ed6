/*
 * Attention: which pixels are the tokens of each window, and what is added to the scores. Rotary
 * embeddings.
 */
#include "layout.h"

#include <math.h>

/* Limits: tokens of an image, and scores of the example input if something is added to them. */
enum { MOST_TOKENS = 1 << 22, MOST_SCORES = 1 << 24 };

/* A tensor read as [N, windows, heads, tokens, width], where adjacent ones of the first three may be joined
 * or missing; turned: [.., width, tokens]. */
typedef struct division {
    int heads, width, windows, tokens;
    pt2_atom atom[PT2_ATOMS + PT2_DIMS]; /* [atoms] pixels of windows, then of tokens */
    int atoms;
} division;

static bool is_pixel(const pt2_atom *a)
{
    return a->axis == 'H' || a->axis == 'W';
}

/* Takes atoms of pixels from *at on. Returns how many pixels they are, at most MOST_TOKENS + 1. */
static int take_pixels(const pt2_axes *x, int *at, int end, division *d)
{
    int64_t pixels = 1;

    for (; *at < end && is_pixel(&x->atom[*at]) && pixels <= MOST_TOKENS; ++*at) {
        pixels *= x->atom[*at].extent;
        d->atom[d->atoms++] = x->atom[*at];
    }
    return (int)(pixels > MOST_TOKENS ? MOST_TOKENS + 1 : pixels);
}

static bool divide(const pt2_axes *x, bool turned, division *ret)
{
    const int n = x->ndim, channels = turned ? n - 2 : n - 1, tokens = turned ? n - 1 : n - 2;
    division d = {.heads = 1, .width = 1};
    int at = 0, end;

    if (n < 3)
        return false;
    end = x->end[n - 3];
    if (at < end && x->atom[at].axis == 'N')
        at++;
    d.windows = take_pixels(x, &at, end, &d);
    if (x->end[channels] > x->end[channels - 1]) {
        const pt2_atom *c = &x->atom[x->end[channels - 1]];

        if (x->end[channels] - x->end[channels - 1] > 1 || c->axis != 'C' || c->stride != 1)
            return false;
        d.width = (int)c->extent;
    }
    if (at < end && x->atom[at].axis == 'C' && x->atom[at].stride == d.width)
        d.heads = (int)x->atom[at++].extent;
    if (at < end)
        return false;
    at = x->end[tokens - 1];
    d.tokens = take_pixels(x, &at, x->end[tokens], &d);
    *ret = d;
    return at == x->end[tokens] && (int64_t)d.windows * d.tokens <= MOST_TOKENS;
}

/* Numbers the pixel of each token of each window in row-major order; NULL: tokens are not all pixels. */
static int *pixels_of(pt2_layout *l, const pt2_place *p, const division *d)
{
    const int64_t *size = p->v->size;
    int n = d->windows * d->tokens, *pixel;
    int64_t digit[PT2_ATOMS + PT2_DIMS] = {0};

    if (n != size[0] * size[1])
        return NULL;
    pixel = hvt__pt2_make(l->g, (size_t)n * sizeof *pixel);
    for (int i = 0; i < n; i++) {
        int64_t at[2] = {p->axes.roll[0], p->axes.roll[1]};

        for (int a = 0; a < d->atoms; a++)
            at[d->atom[a].axis == 'W'] += digit[a] * d->atom[a].stride;
        pixel[i] = (int)(at[0] % size[0] * size[1] + at[1] % size[1]);
        for (int a = d->atoms - 1; a >= 0 && ++digit[a] == d->atom[a].extent; a--)
            digit[a] = 0;
    }
    return pixel;
}

static bool in_order(const int *pixel, int n)
{
    int i = 0;

    while (i < n && pixel[i] == i)
        i++;
    return i == n;
}

/* ---- what is added to the scores ---- */

/* The number at an index. A bool says whether the key takes part. */
static float number_at(const pt2_array *x, const pt2_value *v, int ndim, const int64_t *at)
{
    const double y = x->number ? x->number[hvt__array_element(x, ndim, at)] : 0;

    if (v->type == PT2_BOOL)
        return y != 0 ? 0 : (float)-1e30;
    return (float)(y < -1e30 ? -1e30 : y > 1e30 ? 1e30 : y);
}

/* Collects a term: table elements must be equal for all images and windows, numbers for all images and heads.
 */
static void collect(pt2_layout *l, const pt2_addition *a, const division *q, int keys, int *bias, float *mask)
{
    const pt2_array *x = hvt__array_of(l->g, l->n, a->value);
    const int64_t scores = (int64_t)q->tokens * keys;
    int64_t at[PT2_DIMS] = {0}, i = 0;

    do {
        const int64_t in_window = i % scores, head = i / scores % q->heads,
                      window = i / scores / q->heads % q->windows;
        const bool first_image = i / scores / q->heads / q->windows == 0;
        const int e = x->term ? x->term[hvt__array_element(x, a->ndim, at)].at[0] : -1;
        const float number = number_at(x, a->value, a->ndim, at);
        int *b = &bias[head * scores + in_window];
        float *m = &mask[window * scores + in_window];

        if (x->term && window == 0 && first_image)
            *b = e;
        if (head == 0 && first_image)
            *m = number;
        if ((x->term && *b != e) || *m != number)
            REFUSE(l, "%s",
                   x->term && *b != e
                       ? "the parameter added to attention's scores differs between images or windows"
                       : "the numbers added to attention's scores differ between images or heads");
        i++;
    } while (hvt__array_next(a->ndim, a->size, at));
}

/* The table as a value of the tape, with its sigmoid and gain. */
static pt2_value *table_value(pt2_layout *l, const pt2_array *x)
{
    const pt2_place *p = hvt__place(l, x->of);
    pt2_value *v;

    if (!hvt__axes_in_order(&p->axes))
        REFUSE(l, "the tensor added to its scores is computed in a different order of elements");
    v = p->v;
    v = x->sigmoid ? hvt__emit_map(l, v, HVT_SIGMOID, 0, 0) : v;
    return x->gain != 0 ? hvt__emit_map(l, v, HVT_AFFINE, (float)x->gain, 0) : v;
}

/* Makes the parameter the layer's own table. */
static void parameter_table(pt2_layout *l, const pt2_value *v, pt2_attributes *is)
{
    const pt2_value *of = hvt__pt2_state_of(v);

    if (of->ndim < 1 || of->ndim > 4)
        REFUSE(l, "%s has no dimensions, or more than 4", of->state);
    is->attend.ndim = of->ndim;
    for (int i = 0; i < of->ndim; i++)
        is->attend.dim[i] = (int)of->size[i];
    is->layer = of->state;
    hvt__lay_keep_layer(l, of->state);
}

/* Refuses the node if a mask excludes every key of a query. */
static void check_mask(pt2_layout *l, const float *mask, int64_t rows, int keys, int tokens)
{
    for (int64_t row = 0; row < rows; row++) {
        int j = 0;

        while (j < keys && mask[row * keys + j] <= -1e30f)
            j++;
        if (j == keys)
            REFUSE(l, "query %d of window %d has no key that counts", (int)(row % tokens),
                   (int)(row / tokens));
    }
}

/* Excludes keys after the query's own position. */
static void add_causal(float *mask, int64_t masked, int64_t scores, int keys)
{
    for (int64_t i = 0; i < masked; i++)
        mask[i] += i % scores % keys > i % scores / keys ? -1e30f : 0;
}

/* Fills in what is added to the scores. Returns the table; NULL: it is the layer's parameter, or there is
 * none. */
static pt2_value *add_to(pt2_layout *l, const division *q, int keys, pt2_attributes *is)
{
    const pt2_attributes *of = &l->n->is;
    const pt2_array *from = NULL;
    const int64_t scores = (int64_t)q->tokens * keys, biases = scores * q->heads,
                  masked = scores * q->windows, all_scores = biases * q->windows * l->g->batch;
    float *mask, *one;
    int *bias, *other;
    bool all_zero = true;

    if (!of->attention.nadded && !of->attention.causal)
        return NULL;
    if (all_scores > MOST_SCORES)
        REFUSE(l, "something is added to more than %d scores of %d images; export it with an example of one",
               MOST_SCORES, l->g->batch);
    mask = hvt__pt2_make(l->g, (size_t)masked * sizeof *mask);
    one = hvt__pt2_make(l->g, (size_t)masked * sizeof *one);
    bias = hvt__pt2_make(l->g, (size_t)biases * sizeof *bias);
    other = hvt__pt2_make(l->g, (size_t)biases * sizeof *other);
    if (of->attention.causal)
        add_causal(mask, masked, scores, keys);
    for (int k = 0; k < of->attention.nadded; k++) {
        const pt2_addition *a = &of->attention.added[k];
        const pt2_array *x = hvt__array_of(l->g, l->n, a->value);

        if (!x || hvt__pt2_count(a->ndim, a->size) != all_scores)
            REFUSE(l, "what is added to its scores has %lld elements, not %lld",
                   (long long)hvt__pt2_count(a->ndim, a->size), (long long)all_scores);
        if (x->term && from)
            REFUSE(l, "two parameters are added to its scores; expected one");
        collect(l, a, q, keys, x->term ? bias : other, one);
        from = x->term ? x : from;
        for (int64_t i = 0; i < masked; i++)
            mask[i] += one[i];
    }
    for (int64_t i = 0; i < masked; i++)
        all_zero = all_zero && mask[i] == 0;
    check_mask(l, mask, masked / keys, keys, q->tokens);
    is->attend.mask = all_zero ? NULL : mask;
    if (!from)
        return NULL;
    is->attend.bias = bias;
    if (from->sigmoid || from->gain != 0 || from->of->place || !hvt__lay_is_state(from->of))
        return table_value(l, from);
    parameter_table(l, from->of, is);
    return NULL;
}

/* ---- the layer ---- */

/* Arranges a's pixels as one line if b's are one line. */
static pt2_value *in_one_line(pt2_layout *l, pt2_value *a, const pt2_value *b)
{
    return a->size[0] > 1 && b->size[0] == 1 ? hvt__emit_pixels(l, a, 1, a->size[0] * a->size[1]) : a;
}

/* True for [heads,1,1], maybe with more dimensions of 1 in front, which multiplies scores [.., heads,
 * queries, keys]. */
static bool is_per_head(const pt2_place *p)
{
    const int n = p->axes.ndim;
    bool fits = n >= 3 && hvt__axes_is(&p->axes, n - 3, 'C');

    for (int i = 0; i < n && fits; i++)
        fits = i == n - 3 || p->axes.end[i] == hvt__axes_begin(&p->axes, i);
    return fits;
}

/* Multiplies q, [.., heads * width], by one factor per head. */
static pt2_value *times_heads(pt2_layout *l, pt2_value *q, const division *d, pt2_value *per_head)
{
    const int n = d->heads * d->width;
    const pt2_place *p = hvt__place(l, per_head);
    pt2_value *v;

    if (!is_per_head(p))
        REFUSE(
            l,
            "its scores are multiplied by what is no factor for each head, a parameter or computed of some");
    v = hvt__emit_transpose(l, p->v, 1, 1, d->heads, 1, d->heads);
    v = hvt__emit_binary(l, HVT_ADD, hvt__emit_zeros(l, 1, d->heads, d->width), v);
    return hvt__emit_binary(l, HVT_MUL, q, hvt__emit_transpose(l, v, 1, 1, n, 1, 1));
}

/* The value whose channels split into these three equal parts, in order; NULL: there is none. */
static pt2_value *whole_of(pt2_value *const *part)
{
    pt2_value *whole = NULL;

    for (int i = 0; i < 3; i++) {
        const pt2_node *cut = hvt__pt2_maker(part[i], PT2_CHANNELS);
        const int third = (int)part[i]->size[2];

        if (!cut || (whole && cut->in[0] != whole) || cut->is.channels.first != i * third ||
            cut->in[0]->size[2] != (int64_t)3 * third)
            return NULL;
        whole = cut->in[0];
    }
    return whole;
}

static bool are_rotated_alike(const pt2_node *a, const pt2_node *b)
{
    const hvt_rotary_opts *x = &a->is.rotate.opts, *y = &b->is.rotate.opts;
    const size_t bytes = (size_t)(a->in[0]->size[0] * a->in[0]->size[1] * x->width) * sizeof *x->own;

    return x->width == y->width && x->apart == y->apart && !memcmp(x->own, y->own, bytes) &&
           !memcmp(x->other, y->other, bytes);
}

/* Makes queries and keys one rotary layer if they are adjacent channels and rotated alike. */
static void rotate_together(pt2_layout *l, pt2_place *part)
{
    const pt2_node *a = hvt__pt2_maker(part[0].v, PT2_ROTARY), *b = hvt__pt2_maker(part[1].v, PT2_ROTARY);
    pt2_value *v = a && b ? whole_of((pt2_value *[]){a->in[0], b->in[0], part[2].v}) : NULL;
    pt2_attributes is;
    int third;

    if (!v || !are_rotated_alike(a, b))
        return;
    third = (int)part[0].v->size[2];
    is = a->is;
    is.rotate.opts.vectors = 2 * third / is.rotate.opts.width;
    v = hvt__emit_like(l, PT2_ROTARY, &is, v);
    for (int i = 0; i < 3; i++)
        part[i].v = hvt__emit_channels(l, v, i * third, third);
}

/* x without a factor that the scores can take, if x is a slice of channels, rotated or not; else x itself. */
static pt2_value *without_factor(pt2_value *x, double *ret_factor)
{
    const pt2_node *n;
    pt2_value *v = x;
    double factor = 1;

    for (; (n = hvt__pt2_maker(v, PT2_MAP)) && n->is.map.f == HVT_AFFINE && n->is.map.b == 0; v = n->in[0])
        factor *= n->is.map.a;
    n = hvt__pt2_maker(v, PT2_ROTARY);
    if (!hvt__pt2_maker(n ? n->in[0] : v, PT2_CHANNELS))
        return x;
    *ret_factor = factor;
    return v;
}

/* Finds the pixels of the tokens, which queries, keys and values must share unless they are in order
 * (*ret_pixel is NULL then). False: they differ. */
static bool find_pixels(pt2_layout *l, const pt2_place *part, const division *of, const int **ret_pixel)
{
    int *pixel[3];
    bool ordered = true, alike = true;

    for (int i = 0; i < 3; i++) {
        pixel[i] = pixels_of(l, &part[i], &of[i]);
        if (!pixel[i])
            return false;
        ordered = ordered && in_order(pixel[i], of[i].windows * of[i].tokens);
    }
    for (int i = 1; i < 3 && !ordered; i++)
        alike = alike && of[0].tokens == of[i].tokens &&
                !memcmp(pixel[0], pixel[i], (size_t)(of[0].windows * of[0].tokens) * sizeof *pixel[0]);
    *ret_pixel = ordered ? NULL : pixel[0];
    return alike;
}

static bool fit(const pt2_place *part, const division *of)
{
    bool fits = of[1].tokens == of[2].tokens && (of[0].windows == 1 || of[0].tokens == of[1].tokens) &&
                of[0].heads * of[0].width == part[0].v->size[2];

    for (int i = 1; i < 3; i++)
        fits = fits && of[0].heads == of[i].heads && of[0].width == of[i].width &&
               of[0].windows == of[i].windows && part[0].v->size[2] == part[i].v->size[2];
    return fits;
}

/* softmax(queries @ keys') @ values, one operation at a time. */
static void by_products(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const pt2_value *out = n->out[0];
    const int ndim = out->ndim, last = ndim - 1;
    const double scale = n->is.attention.scale;
    pt2_place k = *hvt__place(l, n->in[1]), s;
    int64_t size[PT2_DIMS], keys, width;
    int order[PT2_DIMS];

    for (int i = 0; i < 3; i++)
        if (ndim < 3 || n->in[i]->ndim != ndim || hvt__place(l, n->in[i])->axes.ndim != ndim)
            REFUSE(l, "its queries, keys and values are not [..., tokens, width]");
    if (n->is.attention.causal)
        REFUSE(l, "it is causal, and its queries, keys and values are not [N, heads, tokens, width]");
    memcpy(size, out->size, sizeof size);
    size[last] = keys = n->in[2]->size[last - 1], width = n->in[0]->size[last];
    for (int i = 0; i < ndim; i++)
        order[i] = n->is.attention.turned || i < last - 1 ? i : 2 * last - 1 - i;
    hvt__axes_permute(&k.axes, order);
    s = hvt__lay_matmul(l, hvt__place(l, n->in[0]), &k, ndim, size, width);
    s.v = hvt__emit_affine(l, s.v, scale > 0 ? scale : 1 / sqrt((double)width), 0);
    for (int i = -1; i < n->is.attention.nadded; i++) { /* -1: the factor of each head */
        pt2_value *v = i < 0 ? n->in[3] : n->is.attention.added[i].value;
        pt2_place b;

        if (!v)
            continue;
        if (i >= 0 && n->is.attention.added[i].ndim != ndim)
            REFUSE(l, "the tensor added to its scores has %d dimensions", n->is.attention.added[i].ndim);
        b = *hvt__place(l, v);
        b.v = hvt__emit_affine(l, b.v, v->type == PT2_BOOL ? 1e30 : 1, v->type == PT2_BOOL ? -1e30 : 0);
        hvt__lay_alike(l, &s, &b, ndim, size);
        s.v = hvt__emit_binary(l, i < 0 ? HVT_MUL : HVT_ADD, s.v, b.v);
    }
    s = hvt__lay_as_channels(l, &s, size, last);
    s.v = hvt__lay_softmax(l, s.v);
    s = hvt__lay_matmul(l, &s, hvt__place(l, n->in[2]), ndim, out->size, keys);
    hvt__lay_out(l, s.v, &s.axes);
}

/* Queries, keys and values as tokens whose channels are the heads side by side. */
static bool rearrange(pt2_layout *l, pt2_place *part, division *of)
{
    bool fits = true;

    for (int i = 0; i < 3; i++) {
        const int n = part[i].axes.ndim;
        const bool turns = l->n->is.attention.turned && i == 1;
        const int64_t *size = l->n->in[i]->size;
        int order[PT2_DIMS], back[PT2_DIMS];
        int64_t moved[PT2_DIMS];

        if (n < 3)
            return false;
        for (int k = 0; k < n; k++)
            order[k] = k;
        if (turns)
            order[n - 2] = n - 1, order[n - 1] = n - 2;
        if (n > 3) { /* the heads */
            const int heads = order[n - 3];

            order[n - 3] = order[n - 2], order[n - 2] = heads;
        }
        for (int k = 0; k < n; k++)
            back[order[k]] = k, moved[k] = size[order[k]];
        hvt__axes_permute(&part[i].axes, order);
        part[i] = hvt__lay_in_order(l, &part[i], moved, 0, n > 3 ? n - 2 : n - 1);
        hvt__axes_permute(&part[i].axes, back);
        fits = fits && divide(&part[i].axes, turns, &of[i]);
    }
    return fits;
}

static void attention(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const pt2_attributes *a = &n->is;
    double factor[3] = {1, 1, 1};
    pt2_attributes is = {0};
    pt2_value *packed, *y, *in[4];
    pt2_place part[3];
    division of[3];
    bool fits = true;

    for (int i = 0; i < 3; i++) {
        part[i] = *hvt__place(l, n->in[i]);
        part[i].v = i < 2 ? without_factor(part[i].v, &factor[i]) : part[i].v;
    }
    rotate_together(l, part);
    for (int i = 0; i < 3 && fits; i++) { /* in attention between channels, channels become pixels */
        const bool turned = a->attention.turned && i == 1;

        fits = divide(&part[i].axes, turned, &of[i]) ||
               (hvt__lay_turn(l, &part[i], 0, 0) && divide(&part[i].axes, turned, &of[i]));
    }
    if (!fits || (n->in[3] && of[0].heads == 1) || !fit(part, of) ||
        !find_pixels(l, part, of, &is.attend.pixel))
        fits = rearrange(l, part, of) && fit(part, of) && find_pixels(l, part, of, &is.attend.pixel);
    for (int i = 0; i < 3; i++)
        in[i] = part[i].v;
    if (!fits) {
        by_products(l);
        return;
    }
    is.attend.heads = of[0].heads;
    is.attend.windows = of[0].windows;
    is.attend.scale = (float)((a->attention.scale > 0 ? a->attention.scale : 1 / sqrt((double)of[0].width)) *
                              factor[0] * factor[1]);
    if (!(is.attend.scale > 0))
        REFUSE(l, "its scale is %g; expected more than 0", (double)is.attend.scale);
    in[3] = add_to(l, &of[0], of[1].tokens, &is);
    packed = n->in[3] || in[3] ? NULL : whole_of(in);
    if (packed) {
        y = hvt__emit(l, PT2_ATTENTION, &is, 1, &packed, packed->size[0], packed->size[1], in[0]->size[2]);
    } else {
        if (n->in[3])
            in[0] = times_heads(l, in[0], &of[0], n->in[3]);
        in[1] = in_one_line(l, in[1], in[2]), in[2] = in_one_line(l, in[2], in[1]);
        y = hvt__emit(l, PT2_ATTENTION, &is, in[3] ? 4 : 3, in, in[0]->size[0], in[0]->size[1],
                      in[0]->size[2]);
    }
    hvt__lay_out(l, y, &part[0].axes);
}

/* ---- rotary embeddings ---- */

/* True for [.., tokens, .., width] beside the batch and heads, whose channels are adjacent. */
static bool has_form(const pt2_axes *x, int tokens, int width)
{
    const int at = hvt__axes_begin(x, width);
    const pt2_atom *w = &x->atom[at];
    bool fits = x->end[width] == at + 1 && w->axis == 'C' && w->stride == 1 &&
                hvt__axes_has(x, tokens, 'W') && hvt__axes_pixels(x, tokens);

    for (int i = 0; i < x->ndim && fits; i++)
        for (int k = hvt__axes_begin(x, i); k < x->end[i]; k++)
            fits = fits && (i == width || i == tokens || x->atom[k].axis == 'N' ||
                            (x->atom[k].axis == 'C' && x->atom[k].stride == w->extent));
    return fits;
}

static void rotary(pt2_layout *l)
{
    const pt2_attributes *of = &l->n->is;
    const pt2_place *p = hvt__place(l, l->n->in[0]);
    const pt2_attributes is = {.rotate = {{.width = of->rotary.width,
                                           .apart = of->rotary.apart,
                                           .own = of->rotary.own,
                                           .other = of->rotary.other,
                                           .vectors = (int)p->v->size[2] / of->rotary.width}}};

    if (!has_form(&p->axes, of->rotary.tokens, p->axes.ndim - 1) ||
        p->v->size[0] * p->v->size[1] != of->rotary.rows)
        REFUSE(l,
               "it rotates what is not [N, heads, tokens, width], each head so many neighbouring channels");
    hvt__lay_out(l, hvt__emit_like(l, PT2_ROTARY, &is, p->v), &p->axes);
}

/* ---- the table ---- */

static const pt2_lay_row table[] = {
    {PT2_ATTENTION, attention},
    {PT2_ROTARY, rotary},
};

const pt2_lay_rows hvt__lay_attention_rows = {table, HVT_LEN(table)};
