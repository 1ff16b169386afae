"""The contract on the CPU: numba loops over blocks, on as many threads as torch uses.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

No array here has size B*K or B*k*d. Both gradients of a dictionary are summed in a fixed order, so results do
not depend on the number of threads. The backward pass of the loss is cut by samples and by columns into at
most B/512 * d/64 tasks or so; everything else by rows or units.
"""

# autograd Functions name their own arguments
# pyright: reportIncompatibleMethodOverride=false

import ctypes
import functools
import itertools
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from osae.kernels import loops
from osae.kernels.batch import find_largest
from osae.kernels.precision import pass_rounded
from osae.kernels.registers import COLUMNS

SAMPLES = 512  # samples whose decoder gradients are summed one after another, at least
LEAST_TILE = 64  # units whose atoms and gradients, COLUMNS wide, fit into the first cache
TURN = 128  # samples whose rows, COLUMNS wide, fit into the first cache
VISIT = 16  # entries of a sample in a tile of units, or of a unit in a turn of samples, on average
LEAST_ROWS = 512  # minimum rows of a product: fewer cost more time than a small buffer saves
MOST_BUFFER = 2**26  # maximum pre-activations at once, whatever the number of rows: 256 MB in float32
TASKS = 32  # in the loss's backward pass, if there are enough samples: more than most machines have cores
LANE_NUMBERS = 2**27  # in the decoder gradients that are summed in parallel: 0.5 GB in float32
KEPT = 2**28  # bytes of freed memory that are kept for the next step
PIECES = 4  # per thread, in loops over independent rows: balances the load if a core is busy
BUFFER = 2**21  # pre-activations computed at once: 8 MB in float32, small enough to be searched in cache


def all_prefix_loss(x: Tensor, values: Tensor, units: Tensor, decoder: Tensor, weights: Tensor) -> Tensor:
    """Return the ordered loss of each sample (B,)."""
    _compile(decoder.dtype)
    _check_units(units, len(decoder))
    return _PrefixLoss.apply(x, values, units, decoder, weights)


def topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of relu(x E^T + bias) in each row, in the order of units, and their units."""
    _compile(encoder.dtype)
    values, units = _TopK.apply(pass_rounded(x), pass_rounded(encoder), bias, k)
    return values, units


def batch_topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the B*k largest of relu(x E^T + bias) in the batch, in the order of units, and their units."""
    _compile(encoder.dtype)
    values, units = _BatchTopK.apply(pass_rounded(x), pass_rounded(encoder), bias, k)
    return values, units


def decode(values: Tensor, units: Tensor, decoder: Tensor) -> Tensor:
    """Return the sum of each sample's atoms (B, d)."""
    _compile(decoder.dtype)
    _check_units(units, len(decoder))
    return _Decode.apply(values, units, decoder)


