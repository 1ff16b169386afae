"""The command line: a dictionary of functions. Nothing heavy is imported before a command needs it."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from osae import __version__


class Command(NamedTuple):
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 stopped halfway, 2 the request cannot be met."""
    asked = parser().parse_args(arguments)
    try:
        return COMMANDS[asked.command].run(asked)
    except (ValueError, OSError) as error:
        if os.environ.get("OSAE_TRACEBACK"):
            raise
        print(f"osae: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nosae: stopped. The same command goes on from what is on disk.", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="osae",
        description="Ordered sparse autoencoders: train them exactly, and measure how consistent any are.",
        epilog="`osae COMMAND --help` tells more. First steps: osae reproduce toy --quick --out runs/demo",
    )
    top.add_argument("--version", action="version", version=f"osae {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.configure(sub)
    return top


# --- reproduce ------------------------------------------------------------------------------------

EXPERIMENTS = {
    "toy": "table 1: every recipe on the Gaussian world",
    "sizes": "the same at 10, 30 and 50 atoms",
    "zipf": "six measures against the Zipf exponent",
    "pca": "the nested loss finds principal directions in order",
    "energy": "the order found is by explained energy, not by frequency",
    "ablate": "our recipe with one choice changed at a time",
    "tuning": "the trials behind the tables' hyperparameters",
}


def _configure_reproduce(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    names = "\n".join(f"  {name:8s} {about}" for name, about in EXPERIMENTS.items())
    sub.epilog = f"experiments:\n{names}\n\nRun the same command again to go on after a stop."
    sub.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help="which experiment (below)")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and figures")
    sub.add_argument("--seeds", type=_positive, metavar="N", help="number of training seeds (toy: 10)")
    sub.add_argument("--quick", action="store_true", help="few seeds and short training: a minute or so")
    sub.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="J",
        help="trainings at a time (all cores)",
    )
    sub.add_argument("--methods", metavar="A,B,...", help="only these recipes (toy, sizes, tuning)")
    _add_world(sub)


def _reproduce(asked: argparse.Namespace) -> int:
    from osae.experiments import EXPERIMENTS as functions
    from osae.experiments import Options
    from osae.recipes import RECIPES
    from osae.report import write_report

    methods = tuple(asked.methods.split(",")) if asked.methods else tuple(RECIPES)
    if unknown := [name for name in methods if name not in RECIPES]:
        raise ValueError(f"no recipe {unknown[0]!r}: there are {', '.join(RECIPES)}.")
    asked.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    options = Options(asked.out, asked.seeds, asked.quick, asked.jobs, methods, _world(asked))
    with _progress(f"osae reproduce {asked.name}") as progress:
        results = functions[asked.name](options, progress)
    command = "osae " + " ".join(sys.argv[1:])
    about = {"schema": 1, "experiment": asked.name, "command": command, "versions": _versions()}
    results = {**about, **results, "seconds": time.perf_counter() - started}
    page = write_report(results, asked.out)
    _print_results(results)
    print(f"Results: {asked.out / 'results.json'}\nPage:    {page}")
    return 0


NARROW_COLUMNS = ["stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse"]


def _print_results(results: dict[str, Any]) -> None:
    from rich.console import Console

    from osae.report import rich_tables

    console = Console(width=None if sys.stdout.isatty() else 110)
    if console.width < 100 and "columns" not in results:
        results = {**results, "columns": NARROW_COLUMNS}
    for table in rich_tables(results):
        console.print(table)
    for note in results["notes"]:
        console.print(f"- {note}", markup=False, highlight=False)


# --- train and resume -----------------------------------------------------------------------------


def _configure_train(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", metavar="RECIPE[,RECIPE]", help="recipes to train, see `osae recipes`")
    sub.add_argument("--out", type=Path, required=True, metavar="RUN", help="new folder for the run")
    sub.add_argument("--seeds", type=_integers, default=(0,), metavar="0,1,...", help="training seeds")
    sub.add_argument("--epochs", type=float, default=30.0, help="times the world's samples are seen")
    sub.add_argument("--batch", type=_positive, default=500, help="samples in a step")
    sub.add_argument("--k", type=_positive, help="active units of a code (default: the world's active atoms)")
    sub.add_argument("--dictionary", type=_positive, help="units of the SAE (default: the world's atoms)")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=JSON",
        help='change a field of the recipe, e.g. lr.peak=0.003 or \'sae.prefix={"kind":"Uniform"}\'',
    )
    sub.add_argument(
        "--snapshots", type=_integers, default=(), metavar="N,...", help="samples to keep SAEs at"
    )
    sub.add_argument("--checkpoint-seconds", type=float, default=60.0, help="time between checkpoints")
    _add_world(sub)


