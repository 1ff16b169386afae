"""Forecasts of the memory, disk and time that a command will need, from the sizes alone. Does not need torch.

Shapes: K units, d width, k active units, B samples in a batch, N rows.

A forecast counts the arrays that exist at the same time, at the peak; it leaves out the baseline of any
command, which is already in use when the forecast is made. `python -m benchmarks.reliability.memory` compares
forecasts of memory with measured peaks.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SINGLE, DOUBLE, INDEX = 4, 8, 8  # bytes of a number
FIXED = 48 * 2**20  # small arrays, compiled code and what the allocator keeps
PRODUCT = 2**22  # pre-activations that exist at once, and at least 512 rows of them
LEAST_ROWS = 512
WORKER = 450 * 2**20  # a process of its own that has imported torch and compiled code
MODE_CELLS = 2**23  # pairs of a direction and a row that exist at once
STUDY_ROWS = 1024  # rows that studies encode at once
SUMMED_UNITS = 8192  # up to which overlaps are summed for every pair of units
TOKEN_BYTES = 64 * 24 + 64 + 24  # of the tokens, positions and totals of a unit, whose contexts are collected
ENTRY_BYTES = 290  # of a unit that fires on a token, while the contexts of a shard are sorted
MOST_OVERLAPS = 2**28  # that are stored sample by sample of more units


@dataclass(frozen=True)
class Forecast:
    """The peak memory and disk in bytes that a command needs on top of what is in use; seconds if known."""

    memory: int
    disk: int = 0
    seconds: float | None = None

    def __str__(self) -> str:
        parts = [f"{format_bytes(self.memory)} of memory"]
        parts += [f"{format_bytes(self.disk)} of disk"] if self.disk else []
        parts += [_format_time(self.seconds)] if self.seconds is not None else []
        return "needs about " + ", ".join(parts)


@dataclass(frozen=True)
class Training:
    """The sizes of a training run: SAEs, batches, and data, of which `block` rows are read at a time."""

    width: int
    units: int
    entries: int  # of a sample's code, including all candidates, at the step with the most of them
    batch: int
    members: int
    block: int
    blocks: int = 1  # of that size in memory
    dense: bool = False  # whether pre-activations of all units are needed at once
    start_rows: int = 0  # of which principal directions or modes are found
    mode_units: int = 0  # the most modes that are found, if units start from them
    revival_rows: int = 0  # that are searched for directions of spare units
    sorted_k: int = 0  # active units when units are sorted by gain, if they are
    world_units: int = 0  # atoms of the synthetic world, if the data are drawn from one
    snapshots: int = 1

    def forecast(self, seconds: float | None = None) -> Forecast:
        """Return what the run needs on the CPU at its peak, given the seconds that it takes."""
        matrix, rows = SINGLE * self.units * self.width, SINGLE * self.block * self.width
        held = self.blocks * rows + INDEX * self.block
        drawn = 2 * SINGLE * self.block * self.world_units + rows
        # the rows around their mean, in double precision, and twice along all directions
        start = 7 * SINGLE * self.start_rows * self.width + 3 * DOUBLE * self.width**2
        started = rows + max(2 * rows, rows + start + self._of_modes()) + 4 * self.members * matrix
        trained = held + 8 * self.members * matrix  # weights, gradients, and both moments
        stepped = trained + 2 * matrix + self._of_step()
        saved = trained + (6 * self.members + 3) * matrix  # copies of all but the gradients
        searched = trained + 5 * SINGLE * self.revival_rows * self.units
        ordered = trained + 2 * matrix + _count_overlaps(self.units, self.sorted_k, self.block)
        disk = self.members * matrix * (12 + 2 + 2 * self.snapshots)
        return Forecast(FIXED + max(drawn, started, stepped, saved, searched, ordered), disk, seconds)

    def _of_modes(self) -> int:
        """Return the bytes of finding modes: pairs of units, pairs with rows, and units for all modes."""
        pairs = 3 * DOUBLE * self.units**2 + 4 * SINGLE * MODE_CELLS
        return pairs + 10 * SINGLE * self.mode_units * self.width if self.mode_units else 0

    def _of_step(self) -> int:
        """Return the bytes needed by a step: batches, codes with their indices, and pre-activations."""
        batch = 8 * SINGLE * self.batch * self.width
        if self.dense:
            return batch + 5 * SINGLE * self.batch * self.units
        rows = min(self.batch, max(PRODUCT // self.units, LEAST_ROWS))
        return batch + SINGLE * rows * self.units + 12 * SINGLE * self.batch * self.entries


def _count_overlaps(units: int, k: int, rows: int) -> int:
    """Return the bytes needed for the overlaps of units that fire together, which the gain order needs."""
    pairs = rows * k**2
    return 16 * min(pairs, units**2) if units <= SUMMED_UNITS else 8 * min(pairs, MOST_OVERLAPS)


@dataclass(frozen=True)
class Dictionary:
    """The size of an SAE that a study reads, and the number of active units per row, if known."""

    units: int
    width: int
    k: int | None = None

    @property
    def matrix(self) -> int:
        """The bytes of its decoder."""
        return SINGLE * self.units * self.width

    def encode(self) -> int:
        """Return the bytes that encoding and decoding a batch of rows takes."""
        rows = 8 * SINGLE * STUDY_ROWS * self.width
        if self.k is None:
            return rows + 5 * SINGLE * STUDY_ROWS * self.units
        return rows + 8 * SINGLE * STUDY_ROWS * self.k + SINGLE * PRODUCT


def forecast_comparison(saes: Sequence[Dictionary], *, rows: int = 0, chance: bool = True) -> Forecast:
    """Return what comparing the SAEs takes; `rows` are those of the activations they are compared on."""
    first, second = sorted(saes, key=lambda sae: -sae.units)[:2]
    total = sum(sae.matrix for sae in saes)
    matching = _match(first, second)
    # two threads draw random dictionaries of the same sizes, like the atoms of all SAEs
    drawing = 2 * (matching + first.matrix + second.matrix) + 4 * total if chance else 0
    codes = sum(2 * SINGLE * rows * (sae.k or sae.units) for sae in saes)
    seen = 3 * min(codes, 2**30) + max(sae.encode() for sae in saes) if rows else 0
    return Forecast(FIXED + 2 * total + seen + matching + drawing)


def _match(a: Dictionary, b: Dictionary) -> int:
    """Return the bytes of matching two dictionaries: copies in both precisions, and a block of cosines."""
    pairs, rows = a.units * b.units, (a.units + b.units) * a.width
    if pairs <= 2**20:
        return 2 * DOUBLE * pairs + DOUBLE * rows
    return (2 * DOUBLE + SINGLE) * rows + 3 * DOUBLE * 256 * max(a.units, b.units) + 32 * 16 * a.units


def forecast_evaluation(saes: Sequence[Dictionary]) -> Forecast:
    """Return what evaluating the SAEs on activations takes, without a language model."""
    return Forecast(FIXED + 2 * sum(sae.matrix for sae in saes) + sum(sae.encode() for sae in saes))


def forecast_ordering(sae: Dictionary, rows: int, *, gain: bool) -> Forecast:
    """Return what ordering the units on that many rows takes, including the disk space of the result."""
    overlaps = _count_overlaps(sae.units, sae.k or sae.units, rows) if gain else 0
    held = 2 * sae.matrix + 2 * sae.matrix + 2 * sae.matrix  # the SAE, in double precision, and reordered
    return Forecast(FIXED + held + sae.encode() + overlaps, 2 * sae.matrix)


def forecast_stitching(small: Dictionary, large: Dictionary) -> Forecast:
    """Return what stitching the units of one SAE into another takes."""
    return Forecast(
        FIXED + 2 * (small.matrix + large.matrix) + 2 * large.matrix + small.encode() + large.encode()
    )


def forecast_contexts(saes: Sequence[Dictionary], *, shard: int, kept: int, window: int) -> Forecast:
    """Return what collecting the contexts of all units takes, without a language model.

    `kept` contexts of each unit have `window` tokens each; shards of at most `shard` rows are read.
    """
    units, entries = sum(sae.units for sae in saes), max(shard * (sae.k or sae.units) for sae in saes)
    table = units * (TOKEN_BYTES + kept * (12 + 2 * window))
    written = units * kept * (16 + 6 * window)
    held = 2 * sum(sae.matrix for sae in saes) + max(sae.encode() for sae in saes)
    return Forecast(FIXED + held + 2 * table + max(written, ENTRY_BYTES * entries), written)


def forecast_pruning(sae: Dictionary, others: Sequence[Dictionary], rows: int) -> Forecast:
    """Return what pruning an SAE takes, without a language model, if its units have to be scored first."""
    steps = [forecast_ordering(sae, rows, gain=True), forecast_evaluation([sae, sae])]
    if others:
        steps.append(forecast_comparison([sae, *others], rows=rows, chance=False))
    return Forecast(3 * sae.matrix + max(step.memory for step in steps), 2 * sae.matrix)


def forecast_trust(twin: Training, sae: Dictionary, rows: int, *, twins: int, seconds: float) -> Forecast:
    """Return what training and comparing the twins of an SAE takes; the parts of the data are written."""
    trained = twin.forecast()
    compared = forecast_comparison([sae] * (twins + 1), rows=rows // (twins + 1))
    parts = rows * sae.width * SINGLE
    return Forecast(max(trained.memory, compared.memory), twins * trained.disk + parts, twins * seconds)


def forecast_harvest(rows: int, width: int, *, block: int, item: int, model: int = 0) -> Forecast:
    """Return what a harvest needs once the model is open; a number takes `item` bytes on disk.

    `model` are the bytes that the model takes for the tokens that it is given at once.
    """
    inside = SINGLE * min(rows, block) * width
    return Forecast(FIXED + model + 5 * inside, rows * (item * width + 12))


# --- what is available ------------------------------------------------------------------------------


def check(forecast: Forecast, remedy: str, folder: Path | None = None) -> None:
    """Raise `ValueError` if there is not enough memory, or not enough space on the folder's disk.

    Limits that the system does not report are not checked.
    """
    free = free_memory()
    if free is not None and forecast.memory > free:
        raise ValueError(
            f"this needs about {format_bytes(forecast.memory)} of memory, but only {format_bytes(free)} are "
            f"free: {remedy}"
        )
    if folder is None or not forecast.disk:
        return
    room = free_disk(folder)
    if forecast.disk > room:
        raise ValueError(
            f"this needs about {format_bytes(forecast.disk)} on the disk of {folder}, but only "
            f"{format_bytes(room)} are free: {remedy}"
        )


def free_memory() -> int | None:
    """Return the bytes of free memory, within the limit of this process's control group; None if unknown."""
    known = [amount for amount in (_free_on_host(), _free_in_group()) if amount is not None]
    return min(known, default=None)


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which may not exist yet."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    return shutil.disk_usage(there).free


def _free_on_host() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _free_in_group() -> int | None:
    """Return the memory left in the control group of a container, not counting its file cache.

    None without a limit.
    """
    for group, limit, used, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        folder = Path(group)
        try:
            most, taken = (int((folder / file).read_text()) for file in (limit, used))
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return max(0, most - taken + int(counts.get(cache, 0)))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return None


def format_bytes(amount: float) -> str:
    """Return an amount of memory in readable form."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}"
    return f"{amount / 1e3:.3g} kB"


def _format_time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:,.0f} days"
