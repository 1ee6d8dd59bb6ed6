/*
 * hvtrain tune: measures which values are fastest on this world, and writes them to a file for --config.
 *
 * There are three parts: the time of sums over each comm, as a line (alpha + beta * bytes); the cutoffs of
 * the comm in use; and the bucket size, in whole training steps. Each round measures all candidates, starting
 * with another one each time, so that slow changes of the machine affect all of them alike. A time is that of
 * the slowest rank after a barrier. The value in use stays unless another one is faster beyond the spread of
 * their times (choice.h); a line reports the result. All decisions depend on numbers that are equal on all
 * ranks.
 */
#include "run.h"
#include "choice.h"
#include "tune_plot.h"
#include "base/line.h"
#include "base_impl.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROUNDS_MOST = 60,
    MANY = 16,       /* candidates at most */
    SHORT = 1 << 13, /* bytes of a short sum */
    TIMES = 32
};

typedef struct candidate {
    size_t value;
    double seconds[ROUNDS_MOST]; /* of each round; sorted at the end */
    double exposed;              /* seconds over all rounds */
    hvt_comm *comm;              /* for a cutoff */
    void *buf;                   /* [to] bytes */
} candidate;

typedef struct tuning {
    run t;
    double began;
    candidate at[MANY];            /* the first one is in use */
    hvt__timing timing[MANY];      /* their names and times */
    int n, rounds, best;           /* best: the chosen candidate */
    hvt_cutoff cutoff;             /* the cutoff being measured */
    double scale[MANY];            /* the first candidate's seconds of each size */
    char cutoffs[200], bucket[24]; /* the chosen values; "": the default */
    FILE *out;                     /* rank 0; at `path` until complete */
    char path[HVT_OPTION_VALUE];
} tuning;

/* Measures the candidates for `part` of the total time, by rank 0's clock, and chooses one. */
static hvt_status measure(tuning *u, double part, hvt_status time_one(tuning *u, candidate *c))
{
    int64_t more = 1;

    for (u->rounds = 0;; u->rounds++) {
        more = u->rounds < ROUNDS_MOST &&
               (u->rounds < 3 || hvt__now() - u->began < part * u->t.opts->tune_seconds);
        HVT_TRY(hvt_world_broadcast(u->t.world, &more, sizeof more, 0));
        if (!more)
            break;
        for (int k = 0; k < u->n; k++)
            HVT_TRY(time_one(u, &u->at[(k + u->rounds) % u->n]));
    }
    for (int i = 0; i < u->n; i++)
        hvt__timing_of(u->at[i].seconds, u->rounds, &u->timing[i]);
    u->best = hvt__choose(u->timing, u->n, u->rounds);
    return HVT_OK;
}

#define say(...) hvt__print_line(STDOUT_FILENO, __VA_ARGS__)

/* Prints a table of the candidates. in_use: the name of the first one; scale: units per second. */
static void print_candidates(const tuning *u, const char *in_use, double scale, const char *unit)
{
    char text[HVT__CHOICE_TEXT];

    for (int i = 0; i < u->n; i++) {
        const hvt__timing *k = &u->timing[i];

        char exposed[32] = "";

        if (!u->at[i].comm) /* a candidate of whole steps */
            snprintf(exposed, sizeof exposed, " %11.3f", scale * u->at[i].exposed / u->rounds);
        say("  %-10s %10.3f %10.3f-%-10.3f%s%s%s%s", k->name, scale * k->median, scale * k->low,
            scale * k->high, exposed, i ? "" : "   ", i ? "" : in_use, i == u->best ? " <- chosen" : "");
    }
    hvt__choice_text(u->timing, u->n, u->rounds, in_use, scale, unit, text);
    if (*text)
        say("%s", text);
}

/* Times one sum on the slowest rank. Short sums are repeated, because they are shorter than a barrier. */
static hvt_status time_sum(tuning *u, hvt_comm *c, void *buf, size_t bytes, double *ret_seconds)
{
    int times = bytes > SHORT ? 1 : TIMES;
    hvt_ticket ticket;
    double start;

    HVT_TRY(hvt_world_barrier(u->t.world));
    start = hvt__now();
    for (int i = 0; i < times; i++) {
        HVT_TRY(hvt_comm_allreduce(c, buf, bytes / sizeof(float), HVT_F32, &ticket));
        HVT_TRY(hvt_comm_wait(c, ticket));
    }
    HVT_TRY(hvt_device_sync(u->t.dev));
    *ret_seconds = (hvt__now() - start) / times;
    return hvt_world_allreduce(u->t.world, HVT_MAX, ret_seconds, 1);
}

