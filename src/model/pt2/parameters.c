/*
 * Parameters, buffers and constants where others have what is computed: as values of the tape, and as
 * operands.
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

/* True if a layer on the tape has it for its weight or bias. */
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
        REFUSE(l, "%s has not 1 to 4 dimensions", of->state);
    for (int i = 0; i < of->ndim; i++)
        own = i == of->ndim - 1 || own > rows ? own : own * of->size[i];
    if (own != rows)
        REFUSE(l, "%s is repeated, or its dimensions were joined; expected one row for each token",
               of->state);
    return with_state(l, PT2_EMBEDDING, x, of,
                      &(pt2_attributes){.parameter = {.first = first, .init = 0.02f}});
}

/* ---- as values ---- */

/* The numbers of v, d[0] x d[1] x d[2], for each image; NULL: they are not known. */
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

/* [C], [T,C] or [H,W,C], with dimensions of 1 between them, and maybe expanded to all images. */
static bool as_value(pt2_layout *l, pt2_value *v)
{
    const pt2_value *of = hvt__lay_is_state(v) ? hvt__pt2_state_of(v) : NULL;
    const int64_t elements = v->ndim < 0 ? 0 : hvt__pt2_count(v->ndim, v->size),
                  own = of ? hvt__pt2_count(of->ndim < 0 ? 0 : of->ndim, of->size) : elements;
    const int batch = l->g->batch;
    const bool expanded =
        v->ndim > 1 && batch > 1 && v->size[0] == batch &&
        (of ? elements != own : v->array && v->array->ndim == v->ndim && v->array->stride[0] == 0);
    pt2_place p = {.axes = {.ndim = v->ndim}};
    int64_t d[3] = {1, 1, 1};
    int axis = 3;

    if (v->ndim < 1 || elements < 1 || elements > INT_MAX || (of && elements != own * (expanded ? batch : 1)))
        return false;
    if (of &&
        (is_of_layer(l, of->state) || (of != v && of->ndim == 4 && hvt__pt2_ends_in(of->state, "weight"))))
        return false;
    for (int i = expanded; i < v->ndim; i++)
        axis -= v->size[i] != 1;
    if (axis < 0)
        return false;
    for (int i = 0, at = 0; i < v->ndim; i++) {
        if (i == 0 && expanded) {
            p.axes.atom[at++] = (pt2_atom){'N', v->size[0], 1};
        } else if (v->size[i] != 1) {
            d[axis] = v->size[i];
            p.axes.atom[at++] = (pt2_atom){"HWC"[axis++], v -> size[i], 1};
        }
        p.axes.end[i] = at;
    }
    if (of)
        p.v = d[0] * d[1] > 1 ? hvt__lay_embedding(l, hvt__emit_zeros(l, d[0], d[1], d[2]), 0, d[0] * d[1], v)
                              : hvt__lay_by_parameter(l, HVT_ADD, hvt__emit_zeros(l, d[0], d[1], d[2]), v, 0);
    else
        p.v = constant_value(l, v, expanded, d);
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
        REFUSE(l, "it computes with %s; expected the result of an operation%s", of->state,
               hvt__pt2_ends_in(of->state, "weight")
                   ? ". A layer's weight is imported as it is, not computed anew in each step, as "
                     "standardised weights are"
                   : "");
    else if (v->constant)
        REFUSE(l,
               "it computes with a constant of %d dimensions; expected at most three that are longer than 1",
               v->ndim);
    else
        REFUSE(l, "it computes with %s; expected the result of an operation",
               by == PT2_EMPTY || by == PT2_BERNOULLI ? "random numbers"
               : *v->name                             ? v->name
                                                      : "nothing");
}

pt2_place *hvt__place(pt2_layout *l, pt2_value *v)
{
    if (!v)
        REFUSE(l, "one of its arguments is left out");
    if (!v->place && (v->computed || !as_value(l, v)))
        refuse_operand(l, v);
    return v->place;
}

pt2_value *hvt__lay_image(pt2_layout *l, const char *name, pt2_value *v)
{
    const pt2_place x = hvt__lay_ordered(l, hvt__place(l, v));

    if (!hvt__axes_image(&x.axes))
        REFUSE(l, "%s is not [N,C,H,W]: its dimensions were moved or joined", name);
    return x.v;
}
