"""Progress is a bar where one can be drawn, and a line now and then elsewhere."""

import builtins
import importlib.machinery
import sys
import types

import pytest

from osae import progress


class ZMQInteractiveShell:
    """What `get_ipython()` returns in a notebook."""


@pytest.fixture
def notebook(monkeypatch):
    """Return a function that makes this process look like a notebook, with or without ipywidgets."""

    def enter(*, widgets):
        monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        module = types.ModuleType("ipywidgets")
        module.__spec__ = importlib.machinery.ModuleSpec("ipywidgets", None) if widgets else None
        monkeypatch.setitem(sys.modules, "ipywidgets", module)
        if not widgets:
            monkeypatch.setattr(progress, "find_spec", lambda name: None)

    return enter


def test_bars_are_drawn_on_a_terminal_and_in_a_notebook(monkeypatch, notebook):
    assert not progress.shows_bars()
    notebook(widgets=True)
    assert progress.shows_bars()
    notebook(widgets=False)
    assert not progress.shows_bars()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert progress.shows_bars()


def test_lines_come_now_and_then_and_at_the_end(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.ProgressBar("work") as bar:
        for done in range(1, 11):
            now[0] += 2
            bar(done, 10, "steps\x1b[2J")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "work: 1/10 steps\\x1b[2J"
    assert said[1] == "work: 4/10 steps\\x1b[2J, 0:00:12 left"
    assert said[-1] == "work: 10/10 steps\\x1b[2J"
    assert len(said) == 4


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_bar_begins_anew_when_something_new_begins(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    with progress.ProgressBar("harvest") as bar:
        assert bar.bar is not None
        task = bar.bar.tasks[0]
        for done in (500, 1000):
            bar(done, 1000, "tokens read")
        assert task.finished
        bar(100, 1000, "tokens, 7 a second")
        assert not task.finished
        assert task.completed == 100
        bar(200, 1000, "tokens, 7 a second")
        assert task.time_remaining != 0
        bar(1000, 1000, "tokens, 7 a second")
        bar(1000, 2000, "of another total")
        assert not task.finished


def test_lines_tell_the_time_left_of_what_is_being_done(clock, monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False)
    with progress.ProgressBar("harvest") as bar:
        for seconds, done, text in ((0, 10, "read"), (60, 400, "read"), (1, 1000, "read"), (9, 50, "made")):
            clock[0] += seconds
            bar(done, 1000, text)
        clock[0] += 90
        bar(140, 1000, "made")
        bar(1000, 1000, "made")
    assert capsys.readouterr().err.splitlines() == [
        "harvest: 10/1000 read",
        "harvest: 400/1000 read, 0:01:32 left",
        "harvest: 1000/1000 read",
        "harvest: 50/1000 made",
        "harvest: 140/1000 made, 0:14:20 left",
        "harvest: 1000/1000 made",
    ]
