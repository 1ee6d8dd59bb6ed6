/*
 * A net inside a program: the same bits on any number of ranks, in any layout and type; what is saved
 * continues to the bit; and an error of one rank is every rank's.
 */
#include "folder.h"
#include "ranks.h"
#include "hvt/net.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALL = 23, H = 4, W = 6, C = 2, PIXELS = H * W * C, OUTPUTS = 3 };

static float x[ALL][H][W][C], targets[ALL][OUTPUTS];
static int64_t labels[ALL];
static int from, mine; /* this rank's images: [from, from + mine), none on the last of several ranks */
static char shared[sizeof folder];

static hvt_value build(void *ctx, hvt_model *m, hvt_value v)
{
    if (ctx)
        *(int *)ctx += 1;
    v = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, v, 4, 3, 1, 1)));
    return hvt_linear(m, hvt_dropout(m, hvt_flatten(m, v), 0.2), OUTPUTS);
}

static const hvt_net_opts plain = {.height = H,
                                   .width = W,
                                   .channels = C,
                                   .outputs = OUTPUTS,
                                   .build = build,
                                   .loss = {.kind = HVT_LOSS_MSE},
                                   .optim = {HVT_ADAM_DEFAULTS, .kind = HVT_OPTIM_ADAM},
                                   .lr = 0.01,
                                   .shard = 5};

static uint64_t hash_of(hvt_net *net)
{
    uint64_t hash = 0;

    CHECK_OK(hvt_model_hash(hvt_net_describe(net).model, &hash));
    return hash;
}

/* The weights after 2 epochs of the images of all ranks. */
static uint64_t trained(const hvt_net_opts *opts, const hvt_net_data *data, double *ret_loss)
{
    hvt_net *net = NULL;
    hvt_loss loss = {0};
    uint64_t hash = 0;

    CHECK_OK(hvt_net_open(NULL, opts, NULL, &net));
    if (!net)
        return 0;
    CHECK_OK(hvt_net_train(net, data, 2, &loss));
    CHECK(loss.count == ALL, "%lld images", (long long)loss.count);
    *ret_loss = loss.sum / (double)loss.count;
    hash = hash_of(net);
    hvt_net_close(&net);
    return hash;
}

static hvt_net_data as_floats(void)
{
    return (hvt_net_data){.count = mine, .images = x[from], .targets = targets[from]};
}

/* Weights on any number of ranks. */
static const struct {
    int64_t batch;
    uint64_t hash;
} golden[] = {{0, 0x9092093b0104d661}, {8, 0x0ac221b0fab55e79}};

TEST(any_number_of_ranks_has_the_same_bits)
{
    for (size_t i = 0; i < HVT_LEN(golden); i++) {
        hvt_net_opts opts = plain;
        hvt_net_data data = as_floats();
        double loss;
        uint64_t hash;

        opts.batch = golden[i].batch;
        opts.device = "ref"; /* whose bits depend on no instruction set */
        for (opts.devices = 0; opts.devices < 3; opts.devices += 2) {
            hash = trained(&opts, &data, &loss);
            CHECK(hash == golden[i].hash, "batch %d, %d devices: weights %016llx, loss %.9g", (int)opts.batch,
                  opts.devices, (unsigned long long)hash, loss);
        }
    }
}

TEST(layouts_and_types_give_the_same_bits)
{
    static double nchw[ALL][C][H][W], wide[ALL][OUTPUTS];
    hvt_net_data data = as_floats();
    double loss, other;
    uint64_t hash = trained(&plain, &data, &loss);

    for (int n = 0; n < ALL; n++)
        for (int i = 0; i < PIXELS; i++)
            nchw[n][i % C][i / C / W][i / C % W] = (double)x[n][i / C / W][i / C % W][i % C];
    for (int i = 0; i < ALL * OUTPUTS; i++)
        wide[i / OUTPUTS][i % OUTPUTS] = (double)targets[i / OUTPUTS][i % OUTPUTS];
    data = (hvt_net_data){.count = mine,
                          .images = nchw[from],
                          .type = HVT_F64,
                          .layout = HVT_NCHW,
                          .targets = wide[from],
                          .target_type = HVT_F64};
    CHECK(trained(&plain, &data, &other) == hash && other == loss, "%.9g, not %.9g", other, loss);
    data.layout = HVT_WHCN;
    CHECK(trained(&plain, &data, &other) == hash && other == loss, "%.9g, not %.9g", other, loss);
}

