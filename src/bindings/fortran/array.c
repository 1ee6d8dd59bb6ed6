/*
 * The C half of module hvtrain, which the module's interfaces call: takes options from a string, arrays from
 * their descriptors, communicators from integers. A rank whose arguments are wrong still calls the library,
 * with what is wrong, so that all ranks get this error and none waits.
 */
#include <ISO_Fortran_binding.h>
#include <ctype.h>
#include <hvt/hvt.h>
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fortran_net {
    hvt_net *net;
    hvt_net_opts opts;
    int layout;
    char *text; /* options; opts.device points into it */
} fortran_net;

hvt_status hvt_fortran_open(const char *name, const char *options, const MPI_Fint *comm, fortran_net **net);
hvt_status hvt_fortran_train(fortran_net *f, const CFI_cdesc_t *images, const CFI_cdesc_t *targets,
                             const int *epochs, double *ret_loss);
hvt_status hvt_fortran_infer(fortran_net *f, const CFI_cdesc_t *images, const CFI_cdesc_t *outputs);
hvt_status hvt_fortran_file(fortran_net *f, const char *path, int write);
hvt_status hvt_fortran_set_lr(fortran_net *f, double lr);
hvt_status hvt_fortran_hash(fortran_net *f, char *text);
void hvt_fortran_close(fortran_net **f);
void hvt_fortran_error(char *text, int length);

static _Thread_local char wrong[1024]; /* this file's error; "": the library's last error holds */

HVT_PRINTF(1, 2) static bool refuse(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(wrong, sizeof wrong, format, args);
    va_end(args);
    return false;
}

/* ---- options: words NAME=VALUE ---- */

typedef enum kind { INT, LONG, SEED, FLOAT, DOUBLE, SWITCH, TEXT, CHOICE } kind;
typedef struct option {
    const char *name;
    kind kind;
    void *to;
    const char *choices; /* CHOICE: words, the first is 0 */
} option;

static bool set_choice(const option *o, const char *value)
{
    size_t n = strlen(value);
    int number = 0;

    for (const char *word = o->choices; *word; word += strcspn(word, " "), word += *word == ' ', number++)
        if (n == strcspn(word, " ") && !strncmp(word, value, n)) {
            *(int *)o->to = number;
            return true;
        }
    return refuse("option %s is \"%s\", expected one of: %s", o->name, value, o->choices);
}

/* Sets a number. Fortran also writes exponents with a d. */
static bool set_number(const option *o, const char *value)
{
    char text[64], *end;
    long long whole;
    double real;

    snprintf(text, sizeof text, "%s", value);
    whole = strtoll(text, &end, 10);
    if (o->kind != FLOAT && o->kind != DOUBLE) {
        if (end == text || *end || (o->kind == INT && whole != (int)whole) || (o->kind == SEED && whole < 0))
            return refuse("option %s is \"%s\", expected a whole number", o->name, value);
        if (o->kind == INT)
            *(int *)o->to = (int)whole;
        else
            *(int64_t *)o->to = whole;
        return true;
    }
    for (char *c = text; *c; c++)
        *c = *c == 'd' || *c == 'D' ? 'e' : *c;
    real = strtod(text, &end);
    if (end == text || *end || !isfinite(real))
        return refuse("option %s is \"%s\", expected a number", o->name, value);
    if (o->kind == FLOAT)
        *(float *)o->to = (float)real;
    else
        *(double *)o->to = real;
    return true;
}

static bool set_option(const option *all, char *word)
{
    char *value = strchr(word, '=');

    if (!value)
        return refuse("option \"%s\" has no value, expected NAME=VALUE", word);
    *value++ = '\0';
    for (const option *o = all; o->name; o++) {
        if (strcmp(o->name, word))
            continue;
        if (o->kind == SWITCH)
            return set_choice(&(option){o->name, CHOICE, o->to, "false true"}, value);
        if (o->kind == TEXT)
            *(const char **)o->to = value;
        return o->kind == TEXT || (o->kind == CHOICE ? set_choice(o, value) : set_number(o, value));
    }
    return refuse("unknown option %s; docs/fortran.md lists all options", word);
}

