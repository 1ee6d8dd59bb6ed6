/*
 * The report before a run's first update: the log's `start` record, the table on stderr, and warnings about
 * values that are probably mistakes. The table has at most TABLE_LINES lines: model, data, batch, device, and
 * the options that were given or chosen. --verbose adds memory, exchange, the cores of each rank and all
 * defaults.
 */
#include "run.h"
#include "base/line.h"
#include "base_impl.h"

#include "config.h"

#include <math.h>
#include <unistd.h>

extern char **environ; /* POSIX has no header for it */

/* The source of each option that does not have its default. */
static json_t *origins_record(const hvt_options *opts)
{
    static const char *const source[] = {NULL, "checkpoint", "recipe", "config", "flag"};
    json_t *all = json_object();

    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (opts->from[i] != HVT_FROM_DEFAULT)
            json_object_set_new(all, hvt__flag_of(&hvt__option_table[i]).text + 2,
                                json_string(source[opts->from[i]]));
    return all;
}

/* The host of each rank. */
static json_t *hosts_record(const run *t)
{
    json_t *all = json_array();

    for (int r = 0; r < t->size; r++)
        json_array_append_new(all, hvt__json_text(hvt_world_host(t->world, r)));
    return all;
}

/* One entry per rank; empty on host devices. */
static json_t *gpus_record(const run *t)
{
    json_t *all = json_array();

    for (int r = 0; t->set.on_gpu && r < t->size; r++) {
        const hvt_device_info *g = &t->placement[r].gpu;

        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s, s:I}", "host", hvt_world_host(t->world, r),
                                             "name", g->name, "uuid", g->uuid, "bus", g->bus, "total_bytes",
                                             (json_int_t)g->total_bytes));
    }
    return all;
}

/* The memory that this rank has planned, in bytes. */
static json_t *memory_record(const run *t)
{
    hvt_memory m = hvt_model_memory(t->model);

    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "parameters", (json_int_t)m.parameters, "gradients",
                     (json_int_t)m.gradients, "optimizer", (json_int_t)hvt_distopt_state_bytes(t->dist),
                     "activations", (json_int_t)m.activations, "workspace", (json_int_t)m.workspace);
}

static const char *update_name(const run *t)
{
    return hvt_distopt_update(t->dist) == HVT_UPDATE_SHARDED ? "sharded" : "replicated";
}

static hvt_status start_record(const run *t)
{
    const size_t *bytes;
    hvt_device_info device;
    const hvt_dataset_info *train = hvt_dataset_describe(t->train_set);
    json_t *buckets = json_array();

    for (int i = 0; i < hvt_distopt_buckets(t->dist, &bytes); i++)
        json_array_append_new(buckets, json_integer((json_int_t)bytes[i]));
    hvt_device_describe(t->dev, &device);
    return hvt__report_put(
        t->rep,
        json_pack(
            "{s:s, s:I, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:i, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:o, "
            "s:s, s:s, s:s, s:s, s:I, s:i, s:o, s:s, s:I, s:I, s:I, s:o, s:I, s:o, s:s, s:o, s:o, s:o, s:o, "
            "s:o}",
            "record", "start", "resumed_steps", (json_int_t)t->at.steps, "version", hvt_version(), "compiler",
            HVT_COMPILER, "ranks", t->size, "nodes", hvt_world_nodes(t->world), "shards", t->set.shards,
            "device", hvt_device_name(t->dev), "isa", hvt_device_isa(t->dev), "threads",
            hvt_device_threads(t->dev), "comm", hvt_comm_name(t->comm), "model", t->opts->model, "params",
            (json_int_t)hvt_model_parameters(t->model), "classes", hvt_model_classes(t->model), "batch",
            t->set.batch, "global_batch", (json_int_t)t->set.batch * t->set.shards, "steps_per_epoch",
            (json_int_t)t->steps_per_epoch, "buckets", buckets, "update", update_name(t), "overlap",
            t->overlap, "graph", t->record ? "on" : "off", "wire", t->opts->compression, "exchange_bytes",
            (json_int_t)hvt_distopt_bytes(t->dist), "seed", t->opts->seed, "lr", hvt__number(t->set.lr),
            "data", hvt_dataset_describe(t->test_set)->name, "train_images",
            (json_int_t)(train ? train->count : 0), "test_images",
            (json_int_t)hvt_dataset_describe(t->test_set)->count, "planned_bytes",
            (json_int_t)hvt_model_bytes(t->model), "memory", memory_record(t), "device_bytes",
            (json_int_t)device.bytes, "gpus", gpus_record(t), "amp", hvt_dtype_name(t->set.amp), "loss_scale",
            t->set.scaling.scale ? json_real(t->set.scaling.scale) : json_null(), "options",
            hvt__options_json(t->opts, HVT_SCOPE_RANK), "options_from", origins_record(t->opts), "hosts",
            hosts_record(t), "class_names", hvt__class_names(t)));
}

