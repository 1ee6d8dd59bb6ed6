/*
 * The cpu device: opening it, the ops on spans, and its table. Matrices are in matrix.c, pooling in
 * pooling.c, images in images.c, convolutions in conv_plan.c and the files that it plans for.
 *
 * All arithmetic runs inside hvt__parallel_for(), which also sets the floating-point environment of the
 * calling thread (hvt__floats_enter); an op that adds floats outside it uses HVT_FLOATS. A span may be split
 * anywhere: elementwise arithmetic does not depend on it.
 */
#include "cpu_impl.h"
#include "base_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static void close_cpu(hvt_device *d)
{
    hvt_cpu *cpu = d->state;

    if (!cpu)
        return;
    hvt__thread_pool_close(&cpu->pool);
    hvt__host_release(d, cpu->scratch);
    free(cpu);
    d->state = NULL;
}

/* By name, or the best one for this processor. */
static hvt_status choose_isa(const char *name, const hvt_isa **ret_isa)
{
    bool best = !name || !strcmp(name, "auto");
    char known[128] = "";

    for (int i = hvt__isa_count - 1; i >= 0; i--) {
        const hvt_isa *isa = hvt__isas[i];

        if (best ? hvt_cpu_isa_auto(i) : !strcmp(name, isa->name)) {
            HVT_CHECK(hvt__isa_supported(isa), E_UNSUPPORTED,
                      "device cpu: this processor does not have instruction set %s", name);
            *ret_isa = isa;
            return HVT_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", isa->name);
    }
    return HVT_FAIL(E_ARG, "device cpu has no instruction set '%s'; known are auto%s", name, known);
}

static void log_isa(const hvt_isa *isa, int threads)
{
    HVT_DEBUG("cpu: %s, %d thread%s; convolutions in tiles of %d x %d floats, bf16 %s", isa->name, threads,
              threads == 1 ? "" : "s", isa->conv->rows[1], 2 * isa->conv->vl,
              isa->bf16 ? "multiplied natively" : "widened to f32");
    for (int i = 0; i < hvt__isa_count; i++)
        if (isa != hvt__isas[i] && hvt_cpu_isa_supported(i) && !hvt_cpu_isa_auto(i))
            HVT_DEBUG("cpu: %s is supported, but not selected by auto: slow on this processor",
                      hvt_cpu_isa_name(i));
}

static hvt_status open_cpu(hvt_device *d, const hvt_device_opts *opts)
{
    int threads = opts->threads ? opts->threads : opts->ncpus ? opts->ncpus : 1;
    const hvt_isa *isa = NULL;
    hvt_cpu *cpu;
    void *scratch;

    HVT_TRY(choose_isa(opts->isa, &isa));
    cpu = calloc(1, sizeof *cpu);
    HVT_CHECK(cpu, E_MEM, "no memory for %zu bytes of device cpu", sizeof *cpu);
    d->state = cpu;
    d->isa = isa->name;
    d->threads = threads;
    cpu->isa = isa;
    HVT_TRY(hvt__host_alloc(d, sizeof *cpu->scratch, &scratch)); /* pages that no op uses are never touched */
    cpu->scratch = scratch;
    HVT_TRY(hvt__thread_pool_open(threads, opts->cpus, opts->ncpus, opts->yield, &cpu->pool));
    if (opts->pin_caller && opts->ncpus)
        hvt__thread_pool_pin_caller(cpu->pool, opts->cpus[0]);
    log_isa(isa, threads);
    return HVT_OK;
}

/* In HWN a pixel is a dense matrix [N, C], and convolutions need no im2col (conv_plan.c). With one or two
 * large images the pixels of a line make better rows: ResNet-50 on 224x224, measured, is 3 to 8 % faster in
 * f32 and 27 to 35 % in bf16. */
static hvt_order order_cpu(const hvt_device *d, int batch, int height, int width)
{
    (void)d;
    return batch <= 2 && (long)height * width >= 112L * 112 ? HVT_ORDER_NHW : HVT_ORDER_HWN;
}

/* ---- spans ---- */

/* An op on n elements; each op uses the members that it needs. */
typedef struct span {
    const hvt_elementwise *el;
    size_t n, step; /* step: elements per job */
    const void *a, *b;
    void *y;
    bool add;
    float s;
    hvt_dtype from, to;
    const void *const *in;
    void *const *io;
    int count;
    const hvt_sgd_args *sgd;
    float *v;
    _Atomic uint64_t *bad;
} span;

enum { SPAN_LEAST = 8192, SPAN_ALIGN = 1024 };

static hvt_status run_span(hvt_device *d, span s, hvt_job_fn *fn)
{
    const hvt_cpu *cpu = d->state;

    if (!s.n)
        return HVT_OK;
    s.el = cpu->isa->el;
    s.step = s.n;
    if (d->threads > 1) { /* several jobs per thread: other threads take over those of a late one */
        s.step = s.n / ((size_t)d->threads * 4) / SPAN_ALIGN * SPAN_ALIGN;
        s.step = s.step < SPAN_LEAST ? SPAN_LEAST : s.step;
    }
    hvt__parallel_for(cpu->pool, (int)((s.n + s.step - 1) / s.step), fn, &s);
    return HVT_OK;
}

/* first element of a job; its number of elements */
static size_t part_of(const span *s, int job, size_t *ret_n)
{
    size_t first = (size_t)job * s->step;

    *ret_n = s->n - first < s->step ? s->n - first : s->step;
    return first;
}

static void relu_forward_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->in[s->from]->relu(n, hvt__at(s->a, s->from, first), hvt__at(s->y, s->from, first));
}

