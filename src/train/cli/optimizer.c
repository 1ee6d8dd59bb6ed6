/* --optimizer and its settings, --group-lr, --ema, --lookahead and --swa. */
#include "cli_impl.h"
#include "base_impl.h"

static hvt_status resolve_decay(const hvt_options *o, hvt_resolved *t)
{
    for (const char *at = o->no_decay; *at;) {
        bool norm = hvt__scan_item(&at, "norm"), bias = !norm && hvt__scan_item(&at, "bias");
        HVT_CHECK(norm || bias || hvt__scan_item(&at, "none"), E_ARG,
                  "--no-decay: expected none, norm, bias or norm,bias, got '%s'", o->no_decay);
        t->optim.no_decay_norm |= norm;
        t->optim.no_decay_bias |= bias;
    }
    return HVT_OK;
}

bool hvt__next_group_lr(const char **at, char ret_prefix[HVT_GROUP_PREFIX], double *ret_x)
{
    const size_t len = strcspn(*at, "=,");
    const char *x = *at + len;

    if (!len || len >= HVT_GROUP_PREFIX || !hvt__scan_text(&x, "=") || !hvt__scan_number(&x, ret_x) ||
        *ret_x < 0 || (*x && (!hvt__scan_text(&x, ",") || !*x)))
        return false;
    snprintf(ret_prefix, HVT_GROUP_PREFIX, "%.*s", (int)len, *at);
    *at = x;
    return true;
}

static hvt_status check_groups(const hvt_options *o)
{
    char prefix[HVT_GROUP_PREFIX];
    double x;

    for (const char *at = strcmp(o->group_lr, "none") ? o->group_lr : ""; *at;)
        HVT_CHECK(hvt__next_group_lr(&at, prefix, &x), E_ARG,
                  "--group-lr: expected none, or PREFIX=X,... with numbers X, 0 or more (fc=10,conv1=0.1), "
                  "got '%s'",
                  o->group_lr);
    HVT_CHECK(!o->fix_norms || !o->sync_bn, E_ARG,
              "--sync-bn computes the statistics of batch norms over all ranks, --fix-norms keeps them as "
              "they are: use one of them");
    return HVT_OK;
}

static bool read_betas(const char *at, double ret_betas[2])
{
    for (int k = 0; k < 2; k++)
        if ((k && !hvt__scan_text(&at, ",")) || !hvt__scan_number(&at, &ret_betas[k]) || ret_betas[k] < 0 ||
            ret_betas[k] >= 1)
            return false;
    return !*at;
}

/* Sets the optimizer's options. Settings that it does not have stay 0. */
static hvt_status resolve_rule(const hvt_options *o, hvt_resolved *t)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "rmsprop", "lars", "lamb"}; /* by kind */
    static const struct {
        enum hvt__option_at at;
        const char *of, *text;
    } own[] = {{HVT__AT_momentum, "sgd|lars|rmsprop", "sgd, lars or rmsprop"},
               {HVT__AT_nesterov, "sgd|lars", "sgd or lars"},
               {HVT__AT_betas, "adam|adamw|lamb", "adam, adamw or lamb"},
               {HVT__AT_alpha, "rmsprop", "rmsprop"},
               {HVT__AT_eps, "adam|adamw|lamb|rmsprop", "adam, adamw, lamb or rmsprop"}};
    bool has[HVT_LEN(own)];
    int kind = 0;

    for (size_t i = 0; i < HVT_LEN(own); i++) {
        has[i] = hvt__is_word_of(own[i].of, o->optimizer);
        HVT_CHECK(has[i] || !hvt__option_given(o, own[i].at), E_ARG, "%s is for --optimizer %s, not %s",
                  hvt__flag_of(&hvt__option_table[own[i].at]).text, own[i].text, o->optimizer);
    }
    while (strcmp(names[kind], o->optimizer) != 0)
        kind++;
    t->optim.kind = (hvt_optim_kind)kind;
    HVT_CHECK(!t->on_gpu || kind < HVT_OPTIM_RMSPROP, E_ARG,
              "--optimizer %s is for --device cpu or ref, not %s", o->optimizer, o->device);
    t->optim.weight_decay = (float)o->weight_decay;
    t->optim.momentum = has[0] ? (float)o->momentum : 0;
    t->optim.nesterov = has[1] && o->nesterov;
    t->optim.eps = has[4] ? o->eps : 0;
    HVT_CHECK(!has[2] || read_betas(o->betas, t->optim.betas), E_ARG,
              "--betas: expected two numbers from 0 to below 1, such as 0.9,0.999, got '%s'", o->betas);
    HVT_CHECK(!has[3] || o->alpha < 1, E_ARG, "--alpha: expected a number from 0 to below 1, got %g",
              o->alpha);
    if (has[3])
        t->optim.betas[1] = o->alpha;
    return HVT_OK;
}