/* An option's source in the table: CHOSEN if the program replaced auto, none and the like by its own
 * value. */
enum { CHOSEN = HVT_FROM_FLAG + 1 };

/* The start table without --verbose. */
enum { TABLE_LINES = 12, GIVEN_LINES = 4 };

/* True if the short table has a separate line for this option, or this run does not use it. */
static bool is_shown_elsewhere(const run *t, int option)
{
    switch (option) {
    case HVT__AT_model:
    case HVT__AT_mean:
    case HVT__AT_std:
        return !hvt__reads_pictures(t->opts);
    case HVT__AT_lr:
        return !t->train_set;
    case HVT__AT_eps:
        return !t->set.optim.eps;
    case HVT__AT_classes:
    case HVT__AT_size:
    case HVT__AT_batch:
    case HVT__AT_shards:
    case HVT__AT_isa:
    case HVT__AT_threads:
    case HVT__AT_comm:
    case HVT__AT_optimizer_state:
        return true;
    case HVT__AT_overlap:
        return t->size == 1;
    case HVT__AT_graph:
        return !t->set.on_gpu;
    default:
        return false;
    }
}

/* " (for adamw)": why an option has this value in place of auto. "": no reason to show. */
static void reason_of(const run *t, int option, char ret_text[HVT_HINT])
{
    const hvt_options *o = t->opts;

    *ret_text = 0;
    if (option == HVT__AT_eps)
        snprintf(ret_text, HVT_HINT, " (for %s)", o->optimizer);
    else if (option == HVT__AT_lr)
        snprintf(ret_text, HVT_HINT,
                 *o->init                            ? " (a tenth of %s's, for --init)"
                 : hvt_pt2_describe(t->file).trained ? " (a tenth of %s's, for trained weights)"
                                                     : " (for %s)",
                 o->optimizer);
    else if (option == HVT__AT_model && hvt__reads_pictures(o))
        snprintf(ret_text, HVT_HINT, " (for pictures)");
    else if ((option == HVT__AT_mean || option == HVT__AT_std) && hvt__reads_pictures(o) && !o->grey)
        snprintf(ret_text, HVT_HINT, " (ImageNet's)");
}

/* Options of one source as "name value", wrapped before column 100. */
typedef struct block {
    hvt_reporter *rep;
    const char *head;
    char line[HVT_OPTION_VALUE + 200];
    size_t col;
    int lines;  /* lines left */
    int hidden; /* options without a line */
} block;

static void block_add(block *b, const char *name, const char *value)
{
    enum { COLUMNS = 100 };
    size_t more = strlen(name) + strlen(value) + 4;

    if (b->col && b->col + more > COLUMNS && b->lines > 0) {
        hvt__report_print(b->rep, "%s,", b->line);
        b->head = "";
        b->col = 0;
    }
    if (b->hidden || (b->lines <= 0 && b->col + more > COLUMNS - strlen(", 99 more: --verbose"))) {
        b->hidden++;
        return;
    }
    if (!b->col) {
        b->col = (size_t)snprintf(b->line, sizeof b->line, "  %-10s", b->head);
        b->lines--;
    } else {
        b->col += (size_t)snprintf(b->line + b->col, sizeof b->line - b->col, ",");
    }
    b->col += (size_t)snprintf(b->line + b->col, sizeof b->line - b->col, " %s %s", name, value);
}

static void block_end(const block *b)
{
    if (b->col && b->hidden)
        hvt__report_print(b->rep, "%s, %d more: --verbose", b->line, b->hidden);
    else if (b->col)
        hvt__report_print(b->rep, "%s", b->line);
}

