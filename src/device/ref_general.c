/*
 * The reference device's other ops: functions, binary operations, moves, layer and group norm, attention,
 * dropout, rotary embeddings. Computed in double, rounded once.
 */
#include "base_impl.h"
#include "host.h"
#include "ref.h"
#include "scalar.h"

#include <math.h>

/* ---- functions of one number ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* distribution function of the standard normal distribution */
static double cumulative(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double density(double x)
{
    return 0.5 * M_SQRT1_2 * M_2_SQRTPI * exp(-0.5 * x * x);
}

static double gelu_inner(double x)
{
    return M_SQRT1_2 * M_2_SQRTPI * (x + 0.044715 * x * x * x);
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double value(const hvt_map *f, double x)
{
    const double a = f->a, b = f->b;

    switch (f->f) {
    case HVT_RELU:
        return 0 > x ? 0 : x;
    case HVT_HARDTANH:
        return clamp(x, a, b);
    case HVT_LEAKY_RELU:
        return x > 0 ? x : a * x;
    case HVT_ELU:
        return x > 0 ? x : a * expm1(x);
    case HVT_SIGMOID:
        return sigmoid(x);
    case HVT_HARDSIGMOID:
        return clamp(x + 3, 0, 6) / 6;
    case HVT_HARDSWISH:
        return x * clamp(x + 3, 0, 6) / 6;
    case HVT_SILU:
        return x * sigmoid(x);
    case HVT_GELU:
        return x * cumulative(x);
    case HVT_GELU_TANH:
        return x * sigmoid(2 * gelu_inner(x)); /* 0.5 * (1 + tanh) would cancel */
    case HVT_TANH:
        return tanh(x);
    case HVT_SOFTPLUS:
        return a * x > b ? x : log1p(exp(a * x)) / a;
    case HVT_CLAMP:
        return clamp(x, a, b);
    case HVT_EXP:
        return exp(x);
    case HVT_LOG:
        return log(x);
    case HVT_POW:
        return pow(x, a);
    case HVT_HARDSHRINK:
        return x >= -a && x <= a ? 0 : x;
    case HVT_AFFINE:
    case HVT_FUNCTIONS:
        break;
    }
    return a * x + b;
}

/* Returns f'. v is x or y, as HVT__MAPS says. */
static double slope(const hvt_map *f, double v)
{
    const double a = f->a, b = f->b;

    switch (f->f) {
    case HVT_RELU:
        return v <= 0 ? 0 : 1;
    case HVT_HARDTANH:
        return v <= a || v >= b ? 0 : 1;
    case HVT_LEAKY_RELU:
        return v > 0 ? 1 : a;
    case HVT_ELU:
        return v > 0 ? 1 : v + a;
    case HVT_SIGMOID:
        return v * (1 - v);
    case HVT_HARDSIGMOID:
        return v > -3 && v < 3 ? 1.0 / 6 : 0;
    case HVT_HARDSWISH:
        return v <= -3 ? 0 : v < 3 ? v / 3 + 0.5 : 1;
    case HVT_SILU:
        return sigmoid(v) * (1 + v * (1 - sigmoid(v)));
    case HVT_GELU:
        return cumulative(v) + v * density(v);
    case HVT_GELU_TANH: {
        double t = tanh(gelu_inner(v));

        return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * M_SQRT1_2 * M_2_SQRTPI * (1 + 3 * 0.044715 * v * v);
    }
    case HVT_TANH:
        return 1 - v * v;
    case HVT_SOFTPLUS:
        return a * v > b ? 1 : sigmoid(a * v);
    case HVT_CLAMP:
        return v >= a && v <= b ? 1 : 0;
    case HVT_EXP:
        return v;
    case HVT_LOG:
        return 1 / v;
    case HVT_POW:
        return a * pow(v, a - 1);
    case HVT_HARDSHRINK:
        return v >= -a && v <= a ? 0 : 1;
    case HVT_AFFINE:
    case HVT_FUNCTIONS:
        break;
    }
    return a;
}

/* Returns dy * f', but 0 where f is constant, even if dy is not finite. */
static double gradient(const hvt_map *f, double v, double dy)
{
    const bool has_flat_pieces = f->f == HVT_RELU || f->f == HVT_HARDTANH || f->f == HVT_HARDSIGMOID ||
                                 f->f == HVT_HARDSWISH || f->f == HVT_CLAMP || f->f == HVT_HARDSHRINK;
    const double k = slope(f, v);

    return has_flat_pieces && k == 0 ? 0 : dy * k;
}

hvt_status hvt__map_forward_ref(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *x,
                                void *y)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__store(y, t, i, (float)value(f, hvt__load(x, t, i)));
    return HVT_OK;
}

hvt_status hvt__map_backward_ref(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved,
                                 const void *dy, void *dx, bool add)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n; i++)
        hvt__put_ref(dx, t, i, (float)gradient(f, hvt__load(saved, t, i), hvt__load(dy, t, i)), add);
    return HVT_OK;
}

