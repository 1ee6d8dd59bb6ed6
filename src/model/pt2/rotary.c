/*
 * Rotary embeddings. Files have them as slices of queries and keys, products with constants, signs, joins and
 * sums, in an order of each model's own. These are followed element by element: each is a sum of at most two
 * elements of the queries, times numbers. Where something else reads the result it is one layer, if it is a
 * rotary embedding, and else what the operations say.
 */
#include "import.h"

enum { DEPTH = 64 }; /* operations one behind the other */

/* at: token * width + channel of what is rotated; -1: none */
typedef struct term {
    int32_t at[2];
    float times[2];
} term;

struct hvt__pt2_rotated {
    struct hvt__pt2_rotated *next;
    int of;      /* the number of the tensor that is rotated */
    bool unused; /* they are no tensor's */
    int depth, ndim;
    int64_t size[HVT__PT2_DIMS];
    bool shared[HVT__PT2_DIMS]; /* the batch or the heads, which are all alike: size is 1 */
    int64_t n;
    term term[];
};
typedef struct hvt__pt2_rotated rotated;

/* ---- what may be rotated ---- */

/* The dimensions of queries or keys. */
typedef struct form {
    int tokens, width;
    bool shared[HVT__PT2_DIMS];
} form;

/* [.., tokens, .., width], besides them the batch and heads */
static bool find_form(const hvt__pt2_axes *x, form *ret)
{
    *ret = (form){.tokens = -1, .width = -1};
    for (int i = 0; i < x->ndim; i++) {
        const int begin = i ? x->end[i - 1] : 0, n = x->end[i] - begin;
        const hvt__pt2_atom *a = &x->atom[begin];
        int *which = n && a->axis == 'C' && a->stride == 1     ? &ret->width
                     : n && (a->axis == 'H' || a->axis == 'W') ? &ret->tokens
                                                               : NULL;

        ret->shared[i] = !which;
        if (which && *which >= 0)
            return false;
        if (which)
            *which = i;
        if (which == &ret->tokens ? !hvt__pt2_is_pixels(x, i) : n > 1)
            return false;
    }
    if (ret->tokens < 0 || ret->width < 0)
        return false;
    for (int i = 0; i < x->end[x->ndim - 1]; i++) /* heads side by side, no other parts of channels */
        if (x->atom[i].axis == 'C' && x->atom[i].stride > 1 &&
            x->atom[i].stride != x->atom[x->end[ret->width] - 1].extent)
            return false;
    return true;
}

/* NULL: there would be too many, or no memory. */
static rotated *make(importer *p, const rotated *like, int ndim, const int64_t *size, const bool *shared)
{
    const int64_t n = hvt__pt2_count(ndim, size);
    int64_t longest[HVT__PT2_DIMS];
    rotated *y = NULL;

    for (int i = 0; i < ndim; i++)
        longest[i] = size[i] ? size[i] : 1;
    if (hvt__pt2_count(ndim, longest) + p->elements <= HVT__PT2_ELEMENTS_MOST)
        y = malloc(sizeof *y + (size_t)n * sizeof *y->term);
    if (!y)
        return NULL;
    *y = (rotated){.next = p->rotated, .ndim = ndim, .n = n};
    if (like) {
        y->of = like->of;
        y->depth = like->depth + 1;
    }
    memcpy(y->size, size, (size_t)ndim * sizeof *size);
    memcpy(y->shared, shared, (size_t)ndim * sizeof *shared);
    p->elements += n;
    p->rotated = y;
    return y;
}

/* Free those that no tensor has. */
static void sweep(importer *p)
{
    for (rotated **link = &p->rotated, *x; (x = *link);) {
        if (!x->unused) {
            link = &x->next;
            continue;
        }
        *link = x->next;
        p->elements -= x->n;
        free(x);
    }
}

/* Those of tensor `of`. */
static void forget(importer *p, int of)
{
    for (int i = 0; i < p->ntensor; i++)
        if (p->tensor[i].kind == HVT__PT2_ROTATED && p->tensor[i].rotated && p->tensor[i].rotated->of == of)
            p->tensor[i].rotated = NULL;
    for (rotated *x = p->rotated; x; x = x->next)
        x->unused = x->unused || x->of == of;
    sweep(p);
}

