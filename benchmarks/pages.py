"""Tables in README.md and docs/ are copies of those in evidence/. This puts the present ones in their places:

python -m benchmarks.pages

A place looks like this. What stands between its two lines is replaced by the table below that heading of the
folder's table.md; `results` is the one before all headings.

    <!-- from evidence/toy: Claims -->
    <!-- end -->
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PLACE = re.compile(r"(<!-- from (?P<folder>\S+): (?P<heading>.+?) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with the kept tables in all its places."""

    def kept(place: re.Match[str]) -> str:
        if "<!-- from" in place[0].removeprefix(place[1]):
            raise ValueError(f"{place[1].strip()} has no `<!-- end -->` of its own.")
        return f"{place[1]}\n{table(ROOT / place['folder'] / 'table.md', place['heading'])}\n\n"

    return PLACE.sub(kept, page)


def table(file: Path, heading: str) -> str:
    """The table under a heading of a file."""
    here = "results"
    lines: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            here = line.removeprefix("## ")
        elif line.startswith("|"):
            lines.setdefault(here, []).append(line)
    if heading not in lines:
        raise ValueError(f"{file} has no table {heading!r}: there are {', '.join(map(repr, lines))}.")
    return "\n".join(lines[heading])


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
