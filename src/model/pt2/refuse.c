/*
 * Refusals: what cannot be imported. The passes go on after a refusal where they can, so that one message
 * names all of it: unknown operations and unsupported uses of others, each with its layer and the line of
 * the user's source. Of several alike only the first is named.
 */
#define _GNU_SOURCE /* asprintf */
#include "graph.h"

#include <stdarg.h>

enum { SHOWN = 20 }; /* in a message */

/* True for the first refusal of its kind; many layers may have the same one. */
static bool is_new(pt2_graph *g, const char *kind)
{
    pt2_refusals *r = &g->refusals;

    for (int i = 0; i < r->kinds; i++)
        if (!strcmp(r->reported[i], kind))
            return false;
    r->reported = hvt__pt2_grown(g, r->reported, r->kinds, &r->room, sizeof *r->reported);
    r->reported[r->kinds++] = hvt__pt2_text(g, kind);
    return true;
}

static void mark(pt2_node *n)
{
    for (int i = 0; i < n->nout; i++)
        n->out[i]->refused = true;
}

static void report(pt2_graph *g, const pt2_node *n, const char *why)
{
    pt2_refusals *r = &g->refusals;
    char kind[640];
    size_t used;

    snprintf(kind, sizeof kind, "%.100s: %s", n->target, why);
    if (!is_new(g, kind) || r->kinds > SHOWN)
        return;
    used = strlen(r->text);
    snprintf(r->text + used, sizeof r->text - used, "%s%.60s (%.100s): %s", used ? "; " : "", n->target,
             n->where, why);
}

void hvt__pt2_report(pt2_graph *g)
{
    g->defers = false;
    for (pt2_node *n = g->first; n; n = n->after)
        if (n->why)
            report(g, n, n->why);
}

bool hvt__pt2_try(pt2_graph *g, pt2_job *job, pt2_node *n, void *data)
{
    jmp_buf here, *const outer = g->refusal;
    const bool scratches = g->scratches;

    if (setjmp(here)) {
        g->refusal = outer;
        g->scratches = scratches;
        return false;
    }
    g->refusal = &here;
    job(g, n, data);
    g->refusal = outer;
    return true;
}

void hvt__pt2_give_up(pt2_graph *g)
{
    longjmp(*g->refusal, 1);
}

void hvt__pt2_refuse(pt2_graph *g, pt2_node *n, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    if (g->traces)
        hvt__pt2_give_up(g);
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    mark(n);
    if (g->defers)
        n->why = hvt__pt2_text(g, why);
    else
        report(g, n, why);
    hvt__pt2_give_up(g);
}

/* Operations that only run_decompositions() writes, which prepares graphs for compilers. */
static bool is_decomposed(const char *target)
{
    static const char *const names[] = {"convolution.",
                                        "addmm.",
                                        "native_",
                                        "_native_",
                                        "_softmax.",
                                        "_log_softmax.",
                                        "max_pool2d_with_indices.",
                                        "_adaptive_avg_pool2d.",
                                        "hardtanh_backward."};
    bool found = false;

    for (size_t i = 0; i < HVT_LEN(names) && !strncmp(target, "aten.", 5); i++)
        found = found || !strncmp(target + 5, names[i], strlen(names[i]));
    return found;
}

void hvt__pt2_find_unknown(pt2_graph *g)
{
    char *text = hvt__pt2_make(g, SHOWN * 256);
    const char **seen;
    size_t size = SHOWN * 256;
    int n = 0, nodes = 0;

    for (const pt2_node *x = g->first; x; x = x->after)
        nodes += x->op == PT2_UNKNOWN;
    if (!nodes)
        return;
    seen = hvt__pt2_make(g, (size_t)nodes * sizeof *seen);
    for (pt2_node *x = g->first; x; x = x->after) {
        int i = 0;

        if (x->op != PT2_UNKNOWN)
            continue;
        mark(x);
        while (i < n && strcmp(seen[i], x->target) != 0)
            i++;
        if (i < n)
            continue;
        seen[n++] = x->target;
        g->decomposed = g->decomposed || is_decomposed(x->target);
        if (n <= SHOWN)
            snprintf(text + strlen(text), size - strlen(text), "%s%.60s%s%.100s%s%s%s", *text ? ", " : "",
                     x->target, *x->where || x->is.text ? " (" : "", x->where,
                     *x->where && x->is.text ? "; " : "", x->is.text ? x->is.text : "",
                     *x->where || x->is.text ? ")" : "");
    }
    g->unknown = hvt__pt2_make(g, size + 200);
    snprintf(g->unknown, size + 200, "%d %s unknown: %s%s%s", n, n == 1 ? "operation is" : "operations are",
             text, n > SHOWN ? ", ..." : "",
             g->decomposed ? "; run_decompositions() was called on this program: export without it" : "");
}

hvt_status hvt__pt2_reported(const pt2_graph *g)
{
    const char *unknown = g->unknown ? g->unknown : "";
    const int uses = g->decomposed ? 0 : g->refusals.kinds;

    if (!*unknown && !g->refusals.kinds)
        return HVT_OK;
    return HVT_FAIL(E_UNSUPPORTED, "%s: %s%s%s%s%s", g->path, unknown, *unknown && uses ? "; and " : "",
                    uses > 1 ? "uses that are not imported: " : "", uses ? g->refusals.text : "",
                    uses > SHOWN ? ", ..." : "");
}

hvt_status hvt__pt2_fail_at(const pt2_graph *g, const pt2_node *n, const char *why)
{
    return HVT_FAIL(E_UNSUPPORTED, "%s: %.60s (%.100s): %s", g->path, n->target, n->where, why);
}
