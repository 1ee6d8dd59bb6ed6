/*
 * The cuda device as far as it can be tested without a GPU: cuDNN plans for GPUs that are only described
 * (tests/cuda/sm_*.json), and the file of measured plans, which survives damage and concurrent use.
 */
#include "check.h"
#include "folder.h"
#include "logged.h"
#include "../../cuda/conv_impl.h"
#include "../../cuda/cuda_impl.h"
#include "model_impl.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 128, MOST_CONVS = 256 };

/* ---- every convolution of the zoo ---- */

static hvt_conv_desc convs[MOST_CONVS];
static int conv_count;

static bool same(const hvt_conv_desc *a, const hvt_conv_desc *b)
{
    return a->h == b->h && a->w == b->w && a->c == b->c && a->k == b->k && a->r == b->r && a->s == b->s &&
           a->stride_h == b->stride_h && a->top == b->top && a->groups == b->groups && a->no_dx == b->no_dx;
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
    *ret_weights = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)(c->c / c->groups);
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

static int channels_as_are(const hvt_device *d, hvt_dtype t, int c)
{
    (void)d;
    (void)t;
    return c;
}

static void note_model(const char *name, int side, int classes, hvt_zoo_opts opts)
{
    const hvt_device_ops ops = {.name = "notes",
                                .channels = channels_as_are,
                                .memory.alloc = alloc_nothing,
                                .memory.release = release_nothing,
                                .memory.release_host = release_nothing,
                                .memory.upload = move_nothing,
                                .memory.download = move_nothing,
                                .memory.put = move_nothing,
                                .memory.zero = zero_nothing,
                                .conv.plan = note_conv,
                                .pooling.plan = note_pool,
                                .general = hvt_device_cuda.general};
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
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "cuda/%s.json", name);
    f = fopen(check_file(path), "r");
    CHECK(f, "%s cannot be read", check_file(path));
    if (!f)
        return false;
    json[fread(json, 1, sizeof json - 1, f)] = '\0';
    fclose(f);
    *ret_on = (plan_target){0};
    CHECK_OK(CUDNN(NULL, cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &ret_on->gpu)));
    if (!ret_on->gpu)
        return false;
    CHECK_OK(CUDNN(NULL, cudnnBackendSetAttribute(ret_on->gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                  CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json)));
    CHECK_OK(CUDNN(NULL, cudnnBackendFinalize(ret_on->gpu)));
    return true;
}

static conv_request wish(const hvt_conv_desc *c, hvt_dtype t, conv_pass pass)
{
    conv_request w = {.pass = pass, .conv = *c, .out = t, .ws_most = CUDNN_WORKSPACE_MOST};

    w.conv.n = BATCH;
    w.conv.cx = c->groups > 1 ? c->c : hvt_device_cuda.channels(NULL, t, c->c);
    w.conv.type = t;
    return w;
}

static const char *text_of(const conv_request *w, char *text, size_t size)
{
    const hvt_conv_desc *c = &w->conv;

    snprintf(text, size, "pass %d%s of %s%s %dx%dx%d, %d filters %dx%d, stride %d%s", w->pass,
             w->add ? " add" : "", hvt_dtype_name(c->type), w->tf32 ? " (tf32)" : "", c->h, c->w, c->cx, c->k,
             c->r, c->s, c->stride_h, w->deterministic ? ", deterministic" : "");
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
        hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
    }
}

static const hvt_conv_desc stem = {.h = 224, .w = 224, .c = 3, .k = 64, .r = 7, .s = 7, HVT_CONV_EVEN(2, 3)},
                           middle = {
                               .h = 28, .w = 28, .c = 128, .k = 128, .r = 3, .s = 3, HVT_CONV_EVEN(1, 1)};

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
            hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
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
    hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
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
    hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
}

static void free_plans(conv_plan p[], int count)
{
    for (int i = 0; i < count; i++)
        hvt__cudnn_plan_free(&p[i]);
}

