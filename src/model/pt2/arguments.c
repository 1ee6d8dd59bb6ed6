/*
 * Reads the arguments of an operation: numbers, lists, strings, and the current values of tensors. Their
 * meanings and defaults are in PyTorch's aten/src/ATen/native/native_functions.yaml.
 */
#include "canon.h"

const pt2_arg *hvt__arg(const pt2_node *n, const char *name)
{
    for (int i = 0; i < n->nargs; i++)
        if (!strcmp(n->arg[i].name, name))
            return &n->arg[i];
    return NULL;
}

static const pt2_arg *argument(pt2_graph *g, pt2_node *n, const char *name, const char *kind,
                               const char *or_kind)
{
    const pt2_arg *x = hvt__arg(n, name);

    if (x && strcmp(x->kind, kind) != 0 && strcmp(x->kind, or_kind) != 0)
        hvt__pt2_refuse(g, n, "its argument %s is %s, not %s", name, x->kind, kind);
    return x;
}

/* ---- numbers and strings ---- */

static bool is_int(const pt2_number *x)
{
    return x->kind == PT2_WHOLE && x->whole >= INT_MIN && x->whole <= INT_MAX;
}

int hvt__arg_int(pt2_graph *g, pt2_node *n, const char *name, int otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_int", "as_int");

    if (x && !is_int(x->number))
        hvt__pt2_refuse(g, n, "its argument %s is not a 32-bit integer", name);
    return x ? (int)x->number->whole : otherwise;
}

double hvt__arg_float(pt2_graph *g, pt2_node *n, const char *name, double otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_float", "as_int");

    if (x && !x->number->kind)
        hvt__pt2_refuse(g, n, "its argument %s is not a number", name);
    return x ? x->number->real : otherwise;
}

double hvt__arg_operand(pt2_graph *g, pt2_node *n, const pt2_operand *of)
{
    return of->argument ? hvt__arg_float(g, n, of->argument, of->otherwise) : of->otherwise;
}

bool hvt__arg_bool(pt2_graph *g, pt2_node *n, const char *name, bool otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_bool", "as_bool");

    return x ? x->truth : otherwise;
}

const char *hvt__arg_string(pt2_graph *g, pt2_node *n, const char *name, const char *otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_string", "as_string");

    return x && x->text ? x->text : otherwise;
}

void hvt__arg_ints(pt2_graph *g, pt2_node *n, const char *name, int count, int *ret_x)
{
    const pt2_arg *x = argument(g, n, name, "as_ints", "as_int");
    const int given = x && !strcmp(x->kind, "as_ints") ? x->n : x ? 1 : 0;

    if (given && given != 1 && given != count)
        hvt__pt2_refuse(g, n, "its argument %s has %d numbers, not %d", name, given, count);
    for (int i = 0; i < count && given; i++) {
        const pt2_number *k = &x->number[given == 1 ? 0 : i];

        if (!is_int(k))
            hvt__pt2_refuse(g, n, "its argument %s is not a list of 32-bit integers", name);
        ret_x[i] = (int)k->whole;
    }
}

int hvt__arg_list(pt2_graph *g, pt2_node *n, const char *name, int most, int *ret_x)
{
    const pt2_arg *x = argument(g, n, name, "as_ints", "as_ints");
    const int count = x ? x->n : 0;

    if (count > most)
        hvt__pt2_refuse(g, n, "its argument %s has %d numbers, more than %d", name, count, most);
    if (count)
        hvt__arg_ints(g, n, name, count, ret_x);
    return count;
}

int64_t hvt__arg_long(pt2_graph *g, pt2_node *n, const char *name, int64_t otherwise)
{
    const pt2_arg *x = hvt__arg(n, name);
    const int64_t most = INT64_C(1) << 40;
    int64_t at = otherwise;

    if (x && (x->number ? x->number->kind : PT2_NO_NUMBER) != PT2_WHOLE)
        hvt__pt2_refuse(g, n, "its argument %s is %s, not as_int", name, x->kind);
    if (x)
        at = x->number->whole;
    return at < -most ? -most : at > most ? most : at;
}

int hvt__dim(pt2_graph *g, pt2_node *n, int dim, int ndim)
{
    dim += dim < 0 ? ndim : 0;
    if (dim < 0 || dim >= ndim)
        hvt__pt2_refuse(g, n, "its dimension is %d of %d", dim, ndim);
    return dim;
}

int hvt__arg_dim(pt2_graph *g, pt2_node *n, const char *name, int otherwise, int ndim)
{
    return hvt__dim(g, n, hvt__arg_int(g, n, name, otherwise), ndim);
}

/* ---- tensors ---- */

pt2_value *hvt__canon_tensor(pt2_graph *g, pt2_node *n, const char *name)
{
    const pt2_arg *x = argument(g, n, name, "as_tensor", "as_tensor");

    return x && x->value && x->value[0] ? hvt__alias_now(g, n, x->value[0]) : NULL;
}

pt2_value *hvt__canon_given(pt2_graph *g, pt2_node *n, const char *name)
{
    pt2_value *x = hvt__canon_tensor(g, n, name);

    if (!x)
        hvt__pt2_refuse(g, n, "it has no argument %s", name);
    return x;
}

pt2_value *hvt__canon_first(pt2_graph *g, pt2_node *n)
{
    return hvt__canon_given(g, n, hvt__arg(n, "input") ? "input" : "self");
}

int hvt__canon_tensors(pt2_graph *g, pt2_node *n, const char *name, pt2_value ***ret)
{
    const pt2_arg *x = hvt__arg(n, name);
    const int count = x && x->value ? x->n : 0;

    if (!count)
        hvt__pt2_refuse(g, n, "it has no tensors");
    *ret = hvt__pt2_make(g, (size_t)count * sizeof(pt2_value *));
    for (int i = 0; i < count; i++) {
        if (!x->value[i])
            hvt__pt2_refuse(g, n, "one of its tensors is missing");
        (*ret)[i] = hvt__alias_now(g, n, x->value[i]);
    }
    return count;
}

/* ---- turning a node into an operation ---- */

void hvt__canon_unary(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is)
{
    pt2_value *x = hvt__canon_first(g, n);

    hvt__pt2_become(g, n, op, &is, 1, &x);
}

pt2_value *hvt__canon_before(pt2_graph *g, pt2_node *n, pt2_op op, pt2_attributes is, int count,
                             pt2_value *const *in)
{
    return hvt__pt2_compute(g, n, n, op, &is, count, in, n->out[0]);
}
