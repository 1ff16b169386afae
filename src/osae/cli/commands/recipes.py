"""`osae recipes`: the methods that can be trained."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from osae.cli.command import Command
from osae.cli.commands.train import DATA_BATCH, WORLD_BATCH, WORLD_EPOCHS
from osae.experiments.lm.settings import DEFAULT, SETTINGS
from osae.experiments.methods import ACTIVATION_METHODS, WORLD_METHODS
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class RecipesOptions(Options):
    """Which recipe to print, and for which data."""

    name: str | None = option(
        f"print this recipe or setting in full as JSON; recipes are printed with the sizes of {DEFAULT}",
        default=None,
        positional=True,
        metavar="RECIPE",
        choices=tuple(dict.fromkeys((*ACTIVATION_METHODS, *WORLD_METHODS, *SETTINGS))),
        shown="list all recipes",
    )
    worlds: bool = option("print the recipe for synthetic worlds, with the sizes of table 1", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worlds and (self.name is None or self.name in SETTINGS):
            raise ValueError("--worlds requires a RECIPE.")
        if not self.worlds and self.name is not None and self.name not in (*ACTIVATION_METHODS, *SETTINGS):
            raise ValueError(f"{self.name} is a recipe for synthetic worlds: add --worlds.")


def run(options: RecipesOptions, line: str) -> int:
    """List the recipes, or print one."""
    if options.name is None:
        _print_list()
    else:
        print(json.dumps(_describe(options.name, worlds=options.worlds), indent=2))
    return 0


def _describe(name: str, *, worlds: bool) -> Any:
    """Return a recipe, or the recipe and the data of a setting, as JSON."""
    from osae.config import to_json
    from osae.data.worlds import SparseWorld
    from osae.recipes import Task, recipe, world_recipe

    if name in SETTINGS:
        known = SETTINGS[name]
        made = recipe("osae-paper", known.task(), start=known.start)
        return {"recipe": to_json(made), "source": to_json(known.harvest(next(iter(known.texts))))}
    if worlds:
        world = SparseWorld()
        size = Task(world.width, world.units, world.active, int(WORLD_EPOCHS * world.samples), WORLD_BATCH)
        return to_json(world_recipe(name, size))
    return to_json(recipe(name, replace(SETTINGS[DEFAULT].task(), batch=DATA_BATCH)))


def _print_list() -> None:
    from osae.recipes import RECIPES, WORLD_RECIPES

    settings = {
        name: f"{known.model}, layer {known.layer}: {', '.join(known.texts)}."
        for name, known in SETTINGS.items()
    }
    lists = {
        "on activations": _summarise(RECIPES),
        "on synthetic worlds": _summarise(WORLD_RECIPES),
        "settings (osae-paper, live)": settings,
    }
    width = max(len(name) for listed in lists.values() for name in listed)
    blocks = (
        "\n".join([f"{title}:", *(f"  {name:{width}s}  {text}" for name, text in listed.items())])
        for title, listed in lists.items()
    )
    print("\n\n".join(blocks))


def _summarise(recipes: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """Return the first line of each recipe's description."""
    return {name: (function.__doc__ or "").splitlines()[0] for name, function in recipes.items()}


COMMAND = Command(
    "recipes",
    "List the recipes, or print one in full.",
    RecipesOptions,
    run,
    examples=("osae recipes", "osae recipes osae --worlds", "osae recipes pythia-70m"),
)
