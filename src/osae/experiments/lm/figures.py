"""The figures of the language-model part, each with a CSV file of its numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osae.experiments.lm.start_claims import Condition
from osae.files import atomic_write
from osae.measures import AGREEMENT
from osae.results.base import Interval, csv_text
from osae.results.experiment import Figure, MethodRow, Section
from osae.results.lm import (
    Curve,
    Curves,
    LMResult,
    MethodCurves,
    Moment,
    Place,
    StitchingTable,
)
from osae.results.stitching import SHARES

FOLDER = Path("figures")


def draw_figures(result: LMResult, out: Path) -> Iterator[Figure]:
    """Draw every figure; yield its file and caption."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    yield from _draw_seeds(result, out)
    yield from _draw_crossings(result, out)
    yield from _draw_progressions(result, out)
    yield from _draw_own_starts(result, out)
    if result.stitching:
        yield _draw_stitching(result.stitching, out)


def _draw_seeds(result: LMResult, out: Path) -> Iterator[Figure]:
    for place, curves in _group_by_place(result.curves).items():
        words = f"Two seeds on the same text ({place})"
        note = "mean over pairs and 95 % interval over seeds."
        yield _draw_by_prefix(curves, file_name("prefix", place), words, note, result.chance_curves, out)


def _draw_crossings(result: LMResult, out: Path) -> Iterator[Figure]:
    for start in dict.fromkeys(found.start for found in result.crossings):
        mine = result.crossings_from(start)
        ways = (
            ("other-seed", "Another text and another seed", {m: one.other_seed for m, one in mine.items()}),
            ("same-seed", "Another text, the same seed", {m: one.same_seed for m, one in mine.items()}),
        )
        for way, words, curves in ways:
            name, title = file_name("crossed", way, start), f"{words}, start from {start}"
            yield _draw_by_prefix(curves, name, title, "mean and 95 % interval.", result.chance_curves, out)


def _draw_own_starts(result: LMResult, out: Path) -> Iterator[Figure]:
    for place, curves in _group_by_place(result.own_starts).items():
        words, note = f"Each SAE against its own start ({place})", "mean over seeds and 95 % interval."
        yield _draw_by_prefix(curves, file_name("own-start", place), words, note, result.chance_curves, out)


def _group_by_place(found: Sequence[MethodCurves]) -> dict[Place, dict[str, Curves]]:
    """Return the curves by place, then by method."""
    places: dict[Place, dict[str, Curves]] = {}
    for one in found:
        places.setdefault(one.place, {})[one.method] = one.curves
    return places


def _draw_by_prefix(
    by_method: Mapping[str, Curves], name: str, title: str, note: str, chance: Curves, out: Path
) -> Figure:
    """Draw both measures against prefix length."""
    from osae.report import figures

    curves = {key: {method: _lists(found[key]) for method, found in by_method.items()} for key in AGREEMENT}
    levels = {key: _lists(curve) for key, curve in chance.items()}
    file = FOLDER / f"{name}.png"
    figures.lines_by_prefix(curves, out / file, title=title, chance=levels)
    records = [
        {"method": method, "measure": key, "prefix": length, "mean": at.mean, "low": at.low, "high": at.high}
        for method, found in by_method.items()
        for key, curve in found.items()
        for length, at in zip(curve.prefix, map(curve.at, range(len(curve.prefix))), strict=True)
    ]
    _write_csv(records, out / file.with_suffix(".csv"))
    return Figure(file.as_posix(), f"{title}: {note}")


def _lists(curve: Curve) -> dict[str, tuple[float, ...]]:
    """Return the parts of a curve to draw, by name."""
    parts = {name: getattr(curve, name) for name in ("prefix", "mean", "low", "high")}
    return {name: part for name, part in parts.items() if part is not None}


def _draw_progressions(result: LMResult, out: Path) -> Iterator[Figure]:
    """Draw agreement against tokens: between seeds, with each SAE's own start, and across texts."""
    for place in dict.fromkeys(one.place for one in result.progressions):
        mine = [one for one in result.progressions if one.place == place]
        ways: dict[str, tuple[str, Callable[[Moment], Curves]]] = {
            "tokens": ("Seeds on the same text", lambda moment: moment.seeds),
            "start-tokens": ("Each SAE against its own start", lambda moment: moment.start),
        }
        for name, (words, select) in ways.items():
            courses = {one.method: [(m.tokens, select(m)) for m in one.moments if select(m)] for one in mine}
            yield from _draw_courses(courses, name, f"{words} ({place})", str(place), out)
    for start in dict.fromkeys(one.start for one in result.crossings):
        crossings = [one for one in result.crossings if one.start == start and len(one.moments) > 1]
        courses = {one.method: [(m.tokens, m.same_seed) for m in one.moments] for one in crossings}
        words = f"Two texts, the same seed (start from {start})"
        yield from _draw_courses(courses, "crossed-tokens", words, start, out)


