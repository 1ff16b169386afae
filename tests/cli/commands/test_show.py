"""`osae show` and `osae watch` as a user meets them."""

import shutil
from html.parser import HTMLParser

import pytest

from osae.cli import main
from tests.studies.checks import RELEASED


def test_show_prints_the_tables_of_a_result(capsys):
    assert main(["show", str(RELEASED / "compare-three.json")]) == 0
    out = capsys.readouterr().out
    assert "Pairs" in out
    assert "Stab" in out


def test_show_says_how_far_a_run_is(capsys):
    assert main(["show", str(RELEASED / "run")]) == 0
    finished = capsys.readouterr().out
    assert main(["show", str(RELEASED / "interrupted")]) == 0
    assert capsys.readouterr().out != finished


@pytest.mark.parametrize("name", ["run", "interrupted"])
def test_watch_looks_once_and_writes_a_page(name, tmp_path, capsys):
    run, page = shutil.copytree(RELEASED / name, tmp_path / name), tmp_path / "run.html"
    assert main(["watch", str(run), "--once", "--html", str(page)]) == 0
    said = capsys.readouterr().out
    html = page.read_text()
    HTMLParser().feed(html)
    assert "<figure data-plot=" in html
    assert ('http-equiv="refresh"' in html) == (name == "interrupted")  # until the run has ended
    assert main(["show", str(run)]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("command", ["show", "watch"])
def test_what_is_not_there_is_refused(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "nothing")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
