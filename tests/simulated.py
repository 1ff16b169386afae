"""A device that is not there: tensors on it know their limits, and compute on the CPU.

`with on_device() as calls:` makes every tensor that is moved to "mps", or created there, a `Limited` one.
It refuses double precision, as Apple's GPUs do, and notes the operations that it takes part in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch.overrides import TorchFunctionMode

DEVICE = "mps"


class Limited(torch.Tensor):
    """A tensor on the device; whatever is computed from it is there too, until it is moved back."""

    calls: ClassVar[list[tuple[str, tuple, dict]]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "cpu" or (name == "to" and "cpu" in (*args[1:], *kwargs.values())):
            return args[0].as_subclass(torch.Tensor)
        found = super().__torch_function__(func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():  # to look at a tensor is no operation
            values = [value for value in (*args, *kwargs.values(), found) if isinstance(value, torch.Tensor)]
            if any(value.dtype == torch.float64 for value in values):
                raise RuntimeError(f"{name}: the device has no float64")
        cls.calls.append((name, args, kwargs))
        return found


class _Placing(TorchFunctionMode):
    """Sends what is made for the device there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if isinstance(kwargs.get("device"), torch.device | str) and str(kwargs["device"]) == DEVICE:
            kwargs["device"] = "cpu"
            return _placed(func(*args, **kwargs))
        if getattr(func, "__name__", "") == "to" and DEVICE in map(str, args[1:2]):
            return _placed(func(args[0], "cpu", *args[2:], **kwargs))
        return func(*args, **kwargs)


def _placed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.float64:
        raise TypeError("Cannot convert a tensor to float64: the device has no such type")
    return tensor.as_subclass(Limited)


@contextmanager
def on_device() -> Iterator[list[tuple[str, tuple, dict]]]:
    """Simulate the device; yield the list of operations that run on it."""
    Limited.calls = []
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Placing():
            yield Limited.calls
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
