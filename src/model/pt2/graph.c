/*
 * The graph: values, nodes, and their changes. The list of nodes is in topological order, so one walk
 * from the last to the first finds everything unused.
 */
#include "graph.h"

#include <inttypes.h>
#include <stdarg.h>

enum { BLOCK = 1 << 16 };

typedef struct pt2_block {
    struct pt2_block *next;
    size_t used, room;
    _Alignas(16) char data[];
} pt2_block;

void *hvt__pt2_make(pt2_graph *g, size_t bytes)
{
    const size_t need = (bytes + 15) / 16 * 16, room = need > BLOCK / 4 ? need : BLOCK;
    pt2_block **list = g->scratches ? &g->scratch : &g->memory, *b = *list;

    if (!b || b->room - b->used < need) {
        if (room < bytes || !(b = calloc(1, sizeof *b + room)))
            longjmp(g->no_memory, 1);
        b->room = room;
        if (*list && room != BLOCK) { /* put a large block second, so that the first keeps its free space */
            b->next = (*list)->next;
            (*list)->next = b;
        } else {
            b->next = *list;
            *list = b;
        }
    }
    b->used += need;
    return b->data + b->used - need;
}

static void free_blocks(pt2_block **list)
{
    for (pt2_block *b = *list, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *list = NULL;
}

void hvt__pt2_scratch(pt2_graph *g, bool begins)
{
    g->scratches = begins;
    if (!begins)
        free_blocks(&g->scratch);
}

void *hvt__pt2_grown(pt2_graph *g, void *array, int count, int *room, size_t size)
{
    void *larger;

    if (count < *room)
        return array;
    *room = 2 * *room + 4;
    larger = hvt__pt2_make(g, (size_t)*room * size);
    return count ? memcpy(larger, array, (size_t)count * size) : larger;
}

const char *hvt__pt2_text(pt2_graph *g, const char *text)
{
    const size_t n = strlen(text) + 1;

    return memcpy(hvt__pt2_make(g, n), text, n);
}

const char *hvt__pt2_format(pt2_graph *g, const char *fmt, ...)
{
    va_list ap, again;
    char *text;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    text = hvt__pt2_make(g, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return text;
}

void hvt__pt2_graph_free(pt2_graph **graph)
{
    if (!*graph)
        return;
    free_blocks(&(*graph)->memory);
    free_blocks(&(*graph)->scratch);
    free(*graph);
    *graph = NULL;
}

/* ---- values and nodes ---- */

pt2_value *hvt__pt2_value(pt2_graph *g, const pt2_value *like)
{
    pt2_value *v = hvt__pt2_make(g, sizeof *v);

    v->number = g->names++;
    v->name = "";
    v->ndim = -1;
    v->dense = true;
    if (like) {
        v->type = like->type;
        v->ndim = like->ndim;
        memcpy(v->size, like->size, sizeof v->size);
    }
    return v;
}

pt2_node *hvt__pt2_node(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op)
{
    pt2_node *n = hvt__pt2_make(g, sizeof *n);

    n->op = op;
    n->target = of ? of->target : "";
    n->where = of ? of->where : "";
    n->after = at;
    n->before = at ? at->before : g->last;
    *(n->before ? &n->before->after : &g->first) = n;
    *(at ? &at->before : &g->last) = n;
    return n;
}

static void add_use(pt2_graph *g, pt2_value *v, pt2_node *n)
{
    v->use = hvt__pt2_grown(g, v->use, v->nuses, &v->room, sizeof(pt2_node *));
    v->use[v->nuses++] = n;
}

static void drop_use(pt2_value *v, const pt2_node *n)
{
    int i = 0;

    while (v->use[i] != n)
        i++;
    v->use[i] = v->use[--v->nuses];
}

void hvt__pt2_set_input(pt2_graph *g, pt2_node *n, int i, pt2_value *v)
{
    if (n->in[i])
        drop_use(n->in[i], n);
    n->in[i] = v;
    if (v)
        add_use(g, v, n);
}

/* What depends on the images is computed. */
static void pass_on(const pt2_node *n)
{
    for (int i = 0; i < n->nout; i++)
        for (int k = 0; k < n->nin; k++)
            n->out[i]->computed = n->out[i]->computed || (n->in[k] && n->in[k]->computed);
}

void hvt__pt2_inputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *in)
{
    pt2_value **new = count ? hvt__pt2_make(g, (size_t)count * sizeof *new) : NULL;

    for (int i = 0; i < n->nin; i++)
        hvt__pt2_set_input(g, n, i, NULL);
    n->in = new;
    n->nin = count;
    for (int i = 0; i < count; i++)
        hvt__pt2_set_input(g, n, i, in[i]);
    pass_on(n);
}

void hvt__pt2_outputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *out)
{
    n->out = count ? hvt__pt2_make(g, (size_t)count * sizeof(pt2_value *)) : NULL;
    n->nout = count;
    for (int i = 0; i < count; i++) {
        n->out[i] = out[i];
        out[i]->producer = n;
    }
    pass_on(n);
}

