"""A comparison of SAEs (the dict that `osae compare` makes) for the terminal, as CSV and as one HTML page."""

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from osae.files import atomic_write
from osae.report.columns import COLUMNS, MISSING, Column, fixed
from osae.report.page import (
    document,
    facts_part,
    figures_part,
    json_part,
    notes_part,
    table_part,
    versions_text,
)
from osae.report.table import terminal_table

if TYPE_CHECKING:
    from rich.table import Table

PANELS = 8  # pairs drawn one by one; of more, the means are drawn
PAIR_COLUMNS = (
    Column("stability", "Stab", "mean cosine of matched units"),
    Column("chance", "by chance", "stability of random dictionaries of the same shape"),
    Column("orderedness", "Ord", "rank correlation of matched places"),
    Column("0.5", "cosine > 0.5", "share of units matched above 0.5"),
    Column("0.7", "cosine > 0.7", "share of units matched above 0.7"),
    Column("0.9", "cosine > 0.9", "share of units matched above 0.9"),
)
STREAM_COLUMNS = (
    Column("stream_stability", "Stab Z", "mean correlation of matched units' activations"),
    Column("stream_orderedness", "Ord Z", "rank correlation of places matched by activations"),
)
PREFIX_COLUMNS = (
    Column("stability", "Stab", "stability of the prefixes, matched anew"),
    Column("chance", "by chance", "stability of random dictionaries of that length"),
    Column("orderedness", "Ord", "orderedness of the prefixes, matched anew"),
    Column("stability_of_full", "Stab of full", "stability of these units in the matching of all"),
    Column("orderedness_of_full", "Ord of full", "orderedness of these units in the matching of all"),
)
SAE_COLUMNS = (
    Column("units", "Units", digits=0),
    Column("zero", "Zero", "units without a direction", digits=0),
    Column("dead", "Dead", "units that never speak on the activations", digits=0),
    Column("explained_variance", "EV", "explained variance"),
    Column("l0", "L0", "units that speak in a sample", digits=1),
)
STITCHING_COLUMNS = tuple(COLUMNS[key] for key in ("novel", "reconstruction", "unchanged"))
NOVEL_COLUMNS = (
    Column("share_of_error", "Error removed", "share of the small SAE's error", format="significant"),
    Column("frequency", "Speaks in", "share of samples", format="significant"),
    Column("nearest", "Nearest unit", "unit of the small SAE", digits=0),
    Column("cosine", "Its cosine"),
)
CSV_HEAD: tuple[str, ...] = (
    "a",
    "b",
    "length",
    *("stability", "chance", "orderedness", "stability_of_full", "orderedness_of_full"),
    *("above_0.5", "above_0.7", "above_0.9"),
    *("stream_stability", "stream_orderedness", "optimal", "gap"),
)


def labels(result: Mapping[str, Any]) -> list[str]:
    """A short name of each SAE: as many of the last parts of its path as tell it from the others."""
    paths = [PurePath(sae["path"]).parts or (sae["path"],) for sae in result["saes"]]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-count:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{place}: {'/'.join(parts[-1:])}" for place, parts in enumerate(paths)]


def notes(result: Mapping[str, Any]) -> list[str]:
    """What there is to know besides the numbers."""
    names, said = labels(result), []
    pairs, handled = result["pairs"], result["options"]["dead"]
    if open_pairs := [pair for pair in pairs if not pair["matching"]["optimal"]]:
        gap = max(pair["matching"]["gap"] for pair in open_pairs)
        said.append(f"{len(open_pairs)} matchings are not certified: a better one may have {gap:.1e} more.")
    chance = [pair["chance"]["orderedness_std"] for pair in pairs if pair["chance"]]
    if chance:
        said.append(f"Orderedness of unrelated dictionaries is 0, give or take {max(chance):.3f}.")
    what = {"keep": "they count with cosine 0", "drop": "they are left out"}[handled]
    for name, sae in zip(names, result["saes"], strict=True):
        if zero := len(sae["zero_units"]):
            said.append(f"{name}: {zero} of {sae['units']} units have no direction; {what}.")
        if dead := len(sae["dead_units"] or []):
            kept = "they take part" if handled == "keep" else "they are left out"
            said.append(f"{name}: {dead} of {sae['units']} units never speak; {kept}.")
        if sae["reconstruction"] and (sae["reconstruction"]["explained_variance"] or 0) < 0:
            said.append(f"{name} explains less than the mean does: these are hardly its activations.")
    return said


