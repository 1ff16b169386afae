"""One page for every result: it needs nothing but itself, fits a phone, and sorts sensibly."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from osae.report import figures, render_page, write_experiment, write_page
from osae.report.page import Part, join_contexts
from osae.report.plots import Panel, Plot, join_plots, style_of
from osae.results import ExperimentResult, Interval, read
from osae.results.experiment import Figure


class Seen(HTMLParser):
    """The tags and the visible text of a page; fails on tags that do not close."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.text, self.inside = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append((tag, dict(attrs), list(self.open)))
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("class")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] not in ("script", "style"):
            self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def seen(html):
    parser = Seen()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture
def drawn(experiment, tmp_path):
    lines = {"osae": ([1, 2, 3], [3.0, 2.0, 1.5])}
    figures.curve(lines, tmp_path / "loss.png", title="Loss", x_label="step", y_label="loss")
    found = (Figure("loss.png", 'The "loss" & <more>'), Figure("absent.png", "Not drawn"))
    return replace(experiment, figures=found)


@pytest.fixture
def report(drawn, tmp_path):
    return write_experiment(drawn, tmp_path)


def test_an_experiment_is_written_as_four_files_and_nothing_else(report):
    names = {path.name for path in report.parent.iterdir()}
    assert names == {"results.json", "table.md", "results.csv", "report.html", "loss.png", "loss.json"}


def test_the_written_results_read_back_as_given(report, drawn):
    found = read(report.parent / "results.json")
    assert isinstance(found, ExperimentResult)
    assert found.to_json() == drawn.to_json()
    assert found.to_csv() == (report.parent / "results.csv").read_bytes().decode()


def test_page_needs_nothing_but_itself(report):
    html = report.read_text()
    parsed = seen(html)
    assert not any("src" in attrs or "href" in attrs for _, attrs in parsed.tags)
    assert "default-src 'none'" in parsed.all("meta")[1]["content"]
    for outside in ("http://", "https://", "url("):
        assert outside not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_a_figure_without_its_plot_is_shown_as_its_image(drawn, tmp_path):
    (tmp_path / "loss.json").unlink()
    parsed = seen(render_page(drawn, tmp_path))
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/png;base64,iVBOR")
    assert image["alt"] == 'The "loss" & <more>'


def test_page_escapes_all_text(report, drawn):
    parsed = seen(report.read_text())
    text = "".join(parsed.text)
    assert [each.get("type") for each in parsed.all("script")] == ["text/plain", "text/plain", None]
    assert not parsed.all("the") + parsed.all("more") + parsed.all("1")
    assert drawn.title in text
    assert "osae <b>is</b> | ahead. holds in part" in text
    assert "<script>alert('a | b')</script>" in text
    assert 'The "loss" & <more>' in text
    assert 'osae reproduce toy --out "a b"' in text
    assert "1 figure of this experiment is not stored next to its results" in text


def test_page_has_headers_with_scope_and_every_number(report, drawn):
    parsed = seen(report.read_text())
    text = "".join(parsed.text)
    heads = parsed.all("th")
    assert all(head.get("scope") in ("col", "row") for head in heads)
    assert sum(head["scope"] == "row" for head in heads) == len(drawn.rows) + 1  # and the chance level
    values = [float(cell["data-value"]) for cell in parsed.all("td") if "data-value" in cell]
    assert drawn.rows[0].mean("mse") in values
    assert "paper: Fixed MSAE <1>" in text
    assert "0.538 (0.011)" in text
    assert "chance level" in text


def test_page_has_a_summary_and_says_nothing_twice(report, drawn):
    text = "".join(seen(report.read_text()).text).split("Numbers as JSON")[0]
    assert "Summary" in text
    assert "In short" not in text
    for said in (drawn.notes[0], drawn.claims[0].found):
        assert text.count(said) == 1


def test_the_summary_of_an_experiment_names_the_best_methods_and_counts_the_verdicts(experiment):
    (summary,) = re.findall("<h2>Summary</h2>(.*?)</section>", render_page(experiment), re.DOTALL)
    said = "".join(seen(summary).text)
    assert "3 seeds of 4 methods." in said
    assert "Best stability across seeds: osae with 0.970 (chance level 0.312)." in said
    assert "Best mean squared error: osae with 2.61e-04." in said
    assert "Verdicts on 1 claim: holds in part (1)." in said


def test_page_of_several_worlds_and_of_nothing(experiment, sections):
    parsed = seen(render_page(replace(experiment, rows=(), sections=sections)))
    assert len(parsed.all("table")) == len(sections)
    assert "alpha 0.5" in "".join(parsed.text)
    assert "World: SparseWorld: zipf 0.5" in "".join(parsed.text)
    assert len(seen(render_page(ExperimentResult("none", "", {}, ()))).all("table")) == 1


