/*
 * handles: a program that embeds the library passes NULL, closes things in the wrong order, and uses labels
 * without a class. Each is an error or one line of log; nothing crashes, and no invalid memory is read.
 */
#include "base_impl.h"
#include "check.h"
#include "device_impl.h"
#include "logged.h"
#include "hvt/hvt.h"
#include "model_impl.h"
#include "optim_impl.h"

#include <math.h>

static hvt_device *dev;
static hvt_world *lone;

#define REFUSES(call) CHECK_FAILS(call, E_ARG, "")

TEST(what_needs_a_device_refuses_null)
{
    hvt_device *none = NULL, *made = NULL;
    hvt_device_info info = {.bytes = 5};
    char byte = 0;

    REFUSES(hvt_device_open(NULL, NULL, &made));
    REFUSES(hvt_device_open("ref", NULL, NULL));
    hvt_device_close(NULL);
    hvt_device_close(&none);
    CHECK(!*hvt_device_name(NULL) && !*hvt_device_isa(NULL) && !hvt_device_threads(NULL), "NULL has a name");
    hvt_device_describe(NULL, &info);
    CHECK(!info.bytes, "NULL has %lld bytes", (long long)info.bytes);
    hvt_device_describe(dev, NULL);
    CHECK(!hvt_device_count(NULL), "NULL can be opened");
    hvt_device_order(NULL, 1, 1, 1);
    REFUSES(hvt_device_upload(NULL, &byte, &byte, 1));
    REFUSES(hvt_device_upload(dev, NULL, &byte, 1));
    REFUSES(hvt_device_upload(dev, &byte, NULL, 1));
    REFUSES(hvt_device_download(NULL, &byte, &byte, 1));
    REFUSES(hvt_device_download(dev, NULL, &byte, 1));
    REFUSES(hvt_device_download(dev, &byte, NULL, 1));
    REFUSES(hvt_device_sync(NULL));
    CHECK(!hvt_cpu_isa_name(-1) || *hvt_cpu_isa_name(0), "no name");
    CHECK(!hvt_cpu_isa_supported(-1) && !hvt_cpu_isa_supported(1000), "sets that are none are supported");
}

TEST(what_needs_data_refuses_null)
{
    hvt_dataset_opts drawn = {.train = true, .samples = 20, .image_size = 8};
    hvt_dataset *set = NULL, *made = NULL;
    hvt_loader_opts opts = {.batch = 4, .shards = 1, .shard_count = 1, .std = {1, 1, 1}};
    hvt_loader *loader = NULL;
    hvt_source nothing = {0};
    hvt_batch batch;
    uint8_t pixels[3 * 64];
    int label;
    bool end;

    REFUSES(hvt_dataset_open(NULL, &drawn, &made));
    REFUSES(hvt_dataset_open("synth", NULL, &made));
    REFUSES(hvt_dataset_open("synth", &drawn, NULL));
    REFUSES(hvt_dataset_from(NULL, 0, &made));
    REFUSES(hvt_dataset_from(&nothing, 0, &made));
    REFUSES(hvt_dataset_from(&nothing, 0, NULL));
    hvt_dataset_close(NULL);
    hvt_dataset_close(&made);
    CHECK(!hvt_dataset_describe(NULL), "NULL is described");
    REFUSES(hvt_dataset_get(NULL, 0, pixels, &label));
    CHECK_OK(hvt_dataset_open("synth", &drawn, &set));
    REFUSES(hvt_dataset_get(set, 0, NULL, &label));
    REFUSES(hvt_dataset_get(set, 0, pixels, NULL));
    hvt_sampler_permutation(0, 0, 5, NULL);
    CHECK(!hvt_sampler_count(5, 0, 0, HVT_LAST_BATCH_KEEP) && !hvt_sampler_at(0, 1, 0, 0),
          "no shard has images");
    REFUSES(hvt_loader_open(NULL, dev, &opts, &loader));
    REFUSES(hvt_loader_open(set, NULL, &opts, &loader));
    REFUSES(hvt_loader_open(set, dev, NULL, &loader));
    REFUSES(hvt_loader_open(set, dev, &opts, NULL));
    hvt_loader_close(NULL);
    hvt_loader_close(&loader);
    CHECK(!hvt_loader_steps(NULL) && !hvt_loader_copies(NULL, &opts), "NULL has steps");
    CHECK(!hvt_loader_copies(hvt_dataset_describe(set), NULL), "images for nobody");
    REFUSES(hvt_loader_rewind(NULL, 0, 0));
    CHECK_OK(hvt_loader_open(set, dev, &opts, &loader));
    REFUSES(hvt_loader_next(NULL, &batch, &end));
    REFUSES(hvt_loader_next(loader, NULL, &end));
    REFUSES(hvt_loader_next(loader, &batch, NULL));
    hvt_loader_close(&loader);
    hvt_dataset_close(&set);
}