/* ---- binary operations ---- */

/* Returns the index of the element of b for channel c of pixel p of image n. */
static size_t b_at(const hvt_binary_args *a, int n, int p, int c)
{
    size_t row = hvt__row_of(a->order, a->n, 1, a->pixels, n, 0, p);

    switch (a->across) {
    case HVT_SAME:
        return row * a->c + c;
    case HVT_PER_IMAGE:
        return (size_t)n * a->c + c;
    case HVT_PER_PIXEL:
        return row;
    case HVT_PER_CHANNEL:
        return c;
    case HVT_PER_ELEMENT:
        return (size_t)(p - a->at.first) * a->c + c;
    case HVT_ONE_NUMBER:
        break;
    }
    return 0;
}

/* True if b has an element for pixel p. */
static bool meets(const hvt_binary_args *a, int p)
{
    return a->across != HVT_PER_ELEMENT || (p >= a->at.first && p < a->at.first + a->at.count);
}

static hvt_dtype b_type(const hvt_binary_args *a)
{
    return a->across < HVT_PER_CHANNEL ? a->type : HVT_F32;
}

static double b_of(const hvt_binary_args *a, int n, int p, int c)
{
    return meets(a, p) ? hvt__load(a->b, b_type(a), b_at(a, n, p, c)) : 0;
}

static double apply(const hvt_binary_args *a, double u, double v)
{
    double x = a->swapped ? v : u, y = a->swapped ? u : v;

    switch (a->op) {
    case HVT_ADD:
        return x + y;
    case HVT_SUB:
        return x - y;
    case HVT_MUL:
        return x * y;
    case HVT_MAXIMUM:
        return x > y || x != x ? x : y;
    case HVT_MINIMUM:
        return x < y || x != x ? x : y;
    default:
        return x / y;
    }
}

/* derivative of u op v by u; `first`: u is the first operand */
static double partial(hvt_binary op, bool first, double u, double v)
{
    switch (op) {
    case HVT_ADD:
        return 1;
    case HVT_SUB:
        return first ? 1 : -1;
    case HVT_MUL:
        return v;
    case HVT_MAXIMUM:
        return u < v ? 0 : u == v ? 0.5 : 1;
    case HVT_MINIMUM:
        return u > v ? 0 : u == v ? 0.5 : 1;
    default:
        return first ? 1 / v : -v / (u * u);
    }
}

/* Run the statements for every element of valid images, with n, p, c, and its index `at` in a. */
#define EACH(args, ...)                                                                                      \
    for (int n = 0; n < (args)->real; n++)                                                                   \
        for (int p = 0; p < (args)->pixels; p++)                                                             \
            for (int c = 0; c < (args)->c; c++) {                                                            \
                const size_t at =                                                                            \
                    hvt__row_of((args)->order, (args)->n, 1, (args)->pixels, n, 0, p) * (args)->c + c;       \
                __VA_ARGS__                                                                                  \
            }

hvt_status hvt__binary_forward_ref(hvt_device *d, const hvt_binary_args *a)
{
    HVT_FLOATS;
    EACH(a, hvt__store(a->y, a->type, at, (float)apply(a, hvt__load(a->a, a->type, at), b_of(a, n, p, c)));)
    return HVT_OK;
}

