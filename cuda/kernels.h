/*
 * kernels.h - every op of the cuda device that is neither a convolution nor a matrix product: launchers that
 * device_cuda.c calls, one per entry of device_impl.h's table and under its contract. (`check` is
 * hvt__cuda_check_finite, since hvt__cuda_check checks the runtime's return codes.)
 *
 * A launcher queues kernels on the stream and returns the launches' status; it allocates nothing, waits for
 * nothing, reads no device memory and may be captured. Addresses are device memory, except `put`'s bytes and
 * the argument structs, all of which are copied at the call. With no work (n, rows or images of 0) it queues
 * what the contract still requires, else nothing.
 *
 * Rows are in NHW order: hvt_rows is {1, n*pixels, real*pixels}. Any number of channels at any address works;
 * rows whose size and address are multiples of 16 bytes are read and written 16 bytes at a time, and so are
 * spans whose addresses are misaligned by the same number of elements.
 *
 * Deterministic on every GPU: the order of sums depends on the shape alone, and there are no float atomics.
 * Elementwise ops give ref's bits (a NaN may differ in its payload) when compiled with -fmad=false -ftz=true.
 *
 * Included by cuda/. Nothing else.
 */
#ifndef HVT_CUDA_KERNELS_H
#define HVT_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device_impl.h"

/* Bytes of scratch that ops on c channels need, for any number of rows. 16-byte aligned; free again when the
 * op has run, so one per stream suffices. The same for all c up to 262144, and larger from there on. */
size_t hvt__cuda_scratch(int c);

/* --- norm.cu --- */
cudaError_t hvt__cuda_bn_train(cudaStream_t stream, const hvt_bn_args *a, void *scratch);
cudaError_t hvt__cuda_bn_infer(cudaStream_t stream, const hvt_bn_args *a);
cudaError_t hvt__cuda_bn_backward(cudaStream_t stream, const hvt_bn_grad_args *a, void *scratch);
cudaError_t hvt__cuda_bn_update(cudaStream_t stream, const hvt_step_state *step, int c, float rate,
                                float scale, const float *moments, float *run_mean, float *run_var);
cudaError_t hvt__cuda_bias_forward(cudaStream_t stream, hvt_rows rows, int c, hvt_dtype t, const float *b,
                                   void *y);
cudaError_t hvt__cuda_bias_backward(cudaStream_t stream, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                    float *db, void *scratch);

/* --- pooling.cu --- */
/* bytes saved by forward for backward: the argmax, one byte per output of max pooling */
size_t hvt__cuda_pooling_saved(const hvt_pooling_desc *p);
cudaError_t hvt__cuda_pooling_forward(cudaStream_t stream, const hvt_pooling_desc *p, int real, const void *x,
                                      void *y, void *saved);
cudaError_t hvt__cuda_pooling_backward(cudaStream_t stream, const hvt_pooling_desc *p, int real,
                                       const void *saved, const void *dy, void *dx, bool add);
cudaError_t hvt__cuda_subsample_forward(cudaStream_t stream, hvt_dtype t, int n, int h, int w, int c,
                                        int stride, int channels, const void *x, void *y);
cudaError_t hvt__cuda_subsample_backward(cudaStream_t stream, hvt_dtype t, int n, int h, int w, int c,
                                         int stride, int channels, const void *dy, void *dx, bool add);

/* --- loss.cu --- */
cudaError_t hvt__cuda_xent(cudaStream_t stream, const hvt_xent_args *a);

/* --- pointwise.cu --- */
enum { HVT__CUDA_MOST_INPUTS = 128 }; /* of reduce and sgd; more give cudaErrorInvalidValue */

cudaError_t hvt__cuda_relu_forward(cudaStream_t stream, size_t n, hvt_dtype t, const void *x, void *y);
cudaError_t hvt__cuda_relu_backward(cudaStream_t stream, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add);
cudaError_t hvt__cuda_add(cudaStream_t stream, size_t n, hvt_dtype t, const void *a, const void *b, void *y);
/* src may be dst if their types are the same */
cudaError_t hvt__cuda_cast(cudaStream_t stream, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt);
cudaError_t hvt__cuda_reduce(cudaStream_t stream, size_t n, hvt_dtype t, const void *const in[], int count,
                             void *out); /* in[]: host */
/* dst [rows,dc] of dt = src [rows,sc] of st, truncated or zero-padded: to stored channels (cx) and back */
cudaError_t hvt__cuda_repad(cudaStream_t stream, size_t rows, const void *src, hvt_dtype st, int sc,
                            void *dst, hvt_dtype dt, int dc);
cudaError_t hvt__cuda_put(cudaStream_t stream, void *dst, const void *host, size_t bytes);

/* Keep the stream busy for `us` microseconds. */
cudaError_t hvt__cuda_delay(cudaStream_t stream, int us);

/* --- optim.cu --- */
cudaError_t hvt__cuda_sgd(cudaStream_t stream, size_t n, const hvt_sgd_args *a, const float *const g[],
                          int ng, float *w, float *v); /* g[]: host */
cudaError_t hvt__cuda_check_finite(cudaStream_t stream, size_t n, const float *g, uint64_t base,
                                   hvt_step_state *step);
cudaError_t hvt__cuda_decide(cudaStream_t stream, hvt_step_state *step, const float *sums);

/* --- image.cu --- */
/* src, draws and labels are device copies of a's, which are ignored; labels NULL: none are written */
cudaError_t hvt__cuda_augment(cudaStream_t stream, const hvt_augment_args *a, const uint8_t *src,
                              const int8_t *draws, const int32_t *labels);

#ifdef __cplusplus
}
#endif

#endif /* HVT_CUDA_KERNELS_H */
