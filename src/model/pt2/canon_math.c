/*
 * Functions of one number, and arithmetic. A function may become several operations; the last one makes the
 * output.
 */
#include "canon.h"

#include <math.h>

static pt2_value *apply(pt2_graph *g, pt2_node *n, pt2_value *x, int f, double a, double b)
{
    return hvt__canon_before(g, n, PT2_MAP, (pt2_attributes){.map = {f, a, b}}, 1, &x);
}

static pt2_value *affine(pt2_graph *g, pt2_node *n, pt2_value *x, double factor, double term)
{
    return factor == 1 && term == 0 ? x : apply(g, n, x, HVT_AFFINE, factor, term);
}

/* Turns n into function f of x. */
static void map(pt2_graph *g, pt2_node *n, pt2_value *x, int f, double a, double b)
{
    hvt__pt2_become(g, n, PT2_MAP, &(pt2_attributes){.map = {f, a, b}}, 1, &x);
}

static void combine(pt2_graph *g, pt2_node *n, int op, pt2_value *a, pt2_value *b)
{
    hvt__pt2_become(g, n, PT2_BINARY, &(pt2_attributes){.binary = {.op = op, .alpha = 1}}, 2,
                    (pt2_value *[]){a, b});
}

/* ---- functions and arithmetic ---- */

static void function(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    map(g, n, hvt__canon_first(g, n), r->of, hvt__arg_operand(g, n, &r->a), hvt__arg_operand(g, n, &r->b));
}

/* floor(keep + a random number in [0, 1)) is 1 with probability `keep`: stochastic depth of older timm. */
static void floor_of(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_node *sum = hvt__pt2_maker(hvt__canon_first(g, n), PT2_BINARY);

    if (sum && sum->is.binary.op == HVT_ADD && sum->is.binary.has_number &&
        hvt__pt2_maker(sum->in[0], PT2_RAND))
        hvt__pt2_become(g, n, PT2_BERNOULLI,
                        &(pt2_attributes){.dropout = {.p = sum->is.binary.number, .trains = true}}, 1,
                        sum->in);
    else
        function(g, n, r);
}

static void gelu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool by_tanh = !strcmp(hvt__arg_string(g, n, "approximate", "none"), "tanh");

    map(g, n, hvt__canon_first(g, n), by_tanh ? HVT_GELU_TANH : HVT_GELU, 0, 0);
}

/* scale * (x > 0 ? x : alpha * (e^(inner*x) - 1)): elu, selu, celu */
static void elu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const double alpha = hvt__arg_operand(g, n, &r->a), scale = hvt__arg_operand(g, n, &r->b),
                 inner = r->of == 'c'   ? 1 / alpha
                         : r->of == 'e' ? hvt__arg_float(g, n, "input_scale", 1)
                                        : 1;

    if (inner <= 0)
        hvt__pt2_refuse(g, n, "its exponent is %g*x; expected a factor above 0", inner);
    x = affine(g, n, x, inner, 0);
    if (scale == inner)
        map(g, n, x, HVT_ELU, alpha * inner, 0);
    else
        map(g, n, apply(g, n, x, HVT_ELU, alpha * inner, 0), HVT_AFFINE, scale / inner, 0);
}

static void mish(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);

    combine(g, n, HVT_MUL, x, apply(g, n, apply(g, n, x, HVT_SOFTPLUS, 1, 20), HVT_TANH, 0, 0));
}

static void log_sigmoid(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = affine(g, n, hvt__canon_first(g, n), -1, 0);

    map(g, n, apply(g, n, x, HVT_SOFTPLUS, 1, 20), HVT_AFFINE, -1, 0);
}

static void absolute(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n), *positive = apply(g, n, x, HVT_RELU, 0, 0);

    combine(g, n, HVT_ADD, positive, apply(g, n, affine(g, n, x, -1, 0), HVT_RELU, 0, 0));
}

/* square, and pow of a tensor and a number */
static void power(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const double exponent = hvt__arg_operand(g, n, &r->a);

    if (exponent == 1)
        hvt__canon_unary(g, n, PT2_CLONE, (pt2_attributes){0});
    else if (exponent == 2)
        combine(g, n, HVT_MUL, x, x);
    else
        map(g, n, x, HVT_POW, exponent, 0);
}

/* A number to the power of a tensor. */
static void powers(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_given(g, n, "exponent");
    const double base = hvt__arg_float(g, n, "self", 1);

    hvt__pt2_become(
        g, n, PT2_BINARY,
        &(pt2_attributes){.binary = {.op = PT2_POWER, .has_number = true, .reversed = true, .number = base}},
        1, &x);
}

static int division(pt2_graph *g, pt2_node *n, int op)
{
    const char *mode = op == HVT_DIV ? hvt__arg_string(g, n, "rounding_mode", "") : "";

    return !strcmp(mode, "floor") ? PT2_FLOOR_DIV : !strcmp(mode, "trunc") ? PT2_TRUNC_DIV : op;
}

