/*
 * What a run tells before its first update: the log's `start` record, the table on stderr (model, memory,
 * data, exchange, ranks and their cores, options and where they came from), and warnings of what is probably
 * not meant.
 */
#include "report.h"

#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *text_or_null(const char *text)
{
    json_t *value = json_string(text);

    return value ? value : json_null(); /* a path may hold what is no UTF-8 */
}

static json_t *options_record(const hvt_options *opts)
{
    static char text[HVT_OPTION_VALUE];
    json_t *all = json_object();

    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        hvt__option_text(opts, i, text);
        json_object_set_new(all, hvt__option_flag(i) + 2, text_or_null(text));
    }
    return all;
}

/* Where those came from that have not their default. */
static json_t *origins_record(const hvt_options *opts)
{
    static const char *const place[] = {NULL, "checkpoint", "config", "flag"};
    json_t *all = json_object();

    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (opts->from[i] != HVT_FROM_DEFAULT)
            json_object_set_new(all, hvt__option_flag(i) + 2, json_string(place[opts->from[i]]));
    return all;
}

/* One entry a rank; none on host devices. */
static json_t *gpus_record(const hvt_start *s)
{
    json_t *all = json_array();

    for (int r = 0; s->set->on_gpu && r < hvt_world_size(s->world); r++) {
        const hvt_device_info *g = &s->place[r].gpu;

        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:I}", "host", hvt_world_host(s->world, r),
                                             "name", g->name, "uuid", g->uuid, "bus", g->bus, "total_bytes",
                                             (json_int_t)g->total_bytes));
    }
    return all;
}

/* What it begins with; null: there is none. */
static json_t *scale_record(const hvt_start *s)
{
    return s->set->scaling.scale ? json_real(s->set->scaling.scale) : json_null();
}

/* What this rank plans to hold, in bytes: planned_bytes, and the optimizer's state. */
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
            "graph", s->graph, "wire", s->opts->wire, "exchange_bytes", (json_int_t)s->exchange_bytes, "seed",
            s->opts->seed, "lr", hvt__number(s->set->lr), "data", s->opts->data, "train_images",
            (json_int_t)(s->train ? s->train->count : 0), "test_images", (json_int_t)s->test->count,
            "planned_bytes", (json_int_t)s->bytes, "memory", memory_record(s), "device_bytes",
            (json_int_t)s->device_bytes, "gpus", gpus_record(s), "amp", hvt_dtype_name(s->set->amp),
            "loss_scale", scale_record(s), "options", options_record(s->opts), "options_from",
            origins_record(s->opts)));
}

/* Where an option's value comes from, for people: the program puts a value of its own in the place of what
 * was left open (auto, none, ...), whoever left it so. */
enum { CHOSEN = HVT_FROM_FLAG + 1 };

static int source_of(const hvt_options *given, const hvt_options *opts, int option)
{
    static char was[HVT_OPTION_VALUE], is[HVT_OPTION_VALUE];

    hvt__option_text(given, option, was);
    hvt__option_text(opts, option, is);
    return strcmp(was, is) ? CHOSEN : (int)given->from[option];
}

/* Those that came from one place, as "name value" broken before column 100. */
static void say_options_from(const hvt_options *given, const hvt_options *opts, int from)
{
    static char value[HVT_OPTION_VALUE];
    static const char *const place[] = {"defaults", "checkpoint", "config", "flags", "chosen"};
    int col = 0;

    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const char *flag = hvt__option_flag(i) + 2;
        int len;

        hvt__option_text(opts, i, value);
        if (source_of(given, opts, i) != from || !*value)
            continue;
        len = (int)(strlen(flag) + strlen(value)) + 4;
        if (!col)
            col = fprintf(stderr, "  %-10s", place[from]);
        else
            fputc(',', stderr);
        if (col + len > 100)
            col = fprintf(stderr, "\n%12s", "") - 1;
        col += fprintf(stderr, " %s %s", flag, value) + 1;
    }
    if (col)
        fputc('\n', stderr);
}

/* All values as they took effect: given (flags, config, checkpoint), chosen by the program, left as they
 * are by default. */
static void say_options(const hvt_start *s)
{
    hvt_options opts = *s->opts;

    opts.shards = s->set->shards;
    opts.batch = s->set->batch;
    opts.threads = s->threads;
    opts.classes = s->classes;
    opts.image_size = s->test->height;
    opts.isa = s->isa;
    opts.comm = s->comm;
    opts.update = s->update;
    opts.graph = s->graph;
    opts.overlap = s->overlap;
    opts.first_bucket = s->set->first_bucket;

    for (int from = HVT_FROM_FLAG; from > HVT_FROM_DEFAULT; from--)
        say_options_from(s->opts, &opts, from);
    say_options_from(s->opts, &opts, CHOSEN);
    say_options_from(s->opts, &opts, HVT_FROM_DEFAULT);
}

