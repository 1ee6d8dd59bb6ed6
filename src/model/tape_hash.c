/*
 * A hash of what a tape computes in inference. It tells apart models whose tensors have the same names and
 * shapes. A layer's hash covers its kind, its arguments, the names of its parameters and its inputs' hashes;
 * not the order of appending, the image size, dropout or fusion.
 */
#include "base_impl.h"
#include "layers.h"

uint64_t hvt__hash_no_arguments(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, 0);
}

uint64_t hvt__tape_hash(const hvt_model *m, hvt_value logits)
{
    uint64_t *of = malloc((size_t)m->nlayer * sizeof *of), result;

    for (int v = 0; v <= logits && of; v++) {
        const hvt_layer *l = &m->layer[v];

        if (l->ops->training_only) {
            of[v] = of[l->in[0]];
            continue;
        }
        of[v] = l->ops->hash(m, l, hvt__hash_text(HVT_HASH_INIT, l->ops->name));
        if (l->constants)
            of[v] = hvt__hash(of[v], l->constants->data, l->constants->all * sizeof *l->constants->data);
        if (l->has_parameter)
            of[v] = hvt__hash_text(of[v], m->layer[l->shares >= 0 ? l->shares : v].name);
        for (int i = 0; i < l->nin; i++)
            if (l->in[i] >= 0)
                of[v] = hvt__hash(of[v], &of[l->in[i]], sizeof of[v]);
    }
    result = of ? of[logits] : 0;
    free(of);
    return result;
}
