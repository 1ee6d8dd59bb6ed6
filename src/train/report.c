/*
 * What a run tells: JSON lines in the log, and on stderr the table at start, progress and results. Only rank
 * 0 has a reporter; on the others it is NULL and every call does nothing.
 *
 * A *record* is one line of the log, flushed at once; a number that is not finite is null there. The *bar* is
 * one line redrawn in place where stderr is a terminal; anything else that is printed first clears it.
 */
#include "train_impl.h"
#include "base_impl.h"

#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct hvt_reporter {
    FILE *log; /* NULL: none */
    const char *path;
    bool quiet, bar;  /* bar: stderr is a terminal */
    double bar_drawn; /* when */
};

/* ---- this process ---- */

double hvt__process_seconds(void)
{
    static double began; /* seconds after boot */
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    if (!began) {
        FILE *f = fopen("/proc/self/stat", "r");
        char text[1024], *p;
        unsigned long long ticks = 0;
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        p = strrchr(text, ')'); /* the program's name may hold anything; field 22 is 20 after it */
        for (int i = 0; p && i < 20; i++)
            p = strchr(p + 1, ' ');
        if (p)
            ticks = strtoull(p, NULL, 10);
        if (f)
            fclose(f);
        began = ticks ? (double)ticks / (double)sysconf(_SC_CLK_TCK)
                      : (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - began;
}

int64_t hvt__process_peak_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* ---- the log ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *text_or_null(const char *text)
{
    json_t *value = json_string(text);

    return value ? value : json_null(); /* a path may hold what is no UTF-8 */
}

static double percent(int64_t part, int64_t of)
{
    return of ? 100.0 * (double)part / (double)of : 0;
}

static double mean_loss(const hvt_loss *loss)
{
    return loss->count ? loss->sum / (double)loss->count : NAN;
}

/* Write one record and give up `record`. */
static hvt_status put(hvt_reporter *rep, json_t *record)
{
    char *line = record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    bool wrote;

    json_decref(record);
    HVT_CHECK(line, E_MEM, "--log %s: no memory for a record", rep->path);
    errno = 0;
    wrote = fprintf(rep->log, "%s\n", line) > 0 && fflush(rep->log) == 0;
    free(line);
    HVT_CHECK(wrote, E_IO, "--log %s: cannot write: %s", rep->path, strerror(errno));
    return HVT_OK;
}

/* Is it one that this run reads: --init's, --resume's or the `last` of that folder? Or another that it
 * writes? */
hvt_status hvt__report_spares(const hvt_options *opts, const char *flag, const char *path,
                              const struct stat *file)
{
    char last[HVT_OPTION_VALUE];
    const char *const name[] = {opts->init, opts->resume, last, strcmp(flag, "--log") ? opts->log : ""};
    struct stat other;

    snprintf(last, sizeof last, "%.4000s/last.safetensors", opts->resume);
    for (size_t i = 0; i < HVT_LEN(name); i++)
        HVT_CHECK(!*name[i] || stat(name[i], &other) || file->st_dev != other.st_dev ||
                      file->st_ino != other.st_ino,
                  E_ARG, "%s %s: is the same file as %s, which this run %s", flag, path, name[i],
                  name[i] == opts->log ? "writes" : "reads");
    return HVT_OK;
}

/* Without emptying it: until the run begins it holds the records of an earlier one. */
static hvt_status open_log(const hvt_options *opts, FILE **ret_log)
{
    int fd = open(opts->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    struct stat info;
    hvt_status s;

    HVT_CHECK(fd >= 0, E_IO, "--log %s: cannot write: %s", opts->log, strerror(errno));
    s = fstat(fd, &info) ? HVT_FAIL(E_IO, "--log %s: %s", opts->log, strerror(errno))
                         : hvt__report_spares(opts, "--log", opts->log, &info);
    if (s == HVT_OK) {
        *ret_log = fdopen(fd, "w");
        if (*ret_log)
            return HVT_OK;
        s = HVT_FAIL(E_MEM, "--log %s: no memory to open it", opts->log);
    }
    close(fd);
    return s;
}

hvt_status hvt__report_open(const hvt_options *opts, hvt_reporter **ret_rep)
{
    hvt_reporter *rep = calloc(1, sizeof *rep);
    const char *term = getenv("TERM");

    HVT_CHECK(rep, E_MEM, "no memory for reports");
    rep->quiet = opts->quiet;
    rep->bar = !opts->quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb");
    rep->path = opts->log;
    if (*opts->log) {
        hvt_status s = open_log(opts, &rep->log);
        if (s) {
            free(rep);
            return s;
        }
    }
    *ret_rep = rep;
    return HVT_OK;
}

void hvt__report_close(hvt_reporter **rep)
{
    if (!*rep)
        return;
    hvt__interrupt_bar(false);
    if ((*rep)->log)
        fclose((*rep)->log);
    free(*rep);
    *rep = NULL;
}

/* ---- stderr ---- */

static void clear_bar(hvt_reporter *rep)
{
    if (rep->bar && rep->bar_drawn != 0)
        fputs("\r\033[K", stderr);
    rep->bar_drawn = 0;
    hvt__interrupt_bar(false);
}

static void say(hvt_reporter *rep, const char *fmt, ...) HVT_PRINTF(2, 3);
static void say(hvt_reporter *rep, const char *fmt, ...)
{
    va_list ap;

    if (rep->quiet)
        return;
    clear_bar(rep);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static void duration(double seconds, char ret_text[32])
{
    long s = (long)(seconds + 0.5);

    if (!(seconds >= 0 && seconds < 1e8))
        snprintf(ret_text, 32, "?");
    else if (s < 60)
        snprintf(ret_text, 32, "%lds", s);
    else if (s < 3600)
        snprintf(ret_text, 32, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(ret_text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
}

static double mib(double bytes)
{
    return bytes / (1 << 20);
}

/* ---- the start ---- */

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
    struct stat info;

    if (fstat(fileno(rep->log), &info) == 0 && S_ISREG(info.st_mode) && ftruncate(fileno(rep->log), 0)) {
        json_decref(buckets);
        return HVT_FAIL(E_IO, "--log %s: cannot empty it: %s", rep->path, strerror(errno));
    }
    for (int i = 0; i < s->buckets; i++)
        json_array_append_new(buckets, json_integer((json_int_t)s->bucket_bytes[i]));
    return put(
        rep,
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:i, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:o, "
                  "s:s, s:s, s:s, s:s, s:I, s:i, s:o, s:s, s:I, s:I, s:I, s:o, s:I, s:o, s:s, s:o, s:o, s:o}",
                  "record", "start", "version", hvt_version(), "compiler", HVT_COMPILER, "ranks",
                  hvt_world_size(s->world), "nodes", hvt_world_nodes(s->world), "shards", s->set->shards,
                  "device", s->device, "isa", s->isa, "threads", s->threads, "comm", s->comm, "model",
                  s->opts->model, "params", (json_int_t)s->params, "classes", s->classes, "batch",
                  s->set->batch, "global_batch", (json_int_t)s->set->batch * s->set->shards,
                  "steps_per_epoch", (json_int_t)s->steps_per_epoch, "buckets", buckets, "update", s->update,
                  "overlap", s->overlap, "graph", s->graph, "wire", s->opts->wire, "exchange_bytes",
                  (json_int_t)s->exchange_bytes, "seed", s->opts->seed, "lr", number(s->set->lr), "data",
                  s->opts->data, "train_images", (json_int_t)(s->train ? s->train->count : 0), "test_images",
                  (json_int_t)s->test->count, "planned_bytes", (json_int_t)s->bytes, "memory",
                  memory_record(s), "device_bytes", (json_int_t)s->device_bytes, "gpus", gpus_record(s),
                  "amp", hvt_dtype_name(s->set->amp), "loss_scale", scale_record(s), "options",
                  options_record(s->opts), "options_from", origins_record(s->opts)));
}

/* Those that came from one place, as "name value" broken before column 100. */
static void say_options_from(hvt_reporter *rep, const hvt_options *opts, hvt_from from)
{
    static char value[HVT_OPTION_VALUE];
    static const char *const place[] = {"defaults", "checkpoint", "config", "flags"};
    int col = 0;

    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const char *flag = hvt__option_flag(i) + 2;
        int len;

        hvt__option_text(opts, i, value);
        if (opts->from[i] != from || !*value)
            continue;
        len = (int)(strlen(flag) + strlen(value)) + 4;
        if (!col) {
            clear_bar(rep);
            col = fprintf(stderr, "  %-10s", place[from]);
        } else {
            fputc(',', stderr);
        }
        if (col + len > 100)
            col = fprintf(stderr, "\n%12s", "") - 1;
        col += fprintf(stderr, " %s %s", flag, value) + 1;
    }
    if (col)
        fputc('\n', stderr);
}

/* All values as they took effect. */
static void say_options(hvt_reporter *rep, const hvt_start *s)
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

    for (int from = HVT_FROM_FLAG; from >= HVT_FROM_DEFAULT; from--)
        say_options_from(rep, &opts, (hvt_from)from);
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
                say(rep, "  rank %-5d %s: %s, %s, %s, %.1f GiB", r, host[r], place[r].gpu.name,
                    place[r].gpu.bus, place[r].gpu.uuid, mib((double)place[r].gpu.total_bytes) / 1024);
            else if (cpu_list(c, cpus, sizeof cpus))
                say(rep, "  rank %-5d %s: %d thread%s on core%s %s", r, host[r], c->threads,
                    c->threads > 1 ? "s" : "", c->ncpus > 1 ? "s" : "", cpus);
            else
                say(rep, "  rank %-5d %s: %d thread%s, not pinned, %d processors allowed", r, host[r],
                    c->threads, c->threads > 1 ? "s" : "", c->mask);
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
            say(rep, "  %s on %s: %s%s", who, host[r], count > 1 ? "a GPU each, " : "", place[r].gpu.name);
            continue;
        }
        say(rep, "  %s on %s: %d thread%s%s, %s", who, host[r], c->threads, c->threads > 1 ? "s" : "",
            count > 1 ? " each" : "", c->ncpus ? "pinned" : "not pinned");
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

static void warn_of_numbers(const hvt_start *s)
{
    int size = hvt_world_size(s->world), local = s->set->local_shards;

    if (size > 1 && (local & (local - 1)))
        HVT_WARN("%d shards on each of %d ranks are no power of two: this run's bits are its own, "
                 "those of 1 rank differ in rounding",
                 local, size);
    if (s->train && s->steps < 100 && !s->opts->steps && s->opts->ask == HVT_ASK_TRAIN)
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
    say(rep, "  precision  %s activations, f32 parameters; %s", hvt_dtype_name(s->set->amp), scale);
}

static void say_start(hvt_reporter *rep, const hvt_start *s, const char *const *host)
{
    const hvt_dataset_info *test = s->test;
    size_t least = SIZE_MAX, most = 0;

    for (int i = 0; i < s->buckets; i++) {
        least = s->bucket_bytes[i] < least ? s->bucket_bytes[i] : least;
        most = s->bucket_bytes[i] > most ? s->bucket_bytes[i] : most;
    }
    say(rep, "hvtrain %s (%s)", hvt_version(), HVT_COMPILER);
    say(rep, "  model      %s, %d classes, %zu parameters", s->opts->model, s->classes, s->params);
    say(rep,
        "  memory     of a rank, MiB: %.1f activations, %.1f parameters, %.1f gradients, %.1f optimizer, "
        "%.1f workspace",
        mib((double)s->memory.activations), mib((double)s->memory.parameters),
        mib((double)s->memory.gradients), mib((double)s->optim_bytes), mib((double)s->memory.workspace));
    if (s->train)
        say(rep, "  data       %s, %u training and %u test images of %dx%dx%d, %d classes", s->opts->data,
            s->train->count, test->count, test->height, test->width, test->channels, test->classes);
    else
        say(rep, "  data       %s, %u test images of %dx%dx%d, %d classes", s->opts->data, test->count,
            test->height, test->width, test->channels, test->classes);
    if (s->train)
        say(rep, "  batch      %d images x %d shard%s = %lld per update; %u updates per epoch, %lld in all",
            s->set->batch, s->set->shards, s->set->shards > 1 ? "s" : "",
            (long long)s->set->batch * s->set->shards, s->steps_per_epoch, (long long)s->steps);
    if (s->set->amp != HVT_F32)
        say_precision(rep, s);
    if (lr_is_scaled(s))
        say(rep, "  lr         %g = --lr %g x %d shards (--lr-scale linear)", s->set->lr, s->opts->lr,
            s->set->shards);
    say(rep, "  exchange   %s, wire %s, %.2f MiB an update, %s update, %d bucket%s of %.2f to %.2f MiB",
        s->comm, s->opts->wire, mib((double)s->exchange_bytes), s->update, s->buckets,
        s->buckets > 1 ? "s" : "", mib((double)least), mib((double)most));
    if (s->train && hvt_world_size(s->world) > 1)
        say(rep, "  overlap    %s: %s", s->overlap, s->overlap_why);
    say(rep, "  device     %s (%s), %d rank%s on %d host%s", s->device, s->isa, hvt_world_size(s->world),
        hvt_world_size(s->world) > 1 ? "s" : "", hvt_world_nodes(s->world),
        hvt_world_nodes(s->world) > 1 ? "s" : "");
    say_ranks(rep, hvt_world_size(s->world), host, s->place);
    say_options(rep, s);
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

/* ---- progress ---- */

bool hvt__report_bar_due(const hvt_reporter *rep)
{
    return rep && rep->bar && hvt__now() - rep->bar_drawn >= 0.1;
}

static int terminal_width(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

void hvt__report_bar(hvt_reporter *rep, const hvt_step_report *r)
{
    enum { MOST = 24, LEAST = 4 };
    char bar[MOST + 1], rest[200], head[40], left[32];
    int room, full, columns = terminal_width() - 1;

    duration((double)(r->steps - r->step) * r->step_seconds, left);
    snprintf(head, sizeof head, "epoch %d/%d", r->epoch, r->epochs);
    snprintf(rest, sizeof rest, "%u/%u  loss %.4f  top-1 %.2f %%  %.0f img/s  eta %s", r->in_epoch, r->of,
             mean_loss(&r->loss), percent(r->loss.top1, r->loss.count), r->img_s, left);
    room = columns - (int)(strlen(head) + strlen(rest)) - 4; /* the bar shrinks before the numbers are cut */
    room = room > MOST ? MOST : room < LEAST ? LEAST : room;
    full = r->of ? (int)((uint64_t)r->in_epoch * (unsigned)room / r->of) : 0;
    memset(bar, ' ', (size_t)room);
    memset(bar, '=', (size_t)full);
    if (full < room)
        bar[full] = '>';
    bar[room] = 0;
    hvt__interrupt_bar(true);
    fprintf(stderr, "\r\033[K%s [%s] %.*s", head, bar, columns - (int)strlen(head) - room - 4, rest);
    rep->bar_drawn = hvt__now();
}

hvt_status hvt__report_step(hvt_reporter *rep, const hvt_step_report *r)
{
    char left[32];

    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(put(rep, json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "record", "step", "epoch",
                                   r->epoch, "step", (json_int_t)r->step, "loss", number(mean_loss(&r->loss)),
                                   "top1", number(percent(r->loss.top1, r->loss.count)), "lr", number(r->lr),
                                   "img_s", number(r->img_s), "loss_scale", number(r->loss_scale), "skipped",
                                   (json_int_t)r->skipped)));
    duration((double)(r->steps - r->step) * r->step_seconds, left);
    if (!rep->bar)
        say(rep, "epoch %d/%d  step %u/%u  loss %.4f  top-1 %.2f %%  lr %g  %.0f img/s  eta %s", r->epoch,
            r->epochs, r->in_epoch, r->of, mean_loss(&r->loss), percent(r->loss.top1, r->loss.count), r->lr,
            r->img_s, left);
    return HVT_OK;
}

#define WORTH_SAYING 0.01 /* of the time */

hvt_status hvt__report_epoch(hvt_reporter *rep, const hvt_epoch_report *r)
{
    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(put(
            rep, json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}",
                           "record", "epoch", "epoch", r->epoch, "steps", (json_int_t)r->steps, "train_loss",
                           number(mean_loss(&r->loss)), "top1", number(percent(r->loss.top1, r->loss.count)),
                           "top5", number(percent(r->loss.top5, r->loss.count)), "img_s", number(r->img_s),
                           "seconds", number(r->seconds), "compute", number(r->compute), "exposed_comm",
                           number(r->exposed_comm), "data_wait", number(r->data_wait), "other",
                           number(r->other), "wait_skew", number(r->wait_skew), "waited_for",
                           r->waited_for < 0 ? json_null() : json_integer(r->waited_for), "loss_scale",
                           number(r->loss_scale), "skipped", (json_int_t)r->skipped)));
    say(rep,
        "epoch %d/%d: loss %.4f, top-1 %.2f %%, top-5 %.2f %%; %.0f img/s, %.1f s (%.1f %% computing, %.1f "
        "%% "
        "waiting for the exchange, %.1f %% for data)",
        r->epoch, r->epochs, mean_loss(&r->loss), percent(r->loss.top1, r->loss.count),
        percent(r->loss.top5, r->loss.count), r->img_s, r->seconds, 100 * r->compute, 100 * r->exposed_comm,
        100 * r->data_wait);
    if (r->waited_for >= 0 && r->wait_skew >= WORTH_SAYING)
        say(rep, "  others waited for rank %d (%s): up to %.1f %% of the time more than it did itself",
            r->waited_for, r->waited_host, 100 * r->wait_skew);
    return HVT_OK;
}

hvt_status hvt__report_overlap(hvt_reporter *rep, const char *overlap, double without, double with)
{
    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(put(rep, json_pack("{s:s, s:s, s:o, s:o}", "record", "overlap", "overlap", overlap,
                                   "seconds_off", number(without), "seconds_worker", number(with))));
    say(rep, "overlap %s: an update takes %.3g ms with a worker for the exchange, %.3g ms without", overlap,
        1e3 * with, 1e3 * without);
    return HVT_OK;
}

hvt_status hvt__report_eval(hvt_reporter *rep, int epoch, const hvt_loss *loss)
{
    double top1 = percent(loss->top1, loss->count), top5 = percent(loss->top5, loss->count);

    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(put(rep, json_pack("{s:s, s:i, s:o, s:o, s:o, s:I}", "record", "eval", "epoch", epoch, "loss",
                                   number(mean_loss(loss)), "top1", number(top1), "top5", number(top5),
                                   "count", (json_int_t)loss->count)));
    say(rep, "test after epoch %d: loss %.4f, top-1 %.2f %%, top-5 %.2f %% of %lld images", epoch,
        mean_loss(loss), top1, top5, (long long)loss->count);
    return HVT_OK;
}

hvt_status hvt__report_end(hvt_reporter *rep, const hvt_options *opts, const hvt_end_report *r)
{
    char hex[17], took[32];

    if (!rep)
        return HVT_OK;
    snprintf(hex, sizeof hex, "%016" PRIx64, r->weights);
    if (rep->log)
        HVT_TRY(
            put(rep, json_pack("{s:s, s:o, s:I, s:I, s:o, s:s, s:o, s:I, s:I}", "record", "end", "seconds",
                               number(r->seconds), "steps", (json_int_t)r->steps, "skipped",
                               (json_int_t)r->skipped, "loss_scale", number(r->loss_scale), "weights", hex,
                               "first_update_s", r->first_update < 0 ? json_null() : number(r->first_update),
                               "peak_bytes", (json_int_t)r->peak_bytes, "device_peak_bytes",
                               (json_int_t)r->device_peak_bytes)));
    duration(r->seconds, took);
    if (r->device_peak_bytes)
        say(rep, "GPU memory: at most %.0f MiB on a rank", mib((double)r->device_peak_bytes));
    if (r->first_update >= 0)
        say(rep, "done: %lld updates, %s, the first after %.2f s; at most %.0f MiB on a rank; weights %s",
            (long long)r->steps, took, r->first_update, mib((double)r->peak_bytes), hex);
    else
        say(rep, "done: %s; at most %.0f MiB on a rank; weights %s", took, mib((double)r->peak_bytes), hex);
    if (opts->evaluate)
        return HVT_OK;
    if (*opts->save) {
        say(rep, "next: hvtrain --resume %s --epochs %d goes on", opts->save,
            opts->epochs > INT_MAX / 2 ? INT_MAX : 2 * opts->epochs);
        say(rep, "      hvtrain --resume %s/best.safetensors --evaluate tests the best weights", opts->save);
    } else {
        say(rep, "next: --save DIR keeps the weights; hvtrain --resume DIR goes on from them");
    }
    return HVT_OK;
}
