"""Tables on the terminal fit it, and show text instead of obeying it."""

from dataclasses import dataclass, replace
from io import StringIO
from typing import ClassVar

import pytest
from rich.console import Console

from osae.report import show
from osae.report.terminal import rich_tables
from osae.results import Interval, Result, Row, Table


@dataclass(frozen=True, repr=False)
class Sample(Result):
    """A result that is a table and a few sentences."""

    KIND: ClassVar[str] = "sample"

    shown: Table
    lines: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()

    def tables(self):
        return [self.shown]

    def summary(self):
        return list(self.lines)

    def remarks(self):
        return list(self.besides)


def text_of(tables, width=110):
    console = Console(width=width, file=StringIO(), record=True, color_system=None)
    for table in tables:
        console.print(table)
    return console.export_text()


def width_of(text):
    return max(len(line.rstrip()) for line in text.splitlines())


def test_all_columns_of_table_1_fit_100_columns(experiment):
    rows = (*experiment.rows, replace(experiment.rows[0], method="topk-sorted-by-gain"))
    text = text_of(rich_tables(replace(experiment, rows=rows), width=100), 100)
    assert "…" not in text
    assert width_of(text) <= 100
    assert all(row.method in text for row in rows)
    for number in ("0.538", "0.0339", "<0.001", "Seconds"):
        assert number in text
    assert "Not shown" not in text


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_drop_columns_from_the_right_and_say_so(experiment, width):
    (table,) = rich_tables(experiment, width=width)
    text = text_of([table], width)
    assert width_of(text) <= width
    titles = [str(column.header).replace("\n", " ") for column in table.columns]
    every = [column.title for column in experiment.tables()[0].measures()]
    assert titles == ["Method", *every[: len(titles) - 1]]
    assert 2 <= len(titles) <= len(every)
    assert all(title in str(table.caption) for title in every[len(titles) - 1 :])
    assert "…" not in text


def test_tables_of_several_worlds_share_their_columns(experiment, sections):
    tables = rich_tables(replace(experiment, rows=(), sections=sections))
    assert [str(table.title) for table in tables] == [section.title for section in sections]
    assert len({tuple(str(column.header) for column in table.columns) for table in tables}) == 1
    assert [str(table.title) for table in rich_tables(experiment)] == [experiment.title]


def test_means_stand_below_the_rows_they_are_of():
    rows = (Row("mean", {"mse": 3.0}, summary=True), Row("a", {"mse": 1.0}), Row("b", {"mse": 2.0}))
    words = text_of(rich_tables(Sample(Table("", "SAEs", ("mse",), rows)))).split()
    assert words.index("a") < words.index("b") < words.index("mean")


def test_show_prints_tables_then_every_sentence_once(capsys):
    table = Table("Pairs", "SAEs", ("stability",), (Row("0 – 1", {"stability": 0.5}),), note="matched anew")
    show(Sample(table, ("Stability 0.500.", "A :smile: [bold]note[/bold]."), ("Stability 0.500.", "More.")))
    text = capsys.readouterr().out
    assert (
        text.index("Pairs") < text.index("0.500") < text.index("- Stability 0.500.") < text.index("- More.")
    )
    assert text.count("- Stability 0.500.") == 1
    assert "- A :smile: [bold]note[/bold]." in text
    assert "matched anew" in text


def test_text_from_files_cannot_steer_the_terminal(capsys):
    evil = "\x1b[2J\nverified yes\x07" + "x" * 1_000_000
    table = Table(evil, "SAE", ("mse",), (Row(evil, {"mse": 1.0}),), note=evil)
    show(Sample(table, (evil,)))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"\x1b[2J verified yes\x07" in text
    assert len(text) < 20_000


def test_one_pair_shows_no_spread(experiment):
    measures = {"stability_pairs": Interval(0.89, 0.0, 0.89, 0.89)}
    result = replace(experiment, seeds=(0, 1), rows=(replace(experiment.rows[0], measures=measures),))
    assert "±" not in text_of(rich_tables(result))
