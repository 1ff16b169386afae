"""`osae train`: SAEs on a synthetic world, on activations on disk, or straight from a language model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli import language
from osae.cli.changes import parse_changes
from osae.cli.command import Command
from osae.cli.commands.resume import dictionary_ranks_option, log_option, on_nan_option, train_to_end
from osae.cli.forecasting import announce_training
from osae.cli.inputs import check_present
from osae.cli.language import LanguageOptions, build_harvest
from osae.cli.outputs import check_new_folder
from osae.cli.shared_options import DATA
from osae.defaults import BATCH as DATA_BATCH
from osae.experiments.lm.settings import SETTINGS, find_setting
from osae.experiments.methods import ACTIVATION_METHODS, STARTS, WORLD_METHODS
from osae.experiments.options import check_distinct
from osae.experiments.worlds.options import AnyWorldOptions
from osae.launching import count_restarts, is_first
from osae.options import device_option, list_options, option, refuse

if TYPE_CHECKING:
    from osae.data.source import Live, SourceSpec
    from osae.experiments.lm.settings import Setting
    from osae.recipes import Recipe, Task

WORLD_NAMES = tuple(declared.name for declared in list_options(AnyWorldOptions))
WORLD_EPOCHS, WORLD_BATCH = 30.0, 500
DATA_EPOCHS = 1.0
NOTES = """what to train on:
  by default      a synthetic world (options under "world")
  --data DATA     activations on disk, from `osae harvest`
  --live          activations straight from a language model (options under "activations of a language model")
  --setting NAME  the model, layer, data and sizes of a known setting: pythia-70m and gemma-2-2b (as in the
                  paper), smollm2-135m. As RECIPE, such a name means osae-paper in that setting, live.
                  --dataset then names one of its texts (by default the first). Options override a setting."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LanguageOptions, AnyWorldOptions):
    """What to train, on what, and for how long."""

    recipes: tuple[str, ...] = option(
        "recipes to train, see `osae recipes`",
        positional=True,
        metavar="RECIPE[,RECIPE]",
        choices=tuple(dict.fromkeys((*ACTIVATION_METHODS, *WORLD_METHODS, *SETTINGS))),
    )
    out: Path = option("new folder for the run", metavar="RUN")
    seeds: tuple[int, ...] = option("training seeds", default=(0,), metavar="0,1,...", least=0)
    data: Path | None = option(f"train on {DATA}", default=None, metavar="DATA")
    live: bool = option("train straight from a language model", default=False)
    setting: str | None = option(
        "a known language-model setting (below)", default=None, choices=tuple(SETTINGS)
    )
    units: int | None = option(
        "units of the SAE", default=None, shown="taken from the world or the setting", least=1
    )
    k: int | None = option(
        "active units in a code", default=None, shown="taken from the world or the setting", least=1
    )
    epochs: float | None = option(
        "passes over the samples",
        default=None,
        shown=f"{WORLD_EPOCHS:g}; on activations {DATA_EPOCHS:g}",
        metavar="X",
        above=0,
    )
    batch: int | None = option(
        "samples in a step", default=None, shown=f"{WORLD_BATCH}; on activations {DATA_BATCH}", least=1
    )
    start: str | None = option(
        "start from the principal directions of the data, from noise, or from clusters of the data",
        default=None,
        choices=STARTS,
        shown="that of the setting, or else of the recipe",
    )
    set: tuple[str, ...] = option(
        'change a field of the recipe, such as lr.peak=0.003 or \'prefix={"kind":"Uniform"}\'; repeatable',
        default=(),
        metavar="PATH=JSON",
        entries="repeated",
    )
    snapshots: tuple[int, ...] = option(
        "save the SAEs after these numbers of samples (0 is always saved)",
        default=(),
        metavar="N,...",
        least=0,
    )
    checkpoint_seconds: float = option(
        "least time between checkpoints; large ones are written less often, with 0 after every step",
        default=60.0,
        least=0,
    )
    on_nan: str = on_nan_option("stop")
    log: tuple[str, ...] = log_option()
    log_every: int | None = option(
        "steps between two lines of the log", default=None, shown="a two-hundredth of the run", least=1
    )
    device: str = device_option("train and to run the language model")
    dictionary_ranks: int = dictionary_ranks_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(name in SETTINGS for name in self.recipes) and len(self.recipes) + bool(self.setting) > 1:
            raise ValueError(
                "a setting given as RECIPE cannot be combined with other recipes: use --setting."
            )
        check_distinct("RECIPE", self.recipes)
        check_distinct("--seeds", self.seeds)
        parse_changes(self.set)
        if self.data is not None and self.live:
            raise ValueError("--live takes activations from a model and --data from disk: give only one.")
        if self.on_world:
            self._check_world()
        else:
            self._check_activations()
        units, k = self.shape
        if units is not None and k is not None and k > units:
            raise ValueError(f"--k {k} exceeds the SAE's {units} units: give at most {units}.")

    @property
    def on_world(self) -> bool:
        """Whether the SAEs are trained on a synthetic world, not on activations."""
        return self.data is None and not self.live and self.known_setting is None

    @property
    def known_setting(self) -> str | None:
        """The name of the setting, given by --setting or as RECIPE."""
        return self.setting or next((name for name in self.recipes if name in SETTINGS), None)

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """The recipes to train."""
        return ("osae-paper",) if self.recipes[0] in SETTINGS else self.recipes

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """The number of units and of active units: as given, or else of the setting or of the world."""
        known = SETTINGS[self.known_setting] if self.known_setting else None
        units, k = (known.units, known.k) if known else (None, None)
        if self.on_world:
            units, k = self.world_size("units"), self.world_size("active")
        return self.units or units, self.k or k

    def _check_world(self) -> None:
        if absent := [name for name in self.recipes if name not in WORLD_METHODS]:
            raise ValueError(f"{absent[0]} is a recipe for activations: add --data, --live or --setting.")
        if self.tokens is not None:
            raise ValueError(f"--tokens {self.tokens}: a world has samples, not tokens; give --epochs.")
        refuse(self, language.NAMES, "applies to language models only: add --live or --setting.")

    def _check_activations(self) -> None:
        known = (*ACTIVATION_METHODS, *SETTINGS)
        if absent := [name for name in self.recipes if name not in known]:
            raise ValueError(
                f"{absent[0]} is a recipe for synthetic worlds: remove --data, --live and --setting."
            )
        refuse(self, WORLD_NAMES, "applies to synthetic worlds only: remove it.")
        if self.epochs and (self.tokens or not self.data):
            raise ValueError(
                f"--epochs {self.epochs:g} can only be used with --data, and not together with --tokens."
            )
        if self.data is not None:
            late = f"has no effect with --data {self.data}, which is already harvested: remove it."
            refuse(self, language.NAMES, late)
        elif self.known_setting and self.model is None:
            fixed = f"is fixed by --setting {self.known_setting}: add --model to change it."
            refuse(self, ("text", *language.PLACE), fixed)
        else:
            self._check_live()
        if not self.known_setting and (self.units is None or self.k is None):
            raise ValueError("--units and --k must be given: they cannot be inferred from activations.")

    def _check_live(self) -> None:
        """Raise `ValueError` if something is missing to take activations straight from a model."""
        given = {
            "--model": self.model is not None,
            "--tokens": self.tokens is not None or self.known_setting is not None,
            "--layer or --module": self.layer is not None or self.module is not None,
            "--text or --dataset": bool(self.text) or self.dataset is not None,
        }
        if missing := [flags for flags, there in given.items() if not there]:
            raise ValueError(f"--live needs {', '.join(missing)}; or give --setting alone.")


