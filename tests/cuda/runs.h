/*
 * runs.h - runs one op by ref and by the kernels on the emulator in three orders, and compares the results.
 *
 * A test declares its outputs (`output`), calls the op once for every run with that run's addresses (`of`),
 * and lets `judge` compare: the orders bit for bit with each other, the first of them with ref, bit for bit
 * or within a bound for each element. Outputs start as NaNs, or as the values that are added to, between
 * guards that nothing may touch. Inputs come from `input`, rounded to their type, between guards, too.
 */
#ifndef HVT_RUNS_H
#define HVT_RUNS_H

#include "devices.h"
#include "../../cuda/kernels.h"
#include "device/half.h"
#include "emu/emu.h"

enum { RUNS = 4, MOST_OUTPUTS = 8, GUARD = 64, MOST_GUARDED = 128 }; /* run 0 is ref's */

typedef struct guarded {
    unsigned char *block;
    size_t before, bytes;
} guarded;

typedef struct runs {
    const char *what;
    guarded block[MOST_GUARDED];
    int blocks, outputs;
    struct {
        const char *name;
        hvt_dtype type;
        size_t count;        /* that are compared */
        const double *slack; /* [count] how far an element may be off beside its rounding; NULL: same bits */
        void *at[RUNS];
    } output[MOST_OUTPUTS];
} runs;

static const hvt_dtype float_types[] = {HVT_F32, HVT_F16, HVT_BF16};

static inline hvt_dtype any_type(void)
{
    return float_types[between(0, 2)];
}

/* bytes that lie `skew` bytes behind a multiple of 64, between guards */
static inline void *guarded_room(runs *r, size_t bytes, size_t skew)
{
    guarded *g = &r->block[r->blocks++];

    if (r->blocks > MOST_GUARDED)
        abort();
    *g = (guarded){aligned_alloc(64, (GUARD + skew + bytes + GUARD + 63) / 64 * 64), GUARD + skew, bytes};
    if (!g->block)
        abort();
    memset(g->block, 0xa5, GUARD + skew + bytes + GUARD);
    return g->block + g->before;
}

static inline void begin(runs *r, const char *what)
{
    *r = (runs){.what = what};
}

/* count values around `mean`, those from `real` on NaN */
static inline void *input(runs *r, hvt_dtype t, size_t count, size_t real, float mean, size_t skew)
{
    void *p = guarded_room(r, count * hvt_dtype_size(t), skew);

    for (size_t i = 0; i < count; i++)
        hvt__store(p, t, i, i < real ? value() + mean : NAN);
    return p;
}

/* from: what it holds before, NULL: NaNs. Returns its number. */
static inline int output(runs *r, const char *name, hvt_dtype t, size_t all, size_t count, const void *from,
                         const double *slack, size_t skew)
{
    int o = r->outputs++;

    if (r->outputs > MOST_OUTPUTS)
        abort();
    r->output[o].name = name;
    r->output[o].type = t;
    r->output[o].count = count;
    r->output[o].slack = slack;
    for (int run = 0; run < RUNS; run++) {
        r->output[o].at[run] = guarded_room(r, all * hvt_dtype_size(t), skew);
        if (from)
            memcpy(r->output[o].at[run], from, all * hvt_dtype_size(t));
        else
            memset(r->output[o].at[run], 0xff, all * hvt_dtype_size(t));
    }
    return o;
}

static inline void *of(const runs *r, int o, int run)
{
    return r->output[o].at[run];
}

static inline void set_order(int run)
{
    hvt_emu_order(run == 3 ? draw() | 2 : (uint64_t)run - 1);
}

#define CHECK_CUDA(call)                                                                                     \
    do {                                                                                                     \
        cudaError_t e_ = (call);                                                                             \
        CHECK(e_ == cudaSuccess, "error %d", (int)e_);                                                       \
    } while (0)

static inline double element(const void *p, hvt_dtype t, size_t i)
{
    return t == HVT_I32  ? ((const int32_t *)p)[i]
           : t == HVT_U8 ? ((const uint8_t *)p)[i]
                         : (double)hvt__load(p, t, i);
}

/* Same bits, or both NaN: payloads are the processor's own. */
static inline bool same_element(const void *a, const void *b, hvt_dtype t, size_t i)
{
    size_t size = hvt_dtype_size(t);

    return !memcmp((const char *)a + i * size, (const char *)b + i * size, size) ||
           (isnan(element(a, t, i)) && isnan(element(b, t, i)));
}

/* cuda.md, section 10: one rounding to the type, and the op's own sums of absolute values times a few
 * roundings of f32 */
static inline bool near_element(const void *got, const void *want, hvt_dtype t, size_t i, double slack)
{
    static const double last_place[] = {[HVT_F32] = 0x1p-23, [HVT_F16] = 0x1p-10, [HVT_BF16] = 0x1p-7};
    double g = element(got, t, i), w = element(want, t, i), least = t == HVT_F16 ? 0x1p-24 : 0;

    return (isnan(g) && isnan(w)) || g == w || fabs(g - w) <= last_place[t] * fabs(w) + least + slack;
}

static inline void compare(const runs *r, int o, int run)
{
    const void *got = of(r, o, run), *want = of(r, o, run > 1 ? 1 : 0);
    hvt_dtype t = r->output[o].type;
    const double *slack = run > 1 ? NULL : r->output[o].slack;
    size_t bad = 0, first = 0;

    for (size_t i = 0; i < r->output[o].count; i++)
        if (!(slack ? near_element(got, want, t, i, slack[i]) : same_element(got, want, t, i)) && !bad++)
            first = i;
    CHECK(!bad, "%s: %s of %s, %s: %zu of %zu differ, first [%zu] is %.9g, not %.9g", r->what,
          r->output[o].name, hvt_dtype_name(t), run > 1 ? "in another order" : "against ref", bad,
          r->output[o].count, first, element(got, t, first), element(want, t, first));
}

/* Compare all, look at the guards, free. */
static inline void judge(runs *r)
{
    for (int o = 0; o < r->outputs; o++)
        for (int run = 1; run < RUNS; run++)
            compare(r, o, run);
    for (int b = 0; b < r->blocks; b++) {
        const guarded *g = &r->block[b];
        size_t touched = 0;

        for (size_t i = 0; i < g->before; i++)
            touched += g->block[i] != 0xa5;
        for (size_t i = 0; i < GUARD; i++)
            touched += g->block[g->before + g->bytes + i] != 0xa5;
        CHECK(!touched, "%s: %zu bytes written beside a buffer of %zu", r->what, touched, g->bytes);
        free(g->block);
    }
}

/* a few roundings of f32 */
#define FEW (16 * 0x1p-24)

static inline double *slacks(size_t n)
{
    double *s = calloc(n + !n, sizeof *s);

    if (!s)
        abort();
    return s;
}

#endif /* HVT_RUNS_H */
