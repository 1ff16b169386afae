"""The nested loss on a linear code: each unit against the principal direction with the same index."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from osae import metrics
from osae.config import to_json
from osae.data.worlds import PCAWorld
from osae.experiments.chance import chance_levels
from osae.experiments.claims import add_claims
from osae.experiments.methods import ORDERED, PLAIN
from osae.experiments.worlds.figures import draw_principal
from osae.experiments.worlds.measuring import EVALUATION_ROWS, list_decoders
from osae.experiments.worlds.options import PCAOptions
from osae.experiments.worlds.training import Group, train_saes
from osae.metrics.statistics import runs_interval
from osae.model import SAE, SAEConfig
from osae.prefix import Full, Uniform
from osae.progress import Progress
from osae.recipes import Recipe
from osae.results.experiment import ExperimentResult, MethodRow
from osae.schedule import LearningRate
from osae.sparsify import Linear

EPOCHS = 30
CHANCE_DRAWS = 1000


def run(options: PCAOptions, progress: Progress) -> ExperimentResult:
    """Return a row with the nested loss and one without it."""
    world = replace(PCAWorld(), **options.world_changes())
    recipes = [pca_recipe(world, ORDERED, Uniform()), pca_recipe(world, PLAIN, Full())]
    groups = train_saes(world, recipes, options, progress)
    result = ExperimentResult(
        experiment="pca",
        title="The PCA world: |cosine| of each unit with the principal direction of its place",
        world=to_json(world),
        seeds=options.seed_list,
        chance=chance_levels(list_decoders(groups), absolute=True) | _unrelated_cosines(world),
        columns=("least_cosine", "cosine_in_place", "mse", "least_possible_mse"),
        rows=tuple(_measure_row(group, world) for group in groups),
        figures=(draw_principal(groups, world.dictionary(), options.out),),
        notes=(
            f"`{PLAIN}` can only find the span of the leading directions; `{ORDERED}` finds each, in order.",
        ),
    )
    return add_claims(result, conclusive=options.conclusive)


def pca_recipe(world: PCAWorld, name: str, prefix: Uniform | Full) -> Recipe:
    """Return a linear autoencoder trained with a prefix distribution."""
    sae = SAEConfig(world.width, world.units, Linear(), encoder_bias=False, decoder_bias=False)
    rate = LearningRate(2e-2, decay=0.8)
    return Recipe(name, sae, samples=EPOCHS * world.samples, batch=500, lr=rate, prefix=prefix)


def _unrelated_cosines(world: PCAWorld) -> dict[str, float]:
    """Return the mean, over random directions, of what `_measure_row` measures in place."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(CHANCE_DRAWS, world.units, world.width, generator=generator)
    cosines = torch.nn.functional.normalize(directions, dim=-1)[..., 0].abs()  # with any fixed direction
    return {"least_cosine": float(cosines.amin(1).mean()), "cosine_in_place": float(cosines.mean())}


@torch.no_grad()
def _measure_row(group: Group, world: PCAWorld) -> MethodRow:
    """Return how far the units are from the principal directions with the same indices."""
    directions, x = world.dictionary(), world.draw("test", EVALUATION_ROWS).x
    saes: Iterable[SAE] = group.saes.values()
    in_place = [(sae.decoder * directions).sum(-1).abs() for sae in saes]
    best = metrics.mse(x, x @ directions.T @ directions)
    numbers = {
        "least_cosine": [float(cosines.min()) for cosines in in_place],
        "cosine_in_place": [float(cosines.mean()) for cosines in in_place],
        "mse": [metrics.mse(x, sae(x).reconstruction) for sae in saes],
        "least_possible_mse": [best] * len(group.saes),
    }
    measures = {
        key: runs_interval(dict(zip(group.saes, values, strict=True))) for key, values in numbers.items()
    }
    return MethodRow(group.method, recipe=to_json(group.recipe), measures=measures)
