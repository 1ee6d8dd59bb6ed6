/*
 * Writes a data set as tar shards, which --data tar and WebDataset read.
 *
 * Shard n holds the images from n * shard_images on and is written by rank n mod size, so that its bytes do
 * not depend on the number of ranks; headers have no times, users or groups. A shard is written under a
 * temporary name and renamed when it is complete. Ranks agree after each round of shards.
 *
 * An image is read, and decoded if necessary, before its first byte is written. So a damaged image can be
 * left out: its shard then holds one image less, and other shards do not change. A file that is copied is
 * decoded only if damaged images are to be left out.
 */
#include "data_impl.h"
#include "format/tar_index.h"
#include "image/image_impl.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARD_IMAGES = 5000, QUALITY = 92, NAME_MOST = 80, STEM_MOST = 60, NPY_HEADER = 128 };

/* "DIR/train-%06d.tar" */
typedef struct pattern {
    char dir[PATH_MAX], prefix[NAME_MAX + 1], suffix[NAME_MAX + 1];
    int digits;
} pattern;

typedef struct packer {
    const hvt_dataset *set;    /* borrowed */
    const hvt_pack_opts *opts; /* borrowed */
    pattern to;
    uint32_t images, shard_images; /* images in the set; images in a full shard */
    uint64_t shards;
    /* of this rank: images done, images in all, bytes written, images left out, shards written */
    uint64_t done, mine, bytes, damaged, written;

    hvt__picture *picture;
    hvt_record in, out, smaller; /* an image as the set has it; decoded; encoded again as JPEG */
    const char *kind;            /* suffix of its member; the contents are head, then body */
    char head[NPY_HEADER + 1];
    size_t head_bytes;
    const hvt_record *body;
    uint32_t in_shard; /* images in the current shard */
    FILE *file;
    char path[PATH_MAX], fresh[PATH_MAX]; /* the shard; its temporary name */
} packer;

/* ---- where shards go ---- */

static hvt_status read_pattern(const char *text, pattern *ret)
{
    const char *slash = strrchr(text, '/'), *base = slash ? slash + 1 : text, *percent = strchr(base, '%');
    const char *at = percent ? percent + 1 : "";
    int64_t digits = 0;
    bool good = hvt__scan_text(&at, "0") && hvt__scan_whole(&at, 9, &digits) && digits > 0 &&
                hvt__scan_text(&at, "d") && !strchr(at, '%') && strlen(at) >= 4 &&
                !strcmp(at + strlen(at) - 4, ".tar") && strlen(base) <= NAME_MAX &&
                (!strncmp(base, "train-", 6) || !strncmp(base, "val-", 4));

    HVT_CHECK(
        good, E_ARG,
        "--output: expected DIR/train-%%06d.tar or DIR/val-%%06d.tar, with the number's digits, got '%s'",
        text);
    HVT_TRY(
        hvt__path(ret->dir, "%.*s", slash == text ? 1 : (int)(slash ? slash - text : 1), slash ? text : "."));
    snprintf(ret->prefix, sizeof ret->prefix, "%.*s", (int)(percent - base), base);
    snprintf(ret->suffix, sizeof ret->suffix, "%s", at);
    ret->digits = (int)digits;
    return HVT_OK;
}

/* Refuses shards of an earlier run, which would be read with the new ones. */
static hvt_status refuse_existing(const pattern *p)
{
    size_t prefix = strlen(p->prefix);
    DIR *d = opendir(p->dir);
    struct dirent *e;
    char found[NAME_MAX + 1] = "";

    if (!d && errno == ENOENT && mkdir(p->dir, 0777) == 0)
        return HVT_OK;
    HVT_CHECK(d, E_IO, "--output: %s: %s", p->dir, strerror(errno));
    while (!*found && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        if (!strncmp(e->d_name, p->prefix, prefix) && n >= 4 && !strcmp(e->d_name + n - 4, ".tar"))
            snprintf(found, sizeof found, "%s", e->d_name);
    }
    closedir(d);
    HVT_CHECK(!*found, E_IO, "--output: %s/%s exists already; remove it, or choose another folder", p->dir,
              found);
    return HVT_OK;
}

