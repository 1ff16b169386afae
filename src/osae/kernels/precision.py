"""The types in which kernels compute: their own choice, also inside `torch.autocast`."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")
LOW = (torch.float16, torch.bfloat16)


def without_autocast(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with autocast off inside, and arguments of lower precision in single precision.

    Autocast would change the type of some operations in a kernel and not of others. It chooses the types of
    the arguments alone; sums over prefixes need single precision anyway.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **named: _P.kwargs) -> _R:
        tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not any(torch.is_autocast_enabled(tensor.device.type) for tensor in tensors):
            return function(*args, **named)
        with torch.autocast(tensors[0].device.type, enabled=False):
            lifted: Any = [_lift(value) for value in args]
            return function(*lifted, **{name: _lift(value) for name, value in named.items()})  # type: ignore[arg-type]

    return wrapped


def _lift(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in LOW else value
