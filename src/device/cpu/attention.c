/*
 * The cpu device's attention. A job is some heads of one image: it loops over windows, and in each over its
 * heads, whose channels are adjacent. Keys and values of a head are packed once. Queries are processed in
 * blocks, so that a block's scores (all keys of its queries) stay in the caches. Products use the
 * convolutions' f32 microkernels, whatever the type, and each is one chain of multiply-adds. So the bits
 * depend only on the shape and the instruction set.
 */
#include "cpu_impl.h"
#include "device/half.h"
#include "device/host.h"
#include "elementwise.h"
#include "matmul.h"

enum {
    PANEL = HVT_PANEL,
    BLOCK = 64,     /* maximum queries of a block; elements of a table that a job sums */
    SCORES = 65536, /* maximum of a block, unless a tile has more */
    BIASES = 65536, /* maximum that a job keeps, unless one head has more */
    JOBS = 4        /* minimum per thread, if there are enough heads */
};

typedef struct attention {
    const hvt_attention_args *a;
    const hvt_conv_kernels *kernels;
    const hvt_elementwise *el;
    const hvt_typed *in;
    int block;    /* queries */
    size_t row;   /* bytes of a token in a head */
    size_t room;  /* bytes of a thread's scratch */
    int together; /* heads per job */
    int ahead;    /* rows prefetched with each tile */
    int kept;     /* heads whose biases a job keeps from window to window */
    float *part;  /* backward: gradients of the biases, for each image and head laid out as `bias` of scratch;
                     NULL: not needed */
} attention;

/* A head's tokens: address of the first token's channels, elements between pixels, and the tokens' pixels in
 * the image (then x points to the image's first pixel); pixel NULL: consecutive. */
typedef struct tokens {
    const void *x; /* NULL: none */
    long step;
    const int32_t *pixel;
} tokens;

/* A window of one head. */
typedef struct window {
    union {
        struct {
            tokens q, y, dq, dy; /* of queries */
            tokens k, v, dk, dv; /* of keys */
        };
        tokens all[8];
    };
    const float *mask; /* NULL: none */
    float *bias;       /* laid out as `bias` of scratch; NULL: none */
    float *dbias;      /* likewise; NULL: not needed */
} window;

/* Prefetching of the next window while this one is computed. Its pixels may be far apart, so hardware
 * prefetchers do not find them, and hundreds of lines cannot be in flight at once. */
typedef struct ahead {
    const window *next; /* NULL: none */
    int list, row;      /* position in next->all */
    int rows;           /* rows at a time */
} ahead;

/* A thread's scratch; forward omits the members that it does not need. */
typedef struct scratch {
    const attention *s;
    ahead ahead;
    hvt_floats q, score, y;      /* per block: queries, [block][keys], results */
    hvt_floats keys_t, keys;     /* per head: K', K */
    hvt_floats values, values_t; /* V, V' */
    hvt_floats dscore, dy;       /* per block */
    hvt_floats dkeys, dvalues;   /* per head */
    hvt_floats bias;             /* added to scores, [kept][queries][keys] */
    float (*transposed)[PANEL];  /* [PANEL][PANEL] */
} scratch;

/* Lays out the scratch memory from base on, and counts its floats. base NULL: only counts them. */
static scratch lay_out(const attention *s, float *base, bool backward, size_t *ret_floats)
{
    const size_t block = (size_t)s->block, keys = (size_t)s->a->keys, width = (size_t)s->a->width;
    size_t n = 0;
    scratch w = {.s = s,
                 .q = hvt__take_floats(base, &n, block, width),
                 .score = hvt__take_floats(base, &n, block, keys),
                 .y = hvt__take_floats(base, &n, block, width),
                 .keys_t = hvt__take_panels(base, &n, width, keys)};

    w.transposed = (float(*)[PANEL])hvt__take_floats(base, &n, PANEL, PANEL).at;
    if (s->a->elements)
        w.bias = hvt__take_floats(base, &n, (size_t)s->kept * (size_t)s->a->queries, keys);
    if (backward) {
        w.keys = hvt__take_floats(base, &n, keys, width);
        w.values_t = hvt__take_panels(base, &n, width, keys);
        w.dscore = hvt__take_floats(base, &n, block, keys);
        w.dy = hvt__take_floats(base, &n, block, width);
        w.dkeys = hvt__take_floats(base, &n, keys, width);
        w.dvalues = hvt__take_floats(base, &n, keys, width);
    } else {
        w.values = hvt__take_floats(base, &n, keys, width);
    }
    *ret_floats = n;
    return w;
}

