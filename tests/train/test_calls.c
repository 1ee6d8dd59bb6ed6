/*
 * calls: every public function is called with NULL for each of its pointers, with NULL for all of them, and
 * with impossible numbers, in programs that have reached certain `stages`: nothing was made; a call has
 * failed; everything exists; a step is in progress; a step has ended the run. No call may crash or hang. If
 * everything exists, NULL is E_ARG with one line, unless the header allows NULL, and so is an impossible
 * number. Each call has its own process. every_call.py makes the table from the headers.
 */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "hvt/hvt.h"

#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NONE = -1, ALL = 99, PATIENCE = 20 };

/* How a function says that it fails; at a stage, which of them succeed where all is as it should be. */
typedef enum fails { NOTHING, STATUS, VALUE } fails;

typedef struct every_call {
    const char *name;
    void (*call)(int null, int odd);
    const char *kinds, *names; /* of arguments: p pointer, i integer, r real, e enumeration, u unsigned */
    fails fails;
} every_call;

/* ---- what calls are given ---- */

static hvt_device *dev, *no_dev;
static hvt_world *lone, *no_lone;
static hvt_comm *comm, *no_comm;
static hvt_model *model, *no_model;
static hvt_optim *optim, *no_optim;
static hvt_distopt *dist, *no_dist;
static hvt_dataset *set, *no_set;
static hvt_loader *loader, *no_loader;
static hvt_schedule *schedule, *no_schedule;
static hvt_fuse *fuse, *no_fuse;
static hvt_graph *graph, *no_graph;
static hvt_pt2 *pt2, *no_pt2;
static hvt_net *net, *no_net;

static char room[1 << 20] __attribute__((aligned(64))); /* for whatever is read or written */
static float gradient[4];
static void *memory, *block;
static const size_t *sizes;
static int counts[] = {2}, dims[4] = {3, 1, 1, 1};
static const size_t parts[] = {4};
static const hvt_value values[] = {0, 0, 0, 0}, tensors[] = {3, 3};
static char *arguments[] = {(char[]){"hvtrain"}, (char[]){"--quiet"}, NULL};
static char saved[4096];

static hvt_device_opts device_opts;
static hvt_dataset_opts dataset_opts = {.train = true, .samples = 20, .image_size = 8, .classes = 3};
static hvt_loader_opts loader_opts = {.batch = 2, .shards = 1, .shard_count = 1, .std = {1, 1, 1}};
static hvt_optim_opts optim_opts = {.momentum = .9f};
static hvt_schedule_opts schedule_opts = {"cosine", .1, 2, 1, 0};
static hvt_distopt_opts distopt_opts = {.local_shards = 1};
static hvt_record record;
static hvt_pack_opts pack_opts;
static hvt_batch batch = {.images = {room, HVT_F32, 4, {2, 8, 8, 3}},
                          .labels = {room, HVT_I32, 1, {2, 1, 1, 1}},
                          .count = 2,
                          .shards = 1,
                          .shard_counts = counts};
static hvt_arrays arrays = {.count = 2, .images = room, .type = HVT_F32};
static hvt_options options;
static hvt_conv2d_opts conv2d_opts = {.filters = 2, .kernel_h = 1};
static hvt_interpolate_opts interpolate_opts = {.height = 4, .width = 4};
static hvt_pool_opts pool_opts = {.size = {2, 2}, .stride = {1, 1}};
static hvt_attention_opts attention_opts = {.heads = 1};
static hvt_rotary_opts rotary_opts = {0, 1, 2, 1, (float *)room, (float *)room};
static hvt_zoo_opts zoo_opts;
static hvt_split_opts split_opts;
static hvt_tcp_opts tcp_opts;
static hvt_loss_opts loss_opts;
static hvt_progress progress;
static hvt_stall stall;
static hvt_overlap overlap;
static hvt_scale scale = {1, 1};
static hvt_item item = {"a", "b"};
static hvt_piece pieces[] = {{"a", gradient, 4, HVT_F32}};
static hvt_net_opts net_opts = {
    .height = 8, .width = 8, .channels = 3, .outputs = 3, .lr = 0.1, .shard = 2, .device = "ref"};
static hvt_net_data net_data = {.count = 2, .images = room, .targets = room, .target_type = HVT_I32};
static hvt_tensor tensor = {room, HVT_F32, 1, {4, 1, 1, 1}};
static hvt_dataset_info dataset_info = {.count = 2, .classes = 3, .height = 8, .width = 8, .channels = 3};

static hvt_status get_pixels(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    (void)ctx;
    memset(ret_pixels, (int)index, 3 * 64);
    *ret_label = 0;
    return HVT_OK;
}

