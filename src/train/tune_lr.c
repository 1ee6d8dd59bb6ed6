/*
 * hvtrain tune lr: a learning-rate range test (Smith 2015, arXiv 1506.01186), as fastai and PyTorch Lightning
 * run it.
 *
 * The rate grows exponentially from update to update. The loss of each update is smoothed by an average with
 * bias correction. The test ends when the smoothed loss exceeds four times its minimum, or is not finite. Two
 * proposals follow: the rate at the steepest descent of the smoothed loss over log(rate), which is written to
 * the file, and a tenth of the rate at the minimum. All ranks see the same losses, so they end in the same
 * update.
 */
#include "run.h"
#include "tune_plot.h"
#include "train/predict/predict_impl.h"
#include "base/line.h"
#include "base_impl.h"

#include <math.h>
#include <unistd.h>

enum { UPDATES = 100, SKIP = 10 /* first updates, whose smoothed loss is too noisy */, ROWS = 25 };
#define LEAST    1e-6
#define MOST     10.0
#define KEPT     0.9 /* of the average, after an update */
#define DIVERGED 4.0

#define say(...) hvt__print_line(STDOUT_FILENO, __VA_ARGS__)

typedef struct range {
    run t;
    int n;                               /* updates so far */
    double rate[UPDATES], loss[UPDATES]; /* loss: smoothed */
    int steepest, least;                 /* updates of the proposals */
} range;

/* The loss of one update with this rate; NaN if it is not finite. */
static hvt_status update(run *t, double rate, double *ret_loss)
{
    bool end = false;
    hvt_loss loss;
    hvt_status s;

    HVT_TRY(hvt__step(t, rate, &end));
    if (end) {
        HVT_TRY(hvt_loader_rewind(t->train_data, ++t->at.epoch, 0));
        HVT_TRY(hvt__step(t, rate, &end));
    }
    s = hvt_distopt_check(t->dist);
    *ret_loss = NAN;
    if (s == HVT_E_DIVERGED)
        return HVT_OK;
    HVT_TRY(s);
    HVT_TRY(hvt_model_take_loss(t->model, &loss));
    *ret_loss = loss.count ? loss.sum / (double)loss.count : (double)NAN;
    return HVT_OK;
}

static hvt_status measure(range *u)
{
    double average = 0, least = INFINITY, loss;

    for (; u->n < UPDATES; u->n++) {
        const int k = u->n;

        u->rate[k] = LEAST * pow(MOST / LEAST, (double)k / (UPDATES - 1));
        HVT_TRY(update(&u->t, u->rate[k], &loss));
        average = KEPT * average + (1 - KEPT) * loss;
        u->loss[k] = average / (1 - pow(KEPT, k + 1));
        if (!isfinite(loss) || (k >= SKIP && u->loss[k] > DIVERGED * least))
            break;
        least = fmin(least, u->loss[k]);
    }
    return HVT_OK;
}

/* Finds both proposals. The slope over log(rate) is a central difference: the rates are equidistant there.
 * Only slopes before the minimum count, because the loss also falls after it has diverged. */
static hvt_status propose(range *u)
{
    double steepest = 0;

    u->least = u->steepest = -1;
    for (int k = SKIP; k < u->n; k++)
        if (u->least < 0 || u->loss[k] < u->loss[u->least])
            u->least = k;
    for (int k = SKIP; k < u->least; k++) {
        const double slope = u->loss[k + 1] - u->loss[k - 1];

        if (slope < steepest) {
            steepest = slope;
            u->steepest = k;
        }
    }
    HVT_CHECK(u->steepest >= 0, E_DIVERGED,
              "tune lr: the loss never falls between --lr %g and %g (%d updates): look at the data, or use a "
              "larger "
              "--batch",
              u->rate[0], u->rate[u->n ? u->n - 1 : 0], u->n);
    return HVT_OK;
}

static void print_losses(const range *u)
{
    enum { WIDTH = 50 };
    double low = u->loss[u->least], high = low;

    for (int k = 0; k < u->n; k++)
        high = fmax(high, u->loss[k]);
    say("lr: the smoothed loss of %d updates of %s, %d x %d images, optimizer %s\n  %-10s %10s", u->n,
        u->t.opts->model, u->t.set.shards, u->t.set.batch, u->t.opts->optimizer, "lr", "loss");
    for (int row = 0; row < ROWS && row < u->n; row++) {
        const int k = u->n <= ROWS ? row : row * (u->n - 1) / (ROWS - 1);
        const int bar = high > low ? (int)(WIDTH * (u->loss[k] - low) / (high - low)) : 0;

        say("  %-10.2e %10.4f %.*s", u->rate[k], u->loss[k], bar + 1,
            "###################################################");
    }
    say("steepest descent: --lr %.2g (proposed); a tenth of the rate at the minimum: --lr %.2g",
        u->rate[u->steepest], u->rate[u->least] / 10);
}

