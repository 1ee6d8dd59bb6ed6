/*
 * The cpu device's convolutions in every type, on every instruction set of this processor, against a loop in
 * double over one output element. The bound is 1e-5 of the sum of absolute products, plus the rounding of the
 * result to its type; x, dy and w are values of the type. Every buffer has exactly the requested size, with a
 * guard page right after or right before it (heap.h), weights and gradients start at an address that is only
 * 32-byte aligned, and what must not be read is NaN.
 *
 * Kernels for AVX-512, AVX512_BF16 and AMX run on every machine, too: their unchanged source, compiled
 * against tests/emulated/immintrin.h, adds three sets to this program, except in a build with -Disa=native.
 */
#include "conv_oracle.h"

TEST(random_shapes_equal_the_loop_in_double)
{
    static const int channels[] = {1, 2, 3, 4, 5, 8, 10, 13, 16, 17, 24, 31, 32, 33, 37, 48, 64, 70};
    int done = 0;

    draws = 1;
    while (done < cases(CHECK_EMULATED ? 45 : CHECK_SANITIZED ? 90 : 450) && !check_now) {
        hvt_conv_desc d = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .type = (hvt_dtype)(done % 3   ? HVT_F32
                                               : done % 2 ? HVT_F16
                                                          : HVT_BF16),
                           .n = between(1, 3) == 1 ? between(1, 8) : between(1, 40),
                           .h = between(1, 9),
                           .w = between(1, 11),
                           .c = channels[between(0, HVT_LEN(channels) - 1)],
                           .k = channels[between(0, HVT_LEN(channels) - 1)],
                           .r = between(1, 4),
                           .s = between(1, 4),
                           .no_dx = between(0, 9) == 0};
        int stride = between(1, 3), pad = between(0, 3);

        if (between(0, 3) == 0)
            d.r = d.s = 1, pad = 0;
        if (between(0, 9) == 0)
            d.r = d.s = 7, pad = 3;
        set_even(&d, stride, pad);
        if (!fits(&d) || products(&d) > (heap_memcheck() ? 2e5 : 2e6))
            continue;
        check_case(d, between(0, 2) ? d.n : between(0, d.n), 0);
        done++;
    }
}

/* 3x3, stride 1, with channels enough for Winograd's tiles of both sizes, and by definition. */
TEST(tiles_of_3x3_equal_the_loop_in_double)
{
    int done = 0;

    draws = 7;
    while (done < cases(CHECK_EMULATED ? 12 : CHECK_SANITIZED ? 30 : 150) && !check_now) {
        hvt_conv_desc d = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .type = (hvt_dtype)(done % 5 ? HVT_F32 : between(1, 2)),
                           .n = between(1, 3) == 1 ? between(1, 20) : between(1, 5),
                           .h = between(2, 16),
                           .w = between(2, 16),
                           .c = between(16, between(0, 1) ? 20 : 70),
                           .k = between(16, between(0, 1) ? 20 : 70),
                           .r = 3,
                           .s = 3};

        set_even(&d, 1, between(0, 2));
        if (!fits(&d) || products(&d) > (CHECK_EMULATED || heap_memcheck() ? 4e5 : 3e6))
            continue;
        set_tile((int[]){4, 2, 4, 1}[done % 4]);
        check_case(d, between(0, 2) ? d.n : between(0, d.n), products(&d) > 1e6 ? 2000 : 0);
        done++;
    }
    set_tile(0);
}

/* What PyTorch's Conv2d can be asked for: rectangles, uneven padding, dilation, groups. */
static hvt_conv_desc random_general(void)
{
    static const int channels[] = {1, 3, 16, 24, 33, 64},
                     windows[][2] = {{1, 7}, {7, 1}, {1, 1}, {3, 3}, {5, 5}};
    hvt_conv_desc d = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                       .type = (hvt_dtype)between(0, TYPES - 1),
                       .n = between(1, 3) == 1 ? between(1, 20) : between(1, 6),
                       .h = between(1, 12),
                       .w = between(1, 12),
                       .c = channels[between(0, HVT_LEN(channels) - 1)],
                       .r = between(1, 7),
                       .s = between(1, 7),
                       .stride_h = between(1, 3),
                       .stride_w = between(1, 3),
                       .top = between(0, 3),
                       .left = between(0, 3),
                       .bottom = between(0, 3),
                       .right = between(0, 3),
                       .dilation_h = between(1, 3),
                       .dilation_w = between(1, 3),
                       .no_dx = between(0, 9) == 0};
    const int groups[] = {1, 2, 3, d.c};

    if (between(0, 1)) {
        const int *window = windows[between(0, HVT_LEN(windows) - 1)];

        d.r = window[0], d.s = window[1];
    }
    if (d.r * d.s == 1 && between(0, 1)) { /* pixels are computed as images in NHW order */
        d.stride_h = d.stride_w = 1;
        d.top = d.left = d.bottom = d.right = 0;
    }
    do
        d.groups = groups[between(0, 3)];
    while (d.c % d.groups);
    d.k = d.groups == d.c && between(0, 1) ? d.c
                                           : d.groups * between(1, between(0, 1)       ? 3
                                                                   : 70 / d.groups > 3 ? 70 / d.groups
                                                                                       : 3);
    return d;
}

