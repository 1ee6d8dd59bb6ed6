/*
 * The zoo against PyTorch: parameter counts, names, distributions of initial values, and ten losses of
 * training with fixed weights, on ref and on every instruction set of cpu.
 */
#include "net.h"

/* ---- values ----------------------------------------------------------------------------------------- */

static hvt_value resnet20(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "resnet20", x, 10, NULL);
}

static hvt_value resnet50(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "resnet50", x, 10, &(hvt_zoo_opts){.imagenet_stem = true});
}

static hvt_value mobilenet_v2(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "mobilenet_v2", x, 10, &(hvt_zoo_opts){.no_dropout = true});
}

static hvt_value mlp(hvt_model *m, hvt_value x)
{
    return hvt_zoo(m, "mlp", x, 10, NULL);
}

TEST(initial_values_follow_torchvisions_distributions)
{
    net n;

    if (open_net(&n, (how){.device = "cpu", .threads = 1}, resnet20, (shape){2, 32, 32, 3})) {
        hvt_model *m = n.m;

        for (int i = 0; i < m->nparam_tensors; i++) {
            const hvt_param *p = &m->param[i];
            float *x = canonical(&n, i, m->params);
            double sum = 0, square = 0, third = 0, most = 0, count = (double)p->elements, sd, bound;

            for (size_t k = 0; k < p->elements; k++) {
                sum += x[k];
                square += (double)x[k] * x[k];
                third += pow(x[k], 4);
                most = fmax(most, fabs(x[k]));
            }
            if (p->ndim == 4) {
                sd = sqrt(2.0 / (p->dim[0] * p->dim[2] * p->dim[3]));
                CHECK(fabs(sum / count) < 4 * sd / sqrt(count), "%s: mean %g", p->name, sum / count);
                CHECK(fabs(sqrt(square / count) / sd - 1) < 3 / sqrt(count), "%s: deviation %g, expected %g",
                      p->name, sqrt(square / count), sd);
                CHECK(fabs(third / count / pow(sd, 4) - 3) < 45 / sqrt(count),
                      "%s: fourth moment %g, expected 3", p->name, third / count / pow(sd, 4));
            } else if (strstr(p->name, "fc.")) {
                bound = 1 / sqrt(64);
                CHECK(most <= bound && most > bound * .7, "%s: up to %g, bound %g", p->name, most, bound);
                CHECK(p->ndim == 1 || fabs(square / count * 3 / bound / bound - 1) < .2, "%s: variance %g",
                      p->name, square / count);
            } else {
                CHECK(sum == (strstr(p->name, "weight") ? count : 0) && square == sum, "%s: sum %g", p->name,
                      sum);
            }
            free(x);
        }
        for (int i = 0; i < m->nstat; i++)
            CHECK(m->stats[m->stat[i].offset] == (strstr(m->stat[i].name, "var") ? 1 : 0), "%s: %g",
                  m->stat[i].name, (double)m->stats[m->stat[i].offset]);
        m->stats[m->stat[3].offset] = 7;
        m->tracked = 9;
        CHECK_OK(hvt_model_init(m, SEED));
        CHECK(m->stats[m->stat[3].offset] == 1 && m->tracked == 0, "statistics outlive initialisation");
    }
    close_net(&n);
}

