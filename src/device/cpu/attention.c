/*
 * The cpu device's attention: a job is one head of one image. It goes along the windows, and packs the keys
 * and values of each once. Queries are taken in blocks, so that the scores of a block, all keys of its
 * queries, stay in the caches; products are those of the convolutions' f32 microkernels, whatever the type,
 * and each is one chain of multiply-adds. So the bits depend on the shape and the instruction set alone.
 */
#include "cpu_impl.h"
#include "device/half.h"
#include "device/host.h"
#include "elementwise.h"

enum {
    PANEL = HVT_PANEL,
    LINE = 64,
    BLOCK = 64,
    SCORES = 16384
}; /* queries, and scores, of a block at most */

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
    float *part; /* backward: gradients of the biases, of each image and head [queries][keys]; NULL: not
                    wanted */
} attention;

/* What a thread works with; those that forward does not need are not there. */
typedef struct scratch {
    floats q, score, y;      /* of a block: queries, [block][keys], results */
    floats keys_t, keys;     /* of a head: K', K */
    floats values, values_t; /* V, V' */
    floats dscore, dy;       /* of a block */
    floats dkeys, dvalues;   /* of a head */
    floats bias;             /* of a head: what is added to its scores, [queries][keys] */
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
    if (s->a->elements)
        w.bias = take(base, &n, (size_t)s->a->queries, keys);
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
    attention s = {a, cpu->isa->conv, cpu->isa->el, cpu->isa->el->in[a->type], 0, 0, NULL};
    const int rows = s.kernels->rows[1], fit = SCORES / (int)up((size_t)a->keys, PANEL);
    size_t taken;

    s.block = fit > BLOCK ? BLOCK : fit < rows ? rows : fit;
    s.block = s.block / rows * rows;
    lay_out(&s, NULL, true, &taken);
    s.room = up(taken * sizeof(float), 64);
    return s;
}

/* The workspace is that of each thread, then the gradients of the biases. */
static size_t room_of_threads(hvt_device *d, const attention *s)
{
    return s->room * (size_t)hvt__thread_pool_size(hvt__cpu(d)->pool);
}