static hvt_model *planned(int batch, int classes, hvt_status *ret_s)
{
    hvt_model *m = NULL;
    hvt_value x;

    CHECK_OK(hvt_model_create(dev, &m));
    x = hvt_linear(m, hvt_avgpool(m, hvt_conv2d(m, hvt_input(m, 4, 4, 3), 4, 3, 1, 1)), classes);
    *ret_s = hvt_model_plan(m, batch, x);
    return m;
}

TEST(what_needs_a_model_refuses_null)
{
    hvt_model *m = NULL, *none = NULL;
    hvt_optim *optim = NULL;
    hvt_optim_opts sgd = {0};
    hvt_loss loss;
    hvt_status s;
    uint64_t hash;
    int32_t place[4];
    float losses[4];

    REFUSES(hvt_model_create(NULL, &none));
    REFUSES(hvt_model_create(dev, NULL));
    hvt_model_free(NULL);
    hvt_model_free(&none);
    hvt_name(NULL, "a");
    CHECK(hvt_input(NULL, 1, 1, 1) < 0 && hvt_conv2d(NULL, 0, 1, 1, 1, 0) < 0 && hvt_batchnorm(NULL, 0) < 0 &&
              hvt_relu(NULL, 0) < 0 && hvt_add(NULL, 0, 0) < 0 && hvt_maxpool(NULL, 0, 1, 1, 0) < 0 &&
              hvt_avgpool(NULL, 0) < 0 && hvt_subsample(NULL, 0, 1, 1) < 0 && hvt_linear(NULL, 0, 1) < 0 &&
              hvt_zoo(NULL, "resnet20", 0, 10, NULL) < 0,
          "NULL gets layers");
    CHECK(!hvt_zoo_name(-1) && !hvt_zoo_name(1000), "a model that is none has a name");
    REFUSES(hvt_model_set_type(NULL, HVT_F32));
    REFUSES(hvt_model_plan(NULL, 1, 0));
    hvt_model_order(NULL);
    CHECK(hvt_model_input_type(NULL) == HVT_F32 && !hvt_model_input_channels(NULL) &&
              !hvt_model_parameters(NULL) && !hvt_model_bytes(NULL) && !hvt_model_memory(NULL).parameters &&
              !hvt_model_classes(NULL),
          "NULL has something");
    REFUSES(hvt_model_init(NULL, 0));
    REFUSES(hvt_model_forward(NULL, &(hvt_batch){0}, true));
    REFUSES(hvt_model_backward(NULL, NULL, NULL));
    REFUSES(hvt_model_take_loss(NULL, &loss));
    REFUSES(hvt_model_rows(NULL, losses, place));
    REFUSES(hvt_model_hash(NULL, &hash));
    m = planned(4, 3, &s);
    CHECK_OK(s);
    hvt_name(m, NULL);
    REFUSES(hvt_model_forward(m, NULL, true));
    REFUSES(hvt_model_take_loss(m, NULL));
    REFUSES(hvt_model_rows(m, NULL, place));
    REFUSES(hvt_model_rows(m, losses, NULL));
    REFUSES(hvt_model_hash(m, NULL));
    REFUSES(hvt_optim_create(NULL, &sgd, &optim));
    REFUSES(hvt_optim_create(m, NULL, &optim));
    REFUSES(hvt_optim_create(m, &sgd, NULL));
    REFUSES(hvt_optim_group(NULL, "fc", 1, 0));
    hvt_optim_free(NULL);
    hvt_optim_free(&optim);
    hvt_model_free(&m);
}

