/* net_impl.h - a net, and what its files share. Included by src/net only. */
#ifndef HVT_NET_IMPL_H
#define HVT_NET_IMPL_H

#include "hvt/net.h"

struct hvt_net {
    hvt_net_opts opts; /* with defaults filled in */
    hvt_net_parts has;
    hvt_device **stage; /* [opts.devices] a split model's; NULL: not split */
    size_t pixels;      /* elements of an image */
    int shards;         /* of a step, over all ranks; only the first `used` have images */
    int used;
    int *counts;     /* [shards] images in each */
    int32_t *calls;  /* [ranks] what each has called */
    int *first_of;   /* [ranks + 1] each rank's shards */
    int64_t updates; /* so far */
    int64_t epochs;  /* passes so far, which key the order of images */
};

/* The collective calls, as messages name them. */
typedef enum hvt__net_call { HVT__NET_TRAIN, HVT__NET_SAVE, HVT__NET_LOAD, HVT__NET_CALLS } hvt__net_call;

/* ---- net_data.c ---- */

/* Agrees on the call that begins, so that a rank that makes another call, or has closed the net, is an error
 * and not an endless wait. Collective. */
hvt_status hvt__net_begin(const hvt_net *net, hvt__net_call call);

/* This rank's images of an update, for its shards. */
typedef struct hvt__net_rows {
    const char *images;  /* in the caller's type and layout */
    const char *targets; /* int32_t labels, or floats */
    void *memory;
} hvt__net_rows;

/* The images of all ranks in a call of hvt_net_train(). */
typedef struct hvt__net_images {
    const hvt_net_data *data;
    void *targets;    /* [count][labels] int32_t, or [count][outputs] floats */
    int64_t *first;   /* [ranks + 1] the number of each rank's first image */
    uint32_t *order;  /* [all] the epoch's; NULL: by number */
    size_t row, goal; /* bytes of an image and of its targets */
} hvt__net_images;

hvt_status hvt__net_check_images(const hvt_net *net, const hvt_net_data *data);
/* Checks this rank's arguments and converts its targets. Local. */
hvt_status hvt__net_convert(const hvt_net *net, const hvt_net_data *data, void **ret_targets);
/* Sends the images at positions [at, at + n) of the epoch to the ranks that compute them. Collective. */
hvt_status hvt__net_bring(const hvt_net *net, const hvt__net_images *all, int64_t at, int64_t n,
                          hvt__net_rows *ret_rows);
/* Converts to HVT_F64, HVT_F16 or HVT_BF16. */
void hvt__net_store(const float *from, size_t n, hvt_dtype type, void *to);

/* ---- net.c ---- */

/* Plans shards for updates of n images. Collective, with the same n on all ranks. */
hvt_status hvt__net_divide(hvt_net *net, int64_t n);

#endif /* HVT_NET_IMPL_H */