TEST(rectangles_dilation_and_groups_equal_the_loop_in_double)
{
    int done = 0;

    draws = 11;
    while (done < cases(CHECK_EMULATED ? 60 : CHECK_SANITIZED ? 120 : 600) && !check_now) {
        hvt_conv_desc d = random_general();

        if (!fits(&d) || products(&d) > (heap_memcheck() ? 1e5 : 5e5))
            continue;
        check_case(d, between(0, 2) ? d.n : between(0, d.n), 300);
        done++;
    }
}

/* What a model's first layer reads: the taps of a row become channels. */
TEST(images_of_few_channels_equal_the_loop_in_double)
{
    int done = 0;

    draws = 12;
    while (done < cases(CHECK_EMULATED ? 20 : CHECK_SANITIZED ? 40 : 200) && !check_now) {
        hvt_conv_desc d = random_general();

        d.c = between(1, 4);
        d.k = between(9, 70);
        d.groups = 1;
        d.no_dx = true;
        if (!fits(&d) || products(&d) > (heap_memcheck() ? 1e5 : 5e5))
            continue;
        check_case(d, between(0, 2) ? d.n : between(0, d.n), 300);
        done++;
    }
}

/* Root of the mean square of y's, dx's and dw's errors, each as a part of its sum of absolute products. */
static void errors(hvt_device *dev, const conv_case *c, double ret[3])
{
    const hvt_conv_desc *d = &c->d;
    conv_result got = run(dev, c);
    const int samples = 3000;
    double sum[3] = {0};

    for (int i = 0; i < samples; i++) {
        int n = between(0, d->n - 1), h = between(0, d->h - 1), w = between(0, d->w - 1);
        int ch = between(0, d->c - 1), k = between(0, d->k - 1), r = between(0, 2), s = between(0, 2);
        exact want[3] = {exact_y(c, n, h, w, k), exact_dx(c, n, h, w, ch), exact_dw(c, k, ch, r, s)};
        float is[3] = {y_at(c, got.y, n, h, w)[k], x_at(c, got.dx, n, h, w)[ch],
                       got.dw[(((size_t)k * d->c + ch) * 3 + r) * 3 + s]};

        for (int j = 0; j < 3; j++) {
            double e = (is[j] - want[j].sum) / want[j].size;

            sum[j] += e * e;
        }
    }
    for (int j = 0; j < 3; j++)
        ret[j] = sqrt(sum[j] / samples);
    free_result(&got);
}

/* What winograd.c says of its rounding. TF32 keeps 11 bits of each factor. */
TEST(winograd_rounds_as_its_file_says)
{
    static const char *const what[] = {"y", "dx", "dw"};
    static const int channels[] = {16, 64, 256};
    static const double most[2][3] = {{1.5, 1.5, 1.5}, {4, 4, 7}}; /* F(2x2), F(4x4): of direct's error */

    if (CHECK_EMULATED)
        SKIP("it takes minutes under emulation");
    draws = 8;
    for (size_t i = 0; i < (heap_memcheck() ? 1 : HVT_LEN(channels)); i++) {
        hvt_conv_desc d = {
            .n = 2, .h = 8, .w = 8, .c = channels[i], .k = channels[i], .r = 3, .s = 3, HVT_CONV_EVEN(1, 1)};
        conv_case c = make_case(d, d.n);

        for (int set = 0; set < isas; set++) {
            double direct[3], winograd[3];

            if (!takes(set, &d))
                continue;
            set_tile(1);
            errors(&devices[set][0], &c, direct);
            for (int tile = 2; tile <= 4; tile += 2) {
                set_tile(tile);
                errors(&devices[set][0], &c, winograd);
                for (int j = 0; j < 3; j++)
                    CHECK(winograd[j] < most[tile / 2 - 1][j] * direct[j] && winograd[j] != direct[j] &&
                              winograd[j] < 0x1p-11 / 100,
                          "%s, %d channels, tile %d, %s: error %g, by definition %g", devices[set][0].isa,
                          channels[i], tile, what[j], winograd[j], direct[j]);
            }
        }
        free_case(&c);
    }
    set_tile(0);
}