static hvt_status draw(const range *u)
{
    char path[HVT_OPTION_VALUE], title[300], chosen[40], least[40];
    double x[UPDATES];
    hvt__mark mark[] = {{log10(u->rate[u->steepest]), u->loss[u->steepest], chosen},
                        {log10(u->rate[u->least]), u->loss[u->least], least}};
    hvt__line line = {x, u->loss, (size_t)u->n, 1, 0};
    hvt__chart c = {.title = title,
                    .x_name = "log10 of the learning rate",
                    .line = &line,
                    .lines = 1,
                    .mark = mark,
                    .marks = 2};

    for (int k = 0; k < u->n; k++)
        x[k] = log10(u->rate[k]);
    snprintf(chosen, sizeof chosen, "%.2g", u->rate[u->steepest]);
    snprintf(least, sizeof least, "minimum, %.2g", u->rate[u->least]);
    snprintf(path, sizeof path, "%.4000s.svg", u->t.opts->tune_file);
    snprintf(title, sizeof title, "%.80s, %d x %d images, %s: smoothed loss by learning rate",
             u->t.opts->model, u->t.set.shards, u->t.set.batch, u->t.opts->optimizer);
    HVT_TRY(hvt__tune_draw(path, &c));
    say("written: %s, a picture of these losses", path);
    return HVT_OK;
}

static hvt_status write_rate(const range *u)
{
    const char *path = u->t.opts->tune_file;
    char note[300], rate[32], *text = NULL;
    hvt__output out = {0};
    json_t *all;
    hvt_status s = HVT_OK;

    snprintf(note, sizeof note, "hvtrain tune: lr of %.80s, %d x %d images, optimizer %s", u->t.opts->model,
             u->t.set.shards, u->t.set.batch, u->t.opts->optimizer);
    snprintf(rate, sizeof rate, "%.2g", u->rate[u->steepest]);
    all = json_pack("{s:s, s:o}", "note", note, "lr", json_real(strtod(rate, NULL)));
    text = all ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(all);
    HVT_CHECK_OR(done, text, E_MEM, "no memory for the result of tune lr");
    HVT_TRY_OR(done, hvt__output_open(&out, HVT__TUNED, "tune lr", path));
    HVT_TRY_OR(done, hvt__output_put(&out, text, strlen(text)));
    HVT_TRY_OR(done, hvt__output_put(&out, "\n", 1));
    HVT_TRY_OR(done, hvt__output_finish(&out));
    HVT_TRY_OR(done, hvt__output_replace(&out));
    say("written: %s (hvtrain --config %s)", path, path);
done:
    if (s && out.flag)
        hvt__output_drop(&out);
    free(text);
    return s;
}

/* Checks that both files are new or an earlier tune's. */
static hvt_status check_files(const hvt_options *o)
{
    char picture[PATH_MAX];

    HVT_TRY(hvt__own_file_check(HVT__TUNED, "tune lr", o->tune_file));
    HVT_TRY(hvt__path(picture, "%s.svg", o->tune_file));
    return hvt__own_file_check(HVT__PICTURE, "tune lr", picture);
}

static hvt_status report(range *u)
{
    HVT_TRY(propose(u));
    print_losses(u);
    HVT_TRY(write_rate(u));
    return draw(u);
}

hvt_status hvt__tune_lr(const hvt_options *opts, hvt_world *world)
{
    range u = {.n = 0};
    hvt_status s;

    HVT_TRY(hvt__run_begin(opts, world, &u.t));
    HVT_TRY_OR(done, hvt_world_agree(world, u.t.rank == 0 ? check_files(opts) : HVT_OK));
    HVT_TRY_OR(done, hvt__setup(&u.t));
    u.t.record = false;
    HVT_TRY_OR(done, hvt_loader_rewind(u.t.train_data, 0, 0));
    HVT_TRY_OR(done, measure(&u));
    HVT_TRY_OR(done, hvt_world_agree(world, u.t.rank == 0 ? report(&u) : HVT_OK));
done:
    if (s == HVT_OK || hvt_last_error_is_agreed())
        hvt__teardown(&u.t); /* otherwise the other ranks would not take part */
    return s;
}
