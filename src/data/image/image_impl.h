/*
 * image_impl.h - from a picture file to pixels of the size that a batch wants.
 *
 * Included by src/data. A picture is a decoder with its scratch memory: one per thread, which has no locks.
 * Pixels are red, green and blue bytes, whatever the file has, as Pillow's convert("RGB") makes them.
 */
#ifndef HVT_IMAGE_IMPL_H
#define HVT_IMAGE_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT__IMAGE_SIDE_MAX 65500 /* of a picture in pixels; the JPEG library's own limit */
/* What decoding one picture may allocate. JPEG, PNG and PPM files that are read from top to bottom need some
 * rows; progressive JPEGs and interlaced PNGs are held as a whole. */
#define HVT__IMAGE_MEMORY_MAX ((size_t)1 << 30)

/* ---- views: which pixels of a picture become the target's: view.c ---------------------------- */

typedef struct hvt__view {
    int x, y, w, h;              /* box in the picture */
    int full_h, full_w;          /* what the box is resampled to, antialiased, as torchvision's Resize does */
    int top, left, out_h, out_w; /* the window of that result that is wanted; what lies outside it is zero */
} hvt__view;

/* All pixels as they are. */
hvt__view hvt__view_whole(int h, int w);
/* torchvision's RandomResizedCrop of a picture of h x w; a pure function of its arguments. */
hvt__view hvt__view_rrc(int h, int w, const hvt_rrc *opts, uint64_t seed, int epoch, uint32_t sample,
                        int out_h, int out_w);
/* torchvision's Resize(resize), 0: none, and CenterCrop((out_h, out_w)), which pads small pictures by zeros.
 */
hvt__view hvt__view_centre(int h, int w, int resize, int out_h, int out_w);

/* ---- pictures: picture.c ---------------------------------------------------------------------- */

typedef struct hvt__picture hvt__picture;

hvt_status hvt__picture_open(hvt__picture **ret_picture);
void hvt__picture_close(hvt__picture **picture);
/* The size of r's picture, from its header. r's data stay as they are up to the end of finish(); `path` names
 * it in messages and is copied. Errors: E_FORMAT, E_UNSUPPORTED, E_MEM. */
hvt_status hvt__picture_begin(hvt__picture *p, const hvt_record *r, const char *path, int *ret_h, int *ret_w);
/* The record was read to its end before: finish() stops reading where its view ends. Otherwise finish() reads
 * to the end, so that the verdict on a file does not depend on the view. */
void hvt__picture_trust(hvt__picture *p);
/* Decode and resample what the view wants: bytes [out_h,out_w,3]. JPEGs are decoded at the smallest scale
 * that covers the view. Whatever the outcome, begin() is next. Errors: E_ARG (a box outside the picture),
 * E_FORMAT, E_MEM. */
hvt_status hvt__picture_finish(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels);
/* Seconds that resampling has taken so far, decoding excluded. */
double hvt__picture_resampling(const hvt__picture *p);
/* Fails with a message that says what a record is that no decoder recognises: refuse.c. Errors: E_FORMAT,
 * E_UNSUPPORTED. */
hvt_status hvt__picture_refuse(const hvt_record *r, const char *path);
/* For tests: decode JPEGs at full size from now on. */
void hvt__picture_unscaled(hvt__picture *p);
/* A hash of two built-in JPEGs in several views. Hosts with the same hash make the same pixels of pictures. 0
 * where they cannot be decoded. */
uint64_t hvt__picture_digest(void);

/* Pixels [h,w,3] as a JPEG file: jpeg_encode.c. quality: 1 to 100, as libjpeg counts. Errors: E_MEM. */
hvt_status hvt__jpeg_encode(const uint8_t *pixels, int h, int w, int quality, hvt_record *ret_file);

/* ---- decoders --------------------------------------------------------------------------------- */

/* Columns [x0,x1) of rows [y0,y1) of a picture at eighths/8 of its size (rounded up). */
typedef struct hvt__region {
    int eighths;
    int x0, x1, y0, y1;
} hvt__region;

enum { HVT__ROW_SLACK = 64 }; /* readable bytes after a row: kernels load whole vectors */

/* A picture format. A context serves one picture after the other: begin(), start(), rows() ..., end(). */
typedef struct hvt__decoder {
    const char *name;
    bool scales; /* knows eighths other than 8 */
    bool (*recognise)(const hvt_record *r);
    hvt_status (*open)(void **ret_ctx);
    void (*close)(void *ctx);
    /* The size; r and path are borrowed up to end(). */
    hvt_status (*begin)(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w);
    /* Get ready for a region, whose columns may grow on both sides. */
    hvt_status (*start)(void *ctx, hvt__region *region);
    /* The region's next n rows: rows[i] has space for one, or is set to where it lies. */
    hvt_status (*rows)(void *ctx, int n, uint8_t **rows);
    /* Give up what the picture took; also after an error. check: all rows that were wanted have come, and the
     * rest of the file must be looked at. */
    hvt_status (*end)(void *ctx, bool check);
} hvt__decoder;

/* Say once that a picture of 16-bit grey is read as Pillow reads it, and how that is. */
void hvt__warn_of_white(const char *path);

extern const hvt__decoder hvt__decoder_jpeg, hvt__decoder_png, hvt__decoder_ppm, hvt__decoder_pixels;

/* ---- resampling: resample.c -------------------------------------------------------------------- */

/* What the outputs of one axis are made of: output i is the sum of weight[i * taps + k] / 16384 times input
 * first[i] + k. */
typedef struct hvt__axis {
    int count, taps; /* taps: even; weights at the end may be 0, and their inputs need not exist */
    int begin, end;  /* the inputs that any output needs */
    int *first;
    int16_t *weight;
    size_t room; /* bytes behind first and weight */
} hvt__axis;

typedef struct hvt__resampler {
    hvt__axis down, across;
    uint8_t *scratch; /* row buffers, see resample.c */
    size_t room;
    double seconds; /* that resampling has taken so far, without its rows' decoding */
} hvt__resampler;

void hvt__resampler_free(hvt__resampler *r);
/* Outputs [from, from + count) of `full` that cover inputs from `at` on, `size` of them, of which there are
 * those in [low, high). `path` is for messages. Errors: E_MEM, E_UNSUPPORTED. */
hvt_status hvt__axis_plan(const char *path, hvt__axis *a, double at, double size, int full, int from,
                          int count, int low, int high);
/* The planned outputs of rows that a decoder yields from row down.begin and column x0 on, `width` columns
 * each; rows of ret_pixels are `pitch` bytes apart. Errors: E_MEM, E_UNSUPPORTED and the decoder's. */
hvt_status hvt__resample(const char *path, hvt__resampler *r, const hvt__decoder *d, void *ctx, int x0,
                         int width, uint8_t *ret_pixels, size_t pitch);

/* Instruction sets of the kernels, the weakest first; all give the same bits. NULL: there is none of this
 * number, or the processor lacks it. use() takes another one than the strongest, for tests. */
const char *hvt__resample_isa(int isa);
void hvt__resample_use(int isa);

#endif /* HVT_IMAGE_IMPL_H */
