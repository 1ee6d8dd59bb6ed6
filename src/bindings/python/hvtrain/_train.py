"""hvt.train(): a whole run of hvtrain, of a model of PyTorch on arrays, folders or data sets."""
from __future__ import annotations

import ctypes
import os
import re
import zlib
from ctypes import byref, c_char_p, c_void_p
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from ._collectives import broadcast_object
from ._export import export, shared_folder
from ._job import init, job, rank
from ._library import (F32, LABEL_FN, LOG_FN, READ_FN, TARGET_FN, U8, DatasetInfo, HvtError, Report as _Report, Source,
                       is_tensor, lib)
from ._net import read_safetensors

_FILE, _U8, _F32 = range(3)  # encodings of a record


@dataclass
class Report:
    """The result of a run: its updates, the last evaluation (loss; top1 in percent, None with targets), images per second
    of training on all ranks, seconds, and the weights' hash."""
    epochs: int
    updates: int
    loss: float
    top1: Optional[float]
    images_per_second: float
    seconds: float
    weights: str


_log = None


def log_to(function: Optional[Callable[[str], None]]) -> None:
    """Send every line of the library, progress and warnings, to function(line). None: print them."""
    global _log
    _log = LOG_FN(lambda ctx, level, line: function(line.decode(errors="replace"))) if function else LOG_FN()
    lib.hvt_log_to(_log, None, 2)


def _as_array(x) -> np.ndarray:
    return x.detach().cpu().numpy() if is_tensor(x) else np.asarray(x)


def _arrays(data) -> tuple:
    images, labels = (_as_array(x) for x in data)
    if images.ndim != 4 or labels.ndim == 0 or len(images) != len(labels):
        raise HvtError("E_SHAPE", f"images are {images.shape} and labels {labels.shape}, expected [n,c,h,w] and [n] or, for "
                       "targets, [n,outputs]", False)
    if not len(images):
        raise HvtError("E_ARG", "train has no images", False)
    return images, labels


class _Data:
    """A data set of the library, over (images, labels) or a map-style data set of PyTorch. Images are [c,h,w] tensors or
    arrays of floats or bytes; of bytes also pictures of Pillow."""

    def __init__(self, data, outputs: int):
        self.arrays = isinstance(data, tuple)
        if self.arrays:
            self.images, self.labels = _arrays(data)
        self.items, self.failure, self.handle = data, None, c_void_p()
        first, label = self.item(0)
        h, w, c = first.shape
        self.targets = 0 if np.ndim(label) == 0 and np.asarray(label).dtype.kind in "iub" else max(np.size(label), 1)
        if self.arrays and not self.targets:
            wrong = np.flatnonzero((self.labels < 0) | (self.labels >= outputs))
            if len(wrong):
                raise HvtError("E_FORMAT", f"image {wrong[0]}: label is {self.labels[wrong[0]]}, expected 0 to {outputs - 1}",
                               False)
        count = len(self.images if self.arrays else data)
        labels = zlib.crc32(np.ascontiguousarray(self.labels).tobytes()) if self.arrays else 0
        info = DatasetInfo(name=b"hvt.train", count=count, classes=0 if self.targets else outputs, height=h, width=w,
                           channels=c, fingerprint=labels, type=U8 if first.dtype == np.uint8 else F32,
                           unlabelled=bool(self.targets), targets=self.targets)
        self.source = Source(info=info, read=READ_FN(self._guarded(self.read)))
        if self.targets:
            self.source.target = TARGET_FN(self._guarded(self.target))
        elif self.arrays:
            self.source.label = LABEL_FN(lambda ctx, i: int(self.labels[i]))
        lib.hvt_dataset_from(self.source, 0, byref(self.handle))

    def item(self, i: int) -> tuple:
        """An image as [h,w,c] of bytes or f32, and its label."""
        image, label = (self.images[i], self.labels[i]) if self.arrays else self.items[i]
        picture = not is_tensor(image) and not isinstance(image, np.ndarray)
        image, label = _as_array(image), _as_array(label) if is_tensor(label) else label
        if image.ndim == 2:
            image = image[None] if not picture else image[:, :, None]
        if not picture:
            image = image.transpose(1, 2, 0)
        return np.ascontiguousarray(image, np.uint8 if image.dtype == np.uint8 else np.float32), label

    def _guarded(self, function):
        def call(ctx, i, ret):
            try:
                function(i, ret.contents if function == self.read else ret)
                return 0
            except Exception as e:  # no exception may pass through the library
                self.failure = self.failure or e
                return -3
        return call

    def read(self, i: int, record) -> None:
        image, label = self.item(i)
        lib.hvt_record_reserve(record, image.nbytes)
        ctypes.memmove(record.data, image.ctypes.data, image.nbytes)
        record.height, record.width = image.shape[:2]
        record.encoding = _U8 if image.dtype == np.uint8 else _F32
        record.label = -1 if self.targets else int(label)

    def target(self, i: int, ret) -> None:
        values = np.asarray(self.labels[i] if self.arrays else self.item(i)[1], np.float32).reshape(-1)
        ctypes.memmove(ret, values.ctypes.data, values.nbytes)

    def close(self) -> None:
        lib.hvt_dataset_close(byref(self.handle))


