"""How do matrix products in lower precision affect an SAE? Without a GPU, their rounding is emulated.

    python -m benchmarks.gpu.precision --data ACTIVATIONS --out evidence/precision

Trains the same SAEs in every precision, with the same seeds on the same batches: on the world of table 1, and
on activations of a language model, of which the last tenth is held out. Differences are taken seed by seed.
`python -m benchmarks.documentation.pages` copies the tables to docs/gpu.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import osae
from benchmarks.speed.results import describe_machine, write_results
from osae import metrics
from osae.data.shards import Shards
from osae.data.worlds import SparseWorld
from osae.defaults import PRECISIONS
from osae.experiments.worlds.training import world_task
from osae.experiments.worlds.trials import tuned_recipe
from osae.files import atomic_write
from osae.metrics.statistics import runs_interval
from osae.model import SAE
from osae.recipes import Recipe, Task, recipe

METHODS = ("topk", "osae")
UNITS, K, BATCH = 512, 24, 2048  # of SAEs on activations
TEST_ROWS = 20_000
HELD_OUT = 0.1

Measure = Callable[[SAE], dict[str, float]]
Values = dict[str, dict[str, dict[int, float]]]  # by precision, measure and seed


def train_all(made: Recipe, rows: Tensor, seeds: Sequence[int], measure: Measure) -> Values:
    """Return every measure of the SAEs of a recipe, and how well each agrees with its fp32 counterpart."""
    found: Values = {}
    full: dict[int, SAE] = {}
    for precision in PRECISIONS:
        saes = {seed: osae.fit(made, rows, seed=seed, precision=precision, progress=False) for seed in seeds}
        full = full or saes
        measured = {seed: measure(sae) for seed, sae in saes.items()}
        for seed, sae in saes.items():
            measured[seed]["same_atoms"] = metrics.stability(sae.decoder, full[seed].decoder)
        first = saes[seeds[0]].decoder
        for seed in seeds[1:]:
            measured[seed]["other_seed"] = metrics.stability(saes[seed].decoder, first)
        names = dict.fromkeys(name for numbers in measured.values() for name in numbers)
        found[precision] = {
            name: {seed: numbers[name] for seed, numbers in measured.items() if name in numbers}
            for name in names
        }
        print(f"{made.name}, {precision}: {found[precision]}", file=sys.stderr)
    return found


def on_rows(test: Tensor) -> Measure:
    """Return a function that measures the reconstruction of held-out rows."""

    @torch.no_grad()
    def measure(sae: SAE) -> dict[str, float]:
        return {"explained_variance": metrics.explained_variance(test, sae(test).reconstruction)}

    return measure


def run_world(seeds: Sequence[int]) -> dict[str, Values]:
    """Return the measures of every method on the world of table 1, after short training."""
    world = SparseWorld()
    rows, test, truth = world.draw("train").x, world.draw("test", TEST_ROWS).x, world.dictionary()
    reconstructs = on_rows(test)

    def measure(sae: SAE) -> dict[str, float]:
        return reconstructs(sae) | {"truth": metrics.stability(sae.decoder.detach(), truth)}

    task = world_task(world, quick=True)
    return {name: train_all(tuned_recipe(name, task), rows, seeds, measure) for name in METHODS}


def run_activations(folder: Path, tokens: int, seeds: Sequence[int]) -> dict[str, Values]:
    """Return the measures of every method on activations on disk."""
    shards = Shards(folder)
    held_out = round(shards.rows * HELD_OUT)
    rows = shards.read(0, min(tokens, shards.rows - held_out))
    test = shards.read(shards.rows - held_out, shards.rows)[:TEST_ROWS]
    task = Task(shards.width, UNITS, K, tokens, batch=BATCH)
    return {name: train_all(recipe(name, task), rows, seeds, on_rows(test)) for name in METHODS}


TITLES = {
    "explained_variance": "explained variance",
    "truth": "stability, truth",
    "other_seed": "stability, other seed",
    "same_atoms": "stability, same seed in fp32",
}


def tabulate(found: Mapping[str, Values]) -> Iterator[str]:
    """Yield the lines of a table: means over seeds, and the difference from fp32 with its 95 % interval."""
    names = list(next(iter(found.values()))["fp32"])
    head = ["method", "precision", *(TITLES[name] for name in names), "explained variance, less that of fp32"]
    yield f"| {' | '.join(head)} |"
    yield f"| :-- | :-- |{' --: |' * (len(head) - 2)}"
    for method, values in found.items():
        for precision, measured in values.items():
            means = [f"{sum(of.values()) / len(of):.4f}" for of in (measured[name] for name in names)]
            yield f"| {' | '.join([f'`{method}`', precision, *means, _difference(values, precision)])} |"


def _difference(values: Values, precision: str) -> str:
    if precision == "fp32":
        return ""
    ours, full = (values[which]["explained_variance"] for which in (precision, "fp32"))
    interval = runs_interval({seed: ours[seed] - full[seed] for seed in ours})
    low, high = interval.ends()
    return f"{interval.mean:+.4f} ({low:+.4f} to {high:+.4f})"


def write_tables(result: Mapping[str, Any], folder: Path) -> None:
    """Write the tables of a result to table.md."""
    lines = [f"Seeds {', '.join(map(str, result['seeds']))}; {result['machine']}.", ""]
    for name in ("world", "activations"):
        lines += [f"## {name}", "", *tabulate(result[name]), ""]
    with atomic_write(folder / "table.md") as path:
        path.write_text("\n".join(lines))


def main(words: Sequence[str] | None = None) -> int:
    """Train, measure, and write precision.json and table.md."""
    parser = argparse.ArgumentParser(description="Measure how products in lower precision affect an SAE.")
    parser.add_argument("--data", type=Path, required=True, help="activations of a language model")
    parser.add_argument(
        "--tokens", type=int, default=300_000, help="number of tokens that every SAE is trained on (300000)"
    )
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds on the world (4)")
    parser.add_argument("--pair", type=int, default=2, help="number of seeds on the activations (2)")
    parser.add_argument("--out", type=Path, default=Path("runs/precision"), help="folder for results")
    options = parser.parse_args(words)
    shards = Shards(options.data)
    result = {
        "machine": describe_machine(),
        "seeds": list(range(options.seeds)),
        "data": {"rows": shards.rows, "width": shards.width, "tokens": options.tokens, "seeds": options.pair},
        "world": run_world(range(options.seeds)),
        "activations": run_activations(options.data, options.tokens, range(options.pair)),
    }
    result = json.loads(json.dumps(result))  # seeds as they are in the file
    write_results(result, options.out / "precision.json")
    write_tables(result, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
