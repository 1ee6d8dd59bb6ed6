/*
 * image_impl.h - from a picture file to pixels of a batch's size.
 *
 * Included by src/data. A picture is a decoder with its scratch memory: one per thread, without locks. Pixels
 * are red, green and blue bytes for every file, as Pillow's convert("RGB") makes them.
 */
#ifndef HVT_IMAGE_IMPL_H
#define HVT_IMAGE_IMPL_H

#include "hvt/data.h"
#include "base_impl.h"

#define HVT__IMAGE_SIDE_MAX 65500 /* longest side of a picture in pixels; the JPEG library's own limit */
/* The memory that decoding one picture may allocate. JPEG, PNG and PPM files that are read from top to bottom
 * need a few rows; progressive JPEGs and interlaced PNGs are held as a whole. */
#define HVT__IMAGE_MEMORY_MAX ((size_t)1 << 30)

/* ---- views: which pixels of a picture become the target's: view.c ---------------------------- */

typedef struct hvt__view {
    int x, y, w, h;     /* box in the picture */
    int full_h, full_w; /* the size to which the box is resampled, antialiased, as by torchvision's Resize */
    int top, left, out_h, out_w; /* the window of the resampled box to produce; zero outside the box */
} hvt__view;

/* A view of the whole picture at its own size. */
hvt__view hvt__view_whole(int h, int w);
/* The view of torchvision's RandomResizedCrop of a picture of h x w; a pure function of its arguments. */
hvt__view hvt__view_rrc(int h, int w, const hvt_rrc *opts, uint64_t seed, int epoch, uint32_t sample,
                        int out_h, int out_w);
/* The box of torchvision's RandomErasing(p=chance) in an image of h x w: top, left, height, width; false, and
 * all 0, if nothing is erased. A pure function of its arguments. */
bool hvt__erase_box(int h, int w, float chance, uint64_t seed, int epoch, uint32_t sample,
                    int16_t ret_box[4]);
/* The view of torchvision's Resize(resize) (0: none) and CenterCrop((out_h, out_w)), which pads small
 * pictures with zeros. */
hvt__view hvt__view_centre(int h, int w, int resize, int out_h, int out_w);

/* ---- pictures: picture.c --------------------------------------------------------------------- */

typedef struct hvt__picture hvt__picture;

hvt_status hvt__picture_open(hvt__picture **ret_picture);
void hvt__picture_close(hvt__picture **picture);
/* Enlarges *memory, of *room bytes, to at least `bytes` bytes, for decoding `kind` of h x w pixels; new
 * memory is zeroed. Errors: E_UNSUPPORTED above HVT__IMAGE_MEMORY_MAX, E_MEM. */
hvt_status hvt__image_reserve(const char *path, const char *kind, int h, int w, uint8_t **memory,
                              size_t *room, size_t bytes);
/* Reads the picture's size from its header. r's data must not change before the end of finish(); `path` names
 * the picture in messages and is copied. Errors: E_FORMAT, E_UNSUPPORTED, E_MEM. */
hvt_status hvt__picture_begin(hvt__picture *p, const hvt_record *r, const char *path, int *ret_h, int *ret_w);
/* From now on turns and mirrors pictures by their EXIF orientation, as Pillow's ImageOps.exif_transpose()
 * does. Sizes and views then refer to the turned picture. */
void hvt__picture_turn(hvt__picture *p);
/* Returns the EXIF orientation of a JPEG, PNG, WebP or TIFF file, 1 to 8; 1: as stored. In exif.c. */
int hvt__orientation(const hvt_record *r);
/* Call if the record was read to its end before: finish() then stops where its view ends. Otherwise finish()
 * reads to the end, so that the verdict on a file does not depend on the view. */
void hvt__picture_trust(hvt__picture *p);
/* Decodes and resamples the view: bytes [out_h,out_w,3]. JPEGs are decoded at the smallest scale that covers
 * the view. The next call is begin(), also after an error. Errors: E_ARG (a box outside the picture),
 * E_FORMAT, E_MEM. */
