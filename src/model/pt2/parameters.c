/*
 * Parameters, buffers and constants that operations read like computed values: as values of the tape, and
 * as operands.
 */
#include "layout.h"

bool hvt__lay_is_state(const pt2_value *v)
{
    const pt2_value *of = hvt__pt2_state_of(v);

    return of && (of->source == PT2_TRAINED || (of->constant == PT2_SOFT && v->constant != PT2_FOLDED));
}

void hvt__lay_check_trained(pt2_layout *l, const char *argument, const pt2_value *v)
{
    const pt2_value *of = hvt__pt2_state_of(v);

    if (!of)
        REFUSE(l, "its %s is computed; expected a parameter", argument);
    if (of->source != PT2_TRAINED || of != v)
        REFUSE(l, "its %s is %s %s; expected a parameter", argument,
               of->source == PT2_TRAINED ? "a view of" : "the buffer", of->state);
}

/* ---- names ---- */

bool hvt__lay_has_layer(const pt2_layout *l, const char *name)
{
    for (int i = 0; i < l->nlayers; i++)
        if (!strcmp(l->layer[i], name))
            return true;
    return false;
}

void hvt__lay_keep_layer(pt2_layout *l, const char *name)
{
    if (hvt__lay_has_layer(l, name))
        return;
    l->layer = hvt__pt2_grown(l->g, l->layer, l->nlayers, &l->room, sizeof *l->layer);
    l->layer[l->nlayers++] = hvt__pt2_text(l->g, name);
}

/* True if a layer on the tape has this weight or bias. */
static bool is_of_layer(const pt2_layout *l, const char *state)
{
    size_t n = strlen(state);
    char layer[256];

    while (n && state[n - 1] != '.' && state[n - 1] != '_')
        n--;
    snprintf(layer, sizeof layer, "%.*s", (int)(n && state[n - 1] == '.' ? n - 1 : n), state);
    return hvt__lay_has_layer(l, layer);
}

/* ---- operands ---- */

static pt2_value *with_state(pt2_layout *l, pt2_op op, pt2_value *x, const pt2_value *of, pt2_attributes *is)
{
    is->layer = of->state;
    is->parameter.of = (pt2_value *)of;
    is->parameter.ndim = of->ndim;
    for (int i = 0; i < of->ndim && i < 4; i++)
        is->parameter.dim[i] = of->size[i] > INT_MAX ? INT_MAX : (int)of->size[i];
    if (of->ndim < 0 || of->ndim > 4)
        REFUSE(l, "%s has more than 4 dimensions", of->state);
    hvt__lay_keep_layer(l, of->state);
    return hvt__emit_like(l, op, is, x);
}

pt2_value *hvt__lay_by_parameter(pt2_layout *l, hvt_binary op, pt2_value *x, const pt2_value *parameter,
                                 float init)
{
    return with_state(l, PT2_PARAMETER, x, hvt__pt2_state_of(parameter),
                      &(pt2_attributes){.parameter = {.op = op, .init = init}});
}

pt2_value *hvt__lay_embedding(pt2_layout *l, pt2_value *x, int first, int64_t rows,
                              const pt2_value *parameter)
{
    const pt2_value *of = hvt__pt2_state_of(parameter);
    int64_t own = 1;

    if (of->ndim < 1 || of->ndim > 4)
        REFUSE(l, "%s has no dimensions, or more than 4", of->state);
    for (int i = 0; i < of->ndim; i++)
        own = i == of->ndim - 1 || own > rows ? own : own * of->size[i];
    if (own != rows)
        REFUSE(l, "%s is repeated, or its dimensions were joined; expected one row for each token",
               of->state);
    return with_state(l, PT2_EMBEDDING, x, of,
                      &(pt2_attributes){.parameter = {.first = first, .init = 0.02f}});
}

/* ---- as values ---- */

