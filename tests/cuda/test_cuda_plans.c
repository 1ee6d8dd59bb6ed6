/*
 * The cuda device as far as it can be tried without a GPU: cuDNN plans for GPUs that are only described
 * (tests/cuda/sm_*.json), and what was measured about plans is kept in a file that survives damage and
 * company.
 */
#include "check.h"
#include "folder.h"
#include "logged.h"
#include "../../cuda/cuda_impl.h"
#include "model_impl.h"
#include "../../cuda/plan_cudnn.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where cuda/ is; Meson says so */
#endif

enum { BATCH = 128, MOST_CONVS = 256 };

/* ---- every convolution of the zoo ---- */

static hvt_conv_desc convs[MOST_CONVS];
static int conv_count;

static bool same(const hvt_conv_desc *a, const hvt_conv_desc *b)
{
    return a->h == b->h && a->w == b->w && a->c == b->c && a->k == b->k && a->r == b->r && a->s == b->s &&
           a->stride == b->stride && a->pad == b->pad && a->no_dx == b->no_dx;
}

/* A device on which models can be planned, and that is all: it takes down what they ask for. */
static void free_nothing(hvt_op *op)
{
    (void)op;
}

static hvt_status note_conv(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                            size_t *ret_ws)
{
    static hvt_op op = {NULL, free_nothing};
    bool known = c->h == 1 && c->w == 1; /* a matrix product */

    (void)d;
    for (int i = 0; i < conv_count && !known; i++)
        known = same(c, &convs[i]);
    if (!known && conv_count < MOST_CONVS)
        convs[conv_count++] = *c;
    *ret_op = &op;
    *ret_weights = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)c->c;
    *ret_ws = 0;
    return HVT_OK;
}

static hvt_status note_pool(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved)
{
    static hvt_op op = {NULL, free_nothing};

    (void)d;
    (void)p;
    *ret_op = &op;
    *ret_saved = 0;
    return HVT_OK;
}

static hvt_status alloc_nothing(hvt_device *d, size_t bytes, void **ret_ptr)
{
    static char somewhere[64];

    (void)d;
    (void)bytes;
    *ret_ptr = somewhere;
    return HVT_OK;
}

static void release_nothing(hvt_device *d, void *ptr)
{
    (void)d;
    (void)ptr;
}

static hvt_status move_nothing(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)src;
    (void)bytes;
    return HVT_OK;
}

static hvt_status zero_nothing(hvt_device *d, void *dst, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)bytes;
    return HVT_OK;
}

static hvt_order order_nhw(const hvt_device *d, int batch, int height, int width)
{
    (void)d;
    (void)batch;
    (void)height;
    (void)width;
    return HVT_ORDER_NHW;
}

static int channels_as_are(const hvt_device *d, hvt_dtype t, int c)
{
    (void)d;
    (void)t;
    return c;
}

static void note_model(const char *name, int side, int classes, hvt_zoo_opts opts)
{
    static const hvt_device_ops ops = {.name = "notes",
                                       .order = order_nhw,
                                       .channels = channels_as_are,
                                       .alloc = alloc_nothing,
                                       .release = release_nothing,
                                       .upload = move_nothing,
                                       .put = move_nothing,
                                       .zero = zero_nothing,
                                       .conv_plan = note_conv,
                                       .pooling_plan = note_pool};
    hvt_device d = {.ops = &ops};
    hvt_model *m = NULL;

    CHECK_OK(hvt_model_create(&d, &m));
    CHECK_OK(hvt_model_plan(m, BATCH, hvt_zoo(m, name, hvt_input(m, side, side, 3), classes, &opts)));
    hvt_model_free(&m);
}

static void note_zoo(void)
{
    for (int i = 0; hvt_zoo_name(i); i++) {
        note_model(hvt_zoo_name(i), 32, 10, (hvt_zoo_opts){.projection = false});
        note_model(hvt_zoo_name(i), 32, 10, (hvt_zoo_opts){.projection = true});
    }
    for (const char *const *name = (const char *const[]){"resnet18", "resnet50", NULL}; *name; name++)
        note_model(*name, 224, 1000, (hvt_zoo_opts){.imagenet_stem = true});
    CHECK(conv_count > 40 && conv_count < MOST_CONVS, "%d different convolutions", conv_count);
}

/* ---- GPUs ---- */

static const char *const gpus[] = {"sm_80", "sm_90", "sm_100"};

static bool describe_gpu(const char *name, plan_target *ret_on)
{
    static char json[4096];
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/cuda/%s.json", HVT_TESTS, name);
    f = fopen(path, "r");
    CHECK(f, "%s cannot be read", path);
    if (!f)
        return false;
    json[fread(json, 1, sizeof json - 1, f)] = '\0';
    fclose(f);
    *ret_on = (plan_target){0};
    CHECK_OK(hvt__cudnn_describe(json, &ret_on->gpu));
    return ret_on->gpu;
}

