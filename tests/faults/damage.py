"""Flipped and cut bytes in what osae writes: noticed with the file named, or without any effect."""

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from osae import results
from osae.data.shards import Shards, write_shards
from osae.data.worlds import SparseWorld
from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.recipes import Task, world_recipe
from osae.sparsify import TopK
from osae.training import run as runs
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally

RECIPE = world_recipe("osae", Task(width=6, units=8, k=2, samples=300, batch=50))
WORLD = SparseWorld(width=6, units=8, active=2, samples=100)


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a bit flipped, a byte replaced, or cut, or with some of them missing or twice."""
    place = draw.randrange(len(data))
    match draw.randrange(6):
        case 0 | 1 | 2:
            return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
        case 3:
            return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        case 4:
            return data[:place]
        case _:
            stop = draw.randrange(len(data))
            return data[:place] + data[stop:]


def damage(
    tally: Tally,
    count: int,
    files: Sequence[Path],
    read: Callable[[], Any],
    same: Callable[[Any], bool],
    seed: int,
    restore: Callable[[], None] = lambda: None,
) -> Tally:
    """Damage one file at a time, and read: what comes is the same, or an error that names the file."""
    draw, whole = random.Random(seed), {file: file.read_bytes() for file in files}
    for _ in range(count):
        file = draw.choice(files)
        file.write_bytes(change_bytes(whole[file], draw))
        try:
            tally.add(SURVIVED if same(read()) else LOST, f"{file.name} is read with another content")
        except (ValueError, OSError) as error:
            named = str(file.parent) in str(error) and "\n" not in str(error)
            tally.add(DETECTED if named else LOST, f"{file} is not named: {error}")
        except BaseException as error:
            tally.add(LOST, f"{file.name}: {type(error).__name__}: {error}")
        file.write_bytes(whole[file])
        restore()
    return tally


def damage_saes(count: int, folder: Path, seed: int = 0) -> Tally:
    generator = torch.Generator().manual_seed(0)
    sae = SAE(SAEConfig(8, 32, TopK(4)), generator=generator)
    sae.save(folder, provenance={"seed": 3})
    state = sae.state_dict()

    def same(found: tuple[SAE, Any]) -> bool:
        return all(
            each.config == sae.config and all(torch.equal(t, state[n]) for n, t in each.state_dict().items())
            for each in found
        )

    files = [folder / "sae.json", folder / "sae.safetensors"]
    read = lambda: (SAE.load(folder), load(folder).require_sae())  # noqa: E731
    return damage(Tally("bytes of an SAE folder"), count, files, read, same, seed)


def damage_shards(count: int, folder: Path, seed: int = 0) -> Tally:
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    made = write_shards(folder, [rows], rows_per_shard=20, dtype="float32", about={"layer": 3})
    files = [folder / "manifest.json", *(shard.file for shard in made.shards)]

    def read() -> tuple[torch.Tensor, dict]:
        shards = Shards(folder)
        return shards.read(0, shards.rows), shards.manifest

    def same(found: tuple[torch.Tensor, dict]) -> bool:
        return torch.equal(found[0], rows) and found[1] | made.manifest == found[1]

    return damage(Tally("bytes of shards and their manifest"), count, files, read, same, seed)


def damage_results(count: int, folder: Path, seed: int = 0) -> Tally:
    from osae.studies.compare import compare

    decoders = [torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    result = compare(decoders, chance_draws=2)
    folder.mkdir(parents=True, exist_ok=True)
    results.write_json(result, folder / "c.json")
    whole = results.read(folder / "c.json")
    read = lambda: results.read(folder / "c.json")  # noqa: E731
    return damage(
        Tally("bytes of results"), count, [folder / "c.json"], read, lambda found: found == whole, seed
    )


def damage_runs(count: int, folder: Path, seed: int = 0) -> Tally:
    """Everything in the folder of an interrupted run but its log, which carries no checksums."""

    def stop(done, *_):
        if done == 4:
            raise InterruptedError

    run = folder / "run"
    runs.create(run, runs.RunConfig((RECIPE,), (0,), WORLD, checkpoint_seconds=0))
    with suppress(InterruptedError):
        runs.go(run, progress=stop)
    shutil.copytree(run, folder / "kept")
    runs.go(run)
    whole = {file.name: file.read_bytes() for file in (run / "osae-seed0").iterdir()}

    def restore() -> None:
        shutil.rmtree(run)
        shutil.copytree(folder / "kept", run)

    def read() -> dict[str, bytes]:
        runs.go(run)
        return {file.name: file.read_bytes() for file in (run / "osae-seed0").iterdir()}

    restore()
    names = ("checkpoint.safetensors", "checkpoint.safetensors", "checkpoint-before.safetensors", "run.json")
    files = [run / name for name in names]
    return damage(
        Tally("bytes of checkpoints and run.json"), count, files, read, lambda f: f == whole, seed, restore
    )