static hvt_status relu_forward_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    return run_span(d, (span){.n = n, .from = t, .a = x, .y = y}, relu_forward_job);
}

static void relu_backward_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->in[s->from]->relu_grad(n, hvt__at(s->a, s->from, first), hvt__at(s->b, s->from, first),
                                  hvt__at(s->y, s->from, first), s->add);
}

static hvt_status relu_backward_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add)
{
    return run_span(d, (span){.n = n, .from = t, .a = y, .b = dy, .y = dx, .add = add}, relu_backward_job);
}

static void add_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->in[s->from]->add(n, hvt__at(s->a, s->from, first), hvt__at(s->b, s->from, first),
                            hvt__at(s->y, s->from, first));
}

static hvt_status add_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    return run_span(d, (span){.n = n, .from = t, .a = a, .b = b, .y = y}, add_job);
}

static void cast_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->cast(n, s->s, hvt__at(s->a, s->from, first), s->from, hvt__at(s->y, s->to, first), s->to);
}

static hvt_status cast_cpu(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt)
{
    return run_span(d, (span){.n = n, .s = s, .a = src, .from = st, .y = dst, .to = dt}, cast_job);
}

static void reduce_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->reduce(first, n, s->from, s->in, s->count, s->y);
}

static hvt_status reduce_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count,
                             void *out)
{
    return run_span(d, (span){.n = n, .from = t, .in = in, .count = count, .y = out}, reduce_job);
}

static void reduce_all_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->reduce_all(first, n, s->from, s->io, s->count);
}

static hvt_status reduce_all_cpu(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count)
{
    return run_span(d, (span){.n = n, .from = t, .io = io, .count = count}, reduce_all_job);
}

static void sgd_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    s->el->sgd(first, n, s->sgd, (const float *const *)s->in, s->count, s->y, s->v);
}

static hvt_status sgd_cpu(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                          float *w, float *v)
{
    if (!a->step->apply)
        return HVT_OK;
    return run_span(d, (span){.n = n, .sgd = a, .in = (const void *const *)g, .count = ng, .y = w, .v = v},
                    sgd_job);
}

/* The minimum over all jobs does not depend on their order. */
static void check_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n), bad = s->el->first_bad(n, (const float *)s->a + first);
    uint64_t least = atomic_load(s->bad);

    (void)thread;
    while (bad < n && first + bad < least && !atomic_compare_exchange_weak(s->bad, &least, first + bad))
        ;
}

static hvt_status check_cpu(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    _Atomic uint64_t bad = UINT64_MAX;

    HVT_TRY(run_span(d, (span){.n = n, .a = g, .bad = &bad}, check_job));
    if (bad != UINT64_MAX && base + bad < step->bad)
        step->bad = base + bad;
    return HVT_OK;
}

static void copy_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    memcpy((char *)s->y + first, (const char *)s->a + first, n);
}

static hvt_status copy_cpu(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    return run_span(d, (span){.n = bytes, .a = src, .y = dst}, copy_job);
}

static void zero_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t n, first = part_of(s, job, &n);

    (void)thread;
    memset((char *)s->y + first, 0, n);
}

static hvt_status zero_cpu(hvt_device *d, void *dst, size_t bytes)
{
    return run_span(d, (span){.n = bytes, .y = dst}, zero_job);
}

