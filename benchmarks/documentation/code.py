"""Parts of the documentation that are generated: measures, public names, and benchmark tables."""

import ast
import json
from pathlib import Path
from typing import Any

import osae
from benchmarks import ROOT
from benchmarks.speed import quality, table, warmup
from osae import measures


def tabulate_measures() -> str:
    """Return a table of all measures."""
    return measures.markdown_table()


def tabulate_steps() -> str:
    """Return the table of training steps from the stored benchmark."""
    return table.format_markdown(_read_speed("bench.json"))


def tabulate_warmup() -> str:
    """Return the table of training steps during the warm-up of k from the stored benchmark."""
    return warmup.format_markdown(_read_speed("warmup.json"))


def tabulate_quality() -> str:
    """Return the table of times to quality from the stored benchmark."""
    return quality.format_markdown(_read_speed("quality.json"))


def _read_speed(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "evidence" / "speed" / name).read_text(encoding="utf-8"))


def tabulate_gpu_kernels() -> str:
    """Return the table of predicted times of kernels on a GPU, with 65,536 units."""
    from benchmarks.gpu import roofline, table  # needs triton

    return table.tabulate_kernels(roofline.LARGE[0])


def tabulate_all_gpu_kernels() -> str:
    """Return the table of predicted times of kernels on a GPU, at every shape."""
    from benchmarks.gpu import roofline, table

    return table.tabulate_kernels(*roofline.BENCHMARK, *roofline.LARGE)


def tabulate_gpu_steps() -> str:
    """Return the table of predicted times of training steps on a GPU."""
    from benchmarks.gpu import table

    return table.tabulate_steps()


def list_public_names() -> str:
    """Return a directive for each public name of `osae`, grouped by subpackage.

    mkdocstrings turns a directive into the signature and docstring of that name.
    """
    rooms: dict[str, list[str]] = {}
    for name in sorted(osae.__all__):
        if not name.startswith("_"):
            room = ".".join(getattr(osae, name).__module__.split(".")[:2])
            rooms.setdefault(room, []).append(name)
    lines = []
    for room in sorted(rooms):
        lines += [f"## From `{room}`", ""]
        lines += [line for name in rooms[room] for line in (f"::: osae.{name}", "")]
    return "\n".join(lines).rstrip()


def list_files() -> str:
    """Return each file of the package with the first sentence of its docstring, by subpackage."""
    package = ROOT / "src" / "osae"
    lines = ["```", "src/osae/"]
    for path in sorted(package.rglob("*"), key=_file_order):
        depth = len(path.relative_to(package).parts)
        if path.is_dir() and any(path.glob("*.py")):
            lines.append(
                f"{'  ' * depth}{path.name + '/':<22} {_first_sentence(path / '__init__.py')}".rstrip()
            )
        elif path.suffix == ".py" and not path.name.startswith("__"):
            lines.append(f"{'  ' * depth}{path.name:<22} {_first_sentence(path)}".rstrip())
    return "\n".join([*lines, "```"])


def _file_order(path: Path) -> tuple[tuple[bool, str], ...]:
    """Return a key that puts the files of a folder before its folders."""
    parts = path.parts
    return tuple((place < len(parts) - 1 or path.is_dir(), part) for place, part in enumerate(parts))


def _first_sentence(path: Path) -> str:
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(about.split("\n\n")[0].split())