/* Prints at most `lines` lines. opts: with the values that took effect. */
static void print_options_from(const run *t, const hvt_options *opts, int from, int lines)
{
    static const char *const source[] = {"defaults", "checkpoint", "recipe", "config", "flags", "chosen"};
    const hvt_options *given = t->given;
    char was[HVT_OPTION_VALUE], value[HVT_OPTION_VALUE + HVT_HINT];
    block b = {.rep = t->rep, .head = source[from], .lines = lines};

    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const hvt__option *o = &hvt__option_table[i];

        hvt__option_text(given, i, was);
        hvt__option_text(opts, i, value);
        if (!*value || from != (strcmp(was, value) ? CHOSEN : (int)given->from[i]))
            continue;
        if (!given->verbose && ((from == CHOSEN && is_shown_elsewhere(t, i)) ||
                                (from == HVT_FROM_CHECKPOINT && !strcmp(value, o->preset))))
            continue;
        if (from == CHOSEN)
            reason_of(t, i, value + strlen(value));
        block_add(&b, hvt__flag_of(o).text + 2, value);
    }
    block_end(&b);
}

/* Prints the options with the values that took effect, by source: all of them, or, in the remaining lines of
 * the table, those that were given or chosen. */
static void print_options(const run *t)
{
    const bool verbose = t->opts->verbose;
    hvt_options opts = *t->opts;
    hvt_loader_info loader;

    hvt_loader_describe(t->test_data, &loader);
    opts.shards = t->set.shards / (opts.evaluate ? 1 : opts.accumulate);
    if (!t->set.stages || !opts.batch) /* --split divides the given one into micro-batches */
        opts.batch = t->set.batch;
    opts.threads = hvt_device_threads(t->dev);
    opts.classes = hvt_model_classes(t->model);
    opts.size = t->loading.test.height;
    opts.eval_size = t->loading.test.resize;
    memcpy(opts.mean.v, t->loading.train.mean, sizeof opts.mean.v);
    memcpy(opts.std.v, t->loading.train.std, sizeof opts.std.v);
    opts.workers = loader.workers;
    opts.isa = hvt_device_isa(t->dev);
    opts.comm = hvt_comm_name(t->comm);
    opts.optimizer_state = update_name(t);
    opts.graph = t->record ? "on" : "off";
    opts.overlap = t->overlap;

    const int order[] = {HVT_FROM_FLAG,       HVT_FROM_CONFIG, HVT_FROM_RECIPE,
                         HVT_FROM_CHECKPOINT, CHOSEN,          HVT_FROM_DEFAULT};

    for (size_t i = 0; i < HVT_LEN(order) - !verbose; i++) {
        int left = TABLE_LINES - t->rep->lines;
        if (verbose || left > 0)
            print_options_from(t, &opts, order[i],
                               verbose              ? INT_MAX
                               : left < GIVEN_LINES ? left
                                                    : GIVEN_LINES);
    }
}

/* Warns of --mean or --std outside 0 to 1: they are fractions of the brightest byte, not bytes. */
static void warn_of_units(const char *flag, const hvt_rgb *rgb)
{
    const float *v = rgb->v;
    float most = fmaxf(v[0], fmaxf(v[1], v[2])), least = fminf(v[0], fminf(v[1], v[2]));
    char was[80], meant[80], hint[200] = "";

    snprintf(was, sizeof was, v[0] == v[1] && v[0] == v[2] ? "%g" : "%g,%g,%g", (double)v[0], (double)v[1],
             (double)v[2]);
    snprintf(meant, sizeof meant, v[0] == v[1] && v[0] == v[2] ? "%.4g" : "%.4g,%.4g,%.4g",
             (double)v[0] / 255, (double)v[1] / 255, (double)v[2] / 255);
    if (most <= 255 && least >= 0)
        snprintf(hint, sizeof hint, "; if these are units of 0..255, %s %s is meant", flag, meant);
    if (most > 1 || least < 0)
        HVT_WARN("%s %s: expected units of 0..1 (x = (byte/255 - mean) / std)%s", flag, was, hint);
}

