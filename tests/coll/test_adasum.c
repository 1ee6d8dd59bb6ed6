/*
 * Adasum, on every comm of hosts, against plain loops over the vectors of all ranks.
 */
#include "coll/coll.h"
#include "collectives.h"
#include "heap.h"

enum { CHUNK = 1 << 14 }; /* adasum.c's: elements of a tensor that one rank sums */

/* Element i of vector v. Vectors have a common part, and lengths of their own. */
static double element(int v, size_t i)
{
    const double common = (double)(i % 13) - 6,
                 own = (double)((i * 7 + (size_t)v * 31 + (size_t)v * i) % 11) - 5;

    return (common + own * (1 + v % 3)) * (v == 4 ? 0 : 0.25 * (1 + v));
}

/* v[0] = the Adasum of v[0] ... v[vectors - 1], by its definition. */
static void definition(double **v, int vectors, size_t n)
{
    for (; vectors > 1; vectors = (vectors + 1) / 2)
        for (int p = 0; 2 * p < vectors; p++) {
            const double *a = v[2 * p], *b = 2 * p + 1 < vectors ? v[2 * p + 1] : NULL;
            double aa = 0, bb = 0, ab = 0;

            for (size_t i = 0; b && i < n; i++) {
                aa += a[i] * a[i];
                bb += b[i] * b[i];
                ab += a[i] * b[i];
            }
            for (size_t i = 0; i < n; i++)
                v[p][i] = (aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] +
                          (b ? (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i] : 0);
        }
}

/* The Adasum of elements [first, end) of all vectors; free() it. */
static double *expected(int vectors, size_t first, size_t end, hvt_dtype type, double pre)
{
    double **v = malloc((size_t)vectors * sizeof *v), *sum;

    for (int j = 0; j < vectors; j++) {
        v[j] = malloc((end - first + 1) * sizeof **v);
        for (size_t i = first; i < end; i++)
            v[j][i - first] = pre * rounded(type, element(j, i));
    }
    definition(v, vectors, end - first);
    sum = v[0];
    for (int j = 1; j < vectors; j++)
        free(v[j]);
    free(v);
    return sum;
}

static double tolerance(hvt_dtype t)
{
    return t == HVT_F64 ? 1e-12 : t == HVT_F32 ? 2e-6 : t == HVT_F16 ? 1e-3 : 8e-3;
}

TEST(adasum_is_that_of_plain_loops)
{
    const size_t counts[] = {0, 1, 17, 300, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5};
    const hvt_dtype floats[] = {HVT_F32, HVT_F64, HVT_F16, HVT_BF16};

    for (size_t k = 0; k < HVT_LEN(counts); k++)
        for (int t = 0; t < 4; t++) {
            const size_t n = counts[k];
            const hvt_scale scale = {t % 2 ? 3 : 1, t % 2 ? 0.5 : 1};
            double *want = expected(size, 0, n, floats[t], scale.pre), far = 0;
            char *in = malloc(8 * n + 8), *out = malloc(8 * n + 8);

            for (size_t i = 0; i < n; i++)
                put(floats[t], in, i, element(rank, i));
            memset(out, 0x77, 8 * n + 8);
            CHECK_OK(hvt_allreduce(c, in, out, n, floats[t], HVT_ADASUM, &scale, NULL));
            for (size_t i = 0; i < n; i++) {
                const double error =
                    fabs(get(floats[t], out, i) - scale.post * want[i]) / (1 + fabs(want[i]));

                far = error <= far ? far : error;
            }
            CHECK(far < tolerance(floats[t]), "%s: %zu %s, off by %g", hvt_comm_name(c), n,
                  hvt_dtype_name(floats[t]), far);
            CHECK((unsigned char)out[n * hvt_dtype_size(floats[t])] == 0x77, "written past the end");
            CHECK_OK(hvt_allreduce(c, NULL, in, n, floats[t], HVT_ADASUM, &scale, NULL));
            CHECK(!memcmp(in, out, n * hvt_dtype_size(floats[t])), "other bits in place");
            free(want), free(in), free(out);
        }
}

TEST(orthogonal_vectors_are_added_equal_ones_averaged_and_zeros_ignored)
{
    float x[64] = {0};

    x[rank] = (float)(rank + 1);
    CHECK_OK(hvt_allreduce(c, NULL, x, 64, HVT_F32, HVT_ADASUM, NULL, NULL));
    for (int i = 0; i < 64; i++)
        CHECK(x[i] == (i < size ? (float)(i + 1) : 0), "orthogonal: element %d is %g", i, (double)x[i]);
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i - 30);
    CHECK_OK(hvt_allreduce(c, NULL, x, 64, HVT_F32, HVT_ADASUM, NULL, NULL));
    for (int i = 0; i < 64; i++)
        CHECK(x[i] == (float)(i - 30), "equal: element %d is %g", i, (double)x[i]);
    for (int i = 0; i < 64; i++)
        x[i] = rank == size - 1 ? (float)(i - 30) : 0;
    CHECK_OK(hvt_allreduce(c, NULL, x, 64, HVT_F32, HVT_ADASUM, NULL, NULL));
    for (int i = 0; i < 64; i++)
        CHECK(x[i] == (float)(i - 30), "zeros: element %d is %g", i, (double)x[i]);
}

