"""The command line as data: parsers, help texts, refusals and suggestions come from the dataclasses."""

import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.cli import COMMANDS, main
from osae.cli.command import Command, Group
from osae.cli.parsing import build_parser, parse
from osae.options import Options, list_options, option


def every_command() -> list[Command]:
    """Return all commands, those of groups among them."""
    found = []
    for command in COMMANDS.values():
        found += list(command.find().values()) if isinstance(command, Group) else [command]
    return found


@dataclass(frozen=True, kw_only=True)
class Sample(Options):
    saes: tuple[str, ...] = option("SAEs", positional=True, metavar="SAE", entries="words")
    out: Path = option("a folder", metavar="DIR")
    seeds: tuple[int, ...] = option("seeds", default=(0,))
    change: tuple[str, ...] = option("changes", default=(), entries="repeated")
    text: tuple[str, ...] = option("texts", default=(), entries="words")
    rate: float | None = option("100 % a rate", default=None, shown="by size", above=0)
    quick: bool = option("hurry", default=False)
    by: str = option("an order", default="gain", choices=("gain", "energy"), group="others")


COMMAND = Command("sample", "Sample things.", Sample, lambda options, line: 0, examples=("osae sample a",))


def parsed(*words: str) -> Options:
    return parse(COMMAND, words).options


def test_words_become_options_in_any_order():
    asked = parsed("a", "--out", "x", "b", "--quick", "--seeds=3,1e1", "c")
    assert asked == Sample(saes=("a", "b", "c"), out=Path("x"), quick=True, seeds=(3, 10))
    asked = parsed("a", "--change", "x=1", "--change", "y=2,3", "--text", "p q", "r", "--out", "x")
    assert asked == Sample(saes=("a",), out=Path("x"), change=("x=1", "y=2,3"), text=("p q", "r"))


def test_the_last_of_two_counts():
    asked = parsed("a", "--out", "x", "--out", "y", "--quick", "--no-quick", "--text", "p", "--text", "q")
    assert asked == Sample(saes=("a",), out=Path("y"), text=("q",))


def test_words_behind_two_dashes_are_arguments():
    assert parsed("--out", "x", "--", "-a", "--b") == Sample(saes=("-a", "--b"), out=Path("x"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--ouut", "x"], "no option --ouut: did you mean --out?"),
        (["a", "--out", "x", "--see=1"], "no option --see: did you mean --seeds?"),
        (["a", "--out", "x", "-x"], "no option -x: see `osae sample --help`."),
        (["a"], "--out must be given: see `osae sample --help`."),
        ([], "SAE and --out must be given: see `osae sample --help`."),
        (["a", "--out"], "--out needs a value."),
        (["a", "--text", "--out", "x"], "--text needs a value."),
        (["a", "--out", "x", "--quick=1"], "--quick takes no value: leave out '1'."),
        (["a", "--out", "x", "--rate", "0"], "--rate 0: give a number above 0."),
        (["a", "--out", "x", "--seeds", "inf"], "--seeds inf: give a whole number, such as 2000 or 2e3."),
        (["a", "--out", "x", "--by", "size"], "--by size: give one of gain, energy."),
    ],
    ids=str,
)
def test_a_mistake_is_named_with_its_remedy(words, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parsed(*words)


@pytest.mark.parametrize("words", [["reproduce", "toy"], ["reproduce", "lm"], ["reproduce", "tuning"]])
def test_the_help_text_does_not_break_names(words, capsys):
    main([*words, "--help"])
    assert "matryoshka-fixed" in capsys.readouterr().out


def test_the_help_text_says_each_default_once():
    text = " ".join(build_parser(COMMAND).format_help().split())
    assert "usage: osae sample SAE ... --out DIR [options]" in text
    assert "100 % a rate (default: by size)" in text
    assert "seeds (default: 0)" in text
    assert "others: --by {gain,energy} an order (default: gain)" in text
    assert "examples: osae sample a" in text
    assert "None" not in text
    assert text.count("default:") == 3


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name)
def test_every_command_teaches(command, capsys):
    assert main([*command.name.split(), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"usage: osae {command.name} ")
    assert command.help in text
    assert command.help.endswith(".")
    assert command.examples
    assert all(f"osae {command.name}" in example for example in command.examples)
    assert "(default: None)" not in text
    assert "(default: ) " not in text
    assert not re.search(r"\(default: [^()]*\) \(default", text)
    for declared in list_options(command.options):
        assert len(declared.help) > 4
        assert " ".join(declared.help.split()) in text
        assert declared.positional or declared.flag in text


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name)
def test_every_field_of_a_command_is_a_documented_option(command):
    declared = {option.name for option in list_options(command.options)}
    assert declared == {field.name for field in fields(command.options)}


