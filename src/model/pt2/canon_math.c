/*
 * Functions of one number, and arithmetic. Some become several operations; the last one makes the output.
 */
#include "canon.h"

#include <math.h>

static pt2_attributes function_of(int f, double a, double b)
{
    return (pt2_attributes){.map = {f, a, b}};
}

static pt2_value *apply(pt2_graph *g, pt2_node *n, pt2_value *x, int f, double a, double b)
{
    return hvt__canon_before(g, n, PT2_MAP, function_of(f, a, b), 1, &x);
}

static pt2_value *affine(pt2_graph *g, pt2_node *n, pt2_value *x, double factor, double term)
{
    return factor == 1 && term == 0 ? x : apply(g, n, x, HVT_AFFINE, factor, term);
}

/* n becomes the function of x. */
static void map(pt2_graph *g, pt2_node *n, pt2_value *x, int f, double a, double b)
{
    hvt__canon_set(g, n, PT2_MAP, 1, &x);
    n->is = function_of(f, a, b);
}

static void combine(pt2_graph *g, pt2_node *n, int op, pt2_value *a, pt2_value *b)
{
    hvt__canon_set(g, n, PT2_BINARY, 2, (pt2_value *[]){a, b});
    n->is = (pt2_attributes){.binary = {.op = op, .alpha = 1}};
}

/* ---- functions and arithmetic ---- */

static void function(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const double a = r->a.argument ? hvt__arg_float(g, n, r->a.argument, r->a.otherwise) : r->a.otherwise,
                 b = r->b.argument ? hvt__arg_float(g, n, r->b.argument, r->b.otherwise) : r->b.otherwise;

    if (!g->failed)
        map(g, n, x, r->of, a, b);
}

static void gelu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const bool by_tanh = !strcmp(hvt__arg_string(g, n, "approximate", "none"), "tanh");

    if (!g->failed)
        map(g, n, x, by_tanh ? HVT_GELU_TANH : HVT_GELU, 0, 0);
}

/* scale * (x > 0 ? x : alpha * (e^(inner*x) - 1)): elu, selu, celu */
static void elu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    double alpha = r->a.argument ? hvt__arg_float(g, n, r->a.argument, 1) : r->a.otherwise, inner = 1,
           scale = r->b.argument ? hvt__arg_float(g, n, r->b.argument, 1) : r->b.otherwise;

    if (r->of == 'c')
        inner = 1 / alpha;
    else if (r->of == 'e')
        inner = hvt__arg_float(g, n, "input_scale", 1);
    if (inner <= 0)
        hvt__pt2_refuse(g, n, "its exponent is %g*x; expected a factor above 0", inner);
    if (g->failed)
        return;
    x = affine(g, n, x, inner, 0);
    if (scale == inner) {
        map(g, n, x, HVT_ELU, alpha * inner, 0);
        return;
    }
    x = apply(g, n, x, HVT_ELU, alpha * inner, 0);
    map(g, n, x, HVT_AFFINE, scale / inner, 0);
}

static void mish(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (!g->failed)
        combine(g, n, HVT_MUL, x, apply(g, n, apply(g, n, x, HVT_SOFTPLUS, 1, 20), HVT_TANH, 0, 0));
}

static void log_sigmoid(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (!g->failed)
        map(g, n, apply(g, n, affine(g, n, x, -1, 0), HVT_SOFTPLUS, 1, 20), HVT_AFFINE, -1, 0);
}

static void absolute(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    if (!g->failed)
        combine(g, n, HVT_ADD, apply(g, n, x, HVT_RELU, 0, 0),
                apply(g, n, affine(g, n, x, -1, 0), HVT_RELU, 0, 0));
}

/* square, and pow of a tensor and a number */
static void power(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const double exponent = hvt__arg_float(g, n, "exponent", r->a.otherwise);

    if (g->failed)
        return;
    if (exponent == 1)
        hvt__canon_set(g, n, PT2_CLONE, 1, &x);
    else if (exponent == 2)
        combine(g, n, HVT_MUL, x, x);
    else
        map(g, n, x, HVT_POW, exponent, 0);
}

