"""The paper's tables and figures as data and code, with the published numbers next to ours.

`EXPERIMENTS` lists every experiment by name. To add one, write its options (a dataclass) and a module with a
function `run`, and add an entry here. Nothing here needs torch until an experiment runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from osae.experiments.lm.options import LMOptions, StartOptions
from osae.experiments.options import ExperimentOptions
from osae.experiments.worlds.options import (
    BudgetOptions,
    EnergyOptions,
    HardOptions,
    LemmaOptions,
    PCAOptions,
    SizesOptions,
    ToyOptions,
    TrustTestOptions,
    TuningOptions,
    VariantOptions,
    ZipfOptions,
)
from osae.progress import Progress

if TYPE_CHECKING:
    from osae.results.experiment import ExperimentResult

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentOptions", "Progress"]

Run = Callable[[Any, Progress], "ExperimentResult"]


@dataclass(frozen=True)
class Experiment:
    """An experiment: its help text, its options and its function."""

    name: str
    help: str
    options: type[ExperimentOptions]
    run: Run


def _run_of(module: str) -> Run:
    """Return the function `run` of a module of this package, imported when it is called."""

    def run(options: ExperimentOptions, progress: Progress) -> "ExperimentResult":
        return import_module(f"{__name__}.{module}").run(options, progress)

    return run


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("toy", "table 1: every recipe on the Gaussian world", ToyOptions, _run_of("worlds.toy")),
        Experiment(
            "budgets",
            "table 1 after training runs of several lengths, with and without splitting",
            BudgetOptions,
            _run_of("worlds.budgets"),
        ),
        Experiment("sizes", "table 1 at 10, 30 and 50 atoms", SizesOptions, _run_of("worlds.sizes")),
        Experiment("zipf", "six measures against the Zipf exponent", ZipfOptions, _run_of("worlds.zipf")),
        Experiment(
            "pca",
            "the nested loss finds principal directions in order",
            PCAOptions,
            _run_of("worlds.pca"),
        ),
        Experiment(
            "energy",
            "units are ordered by explained energy, not by frequency",
            EnergyOptions,
            _run_of("worlds.energy"),
        ),
        Experiment(
            "lemma",
            "the lemma and the theorem on exact minimisers, and the properties of the worlds",
            LemmaOptions,
            _run_of("worlds.lemma"),
        ),
        Experiment(
            "hard",
            "hard worlds: truth and consistency of runs that share only the recipe",
            HardOptions,
            _run_of("worlds.hard"),
        ),
        Experiment(
            "ablate", "our recipe with one choice changed at a time", VariantOptions, _run_of("worlds.ablate")
        ),
        Experiment(
            "schedules",
            "the paper's recipe without unit sweeping, and without warm-up of k",
            VariantOptions,
            _run_of("worlds.schedules"),
        ),
        Experiment(
            "trust",
            "whether reproducibility separates true units from false ones and predicts the next run",
            TrustTestOptions,
            _run_of("worlds.trust"),
        ),
        Experiment(
            "tuning",
            "the trials behind the hyperparameters of the tables",
            TuningOptions,
            _run_of("worlds.tuning"),
        ),
        Experiment(
            "lm",
            "consistency across seeds and texts on a language model",
            LMOptions,
            _run_of("lm.experiment"),
        ),
        Experiment(
            "lm-start",
            "how far SAEs move from a random start, by learning rate, with and without AuxK",
            StartOptions,
            _run_of("lm.start"),
        ),
    )
}
