/* --augment, --erase, --mixup, --cutmix and --repeat-augment. */
#include "cli_impl.h"
#include "base_impl.h"

/* The loader's limits; the messages here name the flag. */
enum { CROP_MAX = 127, MAGNITUDE_MAX = 30, JITTER_MAX = 1000, ALPHA_MAX = 1000, REPEATS_MAX = 255 };

/* True at the end of an item of a list; moves *at past its comma. */
static bool item_ends(const char **at)
{
    return !**at || hvt__scan_text(at, ",");
}

/* Reads rrc or rrc:LEAST-MOST: torchvision's RandomResizedCrop with this scale and the default ratio. */
static bool next_is_rrc(const char **at, hvt_rrc *ret_rrc)
{
    double least = 0.08, most = 1;
    const char *p = *at;

    if (!hvt__scan_text(&p, "rrc"))
        return false;
    if (hvt__scan_text(&p, ":") &&
        !(hvt__scan_number(&p, &least) && hvt__scan_text(&p, "-") && hvt__scan_number(&p, &most)))
        return false;
    if (!item_ends(&p) || !((float)least > 0 && least <= most && most <= 1))
        return false;
    *ret_rrc = (hvt_rrc){true, (float)least, (float)most, 3.0f / 4, 4.0f / 3};
    *at = p;
    return true;
}

/* Reads crop:PIXELS or crop:PIXELS:reflect. */
static bool next_is_crop(const char **at, hvt_resolved *t)
{
    const char *p = *at;
    int64_t pixels;

    if (!hvt__scan_text(&p, "crop:") || !hvt__scan_whole(&p, CROP_MAX, &pixels) || !pixels)
        return false;
    t->reflect = hvt__scan_text(&p, ":reflect");
    if (!item_ends(&p))
        return false;
    t->crop = (int)pixels;
    *at = p;
    return true;
}

/* Reads rand:N,M. */
static bool next_is_rand(const char **at, hvt_edits *ret_edits)
{
    const char *p = *at;
    int64_t n, magnitude;

    if (!hvt__scan_text(&p, "rand:") || !hvt__scan_whole(&p, HVT_EDITS_MAX, &n) || n < 1 ||
        !hvt__scan_text(&p, ",") || !hvt__scan_whole(&p, MAGNITUDE_MAX, &magnitude) || !item_ends(&p))
        return false;
    ret_edits->policy = HVT_POLICY_RAND;
    ret_edits->ops = (int)n;
    ret_edits->magnitude = (int)magnitude;
    *at = p;
    return true;
}

/* Reads color:B,C,S,H. */
static bool next_is_color(const char **at, hvt_edits *ret_edits)
{
    const char *p = *at;
    double x;

    if (!hvt__scan_text(&p, "color:"))
        return false;
    for (int k = 0; k < 4; k++) {
        if ((k && !hvt__scan_text(&p, ",")) || !hvt__scan_number(&p, &x) ||
            !(x >= 0 && x <= (k < 3 ? JITTER_MAX : .5)))
            return false;
        ret_edits->jitter[k] = (float)x;
    }
    if (!item_ends(&p))
        return false;
    *at = p;
    return true;
}

/* Reads a policy or color:B,C,S,H. */
static bool next_is_edit(const char **at, hvt_edits *ret_edits, int *policies)
{
    bool trivial = hvt__scan_item(at, "trivial"), automatic = !trivial && hvt__scan_item(at, "auto");

    if (!trivial && !automatic && !next_is_rand(at, ret_edits))
        return next_is_color(at, ret_edits);
    if (trivial || automatic)
        ret_edits->policy = trivial ? HVT_POLICY_TRIVIAL : HVT_POLICY_AUTO;
    ++*policies;
    return true;
}

/* Which word of several is wrong, and the option that it is here. */
static void describe_wrong(const hvt_options *o, const char *item, char ret_text[HVT_HINT + 60])
{
    static const char *const options[] = {"erase", "mixup", "cutmix"};

    *ret_text = 0;
    for (size_t i = 0; i < HVT_LEN(options); i++)
        if (!strncmp(item, options[i], strlen(options[i])))
            snprintf(ret_text, HVT_HINT + 60, "; use --%s %s", options[i], i ? "ALPHA" : "P");
    if (!*ret_text && strcmp(item, o->augment))
        snprintf(ret_text, HVT_HINT + 60, ", in which '%s' is wrong", item);
}

static hvt_status resolve_words(const hvt_options *o, hvt_resolved *t)
{
    int policies = 0;
    char item[HVT_HINT], meant[HVT_HINT], wrong[HVT_HINT + 60];

    for (const char *at = o->augment; *at;) {
        snprintf(item, sizeof item, "%.*s", (int)strcspn(at, ","), at);
        hvt__hint_word("none|flip|altflip|crop:4|rrc|trivial|rand:2,9|auto|color:0.4,0.4,0.4,0.1", item,
                       meant);
        describe_wrong(o, item, wrong);
        bool alternate = hvt__scan_item(&at, "altflip"), flip = alternate || hvt__scan_item(&at, "flip");
        HVT_CHECK(flip || next_is_rrc(&at, &t->rrc) || next_is_crop(&at, t) ||
                      next_is_edit(&at, &t->edits, &policies) || hvt__scan_item(&at, "none"),
                  E_ARG,
                  "--augment: expected none, flip, altflip, crop:PIXELS[:reflect] (1 to %d), rrc, "
                  "rrc:LEAST-MOST (parts of the area, 0 < LEAST <= MOST <= 1), trivial, rand:N,M (1 to %d "
                  "operations of magnitude 0 to %d), "
                  "auto, color:B,C,S,H (0 or more; H at most 0.5) or several with commas, got '%s'%s%s",
                  CROP_MAX, HVT_EDITS_MAX, MAGNITUDE_MAX, o->augment, wrong, meant);
        HVT_CHECK(!flip || !t->flip, E_ARG, "--augment %s: expected one of flip and altflip, once",
                  o->augment);
        t->flip |= flip;
        t->alternate |= alternate;
    }
    HVT_CHECK(!t->rrc.on || !t->crop, E_ARG,
              "--augment %s: rrc and crop:PIXELS both crop the image; expected one of them", o->augment);
    HVT_CHECK(policies <= 1, E_ARG, "--augment %s: expected one of trivial, rand:N,M and auto", o->augment);
    return HVT_OK;
}

static hvt_status check_mixing(const hvt_options *o)
{
    char fraction[HVT_HINT];

    HVT_CHECK(o->erase <= 1, E_ARG, "--erase: expected a probability from 0 to 1, got %g%s", o->erase,
              hvt__hint_fraction(o->erase, fraction));
    HVT_CHECK(o->mixup <= ALPHA_MAX && o->cutmix <= ALPHA_MAX, E_ARG,
              "--mixup and --cutmix: expected 0 to %d, got %g and %g", ALPHA_MAX, o->mixup, o->cutmix);
    HVT_CHECK(o->repeat_augment <= REPEATS_MAX, E_ARG, "--repeat-augment: expected 1 to %d, got %d",
              REPEATS_MAX, o->repeat_augment);
    return HVT_OK;
}

hvt_status hvt__resolve_augment(const hvt_options *o, hvt_resolved *t)
{
    HVT_TRY(resolve_words(o, t));
    return check_mixing(o);
}