/* Notes environment variables for other programs that were set on purpose. */
static void note_variables(const run *t)
{
    const char *threads = getenv("OMP_NUM_THREADS"), *here;
    char all[1000] = "", name[80];

    for (char **v = environ; *v; v++) {
        size_t used = strlen(all);
        if (strncmp(*v, "HOROVOD_", 8))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*v, "="), *v);
        here = hvt__foreign(HVT__VARIABLE, name);
        snprintf(all + used, sizeof all - used, "%s%s%s%s%s", used ? ", " : "", name, here ? " (" : "",
                 here ? here : "", here ? ")" : "");
    }
    if (*all)
        HVT_INFO("note: hvtrain does not read Horovod's variables: %s", all);
    if (threads && !t->opts->threads && !t->set.on_gpu && atoi(threads) > 0 &&
        atoi(threads) != hvt_device_threads(t->dev))
        HVT_INFO("note: hvtrain does not read OMP_NUM_THREADS=%s: this %s has %d threads; --threads N sets "
                 "their number",
                 threads, t->size > 1 ? "rank" : "process", hvt_device_threads(t->dev));
}

/* Warns of a schedule beyond the end of the run. --steps may end a run early on purpose. */
static void warn_of_schedule(const run *t)
{
    const hvt_options *o = t->opts;
    const uint32_t steps = t->steps_per_epoch;
    const int64_t last = t->end > 0 ? t->end - 1 : 0, whole = (int64_t)o->epochs * steps;
    const double rate = hvt_schedule_lr(t->schedule, (int)(last / steps), (uint32_t)(last % steps), steps);

    if (hvt__schedule_ends(t) && t->end > steps && t->end < whole && rate > t->set.lr / 2)
        HVT_WARN("--schedule %s: the run ends after %lld of the %lld updates of its %d epochs, at %.0f %% of "
                 "the peak rate; --epochs N sets its length",
                 o->schedule, (long long)t->end, (long long)whole, o->epochs, 100 * rate / t->set.lr);
    if (o->steps)
        return;
    if (o->warmup_epochs > o->epochs)
        HVT_WARN("--warmup-epochs %g: the rate is still rising when the run ends, after %d epoch%s",
                 o->warmup_epochs, o->epochs, o->epochs > 1 ? "s" : "");
    else if (strcmp(hvt__schedule_by_time(o), "constant") && t->set.lr > 0 && rate == t->set.lr)
        HVT_WARN("--schedule %s does not change the rate in a run of %d epoch%s", o->schedule, o->epochs,
                 o->epochs > 1 ? "s" : "");
}

static void warn_of_numbers(const run *t)
{
    const bool lars = t->set.optim.kind == HVT_OPTIM_LARS;

    if (hvt_dataset_describe(t->test_set)->type == HVT_U8) {
        warn_of_units("--mean", &t->opts->mean);
        warn_of_units("--std", &t->opts->std);
    }
    hvt__warn_of_range(t);
    if (t->train_set && t->set.optim.momentum >= 1)
        HVT_WARN("--momentum %g: expected less than 1, else old gradients never fade and the weights diverge",
                 t->opts->momentum);
    if (t->train_set && t->opts->weight_decay == 0 && (lars || t->set.optim.kind == HVT_OPTIM_LAMB))
        HVT_WARN(
            "--optimizer %s without --weight-decay is %s: only tensors with weight decay have a trust ratio; "
            "try --weight-decay %s",
            t->opts->optimizer, lars ? "sgd" : "adam", lars ? "1e-4" : "0.01");
    if (t->train_set && t->end < 100 && !t->opts->steps && !*t->opts->resume && t->opts->ask == HVT_ASK_TRAIN)
        HVT_WARN("only %lld updates in all: raise --epochs or lower --batch to train longer",
                 (long long)t->end);
    if (t->train_set && t->opts->ask == HVT_ASK_TRAIN)
        warn_of_schedule(t);
    if (hvt_zoo_takes(t->opts->model).imagenet_stem && !strcmp(t->opts->stem, "imagenet") &&
        t->loading.test.height < 64)
        HVT_INFO("note: --stem imagenet shrinks images of %dx%d too much; --stem cifar usually learns better",
                 t->loading.test.height, t->loading.test.width);
}

static bool lr_is_scaled(const run *t)
{
    return t->train_set && t->set.lr != t->opts->lr;
}

