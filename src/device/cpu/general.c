/*
 * The cpu device's other ops: binary operations, moves, layer and group norm, dropout, rotary embeddings.
 * Sums over images are computed part by part, each by any free thread, and the parts are added in order in
 * double. Parts depend only on the shape, so the bits do not depend on threads.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/half.h"
#include "device/host.h"
#include "device/scalar.h"
#include "elementwise.h"

enum { JOB = 32768, SLICE = 2048 }; /* elements per job; per job that walks all pixels */
enum { DROP_BLOCK = 16384 };        /* elements */

/* A division of [0, count) into `parts` parts of `step` elements. */
typedef struct cut {
    size_t count, step;
    int parts;
} cut;

/* Cuts [0, count) into at most `most` parts of at least `least` elements. */
static cut cut_into(size_t count, size_t least, size_t most)
{
    size_t step = (count + most - 1) / most;

    step = step > least ? step : least;
    return (cut){count, step, (int)((count + step - 1) / step)};
}

static size_t end_of(const cut *k, size_t first)
{
    return k->count - first < k->step ? k->count : first + k->step;
}

static size_t some_rows(int c)
{
    return 1 + JOB / (size_t)c;
}

static int job_limit(const hvt_cpu *cpu)
{
    return 4 * hvt__thread_pool_size(cpu->pool);
}

/* ---- binary operations ---- */

typedef struct binary {
    const hvt_binary_args *a;
    const hvt_typed *in;
    cut k;
    float *part; /* sums of the parts */
} binary;

/* Returns the number of contiguous rows from `row` on, below `end`, that share the operand *ret_b. */
static size_t run_of(const hvt_binary_args *a, size_t row, size_t end, hvt_operand *ret_b)
{
    const size_t rows = end - row, n = (size_t)a->n, left = n - row % n;

    switch (a->across) {
    case HVT_SAME:
        *ret_b = (hvt_operand){HVT_OPERAND_TYPED, hvt__at(a->b, a->type, row * a->c), 0};
        return rows;
    case HVT_PER_IMAGE:
        if (a->order == HVT_ORDER_HWN) {
            *ret_b = (hvt_operand){HVT_OPERAND_TYPED, hvt__at(a->b, a->type, row % n * a->c), 0};
            return rows < left ? rows : left;
        }
        *ret_b = (hvt_operand){HVT_OPERAND_TYPED, hvt__at(a->b, a->type, row / a->pixels * a->c), 0};
        return 1;
    case HVT_PER_PIXEL:
        *ret_b = (hvt_operand){HVT_OPERAND_NUMBER, NULL, hvt__load(a->b, a->type, row)};
        return 1;
    case HVT_PER_CHANNEL:
        *ret_b = (hvt_operand){HVT_OPERAND_FLOATS, a->b, 0};
        return 1;
    case HVT_PER_ELEMENT: {
        const size_t pixel = a->order == HVT_ORDER_HWN ? row / n : row % a->pixels,
                     at = pixel - (size_t)a->at.first;

        if (at < (size_t)a->at.count)
            *ret_b = (hvt_operand){HVT_OPERAND_FLOATS, (const float *)a->b + at * a->c, 0};
        else
            *ret_b = (hvt_operand){HVT_OPERAND_NUMBER, NULL, 0};
        return 1;
    }
    case HVT_ONE_NUMBER:
        break;
    }
    *ret_b = (hvt_operand){HVT_OPERAND_NUMBER, NULL, *(const float *)a->b};
    return rows;
}

static void forward_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);
    hvt_operand b;

    for (size_t row = first, run; row < end; row += run) {
        run = run_of(a, row, end, &b);
        s->in->binary(a, run * a->c, hvt__at(a->a, a->type, row * a->c), &b,
                      hvt__at(a->y, a->type, row * a->c));
    }
}

static binary begin(hvt_device *d, const hvt_binary_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);

    return (binary){a, cpu->isa->el->in[a->type],
                    cut_into((size_t)a->n * a->pixels, some_rows(a->c), (size_t)job_limit(cpu)),
                    cpu->scratch->part[0]};
}

hvt_status hvt__binary_forward_cpu(hvt_device *d, const hvt_binary_args *a)
{
    binary s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, s.k.parts, forward_job, &s);
    return HVT_OK;
}

