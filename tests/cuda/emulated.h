/*
 * emulated.h - cuda/'s kernels on the emulator, for tests that compare them with ref: their device, and
 * random shapes.
 */
#ifndef HVT_EMULATED_H
#define HVT_EMULATED_H

#include "runs.h"

#ifdef HVT_EMU_TSAN
enum { IS_TSAN = true, CASES = 4 };
#else
enum { IS_TSAN = false, CASES = 24 };
#endif

static void *scratch; /* for every op in turn, full of NaNs behind its counters */
static int launches __attribute__((unused));
static hvt_device emulated;

/* In place of launch.c: no stream. */
cudaStream_t hvt__cuda_stream(hvt_device *d)
{
    (void)d;
    return NULL;
}

void *hvt__cuda_scratch(hvt_device *d)
{
    (void)d;
    return scratch;
}

hvt_status hvt__cuda_launched(const hvt_device *d, cudaError_t e, const char *file, int line,
                              const char *kernel)
{
    (void)d;
    launches++;
    return e == cudaSuccess ? HVT_OK : hvt__fail(HVT_E_DEVICE, file, line, "%s: error %d", kernel, (int)e);
}

static inline void open_emulated(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    scratch = memset(aligned_alloc(64, HVT__CUDA_SCRATCH), 0xff, HVT__CUDA_SCRATCH);
    memset(scratch, 0, HVT__CUDA_COUNTERS);
}

static inline int close_emulated(void)
{
    free(scratch);
    hvt_device_close(&ref);
    return check_done();
}

/* ---- matrices ---- */

typedef struct matrix_shape {
    hvt_rows rows;
    int c;
    hvt_dtype t;
    size_t all, real, skew; /* elements; bytes */
    size_t count;           /* real rows */
} matrix_shape;

static inline matrix_shape random_matrix(void)
{
    static const int channels[] = {1, 3, 7, 8, 16, 24, 37, 64, 100, 130, 256, 300, 2048};
    int c = channels[between(0, HVT_LEN(channels) - 1)], n = between(1, 9),
        pixels = between(1, c > 500 ? 9 : 60);
    int real = between(0, 3) ? n : between(0, n);
    matrix_shape m = {.c = c, .t = any_type()};

    if (c < 100 && !between(0, 4)) { /* rows for many parts */
        n = between(30, 40);
        pixels = 49;
        real = between(n - 2, n);
    }
    if (between(0, 3) == 0)
        m.skew = hvt_dtype_size(m.t) * between(1, 7);
    m.rows = hvt__rows(HVT_ORDER_NHW, pixels, n, real);
    m.all = (size_t)m.rows.block * c;
    m.real = (size_t)m.rows.real * c;
    m.count = (size_t)m.rows.real;
    return m;
}

static inline void *matrix_of(runs *r, const matrix_shape *m, float mean)
{
    return input(r, m->t, m->all, m->real, mean, m->skew);
}

static inline float *per_channel(runs *r, const matrix_shape *m, float mean)
{
    return input(r, HVT_F32, m->c, m->c, mean, 4 * between(0, 3));
}

static inline double x_at(const void *x, const matrix_shape *m, size_t row, int c)
{
    return element(x, m->t, row * m->c + c);
}

/* ---- elements ---- */

/* Lengths around packs and blocks, each array beginning where it likes, or all of them alike. */
typedef struct element_shape {
    size_t n;
    bool alike;
    size_t skew;
} element_shape;

static inline element_shape random_elements(void)
{
    return (element_shape){between(0, 3) ? between(0, 70) : between(1000, 4200), between(0, 1),
                           between(0, 7)};
}

static inline size_t skew_of(const element_shape *e, hvt_dtype t)
{
    return hvt_dtype_size(t) * (e->alike ? e->skew : (size_t)between(0, 7));
}

static inline void *elements_of(runs *r, const element_shape *e, hvt_dtype t)
{
    return input(r, t, e->n, e->n, 0, skew_of(e, t));
}

#endif /* HVT_EMULATED_H */
