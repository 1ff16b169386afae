"""The contract on the CPU: numba loops over blocks, on as many threads as torch uses.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

No array here has size B*K or B*k*d. Both gradients of a dictionary are summed in a fixed order, so results do
not depend on the number of threads. The work of a batch is divided by samples and by columns into at most
about B/512 * d/256 tasks; with few threads, there are fewer, larger tasks.
"""

# autograd Functions name their own arguments
# pyright: reportIncompatibleMethodOverride=false

import functools
import itertools
import os
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

COLUMNS = 256  # width of a block of columns, each summed separately: narrow enough for two at d = 512
SAMPLES = 512  # samples whose decoder gradients are summed one after another, and the most in a group
LEAST_SAMPLES = 128  # in a group: samples processed together, whose residuals stay in the faster caches
SHARED = 6  # entries that a unit should have in a group, on average: with fewer, atoms are read too often
LEAST_ROWS = 512  # minimum rows of a product: fewer cost more time than a small buffer saves
MOST_BUFFER = 2**26  # maximum pre-activations at once, whatever the number of rows: 256 MB in float32
TASKS = 32  # in the loss's backward pass, if there are enough samples: more than most machines have cores
LANE_NUMBERS = 2**27  # in the decoder gradients that are summed in parallel: 0.5 GB in float32
PIECES = 4  # per thread, in loops over independent rows: balances the load if a core is busy
BUFFER = 2**22  # pre-activations held at once: 16 MB in float32, small enough to be searched in cache


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
        values, decoder = values.contiguous(), decoder.contiguous()
        mass = np.cumsum(_array(weights.double())[::-1])[::-1].copy()
        size = _group_size(values.shape[1], len(decoder))
        starts, slots, owners = loops.by_unit(_array(values), _array(units.contiguous()), len(decoder), size)
        picked = _array(values).ravel()[slots]
        groups, cuts = _cuts(len(x), size) or [(0, 0)], _columns(x.shape[1])
        runs = _runs(len(groups), len(cuts) - 1)
        residuals = torch.empty_like(x, memory_format=torch.contiguous_format)
        losses = np.empty((len(cuts) - 1, len(x)))
        args = _array(x.contiguous()), picked, _array(decoder), mass
        out = _array(residuals)

        def walk(group: int, run: int) -> None:
            first, last = runs[run]
            where = (*groups[group], cuts[first : last + 1])
            loops.prefix_forward(*args, starts[group], owners, *where, out, losses[first:last])

        _spread(walk, list(itertools.product(range(len(groups)), range(len(runs)))))
        ctx.save_for_backward(values, decoder, residuals)
        ctx.turned = mass, picked, starts, slots, owners, groups
        return torch.from_numpy(losses.sum(0)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        values, decoder, residuals = ctx.saved_tensors
        mass, picked, starts, slots, owners, groups = ctx.turned
        cuts = _columns(decoder.shape[1])
        lanes = _lanes(groups, len(cuts) - 1, decoder.numel())
        runs = _runs(len(lanes), len(cuts) - 1)
        dx, ddecoder = torch.empty_like(residuals), torch.empty_like(decoder)
        parts = np.zeros((len(cuts) - 1, values.numel()), _array(values).dtype)
        args = picked, _array(decoder), mass, _array(residuals), _array(upstream.contiguous())

        def walk(lane: int, run: int, into: np.ndarray) -> None:
            left, right = runs[run]
            outs = _array(dx), parts[left:right], into
            for i, group in enumerate(lanes[lane]):
                first, last = groups[group]
                where = starts[group], slots, owners, first, last, cuts[left : right + 1], i == 0
                loops.prefix_backward(*args, *where, *outs)

        _sum_lanes(walk, len(lanes), len(runs), _array(ddecoder))
        return dx, torch.from_numpy(parts.sum(0)).view_as(values), None, ddecoder, None


def _sum_lanes(walk: Callable[[int, int, np.ndarray], None], lanes: int, runs: int, out: np.ndarray) -> None:
    """Call walk(lane, run, array) for all lanes and runs, and store the sum of the lanes' arrays in `out`.

    Lanes are added in their order. On one thread, all but the first share an array, which stays in the cache.
    """
    if torch.get_num_threads() > 1:
        later = np.empty((lanes - 1, *out.shape), out.dtype)
        into = [out, *later]
        tasks = list(itertools.product(range(lanes), range(runs)))
        _spread(lambda lane, run: walk(lane, run, into[lane]), tasks)
        _spread(lambda a, b: loops.add_parts(later, a, b, out), _rows(len(out)) if lanes > 1 else [])
        return
    shared = np.empty((min(lanes - 1, 1), *out.shape), out.dtype)
    for lane, run in itertools.product(range(lanes), range(runs)):
        walk(lane, run, shared[0] if lane else out)
        if lane and run == runs - 1:
            loops.add_parts(shared, 0, len(out), out)


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        x, encoder = x.contiguous(), encoder.contiguous()
        shift = x.new_zeros(len(encoder)) if bias is None else bias.contiguous()
        values, units = x.new_empty(len(x), k), x.new_empty(len(x), k, dtype=torch.int64)
        start = 0
        for block in _products(x, encoder):
            rows = slice(start, start + len(block))
            _select(block, shift, values[rows], units[rows])
            start += len(block)
        ctx.mark_non_differentiable(units)
        ctx.save_for_backward(x, encoder, values, units)
        ctx.biased = bias is not None
        return values, units

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        x, encoder, values, units = ctx.saved_tensors
        # entries with zero gradient, padding or not, are left out
        upstream = upstream.contiguous().masked_fill(values == 0, 0)
        dx = _gather(upstream, upstream, units, encoder) if ctx.needs_input_grad[0] else None
        dencoder, dbias = _scatter(upstream, upstream, units, x, len(encoder))
        return dx, dencoder, dbias if ctx.biased else None, None


class _BatchTopK(_TopK):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        x, encoder = x.contiguous(), encoder.contiguous()
        shift = x.new_zeros(len(encoder)) if bias is None else bias.contiguous()
        values, units = find_largest(
            _products(x, encoder), lambda block, room: top(block, shift, room), len(x), k
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


def _products(x: Tensor, encoder: Tensor) -> Iterator[Tensor]:
    """Yield x E^T in blocks of rows; all blocks share one buffer."""
    count = len(encoder)
    step = max(1, min(len(x), max(BUFFER // count, LEAST_ROWS), MOST_BUFFER // count))
    buffer = x.new_empty(step, count)
    for rows in x.split(step):
        yield torch.mm(rows, encoder.T, out=buffer[: len(rows)])


def _select(pre: Tensor, bias: Tensor, values: Tensor, units: Tensor) -> None:
    """Fill `values` and `units` with the largest positive entries of `pre` + `bias`; overwrite `pre`."""
    bits = pre.view(torch.int32 if pre.dtype == torch.float32 else torch.int64)
    args = _array(pre), _array(bits), _array(bias), values.shape[1]
    outs = _array(values), _array(units)
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
    starts, slots, owners = loops.by_unit(_array(active), _array(units), count, max(len(values), 1))
    picked, start = _array(values).ravel()[slots], starts[0]
    args, target = (picked, start, owners, _array(rows)), _array(out)
    _spread(lambda a, b: loops.scatter_outer(*args, a, b, target), _rows(count))
    loops.sum_by_unit(picked, start, 0, count, _array(sums))
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


def _columns(width: int) -> np.ndarray:
    """Return the boundaries of blocks of about COLUMNS columns, including 0 and the width itself.

    Sums depend on the boundaries, so these must not depend on the number of threads.
    """
    blocks = max(1, round(width / COLUMNS))
    step = -(-width // (16 * blocks)) * 16
    return np.array([*range(0, width, step), width])


def _runs(others: int, blocks: int) -> list[tuple[int, int]]:
    """Return ranges of blocks that are processed together; fewer ranges are faster.

    With `others` tasks for each range, there are enough tasks for all threads.
    """
    threads = torch.get_num_threads()
    most = min(blocks, -(-2 * threads // max(others, 1)) if threads > 1 else 1)
    return [(blocks * run // most, blocks * (run + 1) // most) for run in range(most)]


def _group_size(active: int, count: int) -> int:
    """Return how many samples are processed together; results do not depend on it.

    The residuals of fewer samples stay in a faster cache, but an atom is read once for every group: fewer
    samples are worthwhile if most units are still active in several of them.
    """
    size = LEAST_SAMPLES
    while size < SAMPLES and size * active < SHARED * count:
        size *= 2
    return size


def _lanes(groups: list[tuple[int, int]], blocks: int, numbers: int) -> list[range]:
    """Return ranges of groups of samples whose decoder gradients are summed in parallel.

    They are cut at multiples of SAMPLES samples. If there are enough samples, there are enough ranges for
    TASKS tasks, whatever the number of threads, because sums depend on the ranges. Each range but the first
    takes as much memory as the decoder.
    """
    firsts = [i for i, (start, _) in enumerate(groups) if start % SAMPLES == 0]
    most = min(-(-TASKS // blocks), 1 + LANE_NUMBERS // numbers, len(firsts))
    cuts = [firsts[len(firsts) * lane // most] for lane in range(most)]
    return [range(a, b) for a, b in itertools.pairwise([*cuts, len(groups)])]


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


def _say_compiling() -> None:
    print("osae: compiling CPU kernels once (about 15 s) ...", file=sys.stderr, flush=True)
