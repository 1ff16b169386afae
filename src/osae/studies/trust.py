"""Which units of an SAE other training runs find too: twins are trained, and every unit is looked up in them.

A twin has the SAE's own recipe, or that of a TopK SAE of the same sizes if the recipe is not known, another
seed, and data of its own: rows of documents that no other twin sees. A last part of the data is kept for
measuring.

    OUT/data/0, 1, ...     the part of each twin; the last one is for measuring
    OUT/twin1, twin2, ...  a run each, which is resumed if it was interrupted
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors import safe_open
from torch import Tensor

from osae import defaults, metrics, passes
from osae.config import from_json, to_json
from osae.data.shards import MANIFEST, TENSOR, Shards, write_shards
from osae.data.source import OnDisk
from osae.interop import Loaded, SAELike
from osae.model import SAE
from osae.progress import Progress
from osae.recipes import Recipe, Task, recipe
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
from osae.training import run as runs

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
    """Return the comparison of the SAE, first, with twins that are trained now, in the folder `out`.

    If it is called again with the same arguments, what is on disk is not made again, and an interrupted twin
    is resumed.

    Args:
        subject: the SAE, as a path, an `SAE` or a loaded file.
        data: activations of the same place, as a path, `Shards` or a matrix.
        out: folder for the parts of the data and for the twins.
        twins: number of training runs, at least 2.
        samples: samples that a twin is trained on, counting repetitions; None takes the recipe's number, or
            one pass over all the data if the recipe is not known.
        device: where twins are trained.
        progress: called with (done, total, text) after each step.
        tell: called with a sentence about each stage.
    """
    if twins < 2:
        raise ValueError(f"runs={twins}: give at least 2, since one does not show how much units differ.")
    source, rows = open_subject(subject), open_rows(data)
    sae = check_runnable(source, rows)
    folder = Path(out)
    chosen, known = _choose_recipe(source, sae, rows, samples)
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


def _choose_recipe(source: Loaded, sae: SAE, rows: Data, samples: int | None) -> tuple[Recipe, bool]:
    """Return the recipe of the twins, and whether it is the SAE's own."""
    own = own_provenance(source).get("recipe")
    if isinstance(own, dict):
        found = from_json(own)
        if isinstance(found, Recipe) and found.sae.width == rows.width:
            return (found if samples is None else replace(found, samples=samples)), True
    wanted = samples or rows.rows
    batch = min(defaults.BATCH, max(1, wanted // 10))
    k = min(_count_active(sae, rows), sae.config.units)
    return recipe("topk", Task(rows.width, sae.config.units, k, wanted, batch=batch)), False


def _count_active(sae: SAE, rows: Data) -> int:
    """Return the number of units that fire at a time: the sparsifier's, or what the first rows show."""
    if isinstance(sae.config.sparsifier, TopK | BatchTopK):
        return sae.config.sparsifier.k
    code = passes.encode(sae, next(iter(rows.batches(BATCH))))
    return max(1, round(metrics.l0(code.values)))


def _choose_seeds(source: Loaded, twins: int) -> list[int]:
    """Return seeds that differ from the SAE's own."""
    own = own_provenance(source).get("seed")
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
    """Train a twin to the end, from wherever it is, and return its folder."""
    source = OnDisk(str(part.path.absolute()), part.provenance()["sha256"])
    config = runs.RunConfig((replace(chosen, batch=min(chosen.batch, part.rows)),), (seed,), source)
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        runs.create(folder, config)
    elif to_json(runs.read(folder)) != to_json(config):
        raise ValueError(f"{folder} has a twin of another SAE, recipe or data: give a new folder.")
    made = folder / f"{chosen.name}-seed{seed}"
    if (made / "sae.json").is_file():
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
    """Return the data in disjoint parts, one per twin and a last one for measuring, written to the folder.

    All rows of a document are in one part; where documents are not known, single rows are dealt out.
    """
    whole = describe_rows(rows).sha256
    paths = [folder / str(part) for part in range(twins + 1)]
    missing = [part for part, path in enumerate(paths) if not (path / MANIFEST).is_file()]
    if missing:
        tell(f"splitting {rows.rows:,} rows into {twins} parts, and one for measuring")
    for part in missing:
        about = {"part": {"of": whole, "number": part, "twins": twins}}
        write_shards(paths[part], _rows_of_part(rows, part, twins), about=about)
    found = [Shards(path) for path in paths]
    for shards in found:
        said = shards.manifest.get("part")
        if not isinstance(said, dict) or said.get("of") != whole or said.get("twins") != twins:
            raise ValueError(f"{shards.path} is a part of other data: give a new folder.")
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
    """Return the part of each document: a tenth of them for measuring, the others in equal shares."""
    spread = (owners.long() * _SPREAD) % 2**32 / 2**32
    shares = (spread - MEASURED) / (1 - MEASURED) * twins
    return torch.where(spread < MEASURED, twins, shares.floor().long().clamp(0, twins - 1))


def _blocks_with_owners(rows: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows in blocks, with the number of each row's document, or else of the row."""
    if not isinstance(rows, Shards) or not _knows_documents(rows):
        start = 0
        for x in rows.batches(BATCH):
            yield x, torch.arange(start, start + len(x))
            start += len(x)
        return
    start = 0
    for shard in rows.shards:
        with safe_open(shard.file, "pt") as file:
            owners = file.get_tensor(_DOCUMENTS)
        yield rows.read(start, start + shard.rows), owners
        start += shard.rows


def _knows_documents(rows: Shards) -> bool:
    """Return whether every shard says which document its rows are from."""
    for shard in rows.shards:
        if shard.file.suffix != ".safetensors":
            return False
        with safe_open(shard.file, "pt") as file:
            if _DOCUMENTS not in file.keys():  # noqa: SIM118
                return False
    return True


def _notes(chosen: Recipe, known: bool, parts: list[Shards], source: Loaded) -> Iterator[str]:
    """Yield what to know about the twins."""
    least = min(part.rows for part in parts[:-1])
    yield (
        f"Twins have {'its own recipe' if known else 'the recipe topk, since its own is not known'} and see "
        f"{chosen.samples:,} samples: {chosen.samples / least:.1f} passes over {least:,} rows or more each."
    )
    if isinstance(own_provenance(source).get("source"), dict):
        yield "The SAE itself may have been trained on the documents of its twins; twins share none."
