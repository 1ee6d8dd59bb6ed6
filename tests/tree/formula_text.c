/*
 * formula_text.c - writes everything that src/device shares with the kernels of a GPU (half.h, formula.h),
 * evaluated on many inputs, to stdout bit for bit. test_formula.sh compiles it as C17 and as C++17 and
 * compares.
 */
#include "device/scalar.h"

#include <stdio.h>

static uint32_t seed = 1;

/* any f32, and often one that is special */
static float draw(void)
{
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0xffa00001, 0x00000001, 0x33000000, 0x477fefff, 0x3f800000};

    seed = seed * 1664525 + 1013904223;
    return hvt__from_bits(seed >> 28 ? seed * 2654435761u : special[(seed >> 8) % 10]);
}

/* a NaN's sign and payload are the compiler's choice: which operand it was made from */
static void put(float x)
{
    uint32_t bits = x != x ? 0x7fc00000 : hvt__bits(x);

    fwrite(&bits, sizeof bits, 1, stdout);
}

static void put_types(float x)
{
    char room[2 * sizeof x];

    for (int t = HVT_F32; t <= HVT_BF16; t++) {
        uint16_t h = t == HVT_F16 ? hvt__to_f16(x) : hvt__to_bf16(x);

        fwrite(&h, sizeof h, 1, stdout);
        hvt__store(room, (hvt_dtype)t, 1, x);
        put(hvt__load(room, (hvt_dtype)t, 1));
    }
}

static void put_formulas(void)
{
    float a = draw(), b = draw(), c = draw(), d = draw(), e = draw(), f = draw();
    sgd_consts k = {a, b, c, d, e};
    U bits;
    adam_consts x = {a, b, c, d, e, f, b, c, d};

    put(f_relu(a));
    put(f_keep(a, b));
    put(sgd_gradient(&k, f, a));
    put(sgd_velocity(&k, f, a));
    put(sgd_nesterov(&k, f, a));
    put(sgd_step(&k, f, a));
    put(adam_gradient(&x, f, a));
    put(adam_mean(&x, f, a));
    put(adam_square(&x, f, a));
    put(adam_step(&x, f, a, b));
    put(ema_next(a, b, c));
    put(bn_value(a, b, c, d));
    put(bn_dx(a, b, c, d, e, f));
    put(bn_running(a, b, c, d, e));
    put((float)pooling_wins(a, b));
    put((float)pooling_wins(a, a));
    for (int label = 0; label < 3; label++) {
        put((float)xent_before(a, b, 1, label));
        put((float)xent_before(a, a, 1, label));
    }
    put(xent_poison(a));
    put(xent_grad(a, b, c, d));
    put(xent_loss(f_relu(a), b, c, d));
    put(xent_smooth_hit(a, 7, 1));
    put(xent_smooth_hit(a, 7, 0));
    put(xent_smooth_target(a, 7, b, c));
    put(mse_grad(a, 7, b));
    put(mae_grad(a, 7, b));
    bits = drop_bits(seed, hvt__bits(a), hvt__bits(b));
    fwrite(&bits, sizeof bits, 1, stdout);
    put((float)drop_keeps(bits, (int32_t)seed));
}

int main(void)
{
    for (int h = 0; h < 0x10000; h++) {
        put(hvt__from_f16((uint16_t)h));
        put(hvt__from_bf16((uint16_t)h));
    }
    for (int i = 0; i < 300000; i++) {
        put_types(draw());
        put_formulas();
    }
    return ferror(stdout) != 0;
}
