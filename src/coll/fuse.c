/*
 * Tensors of a host program, fused: packed into buckets that travel as one sum each.
 *
 * A *piece* is one tensor, a *bucket* neighbouring pieces of one type with a span of the comm's memory.
 * Pieces become ready in any order, which may differ from rank to rank; buckets leave in theirs, so every
 * rank issues the same sums.
 */
#include "base_impl.h"
#include "coll.h"
#include "world/items.h"

#include <stdlib.h>
#include <string.h>

typedef struct bucket {
    int first, end; /* pieces */
    size_t count;   /* elements */
    hvt_dtype type;
    char *at; /* in the comm's memory */
    hvt_ticket ticket;
    int missing; /* pieces that are not packed in this step */
} bucket;

struct hvt_fuse {
    hvt_comm *comm;   /* borrowed */
    hvt_piece *piece; /* [pieces] without names */
    bool *packed;     /* [pieces] in this step */
    int pieces, buckets, launched;
    bucket *bucket;
    size_t bytes;
    char *memory; /* the comm's */
    hvt_reduction how;
};

/* ---- life --------------------------------------------------------------------------------- */

static hvt_status check(const hvt_comm *c, const hvt_piece *pieces, int n, hvt_reduction how)
{
    HVT_CHECK(n > 0 && pieces, E_ARG, "%d tensors to fuse", n);
    HVT_CHECK(c->dev->ops->host, E_UNSUPPORTED, "fused tensors lie in host memory; device '%s' has its own",
              hvt_device_name(c->dev));
    HVT_CHECK(how == HVT_SUM || how == HVT_AVERAGE, E_ARG,
              "fused tensors are summed or averaged; reduction %d", (int)how);
    for (int i = 0; i < n; i++) {
        const hvt_piece *p = &pieces[i];

        HVT_CHECK(p->dtype == HVT_F32 || p->dtype == HVT_F16 || p->dtype == HVT_BF16, E_ARG,
                  "tensor %d (%s) is %s; f32, f16 and bf16 can be fused", i, p->name ? p->name : "",
                  hvt_dtype_name(p->dtype));
        HVT_CHECK(p->count <= PTRDIFF_MAX / 8 / (size_t)n, E_ARG, "tensor %d (%s) has %zu elements", i,
                  p->name ? p->name : "", p->count);
        HVT_CHECK(p->data || !p->count, E_ARG, "tensor %d (%s) of %zu elements has no address", i,
                  p->name ? p->name : "", p->count);
    }
    return HVT_OK;
}

/* Neighbours share a bucket as long as type and size allow. */
static void fill_buckets(hvt_fuse *f, size_t most)
{
    for (int i = 0; i < f->pieces; i++) {
        const hvt_piece *p = &f->piece[i];
        bucket *b = f->buckets ? &f->bucket[f->buckets - 1] : NULL;
        size_t size = hvt_dtype_size(p->dtype);

        bool fits = p->count == 0 || (b && (b->count + p->count) * size <= most);

        if (!b || b->type != p->dtype || !most || !fits)
            f->bucket[f->buckets++] = (bucket){.first = i, .type = p->dtype};
        b = &f->bucket[f->buckets - 1];
        b->count += p->count;
        b->end = i + 1;
        b->missing++;
    }
    for (int k = 0; k < f->buckets; k++)
        f->bytes += (f->bucket[k].count * hvt_dtype_size(f->bucket[k].type) + 63) / 64 * 64;
}

/* A tensor that is registered twice would be summed twice. */
static hvt_status check_duplicates(const hvt_piece *pieces, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = 0; k < i; k++) {
            const char *a = pieces[i].name, *b = pieces[k].name;

            HVT_CHECK(!a || !b || strcmp(a, b) != 0, E_ARG, "tensors %d and %d are both called %s", k, i, a);
            HVT_CHECK(!pieces[i].count || !pieces[k].count || pieces[i].data != pieces[k].data, E_ARG,
                      "tensors %d (%s) and %d (%s) are the same memory", k, b ? b : "no name", i,
                      a ? a : "no name");
        }
    return HVT_OK;
}

/* All that a rank can make without the others. */
static hvt_status make(hvt_fuse *f, const hvt_piece *pieces, int n, size_t most)
{
    f->pieces = n;
    f->piece = malloc((size_t)n * sizeof *f->piece);
    f->packed = calloc((size_t)n, sizeof *f->packed);
    f->bucket = calloc((size_t)n, sizeof *f->bucket);
    HVT_CHECK(f->piece && f->packed && f->bucket, E_MEM, "no memory to fuse %d tensors", n);
    for (int i = 0; i < n; i++) {
        f->piece[i] = pieces[i];
        f->piece[i].name = NULL;
    }
    fill_buckets(f, most);
    return HVT_OK;
}

static hvt_status compare(hvt_comm *c, const hvt_piece *pieces, int n, size_t most, hvt_reduction how)
{
    hvt__items items = {0};

    for (int i = 0; i < n; i++)
        if (pieces[i].name)
            hvt__items_add(&items, "fused tensor %s\t[%zu] %s", pieces[i].name, pieces[i].count,
                           hvt_dtype_name(pieces[i].dtype));
        else
            hvt__items_add(&items, "fused tensor %d\t[%zu] %s", i, pieces[i].count,
                           hvt_dtype_name(pieces[i].dtype));
    hvt__items_add(&items, "size of fused buckets\t%zu bytes", most);
    hvt__items_add(&items, "reduction of fused tensors\t%s", how == HVT_SUM ? "sum" : "average");
    return hvt__items_compare(&items, c->world);
}

