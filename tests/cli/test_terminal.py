"""Progress: each thing that is done has a bar and a time left of its own."""

import pytest

from osae.cli import terminal


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_a_bar_begins_anew_when_something_new_begins(monkeypatch, capsys):
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True)
    with terminal.Progress("harvest") as progress:
        assert progress.bar is not None
        task = progress.bar.tasks[0]
        for done in (500, 1000):
            progress(done, 1000, "tokens read")
        assert task.finished
        progress(100, 1000, "tokens, 7 a second")
        assert not task.finished
        assert task.completed == 100
        progress(200, 1000, "tokens, 7 a second")
        assert task.time_remaining != 0
        progress(1000, 1000, "tokens, 7 a second")
        progress(1000, 2000, "of another total")
        assert not task.finished


def test_lines_tell_the_time_left_of_what_is_being_done(clock, monkeypatch, capsys):
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: False)
    with terminal.Progress("harvest") as progress:
        for seconds, done, text in ((0, 10, "read"), (60, 400, "read"), (1, 1000, "read"), (9, 50, "made")):
            clock[0] += seconds
            progress(done, 1000, text)
        clock[0] += 90
        progress(140, 1000, "made")
        progress(1000, 1000, "made")
    assert capsys.readouterr().err.splitlines() == [
        "harvest: 10/1000 read",
        "harvest: 400/1000 read, 0:01:32 left",
        "harvest: 1000/1000 read",
        "harvest: 50/1000 made",
        "harvest: 140/1000 made, 0:14:20 left",
        "harvest: 1000/1000 made",
    ]