static void print_precision(const run *t)
{
    const hvt_scaling *k = &t->set.scaling;
    char scale[100] = "no loss scaling";

    if (k->scale && k->interval)
        snprintf(scale, sizeof scale, "loss scale %g, doubled after %d updates, at least %g", k->scale,
                 k->interval, k->floor);
    else if (k->scale)
        snprintf(scale, sizeof scale, "loss scale %g", k->scale);
    hvt__report_print(t->rep, "  precision  %s activations, f32 parameters; %s", hvt_dtype_name(t->set.amp),
                      scale);
}

static void print_average(const run *t)
{
    const hvt_ema *ema = &t->set.optim.ema;
    char every[40] = "each update";

    if (ema->equal) {
        hvt__report_print(t->rep,
                          "  average    of the weights after each epoch from %d on: this is evaluated%s",
                          t->opts->swa, t->train_set ? " and saved" : "");
        return;
    }
    if (ema->every > 1)
        snprintf(every, sizeof every, "every %d updates", ema->every);
    hvt__report_print(t->rep, "  average    of the weights, decay %.9g, %s: this is evaluated%s%s",
                      ema->decay, every, t->train_set ? " and saved" : "",
                      t->set.look_power < 0 ? "" : ", and training continues from it (Lookahead)");
}

static void print_saving(const run *t)
{
    const hvt_options *o = t->opts;

    if (!*o->save)
        hvt__report_print(t->rep, "  save       nothing: --save DIR keeps the weights");
    else if (o->from[HVT__AT_save] == HVT_FROM_DEFAULT)
        hvt__report_print(t->rep,
                          "  save       %s, which the run continues (--save names another folder, or none)",
                          o->save);
    else
        hvt__report_print(t->rep, "  save       %s, every %s", o->save, o->save_every);
}

void hvt__report_limit(const run *t, bool ends)
{
    const double left = t->preempt.deadline - hvt__now(), reserve = hvt__preempt_margin(t);
    const char *limit = t->set.max_seconds > 0 ? "--max-time" : "SLURM's limit", *name = NULL;
    char in[32], before[32];

    if (left == INFINITY || (ends && (!hvt__signals_requested(&name) || name)))
        return;
    hvt__duration(left > 0 ? left : 0, in);
    hvt__duration(reserve, before);
    if (ends)
        hvt__report_print(
            t->rep,
            "%s is in %s: the run ends in time to save (it reserves twice a checkpoint, twice an "
            "update and 5s)",
            limit, in);
    else
        hvt__report_print(
            t->rep,
            "  limit      %s is in %s, less a reserve of %s to save and end (twice a checkpoint, "
            "twice an update and 5s)",
            limit, in, before);
    if (!ends && left <= reserve)
        HVT_WARN("%s is in %s, but saving and ending needs a reserve of %s: the run ends after one update",
                 limit, in, before);
}

static void print_memory(const run *t)
{
    const hvt_memory m = hvt_model_memory(t->model);

    hvt__report_print(
        t->rep,
        "  memory     %sMiB: %.1f activations, %.1f parameters, %.1f gradients, %.1f optimizer, "
        "%.1f workspace",
        t->size > 1 ? "of a rank, " : "", hvt__mib((double)m.activations), hvt__mib((double)m.parameters),
        hvt__mib((double)m.gradients), hvt__mib((double)hvt_distopt_state_bytes(t->dist)),
        hvt__mib((double)m.workspace));
}

/* Prints the workers that fetch images ahead, and their memory. */
static void print_workers(const run *t)
{
    hvt_loader_info train, test;

    hvt_loader_describe(t->train_data, &train);
    hvt_loader_describe(t->test_data, &test);
    if (test.workers)
        hvt__report_print(t->rep, "  workers    %d%s fetch images ahead, into %.1f MiB for %d batches%s",
                          test.workers, t->size > 1 ? " of a rank" : "",
                          hvt__mib((double)(train.bytes + test.bytes)), train.slots + test.slots,
                          t->train_set ? ", those of the evaluation among them" : "");
}

/* The weights' name for a class that the test images do not have. NULL: none. */
static const char *class_name(const run *t, int i)
{
    const char *name = hvt_dataset_class_name(t->test_set, i);

    return name ? name : json_string_value(json_array_get(t->class_names, (size_t)i));
}

