/*
 * fetch.h - one image of a batch: read, decoded, resampled, and its draws.
 *
 * An image that is fetched is a pure function of (set, options, epoch, index), whichever thread fetches it.
 */
#ifndef HVT_DATA_FETCH_H
#define HVT_DATA_FETCH_H

#include "hvt/data.h"
#include "base_impl.h"

#include <pthread.h>
#include <stdatomic.h>

/* Where it goes. */
typedef struct hvt__target {
    uint8_t *pixels; /* [H,W,C] bytes or floats */
    int32_t *label;
    float *targets; /* [info.targets]; NULL: the set has none */
    int8_t *draw;   /* [3] crop offset dy, dx, and whether it is mirrored; NULL: neither */
} hvt__target;

/* What is the same for all images of a loader. */
typedef struct hvt__fetch {
    const hvt_dataset *set;           /* borrowed */
    const hvt_loader_opts *opts;      /* borrowed */
    hvt_dataset_info info;            /* with the size of the batches' images */
    size_t source_bytes, image_bytes; /* before and after it is made grey */
    bool reads;                       /* records, not pixels at once */
    bool pictures;                    /* images are resampled or cut */

    _Atomic uint8_t *sound; /* a bit for each image that was read to its end; NULL: images are no pictures */

    pthread_mutex_t lock;
    uint32_t *damaged; /* [opts->skip_damaged] indices of those that were skipped */
    atomic_int ndamaged;
} hvt__fetch;

/* A thread's own. */
typedef struct hvt__fetcher hvt__fetcher;

/* The size of a loader's images. Errors: E_ARG, E_UNSUPPORTED; see hvt_loader_opts. */
hvt_status hvt__fetch_size(const hvt_dataset_info *info, const hvt_loader_opts *o, int *ret_h, int *ret_w);
/* After hvt__fetch_size(). set and opts are borrowed. Errors: E_ARG, E_UNSUPPORTED, E_MEM. */
hvt_status hvt__fetch_open(const hvt_dataset *set, const hvt_loader_opts *opts, hvt__fetch *ret_fetch);
void hvt__fetch_close(hvt__fetch *f); /* nothing to do for one of zeros */

hvt_status hvt__fetcher_open(const hvt__fetch *f, hvt__fetcher **ret_fetcher);
void hvt__fetcher_close(hvt__fetcher **fetcher);

/* Image `index` of the set, or what takes its place if it is damaged. Errors: the source's, the decoder's;
 * they name the file. */
hvt_status hvt__fetch_image(hvt__fetch *f, hvt__fetcher *w, uint32_t index, int epoch, const hvt__target *to);

/* Image `index` will be fetched soon: where reading has been slow, let the disk begin. */
void hvt__fetch_ahead(const hvt__fetch *f, hvt__fetcher *w, uint32_t index);

/* ---- from another thread ---- */

bool hvt__fetch_damaged(hvt__fetch *f, uint32_t index); /* it was, and it was skipped */
/* What n fetchers have done so far is added. */
void hvt__fetch_count(const hvt__fetch *f, hvt__fetcher *const w[], int n, hvt_loader_info *ret_info);
/* "reading FILE" of the fetcher that has been at it longest; "": none is busy. */
void hvt__fetch_about(const hvt__fetch *f, hvt__fetcher *const w[], int n, char *ret_text, size_t room);

#endif /* HVT_DATA_FETCH_H */
