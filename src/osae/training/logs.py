"""Optional logging services, in addition to a run's own log file."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from osae.files import atomic_write
from osae.messages import list_choices

Log = Callable[[dict[str, Any]], None]
KINDS = ("tensorboard", "wandb", "trackio")


@contextmanager
def open_logs(
    kinds: Sequence[str], folder: Path, config: Mapping[str, Any] | None = None, project: str = "osae"
) -> Iterator[list[Log]]:
    """Open each of these services for log entries, and close them at the end.

    Services that store settings get `config`; if possible, curves are drawn against the number of samples.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(_log(kind, folder, config or {}, project)) for kind in kinds]


@contextmanager
def _log(kind: str, folder: Path, config: Mapping[str, Any], project: str) -> Iterator[Log]:
    if kind not in KINDS:
        raise ValueError(f"no logging service {kind!r}: {list_choices(kind, KINDS)}")
    try:
        service = import_module("torch.utils.tensorboard" if kind == "tensorboard" else kind)
    except ImportError as error:
        raise ValueError(f"--log {kind} needs the package {kind}: pip install {kind}") from error
    if kind == "tensorboard":
        with service.SummaryWriter(str(folder / "tensorboard")) as board:

            def draw(line: dict[str, Any]) -> None:
                for name, value in _numbers(line).items():
                    board.add_scalar(name, value, line["samples"])

            yield draw
        return
    # a resumed run continues its curves
    same = {"id": _id(folder), "resume": "allow"} if kind == "wandb" else {}
    service.init(project=project, name=folder.name, config=dict(config), **same)
    if kind == "wandb":
        service.define_metric("samples")
        service.define_metric("*", step_metric="samples")
    try:
        yield lambda line: service.log(_numbers(line) | {"samples": line["samples"]})
    finally:
        service.finish()


class Pace:
    """Measures the speed in samples per second between calls, and the peak memory so far."""

    def __init__(self) -> None:
        self._at, self._samples = time.monotonic(), -1

    def measure(self, samples: int, device: Any) -> dict[str, float]:
        """Return samples per second since the last call (none at the first call) and gigabytes."""
        now, before = time.monotonic(), self._samples
        found = {"memory_gb": round(_most_memory(device) / 1e9, 3)}
        if before >= 0 and now > self._at:
            found["samples_per_second"] = round((samples - before) / (now - self._at), 1)
        self._at, self._samples = now, samples
        return found


def _most_memory(device: Any) -> int:
    """Return the peak memory of this process in bytes: on the GPU if it trains there, else on the host."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    import resource  # not on every system

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _id(folder: Path) -> str:
    """Return the wandb id of this run, which is stored in its folder."""
    path = folder / "wandb.id"
    if not path.exists():
        with atomic_write(path) as beside:
            beside.write_text(uuid4().hex + "\n")
    return path.read_text().strip()


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a log entry, keyed by SAE; a skipped batch has none."""
    numbers = {name: value for name, value in line.items() if name not in ("name", "step", "samples")}
    return {f"{line['name']}/{name}": value for name, value in numbers.items() if value is not None}