hvt_status hvt__picture_finish(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels);
/* Seconds spent resampling so far, without decoding. */
double hvt__picture_resampling(const hvt__picture *p);
/* Refuses a record that no decoder recognises, with a message that says what it is: refuse.c. Errors:
 * E_FORMAT, E_UNSUPPORTED. */
hvt_status hvt__picture_refuse(const hvt_record *r, const char *path);
/* For tests: decode JPEGs at full size from now on. */
void hvt__picture_unscaled(hvt__picture *p);
/* A hash of two built-in JPEGs in several views. Hosts with the same hash decode pictures to the same pixels.
 * 0 if they cannot be decoded. */
uint64_t hvt__picture_digest(void);

/* Writes pixels [h,w,channels] of 1 or 3 channels as a PNG file: png.c. Errors: E_IO. */
hvt_status hvt__png_write(const char *path, const uint8_t *pixels, int h, int w, int channels);
/* Encodes pixels [h,w,3] as a JPEG file: jpeg_encode.c. quality: 1 to 100, as in libjpeg. Errors: E_MEM. */
hvt_status hvt__jpeg_encode(const uint8_t *pixels, int h, int w, int quality, hvt_record *ret_file);

/* ---- operations on pixels: enhance.c --------------------------------------------------------- */

/* Operations by torchvision's names. RandAugment's come first, in its order. */
typedef enum hvt__op {
    HVT__IDENTITY,
    HVT__SHEAR_X,     /* value: pixels per row; negative to the right */
    HVT__SHEAR_Y,     /* pixels per column */
    HVT__TRANSLATE_X, /* pixels, to the right */
    HVT__TRANSLATE_Y, /* pixels, down */
    HVT__ROTATE,      /* degrees, counterclockwise */
    HVT__BRIGHTNESS,  /* factor, 0 or more: 1 changes nothing */
    HVT__COLOR,       /* factor of the saturation */
    HVT__CONTRAST,    /* factor */
    HVT__SHARPNESS,   /* factor */
    HVT__POSTERIZE,   /* bits that stay, 1 to 8 */
    HVT__SOLARIZE,    /* threshold */
    HVT__AUTOCONTRAST,
    HVT__EQUALIZE,
    HVT__INVERT,
    HVT__HUE /* turns, -0.5 to 0.5 */
} hvt__op;

typedef struct hvt__edit {
    hvt__op op;
    double value;
} hvt__edit;

/* Changes an image [h,w,c] of 1 or 3 channels; sides up to HVT_SIDE_MAX. from and to are different;
 * a byte after from's image is readable. */
void hvt__enhance(const hvt__edit *e, int h, int w, int c, const uint8_t *from, uint8_t *to);

/* Adds by / 256 turns to the hue of RGB pixels: hue.c. */
void hvt__rotate_hue(size_t pixels, uint8_t by, const uint8_t *from, uint8_t *to);

/* ---- random operations: policy.c ------------------------------------------------------------- */

enum { HVT__EDITS = 4 + HVT_EDITS_MAX }; /* the largest number of edits of an image */

bool hvt__edits_any(const hvt_edits *o); /* true if any is on */
/* Errors: E_ARG. */
hvt_status hvt__edits_check(const hvt_edits *o);
/* Draws the edits of a sample, which has h x w pixels; a pure function of its arguments. Returns how many
 * there are. */
int hvt__edits_draw(const hvt_edits *o, int h, int w, uint64_t seed, int epoch, uint32_t sample,
                    hvt__edit ret_edit[HVT__EDITS]);

/* ---- decoders -------------------------------------------------------------------------------- */

/* Columns [x0,x1) of rows [y0,y1) of a picture at eighths/8 of its size (rounded up). */
typedef struct hvt__region {
    int eighths;
    int x0, x1, y0, y1;
} hvt__region;

