/*
 * Sums over shards, whatever block of shards each rank holds: the plan, held against the tree written down by
 * hand, and the sums of each comm, held against those of one process.
 */
#include "config.h"
#include "nodes.h"
#include "sums.h"

#include <math.h>

enum { SHARDS = 40, TEXT = 4096 };

/* The tree over shards [first, first + width), as text. */
static void write_tree(char *text, int first, int width, int shards)
{
    if (width == 1) {
        snprintf(text, TEXT, "%d", first);
    } else if (first + width / 2 >= shards) {
        write_tree(text, first, width / 2, shards);
    } else {
        char left[TEXT], right[TEXT];

        write_tree(left, first, width / 2, shards);
        write_tree(right, first + width / 2, width / 2, shards);
        CHECK(snprintf(text, TEXT, "(%s+%s)", left, right) < TEXT, "long");
    }
}

static int width_of(int shards)
{
    int width = 1;

    while (width < shards)
        width *= 2;
    return width;
}

/* A division of `shards` among `ranks`, drawn by seed. */
static void divide(uint64_t seed, int shards, int ranks, int *ret_first)
{
    int left = shards - ranks;

    ret_first[0] = 0;
    for (int r = 0; r < ranks; r++) {
        int more = r == ranks - 1 ? left : (int)(hvt__draw(seed, (uint64_t)r, 0, 0) % (uint64_t)(left + 1));

        ret_first[r + 1] = ret_first[r] + 1 + more;
        left -= more;
    }
}

/* The plan adds what the tree adds. */
static void check_plan(int shards, int ranks, const int *first)
{
    static __thread char text[SHARDS][TEXT];
    hvt__leaves *l;
    char want[TEXT];

    CHECK_OK(hvt__leaves_plan(ranks, first, false, &l));
    if (!l)
        return;
    CHECK(l->of[0] == 0 && l->of[ranks] == l->n && l->leaf[0].first == 0, "%d leaves", l->n);
    for (int i = 0; i < l->n; i++) {
        const hvt__leaf *a = &l->leaf[i];

        CHECK(a->first >= first[a->rank] && a->end <= first[a->rank + 1] && i >= l->of[a->rank] &&
                  i < l->of[a->rank + 1] && a->end == (i + 1 < l->n ? a[1].first : shards),
              "leaf %d: [%d, %d) of rank %d", i, a->first, a->end, a->rank);
        /* a leaf is a block of the tree, so its own tree is the one over its shards */
        write_tree(text[i], a->first, width_of(a->end - a->first), shards);
    }
    for (int i = 0; i + 1 < l->n; i++) {
        char sum[TEXT];

        CHECK(snprintf(sum, TEXT, "(%s+%s)", text[l->merge[i].left], text[l->merge[i].right]) < TEXT, "long");
        memcpy(text[l->merge[i].left], sum, TEXT);
    }
    write_tree(want, 0, width_of(shards), shards);
    CHECK(!strcmp(text[0], want), "%d shards on %d ranks: %s, expected %s", shards, ranks, text[0], want);
    free(l);
}

TEST(every_division_adds_along_the_tree)
{
    for (int shards = 1; shards <= SHARDS; shards++)
        for (int ranks = 1; ranks <= shards; ranks++)
            for (uint64_t seed = 0; seed < 5; seed++) {
                int first[SHARDS + 1];

                divide(seed + (uint64_t)(1000 * shards + ranks), shards, ranks, first);
                check_plan(shards, ranks, first);
            }
}

TEST(aligned_blocks_need_no_plan)
{
    static const int aligned[][9] = {{1, 0, 5},       {2, 0, 1, 2},     {2, 0, 4, 8},
                                     {3, 0, 2, 4, 6}, {3, 0, 4, 8, 10}, {4, 0, 2, 4, 6, 8}},
                     others[][9] = {{2, 0, 3, 6}, {2, 0, 5, 8}, {3, 0, 3, 6, 8}, {5, 0, 2, 4, 6, 7, 8}};
    hvt__leaves *l;

    for (size_t i = 0; i < HVT_LEN(aligned); i++) {
        CHECK_OK(hvt__leaves_plan(aligned[i][0], aligned[i] + 1, false, &l));
        CHECK(!l, "division %zu", i);
    }
    for (size_t i = 0; i < HVT_LEN(others); i++) {
        CHECK_OK(hvt__leaves_plan(others[i][0], others[i] + 1, false, &l));
        CHECK(l, "division %zu", i);
        free(l);
    }
}

/* Element i of shard s: of any size, so that another order of additions has other bits. */
static float element(int s, size_t i)
{
    uint64_t x = hvt__draw(77, (uint64_t)s, i, 0);

    return ldexpf((float)(x >> 40) - 0x1p23f, (int)(x % 24) - 12);
}

