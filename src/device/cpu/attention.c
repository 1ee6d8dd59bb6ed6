/*
 * The cpu device's attention: a job is one head of one image, whose keys and values it packs once. Queries
 * are taken in blocks, so that the scores of a block, all keys of its queries, stay in the caches; products
 * are those of the convolutions' f32 microkernels, whatever the type, and each is one chain of multiply-adds.
 * So the bits depend on the shape and the instruction set alone.
 */
#include "cpu_impl.h"
#include "device/half.h"
#include "device/host.h"
#include "elementwise.h"

enum { PANEL = HVT_PANEL, BLOCK = 64, SCORES = 16384 }; /* queries, and scores, of a block at most */

/* A matrix of floats: rows `step` apart, or panels of PANEL columns, each [rows][PANEL], `step` apart. */
typedef struct floats {
    float *at;
    size_t step;
    bool panels;
} floats;

typedef struct attention {
    const hvt_attention_args *a;
    const hvt_conv_kernels *kernels;
    const hvt_elementwise *el;
    const hvt_typed *in;
    int block;   /* queries */
    size_t room; /* bytes of a thread */
} attention;

/* What a thread works with; those that forward does not need are not there. */
typedef struct scratch {
    floats q, score, y;      /* of a block: queries, [block][keys], results */
    floats keys_t, keys;     /* of a head: K', K */
    floats values, values_t; /* V, V' */
    floats dscore, dy;       /* of a block */
    floats dkeys, dvalues;   /* of a head */
    float (*turn)[PANEL];    /* [PANEL][PANEL] */
} scratch;

static size_t up(size_t n, int to)
{
    return (n + (size_t)to - 1) / (size_t)to * (size_t)to;
}

/* Room for [rows][cols] after what is taken already. Whole vectors of a row may be read and written. */
static floats take(float *base, size_t *taken, size_t rows, size_t cols)
{
    floats f = {base ? base + *taken : NULL, up(cols, PANEL), false};

    *taken += rows * f.step;
    return f;
}

/* The same of a transposed matrix. */
static floats take_panels(float *base, size_t *taken, size_t rows, size_t cols)
{
    floats f = {base ? base + *taken : NULL, rows * PANEL, true};

    *taken += up(cols, PANEL) * rows;
    return f;
}

/* base NULL: only what it takes */
static scratch lay_out(const attention *s, float *base, bool backward, size_t *ret_floats)
{
    const size_t block = (size_t)s->block, keys = (size_t)s->a->keys, width = (size_t)s->a->width;
    size_t n = 0;
    scratch w = {.q = take(base, &n, block, width),
                 .score = take(base, &n, block, keys),
                 .y = take(base, &n, block, width),
                 .keys_t = take_panels(base, &n, width, keys)};

    w.turn = (float(*)[PANEL])take(base, &n, PANEL, PANEL).at;
    if (backward) {
        w.keys = take(base, &n, keys, width);
        w.values_t = take_panels(base, &n, width, keys);
        w.dscore = take(base, &n, block, keys);
        w.dy = take(base, &n, block, width);
        w.dkeys = take(base, &n, keys, width);
        w.dvalues = take(base, &n, keys, width);
    } else {
        w.values = take(base, &n, keys, width);
    }
    *ret_floats = n;
    return w;
}

static attention begin(hvt_device *d, const hvt_attention_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    attention s = {a, cpu->isa->conv, cpu->isa->el, cpu->isa->el->in[a->type], 0, 0};
    const int rows = s.kernels->rows[1], fit = SCORES / (int)up((size_t)a->keys, PANEL);
    size_t taken;

    s.block = fit > BLOCK ? BLOCK : fit < rows ? rows : fit;
    s.block = s.block / rows * rows;
    lay_out(&s, NULL, true, &taken);
    s.room = up(taken * sizeof(float), 64);
    return s;
}

size_t hvt__attention_room_cpu(hvt_device *d, const hvt_attention_args *a)
{
    return begin(d, a).room * (size_t)hvt__thread_pool_size(hvt__cpu(d)->pool);
}

/* C [m,n] (+)= A B, A being [m,k], or [k,m] and transposed. */
static void multiply(const attention *s, int m, int n, int k, const floats *a, bool transposed,
                     const floats *b, const floats *c, bool add)
{
    static const hvt_entry one = {0, 0};
    const hvt_conv_kernels *kernels = s->kernels;
    const int vl = kernels->vl;

    for (int col = 0; col < n; col += 2 * vl) {
        const int wide = n - col > vl, rows = kernels->rows[wide];
        hvt_tile t = {.e = &one,
                      .entries = 1,
                      .len = k,
                      .a_row = (long)a->step,
                      .b = b->panels ? b->at + (size_t)(col / PANEL) * b->step + col % PANEL : b->at + col,
                      .b_row = b->panels ? PANEL : (long)b->step,
                      .c_row = (long)c->step,
                      .nc = n - col < 2 * vl ? n - col : 2 * vl,
                      .add = add};

        for (int row = 0; row < m; row += rows) {
            const int high = m - row < rows ? m - row : rows;

            t.rows = t.high = high;
            t.a = transposed ? a->at + row : a->at + (size_t)row * a->step;
            t.c = c->at + (size_t)row * c->step + col;
            (transposed ? kernels->gemm_tn : kernels->gemm_nn)[wide][high - 1](&t);
        }
    }
}

/* Where a head's channels of its first token are, and how many elements the next token's are further on. */
typedef struct tokens {
    const void *x;
    long step;
} tokens;