static hvt_status name_shard(packer *p, uint64_t n)
{
    const pattern *t = &p->to;

    HVT_TRY(hvt__path(p->path, "%s/%s%0*" PRIu64 "%s", t->dir, t->prefix, t->digits, n, t->suffix));
    return hvt__path(p->fresh, "%s.tmp", p->path);
}

/* ---- tar ---- */

static hvt_status put(packer *p, const void *bytes, size_t n)
{
    HVT_CHECK(!n || fwrite(bytes, 1, n, p->file) == n, E_IO, "%s: cannot write: %s", p->fresh,
              strerror(errno));
    p->bytes += n;
    hvt__progressed();
    return HVT_OK;
}

static hvt_status put_header(packer *p, const char *name, uint64_t bytes)
{
    struct {
        char name[100], mode[8], user[8], group[8], size[12], time[12], sum[8], type, link[100], magic[6],
            version[2], more[247];
    } h = {.mode = "0000644",
           .user = "0000000",
           .group = "0000000",
           .time = "00000000000",
           .sum = "       ",
           .type = '0',
           .magic = "ustar",
           .version = {'0', '0'}};
    unsigned sum = 0;

    _Static_assert(sizeof h == HVT__TAR_BLOCK, "a header is a block");
    memcpy(h.name, name, strlen(name));
    snprintf(h.size, sizeof h.size, "%011" PRIo64, bytes);
    h.sum[7] = ' ';
    for (size_t i = 0; i < sizeof h; i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof h.sum, "%06o", sum);
    return put(p, &h, sizeof h);
}

static hvt_status pad(packer *p, uint64_t bytes)
{
    static const char zeros[HVT__TAR_BLOCK];

    return put(p, zeros, (size_t)(-bytes % HVT__TAR_BLOCK));
}

static hvt_status put_member(packer *p, const char *key, const char *kind, const void *head,
                             size_t head_bytes, const void *body, size_t body_bytes)
{
    char name[NAME_MOST + 8];

    snprintf(name, sizeof name, "%s.%s", key, kind);
    HVT_TRY(put_header(p, name, head_bytes + body_bytes));
    HVT_TRY(put(p, head, head_bytes));
    HVT_TRY(put(p, body, body_bytes));
    return pad(p, head_bytes + body_bytes);
}

/* ---- an image ---- */

/* The image's number, and the stem of its file's name, so that the file can be found. Dots, which end a
 * sample's name, and letters that shells or other systems handle badly become '_'. */
static void make_key(uint32_t index, const char *name, char ret_key[NAME_MOST])
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *blank = strrchr(base, ' ');
    const char *stem = blank ? blank + 1 : base, *dot = strrchr(stem, '.');
    int n = snprintf(ret_key, NAME_MOST, "%09" PRIu32, index);
    int most = dot && dot > stem ? (int)(dot - stem) : (int)strlen(stem);

    if (!strncmp(name, "image ", 6)) /* no file of its own */
        return;
    ret_key[n++] = '_';
    for (int i = 0; i < most && i < STEM_MOST; i++)
        ret_key[n++] = isalnum((unsigned char)stem[i]) && !(stem[i] & 0x80) ? stem[i] : '_';
    ret_key[n] = 0;
}

static const char *kind_of(const hvt_record *r)
{
    static const struct {
        const char *begin, *kind;
    } kinds[] = {{"\xff\xd8", "jpg"}, {"P", "ppm"},  {"BM", "bmp"},
                 {"RI", "webp"},      {"II", "tif"}, {"MM", "tif"}};

    for (size_t i = 0; i < HVT_LEN(kinds); i++)
        if (!memcmp(r->data, kinds[i].begin, strlen(kinds[i].begin)))
            return kinds[i].kind;
    return "png";
}

