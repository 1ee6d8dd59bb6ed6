/*
 * The public collectives, on every comm of hosts, alone and on 1, 2, 3, 4, 5 and 8 ranks.
 *
 * Each rank's data differ from the others', and are so small that every result is exact; if the order of a
 * sum matters, it must be the tree's. Every mismatch must be reported on every rank.
 */
#include "coll/coll.h"
#include "collectives.h"
#include "heap.h"

#include <unistd.h>

/* ---- reductions --------------------------------------------------------------------------- */

/* What rank r brings: no type is too narrow for it, nor for the sum of 8. */
static double brought(int r, size_t i, hvt_reduction how)
{
    if (how == HVT_PRODUCT)
        return (double)((i + (size_t)r) % 3 ? 1 : 2); /* at most 2^3 of 8 ranks */
    return (double)((i * 7 + (size_t)r * 3) % 15);
}

static double reduced(size_t i, hvt_reduction how)
{
    double v = brought(0, i, how);

    for (int r = 1; r < size; r++) {
        double x = brought(r, i, how);

        if (how == HVT_SUM || how == HVT_AVERAGE)
            v += x;
        else if (how == HVT_PRODUCT)
            v *= x;
        else if (how == HVT_MIN ? x < v : x > v)
            v = x;
    }
    return v;
}

/* AVERAGE as the header promises it. */
static double promised(size_t i, hvt_reduction how, hvt_dtype t)
{
    double v = reduced(i, how);

    if (how != HVT_AVERAGE)
        return v;
    return is_integer(t) ? trunc(v / size) : v * (1.0 / size);
}

static void bring(void *buf, size_t n, hvt_reduction how, hvt_dtype t)
{
    for (size_t i = 0; i < n; i++)
        put(t, buf, i, brought(rank, i, how));
}

static bool has_result(const void *buf, size_t first, size_t n, hvt_reduction how, hvt_dtype t)
{
    for (size_t i = 0; i < n; i++)
        if (get(t, buf, i) != rounded(t, promised(first + i, how, t)))
            return false;
    return true;
}

TEST(every_reduction_of_every_type_is_exact)
{
    const size_t counts[] = {0, 1, 15, 16, 17, 289, 4913};
    char *in = malloc(8 * 4913), *out = malloc(8 * 4913 + 1);

    for (int t = 0; t < TYPES; t++)
        for (int how = HVT_SUM; how <= HVT_PRODUCT; how++)
            for (size_t i = 0; i < HVT_LEN(counts); i++) {
                size_t n = counts[i], bytes = n * hvt_dtype_size(types[t]);

                if (heap_memcheck() && n > 1000 && how != t % (HVT_PRODUCT + 1))
                    continue;
                bring(in, n, (hvt_reduction)how, types[t]);
                memset(out, 0x77, bytes + 1);
                CHECK_OK(hvt_allreduce(c, in, out, n, types[t], (hvt_reduction)how, NULL, NULL));
                CHECK(has_result(out, 0, n, (hvt_reduction)how, types[t]), "%s: %zu %s, reduction %d",
                      hvt_comm_name(c), n, hvt_dtype_name(types[t]), how);
                CHECK(out[bytes] == 0x77, "written past the end");
                bring(out, n, (hvt_reduction)how, types[t]);
                CHECK(!memcmp(in, out, bytes), "the input was written");
                CHECK_OK(
                    hvt_allreduce(c, how % 2 ? NULL : out, out, n, types[t], (hvt_reduction)how, NULL, NULL));
                CHECK(has_result(out, 0, n, (hvt_reduction)how, types[t]),
                      "%s: %zu %s in place, reduction %d", hvt_comm_name(c), n, hvt_dtype_name(types[t]),
                      how);
            }
    free(in), free(out);
}