/* "3 classes: ant, bee, cat", or the first ones of more. */
static void describe_classes(const run *t, char *ret_text, size_t room)
{
    enum { SHOWN = 4, LETTERS = 20 };
    int n = hvt_dataset_describe(t->test_set)->classes;
    size_t used = (size_t)snprintf(ret_text, room, "%d classes", n);

    for (int i = 0; i < n && i < SHOWN && class_name(t, i) && used < room; i++)
        used += (size_t)snprintf(ret_text + used, room - used, "%s %.*s", i ? "," : ":", LETTERS,
                                 class_name(t, i));
    if (n > SHOWN && class_name(t, 0) && used < room)
        snprintf(ret_text + used, room - used, ", ...");
}

static void print_model_and_data(const run *t)
{
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set);
    char training[40] = "", classes[160] = "no labels", frozen[40] = "";

    if (test->masks && test->classes)
        snprintf(classes, sizeof classes, "masks of %d classes", test->classes);
    else if (test->masks)
        snprintf(classes, sizeof classes, "masks");
    else if (t->loading.test.reconstruct)
        snprintf(classes, sizeof classes, "which are the targets");
    else if (test->targets)
        snprintf(classes, sizeof classes, "%d target%s each", test->targets, test->targets > 1 ? "s" : "");
    else if (!test->unlabelled)
        describe_classes(t, classes, sizeof classes);
    if (t->train_set && hvt_model_frozen(t->model))
        snprintf(frozen, sizeof frozen, ", %zu of them frozen", hvt_model_frozen(t->model));
    hvt__report_print(t->rep, "  model      %s, %d %s, %zu parameters%s", t->opts->model,
                      hvt_model_classes(t->model),
                      hvt_loss_has_targets(t->set.loss.kind) ? "outputs" : "classes",
                      hvt_model_parameters(t->model), frozen);
    if (t->opts->verbose)
        print_memory(t);
    if (t->train_set)
        snprintf(training, sizeof training, "%u training and ", hvt_dataset_describe(t->train_set)->count);
    hvt__report_print(t->rep, "  data       %s, %s%u test images of %dx%dx%d, %s", test->name, training,
                      test->count, t->loading.test.height, t->loading.test.width,
                      hvt_loader_channels(test, &t->loading.test), classes);
}

static void print_batch(const run *t)
{
    char shards[60] = "";

    if (t->set.shards > 1)
        snprintf(shards, sizeof shards, " x %d shards = %lld", t->set.shards,
                 (long long)t->set.batch * t->set.shards);
    hvt__report_print(t->rep, "  batch      %d images%s per update; %u updates per epoch, %lld in all",
                      t->set.batch, shards, t->steps_per_epoch, (long long)t->end);
}

static void print_exchange(const run *t)
{
    const size_t *bytes;
    size_t least = SIZE_MAX, most = 0;
    int buckets = hvt_distopt_buckets(t->dist, &bytes);

    for (int i = 0; i < buckets; i++) {
        least = bytes[i] < least ? bytes[i] : least;
        most = bytes[i] > most ? bytes[i] : most;
    }
    hvt__report_print(
        t->rep, "  exchange   %s, wire %s, %.2f MiB an update, %s update, %d bucket%s of %.2f to %.2f MiB",
        hvt_comm_name(t->comm), t->opts->compression, hvt__mib((double)hvt_distopt_bytes(t->dist)),
        update_name(t), buckets, buckets > 1 ? "s" : "", hvt__mib((double)least), hvt__mib((double)most));
}

/* Prints the device. --verbose adds a line for each rank. */
static void print_device(const run *t)
{
    int least = INT_MAX, most = 0;
    char ranks[80] = "", each[80] = "";

    for (int r = 0; r < t->size; r++) {
        least = t->placement[r].cores.threads < least ? t->placement[r].cores.threads : least;
        most = t->placement[r].cores.threads > most ? t->placement[r].cores.threads : most;
    }
    if (t->size > 1)
        snprintf(ranks, sizeof ranks, ", %d ranks on %d host%s", t->size, hvt_world_nodes(t->world),
                 hvt_world_nodes(t->world) > 1 ? "s" : "");
    if (!t->opts->verbose && *t->placement->gpu.name)
        snprintf(each, sizeof each, ", %.70s", t->placement->gpu.name);
    else if (!t->opts->verbose && least < most)
        snprintf(each, sizeof each, ", %d to %d threads each", least, most);
    else if (!t->opts->verbose)
        snprintf(each, sizeof each, ", %d thread%s%s", most, most > 1 ? "s" : "", t->size > 1 ? " each" : "");
    hvt__report_print(t->rep, "  device     %s (%s)%s%s", hvt_device_name(t->dev), hvt_device_isa(t->dev),
                      ranks, each);
}

