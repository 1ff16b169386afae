"""How the seeds of each recipe come to agree while a run is trained, from its snapshots.

The cost is bounded: of a run with many seeds, snapshots or units, only some are compared.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from osae import metrics
from osae.files import read_json
from osae.interop.found import inside
from osae.measures import AGREEMENT
from osae.model import SAE
from osae.progress import Progress, Steps
from osae.recipes import Recipe
from osae.results.base import count
from osae.results.experiment import MethodRow, Section
from osae.training import run as runs
from osae.training.member import name_member

SEEDS = 4  # of each recipe that are compared: 6 pairs
MOMENTS = 16  # of training, including its start and end
MOST_WORK = 3e12  # multiplications for cosines: about a minute on two cores

Group = dict[int, Path]  # the SAEs of one recipe after the same number of samples, by seed


class Agreement(NamedTuple):
    """Stability and orderedness between seeds, a section per moment of training; and what was left out."""

    moments: tuple[Section, ...]
    left_out: str = ""


def measure_snapshots(folder: Path, *, progress: Progress | None = None) -> Agreement:
    """Return how well the seeds of each recipe agree in the snapshots of a run, and at its end if finished.

    The `x` of a section is the number of samples seen.
    """
    config = runs.read(folder)
    moments: dict[int, dict[str, Group]] = {}
    for recipe in config.recipes:
        for samples, group in _find_saes(folder, recipe, config.seeds[:SEEDS]):
            moments.setdefault(samples, {})[recipe.name] = group
    work = max((_count_work(config.recipes, moment) for moment in moments.values()), default=0.0)
    kept = _choose(sorted(moments), work)
    steps = Steps(progress, total=sum(len(moments[samples]) for samples in kept))
    sections = []
    for samples in kept:
        rows = []
        for name, group in moments[samples].items():
            rows.append(MethodRow(name, measures=_compare(group)))
            steps(f"{name} after {samples:,} samples")
        sections.append(Section(f"{samples:,} samples", tuple(rows), x=float(samples)))
    return Agreement(tuple(sections), _describe_left_out(len(config.seeds), len(moments), len(kept)))


def _find_saes(folder: Path, recipe: Recipe, seeds: Sequence[int]) -> Iterator[tuple[int, Group]]:
    """Yield numbers of samples, each with the SAEs of the recipe after that many; at least two SAEs."""
    names = {seed: name_member(recipe, seed) for seed in seeds}
    for place in (folder, *folder.glob("snapshots/*")):
        group = {seed: place / name for seed, name in names.items() if (place / name / "sae.json").is_file()}
        if len(group) < 2:
            continue
        if place == folder:
            yield _count_samples(recipe, next(iter(group.values()))), group
        elif place.name.isdecimal():
            yield int(place.name), group


def _count_samples(recipe: Recipe, finished: Path) -> int:
    """Return the number of samples that a finished SAE has seen; fewer than planned if stopped early."""
    about = inside({"sae": read_json(finished / "sae.json")}, "sae")
    step = inside(inside(about, "provenance"), "stopped").get("step")
    return step * recipe.batch if isinstance(step, int) else recipe.all_samples


def _count_work(recipes: Sequence[Recipe], moment: dict[str, Group]) -> float:
    """Return the multiplications of all cosines between the SAEs of a moment."""
    sizes = {recipe.name: recipe.sae for recipe in recipes}
    pairs = {name: len(group) * (len(group) - 1) / 2 for name, group in moment.items()}
    return sum(pairs[name] * sizes[name].units ** 2 * sizes[name].width for name in moment)


def _choose(moments: Sequence[int], work: float) -> list[int]:
    """Return as many moments as may be compared, evenly spaced from the first to the last."""
    most = min(MOMENTS, len(moments), int(MOST_WORK // max(work, 1.0)))
    if most < 2:
        return []
    return [moments[round(place * (len(moments) - 1) / (most - 1))] for place in range(most)]


def _compare(group: Group) -> dict[str, metrics.Interval]:
    """Return the mean of each measure over the pairs of seeds, with its interval."""
    decoders = {seed: _read_decoder(path) for seed, path in group.items()}
    found = {(a, b): metrics.consistency(decoders[a], decoders[b]) for a, b in combinations(decoders, 2)}
    return {
        key: metrics.pair_interval({pair: getattr(one, key) for pair, one in found.items()})
        for key in AGREEMENT
    }


def _read_decoder(path: Path) -> Float[Tensor, "K d"]:
    """Return the atoms of an SAE, without those that are zero."""
    atoms = SAE.load(path).decoder.detach()
    return atoms[(atoms != 0).any(1)]


def _describe_left_out(seeds: int, moments: int, kept: int) -> str:
    if moments < 2:
        return ""
    if kept == 0:
        return "seeds are not compared during training, since this would take too long for SAEs of this size."
    parts = [f"{SEEDS} of {count(seeds, 'seed')}"] if seeds > SEEDS else []
    parts += [f"{kept} of {count(moments, 'moment')} of training"] if kept < moments else []
    return f"To save time, only {' and '.join(parts)} are compared." if parts else ""