TEST(reductions_may_be_cut_into_windows_and_messages_anywhere)
{
    const size_t before = hvt__coll_window, message = hvt__world_message;
    char *buf = malloc(8 * 5000);

    for (int cut = 0; cut < 3; cut++) {
        size_t window = (size_t)(size * 8 * (3 + 61 * cut)); /* bytes: an eighth as many elements of a rank */

        for (size_t n = window * 2 / 8 - 1; n <= window * 2 / 8 + 1; n++) { /* thresholds, one off */
            CHECK_OK(hvt_world_barrier(world)); /* ranks that are threads share these variables */
            hvt__coll_window = window;
            hvt__world_message = (size_t[]){1, 7, 1000}[cut];
            bring(buf, n, HVT_MAX, HVT_I64);
            CHECK_OK(hvt_allreduce(c, NULL, buf, n, HVT_I64, HVT_MAX, NULL, NULL));
            CHECK(has_result(buf, 0, n, HVT_MAX, HVT_I64), "%zu in windows of %zu bytes", n, window);
        }
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt__coll_window = before;
    hvt__world_message = message;
    free(buf);
}

/* The tree by its definition. */
static double tree(double *v, int n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; 2 * i < n; i++)
            v[i] = 2 * i + 1 < n ? v[2 * i] + v[2 * i + 1] : v[2 * i];
    return v[0];
}

TEST(doubles_are_added_along_the_tree)
{
    enum { COUNT = 1000 };
    double in[COUNT], out[COUNT], all[64];

    for (int i = 0; i < COUNT; i++)
        in[i] = (double)leaf(rank, (size_t)i, 7) * 1.1;
    CHECK_OK(hvt_allreduce(c, in, out, COUNT, HVT_F64, HVT_SUM, NULL, NULL));
    for (int i = 0; i < COUNT && !check_now; i++) {
        for (int r = 0; r < size; r++)
            all[r] = (double)leaf(r, (size_t)i, 7) * 1.1;
        CHECK(out[i] == tree(all, size), "element %d", i);
    }
}

TEST(sixteen_bits_are_averaged_in_f32)
{
    for (int t = 0; t < 2; t++) {
        hvt_dtype type = t ? HVT_BF16 : HVT_F16;
        char x[4];

        put(type, x, 0, rank ? 1 : 512); /* rounded on its way, 512 and some ones would stay 512 in bf16 */
        put(type, x, 1, type == HVT_F16 ? 60000 : 3e38); /* the sum overflows, the mean does not */
        CHECK_OK(hvt_allreduce(c, NULL, x, 2, type, HVT_AVERAGE, NULL, NULL));
        CHECK(get(type, x, 0) == rounded(type, (511.0 + size) * (1.0 / size)), "%g", get(type, x, 0));
        if (type == HVT_F16) /* in f32 even the sum fits */
            CHECK(get(type, x, 1) == rounded(type, 60000), "%g", get(type, x, 1));
    }
}

TEST(factors_before_and_after)
{
    const hvt_dtype floats[] = {HVT_F32, HVT_F64, HVT_F16, HVT_BF16};
    hvt_scale predivide = {.pre = 1.0 / 4, .post = 4.0 / size};
    char x[4 * 8], y[4 * 8];

    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < 4; i++) {
            put(floats[t], x, (size_t)i, 8 * (rank + i));
            put(floats[t], y, (size_t)i, 8 * (rank + i));
        }
        CHECK_OK(hvt_allreduce(c, NULL, x, 4, floats[t], HVT_SUM, &predivide, NULL));
        CHECK_OK(hvt_allreduce(c, NULL, y, 4, floats[t], HVT_AVERAGE, NULL, NULL));
        CHECK(!memcmp(x, y, 4 * hvt_dtype_size(floats[t])), "%s: %g, not %g", hvt_dtype_name(floats[t]),
              get(floats[t], x, 0), get(floats[t], y, 0));
    }
}

