"""Pages in a real browser: nothing is loaded or complains, and all works by mouse and by keyboard."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osae.cli import main
from osae.context_files import read_contexts, write_contexts
from osae.report import figures, write_experiment, write_page
from osae.results import read
from osae.results.experiment import Figure
from osae.sparsify import TopK
from tests.report.browser import check_accessibility, opened, opened_browser
from tests.studies.language import language  # noqa: F401
from tests.studies.saes import noise, save_sae

KEPT = Path(__file__).parents[1] / "fixtures" / "release-0.1.0"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as found:
        yield found


@pytest.fixture(scope="module")
def run(language, tmp_path_factory):  # noqa: F811
    """A training run of 2 methods with 2 seeds on a language model, its contexts and its comparison."""
    folder = tmp_path_factory.mktemp("run")
    data, here = str(language / "x"), folder / "mine"
    sizes = ["--units", "12", "--k", "2", "--tokens", "400", "--batch", "50", "--seeds", "0,1"]
    assert main(["train", "osae,topk", "--data", data, *sizes, "--start", "noise", "--out", str(here)]) == 0
    assert main(["contexts", str(here), "--data", data, "--device", "cpu"]) == 0
    for contexts in here.glob("*/contexts"):
        _rename_token(contexts, "cat", HOSTILE)
    assert main(["compare", str(here), "--data", data, "--json", str(folder / "compare.json")]) == 0
    return folder


def _rename_token(folder, text, other):
    """Let a token of the contexts have another text."""
    found = read_contexts(folder)
    tokens = {number: other if each == text else each for number, each in found.about.tokens.items()}
    write_contexts(folder, replace(found.about, tokens=tokens), found.arrays)


def make_page(folder, inputs, name="page.html", *options):
    assert main(["report", *map(str, inputs), "--out", str(folder / name), *options]) == 0
    return folder / name


@pytest.fixture(scope="module")
def page(run):
    return make_page(run, [run / "mine", run / "compare.json"])


@pytest.fixture(scope="module")
def formats(language, tmp_path_factory):  # noqa: F811
    """A page of three SAEs in the files of three libraries."""
    folder = tmp_path_factory.mktemp("formats")
    saes = [save_sae(folder / "ours", noise(12, 16, 0), TopK(2))]
    for library in ("saelens", "dictionary_learning"):
        assert main(["convert", str(saes[0]), str(folder / library), "--to", library]) == 0
        saes.append(folder / library)
    words = [*map(str, saes), "--data", str(language / "x"), "--json", str(folder / "compare.json")]
    assert main(["compare", *words]) == 0
    return make_page(folder, [folder / "compare.json"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A page of an experiment on a world, with every kind of figure."""
    from osae.results import ExperimentResult
    from tests.report.conftest import METHODS, method_row

    folder = tmp_path_factory.mktemp("world")
    generator = np.random.default_rng(0)
    rows = tuple(method_row(name, 0.7 + 0.09 * place) for place, name in enumerate(METHODS))
    panels = [
        {
            "title": name,
            "left": range(20),
            "right": generator.permutation(20),
            "similarity": generator.random(20),
        }
        | {"units": 20}
        for name in METHODS
    ]
    figures.matching_scatter(panels, folder / "matching.png")
    maps = [generator.normal(size=(20, 20)).clip(-1, 1) for _ in range(3)]
    figures.seed_pair_panel(
        {"title": "osae", "rasters": maps, "pearson": maps, "cosine": maps}, folder / "pair.png"
    )
    figures.bars_with_intervals(rows, ("stability_truth", "mse"), folder / "bars.png")
    drawn = tuple(Figure(f"{name}.png", f"The {name}.") for name in ("matching", "pair", "bars"))
    result = ExperimentResult("toy", "A world", {"kind": "SparseWorld"}, (0, 1, 2), rows, figures=drawn)
    return write_experiment(result, folder)


@pytest.mark.parametrize("kind", ["page", "formats", "world"])
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_page_opens_fits_draws_everything_and_is_accessible(kind, width, scheme, browser, request):
    with opened(browser, request.getfixturevalue(kind), width=width, scheme=scheme) as tab:
        count = tab.locator("figure[data-plot]").count()
        for place in range(count):
            tab.locator("figure[data-plot]").nth(place).scroll_into_view_if_needed()
        tab.wait_for_function(f"document.querySelectorAll('figure[data-drawn]').length === {count}")
        assert count >= 2
        assert tab.locator("figure .main-svg").count() >= count
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        if kind != "world":
            tab.wait_for_selector("#units[data-ready]")
        check_accessibility(tab)


