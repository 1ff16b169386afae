"""Markdown pages of experiments."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from osae.report import markdown_table, render_markdown
from osae.results import Interval, Row, Table, read

EVIDENCE = Path(__file__).parents[2] / "evidence"


def test_markdown_has_every_method_the_published_numbers_and_the_chance_level(experiment):
    text = render_markdown(experiment)
    numbers, claims = text.split("## Claims")
    for part in (numbers, claims):
        table = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert r"| `osae` <b>is</b> \| ahead. | 0.97 & 0.70 | holds in part |" in claims
    assert all(f"`{row.method}`" in text for row in experiment.rows)
    assert "paper 0.538 (0.011)" in text
    assert "paper 0.0339 (0.0063)" in text
    assert "*chance level* | *0.312*" in text
    assert "3 (seeds 0 to 2), 3 pairs" in text
    assert "width 80, units 100, zipf 1.2, samples 100,000" in text
    assert "pairs that share a seed" in text
    assert "- osae is ahead." in text


def test_markdown_of_several_worlds_has_a_table_for_each(experiment, sections):
    text = render_markdown(replace(experiment, rows=(), sections=sections))
    assert text.count("| Method |") == len(sections)
    assert all(f"## {section.title}" in text for section in sections)
    assert "World: SparseWorld: zipf 0.5" in text
    assert render_markdown(replace(experiment, sections=sections)).count("| Method |") == len(sections) + 1


def test_a_section_may_have_columns_of_its_own(experiment, sections):
    own = replace(sections[0], title="Its own", columns=("mse",))
    text = render_markdown(replace(experiment, rows=(), sections=(*sections, own)))
    *others, last = text.split("| Method |")[1:]
    assert last.splitlines()[0] == " MSE |"
    assert all(other.splitlines()[0] != " MSE |" for other in others)


def test_any_table_by_itself():
    rows = (
        Row("first 16", {"stability": 0.5, "stability_chance": 0.25}),
        Row("mean", {"stability": Interval(0.5, 0.1)}, summary=True),
    )
    text = markdown_table(Table("Prefixes", "Units", ("stability", "stability_chance"), rows))
    assert text.splitlines() == [
        "| Units | Stab | by chance |",
        "| :-- | --: | --: |",
        "| first 16 | 0.500 | 0.250 |",
        "| *mean* | 0.500 (0.100) | – |",
    ]


def test_a_single_pair_has_no_spread(experiment):
    rows = [
        replace(row, measures={"stability_pairs": Interval(0.89, 0.0, 0.89, 0.89)}) for row in experiment.rows
    ]
    assert "(0.000)" not in render_markdown(replace(experiment, seeds=(0, 1), rows=tuple(rows)))


def test_names_cannot_break_a_table_or_hide_text():
    text = markdown_table(Table("", "Method", ("mse",), (Row("a\n| b | c\x1b[2J", {"mse": 1.0}),)))
    assert text.splitlines()[2] == r"| `a \| b \| c\x1b[2J` | 1.00 |"


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in EVIDENCE.glob("*/results.json")))
def test_kept_results_give_the_kept_numbers(folder):
    kept = (EVIDENCE / folder / "table.md").read_text(encoding="utf-8")
    made = render_markdown(read(EVIDENCE / folder / "results.json"))
    assert _cells(made) == _cells(kept)


def _cells(text):
    """The cells of all tables, whether they stand out or not."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line.replace("**", "")) for line in lines]