static bool parse(fortran_net *f)
{
    hvt_net_opts *o = &f->opts;
    int loss = 0, optimizer = 0, compute = 0, nesterov = 0, stem = 0;
    const option all[] = {{"height", INT, &o->height},
                          {"width", INT, &o->width},
                          {"channels", INT, &o->channels},
                          {"outputs", INT, &o->outputs},
                          {"layout", CHOICE, &f->layout, "whcn cwhn"},
                          {"loss", CHOICE, &loss, "ce mse bce mae"},
                          {"label_smoothing", FLOAT, &o->loss.label_smoothing},
                          {"lr", DOUBLE, &o->lr},
                          {"batch", LONG, &o->batch},
                          {"shard", INT, &o->shard},
                          {"seed", SEED, &o->seed},
                          {"optimizer", CHOICE, &optimizer, "sgd adam adamw rmsprop lars lamb"},
                          {"momentum", FLOAT, &o->optim.momentum},
                          {"nesterov", SWITCH, &nesterov},
                          {"weight_decay", FLOAT, &o->optim.weight_decay},
                          {"beta1", DOUBLE, &o->optim.betas[0]},
                          {"beta2", DOUBLE, &o->optim.betas[1]},
                          {"eps", DOUBLE, &o->optim.eps},
                          {"compute", CHOICE, &compute, "f32 bf16"},
                          {"device", TEXT, &o->device},
                          {"threads", INT, &o->threads},
                          {"imagenet_stem", SWITCH, &stem},
                          {NULL}};
    char *rest = f->text, *word;
    bool moments;

    o->optim.betas[0] = o->optim.betas[1] = o->optim.eps = NAN; /* not given */
    while ((word = strtok_r(rest, " ,\t\n", &rest)))
        if (!set_option(all, word))
            return false;
    o->loss.kind = (hvt_loss_kind)loss;
    o->optim.kind = (hvt_optim_kind)optimizer;
    o->optim.nesterov = nesterov;
    o->zoo.imagenet_stem = stem;
    o->compute = compute ? HVT_BF16 : HVT_F32;
    moments = o->optim.kind != HVT_OPTIM_SGD && o->optim.kind != HVT_OPTIM_LARS;
    const double unless_given[] = {moments && o->optim.kind != HVT_OPTIM_RMSPROP ? 0.9 : 0,
                                   !moments                             ? 0
                                   : o->optim.kind == HVT_OPTIM_RMSPROP ? 0.99
                                                                        : 0.999,
                                   moments ? 1e-8 : 0};
    double *const given[] = {&o->optim.betas[0], &o->optim.betas[1], &o->optim.eps};
    for (int i = 0; i < 3; i++)
        if (isnan(*given[i]))
            *given[i] = unless_given[i];
    return true;
}

/* ---- arrays ---- */

/* " (8, 8, 1, 60)" */
static const char *shape_of(const CFI_cdesc_t *a, char text[256])
{
    int at = snprintf(text, 256, "(");

    for (int i = 0; i < a->rank && at < 220; i++)
        at +=
            snprintf(text + at, (size_t)(256 - at), "%s%" PRIdMAX, i ? ", " : "", (intmax_t)a->dim[i].extent);
    snprintf(text + at, (size_t)(256 - at), ")");
    return text;
}

static bool dense(const char *what, const CFI_cdesc_t *a, hvt_dtype *ret_type, int64_t *ret_count)
{
    int64_t count = 1;

    for (int i = 0; i < a->rank; i++)
        count *= a->dim[i].extent;
    *ret_count = count;
    *ret_type = a->type == CFI_type_float                                ? HVT_F32
                : a->type == CFI_type_double                             ? HVT_F64
                : a->type == CFI_type_int32_t || a->type == CFI_type_int ? HVT_I32
                : a->type == CFI_type_int64_t                            ? HVT_I64
                : a->type == CFI_type_int8_t                             ? HVT_I8
                                                                         : HVT_F16;
    if (*ret_type == HVT_F16)
        return refuse(
            "%s are of an unsupported type (%zu bytes an element), expected real32, real64 or integers", what,
            a->elem_len);
    return count == 0 || CFI_is_contiguous(a) ||
           refuse("%s are not contiguous in memory, expected a whole array or a copy", what);
}

static bool fits(const fortran_net *f, const CFI_cdesc_t *images, hvt_net_data *data)
{
    const hvt_net_parts has = hvt_net_describe(f->net);
    const int64_t pixels = (int64_t)has.height * has.width * has.channels;
    const int whc[2][3] = {{has.width, has.height, has.channels}, {has.channels, has.width, has.height}};
    const int *dims = whc[f->layout];
    char shape[256];
    int64_t count;
    bool same;

    if (!dense("images", images, &data->type, &count))
        return false;
    if (data->type != HVT_F32 && data->type != HVT_F64)
        return refuse("images are %s, expected real32 or real64", hvt_dtype_name(data->type));
    data->count = count / pixels;
    data->images = images->base_addr;
    data->layout = f->layout ? HVT_NHWC : HVT_WHCN;
    same = count % pixels == 0 &&
           (data->count < 2 || images->rank == 1 || images->dim[images->rank - 1].extent == data->count);
    for (int i = 0; i < 3 && images->rank == 4; i++)
        same = same && images->dim[i].extent == dims[i];
    return same || refuse("images are %s, expected (%d, %d, %d, n)", shape_of(images, shape), dims[0],
                          dims[1], dims[2]);
}