void hvt__pt2_forget_rotated(importer *p)
{
    for (rotated *x = p->rotated; x; x = x->next)
        x->unused = true;
    sweep(p);
}

/* How many elements dimension i walks along. */
static int64_t extent(const hvt__pt2_axes *x, int i)
{
    int64_t all = 1;

    for (int a = i ? x->end[i - 1] : 0; a < x->end[i]; a++)
        all *= x->atom[a].extent;
    return all;
}

/* The elements of t themselves; NULL: they cannot be rotated. */
static rotated *begin(importer *p, const tensor *t)
{
    form f;
    int64_t size[HVT__PT2_DIMS], in_file[HVT__PT2_DIMS], at[HVT__PT2_DIMS] = {0}, i = 0;
    const int n = hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, in_file);
    rotated *y;

    if (!json_object_get(p->may_rotate, t->name) || t->kind != HVT__PT2_VALUE || t->v < 0 ||
        n != t->axes.ndim || !find_form(&t->axes, &f))
        return NULL;
    for (int k = 0; k < n; k++) {
        size[k] = f.shared[k] ? 1 : extent(&t->axes, k);
        if (!f.shared[k] && in_file[k] != size[k])
            return NULL;
    }
    y = hvt__pt2_count(n, size) > 0 ? make(p, NULL, n, size, f.shared) : NULL;
    if (!y)
        return NULL;
    y->of = hvt__pt2_index(p, t);
    y->unused = true;
    do
        y->term[i++] = (term){{(int32_t)(at[f.tokens] * size[f.width] + at[f.width]), -1}, {1, 0}};
    while (hvt__pt2_next(n, size, at));
    return y;
}

/* t's elements, if they are rotated, or may be; else NULL. */
static const rotated *elements(importer *p, const tensor *t)
{
    const rotated *x = t && t->kind == HVT__PT2_ROTATED ? t->rotated : t ? begin(p, t) : NULL;

    return x && x->depth < DEPTH ? x : NULL;
}

/* The first tensor that the node at hand reads, by its name. */
static const char *first_name(const importer *p)
{
    const char *kind;

    return json_string_value(
        json_object_get(hvt__pt2_arg(p->node, hvt__pt2_first_argument(p), &kind), "name"));
}

/* y NULL: false, and the operation is built as any other one. */
static bool out(importer *p, int i, rotated *y)
{
    const char *name = p->operation && p->operation->view ? first_name(p) : NULL;
    const json_t *number = name ? json_object_get(p->index, name) : NULL;

    if (y)
        hvt__pt2_out(
            p, i,
            (tensor){
                .kind = HVT__PT2_ROTATED, .v = -1, .rotated = y, .maker = p->node, .changes = p->changes},
            number ? &p->tensor[json_integer_value(number)] : NULL);
    return y || p->failed;
}

/* ---- the operations ---- */

/* The product of sizes [from, to). */
static int64_t product(const int64_t *size, int from, int to)
{
    int64_t all = 1;

    for (int i = from; i < to; i++)
        all *= size[i];
    return all;
}

/* Elements first, first + step ... of dimension `dim`, `count` of them. */
static rotated *part_of(importer *p, const rotated *x, int dim, int64_t first, int64_t count, int64_t step)
{
    int64_t size[HVT__PT2_DIMS];
    const int64_t inner = product(x->size, dim + 1, x->ndim), outer = product(x->size, 0, dim);
    rotated *y;

    memcpy(size, x->size, sizeof size);
    size[dim] = count;
    y = make(p, x, x->ndim, size, x->shared);
    for (int64_t o = 0; y && o < outer; o++)
        for (int64_t i = 0; i < count; i++)
            memcpy(y->term + (o * count + i) * inner, x->term + (o * x->size[dim] + first + i * step) * inner,
                   (size_t)inner * sizeof *x->term);
    return y;
}

static int dimension(importer *p, int n)
{
    const int dim = hvt__pt2_int(p, "dim", 0);

    return dim < 0 ? dim + n : dim;
}