TEST(what_needs_an_optimizer_refuses_null)
{
    hvt_schedule *schedule = NULL;
    hvt_schedule_opts opts = {.lr = .1};
    hvt_distopt *dist = NULL;
    hvt_graph *graph = NULL;
    hvt_comm *comm = NULL;
    const size_t *bytes;
    int count = 1;

    REFUSES(hvt_schedule_create(NULL, &schedule));
    REFUSES(hvt_schedule_create(&opts, &schedule));
    REFUSES(hvt_schedule_create(&opts, NULL));
    hvt_schedule_free(NULL);
    hvt_schedule_free(&schedule);
    CHECK(hvt_schedule_lr(NULL, 0, 0, 1) == 0, "NULL has a rate");
    CHECK_OK(hvt_comm_open("self", lone, dev, &comm));
    REFUSES(hvt_distopt_create(NULL, comm, &(hvt_distopt_opts){.local_shards = 1}, NULL, 0, &dist));
    REFUSES(hvt_distopt_create(NULL, NULL, NULL, NULL, 0, NULL));
    hvt_comm_close(&comm);
    hvt_distopt_free(NULL);
    hvt_distopt_free(&dist);
    hvt_distopt_discard(NULL);
    REFUSES(hvt_distopt_replan(NULL, 0, 0));
    REFUSES(hvt_distopt_broadcast(NULL, 0));
    REFUSES(hvt_distopt_gather(NULL, 0));
    REFUSES(hvt_distopt_use_average(NULL, true));
    REFUSES(hvt_distopt_look_ahead(NULL, 0));
    REFUSES(hvt_distopt_begin(NULL, &count, 1, .1));
    REFUSES(hvt_distopt_on_grad(NULL, 0, 1));
    REFUSES(hvt_distopt_step(NULL));
    REFUSES(hvt_distopt_abandon(NULL));
    CHECK(hvt_distopt_uncapturable(NULL), "NULL can be recorded");
    REFUSES(hvt_distopt_capture(NULL));
    REFUSES(hvt_distopt_capture_end(NULL, &graph));
    REFUSES(hvt_distopt_replay(NULL, graph));
    hvt_graph_free(NULL);
    hvt_graph_free(&graph);
    REFUSES(hvt_distopt_check(NULL));
    CHECK(!hvt_distopt_stopped(NULL) && hvt_distopt_take_exposed(NULL) == 0 && !hvt_distopt_skipped(NULL) &&
              !hvt_distopt_bytes(NULL) && !hvt_distopt_averages(NULL) && !hvt_distopt_state_bytes(NULL) &&
              hvt_distopt_update(NULL) == HVT_UPDATE_AUTO && hvt_distopt_loss_scale(NULL) == 1 &&
              !hvt_distopt_buckets(NULL, &bytes),
          "NULL has something");
}

TEST(what_trains_refuses_null)
{
    hvt_options opts;
    hvt_report report;
    hvt_progress progress;
    hvt_loss loss;
    hvt_status s;
    hvt_model *m = planned(4, 3, &s);

    CHECK_OK(s);
    hvt_options_default(NULL);
    hvt_options_default(&opts);
    REFUSES(hvt_options_parse(2, NULL, &opts));
    REFUSES(hvt_options_parse(0, NULL, NULL));
    REFUSES(hvt_options_set(NULL, "lr", "1"));
    REFUSES(hvt_options_set(&opts, NULL, "1"));
    REFUSES(hvt_options_set(&opts, "lr", NULL));
    REFUSES(hvt_options_prepare(NULL, lone));
    REFUSES(hvt_options_prepare(&opts, NULL));
    hvt_options_release(NULL);
    REFUSES(hvt_train(NULL, lone, &report));
    REFUSES(hvt_train(&opts, NULL, &report));
    REFUSES(hvt_train(&opts, lone, NULL));
    REFUSES(hvt_tune(NULL, lone));
    REFUSES(hvt_tune(&opts, NULL));
    REFUSES(hvt_evaluate(NULL, NULL, lone, &loss));
    REFUSES(hvt_evaluate(m, NULL, lone, &loss));
    REFUSES(hvt_weights_load(NULL, m, false));
    REFUSES(hvt_weights_load("weights", NULL, false));
    REFUSES(hvt_checkpoint_save(NULL, "last", m, NULL, &progress));
    REFUSES(hvt_checkpoint_save("/", NULL, m, NULL, &progress));
    REFUSES(hvt_checkpoint_save("/", "last", NULL, NULL, &progress));
    REFUSES(hvt_checkpoint_save("/", "last", m, NULL, NULL));
    REFUSES(hvt_checkpoint_load(NULL, m, NULL, &progress));
    REFUSES(hvt_checkpoint_load("/", m, NULL, NULL));
    hvt_model_free(&m);
}

