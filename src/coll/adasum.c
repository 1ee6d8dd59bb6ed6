/*
 * Adasum: a sum that counts only once what the vectors have in common. Source: Maleki et al., "Scaling
 * Distributed Training with Adaptive Summation", MLSys 2021, arXiv 2006.02924; Horovod's
 * horovod/common/ops/adasum/adasum.h.
 *
 * Each tensor of a vector is summed separately. Tensors are cut into *chunks*, and every rank sums a run of
 * chunks, its *part*. It receives this part of all vectors and adds them in pairs, level by level of the
 * tree. A pair's two factors depend on three dot products over the whole tensor, so on each level the ranks
 * send each other the products of their chunks. Everyone adds them in the order of chunks, so no bit depends
 * on which rank has which part.
 */
#include "base_impl.h"
#include "coll.h"

enum {
    CHUNK = 1 << 14, /* elements */
    CUT = 16,        /* elements to which hvt__cut() rounds */
    LANES = 8,       /* sums of a dot product */
    DOTS = 3         /* of a pair: a a, b b, a b */
};

typedef struct chunk {
    size_t first, count;
    int tensor;
} chunk;

typedef struct adasum {
    hvt__work *w;
    int vectors, tensors, chunks, me, size;
    size_t value;  /* bytes of an element while it is summed */
    size_t widest; /* elements of a part at most */
    chunk *chunk;  /* [chunks] */
    int *of;       /* [size + 1] a rank's chunks: of[r] ... of[r + 1] - 1 */
    double *dots;  /* [chunks][pairs][DOTS] */
    char **vector; /* [vectors] this rank's part of each vector, later of each sum */
    char *values;  /* [vectors][widest] */
    char *raw;     /* [vectors][widest] as received; NULL: as they are summed */
} adasum;

static int vectors_of(const hvt__work *w, int rank)
{
    const hvt__vectors *of = w->k->of;

    return of ? of->first[rank + 1] - of->first[rank] : 1;
}

static int first_vector(const hvt__work *w, int rank)
{
    return w->k->of ? w->k->of->first[rank] : rank;
}

static size_t tensor_end(const hvt__call *k, int tensor)
{
    return k->of ? k->of->end[tensor] - k->of->base : k->count;
}

int hvt__adasum_messages(const hvt__work *w)
{
    const int size = w->c->world->size, all = first_vector(w, size),
              sent = size * vectors_of(w, w->c->world->rank);

    return all > sent ? all : sent;
}

/* Cuts the tensors into chunks, if `list` is given; returns their number. */
static int cut(const hvt__call *k, int tensors, chunk *list)
{
    int n = 0;

    for (int t = 0; t < tensors; t++)
        for (size_t at = t ? tensor_end(k, t - 1) : 0, end = tensor_end(k, t); at < end; at += CHUNK, n++)
            if (list)
                list[n] = (chunk){at, end - at < CHUNK ? end - at : CHUNK, t};
    return n;
}

/* Gives each rank a run of chunks that begin in an equal part of the vector. */
static void share(adasum *a)
{
    a->of[0] = 0;
    for (int r = 0, i = 0; r < a->size; r++) {
        while (i < a->chunks && a->chunk[i].first < hvt__cut(a->w->k->count, r + 1, a->size))
            i++;
        a->of[r + 1] = i;
    }
}

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Takes memory from `room`; with room NULL only counts its bytes. */
static void *take(char *room, size_t *at, size_t bytes)
{
    void *taken = room ? room + *at : NULL;

    *at += round_up(bytes);
    return taken;
}

/* Elements of a part at most: hvt__cut()'s, and all of its last chunk. */
static size_t widest_part(const hvt__call *k, int size)
{
    const size_t most = k->count / (size_t)size + 2 * CUT + CHUNK;

    return most < k->count ? most : k->count;
}