static bool slice(importer *p, const rotated *x)
{
    const int dim = dimension(p, x->ndim);
    const int64_t step = hvt__pt2_place(p, "step", 1);
    int64_t first = hvt__pt2_place(p, "start", 0), end = hvt__pt2_place(p, "end", INT64_MAX), size;

    if (dim < 0 || dim >= x->ndim || step < 1)
        return false;
    size = x->size[dim];
    if (x->shared[dim]) {
        int64_t whole[HVT__PT2_DIMS];

        if (hvt__pt2_argument_sizes(p, "self", HVT__PT2_DIMS, whole) != x->ndim || first != 0 ||
            end < whole[dim] || step != 1)
            return false;
        return out(p, 0, part_of(p, x, dim, 0, 1, 1));
    }
    first = hvt__pt2_within(first, size), end = hvt__pt2_within(end, size);
    end = end < first ? first : end;
    return out(p, 0, part_of(p, x, dim, first, (end - first + step - 1) / step, step));
}

/* Like x, without dimension `dim`, of one element. */
static void reduce(rotated *x, int dim)
{
    memmove(x->size + dim, x->size + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *x->size);
    memmove(x->shared + dim, x->shared + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *x->shared);
    x->ndim--;
}

/* chunk, split, unbind */
static bool parts(importer *p, const rotated *x)
{
    const int dim = dimension(p, x->ndim), many = hvt__pt2_outs(p);
    int64_t size[HVT__PT2_DIMS], first = 0;

    if (dim < 0 || dim >= x->ndim || x->shared[dim])
        return false;
    for (int i = 0; i < many && !p->failed; i++) {
        const int n = hvt__pt2_any_sizes(p, i, size);
        const int64_t count = n == x->ndim ? size[dim] : 1;
        rotated *y;

        if ((n != x->ndim && n != x->ndim - 1) || count > x->size[dim] - first) {
            hvt__pt2_refuse(p, "its outputs have other dimensions than its input");
            break;
        }
        y = part_of(p, x, dim, first, count, 1);
        if (y && n < x->ndim)
            reduce(y, dim);
        if (!out(p, i, y))
            return false;
        first += count;
    }
    return true;
}

static bool negate(importer *p, const rotated *x)
{
    rotated *y = make(p, x, x->ndim, x->size, x->shared);

    for (int64_t i = 0; y && i < x->n; i++) {
        y->term[i] = x->term[i];
        for (int k = 0; k < 2; k++)
            y->term[i].times[k] = -y->term[i].times[k];
    }
    return out(p, 0, y);
}

/* Dimensions in front stay as they are, those behind them hold neither the batch nor heads. */
static bool view(importer *p, const rotated *x)
{
    int64_t in[HVT__PT2_DIMS], to[HVT__PT2_DIMS], size[HVT__PT2_DIMS];
    bool shared[HVT__PT2_DIMS] = {false};
    const int n = hvt__pt2_argument_sizes(p, hvt__pt2_first_argument(p), HVT__PT2_DIMS, in),
              end = hvt__pt2_any_sizes(p, 0, to);
    int lead = 0;
    rotated *y;

    if (n != x->ndim || end < 1 || !x->n)
        return false;
    for (; lead < n && lead < end && in[lead] == to[lead]; lead++) {
        size[lead] = x->size[lead];
        shared[lead] = x->shared[lead];
    }
    for (int i = lead; i < n; i++)
        if (x->shared[i])
            return false;
    for (int i = lead; i < end; i++)
        size[i] = to[i];
    if (hvt__pt2_count(end, size) != x->n)
        return false;
    y = make(p, x, end, size, shared);
    if (y)
        memcpy(y->term, x->term, (size_t)x->n * sizeof *x->term);
    return out(p, 0, y);
}

static bool same(importer *p, const rotated *x)
{
    const char *in = first_name(p);

    if (!in || hvt__pt2_type(p->file, in) != hvt__pt2_type(p->file, hvt__pt2_out_name(p, 0)))
        return false;
    return view(p, x);
}

