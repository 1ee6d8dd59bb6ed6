/*
 * Fused tensors of a host program: equal to sums of their own, whatever the buckets and the order in which
 * they become ready.
 */
#include "collectives.h"

enum { PIECES = 9, MOST = 300 };

/* Around a bucket of 64 f32: one less, as many, one more; empty ones; other types between. */
static const size_t counts[PIECES] = {63, 1, 64, 65, 0, 300, 7, 16, 0};
static const hvt_dtype dtypes_of[PIECES] = {HVT_F32, HVT_F32, HVT_F32,  HVT_F32, HVT_F32,
                                            HVT_F16, HVT_F16, HVT_BF16, HVT_F32};

typedef struct set {
    char data[PIECES][4 * MOST];
    hvt_piece piece[PIECES];
} set;

static void fill_set(set *s, int step)
{
    static const char *const names[PIECES] = {"a", "b", "c", "d", NULL, "f", "g", "h", "i"};

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

        CHECK_OK(hvt_comm_allreduce(c, s->piece[i].data, counts[i], dtypes_of[i], &t));
        CHECK_OK(hvt_comm_wait(c, t));
    }
}

TEST(fused_sums_equal_sums_of_their_own)
{
    static set fused, own;
    const size_t buckets[] = {0, 1, 252, 256, 260, 1 << 20};
    const int want[] = {PIECES, 8, 8, 7, 7, 4};

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
    hvt_piece piece[] = {{"x", x, 100, HVT_F32}, {"h", h, 3, HVT_F16}};
    hvt_fuse *f = NULL;

    CHECK_OK(hvt_fuse_create(c, piece, 2, 1000, HVT_AVERAGE, &f));
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
    hvt_fuse_free(&f);
}

TEST(what_cannot_be_fused_is_told)
{
    static set s;
    hvt_fuse *f = NULL;

    fill_set(&s, 0);
    s.piece[3].dtype = HVT_I64;
    CHECK_FAILS(hvt_fuse_create(c, s.piece, PIECES, 0, HVT_SUM, &f), E_ARG, "tensor 3 (d) is i64");
    s.piece[3].dtype = HVT_F32;
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
    RUN(what_cannot_be_fused_is_told);
}

int main(void)
{
    return on_every_comm(truths);
}
