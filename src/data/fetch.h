/*
 * fetch.h - one image of a batch: read, decoded, resampled, and its draws.
 *
 * An image that is fetched is a pure function of (set, options, image), whichever thread fetches it.
 */
#ifndef HVT_DATA_FETCH_H
#define HVT_DATA_FETCH_H

#include "hvt/data.h"
#include "base_impl.h"

#include <pthread.h>
#include <stdatomic.h>

/* An image of an epoch. */
typedef struct hvt__image {
    uint32_t index;
    int epoch;
    uint64_t seed; /* key of its draws */
} hvt__image;

/* Where a fetched image goes. */
typedef struct hvt__target {
    uint8_t *pixels; /* [H,W,C] bytes or floats */
    int32_t *label;
    float *targets;  /* [info.targets]; NULL: the set has none */
    uint8_t *mask;   /* [H,W]; NULL: the set has none */
    int16_t *erased; /* [4] top, left, height and width of a box; NULL: none */
    int8_t *draw;    /* [3] crop offset dy, dx, and whether it is mirrored; NULL: the device does neither */
} hvt__target;

/* Common to all images of a loader. */
typedef struct hvt__fetch {
    const hvt_dataset *set;           /* borrowed */
    const hvt_loader_opts *opts;      /* with the batches' image size */
    hvt_dataset_info info;            /* with the size of the batches' images */
    size_t source_bytes, image_bytes; /* bytes of an image before and after it is made grey */
    size_t mask_bytes;                /* 0: no masks */
    bool reads;                       /* the source has read(), which gives records, not get() */
    bool pictures;                    /* images are resampled or cropped */
    bool edits; /* the host crops and mirrors images, and then changes them by random operations */

    _Atomic uint8_t *sound; /* a bit per image: read to its end; NULL: no pictures */

    pthread_mutex_t lock;
    uint32_t *damaged; /* [opts->skip_damaged] indices of skipped images */
    atomic_int ndamaged;
} hvt__fetch;

/* The state of a fetching thread. */
typedef struct hvt__fetcher hvt__fetcher;

/* The size of a loader's images. Errors: E_ARG, E_UNSUPPORTED; see hvt_loader_opts. */
hvt_status hvt__fetch_size(const hvt_dataset_info *info, const hvt_loader_opts *o, int *ret_h, int *ret_w);
/* Call after hvt__fetch_size(). set and opts are borrowed. Errors: E_ARG, E_UNSUPPORTED, E_MEM. */
hvt_status hvt__fetch_open(const hvt_dataset *set, const hvt_loader_opts *opts, hvt__fetch *ret_fetch);
void hvt__fetch_close(hvt__fetch *f); /* zeros are valid */

hvt_status hvt__fetcher_open(const hvt__fetch *f, hvt__fetcher **ret_fetcher);
void hvt__fetcher_close(hvt__fetcher **fetcher);

/* Fetches an image of the set, or its substitute if it is damaged. Errors: the source's, the decoder's;
 * they name the file. */
hvt_status hvt__fetch_image(hvt__fetch *f, hvt__fetcher *w, hvt__image image, const hvt__target *to);

/* Announces that image `index` will be fetched soon: if reading has been slow, starts to read it ahead. */
void hvt__fetch_ahead(const hvt__fetch *f, hvt__fetcher *w, uint32_t index);

/* ---- from another thread ---- */

bool hvt__fetch_damaged(hvt__fetch *f, uint32_t index); /* true if the image was damaged and skipped */
/* Adds up the work of n fetchers. */
void hvt__fetch_count(const hvt__fetch *f, hvt__fetcher *const w[], int n, hvt_loader_info *ret_info);
/* "reading FILE" for the fetcher that has been busy longest; "" if none is busy. */
void hvt__fetch_about(const hvt__fetch *f, hvt__fetcher *const w[], int n, char *ret_text, size_t room);

#endif /* HVT_DATA_FETCH_H */
