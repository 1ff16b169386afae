"""The contract on the GPU: triton programs, one per sample or unit and per block of the width.

A program is one warp, so its sums need no barrier, and holds 8 numbers of a row per thread. With at most 64
registers, as many programs fit on a multiprocessor as it can run at all (32), and 32 KB of atoms are in
flight there at a time, several times as much as it takes to saturate the memory.

Shapes: B samples, d width, K units in the dictionary, k entries in a sample's code.

Sums are computed in float32 (float64 for float64 data), whatever the dtype of the data. The gradient of a
dictionary is gathered unit by unit in a fixed order, except in the backward pass of the all-prefix loss:
there, samples add to it in any order, unless torch.use_deterministic_algorithms(True) is set.
"""

# Autograd Functions name their own arguments; triton turns arguments into constexpr itself and takes launch
# options alongside them. A directive must stand alone on its line.
# pyright: reportIncompatibleMethodOverride=false
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from osae.kernels.batch import find_largest
from osae.kernels.precision import Precision, multiply_rounded, precision_now, round_to
from osae.prefix import residual_weights

PIECE = 256  # entries of a unit that one program adds up
BLOCK = 256  # numbers of a row in one program of one warp
WARPS = 1
WIDEST = 8192  # widest row that one program of `step_atoms` can hold
BUFFER = 2**26  # pre-activations, or gradients of single entries, held at once: 256 MB in float32
LEAST_ROWS = 512  # minimum rows of a product, however large the dictionary


def all_prefix_loss(x: Tensor, values: Tensor, units: Tensor, decoder: Tensor, weights: Tensor) -> Tensor:
    """Return the ordered loss of each sample (B,)."""
    if not values.shape[1]:  # the walks expect at least one entry, even if it is padding
        values, units = (torch.nn.functional.pad(part, (0, 1)) for part in (values, units))
    return _PrefixLoss.apply(x, values, units, decoder, weights)


def topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of relu(x E^T + bias) in each row, and their units."""
    values, units = _TopK.apply(x, encoder, bias, k)
    return values, units


def batch_topk_encode(x: Tensor, encoder: Tensor, bias: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the B*k largest of relu(x E^T + bias) in the batch, and their units."""
    values, units = _BatchTopK.apply(x, encoder, bias, k)
    return values, units


def decode(values: Tensor, units: Tensor, decoder: Tensor) -> Tensor:
    """Return the sum of each sample's atoms (B, d)."""
    return _Decode.apply(values, units, decoder)


# --- programs -------------------------------------------------------------------------------------


