"""The figures of the experiments on worlds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osae import metrics
from osae.data.worlds import SparseWorld
from osae.experiments.methods import (
    MATRYOSHKA,
    OSAE,
    OSAE_PAPER,
    SORTED_BY_GAIN,
    TOPK,
    TOPK_OUR_SETTINGS,
    WITH_SPLITTING,
)
from osae.experiments.worlds.training import Group
from osae.model import SAE
from osae.results.experiment import Figure, MethodRow, Section

RASTER_INPUTS = 50
STREAM_ROWS = 5000
SWEPT = ("stability_truth", "stability_pairs", "orderedness_truth", "orderedness_pairs", "mse", "fifr")
SWEPT_METHODS = (TOPK, *MATRYOSHKA, OSAE_PAPER, SORTED_BY_GAIN[TOPK_OUR_SETTINGS], OSAE)  # six lines at most
HARD = ("mcc_truth", "f1_truth", "stability_pairs", "orderedness_pairs")
VARIED = ("stability_truth", "orderedness_truth", "stability_pairs", "mse")


def make_folder(out: Path, folder: Path = Path()) -> Path:
    """Create the folder for figures, and return its path relative to the experiment's folder."""
    (out / folder / "figures").mkdir(parents=True, exist_ok=True)
    return folder / "figures"


@torch.no_grad()
def draw_groups(
    groups: Sequence[Group], world: SparseWorld, out: Path, *, folder: Path = Path(), about: str = ""
) -> Iterator[Figure]:
    """Draw where each true atom is found, and two seeds of every method next to the truth.

    `folder` is the figures' folder below `out`; `about` starts every caption.
    """
    from osae.report import figures

    here = make_folder(out, folder)
    truth = world.dictionary()
    panels = [_matching_panel(group.method, next(iter(group.saes.values())), truth) for group in groups]
    figures.matching_scatter(panels, out / here / "matching.png")
    yield Figure(
        (here / "matching.png").as_posix(),
        f"{about}One dot for each pair of a true atom and the learned unit matched with it, first seed of "
        "each method; the colour is their cosine.",
    )
    for group in groups:
        if len(group.saes) > 1:
            file = here / f"panel-{group.method}.png"
            figures.seed_pair_panel(_seed_pair(group, world), out / file)
            yield Figure(
                file.as_posix(),
                f"{about}{group.method}, first two seeds. Top: {RASTER_INPUTS} inputs, true code and both "
                "learned codes. Middle: Pearson correlation of all pairs of units. Bottom: cosine of all "
                "pairs of atoms.",
            )


def draw_budgets(sections: Sequence[Section], out: Path) -> Iterator[Figure]:
    """Draw each measure against the length of training, with and without splitting."""
    from osae.report import figures

    here = make_folder(out)
    ways = (
        ("plain", "without", {name: name for name in WITH_SPLITTING}),
        ("splitting", "with", {split: name for name, split in WITH_SPLITTING.items()}),
    )
    for name, words, shown_as in ways:
        shown = [
            replace(
                section,
                rows=tuple(
                    replace(row, method=shown_as[row.method])
                    for row in section.rows
                    if row.method in shown_as
                ),
            )
            for section in sections
        ]
        file = here / f"budgets-{name}.png"
        title = f"Every measure against the length of training, {words} splitting"
        figures.sweep(shown, SWEPT, out / file, title=title, x_label="epochs", log_x=True)
        yield Figure(file.as_posix(), f"{title}: mean over seeds and 95 % interval.")


@torch.no_grad()
def draw_principal(groups: Sequence[Group], directions: Tensor, out: Path) -> Figure:
    """Draw how close each unit is to each principal direction, for the first seed of every method."""
    from osae.report import figures

    file = make_folder(out) / "directions.png"
    maps = {
        group.method: metrics.cosine(next(iter(group.saes.values())).decoder, directions).abs().numpy()
        for group in groups
    }
    figures.cosine_maps(maps, out / file, title="Units and principal directions: |cosine|")
    caption = (
        "The |cosine| of each unit with each principal direction, first seed of each method: a diagonal "
        "means that every unit is the principal direction of its place."
    )
    return Figure(file.as_posix(), caption)


@torch.no_grad()
def draw_orders(groups: Sequence[Group], atoms: Tensor, orders: Mapping[str, Tensor], out: Path) -> Figure:
    """Draw the positions of units against those of the true atoms, in each order, for the first seeds."""
    from osae.report import figures

    file = make_folder(out) / "orders.png"
    panels = [
        _matching_panel(f"{group.method}, by {name}", next(iter(group.saes.values())), atoms[order])
        for name, order in orders.items()
        for group in groups
    ]
    figures.matching_scatter(panels, out / file, title="Where each true atom is found", across=len(groups))
    caption = (
        f"One dot for each pair of a true atom and the unit matched with it, with the true atoms sorted by "
        f"{' and by '.join(orders)}: units on the diagonal are in that order."
    )
    return Figure(file.as_posix(), caption)


def _matching_panel(name: str, sae: SAE, truth: Tensor) -> dict[str, Any]:
    found = metrics.consistency(truth, sae.decoder)
    return {
        "title": name,
        "left": found.matching.left.numpy(),
        "right": found.matching.right.numpy(),
        "similarity": found.matching.similarity.numpy(),
        "units": max(len(truth), sae.config.units),
        "stability": found.stability,
        "orderedness": found.orderedness,
    }


def _seed_pair(group: Group, world: SparseWorld) -> dict[str, Any]:
    """Return rasters, all-pairs Pearson correlations and all-pairs cosines of two seeds and the truth."""
    samples = world.draw("test", STREAM_ROWS)
    truth, (first, second) = world.dictionary(), list(group.saes.values())[:2]
    codes = [samples.code.dense(world.units)]
    codes += [sae.encode(samples.x).dense(sae.config.units) for sae in (first, second)]
    atoms = [truth, first.decoder, second.decoder]
    pairs = [(1, 0), (2, 0), (1, 2)]
    return {
        "title": group.method,
        "rasters": [code[:RASTER_INPUTS].T.numpy() for code in codes],
        "pearson": [metrics.activation_similarity(codes[a], codes[b]).numpy() for a, b in pairs],
        "cosine": [metrics.cosine(atoms[a], atoms[b]).numpy() for a, b in pairs],
    }


def draw_sweep(sections: Sequence[Section], out: Path) -> Figure:
    """Draw the measures against the exponents of the sections, for the most important methods."""
    from osae.report import figures

    file = make_folder(out) / "sweep.png"
    shown = [
        replace(section, rows=tuple(row for row in section.rows if row.method in SWEPT_METHODS))
        for section in sections
    ]
    figures.sweep(shown, SWEPT, out / file)
    caption = (
        "Each measure against the world's Zipf exponent, for six of the methods; bands are 95 % intervals "
        "over seeds."
    )
    return Figure(file.as_posix(), caption)


def draw_variants(rows: Sequence[MethodRow], out: Path) -> Figure:
    """Draw the measures of each variant with their intervals."""
    from osae.report import figures

    file = make_folder(out) / "ablations.png"
    figures.bars_with_intervals(rows, VARIED, out / file)
    return Figure(file.as_posix(), "The mean of each variant with its 95 % interval over seeds.")


def draw_hard(section: Section, out: Path) -> Figure:
    """Draw the measures of each method on a hard world with their intervals."""
    from osae.report import figures

    file = make_folder(out) / f"{section.title}.png"
    figures.bars_with_intervals(section.rows, HARD, out / file)
    caption = f"World {section.title}: the mean of each method with its 95 % interval over runs."
    return Figure(file.as_posix(), caption)
