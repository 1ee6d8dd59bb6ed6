"""Data-parallel training of PyTorch models on CPUs: gradients are averaged over the ranks while backward runs."""
from __future__ import annotations

import builtins
import contextlib
import gc
import socket
import warnings
import weakref
from ctypes import byref, c_int, c_void_p
from typing import Iterable, Optional

import numpy as np
import torch

from ._collectives import (Adasum, Average, Compression, Max, ReduceOp, Sum, _no_process_set, allgather, allreduce, allreduce_async,
                           broadcast_, broadcast_object, max_over_ranks, synchronize)
from ._job import cross_size, init, job, rank, size, the_comm
from ._library import AVERAGE, BF16, F16, F32, SUM, HvtError, Piece, dtype_of, lib

BUCKET_BYTES = 25 << 20
# Arguments of torch.nn.parallel.DistributedDataParallel that do nothing here.
OF_DDP = {"dim", "init_sync", "process_group", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view",
          "static_graph", "delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision", "device_mesh",
          "skip_all_reduce_unused_params"}


class _Gradients:
    """The gradients of some parameters, registered once as fused tensors, in the order of backward."""
    living: "weakref.WeakSet" = weakref.WeakSet()

    def __init__(self, named: list, compression, average: bool, bucket_bytes: int = BUCKET_BYTES):
        self.parameters = [p for _, p in reversed(named)]
        self.held: dict = {}  # gradients of this step, which must not be freed before the exchange
        wire = {None: F32, "float16": F16, "bfloat16": BF16}[compression.wire]
        pieces = (Piece * len(named))()
        for piece, (name, p) in zip(pieces, reversed(named)):
            if p.device.type != "cpu":
                raise HvtError("E_UNSUPPORTED", f"parameter {name} is on {p.device}, expected one in host memory", False)
            dtype = dtype_of(p)
            piece.name, piece.count, piece.dtype = name.encode(), p.numel(), dtype
            piece.wire = wire if dtype == F32 else F32
        self.fuse = c_void_p()
        _free_unused()
        lib.hvt_fuse_create(the_comm(), pieces, len(named), bucket_bytes, AVERAGE if average else SUM, byref(self.fuse))
        job.fuses.append((self.fuse, weakref.ref(self)))
        self.number = {p: i for i, p in enumerate(self.parameters)}
        _Gradients.living.add(self)

    def ready(self, p: torch.Tensor) -> None:
        """Pack p.grad, which is final."""
        g = p.grad
        if g.is_sparse:
            raise HvtError("E_UNSUPPORTED", "a gradient is sparse: use sparse=False, or sparse_as_dense=True", False)
        if g.stride() != p.stride() or g.dtype != p.dtype:
            g = p.grad = torch.empty_like(p, requires_grad=False).copy_(g)
        self.held[p] = g
        lib.hvt_fuse_ready_at(self.fuse, self.number[p], g.data_ptr())

    def exchange(self) -> None:
        """End the step. Parameters without a gradient get one of zeros, so that all ranks update the same ones."""
        for p in self.parameters:
            if p not in self.held:
                if p.grad is None:
                    p.grad = torch.zeros_like(p, requires_grad=False)
                self.ready(p)
        lib.hvt_fuse_exchange(self.fuse)
        self.held.clear()


def _free_unused() -> None:
    """Free the memory of optimizers and models that no rank refers to any more. Collective."""
    gc.collect()  # their hooks form reference cycles
    used = np.array([gradients() is not None for _, gradients in job.fuses], np.uint8)
    used = allreduce(used, op=Max)
    for fuse, _ in [f for f, u in zip(job.fuses, used) if not u]:
        lib.hvt_fuse_free(byref(fuse))
    job.fuses[:] = [f for f, u in zip(job.fuses, used) if u]


