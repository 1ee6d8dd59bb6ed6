"""A network that trains on the program's own arrays, over all ranks: hvt/net.h."""
from __future__ import annotations

import json
import os
import tempfile
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any

import numpy as np

from ._collectives import broadcast_object
from ._job import init, job, rank
from ._library import (F32, HvtError, Loss, LossOpts, NetData, NetOpts, OptimOpts, ZooOpts, address_of, dense,
                       dtype_of, lib)

LAYOUTS = {"NHWC": 0, "NCHW": 1, "WHCN": 2}
OPTIMIZERS = {"sgd": 0, "adam": 1, "adamw": 2}
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


class Net:
    """A model of the zoo ("resnet20") or a .pt2 file, trained on arrays that the ranks hold.

    image_shape: (channels, height, width); a .pt2 file knows it. outputs: classes, or targets with loss="mse".
    loss: "ce", "bce" (of labels) or "mse".
    optimizer: "sgd", "adam" or "adamw". batch: images of an update over all ranks; 0: all that fit_step() is given.
    shard: images that a rank computes at a time. Weights have the same bits on any number of ranks. Collective, as all
    methods but predict()."""

    def __init__(self, name: str, image_shape: tuple = (0, 0, 0), outputs: int = 0, *, lr: float, loss: str = "ce",
                 optimizer: str = "sgd", momentum: float = 0.0, weight_decay: float = 0.0, betas: tuple = (0.9, 0.999),
                 eps: float = 1e-8, batch: int = 0, shard: int = 0, seed: int = 0, threads: int = 0):
        init()
        kind = _choice(optimizer, OPTIMIZERS, "optimizer")
        optim = OptimOpts(momentum=momentum, weight_decay=weight_decay, kind=kind)
        if kind:
            optim.betas[:], optim.eps = betas, eps
        channels, height, width = image_shape
        opts = NetOpts(height=height, width=width, channels=channels, outputs=outputs, optim=optim, lr=lr, batch=batch,
                       shard=shard, seed=seed, threads=threads,
                       loss=LossOpts(kind=_choice(loss, {"ce": 0, "mse": 1, "bce": 2}, "loss")))
        self._handle, self._labels = c_void_p(), loss != "mse"
        address = None
        if job.communicator is not None:
            from mpi4py import MPI
            address = MPI._addressof(job.communicator)
        lib.hvt_net_open(os.fspath(name).encode(), opts, address, byref(self._handle))
        job.nets.append(self)
        has = lib.hvt_net_describe(self._handle)
        self.outputs, hwc = has.outputs // has.labels, (c_int * 3)()
        lib.hvt_model_output(has.model, hwc)
        self._pixels = tuple(hwc[:2]) if has.labels > 1 else ()
        self._shape = (has.channels, has.height, has.width)

    @classmethod
    def from_pt2(cls, path, **options: Any) -> "Net":
        """A model of a file of torch.export.save(), with its weights. options: see Net."""
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
        """Train on this rank's images, an array or tensor [n,c,h,w] (or of another layout), of which every rank may have
        another number. targets: labels [n], or with loss="mse" numbers [n, outputs]; of a model whose outputs are images
        [n, h, w] (below 0, or 255 of uint8: ignored) or [n, outputs, h, w]. epochs: passes over the images.
        Returns the mean loss of the last pass over all ranks' images."""
        loss = Loss()
        data, keep = self._data(images, targets, layout)
        lib.hvt_net_train(self._open(), data, epochs, loss)
        return loss.sum / loss.count

    def predict(self, images, layout: str = "NCHW") -> np.ndarray:
        """The outputs for images, f32 [n, outputs] or [n, outputs, h, w]: logits, or predicted targets. A rank may call it
        alone."""
        data, keep = self._data(images, None, layout)
        out = np.empty((len(images), self.outputs, *self._pixels), np.float32)
        lib.hvt_net_infer(self._open(), data, address_of(out), F32)
        return out

    def state_dict(self) -> dict:
        """{name: array} of parameters and buffers, as model.load_state_dict() wants them (as tensors)."""
        folder = broadcast_object(tempfile.mkdtemp() if rank() == 0 else None)
        self.save(os.path.join(folder, "net"))
        tensors = None
        if rank() == 0:
            tensors = read_safetensors(os.path.join(folder, "net.safetensors"))
            for file in os.listdir(folder):
                os.remove(os.path.join(folder, file))
            os.rmdir(folder)
        return broadcast_object(tensors)

    def save(self, path) -> None:
        """Write PATH.safetensors, and a file of optimizer state beside it."""
        lib.hvt_net_save(self._open(), os.fspath(path).encode())

    def load(self, path) -> None:
        """Continue, to the bit, from what save() wrote."""
        lib.hvt_net_load(self._open(), os.fspath(path).encode())

    def set_lr(self, lr: float) -> None:
        """The learning rate from the next update on."""
        lib.hvt_net_set_lr(self._open(), lr)

    def hash(self) -> str:
        """A hash of the weights, 16 digits."""
        value = c_uint64()
        lib.hvt_model_hash(lib.hvt_net_describe(self._open()).model, byref(value))
        return f"{value.value:016x}"

    def close(self) -> None:
        """Free the net. shutdown() does, too."""
        lib.hvt_net_close(byref(self._handle))
        if self in job.nets:
            job.nets.remove(self)

    def _open(self) -> c_void_p:
        if not self._handle:
            raise HvtError("E_ARG", "this net has been closed", False)
        return self._handle