static int cpu_list(const hvt_cores *c, char *ret_text, size_t bytes)
{
    size_t n = 0;

    *ret_text = 0;
    for (int i = 0; i < c->ncpus && n < bytes;) { /* runs as first-last */
        int end = i;
        while (end + 1 < c->ncpus && c->cpus[end + 1] == c->cpus[end] + 1)
            end++;
        n += (size_t)snprintf(ret_text + n, bytes - n, end > i ? "%s%d-%d" : "%s%d", i ? "," : "", c->cpus[i],
                              c->cpus[end]);
        i = end + 1;
    }
    return c->ncpus;
}

/* The ranks of the host that rank `first` is on; false if one before it is on that host, too. */
static bool ranks_of_host(int ranks, const char *const *host, int first, int *ret_count, int *ret_last)
{
    int count = 0;

    for (int r = 0; r < ranks; r++)
        if (!strcmp(host[r], host[first])) {
            if (r < first)
                return false;
            count++;
            *ret_last = r;
        }
    *ret_count = count;
    return true;
}

/* Rank, host, cores: a line for each rank of a small job, for each host of a large one. */
static void say_ranks(hvt_reporter *rep, int ranks, const char *const *host, const hvt_place *place)
{
    enum { SMALL = 16 };

    for (int r = 0; r < ranks; r++) {
        const hvt_cores *c = &place[r].cores;
        char cpus[200], who[64];
        int count = 0, last = r;
        if (ranks <= SMALL) {
            if (*place[r].gpu.name)
                hvt__report_say(rep, "  rank %-5d %s: %s, %s, %s, %.1f GiB", r, host[r], place[r].gpu.name,
                                place[r].gpu.bus, place[r].gpu.uuid,
                                hvt__mib((double)place[r].gpu.total_bytes) / 1024);
            else if (cpu_list(c, cpus, sizeof cpus))
                hvt__report_say(rep, "  rank %-5d %s: %d thread%s on core%s %s", r, host[r], c->threads,
                                c->threads > 1 ? "s" : "", c->ncpus > 1 ? "s" : "", cpus);
            else
                hvt__report_say(rep, "  rank %-5d %s: %d thread%s, not pinned, %d processors allowed", r,
                                host[r], c->threads, c->threads > 1 ? "s" : "", c->mask);
            continue;
        }
        if (!ranks_of_host(ranks, host, r, &count, &last))
            continue;
        if (count == 1)
            snprintf(who, sizeof who, "rank %d", r);
        else if (count == last - r + 1)
            snprintf(who, sizeof who, "ranks %d-%d", r, last);
        else
            snprintf(who, sizeof who, "%d ranks from %d to %d", count, r, last);
        if (*place[r].gpu.name) {
            hvt__report_say(rep, "  %s on %s: %s%s", who, host[r], count > 1 ? "a GPU each, " : "",
                            place[r].gpu.name);
            continue;
        }
        hvt__report_say(rep, "  %s on %s: %d thread%s%s, %s", who, host[r], c->threads,
                        c->threads > 1 ? "s" : "", count > 1 ? " each" : "",
                        c->ncpus ? "pinned" : "not pinned");
    }
}

void hvt__place_warning(int ranks, const char *const *host, const hvt_place *place, char ret_text[HVT_PLACE])
{
    int others = 0;

    *ret_text = 0;
    for (int first = 0; first < ranks; first++) {
        int count = 0, last = first, masks = 0, threads = 0, allowed = place[first].allowed;
        bool crowded = place[first].cores.crowded;
        if (!ranks_of_host(ranks, host, first, &count, &last))
            continue;
        for (int r = first; r <= last; r++)
            if (!strcmp(host[r], host[first])) {
                masks += place[r].cores.mask;
                threads += place[r].cores.threads;
            }
        if (!crowded && 2 * masks >= allowed)
            continue;
        if (*ret_text)
            others++;
        else if (crowded)
            snprintf(ret_text, HVT_PLACE,
                     "%.255s: %d threads of %d rank%s share fewer processors; --threads or fewer ranks would "
                     "be faster",
                     host[first], threads, count, count > 1 ? "s" : "");
        else
            snprintf(ret_text, HVT_PLACE,
                     "%.255s: the launcher binds %d rank%s to %d of %d processors; mpirun --bind-to none or "
                     "--map-by slot:PE=%d lets them use the rest",
                     host[first], count, count > 1 ? "s" : "", masks, allowed, allowed / count);
    }
    if (others) {
        size_t used = strlen(ret_text);
        snprintf(ret_text + used, HVT_PLACE - used, " (and so on %d other host%s)", others,
                 others > 1 ? "s" : "");
    }
}

