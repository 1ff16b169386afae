"""The plan of the experiment: every choice, made by the options or by the setting."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from osae.config import alter
from osae.data.shards import Shards
from osae.data.source import OnDisk
from osae.devices import choose_device
from osae.experiments.jobs import Job
from osae.experiments.lm.activations import TextShards
from osae.experiments.lm.options import RATES, ActivationOptions, LMOptions
from osae.experiments.lm.settings import GROUPS, LARGE_BATCH
from osae.experiments.methods import DATA, LM_METHODS, NOISE, OSAE, OSAE_FROM_NOISE
from osae.experiments.options import QUICK_SEEDS
from osae.experiments.places import Local, Ray, Slurm
from osae.metrics import default_prefixes
from osae.recipes import Recipe, Task, recipe
from osae.results.lm import Place

MOMENTS = (0.0, 1 / 16, 1 / 4, 1 / 2, 3 / 4, 7 / 8)  # shares of training at which snapshots are saved
Rates = Mapping[str, Mapping[str, float]]  # learning rates, by start and method
FROM_NOISE = {OSAE: OSAE_FROM_NOISE}  # methods with a separate recipe for a start from noise


@dataclass(frozen=True)
class Sizes:
    """The default sizes of a run."""

    units: int
    k: int
    tokens: int
    seeds: int
    rows: int
    stitch: int


QUICK_BATCH = 512
QUICK = Sizes(units=256, k=16, tokens=131_072, seeds=QUICK_SEEDS, rows=49_152, stitch=2)


@dataclass(frozen=True)
class Plan:
    """Everything that determines the experiment."""

    out: Path
    units: int
    k: int
    tokens: int
    texts: Mapping[str, TextShards] = field(default_factory=dict)
    seeds: int = 3
    methods: tuple[str, ...] = LM_METHODS
    starts: tuple[str, ...] = (DATA,)
    first_text_only: tuple[str, ...] = ()  # starts that are tried on the first text only
    batch: int = LARGE_BATCH
    groups: int = GROUPS
    rates: tuple[float, ...] = RATES
    tuning_tokens: int = 500_000
    stitch: int = 2  # the larger SAE has this many times the units; 0 for no stitching
    stitch_units: int | None = None  # of the smaller SAE, if different from `units`
    stitch_seeds: int = 1  # pairs of a smaller and a larger SAE
    workers: int = 2
    elsewhere: Ray | Slurm | None = None  # where training runs take place, if not on this machine
    device: str = "cpu"

    def __post_init__(self) -> None:
        shards = [path for text in self.texts.values() for path in (text.train, text.held_out)]
        widths = sorted({Shards(path).width for path in shards})
        if len(widths) > 1:
            listed = ", ".join(map(str, widths))
            raise ValueError(f"activations of widths {listed}: take all from one model.")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The prefix lengths at which agreement is measured."""
        return default_prefixes(self.units)

    @property
    def first_text(self) -> str:
        """The name of the first text."""
        return next(iter(self.texts))

    def places(self) -> list[Place]:
        """Return where SAEs are trained, start by start."""
        return [
            Place(text, start)
            for start in self.starts
            for text in list(self.texts)[: 1 if start in self.first_text_only else None]
        ]

    def task(self, *, units: int | None = None, tokens: int | None = None) -> Task:
        """Return the task of the recipes."""
        width = Shards(self.texts[self.first_text].train).width
        size, samples = units or self.units, tokens or self.tokens
        return Task(width, size, self.k, samples, batch=self.batch, groups=self.groups)

    def recipe(self, method: str, start: str, rate: float, task: Task) -> Recipe:
        """Return the recipe of a method for a kind of start and a learning rate."""
        name = FROM_NOISE.get(method, method) if start == NOISE else method
        return replace(alter(recipe(name, task, start=start), {"lr.peak": rate}), name=method)

    @property
    def where(self) -> "Local | Ray | Slurm":
        """Return where training runs take place."""
        return self.elsewhere or Local(self.workers)

    def source(self, text: str, seed: int | None = None) -> OnDisk:
        """Return the activations of a text that a seed trains on."""
        path = self.texts[text].training_rows(seed)
        return OnDisk(str(path), Shards(path).provenance()["sha256"])

    def jobs(self, place: Place, rates: Rates) -> Iterator[Job]:
        """Yield the SAEs to train at a place."""
        moments = [int(share * self.tokens) // self.batch * self.batch for share in MOMENTS]
        snapshots = tuple(dict.fromkeys(moments))  # a short training run has fewer
        task = self.task()
        sources = [self.source(place.text, seed) for seed in range(self.seeds)]
        for seed, method in itertools.product(range(self.seeds), self.methods):
            made = self.recipe(method, place.start, rates[place.start][method], task)
            yield Job(made, seed, sources[seed], snapshots, self.device)


def default_sizes(options: ActivationOptions) -> Sizes:
    """Return the sizes of a quick run, or of the setting."""
    known = options.known()
    if options.quick:
        return QUICK
    return Sizes(known.units, known.k, known.tokens, known.seeds, known.tokens, known.stitch)


def make_plan(options: LMOptions) -> Plan:
    """Return the plan that the options describe, without its texts.

    Everything else is checked first, because harvesting activations may take hours.
    """
    known, sizes = options.known(), default_sizes(options)
    return replace(
        plan_sizes(options),
        starts=options.starts or known.starts,
        first_text_only=options.first_text_only,
        rates=options.rates or (RATES[:1] if options.quick else RATES),
        stitch=sizes.stitch if options.stitch is None else options.stitch,
        stitch_units=options.stitch_units,
        stitch_seeds=options.stitch_seeds,
    )


def plan_sizes(options: ActivationOptions) -> Plan:
    """Return a plan with the options shared by all experiments on activations."""
    known, sizes, device = options.known(), default_sizes(options), choose_device(options.device)
    return Plan(
        options.out,
        units=options.units or sizes.units,
        k=options.k or sizes.k,
        tokens=options.tokens or sizes.tokens,
        seeds=options.seeds or sizes.seeds,
        methods=options.methods,
        batch=QUICK_BATCH if options.quick else known.batch,
        groups=known.groups,
        workers=options.workers if device == "cpu" else options.jobs or 1,
        elsewhere=None if isinstance(options.place, Local) else options.place,
        device=device,
    )


def count_text_rows(options: ActivationOptions) -> int:
    """Return how many activations to take from each text: no more than training uses."""
    sizes = default_sizes(options)
    return min(options.rows or sizes.rows, options.tokens or sizes.tokens)
