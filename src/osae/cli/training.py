"""`osae train`, `osae resume` and `osae recipes`."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from osae.cli.harvesting import add_harvest, harvest_spec
from osae.cli.terminal import Progress, add_world, integers, json_value, positive, world
from osae.train.logs import KINDS

if TYPE_CHECKING:
    from osae.data.source import SourceSpec
    from osae.recipes import Task

EPILOG = """on what:
  by default      a synthetic world (options under "world")
  --data SHARDS   activations on disk, from `osae harvest`
  --live          activations straight from a language model (options under "activations of a language model")
  --setting NAME  the model, layer, data and sizes of a known setting: pythia-70m, gemma-2-2b (both as in the
                  paper), smollm2-135m. As RECIPE, such a name means osae-paper in that setting, live.
                  --dataset then names one of its texts (by default the first).

examples:
  osae train osae,topk --seeds 0,1,2 --out runs/mine --width 64 --units 128 --active 4
  osae train osae --data acts --units 4096 --k 80 --tokens 5e7 --seeds 0,1,2 --out runs/lm
  osae train pythia-70m --out runs/pythia"""


def configure_train(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = EPILOG
    sub.add_argument("recipe", metavar="RECIPE[,RECIPE]", help="recipes to train, see `osae recipes`")
    sub.add_argument("--out", type=Path, required=True, metavar="RUN", help="new folder for the run")
    sub.add_argument("--seeds", type=integers, default=(0,), metavar="0,1,...", help="training seeds (0)")
    on = sub.add_mutually_exclusive_group()
    on.add_argument("--data", type=Path, metavar="SHARDS", help="train on these activations")
    on.add_argument("--live", action="store_true", help="train straight from a language model")
    sub.add_argument("--setting", metavar="NAME", help="a known language-model setting (below)")
    sub.add_argument(
        "--start",
        choices=("data", "noise"),
        help="begin from the principal directions of the data, or from noise (default: the recipe's own)",
    )
    sub.add_argument("--epochs", type=float, help="times the samples are seen (30; on activations 1)")
    sub.add_argument("--batch", type=positive, help="samples in a step (500; on activations 2048)")
    sub.add_argument("--k", type=positive, help="active units of a code (default: the world's active atoms)")
    sub.add_argument("--dictionary", type=positive, help="units of the SAE (default: --units)")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=JSON",
        help='change a field of the recipe, e.g. lr.peak=0.003 or \'sae.prefix={"kind":"Uniform"}\'',
    )
    sub.add_argument(
        "--snapshots",
        type=integers,
        default=(),
        metavar="N,...",
        help="keep the SAEs after so many samples (0 is always kept)",
    )
    sub.add_argument("--checkpoint-seconds", type=float, default=60.0, help="time between checkpoints (60)")
    _add_log(sub)
    add_harvest(sub, required=False)
    add_world(sub)


def _add_log(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--log",
        action="append",
        default=[],
        choices=KINDS,
        help="also log to this service, if it is installed; log.jsonl is always written",
    )


def train(asked: argparse.Namespace) -> int:
    from osae.config import altered, from_json
    from osae.recipes import recipe
    from osae.settings import SETTINGS
    from osae.train import run

    names = asked.recipe.split(",")
    if asked.recipe in SETTINGS:
        asked.setting, names = asked.recipe, ["osae-paper"]
    source, task = _activations(asked) if asked.data or asked.live or asked.setting else _world(asked)
    changes = {}
    for change in asked.set:
        path, _, value = change.partition("=")
        changes[path] = from_json(json_value(value, change))
    chosen = tuple(altered(recipe(name, task, start=asked.start), changes) for name in names)
    config = run.RunConfig(chosen, asked.seeds, source, asked.snapshots, asked.checkpoint_seconds)
    run.create(asked.out, config)
    return _go(asked.out, asked)


def _world(asked: argparse.Namespace) -> "tuple[SourceSpec, Task]":
    """The synthetic world that the options ask for, and what to fit to it."""
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task

    if asked.tokens is not None:
        raise ValueError(f"--tokens {asked.tokens}: a world has samples, not tokens; give --epochs.")
    data, batch = SparseWorld(**world(asked)), asked.batch or 500
    if batch > data.samples:
        raise ValueError(
            f"batch={batch} exceeds the world's {data.samples} samples: ask for a smaller batch."
        )
    samples = int((asked.epochs or 30.0) * data.samples)
    return data, Task(
        data.width, asked.dictionary or data.units, asked.k or data.active, samples, batch=batch
    )


def _activations(asked: argparse.Namespace) -> "tuple[SourceSpec, Task]":
    """The activations that the options ask for, and what to fit to them."""
    from osae.data.shards import Shards
    from osae.data.source import OnDisk
    from osae.recipes import Task
    from osae.settings import setting

    known = setting(asked.setting) if asked.setting else None
    units = asked.dictionary or asked.units or (known and known.units)
    k = asked.k or (known and known.k)
    tokens, batch = asked.tokens or (known and known.tokens), asked.batch or 2048
    if asked.epochs and (asked.tokens or not asked.data):
        raise ValueError(f"--epochs {asked.epochs:g} goes with --data and without --tokens: leave it out.")
    if asked.data:
        shards = Shards(asked.data)
        if batch > shards.rows:
            raise ValueError(f"batch={batch} exceeds the {shards.rows} rows of {asked.data}: ask for less.")
        source, width = OnDisk(str(asked.data), shards.provenance()["sha256"]), shards.width
        if asked.epochs or not tokens:
            tokens = int((asked.epochs or 1.0) * shards.rows)
    elif known is not None and asked.model is None:
        if given := [
            name for name in ("text", "layer", "module", "revision") if getattr(asked, name) is not None
        ]:
            raise ValueError(f"--{given[0]} is fixed by --setting {asked.setting}: give --model with it.")
        source = replace(
            known.harvest(asked.dataset or next(iter(known.texts))), tokens=tokens or known.tokens
        )
        width = known.width
    else:
        asked.tokens = tokens
        for name in ("model", "tokens"):
            if getattr(asked, name) is None:
                raise ValueError(f"--live needs --{name}, or give --setting.")
        if not asked.dataset and not asked.text:
            raise ValueError("--live needs --text or --dataset, or give --setting.")
        source = harvest_spec(asked)
        width = _width(asked)
    if not units or not k or not tokens:
        raise ValueError(f"units={units}, k={k}, tokens={tokens}: give --units, --k and --tokens.")
    groups = known.groups if known else 5
    return source, Task(width, units, k, tokens, batch=batch, groups=groups, language=True)


def _width(asked: argparse.Namespace) -> int:
    """The width of what will come from the model."""
    import torch

    from osae.data.harvest import opened_model

    return opened_model(harvest_spec(asked), asked.device).activations(torch.zeros(1, 1).long()).shape[-1]


def configure_resume(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run that was stopped or killed")
    sub.add_argument("--device", default="auto", help="cpu, cuda, mps")
    _add_log(sub)


def resume(asked: argparse.Namespace) -> int:
    return _go(asked.run, asked)


def _go(folder: Path, asked: argparse.Namespace) -> int:
    from osae.data.lm import chosen_device
    from osae.train import run
    from osae.train.logs import logs_to

    try:
        with Progress("training") as progress, logs_to(asked.log, folder) as logs:
            members = run.go(
                folder,
                device=chosen_device(asked.device),
                progress=lambda done, steps, terms: progress(
                    done, steps, f"loss {float(terms[-1].prefix):.4g}"
                ),
                logs=logs,
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
    from osae.settings import SETTINGS

    if asked.name in SETTINGS:
        made = recipe("osae-paper", SETTINGS[asked.name].task())
        source = SETTINGS[asked.name].harvest(next(iter(SETTINGS[asked.name].texts)))
        print(json.dumps({"recipe": to_json(made), "source": to_json(source)}, indent=2))
        return 0
    if asked.name:
        example = Task(width=80, units=100, active=5, samples=3_000_000)
        print(json.dumps(to_json(recipe(asked.name, example)), indent=2))
        return 0
    for name, function in RECIPES.items():
        print(f"{name:18s} {(function.__doc__ or '').splitlines()[0]}")
    for name, known in SETTINGS.items():
        print(f"{name:18s} osae-paper on {known.model}, layer {known.layer}: {', '.join(known.texts)}.")
    return 0