/* Of --mean and --std, which are parts of the brightest byte: numbers that were meant for bytes? */
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
        HVT_WARN("%d shards on each of %d ranks are no power of two: this run's bits are its own, "
                 "those of 1 rank differ in rounding",
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

static void say_precision(hvt_reporter *rep, const hvt_start *s)
{
    const hvt_scaling *k = &s->set->scaling;
    char scale[100] = "no loss scaling";

    if (k->scale && k->interval)
        snprintf(scale, sizeof scale, "loss scale %g, doubled after %d updates, at least %g", k->scale,
                 k->interval, k->floor);
    else if (k->scale)
        snprintf(scale, sizeof scale, "loss scale %g", k->scale);
    hvt__report_say(rep, "  precision  %s activations, f32 parameters; %s", hvt_dtype_name(s->set->amp),
                    scale);
}

static void say_saving(hvt_reporter *rep, const hvt_options *o)
{
    if (!*o->save)
        hvt__report_say(rep, "  save       nothing: --save DIR keeps the weights");
    else if (o->from[hvt__option_find("save")] == HVT_FROM_DEFAULT)
        hvt__report_say(rep, "  save       %s, where the run goes on (--save names another folder, or none)",
                        o->save);
    else
        hvt__report_say(rep, "  save       %s", o->save);
}

static void say_start(hvt_reporter *rep, const hvt_start *s, const char *const *host)
{
    const hvt_dataset_info *test = s->test;
    size_t least = SIZE_MAX, most = 0;

    for (int i = 0; i < s->buckets; i++) {
        least = s->bucket_bytes[i] < least ? s->bucket_bytes[i] : least;
        most = s->bucket_bytes[i] > most ? s->bucket_bytes[i] : most;
    }
    hvt__report_say(rep, "hvtrain %s (%s)", hvt_version(), HVT_COMPILER);
    hvt__report_say(rep, "  model      %s, %d classes, %zu parameters", s->opts->model, s->classes,
                    s->params);
    hvt__report_say(
        rep,
        "  memory     of a rank, MiB: %.1f activations, %.1f parameters, %.1f gradients, %.1f optimizer, "
        "%.1f workspace",
        hvt__mib((double)s->memory.activations), hvt__mib((double)s->memory.parameters),
        hvt__mib((double)s->memory.gradients), hvt__mib((double)s->optim_bytes),
        hvt__mib((double)s->memory.workspace));
    if (s->train)
        hvt__report_say(rep, "  data       %s, %u training and %u test images of %dx%dx%d, %d classes",
                        s->opts->data, s->train->count, test->count, test->height, test->width,
                        test->channels, test->classes);
    else
        hvt__report_say(rep, "  data       %s, %u test images of %dx%dx%d, %d classes", s->opts->data,
                        test->count, test->height, test->width, test->channels, test->classes);
    if (s->train)
        hvt__report_say(
            rep, "  batch      %d images x %d shard%s = %lld per update; %u updates per epoch, %lld in all",
            s->set->batch, s->set->shards, s->set->shards > 1 ? "s" : "",
            (long long)s->set->batch * s->set->shards, s->steps_per_epoch, (long long)s->steps);
    if (s->train && s->opts->ask == HVT_ASK_TRAIN)
        say_saving(rep, s->opts);
    if (s->set->amp != HVT_F32)
        say_precision(rep, s);
    if (lr_is_scaled(s))
        hvt__report_say(rep, "  lr         %g = --lr %g x %d shards (--lr-scale linear)", s->set->lr,
                        s->opts->lr, s->set->shards);
    hvt__report_say(
        rep, "  exchange   %s, wire %s, %.2f MiB an update, %s update, %d bucket%s of %.2f to %.2f MiB",
        s->comm, s->opts->wire, hvt__mib((double)s->exchange_bytes), s->update, s->buckets,
        s->buckets > 1 ? "s" : "", hvt__mib((double)least), hvt__mib((double)most));
    if (s->train && hvt_world_size(s->world) > 1)
        hvt__report_say(rep, "  overlap    %s: %s", s->overlap, s->overlap_why);
    hvt__report_say(rep, "  device     %s (%s), %d rank%s on %d host%s", s->device, s->isa,
                    hvt_world_size(s->world), hvt_world_size(s->world) > 1 ? "s" : "",
                    hvt_world_nodes(s->world), hvt_world_nodes(s->world) > 1 ? "s" : "");
    say_ranks(rep, hvt_world_size(s->world), host, s->place);
    say_options(s);
}

hvt_status hvt__report_start(hvt_reporter *rep, const hvt_start *s)
{
    if (!rep)
        return HVT_OK;
    int size = hvt_world_size(s->world);
    const char **host;
    char text[HVT_PLACE];

    if (rep->log)
        HVT_TRY(start_record(rep, s));
    host = malloc((size_t)size * sizeof *host);
    HVT_CHECK(host, E_MEM, "no memory for the names of %d hosts", size);
    for (int r = 0; r < size; r++)
        host[r] = hvt_world_host(s->world, r);
    if (!rep->quiet)
        say_start(rep, s, host);
    else if (lr_is_scaled(s)) /* a rate that is not the one given is never silent */
        fprintf(stderr, "hvtrain: lr %g = --lr %g x %d shards (--lr-scale linear)\n", s->set->lr, s->opts->lr,
                s->set->shards);
    if (s->set->on_gpu)
        hvt__gpu_warning(size, host, s->place, text);
    else
        hvt__place_warning(size, host, s->place, text);
    free(host);
    if (*text)
        HVT_WARN("%s", text);
    warn_of_numbers(s);
    return HVT_OK;
}
