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
OTHER_DISK = "write to a folder on another disk, or use a machine with more memory."
AS_IT_IS = ()  # no smaller request: what has to be freed is said instead
FEWER = "give fewer or smaller SAEs at a time, or use a machine with more memory."


def announce(
    command: str,
    forecast: Forecast,
    remedy: str,
    smaller: Iterable[tuple[str, Forecast]],
    folder: Place | None = None,
) -> None:
    """Say what the command needs, if it is a lot.

    If it cannot fit, raise `ValueError` with the first of the smaller requests that does, and the remedy.
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
    _announce_run("train", _forecast_training(config), remedy, smaller, folder, device)


def announce_resuming(folder: Path, device: str) -> None:
    """Print what the rest of a run needs, besides the files that are there."""
    from osae.training import checkpoint
    from osae.training import run as runs

    config = runs.read(folder)
    size, steps = _measure_run(config), config.recipes[0].steps
    if checkpoint.exists(folder):  # short runs are over
        size = replace(size, short_steps=0)
    needs, left = _forecast_run(config, size), 1 - min(1.0, checkpoint.count_steps(folder) / steps)
    there = _sum_sizes([path for path in folder.rglob("*") if path.is_file()])
    most = size.forecast().disk  # whatever is there, three checkpoints may exist
    rest = replace(needs, disk=max(0, most - there), seconds=(needs.seconds or 0) * left)
    _announce_run("resume", rest, "resume the run on another machine.", AS_IT_IS, folder, device)


def _announce_run(
    command: str,
    needs: Forecast,
    remedy: str,
    smaller: Iterable[tuple[str, Forecast]],
    folder: Path,
    device: str,
) -> None:
    from osae.devices import split_devices

    if set(split_devices(device)) == {"cpu"}:
        announce(command, needs, remedy, smaller, folder)
    else:
        less = ((change, Forecast(0, size.disk)) for change, size in smaller)
        check(Forecast(0, needs.disk), remedy, folder, less)


def announce_sweep(configs: Sequence["RunConfig"], workers: int, folder: Path) -> None:
    """Print what training these runs in parallel processes on the CPU needs."""
    from osae.devices import single_thread

    with single_thread():
        each = [_forecast_training(config) for config in configs]
    smaller = ((f"--jobs {jobs}", forecast_together(each, jobs)) for jobs in halve(workers))
    needs = forecast_together(each, workers)
    announce("sweep", needs, "give fewer --jobs, or smaller SAEs.", smaller, folder)


def _forecast_training(config: "RunConfig") -> Forecast:
    return _forecast_run(config, _measure_run(config))


def _forecast_run(config: "RunConfig", size: "Training") -> Forecast:
    from osae.training.sizes import forecast_seconds

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

    if len(saes) < 2:
        return
    sizes, threads = _measure(saes), torch.get_num_threads()
    all_rows = 0 if data is None else _count_rows(data)

    def forecast(*, count: int = len(saes), rows: int = all_rows, chance: bool = chance) -> Forecast:
        return forecast_comparison(
            sizes[:count], rows=rows, chance=chance, prefixes=prefixes, threads=threads
        )

    smaller = [(_describe_first(count), forecast(count=count)) for count in range(len(saes) - 1, 1, -1)]
    smaller += [(f"{rows:,} rows of activations", forecast(rows=rows)) for rows in halve(all_rows)]
    smaller += [("--chance-draws 0", forecast(chance=False))] if chance else []
    announce("compare", forecast(), FEWER, smaller)


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
    if language:
        smaller.append(("--model none", forecast_evaluation(sizes, rows)))
    announce(f"{command}, with the language model" if language else command, needs, FEWER, smaller)


def announce_ordering(sae: "Loaded", data: Place, by: str, folder: Place) -> None:
    """Print what ordering the units of this SAE needs."""
    rows, (size,) = _count_rows(data), _measure([sae])
    smaller = [("--by energy", forecast_ordering(size, rows, gain=False))] if by == "gain" else []
    announce("order", forecast_ordering(size, rows, gain=by == "gain"), OTHER_DISK, smaller, folder)


def announce_stitching(small: "Loaded", large: "Loaded", data: Place) -> None:
    """Print what stitching these SAEs needs."""
    inner, outer = _measure([small, large])
    announce("stitch", forecast_stitching(inner, outer, _count_rows(data)), FEWER, AS_IT_IS)


def announce_contexts(
    saes: Sequence["Loaded"], data: Place, *, kept: int, window: int, folder: Place
) -> None:
    """Say what collecting contexts needs, without the language model: `kept` per unit, of `window` tokens."""
    from osae.data.shards import Shards

    rows, sizes = Shards(data), _measure(saes)
    shard = max(shard.rows for shard in rows.shards)

    def forecast(count: int, kept: int) -> Forecast:
        return forecast_contexts(sizes[:count], rows.rows, shard=shard, kept=kept, window=window)

    smaller = [(_describe_first(count), forecast(count, kept)) for count in range(len(saes) - 1, 0, -1)]
    smaller += [(f"{less} contexts of each unit", forecast(len(saes), less)) for less in halve(kept)]
    remedy = (
        "keep fewer or shorter contexts (--top, --random, --before, --after), or give fewer SAEs at a time."
    )
    announce("contexts", forecast(len(saes), kept), remedy, smaller, folder)


def announce_pruning(sae: "Loaded", others: Sequence["Loaded"], data: Place, folder: Place) -> None:
    """Say what pruning this SAE needs, without the language model."""
    (size,), compared, rows = _measure([sae]), _measure(others), _count_rows(data)
    smaller = [
        (_describe_first(count, "other SAE"), forecast_pruning(size, compared[:count], rows))
        for count in range(len(others) - 1, 0, -1)
    ]
    smaller += [("--scores FILE", forecast_pruning(size, [], rows))] if others else []
    announce("prune", forecast_pruning(size, compared, rows), FEWER, smaller, folder)


def announce_trust(sae: "Loaded", data: Place, *, twins: int, samples: int | None, folder: Place) -> None:
    """Say what training and comparing twins of this SAE needs; memory is that of the CPU."""
    from osae.data.shards import Shards
    from osae.data.source import OnDisk
    from osae.studies.subjects import check_runnable
    from osae.studies.trust import choose_recipe
    from osae.training.sizes import forecast_seconds, measure_training

    shards = Shards(data)
    recipe, _ = choose_recipe(sae, check_runnable(sae, shards), shards, samples)
    size, (own,) = measure_training([recipe], [0], OnDisk(str(data))), _measure([sae])
    seconds = forecast_seconds(size, recipe.steps)

    def forecast(*, rows: int = shards.rows, twins: int = twins) -> Forecast:
        part = replace(size, block=min(size.block, -(-rows // (twins + 1))))
        return forecast_trust(part, own, rows, twins=twins, seconds=seconds)

    smaller = [(f"--runs {count}", forecast(twins=count)) for count in range(twins - 1, 1, -1)]
    smaller += [(f"{rows:,} rows of activations", forecast(rows=rows)) for rows in halve(shards.rows)]
    remedy = "give fewer rows of data, or use a machine with more memory."
    announce("trust", forecast(), remedy, smaller, folder)


def announce_conversion(sae: "Loaded", folder: Place) -> None:
    """Say what writing this SAE in the format of another library needs."""
    (size,) = _measure([sae])
    announce("convert", forecast_conversion(size), OTHER_DISK, AS_IT_IS, folder)


def announce_dashboards(contexts: Path, folder: Place) -> None:
    """Say what dashboards of an SAE with these contexts need."""
    from osae.context_files import ARRAYS

    announce("convert", forecast_dashboards(_sum_sizes([contexts / ARRAYS])), OTHER_DISK, AS_IT_IS, folder)


def announce_pushing(saes: Sequence["Loaded"], folder: Path) -> None:
    """Say what a repository of these SAEs needs."""
    sizes = _measure(saes)
    smaller = (
        (f"{Path(sae.path).name} alone", forecast_pushing([size]))
        for sae, size in zip(saes, sizes, strict=True)
    )
    announce("push", forecast_pushing(sizes), "push the SAEs of a run one by one.", smaller, folder)


def announce_page(inputs: Sequence[Path], page: Path) -> None:
    """Say what a page about these files and folders needs."""
    smaller = (
        (_describe_first(count, "result"), _forecast_page(inputs[:count]))
        for count in range(len(inputs) - 1, 0, -1)
    )
    announce("report", _forecast_page(inputs), "show fewer results or SAEs on a page.", smaller, page.parent)


def _forecast_page(inputs: Sequence[Path]) -> Forecast:
    from osae.context_files import ARRAYS

    results = [path for path in inputs if path.is_file()]
    folders = [path for path in inputs if path.is_dir()]
    results += [path / "results.json" for path in folders]
    contexts = [file for path in folders for file in (path / ARRAYS, *path.glob(f"**/contexts/{ARRAYS}"))]
    return forecast_page(_sum_sizes(results), _sum_sizes(contexts))


def _describe_first(count: int, what: str = "SAE") -> str:
    return f"the first {what} alone" if count == 1 else f"the first {count} {what}s"


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
