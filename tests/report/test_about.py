"""Every study has a page: its own title, figures and provenance around the tables that all results have."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from osae.data.worlds import SparseWorld
from osae.measures import Measure, added
from osae.report import render_page, show
from osae.report.about import describe
from osae.results import Comparison, Evaluation, Interval, Ordering, read
from osae.results.codec import from_json
from osae.results.subject import SourceInfo
from osae.studies.compare import compare
from tests.report.test_page import seen
from tests.studies.saes import make_sae

KEPT = Path(__file__).parents[1] / "fixtures" / "release-0.1.0"
AWKWARD = r"$\frac$ <b>\alpha & _x"


def read_back(result):
    return from_json(type(result), result.to_json())


def kept(name):
    return read(KEPT / f"{name}.json")


@pytest.fixture
def three():
    result = kept("compare-three")
    assert isinstance(result, Comparison)
    return result


@pytest.fixture
def two():
    result = kept("compare-two")
    assert isinstance(result, Comparison)
    return result


@pytest.fixture
def evaluation():
    result = kept("evaluate")
    assert isinstance(result, Evaluation)
    return result


@pytest.mark.parametrize(
    ("name", "title", "images"),
    [
        ("compare-two", "Comparison of 2 SAEs", 2),
        ("compare-three", "Comparison of 3 SAEs", 2),
        ("evaluate", "Evaluation of 6 SAEs", 2),
        ("stitch", "Stitching of two SAEs", 1),
    ],
)
def test_every_study_has_a_page_with_its_tables_figures_and_provenance(name, title, images):
    result = kept(name)
    parsed = seen(render_page(result))
    text = "".join(parsed.text)
    assert f"<h1>{title}</h1>" in render_page(result)
    assert [each.get("class") for each in parsed.all("table")].count("sortable") == len(result.tables())
    assert len([each for each in parsed.all("figure") if "data-plot" in each]) == images
    assert all(line in text for line in [*result.summary(), *result.remarks()])
    assert result.provenance.command in text
    assert all(sae.sha256[:16] in text for sae in getattr(result, "saes", ()))


def test_an_ordering_has_a_page(evaluation):
    sae = evaluation.saes[0]
    source = SourceInfo(sae.path, sae.format, sae.sha256, 3, sae.width, sae.sparsifier, sae.notes)
    result = Ordering(evaluation.provenance, evaluation.activations, source, "gain", (2, 0, 1), 3, -0.5)
    text = "".join(seen(render_page(result)).text)
    assert "Units ordered by gain" in text
    assert "3 of 3 units moved" in text
    (plot,) = describe(result, Path()).figures
    assert (plot.panels[0].dots.x, plot.panels[0].dots.y) == ((2, 0, 1), (0, 1, 2))


def test_one_pair_is_shown_without_a_spread_or_an_interval(two, capsys):
    empty = Interval(0.5, 0.0, 0.5, 0.5)
    prefixes = tuple(replace(prefix, measures={"stability": empty}) for prefix in two.means.prefixes)
    two = replace(two, means=replace(two.means, prefixes=prefixes, measures={"stability": empty}))
    html = render_page(two).split("<details>")[0]
    show(two)
    assert f"{two.pairs[0].stability:.3f}" in html
    for text in (html, capsys.readouterr().out):
        assert "(0.000)" not in text
        assert "±0.000" not in text
        assert "95 %" not in text


def test_several_pairs_have_their_spread_and_their_interval(three):
    html = render_page(three)
    mean = three.means.measures["stability"]
    assert f'title="95 % interval: {mean.low:.3f} to {mean.high:.3f}"' in html
    assert f"({mean.std:.3f})" in html


def test_the_mean_of_pairs_is_in_the_foot_where_sorting_leaves_it(three):
    bodies = re.findall(r"<tbody>(.*?)</tbody>", render_page(three), re.DOTALL)
    feet = re.findall(r"<tfoot>(.*?)</tfoot>", render_page(three), re.DOTALL)
    assert not any("mean of 3 pairs" in body for body in bodies)
    assert sum("mean of 3 pairs" in foot for foot in feet) == 1


def test_prefixes_carry_the_number_they_sort_by(three):
    lengths = [prefix.length for prefix in three.means.prefixes]
    assert len(lengths) > 1
    for length in lengths:
        assert f'<th scope="row" data-value="{float(length)}">first {length}</th>' in render_page(three)


def test_names_of_files_are_text_wherever_they_stand(three, evaluation):
    for result in (three, evaluation):
        saes = tuple(replace(sae, path=f"{AWKWARD} {place}") for place, sae in enumerate(result.saes))
        parsed = seen(render_page(replace(result, saes=saes)))
        assert not parsed.all("b")
        assert f"{AWKWARD} 1" in "".join(parsed.text)
        assert len(parsed.all("figure")) == 2


def test_many_pairs_are_drawn_as_their_mean(three):
    lines, dots = describe(replace(three, pairs=three.pairs * 3), Path()).figures
    stability = lines.panels[0].lines
    assert [line.name for line in stability] == ["mean of pairs", "chance level"]
    assert list(stability[0].y) == [prefix.measures["stability"].mean for prefix in three.means.prefixes]
    assert len(dots.panels) == 8
    assert "The first 8 of 9 pairs" in dots.caption
    lines, _ = describe(three, Path()).figures
    names = [three.pair_name(pair) for pair in three.pairs]
    assert [line.name for line in lines.panels[0].lines] == [*names, "chance level"]


def test_the_similarity_of_all_units_is_drawn_where_the_file_has_it(two):
    _, without = describe(two, Path()).figures
    assert [panel.map for panel in without.panels] == [None]
    cosines = tuple(tuple(0.25 * (row == column) for column in range(3)) for row in range(4))
    units = [replace(sae, compared=count) for sae, count in zip(two.saes, (10, 3), strict=True)]
    mapped = replace(two, saes=tuple(units), pairs=(replace(two.pairs[0], cosines=cosines),))
    assert read_back(mapped) == mapped
    _, plot = describe(mapped, Path()).figures
    matched, similarity = plot.panels
    assert matched.group == similarity.group == two.pair_name(two.pairs[0])
    drawn = similarity.map
    assert drawn.z == tuple(zip(*cosines, strict=True))  # the first SAE is across, as in the scatter
    assert drawn.y == (0, 1, 2)
    assert drawn.x == (0.5, 3, 5.5, 8)  # middles of 0-1, 2-4, 5-6, 7-9
    assert not drawn.square


def test_what_stitched_units_remove_is_drawn_against_how_often_they_fire():
    result = kept("stitch")
    (plot,) = describe(result, Path()).figures
    fired = [unit for unit, frequency in enumerate(result.frequency) if frequency > 0]
    assert plot.panels[0].dots.x == tuple(result.frequency[unit] for unit in fired)
    removed = [-100 * result.change[unit] / result.error for unit in fired]
    assert plot.panels[0].dots.y == pytest.approx(removed)


def test_frequency_is_drawn_against_the_graded_form_of_reproducibility():
    world = SparseWorld(width=8, units=12, active=2, samples=300)
    x, atoms = world.draw("train").x, world.dictionary()
    result = compare([make_sae(atoms), make_sae(atoms.flip(0))], data=x, chance_draws=0)
    plot = describe(result, Path()).figures[-1]
    assert plot.title == "Frequency against reproducibility"
    assert result.units is not None
    support, frequency = (result.units.saes[0].measures[key] for key in ("support", "frequency"))
    drawn = [value for value, often in zip(support, frequency, strict=True) if often]
    assert plot.panels[0].dots.y == pytest.approx(drawn)


def test_pairs_without_their_matching_have_no_scatter(two):
    pair = two.pairs[0]
    bare = replace(two, pairs=(replace(pair, matching=replace(pair.matching, pairs=())),))
    assert [plot.title for plot in describe(bare, Path()).figures] == ["Consistency by prefix"]


def test_a_measure_in_the_table_of_measures_is_on_the_page_and_on_the_terminal(two, capsys):
    entry = Measure("tilt", "Tilt", "tilt of the pair", "Angle between two SAEs.", better="low", of=("pair",))
    pairs = tuple(replace(pair, measures={**pair.measures, "tilt": 0.1234}) for pair in two.pairs)
    with added(entry):
        result = replace(two, pairs=pairs)
        text = "".join(seen(render_page(result)).text)
        show(result)
        assert 'title="tilt of the pair, lower is better"' in render_page(result)
    shown = capsys.readouterr().out
    for part in ("Tilt", "0.123"):
        assert part in text
        assert part in shown
    assert "Angle between two SAEs." in text