/* Lays out the memory of a call; returns its bytes. */
static size_t lay(hvt__work *w, char *room, adasum *a)
{
    const hvt__call *k = w->k;
    size_t at = 0, parts;

    *a = (adasum){.w = w,
                  .size = w->c->world->size,
                  .me = w->c->world->rank,
                  .tensors = k->of ? k->of->tensors : 1,
                  .value = k->type == HVT_F64 ? sizeof(double) : sizeof(float)};
    a->vectors = first_vector(w, a->size);
    a->chunks = cut(k, a->tensors, NULL);
    a->widest = widest_part(k, a->size);
    parts = (size_t)a->vectors * a->widest;
    a->chunk = take(room, &at, (size_t)a->chunks * sizeof *a->chunk);
    a->of = take(room, &at, ((size_t)a->size + 1) * sizeof *a->of);
    a->dots = take(room, &at, (size_t)a->chunks * (size_t)(a->vectors / 2) * DOTS * sizeof *a->dots);
    a->vector = take(room, &at, (size_t)a->vectors * sizeof *a->vector);
    a->values = take(room, &at, parts * a->value);
    a->raw = w->bytes == a->value ? NULL : take(room, &at, parts * w->bytes);
    return at;
}

size_t hvt__adasum_room(hvt__work *w)
{
    adasum a;

    return lay(w, NULL, &a);
}

static size_t first_of(const adasum *a, int rank)
{
    return a->of[rank] < a->chunks ? a->chunk[a->of[rank]].first : a->w->k->count;
}

static size_t count_of(const adasum *a, int rank)
{
    return first_of(a, rank + 1) - first_of(a, rank);
}

static size_t first_chunk(const adasum *a, int rank)
{
    return (size_t)a->of[rank];
}

/* Gives every rank all parts of `all`, of items of so many bytes; first: the first item of a rank's part. */
static hvt_status give_parts(const adasum *a, void *all, size_t bytes,
                             size_t (*first)(const adasum *a, int rank))
{
    const size_t mine = first(a, a->me);

    for (int r = 0; r < a->size; r++) {
        if (r == a->me)
            continue;
        hvt__work_recv(a->w, (char *)all + first(a, r) * bytes, (first(a, r + 1) - first(a, r)) * bytes, r,
                       false);
        hvt__work_send(a->w, (char *)all + mine * bytes, (first(a, a->me + 1) - mine) * bytes, r, false);
    }
    return hvt__work_exchange(a->w);
}

/* This rank's vector i, and the elements of another one that this rank has received. */
static const char *own_vector(const adasum *a, int i)
{
    const hvt__call *k = a->w->k;

    if (i + 1 < vectors_of(a->w, a->me))
        return (const char *)(k->of->extra + (size_t)i * k->of->stride);
    return k->in ? k->in : k->out;
}

static char *received(const adasum *a, int vector)
{
    return a->raw ? a->raw + (size_t)vector * a->widest * a->w->bytes
                  : a->values + (size_t)vector * a->widest * a->value;
}

/* Gets this rank's part of every vector. */
static hvt_status gather_parts(adasum *a)
{
    hvt__work *w = a->w;
    const size_t n = count_of(a, a->me);

    for (int r = 0; r < a->size; r++) {
        for (int i = 0; i < vectors_of(w, r) && r != a->me; i++)
            hvt__work_recv(w, received(a, first_vector(w, r) + i), n * w->bytes, r, false);
        for (int i = 0; i < vectors_of(w, a->me) && r != a->me; i++)
            hvt__work_send(w, own_vector(a, i) + first_of(a, r) * w->bytes, count_of(a, r) * w->bytes, r,
                           false);
    }
    HVT_TRY(hvt__work_exchange(w));
    for (int j = 0; j < a->vectors; j++) {
        const int i = j - first_vector(w, a->me);
        const bool mine = i >= 0 && i < vectors_of(w, a->me);

        a->vector[j] = a->values + (size_t)j * a->widest * a->value;
        HVT_TRY(hvt__coll_load(w, mine ? own_vector(a, i) + first_of(a, a->me) * w->bytes : received(a, j), n,
                               a->vector[j]));
    }
    return HVT_OK;
}

#define KERNELS(number)                                                                                      \
    static void dots_##number(const number *a, const number *b, size_t n, double *ret_dots)                  \
    {                                                                                                        \
        double s[DOTS][LANES] = {{0}};                                                                       \
                                                                                                             \
        for (size_t i = 0; i < n; i += LANES) {                                                              \
            const int lanes = n - i < LANES ? (int)(n - i) : LANES;                                          \
                                                                                                             \
            for (int l = 0; l < lanes; l++) {                                                                \
                const double x = (double)a[i + (size_t)l], y = (double)b[i + (size_t)l];                     \
                                                                                                             \
                s[0][l] += x * x;                                                                            \
                s[1][l] += y * y;                                                                            \
                s[2][l] += x * y;                                                                            \
            }                                                                                                \
        }                                                                                                    \
        for (int d = 0; d < DOTS; d++) {                                                                     \
            ret_dots[d] = 0;                                                                                 \
            for (int l = 0; l < LANES; l++)                                                                  \
                ret_dots[d] += s[d][l];                                                                      \
        }                                                                                                    \
    }                                                                                                        \
                                                                                                             \
    static void combine_##number(number *a, double by_a, const number *b, double by_b, size_t n)             \
    {                                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                       \
            a[i] = (number)(by_a * (double)a[i] + by_b * (double)b[i]);                                      \
    }

