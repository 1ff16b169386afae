"""Completion in a shell: what is offered, and that each shell understands its script."""

import os
import shutil
import subprocess
import sys

import pytest

from osae.cli import COMMANDS, main
from osae.cli.commands import train
from osae.cli.completion import SCRIPTS, offer
from osae.cli.parsing import list_flags
from osae.experiments import EXPERIMENTS
from osae.experiments.methods import STARTS
from osae.interop import TARGETS
from osae.options import list_options

TRAINED = next(each for each in list_options(train.COMMAND.options) if each.name == "recipes").allowed
WORLD = [flag for flag in list_flags(train.COMMAND) if flag.startswith("--world-")]


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["trai"], ["train"]),
        (["rec"], ["recipes"]),
        (["train", "--wor"], WORLD),
        (["train", "osae", "--world-zipf", "1", "--world-z"], []),  # given already
        (["train", "osae", "--log", "wandb", "--lo"], ["--log", "--log-every"]),  # can be given again
        (
            ["train", "osae-"],
            [
                "osae-paper",
                "osae-from-noise",
                "osae-aligned",
                "osae-from-modes",
                "osae-geometric",
                "osae-swept",
                "osae-swept-restarting",
            ],
        ),
        (["train", "osae,top"], [f"osae,{name}" for name in TRAINED if name.startswith("top")]),
        (["train", "osae", "--start", ""], [*STARTS]),
        (["train", "--print"], ["--print-config"]),
        (["train", "osae", "--out", ""], []),  # left to the shell: file names
        (["compare", "a", ""], []),
        (["convert", "a", "b", "--to", "s"], ["saelens", "sparsify"]),
        (["reproduce", ""], [*EXPERIMENTS, "--help"]),
        (["reproduce", "toy", "--qui"], ["--quick"]),
        (["reproduce", "nothing", "--"], []),
        (["nothing", ""], []),
    ],
    ids=str,
)
def test_what_can_follow_is_offered(words, offers):
    assert list(offer(COMMANDS, words)) == offers


def test_every_command_is_offered_with_its_meaning():
    offers = offer(COMMANDS, [""])
    assert {name: offers[name] for name in COMMANDS} == {name: c.help for name, c in COMMANDS.items()}


@pytest.fixture
def path(tmp_path):
    """Return a folder with this very `osae`, to be put first on the PATH."""
    program = tmp_path / "bin" / "osae"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m osae "$@"\n')
    program.chmod(0o755)
    (tmp_path / "notes.txt").touch()
    return program.parent


ASK = {
    "bash": """source {script}
        COMP_WORDS=(osae train --wor); COMP_CWORD=2; _osae; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "zsh": """compdef() {{ : }}; _describe() {{ print -l -- ${{offers%%:*}} }}
        source {script}; words=(osae train --wor); CURRENT=3; _osae""",
    "fish": "source {script}; complete -C 'osae train --wor' | cut -f1",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_understands_its_script(shell, path, capsys):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script = path.parent / "script"
    script.write_text(capsys.readouterr().out)
    assert subprocess.run([program, "-n", str(script)], check=False).returncode == 0
    environment = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(path.parent)}
    environment |= {key: value for key, value in os.environ.items() if key == "PYTHONPATH"}
    done = subprocess.run(
        [program, "-c", ASK[shell].format(script=script)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert sorted(done.stdout.split()) == sorted(WORLD), done.stderr


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["convert", "a", "--to=s"], ["--to=saelens", "--to=sparsify"]),
        (["train", "--start="], [f"--start={name}" for name in STARTS]),
        (["train", "osae", "--recipes=x"], []),
        (["convert", "--to", "="], [*TARGETS, "neuronpedia"]),  # as bash splits it
        (["convert", "--to", "=", "sa"], ["saelens"]),
    ],
    ids=str,
)
def test_values_are_offered_behind_an_equals_sign(words, offers):
    assert sorted(offer(COMMANDS, words)) == sorted(offers)


def test_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err == "osae completion: SHELL tcsh: give one of bash, zsh, fish.\n"