/* Every algorithm, with more threads than jobs and than cores. */
TEST(sixty_four_threads_give_the_bits_of_one)
{
    static const struct {
        int tile;
        hvt_conv_desc d;
    } shapes[] = {
        {4, {HVT_ORDER_HWN, HVT_F32, 16, 16, 16, 32, 32, 48, 3, 3, HVT_CONV_EVEN(1, 1)}},
        {4, {HVT_ORDER_NHW, HVT_F32, 3, 17, 14, 64, 64, 70, 3, 3, HVT_CONV_EVEN(1, 1)}},
        /* backward weights: 33 blocks in 8 parts, 7 blocks in one */
        {4, {HVT_ORDER_HWN, HVT_F32, 232, 16, 16, 16, 16, 24, 3, 3, HVT_CONV_EVEN(1, 1)}},
        {4, {HVT_ORDER_HWN, HVT_BF16, 100, 8, 8, 128, 128, 128, 3, 3, HVT_CONV_EVEN(1, 1)}},
        {2, {HVT_ORDER_HWN, HVT_F32, 16, 16, 16, 32, 32, 48, 3, 3, HVT_CONV_EVEN(1, 1)}},
        /* direct: units of several parts together */
        {4, {HVT_ORDER_HWN, HVT_F32, 96, 32, 32, 16, 16, 40, 3, 3, HVT_CONV_EVEN(2, 1)}},
        {4, {HVT_ORDER_HWN, HVT_BF16, 96, 32, 32, 16, 16, 40, 3, 3, HVT_CONV_EVEN(2, 1)}},
        {1, {HVT_ORDER_HWN, HVT_F32, 16, 16, 16, 32, 32, 48, 3, 3, HVT_CONV_EVEN(1, 1)}},
        {4, {HVT_ORDER_HWN, HVT_F32, 16, 16, 16, 3, 3, 64, 7, 7, HVT_CONV_EVEN(2, 3), .no_dx = true}},
        {4, {HVT_ORDER_HWN, HVT_F32, 32, 8, 8, 64, 64, 96, 1, 1, HVT_CONV_EVEN(1, 0)}},
        {4, {HVT_ORDER_HWN, HVT_BF16, 32, 8, 8, 16, 16, 16, 3, 3, HVT_CONV_EVEN(1, 1)}},
        {4, {HVT_ORDER_HWN, HVT_BF16, 32, 8, 8, 64, 64, 96, 3, 3, HVT_CONV_EVEN(2, 1)}},
    };
    hvt_thread_pool *pool = NULL;
    hvt_cpu many;
    hvt_device dev;

    if (CHECK_EMULATED || heap_memcheck())
        SKIP("64 threads take minutes there");
    many = cpus[isas - EMULATED_SETS - 1][0];
    for (int threads = 7; threads <= 64; threads += 57) {
        CHECK_OK(hvt__thread_pool_open(threads, NULL, 0, true, &pool));
        many.pool = pool;
        dev = (hvt_device){.ops = &cpu_ops, .state = &many, .isa = many.isa->name, .threads = threads};
        for (size_t i = 0; i < HVT_LEN(shapes); i++) {
            conv_case c = make_case(shapes[i].d, shapes[i].d.n);
            conv_result alone, got;

            set_tile(shapes[i].tile);
            dev.conv_tile = shapes[i].tile;
            alone = run(&devices[isas - EMULATED_SETS - 1][0], &c);
            got = run(&dev, &c);
            CHECK(same_bits(&c, &alone, &got), "shape %zu: %d threads give other bits than one", i, threads);
            free_result(&alone);
            free_result(&got);
            free_case(&c);
        }
        hvt__thread_pool_close(&pool);
    }
    set_tile(0);
}