static hvt_status line_of(tuning *u, hvt_comm *c)
{
    enum { ROUNDS = 11 };
    static const size_t bytes[2] = {16 << 10, 4 << 20};
    double seconds[2][ROUNDS], alpha, beta;
    void *buf;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt_comm_alloc(c, bytes[1], &buf));
    for (int r = -2; r < ROUNDS && s == HVT_OK; r++) /* two warm-up rounds */
        for (int i = 0; i < 2 && s == HVT_OK; i++)
            s = time_sum(u, c, buf, bytes[i], &seconds[i][r < 0 ? 0 : r]);
    hvt_comm_release(c, buf);
    HVT_TRY(s);
    for (int i = 0; i < 2; i++)
        hvt__sort(seconds[i], ROUNDS);
    beta = fmax(0, (seconds[1][ROUNDS / 2] - seconds[0][ROUNDS / 2]) / (double)(bytes[1] - bytes[0]));
    alpha = fmax(0, seconds[0][ROUNDS / 2] - beta * (double)bytes[0]);
    if (u->t.rank == 0)
        say("  %-6s %9.1f %12.3f%s", hvt_comm_name(c), 1e6 * alpha, 1e3 * beta * (1 << 20),
            strcmp(hvt_comm_name(c), hvt_comm_name(u->t.comm)) ? "" : "   in use");
    return HVT_OK;
}

static hvt_status print_lines(tuning *u)
{
    static const char *const comms[] = {"shm", "mpi", "hier", "nccl"};

    if (u->t.rank == 0)
        say("sums of %d ranks: time = alpha + beta * bytes\n  %-6s %9s %12s", u->t.size, "comm", "alpha us",
            "beta ms/MiB");
    for (size_t i = 0; i < HVT_LEN(comms); i++) {
        hvt_comm *c = NULL;
        hvt_status s;

        if (hvt_comm_open(comms[i], u->t.world, u->t.dev, &c)) /* not available, on all ranks alike */
            continue;
        s = line_of(u, c);
        hvt_comm_close(&c);
        HVT_TRY(s);
    }
    return HVT_OK;
}

static hvt_status set_cutoff(const tuning *u, size_t value)
{
    char list[200] = "";
    hvt_cutoff c;

    for (int i = 0; hvt_comm_cutoff(i, &c); i++) { /* the others keep their values */
        size_t used = strlen(list);

        snprintf(list + used, sizeof list - used, "%s%s=%zu", used ? "," : "", c.name,
                 strcmp(c.name, u->cutoff.name) ? c.value : value);
    }
    return hvt_comm_set_cutoffs(list, false);
}

/* Opens a comm for the current value, and for each of the powers of two around it. */
static hvt_status open_candidates(tuning *u)
{
    const hvt_cutoff *h = &u->cutoff;

    u->n = 0;
    for (int i = 0; i < 7; i++) {
        static const int shift[] = {0, -3, -2, -1, 1, 2, 3};
        size_t value = shift[i] < 0 ? h->value >> -shift[i] : h->value << shift[i];
        candidate *c = &u->at[u->n];

        if (value < h->least || value > h->most || (i && value == h->value))
            continue;
        *c = (candidate){.value = value};
        snprintf(u->timing[u->n].name, sizeof u->timing->name, "%zu", value);
        u->n++;
        HVT_TRY(set_cutoff(u, value));
        HVT_TRY(hvt_comm_open(hvt_comm_name(u->t.comm), u->t.world, u->t.dev, &c->comm));
        HVT_TRY(hvt_comm_alloc(c->comm, h->to, &c->buf));
    }
    return HVT_OK;
}

static void close_candidates(tuning *u)
{
    for (int i = u->n - 1; i >= 0; i--) {
        if (u->at[i].comm)
            hvt_comm_release(u->at[i].comm, u->at[i].buf);
        hvt_comm_close(&u->at[i].comm);
    }
}

/* Times a candidate's sums: the mean over sizes, each four times the last one, relative to the first
 * candidate, so that long sums do not dominate. */
static hvt_status time_sums(tuning *u, candidate *c)
{
    double sum = 0, seconds;
    int sizes = 0;

    for (size_t bytes = u->cutoff.from; bytes <= u->cutoff.to; bytes *= 4, sizes++) {
        /* the first one absorbs effects of the barrier */
        HVT_TRY(time_sum(u, c->comm, c->buf, bytes, &seconds));
        HVT_TRY(time_sum(u, c->comm, c->buf, bytes, &seconds));
        if (u->rounds == 0 && c == u->at)
            u->scale[sizes] = seconds;
        sum += seconds / u->scale[sizes];
    }
    c->seconds[u->rounds] = sum / sizes;
    return HVT_OK;
}

