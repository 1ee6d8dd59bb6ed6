"""Collectives on tensors of PyTorch and arrays of NumPy, with Horovod's names and arguments."""
from __future__ import annotations

import contextlib
import pickle
from ctypes import byref, c_size_t, c_uint64
from typing import Any, Optional

import numpy as np

from ._job import job, rank, size, the_comm
from ._library import (ADASUM, AVERAGE, I64, MAX, MIN, PRODUCT, SUM, U8, HvtError, Scale, address_of, count_of, dense,
                       dtype_of, empty, is_tensor, lib)


class ReduceOp(int):
    """How an allreduce combines elements."""

    def __repr__(self):
        return "hvt." + {AVERAGE: "Average", SUM: "Sum", MIN: "Min", MAX: "Max", PRODUCT: "Product", ADASUM: "Adasum"}[int(self)]

    __str__ = __repr__


Average, Sum, Min, Max, Product, Adasum = (ReduceOp(x) for x in (AVERAGE, SUM, MIN, MAX, PRODUCT, ADASUM))


class Compressor:
    """Sends elements as they are."""
    wire = None

    @classmethod
    def compress(cls, tensor):
        if cls.wire is None or not (tensor.is_floating_point() if is_tensor(tensor) else tensor.dtype.kind == "f"):
            return tensor, None
        if is_tensor(tensor):
            import torch
            return tensor.to(getattr(torch, cls.wire)), tensor.dtype
        return tensor.astype(cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor, dtype):
        if dtype is None:
            return tensor
        return tensor.to(dtype) if is_tensor(tensor) else tensor.astype(dtype)


class FP16Compressor(Compressor):
    """Sends f32 and f64 as f16."""
    wire = "float16"


class BF16Compressor(Compressor):
    """Sends f32 and f64 as bf16 (PyTorch only)."""
    wire = "bfloat16"


class Compression:
    """The types in which elements travel: none, fp16, bf16."""
    none, fp16, bf16 = Compressor, FP16Compressor, BF16Compressor


@contextlib.contextmanager
def _named(name):
    """Prefix errors in this context with the name that the program gave the operation."""
    try:
        yield
    except HvtError as e:
        if name is None:
            raise
        raise HvtError(e.status, f"{name!r}: {e.message}", e.agreed) from None


class Handle:
    """An operation that an ..._async() function has begun; synchronize() completes it."""

    def __init__(self, ticket, keep, finish, name=None):
        self.ticket, self.keep, self.finish, self.name, self.result, self.done = ticket, keep, finish, name, None, False


def synchronize(handle: Handle):
    """Wait for an operation, and return its result."""
    if not handle.done:
        with _named(handle.name):
            lib.hvt_comm_wait(the_comm(), handle.ticket)
        handle.result, handle.done = handle.finish(), True
        handle.keep = handle.finish = None
    return handle.result


def poll(handle: Handle) -> bool:
    """True if synchronize() has completed this operation. Operations run when a rank waits for them."""
    return handle.done


def _op(op, average) -> int:
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        return SUM if average is False else AVERAGE
    if op not in (Average, Sum, Min, Max, Product, Adasum):
        raise HvtError("E_ARG", f"op is {op!r}, expected hvt.Average, Sum, Min, Max, Product or Adasum", False)
    return int(op)


class ProcessSet:
    """All ranks: the only set."""
    process_set_id, size, rank = 0, staticmethod(size), staticmethod(rank)
    included = staticmethod(lambda: True)


global_process_set = ProcessSet()


