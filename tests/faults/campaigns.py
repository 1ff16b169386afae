"""All kinds of faults, how often each is tried, and in which parts."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import damage, experiments, kills, numbers, requests, storage
from tests.faults.outcomes import Tally
from tests.faults.processes import MEMORY, warm

CAMPAIGNS: dict[
    Callable[..., Tally], tuple[int, int]
] = {  # how often each fault is tried, and how often in a part
    requests.send_lines: (10_000, 1_000),
    requests.send_configs: (10_000, 1_000),
    requests.send_files: (10_000, 500),
    requests.send_bombs: (1_000, 250),
    damage.damage_saes: (3_500, 500),
    damage.damage_shards: (3_500, 500),
    damage.damage_results: (1_500, 500),
    damage.damage_runs: (1_500, 100),
    kills.kill_training: (420, 42),
    kills.kill_harvest: (210, 42),
    kills.kill_trust: (90, 18),
    kills.kill_contexts: (90, 18),
    kills.kill_studies: (210, 42),
    experiments.kill_reproduce: (40, 8),
    experiments.kill_ranks: (40, 10),
    kills.resume_twice: (40, 10),
    kills.stop_training: (60, 10),
    storage.fill_disk: (150, 30),
    storage.forbid_writing: (80, 20),
    storage.deny_permission: (120, 30),
    storage.change_inputs: (80, 20),
    storage.slow_down: (10, 5),
    numbers.feed_numbers: (300, 300),
}


class Part(NamedTuple):
    """Some faults of one kind; `place` is how far the kind is when they are done, of 1."""

    campaign: Callable[..., Tally]
    seed: int
    count: int
    place: float

    @property
    def name(self) -> str:
        return f"{self.campaign.__name__} {self.seed}"


def list_parts(scale: float, only: str) -> Iterator[Part]:
    """All parts, the first ones of every kind first."""
    found = []
    for campaign, (total, most) in CAMPAIGNS.items():
        if only in campaign.__name__:
            total = max(1, round(scale * total))
            each = [min(most, total - start) for start in range(0, total, most)]
            found += [Part(campaign, n, count, (n + 1) / len(each)) for n, count in enumerate(each)]
    return iter(sorted(found, key=lambda part: part.place))


def try_part(part: Part) -> tuple[Part, Tally, float]:
    """Try the faults of a part in a folder of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        tally = part.campaign(part.count, Path(scratch) / "x", seed=part.seed)
    return part, tally, time.monotonic() - started


def prepare() -> None:
    """Import and compile everything in a process that tries faults."""
    with tempfile.TemporaryDirectory() as scratch:
        warm(Path(scratch))
