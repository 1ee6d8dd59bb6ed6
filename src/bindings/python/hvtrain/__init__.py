"""hvtrain: distributed training of image models on the CPUs of clusters, over MPI.

`import hvtrain as hvt` replaces `import horovod.torch as hvd`: the functions have the same names and arguments.
"""
from ._builder import Builder
from ._collectives import (Average, Compression, Handle, Max, Min, Product, ReduceOp, Sum, allgather, allgather_object,
                           allreduce, allreduce_, allreduce_async, allreduce_async_, alltoall, barrier, broadcast,
                           broadcast_, broadcast_object, grouped_allreduce, poll, reducescatter, synchronize)
from ._job import cross_size, init, is_initialized, local_rank, local_size, rank, shutdown, size
from ._library import HvtError, lib as _lib
from ._net import Net, Progress
from ._train import Report, log_to, train

__version__ = _lib.hvt_version().decode()
_of_torch = ("DistributedDataParallel", "DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters",
             "init_distributed_mode", "init_process_group", "join")


def mpi_built() -> bool:
    """True: ranks talk over MPI, or they are one."""
    return True


mpi_enabled = mpi_built


def nccl_built() -> bool:
    """False: tensors are in host memory."""
    return False


gloo_built = cuda_built = rocm_built = nccl_built


def __getattr__(name: str):
    """PyTorch is imported when something needs it."""
    if name in _of_torch:
        from . import _torch
        return getattr(_torch, name)
    raise AttributeError(f"module 'hvtrain' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_of_torch])