TEST(small_things_refuse_what_is_none)
{
    CHECK(hvt_tensor_count(NULL) == 0, "NULL has elements");
    CHECK(hvt_dtype_size((hvt_dtype)99) == 0 && *hvt_dtype_name((hvt_dtype)99), "type 99 has a size");
    CHECK(*hvt_status_name((hvt_status)99) && *hvt_status_text((hvt_status)99), "status 99 has no name");
}

/* ---- members of options that cannot be ---------------------------------------------------------------- */

static void refuses_loader(hvt_dataset *set, hvt_loader_opts o, const char *what)
{
    hvt_loader *loader = NULL;
    hvt_status s = hvt_loader_open(set, dev, &o, &loader);

    CHECK(s == HVT_E_ARG && *hvt_last_error(), "a loader with %s: %s %s", what, hvt_status_name(s),
          hvt_last_error());
    hvt_loader_close(&loader);
}

TEST(options_of_data_that_cannot_be_are_refused)
{
    const hvt_loader_opts good = {.batch = 4, .shards = 1, .shard_count = 1, .std = {1, 1, 1}};
    static const hvt_dataset_opts bad[] = {{.samples = 20, .image_size = 8, .val_split = NAN},
                                           {.samples = 20, .image_size = 8, .val_split = -.1},
                                           {.samples = 20, .image_size = 8, .val_split = 1},
                                           {.samples = 20, .image_size = 8, .val_split = INFINITY},
                                           {.samples = 20, .image_size = -8},
                                           {.samples = 20, .image_size = 8, .classes = -1},
                                           {.samples = 20, .image_size = 8, .classes = 1}};
    hvt_dataset_opts drawn = {.train = true, .samples = 20, .image_size = 8};
    hvt_dataset *set = NULL;
    hvt_loader_opts o;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        hvt_status s = hvt_dataset_open("synth", &bad[i], &set);

        CHECK(s == HVT_E_ARG, "options %zu of a data set: %s", i, hvt_status_name(s));
        hvt_dataset_close(&set);
    }
    CHECK_OK(hvt_dataset_open("synth", &drawn, &set));
#define LOADER(member, value)                                                                                \
    do {                                                                                                     \
        o = good;                                                                                            \
        o.member = value;                                                                                    \
        refuses_loader(set, o, #member " " #value);                                                          \
    } while (0)
    LOADER(batch, 0);
    LOADER(batch, -1);
    LOADER(shards, 0);
    LOADER(shards, -1);
    LOADER(first_shard, -1);
    LOADER(first_shard, 1);
    LOADER(shard_count, -1);
    LOADER(shard_count, 2);
    LOADER(last_batch, (hvt_last_batch)99);
    LOADER(height, -1);
    LOADER(width, -1);
    LOADER(resize, -1);
    LOADER(crop, -1);
    LOADER(mean[1], NAN);
    LOADER(mean[0], INFINITY);
    LOADER(std[0], 0);
    LOADER(std[1], NAN);
    LOADER(std[2], -1);
    LOADER(order, (hvt_order)99);
    LOADER(type, HVT_I32);
    LOADER(type, (hvt_dtype)99);
    LOADER(channels, -1);
    LOADER(channels, 2);
    LOADER(workers, -1);
    LOADER(epochs, -1);
    LOADER(ncpus, -1);
    LOADER(ncpus, 1);
    LOADER(skip_damaged, -1);
    LOADER(rrc, ((hvt_rrc){true, NAN, 1, .75f, 1.3f}));
    LOADER(rrc, ((hvt_rrc){true, 0, 1, .75f, 1.3f}));
    LOADER(rrc, ((hvt_rrc){true, .1f, 2, .75f, 1.3f}));
    LOADER(rrc, ((hvt_rrc){true, .1f, 1, NAN, 1.3f}));
    LOADER(rrc, ((hvt_rrc){true, .1f, 1, .75f, INFINITY}));
    LOADER(rrc, ((hvt_rrc){true, .1f, 1, 0, 1}));
    hvt_dataset_close(&set);
}