def test_a_single_pair_has_no_interval_to_point_at(experiment):
    alone = {"stability_pairs": Interval(0.611, 0.0, 0.611, 0.611)}
    rows = tuple(replace(row, measures=alone) for row in experiment.rows)
    html = render_page(replace(experiment, seeds=(0, 1), rows=rows)).split("<details>")[0]
    assert "0.611" in html
    assert "0.611 to 0.611" not in html
    assert "(0.000)" not in html
    assert "In parentheses" not in html


def test_hidden_text_lies_inside_a_box_that_scrolls_by_itself(report):
    """What is hidden by position would otherwise widen the page on a small screen."""
    hidden = [
        around for _, attrs, around in seen(report.read_text()).inside if attrs.get("class") == "unseen"
    ]
    assert hidden
    assert all(("div", "wide") in around for around in hidden)
    style = (Path(figures.__file__).parent / "page.css").read_text()
    (wide,) = [rule for rule in style.split("}") if rule.split("{")[0].strip().endswith(".wide")][:1]
    assert "position: relative" in wide
    assert "overflow-x: auto" in wide


def test_every_image_lies_on_a_light_card_and_wide_ones_scroll(experiment, tmp_path):
    panels = [{"title": "a", "left": [0], "right": [0], "similarity": [1.0], "units": 1}] * 4
    figures.matching_scatter(panels, tmp_path / "wide.png")
    figures.curve({"a": ([1], [1])}, tmp_path / "small.png", title="", x_label="", y_label="")
    for plot in tmp_path.glob("*.json"):
        plot.unlink()
    result = replace(experiment, figures=(Figure("wide.png", "Wide"), Figure("small.png", "Small")))
    write_page(result, tmp_path / "page.html")
    images = [
        (a, around) for tag, a, around in seen((tmp_path / "page.html").read_text()).inside if tag == "img"
    ]
    assert all(around[-1] == ("div", "card") for _, around in images)
    assert [attrs.get("class") for attrs, _ in images] == ["broad", None]


def test_more_than_four_tables_are_behind_a_line_that_opens_them(experiment, sections):
    several = (*sections, *(replace(section, title=f"more {section.x}") for section in sections))
    html = render_page(replace(experiment, rows=(), sections=several))
    before, after = html.split("<summary>2 more tables: more 0.5; more 1.0</summary>")
    assert before.count("<table") == 4
    assert after.split("</details>")[0].count("<table") == 2


def test_contexts_of_several_saes_are_one_part():
    def part(place):
        facts = [("SAE 0", f"seed{place}"), ("Date", "today")]
        return Part(f"seed{place}", "contexts", ["fires"], [{"body": [place]}], notes=["said"], facts=facts)

    (joined,) = join_contexts([part(0), part(1)])
    assert joined.title == "Contexts of 2 SAEs"
    assert joined.summary == ["fires", "fires"]
    assert joined.grids == [{"body": [0, 1]}]
    assert joined.notes == ["said"]
    assert joined.facts == [("SAE 0", "seed0"), ("SAE 1", "seed1"), ("Date", "today")]
    assert join_contexts([part(0)]) == [part(0)]


def test_the_saes_of_a_method_share_its_color_and_differ_by_their_dashes():
    found = style_of(["osae-seed0", "osae-seed1", "topk-seed0", "topk-seed1"])
    assert [found[f"{name}-seed{seed}"]["color"] for name in ("osae", "topk") for seed in (0, 1)] == [
        style_of([name])[name]["color"] for name in ("osae", "osae", "topk", "topk")
    ]
    assert len({(each["color"], each["dash"]) for each in found.values()}) == 4
    alone = style_of(["osae-seed0", "osae-seed1", "osae-seed2"])
    assert len({each["color"] for each in alone.values()}) == 3


def test_plots_of_a_family_are_one_figure():
    first, other, second = (
        Plot(name, "", (Panel(name),), family) for name, family in (("a", "both"), ("b", ""), ("c", "both"))
    )
    joined, alone = join_plots([first, other, second])
    assert (joined.title, [panel.title for panel in joined.panels]) == ("both", ["a", "c"])
    assert alone == other


def test_long_lists_are_left_to_the_json_file(experiment):
    html = render_page(replace(experiment, world={"strengths": list(range(1000))}))
    assert "1,000 entries, in the JSON file" in html


def test_text_that_no_file_can_hold_is_shown_as_an_escape(experiment, tmp_path):
    write_page(replace(experiment, title="lone \ud800"), tmp_path / "page.html")
    assert r"<h1>lone \ud800</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_report_needs_no_torch_and_draws_without_pyplot():
    code = (
        "import sys; import osae.report, osae.report.figures as f, tempfile\n"
        "assert 'matplotlib' not in sys.modules and 'rich' not in sys.modules\n"
        "path = tempfile.mkdtemp() + '/a.png'\n"
        "f.curve({'a': ([1, 2], [1, 2])}, path, title='', x_label='', y_label='')\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