/* Odd channels, odd batches: what fills no pair, no vector and no tile. */
TEST(bf16_of_odd_sizes_equals_the_loop_in_double)
{
    int done = 0;

    draws = 6;
    while (done < cases(CHECK_EMULATED ? 30 : 90) && !check_now) {
        hvt_conv_desc d = {.order = between(0, 3) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .type = HVT_BF16,
                           .n = between(1, 67),
                           .h = between(1, 5),
                           .w = between(1, 5),
                           .c = between(1, between(0, 1) ? 130 : 40),
                           .k = between(1, between(0, 1) ? 130 : 40),
                           .r = between(1, 3),
                           .s = between(1, 3)};

        set_even(&d, between(1, 2), between(0, 1));
        if (!fits(&d) || products(&d) > most_emulated)
            continue;
        check_case(d, between(0, 2) ? d.n : between(0, d.n), 400);
        done++;
    }
    most_emulated = heap_memcheck() ? most_emulated : 1e8; /* two blocks, and two chunks of images in each */
    check_case((hvt_conv_desc)EVEN(HVT_ORDER_HWN, HVT_BF16, 67, 2, 64, 66, 65, 1, 1, 1, 0, false), 67,
               heap_memcheck() ? 4 : 200);
    most_emulated = CHECK_SANITIZED ? 1e5 : 4e5;
}

/* Shapes that need several blocks, several chunks of images, a ring that wraps, many panels. */
static const hvt_conv_desc large[] = {
    EVEN(HVT_ORDER_HWN, HVT_F32, 64, 16, 16, 64, 64, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 64, 16, 16, 64, 64, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 128, 32, 32, 16, 16, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 128, 32, 32, 16, 32, 3, 3, 2, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 64, 32, 32, 3, 64, 7, 7, 2, 3, true),
    EVEN(HVT_ORDER_NHW, HVT_F32, 3, 61, 67, 3, 64, 7, 7, 2, 3, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 2, 33, 31, 40, 72, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 1, 33, 31, 40, 72, 3, 3, 2, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 64, 8, 8, 256, 512, 1, 1, 2, 0, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 64, 8, 8, 256, 200, 1, 1, 1, 0, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 256, 2, 2, 512, 512, 3, 3, 2, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 256, 1, 1, 2048, 10, 1, 1, 1, 0, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 256, 1, 1, 512, 1000, 1, 1, 1, 0, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 2, 1, 1, 16, 16, 1, 1, 1, 1, false), /* one pixel in, more than one out */
    EVEN(HVT_ORDER_NHW, HVT_F32, 2, 1, 1, 16, 16, 1, 2, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 75, 30, 29, 37, 13, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 40, 17, 2, 5, 9, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 65, 9, 2, 70, 16, 3, 3, 1, 1, false),
    /* backward weights in several parts, with columns past the last panel */
    EVEN(HVT_ORDER_HWN, HVT_F32, 64, 16, 16, 48, 40, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_NHW, HVT_F32, 9, 31, 30, 20, 72, 3, 3, 1, 1, false),
    EVEN(HVT_ORDER_HWN, HVT_F32, 96, 12, 12, 24, 40, 3, 3, 2, 1, false),
};

/* Slices of channels and of images, and backward weights in several parts: c, filters of a channel, h, w,
 * window, stride, images. */
static const int large_depthwise[][7] = {{144, 1, 17, 18, 3, 1, 33},
                                         {70, 2, 15, 14, 5, 2, 40},
                                         {40, 1, 56, 55, 3, 2, 3},
                                         {40, 1, 12, 50, 2, 11, 5},
                                         {300, 1, 13, 13, 7, 1, 64}};

TEST(large_depthwise_shapes_equal_the_loop_in_double)
{
    for (size_t i = 0; i < 2 * HVT_LEN(large_depthwise); i++) {
        const int *l = large_depthwise[i / 2];
        hvt_conv_desc d = {.order = i % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .n = l[6],
                           .h = l[2],
                           .w = l[3],
                           .c = l[0],
                           .k = l[0] * l[1],
                           .r = l[4],
                           .s = l[4]};

        set_even(&d, l[5], l[4] / 2);
        d.groups = d.c;
        if (products(&d) > (heap_memcheck() || CHECK_EMULATED ? 4e6 : CHECK_SANITIZED ? 2e7 : 1e12))
            continue;
        check_case(d, d.n, 60);
        d.type = i % 4 < 2 ? HVT_F16 : HVT_BF16;
        check_case(d, d.n * 5 / 8, 60);
    }
}