static conv_request wish(const hvt_conv_desc *c, hvt_dtype t, conv_pass pass)
{
    return (conv_request){.pass = pass,
                          .n = BATCH,
                          .h = c->h,
                          .w = c->w,
                          .c = hvt_device_cuda.channels(NULL, t, c->c),
                          .k = c->k,
                          .r = c->r,
                          .s = c->s,
                          .stride = c->stride,
                          .pad = c->pad,
                          .type = t,
                          .out = t,
                          .ws_most = CUDNN_WORKSPACE_MOST};
}

static const char *text_of(const conv_request *w, char *text, size_t size)
{
    snprintf(text, size, "pass %d%s of %s%s %dx%dx%d, %d filters %dx%d, stride %d%s", w->pass,
             w->add ? " add" : "", hvt_dtype_name(w->type), w->tf32 ? " (tf32)" : "", w->h, w->w, w->c, w->k,
             w->r, w->s, w->stride, w->deterministic ? ", deterministic" : "");
    return text;
}

/* The first plan for it, or count 0. */
static conv_plan first(const plan_target *on, const conv_request *w, int *ret_count)
{
    conv_plan p[CUDNN_PLANS_MOST] = {{0}};
    int count = 0;

    CHECK_OK(hvt__cudnn_plan(on, w, 1, p, &count));
    *ret_count = count;
    return p[0];
}

static void must_have_plan(const char *gpu, const plan_target *on, const conv_request *w)
{
    char text[200];
    int count;
    conv_plan p = first(on, w, &count);

    CHECK(count == 1, "%s: no plan for %s", gpu, text_of(w, text, sizeof text));
    CHECK(p.ws <= CUDNN_WORKSPACE_MOST, "%s: %zu bytes for %s", gpu, p.ws, text_of(w, text, sizeof text));
    CHECK(p.deterministic || !w->deterministic, "%s: not deterministic: %s", gpu,
          text_of(w, text, sizeof text));
    CHECK(!p.compiled, "%s: must be compiled: %s", gpu, text_of(w, text, sizeof text));
    hvt__cudnn_plan_free(&p);
}

TEST(every_convolution_of_the_zoo_has_precompiled_plans_deterministic_ones_too)
{
    static const struct {
        hvt_dtype type;
        bool tf32;
    } kinds[] = {{HVT_F32, false}, {HVT_F32, true}, {HVT_F16, false}, {HVT_BF16, false}};

    note_zoo();
    for (size_t g = 0; g < HVT_LEN(gpus); g++) {
        plan_target on;

        if (!describe_gpu(gpus[g], &on))
            continue;
        for (int i = 0; i < conv_count; i++)
            for (size_t k = 0; k < HVT_LEN(kinds); k++)
                for (int pass = 0; pass < CONV_PASSES; pass++)
                    for (int add = 0; add <= (pass == CONV_BACKWARD_X); add++)
                        for (int deterministic = 0; deterministic < 2; deterministic++) {
                            conv_request w = wish(&convs[i], kinds[k].type, (conv_pass)pass);

                            w.tf32 = kinds[k].tf32;
                            w.add = add;
                            w.deterministic = deterministic;
                            if (pass != CONV_BACKWARD_X || !convs[i].no_dx)
                                must_have_plan(gpus[g], &on, &w);
                        }
        cudnnBackendDestroyDescriptor(on.gpu);
    }
}

static const hvt_conv_desc
    stem = {.h = 224, .w = 224, .c = 3, .k = 64, .r = 7, .s = 7, .stride = 2, .pad = 3},
    middle = {.h = 28, .w = 28, .c = 128, .k = 128, .r = 3, .s = 3, .stride = 1, .pad = 1};

TEST(strict_f32_and_tf32_are_different_engines)
{
    for (size_t g = 0; g < HVT_LEN(gpus); g++)
        for (int pass = 0; pass < CONV_PASSES; pass++) {
            conv_request w = wish(&middle, HVT_F32, (conv_pass)pass);
            conv_plan strict, fast;
            plan_target on;
            int n, m;

            if (!describe_gpu(gpus[g], &on))
                continue;
            strict = first(&on, &w, &n);
            w.tf32 = true;
            fast = first(&on, &w, &m);
            CHECK(n == 1 && m == 1 && strict.engine != fast.engine, "%s, pass %d: engine %lld for both",
                  gpus[g], pass, (long long)fast.engine);
            hvt__cudnn_plan_free(&strict);
            hvt__cudnn_plan_free(&fast);
            cudnnBackendDestroyDescriptor(on.gpu);
        }
}