def test_methods_are_switched_and_figures_zoomed_by_mouse_and_keyboard(browser, page):
    with opened(browser, page) as tab:
        figure = tab.locator("figure[data-plot]", has_text="Consistency of the prefixes")
        figure.scroll_into_view_if_needed()
        switch = figure.locator(".legend button").first
        traces = "box => box.data.filter(trace => trace.name).length"
        box = figure.locator(".plot").first
        before = box.evaluate(traces)
        switch.click()
        assert switch.get_attribute("aria-pressed") == "false"
        assert box.evaluate(traces) == before - 1
        switch.focus()
        tab.keyboard.press("Enter")
        assert box.evaluate(traces) == before
        span = "box => { const [low, high] = box._fullLayout.yaxis.range; return high - low }"
        whole = box.evaluate(span)
        figure.get_by_role("button", name="Zoom in").focus()
        tab.keyboard.press("Space")
        assert box.evaluate(span) == pytest.approx(whole / 2)
        figure.get_by_role("button", name="Reset zoom").click()
        assert box.evaluate(span) == pytest.approx(whole)
        area = box.locator(".nsewdrag").first.bounding_box()
        tab.mouse.move(area["x"] + 40, area["y"] + 40)
        tab.mouse.down()
        tab.mouse.move(area["x"] + 160, area["y"] + 120, steps=4)
        tab.mouse.up()
        assert box.evaluate(span) < whole


def test_many_panels_have_a_picker(browser, world):
    with opened(browser, world) as tab:
        figure = tab.locator("figure[data-plot]", has_text="two seeds and the ground truth")
        figure.scroll_into_view_if_needed()
        assert figure.locator(".plot").count() == 1
        figure.locator("select").select_option(index=4)
        assert "Pearson" in figure.locator(".plot .gtitle").text_content()


def units_shown(tab):
    return [int(text) for text in tab.locator("#units tbody th").all_text_contents()]


def scores_shown(tab, title):
    heads = tab.locator("#units thead th").all_text_contents()
    return [
        float(row.locator("td").nth(heads.index(title) - 1).text_content())
        for row in tab.locator("#units tbody tr").all()
    ]


def test_units_are_sorted_filtered_and_searched(browser, page):
    with opened(browser, page) as tab:
        tab.wait_for_selector("#units[data-ready]")
        assert units_shown(tab) == list(range(12))
        tab.locator("#units thead button", has_text="Frequency").click()
        found = scores_shown(tab, "Frequency")
        assert found == sorted(found, reverse=True)
        tab.keyboard.press("Enter")  # the title keeps the focus
        assert scores_shown(tab, "Frequency") == sorted(found)
        tab.get_by_role("button", name="Add a filter").click()
        tab.get_by_label("Filter by").select_option(label="Frequency")
        middle = sorted(found)[6]
        tab.get_by_label("at least").fill(str(middle))
        assert scores_shown(tab, "Frequency") == [value for value in sorted(found) if value >= middle]
        tab.get_by_label("Remove this filter").click()
        tab.get_by_label("Search tokens").fill("dog")
        rows = tab.locator("#units tbody tr").all()
        assert rows
        tab.get_by_label("Search tokens").fill("no such token")
        assert units_shown(tab) == []
        assert "no unit" in tab.locator(".pager").text_content()


def test_a_search_finds_exactly_the_units_that_have_the_token(browser, page, run):
    arrays = read_contexts(run / "mine" / "osae-seed0" / "contexts")
    wanted = next(int(number) for number, text in arrays.about.tokens.items() if text == "dog")
    heavy = arrays.arrays["heavy"][:, :8]
    with opened(browser, page) as tab:
        tab.wait_for_selector("#units[data-ready]")
        tab.locator("[data-part=sae]").select_option(label="osae-seed0")
        tab.get_by_label("Search tokens").fill("DOG")
        assert units_shown(tab) == np.flatnonzero((heavy == wanted).any(1)).tolist()


def test_a_unit_opens_beside_its_partners_by_mouse_by_keyboard_and_by_address(browser, page):
    with opened(browser, page) as tab:
        tab.wait_for_selector("#units[data-ready]")
        tab.locator("#units tbody tr").nth(3).click()
        tab.wait_for_selector("#units[data-open='0/3']")
        assert tab.url.endswith("#unit/0/3")
        cards = tab.locator("#units .detail article")
        assert cards.count() >= 4  # the unit, and its partner in each of three other SAEs
        assert "cosine" in cards.nth(1).text_content()
        tab.locator("#units tbody tr[aria-current] a").focus()
        tab.keyboard.press("ArrowDown")
        tab.wait_for_selector("#units[data-open='0/4']")
        tab.keyboard.press("k")
        tab.wait_for_selector("#units[data-open='0/3']")
        partner = cards.nth(1).get_attribute("data-unit")
        tab.locator("#units .list .wide").focus()
        tab.keyboard.press("p")
        tab.wait_for_selector(f"#units[data-open='{partner}']")
        tab.go_back()
        tab.wait_for_selector("#units[data-open='0/3']")
        tab.keyboard.press("/")
        assert tab.evaluate("document.activeElement.type") == "search"
        check_accessibility(tab)
    with opened(browser, page, fragment="#unit/2/7") as tab:
        tab.wait_for_selector("#units[data-open='2/7']")
        assert tab.locator("[data-part=sae]").input_value() == "2"


