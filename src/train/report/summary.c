/*
 * What a run reports before its first update: the log's `start` record, the table on stderr (model, memory,
 * data, exchange, ranks and their cores, options and their sources), and warnings about values that are
 * probably mistakes.
 */
#include "reporter.h"

#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The source of each option that does not have its default. */
static json_t *origins_record(const hvt_options *opts)
{
    static const char *const source[] = {NULL, "checkpoint", "config", "flag"};
    json_t *all = json_object();

    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (opts->from[i] != HVT_FROM_DEFAULT)
            json_object_set_new(all, hvt__option_flag(i).text + 2, json_string(source[opts->from[i]]));
    return all;
}

/* One entry per rank; empty on host devices. */
static json_t *gpus_record(const hvt_start *s)
{
    json_t *all = json_array();

    for (int r = 0; s->set->on_gpu && r < hvt_world_size(s->world); r++) {
        const hvt_device_info *g = &s->placement[r].gpu;

        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:I}", "host", hvt_world_host(s->world, r),
                                             "name", g->name, "uuid", g->uuid, "bus", g->bus, "total_bytes",
                                             (json_int_t)g->total_bytes));
    }
    return all;
}

/* The loss scale at the start; null: none. */
static json_t *scale_record(const hvt_start *s)
{
    return s->set->scaling.scale ? json_real(s->set->scaling.scale) : json_null();
}

/* The memory that this rank has planned, in bytes. */
static json_t *memory_record(const hvt_start *s)
{
    const hvt_memory *m = &s->memory;

    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "parameters", (json_int_t)m->parameters, "gradients",
                     (json_int_t)m->gradients, "optimizer", (json_int_t)s->optim_bytes, "activations",
                     (json_int_t)m->activations, "workspace", (json_int_t)m->workspace);
}

static hvt_status start_record(hvt_reporter *rep, const hvt_start *s)
{
    json_t *buckets = json_array();
    hvt_status begun = hvt__log_begin(rep->log, rep->path, *s->opts->resume);

    if (begun) {
        json_decref(buckets);
        return hvt__pass(begun, __FILE__, __LINE__, "hvt__log_begin");
    }
    for (int i = 0; i < s->buckets; i++)
        json_array_append_new(buckets, json_integer((json_int_t)s->bucket_bytes[i]));
    return hvt__report_put(
        rep,
        json_pack(
            "{s:s, s:I, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:i, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:o, "
            "s:s, s:s, s:s, s:s, s:I, s:i, s:o, s:s, s:I, s:I, s:I, s:o, s:I, s:o, s:s, s:o, s:o, s:o}",
            "record", "start", "resumed_steps", (json_int_t)s->done, "version", hvt_version(), "compiler",
            HVT_COMPILER, "ranks", hvt_world_size(s->world), "nodes", hvt_world_nodes(s->world), "shards",
            s->set->shards, "device", s->device, "isa", s->isa, "threads", s->threads, "comm", s->comm,
            "model", s->opts->model, "params", (json_int_t)s->params, "classes", s->classes, "batch",
            s->set->batch, "global_batch", (json_int_t)s->set->batch * s->set->shards, "steps_per_epoch",
            (json_int_t)s->steps_per_epoch, "buckets", buckets, "update", s->update, "overlap", s->overlap,
            "graph", s->graph, "wire", s->opts->compression, "exchange_bytes", (json_int_t)s->exchange_bytes,
            "seed", s->opts->seed, "lr", hvt__number(s->set->lr), "data", s->opts->data, "train_images",
            (json_int_t)(s->train ? s->train->count : 0), "test_images", (json_int_t)s->test->count,
            "planned_bytes", (json_int_t)s->bytes, "memory", memory_record(s), "device_bytes",
            (json_int_t)s->device_bytes, "gpus", gpus_record(s), "amp", hvt_dtype_name(s->set->amp),
            "loss_scale", scale_record(s), "options", hvt__options_json(s->opts, HVT_SCOPE_RANK),
            "options_from", origins_record(s->opts)));
}

/* An option's source as the table shows it: CHOSEN where the program replaced auto, none and the like by a
 * value of its own. */
enum { CHOSEN = HVT_FROM_FLAG + 1 };

static int source_of(const hvt_options *given, const hvt_options *opts, int option)
{
    char was[HVT_OPTION_VALUE], is[HVT_OPTION_VALUE];

    hvt__option_text(given, option, was);
    hvt__option_text(opts, option, is);
    return strcmp(was, is) ? CHOSEN : (int)given->from[option];
}

