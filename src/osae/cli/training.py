"""`osae train`, `osae resume` and `osae recipes`."""

import argparse
import json
import sys
from pathlib import Path

from osae.cli.terminal import Progress, add_world, integers, json_value, positive, world


def configure_train(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", metavar="RECIPE[,RECIPE]", help="recipes to train, see `osae recipes`")
    sub.add_argument("--out", type=Path, required=True, metavar="RUN", help="new folder for the run")
    sub.add_argument("--seeds", type=integers, default=(0,), metavar="0,1,...", help="training seeds")
    sub.add_argument("--epochs", type=float, default=30.0, help="times the world's samples are seen")
    sub.add_argument("--batch", type=positive, default=500, help="samples in a step")
    sub.add_argument("--k", type=positive, help="active units of a code (default: the world's active atoms)")
    sub.add_argument("--dictionary", type=positive, help="units of the SAE (default: the world's atoms)")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=JSON",
        help='change a field of the recipe, e.g. lr.peak=0.003 or \'sae.prefix={"kind":"Uniform"}\'',
    )
    sub.add_argument(
        "--snapshots", type=integers, default=(), metavar="N,...", help="samples to keep SAEs at"
    )
    sub.add_argument("--checkpoint-seconds", type=float, default=60.0, help="time between checkpoints")
    add_world(sub)


def train(asked: argparse.Namespace) -> int:
    from osae.config import altered, from_json
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task, recipe
    from osae.train import run

    data = SparseWorld(**world(asked))
    if asked.batch > data.samples:
        raise ValueError(
            f"batch={asked.batch} exceeds the world's {data.samples} samples: ask for a smaller batch."
        )
    samples = int(asked.epochs * data.samples)
    units, active = asked.dictionary or data.units, asked.k or data.active
    task = Task(data.width, units, active, samples, batch=asked.batch)
    changes = {}
    for change in asked.set:
        path, _, value = change.partition("=")
        changes[path] = from_json(json_value(value, change))
    chosen = tuple(altered(recipe(name, task), changes) for name in asked.recipe.split(","))
    config = run.RunConfig(chosen, asked.seeds, data, asked.snapshots, asked.checkpoint_seconds)
    run.create(asked.out, config)
    return _go(asked.out)


def configure_resume(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run that was stopped or killed")


def resume(asked: argparse.Namespace) -> int:
    return _go(asked.run)


def _go(folder: Path) -> int:
    from osae.train import run

    try:
        with Progress("training") as progress:
            members = run.go(
                folder,
                progress=lambda done, steps, terms: progress(
                    done, steps, f"loss {float(terms[-1].prefix):.4g}"
                ),
            )
    except run.Interrupted as stopped:
        print(f"osae: {stopped}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nosae: stopped at once; `osae resume {folder}` goes on.", file=sys.stderr)
        return 1
    for member in members:
        print(folder / member.name)
    return 0


def configure_recipes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("name", nargs="?", help="print this recipe in full, as JSON")


def recipes(asked: argparse.Namespace) -> int:
    from osae.config import to_json
    from osae.recipes import RECIPES, Task, recipe

    if asked.name:
        example = Task(width=80, units=100, active=5, samples=3_000_000)
        print(json.dumps(to_json(recipe(asked.name, example)), indent=2))
        return 0
    for name, function in RECIPES.items():
        print(f"{name:18s} {(function.__doc__ or '').splitlines()[0]}")
    return 0