TEST(large_shapes_equal_the_loop_in_double)
{
    for (size_t i = 0; i < HVT_LEN(large); i++) {
        hvt_conv_desc d = large[i];

        if (products(&d) > (heap_memcheck() ? 3e6 : CHECK_EMULATED ? 3e7 : CHECK_SANITIZED ? 2e8 : 1e12))
            continue;
        check_case(d, d.n, 60);
        if (!CHECK_SANITIZED)
            check_case(d, d.n * 5 / 8, 60);
        d.type = i % 2 ? HVT_F16 : HVT_BF16;
        check_case(d, d.n * 5 / 8, 60);
    }
}

TEST(the_reference_agrees)
{
    draws = 3;
    for (int i = 0; i < cases(24); i++) {
        hvt_conv_desc d = {.order = i % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .type = (hvt_dtype)(i % TYPES),
                           .n = between(1, 20),
                           .h = between(3, 8),
                           .w = between(3, 8),
                           .c = between(1, 40),
                           .k = between(1, 40),
                           .r = 3,
                           .s = 3};
        conv_case c;
        conv_result r;

        set_even(&d, between(1, 2), 1);
        if (i % 3) /* as general as it gets */
            do
                d = random_general();
            while (!fits(&d) || products(&d) > 1e6);
        c = make_case(d, d.n - (d.n > 1 && i % 2));
        r = run(ref, &c);

        check_result(&c, &r, 0);
        free_result(&r);
        free_case(&c);
    }
}

TEST(an_image_does_not_notice_its_batch)
{
    draws = 4;
    for (int i = 0; i < isas; i++)
        for (int trial = 0; trial < cases(40); trial++) {
            hvt_conv_desc d = {.order = trial % 2 ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                               .type = (hvt_dtype)(trial % TYPES),
                               .n = between(1, 37),
                               .h = between(2, 9),
                               .w = between(2, 9),
                               .c = between(1, 40),
                               .k = between(1, 70),
                               .r = trial % 4 < 2 ? 3 : 1,
                               .s = trial % 4 < 2 ? 3 : 1};
            conv_case a, b;
            conv_result ra, rb;
            int from = between(0, d.n - 1), to;

            set_even(&d, between(1, 2), trial % 4 < 2);
            if (!takes(i, &d))
                continue;
            a = make_case(d, d.n);
            ra = run(&devices[i][0], &a);
            d.n = between(1, 37);
            b = make_case(d, between(1, d.n));
            to = between(0, b.real - 1);
            memcpy(b.w, a.w, a.nw * sizeof(float));
            for (int h = 0; h < d.h; h++)
                for (int w = 0; w < d.w; w++)
                    memcpy(x_at(&b, b.x, to, h, w), x_at(&a, a.x, from, h, w), sizeof(float) * d.c);
            rb = run(&devices[i][0], &b);
            for (int p = 0; p < a.p; p++)
                for (int q = 0; q < a.q; q++)
                    CHECK(!memcmp(y_at(&a, ra.y, from, p, q), y_at(&b, rb.y, to, p, q), sizeof(float) * d.k),
                          "%s: image %d of %d and image %d of %d (%d real) differ at %d,%d",
                          devices[i][0].isa, from, a.d.n, to, d.n, b.real, p, q);
            free_result(&ra);
            free_result(&rb);
            free_case(&a);
            free_case(&b);
        }
}

