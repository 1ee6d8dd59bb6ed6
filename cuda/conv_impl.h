/*
 * conv_impl.h - parts of convolutions: the choice of cuDNN engines for a pass under given constraints; the
 * cache of measured choices, in memory and in a file for the next run; the matrix product for 1x1 images.
 *
 * A plan is for an open GPU, or for one described in JSON (cuDNN's device properties), so that the choice can
 * be tested without a GPU.
 *
 * Included by cuda/ and tests. Nothing else.
 */
#ifndef HVT_CUDA_CONV_IMPL_H
#define HVT_CUDA_CONV_IMPL_H

#include "base_impl.h"
#include "device_impl.h"

#include <cudnn.h>

enum { CUDNN_PLANS_MOST = 16 };                    /* maximum number of plans that are timed */
enum { CUDNN_COMPILED_MOST = 6 };                  /* the same for engines compiled at plan time */
enum { CUDNN_X = 1, CUDNN_W = 2, CUDNN_Y = 3 };    /* tensors of a plan, or their gradients */
enum { CUDNN_WORKSPACE_MOST = 256 * 1024 * 1024 }; /* bytes, if there is a choice */

typedef enum conv_pass { CONV_FORWARD, CONV_BACKWARD_X, CONV_BACKWARD_W, CONV_PASSES } conv_pass;

/* An engine's number and the values of its knobs, "15:2=6,6=0", without spaces: cuDNN lists an engine several
 * times, with different values. */
enum { PLAN_NAME_MOST = 256 };

typedef struct conv_request {
    conv_pass pass;
    hvt_conv_desc conv; /* x [n,h,w,cx], w [k,r,s,cx/groups], y [n,p,q,k], dense */
    hvt_dtype out;      /* of the result: conv.type, or HVT_F32 for the gradient of w */
    bool add;           /* result += */
    bool deterministic; /* only deterministic engines */
    bool compile;       /* also engines that are compiled at plan time */
    size_t ws_most;     /* maximum bytes of workspace */
    bool tf32;        /* f32: inputs may be rounded to 10 bits (TF32); else products and sums are exact f32 */
    const char *name; /* only this configuration; NULL: any */
} conv_request;

typedef struct conv_plan {
    cudnnBackendDescriptor_t plan, config;
    size_t ws;      /* bytes */
    int64_t engine; /* cuDNN's number */
    bool deterministic, compiled;
    char name[PLAN_NAME_MOST]; /* of the whole configuration */
} conv_plan;

/* Exactly one of the two. */
typedef struct plan_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t gpu; /* of type DEVICEPROP */
} plan_target;

/*
 * The first `most` (1 to CUDNN_PLANS_MOST) configurations that satisfy the request, in cuDNN's order of
 * expected speed. Engines compiled at plan time take a second each and are tried only if there is no
 * precompiled one. *ret_count is 0, with HVT_OK, if there is none.
 */
hvt_status hvt__cudnn_plan(const plan_target *on, const conv_request *w, int most, conv_plan ret_plans[],
                           int *ret_count);
void hvt__cudnn_plan_free(conv_plan *p); /* zeroes *p; freeing a zeroed plan does nothing */

/* The addresses of x, w, y and workspace as cuDNN takes them (conv_cudnn.c). */
hvt_status hvt__conv_pack(const hvt_device *d, void *const address[4], cudnnBackendDescriptor_t *ret_pack);

/* ---- the choice (conv_trial.c) ---- */

/* The fastest of `count` plans whose result agrees with the first one's, and its median time in microseconds.
 * With too little memory for the trial: the first plan, and 0 us. key: names the shape in warnings. */
hvt_status hvt__conv_trial(hvt_device *d, const conv_request *w, const char *key, const conv_plan plans[],
                           int count, int *ret_best, float *ret_us);

/* ---- the cache (plan_cache.c) ---- */

enum { PLAN_KEY_MOST = 256 };

typedef struct plan_choice {
    char name[PLAN_NAME_MOST]; /* of the fastest configuration */
    float us;                  /* measured microseconds */
} plan_choice;

typedef struct plan_cache plan_cache;

/* path NULL: in memory only. A missing or unreadable file counts as empty; readable entries of a damaged one
 * are used. */
hvt_status hvt__plan_cache_open(const char *path, plan_cache **ret_cache);
void hvt__plan_cache_close(plan_cache **cache);
bool hvt__plan_cache_find(const plan_cache *c, const char *key, plan_choice *ret_choice);
/* Also writes the file, merged with entries that others have written meanwhile. If that fails, warns once and
 * does not try again. key: printable, no line break. */
hvt_status hvt__plan_cache_put(plan_cache *c, const char *key, plan_choice choice);

/* ---- the matrix product that replaces a convolution of 1x1 images (linear_cublas.c) ---- */

/* x [n,c], w [k,c], y [n,k] */
typedef struct linear linear;

hvt_status hvt__linear_plan_cublas(hvt_device *d, const hvt_conv_desc *c, linear **ret_linear,
                                   size_t *ret_ws);
void hvt__linear_free_cublas(linear *l); /* NULL is fine */
/* d = a b, or d += a b: y of w and x, dx of w and dy, dw of x and dy */
hvt_status hvt__linear_run_cublas(linear *l, conv_pass pass, const void *a, const void *b, void *d, bool add,
                                  void *ws);

#endif /* HVT_CUDA_CONV_IMPL_H */