static hvt_status tune_cutoff(tuning *u, double part)
{
    const hvt_cutoff *h = &u->cutoff;
    size_t used = strlen(u->cutoffs);
    hvt_status s = open_candidates(u);

    if (s == HVT_OK)
        s = measure(u, part, time_sums);
    if (s == HVT_OK && u->t.rank == 0) {
        say("%s (%s): time of sums of %zu to %zu bytes, %d rounds\n  %-10s %10s %21s", h->name, h->meaning,
            h->from, h->to, u->rounds, "value", "median", "quartiles");
        print_candidates(u, "the current value", 1, "");
    }
    close_candidates(u);
    set_cutoff(u, s == HVT_OK ? u->at[u->best].value : h->value);
    snprintf(u->cutoffs + used, sizeof u->cutoffs - used, "%s%s=%zu", used ? "," : "", h->name,
             u->at[u->best].value);
    return s;
}

static hvt_status tune_cutoffs(tuning *u)
{
    const char *comm = hvt_comm_name(u->t.comm);

    if (strcmp(comm, "mpi") && strcmp(comm, "hier"))
        return HVT_OK;
    for (int i = 0; hvt_comm_cutoff(i, &u->cutoff); i++)
        if (!u->cutoff.hosts || hvt_world_nodes(u->t.world) > 1)
            HVT_TRY(tune_cutoff(u, 0.2 * (i + 1)));
    return HVT_OK;
}

/* Lists the default, then the sizes that give other plans. */
static hvt_status bucket_candidates(tuning *u)
{
    static const char *const names[] = {"25MiB", "0",     "1MiB",  "2MiB",   "4MiB", "8MiB",
                                        "16MiB", "32MiB", "64MiB", "128MiB", "all"};
    uint64_t seen[HVT_LEN(names)];
    hvt_options o = *u->t.opts;

    u->n = 0;
    for (size_t i = 0; i < HVT_LEN(names); i++) {
        const size_t *bytes;
        int k = 0, buckets;

        HVT_TRY(hvt_options_set(&o, "bucket", names[i]));
        HVT_TRY(hvt_distopt_replan(u->t.dist, o.bucket, u->t.set.first_bucket));
        buckets = hvt_distopt_buckets(u->t.dist, &bytes);
        seen[u->n] = hvt__hash(HVT_HASH_INIT, bytes, (size_t)buckets * sizeof *bytes);
        while (seen[k] != seen[u->n])
            k++;
        if (k < u->n)
            continue;
        u->at[u->n] = (candidate){.value = o.bucket};
        snprintf(u->timing[u->n++].name, sizeof u->timing->name, "%s", names[i]);
    }
    return HVT_OK;
}

static hvt_status one_step(tuning *u)
{
    run *t = &u->t;
    bool end = false;

    HVT_TRY(hvt__step(t, 0, &end));
    if (!end)
        return HVT_OK;
    HVT_TRY(hvt_loader_rewind(t->train_data, 0, 0));
    return hvt__step(t, 0, &end);
}

/* Times one step with this candidate's buckets. */
static hvt_status time_step(tuning *u, candidate *c)
{
    run *t = &u->t;
    double start;

    HVT_TRY(hvt_distopt_replan(t->dist, c->value, t->set.first_bucket));
    hvt_distopt_take_exposed(t->dist);
    HVT_TRY(hvt_world_barrier(t->world));
    start = hvt__now();
    HVT_TRY(one_step(u));
    HVT_TRY(hvt_device_sync(t->dev));
    c->seconds[u->rounds] = hvt__now() - start;
    c->exposed += hvt_distopt_take_exposed(t->dist);
    return hvt_world_allreduce(t->world, HVT_MAX, &c->seconds[u->rounds], 1);
}

static hvt_status tune_bucket(tuning *u)
{
    run *t = &u->t;

    HVT_TRY(hvt_loader_rewind(t->train_data, 0, 0));
    HVT_TRY(bucket_candidates(u));
    HVT_TRY(hvt_distopt_replan(t->dist, u->at[0].value, t->set.first_bucket));
    for (int i = 0; i < 2; i++) /* warm-up */
        HVT_TRY(one_step(u));
    HVT_TRY(measure(u, 1, time_step));
    snprintf(u->bucket, sizeof u->bucket, "%s", u->timing[u->best].name);
    if (t->rank)
        return HVT_OK;
    say("bucket: a step of %s, %d x %d images, over %s, wire %s, %d rounds; exposed: waiting for sums on "
        "rank 0\n  %-10s %10s %21s %11s",
        t->opts->model, t->set.shards, t->set.batch, hvt_comm_name(t->comm), t->opts->compression, u->rounds,
        "size", "median ms", "quartiles ms", "exposed ms");
    print_candidates(u, "the default", 1e3, " ms");
    return HVT_OK;
}