def _no_process_set(process_set) -> None:
    if process_set not in (None, global_process_set):
        raise HvtError("E_UNSUPPORTED", "process_set: expected None: all ranks take part", False)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                    process_set=None, compression=Compression.none) -> Handle:
    """Begin allreduce(); synchronize() returns its result. The tensor must not change in between."""
    _no_process_set(process_set)
    sent, dtype = compression.compress(tensor)
    sent = dense(sent)
    out, ticket = empty(sent, sent.shape), c_uint64()
    lib.hvt_allreduce(the_comm(), address_of(sent), address_of(out), count_of(sent), dtype_of(sent), _op(op, average),
                      Scale(prescale_factor, postscale_factor), byref(ticket))
    return Handle(ticket, (sent, out), lambda: compression.decompress(out, dtype), name)


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
              postscale_factor=1.0, process_set=None):
    """The average (op=hvt.Average, the default), hvt.Sum, Min, Max, Product or Adasum over all ranks of a tensor of PyTorch
    or an array of NumPy, as a new one. The factors multiply elements before and after the reduction. No gradient flows
    through it. Collective; names are not needed, because ranks issue the same operations in the same order."""
    return synchronize(allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set,
                                       compression))


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                     process_set=None) -> Handle:
    """Begin allreduce_()."""
    handle = allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    reduced = handle.finish
    handle.finish = lambda: _put(tensor, reduced())
    return handle


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=None):
    """allreduce() in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
                      postscale_factor=1.0, process_set=None) -> list:
    """allreduce() of each tensor of a list."""
    return synchronize(grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, process_set,
                                               compression))


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                            process_set=None, compression=Compression.none) -> Handle:
    """Begin grouped_allreduce()."""
    return _group(allreduce_async(t, average, name, op, prescale_factor, postscale_factor, process_set, compression)
                  for t in tensors)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                             process_set=None) -> Handle:
    """Begin grouped_allreduce_()."""
    return _group(allreduce_async_(t, average, name, op, prescale_factor, postscale_factor, process_set) for t in tensors)


def grouped_allreduce_(tensors, *arguments, **options) -> list:
    """allreduce_() of each tensor of a list."""
    return synchronize(grouped_allreduce_async_(tensors, *arguments, **options))


def _group(handles) -> Handle:
    """One handle for several operations; its result is the list of theirs."""
    handles = list(handles)
    return Handle(handles[-1].ticket if handles else 0, handles, lambda: [synchronize(h) for h in handles])


def _at_once(function, doc: str):
    """An ..._async() function that completes at once, because it must exchange shapes first or cannot overlap."""
    def begin(*arguments, **options) -> Handle:
        handle = Handle(0, None, None)
        handle.result, handle.done = function(*arguments, **options), True
        return handle

    begin.__name__ = begin.__qualname__ = function.__name__.rstrip("_") + "_async" + "_" * function.__name__.endswith("_")
    begin.__doc__ = doc
    return begin


def _put(tensor, values):
    if is_tensor(tensor):
        tensor.detach().copy_(values)
    else:
        tensor[...] = values
    return tensor


def broadcast_(tensor, root_rank: int, name=None, process_set=None):
    """Overwrite a tensor with that of rank root_rank. Collective."""
    _no_process_set(process_set)
    room = dense(tensor)
    with _named(name):
        lib.hvt_broadcast(the_comm(), address_of(room), count_of(room), dtype_of(room), root_rank, None)
    return tensor if address_of(room) == address_of(tensor) else _put(tensor, room)


def broadcast(tensor, root_rank: int, name=None, process_set=None):
    """The tensor of rank root_rank, as a new one. Collective."""
    return broadcast_(tensor.clone().detach() if is_tensor(tensor) else np.array(tensor), root_rank, name, process_set)


def _shapes(tensor) -> list:
    """The shapes of all ranks' tensors. They may differ in the first dimension."""
    mine = np.full(9, -1, np.int64)
    mine[:len(tensor.shape) + 1] = [len(tensor.shape), *tensor.shape]
    rows = np.empty((size(), 9), np.int64)
    lib.hvt_allgather(the_comm(), address_of(mine), 9, address_of(rows), None, I64, None)
    shapes = [tuple(int(x) for x in row[1:1 + row[0]]) for row in rows]
    for r, shape in enumerate(shapes):
        if not shape or shape[1:] != shapes[0][1:]:
            raise HvtError("E_MISMATCH", f"shapes are {shapes[0]} on rank 0 and {shape} on rank {r}; expected one "
                           "dimension or more, all but the first equal", True)
    return shapes


def _counts(numbers):
    return (c_size_t * len(numbers))(*numbers)


def allgather(tensor, name=None, process_set=None):
    """The tensors of all ranks, one after the other along the first dimension, in which they may differ. Collective."""
    _no_process_set(process_set)
    mine = dense(tensor)
    with _named(name):
        shapes = _shapes(mine)
        out = empty(mine, (sum(s[0] for s in shapes), *shapes[0][1:]))
        lib.hvt_allgather(the_comm(), address_of(mine), count_of(mine), address_of(out),
                          _counts([int(np.prod(s, dtype=np.int64)) for s in shapes]), dtype_of(mine), None)
    return out