static void da_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);
    hvt_operand b;

    for (size_t row = first, run; row < end; row += run) {
        const size_t at = row * a->c;

        run = run_of(a, row, end, &b);
        s->in->binary_slope(a, a->swapped, run * a->c, hvt__at(a->dy, a->type, at),
                            hvt__at(a->a, a->type, at), &b, hvt__at(a->da, a->type, at), a->add_a);
    }
}

/* Computes b's gradient if b has a's shape, as a's gradient with the operands swapped. */
static void same_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const size_t first = (size_t)job * s->k.step, at = first * a->c;
    const hvt_operand b = {HVT_OPERAND_TYPED, hvt__at(a->a, a->type, at), 0};

    s->in->binary_slope(a, !a->swapped, (end_of(&s->k, first) - first) * a->c, hvt__at(a->dy, a->type, at),
                        hvt__at(a->b, a->type, at), &b, hvt__at(a->db, a->type, at), a->add_b);
}

/* Sums some elements of [images, C] over pixels. */
static void image_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const bool hwn = a->order == HVT_ORDER_HWN;
    const size_t wide = hwn ? (size_t)a->real * a->c : (size_t)a->c, slices = (wide + SLICE - 1) / SLICE;
    const size_t image = job / slices, first = job % slices * SLICE;
    const size_t n = wide - first < SLICE ? wide - first : SLICE, to = image * a->c + first;
    const size_t from = hwn ? first : image * a->pixels * a->c + first;
    const hvt_operand b = {HVT_OPERAND_TYPED, hvt__at(a->b, a->type, to), 0};
    float sum[SLICE];

    memset(sum, 0, n * sizeof *sum);
    s->in->binary_columns(a, n, a->pixels, hwn ? (size_t)a->n * a->c : (size_t)a->c,
                          hvt__at(a->dy, a->type, from), hvt__at(a->a, a->type, from), &b, sum);
    for (size_t i = 0; i < n; i++)
        hvt__store(a->db, a->type, to + i, a->add_b ? hvt__load(a->db, a->type, to + i) + sum[i] : sum[i]);
}

static void pixel_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);

    for (size_t row = first; row < end; row++) {
        const size_t at = row * a->c;
        const float sum = s->in->binary_dot(a, (size_t)a->c, hvt__at(a->dy, a->type, at),
                                            hvt__at(a->a, a->type, at), hvt__load(a->b, a->type, row));

        hvt__store(a->db, a->type, row, a->add_b ? hvt__load(a->db, a->type, row) + sum : sum);
    }
}

/* Finds the i-th valid row; returns the number of contiguous valid rows from it on, below `end`. */
static size_t valid_run(hvt_rows r, size_t i, size_t end, size_t *ret_row)
{
    const size_t left = r.real - i % r.real, run = end - i < left ? end - i : left;

    *ret_row = i / r.real * r.block + i % r.real;
    return run;
}

/* Sums a parameter's gradient over some valid rows. */
static void parameter_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);
    const bool one = a->across == HVT_ONE_NUMBER;
    const hvt_operand b = {HVT_OPERAND_FLOATS, a->b, 0};
    float *sum = s->part + (size_t)job * (one ? 1 : a->c);

    memset(sum, 0, (one ? 1 : (size_t)a->c) * sizeof *sum);
    for (size_t i = first, row, run; i < end; i += run) {
        run = valid_run(hvt__rows(a->order, a->pixels, a->n, a->real), i, end, &row);

        const void *dy = hvt__at(a->dy, a->type, row * a->c), *x = hvt__at(a->a, a->type, row * a->c);

        if (one)
            *sum += s->in->binary_dot(a, run * a->c, dy, x, *(const float *)a->b);
        else
            s->in->binary_columns(a, (size_t)a->c, (int)run, (size_t)a->c, dy, x, &b, sum);
    }
}

/* Computes the gradient of one pixel's row of a parameter. */
static void element_job(void *ctx, int job, int thread)
{
    const binary *s = ctx;
    const hvt_binary_args *a = s->a;
    const bool hwn = a->order == HVT_ORDER_HWN;
    const size_t row = (size_t)(a->at.first + job) * (hwn ? a->n : 1) * a->c,
                 step = (size_t)(hwn ? 1 : a->pixels) * a->c;
    const float *row_of_b = (const float *)a->b + (size_t)job * a->c;
    const hvt_operand b = {HVT_OPERAND_FLOATS, row_of_b, 0};
    float *sum = (float *)a->db + (size_t)job * a->c;

    memset(sum, 0, (size_t)a->c * sizeof *sum);
    s->in->binary_columns(a, (size_t)a->c, a->real, step, hvt__at(a->dy, a->type, row),
                          hvt__at(a->a, a->type, row), &b, sum);
}

