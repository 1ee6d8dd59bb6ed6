/*
 * Finds the folder of each split in a data set by its name, in upper or lower case: val, test_set, train2017.
 *
 * If no folder has the name of a split, the data set itself is both splits, and its folders are classes.
 * Otherwise its folders are never classes: those other than the opened split and the one that defines the
 * classes are reported as unused.
 *
 * A folder images/ beside masks/ holds pictures without classes, whose masks have the same paths with .png as
 * suffix. Both may be inside the folder of a split, or both may contain the folders of splits.
 */
#include "listing.h"

#include <strings.h>

typedef enum role { TRAIN, VAL, TEST, ROLES } role;

static const struct {
    const char *name;
    role role;
} common[] = {{"train", TRAIN}, {"training", TRAIN}, {"val", VAL},   {"valid", VAL},   {"validation", VAL},
              {"dev", VAL},     {"eval", VAL},       {"test", TEST}, {"testing", TEST}};

/* Words that may follow: training_set, test-images, valdata. */
static const char *const tails[] = {"set", "data", "dataset", "images", "imgs", "img", "pictures", "photos"};

typedef struct layout {
    const char *dir;
    hvt__entries in;
    const char *of[ROLES]; /* NULL: none */
    hvt__names others;     /* folders that are not splits */
} layout;

/* True if a split's name may end this way: with nothing, one of these words, or a year. */
static bool is_tail(const char *end)
{
    bool found = !*end;

    end += strspn(end, "_- ");
    for (size_t i = 0; i < HVT_LEN(tails); i++)
        found = found || !strcasecmp(tails[i], end);
    return found || (strlen(end) == 4 && strspn(end, "0123456789") == 4);
}

static role role_of(const char *name)
{
    for (size_t i = 0; i < HVT_LEN(common); i++) {
        size_t n = strlen(common[i].name);

        if (!strncasecmp(common[i].name, name, n) && is_tail(name + n))
            return common[i].role;
    }
    return ROLES;
}

static hvt_status read_inside(const layout *l, const char *name, hvt__entries *ret_entries)
{
    char path[PATH_MAX];

    HVT_TRY(hvt__path(path, "%s/%s", l->dir, name));
    return hvt__entries_read(path, ret_entries);
}

static hvt_status find_roles(layout *l)
{
    HVT_TRY(hvt__entries_read(l->dir, &l->in));
    HVT_CHECK(role_of(l->in.dead_link) == ROLES, E_IO, "%s/%s: a broken link: fix or remove it", l->dir,
              l->in.dead_link);
    for (size_t i = 0; i < l->in.folders.n; i++) {
        const char *name = hvt__name_at(&l->in.folders, i);
        role r = role_of(name);

        if (r == ROLES) {
            HVT_TRY(hvt__name_add(&l->others, name));
            continue;
        }
        HVT_CHECK(!l->of[r], E_FORMAT, "%s: %s/ and %s/ are names of one split: rename or remove one of them",
                  l->dir, l->of[r], name);
        l->of[r] = name;
    }
    return HVT_OK;
}

/* True if pictures are in a folder, or in its first subfolder. */
static hvt_status has_pictures(const layout *l, const char *name, bool *ret)
{
    hvt__entries in = {0}, inside = {0};
    char path[PATH_MAX];
    hvt_status s;

    HVT_TRY_OR(done, read_inside(l, name, &in));
    *ret = in.pictures.n > 0;
    if (!*ret && in.folders.n) {
        HVT_TRY_OR(done, hvt__path(path, "%s/%s", name, hvt__name_at(&in.folders, 0)));
        HVT_TRY_OR(done, read_inside(l, path, &inside));
        *ret = inside.pictures.n > 0;
    }
done:
    hvt__entries_free(&in);
    hvt__entries_free(&inside);
    return s;
}

