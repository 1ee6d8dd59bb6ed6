/*
 * Attention: as one operation, or as a product of queries and keys, its softmax, and the product of that and
 * values, which is followed from the first to the last and is the same layer.
 */
#include "import.h"

#include <math.h>

/* Tokens of an image; scores of a file's example, where something is added to them. */
enum { MOST_TOKENS = 1 << 22, MOST_SCORES = 1 << 24 };

/* What the dimensions of a tensor say: [N, windows, heads, tokens, width], neighbours of the first three
 * maybe joined or left out; turned: [.., width, tokens]. */
typedef struct division {
    int heads, width, windows, tokens;
    hvt__pt2_atom
        atom[HVT__PT2_ATOMS + HVT__PT2_DIMS]; /* [atoms] of pixels: of the windows, of their tokens */
    int atoms;
} division;

static bool is_pixel(const hvt__pt2_atom *a)
{
    return a->axis == 'H' || a->axis == 'W';
}

/* Atoms of pixels, from *at on: how many pixels they are, which is bounded. */
static int take_pixels(const hvt__pt2_axes *x, int *at, int end, division *d)
{
    int64_t pixels = 1;

    for (; *at < end && is_pixel(&x->atom[*at]) && pixels <= MOST_TOKENS; ++*at) {
        pixels *= x->atom[*at].extent;
        d->atom[d->atoms++] = x->atom[*at];
    }
    return (int)(pixels > MOST_TOKENS ? MOST_TOKENS + 1 : pixels);
}

static bool divide(const hvt__pt2_axes *x, bool turned, division *ret)
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
        const hvt__pt2_atom *c = &x->atom[x->end[channels - 1]];

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

