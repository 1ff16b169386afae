"""Randomness that is handed over: a generator for each purpose, from a seed and a path of names.

Nothing random is ever saved. The order of block 7 under seed 3 is `generator(3, "order", 7)`, today and
after a resume.
"""

import hashlib

import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator of its own for this seed and purpose."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
