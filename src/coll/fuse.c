/*
 * Fusion of a program's tensors: they are packed into buckets, and each bucket is one sum.
 *
 * A *piece* is one tensor; a *bucket* is a run of pieces of one type with a span of the comm's memory. Pieces
 * become ready in any order, which may differ between ranks. Buckets are sent in their own order, so every
 * rank issues the same sums.
 */
#include "base_impl.h"
#include "coll.h"
#include "world/items.h"

typedef struct bucket {
    int first, end; /* pieces */
    size_t at;      /* offset in the comm's memory, in bytes */
    size_t count;   /* elements */
    hvt_dtype type;
    hvt_ticket ticket;
    int missing; /* pieces not yet packed in this step */
} bucket;

typedef struct piece {
    void *data; /* the program's */
    size_t count, at;
    bucket *in;
    bool packed; /* in this step */
} piece;

struct hvt_fuse {
    hvt_comm *comm; /* borrowed */
    hvt_reduction how;
    int pieces, buckets, launched;
    piece *piece;
    bucket *bucket;
    size_t bytes;
    char *memory; /* the comm's */
};

static hvt_status check(const hvt_comm *c, const hvt_piece *pieces, int n, hvt_reduction how)
{
    HVT_CHECK(n > 0 && pieces, E_ARG, "%d tensors to fuse, expected 1 or more and a list of them", n);
    HVT_CHECK(c->dev->ops->host, E_UNSUPPORTED,
              "expected a comm on host memory for fused tensors, got device '%s'", hvt_device_name(c->dev));
    HVT_CHECK(how == HVT_SUM || how == HVT_AVERAGE, E_ARG,
              "expected a sum or an average of fused tensors, got reduction %d", (int)how);
    for (int i = 0; i < n; i++) {
        const hvt_piece *p = &pieces[i];
        const char *name = p->name ? p->name : "no name";

        HVT_CHECK(p->dtype == HVT_F32 || p->dtype == HVT_F16 || p->dtype == HVT_BF16, E_ARG,
                  "tensor %d (%s) is %s; f32, f16 and bf16 can be fused", i, name, hvt_dtype_name(p->dtype));
        HVT_CHECK(p->count <= PTRDIFF_MAX / 8 / (size_t)n, E_ARG, "tensor %d (%s): %zu elements are too many",
                  i, name, p->count);
        HVT_CHECK(p->data || !p->count, E_ARG, "tensor %d (%s) of %zu elements has no address", i, name,
                  p->count);
        for (const hvt_piece *q = pieces; q < p; q++) { /* a tensor given twice would be summed twice */
            HVT_CHECK(!p->name || !q->name || strcmp(p->name, q->name) != 0, E_ARG,
                      "tensors %d and %d are both called %s", (int)(q - pieces), i, name);
            HVT_CHECK(!p->count || !q->count || p->data != q->data, E_ARG,
                      "tensors %d (%s) and %d (%s) have the same address", (int)(q - pieces),
                      q->name ? q->name : "no name", i, name);
        }
    }
    return HVT_OK;
}

/* Consecutive pieces share a bucket while type and size allow. */
static void fill_buckets(hvt_fuse *f, const hvt_piece *pieces, size_t most)
{
    bucket *b = NULL;

    for (int i = 0; i < f->pieces; i++) {
        const hvt_piece *p = &pieces[i];
        size_t size = hvt_dtype_size(p->dtype);

        if (!b || b->type != p->dtype || !most || (p->count && (b->count + p->count) * size > most)) {
            f->bytes = (f->bytes + 63) / 64 * 64;
            b = &f->bucket[f->buckets++];
            *b = (bucket){.first = i, .at = f->bytes, .type = p->dtype};
        }
        f->piece[i] = (piece){.data = p->data, .count = p->count, .at = f->bytes, .in = b};
        f->bytes += p->count * size;
        b->count += p->count;
        b->end = i + 1;
        b->missing++;
    }
}

/* The local part of create. */
static hvt_status make(hvt_fuse *f, const hvt_piece *pieces, size_t most)
{
    size_t n = (size_t)f->pieces;

    HVT_TRY(check(f->comm, pieces, f->pieces, f->how));
    f->piece = malloc(n * sizeof *f->piece);
    f->bucket = malloc(n * sizeof *f->bucket);
    HVT_CHECK(f->piece && f->bucket, E_MEM, "no memory to fuse %zu tensors", n);
    fill_buckets(f, pieces, most);
    return HVT_OK;
}