/* x times constants, which are the same for all images and heads. */
static bool multiply(importer *p, const rotated *x, const tensor *by)
{
    const known *k = hvt__pt2_known(p, by);
    int64_t at[HVT__PT2_DIMS] = {0}, i = 0;
    strided s;
    rotated *y;

    if (!k || p->failed || !k->number.x || k->element.x || !hvt__pt2_repeats(k, x->ndim, x->size))
        return false;
    s = hvt__pt2_repeated(k, &k->number, x->ndim);
    y = make(p, x, x->ndim, x->size, x->shared);
    if (y && y->n > 0)
        do {
            const float times = (float)*hvt__pt2_element(&s, x->ndim, at);

            y->term[i] = x->term[i];
            y->term[i].times[0] *= times;
            y->term[i++].times[1] *= times;
        } while (hvt__pt2_next(x->ndim, x->size, at));
    return out(p, 0, y);
}

/* false: there are more than two */
static bool add_term(term *to, int32_t at, float times)
{
    for (int k = 0; k < 2 && at >= 0; k++)
        if (to->at[k] == at || to->at[k] < 0) {
            to->times[k] = (to->at[k] == at ? to->times[k] : 0) + times;
            to->at[k] = at;
            return true;
        }
    return at < 0;
}

static bool add(importer *p, const rotated *a, const rotated *b, float sign)
{
    bool fits = a->of == b->of && a->ndim == b->ndim && hvt__pt2_float(p, "alpha", 1) == 1;
    rotated *y;

    for (int i = 0; i < a->ndim && fits; i++)
        fits = a->size[i] == b->size[i] && a->shared[i] == b->shared[i];
    y = fits ? make(p, a->depth > b->depth ? a : b, a->ndim, a->size, a->shared) : NULL;
    for (int64_t i = 0; y && i < a->n && fits; i++) {
        y->term[i] = a->term[i];
        for (int k = 0; k < 2 && fits; k++)
            fits = add_term(&y->term[i], b->term[i].at[k], sign * b->term[i].times[k]);
    }
    return fits && out(p, 0, y);
}

/* cat; stack: along a new dimension. */
static bool join(importer *p, int n, const rotated **x, bool new)
{
    const rotated *first = x[0];
    const int ndim = first->ndim + new, dim = dimension(p, ndim);
    int64_t size[HVT__PT2_DIMS], inner, outer, to = 0;
    bool shared[HVT__PT2_DIMS];
    rotated *y;

    if (ndim > HVT__PT2_DIMS || dim < 0 || dim >= ndim || (!new && first->shared[dim]))
        return false;
    for (int i = 0; i < ndim; i++) {
        const int in = i - (new &&i > dim);

        size[i] = i == dim ? 0 : first->size[in];
        shared[i] = i != dim && first->shared[in];
    }
    for (int i = 0; i < n; i++) {
        bool fits = x[i]->of == first->of && x[i]->ndim == first->ndim;

        for (int k = 0; k < first->ndim && fits; k++)
            fits = x[i]->shared[k] == first->shared[k] &&
                   ((k == dim && !new) || x[i]->size[k] == first->size[k]);
        if (!fits)
            return false;
        size[dim] += new ? 1 : x[i]->size[dim];
        first = x[i]->depth > first->depth ? x[i] : first;
    }
    outer = product(size, 0, dim), inner = product(size, dim + 1, ndim);
    y = make(p, first, ndim, size, shared);
    for (int i = 0; y && i < n; i++) {
        const int64_t count = new ? 1 : x[i]->size[dim];

        for (int64_t o = 0; o < outer; o++)
            memcpy(y->term + (o * size[dim] + to) * inner, x[i]->term + o * count * inner,
                   (size_t)(count * inner) * sizeof *y->term);
        to += count;
    }
    return out(p, 0, y);
}

/* ---- the node at hand ---- */

/* Are heads a dimension of their own? Else a view may make it one, and is no part of a rotary embedding. */
static bool has_heads(const hvt__pt2_axes *x)
{
    bool has = false;

    for (int i = 0; i < (x->ndim ? x->end[x->ndim - 1] : 0); i++)
        has = has || (x->atom[i].axis == 'C' && x->atom[i].stride > 1);
    return has;
}

typedef enum move { NONE, SLICE, PARTS, NEGATE, VIEW, SAME, MULTIPLY, ADD, SUBTRACT, JOIN, STACK } move;

