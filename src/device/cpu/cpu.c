/*
 * The cpu device: opening it, the ops on spans, and its table. Other ops are in matrix.c, pooling.c,
 * images.c, general.c, attention.c and conv/.
 *
 * All arithmetic runs inside hvt__parallel_for(), which also sets the calling thread's floating-point
 * environment (hvt__floats_enter); an op that adds floats outside of it uses HVT_FLOATS. A span may be split
 * anywhere without changing results.
 */
#include "cpu_impl.h"
#include "base_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <stdatomic.h>

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

/* Find a set by name, or the best one for this processor. */
static hvt_status choose_isa(const char *name, const hvt_isa **ret_isa)
{
    bool best = !name || !strcmp(name, "auto");
    char known[128] = "";

    for (int i = hvt__isa_count - 1; i >= 0; i--) {
        const hvt_isa *isa = hvt__isas[i];

        if (best ? hvt_cpu_isa_auto(i) : !strcmp(name, isa->name)) {
            HVT_CHECK(hvt_cpu_isa_supported(i), E_UNSUPPORTED,
                      "device cpu: this processor does not have instruction set %s", name);
            *ret_isa = isa;
            return HVT_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", isa->name);
    }
    return HVT_FAIL(E_ARG, "device cpu: unknown instruction set '%s', expected one of: auto%s", name, known);
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
    hvt_cpu *cpu = d->state = calloc(1, sizeof *cpu);
    void *scratch;

    HVT_CHECK(cpu, E_MEM, "no memory for %zu bytes of device cpu", sizeof *cpu);
    HVT_TRY(choose_isa(opts->isa, &cpu->isa));
    d->isa = cpu->isa->name;
    d->threads = opts->threads ? opts->threads : opts->ncpus ? opts->ncpus : 1;
    HVT_TRY(hvt__host_alloc(d, sizeof *cpu->scratch, &scratch)); /* unused pages are never touched */
    cpu->scratch = scratch;
    HVT_TRY(hvt__thread_pool_open(d->threads, opts->cpus, opts->ncpus, opts->yield, &cpu->pool));
    if (opts->pin_caller && opts->ncpus)
        hvt__thread_pool_pin_caller(cpu->pool, opts->cpus[0]);
    log_isa(cpu->isa, d->threads);
    return HVT_OK;
}

static void enter_cpu(const hvt_device *d)
{
    hvt__thread_pool_enter(((const hvt_cpu *)d->state)->pool);
}

/* In HWN a pixel is a dense matrix [N, C], and convolutions need no im2col (direct_plan.c). With one or two
 * large images, pixels of a line make better rows: ResNet-50 at 224x224 is 3 to 8 % faster in f32 and 27 to
 * 35 % in bf16. */
static hvt_order order_cpu(const hvt_device *d, int batch, int height, int width)
{
    return batch <= 2 && (long)height * width >= 112L * 112 ? HVT_ORDER_NHW : HVT_ORDER_HWN;
}

/* ---- spans ---- */

/* An op on n elements; each op uses some of the members. */
typedef struct span {
    void (*run)(const struct span *s, size_t first, size_t n); /* computes elements [first, first + n) */
    hvt_pointwise_fn *f;
    const hvt_elementwise *el;
    size_t n, step; /* step: elements per job */
    const void *a, *b;
    void *y;
    bool add;
    float s;
    hvt_dtype from, to;
    const void *const *in;
    void *const *out;
    int count, outs;
    const hvt_sgd_args *sgd;
    const hvt_adam_args *adam;
    const hvt_map *map;
    float *m, *v;
    _Atomic uint64_t *bad;
    _Atomic int64_t *bin;
} span;

enum { SPAN_LEAST = 8192, SPAN_ALIGN = 1024 };
_Static_assert(SPAN_ALIGN % HVT__SQUARES_BLOCK == 0, "a job has whole blocks of squares");

static void span_job(void *ctx, int job, int thread)
{
    const span *s = ctx;
    size_t first = (size_t)job * s->step;

    s->run(s, first, s->n - first < s->step ? s->n - first : s->step);
}

static hvt_status run_span(hvt_device *d, span s)
{
    if (!s.n)
        return HVT_OK;
    s.el = hvt__cpu(d)->isa->el;
    s.step = s.n;
    if (d->threads > 1) { /* several jobs per thread, so that others can take over a late thread's jobs */
        s.step = s.n / ((size_t)d->threads * 4) / SPAN_ALIGN * SPAN_ALIGN;
        s.step = s.step < SPAN_LEAST ? SPAN_LEAST : s.step;
    }
    hvt__parallel_for(hvt__cpu(d)->pool, (int)((s.n + s.step - 1) / s.step), span_job, &s);
    return HVT_OK;
}

static void pointwise(const span *s, size_t first, size_t n)
{
    s->f(n, hvt__at(s->a, s->from, first), hvt__at(s->b, s->from, first), hvt__at(s->y, s->from, first),
         s->add);
}

hvt_status hvt__relu_forward_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y)
{
    hvt_pointwise_fn *f = hvt__cpu(d)->isa->el->in[t]->relu;

    return run_span(d, (span){pointwise, .f = f, .n = n, .from = t, .a = x, .b = x, .y = y});
}