def rich_comparison(result: Mapping[str, Any]) -> list["Table"]:
    """Three tables for the terminal: the SAEs, the pairs, the prefixes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    saes = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = [column for column in SAE_COLUMNS if _known(_sae_rows(result), column)]
    for title in ("", "SAE", "Format"):
        saes.add_column(title, overflow="fold")
    for column in columns:
        saes.add_column(column.title, justify="right", no_wrap=True)
    for place, (name, sae, row) in enumerate(
        zip(labels(result), result["saes"], _sae_rows(result), strict=True)
    ):
        cells = [str(place), name, sae["format"], *(column.text(row.get(column.key)) for column in columns)]
        saes.add_row(*map(Text, cells))
    pairs, prefixes = {"rows": _pair_rows(result, short=True)}, {"rows": _prefix_rows(result)}
    many = len(result["pairs"]) > 1
    return [
        saes,
        terminal_table([pairs], _pair_columns(result), title="Pairs", head="SAEs"),
        terminal_table(
            [prefixes],
            _known_columns(prefixes["rows"], PREFIX_COLUMNS),
            title=f"Prefixes{', means over pairs' if many else ''}",
            caption="± standard deviation over pairs" if many else "",
            head="Units",
        ),
    ]


def rich_stitching(result: Mapping[str, Any]) -> list["Table"]:
    """Two tables for the terminal: the three shares, and the most novel units."""
    shares = {"method": f"{result['large']['units']} units", **result}
    rows = [{**unit, "method": str(unit["unit"])} for unit in result["most_novel"]]
    title = f"Units of {result['large']['path']} added to {result['small']['path']}"
    tables = [terminal_table([{"rows": [shares]}], STITCHING_COLUMNS, title=title, head="")]
    if rows:
        novel = terminal_table([{"rows": rows}], NOVEL_COLUMNS, title="The most novel units", head="Unit")
        tables.append(novel)
    return tables


def _known(rows: Sequence[Mapping[str, Any]], column: Column) -> bool:
    return any(row.get(column.key) for row in rows)


def _known_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if any(row.get(column.key) is not None for row in rows)]


def _sae_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"method": name, "units": sae["units"], "zero": len(sae["zero_units"])}
        | ({} if sae["dead_units"] is None else {"dead": len(sae["dead_units"])})
        | (sae["reconstruction"] or {})
        for name, sae in zip(labels(result), result["saes"], strict=True)
    ]


def _pair_columns(result: Mapping[str, Any]) -> list[Column]:
    return _known_columns(_pair_rows(result, short=True), PAIR_COLUMNS + STREAM_COLUMNS)


def _pair_rows(result: Mapping[str, Any], *, short: bool) -> list[dict[str, Any]]:
    """A row per pair, named by numbers if `short`, and one for the mean of several."""
    names = list(map(str, range(len(result["saes"])))) if short else labels(result)
    rows = [
        {
            "method": f"{names[pair['a']]} – {names[pair['b']]}",
            "stability": pair["stability"],
            "chance": _level(pair),
            "orderedness": pair["orderedness"],
            **pair["above"],
            **{f"stream_{key}": value for key, value in (pair["stream"] or {}).items()},
        }
        for pair in result["pairs"]
    ]
    summary = result["summary"]
    if len(rows) > 1:
        streams = {key: summary[key] for key in ("stream_stability", "stream_orderedness")}
        means = {"stability": summary["stability"], "orderedness": summary["orderedness"]}
        rows.append({"method": "mean", **means, **summary["above"], **streams})
    return rows


def _prefix_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per prefix length: the means over the pairs that have it."""
    levels = {}
    for pair in result["pairs"]:
        for prefix in pair["prefixes"]:
            levels.setdefault(prefix["length"], _level(prefix))
    return [
        {**prefix, "method": f"first {prefix['length']}", "chance": levels[prefix["length"]]}
        for prefix in result["summary"]["prefixes"]
    ]


