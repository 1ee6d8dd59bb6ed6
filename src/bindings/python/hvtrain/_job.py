"""The ranks of this job: start, end, and what each is."""
from __future__ import annotations

import atexit
import os
import sys
from ctypes import byref, c_void_p

from ._library import DeviceOpts, HvtError, lib


class _Job:
    world = device = comm = None
    communicator = None  # of mpi4py, that init() was given
    fuses: list = []  # (handle of fused tensors, weak reference to their owner), freed before the comm
    nets: list = []
    failed = False


job = _Job()


def init(comm=None) -> None:
    """Join the ranks of the job: those that mpirun or srun started, or of `comm`, a communicator of mpi4py. A process
    without a launcher is rank 0 of 1. Collective. A second call does nothing."""
    if job.world:
        return
    world, device, opened = c_void_p(), c_void_p(), c_void_p()
    if comm is None:
        lib.hvt_world_open(None, byref(world))
    else:
        try:
            from mpi4py import MPI
            address = MPI._addressof(comm)
        except (ImportError, TypeError):
            raise HvtError("E_ARG", f"comm is a {type(comm).__name__}, expected a communicator of mpi4py, or None",
                           False) from None
        lib.hvt_world_wrap(address, byref(world))
    job.world, job.communicator = world, comm
    crowded = lib.hvt_world_local_size(world) > len(os.sched_getaffinity(0))
    lib.hvt_device_open(b"cpu", DeviceOpts(threads=1, yield_=crowded), byref(device))
    job.device = device
    lib.hvt_comm_open(b"auto", world, device, byref(opened))
    job.comm = opened


def shutdown() -> None:
    """Leave the job. Collective. Called at the end of the program, too."""
    for net in list(job.nets):
        net.close()
    for fuse, _ in job.fuses:
        lib.hvt_fuse_free(byref(fuse))
    job.fuses.clear()
    if job.comm:
        lib.hvt_comm_close(byref(job.comm))
    if job.device:
        lib.hvt_device_close(byref(job.device))
    if job.world:
        lib.hvt_world_close(byref(job.world))
    job.world = job.device = job.comm = None


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return job.comm is not None


def the_comm() -> c_void_p:
    if not job.comm:
        raise HvtError("E_ARG", "hvtrain has not been initialized; use hvt.init()", False)
    return job.comm


def _world() -> c_void_p:
    the_comm()
    return job.world


def rank() -> int:
    """This process's rank, 0 to size() - 1."""
    return lib.hvt_world_rank(_world())


def size() -> int:
    """The number of ranks."""
    return lib.hvt_world_size(_world())


def local_rank() -> int:
    """This process's rank among those of its host."""
    return lib.hvt_world_local_rank(_world())


def local_size() -> int:
    """The number of ranks on this host."""
    return lib.hvt_world_local_size(_world())


def cross_size() -> int:
    """The number of hosts."""
    return lib.hvt_world_nodes(_world())


def _hosts() -> list:
    """Of all ranks."""
    return [lib.hvt_world_host(_world(), r) for r in range(size())]


def cross_rank() -> int:
    """The number of this rank's host."""
    return list(dict.fromkeys(_hosts())).index(_hosts()[rank()])


def is_homogeneous() -> bool:
    """True if all hosts have the same number of ranks."""
    hosts = _hosts()
    return len({hosts.count(h) for h in hosts}) == 1


def _excepthook(kind, value, trace, before=sys.excepthook):
    before(kind, value, trace)
    sys.stderr.flush()
    if job.world and lib.hvt_world_size(job.world) > 1 and not (isinstance(value, HvtError) and value.agreed):
        lib.hvt_world_abort(job.world, 1)  # the other ranks may be waiting for this one


sys.excepthook = _excepthook
atexit.register(shutdown)