/* x[i] = sum of element i of `parts` consecutive arrays of `count` */
static void join_parts(const float *part, int parts, size_t count, float *x)
{
    for (size_t i = 0; i < count; i++) {
        double sum = 0;

        for (int p = 0; p < parts; p++)
            sum += part[(size_t)p * count + i];
        x[i] = (float)sum;
    }
}

static hvt_status check_sums(size_t count)
{
    HVT_CHECK(count <= HVT_PART_FLOATS, E_UNSUPPORTED,
              "device cpu sums at most %d elements of a parameter, not %zu", HVT_PART_FLOATS, count);
    return HVT_OK;
}

hvt_status hvt__binary_backward_cpu(hvt_device *d, const hvt_binary_args *a)
{
    HVT_FLOATS;
    hvt_thread_pool *pool = hvt__cpu(d)->pool;
    binary s = begin(d, a);

    if (a->db && a->across == HVT_SAME) {
        hvt__parallel_for(pool, s.k.parts, same_job, &s);
    } else if (a->db && a->across == HVT_PER_IMAGE) {
        const bool hwn = a->order == HVT_ORDER_HWN;
        const int wide = hwn ? a->real * a->c : a->c;

        hvt__parallel_for(pool, (wide + SLICE - 1) / SLICE * (hwn ? 1 : a->real), image_job, &s);
    } else if (a->db && a->across == HVT_PER_PIXEL) {
        hvt__parallel_for(pool, s.k.parts, pixel_job, &s);
    } else if (a->db && a->across == HVT_PER_ELEMENT) {
        hvt__parallel_for(pool, a->at.count, element_job, &s);
    } else if (a->db) {
        const size_t count = a->across == HVT_ONE_NUMBER ? 1 : (size_t)a->c;
        binary sums = s;

        HVT_TRY(check_sums(count));
        sums.k = cut_into((size_t)a->real * a->pixels, some_rows(a->c),
                          HVT_PART_FLOATS / count < HVT_PARTS ? HVT_PART_FLOATS / count : HVT_PARTS);
        hvt__parallel_for(pool, sums.k.parts, parameter_job, &sums);
        join_parts(s.part, sums.k.parts, count, a->db);
    }
    if (a->da)
        hvt__parallel_for(pool, s.k.parts, da_job, &s);
    return HVT_OK;
}

/* ---- moves: job = a line of pixels, of one image or of all ---- */

typedef struct mover {
    const hvt_move_args *a;
    const hvt_typed *in;
} mover;

static void line_job(void *ctx, int job, int thread)
{
    const mover *m = ctx;
    const hvt_move_args *a = m->a;
    const hvt_box *s = &a->src, *t = &a->dst;
    const bool hwn = a->order == HVT_ORDER_HWN;
    const int n = job / a->h, y = job % a->h;
    const size_t from = hvt__row_of(a->order, a->n, s->h, s->w, n, s->y + y, s->x) * s->c + s->first,
                 to = hvt__row_of(a->order, a->n, t->h, t->w, n, t->y + y, t->x) * t->c + t->first;

    m->in->move_rows((size_t)a->w * (hwn ? a->n : 1), a->c, hvt__at(a->from, a->type, from), (size_t)s->c,
                     hvt__at(a->to, a->type, to), (size_t)t->c, a->add);
}

hvt_status hvt__move_cpu(hvt_device *d, const hvt_move_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    mover m = {a, cpu->isa->el->in[a->type]};

    hvt__parallel_for(cpu->pool, a->h * (a->order == HVT_ORDER_HWN ? 1 : a->n), line_job, &m);
    return HVT_OK;
}

typedef struct transposer {
    const hvt_typed *in;
    hvt_dtype type;
    int rows, cols, block;
    const void *x;
    void *y;
    bool add;
    cut k;
} transposer;

static void transpose_job(void *ctx, int job, int thread)
{
    const transposer *s = ctx;
    const size_t first = (size_t)job * s->k.step, all = (size_t)s->rows * s->cols * s->block;

    for (size_t i = first; i < end_of(&s->k, first); i++)
        s->in->transpose(s->rows, s->cols, s->block, hvt__at(s->x, s->type, i * all),
                         hvt__at(s->y, s->type, i * all), s->add);
}