TEST(integers_are_truncated_wrapped_and_cut_off)
{
    int8_t a[4] = {-7, 7, 100, (int8_t)(rank ? 0 : -9)}, b[4];
    int64_t most = INT64_MAX, sum = (int64_t)((uint64_t)INT64_MAX * (uint64_t)size);
    uint8_t u = 200;

    CHECK_OK(hvt_allreduce(c, a, b, 4, HVT_I8, HVT_SUM, NULL, NULL));
    CHECK(b[0] == (int8_t)(-7 * size) && b[2] == (int8_t)(100 * size), "wraps: %d", b[2]);
    CHECK_OK(hvt_allreduce(c, a, b, 4, HVT_I8, HVT_AVERAGE, NULL, NULL));
    CHECK(b[0] == -7 && b[1] == 7 && b[2] == 100 && b[3] == -9 / size, "%d %d %d %d", b[0], b[1], b[2], b[3]);
    CHECK_OK(hvt_allreduce(c, a, b, 4, HVT_I8, HVT_SUM, &(hvt_scale){0.5, 1}, NULL));
    CHECK(b[0] == -3 * size && b[1] == 3 * size, "each is truncated: %d", b[0]);
    CHECK_OK(hvt_allreduce(c, a, b, 4, HVT_I8, HVT_SUM, &(hvt_scale){1, 1000}, NULL));
    CHECK(b[0] == -128 && b[2] == 127, "cut off: %d %d", b[0], b[2]);
    CHECK_OK(hvt_allreduce(c, NULL, &u, 1, HVT_U8, HVT_MAX, &(hvt_scale){1, -1}, NULL));
    CHECK(u == 0, "cut off at 0: %d", u);
    CHECK_OK(hvt_allreduce(c, NULL, &most, 1, HVT_I64, HVT_SUM, NULL, NULL)); /* past what doubles hold */
    CHECK(most == sum, "%lld, not %lld", (long long)most, (long long)sum);
}

TEST(a_nan_of_any_rank_is_the_minimum_and_the_maximum)
{
    for (int bad = 0; bad < size; bad++)
        for (int t = 0; t < TYPES; t++)
            for (int how = HVT_MIN; how <= HVT_MAX && !is_integer(types[t]); how++) {
                char x[8];

                put(types[t], x, 0, rank == bad ? (double)NAN : rank);
                CHECK_OK(hvt_allreduce(c, NULL, x, 1, types[t], (hvt_reduction)how, NULL, NULL));
                CHECK(isnan(get(types[t], x, 0)), "%s: %g", hvt_dtype_name(types[t]), get(types[t], x, 0));
            }
}

TEST(reduce_scatter_has_parts_of_any_size)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (int t = 0; t < TYPES; t++)
            for (int how = HVT_SUM; how <= HVT_MAX; how++) {
                size_t counts[64] = {0}, first = 0, total = lay_parts(shape, counts), mine = counts[rank];
                char *in = malloc(8 * total + 8), *out = malloc(8 * mine + 8);
                const size_t *given = shape == EQUAL ? NULL : counts;

                for (int r = 0; r < rank; r++)
                    first += counts[r];
                bring(in, total, (hvt_reduction)how, types[t]);
                CHECK_OK(
                    hvt_reduce_scatter(c, in, out, mine, given, types[t], (hvt_reduction)how, NULL, NULL));
                CHECK(has_result(out, first, mine, (hvt_reduction)how, types[t]), "shape %d, %s, %d", shape,
                      hvt_dtype_name(types[t]), how);
                CHECK_OK(hvt_reduce_scatter(c, in, in + first * hvt_dtype_size(types[t]), mine, given,
                                            types[t], (hvt_reduction)how, NULL, NULL));
                CHECK(!memcmp(in + first * hvt_dtype_size(types[t]), out, mine * hvt_dtype_size(types[t])),
                      "in place: shape %d, %s, %d", shape, hvt_dtype_name(types[t]), how);
                free(in), free(out);
            }
}

/* ---- moves -------------------------------------------------------------------------------- */

/* Element i of what rank r owns. */
static double owned(int r, size_t i)
{
    return (double)((i + 1) * (size_t)(r + 1) % 100);
}