size_t hvt__attention_room_cpu(hvt_device *d, const hvt_attention_args *a)
{
    const attention s = begin(d, a);
    const size_t biases = a->elements ? (size_t)a->n * a->heads * a->queries * a->keys : 0;

    return room_of_threads(d, &s) + biases * sizeof(float);
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

/* Where a head's channels of its first token are, how many elements the next pixel's are further on, and the
 * tokens' pixels; NULL: they follow each other. */
typedef struct tokens {
    const void *x;
    long step;
    const int32_t *pixel;
} tokens;

/* Of all windows, which have `count` tokens each. */
static tokens tokens_of(const attention *s, const void *x, int pitch, int count, int job)
{
    const hvt_attention_args *a = s->a;
    const size_t image = (size_t)(job / a->heads), head = (size_t)(job % a->heads) * (size_t)a->width;
    const bool hwn = a->order == HVT_ORDER_HWN;
    const size_t pixels = hwn ? 1 : (size_t)a->windows * (size_t)count;

    return (tokens){x ? hvt__at(x, a->type, image * pixels * (size_t)pitch + head) : NULL,
                    (long)pitch * (hwn ? a->n : 1), a->pixel};
}

/* Those from `first` on. */
static tokens from(const attention *s, tokens t, int first)
{
    if (t.pixel)
        t.pixel += first;
    else if (t.x)
        t.x = hvt__at(t.x, s->a->type, (size_t)first * (size_t)t.step);
    return t;
}

static void *row(const attention *s, const tokens *t, int i)
{
    return hvt__at(t->x, s->a->type, (size_t)(t->pixel ? t->pixel[i] : i) * (size_t)t->step);
}

static void widen_rows(const attention *s, tokens t, int count, const floats *to)
{
    for (int i = 0; i < count; i++)
        s->in->widen((size_t)s->a->width, row(s, &t, i), to->at + (size_t)i * to->step);
}

static void transpose(const attention *s, const scratch *w, tokens t, int count, const floats *to)
{
    const int width = s->a->width;

    for (int first = 0; first < count; first += PANEL) {
        const int rows = count - first < PANEL ? count - first : PANEL;

        for (int c = 0; c < width; c += PANEL) {
            const int cols = width - c < PANEL ? width - c : PANEL;

            for (int i = 0; i < rows; i++)
                s->in->widen((size_t)cols, hvt__at(row(s, &t, first + i), s->a->type, (size_t)c), w->turn[i]);
            s->kernels->pack_weights(w->turn[0], rows, cols,
                                     to->at + (size_t)(first / PANEL) * to->step + (size_t)c * PANEL, false);
        }
    }
}

static void store(const attention *s, int count, const floats *x, tokens to, bool add)
{
    for (int i = 0, rows; i < count; i += rows) {
        rows = to.pixel ? 1 : count;
        while (i + rows < count && to.pixel[i + rows] == to.pixel[i] + rows)
            rows++;
        s->in->store_tile(rows, s->a->width, x->at + (size_t)i * x->step, (long)x->step, row(s, &to, i),
                          to.step, add);
    }
}

/* A head of an image, and what a window of it has. */
typedef struct head {
    tokens q, k, v, y, dq, dk, dv, dy;
    const float *mask; /* NULL: none */
    float *dbias;      /* NULL: not wanted */
    scratch w;
} head;

static head begin_head(const attention *s, int job, int thread, bool backward)
{
    const hvt_attention_args *a = s->a;
    float *room = (float *)(void *)((char *)a->ws + (size_t)thread * s->room);
    const size_t scores = (size_t)a->queries * (size_t)a->keys;
    const int32_t *bias = a->table ? a->bias + (size_t)(job % a->heads) * scores : NULL;
    const int pitch = a->heads * a->width;
    size_t taken;
    head h = {.q = tokens_of(s, a->q.x, a->q.pitch, a->queries, job),
              .k = tokens_of(s, a->k.x, a->k.pitch, a->keys, job),
              .v = tokens_of(s, a->v.x, a->v.pitch, a->keys, job),
              .w = lay_out(s, room, backward, &taken)};

    if (backward) {
        h.dq = tokens_of(s, a->q.dx, a->q.pitch, a->queries, job);
        h.dk = tokens_of(s, a->k.dx, a->k.pitch, a->keys, job);
        h.dv = tokens_of(s, a->v.dx, a->v.pitch, a->keys, job);
        h.dy = tokens_of(s, a->dy, pitch, a->queries, job);
        h.dbias = s->part ? s->part + (size_t)job * scores : NULL;
    } else {
        h.y = tokens_of(s, a->y, pitch, a->queries, job);
    }
    for (int i = 0; a->table && i < a->queries; i++)
        for (int j = 0; j < a->keys; j++)
            h.w.bias.at[(size_t)i * h.w.bias.step + (size_t)j] = a->table[*bias++];
    if (h.dbias)
        memset(h.dbias, 0, scores * sizeof *h.dbias);
    return h;
}

/* Pixels of an image may be far from each other, and no processor foresees where the next one is. */
static void fetch(const attention *s, tokens t, int count)
{
    const size_t bytes = (size_t)s->a->width * hvt_dtype_size(s->a->type);

    for (int i = 0; i < count && t.x; i++) {
        const char *x = row(s, &t, i);

        for (size_t at = 0; at < bytes; at += LINE)
            __builtin_prefetch(x + at);
    }
}

/* What window i reads, and backward adds to or writes. */
static void fetch_window(const attention *s, const head *all, int i)
{
    const hvt_attention_args *a = s->a;
    const tokens of_queries[] = {all->q, all->y, all->dy, all->dq},
                 of_keys[] = {all->k, all->v, all->dk, all->dv};

    if (i >= a->windows)
        return;
    for (int k = 0; k < 4; k++) {
        fetch(s, from(s, of_queries[k], i * a->queries), a->queries);
        fetch(s, from(s, of_keys[k], i * a->keys), a->keys);
    }
}

/* Window i of it, whose keys are packed. */
static head window_of(const attention *s, head h, int i)
{
    const hvt_attention_args *a = s->a;
    tokens *const t[] = {&h.q, &h.y, &h.dq, &h.dy, &h.k, &h.v, &h.dk, &h.dv};

    for (size_t k = 0; k < sizeof t / sizeof *t; k++)
        *t[k] = from(s, *t[k], i * (k < 4 ? a->queries : a->keys));
    h.mask = a->mask ? a->mask + (size_t)i * (size_t)a->queries * (size_t)a->keys : NULL;
    transpose(s, &h.w, h.k, a->keys, &h.w.keys_t);
    return h;
}

/* The queries from `first` on, and their softmax over the keys. */
static void score(const attention *s, const head *h, int first, int count)
{
    const hvt_attention_args *a = s->a;
    const scratch *w = &h->w;
    const bool plain = !a->table && !a->mask;
    const size_t keys = (size_t)a->keys;

    widen_rows(s, from(s, h->q, first), count, &w->q);
    multiply(s, count, a->keys, a->width, &w->q, false, &w->keys_t, &w->score, false);
    for (int i = 0; i < count; i++) {
        float *x = w->score.at + (size_t)i * w->score.step;
        const size_t query = (size_t)(first + i);

        if (!plain)
            s->el->scores(keys, a->scale, a->table ? w->bias.at + query * w->bias.step : NULL,
                          a->mask ? h->mask + query * keys : NULL, x);
        s->el->softmax(keys, plain ? a->scale : 1, x);
    }
}

static void forward_window(const attention *s, const head *h)
{
    const hvt_attention_args *a = s->a;
    const scratch *w = &h->w;

    widen_rows(s, h->v, a->keys, &w->values);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(s, h, first, count);
        multiply(s, count, a->width, a->keys, &w->score, false, &w->values, &w->y, false);
        store(s, count, &w->y, from(s, h->y, first), false);
    }
}