def run(options: TrainOptions, line: str) -> int:
    """Create the run and train its SAEs to the end; of several processes, the first one creates it."""
    again = count_restarts() > 0 and (options.out / "run.json").exists()
    if is_first() and not again:
        _create(options)
    try:
        return train_to_end(
            options.out,
            device=options.device,
            log=options.log,
            dictionary_ranks=options.dictionary_ranks,
        )
    except (ValueError, TypeError, RuntimeError):  # once corrected, the request may be made again
        if is_first():
            from osae.training import run as runs

            runs.forget(options.out)
        raise


def _create(options: TrainOptions) -> None:
    if (options.out / "run.json").exists():
        raise ValueError(
            f"{options.out} already contains a run: run `osae resume {options.out}` to continue."
        )
    check_new_folder(options.out)
    check_present(options.data)
    source, recipes = plan(options)
    from osae.devices import choose_device
    from osae.training import run as runs

    config = runs.RunConfig(
        recipes,
        options.seeds,
        source,
        options.snapshots,
        options.checkpoint_seconds,
        options.on_nan,
        options.log_every or 0,
    )
    announce_training(config, options.out, choose_device(options.device))
    runs.create(options.out, config)


def plan(options: TrainOptions) -> "tuple[SourceSpec, tuple[Recipe, ...]]":
    """Return what the options ask for: the data, and the recipes to train on it."""
    source, task = _plan_world(options) if options.on_world else _plan_activations(options)
    from osae.config import alter, from_json  # not before the request is known to make sense
    from osae.recipes import recipe, world_recipe

    known = _find_setting(options)
    start = options.start or (known.start if known else None)
    changes: dict[str, Any] = {path: from_json(new) for path, new in parse_changes(options.set).items()}
    if options.on_world and options.world_bias:  # recipes for worlds have no bias of their own
        changes = {"sae.decoder_bias": True} | changes
    find = world_recipe if options.on_world else recipe
    return source, tuple(alter(find(name, task, start=start), changes) for name in options.recipe_names)


