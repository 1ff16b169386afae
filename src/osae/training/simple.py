"""Training in one call, for a notebook: activations in, an SAE out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.shards import Shards
from osae.data.source import MemoryRows, MixedRows, Source
from osae.defaults import BATCH
from osae.devices import choose_device
from osae.model import SAE
from osae.objective import Terms
from osae.progress import ProgressBar
from osae.recipes import Recipe, Task
from osae.recipes import recipe as find_recipe
from osae.training.loop import Action, train
from osae.training.member import Member

BATCHES = 8  # the rows fill at least this many batches, unless a batch is asked for
STEPS = 2000

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
    device: str = "cpu",
    progress: bool = True,
) -> SAE:
    """Return an SAE trained on the activations x, one row per sample.

    `recipe` is the name of a recipe for activations (see `osae recipes`), which takes the number of `units`
    and of active units `k`; or a `Recipe`, which already sets all of that.

    `x` is a matrix (a tensor, an array, or anything that numpy reads as one), or activations on disk:
    `Shards`, or the path of a folder that `osae harvest` wrote or of an .npy file.

    `samples` is how many rows are seen in all, each several times if need be: by default enough for 2,000
    steps, and at least one pass over the rows. `batch` is the number of rows in a step: by default 2,048, or
    an eighth of the rows if that is less.

    `device` is "cpu", "cuda", "mps", or "auto" for a GPU if there is one. `progress` shows a progress bar
    on a terminal and in a notebook, and prints a line now and then elsewhere.
    """
    seed, device = _whole_number("seed", seed, least=0), choose_device(device)
    source = _open_rows(x)
    chosen = _complete(recipe, source, {"units": units, "k": k, "samples": samples, "batch": batch})
    member = Member(chosen, seed, source.block(0), device=device)
    with _show_progress(f"training {member.name}", chosen.steps, shown=progress) as after:
        train([member], source, after=after)
    return member.finish()


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
        # a copy is made only of what is not a writable array of this type already
        rows = x.detach().float() if isinstance(x, Tensor) else np.require(x, np.float32, ["C", "W"])
        rows = rows.cpu() if isinstance(rows, Tensor) else torch.from_numpy(rows)
    except (TypeError, ValueError) as error:
        raise ValueError(f"x, a {type(x).__name__}, is not a numeric matrix: {error}") from error
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"x has the shape {tuple(rows.shape)}: give a matrix with one row per sample.")
    return rows


def _complete(recipe: Recipe | str, source: Source, asked: dict[str, int | None]) -> Recipe:
    """Return the recipe itself, or the named one with the sizes that are asked for."""
    width = source.block(0).shape[1]
    if not isinstance(recipe, Recipe | str):
        raise ValueError(f"recipe is of type {type(recipe).__name__}: give the name of a recipe or a Recipe.")
    if isinstance(recipe, str):
        return find_recipe(recipe, _task(recipe, width, source, asked))
    if extra := [f"{name}={value}" for name, value in asked.items() if value is not None]:
        raise ValueError(f"{', '.join(extra)} cannot be combined with a Recipe, which already sets it.")
    if recipe.sae.width != width:
        raise ValueError(f"x has width {width} and the recipe is for {recipe.sae.width}: they must agree.")
    return recipe


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
    """Yield an action that reports the steps and the loss, or none if nothing is to be shown."""
    if not shown:
        yield []
        return
    with ProgressBar(title) as bar:

        def report(done: int, terms: list[Terms]) -> None:
            bar(done, steps, lambda: f"loss {float(terms[0].prefix):.4g}")

        yield [report]