/* Refuses a split beside folders that look like classes. If train/ has classes, those folders are ignored. */
static hvt_status refuse_classes(const layout *l)
{
    const char *name = l->of[TRAIN] ? l->of[TRAIN] : l->of[VAL] ? l->of[VAL] : l->of[TEST];
    hvt__names classes = {0};
    hvt__entries train = {0};
    char text[1200];
    hvt_status s = HVT_OK;

    if (l->of[TRAIN])
        HVT_TRY_OR(done, read_inside(l, name, &train));
    for (size_t i = 0; i < l->others.n && !train.folders.n; i++) {
        bool found = false;

        HVT_TRY_OR(done, has_pictures(l, hvt__name_at(&l->others, i), &found));
        if (found)
            HVT_TRY_OR(done, hvt__name_add(&classes, hvt__name_at(&l->others, i)));
    }
    hvt__names_text(&classes, text, sizeof text);
    HVT_CHECK_OR(done, !classes.n, E_FORMAT,
                 "%s/%s: may be a split or a class, since it is beside folders of pictures (%s): move all "
                 "classes to %s/train/, with splits beside it",
                 l->dir, name, text, l->dir);
done:
    hvt__names_free(&classes);
    hvt__entries_free(&train);
    return s;
}

/* Refuses a folder that only wraps the set's folder, as archives do. */
static hvt_status refuse_wrapper(const layout *l)
{
    const char *name = l->in.folders.n == 1 ? hvt__name_at(&l->in.folders, 0) : NULL;
    hvt__entries in = {0};
    const char *split = NULL;
    hvt_status s = HVT_OK;

    if (!name || l->in.pictures.n)
        return HVT_OK;
    HVT_TRY(read_inside(l, name, &in));
    for (size_t i = 0; i < in.folders.n; i++)
        if (role_of(hvt__name_at(&in.folders, i)) != ROLES)
            split = hvt__name_at(&in.folders, i);
    if (split)
        s = HVT_FAIL(E_FORMAT, "%s: contains only %s/, which has %s/: use --data-dir %s/%s", l->dir, name,
                     split, l->dir, name);
    hvt__entries_free(&in);
    return s;
}

/* Warns if the first two folders hold the same folders and no pictures: they may be splits of other names. */
static hvt_status doubt_classes(const layout *l)
{
    static _Atomic uint64_t said;
    hvt__entries in[2] = {0};
    bool same = l->others.n > 1;
    char names[600], text[1400];
    hvt_status s = HVT_OK;

    for (size_t i = 0; i < 2 && same; i++) {
        HVT_TRY_OR(done, read_inside(l, hvt__name_at(&l->others, i), &in[i]));
        same = !in[i].pictures.n && in[i].folders.n > 1 && in[i].folders.n == in[0].folders.n;
    }
    for (size_t i = 0; same && i < in[0].folders.n; i++)
        same = !strcmp(hvt__name_at(&in[0].folders, i), hvt__name_at(&in[1].folders, i));
    if (same) {
        hvt__names_text(&in[0].folders, names, sizeof names);
        snprintf(
            text, sizeof text,
            "%.255s/ and %.255s/ are used as classes, but hold the same folders (%s); if they are splits, "
            "rename them to train/ and val/",
            hvt__name_at(&l->others, 0), hvt__name_at(&l->others, 1), names);
        hvt__say_once(&said, HVT_LOG_WARN, l->dir, text);
    }
done:
    hvt__entries_free(&in[0]);
    hvt__entries_free(&in[1]);
    return s;
}

/* Lists the folders other than these two, and the tables and pictures beside them. */
static hvt_status name_unused(const layout *l, const char *used, const char *also, char *ret_text,
                              size_t room)
{
    hvt__names all = {0};
    char name[NAME_MAX + 40];
    hvt_status s = HVT_OK;

    for (size_t i = 0; i < l->in.folders.n; i++) {
        const char *folder = hvt__name_at(&l->in.folders, i);

        snprintf(name, sizeof name, "%s/", folder);
        if (strcmp(folder, used) && (!also || strcmp(folder, also)))
            HVT_TRY_OR(done, hvt__name_add(&all, name));
    }
    if (l->in.unused.n[HVT__UNUSED_TABLE])
        HVT_TRY_OR(done, hvt__name_add(&all, l->in.unused.first[HVT__UNUSED_TABLE]));
    if (l->in.pictures.n) {
        snprintf(name, sizeof name, "%zu picture%s (%.200s)", l->in.pictures.n,
                 l->in.pictures.n > 1 ? "s" : "", hvt__name_at(&l->in.pictures, 0));
        HVT_TRY_OR(done, hvt__name_add(&all, name));
    }
    hvt__names_text(&all, ret_text, room);
done:
    hvt__names_free(&all);
    return s;
}

