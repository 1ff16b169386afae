"""Measure how fast large pages are in Chromium, which must be installed:

    python -m benchmarks.speed.pages

creates pages of SAEs with 12 contexts per unit: one SAE of 4,096 units in a single file, a comparison of two
in pieces, and a comparison of two with 65,536 units in pieces. It opens them from disk, and writes the times
measured by the browser to evidence/pages/table.md.

Words are drawn from a Zipfian vocabulary of the size used by small language models, and units fire
independently of the text, so that contexts compress no better than real ones.

Shapes: K units, n contexts, W tokens in a window.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from osae.context_files import ContextFiles
from osae.report.page import Page, part_of, write_report
from osae.report.units import make_browser
from osae.results import Comparison, Contexts
from osae.results.base import Activations, Interval, Provenance
from osae.results.comparison import ComparedSAE, ComparisonOptions, MatchingResult, PairResult, Summary
from osae.results.contexts import ContextOptions
from osae.results.units import Partners, SAEUnits, UnitTable

OUT = ROOT / "evidence" / "pages"
CONTEXTS, BEFORE, AFTER = 12, 16, 8
VOCABULARY, HEAVY, ROWS = 49_152, 16, 1_000_000
REPEATS = 5
LAUNCH = ("--no-sandbox", "--disable-background-networking", "--disable-gpu")
HEAD = (
    "SAEs",
    "page",
    "beside it",
    "first paint",
    "list ready",
    "search",
    "sort",
    "open a unit",
)

# each returns milliseconds from the event to the second frame after it, when its result is visible
FRAME = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
SEARCH = f"""async word => {{
  const box = document.querySelector('[data-part="search"]'), start = performance.now();
  box.value = word; box.dispatchEvent(new Event("input"));
  {FRAME} return performance.now() - start; }}"""
SORT = f"""async () => {{
  const start = performance.now();
  document.querySelectorAll('#units thead button')[1].click();
  {FRAME} return performance.now() - start; }}"""
OPEN = f"""async unit => {{
  const root = document.getElementById("units"), start = performance.now();
  location.hash = "#unit/" + unit;
  while (root.dataset.open !== unit) await new Promise(done => requestAnimationFrame(done));
  {FRAME} return performance.now() - start; }}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "performance.getEntriesByName('osae-ready')[0].startTime"


# --- the pages --------------------------------------------------------------------------------------


def make_page(saes: int, units: int, path: Path, *, folder: bool) -> None:
    """Write a page of one SAE with the contexts of its units, or of two, with scores and partners."""
    generator = np.random.default_rng(0)
    contexts = [make_contexts(place, units, generator) for place in range(saes)]
    comparison = make_comparison(units, generator) if saes == 2 else None
    part = part_of(comparison or contexts[0].about, path.parent)
    write_report(Page([part], make_browser(comparison, contexts)), path, folder=folder)