static hvt_source source = {.info = {.count = 2, .classes = 3, .height = 8, .width = 8, .channels = 3},
                            .get = get_pixels};

static void answer_log_fn(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

static void answer_stalled_fn(void *ctx, const char *line)
{
    (void)ctx, (void)line;
}

static hvt_status answer_rank_fn(hvt_world *world, void *ctx)
{
    return HVT_OK;
}

static hvt_status answer_grad_fn(void *ctx, size_t first, size_t end)
{
    (void)ctx, (void)first, (void)end;
    return HVT_OK;
}

static hvt_status answer_reduce_apply_fn(void *ctx, size_t first, size_t end, const void *const in[],
                                         int ranks)
{
    (void)ctx, (void)first, (void)end, (void)in, (void)ranks;
    return HVT_OK;
}

/* ---- one call, in a process of its own ---- */

typedef struct outcome {
    bool returned; /* the call came back */
    hvt_status status;
    char why[2048];
} outcome;

static outcome came;

static void ended_with(hvt_status s)
{
    came.status = s;
    snprintf(came.why, sizeof came.why, "%s", hvt_last_error());
}

static void look_at(const char *text)
{
    came.status = text && strlen(text) > 1 << 20;
}

#define P(i, x)      (null == (i) || null == ALL ? NULL : (x))
#define N(i, x, bad) (odd == (i) ? (bad) : (x))
#include EVERY_CALL /* made by every_call.py */

/* How the process ended, as waitpid() says it; 0: well. */
static int try(const every_call *c, int null, int odd, outcome *ret)
{
    int way[2], status;
    pid_t child;

    memset(ret, 0, sizeof *ret);
    if (pipe(way) || (child = fork()) < 0)
        return -1;
    if (child == 0) {
        ssize_t ignored;

        alarm(PATIENCE);
        hvt_log_to(answer_log_fn, NULL, HVT_LOG_ERROR);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(2);
        c->call(null, odd);
        came.returned = true;
        ignored = write(way[1], &came, sizeof came);
        (void)ignored;
        _exit(0);
    }
    close(way[1]);
    for (size_t got = 0; got < sizeof *ret;) {
        ssize_t n = read(way[0], (char *)ret + got, sizeof *ret - got);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    close(way[0]);
    waitpid(child, &status, 0);
    return status;
}

static const char *name_of(const every_call *c, int i)
{
    static char name[64];
    const char *at = c->names;

    for (; i > 0 && at; i--)
        at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", at ? (int)strcspn(at, "|") : 0, at ? at : "");
    return name;
}

/* "FUNCTION ARGUMENT", with wildcards: what a header says may be NULL, or may be such a number. */
static bool is_in(const char *const *list, const char *function, const char *argument)
{
    char text[160];

    snprintf(text, sizeof text, "%s %s", function, argument);
    for (; *list; list++)
        if (fnmatch(*list, text, 0) == 0)
            return true;
    return false;
}

#include "calls_allowed.h"

/* A message names no function of the library's inside. */
static bool names_inside(const char *why)
{
    const char *at = strstr(why, "() needs");

    while (at && at > why && at[-1] != ' ')
        at--;
    return strstr(why, "hvt__") || (at && strncmp(at, "hvt_", 4));
}

static void judge(const every_call *c, const char *stage, int null, int odd, fails succeeds)
{
    const char *argument = null == NONE && odd == NONE ? ""
                           : null == ALL               ? "*"
                                                       : name_of(c, null == NONE ? odd : null);
    const char *what = null == NONE && odd == NONE ? "as it should be"
                       : null == NONE              ? "that cannot be"
                                                   : "NULL";
    outcome o;
    int status = try(c, null, odd, &o);

    if (!strcmp(c->name, "hvt_world_abort")) {
        CHECK(WIFEXITED(status) && !o.returned, "%s: %s(): status %x", stage, c->name, status);
        return;
    }
    CHECK(status == 0 && o.returned, "%s: %s() with %s %s: %s %d", stage, c->name, argument, what,
          WIFSIGNALED(status) ? "killed by signal" : "status",
          WIFSIGNALED(status) ? WTERMSIG(status) : status);
    if (!o.returned)
        return;
    if (c->fails == STATUS)
        CHECK(o.status == HVT_OK || (*o.why && !strchr(o.why, '\n')) || is_in(may_be_odd, c->name, argument),
              "%s: %s() with %s %s: %s without one line", stage, c->name, argument, what,
              hvt_status_name(o.status));
    CHECK(o.status == HVT_OK || !names_inside(o.why), "%s: %s(): %s", stage, c->name, o.why);
    if (null == NONE && odd == NONE)
        CHECK(o.status == HVT_OK || c->fails != succeeds || is_in(fails_here, c->name, ""),
              "%s: %s() fails: %s", stage, c->name, o.why);
    else if (null != NONE && null != ALL && c->fails)
        CHECK((succeeds ? o.status == HVT_E_ARG || o.status == HVT_E_SHAPE : o.status != HVT_OK) ||
                  is_in(may_be_null, c->name, argument),
              "%s: %s(): %s may be NULL: %s %s", stage, c->name, argument, hvt_status_name(o.status), o.why);
    else if (null == NONE && c->fails)
        CHECK(o.status != HVT_OK || is_in(may_be_odd, c->name, argument),
              "%s: %s() takes a %s that cannot be", stage, c->name, argument);
}

static void call_all(const char *stage, fails succeeds)
{
    for (const every_call *c = every_calls; c < every_calls + HVT_LEN(every_calls); c++) {
        judge(c, stage, NONE, NONE, succeeds);
        if (strchr(c->kinds, 'p'))
            judge(c, stage, ALL, NONE, succeeds);
        for (int i = 0; c->kinds[i]; i++)
            if (c->kinds[i] == 'p')
                judge(c, stage, i, NONE, succeeds);
            else if (strchr("ire", c->kinds[i]))
                judge(c, stage, NONE, i, succeeds);
    }
}

/* ---- the stages ---- */

static hvt_value begin(bool wrong)
{
    hvt_value x;

    CHECK_OK(hvt_model_create(dev, &model));
    x = hvt_input(model, 8, 8, 3);
    hvt_name(model, "conv");
    return hvt_conv2d(model, x, wrong ? -1 : 4, 3, 1, 1);
}

static void build(bool wrong)
{
    hvt_value x = begin(wrong);

    x = hvt_avgpool(model, hvt_batchnorm(model, x));
    hvt_name(model, "fc");
    x = hvt_linear(model, x, 3);
    if (wrong)
        CHECK_FAILS(hvt_model_plan(model, 2, x), E_SHAPE, "");
    else
        CHECK_OK(hvt_model_plan(model, 2, x));
}

static void open_all(void)
{
    CHECK_OK(hvt_model_init(model, 0));
    CHECK_OK(hvt_optim_create(model, &optim_opts, &optim));
    CHECK_OK(hvt_checkpoint_save(folder, "x", model, optim, &progress));
    CHECK_OK(hvt_comm_open("self", lone, dev, &comm));
    CHECK_OK(hvt_distopt_create(optim, comm, &distopt_opts, NULL, 0, &dist));
    CHECK_OK(hvt_comm_alloc(comm, 64, &block));
    CHECK_OK(hvt_fuse_create(comm, pieces, 1, 0, HVT_SUM, &fuse));
    CHECK_OK(hvt_schedule_create(&schedule_opts, &schedule));
    loader_opts.order = hvt_model_order(model);
    loader_opts.channels = hvt_model_input_channels(model);
    CHECK_OK(hvt_loader_open(set, dev, &loader_opts, &loader));
    CHECK_OK(hvt_net_open("mlp", &net_opts, NULL, &net));
}

static void close_all(void)
{
    hvt_net_close(&net);
    hvt_loader_close(&loader);
    hvt_schedule_free(&schedule);
    hvt_fuse_free(&fuse);
    hvt_comm_release(comm, block);
    block = NULL;
    hvt_distopt_free(&dist);
    hvt_comm_close(&comm);
    hvt_optim_free(&optim);
    hvt_model_free(&model);
}

TEST(where_nothing_was_made_nothing_crashes)
{
    call_all("nothing was made", NOTHING);
}

TEST(after_a_call_that_failed_nothing_crashes)
{
    build(true);
    CHECK_FAILS(hvt_optim_create(model, &optim_opts, &optim), E_ARG, "planned");
    CHECK(hvt_pt2_open("nothing.pt2", &pt2) != HVT_OK && !pt2, "there is such a file");
    call_all("planning has failed", NOTHING);
    hvt_model_free(&model);
}

TEST(while_a_model_is_built_null_and_what_cannot_be_are_mistakes)
{
    hvt_avgpool(model, begin(false));                                 /* value 2, for hvt_linear() */
    hvt_weight_numbers(model, 4, (int[]){2, 3, 1, 1}, (float *)room); /* 3 to 5: weights of layers */
    hvt_weight_numbers(model, 2, (int[]){4, 4}, (float *)room);
    hvt_weight_numbers(model, 4, (int[]){3, 2, 1, 1}, (float *)room);
    call_all("a model is built", VALUE);
    hvt_model_free(&model);
}

TEST(where_all_is_there_null_and_what_cannot_be_are_refused)
{
    build(false);
    open_all();
    call_all("all is there", STATUS);
    close_all();
}

TEST(in_the_middle_of_a_step_nothing_crashes)
{
    build(false);
    open_all();
    CHECK_OK(hvt_distopt_begin(dist, counts, 1, .1));
    CHECK_OK(hvt_model_forward(model, &batch, true));
    call_all("a step is under way", NOTHING);
    CHECK_OK(hvt_distopt_abandon(dist));
    close_all();
}

TEST(after_a_step_that_ended_the_run_nothing_crashes)
{
    build(false);
    open_all();
    memset(room, 0, sizeof room);
    for (int i = 0; i < 2 * 3 * 64; i++)
        ((float *)(void *)room)[i] = 1e30f * (float)i;
    batch.labels.data = counts; /* class 2 */
    batch.count = 1;
    counts[0] = 1;
    CHECK_OK(hvt_distopt_begin(dist, counts, 1, .1));
    ((float *)(void *)room)[3] = NAN;
    CHECK_OK(hvt_model_forward(model, &batch, true));
    CHECK_OK(hvt_model_backward(model, hvt_distopt_on_grad, dist));
    CHECK_FAILS(hvt_distopt_step(dist), E_DIVERGED, "");
    call_all("the run has ended", NOTHING);
    close_all();
}

TEST(options_of_zeros_crash_nothing)
{
    build(false);
    open_all();
    memset(&device_opts, 0, sizeof device_opts);
    memset(&dataset_opts, 0, sizeof dataset_opts);
    memset(&loader_opts, 0, sizeof loader_opts);
    memset(&optim_opts, 0, sizeof optim_opts);
    memset(&schedule_opts, 0, sizeof schedule_opts);
    memset(&distopt_opts, 0, sizeof distopt_opts);
    memset(&batch, 0, sizeof batch);
    memset(&arrays, 0, sizeof arrays);
    memset(&options, 0, sizeof options);
    memset(&conv2d_opts, 0, sizeof conv2d_opts);
    memset(&pool_opts, 0, sizeof pool_opts);
    memset(&attention_opts, 0, sizeof attention_opts);
    memset(&rotary_opts, 0, sizeof rotary_opts);
    memset(&interpolate_opts, 0, sizeof interpolate_opts);
    memset(&scale, 0, sizeof scale);
    memset(&item, 0, sizeof item);
    memset(pieces, 0, sizeof pieces);
    memset(&tensor, 0, sizeof tensor);
    memset(&net_opts, 0, sizeof net_opts);
    memset(&source, 0, sizeof source);
    call_all("options are zeros", NOTHING);
    close_all();
}

TEST(options_that_are_not_initialised_are_refused)
{
    hvt_options zeros;
    hvt_report report;

    memset(&zeros, 0, sizeof zeros);
    CHECK_FAILS(hvt_train(&zeros, lone, &report), E_ARG,
                "hvt_train(): option model is NULL: call hvt_options_default()");
    CHECK_FAILS(hvt_options_prepare(&zeros, lone), E_ARG, "call hvt_options_default()");
    hvt_options_default(&zeros);
    zeros.save = NULL;
    CHECK_FAILS(hvt_tune(&zeros, lone), E_ARG, "hvt_tune(): option save is NULL");
}

int main(void)
{
    if (!folder_make() || chdir(folder))
        return 1;
    snprintf(saved, sizeof saved, "%s", in_folder("x.safetensors"));
    hvt_options_default(&options);
    options.steps = options.threads = 1;
    options.samples = options.size = 8;
    options.batch = 2;
    options.tune_file = "tuned";
    options.quiet = true;
    RUN(where_nothing_was_made_nothing_crashes);
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_world_open("singleton", &lone));
    CHECK_OK(hvt_dataset_open("synth", &dataset_opts, &set));
    RUN(after_a_call_that_failed_nothing_crashes);
    RUN(while_a_model_is_built_null_and_what_cannot_be_are_mistakes);
    RUN(where_all_is_there_null_and_what_cannot_be_are_refused);
    RUN(in_the_middle_of_a_step_nothing_crashes);
    RUN(after_a_step_that_ended_the_run_nothing_crashes);
    RUN(options_that_are_not_initialised_are_refused);
    RUN(options_of_zeros_crash_nothing);
    hvt_dataset_close(&set);
    hvt_world_close(&lone);
    hvt_device_close(&dev);
    if (chdir("/") || !folder_remove())
        return 1;
    return check_done();
}
