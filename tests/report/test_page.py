import json
import math
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from osae.report import figures
from osae.report.page import page, plain, write_report


class Seen(HTMLParser):
    """The tags and the visible text of a page; fails on tags that do not close."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self):
        super().__init__()
        self.tags, self.open, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
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
def report(results, tmp_path):
    lines = {"osae": ([1, 2, 3], [3.0, 2.0, 1.5])}
    figures.curve(lines, tmp_path / "loss.png", title="Loss", x_label="step", y_label="loss")
    results["figures"] = [
        {"file": "loss.png", "caption": 'The "loss" & <more>'},
        {"file": "absent.png", "caption": "Not drawn"},
    ]
    return write_report(results, tmp_path)


def test_report_writes_four_files_and_leaves_nothing_else(report):
    names = {path.name for path in report.parent.iterdir()}
    assert names == {"results.json", "table.md", "results.csv", "report.html", "loss.png"}


def test_results_json_reads_back_as_given(report, results):
    assert json.loads((report.parent / "results.json").read_text()) == results


def test_page_needs_nothing_but_itself(report):
    html = report.read_text()
    parsed = seen(html)
    sources = [attrs.get("src", "") for _, attrs in parsed.tags if "src" in attrs]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,iVBOR")
    assert not any("href" in attrs for _, attrs in parsed.tags)
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html


def test_page_escapes_all_text(report, results):
    html = report.read_text()
    parsed = seen(html)
    text = "".join(parsed.text)
    assert len(parsed.all("script")) == 1
    assert not parsed.all("the") + parsed.all("more") + parsed.all("1")
    assert results["title"] in text
    assert "osae <b>is</b> | ahead. holds in part" in text
    assert "<script>alert('a | b')</script>" in text
    assert parsed.all("img")[0]["alt"] == 'The "loss" & <more>'
    assert 'osae reproduce toy --out "a b"' in text
    assert "absent.png is missing" in text


def test_page_table_has_headers_with_scope_and_every_number(report, results):
    parsed = seen(report.read_text())
    text = "".join(parsed.text)
    heads = parsed.all("th")
    assert all(head.get("scope") in ("col", "row") for head in heads)
    assert sum(head["scope"] == "row" for head in heads) == len(results["rows"]) + 1  # and the chance level
    values = [float(cell["data-value"]) for cell in parsed.all("td") if "data-value" in cell]
    assert results["rows"][0]["mse"]["mean"] in values
    assert "paper: Fixed MSAE <1>" in text
    assert "0.538 (0.011)" in text
    assert "chance level" in text


def test_page_of_several_worlds_and_of_nothing(sections, tmp_path):
    parsed = seen(page({"title": "Sweep", "sections": sections, "seeds": [0]}, tmp_path))
    assert len(parsed.all("table")) == len(sections)
    assert "alpha 0.5" in "".join(parsed.text)
    assert len(seen(page({}, tmp_path)).all("table")) == 1


def test_plain_values_are_what_json_can_hold(tmp_path):
    value = {"a": np.float32(0.5), "b": [np.int64(3), math.nan], "c": np.array([1.0, np.inf]), "d": tmp_path}
    expected = {"a": 0.5, "b": [3, None], "c": [1.0, None], "d": str(tmp_path)}
    assert plain(value) == expected


def test_report_layer_needs_no_torch_and_draws_without_pyplot():
    code = (
        "import sys; import osae.report.page, osae.report.table, osae.report.figures as f, tempfile\n"
        "assert 'matplotlib' not in sys.modules\n"
        "path = tempfile.mkdtemp() + '/a.png'\n"
        "f.curve({'a': ([1, 2], [1, 2])}, path, title='', x_label='', y_label='')\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
