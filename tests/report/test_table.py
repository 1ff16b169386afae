import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osae.report.columns import (
    COLUMNS,
    MISSING,
    column,
    columns_of,
    fixed,
    measured,
    sections_of,
    significant,
)
from osae.report.table import (
    best_methods,
    comparison,
    describe_seeds,
    describe_world,
    markdown,
    rich_table,
    rich_tables,
    write_csv,
)

sane = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(sane, st.integers(0, 6))
def test_fixed_text_reads_back_within_half_of_its_last_place(value, digits):
    text = fixed(value, digits)
    assert abs(float(text) - value) <= 0.5001 * 10.0**-digits + 1e-15 * abs(value)
    assert not (text.startswith("-") and float(text) == 0)


@given(sane, st.integers(2, 6))
def test_significant_text_reads_back_within_half_of_its_last_digit(value, digits):
    assert math.isclose(float(significant(value, digits)), value, rel_tol=0.5001 * 10.0 ** (1 - digits))


@given(st.floats(1e-9, 1e4))
def test_a_positive_spread_is_never_written_as_zero(std):
    text = COLUMNS["stability_truth"].spread(std)
    assert text == "<0.001" if std < 0.0005 else abs(float(text) - std) <= 0.000501


def test_numbers_are_written_as_in_the_paper():
    mse = column("mse")
    texts = [mse.text(v) for v in (2.53e-4, 0.0257, 0.00725, 0.9999, 0.0, None, math.nan)]
    assert texts == ["2.53e-04", "0.0257", "0.00725", "1.00", "0", MISSING, MISSING]
    assert column("stability_pairs").text(-0.0001) == "0.000"
    assert column("angle_of_units").title == "Angle of units"


def test_cells_hold_ours_with_the_published_number_beside(results):
    rows = {row.method: row for row in comparison(results)}
    cell = rows["matryoshka-fixed"].cells[0]
    assert str(cell) == "0.880 (0.010) · paper 0.538 (0.011)"
    assert cell.interval == "0.875 to 0.885"
    assert rows["matryoshka-fixed"].paper_label == "Fixed MSAE <1>"
    assert str(rows["osae"].cells[1]) == "0.967 (<0.001)"
    assert str(rows["osae"].cells[4]) == "2.61e-04 (1.2e-05)"


def test_missing_values_are_en_dashes_and_columns_without_numbers_are_left_out(results):
    del results["rows"][0]["mse"]
    results["rows"][1]["mse"] = {"mean": None}
    for row in results["rows"]:
        row["dead"] = None
    keys = [c.key for c in columns_of(results)]
    assert "dead" not in keys
    texts = [str(row.cells[keys.index("mse")]) for row in comparison(results)]
    assert texts[:2] == [MISSING, MISSING]


def test_results_choose_their_columns(results):
    results["columns"] = ["mse", "l0"]
    assert [c.title for c in columns_of(results)] == ["MSE", "L0"]
    assert str(comparison(results)[0].cells[1]) == MISSING


def test_best_are_the_best_mean_and_those_its_interval_overlaps(results):
    rows = results["rows"]
    assert best_methods(rows, COLUMNS["stability_pairs"]) == {"osae"}
    rows[2]["stability_pairs"] = {"mean": 0.9, "std": 0.1, "low": 0.8, "high": 0.99}
    assert best_methods(rows, COLUMNS["stability_pairs"]) == {"osae", "matryoshka-fixed"}
    assert best_methods(rows, COLUMNS["dead"]) == set()  # all equal: none stands out
    assert best_methods(rows, COLUMNS["seconds"]) == set()
    for row in rows:
        row["reference"] = row["method"] == "osae"
    assert "osae" not in best_methods(rows, COLUMNS["stability_pairs"])


def test_markdown_has_every_method_the_published_numbers_and_the_chance_level(results):
    text = markdown(results)
    numbers, claims = text.split("## Claims")
    for part in (numbers, claims):
        table = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert r"| `osae` <b>is</b> \| ahead. | 0.97 & 0.70 | holds in part |" in claims
    assert all(f"`{row['method']}`" in text for row in results["rows"])
    assert "paper 0.538 (0.011)" in text
    assert "paper 0.0339 (0.0063)" in text
    assert "*chance level* | *0.312*" in text
    assert "3 (seeds 0 to 2), 3 pairs" in text
    assert "width 80, units 100, zipf 1.2, samples 100,000" in text
    assert "bootstrap over seeds" in text
    assert "- osae is ahead." in text


def test_markdown_of_several_worlds_has_a_table_for_each(sections):
    text = markdown({"title": "Sweep", "sections": sections})
    assert text.count("| Method |") == len(sections)
    assert all(f"## {section['title']}" in text for section in sections)
    assert len(sections_of({"sections": sections, "rows": sections[0]["rows"]})) == len(sections) + 1


def test_a_section_may_have_columns_of_its_own(sections):
    own = {**sections[0], "title": "Its own", "columns": ["mse"]}
    *others, last = markdown({"title": "Sweep", "sections": [*sections, own]}).split("| Method |")[1:]
    assert last.splitlines()[0] == " MSE |"
    assert all(other.splitlines()[0] != " MSE |" for other in others)


def test_csv_gives_the_same_numbers_back(results, tmp_path):
    write_csv(results, tmp_path / "results.csv")
    with open(tmp_path / "results.csv", newline="") as file:
        lines = {(line["method"], line["measure"]): line for line in csv.DictReader(file)}
    for row in results["rows"]:
        for key, value in row.items():
            if key in ("method", "paper"):
                continue
            line = lines[row["method"], key]
            assert {n: float(line[n]) for n in measured(value)} == measured(value)
    assert float(lines["matryoshka-fixed", "mse"]["paper_std"]) == 0.00635
    assert lines["osae", "mse"]["paper_mean"] == ""
    assert lines["osae", "seconds"]["std"] == ""


def test_terminal_table_fits_100_columns_and_shows_the_paper(results):
    from rich.console import Console

    results["rows"].append({**results["rows"][0], "method": "topk-sorted-by-gain"})
    console = Console(width=100, file=io.StringIO(), record=True, color_system=None)
    console.print(rich_table(results))
    text = console.export_text()
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert all(row["method"] in text for row in results["rows"])
    assert "0.538" in text
    assert "0.0339" in text
    assert "<0.001" in text


def test_terminal_tables_of_several_worlds_share_their_columns(results, sections):
    tables = rich_tables({**results, "rows": [], "sections": sections})
    assert [str(table.title) for table in tables] == [section["title"] for section in sections]
    assert len({tuple(str(column.header) for column in table.columns) for table in tables}) == 1
    assert [str(table.title) for table in rich_tables(results)] == [results["title"]]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([], ""),
        ([4], "1 (seed 4)"),
        ([0, 1], "2 (seeds 0 to 1), 1 pair"),
        ([0, 7, 9], "3 (seeds 0, 7, 9), 3 pairs"),
    ],
)
def test_seeds_in_words(seeds, words):
    assert describe_seeds(seeds) == words


def test_world_in_words_keeps_what_is_nested():
    world = {"kind": "Mixture", "parts": {"kind": "PCAWorld", "width": 8}, "zipf": 1.2}
    assert describe_world(world) == "Mixture: parts (PCAWorld: width 8), zipf 1.2"
    assert (
        describe_world({"positive": True, "strengths": None, "ends": [8, 16]}) == "positive yes, ends (8, 16)"
    )
    assert describe_world({"strengths": [0.5 * i for i in range(20)]}) == "strengths (0, 0.5, ..., 9.5)"
    assert describe_world(None) == ""