static hvt_status open_output(tuning *u)
{
    const char *path = u->t.opts->tune_file;
    char picture[PATH_MAX];
    struct stat info;

    HVT_CHECK(stat(path, &info) || S_ISREG(info.st_mode), E_IO, "tune %s: is not a regular file", path);
    HVT_CHECK((size_t)snprintf(u->path, sizeof u->path, "%.4000s.tmp", path) == strlen(path) + 4, E_IO,
              "tune %.60s...: the name is too long", path);
    HVT_TRY(hvt__own_file_check(HVT__TUNED, "tune", path));
    HVT_TRY(hvt__path(picture, "%s.svg", path));
    HVT_TRY(hvt__own_file_check(HVT__PICTURE, "tune", picture));
    u->out = fopen(u->path, "w");
    HVT_CHECK(u->out, E_IO, "tune %s: cannot write there: %s", path, strerror(errno));
    hvt__signals_temp(u->path, true);
    return HVT_OK;
}

/* Draws the times of the buckets, as a picture beside the file. */
static hvt_status draw_buckets(const tuning *u)
{
    const run *t = &u->t;
    char path[HVT_OPTION_VALUE], title[300];
    hvt__tuned all[MANY];

    for (int i = 0; i < u->n; i++)
        all[i] = (hvt__tuned){u->at[i].value,    u->timing[i].low, u->timing[i].median,
                              u->timing[i].high, i == 0,           i == u->best};
    snprintf(path, sizeof path, "%.4000s.svg", t->opts->tune_file);
    snprintf(title, sizeof title,
             "%.80s, %d x %d images, %d ranks, %s: ms of an update, median and quartiles", t->opts->model,
             t->set.shards, t->set.batch, t->size, hvt_comm_name(t->comm));
    HVT_TRY(hvt__tune_plot(path, title, all, u->n));
    say("written: %s, a picture of these times", path);
    return HVT_OK;
}

static hvt_status write_output(tuning *u)
{
    const run *t = &u->t;
    char note[400];
    json_t *all;
    bool wrote;

    snprintf(note, sizeof note, "hvtrain tune: %s, %d x %d images, wire %s, comm %s, %d ranks on %d host%s",
             t->opts->model, t->set.shards, t->set.batch, t->opts->compression, hvt_comm_name(t->comm),
             t->size, hvt_world_nodes(t->world), hvt_world_nodes(t->world) > 1 ? "s" : "");
    all = json_pack("{s:s, s:s}", "note", note, "bucket", u->bucket);
    if (*u->cutoffs)
        json_object_set_new(all, "comm-cutoffs", json_string(u->cutoffs));
    errno = 0;
    wrote = all && json_dumpf(all, u->out, JSON_INDENT(1)) == 0 && fputc('\n', u->out) != EOF;
    json_decref(all);
    wrote = fclose(u->out) == 0 && wrote;
    u->out = NULL;
    HVT_CHECK(wrote && rename(u->path, t->opts->tune_file) == 0, E_IO, "tune %s: cannot write: %s",
              t->opts->tune_file, strerror(errno));
    say("written: %s (hvtrain --config %s)", t->opts->tune_file, t->opts->tune_file);
    return draw_buckets(u);
}

static void close_output(tuning *u)
{
    if (!*u->path)
        return;
    if (u->out)
        fclose(u->out);
    unlink(u->path); /* does nothing after the rename */
    hvt__signals_temp(u->path, false);
}

hvt_status hvt_tune(const hvt_options *opts, hvt_world *world)
{
    HVT_TRY(hvt__options_given(opts, __func__));
    HVT_GIVEN(world, "a world");
    if (opts->tune_lr)
        return hvt__tune_lr(opts, world);

    tuning u = {.n = 0};
    hvt_status s;

    HVT_TRY(hvt__run_begin(opts, world, &u.t));
    HVT_TRY_OR(done, hvt_world_agree(world, u.t.rank == 0 ? open_output(&u) : HVT_OK));
    HVT_TRY_OR(done, hvt__setup(&u.t));
    u.t.record = false;
    u.began = hvt__now();
    HVT_TRY_OR(done, print_lines(&u));
    HVT_TRY_OR(done, tune_cutoffs(&u));
    HVT_TRY_OR(done, tune_bucket(&u));
    HVT_TRY_OR(done, hvt_world_agree(world, u.t.rank == 0 ? write_output(&u) : HVT_OK));
done:
    if (s == HVT_OK || hvt_last_error_is_agreed())
        hvt__teardown(&u.t); /* otherwise the other ranks would not take part */
    close_output(&u);
    return s;
}
