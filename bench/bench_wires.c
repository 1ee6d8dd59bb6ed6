/*
 * bench_wires - the cost of converting and adding gradients as they travel, on one core.
 *
 *     bench_wires [--isa NAME] [--seconds S]
 *
 * Each operation of the cpu device runs over arrays of 64 KiB, 1 MiB and 32 MiB as f32 (casts, sums of two
 * ranks' 16-bit or f32 parts into the first), beside a memcpy of that f32 array in the same run; factors, of
 * rank 4, are made from a gradient of that size with 512 filters. Operations take turns within a size; the
 * median of the rounds counts. Results are compared with plain C before they are timed: a wrong one prints no
 * speed. Columns: GB/s read and written, each array counted once per use; share of memcpy's.
 */
#include "bench.h"
#include "base_impl.h"
#include "device/half.h"
#include "device_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 11, FILTERS = 512, RANK = 4, CLOCK = 1 << 18 /* elements */ };

static hvt_device *dev;
static size_t n; /* elements */
static float *f32[3];
static uint16_t *half[3];
static float *factor;
static hvt_factor_args args;

static void must(hvt_status s)
{
    bench_must("bench_wires", NULL, s);
}

static void *room(size_t bytes)
{
    void *p;

    must(dev->ops->memory.alloc(dev, bytes, &p));
    return p;
}

/* ---- what is timed ---- */

static void copy_f32(void *ctx)
{
    (void)ctx;
    memcpy(f32[1], f32[0], n * sizeof **f32);
}

static void to_half(void *ctx)
{
    must(dev->ops->vector.cast(dev, n, 0.5f, f32[0], HVT_F32, half[2], *(const hvt_dtype *)ctx));
}

static void from_half(void *ctx)
{
    must(dev->ops->vector.cast(dev, n, 2, half[0], *(const hvt_dtype *)ctx, f32[1], HVT_F32));
}

static void add_half(void *ctx)
{
    must(dev->ops->vector.reduce(dev, n, *(const hvt_dtype *)ctx, (const void *const[]){half[0], half[1]}, 2,
                                 half[2]));
}

static void add_f32(void *ctx)
{
    (void)ctx;
    must(dev->ops->vector.reduce(dev, n, HVT_F32, (const void *const[]){f32[0], f32[2]}, 2, f32[1]));
}

static void factor_p(void *ctx)
{
    (void)ctx;
    must(dev->ops->host_only.factor_p(dev, &args));
}

static void factor_q(void *ctx)
{
    (void)ctx;
    must(dev->ops->host_only.factor_q(dev, &args));
}

static void factor_join(void *ctx)
{
    (void)ctx;
    must(dev->ops->host_only.factor_join(dev, &args));
}

static const hvt_dtype f16 = HVT_F16, bf16 = HVT_BF16;

static const struct {
    const char *name;
    void (*run)(void *ctx);
    const hvt_dtype *type; /* of its 16-bit arrays */
    int bytes;             /* read and written per element */
} table[] = {
    {"memcpy f32", copy_f32, NULL, 8},
    {"f32 to bf16", to_half, &bf16, 6},
    {"f32 to f16", to_half, &f16, 6},
    {"bf16 to f32", from_half, &bf16, 6},
    {"f16 to f32", from_half, &f16, 6},
    {"bf16 + bf16", add_half, &bf16, 6},
    {"f16 + f16", add_half, &f16, 6},
    {"f32 + f32", add_f32, NULL, 12},
    {"e += g; p = e q", factor_p, NULL, 12},
    {"q = e^T p", factor_q, NULL, 4},
    {"g = p q^T; e -= g", factor_join, NULL, 12},
};

/* ---- is it right? ---- */

static void fill(hvt_dtype t)
{
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k += 2)
            f32[k][i] = 8 * hvt__unit(hvt__draw((uint64_t)k, i, 0, 0)) - 4;
        for (int k = 0; k < 2; k++)
            hvt__store(half[k], t, i, 8 * hvt__unit(hvt__draw(3, (uint64_t)k, i, 0)) - 4);
    }
}

static void check(bool same, const char *what)
{
    if (!same)
        must(HVT_FAIL(E_FORMAT, "%s: a wrong result", what));
}