/* The numbers of v as d[0] x d[1] x d[2] for each image; NULL: they are not constant. */
static pt2_value *constant_value(pt2_layout *l, pt2_value *v, bool expanded, const int64_t *d)
{
    const pt2_array *k = hvt__array_numbers_of(l->g, l->n, v);
    int64_t at[PT2_DIMS] = {0}, size[PT2_DIMS], i = 0;
    float *x;

    if (!k)
        return NULL;
    memcpy(size, v->size, sizeof size);
    size[0] = expanded ? 1 : size[0];
    x = hvt__pt2_make(l->g, (size_t)(d[0] * d[1] * d[2]) * sizeof *x);
    do
        x[i++] = (float)k->number[hvt__array_element(k, v->ndim, at)];
    while (hvt__array_next(v->ndim, size, at));
    return hvt__emit(l, PT2_CONSTANT, &(pt2_attributes){.values = x}, 0, NULL, d[0], d[1], d[2]);
}

/* Elements of a table, by index, as a value of these sizes; NULL: they are sums or multiples of elements. */
static pt2_value *table_elements(pt2_layout *l, const pt2_value *v, bool expanded, const int64_t *d)
{
    const pt2_array *x = v->array;
    const pt2_place *table = hvt__place(l, x->of);
    const int64_t n = d[0] * d[1] * d[2];
    int64_t at[PT2_DIMS] = {0}, size[PT2_DIMS], i = 0;
    pt2_value *y;
    int *index;

    if (n > PT2_REPEATS || x->number)
        return NULL;
    index = hvt__pt2_make(l->g, (size_t)n * sizeof *index);
    memcpy(size, v->size, sizeof size);
    size[0] = expanded ? 1 : size[0];
    do {
        const pt2_term *t = &x->term[hvt__array_element(x, v->ndim, at)];

        if (t->at[1] >= 0 || (t->at[0] >= 0 && t->times[0] != 1))
            return NULL;
        index[i++] = t->at[0];
    } while (hvt__array_next(v->ndim, size, at));
    y = hvt__lay_in_order(l, table, x->of->size, 0, table->axes.ndim).v;
    y = hvt__lay_reshape(l, hvt__emit_gather(l, y, index, 1, 1, n), d[0], d[1]);
    y = x->sigmoid ? hvt__emit_map(l, y, HVT_SIGMOID, 0, 0) : y;
    return x->gain != 0 ? hvt__emit_map(l, y, HVT_AFFINE, (float)x->gain, 0) : y;
}

/* True if all images have the same numbers. */
static bool is_same_for_all(const pt2_array *x)
{
    bool same = x->stride[0] == 0 || (x->number && !x->term);

    if (x->stride[0] && same)
        PT2_EACH(x->ndim, x->size, at)
        {
            int64_t first[PT2_DIMS];

            memcpy(first, at, sizeof first);
            first[0] = 0;
            same = same && x->number[hvt__array_element(x, x->ndim, at)] ==
                               x->number[hvt__array_element(x, x->ndim, first)];
        }
    return same;
}

/* Of the dimensions above size 1, the last three become H, W and C; if there are more, all before C become W.
 */
static bool lay_dims(const pt2_value *v, bool expanded, int64_t *d, pt2_axes *ret)
{
    int64_t inner = 1;
    int axis = 3, long_ones = 0, atoms = 0;
    char name[PT2_DIMS] = "";

    for (int i = v->ndim - 1; i >= expanded; i--) {
        if (v->size[i] == 1)
            continue;
        axis -= axis > 0;
        name[i] = "HWC"[axis];
        long_ones++;
    }
    ret->ndim = v->ndim ? v->ndim : 1; /* a scalar is a tensor of one element here */
    for (int i = v->ndim - 1; i >= 0; i--) {
        char *a = &name[i];

        *a = *a && *a != 'C' && long_ones > 3 ? 'W' : *a;
        if (*a)
            d[strchr("HWC", *a) - "HWC"] *= v->size[i];
    }
    for (int i = 0; i < v->ndim; i++) {
        if (i == 0 && expanded)
            name[i] = 'N';
        if (name[i] && atoms == PT2_ATOMS)
            return false;
        if (name[i])
            ret->atom[atoms++] = (pt2_atom){name[i], v->size[i], 1};
        ret->end[i] = atoms;
    }
    for (int a = atoms - 1; a >= 0; a--)
        if (ret->atom[a].axis == 'W') {
            ret->atom[a].stride = inner;
            inner *= ret->atom[a].extent;
        }
    return true;
}