def _words(options: dict) -> list:
    words = []
    for name, value in options.items():
        if isinstance(value, bool):
            value = "on" if value else "off"
        elif isinstance(value, (list, tuple)):
            value = ",".join(str(v) for v in value)
        words.append(f"--{name.replace('_', '-')}={value}")
    return words


def _run(words: list, train: Optional[_Data], val: Optional[_Data]) -> _Report:
    report = _Report()
    argv = (c_char_p * (len(words) + 2))(b"hvtrain", *(w.encode() for w in words), None)
    try:
        lib.hvt_train_args(len(words) + 1, argv, train.handle if train else None, val.handle if val else None, job.world,
                           byref(report))
    except HvtError as e:
        raise next((d.failure for d in (train, val) if d and d.failure), _in_python(e))
    return report


def _in_python(e: HvtError) -> HvtError:
    """The same error with options as keywords: "--last-batch" is "last_batch"."""
    said = re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*)(?![\w-])", lambda flag: flag.group(1).replace("-", "_"), e.message)
    return HvtError(e.status, said, e.agreed)


def train(model, train, val=None, *, outputs: Optional[int] = None, **options: Any) -> Report:
    """Train a torch.nn.Module with hvtrain, in this process and those of mpirun, and load the weights back into it.

    train, val: (images, labels) as arrays or tensors, images [n,c,h,w] of bytes or floats; a map-style data set of
    PyTorch; or the path of a folder of pictures (DIR/train/CLASS/..., DIR/val/CLASS/...), which then is `train` alone.
    Every rank passes the same whole set. Without val an evaluation uses the training images. Integer labels are
    classes; numbers are targets, for loss="mse" or "mae".

    options: those of the program, with _ for -: epochs=3, batch=64, lr=0.1, optimizer="adamw", schedule="cosine",
    augment="flip", save="run", quiet=True ... Floats are used as they are, bytes become (byte/255 - mean) / std with the
    options mean and std. outputs: classes or targets; default: what the model returns. Needs PyTorch 2.9 or later.
    Collective."""
    import torch
    init()
    folder = isinstance(train, (str, os.PathLike))
    if folder and val is not None:
        raise HvtError("E_ARG", "train is a folder, which has the images of val, too: omit val", False)
    sets: list = []
    try:
        if folder:
            side = int(options.get("size", 224))
            shape = (3, side, side)
            options.setdefault("data", "folder")
            options["data_dir"] = os.fspath(train)
        else:
            first = _Data.item(_probe(train), 0)[0]
            shape = (first.shape[2], first.shape[0], first.shape[1])
            if outputs is None:
                with torch.no_grad():
                    before = model.training
                    outputs = model.eval()(torch.zeros(1, *shape)).shape[-1]
                    model.train(before)
            sets = [_Data(train, outputs)]
            sets.append(_Data(val, outputs) if val is not None else sets[0])
        with shared_folder() as temporary:
            words = {"model": export(model, shape, temporary), "save": os.path.join(temporary, "run"), **options}
            report = _run(_words(words), *(sets or (None, None)))
            weights = read_safetensors(os.path.join(words["save"], "last.safetensors")) if rank() == 0 else None
            weights = broadcast_object(weights)
        model.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()}, strict=True)
    finally:
        for data in set(sets):
            data.close()
    test = report.test
    loss = test.sum / test.count if test.count else float("nan")
    targets = options.get("loss") in ("mse", "mae")
    return Report(report.epochs, report.steps, loss, None if targets or not test.count else 100 * test.top1 / test.count,
                  report.img_s, report.seconds, f"{report.weights:016x}")


def _probe(data):
    """A part of a _Data, enough for item()."""
    probe = _Data.__new__(_Data)
    probe.arrays = isinstance(data, tuple)
    if probe.arrays:
        probe.images, probe.labels = _arrays(data)
    elif not len(data):
        raise HvtError("E_ARG", "train has no images", False)
    probe.items = data
    return probe
