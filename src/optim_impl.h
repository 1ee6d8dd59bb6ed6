/* optim_impl.h - an optimizer's state and its parts, for src/optim and checkpoints in src/train. */
#ifndef HVT_OPTIM_IMPL_H
#define HVT_OPTIM_IMPL_H

#include "hvt/optim.h"
#include "model_impl.h"

/* What an optimizer must be able to do. */
typedef struct hvt_optim_ops {
    const char *name;
    hvt_status (*check)(const hvt_optim_opts *opts); /* E_ARG naming the value */
    bool (*keeps_state)(const hvt_optim_opts *opts); /* needs v */
    /* elements first ... of the arenas, as the model's step state says; g[ng]: gradient arenas to be added,
     * already moved to `first` */
    hvt_status (*update)(hvt_optim *o, float weight_decay, const float *const g[], int ng, size_t first,
                         size_t count);
} hvt_optim_ops;

extern const hvt_optim_ops hvt_optim_sgd;

/*
 * powersgd.c: what a run whose gradients travel as factors needs to go on besides the optimizer's state. As
 * gathered from the ranks, or loaded for them; see hvt_distopt_gather().
 */
typedef struct hvt__factored {
    int param, m; /* Q is [r][m] */
    size_t q_at, rest_at;
} hvt__factored;

typedef struct hvt__memory {
    int r, n;
    hvt__factored *tensor; /* [n] that travel as factors */
    size_t q_count, rest_count;
    const float *in_use; /* [q_count] the Q of the next step */
    int ranks;           /* that the rests are of */
    double unit;         /* what a mean gradient of 1 is in them; 0: they hold nothing */
    float *q;            /* [q_count]; NULL: it is not here */
    float *rest;         /* [ranks][rest_count] in the arena's layout */
    bool loaded;         /* and not at the ranks yet */
} hvt__memory;

/* Room for it, with the Q in use and no rests. */
hvt_status hvt__memory_make(hvt__memory *memory, int ranks);

struct hvt_optim {
    const hvt_optim_ops *ops;
    hvt_model *m; /* borrowed */
    hvt__users users;
    hvt_optim_opts opts;
    float *v;     /* momentum, device memory: v[i - v_at] is of element i of the arenas; NULL: keeps none */
    size_t v_at;  /* 0, but in slices */
    bool sliced;  /* v has this rank's slices alone, one after the other (sharded.c) */
    float *whole; /* then, for a while: all of it, at the parameters' offsets, as gathered or loaded */
    bool loaded;  /* `whole` was written and is not in the ranks' slices yet */
    hvt__memory *memory; /* borrowed from its distributed optimizer; NULL: gradients travel whole */
};

/* All of the state at the parameters' offsets, to be read or to be written. Errors: E_ARG it lies in slices
 * and was not gathered, E_MEM. */
hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v);

/* No update was made yet: v holds nothing. The model's step state knows; asking waits. */
hvt_status hvt__optim_fresh(const hvt_optim *o, bool *ret_fresh);
hvt_status hvt__optim_set_fresh(hvt_optim *o, bool fresh);

/* An update, after hvt__model_end_step(): spans [first, end) until all are done, and then hvt__optim_end,
 * which tells the model that its parameters changed. The gradient is the sum along the tree of g[r][i -
 * first], r < ng; at[ng] is room for their addresses. */
hvt_status hvt__optim_span(hvt_optim *o, const float *const g[], int ng, const float *at[], size_t first,
                           size_t end);
void hvt__optim_end(hvt_optim *o);

/* Cut the arena from `start` into buckets that end at layers' ends, end[layers] ascending; offsets count
 * floats. Writes the buckets' ends, at most `layers` of them, and returns how many. */
int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end);

/* Cut what holds more than twice `bytes` into equal pieces of at most that, but no limit below
 * hvt__bucket_least, at multiples of 16 floats. end[n]: buckets' ends. ret_end NULL: only count. */
extern size_t hvt__bucket_least; /* bytes */
int hvt__bucket_split(size_t start, const size_t *end, int n, size_t bytes, size_t *ret_end);

/* Ends of the layers' spans in arena order; padding behind a layer belongs to it. At most one for each
 * parameter and one more; returns how many. */
int hvt__layer_ends(const hvt_model *m, size_t *ret_end);

/* A span of the gradient arena that travels at once. */
typedef struct hvt_bucket {
    size_t first, end;
    hvt_dtype wire;            /* how it travels */
    const char *tensor;        /* the first of which it holds a part */
    hvt_ticket ticket;         /* of the step under way */
    bool second;               /* round of it */
    size_t own_first, own_end; /* sharded: the slice that this rank updates */
    size_t own_at;             /* where it lies among this rank's slices of the state */
} hvt_bucket;

/* The plan of buckets for a model, *ret_count > 0; free() it. rider_alone: as the first bucket. */
hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, bool rider_alone,
                            hvt_bucket **ret_bucket, int *ret_count);

/* ---- sharded.c: each rank updates its slice for all of them ---- */

typedef struct hvt_sharded hvt_sharded;

/* Cut the buckets but the first, the rider's, into slices, and share parameters and state as far as the comm
 * can. needs_all: no update before all sums have come. Collective. */
hvt_status hvt__sharded_open(hvt_optim *o, hvt_comm *comm, hvt_bucket *bucket, int nbucket, bool needs_all,
                             hvt_sharded **ret_sharded);
/* The same over other buckets, which the caller keeps; on failure over those of before. Collective, between
 * steps. */
hvt_status hvt__sharded_replan(hvt_sharded *s, hvt_bucket *bucket, int nbucket);
/* Collective. Every rank has copies of its own again, or, unless give_back, none. */
void hvt__sharded_close(hvt_sharded **sharded, bool give_back);
size_t
hvt__sharded_state(const hvt_sharded *sharded); /* floats of state on this rank, its part of shared ones */
/* Sum, update and hand out in one operation, hvt__sharded_launch()? Else the caller lets slices of sums
 * arrive in the gradient arena and then calls hvt__sharded_update(). */
bool hvt__sharded_fused(const hvt_sharded *s);
/* Fused: the bucket's operation, whose waiting updates while the gate is open. Shut, as at first, it does not
 * (a step that was given up). */
hvt_status hvt__sharded_launch(hvt_sharded *s, hvt_bucket *b);
void hvt__sharded_gate(hvt_sharded *s, bool open);
double hvt__sharded_take_seconds(hvt_sharded *s); /* spent in updates by waiting, since last taken */
/* Not fused: update this rank's slice, and issue what brings the bucket's parameters to all. */
hvt_status hvt__sharded_update(hvt_sharded *s, hvt_bucket *b);
/* Parameters and state of root to all; all of the state to root (-1: to every rank); forget what that left
 * in o->whole. Collective, between steps. */
hvt_status hvt__sharded_broadcast(hvt_sharded *s, int root);
hvt_status hvt__sharded_gather(hvt_sharded *s, int root);
hvt_status hvt__sharded_forget(hvt_sharded *s);

/* Compare over all ranks what must be the same. Collective. */
hvt_status hvt__distopt_agree(const hvt_optim *o, hvt_world *world, const hvt_distopt_opts *opts,
                              const hvt_bucket *bucket, int nbucket, const hvt_item *items, int n);

#endif /* HVT_OPTIM_IMPL_H */
