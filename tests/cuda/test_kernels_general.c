/*
 * cuda-kernels-general: general ops on the emulator equal ref: every function, operation and broadcast;
 * moves, transposes, dropout and rotary embeddings.
 */
#include "emulated.h"

/* a few roundings of the largest of two values */
static double near(double x)
{
    return 2 * FEW * (1 + fabs(x));
}

TEST(functions_and_their_slopes_equal_ref)
{
    for (int k = 0; k < 3 * HVT_FUNCTIONS; k++) {
        runs r;
        element_shape e = random_elements();
        const hvt_dtype t = float_types[k % 3];
        const hvt_map f = {(hvt_function)(k / 3), k / 3 == HVT_HARDTANH ? -0.5f : 0.75f, 1.5f};
        const bool add = between(0, 1);
        double *y_off = slacks(e.n), *dx_off = slacks(e.n);
        void *x, *dy;
        int y, dx;

        begin(&r, "function");
        x = elements_of(&r, &e, t);
        dy = elements_of(&r, &e, t);
        for (size_t i = 0; i < e.n; i++) {
            hvt__store(x, t, i, value() * (float)between(1, 9));
            y_off[i] = near(element(x, t, i));
            dx_off[i] = 2 * near(element(dy, t, i)) + (add ? FEW : 0);
        }
        y = output(&r, "y", t, e.n, e.n, NULL, y_off, skew_of(&e, t));
        dx = output(&r, "dx", t, e.n, e.n, add ? elements_of(&r, &e, t) : dy, dx_off, skew_of(&e, t));
        for (int run = 0; run < RUNS; run++) {
            hvt_device *d = run ? &emulated : ref;
            HVT__OP_TYPE(general.map_forward) *forward =
                run ? hvt__map_forward_cuda : ref->ops->general.map_forward;
            HVT__OP_TYPE(general.map_backward) *backward =
                run ? hvt__map_backward_cuda : ref->ops->general.map_backward;

            set_order(run);
            CHECK_OK(forward(d, e.n, t, &f, x, of(&r, y, run)));
            CHECK_OK(backward(d, e.n, t, &f, x, add ? dy : of(&r, dx, run), of(&r, dx, run), add));
        }
        judge(&r);
        free(y_off);
        free(dx_off);
    }
}

/* ---- binary operations ---- */

/* Values away from 0, for divisions. */
static void *operand(runs *r, hvt_dtype t, size_t count, size_t real, size_t skew)
{
    void *x = input(r, t, count, real, 0, skew);

    for (size_t i = 0; i < real; i++)
        hvt__store(x, t, i, (between(0, 1) ? 1 : -1) * (1 + 0.5f * value()));
    return x;
}

typedef struct operands {
    hvt_binary_args k;
    size_t all, real, b_all, b_real, skew;
    hvt_dtype b_type;
} operands;

static operands random_operands(int number)
{
    matrix_shape m = random_matrix();
    const int pixels = between(0, 9) ? between(1, 30) : 1100, c = pixels > 500 ? between(1, 40) : m.c,
              n = c > 500 ? 2 : between(1, 4), real = between(0, 2) ? n : between(0, n);
    operands o = {.k = {.order = HVT_ORDER_NHW,
                        .type = m.t,
                        .n = n,
                        .real = real,
                        .pixels = pixels,
                        .c = c,
                        .op = (hvt_binary)(number % HVT_BINARIES),
                        .swapped = between(0, 1),
                        .across = (hvt_across)(number / HVT_BINARIES % 6),
                        .add_a = between(0, 1),
                        .add_b = between(0, 1)},
                  .all = (size_t)n * pixels * c,
                  .real = (size_t)real * pixels * c,
                  .skew = m.skew};

    if (o.k.across == HVT_PER_ELEMENT) {
        o.k.op = HVT_ADD;
        o.k.at.first = between(0, pixels - 1);
        o.k.at.count = between(1, pixels - o.k.at.first);
    }
    o.b_type = o.k.across < HVT_PER_CHANNEL ? m.t : HVT_F32;
    o.b_all = o.k.across == HVT_SAME          ? o.all
              : o.k.across == HVT_PER_IMAGE   ? (size_t)n * c
              : o.k.across == HVT_PER_PIXEL   ? (size_t)n * pixels
              : o.k.across == HVT_PER_CHANNEL ? (size_t)c
              : o.k.across == HVT_PER_ELEMENT ? (size_t)o.k.at.count * c
                                              : 1;
    o.b_real = o.k.across < HVT_PER_CHANNEL ? o.b_all / n * real : o.b_all;
    return o;
}

/* Does a number of b meet element i? */
static bool is_met(const operands *o, size_t i)
{
    const int pixel = (int)(i / (size_t)o->k.c % (size_t)o->k.pixels);

    return o->k.across != HVT_PER_ELEMENT ||
           (pixel >= o->k.at.first && pixel < o->k.at.first + o->k.at.count);
}

