/*
 * hvtrain tune: measure which values are fastest on this world, and write them to a file for --config.
 *
 * There are three parts: the time of sums over each comm, as a line (alpha + beta * bytes); the cutoffs of
 * the comm in use; and the bucket size, in whole training steps. Each round measures all candidates,
 * beginning with another one, so that slow changes of the machine affect all of them alike. A time is that of
 * the slowest rank after a barrier. The default stays unless another median is below its lower quartile, so
 * that noise changes nothing. All decisions depend on numbers that are equal on all ranks.
 */
#include "run.h"
#include "base_impl.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROUNDS_MOST = 60,
    MANY = 16,       /* candidates at most */
    SHORT = 1 << 13, /* bytes of a short sum */
    TIMES = 32
};

typedef struct candidate {
    char name[24];
    size_t value;
    double seconds[ROUNDS_MOST]; /* of each round; sorted in the end */
    double exposed;              /* seconds over all rounds */
    hvt_comm *comm;              /* for a cutoff */
    void *buf;                   /* [to] bytes */
} candidate;

typedef struct tuning {
    run t;
    double began;
    candidate at[MANY];
    int n, rounds;
    char cutoffs[200], bucket[24]; /* what was chosen; "": the default */
    FILE *out;                     /* on rank 0, at `path` until it is complete */
    char path[HVT_OPTION_VALUE];
} tuning;

static double quantile(const candidate *c, int rounds, int quarters)
{
    return c->seconds[(rounds - 1) * quarters / 4];
}

/* Is there time for another round, within `part` of the total? Rank 0's clock decides. */
static hvt_status another_round(tuning *u, double part, bool *ret_more)
{
    int64_t more =
        u->rounds < ROUNDS_MOST && (u->rounds < 3 || hvt__now() - u->began < part * u->t.opts->tune_seconds);

    HVT_TRY(hvt_world_broadcast(u->t.world, &more, sizeof more, 0));
    *ret_more = more != 0;
    return HVT_OK;
}

/* The candidate to choose: the first (the default) unless another one is clearly faster. Sorts the times. */
static int fastest(tuning *u)
{
    int best = 0;

    for (int i = 0; i < u->n; i++)
        hvt__sort(u->at[i].seconds, (size_t)u->rounds);
    for (int i = 1; i < u->n; i++)
        if (quantile(&u->at[i], u->rounds, 2) < quantile(&u->at[best], u->rounds, best ? 2 : 1))
            best = i;
    return best;
}

/* The slowest rank's seconds of one sum. Short sums are repeated, because they are shorter than a barrier. */
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

/* ---- lines ---- */

static hvt_status line_of(tuning *u, hvt_comm *c)
{
    enum { ROUNDS = 11 };
    static const size_t bytes[2] = {16 << 10, 4 << 20};
    double seconds[2][ROUNDS], alpha, beta;
    void *buf;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt_comm_alloc(c, bytes[1], &buf));
    for (int r = -2; r < ROUNDS && s == HVT_OK; r++) /* two to warm up */
        for (int i = 0; i < 2 && s == HVT_OK; i++)
            s = time_sum(u, c, buf, bytes[i], &seconds[i][r < 0 ? 0 : r]);
    hvt_comm_release(c, buf);
    HVT_TRY(s);
    for (int i = 0; i < 2; i++)
        hvt__sort(seconds[i], ROUNDS);
    beta = fmax(0, (seconds[1][ROUNDS / 2] - seconds[0][ROUNDS / 2]) / (double)(bytes[1] - bytes[0]));
    alpha = fmax(0, seconds[0][ROUNDS / 2] - beta * (double)bytes[0]);
    if (u->t.rank == 0)
        printf("  %-6s %9.1f %12.3f%s\n", hvt_comm_name(c), 1e6 * alpha, 1e3 * beta * (1 << 20),
               strcmp(hvt_comm_name(c), hvt_comm_name(u->t.comm)) ? "" : "   in use");
    return HVT_OK;
}