TEST(labels_of_any_integer_type_train)
{
    static int8_t small[ALL];
    hvt_net_opts opts = plain;
    hvt_net_data data = {.count = mine, .images = x[from], .targets = labels + from, .target_type = HVT_I64};
    double loss, other;
    uint64_t hash;

    opts.loss.kind = HVT_LOSS_CE;
    hash = trained(&opts, &data, &loss);
    for (int i = 0; i < ALL; i++)
        small[i] = (int8_t)labels[i];
    data.targets = small + from;
    data.target_type = HVT_I8;
    CHECK(trained(&opts, &data, &other) == hash && other == loss && loss < 3, "%.9g, not %.9g", other, loss);
}

static int calls;
static double last_loss;

static void count_progress(void *ctx, const hvt_net_progress *p)
{
    CHECK(ctx == &calls && p->images > 0, "%lld images", (long long)p->images);
    CHECK(p->updates == ++calls, "update %lld after %d", (long long)p->updates, calls);
    last_loss = p->loss;
}

static hvt_value build_counted(void *ctx, hvt_model *m, hvt_value v)
{
    return build(NULL, m, v);
}

TEST(progress_is_told_after_every_update)
{
    hvt_net_opts opts = plain;
    hvt_net_data data = as_floats();
    double loss;

    opts.build = build_counted;
    opts.progress = count_progress;
    opts.ctx = &calls;
    opts.batch = 8; /* 8, 8 and 7 */
    trained(&opts, &data, &loss);
    CHECK(calls == 6 && last_loss > 0, "%d calls, loss %g", calls, last_loss);
}

TEST(what_is_saved_continues_to_the_bit)
{
    hvt_net_opts opts = plain;
    hvt_net_data data = as_floats();
    hvt_net *a = NULL, *b = NULL;
    char path[sizeof shared + 8];

    snprintf(path, sizeof path, "%s/x", shared);
    opts.batch = 8;
    CHECK_OK(hvt_net_open(NULL, &opts, NULL, &a));
    CHECK_OK(hvt_net_train(a, &data, 1, NULL));
    CHECK_OK(hvt_net_save(a, path));
    opts.seed = 0;
    CHECK_OK(hvt_net_open(NULL, &opts, NULL, &b));
    CHECK(hash_of(b) != hash_of(a), "a new net has trained weights");
    CHECK(rank || !mkdir(path, 0700), "no folder %s", path); /* as a program or folder of the same name */
    CHECK_OK(hvt_net_load(b, path));
    CHECK(rank || !rmdir(path), "%s is still there", path);
    CHECK(hash_of(b) == hash_of(a), "loaded weights differ");
    CHECK_OK(hvt_net_train(a, &data, 2, NULL));
    CHECK_OK(hvt_net_train(b, &data, 2, NULL));
    CHECK(hash_of(b) == hash_of(a), "continued weights differ");
    CHECK_FAILS(hvt_net_load(b, "no/such/file"), E_IO, "no/such/file");
    CHECK(hvt_last_error_is_agreed(), "only one rank knows");
    hvt_net_close(&a);
    hvt_net_close(&b);
}

