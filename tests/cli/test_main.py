"""The command line as a user meets it: how quickly it answers, how it refuses, how it ends."""

import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from osae.cli import COMMANDS, main
from osae.cli.commands import inspect

HEAVY = ("torch", "numpy", "matplotlib", "rich", "yaml", "numba", "scipy", "pandas", "transformers")


def shell(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "osae", *words], capture_output=True, text=True, timeout=120)


def processor_seconds() -> float:
    """Return what the processes of this test took so far, however busy the machine is with others."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_at_once():
    start = processor_seconds()
    assert "reproduce" in shell("--help").stdout
    assert processor_seconds() - start < 0.5


EXPLAINED = """
--help
help train
reproduce toy --help
__complete train --
"""
REFUSED = """
train topk --out x --epochs 0
train topk --out x --layer 3
train topk --out x --seeds 0,0
train topk --out x --seeds -1
train topk --out x --set lr.peek=1
train topk --out x --set lr.peak=nan
train topk --out x --k 101
train topk --out x --world-active 200
train topk --out x --data nope.npy --units 9 --k 2
train topk --out afile
train topk --out full
train osea --out x
train osae-from-noise --out x
train topk --out x --live --context 1 --skip-positions 5
train pythia-70m --out x --model m --layer 1 --text a --units 9
harvest --model m --layer 1 --text a --tokens 5 --out x --context 1 --skip-positions 5
harvest --model m --layer 1 --text a --tokens 5 --out afile
resume nope
resume full
inspect nothing
compare a b
compare full b --html .
evaluate nope --data full
order full --data nope --out x
order full --data full --out full
stitch full full --data nope
convert nope out --to osae
convert full full --to osae
convert full out --to sparsify --layer 3
convert full out --to sealens
reproduce toy --k 2
reproduce toy --out afile
reproduce toy --out x --world-active 200
reproduce pca --out x --world-units 200
reproduce lm --out x --layer 99
reproduce lm --out x --setting pythia-70m --layer 7
reproduce lm --out x --k 5000
"""


def test_nothing_heavy_is_imported_to_explain_to_complete_or_to_refuse(tmp_path):
    (tmp_path / "afile").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    script = f"""
import sys, osae.cli
def run(lines):
    return {{line: osae.cli.main(line.split()) for line in lines.strip().splitlines()}}
wrong = [line for line, code in run({EXPLAINED!r}).items() if code != 0]
wrong += [line for line, code in run({REFUSED!r}).items() if code != 2]
wrong += [name for name in {HEAVY} if name in sys.modules]
sys.exit(", ".join(wrong) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(REFUSED.strip().splitlines()), "one line for each"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["afile", "full"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "topk", "--out", "x", "--epochs", "0"], "--epochs 0: give a number above 0."),
        (["train", "topk", "--out", "x", "--world-zipf", "nan"], "--world-zipf nan: give a finite number."),
        (["train", "topk", "--out", "x", "--seeds", "inf"], "--seeds inf: give a whole number"),
        (
            ["train", "topk", "--out", "x", "--tokens", "1e30"],
            "--tokens 1e30: give a whole number of at most",
        ),
        (
            ["train", "topk", "--out", "x", "--units", "1e3", "--layer", "3"],
            "--layer applies to language models only",
        ),
        (["train", "topk", "--ouut", "x"], "no option --ouut: did you mean --out?"),
        (["train", "topkk", "--out", "x"], "RECIPE topkk: did you mean topk? Give one of vanilla, topk"),
        (["reproduce", "toy", "--out", "x", "--k", "2"], "no option --k"),
        (["reproduce", "toy", "--out", "x", "--setting", "pythia-70m"], "no option --setting"),
        (["reproduce", "tory", "--out", "x"], "no experiment 'tory': did you mean toy?"),
        (["reproduce", "--out", "x", "toy"], "no experiment '--out': choose from toy"),
        (["compare", "a", "b", "--html", "."], ". is a folder: give the name of a file."),
        (["compare", "a", "b", "--json", "no/c.json"], "folder no does not exist: create it first."),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_in_one_line_within_two_seconds(words, message):
    start = processor_seconds()
    done = shell(*words)
    assert processor_seconds() - start < 2
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]], ids=str)
def test_the_commands_are_listed(words, capsys):
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +{re.escape(c.help)}$", out, re.M) for name, c in COMMANDS.items())
    assert max(map(len, out.splitlines())) <= 110


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"osae \d+\.\d+\.\d+\n", capsys.readouterr().out)


def failing(error):
    def run(options, line):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("a\nb\x1b[2J"), 2, "osae: a b\\x1b[2J\n"),
        (OSError(28, "No space left on device", "x"), 2, "osae: [Errno 28] No space left on device: 'x'\n"),
        (KeyboardInterrupt(), 130, "\nosae: interrupted.\n"),
    ],
    ids=repr,
)
def test_what_a_user_can_do_something_about_is_one_line(error, code, said, monkeypatch, capsys):
    command = inspect.COMMAND
    monkeypatch.setitem(COMMANDS, "inspect", type(command)(command.name, "", command.options, failing(error)))
    assert main(["inspect", "x"]) == code
    assert capsys.readouterr().err == said


def test_an_interrupted_command_that_can_be_resumed_says_so(monkeypatch, capsys):
    command = inspect.COMMAND
    changed = type(command)("inspect", "", command.options, failing(KeyboardInterrupt()), resumable=True)
    monkeypatch.setitem(COMMANDS, "inspect", changed)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr().err == "\nosae: interrupted. Run the same command again to resume.\n"


def test_sigterm_unwinds_the_command_and_gives_its_code(monkeypatch, capsys):
    ended = []

    def work(options, line):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
            return 0
        finally:
            ended.append(True)

    command, before = inspect.COMMAND, signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(COMMANDS, "inspect", type(command)("inspect", "", command.options, work))
    assert main(["inspect", "x"]) == 143
    assert ended
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "\nosae: interrupted.\n"


@pytest.mark.parametrize("launched", [False, True])
def test_threads_that_still_compute_do_not_abort_the_process_at_its_end(launched):
    """Without a clean end, they would: a thread of Python is stopped in the middle of a destructor of C++."""
    code = """
import sys, threading, torch
from osae.cli import run

def compute():
    while True:
        torch.randn(50).sort()

for _ in range(8):
    threading.Thread(target=compute, daemon=True).start()
sys.argv = ["osae", "--version"]
run()
"""
    ranks = {"WORLD_SIZE": "2", "RANK": "1"} if launched else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ranks, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert done.stdout.startswith("osae ")
    assert done.stderr == ""


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    command = inspect.COMMAND
    changed = type(command)("inspect", "", command.options, failing(AssertionError("ours")))
    monkeypatch.setitem(COMMANDS, "inspect", changed)
    with pytest.raises(AssertionError, match="ours"):
        main(["inspect", "x"])


@pytest.mark.parametrize(
    "words", ["completion bash", "--help", "train --help", "train osae --out x --print-config"]
)
def test_a_reader_that_has_read_enough_is_no_error(words):
    done = subprocess.run(
        f"{sys.executable} -u -m osae {words} | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""
