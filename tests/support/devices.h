/*
 * devices.h - every device of this machine, matrices with planted NaNs, and the comparison of results.
 *
 * devs[0] is ref; then cpu with every instruction set that the processor has, with 1, 2 and 3 threads each,
 * under memcheck with 1 and 3; with HVT_HOSTED cuda instead (tests/cuda/whole/hosted.c). A result is compared
 * with ref's within a bound, and with that of one thread bit for bit.
 *
 * Tests hold all values as floats. For an op with a type, they are rounded to it beforehand, packed for the
 * op and unpacked after it, and compared with ref's result for the same floats in f32: within the bound of
 * f32 plus half a unit in the last place of the type.
 */
#ifndef HVT_DEVICES_H
#define HVT_DEVICES_H

#include "base_impl.h"
#include "check.h"
#include "device/half.h"
#include "device_impl.h"
#include "heap.h"

#include <math.h>

enum { MOST_DEVS = 32, MOST_THREADS = 3 };
static hvt_device *ref, *devs[MOST_DEVS];
static int ndevs, devs_of_isa = 1;

static inline void open_devices(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    devs[ndevs++] = ref;
#ifdef HVT_HOSTED
    CHECK_OK(hvt_device_open("cuda", &(hvt_device_opts){.deterministic = true}, &devs[ndevs]));
    ndevs += devs[ndevs] != NULL;
#else
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        if (!hvt_cpu_isa_supported(i)) {
            check_skip(hvt_cpu_isa_name(i), "this processor does not have it");
            continue;
        }
        devs_of_isa = 0;
        for (int threads = 1; threads <= MOST_THREADS; threads += heap_memcheck() ? MOST_THREADS - 1 : 1) {
            hvt_device_opts opts = {.threads = threads, .isa = hvt_cpu_isa_name(i), .yield = true};

            CHECK_OK(hvt_device_open("cpu", &opts, &devs[ndevs]));
            ndevs++;
            devs_of_isa++;
        }
    }
#endif
}

static inline void close_devices(void)
{
    while (ndevs)
        hvt_device_close(&devs[--ndevs]);
}

/* The device with the same instruction set and one thread. */
static inline int one_thread(int dev)
{
    return dev ? dev - (dev - 1) % devs_of_isa : 0;
}

/* Elementwise ops agree with ref bit for bit if there is an fma (see formula.h). */
static inline bool has_fma(int dev)
{
    return strcmp(hvt_device_isa(devs[dev]), "portable") != 0;
}

/* ---- random ---- */

static uint64_t draws;

static inline uint64_t draw(void)
{
    return hvt__mix(draws++);
}

static inline int between(int low, int high)
{
    return low + (int)hvt__below(draw(), (uint32_t)(high - low + 1));
}

/* The number of random cases, out of n: a few under memcheck, the thread sanitizer and emulation, which are
 * slow. */
static inline int cases(int n)
{
#ifdef __SANITIZE_THREAD__
    return (n + 7) / 8;
#else
    return heap_memcheck() ? (n + 15) / 16 : CHECK_EMULATED ? (n + 3) / 4 : n;
#endif
}

static inline float value(void)
{
    return hvt__unit(draw()) * 2 - 1;
}

/* Exactly this many bytes of unwritten memory: no op may touch one more, on either side (heap.h). The memory
 * is aligned to an element only, less than device_impl.h promises, and its last cache line has no spare
 * bytes. */
static inline void *room(size_t bytes)
{
    return heap_exactly(bytes);
}

static inline float *floats(size_t n)
{
    float *p = room(n * sizeof *p);

    for (size_t i = 0; i < n; i++)
        p[i] = value();
    return p;
}

/* ---- types ---- */

static inline uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