/* Reports the chosen folder, unless it is the usual train/ or val/ and nothing is unused. */
static hvt_status say(const layout *l, const hvt_dataset_opts *opts, const char *used)
{
    static _Atomic uint64_t said;
    bool split = opts->val_split > 0, whole = split || !opts->train;
    char unused[1200] = "", text[1600];
    const char *of = split         ? "the training and test images"
                     : opts->train ? "the training images"
                                   : "the test images";

    if (whole)
        HVT_TRY(name_unused(l, used, l->of[TRAIN], unused, sizeof unused));
    if (!*unused && !strcmp(used, opts->train || split ? "train" : "val"))
        return HVT_OK;
    if (!opts->train && !split && used == l->of[TRAIN])
        of = "there is no val/ or test/: the test images";
    snprintf(text, sizeof text, "%s are those of %s/%s%s", of, used, *unused ? "; not used: " : "", unused);
    hvt__say_once(&said, HVT_LOG_INFO, l->dir, text);
    return HVT_OK;
}

static hvt_status choose(const layout *l, const hvt_dataset_opts *opts, hvt__split *ret_split)
{
    const char *train = l->of[TRAIN], *test = l->of[VAL] ? l->of[VAL] : l->of[TEST];
    bool of_training = opts->train || opts->val_split > 0;
    const char *used = of_training || !test ? train : test;

    if (!train && !test) {
        HVT_TRY(refuse_wrapper(l));
        HVT_TRY(doubt_classes(l));
        HVT_TRY(hvt__path(ret_split->root, "%s", l->dir));
        return hvt__path(ret_split->classes_of, "%s", l->dir);
    }
    HVT_TRY(refuse_classes(l));
    HVT_CHECK(used, E_IO, "%s has %s/, but no train/", l->dir, test);
    HVT_TRY(hvt__path(ret_split->root, "%s/%s", l->dir, used));
    HVT_TRY(hvt__path(ret_split->classes_of, "%s/%s", l->dir, train ? train : used));
    return say(l, opts, used);
}

static hvt_status find_in(const char *dir, const hvt_dataset_opts *opts, hvt__split *ret_split)
{
    layout l = {.dir = dir};
    hvt_status s = find_roles(&l);

    if (s == HVT_OK)
        s = choose(&l, opts, ret_split);
    hvt__entries_free(&l.in);
    hvt__names_free(&l.others);
    return s;
}

/* True if dir has the folders images/ and masks/, whose paths are then written. */
static hvt_status find_masks(const char *dir, char ret_images[PATH_MAX], char ret_masks[PATH_MAX],
                             bool *ret_found)
{
    hvt__entries in = {0};
    hvt_status s = hvt__entries_read(dir, &in);
    int found = 0;

    for (size_t i = 0; i < in.folders.n && s == HVT_OK; i++)
        found +=
            !strcmp(hvt__name_at(&in.folders, i), "images") || !strcmp(hvt__name_at(&in.folders, i), "masks");
    hvt__entries_free(&in);
    *ret_found = found == 2;
    if (s || found < 2)
        return s;
    HVT_TRY(hvt__path(ret_images, "%s/images", dir));
    return hvt__path(ret_masks, "%s/masks", dir);
}

hvt_status hvt__split_find(const hvt_dataset_opts *opts, hvt__split *ret_split)
{
    char images[PATH_MAX], masks[PATH_MAX], root[PATH_MAX];
    bool found;

    HVT_CHECK(
        opts->dir && *opts->dir, E_ARG,
        "data set folder needs --data-dir, with train/CLASS/... and val/CLASS/..., CLASS/..., or images/ "
        "and masks/");
    HVT_TRY(find_masks(opts->dir, images, masks, &found));
    if (found) {
        HVT_TRY(find_in(images, opts, ret_split));
        memcpy(root, ret_split->root, sizeof root);
        return hvt__path(ret_split->masks, "%s%s", masks, root + strlen(images));
    }
    HVT_TRY(find_in(opts->dir, opts, ret_split));
    HVT_TRY(find_masks(ret_split->root, images, masks, &found));
    if (!found)
        return HVT_OK;
    HVT_TRY(hvt__path(ret_split->root, "%s", images));
    return hvt__path(ret_split->masks, "%s", masks);
}