def alltoall(tensor, splits=None, name=None, process_set=None):
    """Send splits[r] rows of a tensor to each rank r, in order; equal parts without splits. Returns the rows that came,
    and with splits also how many came from each rank. Collective."""
    _no_process_set(process_set)
    mine, n = dense(tensor), size()
    shape = _shapes(mine)[rank()]
    if splits is None and shape[0] % n:
        raise HvtError("E_ARG", f"{shape[0]} rows cannot be divided among {n} ranks: give splits", False)
    sends = np.array([shape[0] // n] * n if splits is None else [int(x) for x in splits], np.int64)
    if len(sends) != n or sends.sum() != shape[0] or (sends < 0).any():
        raise HvtError("E_ARG", f"splits are {sends.tolist()}, expected {n} numbers that add up to {shape[0]}", False)
    table = allgather(sends[None])
    takes, row = table[:, rank()], int(np.prod(shape[1:], dtype=np.int64))
    out = empty(mine, (int(takes.sum()), *shape[1:]))
    lib.hvt_alltoall(the_comm(), address_of(mine), _counts([int(x) * row for x in sends]), address_of(out),
                     _counts([int(x) * row for x in takes]), dtype_of(mine), None)
    if splits is None:
        return out
    return out, (splits.new_tensor(takes) if is_tensor(splits) else takes)


def reducescatter(tensor, compression=Compression.none, op=None, name=None, process_set=None, prescale_factor=1.0,
                  postscale_factor=1.0):
    """This rank's rows of the average (or sum) over all ranks; if the rows do not divide, lower ranks get one more.
    Collective."""
    _no_process_set(process_set)
    sent, dtype = compression.compress(tensor)
    sent, n = dense(sent), size()
    rows, row = sent.shape[0], count_of(sent) // max(sent.shape[0], 1)
    parts = [rows // n + (r < rows % n) for r in range(n)]
    out = empty(sent, (parts[rank()], *sent.shape[1:]))
    lib.hvt_reduce_scatter(the_comm(), address_of(sent), address_of(out), count_of(out),
                           _counts([p * row for p in parts]), dtype_of(sent), _op(op, None),
                           Scale(prescale_factor, postscale_factor), None)
    return compression.decompress(out, dtype)


def grouped_allgather(tensors, name=None, process_set=None) -> list:
    """allgather() of each of a list of tensors."""
    return [allgather(t, name, process_set) for t in tensors]


def grouped_reducescatter(tensors, *arguments, **options) -> list:
    """reducescatter() of each of a list of tensors."""
    return [reducescatter(t, *arguments, **options) for t in tensors]


(broadcast_async, broadcast_async_, allgather_async, grouped_allgather_async, alltoall_async, reducescatter_async,
 grouped_reducescatter_async) = (
    _at_once(f, f"{f.__name__}(), whose result synchronize() returns.") for f in (
        broadcast, broadcast_, allgather, grouped_allgather, alltoall, reducescatter, grouped_reducescatter))


def barrier(process_set=None) -> None:
    """Return when all ranks have called it."""
    _no_process_set(process_set)
    lib.hvt_barrier(the_comm(), None)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None, process_set=None) -> Any:
    """The object of rank root_rank, which is pickled. Collective."""
    _no_process_set(process_set)
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if rank() == root_rank else np.empty(0, np.uint8)
    length = broadcast_(np.array([len(data)], np.int64), root_rank)
    room = np.empty(int(length[0]), np.uint8)
    if rank() == root_rank:
        room[:] = data
    broadcast_(room, root_rank)
    return obj if rank() == root_rank else pickle.loads(room.tobytes())


def allgather_object(obj: Any, name: Optional[str] = None) -> list:
    """A list of the objects of all ranks, which are pickled. Collective."""
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    lengths = allgather(np.array([len(data)], np.int64))
    ends = np.cumsum(lengths)
    room = allgather(data)
    return [pickle.loads(room[e - n:e].tobytes()) for e, n in zip(ends, lengths)]


def max_over_ranks(number: int) -> int:
    return int(allreduce(np.array([number], np.int64), op=Max)[0])
