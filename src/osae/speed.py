"""How fast this machine multiplies matrices, from which the time that a command takes is forecast."""

import time
from functools import cache

import torch

from osae.kernels import cpu

CLOCK = time.perf_counter
SIZES = 512, 1024, 512  # rows, units and width of a product that takes some milliseconds


def measure_rate() -> float:
    """Return the multiplications per second of an encoder's product with the current number of threads."""
    rows, units, width = SIZES
    return rows * units * width / time_product(*SIZES, torch.get_num_threads())


@cache
def time_product(rows: int, units: int, width: int, threads: int) -> float:
    """Return the seconds that a product of these sizes takes; `threads` is the current number of threads."""
    x, encoder = torch.ones(rows, width), torch.ones(units, width)
    times = []
    for _ in range(3):  # the first one also warms up
        started = CLOCK()
        for block in cpu.products(x, encoder):
            del block  # before the next one is computed
        times.append(CLOCK() - started)
    return min(times)