static tokens tokens_of(const attention *s, const void *x, int pitch, int count, int job)
{
    const hvt_attention_args *a = s->a;
    const size_t image = (size_t)(job / a->heads), head = (size_t)(job % a->heads) * (size_t)a->width;
    const bool hwn = a->order == HVT_ORDER_HWN;

    return (tokens){hvt__at(x, a->type, image * (hwn ? 1 : (size_t)count) * (size_t)pitch + head),
                    (long)pitch * (hwn ? a->n : 1)};
}

static void widen_rows(const attention *s, tokens from, int first, int count, const floats *to)
{
    for (int i = 0; i < count; i++)
        s->in->widen((size_t)s->a->width,
                     hvt__at(from.x, s->a->type, (size_t)(first + i) * (size_t)from.step),
                     to->at + (size_t)i * to->step);
}

static void transpose(const attention *s, const scratch *w, tokens from, int count, const floats *to)
{
    const int width = s->a->width;

    for (int first = 0; first < count; first += PANEL) {
        const int rows = count - first < PANEL ? count - first : PANEL;

        for (int c = 0; c < width; c += PANEL) {
            const int cols = width - c < PANEL ? width - c : PANEL;

            for (int i = 0; i < rows; i++)
                s->in->widen((size_t)cols,
                             hvt__at(from.x, s->a->type, (size_t)(first + i) * (size_t)from.step + (size_t)c),
                             w->turn[i]);
            s->kernels->pack_weights(w->turn[0], rows, cols,
                                     to->at + (size_t)(first / PANEL) * to->step + (size_t)c * PANEL, false);
        }
    }
}

static void store(const attention *s, int count, const floats *from, tokens to, int first, bool add)
{
    s->in->store_tile(count, s->a->width, from->at, (long)from->step,
                      hvt__at(to.x, s->a->type, (size_t)first * (size_t)to.step), to.step, add);
}

/* The queries from `first` on, and their softmax over the keys. */
static void score(const attention *s, const scratch *w, tokens q, int first, int count)
{
    const hvt_attention_args *a = s->a;

    widen_rows(s, q, first, count, &w->q);
    multiply(s, count, a->keys, a->width, &w->q, false, &w->keys_t, &w->score, false);
    for (int i = 0; i < count; i++)
        s->el->softmax((size_t)a->keys, a->scale, w->score.at + (size_t)i * w->score.step);
}

/* A head of an image, whose keys are packed. */
typedef struct head {
    tokens q, k, v;
    scratch w;
} head;

static head begin_head(const attention *s, int job, int thread, bool backward)
{
    const hvt_attention_args *a = s->a;
    float *room = (float *)(void *)((char *)a->ws + (size_t)thread * s->room);
    size_t taken;
    const head h = {tokens_of(s, a->q.x, a->q.pitch, a->queries, job),
                    tokens_of(s, a->k.x, a->k.pitch, a->keys, job),
                    tokens_of(s, a->v.x, a->v.pitch, a->keys, job), lay_out(s, room, backward, &taken)};

    transpose(s, &h.w, h.k, a->keys, &h.w.keys_t);
    return h;
}

static void forward_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const hvt_attention_args *a = s->a;
    const tokens y = tokens_of(s, a->y, a->heads * a->width, a->queries, job);
    const head h = begin_head(s, job, thread, false);
    const scratch w = h.w;

    widen_rows(s, h.v, 0, a->keys, &w.values);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(s, &w, h.q, first, count);
        multiply(s, count, a->width, a->keys, &w.score, false, &w.values, &w.y, false);
        store(s, count, &w.y, y, first, false);
    }
}

hvt_status hvt__attention_forward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, a->real * a->heads, forward_job, &s);
    return HVT_OK;
}

static void backward_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const hvt_attention_args *a = s->a;
    const tokens dy = tokens_of(s, a->dy, a->heads * a->width, a->queries, job);
    const head h = begin_head(s, job, thread, true);
    const scratch w = h.w;

    transpose(s, &w, h.v, a->keys, &w.values_t);
    widen_rows(s, h.k, 0, a->keys, &w.keys);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(s, &w, h.q, first, count);
        widen_rows(s, dy, first, count, &w.dy);
        if (a->v.dx)
            multiply(s, a->keys, a->width, count, &w.score, true, &w.dy, &w.dvalues, first > 0);
        multiply(s, count, a->keys, a->width, &w.dy, false, &w.values_t, &w.dscore, false);
        for (int i = 0; i < count; i++)
            s->el->softmax_slope((size_t)a->keys, a->scale, w.score.at + (size_t)i * w.score.step,
                                 w.dscore.at + (size_t)i * w.dscore.step);
        if (a->k.dx)
            multiply(s, a->keys, a->width, count, &w.dscore, true, &w.q, &w.dkeys, first > 0);
        if (!a->q.dx)
            continue;
        multiply(s, count, a->width, a->keys, &w.dscore, false, &w.keys, &w.y, false);
        store(s, count, &w.y, tokens_of(s, a->q.dx, a->q.pitch, a->queries, job), first, a->q.add);
    }
    if (a->k.dx)
        store(s, a->keys, &w.dkeys, tokens_of(s, a->k.dx, a->k.pitch, a->keys, job), 0, a->k.add);
    if (a->v.dx)
        store(s, a->keys, &w.dvalues, tokens_of(s, a->v.dx, a->v.pitch, a->keys, job), 0, a->v.add);
}

hvt_status hvt__attention_backward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, a->real * a->heads, backward_job, &s);
    return HVT_OK;
}
