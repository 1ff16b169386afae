"""Options of the experiments on worlds. Nothing here needs torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from osae.defaults import BATCH
from osae.experiments.methods import (
    ACTIVATION_METHODS,
    HARD_METHODS,
    NOISE,
    STARTS,
    TABLE_METHODS,
    WORLD_METHODS,
)
from osae.experiments.options import (
    FEW_SEEDS,
    QUICK_SEEDS,
    ExperimentOptions,
    SeedOptions,
    check_distinct,
    seeds_option,
)
from osae.options import Options, list_options, option, refuse

if TYPE_CHECKING:
    from osae.data.worlds import ForestWorld, SparseWorld

WORLD_FIELDS: dict[str, tuple[str, float | None]] = {  # help text, least value
    "width": ("number of dimensions of the world's data, d", 1),
    "units": ("number of true atoms, K", 1),
    "active": ("number of atoms active in a sample, m", 1),
    "zipf": ("exponent alpha: atom j occurs with probability proportional to j^-alpha", 0),
    "samples": ("number of training samples, N", 1),
    "seed": ("seed of the dictionary and of the samples", None),
}
QUICK_TRUST_SEEDS = 4
TRUST_WORLDS = ("table", "trees")
QUICK_HARD_BATCH = 500
BUDGETS, QUICK_BUDGETS = (1, 3, 10, 25), (1, 3)
EXPONENTS, QUICK_EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 1.0)


TABLE_1: dict[str, float] = {
    "width": 80,
    "units": 100,
    "active": 5,
    "zipf": 1.2,
    "samples": 100_000,
    "seed": 0,
}
"""The defaults of `osae.data.worlds.SparseWorld`, which needs torch; a test compares the two."""

HARD_WORLDS = ("flat", "tree", "mixed")  # of `osae.experiments.worlds.hard`; a test compares the two
SPARSE, FOREST = "sparse", "forest"
FOREST_FIELDS: dict[str, tuple[str, float]] = {  # help text and default of fields that only a forest has
    "roots": ("number of trees; 0 for no trees", 0),
    "branching": ("number of children of an atom in a tree", 4),
    "depth": ("number of levels of a tree below its root", 2),
    "exclusive": ("share of the parents whose children never fire together", 0.5),
    "spread": ("standard deviation of an atom's values around 1", 0.5),
    "correlation": ("correlation of the firing of atoms with the same topic", 0.0),
    "topics": ("number of topics", 8),
    "bias": ("length of a vector added to every sample", 0.0),
    "noise": ("standard deviation of the noise in every coordinate", 0.0),
    "part": ("number of the draw; different parts are independent samples", 0),
}
FOREST_SIZES: dict[str, float] = {"width": 64, "units": 256, "active": 4, "zipf": 0.7, "samples": 300_000}
"""With `FOREST_FIELDS`, the defaults of `osae.data.worlds.ForestWorld`; a test compares the two."""


def world_option(field: str, shown: float | None = None) -> Any:
    """Declare an option for a field of the world; `shown` is its default if it differs from table 1."""
    help, least = WORLD_FIELDS[field]
    value = TABLE_1[field] if shown is None else shown
    return option(help, default=None, least=least, group="world", shown=f"{value:.12g}")


def forest_option(field: str, *, most: float | None = None, below: float | None = None) -> Any:
    """Declare an option for a field that only a forest has."""
    help, value = FOREST_FIELDS[field]
    return option(help, default=None, least=0, most=most, below=below, group="forest", shown=f"{value:g}")


@dataclass(frozen=True, kw_only=True)
class WorldChoices(Options):
    """Options that change fields of a world; each experiment declares those that it uses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.world_size("active") > self.world_size("units"):
            raise ValueError(
                f"--world-active {self.world_size('active'):g} exceeds the world's "
                f"{self.world_size('units'):g} atoms: give at most that many, or more --world-units."
            )

    def world_size(self, field: str) -> int:
        """Return a size of the world, as given or by default.

        If there is no such option, the size is that of table 1.
        """
        shown = {declared.name: declared.default_text for declared in list_options(type(self))}
        default = int(shown.get(f"world_{field}", TABLE_1[field]))
        return getattr(self, f"world_{field}", None) or default

    def world_changes(self) -> dict[str, Any]:
        """Return the fields of the world that were set, by name."""
        given = {field: getattr(self, f"world_{field}", None) for field in WORLD_FIELDS}
        return {field: value for field, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class WorldOptions(WorldChoices):
    """The Gaussian world of table 1, and its options."""

    world_width: int | None = world_option("width")
    world_units: int | None = world_option("units")
    world_active: int | None = world_option("active")
    world_zipf: float | None = world_option("zipf")
    world_samples: int | None = world_option("samples")
    world_seed: int | None = world_option("seed")

    def world(self) -> "SparseWorld":
        """Return the world that the options describe."""
        from osae.data.worlds import SparseWorld

        return SparseWorld(**self.world_changes())


@dataclass(frozen=True, kw_only=True)
class AnyWorldOptions(WorldOptions):
    """The Gaussian world of table 1 or a forest, and its options."""

    world_kind: str = option(
        "sparse (table 1), or forest, whose atoms fire independently at individual rates or in trees (by "
        "default 64 dimensions, 256 atoms, 4 active, alpha 0.7, 300000 samples)",
        default=SPARSE,
        choices=(SPARSE, FOREST),
        group="world",
    )
    world_roots: int | None = forest_option("roots")
    world_branching: int | None = forest_option("branching")
    world_depth: int | None = forest_option("depth")
    world_exclusive: float | None = forest_option("exclusive", most=1)
    world_spread: float | None = forest_option("spread")
    world_correlation: float | None = forest_option("correlation", below=1)
    world_topics: int | None = forest_option("topics")
    world_bias: float | None = forest_option("bias")
    world_noise: float | None = forest_option("noise")
    world_part: int | None = forest_option("part")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.world_kind != FOREST:
            names = [f"world_{field}" for field in FOREST_FIELDS]
            refuse(self, names, f"applies to forests only: add --world-kind {FOREST}.")

    def world_size(self, field: str) -> int:
        """Return a size of the world, as given or by default."""
        if self.world_kind != FOREST:
            return super().world_size(field)
        return getattr(self, f"world_{field}") or int(FOREST_SIZES[field])

    def any_world(self) -> "SparseWorld | ForestWorld":
        """Return the world that the options describe, of either kind."""
        if self.world_kind != FOREST:
            return self.world()
        from osae.data.worlds import ForestWorld

        given = {field: getattr(self, f"world_{field}") for field in FOREST_FIELDS}
        changes = {field: value for field, value in given.items() if value is not None}
        return ForestWorld(**self.world_changes(), **changes)


@dataclass(frozen=True, kw_only=True)
class MethodOptions(Options):
    """Which recipes an experiment trains."""

    methods: tuple[str, ...] = option("recipes to train", default=TABLE_METHODS, choices=WORLD_METHODS)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--methods", self.methods)


@dataclass(frozen=True, kw_only=True)
class ToyOptions(MethodOptions, WorldOptions, SeedOptions):
    """The options of table 1."""

    SEEDS: ClassVar[int] = 10

    seeds: int | None = seeds_option(f"10, with --quick {QUICK_SEEDS}")


@dataclass(frozen=True, kw_only=True)
class SizesOptions(MethodOptions, WorldChoices, SeedOptions):
    """The options of table 1 with smaller dictionaries, whose numbers of atoms are fixed."""

    world_width: int | None = world_option("width")
    world_zipf: float | None = world_option("zipf")
    world_samples: int | None = world_option("samples")
    world_seed: int | None = world_option("seed")


@dataclass(frozen=True, kw_only=True)
class ZipfOptions(WorldChoices, SeedOptions):
    """The options of the sweep over Zipf exponents, which has its own methods."""

    exponents: tuple[float, ...] | None = option(
        "Zipf exponents of the worlds",
        default=None,
        least=0,
        shown=",".join(f"{x:g}" for x in EXPONENTS) + "; with --quick 0,1",
    )
    world_width: int | None = world_option("width", 16)
    world_units: int | None = world_option("units", 32)
    world_active: int | None = world_option("active", 3)
    world_samples: int | None = world_option("samples", 50_000)
    world_seed: int | None = world_option("seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--exponents", self.exponents or ())

    @property
    def exponent_list(self) -> tuple[float, ...]:
        """The exponents of the sweep."""
        return self.exponents or (QUICK_EXPONENTS if self.quick else EXPONENTS)


@dataclass(frozen=True, kw_only=True)
class PCAOptions(WorldChoices, SeedOptions):
    """The options of the PCA world, whose atoms are principal directions."""

    world_width: int | None = world_option("width", 20)
    world_units: int | None = world_option("units", 8)
    world_samples: int | None = world_option("samples", 20_000)
    world_seed: int | None = world_option("seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (units := self.world_size("units")) > (width := self.world_size("width")):
            raise ValueError(
                f"--world-units {units} exceeds the {width} principal directions of --world-width {width}: "
                f"give at most {width}."
            )


@dataclass(frozen=True, kw_only=True)
class EnergyOptions(WorldChoices, SeedOptions):
    """The options of the world in which frequency and energy disagree."""

    world_width: int | None = world_option("width", 40)
    world_samples: int | None = world_option("samples", 50_000)
    world_seed: int | None = world_option("seed")


@dataclass(frozen=True, kw_only=True)
class LemmaOptions(SeedOptions):
    """The options of the exact minimisers on small worlds, where nothing is trained."""

    seeds: int | None = option(
        "number of worlds of each kind",
        default=None,
        least=1,
        shown=f"{FEW_SEEDS}, with --quick {QUICK_SEEDS}",
    )
    jobs: int | None = option(
        "number of worlds to process in parallel", default=None, least=1, shown="one per core"
    )


@dataclass(frozen=True, kw_only=True)
class VariantOptions(WorldOptions, SeedOptions):
    """The options of experiments that train variants of one recipe."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(WorldOptions, SeedOptions):
    """The options of table 1 after training runs of several lengths."""

    SEEDS: ClassVar[int] = 10

    seeds: int | None = seeds_option(f"10, with --quick {QUICK_SEEDS}")
    budgets: tuple[int, ...] | None = option(
        "lengths of the training runs, in passes over the samples",
        default=None,
        least=1,
        shown="1,3,10,25; with --quick 1,3",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--budgets", self.budgets or ())

    @property
    def budget_list(self) -> tuple[int, ...]:
        """The lengths of the training runs, in epochs."""
        return self.budgets or (QUICK_BUDGETS if self.quick else BUDGETS)


@dataclass(frozen=True, kw_only=True)
class HardOptions(SeedOptions):
    """The options of the hard worlds, whose runs share only the recipe."""

    methods: tuple[str, ...] = option(
        "recipes (for activations) to train", default=HARD_METHODS, choices=ACTIVATION_METHODS
    )
    forests: tuple[str, ...] = option("worlds to train on", default=HARD_WORLDS, choices=HARD_WORLDS)
    batch: int | None = option(
        "batch size, in samples",
        default=None,
        least=1,
        shown=f"{BATCH}, with --quick {QUICK_HARD_BATCH}",
    )
    start: str = option(
        "start from principal directions of the data, from noise, or from clusters or modes of the data",
        default=NOISE,
        choices=STARTS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--methods", self.methods)
        check_distinct("--forests", self.forests)

    @property
    def rows_per_step(self) -> int:
        """The number of samples in a step."""
        return self.batch or (QUICK_HARD_BATCH if self.quick else BATCH)


@dataclass(frozen=True, kw_only=True)
class TrustTestOptions(SeedOptions):
    """The options of the test of scores: worlds with short training, or activations.

    With --data, each run sees its own documents. Each run in turn is used to check the others' predictions.
    """

    SEEDS: ClassVar[int] = 6

    seeds: int | None = seeds_option(f"6, with --quick {QUICK_TRUST_SEEDS}", least=4)
    methods: tuple[str, ...] = option("recipes to train", default=("topk", "osae"), choices=WORLD_METHODS)
    data: Path | None = option(
        "activations: a folder from `osae harvest`, or a file of rows",
        default=None,
        metavar="DATA",
        shown="two synthetic worlds",
    )
    units: int | None = option("number of units of an SAE on --data", default=None, least=1, shown="512")
    k: int | None = option("number of active units of an SAE on --data", default=None, least=1, shown="24")
    tokens: int | None = option(
        "number of rows of --data to train each run on, counting repetitions",
        default=None,
        least=1,
        shown="one pass over its part",
    )
    world_kinds: tuple[str, ...] = option(
        "synthetic worlds: table 1's, and trees of correlated atoms",
        default=TRUST_WORLDS,
        choices=TRUST_WORLDS,
    )
    world_seed: int | None = option(
        "seed of the dictionaries and samples of the worlds", default=None, least=0, shown="0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct("--methods", self.methods)
        check_distinct("--world-kinds", self.world_kinds)
        if self.data is None:
            refuse(self, ("units", "k", "tokens"), "applies to activations only: add --data.")
        else:
            refuse(self, ("world_kinds", "world_seed"), "applies to synthetic worlds only: remove it.")

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The training seeds."""
        return tuple(range(self.seeds or (QUICK_TRUST_SEEDS if self.quick else self.SEEDS)))


@dataclass(frozen=True, kw_only=True)
class TuningOptions(MethodOptions, WorldOptions, ExperimentOptions):
    """The options of the trials, which all use one seed."""