pt2_value *hvt__pt2_compute(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op,
                            const pt2_attributes *is, int count, pt2_value *const *in, const pt2_value *like)
{
    pt2_node *n = hvt__pt2_node(g, at, of, op);
    pt2_value *v = hvt__pt2_value(g, like);

    if (is)
        n->is = *is;
    hvt__pt2_inputs(g, n, count, in);
    hvt__pt2_outputs(g, n, 1, &v);
    return v;
}

void hvt__pt2_become(pt2_graph *g, pt2_node *n, pt2_op op, const pt2_attributes *is, int count,
                     pt2_value *const *in)
{
    n->op = op;
    n->is = *is;
    hvt__pt2_inputs(g, n, count, in);
}

void hvt__pt2_replace(pt2_graph *g, pt2_value *old, pt2_value *new)
{
    while (old->nuses) {
        pt2_node *n = old->use[0];

        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == old)
                hvt__pt2_set_input(g, n, i, new);
    }
    if (g->logits == old)
        g->logits = new;
    if (!*new->name)
        new->name = old->name;
}

void hvt__pt2_erase(pt2_graph *g, pt2_node *n)
{
    for (int i = 0; i < n->nin; i++)
        hvt__pt2_set_input(g, n, i, NULL);
    *(n->before ? &n->before->after : &g->first) = n->after;
    *(n->after ? &n->after->before : &g->last) = n->before;
}

void hvt__pt2_sweep(pt2_graph *g)
{
    for (pt2_node *n = g->last, *before; n; n = before) {
        bool read = false;

        before = n->before;
        for (int i = 0; i < n->nout; i++)
            read = read || n->out[i]->nuses || n->out[i] == g->logits;
        if (!read)
            hvt__pt2_erase(g, n);
    }
}

/* ---- predicates ---- */

int64_t hvt__pt2_count(int ndim, const int64_t *size)
{
    int64_t all = 1;

    for (int i = 0; i < ndim; i++)
        if (!size[i])
            return 0;
        else if (__builtin_mul_overflow(all, size[i], &all))
            all = INT64_MAX;
    return all;
}

bool hvt__pt2_same_sizes(const pt2_value *a, const pt2_value *b)
{
    return a->ndim == b->ndim && a->ndim >= 0 && !memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size);
}

bool hvt__pt2_is_float(int type)
{
    return type == PT2_F32 || type == PT2_F64;
}

bool hvt__pt2_is_whole(int type)
{
    return type == PT2_BOOL || (type >= PT2_U8 && type <= PT2_I64);
}

bool hvt__pt2_ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), of = strlen(end);

    return n >= of && !strcmp(text + n - of, end);
}

bool hvt__pt2_counts_batches(const char *state)
{
    return hvt__pt2_ends_in(state, "num_batches_tracked");
}

const pt2_value *hvt__pt2_state_of(const pt2_value *v)
{
    while (v->producer &&
           (v->producer->op == PT2_VIEW || v->producer->op == PT2_EXPAND || v->producer->op == PT2_REPEAT))
        v = v->producer->in[0];
    return v->state ? v : NULL;
}

/* ---- printing ---- */

static const char *const names[] = {
#define NAME(constant, name) #name,
    PT2_OPS(NAME)
#undef NAME
};

static void print_value(const pt2_value *v, FILE *f)
{
    if (!v) {
        fputs("none", f);
        return;
    }
    if (v->state)
        fprintf(f, "%s", v->state);
    else
        fprintf(f, "%%%d", v->number);
}