/* [C], [T,C] or [H,W,C], maybe with dimensions of size 1 between them, maybe expanded over the images. */
static bool as_value(pt2_layout *l, pt2_value *v)
{
    const pt2_value *of = hvt__lay_is_state(v) ? hvt__pt2_state_of(v) : NULL;
    const int64_t elements = v->ndim < 0 ? 0 : hvt__pt2_count(v->ndim, v->size),
                  own = of ? hvt__pt2_count(of->ndim < 0 ? 0 : of->ndim, of->size) : elements;
    const int batch = l->g->batch;
    const bool expanded =
        v->ndim > 1 && batch > 1 && v->size[0] == batch &&
        (of ? elements != own : v->array && v->array->ndim == v->ndim && is_same_for_all(v->array));
    pt2_place p = {0};
    int64_t d[3] = {1, 1, 1};

    if (v->producer && v->producer->op == PT2_REPEAT && !expanded && elements != own && elements > 0) {
        pt2_value *in = v->producer->in[0];
        const pt2_place y = hvt__lay_repeated(l, hvt__place(l, in), in, v);

        v->place = hvt__pt2_make(l->g, sizeof *v->place);
        *v->place = y;
        return true;
    }
    if (v->ndim < 0 || elements < 1 || elements > INT_MAX || (of && elements != own * (expanded ? batch : 1)))
        return false;
    if (of &&
        (is_of_layer(l, of->state) || (of != v && of->ndim == 4 && hvt__pt2_ends_in(of->state, "weight"))))
        return false;
    if (!lay_dims(v, expanded, d, &p.axes))
        return false;
    if (of)
        p.v = d[0] * d[1] > 1 ? hvt__lay_embedding(l, hvt__emit_zeros(l, d[0], d[1], d[2]), 0, d[0] * d[1], v)
                              : hvt__lay_by_parameter(l, HVT_ADD, hvt__emit_zeros(l, d[0], d[1], d[2]), v, 0);
    else
        p.v = v->array && v->array->term ? table_elements(l, v, expanded, d)
                                         : constant_value(l, v, expanded, d);
    if (!p.v)
        return false;
    v->place = hvt__pt2_make(l->g, sizeof *v->place);
    *v->place = p;
    return true;
}

static void refuse_operand(pt2_layout *l, const pt2_value *v)
{
    const pt2_value *of = hvt__pt2_state_of(v);
    const pt2_op by = v->producer ? v->producer->op : PT2_OP_COUNT;

    if (v->array && v->array->term)
        REFUSE(l,
               "it computes with elements of %s by their numbers, which are known in what is added to "
               "attention's scores",
               v->array->of->state ? v->array->of->state : "a computed tensor");
    else if (of)
        REFUSE(l, "it computes with %s; expected the result of an operation", of->state);
    else if (v->constant)
        REFUSE(l,
               "it computes with a constant of %d dimensions; expected at most three that are longer than 1",
               v->ndim);
    else
        REFUSE(l, "it computes with %s; expected the result of an operation",
               by == PT2_EMPTY || by == PT2_RAND || by == PT2_BERNOULLI ? "random numbers"
               : *v->name                                               ? v->name
                                                                        : "nothing");
}

pt2_place *hvt__place(pt2_layout *l, pt2_value *v)
{
    if (!v)
        REFUSE(l, "one of its arguments is missing");
    if (!v->place && (v->computed || !as_value(l, v)))
        refuse_operand(l, v);
    return v->place;
}

pt2_value *hvt__lay_image(pt2_layout *l, const char *name, pt2_value *v)
{
    const pt2_place x = hvt__lay_ordered(l, hvt__place(l, v));
    pt2_place y;

    if (hvt__axes_image(&x.axes))
        return x.v;
    if (x.axes.ndim != 4 || (v->size[0] != l->g->batch && v->size[0] != 1))
        REFUSE(l, "%s is not [N,C,H,W]: it has %d dimensions, or the batch was joined with another one", name,
               x.axes.ndim);
    y = x;
    hvt__axes_permute(&y.axes, (const int[]){0, 2, 3, 1});
    return hvt__lay_in_order(l, &y, (const int64_t[]){v->size[0], v->size[2], v->size[3], v->size[1]}, 2, 3)
        .v;
}