TEST(options_of_the_world_and_of_models_that_cannot_be_are_refused)
{
    static const hvt_stall stalls[] = {{NAN, 1}, {1, NAN}, {-1, 1}, {1, -1}, {5, 1}};
    static const hvt_loss_opts losses[] = {{HVT_LOSS_CE, NAN},
                                           {HVT_LOSS_CE, -.1f},
                                           {HVT_LOSS_CE, 1.1f},
                                           {HVT_LOSS_MSE, .1f},
                                           {(hvt_loss_kind)99, 0}};
    static const hvt_device_opts devices[] = {{.threads = -1},   {.threads = HVT_MAX_THREADS + 1},
                                              {.ncpus = -1},     {.ncpus = 1},
                                              {.conv_tile = 3},  {.conv_tile = -1},
                                              {.isa = "no such"}};
    hvt_device *made = NULL;
    hvt_model *m = NULL;
    hvt_cores cores;

    for (size_t i = 0; i < HVT_LEN(stalls); i++)
        REFUSES(hvt_world_watch(lone, &stalls[i]));
    REFUSES(hvt_world_cores(lone, -1, &cores));
    REFUSES(hvt_world_cores(lone, INT_MAX, &cores));
    for (size_t i = 0; i < HVT_LEN(devices); i++) {
        hvt_status s = hvt_device_open("cpu", &devices[i], &made);

        CHECK(s == HVT_E_ARG, "options %zu of a device: %s", i, hvt_status_name(s));
        hvt_device_close(&made);
    }
    CHECK_OK(hvt_model_create(dev, &m));
    for (size_t i = 0; i < HVT_LEN(losses); i++)
        REFUSES(hvt_model_set_loss(m, &losses[i]));
    REFUSES(hvt_model_set_type(m, HVT_I32));
    REFUSES(hvt_model_set_type(m, (hvt_dtype)99));
    hvt_model_free(&m);
}

/* Pointers in structs. */
TEST(members_that_are_missing_are_refused)
{
    const hvt_item items[] = {{NULL, "a"}, {"a", NULL}};
    const hvt_overlap worker = {NULL, 2, true};
    float images[4 * 4 * 4 * 3] = {0}, logits[12];
    int32_t labels[4] = {0};
    const int four[] = {4};
    hvt_batch good = {.images = {images, HVT_F32, 4, {4, 4, 4, 3}},
                      .labels = {labels, HVT_I32, 1, {4, 1, 1, 1}},
                      .count = 4,
                      .shards = 1,
                      .shard_counts = four};
    hvt_batch b;
    hvt_comm *comm = NULL;
    hvt_model *m = NULL;
    hvt_status s;
    hvt_value x;

    for (int i = 0; i < 2; i++)
        REFUSES(hvt_world_compare(lone, &items[i], 1));
    REFUSES(hvt_world_compare(lone, NULL, 1));
    CHECK_OK(hvt_comm_open("self", lone, dev, &comm));
    REFUSES(hvt_comm_overlap(comm, &worker));
    hvt_comm_close(&comm);

    CHECK_OK(hvt_model_create(dev, &m));
    x = hvt_input(m, 4, 4, 6);
    CHECK(hvt_rotary(m, x, &(hvt_rotary_opts){0, 1, 2, 1, NULL, images}) < 0, "factors from nowhere");
    CHECK(hvt_rotary(m, x, &(hvt_rotary_opts){0, 1, 2, 1, images, NULL}) < 0, "factors from nowhere");
    hvt_model_free(&m);
    CHECK_OK(hvt_model_create(dev, &m));
    x = hvt_input(m, 4, 4, 6);
    CHECK(hvt_self_attention_with(m, x, &(hvt_attention_opts){.heads = 1, .ndim = 1, .dim = {4}}) < 0,
          "a table without its elements");
    hvt_model_free(&m);

    m = planned(4, 3, &s);
    CHECK_OK(hvt_model_init(m, 0));
    b = good;
    b.images.data = NULL;
    CHECK(hvt_model_forward(m, &b, true) != HVT_OK, "images from nowhere");
    b = good;
    b.count = -1;
    CHECK(hvt_model_forward(m, &b, false) != HVT_OK, "-1 images");
    b = good;
    b.shard = -1;
    REFUSES(hvt_model_forward(m, &b, true));
    b = good;
    b.images.dtype = (hvt_dtype)99;
    CHECK(hvt_model_forward(m, &b, false) != HVT_OK, "images of type 99");
    REFUSES(hvt_batch_set(m, &(hvt_arrays){.count = 1}, &b));
    REFUSES(hvt_batch_set(m, &(hvt_arrays){.count = 1, .images = images, .type = (hvt_dtype)99}, &b));
    CHECK(hvt_batch_set(m, &(hvt_arrays){.count = -1, .images = images, .type = HVT_F32}, &b) != HVT_OK,
          "-1 images");
    REFUSES(hvt_model_predict(m, NULL, 1, logits));
    REFUSES(hvt_model_predict(m, images, -1, logits));
    hvt_model_free(&m);
}