static move move_of(const char *target)
{
    static const struct {
        const char *target;
        move is;
    } table[] = {
        {"aten.slice.Tensor", SLICE},      {"aten.chunk.default", PARTS},
        {"aten.split.Tensor", PARTS},      {"aten.split_with_sizes.default", PARTS},
        {"aten.unbind.int", PARTS},        {"aten.neg.default", NEGATE},
        {"aten.view.default", VIEW},       {"aten.reshape.default", VIEW},
        {"aten.flatten.using_ints", VIEW}, {"aten.unflatten.int", VIEW},
        {"aten.unsqueeze.default", VIEW},  {"aten.squeeze.dim", VIEW},
        {"aten.view_as.default", VIEW},    {"aten.reshape_as.default", VIEW},
        {"aten.to.dtype", SAME},           {"aten.to.device", SAME},
        {"aten.to.dtype_layout", SAME},    {"aten.type_as.default", SAME},
        {"aten.alias.default", SAME},      {"aten.contiguous.default", SAME},
        {"aten.clone.default", SAME},      {"aten.mul.Tensor", MULTIPLY},
        {"aten.add.Tensor", ADD},          {"aten.sub.Tensor", SUBTRACT},
        {"aten.cat.default", JOIN},        {"aten.stack.default", STACK},
    };

    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (!strcmp(table[i].target, target))
            return table[i].is;
    return NONE;
}

/* Of the product at hand, what depends on the images, if the other factor does not, and is no parameter. */
static const char *only_computed(const importer *p)
{
    const char *kind, *name[2], *factor;
    bool computed[2];

    for (int i = 0; i < 2; i++) {
        name[i] =
            json_string_value(json_object_get(hvt__pt2_arg(p->node, i ? "other" : "self", &kind), "name"));
        computed[i] = name[i] && json_object_get(p->file->computed, name[i]);
    }
    if (!name[0] || !name[1] || computed[0] == computed[1])
        return NULL;
    factor = name[computed[0]];
    return json_object_get(p->file->inputs, factor) && !json_object_get(p->file->constants, factor)
               ? NULL
               : name[computed[1]];
}

hvt_status hvt__pt2_find_rotations(importer *p)
{
    bool noted = (p->may_rotate = json_object());

    for (size_t i = p->file->nneeded; i-- > 0 && noted;) {
        const char *name, *of = NULL;
        move is;

        p->node = p->file->needed[i];
        is = move_of(hvt__pt2_target(p->node));
        if (is == MULTIPLY)
            of = only_computed(p);
        else if (is == NEGATE)
            of = first_name(p);
        for (int k = 0; is >= SLICE && is <= SAME && !of && (name = hvt__pt2_out_name(p, k)); k++)
            of = json_object_get(p->may_rotate, name) ? first_name(p) : NULL;
        noted = !of || json_object_set_new(p->may_rotate, of, json_true()) == 0;
    }
    p->node = NULL;
    HVT_CHECK(noted, E_MEM, "%s: no memory for names", p->file->path);
    return HVT_OK;
}

/* A list of tensors, of which one is rotated. */
static bool rotate_list(importer *p, bool stack)
{
    enum { MANY = 16 };
    const char *kind;
    const json_t *list = hvt__pt2_arg(p->node, "tensors", &kind);
    const int n = (int)json_array_size(list);
    const rotated *x[MANY];
    const tensor *t;
    bool any = false;

    if (n < 1 || n > MANY)
        return false;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n && (any || !pass); i++) {
            t = hvt__pt2_named(p,
                               json_string_value(json_object_get(json_array_get(list, (size_t)i), "name")));
            if (p->failed)
                return true;
            any = any || t->kind == HVT__PT2_ROTATED;
            if (pass && !(x[i] = elements(p, t)))
                return p->failed;
        }
    return any && join(p, n, x, stack);
}

/* Known numbers, or a buffer; a persistent one of one dimension is rather a constant of the tape. */
static bool is_constant(const importer *p, const tensor *t)
{
    int64_t size[HVT__PT2_DIMS];
    int wide = 0;

    for (int i = hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, size) - 1; i >= 0; i--)
        wide += size[i] > 1;
    return t->known || (t->state && t->constant && (!t->persistent || wide > 1));
}