TEST(every_candidate_has_a_name_of_its_own_and_is_found_by_it)
{
    for (int pass = 0; pass < CONV_PASSES; pass++) {
        conv_request w = wish(&middle, HVT_F16, (conv_pass)pass);
        conv_plan p[CUDNN_PLANS_MOST], again;
        plan_target on;
        int count = 0, n = 0, twins = 0;

        if (!describe_gpu("sm_90", &on))
            return;
        CHECK_OK(hvt__cudnn_plan(&on, &w, CUDNN_PLANS_MOST, p, &count));
        CHECK(count == CUDNN_PLANS_MOST, "pass %d: %d candidates", pass, count);
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < i; j++) {
                CHECK(strcmp(p[i].name, p[j].name), "pass %d: candidates %d and %d are both %s", pass, j, i,
                      p[i].name);
                twins += p[i].engine == p[j].engine;
            }
            w.name = p[i].name;
            CHECK_OK(hvt__cudnn_plan(&on, &w, 1, &again, &n));
            CHECK(n == 1 && !strcmp(again.name, p[i].name) && again.ws == p[i].ws, "pass %d: %s is not found",
                  pass, p[i].name);
            free_plans(&again, n);
        }
        CHECK(twins > 0, "pass %d: every candidate is another engine", pass);
        w.name = "999:1=1";
        CHECK_OK(hvt__cudnn_plan(&on, &w, 1, &again, &n));
        CHECK(n == 0, "pass %d: a configuration that cuDNN does not list is found", pass);
        free_plans(p, count);
        hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
    }
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
            w.conv.cx = stem.c;
            plain = first(&on, &w, &m);
            CHECK(n == 1 && m == 1 && padded.ws < 16 << 20 && plain.ws > 64 << 20,
                  "%s, %s: %zu bytes of workspace, %zu without padding", gpus[g], hvt_dtype_name(t),
                  padded.ws, plain.ws);
            hvt__cudnn_plan_free(&padded);
            hvt__cudnn_plan_free(&plain);
            hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
        }
}

/* ---- the vendors' libraries ---- */