enum { HVT__ROW_SLACK = 64 }; /* readable bytes after a row: kernels load whole vectors */

/* A picture format. A context serves one picture at a time: begin(), start(), rows() ..., end(). */
typedef struct hvt__decoder {
    const char *name;
    bool scales; /* supports eighths other than 8 */
    bool (*recognise)(const hvt_record *r);
    hvt_status (*open)(void **ret_ctx);
    void (*close)(void *ctx);
    /* Reads the size; r and path are borrowed up to end(). */
    hvt_status (*begin)(void *ctx, const hvt_record *r, const char *path, int *ret_h, int *ret_w);
    /* Prepares a region, whose columns it may extend on both sides. */
    hvt_status (*start)(void *ctx, hvt__region *region);
    /* The region's next n rows: writes to rows[i], or sets rows[i] to the row in its own memory. */
    hvt_status (*rows)(void *ctx, int n, uint8_t **rows);
    /* Releases the picture; also after an error. check: all wanted rows have been read, and the rest of the
     * file must be checked. */
    hvt_status (*end)(void *ctx, bool check);
    bool turned; /* EXIF orientation always applies, as in Pillow */
} hvt__decoder;

/* Decodes a mask, a PNG file: a byte per pixel in ret_mask, with height and width. Errors: E_FORMAT naming
 * `path`, E_MEM. */
hvt_status hvt__mask_decode(const hvt_record *r, const char *path, hvt_record *ret_mask);

/* Writes a mask as a PNG of palette indices, whose colours are those of PASCAL VOC. Errors: E_IO. */
hvt_status hvt__mask_write(const char *path, const uint8_t *mask, int h, int w);

/* Warns once how a picture of 16-bit grey is converted, as by Pillow. */
void hvt__warn_of_white(const char *path);

extern const hvt__decoder hvt__decoder_jpeg, hvt__decoder_png, hvt__decoder_ppm, hvt__decoder_bmp,
    hvt__decoder_webp, hvt__decoder_tiff, hvt__decoder_pixels; /* WebP and TIFF: only if built in */

/* ---- resampling: resample.c ------------------------------------------------------------------ */

/* The weights of one axis: output i is the sum of weight[i * taps + k] / 16384 times input first[i] + k. */
typedef struct hvt__axis {
    int count, taps; /* taps: even; trailing weights may be 0, whose inputs need not exist */
    int begin, end;  /* the inputs that any output needs */
    int *first;
    int16_t *weight;
    size_t room; /* size in bytes of the memory of first and weight */
} hvt__axis;

typedef struct hvt__resampler {
    hvt__axis down, across;
    uint8_t *scratch; /* row buffers, see resample.c */
    size_t room;
    double seconds; /* spent resampling so far, without decoding */
} hvt__resampler;

void hvt__resampler_free(hvt__resampler *r);
/* Plans outputs [from, from + count) of the `full` ones that cover `size` inputs from `at` on; inputs [low,
 * high) exist. `path` is for messages. Errors: E_MEM, E_UNSUPPORTED. */
hvt_status hvt__axis_plan(const char *path, hvt__axis *a, double at, double size, int full, int from,
                          int count, int low, int high);
/* Computes the planned outputs from a decoder's rows, from row down.begin and column x0 on, `width` columns
 * each; rows of ret_pixels are `pitch` bytes apart. Errors: E_MEM, E_UNSUPPORTED and the decoder's. */
hvt_status hvt__resample(const char *path, hvt__resampler *r, const hvt__decoder *d, void *ctx, int x0,
                         int width, uint8_t *ret_pixels, size_t pitch);

/* Instruction sets of the kernels, the weakest first; all give the same bits. NULL if there is no such
 * number, or the processor lacks the set. use() overrides the strongest one, for tests. */
const char *hvt__resample_isa(int isa);
void hvt__resample_use(int isa);

#endif /* HVT_IMAGE_IMPL_H */
