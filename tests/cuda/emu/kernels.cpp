/*
 * The kernels as C++: cuda/'s text, nothing of it changed, in one unit.
 */
#include "device.h"

#include "../../../cuda/attention.cu"
#include "../../../cuda/binary.cu"
#include "../../../cuda/general.cu"
#include "../../../cuda/image.cu"
#include "../../../cuda/loss.cu"
#include "../../../cuda/norm.cu"
#include "../../../cuda/optim.cu"
#include "../../../cuda/pointwise.cu"
#include "../../../cuda/pooling.cu"
#include "../../../cuda/shape_norm.cu"
