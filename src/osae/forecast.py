"""Forecasts of the memory, disk and time that a command will need, from sizes. Does not need torch.

Shapes: K units, d width, k active units, B samples in a batch, N rows.

A forecast counts the arrays that exist at the same time, at the peak; it leaves out the baseline of any
command, which is already in use when the forecast is made. Work is counted in multiplications of a matrix
product, whose rate is measured on this machine before a command starts; other operations count as the number
of multiplications that take as long. `python -m benchmarks.reliability.memory` compares forecasts with
measured peaks and times.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

SINGLE, DOUBLE, INDEX = 4, 8, 8  # bytes of a number
RETURNED = 2**25  # bytes of an array from which on the allocator returns its memory to the system
FIXED = 48 * 2**20  # small arrays, and what the allocator keeps: freed arrays of less than 32 MB
FIXED_HARVEST = 16 * 2**20  # the same while harvesting, without what is counted for passes and blocks
FIXED_TRAINING = 64 * 2**20  # the same while training, when arrays of many sizes are allocated
PRODUCT, MOST_PRODUCT = 2**21, 2**26  # pre-activations that exist at once, and at least 512 rows of them
LEAST_ROWS = 512
WORKER = 270 * 2**20  # a process of its own that has imported torch; code of libraries is shared with others
MODE_CELLS, MODE_ROWS = 2**23, 15_000  # pairs of a direction and a row that exist at once; rows to sort modes
STUDY_ROWS, SORTED_ROWS = 1024, 8192  # rows that studies encode at once, and training when it sorts units
SUMMED_UNITS = 8192  # up to which overlaps are summed for every pair of units, in a matrix
DENSE_ROWS, DENSE_SHARE = 1024, 1 / 8  # of codes that are dense while added, if so many units are active
TOKEN_BYTES = 64 * 24 + 64 + 24  # of the tokens, positions and totals of a unit, whose contexts are collected
ENTRY_BYTES = 290  # of a unit that fires on a token, while the contexts of a shard are sorted
MOST_OVERLAPS, MOST_STREAMED = 2**28, 2**26  # that are stored sample by sample of more units
MATCHED_ROWS, MATCHED_CANDIDATES = 256, 34  # rows whose cosines exist at once, and candidates of each unit
GATHERED = 2**23  # numbers of atoms that are gathered at once to compute overlaps

# multiplications that take as long as ...
ENCODED, ENCODED_DENSE = 1.6, 50.0  # a multiplication of the encoder, including what follows on the code
MATCHED, MATCHED_PAIR = 4.2, 130  # one for the cosine of two units, and the rest of matching the two
FITTED = 20  # one for the principal directions of atoms, of which there are width^3
CORRELATED_PAIR = 800  # matching a pair of units by their activations
TOGETHER = 2500  # correlating two units that fire on the same row
SUMMED, OVERLAP = 900, 2.4  # the overlap of two units that fire on the same row, and one of two atoms
STORED = 1500  # the same, stored by row
CHOSEN_PAIR = 40  # comparing a unit with the best one so far, in the gain order
SORTED_ENTRY = 70_000  # counting a unit that fires on a token, and sorting it by slot
FIRST_ENTRY = 150_000  # sorting it into the contexts of the first shard, while everything may be kept
DASHBOARD_BYTES = 6  # of a dashboard, for each byte of contexts
PAGE, PAGE_FILE = 48 * 2**20, 5 * 10**6  # bytes of a page without content, in memory and on disk
FIGURES = 2 * 10**6  # bytes of the figures about the SAEs of a recipe in an experiment
RESULT_BYTES, CONTEXT_BYTES = 6, 4  # in memory, for each byte of results or contexts that a page shows
WRITTEN_SECONDS = 1.5e-9  # of writing and hashing a byte
PACKED_SECONDS = 5e-7  # of compressing a byte of a page
CHANCE_UNITS, MOST_DRAWS = 1024, 8  # drawn for a chance level by default
CHECKPOINT_SECONDS, MOST_CHECKPOINTS = 60.0, 3  # between checkpoints by default; as many exist at once
SLOWER = 2  # than estimated, which a training run may be
SPARE, LEAST_MORE = 1.01, 10**6  # times the missing bytes, so that they are enough when rounded, and at least


@dataclass(frozen=True)
class Forecast:
    """The peak memory and disk in bytes that a command needs on top of what is in use, and how long it takes.

    `work` is counted in multiplications, and is not part of the `seconds`.
    """

    memory: int
    disk: int = 0
    seconds: float | None = None
    work: float = 0.0

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
    consensus_units: int = 0  # of all short runs of an SAE, if SAEs start from what these have in common
    short_units: int = 0  # of one short run
    short_steps: int = 0  # of all short runs of an SAE, as many as if they had as many units as the SAE
    revival_rows: int = 0  # that are searched for directions of spare units
    compared: int = 0  # atoms whose pairwise cosines are computed at once, by a penalty on neighbours
    sorted_k: int = 0  # active units when units are sorted by gain, if they are
    world_units: int = 0  # atoms of the synthetic world, if the data are drawn from one
    snapshots: int = 1
    contexts: int = 0  # bytes of the tokens of a text, which a run with a language model keeps until it ends

    def forecast(
        self, seconds: float | None = None, *, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> Forecast:
        """Return what the run needs on the CPU at its peak, given the seconds that it takes.

        There is a checkpoint at its end, and one every `checkpoint_seconds`.
        """
        matrix, rows = SINGLE * self.units * self.width, SINGLE * self.block * self.width
        held = self.blocks * rows + INDEX * self.block + self.contexts
        codes = SINGLE * self.block * self.world_units
        drawn = codes + max(codes, rows)
        started = rows + max(2 * rows, rows + self._of_start()) + 4 * self.members * matrix + self.contexts
        trained = held + 8 * self.members * matrix  # weights, gradients, and both moments
        compared = SINGLE * self.compared**2 + (2 * matrix if self.compared else 0)
        stepped = trained + 2 * matrix + max(self._of_step(), compared)
        saved = trained + (6 * self.members + 3) * matrix  # copies of all but the gradients
        searched = trained + 5 * SINGLE * self.revival_rows * self.units
        ordered = trained + 2 * matrix + self._of_sorting(self.units, self.block)
        written = matrix * self._count_matrices(seconds, checkpoint_seconds)
        short = 2 * SINGLE * self.consensus_units * self.width  # encoders and decoders of short runs
        disk = self.members * (written + short) + self.contexts
        return Forecast(
            FIXED_TRAINING + max(drawn, started, stepped, saved, searched, ordered), disk, seconds
        )

    def _count_matrices(self, seconds: float | None, checkpoint_seconds: float) -> int:
        """Return the size of the files of an SAE, in matrices; the run may take longer than its estimate.

        A checkpoint contains weights and both moments. There are three while the oldest is being replaced,
        and two when the finished SAE is written.
        """
        written = MOST_CHECKPOINTS
        if seconds is not None and checkpoint_seconds > 0:
            written = min(written, 1 + int(SLOWER * seconds // checkpoint_seconds))
        return max(6 * written, 6 * min(written, 2) + 2) + 2 * self.snapshots

    def _of_start(self) -> int:
        """Return the bytes of finding what units start from: principal directions, modes, or a consensus."""
        if self.consensus_units:
            # encoders and decoders, twice, and the cosines of all units with those of a run
            return SINGLE * self.consensus_units * (4 * self.width + self.units + self.short_units)
        rows = SINGLE * self.start_rows * self.width
        if not self.mode_units:
            # the rows around their mean, in double precision, and twice along all directions
            return 7 * rows + 3 * DOUBLE * self.width**2
        modes = 8 * SINGLE * self.mode_units * self.width
        searched = 2 * SINGLE * MODE_CELLS
        ordered = modes + self._of_sorting(self.mode_units, MODE_ROWS)
        fitted = (2 * DOUBLE + 2 * SINGLE) * self.units**2 + SINGLE * MODE_CELLS
        merged = SINGLE * self.units * self.mode_units  # cosines, in arrays that the allocator keeps
        return 3 * rows + merged + max(searched, ordered, fitted)

    def _of_sorting(self, units: int, rows: int) -> int:
        """Return the bytes of sorting units by gain; while k is warmed up, more of them are active."""
        if not self.sorted_k:
            return 0
        k = max(self.sorted_k, min(self.entries, units)) if units <= SUMMED_UNITS else self.sorted_k
        return _count_overlaps(units, k, rows, SORTED_ROWS)

    def _of_step(self) -> int:
        """Return the bytes needed by a step: batches, codes with their indices, and pre-activations."""
        batch = 8 * SINGLE * self.batch * self.width
        if self.dense:  # as soon as a quarter of the units is inactive, entries are stored with their indices
            return batch + 6 * SINGLE * self.batch * self.units
        product = _measure_product(self.batch, self.units)
        return batch + product + 12 * SINGLE * self.batch * self.entries


def list_smaller_runs(size: Training) -> Iterator[tuple[str, Training]]:
    """Yield smaller training runs, and what makes each of them smaller."""
    for members in halve(size.members):
        yield (
            ("one SAE" if members == 1 else f"{members} SAEs") + " at a time",
            replace(size, members=members),
        )
    for batch in halve(size.batch):
        yield f"--batch {batch}", replace(size, batch=batch)
    for units in halve(size.units):
        yield f"--units {units}", _with_units(size, units)


def _with_units(size: Training, units: int) -> Training:
    """Return the same run with SAEs of so many units."""

    def scale(count: int) -> int:
        return count * units // size.units

    return replace(
        size,
        units=units,
        entries=min(size.entries, units),
        mode_units=scale(size.mode_units),
        consensus_units=scale(size.consensus_units),
        short_units=scale(size.short_units),
    )


def count_context_bytes(tokens: int, context: int, skip: int = 0) -> int:
    """Return the bytes of contexts with that many rows, if every context has its full length.

    A token takes 4 bytes; its start, document and offset take 8 bytes for each context.
    """
    return -(-tokens // max(1, context - skip)) * (SINGLE * context + 3 * INDEX)


def _measure_product(rows: int, units: int) -> int:
    """Return the bytes of pre-activations that exist at once, for a batch of that many rows."""
    together = min(rows, max(PRODUCT // units, LEAST_ROWS), max(1, MOST_PRODUCT // units))
    return SINGLE * together * units


def _count_overlaps(units: int, k: int, rows: int, batch: int, most: int = MOST_OVERLAPS) -> int:
    """Return the bytes needed for the overlaps of units that fire together, which the gain order needs.

    They are summed in a matrix. With more units, they are stored row by row.
    """
    if units > SUMMED_UNITS:
        atoms = 2 * SINGLE * min(GATHERED, batch * k * units)
        return SINGLE * min(rows * k**2, most) + (INDEX + SINGLE) * rows * k + atoms
    dense = DOUBLE * DENSE_ROWS * units if k >= DENSE_SHARE * units else 0
    return DOUBLE * units**2 + dense


@dataclass(frozen=True)
class DictionarySize:
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
        rows = SINGLE * STUDY_ROWS * self.width
        if self.k is None:
            return 8 * rows + 5 * SINGLE * STUDY_ROWS * self.units
        product = _measure_product(STUDY_ROWS, self.units)
        return 6 * rows + 8 * SINGLE * STUDY_ROWS * self.k + product

    def observe(self, rows: int) -> int:
        """Return the bytes that encoding that many rows takes, and the gains of units from their codes."""
        k = self.k or self.units
        return self.encode() + _count_overlaps(self.units, k, rows, STUDY_ROWS, MOST_STREAMED)

    def count_encoding(self, rows: int) -> float:
        """Return the work of encoding and decoding that many rows."""
        return rows * self.units * self.width * (ENCODED_DENSE if self.k is None else ENCODED)


def forecast_comparison(
    saes: Sequence[DictionarySize],
    *,
    rows: int = 0,
    chance: bool = True,
    prefixes: Sequence[int] | None = None,
    threads: int = 1,
) -> Forecast:
    """Return what comparing the SAEs takes; `rows` are those of the activations they are compared on.

    Prefixes are powers of two by default. As many pairs as there are threads are matched at the same time.
    """
    first, second = sorted(saes, key=lambda sae: -sae.units)[:2]
    total = sum(sae.matrix for sae in saes)
    matching = _match(first, second)
    matched = min(threads, len(saes) * (len(saes) - 1) // 2) * matching
    if chance:
        # two more threads match random dictionaries; one of them finds the distribution of all atoms first
        drawn = matching + first.matrix + second.matrix
        matched += drawn + max(drawn, 4 * total + 4 * DOUBLE * first.width**2)
    else:  # units are scored meanwhile, when the copies that matching needs exist in part
        matched += matching // 2
    codes = 3 * min(sum(2 * SINGLE * rows * (sae.k or sae.units) for sae in saes), 2**30)
    observed = 2 * total + max(sae.observe(rows) for sae in saes) if rows else 0
    work = sum(_count_matching(a, b, prefixes, chance=chance) for a, b in combinations(saes, 2))
    if rows:
        work += sum(sae.count_encoding(rows) for sae in saes)
        work += sum(_count_correlating(a, b, rows) for a, b in combinations(saes, 2))
    return Forecast(FIXED + 2 * total + codes + max(observed, matched), work=work)


def _count_matching(
    a: DictionarySize, b: DictionarySize, prefixes: Sequence[int] | None, *, chance: bool
) -> float:
    """Return the work of matching two dictionaries and their prefixes, with chance levels, and every unit."""
    least = min(a.units, b.units)
    lengths = [2**n for n in range(4, least.bit_length())] if prefixes is None else prefixes
    each = MATCHED * a.width + MATCHED_PAIR
    work = 2.0 * a.units * b.units * each  # the units near each one, in both directions
    work += FITTED * a.width**3 if chance else 0.0
    for length in {least, *lengths}:
        one, other = (min(length, sae.units) if length < least else sae.units for sae in (a, b))
        draws = min(MOST_DRAWS, max(1, CHANCE_UNITS // max(one, other))) if chance else 0
        work += (1 + 2 * draws) * one * other * each  # fitted and isotropic chance levels
    return work


def _count_correlating(a: DictionarySize, b: DictionarySize, rows: int) -> float:
    """Return the work of matching units by their activations, and once more by unrelated ones."""
    together = rows * (a.k or a.units) * (b.k or b.units)
    return 2.0 * (CORRELATED_PAIR * a.units * b.units + TOGETHER * together)


def _match(a: DictionarySize, b: DictionarySize) -> int:
    """Return the bytes of matching two dictionaries: copies in both precisions, and blocks of cosines."""
    pairs, rows = a.units * b.units, (a.units + b.units) * a.width
    if pairs <= 2**20:
        return 2 * DOUBLE * pairs + DOUBLE * rows
    kept = DOUBLE * rows if DOUBLE * max(a.units, b.units) * a.width < RETURNED else 0
    blocks = (SINGLE + DOUBLE) * MATCHED_ROWS * max(a.units, b.units)
    return (DOUBLE + SINGLE) * rows + kept + blocks + (INDEX + DOUBLE) * MATCHED_CANDIDATES * a.units


def forecast_evaluation(saes: Sequence[DictionarySize], rows: int, language: int = 0) -> Forecast:
    """Return what evaluating the SAEs on that many rows takes.

    `language` is the number of bytes that a language model needs for its passes, besides its weights.
    """
    memory = FIXED + 2 * sum(sae.matrix for sae in saes) + max(language, sum(sae.encode() for sae in saes))
    return Forecast(memory, work=sum(sae.count_encoding(rows) for sae in saes))


def forecast_ordering(sae: DictionarySize, rows: int, *, gain: bool) -> Forecast:
    """Return what ordering the units on that many rows takes, including the disk space of the result."""
    overlaps = _count_overlaps(sae.units, sae.k or sae.units, rows, STUDY_ROWS) if gain else 0
    ordered = 2 * sae.matrix + sae.encode() + overlaps  # with atoms in double precision
    written = 4 * sae.matrix  # the reordered SAE, and its file
    work = sae.count_encoding(rows) + (_count_choosing(sae, rows) if gain else 0)
    return Forecast(FIXED + 2 * sae.matrix + max(ordered, written), 2 * sae.matrix, work=work)


def _count_choosing(sae: DictionarySize, rows: int) -> float:
    """Return the work of the gain order: overlaps of units that fire together, and choosing one by one."""
    together, pairs = rows * (sae.k or sae.units) ** 2, sae.units**2
    if sae.units <= SUMMED_UNITS:  # products of all atoms are in double precision
        return SUMMED * together + pairs * (OVERLAP * sae.width + CHOSEN_PAIR)
    return (STORED + sae.width) * min(together, MOST_OVERLAPS) + pairs * CHOSEN_PAIR


def forecast_stitching(small: DictionarySize, large: DictionarySize, rows: int) -> Forecast:
    """Return what stitching the units of one SAE into another takes, on that many rows."""
    held = 2 * (small.matrix + large.matrix)
    work = small.count_encoding(rows) + large.count_encoding(rows)
    return Forecast(FIXED + held + max(small.encode(), large.encode()), work=work)


def forecast_contexts(
    saes: Sequence[DictionarySize], rows: int, *, shard: int, kept: int, window: int
) -> Forecast:
    """Return what collecting the contexts of all units takes, without a language model.

    `kept` contexts of each unit have `window` tokens each; shards of at most `shard` rows are read.
    """
    sorting = SORTED_ENTRY * rows + FIRST_ENTRY * shard
    work = sum(sae.count_encoding(rows) + sorting * (sae.k or sae.units) for sae in saes)
    units, entries = sum(sae.units for sae in saes), max(shard * (sae.k or sae.units) for sae in saes)
    table = units * (TOKEN_BYTES + kept * (12 + 2 * window))
    written = units * kept * (16 + 6 * window)
    held = 2 * sum(sae.matrix for sae in saes) + max(sae.encode() for sae in saes)
    return Forecast(FIXED + held + 2 * table + max(written, ENTRY_BYTES * entries), written, work=work)


def forecast_pruning(sae: DictionarySize, others: Sequence[DictionarySize], rows: int) -> Forecast:
    """Return what pruning an SAE takes, without a language model, if its units have to be scored first."""
    steps = [forecast_ordering(sae, rows, gain=True), forecast_evaluation([sae, sae], rows)]
    if others:
        steps.append(forecast_comparison([sae, *others], rows=rows, chance=False, prefixes=()))
    memory, work = max(step.memory for step in steps), sum(step.work for step in steps)
    return Forecast(3 * sae.matrix + memory, 2 * sae.matrix, work=work)


def forecast_trust(twin: Training, sae: DictionarySize, rows: int, *, twins: int, seconds: float) -> Forecast:
    """Return what training and comparing the twins of an SAE takes; the parts of the data are written."""
    trained = twin.forecast(seconds)
    compared = forecast_comparison([sae] * (twins + 1), rows=rows // (twins + 1))
    parts = rows * sae.width * SINGLE
    memory, disk = max(trained.memory, compared.memory), twins * trained.disk + parts
    return Forecast(memory, disk, twins * seconds, work=compared.work)


def forecast_together(each: Sequence[Forecast], workers: int) -> Forecast:
    """Return what these tasks take in that many parallel processes, each of which imports everything."""
    if not each:
        return Forecast(0)
    largest = sorted(one.memory for one in each)[-workers:]
    memory = sum(largest) + WORKER * len(largest)
    seconds = sum(one.seconds or 0 for one in each) / min(workers, len(each))
    return Forecast(memory, sum(one.disk for one in each), seconds)


def forecast_experiment(each: Sequence[Forecast], workers: int, *, recipes: int) -> Forecast:
    """Return what an experiment takes: these tasks, and the page and figures about SAEs of some recipes."""
    if not each:
        return Forecast(0)
    trained = forecast_together(each, workers)
    memory = trained.memory if workers > 1 else max(one.memory for one in each)  # in this process
    return replace(trained, memory=memory, disk=trained.disk + PAGE_FILE + recipes * FIGURES)


def forecast_harvest(
    rows: int, width: int, *, block: int, item: int, model: int = 0, seconds: float | None = None
) -> Forecast:
    """Return what a harvest needs once the model is open; a number takes `item` bytes on disk.

    `model` is the number of bytes that the model needs for the tokens of one batch, `seconds` its time.
    """
    inside, stored = SINGLE * min(rows, block) * width, item / SINGLE
    # the allocator keeps the batches of a small block, joined, shuffled, stored and in double
    if inside < RETURNED:
        copies = round((5 + 2 * stored) * inside)
    else:  # it returns those of a large one, except for some of the batches, whose arrays are smaller
        copies = round((3 + stored) * inside) + min(inside, 2 * RETURNED)
    return Forecast(FIXED_HARVEST + model + copies, rows * (item * width + 12), seconds)


def forecast_conversion(sae: DictionarySize, *, formats: int = 1) -> Forecast:
    """Return what writing an SAE takes, in that many formats at the same time."""
    written = 2 * formats * sae.matrix
    return Forecast(FIXED + 2 * sae.matrix + written, written, WRITTEN_SECONDS * written)


def forecast_pushing(saes: Sequence[DictionarySize]) -> Forecast:
    """Return what a repository takes: each SAE in up to two formats, one after the other."""
    each = [forecast_conversion(sae, formats=2) for sae in saes]
    disk, seconds = sum(one.disk for one in each), sum(one.seconds or 0 for one in each)
    return Forecast(max(one.memory for one in each), disk, seconds)


def forecast_dashboards(contexts: int) -> Forecast:
    """Return what dashboards of an SAE take, from the bytes of its contexts."""
    disk = DASHBOARD_BYTES * contexts
    return Forecast(FIXED + 2 * contexts, disk, WRITTEN_SECONDS * disk)


def forecast_page(results: int, contexts: int) -> Forecast:
    """Return what a page takes, from the bytes of JSON files of results and of the contexts of units."""
    shown = results + contexts
    memory = PAGE + RESULT_BYTES * results + CONTEXT_BYTES * contexts
    return Forecast(memory, PAGE_FILE + shown, PACKED_SECONDS * shown)


# --- what is available ------------------------------------------------------------------------------


def check(
    forecast: Forecast, remedy: str, folder: Path | None, smaller: Iterable[tuple[str, Forecast]]
) -> None:
    """Raise `ValueError` if there is not enough memory, or not enough space on the folder's disk.

    The error names the first of the smaller requests that fits, or else how much has to be freed, and the
    remedy. Limits that the system does not report are not checked.
    """
    lacking, missing = _find_lack(forecast, folder)
    if not missing:
        return
    fits = (f"{change} would fit" for change, less in smaller if not any(_find_lack(less, folder)))
    more = max(SPARE * missing, LEAST_MORE)
    would = next(fits, f"free another {format_bytes(more)} for it to fit")
    raise ValueError(f"this needs about {lacking}: {would}; or {remedy}")


def _find_lack(forecast: Forecast, folder: Path | None) -> tuple[str, int]:
    """Return what is needed and not there, in words, and how many bytes are missing; nothing if it fits."""
    free = free_memory()
    if free is not None and forecast.memory > free:
        words = f"{format_bytes(forecast.memory)} of memory, but only {format_bytes(free)} is free"
        return words, forecast.memory - free
    if folder is None or not forecast.disk or forecast.disk <= (room := free_disk(folder)):
        return "", 0
    words = f"{format_bytes(forecast.disk)} on the disk of {folder}, but only {format_bytes(room)} is free"
    return words, forecast.disk - room


def halve(amount: int) -> Iterator[int]:
    """Yield a half of the amount, a quarter, and so on down to 1."""
    while amount > 1:
        amount //= 2
        yield amount


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