/* The options of one source as "name value", wrapped before column 100. */
static void print_options_from(const hvt_options *given, const hvt_options *opts, int from)
{
    char value[HVT_OPTION_VALUE];
    static const char *const source[] = {"defaults", "checkpoint", "config", "flags", "chosen"};
    int col = 0;

    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        hvt__flag flag = hvt__option_flag(i);
        int len;

        hvt__option_text(opts, i, value);
        if (source_of(given, opts, i) != from || !*value)
            continue;
        len = (int)(strlen(flag.text + 2) + strlen(value)) + 4;
        if (!col)
            col = fprintf(stderr, "  %-10s", source[from]);
        else
            fputc(',', stderr);
        if (col + len > 100)
            col = fprintf(stderr, "\n%12s", "") - 1;
        col += fprintf(stderr, " %s %s", flag.text + 2, value) + 1;
    }
    if (col)
        fputc('\n', stderr);
}

/* All options with the values that took effect, by source. */
static void print_options(const hvt_start *s)
{
    hvt_options opts = *s->opts;

    opts.shards = s->set->shards;
    opts.batch = s->set->batch;
    opts.threads = s->threads;
    opts.classes = s->classes;
    opts.size = s->test->height;
    opts.isa = s->isa;
    opts.comm = s->comm;
    opts.optimizer_state = s->update;
    opts.graph = s->graph;
    opts.overlap = s->overlap;

    for (int from = HVT_FROM_FLAG; from > HVT_FROM_DEFAULT; from--)
        print_options_from(s->opts, &opts, from);
    print_options_from(s->opts, &opts, CHOSEN);
    print_options_from(s->opts, &opts, HVT_FROM_DEFAULT);
}

/* --mean and --std are fractions of the brightest byte; larger numbers were probably meant for bytes. */
static void warn_of_units(const char *flag, const hvt_rgb *rgb)
{
    const float *v = rgb->v;
    float most = fmaxf(v[0], fmaxf(v[1], v[2])), least = fminf(v[0], fminf(v[1], v[2]));
    char was[80], meant[80];

    snprintf(was, sizeof was, v[0] == v[1] && v[0] == v[2] ? "%g" : "%g,%g,%g", (double)v[0], (double)v[1],
             (double)v[2]);
    snprintf(meant, sizeof meant, v[0] == v[1] && v[0] == v[2] ? "%.4g" : "%.4g,%.4g,%.4g",
             (double)v[0] / 255, (double)v[1] / 255, (double)v[2] / 255);
    if (most > 1 && most <= 255 && least >= 0)
        HVT_WARN("%s %s: expected units of 0..1 (x = (byte/255 - mean) / std); if these are units of 0..255, "
                 "%s %s is meant",
                 flag, was, flag, meant);
    else if (most > 1 || least < 0)
        HVT_WARN("%s %s: expected units of 0..1 (x = (byte/255 - mean) / std)", flag, was);
}

static void warn_of_numbers(const hvt_start *s)
{
    int size = hvt_world_size(s->world), local = s->set->local_shards;

    warn_of_units("--mean", &s->opts->mean);
    warn_of_units("--std", &s->opts->std);
    if (s->train && s->opts->momentum >= 1)
        HVT_WARN(
            "--momentum %g: expected less than 1: no gradient is ever forgotten, so the weights run away",
            s->opts->momentum);
    if (size > 1 && (local & (local - 1)))
        HVT_WARN("%d shards on each of %d ranks are no power of two: the results are not bit-identical "
                 "to those on another number of ranks",
                 local, size);
    if (s->train && s->steps < 100 && !s->opts->steps && !*s->opts->resume && s->opts->ask == HVT_ASK_TRAIN)
        HVT_WARN("only %lld updates in all: more --epochs or a smaller --batch train further",
                 (long long)s->steps);
    if (hvt__has_stem(s->opts->model) && !strcmp(s->opts->stem, "imagenet") && s->test->height < 64)
        HVT_INFO("note: --stem imagenet leaves little of %dx%d images; --stem cifar usually learns better",
                 s->test->height, s->test->width);
}

static bool lr_is_scaled(const hvt_start *s)
{
    return s->train && s->set->lr != s->opts->lr;
}

static void print_precision(hvt_reporter *rep, const hvt_start *s)
{
    const hvt_scaling *k = &s->set->scaling;
    char scale[100] = "no loss scaling";

    if (k->scale && k->interval)
        snprintf(scale, sizeof scale, "loss scale %g, doubled after %d updates, at least %g", k->scale,
                 k->interval, k->floor);
    else if (k->scale)
        snprintf(scale, sizeof scale, "loss scale %g", k->scale);
    hvt__report_print(rep, "  precision  %s activations, f32 parameters; %s", hvt_dtype_name(s->set->amp),
                      scale);
}

