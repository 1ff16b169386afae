"""Training in a single call, for notebooks: activations in, an SAE out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from osae import __version__
from osae.config import to_json
from osae.data.shards import Shards
from osae.data.source import MemoryRows, MixedRows, Source, describe_place
from osae.defaults import BATCH
from osae.devices import choose_device
from osae.interop import Loaded, SAELike, load
from osae.model import SAE
from osae.objective import Terms
from osae.progress import ProgressBar
from osae.recipes import Recipe, Task, continue_from
from osae.recipes import recipe as find_recipe
from osae.sparsify import find_k
from osae.training.consensus import start_from_runs
from osae.training.loop import Action, train
from osae.training.member import Member
from osae.training.start import describe_start

BATCHES = 8  # the rows fill at least this many batches, unless a batch size is given
STEPS = 4000

Activations = Tensor | np.ndarray | Sequence[Any] | Shards | str | PathLike[str]


def fit(
    recipe: Recipe | str,
    x: Activations,
    *,
    units: int | None = None,
    k: int | None = None,
    samples: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    start: SAELike | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    progress: bool = True,
) -> SAE:
    """Return an SAE trained on the activations x, one row per sample.

    `recipe` is the name of a recipe for activations (see `osae recipes`), which needs the number of `units`
    and of active units `k`; or a `Recipe`, which already sets both.

    `x` is a matrix (a tensor, an array, or anything that numpy reads as one), or activations on disk:
    `Shards`, or the path of a folder that `osae harvest` wrote or of an .npy file.

    `samples` is the total number of rows to train on, repeating rows if necessary: by default enough for
    4,000 steps, and at least one pass over the rows. `batch` is the number of rows per step: by default 512,
    or an eighth of the rows if that is less.

    `start` is an SAE to start from, from any library: a path, an `SAE`, or the result of `osae.load`. The
    number of units, and of active units if it is fixed, are then taken from it, and k is not warmed up. In a
    `Recipe`, only the start is replaced.

    `device` is "cpu", "cuda", "mps", or "auto" for a GPU if there is one. `precision` applies to products
    with the encoder: "fp32", "tf32" or "bf16"; the last two are faster only on CUDA devices. `progress` shows
    a progress bar in a terminal or notebook, and prints an occasional line elsewhere.

    The SAE's `provenance` contains the recipe and the seed, and is stored with it.
    """
    seed, device = _whole_number("seed", seed, least=0), choose_device(device)
    source = _open_rows(x)
    asked = {"units": units, "k": k, "samples": samples, "batch": batch}
    given = None if start is None else load(start)
    chosen = _complete(recipe, source, asked) if given is None else _start_from(given, recipe, source, asked)
    at_start = (
        given.sae if given else start_from_runs(chosen, seed, source, device=device, precision=precision)
    )
    member = Member(chosen, seed, source.block(0), device=device, start=at_start, precision=precision)
    with _show_progress(f"training {member.name}", chosen.steps, shown=progress) as after:
        train([member], source, after=after)
    sae = member.finish()
    about = {"recipe": to_json(chosen), "seed": seed, "precision": precision} | describe_place(source)
    sae.provenance = about | member.list_scores() | {"osae": __version__, "torch": torch.__version__}
    return sae


def _open_rows(x: Activations) -> Source:
    if isinstance(x, Shards | str | PathLike):
        return MixedRows(x if isinstance(x, Shards) else Shards(str(x)))
    rows = _to_matrix(x)
    if not bool(torch.isfinite(rows).all()):
        first = int((~rows.isfinite()).any(1).int().argmax())
        raise ValueError(f"row {first} of x contains NaN or infinity: remove such rows.")
    return MemoryRows(rows)


def _to_matrix(x: Tensor | np.ndarray | Sequence[Any]) -> Float[Tensor, "N d"]:
    """Return x in single precision; raise `ValueError` if it is not a matrix of numbers."""
    try:
        # copied only if it is not already a writable array of this type
        rows = x.detach().float() if isinstance(x, Tensor) else np.require(x, np.float32, ["C", "W"])
        rows = rows.cpu() if isinstance(rows, Tensor) else torch.from_numpy(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"x, a {type(x).__name__}, is not a numeric matrix: {error}") from error
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"x has shape {tuple(rows.shape)}: give a matrix with one row per sample.")
    return rows


def _complete(recipe: Recipe | str, source: Source, asked: dict[str, int | None]) -> Recipe:
    """Return the recipe itself, or the named one with the requested sizes."""
    width = source.block(0).shape[1]
    if not isinstance(recipe, Recipe | str):
        raise ValueError(f"recipe is of type {type(recipe).__name__}: give the name of a recipe or a Recipe.")
    if isinstance(recipe, str):
        return find_recipe(recipe, _task(recipe, width, source, asked))
    if extra := [f"{name}={value}" for name, value in asked.items() if value is not None]:
        raise ValueError(
            f"{', '.join(extra)} cannot be combined with a Recipe, which already sets it: remove it, or give "
            "the name of a recipe."
        )
    if recipe.sae.width != width:
        raise ValueError(
            f"x has width {width}, but the recipe is for width {recipe.sae.width}: give a recipe for this "
            "width."
        )
    return recipe


def _start_from(given: Loaded, recipe: Recipe | str, source: Source, asked: dict[str, int | None]) -> Recipe:
    """Return the recipe with a start from an SAE, and with its sizes."""
    start = describe_start(given)
    if isinstance(recipe, Recipe):
        return replace(_complete(recipe, source, asked), start=start)
    if (units := asked["units"]) not in (None, given.units):
        raise ValueError(f"units={units}: {given.path}, to start from, has {given.units}; leave units out.")
    sizes = {"units": given.units, "k": asked["k"] or find_k(given.require_sae().config.sparsifier)}
    return continue_from(_complete(recipe, source, asked | sizes), start)


def _task(name: str, width: int, source: Source, asked: dict[str, int | None]) -> Task:
    sizes = {key: _whole_number(key, value) for key, value in asked.items() if value is not None}
    if "units" not in sizes or "k" not in sizes:
        raise ValueError(
            f"units={asked['units']}, k={asked['k']}: give the number of units and of active units, "
            f'such as fit("{name}", x, units={8 * width}, k={max(1, width // 16)}).'
        )
    batch = sizes.get("batch", max(1, min(BATCH, source.rows // BATCHES)))
    samples = sizes.get("samples", max(source.rows, STEPS * batch))
    return Task(width, sizes["units"], sizes["k"], samples, batch=batch)


def _whole_number(name: str, value: Any, *, least: int = 1) -> int:
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}.")
    return number


@contextmanager
def _show_progress(title: str, steps: int, *, shown: bool) -> Iterator[list[Action]]:
    """Yield an action that reports the steps and the loss, or none if progress is not shown."""
    if not shown:
        yield []
        return
    with ProgressBar(title) as bar:

        def report(done: int, terms: list[Terms]) -> None:
            bar(done, steps, lambda: f"loss {float(terms[0].prefix):.4g}")

        yield [report]