KERNELS(float)
KERNELS(double)

static void dots(const adasum *a, const char *x, const char *y, size_t n, double *ret_dots)
{
    if (a->value == sizeof(float))
        dots_float((const void *)x, (const void *)y, n, ret_dots);
    else
        dots_double((const void *)x, (const void *)y, n, ret_dots);
}

/* Computes the products of this rank's chunks for every pair, and gets those of the others. */
static hvt_status exchange_dots(const adasum *a, int pairs)
{
    const size_t row = (size_t)pairs * DOTS;

    for (int c = a->of[a->me]; c < a->of[a->me + 1]; c++) {
        const size_t at = (a->chunk[c].first - first_of(a, a->me)) * a->value;

        for (int p = 0; p < pairs; p++)
            dots(a, a->vector[2 * p] + at, a->vector[2 * p + 1] + at, a->chunk[c].count,
                 a->dots + (size_t)c * row + (size_t)p * DOTS);
    }
    return give_parts(a, a->dots, row * sizeof *a->dots, first_chunk);
}

/* a = Adasum(a, b) in this rank's part of the chunks [first, end) of one tensor. */
static void combine(const adasum *a, int first, int end, int pair, int pairs)
{
    const int from = first > a->of[a->me] ? first : a->of[a->me];
    const int to = end < a->of[a->me + 1] ? end : a->of[a->me + 1];
    double sum[DOTS] = {0}, by[2];
    size_t at, n;

    if (from >= to)
        return;
    for (int c = first; c < end; c++)
        for (int d = 0; d < DOTS; d++)
            sum[d] += a->dots[((size_t)c * (size_t)pairs + (size_t)pair) * DOTS + (size_t)d];
    for (int i = 0; i < 2; i++)
        by[i] = sum[i] == 0 ? 1 : 1 - sum[2] / (2 * sum[i]);
    at = (a->chunk[from].first - first_of(a, a->me)) * a->value;
    n = a->chunk[to - 1].first + a->chunk[to - 1].count - a->chunk[from].first;
    if (a->value == sizeof(float))
        combine_float((void *)(a->vector[2 * pair] + at), by[0], (void *)(a->vector[2 * pair + 1] + at),
                      by[1], n);
    else
        combine_double((void *)(a->vector[2 * pair] + at), by[0], (void *)(a->vector[2 * pair + 1] + at),
                       by[1], n);
}

/* Adds all vectors' parts; the sum is then vector 0. */
static hvt_status add(adasum *a)
{
    HVT_FLOATS;

    for (int n = a->vectors; n > 1; n = (n + 1) / 2) {
        const int pairs = n / 2;

        HVT_TRY(exchange_dots(a, pairs));
        for (int first = 0, end; first < a->chunks; first = end) {
            for (end = first; end < a->chunks && a->chunk[end].tensor == a->chunk[first].tensor;)
                end++;
            for (int p = 0; p < pairs; p++)
                combine(a, first, end, p, pairs);
        }
        for (int i = 1; i < (n + 1) / 2; i++) /* an odd last one moves up */
            a->vector[i] = a->vector[2 * i];
    }
    return HVT_OK;
}

hvt_status hvt__adasum(hvt__work *w)
{
    const hvt__call *k = w->k;
    char *out = k->out;
    adasum a;

    if (!k->count)
        return HVT_OK;
    lay(w, w->room, &a);
    cut(k, a.tensors, a.chunk);
    share(&a);
    HVT_TRY(gather_parts(&a));
    HVT_TRY(add(&a));
    HVT_TRY(hvt__coll_store(w, a.vector[0], count_of(&a, a.me), out + first_of(&a, a.me) * w->bytes));
    return give_parts(&a, out, w->bytes, first_of);
}