static void own(void *buf, size_t n, hvt_dtype t)
{
    for (size_t i = 0; i < n; i++)
        put(t, buf, i, owned(rank, i));
}

static bool is_of(int r, const void *buf, size_t first, size_t n, hvt_dtype t)
{
    for (size_t i = 0; i < n; i++)
        if (get(t, buf, first + i) != owned(r, i))
            return false;
    return true;
}

TEST(broadcasts_come_from_every_root_in_every_type)
{
    const size_t counts[] = {0, 1, 17, 4913};
    char *buf = malloc(8 * 4913);

    for (int root = 0; root < size; root++)
        for (int t = 0; t < TYPES; t++)
            for (size_t i = 0; i < HVT_LEN(counts); i++) {
                own(buf, counts[i], types[t]);
                CHECK_OK(hvt_broadcast(c, buf, counts[i], types[t], root, NULL));
                CHECK(is_of(root, buf, 0, counts[i], types[t]), "%zu %s from %d", counts[i],
                      hvt_dtype_name(types[t]), root);
            }
    free(buf);
}

TEST(allgather_gather_and_scatter_have_parts_of_any_size)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (int t = 0; t < TYPES; t++) {
            size_t counts[64] = {0}, total = lay_parts(shape, counts), mine = counts[rank], first = 0;
            size_t bytes = hvt_dtype_size(types[t]);
            const size_t *given = shape == EQUAL ? NULL : counts;
            char *part = malloc(8 * mine + 8), *all = calloc(total + 1, 8);

            own(part, mine, types[t]);
            for (int way = 0; way < 2; way++) {
                memset(all, 0, total * bytes);
                for (int r = first = 0; r < rank; r++)
                    first += counts[r];
                if (way)
                    memcpy(all + first * bytes, part, mine * bytes);
                CHECK_OK(hvt_allgather(c, way ? NULL : part, mine, all, given, types[t], NULL));
                for (int r = first = 0; r < size; first += counts[r++])
                    CHECK(is_of(r, all, first, counts[r], types[t]), "allgather, way %d: part %d, shape %d",
                          way, r, shape);
            }
            for (int root = 0; root < size; root++) {
                bool here = root == rank;

                memset(all, 0, total * bytes);
                CHECK_OK(
                    hvt_gather(c, part, mine, here ? all : NULL, here ? given : NULL, types[t], root, NULL));
                for (int r = first = 0; r < size && here; first += counts[r++])
                    CHECK(is_of(r, all, first, counts[r], types[t]), "gather: part %d, shape %d", r, shape);
                memset(part, 0, mine * bytes);
                CHECK_OK(
                    hvt_scatter(c, here ? all : NULL, here ? given : NULL, part, mine, types[t], root, NULL));
                CHECK(is_of(rank, part, 0, mine, types[t]), "scatter: shape %d, %s", shape,
                      hvt_dtype_name(types[t]));
            }
            free(part), free(all);
        }
}

/* How many elements rank a gives rank b. */
static size_t given(int shape, int a, int b)
{
    if (shape == 1 && a == size / 2)
        return 0; /* one rank gives nothing */
    return shape ? (size_t)((a * 5 + b * 3) % 7) * (shape == 2 ? 100 : 1) : 3;
}

TEST(alltoall_has_parts_of_any_size)
{
    for (int shape = 0; shape < 3; shape++)
        for (int t = 0; t < TYPES; t++) {
            size_t gives[64], takes[64], out_total = 0, in_total = 0, at = 0;
            char *in, *out;

            for (int r = 0; r < size; r++) {
                in_total += gives[r] = given(shape, rank, r);
                out_total += takes[r] = given(shape, r, rank);
            }
            in = malloc(8 * in_total + 8), out = malloc(8 * out_total + 8);
            for (int r = 0; r < size; r++)
                for (size_t i = 0; i < gives[r]; i++)
                    put(types[t], in, at++, (double)((size_t)(rank * 8 + r) + i % 50));
            CHECK_OK(hvt_alltoall(c, in, gives, out, takes, types[t], NULL));
            at = 0;
            for (int r = 0; r < size; r++)
                for (size_t i = 0; i < takes[r]; i++, at++)
                    if (get(types[t], out, at) != (double)((size_t)(r * 8 + rank) + i % 50)) {
                        CHECK(false, "shape %d, %s: element %zu of rank %d", shape, hvt_dtype_name(types[t]),
                              i, r);
                        i = takes[r];
                    }
            free(in), free(out);
        }
}