TEST(more_images_than_before_keep_the_optimizers_state)
{
    hvt_net *net = NULL;
    hvt_net_data data = as_floats(), one = data;
    hvt_loss first, last;

    one.count = rank ? 0 : 4;
    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    CHECK_OK(hvt_net_train(net, &one, 1, &first));
    CHECK(first.count == 4, "%lld images", (long long)first.count);
    for (int i = 0; i < 3; i++) { /* 5 shards, then 1 */
        CHECK_OK(hvt_net_train(net, &data, 10, &last));
        CHECK(last.count == ALL, "%lld images", (long long)last.count);
        CHECK_OK(hvt_net_train(net, &one, 1, &last));
    }
    CHECK(last.sum / 4 < first.sum / 4, "%g, then %g", first.sum / 4, last.sum / 4);
    hvt_net_close(&net);
}

TEST(a_rank_infers_alone_what_a_model_predicts)
{
    float want[ALL * OUTPUTS], got[ALL * OUTPUTS];
    double wide[ALL * OUTPUTS];
    hvt_net_data data = {.count = ALL, .images = x};
    hvt_net *net = NULL;

    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    CHECK_OK(hvt_model_predict(hvt_net_describe(net).model, (float *)x, ALL, want));
    if (rank == 0) {
        CHECK_OK(hvt_net_infer(net, &data, got, HVT_F32));
        CHECK(!memcmp(got, want, sizeof got), "logits differ: %g, not %g", (double)got[0], (double)want[0]);
        CHECK_OK(hvt_net_infer(net, &data, wide, HVT_F64));
        for (int i = 0; i < ALL * OUTPUTS; i++)
            CHECK(wide[i] == (double)want[i], "%d: %g", i, wide[i]);
        data.count = 0;
        CHECK_OK(hvt_net_infer(net, &data, NULL, HVT_F32));
    }
    hvt_net_close(&net);
}

TEST(an_error_of_one_rank_is_every_ranks)
{
    const int last = size - 1;
    hvt_net_data data = as_floats();
    hvt_net_opts opts = plain;
    hvt_net *net = NULL;

    opts.lr = rank == last ? 0 : 0.1;
    CHECK_FAILS(hvt_net_open(NULL, &opts, NULL, &net), E_ARG, "lr is 0, expected a learning rate above 0");
    CHECK(!net && hvt_last_error_is_agreed(), "a net was opened");
    CHECK_FAILS(hvt_net_open("resnet20", &plain, NULL, &net), E_ARG, "got both");
    opts.lr = 0.1;
    opts.outputs = 4;
    CHECK_FAILS(hvt_net_open(NULL, &opts, NULL, &net), E_SHAPE, "the model has 3 outputs");
    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    if (rank == last)
        data.target_type = HVT_I32;
    CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_ARG, "targets are i32, expected f16, bf16, f32 or f64");
    data = as_floats();
    if (rank == last)
        data.count = 3, data.images = NULL;
    CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_ARG, "their address is NULL");
    data = as_floats();
    if (size > 1) {
        data.type = rank == last ? HVT_U8 : HVT_F32;
        CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_MISMATCH,
                    "images are f32 on rank 0 and u8 on rank");
        data = as_floats();
    }
    data.count = 0;
    CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_ARG, "0 images on all ranks together");
    data = as_floats();
    CHECK_OK(hvt_net_train(net, &data, 1, NULL));
    hvt_net_close(&net);
}

TEST(ranks_that_make_different_calls_get_an_error)
{
    hvt_net_data data = as_floats();
    hvt_net *net = NULL;
    char path[sizeof shared + 8];

    snprintf(path, sizeof path, "%s/none", shared);
    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    CHECK_FAILS(rank == 1 ? hvt_net_load(net, path) : hvt_net_train(net, &data, 1, NULL), E_MISMATCH,
                "rank 0 trains the net, but rank 1 loads it");
    CHECK(hvt_last_error_is_agreed(), "only one rank knows");
    CHECK_OK(hvt_net_train(net, &data, 1, NULL));
    hvt_net_close(&net);
}

