/* The registry of devices, their common checks, and the floating-point environment. */
#include "base_impl.h"
#include "config.h"
#include "device_impl.h"
#include "window.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

static const hvt_device_ops *const registry[] = {
    &hvt_device_ref,
    &hvt_device_cpu,
#if HVT_HAVE_CUDA
    &hvt_device_cuda,
#endif
};

static hvt_status find(const char *name, const hvt_device_ops **ret_ops)
{
    char known[128] = "";

    for (size_t i = 0; i < HVT_LEN(registry); i++) {
        if (!strcmp(name, registry[i]->name)) {
            *ret_ops = registry[i];
            return HVT_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 registry[i]->name);
    }
    HVT_CHECK(strcmp(name, "cuda") != 0, E_UNSUPPORTED,
              "this build has no device cuda; it has: %s; docs/gpu.md says how to build it", known);
    return HVT_FAIL(E_ARG, "unknown device '%s', expected one of: %s", name, known);
}

hvt_status hvt_device_open(const char *name, const hvt_device_opts *opts, hvt_device **ret_dev)
{
    static const hvt_device_opts defaults;
    const hvt_device_ops *ops = NULL;
    hvt_device *d = NULL;
    hvt_status s;

    if (!opts)
        opts = &defaults;
    HVT_GIVEN(name, "a device's name");
    HVT_GIVEN(ret_dev, "an output pointer for the device");
    HVT_TRY(find(name, &ops));
    HVT_CHECK(opts->threads >= 0 && opts->threads <= HVT_MAX_THREADS, E_ARG,
              "device %s: %d threads, expected 0 to %d", name, opts->threads, HVT_MAX_THREADS);
    HVT_CHECK(opts->ncpus >= 0 && opts->ncpus <= HVT_MAX_THREADS, E_ARG,
              "device %s: %d processors, expected 0 to %d", name, opts->ncpus, HVT_MAX_THREADS);
    HVT_CHECK(opts->cpus || !opts->ncpus, E_ARG, "device %s: %d processors, but no list of them", name,
              opts->ncpus);
    HVT_CHECK((opts->conv_tile >= 0 && opts->conv_tile <= 2) || opts->conv_tile == 4, E_ARG,
              "device %s: tiles of %d outputs, expected 0, 1, 2 or 4", name, opts->conv_tile);

    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for %zu bytes of device %s", sizeof *d, name);
    d->ops = ops;
    d->index = opts->index;
    d->yield = opts->yield;
    d->share = opts->share;
    d->deterministic = opts->deterministic;
    d->tf32 = opts->tf32;
    d->conv_tile = opts->conv_tile;
    HVT_TRY_OR(fail, ops->open(d, opts));
    *ret_dev = d;
    return HVT_OK;
fail:
    hvt_device_close(&d);
    return s;
}

void hvt_device_close(hvt_device **dev)
{
    hvt_device *d = dev ? *dev : NULL;
    char what[32];

    if (!d)
        return;
    snprintf(what, sizeof what, "device %s", d->ops->name);
    if (hvt__in_use(&d->users, what))
        return;
    if (d->ops->close)
        d->ops->close(d);
    free(d);
    *dev = NULL;
}

const char *hvt_device_name(const hvt_device *d)
{
    return d ? d->ops->name : "";
}

const char *hvt_device_isa(const hvt_device *d)
{
    return d ? d->isa : "";
}

int hvt_device_threads(const hvt_device *d)
{
    return d ? d->threads : 0;
}

void hvt_device_describe(const hvt_device *d, hvt_device_info *ret_info)
{
    if (!ret_info)
        return;
    *ret_info = (hvt_device_info){0};
    if (d && d->ops->describe)
        d->ops->describe(d, ret_info);
}

int hvt_device_count(const char *name)
{
    if (!name)
        return 0;
#if HVT_HAVE_CUDA
    if (!strcmp(name, "cuda"))
        return hvt__cuda_count();
#endif
    for (size_t i = 0; i < HVT_LEN(registry); i++)
        if (!strcmp(name, registry[i]->name))
            return 1;
    return 0;
}

hvt_order hvt_device_order(const hvt_device *d, int batch, int height, int width)
{
    return d && d->ops->order ? d->ops->order(d, batch, height, width) : HVT_ORDER_NHW;
}

hvt_status hvt_device_upload(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    HVT_GIVEN(d, "a device");
    HVT_CHECK(!bytes || (dst && host), E_ARG, "a copy of %zu bytes from %p to %p: expected two addresses",
              bytes, host, dst);
    return d->ops->memory.upload(d, dst, host, bytes);
}

hvt_status hvt_device_download(hvt_device *d, void *host, const void *src, size_t bytes)
{
    HVT_GIVEN(d, "a device");
    HVT_CHECK(!bytes || (src && host), E_ARG, "a copy of %zu bytes from %p to %p: expected two addresses",
              bytes, src, host);
    return d->ops->memory.download(d, host, src, bytes);
}