/* Two tensors: of a product one, of a sum both are rotated. */
static bool rotate_two(importer *p, move is)
{
    const tensor *t[2];
    const rotated *x[2] = {NULL, NULL};
    double number;

    if (hvt__pt2_number(p, &number))
        return false;
    t[0] = hvt__pt2_uncut(p, "self"), t[1] = hvt__pt2_uncut(p, "other");
    if (p->failed || !t[0] || !t[1])
        return p->failed;
    if (is == MULTIPLY) {
        const int of = is_constant(p, t[0]);

        if (!is_constant(p, t[!of]))
            return false;
        x[of] = elements(p, t[of]);
        return x[of] ? multiply(p, x[of], t[!of]) : p->failed;
    }
    for (int i = 0; i < 2; i++)
        x[i] = t[i]->kind == HVT__PT2_ROTATED ? elements(p, t[i]) : NULL;
    return x[0] && x[1] && add(p, x[0], x[1], is == ADD ? 1 : -1);
}

bool hvt__pt2_rotates(importer *p)
{
    const move is = move_of(hvt__pt2_target(p->node));
    const tensor *t;
    const rotated *x;
    bool done;

    if (!is || !json_object_size(p->may_rotate))
        return false;
    p->rotating = true;
    if (is == JOIN || is == STACK) {
        done = rotate_list(p, is == STACK);
    } else if (is == MULTIPLY || is == ADD || is == SUBTRACT) {
        done = rotate_two(p, is);
    } else {
        t = hvt__pt2_uncut(p, hvt__pt2_first_argument(p));
        if (p->failed || (is == VIEW && t && t->kind == HVT__PT2_VALUE && !has_heads(&t->axes)))
            x = NULL;
        else
            x = elements(p, t);
        done = p->failed || (x && (is == SLICE    ? slice(p, x)
                                   : is == PARTS  ? parts(p, x)
                                   : is == NEGATE ? negate(p, x)
                                   : is == VIEW   ? view(p, x)
                                                  : same(p, x)));
    }
    p->rotating = false;
    sweep(p);
    return done || p->failed;
}

/* ---- the layer ---- */

/* The factors of a rotary embedding of tensor x->of; false: it is none, or the node is refused. */
static bool find_factors(importer *p, const rotated *x, hvt_rotary_opts *ret)
{
    const tensor *t = &p->tensor[x->of];
    int64_t at[HVT__PT2_DIMS] = {0}, i = 0;
    const int n = t->axes.ndim;
    float *own, *other;
    int width, apart = 0;
    form f;
    bool fits = n == x->ndim && find_form(&t->axes, &f);

    for (int k = 0; k < n && fits; k++)
        fits = x->size[k] == (f.shared[k] ? 1 : extent(&t->axes, k)) && x->shared[k] == f.shared[k];
    if (!fits)
        return false;
    width = (int)x->size[f.width];
    own = hvt__pt2_keep(p, (size_t)x->n * sizeof *own);
    other = hvt__pt2_keep(p, (size_t)x->n * sizeof *other);
    if (!own || !other)
        return false;
    do {
        const term *e = &x->term[i++];
        const int32_t row = (int32_t)at[f.tokens] * width, c = (int32_t)at[f.width];

        for (int k = 0; k < 2; k++) {
            const int from = e->at[k] - row;

            if (e->at[k] < 0)
                continue;
            if (from == c) {
                own[row + c] = e->times[k];
                continue;
            }
            apart = apart ? apart : abs(from - c);
            if (from != (c / apart % 2 ? c - apart : c + apart) || width % (2 * apart))
                return false;
            other[row + c] = e->times[k];
        }
    } while (hvt__pt2_next(n, x->size, at));
    *ret = (hvt_rotary_opts){.width = width, .apart = apart, .own = own, .other = other};
    return apart > 0;
}

/* t is v now, which lies as what was rotated. */
static void become(importer *p, tensor *t, hvt_value v, const tensor *like)
{
    t->kind = HVT__PT2_VALUE;
    t->v = v;
    t->axes = like->axes;
    t->alike = like->alike;
    t->times = like->times;
    t->rotated = NULL;
    p->mistaken = p->mistaken || v < 0;
}

