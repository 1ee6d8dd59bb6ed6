/*
 * Fused tensors of a host program: equal to sums of their own, whatever the buckets and the order in which
 * they become ready.
 */
#include "collectives.h"

enum { PIECES = 11, MOST = 300 };

/* Around a bucket of 64 f32: one less, as many, one more; empty ones; other types between. */
static const size_t counts[PIECES] = {63, 1, 64, 65, 0, 300, 7, 16, 0, 33, 1};
static const hvt_dtype dtypes_of[PIECES] = {HVT_F32, HVT_F32,  HVT_F32, HVT_F32, HVT_F32, HVT_F16,
                                            HVT_F16, HVT_BF16, HVT_F32, HVT_F64, HVT_F64};

typedef struct set {
    char data[PIECES][4 * MOST] __attribute__((aligned(8)));
    hvt_piece piece[PIECES];
} set;

static void fill_set(set *s, int step)
{
    static const char *const names[PIECES] = {"a", "b", "c", "d", NULL, "f", "g", "h", "i", "j", "k"};

    for (int i = 0; i < PIECES; i++) {
        s->piece[i] = (hvt_piece){names[i], s->data[i], counts[i], dtypes_of[i]};
        for (size_t k = 0; k < counts[i]; k++)
            put(dtypes_of[i], s->data[i], k, (double)leaf(rank, k, (uint64_t)(100 * step + i)));
    }
}

static void sum_set(set *s)
{
    for (int i = 0; i < PIECES; i++) {
        hvt_ticket t;

        if (dtypes_of[i] == HVT_F64) {
            CHECK_OK(hvt_allreduce(c, NULL, s->piece[i].data, counts[i], HVT_F64, HVT_SUM, NULL, NULL));
            continue;
        }
        CHECK_OK(hvt_comm_allreduce(c, s->piece[i].data, counts[i], dtypes_of[i], &t));
        CHECK_OK(hvt_comm_wait(c, t));
    }
}

TEST(fused_sums_equal_sums_of_their_own)
{
    static __thread set fused, own;
    const size_t buckets[] = {0, 1, 252, 256, 260, 1 << 20};
    const int want[] = {PIECES, 10, 10, 9, 9, 5};

    for (size_t i = 0; i < HVT_LEN(buckets); i++) {
        hvt_fuse *f = NULL;

        fill_set(&fused, 0);
        CHECK_OK(hvt_fuse_create(c, fused.piece, PIECES, buckets[i], HVT_SUM, &f));
        if (!f)
            return;
        CHECK(hvt_fuse_buckets(f) == want[i], "%d buckets of %zu bytes", hvt_fuse_buckets(f), buckets[i]);
        for (int step = 0; step < 4; step++) {
            fill_set(&fused, step);
            fill_set(&own, step);
            for (int k = 0; k < step * 3; k++) /* some are ready early, on each rank in another order */
                CHECK_OK(hvt_fuse_ready(f, (k * (rank % 2 ? 4 : 2) + rank) % PIECES));
            CHECK_OK(hvt_fuse_exchange(f));
            sum_set(&own);
            CHECK(!memcmp(fused.data, own.data, sizeof own.data), "step %d, buckets of %zu bytes", step,
                  buckets[i]);
        }
        hvt_fuse_free(&f);
        CHECK(!f, "free leaves NULL");
    }
}

TEST(fused_means_are_means)
{
    float x[100];
    uint16_t h[3];
    double y[2] = {rank + 1e-12, 0};
    hvt_piece piece[] = {{"x", x, 100, HVT_F32}, {"h", h, 3, HVT_F16}, {"y", y, 2, HVT_F64}};
    hvt_fuse *f = NULL;

    CHECK_OK(hvt_fuse_create(c, piece, 3, 1000, HVT_AVERAGE, &f));
    for (int i = 0; i < 100; i++)
        x[i] = (float)(rank * 3 + i);
    put(HVT_F16, h, 0, 60000); /* whose sum would overflow */
    put(HVT_F16, h, 1, 8 * rank);
    put(HVT_F16, h, 2, 0);
    CHECK_OK(hvt_fuse_exchange(f));
    for (int i = 0; i < 100; i++) {
        float want = (float)((double)(3 * size * (size - 1) / 2 + size * i) * (1.0 / size));

        CHECK(x[i] == want, "%d: %.9g, not %.9g", i, (double)x[i], (double)want);
    }
    CHECK(fabs(get(HVT_F16, h, 0) - 60000) < 100, "%g", get(HVT_F16, h, 0));
    CHECK(fabs(get(HVT_F16, h, 1) - 4 * (size - 1)) < 0.05, "%g", get(HVT_F16, h, 1));
    CHECK(fabs(y[0] - (size - 1) / 2.0 - 1e-12) < 1e-14 && y[1] == 0, "%.17g %g", y[0], y[1]);
    hvt_fuse_free(&f);
}

/* Values that 16 bits hold, as do their sums: the type of the wire shows in nothing but 1/3. */
TEST(f32_is_sent_in_16_bits)
{
    const hvt_dtype wires[] = {HVT_F16, HVT_BF16};
    float x[3], third;
    hvt_fuse *f = NULL;

    for (size_t i = 0; i < HVT_LEN(wires); i++) {
        hvt_piece piece = {"x", x, 3, HVT_F32, wires[i]};

        x[0] = (float)rank, x[1] = -2, x[2] = rank ? 0 : 1.0f / 3;
        third = (float)rounded(wires[i], 1.0 / 3);
        CHECK_OK(hvt_fuse_create(c, &piece, 1, 1000, HVT_SUM, &f));
        CHECK_OK(hvt_fuse_exchange(f));
        CHECK(x[0] == (float)(size * (size - 1) / 2) && x[1] == (float)(-2 * size) && x[2] == third,
              "%s: %g %g %.9g", hvt_dtype_name(wires[i]), (double)x[0], (double)x[1], (double)x[2]);
        hvt_fuse_free(&f);
    }
}

