"""Logging services that a run's log goes to besides its own file, on request."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from osae.files import atomic_write

Log = Callable[[dict[str, Any]], None]
KINDS = ("tensorboard", "wandb", "trackio")


@contextmanager
def open_logs(kinds: Sequence[str], folder: Path, project: str = "osae") -> Iterator[list[Log]]:
    """Open each of these services for lines of the log, and close them at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(_log(kind, folder, project)) for kind in kinds]


@contextmanager
def _log(kind: str, folder: Path, project: str) -> Iterator[Log]:
    if kind not in KINDS:
        raise ValueError(f"no log {kind!r}: there are {', '.join(KINDS)}.")
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
    service.init(project=project, name=folder.name, **same)
    try:
        yield lambda line: service.log(_numbers(line) | {"samples": line["samples"]})
    finally:
        service.finish()


def _id(folder: Path) -> str:
    """Return the id that wandb knows this run by, which is kept in the folder."""
    path = folder / "wandb.id"
    if not path.exists():
        with atomic_write(path) as beside:
            beside.write_text(uuid4().hex + "\n")
    return path.read_text().strip()


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a line, keyed by the SAE they belong to; those of a skipped batch are none."""
    numbers = {name: value for name, value in line.items() if name not in ("name", "step", "samples")}
    return {f"{line['name']}/{name}": value for name, value in numbers.items() if value is not None}
