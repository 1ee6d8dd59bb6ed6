"""A network that trains on the program's own arrays, over all ranks: hvt/net.h."""
from __future__ import annotations

import contextlib
import json
import os
import threading
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from ._builder import Builder
from ._collectives import broadcast_object
from ._export import export, shared_folder
from ._job import init, job, rank
from ._library import (BF16, BUILD_FN, F32, PROGRESS_FN, HvtError, Loss, LossOpts, NetData, NetOpts, OptimOpts, address_of,
                       dense, dtype_of, lib)

LAYOUTS = {"NHWC": 0, "NCHW": 1, "WHCN": 2}
OPTIMIZERS = {name: i for i, name in enumerate(("sgd", "adam", "adamw", "rmsprop", "lars", "lamb"))}
_SAFETENSORS = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "F64": np.float64, "I32": np.int32}


def read_safetensors(path: str) -> dict:
    """{name: array} of a file of weights."""
    with open(path, "rb") as f:
        data = f.read()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, about in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + x for x in about["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], _SAFETENSORS[about["dtype"]]).reshape(about["shape"]).copy()
    return tensors


def _choice(value: str, words: dict, what: str) -> int:
    if value not in words:
        raise HvtError("E_ARG", f"{what} is {value!r}, expected one of {', '.join(words)}", False)
    return words[value]


class Progress(NamedTuple):
    """The progress after an update: updates so far, including those before load(); passes over the images that have begun
    in this call; the mean loss over the update's images of all ranks, and their number."""
    updates: int
    epoch: int
    loss: float
    images: int


class Net:
    """A model trained on arrays that the ranks hold. Collective, as all methods but predict().

    model: a .pt2 file; a torch.nn.Module, which is exported; a model of the zoo ("resnet20"); or a function of (m, images)
    that builds one and returns its output: see Builder. image_shape: (channels, height, width); a .pt2 file knows it.
    outputs: classes, or targets with loss="mse" or "mae"; a file and a module know them.
    loss: "ce", "bce" (of labels), "mse" or "mae". optimizer: "sgd", "adam", "adamw", "rmsprop" (betas[1] is its alpha), "lars"
    or "lamb". batch: images of an update over all ranks; 0: all that fit_step() gets. shard: images that a rank computes at
    a time, at most; 0: 32. compute: "f32" or "bf16". progress: called with a Progress after every update, on every rank.
    devices, split_at: several sets of this rank's cores, as hvt_net_opts of hvt/net.h.

    All ranks start with rank 0's weights. Weights have the same bits on any number of ranks."""

    def __init__(self, model, image_shape: tuple = (0, 0, 0), outputs: int = 0, *, lr: float, loss: str = "ce",
                 label_smoothing: float = 0.0, optimizer: str = "sgd", momentum: float = 0.0, nesterov: bool = False,
                 weight_decay: float = 0.0, betas: Optional[tuple] = None, eps: Optional[float] = None, batch: int = 0,
                 shard: int = 0, seed: int = 0, compute: str = "f32", threads: int = 0, devices: int = 0,
                 split_at: Optional[str] = None, progress: Optional[Callable[[Progress], None]] = None):
        init()
        kind = _choice(optimizer, OPTIMIZERS, "optimizer")
        optim = OptimOpts(momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, kind=kind)
        optim.betas[:] = betas or (0.0 if optimizer in ("sgd", "lars", "rmsprop") else 0.9,
                                   {"sgd": 0.0, "lars": 0.0, "rmsprop": 0.99}.get(optimizer, 0.999))
        optim.eps = (0.0 if optimizer in ("sgd", "lars") else 1e-8) if eps is None else eps
        channels, height, width = image_shape
        opts = NetOpts(height=height, width=width, channels=channels, outputs=outputs, optim=optim, lr=lr, batch=batch,
                       shard=shard, seed=seed, compute=_choice(compute, {"f32": F32, "bf16": BF16}, "compute"),
                       threads=threads, devices=devices, split_at=split_at and split_at.encode(),
                       loss=LossOpts(kind=_choice(loss, {"ce": 0, "mse": 1, "bce": 2, "mae": 3}, "loss"),
                                     label_smoothing=label_smoothing))
        if progress:
            opts.progress = PROGRESS_FN(lambda ctx, p: self._call(progress, Progress(
                p.contents.updates, p.contents.epoch, p.contents.loss, p.contents.images)))
        self._handle, self._labels, self._opts, self._failure = c_void_p(), loss not in ("mse", "mae"), opts, None
        self._lock = threading.RLock()
        named = isinstance(model, (str, os.PathLike))
        if 0 in image_shape and not (named and os.fspath(model).endswith(".pt2")):
            raise HvtError("E_ARG", f"image_shape is {image_shape}, expected (channels, height, width) of the images", False)
        if named:
            self._create(os.fspath(model))
        elif hasattr(model, "state_dict"):
            with shared_folder() as folder:
                self._create(export(model, tuple(image_shape), folder))
        else:
            opts.build = BUILD_FN(lambda ctx, m, images: self._call(model, Builder(c_void_p(m)), images, failed=-1))
            self._create(None)
        job.nets.append(self)
        has = lib.hvt_net_describe(self._handle)
        self.outputs, hwc = has.outputs // has.labels, (c_int * 3)()
        lib.hvt_model_output(has.model, hwc)
        self._pixels = tuple(hwc[:2]) if has.labels > 1 else ()
        self._shape = (has.channels, has.height, has.width)

    def _create(self, name: Optional[str]) -> None:
        address = None
        if job.communicator is not None:
            from mpi4py import MPI
            address = MPI._addressof(job.communicator)
        with self._failures():
            lib.hvt_net_open(name and name.encode(), self._opts, address, byref(self._handle))

    def _call(self, function, *arguments, failed=None):
        """Call a function of the program for the library, and keep its exception, which must not pass through C."""
        try:
            return function(*arguments)
        except BaseException as e:
            self._failure = self._failure or e
            return failed

    @contextlib.contextmanager
    def _failures(self):
        """Raises what a function of the program's raised meanwhile. One thread at a time is in here."""
        try:
            with self._lock:
                yield
        except HvtError as e:
            raise self._taken() or e
        if failure := self._taken():
            raise failure

    def _taken(self):
        failure, self._failure = self._failure, None
        return failure

    @classmethod
    def from_pt2(cls, path, **options: Any) -> "Net":
        """A net from a file of torch.export.save(), with its weights. options: see Net."""
        return cls(path, **options)

    def _data(self, images, targets, layout: str) -> tuple:
        images = dense(images)
        data = NetData(count=len(images), images=address_of(images), type=dtype_of(images),
                       layout=_choice(layout, LAYOUTS, "layout"))
        channels, *image = self._shape
        expected = (*image, channels) if layout == "NHWC" else self._shape
        if tuple(images.shape[1:]) != expected:
            raise HvtError("E_SHAPE", f"images are {tuple(images.shape)}, expected {('n', *expected)}", False)
        if targets is not None:
            targets = dense(targets)
            wanted = (len(images), *(() if self._labels else (self.outputs,)), *self._pixels)
            if targets.shape[0] != len(images) or int(np.prod(targets.shape)) != int(np.prod(wanted)):
                raise HvtError("E_SHAPE", f"targets are {tuple(targets.shape)}, expected {wanted}", False)
            data.targets, data.target_type = address_of(targets), dtype_of(targets)
        return data, (images, targets)

    def fit_step(self, images, targets, epochs: int = 1, layout: str = "NCHW") -> float:
        """Train on this rank's images, an array or tensor [n,c,h,w] (or of another layout); n may differ between ranks.
        targets: labels [n], or with loss="mse" or "mae" numbers [n, outputs]. If outputs are images: labels [n, h, w], where
        those below 0 (and 255 of uint8) are ignored, or numbers [n, outputs, h, w]. epochs: passes over the images.
        Returns the mean loss of the last pass over all ranks' images."""
        loss, refused = Loss(), None
        self._open()
        try:
            data, keep = self._data(images, targets, layout)
        except Exception as e:  # the library tells all ranks, so that none waits
            data, refused = NetData(refused=str(e.message if isinstance(e, HvtError) else e).encode()), e
        try:
            with self._failures():
                lib.hvt_net_train(self._open(), data, epochs, loss)
        except HvtError as e:
            raise e from refused
        return loss.sum / loss.count if loss.count else float("nan")

    def predict(self, images, layout: str = "NCHW") -> np.ndarray:
        """The outputs for images, f32 [n, outputs] or [n, outputs, h, w]: logits, or predicted targets. A rank may call it
        alone."""
        data, keep = self._data(images, None, layout)
        out = np.empty((len(images), self.outputs, *self._pixels), np.float32)
        with self._failures():
            lib.hvt_net_infer(self._open(), data, address_of(out), F32)
        return out

    def state_dict(self) -> dict:
        """{name: array} of parameters and buffers; as tensors, model.load_state_dict() takes them."""
        with shared_folder() as folder:
            self.save(os.path.join(folder, "net"))
            return broadcast_object(read_safetensors(os.path.join(folder, "net.safetensors")) if rank() == 0 else None)

    def save(self, path) -> None:
        """Write PATH.safetensors, and a file of optimizer state beside it."""
        with self._failures():
            lib.hvt_net_save(self._open(), os.fspath(path).encode())

    def load(self, path) -> None:
        """Continue, to the bit, from what save() wrote."""
        with self._failures():
            lib.hvt_net_load(self._open(), os.fspath(path).encode())

    def set_lr(self, lr: float) -> None:
        """Set the learning rate from the next update on."""
        lib.hvt_net_set_lr(self._open(), lr)

    def hash(self) -> str:
        """A hash of the weights, 16 digits."""
        value = c_uint64()
        lib.hvt_model_hash(lib.hvt_net_describe(self._open()).model, byref(value))
        return f"{value.value:016x}"

    def close(self) -> None:
        """Free the net. shutdown() frees all nets."""
        lib.hvt_net_close(byref(self._handle))
        self._opts = None  # its functions refer to this net
        if self in job.nets:
            job.nets.remove(self)

    def _open(self) -> c_void_p:
        if not self._handle:
            raise HvtError("E_ARG", "this net has been closed", False)
        return self._handle