hvt_status hvt__binary_backward_ref(hvt_device *d, const hvt_binary_args *a)
{
    HVT_FLOATS;
    size_t elements = a->across == HVT_SAME          ? (size_t)a->n * a->pixels * a->c
                      : a->across == HVT_PER_IMAGE   ? (size_t)a->n * a->c
                      : a->across == HVT_PER_PIXEL   ? (size_t)a->n * a->pixels
                      : a->across == HVT_PER_CHANNEL ? (size_t)a->c
                      : a->across == HVT_PER_ELEMENT ? (size_t)a->at.count * a->c
                                                     : 1;
    double *sum = a->db ? calloc(elements, sizeof *sum) : NULL;

    HVT_CHECK(sum || !a->db, E_MEM, "no memory for %zu sums", elements);
    if (sum)
        EACH(a, if (meets(a, p)) sum[b_at(a, n, p, c)] +=
                hvt__load(a->dy, a->type, at) *
                partial(a->op, a->swapped, b_of(a, n, p, c), hvt__load(a->a, a->type, at));)
    for (size_t i = 0; sum && i < elements; i++)
        hvt__put_ref(a->db, b_type(a), i, (float)sum[i],
                     a->add_b && b_type(a) == a->type && a->across < HVT_PER_CHANNEL);
    free(sum);
    if (a->da)
        EACH(a, hvt__put_ref(
                    a->da, a->type, at,
                    (float)(hvt__load(a->dy, a->type, at) *
                            partial(a->op, !a->swapped, hvt__load(a->a, a->type, at), b_of(a, n, p, c))),
                    a->add_a);)
    return HVT_OK;
}

/* ---- moves ---- */

hvt_status hvt__move_ref(hvt_device *d, const hvt_move_args *a)
{
    HVT_FLOATS;
    const hvt_box *s = &a->src, *t = &a->dst;

    for (int n = 0; n < a->n; n++)
        for (int y = 0; y < a->h; y++)
            for (int x = 0; x < a->w; x++) {
                size_t from =
                    hvt__row_of(a->order, a->n, s->h, s->w, n, s->y + y, s->x + x) * s->c + s->first;
                size_t to = hvt__row_of(a->order, a->n, t->h, t->w, n, t->y + y, t->x + x) * t->c + t->first;

                for (int c = 0; c < a->c; c++)
                    hvt__put_ref(a->to, a->type, to + c, hvt__load(a->from, a->type, from + c), a->add);
            }
    return HVT_OK;
}

hvt_status hvt__transpose_ref(hvt_device *d, size_t n, hvt_dtype t, int rows, int cols, int block,
                              const void *x, void *y, bool add)
{
    HVT_FLOATS;
    for (size_t i = 0; i < n * rows; i++)
        for (int k = 0; k < cols; k++)
            for (int b = 0; b < block; b++)
                hvt__put_ref(y, t, ((i / rows * cols + k) * rows + i % rows) * block + b,
                             hvt__load(x, t, (i * cols + k) * block + b), add);
    return HVT_OK;
}

/* ---- layer and group norm ---- */

/* A group of an image or pixel, with elements [pixels, count]. */
typedef struct group {
    int n, p, pixels, first, count;
    size_t index; /* of its mean */
} group;

static group group_at(const hvt_norm_args *a, int n, int p, int g)
{
    size_t sample = a->per_pixel ? hvt__row_of(a->order, a->n, 1, a->pixels, n, 0, p) : (size_t)n;

    return (group){
        n, p, a->per_pixel ? 1 : a->pixels, g * (a->c / a->groups), a->c / a->groups, sample * a->groups + g};
}

/* Run the statements for every group `g`. */
#define GROUPS(a, ...)                                                                                       \
    for (int n_ = 0; n_ < (a)->real; n_++)                                                                   \
        for (int p_ = 0; p_ < ((a)->per_pixel ? (a)->pixels : 1); p_++)                                      \
            for (int g_ = 0; g_ < (a)->groups; g_++) {                                                       \
                const group g = group_at(a, n_, p_, g_);                                                     \
                __VA_ARGS__                                                                                  \
            }

/* Run the statements for every element of a group: `at` in x, `k` in gamma. */
#define ELEMENTS(a, g, ...)                                                                                  \
    for (int i_ = 0; i_ < (g).pixels; i_++)                                                                  \
        for (int c_ = (g).first; c_ < (g).first + (g).count; c_++) {                                         \
            const size_t at =                                                                                \
                hvt__row_of((a)->order, (a)->n, 1, (a)->pixels, (g).n, 0, (g).p + i_) * (a)->c + c_;         \
            const size_t k = (a)->per_element ? (size_t)((g).p + i_) * (a)->c + c_ : (size_t)c_;             \
            __VA_ARGS__                                                                                      \
        }

static double gamma_at(const hvt_norm_args *a, size_t k)
{
    return a->gamma ? a->gamma[k] : 1;
}