TEST(a_dirac_convolution_begins_as_identity)
{
    hvt_conv2d_opts opts = {
        .filters = 40, .kernel_h = 3, .top = 1, .left = 1, .bottom = 1, .right = 1, .dirac = true};
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    float w[40 * 32 * 9], most = 0;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    hvt_value x = hvt_input(m, 4, 4, 32);
    hvt_name(m, "conv");
    CHECK_OK(hvt_model_plan(m, 1, hvt_avgpool(m, hvt_conv2d_with(m, x, &opts))));
    CHECK_OK(hvt_model_init(m, SEED));
    CHECK_OK(hvt_model_get(m, "conv.weight", w, HVT_LEN(w)));
    for (size_t i = 0; i < HVT_LEN(w); i++) {
        size_t k = i / (32 * 9), c = i / 9 % 32;

        if (k < 32)
            CHECK(w[i] == (k == c && i % 9 == 4), "filter %zu, channel %zu: %g", k, c, (double)w[i]);
        else
            most = fmaxf(most, fabsf(w[i]));
    }
    CHECK(most <= 1 / sqrtf(32 * 9) && most > .95f / sqrtf(32 * 9), "others up to %g", (double)most);
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

/* ---- the zoo ---------------------------------------------------------------------------------------- */

/* Source: torchvision's published counts; for the CIFAR ResNets and other heads, torch's numel(). */
TEST(zoo_models_have_the_published_numbers_of_parameters)
{
    static const struct {
        const char *name;
        int classes;
        hvt_zoo_opts opts;
        size_t parameters;
        int tensors;
    } want[] = {
        {"resnet18", 1000, {.imagenet_stem = true}, 11689512, 62},
        {"resnet34", 1000, {.imagenet_stem = true}, 21797672, 110},
        {"resnet50", 1000, {.imagenet_stem = true}, 25557032, 161},
        {"resnet101", 1000, {.imagenet_stem = true}, 44549160, 314},
        {"resnet152", 1000, {.imagenet_stem = true}, 60192808, 467},
        {"resnet50", 10, {.imagenet_stem = true}, 23528522, 161},
        {"resnext50_32x4d", 1000, {.imagenet_stem = true}, 25028904, 161},
        {"wide_resnet50_2", 1000, {.imagenet_stem = true}, 68883240, 161},
        {"resnet18", 10, {0}, 11173962, 62},
        {"resnet50", 10, {0}, 23520842, 161},
        {"resnet20", 10, {0}, 269722, 59},
        {"resnet32", 10, {0}, 464154, 95},
        {"resnet44", 10, {0}, 658586, 131},
        {"resnet56", 10, {0}, 853018, 167},
        {"resnet110", 10, {0}, 1727962, 329},
        {"resnet20", 10, {.projection = true}, 272474, 65},
        {"resnet56", 10, {.projection = true}, 855770, 173},
        {"mobilenet_v2", 1000, {.imagenet_stem = true}, 3504872, 158},
        {"mobilenet_v2", 10, {0}, 2236682, 158},
        {"airbench94", 10, {0}, 1972792, 21},
        {"mlp", 10, {0}, 1841162, 6},
    };

    for (size_t i = 0; i < HVT_LEN(want); i++) {
        hvt_device *dev = NULL;
        hvt_model *m = NULL;

        CHECK_OK(hvt_device_open("ref", NULL, &dev));
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_OK(hvt_model_plan(
            m, 1, hvt_zoo(m, want[i].name, hvt_input(m, 32, 32, 3), want[i].classes, &want[i].opts)));
        CHECK(hvt_model_parameters(m) == want[i].parameters, "%s: %zu parameters, expected %zu", want[i].name,
              hvt_model_parameters(m), want[i].parameters);
        CHECK(m->nparam_tensors == want[i].tensors, "%s: %d tensors, expected %d", want[i].name,
              m->nparam_tensors, want[i].tensors);
        CHECK(hvt_model_classes(m) == want[i].classes, "%s: %d classes", want[i].name, hvt_model_classes(m));
        hvt_model_free(&m);
        hvt_device_close(&dev);
    }
}

/* Padding keeps every map of these models at one pixel or more. */
TEST(zoo_models_take_images_of_one_pixel)
{
    net n;

    if (open_net(&n, (how){.device = "cpu", .threads = 1}, resnet20, (shape){3, 1, 1, 3})) {
        CHECK(isfinite(train_loss(&n)), "loss %g", train_loss(&n));
        CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
    }
    close_net(&n);
    if (open_net(&n, (how){.device = "cpu", .threads = 1}, resnet50, (shape){2, 1, 2, 1})) {
        CHECK(isfinite(train_loss(&n)), "loss %g", train_loss(&n));
        CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
    }
    close_net(&n);
}

/* ---- golden files ----------------------------------------------------------------------------------- */

static FILE *open_golden(const char *name)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "golden/%s", name);
    f = fopen(check_file(path), "r");
    CHECK(f, "%s cannot be read", check_file(path));
    return f;
}