@triton.jit
def _walk_forward(
    x, values, units, counts, decoder, shares, residuals, losses, k, d,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Follow one block of one sample's residual over its active units, which come first and are sorted."""
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < d
    rest = tl.load(x + b * d + columns, mask=inside, other=0.0).to(ACC)
    total = tl.load(shares + b * (k + 1)) * rest * rest
    for t in range(tl.load(counts + b)):
        value = tl.load(values + b * k + t).to(ACC)
        unit = tl.load(units + b * k + t)
        atom = tl.load(decoder + unit * d + columns, mask=inside, other=0.0).to(ACC)
        rest -= value * atom
        total += tl.load(shares + b * (k + 1) + t + 1) * rest * rest
    tl.store(residuals + b * d + columns, rest, mask=inside)
    tl.store(losses + block * tl.num_programs(0).to(tl.int64) + b, tl.sum(total, 0))


@triton.jit
def _walk_back(
    values, units, counts, decoder, shares, residuals, upstream, dx, dvalues, ddecoder, entries, k, d,
    ATOMIC: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Follow the residual back with suffix sums; see `osae.kernels.loops.prefix_backward`.

    An entry's contribution to its atom's gradient is added to `ddecoder`, or stored in `entries` (B, k, d).
    """
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    samples = tl.num_programs(0).to(tl.int64)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < d
    scale = -2 * tl.load(upstream + b).to(ACC)
    rest = tl.load(residuals + b * d + columns, mask=inside, other=0.0)
    suffix = tl.zeros([BLOCK], dtype=ACC)
    count = tl.load(counts + b)
    last = b * k + tl.maximum(count - 1, 0)
    value = tl.load(values + last).to(ACC)
    unit = tl.load(units + last)
    there = columns < d * tl.minimum(count, 1)  # empty if no unit is active
    atom = tl.load(decoder + unit * d + columns, mask=there, other=0.0).to(ACC)
    for back in range(count):
        t = count - 1 - back
        # load the next atom before this one's gradient is written: no read may overtake a write
        before = b * k + tl.maximum(t - 1, 0)
        next_value = tl.load(values + before).to(ACC)
        next_unit = tl.load(units + before)
        next_atom = tl.load(decoder + next_unit * d + columns, mask=inside, other=0.0).to(ACC)
        suffix += scale * tl.load(shares + b * (k + 1) + t + 1) * rest
        tl.store(dvalues + (block * samples + b) * k + t, tl.sum(suffix * atom, 0))
        if ATOMIC:
            # relaxed: nothing waits for a single sum, and any stronger order would fence the memory each time
            tl.atomic_add(ddecoder + unit * d + columns, value * suffix, mask=inside, sem="relaxed")
        else:
            tl.store(entries + (b * k + t) * d + columns, value * suffix, mask=inside)
        rest += value * atom
        value, unit, atom = next_value, next_unit, next_atom
    suffix += scale * tl.load(shares + b * (k + 1)) * rest
    tl.store(dx + b * d + columns, -suffix, mask=inside)


@triton.jit
def _gather_sum(values, units, table, out, k, d, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Compute one block of out[b] = sum_t values[b, t] table[units[b, t]]."""
    b = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < d
    total = tl.zeros([BLOCK], dtype=ACC)
    for t in range(k):
        value = tl.load(values + b * k + t).to(ACC)
        if value != 0:
            unit = tl.load(units + b * k + t)
            total += value * tl.load(table + unit * d + columns, mask=inside, other=0.0).to(ACC)
    tl.store(out + b * d + columns, total, mask=inside)


@triton.jit
def _gather_dot(values, units, table, rows, out, k, d, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Compute out[b, t] = rows[b] . table[units[b, t]] where values[b, t] is not zero."""
    b = tl.program_id(0).to(tl.int64)
    place = b * k + tl.program_id(1)
    if tl.load(values + place) != 0:
        unit = tl.load(units + place)
        total = tl.zeros([BLOCK], dtype=ACC)
        for start in range(0, d, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            atom = tl.load(table + unit * d + columns, mask=columns < d, other=0.0).to(ACC)
            total += atom * tl.load(rows + b * d + columns, mask=columns < d, other=0.0).to(ACC)
        tl.store(out + place, tl.sum(total, 0))


@triton.jit
def _scatter_outer(
    values, starts, slots, extra, rows, out, parts, count, per, d,
    PIECE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up one block of value * rows[slot // per] over PIECE of a unit's slots, in order.

    The first `count` programs add the first piece of each unit to out[unit]; every later piece has its own
    program, which stores its sum in `parts`. `extra[unit]` is the first of the unit's later pieces.
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < d
    late = program - count
    unit, piece = program, tl.zeros([], dtype=tl.int64)
    if late >= 0:
        # the last unit with extra[unit] <= late
        low = tl.zeros([], dtype=tl.int64)
        high = low + count
        while high - low > 1:
            middle = (low + high) // 2
            if tl.load(extra + middle) <= late:
                low = middle
            else:
                high = middle
        unit, piece = low, late - tl.load(extra + low) + 1
    first = tl.load(starts + unit) + piece * PIECE
    last = tl.minimum(first + PIECE, tl.load(starts + unit + 1))
    total = tl.zeros([BLOCK], dtype=ACC)
    for entry in range(first, last):
        slot = tl.load(slots + entry)
        value = tl.load(values + slot).to(ACC)
        row = tl.load(rows + (slot // per) * d + columns, mask=inside, other=0.0)
        total += value * row.to(ACC)
    if late >= 0:
        tl.store(parts + late * d + columns, total, mask=inside)
    else:
        total += tl.load(out + unit * d + columns, mask=inside, other=0.0)
        tl.store(out + unit * d + columns, total, mask=inside)


@triton.jit
def _add_parts(extra, parts, out, d, BLOCK: tl.constexpr):
    """Add the later pieces of one unit to one block of out[unit], in order."""
    unit = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < d
    first, last = tl.load(extra + unit), tl.load(extra + unit + 1)
    if last > first:
        total = tl.load(out + unit * d + columns, mask=inside, other=0.0)
        for part in range(first, last):
            total += tl.load(parts + part * d + columns, mask=inside, other=0.0)
        tl.store(out + unit * d + columns, total, mask=inside)


@triton.jit
def _step_atoms(
    atoms, grads, means, squares, corrections, spoiled, d, rate, beta1, beta2, eps, penalty,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Move one atom: see `step_atoms`. Read four numbers and write three for each number of the atom."""
    unit = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < d
    place = unit * d + columns
    if tl.load(spoiled) == 0:
        atom = tl.load(atoms + place, mask=inside, other=0.0)
        grad = tl.load(grads + place, mask=inside, other=0.0)
        mean = tl.load(means + place, mask=inside, other=0.0)
        square = tl.load(squares + place, mask=inside, other=0.0)
        grad += (penalty - tl.sum(grad * atom, 0)) * atom
        mean += (1 - beta1) * (grad - mean)
        square = beta2 * square + (1 - beta2) * grad * grad
        size = tl.sqrt(square) / tl.load(corrections + 1) + eps
        atom -= rate / tl.load(corrections) * mean / size
        atom /= tl.maximum(tl.sqrt(tl.sum(atom * atom, 0)), 1e-12)
        tl.store(atoms + place, atom, mask=inside)
        tl.store(means + place, mean, mask=inside)
        tl.store(squares + place, square, mask=inside)


class AdamStep(NamedTuple):
    """The parameters of a step of Adam; `penalty` is its weight decay."""

    rate: float
    beta1: float
    beta2: float
    eps: float
    penalty: float = 0.0


def step_atoms(
    atoms: Tensor,
    grads: Tensor,
    means: Tensor,
    squares: Tensor,
    steps: Tensor,
    spoiled: Tensor,
    adam: AdamStep,
) -> None:
    """Take a step of Adam on the sphere, in one pass over atoms, gradients and both moments (K, d).

    The part of a gradient along its atom is removed, and the atom is scaled to norm one afterwards. `steps`
    is the number of the step, from 1; nothing changes if `spoiled` is nonzero. Both stay on the device.
    """
    count = steps.double()
    corrections = torch.stack([1 - adam.beta1**count, (1 - adam.beta2**count).sqrt()]).float()
    d = atoms.shape[1]
    block = triton.next_power_of_2(d)
    with torch.cuda.device_of(atoms):
        _step_atoms[(len(atoms),)](
            atoms, grads, means, squares, corrections, spoiled, d, *adam,
            BLOCK=block, num_warps=row_warps(block),
        )  # fmt: skip


def row_warps(block: int) -> int:
    """Return the warps of a program that holds a whole row, with 16 numbers of each tensor per thread."""
    return max(1, min(16, block // 512))


# --- autograd -------------------------------------------------------------------------------------


class _PrefixLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, values, units, decoder, weights):
        # padding comes last, after every unit, and the walks end before it
        units, order = torch.where(values != 0, units, len(decoder)).contiguous().sort(dim=-1)
        values = values.gather(-1, order).contiguous()
        counts = (values != 0).sum(-1)
        x, decoder = x.contiguous(), decoder.contiguous()
        shares = residual_weights(weights, units, _sums(x))
        block, blocks = _blocks(x.shape[1])
        residuals = torch.empty_like(x, dtype=_sums(x))
        losses = residuals.new_zeros(blocks, len(x))
        if len(x):
            with torch.cuda.device_of(x):  # triton launches on the current device
                _walk_forward[len(x), blocks](
                    x, values, units, counts, decoder, shares, residuals, losses, units.shape[1], x.shape[1],
                    ACC=_acc(x), BLOCK=block, num_warps=WARPS,
                )  # fmt: skip
        ctx.save_for_backward(values, units, counts, order, decoder, shares, residuals)
        return losses.sum(0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        values, units, counts, order, decoder, shares, residuals = ctx.saved_tensors
        k, d = units.shape[1], decoder.shape[1]
        atomic = not torch.are_deterministic_algorithms_enabled()
        block, blocks = _blocks(d)
        dx, ddecoder = torch.empty_like(residuals), residuals.new_zeros(decoder.shape)
        parts = residuals.new_zeros(blocks, *units.shape)
        upstream = upstream.contiguous()
        step = len(dx) if atomic else max(1, BUFFER // (k * d))
        for start in range(0, len(dx), max(step, 1)):
            rows = slice(start, start + step)
            count = len(dx[rows])
            entries = ddecoder if atomic else ddecoder.new_empty(count * k, d)
            dvalues = parts.new_zeros(blocks, count, k)
            with torch.cuda.device_of(dx):
                _walk_back[count, blocks](
                    values[rows], units[rows], counts[rows], decoder, shares[rows], residuals[rows],
                    upstream[rows], dx[rows], dvalues, ddecoder, entries, k, d,
                    ATOMIC=atomic, ACC=_acc(decoder), BLOCK=block, num_warps=WARPS,
                )  # fmt: skip
            parts[:, rows] = dvalues
            if not atomic:
                ones = (values[rows] != 0).to(residuals.dtype)
                scatter(ones, sort_slots(ones, units[rows], len(decoder)), entries, 1, ddecoder)
        dvalues = torch.empty_like(values).scatter_(-1, order, parts.sum(0).to(values.dtype))
        return dx.to(upstream.dtype), dvalues, None, ddecoder.to(decoder.dtype), None


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        return _select(ctx, x, encoder, bias, lambda blocks: _top_of_rows(blocks, k))

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, _):
        x, encoder, values, units = ctx.saved_tensors
        active = torch.where(values != 0, upstream, 0)
        dx = _gather(active, units, encoder) if ctx.needs_input_grad[0] else None
        slots = sort_slots(active, units, len(encoder))
        dencoder = x.new_zeros(encoder.shape, dtype=_sums(x))
        scatter(active, slots, x, units.shape[1], dencoder)
        dbias = None
        if ctx.biased:
            ones = x.new_ones(len(x), 1)
            dbias = x.new_zeros(len(encoder), 1, dtype=_sums(x))
            scatter(active, slots, ones, units.shape[1], dbias)
            dbias = dbias.squeeze(-1).to(ctx.dtype)
        return dx, dencoder.to(ctx.dtype), dbias, None


class _BatchTopK(_TopK):
    @staticmethod
    def forward(ctx, x, encoder, bias, k):
        return _select(ctx, x, encoder, bias, lambda blocks: find_largest(blocks, torch.topk, len(x), k))


def _select(
    ctx,
    x: Tensor,
    encoder: Tensor,
    bias: Tensor | None,
    pick: Callable[[Iterator[Tensor]], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Return the code that `pick` finds in blocks of pre-activations, and save what its gradients need.

    In lower precision, rows and atoms are saved in that precision, which halves the amount to read later.
    """
    precision = precision_now()
    rows, atoms = (round_to(precision, tensor.contiguous()) for tensor in (x, encoder))
    values, units = pick(_pre_activations(rows, atoms, bias, precision))
    ctx.mark_non_differentiable(units)
    ctx.save_for_backward(rows, atoms, values, units)
    ctx.biased, ctx.dtype = bias is not None, x.dtype
    return values, units


def _top_of_rows(blocks: Iterator[Tensor], k: int) -> tuple[Tensor, Tensor]:
    tops = [torch.topk(pre, k) for pre in blocks]
    return torch.cat([top.values for top in tops]).relu_(), torch.cat([top.indices for top in tops])


def _pre_activations(
    x: Tensor, encoder: Tensor, bias: Tensor | None, precision: Precision
) -> Iterator[Tensor]:
    """Yield x E^T + bias in blocks of rows; the caller must skip numbers that are not positive."""
    for rows in x.split(rows_at_once(len(encoder))):
        yield multiply_rounded(rows, encoder.T, precision, bias)


def rows_at_once(units: int) -> int:
    """Return the number of rows to multiply at a time: with few rows, reading E dominates."""
    return max(LEAST_ROWS, BUFFER // units)


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, units, decoder):
        values, units, decoder = values.contiguous(), units.contiguous(), decoder.contiguous()
        ctx.save_for_backward(values, units, decoder)
        return _gather(values, units, decoder)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        values, units, decoder = ctx.saved_tensors
        upstream, (k, d) = upstream.contiguous(), (units.shape[1], decoder.shape[1])
        dvalues = torch.zeros_like(values)
        if values.numel():
            with torch.cuda.device_of(values):
                _gather_dot[len(values), k](
                    values, units, decoder, upstream, dvalues, k, d,
                    ACC=_acc(values), BLOCK=_blocks(d)[0], num_warps=WARPS,
                )  # fmt: skip
        ddecoder = decoder.new_zeros(decoder.shape, dtype=_sums(decoder))
        scatter(values, sort_slots(values, units, len(decoder)), upstream, k, ddecoder)
        return dvalues, None, ddecoder.to(decoder.dtype)


def _gather(values: Tensor, units: Tensor, table: Tensor) -> Tensor:
    """Return sum_t values[b, t] table[units[b, t]] for each sample (B, d)."""
    d = table.shape[1]
    block, blocks = _blocks(d)
    out = values.new_empty(len(values), d)
    if len(values):
        with torch.cuda.device_of(values):
            _gather_sum[len(values), blocks](
                values.contiguous(), units, table, out, units.shape[1], d,
                ACC=_acc(values), BLOCK=block, num_warps=WARPS,
            )  # fmt: skip
    return out


class Slots(NamedTuple):
    """The positions of the nonzero entries in the flattened code, sorted by unit.

    The slots of unit u are slots[starts[u] : starts[u + 1]]. Its pieces of PIECE entries after the first one
    are numbered extra[u] to extra[u + 1] - 1.
    """

    slots: Int[Tensor, "Bk"]
    starts: Int[Tensor, "K+1"]
    extra: Int[Tensor, "K+1"]


def sort_slots(values: Tensor, units: Tensor, count: int) -> Slots:
    """Return the nonzero entries of a code by unit."""
    flat, slots = torch.where(values != 0, units, count).flatten().sort(stable=True)
    starts = torch.searchsorted(flat, torch.arange(count + 1, device=flat.device))
    later = ((starts.diff() - 1) // PIECE).clamp(min=0)
    return Slots(slots, starts, torch.nn.functional.pad(later.cumsum(0), (1, 0)))


def scatter(values: Tensor, slots: Slots, rows: Tensor, per: int, out: Tensor) -> None:
    """Add the sum of value * rows[slot // per] over unit u's slots in the flattened code to each out[u].

    A unit that fires often is summed in pieces, in parallel; otherwise everything would wait for that unit.
    The grid is large enough for the largest possible number of pieces, because counting them would mean
    waiting for the device.
    """
    count, d = out.shape
    block, blocks = _blocks(d)
    most = values.numel() // PIECE
    parts = out.new_empty(most, d)
    with torch.cuda.device_of(out):
        _scatter_outer[count + most, blocks](
            values.contiguous(), slots.starts, slots.slots, slots.extra, rows, out, parts, count, per, d,
            PIECE=PIECE, ACC=_acc(out), BLOCK=block, num_warps=WARPS,
        )  # fmt: skip
        if most:
            _add_parts[count, blocks](slots.extra, parts, out, d, BLOCK=block, num_warps=WARPS)


def _blocks(d: int) -> tuple[int, int]:
    """Return the width of a block, a power of two, and how many of them cover the width d."""
    block = min(BLOCK, max(16, triton.next_power_of_2(d)))
    return block, triton.cdiv(d, block)


def _sums(data: Tensor) -> torch.dtype:
    """Return the dtype in which sums over this data are computed."""
    return torch.float64 if data.dtype == torch.float64 else torch.float32


def _acc(data: Tensor) -> tl.dtype:
    return tl.float64 if data.dtype == torch.float64 else tl.float32