hvt_status hvt_device_sync(hvt_device *d)
{
    HVT_GIVEN(d, "a device");
    return d->ops->queue.sync ? d->ops->queue.sync(d) : HVT_OK;
}

#if defined(__SSE2__)

enum { FLAGS = 0x3f, MASKED = 0x1f80, DAZ = 1 << 6, FTZ = 1 << 15 };

uint64_t hvt__floats_enter(void)
{
    const unsigned was = _mm_getcsr();

    if ((was & ~(unsigned)FLAGS) != (MASKED | DAZ | FTZ))
        _mm_setcsr(MASKED | DAZ | FTZ | (was & FLAGS));
    __asm__ volatile("" : : : "memory"); /* loads must not be moved before it */
    return was;
}

void hvt__floats_leave(const uint64_t *was)
{
    __asm__ volatile("" : : : "memory"); /* stores must not be moved after it */
    if ((_mm_getcsr() ^ (unsigned)*was) & ~(unsigned)FLAGS)
        _mm_setcsr((unsigned)*was);
}

#elif defined(__aarch64__)

enum { FZ = 1 << 24 };

/* AArch64 keeps the exception flags in a separate register, FPSR. */
#define WRITE(reg, to) __asm__ volatile("msr " #reg ", %0" : : "r"((uint64_t)(to)) : "memory")
#define READ(reg)                                                                                            \
    ({                                                                                                       \
        uint64_t now_;                                                                                       \
        __asm__ volatile("mrs %0, " #reg : "=r"(now_));                                                      \
        now_;                                                                                                \
    })

uint64_t hvt__floats_enter(void)
{
    const uint64_t was = READ(fpcr), noted = READ(fpsr);

    if (was != FZ)
        WRITE(fpcr, FZ);
    __asm__ volatile("" : : : "memory");
    return was | noted << 32;
}

void hvt__floats_leave(const uint64_t *was)
{
    const uint64_t control = (uint32_t)*was, noted = *was >> 32;

    __asm__ volatile("" : : : "memory");
    if (READ(fpcr) != control)
        WRITE(fpcr, control);
    if (READ(fpsr) != noted)
        WRITE(fpsr, noted);
}

#else

uint64_t hvt__floats_enter(void)
{
    return 0;
}

void hvt__floats_leave(const uint64_t *was)
{
}

#endif

static hvt_status check_type(hvt_dtype t)
{
    HVT_CHECK(t == HVT_F32 || t == HVT_F16 || t == HVT_BF16, E_UNSUPPORTED,
              "activations are f32, f16 or bf16, not %s", hvt_dtype_name(t));
    return HVT_OK;
}

hvt_status hvt__conv_check(const hvt_device *d, const hvt_conv_desc *c)
{
    HVT_TRY(check_type(c->type));
    HVT_CHECK(c->cx == c->c || (d->ops->channels && c->cx > c->c), E_UNSUPPORTED,
              "convolution of %d channels stored as %d; this device does not pad channels", c->c, c->cx);
    HVT_CHECK(c->n >= 1 && c->h >= 1 && c->w >= 1 && c->c >= 1, E_SHAPE,
              "convolution's input is %d images of %dx%d pixels with %d channels; each must be at least 1",
              c->n, c->h, c->w, c->c);
    HVT_CHECK(
        c->k >= 1 && c->r >= 1 && c->s >= 1 && c->stride_h >= 1 && c->stride_w >= 1 && c->dilation_h >= 1 &&
            c->dilation_w >= 1 && c->top >= 0 && c->left >= 0 && c->bottom >= 0 && c->right >= 0,
        E_SHAPE,
        "convolution has %d filters of %dx%d, stride %dx%d, dilation %dx%d, padding %d above, %d left, %d "
        "below, %d right",
        c->k, c->r, c->s, c->stride_h, c->stride_w, c->dilation_h, c->dilation_w, c->top, c->left, c->bottom,
        c->right);
    HVT_CHECK(c->groups >= 1 && c->c % c->groups == 0 && c->k % c->groups == 0, E_SHAPE,
              "convolution of %d channels by %d filters in %d groups; both must be multiples of the groups",
              c->c, c->k, c->groups);
    HVT_CHECK(c->groups == 1 || c->cx == c->c, E_UNSUPPORTED,
              "convolution in %d groups of %d channels stored as %d; groups do not allow padding", c->groups,
              c->c, c->cx);
    HVT_CHECK(
        (long)c->h + c->top + c->bottom > (c->r - 1L) * c->dilation_h &&
            (long)c->w + c->left + c->right > (c->s - 1L) * c->dilation_w,
        E_SHAPE,
        "a filter of %dx%d, dilation %dx%d, does not fit into %dx%d pixels with padding %d above, %d left, "
        "%d below, %d right",
        c->r, c->s, c->dilation_h, c->dilation_w, c->h, c->w, c->top, c->left, c->bottom, c->right);
    return HVT_OK;
}

void hvt__conv_permute_krsc(const hvt_op *op, bool to_file, float *mine, float *kcrs)
{
    const hvt_conv_desc *d = &((const hvt_conv *)op)->d;
    const int depth = d->c / d->groups;

    for (int k = 0; k < d->k; k++)
        for (int r = 0; r < d->r; r++)
            for (int s = 0; s < d->s; s++)
                for (int c = 0; c < hvt__conv_depth(d); c++, mine++) {
                    float *file = c < depth ? kcrs + (((size_t)k * depth + c) * d->r + r) * d->s + s : NULL;

                    if (to_file && file)
                        *file = *mine;
                    else if (!to_file)
                        *mine = file ? *file : 0;
                }
}

void hvt__op_free_plain(hvt_op *op)
{
    free(op);
}

hvt_status hvt__pooling_plan(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved)
{
    hvt_pooling_desc w = *p;
    bool fits = p->size > 0 && p->size <= HVT_POOLING_WINDOW && p->stride > 0 && p->pad >= 0 &&
                p->pad * 2 <= p->size && p->h + 2 * p->pad >= p->size && p->w + 2 * p->pad >= p->size;
    hvt_pooling *o;

    HVT_TRY(check_type(p->type));
    HVT_CHECK(!p->windows || (hvt__window_fits(&p->rows, p->h) && hvt__window_fits(&p->columns, p->w)),
              E_SHAPE, "%dx%d windows over %dx%d pixels: along each, the product must be below 2^32",
              p->rows.out, p->columns.out, p->h, p->w);
    HVT_CHECK(p->mean || fits || p->windows, E_SHAPE,
              "invalid pooling: input %dx%dx%dx%d, window %d (1 to %d), stride %d, padding %d (at most half)",
              p->n, p->h, p->w, p->c, p->size, HVT_POOLING_WINDOW, p->stride, p->pad);
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a pooling's plan", sizeof *o);
    if (!p->windows && !p->mean) {
        w.rows = (hvt_window){p->size, p->stride, p->pad, hvt__conv_out(p->h, p->size, p->stride, p->pad)};
        w.columns = (hvt_window){p->size, p->stride, p->pad, hvt__conv_out(p->w, p->size, p->stride, p->pad)};
    }
    *o = (hvt_pooling){{d, hvt__op_free_plain},
                       w,
                       p->mean && !p->windows ? 1 : w.rows.out,
                       p->mean && !p->windows ? 1 : w.columns.out};
    *ret_op = &o->op;
    *ret_saved = p->mean ? 0 : (size_t)p->n * o->p * o->q * p->c; /* one byte each: the argmax */
    return HVT_OK;
}

static int taps_of(const hvt_taps *t)
{
    return t->first[t->out];
}

/* Copies t to *ret, and its transpose to *ret_back: the outputs that read each input, in order. *memory has
 * space for the arrays, and advances. */
static void copy_taps(const hvt_taps *t, char **memory, hvt_taps *ret, hvt_taps *ret_back)
{
    const size_t count = (size_t)taps_of(t);
    hvt_tap *tap = (hvt_tap *)*memory, *back = tap + count;
    int *first = (int *)(back + count), *begin = first + t->out + 1;

    memcpy(tap, t->tap, count * sizeof *tap);
    memcpy(first, t->first, ((size_t)t->out + 1) * sizeof *first);
    memset(begin, 0, ((size_t)t->in + 2) * sizeof *begin);
    for (size_t i = 0; i < count; i++) /* begin[i + 2] counts the readers of input i */
        begin[tap[i].index + 2]++;
    for (int i = 0; i < t->in; i++)
        begin[i + 2] += begin[i + 1];
    for (int o = 0; o < t->out; o++) /* begin[i + 1]: place of input i's next reader; at last its end */
        for (int k = first[o]; k < first[o + 1]; k++)
            back[begin[tap[k].index + 1]++] = (hvt_tap){o, tap[k].weight};
    *ret = (hvt_taps){t->in, t->out, first, tap};
    *ret_back = (hvt_taps){t->out, t->in, begin, back};
    *memory = (char *)(begin + t->in + 2);
}

hvt_status hvt__resample_plan(hvt_device *d, const hvt_resample_desc *r, hvt_op **ret_op)
{
    const hvt_taps *t[] = {&r->rows, &r->columns};
    size_t bytes = sizeof(hvt_resample);
    hvt_resample *o;
    char *memory;

    HVT_TRY(check_type(r->type));
    for (size_t i = 0; i < HVT_LEN(t); i++)
        bytes += 2 * (size_t)taps_of(t[i]) * sizeof(hvt_tap) +
                 ((size_t)t[i]->in + (size_t)t[i]->out + 3) * sizeof(int);
    o = malloc(bytes);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a resampling's plan", bytes);
    *o = (hvt_resample){.op = {d, hvt__op_free_plain}, .d = *r};
    memory = (char *)(o + 1);
    copy_taps(t[0], &memory, &o->d.rows, &o->rows_back);
    copy_taps(t[1], &memory, &o->d.columns, &o->columns_back);
    *ret_op = &o->op;
    return HVT_OK;
}
