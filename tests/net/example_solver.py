"""A solver of the heat equation trains a network on its own fields, distributed over the ranks: from a field
the network predicts the temperature in the middle ten time steps later. docs/python.md contains this file."""
import numpy as np

import hvtrain as hvt

FIELDS, N = 60, 8


def advance(u):
    u[:, 0, 1:-1, 1:-1] += 0.2 * (u[:, 0, 2:, 1:-1] + u[:, 0, :-2, 1:-1] + u[:, 0, 1:-1, 2:] + u[:, 0, 1:-1, :-2]
                                  - 4 * u[:, 0, 1:-1, 1:-1])


hvt.init()
first, end = FIELDS * hvt.rank() // hvt.size(), FIELDS * (hvt.rank() + 1) // hvt.size()
u = (np.arange(first * N * N, end * N * N) * 7919 % 1000 / 1000).reshape(-1, 1, N, N)
net = hvt.Net("resnet20", (1, N, N), 1, lr=0.005, loss="mse", shard=10)
for t in range(101):
    if t % 10 == 0:
        if t > 0:
            loss = net.fit_step(before, u[:, 0, N // 2, N // 2])  # an update with the fields of all ranks
        before = u.copy()
    advance(u)
net.save("surrogate")
if hvt.rank() == 0:
    print(f"mean squared error {loss:.9f}")
hvt.shutdown()
