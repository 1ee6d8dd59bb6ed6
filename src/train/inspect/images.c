/*
 * Training images as a run gets them, as PNG files to look at: the first batch of epoch 0, without the
 * normalisation.
 */
#include "inspect_impl.h"
#include "base_impl.h"
#include "data/image/image_impl.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

enum { IMAGES_MOST = 64, MODE = 0777 };

/* Image n of a batch as bytes [h,w,c]. */
static void to_bytes(const hvt_loader_opts *l, const hvt_batch *b, int n, uint8_t *ret_pixels)
{
    const int *d = b->images.dim;
    const size_t count = (size_t)d[1] * (size_t)d[2] * (size_t)d[3];
    const float *x = (const float *)b->images.data + (size_t)n * count;

    for (size_t i = 0; i < count; i++) {
        size_t c = i % (size_t)d[3];
        double v = ((double)x[i] * (double)l->std[c] + (double)l->mean[c]) * 255;

        ret_pixels[i] = (uint8_t)(v > 0 ? v < 255 ? lrint(v) : 255 : 0);
    }
}

/* Writes all images of the batch: DIR/NUMBER-LABEL.png. */
static hvt_status write_batch(const hvt_loader_opts *l, const hvt_batch *b, const char *dir)
{
    const int *d = b->images.dim;
    uint8_t *pixels = malloc((size_t)d[1] * (size_t)d[2] * (size_t)d[3]);
    char path[PATH_MAX];
    hvt_status s = HVT_OK;

    HVT_CHECK(pixels, E_MEM, "no memory for an image of %d x %d", d[1], d[2]);
    for (int n = 0; n < b->count && s == HVT_OK; n++) {
        snprintf(path, sizeof path, "%s/%03d-%d.png", dir, n, ((const int32_t *)b->labels.data)[n]);
        to_bytes(l, b, n, pixels);
        s = hvt__png_write(path, pixels, d[1], d[2], d[3]);
    }
    free(pixels);
    return s;
}

static hvt_status open_loader(const hvt_options *o, hvt_device *dev, const hvt_dataset *set,
                              hvt__loading *ret_loading, hvt_loader **ret_loader)
{
    const hvt_dataset_info *info = hvt_dataset_describe(set);
    const hvt_cores cores = {0};
    hvt_resolved resolved;
    hvt_loader_opts *l = &ret_loading->train;

    HVT_TRY(hvt__resolve(o, 1, &resolved));
    HVT_TRY(hvt__resolve_loading(o, &resolved, info, NULL, &cores, ret_loading));
    HVT_CHECK(hvt_loader_channels(info, l) != 2, E_UNSUPPORTED,
              "images of data set '%s' have 2 channels; a PNG file has 1 or 3", info->name);
    l->batch = l->batch < IMAGES_MOST ? l->batch : IMAGES_MOST;
    l->batch = (uint32_t)l->batch < info->count ? l->batch : (int)info->count;
    l->shards = l->shard_count = 1;
    l->workers = 0;
    l->classes = info->classes;
    return hvt_loader_open(set, dev, l, ret_loader);
}

/* Refuses a folder that has pictures, which would be mixed with the new ones. */
static hvt_status check_output(const char *dir)
{
    DIR *d = opendir(dir);
    char found[NAME_MAX + 1] = "";

    for (struct dirent *e; d && !*found && (e = readdir(d));)
        if (strlen(e->d_name) > 4 && !strcmp(e->d_name + strlen(e->d_name) - 4, ".png"))
            snprintf(found, sizeof found, "%s", e->d_name);
    if (d)
        closedir(d);
    HVT_CHECK(!*found, E_IO, "--output %s: the folder has pictures, such as %s; name an empty or a new one",
              dir, found);
    return HVT_OK;
}

static hvt_status write_images(const hvt_options *o, hvt_device *dev, const hvt_dataset *set, FILE *f)
{
    hvt__loading loading;
    hvt_loader *loader = NULL;
    hvt_batch b;
    bool end;
    hvt_status s;

    HVT_TRY_OR(done, open_loader(o, dev, set, &loading, &loader));
    HVT_TRY_OR(done, hvt_loader_next(loader, &b, &end));
    HVT_CHECK_OR(done, mkdir(o->output, MODE) == 0 || errno == EEXIST, E_IO, "--output %s: %s", o->output,
                 strerror(errno));
    HVT_TRY_OR(done, write_batch(&loading.train, &b, o->output));
    fprintf(f, "%d images of %d x %d in %s, NUMBER-LABEL.png: the first of epoch 1 with --augment %s\n",
            b.count, b.images.dim[1], b.images.dim[2], o->output, o->augment);
    s = HVT_OK;
done:
    hvt_loader_close(&loader);
    return s;
}

hvt_status hvt__inspect_images(const hvt_options *o, FILE *f)
{
    const hvt_dataset_opts opts = hvt__set_opts(o, true);
    hvt_dataset *set = NULL;
    hvt_device *dev = NULL;
    hvt_status s;

    HVT_TRY_OR(done, check_output(o->output));
    HVT_TRY_OR(done, hvt_device_open("ref", NULL, &dev));
    HVT_TRY_OR(done, hvt_dataset_open(o->data, &opts, &set));
    s = write_images(o, dev, set, f);
done:
    hvt_dataset_close(&set);
    hvt_device_close(&dev);
    return s;
}
