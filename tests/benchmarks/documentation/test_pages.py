"""Places in pages are found and filled."""

import pytest

from benchmarks import ROOT
from benchmarks.documentation import code, pages
from osae.measures import Measure, added

TABLE = ["| Method | A | B |", "| :-- | --: | --: |", "| `x` | 1 | 2 \\| 3 |", "| *y* |  | 4 |"]


def test_places_are_found_and_a_wrong_table_is_replaced():
    text = (ROOT / "docs" / "evidence.md").read_text()
    assert len(pages.PLACE.findall(text)) >= 10
    assert pages.fill_page(text.replace("holds |", "fails |")) == text


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- from evidence/toy: Absent -->\n<!-- end -->", "no table 'Absent'"),
        ("<!-- from evidence/toy: Claims -->\n" * 2 + "<!-- end -->", "no matching `<!-- end -->`"),
        ("<!-- from evidence/toy: results; columns Absent -->\n<!-- end -->", "no column 'Absent'"),
        ("<!-- from evidence/toy: results; rows absent -->\n<!-- end -->", "no row 'absent'"),
        ("<!-- from osae: absent -->\n<!-- end -->", "nothing called 'absent'"),
    ],
)
def test_a_place_that_cannot_be_filled_is_refused(page, message):
    with pytest.raises(ValueError, match=message):
        pages.fill_page(page)


def test_all_cells_are_kept_as_they_are():
    assert list(pages.select_cells(TABLE, None, None)) == TABLE


def test_columns_and_rows_can_be_chosen():
    assert list(pages.select_cells(TABLE, ["B"], ["x"])) == [
        "| Method | B |",
        "| :-- | --: |",
        "| `x` | 2 \\| 3 |",
    ]
    assert list(pages.select_cells(TABLE, None, ["y"]))[2:] == [TABLE[3]]
    claims = [*TABLE[:2], "| All of it, or none. | 1 | 2 |", "| Nothing. | 3 | 4 |"]
    assert list(pages.select_cells(claims, None, ["All of it…"]))[2:] == claims[2:3]


def test_a_new_measure_is_found_in_the_documentation():
    with added(Measure("new_measure", "New", "new measure", "What it means.")):
        assert "| New | `new_measure` | What it means. | – |" in code.tabulate_measures()
    assert "new_measure" not in code.tabulate_measures()


def test_programs_are_shown_as_they_are():
    filled = pages.fill_page("<!-- from examples/quickstart.py: code -->\nold\n<!-- end -->")
    assert (ROOT / "examples" / "quickstart.py").read_text().strip() in filled
    assert "old" not in filled