/* torchvision's Resize(), except that smaller pictures keep their size. */
static hvt__view view_of(const packer *p, int h, int w)
{
    int64_t to = p->opts->resize, shorter = h < w ? h : w;
    hvt__view v = hvt__view_whole(h, w);

    if (!to || shorter <= to)
        return v;
    v.full_h = v.out_h = (int)(h < w ? to : to * h / w);
    v.full_w = v.out_w = (int)(h < w ? to * w / h : to);
    return v;
}

/* Writes the .npy header for p->out. */
static void make_head(packer *p, const hvt__view *v)
{
    char dict[NPY_HEADER - 10];

    snprintf(dict, sizeof dict, "{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d, 3), }", v->out_h,
             v->out_w);
    snprintf(p->head, sizeof p->head, "\x93NUMPY\x01%c%c%c%-*s\n", '?', NPY_HEADER - 10, '?', NPY_HEADER - 11,
             dict);
    p->head[7] = p->head[9] = 0; /* version 1.0; 118 bytes follow */
    p->head_bytes = NPY_HEADER;
}

static hvt_status decode(packer *p, const hvt__view *v)
{
    HVT_TRY(hvt_record_reserve(&p->out, (size_t)v->out_h * (size_t)v->out_w * 3));
    return hvt__picture_finish(p->picture, v, p->out.data);
}

/* Decodes an image to pixels, or to a smaller picture. */
static hvt_status change(packer *p, const char *name, const hvt__view *v)
{
    HVT_CHECK(v->out_h <= HVT_SIDE_MAX && v->out_w <= HVT_SIDE_MAX, E_FORMAT,
              "%s: %d x %d pixels, expected sides of at most %d; --resize makes them smaller", name, v->out_h,
              v->out_w, HVT_SIDE_MAX);
    HVT_TRY(decode(p, v));
    p->kind = p->opts->raw ? "npy" : "jpg";
    p->body = p->opts->raw ? &p->out : &p->smaller;
    if (p->opts->raw)
        make_head(p, v);
    return p->opts->raw ? HVT_OK : hvt__jpeg_encode(p->out.data, v->out_h, v->out_w, QUALITY, &p->smaller);
}

/* Checks that a copied file can be decoded, at an eighth of its size: any scale shows it. */
static hvt_status try_to_decode(packer *p, int h, int w)
{
    hvt__view v = hvt__view_whole(h, w);

    v.full_h = v.out_h = (h + 7) / 8;
    v.full_w = v.out_w = (w + 7) / 8;
    return decode(p, &v);
}

/* Prepares the member of the image p->in: kind, head and body. */
static hvt_status prepare(packer *p, const char *name)
{
    hvt__view v;
    int h, w;

    HVT_TRY(hvt__picture_begin(p->picture, &p->in, name, &h, &w));
    v = view_of(p, h, w);
    p->head_bytes = 0;
    if (p->opts->raw || v.out_h != h || v.out_w != w)
        return change(p, name, &v);
    p->kind = kind_of(&p->in);
    p->body = &p->in;
    return p->opts->skip_damaged ? try_to_decode(p, h, w) : HVT_OK;
}

static hvt_status put_label(packer *p, const char *key)
{
    char text[16];
    int n = snprintf(text, sizeof text, "%d", p->in.label);

    return p->in.label < 0 ? HVT_OK : put_member(p, key, "cls", NULL, 0, text, (size_t)n);
}

/* Leaves a damaged image out after an error: counts and names it. */
static hvt_status leave_out(packer *p, hvt_status s)
{
    int most = p->opts->skip_damaged;
    char line[2300];

    if (!most)
        return hvt__fail(s, __FILE__, __LINE__, "%s (--skip-damaged N leaves out up to N damaged images)",
                         hvt_last_error());
    if (p->damaged == (uint64_t)most)
        return hvt__fail(s, __FILE__, __LINE__,
                         "%s; %d damaged image%s been left out before, which is the maximum",
                         hvt_last_error(), most, most > 1 ? "s have" : " has");
    snprintf(line, sizeof line, "%s; left out (%" PRIu64 " of at most %d damaged images)", hvt_last_error(),
             ++p->damaged, most);
    hvt__log_always(HVT_LOG_WARN, line); /* any rank may have read it */
    return HVT_OK;
}