def _level(measured: Mapping[str, Any]) -> float | None:
    return measured["chance"]["stability"] if measured["chance"] else None


def write_comparison_csv(result: Mapping[str, Any], path: Path | str) -> None:
    """Write a CSV file with a line per pair, its `length` empty, and one per pair and prefix length."""
    names = labels(result)
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, CSV_HEAD, restval="")
        table.writeheader()
        for pair in result["pairs"]:
            ends = {"a": names[pair["a"]], "b": names[pair["b"]]}
            whole = {key: pair[key] for key in ("stability", "orderedness")} | {"chance": _level(pair)}
            whole |= {f"above_{key}": share for key, share in pair["above"].items()}
            whole |= {f"stream_{key}": value for key, value in (pair["stream"] or {}).items()}
            whole |= {key: pair["matching"][key] for key in ("optimal", "gap")}
            table.writerow(ends | whole)
            table.writerows({**prefix, **ends, "chance": _level(prefix)} for prefix in pair["prefixes"])


def write_comparison_page(result: Mapping[str, Any], path: Path | str) -> None:
    """Write the comparison as one HTML page that needs no server and no network."""
    with tempfile.TemporaryDirectory() as folder:
        text = comparison_page(result, Path(folder))
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def comparison_page(result: Mapping[str, Any], folder: Path) -> str:
    """The whole HTML page; figures are drawn in the folder and embedded."""
    saes, pairs = {"rows": _sae_rows(result)}, {"rows": _pair_rows(result, short=False)}
    prefixes = {"rows": _prefix_rows(result)}
    body = [
        *notes_part(_in_short(result) + notes(result)),
        "<section><h2>Pairs</h2>",
        *table_part(
            pairs, _pair_columns(result), name="Pairs", about="one row per pair of SAEs", head="SAEs"
        ),
        f'<p class="small">{escape(LEGEND)}</p></section><section><h2>Prefixes</h2>',
        *table_part(
            prefixes,
            _known_columns(prefixes["rows"], PREFIX_COLUMNS),
            name="Prefixes",
            about="one row per prefix length",
            head="Units",
        ),
        "</section>",
        *figures_part(list(_draw(result, folder)), folder),
        "<section><h2>SAEs</h2>",
        *table_part(
            saes,
            [column for column in SAE_COLUMNS if _known(saes["rows"], column)],
            name="SAEs",
            about="one row per SAE",
            head="SAE",
        ),
        "</section>",
        *facts_part("What was compared", _facts(result)),
        *json_part(_without_matchings(result)),
    ]
    return document(f"{len(result['saes'])} SAEs compared", "compare", body)


LEGEND = (
    "Stab: mean cosine of matched units under the best one-to-one matching. Ord: rank correlation of their "
    "places. Of a mean over pairs the standard deviation is in brackets; point at it for its 95 % interval, "
    "from a bootstrap over SAEs, because pairs share SAEs."
)