TEST(a_rank_that_closes_its_net_is_named)
{
    hvt_net_data data = as_floats();
    hvt_net *net = NULL;

    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    CHECK_OK(hvt_net_train(net, &data, 1, NULL));
    if (rank < size - 1)
        CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_COMM, "has left the comm");
    hvt_net_close(&net);
}

/* What this process holds: bytes of the heap, open files, threads. */
typedef struct held {
    size_t bytes;
    int files, threads;
} held;

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static held held_now(void)
{
    struct mallinfo2 m = mallinfo2();

    return (held){m.uordblks + m.hblkhd, entries("/proc/self/fd"), entries("/proc/self/task")};
}

static void live_once(void)
{
    hvt_net_data data = as_floats();
    hvt_net_opts wrong = plain;
    hvt_net *net = NULL;
    char path[sizeof shared + 8];

    snprintf(path, sizeof path, "%s/cycle", shared);
    CHECK_OK(hvt_net_open(NULL, &plain, NULL, &net));
    CHECK_OK(hvt_net_train(net, &data, 1, NULL));
    CHECK_OK(hvt_net_save(net, path));
    CHECK_OK(hvt_net_load(net, path));
    data.count = rank ? data.count : -1;
    CHECK_FAILS(hvt_net_train(net, &data, 1, NULL), E_ARG, "-1 images");
    hvt_net_close(&net);
    wrong.outputs = 4;
    CHECK_FAILS(hvt_net_open(NULL, &wrong, NULL, &net), E_SHAPE, "outputs");
}

TEST(nets_that_were_closed_hold_nothing)
{
    const int cycles = 200 / size / size;
    held before, after;

    for (int i = 0; i < 10; i++)
        live_once();
    before = held_now();
    for (int i = 0; i < cycles; i++)
        live_once();
    after = held_now();
    CHECK(after.bytes < before.bytes + (size_t)cycles * 256 + 32768 /* Open MPI's lists grow */,
          "%zu bytes more after %d nets", after.bytes - before.bytes, cycles);
    CHECK(after.files == before.files && after.threads == before.threads,
          "%d files and %d threads, were %d and %d", after.files, after.threads, before.files,
          before.threads);
}

int main(void)
{
    if (!ranks_open() || (rank == 0 && !folder_make()))
        return 1;
    memcpy(shared, folder, sizeof shared);
    CHECK_OK(hvt_world_broadcast(world, shared, sizeof shared, 0));
    from = size == 1 ? 0 : (ALL * rank + size - 2) / (size - 1);
    mine = size == 1 ? ALL : rank == size - 1 ? 0 : (ALL * (rank + 1) + size - 2) / (size - 1) - from;
    from = mine ? from : 0;
    for (int i = 0; i < ALL * PIXELS; i++)
        ((float *)x)[i] = (float)(i * 37 % 101) / 50 - 1 + (float)(i / PIXELS % OUTPUTS);
    for (int i = 0; i < ALL * OUTPUTS; i++)
        targets[i / OUTPUTS][i % OUTPUTS] = (float)((i / OUTPUTS + i) % OUTPUTS);
    for (int i = 0; i < ALL; i++)
        labels[i] = i % OUTPUTS;
    RUN(any_number_of_ranks_has_the_same_bits);
    RUN(layouts_and_types_give_the_same_bits);
    RUN(labels_of_any_integer_type_train);
    RUN(progress_is_told_after_every_update);
    RUN(what_is_saved_continues_to_the_bit);
    RUN(more_images_than_before_keep_the_optimizers_state);
    RUN(a_rank_infers_alone_what_a_model_predicts);
    RUN(an_error_of_one_rank_is_every_ranks);
    if (size > 1) {
        RUN(ranks_that_make_different_calls_get_an_error);
        RUN(a_rank_that_closes_its_net_is_named);
    }
    RUN(nets_that_were_closed_hold_nothing);
    if (rank == 0 && !folder_remove())
        return 1;
    return ranks_done();
}
