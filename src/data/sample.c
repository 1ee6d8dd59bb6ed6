/*
 * Samples of a set: the images that --limit keeps and --val-split holds out.
 *
 * Every class gets its share, rounded by the largest remainders; if at least as many images are wanted as
 * there are classes, every class gets one or more. Within a class a permutation decides. The choice depends
 * only on labels, numbers and the seed: it is the same on every rank and in every format.
 */
#include "data_impl.h"

typedef struct stratum { /* the images of a class */
    uint32_t has, least, most, take;
    bool fixed;         /* its share was beyond `least` or `most`, so that bound applies */
    uint64_t left, tie; /* remainder of the share; order among equal remainders */
} stratum;

typedef struct strata {
    stratum *at;
    size_t n;
    uint64_t wanted, images; /* in all classes that are not fixed */
} strata;

/* Sets each class's bounds. leave: keeps one image of each class out, if the others are enough. */
static void bound(strata *s, uint32_t wanted, bool leave)
{
    uint64_t most = 0, can = 0;

    for (size_t c = 0; c < s->n; c++)
        most += s->at[c].has ? s->at[c].has - 1 : 0;
    leave = leave && most >= wanted;
    for (size_t c = 0; c < s->n; c++)
        can += s->at[c].has > leave;
    for (size_t c = 0; c < s->n; c++) {
        stratum *x = &s->at[c];

        x->most = x->has ? x->has - leave : 0;
        x->least = x->most && wanted >= can;
        s->images += x->has;
    }
    s->wanted = wanted;
}

/* Fixes all classes whose share is beyond a bound, until none is. */
static void fix(strata *s, bool above)
{
    for (bool more = true; more;) {
        uint64_t wanted = s->wanted, images = s->images;

        more = false;
        for (size_t c = 0; c < s->n; c++) {
            stratum *x = &s->at[c];
            uint64_t share = wanted * x->has; /* share * images */

            if (x->fixed || (above ? share <= x->most * images : share >= x->least * images))
                continue;
            x->take = above ? x->most : x->least;
            x->fixed = more = true;
            s->wanted -= x->take;
            s->images -= x->has;
        }
    }
}

static int by_remainder(const void *a, const void *b)
{
    const stratum *x = *(stratum *const *)a, *y = *(stratum *const *)b;

    if (x->left != y->left)
        return x->left > y->left ? -1 : 1;
    return (x->tie > y->tie) - (x->tie < y->tie);
}

/* Sets the number of images of each class. */
static hvt_status divide(strata *s, uint64_t seed)
{
    stratum **order = malloc((s->n + 1) * sizeof *order);
    uint64_t wanted, rest;
    size_t n = 0;

    HVT_CHECK(order, E_MEM, "no memory to divide images among %zu classes", s->n);
    fix(s, true);
    fix(s, false);
    wanted = rest = s->wanted;
    for (size_t c = 0; c < s->n; c++) {
        stratum *x = &s->at[c];

        if (x->fixed || !x->has)
            continue;
        x->take = (uint32_t)(wanted * x->has / s->images);
        x->left = wanted * x->has % s->images;
        x->tie = hvt__mix(seed ^ hvt__mix(c + 1));
        rest -= x->take;
        order[n++] = x;
    }
    if (n)
        qsort(order, n, sizeof *order, by_remainder);
    for (size_t i = 0; i < rest; i++)
        order[i]->take++;
    free(order);
    return HVT_OK;
}

static size_t stratum_of(const int32_t *label, uint32_t i)
{
    return label ? (size_t)(label[i] + 1) : 0;
}

hvt_status hvt__sample(const int32_t *label, uint32_t count, uint32_t wanted, uint64_t seed, bool leave_one,
                       bool *ret_chosen)
{
    uint32_t *order = malloc((count + (size_t)1) * sizeof *order);
    strata all = {.n = 1};
    hvt_status s = HVT_OK;

    for (uint32_t i = 0; i < count; i++)
        all.n = stratum_of(label, i) < all.n ? all.n : stratum_of(label, i) + 1;
    all.at = calloc(all.n, sizeof *all.at);
    HVT_CHECK_OR(done, order && all.at, E_MEM, "no memory to choose %u of %u images", wanted, count);
    for (uint32_t i = 0; i < count; i++)
        all.at[stratum_of(label, i)].has++;
    bound(&all, wanted, leave_one);
    HVT_TRY_OR(done, divide(&all, seed));
    hvt_sampler_permutation(seed, 0, count, order);
    for (uint32_t i = 0; i < count; i++) {
        stratum *x = &all.at[stratum_of(label, order[i])];

        ret_chosen[order[i]] = x->take > 0;
        x->take -= x->take > 0;
    }
done:
    free(order);
    free(all.at);
    return s;
}