static void verify(hvt_dtype t)
{
    fill(t);
    to_half((void *)(uintptr_t)&t);
    for (size_t i = 0; i < n; i++)
        check(hvt__load(half[2], t, i) == hvt__load(&(uint16_t){t == HVT_F16 ? hvt__to_f16(f32[0][i] / 2)
                                                                             : hvt__to_bf16(f32[0][i] / 2)},
                                                    t, 0),
              "from f32");
    from_half((void *)(uintptr_t)&t);
    for (size_t i = 0; i < n; i++)
        check(f32[1][i] == 2 * hvt__load(half[0], t, i), "to f32");
    add_half((void *)(uintptr_t)&t);
    for (size_t i = 0; i < n; i++) {
        float sum = hvt__load(half[0], t, i) + hvt__load(half[1], t, i);

        check(half[2][i] == (t == HVT_F16 ? hvt__to_f16(sum) : hvt__to_bf16(sum)), "a sum of 16 bits");
    }
    add_f32(NULL);
    for (size_t i = 0; i < n; i++)
        check(f32[1][i] == f32[0][i] + f32[2][i], "a sum of f32");
}

/* ---- a size ---- */

static void run_size(size_t bytes, double seconds)
{
    double took[HVT_LEN(table)][ROUNDS], copy;

    n = bytes / sizeof(float);
    args = (hvt_factor_args){FILTERS, (int)(n / FILTERS),      RANK, f32[0], f32[2],
                             factor,  factor + FILTERS * RANK, 0};
    verify(HVT_F16);
    verify(HVT_BF16);
    for (size_t i = 0; i < (size_t)(args.m * RANK); i++)
        args.q[i] = hvt__unit(hvt__draw(5, i, 0, 0)) * 1e-3f;
    for (int r = 0; r < ROUNDS; r++)
        for (size_t k = 0; k < HVT_LEN(table); k++) {
            double least = seconds / ROUNDS / HVT_LEN(table), began, now;
            int runs = 0;

            memset(f32[0], 0, n * sizeof **f32); /* keeps sums over many runs finite */
            memset(f32[2], 0, n * sizeof **f32);
            table[k].run((void *)(uintptr_t)table[k].type);
            began = hvt__now();
            do { /* several runs per clock reading */
                for (size_t at = 0; at < CLOCK; at += n, runs++)
                    table[k].run((void *)(uintptr_t)table[k].type);
            } while ((now = hvt__now()) - began < least);
            took[k][r] = (now - began) / runs;
        }
    for (size_t k = 0; k < HVT_LEN(table); k++)
        hvt__sort(took[k], ROUNDS);
    copy = 8.0 * (double)n / took[0][ROUNDS / 2];
    for (size_t k = 0; k < HVT_LEN(table); k++) {
        double rate = (double)table[k].bytes * (double)n / took[k][ROUNDS / 2];

        printf("%8zu KiB  %-18s %8.1f %6.0f%%\n", bytes >> 10, table[k].name, rate * 1e-9, 100 * rate / copy);
    }
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {64 << 10, 1 << 20, 32 << 20};
    const size_t most = sizes[HVT_LEN(sizes) - 1];
    const char *isa = "auto";
    double seconds = 3;
    const bench_row options[] = {{"--isa", "NAME", "instruction set (auto)", &isa},
                                 {"--seconds", "S", "for each size (3)", .real = &seconds}};

    bench_options("bench_wires", NULL, options, HVT_LEN(options), argc, argv);
    must(hvt_device_open("cpu", &(hvt_device_opts){.threads = 1, .isa = isa}, &dev));
    bench_header("bench_wires", hvt_device_isa(dev), 1);
    for (int k = 0; k < 3; k++) {
        f32[k] = room(most);
        half[k] = room(most / 2);
    }
    factor = room((FILTERS + most / sizeof(float) / FILTERS) * RANK * sizeof *factor);
    printf("%12s  %-18s %8s %7s\n", "as f32", "operation", "GB/s", "memcpy");
    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        run_size(sizes[i], seconds);
    for (int k = 0; k < 3; k++) {
        dev->ops->memory.release(dev, f32[k]);
        dev->ops->memory.release(dev, half[k]);
    }
    dev->ops->memory.release(dev, factor);
    hvt_device_close(&dev);
    return 0;
}
