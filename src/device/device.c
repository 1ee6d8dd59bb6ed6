/*
 * The registry of devices, the checks that all of them share, and the floating-point environment. Everything
 * else is in the backends.
 */
#include "base_impl.h"
#include "config.h"
#include "device_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return HVT_FAIL(E_ARG, "no device is called '%s'; known are: %s", name, known);
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
              "device %s: %d threads, not 0 to %d", name, opts->threads, HVT_MAX_THREADS);
    HVT_CHECK(opts->ncpus >= 0 && opts->ncpus <= HVT_MAX_THREADS, E_ARG,
              "device %s: %d processors, not 0 to %d", name, opts->ncpus, HVT_MAX_THREADS);
    HVT_CHECK(opts->cpus || !opts->ncpus, E_ARG, "device %s: %d processors, but no list of them", name,
              opts->ncpus);

    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for %zu bytes of device %s", sizeof *d, name);
    d->ops = ops;
    d->index = opts->index;
    d->yield = opts->yield;
    d->share = opts->share;
    d->deterministic = opts->deterministic;
    d->tf32 = opts->tf32;
    d->direct = opts->direct;
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
    d->ops->close(d);
    free(d);
    *dev = NULL;
}

const char *hvt_device_name(const hvt_device *d)
{
    if (!d)
        return "";
    return d->ops->name;
}

const char *hvt_device_isa(const hvt_device *d)
{
    if (!d)
        return "";
    return d->isa;
}

int hvt_device_threads(const hvt_device *d)
{
    if (!d)
        return 0;
    return d->threads;
}

void hvt_device_describe(const hvt_device *d, hvt_device_info *ret_info)
{
    if (ret_info)
        *ret_info = (hvt_device_info){0};
    if (!d || !ret_info)
        return;
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
    if (!d)
        return HVT_ORDER_NHW;
    return d->ops->order(d, batch, height, width);
}

hvt_status hvt_device_upload(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    HVT_GIVEN(d, "a device");
    HVT_CHECK(!bytes || (dst && host), E_ARG, "a copy of %zu bytes from %p to %p", bytes, host, dst);
    HVT_TRY(d->ops->upload(d, dst, host, bytes));
    return HVT_OK;
}

hvt_status hvt_device_download(hvt_device *d, void *host, const void *src, size_t bytes)
{
    HVT_GIVEN(d, "a device");
    HVT_CHECK(!bytes || (src && host), E_ARG, "a copy of %zu bytes from %p to %p", bytes, src, host);
    HVT_TRY(d->ops->download(d, host, src, bytes));
    return HVT_OK;
}

hvt_status hvt_device_sync(hvt_device *d)
{
    HVT_GIVEN(d, "a device");
    HVT_TRY(d->ops->sync(d));
    return HVT_OK;
}

/* ---- floats ---- */

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

static uint64_t fpcr(void)
{
    uint64_t now;

    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    return now;
}

static void set_fpcr(uint64_t to)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(to) : "memory");
}

/* AArch64 keeps the exception flags in a register of their own. */
static uint64_t fpsr(void)
{
    uint64_t now;

    __asm__ volatile("mrs %0, fpsr" : "=r"(now));
    return now;
}

uint64_t hvt__floats_enter(void)
{
    const uint64_t was = fpcr(), noted = fpsr();

    if (was != FZ)
        set_fpcr(FZ);
    __asm__ volatile("" : : : "memory");
    return was | noted << 32;
}

void hvt__floats_leave(const uint64_t *was)
{
    const uint64_t control = (uint32_t)*was, noted = *was >> 32;

    __asm__ volatile("" : : : "memory");
    if (fpcr() != control)
        set_fpcr(control);
    if (fpsr() != noted)
        __asm__ volatile("msr fpsr, %0" : : "r"(noted) : "memory");
}

#else

uint64_t hvt__floats_enter(void)
{
    return 0;
}

void hvt__floats_leave(const uint64_t *was)
{
    (void)was;
}

#endif

/* ---- plans ---- */

hvt_status hvt__pooling_check(const hvt_pooling_desc *p)
{
    bool fits = p->size > 0 && p->size <= HVT_POOLING_WINDOW && p->stride > 0 && p->pad >= 0 &&
                p->pad * 2 <= p->size && p->h + 2 * p->pad >= p->size && p->w + 2 * p->pad >= p->size;

    HVT_CHECK(p->type == HVT_F32 || p->type == HVT_F16 || p->type == HVT_BF16, E_UNSUPPORTED,
              "activations are f32, f16 or bf16, not %s", hvt_dtype_name(p->type));
    HVT_CHECK(p->mean || fits, E_SHAPE,
              "no pooling: input %dx%dx%dx%d, window %d (1 to %d), stride %d, padding %d (at most half)",
              p->n, p->h, p->w, p->c, p->size, HVT_POOLING_WINDOW, p->stride, p->pad);
    return HVT_OK;
}