static hvt_status compare(hvt_comm *c, const hvt_piece *pieces, int n, size_t most, hvt_reduction how)
{
    hvt__items items = {0};

    for (int i = 0; i < n; i++) {
        char number[16];

        snprintf(number, sizeof number, "%d", i);
        hvt__items_add(&items, "fused tensor %s\t[%zu] %s", pieces[i].name ? pieces[i].name : number,
                       pieces[i].count, hvt_dtype_name(pieces[i].dtype));
    }
    hvt__items_add(&items, "size of fused buckets\t%zu bytes", most);
    hvt__items_add(&items, "reduction of fused tensors\t%s", how == HVT_SUM ? "sum" : "average");
    return hvt__items_compare(&items, c->world);
}

hvt_status hvt_fuse_create(hvt_comm *comm, const hvt_piece *pieces, int n, size_t bucket_bytes,
                           hvt_reduction how, hvt_fuse **ret_fuse)
{
    hvt_fuse *f;
    hvt_status s;

    HVT_CHECK(comm, E_ARG, "no comm to fuse %d tensors with", n);
    f = calloc(1, sizeof *f);
    if (f) {
        *f = (hvt_fuse){.comm = comm, .how = how, .pieces = n};
        s = ret_fuse ? make(f, pieces, bucket_bytes)
                     : HVT_FAIL(E_ARG, "no output pointer for %d fused tensors", n);
    } else {
        s = HVT_FAIL(E_MEM, "no memory to fuse %d tensors", n);
    }
    HVT_TRY_OR(fail, hvt_world_agree(comm->world, s));
    HVT_TRY_OR(fail, compare(comm, pieces, n, bucket_bytes, how));
    HVT_TRY_OR(fail, hvt_comm_alloc(comm, f->bytes + 1, (void **)&f->memory));
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
    free(f->bucket);
    free(f);
    *fuse = NULL;
}

int hvt_fuse_buckets(const hvt_fuse *fuse)
{
    return fuse ? fuse->buckets : 0;
}

static hvt_status pack(hvt_fuse *f, piece *p)
{
    hvt_device *d = f->comm->dev;
    hvt_dtype type = p->in->type;
    char *to = f->memory + p->at;

    if (f->how == HVT_AVERAGE && type != HVT_F32 && p->count)
        HVT_TRY(d->ops->vector.cast(d, p->count, 1 / (float)f->comm->world->size, p->data, type, to, type));
    else if (p->count)
        HVT_TRY(d->ops->memory.copy(d, to, p->data, p->count * hvt_dtype_size(type)));
    p->packed = true;
    p->in->missing--;
    for (; f->launched < f->buckets && !f->bucket[f->launched].missing; f->launched++) {
        bucket *b = &f->bucket[f->launched];

        HVT_TRY(hvt_comm_allreduce(f->comm, f->memory + b->at, b->count, b->type, &b->ticket));
    }
    return HVT_OK;
}

static hvt_status unpack(hvt_fuse *f, bucket *b)
{
    hvt_device *d = f->comm->dev;

    for (piece *p = f->piece + b->first; p < f->piece + b->end; p++) {
        if (p->count)
            HVT_TRY(d->ops->memory.copy(d, p->data, f->memory + p->at, p->count * hvt_dtype_size(b->type)));
        if (f->how == HVT_AVERAGE && b->type == HVT_F32)
            hvt__scale_f32(p->data, p->count, 1.0 / f->comm->world->size);
        p->packed = false;
    }
    b->missing = b->end - b->first;
    return HVT_OK;
}

hvt_status hvt_fuse_ready(hvt_fuse *f, int i)
{
    HVT_CHECK(f, E_ARG, "no fused tensors to mark tensor %d of", i);
    HVT_CHECK(i >= 0 && i < f->pieces, E_ARG, "fused tensor %d is not one of %d", i, f->pieces);
    HVT_CHECK(!f->piece[i].packed, E_ARG, "fused tensor %d was ready already in this step", i);
    return pack(f, &f->piece[i]);
}

hvt_status hvt_fuse_exchange(hvt_fuse *f)
{
    HVT_CHECK(f, E_ARG, "no fused tensors to exchange");
    for (piece *p = f->piece; p < f->piece + f->pieces; p++)
        if (!p->packed)
            HVT_TRY(pack(f, p));
    for (bucket *b = f->bucket; b < f->bucket + f->buckets; b++) {
        HVT_TRY(hvt_comm_wait(f->comm, b->ticket));
        HVT_TRY(unpack(f, b));
    }
    f->launched = 0;
    return HVT_OK;
}
