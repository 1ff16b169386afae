"""Where tensors live and computations run."""

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
        raise ValueError(f"the device {device!r} cannot be used here: {reason}") from error
    return device
