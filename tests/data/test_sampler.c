/*
 * The sampler, against PyTorch 1.13.1's and 2.15's answers.
 *
 * HVT_TEST_LARGE=1 also shuffles 215 million samples (1 GB), where PyTorch draws 64 bits.
 */
#include "base_impl.h"
#include "check.h"
#include "hvt/data.h"

#include <math.h>

static void check_order(uint64_t seed, int epoch, const uint32_t *want, uint32_t count)
{
    uint32_t got[16];

    hvt_sampler_permutation(seed, epoch, count, got);
    for (uint32_t i = 0; i < count; i++)
        CHECK(got[i] == want[i], "seed %llu, epoch %d: place %u holds %u, expected %u",
              (unsigned long long)seed, epoch, i, got[i], want[i]);
}

TEST(permutations_are_those_of_torch_randperm)
{
    const uint32_t s0[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}, s1[] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4};
    const uint32_t s42[] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}, wide[] = {1, 4, 6, 2, 0, 5, 8, 7, 9, 3};

    check_order(0, 0, s0, 10);
    check_order(1, 0, s1, 10);
    check_order(0, 1, s1, 10); /* seed + epoch */
    check_order(40, 2, s42, 10);
    check_order((1ull << 32) + 1, 0, s1, 10); /* masked to 32 bits */
    check_order(UINT32_MAX, 1, s0, 10);
    check_order((1ull << 53) - 1, 0, wide, 10);
    check_order(42, 0, (const uint32_t[]){0}, 1);
    check_order(42, 0, (const uint32_t[]){0, 1}, 2);
}

static uint64_t fnv1a(const uint32_t *x, uint32_t count)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (uint32_t i = 0; i < count; i++)
        for (int byte = 0; byte < 4; byte++)
            h = (h ^ (x[i] >> (8 * byte) & 255)) * 0x100000001b3u;
    return h;
}

TEST(the_order_of_cifar_is_pytorchs)
{
    const struct {
        uint64_t seed, hash;
        uint32_t head[8], tail[3];
    } want[] = {{0,
                 0xf5898cfe88e4ea7d,
                 {36044, 49165, 37807, 11341, 6091, 16904, 36293, 28026},
                 {42128, 15898, 31476}},
                {1,
                 0x4512e35292f4f049,
                 {45845, 11799, 43880, 43701, 41303, 45348, 14335, 47144},
                 {37038, 8785, 8475}}};
    uint32_t *order = malloc(50000 * sizeof *order);

    for (size_t t = 0; t < HVT_LEN(want); t++) {
        hvt_sampler_permutation(want[t].seed, 0, 50000, order);
        CHECK(!memcmp(order, want[t].head, sizeof want[t].head), "seed %d begins %u %u", (int)t, order[0],
              order[1]);
        CHECK(!memcmp(order + 49997, want[t].tail, sizeof want[t].tail), "seed %d ends %u", (int)t,
              order[49999]);
        CHECK(fnv1a(order, 50000) == want[t].hash, "seed %d: hash %016llx", (int)t,
              (unsigned long long)fnv1a(order, 50000));
    }
    free(order);
}

TEST(permutations_of_many_samples_draw_64_bits)
{
    const uint32_t count = 214748365; /* UINT32_MAX / 20 and one more */
    const uint32_t head[] = {50815193, 116864026, 18612126, 8421410, 157113196, 174023950, 859818, 136147441};
    const uint32_t tail[] = {208456360, 189749211, 81700266,  15019188,
                             108813077, 122959525, 138283752, 58062801};
    uint32_t *order = malloc(count * sizeof *order);
    uint64_t sum = 0;

    CHECK(order, "no memory for %u samples", count);
    if (!order)
        return;
    hvt_sampler_permutation(3, 0, count, order);
    for (uint32_t i = 0; i < count; i++)
        sum += (uint64_t)order[i] * (i + 1);
    CHECK(!memcmp(order, head, sizeof head), "begins %u %u", order[0], order[1]);
    CHECK(!memcmp(order + count - 8, tail, sizeof tail), "ends %u", order[count - 1]);
    CHECK(sum == 7780486149132044096u, "weighted sum %llu", (unsigned long long)sum);
    free(order);
}

/* Shard by shard, DistributedSampler's list for rank `shard`. */
static void check_shards(const uint32_t *order, uint32_t count, int shards, hvt_last_batch tail,
                         const uint32_t *want, uint32_t each)
{
    for (int s = 0; s < shards; s++) {
        CHECK(hvt_sampler_count(count, shards, s, tail) == each, "shard %d of %d has %u of %u, expected %u",
              s, shards, hvt_sampler_count(count, shards, s, tail), count, each);
        for (uint32_t i = 0; i < each; i++) {
            uint32_t at = hvt_sampler_at(count, shards, s, i), got = order ? order[at] : at;

            CHECK(got == want[s * each + i], "shard %d, sample %u is %u, expected %u", s, i, got,
                  want[s * each + i]);
        }
    }
}