hvt_status hvt__transpose_cpu(hvt_device *d, size_t n, hvt_dtype t, int rows, int cols, int block,
                              const void *x, void *y, bool add)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = hvt__cpu(d);
    transposer s = {.in = cpu->isa->el->in[t],
                    .type = t,
                    .rows = rows,
                    .cols = cols,
                    .block = block,
                    .x = x,
                    .y = y,
                    .add = add,
                    .k = cut_into(n, some_rows(rows * cols * block), (size_t)job_limit(cpu))};

    hvt__parallel_for(cpu->pool, s.k.parts, transpose_job, &s);
    return HVT_OK;
}

/* ---- layer and group norm: a sample is an image or, per pixel, a valid row ---- */

typedef struct norm {
    const hvt_norm_args *a;
    const hvt_typed *in;
    cut k;
    size_t params;
    float *dgamma, *dbeta; /* [parts] */
} norm;

static norm begin_norm(hvt_device *d, const hvt_norm_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    const size_t params = a->gamma ? (size_t)(a->per_element ? a->pixels : 1) * a->c : 1;
    const size_t most = HVT_PART_FLOATS / params < HVT_PARTS ? HVT_PART_FLOATS / params : HVT_PARTS;
    const size_t samples = (size_t)a->real * (a->per_pixel ? a->pixels : 1);

    return (norm){a,
                  cpu->isa->el->in[a->type],
                  cut_into(samples, a->per_pixel ? some_rows(a->c) : 1, most ? most : 1),
                  params,
                  cpu->scratch->part[0],
                  cpu->scratch->part[1]};
}

static hvt_group group_at(const hvt_norm_args *a, size_t sample, int g)
{
    const int cols = a->c / a->groups;
    const bool hwn = a->order == HVT_ORDER_HWN;
    size_t row = sample * (hwn ? 1 : a->pixels);

    if (a->per_pixel)
        valid_run(hvt__rows(a->order, a->pixels, a->n, a->real), sample, sample + 1, &row);
    return (hvt_group){.at = row * a->c + g * cols,
                       .step = (size_t)(hwn ? a->n : 1) * a->c,
                       .first = (size_t)g * cols,
                       .gamma_step = a->per_element ? (size_t)a->c : 0,
                       .index = (a->per_pixel ? row : sample) * a->groups + g,
                       .pixels = a->per_pixel ? 1 : a->pixels};
}

static void norm_forward_job(void *ctx, int job, int thread)
{
    const norm *s = ctx;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);

    for (size_t i = first; i < end; i++)
        for (int g = 0; g < s->a->groups; g++) {
            const hvt_group at = group_at(s->a, i, g);

            s->in->group_forward(s->a, &at);
        }
}

static void norm_backward_job(void *ctx, int job, int thread)
{
    const norm *s = ctx;
    const size_t first = (size_t)job * s->k.step, end = end_of(&s->k, first);
    float *dgamma = s->dgamma + (size_t)job * s->params, *dbeta = s->dbeta + (size_t)job * s->params;

    memset(dgamma, 0, s->params * sizeof *dgamma);
    memset(dbeta, 0, s->params * sizeof *dbeta);
    for (size_t i = first; i < end; i++)
        for (int g = 0; g < s->a->groups; g++) {
            const hvt_group at = group_at(s->a, i, g);

            s->in->group_backward(s->a, &at, dgamma, dbeta);
        }
}

hvt_status hvt__norm_forward_cpu(hvt_device *d, const hvt_norm_args *a)
{
    norm s = begin_norm(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, s.k.parts, norm_forward_job, &s);
    return HVT_OK;
}

hvt_status hvt__norm_backward_cpu(hvt_device *d, const hvt_norm_args *a)
{
    HVT_FLOATS;
    norm s = begin_norm(d, a);

    HVT_TRY(check_sums(s.params));
    hvt__parallel_for(hvt__cpu(d)->pool, s.k.parts, norm_backward_job, &s);
    if (a->dgamma)
        join_parts(s.dgamma, s.k.parts, s.params, a->dgamma);
    if (a->dbeta)
        join_parts(s.dbeta, s.k.parts, s.params, a->dbeta);
    return HVT_OK;
}

/* ---- dropout: job = some pixels, of one image or of all ---- */

typedef struct dropper {
    const hvt_dropout_args *a;
    const hvt_typed *in;
    cut k; /* cut of an image's pixels */
} dropper;

