/*
 * From a .pt2 file to a tape. Only what leads to the logits is imported: bookkeeping (num_batches_tracked)
 * and the auxiliary classifiers of GoogLeNet and Inception are not. The run decides whether it trains or
 * evaluates, not the mode in which the file was exported.
 *
 * PyTorch changes tensors in place (relu_); on the tape each value is written once. As the graph is in order,
 * taking such an operation as one that makes a new value is right if nobody reads the old one, or a view of
 * it, afterwards, which hvt__pt2_tensor() checks.
 */
#include "import.h"

#include <math.h>
#include <stdarg.h>

enum { SHOWN = 20 }; /* refusals in a message */

/* Has nothing been refused for this reason before? Such as each of many layers. */
static bool first_of_its_kind(importer *p, const char *why)
{
    char kind[640];

    snprintf(kind, sizeof kind, "%.100s: %s", hvt__pt2_target(p->node), why);
    if (json_object_get(p->refused_kinds, kind))
        return false;
    json_object_set_new(p->refused_kinds, kind, json_true());
    return true;
}

void hvt__pt2_refuse(importer *p, const char *fmt, ...)
{
    char why[512], where[256];
    va_list ap;
    size_t used;

    if (p->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    p->failed = true;
    if (!first_of_its_kind(p, why) || ++p->refusals > SHOWN)
        return;
    hvt__pt2_where(p->node, where, sizeof where);
    used = strlen(p->refused_text);
    snprintf(p->refused_text + used, sizeof p->refused_text - used, "%s%.60s (%.100s): %s", used ? "; " : "",
             hvt__pt2_target(p->node), where, why);
}

/* Refuses a file with everything in it that is not imported, each kind once. */
static hvt_status refuse_all(const importer *p)
{
    const char *unknown = p->file->unknown ? p->file->unknown : "";
    const int uses = p->file->decomposed ? 0 : p->refusals;

    return HVT_FAIL(E_UNSUPPORTED, "%s: %s%s%s%s%s", p->file->path, unknown, *unknown && uses ? "; and " : "",
                    uses > 1 ? "uses that are not imported: " : "", uses ? p->refused_text : "",
                    uses > SHOWN ? ", ..." : "");
}

/* ---- arguments ---- */

bool hvt__pt2_given(const importer *p, const char *name)
{
    const char *kind;

    return hvt__pt2_arg(p->node, name, &kind) != NULL;
}

static const json_t *argument(importer *p, const char *name, const char *kind, const char *or_kind)
{
    const char *is;
    const json_t *x = hvt__pt2_arg(p->node, name, &is);

    if (x && strcmp(is, kind) != 0 && strcmp(is, or_kind) != 0) {
        hvt__pt2_refuse(p, "its argument %s is %s, not %s", name, is, kind);
        return NULL;
    }
    return x;
}

int hvt__pt2_int(importer *p, const char *name, int otherwise)
{
    const json_t *x = argument(p, name, "as_int", "as_int");
    json_int_t n = x ? json_integer_value(x) : otherwise;

    if (x && (!json_is_integer(x) || n < INT_MIN || n > INT_MAX))
        hvt__pt2_refuse(p, "its argument %s is no integer of 32 bits", name);
    return p->failed ? otherwise : (int)n;
}

/* JSON has no infinity: PyTorch writes a string. */
bool hvt__pt2_real(const json_t *x, double *ret_x)
{
    const char *text = json_string_value(x);
    bool below = text && *text == '-';

    if (text && !strcmp(text + below, "Infinity"))
        *ret_x = below ? -INFINITY : INFINITY;
    else if (json_is_number(x))
        *ret_x = json_number_value(x);
    else
        return false;
    return true;
}

double hvt__pt2_float(importer *p, const char *name, double otherwise)
{
    const json_t *x = argument(p, name, "as_float", "as_int");
    double f = otherwise;

    if (x && !hvt__pt2_real(x, &f))
        hvt__pt2_refuse(p, "its argument %s is no number", name);
    return f;
}

bool hvt__pt2_bool(importer *p, const char *name, bool otherwise)
{
    const json_t *x = argument(p, name, "as_bool", "as_bool");

    return x ? json_is_true(x) : otherwise;
}

const char *hvt__pt2_string(importer *p, const char *name, const char *otherwise)
{
    const char *x = json_string_value(argument(p, name, "as_string", "as_string"));

    return x ? x : otherwise;
}

void hvt__pt2_ints(importer *p, const char *name, int n, int *ret_x)
{
    const json_t *x = argument(p, name, "as_ints", "as_int");
    size_t given = json_array_size(x);

    if (given && given != 1 && given != (size_t)n) {
        hvt__pt2_refuse(p, "its argument %s has %zu numbers, not %d", name, given, n);
        return;
    }
    for (int i = 0; i < n && (given || json_is_integer(x)); i++) {
        const json_t *number = given ? json_array_get(x, given == 1 ? 0 : (size_t)i) : x;
        json_int_t k = json_integer_value(number);

        if (!json_is_integer(number) || k < INT_MIN || k > INT_MAX) {
            hvt__pt2_refuse(p, "its argument %s is no list of integers of 32 bits", name);
            return;
        }
        ret_x[i] = (int)k;
    }
}

int hvt__pt2_list(importer *p, const char *name, int most, int *ret_x)
{
    const json_t *x = argument(p, name, "as_ints", "as_ints");
    size_t n = json_array_size(x);

    if (n > (size_t)most) {
        hvt__pt2_refuse(p, "its argument %s has %zu numbers, more than %d", name, n, most);
        return 0;
    }
    if (n)
        hvt__pt2_ints(p, name, (int)n, ret_x);
    return (int)n;
}

int hvt__pt2_argument_sizes(const importer *p, const char *name, int most, int64_t *ret_size)
{
    const char *kind, *of = json_string_value(json_object_get(hvt__pt2_arg(p->node, name, &kind), "name"));

    return of ? hvt__pt2_sizes(p->file, of, most, ret_size) : -1;
}

static tensor *find(importer *p, const char *name)
{
    const json_t *i = name ? json_object_get(p->index, name) : NULL;
    tensor *t = i ? &p->tensor[json_integer_value(i)] : NULL;

    if (!t)
        hvt__pt2_refuse(p, "it reads %s, which is no result of an operation that is imported",
                        name ? name : "(nothing)");
    else if (!t->state && !t->known && t->version != p->tensor[t->storage].newest)
        hvt__pt2_refuse(p, "it reads %s after an operation has changed that, or a part of it, in place",
                        name);
    else if (t->zeros_end && !p->bias)
        hvt__pt2_refuse(p, "it reads %s, some of which was set to 0; expected a layer to read it as its bias",
                        name);
    else
        return t->kind == HVT__PT2_ROTATED && !p->rotating ? hvt__pt2_as_rotary(p, t) : t;
    return NULL;
}

static tensor *find_argument(importer *p, const char *name)
{
    const json_t *x = argument(p, name, "as_tensor", "as_tensor");

    return x ? find(p, json_string_value(json_object_get(x, "name"))) : NULL;
}

const tensor *hvt__pt2_uncut(importer *p, const char *name)
{
    return find_argument(p, name);
}

const tensor *hvt__pt2_named(importer *p, const char *name)
{
    return find(p, name);
}

int64_t hvt__pt2_place(importer *p, const char *name, int64_t otherwise)
{
    const char *kind;
    const json_t *x = hvt__pt2_arg(p->node, name, &kind);
    const int64_t at = json_is_integer(x) ? json_integer_value(x) : otherwise, most = INT64_C(1) << 40;

    if (x && !json_is_integer(x))
        hvt__pt2_refuse(p, "its argument %s is %s, not as_int", name, kind);
    return at < -most ? -most : at > most ? most : at;
}

/* The next tensor that the node at hand reads, from argument at[0] and its tensor at[1] on; *ret_t NULL: it
 * is left out, or not imported. False: there is no other one. */
static bool next_read(const importer *p, size_t at[2], const tensor **ret_t)
{
    const json_t *in = json_object_get(p->node, "inputs");

    for (; at[0] < json_array_size(in); at[0]++, at[1] = 0) {
        const json_t *arg = json_object_get(json_array_get(in, at[0]), "arg");

        if (at[1] < hvt__pt2_tensors_in(arg)) {
            const char *name = hvt__pt2_tensor_in(arg, at[1]++);
            const json_t *number = name ? json_object_get(p->index, name) : NULL;

            *ret_t = number ? &p->tensor[json_integer_value(number)] : NULL;
            return true;
        }
    }
    return false;
}

bool hvt__pt2_reads_constants(importer *p)
{
    const tensor *t;
    size_t at[2] = {0, 0};
    bool all = true, any = false;

    while (next_read(p, at, &t)) {
        const bool buffer = t && t->state && t->constant;

        all = all && t && (t->known || buffer);
        any = any || (t && (t->known || (buffer && (!t->persistent || hvt__pt2_is_whole(p->file, t->name)))));
    }
    return all && (any || !p->operation);
}

/* Is none of the images, nor random numbers, among its arguments? */
static bool reads_parameters_alone(const importer *p)
{
    const tensor *t;
    size_t at[2] = {0, 0};

    while (next_read(p, at, &t))
        if (t && !t->state && !t->known && !(t->v >= 0 && t->alike))
            return false;
    return true;
}

static const tensor *cut_out(importer *p, tensor *t)
{
    if (t && (t->count || t->times)) {
        t->v = t->count ? hvt_slice(p->m, t->v, t->first, t->count) : t->v;
        t->v = t->times ? hvt_apply(p->m, t->v, HVT_AFFINE, (float)t->times, 0) : t->v;
        t->count = 0;
        t->times = 0;
        p->mistaken = p->mistaken || t->v < 0;
    }
    return t;
}

hvt_value hvt__pt2_value(importer *p, const tensor *t)
{
    return cut_out(p, &p->tensor[t - p->tensor])->v;
}

hvt_value hvt__pt2_without_factor(importer *p, const tensor *t)
{
    tensor *x = &p->tensor[t - p->tensor];
    const double times = x->times;
    hvt_value v;

    x->times = 0;
    v = hvt__pt2_value(p, t);
    x->times = times;
    return v;
}

const tensor *hvt__pt2_tensor(importer *p, const char *name)
{
    return cut_out(p, find_argument(p, name));
}

bool hvt__pt2_two_uncut(importer *p, const char *name, const tensor **ret_t)
{
    const json_t *x = argument(p, name, "as_tensors", "as_tensors");

    if (json_array_size(x) != 2)
        hvt__pt2_refuse(p, "it takes %zu tensors; 2 are imported", json_array_size(x));
    for (size_t i = 0; i < 2 && !p->failed; i++)
        ret_t[i] = find(p, json_string_value(json_object_get(json_array_get(x, i), "name")));
    return !p->failed;
}

int hvt__pt2_tensors(importer *p, const char *name, int most, const tensor **ret_t)
{
    const json_t *x = argument(p, name, "as_tensors", "as_tensors");
    int n = (int)json_array_size(x);

    if (n > most) {
        hvt__pt2_refuse(p, "it takes %d tensors; at most %d are imported", n, most);
        return 0;
    }
    for (int i = 0; i < n; i++)
        ret_t[i] =
            cut_out(p, find(p, json_string_value(json_object_get(json_array_get(x, (size_t)i), "name"))));
    return n;
}

/* ---- outputs ---- */

int hvt__pt2_outs(const importer *p)
{
    const json_t *out = json_array_get(json_object_get(p->node, "outputs"), 0);

    return (int)json_array_size(json_object_get(out, "as_tensors"));
}

const char *hvt__pt2_out_name(const importer *p, int i)
{
    const json_t *out = json_object_get(p->node, "outputs"),
                 *list = json_object_get(json_array_get(out, 0), "as_tensors"),
                 *t = list ? json_array_get(list, (size_t)i)
                           : json_object_get(json_array_get(out, (size_t)i), "as_tensor");

    return json_string_value(json_object_get(t, "name"));
}

bool hvt__pt2_is_read(const importer *p, int i)
{
    const char *name = hvt__pt2_out_name(p, i);

    return name && json_object_get(p->file->used, name);
}

int hvt__pt2_any_sizes(importer *p, int i, int64_t *ret_size)
{
    const char *name = hvt__pt2_out_name(p, i);
    int n = name ? hvt__pt2_sizes(p->file, name, HVT__PT2_DIMS, ret_size) : -1;

    if (n < 1)
        hvt__pt2_refuse(p, "output %d has no sizes, or more than %d dimensions", i, HVT__PT2_DIMS);
    return n;
}

int hvt__pt2_out_sizes(importer *p, int i, int64_t *ret_size)
{
    const int n = hvt__pt2_any_sizes(p, i, ret_size);

    if (n > 0 && ret_size[0] != p->file->batch)
        hvt__pt2_refuse(p,
                        "its output has %lld rows where the example has %d images: dimensions of the batch "
                        "and of an image are mixed",
                        (long long)ret_size[0], p->file->batch);
    return n;
}

/* There is room for every name of the graph, twice. */
static void define(importer *p, const char *name, tensor t, int storage)
{
    int i = p->ntensor;

    if (!name) {
        hvt__pt2_refuse(p, "its output has no name");
        return;
    }
    p->ntensor++;
    t.storage = storage < 0 ? i : storage;
    t.newest = 0;
    p->tensor[i] = t;
    p->tensor[i].name = name;
    p->tensor[i].version = p->tensor[t.storage].newest;
    if (json_object_set_new(p->index, name, json_integer(i)) != 0)
        hvt__pt2_refuse(p, "no memory for its output");
}

/* Dimensions are the file's; the tape's values have sizes of their own. They differ where an operation is
 * taken for another than it is, or the file is damaged. Behind a last layer of other classes they must. */
static void check_shape(importer *p, const tensor *t)
{
    int is[3], want[3] = {1, 1, 1};

    if (t->v < 0 || p->headed)
        return;
    hvt_value_shape(p->m, t->v, is);
    is[2] = t->count ? t->count : is[2];
    for (int a = 0; a < (t->axes.ndim ? t->axes.end[t->axes.ndim - 1] : 0); a++) {
        const char *at = strchr("HWC", t->axes.atom[a].axis);

        if (at)
            want[at - "HWC"] *= (int)t->axes.atom[a].extent;
    }
    if (memcmp(is, want, sizeof is) != 0)
        hvt__pt2_refuse(p, "its output is %dx%dx%d here, but %dx%dx%d in the file", is[0], is[1], is[2],
                        want[0], want[1], want[2]);
}

void hvt__pt2_out(importer *p, int i, tensor t, const tensor *x)
{
    int storage = x ? x->storage : -1;

    if (p->failed)
        return;
    t.alike = t.v >= 0 && reads_parameters_alone(p);
    p->headed = p->headed || (p->classes && hvt__pt2_makes_classes(p->file, p->node));
    check_shape(p, &t);
    p->mistaken = t.v < 0 && t.kind == HVT__PT2_VALUE && !t.state && !t.known;
    if (hvt__pt2_in_place(p->node)) {
        const tensor *old = find(p, hvt__pt2_changed(p->node));

        if (!old)
            return;
        storage = old->storage;
        p->tensor[storage].newest++;
    }
    define(p, hvt__pt2_out_name(p, i), t, storage);
}

void hvt__pt2_out_value(importer *p, hvt_value v)
{
    int64_t size[HVT__PT2_DIMS];
    int n = hvt__pt2_out_sizes(p, 0, size);

    if (n != 4 && n != 2)
        hvt__pt2_refuse(p, "its output has %d dimensions", n);
    hvt__pt2_out(p, 0, (tensor){.v = v, .axes = hvt__pt2_axes_of(n, size)}, NULL);
}

/* ---- the walk ---- */

static void begin(importer *p, hvt_value images)
{
    const hvt_pt2 *f = p->file;
    const int64_t size[] = {f->batch, f->channels, f->height, f->width};
    const char *name;
    json_t *state;

    json_object_foreach(f->inputs, name, state)
        define(p, name,
               (tensor){.state = json_string_value(state),
                        .constant = json_object_get(f->constants, name) != NULL,
                        .persistent = json_is_true(json_object_get(f->constants, name)),
                        .v = -1},
               -1);
    define(p, f->image, (tensor){.v = images, .axes = hvt__pt2_axes_of(4, size)}, -1);
}

/* [N,C,H,W] or [N,C], as layers leave them? */
static bool is_plain(const hvt__pt2_axes *x)
{
    return hvt__pt2_is(x, 1, 'C') &&
           (x->ndim == 2 || (x->ndim == 4 && hvt__pt2_is(x, 2, 'H') && hvt__pt2_is(x, 3, 'W')));
}

/* The node was refused. If its first output is an image and made of one, zeros take its place: then one
 * message tells of what follows, too. */
static bool stand_in(importer *p)
{
    const json_t *in = json_object_get(json_array_get(json_object_get(p->node, "inputs"), 0), "arg");
    const char *name = hvt__pt2_tensors_in(in) ? hvt__pt2_tensor_in(in, 0) : NULL,
               *out = hvt__pt2_outs(p) ? NULL : hvt__pt2_out_name(p, 0);
    const json_t *number = name ? json_object_get(p->index, name) : NULL;
    const tensor *x = number ? &p->tensor[json_integer_value(number)] : NULL;
    int64_t size[HVT__PT2_DIMS];
    const int n = out ? hvt__pt2_sizes(p->file, out, HVT__PT2_DIMS, size) : 0;
    bool fits = x && x->v >= 0 && !x->known && is_plain(&x->axes) && n == x->axes.ndim &&
                size[0] == p->file->batch && !hvt__pt2_in_place(p->node);

    for (int i = 1; i < n; i++)
        fits = fits && size[i] > 0 && size[i] <= 1 << 16;
    if (!fits)
        return false;
    p->failed = false;
    hvt__pt2_out(p, 0,
                 (tensor){.v = hvt_zeros(p->m, p->images, n == 4 ? (int)size[2] : 1,
                                         n == 4 ? (int)size[3] : 1, (int)size[1]),
                          .axes = hvt__pt2_axes_of(n, size)},
                 NULL);
    return !p->failed;
}

/* What node p->node makes and nothing stands in for. */
static hvt_status note_refused(importer *p)
{
    const bool stands_in = stand_in(p);
    int failed = hvt__pt2_add_outputs(p->node, p->refused);

    if (stands_in && !failed)
        json_object_del(p->refused, hvt__pt2_out_name(p, 0));
    HVT_CHECK(!failed, E_MEM, "%s: no memory", p->file->path);
    p->failed = false;
    return HVT_OK;
}

/* What reads a tensor that was refused is not looked at: one message tells of all others. */
static void import_node(importer *p)
{
    p->operation = hvt__pt2_operation(hvt__pt2_target(p->node));
    if (hvt__pt2_reads(p->node, p->refused) || hvt__pt2_is_unknown(p->file, p->node)) {
        p->failed = true;
        return;
    }
    if (hvt__pt2_folds(p) || hvt__pt2_rotates(p))
        return;
    if (p->operation)
        p->operation->build(p);
    else
        hvt__pt2_refuse(p, reads_parameters_alone(p)
                               ? "it is known of constants alone: not of parameters, and of parts of a "
                                 "buffer if that is registered with persistent=False"
                               : "it is known of constants alone, and this is computed");
}

/* [N, classes], or one number of each image, [N]. */
static bool is_row(const importer *p, const tensor *t)
{
    int shape[3];

    hvt_value_shape(p->m, t->v, shape);
    return t->axes.ndim == 2 ? hvt__pt2_is(&t->axes, 1, 'C')
                             : t->axes.ndim == 1 && !p->classes && shape[0] * shape[1] * shape[2] == 1;
}

static hvt_status import(importer *p, hvt_value images, hvt_value *ret_logits)
{
    const tensor *logits;

    p->index = json_object();
    p->layers = json_object();
    p->attached = json_object();
    p->refused = json_object();
    p->refused_kinds = json_object();
    p->tensor = malloc(2 * p->file->names * sizeof *p->tensor);
    HVT_CHECK(p->index && p->layers && p->attached && p->refused && p->refused_kinds && p->tensor, E_MEM,
              "%s: no memory", p->file->path);
    begin(p, images);
    HVT_TRY(hvt__pt2_find_rotations(p));
    for (size_t i = 0; i < p->file->nneeded && !p->mistaken; i++) {
        p->node = p->file->needed[i];
        import_node(p);
        if (p->failed)
            HVT_TRY(note_refused(p));
    }
    if (p->refusals || p->file->unknown)
        return refuse_all(p);
    if (p->mistaken) { /* what it was, the plan tells */
        hvt_status s = hvt_model_plan(p->m, p->file->batch, -1);

        if (s == HVT_E_MEM)
            return hvt__pass(s, __FILE__, __LINE__, "import");
        if (p->headed)
            hvt__pt2_refuse(p, "%s, with %d classes in place of %d", hvt_last_error(), p->classes,
                            hvt_pt2_describe(p->file).classes);
        else
            hvt__pt2_refuse(p, "%s", hvt_last_error());
    }
    logits = p->failed ? NULL : cut_out(p, find(p, p->file->logits));
    if (!p->node) {
        (void)HVT_FAIL(E_UNSUPPORTED, "%s: no operation leads from its input to its output", p->file->path);
        p->failed = true;
    }
    if (!p->failed && !is_row(p, logits))
        hvt__pt2_refuse(p, "the model's output is not [N, classes], or [N]%s",
                        p->classes ? "; with --classes only the former" : "");
    if (p->failed)
        return p->refusals ? refuse_all(p) : HVT_E_UNSUPPORTED;
    *ret_logits = logits->v;
    return HVT_OK;
}

/* The names that hvt_model_freeze() shall know, each a whole one; but for a last layer that is a new one. */
static hvt_status freeze(const importer *p)
{
    const hvt_pt2 *f = p->file;
    size_t room = 1, used = 0;
    const char *name;
    char *list;
    json_t *state;
    hvt_status s;

    json_object_foreach(f->inputs, name, state) room += json_string_length(state) + 2;
    list = calloc(room, 1);
    HVT_CHECK(list, E_MEM, "%s: no memory for the names of its parameters", f->path);
    json_object_foreach(f->inputs, name, state)
    {
        const char *parameter = json_string_value(state);

        if (!json_object_get(f->constants, name) && json_object_get(f->used, name) &&
            json_is_false(json_object_get(json_object_get(f->tensors, name), "requires_grad")) &&
            !(p->classes && hvt__pt2_is_resized(f, parameter)))
            used += (size_t)snprintf(list + used, room - used, "%s%s$", used ? "," : "", parameter);
    }
    s = hvt_model_freeze(p->m, list);
    free(list);
    return s;
}

static hvt_status name_twice(const importer *p)
{
    const char *name;
    json_t *of;

    json_object_foreach(p->file->second, name, of)
        HVT_TRY(hvt_model_alias(p->m, name, json_string_value(of)));
    return HVT_OK;
}

hvt_status hvt_pt2_build(const hvt_pt2 *file, hvt_model *m, hvt_value images, int classes,
                         hvt_value *ret_logits)
{
    HVT_GIVEN(file, "a .pt2 file");
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(ret_logits, "an output pointer for the logits");
    HVT_CHECK(classes >= 0, E_ARG, "%d classes; 0 keeps those of the file", classes);
    *ret_logits = -1;
    if (images < 0) /* hvt_model_plan() tells */
        return HVT_OK;

    importer p = {.file = file,
                  .m = m,
                  .images = images,
                  .classes = classes == hvt_pt2_describe(file).classes ? 0 : classes};
    hvt_status s = import(&p, images, ret_logits);

    if (s == HVT_OK)
        s = freeze(&p);
    if (s == HVT_OK)
        s = name_twice(&p);
    if (s == HVT_OK)
        s = hvt__pt2_attach_unused(&p);
    hvt__pt2_forget_rotated(&p);
    hvt__pt2_forget(&p);
    free(p.tensor);
    json_decref(p.index);
    json_decref(p.layers);
    json_decref(p.attached);
    json_decref(p.may_rotate);
    json_decref(p.refused);
    json_decref(p.refused_kinds);
    return s;
}
