"""Where tensors are kept and computations run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(device: str) -> str:
    """Return the device asked for; for "auto", a GPU if there is one.

    Raise `ValueError` if it cannot be used on this machine.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"device={device!r} cannot be used here, give 'cpu' or 'auto' instead: {reason}"
        ) from error
    return device


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch in a single thread: on small tensors, synchronizing threads takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