/* Reads --ema: none, or DECAY[:every=N]. */
static hvt_status resolve_average(const hvt_options *o, hvt_resolved *t)
{
    const char *at = o->ema;
    double decay = 0;
    int64_t every = 1;

    HVT_CHECK(!strcmp(at, "none") || (hvt__scan_number(&at, &decay) && decay > 0 && decay < 1 &&
                                      (!hvt__scan_text(&at, ":every=") ||
                                       (hvt__scan_whole(&at, INT_MAX, &every) && every > 0)) &&
                                      !*at),
              E_ARG,
              "--ema: expected none or DECAY[:every=N], DECAY above 0 and below 1 and N updates, 1 or more "
              "(0.9999, 0.999:every=10), got '%s'",
              o->ema);
    HVT_CHECK(!o->swa || !(decay > 0), E_ARG,
              "--swa %d and --ema %s both average the weights: omit one of them", o->swa, o->ema);
    HVT_CHECK(o->swa <= o->epochs || (o->steps && !hvt__option_given(o, HVT__AT_epochs)), E_ARG,
              "--swa %d: expected an epoch of this run, 1 to %d", o->swa, o->epochs);
    t->averages = o->swa || decay > 0;
    t->optim.ema = o->swa ? (hvt_ema){.equal = true} : (hvt_ema){decay, (int)every, false};
    return HVT_OK;
}

/* Reads --lookahead: none, or N,DECAY[,POWER]. */
static hvt_status resolve_lookahead(const hvt_options *o, hvt_resolved *t)
{
    const char *at = o->lookahead;
    double decay, power = 0;
    int64_t every;

    t->look_power = -1;
    if (!strcmp(at, "none"))
        return HVT_OK;
    HVT_CHECK(
        hvt__scan_whole(&at, INT_MAX, &every) && every > 0 && hvt__scan_text(&at, ",") &&
            hvt__scan_number(&at, &decay) && decay > 0 && decay < 1 &&
            (!hvt__scan_text(&at, ",") || (hvt__scan_number(&at, &power) && power >= 0)) && !*at,
        E_ARG,
        "--lookahead: expected none or N,DECAY[,POWER], N updates, DECAY above 0 and below 1 and POWER 0 or "
        "more (6,0.5 or 5,0.77,3), got '%s'",
        o->lookahead);
    HVT_CHECK(!t->averages, E_ARG, "--lookahead %s and --%s both average the weights: omit one of them",
              o->lookahead, o->swa ? "swa" : "ema");
    HVT_CHECK(!t->on_gpu, E_ARG, "--lookahead %s is for --device cpu or ref, not %s", o->lookahead,
              t->device);
    t->averages = true;
    t->look_power = power;
    t->optim.ema = (hvt_ema){decay, (int)every, false};
    return HVT_OK;
}

hvt_status hvt__resolve_optimizer(const hvt_options *o, hvt_resolved *t)
{
    HVT_TRY(resolve_decay(o, t));
    HVT_TRY(check_groups(o));
    HVT_TRY(resolve_rule(o, t));
    HVT_TRY(resolve_average(o, t));
    return resolve_lookahead(o, t);
}
