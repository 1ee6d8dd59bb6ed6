/* dist.h - internals of the distributed optimizer, shared by the files of src/optim. */
#ifndef HVT_OPTIM_DIST_H
#define HVT_OPTIM_DIST_H

#include "optim_impl.h"
#include "base/trace.h"
#include "comm/sums.h"

enum { HVT__DIST_LEVELS = 31 /* partials: one for each bit of a number of shards */ };

/* An update path: who updates what, and when (update_path.c). */
typedef struct hvt__update_path {
    /* The bucket is final on this rank: post it, in the codec's first or second round. */
    hvt_status (*post)(hvt_distopt *d, hvt_bucket *b);
    /* The step is decided, and the bucket's sums have arrived. NULL: waiting for the last bucket updates all
     * parameters. */
    hvt_status (*update)(hvt_distopt *d, hvt_bucket *b);
    bool gathers; /* update() posts an operation that must complete, too */
} hvt__update_path;

extern const hvt__update_path hvt__update_replicated, hvt__update_sliced, hvt__update_fused;

/*
 * How gradients travel: codec.c, powersgd.c, adasum.c. A step encodes a bucket, sums the span that span()
 * returns, and decodes the result into the gradient arena. With a second round, second() makes the next span
 * from the first sums, and this span is summed, too. NULL: nothing to do.
 */
typedef struct hvt__codec {
    hvt_dtype wire; /* type of what is sent */
    bool whole;     /* works on whole tensors: buckets are cut neither into pieces nor into slices */
    bool each;      /* gets each shard's gradients; otherwise shards of a rank are added before */

    /* life */
    hvt_status (*check)(const hvt_optim *o, const hvt_distopt_opts *opts);
    hvt_status (*open)(hvt_distopt *d); /* sets coded_bytes; close() frees what a failed open() leaves */
    void (*close)(hvt_distopt *d);

    /* a step */
    hvt_status (*begin)(hvt_distopt *d, int64_t images);
    hvt_status (*encode)(hvt_distopt *d, const hvt_bucket *b);
    void *(*span)(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count); /* for the bucket's round */
    hvt_status (*post)(hvt_distopt *d, hvt_bucket *b);                           /* NULL: sum the span */
    hvt_status (*second)(hvt_distopt *d, const hvt_bucket *b); /* the first round's sums have arrived */
    hvt_status (*decode)(hvt_distopt *d, size_t first, size_t n);
    void (*end)(hvt_distopt *d);  /* the step is complete */
    void (*drop)(hvt_distopt *d); /* the step was given up, or a new run begins */

    /* between steps, collective: gather the state to be saved to root (-1: to every rank); broadcast the
     * state that root has loaded */
    hvt_status (*gather)(hvt_distopt *d, int root);
    hvt_status (*broadcast)(hvt_distopt *d, int root);
} hvt__codec;

extern const hvt__codec hvt__codec_f32, hvt__codec_powersgd, hvt__codec_adasum;

struct hvt_distopt {
    hvt_optim *optim; /* borrowed */
    hvt_comm *comm;   /* borrowed */
    hvt_world *world; /* the comm's */
    int rank, ranks;
    hvt_distopt_opts opts;
    const hvt__update_path *update_path;
    const hvt__codec *codec;
    void *codec_state;
    size_t coded_bytes; /* bytes of the codec in the comm's memory */
    bool needs_all;     /* the decision needs every sum: one may be infinite though the loss is finite */
    bool stats_alone;   /* step statistics fill the first bucket alone, as f32 */

    hvt_bucket *bucket; /* [nbucket] */
    int nbucket;

    /* one block of the comm's memory */
    float *grads; /* the model's gradient arena */
    void *coded;  /* the codec's */
    float *flags; /* step statistics, a flag per rank, digits; NULL: not needed. See nonfinite.c */

    float *squares; /* digits of each parameter's sums of squares; NULL: not needed. See trust.c */

    float *leaves;   /* the comm's memory for sums.extra; NULL: sums.extra is in the gradients' block */
    int leaves_room; /* arenas that sums.extra has */
    float *partial[HVT__DIST_LEVELS]; /* device memory, an arena each; NULL above the highest in use */
    float *params;                    /* shared by a node's ranks; NULL: this rank has its own */
    float *v;                         /* state, shared by all ranks; NULL: this rank has its own */
    const float **g;                  /* [ranks] a slice of each rank's gradients */

    struct hvt__moments *moments; /* of synchronized batch norms; NULL: there are none */

    int shards;           /* on all ranks */
    int *first_of;        /* [ranks + 1] the first shard of each rank, then `shards` */
    hvt__partials sums;   /* leaves NULL: a partial sum per rank, added along the comm's tree over ranks */
    int *counts;          /* [shards] images in this step */
    double lr;            /* in this step */
    bool vote[HVT_VOTES]; /* this rank's votes, used from the next step on */