static hvt_status put_image(packer *p, uint32_t index)
{
    char name[PATH_MAX], key[NAME_MOST];
    hvt_status s;

    HVT_TRY(hvt_dataset_name(p->set, index, name, sizeof name));
    s = hvt_dataset_read(p->set, index, &p->in);
    if (s == HVT_OK) {
        HVT_CHECK(p->in.encoding == HVT_IMAGE_FILE || p->opts->raw, E_UNSUPPORTED,
                  "%s is raw pixels, which JPEG would change: pack it with --raw", name);
        s = prepare(p, name);
    }
    if (hvt__is_damage(s))
        return leave_out(p, s);
    HVT_TRY(s);
    make_key(index, name, key);
    HVT_TRY(put_member(p, key, p->kind, p->head, p->head_bytes, p->body->data, p->body->bytes));
    p->in_shard++;
    return put_label(p, key);
}

/* ---- a shard ---- */

static hvt_status put_images(packer *p, uint64_t shard)
{
    static const char end[2 * HVT__TAR_BLOCK];
    uint64_t first = shard * p->shard_images;

    p->in_shard = 0;
    for (uint64_t i = first; i < first + p->shard_images && i < p->images; i++) {
        HVT_TRY(put_image(p, (uint32_t)i));
        p->done++;
        if (p->opts->progress)
            p->opts->progress(p->opts->ctx, p->done, p->mine);
    }
    HVT_TRY(put(p, end, sizeof end));
    HVT_CHECK(fflush(p->file) == 0 && fsync(fileno(p->file)) == 0, E_IO, "%s: cannot write: %s", p->fresh,
              strerror(errno));
    return HVT_OK;
}

static hvt_status write_shard(packer *p, uint64_t shard)
{
    hvt__tar_found found;
    hvt__tar_index *x;
    hvt_status s;

    HVT_TRY(name_shard(p, shard));
    p->file = fopen(p->fresh, "we");
    HVT_CHECK(p->file, E_IO, "%s: cannot write: %s", p->fresh, strerror(errno));
    if (p->opts->writing)
        p->opts->writing(p->opts->ctx, p->fresh);
    s = put_images(p, shard);
    if (fclose(p->file) && s == HVT_OK)
        s = HVT_FAIL(E_IO, "%s: cannot write: %s", p->fresh, strerror(errno));
    if (s == HVT_OK && p->in_shard && rename(p->fresh, p->path))
        s = HVT_FAIL(E_IO, "%s: cannot rename it: %s", p->fresh, strerror(errno));
    if (s != HVT_OK || !p->in_shard)
        unlink(p->fresh);
    if (p->opts->writing)
        p->opts->writing(p->opts->ctx, NULL);
    HVT_TRY(s);
    if (!p->in_shard) /* all its images are damaged; other shards keep their numbers */
        return HVT_OK;
    p->written++;
    HVT_TRY(hvt__tar_index_open(p->path, &x, &found)); /* the index stays beside the shard */
    free(x);
    return HVT_OK;
}

/* ---- all of them ---- */

