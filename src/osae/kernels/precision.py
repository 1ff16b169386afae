"""The precision in which kernels compute: their own choice, even inside `torch.autocast`.

Products of activations with an encoder can be computed in lower precision: `multiplying_in("bf16")`. The
factors are then rounded to the 8 significant bits of bf16 or the 11 of tf32, while sums, the weights
themselves, the ordered loss and all of its gradients stay in single precision. A CUDA device has instructions
for this. On other devices the rounding is emulated, which shows its effect on an SAE but saves nothing.
"""

# autograd Functions name their own arguments
# pyright: reportIncompatibleMethodOverride=false

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from osae.defaults import PRECISIONS, Precision

_P = ParamSpec("_P")
_R = TypeVar("_R")
LOW = (torch.float16, torch.bfloat16)
TF32_BITS = 13  # bits of a float32's significand that tf32 lacks

_asked: ContextVar[Precision] = ContextVar("osae_precision", default="fp32")


@contextmanager
def multiplying_in(precision: Precision) -> Iterator[None]:
    """Compute products with an encoder in this precision inside the `with` block, and their gradients too."""
    token = _asked.set(check_precision(precision))
    try:
        yield
    finally:
        _asked.reset(token)


def check_precision(precision: str) -> Precision:
    """Return the precision; raise `ValueError` if it is unknown."""
    for known in get_args(Precision):
        if precision == known:
            return known
    raise ValueError(f"precision={precision!r}: give one of {', '.join(PRECISIONS)}.")


def precision_now() -> Precision:
    """Return the current precision of products; a backward pass may run in a thread where it is not set."""
    return _asked.get()


def without_autocast(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with autocast disabled, and arguments of lower precision cast to single precision.

    Autocast would change the dtype of some operations in a kernel but not of others. Here it only affects the
    dtypes of the arguments; sums over prefixes need single precision anyway.
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


# --- products -------------------------------------------------------------------------------------


@without_autocast
def multiply(rows: Float[Tensor, "B d"], matrix: Float[Tensor, "K d"]) -> Float[Tensor, "B K"]:
    """Return rows @ matrix.T in the current precision, with gradients in the same precision."""
    precision = precision_now()
    if precision == "fp32":
        return rows @ matrix.T
    return _Product.apply(rows, matrix, precision)


def multiply_rounded(
    rows: Tensor, matrix: Tensor, precision: Precision, bias: Tensor | None = None
) -> Tensor:
    """Return rows @ matrix + bias of tensors that `round_to` returned, summed in single precision."""
    if rows.dtype == torch.bfloat16:
        product = _multiply_bf16(rows, matrix)
        return product if bias is None else product.add_(bias)
    on_gpu = precision == "tf32" and rows.device.type == "cuda"
    with _tensor_cores() if on_gpu else nullcontext():
        return rows @ matrix if bias is None else torch.addmm(bias, rows, matrix)


def _multiply_bf16(rows: Tensor, matrix: Tensor) -> Tensor:
    if hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(rows, matrix, out_dtype=torch.float32)
    return (rows @ matrix).float()  # older releases of torch round the sums too


def round_to(precision: Precision, tensor: Tensor) -> Tensor:
    """Return the tensor rounded for products in this precision; only single precision is ever rounded.

    The dtype changes only if the device can multiply it. A device that rounds to tf32 by itself gets the
    tensor unchanged.
    """
    if precision == "fp32" or tensor.dtype != torch.float32:
        return tensor
    on_gpu = tensor.device.type == "cuda"
    if precision == "bf16":
        low = tensor.bfloat16()
        return low if on_gpu else low.float()
    return tensor if on_gpu else _round_to_tf32(tensor)


def pass_rounded(tensor: Tensor) -> Tensor:
    """Return the tensor rounded for products in the current precision; its gradient is not rounded."""
    precision = precision_now()
    return tensor if precision == "fp32" else _Rounded.apply(tensor, precision)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, precision):
        return round_to(precision, tensor)

    @staticmethod
    def backward(ctx, upstream):
        return upstream, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, matrix, precision):
        rows, matrix = round_to(precision, rows), round_to(precision, matrix)
        ctx.save_for_backward(rows, matrix)
        ctx.precision = precision
        return multiply_rounded(rows, matrix.T, precision)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, upstream):
        rows, matrix = ctx.saved_tensors
        rounded = round_to(ctx.precision, upstream)
        by_rows = multiply_rounded(rounded, matrix, ctx.precision) if ctx.needs_input_grad[0] else None
        by_matrix = multiply_rounded(rounded.T, rows, ctx.precision) if ctx.needs_input_grad[1] else None
        return by_rows, by_matrix, None


def _round_to_tf32(tensor: Tensor) -> Tensor:
    bits = tensor.contiguous().view(torch.int32)
    nearest = (bits + (1 << (TF32_BITS - 1))) & -(1 << TF32_BITS)
    return torch.where(tensor.isfinite(), nearest.view(torch.float32), tensor)


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Let single-precision products use tensor cores, by torch's own setting."""
    settings = torch.backends.cuda.matmul
    name, tf32 = ("fp32_precision", "tf32") if hasattr(settings, "fp32_precision") else ("allow_tf32", True)
    before = getattr(settings, name)
    setattr(settings, name, tf32)
    try:
        yield
    finally:
        setattr(settings, name, before)