static void print_sizes(int ndim, const int64_t *size, FILE *f)
{
    fputc('[', f);
    for (int i = 0; i < ndim; i++)
        fprintf(f, "%s%" PRId64, i ? "," : "", size[i]);
    fputc(']', f);
}

static void print_ints(const char *name, int n, const int *x, FILE *f)
{
    fprintf(f, " %s=", name);
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d", i ? "," : "", x[i]);
}

/* In the order of hvt_function, then of this room's own. */
static const char *const functions[] = {
    "relu", "hardtanh", "leaky_relu", "elu",        "sigmoid",  "hardsigmoid", "hardswish",
    "silu", "gelu",     "gelu_tanh",  "tanh",       "softplus", "affine",      "clamp",
    "exp",  "log",      "pow",        "hardshrink", "sin",      "cos",         "floor"};
static const char *const operations[] = {
    "add",       "sub", "mul", "div", "maximum", "minimum", "floor_divide", "trunc_divide",
    "remainder", "pow", "eq",  "ne",  "ge",      "gt",      "le",           "lt"};
_Static_assert(HVT_LEN(functions) == PT2_FLOOR + 1 && HVT_LEN(operations) == PT2_LT + 1,
               "each function and each operation has a name");

static void print_attributes(const pt2_node *n, FILE *f)
{
    const pt2_attributes *is = &n->is;

    switch (n->op) {
    case PT2_UNKNOWN:
    case PT2_REFUSED:
        fprintf(f, " %s", n->target);
        break;
    case PT2_PERMUTE:
    case PT2_ROLL:
        print_ints("dims", is->dims.n, is->dims.dim, f);
        break;
    case PT2_SLICE:
        fprintf(f, " dim=%d first=%" PRId64 " step=%" PRId64, is->slice.dim, is->slice.first, is->slice.step);
        break;
    case PT2_CAT:
    case PT2_SOFTMAX:
    case PT2_INDEX:
    case PT2_CUMSUM:
        fprintf(f, " dim=%d", is->along.dim);
        break;
    case PT2_REDUCE:
        print_ints(((const char *[]){"mean", "sum", "norm", "max", "amax"})[is->reduce.how], is->reduce.n,
                   is->reduce.dim, f);
        break;
    case PT2_MAP:
        fprintf(f, " %s %g %g", functions[is->map.f], is->map.a, is->map.b);
        break;
    case PT2_BINARY:
        fprintf(f, " %s", operations[is->binary.op]);
        if (is->binary.has_number)
            fprintf(f, " number=%g%s", is->binary.number, is->binary.reversed ? " first" : "");
        break;
    case PT2_DROPOUT:
    case PT2_DROPOUT_CHANNELS:
    case PT2_DROP_PATH:
        fprintf(f, " p=%g", is->dropout.p);
        break;
    case PT2_CHANNELS:
        fprintf(f, " first=%d count=%d", is->channels.first, is->channels.count);
        break;
    case PT2_UNFOLD:
        fprintf(f, " dim=%d size=%" PRId64 " step=%" PRId64, n->is.slice.dim, n->is.slice.block,
                n->is.slice.step);
        break;
    case PT2_TRANSPOSE:
        fprintf(f, " rows=%d columns=%d block=%d", is->transpose.rows, is->transpose.columns,
                is->transpose.block);
        break;
    default:
        break;
    }
    if (is->layer)
        fprintf(f, " \"%s\"", is->layer);
}

void hvt__pt2_print(const pt2_graph *g, FILE *f)
{
    for (const pt2_node *n = g->first; n; n = n->after) {
        fputs("  ", f);
        for (int i = 0; i < n->nout; i++) {
            fprintf(f, "%s", i ? ", " : "");
            print_value(n->out[i], f);
            if (n->out[i]->ndim >= 0)
                print_sizes(n->out[i]->ndim, n->out[i]->size, f);
        }
        fprintf(f, " = %s(", names[n->op]);
        for (int i = 0; i < n->nin; i++) {
            fprintf(f, "%s", i ? ", " : "");
            print_value(n->in[i], f);
        }
        fputc(')', f);
        print_attributes(n, f);
        fprintf(f, *n->where ? "   # %s\n" : "\n", n->where);
    }
    fputs("  return ", f);
    print_value(g->logits, f);
    fputc('\n', f);
}
