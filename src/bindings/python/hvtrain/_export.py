"""A torch.nn.Module as a .pt2 file, which the library reads."""
from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from ._collectives import barrier, broadcast_object
from ._job import local_rank, rank
from ._library import HvtError


@contextlib.contextmanager
def shared_folder():
    """An empty folder of the same name on every host, removed at the end. Collective."""
    folder = broadcast_object(tempfile.mkdtemp(prefix="hvt-") if rank() == 0 else None)
    try:
        if local_rank() == 0:
            os.makedirs(folder, exist_ok=True)
        yield folder
    finally:
        if local_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _exported(model, shape: tuple, file: str) -> bytes:
    import torch
    if tuple(int("".join(filter(str.isdigit, x)) or 0) for x in torch.__version__.split(".")[:2]) < (2, 9):
        raise HvtError("E_UNSUPPORTED", f"PyTorch is {torch.__version__}, expected 2.9 or later, whose exported models "
                       "have weights that can be read", False)
    training = model.training
    try:
        model.train()
        torch.export.save(torch.export.export(model, (torch.zeros(2, *shape),)), file)
    finally:
        model.train(training)
    with open(file, "rb") as f:
        return f.read()


def export(model, shape: tuple, folder: str) -> str:
    """Write rank 0's model, for images of this shape, into a shared folder; returns the file. Collective."""
    file, data, failed = os.path.join(folder, "model.pt2"), None, None
    if rank() == 0:
        try:
            data = _exported(model, shape, file)
        except Exception as e:  # the others wait for it
            failed = e
    data, why = broadcast_object((data, failed and str(failed)))
    if failed:
        raise failed
    if why:
        raise HvtError("E_ARG", f"rank 0 could not export the model: {why.splitlines()[0]}", True)
    if local_rank() == 0 and rank():
        with open(file, "wb") as f:
            f.write(data)
    barrier()
    return file
