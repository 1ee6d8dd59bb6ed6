/* dist.h - a distributed optimizer, as distopt.c and its neighbours see it. */
#ifndef HVT_OPTIM_DIST_H
#define HVT_OPTIM_DIST_H

#include "optim_impl.h"
#include "base/trace.h"
#include "comm/sums.h"

enum { HVT__DIST_LEVELS = 31 /* partials: more than shards have bits */ };

/* Who updates what, and when: way.c. */
typedef struct hvt__way {
    /* The bucket is final on this rank: let it travel, in the codec's first or second round. */
    hvt_status (*post)(hvt_distopt *d, hvt_bucket *b);
    /* The step was decided, and the bucket's sums are here. NULL: whoever waits for the last bucket has then
     * updated all of them. */
    hvt_status (*update)(hvt_distopt *d, hvt_bucket *b);
    bool gathers; /* what the last update has posted has to come back, too */
} hvt__way;

extern const hvt__way hvt__way_replicated, hvt__way_sliced, hvt__way_fused;

/*
 * How gradients travel: codec.c, powersgd.c. A step encodes a bucket, lets what span() names be summed, and
 * decodes what has come back into the gradient arena. With a second round, what span() names then is made
 * from the sums of the first one, and summed, too. NULL: there is nothing to do.
 */
typedef struct hvt__codec {
    hvt_dtype wire; /* of what travels */
    bool whole;     /* works on whole tensors: a bucket is neither cut into pieces nor into slices */

    /* life */
    hvt_status (*check)(const hvt_optim *o, const hvt_distopt_opts *opts);
    hvt_status (*open)(hvt_distopt *d); /* what fails is left to close; sets coded_bytes */
    void (*close)(hvt_distopt *d);

    /* a step */
    hvt_status (*begin)(hvt_distopt *d, int64_t images);
    hvt_status (*encode)(hvt_distopt *d, const hvt_bucket *b);
    void *(*span)(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count); /* of the bucket's round */
    hvt_status (*second)(hvt_distopt *d, const hvt_bucket *b); /* the first round's sums have come */
    hvt_status (*decode)(hvt_distopt *d, size_t first, size_t n);
    void (*end)(hvt_distopt *d);  /* it is over */
    void (*drop)(hvt_distopt *d); /* it was given up, or a new run begins */

    /* between steps, collective: what is to be saved to root (-1: to every rank); what root has loaded to the
     * ranks */
    hvt_status (*gather)(hvt_distopt *d, int root);
    hvt_status (*broadcast)(hvt_distopt *d, int root);
} hvt__codec;

extern const hvt__codec hvt__codec_f32, hvt__codec_powersgd;

struct hvt_distopt {
    hvt_optim *optim; /* borrowed */
    hvt_comm *comm;   /* borrowed */
    hvt_world *world; /* the comm's */
    int rank, ranks;
    hvt_distopt_opts opts;
    const hvt__way *way;
    const hvt__codec *codec;
    void *codec_state;
    size_t coded_bytes; /* of the comm's memory that the codec takes */
    bool needs_all; /* the decision about a step needs every sum: one may not be finite though the loss is */
    bool stats_alone; /* in the first bucket: step statistics are always all-reduced as f32 */

    hvt_bucket *bucket; /* [nbucket] */
    int nbucket;

    /* in the comm's memory, one block */
    float *grads; /* the model's gradient arena */
    void *coded;  /* the codec's */
    float *flags; /* step statistics, a flag of every rank, digits; NULL: none travel. See nonfinite.c */

    float *leaves;   /* the comm's memory for sums.extra; NULL: it lies in the gradients' block */
    int leaves_room; /* arenas that sums.extra has */
    float *partial[HVT__DIST_LEVELS]; /* device memory, an arena each; NULL past the highest in use */
    float *params;   /* one block for a node's ranks; NULL: the model's are this rank's own */
    float *v;        /* state, one block for all ranks; NULL: this rank's own */
    const float **g; /* [ranks] a slice of the gradients of each */

    struct hvt__moments *moments; /* of synchronized batch norms; NULL: there are none */