static inline float from_pattern(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

enum { TYPES = 3 }; /* f32, f16, bf16 */

/* the largest relative rounding error of t */
static inline double unit(hvt_dtype t)
{
    return t == HVT_F32 ? 0x1p-24 : t == HVT_F16 ? 0x1p-11 : 0x1p-8;
}

/* element i of an array of type t */
static inline void *at(void *p, hvt_dtype t, size_t i)
{
    return (char *)p + i * hvt_dtype_size(t);
}

static inline void *packed(hvt_dtype t, const float *x, size_t n)
{
    void *p = room(n * hvt_dtype_size(t));

    for (size_t i = 0; i < n; i++)
        hvt__store(p, t, i, x[i]);
    return p;
}

/* An array of NaNs of type t. */
static inline void *unwritten(hvt_dtype t, size_t n)
{
    return memset(room(n * hvt_dtype_size(t)), 0xff, n * hvt_dtype_size(t));
}

/* p's elements as floats; p is freed */
static inline float *unpacked(hvt_dtype t, void *p, size_t n)
{
    float *x = room(n * sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = hvt__load(p, t, i);
    free(p);
    return x;
}

static inline void round_all(hvt_dtype t, float *x, size_t n)
{
    uint16_t h;

    for (size_t i = 0; t != HVT_F32 && i < n; i++) {
        hvt__store(&h, t, 0, x[i]);
        x[i] = hvt__load(&h, t, 0);
    }
}

/* ---- matrices ---- */

typedef struct shape {
    hvt_order order;
    hvt_dtype type;
    int pixels, n, real, c;
    hvt_rows rows;
    size_t all; /* elements */
} shape;

static inline shape make_shape(hvt_order order, int pixels, int n, int real, int c)
{
    return (shape){
        order, HVT_F32, pixels, n, real, c, hvt__rows(order, pixels, n, real), (size_t)pixels * n * c};
}

static inline bool is_real(const shape *s, size_t element)
{
    return (int)(element / s->c % s->rows.block) < s->rows.real;
}

/* Values around `mean`, rounded to s->type; elements that no op may read are NaN. */
static inline float *matrix(const shape *s, float mean)
{
    float *p = floats(s->all);

    for (size_t i = 0; i < s->all; i++)
        p[i] = is_real(s, i) ? p[i] + mean : NAN;
    round_all(s->type, p, s->all);
    return p;
}

static inline float *copied(const void *from, size_t n)
{
    return memcpy(room(n * sizeof(float)), from, n * sizeof(float));
}

static inline shape typed_shape(hvt_dtype t, shape s)
{
    s.type = t;
    return s;
}

static inline shape random_shape(void)
{
    static const int channels[] = {1, 3, 7, 16, 37, 64, 100, 130, 300, 2048};
    int c = channels[between(0, HVT_LEN(channels) - 1)], n = between(1, 21);
    int pixels = between(1, c > 500 ? 4 : 40), real = between(0, 2) ? n : between(0, n);

    if (!between(0, 9)) { /* enough rows for several parts */
        n = 64;
        real = between(0, 1) ? 64 : between(1, 63);
        pixels = 64;
        c = channels[between(0, 7)];
    }
    return typed_shape((hvt_dtype)between(0, TYPES - 1),
                       make_shape(between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW, pixels, n, real, c));
}

/* A pooling of any kind; now and then one with many floats to a pixel. */
static inline hvt_pooling_desc random_pool(void)
{
    hvt_pooling_desc p = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                          .type = (hvt_dtype)between(0, TYPES - 1),
                          .n = between(1, 9),
                          .h = between(1, 17),
                          .w = between(1, 17),
                          .c = between(0, 2) ? between(1, 40) : between(200, 300),
                          .mean = !between(0, 3)};

    if (!between(0, 9)) {
        p.n = 20;
        p.c = 130; /* several slices */
    }
    do {
        p.size = between(1, between(0, 3) ? 4 : 15);
        p.stride = between(1, 4);
        p.pad = between(0, p.size / 2);
    } while (!p.mean && (p.h + 2 * p.pad < p.size || p.w + 2 * p.pad < p.size));
    return p;
}

/* A window along a dimension, for a pooling with `windows`. */
static inline hvt_window random_window(int in, bool adaptive)
{
    hvt_window w = {.size = between(1, in < 6 ? in : 6), .stride = between(1, 4), .out = between(1, 9)};

    if (adaptive)
        return (hvt_window){.out = w.out};
    w.pad = between(0, w.size / 2);
    w.out = (in + 2 * w.pad - w.size) / w.stride + 1;
    w.out += between(0, 1) && w.out * w.stride < in + w.pad; /* ceil_mode */
    return w;
}

/* ---- comparison ---- */

static inline bool same_kind(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b;
}

/* |got - want| <= bound * (1 + |want|), plus the rounding to s->type, for real rows; a NaN never passes. s
 * NULL: all n, in f32. */
static inline void check_near(const char *what, int dev, const shape *s, size_t n, const float *got,
                              const float *want, double bound)
{
    const hvt_dtype t = s ? s->type : HVT_F32;
    size_t bad = 0, first = 0;

    for (size_t i = 0; i < n; i++) {
        double size = fabs((double)want[i]), most = bound * (1 + size) + (t ? unit(t) * size : 0);

        if ((!s || is_real(s, i)) && !(fabs((double)got[i] - want[i]) <= most) && !bad++)
            first = i;
    }
    CHECK(!bad, "%s in %s on %s, %d threads: %zu of %zu, first [%zu] is %.9g, not %.9g", what,
          hvt_dtype_name(t), hvt_device_isa(devs[dev]), hvt_device_threads(devs[dev]), bad, n, first,
          got[first], want[first]);
}

static inline void check_same(const char *what, int dev, const shape *s, size_t n, const float *got,
                              const float *want)
{
    size_t bad = 0, first = 0;

    for (size_t i = 0; i < n; i++)
        if ((!s || is_real(s, i)) && memcmp(&got[i], &want[i], sizeof *got) && !bad++)
            first = i;
    CHECK(!bad, "%s in %s on %s, %d threads: %zu of %zu differ, first [%zu] is %.9g, not %.9g", what,
          hvt_dtype_name(s ? s->type : HVT_F32), hvt_device_isa(devs[dev]), hvt_device_threads(devs[dev]),
          bad, n, first, got[first], want[first]);
}

#endif /* HVT_DEVICES_H */