TEST(tensors_may_move_and_be_absent)
{
    float there[2][3] = {{0}, {0}};
    hvt_piece piece[] = {{"a", NULL, 3, HVT_F32}, {"b", there[0], 3, HVT_F32}};
    hvt_fuse *f = NULL;

    CHECK_OK(hvt_fuse_create(c, piece, 2, 8, HVT_SUM, &f));
    for (int step = 0; step < 3; step++) {
        float a[3] = {(float)rank, 1, 2}, *at = there[step % 2];

        at[0] = at[1] = at[2] = (float)step;
        CHECK_OK(hvt_fuse_ready_at(f, 1, at));
        CHECK_OK(hvt_fuse_ready_at(f, 0, rank ? a : NULL)); /* rank 0 has none */
        CHECK_OK(hvt_fuse_exchange(f));
        for (int i = 0; i < 3; i++)
            CHECK(at[i] == (float)(step * size), "step %d: %g", step, (double)at[i]);
        CHECK(a[1] == (float)(rank ? size - 1 : 1), "step %d: %g", step, (double)a[1]);
    }
    hvt_fuse_free(&f);
}

/* Rank r has r steps; then every rank has one more. */
TEST(ranks_without_batches_join)
{
    const hvt_dtype ends[] = {HVT_F32, HVT_F16, HVT_F64};
    double y[2] = {0};
    float x[3] = {0};

    for (size_t k = 0; k < HVT_LEN(ends); k++) {
        hvt_piece piece[] = {{"x", x, 3, HVT_F32}, {"y", y, ends[k] == HVT_F64 ? 2 : 4, ends[k]}};
        hvt_fuse *f = NULL;
        int last = -1;

        CHECK_OK(hvt_fuse_create(c, piece, 2, 8, HVT_AVERAGE, &f));
        for (int step = 0; step < rank; step++) {
            x[0] = x[1] = x[2] = (float)size;
            memset(y, 0, sizeof y);
            CHECK_OK(hvt_fuse_exchange(f));
            CHECK(fabsf(x[1] - (float)(size - 1 - step)) < 1e-5f, "step %d: %g", step, (double)x[1]);
        }
        x[1] = 7;
        CHECK_OK(hvt_fuse_join(f, &last));
        CHECK(last == size - 1 && x[1] == 7, "last %d, x %g", last, (double)x[1]);
        x[1] = (float)rank;
        CHECK_OK(hvt_fuse_ready(f, 1));
        CHECK_FAILS(hvt_fuse_join(f, NULL), E_ARG, "end the step (exchange) before joining");
        CHECK_OK(hvt_fuse_exchange(f));
        CHECK(fabsf(x[1] - (float)(size - 1) / 2) < 1e-5f, "%g", (double)x[1]);
        CHECK_OK(hvt_fuse_join(f, NULL));
        hvt_fuse_free(&f);
    }
}

TEST(what_cannot_be_fused_is_told)
{
    static __thread set s;
    hvt_fuse *f = NULL;

    fill_set(&s, 0);
    s.piece[3].dtype = HVT_I64;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_ARG, "tensor 3 (d) is i64");
    s.piece[3].dtype = HVT_F32;
    s.piece[6].wire = HVT_BF16;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_ARG,
                "tensor 6 (g) is f16, and its wire bf16; f32 can be sent");
    s.piece[6].wire = HVT_F32;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_MAX, &f), E_ARG, "a sum or an average");
    CHECK_FAILS(hvt_fuse_create(c, s.piece, 0, 0, HVT_SUM, &f), E_ARG, "0 tensors");
    s.piece[6].name = "b";
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_ARG,
                "tensors 1 and 6 are both called b");
    s.piece[6].name = NULL;
    s.piece[6].data = s.piece[3].data;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_ARG,
                "tensors 3 (d) and 6 (no name) have the same address");
    s.piece[6].data = s.data[6];
    CHECK_OK(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f));
    CHECK_FAILS(hvt_fuse_ready(f, PIECES), E_ARG, "is not one of");
    CHECK_OK(hvt_fuse_ready(f, 2));
    CHECK_FAILS(hvt_fuse_ready(f, 2), E_ARG, "already");
    CHECK_OK(hvt_fuse_exchange(f));
    hvt_fuse_free(&f);
    if (size == 1)
        return;
    s.piece[2].count -= rank == 1;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_MISMATCH,
                "fused tensor c differs: \"[64] f32\"");
    CHECK(strstr(hvt_last_error(), "\"[63] f32\" on rank 1 ("), "%s", hvt_last_error());
    s.piece[2].count = counts[2];
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, rank == 1 ? 8 : 4, HVT_SUM, &f), E_MISMATCH,
                "size of fused buckets differs");
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 4, rank == 1 ? HVT_SUM : HVT_AVERAGE, &f), E_MISMATCH,
                "reduction of fused tensors differs");
    CHECK(!f && hvt_last_error_is_agreed(), "something was made");
}

static void truths(void)
{
    RUN(fused_sums_equal_sums_of_their_own);
    RUN(fused_means_are_means);
    RUN(f32_is_sent_in_16_bits);
    RUN(tensors_may_move_and_be_absent);
    RUN(ranks_without_batches_join);
    RUN(what_cannot_be_fused_is_told);
}

int main(void)
{
    return on_every_comm(truths);
}