/* ---- factors of gradients ---- */

typedef struct factoring {
    const hvt_factors *f;
    const hvt_factor_args *a;
    int blocks; /* of HVT_FACTOR_ROWS rows of Q */
} factoring;

static int rows_of(const factoring *w, int block)
{
    int left = w->a->m - block * HVT_FACTOR_ROWS;

    return left < HVT_FACTOR_ROWS ? left : HVT_FACTOR_ROWS;
}

static void factor_p_job(void *ctx, int panel, int thread)
{
    const factoring *w = ctx;

    (void)thread;
    w->f->p(w->a, panel);
}

static void factor_q_job(void *ctx, int block, int thread)
{
    const factoring *w = ctx;

    (void)thread;
    w->f->q(w->a, block * HVT_FACTOR_ROWS, rows_of(w, block));
}

static void factor_join_job(void *ctx, int job, int thread)
{
    const factoring *w = ctx;
    int panel = job / w->blocks, block = job % w->blocks;

    (void)thread;
    w->f->join(w->a, panel, block * HVT_FACTOR_ROWS, rows_of(w, block));
}

static hvt_status run_factoring(hvt_device *d, const hvt_factor_args *a, bool by_panel, bool by_block,
                                hvt_job_fn *fn)
{
    const hvt_cpu *cpu = d->state;
    factoring w = {cpu->isa->el->factors, a, (a->m + HVT_FACTOR_ROWS - 1) / HVT_FACTOR_ROWS};
    int panels = (a->k + HVT_PANEL - 1) / HVT_PANEL;

    hvt__parallel_for(cpu->pool, (by_panel ? panels : 1) * (by_block ? w.blocks : 1), fn, &w);
    return HVT_OK;
}

static hvt_status factor_p_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return run_factoring(d, a, true, false, factor_p_job);
}

static hvt_status factor_q_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return run_factoring(d, a, false, true, factor_q_job);
}

static hvt_status factor_join_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return run_factoring(d, a, true, true, factor_join_job);
}

const hvt_device_ops hvt_device_cpu = {
    .name = "cpu",
    .open = open_cpu,
    .close = close_cpu,
    .order = order_cpu,
    .channels = hvt__host_channels,
    .describe = hvt__host_describe,
    .host = true,
    .alloc = hvt__host_alloc,
    .release = hvt__host_release,
    .alloc_host = hvt__host_alloc,
    .release_host = hvt__host_release,
    .upload = hvt__host_copy,
    .download = hvt__host_copy,
    .put = hvt__host_copy,
    .mark = hvt__host_mark,
    .await = hvt__host_await,
    .sync = hvt__host_sync,
    .conv_plan = hvt__conv_plan_cpu,
    .conv_permute = hvt__conv_permute_cpu,
    .conv_pack_weights = hvt__conv_pack_weights_cpu,
    .conv_forward = hvt__conv_forward_cpu,
    .conv_backward_x = hvt__conv_backward_x_cpu,
    .conv_backward_w = hvt__conv_backward_w_cpu,
    .pooling_plan = hvt__pooling_plan_cpu,
    .pooling_forward = hvt__pooling_forward_cpu,
    .pooling_backward = hvt__pooling_backward_cpu,
    .bn_train = hvt__bn_train_cpu,
    .bn_infer = hvt__bn_infer_cpu,
    .bn_recompute = hvt__bn_recompute_cpu,
    .bn_backward = hvt__bn_backward_cpu,
    .bn_update = hvt__bn_update_cpu,
    .bias_forward = hvt__bias_forward_cpu,
    .bias_backward = hvt__bias_backward_cpu,
    .subsample_forward = hvt__subsample_forward_cpu,
    .subsample_backward = hvt__subsample_backward_cpu,
    .xent = hvt__xent_cpu,
    .relu_forward = relu_forward_cpu,
    .relu_backward = relu_backward_cpu,
    .add = add_cpu,
    .copy = copy_cpu,
    .zero = zero_cpu,
    .cast = cast_cpu,
    .reduce = reduce_cpu,
    .reduce_all = reduce_all_cpu,
    .sgd = sgd_cpu,
    .factor_p = factor_p_cpu,
    .factor_q = factor_q_cpu,
    .factor_join = factor_join_cpu,
    .check = check_cpu,
    .decide = hvt__host_decide,
    .augment = hvt__augment_cpu,
};
