"""An evaluation of SAEs (the dict that `osae evaluate` makes) for the terminal, as CSV and as a page."""

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.files import atomic_write
from osae.report.columns import COLUMNS, MISSING, Column
from osae.report.comparison import labels
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

LENGTHS = 8  # prefix lengths shown in a table; all are in the figure, the CSV and the JSON
SAE_COLUMNS = (
    Column("units", "Units", digits=0),
    *(COLUMNS[key] for key in ("mse", "explained_variance", "l0", "dead")),
    Column("spliced", "CE", "cross-entropy of the model with the SAE put in", better="low"),
    Column("recovered", "CE recovered", "share of the cross-entropy that zeros lose", better="high"),
)
CSV_HEAD: tuple[str, ...] = (
    *("sae", "length", "units", "mse", "explained_variance", "l0", "dead"),
    *("cross_entropy", "recovered"),
)
LEGEND = (
    "MSE: mean squared error over rows and coordinates. EV: share of the variance that is explained. L0: "
    "units that speak in a row. Dead: share of units that never speak on these rows."
)
CE_LEGEND = (
    " CE: cross-entropy of the model with the SAE put in; recovered: 1 is as good as the model itself, "
    "0 as bad as with zeros."
)


def rich_evaluation(result: Mapping[str, Any]) -> list["Table"]:
    """Two tables for the terminal: the SAEs, and what their prefixes explain."""
    rows, prefixes = _sae_rows(result), _prefix_rows(result)
    rows_of = f"{result['activations']['rows']:,} rows of {result['activations']['path']}"
    return [
        terminal_table([{"rows": rows}], _columns(rows), title=f"On {rows_of}", head="SAE"),
        terminal_table(
            [{"rows": prefixes}],
            _prefix_columns(result),
            title="Variance explained by the first units",
            head="SAE",
        ),
    ]


def notes(result: Mapping[str, Any]) -> list[str]:
    """What there is to know besides the numbers."""
    found, said = result["cross_entropy"], []
    if found:
        place = found["model"]["module"] or f"layer {found['model']['layer']}"
        clean, zero = (Column("", "").text(found[key]) for key in ("clean", "zero"))
        said.append(
            f"Cross-entropy on {found['tokens']:,} tokens: {clean} for {found['model']['name']} as it is, "
            f"{zero} with zeros at {place}."
        )
    return said + list(result["notes"])


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    return [column for column in SAE_COLUMNS if any(row.get(column.key) is not None for row in rows)]


def _sae_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"method": name, **{column.key: sae.get(column.key) for column in SAE_COLUMNS}}
        | (sae["cross_entropy"] or {})
        for name, sae in zip(labels(result), result["saes"], strict=True)
    ]


