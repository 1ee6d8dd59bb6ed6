/*
 * Fusion of a program's tensors: they are packed into buckets, and each bucket is one sum.
 *
 * A *piece* is one tensor; a *bucket* is a run of pieces of one wire type with a span of the comm's memory.
 * Pieces become ready in any order, which may differ between ranks. Buckets are sent in order of their index,
 * so every rank issues the same sums. The last bucket has one more element, which counts the ranks that have
 * not joined: a rank that has joined sends zeros until that sum is 0.
 */
#include "base_impl.h"
#include "coll.h"
#include "world/items.h"

typedef struct bucket {
    int first, end; /* pieces */
    size_t at;      /* offset in the comm's memory, in bytes */
    size_t count;   /* elements */
    hvt_dtype type; /* on the wire */
    hvt_ticket ticket;
    int missing; /* pieces not yet packed in this step */
} bucket;

typedef struct piece {
    void *data; /* the program's tensor; NULL: none in this step */
    hvt_dtype type;
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
    int64_t steps; /* steps ended since the last join */
    bool joined;   /* this rank sends zeros */
    char *memory;  /* the comm's */
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

        HVT_CHECK(p->dtype == HVT_F32 || p->dtype == HVT_F64 || p->dtype == HVT_F16 || p->dtype == HVT_BF16,
                  E_ARG, "tensor %d (%s) is %s; f16, bf16, f32 and f64 can be fused", i, name,
                  hvt_dtype_name(p->dtype));
        HVT_CHECK(p->wire == HVT_F32 || p->wire == p->dtype ||
                      (p->dtype == HVT_F32 && (p->wire == HVT_F16 || p->wire == HVT_BF16)),
                  E_ARG, "tensor %d (%s) is %s, and its wire %s; f32 can be sent as f16 or bf16", i, name,
                  hvt_dtype_name(p->dtype), hvt_dtype_name(p->wire));
        HVT_CHECK(p->count <= PTRDIFF_MAX / 8 / (size_t)n, E_ARG, "tensor %d (%s): %zu elements are too many",
                  i, name, p->count);
        for (const hvt_piece *q = pieces; q < p; q++) { /* a tensor given twice would be summed twice */
            HVT_CHECK(!p->name || !q->name || strcmp(p->name, q->name) != 0, E_ARG,
                      "tensors %d and %d are both called %s", (int)(q - pieces), i, name);
            HVT_CHECK(!p->count || !q->count || !p->data || p->data != q->data, E_ARG,
                      "tensors %d (%s) and %d (%s) have the same address", (int)(q - pieces),
                      q->name ? q->name : "no name", i, name);
        }
    }
    return HVT_OK;
}

static hvt_dtype wire_of(const hvt_piece *p)
{
    return p->wire ? p->wire : p->dtype;
}