    int shards;           /* of all ranks */
    int *first_of;        /* [ranks + 1] the first shard of each rank; behind them, `shards` */
    hvt__partials sums;   /* leaves NULL: one partial sum of each rank, and the comm's tree over ranks */
    int *counts;          /* [shards] images of the step under way */
    double lr;            /* its learning rate */
    bool vote[HVT_VOTES]; /* of this rank, in each step from the next one on */

    /* where the step stands */
    bool begun;
    bool decided;          /* sums that come are to be applied, not passed over; see way.c */
    float wire_scale;      /* a power of two: 16-bit wires carry gradients times it */
    int pass;              /* local shards done */
    size_t *mark;          /* [local_shards] */
    int launched, arrived; /* buckets sent, and waited for */
    bool capturing;        /* between the beginning and the end of a capture */
    int64_t tracked;       /* the model's batches when the capture began */

    double exposed;
    double updating;                            /* seconds of the wait under way that updates took */
    int64_t skipped, stopped, votes[HVT_VOTES]; /* as of the last check */
    double loss_scale;
};

/* ---- step.c ---- */

void hvt__distopt_drop(hvt_distopt *d); /* the step that was begun: nothing of it is under way any more */
/* Waits for all buckets that were launched, until something fails. Nobody reads the sums. */
hvt_status hvt__await_rest(hvt_distopt *d);
void hvt__phase_begin(const hvt_distopt *d, hvt__phase phase, const hvt_bucket *b);
/* Wait for what was posted of a bucket last. decodes: these are its sums; let them, or this rank's slice of
 * them, come into the gradient arena, and look whether they are finite. */
hvt_status hvt__await(hvt_distopt *d, const hvt_bucket *b, bool decodes);

/* ---- codec.c ---- */

/* The codec that these options ask for. Errors: E_ARG, E_UNSUPPORTED. */
hvt_status hvt__codec_pick(const hvt_optim *o, const hvt_distopt_opts *opts, const hvt__codec **ret_codec);

/* ---- slices.c: what ranks share, and what each has a slice of ---- */

/* Share parameters and state as far as the update and the comm ask for it. Collective. */
hvt_status hvt__slices_open(hvt_distopt *d);
/* Collective. Every rank has copies of its own again, or, unless give_back, none. */
void hvt__slices_close(hvt_distopt *d, bool give_back);
/* The same over these buckets, which are not d's yet. Collective, between steps. */
hvt_status hvt__slices_replan(hvt_distopt *d, hvt_bucket *bucket, int n);
/* Parameters and state of root to all; all of the state to root (-1: to every rank); forget what that left in
 * o->whole. The first two are collective; between steps. */
hvt_status hvt__slices_broadcast(hvt_distopt *d, int root);
hvt_status hvt__slices_gather(hvt_distopt *d, int root);
hvt_status hvt__slices_forget(hvt_distopt *d);

/* ---- nonfinite.c: step statistics leave last, and with them what every rank found in its slices ---- */

size_t hvt__flags_bytes(const hvt_distopt *d); /* of d->flags; 0: none travel */
/* Each rank has looked at its slices of the sums: now step->bad is the least of all ranks', and step->squares
 * the sum. */
hvt_status hvt__flags_exchange(hvt_distopt *d);

/* ---- clip.c: step->squares in digits, of which a float holds the sum over all ranks exactly ---- */

size_t hvt__clip_digits(const hvt_distopt *d); /* how many; 0: gradients are not clipped */
void hvt__clip_write(const hvt_distopt *d, float *ret_digit);
void hvt__clip_read(hvt_distopt *d, const float *sum);

/* ---- replicas.c ---- */

/* Between steps: if it is time, compare what ranks have copies of. Collective. */
hvt_status hvt__replicas_check(const hvt_distopt *d);

/* ---- moments.c: statistics of batch norms over all ranks ---- */

/* After the gradients have memory of the comm, and before the model's are there. Collective; errors on all
 * ranks alike. */
hvt_status hvt__moments_open(hvt_distopt *d);
void hvt__moments_close(hvt_distopt *d); /* collective */

/* ---- fingerprint.c ---- */

/* Compare over all ranks what must be the same; items[n]: the caller's. Collective. */
hvt_status hvt__distopt_agree(const hvt_distopt *d, const hvt_item *items, int n);

#endif /* HVT_OPTIM_DIST_H */