def _prefix_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per SAE: what its prefixes explain, by length."""
    return [
        {"method": name}
        | {f"first_{prefix['length']}": prefix["explained_variance"] for prefix in sae["prefixes"]}
        for name, sae in zip(labels(result), result["saes"], strict=True)
    ]


def _prefix_columns(result: Mapping[str, Any]) -> list[Column]:
    """A column for each of a few lengths: those asked for, or else some from the shortest to the longest."""
    lengths = sorted({prefix["length"] for sae in result["saes"] for prefix in sae["prefixes"]})
    if asked := result["options"]["prefixes"]:
        lengths = sorted({*asked, lengths[-1]})
    every = -(-len(lengths) // LENGTHS)
    return [
        Column(f"first_{length}", f"first {length}", f"variance explained by the first {length} units")
        for length in lengths[::-1][::every][::-1]
    ]


def write_evaluation_csv(result: Mapping[str, Any], path: Path | str) -> None:
    """Write a CSV file with a line per SAE, its `length` empty, and one per SAE and prefix length."""
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, CSV_HEAD, restval="")
        table.writeheader()
        for name, sae in zip(labels(result), result["saes"], strict=True):
            whole = {key: sae[key] for key in ("units", "mse", "explained_variance", "l0", "dead")}
            if found := sae["cross_entropy"]:
                whole |= {"cross_entropy": found["spliced"], "recovered": found["recovered"]}
            table.writerow({"sae": name, **whole})
            table.writerows({"sae": name, "units": sae["units"], **prefix} for prefix in sae["prefixes"])


def write_evaluation_page(result: Mapping[str, Any], path: Path | str) -> None:
    """Write the evaluation as one HTML page that needs no server and no network."""
    with tempfile.TemporaryDirectory() as folder:
        text = evaluation_page(result, Path(folder))
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def evaluation_page(result: Mapping[str, Any], folder: Path) -> str:
    """The whole HTML page; figures are drawn in the folder and embedded."""
    rows, prefixes = _sae_rows(result), _prefix_rows(result)
    body = [
        *notes_part(notes(result)),
        "<section><h2>SAEs</h2>",
        *table_part({"rows": rows}, _columns(rows), name="SAEs", about="one row per SAE", head="SAE"),
        f'<p class="small">{escape(LEGEND + (CE_LEGEND if result["cross_entropy"] else ""))}</p></section>',
        "<section><h2>Variance explained by the first units</h2>",
        *table_part(
            {"rows": prefixes},
            _prefix_columns(result),
            name="Prefixes",
            about="one row per SAE, one column per prefix length",
            head="SAE",
        ),
        "</section>",
        *figures_part(list(_draw(result, folder)), folder),
        *facts_part("What was evaluated", _facts(result)),
        *json_part(result),
    ]
    many = len(result["saes"])
    return document(f"{many} SAE{'s' if many > 1 else ''} evaluated", "evaluate", body)


def _draw(result: Mapping[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    """Draws the figures, and yields each with its caption."""
    from osae.report import figures

    curves = {
        key: {
            name: {
                "prefix": [prefix["length"] for prefix in sae["prefixes"]],
                "mean": [prefix[key] for prefix in sae["prefixes"]],
            }
            for name, sae in zip(labels(result), result["saes"], strict=True)
        }
        for key in ("explained_variance", "mse")
    }
    figures.lines_by_prefix(curves, folder / "prefixes.png", title="Reconstruction by the first units")
    yield {
        "file": "prefixes.png",
        "caption": "What the first units of each SAE rebuild by themselves, in the order they have.",
    }
    figures.curve(
        dict(_frequency_lines(result)),
        folder / "frequencies.png",
        title="How often units speak",
        x_label="log10 of the share of rows in which a unit speaks",
        y_label="share of units",
    )
    yield {
        "file": "frequencies.png",
        "caption": "The share of each SAE's units by how often they speak; units that never do are left out.",
    }


def _frequency_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, tuple[list[float], list[float]]]]:
    for name, sae in zip(labels(result), result["saes"], strict=True):
        edges, units = sae["frequencies"]["edges"], sae["frequencies"]["units"]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        yield name, (middles, [number / sae["units"] for number in units])


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The SAEs, the activations and the versions, as HTML."""
    activations, provenance = result["activations"], result["provenance"]
    facts = {
        f"SAE {place}": f"{escape(sae['path'])} · {escape(sae['format'])} · sha256 {sae['sha256'][:16]} "
        f"· {escape(sae['sparsifier'] or MISSING)}"
        for place, sae in enumerate(result["saes"])
    }
    facts["Activations"] = escape(
        f"{activations['path']}: {activations['rows']:,} rows, sha256 {activations['sha256'][:16]}"
    )
    if found := result["cross_entropy"]:
        name = " ".join(part for part in (found["model"]["name"], found["model"]["revision"]) if part)
        facts["Model"] = escape(f"{name}: {found['tokens']:,} tokens in {found['contexts']:,} contexts")
    facts["Options"] = escape(", ".join(f"{key} {value}" for key, value in result["options"].items()))
    command = provenance.get("command")
    facts["Command"] = f"<code>{escape(command)}</code>" if command else ""
    facts["Date"] = escape(provenance.get("date", ""))
    facts["Versions"] = versions_text(provenance["versions"])
    return facts
