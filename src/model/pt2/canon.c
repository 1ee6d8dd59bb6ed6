/*
 * Maps ATen operations to those of graph.h, in the order of the file. The tables say what each overload
 * becomes (canon_layers.c, canon_math.c, canon_shapes.c); a function fills in the attributes.
 */
#include "canon.h"

/* True if the word is one of a row's names. */
static bool has_name(const char *names, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = names; (at = strstr(at, word)); at += n)
        if ((at == names || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

/* "aten.relu_.default" is relu. */
static const pt2_row *row_of(const char *target)
{
    static const pt2_rows *const all[] = {&hvt__pt2_layer_rows, &hvt__pt2_math_rows, &hvt__pt2_shape_rows};
    const char *op = target + 5, *overload = op + strcspn(op, ".");
    int n = (int)(overload - op);
    char name[128];

    if (strncmp(target, "aten.", 5) != 0 || !n || !*overload)
        return NULL;
    n -= op[n - 1] == '_';
    snprintf(name, sizeof name, "%.*s%s", n, op, strcmp(overload, ".default") ? overload : "");
    for (size_t i = 0; i < HVT_LEN(all) && *name; i++)
        for (const pt2_row *r = all[i]->row; r < all[i]->row + all[i]->count; r++)
            if (has_name(r->names, name))
                return r;
    return NULL;
}

/* ---- one operation at a time ---- */

/* An in-place change of a buffer. */
typedef struct change {
    struct change *next;
    pt2_value *buffer;
    pt2_node *by;
} change;

static bool is_in_place(const char *target)
{
    const char *overload = strrchr(target, '.');

    return overload && overload > target && overload[-1] == '_';
}

static pt2_value *first_argument(const pt2_node *n)
{
    return n->nargs && n->arg[0].value ? n->arg[0].value[0] : NULL;
}

/* Makes all tensor arguments inputs of n, whose operation is unknown. */
static void read_all(pt2_graph *g, pt2_node *n)
{
    int count = 0, at = 0;
    pt2_value **in;

    for (int i = 0; i < n->nargs; i++)
        count += n->arg[i].value ? n->arg[i].n : 0;
    in = hvt__pt2_make(g, (size_t)(count + 1) * sizeof(pt2_value *));
    for (int i = 0; i < n->nargs; i++)
        for (int k = 0; n->arg[i].value && k < n->arg[i].n; k++)
            if (n->arg[i].value[k])
                in[at++] = hvt__alias_now(g, n, n->arg[i].value[k]);
    hvt__pt2_inputs(g, n, at, in);
}

/* Refuses n if the file omits the sizes of its inputs or outputs. */
static void check_sizes(pt2_graph *g, pt2_node *n)
{
    for (int i = 0; i < n->nargs; i++)
        for (int k = 0; n->arg[i].value && k < n->arg[i].n; k++)
            if (n->arg[i].value[k] && n->arg[i].value[k]->ndim < 0)
                hvt__pt2_refuse(g, n, "%s has no sizes, or more than %d dimensions", n->arg[i].value[k]->name,
                                PT2_DIMS);
    for (int i = 0; i < n->nout; i++)
        if (n->out[i]->ndim < 0)
            hvt__pt2_refuse(g, n, "its output %d has no sizes, or more than %d dimensions", i, PT2_DIMS);
}

static void fill(pt2_graph *g, pt2_node *n, void *data)
{
    const pt2_row *r = row_of(n->target);

    if (r) {
        check_sizes(g, n);
        r->fill(g, n, r);
    } else if (!strncmp(n->target, "aten.upsample_", 14) || !strncmp(n->target, "aten._upsample_", 15)) {
        check_sizes(g, n);
        hvt__canon_upsample(g, n, NULL);
    }
}

static void convert_node(pt2_graph *g, pt2_node *n)
{
    if (!hvt__pt2_try(g, fill, n, NULL))
        n->op = PT2_REFUSED;
    if (n->op != PT2_UNKNOWN && n->op != PT2_REFUSED)
        return;
    read_all(g, n);
    for (int i = 0; i < n->nout && n->nin; i++)
        hvt__alias_is_view(g, n->out[i]); /* it may return a view */
}

/* Records that n changed its first argument in place. */
static void change_memory(pt2_graph *g, pt2_node *n, void *data)
{
    change **changes = data;
    pt2_value *x = first_argument(n);

    if (!x || !n->nout)
        return;
    if (hvt__alias_base(x)->source == PT2_BUFFER) {
        change *c = hvt__pt2_make(g, sizeof *c);

        *c = (change){*changes, hvt__alias_base(x), n};
        *changes = c;
    }
    hvt__alias_changes(g, n, x, n->out[0]);
    if (n->op == PT2_VIEW || n->op == PT2_PERMUTE)
        hvt__pt2_refuse(g, n, "it changes the dimensions of a tensor in place");
}

/* Refuses a change of a buffer that the output depends on. Batch norms may count their batches. */
static hvt_status check_buffers(pt2_graph *g, const change *changes)
{
    for (const change *c = changes; c; c = c->next) {
        char why[400];
        int i = 0;

        snprintf(why, sizeof why,
                 "it changes the buffer %.200s, on which the output depends; expected a buffer that stays as "
                 "it is",
                 c->buffer->state);
        if (c->buffer->used)
            return hvt__pt2_fail_at(g, c->by, why);
        while (i < g->nchanged && g->changed[i] != c->buffer)
            i++;
        if (i == g->nchanged && c->buffer->persistent && !hvt__pt2_counts_batches(c->buffer->state))
            g->changed[g->nchanged++] = c->buffer;
    }
    return HVT_OK;
}

/* Fixes the batch norms that are in eval() mode if another module is in train() mode. If all are in eval()
 * mode, the whole model was, which says nothing about how to train it. */
static void find_modes(pt2_graph *g)
{
    bool trains = false;

    for (const pt2_node *n = g->first; n; n = n->after) {
        if (n->op == PT2_BATCH_NORM && n->out[0]->computed) { /* not of weights */
            g->norms++;
            g->fixed_norms += !n->is.norm.trains;
            trains = trains || n->is.norm.trains;
        } else if (n->op == PT2_DROPOUT || n->op == PT2_DROPOUT_CHANNELS || n->op == PT2_BERNOULLI) {
            trains = trains || n->is.dropout.trains;
        }
    }
    g->eval_mode = g->norms && !trains;
    g->fixed_norms = trains ? g->fixed_norms : 0;
}

/* Removes copies and empty dropouts, which no in-place operation needs any more. */
static void drop_copies(pt2_graph *g)
{
    for (pt2_node *n = g->first, *next; n; n = next) {
        next = n->after;
        if (n->op == PT2_CLONE ||
            ((n->op == PT2_DROPOUT || n->op == PT2_DROPOUT_CHANNELS) && n->is.dropout.p == 0)) {
            hvt__pt2_replace(g, n->out[0], n->in[0]);
            hvt__pt2_erase(g, n);
            continue;
        }
        for (int i = 0; i < n->nout; i++)
            for (int k = 0; k < n->nin; k++)
                n->out[i]->computed = n->out[i]->computed || (n->in[k] && n->in[k]->computed);
    }
}

hvt_status hvt__pt2_canonicalise(pt2_graph *g)
{
    change *changes = NULL;

    g->defers = true;
    for (pt2_node *n = g->first, *next; n; n = next) {
        next = n->after;
        if (!n->nout) { /* an in-place operation whose result nothing reads */
            pt2_value *result = hvt__pt2_value(g, first_argument(n));

            hvt__pt2_outputs(g, n, 1, &result);
        }
        convert_node(g, n);
        if (is_in_place(n->target))
            hvt__pt2_try(g, change_memory, n, &changes);
    }
    g->logits = hvt__alias_now(g, NULL, g->logits);
    hvt__pt2_sweep(g);
    g->changed = hvt__pt2_make(g, (size_t)(g->ninputs + 1) * sizeof(pt2_value *));
    for (int i = 0; i < g->ninputs; i++)
        g->input[i]->used = g->input[i]->nuses > 0 || g->input[i] == g->logits;
    HVT_TRY(check_buffers(g, changes));
    find_modes(g);
    drop_copies(g);
    hvt__pt2_report(g);
    return HVT_OK;
}
