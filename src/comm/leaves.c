/*
 * The plan of a sum over shards: which blocks of the tree each rank contributes, and in which order they are
 * added.
 */
#include "base_impl.h"
#include "comm_internal.h"

typedef struct plan {
    const int *first; /* [ranks + 1] */
    int shards, rank; /* rank: owner of the next leaf, or an earlier rank */
    bool each;        /* a leaf is one shard */
    hvt__leaves *l;
    int merges;
} plan;

/* Adds to the plan the leaves and merges of the block of `width` shards (a power of two) from `first` on.
 * Returns the leaf that will hold the block's sum. A block without a right half is its left half. */
static int add_block(plan *p, int first, int width)
{
    const int end = first + width < p->shards ? first + width : p->shards, mid = first + width / 2;
    int left, right;

    while (p->first[p->rank + 1] <= first)
        p->rank++;
    if (end <= p->first[p->rank + 1] && (!p->each || end - first == 1)) {
        p->l->leaf[p->l->n] = (hvt__leaf){p->rank, first, end};
        return p->l->n++;
    }
    left = add_block(p, first, width / 2);
    if (mid >= end)
        return left;
    right = add_block(p, mid, width / 2);
    p->l->merge[p->merges++] = (hvt__merge){left, right};
    return left;
}

/* Makes the plan in l, which has room for one leaf per shard. */
static void make(hvt__leaves *l, int ranks, const int *first, bool each, int *of)
{
    plan p = {.first = first, .shards = first[ranks], .each = each, .l = l};
    int width = 1;

    while (width < p.shards)
        width *= 2;
    l->ranks = ranks;
    l->n = l->most = 0;
    add_block(&p, 0, width);
    for (int r = 0, i = 0; r <= ranks; r++) {
        while (i < l->n && l->leaf[i].rank < r)
            i++;
        of[r] = i;
        if (r && of[r] - of[r - 1] > l->most)
            l->most = of[r] - of[r - 1];
    }
    l->of = of;
}

static hvt__leaves *alloc(int ranks, int leaves, int **ret_of)
{
    hvt__leaves *l = malloc(sizeof *l + (size_t)leaves * (sizeof *l->leaf + sizeof *l->merge) +
                            ((size_t)ranks + 1) * sizeof **ret_of);

    if (!l)
        return NULL;
    l->leaf = (hvt__leaf *)(l + 1);
    l->merge = (hvt__merge *)(l->leaf + leaves);
    *ret_of = (int *)(l->merge + leaves);
    return l;
}

hvt_status hvt__leaves_plan(int ranks, const int *first, bool each, hvt__leaves **ret_leaves)
{
    int *of, *ones = malloc(((size_t)ranks + 1) * sizeof *ones);
    hvt__leaves *mine = alloc(ranks, first[ranks], &of), *tree;
    bool same;
    int *tree_of;

    tree = alloc(ranks, ranks, &tree_of);
    *ret_leaves = NULL;
    if (!mine || !tree || !ones) {
        free(mine);
        free(tree);
        free(ones);
        return HVT_FAIL(E_MEM, "no memory for the sums of %d shards on %d ranks", first[ranks], ranks);
    }
    for (int r = 0; r <= ranks; r++)
        ones[r] = r;
    make(mine, ranks, first, each, of);
    make(tree, ranks, ones, false, tree_of);
    same = mine->n == ranks &&
           (ranks == 1 || !memcmp(mine->merge, tree->merge, (size_t)(ranks - 1) * sizeof *mine->merge));
    free(tree);
    free(ones);
    if (same)
        free(mine);
    else
        *ret_leaves = mine;
    return HVT_OK;
}

hvt_status hvt__leaves_add(hvt_device *dev, const hvt__leaves *l, size_t n, void *const part[])
{
    for (const hvt__merge *m = l->merge; m < l->merge + l->n - 1; m++) {
        const void *in[2] = {part[m->left], part[m->right]};

        HVT_TRY(dev->ops->vector.reduce(dev, n, HVT_F32, in, 2, part[m->left]));
    }
    return HVT_OK;
}

hvt_status hvt__leaves_add_own(hvt_device *dev, const hvt__op *op)
{
    const hvt__partials *p = &op->partials;
    const int last = p->leaves ? p->leaves->n - 1 : 0;
    float *own = op->buf;

    for (int i = 0; i < last; i++) {
        const hvt__merge *m = &p->leaves->merge[i];
        float *left = p->extra + (size_t)m->left * p->stride;
        const void *in[2] = {left, m->right < last ? p->extra + (size_t)m->right * p->stride : own};

        HVT_TRY(dev->ops->vector.reduce(dev, op->count, HVT_F32, in, 2, left));
    }
    return last ? dev->ops->memory.copy(dev, own, p->extra, op->count * sizeof *own) : HVT_OK;
}

bool hvt__comm_can_sum(const hvt_comm *comm)
{
    return comm->ops->leaves && comm->dev->ops->host;
}

hvt_status hvt__comm_reserve(hvt_comm *comm, const hvt__leaves *leaves)
{
    hvt__worker_rest(comm);
    return comm->ops->reserve ? comm->ops->reserve(comm, leaves) : HVT_OK;
}

hvt_status hvt__comm_sum(hvt_comm *comm, hvt__sum kind, float *buf, size_t count,
                         const hvt__partials *partials, hvt_reduce_apply_fn *apply, void *ctx,
                         hvt_ticket *ret_ticket)
{
    static const hvt__op_kind kinds[] = {HVT__ALLREDUCE, HVT__REDUCE_SCATTER, HVT__REDUCE_APPLY};

    return hvt__queue_add(comm,
                          &(hvt__op){.kind = kinds[kind],
                                     .type = HVT_F32,
                                     .buf = buf,
                                     .count = count,
                                     .apply = apply,
                                     .ctx = ctx,
                                     .partials = *partials},
                          ret_ticket);
}
