"""`osae show` and `osae watch` as a user meets them."""

import json
import os
import re
import shutil
import time
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
    os.utime(run / "log.jsonl")  # it would say how long ago that was
    assert main(["watch", str(run), "--once", "--html", str(page)]) == 0
    said = capsys.readouterr().out
    html = page.read_text()
    HTMLParser().feed(html)
    assert "<figure data-plot=" in html
    assert ('http-equiv="refresh"' in html) == (name == "interrupted")  # until the run has ended
    assert main(["show", str(run)]) == 0
    assert capsys.readouterr().out == said


def test_the_rate_of_a_resumed_run_is_that_of_its_training(tmp_path, capsys):
    run = shutil.copytree(RELEASED / "interrupted", tmp_path / "run")
    recipe = json.loads((run / "run.json").read_text())["config"]["recipes"][0]
    speeds = [{"step": 1}, {"step": 2, "samples_per_second": 400.0}]
    speeds += [{"step": 3}, {"step": 4, "samples_per_second": 100.0}]  # resumed on a slower day
    (run / "speed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in speeds))
    yesterday = time.time() - 86_400
    os.utime(run / "run.json", (yesterday, yesterday))
    os.utime(run / "log.jsonl")
    assert main(["watch", str(run), "--once"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    done, steps = (int(text.replace(",", "")) for text in re.findall(r"([\d,]+) of ([\d,]+) steps", head)[0])
    assert (recipe["batch"], steps) == (200, recipe["samples"] // 200)
    rate = 2 / (200 / 400 + 200 / 100)  # two stretches of as many steps
    assert f", {rate:.3g} a second, 0:00:{round((steps - done) / rate):02d} left" in head
    os.utime(run / "log.jsonl", (yesterday, yesterday))
    assert main(["watch", str(run), "--once"]) == 0
    assert "no log entry for 1,440 minutes" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "watch"])
def test_what_is_not_there_is_refused(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "nothing")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