/* The sum of shards [first, end), a block of the tree. */
static float tree_sum(int first, int width, int end, size_t i)
{
    if (width == 1)
        return element(first, i);
    if (first + width / 2 >= end)
        return tree_sum(first, width / 2, end, i);
    return tree_sum(first, width / 2, end, i) + tree_sum(first + width / 2, width / 2, end, i);
}

static __thread size_t applied; /* elements */

static hvt_status keep(void *ctx, size_t first, size_t end, const void *const in[], int vectors)
{
    float *out = ctx;

    CHECK(vectors == 1, "%d vectors", vectors);
    memcpy(out + first, (const float *)in[0] + first, (end - first) * sizeof *out);
    applied += end - first;
    return HVT_OK;
}

static void sum(hvt_comm *c, int shards, const int *first, hvt__sum kind, size_t count)
{
    hvt__partials p = {.stride = count + 5};
    float *buf, *out = calloc(count + 1, sizeof *out);
    hvt__leaves *l;
    hvt_ticket ticket;
    size_t from = 0, end = count;
    void *block;

    CHECK_OK(hvt__leaves_plan(size, first, false, &l));
    if (!l || (kind == HVT__SUM_APPLY && !(hvt_comm_can(c) & HVT_COMM_REDUCE_APPLY))) {
        free(out);
        free(l);
        return;
    }
    CHECK_OK(hvt__comm_reserve(c, l));
    CHECK_OK(hvt_comm_alloc(c, (size_t)l->most * p.stride * sizeof *buf, &block));
    p.leaves = l;
    buf = block;
    p.extra = l->most > 1 ? buf + p.stride : NULL;
    for (int i = l->of[rank]; i < l->of[rank + 1]; i++)
        for (size_t k = 0; k < count; k++) {
            float *to = i + 1 == l->of[rank + 1] ? buf : p.extra + (size_t)(i - l->of[rank]) * p.stride;

            to[k] =
                tree_sum(l->leaf[i].first, width_of(l->leaf[i].end - l->leaf[i].first), l->leaf[i].end, k);
        }
    applied = 0;
    CHECK_OK(hvt__comm_sum(c, kind, buf, count, &p, keep, out, &ticket));
    CHECK_OK(hvt_comm_wait(c, ticket));
    if (kind != HVT__SUM_ALL)
        hvt_comm_slice(c, count, rank, &from, &end);
    CHECK(kind != HVT__SUM_APPLY || applied == end - from, "%zu elements", applied);
    for (size_t k = from; k < end; k++) {
        float got = kind == HVT__SUM_APPLY ? out[k] : buf[k], want = tree_sum(0, width_of(shards), shards, k);

        CHECK(!memcmp(&got, &want, sizeof got), "%s, kind %d, %d shards, element %zu of %zu: %a, expected %a",
              hvt_comm_name(c), (int)kind, shards, k, count, (double)got, (double)want);
    }
    CHECK_OK(hvt_world_barrier(world));
    hvt_comm_release(c, block);
    free(out);
    free(l);
}

static void sum_over(const char *name)
{
    static const size_t counts[] = {0, 1, 15, 16, 17, 1000, 40003};
    const hvt__cutoffs before = hvt__cutoffs_next;
    hvt_comm *c = NULL;

    hvt__cutoffs_next.mpi_window = 160; /* several pieces */
    CHECK_OK(hvt_comm_open(name, world, dev, &c));
    hvt__cutoffs_next = before;
    CHECK(c && hvt__comm_can_sum(c), "%s", name);
    for (uint64_t seed = 0; c && seed < 4; seed++)
        for (size_t i = 0; i < HVT_LEN(counts); i++) {
            int shards = size + (int)(hvt__draw(seed, i, 0, 0) % 12), first[SHARDS + 1];

            divide(seed, shards, size, first);
            sum(c, shards, first, (hvt__sum)((seed + i) % 3), counts[i]);
        }
    hvt_comm_close(&c);
}

TEST(sums_have_the_bits_of_one_process)
{
    if (size == 1)
        SKIP("one rank needs no sum");
    sum_over("shm");
#if HVT_HAVE_MPI
    sum_over(over_messages());
#endif
}

#if HVT_HAVE_MPI
TEST(sums_over_nodes_have_the_bits_of_one_process)
{
    hvt_world *real = world, nodes;

    if (size != 4)
        SKIP("for two nodes of two ranks");
    nodes = on_nodes(real, (const int[]){2, 2});
    world = &nodes;
    sum_over("hier");
    world = real;
    real->channels = nodes.channels;
    free(nodes.node_of);
}
#endif

int main(void)
{
    if (!ranks_open())
        return 1;
    if (rank == 0) {
        RUN(every_division_adds_along_the_tree);
        RUN(aligned_blocks_need_no_plan);
    }
    RUN(sums_have_the_bits_of_one_process);
#if HVT_HAVE_MPI
    RUN(sums_over_nodes_have_the_bits_of_one_process);
#endif
    return ranks_done();
}