/* Keeps all of these pixels or none. */
static void drop_whole(const dropper *s, uint64_t key, size_t pixels, size_t step, const void *x, void *y)
{
    const hvt_dropout_args *a = s->a;
    const float noise =
        drop_keeps(drop_bits(0, (uint32_t)key, (uint32_t)(key >> 32)), a->least) ? a->scale : 0;
    const size_t run = step == (size_t)a->c ? pixels : 1;

    for (size_t p = 0; p < pixels; p += run)
        s->in->scale(run * a->c, noise, hvt__at(x, a->type, p * step), hvt__at(y, a->type, p * step), a->add);
}

/* Drops elements of pixels [first, end) of image n. */
static void drop_image(const dropper *s, int n, size_t first, size_t end)
{
    const hvt_dropout_args *a = s->a;
    const size_t step = (size_t)(a->order == HVT_ORDER_HWN ? a->n : 1) * a->c;
    const size_t at = hvt__row_of(a->order, a->n, 1, a->pixels, n, 0, (int)first) * a->c;
    const uint64_t key = hvt__mix(a->keys[n] ^ a->salt);
    const void *x = hvt__at(a->x, a->type, at);
    void *y = hvt__at(a->y, a->type, at);

    if (a->what == HVT_DROP_IMAGES)
        drop_whole(s, key, end - first, step, x, y);
    else
        s->in->drop(a, key, first, end, step, x, y);
}

/* In HWN order, works on a few pixels at a time, image after image, so that they stay in the caches. */
static void drop_job(void *ctx, int job, int thread)
{
    const dropper *s = ctx;
    const hvt_dropout_args *a = s->a;
    const size_t first = (size_t)(job % s->k.parts) * s->k.step, end = end_of(&s->k, first);
    const size_t some = 1 + DROP_BLOCK / ((size_t)a->n * a->c);

    if (a->order == HVT_ORDER_NHW) {
        drop_image(s, job / s->k.parts, first, end);
        return;
    }
    for (size_t p = first; p < end; p += some)
        for (int n = 0; n < a->real; n++)
            drop_image(s, n, p, end - p < some ? end : p + some);
}

hvt_status hvt__dropout_cpu(hvt_device *d, const hvt_dropout_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    const bool hwn = a->order == HVT_ORDER_HWN;
    dropper s = {a, cpu->isa->el->in[a->type],
                 cut_into((size_t)a->pixels, some_rows(a->c * (hwn ? a->n : 1)), (size_t)job_limit(cpu))};

    hvt__parallel_for(cpu->pool, s.k.parts * (hwn ? 1 : a->real), drop_job, &s);
    return HVT_OK;
}

/* ---- rotary embeddings: job = some rows ---- */

typedef struct rotor {
    const hvt_rotary_args *a;
    const hvt_typed *in;
    cut k;
} rotor;

static void rotary_job(void *ctx, int job, int thread)
{
    const rotor *s = ctx;
    const hvt_rotary_args *a = s->a;
    const size_t begin = (size_t)job * s->k.step, end = end_of(&s->k, begin);
    const size_t first = (size_t)a->first, after = first + (size_t)a->vectors * (size_t)a->width;
    const bool copies = a->x != a->y;

    for (size_t row = begin; row < end; row++) {
        const bool hwn = a->order == HVT_ORDER_HWN;
        const size_t image = hwn ? row % (size_t)a->n : row / (size_t)a->pixels,
                     pixel = hwn ? row / (size_t)a->n : row % (size_t)a->pixels, at = row * (size_t)a->c,
                     number = pixel * (size_t)a->width;

        if (image >= (size_t)a->real)
            continue;
        s->in->rotary(a, a->own + number, a->other + number, hvt__at(a->x, a->type, at + first),
                      hvt__at(a->y, a->type, at + first));
        if (copies && first > 0)
            s->in->scale(first, 1, hvt__at(a->x, a->type, at), hvt__at(a->y, a->type, at), a->add);
        if (copies && after < (size_t)a->c)
            s->in->scale((size_t)a->c - after, 1, hvt__at(a->x, a->type, at + after),
                         hvt__at(a->y, a->type, at + after), a->add);
    }
}

hvt_status hvt__rotary_cpu(hvt_device *d, const hvt_rotary_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    rotor s = {a, cpu->isa->el->in[a->type],
               cut_into((size_t)a->n * (size_t)a->pixels, some_rows(a->c), (size_t)job_limit(cpu))};

    hvt__parallel_for(cpu->pool, s.k.parts, rotary_job, &s);
    return HVT_OK;
}