/* What is loaded when a device is opened, by a name that headers alone do not prove. */
TEST(the_libraries_found_at_build_time_have_every_symbol)
{
    static const char *const name[CUDA_LIBRARIES] = {"cuBLASLt", "cuDNN", "NCCL"};

    for (int i = 0; i < CUDA_LIBRARIES; i++)
        CHECK(hvt__cuda_load((cuda_library)i) == HVT_OK, "%s: %s", name[i], hvt_last_error());
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

/* The name of the configuration that was chosen; "": none was. */
static const char *choice_of(const plan_cache *c, const char *key)
{
    static plan_choice p;

    if (!hvt__plan_cache_find(c, key, &p))
        return "";
    return p.name;
}

static bool has_choice(const plan_cache *c, const char *key, const char *name)
{
    return !strcmp(choice_of(c, key), name);
}

TEST(what_was_measured_is_found_in_the_next_run)
{
    plan_choice in = {"47:2=6,14=3", 12.5f}, out = {0};
    plan_cache *c;

    unlink(path);
    c = cache_of(path);
    CHECK(!hvt__plan_cache_find(c, "NVIDIA X, forward", &out), "found in an empty cache");
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward", in));
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward add", (plan_choice){"2", 3}));
    CHECK_OK(hvt__plan_cache_put(c, "NVIDIA X, forward add", (plan_choice){"4", 3})); /* measured again */
    hvt__plan_cache_close(&c);
    c = cache_of(path);
    CHECK(hvt__plan_cache_find(c, "NVIDIA X, forward", &out) && !strcmp(out.name, in.name) && out.us == 12.5f,
          "%s, %g us", out.name, (double)out.us);
    CHECK(has_choice(c, "NVIDIA X, forward add", "4"), "%s", choice_of(c, "NVIDIA X, forward add"));
    hvt__plan_cache_close(&c);
}

TEST(a_damaged_cache_gives_what_is_left_of_it)
{
    enum { LONG = 2 * (PLAN_KEY_MOST + PLAN_NAME_MOST) };
    char *longer = malloc(LONG + 100);
    plan_cache *c;

    write_text("hvt plans 3\n1:2=6 3.0 whole\nnonsense\n4 5\n\n5 -6.0 negative\n7 9.0 \n7 9.0 cut");
    c = cache_of(path);
    CHECK(has_choice(c, "whole", "1:2=6"), "a whole line is lost");
    CHECK(has_choice(c, "cut", ""), "a line that was cut is taken");
    CHECK(has_choice(c, "negative", "") && has_choice(c, "", ""), "a line without sense is taken");
    hvt__plan_cache_close(&c);
    write_text("hvt plans 2\n1 2 3.0 whole\n"); /* of an earlier version, which knew engines alone */
    c = cache_of(path);
    CHECK(has_choice(c, "whole", "") && has_choice(c, "3.0 whole", ""), "a file of another kind is read");
    CHECK_OK(hvt__plan_cache_put(c, "new", (plan_choice){"5", 7}));
    hvt__plan_cache_close(&c);
    c = cache_of(path);
    CHECK(has_choice(c, "new", "5"), "it is not replaced");
    hvt__plan_cache_close(&c);
    memset(longer, 'x', LONG + 99);
    memcpy(longer, "hvt plans 3\n1 3.0 ", 18);
    memcpy(longer + LONG + 80, "\n4 6.0 behind\n", 15);
    write_text(longer);
    c = cache_of(path);
    CHECK(has_choice(c, "behind", "4"), "a line too long hides the next");
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
    CHECK_OK(hvt__plan_cache_put(a, "of a", (plan_choice){"1", 0}));
    CHECK_OK(hvt__plan_cache_put(b, "of b", (plan_choice){"2", 0}));
    CHECK(has_choice(b, "of a", "1"), "b does not see what a wrote");
    hvt__plan_cache_close(&a);
    hvt__plan_cache_close(&b);
    for (int p = 0; p < 4; p++) /* at the same time: whatever is lost, the file stays whole */
        if (fork() == 0) {
            a = cache_of(path);
            for (int i = 0; i < 50; i++) {
                snprintf(key, sizeof key, "%d of %d", i, p);
                if (hvt__plan_cache_put(a, key, (plan_choice){"9", (float)p}) != HVT_OK)
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
    CHECK(has_choice(a, "of a", "1") && has_choice(a, "of b", "2"), "earlier lines are lost");
    hvt__plan_cache_close(&a);
}

TEST(a_cache_that_cannot_be_written_warns_once_and_works)
{
    plan_cache *c = cache_of("/nowhere/at/all");

    log_keep(HVT_LOG_WARN);
    CHECK_OK(hvt__plan_cache_put(c, "one", (plan_choice){"1", 0}));
    CHECK_OK(hvt__plan_cache_put(c, "two", (plan_choice){"2", 0}));
    log_release();
    CHECK(logged_lines == 1, "%d warnings", logged_lines);
    CHECK(has_choice(c, "one", "1") && has_choice(c, "two", "2"), "nothing is kept in memory");
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

    RUN(the_libraries_found_at_build_time_have_every_symbol);
    if (hvt__cuda_load(CUDA_CUBLASLT) != HVT_OK || hvt__cuda_load(CUDA_CUDNN) != HVT_OK) {
        check_skip("plans", hvt_last_error());
        return check_done();
    }
    RUN(every_convolution_of_the_zoo_has_precompiled_plans_deterministic_ones_too);
    RUN(strict_f32_and_tf32_are_different_engines);
    RUN(a_deterministic_wish_leaves_engines_out);
    RUN(every_candidate_has_a_name_of_its_own_and_is_found_by_it);
    RUN(workspace_has_its_cap_and_what_cannot_be_is_no_error);
    RUN(padded_channels_save_the_first_layers_workspace);
    return check_done();
}
