"""A run as one file: `--print-config` writes what `--config` reads."""

import math
import shlex

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from osae.cli import config_file, main
from osae.cli.parsing import parse
from osae.options import Option, list_options
from tests.cli.test_parsing import every_command

COMMANDS = {command.name: command for command in every_command()}


def write(folder, text: str) -> str:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    return str(folder / "run.yaml")


def texts(declared: Option) -> st.SearchStrategy[str]:
    """Return words that the command line may hold for an entry of the option."""
    kind = str(declared.kind)
    if declared.allowed:
        return st.sampled_from(declared.allowed)
    if "int" in kind:
        return st.integers(1, 10**6).map(str)
    if "float" in kind:
        return st.floats(0.1, 1e6).map(repr)
    if declared.pattern:
        return st.sampled_from(["cpu", "cuda:1"])
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text != "-")


@st.composite
def command_lines(draw) -> tuple[str, list[str]]:
    """Draw a command and words that may follow it."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    words, behind = [], []
    for declared in list_options(COMMANDS[name].options):
        if not declared.required and not draw(st.booleans()):
            continue
        if declared.is_switch:
            words.append(declared.flag)
        elif declared.positional:
            several = declared.is_tuple and declared.entries == "words"
            behind += (
                draw(st.lists(texts(declared), min_size=1, max_size=3))
                if several
                else [draw(texts(declared))]
            )
        else:
            words.append(f"{declared.flag}={draw(texts(declared))}")
    return name, [*words, "--", *behind]


def test_a_printed_file_stands_for_the_command_line(tmp_path):
    kept = 0

    @settings(max_examples=150, deadline=None)
    @given(command_lines())
    def check(line):
        nonlocal kept
        name, words = line
        command = COMMANDS[name]
        try:
            asked = parse(command, words).options
        except ValueError:  # options that do not go together
            assume(False)
        path = write(tmp_path, config_file.write(command, asked))
        assert parse(command, ["--config", path]).options == asked
        kept += 1

    check()
    assert kept > 40


def test_print_config_prints_the_file_and_does_nothing_else(tmp_path, capsys):
    words = ["train", "osae,topk", "--out", str(tmp_path / "run"), "--world-width", "64", "--seeds", "0,1"]
    assert main([*words, "--print-config"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[:3] == ["# osae train --config FILE", "command: train", "world-width: 64"]
    assert "recipes: [osae, topk]" in text
    assert not (tmp_path / "run").exists()
    path = write(tmp_path, text)
    assert main(["train", "--config", path, "--print-config"]) == 0
    assert capsys.readouterr().out == text


def test_the_command_line_overrides_the_file(tmp_path):
    path = write(tmp_path, "recipes: topk\nout: a\nseeds: 0,1\nlive: true\nworld_width: 8\nepochs: 2e1\n")
    words = ["osae", "--config", path, "--seeds", "5", "--no-live"]
    asked = parse(COMMANDS["train"], words).options
    expected = parse(
        COMMANDS["train"], ["osae", "--out", "a", "--seeds", "5", "--world-width", "8", "--epochs", "20"]
    )
    assert asked == expected.options


def test_a_value_means_what_it_means_on_the_command_line(tmp_path):
    text = "{model: m, layer: 1, text: [no, '1e3'], tokens: 2e6, bos: no, out: 07, max-norm: null}"
    asked = parse(COMMANDS["harvest"], ["--config", write(tmp_path, text)]).options
    words = "--model m --layer 1 --text no 1e3 --tokens 2000000 --bos no --out 07"
    assert asked == parse(COMMANDS["harvest"], shlex.split(words)).options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ouut: x\n", "line 1: no option ouut: did you mean out?"),
        ("out: x\nactive: 3\n", "line 2: no option active: did you mean world-active?"),
        ("out: x\nout: y\n", "line 2: out is given twice."),
        ("command: harvest\n", "line 1: this file is for `osae harvest`, not for `osae train`."),
        ("units: many\n", "line 1: --units many: give a whole number"),
        ("units: [1, 2]\n", "line 1: --units: give one value, not 2."),
        ("units: {a: 1}\n", "line 1: units: give a value, or a list of values."),
        ("seeds: [[1]]\n", "line 1: seeds: give a value, or a list of values."),
        ("out:\nseeds: 0\n", "RECIPE must be given"),
        ("- out\n", "is not a list of options: write one on each line"),
        ("out: [\n", "line 2, column 1: is not valid YAML: expected the node content"),
        ("a: &a [*a]\n", "no option a: "),
        ("seeds: &a [*a]\n", "give a value, or a list of values."),
        ("? [a, b]\n: c\n", "no option"),
        ("[" * 5000, "is not valid YAML"),
        ("#" * 2**21, "is larger than"),
        ("a: b: c\n", "line 1, column 5: is not valid YAML: mapping values are not allowed here."),
        ("text: {a: [b]}\n", "line 1: text: give a value, or a list of values."),
        ("", "RECIPE and --out must be given"),
    ],
    ids=lambda text: text[:20],
)
def test_a_mistake_in_the_file_is_named_in_one_line(text, message, tmp_path, capsys):
    path = write(tmp_path, text)
    assert main(["train", "--config", path]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{lr.peak: 1e-3, rescale: true}", ["lr.peak=1e-3", "rescale=true"]),
        ("{prefix: {kind: Uniform}, sweep: null}", ['prefix={"kind": "Uniform"}', "sweep=null"]),
        ("{name: '7', prefix: {kind: Explicit, values: [1, 0.5]}}", None),
    ],
)
def test_changes_of_a_recipe_may_be_written_as_a_mapping(text, words, tmp_path):
    words = words or ['name="7"', 'prefix={"kind": "Explicit", "values": [1, 0.5]}']
    path = write(tmp_path, f"recipes: topk\nout: a\nset: {text}\n")
    asked = parse(COMMANDS["train"], ["--config", path]).options
    assert asked.set == tuple(words)  # pyright: ignore


def test_texts_by_name_may_be_written_as_a_mapping(tmp_path):
    from osae.cli.commands.reproduce import find_commands

    command = find_commands()["lm"]
    path = write(tmp_path, "out: a\ntext: {one: 1e3, two: b.txt}\n")
    assert parse(command, ["--config", path]).options.text == ("one=1e3", "two=b.txt")  # pyright: ignore
    with pytest.raises(ValueError, match="give one value for each name"):
        parse(command, ["--config", write(tmp_path, "out: a\ntext: {one: [a]}\n")])


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "no", "No such file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "binary", "text"),
    ):
        assert main(["train", "--config", str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert str(path) in error
        assert len(error.splitlines()) == 1


def test_the_numbers_of_a_printed_file_are_exact(tmp_path):
    for rate in (0.1, 1e-7, 1 / 3, 1e300, math.nextafter(1, 2)):
        asked = parse(COMMANDS["train"], ["topk", "--out", "x", f"--epochs={rate!r}"]).options
        path = write(tmp_path, config_file.write(COMMANDS["train"], asked))
        assert parse(COMMANDS["train"], ["--config", path]).options.epochs == rate  # pyright: ignore