/* The next line that is no comment, without its newline; false at the end. */
static bool next_line(FILE *f, char *line, int room)
{
    while (fgets(line, room, f))
        if (line[0] != '#') {
            line[strcspn(line, "\n")] = 0;
            return true;
        }
    return false;
}

/* "name dim dim ..." of the state_dict's entries in tape order; returns how many. `nth` is written to text.
 */
static int entry(const hvt_model *m, int nth, char *text, size_t room)
{
    int n = 0;

    for (int i = 0; i < m->nlayer; i++) {
        const hvt_layer *l = &m->layer[i];

        for (int k = 0; k < HVT_LAYER_PARAMS && l->param[k] >= 0; k++)
            if (n++ == nth) {
                const hvt_param *p = &m->param[l->param[k]];
                int used = snprintf(text, room, "%s", p->name);

                for (int d = 0; d < p->ndim; d++)
                    used += snprintf(text + used, room - (size_t)used, " %d", p->dim[d]);
            }
        for (int k = 0; k < 2 && l->stat >= 0; k++)
            if (n++ == nth)
                snprintf(text, room, "%s %zu", m->stat[l->stat + k].name, m->stat[l->stat + k].count);
    }
    return n;
}

/* Source: golden/names.txt by torchvision. */
TEST(names_and_shapes_are_torchvisions)
{
    char line[160], text[160], name[32];
    FILE *f = open_golden("names.txt");
    hvt_device *dev = NULL;
    hvt_model *m = NULL;
    int classes, at = 0, models = 0;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    while (f && next_line(f, line, sizeof line)) {
        if (sscanf(line, "model %31s %d", name, &classes) == 2) {
            CHECK(!m || entry(m, -1, text, sizeof text) == at, "the state_dict has more entries than %d", at);
            hvt_model_free(&m);
            CHECK_OK(hvt_model_create(dev, &m));
            CHECK_OK(hvt_model_plan(
                m, 1,
                hvt_zoo(m, name, hvt_input(m, 32, 32, 3), classes, &(hvt_zoo_opts){.imagenet_stem = true})));
            at = 0;
            models++;
            continue;
        }
        strcpy(text, "nothing");
        entry(m, at++, text, sizeof text);
        CHECK(!strcmp(text, line), "%s, entry %d: '%s', expected '%s'", name, at, text, line);
    }
    CHECK(models == 6 && entry(m, -1, text, sizeof text) == at, "%d models; the last has %d of %d entries",
          models, entry(m, -1, text, sizeof text), at);
    hvt_model_free(&m);
    hvt_device_close(&dev);
    if (f)
        fclose(f);
}

enum { GOLDEN_STEPS = 10 };
#ifdef __SANITIZE_ADDRESS__
enum { RUN_STEPS = 2 }; /* it looks at addresses, and ten steps would take it minutes */
#else
enum { RUN_STEPS = GOLDEN_STEPS };
#endif

/* As fill() in golden/make_losses.py. */
static void fill_golden(net *n)
{
    hvt_model *m = n->m;
    int fan_in = 1; /* of the linear layer whose bias this is */

    for (int i = 0; i < m->nparam_tensors; i++) { /* the arena lies in the state_dict's order, reversed */
        const hvt_param *p = &m->param[m->nparam_tensors - 1 - i];
        float *w = malloc(p->elements * sizeof *w), bound = 0;

        if (p->ndim == 4)
            bound = (float)sqrt(6.0 / ((double)p->dim[0] * p->dim[2] * p->dim[3]));
        else if (p->ndim == 2 || p->role == HVT_ROLE_BIAS)
            bound = (float)(1 / sqrt((double)(fan_in = p->ndim == 2 ? p->dim[1] : fan_in)));
        for (size_t k = 0; k < p->elements; k++)
            w[k] = bound > 0 ? bound * (2 * hvt__unit(hvt__draw(SEED, 3, (uint64_t)i, k)) - 1)
                   : strstr(p->name, "bn3.weight") ? 0.125f
                   : strstr(p->name, "weight")     ? 1
                                                   : 0;
        CHECK_OK(hvt__model_import(m, p, m->params, w));
        free(w);
    }
}