    /* progress of the step */
    bool begun;
    bool decided;          /* sums are applied, not discarded, as they arrive; see update_path.c */
    float wire_scale;      /* gradients times this power of two travel on 16-bit wires */
    int pass;              /* local shards done */
    size_t *mark;          /* [local_shards] */
    int launched, arrived; /* buckets sent, and waited for */
    bool capturing;        /* between the beginning and the end of a capture */
    int64_t tracked;       /* the model's batches when the capture began */

    double exposed;
    double updating;                            /* seconds that updates took during the current wait */
    int64_t skipped, stopped, votes[HVT_VOTES]; /* as of the last check */
    double loss_scale;
};

/* ---- step.c ---- */

void hvt__distopt_drop(hvt_distopt *d); /* resets a step that has nothing in flight */
/* Waits for all launched buckets until something fails. The sums are discarded. */
hvt_status hvt__await_rest(hvt_distopt *d);

/* ---- wait.c ---- */

/* Begins the bucket's part of a phase in the trace. */
void hvt__phase_begin(const hvt_distopt *d, hvt__phase phase, const hvt_bucket *b);
/* Waits for the bucket's last operation. decodes: decodes its sums, or this rank's slice of them, into the
 * gradient arena, and checks that they are finite. */
hvt_status hvt__await(hvt_distopt *d, const hvt_bucket *b, bool decodes);

/* ---- codec.c ---- */

/* A bucket in the gradient arena, for codecs that send it as it is. */
void *hvt__span_f32(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count);
/* Selects the codec for these options. Errors: E_ARG, E_UNSUPPORTED. */
hvt_status hvt__codec_pick(const hvt_optim *o, const hvt_distopt_opts *opts, const hvt__codec **ret_codec);

/* ---- slices.c: shared memory and slices ---- */

/* Shares parameters and state as the update and the comm require. Collective. */
hvt_status hvt__slices_open(hvt_distopt *d);
/* Collective. give_back: restores every rank's own copies; otherwise no rank has any. */
void hvt__slices_close(hvt_distopt *d, bool give_back);
/* Makes the slices of new buckets, before d gets them. Collective, between steps. */
hvt_status hvt__slices_replan(hvt_distopt *d, hvt_bucket *bucket, int n);
/* broadcast: root's parameters and state to all ranks. gather: all of the state to root (-1: to every rank),
 * in o->whole. forget: frees o->whole. The first two are collective, between steps. */
hvt_status hvt__slices_broadcast(hvt_distopt *d, int root);
hvt_status hvt__slices_gather(hvt_distopt *d, int root);
hvt_status hvt__slices_forget(hvt_distopt *d);

/* ---- nonfinite.c ---- */

size_t hvt__flags_bytes(const hvt_distopt *d); /* bytes of d->flags; 0: not needed */
/* Call when each rank has checked its slices of the sums. Sets step->bad to the least of all ranks', and
 * step->squares to their sum. */
hvt_status hvt__flags_exchange(hvt_distopt *d);

/* ---- clip.c: bins of squares in digits whose sum over all ranks is exact in f32 ---- */

size_t hvt__bin_digits(const hvt_distopt *d);  /* digits of one sum of squares */
size_t hvt__clip_digits(const hvt_distopt *d); /* 0: gradients are not clipped */
void hvt__bins_write(const hvt_distopt *d, const int64_t bin[HVT__SQUARES_BINS], float *ret_digit);
void hvt__bins_read(const hvt_distopt *d, const float *sum, int64_t ret_bin[HVT__SQUARES_BINS]);

/* ---- trust.c: the ratios of LARS and LAMB ---- */

size_t hvt__trust_bytes(const hvt_distopt *d); /* bytes of d->squares; 0: not needed */
/* Computes the ratios. Call after the decision, before any update. */
hvt_status hvt__trust_ratios(hvt_distopt *d);

/* ---- replicas.c ---- */

/* Between steps, at the chosen interval: compares the ranks' replicas. Collective. */
hvt_status hvt__replicas_check(const hvt_distopt *d);

/* ---- moments.c: statistics of batch norms over all ranks ---- */

/* Call after the gradients got memory of the comm and before the model uses it. Collective; the same errors
 * on all ranks. */
hvt_status hvt__moments_open(hvt_distopt *d);
void hvt__moments_close(hvt_distopt *d); /* collective */

/* ---- fingerprint.c ---- */

/* Compares everything that must be equal on all ranks, and the caller's items[n]. Collective. */
hvt_status hvt__distopt_agree(const hvt_distopt *d, const hvt_item *items, int n);

#endif /* HVT_OPTIM_DIST_H */