/* A number to powers. */
static void powers(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_tensor(g, n, "exponent");
    const double base = hvt__arg_float(g, n, "self", 1);

    if (!x)
        hvt__pt2_refuse(g, n, "it has no tensor");
    hvt__canon_set(g, n, PT2_BINARY, 1, &x);
    n->is =
        (pt2_attributes){.binary = {.op = PT2_POWER, .has_number = true, .reversed = true, .number = base}};
}

static int division(pt2_graph *g, pt2_node *n, int op)
{
    const char *mode = op == HVT_DIV ? hvt__arg_string(g, n, "rounding_mode", "") : "";

    return !strcmp(mode, "floor") ? PT2_FLOOR_DIV : !strcmp(mode, "trunc") ? PT2_TRUNC_DIV : op;
}

/* Of two tensors, or of a tensor and a number; `of` negative: other - self. */
static void binary(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool reversed = r->of < 0;
    const pt2_arg *other = hvt__arg(n, "other");
    const bool is_number = other && other->number && other->number->kind && !other->value;
    const double alpha = hvt__arg_float(g, n, "alpha", 1);
    pt2_value *x = hvt__canon_first(g, n), *y = is_number ? NULL : hvt__canon_tensor(g, n, "other");
    const int op = division(g, n, reversed ? HVT_SUB : r->of);

    if (!is_number && !y)
        hvt__pt2_refuse(g, n, "it has no argument other");
    if (g->failed)
        return;
    if (is_number)
        hvt__canon_set(g, n, PT2_BINARY, 1, &x);
    else
        hvt__canon_set(g, n, PT2_BINARY, 2, (pt2_value *[]){reversed ? y : x, reversed ? x : y});
    n->is = (pt2_attributes){
        .binary = {.op = op, .has_number = is_number, .reversed = is_number && reversed, .alpha = alpha}};
    if (is_number)
        n->is.binary.number = other->number->real, n->is.binary.real = other->number->kind == PT2_REAL;
}

/* self + value * tensor1 * tensor2 */
static void addcmul(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n),
              *in[2] = {hvt__canon_tensor(g, n, "tensor1"), hvt__canon_tensor(g, n, "tensor2")}, *y;
    const double value = hvt__arg_float(g, n, "value", 1);

    if (!in[0] || !in[1])
        hvt__pt2_refuse(g, n, "it has no argument tensor%d", in[0] ? 2 : 1);
    if (g->failed)
        return;
    y = hvt__canon_before(g, n, PT2_BINARY, (pt2_attributes){.binary = {.op = HVT_MUL, .alpha = 1}}, 2, in);
    combine(g, n, HVT_ADD, affine(g, n, y, value, 0), x);
}