/* Two tensors, or a tensor and a number; `of` negative: other - self. */
static void binary(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const bool reversed = r->of < 0;
    const pt2_arg *other = hvt__arg(n, "other");
    const bool is_number = other && other->number && other->number->kind && !other->value;
    pt2_value *x = hvt__canon_first(g, n), *y = is_number ? NULL : hvt__canon_given(g, n, "other");
    pt2_attributes is = {.binary = {.op = division(g, n, reversed ? HVT_SUB : r->of),
                                    .has_number = is_number,
                                    .reversed = is_number && reversed,
                                    .alpha = hvt__arg_float(g, n, "alpha", 1)}};

    if (is_number)
        is.binary.number = other->number->real, is.binary.real = other->number->kind == PT2_REAL;
    hvt__pt2_become(g, n, PT2_BINARY, &is, is_number ? 1 : 2,
                    y && reversed ? (pt2_value *[]){y, x} : (pt2_value *[]){x, y});
}

/* self + value * tensor1 * tensor2 */
static void addcmul(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n),
              *in[2] = {hvt__canon_given(g, n, "tensor1"), hvt__canon_given(g, n, "tensor2")}, *y;
    const double value = hvt__arg_float(g, n, "value", 1);

    y = hvt__canon_before(g, n, PT2_BINARY, (pt2_attributes){.binary = {.op = HVT_MUL, .alpha = 1}}, 2, in);
    combine(g, n, HVT_ADD, affine(g, n, y, value, 0), x);
}

static void prelu(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[2] = {hvt__canon_first(g, n), hvt__canon_tensor(g, n, "weight")};

    hvt__pt2_become(g, n, PT2_PRELU, &n->is, 2, in);
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"relu", function, HVT_RELU},
    {"relu6", function, HVT_HARDTANH, {NULL, 0}, {NULL, 6}},
    {"hardtanh", function, HVT_HARDTANH, {"min_val", -1}, {"max_val", 1}},
    {"clamp", function, HVT_HARDTANH, {"min", -INFINITY}, {"max", INFINITY}},
    {"clamp_min", function, HVT_HARDTANH, {"min", -INFINITY}, {NULL, INFINITY}},
    {"clamp_max", function, HVT_HARDTANH, {NULL, -INFINITY}, {"max", INFINITY}},
    {"leaky_relu", function, HVT_LEAKY_RELU, {"negative_slope", 0.01}},
    {"elu", elu, 'e', {"alpha", 1}, {"scale", 1}},
    {"selu", elu, 's', {NULL, 1.6732632423543772}, {NULL, 1.0507009873554805}},
    {"celu", elu, 'c', {"alpha", 1}, {NULL, 1}},
    {"sigmoid", function, HVT_SIGMOID},
    {"log_sigmoid", log_sigmoid},
    {"hardsigmoid", function, HVT_HARDSIGMOID},
    {"hardswish", function, HVT_HARDSWISH},
    {"hardshrink", function, HVT_HARDSHRINK, {"lambd", 0.5}},
    {"silu", function, HVT_SILU},
    {"mish", mish},
    {"gelu", gelu},
    {"tanh", function, HVT_TANH},
    {"softplus", function, HVT_SOFTPLUS, {"beta", 1}, {"threshold", 20}},
    {"neg", function, HVT_AFFINE, {NULL, -1}},
    {"abs", absolute},
    {"square", power, 0, {NULL, 2}},
    {"pow.Tensor_Scalar", power, 0, {"exponent", 1}},
    {"pow.Scalar", powers},
    {"sqrt", function, HVT_POW, {NULL, 0.5}},
    {"rsqrt", function, HVT_POW, {NULL, -0.5}},
    {"reciprocal", function, HVT_POW, {NULL, -1}},
    {"exp", function, HVT_EXP},
    {"log", function, HVT_LOG},
    {"sin", function, PT2_SIN},
    {"cos", function, PT2_COS},
    {"floor", floor_of, PT2_FLOOR},
    {"prelu", prelu},
    {"add.Tensor add.Scalar", binary, HVT_ADD},
    {"sub.Tensor sub.Scalar", binary, HVT_SUB},
    {"rsub.Tensor rsub.Scalar", binary, -1},
    {"mul.Tensor mul.Scalar", binary, HVT_MUL},
    {"div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", binary, HVT_DIV},
    {"floor_divide", binary, PT2_FLOOR_DIV},
    {"remainder.Scalar remainder.Tensor", binary, PT2_REMAINDER},
    {"maximum max.other", binary, HVT_MAXIMUM},
    {"minimum min.other", binary, HVT_MINIMUM},
    {"eq.Tensor eq.Scalar", binary, PT2_EQ},
    {"ne.Tensor ne.Scalar", binary, PT2_NE},
    {"ge.Tensor ge.Scalar", binary, PT2_GE},
    {"gt.Tensor gt.Scalar", binary, PT2_GT},
    {"le.Tensor le.Scalar", binary, PT2_LE},
    {"lt.Tensor lt.Scalar", binary, PT2_LT},
    {"addcmul", addcmul},
};

const pt2_rows hvt__pt2_math_rows = {table, HVT_LEN(table)};