def _train(asked: argparse.Namespace) -> int:
    from osae.config import altered, from_json
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task, recipe
    from osae.train import run

    world = _world(asked) or SparseWorld()
    samples = int(asked.epochs * world.samples)
    units, active = asked.dictionary or world.units, asked.k or world.active
    task = Task(world.width, units, active, samples, batch=asked.batch)
    changes = {}
    for change in asked.set:
        path, _, value = change.partition("=")
        changes[path] = from_json(_json(value, change))
    recipes = tuple(altered(recipe(name, task), changes) for name in asked.recipe.split(","))
    config = run.RunConfig(recipes, asked.seeds, world, asked.snapshots, asked.checkpoint_seconds)
    run.create(asked.out, config)
    return _go(asked.out)


def _configure_resume(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run that was stopped or killed")


def _resume(asked: argparse.Namespace) -> int:
    return _go(asked.run)


def _go(folder: Path) -> int:
    from osae.train import run

    try:
        with _progress("training") as progress:
            members = run.go(
                folder,
                progress=lambda done, steps, terms: progress(
                    done, steps, f"loss {float(terms[-1].prefix):.4g}"
                ),
            )
    except run.Interrupted as stopped:
        print(f"osae: {stopped}", file=sys.stderr)
        return 1
    for member in members:
        print(folder / member.name)
    return 0


def _configure_recipes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("name", nargs="?", help="print this recipe in full, as JSON")


def _recipes(asked: argparse.Namespace) -> int:
    from osae.config import to_json
    from osae.recipes import RECIPES, Task, recipe

    if asked.name:
        example = Task(width=80, units=100, active=5, samples=3_000_000)
        print(json.dumps(to_json(recipe(asked.name, example)), indent=2))
        return 0
    for name, function in RECIPES.items():
        print(f"{name:18s} {(function.__doc__ or '').splitlines()[0]}")
    return 0


# --- pieces the commands share --------------------------------------------------------------------


def _add_world(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group("world", "the synthetic data (default: that of table 1)")
    group.add_argument("--width", type=_positive, help="d, the data's dimensions (80)")
    group.add_argument("--units", type=_positive, help="K, the true atoms (100)")
    group.add_argument("--active", type=_positive, help="m, atoms active in a sample (5)")
    group.add_argument("--zipf", type=float, help="alpha: atom j occurs in proportion to j^-alpha (1.2)")
    group.add_argument("--samples", type=_positive, help="N, training samples (100000)")
    group.add_argument("--world-seed", type=int, help="seed of dictionary and samples (0)")


def _world(asked: argparse.Namespace) -> Any:
    """The world that the options describe; None if they say nothing."""
    names = {"width": "width", "units": "units", "active": "active", "zipf": "zipf", "samples": "samples"}
    names |= {"world_seed": "seed"}
    given = {field: getattr(asked, name) for name, field in names.items() if getattr(asked, name) is not None}
    if not given:
        return None
    from osae.data.worlds import SparseWorld

    return SparseWorld(**given)


class _progress:
    """A progress bar on a terminal, a line now and then elsewhere: called with (done, total, text)."""

    def __init__(self, title: str):
        self.title, self.bar, self.task, self.said = title, None, None, 0.0

    def __enter__(self) -> "_progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.title, total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int, text: str) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=total, description=f"{self.title}: {text}")
        elif time.monotonic() - self.said > 5 or done == total:
            self.said = time.monotonic()
            print(f"{self.title}: {done}/{total} {text}", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    return {"osae": __version__, "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "numpy", "scipy", "numba")
    }


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least 1")
    return number


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text.split(","))


def _json(text: str, change: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--set {change}: {text!r} is not JSON ({error}); write PATH=JSON.") from None


COMMANDS = {
    "reproduce": Command(
        "Run an experiment of the paper and print our numbers beside its.", _configure_reproduce, _reproduce
    ),
    "train": Command("Train SAEs on a synthetic world, into a run folder.", _configure_train, _train),
    "resume": Command(
        "Go on with a run that was stopped; it ends as if it never had been.", _configure_resume, _resume
    ),
    "recipes": Command("List the recipes, or print one in full.", _configure_recipes, _recipes),
}

if __name__ == "__main__":
    sys.exit(main())