def _draw_courses(
    courses: Mapping[str, Sequence[tuple[int, Curves]]], name: str, words: str, where: str, out: Path
) -> Iterator[Figure]:
    """Draw both measures against tokens, with a panel for each method and a line for each prefix."""
    from osae.report import figures

    courses = {method: found for method, found in courses.items() if found}
    if not courses:
        return
    records = [record for method, found in courses.items() for record in _records(method, found)]
    for key in AGREEMENT:
        file = FOLDER / f"{file_name(name, key, where)}.png"
        panels = {
            method: {
                f"{length} units": [(float(tokens), curves[key].at(i)) for tokens, curves in found]
                for i, length in enumerate(found[0][1][key].prefix)
            }
            for method, found in courses.items()
        }
        figures.panels_by_method(panels, key, out / file, title=words, x_label="tokens seen")
        _write_csv(records, out / file.with_suffix(".csv"))
        caption = f"{words}: {key} against tokens seen, a line for each prefix, with 95 % intervals."
        yield Figure(file.as_posix(), caption)


def _records(method: str, found: Sequence[tuple[int, Curves]]) -> Iterator[dict[str, Any]]:
    """Yield a record for each moment and prefix length."""
    for tokens, curves in found:
        for i, length in enumerate(curves[AGREEMENT[0]].prefix):
            values = {key: curves[key].mean[i] for key in AGREEMENT}
            yield {"method": method, "tokens": tokens, "prefix": length, **values}


def _draw_stitching(table: StitchingTable, out: Path) -> Figure:
    from osae.report import figures

    file = FOLDER / "stitching.png"
    keys = table.section().columns or SHARES
    figures.bars_with_intervals(table.rows, keys, out / file, title="Stitching")
    records = [{"method": row.method} | {key: row.mean(key) for key in keys} for row in table.rows]
    _write_csv(records, out / file.with_suffix(".csv"))
    caption = "Units of a larger SAE, one at a time in the smaller one: what they do to its error."
    return Figure(file.as_posix(), caption)


def draw_start(tables: Mapping[Condition, Section], ends: Sequence[int], out: Path) -> Iterator[Figure]:
    """Draw the study of the start: agreement against the learning rate, and unused units by position."""
    from osae.report import figures

    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    named = [
        replace(section, rows=tuple(_name_rows(condition, section))) for condition, section in tables.items()
    ]
    file = FOLDER / "start-rates.png"
    keys = ("orderedness_texts", "stability_texts", "orderedness_start", "stability_start")
    words = "Agreement of the same seed on two texts, and with its own start"
    figures.sweep(named, keys, out / file, title=words, x_label="learning rate", log_x=True)
    yield Figure(file.as_posix(), f"{words}, against the learning rate: mean and 95 % interval over seeds.")
    panels: dict[str, dict[str, Sequence[tuple[float, Interval | None]]]] = {}
    for section in named:
        for row in section.rows:
            line = [(float(end), row.interval(f"unused_{end}")) for end in ends]
            panels.setdefault(row.method, {})[f"rate {section.x:g}"] = line
    file = FOLDER / "start-unused.png"
    words = "Unused units by position in the dictionary"
    figures.panels_by_method(
        panels, "unused", out / file, title=words, x_label="end of the group of units", log_x=True
    )
    yield Figure(file.as_posix(), f"{words}: share of each group that never fires on held-out text.")


def _name_rows(condition: Condition, section: Section) -> Iterator[MethodRow]:
    """Yield the rows of a section, with names that say whether they were trained with AuxK."""
    for row in section.rows:
        yield replace(row, method=f"{row.method}, {condition.revival}")


def file_name(*parts: object) -> str:
    """Return a file name made of words, without spaces and commas."""
    return "-".join(map(str, parts)).replace(", ", "-").replace(" ", "-")


def _write_csv(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    with atomic_write(path) as part:
        part.write_text(csv_text(records), encoding="utf-8", newline="")
