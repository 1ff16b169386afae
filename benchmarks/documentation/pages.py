"""Update the generated tables and code blocks in README.md and docs/:

    python -m benchmarks.documentation.pages

A place is a pair of comments; the text between them is replaced. Tables of results are taken from the
table.md of a folder in evidence/, by heading (`results` is the table before the first heading); a place can
select columns and rows ("Of a larger SAE…" is a row that begins like this). Programs are taken from
examples/, and other tables are generated from the code.

    <!-- from evidence/toy: Claims -->
    <!-- end -->
    <!-- from evidence/toy: results; columns Stab truth, MSE; rows topk, osae -->
    <!-- end -->
    <!-- from examples/quickstart.py: code -->
    <!-- end -->
    <!-- from osae: measures -->
    <!-- end -->
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import ROOT, scale
from benchmarks.documentation import code, commands, evidence

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PLACE = re.compile(
    r"(<!-- from (?P<source>\S+): (?P<what>[^;\n]+?)(?:; columns (?P<columns>[^;\n]+?))?"
    r"(?:; rows (?P<rows>[^;\n]+?))? -->\n).*?(?=<!-- end -->)",
    re.DOTALL,
)
MADE: Mapping[str, Callable[[], str]] = {
    "commands": commands.describe_commands,
    "files": code.list_files,
    "GPU kernels": code.tabulate_gpu_kernels,
    "GPU kernels at every shape": code.tabulate_all_gpu_kernels,
    "GPU steps": code.tabulate_gpu_steps,
    "what Gemma-2-2B needs": scale.tabulate_gemma,
    "measures": code.tabulate_measures,
    "public names": code.list_public_names,
    "training steps": code.tabulate_steps,
    "time to quality": code.tabulate_quality,
    "warm-up": code.tabulate_warmup,
    "trust": evidence.tabulate_trust,
    "verdicts": evidence.tabulate_verdicts,
}


def fill_page(page: str) -> str:
    """Return the page with all of its places updated."""

    def fill(place: re.Match[str]) -> str:
        if "<!-- from" in place[0].removeprefix(place[1]):
            raise ValueError(f"{place[1].strip()} has no matching `<!-- end -->`.")
        return f"{place[1]}\n{make_content(place)}\n\n"

    return PLACE.sub(fill, page)


def make_content(place: re.Match[str]) -> str:
    """Return the content of a place."""
    source, what = place["source"], place["what"]
    if source == "osae":
        if what not in MADE:
            raise ValueError(
                f"nothing called {what!r} is generated from the code: choose from {', '.join(MADE)}."
            )
        return MADE[what]()
    if what == "code":
        return f"```python\n{(ROOT / source).read_text(encoding='utf-8').strip()}\n```"
    lines = read_table(ROOT / source / "table.md", what)
    return "\n".join(select_cells(lines, split_names(place["columns"]), split_names(place["rows"])))


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list; None if there is no list."""
    return None if text is None else [name.strip() for name in text.split(",")]


def read_table(file: Path, heading: str) -> list[str]:
    """Return the lines of the table under a heading of a file."""
    here = "results"
    lines: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            here = line.removeprefix("## ")
        elif line.startswith("|"):
            lines.setdefault(here, []).append(line)
    if heading not in lines:
        raise ValueError(f"{file} has no table {heading!r}: there are {', '.join(map(repr, lines))}.")
    return lines[heading]


def select_cells(
    lines: Sequence[str], columns: Sequence[str] | None, rows: Sequence[str] | None
) -> Iterator[str]:
    """Yield the lines of a table with the selected columns and rows, in the order of the table."""
    table = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    head, names = table[0], [cells[0].strip("`*") for cells in table]
    check_names(columns, head[1:], "column")
    check_names(rows, names[2:], "row")
    for line, (cells, name) in enumerate(zip(table, names, strict=True)):
        if line < 2 or rows is None or any(is_called(name, asked) for asked in rows):
            shown = [c for c, title in zip(cells, head, strict=True) if columns is None or title in columns]
            yield f"| {' | '.join(shown if columns is None else [cells[0], *shown])} |"


def check_names(asked: Sequence[str] | None, there: Sequence[str], kind: str) -> None:
    """Raise `ValueError` if a requested column or row is not in the table."""
    for name in asked or ():
        if not any(is_called(one, name) for one in there):
            raise ValueError(f"no {kind} {name!r}: there are {', '.join(there)}.")


def is_called(name: str, asked: str) -> bool:
    """Return whether a row or column has this name, or begins with it if it ends with an ellipsis."""
    return name.startswith(asked.removesuffix("…")) if asked.endswith("…") else name == asked


def main() -> int:
    """Update every page."""
    for path in PAGES:
        path.write_text(fill_page(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
