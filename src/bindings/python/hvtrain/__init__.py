"""hvtrain: distributed training of image models on the CPUs of clusters, over MPI.

`import hvtrain as hvt` replaces `import horovod.torch as hvd`: the functions have the same names and arguments.
"""
from ._builder import Builder
from ._collectives import (Adasum, Average, Compression, Handle, Max, Min, ProcessSet, Product, ReduceOp, Sum, allgather,
                           allgather_async, allgather_object, allreduce, allreduce_, allreduce_async, allreduce_async_,
                           alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async, broadcast_async_,
                           broadcast_object, global_process_set, grouped_allgather, grouped_allgather_async,
                           grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_,
                           grouped_reducescatter, grouped_reducescatter_async, poll, reducescatter, reducescatter_async,
                           synchronize)
from ._job import (cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size)
from ._library import HvtError, lib as _lib
from ._net import Net, Progress
from ._train import Report, log_to, train

__version__ = _lib.hvt_version().decode()
_of_torch = ("DistributedDataParallel", "DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters",
             "init_distributed_mode", "init_process_group", "join")


def mpi_built() -> bool:
    """True: ranks communicate over MPI, unless there is only one."""
    return True


mpi_enabled = mpi_built


def nccl_built() -> bool:
    """False: tensors are in host memory."""
    return False


gloo_built = gloo_enabled = cuda_built = rocm_built = ddl_built = ccl_built = nccl_built


class _Refused:
    """A name of Horovod's that is not built: its use is an error that says what to use."""

    def __init__(self, name: str, instead: str):
        self.error = HvtError("E_UNSUPPORTED", f"{name} is not built: {instead}", False)

    def __call__(self, *arguments, **options):
        raise self.error

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error


_sets = "all ranks take part in every operation; hvt.init(comm) takes a communicator of mpi4py with fewer ranks"
SyncBatchNorm = _Refused("SyncBatchNorm", "train with hvt.train(..., sync_bn=True), or use torch.nn.GroupNorm")
elastic = _Refused("elastic", "start the job again, with hvt.train(..., save=..., resume='auto') or torch.load() of a checkpoint")
_timeline = "hvt.train(..., timeline=FILE) writes one; torch.profiler writes that of a program"
start_timeline, stop_timeline = _Refused("start_timeline", _timeline), _Refused("stop_timeline", _timeline)
add_process_set, remove_process_set = _Refused("add_process_set", _sets), _Refused("remove_process_set", _sets)
sparse_allreduce_async = _Refused("sparse_allreduce_async", "use allreduce_async(tensor.to_dense()), or "
                                  "DistributedOptimizer(..., sparse_as_dense=True)")
mpi_threads_supported = _Refused("mpi_threads_supported", "mpi4py.MPI.Query_thread() tells")


def __getattr__(name: str):
    """Import PyTorch only when one of its names is used."""
    if name in _of_torch:
        from . import _torch
        return getattr(_torch, name)
    raise AttributeError(f"module 'hvtrain' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_of_torch])