/* and which one */
static size_t meets(const operands *o, size_t i)
{
    const size_t c = (size_t)o->k.c;

    return o->k.across == HVT_SAME          ? i
           : o->k.across == HVT_PER_IMAGE   ? i / c / (size_t)o->k.pixels * c + i % c
           : o->k.across == HVT_PER_PIXEL   ? i / c
           : o->k.across == HVT_PER_CHANNEL ? i % c
           : o->k.across == HVT_PER_ELEMENT ? i % ((size_t)o->k.pixels * c) - (size_t)o->k.at.first * c
                                            : 0;
}

TEST(binary_operations_equal_ref)
{
    for (int k = 0; k < (IS_TSAN ? 40 : 120); k++) {
        runs r;
        operands o = random_operands(k);
        enum { BOTH, A_ALONE, B_ALONE } wanted = between(0, 5) < 4 ? BOTH : between(1, 2);
        const bool in_place = !o.k.add_a && between(0, 1);
        double *y_off = slacks(o.all), *da_off = slacks(o.all), *db_off = slacks(o.b_all);
        int y, da, db;
        const void *dy;

        begin(&r, "binary");
        o.k.a = operand(&r, o.k.type, o.all, o.real, o.skew);
        o.k.b = operand(&r, o.b_type, o.b_all, o.b_real, 4 * (size_t)between(0, 3));
        dy = input(&r, o.k.type, o.all, o.real, 0, o.skew);
        for (size_t i = 0; i < o.real; i++) {
            y_off[i] = near(4);
            da_off[i] = near(8);
            if (is_met(&o, i))
                db_off[meets(&o, i)] += FEW * 8;
        }
        for (size_t i = 0; i < o.b_all; i++)
            db_off[i] += near(1);
        y = output(&r, "y", o.k.type, o.all, o.real, NULL, y_off, o.skew);
        da = output(&r, "da", o.k.type, o.all, wanted == B_ALONE ? 0 : o.real,
                    in_place    ? dy
                    : o.k.add_a ? input(&r, o.k.type, o.all, o.real, 0, o.skew)
                                : NULL,
                    da_off, o.skew);
        db = output(&r, "db", o.b_type, o.b_all, wanted == A_ALONE ? 0 : o.b_real,
                    o.k.add_b ? input(&r, o.b_type, o.b_all, o.b_real, 0, 0) : NULL, db_off, 0);
        for (int run = 0; run < RUNS; run++) {
            hvt_binary_args a = o.k;

            a.y = of(&r, y, run);
            a.dy = in_place && wanted != B_ALONE ? of(&r, da, run) : dy;
            a.da = wanted == B_ALONE ? NULL : of(&r, da, run);
            a.db = wanted == A_ALONE ? NULL : of(&r, db, run);
            set_order(run);
            if (run) {
                CHECK_OK(hvt__binary_forward_cuda(&emulated, &a));
                CHECK_OK(hvt__binary_backward_cuda(&emulated, &a));
            } else {
                CHECK_OK(ref->ops->general.binary_forward(ref, &a));
                CHECK_OK(ref->ops->general.binary_backward(ref, &a));
            }
        }
        judge(&r);
        free(y_off);
        free(da_off);
        free(db_off);
    }
}

/* ---- moves ---- */

TEST(moves_and_transposes_equal_ref_bit_for_bit)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        const int unit = between(0, 1) ? 8 : 1, rows = between(1, 12), block = k % 2 ? 1 : between(1, 9);
        hvt_move_args a = {.order = HVT_ORDER_NHW,
                           .type = any_type(),
                           .n = between(1, 4),
                           .h = between(1, 6),
                           .w = between(1, 6),
                           .c = unit * between(1, 30),
                           .add = between(0, 1)};
        const size_t skew = between(0, 3) ? 0 : hvt_dtype_size(a.type) * (size_t)between(1, 7);
        hvt_box *box[2] = {&a.src, &a.dst};
        size_t all[2], n = (size_t)between(1, 9), turned = n * (size_t)(rows * a.c * block);
        const void *x;
        int to, y;

        for (int i = 0; i < 2; i++) {
            *box[i] = (hvt_box){.y = between(0, 2), .x = between(0, 2), .first = unit * between(0, 3)};
            box[i]->h = box[i]->y + a.h + between(0, 2);
            box[i]->w = box[i]->x + a.w + between(0, 2);
            box[i]->c = box[i]->first + a.c + unit * between(0, 3);
            all[i] = (size_t)a.n * box[i]->h * box[i]->w * box[i]->c;
        }
        begin(&r, "move and transpose");
        a.from = input(&r, a.type, all[0], all[0], 0, skew);
        to =
            output(&r, "box", a.type, all[1], all[1], input(&r, a.type, all[1], all[1], 0, skew), NULL, skew);
        x = input(&r, a.type, turned, turned, 0, skew);
        y = output(&r, "transposed", a.type, turned, turned,
                   a.add ? input(&r, a.type, turned, turned, 0, 0) : NULL, NULL, skew);
        for (int run = 0; run < RUNS; run++) {
            a.to = of(&r, to, run);
            set_order(run);
            if (run) {
                CHECK_OK(hvt__move_cuda(&emulated, &a));
                CHECK_OK(
                    hvt__transpose_cuda(&emulated, n, a.type, rows, a.c, block, x, of(&r, y, run), a.add));
            } else {
                CHECK_OK(ref->ops->general.move(ref, &a));
                CHECK_OK(
                    ref->ops->general.transpose(ref, n, a.type, rows, a.c, block, x, of(&r, y, run), a.add));
            }
        }
        judge(&r);
    }
}

