"""Announce what a command will need before it starts, and raise an error if it cannot fit."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli.terminal import say
from osae.forecast import (
    DictionarySize,
    Forecast,
    check,
    forecast_comparison,
    forecast_contexts,
    forecast_conversion,
    forecast_dashboards,
    forecast_evaluation,
    forecast_ordering,
    forecast_page,
    forecast_pruning,
    forecast_pushing,
    forecast_stitching,
    forecast_together,
    forecast_trust,
    halve,
    list_smaller_runs,
)
from osae.stores import Place, open_place

if TYPE_CHECKING:
    from osae.forecast import Training
    from osae.interop import Loaded
    from osae.training.run import RunConfig

NOTICED, NOTICED_SECONDS = 10**8, 60  # bytes and seconds above which a command announces what it needs
OTHER_DISK = "write to a folder on another disk, or free some."
FEWER = "give fewer or smaller SAEs at a time, or use a machine with more memory."


def announce(
    command: str,
    forecast: Forecast,
    remedy: str,
    folder: Place | None = None,
    smaller: Iterable[tuple[str, Forecast]] = (),
) -> None:
    """Say what the command needs, if it is a lot.

    Raise `ValueError` with the first of the smaller requests that fits, or the remedy, if it cannot fit.
    """
    check(forecast, remedy, None if folder is None else open_place(folder).folder, smaller)
    say_needs(command, _time(forecast))


def _time(forecast: Forecast) -> Forecast:
    """Return the forecast with the seconds that its work takes on this machine added."""
    if not forecast.work:
        return forecast
    from osae.speed import measure_rate

    return replace(forecast, seconds=(forecast.seconds or 0) + forecast.work / measure_rate())


def say_needs(command: str, forecast: Forecast) -> None:
    """Say what the command needs, if it is a lot."""
    if max(forecast.memory, forecast.disk) >= NOTICED or (forecast.seconds or 0) >= NOTICED_SECONDS:
        say(f"osae {command}: {forecast}")


def announce_training(config: "RunConfig", folder: Path, device: str) -> None:
    """Print what a training run needs; memory is checked on the CPU only."""
    remedy = "train fewer recipes or seeds at a time, or give a smaller --batch or fewer --units."
    smaller = ((change, size.forecast()) for change, size in list_smaller_runs(_measure_run(config)))
    _announce_run("train", _forecast_training(config), remedy, folder, device, smaller)


def announce_resuming(folder: Path, device: str) -> None:
    """Print what the rest of a run needs, besides the files that are there."""
    from osae.training import checkpoint
    from osae.training import run as runs

    config = runs.read(folder)
    needs, steps = _forecast_training(config), config.recipes[0].steps
    left = 1 - min(1.0, checkpoint.count_steps(folder) / steps)
    there = _sum_sizes([path for path in folder.rglob("*") if path.is_file()])
    most = _measure_run(config).forecast().disk  # whatever is there, three checkpoints may exist
    rest = replace(needs, disk=max(0, most - there), seconds=(needs.seconds or 0) * left)
    _announce_run("resume", rest, "free some, or use another machine.", folder, device)


def _announce_run(
    command: str,
    needs: Forecast,
    remedy: str,
    folder: Path,
    device: str,
    smaller: Iterable[tuple[str, Forecast]] = (),
) -> None:
    from osae.devices import split_devices

    if set(split_devices(device)) == {"cpu"}:
        announce(command, needs, remedy, folder, smaller)
    else:
        check(Forecast(0, needs.disk), remedy, folder)


def announce_sweep(configs: Sequence["RunConfig"], workers: int, folder: Path) -> None:
    """Print what training these runs in parallel processes on the CPU needs."""
    from osae.devices import single_thread

    with single_thread():
        each = [_forecast_training(config) for config in configs]
    smaller = ((f"--jobs {jobs}", forecast_together(each, jobs)) for jobs in halve(workers))
    needs = forecast_together(each, workers)
    announce("sweep", needs, "give fewer --jobs, or smaller SAEs.", folder, smaller)


def _forecast_training(config: "RunConfig") -> Forecast:
    from osae.training.sizes import forecast_seconds

    size = _measure_run(config)
    seconds = forecast_seconds(size, config.recipes[0].steps)
    return size.forecast(seconds, checkpoint_seconds=config.checkpoint_seconds)


def _measure_run(config: "RunConfig") -> "Training":
    from osae.training.sizes import measure_training

    return measure_training(config.recipes, config.seeds, config.source, len(config.snapshots))


def announce_comparison(
    saes: Sequence["Loaded"], data: Place | None, *, chance: bool, prefixes: Sequence[int] | None
) -> None:
    """Print what comparing these SAEs needs."""
    import torch

    if len(saes) > 1:
        rows, sizes = 0 if data is None else _count_rows(data), _measure(saes)

        def forecast(count: int) -> Forecast:
            return forecast_comparison(
                sizes[:count],
                rows=rows,
                chance=chance,
                prefixes=prefixes,
                threads=torch.get_num_threads(),
            )

        smaller = ((_describe_first(count), forecast(count)) for count in range(len(saes) - 1, 1, -1))
        announce("compare", forecast(len(saes)), FEWER, smaller=smaller)


def announce_evaluation(
    saes: Sequence["Loaded"], data: Place, language: int = 0, *, command: str = "evaluate"
) -> None:
    """Print what evaluating these SAEs needs; `language` is what passes of an open language model need."""
    sizes, rows = _measure(saes), _count_rows(data)
    needs = forecast_evaluation(sizes, rows, language)
    smaller = [
        (_describe_first(count), forecast_evaluation(sizes[:count], rows, language))
        for count in range(len(sizes) - 1 if command == "evaluate" else 0, 0, -1)
    ]
    announce(f"{command}, with the language model" if language else command, needs, FEWER, smaller=smaller)


def announce_ordering(sae: "Loaded", data: Place, by: str, folder: Place) -> None:
    """Print what ordering the units of this SAE needs."""
    rows, (size,) = _count_rows(data), _measure([sae])
    remedy = "use a machine with more memory."
    smaller = [("--by energy", forecast_ordering(size, rows, gain=False))] if by == "gain" else []
    announce("order", forecast_ordering(size, rows, gain=by == "gain"), remedy, folder, smaller)


def announce_stitching(small: "Loaded", large: "Loaded", data: Place) -> None:
    """Print what stitching these SAEs needs."""
    inner, outer = _measure([small, large])
    announce("stitch", forecast_stitching(inner, outer, _count_rows(data)), FEWER)


def announce_contexts(
    saes: Sequence["Loaded"], data: Place, *, kept: int, window: int, folder: Place
) -> None:
    """Say what collecting contexts needs, without the language model: `kept` per unit, of `window` tokens."""
    from osae.data.shards import Shards

    rows = Shards(data)
    shard = max(shard.rows for shard in rows.shards)
    remedy = (
        "keep fewer or shorter contexts (--top, --random, --before, --after), or give fewer SAEs at a time."
    )
    sizes = _measure(saes)
    needs = forecast_contexts(sizes, rows.rows, shard=shard, kept=kept, window=window)
    smaller = (
        (
            _describe_first(count),
            forecast_contexts(sizes[:count], rows.rows, shard=shard, kept=kept, window=window),
        )
        for count in range(len(saes) - 1, 0, -1)
    )
    announce("contexts", needs, remedy, folder, smaller)


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


def announce_conversion(sae: "Loaded", folder: Place) -> None:
    """Say what writing this SAE in the format of another library needs."""
    (size,) = _measure([sae])
    announce("convert", forecast_conversion(size), OTHER_DISK, folder)


def announce_dashboards(contexts: Path, folder: Place) -> None:
    """Say what dashboards of an SAE with these contexts need."""
    from osae.context_files import ARRAYS

    announce("convert", forecast_dashboards(_sum_sizes([contexts / ARRAYS])), OTHER_DISK, folder)


def announce_pushing(saes: Sequence["Loaded"], folder: Path) -> None:
    """Say what a repository of these SAEs needs."""
    announce("push", forecast_pushing(_measure(saes)), "give fewer SAEs at a time, or free some.", folder)


def announce_page(inputs: Sequence[Path], page: Path) -> None:
    """Say what a page about these files and folders needs."""
    from osae.context_files import ARRAYS

    results = [path for path in inputs if path.is_file()]
    folders = [path for path in inputs if path.is_dir()]
    results += [path / "results.json" for path in folders]
    contexts = [file for path in folders for file in (path / ARRAYS, *path.glob(f"**/contexts/{ARRAYS}"))]
    needs = forecast_page(_sum_sizes(results), _sum_sizes(contexts))
    announce("report", needs, "show fewer results or SAEs on a page, or free some.", page.parent)


def _describe_first(count: int) -> str:
    return "the first SAE alone" if count == 1 else f"the first {count} SAEs"


def _sum_sizes(files: Sequence[Path]) -> int:
    """Return the bytes of those of the files that exist."""
    return sum(file.stat().st_size for file in set(files) if file.is_file())


def _count_rows(data: Place) -> int:
    from osae.data.shards import Shards

    return Shards(data).rows


def _measure(saes: Sequence["Loaded"]) -> list[DictionarySize]:
    return [DictionarySize(sae.units, sae.decoder.shape[1], _find_k(sae.sae)) for sae in saes]


def _find_k(sae: Any) -> int | None:
    """Return how many units fire per row, if the SAE is a TopK."""
    from osae.sparsify import TopK

    sparsifier = None if sae is None else sae.config.sparsifier
    return sparsifier.k if isinstance(sparsifier, TopK) else None
