"""A solver of the heat equation trains a U-Net on its own fields, distributed over the ranks: from a field the
network predicts the field ten time steps later. Arguments: the step at which an earlier run was saved, and the
last step. docs/python.md contains this file."""
import sys

import numpy as np

import hvtrain as hvt

FIELDS, N = 30, 32
begin, end = (int(a) for a in [*sys.argv[1:], *["0", "100"][len(sys.argv) - 1:]])


def advance(u):
    u[:, 0, 1:-1, 1:-1] += 0.2 * (u[:, 0, 2:, 1:-1] + u[:, 0, :-2, 1:-1] + u[:, 0, 1:-1, 2:] + u[:, 0, 1:-1, :-2]
                                  - 4 * u[:, 0, 1:-1, 1:-1])


hvt.init()
first, last = FIELDS * hvt.rank() // hvt.size(), FIELDS * (hvt.rank() + 1) // hvt.size()
u = (np.arange(first * N * N, last * N * N) * 7919 % 1000 / 1000).reshape(-1, 1, N, N)
net = hvt.Net.from_pt2("unet.pt2", loss="mse", optimizer="adam", lr=0.001, shard=6)
if begin > 0:
    net.load("surrogate")
for t in range(end + 1):
    if t % 10 == 0:
        if t > begin:
            loss = net.fit_step(before, u)  # an update with the fields of all ranks
        before = u.copy()
    advance(u)
net.save("surrogate")
if hvt.rank() == 0:
    print(f"mean squared error {loss:.9f}")
hvt.shutdown()