@pytest.mark.parametrize(
    "example", [(c, e) for c in every_command() for e in c.examples], ids=lambda pair: pair[1][:60]
)
def test_every_example_can_be_parsed(example):
    command, text = example
    for line in text.replace("\\\n", " ").split(";"):
        line = line.split("#")[0].split(">")[0]
        if "--config" in line.split() or "<(" in line:  # a file that is not there
            continue
        words = [word.strip("'") for word in line.split()]
        words = words[words.index("osae") :]  # after `torchrun ... -m`, or at once
        parse(command, words[1 + len(command.name.split()) :])


def test_one_word_for_one_thing():
    """An option of one name has one type of value in every command, and activations are always --data."""
    kinds: dict[str, set[str]] = {}
    for command in every_command():
        for declared in list_options(command.options):
            kind = str(declared.kind).replace("pathlib.", "")
            kinds.setdefault(declared.name, set()).add(kind)
    mixed = {name: found for name, found in kinds.items() if len(found) > 1}
    # `reproduce lm` names its data and counts its seeds; --units of a comparison is the file of their table,
    # and --on what is compared; elsewhere it is where training runs take place
    assert set(mixed) <= {"data", "seeds", "units", "on"}, mixed
    assert not {"activations", "dictionary", "width", "active", "zipf", "samples"} & set(kinds)


OLD = [
    ("train", "--dictionary", "--units"),
    ("train", "--width", "--world-width"),
    ("train", "--active", "--world-active"),
    ("train", "--zipf", "--world-zipf"),
    ("train", "--samples", "--world-samples"),
    ("compare", "--activations", "--data"),
    ("compare", "--abs", "--absolute"),
    ("order", "--activations", "--data"),
    ("stitch", "--activations", "--data"),
]


@pytest.mark.parametrize(("command", "old", "new"), OLD)
def test_a_renamed_option_gets_its_new_name(command, old, new, capsys):
    assert main([command, "a", old, "1"]) == 2
    assert capsys.readouterr().err == f"osae {command}: no option {old}: did you mean {new}?\n"


NAMES = sorted({name for command in every_command() for name in command.name.split()})
FLAGS = sorted({o.flag for command in every_command() for o in list_options(command.options)})
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(FLAGS),
    st.sampled_from(FLAGS).map(lambda flag: f"{flag}=1"),
    st.sampled_from(["0", "1e3", "nan", "inf", "-1", "-1e3", "a,b", ",", "", "--", "-", "\n", "\x1b[2J"]),
    st.text(max_size=6),
)


def quietly(words, capsys):
    code = main(words)
    return code, capsys.readouterr()


def test_random_command_lines_end_with_one_line_and_code_2(capsys, monkeypatch):
    ran = []

    @settings(max_examples=400, deadline=None)
    @given(st.sampled_from(every_command()), st.lists(WORDS, max_size=6))
    def check(command, words):
        with monkeypatch.context() as patch:  # parsed to the end, but not run
            patch.setattr("osae.cli._report_errors", lambda work, resumable: ran.append(command) or 0)
            code, said = quietly([*command.name.split(), *words], capsys)
        if code == 0:
            assert said.err == ""
        else:
            assert code == 2
            assert said.err.startswith(f"osae {command.name}: ")
            assert len(said.err.splitlines()) == 1
            assert "\x1b" not in said.err
            assert said.out == ""

    check()


def test_random_words_are_no_command(capsys):
    @settings(deadline=None)
    @given(st.text(min_size=1))
    def check(word):
        if word not in (*COMMANDS, "-h", "--help", "--version", "__complete"):
            code, said = quietly([word], capsys)
            assert code == 2
            assert said.err.startswith("osae: no command ")
            assert len(said.err.splitlines()) == 1

    check()


def test_a_command_of_another_spelling_is_suggested(capsys):
    assert main(["trian", "topk"]) == 2
    assert capsys.readouterr().err == "osae: no command 'trian': did you mean train?\n"