/* The pixel of each token of each window of t, line by line; NULL: the node is refused. */
static int *pixels_of(importer *p, const tensor *t, const division *d)
{
    int shape[3], n = d->windows * d->tokens, *pixel;
    int64_t digit[HVT__PT2_ATOMS + HVT__PT2_DIMS] = {0};

    hvt_value_shape(p->m, t->v, shape);
    if (n != shape[0] * shape[1]) {
        hvt__pt2_refuse(p, "its tokens are not all pixels of the image");
        return NULL;
    }
    pixel = hvt__pt2_keep(p, (size_t)n * sizeof *pixel);
    for (int i = 0; pixel && i < n; i++) {
        int64_t at[2] = {t->axes.roll[0], t->axes.roll[1]};

        for (int a = 0; a < d->atoms; a++)
            at[d->atom[a].axis == 'W'] += digit[a] * d->atom[a].stride;
        pixel[i] = (int)(at[0] % shape[0] * shape[1] + at[1] % shape[1]);
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

/* All of t's channels, or those that are to be cut out. */
static int channels_of(const importer *p, const tensor *t)
{
    int d[3];

    hvt_value_shape(p->m, t->v, d);
    return t->count ? t->count : d[2];
}

/* ---- what is added to the scores ---- */

static double bounded(double x)
{
    return x < -1e30 ? -1e30 : x > 1e30 ? 1e30 : x;
}

/* Elements of a table must be the same for all images and windows, numbers for all images and heads. */
static bool collect(importer *p, const addition *a, const division *q, int keys, int *bias, float *mask)
{
    const known *k = a->what;
    const strided element = hvt__pt2_repeated(k, &k->element, a->ndim),
                  number = hvt__pt2_repeated(k, &k->number, a->ndim);
    const int64_t scores = (int64_t)q->tokens * keys;
    int64_t at[HVT__PT2_DIMS] = {0}, i = 0;

    do {
        const int64_t in_window = i % scores, head = i / scores % q->heads,
                      window = i / scores / q->heads % q->windows;
        const bool first_image = i / scores / q->heads / q->windows == 0;
        const int e = element.x ? (int)*hvt__pt2_element(&element, a->ndim, at) : -1;
        const float x = number.x ? (float)bounded(*hvt__pt2_element(&number, a->ndim, at)) : 0;
        int *b = &bias[head * scores + in_window];
        float *m = &mask[window * scores + in_window];

        if (element.x && window == 0 && first_image)
            *b = e;
        if (head == 0 && first_image)
            *m = x;
        if ((element.x && *b != e) || *m != x) {
            hvt__pt2_refuse(
                p, element.x && *b != e
                       ? "the parameter added to attention's scores differs between images or windows"
                       : "the numbers added to attention's scores differ between images or heads");
            return false;
        }
        i++;
    } while (hvt__pt2_next(a->ndim, a->size, at));
    return true;
}

/* Are these not simply elements of a parameter? */
static bool is_computed_table(const importer *p, const source *from)
{
    return from->squashed || from->gain != 0 || p->tensor[from->table].v >= 0;
}

/* The tensor whose elements these are, as a value: what is computed of them is computed there. */
static hvt_value table_of(importer *p, const source *from)
{
    tensor *t = &p->tensor[from->table];
    hvt_value v;

    if (t->v < 0 && !(t->state && hvt__pt2_as_value(p, t))) {
        hvt__pt2_refuse(p,
                        "what is added to its scores is computed of %s, which has more than three dimensions",
                        t->name);
        return -1;
    }
    v = hvt__pt2_value(p, t);
    v = from->squashed ? hvt_apply(p->m, v, HVT_SIGMOID, 0, 0) : v;
    return from->gain != 0 ? hvt_apply(p->m, v, HVT_AFFINE, (float)from->gain, 0) : v;
}

/* The parameter of this number is the table, of the layer that is appended next. */
static int parameter_table(importer *p, int table, hvt_attention_opts *o)
{
    const tensor *t = &p->tensor[table];
    int64_t size[4];

    o->ndim = hvt__pt2_sizes(p->file, t->viewed ? t->viewed : t->name, 4, size);
    if (o->ndim < 1)
        hvt__pt2_refuse(p, "%s has not 1 to 4 dimensions", t->state);
    for (int i = 0; i < o->ndim; i++)
        o->dim[i] = (int)size[i];
    hvt__pt2_begin_layer(p, t->state);
    return table;
}

/* Into o, which has the windows. The number of the tensor whose elements are added; -1: none, or it is the
 * value *ret_table. */
static int add_to(importer *p, const addition *added, const division *q, int keys, hvt_attention_opts *o,
                  hvt_value *ret_table)
{
    const source *from = NULL;
    const int64_t scores = (int64_t)q->tokens * keys, biases = scores * q->heads,
                  masked = scores * q->windows;
    float *mask, *one;
    int *bias, *other;
    bool all_zero = true;

    if (!added)
        return -1;
    if (biases * q->windows * p->file->batch > MOST_SCORES) {
        hvt__pt2_refuse(
            p, "something is added to more than %d scores of %d images; export it with an example of one",
            MOST_SCORES, p->file->batch);
        return -1;
    }
    mask = hvt__pt2_keep(p, (size_t)masked * sizeof *mask);
    one = hvt__pt2_keep(p, (size_t)masked * sizeof *one);
    bias = hvt__pt2_keep(p, (size_t)biases * sizeof *bias);
    other = hvt__pt2_keep(p, (size_t)biases * sizeof *other);
    for (; added && !p->failed; added = added->before) {
        int64_t all = 1;

        for (int i = 0; i < added->ndim; i++)
            all *= added->size[i];
        if (all != biases * q->windows * p->file->batch)
            hvt__pt2_refuse(p, "what is added to its scores has %lld elements, not %lld", (long long)all,
                            (long long)(biases * q->windows * p->file->batch));
        if (added->what->element.x && from)
            hvt__pt2_refuse(p, "two parameters are added to its scores; expected one");
        if (p->failed || !collect(p, added, q, keys, added->what->element.x ? bias : other, one))
            return -1;
        from = added->what->element.x ? &added->what->from : from;
        for (int64_t i = 0; i < masked; i++) {
            mask[i] += one[i];
            all_zero = all_zero && mask[i] == 0;
        }
    }
    for (int64_t row = 0; row < masked / keys && !p->failed; row++) {
        int j = 0;

        while (j < keys && mask[row * keys + j] <= -1e30f)
            j++;
        if (j == keys)
            hvt__pt2_refuse(p, "query %d of window %d has no key that counts", (int)(row % q->tokens),
                            (int)(row / q->tokens));
    }
    o->mask = all_zero ? NULL : mask;
    if (!from || p->failed)
        return -1;
    o->bias = bias;
    if (!is_computed_table(p, from))
        return parameter_table(p, from->table, o);
    *ret_table = table_of(p, from);
    o->table = ret_table;
    return -1;
}

static bool computes_table(const importer *p, const addition *added)
{
    while (added && !(added->what->element.x && is_computed_table(p, &added->what->from)))
        added = added->before;
    return added;
}

/* The same of a tensor; where the channels are its tokens, as in attention between channels, these become
 * pixels, of ret_t alone: t may also be read as it is. */
static bool divided(importer *p, const tensor *t, bool turned, tensor *ret_t, division *ret)
{
    *ret_t = *t;
    if (divide(&t->axes, turned, ret))
        return true;
    hvt__pt2_without_factor(p, t);
    *ret_t = *t;
    return hvt__pt2_turn(p, ret_t, 0, 0) && divide(&ret_t->axes, turned, ret);
}

/* Is it so, without a layer on the tape? */
static bool is_divided(const importer *p, const tensor *t, bool turned)
{
    hvt__pt2_axes axes;
    division d;

    return divide(&t->axes, turned, &d) ||
           (hvt__pt2_turned_axes(p, t, 0, 0, &axes) && divide(&axes, turned, &d));
}

/* The pixels of a as one line, if those of b are one. */
static hvt_value in_one_line(importer *p, hvt_value a, hvt_value b)
{
    int of_a[3], of_b[3];

    hvt_value_shape(p->m, a, of_a);
    hvt_value_shape(p->m, b, of_b);
    return of_a[0] > 1 && of_b[0] == 1 ? hvt_reshape(p->m, a, 1, of_a[0] * of_a[1]) : a;
}

/* q, [.., heads * width], times a number for each head. */
static hvt_value times_heads(importer *p, hvt_value q, const division *d, const tensor *per_head)
{
    const int n = d->heads * d->width;
    hvt_value v = hvt__pt2_value(p, per_head);

    v = hvt_transpose(p->m, v, 1, 1, d->heads, 1, d->heads);
    v = hvt_combine(p->m, HVT_ADD, hvt_zeros(p->m, p->images, 1, d->heads, d->width), v);
    return hvt_combine(p->m, HVT_MUL, q, hvt_transpose(p->m, v, 1, 1, n, 1, 1));
}

/* per_head: or NULL */
static void attend(importer *p, const tensor *q, const tensor *k, bool turned, const tensor *v, double scale,
                   const addition *added, const tensor *per_head)
{
    const tensor *const given[3] = {q, k, v};
    tensor part[3];
    division of[3];
    hvt_attention_opts o = {0};
    int all[3], *pixel[3], table;
    hvt_value y, in[3], computed = -1;
    bool fits = true;

    for (int i = 0; i < 3 && fits; i++)
        fits = divided(p, given[i], turned && i == 1, &part[i], &of[i]);
    if (!fits || of[0].heads != of[1].heads || of[0].heads != of[2].heads || of[0].width != of[1].width ||
        of[0].width != of[2].width || of[0].windows != of[1].windows || of[0].windows != of[2].windows ||
        of[1].tokens != of[2].tokens || of[0].heads * (int64_t)of[0].width != channels_of(p, &part[0]) ||
        channels_of(p, &part[0]) != channels_of(p, &part[1]) ||
        channels_of(p, &part[0]) != channels_of(p, &part[2])) {
        hvt__pt2_refuse(p,
                        "its queries, keys and values are not [N, heads, tokens, width], each head so many "
                        "neighbouring channels");
        return;
    }
    q = &part[0], k = &part[1], v = &part[2];
    for (int i = 0; i < 3; i++)
        pixel[i] = pixels_of(p, &part[i], &of[i]);
    if (p->failed)
        return;
    o.heads = of[0].heads;
    o.windows = of[0].windows;
    if (!in_order(pixel[0], of[0].windows * of[0].tokens) ||
        !in_order(pixel[1], of[1].windows * of[1].tokens) ||
        !in_order(pixel[2], of[2].windows * of[2].tokens)) {
        const size_t bytes = (size_t)(of[0].windows * of[0].tokens) * sizeof *pixel[0];

        if (of[0].tokens != of[1].tokens || memcmp(pixel[0], pixel[1], bytes) ||
            memcmp(pixel[0], pixel[2], bytes))
            hvt__pt2_refuse(p, "its queries, keys and values are different pixels of the windows");
        o.pixel = pixel[0];
    }
    scale = scale > 0 ? scale : 1 / sqrt((double)of[0].width);
    scale *= (q->times ? q->times : 1) * (k->times ? k->times : 1);
    if (!(scale > 0))
        hvt__pt2_refuse(p, "its scale is %g; expected more than 0", scale);
    o.scale = (float)scale;
    hvt_value_shape(p->m, q->v, all);
    if (!per_head && !computes_table(p, added) && q->v == k->v && q->v == v->v && q->count && q->first == 0 &&
        k->first == q->count && v->first == 2 * q->count && all[2] == 3 * q->count && !v->times) {
        table = add_to(p, added, &of[0], of[1].tokens, &o, &computed);
        y = p->failed ? -1 : hvt_self_attention_with(p->m, q->v, &o);
    } else {
        for (int i = 0; i < 3; i++)
            in[i] = part[i].count ? hvt__pt2_without_factor(p, given[i]) : part[i].v;
        if (v->times)
            in[2] = hvt_apply(p->m, in[2], HVT_AFFINE, (float)v->times, 0);
        if (per_head)
            in[0] = times_heads(p, in[0], &of[0], per_head);
        in[1] = in_one_line(p, in[1], in[2]), in[2] = in_one_line(p, in[2], in[1]);
        table = add_to(p, added, &of[0], of[1].tokens, &o, &computed);
        y = p->failed ? -1 : hvt_attention_with(p->m, in[0], in[1], in[2], &o);
    }
    if (p->failed)
        return;
    if (table >= 0)
        hvt__pt2_keep_layer(p, p->tensor[table].state, y);
    hvt__pt2_out_like(p, y, &q->axes);
}

/* One more in front of those before; NULL: the node is refused. */
static const addition *add(importer *p, const addition *before, const known *what, int ndim,
                           const int64_t *size)
{
    addition *a = hvt__pt2_keep(p, sizeof *a);

    if (!a)
        return NULL;
    if (ndim < 0 || !hvt__pt2_repeats(what, ndim, size)) {
        hvt__pt2_refuse(p, "what is added to attention's scores has other sizes than they");
        return NULL;
    }
    *a = (addition){.before = before, .what = what, .ndim = ndim};
    memcpy(a->size, size, (size_t)ndim * sizeof *size);
    return a;
}

/* Truth values: whether a key counts. */
static const known *as_numbers(importer *p, const tensor *t, const known *k)
{
    known *y;
    int64_t at[HVT__PT2_DIMS] = {0};

    if (!k || !hvt__pt2_is_truth(p->file, t->name))
        return k;
    y = hvt__pt2_numbers(p, k->ndim, k->size);
    if (y)
        do
            *hvt__pt2_element(&y->number, k->ndim, at) =
                *hvt__pt2_element(&k->number, k->ndim, at) ? 0 : -INFINITY;
        while (hvt__pt2_next(k->ndim, k->size, at));
    return y;
}

/* Keys up to the query's own number. */
static const known *causal(importer *p, int64_t queries, int64_t keys)
{
    known *y = hvt__pt2_numbers(p, 2, (int64_t[]){queries, keys});

    for (int64_t i = 0; y && i < queries * keys; i++)
        y->number.x[i] = i % keys > i / keys ? -INFINITY : 0;
    return y;
}

static void attention(importer *p)
{
    const tensor *q = hvt__pt2_uncut(p, "query"), *k = hvt__pt2_uncut(p, "key"),
                 *v = hvt__pt2_uncut(p, "value"), *mask = hvt__pt2_uncut(p, "attn_mask");
    const double drop = hvt__pt2_float(p, "dropout_p", 0), scale = hvt__pt2_float(p, "scale", 0);
    int64_t size[HVT__PT2_DIMS], of_keys[HVT__PT2_DIMS];
    const int n = hvt__pt2_argument_sizes(p, "query", HVT__PT2_DIMS, size);
    const known *what = mask ? hvt__pt2_known(p, mask) : NULL;
    const addition *added = NULL;

    if (drop != 0)
        hvt__pt2_refuse(p, "it drops out %g of its weights; expected 0, or an export in eval() mode", drop);
    if (scale < 0 || (hvt__pt2_given(p, "scale") && scale == 0))
        hvt__pt2_refuse(p, "its scale is %g; expected more than 0", scale);
    if (mask && !what)
        hvt__pt2_refuse(
            p, "its mask is computed, or a parameter; expected constants, or elements of a parameter");
    if (n < 2 || hvt__pt2_argument_sizes(p, "key", HVT__PT2_DIMS, of_keys) != n)
        hvt__pt2_refuse(p, "its queries and keys have no sizes");
    if (p->failed || !hvt__pt2_is_computed(p, q) || !hvt__pt2_is_computed(p, k) ||
        !hvt__pt2_is_computed(p, v))
        return;
    size[n - 1] = of_keys[n - 2]; /* as the scores have them */
    if (what)
        added = add(p, NULL, as_numbers(p, mask, what), n, size);
    else if (hvt__pt2_bool(p, "is_causal", false))
        added = add(p, NULL, causal(p, size[n - 2], size[n - 1]), n, size);
    if (!p->failed)
        attend(p, q, k, false, v, scale, added, NULL);
}

void hvt__pt2_attention(importer *p)
{
    hvt__pt2_rotate_together(p);
    attention(p);
}

/* ---- in parts ---- */

/* The scores of queries a and keys b. */
static void begin_scores(importer *p, const tensor *a, const tensor *b, bool turned)
{
    if (a->kind == HVT__PT2_SCORES || a->v < 0 || b->v < 0 || !is_divided(p, a, false) ||
        !is_divided(p, b, turned))
        hvt__pt2_refuse(p, "it is known in attention only: softmax(queries @ keys') @ values");
    hvt__pt2_out(p, 0,
                 (tensor){.v = -1,
                          .kind = HVT__PT2_SCORES,
                          .turned = turned,
                          .factor = 1,
                          .of = hvt__pt2_index(p, a),
                          .key = hvt__pt2_index(p, b)},
                 NULL);
}

/* The products of a, the softmax of scores, and values b. */
static void end_scores(importer *p, const tensor *a, const tensor *b)
{
    if (hvt__pt2_is_computed(p, b))
        attend(p, &p->tensor[a->of], &p->tensor[a->key], a->turned, b, a->factor, a->added,
               a->per_head ? &p->tensor[a->per_head - 1] : NULL);
}

void hvt__pt2_matmul(importer *p)
{
    const bool batched = hvt__pt2_given(p, "mat2");
    const tensor *a = hvt__pt2_uncut(p, "self"), *b = hvt__pt2_uncut(p, batched ? "mat2" : "other");

    if (!a || !b || p->failed)
        return;
    if (a->kind == HVT__PT2_SCORES && a->softmax)
        end_scores(p, a, b);
    else
        begin_scores(p, a, b, true);
}

/* Do the operands and the result have these dimensions, in the equation "P..ab,P..cd->P..ef"? */
static bool is_equation(const char *text, const char *a, const char *b, const char *c)
{
    const char *want[3] = {a, b, c};
    char part[3][HVT__PT2_DIMS + 1] = {""}, letter[4] = "";
    size_t n = 0, lead;
    int k = 0;

    for (; *text; text++) {
        if (*text == ' ' || *text == '>')
            continue;
        if (*text == ',' || *text == '-') {
            if (++k > 2)
                return false;
            n = 0;
            continue;
        }
        if (n >= HVT__PT2_DIMS)
            return false;
        part[k][n++] = *text;
        part[k][n] = 0;
    }
    lead = strlen(part[0]);
    if (k != 2 || lead < 2)
        return false;
    lead -= 2;
    for (k = 0; k < 3; k++) {
        if (strlen(part[k]) != lead + 2 || strncmp(part[k], part[0], lead) != 0)
            return false;
        for (int i = 0; i < 2; i++) { /* 'I', 'J', 'D' stand for any three letters */
            char *is = &letter[want[k][i] == 'I' ? 0 : want[k][i] == 'J' ? 1 : 2];
            const char at = part[k][lead + (size_t)i];

            if ((*is && *is != at) || memchr(part[0], at, lead))
                return false;
            *is = at;
        }
    }
    return letter[0] != letter[1] && letter[1] != letter[2] && letter[0] != letter[2];
}

void hvt__pt2_einsum(importer *p)
{
    const char *equation = hvt__pt2_string(p, "equation", "");
    const tensor *of[2];

    if (hvt__pt2_two_uncut(p, "tensors", of) && of[0]->kind == HVT__PT2_SCORES && of[0]->softmax &&
        is_equation(equation, "IJ", "JD", "ID"))
        end_scores(p, of[0], of[1]);
    else if (!p->failed && is_equation(equation, "ID", "JD", "IJ"))
        begin_scores(p, of[0], of[1], false);
    else
        hvt__pt2_refuse(
            p, "its equation is %.40s; it is known in attention only: softmax(queries @ keys') @ values",
            equation);
}

bool hvt__pt2_scale_scores(importer *p, hvt_binary op, double x)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    tensor y;

    if (!t || t->kind != HVT__PT2_SCORES)
        return false;
    y = *t;
    y.factor = op == HVT_MUL ? y.factor * x : y.factor / x;
    if ((op != HVT_MUL && op != HVT_DIV) || y.softmax || y.added || !(y.factor > 0))
        hvt__pt2_refuse(p, "it is no factor above 0 of attention's scores, before anything is added to them");
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

bool hvt__pt2_add_to_scores(importer *p)
{
    const tensor *a = hvt__pt2_uncut(p, "self"), *b = hvt__pt2_uncut(p, "other");
    int64_t size[HVT__PT2_DIMS];
    const known *k;
    tensor y;
    int n;

    if (!a || !b || (a->kind != HVT__PT2_SCORES && b->kind != HVT__PT2_SCORES))
        return false;
    if (a->kind != HVT__PT2_SCORES) {
        const tensor *first = a;

        a = b, b = first;
    }
    k = hvt__pt2_known(p, b);
    n = hvt__pt2_sizes(p->file, a->name, HVT__PT2_DIMS, size);
    if (!k || a->softmax || hvt__pt2_float(p, "alpha", 1) != 1)
        hvt__pt2_refuse(p,
                        "it adds to attention's scores what is no constant and no elements of a parameter");
    y = *a;
    if (!p->failed)
        y.added = add(p, a->added, k, n, size);
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

bool hvt__pt2_view_scores(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, hvt__pt2_first_argument(p));

    if (!t || t->kind != HVT__PT2_SCORES)
        return false;
    hvt__pt2_out(p, 0, *t, NULL);
    return true;
}

bool hvt__pt2_softmax_scores(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    int dim = hvt__pt2_int(p, "dim", 0);
    int64_t size[HVT__PT2_DIMS];
    tensor y;

    if (!t || t->kind != HVT__PT2_SCORES)
        return false;
    y = *t;
    if (y.softmax || (dim != -1 && dim != hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, size) - 1))
        hvt__pt2_refuse(p, "it is over dimension %d of attention's scores; expected the last one, once", dim);
    y.softmax = true;
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

/* [heads,1,1], maybe with dimensions of 1 in front, which the scores have as [.., heads, queries, keys]. */
static bool is_per_head(const tensor *t)
{
    const int n = t->axes.ndim;
    bool fits = n >= 3 && t->v >= 0 && t->alike && hvt__pt2_is(&t->axes, n - 3, 'C');

    for (int i = 0; i < n && fits; i++)
        fits = i == n - 3 || t->axes.end[i] == (i ? t->axes.end[i - 1] : 0);
    return fits;
}

bool hvt__pt2_scale_heads(importer *p)
{
    const tensor *a = hvt__pt2_uncut(p, "self"), *b;
    double number;
    tensor y;

    if (!a || a->kind != HVT__PT2_SCORES || hvt__pt2_number(p, &number))
        return false;
    b = hvt__pt2_tensor(p, "other");
    if (b && b->state && !b->constant)
        hvt__pt2_as_value(p, &p->tensor[hvt__pt2_index(p, b)]);
    if (!b || !is_per_head(b) || a->softmax || a->added || a->per_head) {
        hvt__pt2_refuse(
            p, "it is no factor of attention's scores for each head, a parameter or computed of some, before "
               "anything is added to them");
        return true;
    }
    y = *a;
    y.per_head = hvt__pt2_index(p, b) + 1;
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

bool hvt__pt2_squash_biases(importer *p, bool sigmoid, double gain)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    known *k;

    if (!t || !t->known || !t->known->element.x || t->known->number.x)
        return false;
    k = hvt__pt2_keep(p, sizeof *k);
    if (!k)
        return true;
    *k = *t->known;
    if (hvt__pt2_in_place(p->node))
        hvt__pt2_refuse(p, "it changes elements of a parameter in place");
    if (sigmoid && (k->from.squashed || k->from.gain != 0))
        hvt__pt2_refuse(p, "it is a second function of elements that are added to attention's scores");
    if (sigmoid)
        k->from.squashed = true;
    else
        k->from.gain = (k->from.gain != 0 ? k->from.gain : 1) * gain;
    if (!sigmoid && !(fabs(k->from.gain) > 0 && isfinite(k->from.gain)))
        hvt__pt2_refuse(p, "its factor is %g; expected another one than 0", gain);
    hvt__pt2_out(p, 0, (tensor){.v = -1, .known = k}, NULL);
    return true;
}

bool hvt__pt2_normalise_heads(importer *p)
{
    const tensor *a, *b;
    tensor x;
    hvt_value y, squares;
    int shape[3], heads;
    double number;

    if (hvt__pt2_number(p, &number))
        return false;
    a = hvt__pt2_uncut(p, "self"), b = hvt__pt2_uncut(p, "other");
    if (!a || !b || b->kind != HVT__PT2_LENGTHS)
        return false;
    if (hvt__pt2_index(p, a) != b->of) {
        hvt__pt2_refuse(p, "it divides by lengths of other vectors");
        return true;
    }
    hvt__pt2_value(p, a);
    x = *a;
    y = hvt__pt2_vectors(p, &x, &heads);
    hvt_value_shape(p->m, y, shape);
    squares = hvt_apply(p->m, hvt_mean_channels(p->m, hvt_combine(p->m, HVT_MUL, y, y)), HVT_AFFINE,
                        (float)shape[2], 0);
    squares = hvt_apply(p->m, squares, HVT_CLAMP, fmaxf((float)(b->least * b->least), 1e-30f), INFINITY);
    y = hvt_combine(p->m, HVT_MUL, y, hvt_apply(p->m, squares, HVT_POW, -0.5f, 0));
    hvt__pt2_out_like(p, hvt__pt2_of_heads(p, y, heads), &x.axes);
    return true;
}