hvt_status hvt__norm_forward_ref(hvt_device *d, const hvt_norm_args *a)
{
    HVT_FLOATS;
    GROUPS(a, {
        double mean = 0, square = 0, count = (double)g.pixels * g.count, rstd;

        ELEMENTS(a, g, (void)k; mean += hvt__load(a->x, a->type, at);)
        mean /= count;
        ELEMENTS(a, g, (void)k; square += pow(hvt__load(a->x, a->type, at) - mean, 2);)
        rstd = 1 / sqrt(square / count + a->eps);
        a->mean[g.index] = (float)mean;
        a->rstd[g.index] = (float)rstd;
        ELEMENTS(a, g,
                 hvt__store(a->y, a->type, at,
                            (float)((hvt__load(a->x, a->type, at) - mean) * rstd * gamma_at(a, k) +
                                    (a->beta ? a->beta[k] : 0)));)
    })
    return HVT_OK;
}

hvt_status hvt__norm_backward_ref(hvt_device *d, const hvt_norm_args *a)
{
    HVT_FLOATS;
    const size_t params = (size_t)(a->per_element ? a->pixels : 1) * a->c;
    double *sum = calloc(2 * params, sizeof *sum);

    HVT_CHECK(sum, E_MEM, "no memory for %zu sums", 2 * params);
    GROUPS(a, {
        const double mean = a->mean[g.index], rstd = a->rstd[g.index], count = (double)g.pixels * g.count;
        double share = 0, dot = 0;

        ELEMENTS(a, g, {
            double dy = hvt__load(a->dy, a->type, at), xhat = (hvt__load(a->x, a->type, at) - mean) * rstd;

            sum[k] += dy * xhat;
            sum[params + k] += dy;
            share += dy * gamma_at(a, k);
            dot += dy * gamma_at(a, k) * xhat;
        })
        if (a->dx)
            ELEMENTS(a, g, {
                double dy = hvt__load(a->dy, a->type, at),
                       xhat = (hvt__load(a->x, a->type, at) - mean) * rstd;

                hvt__put_ref(a->dx, a->type, at,
                             (float)(rstd * (dy * gamma_at(a, k) - (share + xhat * dot) / count)), a->add);
            })
    })
    for (size_t k = 0; k < params; k++) {
        if (a->dgamma)
            a->dgamma[k] = (float)sum[k];
        if (a->dbeta)
            a->dbeta[k] = (float)sum[params + k];
    }
    free(sum);
    return HVT_OK;
}

/* ---- attention ---- */

/* Returns the index of element c of a head in a token's row; a window has `tokens` tokens. */
static size_t token_at(const hvt_attention_args *a, int n, int window, int tokens, int token, int pitch,
                       int head, int c)
{
    const int at = window * tokens + token;

    return hvt__row_of(a->order, a->n, 1, a->windows * tokens, n, 0, a->pixel ? a->pixel[at] : at) *
               (size_t)pitch +
           (size_t)head * a->width + c;
}

#define Q_AT(i, c) token_at(a, n, window, a->queries, i, a->q.pitch, head, c)
#define K_AT(j, c) token_at(a, n, window, a->keys, j, a->k.pitch, head, c)
#define V_AT(j, c) token_at(a, n, window, a->keys, j, a->v.pitch, head, c)
#define Y_AT(i, c) token_at(a, n, window, a->queries, i, a->heads * a->width, head, c)

/* Returns the index of the bias of query i and key j. */
static size_t bias_at(const hvt_attention_args *a, int head, int i, int j)
{
    return ((size_t)head * a->queries + i) * a->keys + j;
}

/* Computes one row of P, the softmax weights of a query. */
static void weights(const hvt_attention_args *a, int n, int window, int head, int i, double *p)
{
    double most = -INFINITY, sum = 0;

    for (int j = 0; j < a->keys; j++) {
        p[j] = 0;
        for (int c = 0; c < a->width; c++)
            p[j] += (double)hvt__load(a->q.x, a->type, Q_AT(i, c)) * hvt__load(a->k.x, a->type, K_AT(j, c));
        p[j] *= a->scale;
        if (a->table)
            p[j] += a->table[a->bias[bias_at(a, head, i, j)]];
        if (a->mask)
            p[j] += a->mask[((size_t)window * a->queries + i) * a->keys + j];
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < a->keys; j++)
        sum += p[j] = exp(p[j] - most);
    for (int j = 0; j < a->keys; j++)
        p[j] /= sum;
}

size_t hvt__attention_room_ref(hvt_device *d, const hvt_attention_args *a)
{
    return ((size_t)2 * a->keys + (size_t)(a->queries + 2 * a->keys) * a->width +
            (a->elements ? (size_t)a->heads * a->queries * a->keys : 0)) *
           sizeof(double);
}