static hvt_status print_lines(tuning *u)
{
    static const char *const comms[] = {"shm", "mpi", "hier", "nccl"};

    if (u->t.rank == 0)
        printf("sums of %d ranks: time = alpha + beta * bytes\n  %-6s %9s %12s\n", u->t.size, "comm",
               "alpha us", "beta ms/MiB");
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

/* ---- cutoffs ---- */

static hvt_status set_cutoff(const hvt_cutoff *h, size_t value)
{
    char list[80];

    snprintf(list, sizeof list, "%s=%zu", h->name, value);
    return hvt_comm_set_cutoffs(list, false);
}

/* The present value, and powers of two around it. */
static void cutoff_candidates(tuning *u, const hvt_cutoff *h)
{
    u->n = 0;
    for (int i = 0; i < 7; i++) {
        static const int shift[] = {0, -3, -2, -1, 1, 2, 3};
        size_t value = shift[i] < 0 ? h->value >> -shift[i] : h->value << shift[i];

        if (value < h->least || value > h->most || (i && value == h->value))
            continue;
        u->at[u->n] = (candidate){.value = value};
        snprintf(u->at[u->n].name, sizeof u->at->name, "%zu", value);
        u->n++;
    }
}

static hvt_status open_candidates(tuning *u, const hvt_cutoff *h)
{
    for (int i = 0; i < u->n; i++) {
        HVT_TRY(set_cutoff(h, u->at[i].value));
        HVT_TRY(hvt_comm_open(hvt_comm_name(u->t.comm), u->t.world, u->t.dev, &u->at[i].comm));
        HVT_TRY(hvt_comm_alloc(u->at[i].comm, h->to, &u->at[i].buf));
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

/* A candidate's time in a round: the mean over sizes in steps of four, relative to the first candidate, so
 * that long sums do not weigh more than short ones. */
static hvt_status cutoff_round(tuning *u, const hvt_cutoff *h, double scale[MANY])
{
    for (int k = 0; k < u->n; k++) {
        candidate *c = &u->at[(k + u->rounds) % u->n];
        double sum = 0, seconds;
        int sizes = 0;

        HVT_TRY(set_cutoff(h, c->value));
        for (size_t bytes = h->from; bytes <= h->to; bytes *= 4, sizes++) {
            HVT_TRY(time_sum(u, c->comm, c->buf, bytes,
                             &seconds)); /* the first one absorbs effects of the barrier */
            HVT_TRY(time_sum(u, c->comm, c->buf, bytes, &seconds));
            if (u->rounds == 0 && k == 0)
                scale[sizes] = seconds;
            sum += seconds / scale[sizes];
        }
        c->seconds[u->rounds] = sum / sizes;
    }
    return HVT_OK;
}

static hvt_status measure_cutoff(tuning *u, const hvt_cutoff *h, double part)
{
    double scale[MANY];
    bool more = true;

    HVT_TRY(open_candidates(u, h));
    for (u->rounds = 0;; u->rounds++) {
        HVT_TRY(another_round(u, part, &more));
        if (!more)
            return HVT_OK;
        HVT_TRY(cutoff_round(u, h, scale));
    }
}

static hvt_status tune_cutoff(tuning *u, const hvt_cutoff *h, double part)
{
    size_t used = strlen(u->cutoffs);
    hvt_status s;
    int best;

    cutoff_candidates(u, h);
    s = measure_cutoff(u, h, part);
    close_candidates(u);
    set_cutoff(h, h->value);
    HVT_TRY(s);
    best = fastest(u);
    if (u->t.rank == 0) {
        printf("%s (%s): time of sums of %zu to %zu bytes, %d rounds\n  %-10s %8s %17s\n", h->name,
               h->meaning, h->from, h->to, u->rounds, "value", "median", "quartiles");
        for (int i = 0; i < u->n; i++)
            printf("  %-10s %8.3f %8.3f-%-8.3f%s%s\n", u->at[i].name, quantile(&u->at[i], u->rounds, 2),
                   quantile(&u->at[i], u->rounds, 1), quantile(&u->at[i], u->rounds, 3),
                   i ? "" : " as it was", i == best ? " <- chosen" : "");
    }
    snprintf(u->cutoffs + used, sizeof u->cutoffs - used, "%s%s=%zu", used ? "," : "", h->name,
             u->at[best].value);
    return set_cutoff(h, u->at[best].value);
}

static bool matters(const tuning *u, const hvt_cutoff *h)
{
    const char *comm = hvt_comm_name(u->t.comm);

    return (!strcmp(comm, "mpi") || !strcmp(comm, "hier")) && (!h->hosts || hvt_world_nodes(u->t.world) > 1);
}

static hvt_status tune_cutoffs(tuning *u)
{
    hvt_cutoff h;
    int all = 0, done = 0;

    for (int i = 0; hvt_comm_cutoff(i, &h); i++)
        all += matters(u, &h);
    for (int i = 0; hvt_comm_cutoff(i, &h); i++)
        if (matters(u, &h))
            HVT_TRY(tune_cutoff(u, &h, 0.4 * ++done / all));
    return HVT_OK;
}

/* ---- the fusion buffer ---- */

/* The default, then the sizes that give a plan of their own. */
static hvt_status bucket_candidates(tuning *u)
{
    static const char *const names[] = {"25MiB", "0",     "1MiB",  "2MiB",   "4MiB", "8MiB",
                                        "16MiB", "32MiB", "64MiB", "128MiB", "all"};
    uint64_t seen[HVT_LEN(names)];
    hvt_options o = *u->t.opts;

    u->n = 0;
    for (size_t i = 0; i < HVT_LEN(names); i++) {
        const size_t *bytes;
        uint64_t plan = HVT_HASH_INIT;
        int k = 0, buckets;

        HVT_TRY(hvt_options_set(&o, "bucket", names[i]));
        HVT_TRY(hvt_distopt_replan(u->t.dist, o.bucket, u->t.set.first_bucket));
        buckets = hvt_distopt_buckets(u->t.dist, &bytes);
        plan = hvt__hash(plan, bytes, (size_t)buckets * sizeof *bytes);
        while (k < u->n && seen[k] != plan)
            k++;
        if (k < u->n)
            continue;
        seen[u->n] = plan;
        u->at[u->n] = (candidate){.value = o.bucket};
        snprintf(u->at[u->n++].name, sizeof u->at->name, "%s", names[i]);
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

/* Time one step with this candidate's buckets. */
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
    bool more = true;
    int best;

    HVT_TRY(hvt_loader_rewind(t->train_data, 0, 0));
    HVT_TRY(bucket_candidates(u));
    HVT_TRY(hvt_distopt_replan(t->dist, u->at[0].value, t->set.first_bucket));
    for (int i = 0; i < 2; i++) /* warm-up */
        HVT_TRY(one_step(u));
    for (u->rounds = 0;; u->rounds++) {
        HVT_TRY(another_round(u, 1, &more));
        if (!more)
            break;
        for (int k = 0; k < u->n; k++)
            HVT_TRY(time_step(u, &u->at[(k + u->rounds) % u->n]));
    }
    best = fastest(u);
    if (t->rank == 0) {
        printf("bucket: a step of %s, %d x %d images, over %s, wire %s, %d rounds; exposed: waiting for sums "
               "on rank "
               "0\n  %-8s %10s %21s %11s\n",
               t->opts->model, t->set.shards, t->set.batch, hvt_comm_name(t->comm), t->opts->compression,
               u->rounds, "size", "median ms", "quartiles ms", "exposed ms");
        for (int i = 0; i < u->n; i++)
            printf("  %-8s %10.3f %10.3f-%-10.3f %11.3f%s%s\n", u->at[i].name,
                   1e3 * quantile(&u->at[i], u->rounds, 2), 1e3 * quantile(&u->at[i], u->rounds, 1),
                   1e3 * quantile(&u->at[i], u->rounds, 3), 1e3 * u->at[i].exposed / u->rounds,
                   i ? "" : "   default", i == best ? " <- chosen" : "");
    }
    snprintf(u->bucket, sizeof u->bucket, "%s", u->at[best].name);
    return HVT_OK;
}

/* ---- the file ---- */

static hvt_status open_output(tuning *u)
{
    const char *path = u->t.opts->tune_file;
    struct stat info;

    HVT_CHECK(stat(path, &info) || S_ISREG(info.st_mode), E_IO, "tune %s: is no regular file", path);
    HVT_CHECK((size_t)snprintf(u->path, sizeof u->path, "%.4000s.tmp", path) == strlen(path) + 4, E_IO,
              "tune %.60s...: the name is too long", path);
    u->out = fopen(u->path, "w");
    HVT_CHECK(u->out, E_IO, "tune %s: cannot write there: %s", path, strerror(errno));
    hvt__signals_tmp_path(u->path);
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
    hvt__signals_tmp_path(NULL);
    printf("written: %s (hvtrain --config %s)\n", t->opts->tune_file, t->opts->tune_file);
    return HVT_OK;
}

static void close_output(tuning *u)
{
    if (!*u->path)
        return;
    if (u->out)
        fclose(u->out);
    unlink(u->path); /* does nothing after the rename */
    hvt__signals_tmp_path(NULL);
}

hvt_status hvt__tune(const hvt_options *opts, const hvt_resolved *set, hvt_world *world)
{
    tuning *u = calloc(1, sizeof *u);
    hvt_status s;

    HVT_TRY_OR(done, hvt_world_agree(world, u ? HVT_OK : HVT_FAIL(E_MEM, "no memory to tune")));
    u->t = (run){.opts = opts,
                 .set = *set,
                 .world = world,
                 .rank = hvt_world_rank(world),
                 .size = hvt_world_size(world),
                 .first_update = -1};
    HVT_TRY_OR(done, hvt_world_agree(world, u->t.rank == 0 ? open_output(u) : HVT_OK));
    HVT_TRY_OR(done, hvt__setup(&u->t));
    u->t.record = false;
    u->began = hvt__now();
    HVT_TRY_OR(done, print_lines(u));
    HVT_TRY_OR(done, tune_cutoffs(u));
    HVT_TRY_OR(done, tune_bucket(u));
    HVT_TRY_OR(done, hvt_world_agree(world, u->t.rank == 0 ? write_output(u) : HVT_OK));
done:
    if (u && (s == HVT_OK || hvt_last_error_is_agreed()))
        hvt__teardown(&u->t); /* else the other ranks would not take part */
    if (u)
        close_output(u);
    free(u);
    return s;
}

hvt_status hvt_tune(const hvt_options *opts, hvt_world *world)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");

    hvt_resolved set;

    HVT_TRY(hvt__resolve_alike(opts, world, &set));
    return hvt__tune(opts, &set, world);
}
