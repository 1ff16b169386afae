"""`osae train`, `osae resume` and `osae recipes`."""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from osae.cli.harvesting import HARVEST, PLACE, add_harvest, chosen, given, harvest_spec, option
from osae.cli.terminal import Progress, add_world, integers, json_value, positive, world
from osae.training.logs import KINDS

if TYPE_CHECKING:
    from osae.data.harvest import Harvest
    from osae.data.source import Live, SourceSpec
    from osae.objective import Terms
    from osae.recipes import Task
    from osae.settings import Setting

WORLD = ("width", "active", "zipf", "samples", "world_seed")
EPILOG = """on what:
  by default      a synthetic world (options under "world")
  --data SHARDS   activations on disk, from `osae harvest`
  --live          activations straight from a language model (options under "activations of a language model")
  --setting NAME  the model, layer, data and sizes of a known setting: pythia-70m, gemma-2-2b (both as in the
                  paper), smollm2-135m. As RECIPE, such a name means osae-paper in that setting, live.
                  --dataset then names one of its texts (by default the first); other options go before what
                  the setting says.

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
        help="begin from the principal directions of the data, or from noise (default: as the setting, or "
        "else the recipe, says)",
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
        help='change a field of the recipe, e.g. lr.peak=0.003 or \'prefix={"kind":"Uniform"}\'',
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
    from osae.config import alter, from_json
    from osae.recipes import recipe, world_recipe
    from osae.settings import SETTINGS, setting
    from osae.training import run

    names = asked.recipe.split(",")
    if asked.recipe in SETTINGS:
        asked.setting, names = asked.recipe, ["osae-paper"]
    on_activations = asked.data or asked.live or asked.setting
    source, task = _activations(asked) if on_activations else _world(asked)
    lookup = recipe if on_activations else world_recipe
    changes = {}
    for change in asked.set:
        path, _, value = change.partition("=")
        changes[path] = from_json(json_value(value, change))
    start = asked.start or (setting(asked.setting).start if asked.setting else None)
    made = tuple(alter(lookup(name, task, start=start), changes) for name in names)
    config = run.RunConfig(made, asked.seeds, source, asked.snapshots, asked.checkpoint_seconds)
    run.create(asked.out, config)
    try:
        return _go(asked.out, asked)
    except (ValueError, OSError):  # the request cannot be met: mended, it may be made again
        run.forget(asked.out)
        raise


def _world(asked: argparse.Namespace) -> "tuple[SourceSpec, Task]":
    """The synthetic world that the options ask for, and what to fit to it."""
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task

    if asked.tokens is not None:
        raise ValueError(f"--tokens {asked.tokens}: a world has samples, not tokens; give --epochs.")
    _refuse(asked, HARVEST, "is of a language model: give --live or --setting with it.")
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

    _refuse(asked, WORLD, "is of a synthetic world: leave it out.")
    known = setting(asked.setting) if asked.setting else None
    units = asked.dictionary or asked.units or (known and known.units)
    k = asked.k or (known and known.k)
    tokens, batch = asked.tokens or (known and known.tokens), asked.batch or 2048
    if asked.epochs and (asked.tokens or not asked.data):
        raise ValueError(f"--epochs {asked.epochs:g} goes with --data and without --tokens: leave it out.")
    if asked.data:
        _refuse(asked, HARVEST, f"comes too late for --data {asked.data}, harvested already: leave it out.")
        shards = Shards(asked.data)
        if batch > shards.rows:
            raise ValueError(f"batch={batch} exceeds the {shards.rows} rows of {asked.data}: ask for less.")
        source, width = OnDisk(str(asked.data), shards.provenance()["sha256"]), shards.width
        if asked.epochs or not tokens:
            tokens = int((asked.epochs or 1.0) * shards.rows)
    else:
        source, width = _live(asked, known, tokens)
    if not units or not k or not tokens:
        raise ValueError(f"units={units}, k={k}, tokens={tokens}: give --units, --k and --tokens.")
    groups = known.groups if known else 5
    return source, Task(width, units, k, tokens, batch=batch, groups=groups)


def _live(asked: argparse.Namespace, known: "Setting | None", tokens: int | None) -> "tuple[Live, int]":
    """The activations straight from a model, and their width; what is given goes before the setting."""
    from osae.data.harvest import BATCH_TOKENS
    from osae.data.source import Live
    from osae.data.text import check_readable

    if known is not None and asked.model is None:
        _refuse(asked, ("text", *PLACE), f"is fixed by --setting {asked.setting}: give --model with it.")
        base = known.harvest(asked.dataset or next(iter(known.texts)))
        spec, width = chosen(asked, replace(base, tokens=tokens or known.tokens)), known.width
        check_readable(spec.text)
    else:
        asked.tokens = tokens
        for name in ("model", "tokens"):
            if getattr(asked, name) is None:
                raise ValueError(f"--live needs --{name}, or give --setting.")
        if not asked.dataset and not asked.text:
            raise ValueError("--live needs --text or --dataset, or give --setting.")
        spec = harvest_spec(asked)
        check_readable(spec.text)
        width = _width(spec, asked.device)
    return Live(spec, asked.batch_tokens or BATCH_TOKENS), width


def _refuse(asked: argparse.Namespace, options: Iterable[str], why: str) -> None:
    """Nothing; a `ValueError` if one of these options was given."""
    for name in given(asked, options):
        raise ValueError(f"{option(name)} {why}")


def _width(spec: "Harvest", device: str) -> int:
    """The width of what will come from the model."""
    import torch

    from osae.data.harvest import open_model

    return open_model(spec, device).activations(torch.zeros(1, 1).long()).shape[-1]


def configure_resume(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run that was stopped or killed")
    sub.add_argument("--device", default="auto", help="cpu, cuda, mps")
    _add_log(sub)


def resume(asked: argparse.Namespace) -> int:
    return _go(asked.run, asked)


def _go(folder: Path, asked: argparse.Namespace) -> int:
    from osae.devices import choose_device
    from osae.training import run
    from osae.training.logs import open_logs

    names = [recipe.name for recipe in run.read(folder).recipes]
    device = choose_device(asked.device)
    try:
        with Progress("training") as progress, open_logs(asked.log, folder) as logs:
            members = run.go(
                folder,
                device=device,
                progress=lambda done, steps, terms: progress(done, steps, _losses(names, terms)),
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


def _losses(names: list[str], terms: "list[Terms]") -> str:
    """The loss of each recipe, the mean over its seeds."""
    import torch

    means = torch.stack([each.prefix for each in terms]).view(len(names), -1).mean(1).tolist()
    if len(names) == 1:
        return f"loss {means[0]:.4g}"
    return "loss " + ", ".join(f"{name} {mean:.4g}" for name, mean in zip(names, means, strict=True))


def configure_recipes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("name", nargs="?", help="print this recipe in full, as JSON")


def recipes(asked: argparse.Namespace) -> int:
    from osae.config import to_json
    from osae.recipes import RECIPES, WORLD_RECIPES, Task, recipe, world_recipe
    from osae.settings import SETTINGS

    if asked.name in SETTINGS:
        known = SETTINGS[asked.name]
        made = recipe("osae-paper", known.task(), start=known.start)
        source = known.harvest(next(iter(known.texts)))
        print(json.dumps({"recipe": to_json(made), "source": to_json(source)}, indent=2))
        return 0
    if asked.name:
        example = Task(width=80, units=100, k=5, samples=3_000_000)
        lookup = world_recipe if asked.name in WORLD_RECIPES else recipe
        print(json.dumps(to_json(lookup(asked.name, example)), indent=2))
        return 0
    for name, function in RECIPES.items():
        print(f"{name:18s} {(function.__doc__ or '').splitlines()[0]}")
    for name, known in SETTINGS.items():
        print(f"{name:18s} osae-paper on {known.model}, layer {known.layer}: {', '.join(known.texts)}.")
    return 0
