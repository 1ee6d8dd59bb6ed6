/*
 * Computes constants when a file is read: all values that depend on numbers and buffers alone. A
 * persistent floating-point buffer stays on the tape if a layer reads it, so that it is in files of
 * weights.
 */
#include "fold.h"

/* True for operations that no layer of the tape computes. */
static bool is_of_constants(const pt2_node *n)
{
    switch (n->op) {
    case PT2_WHERE:
    case PT2_NOT:
    case PT2_TRIANGLE:
    case PT2_CUMSUM:
    case PT2_FULL:
    case PT2_ARANGE:
        return true;
    case PT2_MAP:
        return n->is.map.f >= HVT_FUNCTIONS;
    case PT2_BINARY:
        return n->is.binary.op >= HVT_BINARIES;
    default:
        return false;
    }
}

static pt2_constness constness(const pt2_node *n)
{
    bool all = true, folded = is_of_constants(n) || n->op == PT2_INDEX, any = false;

    for (int i = 0; i < n->nin; i++) {
        const pt2_value *v = n->in[i];

        all = all && (!v || v->constant);
        any = any || (v && v->array && v->array->term);
        folded = folded || (v && v->constant == PT2_FOLDED);
    }
    return !all ? PT2_NO_CONSTANT : folded || any ? PT2_FOLDED : PT2_SOFT;
}

/* True if the output is a table, or a table combined with numbers, which attention may add to its scores. */
static bool has_table(const pt2_node *n)
{
    bool table = n->op == PT2_INDEX && n->in[0] && !n->in[0]->computed && n->in[1] && n->in[1]->constant,
         all = true;

    for (int i = 0; i < n->nin && n->op != PT2_INDEX; i++) {
        const bool is = n->in[i] && n->in[i]->array && n->in[i]->array->table;

        table = table || is;
        all = all && (!n->in[i] || is || n->in[i]->constant);
    }
    return table && all;
}

/* Refuses operations that no layer computes on values that are not constant. */
static void refuse(pt2_graph *g, pt2_node *n)
{
    if (n->out[0]->computed) {
        n->op = PT2_UNKNOWN;
        n->is.text = "supported only for constants";
    } else {
        hvt__pt2_refuse(
            g, n,
            "supported only for constants, but its input is a parameter or a part of a buffer; a buffer "
            "registered with persistent=False is a constant");
    }
}

static void fold_node(pt2_graph *g, pt2_node *n, void *data)
{
    const pt2_constness is = n->op == PT2_UNKNOWN || n->op == PT2_REFUSED ? PT2_NO_CONSTANT : constness(n);
    pt2_value *v = n->out[0];
    pt2_array *x = NULL;

    if (is == PT2_FOLDED) {
        x = hvt__pt2_evaluate(g, n);
    } else if (!is && has_table(n)) {
        x = n->op == PT2_INDEX ? hvt__pt2_evaluate(g, n) : hvt__pt2_follow(g, n);
    } else if (is == PT2_SOFT &&
               (n->op == PT2_VIEW || n->op == PT2_EXPAND || n->op == PT2_PERMUTE || n->op == PT2_SLICE ||
                n->op == PT2_BINARY || n->op == PT2_MAP || n->op == PT2_CAST || n->op == PT2_CAT ||
                n->op == PT2_REPEAT || n->op == PT2_ROLL)) {
        v->constant = PT2_SOFT;
    }
    if (x && x->term) { /* a table must exist as long as something reads its elements */
        v->array = x;
    } else if (x) {
        v->array = x;
        v->constant = PT2_FOLDED;
        v->producer = NULL;
        hvt__pt2_erase(g, n);
    } else if (is_of_constants(n) && !(n->op == PT2_WHERE && n->in[0]->constant == PT2_FOLDED)) {
        refuse(g, n);
    }
}

void hvt__pt2_fold(pt2_graph *g)
{
    for (int i = 0; i < g->ninputs; i++) {
        pt2_value *v = g->input[i];

        if (v->source == PT2_BUFFER)
            v->constant = v->persistent && !hvt__pt2_is_whole(v->type) ? PT2_SOFT : PT2_FOLDED;
    }
    for (pt2_node *n = g->first, *next; n; n = next) {
        bool refused = false;

        next = n->after;
        for (int i = 0; i < n->nin; i++)
            refused = refused || (n->in[i] && n->in[i]->refused);
        for (int i = 0; i < n->nout && refused; i++) /* the layout may replace a refused image by zeros */
            n->out[i]->refused = n->out[i]->refused || !n->out[i]->computed;
        if (n->nout && !refused && !hvt__pt2_try(g, fold_node, n, NULL))
            n->op = PT2_REFUSED;
    }
    hvt__pt2_sweep(g);
}