static void check_golden(how by, build_fn *build, int batch, float lr, const double *want)
{
    net n;

    if (open_net(&n, by, build, (shape){batch, 32, 32, 3})) {
        hvt_model *m = n.m;
        size_t first = m->step_stats_count, count = m->arena_count - first;
        float *v = NULL;

        CHECK_OK(n.ops->memory.alloc(n.dev, count * sizeof *v, (void **)&v));
        fill_golden(&n);
        for (int step = 0; step < RUN_STEPS; step++) {
            hvt_step_state state = {.lr = lr, .grad_scale = 1.0f / (float)batch, .apply = 1, .fresh = !step};
            hvt_sgd_args sgd = {.momentum = .9f, .step = &state};
            double loss, limit = step ? 1e-3 : 1e-5;

            feed(&n, step * batch, batch);
            loss = train_loss(&n) / batch;
            CHECK(fabs(loss / want[step] - 1) <= limit, "%s, batch %d, step %d: loss %.7f, PyTorch %.7f",
                  way_name(by), batch, step + 1, loss, want[step]);
            CHECK_OK(hvt_model_backward(m, NULL, NULL));
            CHECK_OK(n.ops->vector.sgd(n.dev, count, &sgd, (const float *[]){m->grads + first}, 1,
                                       m->params + first, v));
            hvt__model_changed(m);
        }
        n.ops->memory.release(n.dev, v);
    }
    close_net(&n);
}

static build_fn *builder(const char *name)
{
    return !strcmp(name, "resnet20")       ? resnet20
           : !strcmp(name, "mobilenet_v2") ? mobilenet_v2
           : !strcmp(name, "mlp")          ? mlp
                                           : resnet50;
}

/* Source: golden/losses.txt by PyTorch, in f64. */
TEST(ten_steps_give_pytorchs_losses)
{
    FILE *f = open_golden("losses.txt");
    char line[512], name[32];
    int models = 0;

    for (; f && next_line(f, line, sizeof line); models++) {
        double want[GOLDEN_STEPS];
        int batch = 0, used = 0, at = 0, n = 0;
        float lr = 0;
        build_fn *build;

        CHECK(sscanf(line, "%31s %d %f%n", name, &batch, &lr, &at) == 3, "%s", line);
        while (n < GOLDEN_STEPS && sscanf(line + at, "%lf%n", &want[n], &used) == 1) {
            at += used;
            n++;
        }
        CHECK(n == GOLDEN_STEPS, "%d losses: %s", n, line);
        build = builder(name);
        if (build == resnet20 || build == mlp) /* the others take ref minutes */
            check_golden(ref, build, batch, lr, want);
        for (int set = 0; set < hvt_cpu_isa_count(); set++)
            if (hvt_cpu_isa_supported(set))
                check_golden((how){.device = "cpu", .isa = hvt_cpu_isa_name(set), .threads = 1}, build, batch,
                             lr, want);
    }
    CHECK(models == 4, "%d models", models);
    if (f)
        fclose(f);
}

int main(void)
{
    RUN(initial_values_follow_torchvisions_distributions);
    RUN(a_dirac_convolution_begins_as_identity);
    RUN(zoo_models_have_the_published_numbers_of_parameters);
    RUN(zoo_models_take_images_of_one_pixel);
    RUN(names_and_shapes_are_torchvisions);
    RUN(ten_steps_give_pytorchs_losses);
    return check_done();
}
