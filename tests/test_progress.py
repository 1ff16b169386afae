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
