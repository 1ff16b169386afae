"""Announce what a command will need before it starts, and raise an error if it cannot fit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli.terminal import say
from osae.forecast import (
    Dictionary,
    Forecast,
    check,
    forecast_comparison,
    forecast_contexts,
    forecast_evaluation,
    forecast_ordering,
    forecast_pruning,
    forecast_stitching,
    forecast_trust,
)
from osae.stores import Place, open_place

if TYPE_CHECKING:
    from osae.interop import Loaded
    from osae.training.run import RunConfig

NOTICED, NOTICED_SECONDS = 10**8, 60  # bytes and seconds above which a command announces what it needs
FEWER = "give fewer or smaller SAEs at a time, or use a machine with more memory."


def announce(command: str, forecast: Forecast, remedy: str, folder: Place | None = None) -> None:
    """Say what the command needs, if it is much; raise `ValueError` with the remedy if there is less."""
    check(forecast, remedy, None if folder is None else open_place(folder).folder)
    say_needs(command, forecast)


def say_needs(command: str, forecast: Forecast) -> None:
    """Say what the command needs, if it is much."""
    if max(forecast.memory, forecast.disk) >= NOTICED or (forecast.seconds or 0) >= NOTICED_SECONDS:
        say(f"osae {command}: {forecast}")


def announce_training(config: "RunConfig", folder: Path, device: str) -> None:
    """Print what a training run needs; memory is checked on the CPU only."""
    from osae.training.sizes import forecast_seconds, measure_training

    size = measure_training(config.recipes, config.seeds, config.source, len(config.snapshots))
    remedy = "train fewer recipes or seeds at a time, or give a smaller --batch or fewer --units."
    if device == "cpu":
        steps = config.recipes[0].steps
        announce("train", size.forecast(forecast_seconds(size, steps)), remedy, folder)
    else:
        check(Forecast(0, size.forecast().disk), remedy, folder)


def announce_comparison(saes: Sequence["Loaded"], data: Place | None, *, chance: bool) -> None:
    """Print what comparing these SAEs needs."""
    if len(saes) > 1:
        rows = 0 if data is None else _count_rows(data)
        announce("compare", forecast_comparison(_measure(saes), rows=rows, chance=chance), FEWER)


def announce_evaluation(saes: Sequence["Loaded"]) -> None:
    """Print what evaluating these SAEs needs, without the language model."""
    announce("evaluate", forecast_evaluation(_measure(saes)), FEWER)


def announce_ordering(sae: "Loaded", data: Place, by: str, folder: Place) -> None:
    """Print what ordering the units of this SAE needs."""
    rows, (size,) = _count_rows(data), _measure([sae])
    remedy = "order by energy or frequency, or use a machine with more memory."
    announce("order", forecast_ordering(size, rows, gain=by == "gain"), remedy, folder)


def announce_stitching(small: "Loaded", large: "Loaded") -> None:
    """Print what stitching these SAEs needs."""
    announce("stitch", forecast_stitching(*_measure([small, large])), FEWER)


def announce_contexts(
    saes: Sequence["Loaded"], data: Place, *, kept: int, window: int, folder: Place
) -> None:
    """Say what collecting contexts needs, without the language model: `kept` per unit, of `window` tokens."""
    from osae.data.shards import Shards

    shard = max(shard.rows for shard in Shards(data).shards)
    remedy = (
        "keep fewer or shorter contexts (--top, --random, --before, --after), or give fewer SAEs at a time."
    )
    announce(
        "contexts", forecast_contexts(_measure(saes), shard=shard, kept=kept, window=window), remedy, folder
    )


def announce_pruning(sae: "Loaded", others: Sequence["Loaded"], data: Place, folder: Place) -> None:
    """Say what pruning this SAE needs, without the language model."""
    (size,), rows = _measure([sae]), _count_rows(data)
    announce("prune", forecast_pruning(size, _measure(others), rows), FEWER, folder)


def announce_trust(sae: "Loaded", data: Place, *, twins: int, samples: int | None, folder: Place) -> None:
    """Say what training and comparing twins of this SAE needs; memory is that of the CPU."""
    from osae.data.shards import Shards
    from osae.data.source import OnDisk
    from osae.studies.subjects import check_runnable
    from osae.studies.trust import choose_recipe
    from osae.training.sizes import forecast_seconds, measure_training

    rows = Shards(data)
    recipe, _ = choose_recipe(sae, check_runnable(sae, rows), rows, samples)
    size = measure_training([recipe], [0], OnDisk(str(data)))
    size = replace(size, block=min(size.block, -(-rows.rows // (twins + 1))))
    (own,), seconds = _measure([sae]), forecast_seconds(size, recipe.steps)
    needs = forecast_trust(size, own, rows.rows, twins=twins, seconds=seconds)
    announce("trust", needs, "give fewer rows of data, or use a machine with more memory.", folder)


def _count_rows(data: Place) -> int:
    from osae.data.shards import Shards

    return Shards(data).rows


def _measure(saes: Sequence["Loaded"]) -> list[Dictionary]:
    return [Dictionary(sae.units, sae.decoder.shape[1], _find_k(sae.sae)) for sae in saes]


def _find_k(sae: Any) -> int | None:
    """Return how many units fire per row, if the SAE is a TopK."""
    from osae.sparsify import TopK

    sparsifier = None if sae is None else sae.config.sparsifier
    return sparsifier.k if isinstance(sparsifier, TopK) else None