/* ---- the order of closing -------------------------------------------------------------------------- */

/* One line that names both; then what was closed too early is still there. */
#define TOO_EARLY(call, ...)                                                                                 \
    do {                                                                                                     \
        const char *const parts[] = {__VA_ARGS__};                                                           \
                                                                                                             \
        log_forget();                                                                                        \
        call;                                                                                                \
        CHECK(logged_lines == 1, #call " logs %d lines", logged_lines);                                      \
        for (size_t i_ = 0; i_ < HVT_LEN(parts); i_++)                                                       \
            CHECK(strstr(logged, parts[i_]), #call " does not name %s: %s", parts[i_], logged);              \
    } while (0)

TEST(what_is_closed_too_early_says_who_uses_it_and_harms_nothing)
{
    hvt_dataset_opts drawn = {.train = true, .samples = 20, .image_size = 8};
    hvt_loader_opts opts = {.batch = 4, .shards = 1, .shard_count = 1, .std = {1, 1, 1}};
    hvt_device *first = NULL;
    hvt_model *m = NULL;
    hvt_optim *o = NULL;
    hvt_dataset *set = NULL;
    hvt_loader *loader = NULL;
    hvt_distopt *d = NULL;
    hvt_comm *comm = NULL;
    hvt_batch batch;
    hvt_value x;
    bool end;

    CHECK_OK(hvt_device_open("cpu", NULL, &first));
    CHECK_OK(hvt_model_create(first, &m));
    x = hvt_linear(m, hvt_avgpool(m, hvt_conv2d(m, hvt_input(m, 8, 8, 3), 4, 3, 1, 1)), 10);
    CHECK_OK(hvt_model_plan(m, 4, x));
    CHECK_OK(hvt_model_init(m, 0));
    CHECK_OK(hvt_optim_create(m, &(hvt_optim_opts){.momentum = .9f}, &o));
    CHECK_OK(hvt_comm_open("self", lone, first, &comm));
    CHECK_OK(hvt_distopt_create(o, comm, &(hvt_distopt_opts){.local_shards = 1}, NULL, 0, &d));
    CHECK_OK(hvt_dataset_open("synth", &drawn, &set));
    opts.order = hvt_model_order(m);
    opts.channels = hvt_model_input_channels(m);
    CHECK_OK(hvt_loader_open(set, first, &opts, &loader));

    log_keep(HVT_LOG_ERROR);
    TOO_EARLY(hvt_device_close(&first), "device cpu", "1 model", "1 loader", "1 comm");
    TOO_EARLY(hvt_dataset_close(&set), "data set 'synth'", "1 loader");
    TOO_EARLY(hvt_model_free(&m), "model", "1 optimizer");
    TOO_EARLY(hvt_optim_free(&o), "optimizer", "1 distributed optimizer");
    CHECK(first && set && m && o, "handles are lost");
    CHECK_OK(hvt_loader_next(loader, &batch, &end));
    CHECK_OK(hvt_distopt_begin(d, batch.shard_counts, 1, .1));
    CHECK_OK(hvt_model_forward(m, &batch, true));
    CHECK_OK(hvt_model_backward(m, hvt_distopt_on_grad, d));
    CHECK_OK(hvt_distopt_step(d));

    log_forget();
    hvt_loader_close(&loader);
    hvt_distopt_free(&d);
    hvt_comm_close(&comm);
    hvt_optim_free(&o);
    hvt_model_free(&m);
    hvt_dataset_close(&set);
    hvt_device_close(&first);
    CHECK(!logged_lines && !first && !set && !m && !o, "in the right order: %s", logged);
    log_release();
}

/* ---- what a loss cannot be of ---------------------------------------------------------------------- */

TEST(a_label_outside_the_classes_is_named_with_its_image)
{
    static const int32_t wrong[] = {3, -1, 1 << 30};
    const int counts[] = {4, 4};
    const uint32_t ids[] = {70, 71, 72, 73};
    hvt_status s;
    hvt_model *m = planned(4, 3, &s);
    float images[4 * 4 * 4 * 3] = {0};
    int32_t labels[4] = {0, 1, 2, 0};
    hvt_batch b = {.images = {images, HVT_F32, 4, {4, 4, 4, 3}},
                   .labels = {labels, HVT_I32, 1, {4, 1, 1, 1}},
                   .count = 4,
                   .shard = 1,
                   .shards = 2,
                   .shard_counts = counts,
                   .ids = ids};
    char want[80];

    CHECK_OK(s);
    CHECK_OK(hvt_model_init(m, 0));
    CHECK_OK(hvt_model_forward(m, &b, true));
    for (size_t i = 0; i < HVT_LEN(wrong); i++) {
        labels[2] = wrong[i];
        snprintf(want, sizeof want, "image 2 (number 72 of its data set) of shard 1 is %d, expected 0 to 2",
                 wrong[i]);
        CHECK_FAILS(hvt_model_forward(m, &b, true), E_ARG, want);
        CHECK_FAILS(hvt_model_forward(m, &b, false), E_ARG, want);
    }
    labels[2] = 2;
    b.count = 3; /* padding is not looked at */
    labels[3] = 99;
    CHECK_FAILS(hvt_model_forward(m, &b, true), E_ARG, "holds 3 images, but its shard_counts[1] is 4");
    b.shard_counts = (const int[]){4, 3};
    CHECK_OK(hvt_model_forward(m, &b, true));
    b.shard = 2;
    CHECK_FAILS(hvt_model_forward(m, &b, true), E_ARG, "shard 2, expected 0 to 1");
    hvt_model_free(&m);
}

TEST(a_loss_over_one_class_is_refused)
{
    hvt_status s;
    hvt_model *m = planned(4, 1, &s);

    CHECK(s == HVT_E_SHAPE && strstr(hvt_last_error(), "1 class, expected 2 or more"), "%s: %s",
          hvt_status_name(s), hvt_last_error());
    hvt_model_free(&m);
}

int main(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_world_open("singleton", &lone));
    RUN(what_needs_a_device_refuses_null);
    RUN(what_needs_data_refuses_null);
    RUN(what_needs_a_model_refuses_null);
    RUN(what_needs_an_optimizer_refuses_null);
    RUN(what_trains_refuses_null);
    RUN(small_things_refuse_what_is_none);
    RUN(options_of_data_that_cannot_be_are_refused);
    RUN(options_of_the_world_and_of_models_that_cannot_be_are_refused);
    RUN(members_that_are_missing_are_refused);
    RUN(what_is_closed_too_early_says_who_uses_it_and_harms_nothing);
    RUN(a_label_outside_the_classes_is_named_with_its_image);
    RUN(a_loss_over_one_class_is_refused);
    hvt_world_close(&lone);
    hvt_device_close(&dev);
    return check_done();
}