/* Consecutive pieces share a bucket while type and size allow. */
static void fill_buckets(hvt_fuse *f, const hvt_piece *pieces, size_t most)
{
    bucket *b = NULL;

    for (int i = 0; i < f->pieces; i++) {
        const hvt_piece *p = &pieces[i];
        hvt_dtype type = wire_of(p);
        size_t size = hvt_dtype_size(type);

        if (!b || b->type != type || !most || (p->count && (b->count + p->count) * size > most)) {
            f->bytes = (f->bytes + 63) / 64 * 64;
            b = &f->bucket[f->buckets++];
            *b = (bucket){.first = i, .at = f->bytes, .type = type};
        }
        f->piece[i] = (piece){.data = p->data, .type = p->dtype, .count = p->count, .at = f->bytes, .in = b};
        f->bytes += p->count * size;
        b->count += p->count;
        b->end = i + 1;
        b->missing++;
    }
    b->count++; /* ranks that have not joined */
    f->bytes += hvt_dtype_size(b->type);
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
        hvt__items_add(&items, "fused tensor %s\t[%zu] %s%s%s", pieces[i].name ? pieces[i].name : number,
                       pieces[i].count, hvt_dtype_name(pieces[i].dtype), pieces[i].wire ? " sent as " : "",
                       pieces[i].wire ? hvt_dtype_name(pieces[i].wire) : "");
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
    HVT_TRY_OR(fail, hvt_comm_alloc(comm, f->bytes, (void **)&f->memory));
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

/* Send the buckets that are complete. */
static hvt_status launch(hvt_fuse *f)
{
    hvt_device *d = f->comm->dev;

    for (; f->launched < f->buckets && !f->bucket[f->launched].missing; f->launched++) {
        bucket *b = &f->bucket[f->launched];
        void *memory = f->memory + b->at;

        if (f->launched == f->buckets - 1) {
            const float one = !f->joined;
            char *to = f->memory + b->at + (b->count - 1) * hvt_dtype_size(b->type);

            if (b->type == HVT_F64)
                *(double *)(void *)to = one;
            else
                HVT_TRY(d->ops->vector.cast(d, 1, 1, &one, HVT_F32, to, b->type));
        }
        if (b->type == HVT_F64)
            HVT_TRY(hvt_allreduce(f->comm, NULL, memory, b->count, HVT_F64, HVT_SUM, NULL, &b->ticket));
        else
            HVT_TRY(hvt_comm_allreduce(f->comm, memory, b->count, b->type, &b->ticket));
    }
    return HVT_OK;
}

static hvt_status pack(hvt_fuse *f, piece *p)
{
    hvt_device *d = f->comm->dev;
    hvt_dtype type = p->in->type;
    char *to = f->memory + p->at;
    bool small = type == HVT_F16 || type == HVT_BF16; /* types whose sum may overflow */
    float scale = f->how == HVT_AVERAGE && small ? 1 / (float)f->comm->world->size : 1;

    if (!p->data || f->joined)
        memset(to, 0, p->count * hvt_dtype_size(type));
    else if (p->count && small && (scale != 1 || p->type != type))
        HVT_TRY(d->ops->vector.cast(d, p->count, scale, p->data, p->type, to, type));
    else if (p->count)
        HVT_TRY(d->ops->memory.copy(d, to, p->data, p->count * hvt_dtype_size(type)));
    p->packed = true;
    p->in->missing--;
    return HVT_OK;
}

static hvt_status unpack(hvt_fuse *f, bucket *b)
{
    hvt_device *d = f->comm->dev;
    double scale = f->how == HVT_AVERAGE ? 1.0 / f->comm->world->size : 1;

    for (piece *p = f->piece + b->first; p < f->piece + b->end; p++) {
        const char *from = f->memory + p->at;

        p->packed = false;
        if (!p->count || !p->data || f->joined)
            continue;
        if (p->type != b->type)
            HVT_TRY(d->ops->vector.cast(d, p->count, 1, from, b->type, p->data, p->type));
        else
            HVT_TRY(d->ops->memory.copy(d, p->data, from, p->count * hvt_dtype_size(b->type)));
        if (b->type == HVT_F32)
            hvt__scale_f32(p->data, p->count, scale);
        for (size_t i = 0; b->type == HVT_F64 && scale != 1 && i < p->count; i++)
            ((double *)p->data)[i] *= scale;
    }
    b->missing = b->end - b->first;
    return HVT_OK;
}

hvt_status hvt_fuse_ready_at(hvt_fuse *f, int i, void *data)
{
    HVT_CHECK(f, E_ARG, "no fused tensors to mark tensor %d of", i);
    HVT_CHECK(i >= 0 && i < f->pieces, E_ARG, "fused tensor %d is not one of %d", i, f->pieces);
    HVT_CHECK(!f->piece[i].packed, E_ARG, "fused tensor %d was ready already in this step", i);
    f->piece[i].data = data;
    HVT_TRY(pack(f, &f->piece[i]));
    return launch(f);
}

hvt_status hvt_fuse_ready(hvt_fuse *f, int i)
{
    return hvt_fuse_ready_at(f, i, f && i >= 0 && i < f->pieces ? f->piece[i].data : NULL);
}

/* End a step. ret_active: the number of ranks that have not joined. */
static hvt_status exchange(hvt_fuse *f, double *ret_active)
{
    const bucket *last = &f->bucket[f->buckets - 1];
    const char *count = f->memory + last->at + (last->count - 1) * hvt_dtype_size(last->type);
    float sum;

    for (piece *p = f->piece; p < f->piece + f->pieces; p++)
        if (!p->packed)
            HVT_TRY(pack(f, p));
    HVT_TRY(launch(f));
    for (bucket *b = f->bucket; b < f->bucket + f->buckets; b++) {
        HVT_TRY(hvt_comm_wait(f->comm, b->ticket));
        HVT_TRY(unpack(f, b));
    }
    f->launched = 0;
    if (last->type == HVT_F64) {
        *ret_active = *(const double *)(const void *)count;
        return HVT_OK;
    }
    HVT_TRY(f->comm->dev->ops->vector.cast(f->comm->dev, 1, 1, count, last->type, &sum, HVT_F32));
    *ret_active = (double)sum;
    return HVT_OK;
}

hvt_status hvt_fuse_exchange(hvt_fuse *f)
{
    double active;

    HVT_CHECK(f, E_ARG, "no fused tensors to exchange");
    HVT_TRY(exchange(f, &active));
    f->steps++;
    return HVT_OK;
}

hvt_status hvt_fuse_join(hvt_fuse *f, int *ret_last)
{
    double active = 1;
    int64_t last;

    HVT_CHECK(f, E_ARG, "no fused tensors to join");
    for (int i = 0; i < f->pieces; i++)
        HVT_CHECK(!f->piece[i].packed, E_ARG,
                  "fused tensor %d is ready in this step: end the step (exchange) before joining", i);
    f->joined = true;
    while (active > 0)
        HVT_TRY(exchange(f, &active));
    f->joined = false;
    last = f->steps * f->comm->world->size + f->comm->world->rank;
    f->steps = 0;
    HVT_TRY(hvt_world_allreduce_i64(f->comm->world, HVT_MAX, &last, 1));
    if (ret_last)
        *ret_last = (int)(last % f->comm->world->size);
    return HVT_OK;
}
