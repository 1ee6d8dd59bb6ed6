"""group.py - the processes that a peer runs on, by one interface: rank, size, barrier(), most(), close().

most(values) is the greatest of each value over all ranks: a list of floats.
"""
import importlib

import torch


class Gloo:
    def __init__(self):
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.barrier, self.close = dist.barrier, dist.destroy_process_group

    def most(self, values):
        t = torch.tensor(values, dtype=torch.float64)
        self.dist.all_reduce(t, op=self.dist.ReduceOp.MAX)
        return t.tolist()


class Horovod:
    """Horovod, or hvtrain's package, which has its functions."""

    def __init__(self, package="horovod.torch"):
        self.hvd = hvd = importlib.import_module(package)
        hvd.init()
        self.rank, self.size, self.barrier, self.close = hvd.rank(), hvd.size(), hvd.barrier, hvd.shutdown

    def most(self, values):
        return self.hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=self.hvd.Max, name="most").tolist()