static hvt_status begin(packer *p, int rank, int size)
{
    const hvt_dataset_info *info = hvt_dataset_describe(p->set);
    uint64_t most = 1;

    HVT_TRY(read_pattern(p->opts->output, &p->to));
    HVT_CHECK(info->type == HVT_U8 && info->channels == 3, E_UNSUPPORTED,
              "data set '%s' has images of %d channels in %s, expected 3 in u8", info->name, info->channels,
              hvt_dtype_name(info->type));
    HVT_CHECK(!info->targets && !info->masks, E_UNSUPPORTED,
              "data set '%s' has %s, which shards do not hold: expected labels, or none", info->name,
              info->masks ? "masks" : "targets");
    HVT_CHECK(p->opts->skip_damaged >= 0, E_ARG, "%d damaged images to leave out, expected 0 or more",
              p->opts->skip_damaged);
    p->images = info->count;
    p->shard_images = p->opts->shard_images ? p->opts->shard_images : SHARD_IMAGES;
    p->shards = ((uint64_t)p->images + p->shard_images - 1) / p->shard_images;
    for (int i = 0; i < p->to.digits; i++)
        most *= 10;
    HVT_CHECK(p->shards <= most, E_ARG, "--output: numbers of %d digits are too few for %" PRIu64 " shards",
              p->to.digits, p->shards);
    for (uint64_t n = (uint64_t)rank; n < p->shards; n += (uint64_t)size)
        p->mine += n + 1 < p->shards ? p->shard_images : p->images - n * p->shard_images;
    HVT_TRY(hvt__picture_open(&p->picture));
    if (p->opts->exif)
        hvt__picture_turn(p->picture);
    if (rank)
        return HVT_OK;
    HVT_TRY(refuse_existing(&p->to));
    return hvt__class_list_write(p->to.dir, HVT__CLASSES_FILE, p->set, true);
}

static hvt_status agree(hvt_world *world, hvt_status s)
{
    return world ? hvt_world_agree(world, s) : s;
}

/* Sums over the ranks. The limit on damaged images applies to the sum, so it does not depend on the number of
 * ranks. */
static hvt_status sum_up(const packer *p, hvt_world *world, hvt_pack_info *ret_info)
{
    int64_t n[] = {(int64_t)p->damaged, (int64_t)p->written, (int64_t)p->bytes};
    int64_t most = p->opts->skip_damaged;

    if (world)
        HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, n, HVT_LEN(n)));
    *ret_info = (hvt_pack_info){(uint64_t)n[1], p->images - (uint64_t)n[0], (uint64_t)n[2], (uint64_t)n[0]};
    return agree(world, n[0] <= most
                            ? HVT_OK
                            : HVT_FAIL(E_FORMAT,
                                       "%" PRId64 " images are damaged, each named in a line before; "
                                       "expected at most %" PRId64 " to leave out",
                                       n[0], most));
}

static hvt_status write_shards(packer *p, hvt_world *world, hvt_pack_info *ret_info)
{
    uint64_t rank = (uint64_t)hvt_world_rank(world), size = (uint64_t)hvt_world_size(world);

    HVT_TRY(agree(world, begin(p, (int)rank, (int)size)));
    for (uint64_t first = 0; first < p->shards; first += size) {
        HVT_TRY(agree(world, first + rank < p->shards ? write_shard(p, first + rank) : HVT_OK));
        if (p->opts->skip_damaged || first + size >= p->shards)
            HVT_TRY(sum_up(p, world, ret_info));
    }
    HVT_TRY(agree(world, ret_info->images ? HVT_OK
                                          : HVT_FAIL(E_FORMAT, "all %u images of data set '%s' are damaged",
                                                     p->images, hvt_dataset_describe(p->set)->name)));
    return agree(world, rank ? HVT_OK : hvt__class_list_write(p->to.dir, HVT__CLASSES_FILE, p->set, false));
}

hvt_status hvt_dataset_pack(const hvt_dataset *set, hvt_world *world, const hvt_pack_opts *opts,
                            hvt_pack_info *ret_info)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(opts->output, "the name of its shards");

    packer p = {.set = set, .opts = opts};
    hvt_pack_info info = {0};
    hvt_status s = write_shards(&p, world, &info);

    if (s == HVT_OK && ret_info)
        *ret_info = info;
    hvt__picture_close(&p.picture);
    free(p.in.data);
    free(p.out.data);
    free(p.smaller.data);
    return s;
}
