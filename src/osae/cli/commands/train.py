"""`osae train`: train SAEs on a synthetic world, on stored activations, or directly from a language model."""

from contextlib import suppress
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
from osae.defaults import PRECISIONS, Precision
from osae.experiments.lm.settings import SETTINGS, find_setting
from osae.experiments.methods import ACTIVATION_METHODS, STARTS, WORLD_METHODS
from osae.experiments.options import check_distinct
from osae.experiments.worlds.options import AnyWorldOptions
from osae.launching import count_restarts, is_first
from osae.options import device_option, list_options, option, refuse
from osae.stores import Place, Workplace, open_place

if TYPE_CHECKING:
    from osae.data.source import Live, SourceSpec
    from osae.experiments.lm.settings import Setting
    from osae.interop import Loaded
    from osae.recipes import Recipe, Task
    from osae.training.plateau import Plateau
    from osae.training.run import RunConfig

WORLD_NAMES = tuple(declared.name for declared in list_options(AnyWorldOptions))
WORLD_EPOCHS, WORLD_BATCH = 30.0, 500
DATA_EPOCHS = 1.0
NOTES = """what to train on:
  by default      a synthetic world (options under "world")
  --data DATA     activations on disk, from `osae harvest`
  --live          activations directly from a language model (options under "activations of a language model")
  --setting NAME  the model, layer, data and sizes of a known setting: pythia-70m and gemma-2-2b (as in the
                  paper), smollm2-135m. Given as RECIPE, the name of a setting means osae-paper,
                  live, in that setting. --dataset then selects one of its texts (the first by default).
                  Options override the setting."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LanguageOptions, AnyWorldOptions):
    """What to train, on what, and for how long."""

    recipes: tuple[str, ...] = option(
        "recipes to train (see `osae recipes`)",
        positional=True,
        metavar="RECIPE[,RECIPE]",
        choices=tuple(dict.fromkeys((*ACTIVATION_METHODS, *WORLD_METHODS, *SETTINGS))),
    )
    out: Place = option("new folder for the run", metavar="RUN")
    seeds: tuple[int, ...] = option("training seeds", default=(0,), metavar="0,1,...", least=0)
    data: Place | None = option(f"train on {DATA}", default=None, metavar="DATA")
    live: bool = option("train directly from a language model", default=False)
    setting: str | None = option(
        "predefined language-model setting (see below)", default=None, choices=tuple(SETTINGS)
    )
    units: int | None = option(
        "number of units in the SAE", default=None, shown="taken from the world or the setting", least=1
    )
    k: int | None = option(
        "number of active units per sample",
        default=None,
        shown="taken from the world or the setting",
        least=1,
    )
    epochs: float | None = option(
        "passes over the samples",
        default=None,
        shown=f"{WORLD_EPOCHS:g}; on activations {DATA_EPOCHS:g}",
        metavar="X",
        above=0,
    )
    batch: int | None = option(
        "batch size, in samples", default=None, shown=f"{WORLD_BATCH}; on activations {DATA_BATCH}", least=1
    )
    start: str | None = option(
        "start from principal directions of the data, from noise, from clusters or modes of the data, or "
        "from the consensus of short runs (--set start.runs=4 for four of them)",
        default=None,
        choices=STARTS,
        shown="as in the setting or the recipe",
    )
    from_: str | None = option(
        "start from the weights of this SAE, from any library, with its units and k",
        default=None,
        metavar="SAE",
    )
    set: tuple[str, ...] = option(
        "change a field of the recipe, such as lr.peak=0.003, adam.clip=1.0 (maximum norm of all gradients), "
        'adam.beta2=0.99, adam.eps=1e-6 or \'prefix={"kind":"Uniform"}\'; repeatable',
        default=(),
        metavar="PATH=JSON",
        entries="repeated",
    )
    snapshots: tuple[int, ...] = option(
        "save the SAEs after these numbers of samples (the start, 0, is always saved)",
        default=(),
        metavar="N,...",
        least=0,
    )
    checkpoint_seconds: float = option(
        "minimum time between checkpoints; large checkpoints are written less often; 0 writes one after "
        "every step",
        default=60.0,
        least=0,
    )
    on_nan: str = on_nan_option("stop")
    log: tuple[str, ...] = log_option()
    log_every: int | None = option(
        "number of steps between two log entries", default=None, shown="1/200 of the run", least=1
    )
    stop_on_plateau: float | None = option(
        "stop early if the mean loss over the last log entries is not lower by this fraction (such as 0.001) "
        "than over the entries before them; only after the warm-up of the learning rate and of k",
        default=None,
        metavar="X",
        least=0,
        most=0.99,
    )
    patience: int = option(
        "with --stop-on-plateau: number of log entries to average over", default=10, metavar="N", least=1
    )
    device: str = device_option("train and run the language model", several=True)
    precision: Precision = option(
        "precision of products with the encoder; weights and loss stay in fp32, and devices other than cuda "
        "emulate the rounding",
        default=PRECISIONS[0],
    )
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
        if self.stop_on_plateau is None:
            refuse(self, ("patience",), "has no effect without --stop-on-plateau: add it.")
        if self.data is not None and self.live:
            raise ValueError("--live takes activations from a model and --data from disk: give only one.")
        if self.on_world:
            self._check_world()
        else:
            self._check_activations()
        if self.from_ is not None:
            refuse(self, ("start", "units"), f"has no effect with --from {self.from_}: remove it.")
        units, k = self.shape
        if units is not None and k is not None and k > units:
            raise ValueError(f"--k {k} exceeds the SAE's {units} units: give at most {units}.")

    @property
    def on_world(self) -> bool:
        """Whether the SAEs are trained on a synthetic world rather than on activations."""
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
        """The number of units and of active units, as given or else from the setting or the world."""
        known = SETTINGS[self.known_setting] if self.known_setting else None
        units, k = (known.units, known.k) if known else (None, None)
        if self.on_world:
            units, k = self.world_size("units"), self.world_size("active")
        if self.from_ is not None:
            units, k = None, None
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
        sized = self.known_setting or self.from_ is not None
        if not sized and (self.units is None or self.k is None):
            raise ValueError("--units and --k must be given: they cannot be inferred from activations.")

    def _check_live(self) -> None:
        """Raise `ValueError` if an option needed to take activations directly from a model is missing."""
        given = {
            "--model": self.model is not None,
            "--tokens": self.tokens is not None or self.known_setting is not None,
            "--layer or --module": self.layer is not None or self.module is not None,
            "--text or --dataset": bool(self.text) or self.dataset is not None,
        }
        if missing := [flags for flags, there in given.items() if not there]:
            raise ValueError(f"--live needs {', '.join(missing)}; or give --setting alone.")


def run(options: TrainOptions, line: str) -> int:
    """Create the run and train its SAEs to completion; the first of several processes creates it."""
    work = open_place(options.out)
    if is_first():
        if count_restarts() > 0 and "run.json" in work.names():
            work.pull()
        else:
            _create(options, work)
    try:
        return train_to_end(
            work,
            device=options.device,
            log=options.log,
            dictionary_ranks=options.dictionary_ranks,
        )
    except (ValueError, TypeError, RuntimeError):  # so that the corrected command can be run again
        if is_first():
            from osae.training import run as runs

            runs.forget(work.folder)
            with suppress(OSError):
                work.push()
        raise


def _create(options: TrainOptions, work: Workplace) -> None:
    if "run.json" in work.names():
        raise ValueError(
            f"{options.out} already contains a run: run `osae resume {options.out}` to continue."
        )
    check_new_folder(options.out)
    check_present(options.data, options.from_)
    config = build_config(options)
    from osae.devices import choose_devices
    from osae.training import run as runs

    announce_training(config, work.folder, choose_devices(options.device))
    work.pull()
    runs.create(work.folder, config)
    work.push()


def build_config(options: TrainOptions) -> "RunConfig":
    """Return the run described by the options."""
    source, recipes = plan(options)
    from osae.training.run import RunConfig

    return RunConfig(
        recipes,
        options.seeds,
        source,
        options.snapshots,
        options.checkpoint_seconds,
        options.on_nan,
        options.log_every or 0,
        options.precision,
        _plan_stop(options),
    )


def _plan_stop(options: TrainOptions) -> "Plateau | None":
    from osae.training.plateau import Plateau

    if options.stop_on_plateau is None:
        return None
    return Plateau(options.stop_on_plateau, options.patience)


def plan(options: TrainOptions) -> "tuple[SourceSpec, tuple[Recipe, ...]]":
    """Return the data and the recipes described by the options."""
    origin = _load_start(options) if options.from_ is not None else None
    if origin is not None:
        options = _take_sizes(options, origin)
    source, task = _plan_world(options) if options.on_world else _plan_activations(options)
    from osae.config import alter, from_json  # only once the request is known to be valid
    from osae.recipes import recipe, world_recipe

    if origin is not None and origin.width != task.width:
        raise ValueError(
            f"--from {origin.path} has width {origin.width}, but the data have width {task.width}: give an "
            "SAE of the same width as the data."
        )
    known = _find_setting(options)
    start = options.start or (known.start if known else None)
    changes: dict[str, Any] = {path: from_json(new) for path, new in parse_changes(options.set).items()}
    if options.on_world and options.world_bias:  # recipes for worlds have no bias of their own
        changes = {"sae.decoder_bias": True} | changes
    find = world_recipe if options.on_world else recipe
    made = [find(name, task, start=start) for name in options.recipe_names]
    if origin is not None:
        from osae.recipes import continue_from
        from osae.training.start import describe_start

        made = [continue_from(one, describe_start(origin)) for one in made]
    return source, tuple(alter(one, changes) for one in made)


def _load_start(options: TrainOptions) -> "Loaded":
    """Load the SAE to start from; raise `ValueError` if it cannot be trained further."""
    from osae.interop import load
    from osae.training.start import describe_start

    assert options.from_ is not None
    loaded = load(options.from_)
    describe_start(loaded)
    return loaded


def _take_sizes(options: TrainOptions, origin: "Loaded") -> TrainOptions:
    """Return the options with the sizes taken from the SAE to start from."""
    from osae.sparsify import find_k

    sparsifier = origin.require_sae().config.sparsifier
    k = options.k or find_k(sparsifier)
    if k is None:
        raise ValueError(
            f"--from {origin.path} has {sparsifier}, which sets no number of active units: give --k."
        )
    return replace(options, from_=None, start=None, units=origin.units, k=k)


def _find_setting(options: TrainOptions) -> "Setting | None":
    return find_setting(options.known_setting) if options.known_setting else None


def _plan_world(options: TrainOptions) -> "tuple[SourceSpec, Task]":
    """Return the synthetic world described by the options, and the task to fit to it."""
    from osae.recipes import Task

    world, batch = options.any_world(), options.batch or WORLD_BATCH
    if batch > world.samples:
        raise ValueError(f"--batch {batch} exceeds the world's {world.samples} samples: give a smaller one.")
    samples = int((options.epochs or WORLD_EPOCHS) * world.samples)
    units, k = options.units or world.units, options.k or max(1, round(world.active))
    return world, Task(world.width, units, k, samples, batch=batch)


def _plan_activations(options: TrainOptions) -> "tuple[SourceSpec, Task]":
    """Return the activations described by the options, and the task to fit to them."""
    known = _find_setting(options)
    source, width, tokens = _on_disk(options, known) if options.data else _live(options, known)
    from osae.recipes import Task

    base = known.task() if known else Task(width, options.units or 0, options.k or 0, tokens)
    chosen = replace(base, width=width, samples=tokens, batch=options.batch or DATA_BATCH)
    return source, replace(chosen, units=options.units or base.units, k=options.k or base.k)


def _on_disk(options: TrainOptions, known: "Setting | None") -> "tuple[SourceSpec, int, int]":
    """Return the activations on disk, their width, and how many of them to train on."""
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
    path = options.data.absolute() if isinstance(options.data, Path) else options.data
    return OnDisk(str(path), shards.provenance()["sha256"]), shards.width, tokens


def _live(options: TrainOptions, known: "Setting | None") -> "tuple[Live, int, int]":
    """Return the activations taken directly from a model, their width, and how many of them to train on."""
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
    from osae.data.harvest import BATCH_TOKENS, pin
    from osae.data.source import Live, digest_text

    spec = pin(spec)  # a resumed run must not get a newer model or text
    live = Live(spec, options.batch_tokens or BATCH_TOKENS, digest_text(spec.text))
    return live, width, spec.tokens


def _measure_width(spec: Any, devices: str) -> int:
    """Return the width of the activations that the model will yield."""
    import torch

    from osae.data.harvest import open_model
    from osae.devices import split_devices

    return open_model(spec, split_devices(devices)[0]).activations(torch.zeros(1, 1).long()).shape[-1]


COMMAND = Command(
    "train",
    "Train SAEs on activations or on a synthetic world, and save them in a run folder.",
    TrainOptions,
    run,
    examples=(
        "osae train osae,topk --seeds 0,1,2 --out runs/mine --world-width 64 --world-units 128",
        "osae train osae --data acts --units 4096 --k 80 --tokens 5e7 --seeds 0,1,2 --out runs/lm",
        "osae train pythia-70m --out runs/pythia",
        "osae train topk --from hf:user/repo/sae --data acts --set lr.peak=0.001 --out runs/tuned",
        "torchrun --nproc-per-node 8 -m osae train osae --data acts --units 65536 --k 80 --out runs/large",
        "osae train osae --out runs/mine --print-config > run.yaml; osae train --config run.yaml --seeds 1",
    ),
    notes=NOTES,
)
