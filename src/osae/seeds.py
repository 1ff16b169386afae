"""Explicit randomness: one generator per purpose, derived from a seed and a path of names.

The state of a generator is never saved. The order of block 7 under seed 3 is `generator(3, "order", 7)`, in
uninterrupted and resumed runs alike.
"""

import hashlib

import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """Return a CPU generator for this seed and purpose."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
