"""The figures of an experiment on a world, drawn from its SAEs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from osae import metrics
from osae.data.worlds import SparseWorld
from osae.model import SAE

RASTER_INPUTS = 50
STREAM_ROWS = 5000


@torch.no_grad()
def world_figures(saes: Mapping[str, dict[int, SAE]], world: SparseWorld, out: Path) -> list[dict[str, str]]:
    """The files and captions of the matching scatter and of every method's seed-pair panel."""
    from osae.report import figures

    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    truth = world.dictionary()
    panels = [_matching_panel(name, next(iter(group.values())), truth) for name, group in saes.items()]
    figures.matching_scatter(panels, folder / "matching.png")
    made = [
        {
            "file": "figures/matching.png",
            "caption": "One dot per pair of a true atom and the learned unit matched with it, first seed of "
            "each method; colour is their cosine.",
        }
    ]
    for name, group in saes.items():
        if len(group) < 2:
            continue
        file = f"figures/panel-{name}.png"
        figures.seed_pair_panel(_seed_pair(name, group, world), out / file)
        caption = (
            f"{name}, first two seeds. Top: {RASTER_INPUTS} inputs, true code and both learned codes. "
            "Middle: Pearson correlation of all pairs of units. Bottom: cosine of all pairs of atoms."
        )
        made.append({"file": file, "caption": caption})
    return made


def _matching_panel(name: str, sae: SAE, truth: torch.Tensor) -> dict[str, Any]:
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


def _seed_pair(name: str, group: Mapping[int, SAE], world: SparseWorld) -> dict[str, Any]:
    """Rasters, all-pairs Pearson correlations and all-pairs cosines of the first two seeds and the truth."""
    samples = world.draw("test", STREAM_ROWS)
    truth, (first, second) = world.dictionary(), list(group.values())[:2]
    codes = [samples.code.dense(world.units)]
    codes += [sae.encode(samples.x).dense(sae.config.units) for sae in (first, second)]
    atoms = [truth, first.decoder, second.decoder]
    pairs = [(1, 0), (2, 0), (1, 2)]
    return {
        "title": name,
        "rasters": [code[:RASTER_INPUTS].T.numpy() for code in codes],
        "pearson": [metrics.activation_similarity(codes[a], codes[b]).numpy() for a, b in pairs],
        "cosine": [metrics.cosine(atoms[a], atoms[b]).numpy() for a, b in pairs],
    }


def sweep_figure(sections: list[dict[str, Any]], out: Path) -> dict[str, str]:
    """Six measures against the exponent, drawn; the file and its caption."""
    from osae.report import figures

    keys = ("stability_truth", "stability_pairs", "orderedness_truth", "orderedness_pairs", "mse", "fifr")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    figures.sweep(sections, keys, out / "figures" / "sweep.png")
    caption = "Each measure against the world's Zipf exponent; bands are 95 % intervals over seeds."
    return {"file": "figures/sweep.png", "caption": caption}


def bars_figure(rows: list[dict[str, Any]], keys: tuple[str, ...], out: Path) -> dict[str, str]:
    """Each variant's measures with intervals, drawn; the file and its caption."""
    from osae.report import figures

    (out / "figures").mkdir(parents=True, exist_ok=True)
    figures.bars_with_intervals(rows, keys, out / "figures" / "ablations.png")
    return {
        "file": "figures/ablations.png",
        "caption": "Each variant's mean with its 95 % interval over seeds.",
    }