hvt_status hvt__relu_backward_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                  void *dx, bool add)
{
    hvt_pointwise_fn *f = hvt__cpu(d)->isa->el->in[t]->relu_grad;

    return run_span(d, (span){pointwise, .f = f, .n = n, .from = t, .a = y, .b = dy, .y = dx, .add = add});
}

hvt_status hvt__add_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    hvt_pointwise_fn *f = hvt__cpu(d)->isa->el->in[t]->add;

    return run_span(d, (span){pointwise, .f = f, .n = n, .from = t, .a = a, .b = b, .y = y});
}

static void map(const span *s, size_t first, size_t n)
{
    s->el->in[s->from]->map[s->map->f](n, s->map, hvt__at(s->a, s->from, first),
                                       hvt__at(s->y, s->from, first));
}

hvt_status hvt__map_forward_cpu(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *x,
                                void *y)
{
    return run_span(d, (span){map, .map = f, .n = n, .from = t, .a = x, .y = y});
}

static void slope(const span *s, size_t first, size_t n)
{
    s->el->in[s->from]->slope[s->map->f](n, s->map, hvt__at(s->a, s->from, first),
                                         hvt__at(s->b, s->from, first), hvt__at(s->y, s->from, first),
                                         s->add);
}

hvt_status hvt__map_backward_cpu(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved,
                                 const void *dy, void *dx, bool add)
{
    return run_span(d, (span){slope, .map = f, .n = n, .from = t, .a = saved, .b = dy, .y = dx, .add = add});
}

static void cast(const span *s, size_t first, size_t n)
{
    s->el->in[s->from]->cast(n, s->s, hvt__at(s->a, s->from, first), hvt__at(s->y, s->to, first), s->to);
}

hvt_status hvt__cast_cpu(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                         hvt_dtype dt)
{
    return run_span(d, (span){cast, .n = n, .s = s, .a = src, .from = st, .y = dst, .to = dt});
}

static void reduce(const span *s, size_t first, size_t n)
{
    s->el->in[s->from]->reduce(first, n, s->in, s->count, s->out, s->outs);
}

hvt_status hvt__reduce_cpu(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count, void *out)
{
    return run_span(d, (span){reduce, .n = n, .from = t, .in = in, .count = count, .out = &out, .outs = 1});
}

/* Prefetch lines to be read and written: a line from another core's cache then takes one request instead of
 * two. A no-op on processors without the instruction. */
static void prefetch_to_write(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
#ifdef __x86_64__
        __asm__ volatile("prefetchw %0" : : "m"(((const char *)p)[i]));
#else
        __builtin_prefetch((const char *)p + i, 1);
#endif
}

/* Replaces all inputs by their sum; other ranks' inputs are in other cores' caches. */
static void reduce_in_place(const span *s, size_t first, size_t n)
{
    const size_t piece = 1024 / hvt_dtype_size(s->from), ahead = 4 * piece;

    for (size_t at = 0; at < n; at += piece) {
        for (int k = 0; at + ahead + piece <= n && k < s->outs; k++)
            prefetch_to_write(hvt__at(s->out[k], s->from, first + at + ahead), 1024);
        reduce(s, first + at, n - at < piece ? n - at : piece);
    }
}

static hvt_status reduce_all_cpu(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count)
{
    const void *const *in = (const void *const *)io;

    return run_span(
        d, (span){reduce_in_place, .n = n, .from = t, .in = in, .count = count, .out = io, .outs = count});
}

static void sgd(const span *s, size_t first, size_t n)
{
    s->el->sgd(first, n, s->sgd, (const float *const *)s->in, s->count, s->y, s->v);
}

hvt_status hvt__sgd_cpu(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                        float *w, float *v)
{
    if (!a->step->apply)
        return HVT_OK;
    return run_span(d,
                    (span){sgd, .n = n, .sgd = a, .in = (const void *const *)g, .count = ng, .y = w, .v = v});
}

static void adam(const span *s, size_t first, size_t n)
{
    s->el->adam(first, n, s->adam, (const float *const *)s->in, s->count, s->y, s->m, s->v);
}

hvt_status hvt__adam_cpu(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
                         float *w, float *m, float *v)
{
    const void *const *in = (const void *const *)g;

    if (!a->step->apply)
        return HVT_OK;
    return run_span(d, (span){adam, .n = n, .adam = a, .in = in, .count = ng, .y = w, .m = m, .v = v});
}

static void ema(const span *s, size_t first, size_t n)
{
    s->el->ema(n, s->s, (const float *)s->a + first, (float *)s->y + first);
}

hvt_status hvt__ema_cpu(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema_of_w)
{
    if (step->ema_share == 0)
        return HVT_OK;
    return run_span(d, (span){ema, .n = n, .s = step->ema_share, .a = w, .y = ema_of_w});
}

