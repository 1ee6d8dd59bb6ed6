/*
 * plan_cudnn.h - which of cuDNN's engines compute one pass of a convolution, under given constraints.
 *
 * A plan is made for an open GPU, or for one described in JSON (cuDNN's own device properties), so that the
 * choice can be tested without a GPU.
 *
 * Included by cuda/conv_cudnn.c and tests. Nothing else.
 */
#ifndef HVT_PLAN_CUDNN_H
#define HVT_PLAN_CUDNN_H

#include "device_impl.h"

#include "vendor_names.h"

#include <cudnn.h>

enum { CUDNN_PLANS_MOST = 6 };                     /* maximum number that are timed against each other */
enum { CUDNN_X = 1, CUDNN_W = 2, CUDNN_Y = 3 };    /* tensors of a plan, or their gradients */
enum { CUDNN_WORKSPACE_MOST = 256 * 1024 * 1024 }; /* bytes, if there is a choice */

typedef enum conv_pass { CONV_FORWARD, CONV_BACKWARD_X, CONV_BACKWARD_W, CONV_PASSES } conv_pass;

/* x [n,h,w,c], w [k,r,s,c], y [n,p,q,k], dense, c and k as stored */
typedef struct conv_request {
    conv_pass pass;
    int n, h, w, c, k, r, s, stride, pad;
    hvt_dtype type;     /* of x, w and y */
    hvt_dtype out;      /* of the result: type, or HVT_F32 for the gradient of w */
    bool add;           /* result += */
    bool deterministic; /* only deterministic engines */
    bool compile;       /* also engines that are compiled at plan time */
    size_t ws_most;     /* bytes of workspace at most */
    bool tf32; /* f32: inputs may be rounded to 10 bits (TF32); else products and sums are exact f32 */
} conv_request;

typedef struct conv_plan {
    cudnnBackendDescriptor_t plan, config;
    size_t ws;      /* bytes */
    int64_t engine; /* cuDNN's number */
    bool deterministic, compiled;
} conv_plan;

/* Exactly one of the two. */
typedef struct plan_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t gpu; /* hvt__cudnn_describe's */
} plan_target;

/* json: cuDNN's DEVICEPROP representation. Destroy the result by cudnnBackendDestroyDescriptor. */
hvt_status hvt__cudnn_describe(const char *json, cudnnBackendDescriptor_t *ret_gpu);

/*
 * The first `most` (1 to CUDNN_PLANS_MOST) engines that satisfy the request, in the order in which cuDNN
 * expects them to be fast. Engines that are compiled at plan time take a second each and are tried only if
 * there is no precompiled one. *ret_count is 0, with HVT_OK, if there is none.
 */
hvt_status hvt__cudnn_plan(const plan_target *on, const conv_request *w, int most, conv_plan ret_plans[],
                           int *ret_count);
void hvt__cudnn_plan_free(conv_plan *p); /* zeroes *p; freeing a zeroed plan does nothing */

#endif /* HVT_PLAN_CUDNN_H */