static void print_saving(hvt_reporter *rep, const hvt_options *o)
{
    if (!*o->save)
        hvt__report_print(rep, "  save       nothing: --save DIR keeps the weights");
    else if (o->from[HVT__AT_save] == HVT_FROM_DEFAULT)
        hvt__report_print(
            rep, "  save       %s, which the run continues (--save names another folder, or none)", o->save);
    else
        hvt__report_print(rep, "  save       %s", o->save);
}

static void print_start(hvt_reporter *rep, const hvt_start *s, const char *const *host)
{
    const hvt_dataset_info *test = s->test;
    size_t least = SIZE_MAX, most = 0;

    for (int i = 0; i < s->buckets; i++) {
        least = s->bucket_bytes[i] < least ? s->bucket_bytes[i] : least;
        most = s->bucket_bytes[i] > most ? s->bucket_bytes[i] : most;
    }
    hvt__report_print(rep, "hvtrain %s (%s)", hvt_version(), HVT_COMPILER);
    hvt__report_print(rep, "  model      %s, %d classes, %zu parameters", s->opts->model, s->classes,
                      s->params);
    hvt__report_print(
        rep,
        "  memory     of a rank, MiB: %.1f activations, %.1f parameters, %.1f gradients, %.1f optimizer, "
        "%.1f workspace",
        hvt__mib((double)s->memory.activations), hvt__mib((double)s->memory.parameters),
        hvt__mib((double)s->memory.gradients), hvt__mib((double)s->optim_bytes),
        hvt__mib((double)s->memory.workspace));
    if (s->train)
        hvt__report_print(rep, "  data       %s, %u training and %u test images of %dx%dx%d, %d classes",
                          s->opts->data, s->train->count, test->count, test->height, test->width,
                          test->channels, test->classes);
    else
        hvt__report_print(rep, "  data       %s, %u test images of %dx%dx%d, %d classes", s->opts->data,
                          test->count, test->height, test->width, test->channels, test->classes);
    if (s->train)
        hvt__report_print(
            rep, "  batch      %d images x %d shard%s = %lld per update; %u updates per epoch, %lld in all",
            s->set->batch, s->set->shards, s->set->shards > 1 ? "s" : "",
            (long long)s->set->batch * s->set->shards, s->steps_per_epoch, (long long)s->steps);
    if (s->train && s->opts->ask == HVT_ASK_TRAIN)
        print_saving(rep, s->opts);
    if (s->set->amp != HVT_F32)
        print_precision(rep, s);
    if (lr_is_scaled(s))
        hvt__report_print(rep, "  lr         %g = --lr %g x %d shards (--lr-scale linear)", s->set->lr,
                          s->opts->lr, s->set->shards);
    hvt__report_print(
        rep, "  exchange   %s, wire %s, %.2f MiB an update, %s update, %d bucket%s of %.2f to %.2f MiB",
        s->comm, s->opts->compression, hvt__mib((double)s->exchange_bytes), s->update, s->buckets,
        s->buckets > 1 ? "s" : "", hvt__mib((double)least), hvt__mib((double)most));
    if (s->train && hvt_world_size(s->world) > 1)
        hvt__report_print(rep, "  overlap    %s: %s", s->overlap, s->overlap_why);
    hvt__report_print(rep, "  device     %s (%s), %d rank%s on %d host%s", s->device, s->isa,
                      hvt_world_size(s->world), hvt_world_size(s->world) > 1 ? "s" : "",
                      hvt_world_nodes(s->world), hvt_world_nodes(s->world) > 1 ? "s" : "");
    hvt__report_ranks(rep, hvt_world_size(s->world), host, s->placement);
    print_options(s);
}

hvt_status hvt__report_start(hvt_reporter *rep, const hvt_start *s)
{
    if (!rep)
        return HVT_OK;
    int size = hvt_world_size(s->world);
    const char **host;
    char text[HVT_PLACEMENT_TEXT];

    if (rep->log)
        HVT_TRY(start_record(rep, s));
    host = malloc((size_t)size * sizeof *host);
    HVT_CHECK(host, E_MEM, "no memory for the names of %d hosts", size);
    for (int r = 0; r < size; r++)
        host[r] = hvt_world_host(s->world, r);
    if (!rep->quiet)
        print_start(rep, s, host);
    else if (lr_is_scaled(s)) /* even then: the rate is not the one that was given */
        fprintf(stderr, "hvtrain: lr %g = --lr %g x %d shards (--lr-scale linear)\n", s->set->lr, s->opts->lr,
                s->set->shards);
    if (s->set->on_gpu)
        hvt__gpu_warning(size, host, s->placement, text);
    else
        hvt__placement_warning(size, host, s->placement, text);
    free(host);
    if (*text)
        HVT_WARN("%s", text);
    warn_of_numbers(s);
    return HVT_OK;
}