/* Returns the number of floats in the biases of a head. */
static size_t biases(const hvt_attention_args *a)
{
    return (size_t)a->queries * hvt__up((size_t)a->keys, PANEL);
}

static int groups(const attention *s)
{
    return tile_count(s->a->heads, s->together);
}

static int jobs(const attention *s)
{
    return s->a->real * groups(s);
}

static attention begin(hvt_device *d, const hvt_attention_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    attention s = {a, cpu->isa->conv, cpu->isa->el, cpu->isa->el->in[a->type], .kept = 1};
    const int rows = s.kernels->rows[1], wide = 2 * s.kernels->vl,
              fit = SCORES / (int)hvt__up((size_t)a->keys, PANEL);
    const int keep = biases(a) < BIASES ? BIASES / (int)biases(a) : 1;
    size_t taken;

    s.row = (size_t)a->width * hvt_dtype_size(a->type);
    s.block = fit > BLOCK ? BLOCK : fit < rows ? rows : fit;
    s.block = s.block / rows * rows;
    if (a->windows > 1)
        s.kept = a->heads < keep ? a->heads : keep;
    s.together = a->windows > 1 && a->elements ? s.kept : a->heads;
    while (s.together > 1 && jobs(&s) < JOBS * hvt__thread_pool_size(cpu->pool))
        s.together = (s.together + 1) / 2;
    s.ahead =
        1 + 2 * (a->queries + a->keys) /
                (tile_count(a->queries, rows) * (tile_count(a->keys, wide) + tile_count(a->width, wide)));
    lay_out(&s, NULL, true, &taken);
    s.room = hvt__up(taken * sizeof(float), 64);
    return s;
}

/* The workspace has the threads' scratch, then the gradients of the biases. */
static size_t room_of_threads(hvt_device *d, const attention *s)
{
    return s->room * (size_t)hvt__thread_pool_size(hvt__cpu(d)->pool);
}

size_t hvt__attention_room_cpu(hvt_device *d, const hvt_attention_args *a)
{
    const attention s = begin(d, a);

    return room_of_threads(d, &s) +
           (a->elements ? (size_t)a->n * (size_t)a->heads * biases(a) * sizeof(float) : 0);
}

/* Returns the tokens from `first` on. */
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

static void fetch(const attention *s, ahead *f)
{
    for (int k = 0; k < f->rows && f->next && f->list < 8; k++) {
        const tokens *t = f->next->all + f->list;

        if (t->x)
            hvt__prefetch(row(s, t, f->row), s->row);
        if (!t->x || ++f->row == (f->list < 4 ? s->a->queries : s->a->keys))
            f->list++, f->row = 0;
    }
}

static void fetch_next(void *ctx)
{
    scratch *w = ctx;

    fetch(w->s, &w->ahead);
}

static void multiply(scratch *w, int m, int n, int k, const hvt_floats *a, bool transposed,
                     const hvt_floats *b, const hvt_floats *c, bool add)
{
    hvt__multiply(w->s->kernels, m, n, k, a, transposed, b, c, add, fetch_next, w);
}

static void widen_rows(const attention *s, tokens t, int count, const hvt_floats *to)
{
    for (int i = 0; i < count; i++)
        s->in->widen((size_t)s->a->width, row(s, &t, i), to->at + (size_t)i * to->step);
}

typedef struct token_rows {
    const attention *s;
    const tokens *t;
} token_rows;

static const void *row_of(const void *ctx, int i, int col)
{
    const token_rows *r = ctx;

    return hvt__at(row(r->s, r->t, i), r->s->a->type, (size_t)col);
}

static void transpose(const attention *s, const scratch *w, tokens t, int count, const hvt_floats *to)
{
    hvt__widen_transposed(s->kernels, s->in, count, s->a->width, row_of, &(token_rows){s, &t}, w->transposed,
                          to);
}

static void store(const attention *s, int count, const hvt_floats *x, tokens to, bool add)
{
    for (int i = 0, rows; i < count; i += rows) {
        rows = to.pixel ? 1 : count;
        while (i + rows < count && to.pixel[i + rows] == to.pixel[i] + rows)
            rows++;
        s->in->store_tile(rows, s->a->width, x->at + (size_t)i * x->step, (long)x->step, row(s, &to, i),
                          to.step, add);
    }
}