/* Prints the devices of --split, each with its first layer, as --split-at names it, and its activations. */
static void print_split(const run *t)
{
    const bool named = strcmp(t->opts->split_at, "auto") != 0;
    const char *at = t->opts->split_at;
    char text[400] = "";
    size_t n = 0, bytes, len = 0;

    for (int k = 0; k < t->set.stages && n < sizeof text; k++) {
        const char *layer = hvt_model_stage(t->model, k, &bytes);
        const char *name = k && named ? hvt__next_item(&at, &len) : layer;

        n += (size_t)snprintf(text + n, sizeof text - n, "%s:%d from %.*s (%.1f MiB), ", t->set.device,
                              t->set.place[k], (int)(name == layer ? strlen(layer) : len), name,
                              hvt__mib((double)bytes));
    }
    if (t->set.stages)
        hvt__report_print(t->rep, "  split      %s%d micro-batch%s%s", text,
                          t->first_of[t->rank + 1] - t->first_of[t->rank],
                          t->first_of[t->rank + 1] - t->first_of[t->rank] > 1 ? "es" : "",
                          t->opts->evaluate                     ? ""
                          : !strcmp(t->opts->pipeline, "gpipe") ? ", gpipe"
                                                                : ", 1f1b");
}

static void print_start(const run *t, const char *const *host)
{
    const bool verbose = t->opts->verbose;

    t->rep->lines = 0;
    hvt__report_print(t->rep, "hvtrain %s (%s)", hvt_version(), HVT_COMPILER);
    print_model_and_data(t);
    if (verbose)
        print_workers(t);
    if (t->train_set)
        print_batch(t);
    if (verbose && t->set.averages && (t->train_set || t->averages))
        print_average(t);
    if (t->train_set && t->opts->ask == HVT_ASK_TRAIN)
        print_saving(t);
    hvt__report_limit(t, false);
    if (verbose && t->set.amp != HVT_F32)
        print_precision(t);
    if (lr_is_scaled(t))
        hvt__report_print(t->rep, "  lr         %g = --lr %g x %d shards (--lr-scale linear)", t->set.lr,
                          t->opts->lr, t->set.shards);
    if (t->train_set && (verbose || t->size > 1))
        print_exchange(t);
    if (t->train_set && verbose && t->size > 1)
        hvt__report_print(t->rep, "  overlap    %s: %s", t->overlap, t->overlap_why);
    print_device(t);
    print_split(t);
    if (verbose)
        hvt__report_ranks(t->rep, t->size, host, t->placement);
    print_options(t);
}

hvt_status hvt__report_start(const run *t)
{
    const char **host;
    char text[HVT_PLACEMENT_TEXT];

    if (!t->rep)
        return HVT_OK;
    HVT_TRY(start_record(t));
    host = malloc((size_t)t->size * sizeof *host);
    HVT_CHECK(host, E_MEM, "no memory for the names of %d hosts", t->size);
    for (int r = 0; r < t->size; r++)
        host[r] = hvt_world_host(t->world, r);
    if (!t->opts->quiet)
        print_start(t, host);
    else if (lr_is_scaled(t)) /* even with --quiet: the rate is not the given one */
        hvt__print_line(STDERR_FILENO, "hvtrain: lr %g = --lr %g x %d shards (--lr-scale linear)", t->set.lr,
                        t->opts->lr, t->set.shards);
    if (t->set.on_gpu)
        hvt__gpu_warning(t->size, host, t->placement, text);
    else
        hvt__placement_warning(t->size, host, t->placement, text);
    if (*text)
        HVT_WARN("%s", text);
    hvt__domains_advice(t->size, host, t->placement, text);
    if (*text && !t->set.on_gpu)
        HVT_INFO("note: %s", text);
    free(host);
    hvt__sums_warning(hvt_comm_name(t->comm), t->set.wire, t->size, text);
    if (*text)
        HVT_WARN("%s", text);
    warn_of_numbers(t);
    note_variables(t);
    return HVT_OK;
}