def _find_setting(options: TrainOptions) -> "Setting | None":
    return find_setting(options.known_setting) if options.known_setting else None


def _plan_world(options: TrainOptions) -> "tuple[SourceSpec, Task]":
    """Return the synthetic world that the options ask for, and what to fit to it."""
    from osae.recipes import Task

    world, batch = options.any_world(), options.batch or WORLD_BATCH
    if batch > world.samples:
        raise ValueError(f"--batch {batch} exceeds the world's {world.samples} samples: give a smaller one.")
    samples = int((options.epochs or WORLD_EPOCHS) * world.samples)
    units, k = options.units or world.units, options.k or max(1, round(world.active))
    return world, Task(world.width, units, k, samples, batch=batch)


def _plan_activations(options: TrainOptions) -> "tuple[SourceSpec, Task]":
    """Return the activations that the options ask for, and what to fit to them."""
    known = _find_setting(options)
    source, width, tokens = _on_disk(options, known) if options.data else _live(options, known)
    from osae.recipes import Task

    base = known.task() if known else Task(width, options.units or 0, options.k or 0, tokens)
    chosen = replace(base, width=width, samples=tokens, batch=options.batch or DATA_BATCH)
    return source, replace(chosen, units=options.units or base.units, k=options.k or base.k)


def _on_disk(options: TrainOptions, known: "Setting | None") -> "tuple[SourceSpec, int, int]":
    """Return the activations on disk, their width, and how many to see."""
    from osae.data.shards import Shards
    from osae.data.source import OnDisk

    assert options.data is not None
    shards, batch = Shards(options.data), options.batch or DATA_BATCH
    if batch > shards.rows:
        raise ValueError(
            f"--batch {batch} exceeds the {shards.rows} rows of {options.data}: give a smaller one."
        )
    tokens = options.tokens or (known.tokens if known else None)
    if options.epochs or tokens is None:
        tokens = int((options.epochs or DATA_EPOCHS) * shards.rows)
    # absolute: the run may be resumed from another folder
    return OnDisk(str(options.data.absolute()), shards.provenance()["sha256"]), shards.width, tokens


def _live(options: TrainOptions, known: "Setting | None") -> "tuple[Live, int, int]":
    """Return the activations straight from a model, their width, and how many to see."""
    if known is not None and options.model is None:
        from osae.data.text import check_readable

        base = known.harvest(options.dataset or next(iter(known.texts)))
        spec = language.override(replace(base, tokens=options.tokens or known.tokens), options)
        check_readable(spec.text)
        width = known.width
    else:
        assert options.model is not None
        tokens = options.tokens or (known.tokens if known else 0)
        spec = build_harvest(options.model, tokens, options)
        width = _measure_width(spec, options.device)
    from osae.data.harvest import BATCH_TOKENS
    from osae.data.source import Live, digest_text

    live = Live(spec, options.batch_tokens or BATCH_TOKENS, digest_text(spec.text))
    return live, width, spec.tokens


def _measure_width(spec: Any, device: str) -> int:
    """Return the width of what will come from the model."""
    import torch

    from osae.data.harvest import open_model

    return open_model(spec, device).activations(torch.zeros(1, 1).long()).shape[-1]


COMMAND = Command(
    "train",
    "Train SAEs on activations or on a synthetic world, into a run folder.",
    TrainOptions,
    run,
    examples=(
        "osae train osae,topk --seeds 0,1,2 --out runs/mine --world-width 64 --world-units 128",
        "osae train osae --data acts --units 4096 --k 80 --tokens 5e7 --seeds 0,1,2 --out runs/lm",
        "osae train pythia-70m --out runs/pythia",
        "torchrun --nproc-per-node 8 -m osae train osae --data acts --units 65536 --k 80 --out runs/large",
        "osae train osae --out runs/mine --print-config > run.yaml; osae train --config run.yaml --seeds 1",
    ),
    notes=NOTES,
)