def test_contexts_are_shaded_where_the_unit_fires(browser, page, run):
    arrays = read_contexts(run / "mine" / "osae-seed0" / "contexts").arrays
    unit = int(arrays["fired"].argmax())
    with opened(browser, page, fragment=f"#unit/0/{unit}") as tab:
        tab.wait_for_selector(f"#units[data-open='0/{unit}']")
        first = tab.locator("#units article.main .context").first
        inside = arrays["tokens"][unit, 0] >= 0
        assert first.locator(".piece").count() == inside.sum()
        assert first.locator(".active").count() == (arrays["activations"][unit, 0] > 0).sum()
        assert first.locator(".at").count() == 1


def test_a_hostile_token_stays_text(browser, page):
    with opened(browser, page) as tab:
        tab.wait_for_selector("#units[data-ready]")
        tab.get_by_label("Search tokens").fill("<img")
        tab.locator("#units tbody tr").first.click()
        tab.wait_for_selector("#units[data-open]")
        assert HOSTILE in tab.locator("#units .detail").text_content()
        assert tab.locator("#units img").count() == 0


def test_tables_sort_by_mouse_and_keyboard_and_keep_their_foot(browser, world):
    with opened(browser, world) as tab:
        table = tab.locator("table.sortable").first
        labels = table.locator("tbody th").all_text_contents
        before = labels()
        title = table.locator("thead button", has_text="MSE")
        title.click()
        assert labels() == before  # the largest error first, as the rows are
        title.focus()
        tab.keyboard.press("Enter")
        assert labels() == before[::-1]


def test_pieces_beside_the_page_are_loaded_when_a_unit_is_opened(browser, run):
    page = make_page(run, [run / "compare.json"], "pieces.html", "--folder")
    beside = run / "pieces-files"
    assert (beside / "units.js").is_file()
    assert page.stat().st_size < 6_000_000
    with opened(browser, page, fragment="#unit/1/2", beside=[beside]) as tab:
        tab.wait_for_selector("#units[data-open='1/2']")
        assert tab.locator("#units article.main .context").count() > 0
    (beside / "units-1-0.js").rename(beside / "gone.js")
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(f"file://{page}#unit/1/2")
    tab.wait_for_selector("#units [role=alert]")
    assert "copy the folder along" in tab.locator("#units [role=alert]").text_content()
    context.close()


def test_a_page_that_is_too_large_asks_for_a_folder(run, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["osae.report.page"], "LARGEST", 100_000)
    assert main(["report", str(run / "compare.json"), "--out", str(run / "large.html")]) == 2
    assert "add --folder" in capsys.readouterr().err
    assert not (run / "large.html").exists()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The page of a comparison that release 0.1.0 wrote."""
    path = tmp_path_factory.mktemp("compared") / "page.html"
    write_page(read(KEPT / "compare-three.json"), path)
    return path


def test_rows_sort_by_their_numbers_and_the_foot_and_what_has_none_stay_last(browser, compared):
    with opened(browser, compared) as tab:
        prefixes = tab.locator("table.sortable", has_text="first 16")
        prefixes.locator("thead button").first.click()
        assert prefixes.locator("tbody th").all_text_contents() == ["first 4", "first 16"]
        pairs = tab.locator("table.sortable", has_text="mean of 3 pairs")
        pairs.locator("tbody tr").nth(0).locator("td").first.evaluate("cell => delete cell.dataset.value")
        first = pairs.locator("tbody th").first.text_content()
        for _ in range(2):  # down, then up
            pairs.locator("thead button", has_text="Stab").first.click()
            assert pairs.locator("tbody th").last.text_content() == first
            assert pairs.locator("tfoot th").first.text_content() == "mean of 3 pairs"


def test_units_of_a_file_without_a_table_of_units_have_the_partners_of_the_matching(browser, compared):
    with opened(browser, compared, fragment="#unit/0/3") as tab:
        tab.wait_for_selector("#units[data-open='0/3']")
        pairs = read(KEPT / "compare-three.json").pairs
        matched = [(pair.b, {a: b for a, b, _ in pair.matching.pairs}) for pair in pairs[:2]]
        partners = [f"{place}/{units[3]}" for place, units in matched]
        cards = tab.locator("#units .detail article:not(.main)").all()
        assert [card.get_attribute("data-unit") for card in cards] == partners