hvt_status hvt_fuse_create(hvt_comm *comm, const hvt_piece *pieces, int n, size_t bucket_bytes,
                           hvt_reduction how, hvt_fuse **ret_fuse)
{
    hvt_fuse *f = NULL;
    hvt_status s = HVT_OK;
    char *at;

    HVT_CHECK(comm, E_ARG, "no comm to fuse %d tensors with", n);
    f = calloc(1, sizeof *f);
    if (!f)
        s = HVT_FAIL(E_MEM, "no memory to fuse %d tensors", n);
    else if (!ret_fuse)
        s = HVT_FAIL(E_ARG, "no place for %d fused tensors", n);
    if (f && s == HVT_OK) {
        f->comm = comm;
        f->how = how;
        s = check(comm, pieces, n, how);
    }
    if (s == HVT_OK)
        s = check_duplicates(pieces, n);
    if (s == HVT_OK)
        s = make(f, pieces, n, bucket_bytes);
    HVT_TRY_OR(fail, hvt_world_agree(comm->world, s));
    HVT_TRY_OR(fail, compare(comm, pieces, n, bucket_bytes, how));
    HVT_TRY_OR(fail, hvt_comm_alloc(comm, f->bytes + 1, (void **)&f->memory));
    at = f->memory;
    for (int k = 0; k < f->buckets; k++) {
        f->bucket[k].at = at;
        at += (f->bucket[k].count * hvt_dtype_size(f->bucket[k].type) + 63) / 64 * 64;
    }
    *ret_fuse = f;
    return HVT_OK;
fail:
    hvt_fuse_free(&f);
    return s;
}

void hvt_fuse_free(hvt_fuse **fuse)
{
    hvt_fuse *f = fuse ? *fuse : NULL;

    if (!f)
        return;
    hvt_comm_release(f->comm, f->memory);
    free(f->piece);
    free(f->packed);
    free(f->bucket);
    free(f);
    *fuse = NULL;
}

int hvt_fuse_buckets(const hvt_fuse *fuse)
{
    return fuse ? fuse->buckets : 0;
}

/* ---- a step ------------------------------------------------------------------------------- */

static hvt_status pack(hvt_fuse *f, bucket *b, int i)
{
    hvt_device *d = f->comm->dev;
    size_t size = hvt_dtype_size(b->type);
    const hvt_piece *p = &f->piece[i];
    bool mean = f->how == HVT_AVERAGE && b->type != HVT_F32;
    char *to = b->at;

    for (int k = b->first; k < i; k++)
        to += f->piece[k].count * size;
    if (mean && p->count)
        HVT_TRY(d->ops->cast(d, p->count, 1 / (float)f->comm->world->size, p->data, b->type, to, b->type));
    else if (p->count)
        HVT_TRY(d->ops->copy(d, to, p->data, p->count * size));
    f->packed[i] = true;
    b->missing--;
    return HVT_OK;
}

static hvt_status launch_full(hvt_fuse *f)
{
    for (bucket *b = &f->bucket[f->launched]; f->launched < f->buckets && !b->missing; b++) {
        HVT_TRY(hvt_comm_allreduce(f->comm, b->at, b->count, b->type, &b->ticket));
        f->launched++;
    }
    return HVT_OK;
}

static hvt_status unpack(hvt_fuse *f, bucket *b)
{
    hvt_device *d = f->comm->dev;
    size_t size = hvt_dtype_size(b->type);
    const char *from = b->at;

    for (int i = b->first; i < b->end; i++) {
        hvt_piece *p = &f->piece[i];

        if (p->count)
            HVT_TRY(d->ops->copy(d, p->data, from, p->count * size));
        if (f->how == HVT_AVERAGE && b->type == HVT_F32)
            hvt__scale_f32(p->data, p->count, 1.0 / f->comm->world->size);
        from += p->count * size;
    }
    return HVT_OK;
}

hvt_status hvt_fuse_ready(hvt_fuse *f, int i)
{
    bucket *b;

    HVT_CHECK(f, E_ARG, "fused tensor %d: of nothing that is fused", i);
    b = f->bucket;
    HVT_CHECK(i >= 0 && i < f->pieces, E_ARG, "fused tensor %d is not one of %d", i, f->pieces);
    HVT_CHECK(!f->packed[i], E_ARG, "fused tensor %d was ready already in this step", i);
    while (b->end <= i)
        b++;
    HVT_TRY(pack(f, b, i));
    return launch_full(f);
}

hvt_status hvt_fuse_exchange(hvt_fuse *f)
{
    HVT_CHECK(f, E_ARG, "nothing that is fused to exchange");
    for (bucket *b = f->bucket; b < f->bucket + f->buckets; b++)
        for (int i = b->first; i < b->end; i++)
            if (!f->packed[i]) {
                HVT_TRY(pack(f, b, i));
                HVT_TRY(launch_full(f));
            }
    for (bucket *b = f->bucket; b < f->bucket + f->buckets; b++) {
        HVT_TRY(hvt_comm_wait(f->comm, b->ticket));
        HVT_TRY(unpack(f, b));
        b->missing = b->end - b->first;
        for (int i = b->first; i < b->end; i++)
            f->packed[i] = false;
    }
    f->launched = 0;
    return HVT_OK;
}