TEST(shards_are_the_ranks_of_distributed_sampler)
{
    uint32_t order[10];

    hvt_sampler_permutation(0, 0, 10, order);
    check_shards(order, 10, 4, HVT_LAST_BATCH_PAD, (const uint32_t[]){4, 3, 6, 1, 9, 2, 7, 0, 4, 5, 8, 1}, 3);
    check_shards(order, 10, 4, HVT_LAST_BATCH_DROP, (const uint32_t[]){4, 3, 1, 9, 7, 0, 5, 8}, 2);
    hvt_sampler_permutation(0, 1, 10, order);
    check_shards(order, 10, 4, HVT_LAST_BATCH_PAD, (const uint32_t[]){5, 0, 7, 6, 8, 4, 1, 9, 5, 2, 3, 6}, 3);
    check_shards(NULL, 10, 4, HVT_LAST_BATCH_PAD, (const uint32_t[]){0, 4, 8, 1, 5, 9, 2, 6, 0, 3, 7, 1}, 3);
    /* more padding than samples: the list is repeated */
    check_shards(NULL, 3, 8, HVT_LAST_BATCH_PAD, (const uint32_t[]){0, 1, 2, 0, 1, 2, 0, 1}, 1);
    check_shards(NULL, 3, 8, HVT_LAST_BATCH_DROP, NULL, 0);
}

TEST(sample_counts_are_those_of_distributed_sampler)
{
    const struct {
        uint32_t count;
        int shards;
        uint32_t pad, drop;
    } want[] = {{50000, 3, 16667, 16666},
                {50000, 8, 6250, 6250},
                {50000, 16, 3125, 3125},
                {1281167, 8, 160146, 160145},
                {1281167, 16, 80073, 80072},
                {5000, 16, 313, 312},
                {UINT32_MAX, 2, 1u << 31, INT32_MAX}};

    for (size_t t = 0; t < HVT_LEN(want); t++) {
        uint64_t exact = 0;

        for (int s = 0; s < want[t].shards; s++) {
            exact += hvt_sampler_count(want[t].count, want[t].shards, s, HVT_LAST_BATCH_KEEP);
            CHECK(hvt_sampler_count(want[t].count, want[t].shards, s, HVT_LAST_BATCH_PAD) == want[t].pad,
                  "%u over %d, shard %d", want[t].count, want[t].shards, s);
            CHECK(hvt_sampler_count(want[t].count, want[t].shards, s, HVT_LAST_BATCH_DROP) == want[t].drop,
                  "%u over %d, shard %d", want[t].count, want[t].shards, s);
        }
        CHECK(exact == want[t].count, "exact shards of %u hold %llu", want[t].count,
              (unsigned long long)exact);
    }
    CHECK(hvt_sampler_at(UINT32_MAX, 2, 1, INT32_MAX) == 0, "the pad of an odd count is sample 0, not %u",
          hvt_sampler_at(UINT32_MAX, 2, 1, INT32_MAX));
}

TEST(balanced_draws_have_equally_many_images_of_each_class)
{
    enum { COUNT = 3000, CLASSES = 4 };
    static const uint32_t images[CLASSES] = {2500, 0, 480, 20};
    uint32_t order[COUNT], again[COUNT], drawn[CLASSES] = {0}, times[COUNT] = {0}, moved = 0, distinct = 0;
    uint8_t copy[COUNT], copies[COUNT];
    int32_t label[COUNT];

    for (uint32_t i = 0; i < COUNT; i++) /* classes are spread over the set */
        label[i] = i * 7 % COUNT < images[0] ? 0 : i * 7 % COUNT < images[0] + images[2] ? 2 : 3;
    CHECK_OK(hvt_sampler_balanced(1, 0, COUNT, label, order, copy));
    CHECK_OK(hvt_sampler_balanced(1, 0, COUNT, label, again, copies));
    CHECK(!memcmp(order, again, sizeof order) && !memcmp(copy, copies, sizeof copy), "two draws differ");
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(copy[i] == (uint8_t)times[order[i]]++, "position %u has copy %u of image %u", i, copy[i],
              order[i]);
        drawn[label[order[i]]]++;
    }
    for (int c = 0; c < CLASSES; c++) /* five standard deviations of a binomial variate */
        CHECK(images[c] ? fabs(drawn[c] - COUNT / 3.0) < 5 * sqrt(COUNT * 2 / 9.0) : !drawn[c],
              "class %d is drawn %u times", c, drawn[c]);
    for (uint32_t i = 0; i < COUNT; i++)
        distinct += times[i] > 0;
    CHECK(distinct > 1100 && distinct < 1500, "%u images are drawn",
          distinct); /* 816 + 421 + 20 are expected */
    CHECK_OK(hvt_sampler_balanced(1, 1, COUNT, label, again, copies));
    for (uint32_t i = 0; i < COUNT; i++)
        moved += order[i] != again[i];
    CHECK(moved > COUNT / 2, "another epoch has the same order, but for %u", moved);
}

int main(void)
{
    RUN(permutations_are_those_of_torch_randperm);
    RUN(the_order_of_cifar_is_pytorchs);
    RUN(shards_are_the_ranks_of_distributed_sampler);
    RUN(sample_counts_are_those_of_distributed_sampler);
    RUN(balanced_draws_have_equally_many_images_of_each_class);
    if (getenv("HVT_TEST_LARGE"))
        RUN(permutations_of_many_samples_draw_64_bits);
    else
        check_skip("permutations_of_many_samples_draw_64_bits", "HVT_TEST_LARGE is not set");
    return check_done();
}
