"""Train twins of an SAE, and find out which of its units they also learn.

A twin has the same recipe as the SAE (or, if the recipe is unknown, that of a TopK SAE of the same size), a
different seed, and its own data: rows of documents that no other twin sees. The last part of the data is set
aside for measuring.

    OUT/data/0, 1, ...     the part of each twin; the last one is for measuring
    OUT/twin1, twin2, ...  one run per twin, resumed if interrupted
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from osae import defaults, metrics, passes
from osae.array_files import list_arrays
from osae.config import from_json, to_json
from osae.data.shards import MANIFEST, TENSOR, Shards, write_shards
from osae.data.source import OnDisk
from osae.interop import Loaded, SAELike
from osae.interop.ancestry import find_recipe
from osae.locks import clear_lock
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import FromSAE, Recipe, Task, recipe
from osae.results.comparison import Comparison
from osae.sparsify import BatchTopK, TopK
from osae.studies.compare import compare
from osae.studies.subjects import (
    BATCH,
    Data,
    DataLike,
    check_runnable,
    describe_rows,
    open_rows,
    open_subject,
    own_provenance,
)
from osae.tensor_files import read_tensors
from osae.training import run as runs
from osae.training.member import name_member

RUNS = 3
MEASURED = 0.1  # share of the documents that no twin is trained on
_DOCUMENTS = "documents"
_SPREAD = 2654435761  # Knuth's multiplier: spreads consecutive documents over the parts

Tell = Callable[[str], None]


def trust(
    subject: SAELike,
    data: DataLike,
    out: Path | str,
    *,
    twins: int = RUNS,
    samples: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    tell: Tell = lambda sentence: None,
) -> Comparison:
    """Train twins of an SAE in the folder `out`, and return the comparison of the SAE with its twins.

    The SAE comes first in the comparison. If called again with the same arguments, the function reuses the
    files on disk and resumes an interrupted twin.

    Args:
        subject: the SAE, as a path, an `SAE` or a loaded file.
        data: activations from the same place in the model, as a path, `Shards` or a matrix.
        out: folder for the parts of the data and for the twins.
        twins: number of training runs, at least 2.
        samples: number of samples to train each twin on, counting repetitions; None means the recipe's
            number, or one pass over all the data if the recipe is unknown.
        device: device to train twins on.
        progress: called with (done, total, text) after each step.
        tell: called with a sentence about each stage.
    """
    if twins < 2:
        raise ValueError(f"runs={twins}: give at least 2, since one run does not show how much units differ.")
    source, rows = open_subject(subject), open_rows(data)
    sae = check_runnable(source, rows)
    folder = Path(out)
    chosen, known = choose_recipe(source, sae, rows, samples)
    parts = split_rows(rows, folder / "data", twins, tell)
    seeds = _choose_seeds(source, twins)
    made = [
        _train_twin(folder / f"twin{n + 1}", chosen, seeds[n], parts[n], device, progress, tell)
        for n in range(twins)
    ]
    tell("comparing")
    result = compare([source, *made], data=parts[-1], prefixes=[], progress=progress)
    return replace(result, notes=tuple(_notes(chosen, known, parts, source)))


# --- the twins --------------------------------------------------------------------------------------


def choose_recipe(source: Loaded, sae: SAE, rows: Data, samples: int | None) -> tuple[Recipe, bool]:
    """Return the recipe of the twins, and whether it is the SAE's own."""
    trained = find_recipe(source.format, source.metadata)
    own = None if "pruned" in trained.changes else trained.recipe or None
    if isinstance(own, dict):
        found = from_json(own)
        if isinstance(found, Recipe) and isinstance(found.start, FromSAE):
            raise ValueError(
                f"{source.path} was initialised from another SAE, which its twins would share: "
                f"use that SAE instead, {found.start.path}."
            )
        if isinstance(found, Recipe) and found.sae.width == rows.width:
            return (found if samples is None else replace(found, samples=samples, extensions=())), True
    wanted = samples or rows.rows
    batch = min(defaults.BATCH, max(1, wanted // 10))
    k = min(_count_active(sae, rows), sae.config.units)
    return recipe("topk", Task(rows.width, sae.config.units, k, wanted, batch=batch)), False


def _count_active(sae: SAE, rows: Data) -> int:
    """Return the number of units active at a time: the sparsifier's k, or the mean over the first rows."""
    if isinstance(sae.config.sparsifier, TopK | BatchTopK):
        return sae.config.sparsifier.k
    code = passes.encode(sae, next(iter(rows.batches(BATCH))))
    return max(1, round(metrics.l0(code.values)))


def _choose_seeds(source: Loaded, twins: int) -> list[int]:
    """Return seeds that differ from the SAE's own."""
    own = find_recipe(source.format, source.metadata).seed
    first = own + 1 if isinstance(own, int) and 0 <= own < 2**31 else 1
    return list(range(first, first + twins))


def _train_twin(
    folder: Path,
    chosen: Recipe,
    seed: int,
    part: Shards,
    device: str,
    progress: Progress | None,
    tell: Tell,
) -> Path:
    """Train a twin to the end, resuming it if it was started before, and return its folder."""
    source = OnDisk(str(part.folder.absolute()), part.provenance()["sha256"])
    config = runs.RunConfig((replace(chosen, batch=min(chosen.batch, part.rows)),), (seed,), source)
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        runs.create(folder, config)
    elif to_json(runs.read(folder)) != to_json(config):
        raise ValueError(f"{folder} has a twin of a different SAE, recipe or dataset: give a new folder.")
    made = folder / name_member(chosen, seed)
    if (made / "sae.json").is_file():
        clear_lock(folder)  # left by a process that was killed after everything was written
        return made
    tell(f"training {folder.name}, seed {seed}, on {part.rows:,} rows")
    runs.go(folder, device=device, progress=_report(progress, folder.name))
    return made


def _report(progress: Progress | None, name: str) -> Callable[[int, int, Any], None] | None:
    if progress is None:
        return None
    return lambda done, steps, terms: progress(done, steps, f"{name}, loss {float(terms[0].prefix):.4g}")


# --- the parts of the data --------------------------------------------------------------------------


def split_rows(rows: Data, folder: Path, twins: int, tell: Tell = lambda sentence: None) -> list[Shards]:
    """Split the data into disjoint parts in the folder, one per twin and a last one for measuring.

    All rows of a document are in the same part; if documents are unknown, rows are assigned one by one.
    """
    whole = describe_rows(rows).sha256
    paths = [folder / str(part) for part in range(twins + 1)]
    missing = [part for part, path in enumerate(paths) if not (path / MANIFEST).is_file()]
    if missing:
        tell(f"splitting {rows.rows:,} rows into {twins} parts, and one for measuring")
    for part in missing:
        about = {"part": {"of": whole, "number": part, "twins": twins}}
        about |= {"model": rows.manifest["model"]} if "model" in rows.manifest else {}
        write_shards(paths[part], _rows_of_part(rows, part, twins), about=about)
    found = [Shards(path) for path in paths]
    for shards in found:
        said = shards.manifest.get("part")
        if not isinstance(said, dict) or said.get("of") != whole or said.get("twins") != twins:
            raise ValueError(f"{shards.path} is a part of different data: give a new folder.")
    return found


def _rows_of_part(rows: Data, part: int, twins: int) -> Iterator[dict[str, Tensor]]:
    """Yield the rows of a part, a block at a time."""
    empty = True
    for x, owners in _blocks_with_owners(rows):
        mine = _deal(owners, twins) == part
        if bool(mine.any()):
            empty = False
            yield {TENSOR: x[mine]}
    if empty:
        raise ValueError(
            f"{rows.path} has too few documents for {twins} disjoint parts: give more data or fewer runs."
        )


def _deal(owners: Int[Tensor, "n"], twins: int) -> Int[Tensor, "n"]:
    """Return the part of each document: a tenth is for measuring, the rest is divided equally."""
    spread = (owners.long() * _SPREAD) % 2**32 / 2**32
    shares = (spread - MEASURED) / (1 - MEASURED) * twins
    return torch.where(spread < MEASURED, twins, shares.floor().long().clamp(0, twins - 1))


def _blocks_with_owners(rows: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows in blocks, with the index of each row's document or, if unknown, of the row itself."""
    if not isinstance(rows, Shards) or not _knows_documents(rows):
        start = 0
        for x in rows.batches(BATCH):
            yield x, torch.arange(start, start + len(x))
            start += len(x)
        return
    start = 0
    for shard in rows.shards:
        owners = read_tensors(rows.bring(shard.file), [_DOCUMENTS])[_DOCUMENTS]
        yield rows.read(start, start + shard.rows), owners
        start += shard.rows


def _knows_documents(rows: Shards) -> bool:
    """Return whether every shard records the documents of its rows."""
    for shard in rows.shards:
        if shard.file.suffix != ".safetensors":
            return False
        if _DOCUMENTS not in list_arrays(rows.bring(shard.file)):
            return False
    return True


def _notes(chosen: Recipe, known: bool, parts: list[Shards], source: Loaded) -> Iterator[str]:
    """Yield notes on how the twins were trained."""
    least, seen = min(part.rows for part in parts[:-1]), chosen.all_samples
    yield (
        f"Twins have {'the same recipe' if known else 'the recipe topk, since its own is unknown'} and see "
        f"{seen:,} samples: {seen / least:.1f} passes over {least:,} rows or more each."
    )
    if isinstance(own_provenance(source).get("source"), dict):
        yield "The SAE itself may have been trained on the documents of its twins; twins share none."
