/* dist.h - a distributed optimizer, as distopt.c and its neighbours see it. */
#ifndef HVT_OPTIM_DIST_H
#define HVT_OPTIM_DIST_H

#include "optim_impl.h"

enum { HVT__DIST_LEVELS = 31 /* partials: more than shards have bits */ };

struct hvt_distopt {
    hvt_optim *optim; /* borrowed */
    hvt_comm *comm;   /* borrowed */
    hvt_distopt_opts opts;
    hvt_bucket *bucket;
    int nbucket;
    size_t *bucket_bytes;

    float *grads;         /* the model's gradient arena, in the comm's memory */
    hvt_sharded *sharded; /* NULL: replicated */
    uint16_t *wire;       /* behind it: element i travels as wire[i]; NULL for f32 */
    bool late;            /* the rider leaves last, with what this rank has seen in its slices of the sums */
    int words;            /* of a rank, that ride with the rider */
    float *ride;          /* behind both: the rider, then [ranks][words]; NULL: the rider travels alone */
    float *partial[HVT__DIST_LEVELS]; /* device memory, an arena each; NULL past the highest in use */

    float *rest;          /* device memory, an arena: what factors left of gradients; NULL: it is lost */
    double rest_unit;     /* what a mean gradient of 1 is in it; 0: it holds nothing */
    int64_t rest_skipped; /* updates skipped when it was written */

    struct hvt__powersgd *powersgd; /* NULL: gradients travel one by one */

    int shards;
    int *counts;   /* [shards] images of the step under way */
    double lr;     /* its learning rate */
    int64_t inits; /* of the model's parameters, as of the last step */

    /* where the step stands */
    bool begun;
    float wire_scale; /* a power of two: 16-bit wires carry gradients times it */
    int pass;         /* local shards done */
    size_t mark;
    int launched, arrived; /* buckets sent, and waited for */

    double exposed;
    int64_t skipped, stopped; /* as of the last check */
    double loss_scale;
};

/* ---- step.c ---- */

void hvt__distopt_drop(hvt_distopt *d); /* the step that was begun: nothing of it is under way any more */

/* ---- distopt.c ---- */

bool hvt__needs_all(const hvt_distopt *d); /* the decision about a step needs every sum */
bool hvt__rider_alone(const hvt_distopt *d);

/* ---- codec.c: gradients as they travel ---- */

/* NULL, NULL: gradients travel as they are. */
typedef struct hvt__codec {
    hvt_dtype wire;
    /* elements first ... of the gradient arena, as they are to travel */
    hvt_status (*encode)(const hvt_distopt *d, size_t first, size_t n);
    /* what travelled as elements first ..., times s, into ret_g[n] */
    hvt_status (*decode)(const hvt_distopt *d, size_t first, size_t n, float s, float *ret_g);
    /* NULL, or there is a second round: the first sum has come, what is to travel now? */
    hvt_status (*again)(const hvt_distopt *d, size_t first, size_t n);
    bool whole; /* works on whole buckets, into the arena alone (s is 1) */
} hvt__codec;

const hvt__codec *hvt__codec_of(hvt_dtype wire); /* of single numbers; NULL: there is none */
const hvt__codec *hvt__codec_for(const hvt_distopt *d, const hvt_bucket *b);
size_t hvt__codec_chunk(const hvt_distopt *d);              /* elements that stay in a core's cache */
hvt_status hvt__rest_begin(hvt_distopt *d, int64_t images); /* a step begins: the rest in its unit */

/* ---- powersgd.c: gradients as factors of low rank ---- */

typedef struct hvt__powersgd hvt__powersgd;
extern const hvt__codec hvt__codec_powersgd;

hvt_status hvt__powersgd_open(hvt_distopt *d); /* what fails is left to close */
void hvt__powersgd_close(hvt_distopt *d);
size_t hvt__powersgd_bytes(const hvt_distopt *d); /* of the comm's memory; 0 without */
void hvt__powersgd_place(hvt_distopt *d, float *at);
/* What travels of a bucket in the round that it is in. */
float *hvt__powersgd_span(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count);
void hvt__powersgd_end(hvt_distopt *d);  /* of a step: the next one's Q */
void hvt__powersgd_draw(hvt_distopt *d); /* the first step's Q */
/* Between steps: the ranks' memory to root (-1: to every rank); what root has loaded to the ranks; gathered
 * ones are let go. The first two are collective. */
hvt_status hvt__powersgd_gather(hvt_distopt *d, int root);
hvt_status hvt__powersgd_broadcast(hvt_distopt *d, int root);
hvt_status hvt__powersgd_forget(hvt_distopt *d);

/* ---- ride.c: words of every rank that travel with the rider, so that no message is sent for them ---- */

int hvt__ride_words(const hvt_distopt *d);    /* of each rank */
size_t hvt__ride_bytes(const hvt_distopt *d); /* of d->ride; 0 without words */
hvt_status hvt__ride_launch(hvt_distopt *d, hvt_ticket *ret_ticket);
/* It has come: the rider's sums are in the arena, and if it was late, step->bad is the least of all ranks'.
 * E_MISMATCH, on all ranks alike, if their copies differ: naming the first tensor and the ranks. */
hvt_status hvt__ride_land(hvt_distopt *d);

#endif /* HVT_OPTIM_DIST_H */
