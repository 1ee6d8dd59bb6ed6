/*
 * Several runs in one process at once: in threads of the program, and on ranks that are threads. Each has the
 * result, the log and the checkpoints that it has alone.
 */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "hvt/hvt.h"

#include <jansson.h>
#include <pthread.h>

enum { RUNS = 3 };

typedef struct one {
    hvt_options opts;
    char save[300], log[300], report[300];
    hvt_report result;
    int ranks; /* 0: a world of its own thread; else ranks that are threads */
} one;

/* Runs that differ in all that could be mixed up. */
static void describe(one *r, int i, const char *prefix)
{
    hvt_options *o = &r->opts;

    *r = (one){.ranks = i == 2 ? 2 : 0};
    hvt_options_default(o);
    o->samples = 96 + 32 * i;
    o->batch = o->size = 16;
    o->epochs = 2;
    o->threads = o->print_freq = 1;
    o->seed = i;
    o->shards = 2;
    o->quiet = true;
    snprintf(r->save, sizeof r->save, "%s/%s-save-%d", folder, prefix, i);
    snprintf(r->log, sizeof r->log, "%s/%s-log-%d", folder, prefix, i);
    snprintf(r->report, sizeof r->report, "%s/%s-%d.html", folder, prefix, i);
    o->save = r->save;
    o->log = r->log;
    o->report = r->report;
    o->comm_cutoffs = i ? "mpi-short=8192" : "";
}

static hvt_status train_rank(hvt_world *w, void *ctx)
{
    one *r = ctx;
    hvt_report ignored;

    return hvt_train(&r->opts, w, hvt_world_rank(w) ? &ignored : &r->result);
}

static void *train(void *arg)
{
    one *r = arg;
    hvt_world *w = NULL;

    if (r->ranks) {
        CHECK_OK(hvt_world_open_threads(r->ranks, train_rank, r));
        return NULL;
    }
    CHECK_OK(hvt_world_open("singleton", &w));
    CHECK_OK(train_rank(w, r));
    hvt_world_close(&w);
    return NULL;
}

/* A log without times; the caller frees it. */
static json_t *log_of(const one *r)
{
    FILE *f = fopen(r->log, "r");
    json_t *all = json_array(), *record;

    while (f && (record = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        static const char *const kept[] = {"record", "epoch", "step",    "loss",
                                           "top1",   "steps", "weights", "status"};
        json_t *few = json_object();

        for (size_t i = 0; i < HVT_LEN(kept); i++)
            json_object_set(few, kept[i], json_object_get(record, kept[i]));
        json_array_append_new(all, few);
        json_decref(record);
    }
    if (f)
        fclose(f);
    return all;
}

/* The tensors of a checkpoint, behind its header, which has paths and options. */
static uint64_t tensors_of(const one *r)
{
    char path[400];
    uint64_t n = 0, hash = HVT_HASH_INIT;
    FILE *f;
    int c;

    snprintf(path, sizeof path, "%s/last.safetensors", r->save);
    f = fopen(path, "r");
    CHECK(f && fread(&n, sizeof n, 1, f) == 1 && fseek(f, (long)n, SEEK_CUR) == 0, "%s", path);
    while (f && (c = getc(f)) != EOF)
        hash = hvt__hash(hash, &(char){(char)c}, 1);
    if (f)
        fclose(f);
    return hash;
}

TEST(runs_at_once_have_what_each_has_alone)
{
    one alone[RUNS], both[RUNS];
    pthread_t thread[RUNS];

    for (int i = 0; i < RUNS; i++) {
        describe(&alone[i], i, "alone");
        train(&alone[i]);
        describe(&both[i], i, "both");
    }
    for (int i = 0; i < RUNS; i++)
        CHECK(!pthread_create(&thread[i], NULL, train, &both[i]), "no thread");
    for (int i = 0; i < RUNS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < RUNS; i++) {
        json_t *a = log_of(&alone[i]), *b = log_of(&both[i]);
        char *text = json_dumps(b, 0);

        CHECK(alone[i].result.weights == both[i].result.weights &&
                  alone[i].result.steps == both[i].result.steps,
              "run %d: %016llx and %016llx", i, (unsigned long long)alone[i].result.weights,
              (unsigned long long)both[i].result.weights);
        CHECK(json_array_size(a) > 8 && json_equal(a, b), "run %d: %s", i, text);
        CHECK(tensors_of(&alone[i]) == tensors_of(&both[i]), "run %d: other checkpoints", i);
        free(text);
        json_decref(a);
        json_decref(b);
    }
}

/* A run that cannot write its log ends; the other one does not notice. */
TEST(a_run_that_fails_beside_another_ends_alone)
{
    one good, bad;
    hvt_world *w = NULL;
    hvt_report ignored;
    pthread_t thread;

    describe(&good, 0, "good");
    describe(&bad, 1, "bad");
    bad.opts.data = "cifar10";
    bad.opts.data_dir = "/there/is/no/such/folder";
    CHECK(!pthread_create(&thread, NULL, train, &good), "no thread");
    CHECK_OK(hvt_world_open("singleton", &w));
    for (int i = 0; i < 3; i++)
        CHECK_FAILS(hvt_train(&bad.opts, w, &ignored), E_IO, "/there/is/no/such/folder");
    hvt_world_close(&w);
    pthread_join(thread, NULL);
    CHECK(good.result.steps > 0, "nothing was trained");
}

TEST(devices_are_for_hvtrains_command_line)
{
    one r;
    hvt_world *w = NULL;

    describe(&r, 0, "list");
    r.opts.devices = "cpu:0,cpu:1";
    CHECK_OK(hvt_world_open("singleton", &w));
    CHECK_FAILS(hvt_train(&r.opts, w, &r.result), E_ARG, "hvt_world_open_threads()");
    hvt_world_close(&w);
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(runs_at_once_have_what_each_has_alone);
    RUN(a_run_that_fails_beside_another_ends_alone);
    RUN(devices_are_for_hvtrains_command_line);
    return folder_remove() ? check_done() : 1;
}