def _on_gradient(parameters, method) -> None:
    """Call method(p) when a parameter's gradient is final, as long as its object lives. The reference to it is weak, because
    PyTorch never frees cycles of hooks and parameters."""
    weak = weakref.WeakMethod(method)

    def hook(p):
        if call := weak():
            call(p)

    for p in parameters:
        p.register_post_accumulate_grad_hook(hook)


class _DistributedOptimizer:
    """The methods that DistributedOptimizer() adds to an optimizer."""

    def _hvt_open(self, named, compression, passes, op, predivide, sparse_as_dense) -> None:
        self._hvt_passes, self._hvt_predivide, self._hvt_average = passes, predivide, op == Average
        self._hvt_left, self._hvt_sparse, self._hvt_skip, self._hvt_synced = {}, sparse_as_dense, False, False
        self._hvt_gradients = _Gradients(named, compression, op == Average and predivide == 1)
        _on_gradient((p for _, p in named), self._hvt_hook)

    def _hvt_hook(self, p) -> None:
        left = self._hvt_left.get(p, self._hvt_passes) - 1
        if left < 0:
            raise AssertionError("Gradients were computed more than backward_passes_per_step times before call to "
                                 "step(). Increase backward_passes_per_step to accumulate gradients locally.")
        self._hvt_left[p] = left
        if left == 0:
            if p.grad.is_sparse and self._hvt_sparse:
                p.grad = p.grad.to_dense()
            if self._hvt_predivide != 1:
                p.grad.div_(self._hvt_predivide)
            self._hvt_gradients.ready(p)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Exchange gradients after this many backward passes."""
        self._hvt_passes = passes
        self._hvt_left.clear()

    def synchronize(self) -> None:
        """Complete the exchange: afterwards every gradient is reduced over the ranks, for clipping and the like."""
        self._hvt_gradients.exchange()
        if self._hvt_predivide != 1 and self._hvt_average:
            for p in self._hvt_gradients.parameters:
                p.grad.mul_(self._hvt_predivide / size())
        self._hvt_left.clear()
        self._hvt_synced = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """A context in which step() does not exchange gradients again after synchronize()."""
        self._hvt_skip = True
        try:
            yield
        finally:
            self._hvt_skip = False

    def step(self, closure=None):
        """Exchange gradients unless synchronize() has, and update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._hvt_skip:
            if self._hvt_synced:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context after "
                              "optimizer.synchronize(). This can cause training slowdown.")
            self.synchronize()
        self._hvt_synced = False
        super().step()
        return loss

    def zero_grad(self, *args, **kwargs):
        if self._hvt_gradients.held:
            raise AssertionError("optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                                 "optimizer.synchronize(). This is prohibited as it can cause a race condition.")
        return super().zero_grad(*args, **kwargs)


class _AdasumOptimizer:
    """The methods that DistributedOptimizer(op=hvt.Adasum) adds: a rank updates by itself, then the ranks' updates become one."""

    def _hvt_open(self, named, compression) -> None:
        self._hvt_parameters, self._hvt_compression = [p for _, p in named], compression

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Does nothing: gradients are not exchanged, so a rank accumulates them as PyTorch does."""

    def synchronize(self) -> None:
        """Does nothing: gradients are not exchanged."""

    def skip_synchronize(self):
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure=None):
        """Update with this rank's gradients, and replace the change of each parameter by the Adasum of all ranks' changes."""
        before = [p.detach().clone() for p in self._hvt_parameters]
        loss = super().step(closure)
        with torch.no_grad():
            sent = [allreduce_async(p - old, op=Adasum, compression=self._hvt_compression)
                    for p, old in zip(self._hvt_parameters, before)]
            for p, old, change in zip(self._hvt_parameters, before, sent):
                p.copy_(old + synchronize(change))
        return loss


def _named(named_parameters, parameters) -> list:
    """[(name, parameter)] of the trained parameters, checked against the optimizer's."""
    named = list(named_parameters) if named_parameters is not None else []
    if not named:
        named = [(f"parameter.{i}", p) for i, p in enumerate(parameters)]
    if any(not isinstance(n, tuple) for n in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                         "model.named_parameters().")
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = ", ".join(sorted({n for n in names if names.count(n) > 1}))
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {twice}")
    known = {id(p) for _, p in named}
    if any(id(p) not in known for p in parameters):
        raise ValueError("named_parameters was specified, but one or more model parameters were not named. Python object "
                         "ids: " + ", ".join(str(id(p)) for p in parameters if id(p) not in known))
    mine = {id(p) for p in parameters}
    return [(name, p) for name, p in named if p.requires_grad and id(p) in mine]


def DistributedOptimizer(optimizer, named_parameters: Optional[Iterable] = None, compression=Compression.none,
                         backward_passes_per_step: int = 1, op=Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups=None, sparse_as_dense: bool = False, process_set=None):
    """An optimizer that averages gradients over the ranks before it updates.

    It has the class of `optimizer`, shares its parameters and state, and also has synchronize(), skip_synchronize()
    and set_backward_passes_per_step(). Gradients are sent in buckets while backward runs. With
    backward_passes_per_step = n they are summed over n passes, and step() is called after them. op: hvt.Average,
    hvt.Sum or, as in Horovod, hvt.Adasum, which exchanges updates in place of gradients: every rank's optimizer makes an
    update with its own gradients and state, and their Adasum is applied. compression=hvt.Compression.fp16 or bf16 sends f32 in 16 bits. num_groups and groups are accepted
    and have no effect. Collective."""
    _no_process_set(process_set)
    if op not in (Average, Sum, Adasum):
        raise HvtError("E_UNSUPPORTED", f"op is {op!r}, expected hvt.Average, hvt.Sum or hvt.Adasum", False)
    ops = allgather(np.array([int(op)]))
    if differing := [r for r in range(size()) if ops[r] != ops[0]]:
        raise HvtError("E_MISMATCH", f"op is {ReduceOp(ops[0])!r} on rank 0, but {ReduceOp(ops[differing[0]])!r} on rank "
                                     f"{differing[0]}", True)
    if gradient_predivide_factor != 1 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    named = _named(named_parameters, [p for g in optimizer.param_groups for p in g["params"]])
    methods = _AdasumOptimizer if op == Adasum else _DistributedOptimizer
    kind = type(optimizer.__class__.__name__, (methods, optimizer.__class__), {})
    made = kind.__new__(kind)
    made.__dict__.update(optimizer.__dict__)
    if op == Adasum:
        made._hvt_open(named, compression)
    else:
        made._hvt_open(named, compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense)
    return made


class DistributedDataParallel(torch.nn.Module):
    """torch.nn.parallel.DistributedDataParallel over the ranks of hvt.init(), for models in host memory.

    Parameters and buffers start as those of rank 0. Gradients are averaged over the ranks when backward() returns. With
    broadcast_buffers all ranks use rank 0's buffers (running statistics) in each forward pass in training. Any
    optimizer may update the parameters. Collective."""

    def __init__(self, module: torch.nn.Module, device_ids=None, output_device=None, broadcast_buffers: bool = True,
                 bucket_cap_mb: float = 25, compression=Compression.none, **ignored):
        super().__init__()
        if unknown := ignored.keys() - OF_DDP:
            raise TypeError(f"DistributedDataParallel() has no argument {', '.join(sorted(unknown))}: gradients are averaged")
        if device_ids and device_ids != [None]:
            raise HvtError("E_UNSUPPORTED", f"device_ids is {device_ids}, expected None: models are in host memory", False)
        self.module, self.broadcast_buffers, self._sync, self._pending = module, broadcast_buffers, True, False
        broadcast_parameters(module.state_dict(), root_rank=0)
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._gradients = _Gradients(named, compression, True, int(bucket_cap_mb * (1 << 20)))
        _on_gradient((p for _, p in named), self._hook)

    def _hook(self, p) -> None:
        if not self._sync:
            return
        if not self._pending:
            self._pending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._gradients.ready(p)

    def _finish(self) -> None:
        self._pending = False
        self._gradients.exchange()

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes in this context accumulate gradients locally; the next one after it exchanges them."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def forward(self, *args, **kwargs):
        if self.broadcast_buffers and self._sync and self.training and torch.is_grad_enabled():
            _broadcast_packed([b for b in self.module.buffers()], 0)
        return self.module(*args, **kwargs)


def init_process_group() -> None:
    """Make torch.distributed's process group, over gloo, of the ranks of hvt.init(): for samplers, metrics and other code
    that asks torch.distributed. Gradients do not travel in it. Collective. A second call does nothing."""
    import torch.distributed as dist
    init()
    if dist.is_initialized():
        return
    host = socket.gethostname() if cross_size() > 1 else "127.0.0.1"
    store = dist.TCPStore(host, 0, size(), True, wait_for_workers=False) if rank() == 0 else None
    host, port = broadcast_object((host, store.port) if store else None)
    dist.init_process_group("gloo", store=store or dist.TCPStore(host, port, size(), False), rank=rank(), world_size=size())


def init_distributed_mode(args) -> None:
    """utils.init_distributed_mode() of torchvision's training scripts, for models in host memory: init_process_group(), sets
    args.rank, world_size, gpu and distributed, and drops what ranks other than 0 print without force=True. Collective."""
    init_process_group()
    args.rank, args.world_size, args.gpu, args.distributed, args.dist_backend = rank(), size(), None, True, "gloo"
    everyone = builtins.print

    def of_rank_0(*words, force: bool = False, **options):
        if force or args.rank == 0:
            everyone(*words, **options)

    builtins.print = of_rank_0


def _broadcast_packed(tensors: list, root_rank: int) -> None:
    """Broadcast tensors, packed into one message per type."""
    with torch.no_grad():
        for dtype in sorted({t.dtype for t in tensors}, key=str):
            same = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in same])
            broadcast_(flat, root_rank)
            if rank() != root_rank:
                for t, part in zip(same, flat.split([t.numel() for t in same])):
                    t.copy_(part.view(t.shape))