/* Run the statements for every image, window and head. */
#define HEADS(a, ...)                                                                                        \
    for (int n = 0; n < (a)->real; n++)                                                                      \
        for (int window = 0; window < (a)->windows; window++)                                                \
            for (int head = 0; head < (a)->heads; head++) {                                                  \
                __VA_ARGS__                                                                                  \
            }

hvt_status hvt__attention_forward_ref(hvt_device *d, const hvt_attention_args *a)
{
    HVT_FLOATS;
    double *p = a->ws;

    HEADS(
        a, for (int i = 0; i < a->queries; i++) {
            weights(a, n, window, head, i, p);
            for (int c = 0; c < a->width; c++) {
                double y = 0;

                for (int j = 0; j < a->keys; j++)
                    y += p[j] * hvt__load(a->v.x, a->type, V_AT(j, c));
                hvt__store(a->y, a->type, Y_AT(i, c), (float)y);
            }
        })
    return HVT_OK;
}

hvt_status hvt__attention_backward_ref(hvt_device *d, const hvt_attention_args *a)
{
    HVT_FLOATS;
    const int w = a->width;
    double *p = a->ws, *dp = p + a->keys, *dq = dp + a->keys, *dk = dq + (size_t)a->queries * w,
           *dv = dk + (size_t)a->keys * w, *dbias = dv + (size_t)a->keys * w;
    const bool sums = a->table && a->dtable;

    for (size_t i = 0; sums && i < (size_t)a->heads * a->queries * a->keys; i++)
        dbias[i] = 0;
    HEADS(a, {
        memset(dq, 0, (size_t)(a->queries + 2 * a->keys) * w * sizeof *dq);
        for (int i = 0; i < a->queries; i++) {
            double dot = 0;

            weights(a, n, window, head, i, p);
            for (int j = 0; j < a->keys; j++) {
                dp[j] = 0;
                for (int c = 0; c < w; c++) {
                    const double dy = hvt__load(a->dy, a->type, Y_AT(i, c));

                    dp[j] += dy * hvt__load(a->v.x, a->type, V_AT(j, c));
                    dv[(size_t)j * w + c] += p[j] * dy;
                }
                dot += p[j] * dp[j];
            }
            for (int j = 0; j < a->keys && sums; j++)
                dbias[bias_at(a, head, i, j)] += p[j] * (dp[j] - dot);
            for (int j = 0; j < a->keys; j++)
                for (int c = 0; c < w; c++) {
                    const double ds = a->scale * p[j] * (dp[j] - dot);

                    dq[(size_t)i * w + c] += ds * hvt__load(a->k.x, a->type, K_AT(j, c));
                    dk[(size_t)j * w + c] += ds * hvt__load(a->q.x, a->type, Q_AT(i, c));
                }
        }
        for (int c = 0; c < w; c++) {
            for (int i = 0; a->q.dx && i < a->queries; i++)
                hvt__put_ref(a->q.dx, a->type, Q_AT(i, c), (float)dq[(size_t)i * w + c], a->q.add);
            for (int j = 0; a->k.dx && j < a->keys; j++)
                hvt__put_ref(a->k.dx, a->type, K_AT(j, c), (float)dk[(size_t)j * w + c], a->k.add);
            for (int j = 0; a->v.dx && j < a->keys; j++)
                hvt__put_ref(a->v.dx, a->type, V_AT(j, c), (float)dv[(size_t)j * w + c], a->v.add);
        }
    })
    for (int e = 0; sums && e < a->elements; e++) {
        double sum = 0;

        for (int i = a->first[e]; i < a->first[e + 1]; i++)
            sum += dbias[a->where[i]];
        a->dtable[e] = (float)sum;
    }
    return HVT_OK;
}

/* ---- dropout ---- */

hvt_status hvt__dropout_ref(hvt_device *d, const hvt_dropout_args *a)
{
    HVT_FLOATS;
    EACH(a, {
        const uint64_t key = hvt__mix(a->keys[n] ^ a->salt);
        const uint32_t k = a->what == HVT_DROP_ELEMENTS   ? (uint32_t)(c * a->pixels + p)
                           : a->what == HVT_DROP_CHANNELS ? (uint32_t)c
                                                          : 0;
        const bool kept = drop_keeps(drop_bits(k, (uint32_t)key, (uint32_t)(key >> 32)), a->least);

        hvt__put_ref(a->y, a->type, at, hvt__load(a->x, a->type, at) * (kept ? a->scale : 0), a->add);
    })
    return HVT_OK;
}