/* ---- dropout ---- */

TEST(dropout_equals_ref_bit_for_bit)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        operands o = random_operands(k);
        hvt_dropout_args a = {.order = HVT_ORDER_NHW,
                              .type = o.k.type,
                              .n = o.k.n,
                              .real = o.k.real,
                              .pixels = o.k.pixels,
                              .c = o.k.c,
                              .what = (hvt_drop)(k % 3),
                              .least = between(-0x3fffffff, 0x3fffffff),
                              .scale = 1.25f,
                              .salt = draw(),
                              .add = between(0, 1)};
        uint64_t keys[4];
        int y;

        begin(&r, "dropout");
        for (int i = 0; i < 4; i++)
            keys[i] = draw();
        a.keys = keys;
        a.x = input(&r, a.type, o.all, o.real, 0, o.skew);
        y = output(&r, "y", a.type, o.all, o.real, a.add ? input(&r, a.type, o.all, o.real, 0, o.skew) : a.x,
                   NULL, o.skew);
        for (int run = 0; run < RUNS; run++) {
            hvt_dropout_args b = a;

            b.y = of(&r, y, run);
            b.x = a.add ? a.x : b.y; /* or in place */
            set_order(run);
            CHECK_OK(run ? hvt__dropout_cuda(&emulated, &b) : ref->ops->general.dropout(ref, &b));
        }
        judge(&r);
    }
}

/* ---- rotary embeddings ---- */

TEST(rotary_embeddings_equal_ref)
{
    static const int aparts[] = {1, 2, 4, 8, 16, 32, 3, 6, 12};

    for (int k = 0; k < (IS_TSAN ? 2 : 6) * (int)HVT_LEN(aparts); k++) {
        runs r;
        const int unit = between(0, 1) ? 8 : 1;
        hvt_rotary_args a = {.order = HVT_ORDER_NHW,
                             .type = any_type(),
                             .n = between(1, 4),
                             .pixels = between(0, 5) ? between(1, 30) : 300,
                             .first = between(0, 1) * unit * between(1, 9),
                             .vectors = between(1, 4),
                             .apart = aparts[k % (int)HVT_LEN(aparts)],
                             .add = between(0, 1)};
        const size_t skew = between(0, 3) ? 0 : hvt_dtype_size(a.type) * (size_t)between(1, 7);
        const bool in_place = !a.add && between(0, 1);
        size_t all, real, factors;
        double *off;
        int y;

        a.real = between(0, 2) ? a.n : between(0, a.n);
        a.width = 2 * a.apart * between(1, a.apart > 8 ? 3 : 8);
        a.c = a.first + a.vectors * a.width + between(0, 1) * unit * between(1, 20);
        all = (size_t)a.n * a.pixels * a.c;
        real = all / a.n * a.real;
        factors = (size_t)a.pixels * a.width;
        off = slacks(all);
        begin(&r, "rotary");
        a.own = input(&r, HVT_F32, factors, factors, 0, 4 * (size_t)(k % 5 == 0));
        a.other = input(&r, HVT_F32, factors, factors, 0, 0);
        a.x = input(&r, a.type, all, real, 0, skew);
        for (size_t i = 0; i < real; i++)
            off[i] = FEW;
        y = output(&r, "y", a.type, all, all,
                   in_place ? a.x
                   : a.add  ? input(&r, a.type, all, all, 0, skew)
                            : NULL,
                   off, skew);
        for (int run = 0; run < RUNS; run++) {
            hvt_rotary_args b = a;

            b.y = of(&r, y, run);
            b.x = in_place ? b.y : a.x;
            set_order(run);
            CHECK_OK(run ? hvt__rotary_cuda(&emulated, &b) : ref->ops->general.rotary(ref, &b));
        }
        judge(&r);
        free(off);
    }
}

int main(void)
{
    open_emulated();
    RUN(functions_and_their_slopes_equal_ref);
    RUN(binary_operations_equal_ref);
    RUN(moves_and_transposes_equal_ref_bit_for_bit);
    RUN(dropout_equals_ref_bit_for_bit);
    RUN(rotary_embeddings_equal_ref);
    return close_emulated();
}