def broadcast_parameters(params, root_rank: int = 0, process_set=None) -> None:
    """Overwrite the tensors of model.state_dict(), or of a list of (name, tensor), with those of rank root_rank.
    Collective."""
    _no_process_set(process_set)
    items = params.items() if isinstance(params, dict) else params
    if not isinstance(params, (dict, list)) and not hasattr(params, "__iter__"):
        raise ValueError(f"invalid params of type: {type(params)}")
    tensors = [x[1] if isinstance(x, tuple) else x for x in items]
    tensors = [t.data for t in tensors if isinstance(t, torch.Tensor)]
    for t in tensors:
        dtype_of(t)
    _broadcast_packed(tensors, root_rank)


def broadcast_optimizer_state(optimizer, root_rank: int = 0, process_set=None, model=None) -> None:
    """Overwrite an optimizer's options and state with those of rank root_rank. Collective."""
    _no_process_set(process_set)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def join(device: int = -1) -> int:
    """For ranks with different numbers of batches: a rank that has no more calls this instead of step(). It then takes
    part in the other ranks' exchanges of gradients with zeros. When all ranks have joined, returns the rank with the most
    steps, whose parameters are the newest (broadcast_parameters(..., root_rank=hvt.join())). Averages are still
    over all ranks. Other collectives do not see joined ranks. Collective."""
    living = list(_Gradients.living)
    if len(living) > 1:
        raise HvtError("E_UNSUPPORTED", f"{len(living)} distributed optimizers and models, expected one for join()", False)
    last = c_int()
    if not living:
        return max_over_ranks(rank())
    if living[0].held:
        raise HvtError("E_ARG", "gradients of this step have not been exchanged: call step() before join()", False)
    lib.hvt_fuse_join(living[0].fuse, byref(last))
    return last.value
