/*
 * The learning rate as a function of time, without state: the text is parsed once, and the rate of any update
 * can be computed in any order. hvt/optim.h has the formulas.
 */
#include "hvt/optim.h"
#include "base_impl.h"

#include <math.h>

enum { MILESTONES = 64, EPOCH_MAX = 1000000000 };

typedef enum shape { CONSTANT, STEP, MULTISTEP, COSINE, POLY, ONE_CYCLE } shape;

struct hvt_schedule {
    shape shape;
    double lr, epochs, warmup, from;
    bool by_epoch;
    double gamma, min;  /* step, multistep; cosine, poly */
    double power, rise; /* poly; one cycle: the part in which the rate rises */
    int64_t size;       /* step */
    int64_t milestone[MILESTONES];
    int nmilestone;
};

#define EXPECT(cond, what)                                                                                   \
    HVT_CHECK(cond, E_ARG, "schedule '%s': expected %s at '%s'", text, what, *at ? at : "(the end)")

static hvt_status read_gamma(const char *text, const char *at, double *ret)
{
    const char *p = at;

    EXPECT(*at != '+' && hvt__scan_number(&p, ret) && *ret > 0, "a factor GAMMA above 0");
    at = p;
    EXPECT(!*at, "nothing more");
    return HVT_OK;
}

/* "SIZE[,GAMMA]" */
static hvt_status read_step(hvt_schedule *c, const char *text, const char *at)
{
    const char *p = at;

    EXPECT(hvt__scan_whole(&p, EPOCH_MAX, &c->size) && c->size > 0, "a number SIZE of epochs above 0");
    at = p;
    if (hvt__scan_text(&at, ","))
        return read_gamma(text, at, &c->gamma);
    EXPECT(!*at, "',GAMMA' or nothing more");
    return HVT_OK;
}

/* "E1,E2,...[@GAMMA]" */
static hvt_status read_multistep(hvt_schedule *c, const char *text, const char *at)
{
    int64_t last = 0, epoch;

    do {
        const char *p = at;
        EXPECT(hvt__scan_whole(&p, EPOCH_MAX, &epoch) && epoch > last, "an epoch above 0 and the one before");
        at = p;
        EXPECT(c->nmilestone < MILESTONES, "at most 64 epochs");
        c->milestone[c->nmilestone++] = last = epoch;
    } while (hvt__scan_text(&at, ","));
    if (hvt__scan_text(&at, "@"))
        return read_gamma(text, at, &c->gamma);
    EXPECT(!*at, "',EPOCH', '@GAMMA' or nothing more");
    return HVT_OK;
}

/* For schedules over the whole run. */
static hvt_status check_epochs(const hvt_schedule *c, const char *text)
{
    HVT_CHECK(isfinite(c->epochs) && c->epochs > 0, E_ARG,
              "schedule '%s' needs the run's number of epochs, got %g", text, c->epochs);
    HVT_CHECK(c->warmup <= c->epochs, E_ARG, "a warm-up of %g epochs does not fit into a run of %g",
              c->warmup, c->epochs);
    return HVT_OK;
}

/* "" or "MIN" */
static hvt_status read_cosine(hvt_schedule *c, const char *text, const char *at)
{
    const char *p = at;

    EXPECT(!*at || (hvt__scan_number(&p, &c->min) && c->min >= 0 && c->min <= c->lr),
           "a minimum rate MIN between 0 and the peak rate");
    at = p;
    EXPECT(!*at, "nothing more");
    return check_epochs(c, text);
}

/* "" or "POWER[,MIN]" */
static hvt_status read_poly(hvt_schedule *c, const char *text, const char *at)
{
    const char *p = at;

    c->power = 1;
    EXPECT(!*at || (hvt__scan_number(&p, &c->power) && c->power > 0), "a POWER above 0");
    at = p;
    if (hvt__scan_text(&at, ","))
        EXPECT(*at, "a minimum rate MIN between 0 and the peak rate");
    else
        EXPECT(!*at, "',MIN' or nothing more");
    return read_cosine(c, text, at);
}

/* "" or "PART" */
static hvt_status read_one_cycle(hvt_schedule *c, const char *text, const char *at)
{
    const char *p = at;

    c->rise = 0.3;
    EXPECT(!*at || (hvt__scan_number(&p, &c->rise) && c->rise > 0 && c->rise < 1),
           "the PART of the run in which the rate rises, between 0 and 1");
    at = p;
    EXPECT(!*at, "nothing more");
    HVT_CHECK(c->warmup == 0, E_ARG,
              "schedule '%s' begins with a rise of its own: omit the warm-up of %g epochs", text, c->warmup);
    return check_epochs(c, text);
}