TEST(sends_and_receives_go_round_both_ways)
{
    enum { COUNT = 70000 }; /* more than MPI sends eagerly */
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int32_t *mine, *from_left, *from_right;
    hvt_ticket t[4];

    if (size == 1)
        SKIP("it takes two ranks");
    mine = malloc(4 * COUNT), from_left = calloc(COUNT, 4), from_right = calloc(COUNT, 4);
    own(mine, COUNT, HVT_I32);
    CHECK_OK(hvt_send(c, mine, COUNT, HVT_I32, right, &t[0]));
    CHECK_OK(hvt_send(c, mine, COUNT, HVT_I32, left, &t[1]));
    CHECK_OK(hvt_recv(c, from_left, COUNT, HVT_I32, left, &t[2]));
    CHECK_OK(hvt_recv(c, from_right, COUNT, HVT_I32, right, &t[3]));
    CHECK_OK(hvt_comm_wait(c, t[0]));
    CHECK_OK(hvt_comm_wait(c, t[3]));
    if (size == 2) { /* both from the same rank, in order */
        CHECK(is_of(left, from_left, 0, COUNT, HVT_I32) && is_of(left, from_right, 0, COUNT, HVT_I32), "2");
    } else {
        CHECK(is_of(left, from_left, 0, COUNT, HVT_I32), "from the left");
        CHECK(is_of(right, from_right, 0, COUNT, HVT_I32), "from the right");
    }
    /* one after the other, blocking, and of no elements */
    for (int r = 0; r + 1 < size; r++) {
        if (rank == r)
            CHECK_OK(hvt_send(c, mine, COUNT, HVT_I32, r + 1, NULL));
        if (rank == r + 1)
            CHECK_OK(hvt_recv(c, from_left, COUNT, HVT_I32, r, NULL));
        if (rank == r)
            CHECK_OK(hvt_send(c, NULL, 0, HVT_F16, r + 1, NULL));
        if (rank == r + 1)
            CHECK_OK(hvt_recv(c, NULL, 0, HVT_F16, r, NULL));
    }
    CHECK(!rank || is_of(left, from_left, 0, COUNT, HVT_I32), "in a row");
    free(mine), free(from_left), free(from_right);
}

