/**
 * @file tensor.h
 * A tensor is a view: an address, an element type and up to four dimensions.
 *
 * It never owns memory; arenas do. It is always dense, last dimension fastest.
 * An image batch is [N,H,W,C] or [H,W,N,C]: the plan's row order says which. Every layer
 * except convolution and pooling may read it as the matrix [rows, C].
 *
 * Dimensions: N images, H height, W width, C channels; K filters, R x S their window.
 */
#ifndef HVT_TENSOR_H
#define HVT_TENSOR_H

#include "hvt/base.h"

HVT_C_BEGIN

/** Models compute in f32, f16 and bf16; labels are i32, images u8. Collectives take all types. */
typedef enum hvt_dtype { HVT_F32, HVT_F16, HVT_BF16, HVT_I32, HVT_U8, HVT_F64, HVT_I8, HVT_I64 } hvt_dtype;

/** Order of the rows of an activation matrix [N*H*W, C]. */
typedef enum hvt_order {
    HVT_ORDER_NHW, ///< image after image: row = (n*H + h)*W + w
    HVT_ORDER_HWN  ///< pixel after pixel, each a dense [N, C] matrix: row = (h*W + w)*N + n
} hvt_order;

typedef struct hvt_tensor {
    void *data; ///< device address; NULL until planned
    hvt_dtype dtype;
    int ndim;   ///< 1..4
    int dim[4]; ///< slowest first; unused entries are 1
} hvt_tensor;

/**
 * One shard's part of one step, from a loader to a model. The loader owns the memory, which is valid until
 * its next call.
 *
 * A batch may be short, in training too: `count` of its N images are valid. A shard with no images left in
 * this step has count 0 and still takes part.
 */
typedef struct hvt_batch {
    hvt_tensor images;  ///< [N,H,W,C] or [H,W,N,C], normalised, in the loader's row order and type
    hvt_tensor labels;  ///< [N] i32, 0..classes-1 (hvt_model_forward() checks them in host memory); -1 in
                        ///< unlabelled sets. Labels of pixels are [N,H,W] or [H,W,N], in the images' row
                        ///< order; pixels with a label below 0 are ignored. data NULL: no labels
    hvt_tensor targets; ///< [N,K] f32, zeros if the set has none; target images are [N,H,W,K] or [H,W,N,K].
                        ///< With HVT_LOSS_CE they are class probabilities, and training uses them instead of
                        ///< the labels. data NULL: no targets
    int count;          ///< valid images, 0..N
    int shard;          ///< which shard of the step this is, 0..shards-1
    int shards; ///< S, shards in the global batch; 0: not part of a step (shard, shard_counts are ignored)
    const int *shard_counts; ///< [S] valid images of every shard in this step, the same on all ranks
    const uint32_t *ids;     ///< [count] sample numbers in the dataset
    uint64_t key;            ///< seeds this epoch's random draws; hvt_dropout() uses it with ids. 0: no key
} hvt_batch;

HVT_API size_t hvt_dtype_size(hvt_dtype t);           ///< bytes per element
HVT_API const char *hvt_dtype_name(hvt_dtype t);      ///< "f32"
HVT_API size_t hvt_tensor_count(const hvt_tensor *t); ///< elements

HVT_C_END
#endif /* HVT_TENSOR_H */