def _in_short(result: Mapping[str, Any]) -> list[str]:
    summary, levels = result["summary"], [_level(pair) for pair in result["pairs"]]
    known = [level for level in levels if level is not None]
    chance = f" (by chance {fixed(max(known), 3)})" if known else ""
    over = f", mean of {summary['pairs']} pairs" if summary["pairs"] > 1 else ""
    stability, orderedness = (fixed(summary[key]["mean"], 3) for key in ("stability", "orderedness"))
    return [f"Stability {stability}{chance}, orderedness {orderedness}{over}."]


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The SAEs, the options and the versions, as HTML."""
    activations, provenance = result["activations"], result["provenance"]
    facts = {
        f"SAE {place}": f"{escape(sae['path'])} · {escape(sae['format'])} · sha256 {sae['sha256'][:16]} "
        f"· {escape(sae['sparsifier'] or MISSING)}"
        for place, sae in enumerate(result["saes"])
    }
    if activations:
        facts["Activations"] = escape(f"{activations['path']}: {activations['rows']:,} rows")
    facts["Options"] = escape(", ".join(f"{key} {value}" for key, value in result["options"].items()))
    command = provenance.get("command")
    facts["Command"] = f"<code>{escape(command)}</code>" if command else ""
    facts["Date"] = escape(provenance.get("date", ""))
    facts["Versions"] = versions_text(provenance["versions"])
    return facts


def _without_matchings(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers without the list of all matched units, which is long."""
    short = [
        {**pair, "matching": {key: pair["matching"][key] for key in ("optimal", "gap")}}
        for pair in result["pairs"]
    ]
    return {**result, "pairs": short}


def _draw(result: Mapping[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    """Draws the figures, and yields each with its caption."""
    from osae.report import figures

    shown = result["pairs"][:PANELS]
    figures.lines_by_prefix(
        _curves(result), folder / "prefixes.png", title="Consistency of the prefixes", chance=_chance(result)
    )
    yield {"file": "prefixes.png", "caption": "Stability and orderedness of the first units, matched anew."}
    panels = [_panel(result, pair) for pair in shown]
    figures.matching_scatter(
        panels,
        folder / "matching.png",
        title="Where each unit is found in the other SAE",
        x_label="place in the first SAE",
        y_label="place in the second SAE",
    )
    of = f"the first {PANELS} of {len(result['pairs'])} pairs" if len(shown) < len(result["pairs"]) else ""
    yield {"file": "matching.png", "caption": f"A dot per pair of matched units{of and ': '}{of}."}


def _panel(result: Mapping[str, Any], pair: Mapping[str, Any]) -> dict[str, Any]:
    left, right, similarity = zip(*pair["matching"]["pairs"], strict=True)
    names = labels(result)
    return {
        "title": f"{names[pair['a']]} – {names[pair['b']]}",
        "left": left,
        "right": right,
        "similarity": similarity,
        "units": max(*left, *right) + 1,
        "stability": pair["stability"],
        "orderedness": pair["orderedness"],
    }


def _curves(result: Mapping[str, Any]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By measure a line per pair, or, if there are many, one line of their means with its interval."""
    names = labels(result)
    curves: dict[str, dict[str, dict[str, list[float]]]] = {}
    for key in ("stability", "orderedness"):
        if len(result["pairs"]) <= PANELS:
            curves[key] = {
                f"{names[pair['a']]} – {names[pair['b']]}": {
                    "prefix": [prefix["length"] for prefix in pair["prefixes"]],
                    "mean": [prefix[key] for prefix in pair["prefixes"]],
                }
                for pair in result["pairs"]
            }
        else:
            rows = result["summary"]["prefixes"]
            line = {name: [row[key][name] for row in rows] for name in ("mean", "low", "high")}
            curves[key] = {"mean of pairs": {"prefix": [row["length"] for row in rows], **line}}
    return curves


def _chance(result: Mapping[str, Any]) -> dict[str, Any]:
    rows = [row for row in _prefix_rows(result) if row["chance"] is not None]
    if not rows:
        return {}
    level = {"prefix": [row["length"] for row in rows], "mean": [row["chance"] for row in rows]}
    return {"stability": level, "orderedness": 0.0}
