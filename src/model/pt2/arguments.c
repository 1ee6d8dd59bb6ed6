/*
 * Arguments of an operation as the file has them. What one means, and what it is when it is left out, is in
 * aten/src/ATen/native/native_functions.yaml of PyTorch.
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

    if (x && strcmp(x->kind, kind) != 0 && strcmp(x->kind, or_kind) != 0) {
        hvt__pt2_refuse(g, n, "its argument %s is %s, not %s", name, x->kind, kind);
        return NULL;
    }
    return x;
}

static bool is_int(const pt2_number *x)
{
    return x->kind == PT2_WHOLE && x->whole >= INT_MIN && x->whole <= INT_MAX;
}

int hvt__arg_int(pt2_graph *g, pt2_node *n, const char *name, int otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_int", "as_int");

    if (x && !is_int(x->number))
        hvt__pt2_refuse(g, n, "its argument %s is no integer of 32 bits", name);
    return x && !g->failed ? (int)x->number->whole : otherwise;
}

double hvt__arg_float(pt2_graph *g, pt2_node *n, const char *name, double otherwise)
{
    const pt2_arg *x = argument(g, n, name, "as_float", "as_int");

    if (x && !x->number->kind)
        hvt__pt2_refuse(g, n, "its argument %s is no number", name);
    return x && !g->failed ? x->number->real : otherwise;
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

    if (given && given != 1 && given != count) {
        hvt__pt2_refuse(g, n, "its argument %s has %d numbers, not %d", name, given, count);
        return;
    }
    for (int i = 0; i < count && given; i++) {
        const pt2_number *k = &x->number[given == 1 ? 0 : i];

        if (!is_int(k)) {
            hvt__pt2_refuse(g, n, "its argument %s is no list of integers of 32 bits", name);
            return;
        }
        ret_x[i] = (int)k->whole;
    }
}

int hvt__arg_list(pt2_graph *g, pt2_node *n, const char *name, int most, int *ret_x)
{
    const pt2_arg *x = argument(g, n, name, "as_ints", "as_ints");

    if (x && x->n > most)
        hvt__pt2_refuse(g, n, "its argument %s has %d numbers, more than %d", name, x->n, most);
    if (!x || g->failed)
        return 0;
    if (x->n)
        hvt__arg_ints(g, n, name, x->n, ret_x);
    return x->n;
}

int64_t hvt__arg_long(pt2_graph *g, pt2_node *n, const char *name, int64_t otherwise)
{
    const pt2_arg *x = hvt__arg(n, name);
    const int64_t most = INT64_C(1) << 40;
    int64_t at = otherwise;

    if (x && (x->number ? x->number->kind : PT2_NO_NUMBER) != PT2_WHOLE)
        hvt__pt2_refuse(g, n, "its argument %s is %s, not as_int", name, x->kind);
    else if (x)
        at = x->number->whole;
    return at < -most ? -most : at > most ? most : at;
}

int hvt__arg_dim(pt2_graph *g, pt2_node *n, const char *name, int otherwise, int ndim)
{
    int dim = hvt__arg_int(g, n, name, otherwise);

    dim += dim < 0 ? ndim : 0;
    if (dim < 0 || dim >= ndim)
        hvt__pt2_refuse(g, n, "its dimension is %d of %d", dim, ndim);
    return g->failed ? 0 : dim;
}