def top(pre: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest positive entries of `pre` + `bias` per row and their columns; overwrite `pre`."""
    _compile(pre.dtype)
    values, units = pre.new_empty(len(pre), k), pre.new_empty(len(pre), k, dtype=torch.int64)
    _select(pre, bias, values, units)
    return values, units


class _PrefixLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, values, units, decoder, weights):
        mass = np.cumsum(_array(weights.double())[::-1])[::-1].copy()
        slots, *entries = _sort_entries(values, units, mass)
        rows, atoms = _pad(x).contiguous(), _pad(decoder)
        blocks = rows.shape[1] // COLUMNS
        atoms = atoms.view(len(decoder), blocks, COLUMNS).transpose(0, 1).reshape(blocks, -1)
        residuals, losses = torch.empty_like(rows), np.empty((blocks, len(x)))
        of_rows, of_blocks, outs = _array(rows), _array(atoms), (_array(residuals), losses)

        def walk(block: int, task: int) -> None:
            loops.prefix_forward(of_rows, of_blocks[block], block, *tasks[task], *outs, *entries)

        tasks = _rows(len(x))
        _spread(walk, list(itertools.product(range(blocks), range(len(tasks)))))
        ctx.save_for_backward(atoms, residuals)
        ctx.shapes = values.shape, decoder.shape
        ctx.entries = slots, entries
        return torch.from_numpy(losses.sum(0)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        atoms, residuals = ctx.saved_tensors
        slots, entries = ctx.entries
        (size, _), (count, width) = ctx.shapes
        blocks, lanes = len(atoms), _lanes(size, len(atoms), count * width)
        dx, ddecoder = torch.empty_like(residuals), residuals.new_empty(count, width)
        dvalues, dtype = residuals.new_empty(ctx.shapes[0]), _array(residuals).dtype
        dpicked = np.empty((blocks, len(slots)), dtype)
        rows, of_blocks, scale = _array(residuals), _array(atoms), _array(upstream.contiguous())
        # blocks take turns with the memory for their gradients, which stays in a cache on one thread
        threads = torch.get_num_threads()
        together = min(blocks, -(-2 * threads // len(lanes))) if threads > 1 else 1
        parts = _array(residuals.new_empty(together, len(lanes), count * COLUMNS))
        of_rows, of_decoder = _array(dx), _array(ddecoder)

        def walk(block: int, lane: int) -> None:
            outs = of_rows, dpicked, parts[block % together, lane]
            loops.prefix_backward(rows, of_blocks[block], scale, block, *lanes[lane], *outs, *entries)

        def add(block: int, task: int) -> None:
            loops.add_parts(parts[block % together], block, *tasks[task], of_decoder)

        tasks = _rows(count)
        for first in range(0, blocks, together):
            those = range(first, min(blocks, first + together))
            _spread(walk, list(itertools.product(those, range(len(lanes)))))
            _spread(add, list(itertools.product(those, range(len(tasks)))))
        loops.place_sums(dpicked, slots, _array(dvalues).ravel())
        return dx[:, :width], dvalues, None, ddecoder, None


def _sort_entries(values: Tensor, units: Tensor, mass: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the positions of the nonzero entries in the code, and what the loops need to know of them."""
    assert values.numel() < 2**31, "positions are 32-bit integers"
    power = _tile(values.shape[1], len(mass)).bit_length() - 1
    starts = np.empty((-(-len(mass) >> power), len(values) + 1), np.int64)
    code, order = (_array(values.contiguous()), _array(units.contiguous())), None
    if not loops.find_starts(code[0], code[1], power, starts):
        order = np.argsort(code[1], -1, kind="stable")
        code = np.take_along_axis(code[0], order, -1), np.take_along_axis(code[1], order, -1)
        loops.find_starts(code[0], code[1], power, starts)
    head, slots, *entries = loops.by_tile(code[0], code[1], mass, power, starts)
    if order is not None:
        firsts = slots - slots % values.shape[1]  # of their samples
        slots = firsts + order.ravel()[slots].astype(slots.dtype)
    return slots, head, starts, *entries


def _pad(rows: Tensor) -> Tensor:
    """Return the rows, padded with zeros to whole blocks of columns."""
    missing = -rows.shape[1] % COLUMNS
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        x, encoder = x.contiguous(), encoder.contiguous()
        shift = x.new_zeros(len(encoder)) if bias is None else bias.contiguous()
        values, units = x.new_empty(len(x), k), x.new_empty(len(x), k, dtype=torch.int64)
        start = 0
        for block in products(x, encoder):
            rows = slice(start, start + len(block))
            _select(block, shift, values[rows], units[rows])
            start += len(block)
            del block  # before the next one is computed
        ctx.mark_non_differentiable(units)
        ctx.save_for_backward(x, encoder, values, units)
        ctx.biased = bias is not None
        return values, units

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        x, encoder, values, units = ctx.saved_tensors
        upstream = upstream.contiguous()  # arbitrary at padding, which is left out
        dx = _gather(upstream, values, units, encoder) if ctx.needs_input_grad[0] else None
        dencoder, dbias = _scatter(upstream, values, units, x, len(encoder))
        return dx, dencoder, dbias if ctx.biased else None, None


class _BatchTopK(_TopK):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        x, encoder = x.contiguous(), encoder.contiguous()
        shift = x.new_zeros(len(encoder)) if bias is None else bias.contiguous()
        values, units = find_largest(
            products(x, encoder), lambda block, room: top(block, shift, room), len(x), k
        )
        ctx.mark_non_differentiable(units)
        ctx.save_for_backward(x, encoder, values, units)
        ctx.biased = bias is not None
        return values, units


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, units, decoder):
        values, units, decoder = values.contiguous(), units.contiguous(), decoder.contiguous()
        ctx.save_for_backward(values, units, decoder)
        return _gather(values, values, units, decoder)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        values, units, decoder = ctx.saved_tensors
        upstream = upstream.contiguous()
        dvalues = torch.empty_like(values)
        args = _array(values), _array(units), _array(decoder), _array(upstream)
        out = _array(dvalues)
        _spread(lambda a, b: loops.gather_dot(*args, a, b, out), _rows(len(values)))
        return dvalues, None, _scatter(values, values, units, upstream, len(decoder))[0]