TEST(permute_returns_what_it_took_and_pads_with_zeros)
{
    static const int shapes[][4] = {
        {1, 1, 1, 1}, {10, 3, 3, 3}, {32, 5, 1, 7}, {33, 32, 3, 1}, {70, 37, 2, 3}};

    draws = 5;
    for (int i = 0; i < isas; i++)
        for (size_t j = 0; j < HVT_LEN(shapes); j++) {
            hvt_conv_desc d = {.order = HVT_ORDER_HWN,
                               .n = 2,
                               .h = 7,
                               .w = 7,
                               .c = shapes[j][1],
                               .cx = shapes[j][1],
                               .k = shapes[j][0],
                               .r = shapes[j][2],
                               .s = shapes[j][3],
                               HVT_CONV_EVEN(1, 0)};
            size_t count = (size_t)d.k * d.c * d.r * d.s, weights = 0, ws, filled = 0;
            float *file = exactly(count), *back = exactly(count), *mine;
            hvt_op *op = NULL;

            for (size_t n = 0; n < count; n++)
                file[n] = 2 + value();
            CHECK_OK(hvt__conv_plan_cpu(&devices[i][0], &d, &op, &weights, &ws));
            mine = exactly(weights);
            memset(mine, 0xff, weights * sizeof *mine);
            hvt__conv_permute_cpu(op, false, mine, file);
            hvt__conv_permute_cpu(op, true, mine, back);
            CHECK(!memcmp(file, back, count * sizeof *file), "%d filters changed on the way", d.k);
            for (size_t n = 0; n < weights; n++) {
                CHECK(mine[n] == 0 || mine[n] >= 1, "padding holds %g", mine[n]);
                filled += mine[n] != 0;
            }
            CHECK(filled == count, "%zu of %zu places are filled, not %zu", filled, weights, count);
            hvt__op_free(op);
            free(file);
            free(back);
            free(mine);
        }
}

TEST(impossible_convolutions_are_refused)
{
    const hvt_conv_desc good = EVEN(HVT_ORDER_HWN, HVT_F32, 2, 5, 5, 4, 8, 3, 3, 1, 1, false);
    hvt_device *dev = &devices[0][0];
    size_t weights = 123, ws = 123;
    hvt_conv_desc bad;
    hvt_op *op = NULL;

    bad = good, bad.type = HVT_I32;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_UNSUPPORTED, "i32");
    bad = good, bad.cx = 8;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_UNSUPPORTED, "4 channels stored as 8");
    bad = good, bad.n = 0;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "0 images");
    bad = good, bad.stride_w = 0;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "stride 1x0");
    bad = good, bad.dilation_h = 0;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "dilation 0x1");
    bad = good, bad.bottom = -1;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "-1 below");
    bad = good, bad.groups = 3;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE,
                "4 channels by 8 filters in 3 groups");
    bad = good, bad.dilation_w = 4;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "dilation 1x4, does not fit");
    bad = good, bad.r = 9;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "9x3");
    bad = good, bad.h = bad.w = 1 << 20;
    CHECK_FAILS(hvt__conv_plan_cpu(dev, &bad, &op, &weights, &ws), E_SHAPE, "too large");
    CHECK(!op && weights == 123 && ws == 123, "a failed plan wrote results");
}

static void add_set(const hvt_isa *isa)
{
    for (int t = 0; t < MOST_THREADS; t++) {
        cpus[isas][t].isa = isa;
        CHECK_OK(hvt__thread_pool_open(t + 1, NULL, 0, true, &cpus[isas][t].pool));
        devices[isas][t] =
            (hvt_device){.ops = &cpu_ops, .state = &cpus[isas][t], .isa = isa->name, .threads = t + 1};
    }
    isas++;
}

int main(void)
{
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        if (hvt_cpu_isa_supported(i))
            add_set(hvt__isas[i]);
        else
            check_skip(hvt_cpu_isa_name(i), "this processor does not have it");
    for (int i = 0; i < EMULATED_SETS; i++) {
        emulated[i].el = cpus[0][0].isa->el;
        add_set(&emulated[i]);
    }
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    RUN(random_shapes_equal_the_loop_in_double);
    RUN(tiles_of_3x3_equal_the_loop_in_double);
    RUN(rectangles_dilation_and_groups_equal_the_loop_in_double);
    RUN(images_of_few_channels_equal_the_loop_in_double);
    RUN(winograd_rounds_as_its_file_says);
    RUN(sixty_four_threads_give_the_bits_of_one);
    RUN(bf16_of_odd_sizes_equals_the_loop_in_double);
    RUN(large_shapes_equal_the_loop_in_double);
    RUN(large_depthwise_shapes_equal_the_loop_in_double);
    RUN(the_reference_agrees);
    RUN(an_image_does_not_notice_its_batch);
    RUN(permute_returns_what_it_took_and_pads_with_zeros);
    RUN(impossible_convolutions_are_refused);
    for (int i = 0; i < isas; i++)
        for (int t = 0; t < MOST_THREADS; t++)
            hvt__thread_pool_close(&cpus[i][t].pool);
    hvt_device_close(&ref);
    return check_done();
}
