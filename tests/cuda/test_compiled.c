/*
 * Engines that cuDNN compiles at plan time, with the stub of libcuda (stub_libcuda.c), which only this test
 * and those of plans load; without it they are hidden.
 */
#include "check.h"
#include "../../cuda/plan_cudnn.c" /* in place of the library's: its lists, too, are looked at */

#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* where cuda/ is; Meson says so */
#endif

static plan_target describe_gpu(const char *name)
{
    static char json[4096], path[512];
    plan_target on = {0};
    FILE *f;

    snprintf(path, sizeof path, "%s/cuda/%s.json", HVT_TESTS, name);
    f = fopen(path, "r");
    CHECK(f, "%s cannot be read", path);
    if (!f)
        return on;
    json[fread(json, 1, sizeof json - 1, f)] = '\0';
    fclose(f);
    CHECK_OK(CUDNN(NULL, cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &on.gpu)));
    CHECK_OK(CUDNN(NULL, cudnnBackendSetAttribute(on.gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                  CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json)));
    CHECK_OK(CUDNN(NULL, cudnnBackendFinalize(on.gpu)));
    return on;
}

/* The name of the first engine of this heuristic's list for w that compiles; "": none. */
static void first_compiled(const plan_target *on, const conv_request *w, cudnnBackendHeurMode_t mode,
                           char name[PLAN_NAME_MOST])
{
    graph g = {.status = HVT_OK};
    descriptor all = describe_pass(&g, w), configs[CONFIGS_MOST];
    int64_t n;

    name[0] = '\0';
    finish(&g, all);
    n = list(on, all, mode, configs);
    CHECK(g.status == HVT_OK && n > 0, "no list: %s", hvt_last_error());
    for (int64_t i = 0; i < n; i++) {
        conv_plan p = {0};

        if (!name[0] && is_wanted(w, configs[i], true, &p) && finalize(on, configs[i], w->ws_most, &p)) {
            memcpy(name, p.name, sizeof p.name);
            hvt__cudnn_plan_free(&p);
        } else {
            hvt__nv.cudnnBackendDestroyDescriptor(configs[i]);
        }
    }
    free_graph(&g);
}

TEST(an_engine_that_is_compiled_is_planned_where_it_may_be)
{
    static const struct {
        const char *gpu;
        conv_pass pass;
        cudnnBackendHeurMode_t mode; /* which lists such an engine */
    } cases[] = {{"sm_80", CONV_BACKWARD_W, CUDNN_HEUR_MODE_A},
                 {"sm_80", CONV_FORWARD, CUDNN_HEUR_MODE_FALLBACK},
                 {"sm_90", CONV_FORWARD, CUDNN_HEUR_MODE_FALLBACK},
                 {"sm_100", CONV_FORWARD, CUDNN_HEUR_MODE_FALLBACK}};
    char name[PLAN_NAME_MOST];

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        plan_target on = describe_gpu(cases[i].gpu);
        conv_request w = {.pass = cases[i].pass, .out = HVT_F16, .ws_most = CUDNN_WORKSPACE_MOST};
        conv_plan p = {0};
        int count = -1;

        w.conv = (hvt_conv_desc){.type = HVT_F16, .n = 128, .h = 28, .w = 28, HVT_CONV_EVEN(1, 1)};
        w.conv.c = w.conv.cx = w.conv.k = 128;
        w.conv.r = w.conv.s = 3;
        first_compiled(&on, &w, cases[i].mode, name);
        CHECK(name[0], "%s, pass %d: no engine is compiled here: is the stub of libcuda loaded?",
              cases[i].gpu, w.pass);
        w.name = name;
        CHECK_OK(hvt__cudnn_plan(&on, &w, 1, &p, &count));
        CHECK(count == 0, "%s, pass %d: %s was compiled, which was not asked for", cases[i].gpu, w.pass,
              name);
        w.compile = true;
        CHECK_OK(hvt__cudnn_plan(&on, &w, 1, &p, &count));
        CHECK(count == 1 && p.compiled && !strcmp(p.name, name), "%s, pass %d: %d plans of %s", cases[i].gpu,
              w.pass, count, name);
        hvt__cudnn_plan_free(&p);
        hvt__nv.cudnnBackendDestroyDescriptor(on.gpu);
    }
}

int main(void)
{
    if (hvt__cuda_load(CUDA_CUBLASLT) != HVT_OK || hvt__cuda_load(CUDA_CUDNN) != HVT_OK)
        check_skip("an_engine_that_is_compiled_is_planned_where_it_may_be", hvt_last_error());
    else
        RUN(an_engine_that_is_compiled_is_planned_where_it_may_be);
    return check_done();
}