def products(x: Tensor, encoder: Tensor) -> Iterator[Tensor]:
    """Yield x E^T in blocks of rows."""
    count = len(encoder)
    multiply = _find_product() if x.dtype == torch.float32 else None
    for rows in x.split(max(1, min(len(x), max(BUFFER // count, LEAST_ROWS), MOST_BUFFER // count))):
        yield rows @ encoder.T if multiply is None else multiply(rows, encoder, None, "none", [], "")


@functools.cache
def _find_product() -> Callable[..., Tensor] | None:
    """Return oneDNN's product x E^T (+ bias), or None if this build of torch lacks it.

    `torch.mm` calls MKL, which leaves half of the registers of other vendors' processors unused. oneDNN also
    gives the same bits on any number of threads.
    """
    of_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (of_x86 and torch.backends.mkldnn.is_available()):
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _select(pre: Tensor, bias: Tensor, values: Tensor, units: Tensor) -> None:
    """Fill `values` and `units` with the largest positive entries of `pre` + `bias`; overwrite `pre`."""
    integers = torch.int32 if pre.dtype == torch.float32 else torch.int64
    args = _array(pre), _array(pre.view(integers)), _array(bias), values.shape[1]
    outs = _array(values.view(integers)), _array(units)
    _spread(lambda a, b: loops.select_top(*args, a, b, *outs), _rows(len(pre)))


def _gather(values: Tensor, active: Tensor, units: Tensor, table: Tensor) -> Tensor:
    """Return sum_t values[b, t] table[units[b, t]] for each sample (B, d), over nonzero `active`."""
    out = values.new_empty(len(values), table.shape[1])
    args = _array(values), _array(active), _array(units), _array(table)
    target = _array(out)
    _spread(lambda a, b: loops.gather_sum(*args, a, b, target), _rows(len(values)))
    return out


def _scatter(
    values: Tensor, active: Tensor, units: Tensor, rows: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the sums of value * row (K, d) and of value (K,) over the samples where each unit is active."""
    out, sums = rows.new_empty(count, rows.shape[1]), rows.new_empty(count)
    turn = max(TURN, VISIT * count // max(1, units.shape[1]))
    starts, picked, owners = loops.by_unit(_array(active), _array(units), _array(values), count, turn)
    args, target = (picked, starts, owners, _array(rows)), _array(out)
    _spread(lambda a, b: loops.scatter_outer(*args, a, b, target), _rows(count))
    loops.sum_by_unit(picked, starts, _array(sums))
    return out, sums


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def _check_units(units: Tensor, count: int) -> None:
    if units.numel() and (bad := loops.bad_unit(_array(units.contiguous()), count)):
        raise ValueError(f"unit {bad} in a code for {count} units: give units from 0 to {count - 1}.")


# --- threads --------------------------------------------------------------------------------------


def _cuts(length: int, width: int) -> list[tuple[int, int]]:
    """Return 0..length cut into ranges of `width`, the last one shorter."""
    return [(start, min(length, start + width)) for start in range(0, length, width)]


def _rows(length: int) -> list[tuple[int, int]]:
    """Return a few ranges of rows per thread; the result of a row does not depend on them."""
    threads = torch.get_num_threads()
    return _cuts(length, max(1, -(-length // (PIECES * threads)) if threads > 1 else length))


def _tile(active: int, count: int) -> int:
    """Return how many units a sample is followed over before the next one takes its turn.

    Fewer stay in a faster cache, but every turn takes time, so there are at least VISIT entries on average.
    """
    tile = LEAST_TILE
    while tile < count and tile * active < VISIT * count:
        tile *= 2
    return tile


def _lanes(size: int, blocks: int, numbers: int) -> list[tuple[int, int]]:
    """Return ranges of samples whose decoder gradients are summed in parallel.

    They are cut at multiples of SAMPLES samples. If there are enough samples, there are enough ranges for
    TASKS tasks, whatever the number of threads, because sums depend on the ranges. Each range takes as much
    memory as the decoder.
    """
    cuts = range(0, size, SAMPLES) or range(1)
    most = min(-(-TASKS // blocks), 1 + LANE_NUMBERS // numbers, len(cuts))
    firsts = [cuts[len(cuts) * lane // most] for lane in range(most)]
    return list(itertools.pairwise([*firsts, size]))


def _spread(work: Callable[[int, int], object], tasks: list[tuple[int, int]]) -> None:
    """Run `work` for every task, on as many threads as torch uses.

    Numba's own threads are not used: those of its portable layer abort the process if two Python threads
    train at the same time, and its OpenMP threads do not survive a fork.
    """
    threads = min(torch.get_num_threads(), len(tasks))
    if threads < 2:
        for task in tasks:
            work(*task)
        return
    turn = itertools.count()  # shared, so that a delayed thread takes fewer tasks

    def take_tasks() -> None:
        while (i := next(turn)) < len(tasks):
            work(*tasks[i])

    helpers = [_pool().submit(take_tasks) for _ in range(threads - 1)]
    take_tasks()
    for helper in helpers:
        helper.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="osae")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


# --- compilation ----------------------------------------------------------------------------------


@functools.cache
def _compile(dtype: torch.dtype) -> None:
    """Compile every loop for `dtype`, or load it from numba's cache; print a note if that takes a while."""
    _keep_freed_memory()
    note = threading.Timer(2.0, _say_compiling)
    note.daemon = True
    note.start()
    try:
        with torch.enable_grad():
            x = torch.ones(1, 1, dtype=dtype, requires_grad=True)
            values, units = _TopK.apply(x, x, None, 1)
            (_PrefixLoss.apply(x, values, units, x, x[0]) + _Decode.apply(values, units, x)[0]).backward()
        loops.bad_unit(_array(units), 1)
    finally:
        note.cancel()


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc keep up to KEPT bytes that have been freed, instead of asking the kernel for them every step.

    A page that comes from the kernel must be cleared first, which takes longer than most uses of it.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, KEPT // 8)  # M_MMAP_THRESHOLD: larger arrays are not kept; 32 MB is the most
        libc.mallopt(-1, KEPT)  # M_TRIM_THRESHOLD


def _say_compiling() -> None:
    print("osae: compiling CPU kernels once (about 15 s) ...", file=sys.stderr, flush=True)
