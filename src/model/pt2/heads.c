/*
 * Finds the layers whose outputs are the classes, and everything else whose size depends on the number of
 * classes.
 */
#include "graph.h"

static bool is_head_layer(const pt2_node *n)
{
    return n->op == PT2_LINEAR || n->op == PT2_CONV_TRANSPOSE ||
           (n->op == PT2_CONV && !n->is.convolution.line);
}

static int64_t outputs_of(const pt2_node *n)
{
    return n->is.convolution.filters;
}

static bool has_size(const pt2_value *v, int64_t wanted)
{
    bool has = false;

    for (int i = 0; i < v->ndim; i++)
        has = has || v->size[i] == wanted;
    return has;
}

/* Where a value leads: to the classes by way of nothing but the heads' outputs, or elsewhere. */
enum { BEHIND = 1, OTHER = 2 };

/* Walks from the logits back to what changes with the number of classes: the last layers (several if their
 * outputs are combined), and the parameters of operations on their outputs. */
static void find_resized(pt2_graph *g, unsigned char *mark)
{
    const int64_t classes = outputs_of(g->head);

    mark[g->logits->number] = BEHIND;
    for (pt2_node *n = g->last; n; n = n->before) {
        const bool layer = is_head_layer(n);
        bool renews;
        int made = 0;

        for (int i = 0; i < n->nout; i++)
            made |= mark[n->out[i]->number];
        renews = n == g->head || (made == BEHIND && (!layer || outputs_of(n) == classes));
        n->head = renews && layer;
        for (int i = 0; i < n->nin; i++) {
            pt2_value *v = n->in[i];

            if (!v)
                continue;
            mark[v->number] |= renews && !layer ? BEHIND : OTHER;
            v->resized = v->resized || (renews && v->state && has_size(v, classes));
        }
    }
}

/* The last layer with as many outputs as the model; else the last layer. */
void hvt__pt2_find_heads(pt2_graph *g)
{
    const pt2_node *last = NULL;

    for (const pt2_node *n = g->last; n && !g->head; n = n->before)
        if (is_head_layer(n)) {
            last = last ? last : n;
            g->head = outputs_of(n) == g->classes ? n : NULL;
        }
    g->head = g->head ? g->head : last;
    if (!g->head)
        return;
    find_resized(g, hvt__pt2_make(g, (size_t)g->names));
    if (g->head->in[1]) {
        const char *state = g->head->in[1]->state, *dot = state ? strrchr(state, '.') : NULL;

        g->head_name = hvt__pt2_text(g, dot ? state : "");
        if (dot)
            ((char *)g->head_name)[dot - state] = 0;
    }
}