/* Returns the tokens of window i; a window has `count` tokens. */
static tokens tokens_of(const attention *s, const void *x, int pitch, int count, int image, int head, int i)
{
    const hvt_attention_args *a = s->a;
    const bool hwn = a->order == HVT_ORDER_HWN;
    const size_t pixels = hwn ? 1 : (size_t)a->windows * (size_t)count,
                 at = (size_t)image * pixels * (size_t)pitch + (size_t)head * (size_t)a->width;
    const tokens all = {x ? hvt__at(x, a->type, at) : NULL, (long)pitch * (hwn ? a->n : 1), a->pixel};

    return from(s, all, i * count);
}

static window window_of(const attention *s, const scratch *w, int image, int head, int i)
{
    const hvt_attention_args *a = s->a;
    const int pitch = a->heads * a->width, kept = head % s->together % s->kept;
    const size_t scores = (size_t)a->queries * (size_t)a->keys;

    return (window){
        .q = tokens_of(s, a->q.x, a->q.pitch, a->queries, image, head, i),
        .k = tokens_of(s, a->k.x, a->k.pitch, a->keys, image, head, i),
        .v = tokens_of(s, a->v.x, a->v.pitch, a->keys, image, head, i),
        .y = tokens_of(s, a->y, pitch, a->queries, image, head, i),
        .dq = tokens_of(s, a->q.dx, a->q.pitch, a->queries, image, head, i),
        .dk = tokens_of(s, a->k.dx, a->k.pitch, a->keys, image, head, i),
        .dv = tokens_of(s, a->v.dx, a->v.pitch, a->keys, image, head, i),
        .dy = tokens_of(s, a->dy, pitch, a->queries, image, head, i),
        .bias = a->table ? w->bias.at + (size_t)kept * biases(a) : NULL,
        .mask = a->mask ? a->mask + (size_t)i * scores : NULL,
        .dbias = s->part ? s->part + ((size_t)image * (size_t)a->heads + (size_t)head) * biases(a) : NULL,
    };
}

/* At a head's first window: expand the biases of its scores, and zero their gradients. */
static void begin_biases(const attention *s, int head, const window *first)
{
    const hvt_attention_args *a = s->a;
    const int32_t *bias = a->bias + (size_t)head * (size_t)a->queries * (size_t)a->keys;
    float *to = first->bias;

    for (int i = 0; i < a->queries; i++, to += hvt__up((size_t)a->keys, PANEL))
        for (int j = 0; j < a->keys; j++)
            to[j] = a->table[*bias++];
    if (first->dbias)
        memset(first->dbias, 0, biases(a) * sizeof *first->dbias);
}

/* Returns some rows of the block of scores from query `first` on. */
static hvt_scores some_scores(const attention *s, const scratch *w, const window *h, int first, int row,
                              int count)
{
    const hvt_attention_args *a = s->a;
    const size_t at = (size_t)(first + row) * w->score.step, here = (size_t)row * w->score.step,
                 left = (size_t)(count - row);

    return (hvt_scores){.rows = left < HVT_SCORE_ROWS ? (int)left : HVT_SCORE_ROWS,
                        .n = (size_t)a->keys,
                        .step = w->score.step,
                        .scale = a->scale,
                        .bias = h->bias ? h->bias + at : NULL,
                        .mask = h->mask ? h->mask + (size_t)(first + row) * (size_t)a->keys : NULL,
                        .x = w->score.at + here,
                        .dx = w->dscore.at ? w->dscore.at + here : NULL,
                        .sum = h->dbias ? h->dbias + at : NULL};
}

/* Compute P for `count` queries from `first` on. */
static void score(scratch *w, const window *h, int first, int count)
{
    const attention *s = w->s;
    const hvt_attention_args *a = s->a;

    widen_rows(s, from(s, h->q, first), count, &w->q);
    multiply(w, count, a->keys, a->width, &w->q, false, &w->keys_t, &w->score, false);
    for (int i = 0; i < count; i += HVT_SCORE_ROWS) {
        const hvt_scores some = some_scores(s, w, h, first, i, count);

        s->el->softmax(&some);
    }
}

static void forward_window(scratch *w, const window *h)
{
    const attention *s = w->s;
    const hvt_attention_args *a = s->a;

    transpose(s, w, h->k, a->keys, &w->keys_t);
    widen_rows(s, h->v, a->keys, &w->values);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(w, h, first, count);
        multiply(w, count, a->width, a->keys, &w->score, false, &w->values, &w->y, false);
        store(s, count, &w->y, from(s, h->y, first), false);
    }
}