/* Vectors of several tensors, `vectors` of them, divided among the ranks: the sum of elements [base, base +
 * n). */
static void add_divided(int vectors, const int *first, const size_t *end, int tensors, size_t base,
                        float *ret_sum)
{
    const int mine = first[rank + 1] - first[rank];
    const size_t n = end[tensors - 1] - base, stride = n + 3;
    float *extra = malloc((size_t)mine * stride * sizeof *extra);
    const hvt__vectors of = {first, extra, stride, end, base, tensors};
    hvt_ticket ticket;

    for (int v = 0; v < mine; v++)
        for (size_t i = 0; i < n; i++)
            (v + 1 < mine ? extra + (size_t)v * stride : ret_sum)[i] =
                (float)element(first[rank] + v, base + i);
    CHECK_OK(hvt__adasum_post(c, ret_sum, n, &of, &ticket));
    CHECK_OK(hvt_comm_wait(c, ticket));
    free(extra);
}

TEST(tensors_are_summed_one_by_one_whoever_holds_the_vectors)
{
    const size_t base = 1000, end[] = {1001, 1065, 1065 + 2 * CHUNK + 9, 1065 + 2 * CHUNK + 500, 4 * CHUNK};
    const int tensors = HVT_LEN(end);
    const size_t n = end[tensors - 1] - base;
    float *even = malloc(n * sizeof *even), *skewed = malloc(n * sizeof *skewed);
    const int vectors = 2 * size + 1;
    int first[65];

    for (int r = 0; r <= size; r++)
        first[r] = r < size ? 2 * r : vectors;
    add_divided(vectors, first, end, tensors, base, even);
    for (int r = 0; r <= size; r++) /* the first rank has all but one of each other rank */
        first[r] = r ? vectors - size + r : 0;
    add_divided(vectors, first, end, tensors, base, skewed);
    CHECK(!memcmp(even, skewed, n * sizeof *even), "the division of vectors changes bits");
    for (int t = 0; t < tensors; t++) {
        const size_t from = t ? end[t - 1] : base;
        double *want = expected(vectors, from, end[t], HVT_F32, 1), far = 0;

        for (size_t i = from; i < end[t]; i++)
            far = fmax(far, fabs((double)even[i - base] - want[i - from]) / (1 + fabs(want[i - from])));
        CHECK(far < 1e-5, "tensor %d: off by %g", t, far);
        free(want);
    }
    free(even), free(skewed);
}

TEST(a_nan_spoils_its_tensor_alone_and_on_every_rank)
{
    const size_t end[] = {40, 80};
    int first[65];
    float x[80];
    const hvt__vectors of = {.first = first, .end = end, .tensors = 2}; /* read when the operation runs */
    hvt_ticket ticket;

    for (int r = 0; r <= size; r++)
        first[r] = r;
    for (int i = 0; i < 80; i++)
        x[i] = i == 7 && rank == size - 1 ? NAN : 1;
    CHECK_OK(hvt__adasum_post(c, x, 80, &of, &ticket));
    CHECK_OK(hvt_comm_wait(c, ticket));
    for (int i = 0; i < 80; i++)
        CHECK(i < 40 ? size == 1 ? isnan(x[i]) == (i == 7) : isnan(x[i]) : x[i] == 1, "element %d is %g", i,
              (double)x[i]);
}

TEST(what_adasum_cannot_reduce_is_refused)
{
    double x[64] = {0};

    CHECK_FAILS(hvt_allreduce(c, NULL, x, 4, HVT_I32, HVT_ADASUM, NULL, NULL), E_ARG,
                "adasum of i32, expected f16, bf16, f32 or f64");
    CHECK_FAILS(hvt_reduce_scatter(c, x, x, 1, NULL, HVT_F64, HVT_ADASUM, NULL, NULL), E_UNSUPPORTED,
                "reduce_scatter: adasum needs whole tensors, as allreduce has them");
    if (size > 1)
        CHECK_FAILS(hvt_allreduce(c, NULL, x, 4, HVT_F64, rank ? HVT_ADASUM : HVT_SUM, NULL, NULL),
                    E_MISMATCH, "adasum");
    CHECK_OK(hvt_allreduce(c, NULL, x, 4, HVT_F64, HVT_ADASUM, NULL, NULL));
}

static void truths(void)
{
    RUN(adasum_is_that_of_plain_loops);
    RUN(orthogonal_vectors_are_added_equal_ones_averaged_and_zeros_ignored);
    RUN(tensors_are_summed_one_by_one_whoever_holds_the_vectors);
    RUN(a_nan_spoils_its_tensor_alone_and_on_every_rank);
    RUN(what_adasum_cannot_reduce_is_refused);
}

int main(void)
{
    return on_every_comm(truths);
}