/* ---- rotary embeddings ---- */

/* Returns rotated channel c of pixel p, whose channels begin at `at`. */
static double rotated(const hvt_rotary_args *a, size_t at, int p, int c)
{
    const double x = hvt__load(a->x, a->type, at + (size_t)c);
    const int in = c - a->first, k = in % a->width;
    const size_t number = (size_t)p * (size_t)a->width + (size_t)k;

    if (in < 0 || in >= a->vectors * a->width)
        return x;
    return a->own[number] * x +
           (double)a->other[number] *
               hvt__load(a->x, a->type, at + (size_t)(c - k + hvt__rotary_partner(a, k)));
}

hvt_status hvt__rotary_ref(hvt_device *d, const hvt_rotary_args *a)
{
    HVT_FLOATS;
    double *pixel = malloc((size_t)a->c * sizeof *pixel); /* y may be x */

    HVT_CHECK(pixel, E_MEM, "no memory for %d numbers", a->c);
    for (int n = 0; n < a->real; n++)
        for (int p = 0; p < a->pixels; p++) {
            const size_t at = hvt__row_of(a->order, a->n, 1, a->pixels, n, 0, p) * (size_t)a->c;

            for (int c = 0; c < a->c; c++)
                pixel[c] = rotated(a, at, p, c);
            for (int c = 0; c < a->c; c++)
                hvt__put_ref(a->y, a->type, at + (size_t)c, pixel[c], a->add);
        }
    free(pixel);
    return HVT_OK;
}

/* ---- resampling ---- */

static hvt_status resample(const hvt_resample *o, int real, const hvt_taps *rows, const hvt_taps *columns,
                           const void *from, void *to, bool add)
{
    const hvt_resample_desc *d = &o->d;

    for (int n = 0; n < real; n++)
        for (int p = 0; p < rows->out; p++)
            for (int q = 0; q < columns->out; q++)
                for (int c = 0; c < d->c; c++) {
                    float sum = 0;

                    for (int i = rows->first[p]; i < rows->first[p + 1]; i++)
                        for (int j = columns->first[q]; j < columns->first[q + 1]; j++) {
                            const hvt_tap *r = &rows->tap[i], *s = &columns->tap[j];
                            const size_t at =
                                hvt__row_of(d->order, d->n, rows->in, columns->in, n, r->index, s->index);

                            sum += hvt__load(from, d->type, at * d->c + c) * (r->weight * s->weight);
                        }
                    hvt__put_ref(to, d->type,
                                 hvt__row_of(d->order, d->n, rows->out, columns->out, n, p, q) * d->c + c,
                                 sum, add);
                }
    return HVT_OK;
}

hvt_status hvt__resample_forward_ref(hvt_op *op, int real, const void *x, void *y)
{
    HVT_FLOATS;
    const hvt_resample *o = (const hvt_resample *)op;

    return resample(o, real, &o->d.rows, &o->d.columns, x, y, false);
}

hvt_status hvt__resample_backward_ref(hvt_op *op, int real, const void *dy, void *dx, bool add)
{
    HVT_FLOATS;
    const hvt_resample *o = (const hvt_resample *)op;

    return resample(o, real, &o->rows_back, &o->columns_back, dy, dx, add);
}

/* ---- products of matrices ---- */

size_t hvt__matmul_room_ref(hvt_device *d, const hvt_matmul_args *a)
{
    return 0;
}

hvt_status hvt__matmul_run_ref(hvt_device *d, const hvt_matmul_args *a)
{
    HVT_FLOATS;
    const size_t m = (size_t)a->m, n = (size_t)a->n, k = (size_t)a->k;

    for (size_t i = 0; i < (size_t)a->count; i++)
        for (size_t r = 0; r < m; r++)
            for (size_t c = 0; c < n; c++) {
                double sum = 0;

                for (size_t j = 0; j < k; j++)
                    sum += (double)hvt__load(a->a, a->type,
                                             i * m * k + (a->a_transposed ? j * m + r : r * k + j)) *
                           hvt__load(a->b, a->type, i * n * k + (a->b_transposed ? c * k + j : j * n + c));
                hvt__put_ref(a->y, a->type, (i * m + r) * n + c, (float)sum, a->add);
            }
    return HVT_OK;
}