static hvt_status parse(hvt_schedule *c, const char *text)
{
    static const struct {
        const char *name;
        shape shape;
        const char *more; /* required text; NULL: none */
        hvt_status (*read)(hvt_schedule *c, const char *text, const char *at);
    } kinds[] = {{"constant", CONSTANT, NULL, NULL},
                 {"step", STEP, ":SIZE[,GAMMA]", read_step},
                 {"multistep", MULTISTEP, ":E1,E2,...[@GAMMA]", read_multistep},
                 {"cosine", COSINE, NULL, read_cosine},
                 {"poly", POLY, NULL, read_poly},
                 {"onecycle", ONE_CYCLE, NULL, read_one_cycle}};
    size_t n = strcspn(text, ":");
    const char *at = text + n;

    for (size_t i = 0; i < HVT_LEN(kinds); i++) {
        if (strlen(kinds[i].name) != n || strncmp(text, kinds[i].name, n))
            continue;
        c->shape = kinds[i].shape;
        HVT_CHECK((*at && at[1]) || !kinds[i].more, E_ARG, "schedule '%s': expected %s%s, in epochs", text,
                  kinds[i].name, kinds[i].more);
        if (*at) {
            at++;
            EXPECT(*at, "a value after ':'");
        }
        if (kinds[i].read)
            return kinds[i].read(c, text, at);
        EXPECT(!*at, "nothing more");
        return HVT_OK;
    }
    return HVT_FAIL(E_ARG,
                    "schedule '%s': expected constant, step:SIZE[,GAMMA], multistep:E1,E2,...[@GAMMA], "
                    "cosine[:MIN], poly[:POWER[,MIN]] or onecycle[:PART]",
                    text);
}

hvt_status hvt_schedule_create(const hvt_schedule_opts *opts, hvt_schedule **ret_schedule)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(opts->name, "a schedule's name");
    HVT_GIVEN(ret_schedule, "an output pointer for the schedule");

    hvt_schedule *c = NULL;
    hvt_status s;

    HVT_CHECK(isfinite(opts->lr) && opts->lr >= 0, E_ARG, "learning rate is %g, expected 0 or more",
              opts->lr);
    HVT_CHECK(isfinite(opts->warmup) && opts->warmup >= 0, E_ARG, "warm-up is %g epochs, expected 0 or more",
              opts->warmup);
    HVT_CHECK(opts->warmup_from >= 0 && opts->warmup_from <= 1, E_ARG,
              "warm-up begins at %g of the peak rate, expected 0 to 1", opts->warmup_from);
    c = calloc(1, sizeof *c);
    HVT_CHECK(c, E_MEM, "no memory for a schedule (%zu bytes)", sizeof *c);
    *c = (hvt_schedule){.lr = opts->lr,
                        .epochs = opts->epochs,
                        .warmup = opts->warmup,
                        .from = opts->warmup_from,
                        .by_epoch = opts->by_epoch,
                        .gamma = 0.1};
    HVT_TRY_OR(fail, parse(c, opts->name));
    *ret_schedule = c;
    return HVT_OK;
fail:
    hvt_schedule_free(&c);
    return s;
}

void hvt_schedule_free(hvt_schedule **schedule)
{
    if (!schedule)
        return;
    free(*schedule);
    *schedule = NULL;
}

/* PyTorch's OneCycleLR after `at` of `count` updates (or epochs): from a 25th of the peak up to it, and down
 * to a 10,000th of the first rate, along cosines. */
static double one_cycle(const hvt_schedule *c, double at, double count)
{
    const double first = c->lr / 25, last = first / 1e4, top = c->rise * count - 1;
    const double rest = count - 1 - top;

    if (at <= top)
        return top > 0 ? c->lr + (first - c->lr) / 2 * (1 + cos(M_PI * at / top)) : c->lr;
    at = fmin(at - top, rest);
    return last + (c->lr - last) / 2 * (1 + cos(M_PI * at / rest));
}

double hvt_schedule_lr(const hvt_schedule *c, int epoch, uint32_t step, uint32_t steps)
{
    double done = (double)epoch * steps + step, warm = c ? round(c->warmup * steps) : 0;
    double at, span;
    int passed = 0;

    if (!c)
        return 0;
    if (done < warm)
        return c->from ? c->lr * (c->from + (1 - c->from) * (done + 1) / warm) : c->lr * (done + 1) / warm;
    switch (c->shape) {
    case STEP:
        return c->lr * pow(c->gamma, (double)(epoch / c->size));
    case MULTISTEP:
        while (passed < c->nmilestone && c->milestone[passed] <= epoch)
            passed++;
        return c->lr * pow(c->gamma, passed);
    case ONE_CYCLE:
        return c->by_epoch ? one_cycle(c, epoch, c->epochs) : one_cycle(c, done, c->epochs * steps);
    case COSINE:
    case POLY:
        at = c->by_epoch ? fmax(epoch - c->warmup, 0) : (done - warm) / steps;
        span = c->epochs - c->warmup;
        if (at >= span) /* past the run's end, or all of it was warm-up */
            return span > 0 ? c->min : c->lr;
        return c->min + (c->lr - c->min) * (c->shape == POLY ? pow(1 - at / span, c->power)
                                                             : (1 + cos(M_PI * at / span)) / 2);
    case CONSTANT:
        break;
    }
    return c->lr;
}
