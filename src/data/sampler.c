/*
 * The order of samples: PyTorch's, bit for bit, or balanced draws.
 *
 * An epoch's order is torch.randperm(count) with a generator seeded seed + epoch: MT19937 and a Fisher-Yates
 * shuffle whose modulo bias is part of the contract. Shards take it with a stride, as DistributedSampler's
 * ranks do. Invariant: without padding the shards' samples are disjoint. Sources: Matsumoto, Nishimura,
 * "Mersenne Twister" (1998); PyTorch's randperm on the CPU.
 */
#include "hvt/data.h"
#include "base_impl.h"

enum { MT_N = 624, MT_M = 397 };

typedef struct mt19937 {
    uint32_t state[MT_N];
    int next;
} mt19937;

static void mt_seed(mt19937 *g, uint32_t seed)
{
    g->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ (g->state[i - 1] >> 30)) + i;
    g->next = MT_N;
}

static uint32_t twist(uint32_t far, uint32_t here, uint32_t after)
{
    return far ^ (((here & 0x80000000u) | (after & 0x7fffffffu)) >> 1) ^ (after & 1 ? 0x9908b0dfu : 0);
}

static void mt_refill(mt19937 *g)
{
    uint32_t *s = g->state;

    for (int i = 0; i < MT_N; i++)
        s[i] = twist(s[(i + MT_M) % MT_N], s[i], s[(i + 1) % MT_N]);
    g->next = 0;
}

static uint32_t mt_draw(mt19937 *g)
{
    uint32_t y;

    if (g->next == MT_N)
        mt_refill(g);
    y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void hvt_sampler_permutation(uint64_t seed, int epoch, uint32_t count, uint32_t *ret_order)
{
    mt19937 g;

    if (!ret_order)
        return;
    mt_seed(&g, (uint32_t)(seed + (uint64_t)epoch));
    if (count >= UINT32_MAX / 20) { /* the inside-out shuffle; the first draw is the upper half */
        for (uint32_t i = 0; i < count; i++) {
            uint64_t high = mt_draw(&g);
            uint32_t z = (uint32_t)((high << 32 | mt_draw(&g)) % ((uint64_t)i + 1));

            ret_order[i] = i;
            ret_order[i] = ret_order[z];
            ret_order[z] = i;
        }
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        ret_order[i] = i;
    for (uint32_t i = 0; i + 1 < count; i++) {
        uint32_t z = i + mt_draw(&g) % (count - i), t = ret_order[i];

        ret_order[i] = ret_order[z];
        ret_order[z] = t;
    }
}

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Sorts images by class: image[i] has its label in the upper half. first: the index at which each class with
 * images begins, and the end. Returns the number of these classes. */
static uint32_t group(uint32_t count, const int32_t *labels, uint64_t *image, uint32_t *first)
{
    uint32_t present = 0;

    for (uint32_t i = 0; i < count; i++)
        image[i] = (uint64_t)labels[i] << 32 | i;
    qsort(image, count, sizeof *image, by_key);
    for (uint32_t i = 0; i < count; i++)
        if (!i || image[i] >> 32 != image[i - 1] >> 32)
            first[present++] = i;
    first[present] = count;
    return present;
}

hvt_status hvt_sampler_balanced(uint64_t seed, int epoch, uint32_t count, const int32_t *labels,
                                uint32_t *ret_order, uint8_t *ret_copy)
{
    enum { DRAW_CLASS = 0x0b00, DRAW_IMAGE };
    const size_t n = (size_t)count + 1;

    HVT_GIVEN(labels, "the labels");
    HVT_GIVEN(ret_order, "an output pointer for the order");
    HVT_GIVEN(ret_copy, "an output pointer for the copies");
    HVT_CHECK(epoch >= 0, E_ARG, "epoch is %d, expected 0 or more", epoch);
    for (uint32_t i = 0; i < count; i++)
        HVT_CHECK(labels[i] >= 0, E_ARG, "the label of image %u is %d, expected 0 or more", i, labels[i]);

    uint64_t *image = malloc(n * sizeof *image);
    uint32_t *first = malloc(n * sizeof *first), present;
    uint8_t *copies = calloc(n, sizeof *copies);
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, image && copies && first, E_MEM, "no memory to draw %u images", count);
    present = group(count, labels, image, first);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t c = hvt__below(hvt__draw(seed, (uint64_t)epoch, i, DRAW_CLASS), present);
        uint32_t k = hvt__below(hvt__draw(seed, (uint64_t)epoch, i, DRAW_IMAGE), first[c + 1] - first[c]);

        ret_order[i] = (uint32_t)image[first[c] + k];
        ret_copy[i] = copies[ret_order[i]]++;
    }
done:
    free(first);
    free(image);
    free(copies);
    return s;
}

uint32_t hvt_sampler_count(uint32_t count, int shards, int shard, hvt_last_batch last_batch)
{
    if (shards < 1)
        return 0;
    uint32_t each = count / (uint32_t)shards, left = count % (uint32_t)shards;

    bool one_more = last_batch == HVT_LAST_BATCH_KEEP ? (uint32_t)shard < left
                                                      : last_batch == HVT_LAST_BATCH_PAD && left > 0;

    return each + one_more;
}

uint32_t hvt_sampler_at(uint32_t count, int shards, int shard, uint32_t i)
{
    return !count ? 0 : (uint32_t)(((uint64_t)shard + (uint64_t)i * (uint64_t)shards) % count);
}
