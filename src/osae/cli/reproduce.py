"""`osae reproduce`: the experiments of the paper."""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from osae.cli import reproduce_lm
from osae.cli.terminal import Progress, add_world, positive, world

EXPERIMENTS = {
    "toy": "table 1: every recipe on the Gaussian world",
    "sizes": "the same at 10, 30 and 50 atoms",
    "zipf": "six measures against the Zipf exponent",
    "pca": "the nested loss finds principal directions in order",
    "energy": "the order found is by explained energy, not by frequency",
    "ablate": "our recipe with one choice changed at a time",
    "schedules": "the paper's recipe without unit sweeping, and without warm-up of k",
    "tuning": "the trials behind the tables' hyperparameters",
    "lm": "consistency across seeds and texts on a language model",
}


def configure(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    names = "\n".join(f"  {name:8s} {about}" for name, about in EXPERIMENTS.items())
    sub.epilog = f"experiments:\n{names}\n\nRun the same command again to go on after a stop."
    sub.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help="which experiment (below)")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results and figures")
    sub.add_argument("--seeds", type=positive, metavar="N", help="number of training seeds (toy: 10)")
    sub.add_argument("--quick", action="store_true", help="few seeds and short training: a minute or so")
    sub.add_argument(
        "--jobs", type=positive, metavar="J", help="trainings at a time (as many as cores; on a GPU 1)"
    )
    sub.add_argument("--methods", metavar="A,B,...", help="only these recipes (toy, sizes, tuning, lm)")
    sub.add_argument("--exponents", metavar="A,B,...", help="only these Zipf exponents (zipf: 0,0.5,1,1.5,2)")
    add_world(sub)
    reproduce_lm.configure(sub)


def run(asked: argparse.Namespace) -> int:
    from osae.experiments import EXPERIMENTS as functions
    from osae.experiments import Options
    from osae.recipes import RECIPES
    from osae.report import write_report
    from osae.versions import versions

    methods = tuple(asked.methods.split(",")) if asked.methods else None
    if unknown := [name for name in methods or () if name not in RECIPES]:
        raise ValueError(f"no recipe {unknown[0]!r}: there are {', '.join(RECIPES)}.")
    asked.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with Progress(f"osae reproduce {asked.name}") as progress:
        if asked.name == "lm":
            results = reproduce_lm.run(asked, methods, progress)
        else:
            jobs = asked.jobs or os.cpu_count() or 1
            options = Options(
                *(asked.out, asked.seeds, asked.quick, jobs, methods, world(asked)), _exponents(asked)
            )
            results = functions[asked.name](options, progress)
    command = shlex.join(["osae", *asked.words])
    about = {"schema": 1, "experiment": asked.name, "command": command, "versions": versions()}
    results = {**about, **results, "seconds": time.perf_counter() - started}
    page = write_report(results, asked.out)
    _print_results(results)
    print(f"Results: {asked.out / 'results.json'}\nPage:    {page}")
    return 0


def _exponents(asked: argparse.Namespace) -> tuple[float, ...] | None:
    """The Zipf exponents asked for, None for all."""
    if asked.exponents is None:
        return None
    if asked.name != "zipf":
        raise ValueError(f"--exponents are for the experiment zipf: {asked.name} has no use for them.")
    try:
        return tuple(float(exponent) for exponent in asked.exponents.split(","))
    except ValueError as error:
        raise ValueError(f"--exponents {asked.exponents}: give numbers, such as 0.5,1,1.5.") from error


NARROW_COLUMNS = ["stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse"]


def _print_results(results: dict[str, Any]) -> None:
    from rich.console import Console

    from osae.report import rich_tables

    console = Console(width=None if sys.stdout.isatty() else 110)
    if console.width < 100 and "columns" not in results:
        results = {**results, "columns": NARROW_COLUMNS}
    for table in rich_tables(results):
        console.print(table)
    claims = results.get("claims", [])
    verdicts = [f"{claim['claim']} {claim['verdict'].capitalize()}: {claim['found']}" for claim in claims]
    for note in [*verdicts, *results["notes"]]:
        console.print(f"- {note}", markup=False, highlight=False)
