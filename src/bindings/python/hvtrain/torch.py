"""`import hvtrain.torch as hvd`, as `import horovod.torch as hvd`."""
from . import *  # noqa: F401,F403
from ._torch import (DistributedDataParallel, DistributedOptimizer, broadcast_optimizer_state,  # noqa: F401
                     broadcast_parameters, init_distributed_mode, init_process_group, join)
