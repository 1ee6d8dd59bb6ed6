/*
 * Which spans of the gradient arena travel together.
 *
 * The arena lies in the order in which backward finishes it, so a bucket is a run of layers, and the plan
 * follows from the parameters' offsets alone. A bucket ends at the first end of a layer at which it has
 * reached its limit, so it may exceed the limit; the last bucket holds what is left. A bucket of more than
 * twice its limit (one layer of VGG has 411 MB) is cut into equal pieces, at any parameter, so that one piece
 * is summed and applied while the next one travels; codecs that work on whole tensors get no such pieces.
 *
 * Step statistics lie in front of the parameters' gradients. They are always all-reduced as f32, in the first
 * bucket or, where gradients travel in another way, in a bucket of their own.
 */
#include "dist.h"
#include "base_impl.h"

#include <stdlib.h>

int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end)
{
    bool small_first = first_bytes && bytes && bytes != HVT_BUCKET_ALL;
    size_t limit = small_first ? first_bytes : bytes;
    int n = 0;

    for (int i = 0; i < layers; i++) {
        if (i + 1 < layers && (end[i] - start) * sizeof(float) < limit)
            continue;
        ret_end[n++] = start = end[i];
        limit = bytes;
    }
    return n;
}

size_t hvt__bucket_least = 1 << 20; /* a smaller piece would cost more to start than it hides */

int hvt__bucket_split(size_t start, const size_t *end, int n, size_t bytes, size_t *ret_end)
{
    enum { UNIT = 16 }; /* floats: 64 bytes */
    size_t limit = bytes > hvt__bucket_least ? bytes : hvt__bucket_least;
    int pieces = 0;

    for (int i = 0; i < n; i++) {
        size_t count = end[i] - start, held = count * sizeof(float);
        bool whole = !bytes || bytes == HVT_BUCKET_ALL || held / 2 <= limit;
        size_t parts = whole ? 1 : (held + limit - 1) / limit;

        for (size_t p = 1; p < parts; p++, pieces++)
            if (ret_end)
                ret_end[pieces] = (start + count / parts * p) / UNIT * UNIT;
        if (ret_end)
            ret_end[pieces] = end[i];
        pieces++;
        start = end[i];
    }
    return pieces;
}

/* The layer that owns a parameter. */
static int owner(const hvt_model *m, int param)
{
    for (int l = 0; l < m->nlayer; l++)
        for (int i = 0; i < HVT_LAYER_PARAMS; i++)
            if (m->layer[l].param[i] == param)
                return l;
    return -1;
}

int hvt__layer_ends(const hvt_model *m, size_t *ret_end)
{
    int n = 0, last = -1;

    for (int i = 0; i < m->nparam_tensors; i++) {
        int l = owner(m, i);

        if (i && l != last)
            ret_end[n++] = m->param[i].offset;
        last = l;
    }
    ret_end[n++] = m->arena_count;
    return n;
}

/* Where the first layer's bucket begins. */
static size_t layers_start(const hvt_model *m, bool stats_alone)
{
    return !stats_alone ? 0 : m->nparam_tensors ? m->param[0].offset : m->arena_count;
}

static const char *first_tensor(const hvt_model *m, size_t first, size_t end)
{
    for (int i = 0; i < m->nparam_tensors; i++)
        if (m->param[i].offset < end && m->param[i].offset + m->param[i].count > first)
            return m->param[i].name;
    return "step statistics";
}

/* Buckets that end at end[n], of which those are cut that hold too much for `bytes`. */
static hvt_status lay(const hvt_model *m, const size_t *end, int n, size_t bytes, const hvt__codec *codec,
                      bool stats_alone, hvt_bucket **ret_bucket, int *ret_count)
{
    size_t start = layers_start(m, stats_alone), *piece;
    int pieces = hvt__bucket_split(start, end, n, bytes, NULL), count = 0;
    hvt_bucket *bucket = calloc((size_t)pieces + 1, sizeof *bucket);

    piece = malloc((size_t)pieces * sizeof *piece);
    if (!bucket || !piece) {
        free(bucket);
        free(piece);
        return HVT_FAIL(E_MEM, "no memory for a plan of %d buckets", pieces);
    }
    hvt__bucket_split(start, end, n, bytes, piece);
    if (stats_alone)
        bucket[count++] = (hvt_bucket){.end = m->step_stats_count, .codec = &hvt__codec_f32};
    for (int i = 0; i < pieces && start < m->arena_count; start = piece[i++])
        bucket[count++] = (hvt_bucket){.first = start, .end = piece[i], .codec = codec};
    free(piece);
    for (hvt_bucket *b = bucket; b < bucket + count; b++) {
        b->tensor = first_tensor(m, b->first, b->end);
        b->own_first = b->own_at = b->first;
        b->own_end = b->end;
    }
    *ret_bucket = bucket;
    *ret_count = count;
    return HVT_OK;
}

hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, const hvt__codec *codec,
                            bool stats_alone, hvt_bucket **ret_bucket, int *ret_count)
{
    size_t most = (size_t)m->nparam_tensors + 1, start = layers_start(m, stats_alone);
    size_t *layer = malloc(most * sizeof *layer), *end = malloc(most * sizeof *end);
    size_t bytes = opts->bucket_bytes;
    int n;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, layer && end, E_MEM, "no memory for a plan of %zu buckets", most);
    n = hvt__bucket_cut(start, layer, hvt__layer_ends(m, layer), opts->first_bytes, bytes, end);
    s = lay(m, end, n, codec->whole ? HVT_BUCKET_ALL : bytes, codec, stats_alone, ret_bucket, ret_count);
done:
    free(layer);
    free(end);
    return s;
}
