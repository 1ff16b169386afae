"""What a command will need, said in one line before it starts; what cannot fit is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli.terminal import say
from osae.forecast import (
    Dictionary,
    Forecast,
    check,
    forecast_comparison,
    forecast_evaluation,
    forecast_ordering,
    forecast_stitching,
)

if TYPE_CHECKING:
    from osae.interop import Loaded
    from osae.training.run import RunConfig

NOTICED, NOTICED_SECONDS = 10**8, 60  # bytes and seconds from which on a command says what it needs
FEWER = "give fewer or smaller SAEs at a time, or use a machine with more memory."


def announce(command: str, forecast: Forecast, remedy: str, folder: Path | None = None) -> None:
    """Say what the command needs, if it is much; raise `ValueError` with the remedy if there is less."""
    check(forecast, remedy, folder)
    if max(forecast.memory, forecast.disk) >= NOTICED or (forecast.seconds or 0) >= NOTICED_SECONDS:
        say(f"osae {command}: {forecast}")


def announce_training(config: "RunConfig", folder: Path, device: str) -> None:
    """Say what a training run needs; on other devices than the CPU, memory is not checked."""
    from osae.training.sizes import forecast_seconds, measure_training

    size = measure_training(config.recipes, config.seeds, config.source, len(config.snapshots))
    remedy = "train fewer recipes or seeds at a time, or give a smaller --batch or fewer --units."
    if device == "cpu":
        steps = config.recipes[0].steps
        announce("train", size.forecast(forecast_seconds(size, steps)), remedy, folder)
    else:
        check(Forecast(0, size.forecast().disk), remedy, folder)


def announce_comparison(saes: Sequence["Loaded"], data: Path | None, *, chance: bool) -> None:
    """Say what comparing these SAEs needs."""
    if len(saes) > 1:
        rows = 0 if data is None else _count_rows(data)
        announce("compare", forecast_comparison(_measure(saes), rows=rows, chance=chance), FEWER)


def announce_evaluation(saes: Sequence["Loaded"]) -> None:
    """Say what evaluating these SAEs needs, without the language model."""
    announce("evaluate", forecast_evaluation(_measure(saes)), FEWER)


def announce_ordering(sae: "Loaded", data: Path, by: str, folder: Path) -> None:
    """Say what ordering the units of this SAE needs."""
    rows, (size,) = _count_rows(data), _measure([sae])
    remedy = "order by energy or frequency, or use a machine with more memory."
    announce("order", forecast_ordering(size, rows, gain=by == "gain"), remedy, folder)


def announce_stitching(small: "Loaded", large: "Loaded") -> None:
    """Say what stitching these SAEs needs."""
    announce("stitch", forecast_stitching(*_measure([small, large])), FEWER)


def _count_rows(data: Path) -> int:
    from osae.data.shards import Shards

    return Shards(data).rows


def _measure(saes: Sequence["Loaded"]) -> list[Dictionary]:
    return [Dictionary(sae.units, sae.decoder.shape[1], _find_k(sae.sae)) for sae in saes]


def _find_k(sae: Any) -> int | None:
    """Return how many units fire in a row where a TopK says so."""
    from osae.sparsify import TopK

    sparsifier = None if sae is None else sae.config.sparsifier
    return sparsifier.k if isinstance(sparsifier, TopK) else None
