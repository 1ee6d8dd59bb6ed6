/* optim_impl.h - an optimizer's state and its parts, for src/optim and src/train/checkpoint.c. */
#ifndef HVT_OPTIM_IMPL_H
#define HVT_OPTIM_IMPL_H

#include "hvt/optim.h"
#include "model_impl.h"

/* What an optimizer must be able to do. */
typedef struct hvt_optim_ops {
    const char *name;
    hvt_status (*check)(const hvt_optim_opts *opts); /* E_ARG naming the value */
    bool (*keeps_state)(const hvt_optim_opts *opts); /* needs v */
    hvt_status (*update)(hvt_optim *o, double lr, float scale, float weight_decay, size_t first,
                         size_t count); /* elements first ... of the arenas, with g read as scale*g */
} hvt_optim_ops;

extern const hvt_optim_ops hvt_optim_sgd;

struct hvt_optim {
    const hvt_optim_ops *ops;
    hvt_model *m; /* borrowed */
    hvt_optim_opts opts;
    float *v;   /* momentum, device memory at the parameters' offsets; NULL without momentum */
    bool fresh; /* no step taken: v holds nothing yet */
};

/* A step is hvt__optim_span over every span [first, end) of whole parameters, with g read as scale*g, and
 * then one hvt__optim_end: `fresh` holds for all spans of the first step and falls at its end, and the model
 * learns that its parameters changed. */
hvt_status hvt__optim_span(hvt_optim *o, double lr, float scale, size_t first, size_t end);
void hvt__optim_end(hvt_optim *o);

/* Cut the arena from `start` into buckets that end at layers' ends, end[layers] ascending; offsets count
 * floats. Writes the buckets' ends, at most `layers` of them, and returns how many. */
int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end);

/* A span of the gradient arena that travels at once. */
typedef struct hvt_bucket {
    size_t first, end;
    hvt_dtype wire;    /* how it travels */
    hvt_ticket ticket; /* of the step under way */
} hvt_bucket;

/* The plan of buckets for a model, *ret_count > 0; free() it. */
hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, hvt_bucket **ret_bucket,
                            int *ret_count);

/* Compare over all ranks what must be the same. Collective. */
hvt_status hvt__distopt_agree(const hvt_optim *o, hvt_world *world, const hvt_distopt_opts *opts,
                              const hvt_bucket *bucket, int nbucket, const hvt_item *items, int n);

#endif /* HVT_OPTIM_IMPL_H */
