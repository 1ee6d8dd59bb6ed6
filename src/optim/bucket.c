/*
 * Buckets: spans of the gradient arena that travel together.
 *
 * The arena is in the order in which backward finishes it, so a bucket is a run of layers, and the plan
 * follows from the parameters' offsets alone. A bucket ends at the end of the first layer with which it
 * reaches its limit, so it may exceed the limit; the last bucket holds the rest. A bucket of more than twice
 * its limit (one layer of VGG has 411 MB) is cut into equal pieces, at any parameter, so that one piece is
 * summed and applied while the next one travels; codecs that work on whole tensors get no pieces.
 *
 * Step statistics precede the gradients. They are always all-reduced as f32, in the first bucket or, if
 * gradients travel in another form, in a bucket of their own.
 */
#include "dist.h"
#include "base_impl.h"

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

size_t hvt__bucket_least = 1 << 20; /* a smaller piece costs more to start than it hides */

int hvt__bucket_split(size_t first, size_t end, size_t bytes, size_t *ret_end)
{
    enum { UNIT = 16 }; /* floats: 64 bytes */
    size_t limit = bytes > hvt__bucket_least ? bytes : hvt__bucket_least;
    size_t count = end - first, held = count * sizeof(float);
    bool whole = !bytes || bytes == HVT_BUCKET_ALL || held / 2 <= limit;
    int parts = whole ? 1 : (int)((held + limit - 1) / limit);

    for (int p = 1; p < parts; p++)
        ret_end[p - 1] = (first + count / (size_t)parts * (size_t)p) / UNIT * UNIT;
    ret_end[parts - 1] = end;
    return parts;
}

int hvt__layer_ends(const hvt_model *m, size_t *ret_end)
{
    int n = 0;

    for (const hvt_layer *l = m->layer + m->nlayer - 1; l >= m->layer; l--) {
        int first = m->ntrained;

        for (int i = 0; i < HVT_LAYER_PARAMS && l->shares < 0; i++)
            first = l->param[i] >= 0 && l->param[i] < first ? l->param[i] : first;
        if (first > 0 && first < m->ntrained)
            ret_end[n++] = m->param[first].offset; /* its start is the end of the next layer of the model */
    }
    ret_end[n++] = m->grad_count;
    return n;
}

hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, const hvt__codec *codec,
                            bool stats_alone, hvt_bucket **ret_bucket, int *ret_count)
{
    size_t start = !stats_alone ? 0 : m->ntrained ? m->param[0].offset : m->grad_count;
    size_t most = (size_t)m->ntrained + m->grad_count * sizeof(float) / hvt__bucket_least + 2;
    size_t *layer = malloc(most * sizeof *layer), *piece = malloc(most * sizeof *piece), *bytes;
    hvt_bucket *bucket = calloc(most, sizeof *bucket + sizeof *bytes);
    int n, pieces = 0, count = 0;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, layer && piece && bucket, E_MEM, "no memory for a plan of %zu buckets", most);
    n = hvt__bucket_cut(start, layer, hvt__layer_ends(m, layer), opts->first_bytes, opts->bucket_bytes,
                        layer);
    for (int i = 0; i < n; i++)
        pieces += hvt__bucket_split(i ? layer[i - 1] : start, layer[i],
                                    codec->whole ? HVT_BUCKET_ALL : opts->bucket_bytes, piece + pieces);
    if (stats_alone)
        bucket[count++] = (hvt_bucket){.end = m->step_stats_count, .codec = &hvt__codec_f32};
    for (int i = 0; i < pieces && start < m->grad_count; start = piece[i++])
        bucket[count++] = (hvt_bucket){.first = start, .end = piece[i], .codec = codec};
    bytes = (size_t *)(bucket + count);
    for (hvt_bucket *b = bucket; b < bucket + count; b++) {
        b->tensor =
            b->end > m->step_stats_count ? m->param[hvt__model_owner(m, b->first)].name : "step statistics";
        b->own_first = b->own_at = b->first;
        b->own_end = b->end;
        bytes[b - bucket] = (b->end - b->first) * sizeof(float);
    }
    *ret_bucket = bucket;
    *ret_count = count;
    bucket = NULL;
done:
    free(layer);
    free(piece);
    free(bucket);
    return s;
}