TEST(nobody_leaves_a_barrier_before_all_have_come)
{
    enum { LINE = 32 };     /* ints */
    hvt_comm *board = NULL; /* where ranks see each other's words without a collective */
    volatile int *all = NULL;

    CHECK_OK(hvt_comm_open("shm", world, dev, &board));
    CHECK_OK(hvt_comm_share(board, (size_t)size * LINE * sizeof *all, (void **)(uintptr_t)&all));
    for (int round = 1; round <= (heap_memcheck() ? 5 : 50); round++) {
        if (hvt__draw(3, (uint64_t)round, (uint64_t)rank, 0) % 5 == 0)
            usleep(300);
        all[rank * LINE] = round;
        CHECK_OK(hvt_barrier(c, NULL));
        for (int r = 0; r < size; r++)
            CHECK(all[r * LINE] >= round, "round %d: rank %d has not come", round, r);
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt_comm_release(board, (void *)(uintptr_t)all);
    hvt_comm_close(&board);
}

TEST(messages_may_be_cut_anywhere)
{
    const size_t message = hvt__world_message, of_comm = hvt__cutoffs_next.mpi_message;
    const size_t most[] = {61, 4097};

    for (int i = heap_memcheck(); i < 2; i++) { /* as counts past 2^31 are, with int's largest so low */
        const char *name = hvt_comm_name(c);

        CHECK_OK(hvt_world_barrier(world));
        hvt__world_message = hvt__cutoffs_next.mpi_message = most[i];
        hvt_comm_close(&c);
        CHECK_OK(hvt_comm_open(name, world, dev, &c));
        allgather_gather_and_scatter_have_parts_of_any_size();
        alltoall_has_parts_of_any_size();
        if (i) {
            broadcasts_come_from_every_root_in_every_type();
            sends_and_receives_go_round_both_ways();
        }
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt__world_message = message;
    hvt__cutoffs_next.mpi_message = of_comm;
}

/* ---- tickets ------------------------------------------------------------------------------ */

TEST(many_operations_are_in_flight_and_awaited_in_any_order)
{
    enum { EACH = 40, N = 33 };
    static __thread int32_t sum[EACH][N], all[EACH][64];
    static __thread float grad[EACH][N];
    hvt_ticket t[EACH][3];

    for (int round = 0; round < 3; round++) {
        int32_t mine[EACH];

        for (int k = 0; k < EACH; k++) {
            mine[k] = rank * 100 + k;
            for (int i = 0; i < N; i++) {
                sum[k][i] = rank + k + i;
                grad[k][i] = (float)(rank + k - i);
            }
            /* a gradient's sum between two calls keeps its place, on the same memory too */
            CHECK_OK(hvt_allreduce(c, NULL, sum[k], N, HVT_I32, HVT_SUM, NULL, &t[k][0]));
            CHECK_OK(hvt_comm_allreduce(c, grad[k], N, HVT_F32, &t[k][1]));
            CHECK_OK(hvt_allreduce(c, NULL, grad[k], N, HVT_F32, HVT_MAX, &(hvt_scale){2, 1}, &t[k][1]));
            CHECK_OK(hvt_allgather(c, &mine[k], 1, all[k], NULL, HVT_I32, &t[k][2]));
            CHECK(t[k][2] > t[k][1] && t[k][1] > t[k][0], "tickets grow");
        }
        CHECK_OK(hvt_comm_wait(c, t[(round + 1) * 7][round]));
        CHECK_OK(hvt_comm_wait(c, t[2][0]));
        CHECK_OK(hvt_comm_wait(c, t[EACH - 1][2]));
        for (int k = 0; k < EACH; k++)
            for (int i = 0; i < N; i++) {
                int ranks = size * (size - 1) / 2;

                CHECK(sum[k][i] == ranks + size * (k + i), "%d: %d", k, sum[k][i]);
                CHECK(grad[k][i] == (float)(2 * (ranks + size * (k - i))), "%d: %g", k, (double)grad[k][i]);
                CHECK(i >= size || all[k][i] == i * 100 + k, "%d: %d", k, all[k][i]);
            }
    }
    CHECK_FAILS(hvt_comm_wait(c, t[EACH - 1][2] + 1), E_ARG, "never issued");
}

static void truths(void)
{
    RUN(every_reduction_of_every_type_is_exact);
    RUN(reductions_may_be_cut_into_windows_and_messages_anywhere);
    RUN(doubles_are_added_along_the_tree);
    RUN(sixteen_bits_are_averaged_in_f32);
    RUN(factors_before_and_after);
    RUN(integers_are_truncated_wrapped_and_cut_off);
    RUN(a_nan_of_any_rank_is_the_minimum_and_the_maximum);
    RUN(reduce_scatter_has_parts_of_any_size);
    RUN(broadcasts_come_from_every_root_in_every_type);
    RUN(allgather_gather_and_scatter_have_parts_of_any_size);
    RUN(alltoall_has_parts_of_any_size);
    RUN(sends_and_receives_go_round_both_ways);
    RUN(messages_may_be_cut_anywhere);
    RUN(nobody_leaves_a_barrier_before_all_have_come);
    RUN(many_operations_are_in_flight_and_awaited_in_any_order);
}

int main(void)
{
    return on_every_comm(truths);
}