TEST(a_deterministic_wish_leaves_engines_out)
{
    conv_request w = wish(&middle, HVT_F32, CONV_BACKWARD_W);
    conv_plan p[CUDNN_PLANS_MOST];
    plan_target on;
    int count = 0, loose = 0;

    if (!describe_gpu("sm_90", &on))
        return;
    for (w.deterministic = false;; w.deterministic = true) {
        CHECK_OK(hvt__cudnn_plan(&on, &w, CUDNN_PLANS_MOST, p, &count));
        CHECK(count > 0, "no plan");
        for (int i = 0; i < count; i++) {
            loose += !p[i].deterministic && !w.deterministic;
            CHECK(p[i].deterministic || !w.deterministic, "engine %lld", (long long)p[i].engine);
            hvt__cudnn_plan_free(&p[i]);
        }
        if (w.deterministic)
            break;
    }
    CHECK(loose > 0, "there was nothing to leave out");
    cudnnBackendDestroyDescriptor(on.gpu);
}

TEST(workspace_has_its_cap_and_what_cannot_be_is_no_error)
{
    conv_request w = wish(&middle, HVT_F32, CONV_BACKWARD_X);
    plan_target on;
    conv_plan p;
    int count;

    if (!describe_gpu("sm_90", &on))
        return;
    w.ws_most = 1 << 20;
    p = first(&on, &w, &count);
    CHECK(count == 0 || p.ws <= w.ws_most, "%zu bytes", p.ws);
    hvt__cudnn_plan_free(&p);
    w = wish(&middle, HVT_F16, CONV_BACKWARD_W);
    w.out = HVT_F32; /* no such engine in any precompiled library up to now */
    p = first(&on, &w, &count);
    CHECK(count == 0 || p.plan, "half a plan");
    hvt__cudnn_plan_free(&p);
    cudnnBackendDestroyDescriptor(on.gpu);
}

/* With fewer channels than engines read the first layer's images are copied into padded ones. */
TEST(padded_channels_save_the_first_layers_workspace)
{
    for (size_t g = 0; g < HVT_LEN(gpus); g++)
        for (hvt_dtype t = HVT_F16; t <= HVT_BF16; t++) {
            conv_request w = wish(&stem, t, CONV_BACKWARD_W);
            plan_target on;
            conv_plan padded, plain;
            int n, m;

            if (!describe_gpu(gpus[g], &on))
                continue;
            padded = first(&on, &w, &n);
            w.c = stem.c;
            plain = first(&on, &w, &m);
            CHECK(n == 1 && m == 1 && padded.ws < 16 << 20 && plain.ws > 64 << 20,
                  "%s, %s: %zu bytes of workspace, %zu without padding", gpus[g], hvt_dtype_name(t),
                  padded.ws, plain.ws);
            hvt__cudnn_plan_free(&padded);
            hvt__cudnn_plan_free(&plain);
            cudnnBackendDestroyDescriptor(on.gpu);
        }
}

/* ---- without a GPU ---- */

TEST(without_a_gpu_the_device_says_so_in_one_line)
{
    hvt_device *d = NULL;

    CHECK(hvt_device_count("cuda") == 0, "%d devices", hvt_device_count("cuda"));
    CHECK_FAILS(hvt_device_open("cuda", NULL, &d), E_UNSUPPORTED, "no GPU");
    CHECK(!strchr(hvt_last_error(), '\n'), "%s", hvt_last_error());
}

/* ---- the cache of plans ---- */

static char path[64];

static plan_cache *cache_of(const char *file)
{
    plan_cache *c = NULL;

    CHECK_OK(hvt__plan_cache_open(file, &c));
    return c;
}

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");

    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s cannot be written", path);
}

static int place_of(const plan_cache *c, const char *key)
{
    plan_choice p = {.index = -1};

    hvt__plan_cache_find(c, key, &p);
    return p.index;
}

TEST(what_was_measured_is_found_in_the_next_run)
{
    plan_choice in = {.index = 3, .engine = 47, .us = 12.5f}, out = {0};
    plan_cache *c;

    unlink(path);
    c = cache_of(path);
    CHECK(!hvt__plan_cache_find(c, "NVIDIA X, forward", &out), "found in an empty cache");
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward", in));
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward add", (plan_choice){1, 2, 3}));
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward add", (plan_choice){4, 2, 3})); /* measured again */
    hvt__plan_cache_close(&c);
    c = cache_of(path);
    CHECK(hvt__plan_cache_find(c, "NVIDIA X, forward", &out) && out.index == 3 && out.engine == 47 &&
              out.us == 12.5f,
          "index %d, engine %lld, %g us", out.index, (long long)out.engine, (double)out.us);
    CHECK(place_of(c, "NVIDIA X, forward add") == 4, "place %d", place_of(c, "NVIDIA X, forward add"));
    hvt__plan_cache_close(&c);
}

