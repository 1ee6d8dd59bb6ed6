/*
 * devices.h - every device of this machine, matrices with planted NaNs, and how results are compared.
 *
 * devs[0] is ref; then follows cpu: every instruction set that the processor has, with 1, 2 and 3 threads
 * each. A result is compared with ref's within a bound, and with that of one thread bit for bit.
 */
#ifndef HVT_DEVICES_H
#define HVT_DEVICES_H

#include "base_impl.h"
#include "check.h"
#include "device_impl.h"

#include <math.h>

enum { MOST_DEVS = 32, MOST_THREADS = 3 };
static hvt_device *ref, *devs[MOST_DEVS];
static int ndevs;

static inline void open_devices(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    devs[ndevs++] = ref;
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        if (!hvt_cpu_isa_supported(i)) {
            check_skip(hvt_cpu_isa_name(i), "this processor does not have it");
            continue;
        }
        for (int threads = 1; threads <= MOST_THREADS; threads++) {
            hvt_device_opts opts = {.threads = threads, .isa = hvt_cpu_isa_name(i), .yield = true};

            CHECK_OK(hvt_device_open("cpu", &opts, &devs[ndevs]));
            ndevs++;
        }
    }
}

static inline void close_devices(void)
{
    while (ndevs)
        hvt_device_close(&devs[--ndevs]);
}

/* The device of the same instruction set with one thread. */
static inline int one_thread(int dev)
{
    return dev ? dev - (dev - 1) % MOST_THREADS : 0;
}

/* Elementwise ops agree with ref bit for bit where there is an fma (see formula.h). */
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

static inline float value(void)
{
    return hvt__unit(draw()) * 2 - 1;
}

/* exactly this many bytes, so that the address sanitizer sees an overrun */
static inline void *room(size_t bytes)
{
    void *p = malloc(bytes + !bytes);

    if (!p)
        abort();
    return p;
}

static inline float *floats(size_t n)
{
    float *p = room(n * sizeof *p);

    for (size_t i = 0; i < n; i++)
        p[i] = value();
    return p;
}

/* ---- matrices ---- */

typedef struct shape {
    hvt_order order;
    int pixels, n, real, c;
    hvt_rows rows;
    size_t all; /* elements */
} shape;

static inline shape make_shape(hvt_order order, int pixels, int n, int real, int c)
{
    return (shape){order, pixels, n, real, c, hvt__rows(order, pixels, n, real), (size_t)pixels * n * c};
}

static inline bool is_real(const shape *s, size_t element)
{
    return (int)(element / s->c % s->rows.block) < s->rows.real;
}

/* Values around `mean`; what no op may read is NaN. */
static inline float *matrix(const shape *s, float mean)
{
    float *p = floats(s->all);

    for (size_t i = 0; i < s->all; i++)
        p[i] = is_real(s, i) ? p[i] + mean : NAN;
    return p;
}

static inline float *copied(const void *from, size_t n)
{
    return memcpy(room(n * sizeof(float)), from, n * sizeof(float));
}

/* A pooling of any kind; now and then one with many floats to a pixel. */
static inline hvt_pool_desc random_pool(void)
{
    hvt_pool_desc p = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
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

/* ---- comparison ---- */

/* |got - want| <= bound * (1 + |want|) for real rows; a NaN is never near. s NULL: all n. */
static inline void check_near(const char *what, int dev, const shape *s, size_t n, const float *got,
                              const float *want, double bound)
{
    size_t bad = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        if ((!s || is_real(s, i)) &&
            !(fabs((double)got[i] - want[i]) <= bound * (1 + fabs((double)want[i]))) && !bad++)
            at = i;
    CHECK(!bad, "%s on %s, %d threads: %zu of %zu, first [%zu] is %.9g, not %.9g", what,
          hvt_device_isa(devs[dev]), hvt_device_threads(devs[dev]), bad, n, at, got[at], want[at]);
}

static inline void check_same(const char *what, int dev, const shape *s, size_t n, const float *got,
                              const float *want)
{
    size_t bad = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        if ((!s || is_real(s, i)) && memcmp(&got[i], &want[i], sizeof *got) && !bad++)
            at = i;
    CHECK(!bad, "%s on %s, %d threads: %zu of %zu differ, first [%zu] is %.9g, not %.9g", what,
          hvt_device_isa(devs[dev]), hvt_device_threads(devs[dev]), bad, n, at, got[at], want[at]);
}

#endif /* HVT_DEVICES_H */
