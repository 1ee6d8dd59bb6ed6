/*
 * The kernels of cuda/ as C++, as tests/cuda/emu has them, but a launch is only noted.
 */
#include "device.h"

#include "../../cuda/kernels.h"
#include "launches.h"

#include <dlfcn.h>

/* Their mangled name; that in the source of kernels that are local to a file. */
template <class... P, class... A>
static hvt_status note(void (*kernel)(P...), const char *source, dim3 grid, dim3 block, const A &...)
{
    Dl_info found;
    bool known = dladdr((void *)kernel, &found) && found.dli_saddr == (void *)kernel;

    return note_launch(known ? found.dli_sname : source, (size_t)grid.x * grid.y, block.x * block.y);
}

#undef HVT_LAUNCH
#define HVT_LAUNCH(d, kernel, grid, block, ...) ((void)(d), note(kernel, #kernel, grid, block, __VA_ARGS__))

#include "../../cuda/image.cu"
#include "../../cuda/loss.cu"
#include "../../cuda/norm.cu"
#include "../../cuda/optim.cu"
#include "../../cuda/pointwise.cu"
#include "../../cuda/pooling.cu"