/* As the operations say that made it. */
static tensor *build_anew(importer *p, tensor *t)
{
    const json_t *node = p->node;
    const operation *before = p->operation;
    const char *name = t->name;

    if (t->rotated)
        t->rotated->unused = true;
    t->rotated = NULL;
    sweep(p);
    p->node = t->maker;
    p->operation = hvt__pt2_operation(hvt__pt2_target(p->node));
    if (t->changes != p->changes)
        hvt__pt2_refuse(p, "constants are changed in place between it and what reads it");
    else if (p->operation)
        p->operation->build(p);
    else
        hvt__pt2_refuse(p, "it is known of constants and of rotary embeddings alone");
    p->node = node;
    p->operation = before;
    return p->failed ? NULL : &p->tensor[json_integer_value(json_object_get(p->index, name))];
}

tensor *hvt__pt2_as_rotary(importer *p, tensor *t)
{
    hvt_rotary_opts o;
    tensor *of;
    int shape[3];

    if (!t->rotated)
        return build_anew(p, t);
    if (!find_factors(p, t->rotated, &o))
        return p->failed ? NULL : build_anew(p, t);
    of = &p->tensor[t->rotated->of];
    hvt_value_shape(p->m, hvt__pt2_without_factor(p, of), shape);
    if ((int64_t)shape[0] * shape[1] * o.width != t->rotated->n)
        hvt__pt2_refuse(p, "its queries or keys have %dx%d pixels here, other ones in the file", shape[0],
                        shape[1]);
    if (p->failed)
        return NULL;
    o.vectors = shape[2] / o.width;
    become(p, t, hvt_rotary(p->m, of->v, &o), of);
    forget(p, hvt__pt2_index(p, of));
    return t;
}

/* Is it neighbouring channels `first` on of v? */
static bool is_part(const tensor *t, hvt_value v, int first, int count)
{
    return t->kind == HVT__PT2_VALUE && t->v == v && t->count == count && t->first == first;
}

void hvt__pt2_rotate_together(importer *p)
{
    const char *const name[3] = {"query", "key", "value"};
    tensor *t[3], *of[2];
    hvt_rotary_opts o[2];
    hvt_value v;
    size_t bytes;
    int shape[3];

    p->rotating = true;
    for (int i = 0; i < 3; i++) {
        const tensor *argument = hvt__pt2_uncut(p, name[i]);

        t[i] = argument ? &p->tensor[hvt__pt2_index(p, argument)] : NULL;
    }
    p->rotating = false;
    for (int i = 0; i < 2; i++) {
        if (p->failed || !t[i] || t[i]->kind != HVT__PT2_ROTATED || !t[i]->rotated)
            return;
        of[i] = &p->tensor[t[i]->rotated->of];
    }
    v = of[0]->v;
    hvt_value_shape(p->m, v, shape);
    if (shape[2] % 3 || !t[2] || !is_part(of[0], v, 0, shape[2] / 3) ||
        !is_part(of[1], v, shape[2] / 3, shape[2] / 3) ||
        !is_part(t[2], v, 2 * (shape[2] / 3), shape[2] / 3) || !find_factors(p, t[0]->rotated, &o[0]) ||
        !find_factors(p, t[1]->rotated, &o[1]))
        return;
    bytes = (size_t)t[0]->rotated->n * sizeof *o[0].own;
    if ((int64_t)shape[0] * shape[1] * o[0].width != t[0]->rotated->n ||
        t[0]->rotated->n != t[1]->rotated->n || o[0].width != o[1].width || o[0].apart != o[1].apart ||
        memcmp(o[0].own, o[1].own, bytes) != 0 || memcmp(o[0].other, o[1].other, bytes) != 0)
        return;
    o[0].vectors = 2 * (shape[2] / 3) / o[0].width;
    v = hvt_rotary(p->m, v, &o[0]);
    for (int i = 0; i < 2; i++) {
        become(p, t[i], v, of[i]);
        t[i]->first = of[i]->first;
        t[i]->count = of[i]->count;
        forget(p, hvt__pt2_index(p, of[i]));
    }
    t[2]->v = v;
}