/* Finds the first element that is not finite. The minimum over all jobs does not depend on their order. */
static void check(const span *s, size_t first, size_t n)
{
    size_t bad = s->el->first_bad(n, (const float *)s->a + first);
    uint64_t least = atomic_load(s->bad);

    while (bad < n && first + bad < least && !atomic_compare_exchange_weak(s->bad, &least, first + bad))
        ;
}

hvt_status hvt__check_cpu(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    _Atomic uint64_t bad = UINT64_MAX;

    HVT_TRY(run_span(d, (span){check, .n = n, .a = g, .bad = &bad}));
    if (bad != UINT64_MAX && base + bad < step->bad)
        step->bad = base + bad;
    return HVT_OK;
}

/* Adds squares to the bins. Sums of integers do not depend on their order. */
static void squares(const span *s, size_t first, size_t n)
{
    int64_t bin[HVT__SQUARES_BINS] = {0};

    hvt__host_squares(n, (const float *)s->a + first, bin);
    for (int k = 0; k < HVT__SQUARES_BINS; k++)
        if (bin[k])
            atomic_fetch_add(&s->bin[k], bin[k]);
}

hvt_status hvt__squares_cpu(hvt_device *d, size_t n, const float *g, hvt_step_state *step)
{
    _Atomic int64_t bin[HVT__SQUARES_BINS] = {0};

    HVT_TRY(run_span(d, (span){squares, .n = n, .a = g, .bin = bin}));
    for (int k = 0; k < HVT__SQUARES_BINS; k++)
        step->squares[k] += bin[k];
    return HVT_OK;
}

static void copy(const span *s, size_t first, size_t n)
{
    memcpy((char *)s->y + first, (const char *)s->a + first, n);
}

static hvt_status copy_cpu(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    return run_span(d, (span){copy, .n = bytes, .a = src, .y = dst});
}

static void zero(const span *s, size_t first, size_t n)
{
    memset((char *)s->y + first, 0, n);
}

static hvt_status zero_cpu(hvt_device *d, void *dst, size_t bytes)
{
    return run_span(d, (span){zero, .n = bytes, .y = dst});
}

/* ---- factors of gradients: job = a panel, a block of HVT_FACTOR_ROWS rows of Q ---- */

typedef struct factoring {
    hvt_factor_fn *run;
    const hvt_factor_args *a;
    int blocks;
} factoring;

static void factor_job(void *ctx, int job, int thread)
{
    const factoring *w = ctx;
    int first = job % w->blocks * HVT_FACTOR_ROWS, left = w->a->m - first;

    w->run(w->a, job / w->blocks, first, left < HVT_FACTOR_ROWS ? left : HVT_FACTOR_ROWS);
}

static hvt_status factor(hvt_device *d, const hvt_factor_args *a, hvt_factor_fn *run, bool by_panel,
                         bool by_block)
{
    factoring w = {run, a, by_block ? (a->m + HVT_FACTOR_ROWS - 1) / HVT_FACTOR_ROWS : 1};
    int panels = by_panel ? (a->k + HVT_PANEL - 1) / HVT_PANEL : 1;

    hvt__parallel_for(hvt__cpu(d)->pool, panels * w.blocks, factor_job, &w);
    return HVT_OK;
}

static hvt_status factor_p_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return factor(d, a, hvt__cpu(d)->isa->el->factors->p, true, false);
}

static hvt_status factor_q_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return factor(d, a, hvt__cpu(d)->isa->el->factors->q, false, true);
}

static hvt_status factor_join_cpu(hvt_device *d, const hvt_factor_args *a)
{
    return factor(d, a, hvt__cpu(d)->isa->el->factors->join, true, true);
}

static void parallel_for_cpu(hvt_device *d, int jobs, hvt_job_fn *job, void *ctx)
{
    hvt__parallel_for(hvt__cpu(d)->pool, jobs, job, ctx);
}

#define ENTRY(entry, op) .entry = hvt__##op##_cpu,

const hvt_device_ops hvt_device_cpu = {
    .name = "cpu",
    .open = open_cpu,
    .close = close_cpu,
    .order = order_cpu,
    .enter = enter_cpu,
    HVT__OPS(ENTRY) HVT__GENERAL_OPS(ENTRY) HVT_HOST_OPS,
    ENTRY(resample.forward, resample_forward) ENTRY(resample.backward, resample_backward)
        ENTRY(matmul.room, matmul_room) ENTRY(matmul.run, matmul_run)
            .conv.permute = hvt__conv_permute_cpu,
    .conv.set_norm = hvt__conv_set_norm_cpu,
    .recomputes = true,
    .memory.copy = copy_cpu,
    .memory.zero = zero_cpu,
    .host_only.reduce_all = reduce_all_cpu,
    .host_only.factor_p = factor_p_cpu,
    .host_only.factor_q = factor_q_cpu,
    .host_only.factor_join = factor_join_cpu,
    .parallel_for = parallel_for_cpu,
    .augment = hvt__augment_cpu,
};