static bool answers(const fortran_net *f, const char *what, const CFI_cdesc_t *a, int64_t images, int each,
                    hvt_dtype *ret_type)
{
    char shape[256];
    int64_t count;

    if (!dense(what, a, ret_type, &count))
        return false;
    if (count != images * each)
        return refuse("%s are %s, expected %" PRId64 " numbers: %d for each of %" PRId64 " images", what,
                      shape_of(a, shape), images * each, each, images);
    return each == 1 || a->rank < 2 || a->dim[a->rank - 1].extent == images ||
           refuse("%s are %s, expected the %" PRId64 " images to be the last dimension", what,
                  shape_of(a, shape), images);
}

/* ---- what Fortran calls ---- */

static bool is_open(const fortran_net *f)
{
    wrong[0] = '\0';
    return f || refuse("the net is not open: call open first");
}

/* Moves this file's error to text[1024], for the library to report on all ranks; NULL if there is none. */
static const char *refusal(bool good, char *text)
{
    snprintf(text, sizeof wrong, "%s", wrong);
    wrong[0] = '\0';
    return good ? NULL : text;
}

hvt_status hvt_fortran_open(const char *name, const char *options, const MPI_Fint *comm, fortran_net **net)
{
    fortran_net *f = calloc(1, sizeof *f);
    MPI_Comm c = comm ? MPI_Comm_f2c(*comm) : MPI_COMM_NULL;
    hvt_net *opened = NULL;
    hvt_net_opts none = {0}, *opts = f ? &f->opts : &none;
    char said[sizeof wrong];
    hvt_status s;
    bool good;

    wrong[0] = '\0';
    if (*net)
        good = refuse("the net is open already: close it first");
    else if (!f || !(f->text = strdup(options)))
        good = refuse("no memory for a net");
    else
        good = parse(f);
    opts->refused = refusal(good, said);
    s = hvt_net_open(name, opts, comm ? &c : NULL, &opened);
    if (s != HVT_OK) {
        free(f ? f->text : NULL);
        free(f);
        return s;
    }
    f->net = opened;
    *net = f;
    return HVT_OK;
}

hvt_status hvt_fortran_train(fortran_net *f, const CFI_cdesc_t *images, const CFI_cdesc_t *targets,
                             const int *epochs, double *ret_loss)
{
    hvt_net_data data = {0};
    char said[sizeof wrong];
    hvt_loss loss;
    hvt_status s;
    bool good;

    if (!is_open(f))
        return HVT_E_ARG;
    good = fits(f, images, &data) &&
           answers(f, "targets", targets, data.count,
                   !hvt_loss_has_targets(f->opts.loss.kind) ? hvt_net_describe(f->net).labels
                                                            : hvt_net_describe(f->net).outputs,
                   &data.target_type);
    data.targets = targets->base_addr;
    data.refused = refusal(good, said);
    s = hvt_net_train(f->net, &data, epochs ? *epochs : 1, &loss);
    if (s == HVT_OK && ret_loss)
        *ret_loss = loss.sum / (double)loss.count;
    return s;
}

hvt_status hvt_fortran_infer(fortran_net *f, const CFI_cdesc_t *images, const CFI_cdesc_t *outputs)
{
    hvt_net_data data = {0};
    hvt_dtype type;

    if (!is_open(f) || !fits(f, images, &data) ||
        !answers(f, "outputs", outputs, data.count, hvt_net_describe(f->net).outputs, &type))
        return HVT_E_ARG;
    return hvt_net_infer(f->net, &data, outputs->base_addr, type);
}

hvt_status hvt_fortran_file(fortran_net *f, const char *path, int write)
{
    if (!is_open(f))
        return HVT_E_ARG;
    return write ? hvt_net_save(f->net, path) : hvt_net_load(f->net, path);
}

hvt_status hvt_fortran_set_lr(fortran_net *f, double lr)
{
    return is_open(f) ? hvt_net_set_lr(f->net, lr) : HVT_E_ARG;
}

hvt_status hvt_fortran_hash(fortran_net *f, char *text)
{
    uint64_t hash;
    char digits[17];
    hvt_status s = is_open(f) ? hvt_model_hash(hvt_net_describe(f->net).model, &hash) : HVT_E_ARG;

    if (s == HVT_OK) {
        snprintf(digits, sizeof digits, "%016" PRIx64, hash);
        memcpy(text, digits, 16);
    }
    return s;
}

void hvt_fortran_close(fortran_net **f)
{
    if (!*f)
        return;
    hvt_net_close(&(*f)->net);
    free((*f)->text);
    free(*f);
    *f = NULL;
}

/* The error as a Fortran string, padded with blanks. */
void hvt_fortran_error(char *text, int length)
{
    const char *said = wrong[0] ? wrong : hvt_last_error();
    size_t n = strlen(said), room = (size_t)length;

    memset(text, ' ', room);
    memcpy(text, said, n < room ? n : room);
}