TEST(a_damaged_cache_gives_what_is_left_of_it)
{
    char *longer = malloc(2 * PLAN_KEY_MOST + 100);
    plan_cache *c;

    write_text("hvt plans 2\n1 2 3.0 whole\nnonsense\n4 5\n\n-1 5 6.0 negative\n7 8 9.0 \n7 8 9.0 cut");
    c = cache_of(path);
    CHECK(place_of(c, "whole") == 1, "a whole line is lost");
    CHECK(place_of(c, "cut") == -1, "a line that was cut is taken");
    CHECK(place_of(c, "negative") == -1 && place_of(c, "") == -1, "a line without sense is taken");
    hvt__plan_cache_close(&c);
    write_text("something else\n1 2 3.0 whole\n");
    c = cache_of(path);
    CHECK(place_of(c, "whole") == -1, "a file of another kind is read");
    CHECK_OK(hvt__plan_cache_put(c, "new", (plan_choice){5, 6, 7}));
    hvt__plan_cache_close(&c);
    c = cache_of(path);
    CHECK(place_of(c, "new") == 5, "it is not replaced");
    hvt__plan_cache_close(&c);
    memset(longer, 'x', 2 * PLAN_KEY_MOST + 99);
    memcpy(longer, "hvt plans 2\n1 2 3.0 ", 20);
    memcpy(longer + 2 * PLAN_KEY_MOST + 80, "\n4 5 6.0 behind\n", 17);
    write_text(longer);
    c = cache_of(path);
    CHECK(place_of(c, "behind") == 4, "a line too long hides the next");
    hvt__plan_cache_close(&c);
    free(longer);
}

TEST(several_writers_keep_each_others_lines)
{
    plan_cache *a, *b;
    char key[32];

    unlink(path);
    a = cache_of(path);
    b = cache_of(path);
    CHECK_OK(hvt__plan_cache_put(a, "of a", (plan_choice){1, 0, 0}));
    CHECK_OK(hvt__plan_cache_put(b, "of b", (plan_choice){2, 0, 0}));
    CHECK(place_of(b, "of a") == 1, "b does not see what a wrote");
    hvt__plan_cache_close(&a);
    hvt__plan_cache_close(&b);
    for (int p = 0; p < 4; p++) /* at the same time: whatever is lost, the file stays whole */
        if (fork() == 0) {
            a = cache_of(path);
            for (int i = 0; i < 50; i++) {
                snprintf(key, sizeof key, "%d of %d", i, p);
                if (hvt__plan_cache_put(a, key, (plan_choice){i, p, 0}) != HVT_OK)
                    _exit(1);
            }
            hvt__plan_cache_close(&a);
            _exit(0);
        }
    for (int p = 0; p < 4; p++) {
        int how = -1;

        CHECK(wait(&how) > 0 && how == 0, "a writer failed");
    }
    a = cache_of(path);
    CHECK(place_of(a, "of a") == 1 && place_of(a, "of b") == 2, "earlier lines are lost");
    hvt__plan_cache_close(&a);
}

TEST(a_cache_that_cannot_be_written_warns_once_and_works)
{
    plan_cache *c = cache_of("/nowhere/at/all");

    log_keep(HVT_LOG_WARN);
    CHECK_OK(hvt__plan_cache_put(c, "one", (plan_choice){1, 0, 0}));
    CHECK_OK(hvt__plan_cache_put(c, "two", (plan_choice){2, 0, 0}));
    log_release();
    CHECK(logged_lines == 1, "%d warnings", logged_lines);
    CHECK(place_of(c, "one") == 1 && place_of(c, "two") == 2, "nothing is kept in memory");
    hvt__plan_cache_close(&c);
}

int main(void)
{
    if (!folder_make())
        return 1;
    snprintf(path, sizeof path, "%s/plans", folder);
    RUN(what_was_measured_is_found_in_the_next_run);
    RUN(a_damaged_cache_gives_what_is_left_of_it);
    RUN(several_writers_keep_each_others_lines);
    RUN(a_cache_that_cannot_be_written_warns_once_and_works);
    unlink(path);
    rmdir(folder);

    if (hvt__cuda_count() > 0)
        check_skip("without_a_gpu_the_device_says_so_in_one_line", "there is a GPU");
    else
        RUN(without_a_gpu_the_device_says_so_in_one_line);

    if (hvt__cuda_load(CUDA_CUBLASLT) != HVT_OK || hvt__cuda_load(CUDA_CUDNN) != HVT_OK) {
        check_skip("plans", hvt_last_error());
        return check_done();
    }
    RUN(every_convolution_of_the_zoo_has_precompiled_plans_deterministic_ones_too);
    RUN(strict_f32_and_tf32_are_different_engines);
    RUN(a_deterministic_wish_leaves_engines_out);
    RUN(workspace_has_its_cap_and_what_cannot_be_is_no_error);
    RUN(padded_channels_save_the_first_layers_workspace);
    return check_done();
}