static void prelu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[2] = {hvt__canon_first(g, n), hvt__canon_tensor(g, n, "weight")};

    hvt__canon_set(g, n, PT2_PRELU, 2, in);
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"aten.relu.default", function, HVT_RELU},
    {"aten.relu6.default", function, HVT_HARDTANH, {NULL, 0}, {NULL, 6}},
    {"aten.hardtanh.default", function, HVT_HARDTANH, {"min_val", -1}, {"max_val", 1}},
    {"aten.clamp.default", function, HVT_HARDTANH, {"min", -INFINITY}, {"max", INFINITY}},
    {"aten.clamp_min.default", function, HVT_HARDTANH, {"min", -INFINITY}, {NULL, INFINITY}},
    {"aten.clamp_max.default", function, HVT_HARDTANH, {NULL, -INFINITY}, {"max", INFINITY}},
    {"aten.leaky_relu.default", function, HVT_LEAKY_RELU, {"negative_slope", 0.01}},
    {"aten.elu.default", elu, 'e', {"alpha", 1}, {"scale", 1}},
    {"aten.selu.default", elu, 's', {NULL, 1.6732632423543772}, {NULL, 1.0507009873554805}},
    {"aten.celu.default", elu, 'c', {"alpha", 1}, {NULL, 1}},
    {"aten.sigmoid.default", function, HVT_SIGMOID},
    {"aten.log_sigmoid.default", log_sigmoid},
    {"aten.hardsigmoid.default", function, HVT_HARDSIGMOID},
    {"aten.hardswish.default", function, HVT_HARDSWISH},
    {"aten.silu.default", function, HVT_SILU},
    {"aten.mish.default", mish},
    {"aten.gelu.default", gelu},
    {"aten.tanh.default", function, HVT_TANH},
    {"aten.softplus.default", function, HVT_SOFTPLUS, {"beta", 1}, {"threshold", 20}},
    {"aten.neg.default", function, HVT_AFFINE, {NULL, -1}},
    {"aten.abs.default", absolute},
    {"aten.square.default", power, 0, {NULL, 2}},
    {"aten.pow.Tensor_Scalar", power, 0, {NULL, 1}},
    {"aten.pow.Scalar", powers},
    {"aten.sqrt.default", function, HVT_POW, {NULL, 0.5}},
    {"aten.rsqrt.default", function, HVT_POW, {NULL, -0.5}},
    {"aten.reciprocal.default", function, HVT_POW, {NULL, -1}},
    {"aten.exp.default", function, HVT_EXP},
    {"aten.log.default", function, HVT_LOG},
    {"aten.sin.default", function, PT2_SIN},
    {"aten.cos.default", function, PT2_COS},
    {"aten.floor.default", function, PT2_FLOOR},
    {"aten.prelu.default", prelu},
    {"aten.add.Tensor", binary, HVT_ADD},
    {"aten.add.Scalar", binary, HVT_ADD},
    {"aten.sub.Tensor", binary, HVT_SUB},
    {"aten.sub.Scalar", binary, HVT_SUB},
    {"aten.rsub.Tensor", binary, -1},
    {"aten.rsub.Scalar", binary, -1},
    {"aten.mul.Tensor", binary, HVT_MUL},
    {"aten.mul.Scalar", binary, HVT_MUL},
    {"aten.div.Tensor", binary, HVT_DIV},
    {"aten.div.Scalar", binary, HVT_DIV},
    {"aten.div.Tensor_mode", binary, HVT_DIV},
    {"aten.div.Scalar_mode", binary, HVT_DIV},
    {"aten.floor_divide.default", binary, PT2_FLOOR_DIV},
    {"aten.remainder.Scalar", binary, PT2_REMAINDER},
    {"aten.remainder.Tensor", binary, PT2_REMAINDER},
    {"aten.maximum.default", binary, HVT_MAXIMUM},
    {"aten.max.other", binary, HVT_MAXIMUM},
    {"aten.minimum.default", binary, HVT_MINIMUM},
    {"aten.min.other", binary, HVT_MINIMUM},
    {"aten.eq.Tensor", binary, PT2_EQ},
    {"aten.eq.Scalar", binary, PT2_EQ},
    {"aten.ne.Tensor", binary, PT2_NE},
    {"aten.ne.Scalar", binary, PT2_NE},
    {"aten.ge.Tensor", binary, PT2_GE},
    {"aten.ge.Scalar", binary, PT2_GE},
    {"aten.gt.Tensor", binary, PT2_GT},
    {"aten.gt.Scalar", binary, PT2_GT},
    {"aten.le.Tensor", binary, PT2_LE},
    {"aten.le.Scalar", binary, PT2_LE},
    {"aten.lt.Tensor", binary, PT2_LT},
    {"aten.lt.Scalar", binary, PT2_LT},
    {"aten.addcmul.default", addcmul},
};

const pt2_rows hvt__pt2_math_rows = {table, HVT_LEN(table)};
