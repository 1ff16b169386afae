"""What the theory requires of atoms, checked for every world that the experiments use."""

from collections.abc import Mapping
from dataclasses import replace

from osae import metrics
from osae.data.worlds import ForestWorld, PCAWorld, SparseWorld, World
from osae.experiments.worlds import hard, trust
from osae.experiments.worlds.energy import STRENGTHS
from osae.experiments.worlds.energy import UNITS as ENERGY_UNITS
from osae.experiments.worlds.sizes import SIZES
from osae.experiments.worlds.theorem import TINY_WORLDS
from osae.experiments.worlds.theory_claims import Atoms
from osae.results.experiment import MethodRow

LEMMA_WORLD = SparseWorld(width=12, units=14, active=2, zipf=1.0, samples=500)

# The atoms of a world depend only on its width, units and seed: all exponents of `zipf` share them, and so do
# the flat hard world and that with trees.
WORLDS: Mapping[str, World] = {
    "toy, ablate, budgets, schedules, tuning": SparseWorld(),
    **{f"sizes, {units} atoms": SparseWorld(units=units, active=active) for units, active in SIZES},
    "zipf, every exponent": SparseWorld(width=16, units=32, active=3, samples=50_000),
    "pca": PCAWorld(),
    "energy": SparseWorld(40, ENERGY_UNITS, 2, zipf=1.0, samples=50_000, strengths=STRENGTHS),
    "trust": replace(trust.TABLE, seed=1),
    "trust-trees": replace(trust.FOREST, seed=2),
    "hard, flat and tree": hard.WORLDS["tree"],
    "hard, mixed": hard.WORLDS["mixed"],
    "lemma": LEMMA_WORLD,
    "lemma, tiny": next(tiny for tiny in TINY_WORLDS if tiny.case.kind is Atoms.COHERENT).world(seed=0),
}


def world_identifiability(world: World) -> metrics.Identifiability:
    """Return how coherent a world's atoms are, next to what unique codes require.

    The codes of `PCAWorld` are not sparse: all of its units are active. Those of `ForestWorld` differ in the
    number of their active units, which is `active` on average.
    """
    active = world.active if isinstance(world, SparseWorld | ForestWorld) else world.units
    return metrics.identifiability(world.dictionary(), round(active))


def identifiability_row(name: str, world: World) -> MethodRow:
    """Return a line of the table of worlds."""
    found = world_identifiability(world)._asdict()
    return MethodRow(name, measures={"active_atoms": found.pop("active"), **found})
