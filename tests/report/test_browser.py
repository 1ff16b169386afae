"""Pages in a real browser: nothing is loaded or complains, and all works by mouse and by keyboard."""

import json
import re
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

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
PAPER = 680  # pixels of A4 between its margins
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
    sizes += ["--snapshots", "100,200", "--start", "noise"]
    assert main(["train", "osae,topk", "--data", data, *sizes, "--out", str(here)]) == 0
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
    data = ["--data", str(language / "x")]
    assert main(["contexts", *map(str, saes), *data, "--device", "cpu"]) == 0
    assert main(["compare", *map(str, saes), *data, "--json", str(folder / "compare.json")]) == 0
    return make_page(folder, [folder / "compare.json"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A page of an experiment on a world, with every kind of figure, and of two SAEs without activations."""
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
    write_experiment(result, folder)
    saes = [str(save_sae(folder / f"seed{seed}", noise(12, 16, seed), TopK(2))) for seed in (0, 1)]
    assert main(["compare", *saes, "--json", str(folder / "compare.json")]) == 0
    return make_page(folder, [folder, folder / "compare.json"])


KINDS = {"page": 4, "formats": 3, "world": 2}  # pages, and how many SAEs they have
every_kind = pytest.mark.parametrize("kind", list(KINDS))


@every_kind
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_page_opens_fits_draws_everything_and_is_accessible(kind, width, scheme, browser, request):
    with opened(browser, request.getfixturevalue(kind), width=width, scheme=scheme) as tab:
        count = draw_all(tab).count()
        assert count >= 2
        assert tab.locator("figure .main-svg").count() >= count
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.wait_for_selector("#units[data-ready]")
        check_accessibility(tab)


@every_kind
def test_methods_are_switched_and_figures_zoomed_by_mouse_and_keyboard(kind, browser, request):
    with opened(browser, request.getfixturevalue(kind)) as tab:
        draw_all(tab)
        figure = tab.locator("figure[data-plot]", has=tab.locator(".legend")).first
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
        span = "box => { const [low, high] = box._fullLayout.xaxis.range; return high - low }"
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


def unfold_all(tab):
    tab.evaluate("document.querySelectorAll('details.more').forEach(each => { each.open = true; })")


def draw_all(tab):
    """Unfold every section and bring every figure into view."""
    unfold_all(tab)
    figures = tab.locator("figure[data-plot]")
    for place in range(figures.count()):
        figures.nth(place).scroll_into_view_if_needed()
    tab.locator("figure[data-plot]:not([data-drawn])").first.wait_for(state="detached")
    return figures


def test_a_map_of_similarity_zooms_and_names_its_units(browser, page):
    with opened(browser, page) as tab:
        draw_all(tab)
        section = tab.locator("details.more", has_text="Units of one SAE in the other")
        figure = section.locator("figure[data-plot]")
        similarity = figure.locator(".plot").nth(1)
        assert similarity.evaluate("box => box.data[0].z.length") == 12
        figure.locator("select").select_option(index=3)
        assert figure.locator(".plot").count() == 2
        span = "box => { const [low, high] = box._fullLayout.yaxis.range; return high - low }"
        whole = similarity.evaluate(span)
        similarity.scroll_into_view_if_needed()
        area = similarity.locator(".nsewdrag").first.bounding_box()
        tab.mouse.move(area["x"] + 100, area["y"] + 100)
        similarity.locator(".hoverlayer .hovertext").wait_for()
        assert "position in the first SAE" in similarity.locator(".hoverlayer").text_content()
        tab.mouse.down()
        tab.mouse.move(area["x"] + 180, area["y"] + 180, steps=4)
        tab.mouse.up()
        assert similarity.evaluate(span) < whole


def test_figures_have_the_colors_of_the_page(browser, page):
    for scheme in ("light", "dark"):
        with opened(browser, page, scheme=scheme) as tab:
            tab.locator("figure[data-plot]").first.scroll_into_view_if_needed()
            text = tab.locator("figure[data-drawn] .xtick text").first
            text.wait_for()
            ink = tab.evaluate("getComputedStyle(document.body).color")
            tick = text.evaluate("one => getComputedStyle(one).fill")
            for color in (ink, tick):
                bright = sum(map(int, re.findall(r"\d+", color)[:3])) / 3 > 127
                assert bright == (scheme == "dark"), color


def test_paper_has_every_figure_and_table(browser, page):
    with opened(browser, page, scheme="dark") as tab:
        tab.wait_for_timeout(2000)  # figures out of view are unpacked meanwhile
        tab.evaluate(
            "addEventListener('beforeprint', () => { window.printed = {\n"
            "open: document.querySelectorAll('details.more:not([open])').length } })"
        )
        assert tab.pdf(format="A4")[:5] == b"%PDF-"
        count = tab.locator("figure[data-plot]").count()
        assert tab.locator("figure[data-drawn]").count() == count
        assert tab.evaluate("window.printed.open") == 0
        assert tab.locator("details.more[open]").count() == 0  # closed again


@every_kind
def test_every_table_is_as_wide_as_the_paper_at_most(kind, browser, request):
    with opened(browser, request.getfixturevalue(kind), width=PAPER) as tab:
        unfold_all(tab)
        tab.emulate_media(media="print")
        widths = "[...document.querySelectorAll('table.sortable')].map(table => table.scrollWidth)"
        assert 0 < max(tab.evaluate(widths)) <= PAPER


@every_kind
@pytest.mark.parametrize(("width", "most"), [(1400, 6000), (400, 8000)])
def test_a_page_is_short_and_the_units_come_after_the_results_they_belong_to(
    kind, width, most, browser, request
):
    with opened(browser, request.getfixturevalue(kind), width=width) as tab:
        tab.wait_for_selector("#units[data-ready]")
        for figure in tab.locator("figure[data-plot]").all():
            if figure.is_visible():
                figure.scroll_into_view_if_needed()
        tab.wait_for_timeout(500)
        assert tab.evaluate("document.documentElement.scrollHeight") < most
        top = "document.getElementById('units').getBoundingClientRect().top + scrollY"
        assert tab.evaluate(top) < 0.5 * most
        assert tab.locator("#part-1 #units").count() == 1
        assert tab.locator("details.more[open]").count() == 0


def test_a_link_to_a_folded_section_or_into_it_opens_it(browser, formats):
    for name in ("provenance", "figure-2"):
        with opened(browser, formats, fragment=f"#part-1-{name}") as tab:
            fold = tab.locator(f"#part-1-{name}")
            tab.wait_for_selector("#units[data-ready]")  # above it, and taller since
            tab.wait_for_timeout(300)
            assert fold.get_attribute("open") is not None
            assert 0 <= fold.bounding_box()["y"] < 900
            assert tab.locator("details.more[open]").count() == 1
    with opened(browser, formats) as tab:
        link, fold = tab.get_by_role("link", name="Provenance"), tab.locator("#part-1-provenance")
        for _ in range(2):  # also if it was closed meanwhile, and the address is still the same
            link.focus()
            tab.keyboard.press("Enter")
            tab.wait_for_selector("#part-1-provenance[open]")
            fold.locator("summary").focus()
            tab.keyboard.press("Enter")
            assert fold.get_attribute("open") is None


def test_a_figure_that_was_printed_while_folded_fits_its_section_once_unfolded(browser, page):
    with opened(browser, page) as tab:
        tab.wait_for_timeout(2000)
        tab.pdf(format="A4")
        tab.locator("#part-1-figure-2 summary").click()
        box = tab.locator("#part-1-figure-2 .plot").first
        box.locator(".main-svg").first.wait_for()
        inside = box.locator(".main-svg").first.bounding_box()["width"]
        assert inside == pytest.approx(box.bounding_box()["width"], abs=2)


def test_on_a_phone_panels_are_shown_one_at_a_time(browser, page):
    with opened(browser, page, width=400) as tab:
        figure = tab.locator("figure[data-plot]").first
        figure.scroll_into_view_if_needed()
        figure.locator("select").focus()
        tab.keyboard.press("ArrowDown")
        titles = figure.locator(".plot .gtitle")
        assert titles.all_text_contents() == ["orderedness (higher is better)"]
        tab.set_viewport_size({"width": 1400, "height": 900})
        figure.locator(".plot").nth(1).wait_for()
        assert figure.locator("select").count() == 0


def test_many_panels_have_a_picker(browser, world):
    with opened(browser, world) as tab:
        figure = tab.locator("figure[data-plot]", has_text="Two seeds and the ground truth")
        figure.scroll_into_view_if_needed()
        titles = figure.locator(".plot .gtitle")
        titles.nth(2).wait_for()
        assert titles.all_text_contents() == [
            f"{pair}"
            for pair in ("first seed and truth", "second seed and truth", "first seed and second seed")
        ]
        figure.locator("select").select_option(label="osae: activation")
        assert titles.all_text_contents() == ["truth", "first seed", "second seed"]


def test_of_many_panels_two_are_chosen_to_stand_next_to_each_other(browser, tmp_path):
    from osae.report.page import Page, Part, render
    from osae.report.plots import plot_dots

    panels = {f"method {number}": ((1, 2, 3), (3, 2, 1)) for number in range(6)}
    plot = plot_dots(panels, title="Dots", caption="", x_label="x", y_label="y")
    (tmp_path / "dots.html").write_text(render(Page([Part("Dots", "test", figures=[plot])])))
    with opened(browser, tmp_path / "dots.html") as tab:
        titles = draw_all(tab).first.locator(".plot .gtitle")
        assert titles.all_text_contents() == ["method 0", "method 5"]
        tab.get_by_label("next to").select_option(label="method 3")
        tab.get_by_label("Show").select_option(label="method 2")
        assert titles.all_text_contents() == ["method 2", "method 3"]
    with opened(browser, tmp_path / "dots.html", width=400) as tab:
        assert draw_all(tab).first.locator("select").count() == 1


def units_shown(tab):
    return [int(text) for text in tab.locator("#units tbody th").all_text_contents()]


def scores_shown(tab, title):
    heads = tab.locator("#units thead th").all_text_contents()
    return [
        float(row.locator("td").nth(heads.index(title) - 1).text_content())
        for row in tab.locator("#units tbody tr").all()
    ]


@every_kind
def test_units_are_sorted_filtered_and_searched(kind, browser, request):
    score, word = ("Nearest cosine", "7") if kind == "world" else ("Fires in", "dog")
    with opened(browser, request.getfixturevalue(kind)) as tab:
        tab.wait_for_selector("#units[data-ready]")
        assert units_shown(tab) == list(range(12))
        tab.locator("#units thead button", has_text=score).click()
        found = scores_shown(tab, score)
        assert found == sorted(found, reverse=True)
        tab.keyboard.press("Enter")  # the title keeps the focus
        assert scores_shown(tab, score) == sorted(found)
        tab.get_by_role("button", name="Add a filter").focus()
        tab.keyboard.press("Enter")
        tab.get_by_label("Filter by").select_option(label=score)
        _, below, above = max((after - before, before, after) for before, after in pairwise(sorted(found)))
        middle = (below + above) / 2
        tab.get_by_label("at least").fill(str(middle))
        assert scores_shown(tab, score) == [value for value in sorted(found) if value >= middle]
        tab.get_by_label("Remove this filter").click()
        tab.get_by_label("Search tokens").focus()
        tab.keyboard.type(word)
        assert 0 < len(units_shown(tab)) < 12
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


@every_kind
def test_a_unit_opens_beside_its_partners_by_mouse_by_keyboard_and_by_address(kind, browser, request):
    page = request.getfixturevalue(kind)
    with opened(browser, page) as tab:
        tab.wait_for_selector("#units[data-ready]")
        tab.locator("#units tbody tr").nth(3).click()
        tab.wait_for_selector("#units[data-open='0/3']")
        assert tab.url.endswith("#unit/0/3")
        cards = tab.locator("#units .detail article")
        assert cards.count() >= KINDS[kind]  # the unit, and its partner in each other SAE
        shown = [card.get_attribute("data-unit").split("/")[0] for card in cards.all()]
        assert set(shown) == {str(place) for place in range(KINDS[kind])}
        assert "cosine" in cards.nth(1).text_content()
        partner = cards.nth(1).get_attribute("data-unit")
        cards.nth(1).locator("h3 a").click()
        tab.wait_for_selector(f"#units[data-open='{partner}']")
        tab.go_back()
        tab.wait_for_selector("#units[data-open='0/3']")
        tab.locator("#units tbody tr[aria-current] a").focus()
        tab.keyboard.press("ArrowDown")
        tab.wait_for_selector("#units[data-open='0/4']")
        tab.keyboard.press("k")
        tab.wait_for_selector("#units[data-open='0/3']")
        tab.locator("#units .list .wide").focus()
        tab.keyboard.press("p")
        tab.wait_for_selector(f"#units[data-open='{partner}']")
        tab.go_back()
        tab.wait_for_selector("#units[data-open='0/3']")
        tab.keyboard.press("/")
        assert tab.evaluate("document.activeElement.type") == "search"
        check_accessibility(tab)
    last = KINDS[kind] - 1
    with opened(browser, page, fragment=f"#unit/{last}/7") as tab:
        tab.wait_for_selector(f"#units[data-open='{last}/7']")
        assert tab.locator("[data-part=sae]").input_value() == str(last)
        cards = tab.locator("#units .detail article:not(.main)")
        furthest = cards.nth(last - 1).get_attribute("data-unit")
        tab.keyboard.press(str(last))  # nothing has the focus yet
        tab.wait_for_selector(f"#units[data-open='{furthest}']")


def test_a_unit_that_is_split_is_shown_beside_its_parts(browser, tmp_path):
    whole, others = noise(1, 64, 0), noise(40, 64, 1)
    parts = whole + 0.2 * noise(2, 64, 2)
    atoms = {"one": [whole, others, noise(1, 64, 3)], "several": [parts, others]}
    unit_norm = {name: torch.nn.functional.normalize(torch.cat(each), dim=1) for name, each in atoms.items()}
    saes = [str(save_sae(tmp_path / name, each, TopK(2))) for name, each in unit_norm.items()]
    assert main(["compare", *saes, "--json", str(tmp_path / "compare.json")]) == 0
    page = make_page(tmp_path, [tmp_path / "compare.json"])
    with opened(browser, page, fragment="#unit/0/0") as tab:
        tab.wait_for_selector("#units[data-open='0/0']")
        cards = tab.locator("#units .detail article:not(.main)")
        assert {card.get_attribute("data-unit") for card in cards.all()} == {"1/0", "1/1"}
        assert all(re.search("part [12] of 2", card.text_content()) for card in cards.all())
        tab.keyboard.press("2")
        tab.locator("#units article.main[data-unit^='1/']").wait_for()
        assert "one unit there, 2 here" in tab.locator("#units .detail").text_content()


def test_what_is_unfolded_on_a_card_stays_so_on_all_and_for_the_next_unit(browser, page):
    with opened(browser, page, fragment="#unit/0/3") as tab:
        tab.wait_for_selector("#units[data-open='0/3']")
        tab.locator("#units article.main summary", has_text="Across its range").click()
        folds = tab.locator("#units details", has_text="Across its range")
        assert folds.count() > 1
        assert all(fold.get_attribute("open") is not None for fold in folds.all())
        tab.keyboard.press("j")
        tab.wait_for_selector("#units[data-open='0/4']")
        assert tab.locator("#units article.main details[data-section=kind-1][open]").count() == 1


def test_on_a_phone_a_selected_unit_comes_into_view(browser, page):
    with opened(browser, page, width=400) as tab:
        tab.wait_for_selector("#units[data-ready]")
        tab.locator("#units tbody tr").nth(2).click()
        tab.wait_for_selector("#units[data-open='0/2']")
        assert -1 < tab.locator("#units article.main").bounding_box()["y"] < 200


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


def test_contexts_that_two_units_share_are_marked_and_counted(browser, formats):
    """The same SAE in three formats: every strongest context of a unit is one of its matches' as well."""
    arrays = read_contexts(formats.parent / "ours" / "contexts").arrays
    unit = int(arrays["fired"].argmax())
    with opened(browser, formats, fragment=f"#unit/0/{unit}") as tab:
        tab.wait_for_selector(f"#units[data-open='0/{unit}']")
        main, partner = (tab.locator("#units .detail article").nth(place) for place in (0, 1))
        strongest = main.locator(".context").count() - main.locator("[data-section^=kind] .context").count()
        assert strongest == min(12, (arrays["strengths"][unit, :12] > 0).sum())
        assert partner.locator(".context.shared").count() >= strongest
        said = f"{strongest} of its {strongest} strongest contexts"
        assert said in partner.text_content()
        assert main.locator(".context.shared").count() == 0
        shown = main.locator(".strength").first.text_content()
        assert float(shown) == pytest.approx(float(arrays["strengths"][unit, 0]), rel=0.01)


def test_the_first_unit_is_shown_until_one_is_opened(browser, page):
    with opened(browser, page) as tab:
        tab.locator("#units article.main").wait_for()
        assert tab.locator("#units article.main h3").text_content() == "Unit 0 of osae-seed0"
        assert tab.url.endswith(".html")
        tab.locator("#units tbody tr").nth(4).click()
        tab.wait_for_selector("#units[data-open='0/4']")
        assert tab.locator("#units article.main").get_attribute("data-unit") == "0/4"


def test_every_line_stands_out_from_a_dark_page(browser, tmp_path):
    from osae.report.page import Page, Part, render
    from osae.report.plots import COLORS, plot_lines

    names = dict.fromkeys(COLORS, ((1.0, 2.0), (1.0, 2.0)))
    plot = plot_lines(names, title="All", x_label="x", y_label="y")
    (tmp_path / "colors.html").write_text(render(Page([Part("Colors", "test", figures=[plot])])))
    with opened(browser, tmp_path / "colors.html", scheme="dark") as tab:
        draw_all(tab)
        drawn = tab.locator(".plot").first.evaluate("box => box.data.map(trace => trace.line.color)")
        paper = tab.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')")
        assert len(drawn) == len(COLORS)
        assert all(contrast(color, paper.strip()) >= 4.5 for color in drawn)


def contrast(first, second):
    """The contrast of two colors, as in the guidelines for accessible web content."""

    def luminance(color):
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_intervals_are_shown_on_request(browser, world):
    with opened(browser, world) as tab:
        interval = tab.locator("td .interval").first
        assert not interval.is_visible()
        tab.get_by_label("Show 95 % intervals").first.focus()
        tab.keyboard.press("Space")
        assert interval.is_visible()


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
        table = tab.locator("table.sortable", has_text="MSE").first
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


def test_a_page_of_4096_units_with_12_contexts_each_is_small_and_fast(browser, tmp_path):
    """`python -m benchmarks.speed.pages` measures; here the limits allow for a busy machine."""
    from benchmarks.speed import pages

    pages.make_page(1, 4096, tmp_path / "page.html", folder=False)
    assert (tmp_path / "page.html").stat().st_size < 15_000_000
    found = pages.measure_page(browser, tmp_path / "page.html", repeats=2)
    assert found["first paint"] < 5000
    assert found["search"] < 1000
    assert found["open a unit"] < 5000


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
        unfold_all(tab)
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


def test_the_page_of_a_run_that_is_watched_reloads_itself(browser, tmp_path):
    run, page = shutil.copytree(KEPT / "interrupted", tmp_path / "run"), tmp_path / "run.html"
    words = ["watch", str(run), "--once", "--every", "1", "--html", str(page)]
    assert main(words) == 0
    with opened(browser, page) as tab:
        assert "18 of 40 steps are done" in tab.locator("main").text_content()
        log = run / "log.jsonl"
        last = json.loads(log.read_text().splitlines()[-1])
        with log.open("a") as file:
            file.write(json.dumps(last | {"step": 29}) + "\n")
        assert main(words) == 0
        tab.get_by_text("29 of 40 steps are done").wait_for()