static void backward_window(scratch *w, const window *h)
{
    const attention *s = w->s;
    const hvt_attention_args *a = s->a;

    transpose(s, w, h->k, a->keys, &w->keys_t);
    transpose(s, w, h->v, a->keys, &w->values_t);
    widen_rows(s, h->k, a->keys, &w->keys);
    for (int first = 0; first < a->queries; first += s->block) {
        const int count = a->queries - first < s->block ? a->queries - first : s->block;

        score(w, h, first, count);
        widen_rows(s, from(s, h->dy, first), count, &w->dy);
        if (a->v.dx)
            multiply(w, a->keys, a->width, count, &w->score, true, &w->dy, &w->dvalues, first > 0);
        multiply(w, count, a->keys, a->width, &w->dy, false, &w->values_t, &w->dscore, false);
        for (int i = 0; i < count; i += HVT_SCORE_ROWS) {
            const hvt_scores some = some_scores(s, w, h, first, i, count);

            s->el->softmax_slope(&some);
        }
        if (a->k.dx)
            multiply(w, a->keys, a->width, count, &w->dscore, true, &w->q, &w->dkeys, first > 0);
        if (!a->q.dx)
            continue;
        multiply(w, count, a->width, a->keys, &w->dscore, false, &w->keys, &w->y, false);
        store(s, count, &w->y, from(s, h->dq, first), a->q.add);
    }
    if (a->k.dx)
        store(s, a->keys, &w->dkeys, h->dk, a->k.add);
    if (a->v.dx)
        store(s, a->keys, &w->dvalues, h->dv, a->v.add);
}

static void each_window(const attention *s, int job, int thread, bool backward)
{
    const hvt_attention_args *a = s->a;
    const int image = job / groups(s), first = job % groups(s) * s->together,
              heads = a->heads - first < s->together ? a->heads - first : s->together,
              count = a->windows * heads;
    size_t taken;
    scratch w = lay_out(s, (float *)(void *)((char *)a->ws + (size_t)thread * s->room), backward, &taken);
    window next = window_of(s, &w, image, first, 0);

    for (int i = 0; i < count; i++) {
        const bool more = i + 1 < count;
        const window now = next;

        if (more)
            next = window_of(s, &w, image, first + (i + 1) % heads, (i + 1) / heads);
        w.ahead = (ahead){more ? &next : NULL, .rows = s->ahead};
        if (now.bias && i < heads)
            begin_biases(s, first + i, &now);
        (backward ? backward_window : forward_window)(&w, &now);
    }
}

static void forward_job(void *ctx, int job, int thread)
{
    each_window(ctx, job, thread, false);
}

hvt_status hvt__attention_forward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, jobs(&s), forward_job, &s);
    return HVT_OK;
}

static void backward_job(void *ctx, int job, int thread)
{
    each_window(ctx, job, thread, true);
}

/* job = BLOCK elements of the table */
static void table_job(void *ctx, int job, int thread)
{
    const attention *s = ctx;
    const hvt_attention_args *a = s->a;
    const size_t step = biases(a) / (size_t)a->queries, image = (size_t)a->heads * biases(a);
    const int end = a->elements - job * BLOCK < BLOCK ? a->elements : (job + 1) * BLOCK;

    (void)thread;
    for (int e = job * BLOCK; e < end; e++) {
        float sum = 0;

        for (int i = a->first[e]; i < a->first[e + 1]; i++) {
            const float *part =
                s->part + (size_t)(a->where[i] / a->keys) * step + (size_t)(a->where[i] % a->keys);

            for (int n = 0; n < a->real; n++)
                sum += part[(size_t)n * image];
        }
        a->dtable[e] = sum;
    }
}

hvt_status hvt__attention_backward_cpu(hvt_device *d, const hvt_attention_args *a)
{
    attention s = begin(d, a);

    s.part = a->dtable ? (float *)(void *)((char *)a->ws + room_of_threads(d, &s)) : NULL;
    hvt__parallel_for(hvt__cpu(d)->pool, jobs(&s), backward_job, &s);
    if (a->dtable)
        hvt__parallel_for(hvt__cpu(d)->pool, (a->elements + BLOCK - 1) / BLOCK, table_job, &s);
    return HVT_OK;
}