static void forward_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const head all = begin_head(s, job, thread, false);

    for (int i = 0; i < s->a->windows; i++) {
        const head h = window_of(s, all, i);

        fetch_window(s, &all, i + 1);
        forward_window(s, &h);
    }
}

hvt_status hvt__attention_forward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, a->real * a->heads, forward_job, &s);
    return HVT_OK;
}

static void backward_window(const attention *s, const head *h)
{
    const hvt_attention_args *a = s->a;
    const scratch *w = &h->w;
    const size_t keys = (size_t)a->keys;

    transpose(s, w, h->v, a->keys, &w->values_t);
    widen_rows(s, h->k, a->keys, &w->keys);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(s, h, first, count);
        widen_rows(s, from(s, h->dy, first), count, &w->dy);
        if (a->v.dx)
            multiply(s, a->keys, a->width, count, &w->score, true, &w->dy, &w->dvalues, first > 0);
        multiply(s, count, a->keys, a->width, &w->dy, false, &w->values_t, &w->dscore, false);
        for (int i = 0; i < count; i++)
            s->el->softmax_slope(keys, a->scale, w->score.at + (size_t)i * w->score.step,
                                 w->dscore.at + (size_t)i * w->dscore.step,
                                 h->dbias ? h->dbias + (size_t)(first + i) * keys : NULL);
        if (a->k.dx)
            multiply(s, a->keys, a->width, count, &w->dscore, true, &w->q, &w->dkeys, first > 0);
        if (!a->q.dx)
            continue;
        multiply(s, count, a->width, a->keys, &w->dscore, false, &w->keys, &w->y, false);
        store(s, count, &w->y, from(s, h->dq, first), a->q.add);
    }
    if (a->k.dx)
        store(s, a->keys, &w->dkeys, h->dk, a->k.add);
    if (a->v.dx)
        store(s, a->keys, &w->dvalues, h->dv, a->v.add);
}

static void backward_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const head all = begin_head(s, job, thread, true);

    for (int i = 0; i < s->a->windows; i++) {
        const head h = window_of(s, all, i);

        fetch_window(s, &all, i + 1);
        backward_window(s, &h);
    }
}

/* A job is so many elements of the table. */
static void table_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const hvt_attention_args *a = s->a;
    const size_t image = (size_t)a->heads * (size_t)a->queries * (size_t)a->keys;
    const int end = a->elements - job * BLOCK < BLOCK ? a->elements : (job + 1) * BLOCK;

    (void)thread;
    for (int e = job * BLOCK; e < end; e++) {
        float sum = 0;

        for (int i = a->first[e]; i < a->first[e + 1]; i++)
            for (int n = 0; n < a->real; n++)
                sum += s->part[(size_t)n * image + (size_t)a->where[i]];
        a->dtable[e] = sum;
    }
}

hvt_status hvt__attention_backward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    s.part = a->dtable ? (float *)(void *)((char *)a->ws + room_of_threads(d, &s)) : NULL;
    hvt__parallel_for(hvt__cpu(d)->pool, a->real * a->heads, backward_job, &s);
    if (a->dtable)
        hvt__parallel_for(hvt__cpu(d)->pool, (a->elements + BLOCK - 1) / BLOCK, table_job, &s);
    return HVT_OK;
}
