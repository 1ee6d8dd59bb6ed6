/*
 * plan_cudnn.h - which of cuDNN's engines compute one pass of one convolution, under which rules.
 *
 * A plan is made for a GPU that is open, or for one described in JSON (cuDNN's own device properties): so the
 * choice can be tested where there is no GPU.
 *
 * Included by cuda/conv_cudnn.c and tests. Nothing else.
 */
#ifndef HVT_PLAN_CUDNN_H
#define HVT_PLAN_CUDNN_H

#include "device_impl.h"

#include "vendor_names.h"

#include <cudnn.h>

enum { CUDNN_PLANS_MOST = 6 };                     /* that are timed against each other */
enum { CUDNN_X = 1, CUDNN_W = 2, CUDNN_Y = 3 };    /* tensors of a plan, or their gradients */
enum { CUDNN_WORKSPACE_MOST = 256 * 1024 * 1024 }; /* bytes, where there is a choice */

typedef enum conv_pass { CONV_FORWARD, CONV_BACKWARD_X, CONV_BACKWARD_W, CONV_PASSES } conv_pass;

/* x [n,h,w,c], w [k,r,s,c], y [n,p,q,k], dense, c and k as stored */
typedef struct conv_request {
    conv_pass pass;
    int n, h, w, c, k, r, s, stride, pad;
    hvt_dtype type;     /* of x, w and y */
    hvt_dtype out;      /* of the result: type, or HVT_F32 for the gradient of w */
    bool add;           /* result += */
    bool deterministic; /* engines that give the same bits in every run only */
    bool compile;       /* engines that are compiled when planned, too */
    size_t ws_most;     /* bytes of workspace at most */
    bool tf32;          /* f32: factors may be rounded to 10 bits; without, products and sums are exact f32 */
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
 * The first `most` (1 to CUDNN_PLANS_MOST) engines that keep the wish's rules, in the order in which cuDNN
 * expects them to be fast. Engines that are compiled when planned take a second each and are asked only where
 * no precompiled one is left. *ret_count is 0, with HVT_OK, where no engine is left.
 */
hvt_status hvt__cudnn_plan(const plan_target *on, const conv_request *w, int most, conv_plan ret_plans[],
                           int *ret_count);
void hvt__cudnn_plan_free(conv_plan *p); /* zeroes it; a zeroed one is fine */

#endif /* HVT_PLAN_CUDNN_H */
