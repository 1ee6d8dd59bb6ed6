/* optim_impl.h - an optimizer's state, for src/optim and src/train/checkpoint.c. */
#ifndef HVT_OPTIM_IMPL_H
#define HVT_OPTIM_IMPL_H

#include "hvt/optim.h"
#include "model_impl.h"

struct hvt_optim {
    hvt_model *m; /* borrowed */
    hvt_optim_opts opts;
    float *v;   /* momentum, at the parameters' offsets; NULL without momentum */
    bool fresh; /* no step taken: v holds nothing yet */
};

/* Update the span [first, end) of the arenas (whole parameters) with g read as scale*g. `last` ends the step.
 */
hvt_status hvt__optim_span(hvt_optim *o, double lr, float scale, size_t first, size_t end);

#endif /* HVT_OPTIM_IMPL_H */
