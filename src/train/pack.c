/*
 * hvtrain pack: writes a data set as tar shards for --data tar, in parallel, with a bar on rank 0, which has
 * about as many images as any other rank.
 */
#include "run.h"
#include "base_impl.h"

#include <dirent.h>
#include <inttypes.h>

typedef struct packing {
    hvt_reporter *rep; /* rank 0 */
    double began, said;
    int ranks;
    const char *file; /* being written; NULL: none */
} packing;

static void show_progress(void *ctx, uint64_t done, uint64_t all)
{
    enum { PAUSE = 10 /* seconds between lines without a bar */ };
    packing *p = ctx;
    double now = hvt__now();
    char rest[80];

    if (!p->rep)
        return;
    snprintf(rest, sizeof rest, "%" PRIu64 "/%" PRIu64 " images%s, %.0f img/s", done, all,
             p->ranks > 1 ? " of rank 0" : "", (double)done / (now - p->began + 1e-9));
    if (hvt__report_bar_due(p->rep)) {
        hvt__report_bar(p->rep, "pack", (double)done / (double)all, rest);
    } else if (!p->rep->bar && now - p->said >= PAUSE) {
        p->said = now;
        hvt__report_print(p->rep, "pack: %s", rest);
    }
}

static void show_file(void *ctx, const char *path)
{
    packing *p = ctx;

    if (p->file)
        hvt__signals_temp(p->file, false);
    p->file = path;
    if (path)
        hvt__signals_temp(path, true);
}

static hvt_status open_set(const hvt_options *o, hvt_world *world, hvt_dataset **ret_set)
{
    const char *slash = strrchr(o->output, '/');
    hvt_dataset_opts opts = {.dir = o->data_dir,
                             .train = strncmp(slash ? slash + 1 : o->output, "val-", 4) != 0,
                             .limit = (uint32_t)o->limit,
                             .seed = (uint64_t)o->seed,
                             .image_size = o->size,
                             .classes = o->classes,
                             .samples = (uint32_t)o->samples,
                             .val_split = o->val_split,
                             .world = world};

    return hvt_dataset_open(o->data, &opts, ret_set);
}

static bool has_shards(const char *dir, const char *prefix)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool found = false;

    while (d && !found && (e = readdir(d)))
        found = !strncmp(e->d_name, prefix, strlen(prefix)) && strstr(e->d_name, ".tar");
    if (d)
        closedir(d);
    return found;
}

/* Prints a command line that trains with the existing shards. */
static void print_next(hvt_reporter *rep, const char *dir)
{
    const char *program = hvt__process_program();
    char word[HVT_SHELL_WORD];
    bool val = has_shards(dir, "val-");

    if (val && !has_shards(dir, "train-"))
        hvt__report_print(rep, "next: pack the training images with --output %s/train-%%06d.tar", dir);
    else
        hvt__report_print(rep, "next: %s --data tar --data-dir %s%s", program, hvt__shell_word(dir, word),
                          val ? "" : " --val-split 0.1  # or pack a validation set");
}

static void report_result(const packing *p, const hvt_options *o, const hvt_pack_info *info)
{
    const char *slash = strrchr(o->output, '/');
    double seconds = hvt__now() - p->began;
    char took[32], dir[HVT_OPTION_VALUE], less[60] = "";

    hvt__duration(seconds, took);
    snprintf(dir, sizeof dir, "%.*s", slash > o->output ? (int)(slash - o->output) : 1,
             slash ? o->output : ".");
    if (info->damaged)
        snprintf(less, sizeof less, " (without %" PRIu64 " damaged one%s)", info->damaged,
                 info->damaged > 1 ? "s" : "");
    hvt__report_print(p->rep,
                      "packed %" PRIu64 " images%s into %" PRIu64 " shard%s, %.1f MiB, in %s: %.0f img/s",
                      info->images, less, info->shards, info->shards > 1 ? "s" : "",
                      hvt__mib((double)info->bytes), took, (double)info->images / (seconds + 1e-9));
    print_next(p->rep, dir);
}

hvt_status hvt_pack(const hvt_options *opts, hvt_world *world)
{
    HVT_TRY(hvt__options_given(opts, __func__));
    HVT_GIVEN(world, "a world");

    packing p = {.began = hvt__now(), .said = hvt__now(), .ranks = hvt_world_size(world)};
    hvt_pack_opts to = {.output = opts->output,
                        .shard_images = (uint32_t)opts->shard_images,
                        .resize = opts->resize,
                        .exif = opts->exif,
                        .raw = opts->raw,
                        .skip_damaged = opts->skip_damaged,
                        .progress = show_progress,
                        .writing = show_file,
                        .ctx = &p};
    hvt_pack_info info;
    hvt_dataset *set = NULL;
    hvt_status s;

    HVT_TRY(hvt__options_agree(opts, world));
    HVT_TRY(hvt_world_agree(world, hvt__options_check(opts, p.ranks)));
    HVT_TRY(hvt_world_agree(world, hvt_world_rank(world) ? HVT_OK : hvt__report_open(opts, &p.rep)));
    HVT_TRY_OR(done, open_set(opts, world, &set));
    HVT_TRY_OR(done, hvt_dataset_pack(set, world, &to, &info));
    if (p.rep)
        report_result(&p, opts, &info);
done:
    hvt_dataset_close(&set);
    hvt__report_close(&p.rep);
    return s;
}