def make_contexts(place: int, units: int, generator: np.random.Generator) -> ContextFiles:
    """Return contexts of random words in which about a sixth of the tokens are active."""
    window = BEFORE + 1 + AFTER
    shape = (units, CONTEXTS, window)
    activations = generator.gamma(2.0, size=shape) * (generator.random(shape) < 1 / 6)
    activations[..., BEFORE] = np.sort(generator.gamma(4.0, size=shape[:2]))[:, ::-1] + 1
    heavy = draw_tokens((units, HEAVY), generator)
    counts = np.sort(generator.integers(1, 1000, (units, HEAVY)))[:, ::-1]
    ids = np.arange(VOCABULARY)
    fired = generator.integers(10, ROWS // 20, units)
    arrays = {
        "tokens": draw_tokens(shape, generator),
        "activations": activations.astype(np.float16),
        "strengths": activations[..., BEFORE].astype(np.float32),
        "documents": generator.integers(0, 10_000, shape[:2]),
        "positions": generator.integers(0, 256, shape[:2]),
        "fired": fired,
        "mass": fired * 2.0,
        "largest": activations.max((1, 2)),
        "heavy": heavy,
        "heavy_counts": counts,
        "heavy_mass": counts * 2.0,
        "heavy_slack": np.zeros(units),
        "position_counts": generator.integers(0, 1000, (units, 8)),
        "position_totals": np.full(8, ROWS // 8),
        "token_ids": ids,
        "token_totals": (ROWS / (1 + ids) / 12).astype(int) + 1,
        "promoted": generator.integers(0, VOCABULARY, (units, 10)),
        "suppressed": generator.integers(0, VOCABULARY, (units, 10)),
    }
    about = Contexts(
        provenance=Provenance({}),
        activations=Activations("synthetic", ROWS, 576, "float16", "0" * 64),
        sae=_describe_sae(place, units),
        options=ContextOptions(CONTEXTS, 0, 0, BEFORE, AFTER),
        arrays="",
        sha256="",
        fired=units,
        median_frequency=0.01,
        tokens={str(number): f" {word}" for number, word in enumerate(make_words(generator))},
    )
    return ContextFiles(about, arrays)


def draw_tokens(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return token ids whose frequency is inversely proportional to their rank."""
    return (VOCABULARY ** generator.random(shape)).astype(np.int32) - 1


def make_words(generator: np.random.Generator) -> list[str]:
    """Return a word of three to nine letters for each token."""
    letters = generator.integers(97, 123, (VOCABULARY, 9), dtype=np.uint8)
    lengths = generator.integers(3, 10, VOCABULARY)
    return [row[:length].tobytes().decode("ascii") for row, length in zip(letters, lengths, strict=True)]


def _describe_sae(place: int, units: int) -> ComparedSAE:
    return ComparedSAE(
        path=f"seed{place}",
        format="osae",
        sha256=f"{place:064d}",
        units=units,
        width=576,
        sparsifier="TopK(k=32)",
        notes=(),
        compared=units,
        zero_units=(),
        dead_units=None,
        reconstruction=None,
    )


def make_comparison(units: int, generator: np.random.Generator) -> Comparison:
    """Return a comparison of two SAEs whose units have random partners and scores."""
    order, cosine = generator.permutation(units), generator.random(units)
    pairs = tuple(
        (unit, int(other), float(value))
        for unit, (other, value) in enumerate(zip(order, cosine, strict=True))
    )
    pair = PairResult(
        a=0,
        b=1,
        chance=None,
        prefixes=(),
        matching=MatchingResult(True, 0.0, pairs),
        measures={"stability": 0.5, "orderedness": 0.0},
    )
    tables = tuple(_score_units(place, units, generator) for place in (0, 1))
    return Comparison(
        options=ComparisonOptions((), False, "decoder", "keep", 0),
        provenance=Provenance({}),
        activations=None,
        saes=tuple(_describe_sae(place, units) for place in (0, 1)),
        pairs=(pair,),
        means=Summary(1, (), None, {"stability": Interval(0.5), "orderedness": Interval(0.0)}),
        units=UnitTable(tables, ()),
    )


def _score_units(place: int, units: int, generator: np.random.Generator) -> SAEUnits:
    def numbers() -> tuple[float, ...]:
        return tuple(generator.random(units).round(6).tolist())

    nearest = tuple(generator.integers(0, units, units).tolist())
    known = tuple((generator.random(units) < 0.5).tolist())
    partners = Partners(
        1 - place, nearest, numbers(), nearest, numbers(), known, numbers(), known, None, numbers()
    )
    keys = (
        "reproducibility",
        "matched_cosine",
        "nearest_cosine",
        "correlation",
        "frequency",
        "energy",
        "gain",
    )
    measures = {key: numbers() for key in keys}
    return SAEUnits(place, f"seed{place}", tuple(range(units)), (1 - place,), (partners,), measures)


# --- the times --------------------------------------------------------------------------------------


@contextmanager
def opened_chromium() -> Iterator[Any]:
    """Open Chromium without a window; raise `ValueError` if it is not installed."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise ValueError("Chromium is not installed: apt-get install chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(LAUNCH))
        yield browser
        browser.close()


def measure_page(browser: Any, path: Path, *, repeats: int = REPEATS) -> dict[str, float]:
    """Return the least times over several openings of a page, in milliseconds."""
    times = [_measure_once(browser, path, turn) for turn in range(repeats)]
    return {name: min(one[name] for one in times) for name in times[0]}


def _measure_once(browser: Any, path: Path, turn: int) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.goto(f"file://{path}")
    tab.wait_for_selector("#units[data-ready]", state="attached")
    found = {"first paint": tab.evaluate(PAINT), "list ready": tab.evaluate(READY)}
    found["search"] = tab.evaluate(SEARCH, "ab")  # occurs in many words
    tab.evaluate(SEARCH, "")
    found["sort"] = tab.evaluate(SORT)
    found["open a unit"] = tab.evaluate(OPEN, f"0/{200 * turn + 100}")  # from another piece every time
    context.close()
    return found


def measure_size(saes: int, units: int, folder: Path, browser: Any) -> dict[str, Any]:
    """Create a page, in pieces if it has two SAEs, and return its sizes in bytes and its times."""
    path = folder / f"page-{saes}-{units}.html"
    make_page(saes, units, path, folder=saes == 2)
    beside = list((folder / f"{path.stem}-files").glob("*.js"))
    sizes: dict[str, Any] = {"saes": saes, "units": units, "page": path.stat().st_size}
    sizes |= {"files": len(beside), "beside": sum(one.stat().st_size for one in beside)}
    return sizes | measure_page(browser, path)


def tabulate(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the sizes and times as a table."""
    lines = [f"| {' | '.join(HEAD)} |", f"| --: |{' --: |' * (len(HEAD) - 1)}"]
    for case in cases:
        beside = f"{case['files']:,} files, {case['beside'] / 1e6:.0f} MB" if case["files"] else "–"
        cells = [f"{case['saes']} of {case['units']:,} units", f"{case['page'] / 1e6:.1f} MB", beside]
        cells += [f"{case[name]:,.0f} ms" for name in HEAD[3:]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all pages and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.pages", description=main.__doc__)
    parser.add_argument("--small", type=int, default=4096, help="units of each SAE of the first two pages")
    parser.add_argument("--large", type=int, default=65_536, help="units of each SAE of the third")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the table and the numbers")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, opened_chromium() as browser:
        shapes = ((1, asked.small), (2, asked.small), (2, asked.large))
        cases = [measure_size(saes, units, Path(folder), browser) for saes, units in shapes]
        about = {"chromium": browser.version, "repeats": REPEATS, "cases": cases}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "pages.json").write_text(json.dumps(about, indent=2) + "\n")
    (asked.out / "table.md").write_text(tabulate(cases) + "\n")
    print(tabulate(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
